"""Deterministic certificates: against a hand-checked network, against sampling, attacks and exact distances."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from thousand_fingers.attacks import fgsm, pgd
from thousand_fingers.bounds import (
    interval_bounds,
    interval_loss,
    linear_radius,
    margin_bounds,
    ramped_interval_loss,
    verified,
)
from thousand_fingers.models import Normalised, mlp, predict_logits, small_cnn
from thousand_fingers.training import train


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def uniform(*shape, seed=1):
    return torch.rand(shape, generator=seeded(seed), dtype=torch.float64)


@pytest.fixture
def hand_made():
    """Two inputs, three hidden units, two classes; all bounds computed by hand and with auto_LiRPA 0.7.1."""
    model = nn.Sequential(
        nn.Linear(2, 3, dtype=torch.float64), nn.ReLU(), nn.Linear(3, 2, dtype=torch.float64)
    )
    values = (
        [[1, -1], [2, 1], [-1, 0.5]],
        [0, -0.5, 0.25],
        [[1, -2, 1], [0.5, 1, -1]],
        [0.1, -0.1],
    )
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(value))
    return model


POINT = torch.tensor([[0.5, 0.25]], dtype=torch.float64)


def listed(*tensors):
    return [tensor.detach().squeeze(0).tolist() for tensor in tensors]


def test_bounds_of_the_hand_made_network_have_the_reference_values(hand_made):
    lower, upper = listed(*interval_bounds(hand_made[:1], POINT, radius=0.1))
    assert lower == pytest.approx([0.05, 0.45, -0.275], abs=1e-6)
    assert upper == pytest.approx([0.45, 1.05, 0.025], abs=1e-6)
    lower, upper = listed(*interval_bounds(hand_made, POINT, radius=0.1))
    assert lower == pytest.approx([-1.95, 0.35], abs=1e-6)
    assert upper == pytest.approx([-0.325, 1.175], abs=1e-6)
    assert listed(hand_made(POINT))[0] == pytest.approx([-1.15, 0.775], abs=1e-6)


def test_merging_the_last_layer_gives_the_tighter_reference_margin(hand_made):
    margins = margin_bounds(hand_made, POINT, torch.tensor([1]), radius=0.1).detach()
    assert margins[0].tolist() == pytest.approx([-0.875, 0.0], abs=1e-6)
    lower, upper = interval_bounds(hand_made, POINT, radius=0.1)
    assert float((upper[0, 0] - lower[0, 1]).detach()) == pytest.approx(-0.675, abs=1e-6)


def test_true_range_of_the_hand_made_network_lies_inside_its_bounds(hand_made):
    steps = torch.linspace(-0.1, 0.1, 201, dtype=torch.float64)
    grid = POINT + torch.cartesian_prod(steps, steps)
    logits = hand_made(grid).detach()
    assert logits.amin(0).tolist() == pytest.approx([-1.75, 0.475], abs=1e-6)
    assert logits.amax(0).tolist() == pytest.approx([-0.55, 1.075], abs=1e-6)
    lower, upper = listed(*interval_bounds(hand_made, POINT, radius=0.1))
    assert bool((logits >= torch.tensor(lower)).all())
    assert bool((logits <= torch.tensor(upper)).all())


NETWORKS = {
    "mlp": mlp([784, 20, 15, 10], generator=seeded(2)),
    "linear": mlp([784, 10], generator=seeded(3)),
    "cnn": small_cnn(generator=seeded(4)),
    "normalised": Normalised(mlp([784, 20, 10], generator=seeded(5)), mean=0.13, std=0.31),
    "tanh": nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 12, dtype=torch.float64),
        nn.Tanh(),
        nn.Linear(12, 10, dtype=torch.float64),
    ),
}


def directions(norm, count, seed):
    raw = torch.randn(count, 28, 28, generator=seeded(seed), dtype=torch.float64)
    if norm == "linf":
        return raw.sign()
    return raw / raw.flatten(1).norm(dim=1)[:, None, None]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_sampled_perturbation_leaves_the_bounds(name, norm):
    model, image, label = NETWORKS[name], uniform(1, 28, 28), torch.tensor([3])
    radius = 0.05 if norm == "linf" else 0.7
    lower, upper = interval_bounds(model, image, radius=radius, norm=norm, clip=None)
    margins = margin_bounds(model, image, label, radius=radius, norm=norm, clip=None)
    logits = model(image + radius * directions(norm, 300, seed=6))
    assert bool((logits >= lower - 1e-12).all())
    assert bool((logits <= upper + 1e-12).all())
    assert bool((logits - logits[:, 3:4] <= margins + 1e-12).all())
    assert bool((upper > lower).all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", NETWORKS)
def test_merged_margins_are_never_worse_than_the_difference_of_two_bounds(name, norm):
    model, images = NETWORKS[name], uniform(5, 28, 28)
    labels = torch.tensor([0, 1, 2, 3, 9])
    margins = margin_bounds(model, images, labels, radius=0.03, norm=norm)
    lower, upper = interval_bounds(model, images, radius=0.03, norm=norm)
    naive = upper - lower.gather(1, labels[:, None])
    other = torch.ones_like(naive, dtype=torch.bool).scatter(1, labels[:, None], False)
    assert bool((margins[other] <= naive[other] + 1e-12).all())
    assert bool((margins[~other] == 0).all())


@pytest.mark.parametrize("name", NETWORKS)
def test_radius_zero_is_the_plain_network(name):
    model, images, labels = NETWORKS[name], uniform(5, 28, 28), torch.tensor([0, 1, 2, 3, 9])
    logits = model(images)
    for norm in ("linf", "l2"):
        lower, upper = interval_bounds(model, images, radius=0.0, norm=norm)
        assert torch.allclose(lower, logits, atol=1e-12)
        assert torch.allclose(upper, logits, atol=1e-12)
        margins = margin_bounds(model, images, labels, radius=0.0, norm=norm)
        assert torch.allclose(margins, logits - logits.gather(1, labels[:, None]), atol=1e-12)
        right = verified(model, images, logits.argmax(1), radius=0.0, norm=norm)
        assert bool(right.all())


@given(smaller=st.floats(0, 0.2), growth=st.floats(0, 0.2), norm=st.sampled_from(["linf", "l2"]))
@settings(max_examples=30, deadline=None)
def test_bounds_grow_with_the_radius(smaller, growth, norm):
    model, images, labels = NETWORKS["mlp"], uniform(3, 28, 28), torch.tensor([0, 1, 2])
    tight = margin_bounds(model, images, labels, radius=smaller, norm=norm)
    loose = margin_bounds(model, images, labels, radius=smaller + growth, norm=norm)
    assert bool((tight <= loose + 1e-12).all())


def test_a_ball_inside_a_box_has_the_tighter_bound():
    """An l2 ball lies in the linf ball of the same radius, which lies in the l2 ball of 28 times the radius."""
    model, images, labels = NETWORKS["mlp"], uniform(5, 28, 28), torch.tensor([0, 1, 2, 3, 4])
    box = margin_bounds(model, images, labels, radius=0.02, clip=None)
    ball = margin_bounds(model, images, labels, radius=0.02, norm="l2")
    outer = margin_bounds(model, images, labels, radius=0.02 * 28, norm="l2")
    assert bool((ball <= box + 1e-12).all())
    assert bool((box <= outer + 1e-12).all())


def test_pixels_that_cannot_leave_their_range_tighten_the_bounds():
    model, labels = NETWORKS["mlp"], torch.tensor([0])
    black = torch.zeros(1, 28, 28, dtype=torch.float64)
    inside = margin_bounds(model, black, labels, radius=0.1)
    outside = margin_bounds(model, black, labels, radius=0.1, clip=None)
    assert bool((inside[0, 1:] < outside[0, 1:]).all())


@pytest.mark.case("ROB-1")
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_normalisation_inside_the_model_equals_normalised_weights(norm):
    """Radius in pixels: 1/std larger in the units of the inner network."""
    inner = mlp([784, 20, 10], generator=seeded(7))
    images, labels = uniform(4, 28, 28), torch.tensor([0, 1, 2, 3])
    inside = margin_bounds(
        Normalised(inner, mean=0.1307, std=0.3081), images, labels, radius=0.02, norm=norm, clip=None
    )
    outside = margin_bounds(
        inner, (images - 0.1307) / 0.3081, labels, radius=0.02 / 0.3081, norm=norm, clip=None
    )
    assert torch.allclose(inside, outside, atol=1e-10)


@pytest.mark.case("ROB-2")
def test_images_outside_their_declared_range_are_refused_with_advice():
    normalised = (uniform(2, 28, 28) - 0.1307) / 0.3081
    with pytest.raises(ValueError, match=r"images must lie in \[0, 1\].*inside the model"):
        margin_bounds(NETWORKS["mlp"], normalised, torch.tensor([0, 1]), radius=0.1)


@pytest.mark.case("ROB-32")
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_positive_radius_really_reaches_the_last_layer(norm):
    for model in NETWORKS.values():
        lower, upper = interval_bounds(model, uniform(2, 28, 28), radius=1e-3, norm=norm)
        assert bool((upper > lower).all())


# --------------------------------------------------------------------------- training, and attacks


@pytest.fixture(scope="module")
def two_spirals():
    """A small problem on which a network can be trained to tight bounds in a second."""
    angle = 4 * uniform(400, seed=8)
    labels = torch.arange(400) % 2
    turn = angle + math.pi * labels
    points = torch.stack([turn.cos(), turn.sin()], dim=1) * (0.1 + 0.09 * angle)[:, None] + 0.5
    return points, labels


@pytest.fixture(scope="module")
def trained(two_spirals):
    points, labels = two_spirals
    model = mlp([2, 32, 32, 2], generator=seeded(9))
    objective = ramped_interval_loss(0.05, warm_up=200, ramp=400)
    train(
        model,
        points,
        labels,
        epochs=40,
        batch_size=20,
        learning_rate=5e-3,
        generator=seeded(10),
        objective=objective,
    )
    return model


@pytest.mark.case("ROB-31")
def test_verified_is_below_every_attack_image_by_image(two_spirals, trained):
    """The sandwich verified <= PGD <= FGSM <= clean, for every image and not only in the mean."""
    points, labels = two_spirals
    for radius in (0.03, 0.05, 0.1):
        proved = verified(trained, points, labels, radius=radius)
        options = {"radius": radius, "clip": (0.0, 1.0)}
        right = {
            "clean": predict_logits(trained, points).argmax(1) == labels,
            "fgsm": predict_logits(trained, fgsm(trained, points, labels, **options)).argmax(1) == labels,
            "pgd": predict_logits(
                trained,
                pgd(
                    trained,
                    points,
                    labels,
                    step_size=radius / 4,
                    steps=20,
                    generator=seeded(11),
                    restarts=2,
                    **options,
                ),
            ).argmax(1)
            == labels,
        }
        for standing in right.values():
            assert bool((standing | ~proved).all())
        assert int(proved.sum()) <= int(right["pgd"].sum()) <= int(right["clean"].sum())
    assert int(verified(trained, points, labels, radius=0.05).sum()) > 200  # and it proves something


def test_interval_training_tightens_what_plain_training_leaves_loose(two_spirals, trained):
    points, labels = two_spirals
    plain = mlp([2, 32, 32, 2], generator=seeded(9))
    train(plain, points, labels, epochs=40, batch_size=20, learning_rate=5e-3, generator=seeded(10))
    proved = [int(verified(model, points, labels, radius=0.05).sum()) for model in (plain, trained)]
    assert proved[1] > 1.5 * proved[0]


def test_interval_loss_at_radius_zero_is_cross_entropy():
    model, images, labels = NETWORKS["mlp"], uniform(6, 28, 28), torch.arange(6)
    clean = nn.functional.cross_entropy(model(images), labels)
    for share in (0.0, 0.3, 1.0):
        for norm in ("linf", "l2"):
            loss = interval_loss(model, images, labels, radius=0.0, clean_share=share, norm=norm)
            assert torch.allclose(loss, clean, atol=1e-12)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_interval_loss_bounds_the_loss_under_every_attack_and_has_gradients(norm):
    model, images, labels = NETWORKS["mlp"], uniform(6, 28, 28), torch.arange(6)
    radius = 0.03 if norm == "linf" else 0.4
    worst = interval_loss(model, images, labels, radius=radius, clean_share=0.0, norm=norm)
    attacked = pgd(
        model, images, labels, radius=radius, step_size=radius / 4, steps=20, norm=norm, keep="last"
    )
    assert float(nn.functional.cross_entropy(model(attacked), labels).detach()) <= float(worst.detach())
    for at in (0.0, radius):  # no NaN where the radius begins, at 0
        loss = interval_loss(model, images, labels, radius=at, norm=norm)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def test_ramp_starts_with_clean_images_and_ends_at_the_full_radius():
    model, images, labels = NETWORKS["mlp"], uniform(6, 28, 28), torch.arange(6)
    objective = ramped_interval_loss(0.1, warm_up=2, ramp=4, clean_share=0.25)
    losses = [objective(model, images, labels).item() for _ in range(9)]
    clean = nn.functional.cross_entropy(model(images), labels).item()
    final = interval_loss(model, images, labels, radius=0.1, clean_share=0.25).item()
    halfway = interval_loss(model, images, labels, radius=0.05, clean_share=0.625).item()
    assert losses[:3] == pytest.approx([clean] * 3, abs=1e-12)
    assert losses[4] == pytest.approx(halfway, abs=1e-12)
    assert losses[6:] == pytest.approx([final] * 3, abs=1e-12)


# --------------------------------------------------------------------------- linear models


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_linear_radius_is_attained_and_not_exceeded(norm):
    model, images = NETWORKS["linear"], uniform(20, 28, 28)
    labels = model(images).argmax(1)
    radii = linear_radius(model, images, labels, norm=norm)
    weight = model[1].weight
    logits = model(images)
    gaps = (logits.gather(1, labels[:, None]) - logits).scatter(1, labels[:, None], math.inf)
    slopes = weight - weight[labels].unsqueeze(1)
    size = slopes.norm(dim=2) if norm == "l2" else slopes.abs().sum(2)
    nearest = (gaps / size).argmin(1)
    step = slopes[torch.arange(20), nearest]
    step = step / step.norm(dim=1, keepdim=True) if norm == "l2" else step.sign()
    for share, still_right in ((1 - 1e-9, True), (1 + 1e-9, False)):
        moved = images.flatten(1) + share * radii[:, None] * step
        assert bool(((model[1:](moved).argmax(1) == labels) == still_right).all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_interval_certificate_of_a_linear_model_is_its_exact_radius(norm):
    model, images = NETWORKS["linear"], uniform(20, 28, 28)
    labels = model(images).argmax(1)
    for i, radius in enumerate(linear_radius(model, images, labels, norm=norm).tolist()):
        one, label = images[i : i + 1], labels[i : i + 1]
        for share, proved in ((1 - 1e-9, True), (1 + 1e-9, False)):
            found = verified(model, one, label, radius=share * radius, norm=norm, clip=None)
            assert found.tolist() == [proved]


def test_linear_radius_is_negative_for_a_wrong_answer_and_infinite_without_a_rival():
    model = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0], [-3.0, -4.0]]))
    image = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    assert linear_radius(model, image, torch.tensor([0])).item() == pytest.approx(1.0)
    assert linear_radius(model, image, torch.tensor([1])).item() == pytest.approx(-1.0)
    twins = nn.Linear(2, 2, dtype=torch.float64)
    with torch.no_grad():
        twins.weight.fill_(1.0)
        twins.bias.copy_(torch.tensor([1.0, 0.0]))
    assert linear_radius(twins, image, torch.tensor([0])).item() == math.inf
    assert linear_radius(twins, image, torch.tensor([1])).item() == -math.inf


# --------------------------------------------------------------------------- refusals


def test_unknown_layers_and_bad_arguments_are_refused():
    images, labels = uniform(2, 28, 28), torch.tensor([0, 1])
    strange = nn.Sequential(nn.Flatten(), nn.Linear(784, 10, dtype=torch.float64), nn.Softmax(1))
    with pytest.raises(TypeError, match="got Softmax"):
        interval_bounds(strange, images, radius=0.1)
    ends_in_relu = nn.Sequential(nn.Flatten(), nn.Linear(784, 10, dtype=torch.float64), nn.ReLU())
    with pytest.raises(TypeError, match="end with a linear layer, got ReLU"):
        margin_bounds(ends_in_relu, images, labels, radius=0.1)
    with pytest.raises(TypeError, match="one linear layer"):
        linear_radius(NETWORKS["mlp"], images, labels)
    with pytest.raises(ValueError, match=r"radius must be >= 0, got -0\.1"):
        verified(NETWORKS["mlp"], images, labels, radius=-0.1)
    with pytest.raises(ValueError, match="norm must be one of 'linf', 'l2', got 'l1'"):
        verified(NETWORKS["mlp"], images, labels, radius=0.1, norm="l1")
    with pytest.raises(ValueError, match="one entry per image"):
        verified(NETWORKS["mlp"], images, labels[:1], radius=0.1)
    with pytest.raises(ValueError, match="labels must be >= 0 and <= 9"):
        verified(NETWORKS["mlp"], images, labels + 9, radius=0.1)
    with pytest.raises(TypeError, match="labels must be int64"):
        verified(NETWORKS["mlp"], images, labels.double(), radius=0.1)


@pytest.mark.case("ROB-19")
def test_integer_images_are_refused():
    with pytest.raises(TypeError, match="images must be floating point"):
        verified(NETWORKS["mlp"], torch.zeros(1, 28, 28, dtype=torch.uint8), torch.tensor([0]), radius=0.1)


@pytest.mark.case("ROB-7")
def test_verification_leaves_gradients_and_inputs_alone():
    model, images = mlp([784, 8, 10], generator=seeded(12)), uniform(2, 28, 28)
    before = images.clone()
    found = verified(model, images, torch.tensor([0, 1]), radius=0.1)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(images, before)
    assert found.grad_fn is None
