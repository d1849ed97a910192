"""The drawings of chapter 1, Memorization.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.intervals import mean_interval
from thousand_fingers.memorization import Trace
from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

Floats = NDArray[np.float64]

#: Where a personal datum passes: name of the station, what happens, what the law asks.
STATIONS = (
    ("Collection", "you give a datum,\nor it is taken", "a basis: consent, contract,\nlegitimate interest"),
    ("Training", "data become\nweights", "a basis of its own,\nfor this purpose"),
    ("Answering", "the trained model\nanswers", "again a basis\nof its own"),
    ("Keeping", "archives, history\nof conversations", "a purpose,\nand an end"),
)
RIGHTS = ("access (art. 15)", "rectification (16)", "erasure (17)", "objection (21)")


def stations(ax: Axes) -> None:
    """Draw the stations of a datum as boxes, with what happens and what the law asks, and the rights below."""
    step, width = 1.0, 0.86
    for i, (name, happens, asks) in enumerate(STATIONS):
        left = i * step
        ax.add_patch(
            FancyBboxPatch(
                (left, 1.5),
                width,
                1.0,
                boxstyle="round,pad=0.02,rounding_size=0.06",
                facecolor="#eaf2f8",
                edgecolor=PALETTE[0],
                lw=1.4,
            )
        )
        middle = left + width / 2
        ax.text(middle, 2.3, f"{i + 1}  {name}", ha="center", va="center", fontsize=10, weight="bold")
        ax.text(middle, 1.85, happens, ha="center", va="center", fontsize=9)
        ax.text(middle, 1.3, asks, ha="center", va="top", fontsize=9, color="#333333")
        if i + 1 < len(STATIONS):
            ax.annotate(
                "",
                (left + step - 0.02, 2.0),
                (left + width + 0.02, 2.0),
                arrowprops={"arrowstyle": "->", "lw": 1.5},
            )
    end = (len(STATIONS) - 1) * step + width
    for i, right in enumerate(RIGHTS):
        height = 0.42 - 0.2 * i
        ax.annotate(
            "",
            (end, height),
            (0.62, height),
            arrowprops={"arrowstyle": "->", "color": PALETTE[i], "ls": DASHES[i]},
        )
        ax.text(0.6, height, right, ha="right", va="center", fontsize=9)
    ax.set(xlim=(-0.08, end + 0.06), ylim=(-0.3, 2.65))


def _with_seeds(
    ax: Axes, x: ArrayLike, values: Floats, name: str, i: int, limits: tuple[float, float] = (0.0, np.inf)
) -> None:
    """Draw the mean over seeds, the last axis, with its 95% interval."""
    middle = values.mean(axis=1)
    ends = np.clip([mean_interval(row) for row in values], *limits)
    ax.errorbar(
        x,
        middle,
        [middle - ends[:, 0], ends[:, 1] - middle],
        color=PALETTE[i],
        marker=MARKERS[i],
        linestyle=DASHES[i],
        capsize=3,
        label=name,
    )


def _chance_line(ax: Axes, mean: float, highest: float, side: str = "right") -> None:
    ax.axhline(mean, color="grey", ls=":", lw=1.2)
    x = {"left": 0.02, "right": 0.98}[side]
    ax.text(x, mean - 0.15, "chance", fontsize=9, ha=side, va="top", transform=ax.get_yaxis_transform())
    ax.axhline(highest, color="grey", ls="-", lw=0.8)
    ax.text(0.02, highest + 0.12, "first of all", fontsize=9, transform=ax.get_yaxis_transform())
    ax.set_ylim(0, highest + 1)


def repetitions(
    panels: Sequence[Axes],
    levels: Sequence[int],
    recited: Floats,
    bits: Floats,
    chance: float,
    highest: float,
) -> None:
    """Draw recitation and exposure against repetitions; arrays of shape (levels, seeds)."""
    for panel, values, limits in zip(panels, (recited, bits), ((0.0, 1.0), (0.0, highest)), strict=True):
        _with_seeds(panel, levels, values, "mean over seeds", 0, limits)
        panel.set_xscale("symlog", base=2, linthresh=1)
        panel.set_xticks(levels, [str(level) for level in levels])
        panel.set_xlabel("times in the corpus")
    panels[0].set(ylabel="records recited word for word", ylim=(-0.04, 1.06))
    panels[1].set_ylabel("mean exposure (bits)")
    _chance_line(panels[1], chance, highest)


def sizes(
    panels: Sequence[Axes],
    parameters: Sequence[int],
    recited: Mapping[str, Floats],
    bits: Mapping[str, Floats],
    chance: float,
    highest: float,
) -> None:
    """Draw recitation and exposure against model size, one curve per level; arrays of shape (sizes, seeds)."""
    for panel, series, limits in zip(panels, (recited, bits), ((0.0, 1.0), (0.0, highest)), strict=True):
        for i, (name, values) in enumerate(series.items()):
            _with_seeds(panel, parameters, values, name, i, limits)
        panel.set(xscale="log", xlabel="weights of the model")
    panels[0].set(ylabel="records recited word for word", ylim=(-0.04, 1.06))
    panels[0].legend(loc="upper left")
    panels[1].set_ylabel("mean exposure (bits)")
    _chance_line(panels[1], chance, highest, side="left")


def contexts(
    panels: Sequence[Axes],
    shown: Sequence[int],
    recited: Mapping[str, Floats],
    bits: Mapping[str, Floats],
    real_shown: Sequence[int],
    right: Mapping[str, Floats],
) -> None:
    """Draw, against the tokens of the prompt, recitation and exposure in tiny models, and the real one's guesses."""
    places = shown, shown, real_shown
    for panel, x, series, highest in zip(
        panels, places, (recited, bits, right), (1.0, np.inf, 1.0), strict=True
    ):
        for i, (name, values) in enumerate(series.items()):
            _with_seeds(panel, x, values, name, i, (0.0, highest))
        panel.set(xlabel="tokens that are shown", xticks=x)
    panels[0].set(ylabel="records recited", ylim=(-0.04, 1.3), yticks=np.arange(0, 1.1, 0.2))
    panels[1].set(ylabel="mean exposure (bits)", ylim=(0, 13))
    panels[2].set(ylabel="of ten tokens, guessed right", ylim=(0, 1.0))
    for panel in panels:
        panel.legend(loc="upper left", fontsize=8)


def erasure(panels: Sequence[Axes], traces: Mapping[str, Trace]) -> None:
    """Draw exposure and the membership attack's AUC in each state of the model, with the bands of chance."""
    found = list(traces.values())
    rows = -np.arange(len(found))
    series = (
        ([t.exposure for t in found], found[0].exposure_chance),
        ([t.auc for t in found], found[0].auc_chance),
    )
    for panel, (values, band) in zip(panels, series, strict=True):
        panel.axvspan(*band, color="#d9d9d9", lw=0, label="chance, 95%")
        for row, value in zip(rows, values, strict=True):
            seen = int(value > band.high)
            panel.plot(value, row, color=PALETTE[seen], marker=MARKERS[seen], ls="", ms=7)
        panel.set_yticks(rows, list(traces) if panel is panels[0] else [""] * len(found))
        panel.set_ylim(rows[-1] - 0.6, 0.6)
    panels[0].set(xlabel="mean exposure (bits)", ylabel="state of the model", xlim=(0, 10.3))
    panels[1].set(xlabel="AUC of the membership attack", ylabel=" ", xlim=(0.2, 1.04))
    panels[1].legend(loc="lower right")
