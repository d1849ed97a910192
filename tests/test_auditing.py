"""The low-bit attack is exhaustive, and the audits are valid and strong enough to catch half the noise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from thousand_fingers.auditing import (
    SABOTAGES,
    Audit,
    _laplace_of_uniform,
    attack_limit,
    audit_epsilon,
    audit_noise,
    audit_sampler,
    audit_sensitivity,
    draw_batches,
    epsilon_lower_bound,
    gaussian_audit,
    impossible_under,
    one_run_epsilon,
    private_step,
)
from thousand_fingers.dpsgd import private_gradient
from thousand_fingers.intervals import clopper_pearson
from thousand_fingers.mechanisms import (
    analytic_gaussian_std,
    discrete_laplace_mechanism,
    gaussian_epsilon,
    laplace_mechanism,
)

FALSE_ALARM = 1e-6  # of each statistical check below
LAST_K = 2**53 - 1


# ---------------------------------------------------------------- low bits


def test_chosen_uniforms_drive_the_installed_sampler():
    """The replay returns what Generator.laplace returned, when given the uniforms that it used."""
    for count, scale in ((0, 1.0), (412, 10.0), (-7.3, 0.1)):
        uniforms = np.random.default_rng(3).random(5000)
        k = (uniforms * 2**53).astype(np.int64)
        drawn = np.random.default_rng(3).laplace(count, scale, size=5000)
        np.testing.assert_array_equal(_laplace_of_uniform(k, count, scale), drawn)


def test_sampler_output_never_decreases_with_the_uniform():
    """The premise of the bisection, tried where it is tightest: V log V extreme, one half, both ends."""
    places = [1, 2**20, int(LAST_K / 2 / math.e), 2**52, int(LAST_K * (1 - 1 / 2 / math.e)), LAST_K - 4000]
    random = np.random.default_rng(0).integers(1, LAST_K - 4000, size=20)
    for start in [*places, *random]:
        k = np.clip(np.arange(start - 2000, start + 4000), 1, LAST_K)
        for count, scale in ((0, 1.0), (11, 10.0), (411, 0.1)):
            assert (np.diff(_laplace_of_uniform(k, count, scale)) >= 0).all()


def _laplace_by_formula(k: int, count: float) -> float:
    """Scale 1, where a fused multiply-add would change nothing."""
    u = k / 2**53
    return count - math.log(2.0 - u - u) if u >= 0.5 else count + math.log(u + u)


@pytest.mark.case("DP-21")
def test_bisection_agrees_with_a_search_of_every_uniform_in_the_neighbourhood():
    """Oracle: the sampler's formula in plain Python, for 1,201 uniforms around the analytical inverse."""
    rng = np.random.default_rng(5)
    outputs = rng.laplace(1, 1.0, size=150)
    for count in (0, 1, 2):
        expected = []
        for x in outputs:
            z = float(x) - count
            u = math.exp(z) / 2 if z < 0 else 1 - math.exp(-z) / 2
            near = range(max(1, int(u * 2**53) - 600), min(LAST_K, int(u * 2**53) + 600) + 1)
            expected.append(all(_laplace_by_formula(k, count) != x for k in near))
        np.testing.assert_array_equal(impossible_under(outputs, count=count, scale=1.0), expected)
        assert np.mean(expected) == 0 if count == 1 else 0.4 < np.mean(expected) < 1


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(-(10**6), 10**6),
    scale=st.floats(1e-3, 1e4),
    seed=st.integers(0, 2**32),
)
@example(count=0, scale=1.0, seed=0)
def test_every_release_is_possible_under_its_own_count(count, scale, seed):
    outputs = np.random.default_rng(seed).laplace(count, scale, size=20)
    assert not impossible_under(outputs, count=count, scale=scale).any()


def test_first_and_last_uniform_are_reachable_and_the_doubles_beyond_them_are_not():
    ends = _laplace_of_uniform(np.array([1, LAST_K]), 0, 1.0)
    assert ends[0] == math.log(2**-52)
    assert not impossible_under(ends, count=0, scale=1.0).any()
    beyond = np.array([np.nextafter(ends[0], -np.inf), np.nextafter(ends[1], np.inf), 1e300, -1e300])
    assert impossible_under(beyond, count=0, scale=1.0).all()


# Share of releases impossible under the neighbour: 1,500 draws a side, reported to 0.1 %.
MEASURED_ELSEWHERE = {
    (0, 1, 1.0): 0.806,
    (0, 1, 10.0): 0.803,
    (0, 1, 0.1): 0.999,
    (1, 2, 1.0): 0.602,
    (1, 2, 10.0): 0.786,
    (1, 2, 0.1): 0.999,
    (10, 11, 1.0): 0.113,
    (10, 11, 10.0): 0.574,
    (10, 11, 0.1): 0.987,
    (411, 412, 1.0): 0.006,
    (411, 412, 10.0): 0.024,
    (411, 412, 0.1): 0.789,
}


