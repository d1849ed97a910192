"""Scores on per-token statistics against numbers worked by hand, slow loops, and what must be refused."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from thousand_fingers.error_zone import (
    TokenStatistics,
    bag_of_words_scores,
    calibrated_scores,
    differences,
    ez_scores,
    loss_scores,
    min_k_plus_plus_scores,
    min_k_scores,
    released_code_scores,
    token_statistics,
    zlib_scores,
)
from thousand_fingers.language_model import Architecture, LanguageModel, score_tokens, token_table
from thousand_fingers.roc import chance_interval, roc_curve
from thousand_fingers.texts import load_paragraphs

POSITIONS = ("errors", "all", "correct", "reference_errors")
AGGREGATES = ("share", "ratio", "difference", "mean", "median")
SIZES = Architecture(vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=64)
NAN = math.nan


def pair(
    target: list[float],
    reference: list[float],
    errors: list[bool],
    reference_errors: list[bool] | None = None,
) -> tuple[TokenStatistics, TokenStatistics]:
    """The statistics of one text, given where each model is wrong."""
    others = errors if reference_errors is None else reference_errors
    return (
        TokenStatistics([target], np.logical_not([errors])),
        TokenStatistics([reference], np.logical_not([others])),
    )


def random_pair(seed: int = 0, n: int = 30, length: int = 12) -> tuple[TokenStatistics, TokenStatistics]:
    """Statistics of texts of different length, some of them with an empty zone."""
    rng = np.random.default_rng(seed)
    gaps = np.arange(length) >= rng.integers(1, length + 1, n)[:, None]
    both = []
    for _ in range(2):
        values = np.where(gaps, NAN, -rng.exponential(size=gaps.shape))
        correct = ~gaps & (rng.random(gaps.shape) < rng.random((n, 1)))
        correct[0] = ~gaps[0]
        both.append(TokenStatistics(values, correct))
    return both[0], both[1]


def slow_ez(target: TokenStatistics, reference: TokenStatistics, row: int, positions: str) -> float:
    """The published definition, written as a loop; P and N as they stand in the paper."""
    gain = loss = count = 0.0
    for j, value in enumerate(target.log_probabilities[row]):
        if math.isnan(value):
            continue
        wanted = {
            "errors": not target.correct[row, j],
            "all": True,
            "correct": target.correct[row, j],
            "reference_errors": not reference.correct[row, j],
        }[positions]
        if wanted:
            count += 1
            d = value - reference.log_probabilities[row, j]
            gain, loss = gain + max(d, 0), loss + abs(min(d, 0))
    if count == 0:
        return {"errors": 1.0, "all": 0.5, "correct": 0.0, "reference_errors": 0.5}[positions]
    return 0.5 if gain + loss == 0 else gain / (gain + loss)


# --------------------------------------------------------------------------- the score


@pytest.mark.case("MIA-12")
def test_the_worked_example_of_the_reference():
    both = pair([-1, -2, -3, -0.1], [-2, -1.5, -5, -3], [True, True, True, False])
    assert ez_scores(*both, aggregate="ratio")[0] == 6.0
    assert ez_scores(*both)[0] == pytest.approx(0.857142857142857, abs=1e-15)


@pytest.mark.case("MIA-12")
def test_all_gains_and_an_empty_zone_are_at_the_top_and_one_loss_alone_at_the_bottom():
    gains = pair([-1, -2], [-2, -3], [True, True])
    empty = pair([-1, -2], [-2, -1], [False, False])
    loss = pair([-2, -2], [-1, -2], [True, False])
    for top in (gains, empty):
        assert ez_scores(*top)[0] == 1.0
        assert ez_scores(*top, aggregate="ratio")[0] == math.inf
    assert ez_scores(*loss)[0] == 0.0 == ez_scores(*loss, aggregate="ratio")[0]


@pytest.mark.case("MIA-12")
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=8), st.integers(0, 2**32))
def test_no_finite_score_outranks_a_text_without_losses(ds, seed):
    d = np.array(ds)
    low = -40.0 - np.random.default_rng(seed).exponential(size=d.size)
    target, reference = pair(list(low + d), list(low), [True] * d.size)
    sure = pair([-1.0], [-1.5], [True])
    for aggregate in ("share", "ratio"):
        top, score = (
            ez_scores(*sure, aggregate=aggregate)[0],
            ez_scores(target, reference, aggregate=aggregate)[0],
        )
        assert top >= score
        if score == top:  # only who has no loss either, up to rounding
            moved = differences(target, reference)
            assert moved.min() >= 0 or -moved[moved < 0].sum() <= 1e-15 * moved.sum()


@pytest.mark.case("MIP-14")
def test_the_released_code_puts_last_whom_the_paper_puts_first():
    best = pair([-1, -1, -1], [-2, -5, -3], [True, True, True])  # N = 0
    short = pair([-1, -1, -1], [-2, -5, -3], [True, False, False])  # one error
    empty = pair([-1, -1, -1], [-2, -5, -3], [False, False, False])
    for both in (best, short, empty):
        assert ez_scores(*both)[0] == 1.0
        assert released_code_scores(*both)[0] == 0.0
    worst = pair([-2, -2, -2], [-1, -1, -1], [True, True, True])
    assert released_code_scores(*worst)[0] == ez_scores(*worst)[0] == 0.0


@pytest.mark.case("MIP-14")
def test_the_released_code_agrees_with_the_paper_away_from_the_edges():
    target, reference = random_pair(n=200)
    ratio = ez_scores(target, reference, aggregate="ratio")
    zone = target.scored & ~target.correct
    plain = (zone.sum(axis=1) > 1) & np.isfinite(ratio)
    assert 50 < plain.sum() < 200
    np.testing.assert_array_equal(released_code_scores(target, reference)[plain], ratio[plain])
    assert (released_code_scores(target, reference)[~plain] == 0).all()


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_choice_of_positions_agrees_with_a_loop(positions):
    target, reference = random_pair()
    wanted = [slow_ez(target, reference, row, positions) for row in range(len(target))]
    np.testing.assert_allclose(ez_scores(target, reference, positions=positions), wanted, atol=1e-14)


@pytest.mark.parametrize("aggregate", ["difference", "mean", "median"])
def test_the_other_aggregates_agree_with_a_loop(aggregate):
    target, reference = random_pair()
    d, zone = differences(target, reference), target.scored & ~target.correct
    slow = {"difference": np.sum, "mean": np.mean, "median": np.median}[aggregate]
    wanted = [slow(row[used]) if used.any() else math.inf for row, used in zip(d, zone, strict=True)]
    np.testing.assert_allclose(ez_scores(target, reference, aggregate=aggregate), wanted, atol=1e-12)


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("positions", POSITIONS)
def test_an_empty_zone_is_the_top_for_errors_the_bottom_for_successes_and_nothing_for_the_references(
    positions, aggregate
):
    empty = {
        "errors": pair([-1.0], [-2.0], [False]),
        "correct": pair([-1.0], [-2.0], [True]),
        "reference_errors": pair([-1.0], [-2.0], [True], [False]),
        "all": pair([-2.0], [-2.0], [True]),
    }[positions]
    (score,) = ez_scores(*empty, positions=positions, aggregate=aggregate)
    neutral = {"share": 0.5, "ratio": 1.0}.get(aggregate, 0.0)
    bottom = 0.0 if aggregate in ("share", "ratio") else -math.inf
    top = 1.0 if aggregate == "share" else math.inf
    assert score == {"errors": top, "correct": bottom}.get(positions, neutral)


def test_a_zone_of_zeros_is_undecided():
    both = pair([-1, -2], [-1, -2], [True, True])
    assert ez_scores(*both)[0] == 0.5
    assert ez_scores(*both, aggregate="ratio")[0] == 1.0


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.floats(1e-3, 1e3))
def test_scaling_the_differences_changes_nothing(seed, c):
    target, reference = random_pair(seed)
    stretched = TokenStatistics(c * target.log_probabilities, target.correct)
    along = TokenStatistics(c * reference.log_probabilities, reference.correct)  # d -> c d
    for positions in POSITIONS:
        np.testing.assert_allclose(
            ez_scores(stretched, along, positions=positions),
            ez_scores(target, reference, positions=positions),
            rtol=1e-9,
        )


def test_scaling_the_probabilities_changes_the_score_because_it_shifts_every_difference():
    target, reference = pair([-1, -2, -3], [-2, -1.5, -5], [True, True, True])
    halved = TokenStatistics(target.log_probabilities - math.log(2), target.correct)
    np.testing.assert_allclose(
        differences(halved, reference), differences(target, reference) - math.log(2), atol=1e-15
    )
    gain, loss = 1 - math.log(2) + 2 - math.log(2), 0.5 + math.log(2)
    assert ez_scores(halved, reference, aggregate="ratio")[0] == pytest.approx(gain / loss)
    assert ez_scores(halved, reference)[0] < ez_scores(target, reference)[0] - 0.2


def test_the_share_is_the_rank_of_the_ratio():
    target, reference = random_pair(n=300)
    share, ratio = (ez_scores(target, reference, aggregate=a) for a in ("share", "ratio"))
    finite = np.isfinite(ratio)
    np.testing.assert_allclose(share[finite], ratio[finite] / (1 + ratio[finite]), atol=1e-14)
    assert (share[~finite] == 1).all()


def test_scores_do_not_see_the_padding_or_the_other_texts():
    target, reference = random_pair()
    wide = [
        TokenStatistics(
            np.pad(s.log_probabilities, ((0, 0), (0, 3)), constant_values=NAN),
            np.pad(s.correct, ((0, 0), (0, 3))),
        )
        for s in (target, reference)
    ]
    np.testing.assert_array_equal(ez_scores(*wide), ez_scores(target, reference))
    some = [5, 3]
    np.testing.assert_array_equal(
        ez_scores(target.texts(some), reference.texts(some)), ez_scores(target, reference)[some]
    )
    np.testing.assert_allclose(min_k_scores(wide[0]), min_k_scores(target), atol=1e-15)


def test_over_all_positions_swapping_the_models_turns_the_share_around():
    target, reference = random_pair()
    there, back = (ez_scores(*both, positions="all") for both in ((target, reference), (reference, target)))
    np.testing.assert_allclose(there + back, 1.0, atol=1e-12)


# --------------------------------------------------------------------------- the other scores


def test_loss_and_calibration_are_means_over_what_is_scored():
    target, reference = random_pair()
    for row in range(len(target)):
        used = target.scored[row]
        values, others = target.log_probabilities[row, used], reference.log_probabilities[row, used]
        assert loss_scores(target)[row] == pytest.approx(values.mean())
        assert calibrated_scores(target, reference)[row] == pytest.approx(values.mean() - others.mean())


def test_zlib_divides_the_whole_likelihood_by_compressed_bytes():
    target, _ = random_pair(n=2)
    texts = ["ab" * 500, "Ä quite ordinary text"]
    sums = np.nansum(target.log_probabilities, axis=1)
    sizes = [len(zlib.compress(text.encode())) for text in texts]
    np.testing.assert_allclose(zlib_scores(target, texts), sums / sizes)
    np.testing.assert_allclose(zlib_scores(target, [text.encode() for text in texts]), sums / sizes)


def test_zlib_refuses_a_single_string_another_number_of_texts_and_what_is_no_text():
    target, _ = random_pair(n=2)
    for bad in ("ab", b"ab", [1, 2]):
        with pytest.raises(TypeError, match="texts"):
            zlib_scores(target, bad)
    with pytest.raises(ValueError, match="texts must be as many"):
        zlib_scores(target, ["a"])


@pytest.mark.parametrize("share", [0.2, 0.29, 0.5, 1.0])
def test_min_k_is_the_mean_of_the_lowest(share):
    target, _ = random_pair(n=40, length=100)
    for row, score in enumerate(min_k_scores(target, share)):
        values = np.sort(target.log_probabilities[row, target.scored[row]])
        k = max(1, round(share * 1000) * values.size // 1000)
        assert score == pytest.approx(values[:k].mean())


def test_min_k_of_a_short_text_is_its_least_probable_token_not_the_mean_of_nothing():
    said = TokenStatistics([[-1.0, -2.0, -9.0, -3.0]], [[True, True, False, True]])
    assert min_k_scores(said, 0.2)[0] == -9.0


def test_twenty_nine_percent_of_a_hundred_are_twenty_nine():
    said = TokenStatistics(-np.arange(1.0, 101.0)[None], np.zeros((1, 100), dtype=bool))
    assert min_k_scores(said, 0.29)[0] == pytest.approx(-np.arange(72, 101).mean())


def test_min_k_plus_plus_agrees_with_the_definition_over_the_vocabulary():
    logits = np.random.default_rng(0).normal(size=(4, 7, 11)) * 3
    told = np.random.default_rng(1).integers(11, size=(4, 7))
    logs = special.log_softmax(logits, axis=2)
    p = np.exp(logs)
    mean = (p * logs).sum(2)
    deviation = np.sqrt((p * logs**2).sum(2) - mean**2)
    chosen = np.take_along_axis(logs, told[:, :, None], 2)[:, :, 0]
    said = TokenStatistics(chosen, np.zeros(chosen.shape, dtype=bool), mean, deviation)
    z = np.sort((chosen - mean) / deviation, axis=1)
    np.testing.assert_allclose(min_k_plus_plus_scores(said, 0.3), z[:, :2].mean(axis=1))


def test_min_k_plus_plus_of_a_certain_or_uniform_model_is_zero_not_nan():
    said = TokenStatistics([[0.0, -math.log(300)]], [[True, True]], [[0.0, -math.log(300)]], [[0.0, 0.0]])
    assert min_k_plus_plus_scores(said)[0] == 0.0


def test_min_k_plus_plus_without_moments_says_how_to_get_them():
    said = TokenStatistics([[-1.0]], [[True]])
    with pytest.raises(ValueError, match="moments=True"):
        min_k_plus_plus_scores(said)


@pytest.mark.parametrize("share", [0, -0.1, 1.1, NAN, "a fifth"])
def test_a_share_out_of_range_is_refused(share):
    said = TokenStatistics([[-1.0]], [[True]], [[-1.0]], [[1.0]])
    for score in (min_k_scores, min_k_plus_plus_scores):
        with pytest.raises((TypeError, ValueError), match="share"):
            score(said, share)


# --------------------------------------------------------------------------- the control of the data


@pytest.mark.case("MIP-13")
def test_words_alone_say_nothing_about_a_random_split():
    texts = load_paragraphs().texts[::4]
    rng = np.random.default_rng(0)
    members = rng.permutation(np.arange(len(texts)) < 300)
    roc = roc_curve(bag_of_words_scores(texts, members, rng=rng), members)
    low, high = chance_interval(roc.members, roc.non_members, confidence=0.999)
    assert low < roc.auc < high


@pytest.mark.case("MIP-13")
def test_words_alone_betray_a_split_by_subject():
    paragraphs = load_paragraphs()
    rows = np.flatnonzero(paragraphs.labels != 1)[::4]
    texts, members = [paragraphs.texts[i] for i in rows], paragraphs.labels[rows] == 0
    rng = np.random.default_rng(0)
    assert roc_curve(bag_of_words_scores(texts, members, rng=rng), members).auc > 0.9


def test_no_text_is_scored_by_a_fit_that_has_seen_it():
    texts = [f"unique{chr(97 + i)} word" for i in range(20)]
    members = np.arange(20) < 10
    scores = bag_of_words_scores(texts, members, rng=np.random.default_rng(0), penalty=1e-6)
    assert roc_curve(scores, members).auc < 0.9  # a fit that had seen them would know them all


def test_too_few_of_a_kind_and_bad_options_are_refused():
    rng = np.random.default_rng(0)
    texts = ["a text", "a word"] * 5
    with pytest.raises(ValueError, match="at least 5 of each kind"):
        bag_of_words_scores(texts, np.arange(10) < 4, rng=rng)
    members = np.arange(10) < 5
    for options in ({"folds": 1}, {"penalty": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            bag_of_words_scores(texts, members, rng=rng, **options)
    with pytest.raises(ValueError, match="members"):
        bag_of_words_scores(texts, members[:5], rng=rng)
    with pytest.raises(TypeError):
        bag_of_words_scores(texts, members, rng=0)


# --------------------------------------------------------------------------- reading a model


def tiny_model(dtype: torch.dtype = torch.float64) -> LanguageModel:
    return LanguageModel(SIZES, generator=torch.Generator().manual_seed(0), dtype=dtype)


def some_texts(n: int = 9) -> torch.Tensor:
    rng = np.random.default_rng(0)
    return token_table([rng.integers(300, size=rng.integers(2, 12)).tolist() for _ in range(n)])


@pytest.mark.parametrize("logits_at_once", [1, 5000, 2**24])
def test_statistics_agree_with_all_logits_at_once_however_they_are_cut(logits_at_once):
    model, table = tiny_model(), some_texts()
    said = token_statistics(model, table, moments=True, logits_at_once=logits_at_once)
    with torch.no_grad():
        logits = model(table[:, :-1].clamp(min=0)).numpy()
    told, there = table[:, 1:].numpy(), table[:, 1:].numpy() >= 0
    logs = special.log_softmax(logits, axis=2)
    chosen = np.take_along_axis(logs, told.clip(0)[:, :, None], 2)[:, :, 0]
    p = np.exp(logs)
    mean = (p * logs).sum(2)
    deviation = np.sqrt((p * (logs - mean[:, :, None]) ** 2).sum(2))
    assert (said.scored == there).all()
    np.testing.assert_allclose(said.log_probabilities[there], chosen[there], atol=1e-12)
    np.testing.assert_allclose(said.expected[there], mean[there], atol=1e-12)
    np.testing.assert_allclose(said.deviation[there], deviation[there], atol=1e-12)
    np.testing.assert_array_equal(said.correct, there & (logits.argmax(2) == told))
    np.testing.assert_array_equal(said.tokens, told)


def test_statistics_agree_with_the_scores_of_chapter_1():
    model, table = tiny_model(), some_texts()
    said, scores = token_statistics(model, table), score_tokens(model, table)
    np.testing.assert_allclose(np.nan_to_num(said.log_probabilities), scores.log_probability, atol=1e-12)
    np.testing.assert_array_equal(said.correct, scores.top)
    np.testing.assert_allclose(loss_scores(said), -scores.loss, atol=1e-12)


class Clairvoyant(LanguageModel):
    """Puts all mass of position t on the token that comes next in a known text."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(SIZES, generator=torch.Generator().manual_seed(0))
        self.table = table

    def forward(self, tokens, cache=None, *, last_only=False):
        logits = torch.full((*tokens.shape, SIZES.vocabulary), -1e4, dtype=torch.float64)
        return logits.scatter(2, self.table[:, 1 : tokens.shape[1] + 1, None], 1e4)


