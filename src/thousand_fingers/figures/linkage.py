"""The drawings of chapter 3's half on linkage.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from thousand_fingers.intervals import clopper_pearson
from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

_SHADE, _HINGE, _MARK = "#eeeeee", "#CFE5F3", "#F6C9A8"


def hinge(
    ax: Axes,
    left: Sequence[Sequence[str]],
    right: Sequence[Sequence[str]],
    *,
    shared: int,
    linked: tuple[int, int],
    titles: tuple[str, str],
) -> None:
    """Draw two tables whose facing columns are the same, and the row that swings the door open.

    The first row of each table is its head. The last ``shared`` columns of the left table are the first ones
    of the right; ``linked`` names the rows that agree, counted without the head.
    """
    ax.set(xlim=(-0.03, 10.03), ylim=(-len(left) * 0.62 - 0.3, 1.0))
    for rows, start, title, chosen, inner in (
        (left, 0.0, titles[0], linked[0], range(len(left[0]) - shared, len(left[0]))),
        (right, 5.4, titles[1], linked[1], range(shared)),
    ):
        width = 4.6 / len(rows[0])
        ax.text(start, 0.35, title, fontsize=10, fontweight="bold", va="bottom")
        for i, row in enumerate(rows):
            for j, text in enumerate(row):
                head = _HINGE if j in inner else _SHADE
                colour = _MARK if i == chosen + 1 else head if i == 0 else "white"
                corner = (start + j * width, -0.62 * i - 0.4)
                ax.add_patch(Rectangle(corner, width, 0.62, facecolor=colour, edgecolor="grey", lw=0.6))
                ax.text(
                    corner[0] + width / 2,
                    corner[1] + 0.31,
                    text,
                    ha="center",
                    va="center",
                    fontsize=9,
                    fontweight="bold" if i == 0 else "normal",
                )
    heights = [-0.62 * (row + 1) - 0.09 for row in linked]
    ax.plot([4.6, 5.4], heights, color=PALETTE[1], lw=2.5, marker="o", ls=DASHES[0])


def area_uniqueness(
    panels: Sequence[Axes],
    sizes: ArrayLike,
    alone: ArrayLike,
    threshold: ArrayLike,
    people: ArrayLike,
) -> None:
    """Draw who counts as unique against the size of an area, and how many people live in areas of each size."""
    panels[0].plot(sizes, alone, color=PALETTE[0], ls=DASHES[0], label="expected share alone")
    panels[0].plot(sizes, threshold, color=PALETTE[1], ls=DASHES[1], label="threshold rule")
    panels[0].set(xlabel="people in the area", ylabel="share called unique", xscale="log", ylim=(-0.03, 1.03))
    panels[0].legend(loc="lower left")
    population = np.asarray(people)
    edges = np.geomspace(100, 200_000, 34)
    counts, _ = np.histogram(population, bins=edges, weights=population / 1e6)
    panels[1].stairs(counts, edges, fill=True, color=PALETTE[0])
    panels[1].set(
        xlabel="people in the area", ylabel="people who live in such areas\n(millions)", xscale="log"
    )


def knowledge(
    panels: Sequence[Axes],
    known: ArrayLike,
    unique: ArrayLike,
    clues: ArrayLike,
    curves: Mapping[str, ArrayLike],
) -> None:
    """Draw the share of unique people against the number of known attributes, in a survey and among ratings."""
    counts, shares = np.asarray(known), np.asarray(unique)
    panels[0].scatter(counts, shares, s=18, color=PALETTE[6], label="one choice of attributes")
    steps = np.unique(counts)
    means = [shares[counts == step].mean() for step in steps]
    panels[0].plot(
        steps, means, color=PALETTE[0], marker=MARKERS[0], ls=DASHES[0], label="mean of all choices"
    )
    panels[0].set(xlabel="known attributes (survey)", ylabel="share unique", ylim=(-0.03, 1.03))
    for i, (name, rates) in enumerate(curves.items()):
        panels[1].plot(clues, rates, color=PALETTE[i], marker=MARKERS[i], ls=DASHES[i], label=name)
    panels[1].set(xlabel="known ratings (films)", ylabel="share unique", ylim=(-0.03, 1.03))
    panels[0].legend(loc="best")
    panels[1].legend(loc="upper right", bbox_to_anchor=(1, 0.95))  # between the curves


def conditions(
    panels: Sequence[Axes],
    names: Sequence[str],
    ylabels: Sequence[str],
    series: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
) -> None:
    """Draw rates with their exact intervals under several conditions, one panel per question.

    ``series`` maps a name to, for each panel, the successes and trials under each condition; trials of 0
    stand for a rate that was given as such.
    """
    places = np.arange(len(names))
    for i, (name, all_counts) in enumerate(series.items()):
        for panel, counts in zip(panels, all_counts, strict=True):
            if not counts:
                continue
            rate = np.array([hits / n if n else hits for hits, n in counts])
            limits = [clopper_pearson(int(h), int(n)) if n else (h, h) for h, n in counts]
            bars = np.abs(np.array(limits).T - rate)
            panel.errorbar(
                places + 0.16 * (i - 1),
                rate,
                bars,
                color=PALETTE[i],
                marker=MARKERS[i],
                ls="",
                capsize=2,
                label=name,
            )
    for panel, ylabel in zip(panels, ylabels, strict=True):
        panel.set_xticks(places, names, fontsize=9)
        panel.set(xlabel="what the attacker knows", ylabel=ylabel, ylim=(-0.03, 1.03))
    panels[0].legend(loc="lower right")


def thresholds(ax: Axes, series: Mapping[str, tuple[ArrayLike, ArrayLike]], chosen: float) -> None:
    """Draw the share of targets about whom a match is claimed, against the eccentricity threshold.

    ``series`` maps a name to the eccentricities of targets that are in the release (right first places) and
    of targets that are not.
    """
    grid = np.linspace(0, 6, 121)
    for i, (name, (present, absent)) in enumerate(series.items()):
        for what, values, dash in (("in the table", present, 0), ("not in the table", absent, 1)):
            share = (np.asarray(values)[:, None] >= np.maximum(grid, 1e-12)).mean(0)
            ax.plot(grid, share, color=PALETTE[i], ls=DASHES[dash + 2 * i], label=f"{name}, {what}")
    ax.axvline(chosen, color="grey", lw=1, ls=":")
    ax.set(xlabel="eccentricity threshold (standard deviations)", ylabel="share claimed", ylim=(-0.03, 1.03))
    ax.legend(loc="upper right")


def profiles(ax: Axes, present: ArrayLike, absent: ArrayLike, chosen: float) -> None:
    """Draw the eccentricity of every profile of a second table, one dot each, on a logarithmic axis."""
    for i, (values, name) in enumerate(((present, "in the release"), (absent, "taken out of it"))):
        spread = np.linspace(-0.22, 0.22, len(np.asarray(values)))
        ax.scatter(
            np.maximum(np.sort(np.asarray(values)), 0.01),
            -i + spread,
            s=22,
            color=PALETTE[i],
            marker=MARKERS[i],
        )
        ax.text(0.011, -i + 0.3, name, fontsize=9)
    ax.axvline(chosen, color="grey", lw=1, ls=":")
    ax.set_yticks([])
    ax.set(xlabel="eccentricity (standard deviations)", ylabel="profiles", xscale="log", ylim=(-1.4, 0.55))
