"""Sentences of chapter 4 that no module's test covers, and its drawings."""

import inspect
import math
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import integrate, optimize, stats

from thousand_fingers import accounting
from thousand_fingers import mechanisms as dp
from thousand_fingers.figures import differential_privacy as draw

EPSILONS = (0.01, 0.1, 0.5, 1.0, math.log(3), 4.0, 8.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_neighbour_who_subtracts_two_noisy_counts_has_the_stated_rate(epsilon):
    # P(Z > 1/2) for the difference Z of two Laplace variables, as a convolution
    laplace = stats.laplace(scale=1 / epsilon)
    breaks = sorted({0.0, -0.5})
    reach = 60 / epsilon
    tail = sum(
        integrate.quad(lambda y: laplace.pdf(y) * laplace.sf(y + 0.5), a, b, epsabs=1e-13)[0]
        for a, b in zip([-reach, *breaks], [*breaks, reach], strict=True)
    )
    stated = 1 - math.exp(-epsilon / 2) * (1 + epsilon / 4) / 2
    assert 1 - tail == pytest.approx(stated, abs=1e-9)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_laplace_attacker_is_a_mixture_of_the_ceiling_outside_and_less_inside(epsilon):
    outside = (1 + math.exp(-epsilon)) / 2
    ceiling = dp.best_attacker_accuracy(epsilon)
    assert outside * ceiling == pytest.approx(0.5, rel=1e-12)
    inside = (dp.laplace_attacker_accuracy(epsilon) - 0.5) / (1 - outside)
    assert 0.5 < inside < ceiling


def _loss(epsilon, cells=500):
    """Privacy losses of a Laplace count and their probabilities, cells of the grey zone at their middle."""
    edges = np.linspace(0, 1, cells + 1)
    inside = np.diff(np.exp(-epsilon * (1 - edges))) / 2
    losses = np.concatenate([[epsilon, -epsilon], epsilon * (edges[1:] + edges[:-1] - 1)])
    return losses, np.concatenate([[0.5, math.exp(-epsilon) / 2], inside])


def test_two_laplace_counts_reach_the_sum_but_half_as_often_and_with_less_delta():
    single, often = _loss(1.0)
    half, chance = _loss(0.5)
    pair, together = np.add.outer(half, half).ravel(), np.outer(chance, chance).ravel()
    assert together.sum() == pytest.approx(1, rel=1e-12)
    assert pair.max() == single.max() == 1  # the pure ε of both
    full = together[abs(pair) > 1 - 1e-12].sum()
    assert full == pytest.approx(often[abs(single) > 1 - 1e-12].sum() / 2, rel=1e-12)
    for epsilon in np.linspace(0, 0.999, 40):
        one, two = (
            w @ np.maximum(1 - np.exp(epsilon - loss), 0) for loss, w in ((single, often), (pair, together))
        )
        assert 0 < two < 0.7 * one


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 0.69])
def test_advanced_composition_beats_the_sum_exactly_beyond_the_stated_k(epsilon, delta):
    k = 2 * math.log(1 / delta) / (2 - math.exp(epsilon)) ** 2
    assert accounting.advanced_composition(epsilon, math.floor(k), delta) > math.floor(k) * epsilon
    assert accounting.advanced_composition(epsilon, math.ceil(k), delta) < math.ceil(k) * epsilon


@pytest.mark.parametrize("k", [1, 10, 1_000, 100_000])
def test_advanced_composition_never_beats_the_sum_from_ln_2_on(k):
    for epsilon in (math.log(2), 1.0, 3.0):
        assert accounting.advanced_composition(epsilon, k, 1e-5) > k * epsilon


def test_coins_a_hair_above_one_exceed_the_factor_most_of_the_time_at_a_tiny_delta():
    hair = optimize.brentq(lambda e: (math.exp(e) - math.e) / (1 + math.exp(e)) - 1e-5, 1, 2)
    assert hair == pytest.approx(1 + 1.3678e-5, abs=1e-9)
    assert dp.best_attacker_accuracy(hair) > 0.73


def test_classical_gaussian_formula_breaks_where_the_chapter_says():
    def true_delta(epsilon, delta):
        std = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
        tails = stats.norm.sf(epsilon * std - 0.5 / std), stats.norm.sf(epsilon * std + 0.5 / std)
        return tails[0] - math.exp(epsilon) * tails[1]

    assert true_delta(8.41, 1e-5) < 1e-5 < true_delta(8.43, 1e-5)
    assert true_delta(10, 1e-12) < 1e-12


def test_bar_of_schooling_is_off_by_at_most_30_not_below_30_in_95_percent():
    tail = 2 * math.exp(-0.1) / (1 + math.exp(-0.1))  # P(|X| >= 1), then a factor for each step
    assert 1 - tail * math.exp(-0.1 * 29) < 0.95 < 1 - tail * math.exp(-0.1 * 30)


