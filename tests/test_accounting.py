"""Composition and DP-SGD: the theorems' figures, exact sums, quadrature, dp_accounting, order between bounds."""

import dataclasses
import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from thousand_fingers.accounting import (
    RDP_ORDERS,
    advanced_composition,
    basic_composition,
    laplace_composition_attacker,
    noise_multiplier_for,
    optimal_composition_delta,
    optimal_composition_epsilon,
    pld_delta,
    pld_epsilon,
    pld_epsilon_bounds,
    privacy_losses,
    privacy_statement,
    rdp_epsilon,
    rdp_to_epsilon,
    rounded_up,
    shuffled_epsilon,
    shuffled_epsilon_lower_bound,
    subsampled_gaussian_rdp,
    tanh_composition,
)
from thousand_fingers.mechanisms import (
    analytic_gaussian_std,
    best_attacker_accuracy,
    gaussian_delta,
    gaussian_epsilon,
    laplace_attacker_accuracy,
)

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


# --- DP-SGD: committed values of other accountants ------------------------------------------------

# sample rate, noise multiplier, steps, δ; ε by Opacus 1.6.0 (RDP), by dp-accounting 0.6.0 (PLD, grid 1e-4)
TRAININGS = [
    (0.01, 4, 10_000, 1e-5, 1.0355, 0.9470),
    (0.01, 4, 1000, 1e-5, 0.3012, 0.2722),
    (0.01, 8, 10_000, 1e-5, 0.4808, 0.4375),
    (0.01, 2, 10_000, 1e-5, 2.3529, 2.1628),
    (0.01, 1, 1000, 1e-5, 2.1014, 1.8282),
    (0.01, 1, 10_000, 1e-5, 6.7127, 6.1877),
    (0.01, 0.5, 1000, 1e-5, 15.4643, 13.3608),
    (256 / 60_000, 1.1, 14_040, 1e-5, 2.5944, 2.3796),
    (250 / 60_000, 1.3, 3600, 1e-5, 0.9422, 0.8530),
    (250 / 60_000, 1.1, 14_400, 1e-5, 2.5617, 2.3496),
    (250 / 60_000, 0.7, 10_800, 1e-5, 6.2330, 5.5622),
    (64 / 60_000, 1, 9380, 1e-5, 0.8036, 0.4938),
    (0.064, 1, 320, 1e-5, 8.6589, 7.8280),
    (0.0625, 1, 320, 1e-5, 8.4433, 7.6275),
    (0.125, 2, 400, 1e-5, 6.8830, 6.3393),
    (0.25, 4, 200, 1e-5, 4.2882, 3.9493),
    (0.5, 8, 100, 1e-5, 2.8218, 2.5968),
    (1, 10, 100, 1e-5, 4.7285, 4.3772),
    (1, 1, 1, 1e-5, 4.7285, 4.3772),
    (1, 20, 1, 1e-5, 0.1816, 0.1600),
    (0.001, 1, 100_000, 1e-6, 2.0040, 1.8620),
    (1e-4, 1, 1, 1e-5, 0.4230, 0.0002),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "renyi", "tight"), TRAININGS)
def test_both_accountants_agree_with_the_committed_values(q, sigma, steps, delta, renyi, tight):
    assert rdp_epsilon(sigma, q, steps, delta) == pytest.approx(renyi, abs=1.01e-4)
    ours = pld_epsilon_bounds(sigma, q, steps, delta)
    assert ours.high == pytest.approx(tight, abs=1e-3)
    assert 0 <= ours.low <= ours.high


def test_orders_beyond_the_sixty_third_matter_where_the_noise_is_large():
    assert rdp_epsilon(100, 0.01, 1, 1e-5) == pytest.approx(0.0035, abs=6e-5)  # dp-accounting; Opacus: 0.1029
    assert pld_epsilon(100, 0.01, 1, 1e-5) == pytest.approx(0.0001, abs=6e-5)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.25, 4.0, 200), (0.02, 0.8, 500)])
