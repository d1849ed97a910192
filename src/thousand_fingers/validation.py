"""Checks of arguments, shared by every module of the library.

Each helper returns the value it has checked, or raises ``ValueError`` with a
message that names the argument, the allowed range and the value received:
``epsilon must be > 0, got -1.0``. Functions call them first, before any work
is done and before any randomness is consumed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import torch

_Choice = TypeVar("_Choice")


def real_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    allow_infinite: bool = False,
) -> float:
    """Return ``value`` as a float inside an interval.

    Parameters
    ----------
    name : str
        Name of the argument, as the caller wrote it.
    value : real number
        Python or NumPy scalar; booleans, strings and arrays are refused.
    above, at_least : float, optional
        Open and closed lower end of the allowed interval.
    below, at_most : float, optional
        Open and closed upper end of the allowed interval.
    allow_infinite : bool, default False
        Whether plus or minus infinity may pass (NaN never does).

    Returns
    -------
    float

    Raises
    ------
    TypeError
        If ``value`` is not a single real number.
    ValueError
        If ``value`` is NaN, infinite where that is not allowed, or outside
        the interval.

    Examples
    --------
    >>> real_number("epsilon", 0.5, above=0)
    0.5
    >>> real_number("epsilon", -1.0, above=0)
    Traceback (most recent call last):
        ...
    ValueError: epsilon must be > 0, got -1.0
    """
    if isinstance(value, bool | np.bool_ | str | bytes):
        raise TypeError(f"{name} must be a real number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a real number, got {value!r}") from None
    allowed = _interval(above, at_least, below, at_most)
    if math.isnan(number) or (math.isinf(number) and not allow_infinite):
        raise ValueError(f"{name} must be {'' if allow_infinite else 'finite and '}{allowed}, got {number}")
    if (
        (above is not None and not number > above)
        or (at_least is not None and not number >= at_least)
        or (below is not None and not number < below)
        or (at_most is not None and not number <= at_most)
    ):
        raise ValueError(f"{name} must be {allowed}, got {number}")
    return number


def integer(
    name: str,
    value: Any,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
) -> int:
    """Return ``value`` as a Python int inside a closed interval.

    Floats are refused even when they are whole: a count is a count.

    Parameters
    ----------
    name : str
        Name of the argument, as the caller wrote it.
    value : int
        Python or NumPy integer; booleans are refused.
    at_least, at_most : int, optional
        Ends of the allowed interval.

    Returns
    -------
    int

    Raises
    ------
    TypeError
        If ``value`` is not an integer.
    ValueError
        If it lies outside the interval.

    Examples
    --------
    >>> integer("k", 3, at_least=1)
    3
    >>> integer("k", 0, at_least=1)
    Traceback (most recent call last):
        ...
    ValueError: k must be >= 1, got 0
    """
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if (at_least is not None and number < at_least) or (at_most is not None and number > at_most):
        raise ValueError(f"{name} must be {_interval(None, at_least, None, at_most)}, got {number}")
    return number


def choice(name: str, value: _Choice, allowed: Collection[_Choice]) -> _Choice:
    """Return ``value`` if it is one of ``allowed``.

    Parameters
    ----------
    name : str
        Name of the argument, as the caller wrote it.
    value : object
        The value to look up.
    allowed : collection
        The accepted values, in the order in which the message lists them.

    Returns
    -------
    object
        ``value`` itself.

    Raises
    ------
    ValueError
        If ``value`` is not one of ``allowed``.

    Examples
    --------
    >>> choice("norm", "l1", ("l2", "linf"))
    Traceback (most recent call last):
        ...
    ValueError: norm must be one of 'l2', 'linf', got 'l1'
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def real_array(
    name: str,
    values: ArrayLike,
    *,
    ndim: int | None = None,
    shape: tuple[int | None, ...] | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    allow_empty: bool = False,
) -> NDArray[np.float64]:
    """Return ``values`` as a finite float64 array of the expected shape.

    Parameters
    ----------
    name : str
        Name of the argument, as the caller wrote it.
    values : array-like of real numbers
        The values to check. The input is never modified; a copy is made
        only when the dtype has to change.
    ndim : int, optional
        Required number of axes.
    shape : tuple of int or None, optional
        Required shape; ``None`` stands for an axis of any length.
    at_least, at_most : float, optional
        Ends of the allowed interval of every entry.
    allow_empty : bool, default False
        Whether an array without entries may pass.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    TypeError
        If the values are not real numbers.
    ValueError
        If the shape is wrong, or an entry is NaN, infinite or out of range.

    Examples
    --------
    >>> real_array("scores", [0.1, float("nan")], ndim=1)
    Traceback (most recent call last):
        ...
    ValueError: scores must be finite, got nan at index (1,)
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" or (array.dtype.kind == "b" and array.ndim == 0):
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    _check_shape(name, array, ndim, shape, allow_empty)
    array = array.astype(np.float64, copy=False)
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{name} must be finite, got {array[where]} at index {where}")
    outside = np.zeros(array.shape, dtype=bool)
    if at_least is not None:
        outside |= array < at_least
    if at_most is not None:
        outside |= array > at_most
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        allowed = _interval(None, at_least, None, at_most)
        raise ValueError(f"{name} must be {allowed}, got {array[where]} at index {where}")
    return array


def integer_array(
    name: str,
    values: ArrayLike,
    *,
    ndim: int | None = None,
    shape: tuple[int | None, ...] | None = None,
    at_least: int | None = None,
    at_most: int | None = None,
    allow_empty: bool = False,
) -> NDArray[np.int64]:
    """Return ``values`` as an int64 array (labels, counts) inside an interval.

    Parameters
    ----------
    name : str
        Name of the argument, as the caller wrote it.
    values : array-like of int
        The values to check; arrays of floats are refused even when whole.
    ndim, shape, allow_empty
        As in :func:`real_array`.
    at_least, at_most : int, optional
        Ends of the allowed interval of every entry.

    Returns
    -------
    ndarray of int64

    Raises
    ------
    TypeError
        If the values are not integers.
    ValueError
        If the shape is wrong or an entry is out of range.

    Examples
    --------
    >>> integer_array("labels", [0, 1, 10], at_least=0, at_most=9)
    Traceback (most recent call last):
        ...
    ValueError: labels must be >= 0 and <= 9, got 10 at index (2,)
    """
    array = np.asarray(values)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)  # np.asarray([]) is float64
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers, got dtype {array.dtype}")
    _check_shape(name, array, ndim, shape, allow_empty)
    outside = np.zeros(array.shape, dtype=bool)
    if at_least is not None:
        outside |= array < at_least
    if at_most is not None:
        outside |= array > at_most
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        allowed = _interval(None, at_least, None, at_most)
        raise ValueError(f"{name} must be {allowed}, got {array[where]} at index {where}")
    return array.astype(np.int64, copy=False)


def boolean_array(
    name: str, values: ArrayLike, *, shape: tuple[int | None, ...] | None = None
) -> NDArray[np.bool_]:
    """Return ``values`` as an array of yes and no (who is a member, which answer was right).

    Parameters
    ----------
    name : str
        Name of the argument, as the caller wrote it.
    values : array-like of bool
        The values to check; zeros and ones are refused, because scores in the wrong place look like them.
    shape : tuple of int or None, optional
        As in :func:`real_array`.

    Returns
    -------
    ndarray of bool

    Raises
    ------
    TypeError
        If the values are not booleans.
    ValueError
        If the shape is wrong or there is no entry.

    Examples
    --------
    >>> boolean_array("members", [0, 1])
    Traceback (most recent call last):
        ...
    TypeError: members must hold booleans, got dtype int64
    """
    array = np.asarray(values)
    if array.dtype.kind != "b":
        raise TypeError(f"{name} must hold booleans, got dtype {array.dtype}")
    _check_shape(name, array, None, shape, allow_empty=False)
    return array


def numpy_generator(name: str, value: Any) -> np.random.Generator:
    """Return ``value`` if it is a NumPy generator.

    Parameters
    ----------
    name : str
        Name of the argument, as the caller wrote it.
    value : numpy.random.Generator
        The source of randomness. A seed is not accepted: the caller decides
        where a stream starts, so that two calls never share one by accident.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    TypeError
        If ``value`` is anything else.

    Examples
    --------
    >>> numpy_generator("rng", 0)
    Traceback (most recent call last):
        ...
    TypeError: rng must be a numpy.random.Generator such as numpy.random.default_rng(0), got 0
    """
    if not isinstance(value, np.random.Generator):
        raise TypeError(
            f"{name} must be a numpy.random.Generator such as numpy.random.default_rng(0), got {value!r}"
        )
    return value


def torch_generator(name: str, value: Any) -> torch.Generator:
    """Return ``value`` if it is a torch generator.

    Parameters
    ----------
    name : str
        Name of the argument, as the caller wrote it.
    value : torch.Generator
        The source of randomness; a seed is not accepted, as in :func:`numpy_generator`.

    Returns
    -------
    torch.Generator

    Raises
    ------
    TypeError
        If ``value`` is anything else.

    Examples
    --------
    >>> torch_generator("generator", 0)
    Traceback (most recent call last):
        ...
    TypeError: generator must be a torch.Generator such as torch.Generator().manual_seed(0), got 0
    """
    import torch  # here, so that chapters without networks do not pay for it

    if not isinstance(value, torch.Generator):
        raise TypeError(
            f"{name} must be a torch.Generator such as torch.Generator().manual_seed(0), got {value!r}"
        )
    return value


def _check_shape(
    name: str,
    array: NDArray[Any],
    ndim: int | None,
    shape: tuple[int | None, ...] | None,
    allow_empty: bool,
) -> None:
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {array.shape}")
    if shape is not None and (
        array.ndim != len(shape)
        or any(want is not None and want != have for want, have in zip(shape, array.shape, strict=True))
    ):
        wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
        raise ValueError(f"{name} must have shape {wanted}, got {array.shape}")
    if array.size == 0 and not allow_empty:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")


def _interval(above: float | None, at_least: float | None, below: float | None, at_most: float | None) -> str:
    parts = [
        f"{sign} {bound}"
        for sign, bound in ((">", above), (">=", at_least), ("<", below), ("<=", at_most))
        if bound is not None
    ]
    return " and ".join(parts) or "a real number"
