"""Mechanisms of differential privacy, and the budget that counts them (chapter 4).

Randomized response is Warner's [Warner1965]; the Laplace mechanism comes from Dwork, McSherry, Nissim
and Smith [Dwork2006], the exponential mechanism from McSherry and Talwar [McSherry2007], the tight
Gaussian noise from Balle and Wang [BalleWang2018], the exact integer samplers from Canonne, Kamath and
Steinke [Canonne2020], RAPPOR from Erlingsson, Pihur and Korolova [Erlingsson2014].
NumPy's generators are not cryptographic: right for a book that must repeat itself, wrong for a real release.
"""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, expit, log_ndtr, logit

from thousand_fingers.numerics import smallest_satisfying
from thousand_fingers.validation import integer, integer_array, numpy_generator, real_array, real_number

_Answer = TypeVar("_Answer")
_Group = TypeVar("_Group", bound=Hashable)
_Proposal = tuple[NDArray[Any], NDArray[np.bool_]]  # integers drawn, and which of them to keep


# --- Randomized response --------------------------------------------------------------------------


@dataclass(frozen=True)
class ProportionEstimate:
    """An estimated share of "yes", with its standard error.

    Attributes
    ----------
    proportion : float
        Unbiased, so it may fall a little below 0 or above 1.
    standard_error : float
    n : int
        Number of reports behind it.
    """

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
    """Report the truth when the first coin says so, else what a second coin says.

    Parameters
    ----------
    answers : array-like of bool, any shape
        The true answers (0 and 1 are accepted).
    rng : numpy.random.Generator
        Source of both coins; all first coins are drawn before all second ones.
    truth_probability : float in [0, 1], default 0.5
        Probability that the first coin asks for the truth.
    yes_probability : float in [0, 1], default 0.5
        Probability that the second coin says yes.

    Returns
    -------
    ndarray of bool
        One report per answer. Each satisfies ε-differential privacy with the
        ε of :func:`randomized_response_epsilon`, without anyone being trusted.

    Raises
    ------
    ValueError
        If an answer is not yes or no, or a probability is outside [0, 1].

    References
    ----------
    [Warner1965]

    Examples
    --------
    >>> reports = randomized_response([True] * 6, rng=np.random.default_rng(0))
    >>> reports.tolist()
    [False, True, True, True, False, True]
    """
    truth, yes = _coins(truth_probability, yes_probability)
    true_answers = _yes_no("answers", answers)
    rng = numpy_generator("rng", rng)
    tells_the_truth = rng.random(true_answers.shape) < truth
    second_coin = rng.random(true_answers.shape) < yes
    return np.where(tells_the_truth, true_answers, second_coin)


def randomized_response_epsilon(truth_probability: float = 0.5, yes_probability: float = 0.5) -> float:
    """Return the exact ε of one randomized response.

    With t the probability of the truth and y that of a random yes, a report
    of yes is 1 + t/((1−t)y) times as likely from a person whose answer is
    yes, a report of no 1 + t/((1−t)(1−y)) times as likely from one whose
    answer is no. ε is the logarithm of the larger.

    Parameters
    ----------
    truth_probability, yes_probability : float in [0, 1], default 0.5
        The two coins.

    Returns
    -------
    float
        0 if the truth is never told; infinity if a report can prove an answer.

    Examples
    --------
    >>> round(randomized_response_epsilon(), 4)  # ln 3
    1.0986
    """
    truth, yes = _coins(truth_probability, yes_probability)
    if truth == 0:
        return 0.0
    rarest = (1 - truth) * min(yes, 1 - yes)
    return math.log1p(truth / rarest) if rarest > 0 else math.inf


def estimate_proportion(
    reports: ArrayLike, *, truth_probability: float = 0.5, yes_probability: float = 0.5
) -> ProportionEstimate:
    """Estimate the true share of "yes" behind randomized reports.

    A share π of yes becomes a share tπ + (1−t)y of reports; the estimate
    inverts this line.

    Parameters
    ----------
    reports : array-like of bool
        What :func:`randomized_response` returned.
    truth_probability, yes_probability : float in [0, 1], default 0.5
        The two coins it used; the first must be > 0.

    Returns
    -------
    ProportionEstimate

    Raises
    ------
    ValueError
        If ``truth_probability`` is 0, for then the reports say nothing.

    Examples
    --------
    A thousand people, 400 of them report yes: 250 did so by chance, which
    leaves 150 of the 500 who told the truth.

    >>> estimate = estimate_proportion([True] * 400 + [False] * 600)
    >>> round(estimate.proportion, 12), round(estimate.standard_error, 4)
    (0.3, 0.031)
    """
    truth, yes = _coins(truth_probability, yes_probability)
    if truth == 0:
        raise ValueError("truth_probability must be > 0, got 0.0: such reports say nothing")
    said_yes = _yes_no("reports", reports)
    share = float(said_yes.mean())
    return ProportionEstimate(
        proportion=(share - (1 - truth) * yes) / truth,
        standard_error=math.sqrt(share * (1 - share) / said_yes.size) / truth,
        n=said_yes.size,
    )


# --- Noise on real numbers: Laplace, Gaussian -----------------------------------------------------


def laplace_mechanism(
    value: ArrayLike,
    *,
    sensitivity: float,
    epsilon: float,
    rng: np.random.Generator,
    size: int | None = None,
) -> float | NDArray[np.float64]:
    """Release a value with Laplace noise of scale sensitivity/ε.

    On paper this is ε-differentially private. In floating point it is not:
    the low bits of the sum betray the value [Mironov2012]. For counts use
    :func:`discrete_laplace_mechanism`, for sums :func:`noisy_sum`.

    Parameters
    ----------
    value : float or array-like of float
        The true answer; every entry of an array receives its own noise.
    sensitivity : float > 0
        ℓ1 sensitivity: how far one person can move the value (all entries
        of an array together).
    epsilon : float > 0
        Privacy budget of one release.
    rng : numpy.random.Generator
        Source of the noise.
    size : int, optional
        Number of independent releases of a single value. They cost ε each.

    Returns
    -------
    float or ndarray of float64
        A float for a single value without ``size``.

    Raises
    ------
    ValueError
        If a parameter is out of range, the scale is not representable, or
        ``size`` is given together with an array.

    References
    ----------
    [Dwork2006]

    Examples
    --------
    >>> releases = laplace_mechanism(42, sensitivity=1, epsilon=0.5, rng=np.random.default_rng(0), size=5)
    >>> releases.round(1)
    array([42.6, 40.8, 37. , 35.2, 44. ])
    """
    sensitivity = real_number("sensitivity", sensitivity, above=0)
    epsilon = real_number("epsilon", epsilon, above=0)
    scale = real_number("sensitivity / epsilon", sensitivity / epsilon, above=0)
    centre, shape = _query(value, size)
    released = numpy_generator("rng", rng).laplace(centre, scale, shape)
    return released if shape else float(released)


