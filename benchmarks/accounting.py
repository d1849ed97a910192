"""Chapter 5's accountants beside dp-accounting and Opacus: the same ε and σ, and how fast."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    calibrate_dp_mechanism,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import PRVAccountant, RDPAccountant

from thousand_fingers.accounting import RDP_ORDERS, noise_multiplier_for, pld_epsilon, rdp_epsilon

DELTA = 1e-5
# sample rate, noise multiplier, steps
TRAININGS = ((0.01, 4.0, 10_000), (0.01, 1.0, 1_000), (256 / 60_000, 1.1, 14_040), (0.25, 4.0, 200))


def timed(work: Callable[[], float], repeats: int = 2) -> tuple[float, float]:
    """Return a result and the best of several times, in seconds of one core."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        times.append(time.process_time() - start)
    return result, min(times)


def event(q: float, sigma: float, steps: int) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps)


def opacus(kind: type, q: float, sigma: float, steps: int, **options: float) -> float:
    accountant = kind()
    accountant.history = [(sigma, q, steps)]
    return float(accountant.get_epsilon(DELTA, **options))


def compare_renyi() -> None:
    for q, sigma, steps in TRAININGS:
        run = (q, sigma, steps)
        ours, our_time = timed(lambda run=run: rdp_epsilon(run[1], run[0], run[2], DELTA))
        theirs, their_time = timed(
            lambda run=run: RdpAccountant(list(RDP_ORDERS)).compose(event(*run)).get_epsilon(DELTA)
        )
        third, third_time = timed(lambda run=run: opacus(RDPAccountant, *run))
        assert theirs * 0.998 <= ours <= theirs * (1 + 1e-6), (ours, theirs)
        assert ours <= third * (1 + 1e-3), (ours, third)
        print(
            f"Rényi, q = {q:.4g}, σ = {sigma}, T = {steps:,}: {ours:.4f} against {theirs:.4f} and {third:.4f}; "
            f"dp-accounting / ours = {their_time / our_time:.1f}, Opacus / ours = {third_time / our_time:.1f}"
        )


def compare_tight() -> None:
    for q, sigma, steps in TRAININGS:
        run = (q, sigma, steps)
        ours, our_time = timed(lambda run=run: pld_epsilon(run[1], run[0], run[2], DELTA))
        theirs, their_time = timed(lambda run=run: PLDAccountant().compose(event(*run)).get_epsilon(DELTA), 1)
        third, third_time = timed(lambda run=run: opacus(PRVAccountant, *run, eps_error=0.01), 1)
        assert abs(ours - theirs) < 1e-3, (ours, theirs)
        assert 0 < third - ours < 0.021, (ours, third)  # Opacus adds its error to be safe
        print(
            f"tight, q = {q:.4g}, σ = {sigma}, T = {steps:,}: {ours:.4f} against {theirs:.4f} and {third:.4f}; "
            f"dp-accounting / ours = {their_time / our_time:.1f}, Opacus / ours = {third_time / our_time:.1f}"
        )


def compare_inverse() -> None:
    for q, steps, epsilon in ((0.25, 100, 2.0), (0.125, 160, 8.0)):

        def ours(q: float = q, steps: int = steps, epsilon: float = epsilon) -> float:
            return noise_multiplier_for(epsilon, DELTA, sample_rate=q, steps=steps)

        def theirs(q: float = q, steps: int = steps, epsilon: float = epsilon) -> float:
            found = calibrate_dp_mechanism(
                PLDAccountant,
                lambda noise, q=q, steps=steps: event(q, noise, steps),
                epsilon,
                DELTA,
                tol=1e-3,
            )
            return float(found)

        (sigma, our_time), (peer, their_time) = timed(ours, 1), timed(theirs, 1)
        assert abs(sigma / peer - 1) < 2e-3, (sigma, peer)
        print(
            f"noise for ε = {epsilon}, q = {q}, T = {steps}: {sigma:.4f} against {peer:.4f}; "
            f"dp-accounting / ours = {their_time / our_time:.1f}"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Opacus announces every order at the edge of its range
    compare_renyi()
    compare_tight()
    compare_inverse()
