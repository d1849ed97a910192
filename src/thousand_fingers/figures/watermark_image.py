"""The drawings of chapter 10, Watermarking and provenance: marked images and signed manifests.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from scipy import stats

from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

Floats = NDArray[np.float64]

# What a verdict means to a reader: fine, be careful, do not believe, nothing to say.
_STATES = {
    "trusted": ("#BFE3D6", "trusted"),
    "unknown signer": ("#FBE7B2", "unknown\nsigner"),
    "tampered ingredient": ("#F3C6A5", "tampered\ningredient"),
    "invalid": ("#F3C6A5", "invalid"),
    "no manifest": ("#E4E4E4", "no\nmanifest"),
}


def pictures(panels: Sequence[Axes], images: Mapping[str, NDArray[np.uint8]]) -> None:
    """Draw images in a row, each under its name."""
    for panel, (name, image) in zip(panels, images.items(), strict=True):
        panel.imshow(image, interpolation="nearest")
        panel.set_title(name, fontsize=9)


def survival(ax: Axes, matches: Mapping[str, Sequence[int]], names: Sequence[str], threshold: int) -> None:
    """Draw how many bits are right after each thing that happens, one marker for each picture.

    ``matches`` maps what happened to one count per picture, in the order of ``names``.
    """
    places = -np.arange(len(matches), dtype=float)
    low, high = float(stats.binom.ppf(0.005, 48, 0.5)), float(stats.binom.ppf(0.995, 48, 0.5))
    ax.axvspan(low, high, color="#e6e6e6", lw=0)
    ax.axvline(threshold, color="black", lw=1, ls="--")
    counts = np.array(list(matches.values()))
    for i, name in enumerate(names):
        shift = 0.24 - 0.16 * i
        ax.plot(
            counts[:, i],
            places + shift,
            ls="",
            marker=MARKERS[i],
            ms=6,
            color=PALETTE[i],
            label=name,
            alpha=0.9,
        )
    ax.set_yticks(places, list(matches))
    ax.set(
        xlabel="bits that are right, of 48",
        ylabel="what happened",
        xlim=(8, 49),
        ylim=(places[-1] - 0.6, 0.6),
    )
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(names))


def fair_coins(ax: Axes, matches: Sequence[int], threshold: int) -> None:
    """Draw the counts of many wrong keys as bars, and the binomial distribution as a line."""
    counts = np.bincount(np.asarray(matches), minlength=49)
    shown = np.arange(10, 39)
    ax.bar(shown, counts[shown], color=PALETTE[0], alpha=0.55, width=0.85, label=f"{len(matches)} keys")
    expected = len(matches) * stats.binom.pmf(shown, 48, 0.5)
    ax.plot(shown, expected, color=PALETTE[1], marker="o", ms=4, ls=DASHES[0], label="48 fair coins")
    ax.axvline(threshold - 0.5, color="black", lw=1, ls="--", label="1% level")
    ax.set(xlabel="bits that match, of 48", ylabel="number of keys")
    ax.legend(loc="upper right")


def attacker(
    panels: Sequence[Axes],
    lags: Sequence[int],
    likeness: Mapping[str, Floats],
    amounts: Sequence[float],
    removal: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    threshold: int,
) -> None:
    """Draw what betrays a tile, and what taking it away does to the mark and to the picture.

    ``removal`` maps a picture to the bits that are left and to its likeness to the original, in decibels.
    """
    for i, (name, curve) in enumerate(likeness.items()):
        panels[0].plot(lags, curve, color=PALETTE[i], ls=DASHES[i], lw=1.3, label=name)
    panels[0].set(xlabel="shift (pixels)", ylabel="likeness to itself")
    highest = max(float(curve.max()) for curve in likeness.values())
    panels[0].set_ylim(top=1.8 * highest)  # the legend lies above the peak
    panels[0].legend(loc="upper left", handlelength=1.6, borderaxespad=0.1)
    for i, (name, (left, decibel)) in enumerate(removal.items()):
        for panel, values in zip(panels[1:], (left, decibel), strict=True):
            panel.plot(amounts, values, color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name)
    panels[1].axhline(threshold, color="black", lw=1, ls="--")
    panels[1].set(xlabel="taken away (strengths)", ylabel="bits that are right, of 48", ylim=(12, 50))
    panels[2].set(xlabel="taken away (strengths)", ylabel="likeness to the original (dB)")
    panels[1].legend(loc="lower left")


def verdicts(ax: Axes, states: Mapping[str, Mapping[str, str]]) -> None:
    """Draw a table of verdicts: one row for each file, one column for each reader."""
    readers = list(next(iter(states.values())))
    for row, answers in enumerate(states.values()):
        for column, reader in enumerate(readers):
            colour, words = _STATES[answers[reader]]
            ax.add_patch(_tile(column, -row, colour))
            ax.text(column, -row, words, ha="center", va="center", fontsize=9)
    ax.set_xticks(range(len(readers)), readers)
    ax.set_yticks(-np.arange(len(states)), list(states))
    ax.set(xlim=(-0.52, len(readers) - 0.48), ylim=(0.52 - len(states), 0.52), xlabel="reader", ylabel="file")
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.spines[:].set_visible(False)


def mark_and_label(ax: Axes, rows: Mapping[str, tuple[int, str]], threshold: int) -> None:
    """Draw for each file the bits that the mark still gives, as a bar, and the verdict on its manifest."""
    for row, (bits, state) in enumerate(rows.values()):
        colour, words = _STATES[state]
        ax.barh(-row, bits, height=0.6, color=PALETTE[0], alpha=0.6)
        ax.text(bits - 0.8, -row, str(bits), ha="right", va="center", fontsize=9)
        ax.add_patch(_tile(55, -row, colour, 11, 0.8))
        ax.text(55, -row, words, ha="center", va="center", fontsize=9)
    ax.axvline(threshold, color="black", lw=1, ls="--")
    ax.set_yticks(-np.arange(len(rows)), list(rows))
    ax.set_xticks([0, 12, 24, 36, 48, 55], ["0", "12", "24", "36", "48", "manifest"])
    ax.set(xlim=(0, 61), ylim=(0.5 - len(rows), 0.6), xlabel="bits of the mark that are right", ylabel="file")
    ax.grid(axis="y", visible=False)


def _tile(x: float, y: float, colour: str, width: float = 0.96, height: float = 0.9) -> Rectangle:
    return Rectangle(
        (x - width / 2, y - height / 2), width, height, facecolor=colour, edgecolor="#888888", lw=0.6
    )
