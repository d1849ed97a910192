"""The one way in which the book draws."""

import numpy as np
import pytest

from thousand_fingers import plotting
from thousand_fingers.plotting import DASHES, MARKERS, PALETTE, figure, html_figure

CAPTION = "A line rises."
ALT = "A straight line from zero to one, rising."


def labelled(ax):
    ax.set(xlabel="x", ylabel="y")


@pytest.fixture
def shown(monkeypatch) -> list:
    calls: list = []
    monkeypatch.setattr(plotting, "_show", lambda *about: calls.append(about))
    return calls


def test_the_same_drawing_gives_the_same_bytes(shown):
    for _ in range(2):
        with figure("fig-demo", caption=CAPTION, alt=ALT) as ax:
            ax.plot([0, 1], [0, 1], label="a")
            ax.legend()
            labelled(ax)
    assert shown[0] == shown[1]
    svg = shown[0][0]
    assert svg.startswith("<?xml")
    assert "dc:date" not in svg


def test_the_background_is_opaque_so_that_dark_pages_work(shown):
    with figure("fig-demo", caption=CAPTION, alt=ALT) as ax:
        labelled(ax)
    assert "fill: #ffffff" in shown[0][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Demo"}, "name must look like"),
        ({"name": "fig-Demo"}, "name must look like"),
        ({"caption": "short"}, "caption of fig-demo must have at least 10"),
        ({"caption": None}, "caption of fig-demo"),
        ({"alt": "a plot"}, "alt of fig-demo must have at least 30"),
        ({"columns": 0}, "columns must be >= 1"),
        ({"height": -1.0}, "height must be > 0"),
    ],
)
def test_incomplete_figures_are_refused_before_anything_is_drawn(changes, message):
    arguments = {"name": "fig-demo", "caption": CAPTION, "alt": ALT} | changes
    drawn = False
    with pytest.raises(ValueError, match=message), figure(arguments.pop("name"), **arguments):
        drawn = True
    assert not drawn


def test_an_axis_without_label_is_refused():
    with (
        pytest.raises(ValueError, match="y axis of panel 0 of fig-demo must have a label"),
        figure("fig-demo", caption=CAPTION, alt=ALT) as ax,
    ):
        ax.set(xlabel="x")


def test_a_shared_axis_needs_its_label_once(shown):
    with figure("fig-demo", caption=CAPTION, alt=ALT, columns=2, sharey=True) as (left, right):
        labelled(left)
        right.set(xlabel="x")
    assert len(shown) == 1


def test_pictures_need_no_axes(shown):
    with figure("fig-demo", caption=CAPTION, alt=ALT, columns=2, axes_off=True) as panels:
        for panel in panels:
            panel.imshow(np.eye(3))
    assert len(shown) == 1


def test_an_error_inside_the_block_is_not_hidden():
    with pytest.raises(ZeroDivisionError), figure("fig-demo", caption=CAPTION, alt=ALT):
        raise ZeroDivisionError


def test_the_style_does_not_leak():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with figure("fig-demo", caption=CAPTION, alt=ALT) as ax:
        labelled(ax)
    assert dict(mpl.rcParams) == before


def test_every_kind_of_mark_is_part_of_the_record(monkeypatch):
    seen: dict = {}
    monkeypatch.setattr(plotting, "record_plot", lambda _, series: seen.update(series))
    with figure("fig-demo", caption=CAPTION, alt=ALT, columns=2) as (left, right):
        left.plot([0, 1], [2, 3])
        left.bar([0, 1], [4, 5])
        left.fill_between([0, 1], [0, 0], [1, 2])
        left.stairs([1, 2, 3])
        right.scatter([0, 1], [6, 7])
        right.imshow(np.eye(2))
        right.errorbar([0, 1], [1, 2], yerr=[0.1, 0.2])
        labelled(left)
        labelled(right)
    assert {"0.line0.y", "0.bars0.height", "0.area0", "0.stairs0", "1.points0.y", "1.image0"} <= seen.keys()


def relative_luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_the_first_three_colours_stand_out_from_white_and_differ_in_lightness():
    luminance = [relative_luminance(colour) for colour in PALETTE[:3]]
    assert all(1.05 / (value + 0.05) >= 3 for value in luminance)
    assert len({round(value, 2) for value in luminance}) == 3


def test_there_is_a_second_channel_for_every_colour():
    assert len(PALETTE) == len(DASHES) == len(MARKERS) == len(set(MARKERS)) == len(set(PALETTE))


def test_a_figure_in_html_carries_the_same_texts_and_numbers(shown, monkeypatch):
    recorded = {}
    monkeypatch.setattr(plotting, "record_plot", recorded.__setitem__)
    html_figure("fig-demo", "<svg></svg>", caption=CAPTION, alt=ALT, series={"y": [0.0, 1.0]})
    assert shown == [("<svg></svg>", "fig-demo", CAPTION, ALT, "text/html")]
    assert recorded == {"fig-demo": {"y": [0.0, 1.0]}}


@pytest.mark.parametrize(
    ("html", "message"),
    [
        ("", "html of fig-demo must not be empty"),
        (" \n", "html of fig-demo must not be empty"),
        ("<img src='a.png'/>", "html of fig-demo must not load anything"),
        ("<link href='a.css'/>", "html of fig-demo must not load anything"),
        ("<p>https://a.example</p>", "html of fig-demo must not load anything"),
        ("<style>@import 'a.css'</style>", "html of fig-demo must not load anything"),
        ("<style>p{background:url(a.png)}</style>", "html of fig-demo must not load anything"),
    ],
)
def test_a_figure_in_html_that_needs_other_files_is_refused(shown, html, message):
    with pytest.raises(ValueError, match=message):
        html_figure("fig-demo", html, caption=CAPTION, alt=ALT, series={"y": [0.0]})
    assert shown == []


@pytest.mark.parametrize("changes", [{"name": "demo"}, {"caption": "x"}, {"alt": "x"}])
def test_a_figure_in_html_needs_its_texts(shown, changes):
    texts = {"name": "fig-demo", "caption": CAPTION, "alt": ALT} | changes
    with pytest.raises(ValueError, match="must"):
        html_figure(texts["name"], "<svg/>", caption=texts["caption"], alt=texts["alt"], series={})
    assert shown == []
