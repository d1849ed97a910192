"""Record a figure of the book: show it to the reader and hand it to the checks.

A recorded value appears three times from one source: printed under the cell,
quoted by the prose (``{glue:text}``, the key that MyST-NB reads from the
output), and compared by ``fingers check`` with the committed notebook and with
the ledger. Chapters import nothing else to take part in that.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thousand_fingers.intervals import Interval, clopper_pearson, mean_interval
from thousand_fingers.validation import choice, integer, real_number

MIME_PREFIX = "application/papermill.record/"
KINDS = ("float64", "count", "text", "statistical", "plot")
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9][a-z0-9_]*)+")


def record(
    name: str,
    value: Any,
    *,
    digits: int = 4,
    rtol: float = 1e-6,
    interval: tuple[float, float] | None = None,
) -> None:
    """Print a result and attach it to the notebook under ``name``.

    The kind of the record follows from the value: whole numbers are a
    ``count`` and compared exactly, strings are ``text`` and compared exactly,
    real numbers are ``float64`` and compared at ``rtol`` and at the printed
    digits. With ``interval`` the record is ``statistical``: a regenerated
    value may fall anywhere inside it.

    Parameters
    ----------
    name : str
        Dotted lower-case name, ``"<chapter>.<experiment>.<quantity>"``.
    value : float, int, str or 0-d array
        The full value; NumPy scalars are converted to Python ones.
    digits : int, default 4
        Digits after the point that the page prints, in [0, 17].
    rtol : float, default 1e-6
        Relative tolerance of the comparison after a regeneration, in [0, 1).
    interval : tuple of float, optional
        Closed interval (low, high) from theory or from calibration seeds
        disjoint from the printed run. The value must lie inside.

    Raises
    ------
    TypeError, ValueError
        If the name, the value or the interval is not of this form.

    Examples
    --------
    >>> record("dp.demo.mean_error", 1.0027605502172152, digits=2)
    dp.demo.mean_error = 1.00
    >>> record("dp.demo.people", 412)
    dp.demo.people = 412
    >>> record("dp.demo.rate", 0.527, digits=3, interval=(0.5, 0.55))
    dp.demo.rate = 0.527
    """
    described = _describe(name, value, digits, rtol, interval)
    print(f"{name} = {shown(*described[1:])}")
    emit_record(*described)


def _describe(
    name: str, value: Any, digits: int, rtol: float, interval: tuple[float, float] | None
) -> tuple[str, float | int | str, dict[str, Any]]:
    """Check the arguments of a record and return its name, plain value and metadata."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"name must be dotted lower-case words such as 'dp.laplace.error', got {name!r}")
    integer("digits", digits, at_least=0, at_most=17)
    real_number("rtol", rtol, at_least=0, below=1)
    plain = _plain(value)
    about: dict[str, Any] = {"kind": "text"}
    if isinstance(plain, int):
        about = {"kind": "count"}
    elif isinstance(plain, float):
        about = {"kind": "float64", "digits": digits, "rtol": rtol}
    if interval is not None:
        if isinstance(plain, str):
            raise TypeError(f"interval applies to numbers, got the text {plain!r}")
        low = real_number("interval[0]", interval[0])
        high = real_number("interval[1]", interval[1], at_least=low)
        if not low <= plain <= high:
            raise ValueError(f"value of {name!r} must lie in its interval [{low}, {high}], got {plain}")
        about["kind"] = "statistical"
        about["interval"] = [low, high]
    return name, plain, about


def record_rate(
    name: str,
    successes: int,
    trials: int,
    *,
    digits: int = 4,
    interval: tuple[float, float] | None = None,
) -> None:
    """Print a measured rate with its exact 95% confidence interval, and record all three.

    Parameters
    ----------
    name : str
        As for :func:`record`; the limits are recorded as ``<name>.low`` and
        ``<name>.high`` (Clopper and Pearson).
    successes, trials : int
        Counts, 0 <= successes <= trials, trials >= 1.
    digits : int, default 4
        Digits after the point that the page prints.
    interval : tuple of float, optional
        Makes the rate ``statistical``, see :func:`record`; its limits then
        follow from it and are recorded inside [0, 1].

    Raises
    ------
    TypeError, ValueError
        If a count is no whole number or out of range.

    Examples
    --------
    >>> record_rate("dp.demo.right", 562, 1000, digits=3)
    dp.demo.right = 0.562 (95% interval 0.531 to 0.593, n = 1000)
    """
    limits = clopper_pearson(successes, trials)
    rate = _describe(name, int(successes) / int(trials), digits, 1e-6, interval)
    _emit_with_limits(rate, limits, digits, (0.0, 1.0) if interval else None, f"n = {trials}")


