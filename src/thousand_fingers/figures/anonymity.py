"""The drawings of chapter 3 about tables and their classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

Ints = NDArray[np.int64]
_TINTS = ("#cfe3f2", "#fbdcc8", "#cdebe1", "#f3dbe8", "#fbeecb", "#dceffb", "#e6e6e6", "#f6f0c4")


def zoom_levels(panels: Sequence[Axes], tables: Mapping[str, tuple[pd.DataFrame, Ints]]) -> None:
    """Draw one table per panel, coarser from left to right; rows of one class share a tint and a bracket."""
    for panel, (title, (table, labels)) in zip(panels, tables.items(), strict=True):
        n_rows, columns = len(table), [str(name) for name in table]
        lengths = [_points([name], bold=True) + 8 for name in columns]
        lengths = [max(head, _points(table[name]) + 8) for head, name in zip(lengths, columns, strict=True)]
        edges = np.append(0, np.cumsum(lengths) / sum(lengths))
        panel.set(xlim=(-0.09, 1.0), ylim=(n_rows + 0.1, -1.9))
        panel.text(0.5, -1.5, title, ha="center", va="center", fontsize=9.5)
        for name, left in zip(columns, edges.tolist(), strict=False):
            panel.text(left + 0.02, -0.55, name, ha="left", va="center", fontsize=9, fontweight="bold")
        panel.plot([0, 1], [-0.1, -0.1], color="black", lw=0.8, ls="-")
        order = list(dict.fromkeys(labels.tolist()))
        for row in range(n_rows):
            tint = _TINTS[order.index(labels[row]) % len(_TINTS)]
            panel.add_patch(Rectangle((0, row), 1, 1, facecolor=tint, edgecolor="white", lw=0.8))
            for name, left in zip(columns, edges.tolist(), strict=False):
                text = str(table[name].iloc[row])
                panel.text(left + 0.02, row + 0.5, text, ha="left", va="center", fontsize=9)
        for label in order:
            rows = np.flatnonzero(labels == label)
            if rows.size > 1:
                panel.plot([-0.03] * 2, [rows[0] + 0.15, rows[-1] + 0.85], color="black", lw=2, ls="-")


def curves(ax: Axes, x: Sequence[int], lines: Mapping[str, ArrayLike], ylabel: str) -> None:
    """Draw one line per name against k, on a logarithmic axis of k."""
    for i, (name, y) in enumerate(lines.items()):
        ax.plot(x, np.asarray(y), color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name)
    ax.set_xscale("log")
    ax.set_xticks(x, [str(k) for k in x])
    ax.minorticks_off()
    ax.set(xlabel="promised k", ylabel=ylabel, ylim=(0, None))
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def promises(panels: Sequence[Axes], rows: pd.DataFrame) -> None:
    """Draw price, closeness and the surest guess of each promise, one panel per column, the same rows."""
    places = -np.arange(len(rows))
    for i, (panel, name) in enumerate(zip(panels, rows, strict=True)):
        panel.barh(
            places, rows[name], color=PALETTE[i], hatch=("", "//", "..")[i], edgecolor="white", height=0.6
        )
        for place, value in zip(places.tolist(), rows[name], strict=True):
            panel.text(value + 0.02, place, f"{value:.2f}", va="center", fontsize=9)
        panel.set(xlabel=name, ylabel="promise" if i == 0 else "", xlim=(0, 1.22))
        panel.set_yticks(places, list(rows.index))
        panel.grid(axis="y", visible=False)


def _points(texts: Iterable[object], *, bold: bool = False) -> float:
    """Return the width of the longest text in points, at the size in which tables are written."""
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=9)
    return max(float(TextPath((0, 0), str(text), prop=font, size=9).get_extents().width) for text in texts)