@pytest.mark.case("MIA-19")
def test_a_model_that_knows_each_next_token_has_no_loss_and_an_empty_zone():
    table = torch.tensor([[5, 6, 7, 8], [9, 5, 3, 2]])
    said = token_statistics(Clairvoyant(table), table, moments=True)
    assert (said.log_probabilities == 0).all()
    assert said.correct.all()
    assert (min_k_plus_plus_scores(said) == 0).all()
    reference = token_statistics(tiny_model(), table)
    assert (ez_scores(said, reference) == 1).all()


def test_the_model_is_left_in_the_mode_it_came_in_and_gets_no_gradient():
    model = tiny_model().train()
    token_statistics(model, some_texts())
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())


def test_single_precision_logits_are_normalised_in_double_precision():
    said = token_statistics(tiny_model(torch.float32), some_texts())
    double = token_statistics(tiny_model(), some_texts())
    assert said.log_probabilities.dtype == np.float64
    np.testing.assert_allclose(said.log_probabilities, double.log_probabilities, atol=1e-4)


def test_what_is_no_table_of_tokens_is_refused():
    for bad in (torch.zeros(2, 3), torch.tensor([[1, 300]]), torch.tensor([[1]]), torch.tensor([[1, -1]])):
        with pytest.raises((TypeError, ValueError), match="table"):
            token_statistics(tiny_model(), bad)
    with pytest.raises(ValueError, match="logits_at_once"):
        token_statistics(tiny_model(), some_texts(), logits_at_once=0)