def record_mean(
    name: str,
    values: Sequence[float] | NDArray[np.float64],
    *,
    digits: int = 4,
    interval: tuple[float, float] | None = None,
) -> None:
    """Print a mean over seeds or splits with its 95% confidence interval, and record all three.

    Parameters
    ----------
    name : str
        As for :func:`record`; the limits are recorded as ``<name>.low`` and
        ``<name>.high`` (Student).
    values : array-like of float, shape (n,)
        One measurement for each seed or split, at least 2.
    digits : int, default 4
        Digits after the point that the page prints.
    interval : tuple of float, optional
        Makes the mean ``statistical``, see :func:`record`; its limits are then
        recorded with the same interval, widened by their own width.

    Raises
    ------
    TypeError, ValueError
        If there are fewer than two values or one is not finite.

    Examples
    --------
    >>> record_mean("dp.demo.accuracy", [0.94, 0.96, 0.95], digits=3)
    dp.demo.accuracy = 0.950 (95% interval 0.925 to 0.975, mean of 3)
    """
    limits = mean_interval(values)
    width = limits.high - limits.low
    ends = (interval[0] - width, interval[1] + width) if interval else None
    mean = _describe(name, float(np.mean(values)), digits, 1e-6, interval)
    _emit_with_limits(mean, limits, digits, ends, f"mean of {len(values)}")


def _emit_with_limits(
    described: tuple[str, float | int | str, dict[str, Any]],
    limits: Interval,
    digits: int,
    ends: tuple[float, float] | None,
    basis: str,
) -> None:
    """Print a described value with its 95% limits on one line, and emit all three."""
    name = described[0]
    low = _describe(f"{name}.low", limits.low, digits, 1e-6, ends)
    high = _describe(f"{name}.high", limits.high, digits, 1e-6, ends)
    between = f"{shown(*low[1:])} to {shown(*high[1:])}"
    print(f"{name} = {shown(*described[1:])} (95% interval {between}, {basis})")
    for each in (described, low, high):
        emit_record(*each)


def shown(value: float | int | str, about: Mapping[str, Any]) -> str:
    """Return a recorded value as the page prints it.

    Parameters
    ----------
    value : float, int or str
        The full value of a record.
    about : mapping
        The record's metadata; ``digits`` is read.

    Returns
    -------
    str

    Examples
    --------
    >>> shown(0.69673, {"digits": 3})
    '0.697'
    """
    if isinstance(value, float):
        return f"{value:.{about.get('digits', 4)}f}"
    return str(value)


def summarise_plot(series: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Return the numbers by which a redrawn figure is recognised.

    Images are not compared byte by byte, since a new font or library version
    would fail every one of them; the data behind each line are.

    Parameters
    ----------
    series : mapping of str to sequence of float
        The plotted values, by axis and artist.

    Returns
    -------
    dict
        For each series: ``n``, ``first``, ``last``, ``min``, ``max``, ``mean``.

    Examples
    --------
    >>> summarise_plot({"x": [1.0, 2.0, 6.0]})["x"]["mean"]
    3.0
    """
    summary = {}
    for key, values in series.items():
        array = np.asarray(values, dtype=np.float64).ravel()
        array = array[np.isfinite(array)]
        summary[key] = {"n": float(array.size)}
        if array.size:
            summary[key] |= {
                "first": float(array[0]),
                "last": float(array[-1]),
                "min": float(array.min()),
                "max": float(array.max()),
                "mean": float(array.mean()),
            }
    return summary


def record_plot(name: str, series: Mapping[str, Sequence[float]]) -> None:
    """Attach the data behind a figure to the notebook, without printing.

    Parameters
    ----------
    name : str
        Name of the figure, such as ``"fig-laplace-error"``.
    series : mapping of str to sequence of float
        The plotted values, by axis and artist.

    Examples
    --------
    >>> record_plot("fig-demo", {"x": [0.0, 1.0]})
    """
    key = "plot." + name.replace("-", "_")
    emit_record(key, json.dumps(summarise_plot(series), sort_keys=True), {"kind": "plot", "rtol": 1e-6})


def emit_record(name: str, value: float | int | str, about: Mapping[str, Any]) -> None:
    """Send one record to the notebook; outside a notebook, do nothing.

    Parameters
    ----------
    name : str
        Key of the record.
    value : float, int or str
        Its full value, sent as a Python ``repr``.
    about : mapping
        ``kind`` and how to compare it.
    """
    choice("kind", about["kind"], KINDS)
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError:  # the library alone does not need IPython
        return
    if get_ipython() is None:
        return
    display(
        {MIME_PREFIX + "text/plain": repr(value)},
        raw=True,
        metadata={
            "scrapbook": {"name": name, "mime_prefix": MIME_PREFIX},
            "record": dict(about),
        },
    )


def _plain(value: Any) -> float | int | str:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        raise TypeError("value must be a number or a text, got a bool; record the text 'yes' or 'no'")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"value must be finite, got {value}")
    if not isinstance(value, int | float | str):
        raise TypeError(f"value must be one number or one text, got {type(value).__name__}")
    return value
