"""Sentences of chapter 1 that no module's test covers, and its drawings."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from thousand_fingers import memorization as mem
from thousand_fingers.figures import memorization as draw


def test_the_law_is_drawn_with_four_stations_and_four_rights() -> None:
    ax = Figure().subplots()
    draw.stations(ax)
    words = " ".join(text.get_text() for text in ax.texts)
    for word in ("Collection", "Training", "Answering", "Keeping", "legitimate interest"):
        assert word in words
    for right in ("access (art. 15)", "rectification (16)", "erasure (17)", "objection (21)"):
        assert right in words
    assert len(ax.patches) == 4


def test_people_who_are_found_are_drawn_differently() -> None:
    rng = np.random.default_rng(0)
    blind, losses = rng.exponential(1.4427, 24).clip(max=9.9), rng.normal(4, 1, 64)
    traces = {
        "known": mem.trace(blind + 6, losses[:24] - 4, losses[24:], n_candidates=1000),
        "gone": mem.trace(blind, losses[:24], losses[24:], n_candidates=1000),
    }
    panels = Figure().subplots(1, 2)
    draw.erasure(panels, traces)
    for panel in panels:
        known, gone = panel.lines
        assert known.get_marker() != gone.get_marker()
        assert known.get_color() != gone.get_color()


def test_curves_show_the_mean_over_seeds_and_stay_inside_their_range() -> None:
    recited = np.array([[0.0, 0.0, 0.0], [0.0, 0.5, 1.0]])
    bits = np.array([[1.0, 1.5, 2.0], [9.0, 9.9, 9.9]])
    panels = Figure().subplots(1, 2)
    draw.repetitions(panels, [0, 1], recited, bits, chance=1.44, highest=9.97)
    np.testing.assert_allclose(panels[0].lines[0].get_ydata(), recited.mean(1))
    (bars,) = panels[0].collections
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    assert ends.min() >= 0
    assert ends.max() <= 1


def test_prompts_are_drawn_against_what_comes_back_what_has_risen_and_what_is_guessed():
    rng = np.random.default_rng(0)
    recited, bits, right = ({"known": rng.random((5, 3)), "never": rng.random((n, 3))} for n in (5, 5, 5))
    panels = Figure().subplots(1, 3)
    draw.contexts(panels, [6, 8, 10, 12, 14], recited, bits, [1, 2, 3, 4, 5], right)
    for panel, series in zip(panels, (recited, bits, right), strict=True):
        drawn = [container[0].get_ydata() for container in panel.containers]
        np.testing.assert_allclose(drawn, [values.mean(1) for values in series.values()])
    assert panels[1].get_ylabel() == "mean exposure (bits)"


def test_one_drawer_costs_what_is_left_in_it() -> None:
    owners = [mem.NOBODY] * 12 + [0] * 4 + [1] * 4
    shards = mem.deal(owners, 4, np.random.default_rng(0))
    assert [shard.size for shard in shards] == [5, 5, 5, 5]
    (home,) = [shard for shard in shards if 12 in shard]
    assert set(range(12, 16)) <= set(home.tolist())  # all copies of a person in one drawer
