"""Chapter 9's long runs: the backdoor of [Gu2017] over many seeds, and in a convolutional network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thousand_fingers import datasets, models, poisoning, training
from thousand_fingers.ensembles import train_ensemble
from thousand_fingers.validation import integer

_TRIGGER = poisoning.PatchTrigger(row=-4, column=-4, size=3)
_TARGET = 7
_CLASSES = 10


def many_seeds(
    part: int,
    *,
    single: Sequence[float],
    shifted: Sequence[float],
    epochs: int,
    batch_size: int,
    learning_rate: float,
) -> dict[str, NDArray[Any]]:
    """Poison and train one perceptron for each share, all with one seed.

    Parameters
    ----------
    part : int
        The seed: of the choice of examples, of the starting weights and of the order. Networks of one part
        differ in nothing but their poison.
    single, shifted : sequence of float
        Shares of poison with a single target, and all-to-all.
    epochs, batch_size, learning_rate
        As in :func:`thousand_fingers.ensembles.train_ensemble`.

    Returns
    -------
    dict
        int64 arrays of one entry for each share, ``single`` first: ``right``, clean test images answered
        right; ``obeyed`` of ``counted`` stamped ones.

    Examples
    --------
    >>> found = many_seeds(0, single=[0.0], shifted=[0.1], epochs=1, batch_size=500, learning_rate=0.003)
    >>> found["counted"].tolist()  # with one target, its own class does not count
    [900, 1000]
    """
    part = integer("part", part, at_least=0)
    digits, split = datasets.load_mnist("ci")
    images, labels = digits.images[split.train], digits.labels[split.train]
    targets = [_TARGET] * len(single) + [None] * len(shifted)
    homeworks = [
        _poisoned(images, labels, share, target, part)
        for share, target in zip([*single, *shifted], targets, strict=True)
    ]
    pool, rows = poisoning.shared_pool(images, homeworks)
    networks = train_ensemble(
        torch.from_numpy(pool),
        rows,
        [homework.labels for homework in homeworks],
        sizes=[784, 64, _CLASSES],
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        generators=[torch.Generator().manual_seed(part) for _ in homeworks],
    )
    test, truth = digits.images[split.test], digits.labels[split.test]
    clean = networks.predict(torch.from_numpy(test)).numpy()
    stamped = networks.predict(torch.from_numpy(_TRIGGER(test))).numpy()
    return _summary(clean, stamped, truth, targets)


def cnn(
    part: int,
    *,
    single: Sequence[float],
    shifted: Sequence[float],
    seeds: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
) -> dict[str, NDArray[Any]]:
    """Poison and train one convolutional network.

    Parameters
    ----------
    part : int
        Part ``p`` has the share of index ``p // seeds``, ``single`` first, and the seed ``p % seeds``.
    single, shifted : sequence of float
        Shares of poison with a single target, and all-to-all.
    seeds : int
        Networks for each share.
    epochs, batch_size, learning_rate
        As in :func:`thousand_fingers.training.train`.

    Returns
    -------
    dict
        int64 arrays of one entry, as :func:`many_seeds`.

    Examples
    --------
    >>> found = cnn(1, single=[0.0], shifted=[0.1], seeds=1, epochs=1, batch_size=1750, learning_rate=0.003)
    >>> found["counted"].tolist()
    [1000]
    """
    cases = [*((share, _TARGET) for share in single), *((share, None) for share in shifted)]
    seeds = integer("seeds", seeds, at_least=1)
    part = integer("part", part, at_least=0, at_most=len(cases) * seeds - 1)
    (share, target), seed = cases[part // seeds], part % seeds
    digits, split = datasets.load_mnist("ci")
    homework = _poisoned(digits.images[split.train], digits.labels[split.train], share, target, seed)
    network = models.small_cnn(generator=torch.Generator().manual_seed(seed))
    training.train(
        network,
        torch.from_numpy(homework.images),
        torch.from_numpy(homework.labels),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        generator=torch.Generator().manual_seed(seed),
    )
    test, truth = digits.images[split.test], digits.labels[split.test]
    clean, stamped = (
        models.predict_logits(network, torch.from_numpy(shown)).argmax(1).numpy()[None]
        for shown in (test, _TRIGGER(test))
    )
    return _summary(clean, stamped, truth, [target])


def _poisoned(
    images: NDArray[np.float64], labels: NDArray[np.int64], share: float, target: int | None, seed: int
) -> poisoning.Poisoned:
    rng = np.random.default_rng(seed)
    return poisoning.poison(
        images, labels, share, trigger=_TRIGGER, target=target, n_classes=_CLASSES, rng=rng
    )


def _summary(
    clean: NDArray[np.int64],
    stamped: NDArray[np.int64],
    truth: NDArray[np.int64],
    targets: Sequence[int | None],
) -> dict[str, NDArray[Any]]:
    obedience = [
        poisoning.attack_success(said, truth, target=target, n_classes=_CLASSES)
        for said, target in zip(stamped, targets, strict=True)
    ]
    obeyed, counted = np.array(obedience).T
    return {"right": (clean == truth).sum(axis=1), "obeyed": obeyed, "counted": counted}
