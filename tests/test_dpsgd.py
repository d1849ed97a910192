"""DP-SGD: both engines against a loop and against Opacus, the noise as promised, and what is refused."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from thousand_fingers.auditing import audit_noise, audit_sampler
from thousand_fingers.dpsgd import (
    ENGINES,
    NonFiniteGradient,
    PrivateTraining,
    clipped_sum,
    cross_entropies,
    per_example_gradients,
    poisson_sample,
    private_gradient,
    refuse_unsafe,
    train_private,
)
from thousand_fingers.models import mlp, small_cnn

both_engines = pytest.mark.parametrize("engine", ENGINES)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(n: int = 12, shape: tuple[int, ...] = (2, 3), classes: int = 3, seed: int = 1):
    generator = seeded(seed)
    images = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    return images, torch.randint(classes, (n,), generator=generator)


def tiny_cnn() -> nn.Sequential:
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, (2, 3), dilation=(1, 2), groups=2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(18, 3),
    ).double()
    return redrawn(network)


def redrawn(model: nn.Module, seed: int = 5) -> nn.Module:
    """Weights from a generator of our own, so that no test depends on the global one."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def by_loop(model: nn.Module, images: Tensor, labels: Tensor) -> list[dict[str, Tensor]]:
    """Every example alone, with nothing but autograd."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = []
    for image, label in zip(images, labels, strict=True):
        loss = functional.cross_entropy(model(image[None]), label[None])
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients.append(
            {
                name: torch.zeros_like(p) if g is None else g
                for (name, p), g in zip(parameters.items(), found, strict=True)
            }
        )
    return gradients


def clipped_by_loop(model: nn.Module, images: Tensor, labels: Tensor, C: float) -> dict[str, Tensor]:
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}
    for gradient in by_loop(model, images, labels):
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradient.values()))
        for name, g in gradient.items():
            total[name] = total[name] + g / max(1.0, norm / C)
    return total


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert list(a) == list(b)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def norm_of(gradient: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradient.values()))


class Twice(nn.Module):
    """One layer used two times, and an output that shares its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(6, 6, bias=False)
        self.out = nn.Linear(6, 6, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, images: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(images.flatten(1))))[:, :3]


