"""Attacks: hand-checked answers, the peers' answers, and everything an attack must leave as it was."""

from __future__ import annotations

import gc
import itertools
import math
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from thousand_fingers.attacks import (
    RobustAccuracy,
    ZeroGradientWarning,
    _random_squares,
    average_over_draws,
    crop,
    diagnose,
    family,
    fgsm,
    pgd,
    random_sign_noise,
    rebuild_gradient,
    robust_accuracy,
    rotate,
    round_pixels,
    shadow,
    shift,
    square_search,
    sticker,
    worst_of,
)
from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.models import Counted, Normalised, mlp, small_cnn
from thousand_fingers.training import train

Attack = Callable[..., Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(*rows: tuple[float, ...], dtype: torch.dtype = torch.float64) -> nn.Linear:
    model = nn.Linear(len(rows[0]), len(rows), bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(rows, dtype=dtype))
    return model


def random_problem(
    n: int = 12, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return a small network, images well inside [0, 1], and the labels it gives them."""
    model = mlp([16, 24, 4], generator=seeded(), dtype=dtype)
    with torch.no_grad():
        model[-1].weight.mul_(8 * scale)
    images = 0.1 + 0.8 * torch.rand(n, 1, 4, 4, generator=seeded(1), dtype=torch.float64).to(dtype)
    return model, images, model(images).argmax(1)


pgd_linf = partial(pgd, radius=0.1, step_size=0.03, steps=7)
pgd_l2 = partial(pgd, radius=0.4, step_size=0.1, steps=7, norm="l2")
ATTACKS = {
    "fgsm": partial(fgsm, radius=0.1),
    "linf best": pgd_linf,
    "linf last": partial(pgd_linf, keep="last"),
    "l2 best": pgd_l2,
    "l2 last": partial(pgd_l2, keep="last"),
}
every_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
GENTLE = {
    "fgsm": partial(fgsm, radius=0.0),
    "linf best": partial(pgd_linf, radius=0.0),
    "linf last": partial(pgd_linf, radius=0.0, keep="last"),
    "l2 best": partial(pgd_l2, radius=0.0),
    "l2 last": partial(pgd_l2, radius=0.0, keep="last"),
}

# --------------------------------------------------------------------------- answers known beforehand

TWO = ((1.0, -2.0), (-1.0, 2.0))


@pytest.mark.parametrize(
    ("rows", "image", "label", "expected"),
    [
        (TWO, (0.5, 0.2), 0, (0.4, 0.3)),
        (TWO, (0.95, 0.03), 0, (0.85, 0.13)),
        (TWO, (0.0, 1.0), 1, (0.1, 0.9)),
        (((1.0, 0.0, -2.0), (-1.0, 0.0, 2.0)), (0.5, 0.5, 0.5), 0, (0.4, 0.5, 0.6)),  # sign(0) = 0
        (TWO, (0.05, 0.98), 0, (0.0, 1.0)),  # clipped
    ],
)
@pytest.mark.parametrize("attack", [fgsm, partial(pgd, step_size=0.02, steps=9, keep="last")])
def test_linf_attacks_on_a_linear_model_give_the_hand_computed_point(attack, rows, image, label, expected):
    found = attack(linear(*rows), torch.tensor([image]).double(), torch.tensor([label]), radius=0.1)
    torch.testing.assert_close(found, torch.tensor([expected]).double())


def test_l2_attack_on_a_linear_model_gives_the_hand_computed_point():
    found = pgd(
        linear(*TWO), torch.tensor([[0.5, 0.2]]).double(), torch.tensor([0]), radius=0.3, step_size=0.11, steps=5,
        norm="l2", keep="last",
    )  # fmt: skip
    # 0.3 along (-1, 2)/√5
    expected = torch.tensor([[0.5 - 0.3 / math.sqrt(5), 0.2 + 0.6 / math.sqrt(5)]]).double()
    torch.testing.assert_close(found, expected)


@given(
    weights=st.lists(st.floats(-3, 3), min_size=5, max_size=5),
    label=st.integers(0, 1),
    radius=st.floats(0, 0.2),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=40)
def test_on_a_linear_model_the_margin_falls_by_the_dual_norm(weights, label, radius, seed):
    model = linear(tuple(weights), tuple(-w for w in weights))
    image = 0.3 + 0.4 * torch.rand(1, 5, generator=seeded(seed), dtype=torch.float64)
    side = 1 - 2 * label
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroGradientWarning)
        by_sign = fgsm(model, image, torch.tensor([label]), radius=radius)
        by_length = pgd(
            model, image, torch.tensor([label]), radius=radius, step_size=0.1, steps=3, norm="l2", keep="last"
        )

    def margin(x: Tensor) -> float:
        return side * (model(x)[0, 0] - model(x)[0, 1]).item()

    w = 2 * np.array(weights)
    assert margin(by_sign) == pytest.approx(margin(image) - radius * np.abs(w).sum(), abs=1e-12)
    assert margin(by_length) == pytest.approx(margin(image) - radius * np.linalg.norm(w), abs=1e-9)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    """What torchattacks 3.5.1 and foolbox 3.3.4 return; written by benchmarks/attacks.py --write-reference."""
    with np.load(Path(__file__).parent / "reference" / "attacks.npz") as box:
        return dict(box)


@pytest.mark.parametrize(
    ("peer", "attack"),
    [
        ("torchattacks fgsm", partial(fgsm, radius=0.1)),
        ("foolbox fgsm", partial(fgsm, radius=0.1)),
        ("torchattacks pgd linf", partial(pgd, radius=0.1, step_size=0.02, steps=10, keep="last")),
        ("foolbox pgd linf", partial(pgd, radius=0.1, step_size=0.02, steps=10, keep="last")),
        ("foolbox pgd l2", partial(pgd, radius=0.5, step_size=0.1, steps=10, norm="l2", keep="last")),
        (
            "torchattacks targeted pgd linf",
            partial(pgd, radius=0.1, step_size=0.02, steps=10, targeted=True, keep="last"),
        ),
    ],
)
def test_the_same_examples_as_the_peers_at_equal_settings(reference, peer, attack):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for parameter, name in zip(model.parameters(), ("weight1", "bias1", "weight2", "bias2"), strict=True):
            parameter.copy_(torch.from_numpy(reference[name]))
    labels = torch.from_numpy(reference["labels"])
    if "targeted" in peer:
        labels = (labels + 1) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroGradientWarning)  # one of the twelve sits on a dead unit
        found = attack(model, torch.from_numpy(reference["images"]), labels)
    torch.testing.assert_close(found, torch.from_numpy(reference[peer]), rtol=0, atol=1e-12)


# --------------------------------------------------------------------------- never outside ball and box


@pytest.mark.case("ROB-1")
@every_attack
def test_a_normalised_model_is_attacked_in_pixels(attack):
    inner, images, labels = random_problem()
    model = Normalised(inner, mean=0.1307, std=0.3081)
    labels = model(images).argmax(1)
    found = attack(model, images, labels)
    change = found - images
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    limit = attack.keywords["radius"]
    if attack.keywords.get("norm") == "l2":
        assert float(change.flatten(1).norm(dim=1).max()) <= limit + 1e-12
    else:
        assert float(change.abs().max()) <= limit + 1e-12
    torch.testing.assert_close(model(found), inner((found - 0.1307) / 0.3081), rtol=0, atol=0)


@pytest.mark.case("ROB-2")
@every_attack
def test_images_on_a_wrong_scale_are_refused_with_advice(attack):
    model, images, labels = random_problem()
    normalised = (images - 0.1307) / 0.3081
    with pytest.raises(ValueError, match=rf"values from {float(normalised.min()):.4g} to .*Normalised"):
        attack(model, normalised, labels)
    with pytest.raises(ValueError, match=r"values from .* to 2.*divide bytes by 255"):
        attack(model, 255 * images, labels)
    attack(model, 255 * images, labels, clip=(0.0, 255.0))
    attack(model, normalised, labels, clip=None)


@pytest.mark.case("ROB-3")
@every_attack
def test_rounding_of_an_undone_normalisation_is_forgiven(attack):
    model, images, labels = random_problem(dtype=torch.float32)
    images[0, 0, 0, 0], images[1, 0, 0, 0] = -3e-8, 1 + 1.2e-7
    found = attack(model, images, labels)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    images[0, 0, 0, 0] = -3e-6
    with pytest.raises(ValueError, match="images must lie in clip"):
        attack(model, images, labels)


@pytest.mark.case("ROB-4")
@pytest.mark.parametrize("attack", GENTLE.values(), ids=GENTLE.keys())
@pytest.mark.parametrize("start", [None, 0])
def test_radius_zero_returns_the_images_and_not_an_alias(attack, start):
    model, images, labels = random_problem()
    before = images.clone()
    options = {} if start is None or attack.func is fgsm else {"generator": seeded(start)}
    found = attack(model, images, labels, **options)
    assert torch.equal(found, images)
    found.zero_()
    assert torch.equal(images, before)


@pytest.mark.case("ROB-14")
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_random_start_and_long_steps_stay_in_the_ball(norm, keep):
    model, images, labels = random_problem()
    found = pgd(
        model, images, labels, radius=0.1, step_size=0.2, steps=3, norm=norm, keep=keep, generator=seeded()
    )
    change = (found - images).flatten(1)
    lengths = change.abs().amax(1) if norm == "linf" else change.norm(dim=1)
    assert float(lengths.max()) <= 0.1 + 1e-12


@pytest.mark.case("ROB-15")
@pytest.mark.parametrize("attack", [ATTACKS[name] for name in ("fgsm", "linf best", "linf last")])
def test_the_bounds_hold_in_floating_point(attack):
    """fl(0.7 + 0.1) - 0.7 exceeds 0.1 in float32: what holds exactly is fl(x - r) <= z <= fl(x + r)."""
    model, _, _ = random_problem(dtype=torch.float32)
    images = torch.full((3, 1, 4, 4), 0.7, dtype=torch.float32)
    found = attack(model, images, model(images).argmax(1))
    assert bool(((images - 0.1) <= found).all())
    assert bool((found <= (images + 0.1)).all())


@pytest.mark.case("ROB-18")
@every_attack
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_of_the_images_is_kept(attack, dtype):
    model, images, labels = random_problem(dtype=dtype)
    found = attack(model, images, labels)
    assert found.dtype == dtype
    assert found.shape == images.shape
    if attack.func is fgsm and dtype == torch.float64:
        assert float((found - images).abs().max()) == pytest.approx(0.1, abs=1e-16)


@pytest.mark.case("ROB-18")
@pytest.mark.case("ROB-19")
@every_attack
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.bfloat16])
def test_bytes_and_half_precision_are_refused_with_advice(attack, dtype):
    model, images, labels = random_problem()
    with pytest.raises(TypeError, match=r"float32 or float64, got .*\.to\(torch\.float64\) / 255"):
        attack(model, (255 * images).to(dtype), labels)


@given(seed=st.integers(0, 10_000), radius=st.floats(0, 0.9), norm=st.sampled_from(["linf", "l2"]))
@settings(deadline=None, max_examples=30)
def test_any_attack_stays_in_ball_and_box(seed, radius, norm):
    model, _, _ = random_problem()
    images = torch.rand(5, 1, 4, 4, generator=seeded(seed), dtype=torch.float64)
    labels = torch.randint(0, 4, (5,), generator=seeded(seed))
    for keep in ("best", "last"):
        found = pgd(
            model,
            images,
            labels,
            radius=radius,
            step_size=0.2,
            steps=3,
            norm=norm,
            keep=keep,
            generator=seeded(seed),
        )
        change = (found - images).flatten(1)
        lengths = change.abs().amax(1) if norm == "linf" else change.norm(dim=1)
        assert float(lengths.max()) <= radius + 1e-12
        assert 0 <= float(found.min()) <= float(found.max()) <= 1


# --------------------------------------------------------------------------- nothing left behind


class _Whole(nn.Module):
    """Batch norm, a batch norm frozen on purpose and dropout, all in a model that is being trained."""

    def __init__(self, fail: bool = False):
        super().__init__()
        self.first, self.norm, self.frozen = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.BatchNorm1d(16)
        self.drop, self.last, self.fail = nn.Dropout(), nn.Linear(16, 4), fail
        self.double().train()
        self.frozen.eval()

    def forward(self, images: Tensor) -> Tensor:
        if self.fail:
            raise KeyError("forward")
        return self.last(self.drop(self.frozen(self.norm(self.first(images.flatten(1))))))


@pytest.mark.case("ROB-5")
@pytest.mark.case("ROB-6")
@every_attack
def test_modes_and_batch_norm_statistics_are_as_before(attack):
    model = _Whole()
    _, images, labels = random_problem()
    modes = [m.training for m in model.modules()]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    attack(model, images, labels)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    model.eval()
    attack(model, images, labels)
    assert not any(m.training for m in model.modules())


@pytest.mark.case("ROB-6")
@every_attack
def test_modes_are_as_before_when_the_model_fails(attack):
    model = _Whole(fail=True)
    _, images, labels = random_problem()
    modes = [m.training for m in model.modules()]
    with pytest.raises(KeyError):
        attack(model, images, labels)
    assert [m.training for m in model.modules()] == modes


@every_attack
def test_an_attack_sees_the_model_as_it_will_be_used(attack):
    """Dropout is off: with it on, two runs would differ."""
    model = _Whole()
    _, images, labels = random_problem()
    assert torch.equal(attack(model, images, labels), attack(model, images, labels))


@pytest.mark.case("ROB-7")
@every_attack
@pytest.mark.parametrize("gradient", [None, 1.0])
def test_gradients_of_the_parameters_are_as_before(attack, gradient):
    model, images, labels = random_problem()
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = None if gradient is None else torch.ones_like(parameter)
        parameter.requires_grad = i != 1
    images.requires_grad_()
    attack(model, images, labels)
    for i, parameter in enumerate(model.parameters()):
        assert parameter.requires_grad == (i != 1)
        assert (parameter.grad is None) if gradient is None else bool((parameter.grad == 1).all())
    assert images.grad is None
    assert images.requires_grad


@pytest.mark.case("ROB-21")
@every_attack
def test_works_without_grad_and_says_no_in_inference_mode(attack):
    model, images, labels = random_problem()
    expected = attack(model, images, labels)
    with torch.no_grad():
        assert torch.equal(attack(model, images, labels), expected)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        made_inside = images.clone()
        with pytest.raises(RuntimeError, match=r"outside torch\.inference_mode"):
            attack(model, images, labels)
    assert torch.equal(attack(model, made_inside, labels), expected)


@pytest.mark.case("ROB-22")
@every_attack
def test_the_result_carries_no_graph_and_memory_does_not_grow(attack):
    model, images, labels = random_problem()
    found = attack(model, images, labels)
    assert not found.requires_grad
    assert found.grad_fn is None
    tracemalloc.start()
    readings = []
    for _ in range(3):
        for _ in range(20):
            found = attack(model, found.detach(), labels)
        gc.collect()
        readings.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # What leaks grows each time; what another thread keeps, or a first call, does so once.
    assert np.diff(readings).min() < 20 * 400


@pytest.mark.case("ROB-23")
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_one_seed_one_answer_and_the_global_generator_is_not_touched(norm):
    model, images, labels = random_problem(scale=0.2)
    attack = partial(pgd, model, images, labels, radius=0.05, step_size=0.01, steps=5, norm=norm, restarts=2)
    state = torch.get_rng_state()
    first, again, other = (attack(generator=seeded(s)) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.case("ROB-25")
@pytest.mark.parametrize("attack", [fgsm, pgd, square_search])
def test_labels_are_never_guessed(attack):
    model, images, _ = random_problem()
    with pytest.raises(TypeError, match="labels"):
        attack(model, images, radius=0.1)


@every_attack
def test_the_images_are_not_changed(attack):
    model, images, labels = random_problem()
    before = images.clone()
    attack(model, images, labels)
    assert torch.equal(images, before)


# --------------------------------------------------------------------------- one image, one fate


@pytest.mark.case("ROB-8")
@every_attack
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_an_image_is_attacked_alike_in_any_company(attack, scale):
    model, images, labels = random_problem(n=500, scale=scale)
    together = attack(model, images, labels)
    for size in (1, 7):
        for i in (0, 123, 493):
            torch.testing.assert_close(
                attack(model, images[i : i + size], labels[i : i + size]),
                together[i : i + size],
                rtol=0,
                atol=1e-9,
            )


@pytest.mark.case("ROB-8")
def test_who_falls_early_does_not_change_the_random_start_of_the_others():
    model, images, labels = random_problem(n=6, scale=0.2)
    labels[0] = (labels[0] + 1) % 4  # already misclassified: leaves the active set before the start
    attack = partial(pgd, model, radius=0.02, step_size=1e-4, steps=1, restarts=2)  # the start shows
    reference = attack(images, labels, generator=seeded())
    labels[0] = (labels[0] - 1) % 4
    torch.testing.assert_close(
        attack(images, labels, generator=seeded())[1:], reference[1:], rtol=0, atol=1e-12
    )


@pytest.mark.case("ROB-9")
@pytest.mark.parametrize("tiny", [1e-8, 1e-30, 1e-200, 1e200])
def test_l2_steps_do_not_depend_on_the_size_of_the_gradient(tiny):
    model, images, labels = random_problem()

    class Faint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * tiny

    attack = partial(
        pgd, images=images, labels=labels, radius=0.4, step_size=0.1, steps=7, norm="l2", keep="last"
    )
    torch.testing.assert_close(attack(lambda x: model(Faint.apply(x))), attack(model), rtol=0, atol=1e-9)


@pytest.mark.case("ROB-11")
@pytest.mark.parametrize(("name", "attack"), ATTACKS.items())
def test_a_constant_model_moves_nothing_and_warns(name, attack):
    _, images, _ = random_problem(n=5)
    with pytest.warns(ZeroGradientWarning, match="5 of 5 images have zero gradient"):
        found = attack(lambda x: (0 * x.flatten(1))[:, :4], images, torch.zeros(5, dtype=torch.int64))
    assert torch.equal(found, images)


@pytest.mark.case("ROB-11")
def test_the_warning_counts_and_points_at_the_caller():
    def model(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0] * (x[:, 1] > 0.5), torch.full_like(x[:, 0], -1.0)], 1)

    images = torch.tensor([[0.5, 0.2], [0.5, 0.9], [0.5, 0.3]]).double()
    with pytest.warns(ZeroGradientWarning, match="2 of 3 images") as caught:
        pgd(model, images, torch.zeros(3, dtype=torch.int64), radius=0.1, step_size=0.1, steps=2)
    assert caught[0].filename == __file__


def test_a_tiny_gradient_is_not_a_zero_gradient():
    images, labels = torch.full((3, 4), 0.5).float(), torch.zeros(3, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ZeroGradientWarning)
        found = fgsm(lambda x: 1e-30 * x[:, :2] * torch.tensor([1.0, 0.0]), images, labels, radius=0.1)
    assert torch.equal(found != images, torch.tensor([[True, False, False, False]] * 3))


@pytest.mark.case("ROB-13")
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_targeted_attacks_walk_towards_the_target(attack):
    model = linear((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    images = torch.tensor([[0.6, 0.5, 0.45]]).double()
    for target in (1, 2):
        found = attack(model, images, torch.tensor([target]), targeted=True)
        before, after = (
            float(z[target] - z[[i for i in range(3) if i != target]].max())
            for z in (model(images)[0].detach(), model(found)[0].detach())
        )
        assert after > before
    assert model(attack(model, images, torch.tensor([1]), targeted=True)).argmax(1) == 1
    # an image that already is what is wanted
    kept = attack(model, images, torch.tensor([0]), targeted=True)
    assert model(kept).argmax(1) == 0


@pytest.mark.case("ROB-13")
def test_a_targeted_attack_does_not_stop_at_another_wrong_class():
    model = linear((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    images = torch.tensor([[0.6, 0.59, 0.3]]).double()
    found = pgd(model, images, torch.tensor([2]), radius=0.2, step_size=0.02, steps=10, targeted=True)
    assert model(found).argmax(1) == 2


# --------------------------------------------------------------------------- best so far


def fallen(model: nn.Module, images: Tensor, labels: Tensor) -> set[int]:
    return set((model(images).argmax(1) != labels).nonzero().flatten().tolist())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("start", [None, 5])
def test_more_steps_and_more_restarts_never_save_an_image(norm, start):
    model, images, labels = random_problem(n=200)
    attack = partial(pgd, model, images, labels, radius=0.1, step_size=0.02, norm=norm)
    before: set[int] = fallen(model, images, labels)
    for steps in (1, 3, 9):
        now = fallen(model, attack(steps=steps, generator=None if start is None else seeded(start)), labels)
        assert before <= now
        before = now
    many = fallen(model, attack(steps=9, generator=seeded(5), restarts=4), labels)
    assert fallen(model, attack(steps=9, generator=seeded(5)), labels) <= many


def test_the_active_set_finds_at_least_what_every_step_finds_for_fewer_gradients():
    model, images, labels = random_problem(n=200)
    every, active = Counted(model), Counted(model)
    attack = partial(pgd, images=images, labels=labels, radius=0.1, step_size=0.02, steps=10)
    last = fallen(model, attack(every, keep="last"), labels)
    best = fallen(model, attack(active, keep="best"), labels)
    assert last <= best
    assert every.gradients == every.forward_passes == 200 * 10
    assert active.gradients < every.gradients


def test_best_returns_the_first_point_that_fools():
    model, images, labels = random_problem(n=60)
    attack = partial(pgd, model, images, labels, radius=0.3, step_size=0.01)
    first_fall: dict[int, Tensor] = {}
    for steps in range(1, 31):
        point = attack(steps=steps, keep="last")
        for i in fallen(model, point, labels) - first_fall.keys():
            first_fall[i] = point[i]
        if steps in (1, 6, 30):  # the point after the last step counts as well
            found = attack(steps=steps)
            assert fallen(model, found, labels) == set(first_fall)
            for i, first in first_fall.items():
                torch.testing.assert_close(found[i], first, rtol=0, atol=1e-12)
    assert len(first_fall) > 20


def test_best_returns_the_highest_loss_of_those_who_stand():
    model, images, labels = random_problem(n=60, scale=0.2)
    attack = partial(pgd, model, images, labels, radius=0.01, step_size=0.02)  # steps that overshoot
    trace = torch.stack([images, *(attack(steps=steps, keep="last") for steps in range(1, 8))])
    found = attack(steps=7)

    def loss(x: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), labels, reduction="none")

    highest = torch.stack([loss(x) for x in trace]).amax(0)
    stands = [i for i in range(60) if i not in fallen(model, found, labels)]
    assert len(stands) > 30
    torch.testing.assert_close(loss(found)[stands], highest[stands])


def test_a_misclassified_image_is_returned_as_it_is():
    model, images, labels = random_problem()
    wrong = (labels + 1) % 4
    for options in ({}, {"generator": seeded()}):
        assert torch.equal(pgd(model, images, wrong, radius=0.1, step_size=0.1, steps=3, **options), images)


@pytest.mark.parametrize("options", [{}, {"generator": seeded(), "keep": "last"}])
def test_restarts_without_chance_or_without_choice_are_refused(options):
    model, images, labels = random_problem()
    with pytest.raises(ValueError, match="restarts must be 1"):
        pgd(model, images, labels, radius=0.1, step_size=0.1, steps=1, restarts=2, **options)


def test_random_starts_are_uniform_in_the_ball():
    """Kolmogorov–Smirnov against the exact laws; false alarm 1e-7 each."""
    n, d = 4000, 16
    centre = torch.full((n, d), 0.5, dtype=torch.float64)

    def model(x: Tensor) -> Tensor:  # pulls back where it came from with vanishing force
        return torch.stack([x.sum(1), -x.sum(1)], 1)

    def starts(norm: str) -> np.ndarray:
        found = pgd(
            model, centre, torch.zeros(n, dtype=torch.int64), radius=0.2, step_size=1e-12, steps=1, norm=norm,
            generator=seeded(), keep="last",
        )  # fmt: skip
        return ((found - centre) / 0.2).numpy()

    assert stats.kstest(starts("linf").ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-7
    offsets = starts("l2")
    lengths = np.linalg.norm(offsets, axis=1)
    assert stats.kstest(lengths**d, "uniform").pvalue > 1e-7
    # one coordinate of a uniform direction: (1 + u)/2 is Beta((d-1)/2, (d-1)/2)
    coordinate = (1 + offsets[:, 3] / lengths) / 2
    assert stats.kstest(coordinate, stats.beta((d - 1) / 2, (d - 1) / 2).cdf).pvalue > 1e-7


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"radius": -0.1}, ValueError, r"radius must be >= 0, got -0\.1"),
        ({"radius": math.nan}, ValueError, "radius must be finite"),
        ({"step_size": 0.0}, ValueError, r"step_size must be > 0, got 0\.0"),
        ({"steps": 0}, ValueError, "steps must be >= 1, got 0"),
        ({"steps": 2.0}, TypeError, "steps must be an integer"),
        ({"norm": "l1"}, ValueError, "norm must be one of 'linf', 'l2', got 'l1'"),
        ({"loss": "hinge"}, ValueError, "loss must be one of"),
        ({"keep": "all"}, ValueError, "keep must be one of"),
        ({"generator": 0}, TypeError, r"generator must be a torch\.Generator"),
        ({"clip": (1.0, 0.0)}, ValueError, "clip must be"),
        ({"images": np.zeros((2, 4))}, TypeError, r"images must be a torch\.Tensor, got ndarray"),
        ({"images": torch.zeros(4).double()}, ValueError, r"images must have shape \(n, \.\.\.\)"),
        ({"images": torch.zeros(0, 4).double()}, ValueError, "n >= 1"),
        ({"images": torch.tensor([[0.0, 0.0, 0.0, math.nan]] * 2).double()}, ValueError, "NaN"),
        ({"images": torch.tensor([[0.0, 0.0, 0.0, math.inf]] * 2).double()}, ValueError, "infinite"),
        (
            {"labels": torch.tensor([0.0, 1.0]).float()},
            TypeError,
            "labels must be a tensor of integers, got torch.float32",
        ),
        ({"labels": [0, 1]}, TypeError, "labels must be a tensor of integers, got list"),
        ({"labels": torch.tensor([0, 1, 1])}, ValueError, r"shape \(2,\), got \(3,\)"),
        ({"labels": torch.tensor([0, 3])}, ValueError, "labels must be >= 0 and <= 2, got 3"),
        ({"labels": torch.tensor([-1, 0])}, ValueError, "labels must be >= 0, got -1"),
        ({"model": lambda x: x[:, :3] * math.nan}, ValueError, "logits are NaN for 2 of 2"),
        ({"model": lambda x: x.sum()}, ValueError, "must return logits of shape"),
        ({"model": lambda x: x[:, :3].detach()}, RuntimeError, "rebuild_gradient"),
    ],
)
def test_senseless_input_is_refused_with_a_message(change, error, message):
    arguments = {
        "model": linear((1.0, 0, 0, 0), (0, 1.0, 0, 0), (0, 0, 1.0, 0)),
        "images": torch.full((2, 4), 0.5).double(),
        "labels": torch.tensor([0, 1]),
        "radius": 0.1,
        "step_size": 0.1,
        "steps": 2,
    }
    with pytest.raises(error, match=message):
        pgd(**{**arguments, **change})


def test_a_gradient_of_nan_is_named():
    def model(x: Tensor) -> Tensor:  # the square root's slope at zero, times zero
        return torch.stack([(x[:, 0] * 0).sqrt() + x[:, 1], x[:, 1] * 0], 1)

    with pytest.raises(ValueError, match="the gradient is NaN for 2 of 2"):
        fgsm(model, torch.full((2, 2), 0.5).double(), torch.tensor([0, 0]), radius=0.1)


# --------------------------------------------------------------------------- controls and counts


def test_sign_noise_is_a_random_corner():
    images = torch.full((50, 8, 8), 0.5, dtype=torch.float64)
    noisy = random_sign_noise(images, radius=0.1, generator=seeded())
    torch.testing.assert_close((noisy - images).abs(), torch.full_like(images, 0.1))
    ups = int((noisy > images).sum())
    assert stats.binomtest(ups, images.numel()).pvalue > 1e-7
    assert torch.equal(noisy, random_sign_noise(images, radius=0.1, generator=seeded()))
    clipped = random_sign_noise(images * 0, radius=0.1, generator=seeded())
    assert float(clipped.min()) == 0


def test_robust_accuracy_counts_and_bounds():
    model, images, labels = random_problem(n=50)
    labels[:7] = (labels[:7] + 1) % 4
    found = robust_accuracy(model, images, labels)
    exact = stats.binomtest(43, 50).proportion_ci(0.95, method="exact")
    assert (found.correct, found.total, found.value) == (43, 50, 0.86)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    attacked = robust_accuracy(model, images, labels, pgd_linf)
    assert attacked.correct == 50 - len(fallen(model, pgd_linf(model, images, labels), labels))
    assert attacked.value <= found.value
    narrow = robust_accuracy(model, images, labels, confidence=0.5)
    assert narrow.high - narrow.low < found.high - found.low
    assert isinstance(narrow, RobustAccuracy)


# --------------------------------------------------------------------------- outside the ball


def picture(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=seeded(8), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 3, 7, 7)])
def test_rotation_by_right_angles_moves_every_pixel_to_its_place(shape):
    images = picture(*shape)
    for quarter in range(-1, 5):
        turned = rotate(images, degrees=90 * quarter)
        torch.testing.assert_close(turned, torch.rot90(images, quarter, (-2, -1)), rtol=0, atol=1e-12)


def test_rotation_of_a_rectangle_does_not_shear():
    """A disc in the middle of a wide image stays where it is."""
    y, x = torch.meshgrid(torch.arange(21.0) - 10, torch.arange(41.0) - 20, indexing="ij")
    disc = torch.exp(-(x**2 + y**2) / 8)[None].double()
    torch.testing.assert_close(rotate(disc, degrees=37), disc, rtol=0, atol=0.06)  # interpolation


def test_rotation_there_and_back_is_almost_the_image():
    y, x = torch.meshgrid(torch.arange(29.0) - 14, torch.arange(29.0) - 14, indexing="ij")
    bar = torch.exp(-((x / 3) ** 2) - (y / 6) ** 2)[None].double()
    turned = rotate(bar, degrees=30)
    assert float((turned - bar).abs().max()) > 0.2
    torch.testing.assert_close(rotate(turned, degrees=-30), bar, rtol=0, atol=0.08)


@given(down=st.integers(-6, 6), right=st.integers(-6, 6))
@settings(deadline=None)
def test_shift_is_a_window_on_a_black_plane(down, right):
    images = picture(2, 5, 4)
    plane = torch.zeros(2, 25, 24, dtype=torch.float64)
    plane[:, 10:15, 10:14] = images
    expected = plane[:, 10 - down : 15 - down, 10 - right : 14 - right]
    assert torch.equal(shift(images, down=down, right=right), expected)


def test_crop_of_everything_is_the_image_and_of_a_flat_window_is_flat():
    images = picture(2, 6, 6)
    torch.testing.assert_close(crop(images, top=0, left=0, size=6), images)
    images[:, 1:4, 2:5] = 0.25
    torch.testing.assert_close(crop(images, top=1, left=2, size=3), torch.full_like(images, 0.25))


def test_crop_enlarges_a_ramp_to_the_same_ramp():
    """Bilinear interpolation is exact on linear images, away from the edge of the window."""
    ramp = torch.arange(8.0).double().expand(1, 8, 8)
    found = crop(ramp, top=2, left=2, size=4)
    expected = 2 + (torch.arange(8.0).double() + 0.5) / 2 - 0.5
    torch.testing.assert_close(found[0, 0, 1:-1], expected[1:-1])


@given(degrees=st.floats(-720, 720), offset=st.floats(-6, 6))
@settings(deadline=None)
def test_a_shadow_and_its_opposite_cover_everything_once(degrees, offset):
    white = torch.ones(1, 6, 9, dtype=torch.float64)
    one = shadow(white, degrees=degrees, offset=offset, brightness=0.0)
    other = shadow(white, degrees=degrees + 180, offset=-offset, brightness=0.0)
    angle = np.radians(degrees)
    depth = np.cos(angle) * (np.arange(9) - 4) + np.sin(angle) * (2.5 - np.arange(6))[:, None]
    off_the_line = torch.from_numpy(np.abs(depth - offset) > 1e-9)
    assert bool(((one + other)[0][off_the_line] == 1).all())
    assert torch.equal((one[0] == 0)[off_the_line], torch.from_numpy(depth > offset)[off_the_line])
    assert float(shadow(white, degrees=degrees, offset=100.0).min()) == 1
    assert float(shadow(white, degrees=degrees, offset=-100.0).max()) == 0.43


def test_a_shadow_falls_where_it_points():
    white = torch.ones(1, 4, 4, dtype=torch.float64)
    up = shadow(white, degrees=90, brightness=0.5)[0]
    assert torch.equal(up[:2], torch.full((2, 4), 0.5).double())
    assert torch.equal(up[2:], torch.ones(2, 4).double())


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 3, 6, 5)])
def test_a_sticker_changes_its_square_and_nothing_else(shape):
    images = 0.5 * picture(*shape)
    before = images.clone()
    covered = sticker(images, top=1, left=2, size=3)
    assert torch.equal(images, before)
    changed = covered != images
    assert bool(changed[..., 1:4, 2:5].all())
    assert int(changed.sum()) == 2 * (shape[1] if len(shape) == 4 else 1) * 9
    assert bool((covered[..., 1:4, 2:5] == 1).all())


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (partial(rotate, degrees=math.inf), "degrees must be finite"),
        (partial(shift, down=0.5), "down must be an integer"),
        (partial(crop, top=0, left=0, size=7), "size must be >= 1 and <= 5, got 7"),
        (partial(crop, top=3, left=0, size=4), "top must be >= 0 and <= 2, got 3"),
        (partial(sticker, top=0, left=-1, size=2), "left must be >= 0 and <= 3, got -1"),
        (partial(shadow, degrees=0, brightness=1.5), "brightness must be >= 0 and <= 1, got 1.5"),
    ],
)
def test_transformations_refuse_what_they_cannot_do(transform, message):
    with pytest.raises((TypeError, ValueError), match=message):
        transform(picture(1, 6, 5))


@pytest.mark.parametrize(
    "transform",
    [
        partial(rotate, degrees=1.0),
        partial(shift, down=1),
        partial(crop, top=0, left=0, size=2),
        partial(shadow, degrees=0),
        partial(sticker, top=0, left=0, size=2),
    ],
)
def test_transformations_refuse_what_is_no_batch_of_pictures(transform):
    with pytest.raises(ValueError, match=r"shape \(n, height, width\) or .*got \(6, 5\)"):
        transform(picture(6, 5))


def test_family_is_every_combination():
    grid = family(sticker, top=range(3), left=[0, 2], size=[2])
    assert [(t.keywords["top"], t.keywords["left"]) for t in grid] == list(
        itertools.product(range(3), [0, 2])
    )


def test_worst_of_is_the_worst_of_all_by_brute_force():
    model, images, labels = random_problem(n=80, scale=0.2)
    grid = family(rotate, degrees=range(-8, 9, 2))
    found = worst_of(model, images, labels, transforms=grid)
    candidates = torch.stack([images, *(t(images) for t in grid)])
    logits = model(candidates.flatten(0, 1)).reshape(10, 80, 4)
    falls = (logits.argmax(2) != labels).any(0)
    assert 10 < int(falls.sum()) < 75
    assert torch.equal(model(found).argmax(1) != labels, falls)
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.repeat(10), reduction="none").reshape(
        10, 80
    )
    worst = functional.cross_entropy(model(found), labels, reduction="none")
    torch.testing.assert_close(worst[~falls], losses.amax(0)[~falls])


def test_worst_of_leaves_the_fallen_alone():
    model, images, labels = random_problem(n=80)
    counted = Counted(model)
    worst_of(counted, images, labels, transforms=family(shift, down=[-2, -1, 1, 2], right=[-1, 1]))
    assert counted.forward_passes < 80 * 9
    assert counted.gradients == 0


# --------------------------------------------------------------------------- behind the mask


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A perceptron trained on 1,500 digits, and 200 new ones."""
    data, split = load_mnist5k(), mnist5k_split()
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    network = mlp([784, 64, 10], generator=seeded())
    seen, new = split.train[:1500], split.validation[:200]
    train(
        network, images[seen], labels[seen], epochs=10, batch_size=50, learning_rate=2e-3, generator=seeded(1)
    )
    return network, images[new], labels[new]


def test_random_signs_of_the_same_size_do_almost_nothing(digits):
    network, images, labels = digits
    clean = robust_accuracy(network, images, labels).value
    noisy = robust_accuracy(network, random_sign_noise(images, radius=0.1, generator=seeded()), labels).value
    attacked = robust_accuracy(network, images, labels, partial(fgsm, radius=0.1)).value
    assert noisy > clean - 0.1
    assert attacked < clean - 0.5


def test_rounding_hides_the_gradient_and_rebuilding_it_breaks_the_defence(digits):
    network, images, labels = digits
    defence = partial(round_pixels, levels=16)

    def defended(x: Tensor) -> Tensor:
        return network(defence(x))

    rebuilt = rebuild_gradient(defence)
    attack = partial(pgd, radius=0.1, step_size=0.01, steps=40)
    clean = robust_accuracy(defended, images, labels).value
    with pytest.warns(ZeroGradientWarning):
        fooled_by_it = robust_accuracy(defended, images, labels, attack)
    assert fooled_by_it.value == clean
    found = attack(lambda x: network(rebuilt(x)), images, labels)
    assert robust_accuracy(defended, found, labels).value < 0.2 < clean


def test_rebuild_gradient_has_the_value_of_one_and_the_slope_of_the_other():
    images = picture(3, 4, 4).requires_grad_()
    value = rebuild_gradient(partial(round_pixels, levels=4), lambda x: x**2)(images)
    assert torch.equal(value.detach(), round_pixels(images.detach(), levels=4))
    (slope,) = torch.autograd.grad(value.sum(), images)
    torch.testing.assert_close(slope, 2 * images.detach())


@given(levels=st.integers(2, 300), pixel=st.floats(0, 1))
def test_rounding_stays_within_half_a_level(levels, pixel):
    rounded = float(round_pixels(torch.tensor([pixel]).double(), levels=levels))
    assert abs(rounded - pixel) <= 0.5 / (levels - 1) + 1e-12
    assert round(rounded * (levels - 1)) == pytest.approx(rounded * (levels - 1))


def test_average_over_draws_is_the_mean_probability_and_its_gradient():
    model, images, _ = random_problem()
    generator, again = seeded(4), seeded(4)

    def noisy(x: Tensor, source: torch.Generator) -> Tensor:
        return model(x + 0.3 * torch.randn(x.shape, generator=source, dtype=x.dtype))

    images.requires_grad_()
    found = average_over_draws(lambda x: noisy(x, generator), draws=5)(images)
    expected = torch.stack([noisy(images, again).softmax(1) for _ in range(5)]).mean(0)
    torch.testing.assert_close(found.exp(), expected)
    slopes = [
        torch.autograd.grad(z[:, 1].sum(), images, retain_graph=True)[0] for z in (found.exp(), expected)
    ]
    torch.testing.assert_close(*slopes)


def test_averaging_breaks_a_random_defence_that_one_draw_resists(digits):
    network, images, labels = digits
    images, labels = images[:100], labels[:100]

    def defended(source: torch.Generator) -> Callable[[Tensor], Tensor]:
        def shake(x: Tensor) -> Tensor:  # a random quarter of the pixels survives
            kept = torch.rand(x.shape, generator=source, dtype=x.dtype) < 0.25
            return network(4 * x * kept)

        return shake

    attack = partial(pgd, radius=0.1, step_size=0.02, steps=10, keep="last")
    one = attack(defended(seeded(1)), images, labels)
    many = attack(average_over_draws(defended(seeded(1)), draws=20), images, labels)
    by_one, by_many = (robust_accuracy(defended(seeded(2)), x, labels) for x in (one, many))
    assert by_many.value < by_one.value - 0.1


@pytest.mark.case("ROB-12")
def test_saturated_logits_blind_cross_entropy_but_not_the_margin(digits):
    network, images, labels = digits

    def hot(x: Tensor) -> Tensor:
        return 1000 * network(x)

    attack = partial(pgd, radius=0.1, step_size=0.01, steps=40)
    with pytest.warns(ZeroGradientWarning):
        blind = robust_accuracy(hot, images, labels, attack)
    sharp = robust_accuracy(hot, images, labels, partial(attack, loss="margin"))
    cool = robust_accuracy(network, images, labels, partial(attack, loss="margin"))
    assert blind.value > 0.5
    assert sharp.value < 0.2
    assert sharp.correct == cool.correct


@pytest.mark.case("ROB-12")
def test_diagnosis_names_the_masked_and_clears_the_open(digits):
    network, images, labels = digits

    def symptoms(model: Callable[[Tensor], Tensor]) -> set[str]:
        found = diagnose(
            model,
            images[:100],
            labels[:100],
            radius=0.1,
            generator=seeded(),
            draws=30,
            queries=100,
            surrogate=network,
        )
        assert all(0 <= s.share <= 1 and s.present == (s.share > 0.01) for s in found)
        assert len({s.name for s in found}) == len(found) == 9
        return {s.name for s in found if s.present}

    assert symptoms(network) == set()
    gradient_free = {
        "zero gradient",
        "search without gradients does more",
        "even a boundless attack fails",
        "another model's examples do more",
    }
    assert symptoms(lambda x: network(round_pixels(x, levels=16))) >= gradient_free
    assert symptoms(lambda x: 1000 * network(x)) >= gradient_free | {"another loss does more"}
    source = seeded(3)
    shaken = symptoms(lambda x: network(x + 0.3 * torch.randn(x.shape, generator=source, dtype=x.dtype)))
    assert "answers change" in shaken


def test_diagnosis_finds_a_first_step_that_leads_nowhere():
    """A slope at the images that points the right way, flat everywhere else: many steps do not help one."""
    images = torch.full((20, 2, 2), 0.5).double()

    class OnlyHere(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * (x == 0.5)

    def model(x: Tensor) -> Tensor:
        z = OnlyHere.apply(x).flatten(1)
        return torch.stack([z[:, 0] - 0.42, 0.42 - z[:, 0]], 1)

    found = diagnose(
        model, images, torch.zeros(20, dtype=torch.int64), radius=0.1, generator=seeded(), steps=40
    )
    assert {s.name for s in found if s.present} >= {"one step does more", "noise does more"}


def test_square_search_needs_no_gradient_and_stays_in_the_ball(digits):
    network, images, labels = digits
    counted = Counted(lambda x: network(x).detach())
    found = square_search(counted, images, labels, radius=0.1, queries=150, generator=seeded())
    assert counted.gradients == 0
    assert counted.forward_passes <= 200 * 151
    # pixel by pixel fl(x - r) <= z <= fl(x + r)
    assert bool(((images - 0.1) <= found).all() and (found <= images + 0.1).all())
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    noise = partial(random_sign_noise, radius=0.1, generator=seeded())
    by_noise = robust_accuracy(network, worst_of(network, images, labels, transforms=[noise] * 150), labels)
    by_squares = robust_accuracy(network, found, labels)
    by_gradient = robust_accuracy(network, images, labels, partial(pgd, radius=0.1, step_size=0.01, steps=40))
    assert by_gradient.correct <= by_squares.correct < by_noise.correct - 30


def test_random_squares_are_squares_everywhere():
    masks = _random_squares(4000, 3, 7, 5, seeded())
    assert masks.shape == (4000, 1, 7, 5)
    counts = torch.zeros(5, 3)
    for mask in masks[:, 0]:
        where = mask.nonzero()
        top, left = (int(edge) for edge in where.amin(0))
        assert len(where) == 9
        assert bool(mask[top : top + 3, left : left + 3].all())
        counts[top, left] += 1
    assert stats.chisquare(counts.numpy().ravel()).pvalue > 1e-7


def test_square_search_is_its_seed_and_alike_in_any_company(digits):
    network, images, labels = digits
    search = partial(square_search, network, radius=0.05, queries=30)
    whole = search(images, labels, generator=seeded())
    assert torch.equal(whole, search(images, labels, generator=seeded()))
    wrong = labels.clone()
    wrong[0] = (wrong[0] + 1) % 10  # the first falls at once; nobody else may notice
    torch.testing.assert_close(search(images, wrong, generator=seeded())[1:], whole[1:])


def test_the_order_of_strength_holds_image_by_image(digits):
    """Correct under many steps, then one step, then no attack: the chain that every report must show."""
    network, images, labels = digits
    clean = fallen(network, images, labels)
    strong = fallen(network, pgd(network, images, labels, radius=0.1, step_size=0.01, steps=40), labels)
    stronger = fallen(
        network,
        pgd(network, images, labels, radius=0.1, step_size=0.01, steps=40, generator=seeded(), restarts=3),
        labels,
    )
    assert clean <= strong
    assert len(strong) >= len(fallen(network, fgsm(network, images, labels, radius=0.1), labels))
    assert len(stronger) >= len(strong) - 1


def test_a_convolutional_network_is_attacked_alike_with_and_without_channel_axis():
    network = small_cnn(generator=seeded())
    images, labels = picture(4, 28, 28), torch.arange(4)
    found = fgsm(network, images, labels, radius=0.1)
    assert torch.equal(found, fgsm(network, images[:, None], labels, radius=0.1)[:, 0])
