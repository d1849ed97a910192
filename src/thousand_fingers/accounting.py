"""What several private releases cost together (chapter 4).

That budgets add up is from [Dwork2006], advanced composition from [Dwork2010] in the form of
[DworkRoth2014, Theorem 3.20]; the sharper closed form and the exact optimum over all mechanisms are due
to Kairouz, Oh and Viswanath [Kairouz2015]. The last function is not a bound but the truth about one
mechanism: what the best attacker gets out of k Laplace releases.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray
from scipy.special import gammaln, log_expit, logsumexp

from thousand_fingers.numerics import smallest_satisfying
from thousand_fingers.validation import integer, real_number


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