@pytest.mark.case("DP-21")
@pytest.mark.parametrize(("count", "neighbour", "scale"), MEASURED_ELSEWHERE)
def test_naive_laplace_gives_the_count_away_as_often_as_measured_elsewhere(count, neighbour, scale):
    rng = np.random.default_rng(21)
    n = 2000
    here = rng.laplace(count, scale, size=n)
    there = rng.laplace(neighbour, scale, size=n)
    certain = np.concatenate(
        [
            impossible_under(here, count=neighbour, scale=scale),
            impossible_under(there, count=count, scale=scale),
        ]
    ).sum()
    published = MEASURED_ELSEWHERE[count, neighbour, scale]
    # Two binomial proportions of 4,000 and 3,000 releases: exact test of equality.
    p_value = stats.fisher_exact(
        [[certain, 2 * n - certain], [round(published * 3000), 3000 - round(published * 3000)]]
    ).pvalue
    assert p_value > FALSE_ALARM
    assert not impossible_under(here, count=count, scale=scale).any()
    assert not impossible_under(there, count=neighbour, scale=scale).any()


@pytest.mark.case("DP-21")
def test_integer_mechanism_gives_nothing_away():
    rng = np.random.default_rng(0)
    released = discrete_laplace_mechanism(0, epsilon=1.0, rng=rng, size=2000)
    assert np.asarray(released).dtype == np.int64
    assert not impossible_under(released, count=1, scale=1.0).any()
    # Not a convention: whatever is frequent under one count occurs under the other.
    other = discrete_laplace_mechanism(1, epsilon=1.0, rng=rng, size=2000)
    values, times = np.unique(released, return_counts=True)
    frequent = values[times >= 60]  # expected >= 60/e = 22 times: absent with probability < e^-22 each
    assert frequent.size >= 5
    assert np.isin(frequent, other).all()


def test_impossible_under_keeps_shapes_and_refuses_what_lost_its_low_bits():
    assert impossible_under(np.zeros((2, 3)), count=0, scale=1.0).shape == (2, 3)
    assert impossible_under([], count=0, scale=1.0).shape == (0,)
    assert not impossible_under(0.0, count=0, scale=1.0)  # U = 1/2 gives exactly the count
    with pytest.raises(TypeError, match="outputs must hold float64 numbers or integers, got dtype float32"):
        impossible_under(np.zeros(3, dtype=np.float32), count=0, scale=1.0)
    with pytest.raises(ValueError, match="scale must be > 0, got 0"):
        impossible_under([1.0], count=0, scale=0)
    with pytest.raises(ValueError, match="outputs must be finite"):
        impossible_under([math.nan], count=0, scale=1.0)
    with pytest.raises(ValueError, match="count must be finite"):
        impossible_under([1.0], count=math.inf, scale=1.0)


# ---------------------------------------------------------------- one threshold


def test_epsilon_lower_bound_by_hand():
    """No error in n trials: the upper limit of each rate at level 0.975 is 1 - 0.025^(1/n)."""
    limit = 1 - 0.025 ** (1 / 100)
    assert epsilon_lower_bound(0, 100, 0, 100) == pytest.approx(math.log((1 - limit) / limit))
    assert epsilon_lower_bound(0, 100, 0, 100, delta=0.1) == pytest.approx(math.log((0.9 - limit) / limit))
    assert epsilon_lower_bound(50, 100, 50, 100) == 0.0
    assert epsilon_lower_bound(100, 100, 100, 100) == 0.0


def test_epsilon_lower_bound_uses_both_directions():
    """Many false alarms but no miss: the evidence is in the second inequality."""
    fpr = clopper_pearson(400, 1000, 0.975, side="upper").high
    fnr = clopper_pearson(0, 1000, 0.975, side="upper").high
    expected = math.log((1 - fpr) / fnr)
    assert expected > math.log((1 - fnr) / fpr)
    assert epsilon_lower_bound(400, 1000, 0, 1000) == pytest.approx(expected)
    assert epsilon_lower_bound(0, 1000, 400, 1000) == pytest.approx(expected)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.0), (2.0, 0.0), (1.0, 0.05)])
