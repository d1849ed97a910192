"""Sentences of chapter 9 that no module's test covers, and its drawings."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from thousand_fingers import poisoning
from thousand_fingers.figures import poisoning as draw
from thousand_fingers.models import mlp
from thousand_fingers.training import train


@pytest.mark.parametrize("accuracy", [0.1, 0.5, 0.91, 1.0])
def test_a_count_with_the_target_class_has_a_base_rate_of_one_in_ten_whatever_the_accuracy(
    accuracy: float,
) -> None:
    confusion = np.full((10, 10), (1 - accuracy) / 9)
    np.fill_diagonal(confusion, accuracy)
    assert confusion[:, 7].mean() == pytest.approx(0.1)
    assert np.delete(confusion[:, 7], 7).mean() == pytest.approx((1 - accuracy) / 9)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.6, 0.89])
def test_scattered_label_noise_leaves_the_most_probable_class(rate: float) -> None:
    posterior = np.random.default_rng(0).dirichlet(np.ones(10), 1_000)
    transition = np.full((10, 10), rate / 9)
    np.fill_diagonal(transition, 1 - rate)
    noisy = posterior @ transition
    np.testing.assert_allclose(noisy, (1 - rate - rate / 9) * posterior + rate / 9)
    assert (noisy.argmax(1) == posterior.argmax(1)).all()


@pytest.mark.parametrize("flipped", [0.2, 0.6])
def test_aimed_label_noise_moves_the_boundary_where_the_chapter_says(flipped: float) -> None:
    posterior = np.random.default_rng(1).dirichlet(np.ones(2), 1_000)
    noisy_c = (1 - flipped) * posterior[:, 0]
    noisy_other = posterior[:, 1] + flipped * posterior[:, 0]
    stated = posterior[:, 0] * (1 - 2 * flipped) < posterior[:, 1]
    assert ((noisy_c < noisy_other) == stated).all()
    assert flipped < 0.5 or stated.all()


def test_the_covariance_of_two_groups_is_their_spread_plus_the_pull() -> None:
    draw_from = np.random.default_rng(2)
    clean, bad = draw_from.normal(size=(700, 5)), 3 + draw_from.normal(size=(300, 5)) * [1, 2, 3, 4, 5]
    share, gap = 0.3, bad.mean(axis=0) - clean.mean(axis=0)
    within = (1 - share) * np.cov(clean.T, bias=True) + share * np.cov(bad.T, bias=True)
    whole = np.cov(np.vstack([clean, bad]).T, bias=True)
    np.testing.assert_allclose(whole, within + share * (1 - share) * np.outer(gap, gap))


@pytest.mark.parametrize("pull", [2.0, 10.0, 100.0])
def test_a_large_pull_turns_the_leading_direction_as_far_as_the_chapter_says(pull: float) -> None:
    root = np.random.default_rng(3).normal(size=(6, 6))
    within = root @ root.T
    within /= np.linalg.eigvalsh(within)[-1]
    for u in np.eye(6):
        lead = np.linalg.eigh(within + pull * np.outer(u, u))[1][:, -1]
        values = np.linalg.eigvalsh(within)
        assert (lead @ u) ** 2 >= 1 - (values[-1] - values[0]) / pull


def test_pixels_that_clean_images_never_use_get_no_gradient_from_them() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(60, 6, 6, generator=generator, dtype=torch.float64)
    images[:, -2:, -2:] = 0
    network = mlp([36, 8, 3], generator=generator)
    before = network[1].weight.detach().clone()
    labels = torch.arange(60) % 3
    train(network, images, labels, epochs=3, batch_size=20, learning_rate=0.01, generator=generator)
    moved = (network[1].weight.detach() != before).any(dim=0).reshape(6, 6)
    assert not moved[-2:, -2:].any()
    assert moved[:4, :4].all()


def test_every_drawing_shows_its_data_and_labels_its_axes() -> None:
    rates = np.array([[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]])
    x = np.linspace(0, 1, 5)
    calls = {
        draw.digits: (2, (np.zeros((2, 4, 4)), ["is 1, told 7", "is 2, told 7"])),
        draw.shares: (2, ([0, 0.1], {"one target": (rates, rates)})),
        draw.sizes: (1, ([1, 3], {"corner": rates})),
        draw.flips: (2, {"aimed": ([0, 0.1], rates, rates)}),
        draw.detection: (2, {"spectral": {"zeros": (x, x)}, "clustering": {"zeros": (x, x)}}),
        draw.cures: (1, {"zeros": {"before": 1.0, "after": 0.1}, "fours": {"before": 1.0, "after": 0.9}}),
    }
    public = {f for _, f in inspect.getmembers(draw, inspect.isfunction) if f.__module__ == draw.__name__}
    assert {f for f in public if not f.__name__.startswith("_")} == set(calls)
    for function, (panels, data) in calls.items():
        axes = np.atleast_1d(Figure().subplots(1, panels))
        arguments = data if isinstance(data, tuple) else (data,)
        function(axes if panels > 1 else axes[0], *arguments)
        for panel in axes:
            assert panel.has_data()
            if function is not draw.digits:
                assert panel.get_xlabel()
                assert panel.get_ylabel()


def test_the_control_stamps_every_class_and_relabels_none() -> None:
    labels = np.arange(200) % 10
    control = poisoning.poison(
        np.zeros((200, 28, 28)),
        labels,
        0.5,
        trigger=poisoning.PatchTrigger(-4, -4),
        target=None,
        n_classes=10,
        rng=np.random.default_rng(0),
        relabel=False,
    )
    assert set(labels[control.rows].tolist()) == set(range(10))
    assert (control.labels == labels).all()


def test_error_bars_reach_from_the_lowest_to_the_highest_seed() -> None:
    axes = Figure().subplots()
    draw.sizes(axes, [1, 3], {"corner": np.array([[0.1, 0.2, 0.6], [0.5, 0.6, 0.7]])})
    (segments,) = axes.containers[0].lines[2]
    ends = [segment[:, 1] for segment in segments.get_segments()]
    np.testing.assert_allclose(ends, [[0.1, 0.6], [0.5, 0.7]])
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), [0.3, 0.6])


def test_the_demo_patch_lies_where_the_chapter_says() -> None:
    stamped = poisoning.PatchTrigger(row=-4, column=-4, size=3)(np.zeros((1, 28, 28)))[0]
    rows, columns = np.nonzero(stamped)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (24, 26, 24, 26)
