"""Linkage: a table without names meets what somebody else knows.

Joining two tables on the columns they share is how the governor was found [Sweeney2002]. How many people a
combination of attributes singles out has a closed form; Sweeney's threshold [Sweeney2000] and Golle's
expectation [Golle2006] answer two different questions about it. Scoreboard-RH [NarayananShmatikov2008] links
*approximate* knowledge of a few ratings to one record among hundreds of thousands; here it runs over an
inverted index, so that one target costs milliseconds. A synthetic table has the size and the published
marginals of the Netflix Prize data [BennettLanning2007]. Chapter 3 explains all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations as subsets
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.interpolate import PchipInterpolator

from thousand_fingers.tables import checked_columns, column_codes, combine_codes, equivalence_classes
from thousand_fingers.validation import (
    choice,
    integer,
    integer_array,
    numpy_generator,
    real_array,
    real_number,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

STAR_SCALE = 1.5  # rho_0 of the paper, in stars
DAY_SCALE = 30.0  # d_0 of the paper, in days
_N_HALF_STARS = 11  # 0 to 5 stars in halves
_CHUNK = 1 << 23  # ratings looked through at a time: a table may have a hundred million

# --------------------------------------------------------------------------- two tables


@dataclass(frozen=True)
class Links:
    """What a join of two tables finds.

    Attributes
    ----------
    left, right : ndarray of int
        Positions of the rows that belong together: on either side no other row has the same values.
    candidates : ndarray of int, one per row of the left table
        How many rows of the right table have the same values; 0 where one is missing.
    """

    left: Ints
    right: Ints
    candidates: Ints


def link_tables(left: pd.DataFrame, right: pd.DataFrame, on: Sequence[str]) -> Links:
    """Join two tables on the columns they share, and keep the pairs that leave no choice.

    A missing value agrees with nothing, not even with another missing value.

    Parameters
    ----------
    left : pandas.DataFrame
        The table without names.
    right : pandas.DataFrame
        The table with names.
    on : sequence of str
        The columns that both have: the hinge. Types must agree; text is not compared with numbers.

    Returns
    -------
    Links

    Raises
    ------
    TypeError, ValueError
        If a table is empty, a column is missing or its types do not agree, or ``on`` is a single string.

    References
    ----------
    [Sweeney2002]

    Examples
    --------
    >>> hospital = pd.DataFrame({"zip": ["02138", "02139", "02139"], "born": [1945, 1950, 1950]})
    >>> voters = pd.DataFrame({"name": ["W", "X"], "zip": ["02138", "02139"], "born": [1945, 1950]})
    >>> links = link_tables(hospital, voters, ["zip", "born"])
    >>> links.left.tolist(), links.right.tolist(), links.candidates.tolist()
    ([0], [0], [1, 1, 1])
    """
    names = checked_columns(left, "on", on)
    checked_columns(right, "on", on)
    coded = []
    missing = np.zeros(len(left) + len(right), dtype=bool)
    for name in names:
        kinds = [_kind(table[name]) for table in (left, right)]
        if kinds[0] != kinds[1] and "empty" not in kinds:
            raise TypeError(
                f"column {name!r} must have one type in both tables, got {' and '.join(kinds)}: convert first"
            )
        both = pd.Series([*left[name].astype(object), *right[name].astype(object)], dtype=object)
        values, distinct = column_codes(both)
        missing |= values < 0
        coded.append((values + 1, len(distinct) + 1))
    codes = combine_codes(coded)
    n_classes = int(codes.max()) + 1
    here, there = codes[: len(left)], codes[len(left) :]
    known_here, known_there = ~missing[: len(left)], ~missing[len(left) :]
    count_here = np.bincount(here[known_here], minlength=n_classes)
    count_there = np.bincount(there[known_there], minlength=n_classes)
    where_there = np.zeros(n_classes, dtype=np.int64)
    where_there[there[known_there]] = np.flatnonzero(known_there)
    pairs = np.flatnonzero(known_here & (count_here[here] == 1) & (count_there[here] == 1))
    return Links(pairs, where_there[here[pairs]], np.where(known_here, count_there[here], 0))


# --------------------------------------------------------------------------- uniqueness


def unique_share(table: pd.DataFrame, columns: Sequence[str]) -> float:
    """Return the share of rows whose combination of values no other row has.

    A missing value counts as a value of its own. Index, order of rows, types and unused categories do not
    matter.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per person.
    columns : sequence of str
        What an attacker is assumed to know.

    Returns
    -------
    float
        Between 0 and 1.

    Raises
    ------
    TypeError, ValueError
        If the table is empty, a column is missing, or ``columns`` is a single string.

    Examples
    --------
    >>> unique_share(pd.DataFrame({"zip": [1, 1, 2, 2], "sex": ["f", "f", "f", "m"]}), ["zip", "sex"])
    0.5
    """
    return equivalence_classes(table, columns).n_unique / len(table)


def unique_shares_by_knowledge(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the share of unique rows for everything that can be known about a few attributes.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per person.
    columns : sequence of str
        At most 12 attributes; all their non-empty subsets are tried.

    Returns
    -------
    pandas.DataFrame
        One row per subset: ``known`` (how many), ``columns`` (which, a tuple) and ``unique``, the share of
        rows that they single out. Learning one attribute more never makes it smaller.

    Raises
    ------
    TypeError, ValueError
        As :func:`unique_share`; or if there are more than 12 columns.

    Examples
    --------
    >>> people = pd.DataFrame({"zip": [1, 1, 2, 2], "sex": ["f", "m", "f", "m"]})
    >>> unique_shares_by_knowledge(people, ["zip", "sex"])["unique"].tolist()
    [0.0, 0.0, 1.0]
    """
    names = checked_columns(table, "columns", columns)
    if len(names) > 12:
        raise ValueError(f"columns must be at most 12, got {len(names)}")
    plain = pd.DataFrame(
        {name: equivalence_classes(table, [name]).labels for name in names}
    )  # numbers group faster
    chosen = [some for known in range(1, len(names) + 1) for some in subsets(names, known)]
    return pd.DataFrame(
        {
            "known": [len(some) for some in chosen],
            "columns": chosen,
            "unique": [unique_share(plain, some) for some in chosen],
        }
    )


