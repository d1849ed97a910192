"""Tables of people: which rows look the same, and what counts as the same.

Rows that agree on every one of some columns form an *equivalence class* [Sweeney2002]. All that chapter 3
measures, on either side, is counted over such classes; they are computed here, once, so that the index,
the dtype, unused categories and the order of the rows never matter, and a missing value never drops out
by accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from thousand_fingers.validation import choice

Ints = NDArray[np.int64]

MISSING_POLICIES = ("own", "refuse")


@dataclass(frozen=True)
class Classes:
    """The equivalence classes of a table.

    Parameters
    ----------
    labels : ndarray of int64, shape (n_rows,)
        Class of each row, from 0; the numbering means nothing.
    sizes : ndarray of int64, shape (n_classes,)
        Rows in each class.
    """

    labels: Ints
    sizes: Ints

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.sizes.size

    @property
    def k(self) -> int:
        """Size of the smallest class: the k of k-anonymity."""
        return int(self.sizes.min())

    @property
    def row_sizes(self) -> Ints:
        """Size of the class of each row, shape (n_rows,)."""
        return self.sizes[self.labels]

    @property
    def n_unique(self) -> int:
        """Number of rows that nobody else looks like."""
        return int((self.sizes == 1).sum())


def equivalence_classes(table: pd.DataFrame, columns: Sequence[str], *, missing: str = "own") -> Classes:
    """Group the rows that agree on every column.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per record.
    columns : sequence of str
        The columns that have to agree, at least one; a single name goes in a list.
    missing : {"own", "refuse"}, default "own"
        What a missing value (NaN, None, NA) is: a value of its own, equal to other missing values of its
        column, or an error.

    Returns
    -------
    Classes

    Raises
    ------
    TypeError
        If ``table`` is no DataFrame or ``columns`` is one text.
    ValueError
        If the table is empty, a column does not exist or is named twice, or values are missing and refused.

    References
    ----------
    [Sweeney2002]

    Examples
    --------
    >>> people = pd.DataFrame({"age": [30, 30, None], "sex": ["f", "f", "f"]})
    >>> equivalence_classes(people, ["age", "sex"]).sizes
    array([2, 1])
    """
    names = checked_columns(table, "columns", columns)
    choice("missing", missing, MISSING_POLICIES)
    coded = [column_codes(table[name]) for name in names]
    if missing == "refuse":
        for name, (codes, _) in zip(names, coded, strict=True):
            if (codes < 0).any():
                raise ValueError(
                    f"column {name!r} must have no missing value, found {int((codes < 0).sum())}"
                )
    labels = combine_codes([(np.where(c < 0, len(values), c), len(values) + 1) for c, values in coded])
    return Classes(labels, np.bincount(labels))


def checked_columns(table: Any, name: str, columns: Any) -> list[str]:
    """Return the columns as a list after checking that the table has each of them, once.

    Parameters
    ----------
    table : pandas.DataFrame
        Must have at least one row.
    name : str
        Name of the argument, as the caller wrote it.
    columns : sequence of str
        At least one column.

    Returns
    -------
    list of str

    Raises
    ------
    TypeError, ValueError
        As for :func:`equivalence_classes`.

    Examples
    --------
    >>> checked_columns(pd.DataFrame({"age": [30]}), "columns", "age")
    Traceback (most recent call last):
        ...
    TypeError: columns must be a list of column names, got the text 'age': write ['age']
    """
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"table must be a pandas.DataFrame, got {type(table).__name__}")
    if isinstance(columns, str):
        raise TypeError(
            f"{name} must be a list of column names, got the text {columns!r}: write [{columns!r}]"
        )
    names = list(columns)
    if not names:
        raise ValueError(f"{name} must name at least one column, got none")
    for column in names:
        if names.count(column) > 1:
            raise ValueError(f"{name} must name each column once, got {column!r} twice")
        found = int((table.columns == column).sum())
        if found != 1:
            known = ", ".join(map(repr, table.columns))
            raise ValueError(
                f"{name} must name one column of the table ({known}), found {found} for {column!r}"
            )
    if len(table) == 0:
        raise ValueError("table must have at least one row, got 0")
    return names


def column_codes(column: pd.Series) -> tuple[Ints, list[Any]]:
    """Return the values of a column as numbers in the order of first appearance, missing ones as -1.

    Parameters
    ----------
    column : pandas.Series
        Any dtype; categories that do not occur are ignored.

    Returns
    -------
    codes : ndarray of int64, shape (n_rows,)
    values : list
        The values that occur, without missing ones: ``values[codes[i]]`` is row ``i``.

    Raises
    ------
    TypeError
        If a value cannot be compared with others (a list, say).

    Examples
    --------
    >>> codes, values = column_codes(pd.Series(["b", None, "a", "b"]))
    >>> codes, values
    (array([ 0, -1,  1,  0]), ['b', 'a'])
    """
    codes, values = pd.factorize(column, use_na_sentinel=True)
    return codes.astype(np.int64, copy=False), list(values)


def combine_codes(columns: Sequence[tuple[Ints, int]]) -> Ints:
    """Return one number for each of the distinct combinations of several code columns, in no particular order.

    Parameters
    ----------
    columns : sequence of (ndarray of int64, int)
        Codes from 0 to one less than the number beside them.

    Returns
    -------
    ndarray of int64, shape (n_rows,)

    Raises
    ------
    ValueError
        If there is no column.

    Examples
    --------
    >>> combine_codes([(np.array([0, 0, 1]), 2), (np.array([1, 1, 1]), 2)])
    array([0, 0, 1])
    """
    if not columns:
        raise ValueError("columns must hold at least one column of codes, got none")
    combined, base = columns[0]
    for codes, size in columns[1:]:
        if base * size >= 2**62:  # renumber before the product leaves int64
            combined = pd.factorize(combined)[0]
            base = int(combined.max()) + 1
        combined, base = combined * size + codes, base * size
    if base > 8 * combined.size + 1024:
        return pd.factorize(combined)[0].astype(np.int64, copy=False)
    present = np.zeros(base, dtype=bool)  # few possible codes: counting them beats hashing
    present[combined] = True
    return (np.cumsum(present) - 1)[combined]