def test_epsilon_lower_bound_is_valid_at_its_confidence_exactly(epsilon, delta):
    """The worst attacker that (epsilon, delta) allows exceeds the truth with probability <= 5 %, summed."""
    n = 60
    fpr = fnr = (1 - delta) / (1 + math.exp(epsilon))
    errors = np.arange(n + 1)
    exceeds = np.array(
        [[epsilon_lower_bound(fp, n, fn, n, delta=delta) > epsilon for fn in errors] for fp in errors]
    )
    p = np.outer(stats.binom.pmf(errors, n, fpr), stats.binom.pmf(errors, n, fnr))
    failure = p[exceeds].sum()
    assert 0 < failure <= 0.05


@settings(deadline=None)
@given(
    n=st.integers(1, 200),
    data=st.data(),
    delta=st.floats(0, 0.5),
)
def test_epsilon_lower_bound_falls_with_delta_and_with_confidence(n, data, delta):
    fp = data.draw(st.integers(0, n))
    fn = data.draw(st.integers(0, n))
    base = epsilon_lower_bound(fp, n, fn, n, confidence=0.9)
    assert 0 <= epsilon_lower_bound(fp, n, fn, n, confidence=0.9, delta=delta) <= base
    assert epsilon_lower_bound(fp, n, fn, n, confidence=0.99) <= base


# ---------------------------------------------------------------- two samples


def _laplace(count: int, epsilon: float, n: int, rng: np.random.Generator) -> np.ndarray:
    return laplace_mechanism(count, sensitivity=1, epsilon=epsilon, rng=rng, size=n)


def _integer(count: int, epsilon: float, n: int, rng: np.random.Generator) -> np.ndarray:
    return discrete_laplace_mechanism(count, epsilon=epsilon, rng=rng, size=n)


def _bounds(mechanism, epsilon: float, n: int, seeds: range, **options) -> np.ndarray:
    values = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        releases = mechanism(412, epsilon, n, rng), mechanism(411, epsilon, n, rng)
        values.append(audit_epsilon(*releases, **options).epsilon_lower_bound)
    return np.array(values)


@pytest.mark.parametrize("mechanism", [_laplace, _integer])
@pytest.mark.parametrize("options", [{}, {"thresholds": [410.5, 411.5, 412.5]}, {"confidence": 0.5}])
def test_audit_of_a_correct_mechanism_exceeds_the_truth_no_more_often_than_stated(mechanism, options):
    bounds = _bounds(mechanism, 1.0, 300, range(300), **options)
    allowed = stats.binom.isf(FALSE_ALARM, 300, 1 - options.get("confidence", 0.95))
    assert (bounds > 1.0).sum() <= allowed
    assert bounds.mean() > 0.3  # valid, but not by saying nothing


@pytest.mark.parametrize("mechanism", [_laplace, _integer])
def test_laplace_noise_halved_is_caught_by_audit(mechanism):
    """Claimed epsilon = 1, noise of epsilon = 2, n = 1000 a side. Of 2,000 other runs (500 with integers)
    the smallest bound was 1.12 (1.27); of as many with the right noise 0.15 % (0.8 %) exceeded 1."""
    assert (_bounds(mechanism, 2.0, 1000, range(1000, 1030)) > 1.0).all()
    right = _bounds(mechanism, 1.0, 1000, range(1000, 1030))
    assert (right > 1.0).sum() <= stats.binom.isf(FALSE_ALARM, 30, 0.05)


def test_releases_without_noise_are_caught_by_audit():
    audit = audit_epsilon(np.full(100, 412), np.full(100, 411))
    assert audit.threshold == 411.5
    assert (audit.tpr, audit.fpr, audit.n) == (1.0, 0.0, 200)
    assert audit.epsilon_lower_bound == pytest.approx(epsilon_lower_bound(0, 66, 0, 66))


def test_mechanism_that_ignores_the_person_is_acquitted():
    rng = np.random.default_rng(0)
    bounds = [
        audit_epsilon(rng.normal(size=300), rng.normal(size=300)).epsilon_lower_bound for _ in range(200)
    ]
    assert np.count_nonzero(bounds) <= stats.binom.isf(FALSE_ALARM, 200, 0.05)
    assert audit_epsilon(np.zeros(10), np.zeros(10)).epsilon_lower_bound == 0.0


def test_audit_reads_both_directions_alike():
    rng = np.random.default_rng(1)
    low, high = _laplace(411, 2.0, 1000, rng), _laplace(412, 2.0, 1000, rng)
    down, up = audit_epsilon(low, high), audit_epsilon(-low, -high)
    assert (down.direction, up.direction) == ("below", "above")
    assert down.epsilon_lower_bound == pytest.approx(up.epsilon_lower_bound)
    assert down.tpr == up.tpr > down.fpr == up.fpr


