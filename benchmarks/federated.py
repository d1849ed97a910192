"""Chapter 6's clients all at once beside one after another, and beside the usual loop with torch.optim.

    python benchmarks/federated.py

First it insists on the same weights in every way. Times are CPU seconds of one thread for one round of the
clients, the least of several repeats that take turns; look at the ratios.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.federated import client_update, iid_partition, model_arrays, train_clients
from thousand_fingers.models import mlp

Weights = list[tuple[np.ndarray, ...]]


def generators(n: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(k) for k in range(n)]


def with_optimiser(
    model: nn.Sequential, clients: list[torch.Tensor], epochs: int, batch_size: int, learning_rate: float
) -> Weights:
    """One client after another, as most federated code does it: a copy, torch.optim.SGD, backward()."""
    trained = []
    for rows, generator in zip(clients, generators(len(clients)), strict=True):
        network = copy.deepcopy(model)
        optimiser = torch.optim.SGD(network.parameters(), lr=learning_rate)
        for _ in range(epochs):
            for batch in torch.randperm(len(rows), generator=generator).split(batch_size):
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(network(images[rows[batch]]), labels[rows[batch]])
                loss.backward()
                optimiser.step()
        trained.append(model_arrays(network))
    return trained


def one_by_one(
    model: nn.Sequential, clients: list[torch.Tensor], epochs: int, batch_size: int, learning_rate: float
) -> Weights:
    """The book's own loop for one client."""
    trained = []
    for rows, generator in zip(clients, generators(len(clients)), strict=True):
        network = copy.deepcopy(model)
        client_update(
            network,
            images[rows],
            labels[rows],
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            generator=generator,
        )
        trained.append(model_arrays(network))
    return trained


def all_at_once(
    model: nn.Sequential, clients: list[torch.Tensor], epochs: int, batch_size: int, learning_rate: float
) -> Weights:
    return train_clients(
        model,
        images,
        labels,
        [rows.numpy() for rows in clients],
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        generators=generators(len(clients)),
    )


def largest_difference(one: Weights, other: Weights) -> float:
    return max(
        float(np.abs(a - b).max())
        for mine, theirs in zip(one, other, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )


def least_cpu_seconds(runs: dict[str, Callable[[], Weights]], repeats: int) -> dict[str, float]:
    """Time all runs in turn, several times over, so that a busy moment hits everybody."""
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            before = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - before)
    return least


WAYS = {
    "torch.optim, one by one": with_optimiser,
    "ours, one by one": one_by_one,
    "ours, all at once": all_at_once,
}


def compare(sizes: list[int], epochs: int, n_clients: int, repeats: int, uneven: bool) -> None:
    model = mlp(sizes, generator=torch.Generator().manual_seed(0))
    parts = iid_partition(4_000, 100, np.random.default_rng(0))[:n_clients]
    if uneven:
        parts = tuple(part[: 1 + (7 * k) % 40] for k, part in enumerate(parts))
    clients = [torch.from_numpy(part) for part in parts]
    runs = {name: lambda way=way: way(model, clients, epochs, 10, 0.1) for name, way in WAYS.items()}
    found = {name: run() for name, run in runs.items()}
    seconds = least_cpu_seconds(runs, repeats)
    shape = "-".join(map(str, sizes))
    print(
        f"\n{shape}, {n_clients} clients of {'1 to 40' if uneven else '40'}, batches of 10, {epochs} epochs"
    )
    for name in WAYS:
        difference = largest_difference(found[name], found["torch.optim, one by one"])
        assert difference < 1e-12, f"{name} differs by {difference}"
        ratio = seconds["torch.optim, one by one"] / seconds[name]
        print(f"{name:26}{difference:12.0e}{seconds[name]:10.3f} s{ratio:8.2f} times as fast")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    digits, split = load_mnist5k(), mnist5k_split()
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    for sizes in ([784, 64, 10], [784, 200, 200, 10]):
        for epochs in (1, 5):
            compare(sizes, epochs, 20, arguments.repeats, uneven=False)
    compare([784, 64, 10], 5, 20, arguments.repeats, uneven=True)
