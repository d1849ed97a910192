"""What several private releases cost together (chapters 4 and 5).

That budgets add up is from [Dwork2006], advanced composition from [Dwork2010] in the form of
[DworkRoth2014, Theorem 3.20]; the sharper closed form and the exact optimum over all mechanisms are due
to Kairouz, Oh and Viswanath [Kairouz2015].

The second half accounts for DP-SGD [Abadi2016], T releases of a Gaussian sum over a random part of the
data: in Rényi divergences [Mironov2017, Mironov2019], and tightly, with the distribution of the privacy
loss [Sommer2019, Koskela2020, Gopi2021] on a grid whose dots are connected [Doroshenko2022]. It ends
with the statement that belongs under every private training, and refuses the false ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import partial
from typing import Protocol

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import ArrayLike, NDArray
from scipy import fft, optimize
from scipy.special import gammaln, log_expit, log_ndtr, logsumexp, ndtr, ndtri

from thousand_fingers.intervals import Interval
from thousand_fingers.mechanisms import analytic_gaussian_std, gaussian_delta, gaussian_epsilon
from thousand_fingers.numerics import smallest_satisfying
from thousand_fingers.validation import choice, integer, real_array, real_number

_Floats = NDArray[np.float64]

# --- Composition theorems -------------------------------------------------------------------------


def basic_composition(epsilon: float, k: int, delta: float = 0.0) -> tuple[float, float]:
    """Return (kε, kδ), more than which k releases of (ε, δ) never cost.

    Parameters
    ----------
    epsilon : float > 0
        Budget of each release.
    k : int >= 1
        Number of releases, each chosen after seeing the earlier ones.
    delta : float in [0, 1), default 0
        Slack of each release.

    Returns
    -------
    total_epsilon, total_delta : float
        The second is at most 1.

    References
    ----------
    [Dwork2006], [DworkRoth2014, Theorem 3.16]

    Examples
    --------
    >>> basic_composition(0.5, 10)
    (5.0, 0.0)
    """
    epsilon, k = _releases(epsilon, k)
    delta = real_number("delta", delta, at_least=0, below=1)
    return k * epsilon, min(1.0, k * delta)


def advanced_composition(epsilon: float, k: int, delta_slack: float) -> float:
    """Return ε√(2k ln(1/δ')) + kε(e^ε − 1), the ε of k releases at slack δ'.

    The formula as it stands: it exceeds kε when ε is ln 2 or more, and for
    few releases. Quote the smaller of it and :func:`basic_composition`.

    Parameters
    ----------
    epsilon : float > 0
        Budget of each release.
    k : int >= 1
        Number of releases.
    delta_slack : float in (0, 1)
        The slack δ' bought with the smaller ε. If each release has a slack
        δ of its own, kδ comes on top.

    Returns
    -------
    float
        Infinite where e^ε overflows.

    References
    ----------
    [DworkRoth2014, Theorem 3.20], [Dwork2010]

    Examples
    --------
    >>> round(advanced_composition(0.1, 100, 1e-5), 3)  # instead of 10
    5.85
    >>> round(advanced_composition(1, 500, 1e-5), 3)  # instead of 500
    966.439
    """
    epsilon, k = _releases(epsilon, k)
    delta_slack = real_number("delta_slack", delta_slack, above=0, below=1)
    with np.errstate(over="ignore"):
        return float(epsilon * math.sqrt(-2 * k * math.log(delta_slack)) + k * epsilon * np.expm1(epsilon))


def tanh_composition(epsilon: float, k: int, delta_slack: float) -> float:
    """Return ε√(2k ln(1/δ')) + kε·tanh(ε/2), the ε of k releases at slack δ'.

    Advanced composition with the mean privacy loss of the worst mechanism,
    ε·tanh(ε/2), in place of a bound on it. As with
    :func:`advanced_composition`, the smaller of it and kε counts.

    Parameters
    ----------
    epsilon : float > 0
        Budget of each release.
    k : int >= 1
        Number of releases.
    delta_slack : float in (0, 1)
        The slack δ' bought with the smaller ε.

    Returns
    -------
    float

    References
    ----------
    [Kairouz2015]

    Examples
    --------
    >>> round(tanh_composition(1, 500, 1e-5), 3)
    338.357
    """
    epsilon, k = _releases(epsilon, k)
    delta_slack = real_number("delta_slack", delta_slack, above=0, below=1)
    return epsilon * math.sqrt(-2 * k * math.log(delta_slack)) + k * epsilon * math.tanh(epsilon / 2)


def optimal_composition_delta(epsilon: float, k: int, total_epsilon: float) -> float:
    """Return the smallest δ for which any k ε-DP releases are (total_epsilon, δ)-DP.

    No mechanism loses more than k answers of randomized response, true with
    probability e^ε/(1+e^ε). If i of them are true, the loss is (2i − k)ε; δ
    is the mean of the part of e^loss beyond total_epsilon.

    Parameters
    ----------
    epsilon : float > 0
        Budget of each release.
    k : int >= 1
        Number of releases.
    total_epsilon : float >= 0
        Budget of all together.

    Returns
    -------
    float in [0, 1]

    References
    ----------
    [Kairouz2015]

    Examples
    --------
    >>> round(optimal_composition_delta(0.1, 100, 4.307), 7)
    1e-05
    """
    epsilon, k = _releases(epsilon, k)
    total_epsilon = real_number("total_epsilon", total_epsilon, at_least=0)
    true_answers = np.arange(k + 1)
    loss = (2 * true_answers - k) * epsilon
    beyond = loss > total_epsilon
    if not beyond.any():
        return 0.0
    # All terms are positive, and in logarithms none of them under- or overflows.
    i, loss = true_answers[beyond], loss[beyond]
    log_probability = (
        gammaln(k + 1)
        - gammaln(i + 1)
        - gammaln(k - i + 1)
        + i * log_expit(epsilon)
        + (k - i) * log_expit(-epsilon)
    )
    return float(np.exp(logsumexp(log_probability + np.log(-np.expm1(total_epsilon - loss)))))


def optimal_composition_epsilon(epsilon: float, k: int, delta: float) -> float:
    """Return the smallest total ε that any k ε-DP releases satisfy at δ.

    Parameters
    ----------
    epsilon : float > 0
        Budget of each release.
    k : int >= 1
        Number of releases.
    delta : float in [0, 1)
        Slack of all together.

    Returns
    -------
    float
        Between 0 and kε, rounded to the safe side.

    References
    ----------
    [Kairouz2015]

    Examples
    --------
    >>> round(optimal_composition_epsilon(1, 500, 1e-5), 3)
    311.768
    """
    epsilon, k = _releases(epsilon, k)
    delta = real_number("delta", delta, at_least=0, below=1)

    def enough(total_epsilon: float) -> bool:
        return optimal_composition_delta(epsilon, k, total_epsilon) <= delta

    return 0.0 if enough(0.0) else smallest_satisfying(enough, 0.0, k * epsilon)


def laplace_composition_attacker(epsilon: float, k: int) -> float:
    """Return how often the best attacker is right after k Laplace releases of ε each.

    The attacker sees k noisy copies of one count and guesses which of two
    neighbours it is. The guess follows the sign of the total privacy loss,
    so it is wrong as often as the loss is negative, plus half as often as it
    is 0. The distribution of the loss is computed exactly, to rounding: it
    consists of atoms at multiples of ε and, between them, of a density which
    is smooth within each cell.

    Parameters
    ----------
    epsilon : float > 0
        Budget of each release: noise of scale sensitivity/ε.
    k : int >= 1
        Number of releases; the work grows with its square (a second for a
        thousand).

    Returns
    -------
    float in [0.5, 1]

    Notes
    -----
    Measured in units of ε, the loss of one release is 1 below both counts,
    −1 above both, and falls evenly in between. Weighted by the geometric
    mean of the two neighbours' densities (the probability of a loss x is
    that weight times e^(εx/2)), it is ±1 with weight ½e^(−ε/2) each, and
    uniform on (−1, 1) with weight (ε/2)e^(−ε/2). Losses of independent
    releases add up, so their weights are convolved.

    Examples
    --------
    Two releases at 0.5 give away less than one at 1.

    >>> round(laplace_composition_attacker(0.5, 2), 4), round(laplace_composition_attacker(1, 1), 4)
    (0.6209, 0.6967)
    """
    epsilon, k = _releases(epsilon, k)
    half = epsilon / 2
    nodes, weights, running = _unit_cell()
    atoms = np.zeros((2 * k + 1, 1))  # weight of the losses -k, …, k
    atoms[k] = 1
    density = np.zeros((2 * k, nodes.size))  # at the nodes of the cells (-k, 1-k), …, (k-1, k)
    for _ in range(k):
        whole = density @ weights[:, None]
        left_part = density @ running.T
        # Weight within 1 of each node: the rest of the cell before, the node's own cell
        # with the atoms at its ends, and the first part of the cell after.
        nearby = _before(whole - left_part) + whole + atoms[:-1] + atoms[1:] + _after(left_part)
        density = math.exp(-half) * (_before(density) + _after(density) + half * nearby) / 2
        atoms = math.exp(-half) * (_before(atoms) + _after(atoms)) / 2
    cells, losses = np.arange(-k, 0)[:, None], np.arange(-k, 0)
    wrong = (density[:k] * np.exp(half * (cells + nodes))) @ weights
    error = wrong.sum() + atoms[:k, 0] @ np.exp(half * losses) + atoms[k, 0] / 2
    return max(0.5, float(1 - error))  # rounding must not make a guess worse than a coin


def _unit_cell(n_nodes: int = 24) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return Gauss–Legendre nodes and weights on (0, 1), and the matrix of running integrals.

    ``running @ f(nodes)`` holds the integrals of f from 0 to each node.
    """
    z, weights = legendre.leggauss(n_nodes)
    polynomials = legendre.legvander(z, n_nodes)  # P_0, …, P_n at the nodes
    degree = np.arange(n_nodes)
    primitives = np.column_stack([z + 1, (polynomials[:, 2:] - polynomials[:, :-2]) / (2 * degree[1:] + 1)])
    coefficients = (degree[:, None] + 0.5) * polynomials[:, :-1].T * weights  # of f, from its values
    return (z + 1) / 2, weights / 2, primitives @ coefficients / 2


def _before(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row's predecessor (zeros before the first)."""
    return np.vstack([np.zeros_like(rows[:1]), rows[:-1]])


def _after(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row's successor (zeros after the last)."""
    return np.vstack([rows[1:], np.zeros_like(rows[:1])])


def _releases(epsilon: float, k: int) -> tuple[float, int]:
    epsilon = real_number("epsilon", epsilon, above=0)
    k = integer("k", k, at_least=1)
    real_number("k * epsilon", k * epsilon, above=0)
    return epsilon, k


# --- Rényi accounting of the subsampled Gaussian --------------------------------------------------

#: Orders at which Rényi divergences are computed: those of dp-accounting, so that both agree.
RDP_ORDERS: tuple[float, ...] = (
    *(order / 10 for order in range(11, 110)),
    *map(float, range(11, 64)),
    128.0,
    256.0,
    512.0,
    1024.0,
)


@dataclass(frozen=True)
class RenyiEpsilon:
    """An ε converted from Rényi divergences.

    Attributes
    ----------
    epsilon : float
        At least 0.
    order : float
        The order α that gave it.
    """

    epsilon: float
    order: float


def subsampled_gaussian_rdp(
    noise_multiplier: float, sample_rate: float, steps: int, orders: ArrayLike = RDP_ORDERS
) -> _Floats:
    r"""Return the Rényi divergences of T steps of DP-SGD.

    One step at rate q and noise σ (in units of the clipping norm) shows either
    N(0, σ²) or, with the person, the mixture (1 − q)N(0, σ²) + q N(1, σ²). Its
    divergence of order α is :math:`\frac{1}{\alpha-1}\log A_\alpha` with

    .. math:: A_\alpha = E_{x \sim N(0,\sigma^2)}
              \bigl[(1 - q + q\,e^{(2x-1)/(2\sigma^2)})^{\alpha}\bigr],

    a binomial sum where α is whole. T steps have T times the divergence.

    Parameters
    ----------
    noise_multiplier : float > 0
        σ.
    sample_rate : float in [0, 1]
        q, the probability with which each example enters a batch (Poisson sampling).
    steps : int >= 0
        T.
    orders : array-like of float > 1, default RDP_ORDERS
        α; at most 10,000.

    Returns
    -------
    ndarray of float64
        One divergence for each order, at least 0; infinite where it overflows.

    Notes
    -----
    Computed is :math:`A_\alpha - 1`, in logarithms and as a sum of positive
    terms only: the binomial weights add up to 1, and the mean of the ratio is
    1. So nothing cancels however small q is. The integral of a fractional
    order is taken by the trapezoidal rule, which converges exponentially for
    such functions. Neighbours differ by one added or removed example, and the
    divergence in the other direction is never larger.

    References
    ----------
    [Mironov2019]

    Examples
    --------
    >>> subsampled_gaussian_rdp(4.0, 0.01, 10_000, [2, 17]).round(4)
    array([0.0645, 0.5536])
    """
    sigma, q, steps = _training(noise_multiplier, sample_rate, steps)
    alpha = real_array("orders", orders, ndim=1, at_most=10_000)
    if not (alpha > 1).all():
        raise ValueError(f"orders must be > 1, got {float(alpha.min())}")
    if steps == 0 or q == 0:
        return np.zeros(alpha.size)
    if q == 1:
        return steps * alpha / 2 / sigma / sigma
    whole = alpha == np.floor(alpha)
    log_excess = np.empty(alpha.size)  # log(A - 1)
    if whole.any():
        log_excess[whole] = _log_excess_by_sum(alpha[whole], q, sigma)
    if not whole.all():
        log_excess[~whole] = _log_excess_by_integral(alpha[~whole], q, sigma)
    return steps * np.logaddexp(0, log_excess) / (alpha - 1)


def rdp_to_epsilon(
    rdp: ArrayLike, orders: ArrayLike, delta: float, *, conversion: str = "improved"
) -> RenyiEpsilon:
    r"""Convert Rényi divergences to the smallest ε that they prove at δ.

    Parameters
    ----------
    rdp : array-like of float >= 0
        Divergences; infinite ones are passed over.
    orders : array-like of float > 1
        Their orders α.
    delta : float in (0, 1)
        Slack.
    conversion : {"improved", "2017"}, default "improved"
        "2017" is :math:`\mathrm{RDP} + \frac{\log(1/\delta)}{\alpha-1}`;
        "improved" adds :math:`\log\frac{\alpha-1}{\alpha} -
        \frac{\log \alpha}{\alpha-1}`, which is negative. Same mechanism,
        same δ, better proof.

    Returns
    -------
    RenyiEpsilon
        ε is 0 if a divergence is so small that no event's probability can
        differ by more than δ (so without any step ε is 0).

    Raises
    ------
    TypeError, ValueError
        If an argument is no number or out of range, or the lengths differ.

    References
    ----------
    [Mironov2017, Proposition 3], [Canonne2020], [Balle2020, Theorem 21]

    Examples
    --------
    The example of [Abadi2016]: the same training is worth less or more, depending on the proof.

    >>> rdp = subsampled_gaussian_rdp(4.0, 0.01, 10_000)
    >>> round(rdp_to_epsilon(rdp, RDP_ORDERS, 1e-5, conversion="2017").epsilon, 4)
    1.2586
    >>> round(rdp_to_epsilon(rdp, RDP_ORDERS, 1e-5).epsilon, 4)
    1.0355
    """
    divergence = np.asarray(rdp)
    if divergence.dtype.kind not in "fiu":
        raise TypeError(f"rdp must hold real numbers, got dtype {divergence.dtype}")
    divergence = divergence.astype(np.float64, copy=False)
    alpha = real_array("orders", orders, ndim=1)
    delta = real_number("delta", delta, above=0, below=1)
    choice("conversion", conversion, ("improved", "2017"))
    if divergence.shape != alpha.shape:
        raise ValueError(f"rdp and orders must be equally long, got {divergence.shape} and {alpha.shape}")
    if not (alpha > 1).all() or not (divergence >= 0).all():
        raise ValueError("orders must be > 1 and rdp >= 0")
    epsilon = divergence - math.log(delta) / (alpha - 1)
    if conversion == "improved":
        epsilon = epsilon + np.log1p(-1 / alpha) - np.log(alpha) / (alpha - 1)
    # No event's probability changes by more than √(1 − e^−KL), and KL is at most any divergence here.
    indistinguishable = np.sqrt(-np.expm1(-divergence)) <= delta
    epsilon = np.where(indistinguishable, 0.0, np.maximum(epsilon, 0.0))
    best = int(np.argmin(epsilon))
    return RenyiEpsilon(epsilon=float(epsilon[best]), order=float(alpha[best]))


def rdp_epsilon(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    *,
    conversion: str = "improved",
) -> float:
    """Return the ε that Rényi accounting proves for a DP-SGD training.

    Parameters
    ----------
    noise_multiplier : float > 0
        σ.
    sample_rate : float in [0, 1]
        q of Poisson sampling.
    steps : int >= 0
        T.
    delta : float in (0, 1)
        Slack.
    conversion : {"improved", "2017"}, default "improved"
        As in :func:`rdp_to_epsilon`.

    Returns
    -------
    float
        At least 0, and never less than :func:`pld_epsilon`.

    References
    ----------
    [Mironov2019], [Abadi2016]

    Examples
    --------
    >>> round(rdp_epsilon(1.1, 256 / 60_000, 14_040, 1e-5), 4)
    2.5944
    """
    rdp = subsampled_gaussian_rdp(noise_multiplier, sample_rate, steps)
    return rdp_to_epsilon(rdp, RDP_ORDERS, delta, conversion=conversion).epsilon


def _log_excess_by_sum(alpha: _Floats, q: float, sigma: float) -> _Floats:
    """Return log(A − 1) for whole orders, from the binomial theorem."""
    k = np.arange(2.0, alpha.max() + 1)
    order = alpha[:, None]
    log_weight = (
        gammaln(order + 1)
        - gammaln(k + 1)
        - gammaln(np.maximum(order - k, 0) + 1)
        + k * math.log(q)
        + (order - k) * math.log1p(-q)
    )
    terms = np.where(k <= order, log_weight + _log_expm1(k * (k - 1) / 2 / sigma / sigma), -np.inf)
    return np.asarray(logsumexp(terms, axis=1))


def _log_excess_by_integral(alpha: _Floats, q: float, sigma: float) -> _Floats:
    """Return log(A − 1) for fractional orders, by the trapezoidal rule."""
    if sigma < _LITTLE_NOISE:  # too narrow to integrate; and sampling hardly matters: as if q were 1
        return (alpha - 1) * alpha / 2 / sigma / sigma
    # The integrand is as smooth as a Gaussian of width σ, and its nearest branch point is πσ² off the line.
    step = min(sigma / 8, sigma * sigma / 3)
    x = np.arange(-13 * sigma, float(alpha.max()) + 13 * sigma + step, step)
    log_ratio = _mixture_log_ratio(x, q, sigma)  # log(1 + u), u = q(e^z − 1)
    log_density = -(x * x) / (2 * sigma * sigma) - math.log(sigma * math.sqrt(2 * math.pi)) + math.log(step)
    totals = []
    for some in np.array_split(alpha, -(-alpha.size * x.size // 200_000)):  # as many at once as memory likes
        order = some[:, None]
        # (1 + u)^α − 1 − αu is never negative, by Bernoulli's inequality; the mean of u is 0.
        power = order * log_ratio
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            small = np.log(np.maximum(np.expm1(power) - order * np.expm1(log_ratio), 0))
            subtracted = np.log(order) + log_ratio + np.log1p((1 - order) / order * np.exp(-log_ratio))
            large = power + np.log1p(-np.exp(subtracted - power))  # (1 + u)^α − (1 + αu)
        totals.append(logsumexp(log_density + np.where(power > 30, large, small), axis=1))
    return np.concatenate(totals)


def _mixture_log_ratio(x: _Floats, q: float, sigma: float) -> _Floats:
    """Return log(1 − q + q·e^z), z = (2x − 1)/(2σ²): the privacy loss at the output x."""
    z = (2 * x - 1) / (2 * sigma * sigma)
    with np.errstate(over="ignore"):
        return np.where(
            z < 1, np.log1p(q * np.expm1(np.minimum(z, 1))), np.logaddexp(math.log1p(-q), math.log(q) + z)
        )


def _log_expm1(x: _Floats) -> _Floats:
    """Return log(e^x − 1) without overflow."""
    return x + np.log(-np.expm1(-x))


# --- Tight accounting: the distribution of the privacy loss ---------------------------------------


@dataclass(frozen=True)
class PrivacyLoss:
    """The distribution of the privacy loss of a whole training, on a grid.

    Each atom stands for outputs that are e^loss times as likely in one world
    as in the other. δ(ε) is the mean of the part of e^loss beyond e^ε.

    Attributes
    ----------
    losses : ndarray
        Grid, ascending and evenly spaced.
    probabilities : ndarray
        Their probabilities.
    infinite : float
        Probability of an unlimited loss (of what was cut off, to the safe side).
    outside : tuple of (float, float)
        Logarithm and slope of a bound on what the finite window of the
        Fourier transform can have missed at ε: exp(log − slope·ε).
    discretisation : float
        Total loss on the grid exceeds the true one by no more than this,
        except with probability 1e-3·δ.
    largest : float
        No finite total loss on the grid is larger; beyond it δ is ``infinite``.
    """

    losses: _Floats
    probabilities: _Floats
    infinite: float
    outside: tuple[float, float]
    discretisation: float
    largest: float

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on δ(ε), ε >= 0: losses below 0 are not kept."""
        epsilon = real_number("epsilon", epsilon, at_least=0)
        if epsilon >= self.largest:
            return min(1.0, self.infinite)
        first = int(np.searchsorted(self.losses, epsilon, side="right"))
        beyond = self.probabilities[first:] @ -np.expm1(epsilon - self.losses[first:])
        log_bound, slope = self.outside
        return min(1.0, float(beyond) + self.infinite + math.exp(min(0.0, log_bound - slope * epsilon)))

    def epsilon(self, delta: float) -> float:
        """Return the smallest ε >= 0 with :meth:`delta` at most ``delta``; infinite if there is none."""
        delta = real_number("delta", delta, at_least=0, at_most=1)
        if self.delta(0.0) <= delta:
            return 0.0
        first = int(np.searchsorted(self.losses, 0.0, side="right"))
        if first == self.losses.size or self.delta(float(self.losses[-1])) > delta:
            return self.largest if self.infinite <= delta else math.inf
        # The cell of the grid in which δ(ε) passes delta; within it the same atoms count.
        low, high = first - 1, self.losses.size - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.delta(float(self.losses[middle])) <= delta else (middle, high)
        end = float(self.losses[high])
        start = max(0.0, float(self.losses[low])) if low >= 0 else 0.0
        log_bound, slope = self.outside
        target = delta - self.infinite - math.exp(min(0.0, log_bound - slope * start))
        here, there = self.probabilities[high:], np.exp(end - self.losses[high:])
        # total − e^(ε − end)·(here @ there) = target
        excess = float(here.sum()) - target
        if excess <= 0:
            return start
        found = end + math.log(excess / float(here @ there))
        return min(end, max(start, found + 1e-12 * (1 + end)))


def privacy_losses(
    noise_multiplier: float, sample_rate: float, steps: int, delta: float, *, resolution: int = 64
) -> tuple[PrivacyLoss, PrivacyLoss]:
    r"""Return the privacy loss of a DP-SGD training in both directions: person removed, person added.

    One step has the loss :math:`\log(1 - q + q\,e^{(2x-1)/(2\sigma^2)})` at the
    output x. It is put on a grid, composed T times with the fast Fourier
    transform, and is precise where δ(ε) is near ``delta``.

    Parameters
    ----------
    noise_multiplier : float >= 0.02
        σ.
    sample_rate : float in [1e-100, 1)
        q of Poisson sampling. (At q = 1 the answer has a closed form, and while
        Tq is at most ``delta`` nothing is lost: :func:`pld_epsilon` knows both.)
    steps : int >= 1
        T.
    delta : float in (0, 1)
        Where δ(ε) has to be precise.
    resolution : int >= 1, default 64
        Grid cells in one standard deviation of one step's loss (fewer where
        this would take more than a million cells).

    Returns
    -------
    removed, added : PrivacyLoss

    Notes
    -----
    *On the safe side.* Within a cell of the grid the loss is moved to the two
    ends such that the cell keeps its probability in both worlds. Then δ is
    exact at the grid's points, and between them it is replaced by the chord of
    a convex function, which lies above it [Doroshenko2022]. The error of ε is
    of second order in the width of a cell, where rounding up would add half a
    cell in each of T steps.

    *In floating point.* A Fourier transform is precise relative to the
    largest probability, and δ concerns the smallest. So probabilities are
    multiplied by e^(λ·loss) before the transform, and divided by it afterwards.
    The λ is the one that minimises the Chernoff bound at δ (α − 1 for the best
    Rényi order α), so that the tail in question becomes the centre.

    References
    ----------
    [Sommer2019], [Koskela2020], [Doroshenko2022]

    Examples
    --------
    >>> removed, added = privacy_losses(4.0, 0.01, 10_000, 1e-5)
    >>> round(removed.epsilon(1e-5), 3), round(added.epsilon(1e-5), 3)
    (0.947, 0.937)
    """
    sigma, q, steps = _training(noise_multiplier, sample_rate, steps)
    delta = real_number("delta", delta, above=0, below=1)
    resolution = integer("resolution", resolution, at_least=1)
    integer("steps", steps, at_least=1)
    real_number("sample_rate", q, at_least=_RARELY, below=1)
    real_number("noise_multiplier", sigma, at_least=_LITTLE_NOISE)
    tail = 1e-7 * delta / steps  # what one step may lose to "infinite"
    furthest = 1 - sigma * float(ndtri(tail))
    width = _cell_width(q, sigma, furthest, resolution)
    first, atoms, cut, cut_without, cut_below = _one_step(q, sigma, furthest, width)
    removed = _compose(first, atoms, width, steps, delta, steps * cut)
    # Seen from the other world each loss changes its sign, and its probability is e^−loss times as large.
    with np.errstate(under="ignore"):
        reverse = (atoms * np.exp(-width * (first + np.arange(atoms.size))))[::-1]
    reverse[0] += cut_without
    added = _compose(1 - first - atoms.size, reverse, width, steps, delta, steps * cut_below)
    return removed, added


def pld_epsilon(
    noise_multiplier: float, sample_rate: float, steps: int, delta: float, *, resolution: int = 64
) -> float:
    """Return the tight ε of a DP-SGD training, rounded to the safe side.

    Parameters
    ----------
    noise_multiplier : float > 0
        σ.
    sample_rate : float in [0, 1]
        q of Poisson sampling; at 1 the answer is exact, and a rate between 0
        and 1e-100 is refused unless the answer is 0.
    steps : int >= 0
        T.
    delta : float in (0, 1)
        Slack.
    resolution : int >= 1, default 64
        As in :func:`privacy_losses`.

    Returns
    -------
    float
        At least 0, and 0 without steps or without data.

    References
    ----------
    [Doroshenko2022], [BalleWang2018]

    Examples
    --------
    >>> round(pld_epsilon(1.1, 256 / 60_000, 14_040, 1e-5), 3)
    2.38
    """
    exact = _without_grid(noise_multiplier, sample_rate, steps, delta)
    if exact is not None:
        return exact.high
    losses = privacy_losses(noise_multiplier, sample_rate, steps, delta, resolution=resolution)
    return max(loss.epsilon(delta) for loss in losses)


def pld_epsilon_bounds(
    noise_multiplier: float, sample_rate: float, steps: int, delta: float, *, resolution: int = 64
) -> Interval:
    """Return two numbers between which the exact ε of a DP-SGD training lies.

    Parameters
    ----------
    noise_multiplier, sample_rate, steps, delta, resolution
        As in :func:`pld_epsilon`.

    Returns
    -------
    Interval
        ``high`` may be promised. ``low`` may not: no proof can promise less.

    Notes
    -----
    Rounding errors of T steps mostly cancel. By Hoeffding's inequality the
    total loss on the grid exceeds the true one by more than w√(½T ln(1/η)) +
    Tw²/8 with probability at most η, w the width of a cell; ``low`` subtracts
    this with η a thousandth of δ.

    References
    ----------
    [Gopi2021]

    Examples
    --------
    >>> low, high = pld_epsilon_bounds(4.0, 0.01, 10_000, 1e-5, resolution=256)
    >>> round(low, 3), round(high, 4)
    (0.944, 0.9469)
    """
    exact = _without_grid(noise_multiplier, sample_rate, steps, delta)
    if exact is not None:
        return exact
    directions = privacy_losses(noise_multiplier, sample_rate, steps, delta, resolution=resolution)
    high = max(loss.epsilon(delta) for loss in directions)

    def proved(loss: PrivacyLoss) -> float:
        found = loss.epsilon(min(1.0, delta * (1 + 2e-3) + loss.infinite))
        log_bound, slope = loss.outside
        negligible = found < loss.largest and log_bound - slope * found <= math.log(1e-3 * delta)
        return found - loss.discretisation if negligible else 0.0

    return Interval(max(0.0, *map(proved, directions)), high)


def _without_grid(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> Interval | None:
    """Return bounds on ε where no grid is needed, or possible."""
    sigma, q, steps = _training(noise_multiplier, sample_rate, steps)
    delta = real_number("delta", delta, above=0, below=1)
    if steps * q <= delta:  # in all but a share of at most Tq of the trainings the person is never drawn
        return Interval(0.0, 0.0)
    if q == 1 or sigma < _LITTLE_NOISE:  # with little noise ε is in the thousands: as if q were 1
        alone = gaussian_epsilon(sigma / math.sqrt(steps), delta)
        return Interval(alone if q == 1 else 0.0, alone)
    return None


def pld_delta(noise_multiplier: float, sample_rate: float, steps: int, epsilon: float) -> float:
    """Return the tight δ of a DP-SGD training at a given ε, rounded to the safe side.

    Parameters
    ----------
    noise_multiplier : float > 0
        σ.
    sample_rate : float in [0, 1]
        q of Poisson sampling; at 1 the answer is exact, and a rate between 0
        and 1e-100 is refused unless the answer is 0.
    steps : int >= 0
        T.
    epsilon : float >= 0
        Where δ(ε) is read.

    Returns
    -------
    float in [0, 1]

    References
    ----------
    [Doroshenko2022], [BalleWang2018]

    Examples
    --------
    >>> f"{pld_delta(4.0, 0.01, 10_000, 0.947):.1e}"
    '1.0e-05'
    """
    sigma, q, steps = _training(noise_multiplier, sample_rate, steps)
    epsilon = real_number("epsilon", epsilon, at_least=0)
    if steps == 0 or q == 0:
        return 0.0
    if q == 1 or sigma < _LITTLE_NOISE:
        return gaussian_delta(sigma / math.sqrt(steps), epsilon)
    alpha = np.array(RDP_ORDERS)
    log_delta = float(((alpha - 1) * (subsampled_gaussian_rdp(sigma, q, steps) - epsilon)).min())
    near = math.exp(min(-0.7, max(-600.0, log_delta)))
    return max(loss.delta(epsilon) for loss in privacy_losses(sigma, q, steps, near))


def _cell_width(q: float, sigma: float, furthest: float, resolution: int) -> float:
    """Return the width of the grid's cells: a part of the standard deviation of one step's loss."""
    x = np.linspace(-13 * sigma, furthest, 20_001)
    loss = _mixture_log_ratio(x, q, sigma)
    weight = (1 - q) * np.exp(-((x / sigma) ** 2) / 2) + q * np.exp(-(((x - 1) / sigma) ** 2) / 2)
    mean = np.average(loss, weights=weight)
    deviation = math.sqrt(np.average((loss - mean) ** 2, weights=weight))
    return max(deviation / resolution, (loss[-1] - loss[0]) / _MOST_CELLS)


_MOST_CELLS = 2**20
_LITTLE_NOISE = 0.02
# Below it the variance of a loss is no longer a number above zero.
_RARELY = 1e-100


def _one_step(
    q: float, sigma: float, furthest: float, width: float
) -> tuple[int, _Floats, float, float, float]:
    """Return the loss of one step on the grid.

    First index and probabilities; then what lies beyond the grid: above it with and without the person,
    below it without.
    """
    lowest, highest = _mixture_log_ratio(np.array([1 - furthest, furthest]), q, sigma)
    first, last = math.floor(lowest / width), math.ceil(highest / width)
    edges = width * np.arange(first, last + 1, dtype=np.float64)
    x = _output_at(edges, q, sigma)
    below_without = float(ndtr(x[0] / sigma))
    x[0] = -np.inf  # the person removed, losses below the grid are rounded up to it
    without = _normal_masses(x / sigma)
    with_person = (1 - q) * without + q * _normal_masses((x - 1) / sigma)
    with np.errstate(over="ignore", invalid="ignore"):
        upper = (with_person - without * np.exp(edges[:-1])) / -math.expm1(-width)
    # e^600 times a probability that has underflowed says nothing: there the loss is rounded up.
    upper = np.where(edges[:-1] > 600, with_person, np.clip(upper, 0, with_person))
    atoms = np.zeros(edges.size)
    atoms[:-1] += with_person - upper
    atoms[1:] += upper
    beyond, beyond_without = float(ndtr(-(x[-1] - 1) / sigma)), float(ndtr(-x[-1] / sigma))
    return first, atoms, (1 - q) * beyond_without + q * beyond, beyond_without, below_without


def _output_at(loss: _Floats, q: float, sigma: float) -> _Floats:
    """Return the output x with a given loss: the inverse of :func:`_mixture_log_ratio`."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.log1p(np.maximum(np.expm1(loss) / q, -1.0))
        large = loss + np.log1p(-(1 - q) * np.exp(-loss)) - math.log(q)
    return sigma * sigma * np.where(loss < 1, small, large) + 0.5


def _normal_masses(z: _Floats) -> _Floats:
    """Return the standard normal probabilities between neighbouring points, precise in both tails."""
    lower, upper = z[:-1], z[1:]
    return np.where(lower > 0, ndtr(-lower) - ndtr(-upper), ndtr(upper) - ndtr(lower))


def _compose(
    first: int, atoms: _Floats, width: float, steps: int, delta: float, infinite: float
) -> PrivacyLoss:
    """Return the distribution of the sum of T independent losses, precise where δ(ε) is near δ."""
    index = first + np.flatnonzero(atoms > 0)
    loss, log_atoms = width * index.astype(np.float64), np.log(atoms[atoms > 0])
    coarse = _every_few(loss, log_atoms)

    def chernoff(slope: float, tilt: float, log_mean: float, cells: tuple[_Floats, _Floats]) -> float:
        # Bound on |total loss|, upwards for a slope > 0 and downwards for one < 0.
        return (steps * (_cumulants(tilt + slope, cells) - log_mean) - _LOG_OUTSIDE) / slope

    mass = np.exp(coarse[1])
    mean = np.average(coarse[0], weights=mass)
    scale = 1 / math.sqrt(steps * (np.average((coarse[0] - mean) ** 2, weights=mass) + width * width))
    # λ minimises the Chernoff bound on the loss that has probability δ; it need not be precise. Forty
    # deviations are enough for a Gaussian at δ = 1e-300; a bounded loss would ask for more and more.
    tilt = _minimiser(
        lambda t: (steps * _cumulants(t, coarse) - math.log(delta)) / t, 1e-5 * scale, 40 * scale
    )
    rough = _cumulants(tilt, coarse)
    up = _minimiser(lambda s: chernoff(s, tilt, rough, coarse), 1e-5 * scale, 1e5 * scale)
    down = _minimiser(lambda s: -chernoff(-s, tilt, rough, coarse), 1e-5 * scale, 1e5 * scale)
    # A window outside of which the tilted sum almost never falls.
    log_mean = _cumulants(tilt, (loss, log_atoms))
    high = min(chernoff(up, tilt, log_mean, (loss, log_atoms)), steps * float(loss[-1]))
    low = max(chernoff(-down, tilt, log_mean, (loss, log_atoms)), steps * float(loss[0]))
    tilted = np.exp(log_atoms + tilt * loss - log_mean)
    start = math.floor(low / width)
    size = fft.next_fast_len(math.ceil(high / width) - start + 1, real=True)
    folded = np.bincount(index % size, weights=tilted, minlength=size)
    composed = fft.irfft(fft.rfft(folded) ** steps, size)
    position = np.arange(start, start + size)
    probabilities = np.maximum(composed[position % size], 0)
    kept = position >= -1  # losses below 0 never count
    losses = width * position[kept].astype(np.float64)
    with np.errstate(divide="ignore"):
        log_probabilities = np.log(probabilities[kept]) + steps * log_mean - tilt * losses
    return PrivacyLoss(
        losses=losses,
        probabilities=np.exp(np.minimum(log_probabilities, 0)),
        infinite=infinite,
        outside=(steps * log_mean + math.log(2) + _LOG_OUTSIDE, tilt),
        discretisation=width * math.sqrt(steps / 2 * -math.log(1e-3 * delta)) + steps * width * width / 8,
        largest=steps * float(loss[-1]),
    )


_LOG_OUTSIDE = math.log(1e-14)


def _cumulants(tilt: float, cells: tuple[_Floats, _Floats]) -> float:
    """Return K(λ), the logarithm of the mean of e^(λ·loss)."""
    loss, log_atoms = cells
    return float(logsumexp(log_atoms + tilt * loss))


def _every_few(loss: _Floats, log_atoms: _Floats) -> tuple[_Floats, _Floats]:
    """Return a rough copy of a distribution, of at most 4,000 atoms."""
    group = -(-loss.size // 4000)
    starts = np.arange(0, loss.size, group)
    middle = loss[np.minimum(starts + group // 2, loss.size - 1)]
    return middle, np.logaddexp.reduceat(log_atoms, starts)


def _minimiser(bound: Callable[[float], float], low: float, high: float) -> float:
    """Return the number between two positive ones at which a bound with one minimum is smallest."""
    found = optimize.minimize_scalar(
        lambda log_x: bound(math.exp(log_x)), bounds=(math.log(low), math.log(high)), method="bounded"
    )
    return math.exp(found.x)


# --- The inverse problem --------------------------------------------------------------------------


def noise_multiplier_for(
    epsilon: float, delta: float, *, sample_rate: float, steps: int, accountant: str = "pld"
) -> float:
    """Return the noise multiplier that a DP-SGD training needs to keep within (ε, δ).

    Parameters
    ----------
    epsilon : float > 0
        What may be spent.
    delta : float in (0, 1)
        Its slack.
    sample_rate : float in (0, 1]
        q of Poisson sampling.
    steps : int >= 1
        T.
    accountant : {"pld", "rdp", "rdp-2017"}, default "pld"
        Whose proof counts.

    Returns
    -------
    float
        The ε of this σ has been computed and is at most ``epsilon``; that of a
        σ smaller by 0.02 % is more.

    Examples
    --------
    >>> round(noise_multiplier_for(2, 1e-5, sample_rate=256 / 60_000, steps=14_040), 3)
    1.224
    """
    epsilon = real_number("epsilon", epsilon, above=0)
    delta = real_number("delta", delta, above=0, below=1)
    q = real_number("sample_rate", sample_rate, above=0, at_most=1)
    steps = integer("steps", steps, at_least=1)
    choice("accountant", accountant, tuple(_ACCOUNTANTS))
    if q == 1 and accountant == "pld":
        return math.sqrt(steps) * analytic_gaussian_std(epsilon, delta)
    spent = _ACCOUNTANTS[accountant]
    # First guess: the central limit, μ = q√(T(e^(1/σ²) − 1)). Then the secant in logarithms, where ε(σ) is
    # nearly straight, aiming a little beyond the root on alternate sides until both ends are close.
    mu = 1 / analytic_gaussian_std(epsilon, delta)
    sigma = 1 / math.sqrt(math.log1p((mu / q) ** 2 / steps))
    enough: tuple[float, float] | None = None
    too_little: tuple[float, float] | None = None
    while True:
        here = spent(sigma, q, steps, delta)
        point = (math.log(sigma), math.log(max(min(here, 1e9), 1e-9) / epsilon))
        if here <= epsilon:
            enough = point
        else:
            too_little = point
        if enough is None or too_little is None:
            sigma *= (
                1.05 * min(max(here / epsilon, 1), 4) if here > epsilon else max(here / epsilon, 0.25) / 1.05
            )
            continue
        gap = enough[0] - too_little[0]
        if gap <= 2e-4:
            return math.exp(enough[0])
        root = too_little[0] + gap * too_little[1] / (too_little[1] - enough[1])
        aim = root + (8e-5 if here > epsilon else -8e-5)
        sigma = math.exp(min(max(aim, too_little[0] + gap / 20), enough[0] - gap / 20))


_ACCOUNTANTS: dict[str, Callable[[float, float, int, float], float]] = {
    "pld": pld_epsilon,
    "rdp": rdp_epsilon,
    "rdp-2017": partial(rdp_epsilon, conversion="2017"),
}


# --- Batches that are not Poisson samples ---------------------------------------------------------


def shuffled_epsilon(noise_multiplier: float, epochs: int, delta: float) -> float:
    """Return an ε that holds for shuffled (or any fixed) batches.

    Each example is in one batch of every epoch, and nothing else can be
    proved to help it: a Gaussian mechanism repeated once per epoch.

    Parameters
    ----------
    noise_multiplier : float > 0
        σ.
    epochs : int >= 0
        Passes over the data.
    delta : float in (0, 1)
        Slack.

    Returns
    -------
    float

    References
    ----------
    [BalleWang2018], [Chua2024]

    Examples
    --------
    >>> round(shuffled_epsilon(1.0, 1, 1e-5), 2), round(shuffled_epsilon(1.0, 20, 1e-5), 1)
    (4.38, 28.4)
    """
    epochs = integer("epochs", epochs, at_least=0)
    sigma = real_number("noise_multiplier", noise_multiplier, above=0)
    delta = real_number("delta", delta, above=0, below=1)
    return gaussian_epsilon(sigma / math.sqrt(epochs), delta) if epochs else 0.0


def shuffled_epsilon_lower_bound(noise_multiplier: float, steps: int, delta: float) -> float:
    r"""Return an ε below which one epoch of T shuffled batches is certainly not private.

    The attack of [Chua2024]: every other example pulls with −1, the person
    with +1, and the attacker looks at the largest of the T sums. With the
    person one of them is N(2, σ²) where the others are N(0, σ²); with the
    person's gradient set to zero it is N(1, σ²).

    Parameters
    ----------
    noise_multiplier : float > 0
        σ.
    steps : int >= 1
        Batches of the epoch.
    delta : float in (0, 1)
        Slack.

    Returns
    -------
    float
        At least 0. The exact value is not known.

    Notes
    -----
    δ is at least :math:`P[\max > c] - e^{\varepsilon} P'[\max > c]` for every
    c. The returned ε is the largest over a grid of c, each of which proves it.

    References
    ----------
    [Chua2024]

    Examples
    --------
    Sixteen batches, σ = 1: sampled by Poisson they cost 2.24, shuffled at least 4.32.

    >>> round(pld_epsilon(1.0, 1 / 16, 16, 1e-5), 2), round(shuffled_epsilon_lower_bound(1.0, 16, 1e-5), 2)
    (2.24, 4.32)
    """
    sigma = real_number("noise_multiplier", noise_multiplier, above=0)
    steps = integer("steps", steps, at_least=1)
    delta = real_number("delta", delta, above=0, below=1)
    cuts = np.linspace(0, 3 + 20 * sigma, 20_001)
    others = (steps - 1) * log_ndtr(cuts / sigma)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        present, absent = (-np.expm1(others + log_ndtr((cuts - shift) / sigma)) for shift in (2, 1))
        # Too rare for a double, the maximum exceeds c at most as often as its parts do together.
        at_most = np.logaddexp(np.log(steps - 1) + log_ndtr(-cuts / sigma), log_ndtr((1 - cuts) / sigma))
        proved = np.where(
            absent > 1e-290, np.log((present - delta) / absent), np.log(present - delta) - at_most
        )
    return float(np.max(proved, initial=0.0, where=present > delta))


# --- The statement --------------------------------------------------------------------------------


def rounded_up(value: float, digits: int = 2) -> str:
    """Print a number with so many decimals, never less than it is.

    Parameters
    ----------
    value : float
        For example an ε: 0.751 printed as 0.75 would be a promise that nobody gave.
    digits : int >= 0, default 2
        Decimals.

    Returns
    -------
    str
        Read back, it is at least ``value``.

    Examples
    --------
    >>> rounded_up(0.75097), rounded_up(7.6275), rounded_up(2.0)
    ('0.76', '7.63', '2.00')
    """
    value = real_number("value", value)
    digits = integer("digits", digits, at_least=0)
    with localcontext(prec=310 + digits):  # digits of the largest double
        return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING):f}"


class Training(Protocol):
    """What a statement has to know of a training; ``dpsgd.PrivateTraining`` is one."""

    @property
    def n(self) -> int:
        """Number of examples."""

    @property
    def batch_size(self) -> int:
        """Expected size of a batch, by which the noisy sum is divided."""

    @property
    def steps(self) -> int:
        """Number of batches, the empty ones included."""

    @property
    def noise_multiplier(self) -> float:
        """σ."""

    @property
    def max_grad_norm(self) -> float:
        """C."""

    @property
    def sampling(self) -> str:
        """How the batches were drawn, "poisson" or "shuffle"."""


@dataclass(frozen=True)
class PrivacyStatement:
    """What a private training promises, with everything without which ε means nothing.

    Made by :func:`privacy_statement`; printed, it is a paragraph.

    Attributes
    ----------
    unit : str
        Whose presence is hidden.
    neighbouring : {"add or remove one", "replace one"}
        How two data sets may differ.
    epsilon : float
        Computed, not passed in; :func:`rounded_up` where it is printed.
    delta : float
    accountant : {"pld", "rdp", "rdp-2017", "gaussian"}
        The proof.
    sampling : {"poisson", "shuffle"}
    n, batch_size, steps : int
    noise_multiplier, max_grad_norm : float
    not_charged : tuple of str
        What else was learned from the data, and is not in ε.
    randomness : str
        Where the noise came from.
    adapted : bool
        Whether the clipping norm followed the data; what that cost is part of the noise multiplier.
    """

    unit: str
    neighbouring: str
    epsilon: float
    delta: float
    accountant: str
    sampling: str
    n: int
    batch_size: int
    steps: int
    noise_multiplier: float
    max_grad_norm: float
    not_charged: tuple[str, ...]
    randomness: str
    adapted: bool = False

    def __str__(self) -> str:
        batches = {
            "poisson": "Poisson-sampled batches of expected size",
            "shuffle": "shuffled batches of size",
        }
        return (
            f"(ε ≤ {rounded_up(self.epsilon)}, δ = {self.delta:g})-differential privacy for {self.unit} of "
            f"{self.n:,} ({self.neighbouring}).\n"
            f"Training: {self.steps:,} {batches[self.sampling]} {self.batch_size:,}, "
            f"clipping norm {self.max_grad_norm:g}{' at first, then adapted' if self.adapted else ''}, "
            f"noise multiplier {self.noise_multiplier:.4g}.\n"
            f"Proof: {_PROOFS[self.accountant]}.\n"
            f"Not charged: {', '.join(self.not_charged) or 'nothing'}.\n"
            f"Randomness: {self.randomness}."
        )


_PROOFS = {
    "pld": "privacy loss distribution of the Poisson-subsampled Gaussian (tight)",
    "rdp": "Rényi divergences of the Poisson-subsampled Gaussian, improved conversion",
    "rdp-2017": "Rényi divergences of the Poisson-subsampled Gaussian, conversion of 2017",
    "gaussian": "Gaussian mechanism, once per epoch for every example; no gain from sampling",
}


def privacy_statement(
    training: Training,
    *,
    delta: float,
    unit: str = "one example",
    neighbouring: str = "add or remove one",
    accountant: str = "pld",
    not_charged: tuple[str, ...] = ("choice of hyper-parameters", "number of examples"),
    randomness: str = "pseudo-random generator, not cryptographic; floating-point noise",
) -> PrivacyStatement:
    """Account for a training, or refuse to.

    Parameters
    ----------
    training : Training
        What was run.
    delta : float in (0, 1/n)
        Slack.
    unit : str, default "one example"
        What one row of the data is: a person, an image, a visit.
    neighbouring : {"add or remove one", "replace one"}, default "add or remove one"
        "replace one" doubles the sensitivity; only accountant "gaussian" can do it.
    accountant : {"pld", "rdp", "rdp-2017", "gaussian"}, default "pld"
        All but "gaussian" assume Poisson sampling.
    not_charged : tuple of str
        What was learned from the data without being counted.
    randomness : str
        Where the noise came from.

    Returns
    -------
    PrivacyStatement

    Raises
    ------
    ValueError
        If proof and training do not fit: shuffled batches under a proof for
        Poisson samples, a δ of 1/n or more (publishing a random row would do),
        a clipping norm that is not positive and finite, no noise, a relation
        that the accountant cannot analyse.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> run = SimpleNamespace(n=60_000, batch_size=256, steps=14_040, noise_multiplier=1.1,
    ...                       max_grad_norm=1.0, sampling="poisson")
    >>> print(privacy_statement(run, delta=1e-5, unit="one image"))
    (ε ≤ 2.38, δ = 1e-05)-differential privacy for one image of 60,000 (add or remove one).
    Training: 14,040 Poisson-sampled batches of expected size 256, clipping norm 1, noise multiplier 1.1.
    Proof: privacy loss distribution of the Poisson-subsampled Gaussian (tight).
    Not charged: choice of hyper-parameters, number of examples.
    Randomness: pseudo-random generator, not cryptographic; floating-point noise.
    """
    n = integer("n", training.n, at_least=1)
    batch_size = integer("batch_size", training.batch_size, at_least=1, at_most=n)
    steps = integer("steps", training.steps, at_least=0)
    clipping = real_number("max_grad_norm", training.max_grad_norm, above=0)
    sigma = real_number("noise_multiplier", training.noise_multiplier, above=0)
    delta = real_number("delta", delta, above=0, below=1)
    sampling = choice("sampling", training.sampling, ("poisson", "shuffle"))
    choice("neighbouring", neighbouring, ("add or remove one", "replace one"))
    choice("accountant", accountant, tuple(_PROOFS))
    if delta * n >= 1:
        raise ValueError(
            f"delta must be < 1/n = {1 / n:.3g}, got {delta}: publishing one whole row at random is (0, 1/n)-DP"
        )
    if neighbouring == "replace one" and accountant != "gaussian":
        raise ValueError(
            f"accountant {accountant!r} analyses 'add or remove one' only; for 'replace one' use 'gaussian'"
        )
    poisson = accountant != "gaussian"
    per_epoch = n // batch_size
    if poisson and sampling == "shuffle" and batch_size < n:
        claimed = _ACCOUNTANTS[accountant](sigma, batch_size / n, min(steps, per_epoch), delta)
        true = shuffled_epsilon_lower_bound(sigma, per_epoch, delta)
        raise ValueError(
            f"accountant {accountant!r} is proved for Poisson sampling and these batches were shuffled: one epoch "
            f"would be stated as ε = {claimed:.3f}, and what shuffling gives away can reach at least {true:.3f}; "
            "sample by Poisson or use accountant 'gaussian'"
        )
    if poisson:
        epsilon = _ACCOUNTANTS[accountant](sigma, batch_size / n, steps, delta)
    else:
        sensitivity = 2 if neighbouring == "replace one" else 1
        # Poisson sampling may show an example in every step; shuffling, once in an epoch.
        exposures = steps if sampling == "poisson" else -(-steps // per_epoch)
        epsilon = shuffled_epsilon(sigma / sensitivity, exposures, delta)
    return PrivacyStatement(
        unit=unit,
        neighbouring=neighbouring,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        sampling=sampling,
        n=n,
        batch_size=batch_size,
        steps=steps,
        noise_multiplier=sigma,
        max_grad_norm=clipping,
        not_charged=tuple(not_charged),
        randomness=randomness,
        adapted=bool(getattr(training, "adapted", False)),
    )


def _training(noise_multiplier: float, sample_rate: float, steps: int) -> tuple[float, float, int]:
    sigma = real_number("noise_multiplier", noise_multiplier, above=0)
    return (
        sigma,
        real_number("sample_rate", sample_rate, at_least=0, at_most=1),
        integer("steps", steps, at_least=0),
    )
