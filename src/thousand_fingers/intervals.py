"""Confidence intervals behind every rate and every mean that the book prints.

The interval of Clopper and Pearson [ClopperPearson1934] for a probability never
promises more confidence than it has, however few the trials and however rare the
event. All chapters use it; chapter 4's audits explain why it has to be exact. A
mean over seeds or splits gets the interval of Student.
"""

from __future__ import annotations

from typing import NamedTuple

from numpy.typing import ArrayLike
from scipy import special

from thousand_fingers.validation import choice, integer, real_array, real_number


class Interval(NamedTuple):
    """A confidence interval: unpacks as ``low, high``.

    Attributes
    ----------
    low, high : float
        Its ends, both included.
    """

    low: float
    high: float


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95, *, side: str = "both") -> Interval:
    """Return the exact confidence interval of a probability.

    Whatever the probability is, the interval contains it with probability at
    least ``confidence``.

    Parameters
    ----------
    successes : int
        Number of successes, between 0 and ``trials``.
    trials : int
        Number of independent trials, at least 1.
    confidence : float, default 0.95
        In (0, 1).
    side : {"both", "lower", "upper"}, default "both"
        ``"both"`` splits the failure probability between the two ends;
        ``"lower"`` spends it all on the lower end (the upper one is 1) and
        ``"upper"`` on the upper end (the lower one is 0).

    Returns
    -------
    Interval

    Raises
    ------
    ValueError
        If ``successes`` exceeds ``trials`` or another argument is out of range.

    References
    ----------
    [ClopperPearson1934]

    Examples
    --------
    >>> low, high = clopper_pearson(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    >>> round(clopper_pearson(95, 100, side="lower").low, 4)
    0.8977
    """
    trials = integer("trials", trials, at_least=1)
    successes = integer("successes", successes, at_least=0, at_most=trials)
    confidence = real_number("confidence", confidence, above=0, below=1)
    choice("side", side, ("both", "lower", "upper"))
    failure_probability = (1 - confidence) / (2 if side == "both" else 1)
    failures = trials - successes
    low = 0.0
    high = 1.0
    if side != "upper" and successes > 0:
        low = float(special.betaincinv(successes, failures + 1, failure_probability))
    if side != "lower" and failures > 0:
        high = float(special.betainccinv(successes + 1, failures, failure_probability))
    return Interval(low, high)


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the confidence interval of a mean, from a few independent measurements.

    Student's interval: exact if the measurements are normal, and a good approximation for means over
    seeds or splits that are not too skewed.

    Parameters
    ----------
    values : array-like of float, shape (n,)
        Independent measurements of the same thing, at least 2.
    confidence : float, default 0.95
        In (0, 1).

    Returns
    -------
    Interval

    Raises
    ------
    ValueError
        If there are fewer than two values, one is not finite, or ``confidence`` is out of range.

    Examples
    --------
    >>> low, high = mean_interval([0.94, 0.96, 0.95])
    >>> round(low, 4), round(high, 4)
    (0.9252, 0.9748)
    """
    measured = real_array("values", values, shape=(None,))
    confidence = real_number("confidence", confidence, above=0, below=1)
    n = measured.size
    if n < 2:
        raise ValueError(f"values must hold at least 2 measurements, got {n}")
    half = -float(special.stdtrit(n - 1, (1 - confidence) / 2)) * float(measured.std(ddof=1)) / n**0.5
    mean = float(measured.mean())
    return Interval(mean - half, mean + half)
