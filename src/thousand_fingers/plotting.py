"""Figures of the book: one look, a caption and an alternative text each.

:func:`figure` is the way in which a chapter draws (:func:`html_figure` for the few
figures that move). It insists on a name, a caption, an alternative text and labelled
axes, draws on an opaque background (so that dark pages work), and uses the Okabe-Ito
palette, which readers with any of the common colour deficiencies can tell apart,
together with a second channel: dash patterns and markers.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.book.record import record_plot
from thousand_fingers.validation import integer, real_number

Floats = NDArray[np.float64]

#: Okabe & Ito (2008), ordered so that the first three also differ in lightness.
PALETTE = ("#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PAGE_WIDTH = 7.0  # inches; text of 9 pt stays 9 pt when the page is this wide

#: How every drawing of the book looks. (The names are literals to the type checker; the values are of many types.)
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "path",
    "axes.prop_cycle": cycler(color=PALETTE) + cycler(linestyle=DASHES),
}
_NAME = re.compile(r"fig-[a-z0-9]+(-[a-z0-9]+)*")
_FOREIGN = re.compile(r"https?:|\b(src|href)\s*=|@import|url\(", re.IGNORECASE)


@contextmanager
def figure(
    name: str,
    *,
    caption: str,
    alt: str,
    columns: int = 1,
    rows: int = 1,
    height: float = 3.0,
    width: float = PAGE_WIDTH,
    axes_off: bool = False,
    **subplots: Any,
) -> Iterator[Any]:
    """Draw one figure of the book inside a ``with`` block.

    On leaving the block the figure is checked (every axis labelled), turned
    into SVG, shown, and its data attached to the notebook for the drift
    check. The rendered book reads caption and alternative text from here.

    Parameters
    ----------
    name : str
        Reference of the figure, ``fig-`` and lower-case words joined by
        hyphens; the prose points to it with ``{numref}``.
    caption : str
        One sentence that states the message of the figure (MyST markup).
    alt : str
        What a reader who does not see the figure has to know: its point and
        the decisive numbers, at least 30 characters, plain text.
    columns, rows : int, default 1
        Number of panels.
    height, width : float
        Size in inches of the whole figure.
    axes_off : bool, default False
        For pictures and diagrams: no axes, hence no labels demanded.
    **subplots
        Passed to :meth:`matplotlib.figure.Figure.subplots`, for example
        ``sharey=True``.

    Yields
    ------
    Axes or ndarray of Axes
        One axes, or the array of panels.

    Raises
    ------
    ValueError
        If name, caption, alternative text or an axis label is missing.

    Examples
    --------
    >>> with figure("fig-demo", caption="A line rises.",
    ...             alt="A straight line from 0 at 0 to 1 at 1.") as ax:
    ...     _ = ax.plot([0, 1], [0, 1])
    ...     _ = ax.set(xlabel="x", ylabel="y")
    """
    _require_texts(name, caption, alt)
    integer("columns", columns, at_least=1)
    integer("rows", rows, at_least=1)
    real_number("height", height, above=0)
    real_number("width", width, above=0)
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        drawing = Figure(figsize=(width, height))
        axes = drawing.subplots(rows, columns, **subplots)
        panels = [axes] if isinstance(axes, Axes) else list(np.ravel(axes))
        if axes_off:
            for panel in panels:
                panel.set_axis_off()
        yield axes
        for position, panel in enumerate(panels):
            if panel.axison and panel.get_visible():
                _require_labels(name, position, panel)
        svg = io.BytesIO()
        drawing.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    record_plot(name, _plotted(panels))
    _show(svg.getvalue().decode("utf-8"), name, caption, alt)


def range_bars(ax: Axes, x: ArrayLike, values: Floats, *, middle: Floats, place: int, label: str) -> None:
    """Draw one line over several seeds, with a bar from the lowest to the highest at each point.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Where to draw.
    x : array-like, shape (points,)
        The places.
    values : ndarray of float64, shape (points, seeds)
        What each seed gave.
    middle : ndarray of float64, shape (points,)
        Where the line goes: means, or medians.
    place : int
        Place of the line among the book's colours, markers and dashes.
    label : str
        Its name in the legend.

    Examples
    --------
    >>> ax = Figure().subplots()
    >>> rates = np.array([[0.1, 0.3], [0.5, 0.9]])
    >>> range_bars(ax, [1, 2], rates, middle=rates.mean(axis=1), place=0, label="two seeds")
    >>> [bar.get_segments()[1].tolist() for bar in ax.collections]
    [[[2.0, 0.5], [2.0, 0.9]]]
    """
    ax.errorbar(
        x,
        middle,
        [middle - values.min(axis=1), values.max(axis=1) - middle],
        color=PALETTE[place],
        marker=MARKERS[place],
        linestyle=DASHES[place],
        capsize=3,
        label=label,
    )


def html_figure(
    name: str, html: str, *, caption: str, alt: str, series: Mapping[str, Sequence[float]]
) -> None:
    """Show a figure that is written in HTML, for example one that the reader can move.

    The counterpart of :func:`figure` for what matplotlib cannot draw: the same name, caption,
    alternative text and drift check.

    Parameters
    ----------
    name, caption, alt : str
        As for :func:`figure`. The HTML must carry its own labels for readers who do not see it;
        ``alt`` is shown where HTML is not.
    html : str
        Complete in itself: no address of another file or host. It must show its point without
        JavaScript too.
    series : mapping of str to sequence of float
        The numbers that are drawn, compared when the figure is regenerated.

    Raises
    ------
    ValueError
        If name, caption, alternative text or HTML is missing, or the HTML names another file.

    Examples
    --------
    >>> html_figure("fig-demo", "<svg><path d='M0 1L1 0'/></svg>", caption="A line rises.",
    ...             alt="A straight line from 0 at 0 to 1 at 1.", series={"y": [0.0, 1.0]})
    """
    _require_texts(name, caption, alt)
    if not isinstance(html, str) or not html.strip():
        raise ValueError(f"html of {name} must not be empty, got {html!r}")
    if foreign := _FOREIGN.search(html):
        raise ValueError(f"html of {name} must not load anything, got {foreign.group()!r}")
    record_plot(name, series)
    _show(html, name, caption, alt, "text/html")


def _require_texts(name: str, caption: str, alt: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"name must look like 'fig-laplace-error', got {name!r}")
    for argument, text, shortest in (("caption", caption, 10), ("alt", alt, 30)):
        if not isinstance(text, str) or len(text.strip()) < shortest:
            raise ValueError(f"{argument} of {name} must have at least {shortest} characters, got {text!r}")


def _require_labels(name: str, position: int, panel: Axes) -> None:
    shares_x = any(p is not panel and p.get_xlabel() for p in panel.get_shared_x_axes().get_siblings(panel))
    shares_y = any(p is not panel and p.get_ylabel() for p in panel.get_shared_y_axes().get_siblings(panel))
    for axis, label, shared in (("x", panel.get_xlabel(), shares_x), ("y", panel.get_ylabel(), shares_y)):
        if not label and not shared:
            raise ValueError(f"{axis} axis of panel {position} of {name} must have a label")


def _plotted(panels: list[Axes]) -> dict[str, Any]:
    series: dict[str, Any] = {}
    for position, panel in enumerate(panels):
        for i, line in enumerate(panel.get_lines()):
            series[f"{position}.line{i}.x"] = np.asarray(line.get_xdata(orig=False), dtype=float)
            series[f"{position}.line{i}.y"] = np.asarray(line.get_ydata(orig=False), dtype=float)
        for i, bars in enumerate(c for c in panel.containers if isinstance(c, BarContainer)):
            series[f"{position}.bars{i}.height"] = [bar.get_height() for bar in bars]
            series[f"{position}.bars{i}.width"] = [bar.get_width() for bar in bars]
        for i, points in enumerate(c for c in panel.collections if isinstance(c, PathCollection)):
            offsets = np.ma.getdata(points.get_offsets())
            series[f"{position}.points{i}.x"] = offsets[:, 0]
            series[f"{position}.points{i}.y"] = offsets[:, 1]
        for i, area in enumerate(c for c in panel.collections if isinstance(c, PolyCollection)):
            series[f"{position}.area{i}"] = np.concatenate([path.vertices for path in area.get_paths()])
        for i, steps in enumerate(c for c in panel.patches if isinstance(c, StepPatch)):
            series[f"{position}.stairs{i}"] = steps.get_data()[0]
        for i, image in enumerate(panel.get_images()):
            series[f"{position}.image{i}"] = np.asarray(image.get_array(), dtype=float)
    return series


def _show(drawing: str, name: str, caption: str, alt: str, mime: str = "image/svg+xml") -> None:
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError:  # drawing in a script needs no IPython
        return
    if get_ipython() is None:
        return
    about = {"name": name, "caption": " ".join(caption.split()), "alt": " ".join(alt.split())}
    display(
        {mime: drawing, "text/plain": about["alt"]},
        raw=True,
        metadata={"figure": about},
    )