def test_both_accountants_agree_with_dp_accounting_here_and_now(q, sigma, steps):
    event = SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps)
    whole = [order for order in RDP_ORDERS if order == int(order)]
    ours = rdp_to_epsilon(subsampled_gaussian_rdp(sigma, q, steps, whole), whole, 1e-5).epsilon
    theirs = RdpAccountant(list(map(int, whole))).compose(event).get_epsilon(1e-5)
    assert ours == pytest.approx(theirs, rel=1e-9)
    # At fractional orders their series is cut short, to the safe side.
    theirs = RdpAccountant(list(RDP_ORDERS)).compose(event).get_epsilon(1e-5)
    assert theirs * 0.999 <= rdp_epsilon(sigma, q, steps, 1e-5) <= theirs * (1 + 1e-9)
    tight = PLDAccountant(value_discretization_interval=1e-3).compose(event)
    low, high = pld_epsilon_bounds(sigma, q, steps, 1e-5, resolution=256)
    assert low <= tight.get_epsilon(1e-5)
    assert high == pytest.approx(tight.get_epsilon(1e-5), abs=2e-3)


@pytest.mark.case("DP-2")
def test_ordinary_parameters_give_a_number():
    assert pld_epsilon(1.0, 0.2, 500, 1e-5) == pytest.approx(38.2, abs=0.05)
    assert 0 < pld_epsilon(1.0, 0.2, 10, 1e-5) < pld_epsilon(1.0, 0.2, 500, 1e-5)


@pytest.mark.case("DP-4")
def test_the_three_accountants_stand_in_their_order():
    renyi, tight = (f(3, 0.2, 50, 1 / 48_000) for f in (rdp_epsilon, pld_epsilon))
    assert renyi == pytest.approx(2.169, abs=1e-3)
    assert 1.838 <= tight <= 1.971  # central limit, which is no bound; Opacus' upper end


# --- Which proof: 2017 or improved ----------------------------------------------------------------

# sample rate, σ, steps, δ; ε by the conversion of 2017, by the improved one
CONVERSIONS = [
    (0.01, 4, 10_000, 1e-5, 1.2586, 1.0355),
    (0.01, 4, 40_000, 1e-5, 2.574, 2.210),
    (256 / 60_000, 1.3, 3515, 1e-5, 1.192, 0.954),
    (256 / 60_000, 1.1, 14_062, 1e-5, 3.008, 2.597),
    (256 / 60_000, 0.7, 10_546, 1e-5, 7.100, 6.318),
    (240 / 60_000, 1.3, 3750, 1e-5, 1.160, 0.922),
    (240 / 60_000, 1.1, 15_000, 1e-5, 2.905, 2.503),
    (240 / 60_000, 0.7, 11_250, 1e-5, 6.859, 6.093),
    (256 / 60_000, 0.8, 14_062, 1e-6, 6.220, 5.600),
    (256 / 54_649, 0.8, 12_808, 1e-6, 6.550, 5.911),
]


@pytest.mark.case("DP-6")
@pytest.mark.case("DP-27")
@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "old", "new"), CONVERSIONS)
def test_published_figures_are_those_of_the_conversion_of_2017(q, sigma, steps, delta, old, new):
    assert rdp_epsilon(sigma, q, steps, delta, conversion="2017") == pytest.approx(old, rel=7e-4)
    assert rdp_epsilon(sigma, q, steps, delta) == pytest.approx(new, rel=7e-4)


@given(st.floats(0.3, 20), st.floats(1e-4, 1), st.integers(1, 10_000), st.floats(1e-10, 0.1))
@settings(deadline=None, max_examples=25)
def test_the_improved_conversion_is_never_worse(sigma, q, steps, delta):
    rdp = subsampled_gaussian_rdp(sigma, q, steps)
    old = rdp_to_epsilon(rdp, RDP_ORDERS, delta, conversion="2017")
    new = rdp_to_epsilon(rdp, RDP_ORDERS, delta)
    assert 0 <= new.epsilon <= old.epsilon
    assert new.order in RDP_ORDERS


def test_epsilon_is_not_negative_where_the_formula_is():
    assert rdp_epsilon(100, 0.01, 1, 0.1) == 0.0  # Opacus 1.6.0: −0.105
    assert rdp_to_epsilon([0.0], [2.0], 0.5).epsilon == 0.0


def test_infinite_divergences_are_passed_over():
    assert rdp_to_epsilon([0.5, math.inf], [2.0, 3.0], 1e-5).order == 2.0


