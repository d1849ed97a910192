"""Small numerical tools that several chapters need.

So far one: the search for the smallest number that satisfies a condition, by
bisection down to neighbouring doubles. The calibrations of chapters 4 and 5
(noise for a budget, budget for a noise) use it, and so end on the side that
keeps the promise.
"""

from __future__ import annotations

from collections.abc import Callable


def smallest_satisfying(condition: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest double in an interval at which a monotone condition holds.

    Bisection goes on until the two ends are neighbouring doubles, so there
    is no tolerance to choose, and the number returned has itself been tried:
    it satisfies the condition as computed.

    Parameters
    ----------
    condition : callable
        False below some point, true from there on.
    low : float
        A number at which the condition is false (it is not tried).
    high : float
        A number at which it is true (it is not tried either).

    Returns
    -------
    float

    Examples
    --------
    >>> smallest_satisfying(lambda x: x * x >= 2, 0.0, 2.0)
    1.4142135623730951
    """
    while low < (middle := low + (high - low) / 2) < high:
        if condition(middle):
            high = middle
        else:
            low = middle
    return high
