from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from model_files import SIZES, tiny_model, tiny_tokenizer, write_folder, write_gguf
from scipy import stats

from thousand_fingers.error_zone import TokenStatistics, token_statistics
from thousand_fingers.figures.membership_audit import report_alt, report_png
from thousand_fingers.language_model import LanguageModel, token_table, train_language_model
from thousand_fingers.language_model_files import FileRefusedError, load_language_model
from thousand_fingers.membership_audit import FORMAT, LEVEL, VERSION, audit, audit_files, chance_of_finding
from thousand_fingers.roc import non_members_needed

ROOT = Path(__file__).resolve().parents[1]
WORDS = ("the a doctor patient garden saw took kept near old " + "new red door key letter river").split()


def sentences(n: int, rng: np.random.Generator, words: list[str] = WORDS) -> list[str]:
    return [" ".join(rng.choice(words, size=9)) + f" {rng.integers(10**4)}" for _ in range(n)]


def statistics(
    n: int, rng: np.random.Generator, *, length: int = 20, gain: float = 0.0, members: int = 0
) -> tuple[TokenStatistics, TokenStatistics]:
    """A reference, and a target that finds the first ``members`` texts more probable by ``gain``."""
    hard = -rng.exponential(size=(n, length)) - 0.5
    noise = rng.normal(scale=0.3, size=(n, length))
    bonus = gain * (np.arange(n) < members)[:, None]
    correct = rng.random((n, length)) < 0.3
    moments = np.full((n, length), -2.0), np.full((n, length), 1.0)
    target = TokenStatistics(np.minimum(hard + noise + bonus, 0), correct, *moments)
    return target, TokenStatistics(hard, correct, *moments)