# --- Rényi divergences ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")  # it wanted ten digits
@pytest.mark.parametrize("q", [1e-4, 0.01, 0.3, 0.99])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 5.0])
def test_divergences_are_the_integral_that_defines_them(q, sigma):
    orders = np.array([1.1, 1.5, 2.0, 3.7, 10.9, 12.0])
    ours = subsampled_gaussian_rdp(sigma, q, 1, orders)
    for order, divergence in zip(orders, ours, strict=True):

        def excess(x, order=order):
            u = q * math.expm1((2 * x - 1) / 2 / sigma**2)
            log_weight = -x * x / 2 / sigma**2 - math.log(sigma * math.sqrt(2 * math.pi))
            if abs(u) < 1e-4:  # here Taylor's polynomial is better than the difference
                series = 1 + (order - 2) / 3 * u * (1 + (order - 3) / 4 * u)
                return math.exp(log_weight) * order * (order - 1) / 2 * u * u * series
            return math.exp(log_weight + order * math.log1p(u)) - math.exp(log_weight) * (1 + order * u)

        edges = [-12 * sigma, -2 * sigma, 0, 2 * sigma, order / 2, order, order + 12 * sigma]
        total = sum(
            integrate.quad(excess, a, b, epsabs=1e-300, epsrel=1e-10, limit=200)[0]
            for a, b in itertools.pairwise(edges)
        )
        assert divergence == pytest.approx(math.log1p(total) / (order - 1), rel=1e-8)


def test_fractional_orders_join_the_whole_ones():
    near = subsampled_gaussian_rdp(0.9, 0.05, 1, [4 - 1e-9, 4, 4 + 1e-9])
    np.testing.assert_allclose(near, near[1], rtol=1e-7)


@given(st.floats(0.1, 100), st.floats(1e-9, 1 - 1e-9))
@settings(deadline=None, max_examples=12)
def test_divergences_rise_with_the_order_and_stay_below_those_without_sampling(sigma, q):
    rdp = subsampled_gaussian_rdp(sigma, q, 1)
    assert (rdp >= 0).all()
    assert (np.diff(rdp) >= -1e-9 * rdp[:-1]).all()
    assert (rdp <= np.array(RDP_ORDERS) / 2 / sigma**2 * (1 + 1e-9)).all()


@pytest.mark.parametrize("sample_rate", [1e-200, 1e-100, 1e-7])
def test_who_is_hardly_ever_drawn_loses_nothing_beyond_delta(sample_rate):
    # The two worlds differ only where the person is drawn, in at most a share Tq of the trainings.
    assert pld_epsilon(0.3, sample_rate, 10, 10 * sample_rate) == 0
    assert pld_epsilon_bounds(0.3, sample_rate, 10, 1e-5).high == 0


def test_below_that_share_something_is_lost_and_rates_that_underflow_are_refused():
    assert pld_epsilon(1.0, 1e-4, 10, 1e-6) > 0
    for refused in (
        lambda: pld_epsilon(1.0, 1e-200, 10, 1e-250),
        lambda: pld_delta(1.0, 1e-200, 10, 0.0),
        lambda: privacy_losses(1.0, 1e-200, 10, 1e-5),
    ):
        with pytest.raises(ValueError, match="sample_rate"):
            refused()


@pytest.mark.parametrize("sigma", [1e-3, 0.02, 1e6])
def test_extreme_noise_overflows_nothing(sigma):
    assert (np.isfinite(subsampled_gaussian_rdp(sigma, 0.1, 3))).all()
    low, high = pld_epsilon_bounds(sigma, 0.1, 3, 1e-5)
    assert 0 <= low <= high < math.inf


# --- The privacy loss distribution ----------------------------------------------------------------


def _hockey_stick(epsilon: float, q: float, sigma: float) -> float:
    """P(L > ε) − e^ε Q(L > ε) of one step, person removed, from the normal distribution function."""
    ratio = (math.exp(epsilon) - 1 + q) / q
    if ratio <= 0:
        return 1 - math.exp(epsilon)
    x = sigma**2 * math.log(ratio) + 0.5
    with_person = (1 - q) * stats.norm.sf(x / sigma) + q * stats.norm.sf((x - 1) / sigma)
    return with_person - math.exp(epsilon) * stats.norm.sf(x / sigma)


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.3, 0.7), (0.5, 5.0), (1e-3, 0.5)])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0, 3.0])
def test_one_step_has_the_delta_of_the_closed_form(q, sigma, epsilon):
    exact = _hockey_stick(epsilon, q, sigma)
    if exact > 1e-14:
        ours = pld_delta(sigma, q, 1, epsilon)
        assert exact * (1 - 1e-9) <= ours <= exact * (1 + 2e-3)


