"""Composition: the theorems' figures, exact rational sums, dp_accounting, and order between the bounds."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import LaplaceDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from thousand_fingers.accounting import (
    advanced_composition,
    basic_composition,
    laplace_composition_attacker,
    optimal_composition_delta,
    optimal_composition_epsilon,
    tanh_composition,
)
from thousand_fingers.mechanisms import best_attacker_accuracy, laplace_attacker_accuracy

FALSE_ALARM = 1e-6
Z = float(stats.norm.isf(FALSE_ALARM / 2))

epsilons = st.floats(0.01, 5)
releases = st.integers(1, 60)
slacks = st.floats(1e-12, 0.5)


# --- Bounds ---------------------------------------------------------------------------------------


def test_five_hundred_releases_at_one():
    assert basic_composition(1, 500) == (500.0, 0.0)
    assert advanced_composition(1, 500, 1e-5) == pytest.approx(966.4392155, abs=5.1e-8)
    assert tanh_composition(1, 500, 1e-5) == pytest.approx(338.3568800, abs=7e-8)
    assert optimal_composition_epsilon(1, 500, 1e-5) == pytest.approx(311.7676046, abs=5.1e-8)


# epsilon of one release, releases, basic, advanced, optimal; δ = 1e-5 (independently computed)
COMPOSITION_TABLE = [
    (0.1, 100, 10, "5.850", "4.307"),
    (0.01, 1000, 10, "1.618", "1.198"),
    (0.5, 20, 10, "17.22", "9.859"),
    (1, 10, 10, "32.4", "9.9998"),
    (0.1, 10, 1, "1.623", "0.994"),
]


@pytest.mark.parametrize(("epsilon", "k", "basic", "advanced", "optimal"), COMPOSITION_TABLE)
def test_composition_matches_the_table(epsilon, k, basic, advanced, optimal):
    def to_the_digits_of(printed, value):
        return f"{value:.{len(printed.partition('.')[2])}f}"

    assert basic_composition(epsilon, k) == (pytest.approx(basic), 0.0)
    assert to_the_digits_of(advanced, advanced_composition(epsilon, k, 1e-5)) == advanced
    assert to_the_digits_of(optimal, optimal_composition_epsilon(epsilon, k, 1e-5)) == optimal


def test_slack_adds_up_and_stops_at_one():
    assert basic_composition(0.5, 10, 1e-6) == (5.0, pytest.approx(1e-5))
    assert basic_composition(0.5, 10, 0.2) == (5.0, 1.0)


@given(epsilons, releases, slacks)
@settings(deadline=None)
def test_no_bound_is_below_the_optimum(epsilon, k, delta):
    optimum = optimal_composition_epsilon(epsilon, k, delta)
    tolerance = 1e-9 * k * epsilon
    assert 0 <= optimum <= k * epsilon
    assert optimum <= tanh_composition(epsilon, k, delta) + tolerance
    assert tanh_composition(epsilon, k, delta) <= advanced_composition(epsilon, k, delta) + tolerance


@given(st.floats(math.log(2), 50), st.integers(1, 10**6), slacks)
@settings(deadline=None)
def test_advanced_composition_always_loses_from_log_two_on(epsilon, k, delta):
    assert advanced_composition(epsilon, k, delta) > basic_composition(epsilon, k)[0]


@pytest.mark.parametrize("epsilon", [0.5, 0.1, 0.01])
def test_below_log_two_advanced_composition_wins_from_some_number_of_releases_on(epsilon):
    # It wins as soon as √k > √(2 ln(1/δ)) / (2 − e^ε).
    crossing = 2 * math.log(1e5) / (2 - math.exp(epsilon)) ** 2
    few, many = math.floor(crossing), math.floor(crossing) + 1
    assert advanced_composition(epsilon, few, 1e-5) > few * epsilon
    assert advanced_composition(epsilon, many, 1e-5) < many * epsilon


# --- The optimum ----------------------------------------------------------------------------------


@given(epsilons, st.floats(0, 5))
@settings(deadline=None)
def test_one_release_has_the_delta_of_randomized_response(epsilon, total):
    exact = max(0.0, (math.exp(epsilon) - math.exp(total)) / (1 + math.exp(epsilon)))
    assert optimal_composition_delta(epsilon, 1, total) == pytest.approx(exact, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize("power", [1, 2, 8])
def test_delta_is_the_sum_over_all_sequences_of_answers(k, power):
    # e^ε = power + 1, and e^total a power of it or between two of them: rational throughout.
    odds = Fraction(power + 1)
    truth = odds / (1 + odds)
    for e_total in (Fraction(1), odds, odds * 3 / 2, odds**k, odds**k + 1):
        delta = Fraction(0)
        for answers in itertools.product([True, False], repeat=k):
            here = math.prod((truth if a else 1 - truth for a in answers), start=Fraction(1))
            there = math.prod((1 - truth if a else truth for a in answers), start=Fraction(1))
            delta += max(Fraction(0), here - e_total * there)
        ours = optimal_composition_delta(math.log(odds), k, math.log(e_total))
        assert ours == pytest.approx(float(delta), rel=1e-11, abs=1e-14)


@given(epsilons, releases, st.floats(0, 50), st.floats(0, 5))
@settings(deadline=None)
def test_delta_falls_as_the_total_budget_grows(epsilon, k, total, more):
    assert optimal_composition_delta(epsilon, k, total + more) <= optimal_composition_delta(
        epsilon, k, total
    ) * (1 + 1e-12)


@given(epsilons, releases, slacks)
@settings(deadline=None)
def test_the_optimal_epsilon_is_enough_and_a_billionth_less_is_not(epsilon, k, delta):
    total = optimal_composition_epsilon(epsilon, k, delta)
    assert optimal_composition_delta(epsilon, k, total) <= delta
    if total > 0:
        assert optimal_composition_delta(epsilon, k, total * (1 - 1e-9)) > delta


def test_without_slack_the_optimum_is_the_sum():
    assert optimal_composition_epsilon(0.3, 7, 0.0) == pytest.approx(2.1, rel=1e-15)
    assert optimal_composition_delta(0.3, 7, 2.2) == 0.0


@pytest.mark.parametrize(("epsilon", "k", "total"), [(0.1, 100, 4.0), (0.5, 20, 8.0), (0.01, 1000, 1.0)])
def test_the_optimum_agrees_with_dp_accounting_on_randomized_response(epsilon, k, total):
    # With two buckets and noise n the truth is told with probability 1 - n/2. The accountant's
    # event is not used: in version 0.6.0 it charges k such events as one.
    step = epsilon / 1000
    one = privacy_loss_distribution.from_randomized_response(
        2 / (1 + math.exp(epsilon)), 2, value_discretization_interval=step
    )
    theirs = one.self_compose(k)  # pessimistic: each loss is rounded up to a step
    ours = optimal_composition_delta(epsilon, k, total)
    assert ours <= theirs.get_delta_for_epsilon(total) * (1 + 1e-9)
    assert theirs.get_delta_for_epsilon(total) <= optimal_composition_delta(
        epsilon, k, total - 1.01 * k * step
    )
    ours = optimal_composition_epsilon(epsilon, k, 1e-5)
    assert ours <= theirs.get_epsilon_for_delta(1e-5) + 1e-9 <= ours + 1.01 * k * step


def test_ten_thousand_releases_are_computed_without_overflow_to_many_digits():
    # Beyond the central limit the exact binomial tail is the oracle: e^total = e^(jε) at a
    # threshold j makes δ a difference of two binomial tails.
    epsilon, k, j = 0.01, 10_000, 400
    p = 1 / (1 + math.exp(-epsilon))
    more = (k + j) // 2
    here = stats.binom.sf(more, k, p)
    there = stats.binom.sf(more, k, 1 - p)
    exact = here - math.exp(j * epsilon) * there
    assert optimal_composition_delta(epsilon, k, j * epsilon) == pytest.approx(exact, rel=1e-6)
    total = optimal_composition_epsilon(epsilon, k, 1e-6)
    assert 4 < total < tanh_composition(epsilon, k, 1e-6) < 100


@pytest.mark.parametrize(("epsilon", "k"), [(1e-12, 10_000), (700, 10_000), (5e-324, 1), (1e300, 3)])
def test_tiny_and_huge_budgets_neither_overflow_nor_vanish(epsilon, k):
    for delta in (0.0, 1e-300, 1e-5, 0.5):
        total = optimal_composition_epsilon(epsilon, k, delta)
        assert 0 <= total <= k * epsilon
    assert 0 <= optimal_composition_delta(epsilon, k, 0.0) <= 1
    assert advanced_composition(epsilon, k, 1e-5) > 0
    assert tanh_composition(epsilon, k, 1e-5) > 0


# --- Attackers of many Laplace releases -----------------------------------------------------------


@given(st.floats(1e-6, 100))
@settings(deadline=None)
def test_one_laplace_release_gives_the_closed_form(epsilon):
    assert laplace_composition_attacker(epsilon, 1) == pytest.approx(
        laplace_attacker_accuracy(epsilon), rel=1e-13
    )


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1, 3])
def test_two_laplace_releases_give_the_integral_over_the_plane(epsilon):
    # Accuracy is (1 + distance)/2 = 1 - overlap/2; the overlap is integrated from the densities,
    # piece by piece because they have corners at 0 and 1.
    def smaller(y, x):
        here = epsilon * epsilon / 4 * math.exp(-epsilon * (abs(x) + abs(y)))
        there = epsilon * epsilon / 4 * math.exp(-epsilon * (abs(x - 1) + abs(y - 1)))
        return min(here, there)

    far = 40 / epsilon
    edges = [-far, 0, 1, 1 + far]
    overlap = 0.0
    for (a, b), (c, d) in itertools.product(itertools.pairwise(edges), repeat=2):
        # min changes side on x + y = 1 inside the unit square only.
        if (a, c) == (0, 0):
            overlap += integrate.dblquad(smaller, 0, 1, 0, lambda x: 1 - x, epsabs=1e-12)[0]
            overlap += integrate.dblquad(smaller, 0, 1, lambda x: 1 - x, 1, epsabs=1e-12)[0]
        else:
            overlap += integrate.dblquad(smaller, a, b, c, d, epsabs=1e-12)[0]
    assert laplace_composition_attacker(epsilon, 2) == pytest.approx(1 - overlap / 2, abs=1e-8)


def test_two_releases_at_one_half_give_away_less_than_one_at_one():
    assert laplace_composition_attacker(0.5, 2) == pytest.approx(0.62, abs=0.005)
    assert laplace_composition_attacker(1, 1) == pytest.approx(0.70, abs=0.005)


@pytest.mark.parametrize(("epsilon", "k"), [(0.5, 2), (1, 3), (0.3, 10)])
def test_an_attacker_who_sums_the_log_ratios_is_right_that_often(epsilon, k):
    n = 200_000
    generator = np.random.default_rng(0)
    right = 0.0
    for truth in (0, 1):
        x = generator.laplace(truth, 1 / epsilon, (n, k))
        loss = (np.abs(x) - np.abs(x - 1)).sum(axis=1)  # > 0 speaks for 1
        tie = np.abs(loss) < 1e-9
        right += (np.mean((loss > 0) == truth, where=~tie) * np.mean(~tie) + np.mean(tie) / 2) / 2
    exact = laplace_composition_attacker(epsilon, k)
    assert abs(right - exact) <= Z * math.sqrt(exact * (1 - exact) / (2 * n))


@pytest.mark.parametrize(("epsilon", "k"), [(0.1, 100), (0.5, 10), (1, 4)])
def test_the_attacker_agrees_with_the_distance_that_dp_accounting_finds(epsilon, k):
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(SelfComposedDpEvent(LaplaceDpEvent(1 / epsilon), k))
    distance = accountant.get_delta(0.0)  # pessimistic by at most about k grid steps
    ours = 2 * laplace_composition_attacker(epsilon, k) - 1
    assert ours <= distance + 1e-9
    assert distance <= ours + k * 1e-4


@given(st.floats(0.01, 3), st.integers(1, 30))
@settings(deadline=None, max_examples=50)
def test_more_releases_help_the_attacker_but_never_beyond_the_ceiling(epsilon, k):
    accuracy = laplace_composition_attacker(epsilon, k)
    assert 0.5 <= accuracy <= best_attacker_accuracy(k * epsilon) + 1e-12
    # Ten releases at 0.5 cost at most 5: neither more than one release of the total budget …
    assert accuracy <= laplace_attacker_accuracy(k * epsilon) + 1e-12
    # … nor more than the best composed mechanism allows.
    assert accuracy <= (1 + optimal_composition_delta(epsilon, k, 0.0)) / 2 + 1e-12
    assert laplace_composition_attacker(epsilon, k + 1) >= accuracy - 1e-12


def test_three_hundred_releases_stay_exact_to_many_digits():
    # Many small losses are nearly normal: mean and variance of one follow from its distribution,
    # and the error of the normal approximation is of the order of 1/√k.
    epsilon, k = 0.05, 300
    grid = (np.arange(200_000) + 0.5) / 200_000
    density = 0.5 * epsilon * np.exp(-epsilon * grid) / len(grid)
    loss = epsilon * (1 - 2 * grid)
    mean = 0.5 * epsilon - 0.5 * math.exp(-epsilon) * epsilon + np.sum(density * loss)
    second = 0.5 * epsilon**2 * (1 + math.exp(-epsilon)) + np.sum(density * loss**2)
    normal = stats.norm.cdf(math.sqrt(k) * mean / math.sqrt(second - mean**2))
    assert laplace_composition_attacker(epsilon, k) == pytest.approx(normal, abs=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "k", "accuracy"), [(1e-300, 5, 0.5), (1e-9, 2, 0.5), (1e4, 3, 1.0), (1e300, 2, 1.0)]
)
def test_attackers_at_the_ends_of_the_number_line(epsilon, k, accuracy):
    assert laplace_composition_attacker(epsilon, k) == pytest.approx(accuracy, abs=1e-8)


# --- Arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        basic_composition,
        lambda epsilon, k: advanced_composition(epsilon, k, 1e-5),
        lambda epsilon, k: tanh_composition(epsilon, k, 1e-5),
        lambda epsilon, k: optimal_composition_delta(epsilon, k, 1.0),
        lambda epsilon, k: optimal_composition_epsilon(epsilon, k, 1e-5),
        laplace_composition_attacker,
    ],
)
def test_what_is_no_budget_or_no_number_of_releases_is_refused(function):
    for epsilon in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon must be"):
            function(epsilon, 3)
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        function(1.0, 0)
    with pytest.raises(TypeError, match="k must be an integer"):
        function(1.0, 2.0)
    with pytest.raises(ValueError, match=r"k \* epsilon must be finite"):
        function(1e308, 10)


@pytest.mark.parametrize("slack", [0.0, 1.0, -0.1, math.nan])
def test_slack_outside_the_open_interval_is_refused(slack):
    for bound in (advanced_composition, tanh_composition):
        with pytest.raises(ValueError, match="delta_slack must be"):
            bound(1.0, 2, slack)
