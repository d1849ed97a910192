"""Mechanisms and the budget: closed forms, independent libraries, and what the theorems promise.

Statistical tests draw from fixed generators; each has a false-alarm level of at most 1e-6.
"""

import ast
import contextlib
import copy
import inspect
import itertools
import math
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from thousand_fingers import mechanisms
from thousand_fingers.mechanisms import (
    BudgetExceeded,
    Expense,
    PrivacyBudget,
    analytic_gaussian_std,
    best_attacker_accuracy,
    classical_gaussian_std,
    discrete_gaussian,
    discrete_gaussian_mechanism,
    discrete_laplace,
    discrete_laplace_mechanism,
    estimate_proportion,
    exponential_mechanism,
    exponential_probabilities,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mechanism,
    laplace_attacker_accuracy,
    laplace_mechanism,
    noisy_mean,
    noisy_sum,
    posterior_probability,
    randomized_response,
    randomized_response_epsilon,
    rappor_epsilon,
    rappor_estimate,
    rappor_instantaneous,
    rappor_permanent,
    rappor_report,
)

FALSE_ALARM = 1e-6
Z = float(stats.norm.isf(FALSE_ALARM / 2))  # 4.89 standard errors

BAD_BUDGETS = [0.0, -1.0, math.nan, math.inf, -math.inf]


def rng(seed=0):
    return np.random.default_rng(seed)


def within(observed, expected, standard_error):
    return abs(observed - expected) <= Z * standard_error


# --- Randomized response --------------------------------------------------------------------------


def test_the_coin_survey_of_a_thousand_people_finds_thirty_percent():
    estimate = estimate_proportion([True] * 400 + [False] * 600)
    assert estimate.proportion == pytest.approx(0.3, abs=1e-12)
    assert estimate.standard_error == pytest.approx(2 * math.sqrt(0.4 * 0.6 / 1000))
    assert estimate.n == 1000


def test_two_fair_coins_are_worth_log_three():
    assert randomized_response_epsilon() == pytest.approx(math.log(3), rel=1e-15)


probabilities = st.floats(min_value=0.01, max_value=0.99)


@given(probabilities, probabilities)
@settings(deadline=None)
def test_epsilon_of_the_coins_is_the_largest_log_ratio_of_report_probabilities(truth, yes):
    says_yes = {True: truth + (1 - truth) * yes, False: (1 - truth) * yes}
    ratios = [says_yes[True] / says_yes[False], (1 - says_yes[False]) / (1 - says_yes[True])]
    assert randomized_response_epsilon(truth, yes) == pytest.approx(math.log(max(ratios)), rel=1e-9)


@pytest.mark.parametrize(
    ("truth", "yes", "epsilon"),
    [(0, 0.5, 0), (0, 0, 0), (1, 0.5, math.inf), (0.5, 0, math.inf), (0.5, 1, math.inf)],
)
def test_coins_at_their_extremes_protect_fully_or_not_at_all(truth, yes, epsilon):
    assert randomized_response_epsilon(truth, yes) == epsilon


@pytest.mark.parametrize(("truth", "yes"), [(0.5, 0.5), (0.2, 0.9), (1.0, 0.0)])
def test_the_share_is_recovered_from_randomized_reports(truth, yes):
    answers = np.arange(10_000) < 3000
    reports = randomized_response(answers, rng=rng(1), truth_probability=truth, yes_probability=yes)
    estimate = estimate_proportion(reports, truth_probability=truth, yes_probability=yes)
    # Given the answers, a report's variance is that of its two coins.
    says_yes = np.where(answers, truth + (1 - truth) * yes, (1 - truth) * yes)
    sd = math.sqrt(np.sum(says_yes * (1 - says_yes))) / len(answers) / truth
    assert within(estimate.proportion, 0.3, sd)
    assert reports.dtype == bool
    assert reports.shape == answers.shape


def test_the_standard_error_for_ten_thousand_people_is_about_one_percent():
    yes = int(10_000 * (0.25 + 0.5 * 0.3))
    assert estimate_proportion([True] * yes + [False] * (10_000 - yes)).standard_error == pytest.approx(
        0.0098, abs=5e-5
    )


def test_reports_that_say_nothing_are_refused():
    with pytest.raises(ValueError, match=r"truth_probability must be > 0, got 0.0"):
        estimate_proportion([True, False], truth_probability=0)


@pytest.mark.parametrize(
    ("answers", "error"), [([2, 0], ValueError), ([0.5], TypeError), ([], ValueError), (["yes"], TypeError)]
)
def test_answers_that_are_neither_yes_nor_no_are_refused(answers, error):
    with pytest.raises(error, match="answers must"):
        randomized_response(answers, rng=rng())


def test_a_seed_is_not_a_generator():
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator"):
        randomized_response([True], rng=0)


# --- Laplace --------------------------------------------------------------------------------------


def test_five_releases_of_the_textbook_one_by_one_and_at_once():
    printed = [42.6, 40.8, 37.0, 35.2, 44.0]
    generator = rng(0)
    one_by_one = [laplace_mechanism(42, sensitivity=1, epsilon=0.5, rng=generator) for _ in range(5)]
    at_once = laplace_mechanism(42, sensitivity=1, epsilon=0.5, rng=rng(0), size=5)
    assert np.round(one_by_one, 1).tolist() == printed
    assert str(at_once.round(1)) == "[42.6 40.8 37.  35.2 44. ]"
    assert type(one_by_one[0]) is float


def test_error_and_attacker_table_of_the_textbook():
    generator = rng(0)
    table = []
    for epsilon in (0.1, 1, 10):
        here = laplace_mechanism(412, sensitivity=1, epsilon=epsilon, rng=generator, size=100_000)
        there = laplace_mechanism(411, sensitivity=1, epsilon=epsilon, rng=generator, size=100_000)
        right = (np.mean(here > 411.5) + np.mean(there <= 411.5)) / 2
        table.append((f"{np.mean(np.abs(here - 412)):.2f}", f"{right:.1%}"))
    assert table == [("9.98", "52.5%"), ("1.00", "69.5%"), ("0.10", "99.7%")]


def test_noise_of_scale_two_stays_within_three_in_777_of_1000_cases():
    noise = laplace_mechanism(0, sensitivity=1, epsilon=0.5, rng=rng(2), size=200_000)
    expected = 1 - math.exp(-1.5)
    assert round(expected, 3) == 0.777
    assert within(np.mean(np.abs(noise) <= 3), expected, math.sqrt(expected * (1 - expected) / len(noise)))