@pytest.mark.parametrize(("q", "sigma", "epsilon"), [(0.1, 1.0, 1.0), (0.4, 0.8, 3.0), (0.05, 2.0, 0.3)])
def test_two_steps_have_the_delta_of_the_integral(q, sigma, epsilon):
    def beyond(x):
        loss = math.log1p(q * math.expm1((2 * x - 1) / 2 / sigma**2))
        density = (1 - q) * stats.norm.pdf(x, 0, sigma) + q * stats.norm.pdf(x, 1, sigma)
        return density * _hockey_stick(epsilon - loss, q, sigma)

    exact, _ = integrate.quad(beyond, -10 * sigma, 1 + 12 * sigma, epsabs=1e-14, epsrel=1e-9, limit=400)
    removed, _ = privacy_losses(sigma, q, 2, exact)
    assert exact * (1 - 1e-7) <= removed.delta(epsilon) <= exact * (1 + 3e-4)


def test_a_tiny_delta_is_computed_to_many_digits():
    # Without the tilt a Fourier transform knows nothing below 1e-16.
    epsilon = 8.0
    exact = _hockey_stick(epsilon, 0.1, 1.0)
    assert 1e-28 < exact < 1e-18
    removed, _ = privacy_losses(1.0, 0.1, 1, exact)
    assert removed.delta(epsilon) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (10.0, 100), (3.0, 7)])
def test_without_sampling_the_answer_is_the_gaussian_mechanism(sigma, steps):
    exact = gaussian_epsilon(sigma / math.sqrt(steps), 1e-5)
    assert pld_epsilon_bounds(sigma, 1, steps, 1e-5) == (exact, exact)
    assert pld_delta(sigma, 1, steps, 1.0) == gaussian_delta(sigma / math.sqrt(steps), 1.0)
    nearly = privacy_losses(sigma, 1 - 1e-9, steps, 1e-5)  # the same number, by way of the grid
    assert max(loss.epsilon(1e-5) for loss in nearly) == pytest.approx(exact, abs=5e-4)


@pytest.mark.parametrize("f", [rdp_epsilon, pld_epsilon])
def test_nothing_done_costs_nothing(f):
    assert f(1.0, 0.01, 0, 1e-5) == 0.0
    assert f(1.0, 0.0, 100, 1e-5) == 0.0
    assert pld_delta(1.0, 0.01, 0, 0.0) == 0.0


@given(
    st.floats(0.4, 20),
    st.floats(1e-3, 0.9),
    st.integers(1, 300),
    st.floats(1e-9, 1e-2),
    st.floats(1.05, 2),
)
@settings(deadline=None, max_examples=6)
def test_epsilon_falls_with_noise_and_delta_and_rises_with_rate_and_steps(sigma, q, steps, delta, factor):
    here = pld_epsilon_bounds(sigma, q, steps, delta)
    slack = 1e-6 + 2e-4 * here.high
    assert 0 <= here.low <= here.high <= rdp_epsilon(sigma, q, steps, delta) + slack
    assert here.high <= gaussian_epsilon(sigma / math.sqrt(steps), delta) + slack
    assert pld_epsilon(sigma * factor, q, steps, delta) <= here.high + slack
    assert pld_epsilon(sigma, q, steps, delta * factor) <= here.high + slack
    assert pld_epsilon(sigma, q / factor, steps, delta) <= here.high + slack
    assert pld_epsilon(sigma, q, 2 * steps, delta) >= here.high - slack


def test_a_finer_grid_lowers_the_promise_and_both_ends_meet():
    coarse, fine = (pld_epsilon_bounds(2.0, 0.125, 100, 1e-5, resolution=r) for r in (32, 2048))
    assert coarse.low < fine.low < fine.high < coarse.high
    assert fine.high - fine.low < 2e-3
    assert coarse.high - fine.high < 5e-4


# --- The inverse problem --------------------------------------------------------------------------

