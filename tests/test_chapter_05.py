"""Sentences of chapter 5 that no module's test covers, and its drawings."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from thousand_fingers.accounting import noise_multiplier_for, pld_epsilon
from thousand_fingers.book.artefacts import load_artefact
from thousand_fingers.figures import accounting as draw_accounts
from thousand_fingers.figures import dpsgd as draw
from thousand_fingers.mechanisms import analytic_gaussian_std


def drawn(function, shape, *arguments):
    axes = np.atleast_1d(Figure().subplots(1, shape))
    function(axes if axes.size > 1 else axes[0], *arguments)
    return axes


def test_every_drawing_shows_its_data_and_labels_its_axes() -> None:
    rng = np.random.default_rng(0)
    runs = rng.random((3, 5))
    fpr = np.geomspace(1e-3, 1, 20)
    recalls = {"cut": (rng.random((4, 2)), rng.random((4, 2)))} | {"balanced": (rng.random((4, 2)),) * 2}
    calls = {
        draw.clipping: (3, rng.normal(size=(4, 2)), 1.0, rng.normal(size=(9, 2))),
        draw.budgets: (1, ["inf", "8", "2"], {"a": runs, "b": runs}, [0.9, 0.8, 0.7]),
        draw.public_starts: (1, ["alone", "half", "two"], {"a": [None, *runs[:2]], "b": runs}),
        draw.attacks: (1, {"a": (fpr, fpr), "b": (fpr, fpr)}, {"bound": (fpr, fpr)}),
        draw.payers: (2, ["long", "clip"], recalls),
        draw.appetite: (2, ([10, 100, 1000], runs), ([10, 100, 1000], {"a": runs, "b": runs})),
        draw_accounts.accountants: (1, [1, 10], {"old": [1.0, 2.0], "new": [0.5, 1.0]}, 10),
        draw_accounts.batches: (1, [1.0, 2.0], {name: [2.0, 1.0] for name in "abc"}),
        draw_accounts.lower_bounds: (1, (1, 2), {"audit": [0.5, 3.0]}),
        draw_accounts.attack_regions: (1, fpr, {"limit": fpr}, {"attack": (fpr, fpr)}),
    }
    public = {
        f
        for module in (draw, draw_accounts)
        for name, f in inspect.getmembers(module, inspect.isfunction)
        if f.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public == set(calls)
    for function, (shape, *arguments) in calls.items():
        axes = drawn(function, shape, *arguments)
        assert all(panel.has_data() and panel.get_xlabel() for panel in axes)
        assert axes[0].get_ylabel()


def test_a_gap_in_a_line_stays_a_gap_and_the_others_keep_their_places() -> None:
    (ax,) = drawn(draw.public_starts, 1, ["alone", "half", "two"], {"a": [None, [0.5, 0.7], [0.8, 0.9]]})
    line = ax.containers[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(), [0.95, 1.95])
    np.testing.assert_allclose(line.get_ydata(), [0.6, 0.85])


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_the_noise_of_the_page_and_of_the_long_runs_is_the_same(epsilon: float) -> None:
    searched = noise_multiplier_for(epsilon, 1e-5, sample_rate=1.0, steps=41)
    closed = math.sqrt(41) * analytic_gaussian_std(epsilon, 1e-5)
    assert closed <= searched * (1 + 1e-12)
    assert searched == pytest.approx(closed, rel=1e-3)


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.3290, 8.0), (3.7526, 2.0), (12.6237, 0.5)])
def test_the_network_from_pixels_keeps_its_budgets(sigma: float, epsilon: float) -> None:
    assert 0.998 * epsilon < pld_epsilon(sigma, 0.25, 50, 1e-5) <= epsilon


def test_the_clipping_norms_at_an_end_of_their_grid_are_those_that_the_page_names() -> None:
    """The smallest, for hand-made features at ε = 2 and 0.5; if that changes, so must the sentence below the table."""
    right = load_artefact("05_settings")["right"].reshape(2, 4, -1)  # features and pixels; ∞, 8, 2, 0.5
    chosen = {
        (kind, budget): int(right[kind, budget].argmax()) // 4 for kind in range(2) for budget in range(1, 4)
    }
    assert {place for place, norm in chosen.items() if norm == 0} == {(0, 2), (0, 3)}
    assert 2 not in chosen.values()