def expected_unique_share(
    people: ArrayLike, combinations: int, *, group_shares: ArrayLike | None = None
) -> float:
    r"""Return the expected share of people whose combination of attributes nobody near them shares.

    In an area of :math:`n` people, each of whom has one of :math:`b` equally likely combinations
    independently of the others, a person is alone with probability :math:`(1-1/b)^{n-1}`. If the people fall
    into groups of shares :math:`w_y`, such as years of birth, with :math:`b` combinations in each, a member
    of group :math:`y` is alone with probability :math:`(1-w_y/b)^{n-1}`. Areas are weighted by their people.

    Parameters
    ----------
    people : array-like of int
        Population of each area, at least 0.
    combinations : int
        :math:`b`, the equally likely combinations in a group, at least 1.
    group_shares : array-like of float, optional
        :math:`w_y`, positive, summing to 1; one group by default.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or nobody lives anywhere.

    References
    ----------
    [Golle2006]

    Examples
    --------
    >>> round(expected_unique_share([23], 365), 6)  # the birthday problem
    0.941429
    >>> round(expected_unique_share([9_330], 56_940), 6)
    0.848877
    """
    sizes = _people(people)
    b = integer("combinations", combinations, at_least=1)
    shares = _shares(group_shares)
    distinct, areas = np.unique(sizes[sizes > 0], return_counts=True)
    others = distinct - 1.0
    alone = np.zeros(len(distinct))
    for share in shares:  # xlog1py: b = 1 leaves nobody alone but the only one
        alone += share * np.exp(special.xlog1py(others, -share / b))
    weight = distinct * areas
    return float(weight @ alone / weight.sum())


def threshold_unique_share(
    people: ArrayLike,
    combinations: int,
    *,
    group_shares: ArrayLike | None = None,
    bands: Sequence[int] | None = None,
) -> float:
    """Return the share of people whom the threshold rule calls likely unique.

    The rule asks whether there are pigeon holes enough: if no more people of an age band live in an area
    than there are combinations for them, *all* of them count as likely unique, otherwise none. It is no
    expectation; at the threshold a person is in truth alone with probability about 1/e.

    Parameters
    ----------
    people, combinations, group_shares
        As in :func:`expected_unique_share`.
    bands : sequence of int, optional
        First group of each age band, beginning with 0 and increasing; one band by default.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or nobody lives anywhere.

    References
    ----------
    [Sweeney2000]

    Examples
    --------
    >>> threshold_unique_share([300, 365, 366], 365)
    0.6450048496605237
    >>> round(expected_unique_share([300, 365, 366], 365), 4)  # the same areas
    0.389
    """
    sizes = _people(people)
    b = integer("combinations", combinations, at_least=1)
    shares = _shares(group_shares)
    starts = integer_array("bands", [0] if bands is None else bands, ndim=1, at_least=0)
    if starts[0] != 0 or (np.diff(starts) <= 0).any() or starts[-1] >= len(shares):
        raise ValueError(f"bands must begin with 0 and increase below {len(shares)}, got {starts.tolist()}")
    holes = b * np.diff(starts, append=len(shares))
    in_band = sizes[:, None] * np.add.reduceat(shares, starts)
    return float(in_band[in_band <= holes * (1 + 1e-12)].sum() / sizes.sum())


@dataclass(frozen=True)
class Company:
    """How many people a simulated population holds, and how many of them share their combination.

    Attributes
    ----------
    people : int
        Everybody.
    alone : int
        People whose combination of area, sex and date of birth nobody else has.
    in_pairs : int
        People who share it with exactly one other.
    """

    people: int
    alone: int
    in_pairs: int


def simulate_company(
    people: ArrayLike, combinations: int, rng: np.random.Generator, *, group_shares: ArrayLike | None = None
) -> Company:
    """Give everybody in every area a combination of attributes, and count who is alone with it.

    Parameters
    ----------
    people, combinations, group_shares
        As in :func:`expected_unique_share`; the result has that expectation.
    rng : numpy.random.Generator
        Source of the group and the combination of each single person.

    Returns
    -------
    Company

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or nobody lives anywhere.

    Examples
    --------
    >>> simulate_company([23] * 1_000, 365, np.random.default_rng(0))
    Company(people=23000, alone=21644, in_pairs=1320)
    """
    sizes = _people(people)
    b = integer("combinations", combinations, at_least=1, at_most=2**16)
    numpy_generator("rng", rng)
    shares = _shares(group_shares)
    first = np.arange(len(shares), dtype=np.int32) * b
    alone = pairs = 0
    for n in sizes:
        cell = np.repeat(first, rng.multinomial(n, shares))
        cell += rng.integers(0, b, n, dtype=np.uint16 if b < 2**16 else np.int32)
        company = np.bincount(cell)
        alone += int(np.count_nonzero(company == 1))
        pairs += 2 * int(np.count_nonzero(company == 2))
    return Company(int(sizes.sum()), alone, pairs)


def skewed_areas(n_areas: int, total: int, shape: float, rng: np.random.Generator) -> Ints:
    """Return populations of areas that add up to a total: many small ones, few large ones.

    Parameters
    ----------
    n_areas : int
        How many, at least 1.
    total : int
        People in all of them together.
    shape : float
        Shape of the gamma distribution of a population; the smaller, the more uneven.
    rng : numpy.random.Generator
        Source of the populations.

    Returns
    -------
    ndarray of int, shape (n_areas,)

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> skewed_areas(5, 1_000, 0.44, np.random.default_rng(3)).tolist()
    [3, 747, 4, 110, 136]
    """
    n_areas = integer("n_areas", n_areas, at_least=1)
    total = integer("total", total, at_least=1)
    shape = real_number("shape", shape, above=0)
    draws = numpy_generator("rng", rng).gamma(shape, size=n_areas)
    if not draws.any():  # so small a shape that all underflowed: everybody lives in one area
        draws[rng.integers(n_areas)] = 1.0
    ends = np.round(np.cumsum(draws) / draws.sum() * total).astype(np.int64)
    return np.diff(ends, prepend=0)


