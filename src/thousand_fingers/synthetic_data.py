"""Synthetic tables from noisy marginals: measure with integer noise, fit a tree, sample.

The recipe "select, measure, generate" in its smallest form, after [McKenna2021]:
all one-way and two-way counts are measured with discrete Laplace noise
[Canonne2020]; everything afterwards, the choice of the tree [ChowLiu1968]
included, sees the noisy counts only and so costs no privacy. Chapter 4 uses it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.mechanisms import discrete_laplace
from thousand_fingers.validation import integer, numpy_generator, real_array, real_number

Domain = Mapping[str, Sequence[Any]]
"""For each column its possible values, declared by the caller and never read from the data."""


@dataclass(frozen=True)
class NoisyMarginals:
    """Counts of one and of two columns, with noise.

    Attributes
    ----------
    domain : dict of str to tuple
        The declared values of each column, in the order of the counts.
    one_way : dict of str to ndarray of int64, shape (n_values,)
        Noisy counts of each column; they may be negative.
    two_way : dict of (str, str) to ndarray of int64, shape (n_values, n_values)
        Noisy counts of each measured pair.
    epsilon : float
        What all the counts together cost.
    scale : Fraction
        Scale of the discrete Laplace noise on every count.
    """

    domain: dict[str, tuple[Any, ...]]
    one_way: dict[str, NDArray[np.int64]]
    two_way: dict[tuple[str, str], NDArray[np.int64]]
    epsilon: float
    scale: Fraction

    @property
    def statement(self) -> str:
        """The guarantee in one sentence: what is protected, against what, at which price."""
        k = len(self.one_way) + len(self.two_way)
        return (
            f"epsilon = {self.epsilon!r} (pure, delta = 0); unit of privacy: one row; neighbouring tables "
            f"differ by adding or removing one row; {k} marginals measured with exact discrete Laplace noise "
            f"of scale {float(self.scale):g}; domain and list of marginals declared, not read from the data; "
            "pseudo-random generator, not a cryptographic one"
        )


@dataclass(frozen=True)
class SyntheticTable:
    """A sampled table and what was published to make it.

    Attributes
    ----------
    table : pandas.DataFrame
        The synthetic rows; every column is categorical with the declared values.
    tree : tuple of (str or None, str)
        Pairs (parent, child) in sampling order; a root has parent ``None``.
    marginals : NoisyMarginals
        The measurements, publishable too: they are what the budget paid for.
    epsilon : float
        Cost of the table.
    statement : str
        The guarantee in one sentence.
    """

    table: pd.DataFrame
    tree: tuple[tuple[str | None, str], ...]
    marginals: NoisyMarginals
    epsilon: float
    statement: str


def marginal(table: pd.DataFrame, domain: Domain, columns: Sequence[str]) -> NDArray[np.int64]:
    """Count the rows for every combination of declared values. The counts are exact, not private.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per record.
    domain : mapping of str to sequence
        Declared values of each column.
    columns : sequence of str
        The columns to count, at least one.

    Returns
    -------
    ndarray of int64
        One axis per column, in the order of ``columns`` and of the declared values.

    Raises
    ------
    ValueError
        If a column is not declared or missing, if values are declared twice, or
        if the table holds a value outside the domain (missing values included).
        Refusing reveals that such a value exists: check a table before it
        becomes an input of a public service.

    Examples
    --------
    >>> table = pd.DataFrame({"sex": ["F", "M", "F"]})
    >>> marginal(table, {"sex": ["F", "M", "other"]}, ["sex"])
    array([2, 1, 0])
    """
    declared = _checked_domain(domain)
    if not columns:
        raise ValueError("columns must not be empty")
    shape = tuple(len(declared[_declared_column(column, declared)]) for column in columns)
    codes = [_codes(table, column, declared[column]) for column in columns]
    flat = np.ravel_multi_index(codes, shape) if len(table) else np.zeros(0, dtype=np.int64)
    return np.bincount(flat, minlength=math.prod(shape)).reshape(shape).astype(np.int64)


def noisy_marginals(
    table: pd.DataFrame,
    domain: Domain,
    *,
    epsilon: float,
    rng: np.random.Generator,
    pairs: Iterable[tuple[str, str]] | None = None,
) -> NoisyMarginals:
    r"""Measure every column and every pair of columns with one privacy budget.

    Adding or removing one row changes exactly one count by one in each of the
    k marginals, so the :math:`\ell_1` sensitivity of all counts together is k,
    and discrete Laplace noise of scale :math:`k/\varepsilon` on every count
    makes the whole collection epsilon-DP. (Equivalently: each marginal gets
    an equal share epsilon/k.) The division is exact, in rational numbers.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per record; columns outside ``domain`` are ignored.
    domain : mapping of str to sequence
        Declared values of each column to measure; numbers must have been cut
        into declared intervals before.
    epsilon : float
        Budget of the whole collection, > 0.
    rng : numpy.random.Generator
        Source of the noise.
    pairs : iterable of (str, str), optional
        Pairs to measure; by default all. Choose them without looking at the data.

    Returns
    -------
    NoisyMarginals

    Raises
    ------
    ValueError
        As :func:`marginal`; also for a pair named twice or of a column with itself.

    References
    ----------
    [Canonne2020], [McKenna2021]

    Examples
    --------
    >>> table = pd.DataFrame({"sex": ["F"] * 600 + ["M"] * 400, "smokes": ["no", "yes"] * 500})
    >>> domain = {"sex": ["F", "M"], "smokes": ["no", "yes"]}
    >>> noisy = noisy_marginals(table, domain, epsilon=3.0, rng=np.random.default_rng(0))
    >>> noisy.scale, noisy.one_way["sex"].dtype
    (Fraction(1, 1), dtype('int64'))
    """
    epsilon = real_number("epsilon", epsilon, above=0)
    rng = numpy_generator("rng", rng)
    declared = _checked_domain(domain)
    chosen = _checked_pairs(pairs, declared)
    exact_one = {column: marginal(table, declared, [column]) for column in declared}
    exact_two = {pair: marginal(table, declared, pair) for pair in chosen}
    scale = Fraction(len(exact_one) + len(exact_two)) / Fraction(epsilon)

    def add_noise(counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return counts + discrete_laplace(scale=scale, rng=rng, size=counts.size).reshape(counts.shape)

    return NoisyMarginals(
        domain=declared,
        one_way={column: add_noise(counts) for column, counts in exact_one.items()},
        two_way={pair: add_noise(counts) for pair, counts in exact_two.items()},
        epsilon=epsilon,
        scale=scale,
    )


def consistent_probabilities(
    marginals: NoisyMarginals,
) -> tuple[float, dict[str, NDArray[np.float64]], dict[tuple[str, str], NDArray[np.float64]]]:
    """Turn noisy counts into probabilities that agree with each other.

    The number of rows is estimated from all the totals; each column from its
    own counts and from the pairs that contain it, each weighted by its
    precision. Columns are then pulled towards the uniform distribution, and
    pairs towards independence, by the part of their spread that noise alone
    would explain; the rest is made non-negative by Euclidean projection, and
    pairs are raked until their two margins are those of the columns.

    Parameters
    ----------
    marginals : NoisyMarginals
        From :func:`noisy_marginals`. Nothing else is used: no privacy is spent.

    Returns
    -------
    n : float
        Estimated number of rows, at least 1.
    one_way : dict of str to ndarray
        Probabilities of each column; they are positive or zero and add up to 1.
    two_way : dict of (str, str) to ndarray
        Joint probabilities of each measured pair, with these margins.

    References
    ----------
    [McKenna2021]

    Examples
    --------
    >>> table = pd.DataFrame({"sex": ["F"] * 600 + ["M"] * 400})
    >>> noisy = noisy_marginals(table, {"sex": ["F", "M"]}, epsilon=1e3, rng=np.random.default_rng(0))
    >>> n, one_way, _ = consistent_probabilities(noisy)
    >>> n, one_way["sex"].round(3)
    (1000.0, array([0.6, 0.4]))
    """
    tables = [*marginals.one_way.values(), *marginals.two_way.values()]
    n = sum(counts.sum() / counts.size for counts in tables) / sum(1 / counts.size for counts in tables)
    n = max(float(n), 1.0)
    variance = _noise_variance(marginals.scale)
    one_way = {}
    for column, counts in marginals.one_way.items():
        estimate, precision = counts.astype(np.float64), 1.0
        for pair, joint in marginals.two_way.items():
            if column in pair:
                other = 1 - pair.index(column)
                estimate = estimate + joint.sum(axis=other) / joint.shape[other]
                precision += 1 / joint.shape[other]
        uniform = np.full(counts.size, n / counts.size)
        one_way[column] = _denoise(estimate / precision, uniform, variance / precision) / n
    two_way = {}
    for (a, b), joint in marginals.two_way.items():
        independent = np.outer(one_way[a], one_way[b])
        two_way[a, b] = _rake(_denoise(joint, n * independent, variance) / n, one_way[a], one_way[b])
    return n, one_way, two_way


def mutual_information(joint: ArrayLike) -> float:
    """Return the mutual information of two columns, in nats.

    Parameters
    ----------
    joint : array-like of float, shape (n_values, n_values)
        Joint probabilities or counts; they are divided by their sum.

    Returns
    -------
    float
        0 for independent columns.

    Raises
    ------
    ValueError
        If an entry is negative or all are zero.

    Examples
    --------
    >>> mutual_information([[0.25, 0.25], [0.25, 0.25]])
    0.0
    >>> round(mutual_information([[0.5, 0], [0, 0.5]]), 4)  # log 2
    0.6931
    """
    p = _distribution("joint", real_array("joint", joint, ndim=2, at_least=0))
    independent = np.outer(p.sum(axis=1), p.sum(axis=0))
    seen = p > 0
    return max(float((p[seen] * np.log(p[seen] / independent[seen])).sum()), 0.0)


def maximum_spanning_tree(
    columns: Sequence[str], weights: Mapping[tuple[str, str], float]
) -> tuple[tuple[str | None, str], ...]:
    """Return the tree of the heaviest edges, as (parent, child) in an order in which to sample.

    Parameters
    ----------
    columns : sequence of str
        The nodes; the first is a root.
    weights : mapping of (str, str) to float
        Weight of each undirected edge that may be used. Where the edges do not
        connect all columns the result is a forest.

    Returns
    -------
    tuple of (str or None, str)
        One entry per column; ``None`` marks a root.

    References
    ----------
    [ChowLiu1968]

    Examples
    --------
    >>> maximum_spanning_tree(["a", "b", "c"], {("a", "b"): 0.1, ("a", "c"): 0.5, ("b", "c"): 0.4})
    ((None, 'a'), ('a', 'c'), ('c', 'b'))
    """
    edges = {**{(b, a): w for (a, b), w in weights.items()}, **weights}
    tree: list[tuple[str | None, str]] = []
    reached: list[str] = []
    while len(reached) < len(columns):
        crossing = [(a, b) for a, b in edges if a in reached and b not in reached]
        if crossing:
            parent, child = max(crossing, key=lambda edge: edges[edge])
            tree.append((parent, child))
        else:
            child = next(column for column in columns if column not in reached)
            tree.append((None, child))
        reached.append(child)
    return tuple(tree)


def sample_tree(
    tree: Sequence[tuple[str | None, str]],
    one_way: Mapping[str, NDArray[np.float64]],
    two_way: Mapping[tuple[str, str], NDArray[np.float64]],
    *,
    n_rows: int,
    rng: np.random.Generator,
) -> dict[str, NDArray[np.int64]]:
    """Sample rows from a tree: a root from its probabilities, a child given its parent.

    Parameters
    ----------
    tree : sequence of (str or None, str)
        From :func:`maximum_spanning_tree`.
    one_way, two_way : mapping to ndarray
        From :func:`consistent_probabilities`.
    n_rows : int
        Rows to sample, at least 0.
    rng : numpy.random.Generator
        Source of the rows.

    Returns
    -------
    dict of str to ndarray of int64, shape (n_rows,)
        For each column the positions in its list of declared values.

    Examples
    --------
    >>> joint = np.array([[0.5, 0.0], [0.0, 0.5]])
    >>> half = np.array([0.5, 0.5])
    >>> rows = sample_tree([(None, "a"), ("a", "b")], {"a": half, "b": half}, {("a", "b"): joint},
    ...                    n_rows=100, rng=np.random.default_rng(0))
    >>> bool((rows["a"] == rows["b"]).all())
    True
    """
    n_rows = integer("n_rows", n_rows, at_least=0)
    rng = numpy_generator("rng", rng)
    rows: dict[str, NDArray[np.int64]] = {}
    for parent, child in tree:
        if parent is None:
            weights = one_way[child][np.newaxis, :]
            given = np.zeros(n_rows, dtype=np.int64)
        else:
            weights = two_way[parent, child] if (parent, child) in two_way else two_way[child, parent].T
            given = rows[parent]
        cumulative = np.cumsum(weights, axis=1)
        # A uniform below the last entry, never equal to it, cannot pick a value of probability zero.
        uniforms = rng.random(n_rows) * cumulative[given, -1]
        rows[child] = (uniforms[:, np.newaxis] >= cumulative[given]).sum(axis=1)
    return rows


def synthesize(
    table: pd.DataFrame,
    domain: Domain,
    *,
    epsilon: float,
    rng: np.random.Generator,
    pairs: Iterable[tuple[str, str]] | None = None,
    n_rows: int | None = None,
) -> SyntheticTable:
    """Publish a synthetic table: measure with noise, fit a tree, sample.

    The whole budget goes to :func:`noisy_marginals`. Consistency, the tree and
    the sampled rows depend on the real table only through these measurements.

    Parameters
    ----------
    table, domain, epsilon, rng, pairs
        As :func:`noisy_marginals`; ``rng`` also draws the rows.
    n_rows : int, optional
        Rows to publish. By default the noisy estimate of the number of real
        rows, because under add/remove that number is private; for a very small
        epsilon the estimate can be anything, so state it.

    Returns
    -------
    SyntheticTable

    Raises
    ------
    ValueError
        As :func:`noisy_marginals`.

    References
    ----------
    [McKenna2021], [ChowLiu1968]

    Examples
    --------
    >>> table = pd.DataFrame({"sex": ["F"] * 600 + ["M"] * 400, "smokes": ["no", "yes"] * 500})
    >>> domain = {"sex": ["F", "M"], "smokes": ["no", "yes"]}
    >>> made = synthesize(table, domain, epsilon=1.0, rng=np.random.default_rng(0), n_rows=500)
    >>> made.table.shape
    (500, 2)
    >>> print(made.statement)  # doctest: +NORMALIZE_WHITESPACE
    epsilon = 1.0 (pure, delta = 0); unit of privacy: one row; neighbouring tables differ by adding or
    removing one row; 3 marginals measured with exact discrete Laplace noise of scale 3; domain and list
    of marginals declared, not read from the data; pseudo-random generator, not a cryptographic one
    """
    if n_rows is not None:
        n_rows = integer("n_rows", n_rows, at_least=0)
    measured = noisy_marginals(table, domain, epsilon=epsilon, rng=rng, pairs=pairs)
    n, one_way, two_way = consistent_probabilities(measured)
    weights = {pair: mutual_information(joint) for pair, joint in two_way.items()}
    tree = maximum_spanning_tree(list(one_way), weights)
    rows = sample_tree(tree, one_way, two_way, n_rows=round(n) if n_rows is None else n_rows, rng=rng)
    made = {
        column: pd.Categorical.from_codes(rows[column], dtype=pd.CategoricalDtype(list(values)))
        for column, values in measured.domain.items()
    }
    return SyntheticTable(
        table=pd.DataFrame(made),
        tree=tree,
        marginals=measured,
        epsilon=measured.epsilon,
        statement=measured.statement,
    )


def total_variation(p: ArrayLike, q: ArrayLike) -> float:
    """Return the total variation distance of two distributions.

    Parameters
    ----------
    p, q : array-like of float, same shape
        Probabilities or counts, not negative; each is divided by its sum.

    Returns
    -------
    float
        Between 0 and 1: the largest difference that the two can give to the
        probability of one event.

    Raises
    ------
    ValueError
        If the shapes differ, an entry is negative, or all are zero.

    Examples
    --------
    >>> total_variation([1, 1], [3, 1])
    0.25
    """
    p = real_array("p", p, at_least=0)
    q = real_array("q", q, shape=p.shape, at_least=0)
    return float(np.abs(_distribution("p", p) - _distribution("q", q)).sum() / 2)


def _checked_domain(domain: Domain) -> dict[str, tuple[Any, ...]]:
    declared = {column: tuple(values) for column, values in domain.items()}
    if not declared:
        raise ValueError("domain must declare at least one column")
    for column, values in declared.items():
        if not values or len(set(values)) != len(values) or any(pd.isna(value) for value in values):
            raise ValueError(
                f"domain of {column!r} must list distinct values, none of them missing, got {values}"
            )
    return declared


def _checked_pairs(
    pairs: Iterable[tuple[str, str]] | None, declared: Mapping[str, tuple[Any, ...]]
) -> list[tuple[str, str]]:
    if pairs is None:
        return list(itertools.combinations(declared, 2))
    chosen = [(_declared_column(a, declared), _declared_column(b, declared)) for a, b in pairs]
    if any(a == b for a, b in chosen) or len({frozenset(pair) for pair in chosen}) != len(chosen):
        raise ValueError(f"pairs must join different columns, each pair once, got {chosen}")
    return chosen


def _declared_column(column: str, declared: Mapping[str, tuple[Any, ...]]) -> str:
    if column not in declared:
        raise ValueError(f"column must be one of {', '.join(map(repr, declared))}, got {column!r}")
    return column


def _codes(table: pd.DataFrame, column: str, values: tuple[Any, ...]) -> NDArray[np.int64]:
    """Return the position of every entry of a column in the list of declared values."""
    if column not in table.columns:
        raise ValueError(f"table must have a column {column!r}, got {', '.join(map(repr, table.columns))}")
    codes = pd.Index(values).get_indexer(pd.Index(table[column]))
    if (codes < 0).any():
        stranger = table[column].iloc[int((codes < 0).argmax())]
        raise ValueError(
            f"table[{column!r}] must hold declared values only, got {stranger!r}; "
            "declare it, or replace it by a declared value first"
        )
    return codes.astype(np.int64)


def _noise_variance(scale: Fraction) -> float:
    """Return the variance 2a/(1-a)^2, a = exp(-1/scale), of discrete Laplace noise."""
    rate = float(1 / scale)
    return 2 * math.exp(-rate) / math.expm1(-rate) ** 2


def _denoise(counts: NDArray, target: NDArray[np.float64], variance: float) -> NDArray[np.float64]:
    """Pull counts towards a target as far as noise explains the distance, then make them non-negative.

    For independent Laplace noise the squared distance has mean K * variance and
    variance 5 * K * variance^2 over K counts. What lies within two standard
    deviations of the mean counts as noise, so that without a signal nothing
    but the target is usually left.
    """
    distance = float(((counts - target) ** 2).sum())
    noise = (counts.size + 2 * math.sqrt(5 * counts.size)) * variance
    kept = 1 - noise / distance if distance > noise else 0.0
    return _project(target + kept * (counts - target), target.sum())


def _project(values: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Return the nearest non-negative array with the given sum: subtract a constant, cut at zero."""
    ordered = np.sort(values, axis=None)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, ordered.size + 1)
    cut = excess[np.flatnonzero(ordered > excess)[-1]]
    return np.maximum(values - cut, 0.0)


