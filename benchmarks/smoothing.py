"""Chapter 8's certificates beside the usual loop and ART: same votes? how fast?

    python benchmarks/smoothing.py            100 images, n = 10,000 on a perceptron; fewer on a CNN
    python benchmarks/smoothing.py --quick    a tenth of it

"The usual loop" is the published algorithm as it is usually written: one input after another, noise in
batches, votes counted one by one. First both must return the same votes from the same generator. ART draws
its own noise, so there the certificates are compared. A peer that is not installed is left out and said so.
Times are CPU seconds of one thread; look at the ratios.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from scipy.stats import beta, norm
from torch import Tensor, nn

from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.models import mlp, small_cnn
from thousand_fingers.smoothing import (
    ABSTAIN,
    Certificate,
    certify,
    certify_at,
    is_certified,
    sample_under_noise,
)
from thousand_fingers.training import cross_entropy, train

warnings.simplefilter("ignore")  # the peers' deprecations

NOISE_STD, FAILURE_PROBABILITY, N0, RADIUS = 0.5, 0.001, 100, 0.5
BATCH_SIZE = 1_000


def usual_votes(model: nn.Module, image: Tensor, n: int, generator: torch.Generator) -> np.ndarray:
    counts = np.zeros(10, dtype=int)
    with torch.no_grad():
        for start in range(0, n, BATCH_SIZE):
            size = min(BATCH_SIZE, n - start)
            batch = image.repeat((size, *(1 for _ in image.shape)))
            noise = torch.randn(batch.shape, generator=generator, dtype=batch.dtype) * NOISE_STD
            for label in model(batch + noise).argmax(1).numpy():
                counts[label] += 1
    return counts


def usual(model: nn.Module, images: Tensor, n: int, generator: torch.Generator) -> Certificate:
    labels, radii, lowers = [], [], []
    for image in images:
        selected = int(usual_votes(model, image, N0, generator).argmax())
        votes = int(usual_votes(model, image, n, generator)[selected])
        p_lower = beta.ppf(FAILURE_PROBABILITY, votes, n - votes + 1) if votes else 0.0
        labels.append(selected if p_lower > 0.5 else ABSTAIN)
        radii.append(NOISE_STD * norm.ppf(p_lower) if p_lower > 0.5 else 0.0)
        lowers.append(p_lower)
    return Certificate(torch.tensor(labels), torch.tensor(radii), torch.tensor(lowers), FAILURE_PROBABILITY)


def ours(model: nn.Module, images: Tensor, n: int, generator: torch.Generator, shared: bool) -> Certificate:
    return certify(
        model,
        images,
        noise_std=NOISE_STD,
        failure_probability=FAILURE_PROBABILITY,
        n0=N0,
        n=n,
        generator=generator,
        batch_size=BATCH_SIZE,
        shared_noise=shared,
    )


def art(model: nn.Module, images: Tensor, n: int, generator: torch.Generator) -> Certificate:
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    smoothed = PyTorchRandomizedSmoothing(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(images.shape[1:]),
        nb_classes=10,
        sample_size=N0,
        scale=NOISE_STD,
        alpha=FAILURE_PROBABILITY,
        device_type="cpu",
    )
    np.random.seed(generator.initial_seed())  # noqa: NPY002 (its noise is NumPy's global stream)
    labels, radii = smoothed.certify(images.numpy(), n=n, batch_size=BATCH_SIZE)
    return Certificate(
        torch.from_numpy(labels.astype(np.int64)),
        torch.from_numpy(np.where(labels == ABSTAIN, 0.0, radii)),
        torch.zeros(len(images)),
        FAILURE_PROBABILITY,
    )


def insist_on_same_votes(model: nn.Module, images: Tensor) -> None:
    found = sample_under_noise(
        model,
        images,
        noise_std=NOISE_STD,
        n=2_000,
        generator=torch.Generator().manual_seed(1),
        batch_size=BATCH_SIZE,
    )
    generator = torch.Generator().manual_seed(1)
    expected = np.stack([usual_votes(model, image, 2_000, generator) for image in images])
    assert np.array_equal(found.numpy(), expected), "the votes differ from those of the usual loop"
    print(f"same votes as the usual loop from the same generator: {len(images)} images, {found.sum()} votes")


def trained(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    generator = torch.Generator().manual_seed(0)

    def objective(network: nn.Module, batch: Tensor, batch_labels: Tensor) -> Tensor:
        noise = torch.randn(batch.shape, generator=generator, dtype=batch.dtype)
        return cross_entropy(network, batch + NOISE_STD * noise, batch_labels)

    options = {"batch_size": 250, "learning_rate": 0.003, "generator": generator, "objective": objective}
    train(model, images, labels, epochs=epochs, **options)
    return model


def compare(title: str, model: nn.Module, images: Tensor, labels: Tensor, n: int) -> None:
    print(f"\n{title}: {len(images)} images, n = {n:,}, n0 = {N0}, {images.dtype}".replace("torch.", ""))
    insist_on_same_votes(model, images[:5])
    runs: dict[str, Callable[[], Certificate]] = {
        "the usual loop": lambda: usual(model, images, n, torch.Generator().manual_seed(2)),
        "ours, noise per image": lambda: ours(
            model, images, n, torch.Generator().manual_seed(2), shared=False
        ),
        "ours, shared noise": lambda: ours(model, images, n, torch.Generator().manual_seed(2), shared=True),
    }
    try:
        version = importlib.metadata.version("adversarial-robustness-toolbox")
        runs[f"ART {version}"] = lambda: art(model, images, n, torch.Generator().manual_seed(2))
    except importlib.metadata.PackageNotFoundError as error:
        print(f"ART: left out ({error})")
    seconds, reference = {}, None
    print(
        f"{'implementation':26}{'abstains':>9}{'right at 0.5':>13}{'largest diff.':>15}{'µs/vote':>9}{'speed':>7}"
    )
    for name, run in runs.items():
        before = time.process_time()
        found = run()
        seconds[name] = time.process_time() - before
        reference = reference or found
        difference = float((found.radius - reference.radius).abs().max())
        abstains = int((found.label == ABSTAIN).sum())
        right = int(is_certified(found, labels, RADIUS).sum())
        per_vote = 1e6 * seconds[name] / (len(images) * (n + N0))
        speed = seconds["the usual loop"] / seconds[name]
        print(f"{name:26}{abstains:9d}{right:13d}{difference:15.4f}{per_vote:9.2f}{speed:7.1f}")
        both = (found.label != ABSTAIN) & (reference.label != ABSTAIN)
        assert torch.equal(found.label[both], reference.label[both]), f"{name} certifies other classes"
    before = time.process_time()
    decision = certify_at(
        model,
        images,
        radius=RADIUS,
        noise_std=NOISE_STD,
        failure_probability=FAILURE_PROBABILITY,
        n0=N0,
        stages=(100, 1_000, n) if n > 1_000 else (100, n),
        generator=torch.Generator().manual_seed(2),
    )
    spent = time.process_time() - before
    print(
        f"one radius only, early decision, noise per image: right at {RADIUS} {int((decision.label == labels).sum())}, "
        f"mean forward passes {float(decision.queries.double().mean()):.0f} of {n + N0}, "
        f"speed {seconds['the usual loop'] / spent:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    n = 1_000 if parser.parse_args().quick else 10_000
    torch.set_num_threads(1)
    digits, split = load_mnist5k(), mnist5k_split()
    images, labels = torch.tensor(digits.images, dtype=torch.float32), torch.tensor(digits.labels)
    validation, truth = images[split.validation][:100], labels[split.validation][:100]
    generator = torch.Generator().manual_seed(0)
    network = mlp([784, 256, 10], generator=generator, dtype=torch.float32)
    network = trained(network, images[split.train], labels[split.train], epochs=20)
    compare("perceptron 784-256-10", network, validation, truth, n)
    cnn = trained(
        small_cnn(generator=generator, dtype=torch.float32),
        images[split.train],
        labels[split.train],
        epochs=2,
    )
    compare("small CNN", cnn, validation[:20], truth[:20], n // 5)


if __name__ == "__main__":
    main()