def test_laplace_noise_has_the_laplace_distribution_with_scale_sensitivity_over_epsilon():
    noise = laplace_mechanism(0, sensitivity=3, epsilon=2, rng=rng(3), size=100_000)
    assert stats.kstest(noise, stats.laplace(scale=1.5).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(noise, stats.laplace(scale=1.5 / 1.05).cdf).pvalue < FALSE_ALARM


def test_every_entry_of_a_vector_gets_its_own_noise():
    released = laplace_mechanism(np.zeros((2, 3)), sensitivity=1, epsilon=1, rng=rng())
    assert released.shape == (2, 3)
    assert len(set(released.ravel())) == 6


@pytest.mark.parametrize("epsilon", BAD_BUDGETS)
@pytest.mark.parametrize("name", ["laplace", "gaussian", "exponential", "discrete_laplace", "sum", "mean"])
def test_an_epsilon_that_is_no_budget_is_refused_before_any_randomness_is_used(name, epsilon):
    generator = rng()
    before = generator.bit_generator.state
    calls = {
        "laplace": lambda: laplace_mechanism(1, sensitivity=1, epsilon=epsilon, rng=generator),
        "gaussian": lambda: gaussian_mechanism(1, sensitivity=1, epsilon=epsilon, delta=0.1, rng=generator),
        "exponential": lambda: exponential_mechanism([1, 2], sensitivity=1, epsilon=epsilon, rng=generator),
        "discrete_laplace": lambda: discrete_laplace_mechanism(1, epsilon=epsilon, rng=generator),
        "sum": lambda: noisy_sum([1], lower=0, upper=1, epsilon=epsilon, rng=generator),
        "mean": lambda: noisy_mean([1], lower=0, upper=1, epsilon=epsilon, rng=generator),
    }
    with pytest.raises(ValueError, match="epsilon must be"):
        calls[name]()
    assert generator.bit_generator.state == before


@pytest.mark.parametrize(("sensitivity", "epsilon"), [(1e300, 1e-300), (1e-300, 1e300)])
def test_a_noise_scale_that_no_double_holds_is_refused(sensitivity, epsilon):
    with pytest.raises(ValueError, match="sensitivity / epsilon must be"):
        laplace_mechanism(0, sensitivity=sensitivity, epsilon=epsilon, rng=rng())


def test_size_is_for_single_values():
    with pytest.raises(ValueError, match="size must be None when value is an array, got 3"):
        laplace_mechanism([1, 2], sensitivity=1, epsilon=1, rng=rng(), size=3)
    with pytest.raises(ValueError, match="size must be None when count is an array, got 3"):
        discrete_laplace_mechanism([1, 2], epsilon=1, rng=rng(), size=3)


# --- Gaussian -------------------------------------------------------------------------------------

# epsilon, delta, classical σ, analytic σ, true epsilon at the classical σ (independently computed)
GAUSSIAN_TABLE = [
    (0.1, 1e-5, 48.4481, 30.7496, 0.0607),
    (0.5, 1e-5, 9.6896, 7.0318, 0.3526),
    (1, 1e-5, 4.8448, 3.7306, 0.7510),
    (2, 1e-5, 2.4224, 1.9938, 1.6103),
    (5, 1e-5, 0.9690, 0.8919, 4.5401),
    (8, 1e-5, 0.6056, 0.6002, 7.9144),
    (10, 1e-5, 0.4845, 0.4999, 10.394),
    (1, 1e-6, 5.2988, 4.2247, 0.7837),
    (10, 1e-6, 0.5299, 0.5411, 10.254),
]


@pytest.mark.parametrize(("epsilon", "delta", "classical", "analytic", "true_epsilon"), GAUSSIAN_TABLE)
def test_gaussian_noise_matches_the_table(epsilon, delta, classical, analytic, true_epsilon):
    assert analytic_gaussian_std(epsilon, delta) == pytest.approx(analytic, abs=5.1e-5)
    formula = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    assert formula == pytest.approx(classical, abs=5.1e-5)
    assert gaussian_epsilon(formula, delta) == pytest.approx(true_epsilon, abs=5.1e-4)
    if epsilon < 1:
        assert classical_gaussian_std(epsilon, delta) == pytest.approx(formula, rel=1e-15)


@pytest.mark.case("DP-23")
@pytest.mark.parametrize("epsilon", [1, 1.0, 2, 10])
def test_the_classical_gaussian_is_refused_where_it_is_not_proved(epsilon):
    with pytest.raises(ValueError, match=r"epsilon must be < 1, got .*use analytic_gaussian_std"):
        classical_gaussian_std(epsilon, 1e-5)


@pytest.mark.case("DP-23")
def test_the_classical_gaussian_would_break_its_promise_at_ten():
    std = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    assert gaussian_delta(std, 10) == pytest.approx(2.27e-5, abs=5e-8)


@pytest.mark.parametrize(
    ("std", "at_1e5", "at_1e6"),
    [
        (0.5, 9.9973, 10.9972),
        (1, 4.3772, 4.8866),
        (2, 1.9931, 2.2541),
        (4, 0.9263, 1.0607),
        (10, 0.3407, 0.3969),
    ],
)
def test_epsilon_of_gaussian_noise_matches_the_table(std, at_1e5, at_1e6):
    assert gaussian_epsilon(std, 1e-5) == pytest.approx(at_1e5, abs=5.1e-5)
    assert gaussian_epsilon(std, 1e-6) == pytest.approx(at_1e6, abs=5.1e-5)


def exact_gaussian_delta(shift, epsilon):
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(shift), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize("shift", [1e-8, 1e-5, 1e-3, 0.1, 0.5, 1, 1.0001, 2, 5, 20, 100, 1000])
@pytest.mark.parametrize("deviations", [0, 0.01, 1, 6, 20, 30])
def test_gaussian_delta_agrees_with_sixty_digit_arithmetic(shift, deviations):
    # σ = 1 and sensitivity = shift, so that the quotient is exact.
    epsilon = shift * deviations + (shift * shift / 2 if deviations else 0)
    exact = exact_gaussian_delta(shift, epsilon)
    assert abs(gaussian_delta(1.0, epsilon, sensitivity=shift) - exact) <= 5e-12 * exact


@pytest.mark.parametrize(
    ("noise_std", "epsilon", "sensitivity", "delta"),
    [
        (1e-300, 1, 1e300, 1),
        (1e300, 1, 1e-300, 0),
        (1, 1e300, 1, 0),
        (1, 0, 1e-300, 4e-301),
        (1e-10, 0, 1, 1),
    ],
)
def test_gaussian_delta_survives_the_ends_of_the_number_line(noise_std, epsilon, sensitivity, delta):
    assert gaussian_delta(noise_std, epsilon, sensitivity=sensitivity) == pytest.approx(delta, rel=0.01)


budgets = st.floats(min_value=1e-6, max_value=1e4)
slacks = st.floats(min_value=1e-100, max_value=0.9)


@settings(deadline=None, max_examples=60)
@given(budgets, slacks)
def test_the_analytic_noise_is_enough_and_a_billionth_less_is_not(epsilon, delta):
    std = analytic_gaussian_std(epsilon, delta)
    assert gaussian_delta(std, epsilon) <= delta < gaussian_delta(std * (1 - 1e-9), epsilon)


@settings(deadline=None, max_examples=60)
@given(st.floats(min_value=1e-3, max_value=1e3), slacks)
def test_epsilon_of_gaussian_noise_is_enough_and_a_billionth_less_is_not(std, delta):
    epsilon = gaussian_epsilon(std, delta)
    assert gaussian_delta(std, epsilon) <= delta
    if epsilon > 0:
        assert gaussian_delta(std, epsilon * (1 - 1e-9)) > delta


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1, 1e-5), (8, 1e-6), (50, 1e-10), (0.01, 0.3)])
def test_analytic_gaussian_agrees_with_dp_accounting(epsilon, delta):
    ours = analytic_gaussian_std(epsilon, delta)
    assert ours == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-6)
    assert gaussian_epsilon(ours, delta) == pytest.approx(get_epsilon_gaussian(ours, delta), rel=1e-6)