def test_fixed_thresholds_pay_the_union_bound():
    rng = np.random.default_rng(2)
    here, there = _integer(412, 1.0, 500, rng), _integer(411, 1.0, 500, rng)
    audit = audit_epsilon(here, there, thresholds=[411.5])
    fp, fn = int((there > 411.5).sum()), int((here <= 411.5).sum())
    # One cut, two directions: two candidates share the failure probability.
    assert audit.epsilon_lower_bound == epsilon_lower_bound(fp, 500, fn, 500, confidence=0.975)
    assert audit == Audit(audit.epsilon_lower_bound, 411.5, 1 - fn / 500, fp / 500, 0.95, 1000, 0.0, "above")


def test_release_on_the_threshold_is_attributed_by_neither_direction():
    here, there = np.repeat([2.0, 1.0, 0.0], [60, 30, 10]), np.repeat([2.0, 1.0, 0.0], [10, 30, 60])
    above = audit_epsilon(here, there, thresholds=[1.0])
    assert (above.direction, above.tpr, above.fpr) == ("above", 0.6, 0.1)
    assert above.epsilon_lower_bound == epsilon_lower_bound(10, 100, 40, 100, confidence=0.975)
    below = audit_epsilon(there, here, thresholds=[1.0])
    assert (below.direction, below.tpr, below.fpr) == ("below", 0.6, 0.1)
    assert below.epsilon_lower_bound == above.epsilon_lower_bound


def test_delta_is_subtracted_in_the_audit():
    """A mechanism that shows the record with probability delta is (0, delta)-DP, and no less than that."""
    convicted = np.zeros(2)
    for seed in range(200):
        here, there = np.random.default_rng(seed).random(1000) < 0.1, np.zeros(1000)
        assert audit_epsilon(here, there).epsilon_lower_bound > 1
        convicted += [audit_epsilon(here, there, delta=d).epsilon_lower_bound > 0 for d in (0.1, 0.03)]
    assert convicted[0] <= stats.binom.isf(FALSE_ALARM, 200, 0.05)
    assert convicted[1] > 190


@pytest.mark.parametrize("audit", [audit_epsilon, lambda *a, **k: gaussian_audit(*a, delta=1e-5, **k)])
def test_audits_refuse_bad_arguments(audit):
    good = [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="at least 2 releases each, got 1 and 3"):
        audit([0.0], good)
    with pytest.raises(ValueError, match="neighbour_outputs must be finite"):
        audit(good, [0.0, math.nan])
    with pytest.raises(ValueError, match="outputs must have 1 axes"):
        audit(np.zeros((2, 2)), good)
    with pytest.raises(ValueError, match="confidence must be > 0 and < 1, got 0"):
        audit(good, good, confidence=0.0)
    with pytest.raises(ValueError, match="thresholds must not be empty"):
        audit(good, good, thresholds=[])


def test_delta_out_of_range_is_refused():
    with pytest.raises(ValueError, match="delta must be >= 0 and < 1, got 1"):
        audit_epsilon([0, 1], [0, 1], delta=1)
    with pytest.raises(ValueError, match="delta must be > 0 and < 1, got 0"):
        gaussian_audit([0, 1], [0, 1], delta=0)


# ---------------------------------------------------------------- Gaussian noise


def _gaussian_audits(noise_std: float, n: int, seeds: range):
    audits = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        audits.append(gaussian_audit(rng.normal(1, noise_std, n), rng.normal(0, noise_std, n), delta=1e-5))
    return audits


@pytest.mark.parametrize(("claimed", "n"), [(1.0, 5000), (2.0, 1000), (8.0, 300)])
def test_gaussian_noise_halved_is_caught_by_gaussian_audit_and_the_right_noise_acquitted(claimed, n):
    """Over 400 other seeds the smallest bounds with half the noise were 1.22, 1.94 and 11.4, and 0 to 3 of
    400 right mechanisms exceeded their claim; the halved ones may therefore miss once in 30 here."""
    noise_std = analytic_gaussian_std(claimed, 1e-5)
    halved = [a.epsilon_lower_bound for a in _gaussian_audits(noise_std / 2, n, range(500, 530))]
    right = [a.epsilon_lower_bound for a in _gaussian_audits(noise_std, n, range(500, 530))]
    assert np.sum(np.array(halved) > claimed) >= 29
    assert np.sum(np.array(right) > claimed) <= stats.binom.isf(FALSE_ALARM, 30, 0.05)


def test_gaussian_audit_is_valid_at_its_confidence():
    audits = _gaussian_audits(1.0, 300, range(400))
    exceeded = sum(a.mu_lower_bound > 1 for a in audits)
    assert exceeded <= stats.binom.isf(FALSE_ALARM, 400, 0.05)
    assert np.mean([a.mu_lower_bound for a in audits]) > 0.5


