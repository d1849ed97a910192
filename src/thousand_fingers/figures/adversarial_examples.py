"""The drawings of chapter 7, Adversarial examples.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them. :func:`thirty_fingers` is the one
figure that the reader can move: HTML with inline SVG and a range input, for
:func:`thousand_fingers.plotting.html_figure`. Without JavaScript it stands still.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.plotting import DASHES, MARKERS, PALETTE

Floats = NDArray[np.float64]

# --------------------------------------------------------------------------- the slider

_UNIT = 27.0  # pixels per unit of a feature, for features and pushes alike
_WIDTH, _HEIGHT = 360, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 348, 22, 206  # of the curve's panel
_FURTHEST = 0.3  # radius at the right end of the slider

# An opaque light card, like every other figure, so that dark pages and dark JupyterLab work.
_STYLE = """
.text_html:has(> #{id}) {{ background: none !important; padding: 0 !important; }}
#{id} {{ background: #ffffff; color: #1f2630; border-radius: 3px; padding: 0.6rem 0.5rem;
  font-family: var(--pst-font-family-base, sans-serif); font-size: 0.86rem; line-height: 1.5; }}
html[data-theme="dark"] #{id} {{ filter: brightness(0.92); }}
#{id} .panels {{ display: flex; flex-wrap: wrap; gap: 0.4rem 1rem; }}
#{id} svg {{ flex: 1 1 19rem; min-width: 0; max-width: 34rem; height: auto; background: none; }}
#{id} text {{ fill: #1f2630; font-size: 12px; }}
#{id} .axis {{ stroke: #525c69; stroke-width: 1; fill: none; }}
#{id} .feature {{ fill: #0072b2; }}
#{id} .push {{ fill: #d55e00; }}
#{id} .moved {{ stroke: #d55e00; stroke-width: 2; }}
#{id} .curve {{ stroke: #0072b2; stroke-width: 2; fill: none; }}
#{id} .flip {{ stroke: #d55e00; stroke-width: 1.5; stroke-dasharray: 5 3; }}
#{id} .dot {{ fill: #d55e00; stroke: #1f2630; }}
#{id} .controls {{ display: flex; flex-wrap: wrap; align-items: center; gap: 0.3rem 0.9rem; margin: 0.5rem 0.4rem 0; }}
#{id} .controls[hidden] {{ display: none; }}
#{id} label {{ color: #1f2630; margin: 0; }}
#{id} input {{ flex: 1 1 14rem; min-height: 1.5rem; accent-color: #d55e00; }}
#{id} input:focus-visible {{ outline: 2px solid #1f2630; outline-offset: 2px; }}
#{id} output {{ flex-basis: 100%; font-variant-numeric: tabular-nums; color: #1f2630; }}
@media print {{ #{id} .controls {{ display: none; }} }}
"""

_SCRIPT = """
(function () {{
  const data = {data};
  const get = (part) => document.getElementById("{id}-" + part);
  const slider = get("radius");
  function show() {{
    const radius = Number(slider.value) / 1000;
    const p = 1 / (1 + Math.exp(data.side * (data.slope * radius - data.margin)));
    const pixels = radius * data.unit;
    get("pushes").setAttribute("transform", "translate(0 " + data.middle + ") scale(1 " + radius + ")");
    get("up").setAttribute("transform", "translate(0 " + -pixels + ")");
    get("down").setAttribute("transform", "translate(0 " + pixels + ")");
    get("dot").setAttribute("cx", data.left + (data.right - data.left) * radius / data.furthest);
    get("dot").setAttribute("cy", data.bottom - (data.bottom - data.top) * p);
    const verdict = data.margin > data.slope * radius ? "correct" : "WRONG";
    const text = "ρ = " + radius.toFixed(3) + ": probability of class 1 = " + p.toFixed(3) + ", " + verdict;
    get("reading").textContent = text;
    slider.setAttribute("aria-valuetext", text);
  }}
  slider.addEventListener("input", show);
  get("controls").hidden = false;
  show();
}})();
"""


def thirty_fingers(
    name: str, features: Floats, pushes: Floats, logit: float, slope: float, *, label: int
) -> str:
    """Return the figure that the reader can move: features, pushes at the same scale, probability.

    Parameters
    ----------
    name : str
        Name of the figure; every id in the HTML begins with it.
    features : ndarray of shape (d,)
        The example.
    pushes : ndarray of shape (d,)
        What is added to each feature: plus or minus the same number, or 0. The slider stands there at
        first, and for ever without JavaScript.
    logit : float
        Logit of class 1 before the push.
    slope : float
        By how much a push of radius 1 moves the logit against the label, greater than 0.
    label : int
        The true class, 0 or 1.

    Returns
    -------
    str
        HTML that is also well-formed XML.

    Examples
    --------
    >>> html = thirty_fingers("fig-demo", np.array([1.0, -2.0]), np.array([-0.15, 0.15]), 2.0, 20.0,
    ...                       label=1)
    >>> "changes at ρ = 0.100" in html
    True
    """
    radius, signs = float(np.abs(pushes).max()), np.sign(pushes)
    side = 1 if label == 1 else -1
    margin = side * logit
    data = {
        "side": side, "margin": margin, "slope": slope, "unit": _UNIT, "middle": 226.0, "furthest": _FURTHEST,
        "left": _LEFT, "right": _RIGHT, "top": _TOP, "bottom": _BOTTOM,
    }  # fmt: skip
    probability = _probability(radius, margin, slope, side)
    verdict = "correct" if margin > slope * radius else "WRONG"
    reading = f"ρ = {radius:.3f}: probability of class 1 = {probability:.3f}, {verdict}"
    about_curve = (
        f"Probability of class 1 against ρ: {_probability(0, margin, slope, side):.3f} without a push, "
        f"the answer changes at ρ = {margin / slope:.3f}, {probability:.3f} at ρ = {radius:.2f}."
    )
    about_bars = (
        f"{features.size} bars, the features, between {features.min():.1f} and {features.max():.1f}; below them, "
        f"at the same scale, {features.size} pushes of {radius:.2f} each, hardly visible."
    )
    return "\n".join(
        [
            f'<div id="{name}-figure" class="slider-figure">',
            f"<style>{_STYLE.format(id=name + '-figure')}</style>",
            '<div class="panels">',
            _bars(name, features, signs, radius, about_bars),
            _curve(name, margin, slope, side, radius, about_curve),
            "</div>",
            f'<div id="{name}-controls" class="controls" hidden="hidden">',
            f'<label for="{name}-radius">Push ρ on every feature</label>',
            f'<input id="{name}-radius" type="range" min="0" max="{1000 * _FURTHEST:.0f}" step="1" '
            f'value="{1000 * radius:.0f}" autocomplete="off" />',
            f'<output id="{name}-reading" for="{name}-radius">{reading}</output>',
            "</div>",
            f"<script>{_SCRIPT.format(id=name, data=json.dumps(data, sort_keys=True))}</script>",
            "</div>",
        ]
    )


def _probability(radius: float, margin: float, slope: float, side: int) -> float:
    return 1 / (1 + math.exp(side * (slope * radius - margin)))


def _bars(name: str, features: Floats, signs: Floats, radius: float, about: str) -> str:
    step = (_RIGHT + 6 - 26) / features.size
    places = 26 + step * np.arange(features.size)
    width, zero, middle = 0.7 * step, 104.0, 226.0
    feature_bars = [
        _bar("feature", x, width, zero, -_UNIT * value) for x, value in zip(places, features, strict=True)
    ]
    push_bars = [_bar("push", x, width, 0.0, -_UNIT * sign) for x, sign in zip(places, signs, strict=True)]
    ticks: dict[int, list[str]] = {1: [], -1: []}
    for x, value, sign in zip(places, features, signs, strict=True):
        if sign:
            y = zero - _UNIT * value
            ticks[int(sign)].append(f"M{x - 0.1 * step:.2f} {y:.2f}h{0.9 * step:.2f}")
    pixels = radius * _UNIT
    scale = "".join(
        f'<text x="20" y="{zero - _UNIT * value + 4:.1f}" text-anchor="end">{str(value).replace("-", "−")}</text>'
        for value in (-2, 0, 2)
    )
    return "\n".join(
        [
            _open_svg(about),
            f'<text x="26" y="14">the {features.size} features, and where the push takes them</text>',
            scale,
            f'<path class="axis" d="M26 {zero}H354" />',
            *feature_bars,
            f'<path id="{name}-up" class="moved" transform="translate(0 {-pixels:g})" d="{"".join(ticks[1])}" />',
            f'<path id="{name}-down" class="moved" transform="translate(0 {pixels:g})" d="{"".join(ticks[-1])}" />',
            f'<text x="26" y="206">the {features.size} pushes, at the same scale</text>',
            f'<path class="axis" d="M26 {middle}H354" />',
            f'<g id="{name}-pushes" transform="translate(0 {middle}) scale(1 {radius:g})">',
            *push_bars,
            "</g>",
            "</svg>",
        ]
    )


def _curve(name: str, margin: float, slope: float, side: int, radius: float, about: str) -> str:
    def at(r: float, p: float) -> str:
        return f"{_x(r):.2f} {_y(p):.2f}"

    radii = np.linspace(0, _FURTHEST, 61)
    points = "L".join(at(r, _probability(r, margin, slope, side)) for r in radii)
    flip = margin / slope
    ticks = "".join(
        f'<text x="{_x(r):.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{r:g}</text>' for r in (0, 0.1, 0.2, 0.3)
    ) + "".join(
        f'<text x="{_LEFT - 6}" y="{_y(p) + 4:.1f}" text-anchor="end">{p:g}</text>' for p in (0, 0.5, 1)
    )  # fmt: skip
    return "\n".join(
        [
            _open_svg(about),
            f'<text x="{_LEFT}" y="14">probability of class 1</text>',
            f'<text x="{_RIGHT}" y="{_BOTTOM + 34}" text-anchor="end">push ρ on every feature</text>',
            ticks,
            f'<path class="axis" d="M{at(0, 1)}V{_y(0):g}H{_x(_FURTHEST):g}M{at(0, 0.5)}H{_x(_FURTHEST):g}" />',
            f'<path class="flip" d="M{at(flip, 0)}V{_y(1):g}" />',
            f'<text x="{_x(flip) + 6:.1f}" y="{_TOP + 12}">changes at ρ = {flip:.3f}</text>',
            f'<path class="curve" d="M{points}" />',
            f'<circle id="{name}-dot" class="dot" cx="{_x(radius):.2f}" '
            f'cy="{_y(_probability(radius, margin, slope, side)):.2f}" r="5" />',
            "</svg>",
        ]
    )


def _open_svg(about: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(about)}">'


def _bar(kind: str, x: float, width: float, zero: float, change: float) -> str:
    top, height = min(zero, zero + change), abs(change)
    return f'<rect class="{kind}" x="{x:.2f}" y="{top:.2f}" width="{width:.2f}" height="{height:.2f}" />'


def _x(radius: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * radius / _FURTHEST


def _y(probability: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * probability


# --------------------------------------------------------------------------- the other figures


def more_fingers(
    push: Axes,
    fall: Axes,
    dims: ArrayLike,
    needed: ArrayLike,
    theory: ArrayLike,
    logits: ArrayLike,
    falls: ArrayLike,
) -> None:
    """Draw, against the number of features, the push that changes the answer, and what a fixed push does."""
    push.plot(dims, theory, color=PALETTE[1], ls=DASHES[1], label="theory, falls like 1/√d")
    push.plot(dims, needed, color=PALETTE[0], marker=MARKERS[0], ls="", label="measured")
    fall.plot(dims, falls, color=PALETTE[1], marker=MARKERS[1], ls=DASHES[1], label="what ρ = 0.15 takes")
    fall.plot(dims, logits, color=PALETTE[0], marker=MARKERS[0], ls=DASHES[0], label="what there is (median)")
    for panel, ylabel, ticks in (
        (push, "push that changes the answer", (0.02, 0.05, 0.1, 0.2, 0.5)),
        (fall, "size of the logit", (1, 3, 10, 30)),
    ):
        panel.set(xscale="log", yscale="log", xlabel="features d", ylabel=ylabel)
        panel.minorticks_off()
        panel.set_xticks([3, 30, 300, 3000], ["3", "30", "300", "3,000"])
        panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.legend()


def accuracy_curves(
    ax: Axes, radii: Sequence[float], curves: Mapping[str, Sequence[tuple[float, float, float]]]
) -> None:
    """Draw accuracy against the radius with 95% bands; each point is (value, low, high)."""
    for i, (name, points) in enumerate(curves.items()):
        value, low, high = np.array(points).T
        ax.fill_between(radii, low, high, color=PALETTE[i], alpha=0.18, lw=0)
        ax.plot(radii, value, color=PALETTE[i], ls=DASHES[i], marker=MARKERS[i], label=name)
    ax.set(xlabel="radius ρ", ylabel="share of test images still right", ylim=(-0.02, 1.02))
    ax.legend()


def recipe(
    panels: Sequence[Axes], pictures: Sequence[ArrayLike], answers: Sequence[str], radius: float
) -> None:
    """Draw image + ρ × sign map = image, with the network's two answers below."""
    texts = (answers[0], "signs of the gradient:\n−1 black, +1 white", answers[1])
    for panel, picture, low, text in zip(panels, pictures, (0, -1, 0), texts, strict=True):
        panel.imshow(picture, cmap="gray", vmin=low, vmax=1)
        panel.text(0.5, -0.05, text, transform=panel.transAxes, ha="center", va="top")
    for panel, between in ((panels[1], f"+ {radius:g} ×"), (panels[2], "=")):
        panel.text(-0.2, 0.5, between, transform=panel.transAxes, ha="center", va="center", fontsize=11)


def gallery(panels: ArrayLike, images: Sequence[ArrayLike], titles: Sequence[str]) -> None:
    """Draw images, one to a panel, with a few words above each."""
    for panel, image, title in zip(np.ravel(panels), images, titles, strict=True):
        panel.imshow(image, cmap="gray", vmin=0, vmax=1)
        panel.set_title(title, fontsize=9)


def confidences(ax: Axes, groups: Mapping[str, ArrayLike]) -> None:
    """Draw for each group of answers which share has at least a given confidence."""
    levels = np.linspace(0.1, 1, 181)
    for i, (name, values) in enumerate(groups.items()):
        share = (np.asarray(values)[:, None] >= levels).mean(0)
        ax.plot(levels, share, color=PALETTE[i], ls=DASHES[i], label=name)
    ax.set(xlabel="confidence at least", ylabel="share of the answers", ylim=(-0.02, 1.02))
    ax.legend(loc="lower left")


def perimeter(ax: Axes, names: Sequence[str], rows: Sequence[Sequence[tuple[float, float, float]]]) -> None:
    """Draw accuracies with 95% intervals: one row each for the two networks and for blind choices."""
    labels = ("ordinary training", "adversarial training", "adversarial training, blind choice")
    places, width = np.arange(len(names)), 0.27
    for i, (label, points) in enumerate(zip(labels, rows, strict=True)):
        value, low, high = np.array(points).T
        ax.bar(
            places + width * (i - 1),
            value,
            width=0.92 * width,
            color=("#0072B2", "#D55E00", "#bbbbbb")[i],
            hatch=("", "//", "..")[i],
            edgecolor="white",
            yerr=(value - low, high - value),
            ecolor="#333333",
            capsize=2,
            label=label,
        )
    ax.axvline(0.5, color="grey", ls=DASHES[3], lw=1)
    ax.set_xticks(places, names)
    ax.set(xlabel="inside the perimeter, and outside it", ylabel="share still right", ylim=(0, 1.25))
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1])
    ax.legend(loc="upper center", ncols=3)


def symptoms(ax: Axes, names: Sequence[str], shares: Mapping[str, Sequence[float]], tolerance: float) -> None:
    """Draw which share of images shows each symptom of a masked gradient, one marker per model."""
    rows = -np.arange(len(names))
    for i, (model, values) in enumerate(shares.items()):
        ax.plot(
            values,
            rows - 0.22 * (i - (len(shares) - 1) / 2),
            color=PALETTE[i],
            marker=MARKERS[i],
            ls="",
            label=model,
        )
    ax.axvline(tolerance, color="grey", ls=DASHES[3], lw=1)
    ax.set_yticks(rows, names)
    ax.set(xlabel="share of images that show the symptom", ylabel="symptom", xlim=(-0.02, 1.02))
    ax.legend(loc="center left", bbox_to_anchor=(0.55, 0.4))