def test_the_noise_grows_in_proportion_to_the_sensitivity():
    assert analytic_gaussian_std(1, 1e-5, sensitivity=37) == pytest.approx(
        37 * analytic_gaussian_std(1, 1e-5)
    )
    assert gaussian_epsilon(74, 1e-5, sensitivity=37) == pytest.approx(gaussian_epsilon(2, 1e-5))


def test_noise_that_needs_no_budget_costs_none():
    assert gaussian_epsilon(1e6, 0.1) == 0.0


@pytest.mark.case("DP-23")
def test_gaussian_noise_has_the_standard_deviation_and_not_the_variance_that_was_computed():
    released = gaussian_mechanism(5, sensitivity=1, epsilon=0.5, delta=1e-5, rng=rng(4), size=100_000)
    std = analytic_gaussian_std(0.5, 1e-5)
    assert stats.kstest(released, stats.norm(5, std).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(released, stats.norm(5, std**2).cdf).pvalue < FALSE_ALARM


# --- Exponential ----------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=6).flatmap(
        lambda scores: st.tuples(
            st.just(scores), st.lists(st.floats(-1, 1), min_size=len(scores), max_size=len(scores))
        )
    ),
    st.floats(0.01, 5),
)
@settings(deadline=None)
def test_no_choice_is_more_than_e_to_epsilon_times_as_likely_for_a_neighbour(scores_and_moves, epsilon):
    scores, moves = map(np.array, scores_and_moves)
    here = exponential_probabilities(scores, sensitivity=1, epsilon=epsilon)
    there = exponential_probabilities(scores + moves, sensitivity=1, epsilon=epsilon)
    assert here.sum() == pytest.approx(1)
    assert np.all(here <= there * math.exp(epsilon) * (1 + 1e-9))


def test_choices_follow_the_probabilities():
    scores = [3.0, 1.0, 4.0, 1.0, 5.0]
    chosen = exponential_mechanism(scores, sensitivity=2, epsilon=1.5, rng=rng(5), size=100_000)
    weights = np.exp(np.array(scores) * 1.5 / 4)
    expected = 100_000 * weights / weights.sum()
    assert stats.chisquare(np.bincount(chosen, minlength=5), expected).pvalue > FALSE_ALARM
    assert type(exponential_mechanism(scores, sensitivity=2, epsilon=1.5, rng=rng())) is int


def test_huge_scores_neither_overflow_nor_lose_the_best():
    assert exponential_probabilities([1e308, -1e308, 1e308], sensitivity=1, epsilon=1).tolist() == [
        0.5,
        0,
        0.5,
    ]
    assert exponential_probabilities([0, 1], sensitivity=1, epsilon=1e300).tolist() == [0, 1]


# --- Exact integer noise --------------------------------------------------------------------------


def laplace_pmf(scale):
    scale = float(scale)
    return lambda x: math.tanh(0.5 / scale) * math.exp(-abs(x) / scale)


def gaussian_pmf(variance):
    variance = float(variance)
    reach = math.ceil(40 * math.sqrt(variance)) + 2
    total = math.fsum(math.exp(-(x * x) / (2 * variance)) for x in range(-reach, reach + 1))
    return lambda x: math.exp(-(x * x) / (2 * variance)) / total


def goodness_of_fit(draws, pmf):
    """Return the p-value of Pearson's test, cells with an expectation below 20 joined in the tails."""
    n = len(draws)
    reach = 0
    while n * pmf(reach + 1) >= 20:
        reach += 1
    cells = range(-reach, reach + 1)
    observed = [int(np.sum(draws == x)) for x in cells]
    expected = [n * pmf(x) for x in cells]
    for side in (-1, 1):
        observed.append(int(np.sum(side * draws > reach)))
        expected.append((n - n * math.fsum(pmf(x) for x in cells)) / 2)
    # Tails with too small an expectation join the outermost cells.
    if expected[-1] < 5:
        for tail, edge in ((-2, 0), (-1, len(cells) - 1)):
            observed[edge] += observed[tail]
            expected[edge] += expected[tail]
        observed, expected = observed[:-2], expected[:-2]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return float(stats.chi2.sf(statistic, len(observed) - 1))


WIDE = Fraction(10**30 + 1, 3 * 10**29)  # a little over 10/3, beyond 64 bits