@pytest.mark.case("MIP-14")
def test_the_first_scored_token_can_be_left_out_as_the_released_code_does():
    said = token_statistics(tiny_model(), torch.tensor([[5, 6, 7, 8], [9, 5, 3, 2]]), moments=True)
    rest = said.without_first()
    assert rest.scored.tolist() == [[False, True, True]] * 2
    np.testing.assert_array_equal(rest.log_probabilities[:, 1:], said.log_probabilities[:, 1:])
    np.testing.assert_array_equal(rest.tokens, [[-1, 7, 8], [-1, 3, 2]])
    assert rest.without_first().scored.sum(axis=1).tolist() == [1, 1]
    with pytest.raises(ValueError, match="text 0 has none"):
        rest.without_first().without_first()


# --------------------------------------------------------------------------- bad statistics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.1]], [[True]]), "log_probabilities must be <= 0"),
        (([[-math.inf]], [[False]]), "log_probabilities must be <= 0 and finite"),
        (([-1.0], [True]), "two axes"),
        ((np.empty((0, 3)), np.empty((0, 3), dtype=bool)), "two axes"),
        ((np.empty((3, 0)), np.empty((3, 0), dtype=bool)), "two axes"),
        (([[-1.0], [NAN]], [[True], [False]]), "text 1 has none"),
        (([["a"]], [[True]]), "real numbers"),
        (([[True]], [[True]]), "real numbers"),
        (([[-1.0, NAN]], [[True, True]]), "correct must be false where"),
        (([[-1.0]], [[True, False]]), "correct must have shape"),
        (([[-1.0]], [[1]]), "correct must hold booleans"),
        (([[-1.0]], [[True]], [[-1.0]]), "both be given"),
        (([[-1.0]], [[True]], None, [[1.0]]), "both be given"),
        (([[-1.0]], [[True]], [[1.0]], [[1.0]]), "expected must be <= 0"),
        (([[-1.0]], [[True]], [[-1.0]], [[-1.0]]), "deviation must be >= 0"),
        (([[-1.0]], [[True]], [[-1.0]], [[NAN]]), "deviation must be NaN exactly where"),
        (
            ([[-1.0, NAN]], [[True, False]], [[-1.0, -1.0]], [[1.0, NAN]]),
            "expected must be NaN exactly where",
        ),
        (([[-1.0]], [[True]], [[-1.0, -1.0]], [[1.0, 1.0]]), "expected must have shape"),
        (([[-1.0]], [[True]], None, None, [[-1]]), "tokens must be -1 where"),
        (([[-1.0, NAN]], [[True, False]], None, None, [[3, 3]]), "tokens must be -1 where"),
        (([[-1.0]], [[True]], None, None, [[2.0]]), "tokens must hold integers"),
        (([[-1.0]], [[True]], None, None, [[2, 3]]), "tokens must hold integers in shape"),
        (([[-1.0]], [[True]], None, None, [[-2]]), "tokens must be -1 where"),
    ],
)
def test_statistics_that_cannot_be_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        TokenStatistics(*arguments)