def classical_gaussian_std(epsilon: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Return the classical Gaussian noise √(2 ln(1.25/δ)) Δ/ε.

    Parameters
    ----------
    epsilon : float in (0, 1)
        Privacy budget.
    delta : float in (0, 1)
        Its slack.
    sensitivity : float > 0, default 1
        ℓ2 sensitivity Δ.

    Returns
    -------
    float
        Standard deviation of the noise.

    Raises
    ------
    ValueError
        If ``epsilon`` is 1 or more: the theorem stops there, and so, a little
        later, does the truth (at ε = 10, δ = 1e-5 the promise is broken).

    References
    ----------
    [DworkRoth2014, Theorem A.1]

    Examples
    --------
    >>> round(classical_gaussian_std(0.5, 1e-5), 4)
    9.6896
    """
    epsilon = real_number("epsilon", epsilon, above=0)
    delta = real_number("delta", delta, above=0, below=1)
    sensitivity = real_number("sensitivity", sensitivity, above=0)
    if epsilon >= 1:
        raise ValueError(
            f"epsilon must be < 1, got {epsilon}: the classical formula is proved only there and "
            "promises too much for larger budgets; use analytic_gaussian_std"
        )
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def gaussian_delta(noise_std: float, epsilon: float, *, sensitivity: float = 1.0) -> float:
    """Return the exact δ of the Gaussian mechanism at a given ε.

    With μ = Δ/σ it is Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), computed to about
    thirteen digits however large or small ε, μ and the result are.

    Parameters
    ----------
    noise_std : float > 0
        Standard deviation σ of the noise.
    epsilon : float >= 0
        Privacy budget.
    sensitivity : float > 0, default 1
        ℓ2 sensitivity Δ.

    Returns
    -------
    float in [0, 1]

    References
    ----------
    [BalleWang2018]

    Examples
    --------
    >>> round(gaussian_delta(3.7306316348, 1.0), 12)
    1e-05
    """
    noise_std = real_number("noise_std", noise_std, above=0)
    epsilon = real_number("epsilon", epsilon, at_least=0)
    sensitivity = real_number("sensitivity", sensitivity, above=0)
    shift = sensitivity / noise_std
    if shift == 0:  # the quotient underflowed
        return 0.0
    near, far = epsilon / shift - shift / 2, epsilon / shift + shift / 2
    # e^ε and the second Φ would overflow and underflow; their product is the density at
    # `near` times the Mills ratio at `far`, in which ε no longer appears.
    if shift > 1:
        return float(np.exp(log_ndtr(-near)) - np.exp(-near * near / 2) * erfcx(far / _SQRT_2) / 2)
    # Here the two terms nearly cancel. Their difference is the integral of minus the
    # slope of the Mills ratio, 1 − x·Mills(x), which is positive everywhere.
    x = epsilon / shift + _NODES * shift / 2
    slope = 1 - x * _SQRT_HALF_PI * erfcx(x / _SQRT_2)
    return math.exp(-near * near / 2) / (2 * _SQRT_HALF_PI) * float(_WEIGHTS @ slope) * shift / 2


_SQRT_2 = math.sqrt(2)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def gaussian_epsilon(noise_std: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Return the smallest ε that the Gaussian mechanism satisfies at a given δ.

    Parameters
    ----------
    noise_std : float > 0
        Standard deviation of the noise.
    delta : float in (0, 1)
        Slack of the budget.
    sensitivity : float > 0, default 1
        ℓ2 sensitivity.

    Returns
    -------
    float
        At least 0, rounded to the safe side: ``gaussian_delta`` there is at
        most ``delta``.

    References
    ----------
    [BalleWang2018]

    Examples
    --------
    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    noise_std = real_number("noise_std", noise_std, above=0)
    delta = real_number("delta", delta, above=0, below=1)
    sensitivity = real_number("sensitivity", sensitivity, above=0)

    def enough(epsilon: float) -> bool:
        return gaussian_delta(noise_std, epsilon, sensitivity=sensitivity) <= delta

    if enough(0.0):
        return 0.0
    high = 1.0
    while not enough(high):
        high *= 2
    return smallest_satisfying(enough, 0.0, high)


def analytic_gaussian_std(epsilon: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Return the smallest Gaussian noise that is (ε, δ)-differentially private.

    Parameters
    ----------
    epsilon : float > 0
        Privacy budget; any size, unlike in :func:`classical_gaussian_std`.
    delta : float in (0, 1)
        Its slack.
    sensitivity : float > 0, default 1
        ℓ2 sensitivity.

    Returns
    -------
    float
        Standard deviation of the noise, rounded to the safe side:
        ``gaussian_delta`` there is at most ``delta``.

    References
    ----------
    [BalleWang2018]

    Examples
    --------
    >>> round(analytic_gaussian_std(0.5, 1e-5), 4)
    7.0318
    """
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
) -> float | NDArray[np.float64]:
    """Release a value with the smallest Gaussian noise that is (ε, δ)-differentially private.

    As with :func:`laplace_mechanism`, floating point weakens what is proved
    on paper; :func:`discrete_gaussian_mechanism` does without it.

    Parameters
    ----------
    value : float or array-like of float
        The true answer; every entry of an array receives its own noise.
    sensitivity : float > 0
        ℓ2 sensitivity: how far one person can move the value.
    epsilon : float > 0
        Privacy budget of one release.
    delta : float in (0, 1)
        Its slack.
    rng : numpy.random.Generator
        Source of the noise.
    size : int, optional
        Number of independent releases of a single value.

    Returns
    -------
    float or ndarray of float64

    References
    ----------
    [BalleWang2018]

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> round(gaussian_mechanism(412, sensitivity=1, epsilon=1, delta=1e-5, rng=rng), 2)
    412.47
    """
    noise_std = analytic_gaussian_std(epsilon, delta, sensitivity=sensitivity)
    centre, shape = _query(value, size)
    released = numpy_generator("rng", rng).normal(centre, noise_std, shape)
    return released if shape else float(released)


