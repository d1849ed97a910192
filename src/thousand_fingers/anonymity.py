"""k-anonymity: what a generalised table still gives away, and what the generalising cost.

Every row indistinguishable from k - 1 others is Sweeney's idea [Sweeney2002]. The sensitive values inside a
class leak nevertheless: l-diversity [Machanavajjhala2007] and t-closeness [Li2007] answer that. Two ways to
get there: full-domain generalisation with suppression, searched over the whole lattice [Samarati2001], and
Mondrian, which cuts the table into boxes [LeFevre2006]. Chapter 3 explains all of it.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.tables import (
    Classes,
    checked_columns,
    column_codes,
    combine_codes,
    equivalence_classes,
)
from thousand_fingers.validation import choice, integer, integer_array, real_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SUPPRESSED = "*"
SMALL_ZIP3 = 20_000  # 45 CFR 164.514(b)(2)(i)(B): areas of so many people or fewer
LOSSES = ("ncp", "discernibility", "imprecision")
_BLOCK = 4_000_000  # cells of a cross table that are held at once

# --------------------------------------------------------------------------- names


def pseudonymise(values: Iterable[Any], key: bytes) -> list[str | None]:
    """Replace each value by a keyed pseudonym: equal values get equal pseudonyms.

    The pseudonym is a truncated HMAC-SHA256 with a check part, so that a second pass with the same key
    recognises its own work and changes nothing. Without the key nobody can try out names; a plain hash
    has no such key, and falls to whoever hashes a list of candidates.

    Parameters
    ----------
    values : iterable
        Identifiers, not one text; each is taken as its text, and a missing one stays missing. A whole float is
        taken as the whole number: pandas turns integers into floats as soon as one is missing.
    key : bytes
        The secret, at least 16 bytes.

    Returns
    -------
    list of str or None
        ``p`` and 24 hexadecimal digits each.

    Raises
    ------
    TypeError, ValueError
        If the key is no bytes object or too short, ``values`` is one text, or an identifier is a collection.

    Examples
    --------
    >>> once = pseudonymise(["Ada", "Grace", "Ada"], key=bytes(16))
    >>> once[0] == once[2], once[0] == once[1], pseudonymise(once, key=bytes(16)) == once
    (True, False, True)
    """
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, got {type(key).__name__}")
    if len(key) < 16:
        raise ValueError(f"key must have at least 16 bytes, got {len(key)}")
    if isinstance(values, str | bytes):
        raise TypeError(f"values must be a list of identifiers, got the text {values!r}: write [{values!r}]")

    def digest(purpose: bytes, text: str, digits: int) -> str:
        return hmac.new(key, purpose + text.encode(), hashlib.sha256).hexdigest()[:digits]

    def pseudonym(text: str) -> str:
        if len(text) == 25 and text[0] == "p" and digest(b"check:", text[1:17], 8) == text[17:]:
            return text
        body = digest(b"value:", text, 16)
        return f"p{body}{digest(b'check:', body, 8)}"

    def missing(value: Any) -> bool:
        if not pd.api.types.is_scalar(value):
            raise TypeError(f"values must hold single identifiers, got {value!r}")
        return bool(pd.isna(value))

    return [None if missing(value) else pseudonym(_text(value)) for value in values]


def safe_harbour_zip(zips: Iterable[Any], residents: Mapping[str, int]) -> list[str | None]:
    """Shorten postal codes as the safe harbour of the HIPAA privacy rule prescribes.

    Three digits remain, and ``000`` where the area of these three digits has 20,000 people or fewer, or
    where nobody knows how many it has.

    Parameters
    ----------
    zips : iterable of str
        Five digits each, or nine, with or without a hyphen after the fifth; missing ones stay missing.
    residents : mapping of str to int
        People living in the area of each three-digit prefix.

    Returns
    -------
    list of str or None

    Raises
    ------
    ValueError
        If a code is not of this form; numbers are refused, because they have lost their leading zeros.

    Examples
    --------
    >>> safe_harbour_zip(["98101", "03601-1234"], {"981": 700_000, "036": 15_000})
    ['981', '000']
    """
    shortened: list[str | None] = []
    for code in zips:
        if not isinstance(code, str) and pd.isna(code):
            shortened.append(None)
            continue
        if not (isinstance(code, str) and re.fullmatch(r"[0-9]{5}(-?[0-9]{4})?", code)):
            raise ValueError(f"zips must be texts of five or nine digits, got {code!r}")
        shortened.append(code[:3] if residents.get(code[:3], 0) > SMALL_ZIP3 else "000")
    return shortened


# --------------------------------------------------------------------------- hierarchies


@dataclass(frozen=True)
class Hierarchy:
    """Levels of generalisation for one attribute, from exact to coarse.

    Level 0 is the value itself. Every group of a level is a union of groups of the level below, otherwise
    a coarser table could tell apart what a finer one could not.

    Parameters
    ----------
    leaves : tuple
        The values of the attribute, each once.
    levels : tuple of tuple of str
        For each level above 0, the label of every leaf.

    Raises
    ------
    TypeError, ValueError
        If a label is no text, a level has another length, or is not nested in the one above.

    Examples
    --------
    >>> Hierarchy(("Rome", "Milan", "Lyon"), (("Italy", "Italy", "France"), ("*", "*", "*"))).height
    2
    >>> Hierarchy((1, 2, 3), (("a", "a", "b"), ("c", "d", "d")))
    Traceback (most recent call last):
        ...
    ValueError: levels must be nested: 'a' of level 1 is both 'c' and 'd' at level 2
    """

    leaves: tuple[Any, ...]
    levels: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not self.leaves or len(set(self.leaves)) != len(self.leaves):
            raise ValueError("leaves must be distinct and at least one")
        if pd.isna(pd.Series(self.leaves, dtype=object)).any():
            raise ValueError(
                "leaves must not be missing: a missing value is a cell of its own at every level but the top"
            )
        for height, labels in enumerate(self.levels, start=1):
            if len(labels) != len(self.leaves):
                raise ValueError(
                    f"level {height} must label {len(self.leaves)} leaves, got {len(labels)} labels"
                )
            for leaf, label in zip(self.leaves, labels, strict=True):
                # A missing label would put its leaf into somebody else's group.
                if not isinstance(label, str):
                    raise TypeError(f"level {height} must label {leaf!r} with a text, got {label!r}")
        for height in range(2, len(self.levels) + 1):
            parent: dict[str, str] = {}
            for fine, coarse in zip(self.levels[height - 2], self.levels[height - 1], strict=True):
                if parent.setdefault(fine, coarse) != coarse:
                    raise ValueError(
                        f"levels must be nested: {fine!r} of level {height - 1} is both "
                        f"{parent[fine]!r} and {coarse!r} at level {height}"
                    )

    @property
    def height(self) -> int:
        """Highest level."""
        return len(self.levels)

    @classmethod
    def from_rules(cls, values: Iterable[Any], *rules: Callable[[Any], Any] | str) -> Hierarchy:
        """Build a hierarchy from one rule per level.

        Parameters
        ----------
        values : iterable
            The column, or its domain; repetitions and missing values are ignored.
        *rules : callable or str
            A function from a value to its label, which must not be missing, or one label for all.

        Returns
        -------
        Hierarchy

        Raises
        ------
        TypeError, ValueError
            As for the class, and if a rule has no label for a value.
        """
        leaves = _sorted_values(column_codes(pd.Series(list(values), dtype=object))[1])
        levels = []
        for height, rule in enumerate(rules, start=1):
            labels = [rule if isinstance(rule, str) else rule(leaf) for leaf in leaves]
            for leaf, label in zip(leaves, labels, strict=True):
                if not pd.api.types.is_scalar(label) or pd.isna(label):
                    raise ValueError(
                        f"the rule of level {height} must label every value, got {label!r} for {leaf!r}"
                    )
            levels.append(tuple(map(_text, labels)))
        return cls(tuple(leaves), tuple(levels))

    def groups(self, level: int) -> tuple[Ints, list[str]]:
        """Return the group of each leaf at a level, and the labels of the groups."""
        integer("level", level, at_least=0, at_most=self.height)
        if level == 0:
            return np.arange(len(self.leaves)), [_text(leaf) for leaf in self.leaves]
        codes, labels = column_codes(pd.Series(self.levels[level - 1], dtype=object))
        return codes, labels

    def leaf_codes(self, column: pd.Series) -> Ints:
        """Return the leaf of each row, missing values as -1.

        Raises
        ------
        ValueError
            If a value is no leaf; the message names the column and the value.
        """
        position = {leaf: i for i, leaf in enumerate(self.leaves)}
        codes, values = column_codes(column)
        leaf_of = [position.get(value, -1) for value in values]
        for value, leaf in zip(values, leaf_of, strict=True):
            if leaf < 0:
                hint = "".join(
                    f" (it knows the {type(leaf).__name__} {leaf!r}: convert one of the two)"
                    for leaf in self.leaves
                    if _text(leaf) == _text(value)
                )
                raise ValueError(f"the hierarchy of {column.name!r} does not know the value {value!r}{hint}")
        return np.array([*leaf_of, -1], dtype=np.int64)[codes]


def _hierarchy_codes(hierarchy: Hierarchy, level: int, leaves: Ints) -> tuple[Ints, list[str]]:
    """Return the published cell of each row at a level, and the texts of the cells.

    A missing value is a cell of its own, until the level at which all values are one.
    """
    groups, labels = hierarchy.groups(level)
    if len(labels) > 1 and (leaves < 0).any():
        return np.where(leaves < 0, len(labels), groups[leaves]), [*labels, "missing"]
    return np.where(leaves < 0, 0, groups[leaves]), labels


# --------------------------------------------------------------------------- the report


@dataclass(frozen=True)
class SensitiveReport:
    """What the classes of a table say about one sensitive attribute.

    Parameters
    ----------
    attribute : str
        Its name.
    distinct_l : int
        Least number of different values in a class; 1 is a homogeneous class.
    entropy_l : float
        Least exponential of the entropy in a class; a class with L equally frequent values has L.
    recursive_l : int
        The l for which ``recursive_c`` is stated.
    recursive_c : float
        Recursive (c, l)-diversity holds for every c above this (infinite: for none).
    t : float
        Largest distance between the values of a class and those of the whole table, 0 to 1.
    distance : str
        How ``t`` was measured: ``equal``, ``ordered`` or ``hierarchical``.
    alpha : float
        Largest share of one value in a class.
    beta : float
        Largest relative gain of confidence in a value, (p - q)/q.
    delta_disclosure : float
        Largest absolute log(p/q) over classes *and values*; infinite once a class lacks a value.
    homogeneous_rows : int
        Rows in classes with one value only.
    misclassified_share : float
        Share of released rows that do not have the most frequent value of their class (classification metric).
    class_distinct_l : ndarray of int64, shape (n_classes,)
        Different values in each class, in the order of :attr:`AnonymityReport.classes`.
    class_entropy_l, class_t : ndarray of float64, shape (n_classes,)
        The same for the other two.
    """

    attribute: str
    distinct_l: int
    entropy_l: float
    recursive_l: int
    recursive_c: float
    t: float
    distance: str
    alpha: float
    beta: float
    delta_disclosure: float
    homogeneous_rows: int
    misclassified_share: float
    class_distinct_l: Ints
    class_entropy_l: Floats
    class_t: Floats

    @property
    def smallest_integer_c(self) -> float:
        """Smallest whole c for which recursive (c, l)-diversity holds, infinite if there is none."""
        return math.floor(self.recursive_c) + 1 if math.isfinite(self.recursive_c) else math.inf


@dataclass(frozen=True)
class AnonymityReport:
    """What :func:`anonymity_report` found.

    Parameters
    ----------
    quasi_identifiers : tuple of str
        The columns that the attacker knows.
    n_rows, n_suppressed : int
        Rows of the table, and how many of them are suppressed. The rest is *released*; all that follows is
        about released rows, and classes of them.
    classes : pandas.DataFrame
        One row per class: its values of the quasi-identifiers, and last ``rows`` (``rows in class`` if a
        quasi-identifier has that name).
    k : int
        Rows in the smallest class.
    k_persons : int or None
        Persons in the class with the fewest, where a column says who is who.
    promised_k : int
        The k to which ``average_class_ratio`` and ``discernibility`` refer.
    prosecutor_risk : float
        Largest probability of picking the right row of somebody known to be in the table, 1/k.
    average_risk : float
        Mean of that probability over rows (not over classes): classes per released row.
    journalist_risk : float or None
        The largest where the attacker only knows that the target is in a given population.
    marketer_risk : float
        Expected share of rows that are matched rightly when all are; in the population, if there is one.
    unique_rows : int
        Rows alone in their class.
    discernibility : int
        DM: for each row the size of its class; for a suppressed row, one in a class below the promised k, or a
        deleted one, the size of the whole table.
    average_class_ratio : float
        C_avg: mean class size divided by the promised k.
    ncp : float or None
        Normalised certainty penalty, 0 (exact) to 1 (nothing left), where the original is known.
    sensitive : mapping of str to SensitiveReport
        One for each sensitive attribute.
    """

    quasi_identifiers: tuple[str, ...]
    n_rows: int
    n_suppressed: int
    classes: pd.DataFrame
    k: int
    k_persons: int | None
    promised_k: int
    prosecutor_risk: float
    average_risk: float
    journalist_risk: float | None
    marketer_risk: float
    unique_rows: int
    discernibility: int
    average_class_ratio: float
    ncp: float | None
    sensitive: Mapping[str, SensitiveReport]

    @property
    def _sizes(self) -> Ints:
        return self.classes.iloc[:, -1].to_numpy(dtype=np.int64)

    @property
    def class_sizes(self) -> pd.DataFrame:
        """How many classes there are of each size, and how many rows lie in them."""
        sizes, classes = np.unique(self._sizes, return_counts=True)
        return pd.DataFrame({"classes": classes, "rows": sizes * classes}, index=pd.Index(sizes, name="size"))

    def rows_below(self, k: int) -> int:
        """Return how many released *rows* lie in classes of fewer than k."""
        return int(self._sizes[self._sizes < integer("k", k, at_least=1)].sum())

    def table(self) -> pd.Series:
        """Return the whole report as one column, for the eye."""
        lines: dict[str, Any] = {
            "rows": self.n_rows,
            "suppressed rows": self.n_suppressed,
            "classes": len(self.classes),
            "k (rows)": self.k,
            "k (persons)": self.k_persons,
            "unique rows": self.unique_rows,
            "prosecutor risk": self.prosecutor_risk,
            "average risk": self.average_risk,
            "journalist risk": self.journalist_risk,
            "marketer risk": self.marketer_risk,
            "discernibility DM": self.discernibility,
            "class size ratio C_avg": self.average_class_ratio,
            "certainty penalty NCP": self.ncp,
        }
        for name, found in self.sensitive.items():
            lines[f"{name}: distinct l"] = found.distinct_l
            lines[f"{name}: entropy l"] = found.entropy_l
            lines[f"{name}: recursive c at l = {found.recursive_l}"] = found.smallest_integer_c
            lines[f"{name}: t ({found.distance})"] = found.t
            lines[f"{name}: rows in homogeneous classes"] = found.homogeneous_rows
        shown = {key: _number_text(value) for key, value in lines.items() if value is not None}
        return pd.Series(shown, name="report")


def anonymity_report(
    table: pd.DataFrame,
    quasi_identifiers: Sequence[str],
    sensitive: Sequence[str] = (),
    *,
    k: int | None = None,
    persons: str | None = None,
    population: pd.DataFrame | None = None,
    original: pd.DataFrame | None = None,
    distances: Mapping[str, str | Hierarchy] | None = None,
    recursive_l: int | None = None,
    missing: str = "own",
    suppressed: str | ArrayLike | None = SUPPRESSED,
    deleted_rows: int = 0,
) -> AnonymityReport:
    """Measure a table: k, l, t, the risks of re-identification, and the loss.

    Nothing depends on the index, the dtypes, categories that do not occur, or the order of the rows.

    Parameters
    ----------
    table : pandas.DataFrame
        The table as it is, or would be, released; one row per record.
    quasi_identifiers : sequence of str
        What an attacker may know about a person.
    sensitive : sequence of str, optional
        What an attacker wants to know. A missing value counts as a value.
    k : int, optional
        The k that was promised, for DM and C_avg; the measured one by default.
    persons : str, optional
        Column that says whose row it is, where a person may have several.
    population : pandas.DataFrame, optional
        A table of everybody who could be in ``table``, with the same quasi-identifiers, equally coarse.
    original : pandas.DataFrame, optional
        The same rows before generalisation, in the same order, for NCP.
    distances : mapping of str to {"equal", "ordered"} or Hierarchy, optional
        For t-closeness, by sensitive attribute; ``equal`` by default. ``ordered`` needs numbers, dates or an
        ordered categorical without missing values.
    recursive_l : int, optional
        The l of recursive diversity, at least 1; the measured distinct l by default.
    missing : {"own", "refuse"}, default "own"
        Missing quasi-identifiers; see :func:`~thousand_fingers.tables.equivalence_classes`. For the reading
        in which a missing value could be anything, see :func:`match_counts`.
    suppressed : str, array-like of bool or None, default "*"
        Which rows are suppressed: those whose every quasi-identifier is this text, those marked, or none. They
        form no class and enter no distribution; DM and NCP charge them in full.
    deleted_rows : int, default 0
        Rows that were removed before, which DM charges too.

    Returns
    -------
    AnonymityReport

    Raises
    ------
    TypeError, ValueError
        If a column does not exist, no row is released, or an option does not fit the table.

    References
    ----------
    [Sweeney2002], [Machanavajjhala2007], [Li2007]

    Examples
    --------
    >>> ward = pd.DataFrame({"age": ["3*"] * 4, "illness": ["flu", "flu", "ulcer", "flu"]})
    >>> report = anonymity_report(ward, ["age"], ["illness"])
    >>> report.k, report.sensitive["illness"].distinct_l, report.prosecutor_risk
    (4, 2, 0.25)
    """
    names = checked_columns(table, "quasi_identifiers", quasi_identifiers)
    if isinstance(sensitive, str) or len(sensitive):
        both = set(names) & set(checked_columns(table, "sensitive", sensitive))
        if both:
            raise ValueError(f"sensitive must not repeat a quasi-identifier, got {min(both)!r}")
    integer("deleted_rows", deleted_rows, at_least=0)
    hidden = _suppressed_rows(table, names, suppressed)
    released = table.loc[~hidden] if hidden.any() else table
    if released.empty:
        raise ValueError(f"table must have a released row, but all {len(table)} are suppressed")
    found = equivalence_classes(released, names, missing=missing)
    promised = found.k if k is None else integer("k", k, at_least=1)
    n, m = len(released), found.n_classes
    in_population = None if population is None else _population_sizes(released, found, population, names)
    charged = len(table) - n + deleted_rows + int(found.sizes[found.sizes < promised].sum())
    kept = found.sizes[found.sizes >= promised].astype(object)  # Python ints cannot overflow
    chosen = dict(distances or {})
    for name in chosen:
        choice("distances", name, tuple(sensitive))
    return AnonymityReport(
        quasi_identifiers=tuple(names),
        n_rows=len(table),
        n_suppressed=int(hidden.sum()),
        classes=_class_table(released, found, names),
        k=found.k,
        k_persons=None if persons is None else _fewest_persons(released, found, persons),
        promised_k=promised,
        prosecutor_risk=1 / found.k,
        average_risk=m / n,
        journalist_risk=None if in_population is None else 1 / int(in_population.min()),
        marketer_risk=m / n if in_population is None else float((found.sizes / in_population).sum() / n),
        unique_rows=found.n_unique,
        discernibility=int((kept**2).sum()) + charged * (len(table) + deleted_rows),
        average_class_ratio=n / m / promised,
        ncp=None if original is None else certainty_penalty(original, table, names, suppressed=hidden),
        sensitive={
            name: _sensitive_report(released[name], found, chosen.get(name, "equal"), recursive_l)
            for name in sensitive
        },
    )


def match_counts(table: pd.DataFrame, columns: Sequence[str], *, missing: str = "own") -> Ints:
    """Count for each row how many rows match it, itself included, under a stated reading of missing values.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per record.
    columns : sequence of str
        The columns that have to match.
    missing : {"own", "wildcard"}, default "own"
        A missing value matches missing ones only, or every value. With wildcards matching is not transitive:
        there are no classes, and their smallest count is the k of tools that suppress single cells.

    Returns
    -------
    ndarray of int64, shape (n_rows,)

    Raises
    ------
    TypeError, ValueError
        As for :func:`~thousand_fingers.tables.equivalence_classes`.

    Examples
    --------
    >>> people = pd.DataFrame({"status": ["single", "single", None]})
    >>> match_counts(people, ["status"]), match_counts(people, ["status"], missing="wildcard")
    (array([2, 2, 1]), array([3, 3, 3]))
    """
    names = checked_columns(table, "columns", columns)
    if choice("missing", missing, ("own", "wildcard")) == "own":
        return equivalence_classes(table, names).row_sizes
    coded = [column_codes(table[name]) for name in names]
    known = np.column_stack([codes >= 0 for codes, _ in coded])
    patterns, pattern_of = np.unique(known, axis=0, return_inverse=True)
    rows_of = [np.flatnonzero(pattern_of == i) for i in range(len(patterns))]
    counts = np.zeros(len(table), dtype=np.int64)
    for mine, others in itertools.product(range(len(patterns)), repeat=2):
        rows = np.concatenate([rows_of[mine], rows_of[others]])
        shared = np.flatnonzero(patterns[mine] & patterns[others])
        labels = np.zeros(rows.size, dtype=np.int64)
        if shared.size:
            labels = combine_codes([(coded[i][0][rows], len(coded[i][1])) for i in shared])
        n_mine = rows_of[mine].size
        available = np.bincount(labels[n_mine:], minlength=int(labels.max()) + 1)
        counts[rows_of[mine]] += available[labels[:n_mine]]
    return counts


def combinations_k(table: pd.DataFrame, columns: Sequence[str], size: int) -> pd.Series:
    """Return k for every combination of ``size`` columns: what must hold if each of them is promised.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per record.
    columns : sequence of str
        All quasi-identifiers.
    size : int
        Columns per combination, from 1 to the number of columns.

    Returns
    -------
    pandas.Series
        k by combination, the smallest first.

    Raises
    ------
    TypeError, ValueError
        As for :func:`~thousand_fingers.tables.equivalence_classes`.

    Examples
    --------
    >>> people = pd.DataFrame({"age": [1, 1, 2, 2], "sex": list("fmfm")})
    >>> combinations_k(people, ["age", "sex"], 1).to_dict()
    {('age',): 2, ('sex',): 2}
    """
    names = checked_columns(table, "columns", columns)
    integer("size", size, at_least=1, at_most=len(names))
    found = {chosen: equivalence_classes(table, chosen).k for chosen in itertools.combinations(names, size)}
    smallest_first = sorted(found, key=found.__getitem__)
    index = pd.Index(smallest_first, tupleize_cols=False, name="columns")
    return pd.Series([found[chosen] for chosen in smallest_first], index=index, name="k")


def certainty_penalty(
    original: pd.DataFrame,
    published: pd.DataFrame,
    quasi_identifiers: Sequence[str],
    *,
    suppressed: ArrayLike | None = None,
) -> float:
    """Return the normalised certainty penalty: how much of its domain a published cell covers, on average.

    A published value covers the original values of all rows that carry it. For numbers, dates and ordered
    categories the penalty of a cell is the range of these divided by the range of the column; for others the
    number of different ones divided by the number in the column, or 0 if it is one. A cell that covers missing
    and other values costs 1, and so does each cell of a suppressed row.

    Parameters
    ----------
    original, published : pandas.DataFrame
        The same rows in the same order, before and after.
    quasi_identifiers : sequence of str
        The columns that were generalised.
    suppressed : array-like of bool, optional
        Marks of suppressed rows.

    Returns
    -------
    float
        The mean over rows and columns, 0 to 1.

    Raises
    ------
    TypeError, ValueError
        If the tables do not have the same rows or lack a column.

    References
    ----------
    [Xu2006]

    Examples
    --------
    >>> before = pd.DataFrame({"age": [20, 25, 30, 60]})
    >>> after = pd.DataFrame({"age": ["20-30", "20-30", "20-30", "60"]})
    >>> certainty_penalty(before, after, ["age"])
    0.1875
    """
    names = checked_columns(original, "quasi_identifiers", quasi_identifiers)
    checked_columns(published, "quasi_identifiers", names)
    if len(original) != len(published):
        raise ValueError(
            f"original must have the {len(published)} rows of the other table, got {len(original)}"
        )
    hidden = _row_marks("suppressed", suppressed, len(published))
    attributes = [_attribute(original[name]) for name in names]
    cells = [column_codes(published[name]) for name in names]
    return _penalty(attributes, [np.where(codes < 0, len(texts), codes) for codes, texts in cells], hidden)


def _penalty(attributes: list[_Attribute], cells: list[Ints], hidden: Bools) -> float:
    """Return the mean penalty over all rows and columns."""
    total = hidden.sum() * float(len(attributes))
    for attribute, column in zip(attributes, cells, strict=True):
        kept, ranks = (
            (column[~hidden], attribute.ranks[~hidden]) if hidden.any() else (column, attribute.ranks)
        )
        total += _cell_penalties(attribute, kept, ranks)[kept].sum()
    return float(total / (hidden.size * len(attributes)))


def _suppressed_rows(table: pd.DataFrame, names: list[str], suppressed: str | ArrayLike | None) -> Bools:
    if not isinstance(suppressed, str):
        return _row_marks("suppressed", suppressed, len(table))
    hidden = np.ones(len(table), dtype=bool)
    for name in names:
        codes, values = column_codes(table[name])
        same = [i for i, value in enumerate(values) if isinstance(value, str) and value == suppressed]
        hidden &= (codes == same[0]) if same else False
    return hidden


def _row_marks(name: str, marks: ArrayLike | None, n_rows: int) -> Bools:
    if marks is None:
        return np.zeros(n_rows, dtype=bool)
    array = np.asarray(marks)
    if array.dtype != np.bool_ or array.shape != (n_rows,):
        raise ValueError(
            f"{name} must be {n_rows} truth values, got shape {array.shape} and dtype {array.dtype}"
        )
    return array


def _class_table(released: pd.DataFrame, found: Classes, names: list[str]) -> pd.DataFrame:
    first = np.empty(found.n_classes, dtype=np.int64)
    first[found.labels[::-1]] = np.arange(len(released))[::-1]
    classes = released.iloc[first][names].reset_index(drop=True)
    name = "rows" if "rows" not in names else "rows in class"
    while name in names:
        name += "_"
    return classes.assign(**{name: found.sizes})


def _fewest_persons(released: pd.DataFrame, found: Classes, persons: str) -> int:
    checked_columns(released, "persons", [persons])
    codes, values = column_codes(released[persons])
    if (codes < 0).any():
        raise ValueError(
            f"column {persons!r} must say for every row whose it is, {int((codes < 0).sum())} do not"
        )
    pairs = np.unique(found.labels * len(values) + codes)
    return int(np.bincount(pairs // len(values)).min())


def _population_sizes(
    released: pd.DataFrame, found: Classes, population: pd.DataFrame, names: list[str]
) -> Ints:
    """Return the size in the population of each class of the table."""
    checked_columns(population, "quasi_identifiers", names)
    both = pd.concat([part[names].astype(object) for part in (released, population)], ignore_index=True)
    together = equivalence_classes(both, names).labels
    n = len(released)
    available = np.bincount(together[n:], minlength=int(together.max()) + 1)
    sizes = np.empty(found.n_classes, dtype=np.int64)
    sizes[found.labels] = available[together[:n]]
    if (sizes < found.sizes).any():
        short = int((sizes < found.sizes).sum())
        raise ValueError(f"population must contain the table, but {short} classes are smaller there")
    return sizes


def _sensitive_report(
    column: pd.Series, found: Classes, distance: str | Hierarchy, recursive_l: int | None
) -> SensitiveReport:
    codes, values, ground = _sensitive_codes(column, distance)
    whole = np.bincount(codes, minlength=len(values)) / codes.size
    parts: list[tuple[Any, ...]] = []
    largest = []
    for counts in _cross_table(found.labels, codes, found.n_classes, len(values)):
        sizes = counts.sum(axis=1)
        shares = counts / sizes[:, None]
        with np.errstate(divide="ignore"):
            gain = np.log(shares / whole)
        plogp = np.multiply(shares, np.log(shares, where=shares > 0, out=np.zeros_like(shares)))
        descending = -np.sort(-counts, axis=1)
        largest.append(descending)
        parts.append(
            (
                (counts > 0).sum(axis=1),
                np.exp(-plogp.sum(axis=1)),
                ground(shares - whole),
                (shares / whole - 1).max(axis=1),
                np.abs(gain).max(axis=1),
                descending[:, 0],
            )
        )
    distinct, entropy, t, beta, disclosure, most = (np.concatenate(p) for p in zip(*parts, strict=True))
    nearest = np.rint(entropy)
    entropy = np.where(np.abs(entropy - nearest) < 1e-9, nearest, entropy)  # L equal values have exactly L
    chosen = int(distinct.min()) if recursive_l is None else integer("recursive_l", recursive_l, at_least=1)
    return SensitiveReport(
        attribute=str(column.name),
        distinct_l=int(distinct.min()),
        entropy_l=float(entropy.min()),
        recursive_l=chosen,
        recursive_c=max(_recursive_c(block, chosen) for block in largest),
        t=float(t.max()),
        distance=distance if isinstance(distance, str) else "hierarchical",
        alpha=float((most / found.sizes).max()),
        beta=float(beta.max()),
        delta_disclosure=float(disclosure.max()),
        homogeneous_rows=int(found.sizes[distinct == 1].sum()),
        misclassified_share=float(1 - most.sum() / codes.size),
        class_distinct_l=distinct,
        class_entropy_l=entropy,
        class_t=t,
    )


def _recursive_c(descending: Ints, l: int) -> float:  # noqa: E741 - the letter of the paper
    tail = descending[:, l - 1 :].sum(axis=1)
    return math.inf if (tail == 0).any() else float((descending[:, 0] / tail).max())


def _sensitive_codes(
    column: pd.Series, distance: str | Hierarchy
) -> tuple[Ints, list[Any], Callable[[Floats], Floats]]:
    """Return codes, values, and the distance between two distributions as a function of their difference."""
    if isinstance(distance, Hierarchy):
        codes = distance.leaf_codes(column)
        if (codes < 0).any():
            raise ValueError(f"the hierarchy of {column.name!r} has no place for missing values")
        used = np.unique(codes)
        levels = [distance.groups(level)[0][used] for level in range(distance.height)]
        if np.unique(distance.groups(distance.height)[0][used]).size > 1:
            raise ValueError(f"the hierarchy of {column.name!r} must end in a single group")

        def along_tree(difference: Floats) -> Floats:
            # Each edge of the tree is half a level long and carries what its subtree has too much.
            moved = np.zeros(len(difference))
            for groups in levels:
                onto = (groups[:, None] == np.unique(groups)).astype(np.float64)
                moved += np.abs(difference @ onto).sum(axis=1)
            return moved / (2 * max(len(levels), 1))

        return np.searchsorted(used, codes), used.tolist(), along_tree
    if choice("distances", distance, ("equal", "ordered")) == "equal":
        codes, values = column_codes(column)
        if (codes < 0).any():
            codes, values = np.where(codes < 0, len(values), codes), [*values, None]
        return codes, values, lambda difference: np.abs(difference).sum(axis=1) / 2
    attribute = _attribute(column)
    if attribute.kind == "nominal" or attribute.has_missing:
        raise ValueError(
            f"distances: {column.name!r} has no order (numbers, dates or an ordered categorical without missing "
            "values have one)"
        )
    steps = max(len(attribute.values) - 1, 1)
    return (
        attribute.ranks,
        attribute.values,
        lambda difference: np.abs(np.cumsum(difference, axis=1)[:, :-1]).sum(axis=1) / steps,
    )


def _cross_table(labels: Ints, codes: Ints, n_classes: int, n_values: int) -> Iterator[Ints]:
    """Yield the counts of each value in each class, some classes at a time."""
    order = np.argsort(labels, kind="stable")
    labels, codes = labels[order], codes[order]
    step = max(1, _BLOCK // n_values)
    for start in range(0, n_classes, step):
        stop = min(start + step, n_classes)
        rows = slice(*np.searchsorted(labels, [start, stop]))
        cells = (labels[rows] - start) * n_values + codes[rows]
        yield np.bincount(cells, minlength=(stop - start) * n_values).reshape(stop - start, n_values)


# --------------------------------------------------------------------------- attributes


@dataclass(frozen=True)
class _Attribute:
    """A column as ranks of its values, with their places between 0 and 1.

    ``kind`` is numeric, ordered or nominal. Missing rows have the rank after the last value.
    """

    kind: str
    values: list[Any]
    ranks: Ints
    places: Floats

    @property
    def has_missing(self) -> bool:
        return bool((self.ranks == len(self.values)).any())

    def spans(self, low: Ints, high: Ints) -> Floats:
        """Return the share of the range between two ranks; 1 if missing and other values are mixed."""
        places = np.append(self.places, self.places[-1] if self.places.size else 0.0)
        mixed = (high == len(self.values)) & (low < high)
        return np.where(mixed, 1.0, places[high] - places[low])


def _attribute(column: pd.Series) -> _Attribute:
    codes, values = column_codes(column)
    ordered = isinstance(column.dtype, pd.CategoricalDtype) and column.cat.ordered
    if ordered:
        position = {value: i for i, value in enumerate(column.cat.categories)}
        order = sorted(range(len(values)), key=lambda i: position[values[i]])
    else:
        order = _sorting(values)
    rank_of = np.empty(len(values) + 1, dtype=np.int64)
    rank_of[order] = np.arange(len(values))
    rank_of[-1] = len(values)
    values = [values[i] for i in order]
    numbers = None if ordered else _as_numbers(values)
    if numbers is not None:
        if not np.isfinite(numbers).all():
            raise ValueError(f"column {column.name!r} must be finite")
        width = numbers[-1] - numbers[0] if len(values) else 0.0
        places = (numbers - numbers[0]) / width if width > 0 else np.zeros(len(values))
    else:
        places = np.arange(len(values)) / max(len(values) - 1, 1)
    kind = "ordered" if ordered else "numeric" if numbers is not None else "nominal"
    return _Attribute(kind, values, rank_of[codes], places)


def _as_numbers(values: list[Any]) -> Floats | None:
    """Return numbers and dates, sorted, as floats from the lowest; None for anything else (truth values too).

    The lowest is taken away before the conversion, where whole numbers are exact: nanoseconds and long numbers
    of accounts have more digits than a float.
    """
    if not values or any(isinstance(value, bool | np.bool_ | str) for value in values):
        return None
    try:
        if all(isinstance(value, int | np.integer) for value in values):
            whole = np.array([int(value) for value in values])  # of objects, if int64 is too short
        elif all(isinstance(value, date | np.datetime64) for value in values):  # a datetime is a date, too
            whole = pd.DatetimeIndex(values).asi8
        elif all(isinstance(value, pd.Period) for value in values):
            whole = pd.PeriodIndex(values).asi8
        elif all(isinstance(value, timedelta | np.timedelta64) for value in values):
            whole = pd.TimedeltaIndex(values).asi8
        else:
            return np.array([float(value) for value in values])
    except (TypeError, ValueError):
        return None
    numbers = (whole - whole[0]).astype(np.float64)
    return None if (np.diff(numbers) < 0).any() else numbers  # of several types, in the order of their texts


def _sorting(values: list[Any]) -> list[int]:
    """Return the order of mixed values: by themselves if they compare, by their text otherwise."""
    try:
        return sorted(range(len(values)), key=values.__getitem__)
    except TypeError:
        return sorted(range(len(values)), key=lambda i: (type(values[i]).__name__, str(values[i])))


def _sorted_values(values: list[Any]) -> list[Any]:
    return [values[i] for i in _sorting(values)]


def _text(value: Any) -> str:
    """Return a value as it is published: whole floats without a point, midnights without a time."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, datetime | np.datetime64):  # a Timestamp is a datetime
        moment = pd.Timestamp(value)
        return str(moment.date()) if moment == moment.normalize() else str(moment)
    return str(value)


