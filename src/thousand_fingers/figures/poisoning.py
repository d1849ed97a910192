"""The drawings of chapter 9, Poisoning and backdoors.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.plotting import DASHES, MARKERS, PALETTE, range_bars

Floats = NDArray[np.float64]


def digits(panels: NDArray[np.object_], images: Floats, captions: Sequence[str]) -> None:
    """Draw images in a row, white on black as the data are, each with a line of text."""
    for panel, image, caption in zip(panels, images, captions, strict=True):
        panel.imshow(image, cmap="gray", vmin=0, vmax=1)
        panel.set_title(caption, fontsize=9)


def shares(
    panels: Sequence[Axes],
    share: Sequence[float],
    series: Mapping[str, tuple[Floats, Floats]],
    ylabels: tuple[str, str] = ("right on clean images", "stamped images that obey"),
    first: int = 0,
) -> None:
    """Draw accuracy and attack success against poison share: the mean over seeds, and their range.

    ``series`` maps a name to two arrays of shape (shares, seeds); ``first`` is the place of the first one
    among the book's colours, for panels that are drawn on twice.
    """
    for i, (name, both) in enumerate(series.items(), start=first):
        for panel, rates in zip(panels, both, strict=True):
            range_bars(panel, share, rates, middle=rates.mean(axis=1), place=i, label=name)
            panel.set_xscale("symlog", linthresh=1e-3)
            panel.set_xticks([0, 1e-3, 1e-2, 1e-1], ["0", "0.1%", "1%", "10%"])
            panel.set(xlabel="poison, share of the training set", ylim=(-0.03, 1.03), xlim=(-1e-4, 0.15))
    for panel, ylabel in zip(panels, ylabels, strict=True):
        panel.set_ylabel(ylabel)
    panels[0].legend(loc="lower left")


def sizes(ax: Axes, sides: Sequence[int], series: Mapping[str, Floats]) -> None:
    """Draw attack success against the side of the patch; each array has shape (sides, seeds)."""
    for i, (name, rates) in enumerate(series.items()):
        range_bars(ax, sides, rates, middle=rates.mean(axis=1), place=i, label=name)
    ax.set(xlabel="side of the patch (pixels)", ylabel="stamped images that obey", ylim=(-0.03, 1.03))
    ax.set_xticks(sides)
    ax.legend(loc="upper left")


def flips(panels: Sequence[Axes], series: Mapping[str, tuple[ArrayLike, Floats, Floats]]) -> None:
    """Draw the accuracy on all digits and on fours against the share of flipped labels.

    ``series`` maps a name to shares and to two arrays of shape (shares, seeds).
    """
    for i, (name, (share, *both)) in enumerate(series.items()):
        for panel, rates in zip(panels, both, strict=True):
            range_bars(panel, 100 * np.asarray(share), rates, middle=rates.mean(axis=1), place=i, label=name)
            panel.set(xlabel="flipped labels (% of the training set)", ylim=(-0.03, 1.03))
    panels[0].set_ylabel("right on all digits")
    panels[1].set_ylabel("right on fours")
    panels[1].legend(loc="upper right")


def detection(panels: Sequence[Axes], curves: Mapping[str, Mapping[str, tuple[Floats, Floats]]]) -> None:
    """Draw one panel per detector, one curve of false and true alarms per poison."""
    for panel, (detector, poisons) in zip(panels, curves.items(), strict=True):
        for i, (name, (accused, found)) in enumerate(poisons.items()):
            panel.plot(accused, found, color=PALETTE[i], ls=DASHES[i], label=name)
        panel.plot([0, 1], [0, 1], color="grey", lw=0.8, ls=":")
        panel.set(xlabel=f"clean examples accused\n({detector})", ylabel="poison found", aspect="equal")
    panels[1].legend(loc="lower right")


def cures(ax: Axes, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Draw attack success before and after cleaning, one row for each poison."""
    places = np.arange(len(rows))
    for i, when in enumerate(next(iter(rows.values()))):
        values = [row[when] for row in rows.values()]
        ax.plot(
            values, 0.24 - 0.16 * i - places, color=PALETTE[i], marker=MARKERS[i], ms=8, ls="", label=when
        )
    ax.set_yticks(-places, list(rows))
    ax.set(
        xlabel="stamped images that obey", ylabel="poison", xlim=(-0.03, 1.03), ylim=(-len(rows) + 0.5, 0.5)
    )
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