# sample rate, steps, and the σ for ε = 0.5, 1, 2, 8 at δ = 1e-5 (dp-accounting, PLD on a grid of 1e-4)
NOISES = [
    (0.064, 320, (8.1690, 4.4155, 2.4696, 0.9890)),
    (0.125, 160, (11.2562, 6.0548, 3.3376, 1.2185)),
    (0.25, 100, (17.7197, 9.4769, 5.1501, 1.7122)),
    (0.5, 60, (27.3526, 14.5709, 7.8498)),
    (1, 40, (44.4732, 23.5946, 12.6100, 3.7962)),
]


@pytest.mark.parametrize(("q", "steps", "sigmas"), NOISES)
def test_the_noise_for_a_budget_is_within_a_thousandth_of_the_tight_one(q, steps, sigmas):
    for epsilon, tight in zip((0.5, 1.0, 2.0, 8.0), sigmas, strict=False):
        sigma = noise_multiplier_for(epsilon, 1e-5, sample_rate=q, steps=steps)
        assert sigma == pytest.approx(tight, rel=1e-3)
        assert pld_epsilon(sigma, q, steps, 1e-5) <= epsilon


@pytest.mark.parametrize(("q", "steps", "epsilon"), [(0.125, 40, 2.0)])
def test_a_thousandth_less_noise_is_certainly_too_little(q, steps, epsilon):
    sigma = noise_multiplier_for(epsilon, 1e-5, sample_rate=q, steps=steps)
    assert pld_epsilon_bounds(sigma, q, steps, 1e-5, resolution=4096).high <= epsilon
    assert pld_epsilon_bounds(sigma * 0.999, q, steps, 1e-5, resolution=4096).low > epsilon


def test_without_sampling_the_noise_is_exact():
    sigma = noise_multiplier_for(2.0, 1e-5, sample_rate=1, steps=40)
    assert sigma == math.sqrt(40) * analytic_gaussian_std(2.0, 1e-5)


def test_the_noise_for_the_set_up_of_a_tutorial():
    sigma = noise_multiplier_for(2.0, 1e-5, sample_rate=256 / 60_000, steps=14_040)
    assert sigma == pytest.approx(1.2238, rel=1e-3)


@pytest.mark.case("DP-18")
def test_a_small_budget_needs_no_memory_and_gets_an_answer():
    sigma = noise_multiplier_for(0.05, 1e-5, sample_rate=0.01, steps=100)
    assert pld_epsilon(sigma, 0.01, 100, 1e-5) <= 0.05 < pld_epsilon(sigma * 0.999, 0.01, 100, 1e-5)
    assert sigma < 7.5  # Opacus' answer, whose proof adds 0.01 to every ε


@pytest.mark.parametrize(("accountant", "expected"), [("rdp", 1.2945), ("rdp-2017", None)])
def test_other_proofs_ask_for_more_noise(accountant, expected):
    sigma = noise_multiplier_for(2.0, 1e-5, sample_rate=256 / 60_000, steps=14_040, accountant=accountant)
    assert sigma > 1.2238 * 1.01
    if expected:
        assert sigma == pytest.approx(expected, rel=1e-3)


# --- Batches that were shuffled -------------------------------------------------------------------

# σ, batches, δ; Poisson (tight), shuffled at least, Gaussian once per epoch
SHUFFLES = [
    (0.5, 1000, 1e-5, 3.239, 9.997, 9.997),
    (0.7, 1000, 1e-5, 0.609, 6.53, 6.65),
    (1.0, 1000, 1e-5, 0.149, 2.88, 4.38),
    (1.0, 100, 1e-5, 0.718, 4.06, 4.38),
    (1.0, 16, 1e-5, 2.242, 4.32, 4.38),
    (1.5, 16, 1e-5, 0.964, 2.36, 2.75),
]


@pytest.mark.case("DP-8")
@pytest.mark.parametrize(("sigma", "steps", "delta", "poisson", "shuffled", "gaussian"), SHUFFLES)
def test_shuffled_batches_lie_between_an_attack_and_a_proof(sigma, steps, delta, poisson, shuffled, gaussian):
    assert pld_epsilon(sigma, 1 / steps, steps, delta) == pytest.approx(poisson, abs=1e-3)
    assert shuffled_epsilon_lower_bound(sigma, steps, delta) == pytest.approx(shuffled, abs=6e-3)
    assert shuffled_epsilon(sigma, 1, delta) == pytest.approx(gaussian, abs=6e-3)
    assert shuffled_epsilon_lower_bound(sigma, steps, delta) <= shuffled_epsilon(sigma, 1, delta)


