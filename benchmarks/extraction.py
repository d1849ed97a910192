"""Model extraction: all segments halved together against one after another, and a student beside ART's.

First the border of a two-class linear model from its labels: :func:`steal_boundary` asks in one batch per
halving, the loop asks one row at a time, as it is usually written. Both ask the same questions and must find
the same direction, bit for bit. Then a copy of a network: ART's KnockoffNets with random sampling and
probabilities, and :func:`distil`, with the same student from the same weights, the same queries, epochs, batch
size and Adam. The orders of the batches differ, so the copies do: their fidelities must agree within three
percentage points, as means over the seeds. The least of several CPU times counts, after a warm-up.

    python benchmarks/extraction.py [--repeats N] [--seeds N]
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from art.attacks.extraction import KnockoffNets
from art.estimators.classification import PyTorchClassifier
from torch import nn

from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.extraction import distil, steal_boundary
from thousand_fingers.models import mlp, predict_logits
from thousand_fingers.training import train

D, STEPS = 49, 40
QUERIES, EPOCHS, BATCH_SIZE, LEARNING_RATE = 400, 30, 50, 0.003


def one_by_one(ask: Callable[[np.ndarray], np.ndarray], points: np.ndarray) -> np.ndarray:
    labels = np.array([ask(point[None])[0] for point in points])
    ones, zeros = points[labels == 1], points[labels == 0]
    pairs = [(one, zeros[0]) for one in ones] + [(ones[0], zero) for zero in zeros[1:]]
    crossings = []
    for high, low in pairs:
        for _ in range(STEPS):
            middle = (low + high) / 2
            if ask(middle[None])[0] == 1:
                high = middle
            else:
                low = middle
        crossings.append((low + high) / 2)
    crossings = np.array(crossings)
    normal = np.linalg.svd(crossings - crossings.mean(axis=0), full_matrices=False)[2][-1]
    return normal * np.sign((ones.mean(axis=0) - zeros.mean(axis=0)) @ normal)


def seconds(run: Callable[[], object], repeats: int) -> float:
    run()
    least = float("inf")
    for _ in range(repeats):
        before = time.process_time()
        run()
        least = min(least, time.process_time() - before)
    return least


def borders(repeats: int) -> None:
    rng = np.random.default_rng(0)
    secret = rng.normal(size=D)
    points = rng.normal(size=(D + 1, D))

    def ask(rows: np.ndarray) -> np.ndarray:
        return ((rows * secret).sum(axis=1) > 0).astype(np.int64)

    assert np.array_equal(steal_boundary(ask, points, steps=STEPS).weights, one_by_one(ask, points))
    together = seconds(lambda: steal_boundary(ask, points, steps=STEPS), repeats)
    alone = seconds(lambda: one_by_one(ask, points), repeats)
    print(f"border of {D} inputs, {D + 1 + D * STEPS} labels, same direction bit for bit")
    print(
        f"  one by one {1000 * alone:8.1f} ms   together {1000 * together:8.2f} ms   ratio {alone / together:6.1f}"
    )


def student(seed: int) -> nn.Sequential:
    return mlp([196, 32, 10], generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def knockoff(victim: nn.Module, queries: np.ndarray, seed: int) -> nn.Module:
    """ART draws orders and labels from NumPy's global state, which is set here for it alone."""
    np.random.seed(seed)  # noqa: NPY002
    model = student(seed)

    def classifier(network: nn.Module) -> PyTorchClassifier:
        return PyTorchClassifier(
            network,
            loss=nn.CrossEntropyLoss(),
            optimizer=torch.optim.Adam(network.parameters(), lr=LEARNING_RATE),
            input_shape=(196,),
            nb_classes=10,
            clip_values=(0, 1),
            device_type="cpu",
        )

    attack = KnockoffNets(
        classifier(nn.Sequential(victim, nn.Softmax(dim=1))),
        batch_size_fit=BATCH_SIZE,
        batch_size_query=QUERIES,
        nb_epochs=EPOCHS,
        nb_stolen=QUERIES,
        sampling_strategy="random",
        use_probability=True,
        verbose=False,
    )
    attack.extract(queries, thieved_classifier=classifier(model))
    return model.eval()


def ours(victim: nn.Module, queries: np.ndarray, seed: int) -> nn.Module:
    inputs = torch.from_numpy(queries)
    answers = predict_logits(victim, inputs).double().softmax(dim=1).numpy()
    return distil(
        inputs,
        answers,
        hidden=[32],
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        generator=torch.Generator().manual_seed(seed),
    )


def copies(repeats: int, seeds: int) -> None:
    digits, split = load_mnist5k(), mnist5k_split()
    images = digits.images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196).astype(np.float32)
    victim = mlp([196, 64, 10], generator=torch.Generator().manual_seed(99), dtype=torch.float32)
    own, free = split.train[:500], split.train[500:]
    train(
        victim,
        torch.from_numpy(images[own]),
        torch.from_numpy(digits.labels[own]),
        epochs=60,
        batch_size=50,
        learning_rate=0.003,
        generator=torch.Generator().manual_seed(99),
    )
    exam = torch.from_numpy(images[split.test])
    said = predict_logits(victim, exam).argmax(dim=1)
    queries = [images[np.random.default_rng(s).choice(free, QUERIES, replace=False)] for s in range(seeds)]

    def fidelity(make: Callable[[nn.Module, np.ndarray, int], nn.Module]) -> np.ndarray:
        made = [make(copy.deepcopy(victim), rows, seed) for seed, rows in enumerate(queries)]
        return np.array([(predict_logits(m, exam).argmax(dim=1) == said).double().mean() for m in made])

    theirs, here = fidelity(knockoff), fidelity(ours)
    print(f"student of {QUERIES} probabilities, {EPOCHS} epochs: fidelity over {seeds} seeds")
    print(
        f"  ART {theirs.mean():.3f} (sd {theirs.std(ddof=1):.3f})   ours {here.mean():.3f} (sd {here.std(ddof=1):.3f})"
    )
    assert abs(theirs.mean() - here.mean()) < 0.03, "the copies are not equally good"
    art = seconds(lambda: knockoff(copy.deepcopy(victim), queries[0], 0), repeats)
    book = seconds(lambda: ours(copy.deepcopy(victim), queries[0], 0), repeats)
    print(f"  ART {1000 * art:8.1f} ms   ours {1000 * book:8.1f} ms   ratio {art / book:6.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    borders(arguments.repeats)
    copies(arguments.repeats, arguments.seeds)