def test_gaussian_audit_by_hand():
    """One cut, two directions, two rates: four limits share the failure probability of 5 %."""
    here, there = np.repeat([1.0, 0.0], [80, 20]), np.repeat([1.0, 0.0], [30, 70])
    fpr = clopper_pearson(30, 100, 1 - 0.05 / 4, side="upper").high
    fnr = clopper_pearson(20, 100, 1 - 0.05 / 4, side="upper").high
    audit = gaussian_audit(here, there, delta=1e-5, thresholds=[0.5])
    assert audit.mu_lower_bound == pytest.approx(stats.norm.isf(fpr) - stats.norm.ppf(fnr))


def test_gaussian_audit_reports_epsilon_of_its_mu():
    audit = _gaussian_audits(1.0, 2000, range(1))[0]
    assert audit.epsilon_lower_bound == pytest.approx(gaussian_epsilon(1 / audit.mu_lower_bound, 1e-5))
    same = np.zeros(50)
    assert gaussian_audit(same, same, delta=1e-5).epsilon_lower_bound == 0.0


def test_gaussian_audit_sees_what_the_general_audit_cannot_at_small_delta():
    rng = np.random.default_rng(0)
    here, there = rng.normal(1, 1.0, 1000), rng.normal(0, 1.0, 1000)  # epsilon 4.38 at delta 1e-5
    general = audit_epsilon(here, there, delta=1e-5).epsilon_lower_bound
    assert general < 2.5 < gaussian_audit(here, there, delta=1e-5).epsilon_lower_bound <= 4.3772


# ---------------------------------------------------------------- one run


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "expected"),
    [
        (1000, 100, 100, 0, 3.4930),
        (1000, 100, 100, 1e-5, 3.4654),
        (1000, 600, 600, 1e-5, 5.2704),
        (1000, 1000, 1000, 1e-5, 5.7823),
        (1000, 100, 90, 1e-5, 1.6261),
        (1000, 200, 150, 1e-5, 0.8200),
        (100, 50, 50, 0, 2.7847),
        (100, 50, 50, 1e-5, 2.7819),
        (100, 100, 73, 0, 0.6076),
        (1000, 1000, 731, 1e-5, 0.8803),
        (10000, 10000, 7311, 1e-5, 0.9626),
    ],
)
def test_one_run_epsilon_equals_the_reference_implementation(m, r, v, delta, expected):
    assert one_run_epsilon(m, r, v, delta) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("m", [1, 10, 1000])
def test_one_run_bound_of_perfect_guesses_has_a_closed_form(m):
    expected = max(-math.log(0.05 ** (-1 / m) - 1), 0.0) if m > 4 else 0.0
    assert one_run_epsilon(m, m, m, 0) == pytest.approx(expected, abs=1e-9)


def _p_value(m: int, r: int, v: int, delta: Fraction, q: Fraction) -> Fraction:
    """The right side of the theorem in exact rational numbers."""
    pmf = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    near = max(sum(pmf[v - i : v], Fraction(0)) / i for i in range(1, v + 1))
    return sum(pmf[v:], Fraction(0)) + 2 * m * delta * near


@pytest.mark.parametrize(("m", "r", "v"), [(12, 12, 12), (30, 20, 18), (40, 25, 25)])
@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 10000)])
def test_one_run_bound_is_where_the_exact_p_value_crosses_and_nowhere_before(m, r, v, delta):
    epsilon = one_run_epsilon(m, r, v, float(delta))

    def exact(e: float) -> float:
        return float(_p_value(m, r, v, delta, Fraction(1 / (1 + math.exp(-e)))))

    assert exact(epsilon) == pytest.approx(0.05, abs=1e-9)
    assert all(exact(e) < 0.05 for e in np.linspace(0, epsilon * (1 - 1e-6), 50))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.5])
def test_one_run_audit_of_randomized_response_is_valid_exactly(epsilon):
    """Each canary answered truthfully with probability q: the worst case. Failure probability summed."""
    m = 60
    q = 1 / (1 + math.exp(-epsilon))
    exceeds = np.array([one_run_epsilon(m, m, v, 0) > epsilon for v in range(m + 1)])
    failure = stats.binom.pmf(np.arange(m + 1), m, q)[exceeds].sum()
    assert 0.005 < failure <= 0.05


def test_one_run_epsilon_without_evidence_and_with_bad_arguments():
    assert one_run_epsilon(100, 0, 0, 0) == 0.0
    assert one_run_epsilon(100, 100, 50, 1e-5) == 0.0
    with pytest.raises(ValueError, match="r must be >= 0 and <= 10, got 11"):
        one_run_epsilon(10, 11, 5, 0)
    with pytest.raises(ValueError, match="v must be >= 0 and <= 5, got 6"):
        one_run_epsilon(10, 5, 6, 0)
    with pytest.raises(ValueError, match=r"delta must be >= 0 and < 1, got -0\.1"):
        one_run_epsilon(10, 5, 5, -0.1)


