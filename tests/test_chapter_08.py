"""Sentences of chapter 8 that no module's test covers, its drawings, and its long runs."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import binom, norm

from thousand_fingers import datasets, models, smoothing
from thousand_fingers.book.artefacts import load_artefact
from thousand_fingers.figures import smoothing as draw
from thousand_fingers.long_runs import smoothing as long_runs


@pytest.mark.parametrize("p", [0.6, 0.9, 0.999])
@pytest.mark.parametrize("noise_std", [0.25, 1.0])
def test_a_half_space_loses_its_majority_exactly_at_the_certified_radius(p: float, noise_std: float) -> None:
    radius = smoothing.certified_radius(p, noise_std)
    assert norm.cdf(norm.ppf(p) - radius / noise_std) == pytest.approx(0.5)


@pytest.mark.parametrize("noise_std", [0.25, 0.5, 2.0])
def test_smoothing_two_classes_of_a_linear_model_recovers_its_distance(noise_std: float) -> None:
    distance = np.array([0.05, 0.3, 0.8])
    p = norm.cdf(distance / noise_std)
    np.testing.assert_allclose(smoothing.certified_radius(p, noise_std), distance, rtol=1e-6)


def test_selecting_and_counting_with_the_same_votes_doubles_the_error_of_a_fair_coin() -> None:
    needed = smoothing.required_votes(500, 0.0, 0.05)
    votes = np.arange(501)
    chance = binom.pmf(votes, 500, 0.5)
    once = chance[votes >= needed].sum()
    same = chance[np.maximum(votes, 500 - votes) >= needed].sum()
    assert once <= 0.05
    assert same == pytest.approx(2 * once)


@pytest.mark.parametrize(("failure_probability", "silent"), [(0.001, 9), (0.05, 4), (0.5, 1)])
def test_with_few_draws_even_equal_votes_only_abstain(failure_probability: float, silent: int) -> None:
    assert silent <= np.log2(1 / failure_probability) < silent + 1
    bounds = [
        float(smoothing.lower_confidence_bound(n, n, failure_probability)) for n in (silent, silent + 1)
    ]
    assert bounds[0] <= 0.5 < bounds[1]


def test_looks_that_share_the_failure_probability_keep_it_whatever_their_dependence() -> None:
    # The worst dependence is disjoint errors: three looks at a third each add up to the whole.
    level, stages, p = 0.05, (100, 1_000, 10_000), 0.8
    wrong = [
        binom.sf(smoothing.required_votes(n, norm.ppf(p + 1e-9), level / len(stages)) - 1, n, p)
        for n in stages
    ]
    assert max(wrong) <= level / 3
    assert sum(wrong) <= level


def test_every_drawing_shows_its_data_and_labels_its_axes() -> None:
    x = np.linspace(0, 1, 13)
    calls = {
        draw.fog: (2, ({"no fog": np.zeros((4, 4)), "fog": np.ones((4, 4))},)),
        draw.worst_case: (1, (x, {0.9: x, 0.99: x}, {0.9: 1.3, 0.99: 2.3})),
        draw.certified: (1, (x, {"σ = 1": x}, [0.5])),
        draw.coverage: (1, (x, x / 20, {0.6: (0.03, 0.02, 0.04)}, 0.05)),
        draw.sandwich: (1, (x, x, [0.0, 0.5], {"attacked": [0.9, 0.8]})),
        draw.price: (1, (x + 1, {0.001: x, 0.05: x})),
        draw.promises: (1, (x, {"smoothing": x, "intervals": x})),
        draw.two_networks: (2, (x, {"σ = 0.5": {"one": x, "two": x}, "σ = 1": {"one": x, "two": x}})),
    }
    public = {f for _, f in inspect.getmembers(draw, inspect.isfunction) if f.__module__ == draw.__name__}
    assert {f for f in public if not f.__name__.startswith("_")} == set(calls)
    for function, (panels, arguments) in calls.items():
        axes = np.atleast_1d(Figure().subplots(1, panels))
        function(axes if panels > 1 else axes[0], *arguments)
        assert all(panel.has_data() for panel in axes)
        if function is not draw.fog:
            assert all(panel.get_xlabel() and panel.get_ylabel() for panel in axes)


# --------------------------------------------------------------------------- the precomputed votes


def test_the_shipped_votes_are_complete_and_of_the_shipped_images() -> None:
    votes = load_artefact("08_cnn_votes")
    assert votes["selecting"].shape == votes["counting"].shape == (40, 3, 5, 10)
    assert (votes["selecting"].sum(axis=3) == 100).all()
    assert (votes["counting"].sum(axis=3) == 10_000).all()


def test_the_shipped_weights_are_networks_that_read_digits_in_fog() -> None:
    digits, split = datasets.load_mnist("ci")
    images, labels = torch.tensor(digits.images[split.validation]), digits.labels[split.validation]
    shipped = load_artefact("08_cnn_weights")
    for noise_std, row, validation in zip(
        (0.25, 0.5, 1.0), shipped["weights"], shipped["validation"], strict=True
    ):
        network = models.small_cnn(generator=torch.Generator(), dtype=torch.float32)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(row), network.parameters())
        noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
        said = models.predict_logits(network, (images + noise_std * noise).float()).argmax(1).numpy()
        right = (said == labels).mean()
        # another draw of noise: two counts of 500 with the same mean, five standard errors apart at most
        assert abs(right - validation) <= 5 * np.sqrt(2 * validation * (1 - validation) / 500)


def test_parts_of_the_votes_look_at_different_images_and_refuse_to_run_over_the_end() -> None:
    options = {"noise_stds": [0.25, 0.5, 1.0], "images_per_part": 500, "n0": 1, "n": 1}
    with pytest.raises(ValueError, match="part must be"):
        long_runs.cnn_votes(2, **options)
    with pytest.raises(ValueError, match="part must be"):
        long_runs.cnn_weights(1, noise_stds=[0.5], epochs=1, batch_size=1, learning_rate=1.0)
