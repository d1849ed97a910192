"""How well a score tells members from non-members, where it matters: at few false alarms.

A receiver operating characteristic in which equal scores stand or fall together, its area, the share of
members found at a stated false-positive rate with exact limits, and intervals that resample examples, not
(model, example) pairs. That an attack has to be judged at low false-positive rates is the point of
[Carlini2022]; chapter 2 explains it, and every chapter with an attack on privacy measures with it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from thousand_fingers.intervals import Interval, clopper_pearson
from thousand_fingers.validation import boolean_array, integer, numpy_generator, real_array, real_number

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class OperatingPoint(NamedTuple):
    """One threshold of an attack: whom it accuses, and how often it is right.

    Attributes
    ----------
    threshold : float
        Scores at or above it are called members; plus infinity when nobody is.
    true_positives, members : int
        Members accused, and all members.
    false_positives, non_members : int
        Non-members accused, and all non-members.
    """

    threshold: float
    true_positives: int
    members: int
    false_positives: int
    non_members: int

    @property
    def tpr(self) -> float:
        """Share of members accused."""
        return self.true_positives / self.members

    @property
    def fpr(self) -> float:
        """Share of non-members accused, as realised: at most what was asked for."""
        return self.false_positives / self.non_members

    @property
    def tpr_interval(self) -> Interval:
        """Exact 95% interval of the true-positive rate, if the members are independent."""
        return clopper_pearson(self.true_positives, self.members)

    @property
    def fpr_interval(self) -> Interval:
        """Exact 95% interval of the false-positive rate, if the non-members are independent."""
        return clopper_pearson(self.false_positives, self.non_members)


@dataclass(frozen=True, eq=False)
class Roc:
    """All operating points of a score, from "nobody is a member" to "everybody is".

    Parameters
    ----------
    thresholds : ndarray of float, shape (points,)
        Falling; the first is plus infinity and accuses nobody.
    true_positives, false_positives : ndarray of int, shape (points,)
        Members and non-members at or above each threshold.
    """

    thresholds: Floats
    true_positives: Ints
    false_positives: Ints

    @property
    def members(self) -> int:
        """Number of members."""
        return int(self.true_positives[-1])

    @property
    def non_members(self) -> int:
        """Number of non-members."""
        return int(self.false_positives[-1])

    @property
    def tpr(self) -> Floats:
        """True-positive rate at each threshold."""
        return self.true_positives / self.members

    @property
    def fpr(self) -> Floats:
        """False-positive rate at each threshold."""
        return self.false_positives / self.non_members

    @property
    def auc(self) -> float:
        """Probability that a member scores above a non-member, ties counted half."""
        return float(np.trapezoid(self.tpr, self.fpr))

    @property
    def advantage(self) -> float:
        """Largest difference of true- and false-positive rate over all thresholds [Yeom2018]."""
        return float((self.tpr - self.fpr).max())

    def at_fpr(self, fpr: float) -> OperatingPoint:
        """Return the point with the most members found whose false-positive rate is at most ``fpr``.

        No interpolation: the threshold exists, and its realised rate is reported with it. A score that
        ties too many non-members at the top finds nobody.

        Parameters
        ----------
        fpr : float
            False-positive rate allowed, in [0, 1].

        Returns
        -------
        OperatingPoint

        Examples
        --------
        >>> roc_curve([1.0, 1.0, 1.0, 1.0], [True, False, True, False]).at_fpr(0.01).tpr
        0.0
        """
        allowed = _allowed(fpr, self.non_members)
        last = int(np.searchsorted(self.false_positives, allowed, side="right")) - 1
        return OperatingPoint(
            float(self.thresholds[last]),
            int(self.true_positives[last]),
            self.members,
            int(self.false_positives[last]),
            self.non_members,
        )


def roc_curve(scores: ArrayLike, members: ArrayLike) -> Roc:
    """Return the receiver operating characteristic of a membership score.

    Equal scores rise and fall together, because no threshold separates them: the curve has one corner
    for each distinct score. Between corners it is drawn straight, which counts a tie as half a win.

    Parameters
    ----------
    scores : array-like of float
        Higher means "member". Infinities are allowed, NaN is not. Any shape.
    members : array-like of bool, same shape
        The truth; both kinds must occur.

    Returns
    -------
    Roc

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, a score is NaN, or one of the kinds is missing.

    References
    ----------
    [Fawcett2006]

    Examples
    --------
    >>> roc = roc_curve([9.0, 9.0, 5.0, 5.0], [True, False, True, False])
    >>> roc.fpr.tolist(), roc.tpr.tolist(), roc.auc
    ([0.0, 0.5, 1.0], [0.0, 0.5, 1.0], 0.5)
    """
    values, truth = _checked(scores, members)
    values, truth = values.ravel(), truth.ravel()
    order = np.argsort(values, kind="stable")[::-1]
    ordered = values[order]
    ends = _last_of_ties(ordered)
    return Roc(
        np.concatenate([[np.inf], ordered[ends]]),
        np.concatenate([[0], np.cumsum(truth[order])[ends]]),
        np.concatenate([[0], np.cumsum(~truth[order])[ends]]),
    )


def log_tpr_fpr(tpr: float, fpr: float) -> float:
    r"""Return :math:`\tau@\mathrm{FPR} = \log(\mathrm{TPR}/\mathrm{FPR})`, the natural logarithm.

    It compares with a privacy budget: under :math:`(\varepsilon, 0)`-differential privacy no attack on
    one example exceeds :math:`\varepsilon`. As computed from measured rates it is a point estimate and
    bounds nothing; a lower bound on :math:`\varepsilon` takes confidence limits of both rates, as
    :func:`thousand_fingers.auditing.epsilon_lower_bound` does.

    Parameters
    ----------
    tpr : float
        True-positive rate, in [0, 1].
    fpr : float
        False-positive rate at which it was measured, in (0, 1].

    Returns
    -------
    float
        Minus infinity if nobody was found.

    Raises
    ------
    TypeError, ValueError
        If a rate is out of range.

    Examples
    --------
    >>> round(log_tpr_fpr(0.18438, 0.001), 3)
    5.217
    """
    tpr = real_number("tpr", tpr, at_least=0, at_most=1)
    fpr = real_number("fpr", fpr, above=0, at_most=1)
    return math.log(tpr) - math.log(fpr) if tpr > 0 else -math.inf


def non_members_needed(fpr: float, *, factor: float = 2.0, confidence: float = 0.95) -> int:
    """Return how many non-members it takes to speak of a false-positive rate.

    The answer is the smallest number of independent non-members for which the exact interval around
    the measured rate stays within ``factor`` of ``fpr`` on both sides.

    Parameters
    ----------
    fpr : float
        The rate, in (0, 1).
    factor : float, default 2
        At least 1.01.
    confidence : float, default 0.95
        Of the interval, in (0, 1).

    Returns
    -------
    int

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> non_members_needed(0.01), non_members_needed(0.001)
    (1100, 12000)
    """
    fpr = real_number("fpr", fpr, above=0, below=1)
    factor = real_number("factor", factor, at_least=1.01)
    tail = (1 - real_number("confidence", confidence, above=0, below=1)) / 2

    def fits(false_positives: int, fewest: float, most: float) -> bool:
        low = _relative_limits(false_positives, fewest, fpr, tail).low
        high = _relative_limits(false_positives, most, fpr, tail).high
        return low >= 1 / factor and high <= min(1 / fpr, factor)

    def may_fit(false_positives: int) -> bool:  # the kindest that a whole number of non-members can be
        smallest = false_positives / fpr
        return fits(false_positives, smallest, smallest + 1)

    most = 1
    while not may_fit(most):
        most *= 2
    false_positives = bisect.bisect_left(range(most + 1), True, lo=1, key=may_fit)
    n = _fewest(false_positives, fpr)
    while not fits(false_positives, n, n):
        false_positives += 1
        n = _fewest(false_positives, fpr)
    return n


def supported_point(roc: Roc, fpr: float, *, factor: float = 2.0) -> OperatingPoint | None:
    """Return :meth:`Roc.at_fpr`, or None where there are too few non-members to speak of such a rate.

    Parameters
    ----------
    roc : Roc
        The curve.
    fpr : float
        False-positive rate allowed, in (0, 1).
    factor : float, default 2
        As in :func:`non_members_needed`, which decides.

    Returns
    -------
    OperatingPoint or None

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> roc = roc_curve([3.0, 2.0, 1.0, 0.0], [True, True, False, False])
    >>> supported_point(roc, 0.01) is None
    True
    """
    return roc.at_fpr(fpr) if roc.non_members >= non_members_needed(fpr, factor=factor) else None


def positive_predictive_value(tpr: float, fpr: float, prior: float) -> float:
    """Return the probability that an accused example is a member.

    Parameters
    ----------
    tpr, fpr : float
        Rates of the attack, in [0, 1], not both 0.
    prior : float
        Share of members among the examples that are tested, in [0, 1].

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or nobody would be accused.

    Examples
    --------
    >>> round(positive_predictive_value(0.112, 0.001, prior=0.01), 2)
    0.53
    """
    tpr = real_number("tpr", tpr, at_least=0, at_most=1)
    fpr = real_number("fpr", fpr, at_least=0, at_most=1)
    prior = real_number("prior", prior, at_least=0, at_most=1)
    right, wrong = prior * tpr, (1 - prior) * fpr
    if right + wrong == 0:
        raise ValueError("nobody would be accused: the probability is not defined")
    return right / (right + wrong)


def chance_interval(members: int, non_members: int, confidence: float = 0.95) -> Interval:
    """Return where the AUC of a blind attacker lies: one whose scores do not depend on membership.

    Under that hypothesis the mean of the area is one half and its variance is known exactly; the normal
    shape is an approximation, good from about ten of each kind on. Ties make the interval too wide,
    never too narrow.

    Parameters
    ----------
    members, non_members : int
        Independent examples of each kind, at least 1.
    confidence : float, default 0.95
        In (0, 1).

    Returns
    -------
    Interval

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [MannWhitney1947]

    Examples
    --------
    >>> low, high = chance_interval(500, 500)
    >>> round(low, 3), round(high, 3)
    (0.464, 0.536)
    """
    members = integer("members", members, at_least=1)
    non_members = integer("non_members", non_members, at_least=1)
    confidence = real_number("confidence", confidence, above=0, below=1)
    deviation = math.sqrt((members + non_members + 1) / (12 * members * non_members))
    half = float(special.ndtri((1 + confidence) / 2)) * deviation
    return Interval(max(0.0, 0.5 - half), min(1.0, 0.5 + half))


def auc_difference_interval(
    first: ArrayLike, second: ArrayLike, members: ArrayLike, confidence: float = 0.95
) -> Interval:
    """Return the interval of the difference between the areas of two scores of the same examples.

    Both scores are good or bad on the same examples, so that the two areas move together; intervals of
    each alone would hide a difference that is there. The variance is estimated without a hypothesis on
    the scores' distribution; the normal shape is an approximation.

    Parameters
    ----------
    first, second : array-like of float, shape (examples,)
        Higher means "member".
    members : array-like of bool, shape (examples,)
        The truth, at least two of each kind.
    confidence : float, default 0.95
        In (0, 1).

    Returns
    -------
    Interval
        Of the area of ``first`` minus that of ``second``.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, a score is NaN, or there are fewer than two of a kind.

    References
    ----------
    [DeLong1988]

    Examples
    --------
    >>> scores, members = [5.0, 4.0, 3.0, 2.0], [True, True, False, False]
    >>> auc_difference_interval(scores, scores, members)
    Interval(low=0.0, high=0.0)
    """
    confidence = real_number("confidence", confidence, above=0, below=1)
    wins, losses = [], []
    for scores in (first, second):
        values, truth = _checked(scores, members)
        if values.ndim != 1 or min(truth.sum(), (~truth).sum()) < 2:
            raise ValueError("members must have one axis and hold at least two of each kind")
        ranks = stats.rankdata(values)
        # for each member the share of non-members below it, for each non-member that of members above it
        wins.append((ranks[truth] - stats.rankdata(values[truth])) / (~truth).sum())
        losses.append(1 - (ranks[~truth] - stats.rankdata(values[~truth])) / truth.sum())
    gains, costs = wins[0] - wins[1], losses[0] - losses[1]
    deviation = math.sqrt(gains.var(ddof=1) / gains.size + costs.var(ddof=1) / costs.size)
    middle, half = float(gains.mean()), float(special.ndtri((1 + confidence) / 2)) * deviation
    return Interval(middle - half, middle + half)


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Percentile intervals of an attack's figures of merit.

    Parameters
    ----------
    auc : Interval
        Of the area.
    tpr : tuple of Interval
        Of the true-positive rate, one for each false-positive rate asked for.
    resamples : ndarray of float64, shape (n_resamples, 1 + rates)
        Area and true-positive rates of every resample, for :func:`paired_interval`.
    """

    auc: Interval
    tpr: tuple[Interval, ...]
    resamples: Floats