# ---------------------------------------------------------------- a step of DP-SGD, and six wrong ones

PROMISED = {"noise_multiplier": 1.2, "max_grad_norm": 0.5, "expected_batch_size": 8.0}
N, RATE, STEPS = 40, 1 / 40, 600


def _noise_of(sabotage):
    rng = np.random.default_rng(0)
    nobody = np.zeros((0, 10_000))
    releases = [private_step(nobody, **PROMISED, rng=rng, sabotage=sabotage) for _ in range(4)]
    return audit_noise(releases, noise_std=1.2 * 0.5 / 8)


def _sensitivity_of(sabotage):
    step = {**PROMISED, "noise_multiplier": 0.0, "rng": np.random.default_rng(0), "sabotage": sabotage}
    return audit_sensitivity(
        lambda gradients: private_step(gradients, **step), max_grad_norm=0.5, expected_batch_size=8
    )


def _sampler_of(sabotage):
    batches = draw_batches(N, RATE, STEPS, rng=np.random.default_rng(0), sabotage=sabotage)
    return audit_sampler(batches, sample_rate=RATE)


def test_the_right_step_passes_all_audits():
    assert _noise_of(None).passed
    assert _sensitivity_of(None).passed
    assert _sensitivity_of(None).sensitivity == pytest.approx(0.5)  # the bound is reached
    assert _sampler_of(None).passed


def test_half_the_noise_is_caught_by_the_noise_audit():
    audit = _noise_of("half the noise")
    assert not audit.passed
    assert audit.noise_std == pytest.approx(0.6 * 0.5 / 8, rel=0.02)
    assert audit.noise_std < 0.6 * audit.low


def test_reused_noise_is_caught_by_the_noise_audit():
    audit = _noise_of("reuse the noise")
    assert not audit.passed
    assert audit.correlation == pytest.approx(1)
    assert audit.low <= audit.noise_std <= audit.high  # its size alone looks right


def test_clipping_the_mean_is_caught_by_the_sensitivity_audit():
    audit = _sensitivity_of("clip the mean")
    assert not audit.passed
    assert audit.sensitivity == pytest.approx(2 * 8 * 0.5)  # one example turns the whole mean round


def test_dividing_by_the_actual_batch_is_caught_by_the_sensitivity_audit():
    audit = _sensitivity_of("divide by the actual batch")
    assert not audit.passed
    assert audit.sensitivity == pytest.approx(8 * 0.5)


def test_shuffling_for_poisson_is_caught_by_the_sampler_audit():
    audit = _sampler_of("shuffle for Poisson")
    assert not audit.passed
    assert audit.p_values["batch sizes"] < 1e-9
    assert audit.p_values["examples"] < 1e-9
    assert audit.p_values["rate"] > 1e-3  # the rate alone looks right


def test_skipping_empty_batches_is_caught_by_the_sampler_audit():
    audit = _sampler_of("skip empty batches")
    assert not audit.passed
    assert audit.p_values["empty batches"] < 1e-9


def test_every_sabotage_has_its_named_test():
    caught = {
        name: {
            "noise": not _noise_of(name).passed,
            "sensitivity": not _sensitivity_of(name).passed,
            "sampler": not _sampler_of(name).passed,
        }
        for name in SABOTAGES
    }
    assert {name: [a for a, hit in row.items() if hit] for name, row in caught.items()} == {
        "half the noise": ["noise"],
        "clip the mean": ["sensitivity"],
        "divide by the actual batch": ["noise", "sensitivity"],  # an empty batch is divided by 1
        "reuse the noise": ["noise"],
        "shuffle for Poisson": ["sampler"],
        "skip empty batches": ["sampler"],
    }


@pytest.mark.case("DP-28")
@pytest.mark.case("DP-10")
@pytest.mark.parametrize("factor", [0.0, 1 / 8, 0.95, 1.05, 8.0])
def test_noise_that_never_arrived_or_was_meant_for_the_sum_is_caught(factor):
    noise = factor * 0.25 * np.random.default_rng(1).normal(size=(3, 20_000))
    assert not audit_noise(noise, noise_std=0.25).passed


def test_noise_audit_accuses_right_noise_as_rarely_as_it_says():
    rng = np.random.default_rng(2)
    failures = sum(
        not audit_noise(rng.normal(size=(3, 50)), noise_std=1, failure_probability=0.2).passed
        for _ in range(1000)
    )
    assert stats.binom.ppf(FALSE_ALARM, 1000, 0.15) <= failures <= stats.binom.isf(FALSE_ALARM, 1000, 0.2)


