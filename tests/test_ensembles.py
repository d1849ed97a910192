"""An ensemble is exactly its members, each trained alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, grad, vmap

from thousand_fingers.ensembles import Ensemble, paired_halves, rows_of, train_ensemble
from thousand_fingers.models import mlp
from thousand_fingers.training import train

POOL = torch.rand(60, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ROWS = np.stack([np.random.default_rng(m).choice(60, 43, replace=False) for m in range(3)])
LABELS = np.stack([np.random.default_rng(10 + m).integers(0, 3, 43) for m in range(3)])
SETTINGS = {"epochs": 4, "batch_size": 10, "learning_rate": 0.01}


def generators(members: int = 3) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(100 + m) for m in range(members)]


@pytest.mark.parametrize("sizes", [[12, 3], [12, 8, 3], [12, 8, 5, 3]])
def test_members_end_with_the_weights_they_would_have_got_alone(sizes: list[int]) -> None:
    ensemble = train_ensemble(POOL, ROWS, LABELS, sizes=sizes, generators=generators(), **SETTINGS)
    for m, generator in enumerate(generators()):
        alone = mlp(sizes, generator=generator)
        train(alone, POOL[ROWS[m]], torch.from_numpy(LABELS[m]), generator=generator, **SETTINGS)
        member = ensemble.member(m)
        for ours, theirs in zip(member.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        with torch.no_grad():
            torch.testing.assert_close(ensemble.logits(POOL)[m], alone(POOL), rtol=0, atol=1e-9)
            torch.testing.assert_close(ensemble.features(POOL)[m], alone[:-1](POOL), rtol=0, atol=1e-9)
        assert (ensemble.predict(POOL)[m] == alone(POOL).argmax(1)).all()


def test_each_member_may_have_inputs_of_its_own() -> None:
    ensemble = train_ensemble(POOL, ROWS, LABELS, sizes=[12, 8, 3], generators=generators(), **SETTINGS)
    own = POOL.flatten(1)[torch.from_numpy(ROWS)]
    common = ensemble.logits(POOL)
    for m in range(3):
        torch.testing.assert_close(ensemble.logits(own)[m], common[m][ROWS[m]])


def test_the_global_generator_and_the_inputs_are_left_alone() -> None:
    state, pool = torch.get_rng_state(), POOL.clone()
    ensemble = train_ensemble(POOL, ROWS, LABELS, sizes=[12, 8, 3], generators=generators(), **SETTINGS)
    assert len(ensemble) == 3
    assert not ensemble.logits(POOL).requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(POOL, pool)


# --------------------------------------------------------------------------- halves


@pytest.mark.case("MIA-6")
@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 99))
@settings(max_examples=30)
def test_both_margins_of_paired_halves_are_exact(pairs, half, seed):
    halves = paired_halves(2 * pairs, 2 * half, rng=np.random.default_rng(seed))
    assert (halves.sum(axis=0) == pairs).all()
    assert (halves.sum(axis=1) == half).all()
    assert (halves[::2] == ~halves[1::2]).all()
    rows = rows_of(halves)
    assert all(set(row) == set(np.flatnonzero(member)) for row, member in zip(rows, halves, strict=True))


def test_halves_that_cannot_be_exact_are_refused():
    for members, n in ((3, 4), (4, 3)):
        with pytest.raises(ValueError, match="must be even"):
            paired_halves(members, n, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="same number of examples"):
        rows_of([[True, False], [True, True]])


# --------------------------------------------------------------------------- weights, clipping, noise


def by_hand(member: int, *, weights=None, max_grad_norm=None, noise_std=None, momentum=0.0, decay=0.0):
    """One member alone: gradients of single examples from torch.func, and the step written out."""
    generator = generators()[member]
    network = mlp([12, 8, 3], generator=generator)
    parameters = {name: p.detach().clone() for name, p in network.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
    inputs, labels = POOL[ROWS[member]], torch.from_numpy(LABELS[member])
    count = torch.ones(60) if weights is None else torch.from_numpy(weights)
    count = count.double()[ROWS[member]]

    def loss(parameters, x, y, w):
        logits = functional_call(network, parameters, x[None])
        return w * torch.nn.functional.cross_entropy(logits, y[None])

    for _ in range(SETTINGS["epochs"]):
        for batch in torch.randperm(43, generator=generator).split(10):
            each = vmap(grad(loss), (None, 0, 0, 0))(parameters, inputs[batch], labels[batch], count[batch])
            norms = sum(g.flatten(1).square().sum(1) for g in each.values()).sqrt()
            shrink = torch.ones(len(batch)).double()
            if max_grad_norm is not None:
                shrink = (max_grad_norm / norms).clamp(max=1)
            mean = {name: torch.einsum("b,b...->...", shrink, g) / len(batch) for name, g in each.items()}
            if noise_std is not None:
                std = np.sqrt((noise_std[ROWS[member][batch]] ** 2).sum()) / len(batch)
                noise = std * torch.randn(131, generator=generator, dtype=torch.float64)
                parts = noise.split([96, 24, 8, 3])
                for part, name in zip(parts, ["1.weight", "3.weight", "1.bias", "3.bias"], strict=True):
                    shape = mean[name].T.shape if "weight" in name else mean[name].shape
                    mean[name] = mean[name] + part.view(shape).permute(*reversed(range(len(shape))))
            for name, parameter in parameters.items():
                step = mean[name] + decay * parameter
                velocity[name] = momentum * velocity[name] + step
                parameters[name] = parameter - SETTINGS["learning_rate"] * velocity[name]
    return parameters


WEIGHTS = np.random.default_rng(5).uniform(0, 1, 60)
SGD = SETTINGS | {"sizes": [12, 8, 3], "optimiser": "sgd"}


@pytest.mark.parametrize(
    ("ours", "hand"),
    [
        ({}, {}),
        ({"momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.9, "decay": 0.01}),
        ({"weights": WEIGHTS}, {"weights": WEIGHTS}),
        ({"max_grad_norm": 0.3}, {"max_grad_norm": 0.3}),
        ({"noise_std": WEIGHTS}, {"noise_std": WEIGHTS}),
        (
            {"weights": WEIGHTS, "max_grad_norm": 0.5, "noise_std": 0.2},
            {"weights": WEIGHTS, "max_grad_norm": 0.5, "noise_std": np.full(60, 0.2)},
        ),
    ],
    ids=["plain", "momentum", "weights", "clipping", "noise", "all"],
)
def test_every_example_counts_is_clipped_and_blurred_as_written(ours: dict, hand: dict) -> None:
    ensemble = train_ensemble(POOL, ROWS, LABELS, generators=generators(), **SGD, **ours)
    for m in range(3):
        for name, ours_ in ensemble.member(m).named_parameters():
            torch.testing.assert_close(ours_.detach(), by_hand(m, **hand)[name], rtol=0, atol=1e-12)


def test_weights_of_zero_are_absence_from_the_gradient():
    weights = np.ones(60)
    weights[ROWS[0][:20]] = 0
    options = {**SGD, "batch_size": 43, "epochs": 1}
    some = train_ensemble(POOL, ROWS[:1], LABELS[:1], generators=generators(1), weights=weights, **options)
    others = train_ensemble(POOL, ROWS[:1, 20:], LABELS[:1, 20:], generators=generators(1), **options)
    start = mlp([12, 8, 3], generator=generators(1)[0])
    for a, b, s in zip(some.weights, others.weights, start[1::2], strict=True):
        torch.testing.assert_close((a[0] - s.weight.T) * 43, (b[0] - s.weight.T) * 23)


# --------------------------------------------------------------------------- chunks, processes, machines


@pytest.fixture(scope="module")
def cluster() -> Iterator[Executor]:
    """A real Dask cluster of two worker processes on the loopback interface."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as local,
        Client(local) as client,
    ):
        yield client.get_executor()


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