# --------------------------------------------------------------------------- ratings, by film


@dataclass(frozen=True)
class Record:
    """Ratings of one person: a whole record, or the few that an attacker knows.

    Parameters
    ----------
    items : ndarray of int, shape (m,)
        Which films, no film twice. Films that the table does not have are allowed: they say nothing.
    stars : ndarray of float, shape (m,), or None
        Stars between 0.5 and 5 in halves; ``None`` when only the films are known, or films and dates.
    days : ndarray of int, shape (m,), or None
        Days on the calendar of the table; ``None`` when no date is known.
    """

    items: Ints
    stars: Floats | None
    days: Ints | None

    def __post_init__(self) -> None:
        items = integer_array("items", self.items, ndim=1)
        if len(np.unique(items)) < len(items):
            raise ValueError("items must not hold a film twice")
        object.__setattr__(self, "items", items)
        if self.stars is not None:
            object.__setattr__(self, "stars", _half_stars(self.stars, items.shape) / 2)
        if self.days is not None:
            object.__setattr__(self, "days", integer_array("days", self.days, shape=items.shape))

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class RatingTable:
    """A table of ratings kept by film, as an inverted index: who rated it, how, and when.

    Seven bytes per rating, and two or four more once somebody has been looked for. Made by
    :func:`rating_table` or :func:`netflix_like`.

    Attributes
    ----------
    users : ndarray of int32, shape (n_ratings,)
        Who rated, ascending within each film.
    half_stars : ndarray of int8, shape (n_ratings,)
        Twice the stars.
    days : ndarray of int16, shape (n_ratings,)
        Day of the rating, from 0.
    offsets : ndarray of int64, shape (n_items + 1,)
        The ratings of film ``i`` are those from ``offsets[i]`` to ``offsets[i + 1]``.
    n_users : int
        Number of records.
    """

    users: NDArray[np.int32]
    half_stars: NDArray[np.int8]
    days: NDArray[np.int16]
    offsets: Ints
    n_users: int

    @property
    def n_items(self) -> int:
        """Number of films."""
        return len(self.offsets) - 1

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""
        return len(self.users)

    @property
    def support(self) -> Ints:
        """How many people rated each film, shape (n_items,)."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the ratings occupy; :attr:`codes` come on top when they are used."""
        return sum(a.nbytes for a in (self.users, self.half_stars, self.days, self.offsets))

    @cached_property
    def ratings_per_user(self) -> Ints:
        """How many films each person rated, shape (n_users,)."""
        total = np.zeros(self.n_users, dtype=np.int64)
        for start in range(0, self.n_ratings, _CHUNK):
            total += np.bincount(self.users[start : start + _CHUNK], minlength=self.n_users)
        return total

    @cached_property
    def last_day(self) -> int:
        """Day of the latest rating."""
        return int(self.days.max())

    @cached_property
    def codes(self) -> NDArray[np.int16] | NDArray[np.int32]:
        """Stars and day of each rating as one number: one look-up of a similarity instead of two."""
        n_days = self.last_day + 1
        small = _N_HALF_STARS * n_days <= 2**15
        codes: NDArray[Any] = self.half_stars.astype(np.int16 if small else np.int32)
        codes *= codes.dtype.type(n_days)
        codes += self.days
        return codes

    def at(self, item: int) -> slice:
        """Return where the ratings of a film lie."""
        return slice(int(self.offsets[item]), int(self.offsets[item + 1]))

    def records(self, users: ArrayLike) -> list[Record]:
        """Return whole records, in the order asked for.

        Parameters
        ----------
        users : array-like of int
            Whose; no one twice.

        Returns
        -------
        list of Record
            Films ascending; a record without ratings is refused.
        """
        wanted = integer_array("users", users, ndim=1, at_least=0, at_most=self.n_users - 1)
        if len(np.unique(wanted)) < len(wanted):
            raise ValueError("users must not hold anybody twice")
        place = np.full(self.n_users, -1, dtype=np.int32)
        place[wanted] = np.arange(len(wanted))
        rows = np.concatenate(
            [
                start + np.flatnonzero(place[self.users[start : start + _CHUNK]] >= 0)
                for start in range(0, self.n_ratings, _CHUNK)
            ]
        )
        owner = place[self.users[rows]]
        items = np.searchsorted(self.offsets, rows, side="right") - 1
        order = np.argsort(owner, kind="stable")
        cuts = np.searchsorted(owner[order], np.arange(1, len(wanted)))
        return [
            Record(items[part], self.half_stars[rows[part]] / 2, self.days[rows[part]].astype(np.int64))
            for part in np.split(order, cuts)
        ]


def rating_table(users: ArrayLike, items: ArrayLike, stars: ArrayLike, days: ArrayLike) -> RatingTable:
    """Sort ratings by film.

    Parameters
    ----------
    users, items : array-like of int, shape (n,)
        Who rated which film; numbers from 0.
    stars : array-like of float, shape (n,)
        Between 0.5 and 5, in halves.
    days : array-like of int, shape (n,)
        Calendar days, at least 0 and below 32,768.

    Returns
    -------
    RatingTable

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, a value is out of range, or somebody rated a film twice.

    Examples
    --------
    >>> table = rating_table([0, 1, 0], [1, 1, 0], [4.5, 3, 5], [10, 12, 7])
    >>> table.support.tolist(), table.users.tolist(), table.nbytes
    ([1, 2], [0, 0, 1], 45)
    """
    who = integer_array("users", users, ndim=1, at_least=0, at_most=2**31 - 1)
    what = integer_array("items", items, shape=who.shape, at_least=0)
    halves = _half_stars(stars, who.shape)
    when = integer_array("days", days, shape=who.shape, at_least=0, at_most=2**15 - 1)
    order = np.lexsort((who, what))
    who, what = who[order], what[order]
    twice = (np.diff(who) == 0) & (np.diff(what) == 0)
    if twice.any():
        first = int(np.flatnonzero(twice)[0])
        raise ValueError(f"nobody may rate a film twice, but user {who[first]} rated item {what[first]} so")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(what))])
    return RatingTable(
        who.astype(np.int32),
        halves[order].astype(np.int8),
        when[order].astype(np.int16),
        offsets,
        int(who.max()) + 1,
    )