def test_reports_of_one_kept_bit_have_the_epsilon_of_the_coins():
    keep = {"permanent_probability": 0.5, "zero_probability": 0.5, "one_probability": 0.75}
    forever, _ = dp.rappor_epsilon(**keep, n_hashes=1)  # two bits differ
    assert forever / 2 == pytest.approx(dp.randomized_response_epsilon(truth_probability=0.5), rel=1e-12)


def test_nothing_is_left_of_the_promise_for_a_hundred_published_sequences():
    ledger = tomllib.loads((Path(__file__).parents[1] / "data/ledger/04.toml").read_text("utf-8"))
    epsilon, delta = (ledger[f"dp.vaultgemma.{name}"]["value"] for name in ("epsilon", "delta"))
    assert ledger["dp.unit.hundred_sequences"]["value"] == 100 * epsilon
    slack = power = 0.0  # power: right answers allowed to an attacker who never accuses falsely
    for _ in range(100):
        slack = math.exp(epsilon) * slack + delta
        power = min(math.exp(epsilon) * power + delta, 1 - (1 - power - delta) / math.exp(epsilon), 1.0)
    assert power == 1
    assert ledger["dp.unit.hundred_slack"]["value"] == pytest.approx(math.log10(slack), rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_replacing_negative_counts_adds_half_the_mean_error_to_an_empty_group(epsilon):
    support = np.arange(-2_000, 2_001)
    law = np.exp(-epsilon * abs(support))
    law /= law.sum()
    assert law @ np.maximum(support, 0) == pytest.approx(1 / (2 * math.sinh(epsilon)), rel=1e-12)


def test_geometric_noise_attains_the_ceiling_and_has_the_smaller_error():
    support = np.arange(-2_000, 2_001)
    law = math.tanh(0.5) * np.exp(-abs(support))
    assert law[support >= 0].sum() == pytest.approx(dp.best_attacker_accuracy(1.0), rel=1e-12)
    assert law @ abs(support) == pytest.approx(1 / math.sinh(1), rel=1e-12)
    assert law @ abs(support) < 1


def _axes(n=1):
    panels = Figure().subplots(1, n)
    return panels if n > 1 else [panels]


def _drawings():
    x = np.linspace(0.01, 0.99, 5)
    jobs = pd.Series(np.arange(9, 0, -1), index=list("abcdefghi"))
    whole = np.arange(407, 417)
    return {
        draw.publishing_twice: (1, (x, x)),
        draw.one_answer: (1, (x, x, x, (0.3, 0.1, 0.6))),
        draw.many_answers: (1, ([10, 100], [0.2, 0.3], [0.1, 0.05], 0.3)),
        draw.two_worlds: (2, (x, x, x)),
        draw.attacker: (1, (x, x, x, {0.1: 0.5})),
        draw.composition: ([2], (x, {1.0: np.ones((5, 4)), 0.1: np.ones((5, 4))})),
        draw.education: (1, (list("abcde"), 100 * x, 100 * x, {0.001: 50.0, 0.1: 5.0})),
        draw.delta: (1, (x, x, x / 2, 2)),
        draw.gaussian: (1, (10 * x, x)),
        draw.exponential: (1, (jobs, {0.1: np.full(9, 1 / 9)})),
        draw.local_model: (1, (x, (x, x), (x, x))),
        draw.synthetic: (1, (x, x, 0.1, 0.01)),
        draw.low_bits: (1, ([0, 1], {"a": [0.8, 0.6]})),
        draw.whole_numbers: (2, (whole, whole, np.ones(10))),
        draw.audits: (1, ({"honest": x, "half": x}, 1.0)),
        draw.smoking: (1, (x, x, 0.05)),
        draw.posterior: (1, (x, {"a": (x, x)}, (0.3, 0.5))),
    }


def test_every_drawing_labels_its_axes_and_leaves_its_data_alone():
    drawings = _drawings()
    public = {f for _, f in inspect.getmembers(draw, inspect.isfunction) if f.__module__ == draw.__name__}
    assert public == set(drawings)
    for function, (n, data) in drawings.items():
        axes = _axes(n if isinstance(n, int) else n[0])
        before = [np.array(d, copy=True) for d in data if isinstance(d, np.ndarray)]
        function(*axes, *data) if isinstance(n, int) else function(axes, *data)
        for old, new in zip(before, (d for d in data if isinstance(d, np.ndarray)), strict=True):
            np.testing.assert_array_equal(old, new)
        for panel in axes[:1] if function is draw.two_worlds else axes:
            assert panel.get_ylabel(), function
        assert axes[-1].get_xlabel(), function
