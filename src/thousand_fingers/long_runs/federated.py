"""Chapter 6's long runs: learning curves of federations [McMahan2017], and searches for what a gradient hides.

The searches are those of [Zhu2019] and [Geiping2020], each held against the image of a client whose gradient
was not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.federated import federated_averaging, iid_partition, shard_partition
from thousand_fingers.gradient_leakage import (
    clip_and_noise,
    cosine_matching,
    deep_leakage,
    dlg_network,
    match_images,
    psnr,
    shared_gradient,
)
from thousand_fingers.models import mlp, predict_logits, small_cnn
from thousand_fingers.validation import choice, integer


def learning_curve(
    part: int,
    *,
    partitions: Sequence[str],
    epochs: Sequence[int],
    batch_sizes: Sequence[int],
    learning_rates: Sequence[Sequence[Sequence[float]]],
    seeds: Sequence[int],
    n_clients: int,
    share: float,
    hidden_units: int,
    rounds: int,
    validation_size: int,
) -> dict[str, NDArray[Any]]:
    """Train one federation on the handwritten digits and return its accuracy round by round.

    The parts are all combinations of partition, way of training, learning rate and seed, the last varying
    fastest.

    Parameters
    ----------
    part : int
        Which combination.
    partitions : sequence of str
        Of ``"iid"`` and ``"shards"``.
    epochs, batch_sizes : sequence of int
        One entry for each way of training; a batch of 0 examples means all that a client has.
    learning_rates : sequence of sequence of sequence of float
        For each partition and each way of training the steps that are tried, equally many everywhere.
    seeds : sequence of int
        A seed decides the partition, the start, the choice of clients and their orders.
    n_clients, share, rounds
        As in :func:`thousand_fingers.federated.federated_averaging`.
    hidden_units : int
        Of the network.
    validation_size : int
        Of the 4,000 images outside the test set, as in :func:`thousand_fingers.datasets.mnist5k_split`.

    Returns
    -------
    dict of str to ndarray
        ``validation`` and ``test``, right answers after each round; shape (rounds,).

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> curve = learning_curve(0, partitions=["iid"], epochs=[1], batch_sizes=[0], learning_rates=[[[0.5]]],
    ...     seeds=[0], n_clients=100, share=0.1, hidden_units=4, rounds=2, validation_size=400)
    >>> curve["test"].shape
    (2,)
    """
    ways = len(epochs)
    shape = (len(partitions), ways, len(learning_rates[0][0]), len(seeds))
    partition, way, rate, which = (int(i) for i in np.unravel_index(part, shape))
    seed = seeds[which]
    choice("partitions", partitions[partition], ("iid", "shards"))
    digits, split = load_mnist5k(), mnist5k_split(validation_size=validation_size)
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    rng = np.random.default_rng(seed)
    rows = (
        iid_partition(split.train.size, n_clients, rng)
        if partitions[partition] == "iid"
        else shard_partition(digits.labels[split.train], n_clients, rng)
    )
    held_out = {
        name: (images[i], labels[i]) for name, i in (("validation", split.validation), ("test", split.test))
    }
    right: dict[str, list[int]] = {name: [] for name in held_out}

    def evaluate(model: nn.Module) -> float:
        for name, (shown, truth) in held_out.items():
            right[name].append(int((predict_logits(model, shown).argmax(1) == truth).sum()))
        return right["validation"][-1]

    federated_averaging(
        mlp([784, hidden_units, 10], generator=torch.Generator().manual_seed(seed)),
        images[split.train],
        labels[split.train],
        rows,
        rounds=rounds,
        share=share,
        epochs=epochs[way],
        batch_size=batch_sizes[way] or None,
        learning_rate=learning_rates[partition][way][rate],
        rng=rng,
        evaluate=evaluate,
    )
    return {name: np.array(counts) for name, counts in right.items()}


def deep_search(
    part: int, *, restarts: int, good_enough: float, validation_size: int
) -> dict[str, NDArray[Any]]:
    """Search for one validation image, label unknown, from its gradient in the network of [Zhu2019].

    Parameters
    ----------
    part : int
        Which image; also the seed of the network and of the starts.
    restarts, good_enough
        As in :func:`thousand_fingers.gradient_leakage.deep_leakage`.
    validation_size : int
        As in :func:`thousand_fingers.datasets.mnist5k_split`.

    Returns
    -------
    dict of str to ndarray
        ``picture``, grey levels 0 to 255 of what was found, shape (28, 28); ``classes``, the percentage that
        it gives to each class; ``psnr`` to the image and ``other`` to the next client's, in decibels.

    Examples
    --------
    >>> found = deep_search(0, restarts=1, good_enough=1.0, validation_size=400)
    >>> found["picture"].shape, found["classes"].shape
    ((28, 28), (10,))
    """
    part = integer("part", part, at_least=0)
    images, labels = _held(validation_size)
    network = dlg_network(generator=torch.Generator().manual_seed(part))
    gradient = shared_gradient(network, images[part : part + 1], labels[part : part + 1])
    found = deep_leakage(
        network,
        gradient,
        shape=(1, 28, 28),
        n_classes=10,
        generator=torch.Generator().manual_seed(part),
        restarts=restarts,
        good_enough=good_enough,
    )
    own, other = (float(psnr(found.images, images[i : i + 1])) for i in (part, part + 1))
    return {
        "picture": _grey(found.images[0]),
        "classes": 100 * found.labels[0].numpy(),
        "psnr": np.array(own),
        "other": np.array(other),
    }


def direction_search(
    part: int, *, batch: int, steps: int, noise_multipliers: Sequence[float], validation_size: int
) -> dict[str, NDArray[Any]]:
    """Search for a batch of validation images of different digits from one gradient of a ReLU network.

    Parameters
    ----------
    part : int
        Which batch: the digits ``part``, ``part + 1``, … modulo ten, of each its validation image number
        ``part``, so that no image occurs twice. Also the seed of the network, of the noise and of the start.
    batch : int
        Images of a batch, at most ten.
    steps : int
        As in :func:`thousand_fingers.gradient_leakage.cosine_matching`; labels are known.
    noise_multipliers : sequence of float
        z of each search, after clipping the gradient to 1; 0 leaves the direction as it is.
    validation_size : int
        As in :func:`thousand_fingers.datasets.mnist5k_split`.

    Returns
    -------
    dict of str to ndarray
        ``held`` and ``pictures``, grey levels 0 to 255 of shapes (batch, 28, 28) and (noise multipliers, batch,
        28, 28); ``psnr`` of shape (noise multipliers, batch), in decibels; and ``other``, what the result of
        the first search reaches against the batch of the next part, matched in the same way.

    Examples
    --------
    >>> found = direction_search(0, batch=2, steps=2, noise_multipliers=[0.0], validation_size=400)
    >>> found["psnr"].shape, found["pictures"].shape
    ((1, 2), (1, 2, 28, 28))
    """
    part = integer("part", part, at_least=0)
    images, labels = _held(validation_size)
    own, stranger = (
        _different_digits(labels, p, integer("batch", batch, at_least=1, at_most=10))
        for p in (part, part + 1)
    )
    network = small_cnn(generator=torch.Generator().manual_seed(part))
    clean = shared_gradient(network, images[own], labels[own])
    results = []
    for noise_multiplier in noise_multipliers:
        sent = clip_and_noise(
            clean,
            max_grad_norm=1.0,
            noise_multiplier=noise_multiplier,
            generator=torch.Generator().manual_seed(part),
        )
        results.append(
            cosine_matching(
                network,
                sent,
                shape=(batch, 28, 28),
                labels=labels[own],
                generator=torch.Generator().manual_seed(part),
                steps=steps,
            ).images
        )
    matched = [match_images(found, images[own]) for found in results]
    return {
        "held": _grey(images[own]),
        "pictures": np.stack([_grey(found) for found in matched]),
        "psnr": np.stack([psnr(found, images[own]).numpy() for found in matched]),
        "other": psnr(match_images(results[0], images[stranger]), images[stranger]).numpy(),
    }


def _held(validation_size: int) -> tuple[Tensor, Tensor]:
    """Return the validation images and their labels."""
    digits, split = load_mnist5k(), mnist5k_split(validation_size=validation_size)
    rows = split.validation
    return torch.from_numpy(digits.images[rows]), torch.from_numpy(digits.labels[rows])


def _different_digits(labels: Tensor, part: int, batch: int) -> NDArray[np.int64]:
    """Return for each of some digits the position of its image number ``part``."""
    truth = labels.numpy()
    return np.array([np.flatnonzero(truth == (part + i) % 10)[part] for i in range(batch)])


def _grey(images: Tensor) -> NDArray[np.uint8]:
    return (255 * images.clamp(0, 1)).round().to(torch.uint8).numpy()
