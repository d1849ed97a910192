"""The drawings of chapter 2, Membership inference.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator, PercentFormatter
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
    _logarithmic(ax, lowest)


def arms(ax: Axes, fpr: Sequence[float], ways: Mapping[str, Floats], lowest: float = 1e-4) -> None:
    """Draw the curve of the attack on each way of training, from true-positive rates at some false-positive ones."""
    for i, (name, tpr) in enumerate(ways.items()):
        found = tpr > 0
        places = np.asarray(fpr)[found]
        ax.step(places, tpr[found], where="post", color=PALETTE[i], ls=DASHES[i], label=name)
    _logarithmic(ax, lowest)


def _logarithmic(ax: Axes, lowest: float) -> None:
    """Give a panel of curves its axes, the line of guessing and the legend."""
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
    """Draw area and true-positive rate against the number of shadow models, with their intervals.

    ``series`` maps a kind of variance to an array of shape (numbers, 2, 3): a value and the ends of its interval.
    """
    for i, (name, figures) in enumerate(series.items()):
        places = np.asarray(models) * 1.04 ** (i - 1)  # beside each other, so that no bar hides another
        for column, panel in enumerate(panels):
            panel.errorbar(places, *_with_bars(figures[:, column]), **_style(i), label=name)
    for panel, label in zip(panels, ("area under the curve", "members found at 0.1% FPR"), strict=True):
        panel.set(xlabel="shadow models", ylabel=label, xscale="log")
        panel.set_xticks(models, list(map(str, models)))
        panel.minorticks_off()
    panels[1].legend(loc="lower right")


def trade(panels: Sequence[Axes], arms: Mapping[str, Floats]) -> None:
    """Draw leak against accuracy on validation images, one line or point for each kind of defence.

    ``arms`` maps a name to an array of shape (ways, 3, 3): accuracy, area and true-positive rate at 0.1%, each
    with the ends of its interval. Bars are those of the leak; accuracies are of the same images for all.
    """
    for i, (name, rows) in enumerate(arms.items()):
        found = np.log(np.maximum(rows[:, 2], 1e-4) / 0.001)
        for panel, leak in zip(panels, (rows[:, 1], found), strict=True):
            panel.errorbar(rows[:, 0, 0], *_with_bars(leak), **_style(i), label=name)
    for panel, label in zip(
        panels, ("area under the curve", "τ at a false-positive rate of 0.1%"), strict=True
    ):
        panel.set(xlabel="right on validation images", ylabel=label)
    panels[0].legend(loc="upper left", fontsize=8)


def front(ax: Axes, kinds: Mapping[str, Floats], best: Floats) -> None:
    """Draw every way of training by accuracy and leak, and the front that none of them passes.

    ``kinds`` maps a kind to an array of shape (ways, 2, 3): accuracy on validation images and true-positive
    rate at 0.1%, each with the ends of its interval; ``best``, shape (ways, 2), holds those on the front.
    """
    ax.step(best[:, 0], best[:, 1], where="pre", color="grey", lw=1.2, label="front")
    for i, (name, rows) in enumerate(kinds.items()):
        style = _style(i) | {"linestyle": ""}
        ax.errorbar(rows[:, 0, 0], *_with_bars(rows[:, 1]), **style, label=name)
    ax.set_yscale("symlog", linthresh=0.01)
    ax.set_yticks([0, 0.005, 0.01, 0.03, 0.1], ["0", "0.5%", "1%", "3%", "10%"])
    ax.minorticks_off()
    ax.set_ylim(0, 0.16)
    ax.xaxis.set_major_locator(MultipleLocator(0.05))
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set(xlabel="right on validation images", ylabel="members found at 0.1% FPR")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def grid(panels: Sequence[Axes], slopes: Sequence[float], offsets: Sequence[float], values: Floats) -> None:
    """Draw accuracy and leak for each slope (row) and offset (column).

    ``values`` has shape (2, rows, columns, 3): a value and the ends of its interval.
    """
    titles = "right on validation images", "members found at 0.1% FPR"
    for panel, table, title in zip(panels, values, titles, strict=True):
        middles = table[..., 0]
        panel.imshow(middles, cmap="cividis", aspect="auto")
        middle = (middles.min() + middles.max()) / 2
        for row, column in np.ndindex(middles.shape):
            value, low, high = 100 * table[row, column]
            text = f"{value:.1f}%\n[{low:.1f}, {high:.1f}]"
            color = "black" if middles[row, column] > middle else "white"
            panel.text(column, row, text, ha="center", va="center", color=color, fontsize=9)
        panel.set_title(title, fontsize=10)
        panel.set_xticks(range(len(offsets)), [f"{o:g}" for o in offsets])
        panel.set_yticks(range(len(slopes)), [f"{s:g}" for s in slopes])
        panel.set(xlabel="offset β", ylabel="slope α")
        panel.grid(visible=False)


def gaps(ax: Axes, points: Mapping[str, Floats]) -> None:
    """Draw the area of LiRA against the gap between accuracy on members and on others, one point each.

    ``points`` maps a way of training to its gap, its area, and the ends of the interval of the area.
    """
    for i, (name, (gap, *area)) in enumerate(points.items()):
        style = _style(i) | {"linestyle": ""}
        ax.errorbar([gap], *_with_bars(np.array([area])), **style, label=name)
    ax.axhline(0.5, color="grey", lw=0.8, ls=":")
    ax.set(xlabel="right on members minus right on validation images", ylabel="area under LiRA's curve")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def digits(panels: Sequence[Axes], images: ArrayLike, captions: Sequence[str]) -> None:
    """Draw images in a row, white on black as the data are, each with a line of text."""
    for panel, image, caption in zip(panels, np.asarray(images), captions, strict=True):
        panel.imshow(image, cmap="gray", vmin=0, vmax=1)
        panel.set_title(caption, fontsize=9)


def _with_bars(rows: Floats) -> tuple[Floats, Floats]:
    """Return values and the lengths of their error bars, from rows of a value and the ends of its interval."""
    values, low, high = rows.T
    return values, np.stack([values - low, high - values]).clip(min=0)


def _style(i: int) -> dict[str, Any]:
    """Return the look of series i: colour, dash and mark, which is hollow once the colours are used up."""
    turn, place = divmod(i, len(PALETTE))
    return {
        "color": PALETTE[place],
        "linestyle": DASHES[place],
        "marker": MARKERS[place],
        "fillstyle": "none" if turn else "full",
        "ms": 6,
        "capsize": 2,
        "lw": 1.4,
    }
