"""Many networks at once against one after another: the same members, the same policy, the same weights.

The loop is what one would write without this module: a network, torch's optimiser, batches in a drawn
order. Both sides are warmed up (the first optimiser of a process imports a lot), run in turn, and the
least of several CPU times counts. No peer is needed. The gain is what many small products cost in
overhead; with wide inputs the products themselves, and the copying of batches, are all that is left.

    python benchmarks/ensembles.py [--repeats N] [--members N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.ensembles import Ensemble, paired_halves, rows_of, train_ensemble
from thousand_fingers.models import mlp

BATCH_SIZE, EPOCHS, N = 50, 2, 1000
OPTIMISERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.003, "momentum": 0.0},
}


@dataclass(frozen=True, eq=False)
class Case:
    pool: Tensor
    rows: Tensor
    labels: Tensor
    sizes: tuple[int, ...]
    optimiser: str

    def generators(self) -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in range(len(self.rows))]

    def at_once(self) -> Ensemble:
        return train_ensemble(
            self.pool,
            self.rows.numpy(),
            self.labels[self.rows].numpy(),
            sizes=self.sizes,
            epochs=EPOCHS,
            batch_size=BATCH_SIZE,
            generators=self.generators(),
            optimiser=self.optimiser,
            **OPTIMISERS[self.optimiser],
        )

    def one_by_one(self) -> list[nn.Sequential]:
        return [self.alone(*pair) for pair in zip(self.rows, self.generators(), strict=True)]

    def alone(self, rows: Tensor, generator: torch.Generator) -> nn.Sequential:
        network = mlp(self.sizes, generator=generator)
        settings = OPTIMISERS[self.optimiser]
        if self.optimiser == "adam":
            optimiser = torch.optim.Adam(network.parameters(), lr=settings["learning_rate"])
        else:
            optimiser = torch.optim.SGD(
                network.parameters(), lr=settings["learning_rate"], momentum=settings["momentum"]
            )
        inputs, labels = self.pool[rows], self.labels[rows]
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(rows), generator=generator).split(BATCH_SIZE):
                optimiser.zero_grad()
                nn.functional.cross_entropy(network(inputs[batch]), labels[batch]).backward()
                optimiser.step()
        return network


def largest_difference(ensemble: Ensemble, networks: list[nn.Sequential]) -> float:
    largest = 0.0
    for index, network in enumerate(networks):
        member = ensemble.member(index)
        for ours, theirs in zip(member.parameters(), network.parameters(), strict=True):
            largest = max(largest, float((ours - theirs).detach().abs().max()))
    return largest


def least_cpu_seconds(runs: list[Callable[[], object]], repeats: int) -> list[float]:
    least = [float("inf")] * len(runs)
    for _ in range(repeats):
        for i, run in enumerate(runs):
            before = time.process_time()
            run()
            least[i] = min(least[i], time.process_time() - before)
    return least


def main(repeats: int, members: int) -> None:

    digits, split = load_mnist5k(), mnist5k_split()
    chosen = split.train[:N]
    images = torch.from_numpy(digits.images[chosen].reshape(N, -1))
    labels = torch.from_numpy(digits.labels[chosen])
    directions = torch.linalg.svd(images - images.mean(0), full_matrices=False).Vh[:64].T
    rows = torch.from_numpy(rows_of(paired_halves(members, N, rng=np.random.default_rng(0))))
    inputs = {64: images @ directions, 784: images}
    print(f"{members} members, {N // 2} examples each, {EPOCHS} epochs, batches of {BATCH_SIZE}, one thread")
    print(
        f"{'network':>12}{'optimiser':>11}{'one by one, s':>15}{'at once, s':>12}{'ratio':>8}{'difference':>12}"
    )
    for entries, hidden, optimiser in ((64, 64, "sgd"), (64, 64, "adam"), (64, 128, "sgd"), (784, 64, "sgd")):
        case = Case(inputs[entries], rows, labels, (entries, hidden, 10), optimiser)
        difference = largest_difference(case.at_once(), case.one_by_one())  # also warms up
        loop, stacked = least_cpu_seconds([case.one_by_one, case.at_once], repeats)
        print(
            f"{entries}-{hidden}-10".rjust(12)
            + f"{optimiser:>11}{loop:15.2f}{stacked:12.2f}{loop / stacked:8.1f}{difference:12.0e}"
        )
        assert difference < 1e-9, f"members differ by {difference} from the same networks alone"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--members", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.repeats, arguments.members)
