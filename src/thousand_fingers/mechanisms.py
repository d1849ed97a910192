"""Mechanisms of differential privacy, and the budget that counts them (chapter 4).

Randomized response is Warner's [Warner1965]; the Laplace mechanism is due to
Dwork, McSherry, Nissim and Smith [Dwork2006], the exponential mechanism to
McSherry and Talwar [McSherry2007], the tight Gaussian calibration to Balle and
Wang [BalleWang2018], the exact integer samplers to Canonne, Kamath and Steinke
[Canonne2020], RAPPOR to Erlingsson, Pihur and Korolova [Erlingsson2014].
NumPy's generators are not cryptographic: fine for a book that must repeat itself, not for a real release.
"""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, expit, log_ndtr, logit

from thousand_fingers.numerics import smallest_satisfying
from thousand_fingers.validation import integer, integer_array, numpy_generator, real_array, real_number

T = TypeVar("T")


# --- Randomized response -------------------------------------------------------------------------


@dataclass(frozen=True)
class ProportionEstimate:
    """An estimated share of "yes", with its standard error, from ``n`` reports."""

    proportion: float
    standard_error: float
    n: int


def randomized_response(
    answers: ArrayLike,
    *,
    rng: np.random.Generator,
    truth_probability: float = 0.5,
    yes_probability: float = 0.5,
) -> NDArray[np.bool_]:
    """Answer truthfully on heads, and let a second coin answer on tails."""
    true = _yes_no("answers", answers)
    truth, yes = _coins(truth_probability, yes_probability)
    numpy_generator("rng", rng)
    tells_truth = rng.random(true.shape) < truth
    second_coin = rng.random(true.shape) < yes
    return np.where(tells_truth, true, second_coin)


def randomized_response_epsilon(truth_probability: float = 0.5, yes_probability: float = 0.5) -> float:
    """Return the exact ε of one randomized response."""
    truth, yes = _coins(truth_probability, yes_probability)
    rarest = (1 - truth) * min(yes, 1 - yes)
    return math.log1p(truth / rarest) if rarest > 0 else (0.0 if truth == 0 else math.inf)


def estimate_proportion(
    reports: ArrayLike, *, truth_probability: float = 0.5, yes_probability: float = 0.5
) -> ProportionEstimate:
    """Estimate the share of true "yes" behind randomized reports."""
    said = _yes_no("reports", reports)
    truth, yes = _coins(truth_probability, yes_probability)
    if truth == 0:
        raise ValueError("truth_probability must be > 0, got 0.0: such reports say nothing")
    share = float(said.mean())
    return ProportionEstimate(
        proportion=(share - (1 - truth) * yes) / truth,
        standard_error=math.sqrt(share * (1 - share) / said.size) / truth,
        n=said.size,
    )


# --- Laplace, Gaussian, exponential --------------------------------------------------------------


def laplace_mechanism(
    value: ArrayLike,
    *,
    sensitivity: float,
    epsilon: float,
    rng: np.random.Generator,
    size: int | None = None,
) -> Any:
    """Add Laplace noise of scale sensitivity/ε."""
    sensitivity = real_number("sensitivity", sensitivity, above=0)
    epsilon = real_number("epsilon", epsilon, above=0)
    scale = real_number("sensitivity / epsilon", sensitivity / epsilon, above=0)
    centre, shape = _query("value", value, size)
    released = numpy_generator("rng", rng).laplace(centre, scale, shape)
    return released if shape else float(released)


