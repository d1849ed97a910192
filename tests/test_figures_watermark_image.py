"""The drawings of marked images and signed manifests show the data that they are given, and every word."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from thousand_fingers.figures import watermark_image as draw
from thousand_fingers.watermark.provenance import State

STATES = list(State.__args__)  # type: ignore[attr-defined]


def test_survival_shows_every_count_of_every_picture() -> None:
    counts = {"nothing": [48, 47], "turned": [20, 30], "mirrored": [25, 26]}
    ax = Figure().subplots()
    draw.survival(ax, counts, ["a", "b"], 41)
    threshold, *pictures = ax.get_lines()
    assert set(threshold.get_xdata()) == {41}
    assert [list(line.get_xdata()) for line in pictures] == [[48, 20, 25], [47, 30, 26]]
    assert len({line.get_marker() for line in pictures}) == 2
    assert [label.get_text() for label in ax.get_yticklabels()] == list(counts)


def test_fair_coins_shows_counts_beside_their_expectation() -> None:
    matches = [24] * 30 + [20] * 10
    ax = Figure().subplots()
    draw.fair_coins(ax, matches, 33)
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in ax.patches}
    assert (heights[24], heights[20], heights[21]) == (30, 10, 0)
    expected = ax.get_lines()[0]
    assert sum(expected.get_ydata()) == pytest.approx(40, abs=0.01)


def test_attacker_keeps_the_legend_above_the_peak() -> None:
    panels = Figure().subplots(1, 3)
    curve = np.array([0.0, 0.5, 0.1])
    draw.attacker(panels, [1, 2, 3], {"x": curve}, [0, 1], {"x": ([48, 20], [40.0, 42.0])}, 41)
    assert list(panels[0].get_lines()[0].get_ydata()) == list(curve)
    assert panels[0].get_ylim()[1] > 1.5 * curve.max()
    assert list(panels[1].get_lines()[0].get_ydata()) == [48, 20]
    assert list(panels[2].get_lines()[0].get_ydata()) == [40.0, 42.0]
    assert all(panel.get_xlabel() and panel.get_ylabel() for panel in panels)


def test_verdicts_writes_every_state_in_words() -> None:
    ax = Figure().subplots()
    draw.verdicts(ax, {state: {"one": state, "two": "trusted"} for state in STATES})
    words = [text.get_text().replace("\n", " ") for text in ax.texts]
    assert words == [word for state in STATES for word in (state, "trusted")]


def test_mark_and_label_shows_bits_and_verdict_of_each_file() -> None:
    ax = Figure().subplots()
    draw.mark_and_label(ax, {state: (10 + i, state) for i, state in enumerate(STATES)}, 41)
    words = [text.get_text().replace("\n", " ") for text in ax.texts]
    assert words == [word for i, state in enumerate(STATES) for word in (str(10 + i), state)]
    assert [bar.get_width() for bars in ax.containers for bar in bars] == [10, 11, 12, 13, 14]


def test_words_stand_on_a_ground_that_lets_them_be_read() -> None:
    for colour, _ in draw._STATES.values():
        red, green, blue = (
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)
        )
        assert (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) / 0.05 > 7  # black text, WCAG AAA


def test_pictures_are_shown_under_their_names() -> None:
    panels = Figure().subplots(1, 2)
    images = {"a": np.zeros((3, 3, 3), np.uint8), "b": np.ones((3, 3, 3), np.uint8)}
    draw.pictures(panels, images)
    assert [panel.get_title() for panel in panels] == ["a", "b"]
    assert (panels[1].get_images()[0].get_array() == images["b"]).all()