SCALES = [1, 2, 10, Fraction(10, 3), 10 / 3, 1 / 0.3, 0.5, 0.25, Fraction(1, 3), 37.5, WIDE]
VARIANCES = [0.09, 0.25, Fraction(1, 3), 1, 2, 4.5, 100, Fraction(10**30 + 1, 10**29)]


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_discrete_laplace_draws_have_the_exact_distribution(scale):
    draws = discrete_laplace(scale=scale, rng=rng(6), size=100_000)
    assert goodness_of_fit(draws, laplace_pmf(scale)) > FALSE_ALARM


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_discrete_gaussian_draws_have_the_exact_distribution(variance):
    draws = discrete_gaussian(variance=variance, rng=rng(7), size=50_000)
    assert goodness_of_fit(draws, gaussian_pmf(variance)) > FALSE_ALARM


@pytest.mark.parametrize("scale", [1, 2, Fraction(10, 3)])
def test_a_rounded_continuous_laplace_fails_the_test_that_the_exact_sampler_passes(scale):
    rounded = np.rint(rng(6).laplace(0, float(scale), 400_000)).astype(int)
    exact = discrete_laplace(scale=scale, rng=rng(6), size=400_000)
    assert goodness_of_fit(exact, laplace_pmf(scale)) > FALSE_ALARM
    assert goodness_of_fit(rounded, laplace_pmf(scale)) < FALSE_ALARM


@pytest.mark.parametrize("variance", [0.25, 1])
def test_a_rounded_continuous_gaussian_fails_the_test_that_the_exact_sampler_passes(variance):
    rounded = np.rint(rng(7).normal(0, math.sqrt(variance), 50_000)).astype(int)
    assert goodness_of_fit(rounded, gaussian_pmf(variance)) < FALSE_ALARM


def test_two_zeros_or_a_scale_two_percent_off_fail_the_test_too():
    generator = rng(6)
    geometric = generator.geometric(1 - math.exp(-1 / 2), 100_000) - 1
    with_two_zeros = geometric * generator.choice([-1, 1], 100_000)
    assert goodness_of_fit(with_two_zeros, laplace_pmf(2)) < FALSE_ALARM
    off = discrete_laplace(scale=Fraction(204, 100), rng=rng(6), size=300_000)
    assert goodness_of_fit(off, laplace_pmf(2)) < FALSE_ALARM


@pytest.mark.parametrize(
    ("epsilon", "at_zero", "mean_error", "variance"),
    [(0.1, 0.04996, 9.98335, 199.833), (1, 0.46212, 0.85092, 1.84135), (10, 0.99991, 9.1e-5, 9.1e-5)],
)
def test_discrete_laplace_moments(epsilon, at_zero, mean_error, variance):
    alpha = math.exp(-epsilon)
    assert math.tanh(epsilon / 2) == pytest.approx(at_zero, abs=5.1e-6)
    assert 1 / math.sinh(epsilon) == pytest.approx(mean_error, abs=5.1e-6)
    assert 2 * alpha / (1 - alpha) ** 2 == pytest.approx(variance, rel=3e-3)
    n = 200_000
    draws = discrete_laplace_mechanism(0, epsilon=epsilon, rng=rng(8), size=n)
    pmf = laplace_pmf(1 / epsilon)
    fourth = math.fsum(2 * x**4 * pmf(x) for x in range(1, math.ceil(100 / epsilon)))
    true_mean, true_variance = 1 / math.sinh(epsilon), 2 * alpha / (1 - alpha) ** 2
    assert within(np.mean(draws == 0), pmf(0), math.sqrt(pmf(0) * (1 - pmf(0)) / n))
    assert within(np.mean(np.abs(draws)), true_mean, math.sqrt((true_variance - true_mean**2) / n))
    assert within(np.mean(draws**2), true_variance, math.sqrt((fourth - true_variance**2) / n))


@pytest.mark.parametrize(
    ("parameter", "variance"), [(0.09, 0.0076725), (0.25, 0.2150127), (1, 0.99999979), (4, 4.0)]
)
def test_discrete_gaussian_variance(parameter, variance):
    pmf = gaussian_pmf(parameter)
    second = math.fsum(2 * x**2 * pmf(x) for x in range(1, 200))
    fourth = math.fsum(2 * x**4 * pmf(x) for x in range(1, 200))
    assert second == pytest.approx(variance, rel=1e-5)
    draws = discrete_gaussian(variance=parameter, rng=rng(9), size=100_000)
    assert within(np.mean(draws**2), second, math.sqrt((fourth - second**2) / len(draws)))


class IntegersOnly(np.random.Generator):
    """A generator that draws uniform integers and nothing else."""


def _refuse(self, *args, **kwargs):
    raise AssertionError("a float was drawn")


for _name in dir(np.random.Generator):
    if not _name.startswith("_") and _name not in ("integers", "bytes", "bit_generator"):
        setattr(IntegersOnly, _name, _refuse)


@pytest.mark.case("DP-21")
@pytest.mark.parametrize("parameter", [1, 0.3, Fraction(7, 3), WIDE], ids=str)
def test_the_exact_samplers_draw_integers_only(parameter):
    generator = IntegersOnly(np.random.PCG64(0))
    with pytest.raises(AssertionError, match="a float was drawn"):
        generator.random()
    discrete_laplace(scale=parameter, rng=generator, size=50)
    discrete_gaussian(variance=parameter, rng=generator, size=50)
    noisy_sum([1.5, 2.5], lower=0, upper=3, epsilon=parameter, rng=generator)


@pytest.mark.case("DP-21")
@pytest.mark.parametrize(
    "function",
    [
        mechanisms._discrete_laplace,
        mechanisms._discrete_gaussian,
        mechanisms._bernoulli_exp,
        mechanisms._successes_of_exp_minus_one,
        mechanisms._uniform_below,
        mechanisms._until_accepted,
    ],
)
def test_no_decision_of_the_exact_samplers_involves_a_float(function):
    for node in ast.walk(ast.parse(inspect.getsource(function))):
        assert not isinstance(node, ast.Div)
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            assert called not in {"float", "exp", "log", "log1p", "expm1", "sqrt", "random", "true_divide"}


@pytest.mark.case("DP-21")
def test_integer_mechanisms_release_integers():
    for count in (412, np.int64(412), np.uint8(12)):
        assert type(discrete_laplace_mechanism(count, epsilon=1.0, rng=rng())) is int
        assert type(discrete_gaussian_mechanism(count, variance=2.0, rng=rng())) is int
    assert type(discrete_laplace(scale=1.5, rng=rng())) is int
    assert type(discrete_gaussian(variance=1.5, rng=rng())) is int
    for released in (
        discrete_laplace(scale=1.5, rng=rng(), size=7),
        discrete_gaussian(variance=1.5, rng=rng(), size=7),
        discrete_laplace(scale=WIDE, rng=rng(), size=7),
        discrete_laplace_mechanism(412, epsilon=1, rng=rng(), size=7),
        discrete_gaussian_mechanism([1, 2], variance=1, rng=rng()),
    ):
        assert released.dtype == np.int64