class Again(nn.Module):
    """One layer, one name, two uses."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(images.flatten(1))))


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    perceptron = mlp([6, 5, 3], generator=seeded())
    frozen = mlp([6, 5, 3], generator=seeded())
    frozen[1].weight.requires_grad_(False)
    sequence = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
    return {
        "perceptron": (perceptron, (2, 3)),
        "bias only in the first layer": (frozen, (2, 3)),
        "linear over positions": (redrawn(sequence), (2, 3)),
        "convolutions": (tiny_cnn(), (2, 7, 9)),
    }


NETWORKS = networks()


# --------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("C", [0.05, 1.0, 1e6])
@both_engines
def test_the_clipped_sum_is_that_of_a_loop_over_examples(name, C, engine):
    model, shape = NETWORKS[name]
    images, labels = batch(shape=shape)
    found = clipped_sum(model, images, labels, max_grad_norm=C, engine=engine)
    assert distance(found, clipped_by_loop(model, images, labels, C)) < 1e-12


@pytest.mark.parametrize("name", NETWORKS)
def test_per_example_gradients_are_those_of_a_loop(name):
    model, shape = NETWORKS[name]
    images, labels = batch(shape=shape)
    found = per_example_gradients(model, images, labels)
    for i, gradient in enumerate(by_loop(model, images, labels)):
        assert distance({k: g[i] for k, g in found.items()}, gradient) < 1e-13


@both_engines
def test_a_chunk_is_a_matter_of_memory_only(engine):
    """Also DP-9: microbatches would have doubled the sensitivity; a chunk is no microbatch."""
    model, shape = NETWORKS["convolutions"]
    images, labels = batch(n=11, shape=shape)
    options = {"max_grad_norm": 0.2, "engine": engine}
    whole = clipped_sum(model, images, labels, **options)
    assert distance(whole, clipped_sum(model, images, labels, chunk_size=3, **options)) < 1e-13


@pytest.mark.case("DP-9")
@both_engines
def test_every_example_is_clipped_for_itself_and_not_with_its_neighbours(engine):
    model, shape = NETWORKS["perceptron"]
    images, labels = batch(n=4, shape=shape)
    images, labels = images[[0, 0, 1, 1]], torch.tensor([0, 1, 0, 1])  # pairs that pull apart
    found = clipped_sum(model, images, labels, max_grad_norm=0.1, engine=engine)
    alone = [
        clipped_sum(model, images[i : i + 1], labels[i : i + 1], max_grad_norm=0.1, engine=engine)
        for i in range(4)
    ]
    total = {name: sum(part[name] for part in alone) for name in found}
    assert distance(found, total) < 1e-14


@settings(max_examples=40)
@given(
    C=st.floats(1e-3, 1e3),
    size=st.sampled_from([0.0, 1e-200, 1e-8, 1.0, 1e8, 1e150, math.inf, math.nan]),
    engine=st.sampled_from(ENGINES),
    name=st.sampled_from(sorted(NETWORKS)),
    before=st.integers(0, 3),
)
def test_one_example_moves_the_sum_by_at_most_c_whatever_it_is(C, size, engine, name, before):
    model, shape = NETWORKS[name]
    images, labels = batch(n=before + 1, shape=shape)
    images = images.clone()
    images[-1] *= size
    options = {"max_grad_norm": C, "engine": engine, "non_finite": "zero"}
    with_it = clipped_sum(model, images, labels, **options)
    without = clipped_sum(model, images[:-1], labels[:-1], **options)
    moved = norm_of({k: with_it[k] - without[k] for k in with_it})
    assert all(g.isfinite().all() for g in with_it.values())
    assert moved <= C * (1 + 1e-6)


@pytest.mark.case("DP-14")
def test_tied_weights_count_once_in_the_textbook_engine_and_are_refused_by_the_other():
    model = redrawn(Twice().double())
    images, labels = batch()
    gradients = per_example_gradients(model, images, labels)
    assert {name: tuple(g.shape) for name, g in gradients.items()} == {"embedding.weight": (12, 6, 6)}
    found = clipped_sum(model, images, labels, max_grad_norm=0.3, engine="textbook")
    assert distance(found, clipped_by_loop(model, images, labels, 0.3)) < 1e-13
    with pytest.raises(ValueError, match=r"share weights; use engine='textbook'"):
        clipped_sum(model, images, labels, max_grad_norm=0.3)


@pytest.mark.parametrize("names", [1, 2])
def test_a_layer_that_is_used_twice_is_refused_by_the_fast_engine_only(names):
    layer = nn.Linear(6, 6)
    model = nn.Sequential(nn.Flatten(), layer, nn.Tanh(), layer) if names == 2 else Again(layer)
    model = redrawn(model.double())
    images, labels = batch(classes=6)
    found = clipped_sum(model, images, labels, max_grad_norm=0.3, engine="textbook")
    assert all(isinstance(p, nn.Parameter) for p in layer.parameters())
    assert distance(found, clipped_by_loop(model, images, labels, 0.3)) < 1e-13
    with pytest.raises(ValueError, match=r"(more than once|share weights); use engine='textbook'"):
        clipped_sum(model, images, labels, max_grad_norm=0.3)


class InPlace(nn.Module):
    """What comes in is overwritten after the layer has used it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        entered = images.flatten(1) * 1.0
        hidden = self.first(entered)
        entered.add_(1.0)
        return self.second(torch.tanh(hidden) + entered)


def test_an_input_that_changes_in_place_is_noticed():
    model = redrawn(InPlace().double())
    images, labels = batch()
    with pytest.raises(ValueError, match=r"'first' is changed in place .* engine='textbook'"):
        clipped_sum(model, images, labels, max_grad_norm=1.0)


@both_engines
def test_a_parameter_without_gradient_gets_noise_and_nothing_else(engine):
    """The practical page's step stops with an error here."""
    model = redrawn(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).double())
    model.add_module("idle", nn.Identity())
    model[2].spare = nn.Linear(2, 2).double()
    images, labels = batch()
    summed = clipped_sum(model, images, labels, max_grad_norm=1.0, engine=engine)
    assert not summed["idle.spare.weight"].any()
    noisy = private_gradient(
        model, images, labels, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=12,
        generator=seeded(), engine=engine,
    )  # fmt: skip
    assert noisy["idle.spare.weight"].all()


# --------------------------------------------------------------------------- against Opacus


# Neither is about us: which gradients Opacus computes with which hooks, and that its noise is for experiments.
OPACUS_TALKS = ("ignore:Full backward hook", "ignore:Secure RNG turned off")


