"""Federated averaging: exact invariants, every refusal by name, all clients at once, privacy for clients."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from thousand_fingers.federated import (
    AdaptiveClipping,
    RoundSkipped,
    Update,
    adapt_clipping,
    aggregate,
    client_update,
    clients_per_round,
    clip_updates,
    communication_bytes,
    dirichlet_partition,
    federated_averaging,
    iid_partition,
    model_arrays,
    private_average,
    private_federated_averaging,
    private_share_below,
    rounds_to,
    sample_clients,
    shard_partition,
    train_clients,
    update_noise_multiplier,
    with_arrays,
)
from thousand_fingers.long_runs.federated import deep_search, direction_search, learning_curve
from thousand_fingers.mechanisms import analytic_gaussian_std, classical_gaussian_std, gaussian_delta
from thousand_fingers.models import mlp, small_cnn

ZERO = (np.zeros(2),)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def update(client: int, n_k: int, *values: float, round_number: int = 1) -> Update:
    return Update(client, round_number, n_k, (np.array(values),))


def average(*updates: Update, **options: object) -> list[float]:
    return aggregate(ZERO, updates, round_number=1, **options).arrays[0].tolist()  # type: ignore[arg-type]


def tiny_data(n: int = 60, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(n, 5, generator=generator(5), dtype=torch.float64)
    return images, torch.arange(n) % classes


# --------------------------------------------------------------------------- the average


@pytest.mark.case("FED-1")
@pytest.mark.case("FLW-5")
def test_no_examples_at_all_is_an_error_and_never_a_nan() -> None:
    with pytest.raises(
        ValueError, match=r"0 clients with examples.*client 0: no examples.*client 1: no examples"
    ):
        average(update(0, 0, 1.0, 2.0), update(1, 0, 5.0, 6.0))


@pytest.mark.case("FED-2")
@pytest.mark.parametrize("values", [(1.0, 2.0), (np.nan, np.inf)])
def test_a_client_without_examples_is_dropped_before_anything_is_multiplied(
    values: tuple[float, ...],
) -> None:
    assert average(update(0, 0, *values), update(1, 3, 5.0, 6.0)) == [5.0, 6.0]


@pytest.mark.case("FED-3")
@pytest.mark.case("FLW-4")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_client_with_a_number_that_is_not_finite_is_named_and_left_out(bad: float) -> None:
    found = aggregate(ZERO, [update(0, 1, bad, 2.0), update(1, 3, 5.0, 6.0)], round_number=1)
    assert found.arrays[0].tolist() == [5.0, 6.0]
    assert [(r.client, r.reason) for r in found.rejected] == [(0, "weights are not finite")]
    assert (found.clients, found.n_examples) == ((1,), 3)
    with pytest.raises(ValueError, match="client 0: weights are not finite"):
        average(update(0, 1, bad, 2.0), update(1, 3, 5.0, 6.0), strict=True)


@pytest.mark.case("FED-4")
def test_clients_weigh_by_their_examples() -> None:
    assert average(update(0, 1, 1.0, 2.0), update(1, 3, 5.0, 6.0)) == [4.0, 5.0]


@pytest.mark.case("FED-6")
def test_neither_the_first_client_nor_the_initial_model_counts_twice() -> None:
    found = aggregate([np.array([7.0])], [update(0, 1, 2.0), update(1, 1, 4.0)], round_number=1)
    assert found.arrays[0].tolist() == [3.0]


@pytest.mark.case("FED-7")
def test_nothing_that_comes_in_is_changed_or_shared() -> None:
    current, sent = [np.array([1.0])], [update(0, 1, 2.0), update(1, 1, 4.0)]
    found = aggregate(current, sent, round_number=1)
    found.arrays[0][:] = 99
    assert (current[0][0], sent[0].arrays[0][0], sent[1].arrays[0][0]) == (1.0, 2.0, 4.0)


@pytest.mark.case("FED-7")
def test_local_models_do_not_share_their_weights() -> None:
    # One weight per class, loss without curvature worth mentioning: each client moves from the same start.
    images, labels = tiny_data()
    model = mlp([5, 3], generator=generator())
    before = model_arrays(model)
    clients = [range(20), range(20, 40), range(40, 60)]
    options = {"epochs": 1, "batch_size": None, "learning_rate": 0.5}
    together = train_clients(
        model, images, labels, clients, **options, generators=[generator(k) for k in range(3)]
    )
    for k, rows in enumerate(clients):
        (alone,) = train_clients(model, images, labels, [rows], **options, generators=[generator(k)])
        assert_allclose(together[k][0], alone[0], rtol=0, atol=1e-15)
    assert_array_equal(before[0], model_arrays(model)[0])


@pytest.mark.case("FED-10")
def test_an_update_of_another_round_is_refused_and_the_same_answer_counts_once() -> None:
    sent = [update(0, 1, 1.0, 1.0, round_number=0), update(1, 1, 3.0, 3.0), update(1, 1, 3.0, 3.0)]
    found = aggregate(ZERO, sent, round_number=1)
    assert found.arrays[0].tolist() == [3.0, 3.0]
    assert found.n_examples == 1
    assert found.rejected[0].reason == "update belongs to round 0, not 1"


def test_two_different_answers_of_one_client_are_both_refused_in_either_order() -> None:
    sent = [update(0, 1, 1.0, 1.0), update(1, 1, 3.0, 3.0), update(1, 1, 4.0, 3.0)]
    for order in (sent, sent[::-1]):
        found = aggregate(ZERO, order, round_number=1)
        assert found.clients == (0,)
        assert [(r.client, r.reason) for r in found.rejected] == [(1, "sent two different updates")]


@pytest.mark.case("FED-11")
def test_when_clients_fail_the_others_are_averaged_and_below_the_minimum_nothing_is() -> None:
    came = [update(0, 2, 1.0, 0.0), update(2, 2, 4.0, 0.0), update(4, 4, 2.0, 0.0)]  # 1 and 3 failed
    found = aggregate(ZERO, came, round_number=1, min_clients=3)
    assert found.arrays[0].tolist() == [(2 * 1 + 2 * 4 + 4 * 2) / 8, 0.0]
    with pytest.raises(RoundSkipped, match="updates of 3 clients with examples, fewer than 4"):
        aggregate(ZERO, came, round_number=1, min_clients=4)


@pytest.mark.case("FED-11")
def test_a_round_in_which_everybody_diverges_is_skipped_reported_and_changes_nothing() -> None:
    images, labels = tiny_data()
    images[7] = torch.inf
    model = mlp([5, 3], generator=generator())
    clients = iid_partition(60, 6, rng())
    holder = next(k for k, rows in enumerate(clients) if 7 in rows)
    options = {"epochs": 1, "batch_size": 5, "learning_rate": 0.1, "rounds": 2}
    run = federated_averaging(model, images, labels, [clients[holder]], share=1.0, rng=rng(), **options)
    assert all(r.skipped and r.rejected[0].reason == "weights are not finite" for r in run.rounds)
    for old, new in zip(model_arrays(model), model_arrays(run.model), strict=True):
        assert_array_equal(old, new)
    others = federated_averaging(model, images, labels, clients, share=1.0, rng=rng(), **options)
    assert [r.client for r in others.rounds[0].rejected] == [holder]
    assert others.rounds[0].n_examples == 50
    assert all(np.isfinite(array).all() for array in model_arrays(others.model))


@pytest.mark.case("FLW-5")
def test_a_negative_number_of_examples_is_refused() -> None:
    assert average(update(0, -1, 1.0, 2.0), update(1, 3, 5.0, 6.0)) == [5.0, 6.0]
    with pytest.raises(ValueError, match="must be >= 0, got -1"):
        average(update(0, -1, 1.0, 2.0), strict=True)


@pytest.mark.case("FLW-6")
def test_shapes_are_never_broadcast_and_counters_never_averaged() -> None:
    current = (np.zeros((2, 2)),)
    sent = [Update(0, 1, 1, (np.zeros((2, 2)),)), Update(1, 1, 1, (np.array([5.0, 6.0]),))]
    found = aggregate(current, sent, round_number=1)
    assert_array_equal(found.arrays[0], np.zeros((2, 2)))
    assert "shapes [(2,)] are not [(2, 2)]" in found.rejected[0].reason
    with pytest.raises(TypeError, match="floating-point"):
        aggregate((np.array(10),), [Update(0, 1, 1, (np.array(13),))], round_number=1)


@given(seed=st.integers(0, 10_000), m=st.integers(1, 12))
@settings(max_examples=40)
def test_the_order_of_arrival_changes_no_bit(seed: int, m: int) -> None:
    draw = rng(seed)
    sent = [
        Update(k, 1, int(draw.integers(1, 600)), (draw.normal(size=50).astype(np.float32),)) for k in range(m)
    ]
    like = (np.zeros(50, dtype=np.float32),)
    first = aggregate(like, sent, round_number=1)
    again = aggregate(like, [sent[i] for i in draw.permutation(m)], round_number=1)
    assert first.arrays[0].dtype == np.float32
    assert_array_equal(first.arrays[0], again.arrays[0])
    weights = [u.n_k for u in sent]
    exact = np.average(np.array([u.arrays[0] for u in sent], dtype=np.float64), axis=0, weights=weights)
    assert_allclose(first.arrays[0], exact, rtol=1e-6, atol=1e-7)


@given(seed=st.integers(0, 10_000), m=st.integers(1, 12))
@settings(max_examples=40)
def test_clients_who_agree_are_returned_exactly_however_few_were_sampled(seed: int, m: int) -> None:
    draw = rng(seed)
    weights = draw.normal(size=20)
    sent = [
        Update(int(k), 1, int(draw.integers(1, 600)), (weights,)) for k in draw.choice(100, m, replace=False)
    ]
    assert_array_equal(aggregate((np.zeros(20),), sent, round_number=1).arrays[0], weights)


def test_dividing_by_all_clients_would_shrink_the_model() -> None:
    sent = [update(k, 6, 1.0, 1.0) for k in range(10)]
    everybody = 100 * 6
    wrong = sum(u.n_k / everybody * u.arrays[0] for u in sent)
    assert_allclose(wrong, 0.1)
    assert average(*sent) == [1.0, 1.0]


# --------------------------------------------------------------------------- who holds what, who takes part


@given(seed=st.integers(0, 1_000), n=st.integers(40, 200), clients=st.integers(1, 20))
@settings(max_examples=40)
def test_partitions_are_disjoint_and_complete(seed: int, n: int, clients: int) -> None:
    labels = rng(seed).integers(0, 5, n)
    for rows in (
        iid_partition(n, clients, rng(seed)),
        shard_partition(labels, clients, rng(seed)),
        dirichlet_partition(labels, clients, 1.0, rng(seed), min_size=0),
    ):
        assert len(rows) == clients
        assert sorted(np.concatenate(rows).tolist()) == list(range(n))


@pytest.mark.case("FED-14")
@pytest.mark.parametrize("seed", range(5))
def test_two_shards_mean_at_most_two_classes_when_shards_fit_into_classes(seed: int) -> None:
    labels = np.repeat(np.arange(10), 360)
    kinds = [np.unique(labels[rows]).size for rows in shard_partition(labels, 100, rng(seed))]
    assert max(kinds) == 2
    assert all(rows.size == 36 for rows in shard_partition(labels, 100, rng(seed)))


@pytest.mark.case("FED-13")
@pytest.mark.parametrize("concentration", [1e-6, 0.05, 1.0, 100.0])
def test_a_dirichlet_partition_hands_out_every_example_once_or_says_why_not(concentration: float) -> None:
    labels = np.repeat(np.arange(5), 8)
    rows = dirichlet_partition(labels, 4, concentration, rng(), min_size=0)
    assert sorted(np.concatenate(rows).tolist()) == list(range(40))
    with pytest.raises(ValueError, match="need more than 40 examples"):
        dirichlet_partition(labels, 4, concentration, rng(), min_size=11)


@pytest.mark.case("FED-13")
def test_the_smallest_client_of_a_dirichlet_partition_is_as_large_as_asked() -> None:
    labels = np.repeat(np.arange(5), 40)
    assert min(rows.size for rows in dirichlet_partition(labels, 4, 1.0, rng(), min_size=10)) >= 10
    with pytest.raises(ValueError, match="no draw in 3"):
        dirichlet_partition(labels, 20, 1e-6, rng(), min_size=5, attempts=3)


@pytest.mark.case("FLW-7")
@pytest.mark.parametrize(
    ("n", "share", "count"), [(100, 0.29, 29), (100, 0.57, 57), (10, 0.7, 7), (100, 0.0, 1), (3, 1.0, 3)]
)
def test_a_share_of_clients_is_rounded_not_cut(n: int, share: float, count: int) -> None:
    assert clients_per_round(n, share) == count


def test_every_client_is_sampled_equally_often() -> None:
    draw = rng(1)
    counts = np.bincount(np.concatenate([sample_clients(20, 5, draw) for _ in range(4_000)]), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-4


# --------------------------------------------------------------------------- training


@pytest.mark.parametrize("batch_size", [10, None])
@pytest.mark.parametrize("n_k", [[3, 10, 50], [1, 1, 7], [20, 20, 20]])
@pytest.mark.parametrize("sizes", [[5, 3], [5, 8, 3], [60, 8, 4, 3]])
def test_all_clients_at_once_end_where_each_ends_alone(
    sizes: list[int], n_k: list[int], batch_size: int | None
) -> None:
    images = torch.rand(80, sizes[0], generator=generator(5), dtype=torch.float64)
    labels = torch.arange(80) % 3
    model = mlp(sizes, generator=generator())
    ends = np.cumsum(n_k)
    clients = [
        rng(k).permutation(np.arange(end - size, end))
        for k, (size, end) in enumerate(zip(n_k, ends, strict=True))
    ]
    options = {"epochs": 3, "batch_size": batch_size, "learning_rate": 0.3}
    for chunk_size in (1, 2, None):
        together = train_clients(
            model,
            images,
            labels,
            clients,
            **options,
            generators=[generator(k) for k in range(3)],
            chunk_size=chunk_size,
        )
        for k, rows in enumerate(clients):
            alone, own = copy.deepcopy(model), torch.from_numpy(rows)
            steps = client_update(alone, images[own], labels[own], **options, generator=generator(k))
            assert steps == 3 * -(-len(rows) // (batch_size or len(rows)))
            for mine, theirs in zip(together[k], model_arrays(alone), strict=True):
                assert_allclose(mine, theirs, rtol=0, atol=1e-13)


def test_an_executor_computes_the_same() -> None:
    images, labels = tiny_data()
    model = mlp([5, 4, 3], generator=generator())
    results = []
    with ThreadPoolExecutor(2) as pool:
        for executor in (None, pool):
            results.append(
                train_clients(
                    model,
                    images,
                    labels,
                    iid_partition(60, 7, rng()),
                    epochs=1,
                    batch_size=4,
                    learning_rate=0.1,
                    generators=[generator(k) for k in range(7)],
                    chunk_size=2,
                    executor=executor,
                )
            )
    for one, other in zip(*results, strict=True):
        for a, b in zip(one, other, strict=True):
            assert_array_equal(a, b)


def test_the_loop_of_one_client_is_torchs_sgd() -> None:
    images, labels = tiny_data()
    ours, theirs = (mlp([5, 4, 3], generator=generator()) for _ in range(2))
    client_update(ours, images, labels, epochs=2, batch_size=7, learning_rate=0.2, generator=generator(3))
    optimiser, order = torch.optim.SGD(theirs.parameters(), lr=0.2), generator(3)
    for _ in range(2):
        for batch in torch.randperm(60, generator=order).split(7):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(theirs(images[batch]), labels[batch]).backward()
            optimiser.step()
    for a, b in zip(model_arrays(ours), model_arrays(theirs), strict=True):
        assert_array_equal(a, b)
    assert all(p.grad is None for p in ours.parameters())
    assert ours.training


def run_once(**changes: object) -> list[np.ndarray]:
    images, labels = tiny_data()
    options: dict[str, object] = {
        "rounds": 1,
        "share": 1.0,
        "epochs": 1,
        "batch_size": None,
        "learning_rate": 0.5,
        "rng": rng(),
        "clients": [range(1), range(1, 6), range(6, 16), range(16, 60)],
    } | changes
    model = mlp([5, 4, 3], generator=generator())
    return list(model_arrays(federated_averaging(model, images, labels, **options).model))  # type: ignore[arg-type]


def central(steps: int) -> list[np.ndarray]:
    images, labels = tiny_data()
    model = mlp([5, 4, 3], generator=generator())
    client_update(
        model, images, labels, epochs=steps, batch_size=None, learning_rate=0.5, generator=generator()
    )
    return list(model_arrays(model))


@pytest.mark.case("FED-4")
def test_fedsgd_with_everybody_is_one_step_on_all_examples_whatever_the_sizes() -> None:
    for a, b in zip(run_once(), central(1), strict=True):
        assert_allclose(a, b, rtol=0, atol=1e-14)


@pytest.mark.case("FED-16")
def test_rounds_of_fedsgd_are_steps_of_descent_so_nothing_is_carried_between_rounds() -> None:
    for a, b in zip(run_once(rounds=5), central(5), strict=True):
        assert_allclose(a, b, rtol=0, atol=1e-13)


def test_local_epochs_drift_away_from_central_steps() -> None:
    gaps = [np.abs(a - b).max() for a, b in zip(run_once(epochs=5), central(5), strict=True)]
    assert max(gaps) > 1e-4


def test_a_federation_of_one_is_ordinary_training() -> None:
    images, labels = tiny_data()
    found = run_once(clients=[range(60)], rounds=3, epochs=2, batch_size=8)
    draw, model = rng(), mlp([5, 4, 3], generator=generator())
    for _ in range(3):
        sample_clients(1, 1, draw)
        (seed,) = draw.integers(2**63, size=1).tolist()
        client_update(
            model, images, labels, epochs=2, batch_size=8, learning_rate=0.5, generator=generator(seed)
        )
    for a, b in zip(found, model_arrays(model), strict=True):
        assert_allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.case("FED-9")
def test_the_same_seed_gives_the_same_clients_and_the_same_bits() -> None:
    images, labels = tiny_data()
    model = mlp([5, 4, 3], generator=generator())
    options = {"rounds": 3, "share": 0.3, "epochs": 2, "batch_size": 4, "learning_rate": 0.3}
    runs = [
        federated_averaging(model, images, labels, iid_partition(60, 10, rng(1)), rng=rng(seed), **options)
        for seed in (0, 0, 1)
    ]
    assert [r.clients for r in runs[0].rounds] == [r.clients for r in runs[1].rounds]
    assert [r.clients for r in runs[0].rounds] != [r.clients for r in runs[2].rounds]
    for a, b in zip(model_arrays(runs[0].model), model_arrays(runs[1].model), strict=True):
        assert_array_equal(a, b)


@pytest.mark.case("FED-15")
def test_the_score_of_a_round_is_that_of_the_global_model() -> None:
    images, labels = tiny_data()
    seen: list[np.ndarray] = []

    def evaluate(model: torch.nn.Module) -> float:
        seen.append(model_arrays(model)[0])
        return float(len(seen))

    run = federated_averaging(
        mlp([5, 3], generator=generator()), images, labels, iid_partition(60, 6, rng()), rounds=2, share=0.5,
        epochs=1, batch_size=5, learning_rate=0.3, rng=rng(), evaluate=evaluate,
    )  # fmt: skip
    assert run.scores.tolist() == [1.0, 2.0]
    assert_array_equal(seen[-1], model_arrays(run.model)[0])


@pytest.mark.case("FED-17")
def test_a_client_keeps_its_examples_whoever_is_sampled_beside_it() -> None:
    images, labels = tiny_data()
    model = mlp([5, 3], generator=generator())
    options = {"epochs": 1, "batch_size": 3, "learning_rate": 0.3}
    clients = iid_partition(60, 6, rng())
    first = train_clients(
        model,
        images,
        labels,
        [clients[k] for k in (4, 1)],
        **options,
        generators=[generator(4), generator(1)],
    )
    again = train_clients(
        model, images, labels, [clients[k] for k in (1, 5, 4)], **options,
        generators=[generator(1), generator(5), generator(4)],
    )  # fmt: skip
    assert_allclose(first[0][0], again[2][0], rtol=0, atol=1e-15)
    assert_allclose(first[1][0], again[0][0], rtol=0, atol=1e-15)


@pytest.mark.case("FED-18")
def test_no_hidden_clipping_or_weight_decay() -> None:
    # Inputs of zero: only the last bias has a gradient, so every weight must stay where it was, to the bit.
    images, labels = torch.zeros(10, 5, dtype=torch.float64), torch.zeros(10, dtype=torch.int64)
    model = mlp([5, 3], generator=generator())
    (trained,) = train_clients(
        model,
        images,
        labels,
        [range(10)],
        epochs=20,
        batch_size=2,
        learning_rate=10.0,
        generators=[generator()],
    )
    assert_array_equal(trained[0], model_arrays(model)[0])
    assert np.linalg.norm(trained[1] - model_arrays(model)[1]) > 1.5  # longer than any usual clipping norm


def test_a_client_without_examples_answers_and_is_named() -> None:
    images, labels = tiny_data()
    run = federated_averaging(
        mlp([5, 3], generator=generator()), images, labels, [range(60), []], rounds=1, share=1.0, epochs=1,
        batch_size=None, learning_rate=0.3, rng=rng(),
    )  # fmt: skip
    assert [(r.client, r.reason) for r in run.rounds[0].rejected] == [(1, "no examples")]
    assert run.rounds[0].n_examples == 60


def test_models_that_cannot_be_stacked_or_averaged_are_refused() -> None:
    images, labels = torch.zeros(4, 28, 28, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    options = {"epochs": 1, "batch_size": 2, "learning_rate": 0.1, "generators": [generator()]}
    with pytest.raises(TypeError, match="perceptron"):
        train_clients(small_cnn(generator=generator()), images, labels, [range(4)], **options)
    with pytest.raises(TypeError, match="buffers running_mean"):
        model_arrays(torch.nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="must have shapes"):
        with_arrays(mlp([3, 2], generator=generator()), (np.zeros(3), np.zeros(2)))
    with pytest.raises(TypeError, match="images must be"):
        train_clients(mlp([784, 2], generator=generator()), images.float(), labels, [range(4)], **options)


def test_rounds_and_bytes_are_counted_from_one_and_both_ways() -> None:
    assert rounds_to([0.1, 0.9], 0.9) == 2
    assert communication_bytes(50_890, 10, rounds=3) == 3 * 10 * 2 * 50_890 * 4


def test_the_long_run_covers_every_combination_once() -> None:
    options = {
        "partitions": ["iid", "shards"], "epochs": [1, 2], "batch_sizes": [0, 18], "seeds": [0, 1],
        "learning_rates": [[[0.5], [0.1]]] * 2, "n_clients": 100, "share": 0.02, "hidden_units": 4, "rounds": 3,
        "validation_size": 400,
    }  # fmt: skip
    found = [tuple(learning_curve(part, **options)["test"]) for part in (0, 1, 2, 4)]
    assert len(set(found)) == 4
    with pytest.raises(ValueError, match="is out of bounds"):
        learning_curve(8, **options)


def test_the_searches_hold_their_results_against_image_and_stranger() -> None:
    found = deep_search(0, restarts=1, good_enough=0.5, validation_size=400)
    assert found["picture"].shape == (28, 28)
    assert found["classes"].sum() == pytest.approx(100)
    options = {"batch": 2, "steps": 3, "noise_multipliers": [0.0, 0.01], "validation_size": 400}
    first, second = (direction_search(part, **options) for part in (0, 1))
    assert first["psnr"].shape == (2, 2)
    assert first["other"].shape == (2,)
    held = np.concatenate([first["held"], second["held"]])
    assert len({image.tobytes() for image in held}) == 4  # no image serves twice


# --------------------------------------------------------------------------- privacy for clients

PRIVATE = {"sample_rate": 0.5, "example_cap": 10.0, "total_weight": 20.0, "max_grad_norm": 1.0}


@given(seed=st.integers(0, 10_000), C=st.floats(1e-3, 1e3), scale=st.floats(1e-150, 1e150))
@settings(max_examples=60)
def test_no_clipped_update_is_longer_than_c_and_short_ones_stay(seed: int, C: float, scale: float) -> None:
    rows = scale * rng(seed).normal(size=(8, 30))
    clipped = clip_updates(rows, C)
    assert (np.linalg.norm(clipped, axis=1) <= C).all()
    short = np.linalg.norm(rows, axis=1) <= 0.999 * C
    assert_array_equal(clipped[short], rows[short])


@pytest.mark.case("FLW-3")
def test_an_unchanged_client_is_clipped_to_itself() -> None:
    assert_array_equal(clip_updates(np.zeros((1, 5)), 1.0), np.zeros((1, 5)))
    found = private_average(np.zeros((1, 5)), [10], **PRIVATE, noise_multiplier=0.0, rng=rng())
    assert_array_equal(found.update, np.zeros(5))


@pytest.mark.case("FLW-4")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_counts_as_zero_and_is_named(bad: float) -> None:
    rows = np.array([[bad, 0.0], [0.6, 0.0]])
    found = private_average(rows, [10, 10], **PRIVATE, noise_multiplier=0.0, rng=rng())
    assert_allclose(found.update, [0.06, 0.0])
    assert found.unusable == (0,)


@pytest.mark.case("FLW-2")
def test_one_client_moves_the_average_by_no_more_than_the_noise_was_sized_for() -> None:
    n_k = np.array([990] + 9 * [10])
    options = {"sample_rate": 1.0, "example_cap": 10.0, "total_weight": 10.0, "max_grad_norm": 1.0}
    rows = np.tile([1.0, 0.0], (10, 1))
    whole = private_average(rows, n_k, **options, noise_multiplier=0.0, rng=rng()).update
    without = private_average(rows[1:], n_k[1:], **options, noise_multiplier=0.0, rng=rng()).update
    noise_std = private_average(rows, n_k, **options, noise_multiplier=1.0, rng=rng()).noise_std
    assert np.linalg.norm(whole - without) <= noise_std * (1 + 1e-12)  # z = 1: noise equals sensitivity
    # Weighted by examples the same client would move it by nine tenths of C, with noise for a tenth.
    naive = np.average(rows, axis=0, weights=n_k) - np.average(rows[1:] * 0, axis=0, weights=n_k[1:])
    assert np.linalg.norm(naive) > 9 * noise_std


@given(seed=st.integers(0, 10_000), m=st.integers(1, 10))
@settings(max_examples=40)
def test_sensitivity_holds_for_any_client_that_comes_or_goes(seed: int, m: int) -> None:
    draw = rng(seed)
    rows, n_k = 10 * draw.normal(size=(m, 6)), draw.integers(0, 1_000, m)
    whole = private_average(rows, n_k, **PRIVATE, noise_multiplier=0.0, rng=rng()).update
    without = private_average(rows[1:], n_k[1:], **PRIVATE, noise_multiplier=0.0, rng=rng()).update
    assert np.linalg.norm(whole - without) <= 1.0 / (0.5 * 20) + 1e-12


@pytest.mark.case("FLW-8")
@pytest.mark.parametrize("replies", [0, 1, 5, 10])
def test_noise_and_denominator_do_not_depend_on_how_many_answered(replies: int) -> None:
    rows = np.zeros((replies, 20_000))
    found = private_average(rows, np.full(replies, 10), **PRIVATE, noise_multiplier=2.0, rng=rng(7))
    assert found.noise_std == 2.0 * 1.0 / (0.5 * 20)
    z = found.update / found.noise_std
    assert stats.kstest(z, "norm").pvalue > 1e-4


@pytest.mark.case("FLW-1")
def test_adaptive_clipping_goes_to_the_median_and_not_to_zero() -> None:
    norms, C, seen = np.linspace(1, 2, 20), 0.1, {}
    for number in range(1, 61):
        below = private_share_below(norms, C, expected_clients=20, count_noise_std=0.0, rng=rng())
        C = adapt_clipping(C, below)
        seen[number] = C
    expected = {1: 0.1105, 10: 0.2718, 20: 0.7389, 30: 1.4296, 60: 1.488}  # by hand from Andrew et al.
    assert {n: round(seen[n], 3 if n == 60 else 4) for n in expected} == expected


def test_the_clipping_norm_of_a_round_is_fixed_before_its_norms_are_seen() -> None:
    norms = [0.0, 5.0]
    shares = [
        private_share_below(norms, C, expected_clients=2, count_noise_std=0.0, rng=rng()) for C in (1, 9)
    ]
    assert shares == [0.5, 1.0]
    with_fewer = private_share_below([0.0], 1.0, expected_clients=2, count_noise_std=0.0, rng=rng())
    assert with_fewer == 0.75  # the expected number is the denominator, not the actual one


@pytest.mark.parametrize(("z", "sigma_b", "z_delta"), [(1, 1, 1.1547), (1, 5, 1.00504), (0.5, 5, 0.500626)])
def test_the_count_takes_its_part_of_the_budget(z: float, sigma_b: float, z_delta: float) -> None:
    found = update_noise_multiplier(z, sigma_b)
    assert found == pytest.approx(z_delta, rel=1e-5)
    assert found**-2 + (2 * sigma_b) ** -2 == pytest.approx(z**-2)
    with pytest.raises(ValueError, match="must be < 2"):
        update_noise_multiplier(2 * sigma_b, sigma_b)


@pytest.mark.case("FLW-9")
@pytest.mark.parametrize("epsilon", [2.0, 8.0, 50.0])
def test_local_noise_for_a_large_epsilon_needs_the_analytic_calibration(epsilon: float) -> None:
    tight = analytic_gaussian_std(epsilon, 1e-5, sensitivity=1.0)
    assert gaussian_delta(tight, epsilon, sensitivity=1.0) == pytest.approx(1e-5)
    with pytest.raises(ValueError, match="epsilon"):
        classical_gaussian_std(epsilon, 1e-5)
    if epsilon == 50.0:  # the formula used beyond its range promises what it does not keep
        formula = np.sqrt(2 * np.log(1.25 / 1e-5)) / epsilon
        assert gaussian_delta(formula, epsilon) > 1e-5


def test_private_training_samples_clients_independently_and_reports_what_an_accountant_needs() -> None:
    images, labels = tiny_data()
    run = private_federated_averaging(
        mlp([5, 3], generator=generator()), images, labels, iid_partition(60, 30, rng()), rounds=60,
        expected_clients=6, epochs=1, batch_size=None, learning_rate=0.3, max_grad_norm=0.5,
        noise_multiplier=1.0, example_cap=2, rng=rng(),
    )  # fmt: skip
    sizes = [len(r.clients) for r in run.rounds]
    assert len(set(sizes)) > 3  # Poisson sampling: the number of clients varies
    assert stats.binomtest(sum(sizes), 60 * 30, 0.2).pvalue > 1e-4
    assert (run.n, run.batch_size, run.steps, run.sampling) == (30, 6, 60, "poisson")
    assert run.sample_rate == 0.2


def test_private_training_without_noise_or_limits_is_fedavg() -> None:
    images, labels = tiny_data()
    model, clients = mlp([5, 3], generator=generator()), iid_partition(60, 6, rng())
    shared = {"rounds": 1, "epochs": 1, "batch_size": None, "learning_rate": 0.3}
    plain = federated_averaging(model, images, labels, clients, **shared, share=1.0, rng=rng())
    private = private_federated_averaging(
        model, images, labels, clients, **shared, expected_clients=6, max_grad_norm=1e6, noise_multiplier=0.0,
        example_cap=10, rng=rng(),
    )  # fmt: skip
    for a, b in zip(model_arrays(plain.model), model_arrays(private.model), strict=True):
        assert_allclose(a, b, rtol=0, atol=1e-12)


def test_a_private_round_without_clients_moves_by_noise_alone() -> None:
    images, labels = tiny_data(6)
    model = mlp([5, 3], generator=generator())
    run = private_federated_averaging(
        model, images, labels, iid_partition(6, 6, rng()), rounds=3, expected_clients=1, epochs=1,
        batch_size=None, learning_rate=0.3, max_grad_norm=1.0, noise_multiplier=1.0, example_cap=1, rng=rng(4),
    )  # fmt: skip
    assert any(len(r.clients) == 0 for r in run.rounds)
    assert not any(r.skipped for r in run.rounds)


@pytest.mark.parametrize("empty", [True, False])
def test_an_adapted_norm_is_paid_for_by_the_noise_of_the_updates(empty: bool) -> None:
    images, labels = tiny_data(40)
    model = mlp([5, 3], generator=generator())
    z, sigma_b, rounds = 1.0, 0.8, 300 if empty else 60
    run = private_federated_averaging(
        model, images, labels, [range(k, k + 1) for k in range(40)], rounds=rounds,
        expected_clients=1 if empty else 40, epochs=1, batch_size=None, learning_rate=1e-9, max_grad_norm=0.5,
        noise_multiplier=z, example_cap=1, rng=rng(4), adaptive=AdaptiveClipping(sigma_b, step=1e-3),
    )  # fmt: skip
    assert (run.noise_multiplier, run.max_grad_norm, run.adapted) == (z, 0.5, True)
    assert (run.clipping_norms[0], len(run.clipping_norms)) == (0.5, rounds)
    # The vote is on the norm of the round before; its noise is that of the count over the expected number.
    came = np.array([len(r.clients) for r in run.rounds])[:-1]
    m = 1 if empty else 40
    votes = np.log(np.array(run.clipping_norms[1:]) / run.clipping_norms[:-1]) / -1e-3 * m
    noise = votes - came / 2  # every update is tiny, so everybody who came votes plus one half
    assert stats.kstest(noise / sigma_b, "norm").pvalue > 1e-4
    if empty:  # weights move by the noise of the updates alone
        moved = np.concatenate([a.ravel() - b.ravel() for a, b in zip(
            model_arrays(run.model), model_arrays(model), strict=True)])  # fmt: skip
        C = np.sqrt(np.square(run.clipping_norms).sum())
        z_updates = (z**-2 - (2 * sigma_b) ** -2) ** -0.5
        assert stats.kstest(moved / (z_updates * C), "norm").pvalue > 1e-4
        assert moved.std() / C > z  # more noise than without the count


def test_an_adapted_norm_finds_the_quantile_that_was_asked_for_from_both_sides() -> None:
    images, labels = tiny_data()
    ends = []
    for start in (0.001, 100.0):
        run = private_federated_averaging(
            mlp([5, 3], generator=generator()), images, labels, iid_partition(60, 60, rng()), rounds=60,
            expected_clients=60, epochs=1, batch_size=None, learning_rate=1e-3, max_grad_norm=start,
            noise_multiplier=0.0, example_cap=1, rng=rng(), adaptive=AdaptiveClipping(0.0, step=0.4),
        )  # fmt: skip
        ends.append(run.clipping_norms[-1])
    updates = train_clients(
        mlp([5, 3], generator=generator()), images, labels, [range(k, k + 1) for k in range(60)], epochs=1,
        batch_size=None, learning_rate=1e-3, generators=[generator()] * 60,
    )  # fmt: skip
    before = model_arrays(mlp([5, 3], generator=generator()))
    norms = [
        np.sqrt(sum(np.square(a - b).sum() for a, b in zip(one, before, strict=True))) for one in updates
    ]
    assert ends == pytest.approx([np.median(norms)] * 2, rel=0.15)


def test_too_little_noise_on_the_count_is_refused() -> None:
    images, labels = tiny_data()
    with pytest.raises(ValueError, match="noise_multiplier must be < 2"):
        private_federated_averaging(
            mlp([5, 3], generator=generator()), images, labels, iid_partition(60, 6, rng()), rounds=1,
            expected_clients=6, epochs=1, batch_size=None, learning_rate=0.3, max_grad_norm=1.0,
            noise_multiplier=1.0, example_cap=10, rng=rng(), adaptive=AdaptiveClipping(0.5),
        )  # fmt: skip


# --------------------------------------------------------------------------- numbers at the edge


def test_huge_counts_of_examples_do_not_overflow() -> None:
    n = np.int64(2**62)
    sent = [Update(k, 1, n, (np.array([value, 0.0]),)) for k, value in enumerate((1.0, 2.0, 6.0))]
    found = aggregate(ZERO, sent, round_number=1)
    assert found.arrays[0].tolist() == [3.0, 0.0]
    assert found.n_examples == 3 * 2**62


def test_an_average_that_the_type_of_the_weights_cannot_hold_is_an_error() -> None:
    sent = [Update(0, 1, 1, (np.array([1e300]),))]
    with pytest.raises(ValueError, match="too large for the type of the weights, float32"):
        aggregate([np.zeros(1, dtype=np.float32)], sent, round_number=1)
    assert aggregate([np.zeros(1)], sent, round_number=1).arrays[0][0] == 1e300


def test_a_client_keeps_its_mode_after_an_error_and_refuses_a_label_below_zero() -> None:
    images, labels = tiny_data()
    model = mlp([5, 3], generator=generator()).eval()
    options = {"epochs": 1, "batch_size": 7, "learning_rate": 0.1, "generator": generator()}
    with pytest.raises(IndexError):
        client_update(model, images, labels + 50, **options)
    assert not any(module.training for module in model.modules())
    labels[3] = -100
    with pytest.raises(ValueError, match="labels must be >= 0, got -100"):
        client_update(model, images, labels, **options)


@pytest.mark.parametrize("bad", [[["0.1", "0.2"]], [[True, False]], [[1j, 2.0]]])
def test_updates_must_be_numbers(bad: list[list[object]]) -> None:
    with pytest.raises(TypeError, match="updates must hold real numbers"):
        clip_updates(bad, 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="updates must hold real numbers"):
        private_average(bad, [1], **PRIVATE, noise_multiplier=0.0, rng=rng())  # type: ignore[arg-type]


# --------------------------------------------------------------------------- settings that run away


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count_noise_std": -1.0}, "count_noise_std must be >= 0"),
        ({"count_noise_std": 1.0, "target_quantile": 1.5}, "target_quantile must be"),
        ({"count_noise_std": 1.0, "step": 0.0}, "step must be > 0"),
    ],
)
def test_a_rule_for_the_clipping_norm_is_checked_when_it_is_made(
    options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveClipping(**options)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_clipping_norm_never_becomes_zero_or_infinite(share: float) -> None:
    with pytest.raises(ValueError, match=r"moves the clipping norm 1\.0 out of all bounds"):
        adapt_clipping(1.0, share, step=1e5)


def test_private_training_ends_in_numbers_or_an_error() -> None:
    def train(**changes: object) -> None:
        private_federated_averaging(
            mlp([784, 10], generator=torch.Generator().manual_seed(0)),
            torch.zeros(4, 784, dtype=torch.float64),
            torch.tensor([0, 1, 2, 3]),
            [[0, 1], [2, 3]],
            **{
                "rounds": 3, "expected_clients": 1, "epochs": 1, "batch_size": None, "learning_rate": 0.1,
                "max_grad_norm": 1.0, "noise_multiplier": 1.0, "example_cap": 2,
                "rng": np.random.default_rng(0), **changes,
            },
        )  # fmt: skip

    with pytest.raises(ValueError, match=r"weights are not finite after round 1: lower the noise"):
        train(noise_multiplier=1e308)
    with pytest.raises(TypeError, match=r"adaptive must be an AdaptiveClipping or None, got 0\.5"):
        train(adaptive=0.5)