def _number_text(value: float | int) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _cell_penalties(attribute: _Attribute, cells: Ints, ranks: Ints) -> Floats:
    """Return the penalty of each published cell from the original values that it covers."""
    n_cells = int(cells.max()) + 1 if cells.size else 0
    n_values = len(attribute.values) + 1
    if attribute.kind == "nominal":
        covered = np.bincount(pd.unique(cells * n_values + ranks) // n_values, minlength=n_cells)
        domain = len(attribute.values) + attribute.has_missing
        return np.where(covered > 1, covered / domain, 0.0)
    low, high = _extremes(cells, ranks, n_cells)
    return attribute.spans(np.minimum(low, high), high)  # low > high: only suppressed rows carry the cell


def _extremes(cells: Ints, ranks: Ints, n_cells: int) -> tuple[Ints, Ints]:
    """Return the lowest and the highest rank in each cell."""
    low, high = np.full(n_cells, np.iinfo(np.int64).max), np.zeros(n_cells, dtype=np.int64)
    np.minimum.at(low, cells, ranks)
    np.maximum.at(high, cells, ranks)
    return low, high


# --------------------------------------------------------------------------- releases


@dataclass(frozen=True)
class Release:
    """A generalised table that keeps the promise k.

    Parameters
    ----------
    table : pandas.DataFrame
        All rows in their order, with the quasi-identifiers generalised and those of suppressed rows ``*``.
    quasi_identifiers : tuple of str
        The generalised columns.
    k : int
        The promise: counted again over ``table``, every released row looks like k - 1 others at least.
    labels : ndarray of int64, shape (n_rows,)
        Class of each row, -1 where it is suppressed.
    ncp : float
        Normalised certainty penalty, 0 to 1.
    """

    table: pd.DataFrame
    quasi_identifiers: tuple[str, ...]
    k: int
    labels: Ints
    ncp: float

    @property
    def suppressed(self) -> Bools:
        """Marks of the suppressed rows."""
        return self.labels < 0

    @property
    def sizes(self) -> Ints:
        """Rows in each class."""
        return np.bincount(self.labels[self.labels >= 0])

    def report(self, sensitive: Sequence[str] = (), **options: Any) -> AnonymityReport:
        """Measure the release with :func:`anonymity_report`."""
        settings = {"k": self.k, "suppressed": self.suppressed, **options}
        return anonymity_report(self.table, self.quasi_identifiers, sensitive, **settings)


def _released(
    table: pd.DataFrame,
    attributes: Mapping[str, _Attribute],
    columns: Mapping[str, tuple[Ints, list[str]]],
    labels: Ints,
    k: int,
) -> Release:
    """Publish cells given as codes and texts, and insist on what was promised."""
    names, hidden = list(columns), labels < 0
    published = table.copy(deep=False)
    shown = {}
    for name, (cells, texts) in columns.items():
        # Two cells of one text are one cell to whoever reads the table.
        own, distinct = column_codes(pd.Series(texts, dtype=object))
        shown[name] = own[cells]
        marked = shown[name]
        if hidden.any():
            if SUPPRESSED not in distinct:
                distinct = [*distinct, SUPPRESSED]
            marked = np.where(hidden, distinct.index(SUPPRESSED), marked)
        published[name] = pd.Categorical.from_codes(marked, pd.Index(distinct, dtype=object))
    cost = _penalty([attributes[name] for name in names], list(shown.values()), hidden)
    release = Release(published, tuple(names), k, labels, cost)
    if len(published) != len(table):
        raise AssertionError(f"{len(table)} rows went in, {len(published)} came out")
    if not hidden.all() and equivalence_classes(published.loc[~hidden], names).k < k:
        raise AssertionError(f"a released row has fewer than {k - 1} others like it")
    return release


# --------------------------------------------------------------------------- the lattice


@dataclass(frozen=True)
class LatticeSearch:
    """Every full-domain generalisation of a table, and the best.

    Parameters
    ----------
    nodes : pandas.DataFrame
        One row per node; the index holds the level of each quasi-identifier. Columns: ``height`` (sum of the
        levels), ``suppressed`` (rows that have to go), ``classes`` and ``k`` of the rest, ``distinct_l`` and ``t``
        where a sensitive attribute was named, ``discernibility``, ``precision``, ``ncp``, ``feasible``, and
        ``minimal`` (feasible, and no feasible node below).
    best : dict of str to int
        Levels of the feasible node with the least loss; among equals the lowest, then the first.
    release : Release
        The table at that node.
    """

    nodes: pd.DataFrame
    best: dict[str, int]
    release: Release


def search_lattice(
    table: pd.DataFrame,
    quasi_identifiers: Sequence[str],
    hierarchies: Mapping[str, Hierarchy],
    k: int,
    *,
    suppression_limit: float = 0.0,
    sensitive: str | None = None,
    l: int = 1,  # noqa: E741 - the letter of the paper
    t: float = 1.0,
    distance: str | Hierarchy = "equal",
    loss: str = "ncp",
) -> LatticeSearch:
    """Look at every combination of levels; suppress what stays in small classes; keep the cheapest.

    Nothing is pruned: the rows are counted once, and each node only adds up the counts of the rows that
    differ, so a lattice of a hundred nodes costs less than a clever search.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per person.
    quasi_identifiers : sequence of str
        Columns to generalise.
    hierarchies : mapping of str to Hierarchy
        One for each of them.
    k : int
        Classes smaller than this are suppressed.
    suppression_limit : float, default 0.0
        Largest share of rows that may be suppressed, 0 to 1.
    sensitive : str, optional
        Attribute for ``l`` and ``t``.
    l : int, default 1
        Classes with fewer different sensitive values than this are suppressed too.
    t : float, default 1.0
        A node is feasible only if no remaining class is further than this from all remaining rows.
    distance : {"equal", "ordered"} or Hierarchy, default "equal"
        For ``t``, as in :func:`anonymity_report`.
    loss : {"ncp", "discernibility", "imprecision"}, default "ncp"
        What the best node has least of; imprecision is the mean share of the height climbed.

    Returns
    -------
    LatticeSearch

    Raises
    ------
    TypeError, ValueError
        If a hierarchy is missing or does not know a value, if k is larger than the table, or if no node
        keeps the promises.

    References
    ----------
    [Samarati2001], [Sweeney2002]

    Examples
    --------
    >>> people = pd.DataFrame({"age": [21, 24, 38, 39]})
    >>> ages = Hierarchy.from_rules(people["age"], lambda a: f"{a // 10}*", "*")
    >>> found = search_lattice(people, ["age"], {"age": ages}, k=2)
    >>> found.best, found.release.table["age"].tolist()
    ({'age': 1}, ['2*', '2*', '3*', '3*'])
    """
    names = checked_columns(table, "quasi_identifiers", quasi_identifiers)
    _check_k(k, len(table))
    limit = real_number("suppression_limit", suppression_limit, at_least=0, at_most=1) * len(table)
    limit = math.floor(limit + 1e-6)  # 0.29 times a hundred rows are 29, not 28.999…
    integer("l", l, at_least=1)
    real_number("t", t, at_least=0, at_most=1)
    choice("loss", loss, LOSSES)
    if sensitive is None and (l > 1 or t < 1):
        raise ValueError("l and t need a sensitive attribute, got none")
    if sensitive in names:
        raise ValueError(f"sensitive must not repeat a quasi-identifier, got {sensitive!r}")
    chosen = [_hierarchy_of(hierarchies, name) for name in names]
    leaves = [h.leaf_codes(table[name]) for h, name in zip(chosen, names, strict=True)]
    rows = combine_codes([(c + 1, len(h.leaves) + 1) for h, c in zip(chosen, leaves, strict=True)])
    first = np.empty(int(rows.max()) + 1, dtype=np.int64)
    first[rows[::-1]] = np.arange(rows.size)[::-1]
    weight = np.bincount(rows)
    secret = None if sensitive is None else _Secret.of(table, sensitive, distance, rows)
    cells = [
        [_hierarchy_codes(h, level, c) for level in range(h.height + 1)]
        for h, c in zip(chosen, leaves, strict=True)
    ]
    attributes = {name: _attribute(table[name]) for name in names}
    penalties = [
        [_cell_penalties(attributes[name], at[0], attributes[name].ranks)[at[0]][first] for at in own]
        for name, own in zip(names, cells, strict=True)
    ]
    tuples = [[(at[0][first], len(at[1])) for at in own] for own in cells]
    found = []
    all_levels = list(itertools.product(*(range(h.height + 1) for h in chosen)))
    for levels in all_levels:
        labels = combine_codes([own[level] for own, level in zip(tuples, levels, strict=True)])
        cost = np.mean([own[level] for own, level in zip(penalties, levels, strict=True)], axis=0)
        climbed = [level / max(h.height, 1) for h, level in zip(chosen, levels, strict=True)]
        found.append(_node(labels, weight, cost, float(np.mean(climbed)), k, l, secret))
    nodes = pd.DataFrame(found, index=pd.MultiIndex.from_tuples(all_levels, names=names))
    nodes.insert(0, "height", [sum(levels) for levels in all_levels])
    fine = nodes["suppressed"] <= limit
    if secret is not None:
        fine &= ~(nodes["t"] > t + 1e-12)  # a node without rows has no t; a sum of shares has rounding in it
    nodes["feasible"] = fine
    nodes["minimal"] = _minimal(all_levels, fine.to_numpy())
    if not fine.any():
        raise ValueError(
            f"no generalisation keeps the promises: the least suppression is {nodes['suppressed'].min()} rows"
        )
    worst = 1 - nodes["precision"] if loss == "imprecision" else nodes[loss]
    ranking = nodes.assign(loss=worst, order=np.arange(len(nodes)))[fine]
    best = all_levels[int(ranking.sort_values(["loss", "height", "order"])["order"].iloc[0])]
    labels = combine_codes([own[level] for own, level in zip(tuples, best, strict=True)])
    kept = _kept(labels, weight, k, l, secret)
    published = {name: own[level] for name, own, level in zip(names, cells, best, strict=True)}
    numbers = np.where(kept, np.cumsum(kept) - 1, -1)
    release = _released(table, attributes, published, numbers[labels][rows], k)
    return LatticeSearch(nodes, dict(zip(names, best, strict=True)), release)


@dataclass(frozen=True)
class _Secret:
    """The sensitive values of the distinct rows: pairs with their numbers, and the distance for t."""

    row: Ints
    code: Ints
    count: Ints
    n_values: int
    ground: Callable[[Floats], Floats]

    @classmethod
    def of(cls, table: pd.DataFrame, sensitive: str, distance: str | Hierarchy, rows: Ints) -> _Secret:
        checked_columns(table, "sensitive", [sensitive])
        codes, values, ground = _sensitive_codes(table[sensitive], distance)
        pairs, count = np.unique(rows * len(values) + codes, return_counts=True)
        return cls(pairs // len(values), pairs % len(values), count, len(values), ground)

    def counts(self, labels: Ints) -> Floats:
        """Return the cross table of classes and values."""
        size = (int(labels.max()) + 1) * self.n_values
        cells = labels[self.row] * self.n_values + self.code
        counts = np.bincount(cells, weights=self.count, minlength=size)
        return counts.astype(np.float64).reshape(-1, self.n_values)


def _kept(labels: Ints, weight: Ints, k: int, l: int, secret: _Secret | None) -> Bools:  # noqa: E741
    """Say of each class whether it is released."""
    kept = np.bincount(labels, weights=weight) >= k
    return kept if secret is None else kept & ((secret.counts(labels) > 0).sum(axis=1) >= l)


def _node(
    labels: Ints,
    weight: Ints,
    cost: Floats,
    climbed: float,
    k: int,
    l: int,  # noqa: E741
    secret: _Secret | None,
) -> dict[str, Any]:
    sizes = np.bincount(labels, weights=weight).astype(np.int64)
    kept = _kept(labels, weight, k, l, secret)
    n, suppressed = int(weight.sum()), int(sizes[~kept].sum())
    paid = float((cost * weight)[kept[labels]].sum())
    node: dict[str, Any] = {
        "suppressed": suppressed,
        "classes": int(kept.sum()),
        "k": int(sizes[kept].min()) if kept.any() else 0,
    }
    if secret is not None:
        counts = secret.counts(labels)[kept]
        node["distinct_l"] = int((counts > 0).sum(axis=1).min()) if kept.any() else 0
        whole = counts.sum(axis=0) / max(counts.sum(), 1)
        apart = secret.ground(counts / counts.sum(axis=1, keepdims=True) - whole)
        node["t"] = float(apart.max()) if kept.any() else math.nan
    return node | {
        "discernibility": int((sizes[kept].astype(object) ** 2).sum()) + suppressed * n,
        "precision": 1 - climbed,
        "ncp": (paid + suppressed) / n,
    }


def _minimal(all_levels: list[tuple[int, ...]], feasible: Bools) -> list[bool]:
    fine = {levels for levels, is_fine in zip(all_levels, feasible, strict=True) if is_fine}
    covered: set[tuple[int, ...]] = set()  # nodes with a feasible one strictly below
    for levels in all_levels:  # in an order in which whatever is below comes first
        below = [(*levels[:i], level - 1, *levels[i + 1 :]) for i, level in enumerate(levels) if level > 0]
        if any(node in fine or node in covered for node in below):
            covered.add(levels)
    return [levels in fine and levels not in covered for levels in all_levels]


def _hierarchy_of(hierarchies: Mapping[str, Hierarchy], name: str) -> Hierarchy:
    if name not in hierarchies:
        raise ValueError(f"hierarchies must hold one for every quasi-identifier, got none for {name!r}")
    if not isinstance(hierarchies[name], Hierarchy):
        raise TypeError(
            f"the hierarchy of {name!r} must be a Hierarchy, got {type(hierarchies[name]).__name__}"
        )
    return hierarchies[name]


def _check_k(k: int, n_rows: int) -> None:
    integer("k", k, at_least=1)
    if k > n_rows:
        raise ValueError(f"k must be at most the number of rows, {n_rows}, got {k}")


# --------------------------------------------------------------------------- Mondrian


def mondrian(
    table: pd.DataFrame, quasi_identifiers: Sequence[str], k: int, *, strict: bool = True
) -> Release:
    """Cut the table into boxes of at least k rows, each time along its widest side at the median.

    The width of a box is measured in shares of the column's range; nominal values stand in the order of their
    texts. Of equally wide sides the one whose column has the fewest different values is cut first, then the
    one that was named first. A box is finished when no side can be cut. All boxes of a level are cut at once.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per person. A missing value stands after all others, and makes a box that holds others too as
        wide as it can be.
    quasi_identifiers : sequence of str
        Columns to generalise: numbers, dates, ordered or unordered categories.
    k : int
        Least number of rows in a box.
    strict : bool, default True
        Strict: equal values stay together, cut after the median (or before it, if only that leaves k rows on
        both sides). Then no box can be cut any further, and none has more than 2d(k - 1) + m rows, where d is
        the number of columns and m the largest number of identical rows. Relaxed: rows that tie at the median
        may be parted; every box has k to 2k - 1 rows. Which of several *identical* rows goes where depends on
        their order then, nothing else does.

    Returns
    -------
    Release
        Numbers and ordered values are published as ``lowest–highest``, nominal ones as the set that occurs.

    Raises
    ------
    TypeError, ValueError
        If k is no whole number from 1 to the number of rows, if a column holds numbers written as text, or
        values that are not finite.

    References
    ----------
    [LeFevre2006]

    Examples
    --------
    >>> people = pd.DataFrame({"age": [21, 24, 38, 39, 40], "sex": list("fmfmf")})
    >>> mondrian(people, ["age", "sex"], k=2).table
         age sex
    0  21–40   f
    1  24–39   m
    2  21–40   f
    3  24–39   m
    4  21–40   f
    """
    names = checked_columns(table, "quasi_identifiers", quasi_identifiers)
    _check_k(k, len(table))
    attributes = {name: _attribute(table[name]) for name in names}
    for name, attribute in attributes.items():
        if attribute.kind == "nominal" and _look_like_numbers(attribute.values):
            raise TypeError(
                f"column {name!r} holds numbers written as text: convert it with pandas.to_numeric, or make it "
                "an ordered categorical"
            )
    by_ties = sorted(names, key=lambda name: len(attributes[name].values))  # stable: then as named
    ranks = np.stack([attributes[name].ranks for name in by_ties]).astype(np.int32)
    labels = _boxes([attributes[name] for name in by_ties], ranks, k, strict)
    columns = {name: _box_cells(attributes[name], labels) for name in names}
    return _released(table, attributes, columns, labels, k)


def _boxes(attributes: list[_Attribute], ranks: NDArray[np.int32], k: int, strict: bool) -> Ints:
    """Return the box of each row; ``ranks`` has one line per attribute, in the order that decides ties."""
    rows = np.lexsort(
        ranks[::-1]
    )  # so that the order of the table decides nothing but between identical rows
    ranks = ranks[:, rows]
    starts = np.zeros(1, dtype=np.int64)
    labels = np.empty(rows.size, dtype=np.int64)
    n_boxes = 0
    while rows.size:
        sizes = np.diff(np.append(starts, rows.size))
        cuts, order = (_strict_cuts if strict else _relaxed_cuts)(attributes, ranks, starts, sizes, k)
        finished = cuts == 0
        numbers = np.cumsum(finished) - 1 + n_boxes
        done = np.repeat(finished, sizes)
        labels[rows[done]] = np.repeat(numbers[finished], sizes[finished])
        n_boxes += int(finished.sum())
        order = order[~done[order]]  # order keeps every row inside its box
        rows, ranks = rows.take(order), ranks.take(order, axis=1)
        halves = np.column_stack([cuts, sizes - cuts])[~finished].ravel()
        starts = np.append(0, np.cumsum(halves)[:-1]) if halves.size else starts[:0]
    return labels


def _widths(attributes: list[_Attribute], ranks: NDArray[np.int32], starts: Ints) -> Floats:
    low = np.minimum.reduceat(ranks, starts, axis=1)
    high = np.maximum.reduceat(ranks, starts, axis=1)
    return np.stack([a.spans(lo, hi) for a, lo, hi in zip(attributes, low, high, strict=True)])


def _relaxed_cuts(
    attributes: list[_Attribute], ranks: NDArray[np.int32], starts: Ints, sizes: Ints, k: int
) -> tuple[Ints, Ints]:
    """Halve every box of 2k rows or more along its widest side."""
    side = _widths(attributes, ranks, starts).argmax(axis=0)
    box = np.repeat(np.arange(starts.size), sizes)
    order = _sorted_inside(box, ranks.ravel().take(side[box] * box.size + np.arange(box.size)))
    return np.where(sizes >= 2 * k, (sizes + 1) // 2, 0), order


def _strict_cuts(
    attributes: list[_Attribute], ranks: NDArray[np.int32], starts: Ints, sizes: Ints, k: int
) -> tuple[Ints, Ints]:
    """Find for each box the widest side that can be cut; return the length of its first part, or 0."""
    widths = _widths(attributes, ranks, starts)
    preference = np.argsort(-widths, axis=0, kind="stable")
    cuts = np.zeros(starts.size, dtype=np.int64)
    order = np.arange(ranks.shape[1])
    undecided = (sizes >= 2 * k) & (widths.max(axis=0) > 0)
    for choice_number in range(len(attributes)):
        boxes = np.flatnonzero(undecided)
        if not boxes.size:
            break
        inside = np.flatnonzero(np.repeat(undecided, sizes))
        box = np.repeat(np.arange(boxes.size), sizes[boxes])
        side = preference[choice_number, boxes]
        values = ranks.ravel().take(side[box] * ranks.shape[1] + inside)
        sorting = _sorted_inside(box, values)
        first = np.append(0, np.cumsum(sizes[boxes])[:-1])
        middle = values[sorting[first + (sizes[boxes] - 1) // 2]]
        up_to = np.add.reduceat(values <= middle[box], first, dtype=np.int64)
        below = np.add.reduceat(values < middle[box], first, dtype=np.int64)
        cut = np.where(sizes[boxes] - up_to >= k, up_to, np.where(below >= k, below, 0))
        cuts[boxes] = cut
        moved = np.repeat(cut > 0, sizes[boxes])
        order[inside[moved]] = inside[sorting[moved]]
        undecided[boxes[cut > 0]] = False
    return cuts, order


def _sorted_inside(box: Ints, values: NDArray[np.int32]) -> Ints:
    """Sort by box, then value, then place: one sort of packed integers, or a stable one if they do not fit."""
    value_bits, place_bits = int(values.max()).bit_length(), int(box.size).bit_length()
    keys = (box << value_bits) | values
    if int(box[-1]).bit_length() + value_bits + place_bits > 63:
        return np.argsort(keys, kind="stable")
    packed = (keys << place_bits) | np.arange(box.size)
    packed.sort()
    return packed & ((1 << place_bits) - 1)


def _box_cells(attribute: _Attribute, labels: Ints) -> tuple[Ints, list[str]]:
    """Return the published cell of each row, and the texts of the cells."""
    n_boxes, n_values = int(labels.max()) + 1, len(attribute.values) + 1
    texts = [*map(_text, attribute.values), "missing"]
    if attribute.kind == "nominal":
        pairs = np.sort(pd.unique(labels * n_values + attribute.ranks))
        sets: list[list[str]] = [[] for _ in range(n_boxes)]
        for box, rank in zip((pairs // n_values).tolist(), (pairs % n_values).tolist(), strict=True):
            sets[box].append(texts[rank])
        return labels, [own[0] if len(own) == 1 else "{" + ", ".join(own) + "}" for own in sets]
    low, high = _extremes(labels, attribute.ranks, n_boxes)
    known = high  # the highest that is not missing
    if attribute.has_missing:
        there = attribute.ranks < n_values - 1
        known = np.full(n_boxes, -1)
        np.maximum.at(known, labels[there], attribute.ranks[there])
    cells = []
    for lo, top, hi in zip(low.tolist(), known.tolist(), high.tolist(), strict=True):
        text = texts[lo] if lo >= top else f"{texts[lo]}–{texts[top]}"
        cells.append(f"{text} or missing" if hi == n_values - 1 and lo < hi else text)
    return labels, cells


def _look_like_numbers(values: list[Any]) -> bool:
    def is_number(text: Any) -> bool:
        try:
            float(text)
        except (TypeError, ValueError):
            return False
        return True

    return bool(values) and all(isinstance(value, str) and is_number(value) for value in values)


# --------------------------------------------------------------------------- attacks


@dataclass(frozen=True)
class HomogeneityAttack:
    """What is learned about people whose row nobody can find.

    Parameters
    ----------
    n_rows : int
        Released rows.
    certain : int
        Of these, rows in a class with one sensitive value: learned with certainty.
    right : int
        Rows whose value is guessed right by naming the most frequent value of their class.
    right_blind : int
        The same without looking at the classes.
    """

    n_rows: int
    certain: int
    right: int
    right_blind: int


def homogeneity_attack(
    table: pd.DataFrame,
    quasi_identifiers: Sequence[str],
    sensitive: str,
    *,
    suppressed: str | ArrayLike | None = SUPPRESSED,
) -> HomogeneityAttack:
    """Guess each person's sensitive value from the others in their class.

    Parameters
    ----------
    table : pandas.DataFrame
        The released table.
    quasi_identifiers : sequence of str
        What the attacker knows of everybody.
    sensitive : str
        What the attacker wants to know.
    suppressed : str, array-like of bool or None, default "*"
        As in :func:`anonymity_report`.

    Returns
    -------
    HomogeneityAttack

    Raises
    ------
    TypeError, ValueError
        As for :func:`anonymity_report`.

    References
    ----------
    [Machanavajjhala2007]

    Examples
    --------
    >>> ward = pd.DataFrame({"age": ["3*", "3*", "4*", "4*"], "illness": ["cancer", "cancer", "flu", "cancer"]})
    >>> homogeneity_attack(ward, ["age"], "illness")
    HomogeneityAttack(n_rows=4, certain=2, right=3, right_blind=3)
    """
    found = anonymity_report(table, quasi_identifiers, [sensitive], suppressed=suppressed)
    seen = found.sensitive[sensitive]
    n = found.n_rows - found.n_suppressed
    released = table.loc[~_suppressed_rows(table, list(quasi_identifiers), suppressed)]
    most_frequent = int(np.bincount(column_codes(released[sensitive])[0] + 1).max())
    return HomogeneityAttack(
        n, seen.homogeneous_rows, round(n * (1 - seen.misclassified_share)), most_frequent
    )


@dataclass(frozen=True)
class IntersectionAttack:
    """What two releases of the same people say together.

    Parameters
    ----------
    sizes : ndarray of int64, shape (n_rows,)
        People who share the classes of a person in *every* release.
    candidates : ndarray of int64, shape (n_rows,)
        Sensitive values that are possible for a person in every release.
    """

    sizes: Ints
    candidates: Ints

    @property
    def n_unique(self) -> int:
        """People alone in the intersection of their classes."""
        return int((self.sizes == 1).sum())

    @property
    def n_disclosed(self) -> int:
        """People for whom one sensitive value remains."""
        return int((self.candidates == 1).sum())


def intersection_attack(releases: Sequence[ArrayLike], sensitive: ArrayLike) -> IntersectionAttack:
    """Intersect the classes of several releases of one table.

    The attacker knows in which class of each release a person lies, as quasi-identifiers tell, and takes the
    sensitive values that occur in all of these classes. Nobody has to be matched across the releases.

    Parameters
    ----------
    releases : sequence of array-like of int, each of shape (n_rows,)
        Classes, as in :attr:`Release.labels`; -1 where a person is suppressed, which tells the attacker nothing
        but that the value is one of the suppressed ones.
    sensitive : array-like of shape (n_rows,)
        The sensitive values.

    Returns
    -------
    IntersectionAttack

    Raises
    ------
    ValueError
        If there is no release or the lengths differ.

    References
    ----------
    [Ganta2008]

    Examples
    --------
    >>> attack = intersection_attack([[0, 0, 1, 1], [0, 1, 0, 1]], ["flu", "flu", "ulcer", "cancer"])
    >>> attack.n_unique, attack.candidates
    (4, array([1, 1, 1, 1]))
    """
    if not len(releases):
        raise ValueError("releases must hold at least one release, got none")
    codes, values = column_codes(pd.Series(np.asarray(sensitive)))
    codes = np.where(codes < 0, len(values), codes)
    labels = []
    for each in releases:
        array = integer_array("releases", each, shape=(codes.size,), at_least=-1)
        labels.append(array + 1)
    joint = combine_codes([(each, int(each.max()) + 1) for each in labels])
    first = np.empty(int(joint.max()) + 1, dtype=np.int64)
    first[joint[::-1]] = np.arange(joint.size)[::-1]
    possible = np.ones((first.size, len(values) + 1), dtype=bool)
    for each in labels:
        present = np.zeros((int(each.max()) + 1, len(values) + 1), dtype=bool)
        present[each, codes] = True
        possible &= present[each[first]]
    return IntersectionAttack(np.bincount(joint)[joint], possible.sum(axis=1)[joint])