@pytest.mark.parametrize(
    "score", [ez_scores, calibrated_scores, released_code_scores, differences], ids=lambda f: f.__name__
)
def test_target_and_reference_must_be_about_the_same_tokens(score):
    one = TokenStatistics([[-1.0, -2.0]], [[True, True]], tokens=[[4, 5]])
    with pytest.raises(ValueError, match="one shape"):
        score(one, TokenStatistics([[-1.0]], [[True]]))
    with pytest.raises(ValueError, match=r"differ at index \(0, 1\)"):
        score(one, TokenStatistics([[-1.0, NAN]], [[True, False]]))
    with pytest.raises(ValueError, match=r"differ at index \(0, 0\)"):
        score(one, TokenStatistics([[-1.0, -2.0]], [[True, True]], tokens=[[6, 5]]))
    with pytest.raises(TypeError, match="reference must be TokenStatistics"):
        score(one, [[-1.0, -2.0]])


@pytest.mark.parametrize("option", [{"positions": "mistakes"}, {"aggregate": "sum"}])
def test_a_choice_that_does_not_exist_is_refused(option):
    with pytest.raises(ValueError, match="must be one of"):
        ez_scores(*random_pair(), **option)


def test_inputs_are_not_modified_and_statistics_are_frozen():
    target, reference = random_pair()
    before = target.log_probabilities.copy()
    ez_scores(target, reference, aggregate="median")
    min_k_scores(target)
    np.testing.assert_array_equal(target.log_probabilities, before)
    with pytest.raises(AttributeError):
        target.correct = reference.correct