def bootstrap_over_examples(
    scores: ArrayLike,
    members: ArrayLike,
    *,
    rng: np.random.Generator,
    fpr: tuple[float, ...] = (0.01, 0.001),
    n_resamples: int = 500,
    confidence: float = 0.95,
) -> Bootstrap:
    """Return intervals by drawing examples anew, with replacement.

    When several models are attacked with the same examples, the scores of one example go together: what is
    drawn is a column with all its scores. Drawing single (model, example) pairs would pretend that there
    is more evidence than there is, and give intervals two to three times too narrow. The rate is that of
    an existing threshold in every resample, as in :meth:`Roc.at_fpr`.

    Parameters
    ----------
    scores : array-like of float, shape (examples,) or (models, examples)
        Higher means "member".
    members : array-like of bool, same shape
        The truth for each model.
    rng : numpy.random.Generator
        Source of randomness.
    fpr : tuple of float, default (0.01, 0.001)
        False-positive rates.
    n_resamples : int, default 500
        At least 2.
    confidence : float, default 0.95
        In (0, 1).

    Returns
    -------
    Bootstrap

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Efron1979]

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> members = rng.random((4, 200)) < 0.5
    >>> bounds = bootstrap_over_examples(rng.normal(size=(4, 200)) + members, members, rng=rng)
    >>> bounds.auc.low < 0.76 < bounds.auc.high  # two Gaussians one standard deviation apart
    True
    """
    values, truth = _checked(scores, members)
    if values.ndim not in (1, 2):
        raise ValueError(f"scores must have one or two axes, got shape {values.shape}")
    numpy_generator("rng", rng)
    if not isinstance(fpr, Sequence) or isinstance(fpr, str):
        raise TypeError(f"fpr must be a tuple of rates, got {fpr!r}")
    for rate in fpr:
        _allowed(rate, 1)
    n_resamples = integer("n_resamples", n_resamples, at_least=2)
    confidence = real_number("confidence", confidence, above=0, below=1)
    values, truth = np.atleast_2d(values), np.atleast_2d(truth)
    n = values.shape[1]
    order = np.argsort(values, axis=None, kind="stable")[::-1]
    ends = _last_of_ties(values.ravel()[order])
    example, truth = order % n, truth.ravel()[order]
    figures = np.empty((n_resamples, 1 + len(fpr)))
    for figure in figures:
        while True:  # a resample without one of the kinds has no curve
            drawn = np.bincount(rng.integers(n, size=n), minlength=n)[example]
            found, accused = np.cumsum(drawn * truth)[ends], np.cumsum(drawn * ~truth)[ends]
            if found[-1] and accused[-1]:
                break
        found, accused = np.concatenate([[0], found]), np.concatenate([[0], accused])
        figure[0] = np.trapezoid(found, accused) / (int(found[-1]) * int(accused[-1]))
        for i, rate in enumerate(fpr):
            last = np.searchsorted(accused, _allowed(rate, int(accused[-1])), side="right") - 1
            figure[1 + i] = found[last] / found[-1]
    tail = (1 - confidence) / 2
    low, high = np.quantile(figures, [tail, 1 - tail], axis=0)
    limits = [Interval(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    return Bootstrap(limits[0], tuple(limits[1:]), figures)


def paired_interval(first: ArrayLike, second: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the percentile interval of the difference between two figures that were resampled alike.

    Attacks on the same examples are good or bad on the same ones, so that intervals of each alone can overlap
    where the difference is plain. Two calls of :func:`bootstrap_over_examples` draw the same examples if
    their generators start from the same seed; resamples drawn apart give an interval that is too wide.

    Parameters
    ----------
    first, second : array-like of float, shape (n_resamples,)
        One figure in every resample, such as a column of :attr:`Bootstrap.resamples`.
    confidence : float, default 0.95
        In (0, 1).

    Returns
    -------
    Interval
        Of ``first`` minus ``second``.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, there are fewer than two resamples, or a number is not finite.

    References
    ----------
    [Efron1979]

    Examples
    --------
    >>> paired_interval([0.70, 0.74, 0.72], [0.60, 0.64, 0.62]).low > 0.09
    True
    """
    figures = real_array("first", first, ndim=1)
    others = real_array("second", second, shape=figures.shape)
    confidence = real_number("confidence", confidence, above=0, below=1)
    if figures.size < 2:
        raise ValueError(f"first must hold at least 2 resamples, got {figures.size}")
    tail = (1 - confidence) / 2
    low, high = np.quantile(figures - others, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _checked(scores: ArrayLike, members: ArrayLike) -> tuple[Floats, Bools]:
    values = np.asarray(scores)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"scores must hold real numbers, got dtype {values.dtype}")
    values = values.astype(np.float64, copy=False)
    truth = boolean_array("members", members, shape=values.shape)
    if np.isnan(values).any():
        where = tuple(int(i) for i in np.argwhere(np.isnan(values))[0])
        raise ValueError(f"scores must not be NaN, got nan at index {where}")
    if truth.all() or not truth.any():
        raise ValueError("members must hold both kinds, got one")
    return values, truth


def _last_of_ties(ordered: Floats) -> NDArray[np.intp]:
    """Return the last position of each run of equal values."""
    return np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))


def _allowed(fpr: float, non_members: int) -> int:
    """Return how many false positives a rate allows: the most whose share, as a double, is at most the rate.

    So 0.1 of 10 is 1, and a third of 3 is 1, although the doubles 0.1 and 1/3 are not these numbers.
    """
    rate = real_number("fpr", fpr, at_least=0, at_most=1)
    floor = math.floor(Fraction(rate) * non_members)
    return floor + (floor < non_members and (floor + 1) / non_members <= rate)


def _relative_limits(false_positives: int, n: float, fpr: float, tail: float) -> Interval:
    """Return the limits of Clopper and Pearson in units of a rate, also where no double can count to n."""
    k = float(false_positives)
    if fpr < 1e-12:  # the Poisson limit, exact to twelve digits
        return Interval(float(special.gammaincinv(k, tail)) / k, float(special.gammainccinv(k + 1, tail)) / k)
    high = float(special.betainccinv(k + 1, n - k, tail)) if n > k else 1.0
    return Interval(float(special.betaincinv(k, n - k + 1, tail)) / fpr, high / fpr)


def _fewest(false_positives: int, fpr: float) -> int:
    """Return the smallest number of non-members among which a rate allows so many false positives."""
    n = math.ceil(false_positives / Fraction(fpr))
    return n - (n > false_positives and _allowed(fpr, n - 1) >= false_positives)
