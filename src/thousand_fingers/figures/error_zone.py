"""The drawings of chapter 11, Error-zone membership inference.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.figures.membership import curves as curves  # the same picture as in chapter 2
from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
#: An estimate and the ends of its interval.
Estimate = tuple[float, float, float]


def tokens(panels: Sequence[Axes], examples: Mapping[str, tuple[Sequence[str], Floats, Bools]]) -> None:
    """Draw the difference of log-probabilities of each token of a text, the error zone marked.

    ``examples`` maps a title to the tokens, their differences, and whether the target's first choice is right.
    """
    for panel, (title, (words, d, correct)) in zip(panels, examples.items(), strict=True):
        for i, (word, value, right) in enumerate(zip(words, d, correct, strict=True)):
            panel.bar(
                i,
                value,
                color=PALETTE[0] if right else PALETTE[1],
                hatch="" if right else "//",
                edgecolor="white",
            )
            panel.text(
                i,
                max(value, 0) + 0.08,
                word.strip() or "␣",
                ha="center",
                va="bottom",
                fontsize=7,
                rotation=90,
            )
        panel.axhline(0, color="black", lw=0.8)
        panel.set_title(title, fontsize=9, loc="left")
        panel.set(xlabel="token", ylabel="difference $d_t$ (nats)")
        panel.margins(y=0.35)
        panel.grid(visible=False, axis="x")
    panels[0].legend(
        handles=[
            Patch(
                facecolor=PALETTE[1], hatch="//", edgecolor="white", label="target's first choice is wrong"
            ),
            Patch(facecolor=PALETTE[0], label="right"),
        ],
        loc="lower right",
        bbox_to_anchor=(1.0, 0.97),
        ncols=2,
    )


def estimates(panels: Sequence[Axes], rows: Mapping[str, Sequence[Estimate]], xlabels: Sequence[str]) -> None:
    """Draw one row of estimates with their intervals for each score, one panel for each figure of merit."""
    places = -np.arange(len(rows))
    for panel, columns, xlabel in zip(panels, zip(*rows.values(), strict=True), xlabels, strict=True):
        for i, (place, (middle, low, high)) in enumerate(zip(places, columns, strict=True)):
            panel.errorbar(
                middle,
                place,
                xerr=[[middle - low], [high - middle]],
                color=PALETTE[i % len(PALETTE)],
                marker=MARKERS[i % len(MARKERS)],
                capsize=3,
                ls="",
            )
        panel.set(xlabel=xlabel, ylim=(places[-1] - 0.6, 0.6))
        panel.grid(visible=False, axis="y")
    panels[0].set_yticks(places, list(rows))
    panels[0].set_ylabel("score")


def epochs(
    panels: Sequence[Axes],
    passed: Sequence[int],
    areas: Mapping[str, Sequence[float]],
    losses: Mapping[str, Sequence[float]],
) -> None:
    """Draw areas and losses against the number of epochs."""
    for panel, series in zip(panels, (areas, losses), strict=True):
        for i, (name, values) in enumerate(series.items()):
            panel.plot(passed, values, color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name)
        panel.set_xlabel("epochs of fine-tuning")
        panel.legend()
    panels[0].set_ylabel("area under the curve")
    panels[1].set_ylabel("mean loss (nats per token)")


def learned(
    panels: Sequence[Axes],
    beds: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]],
    again: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]],
) -> None:
    """Draw the area of an attack against how far the loss on the members has fallen.

    ``beds`` maps the title of a panel to ways of training, each with losses and areas after some epochs;
    ``again`` holds the same of a repetition, where there is one, which gets hollow markers.
    """
    for panel, (title, series) in zip(panels, beds.items(), strict=True):
        for i, (name, points) in enumerate(series.items()):
            style: dict[str, Any] = {"color": PALETTE[i], "ls": DASHES[i], "marker": MARKERS[i], "ms": 7}
            panel.plot(*points, **style, label=name)
            if title in again:
                panel.plot(*again[title][name], **style, mfc="none", lw=0.9)
        panel.invert_xaxis()
        panel.set_title(title, fontsize=10)
        panel.set(xlabel="mean loss on members (nats per token)", ylabel="area under the curve of EZ")
        panel.legend(loc="lower right", fontsize=8)


def references(
    panels: Sequence[Axes], rows: Mapping[str, Mapping[str, Sequence[Estimate]]], xlabels: Sequence[str]
) -> None:
    """Draw estimates with intervals under two references, one row for each score."""
    places = -np.arange(len(rows))
    for panel, column, xlabel in zip(panels, range(len(xlabels)), xlabels, strict=True):
        for i, name in enumerate(next(iter(rows.values()))):
            middle, low, high = np.array([row[name][column] for row in rows.values()]).T
            panel.errorbar(
                middle,
                places + 0.15 - 0.3 * i,
                xerr=[middle - low, high - middle],
                color=PALETTE[i],
                marker=MARKERS[i],
                capsize=3,
                ls="",
                label=name,
            )
        panel.set(xlabel=xlabel, ylim=(places[-1] - 0.6, 0.6))
        panel.grid(visible=False, axis="y")
    panels[0].set_yticks(places, list(rows))
    panels[0].set_ylabel("score")
    panels[-1].legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), fontsize=8)


def filters(ax: Axes, series: Mapping[str, tuple[Floats, Floats]], base: float) -> None:
    """Draw the precision of a filter against its recall, and the share of hits without one."""
    for i, (name, (recall, precision)) in enumerate(series.items()):
        ax.step(recall, precision, where="post", color=PALETTE[i], ls=DASHES[i], label=name)
    ax.axhline(base, color="grey", ls=":", lw=1.2, label="without a filter")
    ax.set(
        xlabel="share of the true candidates that is kept (recall)", ylabel="share that is true (precision)"
    )
    ax.set(xlim=(0, 1.02), ylim=(0, 1.05))
    ax.legend(loc="lower left")
