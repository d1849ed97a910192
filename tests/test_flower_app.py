"""The Flower app: what can be checked without Flower. The rest, with real processes, is benchmarks/flower.py."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.nn import functional

from thousand_fingers import flower_app
from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.federated import Update, aggregate
from thousand_fingers.flower_app import (
    Settings,
    accuracy,
    client_rows,
    client_update,
    initial_weights,
    make_client_app,
    make_server_app,
    require_flower,
    simulate,
    train_locally,
    write_app,
)

REFERENCE = Path(__file__).parent / "reference" / "flower.npz"
SHAPES = (
    (30, 20),
    (20,),
    (20, 10),
    (10,),
)  # of the models behind the reference, drawn as in benchmarks/flower.py
SIZES = {"equal": [50, 50], "unequal": [3, 10, 50, 600], "many": list(range(1, 101))}

without_flower = pytest.mark.skipif(flower_app.HAS_FLOWER, reason="Flower is installed here")


def models(sizes: list[int], seed: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=shape).astype(np.float32) for shape in SHAPES] for _ in sizes]


# --------------------------------------------------------------------------- Flower's average


@pytest.mark.parametrize(("seed", "name"), list(enumerate(SIZES)))
def test_our_average_is_that_of_flower(seed: int, name: str) -> None:
    arrays = models(SIZES[name], seed)
    updates = [
        Update(k, 1, n, tuple(each)) for k, (each, n) in enumerate(zip(arrays, SIZES[name], strict=True))
    ]
    ours = aggregate(arrays[0], updates, round_number=1).arrays
    with np.load(REFERENCE) as box:
        assert str(box["version"]) == flower_app.FLOWER_VERSION
        theirs = [box[f"{name}.{layer}"] for layer in range(len(SHAPES))]
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype == np.float32
        assert_allclose(a, b, rtol=0, atol=1e-6)
    # The same arithmetic without the numbers of examples would be noticed (equal clients apart).
    unweighted = np.mean([each[0] for each in arrays], axis=0)
    assert (np.abs(unweighted - theirs[0]).max() < 1e-6) == (name == "equal")


@pytest.mark.case("FED-9")
def test_our_average_does_not_depend_on_the_order_in_which_replies_arrive() -> None:
    arrays = models(SIZES["many"], 2)
    updates = [
        Update(k, 1, n, tuple(each)) for k, (each, n) in enumerate(zip(arrays, SIZES["many"], strict=True))
    ]
    first = aggregate(arrays[0], updates, round_number=1).arrays
    second = aggregate(arrays[0], updates[::-1], round_number=1).arrays
    for a, b in zip(first, second, strict=True):
        assert_array_equal(a, b)


# --------------------------------------------------------------------------- a client


def test_one_step_is_the_gradient_step_of_torch() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(12, 5)), rng.integers(0, 10, 12)
    start = (rng.normal(size=(5, 10)), rng.normal(size=10))
    before = [array.copy() for array in start]
    ours = train_locally(
        start, features, labels, epochs=1, batch_size=12, learning_rate=0.3, rng=np.random.default_rng(1)
    )
    matrix, bias = (torch.tensor(array, requires_grad=True) for array in start)
    loss = functional.cross_entropy(torch.from_numpy(features) @ matrix + bias, torch.from_numpy(labels))
    loss.backward()
    for new, old, tensor in zip(ours, before, (matrix, bias), strict=True):
        assert_allclose(new, old - 0.3 * tensor.grad.numpy(), rtol=1e-12, atol=1e-12)
    for array, old in zip(start, before, strict=True):
        assert_array_equal(array, old)


def test_huge_features_give_no_nan() -> None:
    new = train_locally(
        initial_weights(2),
        [[1e8, -1e8], [1e8, 1e8]],
        [3, 4],
        epochs=3,
        batch_size=1,
        learning_rate=1.0,
        rng=np.random.default_rng(0),
    )
    assert all(np.isfinite(array).all() for array in new)


@pytest.mark.parametrize("n_clients", [1, 2, 3, 7])
def test_clients_share_out_the_training_images_and_no_others(n_clients: int) -> None:
    rows = [client_rows(k, n_clients) for k in range(n_clients)]
    assert_array_equal(np.sort(np.concatenate(rows)), np.sort(mnist5k_split().train))
    sizes = [r.size for r in rows]
    assert sizes == sorted(sizes)
    expected = 3_500 * np.arange(1, n_clients + 1) / (n_clients * (n_clients + 1) / 2)
    assert_allclose(sizes, expected, atol=1)


@pytest.mark.case("FED-17")
def test_a_client_keeps_its_examples_and_another_seed_deals_anew() -> None:
    assert_array_equal(client_rows(1, 3), client_rows(1, 3))
    assert set(client_rows(1, 3)) != set(client_rows(1, 3, seed=1))


@pytest.mark.case("FED-9")
def test_a_clients_update_depends_on_seed_round_and_client_only() -> None:
    def bits(client: int, number: int, seed: int = 0) -> bytes:
        settings = Settings(seed=seed, batch_size=5)
        return client_update(initial_weights(), client, 20, number, settings)[1][0].tobytes()

    assert bits(0, 1) == bits(0, 1)
    assert len({bits(0, 1), bits(1, 1), bits(0, 2), bits(0, 1, seed=1)}) == 4


def test_update_reports_the_number_of_its_examples() -> None:
    n_k, weights = client_update(initial_weights(), 2, 20, 1, Settings())
    assert n_k == client_rows(2, 20).size
    assert [array.shape for array in weights] == [(784, 10), (10,)]


# --------------------------------------------------------------------------- the federation in one process


def test_one_client_is_central_training_bit_for_bit() -> None:
    settings = Settings(rounds=2, min_clients=1)
    digits, rows = load_mnist5k(), client_rows(0, 1)
    weights = initial_weights()
    for number in (1, 2):
        weights = train_locally(
            weights,
            digits.images[rows].reshape(rows.size, -1),
            digits.labels[rows],
            epochs=1,
            batch_size=50,
            learning_rate=0.1,
            rng=np.random.default_rng([0, number, 0]),
        )
    for a, b in zip(simulate(1, settings), weights, strict=True):
        assert_array_equal(a, b)


def test_full_batches_of_all_clients_are_one_central_step() -> None:
    settings = Settings(rounds=1, batch_size=10_000)
    digits, rows = load_mnist5k(), mnist5k_split().train
    central = train_locally(
        initial_weights(),
        digits.images[rows].reshape(rows.size, -1),
        digits.labels[rows],
        epochs=1,
        batch_size=10_000,
        learning_rate=0.1,
        rng=np.random.default_rng(0),
    )
    for a, b in zip(simulate(5, settings), central, strict=True):
        assert_allclose(a, b, rtol=0, atol=1e-12)

    def forgetful(current, updates):
        return [np.mean([update.arrays[i] for update in updates], axis=0) for i in range(2)]

    wrong = simulate(5, settings, average=forgetful)
    assert np.abs(wrong[0] - central[0]).max() > 1e-4


def test_two_clients_learn_digits() -> None:
    assert accuracy(simulate(2, Settings(rounds=3))) > 0.85


def test_a_simulation_samples_nobody() -> None:
    with pytest.raises(ValueError, match=r"share must be 1 in a simulation, got 0\.5"):
        simulate(2, Settings(share=0.5))


@pytest.mark.case("FED-11")
def test_too_few_clients_move_no_model() -> None:
    with pytest.raises(ValueError, match="1 clients"):
        simulate(1, Settings(rounds=1, min_clients=2))


# --------------------------------------------------------------------------- settings and the folder for Flower


def test_the_written_app_is_what_flower_wants(tmp_path: Path) -> None:
    settings = Settings(rounds=7, out='C:\\a "b"\\model.npz', share=0.5)
    write_app(tmp_path / "app", settings)
    described = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text(encoding="utf-8"))
    flower = described["tool"]["flwr"]["app"]
    assert Settings.from_config(flower["config"]) == settings
    assert set(flower["config"]) == {f.name.replace("_", "-") for f in dataclasses.fields(Settings)}
    assert described["project"]["dependencies"] == [f"flwr>={flower_app.FLOWER_VERSION},<2"]
    assert described["project"]["license"] == {"file": "LICENSE"}  # Flower refuses a string
    assert (tmp_path / "app" / "LICENSE").exists()
    assert flower["flwr-version-target"] == flower_app.FLOWER_VERSION
    module = ast.parse((tmp_path / "app" / "fingers_app.py").read_text(encoding="utf-8"))
    assigned = {node.targets[0].id for node in module.body if isinstance(node, ast.Assign)}
    assert {f"fingers_app:{name}" for name in assigned} == set(flower["components"].values())


def test_the_command_of_the_docstring_writes_the_app(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "thousand_fingers.flower_app"]
    subprocess.run([*command, str(tmp_path / "my_app")], check=True, timeout=120)
    assert (tmp_path / "my_app" / "pyproject.toml").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"share": 1.5}, "share must be"),
        ({"min_clients": 0}, "min_clients must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
        ({"reply_seconds": 0.0}, "reply_seconds must be > 0"),
        ({"connect_seconds": float("inf")}, "connect_seconds must be finite"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**options)


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="run-config must have only rounds, share"):
        Settings.from_config({"round": 3})


@pytest.mark.parametrize(
    ("node_config", "error", "message"),
    [
        ({}, ValueError, "--node-config must have partition-id and num-partitions"),
        ({"partition-id": 1}, ValueError, "--node-config must have num-partitions, got"),
        ({"partition-id": 2, "num-partitions": 2}, ValueError, "partition-id must be >= 0 and <= 1, got 2"),
        ({"partition-id": 0, "num-partitions": 0}, ValueError, "num-partitions must be >= 1, got 0"),
        ({"partition-id": "0", "num-partitions": 2}, TypeError, "partition-id must be an integer, got '0'"),
    ],
)
def test_a_node_that_was_not_told_who_it_is_says_so(
    node_config: dict[str, object], error: type[Exception], message: str
) -> None:
    assert flower_app._identity({"partition-id": 1, "num-partitions": 2}) == (1, 2)
    with pytest.raises(error, match=message):
        flower_app._identity(node_config)


@without_flower
@pytest.mark.parametrize("make", [require_flower, make_client_app, make_server_app])
def test_without_flower_the_error_says_how_to_get_it(make) -> None:
    with pytest.raises(ImportError, match=r"python -m pip install flwr==1\.42\.0"):
        make()


@without_flower
def test_without_flower_there_is_no_strategy_either() -> None:
    with pytest.raises(ImportError, match="Flower is not installed"):
        flower_app.FederatedAveraging(rng=np.random.default_rng(0))


def test_a_client_process_does_not_pay_for_torch() -> None:
    # Flower starts a process for every message.
    code = (
        "import sys, thousand_fingers.flower_app as app\n"
        "app.client_update(app.initial_weights(), 0, 40, 1, app.Settings())\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