def test_the_integer_noise_has_scale_sensitivity_over_epsilon():
    noise = discrete_laplace_mechanism(0, sensitivity=3, epsilon=2, rng=rng(26), size=100_000)
    assert goodness_of_fit(noise, laplace_pmf(1.5)) > FALSE_ALARM
    assert goodness_of_fit(noise, laplace_pmf(0.5)) < FALSE_ALARM
    counts = discrete_laplace_mechanism(np.full((50, 40), 7), sensitivity=3, epsilon=2, rng=rng(26))
    assert counts.shape == (50, 40)
    assert goodness_of_fit(counts.ravel() - 7, laplace_pmf(1.5)) > FALSE_ALARM


@pytest.mark.case("DP-21")
def test_the_noise_does_not_depend_on_the_count():
    # Then the releases of neighbours differ by exactly 1, whichever they are, and no low
    # bit can tell them apart; of the naive sampler this is false.
    here = discrete_laplace_mechanism(0, epsilon=0.1, rng=rng(10), size=2000)
    there = discrete_laplace_mechanism(1, epsilon=0.1, rng=rng(10), size=2000)
    assert np.all(there - here == 1)
    naive_here = laplace_mechanism(0, sensitivity=1, epsilon=0.1, rng=rng(10), size=2000)
    naive_there = laplace_mechanism(1, sensitivity=1, epsilon=0.1, rng=rng(10), size=2000)
    assert not np.all(naive_there - naive_here == 1)


def test_counts_that_are_not_integers_are_refused():
    for count in (1.0, True, "1", None):
        with pytest.raises(TypeError, match="count must"):
            discrete_laplace_mechanism(count, epsilon=1, rng=rng())
    with pytest.raises(TypeError, match="count must"):
        discrete_laplace_mechanism([1.0, 2.0], epsilon=1, rng=rng())


def test_single_counts_may_exceed_64_bits_and_arrays_are_kept_from_wrapping():
    huge = 10**30
    assert abs(discrete_laplace_mechanism(huge, epsilon=1, rng=rng()) - huge) < 100
    assert discrete_laplace(scale=10**25, rng=rng(1)) != 0
    with pytest.raises(ValueError, match="count must be"):
        discrete_laplace_mechanism([2**63 - 1], epsilon=1, rng=rng())
    with pytest.raises(ValueError, match=r"scale must be <= 2\*\*53"):
        discrete_laplace(scale=2**54, rng=rng(), size=2)


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=10**9), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_the_same_generator_gives_the_same_integers(scale, seed):
    first = discrete_laplace(scale=scale, rng=rng(seed), size=9)
    again = discrete_laplace(scale=scale, rng=rng(seed), size=9)
    assert first.tolist() == again.tolist()


def test_a_float_scale_is_the_fraction_that_it_is():
    for scale in (0.1, 10 / 3, 1e-300, 5e-324):
        as_float = discrete_laplace(scale=scale, rng=rng(11), size=50)
        as_fraction = discrete_laplace(scale=Fraction(scale), rng=rng(11), size=50)
        assert as_float.tolist() == as_fraction.tolist()


@pytest.mark.parametrize("scale", [0, -1, 0.0, math.nan, math.inf, Fraction(-1, 2)])
def test_a_scale_that_is_not_positive_and_finite_is_refused(scale):
    with pytest.raises(ValueError, match=r"scale must be .*> 0"):
        discrete_laplace(scale=scale, rng=rng())
    with pytest.raises(ValueError, match=r"variance must be .*> 0"):
        discrete_gaussian(variance=scale, rng=rng())


@pytest.mark.parametrize("n", [2**63, 2**64 + 1, 3 * 2**70 + 1, 10**25])
def test_uniform_integers_beyond_64_bits_are_uniform(n):
    draws = mechanisms._uniform_below(n, 20_000, rng(12))
    cells = np.array([int(x) * 24 // n for x in draws])
    assert min(draws) >= 0
    assert max(draws) < n
    assert stats.chisquare(np.bincount(cells, minlength=24)).pvalue > FALSE_ALARM
    low_bits = np.array([int(x) % 8 for x in draws])
    assert stats.chisquare(np.bincount(low_bits, minlength=8)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("scale", [1, 2, 10, Fraction(10, 3), 10 / 3])
def test_a_hundred_thousand_draws_take_at_most_seconds(scale):
    start = time.process_time()
    discrete_laplace(scale=scale, rng=rng(), size=100_000)
    assert time.process_time() - start < 5


@pytest.mark.case("DP-19")
def test_the_documentation_says_plainly_that_the_generator_is_not_cryptographic():
    for documented in (mechanisms, discrete_laplace, discrete_gaussian):
        assert "not cryptographic" in " ".join(inspect.getdoc(documented).split())


# --- Sums and means -------------------------------------------------------------------------------

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.case("DP-24")
def test_the_order_of_the_values_does_not_matter():
    values = [2.0**53, 1.0, 1.0, -(2.0**53), 1.0]
    naive = {sum(order) for order in itertools.permutations(values)}
    assert len(naive) > 1
    releases = {
        noisy_sum(order, lower=-(2.0**53), upper=2.0**53, epsilon=1e12, rng=rng(13))
        for order in itertools.permutations(values)
    }
    assert len(releases) == 1


@pytest.mark.case("DP-24")
@given(st.lists(finite, min_size=1, max_size=20), st.randoms(use_true_random=False), st.integers(0, 99))
@settings(deadline=None, max_examples=50)
def test_any_values_in_any_order_release_the_same_sum(values, shuffler, seed):
    shuffled = list(values)
    shuffler.shuffle(shuffled)
    first, second = (
        noisy_sum(order, lower=-3.7, upper=1.9, epsilon=0.3, rng=rng(seed)) for order in (values, shuffled)
    )
    assert first == second


@pytest.mark.case("DP-24")
@given(
    st.lists(finite, max_size=20),
    st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf])),
    st.integers(-100, 100),
    st.integers(1, 100),
)
@settings(deadline=None, max_examples=100)
def test_one_more_person_moves_the_sum_by_their_clamped_value_and_no_more(values, person, lower, width):
    upper = lower + width

    # The noise depends on the generator alone, so it cancels; a huge ε keeps the doubles exact.
    def release(column):
        return Fraction(
            noisy_sum(np.array(column, dtype=float), lower=lower, upper=upper, epsilon=2**80, rng=rng(1))
        )

    moved = release([*values, person]) - release(values)
    clamped = min(max(0.0 if math.isnan(person) else person, lower), upper)
    assert abs(moved - Fraction(clamped)) <= Fraction(1, 2**40)
    assert abs(moved) <= max(abs(lower), abs(upper)) + Fraction(1, 2**40)


