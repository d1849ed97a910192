"""The ROC against brute force over thresholds, closed forms for Gaussians, and reports of ties gone wrong."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from thousand_fingers.intervals import clopper_pearson
from thousand_fingers.roc import (
    auc_difference_interval,
    bootstrap_over_examples,
    chance_interval,
    log_tpr_fpr,
    non_members_needed,
    paired_interval,
    positive_predictive_value,
    roc_curve,
    supported_point,
)

SAMPLES = st.lists(
    st.tuples(st.integers(-3, 3) | st.sampled_from([-math.inf, math.inf]), st.booleans()), min_size=2
).filter(lambda pairs: len({member for _, member in pairs}) == 2)


def split(pairs: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([float(s) for s, _ in pairs]), np.array([m for _, m in pairs])


@given(SAMPLES)
def test_the_area_is_the_share_of_pairs_in_the_right_order_ties_half(pairs):
    scores, members = split(pairs)
    wins = sum((a > b) + (a == b) / 2 for a in scores[members] for b in scores[~members])
    expected = wins / (members.sum() * (~members).sum())
    assert roc_curve(scores, members).auc == pytest.approx(expected, abs=1e-12)


@given(SAMPLES, st.sampled_from([0.0, 0.01, 0.1, 0.2, 1 / 3, 0.5, 1.0]))
def test_the_rate_at_a_false_positive_rate_is_the_best_of_all_thresholds(pairs, fpr):
    scores, members = split(pairs)
    best = 0.0
    for threshold in set(scores):
        accused = scores >= threshold
        if accused[~members].mean() <= fpr:
            best = max(best, accused[members].mean())
    point = roc_curve(scores, members).at_fpr(fpr)
    assert point.tpr == best
    assert point.fpr <= fpr
    accused = scores >= point.threshold if point.true_positives + point.false_positives else scores > np.inf
    assert (accused & members).sum() == point.true_positives
    assert (accused & ~members).sum() == point.false_positives


@given(SAMPLES)
def test_the_curve_rises_from_nobody_to_everybody_and_mirrors_when_the_score_is_turned(pairs):
    scores, members = split(pairs)
    roc, turned = roc_curve(scores, members), roc_curve(-scores, members)
    assert (np.diff(roc.tpr) >= 0).all()
    assert (np.diff(roc.fpr) >= 0).all()
    assert (roc.tpr[0], roc.fpr[0], roc.tpr[-1], roc.fpr[-1]) == (0, 0, 1, 1)
    assert roc.auc + turned.auc == pytest.approx(1)


@pytest.mark.case("MIA-9")
def test_equal_scores_stand_or_fall_together():
    roc = roc_curve([9, 9, 5, 5], [True, False, True, False])
    assert roc.fpr.tolist() == [0, 0.5, 1]
    assert roc.tpr.tolist() == [0, 0.5, 1]
    assert roc.auc == 0.5


@pytest.mark.case("MIP-5")
def test_the_realised_rate_is_kept_with_every_rate():
    scores = [5, 4, 4, 4, 3, 2, 1, 0]  # ties skip from 0 to 2 of 4 false positives
    members = [True, True, False, False, True, True, False, False]
    point = roc_curve(scores, members).at_fpr(0.3)
    assert (point.fpr, point.tpr, point.threshold) == (0.0, 0.25, 5.0)
    point = roc_curve(scores, members).at_fpr(0.6)
    assert (point.fpr, point.tpr, point.threshold) == (0.5, 1.0, 2.0)


@pytest.mark.case("MIA-10")
def test_a_constant_score_finds_nobody_where_interpolation_says_one_percent():
    roc = roc_curve(np.zeros(2000), np.arange(2000) < 1000)
    assert roc.at_fpr(0.01).tpr == 0
    assert roc.at_fpr(0.01).fpr == 0
    assert np.interp(0.01, roc.fpr, roc.tpr) == pytest.approx(0.01)
    assert roc.auc == 0.5


@pytest.mark.case("MIA-11")
def test_tau_is_a_natural_logarithm():
    assert log_tpr_fpr(0.18438, 0.001) == pytest.approx(5.217, abs=5e-4)
    assert 0.001 * math.exp(5.217) == pytest.approx(0.18438, abs=5e-6)
    assert log_tpr_fpr(0.3, 0.3) == 0
    assert log_tpr_fpr(0.0, 0.001) == -math.inf
    with pytest.raises(ValueError, match="fpr must be"):
        log_tpr_fpr(0.5, 0.0)


@pytest.mark.case("MIP-12")
def test_an_accusation_is_worth_what_the_prior_leaves_of_it():
    assert positive_predictive_value(0.112, 0.001, 0.01) == pytest.approx(0.53, abs=5e-3)
    assert positive_predictive_value(0.194, 0.01, 0.01) == pytest.approx(0.16, abs=5e-3)
    assert positive_predictive_value(0.3, 0.3, 0.2) == pytest.approx(0.2)  # a blind attacker learns nothing
    with pytest.raises(ValueError, match="nobody would be accused"):
        positive_predictive_value(0.0, 0.0, 0.5)


def test_two_gaussians_at_distance_two_give_the_curve_of_the_textbook():
    quantiles = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    scores = np.concatenate([quantiles + 2, quantiles])
    roc = roc_curve(scores, np.arange(40_000) < 20_000)
    assert roc.auc == pytest.approx(0.92135, abs=1e-4)
    assert roc.at_fpr(0.01).tpr == pytest.approx(0.37208, abs=1e-3)
    assert roc.at_fpr(0.001).tpr == pytest.approx(0.13781, abs=2e-3)
    assert roc.advantage == pytest.approx(2 * stats.norm.cdf(1) - 1, abs=1e-4)


def test_ten_percent_of_ten_is_one_whatever_doubles_say():
    for n in (10, 30, 70, 1000, 12_000):
        scores = np.arange(n + 1.0)
        members = scores == 0
        for rate in (0.1, 0.3, 0.7, 0.001):
            assert roc_curve(scores, members).at_fpr(rate).false_positives == int(
                round(rate * n * 1000) // 1000
            )


@given(st.integers(1, 5_000), st.data())
def test_a_rate_that_is_a_fraction_of_the_non_members_allows_its_numerator(n, data):
    k = data.draw(st.integers(0, n))
    roc = roc_curve(np.arange(n + 1.0), np.arange(n + 1) == 0)
    assert roc.at_fpr(k / n).false_positives == k  # a third of three is one
    assert roc.at_fpr(math.nextafter(k / n, -1) if k else 0.0).false_positives == max(k - 1, 0)


@pytest.mark.parametrize("parts", [3, 7, 49])
def test_non_members_needed_for_a_part_of_one_divide_by_it(parts):
    n = non_members_needed(1 / parts)
    assert n % parts == 0
    assert roc_curve(np.arange(n + 1.0), np.arange(n + 1) == 0).at_fpr(1 / parts).fpr == 1 / parts


@pytest.mark.parametrize("rate", [0.2, 0.01, 0.001])
@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_the_number_of_non_members_is_the_first_whose_interval_fits(rate, factor):
    def fits(n: int) -> bool:
        low, high = clopper_pearson(round(rate * n), n)
        return low >= rate / factor and high <= factor * rate

    n, step = non_members_needed(rate, factor=factor), round(1 / rate)
    assert fits(n)
    assert not any(fits(fewer) for fewer in range(step, n, step))


@pytest.mark.parametrize(("factor", "confidence"), [(2.0, 0.95), (1.3, 0.95), (3.0, 0.5), (10.0, 0.999)])
def test_non_members_needed_are_those_found_by_trying(factor, confidence):
    for fpr in np.random.default_rng(0).uniform(0.004, 0.996, 12):
        got = non_members_needed(fpr, factor=factor, confidence=confidence)
        k = math.floor(fpr * got * (1 + 1e-13))
        low, high = clopper_pearson(k, got, confidence)
        assert low >= fpr / factor
        assert high <= min(1, fpr * factor)
        for fewer in range(1, k):  # nobody with fewer false positives fits
            n = math.ceil(fewer / fpr * (1 - 1e-13))
            low, high = clopper_pearson(fewer, n, confidence)
            assert low < fpr / factor or high > min(1, fpr * factor)


@pytest.mark.parametrize("fpr", [1e-6, 1e-11, 9e-13, 1e-100, 1e-300, 5e-324])
def test_rates_that_nobody_can_measure_have_an_answer_all_the_same(fpr):
    needed = non_members_needed(fpr)
    assert abs(needed * Fraction(fpr) - 12) < 1e-5  # twelve false positives, however rare


def test_an_interval_closer_than_a_hundredth_is_not_asked_for():
    assert non_members_needed(0.01, factor=1.01) == pytest.approx((1.96 / 0.01) ** 2 / 0.01, rel=0.03)
    for factor in (1.0, 1.0099, math.nan):
        with pytest.raises(ValueError, match="factor must be"):
            non_members_needed(0.01, factor=factor)


def test_an_operating_point_carries_exact_intervals():
    point = roc_curve(np.arange(1000.0), np.arange(1000) >= 500).at_fpr(0.0)
    assert point.tpr_interval == clopper_pearson(500, 500)
    assert point.fpr_interval == clopper_pearson(0, 500)


def test_the_interval_of_a_blind_attacker_holds_19_times_in_20():
    rng = np.random.default_rng(0)
    low, high = chance_interval(30, 50)
    inside = [low <= roc_curve(rng.random(80), np.arange(80) < 30).auc <= high for _ in range(2000)]
    rate = clopper_pearson(sum(inside), 2000, 1 - 1e-6)
    assert rate.low < 0.95 < rate.high


def test_the_variance_of_a_blind_area_is_the_one_of_mann_and_whitney():
    areas = [
        roc_curve(np.arange(7.0), np.isin(np.arange(7), chosen)).auc for chosen in combinations(range(7), 3)
    ]
    low, high = chance_interval(3, 4, confidence=0.9)
    assert (high - low) / 2 / stats.norm.ppf(0.95) == pytest.approx(np.std(areas))


def test_resampling_examples_is_honest_where_resampling_pairs_is_not():
    rng = np.random.default_rng(1)
    hardness = 3 * rng.normal(size=100)  # shared by all models: what makes the pairs dependent
    members = rng.random((30, 100)) < 0.5
    scores = hardness * members + rng.normal(size=(30, 100))
    examples = bootstrap_over_examples(scores, members, rng=rng).auc
    pairs = bootstrap_over_examples(scores.ravel(), members.ravel(), rng=rng).auc
    assert examples.high - examples.low > 2 * (pairs.high - pairs.low)


@pytest.mark.case("MIP-6")
def test_a_resample_is_measured_by_the_same_rule_as_the_headline():
    rng = np.random.default_rng(2)
    scores, members = rng.integers(0, 4, (3, 50)).astype(float), rng.random((3, 50)) < 0.5
    roc = roc_curve(scores, members)

    class Identity(np.random.Generator):
        """Draws every example once: each resample is the sample itself."""

        def integers(self, *_, size, **__):
            return np.arange(size)

    bounds = bootstrap_over_examples(
        scores, members, rng=Identity(np.random.PCG64(0)), n_resamples=3, fpr=(0.2, 0.01)
    )
    assert bounds.auc.low == bounds.auc.high == pytest.approx(roc.auc)
    assert bounds.tpr[0].low == bounds.tpr[0].high == roc.at_fpr(0.2).tpr
    assert bounds.tpr[1].low == bounds.tpr[1].high == roc.at_fpr(0.01).tpr


def test_resamples_are_kept_and_drawn_alike_from_the_same_seed():
    rng = np.random.default_rng(3)
    members = rng.random((6, 300)) < 0.5
    hardness = rng.normal(size=300)  # shared by both attacks
    first, second = (gap * members + hardness + rng.normal(size=(6, 300)) for gap in (1.0, 0.8))
    spread, other = (
        bootstrap_over_examples(scores, members, rng=np.random.default_rng(0), fpr=(0.1,))
        for scores in (first, second)
    )
    assert spread.resamples.shape == (500, 2)
    np.testing.assert_allclose(np.quantile(spread.resamples[:, 0], [0.025, 0.975]), spread.auc)
    low, high = paired_interval(spread.resamples[:, 0], other.resamples[:, 0])
    assert spread.auc.low < other.auc.high  # alone, the two cannot be told apart
    assert 0 < low < roc_curve(first, members).auc - roc_curve(second, members).auc < high
    assert paired_interval(other.resamples[:, 0], spread.resamples[:, 0]) == pytest.approx((-high, -low))
    assert paired_interval(spread.resamples[:, 1], spread.resamples[:, 1]) == (0, 0)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([1.0, 2.0], [1.0], "second must have shape"),
        ([1.0], [1.0], "at least 2 resamples"),
        ([1.0, math.nan], [1.0, 2.0], "first must be finite"),
        ([[1.0, 2.0]], [[1.0, 2.0]], "first must have 1 axes"),
    ],
)
def test_figures_that_were_not_resampled_alike_are_refused(first, second, message):
    with pytest.raises(ValueError, match=message):
        paired_interval(first, second)


@pytest.mark.parametrize(
    ("scores", "members", "error", "message"),
    [
        ([1.0, math.nan], [True, False], ValueError, "NaN"),
        ([1.0, 2.0], [True, True], ValueError, "both kinds"),
        ([1.0, 2.0], [1, 0], TypeError, "members must hold booleans"),
        ([True, False], [True, False], TypeError, "scores must hold real numbers"),
        ([1.0, 2.0, 3.0], [True, False], ValueError, "members must have shape"),
        ([], [], TypeError, "members must hold booleans"),
    ],
)
def test_what_cannot_be_ranked_is_refused(scores, members, error, message):
    with pytest.raises(error, match=message):
        roc_curve(scores, members)


@pytest.mark.parametrize("fpr", [0.01, "0.01", ("0.01",), (1.5,), (0.01, math.nan)])
def test_a_bootstrap_refuses_rates_before_it_draws(fpr):
    rng = np.random.default_rng(0)
    with pytest.raises((TypeError, ValueError), match="fpr must be"):
        bootstrap_over_examples([1.0, 2.0, 3.0], [True, False, True], rng=rng, fpr=fpr)
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize(("fpr", "non_members", "supported"), [(0.01, 1100, True), (0.01, 1099, False)])
def test_a_rate_is_claimed_only_where_enough_non_members_stand_behind_it(fpr, non_members, supported):
    scores = np.arange(non_members + 10)
    roc = roc_curve(scores, scores >= non_members)
    point = supported_point(roc, fpr)
    assert (point == roc.at_fpr(fpr)) if supported else point is None


def correlated_scores(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two scores that share most of their noise; the first is a little better."""
    rng = np.random.default_rng(seed)
    members = np.arange(n) < n // 2
    shared = rng.normal(size=n)
    first, second = (shared + 0.5 * rng.normal(size=n) + gap * members for gap in (1.3, 1.1))
    return first, second, members


