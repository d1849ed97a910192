"""Sentences of chapter 2 that no module's test covers, what is only quoted, and its drawings."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from thousand_fingers.book.notebook import read_notebook, records_of
from thousand_fingers.figures import membership as draw
from thousand_fingers.roc import roc_curve

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "chapters" / "02_membership_inference.ipynb"
PAGE = NOTEBOOK.read_text(encoding="utf-8")
RECORDS = {name: record.value for name, record in records_of(read_notebook(NOTEBOOK)).items()}


@pytest.mark.case("MIP-4")
def test_what_others_published_about_attacks_is_quoted_and_never_promised() -> None:
    claims = tomllib.loads((ROOT / "data" / "ledger" / "02.toml").read_text(encoding="utf-8"))
    published = {
        name: claim for name, claim in claims.items() if name != "allow" and claim["kind"] == "published"
    }
    assert published
    for name, claim in published.items():
        assert claim["ours"] is False  # other data, other networks, other recipes: no check may insist on it
        assert f'record(\\"{name}\\"' not in PAGE
        assert f"published.{name}:" in PAGE


def test_certainty_about_one_in_twenty_is_an_area_of_little_more_than_a_half() -> None:
    members = np.arange(20_000) < 10_000
    scores = np.where(np.arange(20_000) < 500, 1.0, 0.0)  # one member in twenty stands out, the rest ties
    roc = roc_curve(scores, members)
    assert roc.auc == pytest.approx(0.525)
    assert roc.at_fpr(0.001).tpr == 0.05


def test_noise_cannot_be_aimed() -> None:
    rng = np.random.default_rng(0)
    even, aimed = np.full(4, 0.5), np.array([1.0, 0.0, 0.0, 0.0])
    sums = [(rng.normal(size=(200_000, 4)) * spread).sum(axis=1) for spread in (even, aimed)]
    assert [s.std() for s in sums] == pytest.approx([1.0, 1.0], rel=0.01)


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("learned", 1),  # "more than the loss threshold"
        ("rmia", 1),  # "not the stronger one"
        ("noise", 1),  # the order of the arms: no defence, noise, weights with noise
        ("both", 1),
        ("on_top", 1),
        ("rmia_on_weights", 1),
        ("borrowed", 1),  # "less than one's own"
        ("longer", 1),  # "even the last step"
        ("copies", 1),
        ("aimed", 0),  # "noise cannot be aimed"
        ("dp", 0),  # "does not tell the two apart"
        ("decay", 0),  # "hides nobody"
    ],
)
def test_what_the_text_says_of_two_attacks_or_trainings_is_in_the_interval_of_their_difference(name, sign):
    low, value, high = (float(RECORDS[f"mi.versus.{name}{end}"]) for end in (".from", "", ".to"))
    assert low <= value <= high
    assert low > 0 if sign else low <= 0 <= high
    assert f"mi.versus.{name}:" in PAGE or name == "on_top"


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("loss.at_1_per_mille", "calibrated.at_1_per_mille"),
        ("learned.at_1_per_mille", "lira.at_1_per_mille"),
        ("few.per_example.8", "few.shrunk.8"),  # "larger than the intervals"
        ("defended.naive.at_1_per_mille", "defended.at_1_per_mille"),
        ("defended.at_1_per_mille", "lira.at_1_per_mille"),
        ("group.quiet.after.at_1_per_mille", "group.quiet.before.at_1_per_mille"),
        ("group.others.before.at_1_per_mille", "group.others.after.at_1_per_mille"),  # the onion
        ("onion.inside.at_1_percent", "onion.lot.at_1_percent"),
        ("onion.lot.at_1_percent", "onion.peeled.at_1_percent"),
        ("label.many.auc", "lira.auc"),
        ("calm.loss.auc", "calm.auc"),
        ("gap.one_epoch.auc", "gap.three_epochs.auc"),
        ("gap.three_epochs.auc", "gap.ten_epochs.auc"),
    ],
)
def test_where_two_intervals_are_compared_they_lie_apart(less, more):
    assert RECORDS[f"mi.{less}.to"] < RECORDS[f"mi.{more}.from"]


def test_the_loss_threshold_at_one_in_a_thousand_is_guessing():
    assert RECORDS["mi.loss.at_1_per_mille.from"] < 0.001 < RECORDS["mi.loss.at_1_per_mille.to"]


def test_the_curves_of_the_arms_are_steps_and_leave_out_what_a_logarithm_cannot_show() -> None:
    ax = Figure().subplots()
    fpr, tpr = [1e-4, 1e-2, 1.0], np.array([0.0, 0.3, 1.0])
    draw.arms(ax, fpr, {"weights": tpr, "noise": tpr**2})
    first, second, guessing = ax.lines
    np.testing.assert_allclose(first.get_xdata(), fpr[1:])
    np.testing.assert_allclose(second.get_ydata(), [0.09, 1.0])
    assert first.get_linestyle() != second.get_linestyle()
    assert guessing.get_label() == "guessing"


def with_ends(*values: float) -> np.ndarray:
    return np.array([[value, value - 0.01, value + 0.02] for value in values])


def test_bars_end_where_the_intervals_do() -> None:
    rows = np.stack([with_ends(0.8, 0.9), with_ends(0.7, 0.75), with_ends(0.02, 0.03)], axis=1)
    panels = Figure().subplots(1, 2)
    draw.trade(panels, {"weights": rows})
    ends = [segment[:, 1] for segment in panels[0].collections[0].get_segments()]
    np.testing.assert_allclose(ends, [[0.69, 0.72], [0.74, 0.77]])
    panels = Figure().subplots(1, 2)
    draw.budgets(panels, [8, 16], {"shrunk": np.stack([with_ends(0.7, 0.8), with_ends(0.05, 0.1)], axis=1)})
    ends = [segment[:, 1] for segment in panels[1].collections[0].get_segments()]
    np.testing.assert_allclose(ends, [[0.04, 0.07], [0.09, 0.12]])


def test_the_front_is_drawn_as_steps_and_every_kind_has_its_own_mark() -> None:
    ax = Figure().subplots()
    kinds = {name: np.stack([with_ends(0.8), with_ends(0.03)], axis=1) for name in ("noise", "weights")}
    draw.front(ax, kinds, np.array([[0.8, 0.03], [0.9, 0.1]]))
    steps, *marks = ax.lines
    assert steps.get_drawstyle() == "steps-pre"
    points = [
        line for line in marks if line.get_label() != "" and line.get_marker() not in ("_", "|", "None")
    ]
    assert len({line.get_marker() for line in points}) >= 2
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["front", "noise", "weights"]


def test_the_grid_writes_every_value_with_its_interval() -> None:
    table = with_ends(0.8, 0.7, 0.6, 0.5).reshape(2, 2, 3)
    panels = Figure().subplots(1, 2)
    draw.grid(panels, [0.5, 2], [0, 6], np.stack([table, table / 10]))
    assert panels[1].texts[0].get_text() == "8.0%\n[7.9, 8.2]"
    assert len(panels[0].texts) == 4


def test_every_drawing_is_used_by_the_chapter_and_explains_itself() -> None:
    functions = inspect.getmembers(draw, inspect.isfunction)
    public = {f for name, f in functions if f.__module__ == draw.__name__ and not name.startswith("_")}
    assert public
    for function in public:
        assert function.__doc__
        assert f"draw.{function.__name__}(" in PAGE
