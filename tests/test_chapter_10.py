"""Sentences of chapter 10 that no module's test covers, its stored texts, and its drawings."""

from __future__ import annotations

import inspect
import math
from collections import Counter

import numpy as np
import pytest
from matplotlib.figure import Figure

from thousand_fingers.book.artefacts import load_artefact
from thousand_fingers.figures import watermark as draw
from thousand_fingers.long_runs import watermark as runs
from thousand_fingers.watermark import text as wm


@pytest.fixture(scope="module")
def stored():
    return load_artefact("10_marked_texts")


def rows():
    return [(part, row, *what) for part in range(7) for row, what in enumerate(runs.rows_of(part))]


def test_every_stored_text_keeps_the_promise_of_the_theorem(stored):
    """Not below the bound on the mean by more than chance allows: four standard deviations over 128 texts."""
    for part, row, _, _, mark in rows():
        if mark.logit_bias == 0:
            continue
        found = wm.detect(stored["tokens"][part, row], mark, repeats=True)
        spike = stored["spike_entropy"][part, row, 1:].mean(dtype=float)
        bound = wm.green_bound(mark, min(spike, 1.0), found.scored)
        assert found.hits > bound.mean - 4 * bound.std, (part, row)


def test_stored_texts_have_the_words_of_the_model_only(stored):
    tokens = stored["tokens"]
    assert tokens.shape == (7, 24, 200)
    assert tokens.min() >= 3  # nothing that begins or ends a text
    assert tokens.max() < runs.VOCABULARY
    assert (stored["entropy"] >= 0).all()
    assert (stored["log_probability"] <= 0).all()
    assert ((stored["spike_entropy"] > 0) & (stored["spike_entropy"] <= 1 + 1e-6)).all()


def test_eight_different_beginnings_of_each_kind_meet_each_mark():
    assert set(map(len, runs.PROMPTS.values())) == {8}
    beginnings = [text for texts in runs.PROMPTS.values() for text in texts]
    assert len(set(beginnings)) == len(beginnings)
    groups = Counter(
        (runs.temperature_of(part), kind, mark.green_fraction, mark.logit_bias)
        for part, _, kind, _, mark in rows()
    )
    assert set(groups.values()) == {8}
    assert len({(runs.temperature_of(part), *what) for part, _, *what in rows()}) == 168
    shares = {mark.green_fraction for *_, mark in rows() if mark.logit_bias == 2}
    assert shares == {0.1, 0.25, 0.5, 0.75, 0.9}


def test_unmarked_texts_and_wrong_keys_see_nothing(stored):
    scores = []
    for part, row, _, _, mark in rows():
        tokens = stored["tokens"][part, row]
        if mark.logit_bias == 0:
            scores.append(wm.detect(tokens, runs.book_mark()).z)
        else:
            scores.append(wm.detect(tokens, wm.Mark(runs.VOCABULARY, key=999_999_937, scheme="hash")).z)
    scores = np.array(scores)
    assert len(scores) == 168
    assert abs(scores.mean()) < 5 / math.sqrt(168)
    assert np.abs(scores).max() < 4.5


def test_the_marked_stories_are_those_with_a_quarter_green_and_a_push_of_two(stored):
    stories = runs.marked_stories(200)
    assert stories.shape == (8, 200)
    assert min(wm.detect(row, runs.book_mark()).z for row in stories) > 4
    np.testing.assert_array_equal(runs.marked_stories(30), stories[:, :30])


def test_surprise_beyond_expectation_is_nought_without_a_mark(stored):
    excess = [
        float((-stored["log_probability"][part, row] - stored["entropy"][part, row]).mean(dtype=float))
        for part, row, _, _, mark in rows()
        if mark.logit_bias == 0 and part in runs.STORY_PARTS
    ]
    spread = np.std(excess, ddof=1) / math.sqrt(len(excess))
    assert abs(np.mean(excess)) < 5 * spread