def opacus_sum(model: nn.Module, images: Tensor, labels: Tensor, C: float) -> dict[str, Tensor]:
    """The clipped sum that Opacus computes, from its own per-sample gradients and its own optimizer."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=C,
        expected_batch_size=1,
    )  # fmt: skip
    try:
        functional.cross_entropy(module(images), labels).backward()
        optimizer.clip_and_accumulate()
        return {
            name.removeprefix("_module."): p.summed_grad.detach().clone()
            for name, p in module.named_parameters()
        }
    finally:
        module.remove_hooks()
        for p in model.parameters():
            p.grad = None
            for attribute in ("grad_sample", "summed_grad", "_forward_counter"):
                if hasattr(p, attribute):
                    delattr(p, attribute)


@pytest.mark.case("DP-13")
@pytest.mark.filterwarnings(*OPACUS_TALKS)
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@both_engines
def test_both_engines_equal_opacus_on_the_same_batch(kind, engine):
    model = mlp([784, 16, 10], generator=seeded()) if kind == "mlp" else small_cnn(generator=seeded())
    images, labels = batch(n=16, shape=(1, 28, 28), classes=10)
    for C in (0.1, 3.0):
        theirs = opacus_sum(model, images, labels, C)
        ours = clipped_sum(model, images, labels, max_grad_norm=C, engine=engine)
        assert 0 < norm_of(ours) <= 16 * C
        assert distance(ours, theirs) < 1e-6


@pytest.mark.case("DP-13")
def test_six_steps_of_both_engines_end_in_the_same_weights():
    images, labels = batch(n=20, shape=(1, 28, 28), classes=10)
    ends = []
    for engine in ENGINES:
        model = small_cnn(generator=seeded())
        train_private(
            model, images, labels, batch_size=5, steps=6, noise_multiplier=0.5, max_grad_norm=0.5,
            learning_rate=0.3, generator=seeded(1), engine=engine,
        )  # fmt: skip
        ends.append({name: p.detach() for name, p in model.named_parameters()})
    assert distance(*ends) < 1e-11


@pytest.mark.case("DP-20")
@pytest.mark.filterwarnings(*OPACUS_TALKS)
def test_opacus_is_there_with_what_the_chapter_uses():
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator

    assert callable(PrivacyEngine().make_private_with_epsilon)
    assert callable(ModuleValidator.fix)


@pytest.mark.case("DP-26")
def test_a_learning_rate_schedule_reaches_the_optimizer_inside_opacus():
    from opacus.optimizers import DPOptimizer

    inner = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    outer = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)
    schedule = torch.optim.lr_scheduler.StepLR(outer, step_size=1, gamma=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no step was taken before the schedule moved
        schedule.step()
    assert inner.param_groups[0]["lr"] == outer.param_groups[0]["lr"] == pytest.approx(0.01)


# --------------------------------------------------------------------------- noise


@pytest.mark.case("DP-10")
@pytest.mark.parametrize(("sigma", "C", "expected"), [(3.0, 0.5, 8), (1.0, 2.0, 100)])
def test_the_noise_has_the_standard_deviation_sigma_c_over_the_expected_size(sigma, C, expected):
    model = nn.Linear(2_000, 10, bias=False, dtype=torch.float64)
    images = torch.zeros(9, 2_000, dtype=torch.float64)  # no gradient but noise; nine, whatever was expected
    noise = private_gradient(
        model, images, torch.zeros(9, dtype=torch.int64), noise_multiplier=sigma, max_grad_norm=C,
        expected_batch_size=expected, generator=seeded(),
    )["weight"]  # fmt: skip
    std = sigma * C / expected
    assert float(noise.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * noise.numel()))
    assert abs(float(noise.mean())) < 5 * std / math.sqrt(noise.numel())


def test_no_two_parameters_and_no_two_steps_share_their_noise():
    model = mlp([8, 8, 8], generator=seeded())
    generator = seeded()
    nobody = torch.zeros(0, 8, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    drawn = [
        private_gradient(
            model, *nobody, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1,
            generator=generator,
        )
        for _ in range(2)
    ]  # fmt: skip
    flat = [g.flatten() for step in drawn for g in step.values() if g.dim() == 2]
    matrix = np.corrcoef(torch.stack(flat).numpy())
    assert np.abs(matrix - np.eye(4)).max() < 5 / 8


@pytest.mark.case("DP-28")
def test_a_hundred_times_the_noise_leaves_nothing_but_chance():
    images, labels = batch(n=400, shape=(10,), classes=2)
    labels = (images[:, 0] > 0).long()
    rates = []
    for sigma in (0.0, 100.0):
        model = mlp([10, 2], generator=seeded())
        train_private(
            model, images, labels, batch_size=400, steps=20, noise_multiplier=sigma, max_grad_norm=1.0,
            learning_rate=1.0, generator=seeded(),
        )  # fmt: skip
        norm = math.sqrt(sum(float((p.detach() ** 2).sum()) for p in model.parameters()))
        rates.append((float((model(images).argmax(1) == labels).double().mean()), norm))
    assert rates[0][0] > 0.95
    # 22 weights, each a sum of 20 noises of 100/400: a random walk of length √(22·20)/4 ≈ 5.2
    assert 2.5 < rates[1][1] < 9
    assert rates[1][0] < 0.9


@pytest.mark.case("DP-17")
@both_engines
def test_without_noise_and_with_a_wide_clip_it_is_plain_sgd(engine):
    images, labels = batch(n=30)
    ours, plain = (mlp([6, 5, 3], generator=seeded()) for _ in range(2))
    run = train_private(
        ours, images, labels, batch_size=30, steps=10, noise_multiplier=0.0, max_grad_norm=1e9,
        learning_rate=0.5, generator=seeded(), engine=engine,
    )  # fmt: skip
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(10):
        optimiser.zero_grad()
        functional.cross_entropy(plain(images), labels).backward()
        optimiser.step()
    assert run == PrivateTraining(30, 30, 10, 0.0, 1e9, "poisson")
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-12)


# --------------------------------------------------------------------------- batches


@pytest.mark.case("DP-12")
def test_inclusions_are_independent():
    generator, draws, q = seeded(), 20_000, 0.3
    taken = torch.zeros(draws, 4, dtype=torch.float64)
    for row in taken:
        row[poisson_sample(4, q, generator=generator)] = 1
    together = (taken.T @ taken / draws).numpy()
    for i in range(4):
        for j in range(4):
            p = q if i == j else q * q
            assert abs(together[i, j] - p) < 5 * math.sqrt(p * (1 - p) / draws)
    sizes = taken.sum(1)
    assert float(sizes.var()) == pytest.approx(4 * q * (1 - q), rel=0.05)
    empty = float((sizes == 0).double().mean())
    assert abs(empty - (1 - q) ** 4) < 5 * math.sqrt(0.24 * 0.76 / draws)


def test_a_rate_of_nought_takes_nobody_and_of_one_everybody():
    assert poisson_sample(7, 0, generator=seeded()).tolist() == []
    assert poisson_sample(7, 1, generator=seeded()).tolist() == list(range(7))


@pytest.mark.case("DP-1")
@both_engines
def test_an_empty_batch_is_a_step_of_noise_and_is_counted(engine):
    images, labels = batch(n=40)
    sizes = [len(poisson_sample(40, 1 / 40, generator=seeded(s))) for s in range(40)]
    assert 0 in sizes
    model = mlp([6, 3], generator=seeded())
    run = train_private(
        model, images, labels, batch_size=1, steps=40, noise_multiplier=1.0, max_grad_norm=0.1,
        learning_rate=0.1, generator=seeded(), engine=engine,
    )  # fmt: skip
    assert run.steps == 40
    assert all(p.isfinite().all() for p in model.parameters())
    nothing = clipped_sum(model, images[:0], labels[:0], max_grad_norm=1.0, engine=engine)
    assert norm_of(nothing) == 0
    assert all(g.shape == dict(model.named_parameters())[k].shape for k, g in nothing.items())


def test_shuffled_batches_use_everybody_once_and_say_so(monkeypatch):
    from thousand_fingers import dpsgd

    images, labels = batch(n=10)
    images[:, 0, 0] = torch.arange(10)
    seen = []

    def watched(model, images, labels, **options):
        seen.append(images[:, 0, 0].tolist())
        return private_gradient(model, images, labels, **options)

    monkeypatch.setattr(dpsgd, "private_gradient", watched)
    run = dpsgd.train_private(
        mlp([6, 3], generator=seeded()), images, labels, batch_size=4, steps=6, noise_multiplier=1.0,
        max_grad_norm=1.0, learning_rate=0.1, generator=seeded(), sampling="shuffle",
    )  # fmt: skip
    assert [len(b) for b in seen] == [4, 4, 2, 4, 4, 2]
    first, second = ([image for b in epoch for image in b] for epoch in (seen[:3], seen[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert run.sampling == "shuffle"


# --------------------------------------------------------------------------- the audits, on the training itself


@pytest.mark.case("DP-8")
@pytest.mark.case("DP-1")
def test_the_batches_of_a_training_pass_the_sampler_audit(monkeypatch):
    """Shuffled batches, or a sampler that skips empty ones, would train as well."""
    from thousand_fingers import dpsgd

    n, steps = 40, 600
    images = torch.arange(n, dtype=torch.float64)[:, None]
    batches = np.zeros((steps, n), dtype=bool)
    step = iter(range(steps))

    def watched(model, images, labels, **options):
        assert options["expected_batch_size"] == 1
        batches[next(step), images[:, 0].long().numpy()] = True
        return {name: torch.zeros_like(p) for name, p in model.named_parameters()}

    monkeypatch.setattr(dpsgd, "private_gradient", watched)
    options = {"batch_size": 1, "noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 0.1}
    labels, model = torch.zeros(n, dtype=torch.int64), nn.Linear(1, 2).double()
    dpsgd.train_private(model, images, labels, steps=steps, generator=seeded(), **options)
    assert audit_sampler(batches, sample_rate=1 / n).passed
    # The watch sees a sampler that is no Poisson sampler.
    step = iter(range(steps))
    batches[:] = False
    dpsgd.train_private(model, images, labels, steps=steps, generator=seeded(), sampling="shuffle", **options)
    assert not audit_sampler(batches, sample_rate=1 / n).passed


@pytest.mark.case("DP-10")
@both_engines
def test_what_a_training_moves_the_weights_by_passes_the_noise_audit(engine):
    """With gradients of zero every step is noise: of the size that was promised, and never twice the same."""
    model = nn.Linear(1_000, 10, bias=False).double()
    images = torch.zeros(16, 1_000, dtype=torch.float64)
    generator, moved = seeded(), []
    for _ in range(4):
        before = model.weight.detach().clone()
        train_private(
            model, images, torch.zeros(16, dtype=torch.int64), batch_size=4, steps=1, noise_multiplier=1.2,
            max_grad_norm=0.5, learning_rate=0.1, generator=generator, engine=engine,
        )  # fmt: skip
        moved.append(((before - model.weight.detach()) / 0.1).flatten().numpy())
    assert audit_noise(moved, noise_std=1.2 * 0.5 / 4).passed


# --------------------------------------------------------------------------- manners


@pytest.mark.case("DP-29")
@both_engines
def test_the_model_that_is_trained_is_the_one_that_was_given(engine):
    images, labels = batch()
    model = nn.Sequential(*mlp([6, 3], generator=seeded()), nn.Dropout(0.0))
    model[2].eval()
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    train_private(
        model, images, labels, batch_size=6, steps=3, noise_multiplier=1.0, max_grad_norm=1.0,
        learning_rate=0.1, generator=seeded(), engine=engine,
    )  # fmt: skip
    for name, p in model.named_parameters():
        assert p is before[name][0]
        assert not torch.equal(p, before[name][1])
        assert p.grad is None
        assert p.requires_grad
    assert model.training
    assert not model[2].training
    assert not any(m._forward_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_is_its_seed():
    images, labels = batch()
    ends = []
    for seed in (0, 0, 1):
        model = mlp([6, 3], generator=seeded())
        train_private(
            model, images, labels, batch_size=6, steps=3, noise_multiplier=1.0, max_grad_norm=1.0,
            learning_rate=0.1, generator=seeded(seed),
        )  # fmt: skip
        ends.append(model[1].weight.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_no_hook_stays_behind_a_model_that_fails():
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3).double()

        def forward(self, images: Tensor) -> Tensor:
            self.layer(images.flatten(1))
            raise RuntimeError("out of order")

    model = Failing()
    with pytest.raises(RuntimeError, match="out of order"):
        clipped_sum(model, *batch(), max_grad_norm=1.0)
    assert not model.layer._forward_hooks


# --------------------------------------------------------------------------- refusals


@pytest.mark.case("DP-15")
@pytest.mark.parametrize("frozen", [False, True], ids=["trainable", "frozen"])
@pytest.mark.parametrize("evaluating", [False, True], ids=["training", "evaluating"])
@both_engines
def test_batch_norm_is_refused_and_its_statistics_do_not_move(frozen, evaluating, engine):
    norm = nn.BatchNorm1d(6).double().requires_grad_(not frozen).train(not evaluating)
    model = nn.Sequential(nn.Flatten(), norm, nn.Linear(6, 3).double())
    with pytest.raises(ValueError, match=r"layer '1' is a BatchNorm1d.*use GroupNorm"):
        clipped_sum(model, *batch(), max_grad_norm=1.0, engine=engine)
    assert not norm.running_mean.any()


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4),
        nn.BatchNorm3d(4),
        nn.SyncBatchNorm(4),
        nn.LazyBatchNorm1d(),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_every_layer_with_statistics_of_the_batch_is_refused(layer):
    with pytest.raises(ValueError, match="use GroupNorm"):
        refuse_unsafe(nn.Sequential(nn.Identity(), nn.Sequential(layer)))


def test_layers_that_keep_to_one_example_are_accepted():
    refuse_unsafe(nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm2d(4), nn.Dropout()))


@pytest.mark.case("DP-17")
@pytest.mark.parametrize("C", [0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("function", ["clipped_sum", "private_gradient", "train_private"])
def test_a_clipping_norm_that_bounds_nothing_is_refused(C, function):
    images, labels = batch()
    model = mlp([6, 3], generator=seeded())
    calls = {
        "clipped_sum": lambda: clipped_sum(model, images, labels, max_grad_norm=C),
        "private_gradient": lambda: private_gradient(
            model, images, labels, noise_multiplier=1.0, max_grad_norm=C, expected_batch_size=5,
            generator=seeded(),
        ),
        "train_private": lambda: train_private(
            model, images, labels, batch_size=5, steps=1, noise_multiplier=1.0, max_grad_norm=C,
            learning_rate=1.0, generator=seeded(),
        ),
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"max_grad_norm must be (finite and )?> 0"):
        calls[function]()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@both_engines
def test_a_gradient_without_finite_norm_is_refused_or_counts_as_zero(value, engine):
    model = mlp([6, 3], generator=seeded())
    images, labels = batch()
    images[3] = value
    with pytest.raises(NonFiniteGradient, match="of 1 of 12 examples have no finite norm"):
        clipped_sum(model, images, labels, max_grad_norm=1.0, engine=engine)
    found = clipped_sum(model, images, labels, max_grad_norm=1.0, engine=engine, non_finite="zero")
    others = [i for i in range(12) if i != 3]
    expected = clipped_by_loop(model, images[others], labels[others], 1.0)
    assert distance(found, expected) < 1e-12


@both_engines
def test_a_loss_that_is_averaged_is_refused(engine):
    with pytest.raises(ValueError, match="one number per example"):
        clipped_sum(
            mlp([6, 3], generator=seeded()), *batch(), max_grad_norm=1.0, engine=engine,
            loss=functional.cross_entropy,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GroupNorm(1, 2), (2, 3)),
        (nn.Conv1d(2, 2, 1), (2, 3)),
        (nn.Conv2d(2, 2, 3, padding="same"), (2, 3, 3)),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 3, 3)),
    ],
    ids=["group norm", "conv1d", "padding by name", "circular"],
)
def test_what_the_fast_engine_does_not_know_it_leaves_to_the_other(layer, shape):
    size = layer(torch.zeros(1, *shape)).numel()
    model = redrawn(nn.Sequential(layer, nn.Flatten(), nn.Linear(size, 3)).double())
    images, labels = batch(shape=shape)
    with pytest.raises(ValueError, match="use engine='textbook'"):
        clipped_sum(model, images, labels, max_grad_norm=1.0)


def test_the_textbook_engine_takes_group_norm():
    model = redrawn(nn.Sequential(nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(6, 3)).double())
    images, labels = batch()
    found = clipped_sum(model, images, labels, max_grad_norm=0.5, engine="textbook")
    assert distance(found, clipped_by_loop(model, images, labels, 0.5)) < 1e-12


def test_wrong_arguments_are_named():
    model, (images, labels) = mlp([6, 3], generator=seeded()), batch()
    with pytest.raises(TypeError, match=r"images must be torch.float64 like the weights"):
        clipped_sum(model, images.float(), labels, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="labels must have one entry per image"):
        clipped_sum(model, images, labels[:-1], max_grad_norm=1.0)
    with pytest.raises(ValueError, match="engine must be one of"):
        clipped_sum(model, images, labels, max_grad_norm=1.0, engine="ghost")
    with pytest.raises(ValueError, match="requires a gradient"):
        clipped_sum(mlp([6, 3], generator=seeded()).requires_grad_(False), images, labels, max_grad_norm=1.0)
    good = {
        "batch_size": 6, "steps": 1, "noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 1.0,
        "generator": seeded(),
    }  # fmt: skip
    for name, value in {
        "batch_size": 13, "steps": 0, "noise_multiplier": -1.0, "learning_rate": 0.0, "sampling": "fixed",
        "generator": 0,
    }.items():  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
            train_private(model, images, labels, **{**good, name: value})


@pytest.mark.case("DP-19")
def test_the_module_says_that_its_randomness_is_not_cryptographic():
    from thousand_fingers import dpsgd

    assert "not cryptographic" in (dpsgd.__doc__ or "")


def test_the_loss_of_an_example_is_its_cross_entropy():
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64)
    found = cross_entropies(logits, torch.tensor([1, 0]))
    assert found.tolist() == pytest.approx([math.log(4 / 3), math.log(2)])


class ByName(nn.Module):
    """Hands the layer its input by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = redrawn(nn.Linear(6, 3).double())

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(input=images.flatten(1))


