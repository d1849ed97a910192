"""The drawings of chapter 12, Model extraction.

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


def errors(ax: Axes, queries: Sequence[int], series: Mapping[str, Floats]) -> None:
    """Draw the error of the stolen weights against queries; each array has shape (queries, seeds)."""
    for i, (name, found) in enumerate(series.items()):
        range_bars(ax, queries, found, middle=np.median(found, axis=1), place=i, label=name)
    ax.set(xscale="log", yscale="log", xlabel="queries", ylabel="relative error of the weights")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def directions(ax: Axes, series: Mapping[str, tuple[ArrayLike, ArrayLike]], ticks: Sequence[int]) -> None:
    """Draw the angle between the stolen and the true direction against queries; ``ticks`` are labelled."""
    for i, (name, (queries, angles)) in enumerate(series.items()):
        ax.plot(queries, angles, color=PALETTE[i], marker=MARKERS[i], ls=DASHES[i], label=name)
    ax.set(
        xscale="log", yscale="log", xlabel="queries, labels only", ylabel="angle to the true direction (rad)"
    )
    ax.set_xticks(ticks, [f"{tick:,d}" for tick in ticks])
    ax.minorticks_off()
    ax.legend(loc="lower left")


def fidelity(ax: Axes, queries: Sequence[int], series: Mapping[str, Floats]) -> None:
    """Draw the agreement of copies with the victim: mean over seeds, and range; shape (queries, seeds)."""
    for i, (name, rates) in enumerate(series.items()):
        range_bars(ax, queries, rates, middle=rates.mean(axis=1), place=i, label=name)
    ax.set(xscale="log", xlabel="queries", ylabel="answers like the victim", ylim=(0, 1.02))
    ax.set_xticks(queries, [str(n) for n in queries])
    ax.minorticks_off()
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def classes(panels: Sequence[Axes], rows: Mapping[str, Floats]) -> None:
    """Draw one row of images for each name, one image for each class, white where it is brightest."""
    images = [image for row in rows.values() for image in row]
    width = len(images) // len(rows)
    for i, (panel, image) in enumerate(zip(panels, images, strict=True)):
        panel.imshow(image, cmap="gray", vmin=0, vmax=image.max())
        if i % width == 0:
            panel.text(-1.2, image.shape[0] / 2, list(rows)[i // width], ha="right", va="center", fontsize=9)


def guesses(ax: Axes, rows: Mapping[str, Mapping[str, tuple[float, float, float]]], chance: float) -> None:
    """Draw rates with their intervals, one line for each attack, one mark for each group of records."""
    places = np.arange(len(rows))
    for i, group in enumerate(next(iter(rows.values()))):
        rate, low, high = np.array([row[group] for row in rows.values()]).T
        ax.errorbar(
            rate,
            0.12 - 0.24 * i - places,
            xerr=[rate - low, high - rate],
            color=PALETTE[i],
            marker=MARKERS[i],
            ls="",
            capsize=3,
            label=group,
        )
    ax.axvline(chance, color="grey", lw=1, ls=":", label="chance")
    ax.set_yticks(-places, list(rows))
    ax.set(xlabel="square guessed right", ylabel="attacker", xlim=(0, 0.8), ylim=(0.5 - len(rows), 0.5))
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def mechanism(
    panels: Sequence[Axes], rows: Mapping[str, tuple[Floats, Floats, float]], ticks: Sequence[str]
) -> None:
    """Draw each attack's success on two victims, with intervals, and its level without a leak.

    ``rows`` maps an attack to values of shape (victims,), limits of shape (2, victims), and that level.
    """
    for panel, (name, (values, limits, level)) in zip(panels, rows.items(), strict=True):
        for i, value in enumerate(values):
            panel.errorbar(
                [i],
                [value],
                [[value - limits[0][i]], [limits[1][i] - value]],
                color=PALETTE[i],
                marker=MARKERS[i],
                ms=8,
                capsize=4,
            )
        panel.axhline(level, color="grey", lw=1, ls=":")
        panel.set_xticks(range(len(ticks)), ticks)
        panel.set(xlabel="victim", ylabel=name, xlim=(-0.6, len(ticks) - 0.4))


def prices(ax: Axes, rows: Mapping[str, tuple[int, int]]) -> None:
    """Draw the queries that each theft needs, and write the days beside them."""
    places = np.arange(len(rows))
    queries = [queries for queries, _ in rows.values()]
    ax.barh(-places, queries, color=PALETTE[6], edgecolor="black", height=0.6)
    for place, (count, days) in enumerate(rows.values()):
        ax.text(
            count * 1.1, -place, f"{count:,d} · {days} day{'s' if days > 1 else ''}", va="center", fontsize=9
        )
    ax.set_yticks(-places, list(rows))
    ax.set(xscale="log", xlim=(10, 40 * max(queries)), xlabel="queries", ylabel="the API gives")