def test_after_each_own_token_of_the_emoji_texts_comes_an_asterisk():
    emoji = load_artefact("10_emoji")["tokens"][0]
    assert len(np.unique(emoji[:, 1::2])) == 1
    green = wm.is_green(runs.book_mark(), emoji[:, 1:-1:2].ravel(), emoji[:, 2::2].ravel())
    assert green.mean() > 0.5  # the lists were drawn from the asterisk


def test_a_walk_changes_what_it_says_and_no_more():
    walk = load_artefact("10_random_walk")
    for part in range(2):
        tokens = walk["tokens"][part]
        np.testing.assert_array_equal(tokens[0], runs.marked_stories(tokens.shape[2])[::2])
        np.testing.assert_array_equal((tokens[1:] != tokens[:-1]).sum(axis=2), walk["accepted"][part])
    assert (walk["accepted"][0].sum(axis=0) < walk["accepted"][1].sum(axis=0)).all()  # the judge is stricter


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: runs.rows_of(7), "part must be"),
        (lambda: runs.temperature_of(-1), "part must be"),
        (lambda: runs.marked_stories(0), "length must be"),
        (lambda: runs.marked_stories(201), "length must be >= 1 and <= 200, got 201"),
        (lambda: runs.paraphrases(2, length=10, new_tokens=1), "part must be"),
        (lambda: runs.walks(1, tolerances=[0.4], length=10, texts=1, rounds=1), "part must be"),
        (lambda: runs.emoji_texts(-1, new_tokens=2), "part must be"),
        (lambda: runs.emoji_texts(1, new_tokens=2), "part must be"),
    ],
)
def test_parts_that_do_not_exist_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_repeats_widen_the_score_as_the_chapter_says():
    """Standard deviation of z with repeats: sqrt(sum f^2 / T), over keys."""
    tokens = [5, 6, 7, 8, 9] * 40
    frequencies = np.array([40, 40, 40, 40, 39])
    expected = math.sqrt((frequencies**2).sum() / 199)
    marks = (wm.Mark(300, key=key, scheme="hash") for key in range(1, 3_001))
    found = np.std([wm.detect(tokens, mark, repeats=True).z for mark in marks])
    assert found == pytest.approx(expected, rel=0.08)


def test_every_drawing_shows_its_data_and_labels_its_axes() -> None:
    z = np.random.default_rng(0).normal(size=(4, 3))
    x = np.arange(4.0)
    calls = {
        draw.words: (2, [[("a", ["so", " it\n"], [True, False]), ("b", [" goes"], [True])]]),
        draw.null_scores: (2, [{"once": {"a": x}, "again": {"a": x}}, 4.0]),
        draw.lengths: (1, [[25, 50, 100], {"a": z, "b": z}, 4.0]),
        draw.shares: (2, [x[:3], z.T, z.T, z.T, z.T, (x, x)]),
        draw.bound: (2, [{"stories": (x, x + 1, (x, x))}]),
        draw.edits: (2, [x, {"delete": (x, x)}, x, (x, x), 4.0]),
        draw.overlap: (1, [{"sampled": (x, x)}, 4.0]),
        draw.surviving: (1, [[25, 50], {"people": [1.0, 2.0]}, ([25, 50, 100], z), 4.0]),
        draw.walks: (2, [x, {"a": z}, {"a": z}, 4.0]),
    }
    public = {f for _, f in inspect.getmembers(draw, inspect.isfunction) if f.__module__ == draw.__name__}
    assert {f for f in public if not f.__name__.startswith("_")} == set(calls)
    for function, (panels, arguments) in calls.items():
        axes = np.atleast_1d(Figure().subplots(1, panels))
        function(axes if panels > 1 else axes[0], *arguments)
        for panel in axes:
            assert panel.has_data() or panel.patches
            if function is not draw.words:
                assert panel.get_xlabel()
                assert panel.get_ylabel()


def test_green_words_and_red_words_differ_without_colour() -> None:
    panel = Figure().subplots()
    draw.words([panel], [("a", ["one", "two"], [True, False])])
    styles = [patch.get_linestyle() for patch in panel.patches]
    assert styles[0] != styles[1]
