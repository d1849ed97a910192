"""The drawings of chapter 10's text: words on their lists, scores, attacks, and the walk.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.intervals import mean_interval
from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

Floats = NDArray[np.float64]
_GREEN, _RED = "#cfe8dc", "#f6d9c4"


def words(panels: Sequence[Axes], rows: Sequence[tuple[str, Sequence[str], Sequence[bool]]]) -> None:
    """Draw, in each panel, a text word piece by word piece: green ones filled with a full line, red ones dashed."""
    for panel, (title, pieces, green) in zip(panels, rows, strict=True):
        panel.set(xlim=(0, 100), ylim=(-4.6, 1.4))
        panel.text(0, 0.95, title, fontsize=10, weight="bold", va="center")
        x, y = 0.0, 0.0
        for piece, is_green in zip(pieces, green, strict=True):
            shown = piece.replace("\n", "↵").strip() or "·"
            width = 1.22 * len(shown) + 1.6
            if x + width > 100:
                x, y = 0.0, y - 1.0
            panel.add_patch(
                FancyBboxPatch(
                    (x + 0.2, y - 0.34),
                    width - 0.4,
                    0.68,
                    boxstyle="round,pad=0.0,rounding_size=0.3",
                    facecolor=_GREEN if is_green else _RED,
                    edgecolor=PALETTE[3] if is_green else PALETTE[1],
                    ls="-" if is_green else (0, (2, 1.5)),
                    lw=1.0,
                )
            )
            panel.text(
                x + width / 2, y - 0.03, shown, fontsize=9, ha="center", va="center", family="monospace"
            )
            x += width
        panel.set_ylim(y - 0.7, 1.4)


def null_scores(panels: Sequence[Axes], scores: Mapping[str, Mapping[str, Floats]], threshold: float) -> None:
    """Draw histograms of z over many keys, one panel for each way of counting, with the normal density."""
    edges = np.arange(-14.25, 14.5, 0.5)
    grid = np.linspace(-5, 5, 201)
    for panel, (name, kinds) in zip(panels, scores.items(), strict=True):
        panel.plot(
            grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color="grey", lw=1.2, ls="-", label="N(0, 1)"
        )
        for i, (kind, z) in enumerate(kinds.items()):
            heights = np.histogram(np.clip(z, -14, 14), edges)[0] / z.size / 0.5
            panel.stairs(heights, edges, color=PALETTE[i], ls=DASHES[i], lw=1.6, label=kind)
        panel.axvline(threshold, color="black", lw=0.8, ls=":")
        panel.set(xlabel=f"z, {name}", ylabel="density")
    panels[0].legend(loc="upper left", fontsize=9)


def _means(ax: Axes, x: ArrayLike, values: Floats, **style: Any) -> None:
    """Draw the mean of each row of values, with its 95% interval."""
    middle = values.mean(axis=1)
    ends = np.array([mean_interval(row) for row in values])
    ax.errorbar(x, middle, [middle - ends[:, 0], ends[:, 1] - middle], capsize=2, **style)


def lengths(ax: Axes, counted: Sequence[int], curves: Mapping[str, Floats], threshold: float) -> None:
    """Draw mean z against the length of the text, with 95% intervals; arrays of shape (texts, lengths)."""
    for i, (name, z) in enumerate(curves.items()):
        x = np.array(counted) * (1 + 0.012 * (i - 2))
        _means(ax, x, z.T, color=PALETTE[i], marker=MARKERS[i], ls=DASHES[i], lw=1.4, label=name)
    ax.axhline(threshold, color="grey", lw=1, ls=":")
    ax.set(xlabel="tokens of the text", ylabel="z, every pair counted once", xscale="log")
    ax.set_xticks(counted, [str(n) for n in counted])
    ax.minorticks_off()
    ax.legend(loc="upper left", fontsize=9, ncols=2)


def shares(
    panels: Sequence[Axes],
    fractions: ArrayLike,
    z: Floats,
    unmarked: Floats,
    promised: Floats,
    price: Floats,
    most: tuple[Floats, Floats],
) -> None:
    """Draw z and the price against γ with 95% intervals; arrays of shape (fractions, texts), ``most`` is a curve."""
    x = np.asarray(fractions)
    panels[0].plot(*most, color="grey", lw=1.2, ls="--", label="expected at most")
    panels[0].plot(
        x,
        promised.mean(axis=1),
        color=PALETTE[1],
        marker=MARKERS[1],
        ls="",
        label="theorem: expected at least",
    )
    for panel, values, i, name in (
        (panels[0], z, 0, "marked stories"),
        (panels[0], unmarked, 2, "unmarked stories"),
        (panels[1], price, 0, "marked stories"),
    ):
        _means(panel, x, values, color=PALETTE[i], marker=MARKERS[i], ls="", label=name)
        panel.set(xlabel="share of green tokens γ", xlim=(0, 1))
    panels[0].axhline(4, color="grey", lw=1, ls=":")
    panels[0].set_ylabel("z, with repeats")
    panels[0].set_ylim(top=1.55 * most[1].max())  # room for the legend
    panels[0].legend(loc="upper right", fontsize=9)
    panels[1].axhline(0, color="grey", lw=1, ls=":")
    panels[1].set_ylabel("surprise beyond expectation (nats)")


def bound(panels: Sequence[Axes], kinds: Mapping[str, tuple[Floats, Floats, Floats]]) -> None:
    """Draw green tokens against the theorem's bound, and z against entropy; (bound, found), (entropy, z)."""
    most = 0.0
    for i, (kind, (promised, found, entropy_z)) in enumerate(kinds.items()):
        style: dict[str, Any] = {
            "color": PALETTE[i],
            "marker": MARKERS[i],
            "ls": "",
            "label": kind,
            "mfc": "none",
        }
        panels[0].plot(promised, found, **style)
        panels[1].plot(*entropy_z, **style)
        most = max(most, float(found.max()))
    panels[0].plot([0, most], [0, most], color="grey", lw=1, ls="-")
    panels[0].set(xlabel="theorem: expected at least", ylabel="green tokens found (with repeats)")
    panels[1].axhline(4, color="grey", lw=1, ls=":")
    panels[1].set(xlabel="mean entropy of a token (nats)", ylabel="z, every pair counted once")
    panels[1].legend(loc="lower right", fontsize=9)


