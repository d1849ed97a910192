"""Attacks on differential privacy as it was implemented: low bits, and lower bounds on epsilon.

``impossible_under`` reads the low bits of a floating-point Laplace release
[Mironov2012]. The audits turn the success of any attack into a lower
confidence bound on epsilon: from one threshold [Jagielski2020], under the
assumption of Gaussian noise [Nasr2023], or from one single run [Steinke2023].
Chapter 4 explains them; chapters 2 and 5 use the same intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from thousand_fingers.intervals import clopper_pearson
from thousand_fingers.mechanisms import gaussian_epsilon
from thousand_fingers.validation import integer, integer_array, real_array, real_number

# ---------------------------------------------------------------- low bits


def impossible_under(outputs: ArrayLike, *, count: float, scale: float) -> NDArray[np.bool_]:
    r"""Tell which releases NumPy's Laplace sampler cannot produce for a count.

    ``Generator.laplace(count, scale)`` draws a uniform :math:`U = k/2^{53}`
    and returns, in floating point, ``count + scale * log(2 U)`` below one half
    and ``count - scale * log(2 - 2 U)`` above it. There are only
    :math:`2^{53} - 1` such doubles, and another count has *other* ones: an
    output that the neighbour's sampler cannot produce gives the true count
    away with certainty, whatever epsilon promises.

    Parameters
    ----------
    outputs : array-like of float64, any shape
        Releases as they were published. Integers are releases of an integer
        mechanism such as ``discrete_laplace_mechanism``: every integer has
        positive probability under every count, so none is impossible.
    count : float
        The hypothesis to test: the count before noise.
    scale : float
        Scale of the noise, :math:`b = \Delta f / \varepsilon > 0`.

    Returns
    -------
    ndarray of bool, same shape as ``outputs``
        True where no 53-bit uniform reproduces the double exactly.

    Raises
    ------
    TypeError
        If ``outputs`` holds neither float64 numbers nor integers.
    ValueError
        If ``count`` or ``outputs`` is not finite, or ``scale`` is not > 0.

    Notes
    -----
    The search is exhaustive, not heuristic: it finds the smallest k whose
    output is not below the observed one by bisection, which is decisive
    because the sampler's output never decreases with k. Rounded products and
    sums keep order, so only the logarithm needs an argument. Its arguments
    V = 2U (or 2 - 2U as rounded) are distinct multiples of 2**-53 and
    V*abs(log V) <= 1/e, so two neighbours' exact logarithms are at least e/2 = 1.36
    units in the last place apart: a library logarithm with an error below
    0.68 units (those in use stay under 0.6) returns them in order. The
    sampler is not re-implemented here: the installed NumPy is asked, through
    a generator whose state makes it draw the chosen k.

    References
    ----------
    [Mironov2012]

    Examples
    --------
    >>> naive = np.random.default_rng(0).laplace(0, 1.0, size=1000)
    >>> bool(impossible_under(naive, count=0, scale=1.0).any())
    False
    >>> bool(impossible_under(naive, count=1, scale=1.0).mean() > 0.75)
    True
    """
    array = np.asarray(outputs)
    count = real_number("count", count)
    scale = real_number("scale", scale, above=0)
    if array.dtype.kind in "iu":
        return np.zeros(integer_array("outputs", array, allow_empty=True).shape, dtype=bool)
    if array.dtype != np.float64:
        raise TypeError(f"outputs must hold float64 numbers or integers, got dtype {array.dtype}")
    observed = real_array("outputs", array, allow_empty=True).ravel()
    low = np.ones(observed.size, dtype=np.int64)  # k = 0 is drawn again by the sampler
    high = np.full(observed.size, 2**53 - 1)
    for _ in range(53):
        middle = (low + high) // 2
        below = (_laplace_of_uniform(middle, count, scale) < observed) & (low < high)
        low = np.where(below, middle + 1, low)
        high = np.where(below, high, middle)
    return (_laplace_of_uniform(low, count, scale) != observed).reshape(array.shape)


def _laplace_of_uniform(k: NDArray[np.int64], count: float, scale: float) -> NDArray[np.float64]:
    """Return what NumPy's sampler makes of the uniforms k / 2**53, with k >= 1.

    MT19937 hands out its 624 words of state one by one, each scrambled by an
    invertible map, and builds a double from the upper 27 and 26 bits of two of
    them. Writing unscrambled words into the state therefore chooses 312 uniforms.
    """
    blocks = -(-k.size // 312)
    padded = np.ones(312 * blocks, dtype=np.int64)
    padded[: k.size] = k
    words = np.stack([(padded >> 26) << 5, (padded & (2**26 - 1)) << 6], axis=1).astype(np.uint32)
    keys = _untemper(words).reshape(blocks, 624)
    bits = np.random.MT19937(0)
    sampler = np.random.Generator(bits)
    values = np.empty((blocks, 312))
    for key, row in zip(keys, values, strict=True):
        bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 0}}
        row[:] = sampler.laplace(count, scale, size=312)
    return values.ravel()[: k.size]


def _untemper(word: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Invert the output scrambling of MT19937, step by step from its last to its first."""
    word = word ^ (word >> np.uint32(18))
    word = word ^ ((word << np.uint32(15)) & np.uint32(0xEFC60000))
    state = word
    for _ in range(4):  # each pass makes seven more low bits right
        state = word ^ ((state << np.uint32(7)) & np.uint32(0x9D2C5680))
    word = state
    for _ in range(2):  # each pass makes eleven more high bits right
        state = word ^ (state >> np.uint32(11))
    return state