def defended(executor: Executor | None, chunk: int) -> tuple[Ensemble, list[torch.Generator]]:
    halves = paired_halves(6, 60, rng=np.random.default_rng(0))
    rows, used = rows_of(halves), generators(6)
    labels = np.arange(60)[rows] % 3
    options = SGD | {"momentum": 0.9, "weights": WEIGHTS, "noise_std": 0.1, "max_grad_norm": 1.0}
    found = train_ensemble(POOL, rows, labels, generators=used, chunk=chunk, executor=executor, **options)
    return found, used


@pytest.mark.parametrize("where", ["processes", "cluster"])
def test_other_processes_and_machines_return_the_same_bits(where, request):
    here, used_here = defended(None, 2)
    there, used_there = defended(request.getfixturevalue(where), 2)
    assert here.digest() == there.digest()
    for a, b in zip(used_here, used_there, strict=True):
        assert torch.equal(a.get_state(), b.get_state())
    assert torch.equal(here.logits(POOL), there.logits(POOL))


def test_chunks_change_nothing_but_the_memory_needed():
    whole, _ = defended(None, 64)
    for chunk in (1, 4):
        parts, _ = defended(None, chunk)
        assert len(parts) == 6
        for a, b in zip(whole.weights + whole.biases, parts.weights + parts.biases, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_the_digest_knows_every_bit():
    ensemble, _ = defended(None, 64)
    changed = [w.clone() for w in ensemble.weights]
    changed[0][0, 0, 0] = torch.nextafter(changed[0][0, 0, 0], torch.tensor(np.inf))
    assert Ensemble(tuple(changed), ensemble.biases).digest() != ensemble.digest()
    assert Ensemble(tuple(w.clone() for w in ensemble.weights), ensemble.biases).digest() == ensemble.digest()


def test_the_number_of_threads_is_left_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    defended(None, 64)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rows": ROWS[:2]}, ValueError, "rows must have shape"),
        ({"rows": ROWS + 60}, ValueError, "rows must be"),
        ({"labels": LABELS[:, :-1]}, ValueError, "labels must have shape"),
        ({"labels": LABELS + 3}, ValueError, "labels must be"),
        ({"sizes": [11, 3]}, ValueError, "sizes must begin with the 12 entries"),
        ({"epochs": 0}, ValueError, "epochs must be >= 1"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be"),
        ({"generators": []}, ValueError, "at least one generator"),
        ({"generators": generators(1) * 3}, ValueError, "one of them twice"),
        ({"generators": [0, 1, 2]}, TypeError, "generators must be a torch.Generator"),
        ({"pool": POOL.long()}, TypeError, "pool must be"),
        ({"optimiser": "lbfgs"}, ValueError, "optimiser must be one of"),
        ({"momentum": 0.9}, ValueError, "momentum must be 0 with adam"),
        ({"weights": -WEIGHTS}, ValueError, "weights must be >= 0"),
        ({"weights": WEIGHTS[:-1]}, ValueError, "weights must have shape"),
        ({"noise_std": -0.1}, ValueError, "noise_std must be >= 0"),
        ({"max_grad_norm": 0.0}, ValueError, "max_grad_norm must be"),
        ({"chunk": 0}, ValueError, "chunk must be >= 1"),
    ],
)
def test_wrong_arguments_are_refused(change: dict, error: type[Exception], message: str) -> None:
    arguments = {"pool": POOL, "rows": ROWS, "labels": LABELS, "sizes": [12, 3], "generators": generators()}
    arguments |= SETTINGS | change
    with pytest.raises(error, match=message):
        train_ensemble(arguments.pop("pool"), arguments.pop("rows"), arguments.pop("labels"), **arguments)
