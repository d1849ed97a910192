"""Chapter 8's long run: randomized smoothing of convolutional networks [Cohen2019].

``08_cnn_weights`` holds one network for each density of noise, ``08_cnn_votes`` what they say about noisy
copies of test images. The networks are trained in float64 and asked in float32, which is seven times as
fast; the noise is drawn in float64 in both cases, because only that is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from thousand_fingers import datasets, models, smoothing, training
from thousand_fingers.book.artefacts import load_artefact
from thousand_fingers.validation import integer


def cnn_weights(
    part: int, *, noise_stds: Sequence[float], epochs: int, batch_size: int, learning_rate: float
) -> dict[str, NDArray[Any]]:
    """Train one convolutional network under Gaussian noise that is drawn anew for every batch.

    Parameters
    ----------
    part : int
        Which of the densities of noise.
    noise_stds : sequence of float
        The densities, in units of the pixels' range.
    epochs, batch_size, learning_rate
        As in :func:`thousand_fingers.training.train`.

    Returns
    -------
    dict
        ``weights``: float32, all parameters in one row; ``validation``: accuracy of the network on noisy
        validation images, one noisy copy of each.

    Examples
    --------
    >>> found = cnn_weights(0, noise_stds=[0.5], epochs=1, batch_size=1750, learning_rate=0.003)
    >>> found["weights"].shape, found["weights"].dtype
    ((166406,), dtype('float32'))
    """
    noise_std = noise_stds[integer("part", part, at_least=0, at_most=len(noise_stds) - 1)]
    digits, split = datasets.load_mnist("ci")
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    network = models.small_cnn(generator=torch.Generator().manual_seed(0))
    noise = torch.Generator().manual_seed(1)

    def objective(model: nn.Module, batch: Tensor, batch_labels: Tensor) -> Tensor:
        return training.cross_entropy(model, _noisy(batch, noise_std, noise), batch_labels)

    training.train(
        network,
        images[split.train],
        labels[split.train],
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        generator=torch.Generator().manual_seed(2),
        objective=objective,
    )
    noisy = _noisy(images[split.validation], noise_std, torch.Generator().manual_seed(3))
    right = models.predict_logits(network, noisy).argmax(1) == labels[split.validation]
    weights = parameters_to_vector(network.parameters()).detach().float().numpy()
    return {"weights": weights, "validation": np.array(float(right.double().mean()))}


def cnn_votes(
    part: int, *, noise_stds: Sequence[float], images_per_part: int, n0: int, n: int
) -> dict[str, NDArray[Any]]:
    """Count the votes of the networks of ``08_cnn_weights`` around a few test images.

    The two counts are those that :func:`thousand_fingers.smoothing.certify` draws: a small one to select a
    class, and a fresh one to bound its probability.

    Parameters
    ----------
    part : int
        Part p looks at test images ``p * images_per_part`` and the following ones.
    noise_stds : sequence of float
        The densities of noise, in the order of the networks.
    images_per_part : int
        Test images in each part.
    n0, n : int
        Draws that select, and draws that count.

    Returns
    -------
    dict
        ``selecting`` and ``counting``: int64, shape (densities, images_per_part, 10).

    Examples
    --------
    >>> counts = cnn_votes(0, noise_stds=[0.25, 0.5, 1.0], images_per_part=2, n0=5, n=10)
    >>> counts["counting"].sum(axis=2).tolist()
    [[10, 10], [10, 10], [10, 10]]
    """
    images_per_part = integer("images_per_part", images_per_part, at_least=1)
    digits, split = datasets.load_mnist("ci")
    last_part = split.test.size // images_per_part - 1
    start = images_per_part * integer("part", part, at_least=0, at_most=last_part)
    images = torch.from_numpy(digits.images[split.test[start : start + images_per_part]])
    generator = torch.Generator().manual_seed(part)
    counts: dict[str, list[NDArray[np.int64]]] = {"selecting": [], "counting": []}
    for noise_std, row in zip(noise_stds, load_artefact("08_cnn_weights")["weights"], strict=True):
        network = models.small_cnn(generator=torch.Generator(), dtype=torch.float32).eval()
        vector_to_parameters(torch.from_numpy(row), network.parameters())

        def ask(noisy: Tensor, network: nn.Module = network) -> Tensor:
            return network(noisy.float())

        for name, size in (("selecting", n0), ("counting", n)):
            votes = smoothing.sample_under_noise(
                ask, images, noise_std=noise_std, n=size, generator=generator
            )
            counts[name].append(votes.numpy())
    return {name: np.stack(votes) for name, votes in counts.items()}


def _noisy(images: Tensor, noise_std: float, generator: torch.Generator) -> Tensor:
    return images + noise_std * torch.randn(images.shape, generator=generator, dtype=images.dtype)