# ---------------------------------------------------------------- lower bounds on epsilon


@dataclass(frozen=True)
class Audit:
    """A lower confidence bound on epsilon and the rates that prove it.

    Attributes
    ----------
    epsilon_lower_bound : float
        The mechanism is not (epsilon, delta)-DP for any smaller epsilon, at
        the stated confidence; 0 when nothing could be shown.
    threshold : float
        Where the attacker cuts: releases above it (or below it, see
        ``direction``) are attributed to ``outputs``.
    tpr, fpr : float
        Measured rates of that attacker: how often a release is attributed to
        ``outputs`` when it comes from there, and when it comes from the neighbour.
    confidence : float
        Probability, at least, with which the bound is right.
    n : int
        Releases examined, both sides together, those that chose the threshold included.
    delta : float
        The delta of the guarantee that was tested.
    direction : {"above", "below"}
        On which side of the threshold the attacker says ``outputs``.
    """

    epsilon_lower_bound: float
    threshold: float
    tpr: float
    fpr: float
    confidence: float
    n: int
    delta: float
    direction: str


@dataclass(frozen=True)
class GaussianAudit(Audit):
    """An :class:`Audit` that used the shape of Gaussian noise.

    Attributes
    ----------
    mu_lower_bound : float
        Lower confidence bound on mu, the ratio of sensitivity to noise
        standard deviation; ``epsilon_lower_bound`` is its epsilon at ``delta``.
    """

    mu_lower_bound: float


