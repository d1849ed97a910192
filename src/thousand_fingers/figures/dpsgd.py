"""The drawings of chapter 5, DP-SGD.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from thousand_fingers.intervals import mean_interval
from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

Floats = NDArray[np.float64]


def clipping(panels: Sequence[Axes], gradients: Floats, max_grad_norm: float, noisy: Floats) -> None:
    """Draw arrows of single examples before and after clipping, and many noisy sums of the clipped ones.

    ``gradients`` has shape (n, 2), ``noisy`` (draws, 2).
    """
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients / np.maximum(1, norms / max_grad_norm)
    angle = np.linspace(0, 2 * np.pi, 100)
    for panel, arrows, colour in zip(panels, (gradients, clipped), PALETTE, strict=False):
        for x, y in arrows:
            panel.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.4})
        panel.plot(max_grad_norm * np.cos(angle), max_grad_norm * np.sin(angle), color="grey", ls=":")
    total = clipped.sum(axis=0)
    panels[2].plot(*noisy.T, ls="", marker=".", ms=3, color=PALETTE[1], alpha=0.5)
    panels[2].annotate("", total, (0, 0), arrowprops={"arrowstyle": "->", "color": PALETTE[0], "lw": 2})
    near = 1.1 * max(np.abs(gradients).max(), max_grad_norm)
    far = 1.1 * np.abs(noisy).max()
    names = {"each example": near, "clipped": near, "sum plus noise": far}
    for panel, (name, reach) in zip(panels, names.items(), strict=True):
        panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel=name)
        panel.set_ylabel("second weight" if panel is panels[0] else " ")


def budgets(
    ax: Axes,
    names: Sequence[str],
    series: Mapping[str, Sequence[Sequence[float] | Floats]],
    published: Sequence[float],
) -> None:
    """Draw accuracy against budget: means over splits with 95% intervals, and published values as crosses."""
    place = np.arange(len(names), dtype=np.float64)
    for i, (name, runs) in enumerate(series.items()):
        _means(ax, place + 0.06 * (i - 1), runs, i, name)
    ax.plot(place, published, ls="", marker="x", ms=8, mew=2, color="black", label="published, other set-up")
    ax.set_xticks(place, names)
    ax.set(xlabel="privacy budget ε (δ = 0.00001)", ylabel="right on the test digits")
    ax.legend(loc="lower left")


def public_starts(
    ax: Axes, names: Sequence[str], series: Mapping[str, Sequence[Sequence[float] | Floats | None]]
) -> None:
    """Draw accuracy with and without a start from public data: means with 95% intervals; None leaves a gap."""
    place = np.arange(len(names), dtype=np.float64)
    for i, (name, runs) in enumerate(series.items()):
        there = [(x, run) for x, run in zip(place, runs, strict=True) if run is not None]
        at = np.array([x for x, _ in there]) + 0.05 * (i - 1)
        _means(ax, at, [run for _, run in there], i, name)
    ax.set_xticks(place, names)
    ax.set(xlabel="what was trained on", ylabel="right on the test digits")
    ax.legend(loc="lower right")


def _means(ax: Axes, place: Floats, runs: Sequence[Sequence[float] | Floats], i: int, name: str) -> None:
    middle = np.array([np.mean(run) for run in runs])
    ends = np.array([mean_interval(run) for run in runs]).T
    ax.errorbar(
        place,
        middle,
        np.abs(ends - middle),
        color=PALETTE[i],
        marker=MARKERS[i],
        ls=DASHES[i],
        capsize=3,
        label=name,
    )


def attacks(
    ax: Axes, curves: Mapping[str, tuple[Floats, Floats]], regions: Mapping[str, tuple[Floats, Floats]]
) -> None:
    """Draw ROC curves of an attack on logarithmic axes, and the bounds that budgets set to any attack."""
    for i, (name, (fpr, tpr)) in enumerate(curves.items()):
        ax.plot(fpr, tpr, color=PALETTE[i], ls=DASHES[0], label=name)
    for i, (name, (fpr, limit)) in enumerate(regions.items()):
        ax.plot(fpr, limit, color=PALETTE[i + 1], ls=DASHES[1], label=name)
    diagonal = np.geomspace(1e-3, 1, 50)
    ax.plot(diagonal, diagonal, color="grey", ls=":", label="guessing")
    ax.set(
        xscale="log",
        yscale="log",
        xlim=(1e-3, 1),
        ylim=(1e-3, 1.15),
        xlabel="non-members accused",
        ylabel="members found",
    )
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def payers(panels: Sequence[Axes], arms: Sequence[str], recalls: Mapping[str, tuple[Floats, Floats]]) -> None:
    """Draw recall of one class and of the others, arm by arm; arrays have shape (splits, arms)."""
    place = -np.arange(len(arms))
    for panel, (name, (minority, others)) in zip(panels, recalls.items(), strict=True):
        for i, (who, runs) in enumerate((("eights", minority), ("other digits", others))):
            middle = runs.mean(axis=0)
            ends = np.array([mean_interval(run) for run in runs.T]).T
            panel.errorbar(
                middle,
                place + 0.1 - 0.2 * i,
                xerr=np.abs(ends - middle),
                color=PALETTE[i],
                marker=MARKERS[i],
                ls="",
                capsize=3,
                label=who,
            )
        panel.set(xlabel=f"right, {name}", xlim=(-0.03, 1.03))
        panel.set_yticks(place, arms)
        panel.set_ylabel("training")
        panel.label_outer()
    panels[1].legend(loc="lower left")


def appetite(
    panels: Sequence[Axes],
    batch: tuple[Sequence[float], Sequence[Sequence[float] | Floats]],
    size: tuple[Sequence[int], Mapping[str, Sequence[Sequence[float] | Floats]]],
) -> None:
    """Draw accuracy against the expected batch, and against the size of the training set."""
    for panel, x, series in (
        (panels[0], batch[0], {"ε = 2": batch[1]}),
        (panels[1], size[0], size[1]),
    ):
        for i, (name, runs) in enumerate(series.items()):
            middle = np.array([np.mean(run) for run in runs])
            spread = [middle - [np.min(r) for r in runs], [np.max(r) for r in runs] - middle]
            panel.errorbar(
                x, middle, spread, color=PALETTE[i], marker=MARKERS[i], ls=DASHES[i], capsize=3, label=name
            )
        panel.set_ylabel("right on the test digits")
        panel.set_xscale("log")
        panel.set_xticks(x, [f"{v:,}" for v in x])
        panel.minorticks_off()
        panel.legend(loc="lower right")
    panels[0].set_xlabel("expected batch")
    panels[1].set_xlabel("size of the training set")
