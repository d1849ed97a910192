"""Chapter 5's step beside Opacus: the same clipped gradient? how fast? how much memory?

    python benchmarks/dpsgd.py

First it insists, in float64, on the clipped sum of Opacus. Then it times one epoch of Poisson batches, in
CPU seconds of one thread, the least of several repeats that take turns, as a ratio to plain SGD on the
same batches. Memory is the growth of the peak of a fresh process.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.dpsgd import ENGINES, clipped_sum, poisson_sample, private_gradient
from thousand_fingers.models import mlp

warnings.simplefilter("ignore")  # Opacus speaks a lot

SIGMA, CLIP, BATCH = 1.0, 1.0, 256
Epoch = Callable[[], None]


def perceptron(dtype: torch.dtype) -> nn.Module:
    return mlp([784, 128, 10], generator=torch.Generator().manual_seed(0), dtype=dtype)


def linear(dtype: torch.dtype) -> nn.Module:
    return mlp([784, 10], generator=torch.Generator().manual_seed(0), dtype=dtype)


def cnn(dtype: torch.dtype) -> nn.Module:
    """Return the small network on which Opacus' own example trains MNIST."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
        ).to(dtype)  # fmt: skip


NETWORKS = {"linear 784-10": linear, "MLP 784-128-10": perceptron, "CNN, 26,010 weights": cnn}


def batches_of(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [poisson_sample(n, BATCH / n, generator=generator) for _ in range(n // BATCH)]


def plain(model: nn.Module, images: Tensor, labels: Tensor) -> Epoch:
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)

    def epoch() -> None:
        for batch in batches_of(len(images)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()

    return epoch


def ours(engine: str, model: nn.Module, images: Tensor, labels: Tensor) -> Epoch:
    generator = torch.Generator().manual_seed(1)
    parameters = dict(model.named_parameters())

    def epoch() -> None:
        for batch in batches_of(len(images)):
            gradient = private_gradient(
                model, images[batch], labels[batch], noise_multiplier=SIGMA, max_grad_norm=CLIP,
                expected_batch_size=BATCH, generator=generator, engine=engine,
            )  # fmt: skip
            with torch.no_grad():
                for name, g in gradient.items():
                    parameters[name].sub_(g, alpha=1e-6)

    return epoch


def opacus_peer(mode: str, model: nn.Module, images: Tensor, labels: Tensor) -> Epoch:
    from opacus import PrivacyEngine

    criterion = nn.CrossEntropyLoss()
    data = torch.utils.data.TensorDataset(images, labels)
    wrapped = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-6), criterion=criterion,
        data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH), noise_multiplier=SIGMA,
        max_grad_norm=CLIP, poisson_sampling=False, grad_sample_mode=mode,
    )  # fmt: skip
    module, optimiser = wrapped[:2]
    loss_of = wrapped[2] if mode == "ghost" else criterion

    def epoch() -> None:
        for batch in batches_of(len(images)):
            optimiser.zero_grad()
            loss_of(module(images[batch]), labels[batch]).backward()
            optimiser.step()

    return epoch


PEERS: dict[str, Callable[[nn.Module, Tensor, Tensor], Epoch]] = {
    "plain SGD": plain,
    **{f"ours, {engine}": partial(ours, engine) for engine in ENGINES},
    **{f"Opacus, {mode}": partial(opacus_peer, mode) for mode in ("hooks", "functorch", "ew", "ghost")},
}


def insist_on_the_same_sum(name: str, images: Tensor, labels: Tensor) -> None:
    from opacus import GradSampleModule

    double = images[:64].double()
    model = NETWORKS[name](torch.float64)
    found = [clipped_sum(model, double, labels[:64], max_grad_norm=CLIP, engine=engine) for engine in ENGINES]
    module = GradSampleModule(model)
    nn.functional.cross_entropy(module(double), labels[:64]).backward()
    each = [parameter.grad_sample for parameter in model.parameters()]
    # Clipped by the formula: Opacus' own optimiser divides by the norm plus 1e-6.
    norms = torch.cat([gradients.flatten(1) for gradients in each], dim=1).norm(dim=1)
    shrink = (CLIP / norms).clamp(max=1)
    for engine, ours_ in zip(ENGINES, found, strict=True):
        difference = max(
            float((g - torch.tensordot(shrink, gradients, 1)).abs().max())
            for g, gradients in zip(ours_.values(), each, strict=True)
        )
        print(f"{name}, {engine}: largest difference from Opacus {difference:.0e}")
        assert difference < 1e-6, f"{engine} differs from Opacus by {difference}"


def digits() -> tuple[Tensor, Tensor]:
    carried, split = load_mnist5k(), mnist5k_split(validation_size=1)
    rows = torch.from_numpy(split.train)
    images = torch.from_numpy(carried.images)[:, None].float()
    return images[rows][:3840], torch.from_numpy(carried.labels)[rows][:3840]


def peak_mib() -> float:
    """Return the highest resident memory of this process so far (not inherited, as ``ru_maxrss`` is)."""
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 1024


def peak_growth(network: str, peer: str) -> float:
    """Return by how many MiB one epoch raises the peak of a fresh process."""
    out = subprocess.run(
        [sys.executable, __file__, "--memory-of", network, peer], capture_output=True, text=True, check=True
    )
    return float(out.stdout.split()[-1])


def compare(repeats: int) -> None:
    images, labels = digits()
    for network, make in NETWORKS.items():
        insist_on_the_same_sum(network, images, labels)
        epochs = {}
        for name, peer in PEERS.items():
            try:
                epochs[name] = peer(make(torch.float32), images, labels)
            except Exception as error:  # a peer that cannot do it is named
                print(f"{name}: left out ({type(error).__name__}: {error})")
        least = dict.fromkeys(epochs, float("inf"))
        for _ in range(repeats):
            for name, epoch in epochs.items():
                before = time.process_time()
                epoch()
                least[name] = min(least[name], time.process_time() - before)
        print(f"\n{network}, one epoch of {len(images) // BATCH} Poisson batches of {BATCH}, float32")
        print(f"{'implementation':24}{'CPU s':>9}{'ratio':>8}{'peak, MiB above before':>25}")
        for name, seconds in least.items():
            growth = peak_growth(network, name)
            print(f"{name:24}{seconds:9.3f}{seconds / least['plain SGD']:8.2f}{growth:25.0f}")
        print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--memory-of", nargs=2, metavar=("NETWORK", "PEER"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory_of:
        network, peer = arguments.memory_of
        epoch = PEERS[peer](NETWORKS[network](torch.float32), *digits())
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts anew
        before = peak_mib()
        epoch()
        print(peak_mib() - before)
    else:
        print(f"opacus {importlib.metadata.version('opacus')}")
        compare(arguments.repeats)