# --- Choosing: the exponential mechanism ----------------------------------------------------------


def exponential_probabilities(
    scores: ArrayLike, *, sensitivity: float, epsilon: float
) -> NDArray[np.float64]:
    """Return how likely the exponential mechanism is to choose each candidate.

    Parameters
    ----------
    scores : array-like of shape (n_candidates,)
        How good each candidate is on the private data.
    sensitivity : float > 0
        How far one person can move any score.
    epsilon : float > 0
        Privacy budget of one choice.

    Returns
    -------
    ndarray of shape (n_candidates,)
        Proportional to exp(ε · score / (2 · sensitivity)).

    References
    ----------
    [McSherry2007]

    Examples
    --------
    >>> exponential_probabilities([0, 0, 2], sensitivity=1, epsilon=math.log(2)).round(12)
    array([0.25, 0.25, 0.5 ])
    """
    utility = real_array("scores", scores, ndim=1)
    sensitivity = real_number("sensitivity", sensitivity, above=0)
    epsilon = real_number("epsilon", epsilon, above=0)
    rate = real_number("epsilon / sensitivity", epsilon / sensitivity, above=0)
    with np.errstate(over="ignore"):  # a candidate infinitely behind the best has probability 0
        weights = np.exp((utility - utility.max()) * (rate / 2))
    return weights / weights.sum()


def exponential_mechanism(
    scores: ArrayLike,
    *,
    sensitivity: float,
    epsilon: float,
    rng: np.random.Generator,
    size: int | None = None,
) -> int | NDArray[np.int64]:
    """Choose a candidate, the better ones with exponentially higher probability.

    Parameters
    ----------
    scores : array-like of shape (n_candidates,)
        How good each candidate is on the private data.
    sensitivity : float > 0
        How far one person can move any score.
    epsilon : float > 0
        Privacy budget of one choice.
    rng : numpy.random.Generator
        Source of the choice.
    size : int, optional
        Number of independent choices.

    Returns
    -------
    int or ndarray of int64
        Index of the chosen candidate.

    References
    ----------
    [McSherry2007]

    Examples
    --------
    >>> exponential_mechanism([3, 17, 5], sensitivity=1, epsilon=2, rng=np.random.default_rng(0))
    1
    """
    probabilities = exponential_probabilities(scores, sensitivity=sensitivity, epsilon=epsilon)
    shape = None if size is None else integer("size", size, at_least=1)
    chosen = numpy_generator("rng", rng).choice(probabilities.size, size=shape, p=probabilities)
    return int(chosen) if size is None else chosen


# --- Exact noise on integers ----------------------------------------------------------------------
#
# Every decision below compares integers, so the probabilities are exact and no low bit can leak.
# Many slots are filled at once: a slot whose draw is rejected draws again, independently of the others.


@overload
def discrete_laplace(
    *, scale: int | float | Fraction, rng: np.random.Generator, size: None = None
) -> int: ...
@overload
def discrete_laplace(
    *, scale: int | float | Fraction, rng: np.random.Generator, size: int
) -> NDArray[np.int64]: ...
def discrete_laplace(
    *, scale: int | float | Fraction, rng: np.random.Generator, size: int | None = None
) -> int | NDArray[np.int64]:
    """Draw integers x with probability tanh(1/2b) · exp(−|x|/b), b being the scale.

    This two-sided geometric distribution is what the Laplace distribution
    becomes on the integers. The sampler is exact: it draws uniform integers
    and compares them with integers, and never rounds.

    Parameters
    ----------
    scale : int, float or Fraction, > 0
        Scale b. A float stands for the exact binary fraction that it is.
        At most 2**53 with ``size``, so that the draws fit 64 bits.
    rng : numpy.random.Generator
        Source of uniform integers. NumPy's generators are not cryptographic:
        who sees enough of their output can predict the rest.
    size : int, optional
        Number of draws.

    Returns
    -------
    int or ndarray of int64

    Raises
    ------
    ValueError
        If ``scale`` is not positive and finite, or too large for ``size``.

    Notes
    -----
    The running time depends on the noise drawn. Who can measure it learns
    something about the noise.

    References
    ----------
    [Canonne2020, Algorithm 2], [Ghosh2012]

    Examples
    --------
    >>> discrete_laplace(scale=2, rng=np.random.default_rng(0), size=8)
    array([ -5,  -1,   1,  -2, -10,  -1,  -2,  -6])
    """
    exact = _rational("scale", scale)
    n = _n_draws(size, "scale", exact)
    noise = _discrete_laplace(exact, n, numpy_generator("rng", rng))
    return int(noise[0]) if size is None else noise.astype(np.int64)


@overload
def discrete_gaussian(
    *, variance: int | float | Fraction, rng: np.random.Generator, size: None = None
) -> int: ...
@overload
def discrete_gaussian(
    *, variance: int | float | Fraction, rng: np.random.Generator, size: int
) -> NDArray[np.int64]: ...
def discrete_gaussian(
    *, variance: int | float | Fraction, rng: np.random.Generator, size: int | None = None
) -> int | NDArray[np.int64]:
    """Draw integers x with probability proportional to exp(−x² / (2 · variance)).

    The variance of the draws is never above ``variance``, and below it only
    noticeably for variances under 1. Exact like :func:`discrete_laplace`,
    whose caveats hold here too.

    Parameters
    ----------
    variance : int, float or Fraction, > 0
        Parameter σ². A float stands for the exact binary fraction that it is.
        At most 2**53 with ``size``.
    rng : numpy.random.Generator
        Source of uniform integers; not cryptographic.
    size : int, optional
        Number of draws.

    Returns
    -------
    int or ndarray of int64

    References
    ----------
    [Canonne2020, Algorithm 3]

    Examples
    --------
    >>> discrete_gaussian(variance=4, rng=np.random.default_rng(0), size=8)
    array([ 0, -1,  1, -3,  0,  2, -2,  2])
    """
    exact = _rational("variance", variance)
    n = _n_draws(size, "variance", exact)
    noise = _discrete_gaussian(exact, n, numpy_generator("rng", rng))
    return int(noise[0]) if size is None else noise.astype(np.int64)