def test_correlation_limit_is_the_law_of_random_directions():
    rng = np.random.default_rng(3)
    limit = audit_noise(rng.normal(size=(2, 5)), noise_std=1, failure_probability=0.2).correlation_limit
    x, y = rng.normal(size=(2, 200_000, 5))
    beyond = np.abs((x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)) > limit
    low, high = clopper_pearson(int(beyond.sum()), beyond.size, 1 - FALSE_ALARM)
    assert low <= 0.1 <= high


@pytest.mark.parametrize("sabotage", [None, "half the noise"])
def test_matrix_step_clips_each_example(sabotage):
    rows = np.array([[3.0, 4.0], [0.1, 0.0], [0.0, 0.0]])
    step = {**PROMISED, "noise_multiplier": 0.0}
    out = private_step(rows, **step, rng=np.random.default_rng(0), sabotage=sabotage)
    np.testing.assert_allclose(out, np.array([0.4, 0.4]) / 8)


def test_matrix_step_is_the_step_of_the_library():
    """A linear model without bias, whose loss is its output, has its inputs for gradients."""
    rows = np.random.default_rng(9).normal(size=(6, 5))

    def library(gradients):
        x = torch.as_tensor(gradients)
        probe = torch.nn.Linear(5, 1, bias=False, dtype=torch.float64)
        released = private_gradient(
            probe,
            x,
            torch.zeros(len(x), dtype=torch.int64),
            noise_multiplier=0.0,
            max_grad_norm=0.5,
            expected_batch_size=8,
            generator=torch.Generator().manual_seed(0),
            loss=lambda out, _: out[:, 0],
        )
        return released["weight"].numpy()[0]

    ours = private_step(rows, **{**PROMISED, "noise_multiplier": 0.0}, rng=np.random.default_rng(0))
    np.testing.assert_allclose(library(rows), ours, rtol=1e-12)
    audit = audit_sensitivity(library, max_grad_norm=0.5, expected_batch_size=8, dimension=5)
    assert audit.passed
    assert audit.sensitivity == pytest.approx(0.5)


def test_a_step_that_breaks_on_an_example_fails_the_sensitivity_audit():
    def breaks(gradients):
        return gradients.sum(axis=0) / np.float64(len(gradients) < 9 or np.nan)

    assert audit_sensitivity(breaks, max_grad_norm=1, expected_batch_size=8).sensitivity == np.inf


@pytest.mark.case("DP-12")
def test_two_examples_meet_as_often_as_independent_coins():
    q, steps, n = 0.2, 4000, 12
    batches = draw_batches(n, q, steps, rng=np.random.default_rng(4))
    together = (batches.T.astype(int) @ batches)[np.triu_indices(n, 1)]
    for count in together:
        assert stats.binomtest(int(count), steps, q * q).pvalue > FALSE_ALARM
    # Drawing a binomial size and then a uniform subset is the same law, whatever was claimed.
    rng = np.random.default_rng(5)
    by_size = np.zeros((steps, n), dtype=bool)
    for row, size in zip(by_size, rng.binomial(n, q, steps), strict=True):
        row[rng.choice(n, size, replace=False)] = True
    assert audit_sampler(by_size, sample_rate=q).passed
    # One fixed size is not.
    fixed = rng.random((steps, n)).argsort(axis=1) < round(n * q)
    assert audit_sampler(fixed, sample_rate=round(n * q) / n).p_values["batch sizes"] < 1e-9


@pytest.mark.case("DP-1")
def test_empty_batches_are_there_and_are_noise():
    batches = draw_batches(40, 1 / 40, 400, rng=np.random.default_rng(6))
    empty = int((~batches.any(axis=1)).sum())
    assert stats.binomtest(empty, 400, (1 - 1 / 40) ** 40).pvalue > FALSE_ALARM
    assert empty > 100
    noise = private_step(np.zeros((0, 3)), **PROMISED, rng=np.random.default_rng(0))
    assert (noise != 0).all()


def test_sampler_audit_accuses_a_right_sampler_as_rarely_as_it_says():
    rng = np.random.default_rng(7)
    failures = sum(
        not audit_sampler(rng.random((100, 30)) < 0.1, sample_rate=0.1, failure_probability=0.2).passed
        for _ in range(500)
    )
    assert failures <= stats.binom.isf(FALSE_ALARM, 500, 0.25)  # the two dispersions are approximate


def test_wrong_rate_is_caught_by_the_sampler_audit():
    batches = draw_batches(400, 0.12, 300, rng=np.random.default_rng(8))
    assert audit_sampler(batches, sample_rate=0.1).p_values["rate"] < 1e-9