def edits(
    panels: Sequence[Axes],
    shares: ArrayLike,
    found: Mapping[str, tuple[Floats, Floats]],
    kept: ArrayLike,
    pasted: tuple[Floats, Floats],
    threshold: float,
) -> None:
    """Draw z after edits beside what counting predicts (lines), and after copying into other text."""
    for i, (name, (z, predicted)) in enumerate(found.items()):
        panels[0].plot(shares, predicted, color=PALETTE[i], ls=DASHES[i], lw=1.2)
        panels[0].plot(shares, z, color=PALETTE[i], marker=MARKERS[i], ls="", label=name)
    panels[1].plot(kept, pasted[1], color=PALETTE[0], ls="--", lw=1.2, label="in proportion")
    panels[1].plot(kept, pasted[0], color=PALETTE[0], marker="o", ls="", label="measured")
    for panel in panels:
        panel.axhline(threshold, color="grey", lw=1, ls=":")
        panel.legend(loc="upper right" if panel is panels[0] else "upper left", fontsize=9)
        panel.set_ylim(bottom=min(-0.5, panel.get_ylim()[0]))
    panels[0].set(xlabel="share of tokens edited", ylabel="mean z of eight stories")
    panels[1].set(xlabel="share of the text that is marked", ylabel="mean z of eight stories")


def overlap(ax: Axes, groups: Mapping[str, tuple[Floats, Floats]], threshold: float) -> None:
    """Draw z of rewritten texts against the share of neighbouring pairs that were kept."""
    for i, (name, (kept, z)) in enumerate(groups.items()):
        ax.plot(kept, z, color=PALETTE[i], marker=MARKERS[i], ls="", label=name, ms=6)
    ax.axhline(threshold, color="grey", lw=1, ls=":")
    ax.set(xlabel="share of neighbouring pairs taken over from the marked text", ylabel="z")
    ax.legend(loc="upper left", fontsize=9)


def surviving(
    ax: Axes,
    counted: Sequence[int],
    published: Mapping[str, Sequence[float]],
    ours: tuple[Sequence[int], Floats],
    threshold: float,
) -> None:
    """Draw what is left of z against the length: published means, and ours with 95% intervals (texts, lengths)."""
    for i, (name, z) in enumerate(published.items()):
        ax.plot(counted, z, color=PALETTE[i], marker=MARKERS[i], ls=DASHES[i], lw=1.3, label=name, mfc="none")
    of_ours, scores = ours
    _means(ax, of_ours, scores.T, color="black", marker="*", ms=9, ls="", label="ours, small model")
    ax.axhline(threshold, color="grey", lw=1, ls=":")
    ax.set(xlabel="tokens of the text", ylabel="mean z", xscale="log")
    ticks = [25, 50, 100, 200, 400, 1000]
    ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
    ax.minorticks_off()
    ax.legend(loc="upper left", fontsize=9)


def walks(
    panels: Sequence[Axes],
    rounds: ArrayLike,
    z: Mapping[str, Floats],
    quality: Mapping[str, Floats],
    threshold: float,
) -> None:
    """Draw, round by round, each text's score (thin) and their mean, and the attacker's view of the quality."""
    for panel, series in zip(panels, (z, quality), strict=True):
        for i, (name, values) in enumerate(series.items()):
            panel.plot(rounds, values, color=PALETTE[i], ls=DASHES[i], lw=0.7, alpha=0.7)
            panel.plot(
                rounds,
                values.mean(axis=1),
                color=PALETTE[i],
                ls=DASHES[i],
                marker=MARKERS[i],
                markevery=3,
                label=name,
            )
        panel.set_xlabel("rounds (two forward passes each)")
    panels[0].axhline(threshold, color="grey", lw=1, ls=":")
    panels[0].set_ylabel("z")
    panels[1].set_ylabel("perplexity under the attacker's model")
    panels[0].legend(loc="upper right", fontsize=9)