def test_a_sum_has_discrete_laplace_noise_of_scale_largest_bound_over_epsilon():
    generator = rng(14)
    errors = np.array(
        [noisy_sum([1.0, 2.5], lower=-5, upper=3, epsilon=2, rng=generator) - 3.5 for _ in range(4000)]
    )
    assert stats.kstest(errors, stats.laplace(scale=2.5).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(errors, stats.laplace(scale=1.5).cdf).pvalue < FALSE_ALARM


@pytest.mark.case("DP-23")
@pytest.mark.parametrize("seed", range(5))
def test_a_mean_is_a_noisy_sum_over_a_noisy_count(seed):
    values = rng(15).uniform(0, 10, 500)
    generator = rng(seed)
    total = noisy_sum(values, lower=0, upper=10, epsilon=Fraction(1, 20), rng=generator)
    count = discrete_laplace_mechanism(500, epsilon=Fraction(1, 20), rng=generator)
    mean = noisy_mean(values, lower=0, upper=10, epsilon=Fraction(1, 10), rng=rng(seed))
    assert mean == total / count
    assert count != 500


@pytest.mark.case("DP-23")
def test_a_mean_does_not_pretend_to_know_how_many_people_there_are():
    # n times its error is the noise of the sum less 0.9 times the noise of the count.
    n, value, generator = 10_000, 0.9, rng(17)
    column = np.full(n, value)
    errors = n * np.array(
        [noisy_mean(column, lower=-1, upper=1, epsilon=1, rng=generator) - value for _ in range(2000)]
    )
    of_the_sum = rng(24).laplace(0, 2, 100_000)
    of_the_count = rng(25).geometric(1 - math.exp(-1 / 2), (2, 100_000))
    both = of_the_sum - value * (of_the_count[0] - of_the_count[1])
    assert stats.ks_2samp(errors, both).pvalue > FALSE_ALARM
    assert stats.ks_2samp(errors, of_the_sum).pvalue < FALSE_ALARM


@pytest.mark.case("DP-23")
@pytest.mark.parametrize(
    "values",
    [[], [math.nan], [math.inf, -math.inf], [0.0] * 1491, [0.0] * 1492, [1e308] * 3, [True, False], [5e-324]],
    ids=lambda v: f"{len(v)} values, {v[:1]}",
)
def test_no_table_makes_a_sum_or_a_mean_fail(values):
    column = np.array(values, dtype=float) if not values or isinstance(values[0], float) else values
    assert math.isfinite(noisy_sum(column, lower=-1, upper=2, epsilon=0.5, rng=rng(18)))
    assert -1 <= noisy_mean(column, lower=-1, upper=2, epsilon=0.5, rng=rng(18)) <= 2


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_beyond_the_largest_double_is_infinite_and_does_not_fail(sign):
    values = np.full(3, sign * 1.7e308)
    bounds = {"lower": min(0.0, values[0]), "upper": max(0.0, values[0]), "epsilon": 1e9}
    assert noisy_sum(values, **bounds, rng=rng(19)) == sign * math.inf
    assert noisy_mean(values, **bounds, rng=rng(19)) == values[0]


def test_a_mean_is_accurate_for_many_people():
    ages = rng(19).integers(17, 91, 30_000)
    mean = noisy_mean(ages, lower=17, upper=90, epsilon=1, rng=rng(20))
    # Sum: scale 180; count: scale 2, worth about 54 each. 40 scales are exceeded with e^-40.
    assert abs(mean - ages.mean()) < 40 * (180 + 2 * 54) / 30_000


def test_bounds_near_the_ends_of_the_number_line_work():
    for bound in (5e-324, 1e-310, 1e300):
        released = noisy_sum([bound, bound], lower=0, upper=bound, epsilon=1e6, rng=rng())
        assert released == pytest.approx(2 * bound, rel=1e-3)


@pytest.mark.parametrize(("lower", "upper"), [(1, 1), (2, 1), (math.nan, 1), (0, math.inf)])
def test_bounds_that_are_not_an_interval_are_refused(lower, upper):
    with pytest.raises(ValueError, match=r"(lower|upper) must be"):
        noisy_sum([1.0], lower=lower, upper=upper, epsilon=1, rng=rng())


def test_a_table_is_not_a_column():
    with pytest.raises(TypeError, match="values must be one column of real numbers"):
        noisy_sum([[1.0]], lower=0, upper=1, epsilon=1, rng=rng())


# --- RAPPOR ---------------------------------------------------------------------------------------

COINS = {"permanent_probability": 0.5, "zero_probability": 0.5, "one_probability": 0.75}


def test_rappor_budgets():
    forever, once = rappor_epsilon(**COINS, n_hashes=2)
    assert forever == pytest.approx(4 * math.log(3), rel=1e-14)
    assert once == pytest.approx(2 * math.log(0.6875 * 0.4375 / (0.5625 * 0.3125)), rel=1e-14)
    assert (round(forever, 4), round(once, 4)) == (4.3944, 1.0743)


def test_rappor_at_its_extremes():
    no_blur = rappor_epsilon(permanent_probability=0, zero_probability=0.5, one_probability=0.75)
    assert no_blur == (math.inf, pytest.approx(2 * math.log(3)))
    all_blur = rappor_epsilon(permanent_probability=1, zero_probability=0.5, one_probability=0.75)
    assert all_blur == (0.0, 0.0)
    alike = rappor_epsilon(permanent_probability=0.5, zero_probability=0.5, one_probability=0.5)
    assert alike[1] == 0.0
    certain = rappor_epsilon(permanent_probability=0, zero_probability=0, one_probability=1)
    assert certain == (math.inf, math.inf)
    swapped = rappor_epsilon(permanent_probability=0.5, zero_probability=0.75, one_probability=0.5)
    assert swapped[1] == pytest.approx(rappor_epsilon(**COINS)[1])


def test_rappor_reports_ones_as_often_as_its_coins_say_and_the_counts_come_back():
    n = 100_000
    bits = np.zeros((n, 2), dtype=bool)
    bits[: 3 * n // 10, 0] = True
    reports = rappor_report(bits, **COINS, rng=rng(21))
    for held, probability in ((bits[:, 0], 0.6875), (~bits[:, 1], 0.5625)):
        column = reports[held, 0 if probability > 0.6 else 1]
        assert within(column.mean(), probability, math.sqrt(probability * (1 - probability) / len(column)))
    estimate = rappor_estimate(reports, **COINS)
    sd = math.sqrt(n * 0.25) / 0.125  # at most
    assert within(estimate.count[0], 0.3 * n, sd)
    assert within(estimate.count[1], 0, sd)
    assert np.all(estimate.standard_error <= sd)
    assert estimate.n == n


def test_averaging_reports_reveals_the_permanent_bits_and_nothing_behind_them():
    bits = np.zeros(200, dtype=bool)
    permanent = rappor_permanent(bits, permanent_probability=0.5, rng=rng(22))
    generator = rng(23)
    reports = [
        rappor_instantaneous(permanent, zero_probability=0.5, one_probability=0.75, rng=generator)
        for _ in range(2000)
    ]
    assert np.array_equal(np.mean(reports, axis=0) > 0.625, permanent)
    assert within(permanent.sum(), 50, math.sqrt(200 * 0.25 * 0.75))


def test_rappor_that_reports_zeros_and_ones_alike_has_nothing_to_estimate():
    with pytest.raises(ValueError, match="nothing to estimate"):
        rappor_estimate([[True]], permanent_probability=1, zero_probability=0.5, one_probability=0.75)


# --- Attackers ------------------------------------------------------------------------------------


def test_attacker_figures():
    ceiling = [best_attacker_accuracy(epsilon) for epsilon in (0.1, 1, 10)]
    threshold = [laplace_attacker_accuracy(epsilon) for epsilon in (0.1, 1, 10)]
    assert np.round(ceiling, 5).tolist() == [0.52498, 0.73106, 0.99995]
    assert np.round(threshold, 5).tolist() == [0.52439, 0.69673, 0.99663]


@given(st.floats(0, 700), st.floats(0, 1))
@settings(deadline=None)
def test_the_ceiling_is_the_formula_and_a_probability(epsilon, delta):
    accuracy = best_attacker_accuracy(epsilon, delta)
    formula = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    assert accuracy == pytest.approx(formula, rel=1e-12)
    assert 0.5 <= accuracy <= 1 + 1e-12
    assert laplace_attacker_accuracy(epsilon) <= accuracy + 1e-12


def test_huge_budgets_do_not_overflow():
    assert best_attacker_accuracy(1e308) == 1.0
    assert laplace_attacker_accuracy(1e308) == 1.0


@pytest.mark.parametrize("epsilon", [0.1, 1, 4])
def test_the_integer_mechanism_attains_the_ceiling_with_less_error_than_the_continuous_one(epsilon):
    pmf = laplace_pmf(1 / epsilon)
    reach = math.ceil(50 / epsilon)
    distance = math.fsum(abs(pmf(x) - pmf(x - 1)) for x in range(-reach, reach)) / 2
    assert (1 + distance) / 2 == pytest.approx(best_attacker_accuracy(epsilon), abs=1e-12)
    assert 1 / math.sinh(epsilon) < 1 / epsilon


def test_randomized_response_attains_the_ceiling():
    # Two fair coins: a yes from 3/4 of one kind and 1/4 of the other.
    assert best_attacker_accuracy(randomized_response_epsilon()) == pytest.approx(0.75)


def test_beliefs_move_by_bayes():
    low, high = posterior_probability(0.3, math.log(3))
    assert high == pytest.approx(0.3 * 0.75 / (0.3 * 0.75 + 0.7 * 0.25))  # after a yes
    assert low == pytest.approx(0.3 * 0.25 / (0.3 * 0.25 + 0.7 * 0.75))  # after a no
    assert round(high, 2) == 0.56
    lows, highs = posterior_probability([0.0, 0.5, 1.0], 2.0)
    assert lows.tolist() == [0, pytest.approx(1 - best_attacker_accuracy(2)), 1]
    assert highs.tolist() == [0, pytest.approx(best_attacker_accuracy(2)), 1]


# --- The budget -----------------------------------------------------------------------------------


def test_the_overspending_query_is_refused_and_the_ledger_stays_as_it_was():
    budget = PrivacyBudget(1.0)
    budget.spend(0.4, label="first")
    budget.spend(0.4, label="second")
    ledger = budget.ledger
    with pytest.raises(BudgetExceeded, match=r"refused third for epsilon 0.3: only 0.2 of 1.0 is left"):
        budget.spend(0.3, label="third")
    assert budget.ledger == ledger == (Expense(0.4, 0.0, "first"), Expense(0.4, 0.0, "second"))
    assert (budget.spent, budget.remaining) == (0.8, 0.2)
    budget.spend(0.2)
    assert budget.remaining == 0.0


def test_nothing_is_answered_when_the_budget_refuses():
    budget = PrivacyBudget(1.0)
    answered = []
    assert budget.run(1.0, lambda: answered.append("first") or 7) == 7
    with pytest.raises(BudgetExceeded):
        budget.run(0.1, lambda: answered.append("second"))
    with pytest.raises(BudgetExceeded):
        budget.run_in_parallel(0.1, answered.append, labels=["a"], groups=["a"])
    assert answered == ["first"]


def test_a_query_that_fails_stays_charged():
    budget = PrivacyBudget(1.0)
    with pytest.raises(ZeroDivisionError):
        budget.run(0.6, lambda: 1 // 0)
    assert budget.spent == 0.6


@pytest.mark.parametrize("smallest", [5e-324, 1e-300, 2**-60])
def test_nothing_however_small_fits_after_the_budget_is_exhausted(smallest):
    budget = PrivacyBudget(1.0, delta=1e-5)
    budget.spend(1.0, 1e-5)
    with pytest.raises(BudgetExceeded):
        budget.spend(smallest)
    other = PrivacyBudget(1.0, delta=1e-5)
    other.spend(0.5, 1e-5)
    with pytest.raises(BudgetExceeded):
        other.spend(0.1, smallest)
    assert other.spent == 0.5


@pytest.mark.parametrize("epsilon", BAD_BUDGETS)
def test_a_budget_survives_numbers_that_are_no_epsilon(epsilon):
    with pytest.raises(ValueError, match="epsilon must be"):
        PrivacyBudget(epsilon)
    budget = PrivacyBudget(1.0)
    with pytest.raises(ValueError, match="epsilon must be"):
        budget.spend(epsilon)
    with pytest.raises(ValueError, match="epsilon must be"):
        budget.run(epsilon, lambda: pytest.fail("answered"))
    assert budget.ledger == ()
    assert budget.remaining == 1.0


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan, math.inf])
def test_a_budget_survives_numbers_that_are_no_delta(delta):
    with pytest.raises(ValueError, match="delta must be"):
        PrivacyBudget(1.0, delta)
    budget = PrivacyBudget(1.0, 0.5)
    with pytest.raises(ValueError, match="delta must be"):
        budget.spend(0.1, delta)
    assert budget.ledger == ()


def test_a_budget_without_slack_refuses_any():
    with pytest.raises(BudgetExceeded, match=r"for delta 1e-12: only 0.0 of 0.0 is left"):
        PrivacyBudget(1.0).spend(0.1, 1e-12)


def test_ten_tenths_fill_a_budget_of_one_and_three_a_budget_of_three_tenths():
    budget = PrivacyBudget(1.0)
    for _ in range(10):
        budget.spend(0.1)
    assert (budget.spent, budget.remaining) == (1.0, 0.0)
    with pytest.raises(BudgetExceeded):
        budget.spend(5e-324)
    small = PrivacyBudget(0.3)
    small.spend(0.1)
    small.spend(0.2)  # as floats, 0.1 + 0.2 > 0.3
    assert small.remaining == 0.0


def test_fractions_are_taken_as_they_are():
    budget = PrivacyBudget(1)
    for _ in range(3):
        budget.spend(Fraction(1, 3))
    assert budget.remaining == 0.0


@given(st.floats(1e-9, 1e9), st.lists(st.floats(1e-9, 1e9), max_size=8))
@settings(deadline=None)
def test_no_sequence_of_expenses_exceeds_the_budget_and_the_rest_can_be_spent(total, expenses):
    budget = PrivacyBudget(total)
    accepted = Fraction(0)
    for epsilon in expenses:
        fits = accepted + Fraction(repr(epsilon)) <= Fraction(repr(total))
        if fits:
            budget.spend(epsilon)
            accepted += Fraction(repr(epsilon))
        else:
            with pytest.raises(BudgetExceeded):
                budget.spend(epsilon)
    assert Fraction(repr(budget.spent)) >= accepted
    if budget.remaining > 0:
        budget.spend(budget.remaining)
    assert Fraction(repr(budget.remaining)) <= Fraction(repr(total)) * Fraction(1, 2**50)


@pytest.mark.case("DP-23")
def test_the_ledger_loses_no_expense():
    budget = PrivacyBudget(100.0, 0.1)
    for i in range(1, 51):
        budget.spend(i / 50, 1e-5 * i, f"query {i}")
    assert [entry.label for entry in budget.ledger] == [f"query {i}" for i in range(1, 51)]
    assert math.fsum(entry.epsilon for entry in budget.ledger) == pytest.approx(budget.spent)
    assert math.fsum(entry.delta for entry in budget.ledger) == pytest.approx(budget.spent_delta)
    with pytest.raises(AttributeError):
        budget.epsilon = 1000.0
    with pytest.raises(AttributeError):
        budget.ledger[0].epsilon = 0.0


def spend_from_many_threads(budget, n_threads, n_each, epsilon):
    start = threading.Barrier(n_threads)

    def customer(_):
        start.wait()
        served = 0
        for _ in range(n_each):
            with contextlib.suppress(BudgetExceeded):
                budget.spend(epsilon)
                served += 1
        return served

    with ThreadPoolExecutor(n_threads) as pool:
        return sum(pool.map(customer, range(n_threads)))


def test_many_threads_together_spend_the_budget_exactly():
    budget = PrivacyBudget(1.0)
    assert spend_from_many_threads(budget, n_threads=32, n_each=40, epsilon=0.001) == 1000
    assert budget.remaining == 0.0
    assert len(budget.ledger) == 1000


class PausingFraction(Fraction):
    """A fraction that, once compared, waits until eight threads have compared theirs."""

    meeting: threading.Barrier
    patience: float

    def __add__(self, other):
        return PausingFraction(Fraction.__add__(self, other))

    __radd__ = __add__

    def __gt__(self, other):
        result = Fraction.__gt__(self, other)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.meeting.wait(self.patience)
        return result


@pytest.mark.parametrize("locked", [True, False])
def test_checking_and_charging_are_one_step(locked):
    budget = PrivacyBudget(1.0)
    if not locked:
        budget._lock = contextlib.nullcontext()
    PausingFraction.meeting = threading.Barrier(8)
    PausingFraction.patience = 0.3 if locked else 30.0
    served = spend_from_many_threads(budget, n_threads=8, n_each=1, epsilon=PausingFraction(1, 2))
    # Without the lock all eight look before any of them pays, which shows that the test can fail.
    assert served == (2 if locked else 8)


def test_disjoint_groups_are_charged_once():
    budget = PrivacyBudget(1.0)
    labels = ["a", "b", "a", "c", "z", "a"]
    seen = budget.run_in_parallel(0.7, list, labels=labels, groups=("a", "b", "empty"), label="by region")
    assert seen == {"a": [0, 2, 5], "b": [1], "empty": []}
    assert budget.spent == 0.7
    assert budget.ledger == (Expense(0.7, 0.0, "by region"),)


def test_groups_listed_twice_are_not_disjoint():
    budget = PrivacyBudget(1.0)
    with pytest.raises(ValueError, match="groups must be distinct"):
        budget.run_in_parallel(0.7, list, labels=["a"], groups=["a", "a"])
    assert budget.spent == 0.0


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_budget_cannot_be_doubled_by_copying_it(duplicate):
    with pytest.raises(TypeError, match="cannot be copied"):
        duplicate(PrivacyBudget(1.0))


def test_a_budget_shows_itself():
    assert (
        repr(PrivacyBudget(2, 1e-5)) == "PrivacyBudget(epsilon=2.0, delta=1e-05, spent=0.0, spent_delta=0.0)"
    )