def epsilon_lower_bound(
    false_positives: int,
    n_negative: int,
    false_negatives: int,
    n_positive: int,
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> float:
    r"""Return the epsilon that an attacker's two error rates refute.

    An (epsilon, delta)-DP mechanism forces
    :math:`1 - \mathrm{FNR} \le e^\varepsilon\,\mathrm{FPR} + \delta` on every
    attacker, and the same with the two errors exchanged. Each error rate is
    replaced by a Clopper-Pearson upper limit that fails with probability at
    most (1 - confidence)/2, so both hold together, and the bound with them,
    with probability at least ``confidence``.

    Parameters
    ----------
    false_positives, n_negative : int
        Errors among the releases without the person, and their number.
    false_negatives, n_positive : int
        Errors among the releases with the person, and their number.
    confidence : float, default 0.95
        In (0, 1).
    delta : float, default 0
        In [0, 1).

    Returns
    -------
    float
        The larger of the two refuted values, at least 0. The attacker must
        have been fixed before these releases were seen.

    Raises
    ------
    ValueError
        If a count exceeds its total or an argument is out of range.

    References
    ----------
    [Jagielski2020], [Kairouz2015]

    Examples
    --------
    An attacker who is never wrong in 100 + 100 trials:

    >>> round(epsilon_lower_bound(0, 100, 0, 100), 3)
    3.281
    """
    delta = real_number("delta", delta, at_least=0, below=1)
    confidence = real_number("confidence", confidence, above=0, below=1)
    each = 1 - (1 - confidence) / 2
    fpr = clopper_pearson(false_positives, n_negative, each, side="upper").high
    fnr = clopper_pearson(false_negatives, n_positive, each, side="upper").high
    return max(_log_ratio(1 - fnr - delta, fpr), _log_ratio(1 - fpr - delta, fnr), 0.0)


def audit_epsilon(
    outputs: ArrayLike,
    neighbour_outputs: ArrayLike,
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
    thresholds: ArrayLike | None = None,
) -> Audit:
    """Bound from below the epsilon of a mechanism with one number as output.

    Run the mechanism many times, independently, on a data set and on a
    neighbour, and pass the two lists of outputs.

    Without ``thresholds`` every third release of each side chooses the
    attacker (threshold and direction) and the others count its errors: the
    attacker is independent of the releases it is judged on, so the bound of
    :func:`epsilon_lower_bound` holds at its confidence. With ``thresholds``,
    which must have been chosen without looking at the outputs, all releases
    count and the failure probability is divided among the candidates, so the
    best of them holds by the union bound.

    Parameters
    ----------
    outputs, neighbour_outputs : array-like of float, shape (n,) and (m,)
        Independent releases under the two hypotheses, at least 2 each.
    confidence : float, default 0.95
        In (0, 1).
    delta : float, default 0
        In [0, 1).
    thresholds : array-like of float, optional
        Candidate cuts, fixed in advance.

    Returns
    -------
    Audit

    Raises
    ------
    ValueError
        If an array is empty, not one-dimensional or not finite, or another
        argument is out of range.

    References
    ----------
    [Jagielski2020]

    Examples
    --------
    A count published with half of the noise that epsilon = 1 asks for:

    >>> rng = np.random.default_rng(0)
    >>> audit = audit_epsilon(412 + rng.laplace(0, 0.5, 1000), 411 + rng.laplace(0, 0.5, 1000))
    >>> audit.epsilon_lower_bound > 1
    True
    """
    delta = real_number("delta", delta, at_least=0, below=1)

    def bound(fp: int, n_negative: int, fn: int, n_positive: int, level: float) -> float:
        return epsilon_lower_bound(fp, n_negative, fn, n_positive, confidence=level, delta=delta)

    found = _best_attacker(outputs, neighbour_outputs, confidence, thresholds, bound)
    return Audit(
        epsilon_lower_bound=found.bound,
        threshold=found.threshold,
        direction=found.direction,
        tpr=found.tpr,
        fpr=found.fpr,
        confidence=confidence,
        delta=delta,
        n=found.n,
    )


def gaussian_audit(
    outputs: ArrayLike,
    neighbour_outputs: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    thresholds: ArrayLike | None = None,
) -> GaussianAudit:
    r"""Bound from below the epsilon of a Gaussian mechanism.

    At delta = 1e-5 the general audit must see events rarer than its sample.
    If the noise is Gaussian, one point of the trade-off between the two errors
    fixes the whole curve, :math:`\Phi^{-1}(1-\mathrm{FPR}) -
    \Phi^{-1}(\mathrm{FNR}) \le \mu`, and with mu the epsilon at every delta.
    The confidence is that of :func:`audit_epsilon`, for the same reason, and
    the price is the assumption: the mechanism must be mu-GDP for some mu.

    Parameters
    ----------
    outputs, neighbour_outputs : array-like of float, shape (n,) and (m,)
        Independent releases under the two hypotheses, at least 2 each.
    delta : float
        In (0, 1); where the curve is read.
    confidence : float, default 0.95
        In (0, 1).
    thresholds : array-like of float, optional
        Candidate cuts, fixed in advance.

    Returns
    -------
    GaussianAudit

    Raises
    ------
    ValueError
        As :func:`audit_epsilon`.

    References
    ----------
    [Dong2022], [Nasr2023]

    Examples
    --------
    Noise of standard deviation 1 where epsilon = 2 asks for 1.99:

    >>> rng = np.random.default_rng(0)
    >>> audit = gaussian_audit(1 + rng.normal(0, 1, 1000), rng.normal(0, 1, 1000), delta=1e-5)
    >>> audit.mu_lower_bound < 1, audit.epsilon_lower_bound > 2
    (True, True)
    """
    delta = real_number("delta", delta, above=0, below=1)

    def bound(fp: int, n_negative: int, fn: int, n_positive: int, level: float) -> float:
        each = 1 - (1 - level) / 2
        fpr = clopper_pearson(fp, n_negative, each, side="upper").high
        fnr = clopper_pearson(fn, n_positive, each, side="upper").high
        return max(float(-special.ndtri(fpr) - special.ndtri(fnr)), 0.0)

    found = _best_attacker(outputs, neighbour_outputs, confidence, thresholds, bound)
    return GaussianAudit(
        mu_lower_bound=found.bound,
        epsilon_lower_bound=gaussian_epsilon(1 / found.bound, delta) if found.bound > 0 else 0.0,
        threshold=found.threshold,
        direction=found.direction,
        tpr=found.tpr,
        fpr=found.fpr,
        confidence=confidence,
        delta=delta,
        n=found.n,
    )


def one_run_epsilon(m: int, r: int, v: int, delta: float, confidence: float = 0.95) -> float:
    r"""Bound epsilon from below with the guesses made on one single run.

    Each of m canaries was put into the data by a fair coin; after one run the
    attacker guesses the coins of r of them and v guesses are right. For an
    (epsilon, delta)-DP mechanism, with :math:`q = e^\varepsilon/(1+e^\varepsilon)`,

    .. math:: P[V \ge v] \le P[B \ge v] + 2 m \delta \max_{1 \le i \le v}
              \frac{P[v > B \ge v - i]}{i}, \qquad B \sim \mathrm{Bin}(r, q).

    The bound is the smallest epsilon at which the right side reaches
    1 - confidence: it exceeds the true epsilon only when an event of
    probability below 1 - confidence has happened.

    Parameters
    ----------
    m : int
        Canaries whose coin was thrown, at least 1.
    r : int
        Guesses made, at most ``m``; the others are abstentions.
    v : int
        Right guesses, at most ``r``.
    delta : float
        In [0, 1).
    confidence : float, default 0.95
        In (0, 1).

    Returns
    -------
    float
        At least 0. With delta = 0 and every guess right the bound is
        :math:`-\log((1-\mathrm{confidence})^{-1/m} - 1)`: no audit by m
        canaries can ever certify more.

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    [Steinke2023]

    Examples
    --------
    >>> round(one_run_epsilon(1000, 100, 100, 1e-5), 4)
    3.4654
    """
    m = integer("m", m, at_least=1)
    r = integer("r", r, at_least=0, at_most=m)
    v = integer("v", v, at_least=0, at_most=r)
    delta = real_number("delta", delta, at_least=0, below=1)
    confidence = real_number("confidence", confidence, above=0, below=1)
    failure_probability = 1 - confidence
    steps = np.arange(1, v + 1)

    def p_value(epsilon: float) -> float:
        binomial = stats.binom(r, 1 / (1 + math.exp(-epsilon)))
        below = binomial.cdf(v - 1)
        near = (below - binomial.cdf(v - 1 - steps)) / steps
        return float(binomial.sf(v - 1) + 2 * m * delta * near.max(initial=0.0))

    if p_value(0.0) >= failure_probability:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(high) < failure_probability:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if p_value(middle) < failure_probability:
            low = middle
        else:
            high = middle
    return low


class _Attacker(NamedTuple):
    bound: float
    threshold: float
    direction: str
    tpr: float
    fpr: float
    n: int


def _best_attacker(
    outputs: ArrayLike,
    neighbour_outputs: ArrayLike,
    confidence: float,
    thresholds: ArrayLike | None,
    bound: Callable[[int, int, int, int, float], float],
) -> _Attacker:
    """Return the attacker with the largest ``bound``, which is valid at ``confidence``."""
    positive = real_array("outputs", outputs, ndim=1)
    negative = real_array("neighbour_outputs", neighbour_outputs, ndim=1)
    confidence = real_number("confidence", confidence, above=0, below=1)
    if min(positive.size, negative.size) < 2:
        raise ValueError(
            f"outputs and neighbour_outputs must hold at least 2 releases each, "
            f"got {positive.size} and {negative.size}"
        )
    n = positive.size + negative.size

    def evaluate(rule: tuple[float, str], pos: NDArray, neg: NDArray, level: float) -> float:
        fp, fn = _errors(rule, pos, neg)
        return bound(fp, neg.size, fn, pos.size, level)

    if thresholds is None:
        # Every third, so that a slow drift of the mechanism reaches both parts alike.
        choosing, choosing_negative = positive[::3], negative[::3]
        positive, negative = np.delete(positive, np.s_[::3]), np.delete(negative, np.s_[::3])
        rules = _rules(_quantile_cuts(choosing, choosing_negative))
        level = confidence
    else:
        choosing, choosing_negative = positive, negative
        rules = _rules(real_array("thresholds", thresholds, ndim=1))
        level = 1 - (1 - confidence) / len(rules)
    # The choice uses the level of the union bound in both cases. A fresh sample does not need it, but
    # it avoids cuts that look good only because few errors happened to fall beyond them.
    union = 1 - (1 - confidence) / len(rules)
    rule = max(rules, key=lambda rule: evaluate(rule, choosing, choosing_negative, union))
    fp, fn = _errors(rule, positive, negative)
    return _Attacker(
        bound=bound(fp, negative.size, fn, positive.size, level),
        threshold=rule[0],
        direction=rule[1],
        tpr=(positive.size - fn) / positive.size,
        fpr=fp / negative.size,
        n=n,
    )


def _log_ratio(numerator: float, denominator: float) -> float:
    return math.log(numerator / denominator) if numerator > 0 else -math.inf


def _rules(cuts: NDArray[np.float64]) -> list[tuple[float, str]]:
    return [(float(cut), direction) for cut in cuts for direction in ("above", "below")]


def _quantile_cuts(positive: NDArray, negative: NDArray) -> NDArray[np.float64]:
    """Return at most 20 cuts, halfway between neighbouring distinct values of the pooled releases."""
    values = np.unique(np.concatenate([positive, negative]))
    if values.size == 1:
        return values
    cuts = (values[:-1] + values[1:]) / 2
    return cuts[np.unique(np.linspace(0, cuts.size - 1, 20).round().astype(int))]


def _errors(rule: tuple[float, str], positive: NDArray, negative: NDArray) -> tuple[int, int]:
    """Count the false positives and false negatives of an attacker."""
    threshold, direction = rule
    if direction == "above":
        return int((negative > threshold).sum()), int((positive <= threshold).sum())
    return int((negative < threshold).sum()), int((positive >= threshold).sum())
