"""Training: the same run from the same seed, the cost as promised, and robustness that is there."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from thousand_fingers.attacks import ZeroGradientWarning, fgsm, pgd, robust_accuracy
from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.models import Counted, mlp
from thousand_fingers.training import adversarial_train, cross_entropy, train


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(n: int = 40) -> tuple[Tensor, Tensor]:
    images = torch.rand(n, 2, 2, generator=seeded(3), dtype=torch.float64)
    return images, (images[:, 0, 0] > images[:, 1, 1]).long()


SETTINGS = {"epochs": 3, "batch_size": 16, "learning_rate": 0.05}
ATTACKER = {"radius": 0.1, "step_size": 0.05, "steps": 4}


def test_a_run_is_its_seeds_and_the_global_generator_is_not_touched():
    images, labels = problem()
    state = torch.get_rng_state()
    runs = []
    for seed in (0, 0, 1):
        network = mlp([4, 8, 2], generator=seeded())
        history = adversarial_train(network, images, labels, **ATTACKER, **SETTINGS, generator=seeded(seed))
        runs.append((history, [p.clone() for p in network.parameters()]))
    assert runs[0][0] == runs[1][0] != runs[2][0]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[2][1], strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_train_is_adam_on_every_image_once_an_epoch():
    images, labels = problem()
    network, twin = (mlp([4, 8, 2], generator=seeded()) for _ in range(2))
    history = train(network, images, labels, **SETTINGS, generator=seeded())
    optimiser = torch.optim.Adam(twin.parameters(), lr=SETTINGS["learning_rate"])
    order, losses = seeded(), []
    for _ in range(3):
        batches = torch.randperm(40, generator=order).split(16)
        assert [len(b) for b in batches] == [16, 16, 8]
        total = 0.0
        for batch in batches:
            optimiser.zero_grad()
            loss = functional.cross_entropy(twin(images[batch]), labels[batch], reduction="sum")
            (loss / len(batch)).backward()
            optimiser.step()
            total += loss.item()
        losses.append(total / 40)
    assert history.losses == pytest.approx(losses)
    for a, b in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("clean_share", "per_image"), [(0.0, 5), (0.5, 6)])
def test_the_cost_in_gradients_is_what_the_model_was_asked(clean_share, per_image):
    images, labels = problem()
    model = Counted(mlp([4, 8, 2], generator=seeded()))
    history = adversarial_train(
        model, images, labels, **ATTACKER, **SETTINGS, generator=seeded(), clean_share=clean_share
    )
    assert history.gradients == model.gradients == 40 * 3 * per_image
    assert model.forward_passes == model.gradients  # nothing is computed that is not differentiated
    plain = Counted(mlp([4, 8, 2], generator=seeded()))
    assert train(plain, images, labels, **SETTINGS, generator=seeded()).gradients == plain.gradients == 120


@pytest.mark.parametrize(
    ("attacker", "reach"), [(ATTACKER, 0.1), ({"radius": 0.1, "step_size": 0.04, "steps": 1}, 0.04)]
)
def test_each_step_sees_the_attack_of_the_stated_strength(attacker, reach):
    images, labels = problem()
    seen = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp([4, 8, 2], generator=seeded())

        def forward(self, x):
            if self.training and not x.requires_grad:  # the trainer's own pass, not the attacker's
                batch = (x.detach()[:, None] - images[None]).abs().amax((2, 3)).amin(1)
                seen.append(float(batch.max()))
            return self.inner(x)

    adversarial_train(
        Watched(), images, labels, **attacker, **SETTINGS, generator=seeded(), random_start=False, warm_up=2
    )
    # 3 batches an epoch: radius and step grow over the first 6 of 9 batches; some pixel goes all the way
    assert seen == pytest.approx([reach * min(1, (i + 1) / 6) for i in range(9)])


def test_clean_share_mixes_the_two_losses():
    images, labels = problem(8)
    # one batch, one epoch, one step: compare with the mixed loss at the initial weights
    for share in (0.0, 0.25):
        network = mlp([4, 8, 2], generator=seeded())
        attacked = pgd(network, images, labels, **ATTACKER, keep="last")
        with torch.no_grad():
            losses = cross_entropy(network, attacked, labels), cross_entropy(network, images, labels)
        expected = (1 - share) * losses[0] + share * losses[1]
        history = adversarial_train(
            network, images, labels, **ATTACKER, epochs=1, batch_size=8, learning_rate=0.1,
            generator=seeded(), random_start=False, clean_share=share,
        )  # fmt: skip
        assert history.losses[0] == pytest.approx(float(expected))


def test_objective_is_what_is_minimised():
    images, labels = problem()
    network = mlp([4, 2], generator=seeded())

    def shrink(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return sum((p**2).sum() for p in model.parameters())

    train(
        network,
        images,
        labels,
        epochs=60,
        batch_size=16,
        learning_rate=0.05,
        generator=seeded(),
        objective=shrink,
    )
    assert max(float(p.detach().abs().max()) for p in network.parameters()) < 0.05


def test_the_attackers_zero_gradients_do_not_clutter_training():
    images, labels = problem()
    network = mlp([4, 8, 2], generator=seeded())
    with torch.no_grad():
        network[-1].weight.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ZeroGradientWarning)
        adversarial_train(network, images, labels, **ATTACKER, **SETTINGS, generator=seeded())


def test_the_network_is_left_ready_for_use():
    images, labels = problem()
    network = nn.Sequential(*mlp([4, 8, 2], generator=seeded()), nn.Dropout(0.0))
    train(network, images, labels, **SETTINGS, generator=seeded())
    assert not any(m.training for m in network.modules())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"learning_rate": 0.0}, r"learning_rate must be > 0, got 0\.0"),
        ({"generator": 3}, "generator must be a torch.Generator"),
        ({"radius": -1.0}, r"radius must be >= 0, got -1\.0"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"clean_share": 1.0}, r"clean_share must be >= 0 and < 1, got 1\.0"),
        ({"warm_up": -1}, "warm_up must be >= 0, got -1"),
        ({"norm": "l1"}, "norm must be one of"),
    ],
)
def test_senseless_arguments_are_refused_before_the_weights_move(change, message):
    images, labels = problem()
    network = mlp([4, 2], generator=seeded())
    before = [p.clone() for p in network.parameters()]
    with pytest.raises((TypeError, ValueError), match=message):
        adversarial_train(
            network, images, labels, **{**ATTACKER, **SETTINGS, "generator": seeded(), **change}
        )
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            torch.rand(4, 4).float(),
            torch.zeros(4, dtype=torch.int64),
            "images must be torch.float64 like the weights",
        ),
        (torch.rand(4, 4).double(), torch.zeros(4), "labels must be int64"),
        (torch.rand(4, 4).double(), torch.zeros(3, dtype=torch.int64), "one entry per image"),
        (torch.rand(0, 4).double(), torch.zeros(0, dtype=torch.int64), "one entry per image"),
    ],
)
def test_data_that_do_not_fit_are_refused(images, labels, message):
    with pytest.raises((TypeError, ValueError), match=message):
        train(mlp([4, 2], generator=seeded()), images, labels, **SETTINGS, generator=seeded())


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    data, split = load_mnist5k(), mnist5k_split()
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    train, validation = split.train[:1000], split.validation[:200]
    return images[train], labels[train], images[validation], labels[validation]


def test_adversarial_training_buys_robustness_that_plain_training_lacks(digits):
    images, labels, new_images, new_labels = digits
    attack = partial(pgd, radius=0.1, step_size=0.01, steps=20)
    plain, robust = (mlp([784, 64, 10], generator=seeded()) for _ in range(2))
    settings = {"epochs": 10, "batch_size": 50, "learning_rate": 2e-3}
    train(plain, images, labels, **settings, generator=seeded(1))
    adversarial_train(
        robust,
        images,
        labels,
        radius=0.1,
        step_size=0.08,
        steps=3,
        warm_up=2,
        **settings,
        generator=seeded(1),
    )
    before, after = (robust_accuracy(m, new_images, new_labels, attack) for m in (plain, robust))
    assert before.high < after.low - 0.2
    assert robust_accuracy(robust, new_images, new_labels).low > 0.7


@pytest.mark.case("ROB-27")
def test_one_step_training_from_a_random_start_sees_valid_pixels_only():
    images, labels = problem()
    extremes = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp([4, 2], generator=seeded())

        def forward(self, x):
            extremes.append((float(x.detach().min()), float(x.detach().max())))
            return self.inner(x)

    adversarial_train(
        Watched(),
        images.round(),
        labels,
        radius=0.3,
        step_size=0.375,
        steps=1,
        **SETTINGS,
        generator=seeded(),
    )
    assert min(low for low, _ in extremes) >= 0
    assert max(high for _, high in extremes) <= 1


def test_one_step_without_random_start_is_training_on_fgsm():
    images, labels = problem(8)
    network = mlp([4, 8, 2], generator=seeded())
    with torch.no_grad():
        expected = cross_entropy(network, fgsm(network, images, labels, radius=0.2), labels)
    history = adversarial_train(
        network, images, labels, radius=0.2, step_size=0.2, steps=1, random_start=False, epochs=1, batch_size=8,
        learning_rate=0.1, generator=seeded(),
    )  # fmt: skip
    assert history.losses[0] == pytest.approx(float(expected))
