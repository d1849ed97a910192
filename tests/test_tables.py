"""Equivalence classes: the same rows are the same, however the table is stored."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from thousand_fingers.tables import checked_columns, column_codes, combine_codes, equivalence_classes

VALUES = st.sampled_from([None, 0, 1, 2])
ROWS = st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=30)


def brute_sizes(rows: list[tuple[object, ...]]) -> list[int]:
    counts = Counter(rows)
    return [counts[row] for row in rows]


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_sizes_equal_a_count_by_hand(rows):
    table = pd.DataFrame(rows, columns=["a", "b", "c"], dtype=object)
    found = equivalence_classes(table, ["a", "b", "c"])
    assert found.row_sizes.tolist() == brute_sizes(rows)
    assert found.k == min(brute_sizes(rows))
    assert found.n_classes == len(set(rows))
    assert found.n_unique == brute_sizes(rows).count(1)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_index_dtype_categories_and_row_order_do_not_matter(rows, random):
    table = pd.DataFrame(rows, columns=["a", "b", "c"], dtype=object)
    expected = equivalence_classes(table, ["a", "b", "c"]).row_sizes
    for dtype in ("Int64", "float64"):
        assert_array_equal(equivalence_classes(table.astype(dtype), ["a", "b", "c"]).row_sizes, expected)
    levels = pd.CategoricalDtype([7, 2, 1, 0], ordered=True)
    category = table.astype(levels).set_axis([5] * len(rows))  # unused level, repeated index
    assert_array_equal(equivalence_classes(category, ("c", "a", "b")).row_sizes, expected)
    order = list(range(len(rows)))
    random.shuffle(order)
    assert_array_equal(equivalence_classes(table.iloc[order], ["a", "b", "c"]).row_sizes, expected[order])


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_another_column_never_makes_a_class_larger(rows):
    table = pd.DataFrame(rows, columns=["a", "b", "c"], dtype=object)
    two = equivalence_classes(table, ["a", "b"]).row_sizes
    three = equivalence_classes(table, ["a", "b", "c"]).row_sizes
    assert (three <= two).all()


def test_the_whole_table_twice_doubles_k():
    table = pd.DataFrame({"a": [1, 1, 2, 2, 2], "b": list("xxyyy")})
    twice = pd.concat([table, table])
    assert equivalence_classes(twice, ["a", "b"]).k == 2 * equivalence_classes(table, ["a", "b"]).k


@pytest.mark.parametrize("base", [3, 5_000])
def test_combinations_are_numbered_the_same_by_counting_and_by_hashing(base):
    rng = np.random.default_rng(0)
    columns = [(rng.integers(0, 3, 50), base) for _ in range(3)]
    labels = combine_codes(columns)
    rows = list(zip(*(codes.tolist() for codes, _ in columns), strict=True))
    assert len(set(zip(rows, labels.tolist(), strict=True))) == len(set(rows)) == labels.max() + 1


def test_very_many_possible_combinations_do_not_overflow():
    codes = np.arange(40) % 20
    labels = combine_codes([(codes, 2**40)] * 5)
    assert_array_equal(np.bincount(labels), np.full(20, 2))


def test_missing_values_can_be_refused():
    table = pd.DataFrame({"a": [1.0, np.nan, np.nan]})
    with pytest.raises(ValueError, match="column 'a' must have no missing value, found 2"):
        equivalence_classes(table, ["a"], missing="refuse")
    with pytest.raises(ValueError, match="missing must be one of"):
        equivalence_classes(table, ["a"], missing="drop")


@pytest.mark.case("ANO-10")
def test_bad_columns_are_refused_by_name():
    table = pd.DataFrame({"age": [30], "sex": ["f"]})
    assert checked_columns(table, "columns", ("age", "sex")) == ["age", "sex"]
    with pytest.raises(TypeError, match="got the text 'age': write \\['age'\\]"):
        equivalence_classes(table, "age")
    with pytest.raises(ValueError, match="'age', 'sex'"):
        equivalence_classes(table, ["zip"])
    with pytest.raises(ValueError, match="'age' twice"):
        equivalence_classes(table, ["age", "age"])
    with pytest.raises(ValueError, match="at least one column"):
        equivalence_classes(table, [])
    with pytest.raises(ValueError, match="at least one row"):
        equivalence_classes(table.iloc[:0], ["age"])
    with pytest.raises(TypeError, match="must be a pandas"):
        equivalence_classes([30], ["age"])


def test_two_columns_of_one_name_are_refused():
    table = pd.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(ValueError, match="found 2 for 'a'"):
        equivalence_classes(table, ["a"])


def test_values_of_a_category_that_do_not_occur_are_not_listed():
    column = pd.Series(pd.Categorical(["b", None, "b"], categories=["a", "b"]))
    codes, values = column_codes(column)
    assert codes.tolist() == [0, -1, 0]
    assert values == ["b"]


def test_no_column_of_codes_is_refused():
    with pytest.raises(ValueError, match="at least one column"):
        combine_codes([])