def test_one_batch_an_epoch_has_nothing_to_shuffle():
    assert shuffled_epsilon_lower_bound(1.0, 1, 1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5), abs=1e-3)


@pytest.mark.case("DP-8")
def test_the_attack_on_shuffled_batches_is_what_simulation_shows():
    # One epoch of 16 batches, σ = 1; the event and its two probabilities by brute force.
    rng = np.random.default_rng(0)
    cut, n = 3.0, 400_000
    noise = rng.normal(size=(n, 16))
    absent = noise + np.eye(16)[0]
    present = noise + 2 * np.eye(16)[0]
    exact = [1 - stats.norm.cdf(cut) ** 15 * stats.norm.cdf(cut - shift) for shift in (1, 2)]
    for sums, probability in zip((absent, present), exact, strict=True):
        hits = (sums.max(axis=1) > cut).sum()
        assert abs(hits - n * probability) < Z * math.sqrt(n * probability * (1 - probability))
    proved = math.log((exact[1] - 1e-5) / exact[0])
    assert proved <= shuffled_epsilon_lower_bound(1.0, 16, 1e-5)


@pytest.mark.parametrize(("sigma", "epochs", "expected"), [(1.0, 20, 28.4), (4.0, 20, 4.98)])
def test_the_honest_fallback_for_many_epochs(sigma, epochs, expected):
    assert shuffled_epsilon(sigma, epochs, 1e-5) == pytest.approx(expected, rel=2e-3)
    assert shuffled_epsilon(sigma, 0, 1e-5) == 0.0


# --- The statement --------------------------------------------------------------------------------

RUN = {
    "n": 4000,
    "batch_size": 250,
    "steps": 160,
    "noise_multiplier": 1.0,
    "max_grad_norm": 0.5,
    "sampling": "poisson",
}


def _run(**changes):
    return SimpleNamespace(**{**RUN, **changes})


def test_a_statement_says_everything_and_cannot_be_edited():
    statement = privacy_statement(_run(), delta=1e-5, unit="one image")
    assert statement.epsilon == pld_epsilon(1.0, 250 / 4000, 160, 1e-5)
    text = str(statement)
    for words in (rounded_up(statement.epsilon), "1e-05", "one image of 4,000", "add or remove one", "160"):
        assert words in text
    for words in ("Poisson", "250", "privacy loss", "hyper-parameters", "not cryptographic"):
        assert words in text
    with pytest.raises(dataclasses.FrozenInstanceError):
        statement.epsilon = 0.1


@pytest.mark.case("DP-8")
def test_shuffled_batches_under_a_poisson_proof_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"ε = 2\.242.*at least 4\.32"):
        privacy_statement(_run(sampling="shuffle"), delta=1e-5)
    honest = privacy_statement(_run(sampling="shuffle"), delta=1e-5, accountant="gaussian")
    assert honest.epsilon == shuffled_epsilon(1.0, 10, 1e-5)
    assert "no gain from sampling" in str(honest)


def test_a_batch_of_everybody_may_be_shuffled():
    statement = privacy_statement(_run(sampling="shuffle", batch_size=4000, steps=9), delta=1e-5)
    assert statement.epsilon == gaussian_epsilon(1 / 3, 1e-5)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp-2017", "gaussian"])
def test_every_accountant_can_state(accountant):
    assert privacy_statement(_run(), delta=1e-5, accountant=accountant).epsilon > 4