def test_a_layer_may_be_given_its_input_by_name() -> None:
    model, (images, labels) = ByName(), batch()
    found = clipped_sum(model, images, labels, max_grad_norm=0.5)
    assert distance(found, clipped_by_loop(model, images, labels, 0.5)) < 1e-12


@both_engines
def test_a_label_below_zero_is_refused_and_not_passed_over_in_silence(engine: str) -> None:
    model, (images, labels) = mlp([6, 3], generator=seeded()), batch()
    labels[3] = -100  # to torch: "ignore"
    with pytest.raises(ValueError, match="labels must be >= 0, got -100"):
        clipped_sum(model, images, labels, max_grad_norm=1.0, engine=engine)
    with pytest.raises(ValueError, match="labels must be >= 0, got -100"):
        per_example_gradients(model, images, labels)
    with pytest.raises(IndexError, match="-100 is out of bounds"):
        cross_entropies(torch.zeros(2, 3), torch.tensor([0, -100]))


# --------------------------------------------------------------------------- what the books would miss


class Reads(nn.Module):
    """A layer whose weight ``forward`` reads once more, or only reads."""

    def __init__(self, only: bool) -> None:
        super().__init__()
        self.layer = redrawn(nn.Linear(6, 6).double())
        self.only = only

    def forward(self, images: Tensor) -> Tensor:
        entered = images.flatten(1)
        if self.only:
            return functional.linear(entered, self.layer.weight, self.layer.bias)
        return functional.linear(torch.tanh(self.layer(entered)), self.layer.weight.T)


