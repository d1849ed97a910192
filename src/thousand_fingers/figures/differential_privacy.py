"""The drawings of chapter 4, Differential privacy.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them: the cell on the page shows the
idea, this module the plumbing. Colours always come with a second channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

Floats = NDArray[np.float64]


def publishing_twice(ax: Axes, ada_left: Floats, nobody_left: Floats) -> None:
    """Draw the difference of two noisy counts in two worlds, and the two exact differences."""
    bins = np.arange(-15.25, 16, 0.5)
    for i, (values, story) in enumerate(
        [(ada_left, "Ada left (42, 41)"), (nobody_left, "nobody left (42, 42)")]
    ):
        heights = np.histogram(values, bins)[0] / values.size
        ax.stairs(heights, bins, color=PALETTE[i], ls=DASHES[i], lw=1.8, label=story)
        ax.plot(1 - i, 0.0805, color=PALETTE[i], marker=MARKERS[i], ms=8)
    ax.text(1.7, 0.0805, "exact counts: 1 or 0, no doubt", va="center")
    ax.text(4.6, 0.05, "noisy counts: this hill or that?")
    ax.set(
        xlabel="first count minus second count", ylabel=f"share of {ada_left.size:,} runs", ylim=(0, 0.086)
    )
    ax.legend(loc="upper left")


def one_answer(
    ax: Axes, belief: Floats, after_yes: Floats, after_no: Floats, survey: tuple[float, float, float]
) -> None:
    """Draw belief after one coin-tossed answer; ``survey`` is a belief before, after a no and after a yes."""
    ax.plot(belief, after_yes, color=PALETTE[0], ls=DASHES[0], label="after a yes")
    ax.plot(belief, after_no, color=PALETTE[1], ls=DASHES[1], label="after a no")
    ax.plot(belief, belief, color="grey", ls=":", label="no answer")
    ax.plot([survey[0]] * 2, survey[1:], color=PALETTE[2], marker=MARKERS[0], ls=":")
    ax.set(xlabel="belief before", ylabel="belief after")
    ax.legend()


def many_answers(
    ax: Axes, people: Sequence[int], shares: ArrayLike, half_widths: ArrayLike, truth: float
) -> None:
    """Draw the estimates of surveys of growing size with their 95% intervals."""
    ax.errorbar(people, shares, half_widths, fmt=MARKERS[1], color=PALETTE[0], capsize=3)
    ax.axhline(truth, color=PALETTE[2], ls=DASHES[1], lw=1)
    ax.set(xlabel="people asked", ylabel="estimated share of true yeses", xscale="log", ylim=(-0.2, 0.8))


def two_worlds(density: Axes, ratio: Axes, answer: Floats, in_table: Floats, not_in: Floats) -> None:
    """Draw the densities of a Laplace count of 412 and of 411, and the logarithm of their ratio."""
    density.plot(answer, in_table, color=PALETTE[0], ls=DASHES[0], label="with you (412)")
    density.plot(answer, not_in, color=PALETTE[1], ls=DASHES[1], label="without you (411)")
    density.set(ylabel="density of the answer", ylim=(0, 0.56))
    density.legend(loc="upper left")
    ratio.plot(answer, np.log(in_table / not_in), color=PALETTE[2], ls="-")
    ratio.axvspan(411, 412, color="#d9d9d9", lw=0)
    ratio.axhline(0, color="grey", lw=0.8, ls="-")
    ratio.set(xlabel="published answer, ε = 1", ylabel="log of the ratio")
    ratio.set_yticks([-1, 0, 1], ["−ε", "0", "+ε"])


def attacker(
    ax: Axes, epsilons: Floats, ceiling: ArrayLike, exact: ArrayLike, measured: Mapping[float, float]
) -> None:
    """Draw the share of right guesses against ε: measured, exact, and the ceiling of all mechanisms."""
    ax.plot(epsilons, ceiling, color=PALETTE[1], ls=DASHES[1], label="ceiling for any ε-private mechanism")
    ax.plot(
        epsilons, exact, color=PALETTE[0], ls=DASHES[0], label="best attacker of the Laplace count (exact)"
    )
    ax.plot(
        list(measured), list(measured.values()), color=PALETTE[2], marker=MARKERS[0], ls="", label="measured"
    )
    ax.axhline(0.5, color="grey", ls=":", lw=1, label="blind guess")
    ax.set(xscale="log", xlabel="ε", ylabel="share of right guesses")
    ax.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
    ax.legend(loc="upper left")


def composition(panels: Sequence[Axes], k: ArrayLike, curves: Mapping[float, Floats]) -> None:
    """Draw four bounds on the total ε of k answers, one panel for each ε of a single answer."""
    names = ("basic (the sum)", "advanced", "closed form", "exact optimum")
    for panel, (epsilon, bounds) in zip(panels, curves.items(), strict=True):
        for i, name in enumerate(names):
            panel.plot(k, bounds[:, i], color=PALETTE[i], ls=DASHES[i], label=name)
        panel.set(
            xlabel=f"answers k, each with ε = {epsilon:g}",
            ylabel="total ε",
            ylim=(0, 1.12 * bounds[:, :2].max()),
        )
    panels[0].legend(loc="upper left")


def education(
    ax: Axes, levels: Sequence[str], exact: Floats, released: Floats, spreads: Mapping[float, float]
) -> None:
    """Draw counts on a logarithmic axis with bands that hold 95% of the noise; ``spreads`` maps ε to half-width."""
    rows = np.arange(len(levels))
    for grey, (epsilon, spread) in zip(("#d4d4d4", "#6f6f6f"), spreads.items(), strict=True):
        low = np.maximum(exact - spread, 1)
        ax.barh(
            rows,
            exact + spread - low,
            left=low,
            height=0.74,
            color=grey,
            label=f"95% of the noise, ε = {epsilon:g}",
        )
    ax.plot(exact, rows, color=PALETTE[1], marker=MARKERS[3], ls="", label="exact")
    ax.plot(released, rows, color=PALETTE[0], marker="|", ms=11, mew=2.2, ls="", label="released, ε = 0.1")
    ax.set_yticks(rows, levels)
    ax.set(xscale="log", xlim=(1, 60_000), xlabel="people", ylabel="highest level of schooling")
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2)


def delta(ax: Axes, epsilons: Floats, tail: Floats, exact: Floats, marked: int) -> None:
    """Draw the probability that the factor is exceeded, and the exact δ below it; mark one ε."""
    ax.plot(
        epsilons, tail, color=PALETTE[1], ls=DASHES[1], label="probability that the factor exceeds $e^{ε}$"
    )
    ax.plot(epsilons, exact, color=PALETTE[0], ls=DASHES[0], label="exact δ at this ε")
    ax.plot(
        [epsilons[marked]] * 2, [exact[marked], tail[marked]], color=PALETTE[2], marker=MARKERS[0], ls=":"
    )
    text = f"{tail[marked] / exact[marked]:.0f} times"
    ax.annotate(text, (1.01, 4e-5), (1.12, 1.5e-3), va="center", arrowprops={"arrowstyle": "->"})
    ax.set(yscale="log", ylim=(1e-13, 1), xlabel="ε", ylabel="probability, δ")
    ax.legend(loc="lower left")


def gaussian(ax: Axes, epsilons: Floats, ratio: Floats) -> None:
    """Draw the noise of the classical formula relative to the exact one, proved below ε = 1 only."""
    proved = epsilons < 1
    ax.plot(
        epsilons[proved], ratio[proved], color=PALETTE[0], ls=DASHES[0], label="where it is proved (ε < 1)"
    )
    ax.plot(epsilons[~proved], ratio[~proved], color=PALETTE[1], ls=DASHES[1], label="where it is only used")
    ax.axhspan(0.6, 1, color="#eeeeee", lw=0)
    ax.axhline(1, color=PALETTE[2], lw=1, ls="-")
    ax.text(0.11, 0.97, "below this line: less noise than the promise needs", va="top", fontsize=9)
    ax.set(xscale="log", xlabel="ε", ylabel="classical noise / exact noise", ylim=(0.6, 1.7))
    ax.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    ax.legend()


def exponential(ax: Axes, jobs: pd.Series, chances: Mapping[float, Floats], shown: int = 8) -> None:
    """Draw the probability with which the most frequent candidates win, for several ε."""
    order = np.argsort(-jobs.to_numpy())[:shown]
    places = np.arange(shown)
    for i, (epsilon, chance) in enumerate(chances.items()):
        look = ("", "//", "..")[i]
        ax.bar(
            places + 0.27 * (i - 1),
            chance[order],
            width=0.25,
            color=PALETTE[i],
            hatch=look,
            edgecolor="white",
            label=f"ε = {epsilon:g}",
        )
    names = [f"{jobs.index[j]}\n{jobs.iloc[j]:,}" for j in order]
    ax.set_xticks(places, names, rotation=30, ha="right", fontsize=9)
    ax.set(
        xlabel="occupation, and its exact count among the higher incomes", ylabel="probability of being drawn"
    )
    ax.legend()


def local_model(
    ax: Axes, people: Floats, local: tuple[Floats, Floats], central: tuple[Floats, Floats]
) -> None:
    """Draw the error of a count without and with a trusted table; each pair is (theory, measured)."""
    for i, (name, (theory, measured)) in enumerate((("local", local), ("central", central))):
        ax.plot(people, theory, color=PALETTE[i], ls=DASHES[i], label=f"{name} model, theory")
        ax.plot(people, measured, color=PALETTE[i], marker=MARKERS[i], ls="", label=f"{name} model, measured")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="people",
        ylabel="typical error of the count (people)",
        ylim=(0.7, 500),
    )
    ax.legend(loc="upper left")


def synthetic(ax: Axes, epsilons: Floats, quality: ArrayLike, independent: float, half: float) -> None:
    """Draw the error of a synthetic table against ε, between a bad and a very good table."""
    ax.plot(epsilons, quality, color=PALETTE[0], marker=MARKERS[0], ls=DASHES[0], label="synthetic table")
    ax.axhline(independent, color=PALETTE[1], ls=DASHES[1], label="real columns, shuffled independently")
    ax.axhline(half, color=PALETTE[2], ls=DASHES[3], label="a random half of the real rows")
    ax.set(
        xscale="log", xlabel="ε of the whole table", ylabel="mean error on a pair of columns", ylim=(0, None)
    )
    ax.legend()


def low_bits(ax: Axes, counts: Sequence[int], shares: Mapping[str, Sequence[float]]) -> None:
    """Draw how many releases cannot come from the neighbouring count, measured; with whole numbers exactly none."""
    places = np.arange(len(counts))
    for i, (label, values) in enumerate(shares.items()):
        ax.plot(places, values, color=PALETTE[i], marker=MARKERS[i], ls=DASHES[i], label=label)
    i = len(shares)
    ax.axhline(0, color=PALETTE[i], ls=DASHES[i], label="whole numbers, every ε: 0, by proof")
    ax.set_xticks(places, [f"{count}/{count + 1}" for count in counts])
    ax.set(xlabel="count of the table / count of its neighbour", ylabel="share that gives the count away")
    ax.set_ylim(-0.03, 1)
    ax.legend()


def whole_numbers(
    law: Axes, ratio: Axes, released: NDArray[np.int64], counts: NDArray[np.int64], exact: Floats
) -> None:
    """Draw the law of the integer count 412, and the log ratio of the two worlds on and between the integers."""
    values, times = np.unique(released, return_counts=True)
    law.bar(values, times / released.size, color=PALETTE[0], width=0.7, label="measured")
    law.plot(counts, exact, color=PALETTE[1], marker=MARKERS[0], ls="", label="exact")
    law.set(xlabel="released count", ylabel="share of releases", xlim=(406.4, 416.6), ylim=(0, 0.5))
    law.legend()
    ratio.plot([407, 411, 412, 416], [-1, -1, 1, 1], color="grey", ls=":", label="real numbers")
    ratio.plot(
        counts,
        np.where(counts > 411, 1, -1),
        color=PALETTE[2],
        marker=MARKERS[0],
        ls="",
        label="whole numbers",
    )
    ratio.set(xlabel="released count", ylabel="log of the ratio", xlim=(406.4, 416.6))
    ratio.set_yticks([-1, 0, 1], ["−ε", "0", "+ε"])
    ratio.legend()


def audits(ax: Axes, bounds: Mapping[str, Floats], claim: float) -> None:
    """Draw lower bounds on ε, one row of points per mechanism; those whose name says 'half' are faulty."""
    for i, (name, values) in enumerate(bounds.items()):
        rows = -i + np.linspace(-0.22, 0.22, values.size)
        faulty = int("half" in name)
        ax.plot(values, rows, color=PALETTE[faulty], marker=MARKERS[faulty], ms=3.5, ls="", alpha=0.7)
    ax.axvline(claim, color=PALETTE[2], ls=DASHES[1], lw=1)
    ax.text(claim + 0.02, 0.35, "claim", fontsize=9)
    ax.set_yticks(-np.arange(len(bounds)), list(bounds))
    ax.set(xlabel="certified lower bound on ε", ylabel="mechanism", xlim=(-0.05, 2.2))


def smoking(ax: Axes, with_ada: Floats, without_ada: Floats, before: float) -> None:
    """Draw the published risk of smokers in two worlds, and the belief before the study."""
    bins = np.arange(4, 19.01, 0.15)
    for i, (values, label) in enumerate(
        [(with_ada, "published with Ada"), (without_ada, "published without Ada")]
    ):
        heights = np.histogram(100 * values, bins)[0] / values.size
        ax.stairs(heights, bins, color=PALETTE[i], ls=DASHES[i], lw=1.8, label=label)
    start, end = 100 * before, 100 * float(with_ada.mean())
    ax.axvline(start, color=PALETTE[2], ls=DASHES[3])
    ax.text(start - 0.15, 0.02, "believed before", rotation=90, ha="right", va="bottom", fontsize=9)
    ax.annotate("", (start, 0.12), (end, 0.12), arrowprops={"arrowstyle": "<->"})
    ax.text((start + end) / 2, 0.124, "learned about smokers:\nnot limited by ε", ha="center", va="bottom")
    note = "learned because Ada took part:\nlimited by ε"
    ax.annotate(
        note, (end + 0.1, 0.19), (12.6, 0.19), va="center", ha="center", arrowprops={"arrowstyle": "->"}
    )
    ax.set(
        xlabel="risk of a smoker, as the insurer believes it (%)",
        ylabel=f"share of {with_ada.size:,} studies",
    )
    ax.set(xlim=(4, 19), ylim=(0, 0.23))
    ax.legend(loc="center left", bbox_to_anchor=(0.12, 0.3))


def posterior(
    ax: Axes, belief: Floats, limits: Mapping[str, tuple[Floats, Floats]], survey: tuple[float, float]
) -> None:
    """Draw the lowest and highest belief after one answer against the belief before, one pair per label."""
    for i, (label, (low, high)) in enumerate(limits.items()):
        ax.plot(belief, high, color=PALETTE[i], ls=DASHES[i], label=label)
        ax.plot(belief, low, color=PALETTE[i], ls=DASHES[i], alpha=0.5)
    ax.plot(*survey, color=PALETTE[2], marker=MARKERS[0], ls="", label="coin survey, after a yes")
    ax.plot(belief, belief, color="grey", lw=0.8, ls="-")
    ax.set(xlabel="belief before the answer", ylabel="belief after, at most (at least)", aspect="equal")
    ax.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