def _rake(
    joint: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Scale rows and columns in turn until the margins are the given ones.

    A trace of independence keeps every cell that can be needed reachable, but
    raking creeps where much has to grow from that trace. Whatever it still
    misses is shared out independently, which makes both margins exact
    [Altschuler2017], algorithm 2.
    """
    joint = (1 - 1e-9) * joint + 1e-9 * np.outer(rows, columns)
    for _ in range(200):
        joint = joint * _ratio(rows, joint.sum(axis=1))[:, np.newaxis]
        joint = joint * _ratio(columns, joint.sum(axis=0))
        if np.abs(joint.sum(axis=1) - rows).sum() < 1e-12:
            return joint
    joint = joint * np.minimum(_ratio(rows, joint.sum(axis=1)), 1)[:, np.newaxis]
    joint = joint * np.minimum(_ratio(columns, joint.sum(axis=0)), 1)
    missing_rows = np.maximum(rows - joint.sum(axis=1), 0.0)
    missing_columns = np.maximum(columns - joint.sum(axis=0), 0.0)
    return joint + np.outer(missing_rows, missing_columns) / missing_rows.sum()


def _ratio(wanted: NDArray[np.float64], have: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(wanted, have, out=np.zeros_like(wanted), where=have > 0)


def _distribution(name: str, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    total = weights.sum()
    if not total > 0:
        raise ValueError(f"{name} must have a positive sum, got {total}")
    return weights / total
