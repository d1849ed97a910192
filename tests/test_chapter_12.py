"""Sentences of chapter 12 that no module's test covers, and its drawings."""

from __future__ import annotations

import inspect
import itertools
from datetime import UTC, datetime
from math import comb

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.special import expit, logit

from thousand_fingers.extraction import ManualClock, ProtectedAPI
from thousand_fingers.figures import extraction as draw


@pytest.mark.parametrize(("d", "ones"), [(2, 1), (7, 3), (20, 20), (20, 1)])
def test_crossings_of_the_two_stars_are_affinely_independent(d: int, ones: int) -> None:
    rng = np.random.default_rng(d + ones)
    points, shares = rng.normal(size=(d + 1, d)), rng.uniform(0.05, 0.95, d)
    edges = [(0, zero) for zero in range(ones, d + 1)] + [(one, ones) for one in range(1, ones)]
    assert len(edges) == d
    crossings = np.array(
        [(1 - t) * points[i] + t * points[j] for t, (i, j) in zip(shares, edges, strict=True)]
    )
    assert np.linalg.matrix_rank(crossings - crossings[0]) == d - 1


@pytest.mark.parametrize("unit", [0.1, 0.01, 0.001])
def test_an_equation_of_a_rounded_answer_is_least_wrong_at_one_half(unit: float) -> None:
    p = np.linspace(0.15, 0.85, 15)
    moved = np.maximum(logit(p + unit / 2) - logit(p), logit(p) - logit(p - unit / 2))
    stated = unit / (2 * p * (1 - p))
    np.testing.assert_allclose(moved, stated, rtol=3 * unit)
    assert moved.argmin() == 7
    assert stated[7] == pytest.approx(2 * unit)


def test_sets_of_labels_can_say_less_than_rankings() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    rankings = np.array(list(itertools.permutations(range(5))), dtype=float)
    api = ProtectedAPI(lambda rows: rows, n_inputs=5, daily_quota=1_000, top_k=3, clock=clock)
    assert len(np.unique(api.query("ada", rankings), axis=0)) == comb(5, 3)
    assert len(np.unique(np.argsort(-rankings, axis=1)[:, :3], axis=0)) == 60


def test_a_window_of_a_day_never_holds_more_than_two_quotas() -> None:
    rng = np.random.default_rng(0)
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    api = ProtectedAPI(lambda rows: rows, n_inputs=2, daily_quota=3, clock=clock)
    times = []
    for _ in range(300):
        clock.advance(hours=float(rng.exponential(2.0)))
        if api.left("ada"):
            api.query("ada", np.zeros((1, 2)))
            times.append(clock().timestamp())
    in_a_day = [sum(start <= t < start + 86_400 for t in times) for start in times]
    assert max(in_a_day) <= 6
    assert max(in_a_day) > 3


def test_the_posterior_of_the_attack_is_that_of_bayes_for_a_stranger() -> None:
    # y = 1 with probability expit(2 v - 1), v in {0, 1} with prior 0.3: the formula of the advanced text.
    prior, likelihood = np.array([0.7, 0.3]), expit(2.0 * np.arange(2) - 1)
    rng = np.random.default_rng(1)
    v = (rng.random(200_000) < 0.3).astype(int)
    seen = v[rng.random(v.size) < likelihood[v]]
    posterior = prior * likelihood / (prior @ likelihood)
    assert abs(seen.mean() - posterior[1]) < 5 * np.sqrt(0.25 / seen.size)


def test_every_drawing_draws_and_labels_its_axes() -> None:
    rates = np.random.default_rng(0).uniform(0.2, 0.8, (3, 5))
    limits = np.array([[0.4, 0.5], [0.6, 0.7]])
    calls = {
        draw.errors: (1, ([10, 100, 1_000], {"a": rates, "b": rates / 2})),
        draw.directions: (1, ({"a": ([10, 20], [0.5, 0.1]), "b": ([10, 20], [0.5, 0.4])}, [10, 20])),
        draw.fidelity: (1, ([25, 100, 800], {"a": rates, "b": rates / 2})),
        draw.classes: (4, ({"a": np.ones((2, 5, 5)), "b": np.ones((2, 5, 5))},)),
        draw.guesses: (1, ({"x": {"in": (0.2, 0.1, 0.3), "out": (0.1, 0.0, 0.2)}}, 0.1)),
        draw.mechanism: (
            2,
            ({name: (np.array([0.5, 0.6]), limits, 0.1) for name in "ab"}, ["one", "two"]),
        ),
        draw.prices: (1, ({"labels": (2_010, 21), "probabilities": (50, 1)},)),
    }
    public = {f for _, f in inspect.getmembers(draw, inspect.isfunction) if f.__module__ == draw.__name__}
    assert public == set(calls)
    for function, (panels, arguments) in calls.items():
        axes = np.atleast_1d(Figure().subplots(1, panels))
        function(axes if panels > 1 else axes[0], *arguments)
        for panel in axes:
            assert panel.has_data()
            if function is not draw.classes:
                assert panel.get_xlabel()
                assert panel.get_ylabel()


def test_the_bars_of_the_prices_are_as_long_as_their_queries_and_name_the_days() -> None:
    axes = Figure().subplots()
    draw.prices(axes, {"labels": (2_010, 21), "probabilities": (50, 1)})
    assert [bar.get_width() for bar in axes.containers[0]] == [2_010, 50]
    assert [text.get_text() for text in axes.texts] == ["2,010 · 21 days", "50 · 1 day"]
