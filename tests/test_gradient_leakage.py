"""Gradient leakage: exact where a theorem says so, refusals where it cannot be, searches against known images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from thousand_fingers.federated import client_update, model_arrays
from thousand_fingers.gradient_leakage import (
    clip_and_noise,
    cosine_matching,
    deep_leakage,
    dlg_network,
    invert_linear,
    label_counts,
    label_from_gradient,
    match_images,
    psnr,
    recovered,
    shared_gradient,
    unit_candidates,
    update_as_gradient,
)
from thousand_fingers.models import mlp


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_of(n: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.rand(n, *shape, generator=generator(seed), dtype=torch.float64)


def squares(n: int) -> Tensor:
    """Images of 8 by 8 pixels with a bright rectangle each."""
    images = torch.zeros(n, 8, 8, dtype=torch.float64)
    for i in range(n):
        images[i, 1 + i : 5 + i, 2 : 6 - i] = 0.9 - 0.2 * i
    return images


# --------------------------------------------------------------------------- division


@given(seed=st.integers(0, 10_000), label=st.integers(0, 4))
@settings(max_examples=30)
@pytest.mark.parametrize("method", ["least squares", "largest"])
def test_one_example_comes_back_exactly_through_a_layer_with_bias(method: str, seed: int, label: int) -> None:
    model, image = mlp([12, 16, 5], generator=generator(seed)), images_of(1, 12, seed=seed)
    weights, biases, *_ = shared_gradient(model, image, torch.tensor([label]))
    found = invert_linear(weights, biases, method=method)
    assert float((found - image[0]).abs().max()) < 1e-10


def test_without_bias_the_attack_refuses_and_says_why() -> None:
    layer = nn.Sequential(nn.Flatten(), nn.Linear(6, 3, bias=False, dtype=torch.float64))
    (weights,) = shared_gradient(layer, images_of(1, 6), torch.tensor([1]))
    for attack in (invert_linear, unit_candidates):
        with pytest.raises(ValueError, match=r"no bias: .* only up to a factor"):
            attack(weights, None)
    # Up to a factor: every row is a multiple of the image.
    directions = weights / weights.norm(dim=1, keepdim=True)
    image = images_of(1, 6)[0]
    assert torch.allclose((directions @ image).abs(), image.norm())


def test_a_layer_without_active_units_gives_an_error_and_no_nan() -> None:
    model = mlp([6, 4, 3], generator=generator())
    with torch.no_grad():
        model[1].bias.fill_(-100.0)
    weights, biases, *_ = shared_gradient(model, images_of(1, 6), torch.tensor([1]))
    for attack in (invert_linear, unit_candidates):
        with pytest.raises(ValueError, match="no unit of the layer was active"):
            attack(weights, biases)


def test_a_unit_that_one_example_activates_returns_that_example() -> None:
    # Unit i sees pixel i only, and example i is the only one with ink there.
    model = mlp([4, 4, 2], generator=generator())
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(4))
        model[1].bias.fill_(-0.1)
    images = torch.eye(4, dtype=torch.float64)
    weights, biases, *_ = shared_gradient(model, images, torch.tensor([0, 1, 0, 1]))
    found = unit_candidates(weights, biases)
    assert recovered(found, images, max_error=1e-9).all()
    assert not recovered(found, 1 - images).any()  # negative control: other images are not found


def test_wide_layers_isolate_more_examples_of_a_batch() -> None:
    images, labels = images_of(8, 100, seed=3), torch.arange(8) % 5
    shares = []
    for hidden in (8, 64, 1024):
        weights, biases, *_ = shared_gradient(
            mlp([100, hidden, 5], generator=generator()), images - 0.5, labels
        )
        shares.append(recovered(unit_candidates(weights, biases), images - 0.5).mean())
    assert shares[0] < shares[-1] == 1.0


@pytest.mark.parametrize("C", [1e-3, 1.0, np.inf])
def test_clipping_alone_changes_nothing_because_the_factor_cancels(C: float) -> None:
    model, image = mlp([12, 16, 5], generator=generator()), images_of(1, 12)
    shared = shared_gradient(model, image, torch.tensor([2]))
    clipped = clip_and_noise(shared, max_grad_norm=C, noise_multiplier=0.0, generator=generator())
    norm = torch.cat([g.flatten() for g in clipped]).norm()
    assert float(norm) <= C * (1 + 1e-12)
    assert float((invert_linear(clipped[0], clipped[1]) - image[0]).abs().max()) < 1e-10


def test_noise_has_the_size_it_is_said_to_have() -> None:
    shared = [torch.zeros(200, 100, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)]
    noisy = clip_and_noise(shared, max_grad_norm=2.0, noise_multiplier=0.5, generator=generator())
    values = torch.cat([g.flatten() for g in noisy])
    assert float(values.std()) == pytest.approx(1.0, rel=0.03)
    with pytest.raises(ValueError, match="finite max_grad_norm"):
        clip_and_noise(shared, max_grad_norm=np.inf, noise_multiplier=0.5, generator=generator())


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_local_steps_on_one_example_do_not_protect_it(steps: int) -> None:
    model, image = mlp([12, 16, 5], generator=generator()), images_of(1, 12)
    before = model_arrays(model)
    client_update(
        model,
        image,
        torch.tensor([3]),
        epochs=steps,
        batch_size=None,
        learning_rate=0.1,
        generator=generator(),
    )
    weights, biases, *_ = update_as_gradient(before, model_arrays(model), 0.1)
    assert float((invert_linear(weights, biases) - image[0]).abs().max()) < 1e-9


def test_one_step_of_weights_is_the_gradient_and_weights_themselves_are_not() -> None:
    model, image = mlp([12, 16, 5], generator=generator()), images_of(3, 12)
    labels, before = torch.tensor([3, 1, 0]), model_arrays(model)
    shared = shared_gradient(model, image, labels)
    client_update(model, image, labels, epochs=1, batch_size=None, learning_rate=0.25, generator=generator())
    for g, u in zip(shared, update_as_gradient(before, model_arrays(model), 0.25), strict=True):
        torch.testing.assert_close(g, u, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="must have shape"):
        update_as_gradient([np.zeros(2)], [np.zeros(3)], 0.1)


def test_no_gradient_is_left_on_the_model() -> None:
    model = mlp([12, 16, 5], generator=generator())
    shared_gradient(model, images_of(1, 12), torch.tensor([2]))
    assert all(p.grad is None for p in model.parameters())


# --------------------------------------------------------------------------- labels


@given(seed=st.integers(0, 10_000), label=st.integers(0, 6))
@settings(max_examples=40)
def test_the_label_of_one_example_is_always_read_off(seed: int, label: int) -> None:
    model = mlp([12, 16, 7], generator=generator(seed))
    *_, last = shared_gradient(model, 4 * images_of(1, 12, seed=seed) - 2, torch.tensor([label]))
    assert label_from_gradient(last) == label


def test_noise_that_hides_the_sign_is_an_error_not_a_guess() -> None:
    with pytest.raises(ValueError, match="got 2"):
        label_from_gradient(torch.tensor([-0.1, -0.2, 0.3]))


@pytest.mark.parametrize("batch_size", [1, 8, 50])  # more examples than classes, too
def test_counts_of_labels_are_exact_when_the_mean_probabilities_are_known(batch_size: int) -> None:
    model, images = mlp([12, 16, 7], generator=generator()), images_of(batch_size, 12)
    labels = torch.randint(7, (batch_size,), generator=generator(4))
    *_, last = shared_gradient(model, images, labels)
    mean = model(images).softmax(1).mean(0).detach().numpy()
    assert label_counts(last, batch_size, mean).tolist() == torch.bincount(labels, minlength=7).tolist()
    rough = label_counts(last, batch_size, np.full(7, 1 / 7))
    assert rough.sum() == batch_size
    assert (rough >= 0).all()


# --------------------------------------------------------------------------- search


def test_deep_leakage_finds_image_and_label() -> None:
    model, image, label = dlg_network(generator=generator(), side=8), squares(1), torch.tensor([3])
    shared = shared_gradient(model, image, label)
    found = deep_leakage(model, shared, shape=(1, 8, 8), n_classes=10, generator=generator(1), restarts=4)
    assert float(psnr(found.images, image)) > 30
    assert int(found.labels.argmax()) == 3
    assert found.loss < 1e-4
    assert found.gradients > 15
    assert all(p.grad is None for p in model.parameters())


def test_deep_leakage_of_another_gradient_finds_another_image() -> None:
    model, images = dlg_network(generator=generator(), side=8), squares(2)
    shared = shared_gradient(model, images[:1], torch.tensor([3]))
    found = deep_leakage(
        model,
        shared,
        shape=(1, 8, 8),
        n_classes=10,
        labels=torch.tensor([3]),
        generator=generator(1),
        restarts=4,
    )
    assert float(psnr(found.images, images[:1])) > float(psnr(found.images, images[1:])) + 10


def test_restarts_keep_the_best_loss() -> None:
    model, image = dlg_network(generator=generator(5), side=8), squares(1)
    shared = shared_gradient(model, image, torch.tensor([3]))
    options = {"shape": (1, 8, 8), "n_classes": 10, "steps": 3}
    losses = [
        deep_leakage(model, shared, **options, generator=generator(2), restarts=r, good_enough=0.0).loss
        for r in (1, 3)
    ]
    assert losses[1] <= losses[0]


def test_cosine_matching_finds_a_batch_and_does_not_care_about_clipping() -> None:
    model, images, labels = mlp([64, 64, 10], generator=generator()), squares(2), torch.tensor([3, 7])
    shared = shared_gradient(model, images, labels)
    clipped = clip_and_noise(shared, max_grad_norm=0.01, noise_multiplier=0.0, generator=generator())
    results = []
    for gradient in (shared, clipped):
        found = cosine_matching(
            model, gradient, shape=(2, 8, 8), labels=labels, generator=generator(1), steps=150
        )
        results.append(psnr(match_images(found.images, images), images))
        assert found.images.min() >= 0
        assert found.images.max() <= 1
    assert (results[0] > 22).all()
    assert (results[1] > 22).all()
    assert found.gradients == 300


def test_a_label_below_zero_is_refused() -> None:
    model = mlp([64, 8, 10], generator=generator())
    ignored = torch.tensor([-100])  # to torch: "ignore"
    with pytest.raises(ValueError, match="labels must be >= 0, got -100"):
        shared_gradient(model, squares(1), ignored)
    shared = shared_gradient(model, squares(1), torch.tensor([3]))
    with pytest.raises(ValueError, match="labels must be >= 0"):
        cosine_matching(model, shared, shape=(1, 8, 8), labels=ignored, generator=generator())


def test_searches_refuse_what_does_not_fit() -> None:
    model = mlp([64, 8, 10], generator=generator())
    shared = shared_gradient(model, squares(1), torch.tensor([3]))
    options = {"shape": (1, 8, 8), "generator": generator()}
    with pytest.raises(ValueError, match="shapes of the parameters"):
        cosine_matching(model, shared[:-1], labels=torch.tensor([3]), **options)
    with pytest.raises(ValueError, match="no direction"):
        cosine_matching(model, [0 * g for g in shared], labels=torch.tensor([3]), **options)
    with pytest.raises(ValueError, match="must be finite"):
        deep_leakage(model, [g / 0 for g in shared], n_classes=10, **options)
    with pytest.raises(ValueError, match="between 0 and 9"):
        deep_leakage(model, shared, n_classes=10, labels=torch.tensor([10]), **options)


# --------------------------------------------------------------------------- pictures


def test_psnr_is_the_textbooks_and_equal_images_get_the_cap() -> None:
    assert psnr(torch.full((1, 4), 0.1), torch.zeros(1, 4)).item() == pytest.approx(20, abs=1e-5)
    assert psnr(torch.zeros(2, 4), torch.zeros(2, 4)).tolist() == [150.0, 150.0]


@given(seed=st.integers(0, 1_000), n=st.integers(1, 7))
@settings(max_examples=30)
def test_a_shuffled_batch_is_put_back_in_order(seed: int, n: int) -> None:
    images = images_of(n, 5, seed=seed)
    order = torch.randperm(n, generator=generator(seed))
    assert torch.equal(match_images(images[order], images), images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["least squares", "largest"])
def test_tiny_gradients_give_the_input_away_too(dtype: torch.dtype, method: str) -> None:
    scale = 1e-25 if dtype == torch.float32 else 1e-200
    x = torch.tensor([0.25, 0.5, 1.0], dtype=dtype)
    g = scale * torch.tensor([0.0, -2.0, 1.0], dtype=dtype)
    assert torch.allclose(invert_linear(torch.outer(g, x), g, method=method), x, rtol=1e-5)


def test_labels_are_counted_from_numbers_only() -> None:
    with pytest.raises(ValueError, match="last_bias_gradient must be finite"):
        label_counts(torch.tensor([float("nan"), 0.0]), 3, [0.5, 0.5])
    with pytest.raises(ValueError, match="below mean_probabilities"):
        label_counts(torch.tensor([1.0, 1.0]), 5, [0.1, 0.1])


def test_a_candidate_that_is_no_number_hides_no_other() -> None:
    candidates = torch.tensor([[float("nan"), 0.0], [0.5, 0.5]])
    assert recovered(candidates, torch.tensor([[0.5, 0.5], [0.0, 0.0]])).tolist() == [True, False]


def test_psnr_refuses_bytes_whose_differences_would_wrap() -> None:
    dark, light = (torch.full((1, 4), value, dtype=torch.uint8) for value in (0, 255))
    with pytest.raises(TypeError, match=r"between 0 and 1, got torch\.uint8"):
        psnr(dark, light)


def test_no_search_for_a_gradient_of_zero() -> None:
    model = dlg_network(generator=generator(), side=8)
    nothing = [torch.zeros_like(p) for p in model.parameters()]
    with pytest.raises(ValueError, match="must not be zero"):
        deep_leakage(model, nothing, shape=(1, 8, 8), n_classes=10, generator=generator())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_gives_neither_image_nor_label(bad: float) -> None:
    weights, biases = torch.ones(3, 4), torch.tensor([-1.0, bad, 0.5])
    for attack in (invert_linear, unit_candidates):
        for pair in ((weights, biases), (bad * weights, weights[:, 0])):
            with pytest.raises(ValueError, match="gradients must be finite"):
                attack(*pair)
    with pytest.raises(ValueError, match="last_bias_gradient must be finite"):
        label_from_gradient(biases)
