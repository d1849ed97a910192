"""The drawings of chapter 8, Randomized smoothing.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them: the cell on the page shows the
idea, this module the plumbing. Colours always come with a second channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

Floats = NDArray[np.float64]


def fog(panels: Sequence[Axes], pictures: Mapping[str, ArrayLike]) -> None:
    """Draw one image under growing noise, each picture with its own words below."""
    for panel, (words, picture) in zip(panels, pictures.items(), strict=True):
        panel.imshow(np.asarray(picture), cmap="gray", vmin=-0.5, vmax=1.5, interpolation="nearest")
        panel.text(0.5, -0.06, words, transform=panel.transAxes, ha="center", va="top")


def worst_case(
    ax: Axes, lengths: Floats, curves: Mapping[float, Floats], radii: Mapping[float, float]
) -> None:
    """Draw the least probability that the class can keep, against the length of the push."""
    for i, (p, curve) in enumerate(curves.items()):
        ax.plot(lengths, curve, color=PALETTE[i], ls=DASHES[i], label=f"starts at {p:g}")
        ax.plot(radii[p], 0.5, color=PALETTE[i], marker=MARKERS[i], ms=7, ls="")
    ax.axhline(0.5, color="grey", ls=":", lw=1)
    ax.text(float(lengths[-1]), 0.51, "another class may win below", ha="right", va="bottom", fontsize=9)
    ax.set(xlabel="length of the push, in units of σ", ylabel="share of votes left, at worst", ylim=(0, 1.02))
    ax.legend(loc="lower left")


def certified(ax: Axes, radii: Floats, curves: Mapping[str, Floats], ends: Sequence[float]) -> None:
    """Draw certified accuracy by radius, one curve per noise; a marker where the draws end its reach."""
    for i, (name, curve) in enumerate(curves.items()):
        ax.plot(radii, curve, color=PALETTE[i], ls=DASHES[i], label=name)
        last = int(np.searchsorted(radii, ends[i], side="right")) - 1
        ax.plot(radii[last], curve[last], color=PALETTE[i], marker=MARKERS[i], ms=6, ls="")
    ax.set(xlabel="radius (Euclidean length of the push)", ylabel="certified accuracy", ylim=(0, 1))
    ax.legend(loc="upper right")


def coverage(
    ax: Axes,
    truths: Floats,
    exact: Floats,
    measured: Mapping[float, tuple[float, float, float]],
    level: float,
) -> None:
    """Draw how often the bound exceeds the truth: exact curve, measured points with limits, the promise."""
    ax.plot(truths, exact, color=PALETTE[0], ls=DASHES[0], lw=1.2, label="exact")
    points = np.array([(p, *values) for p, values in measured.items()])
    errors = np.stack([points[:, 1] - points[:, 2], points[:, 3] - points[:, 1]])
    ax.errorbar(
        points[:, 0], points[:, 1], errors, fmt=MARKERS[1], color=PALETTE[2], capsize=3, label="measured"
    )
    ax.axhline(level, color=PALETTE[1], ls=DASHES[1], label=f"the promise, α = {level:g}")
    ax.set(
        xlabel="true probability of the class",
        ylabel="share of bounds that are too high",
        ylim=(0, 1.3 * level),
    )
    ax.legend(loc="lower left", ncols=3)


def sandwich(
    ax: Axes, radii: Floats, proved: Floats, tried: Sequence[float], attacked: Mapping[str, ArrayLike]
) -> None:
    """Draw what is proved below what an attack has left standing."""
    ax.plot(radii, proved, color=PALETTE[0], ls=DASHES[0], label="certified (proved)")
    for i, (name, curve) in enumerate(attacked.items(), start=1):
        ax.plot(tried, np.asarray(curve), color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name)
    ax.set(xlabel="radius (Euclidean length of the push)", ylabel="share of images still right", ylim=(0, 1))
    ax.legend(loc="upper right")


def price(ax: Axes, draws: Floats, reach: Mapping[float, Floats]) -> None:
    """Draw the largest radius that n equal votes can prove."""
    for i, (level, curve) in enumerate(reach.items()):
        ax.plot(draws, curve, color=PALETTE[i], ls=DASHES[i], label=f"α = {level:g}")
    ax.set(xscale="log", xlabel="votes, all of them equal", ylabel="largest radius, in units of σ")
    ax.legend(loc="upper left")


def promises(ax: Axes, radii: Floats, curves: Mapping[str, Floats]) -> None:
    """Draw certified accuracy by radius for several kinds of certificate."""
    for i, (name, curve) in enumerate(curves.items()):
        every = slice(2 * i, None, len(radii) // 6)
        ax.plot(radii, curve, color=PALETTE[i], ls=DASHES[i], label=name)
        ax.plot(radii[every], curve[every], color=PALETTE[i], marker=MARKERS[i], ls="")
    ax.set(xlabel="radius (Euclidean length of the push)", ylabel="certified accuracy", ylim=(0, 1))
    ax.legend(loc="upper right")


def two_networks(panels: Sequence[Axes], radii: Floats, curves: Mapping[str, Mapping[str, Floats]]) -> None:
    """Draw, for each density of noise, the certified accuracy of several networks."""
    for panel, (words, networks) in zip(panels, curves.items(), strict=True):
        for i, (name, curve) in enumerate(networks.items()):
            panel.plot(radii, curve, color=PALETTE[i], ls=DASHES[i], label=name)
        panel.text(0.97, 0.97, words, transform=panel.transAxes, ha="right", va="top")
        panel.set(xlabel="radius", ylabel="certified accuracy", ylim=(0, 1))
    panels[0].legend(loc="center right", handlelength=1.4)  # its curves end on the left