@pytest.mark.parametrize("only", [True, False])
def test_a_weight_that_is_read_outside_its_layer_is_refused_by_the_fast_engine_only(only: bool) -> None:
    model, (images, labels) = Reads(only), batch()
    found = clipped_sum(model, images, labels, max_grad_norm=0.3, engine="textbook")
    assert distance(found, clipped_by_loop(model, images, labels, 0.3)) < 1e-13
    with pytest.raises(ValueError, match=r"'layer.weight' is used outside its layer; use engine='textbook'"):
        clipped_sum(model, images, labels, max_grad_norm=0.3)


def test_a_loss_with_a_penalty_on_the_weights_is_refused() -> None:
    model, (images, labels) = mlp([6, 3], generator=seeded()), batch()
    with pytest.raises(ValueError, match=r"'1.weight' is used outside its layer"):
        clipped_sum(
            model, images, labels, max_grad_norm=0.3,
            loss=lambda out, y: cross_entropies(out, y) + (model[1].weight ** 2).sum(),
        )  # fmt: skip


@pytest.mark.parametrize("changes", ["what comes out", "what goes in"])
@both_engines
def test_a_hook_of_the_user_counts(changes: str, engine: str) -> None:
    model, (images, labels) = mlp([6, 5, 3], generator=seeded()), batch()
    if changes == "what comes out":
        model[1].register_forward_hook(lambda _layer, _entered, output: 3 * output)
    else:
        model[1].register_forward_pre_hook(lambda _layer, entered: (2 * entered[0],))
    found = clipped_sum(model, images, labels, max_grad_norm=0.3, engine=engine)
    assert distance(found, clipped_by_loop(model, images, labels, 0.3)) < 1e-12


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_weight_that_is_made_of_others_is_left_to_the_textbook_engine() -> None:
    layer = nn.utils.weight_norm(redrawn(nn.Linear(6, 3).double()))
    model, (images, labels) = nn.Sequential(nn.Flatten(), layer), batch()
    found = clipped_sum(model, images, labels, max_grad_norm=0.3, engine="textbook")
    assert distance(found, clipped_by_loop(model, images, labels, 0.3)) < 1e-12
    with pytest.raises(ValueError, match=r"layer '1' \(Linear\); use engine='textbook'"):
        clipped_sum(model, images, labels, max_grad_norm=0.3)


