"""The argument checks: what passes, what is refused, and in which words."""

import numpy as np
import pytest

from thousand_fingers.validation import (
    boolean_array,
    choice,
    integer,
    integer_array,
    numpy_generator,
    real_array,
    real_number,
)


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1.0), np.int64(1), np.array(1.0)])
def test_real_numbers_of_any_kind_become_floats(value):
    assert real_number("epsilon", value, above=0) == 1.0
    assert type(real_number("epsilon", value)) is float


@pytest.mark.parametrize("value", [True, np.True_, "1", b"1", None, [1.0, 2.0], 1j, 10**400])
def test_what_is_no_real_number_is_refused_by_name(value):
    with pytest.raises(TypeError, match="epsilon must be a real number, got"):
        real_number("epsilon", value)


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "words"),
    [
        ({"above": 0}, 5e-324, 0.0, "> 0"),
        ({"at_least": 0}, 0.0, -5e-324, ">= 0"),
        ({"below": 1}, np.nextafter(1, 0), 1.0, "< 1"),
        ({"at_most": 1}, 1.0, np.nextafter(1, 2), "<= 1"),
        ({"above": 0, "at_most": 1}, 1.0, 0.0, "> 0 and <= 1"),
    ],
)
def test_both_ends_of_an_interval_are_exact(bounds, inside, outside, words):
    assert real_number("rate", inside, **bounds) == inside
    with pytest.raises(ValueError, match=f"rate must be {words}, got"):
        real_number("rate", outside, **bounds)


def test_nan_never_passes_and_infinity_only_where_it_is_allowed():
    for value in (float("nan"), np.nan):
        with pytest.raises(ValueError, match="epsilon must be finite and > 0, got nan"):
            real_number("epsilon", value, above=0)
        with pytest.raises(ValueError, match="epsilon must be > 0, got nan"):
            real_number("epsilon", value, above=0, allow_infinite=True)
    with pytest.raises(ValueError, match="finite"):
        real_number("epsilon", np.inf, above=0)
    assert real_number("epsilon", np.inf, above=0, allow_infinite=True) == np.inf


@pytest.mark.parametrize("value", [1.0, True, "1", None, np.float64(2), [1]])
def test_a_count_is_a_whole_number_by_type(value):
    with pytest.raises(TypeError, match="k must be an integer, got"):
        integer("k", value)


def test_counts_are_bounded_and_plain():
    assert type(integer("k", np.uint8(3))) is int
    assert integer("k", 10**30) == 10**30
    with pytest.raises(ValueError, match="k must be >= 1 and <= 5, got 6"):
        integer("k", 6, at_least=1, at_most=5)


def test_choices_are_listed_in_their_order():
    assert choice("norm", "l2", ("linf", "l2")) == "l2"
    with pytest.raises(ValueError, match="norm must be one of 'linf', 'l2', got 'l1'"):
        choice("norm", "l1", ("linf", "l2"))


def test_real_arrays_are_checked_for_shape_range_and_finiteness():
    given = np.array([[0.0, 0.5]], dtype=np.float32)
    checked = real_array("scores", given, shape=(None, 2), at_least=0, at_most=1)
    assert checked.dtype == np.float64
    assert given.dtype == np.float32
    for values, error, message in [
        ([[0.0, 2.0]], ValueError, r"scores must be >= 0 and <= 1, got 2.0 at index \(0, 1\)"),
        ([[0.0, np.inf]], ValueError, r"scores must be finite, got inf at index \(0, 1\)"),
        ([0.0, 1.0], ValueError, r"scores must have shape \(any, 2\), got \(2,\)"),
        ([["a", "b"]], TypeError, "scores must hold real numbers"),
        (np.empty((0, 2)), ValueError, "scores must not be empty"),
    ]:
        with pytest.raises(error, match=message):
            real_array("scores", values, shape=(None, 2), at_least=0, at_most=1)
    with pytest.raises(ValueError, match="scores must have 2 axes"):
        real_array("scores", [1.0], ndim=2)
    assert real_array("scores", [], allow_empty=True).size == 0


def test_integer_arrays_refuse_floats_even_when_whole():
    assert integer_array("labels", np.array([0, 9], dtype=np.uint8), at_most=9).dtype == np.int64
    assert integer_array("labels", [], allow_empty=True).dtype == np.int64
    with pytest.raises(TypeError, match="labels must hold integers, got dtype float64"):
        integer_array("labels", [0.0, 1.0])
    with pytest.raises(ValueError, match=r"labels must be >= 0 and <= 9, got -1 at index \(1,\)"):
        integer_array("labels", [0, -1], at_least=0, at_most=9)


@pytest.mark.parametrize("value", [0, None, np.random.RandomState(0), np.random])
def test_only_a_generator_is_a_source_of_randomness(value):
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator"):
        numpy_generator("rng", value)
    rng = np.random.default_rng(0)
    assert numpy_generator("rng", rng) is rng


def test_who_is_a_member_is_said_by_booleans():
    assert boolean_array("members", [True, False], shape=(2,)).dtype == np.bool_
    for values in ([0, 1], [0.0, 1.0], ["True"]):
        with pytest.raises(TypeError, match="members must hold booleans, got dtype"):
            boolean_array("members", values)
    with pytest.raises(ValueError, match=r"members must have shape \(3\), got \(2,\)"):
        boolean_array("members", [True, False], shape=(3,))
    with pytest.raises(ValueError, match="members must not be empty"):
        boolean_array("members", np.zeros(0, dtype=bool))
