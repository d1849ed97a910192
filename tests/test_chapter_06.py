"""Sentences of chapter 6 that no module's test covers, and its drawings."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from thousand_fingers.accounting import privacy_statement, rdp_epsilon
from thousand_fingers.book.artefacts import load_artefact, recipes
from thousand_fingers.book.project import find_project
from thousand_fingers.federated import (
    Update,
    adapt_clipping,
    aggregate,
    iid_partition,
    private_federated_averaging,
    private_share_below,
)
from thousand_fingers.figures import federated as draw
from thousand_fingers.gradient_leakage import (
    clip_and_noise,
    invert_linear,
    label_from_gradient,
    shared_gradient,
)
from thousand_fingers.models import mlp


def test_the_mean_loss_of_the_union_is_the_weighted_mean_of_the_clients_losses() -> None:
    rng = np.random.default_rng(0)
    losses = [rng.random(n) for n in (10, 50, 100, 440)]
    n_k = np.array([loss.size for loss in losses])
    weighted = sum(n / n_k.sum() * loss.mean() for n, loss in zip(n_k, losses, strict=True))
    assert weighted == pytest.approx(np.concatenate(losses).mean(), rel=1e-12)


def test_six_answers_leave_the_two_that_the_chapter_uses() -> None:
    here = np.ones(2)
    came = [
        Update(0, 7, 30, (here,)),
        Update(1, 7, 10, (5 * here,)),
        Update(2, 7, 40, (np.array([np.nan, 0.0]),)),
        Update(3, 6, 40, (here,)),
        Update(4, 7, 0, (9 * here,)),
        Update(5, 7, 40, (np.ones(3),)),
    ]
    found = aggregate([np.zeros(2)], came, round_number=7)
    assert found.arrays[0].tolist() == [2.0, 2.0]
    assert [r.client for r in found.rejected] == [2, 3, 4, 5]


def test_a_client_with_eleven_twelfths_of_the_examples_moves_the_average_by_as_much() -> None:
    n_k = np.array([990] + 9 * [10])
    rows = np.zeros((10, 1))
    rows[0] = 1.0
    assert np.average(rows, axis=0, weights=n_k)[0] == pytest.approx(11 / 12)


def test_the_label_outlives_the_picture_under_noise() -> None:
    model = mlp([64, 32, 10], generator=torch.Generator().manual_seed(0))
    right, close = 0, 0
    for i in range(20):
        image = torch.rand(1, 64, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        shared = shared_gradient(model, image, torch.tensor([i % 10]))
        noisy = clip_and_noise(
            shared, max_grad_norm=1.0, noise_multiplier=0.05, generator=torch.Generator().manual_seed(i)
        )
        right += int(noisy[-1].argmin()) == i % 10
        close += bool((invert_linear(noisy[0], noisy[1]) - image[0]).abs().max() < 0.1)
        assert label_from_gradient(shared[-1]) == i % 10
    assert right >= 18
    assert close == 0


@pytest.mark.parametrize(("rounds", "published"), [(1, 0.97), (1_000, 1.07), (10_000, 1.18), (100_000, 2.21)])
def test_the_accountant_gives_the_table_of_mcmahan_and_others(rounds: int, published: float) -> None:
    found = rdp_epsilon(1.0, 1e-3, rounds, 100_000**-1.1, conversion="2017")
    assert round(found, 2) == published


def test_a_statement_about_clients_can_be_made_of_a_private_federation() -> None:
    images = torch.rand(60, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    run = private_federated_averaging(
        mlp([5, 3], generator=torch.Generator().manual_seed(0)),
        images,
        torch.arange(60) % 3,
        iid_partition(60, 30, np.random.default_rng(0)),
        rounds=4,
        expected_clients=3,
        epochs=1,
        batch_size=None,
        learning_rate=0.3,
        max_grad_norm=1.0,
        noise_multiplier=1.0,
        example_cap=2,
        rng=np.random.default_rng(0),
    )
    statement = privacy_statement(run, delta=1e-3, unit="one client with all its examples")
    assert "one client with all its examples of 30" in str(statement)
    with pytest.raises(ValueError, match="delta must be < 1/n"):
        privacy_statement(run, delta=1 / 30)


def test_the_other_share_drives_the_clipping_norm_to_zero() -> None:
    norms, norm = np.linspace(1, 2, 20), 0.1
    for _ in range(60):
        below = private_share_below(
            norms, norm, expected_clients=20, count_noise_std=0.0, rng=np.random.default_rng(0)
        )
        norm = adapt_clipping(norm, 1 - below)
    assert norm == pytest.approx(0.1 * np.exp(-0.1 * 60))


def test_every_drawing_shows_its_data_and_labels_its_axes() -> None:
    rng = np.random.default_rng(0)
    curves = rng.random((2, 3, 10))
    calls = {
        draw.holdings: ((2,), ({"dealt": np.eye(10, dtype=int), "shards": np.eye(10, dtype=int)},)),
        draw.rounds: ((2,), (["a", "b"], {"dealt": curves, "shards": curves})),
        draw.pictures: ((2, 3), ([rng.random((3, 4, 4))] * 2, ["held", "found"])),
        draw.batches: ((1,), ([1, 2], [64, 256], np.array([[20, 30], [20, 40]]))),
        draw.clipping: ((1,), (np.array([1.0, 2.0]), {"right": np.array([0.1, 1.0])})),
        draw.adapted: ((1,), ({"short": rng.random((3, 5)), "long": rng.random((3, 5))},)),
        draw.crowds: ((1,), ([10, 100], {"with": rng.random((2, 3))})),
    }
    public = {f for _, f in inspect.getmembers(draw, inspect.isfunction) if f.__module__ == draw.__name__}
    assert public == set(calls)
    for function, (shape, arguments) in calls.items():
        axes = np.atleast_1d(Figure().subplots(*shape) if len(shape) == 2 else Figure().subplots(1, *shape))
        options = {"trials": 20} if function is draw.batches else {}
        function(axes if axes.size > 1 else axes[0], *arguments, **options)
        for panel in axes.ravel():
            assert panel.has_data()
            if function is not draw.pictures:
                assert panel.get_xlabel()
                assert panel.get_ylabel() or panel is not axes.ravel()[0]


def test_bands_reach_from_the_lowest_to_the_highest_seed() -> None:
    axes = Figure().subplots(1, 2)
    curves = np.array([[[0.1, 0.2], [0.3, 0.6]]])
    draw.rounds(axes, ["a"], {"dealt": curves, "shards": curves})
    (band,) = axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.1, 0.6)
    np.testing.assert_allclose(axes[0].get_lines()[0].get_ydata(), [0.2, 0.4])


def test_the_curves_use_the_steps_that_the_search_chose() -> None:
    made = recipes(find_project())
    tried = np.array(made["06_steps"].arguments["learning_rates"])
    score = load_artefact("06_steps")["validation"].reshape(*tried.shape, -1)[..., -20:].mean(axis=-1)
    best = np.take_along_axis(tried, score.argmax(axis=-1)[..., None], axis=-1)
    assert made["06_rounds"].arguments["learning_rates"] == best.tolist()
    assert not set(made["06_steps"].arguments["seeds"]) & set(made["06_rounds"].arguments["seeds"])