class PositionsFirst(nn.Module):
    """A linear layer over positions, whose first axis is not that of the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = redrawn(nn.Linear(3, 4).double()), redrawn(nn.Linear(8, 3).double())

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(images.transpose(0, 1)))
        return self.out(hidden.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("n", [1, 2, 12])
def test_positions_are_not_taken_for_examples_even_where_there_are_as_many(n: int) -> None:
    model, (images, labels) = PositionsFirst(), batch(n)  # two positions each
    found = clipped_sum(model, images, labels, max_grad_norm=0.3, engine="textbook")
    assert distance(found, clipped_by_loop(model, images, labels, 0.3)) < 1e-12
    with pytest.raises(ValueError, match=r"'inner' does not see one row per example; use engine='textbook'"):
        clipped_sum(model, images, labels, max_grad_norm=0.3)


class Blind(nn.Module):
    """Its first layer stands where no gradient is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.blind, self.out = redrawn(nn.Linear(6, 4).double()), redrawn(nn.Linear(4, 3).double())

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.blind(images.flatten(1))
        return self.out(hidden)


@both_engines
def test_a_layer_without_gradient_gets_zeros(engine: str) -> None:
    model, (images, labels) = Blind(), batch()
    found = clipped_sum(model, images, labels, max_grad_norm=0.3, engine=engine)
    assert distance(found, clipped_by_loop(model, images, labels, 0.3)) < 1e-12
    nothing = clipped_sum(
        model, images, labels, max_grad_norm=0.3, engine=engine, loss=lambda out, _: out.detach().sum(1)
    )
    assert not any(total.any() for total in nothing.values())


