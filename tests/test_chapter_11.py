"""Sentences of chapter 11 that no module's test covers, its drawings, its long run and its quotations."""

from __future__ import annotations

import copy
import inspect
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from thousand_fingers.error_zone import ez_scores, token_statistics
from thousand_fingers.figures import error_zone as draw
from thousand_fingers.language_model import (
    Architecture,
    LanguageModel,
    generate,
    token_table,
    train_language_model,
)
from thousand_fingers.long_runs import error_zone as long_runs
from thousand_fingers.lora import LoraModel
from thousand_fingers.roc import non_members_needed, roc_curve

SIZES = Architecture(vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=64)
LEDGER = Path(__file__).parents[1] / "data" / "ledger" / "11.toml"


def tiny_model(seed: int = 0) -> LanguageModel:
    return LanguageModel(SIZES, generator=torch.Generator().manual_seed(seed)).requires_grad_(False)


def test_a_model_makes_no_error_in_what_it_adds_greedily() -> None:
    model, prompts = tiny_model(), [[5, 6, 7], [8, 9]]
    new = generate(model, prompts, max_new_tokens=6)
    said = token_statistics(model, token_table([a + b for a, b in zip(prompts, new, strict=True)]))
    for row, prompt in enumerate(prompts):
        added = slice(len(prompt) - 1, len(prompt) + 5)
        assert said.correct[row, added].all()


def test_a_text_whose_only_errors_are_in_the_prompt_is_judged_by_the_prompt() -> None:
    model, reference = tiny_model(), tiny_model(1)
    new = generate(model, [[5, 6, 7]], max_new_tokens=9)[0]
    prompt, whole = token_table([[5, 6, 7]]), token_table([[5, 6, 7, *new]])
    alone, together = (
        ez_scores(token_statistics(model, table), token_statistics(reference, table))
        for table in (prompt, whole)
    )
    assert alone[0] == pytest.approx(together[0])


@pytest.mark.parametrize("rate", [0.1, 0.05, 0.01, 0.001])
def test_a_rate_needs_about_eleven_over_the_rate_non_members(rate: float) -> None:
    assert 11 <= non_members_needed(rate) * rate <= 12


def test_swapping_target_and_reference_turns_an_area_over_all_positions_around() -> None:
    table = token_table(np.random.default_rng(0).integers(300, size=(40, 12)).tolist())
    members = np.arange(40) < 20
    first, second = (token_statistics(tiny_model(seed), table) for seed in (0, 1))
    areas = [
        roc_curve(ez_scores(*both, positions="all"), members).auc
        for both in ((first, second), (second, first))
    ]
    assert sum(areas) == pytest.approx(1.0)


@pytest.mark.case("MIP-4")
@pytest.mark.case("MIP-7")
def test_rates_of_publications_are_quoted_as_theirs_and_never_expected_of_us() -> None:
    claims = tomllib.loads(LEDGER.read_text(encoding="utf-8"))
    theirs = {k: c for k, c in claims.items() if k.startswith(("ez.source.", "ez.leakpro."))}
    assert len(theirs) >= 10
    for claim in theirs.values():
        assert claim["kind"] == "published"
        assert claim["ours"] is False
        assert claim["as_printed"]
    ours = [c for k, c in claims.items() if k not in theirs and k != "allow"]
    assert all(c["kind"] in ("exact", "theory") for c in ours)


# --------------------------------------------------------------------------- the long run