def test_the_interval_of_a_difference_is_that_of_resampling_examples_in_pairs():
    first, second, members = correlated_scores()
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(1000):
        rows = rng.integers(members.size, size=members.size)
        areas = [roc_curve(scores[rows], members[rows]).auc for scores in (first, second)]
        drawn.append(areas[0] - areas[1])
    low, high = auc_difference_interval(first, second, members)
    wanted = np.quantile(drawn, [0.025, 0.975])
    np.testing.assert_allclose([low, high], wanted, atol=0.15 * (high - low))
    middle = roc_curve(first, members).auc - roc_curve(second, members).auc
    assert (low + high) / 2 == pytest.approx(middle)


def test_a_difference_is_seen_that_the_two_intervals_alone_would_hide():
    first, second, members = correlated_scores()
    rng = np.random.default_rng(2)
    alone = [bootstrap_over_examples(s, members, rng=rng).auc for s in (first, second)]
    assert alone[0].low < alone[1].high
    assert auc_difference_interval(first, second, members).low > 0
    low, high = auc_difference_interval(second, first, members)
    assert (-high, -low) == pytest.approx(auc_difference_interval(first, second, members))


def test_a_difference_depends_on_ranks_only_and_allows_infinities():
    first, second, members = correlated_scores()
    stretched = np.where(first > 2.5, np.inf, np.exp(first))
    capped = np.minimum(first, 2.5)
    wanted = auc_difference_interval(np.where(first > 2.5, 2.5, first), second, members)
    assert auc_difference_interval(capped, second, members) == wanted
    assert auc_difference_interval(stretched, second, members) == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize(
    ("first", "members", "message"),
    [
        ([1.0, 2.0, math.nan, 3.0], [True, True, False, False], "NaN"),
        ([1.0, 2.0, 3.0, 4.0], [True, False, False, False], "at least two"),
        ([[1.0, 2.0, 3.0, 4.0]], [[True, True, False, False]], "one axis"),
        ([1.0, 2.0], [True, True], "both kinds"),
        ([1.0, 2.0, 3.0], [True, False], "shape"),
    ],
)
def test_a_difference_of_what_has_no_area_is_refused(first, members, message):
    with pytest.raises(ValueError, match=message):
        auc_difference_interval(first, first, members)