def write_jsonl(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def as_lines(said: TokenStatistics, ids: list[str], *fields: str) -> list[dict]:
    rows = []
    for i, name in enumerate(ids):
        there = said.scored[i]
        row = {"id": name}
        for field in ("log_probabilities", *fields):
            row[field] = getattr(said, field)[i][there].tolist()
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    """A tiny model trained on some texts, the one it began as, and all of it as files."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("bed")
    rng, generator, tokenizer = np.random.default_rng(0), torch.Generator().manual_seed(0), tiny_tokenizer()
    texts = sentences(160, rng)
    members, others, before = texts[:60], texts[60:120], texts[120:]
    reference = tiny_model()

    def train(model: LanguageModel, chosen: list[str], epochs: int) -> None:
        table = token_table([tokenizer.encode(text).ids for text in chosen])
        train_language_model(
            model, table, epochs=epochs, batch_size=20, learning_rate=0.02, generator=generator
        )

    train(reference, before, 8)
    target = LanguageModel(SIZES, dtype=torch.float32)
    target.load_state_dict(reference.state_dict())
    train(target, members, 30)
    for name, model in (("target", target), ("reference", reference)):
        write_gguf(folder / f"{name}.gguf", model, tokenizer)
    write_jsonl(folder / "members.jsonl", [{"id": f"m{i}", "text": text} for i, text in enumerate(members)])
    write_jsonl(
        folder / "non_members.jsonl", [{"id": f"n{i}", "text": text} for i, text in enumerate(others)]
    )
    ids = [f"m{i}" for i in range(60)] + [f"n{i}" for i in range(60)]
    table = token_table([tokenizer.encode(text).ids for text in texts[:120]])
    fields = ("correct", "expected", "deviation", "tokens")
    for name, model in (("target", target), ("reference", reference)):
        said = token_statistics(model, table, moments=True)
        write_jsonl(folder / f"{name}.jsonl", as_lines(said, ids, *fields)[::-1])  # in another order
        np.savez(
            folder / f"{name}.npz",
            ids=np.array(ids),
            lengths=said.scored.sum(axis=1),
            log_probabilities=said.log_probabilities,
            **{field: getattr(said, field) for field in fields},
        )
    return folder


def run(bed, target="target.gguf", reference="reference.gguf", **changes):
    paths = {
        "target": bed / target,
        "reference": bed / reference,
        "members": bed / "members.jsonl",
        "non_members": bed / "non_members.jsonl",
    }
    return audit_files(**(paths | changes), rng=np.random.default_rng(0))


def refusal(bed, *arguments, **changes) -> str:
    with pytest.raises(FileRefusedError) as caught:
        run(bed, *arguments, **changes)
    return str(caught.value)


# --------------------------------------------------------------------------- the tests behind the verdict


def test_the_chance_of_finding_members_is_a_share_of_all_orders():
    members, others = 4, 3
    for allowed, found in itertools.product(range(3), range(5)):
        hits = 0
        orders = list(itertools.combinations(range(members + others), others))
        for places in orders:  # where the non-members stand, from the top
            accused = [p for p in range(members + others) if p not in places]
            limit = places[allowed]  # the first non-member that must not be accused
            hits += sum(p < limit for p in accused) >= found
        assert chance_of_finding(found, allowed, members, others) == pytest.approx(hits / len(orders))


@pytest.mark.parametrize("bad", [(-1, 0, 5, 5), (6, 0, 5, 5), (1, 5, 5, 5), (1, -1, 5, 5), (1.0, 0, 5, 5)])
def test_the_chance_of_finding_checks_its_arguments(bad):
    with pytest.raises((TypeError, ValueError), match="must be"):
        chance_of_finding(*bad)


def test_a_model_that_never_saw_the_members_is_rarely_called_a_leak():
    rng = np.random.default_rng(1)
    outcomes = []
    for _ in range(25):
        target, reference = statistics(120, rng)
        report = audit(target, reference, np.arange(120) < 60, rng=rng, fpr=(0.2,))
        outcomes.append(report.outcome)
    # each control may be off in 1 of 100, and all scores together in 1 of 100
    assert outcomes.count("leak") <= stats.binom.isf(1e-6, 25, LEVEL)
    assert outcomes.count("not comparable") <= stats.binom.isf(1e-6, 25, 0.02)


def test_a_leak_at_few_false_alarms_shows_although_the_area_is_that_of_chance():
    rng = np.random.default_rng(2)
    target, reference = statistics(3000, rng, gain=3.0, members=45)
    members = np.arange(3000) < 1500
    report = audit(target, reference, members, rng=rng)
    calibrated = next(f for f in report.findings if f.name == "calibrated")
    assert calibrated.roc.auc < 0.53
    (rate,) = [r for r in calibrated.rates if r.fpr == 0.01]
    assert rate.point.true_positives >= 45
    assert rate.p_value < 1e-4
    assert report.outcome == "leak"


def test_areas_and_rates_are_those_of_an_independent_implementation():
    rng = np.random.default_rng(3)
    target, reference = statistics(2400, rng, gain=0.2, members=1200)
    members = np.arange(2400) < 1200
    report = audit(target, reference, members, rng=rng, fpr=(0.05, 0.01, 0.001))
    scores = np.nanmean(target.log_probabilities - reference.log_probabilities, axis=1)
    finding = next(f for f in report.findings if f.name == "calibrated")
    test = stats.mannwhitneyu(
        scores[members], scores[~members], alternative="greater", method="asymptotic", use_continuity=False
    )
    assert finding.roc.auc == pytest.approx(test.statistic / 1200**2)
    assert finding.p_value == pytest.approx(test.pvalue, rel=1e-6)
    assert finding.auc_interval.low < finding.roc.auc < finding.auc_interval.high
    for rate, allowed in zip(finding.rates[:2], (60, 12), strict=True):
        limit = np.sort(scores[~members])[-allowed - 1]
        assert rate.point.true_positives == (scores[members] > limit).sum()
        assert rate.point.false_positives == allowed
    assert finding.rates[2].point is None
    assert finding.rates[2].needed == non_members_needed(0.001) == 12_000
    best = np.max(scores[~members])
    assert finding.no_false_positives.true_positives == (scores[members] > best).sum()


def test_perfect_separation_of_few_texts_is_not_called_certain():
    rng = np.random.default_rng(4)
    target, reference = statistics(24, rng, gain=40.0, members=12)
    target = TokenStatistics(target.log_probabilities, np.zeros((24, 20), bool))
    report = audit(
        target, TokenStatistics(reference.log_probabilities - 30, target.correct), np.arange(24) < 12, rng=rng
    )
    finding = next(f for f in report.findings if f.name == "calibrated")
    assert finding.roc.auc == 1.0
    assert finding.auc_interval.low == pytest.approx(0.025 ** (1 / 12))  # twelve of twelve pairs
    assert any("fewer than 100" in warning for warning in report.warnings)


# --------------------------------------------------------------------------- controls


def test_texts_of_two_kinds_are_called_not_comparable():
    rng = np.random.default_rng(5)
    target, reference = statistics(200, rng, gain=0.5, members=100)
    texts = sentences(100, rng) + sentences(100, rng, [*WORDS[3:], "pandemic"])
    report = audit(target, reference, np.arange(200) < 100, rng=rng, texts=texts)
    bag = report.controls[-1]
    assert (bag.name, bag.separates) == ("bag_of_words", True)
    assert report.outcome == "not comparable"
    assert report.leaking  # the scores separate them, and still nothing follows
    assert report.verdict.startswith("Not comparable: ")
    assert "Counting words alone reaches an area of" in report.verdict


@pytest.mark.parametrize("shift", ["tokens", "length", "reference"])
def test_other_differences_between_the_texts_show_too(shift):
    rng = np.random.default_rng(6)
    n, members = 200, np.arange(200) < 100
    values = -rng.exponential(size=(n, 20))
    tokens = rng.integers(50, size=(n, 20))
    if shift == "tokens":
        tokens[members, :3] = rng.integers(50, 60, size=(100, 3))
    if shift == "reference":
        values[~members] *= 1.5
    if shift == "length":
        for row in np.flatnonzero(members):
            values[row, rng.integers(5, 20) :] = np.nan
        tokens[np.isnan(values)] = -1
    said = TokenStatistics(values, np.zeros((n, 20), bool), tokens=tokens)
    report = audit(said, said, members, rng=rng)
    separating = {control.name for control in report.controls if control.separates}
    assert {"tokens": "bag_of_tokens"}.get(shift, shift) in separating
    assert report.outcome == "not comparable"


def test_without_texts_and_tokens_the_report_says_that_it_could_not_look():
    rng = np.random.default_rng(7)
    target, reference = statistics(200, rng)
    report = audit(target, reference, np.arange(200) < 100, rng=rng, has_correct=False)
    assert [control.name for control in report.controls] == ["length", "reference"]
    assert any("cannot be checked" in warning for warning in report.warnings)
    missing = {f.name: f.missing for f in report.findings if f.roc is None}
    assert set(missing) == {"ez", "zlib"}
    assert "correct" in missing["ez"]


def test_deviations_that_contradict_the_means_cost_one_score_and_not_the_report():
    rng = np.random.default_rng(8)
    target, reference = statistics(40, rng)
    odd = TokenStatistics(
        target.log_probabilities, target.correct, target.expected, np.zeros_like(target.deviation)
    )
    report = audit(odd, reference, np.arange(40) < 20, rng=rng)
    (missing,) = [f for f in report.findings if f.roc is None and f.name != "zlib"]
    assert missing.name == "min_k_plus_plus"
    assert "above 0" in missing.missing


def test_swapped_files_are_noticed():
    rng = np.random.default_rng(8)
    target, reference = statistics(200, rng, gain=1.0, members=100)
    report = audit(reference, target, np.arange(200) < 100, rng=rng)
    assert any("Members score below non-members" in warning for warning in report.warnings)
    report = audit(target, reference, np.arange(200) >= 100, rng=rng)
    assert report.outcome == "no evidence"
    assert "make sure that no two files are swapped" in report.verdict
    report = audit(*statistics(200, rng), np.arange(200) < 100, rng=rng)
    assert report.outcome == "no evidence"
    assert "swapped" not in report.verdict


@pytest.mark.parametrize(
    ("members", "changes"),
    [
        (np.arange(40) < 9, {}),
        (np.arange(40) < 31, {}),
        (np.arange(39) < 20, {}),
        (np.arange(40), {}),
        (np.arange(40) < 20, {"fpr": (0.0,)}),
        (np.arange(40) < 20, {"fpr": (1.0,)}),
        (np.arange(40) < 20, {"fpr": (float("nan"),)}),
        (np.arange(40) < 20, {"rng": 0}),
        (np.arange(40) < 20, {"texts": ["x"] * 39}),
    ],
)
def test_audit_checks_its_arguments(members, changes):
    target, reference = statistics(40, np.random.default_rng(0))
    with pytest.raises((TypeError, ValueError)):
        audit(target, reference, members, **({"rng": np.random.default_rng(0)} | changes))


# --------------------------------------------------------------------------- files


def test_a_trained_model_is_found_out_whatever_form_its_files_have(bed):
    report, inputs = run(bed)
    assert report.outcome == "leak"
    ez = report.findings[0]
    assert ez.name == "ez"
    assert ez.roc.auc > 0.9
    assert inputs["target"]["kind"] == "gguf"
    assert len(inputs["target"]["files"][0]["sha256"]) == 64
    for pair in itertools.product(("target.jsonl", "target.npz"), ("reference.jsonl", "reference.npz")):
        other, _ = run(bed, *pair)
        for a, b in zip(report.findings, other.findings, strict=True):
            assert a.roc.auc == pytest.approx(b.roc.auc, abs=1e-3)
    mixed, _ = run(bed, "target.gguf", "reference.npz")
    assert mixed.findings[0].roc.auc == pytest.approx(ez.roc.auc, abs=1e-3)


def test_the_recipe_of_the_page_writes_what_the_audit_reads(bed, tmp_path, monkeypatch):
    """Its code runs as it stands, on a stand-in for the library that it names."""

    class Loader:
        @staticmethod
        def from_pretrained(name):
            loaded = load_language_model(bed / name)
            loader = Loader()
            loader.float = loader.eval = lambda: loader
            loader.read = lambda text: SimpleNamespace(
                input_ids=torch.tensor([loaded.tokenizer.encode(text).ids])
            )
            loader.answer = lambda tokens: SimpleNamespace(logits=loaded.model(tokens))
            return loader

        def __call__(self, given, return_tensors=None):
            return self.read(given) if return_tensors == "pt" else self.answer(given)

    monkeypatch.setitem(
        sys.modules,
        "transformers",
        SimpleNamespace(AutoModelForCausalLM=Loader, AutoTokenizer=Loader),
    )
    page = (ROOT / "chapters" / "audit_your_own_model.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(recipe, names)
    texts = {}
    for name in ("members", "non_members"):
        lines = map(json.loads, (bed / f"{name}.jsonl").read_text().splitlines())
        texts |= {line["id"]: line["text"] for line in lines}
    for name in ("target", "reference"):
        names["export"](f"{name}.gguf", texts, tmp_path / f"{name}.jsonl")
    report, _ = run(bed, tmp_path / "target.jsonl", tmp_path / "reference.jsonl")
    direct, _ = run(bed)
    for a, b in zip(report.findings, direct.findings, strict=True):
        assert a.roc.auc == pytest.approx(b.roc.auc, abs=1e-3)


def test_the_page_names_every_option_field_and_outcome(bed):
    page = (ROOT / "chapters" / "audit_your_own_model.md").read_text(encoding="utf-8")
    report, _ = run(bed, "target.jsonl", "reference.jsonl", fpr=(0.3, 0.01))
    about = report.as_json()

    def keys(value):
        if isinstance(value, dict):
            return set(value).union(*map(keys, value.values()))
        return set().union(*map(keys, value)) if isinstance(value, list) else set()

    missing = {key for key in keys(about) if f"`{key}`" not in page}
    assert missing == set()
    for finding in report.findings:
        assert f"`{finding.name}`" in page
    for outcome in ("leak", "no evidence", "not comparable"):
        assert f"| `{outcome}` |" in page
    for option in ("--out", "--force", "--fpr", "--max-tokens", "--seed"):
        assert f"| `{option}" in page
    for rate in (0.01, 0.001):
        assert f"`{non_members_needed(rate):,}`" in page


def test_the_untrained_model_is_not(bed):
    report, _ = run(bed, "reference.gguf")
    assert report.outcome == "no evidence"
    assert any("same model" in warning for warning in report.warnings)
    assert "would have shown" in report.verdict


def test_a_folder_of_safetensors_is_a_model_too(bed, tmp_path):
    folder = write_folder(tmp_path / "hf", tiny_model(), tiny_tokenizer())
    report, inputs = run(bed, reference=folder)
    assert inputs["reference"]["kind"] == "safetensors"
    assert report.members == 60


def test_the_report_is_json_with_a_stable_shape(bed):
    report, _ = run(bed)
    about = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert (
        (about["format"], about["version"]) == (FORMAT, VERSION) == ("thousand-fingers/membership-audit", 1)
    )
    assert set(about) == {
        "format",
        "version",
        "library",
        "confidence",
        "texts",
        "scores",
        "controls",
        "warnings",
        "verdict",
    }
    assert [s["name"] for s in about["scores"]] == [
        "ez",
        "loss",
        "calibrated",
        "zlib",
        "min_k",
        "min_k_plus_plus",
    ]
    ez = about["scores"][0]
    assert set(ez) == {
        "name",
        "title",
        "computed",
        "auc",
        "auc_interval",
        "p_value",
        "tpr_at_fpr",
        "no_false_positives",
    }
    assert ez["tpr_at_fpr"] == [
        {"fpr": 0.01, "reported": False, "needs_non_members": 1100},
        {"fpr": 0.001, "reported": False, "needs_non_members": 12000},
    ]
    point = ez["no_false_positives"]
    assert point["false_positives"] == 0
    assert point["realised_fpr_interval"][1] == pytest.approx(1 - 0.025 ** (1 / 60))
    assert set(about["verdict"]) == {
        "outcome",
        "words",
        "level",
        "tests",
        "detectable_auc",
        "does_not_say",
    }


def test_the_figure_is_a_picture_and_its_alternative_text_tells_it(bed):
    report, _ = run(bed)
    picture = report_png(report)
    assert picture.startswith(b"\x89PNG")
    assert picture == report_png(report)
    alt = report_alt(report)
    for finding in report.findings:
        assert f"{finding.title} {finding.roc.auc:.3f}" in alt
    assert report.verdict in alt


def test_long_texts_are_refused_or_cut(bed, tmp_path):
    lines = [
        {"id": f"x{i}", "text": text * 12} for i, text in enumerate(sentences(60, np.random.default_rng(9)))
    ]
    long = write_jsonl(tmp_path / "long.jsonl", lines)
    assert "cut texts with --max-tokens" in refusal(bed, non_members=long)
    report, inputs = run(bed, non_members=long, max_tokens=20)
    assert inputs["target"]["texts_cut"] == 120
    assert report.tokens == 120 * 19
    with pytest.raises(ValueError, match="max_tokens must be >= 2"):
        run(bed, max_tokens=1)


def test_of_a_cut_text_only_what_was_read_counts(bed, tmp_path):
    """Length in bytes, doublets and a text that is on both sides: all are judged by what the model read."""
    cut, whole = {}, {}
    for name in ("members", "non_members"):
        lines = [json.loads(line) for line in (bed / f"{name}.jsonl").read_text().splitlines()]
        whole[name] = write_jsonl(tmp_path / f"{name}.jsonl", lines)
        begun = [tiny_tokenizer().decode(tiny_tokenizer().encode(line["text"]).ids[:20]) for line in lines]
        pairs = zip(lines, begun, strict=True)
        cut[name] = write_jsonl(tmp_path / f"cut_{name}.jsonl", [a | {"text": text} for a, text in pairs])
    (ours, inputs), (theirs, _) = run(bed, max_tokens=20, **whole), run(bed, **cut)
    assert inputs["target"]["texts_cut"] == 120
    for mine, other in zip(ours.findings, theirs.findings, strict=True):
        assert mine.roc is not None
        assert other.roc is not None
        assert mine.roc.auc == other.roc.auc
    assert ours.controls == theirs.controls
    begins_alike = {
        name: write_jsonl(
            tmp_path / f"{name}_alike.jsonl",
            [{"text": f"the doctor saw the garden near the old red door {name} {i}"} for i in range(12)],
        )
        for name in ("members", "non_members")
    }
    run(bed, **begins_alike)
    assert "one text, as far as it was read" in refusal(bed, **begins_alike, max_tokens=12)


def test_a_limit_that_cuts_nothing_is_mentioned(bed):
    report, _ = run(bed, "target.npz", "reference.npz", max_tokens=4)
    assert any("limit of tokens cut nothing" in warning for warning in report.warnings)
    report, _ = run(bed, "target.npz", "reference.npz")
    assert not any("limit of tokens" in warning for warning in report.warnings)


def test_texts_are_members_or_not(bed, tmp_path):
    members = [json.loads(line) for line in (bed / "members.jsonl").read_text().splitlines()]
    others = [json.loads(line) for line in (bed / "non_members.jsonl").read_text().splitlines()]
    path = write_jsonl(tmp_path / "same_id.jsonl", [members[3], *others])
    assert "1 ids are among the members too, for example 'm3'" in refusal(bed, non_members=path)
    same = {"id": "copy", "text": members[3]["text"].upper().replace(" ", "  ")}
    write_jsonl(path, [same, *others])
    assert "the text 'copy' is the member 'm3'" in refusal(bed, non_members=path)
    ids = {name: tmp_path / f"{name}.txt" for name in ("members", "non_members")}
    ids["members"].write_text("\n".join(line["id"] for line in members))
    ids["non_members"].write_text("\n".join(line["id"] for line in others))
    assert "holds no texts" in refusal(bed, members=ids["members"])
    lines = [json.loads(line) for line in (bed / "target.jsonl").read_text().splitlines()]
    twin = next(line for line in lines if line["id"] == "m5") | {"id": "n5"}
    for drop in ((), ("tokens",)):
        short = [
            {k: v for k, v in (twin if line["id"] == "n5" else line).items() if k not in drop}
            for line in lines
        ]
        scores = write_jsonl(tmp_path / "twin.jsonl", short)
        assert "says the same of 'n5' and of the member 'm5'" in refusal(bed, scores, scores, **ids)


def test_a_text_that_stands_twice_among_the_members_is_mentioned(bed, tmp_path):
    members = [json.loads(line) for line in (bed / "members.jsonl").read_text().splitlines()]
    path = write_jsonl(tmp_path / "twice.jsonl", [*members, members[0] | {"id": "again"}])
    report, _ = run(bed, members=path)
    assert any("1 texts stand in a list more than once" in warning for warning in report.warnings)


def test_files_that_do_not_go_together_are_refused(bed, tmp_path):
    lines = [json.loads(line) for line in (bed / "reference.jsonl").read_text().splitlines()]
    path = tmp_path / "other.jsonl"
    write_jsonl(path, lines[1:])
    assert "says nothing about 1 of 120 texts, the first being 'n59'" in refusal(bed, "target.npz", path)
    fields = ("log_probabilities", "correct", "expected", "deviation", "tokens")
    short = lines[0] | {field: lines[0][field][:-1] for field in fields}
    write_jsonl(path, [short, *lines[1:]])
    text = refusal(bed, "target.npz", path)
    assert "of the text 'n59', the target" in text
    assert "the same tokens" in text
    swapped = lines[0] | {"tokens": lines[0]["tokens"][::-1]}
    write_jsonl(path, [swapped, *lines[1:]])
    assert "other tokens than the target in the text 'n59'" in refusal(bed, "target.npz", path)
    few = write_jsonl(tmp_path / "few.jsonl", [{"id": f"m{i}"} for i in range(9)])
    assert "at least 10 texts, got 9" in refusal(bed, "target.npz", "reference.npz", members=few)


def test_scores_of_more_texts_than_are_asked_about_do_no_harm(bed, tmp_path):
    """One file may hold a longer text than the other, as long as nobody asks about it."""
    lines = [json.loads(line) for line in (bed / "target.jsonl").read_text().splitlines()]
    fields = ("log_probabilities", "correct", "expected", "deviation", "tokens")
    path = write_jsonl(
        tmp_path / "more.jsonl", [{"id": "extra"} | {field: lines[0][field] * 9 for field in fields}, *lines]
    )
    report, _ = run(bed, path, "reference.jsonl")
    assert report.members == report.non_members == 60


def test_a_tokenizer_that_fails_on_a_text_is_refused(bed, tmp_path):
    folder = write_folder(tmp_path / "model", tiny_model(), tiny_tokenizer())
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}  # which it does not have
    broken = {"version": "1.0", "model": words, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(broken))
    assert "has a tokenizer that fails on the text 'm0'" in refusal(bed, folder)


def test_a_text_of_one_token_is_refused(bed, tmp_path):
    lines = [{"id": f"x{i}", "text": text} for i, text in enumerate(sentences(20, np.random.default_rng(9)))]
    path = write_jsonl(tmp_path / "short.jsonl", [*lines, {"id": "short", "text": "t"}])
    assert "'short' has fewer than two tokens" in refusal(bed, non_members=path)