@pytest.mark.parametrize("batches", [np.zeros((2, 3)), np.zeros(3, bool), np.zeros((0, 3), bool)])
def test_sampler_audit_wants_booleans(batches):
    with pytest.raises(ValueError, match="batches must be booleans"):
        audit_sampler(batches, sample_rate=0.1)


def test_arguments_of_the_step_audits_are_checked():
    with pytest.raises(ValueError, match="at least 2 steps of 3 coordinates"):
        audit_noise(np.zeros((1, 100)), noise_std=1)
    with pytest.raises(ValueError, match="sabotage must be one of None"):
        draw_batches(10, 0.1, 3, rng=np.random.default_rng(0), sabotage="sleep")
    with pytest.raises(TypeError, match="rng must be"):
        private_step(np.zeros((1, 2)), **PROMISED, rng=0)


# ---------------------------------------------------------------- GDP audit of a training


def _training_scores(sabotage, noise_multiplier, rng, n=1000, steps=10, d=4):
    """Sums of what ten full-batch steps released in the canary's direction, without and with it."""
    canary = np.eye(d)[:1]
    step = {
        "noise_multiplier": noise_multiplier,
        "max_grad_norm": 1.0,
        "expected_batch_size": 1.0,
        "rng": rng,
        "sabotage": sabotage,
    }
    return [
        [sum(private_step(g, **step)[0] for _ in range(steps)) for _ in range(n)]
        for g in (canary, np.zeros((0, d)))
    ]


def test_half_the_noise_is_caught_by_the_gdp_audit_of_a_training():
    claimed = 2.0
    noise_multiplier = math.sqrt(10) * analytic_gaussian_std(claimed, 1e-5)
    rng = np.random.default_rng(0)
    right = gaussian_audit(*_training_scores(None, noise_multiplier, rng), delta=1e-5)
    halved = gaussian_audit(*_training_scores("half the noise", noise_multiplier, rng), delta=1e-5)
    assert right.epsilon_lower_bound <= claimed < halved.epsilon_lower_bound


def test_well_known_audits_miss_half_the_noise():
    """General bounds at δ = 1e-5 and one-run audits end below the claim although the noise is half of it."""
    claimed, rng = 8.0, np.random.default_rng(0)
    std = analytic_gaussian_std(claimed, 1e-5) / 2
    here, there = rng.normal(1, std, 1000), rng.normal(0, std, 1000)
    assert audit_epsilon(here, there, delta=1e-5).epsilon_lower_bound < claimed
    coins = rng.random(1000) < 0.5
    guesses = rng.normal(coins, std) > 0.5
    assert one_run_epsilon(1000, 1000, int((guesses == coins).sum()), 1e-5) < claimed
    # No luck is involved: not even faultless guesses could prove it.
    assert one_run_epsilon(1000, 1000, 1000, 1e-5) < claimed
    assert epsilon_lower_bound(0, 1000, 0, 1000, delta=1e-5) < claimed


# ---------------------------------------------------------------- the region of (FPR, TPR)


@given(st.floats(0, 1), st.floats(0, 12), st.floats(0, 0.5))
def test_attack_limit_is_the_two_inequalities(fpr, epsilon, delta):
    tpr = float(attack_limit(fpr, epsilon, delta))
    assert fpr - 1e-12 <= tpr <= 1
    assert tpr <= math.exp(epsilon) * fpr + delta + 1e-12
    assert 1 - fpr <= math.exp(epsilon) * (1 - tpr) + delta + 1e-9 * math.exp(epsilon)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_randomized_response_reaches_the_attack_limit(epsilon):
    truth = 1 / (1 + math.exp(-epsilon))
    assert attack_limit(1 - truth, epsilon, 0.0) == pytest.approx(truth)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_gaussian_attacker_stays_below_the_limit_at_every_rate(epsilon):
    mu = 1 / analytic_gaussian_std(epsilon, 1e-3)
    fpr = np.linspace(1e-6, 1 - 1e-6, 1001)
    best = stats.norm.cdf(stats.norm.ppf(fpr) + mu)
    limit = attack_limit(fpr, epsilon, 1e-3)
    assert (best <= limit + 1e-12).all()
    assert (limit - best).min() < 1e-4  # and touches it


def test_a_huge_budget_limits_only_attackers_without_false_positives():
    assert attack_limit([0.0, 0.5, 1.0], 1000.0, 1e-5) == pytest.approx([1e-5, 1.0, 1.0])


def test_the_sampler_of_one_example_can_be_audited():
    coins = np.random.default_rng(0).random((400, 1)) < 0.5
    assert audit_sampler(coins, sample_rate=0.5).passed
    assert not audit_sampler(np.ones((400, 1), dtype=bool), sample_rate=0.5).passed
