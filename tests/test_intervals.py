"""The exact interval against independent computations, and its coverage by summation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from thousand_fingers.intervals import Interval, clopper_pearson, mean_interval


@given(trials=st.integers(1, 500), data=st.data(), confidence=st.floats(0.5, 0.9999))
def test_clopper_pearson_equals_the_inverted_binomial_test(trials, data, confidence):
    successes = data.draw(st.integers(0, trials))
    test = stats.binomtest(successes, trials)
    ours = clopper_pearson(successes, trials, confidence)
    theirs = test.proportion_ci(confidence, method="exact")
    assert ours == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-12)
    for side, alternative in (("lower", "greater"), ("upper", "less")):
        one_sided = stats.binomtest(successes, trials, alternative=alternative).proportion_ci(confidence)
        assert clopper_pearson(successes, trials, confidence, side=side) == pytest.approx(
            (one_sided.low, one_sided.high), rel=1e-9, abs=1e-12
        )


@pytest.mark.parametrize("side", ["both", "lower", "upper"])
def test_clopper_pearson_covers_every_probability_exactly(side):
    """Coverage computed by summing the binomial, no simulation."""
    n = 30
    intervals = [clopper_pearson(k, n, 0.9, side=side) for k in range(n + 1)]
    for p in np.linspace(0.001, 0.999, 300):
        pmf = stats.binom.pmf(np.arange(n + 1), n, p)
        covered = np.array([low <= p <= high for low, high in intervals])
        assert pmf[covered].sum() >= 0.9


def test_clopper_pearson_ends_and_refusals():
    assert clopper_pearson(0, 10).low == 0.0
    assert clopper_pearson(10, 10).high == 1.0
    assert clopper_pearson(0, 10, side="upper").high == pytest.approx(1 - 0.05 ** (1 / 10))
    assert isinstance(clopper_pearson(3, 10), Interval)
    with pytest.raises(ValueError, match="successes must be >= 0 and <= 10, got 11"):
        clopper_pearson(11, 10)
    with pytest.raises(ValueError, match="trials must be >= 1, got 0"):
        clopper_pearson(0, 0)
    with pytest.raises(ValueError, match="confidence must be > 0 and < 1, got 1"):
        clopper_pearson(1, 2, 1)
    with pytest.raises(ValueError, match="side must be one of"):
        clopper_pearson(1, 2, side="left")
    with pytest.raises(TypeError, match="successes must be an integer"):
        clopper_pearson(1.0, 2)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30).filter(lambda v: np.std(v) > 1e-6),
    confidence=st.floats(0.5, 0.9999),
)
def test_the_interval_of_a_mean_equals_the_inverted_t_test(values, confidence):
    theirs = stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    assert mean_interval(values, confidence) == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-9)


def test_equal_measurements_leave_no_width():
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)


@pytest.mark.parametrize("values", [[], [0.5], [0.5, np.nan], [[0.5, 0.5]]])
def test_a_mean_of_too_few_or_broken_values_is_refused(values):
    with pytest.raises(ValueError, match="values must"):
        mean_interval(values)
