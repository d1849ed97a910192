"""The drawings of chapter 2, Membership inference.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.plotting import DASHES, MARKERS, PALETTE
from thousand_fingers.roc import Roc

Floats = NDArray[np.float64]


def worlds(panels: Sequence[Axes], examples: Mapping[str, tuple[Floats, Floats]]) -> None:
    """Draw what models say of one example: those that saw it, and those that did not.

    ``examples`` maps a title to the confidences of the two groups.
    """
    for panel, (title, groups) in zip(panels, examples.items(), strict=True):
        edges = np.linspace(min(map(np.min, groups)), max(map(np.max, groups)), 16).tolist()
        for i, (values, name) in enumerate(zip(groups, ("saw it", "did not"), strict=True)):
            panel.hist(
                values,
                edges,
                color=PALETTE[i],
                alpha=0.6,
                hatch=("", "//")[i],
                edgecolor="white",
                label=f"{len(values)} models that {name}",
            )
        panel.set_title(title, fontsize=10)
        panel.set(xlabel="confidence φ in the true digit", ylabel="models")
    panels[0].set_ylim(0, 1.45 * panels[0].get_ylim()[1])
    panels[0].legend(loc="upper left")


def curves(ax: Axes, attacks: Mapping[str, Roc], lowest: float = 1e-4) -> None:
    """Draw receiver operating characteristics on logarithmic axes."""
    for i, (name, roc) in enumerate(attacks.items()):
        found = roc.fpr > 0
        ax.step(
            np.maximum(roc.fpr[found], lowest),
            roc.tpr[found],
            where="post",
            color=PALETTE[i],
            ls=DASHES[i],
            label=name,
        )
    ax.plot([lowest, 1], [lowest, 1], color="grey", lw=0.8, ls=":", label="guessing")
    ax.set(xscale="log", yscale="log", xlim=(lowest, 1), ylim=(lowest, 1.05))
    ax.set(xlabel="false-positive rate", ylabel="true-positive rate")
    ax.legend(loc="lower right")


def vulnerability(ax: Axes, groups: Mapping[str, Floats]) -> None:
    """Draw histograms of t, one step line for each way of training."""
    edges = np.linspace(min(map(np.min, groups.values())), max(map(np.max, groups.values())), 40).tolist()
    for i, (name, t) in enumerate(groups.items()):
        ax.hist(t, edges, histtype="step", lw=1.8, color=PALETTE[i], ls=DASHES[i], label=name)
    ax.set(xlabel="vulnerability t", ylabel="examples", yscale="log")
    ax.legend(loc="upper right")


def budgets(panels: Sequence[Axes], models: Sequence[int], series: Mapping[str, Floats]) -> None:
    """Draw area and true-positive rate against the number of shadow models.

    ``series`` maps a kind of variance to an array of shape (numbers, 2).
    """
    for i, (name, figures) in enumerate(series.items()):
        for column, panel in enumerate(panels):
            panel.plot(
                models, figures[:, column], color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name
            )
    for panel, label in zip(panels, ("area under the curve", "members found at 0.1% FPR"), strict=True):
        panel.set(xlabel="shadow models", ylabel=label, xscale="log")
        panel.set_xticks(models, list(map(str, models)))
        panel.minorticks_off()
    panels[1].legend(loc="lower right")


def trade(panels: Sequence[Axes], arms: Mapping[str, Floats]) -> None:
    """Draw leak against accuracy on validation images, one line or point for each kind of defence.

    ``arms`` maps a name to rows of (accuracy, area, true-positive rate at 0.1%).
    """
    for i, (name, rows) in enumerate(arms.items()):
        for panel, leak in zip(panels, (rows[:, 1], np.log(rows[:, 2] / 0.001)), strict=True):
            panel.plot(rows[:, 0], leak, color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name)
    for panel, label in zip(
        panels, ("area under the curve", "τ at a false-positive rate of 0.1%"), strict=True
    ):
        panel.set(xlabel="right on validation images", ylabel=label)
    panels[0].legend(loc="upper left", fontsize=8)


def grid(panels: Sequence[Axes], slopes: Sequence[float], offsets: Sequence[float], values: Floats) -> None:
    """Draw accuracy and leak for each slope (row) and offset (column); ``values`` has shape (2, rows, columns)."""
    for panel, table, title, form in zip(
        panels,
        values,
        ("right on validation images", "members found at 0.1% FPR"),
        ("{:.1%}", "{:.1%}"),
        strict=True,
    ):
        panel.imshow(table, cmap="cividis", aspect="auto")
        middle = (table.min() + table.max()) / 2
        for row, column in np.ndindex(table.shape):
            color = "black" if table[row, column] > middle else "white"
            panel.text(column, row, form.format(table[row, column]), ha="center", va="center", color=color)
        panel.set_title(title, fontsize=10)
        panel.set_xticks(range(len(offsets)), [f"{o:g}" for o in offsets])
        panel.set_yticks(range(len(slopes)), [f"{s:g}" for s in slopes])
        panel.set(xlabel="offset β", ylabel="slope α")
        panel.grid(visible=False)


def gaps(ax: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Draw the area of LiRA against the gap between accuracy on members and on others, one point each."""
    for i, (name, (gap, area)) in enumerate(points.items()):
        ax.plot(gap, area, ls="", color=PALETTE[i % 7], marker=MARKERS[i // 2 % 7], ms=7, label=name)
    ax.axhline(0.5, color="grey", lw=0.8, ls=":")
    ax.set(xlabel="right on members minus right on validation images", ylabel="area under LiRA's curve")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def digits(panels: Sequence[Axes], images: ArrayLike, captions: Sequence[str]) -> None:
    """Draw images in a row, white on black as the data are, each with a line of text."""
    for panel, image, caption in zip(panels, np.asarray(images), captions, strict=True):
        panel.imshow(image, cmap="gray", vmin=0, vmax=1)
        panel.set_title(caption, fontsize=9)
