"""The drawings of chapter 5 about what a private training costs, and how its step is audited.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from thousand_fingers.plotting import DASHES, MARKERS, PALETTE


def accountants(ax: Axes, steps: Sequence[int], proofs: Mapping[str, Sequence[float]], marked: int) -> None:
    """Draw what several proofs say a training costs, against its length; one length is marked."""
    for i, (name, epsilon) in enumerate(proofs.items()):
        ax.plot(steps, epsilon, color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name)
    ax.axvline(marked, color="grey", lw=0.8, ls=":")
    ax.set(xscale="log", yscale="log", xlabel="steps T", ylabel="ε at the same δ")
    ax.legend(loc="upper left")


def batches(ax: Axes, noise: Sequence[float], epsilons: Mapping[str, Sequence[float]]) -> None:
    """Draw ε against the noise multiplier for Poisson and for shuffled batches."""
    for i, (name, epsilon) in enumerate(epsilons.items()):
        ax.plot(noise, epsilon, color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name)
    between = list(epsilons.values())[1:3]
    ax.fill_between(noise, between[0], between[1], color=PALETTE[1], alpha=0.2, lw=0)
    ax.set(yscale="log", xlabel="noise multiplier σ", ylabel="ε of one epoch")
    ax.legend(loc="upper right")


def lower_bounds(ax: Axes, claimed: Sequence[float], bounds: Mapping[str, Sequence[float]]) -> None:
    """Draw what audits prove against what was claimed; above the diagonal a false claim is exposed."""
    ax.plot([0.7, 14], [0.7, 14], color="grey", lw=0.8, ls=":", label="what is claimed")
    for i, (name, bound) in enumerate(bounds.items()):
        ax.plot(claimed, bound, color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="claimed ε (half of its noise was added)",
        ylabel="proved: ε is at least",
    )
    ax.set_xticks(claimed, [f"{value:g}" for value in claimed])
    ax.set_yticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    ax.minorticks_off()
    ax.legend(loc="upper left")


def attack_regions(
    ax: Axes,
    fpr: ArrayLike,
    limits: Mapping[str, ArrayLike],
    attacks: Mapping[str, tuple[ArrayLike, ArrayLike]],
) -> None:
    """Draw how many members an attacker may find at each false-alarm rate, and what attacks found.

    ``limits`` maps a name to true positive rates at ``fpr``; ``attacks`` maps one to its own two rates.
    """
    for i, (name, tpr) in enumerate(limits.items()):
        ax.plot(fpr, tpr, color=PALETTE[i], ls=DASHES[i], label=name)
    for i, (name, (false, true)) in enumerate(attacks.items(), start=len(limits)):
        ax.step(false, true, color=PALETTE[i], ls=DASHES[i], where="post", label=name)
    rates = np.asarray(fpr, dtype=np.float64)
    ax.plot(rates, rates, color="grey", lw=0.8, ls=":", label="blind guess")
    ax.set(xscale="log", yscale="log", xlabel="non-members accused (FPR)", ylabel="members found (TPR)")
    ax.set(xlim=(rates.min(), 1), ylim=(rates.min(), 1.3))
    ax.legend(loc="lower right")
