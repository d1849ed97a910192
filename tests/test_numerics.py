"""Bisection to neighbouring doubles."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from thousand_fingers.numerics import smallest_satisfying


@given(
    st.floats(min_value=-1e300, max_value=1e300),
    st.floats(min_value=1e-3, max_value=1e3),
)
@settings(deadline=None)
def test_it_finds_the_very_double_at_which_the_condition_starts(start, distance):
    low, high = start - distance * (1 + abs(start)), start + distance * (1 + abs(start))
    assert smallest_satisfying(lambda x: x >= start, low, high) == start


def test_it_reaches_subnormal_numbers():
    smallest = math.nextafter(0.0, 1.0)
    assert smallest_satisfying(lambda x: x > 0, 0.0, 1.0) == smallest


def test_the_ends_are_not_tried():
    tried = []
    smallest_satisfying(lambda x: bool(tried.append(x)) or x > 0.3, 0.0, 1.0)
    assert 0.0 not in tried
    assert 1.0 not in tried
