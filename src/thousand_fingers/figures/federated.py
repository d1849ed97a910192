"""The drawings of chapter 6, Federated learning (its secure sums are drawn next door).

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from thousand_fingers.intervals import clopper_pearson
from thousand_fingers.plotting import DASHES, MARKERS, PALETTE, range_bars

Floats = NDArray[np.float64]


def holdings(panels: Sequence[Axes], tables: Mapping[str, NDArray[np.int64]]) -> None:
    """Draw how many images of each digit each client holds: one panel per way of dealing."""
    most = max(table.max() for table in tables.values())
    for panel, (name, table) in zip(panels, tables.items(), strict=True):
        panel.imshow(table, cmap="Greys", vmin=0, vmax=most, aspect="auto")
        panel.grid(False)
        panel.set_xticks(range(table.shape[1]))
        panel.set(xlabel=f"digit ({name})", ylabel="client")


def rounds(panels: Sequence[Axes], ways: Sequence[str], series: Mapping[str, Floats]) -> None:
    """Draw accuracy against rounds, the mean of the seeds and their range.

    Each array has shape (ways, seeds, rounds).
    """
    for panel, (name, curves) in zip(panels, series.items(), strict=True):
        number = np.arange(1, curves.shape[2] + 1)
        for i, (way, seeds) in enumerate(zip(ways, curves, strict=True)):
            panel.fill_between(
                number, seeds.min(axis=0), seeds.max(axis=0), color=PALETTE[i], alpha=0.15, lw=0
            )
            panel.plot(number, seeds.mean(axis=0), color=PALETTE[i], ls=DASHES[i], lw=1.4, label=way)
        for target in (0.85, 0.9, 0.93):
            panel.axhline(target, color="grey", lw=0.6, ls=":")
        panel.set(xlabel=f"round ({name})", ylim=(0.4, 1.0))
    panels[0].set_ylabel("accuracy of the global model")
    panels[1].legend(loc="lower right")


def pictures(panels: NDArray[np.object_], rows: Sequence[Floats], names: Sequence[str]) -> None:
    """Draw rows of images, white on black as the data are; the first of each row is named."""
    for line, images, name in zip(panels, rows, names, strict=True):
        for panel, image in zip(line, images, strict=True):
            panel.imshow(image, cmap="gray", vmin=0, vmax=1)
        line[0].text(-0.15, 0.5, name, transform=line[0].transAxes, ha="right", va="center", fontsize=9)


def batches(
    ax: Axes, sizes: Sequence[int], widths: Sequence[int], found: NDArray[np.int64], *, trials: int
) -> None:
    """Draw the share of images recovered exactly against the size of the batch, with 95% intervals."""
    for i, (width, counts) in enumerate(zip(widths, found, strict=True)):
        share = counts / (trials * np.array(sizes))
        ends = [clopper_pearson(int(c), trials * b) for c, b in zip(counts, sizes, strict=True)]
        below = [s - e.low for s, e in zip(share, ends, strict=True)]
        above = [e.high - s for s, e in zip(share, ends, strict=True)]
        ax.errorbar(
            sizes,
            share,
            [below, above],
            color=PALETTE[i],
            marker=MARKERS[i],
            linestyle=DASHES[i],
            capsize=3,
            label=f"{width} units",
        )
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set(xlabel="images in the batch", ylabel="share recovered exactly", ylim=(-0.03, 1.06))
    ax.legend(loc="lower left")


def clipping(ax: Axes, norms: Floats, series: Mapping[str, Floats]) -> None:
    """Draw the clipping norm round after round, over the range of the clients' norms."""
    ax.axhspan(norms.min(), norms.max(), color="grey", alpha=0.15, lw=0)
    ax.axhline(float(np.median(norms)), color="grey", lw=0.8, ls=":")
    ax.text(0.5, float(norms.max()) * 1.08, "norms of the clients' updates", fontsize=9, color="0.3")
    for i, (name, values) in enumerate(series.items()):
        ax.plot(range(len(values)), values, color=PALETTE[i], ls=DASHES[i], label=name)
    ax.set_yscale("log")
    ax.set(xlabel="round", ylabel="clipping norm $C$", ylim=(None, 2.5 * float(norms.max())))
    ax.legend(loc="lower left")


def adapted(ax: Axes, series: Mapping[str, Floats]) -> None:
    """Draw clipping norms that follow the clients, one line for each seed; arrays have shape (seeds, rounds)."""
    for i, (name, paths) in enumerate(series.items()):
        number = np.arange(1, paths.shape[1] + 1)
        for seed, path in enumerate(paths):
            ax.plot(number, path, color=PALETTE[i], ls=DASHES[i], lw=1.2, label=None if seed else name)
    ax.set_yscale("log")
    ax.set(xlabel="round", ylabel="clipping norm $C$ of the round")
    ax.legend(loc="upper right")


def crowds(ax: Axes, clients: Sequence[int], series: Mapping[str, Floats]) -> None:
    """Draw accuracy against the number of clients; each array has shape (numbers of clients, seeds)."""
    for i, (name, rates) in enumerate(series.items()):
        range_bars(ax, clients, rates, middle=rates.mean(axis=1), place=i, label=name)
    ax.set_xscale("log")
    ax.set_xticks(clients, [f"{count:,}" for count in clients])
    ax.minorticks_off()
    ax.set(xlabel="clients among whom the images are shared out", ylabel="accuracy", ylim=(0, 1))
    ax.legend(loc="lower right")
