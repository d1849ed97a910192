"""Networks: where their numbers come from, and that asking leaves no trace."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from thousand_fingers.models import Counted, Normalised, evaluation_mode, mlp, predict_logits, small_cnn


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(n, 28, 28, generator=seeded(1), dtype=dtype)


@pytest.mark.parametrize(
    "build", [lambda g: mlp([784, 16, 10], generator=g), lambda g: small_cnn(generator=g)]
)
def test_a_network_is_its_seed_and_the_global_generator_is_not_touched(build):
    state = torch.get_rng_state()
    first, again, other = build(seeded(0)), build(seeded(0)), build(seeded(1))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_mlp_is_the_composition_that_it_documents():
    network = mlp([784, 7, 5, 3], generator=seeded())
    x = images()
    (w1, b1), (w2, b2), (w3, b3) = [(m.weight, m.bias) for m in network if isinstance(m, nn.Linear)]
    hidden = (x.reshape(6, 784) @ w1.T + b1).clamp(min=0)
    expected = (hidden @ w2.T + b2).clamp(min=0) @ w3.T + b3
    torch.testing.assert_close(network(x), expected)
    assert not isinstance(network[-1], nn.ReLU)


def test_initial_weights_fill_the_documented_interval():
    network = mlp([400, 500, 10], generator=seeded())
    bound = 1 / math.sqrt(400)
    weight = network[1].weight.detach()
    assert weight.abs().max() <= bound
    # uniform: the largest of 200,000 lies within 1e-4 of the end except with probability e^-20,
    # and the variance is bound²/3 within six standard errors (fourth moment of the uniform law)
    assert weight.abs().max() > bound * (1 - 1e-4)
    error = bound**2 * math.sqrt((1 / 5 - 1 / 9) / weight.numel())
    assert abs(float(weight.var()) - bound**2 / 3) < 6 * error


def test_a_float32_network_starts_from_the_same_numbers():
    wide, narrow = (
        mlp([784, 8, 10], generator=seeded()),
        mlp([784, 8, 10], generator=seeded(), dtype=torch.float32),
    )
    for a, b in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert b.dtype == torch.float32
        assert torch.equal(a.float(), b)


def test_cnn_takes_images_with_and_without_channel_axis():
    network = small_cnn(generator=seeded(), n_classes=4)
    assert network(images()).shape == (6, 4)
    assert torch.equal(network(images()), network(images()[:, None]))
    # 16·(16+1) + 32·(16·16+1) + 100·(1568+1) + 4·(100+1)
    assert sum(p.numel() for p in network.parameters()) == 16 * 17 + 32 * 257 + 100 * 1569 + 4 * 101


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([784], "at least the pixels"),
        ([784, 0], "sizes must be >= 1, got 0"),
        ([784, 2.0], "must be an integer"),
    ],
)
def test_mlp_refuses_senseless_sizes(sizes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mlp(sizes, generator=seeded())


@pytest.mark.parametrize("build", [lambda g: mlp([4, 2], generator=g), lambda g: small_cnn(generator=g)])
def test_a_seed_is_not_a_generator(build):
    with pytest.raises(TypeError, match=r"must be a torch\.Generator"):
        build(0)


@pytest.mark.case("ROB-1")
def test_normalised_is_the_network_on_normalised_images():
    inner = mlp([784, 10], generator=seeded())
    wrapped = Normalised(inner, mean=0.1307, std=0.3081)
    torch.testing.assert_close(wrapped(images()), inner((images() - 0.1307) / 0.3081), rtol=0, atol=0)
    assert not list(dict(wrapped.named_buffers()).keys() - {"mean", "std"})


def test_normalised_per_channel_and_in_the_type_of_the_network():
    class Identity(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones((), dtype=torch.float32))

        def forward(self, x):
            return self.weight * x

    x = torch.rand(2, 3, 4, 5, generator=seeded(), dtype=torch.float32)
    found = Normalised(Identity(), mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 4.0])(x)
    assert found.dtype == torch.float32
    for c, (mean, std) in enumerate([(0.1, 1.0), (0.2, 2.0), (0.3, 4.0)]):
        torch.testing.assert_close(found[:, c], (x[:, c] - mean) / std)


def test_normalised_refuses_a_deviation_of_zero():
    with pytest.raises(ValueError, match=r"std must be > 0, got 0\.0"):
        Normalised(nn.Flatten(), mean=0.0, std=[1.0, 0.0])


class _Noisy(nn.Module):
    """Batch norm, a batch norm that was frozen on purpose, and dropout."""

    def __init__(self):
        super().__init__()
        self.norm, self.frozen, self.drop = nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Dropout()
        self.train()
        self.frozen.eval()

    def forward(self, x):
        return self.drop(self.frozen(self.norm(x)))


def test_evaluation_mode_restores_every_submodule_even_after_an_error():
    model = _Noisy()
    before = [m.training for m in model.modules()]

    def fail_inside() -> None:
        with evaluation_mode(model):
            assert not any(m.training for m in model.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert [m.training for m in model.modules()] == before == [True, True, False, True]


def test_evaluation_mode_leaves_a_plain_function_alone():
    with evaluation_mode(lambda x: x):
        pass


def test_predict_logits_does_not_depend_on_batches_and_leaves_no_trace():
    model = _Noisy()
    x = torch.rand(7, 4, generator=seeded())
    means = model.norm.running_mean.clone()
    whole = predict_logits(model, x)
    assert torch.equal(whole, predict_logits(model, x, batch_size=3))
    assert torch.equal(model.norm.running_mean, means)
    assert model.norm.num_batches_tracked == 0
    assert not whole.requires_grad
    assert model.training


def test_predict_logits_refuses_nothing():
    with pytest.raises(ValueError, match="must not be empty"):
        predict_logits(nn.Flatten(), torch.empty(0, 4))


def test_counted_counts_what_was_computed():
    model = Counted(mlp([4, 3], generator=seeded()))
    x = torch.rand(5, 4, generator=seeded(), dtype=torch.float64)
    predict_logits(model, x)
    assert (model.forward_passes, model.gradients) == (5, 0)
    model(x[:2])  # a gradient that nobody asks for
    assert (model.forward_passes, model.gradients) == (7, 0)
    moving = x.clone().requires_grad_()
    torch.autograd.grad(model(moving).sum(), moving)
    assert (model.forward_passes, model.gradients) == (12, 5)