# --------------------------------------------------------------------------- what an attacker knows


def draw_clues(
    record: Record,
    known: int,
    rng: np.random.Generator,
    *,
    wrong: int = 0,
    day_error: int = 0,
    star_error: float = 0.0,
    eligible: ArrayLike | None = None,
) -> Record:
    """Let an attacker learn some ratings of a person, partly wrong.

    All the films are films that the person rated, as in the publication. Of ``known`` ratings, ``wrong`` have
    other stars, each equally likely, and a day more than ``day_error`` and at most three years away; the
    others have stars at most ``star_error`` off and a day at most ``day_error`` off, each possibility equally
    likely (stars beyond the scale become its end). Somebody who gives whole stars only is taken to use no
    halves.

    Parameters
    ----------
    record : Record
        With stars and days.
    known : int
        How many ratings are learned, at least 1.
    rng : numpy.random.Generator
        Source of the choice and of the errors.
    wrong : int, default 0
        How many of them are wrong, at most ``known``.
    day_error : int, default 0
        In days, at most 1,000.
    star_error : float, default 0
        In stars, a multiple of one half.
    eligible : array-like of bool, shape (n_items,), optional
        Films that the attacker can have learned about; all by default.

    Returns
    -------
    Record
        ``known`` clues in random order.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or too few films are eligible.

    References
    ----------
    [NarayananShmatikov2008]

    Examples
    --------
    >>> person = Record(np.arange(20), np.full(20, 3.0), np.arange(20) * 50)
    >>> clues = draw_clues(person, 3, np.random.default_rng(0), day_error=3)
    >>> clues.items.tolist(), clues.stars.tolist(), clues.days.tolist()
    ([10, 15, 12], [3.0, 3.0, 3.0], [497, 747, 597])
    """
    known = integer("known", known, at_least=1)
    wrong = integer("wrong", wrong, at_least=0, at_most=known)
    day_error = integer("day_error", day_error, at_least=0, at_most=1_000)
    off = int(_half_stars([star_error], (1,), lowest=0)[0])
    numpy_generator("rng", rng)
    if record.stars is None or record.days is None:
        raise ValueError("record must have stars and days")
    rows = np.arange(len(record))
    if eligible is not None:
        allowed = np.asarray(eligible)
        if allowed.dtype != np.bool_ or allowed.ndim != 1 or len(allowed) <= record.items.max():
            raise TypeError("eligible must be an array of bool with an entry for every film")
        rows = rows[allowed[record.items]]
    if len(rows) < known:
        raise ValueError(f"known must be <= {len(rows)}, the eligible ratings of the record, got {known}")
    rows = rng.choice(rows, known, replace=False)
    every = np.round(2 * record.stars).astype(np.int64)
    step = 1 if (every % 2).any() else 2  # half stars or whole ones
    steps = every[rows] // step
    noisy = np.clip(steps + rng.integers(-(off // step), off // step + 1, known), 1, 10 // step)
    days = record.days[rows] + rng.integers(-day_error, day_error + 1, known)
    # Any choice of rows is random, so the first of them can be the wrong ones.
    noisy[:wrong] = 1 + (steps[:wrong] - 1 + rng.integers(1, 10 // step, wrong)) % (10 // step)
    far = rng.integers(day_error + 1, _YEARS_OFF + 1, wrong) * rng.choice([-1, 1], wrong)
    days[:wrong] = record.days[rows[:wrong]] + far
    order = rng.permutation(known)
    return Record(record.items[rows[order]], noisy[order] * step / 2, days[order])


def consistent_users(
    table: RatingTable, clues: Record, *, day_tolerance: int = 0, star_tolerance: float = 0.0
) -> Ints:
    """Return everybody whose record agrees with every clue.

    Parameters
    ----------
    table : RatingTable
        The released table.
    clues : Record
        What is known; stars or days that are ``None`` are not compared.
    day_tolerance : int, default 0
        How many days apart still agree.
    star_tolerance : float, default 0
        How many stars apart still agree, in halves.

    Returns
    -------
    ndarray of int
        Ascending. Empty as soon as one film is not in the table.

    Raises
    ------
    TypeError, ValueError
        If a tolerance is out of range.

    Examples
    --------
    >>> table = rating_table([0, 1, 2, 0], [0, 0, 0, 1], [5, 5, 1, 3], [3, 9, 4, 5])
    >>> consistent_users(table, Record(np.array([0]), np.array([5.0]), None)).tolist()
    [0, 1]
    >>> consistent_users(table, Record(np.array([0]), None, np.array([4])), day_tolerance=1).tolist()
    [0, 2]
    """
    day_tolerance = integer("day_tolerance", day_tolerance, at_least=0)
    star_tolerance = real_number("star_tolerance", star_tolerance, at_least=0)
    if ((clues.items < 0) | (clues.items >= table.n_items)).any():
        return np.zeros(0, dtype=np.int64)
    found: NDArray[np.int32] | None = None
    for i in np.argsort(table.support[clues.items], kind="stable"):  # the rarest film first
        part = table.at(clues.items[i])
        agree = np.ones(part.stop - part.start, dtype=bool)
        if clues.stars is not None:
            agree &= np.abs(table.half_stars[part] / 2 - clues.stars[i]) <= star_tolerance
        if clues.days is not None:
            agree &= np.abs(table.days[part] - clues.days[i]) <= day_tolerance
        users = table.users[part][agree]
        found = users if found is None else np.intersect1d(found, users, assume_unique=True)
    assert found is not None  # clues are never empty
    return found.astype(np.int64)


# --------------------------------------------------------------------------- Scoreboard-RH


@dataclass(frozen=True)
class Match:
    """What the scoreboard says about one target.

    Attributes
    ----------
    best : int or None
        The record with the highest score; ``None`` if two or more share it, or nobody scores at all.
    eccentricity : float
        How far the highest score stands out from the second, in standard deviations of all scores.
    accepted : bool
        Whether that reaches the threshold: the attacker claims to have found the target.
    """

    best: int | None
    eccentricity: float
    accepted: bool


def scores(
    table: RatingTable, clues: Record, *, weighting: str = "log", without: int | None = None
) -> Floats:
    r"""Score every record of a table against a few clues.

    .. math:: S(r) = \sum_i w_i\,\Bigl(e^{-|\rho_i-\rho_i'|/1.5} + e^{-|d_i-d_i'|/30}\Bigr),
              \qquad w_i=\frac{1}{\log|\mathrm{supp}(i)|}

    over the clues :math:`i` whose film the record has; the others add nothing. Only the records that rated
    one of the films are touched. Without stars or dates that term is left out; without both, a film counts 1.
    A film with a single rater would get an infinite weight and is treated as if it had two.

    Parameters
    ----------
    table : RatingTable
        The released table.
    clues : Record
        What the attacker knows.
    weighting : {"log", "none", "inverse"}, default "log"
        Weight of a film: as above, 1, or one over the number of its raters.
    without : int, optional
        Somebody whose record is taken out of the release first, exactly as if it had never been there.

    Returns
    -------
    ndarray of float, shape (n_users,)
        The entry of ``without``, if given, is NaN.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [NarayananShmatikov2008]

    Examples
    --------
    >>> table = rating_table([0, 1, 2, 0], [0, 0, 0, 1], [5, 5, 1, 3], [3, 9, 4, 5])
    >>> clues = Record(np.array([0, 7]), np.array([5.0, 2.0]), np.array([3, 3]))  # film 7 is unknown
    >>> scores(table, clues, weighting="none").round(4).tolist()
    [2.0, 1.8187, 1.0367]
    """
    choice("weighting", weighting, ("log", "none", "inverse"))
    if without is not None:
        integer("without", without, at_least=0, at_most=table.n_users - 1)
    total = np.zeros(table.n_users)
    for i, item in enumerate(clues.items):
        if not 0 <= item < table.n_items:
            continue
        part = table.at(item)
        raters = table.users[part]
        support = len(raters)
        if without is not None:
            place = int(np.searchsorted(raters, without))
            support -= int(place < len(raters) and raters[place] == without)
        weight = _weight(support, weighting)
        star = None if clues.stars is None else clues.stars[i]
        day = None if clues.days is None else clues.days[i]
        np.add.at(total, raters, _gains(table, part, weight, star, day))
    if without is not None:
        total[without] = np.nan
    return total


def scoreboard_rh(
    table: RatingTable,
    clues: Record,
    *,
    eccentricity_threshold: float = 1.5,
    weighting: str = "log",
    without: int | None = None,
) -> Match:
    """Look for one person's record by what is known about them, and say whether it stands out.

    The eccentricity is the distance between the highest and the second highest score, in standard deviations
    of the scores of all records, those that score nothing included. A tie for the first place is no match,
    whatever the threshold.

    Parameters
    ----------
    table : RatingTable
        The released table.
    clues : Record
        What the attacker knows.
    eccentricity_threshold : float, default 1.5
        Least eccentricity at which the attacker claims a match. 0 claims whoever is first.
    weighting, without
        As in :func:`scores`.

    Returns
    -------
    Match

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [NarayananShmatikov2008]

    Examples
    --------
    >>> table = rating_table([0, 1, 2, 0, 2, 7], [0, 0, 0, 1, 1, 2], [5, 5, 1, 3, 1, 4], [3, 9, 4, 5, 90, 8])
    >>> clues = Record(np.array([0, 1]), np.array([5.0, 3.0]), np.array([3, 6]))
    >>> match = scoreboard_rh(table, clues)
    >>> match.best, round(match.eccentricity, 3), match.accepted
    (0, 1.95, True)
    """
    phi = real_number("eccentricity_threshold", eccentricity_threshold, at_least=0)
    board = scores(table, clues, weighting=weighting, without=without)
    n = len(board) - (without is not None)
    if without is not None:
        board[without] = -1.0  # below everybody, until it is left out of the deviation
    best = int(board.argmax())
    first = board[best]
    board[best] = -1.0
    second = board.max()
    if second < 0 or first == second:  # a lone record stands out from nobody
        return Match(None, 0.0, False)
    board[best] = first
    if without is not None:
        board[without] = 0.0
    board -= board.sum() / n
    if without is not None:
        board[without] = 0.0
    eccentricity = float((first - second) / np.sqrt(board @ board / n))
    return Match(best, eccentricity, eccentricity >= phi)


def match_entropy(board: ArrayLike) -> float:
    r"""Return the entropy, in bits, of a guess at the target's record.

    Each record gets the probability :math:`c\,e^{S(r)/\sigma}`, with :math:`\sigma` the standard deviation of
    all scores.

    Parameters
    ----------
    board : array-like of float, shape (n_users,)
        As :func:`scores` returns them, NaN excepted.

    Returns
    -------
    float
        Between 0 and log2 of the number of records; that many if all scores are equal.

    Raises
    ------
    TypeError, ValueError
        If a score is not a number.

    References
    ----------
    [NarayananShmatikov2008]

    Examples
    --------
    >>> match_entropy([1.0, 1.0, 1.0, 1.0])
    2.0
    >>> match_entropy([3.557449, 1.188716, 3.179578, 1.130963]).__round__(6)
    1.509189
    """
    s = real_array("board", board, ndim=1)
    deviation = s.std()
    logits = special.log_softmax(s / deviation if deviation > 0 else np.zeros_like(s))
    return float(-(np.exp(logits) @ logits) / np.log(2))


@dataclass(frozen=True)
class MatchCounts:
    """What an attacker got out of many targets.

    Attributes
    ----------
    targets : int
        How many were looked for.
    first : int
        The target had the highest score, alone.
    right, wrong : int
        A match was claimed, and it was or was not the target.
    """

    targets: int
    first: int
    right: int
    wrong: int


def count_matches(matches: Sequence[Match], truth: ArrayLike | None = None) -> MatchCounts:
    """Count right and wrong matches.

    Parameters
    ----------
    matches : sequence of Match
        One per target.
    truth : array-like of int, optional
        Who each target was; ``None`` when none of them is in the table, so that every claim is wrong.

    Returns
    -------
    MatchCounts

    Raises
    ------
    ValueError
        If there are no matches or their number is not that of the truth.

    Examples
    --------
    >>> count_matches([Match(3, 2.0, True), Match(5, 0.2, False)], [3, 5])
    MatchCounts(targets=2, first=2, right=1, wrong=0)
    """
    if not matches:
        raise ValueError("matches must not be empty")
    told = [-1] * len(matches) if truth is None else integer_array("truth", truth, shape=(len(matches),))
    hit = np.array([match.best == who for match, who in zip(matches, told, strict=True)])
    accepted = np.array([match.accepted for match in matches])
    return MatchCounts(
        len(matches), int(hit.sum()), int((accepted & hit).sum()), int((accepted & ~hit).sum())
    )


#: What an attacker knows in the paper's headline figures and between them: arguments of :func:`draw_clues`.
KNOWLEDGE: dict[str, Any] = {
    "2_of_2_3d": {"known": 2, "wrong": 0, "day_error": 3},
    "2_of_2_14d": {"known": 2, "wrong": 0, "day_error": 14},
    "3_of_4_3d": {"known": 4, "wrong": 1, "day_error": 3},
    "3_of_4_14d": {"known": 4, "wrong": 1, "day_error": 14},
    "6_of_8_3d": {"known": 8, "wrong": 2, "day_error": 3},
    "6_of_8_14d": {"known": 8, "wrong": 2, "day_error": 14},
}


@dataclass(frozen=True)
class Trials:
    """The same targets looked for twice, with the same clues: in the release, and in a release without them.

    Attributes
    ----------
    present, absent : tuple of Match
        One per target.
    found : MatchCounts
        Of those present.
    false_alarms : MatchCounts
        Of those absent; every match is wrong.
    """

    present: tuple[Match, ...]
    absent: tuple[Match, ...]
    found: MatchCounts
    false_alarms: MatchCounts


def attack_people(
    table: RatingTable,
    people: ArrayLike,
    rng: np.random.Generator,
    *,
    known: int,
    wrong: int = 0,
    day_error: int = 0,
    star_error: float = 0.0,
    eligible: ArrayLike | None = None,
    eccentricity_threshold: float = 1.5,
    weighting: str = "log",
) -> Trials:
    """Look for people with a few clues about each, and for the same people after their records are taken out.

    The second half is the negative control: what the attacker claims about somebody who is not there.

    Parameters
    ----------
    table : RatingTable
        The released table.
    people : array-like of int, shape (n,)
        The targets, everybody once.
    rng : numpy.random.Generator
        Source of the clues.
    known, wrong, day_error, star_error, eligible
        As in :func:`draw_clues`.
    eccentricity_threshold, weighting
        As in :func:`scoreboard_rh`.

    Returns
    -------
    Trials

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or a record has too few ratings.

    References
    ----------
    [NarayananShmatikov2008]

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> users, items = np.nonzero(rng.random((40, 60)) < 0.3)
    >>> table = rating_table(users, items, rng.integers(1, 6, len(users)), rng.integers(0, 900, len(users)))
    >>> trials = attack_people(table, range(40), rng, known=4, day_error=3)
    >>> trials.found.first, trials.found.right, trials.false_alarms.wrong
    (40, 40, 3)
    """
    targets = integer_array("people", list(people) if isinstance(people, range) else people, ndim=1)
    clues = [
        draw_clues(
            record,
            known,
            rng,
            wrong=wrong,
            day_error=day_error,
            star_error=star_error,
            eligible=eligible,
        )
        for record in table.records(targets)
    ]

    def look(clue: Record, without: int | None) -> Match:
        return scoreboard_rh(
            table,
            clue,
            eccentricity_threshold=eccentricity_threshold,
            weighting=weighting,
            without=without,
        )

    present = tuple(look(clue, None) for clue in clues)
    absent = tuple(look(clue, int(who)) for clue, who in zip(clues, targets, strict=True))
    return Trials(present, absent, count_matches(present, targets), count_matches(absent))


# --------------------------------------------------------------------------- a table of the size of Netflix's

N_USERS, N_ITEMS, N_DAYS = 480_189, 17_770, 2_243
# Ratings per person and per film at some shares of people and films, from below. Both ends, the quartiles and
# the shares with one, with fewer than 10 and with more than 5,000 ratings are published; what stands between
# 0.75 and the last entry but one is chosen so that means and deviations come out.
_PER_USER = (
    (0, 0.00264, 0.0342, 0.25, 0.5, 0.75, 0.95, 0.99, 0.99991, 1),
    (1, 1.5, 10, 39, 96, 259, 772, 1_360, 5_000, 17_653),
)
_PER_ITEM = ((0, 0.25, 0.5, 0.75, 0.95, 0.99, 1), (3, 192, 561, 2_668, 30_500, 91_500, 232_944))
_STARS = np.array([4_617_990, 10_132_080, 28_811_247, 33_750_958, 23_168_232]) / 100_480_507
_ITEM_VARIANCE, _USER_VARIANCE = 0.2, 0.2  # parts of a star's variance that lie with the film and the person
# Not published as such: chosen so that the share of ratings that fall on the most popular films, the days of
# ratings and the gaps between two ratings of one person come close to those counted on samples of the real
# table [Henric2020]. How often an attack succeeds was not used.
_TILT = 0.25  # how much light users lean towards popular films
_AWAY, _STAY = (0.7, 220.0), (0.6, 500.0)  # days since leaving, days between joining and leaving: gamma
_SESSIONS = 0.35  # sessions per rating, at most 150


def netflix_like(
    rng: np.random.Generator, *, share: float = 1.0, clustered_dates: bool = True
) -> RatingTable:
    """Make a synthetic table with the size and the marginals of the Netflix Prize data.

    Nobody in it exists. Given a person's and a film's activity, whether the one rated the other is decided by
    an independent coin, with odds fitted so that ratings per person and per film follow the published
    quantiles; light users lean towards popular films. Stars have the published shares, and a component that
    belongs to the film and one that belongs to the person. A person rates in sessions, many films on one day,
    most of them soon after signing up; a part of the films are rated shortly after their release.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of everything.
    share : float, default 1
        Part of the 480,189 people to make, in (0, 1]. All films stay, with that part of their ratings.
    clustered_dates : bool, default True
        ``False`` draws every date independently from the same distribution of days: a table that is much
        easier to attack than a real one.

    Returns
    -------
    RatingTable
        Users are numbered by activity, from the least active; films by popularity. At full size about a
        hundred million ratings in 0.7 GB.

    Raises
    ------
    TypeError, ValueError
        If ``share`` is out of range.

    References
    ----------
    [BennettLanning2007]

    Examples
    --------
    >>> table = netflix_like(np.random.default_rng(0), share=0.002)
    >>> table.n_users, table.n_items, int(table.days.max()) < N_DAYS
    (960, 17770, True)
    """
    share = real_number("share", share, above=0, at_most=1)
    numpy_generator("rng", rng)
    n_users = max(round(share * N_USERS), 2)
    per_user, per_item = _sizes(_PER_USER, n_users), _sizes(_PER_ITEM, N_ITEMS) * n_users / N_USERS
    per_user = np.minimum(per_user * (per_item.sum() / per_user.sum()), 0.995 * N_ITEMS)
    starts = _bins(n_users)
    widths = np.diff(starts, append=n_users)
    intensity = _intensity(per_user, per_item, starts)

    sessions = _sessions(rng, per_user)
    release = np.where(rng.random(N_ITEMS) < 0.45, rng.integers(0, N_DAYS, N_ITEMS), -1)
    by_item = rng.normal(0, np.sqrt(_ITEM_VARIANCE), N_ITEMS)
    by_user = rng.normal(0, np.sqrt(_USER_VARIANCE), n_users).astype(np.float32)
    cuts = _star_cuts(by_item, per_item).astype(np.float32)
    noise = np.float32(np.sqrt(1 - _ITEM_VARIANCE - _USER_VARIANCE))

    room = int(1.02 * per_item.sum()) + 10_000  # untouched memory costs nothing
    users = np.empty(room, dtype=np.int32)
    half_stars = np.empty(room, dtype=np.int8)
    days = np.empty(room, dtype=np.int16)
    offsets = np.zeros(N_ITEMS + 1, dtype=np.int64)
    block = (np.cumsum(per_item) / 1_000_000).astype(np.int64)  # films that are drawn together
    for items in np.split(np.arange(N_ITEMS), np.flatnonzero(np.diff(block)) + 1):
        drawn = rng.poisson(intensity[items] * widths)
        first = np.arange(len(items))[:, None] * n_users + starts
        pairs = np.repeat(first.ravel(), drawn.ravel())
        pairs += (rng.random(len(pairs)) * np.repeat(np.tile(widths, len(items)), drawn.ravel())).astype(
            np.int64
        )
        pairs.sort()
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]  # a coin that shows heads twice is one rating
        film, raters = np.divmod(pairs, n_users)
        counts = np.bincount(film, minlength=len(items))
        offsets[items + 1] = offsets[items[0]] + np.cumsum(counts)
        here = slice(offsets[items[0]], offsets[items[-1] + 1])
        users[here] = raters
        liking = noise * rng.standard_normal(len(raters), dtype=np.float32)
        liking += by_user[raters] + by_item[items].astype(np.float32)[film]
        half_stars[here] = 2 * (1 + np.searchsorted(cuts, liking))
        chosen = sessions.pick(rng, raters)
        awaited = np.flatnonzero(release[items][film] >= 0)
        chosen[awaited] = _nearer_after(
            release[items][film[awaited]], chosen[awaited], sessions.pick(rng, raters[awaited])
        )
        days[here] = chosen
    n = int(offsets[-1])
    if not clustered_dates:
        rng.shuffle(days[:n])
    return RatingTable(users[:n], half_stars[:n], days[:n], offsets, n_users)


def _sizes(quantiles: tuple[Sequence[float], Sequence[float]], n: int) -> Floats:
    """Return n numbers with given quantiles, ascending: a smooth curve through their logarithms."""
    middle = (np.arange(n) + 0.5) / n
    at = special.ndtri(np.clip(quantiles[0], middle[0], middle[-1]))
    keep = np.concatenate([[True], np.diff(at) > 0])
    keep[-1] = True
    keep[:-1] &= at[:-1] < at[-1]
    curve = PchipInterpolator(at[keep], np.log(quantiles[1])[keep])
    return np.exp(curve(special.ndtri(middle)))


def _bins(n: int) -> NDArray[np.int32]:
    """Return the first members of bins of equal size, but finer and finer towards the most active."""
    even = np.linspace(0, n, 200, endpoint=False)
    fine = n - np.geomspace(1, max(n / 200, 1), 60)
    return np.unique(np.concatenate([even, fine]).astype(np.int32))


def _intensity(per_user: Floats, per_item: Floats, starts: NDArray[np.int32]) -> Floats:
    """Fit Poisson intensities, films by bins of users, to expected numbers of distinct ratings.

    A film is rated by a person with probability 1 - exp(-intensity).
    """
    widths = np.diff(starts, append=len(per_user))
    wanted_rows = np.add.reduceat(per_user, starts) / widths
    columns = _bins(len(per_item))
    column_widths = np.diff(columns, append=len(per_item))
    wanted_columns = np.add.reduceat(per_item, columns) / column_widths
    rank_rows = special.ndtri((starts + widths / 2) / len(per_user))
    rank_columns = special.ndtri((columns + column_widths / 2) / len(per_item))
    log_intensity = (
        np.log(wanted_rows / per_item.sum())[:, None]
        + np.log(wanted_columns)
        - _TILT * rank_rows[:, None] * rank_columns
    )
    for _ in range(40):  # Newton steps on the logarithm, rows and columns in turn
        for axis, weights, wanted in ((1, column_widths, wanted_rows), (0, widths[:, None], wanted_columns)):
            rate = np.exp(log_intensity)
            got = (-np.expm1(-rate) * weights).sum(axis=axis)
            slope = (rate * np.exp(-rate) * weights).sum(axis=axis) / got
            step = np.clip(np.log(wanted / got) / slope, -1, 1)
            log_intensity += np.expand_dims(step, axis)
            np.minimum(log_intensity, 4, out=log_intensity)  # certain enough, where nothing suffices
    fitted = np.exp(log_intensity).T
    return (
        np.repeat(fitted, column_widths, axis=0)
        * (per_item / np.repeat(wanted_columns, column_widths))[:, None]
    )


class _Sessions(NamedTuple):
    """The days on which people rate: how many each has, where they begin, and all of them in order."""

    length: NDArray[np.int32]
    first: NDArray[np.int32]
    day: NDArray[np.int16]

    def pick(self, rng: np.random.Generator, people: Ints) -> NDArray[np.int16]:
        """Pick one of their days for each of some people, early days more often."""
        u = rng.random(len(people), dtype=np.float32)
        return self.day[self.first[people] + (self.length[people] * (u * u)).astype(np.int32)]


def _sessions(rng: np.random.Generator, per_user: Floats) -> _Sessions:
    n = len(per_user)
    end = N_DAYS - 1 - np.minimum(rng.gamma(*_AWAY, n), N_DAYS - 1)
    begin = np.maximum(end - rng.gamma(*_STAY, n), 0)
    length = (1 + rng.poisson(np.minimum(_SESSIONS * per_user, 150))).astype(np.int32)
    owner = np.repeat(np.arange(n, dtype=np.int32), length)
    first = np.cumsum(length, dtype=np.int32) - length
    when = rng.random(len(owner), dtype=np.float32)
    when[first] = 0  # the day of signing up
    day = (begin[owner] + when * (end - begin)[owner]).astype(np.int32)
    day += owner * np.int32(N_DAYS)  # 480,189 times 2,243 still fits
    day.sort()
    day -= owner * np.int32(N_DAYS)
    return _Sessions(length, first, day.astype(np.int16))


def _nearer_after(release: Ints, one: NDArray[np.int16], two: NDArray[np.int16]) -> NDArray[np.int16]:
    """Take of two days the one sooner after a release; the later one if both are before it."""
    early, late = np.minimum(one, two), np.maximum(one, two)
    return np.where(early >= release, early, late)


def _star_cuts(by_item: Floats, per_item: Floats) -> Floats:
    """Return where four cuts must lie so that stars come out in the published shares."""
    scale = np.sqrt(1 - _ITEM_VARIANCE)
    grid = np.linspace(-6, 6, 481)
    below = special.ndtr((grid[:, None] - by_item) / scale) @ (per_item / per_item.sum())
    return np.interp(np.cumsum(_STARS)[:-1], below, grid)


# --------------------------------------------------------------------------- helpers

_YEARS_OFF = 3 * 365


def _kind(column: pd.Series) -> str:
    """Name the type of the values that are there: text, number, datetime and so on."""
    kind = pd.api.types.infer_dtype(column.astype(object), skipna=True)
    return {"floating": "number", "integer": "number", "mixed-integer-float": "number"}.get(kind, kind)


def _people(people: ArrayLike) -> Ints:
    sizes = integer_array("people", people, ndim=1, at_least=0)
    if not sizes.any():
        raise ValueError("people must hold at least one person, got none")
    return sizes


def _shares(group_shares: ArrayLike | None) -> Floats:
    if group_shares is None:
        return np.ones(1)
    shares = real_array("group_shares", group_shares, ndim=1)
    if (shares <= 0).any() or abs(shares.sum() - 1) > 1e-9:
        raise ValueError(f"group_shares must be > 0 and sum to 1, got sum {shares.sum()}")
    return shares / shares.sum()


def _gains(
    table: RatingTable, part: slice, weight: float, star: float | None, day: int | None
) -> Floats | float:
    """Return what a clue adds to each of some ratings; few stars and days are different, so look them up."""
    by_star = by_day = None
    if star is not None:
        by_star = weight * np.exp(-np.abs(np.arange(_N_HALF_STARS) / 2 - star) / STAR_SCALE)
    if day is not None:
        by_day = weight * np.exp(-np.abs(np.arange(table.last_day + 1) - day) / DAY_SCALE)
    if by_star is not None and by_day is not None:
        return np.add.outer(by_star, by_day).take(table.codes[part])
    if by_star is not None:
        return by_star.take(table.half_stars[part])
    return weight if by_day is None else by_day.take(table.days[part])


def _half_stars(stars: ArrayLike, shape: tuple[int, ...], lowest: float = 0.5) -> Ints:
    values = 2 * real_array("stars", stars, shape=shape, at_least=lowest, at_most=5)
    if (values != np.round(values)).any():
        raise ValueError("stars must be whole or half")
    return values.astype(np.int64)


def _weight(support: int, weighting: str) -> float:
    if weighting == "none":
        return 1.0
    return 1 / np.log(max(support, 2)) if weighting == "log" else 1 / max(support, 2)
