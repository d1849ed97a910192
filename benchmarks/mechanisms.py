"""Chapter 4 beside OpenDP and dp-accounting: the same law, the same bounds, and how fast."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import opendp.prelude as opendp
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import chi2_contingency

from thousand_fingers.accounting import optimal_composition_epsilon
from thousand_fingers.mechanisms import analytic_gaussian_std, discrete_laplace

DRAWS = 100_000
FALSE_ALARM = 1e-6


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the best of several times."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def same_law(first: np.ndarray, second: np.ndarray) -> float:
    """Return the p-value of a chi-square test that two samples of integers share their law."""
    low, high = np.quantile(np.concatenate([first, second]), [0.001, 0.999]).astype(int)
    edges = np.arange(low, high + 2) - 0.5
    table = np.array([np.histogram(np.clip(sample, low, high), edges)[0] for sample in (first, second)])
    return float(chi2_contingency(table[:, table.sum(axis=0) >= 20]).pvalue)


def compare_samplers() -> None:
    """Compare whole-number Laplace noise with OpenDP's, drawn as one vector."""
    opendp.enable_features("contrib")
    zeros = [0] * DRAWS
    for scale in (1.0, 2.0, 10.0, 10 / 3):
        peer = opendp.m.make_laplace(
            opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l1_distance(T=int), scale=scale
        )
        rng = np.random.default_rng(0)

        def ours(scale: float = scale, rng: np.random.Generator = rng) -> np.ndarray:
            return np.asarray(discrete_laplace(scale=scale, rng=rng, size=DRAWS))

        p_value = same_law(ours(), np.array(peer(zeros)))
        assert p_value > FALSE_ALARM, f"the two samplers draw from different laws (p = {p_value:.1e})"
        ratio = seconds(lambda peer=peer: peer(zeros)) / seconds(ours)
        print(
            f"discrete Laplace, scale {scale:.4g}: same law (p = {p_value:.2f}), OpenDP / ours = {ratio:.1f}"
        )


def compare_bounds() -> None:
    """Compare the exact composition of k pure answers, and the tight Gaussian noise."""
    for epsilon, k in ((0.1, 100), (0.5, 20), (1.0, 10)):

        def peer(epsilon: float = epsilon, k: int = k) -> float:
            # Two buckets: the binary randomized response with this ε, the worst pure mechanism.
            # (The accountant class of version 0.6.0 would charge k such events as one.)
            loss = privacy_loss_distribution.from_randomized_response(2 / (1 + math.exp(epsilon)), 2)
            return float(loss.self_compose(k).get_epsilon_for_delta(1e-5))

        ours = optimal_composition_epsilon(epsilon, k, 1e-5)
        theirs = peer()
        # The peer rounds losses up on a grid of 1e-4, k times.
        assert -1e-9 <= theirs - ours <= 1e-4 * k + 1e-9, (ours, theirs)
        ratio = seconds(peer, 3) / seconds(
            lambda epsilon=epsilon, k=k: optimal_composition_epsilon(epsilon, k, 1e-5), 3
        )
        print(
            f"{k} answers at ε = {epsilon}: {ours:.4f} against {theirs:.4f}, dp-accounting / ours = {ratio:.1f}"
        )
    for epsilon in (0.1, 1.0, 10.0):
        ours, theirs = analytic_gaussian_std(epsilon, 1e-5), get_sigma_gaussian(epsilon, 1e-5)
        assert np.isclose(ours, theirs, rtol=1e-6), (ours, theirs)
        print(f"Gaussian noise at ε = {epsilon}: {ours:.6f} against {theirs:.6f}")


if __name__ == "__main__":
    compare_samplers()
    compare_bounds()