def test_replacing_doubles_the_sensitivity_and_is_refused_where_it_is_not_analysed():
    with pytest.raises(ValueError, match="add or remove one"):
        privacy_statement(_run(), delta=1e-5, neighbouring="replace one")
    statement = privacy_statement(
        _run(batch_size=4000, steps=1, noise_multiplier=4.0),
        delta=1e-5,
        neighbouring="replace one",
        accountant="gaussian",
    )
    assert statement.epsilon == gaussian_epsilon(2.0, 1e-5)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"delta": 1 / 4000}, r"delta must be < 1/n"),
        ({}, {"delta": 0}, r"delta must be > 0"),
        ({"max_grad_norm": 0.0}, {}, r"max_grad_norm must be > 0, got 0\.0"),
        ({"max_grad_norm": math.inf}, {}, r"max_grad_norm must be finite and > 0, got inf"),
        ({"max_grad_norm": math.nan}, {}, r"max_grad_norm must be finite and > 0, got nan"),
        ({"noise_multiplier": 0.0}, {}, r"noise_multiplier must be > 0, got 0\.0"),
        ({"batch_size": 4001}, {}, r"batch_size must be >= 1 and <= 4000"),
        ({"sampling": "balls and bins"}, {}, r"sampling must be one of 'poisson', 'shuffle'"),
        ({}, {"accountant": "gdp"}, r"accountant must be one of"),
    ],
)
@pytest.mark.case("DP-17")
def test_a_statement_that_would_mean_nothing_is_refused(changes, options, message):
    with pytest.raises(ValueError, match=message):
        privacy_statement(_run(**changes), **{"delta": 1e-5, **options})


@given(st.floats(0, 1e6), st.integers(0, 6))
def test_a_printed_epsilon_never_promises_more(value, digits):
    printed = rounded_up(value, digits)
    assert float(printed) >= value
    assert float(printed) - value <= 1.000001 * 10.0**-digits
    assert len(printed.partition(".")[2]) == digits


@pytest.mark.parametrize("delta", [1e-20, 1e-30, 1e-100])
def test_one_step_is_accounted_for_exactly_however_small_delta_is(delta):
    def exact(epsilon):  # the person removed; sigma = 1, q = 1/2
        x = math.log(2 * math.exp(epsilon) - 1) + 0.5
        return (stats.norm.sf(x - 1) + stats.norm.sf(x)) / 2 - math.exp(epsilon) * stats.norm.sf(x)

    epsilon = pld_epsilon(1.0, 0.5, 1, delta)
    assert exact(epsilon) <= delta <= exact(0.995 * epsilon)
    low, high = pld_epsilon_bounds(1.0, 0.5, 1, delta)
    assert exact(low) >= delta
    assert high == epsilon


def test_the_loss_of_an_added_person_has_an_end():
    _, added = privacy_losses(1.0, 0.5, 4, 1e-30)
    assert added.epsilon(1e-30) == pytest.approx(4 * math.log(2), abs=0.1)
    assert added.delta(3.0) <= 1e-30


def test_delta_is_not_read_where_no_losses_are_kept():
    removed, added = privacy_losses(4.0, 0.01, 100, 1e-5)
    for loss in (removed, added):
        with pytest.raises(ValueError, match="epsilon must be"):
            loss.delta(-0.5)
        for delta in (-0.1, 1.5, math.nan):
            with pytest.raises(ValueError, match="delta must be"):
                loss.epsilon(delta)


@pytest.mark.parametrize("sigma", [0.01, 0.02, 0.026, 0.027])
def test_what_shuffling_gives_away_stays_below_what_is_proved_when_there_is_hardly_noise(sigma):
    found = shuffled_epsilon_lower_bound(sigma, 1000, 1e-5)
    assert 0.9 * shuffled_epsilon(sigma, 1, 1e-5) < found <= shuffled_epsilon(sigma, 1, 1e-5)


def test_huge_numbers_are_rounded_up_too():
    for value in (1e30, 1.7e308):
        assert float(rounded_up(value)) == value


def test_divergences_must_be_numbers() -> None:
    with pytest.raises(TypeError, match="rdp must hold real numbers, got dtype"):
        rdp_to_epsilon(["0.1", "0.2"], [2, 3], 1e-5)
    assert rdp_to_epsilon([1, 2], [2, 3], 1e-5).order == 3


def test_a_statement_says_that_the_clipping_norm_was_adapted() -> None:
    run = {"n": 100, "batch_size": 10, "steps": 5, "noise_multiplier": 2.0, "max_grad_norm": 0.1}
    fixed = SimpleNamespace(**run, sampling="poisson")
    moving = SimpleNamespace(**run, sampling="poisson", adapted=True)
    one, other = (privacy_statement(training, delta=1e-3) for training in (fixed, moving))
    assert one.epsilon == other.epsilon
    assert "clipping norm 0.1, noise" in str(one)
    assert "clipping norm 0.1 at first, then adapted, noise" in str(other)
