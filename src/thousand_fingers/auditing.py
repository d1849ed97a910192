"""Attacks on differential privacy as it was implemented: low bits, and lower bounds on epsilon.

``impossible_under`` reads the low bits of a floating-point Laplace release
[Mironov2012]. The audits turn the success of any attack into a lower
confidence bound on epsilon: from one threshold [Jagielski2020], under the
assumption of Gaussian noise [Nasr2023], or from one single run [Steinke2023].
Chapter 4 explains them. The audits of a step of DP-SGD, and six ways to get such a step wrong on which
they are tried, belong to chapter 5.
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
from thousand_fingers.validation import (
    choice,
    integer,
    integer_array,
    numpy_generator,
    real_array,
    real_number,
)

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


# ---------------------------------------------------------------- audits of a step of DP-SGD


SABOTAGES = (
    "half the noise",
    "clip the mean",
    "divide by the actual batch",
    "reuse the noise",
    "shuffle for Poisson",
    "skip empty batches",
)


def private_step(
    gradients: ArrayLike,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    expected_batch_size: float,
    rng: np.random.Generator,
    sabotage: str | None = None,
) -> NDArray[np.float64]:
    """Return the noisy mean gradient of DP-SGD from a matrix of gradients, right or wrong on purpose.

    The step of chapter 5 in two lines, for audits that want to be tried on a
    known fault. It is ``dpsgd.private_gradient`` of a model whose gradients
    are its inputs.

    Parameters
    ----------
    gradients : array-like of float, shape (batch, d)
        One row per example; there may be none.
    noise_multiplier : float >= 0
        σ.
    max_grad_norm : float > 0
        C.
    expected_batch_size : float > 0
        B.
    rng : numpy.random.Generator
        Source of the noise.
    sabotage : {"half the noise", "clip the mean", "divide by the actual batch", "reuse the noise"}, optional
        What to do wrong. The other :data:`SABOTAGES` are faults of the sampler and change nothing here.

    Returns
    -------
    ndarray of shape (d,)

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    [Abadi2016]

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> private_step([[3.0, 4.0]], noise_multiplier=0, max_grad_norm=1, expected_batch_size=2, rng=rng)
    array([0.3, 0.4])
    """
    rows = real_array("gradients", gradients, ndim=2, allow_empty=True)
    sigma = real_number("noise_multiplier", noise_multiplier, at_least=0)
    clip_to = real_number("max_grad_norm", max_grad_norm, above=0)
    size = real_number("expected_batch_size", expected_batch_size, above=0)
    rng = numpy_generator("rng", rng)
    choice("sabotage", sabotage, (None, *SABOTAGES))
    if sabotage == "half the noise":
        sigma = sigma / 2
    if sabotage == "reuse the noise":
        rng = np.random.default_rng(0)
    if sabotage == "divide by the actual batch":
        size = max(len(rows), 1)
    noise = sigma * clip_to * rng.standard_normal(rows.shape[1])
    if sabotage == "clip the mean":
        return (size * _clipped(rows.sum(axis=0, keepdims=True) / size, clip_to)[0] + noise) / size
    return (_clipped(rows, clip_to).sum(axis=0) + noise) / size


def _clipped(rows: NDArray[np.float64], clip_to: float) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(1, norms / clip_to)


def draw_batches(
    n: int, sample_rate: float, steps: int, *, rng: np.random.Generator, sabotage: str | None = None
) -> NDArray[np.bool_]:
    """Draw the Poisson batches of a training, right or wrong on purpose.

    Parameters
    ----------
    n : int >= 1
        Examples.
    sample_rate : float in (0, 1)
        q, the probability with which each enters each batch.
    steps : int >= 1
        Batches.
    rng : numpy.random.Generator
        Source of the coins.
    sabotage : {"shuffle for Poisson", "skip empty batches"}, optional
        What to do wrong. The other :data:`SABOTAGES` are faults of the step and change nothing here.

    Returns
    -------
    ndarray of bool, shape (steps, n)
        Who is in which batch.

    Examples
    --------
    >>> draw_batches(1000, 0.01, 4, rng=np.random.default_rng(0)).sum(axis=1)
    array([11, 17,  6,  8])
    """
    n = integer("n", n, at_least=1)
    q = real_number("sample_rate", sample_rate, above=0, below=1)
    steps = integer("steps", steps, at_least=1)
    rng = numpy_generator("rng", rng)
    choice("sabotage", sabotage, (None, *SABOTAGES))
    if sabotage == "shuffle for Poisson":
        per_epoch = round(1 / q)
        epochs = -(-steps // per_epoch)
        seat = np.concatenate([rng.permutation(n) * per_epoch // n + e * per_epoch for e in range(epochs)])
        return (seat.reshape(epochs, n)[:, None] == np.arange(steps)[:, None]).any(axis=0)
    batches = rng.random((steps, n)) < q
    if sabotage == "skip empty batches":
        while (empty := ~batches.any(axis=1)).any():
            batches[empty] = rng.random((int(empty.sum()), n)) < q
    return batches


@dataclass(frozen=True)
class NoiseAudit:
    """What a step's noise looks like when there is nothing to hide.

    Attributes
    ----------
    noise_std : float
        Measured standard deviation.
    low, high : float
        Where it falls with the promised noise, but for the failure probability.
    correlation : float
        Largest correlation, in absolute value, between the noises of two steps.
    correlation_limit : float
        What independent noises do not exceed, but for the failure probability.
    passed : bool
    """

    noise_std: float
    low: float
    high: float
    correlation: float
    correlation_limit: float
    passed: bool


def audit_noise(releases: ArrayLike, *, noise_std: float, failure_probability: float = 1e-6) -> NoiseAudit:
    """Check size and freshness of the noise: feed gradients of zero, look at what comes out.

    Parameters
    ----------
    releases : array-like of float, shape (steps, d)
        Releases of steps whose examples all have gradient zero, or of empty
        batches; d of some thousands gives the test its power.
    noise_std : float > 0
        What was promised: σC/B.
    failure_probability : float, default 1e-6
        With which right noise is accused.

    Returns
    -------
    NoiseAudit

    Raises
    ------
    ValueError
        If there are fewer than 2 steps or 3 coordinates, or a release is not finite.

    Notes
    -----
    The sum of squares of right noise has a chi-square distribution, and the
    correlation of two independent normal vectors a known one (Student's t,
    transformed); both are exact. All pairs of steps are compared.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(0, 0.5, (4, 10_000))
    >>> audit_noise(noise, noise_std=0.5).passed, audit_noise(noise, noise_std=1.0).passed
    (True, False)
    """
    rows = real_array("releases", releases, ndim=2)
    promised = real_number("noise_std", noise_std, above=0)
    failure = real_number("failure_probability", failure_probability, above=0, below=1)
    steps, d = rows.shape
    if steps < 2 or d < 3:
        raise ValueError(f"releases must hold at least 2 steps of 3 coordinates, got shape {rows.shape}")
    law = stats.chi2(rows.size)
    low, high = (promised * math.sqrt(law.ppf(p) / rows.size) for p in (failure / 4, 1 - failure / 4))
    measured = math.sqrt(float((rows**2).mean()))
    lengths = np.linalg.norm(rows, axis=1)
    correlations = rows @ rows.T / np.maximum(np.outer(lengths, lengths), np.finfo(float).tiny)
    correlation = float(np.abs(correlations[np.triu_indices(steps, 1)]).max())
    # A uniformly random direction: r·√(d−1)/√(1−r²) is Student's t with d − 1 degrees of freedom.
    t = float(stats.t(d - 1).isf(failure / 2 / (steps * (steps - 1))))
    limit = t / math.sqrt(d - 1 + t * t)
    return NoiseAudit(
        noise_std=measured,
        low=low,
        high=high,
        correlation=correlation,
        correlation_limit=limit,
        passed=low <= measured <= high and correlation <= limit,
    )


@dataclass(frozen=True)
class SensitivityAudit:
    """How far one example moved the sum behind a release.

    Attributes
    ----------
    sensitivity : float
        The largest distance found; a lower bound on the truth.
    limit : float
        What was promised, C.
    worst : str
        The pair of batches that reached it.
    passed : bool
    """

    sensitivity: float
    limit: float
    worst: str
    passed: bool


def audit_sensitivity(
    release: Callable[[NDArray[np.float64]], ArrayLike],
    *,
    max_grad_norm: float,
    expected_batch_size: float,
    dimension: int = 8,
) -> SensitivityAudit:
    """Look for an example that moves a step by more than the noise was made for.

    Parameters
    ----------
    release : callable
        The step *without noise*: a function of the gradients of a batch, shape
        (batch, dimension), that returns the released gradient.
    max_grad_norm : float > 0
        C.
    expected_batch_size : float > 0
        B: the release is the sum divided by it.
    dimension : int >= 2, default 8
        Coordinates of a gradient.

    Returns
    -------
    SensitivityAudit

    Notes
    -----
    Tried are batches of 0 to 2B equal gradients at, below and far above C,
    and one more example that points along, against or across them, of length
    from 0 to a million times C.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> step = dict(noise_multiplier=0, max_grad_norm=1, expected_batch_size=4, rng=rng)
    >>> promised = dict(max_grad_norm=1, expected_batch_size=4)
    >>> audit_sensitivity(lambda g: private_step(g, **step), **promised).passed
    True
    >>> audit_sensitivity(lambda g: private_step(g, **step, sabotage="clip the mean"), **promised).worst
    '4 examples of length 1 C, one of length 1e+06 C against them'
    """
    clip_to = real_number("max_grad_norm", max_grad_norm, above=0)
    size = real_number("expected_batch_size", expected_batch_size, above=0)
    dimension = integer("dimension", dimension, at_least=2)
    along, across = np.eye(dimension)[:2]
    directions = {"along": along, "against": -along, "across": across}
    found, worst = 0.0, "none"
    for n in sorted({0, 1, 2, math.ceil(size), 2 * math.ceil(size)}):
        for length in (0.5, 1.0, 1e6):
            batch = np.tile(length * clip_to * along, (n, 1))
            before = np.asarray(release(batch), dtype=np.float64)
            for one in (0.0, 1e-9, 1.0, 1e6):
                for name, direction in directions.items():
                    after = np.asarray(release(np.vstack([batch, one * clip_to * direction])))
                    moved = size * float(np.linalg.norm(after - before))
                    if not moved <= found:  # NaN counts as worst
                        found = moved if math.isfinite(moved) else math.inf
                        worst = f"{n} examples of length {length:g} C, one of length {one:g} C {name} them"
    return SensitivityAudit(found, clip_to, worst, passed=found <= clip_to * (1 + 1e-6))


@dataclass(frozen=True)
class SamplerAudit:
    """Whether batches look like Poisson samples.

    Attributes
    ----------
    p_values : dict of str to float
        "rate": how many entered at all. "batch sizes": whether they vary as
        independent coins do. "examples": whether the number of batches an
        example is in varies so. "empty batches": whether they occur.
    passed : bool
        No p-value is below a quarter of the failure probability.
    """

    p_values: dict[str, float]
    passed: bool


def audit_sampler(
    batches: ArrayLike, *, sample_rate: float, failure_probability: float = 1e-6
) -> SamplerAudit:
    """Check that batches were drawn by an independent coin for every example and step.

    Parameters
    ----------
    batches : array-like of bool, shape (steps, n)
        Who was in which batch; some hundred steps give the test its power.
    sample_rate : float in (0, 1)
        The promised q.
    failure_probability : float, default 1e-6
        With which a right sampler is accused.

    Returns
    -------
    SamplerAudit

    Notes
    -----
    Number of entries and of empty batches are compared with their binomial
    laws, exactly. The two dispersions are sums of squares of binomial
    deviations; their law is replaced by the multiple of a chi-square with the
    same mean and variance.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> audit_sampler(draw_batches(40, 1 / 40, 400, rng=rng), sample_rate=1 / 40).passed
    True
    >>> wrong = draw_batches(40, 1 / 40, 400, rng=rng, sabotage="skip empty batches")
    >>> audit_sampler(wrong, sample_rate=1 / 40).passed
    False
    """
    entered = np.asarray(batches)
    if entered.dtype != np.bool_ or entered.ndim != 2 or entered.size == 0:
        raise ValueError(f"batches must be booleans of shape (steps, n), got {entered.dtype} {entered.shape}")
    q = real_number("sample_rate", sample_rate, above=0, below=1)
    failure = real_number("failure_probability", failure_probability, above=0, below=1)
    steps, n = entered.shape
    sizes = entered.sum(axis=1)
    p_values = {
        "rate": float(stats.binomtest(int(sizes.sum()), entered.size, q).pvalue),
        "batch sizes": _dispersion(sizes, n, q),
        "examples": _dispersion(entered.sum(axis=0), steps, q),
        "empty batches": float(stats.binomtest(int((sizes == 0).sum()), steps, (1 - q) ** n).pvalue),
    }
    return SamplerAudit(p_values, passed=min(p_values.values()) >= failure / 4)


def _dispersion(counts: NDArray[np.int64], trials: int, q: float) -> float:
    """Return the two-sided p-value of the spread of binomial counts."""
    variance = trials * q * (1 - q)
    fourth = 3 * variance**2 + variance * (1 - 6 * q * (1 - q))  # central moment of the binomial
    total = float(((counts - trials * q) ** 2).sum())
    if trials == 1 and q == 0.5:  # every deviation is one half: nothing is spread
        return 1.0
    mean, spread = counts.size * variance, counts.size * (fourth - variance**2)
    law = stats.chi2(2 * mean**2 / spread, scale=spread / 2 / mean)
    return float(min(1.0, 2 * min(law.cdf(total), law.sf(total))))


# ---------------------------------------------------------------- what a guarantee leaves to any attack


def attack_limit(fpr: ArrayLike, epsilon: float, delta: float) -> NDArray[np.float64]:
    r"""Return the largest true positive rate that (ε, δ) leaves to a membership attack.

    .. math:: \mathrm{TPR} \le \min\bigl(e^{\varepsilon}\,\mathrm{FPR} + \delta,\;
              1 - e^{-\varepsilon}(1 - \delta - \mathrm{FPR})\bigr)

    Parameters
    ----------
    fpr : float or array-like of float, in [0, 1]
        False positive rates.
    epsilon : float >= 0
        ε of one example.
    delta : float in [0, 1]
        δ.

    Returns
    -------
    ndarray of the shape of ``fpr``
        For the worst example and the strongest attacker; in [0, 1].

    References
    ----------
    [WassermanZhou2010], [Kairouz2015]

    Examples
    --------
    >>> attack_limit([0.0, 0.01, 0.5, 1.0], 1.0, 1e-5).round(4)
    array([0.    , 0.0272, 0.8161, 1.    ])
    """
    rate = real_array("fpr", fpr, at_least=0, at_most=1)
    epsilon = real_number("epsilon", epsilon, at_least=0)
    delta = real_number("delta", delta, at_least=0, at_most=1)
    with np.errstate(over="ignore", divide="ignore"):
        rising = (
            np.exp(epsilon + np.log(rate)) + delta
        )  # e^ε alone may overflow, and infinity times 0 is nothing
    return np.clip(np.minimum(rising, 1 - np.exp(-epsilon) * (1 - delta - rate)), 0, 1)


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