def classical_gaussian_std(epsilon: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Return the textbook noise √(2 ln(1.25/δ)) Δ/ε, proved for ε < 1 only."""
    epsilon = real_number("epsilon", epsilon, above=0)
    delta = real_number("delta", delta, above=0, below=1)
    sensitivity = real_number("sensitivity", sensitivity, above=0)
    if epsilon >= 1:
        raise ValueError(
            f"epsilon must be < 1, got {epsilon}: the classical formula is proved only there "
            "(at 10 it breaks its promise); use analytic_gaussian_std"
        )
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def gaussian_delta(noise_std: float, epsilon: float, *, sensitivity: float = 1.0) -> float:
    """Return the exact δ(ε) of the Gaussian mechanism."""
    noise_std = real_number("noise_std", noise_std, above=0)
    epsilon = real_number("epsilon", epsilon, at_least=0)
    sensitivity = real_number("sensitivity", sensitivity, above=0)
    shift = sensitivity / noise_std
    near, far = epsilon / shift - shift / 2, epsilon / shift + shift / 2
    return float(np.exp(log_ndtr(-near)) - 0.5 * np.exp(-near * near / 2) * erfcx(far / math.sqrt(2)))


def gaussian_epsilon(noise_std: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Return the smallest ε that the Gaussian mechanism satisfies at δ."""
    noise_std = real_number("noise_std", noise_std, above=0)
    delta = real_number("delta", delta, above=0, below=1)
    sensitivity = real_number("sensitivity", sensitivity, above=0)
    if gaussian_delta(noise_std, 0.0, sensitivity=sensitivity) <= delta:
        return 0.0
    shift = sensitivity / noise_std
    upper = shift * shift / 2 + shift * math.sqrt(2 * math.log(1 / delta))
    return smallest_satisfying(
        lambda epsilon: gaussian_delta(noise_std, epsilon, sensitivity=sensitivity) <= delta, 0.0, upper
    )


def analytic_gaussian_std(epsilon: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Return the smallest Gaussian noise that is (ε, δ)-differentially private."""
    epsilon = real_number("epsilon", epsilon, above=0)
    delta = real_number("delta", delta, above=0, below=1)
    sensitivity = real_number("sensitivity", sensitivity, above=0)

    def enough(noise_std: float) -> bool:
        return gaussian_delta(noise_std, epsilon, sensitivity=sensitivity) <= delta

    low = high = sensitivity
    while not enough(high):
        high *= 2
    while enough(low):
        low /= 2
    return smallest_satisfying(enough, low, high)


def gaussian_mechanism(
    value: ArrayLike,
    *,
    sensitivity: float,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    size: int | None = None,
) -> Any:
    """Add the smallest Gaussian noise that is (ε, δ)-differentially private."""
    noise_std = analytic_gaussian_std(epsilon, delta, sensitivity=sensitivity)
    centre, shape = _query("value", value, size)
    released = numpy_generator("rng", rng).normal(centre, noise_std, shape)
    return released if shape else float(released)


def exponential_probabilities(
    scores: ArrayLike, *, sensitivity: float, epsilon: float
) -> NDArray[np.float64]:
    """Return the probability of each candidate, proportional to exp(ε·score / 2Δ)."""
    utility = real_array("scores", scores, ndim=1)
    sensitivity = real_number("sensitivity", sensitivity, above=0)
    epsilon = real_number("epsilon", epsilon, above=0)
    rate = real_number("epsilon / sensitivity", epsilon / sensitivity, above=0)
    with np.errstate(over="ignore"):
        weights = np.exp((utility - utility.max()) * (rate / 2))
    return weights / weights.sum()


def exponential_mechanism(
    scores: ArrayLike,
    *,
    sensitivity: float,
    epsilon: float,
    rng: np.random.Generator,
    size: int | None = None,
) -> Any:
    """Choose a candidate at random, the better ones with exponentially higher probability."""
    probabilities = exponential_probabilities(scores, sensitivity=sensitivity, epsilon=epsilon)
    if size is not None:
        size = integer("size", size, at_least=1)
    chosen = numpy_generator("rng", rng).choice(probabilities.size, size=size, p=probabilities)
    return int(chosen) if size is None else chosen


# --- Exact integer noise -------------------------------------------------------------------------


def discrete_laplace(
    *, scale: int | float | Fraction, rng: np.random.Generator, size: int | None = None
) -> Any:
    """Draw exact discrete Laplace noise, P(x) ∝ exp(-|x| / scale)."""
    exact = _rational("scale", scale)
    n = 1 if size is None else integer("size", size, at_least=1)
    noise = _discrete_laplace(exact, n, numpy_generator("rng", rng))
    return int(noise[0]) if size is None else noise.astype(np.int64)


def discrete_gaussian(
    *, variance: int | float | Fraction, rng: np.random.Generator, size: int | None = None
) -> Any:
    """Draw exact discrete Gaussian noise, P(x) ∝ exp(-x² / 2 variance)."""
    exact = _rational("variance", variance)
    n = 1 if size is None else integer("size", size, at_least=1)
    noise = _discrete_gaussian(exact, n, numpy_generator("rng", rng))
    return int(noise[0]) if size is None else noise.astype(np.int64)


def discrete_laplace_mechanism(
    count: Any,
    *,
    epsilon: int | float | Fraction,
    rng: np.random.Generator,
    sensitivity: int = 1,
    size: int | None = None,
) -> Any:
    """Release a count with exact integer noise of scale sensitivity/ε."""
    scale = integer("sensitivity", sensitivity, at_least=1) / _rational("epsilon", epsilon)
    if np.ndim(count):
        counts = integer_array("count", count)
        return counts + discrete_laplace(scale=scale, rng=rng, size=counts.size).reshape(counts.shape)
    return integer("count", count) + discrete_laplace(scale=scale, rng=rng, size=size)


def discrete_gaussian_mechanism(
    count: Any, *, variance: int | float | Fraction, rng: np.random.Generator, size: int | None = None
) -> Any:
    """Release a count with exact discrete Gaussian noise."""
    if np.ndim(count):
        counts = integer_array("count", count)
        return counts + discrete_gaussian(variance=variance, rng=rng, size=counts.size).reshape(counts.shape)
    return integer("count", count) + discrete_gaussian(variance=variance, rng=rng, size=size)


def _discrete_laplace(scale: Fraction, size: int, rng: np.random.Generator) -> NDArray[Any]:
    t, s = scale.numerator, scale.denominator

    def remainder(n: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        u = _uniform_below(t, n, rng)
        return u, _bernoulli_exp(u, t, rng)

    def candidate(n: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        u = _until_accepted(remainder, n)
        v = _successes_of_exp_minus_one(n, rng)
        if t * (int(v.max()) + 1) >= 2**63 or s >= 2**63:
            u, v = u.astype(object), v.astype(object)
        magnitude = (u + t * v) // s
        negative = rng.integers(0, 2, size=n) == 1
        return np.where(negative, -magnitude, magnitude), ~(negative & (magnitude == 0))

    return _until_accepted(candidate, size)


def _discrete_gaussian(variance: Fraction, size: int, rng: np.random.Generator) -> NDArray[Any]:
    a, b = variance.numerator, variance.denominator
    t = math.isqrt(a // b) + 1

    def candidate(n: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        y = _discrete_laplace(Fraction(t), n, rng)
        if (int(np.abs(y).max()) * b * t + a) ** 2 >= 2**63 or 2 * a * b * t * t >= 2**63:
            y = y.astype(object)
        numerator = (np.abs(y) * (b * t) - a) ** 2
        denominator = 2 * a * b * t * t
        whole = _successes_of_exp_minus_one(n, rng) >= numerator // denominator
        return y, whole & _bernoulli_exp(numerator % denominator, denominator, rng)

    return _until_accepted(candidate, size)


def _bernoulli_exp(numerator: NDArray[Any], denominator: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return coins that are true with probability exp(-numerator / denominator), for ratios in [0, 1]."""
    result = np.zeros(numerator.size, dtype=bool)
    alive = np.arange(numerator.size)
    k = 1
    while alive.size:
        go_on = _uniform_below(denominator, alive.size, rng) < numerator[alive]
        go_on &= rng.integers(0, k, size=alive.size) == 0
        result[alive[~go_on]] = k % 2 == 1
        alive = alive[go_on]
        k += 1
    return result


def _successes_of_exp_minus_one(size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Count the successes before the first failure of coins of probability 1/e."""
    successes = np.zeros(size, dtype=np.int64)
    alive = np.arange(size)
    while alive.size:
        alive = alive[_bernoulli_exp(np.ones(alive.size, dtype=np.int64), 1, rng)]
        successes[alive] += 1
    return successes


def _uniform_below(n: int, size: int, rng: np.random.Generator) -> NDArray[Any]:
    """Return uniform integers in [0, n): int64 while n fits, Python integers beyond."""
    if n < 2**63:
        return rng.integers(0, n, size=size, dtype=np.int64)
    bits = (n - 1).bit_length()
    n_bytes = -(-bits // 8)

    def candidate(m: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        raw = rng.bytes(m * n_bytes)
        chunks = (raw[i : i + n_bytes] for i in range(0, len(raw), n_bytes))
        draws = np.array([int.from_bytes(c, "little") >> (8 * n_bytes - bits) for c in chunks], dtype=object)
        return draws, draws < n

    return _until_accepted(candidate, size)


def _until_accepted(
    propose: Callable[[int], tuple[NDArray[Any], NDArray[np.bool_]]], size: int
) -> NDArray[Any]:
    """Rejection sampling, slot by slot."""
    draws, accepted = propose(size)
    missing = np.flatnonzero(~accepted)
    while missing.size:
        again, accepted = propose(missing.size)
        if again.dtype == object:
            draws = draws.astype(object)
        draws[missing] = again
        missing = missing[~accepted]
    return draws


# --- Sums and means ------------------------------------------------------------------------------


def noisy_sum(
    values: ArrayLike, *, lower: float, upper: float, epsilon: float, rng: np.random.Generator
) -> float:
    """Release a sum of values clamped to declared bounds, in fixed point."""
    lower, upper = _bounds(lower, upper)
    column = np.asarray(values)
    if column.dtype.kind not in "fiub" or column.ndim != 1:
        raise TypeError(f"values must be one column of real numbers, got {column.dtype} {column.shape}")
    clamped = np.clip(np.nan_to_num(column.astype(np.float64), nan=0.0), lower, upper)
    exponent = 53 - math.frexp(max(abs(lower), abs(upper)))[1]

    def fixed_point(x: NDArray[np.float64]) -> list[int]:
        return np.rint(np.ldexp(x, exponent)).astype(np.int64).tolist()

    sensitivity = max(abs(x) for x in fixed_point(np.array([lower, upper])))
    noisy = discrete_laplace_mechanism(
        sum(fixed_point(clamped)), sensitivity=sensitivity, epsilon=epsilon, rng=rng
    )
    return math.ldexp(noisy, -exponent)


def noisy_mean(
    values: ArrayLike, *, lower: float, upper: float, epsilon: float, rng: np.random.Generator
) -> float:
    """Release a mean as a noisy sum over a noisy count, half of ε each."""
    half = real_number("epsilon", epsilon, above=0) / 2
    total = noisy_sum(values, lower=lower, upper=upper, epsilon=half, rng=rng)
    count = discrete_laplace_mechanism(len(np.asarray(values)), epsilon=half, rng=rng)
    return min(max(total / max(count, 1), lower), upper)


# --- RAPPOR --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountEstimate:
    """Estimated number of people behind each bit, with standard errors, from ``n`` reports."""

    count: NDArray[np.float64]
    standard_error: NDArray[np.float64]
    n: int


def rappor_report(
    bits: ArrayLike,
    *,
    permanent_probability: float,
    zero_probability: float,
    one_probability: float,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Report bits through RAPPOR's permanent and instantaneous randomized response."""
    f, p, q = _rappor(permanent_probability, zero_probability, one_probability)
    true = _yes_no("bits", bits)
    numpy_generator("rng", rng)
    permanent = np.where(rng.random(true.shape) < f, rng.random(true.shape) < 0.5, true)
    return rng.random(true.shape) < np.where(permanent, q, p)


def rappor_epsilon(
    *, permanent_probability: float, zero_probability: float, one_probability: float, n_hashes: int = 2
) -> tuple[float, float]:
    """Return RAPPOR's ε for ever (permanent) and for one report (instantaneous)."""
    f, p, q = _rappor(permanent_probability, zero_probability, one_probability)
    h = integer("n_hashes", n_hashes, at_least=1)
    p_star, q_star = f * (p + q) / 2 + (1 - f) * p, f * (p + q) / 2 + (1 - f) * q
    forever = 2 * h * math.log((1 - f / 2) / (f / 2)) if f > 0 else math.inf
    if p_star == q_star:
        return forever, 0.0
    low, high = sorted((p_star, q_star))
    once = math.inf if low == 0 or high == 1 else h * (float(logit(high)) - float(logit(low)))
    return forever, once


def rappor_estimate(
    reports: ArrayLike, *, permanent_probability: float, zero_probability: float, one_probability: float
) -> CountEstimate:
    """Estimate how many people hold each bit."""
    f, p, q = _rappor(permanent_probability, zero_probability, one_probability)
    said = _yes_no("reports", reports)
    p_star, q_star = f * (p + q) / 2 + (1 - f) * p, f * (p + q) / 2 + (1 - f) * q
    if p_star == q_star:
        raise ValueError("the reports say nothing: a zero and a one are reported alike")
    n = said.shape[0]
    ones = said.sum(axis=0, dtype=np.float64)
    return CountEstimate(
        count=(ones - p_star * n) / (q_star - p_star),
        standard_error=np.sqrt(ones * (1 - ones / n)) / abs(q_star - p_star),
        n=n,
    )


# --- What an attacker can do ---------------------------------------------------------------------


def best_attacker_accuracy(epsilon: float, delta: float = 0.0) -> float:
    """Return (e^ε + δ)/(1 + e^ε), the ceiling on any attacker against any (ε, δ) mechanism."""
    epsilon = real_number("epsilon", epsilon, at_least=0)
    delta = real_number("delta", delta, at_least=0, at_most=1)
    return float(expit(epsilon) + delta * expit(-epsilon))


def laplace_attacker_accuracy(epsilon: float) -> float:
    """Return 1 − ½e^(−ε/2), what the best attacker reaches against one Laplace release."""
    return 1 - math.exp(-real_number("epsilon", epsilon, at_least=0) / 2) / 2


def posterior_probability(prior: ArrayLike, epsilon: float) -> tuple[Any, Any]:
    """Return the lowest and highest belief that one ε-DP release can leave behind."""
    belief = real_array("prior", prior, at_least=0, at_most=1)
    epsilon = real_number("epsilon", epsilon, at_least=0)
    with np.errstate(divide="ignore"):
        low, high = expit(logit(belief) - epsilon), expit(logit(belief) + epsilon)
    return (low, high) if belief.ndim else (float(low), float(high))


# --- The budget ----------------------------------------------------------------------------------


class BudgetExceeded(ValueError):  # noqa: N818 - the name says what happened
    """A query was refused because it would spend more than the budget holds."""


@dataclass(frozen=True)
class Expense:
    """One line of the ledger."""

    epsilon: float
    delta: float
    label: str


class PrivacyBudget:
    """A privacy budget that refuses the overspending query before it is answered."""

    def __init__(self, epsilon: float, delta: float = 0.0) -> None:
        self.epsilon = real_number("epsilon", epsilon, above=0)
        self.delta = real_number("delta", delta, at_least=0, below=1)
        self._spent = (Fraction(0), Fraction(0))
        self._ledger: list[Expense] = []
        self._lock = threading.Lock()

    def spend(self, epsilon: float, delta: float = 0.0, label: str = "") -> Expense:
        """Charge an expense, or refuse it."""
        expense = Expense(
            real_number("epsilon", epsilon, above=0), real_number("delta", delta, at_least=0, below=1), label
        )
        with self._lock:
            total = (
                self._spent[0] + _decimal(expense.epsilon),
                self._spent[1] + _decimal(expense.delta),
            )
            if total[0] > _decimal(self.epsilon) or total[1] > _decimal(self.delta):
                raise BudgetExceeded(
                    f"refused {label or 'query'}: it asks epsilon {expense.epsilon}, delta {expense.delta}; "
                    f"spent so far {float(self._spent[0])}, {float(self._spent[1])} "
                    f"of {self.epsilon}, {self.delta}"
                )
            self._spent = total
            self._ledger.append(expense)
        return expense

    def run(self, epsilon: float, mechanism: Callable[[], T], delta: float = 0.0, label: str = "") -> T:
        """Charge first, then answer."""
        self.spend(epsilon, delta, label)
        return mechanism()

    @property
    def spent(self) -> float:
        """ε spent so far."""
        return float(self._spent[0])

    @property
    def remaining(self) -> float:
        """ε left."""
        return float(_decimal(self.epsilon) - self._spent[0])

    @property
    def spent_delta(self) -> float:
        """δ spent so far."""
        return float(self._spent[1])

    @property
    def remaining_delta(self) -> float:
        """δ left."""
        return float(_decimal(self.delta) - self._spent[1])

    @property
    def ledger(self) -> tuple[Expense, ...]:
        """What was spent, in order."""
        return tuple(self._ledger)


def _decimal(number: float) -> Fraction:
    return Fraction(repr(number))


def _rational(name: str, value: Any) -> Fraction:
    if isinstance(value, Fraction):
        exact = value
    elif isinstance(value, numbers.Integral) and not isinstance(value, bool):
        exact = Fraction(int(value))
    else:
        exact = Fraction(real_number(name, value, above=0))
    if exact <= 0:
        raise ValueError(f"{name} must be > 0, got {value}")
    return exact


def _query(name: str, value: ArrayLike, size: int | None) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    centre = real_array(name, value)
    if size is None:
        return centre, centre.shape
    if centre.ndim:
        raise ValueError(f"size must be None when {name} is an array, got {size}")
    return centre, (integer("size", size, at_least=1),)


def _yes_no(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype == bool and array.ndim and array.size:
        return array
    return integer_array(name, array, at_least=0, at_most=1).astype(bool)


def _coins(truth_probability: float, yes_probability: float) -> tuple[float, float]:
    return (
        real_number("truth_probability", truth_probability, at_least=0, at_most=1),
        real_number("yes_probability", yes_probability, at_least=0, at_most=1),
    )


def _rappor(f: float, p: float, q: float) -> tuple[float, float, float]:
    return (
        real_number("permanent_probability", f, at_least=0, at_most=1),
        real_number("zero_probability", p, at_least=0, at_most=1),
        real_number("one_probability", q, at_least=0, at_most=1),
    )


def _bounds(lower: float, upper: float) -> tuple[float, float]:
    lower = real_number("lower", lower)
    return lower, real_number("upper", upper, above=lower)
