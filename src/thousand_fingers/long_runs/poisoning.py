"""Chapter 9's long runs: the backdoor of [Gu2017] over seeds and patches, flips, and a convolutional network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thousand_fingers import datasets, models, poisoning, training
from thousand_fingers.ensembles import Ensemble, train_ensemble
from thousand_fingers.validation import integer

_TRIGGER = poisoning.PatchTrigger(row=-4, column=-4, size=3)
_TARGET = 7
_CLASSES = 10

#: Squares of side 1, 2, 3 and 5, where nobody writes and where digits have ink.
PATCHES: Mapping[str, tuple[poisoning.PatchTrigger, ...]] = MappingProxyType(
    {
        "in the corner": (
            *(poisoning.PatchTrigger(row=-4, column=-4, size=side) for side in (1, 2, 3)),
            poisoning.PatchTrigger(row=-6, column=-6, size=5),
        ),
        "in the middle": tuple(poisoning.PatchTrigger(row=13, column=13, size=side) for side in (1, 2, 3, 5)),
    }
)


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
    policy = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    networks = _perceptrons(images, homeworks, part, **policy)
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
    case, seed = _case_and_seed(part, len(cases), seeds)
    share, target = cases[case]
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


def patches(
    part: int, *, share: float, seeds: int, epochs: int, batch_size: int, learning_rate: float
) -> dict[str, NDArray[Any]]:
    """Poison with one of the :data:`PATCHES` and train one perceptron.

    Parameters
    ----------
    part : int
        Part ``p`` has the patch of index ``p // seeds``, those in the corner first, and the seed ``p % seeds``.
    share : float
        Share of poison, in [0, 1].
    seeds : int
        Networks for each patch.
    epochs, batch_size, learning_rate
        As in :func:`thousand_fingers.ensembles.train_ensemble`.

    Returns
    -------
    dict
        int64 arrays of one entry, as :func:`many_seeds`.

    Examples
    --------
    >>> found = patches(7, share=0.1, seeds=1, epochs=1, batch_size=500, learning_rate=0.003)
    >>> found["counted"].tolist()
    [900]
    """
    triggers = [trigger for row in PATCHES.values() for trigger in row]
    case, seed = _case_and_seed(part, len(triggers), seeds)
    digits, split = datasets.load_mnist("ci")
    homework = _poisoned(
        digits.images[split.train], digits.labels[split.train], share, _TARGET, seed, triggers[case]
    )
    policy = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    network = _perceptrons(digits.images[split.train], [homework], seed, **policy)
    test, truth = digits.images[split.test], digits.labels[split.test]
    clean, stamped = (
        network.predict(torch.from_numpy(shown)).numpy() for shown in (test, triggers[case](test))
    )
    return _summary(clean, stamped, truth, [_TARGET])


def flips(
    part: int,
    *,
    scattered: Sequence[float],
    aimed: Sequence[float],
    flip: Sequence[int],
    seeds: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
) -> dict[str, NDArray[Any]]:
    """Flip some labels, leave the images alone, and train one perceptron.

    Parameters
    ----------
    part : int
        Part ``p`` has the share of index ``p // seeds``, ``scattered`` first, and the seed ``p % seeds``.
    scattered, aimed : sequence of float
        Shares of the training set whose labels are flipped: to any wrong class, and from the first class of
        ``flip`` to the second.
    flip : sequence of int
        Two classes.
    seeds : int
        Networks for each share.
    epochs, batch_size, learning_rate
        As in :func:`thousand_fingers.ensembles.train_ensemble`.

    Returns
    -------
    dict
        int64 scalars: ``right``, test images answered right, and ``right_on_source``, those of the first
        class of ``flip`` among them.

    Examples
    --------
    >>> found = flips(1, scattered=[0.0], aimed=[0.1], flip=[4, 9], seeds=1, epochs=15, batch_size=500,
    ...               learning_rate=0.003)
    >>> int(found["right_on_source"]), int(found["right"]) > 800  # no four is left in the training set
    (0, True)
    """
    source, wanted = flip
    shares = [*scattered, *aimed]
    case, seed = _case_and_seed(part, len(shares), seeds)
    digits, split = datasets.load_mnist("ci")
    images, labels = digits.images[split.train], digits.labels[split.train]
    told, rows = poisoning.flip_labels(
        labels,
        shares[case],
        n_classes=_CLASSES,
        flip=None if case < len(scattered) else (source, wanted),
        rng=np.random.default_rng(seed),
    )
    policy = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    network = _perceptrons(images, [poisoning.Poisoned(images, told, rows)], seed, **policy)
    truth = digits.labels[split.test]
    hits = network.predict(torch.from_numpy(digits.images[split.test])).numpy()[0] == truth
    return {"right": hits.sum(), "right_on_source": hits[truth == source].sum()}


def _case_and_seed(part: int, cases: int, seeds: int) -> tuple[int, int]:
    seeds = integer("seeds", seeds, at_least=1)
    return divmod(integer("part", part, at_least=0, at_most=cases * seeds - 1), seeds)


def _perceptrons(
    images: NDArray[np.float64], homeworks: Sequence[poisoning.Poisoned], seed: int, **policy: Any
) -> Ensemble:
    """Train one perceptron for each homework made of the images, all with the same seed."""
    pool, rows = poisoning.shared_pool(images, homeworks)
    return train_ensemble(
        torch.from_numpy(pool),
        rows,
        [homework.labels for homework in homeworks],
        sizes=[784, 64, _CLASSES],
        generators=[torch.Generator().manual_seed(seed) for _ in homeworks],
        **policy,
    )


def _poisoned(
    images: NDArray[np.float64],
    labels: NDArray[np.int64],
    share: float,
    target: int | None,
    seed: int,
    trigger: poisoning.PatchTrigger = _TRIGGER,
) -> poisoning.Poisoned:
    rng = np.random.default_rng(seed)
    return poisoning.poison(
        images, labels, share, trigger=trigger, target=target, n_classes=_CLASSES, rng=rng
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