def discrete_laplace_mechanism(
    count: int | ArrayLike,
    *,
    epsilon: int | float | Fraction,
    rng: np.random.Generator,
    sensitivity: int = 1,
    size: int | None = None,
) -> int | NDArray[np.int64]:
    """Release counts with exact integer noise of scale sensitivity/ε.

    ε-differentially private as computed, not only on paper. At sensitivity 1
    it gives the best attacker exactly the e^ε/(1+e^ε) that ε allows, and
    still errs less than :func:`laplace_mechanism`.

    Parameters
    ----------
    count : int or array-like of int
        The true count or counts; every entry receives its own noise.
    epsilon : int, float or Fraction, > 0
        Privacy budget of one release.
    rng : numpy.random.Generator
        Source of the noise.
    sensitivity : int, default 1
        ℓ1 sensitivity: by how much one person can change the counts.
    size : int, optional
        Number of independent releases of a single count.

    Returns
    -------
    int or ndarray of int64

    Raises
    ------
    TypeError
        If a count is not an integer.
    ValueError
        If a parameter is out of range; with arrays or ``size``, also if a
        count exceeds 2**62 in size or the scale 2**53.

    References
    ----------
    [Ghosh2012], [Canonne2020]

    Examples
    --------
    >>> discrete_laplace_mechanism(412, epsilon=1, rng=np.random.default_rng(0), size=5)
    array([412, 412, 411, 411, 411])
    """
    scale = integer("sensitivity", sensitivity, at_least=1) / _rational("epsilon", epsilon)
    return _add_integer_noise(count, _discrete_laplace, "sensitivity / epsilon", scale, size, rng)


def discrete_gaussian_mechanism(
    count: int | ArrayLike,
    *,
    variance: int | float | Fraction,
    rng: np.random.Generator,
    size: int | None = None,
) -> int | NDArray[np.int64]:
    """Release counts with exact discrete Gaussian noise.

    At ℓ2 sensitivity Δ one release satisfies Δ²/(2·variance)-zero-concentrated
    differential privacy, like continuous Gaussian noise of that variance.

    Parameters
    ----------
    count : int or array-like of int
        The true count or counts; every entry receives its own noise.
    variance : int, float or Fraction, > 0
        Parameter σ² of the noise.
    rng : numpy.random.Generator
        Source of the noise.
    size : int, optional
        Number of independent releases of a single count.

    Returns
    -------
    int or ndarray of int64

    References
    ----------
    [Canonne2020]

    Examples
    --------
    >>> discrete_gaussian_mechanism([412, 7], variance=4, rng=np.random.default_rng(0))
    array([410,   6])
    """
    exact = _rational("variance", variance)
    return _add_integer_noise(count, _discrete_gaussian, "variance", exact, size, rng)


def _discrete_laplace(scale: Fraction, size: int, rng: np.random.Generator) -> NDArray[Any]:
    # Scale t/s: X geometric with ratio exp(-1/t), then ⌊X/s⌋, then a sign. X is drawn as U + tV.
    t, s = scale.numerator, scale.denominator

    def remainder(n: int) -> _Proposal:
        u = _uniform_below(t, n, rng)
        return u, _bernoulli_exp(u, t, rng)

    def signed(n: int) -> _Proposal:
        u, v = _until_accepted(remainder, n), _successes_of_exp_minus_one(n, rng)
        if t * (int(v.max()) + 1) >= 2**63 or s >= 2**63:
            u, v = u.astype(object), v.astype(object)  # Python integers, which do not overflow
        magnitude = (u + t * v) // s
        negative = rng.integers(0, 2, size=n) == 1
        return np.where(negative, -magnitude, magnitude), ~(negative & (magnitude == 0))  # one zero only

    return _until_accepted(signed, size)