@pytest.fixture
def tiny_run(monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """The long run on a tiny model and sixteen short texts, eight of them members."""
    model = tiny_model()
    table = token_table(np.random.default_rng(0).integers(300, size=(16, 6)).tolist())
    monkeypatch.setattr(long_runs, "_MEMBERS", 8)
    monkeypatch.setattr(long_runs, "_NON_MEMBERS", 8)
    monkeypatch.setattr(long_runs, "_model_and_table", lambda: (model, table))
    return model


RUNS = [
    {"deal": 0, "rank": 0, "learning_rate": 0.01, "read": [1, 2]},
    {"deal": 0, "rank": 4, "learning_rate": 0.01, "read": [2]},
    {"deal": 0, "rank": 4, "learning_rate": 0.001, "read": [2]},
    {"deal": 1, "rank": 4, "learning_rate": 0.01, "read": [2]},
]


@pytest.mark.parametrize("part", [0, 1, 3])
def test_a_run_learns_the_members_only_and_leaves_the_model_for_the_next(tiny_run, part) -> None:
    before = {name: weight.clone() for name, weight in tiny_run.state_dict().items()}
    untouched = [long_runs.reference(p, texts_per_part=8)["log_probabilities"] for p in (0, 1)]
    found = long_runs.finetuned(part, runs=RUNS, epochs=2, batch_size=4)
    gain = found["log_probabilities"][1] - np.concatenate(untouched)
    members = np.arange(16) // 8 == RUNS[part]["deal"]
    assert gain[members].mean() > max(0.01, gain[~members].mean())
    assert all(torch.equal(weight, before[name]) for name, weight in tiny_run.state_dict().items())
    again = long_runs.finetuned(part, runs=RUNS, epochs=2, batch_size=4)
    for name, array in found.items():
        np.testing.assert_array_equal(array, again[name])


def test_epochs_that_are_not_read_are_gaps(tiny_run) -> None:
    found = long_runs.finetuned(1, runs=RUNS, epochs=2, batch_size=4)
    assert found["correct"].shape == found["log_probabilities"].shape == (2, 16, 5)
    assert np.isnan(found["log_probabilities"][0]).all()
    assert np.isnan(found["expected"][0]).all()
    assert not found["correct"][0].any()
    assert np.isfinite(found["log_probabilities"][1]).all()


def test_a_larger_step_learns_more(tiny_run) -> None:
    large, small = (
        long_runs.finetuned(part, runs=RUNS, epochs=2, batch_size=4)["log_probabilities"][1, :8].mean()
        for part in (1, 2)
    )
    assert large > small


@pytest.mark.parametrize("part", [0, 1, 3])
def test_an_epoch_of_a_run_is_the_training_of_the_library(tiny_run, part) -> None:
    run = RUNS[part] | {"read": [1]}
    found = long_runs.finetuned(0, runs=[run], epochs=1, batch_size=4)
    model, deal = copy.deepcopy(tiny_run), run["deal"]
    if run["rank"]:
        adapters = torch.Generator().manual_seed(2 * deal + 1)
        model = LoraModel(tiny_run, rank=4, generator=adapters)
    _, table = long_runs._model_and_table()
    history = train_language_model(
        model,
        table,
        rows=range(8 * deal, 8 * deal + 8),
        epochs=1,
        batch_size=4,
        learning_rate=run["learning_rate"],
        generator=torch.Generator().manual_seed(2 * deal + 2),
        warm_up=0.0,
    )
    said = token_statistics(model, table)
    np.testing.assert_allclose(found["log_probabilities"][0], said.log_probabilities, rtol=1e-6)
    np.testing.assert_allclose(found["losses"].mean(), history.losses[0], rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 3, 4])
@pytest.mark.parametrize("part", [0, 1])
def test_a_run_that_is_begun_again_is_the_beginning_of_the_long_one(tiny_run, part, steps) -> None:
    whole = long_runs.finetuned(part, runs=RUNS, epochs=2, batch_size=4)
    assert whole["losses"].shape == (4,)
    begun = long_runs.finetuned(part, runs=RUNS, epochs=2, batch_size=4, steps=steps)
    for name, array in begun.items():
        assert array.dtype == whole[name].dtype
        assert array.shape[1:] == whole[name].shape[1:]
        np.testing.assert_array_equal(array, whole[name][: len(array)], strict=True)
    assert len(begun["losses"]) == steps
    assert len(begun["correct"]) < 2


def test_stored_adapters_say_what_the_run_said_but_for_their_rounding(tiny_run, monkeypatch) -> None:
    kept = long_runs.adapter(0, run=RUNS[1], epochs=2, batch_size=4)
    whole = long_runs.finetuned(1, runs=RUNS, epochs=2, batch_size=4)
    np.testing.assert_array_equal(kept["losses"], whole["losses"])
    assert kept["weights"].dtype == np.float16
    monkeypatch.setattr(long_runs, "load_artefact", lambda name: {"weights": kept["weights"][None]})
    said = [long_runs.adapted(part, rank=4, texts_per_part=8) for part in (0, 1)]
    together = np.concatenate([part["log_probabilities"] for part in said])
    np.testing.assert_allclose(together, whole["log_probabilities"][1], atol=0.01)
    assert (
        np.abs(
            together - long_runs.finetuned(2, runs=RUNS, epochs=2, batch_size=4)["log_probabilities"][1]
        ).max()
        > 0.05
    )


