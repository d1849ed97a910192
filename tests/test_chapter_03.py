"""Sentences of chapter 3 about tables that no module's test covers, and its drawings."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from thousand_fingers.anonymity import anonymity_report, mondrian
from thousand_fingers.figures import anonymity as draw
from thousand_fingers.tables import equivalence_classes


def test_coarsening_that_is_not_nested_can_make_k_smaller() -> None:
    people = pd.DataFrame({"age": [10, 10, 20, 20]})
    across = people.assign(age=["young", "young", "young", "old"])  # tears the twenties apart
    assert equivalence_classes(people, ["age"]).k == 2
    assert equivalence_classes(across, ["age"]).k == 1


def test_the_mean_risk_over_rows_is_classes_per_row_and_the_mean_over_classes_is_not() -> None:
    table = pd.DataFrame({"q": list("abbbbbbbbb")})
    sizes = equivalence_classes(table, ["q"]).row_sizes
    assert (1 / sizes).mean() == pytest.approx(anonymity_report(table, ["q"]).average_risk)
    assert np.mean([1 / 1, 1 / 9]) != pytest.approx((1 / sizes).mean())


@pytest.mark.parametrize(("t", "rare"), [(0.1, 0.001), (0.05, 0.01)])
def test_a_rare_value_may_be_as_much_likelier_as_the_chapter_says(t: float, rare: float) -> None:
    whole = np.array([rare, 1 - rare])
    inside = np.array([rare + t, 1 - rare - t])
    assert np.abs(inside - whole).sum() / 2 == pytest.approx(t)
    assert inside[0] / whole[0] == pytest.approx(1 + t / rare)


def test_only_the_cut_before_the_median_helps_when_most_rows_tie_at_the_top() -> None:
    values = np.array([1, 2, 3, 3, 3, 3])
    median = np.sort(values)[(values.size - 1) // 2]
    assert (values > median).sum() == 0
    assert mondrian(pd.DataFrame({"x": values}), ["x"], 2).sizes.tolist() == [2, 4]


def test_the_salaries_move_as_the_solution_counts() -> None:
    gaps = np.cumsum(np.isin(np.arange(3, 12), [3, 4, 5]) / 3) - np.arange(1, 10) / 9
    np.testing.assert_allclose(9 * gaps[:-1], [2, 4, 6, 5, 4, 3, 2, 1])
    assert gaps[:-1].sum() == pytest.approx(27 / 9)
    assert gaps[:-1].sum() / 8 == pytest.approx(0.375)


def test_the_zoom_draws_every_cell_and_a_bar_for_every_class_of_several() -> None:
    table = pd.DataFrame({"born": ["84", "84", "92"], "illness": ["gout", "gout", "flu"]})
    panels = Figure().subplots(1, 1)
    draw.zoom_levels([panels], {"year": (table, np.array([0, 0, 1]))})
    texts = [text.get_text() for text in panels.texts]
    assert texts.count("gout") == 2
    assert "year" in texts
    assert len(panels.lines) == 1 + 1  # the rule under the head, and one bar


def test_bars_of_the_promises_are_as_long_as_their_values() -> None:
    rows = pd.DataFrame({"price": [0.1, 0.5], "t": [0.2, 0.3]}, index=["k", "l"])
    panels = Figure().subplots(1, 2)
    draw.promises(panels, rows)
    for panel, name in zip(panels, rows, strict=True):
        assert [bar.get_width() for bar in panel.containers[0]] == rows[name].tolist()


def test_curves_name_every_k() -> None:
    panel = Figure().subplots()
    draw.curves(panel, [2, 5, 100], {"boxes": [0.0, 0.1, 0.2]}, "lost")
    assert [label.get_text() for label in panel.get_xticklabels()] == ["2", "5", "100"]
    assert panel.get_ylabel() == "lost"


def test_every_drawing_is_used_by_the_chapter_and_explains_itself() -> None:
    functions = inspect.getmembers(draw, inspect.isfunction)
    public = {f for name, f in functions if f.__module__ == draw.__name__ and not name.startswith("_")}
    source = (Path(__file__).parents[1] / "chapters" / "03_k_anonymity.ipynb").read_text(encoding="utf-8")
    assert public
    for function in public:
        assert function.__doc__
        assert f"draw.{function.__name__}(" in source