def _discrete_gaussian(variance: Fraction, size: int, rng: np.random.Generator) -> NDArray[Any]:
    # Variance a/b: discrete Laplace Y of scale t = ⌊σ⌋ + 1, kept with probability
    # exp(-(|Y| - σ²/t)² / 2σ²), whose exponent is the fraction below.
    a, b = variance.numerator, variance.denominator
    t = math.isqrt(a // b) + 1
    denominator = 2 * a * b * t * t

    def candidate(n: int) -> _Proposal:
        y = _discrete_laplace(Fraction(t), n, rng)
        if max(denominator, (int(np.abs(y).max()) * b * t + a) ** 2) >= 2**63:
            y = y.astype(object)
        numerator = (np.abs(y) * (b * t) - a) ** 2
        kept = _successes_of_exp_minus_one(n, rng) >= numerator // denominator
        return y, kept & _bernoulli_exp(numerator % denominator, denominator, rng)

    return _until_accepted(candidate, size)


def _bernoulli_exp(numerator: NDArray[Any], denominator: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Toss coins of probability exp(−γ), γ = numerator/denominator in [0, 1].

    The number of successes in a row of coins γ, γ/2, γ/3, … is even with
    probability 1 − γ + γ²/2! − … = exp(−γ).
    """
    even = np.zeros(numerator.size, dtype=bool)
    tossing = np.arange(numerator.size)
    k = 1
    while tossing.size:
        success = _uniform_below(denominator, tossing.size, rng) < numerator[tossing]
        success &= rng.integers(0, k, size=tossing.size) == 0
        even[tossing[~success]] = k % 2 == 1  # the first failure came after k - 1 successes
        tossing = tossing[success]
        k += 1
    return even


def _successes_of_exp_minus_one(size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Count the successes of coins of probability 1/e before the first failure."""
    successes = np.zeros(size, dtype=np.int64)
    tossing = np.arange(size)
    while tossing.size:
        tossing = tossing[_bernoulli_exp(np.ones(tossing.size, dtype=np.int64), 1, rng)]
        successes[tossing] += 1
    return successes


def _uniform_below(n: int, size: int, rng: np.random.Generator) -> NDArray[Any]:
    """Draw uniform integers in [0, n): int64 while n fits, Python integers beyond."""
    if n < 2**63:
        return rng.integers(0, n, size=size, dtype=np.int64)
    n_bits = (n - 1).bit_length()
    n_bytes = (n_bits + 7) // 8

    def candidate(m: int) -> _Proposal:
        raw = rng.bytes(m * n_bytes)
        words = (raw[i : i + n_bytes] for i in range(0, len(raw), n_bytes))
        draws = np.array([int.from_bytes(w, "little") >> 8 * n_bytes - n_bits for w in words], dtype=object)
        return draws, draws < n

    return _until_accepted(candidate, size)


def _until_accepted(propose: Callable[[int], _Proposal], size: int) -> NDArray[Any]:
    """Fill every slot with its first accepted proposal."""
    draws, accepted = propose(size)
    open_slots = np.flatnonzero(~accepted)
    while open_slots.size:
        again, accepted = propose(open_slots.size)
        if again.dtype == object:
            draws = draws.astype(object)
        draws[open_slots] = again
        open_slots = open_slots[~accepted]
    return draws


def _add_integer_noise(
    count: int | ArrayLike,
    sampler: Callable[[Fraction, int, np.random.Generator], NDArray[Any]],
    name: str,
    parameter: Fraction,
    size: int | None,
    rng: np.random.Generator,
) -> int | NDArray[np.int64]:
    rng = numpy_generator("rng", rng)
    if np.ndim(count) == 0 and size is None:  # Python integers, of any size
        return integer("count", count) + int(sampler(parameter, 1, rng)[0])
    counts = integer_array("count", count, at_least=-(2**62), at_most=2**62)
    if counts.ndim and size is not None:
        raise ValueError(f"size must be None when count is an array, got {size}")
    n = _n_draws(counts.size if size is None else size, name, parameter)
    noise = sampler(parameter, n, rng).astype(np.int64)
    return counts + (noise if size is not None else noise.reshape(counts.shape))


def _n_draws(size: int | None, name: str, parameter: Fraction) -> int:
    if size is None:
        return 1
    if parameter > 2**53:
        raise ValueError(f"{name} must be <= 2**53 for arrays of 64-bit integers, got {float(parameter)}")
    return integer("size", size, at_least=1)


# --- Sums and means -------------------------------------------------------------------------------


def noisy_sum(
    values: ArrayLike,
    *,
    lower: float,
    upper: float,
    epsilon: int | float | Fraction,
    rng: np.random.Generator,
) -> float:
    """Release a sum, each value clamped to bounds declared in advance.

    The clamped values become integers on a grid 2**53 times finer than the
    bounds, are added exactly (so their order cannot matter [Casacuberta2022])
    and receive discrete Laplace noise; only the finished release is turned
    back into a float.

    Parameters
    ----------
    values : array-like of shape (n,)
        One value per person. Infinities are clamped and NaN counts as 0, then
        clamped: the call never fails on account of what a person's value is,
        since the failure would itself be a release. No values sum to 0.
    lower, upper : float
        Bounds, from knowledge of the domain and never from the data.
    epsilon : int, float or Fraction, > 0
        Privacy budget, for adding or removing one person.
    rng : numpy.random.Generator
        Source of the noise.

    Returns
    -------
    float
        Infinite if it exceeds the largest double; that too must not fail.

    Raises
    ------
    TypeError
        If ``values`` is not a column of real numbers.
    ValueError
        If the bounds are not finite and ordered, or ε is out of range.

    References
    ----------
    [Canonne2020], [Casacuberta2022]

    Examples
    --------
    >>> ages = np.array([23, 67, 45, 230])
    >>> round(noisy_sum(ages, lower=0, upper=100, epsilon=1, rng=np.random.default_rng(0)), 1)
    171.3
    """
    column, lower, upper = _clampable(values, lower, upper)
    exact = _rational("epsilon", epsilon)
    rng = numpy_generator("rng", rng)
    exponent = 53 - math.frexp(max(abs(lower), abs(upper)))[1]

    def on_grid(x: ArrayLike) -> list[int]:
        return np.rint(np.ldexp(x, exponent)).astype(np.int64).tolist()

    total = sum(on_grid(np.clip(column, lower, upper)))
    sensitivity = max(map(abs, on_grid([lower, upper])))
    noise = int(_discrete_laplace(sensitivity / exact, 1, rng)[0])
    released = (total + noise) / Fraction(2) ** exponent
    try:
        return float(released)
    except OverflowError:
        return -math.inf if released < 0 else math.inf


def noisy_mean(
    values: ArrayLike,
    *,
    lower: float,
    upper: float,
    epsilon: int | float | Fraction,
    rng: np.random.Generator,
) -> float:
    """Release a mean as a noisy sum over a noisy count, half of ε each.

    When people can be added or removed, their number is private too: the
    tempting noise of scale (upper − lower)/(nε) on the mean would use it.

    Parameters
    ----------
    values : array-like of shape (n,)
        One value per person, treated as in :func:`noisy_sum`.
    lower, upper : float
        Bounds, from knowledge of the domain and never from the data.
    epsilon : int, float or Fraction, > 0
        Privacy budget, for adding or removing one person.
    rng : numpy.random.Generator
        Source of the noise, first of the sum and then of the count.

    Returns
    -------
    float
        Brought back between the bounds where the noise led out of them. A
        noisy count below 1 is taken as 1.

    Examples
    --------
    >>> ages = np.tile([23, 67, 45, 30], 250)
    >>> round(noisy_mean(ages, lower=0, upper=100, epsilon=1, rng=np.random.default_rng(0)), 1)
    41.2
    """
    column, lower, upper = _clampable(values, lower, upper)
    half = _rational("epsilon", epsilon) / 2
    total = noisy_sum(column, lower=lower, upper=upper, epsilon=half, rng=rng)
    count = column.size + int(_discrete_laplace(1 / half, 1, rng)[0])
    return min(max(total / max(count, 1), lower), upper)


# --- Local privacy in practice: RAPPOR ------------------------------------------------------------


@dataclass(frozen=True)
class CountEstimate:
    """Estimated numbers of people who hold each bit, with their standard errors.

    Attributes
    ----------
    count, standard_error : ndarray of shape (n_bits,)
    n : int
        Number of reports behind them.
    """

    count: NDArray[np.float64]
    standard_error: NDArray[np.float64]
    n: int


def rappor_permanent(
    bits: ArrayLike, *, permanent_probability: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Blur a person's bits once and for all: RAPPOR's permanent response.

    The device keeps the result and derives every later report from it, so
    that many reports never reveal more than these blurred bits.

    Parameters
    ----------
    bits : array-like of bool, any shape
        The true bits.
    permanent_probability : float in [0, 1]
        RAPPOR's f: the probability that a fair coin replaces a bit.
    rng : numpy.random.Generator
        Source of the coins.

    Returns
    -------
    ndarray of bool

    References
    ----------
    [Erlingsson2014]

    Examples
    --------
    >>> rappor_permanent([1, 0, 1, 1], permanent_probability=0.5, rng=np.random.default_rng(0)).tolist()
    [False, False, True, True]
    """
    f = real_number("permanent_probability", permanent_probability, at_least=0, at_most=1)
    return randomized_response(bits, rng=rng, truth_probability=1 - f)


def rappor_instantaneous(
    permanent_bits: ArrayLike,
    *,
    zero_probability: float,
    one_probability: float,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Make one report from permanently blurred bits: RAPPOR's instantaneous response.

    Parameters
    ----------
    permanent_bits : array-like of bool, any shape
        What :func:`rappor_permanent` returned.
    zero_probability, one_probability : float in [0, 1]
        RAPPOR's p and q: probability to report 1 for a bit 0 and for a bit 1.
    rng : numpy.random.Generator
        Source of the coins.

    Returns
    -------
    ndarray of bool

    References
    ----------
    [Erlingsson2014]

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rappor_instantaneous([1, 0, 1, 1], zero_probability=0.5, one_probability=0.75, rng=rng).tolist()
    [True, True, True, True]
    """
    _, p, q = _rappor(0.0, zero_probability, one_probability)
    kept = _yes_no("permanent_bits", permanent_bits)
    return numpy_generator("rng", rng).random(kept.shape) < np.where(kept, q, p)


def rappor_report(
    bits: ArrayLike,
    *,
    permanent_probability: float,
    zero_probability: float,
    one_probability: float,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Make each person's first report: the permanent, then the instantaneous response.

    For further reports from the same people keep the permanent bits: blurring
    the truth afresh each time would let an average wash the blur away.

    Parameters
    ----------
    bits : array-like of bool of shape (n_people, n_bits) or (n_people,)
        The true bits (in a deployment, the person's Bloom filter).
    permanent_probability, zero_probability, one_probability : float in [0, 1]
        RAPPOR's f, p and q.
    rng : numpy.random.Generator
        Source of the coins.

    Returns
    -------
    ndarray of bool, shaped like ``bits``

    References
    ----------
    [Erlingsson2014]

    Examples
    --------
    >>> coins = dict(permanent_probability=0.5, zero_probability=0.5, one_probability=0.75)
    >>> rappor_report([1, 0, 1, 1], **coins, rng=np.random.default_rng(0)).tolist()
    [False, False, False, True]
    """
    f, p, q = _rappor(permanent_probability, zero_probability, one_probability)
    permanent = rappor_permanent(bits, permanent_probability=f, rng=rng)
    return rappor_instantaneous(permanent, zero_probability=p, one_probability=q, rng=rng)


def rappor_epsilon(
    *, permanent_probability: float, zero_probability: float, one_probability: float, n_hashes: int = 2
) -> tuple[float, float]:
    """Return what RAPPOR costs for ever, and what its first report costs.

    Parameters
    ----------
    permanent_probability, zero_probability, one_probability : float in [0, 1]
        RAPPOR's f, p and q.
    n_hashes : int, default 2
        Number h of Bloom filter bits that a value sets.

    Returns
    -------
    forever : float
        ε of the permanent bits, 2h ln((1 − f/2)/(f/2)): a bound on all
        reports together.
    once : float
        ε of one report as the paper counts it, h times the log odds ratio of
        reporting 1 from a true 1 and from a true 0.

    References
    ----------
    [Erlingsson2014]

    Examples
    --------
    >>> forever, once = rappor_epsilon(permanent_probability=0.5, zero_probability=0.5, one_probability=0.75)
    >>> round(forever, 4), round(once, 4)
    (4.3944, 1.0743)
    """
    p_star, q_star = _rappor_reports(permanent_probability, zero_probability, one_probability)
    h = integer("n_hashes", n_hashes, at_least=1)
    f = permanent_probability
    forever = 2 * h * math.log((2 - f) / f) if f > 0 else math.inf
    once = 0.0 if p_star == q_star else h * abs(float(logit(q_star) - logit(p_star)))
    return forever, once


def rappor_estimate(
    reports: ArrayLike, *, permanent_probability: float, zero_probability: float, one_probability: float
) -> CountEstimate:
    """Estimate how many people truly hold each bit.

    Parameters
    ----------
    reports : array-like of bool of shape (n_people, n_bits)
        One report per person.
    permanent_probability, zero_probability, one_probability : float in [0, 1]
        RAPPOR's f, p and q.

    Returns
    -------
    CountEstimate
        Unbiased, so a count may come out negative.

    Raises
    ------
    ValueError
        If a zero and a one are reported alike: the reports then say nothing.

    References
    ----------
    [Erlingsson2014]

    Examples
    --------
    >>> reports = np.zeros((1000, 1), dtype=bool)
    >>> reports[:600] = True
    >>> coins = dict(permanent_probability=0.5, zero_probability=0.5, one_probability=0.75)
    >>> estimate = rappor_estimate(reports, **coins)
    >>> estimate.count.round(6), estimate.standard_error.round(1)
    (array([300.]), array([123.9]))
    """
    p_star, q_star = _rappor_reports(permanent_probability, zero_probability, one_probability)
    if p_star == q_star:
        raise ValueError(
            "zero_probability, one_probability and permanent_probability leave nothing to estimate"
        )
    said = _yes_no("reports", reports)
    if said.ndim != 2:
        raise ValueError(f"reports must have shape (n_people, n_bits), got {said.shape}")
    n = said.shape[0]
    ones = said.sum(axis=0, dtype=np.float64)
    return CountEstimate(
        count=(ones - p_star * n) / (q_star - p_star),
        standard_error=np.sqrt(ones * (1 - ones / n)) / abs(q_star - p_star),
        n=n,
    )


# --- What an attacker can do ----------------------------------------------------------------------


def best_attacker_accuracy(epsilon: float, delta: float = 0.0) -> float:
    """Return (e^ε + δ)/(1 + e^ε): no attacker is right more often.

    The attacker sees one release and guesses from which of two neighbouring
    tables it came, both equally likely beforehand.

    Parameters
    ----------
    epsilon : float >= 0
        Privacy budget of the release.
    delta : float in [0, 1], default 0
        Its slack.

    Returns
    -------
    float in [0.5, 1]

    References
    ----------
    [Kairouz2015]

    Examples
    --------
    >>> [round(best_attacker_accuracy(epsilon), 5) for epsilon in (0.1, 1, 10)]
    [0.52498, 0.73106, 0.99995]
    """
    epsilon = real_number("epsilon", epsilon, at_least=0)
    delta = real_number("delta", delta, at_least=0, at_most=1)
    return float(expit(epsilon) + delta * expit(-epsilon))


def laplace_attacker_accuracy(epsilon: float) -> float:
    """Return 1 − ½e^(−ε/2): what the best attacker reaches against one Laplace release.

    Less than :func:`best_attacker_accuracy` allows, because between the two
    true values the release gives away less than ε.

    Parameters
    ----------
    epsilon : float >= 0
        Privacy budget of the release; noise of scale sensitivity/ε.

    Returns
    -------
    float in [0.5, 1]

    Examples
    --------
    >>> [round(laplace_attacker_accuracy(epsilon), 5) for epsilon in (0.1, 1, 10)]
    [0.52439, 0.69673, 0.99663]
    """
    return 1 - math.exp(-real_number("epsilon", epsilon, at_least=0) / 2) / 2


def posterior_probability(prior: ArrayLike, epsilon: float) -> tuple[Any, Any]:
    """Return the lowest and highest belief that one ε-DP release can leave behind.

    The odds move by a factor between e^(−ε) and e^ε, whatever is released
    and whoever looks at it.

    Parameters
    ----------
    prior : float or array-like of float, in [0, 1]
        Belief before the release.
    epsilon : float >= 0
        Privacy budget of the release.

    Returns
    -------
    low, high : float, or ndarrays shaped like ``prior``

    Examples
    --------
    The coin survey: a "yes" lifts a suspicion of 30 % to 56 %.

    >>> low, high = posterior_probability(0.3, math.log(3))
    >>> round(low, 4), round(high, 4)
    (0.125, 0.5625)
    """
    belief = real_array("prior", prior, at_least=0, at_most=1)
    epsilon = real_number("epsilon", epsilon, at_least=0)
    with np.errstate(divide="ignore"):  # certainty has infinite log odds, and stays
        low, high = expit(logit(belief) - epsilon), expit(logit(belief) + epsilon)
    return (low, high) if belief.ndim else (float(low), float(high))


# --- The budget -----------------------------------------------------------------------------------


class BudgetExceeded(ValueError):  # noqa: N818 - it is the refusal, not a mistake
    """A query was refused because it would spend more than the budget holds."""


@dataclass(frozen=True)
class Expense:
    """One line of a budget's ledger."""

    epsilon: float
    delta: float
    label: str


class PrivacyBudget:
    """A privacy budget that refuses the overspending query before answering it.

    Expenses add up (basic composition), which is valid however each query
    was chosen after seeing the answers to the ones before. One budget can be
    used from many threads.

    Parameters
    ----------
    epsilon : float > 0
        All there is to spend.
    delta : float in [0, 1), default 0
        All the slack there is to spend.

    Raises
    ------
    ValueError
        If a number is NaN, infinite or out of range.

    Notes
    -----
    **Arithmetic.** Floats do not add up: 0.1 + 0.2 is more than 0.3, and the
    binary fraction called 0.1 is itself a little more than a tenth, so that
    ten of them exceed 1. The budget therefore reads every number as the
    shortest decimal that names it (what Python prints) and adds those
    exactly, as fractions: ten times 0.1 is 1, three times 0.1 is 0.3, and
    nothing, however small, fits in after that. The double that a mechanism
    computes with differs from its decimal by less than one part in 2**53, so
    the promise is kept to that relative accuracy. A Fraction is taken as it is.

    References
    ----------
    [Dwork2006], [McSherry2009]

    Examples
    --------
    >>> budget = PrivacyBudget(1.0)
    >>> rng = np.random.default_rng(0)
    >>> budget.run(0.4, lambda: discrete_laplace_mechanism(412, epsilon=0.4, rng=rng), label="smokers")
    411
    >>> budget.spend(0.4)
    Expense(epsilon=0.4, delta=0.0, label='')
    >>> budget.spend(0.3)
    Traceback (most recent call last):
        ...
    thousand_fingers.mechanisms.BudgetExceeded: refused a query for epsilon 0.3: only 0.2 of 1.0 is left
    >>> budget
    PrivacyBudget(epsilon=1.0, delta=0.0, spent=0.8, spent_delta=0.0)
    """

    def __init__(self, epsilon: float | Fraction, delta: float | Fraction = 0.0) -> None:
        self._epsilon = _as_written(epsilon, real_number("epsilon", epsilon, above=0))
        self._delta = _as_written(delta, real_number("delta", delta, at_least=0, below=1))
        self._spent_epsilon = Fraction(0)
        self._spent_delta = Fraction(0)
        self._ledger: tuple[Expense, ...] = ()
        self._lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        # copy, deepcopy and pickle all come here
        raise TypeError("a PrivacyBudget cannot be copied: the copy would spend the same budget again")

    def __repr__(self) -> str:
        return (
            f"PrivacyBudget(epsilon={self.epsilon}, delta={self.delta}, "
            f"spent={self.spent}, spent_delta={self.spent_delta})"
        )

    def spend(self, epsilon: float | Fraction, delta: float | Fraction = 0.0, label: str = "") -> Expense:
        """Enter an expense in the ledger, or refuse it and leave everything as it was.

        Parameters
        ----------
        epsilon : float or Fraction, > 0
            ε of the query about to be answered.
        delta : float or Fraction in [0, 1), default 0
            Its slack.
        label : str, default ""
            What the ledger calls it.

        Returns
        -------
        Expense

        Raises
        ------
        BudgetExceeded
            If less than that is left.
        ValueError
            If a number is NaN, infinite or out of range.
        """
        exact_epsilon = _as_written(epsilon, real_number("epsilon", epsilon, above=0))
        exact_delta = _as_written(delta, real_number("delta", delta, at_least=0, below=1))
        expense = Expense(float(exact_epsilon), float(exact_delta), str(label))
        with self._lock:  # checking and charging are one step
            if self._spent_epsilon + exact_epsilon > self._epsilon:
                raise BudgetExceeded(
                    f"refused {label or 'a query'} for epsilon {expense.epsilon}: "
                    f"only {self.remaining} of {self.epsilon} is left"
                )
            if self._spent_delta + exact_delta > self._delta:
                raise BudgetExceeded(
                    f"refused {label or 'a query'} for delta {expense.delta}: "
                    f"only {self.remaining_delta} of {self.delta} is left"
                )
            self._spent_epsilon += exact_epsilon
            self._spent_delta += exact_delta
            self._ledger += (expense,)
        return expense

    def run(
        self,
        epsilon: float | Fraction,
        mechanism: Callable[[], _Answer],
        delta: float | Fraction = 0.0,
        label: str = "",
    ) -> _Answer:
        """Charge first, then answer.

        Parameters
        ----------
        epsilon : float or Fraction, > 0
            ε of the mechanism; the caller vouches that it is.
        mechanism : callable
            Makes the release. It is not called if the budget refuses. If it
            fails, the charge stands: a failure can depend on the data too.
        delta, label
            As in :meth:`spend`.

        Returns
        -------
        object
            What ``mechanism`` returned.

        Raises
        ------
        BudgetExceeded
            If less than that is left.
        """
        self.spend(epsilon, delta, label)
        return mechanism()

    def run_in_parallel(
        self,
        epsilon: float | Fraction,
        mechanism: Callable[[list[int]], _Answer],
        *,
        labels: Iterable[Hashable],
        groups: Collection[_Group],
        delta: float | Fraction = 0.0,
        label: str = "",
    ) -> dict[_Group, _Answer]:
        """Charge once, then answer the same query about each of several disjoint groups.

        A person who is added or removed is in one group at most, so the
        answers together cost what one of them costs [McSherry2009]. The
        groups are disjoint by construction: every record has one label.

        Parameters
        ----------
        epsilon : float or Fraction, > 0
            ε of the mechanism on one group.
        mechanism : callable
            Receives the row numbers of one group and makes its release.
        labels : iterable of hashable, one per record
            The group each record belongs to; other labels are left out.
        groups : collection of hashable, distinct
            The groups to answer about, declared and not read from the data
            (which groups exist is information too). Empty ones are answered.
        delta, label
            As in :meth:`spend`.

        Returns
        -------
        dict
            One release per group, in the order of ``groups``.

        Raises
        ------
        BudgetExceeded
            If less than ε or δ is left.
        ValueError
            If a group is listed twice.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> budget = PrivacyBudget(1.0)
        >>> budget.run_in_parallel(
        ...     1.0,
        ...     lambda rows: discrete_laplace_mechanism(len(rows), epsilon=1.0, rng=rng),
        ...     labels=["north"] * 40 + ["south"] * 25,
        ...     groups=["north", "south", "islands"],
        ... )
        {'north': 40, 'south': 26, 'islands': 1}
        >>> budget.remaining
        0.0
        """
        rows: dict[Hashable, list[int]] = {group: [] for group in groups}
        if len(rows) < len(groups):
            raise ValueError(f"groups must be distinct, got {list(groups)}")
        for row, group in enumerate(labels):
            if group in rows:
                rows[group].append(row)
        self.spend(epsilon, delta, label)
        return {group: mechanism(rows[group]) for group in groups}

    @property
    def epsilon(self) -> float:
        """All the ε there is to spend."""
        return float(self._epsilon)

    @property
    def delta(self) -> float:
        """All the δ there is to spend."""
        return float(self._delta)

    @property
    def spent(self) -> float:
        """The ε spent so far, rounded up."""
        return _double_at_least(self._spent_epsilon)

    @property
    def spent_delta(self) -> float:
        """The δ spent so far, rounded up."""
        return _double_at_least(self._spent_delta)

    @property
    def remaining(self) -> float:
        """The ε left, rounded down: spending it is always accepted, unless it is 0."""
        return 0.0 - _double_at_least(self._spent_epsilon - self._epsilon)

    @property
    def remaining_delta(self) -> float:
        """The δ left, rounded down."""
        return 0.0 - _double_at_least(self._spent_delta - self._delta)

    @property
    def ledger(self) -> tuple[Expense, ...]:
        """All expenses accepted so far, in order."""
        return self._ledger


def _as_written(value: float | Fraction, number: float) -> Fraction:
    return value if isinstance(value, Fraction) else Fraction(repr(number))


def _double_at_least(exact: Fraction) -> float:
    number = float(exact)
    while Fraction(repr(number)) < exact:
        number = math.nextafter(number, math.inf)
    return number


# --- Arguments ------------------------------------------------------------------------------------


def _rational(name: str, value: int | float | Fraction) -> Fraction:
    if isinstance(value, Fraction):
        exact = value
    elif isinstance(value, numbers.Integral) and not isinstance(value, bool):
        exact = Fraction(int(value))
    else:
        exact = Fraction(real_number(name, value, above=0))
    if exact <= 0:
        raise ValueError(f"{name} must be > 0, got {value}")
    return exact


def _query(value: ArrayLike, size: int | None) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    centre = real_array("value", value)
    if size is None:
        return centre, centre.shape
    if centre.ndim:
        raise ValueError(f"size must be None when value is an array, got {size}")
    return centre, (integer("size", size, at_least=1),)


def _yes_no(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype == bool:
        array = array.astype(np.int64)
    return integer_array(name, array, at_least=0, at_most=1).astype(bool)


def _coins(truth_probability: float, yes_probability: float) -> tuple[float, float]:
    return (
        real_number("truth_probability", truth_probability, at_least=0, at_most=1),
        real_number("yes_probability", yes_probability, at_least=0, at_most=1),
    )


def _clampable(values: ArrayLike, lower: float, upper: float) -> tuple[NDArray[np.float64], float, float]:
    lower = real_number("lower", lower)
    upper = real_number("upper", upper, above=lower)
    column = np.asarray(values)
    if column.dtype.kind not in "fiub" or column.ndim != 1:
        raise TypeError(f"values must be one column of real numbers, got {column.dtype} {column.shape}")
    return np.nan_to_num(column.astype(np.float64), nan=0.0), lower, upper


def _rappor(f: float, p: float, q: float) -> tuple[float, float, float]:
    return (
        real_number("permanent_probability", f, at_least=0, at_most=1),
        real_number("zero_probability", p, at_least=0, at_most=1),
        real_number("one_probability", q, at_least=0, at_most=1),
    )


def _rappor_reports(f: float, p: float, q: float) -> tuple[float, float]:
    """Return RAPPOR's p* and q*: how often a true 0 and a true 1 are reported as 1."""
    f, p, q = _rappor(f, p, q)
    return f * (p + q) / 2 + (1 - f) * p, f * (p + q) / 2 + (1 - f) * q