def test_a_run_that_is_only_begun_leaves_no_adapters(tiny_run) -> None:
    begun = long_runs.adapter(0, run=RUNS[1], epochs=2, batch_size=4, steps=3)
    assert begun["weights"].shape == (0,)
    assert begun["losses"].shape == (3,)


@pytest.mark.parametrize("part", [-1, 4, 1.0])
def test_a_run_that_does_not_exist_is_refused(tiny_run, part) -> None:
    with pytest.raises((TypeError, ValueError), match="part"):
        long_runs.finetuned(part, runs=RUNS, epochs=2, batch_size=4)


@pytest.mark.parametrize("deal", [0, 1])
def test_no_document_is_on_both_sides_and_enough_different_ones_are_on_the_other(deal: int) -> None:
    chosen = long_runs.documents(deal)
    assert chosen.texts == long_runs.documents().texts
    assert all(90 <= len(text) <= 100 for text in chosen.texts)
    ours, others = (
        {text for text, side in zip(chosen.texts, chosen.members, strict=True) if side == wanted}
        for wanted in (True, False)
    )
    assert len(ours) == 64
    assert not ours & others
    assert len(others) >= non_members_needed(0.05)


def test_a_document_is_a_member_in_one_deal_only() -> None:
    assert not (long_runs.documents().members & long_runs.documents(deal=1).members).any()
    with pytest.raises(ValueError, match="deal must be >= 0 and <= 3"):
        long_runs.documents(deal=4)


# --------------------------------------------------------------------------- drawings


def test_every_drawing_shows_its_data_and_labels_its_axes() -> None:
    estimate = (0.9, 0.8, 0.95), (0.5, 0.4, 0.6)
    x = np.linspace(0, 1, 5)
    words, d, right = ["a", " b", "c"], np.array([0.5, -0.2, 1.0]), np.array([True, False, False])
    calls = {
        draw.tokens: (2, {"a member": (words, d, right), "another": (words, -d, right)}),
        draw.estimates: (2, {"EZ": estimate, "loss": estimate}, ("area", "found")),
        draw.epochs: (2, [1, 2], {"EZ": [0.8, 0.9]}, {"on members": [3.0, 2.0]}),
        draw.learned: (
            2,
            {"tiny": {"all": ([3.0, 2.0], [0.8, 0.9])}, "real": {"all": ([3.0], [0.9])}},
            {"real": {"all": ([2.9], [0.8])}},
        ),
        draw.references: (2, {"EZ": {"base": estimate, "domain": estimate}}, ("area", "found")),
        draw.filters: (1, {"loss": (x, 1 - x / 2)}, 0.3),
    }
    public = {f for _, f in inspect.getmembers(draw, inspect.isfunction) if f.__module__ == draw.__name__}
    assert {f for f in public if not f.__name__.startswith("_")} == set(calls)
    for function, (panels, *data) in calls.items():
        axes = np.atleast_1d(Figure().subplots(1, panels))
        function(axes if panels > 1 else axes[0], *data)
        for panel in axes:
            assert panel.has_data()
        assert axes[0].get_xlabel()
        assert axes[0].get_ylabel()


def test_a_wrong_token_is_told_apart_by_colour_and_by_hatch() -> None:
    panels = np.atleast_1d(Figure().subplots(2, 1))
    text = ["a", "b"], np.array([1.0, -1.0]), np.array([True, False])
    draw.tokens(panels, {"one": text, "two": text})
    first, second = panels[0].patches
    assert first.get_facecolor() != second.get_facecolor()
    assert (first.get_hatch() or "") != second.get_hatch()
    assert [bar.get_height() for bar in panels[0].patches] == [1.0, -1.0]


def test_a_repetition_has_the_colour_of_what_it_repeats_and_hollow_markers() -> None:
    (panel,) = Figure().subplots(1, 1, squeeze=False)[0]
    draw.learned([panel], {"bed": {"all": ([3.0], [0.9])}}, {"bed": {"all": ([2.9], [0.8])}})
    first, second = panel.get_lines()
    assert first.get_color() == second.get_color()
    assert second.get_markerfacecolor() == "none" != first.get_markerfacecolor()
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["all"]


def test_a_row_of_estimates_reaches_from_low_to_high() -> None:
    panels = np.atleast_1d(Figure().subplots(1, 1))
    draw.estimates(panels, {"EZ": [(0.9, 0.8, 0.95)]}, ["area"])
    (segments,) = panels[0].containers[0].lines[2]
    np.testing.assert_allclose(segments.get_segments()[0][:, 0], [0.8, 0.95])
