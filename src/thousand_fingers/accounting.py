"""What several private releases cost together (chapter 4; chapter 5 adds more).

Basic composition is from [Dwork2006], advanced composition from
[Dwork2010] as stated in [DworkRoth2014, Theorem 3.20], its sharper closed form and the
optimum over all pure mechanisms from Kairouz, Oh and Viswanath [Kairouz2015].
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, log_expit, logsumexp

from thousand_fingers.numerics import smallest_satisfying
from thousand_fingers.validation import integer, real_number


def basic_composition(epsilon: float, k: int, delta: float = 0.0) -> tuple[float, float]:
    """Return (kε, kδ), what k releases cost at most."""
    epsilon, k = _releases(epsilon, k)
    delta = real_number("delta", delta, at_least=0, below=1)
    return k * epsilon, min(1.0, k * delta)


def advanced_composition(epsilon: float, k: int, delta_slack: float) -> float:
    """Return ε√(2k ln(1/δ')) + kε(e^ε − 1)."""
    epsilon, k = _releases(epsilon, k)
    slack = real_number("delta_slack", delta_slack, above=0, below=1)
    with np.errstate(over="ignore"):
        return float(epsilon * np.sqrt(-2 * k * np.log(slack)) + k * epsilon * np.expm1(epsilon))


def tanh_composition(epsilon: float, k: int, delta_slack: float) -> float:
    """Return ε√(2k ln(1/δ')) + kε·tanh(ε/2)."""
    epsilon, k = _releases(epsilon, k)
    slack = real_number("delta_slack", delta_slack, above=0, below=1)
    return epsilon * math.sqrt(-2 * k * math.log(slack)) + k * epsilon * math.tanh(epsilon / 2)


def optimal_composition_delta(epsilon: float, k: int, total_epsilon: float) -> float:
    """Return the smallest δ at which any k ε-DP releases are (total_epsilon, δ)-DP."""
    epsilon, k = _releases(epsilon, k)
    total = real_number("total_epsilon", total_epsilon, at_least=0)
    truths = np.arange(k + 1)
    loss = (2 * truths - k) * epsilon
    log_probability = (
        gammaln(k + 1)
        - gammaln(truths + 1)
        - gammaln(k - truths + 1)
        + truths * log_expit(epsilon)
        + (k - truths) * log_expit(-epsilon)
    )
    above = loss > total
    if not above.any():
        return 0.0
    return float(np.exp(logsumexp(log_probability[above] + np.log(-np.expm1(total - loss[above])))))


def optimal_composition_epsilon(epsilon: float, k: int, delta: float) -> float:
    """Return the smallest ε that any k ε-DP releases satisfy together at δ."""
    epsilon, k = _releases(epsilon, k)
    delta = real_number("delta", delta, at_least=0, below=1)
    if optimal_composition_delta(epsilon, k, 0.0) <= delta:
        return 0.0
    return smallest_satisfying(
        lambda total: optimal_composition_delta(epsilon, k, total) <= delta, 0.0, k * epsilon
    )


def laplace_composition_attacker(epsilon: float, k: int) -> float:
    """Return how often the best attacker is right after k Laplace releases, each ε-DP."""
    epsilon, k = _releases(epsilon, k)
    half = epsilon / 2
    nodes, weights = np.polynomial.legendre.leggauss(24)
    nodes, weights = (nodes + 1) / 2, weights / 2
    error = 0.0
    density = np.empty((0, nodes.size))
    for c in range(k + 1):
        # x in (-c, c), one row per unit cell; density of the sum of c uniforms on (-1, 1)
        x = np.arange(-c, c)[:, None] + nodes
        if c == 1:
            density = np.full(x.shape, 0.5)
        elif c > 1:
            padded = np.pad(density, ((2, 2), (0, 0)))
            density = ((x + c) * padded[2:] + (c - x) * padded[:-2]) / (2 * (c - 1))
        log_share = gammaln(k + 1) - gammaln(c + 1) - gammaln(k - c + 1) + c * math.log(half) - k * half
        plus = np.arange(k - c + 1)
        shift = 2 * plus - (k - c)
        coin = np.exp(
            gammaln(k - c + 1) - gammaln(plus + 1) - gammaln(k - c - plus + 1) - (k - c) * math.log(2)
        )
        if c == 0:
            below = np.where(shift < 0, np.exp(half * np.minimum(shift, 0)), 0.5 * (shift == 0))
        else:
            cells = (density * np.exp(half * (x - np.arange(-c, c)[:, None] - 1))) @ weights
            # E[e^{half (shift + U)}; shift + U < 0]: cells whose right end is <= -shift
            below = np.array(
                [
                    float(
                        np.sum(
                            cells[: max(0, min(2 * c, c - s))]
                            * np.exp(half * (np.arange(-c, c)[: max(0, min(2 * c, c - s))] + 1 + s))
                        )
                    )
                    for s in shift
                ]
            )
        error += math.exp(log_share) * float(coin @ below)
    return 1 - error


def _releases(epsilon: float, k: int) -> tuple[float, int]:
    return real_number("epsilon", epsilon, above=0), integer("k", k, at_least=1)