@both_engines
def test_groups_of_channels_are_kept_apart_where_a_filter_has_one_place(engine: str) -> None:
    convolution = nn.Conv2d(4, 6, (2, 3), groups=2)
    model = redrawn(nn.Sequential(convolution, nn.Flatten(), nn.Linear(6, 3)).double())
    images, labels = batch(shape=(4, 2, 3))
    found = clipped_sum(model, images, labels, max_grad_norm=0.3, engine=engine)
    assert distance(found, clipped_by_loop(model, images, labels, 0.3)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@both_engines
def test_half_precision_is_refused(dtype: torch.dtype, engine: str) -> None:
    """Rounding a sum of many to eleven bits moves it by more than one example may."""
    images, labels = batch()
    with pytest.raises(TypeError, match=f"trainable weights must be .* got {dtype}"):
        clipped_sum(
            mlp([6, 3], generator=seeded()).to(dtype), images.to(dtype), labels,
            max_grad_norm=1.0, engine=engine,
        )  # fmt: skip


@both_engines
def test_weights_of_two_types_and_batches_that_are_no_tensors_are_refused(engine: str) -> None:
    model, (images, labels) = mlp([6, 5, 3], generator=seeded()), batch()
    for name, wrong in {"images": (images.numpy(), labels), "labels": (images, labels.numpy())}.items():
        with pytest.raises(TypeError, match=f"{name} must be a torch.Tensor, got ndarray"):
            clipped_sum(model, *wrong, max_grad_norm=1.0, engine=engine)
    model[3].float()
    with pytest.raises(TypeError, match=r"got torch.float32, torch.float64"):
        clipped_sum(model, images, labels, max_grad_norm=1.0, engine=engine)


@pytest.mark.parametrize(
    "wild", [{"noise_multiplier": 1e308}, {"learning_rate": 1e308, "noise_multiplier": 99.0}]
)
def test_weights_that_overflow_are_an_error_and_not_a_model(wild: dict[str, float]) -> None:
    good = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 1.0}
    with pytest.raises(ValueError, match=r"weights are not finite after step [12]: lower learning_rate"):
        train_private(
            mlp([6, 3], generator=seeded()), *batch(), batch_size=6, steps=4, generator=seeded(), **{**good, **wild}
        )  # fmt: skip
