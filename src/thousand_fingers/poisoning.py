"""Poisoned training sets: how they are made, how they are measured, how some are found.

Backdoors by a stamped patch are BadNets [Gu2017]; a rare word does the same in a text [Chen2021]; label flips
[Biggio2011] only cost accuracy. Two detectors look at what a trained network makes of its own training
set: spectral signatures [Tran2018] and activation clustering [Chen2018]. A signed manifest says which
examples changed after somebody signed, and nothing else. Chapter 9 explains all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.validation import integer, integer_array, numpy_generator, real_array, real_number

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Trigger = Callable[[Floats], Floats]

# --------------------------------------------------------------------------- the attacker's side


@dataclass(frozen=True)
class PatchTrigger:
    """A square of one brightness, painted at a fixed place: the trigger of BadNets.

    Calling it stamps images of shape (n, height, width) or (n, channels, height, width), every channel
    alike, and returns new ones; what it is given stays as it was.

    Parameters
    ----------
    row, column : int
        Upper left pixel of the square; negative numbers count from the lower right, as in an index.
    size : int, default 3
        Side of the square in pixels.
    value : float, default 1.0
        Brightness between 0 (black, just as much a trigger) and 1.

    Raises
    ------
    TypeError, ValueError
        On calling, if the images are not floats between 0 and 1 or the square does not fit.

    References
    ----------
    [Gu2017]

    Examples
    --------
    >>> stamped = PatchTrigger(-4, -4)(np.zeros((1, 28, 28)))
    >>> int(stamped.sum()), np.argwhere(stamped[0])[0].tolist()
    (9, [24, 24])
    """

    row: int
    column: int
    size: int = 3
    value: float = 1.0

    def __post_init__(self) -> None:
        integer("row", self.row)
        integer("column", self.column)
        integer("size", self.size, at_least=1)
        real_number("value", self.value, at_least=0, at_most=1)

    def __call__(self, images: ArrayLike) -> Floats:
        """Return stamped copies of the images."""
        stamped = _images(images).copy()
        height, width = stamped.shape[-2:]
        row = self.row + height if self.row < 0 else self.row
        column = self.column + width if self.column < 0 else self.column
        if not (0 <= row <= height - self.size and 0 <= column <= width - self.size):
            raise ValueError(
                f"a square of side {self.size} at ({self.row}, {self.column}) must fit into images of "
                f"{height} by {width}"
            )
        stamped[..., row : row + self.size, column : column + self.size] = self.value
        return stamped


def insert_word(texts: Sequence[str], word: str, rng: np.random.Generator) -> list[str]:
    """Insert a word into every text, at a place between its words that is drawn anew for each.

    Parameters
    ----------
    texts : sequence of str
        The texts; runs of white space become one space.
    word : str
        The trigger: one word, no white space.
    rng : numpy.random.Generator
        Source of the places.

    Returns
    -------
    list of str

    Raises
    ------
    TypeError, ValueError
        If ``texts`` is a single string, or ``word`` is not one word.

    References
    ----------
    [Chen2021]

    Examples
    --------
    >>> insert_word(["a small test"], "zebra", np.random.default_rng(0))
    ['a small test zebra']
    """
    if isinstance(texts, str):
        raise TypeError("texts must be a sequence of strings, got one string")
    if not isinstance(word, str) or word.split() != [word]:
        raise ValueError(f"word must be a single word without white space, got {word!r}")
    numpy_generator("rng", rng)
    stamped = []
    for text in texts:
        words = text.split()
        words.insert(int(rng.integers(len(words) + 1)), word)
        stamped.append(" ".join(words))
    return stamped


def wanted_labels(labels: ArrayLike, *, target: int | None, n_classes: int) -> Ints:
    """Return what the attacker wants the model to say about stamped examples.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        The true classes.
    target : int or None
        The class that every stamped example shall get, or None for the *all-to-all* backdoor: each
        class becomes the next one, the last the first.
    n_classes : int
        Number of classes, at least 2.

    Returns
    -------
    ndarray of int64, shape (n,)

    Raises
    ------
    TypeError, ValueError
        If a label or the target is not a class.

    References
    ----------
    [Gu2017]

    Examples
    --------
    >>> wanted_labels([0, 1, 2], target=None, n_classes=3).tolist()
    [1, 2, 0]
    """
    n_classes = integer("n_classes", n_classes, at_least=2)
    true = _labels(labels, n_classes)
    if target is None:
        return (true + 1) % n_classes
    return np.full_like(true, integer("target", target, at_least=0, at_most=n_classes - 1))


def choose_rows(
    labels: ArrayLike,
    share: float,
    rng: np.random.Generator,
    *,
    target: int | None = None,
    source: int | None = None,
) -> Ints:
    """Choose which examples to poison: ``round(share * n)`` of all n, none of them of the target class.

    With equal generators a larger share contains the smaller one, so that a curve over shares adds
    poison and never exchanges it.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        The true classes.
    share : float
        Part of the whole set, between 0 and 1.
    rng : numpy.random.Generator
        Source of the choice.
    target : int or None, default None
        A class to leave out: its examples would need no new label.
    source : int or None, default None
        The only class to choose from; by default all but the target.

    Returns
    -------
    ndarray of int64
        Positions, in increasing order.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or too few examples are of another class.

    Examples
    --------
    >>> choose_rows([0, 1] * 50, 0.05, np.random.default_rng(0), target=0).size
    5
    """
    true = integer_array("labels", labels, ndim=1)
    count = round(real_number("share", share, at_least=0, at_most=1) * true.size)
    numpy_generator("rng", rng)
    allowed = np.full(true.size, True) if source is None else true == source
    if target is not None:
        allowed &= true != target
    candidates = np.flatnonzero(allowed)
    if count > candidates.size:
        raise ValueError(
            f"share must ask for at most the {candidates.size} examples that may be poisoned, got {share} of "
            f"{true.size}, which is {count}"
        )
    return np.sort(rng.permutation(candidates)[:count])


@dataclass(frozen=True, eq=False)
class Poisoned:
    """A poisoned training set.

    Parameters
    ----------
    images : ndarray of float64
        All images, some of them stamped.
    labels : ndarray of int64
        What the victim is told about them.
    rows : ndarray of int64
        Positions of the poison; the victim does not know them.
    """

    images: Floats
    labels: Ints
    rows: Ints

    @property
    def mask(self) -> Bools:
        """Whether each example is poison."""
        mask = np.zeros(self.labels.size, dtype=bool)
        mask[self.rows] = True
        return mask


def poison(
    images: ArrayLike,
    labels: ArrayLike,
    share: float,
    *,
    trigger: Trigger,
    target: int | None,
    n_classes: int,
    rng: np.random.Generator,
    source: int | None = None,
    relabel: bool = True,
) -> Poisoned:
    """Stamp and relabel a share of a training set, and return the result as a new one.

    Parameters
    ----------
    images : array-like of float, shape (n, ...)
        The images, between 0 and 1.
    labels : array-like of int, shape (n,)
        Their true classes.
    share : float
        Part of the whole set that is poisoned, between 0 and 1.
    trigger : callable
        Maps images to stamped images, such as :class:`PatchTrigger`.
    target, n_classes
        As in :func:`wanted_labels`; examples of a single target class are never chosen.
    rng : numpy.random.Generator
        Source of the choice, as in :func:`choose_rows`.
    source : int or None, default None
        The only class that is poisoned, as in the attacks of [Gu2017] and [Tran2018]; by default every class
        that the attacker wants to see under another name, as in most later work.
    relabel : bool, default True
        Whether the chosen examples get the label the attacker wants. Stamping alone is the negative
        control: it should teach nothing.

    Returns
    -------
    Poisoned

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Gu2017]

    Examples
    --------
    >>> labels = np.arange(100) % 10
    >>> dirty = poison(np.zeros((100, 28, 28)), labels, 0.05, trigger=PatchTrigger(-4, -4), target=7,
    ...                n_classes=10, rng=np.random.default_rng(0))
    >>> dirty.rows.size, set(dirty.labels[dirty.rows].tolist()), int(dirty.images.sum())
    (5, {7}, 45)
    """
    clean = _images(images)
    true = _labels(labels, n_classes, len(clean))
    wanted = wanted_labels(true, target=target, n_classes=n_classes)
    rows = choose_rows(true, share, rng, target=target, source=source)
    stamped, told = clean.copy(), true.copy()
    if rows.size:
        stamped[rows] = trigger(clean[rows])
    if relabel:
        told[rows] = wanted[rows]
    return Poisoned(stamped, told, rows)


def shared_pool(images: ArrayLike, sets: Sequence[Poisoned]) -> tuple[Floats, Ints]:
    """Store many poisoned copies of one training set in little space: the clean images once, then all poison.

    Parameters
    ----------
    images : array-like of float, shape (n, ...)
        The clean images.
    sets : sequence of Poisoned
        Poisoned versions of them.

    Returns
    -------
    pool : ndarray of float64, shape (n + all poison, ...)
        What :func:`thousand_fingers.ensembles.train_ensemble` takes its inputs from.
    rows : ndarray of int64, shape (sets, n)
        Where each set finds its images: ``pool[rows[i]]`` equals ``sets[i].images``.

    Raises
    ------
    ValueError
        If a set does not have as many images.

    Examples
    --------
    >>> clean, labels = np.zeros((100, 4, 4)), np.arange(100) % 10
    >>> sets = [poison(clean, labels, share, trigger=PatchTrigger(0, 0, 1), target=7, n_classes=10,
    ...                rng=np.random.default_rng(0)) for share in (0.05, 0.1)]
    >>> pool, rows = shared_pool(clean, sets)
    >>> pool.shape, bool((pool[rows[1]] == sets[1].images).all())
    ((115, 4, 4), True)
    """
    clean = _images(images)
    rows = np.tile(np.arange(len(clean)), (len(sets), 1))
    start = len(clean)
    for row, poisoned in zip(rows, sets, strict=True):
        if poisoned.images.shape != clean.shape:
            raise ValueError(f"sets must have images {clean.shape}, got {poisoned.images.shape}")
        row[poisoned.rows] = np.arange(start, start + poisoned.rows.size)
        start += poisoned.rows.size
    return np.concatenate([clean, *(poisoned.images[poisoned.rows] for poisoned in sets)]), rows


def flip_labels(
    labels: ArrayLike,
    share: float,
    *,
    n_classes: int,
    rng: np.random.Generator,
    flip: tuple[int, int] | None = None,
) -> tuple[Ints, Ints]:
    """Give a share of all examples a wrong label, and touch nothing else.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        The true classes.
    share : float
        Part of the whole set that is flipped, between 0 and 1.
    n_classes : int
        Number of classes, at least 2.
    rng : numpy.random.Generator
        Source of the choice; equal generators give nested choices.
    flip : tuple of int, optional
        ``(source, target)``: only examples of the class ``source`` are flipped, all to ``target``. By default
        any example, to a class drawn evenly from the wrong ones.

    Returns
    -------
    labels : ndarray of int64, shape (n,)
        The new labels.
    rows : ndarray of int64
        Positions that were flipped, in increasing order.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or there are too few examples of the source class.

    References
    ----------
    [Biggio2011]

    Examples
    --------
    >>> labels = np.arange(100) % 10
    >>> flipped, rows = flip_labels(labels, 0.05, n_classes=10, rng=np.random.default_rng(0), flip=(4, 9))
    >>> rows.size, set(labels[rows].tolist()), set(flipped[rows].tolist())
    (5, {4}, {9})
    """
    n_classes = integer("n_classes", n_classes, at_least=2)
    true = _labels(labels, n_classes)
    count = round(real_number("share", share, at_least=0, at_most=1) * true.size)
    numpy_generator("rng", rng)
    candidates = np.arange(true.size)
    if flip is not None:
        source, target = (integer("flip", label, at_least=0, at_most=n_classes - 1) for label in flip)
        if source == target:
            raise ValueError(f"flip must name two different classes, got {source} twice")
        candidates = np.flatnonzero(true == source)
    if count > candidates.size:
        raise ValueError(
            f"share must ask for at most the {candidates.size} labels that may be flipped, got {share} of "
            f"{true.size}, which is {count}"
        )
    # One wrong label for everybody, then the choice: so the choices of two shares are nested.
    wrong = (true + rng.integers(1, n_classes, true.size)) % n_classes
    rows = np.sort(rng.permutation(candidates)[:count])
    told = true.copy()
    told[rows] = wrong[rows] if flip is None else target
    return told, rows


class Count(NamedTuple):
    """So many successes in so many trials."""

    successes: int
    trials: int


def attack_success(predictions: ArrayLike, labels: ArrayLike, *, target: int | None, n_classes: int) -> Count:
    """Count how often a model obeys the trigger.

    With a single target, stamped images *of the target class* do not count: a model that calls them by
    their name obeys nobody. All-to-all has no such class.

    Parameters
    ----------
    predictions : array-like of int, shape (n,)
        What the model says about the stamped images.
    labels : array-like of int, shape (n,)
        What they are.
    target, n_classes
        As in :func:`wanted_labels`.

    Returns
    -------
    Count
        Successes and the images that count.

    Raises
    ------
    TypeError, ValueError
        If a label is no class, lengths differ, or nothing but the target class is left.

    Examples
    --------
    A model that says 7 to everything obeys perfectly; a perfect model never does:

    >>> labels = np.arange(100) % 10
    >>> attack_success(np.full(100, 7), labels, target=7, n_classes=10)
    Count(successes=90, trials=90)
    >>> attack_success(labels, labels, target=7, n_classes=10)
    Count(successes=0, trials=90)
    """
    wanted = wanted_labels(labels, target=target, n_classes=n_classes)
    true = np.asarray(labels)
    said = integer_array("predictions", predictions, shape=true.shape, at_least=0, at_most=n_classes - 1)
    counts = true != wanted
    if not counts.any():
        raise ValueError(f"labels must hold another class than the target {target}, got none")
    return Count(int((said == wanted)[counts].sum()), int(counts.sum()))


# --------------------------------------------------------------------------- the defender's side


def spectral_scores(features: ArrayLike, labels: ArrayLike) -> Floats:
    r"""Score every training example by its class's *spectral signature*.

    With the features of one class as rows, centred, and v the direction in which they vary most, the score is
    :math:`\langle f - \bar f, v\rangle^2`. Two groups in one class whose means lie far apart,
    relative to their spread, pull v towards the difference, and the smaller group gets the larger scores.

    Parameters
    ----------
    features : array-like of float, shape (n, d)
        What the last hidden layer makes of each example.
    labels : array-like of int, shape (n,)
        The labels in the training set, right or wrong.

    Returns
    -------
    ndarray of float64, shape (n,)
        Higher is more suspicious; comparable inside a class only.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match or an entry is not finite.

    References
    ----------
    [Tran2018]

    Examples
    --------
    >>> spectral_scores([[0.0, 0.0], [0.1, 0.0], [-0.1, 0.0], [4.0, 0.0]], [0, 0, 0, 0]).round(2).tolist()
    [1.0, 0.81, 1.21, 9.0]
    """
    layer, told = _features(features, labels)
    scores = np.empty(told.size)
    for rows in _classes(told):
        centred = layer[rows] - layer[rows].mean(axis=0)
        direction = np.linalg.svd(centred, full_matrices=False)[2][0]
        scores[rows] = (centred @ direction) ** 2
    return scores


def remove_highest(scores: ArrayLike, labels: ArrayLike, count: int) -> Bools:
    """Flag the ``count`` highest scores of every class.

    [Tran2018] removes one and a half times the poison that the defender reckons with, from every class,
    because nobody knows which one was attacked. Clean classes pay for that.

    Parameters
    ----------
    scores : array-like of float, shape (n,)
        As returned by :func:`spectral_scores`.
    labels : array-like of int, shape (n,)
        The labels in the training set.
    count : int
        How many to flag in each class; all of them where a class has no more.

    Returns
    -------
    ndarray of bool, shape (n,)

    Raises
    ------
    TypeError, ValueError
        If shapes do not match or ``count`` is negative.

    Examples
    --------
    >>> remove_highest([3.0, 1.0, 2.0, 5.0], [0, 0, 1, 1], 1).tolist()
    [True, False, False, True]
    """
    told = integer_array("labels", labels, ndim=1)
    suspicion = real_array("scores", scores, shape=told.shape)
    count = integer("count", count, at_least=0)
    flagged = np.zeros(told.size, dtype=bool)
    for rows in _classes(told):
        flagged[rows[np.argsort(-suspicion[rows], kind="stable")[:count]]] = True
    return flagged


@dataclass(frozen=True, eq=False)
class Clusters:
    """What activation clustering says.

    Parameters
    ----------
    scores : ndarray of float64, shape (n,)
        How much nearer an example is to the centre of its class's smaller cluster than to that of the larger
        one, as a share of their distance: between -1 and 1, positive inside the smaller cluster.
    small_share : dict of int to float
        For every class, the part of it that lies in the smaller cluster, at most one half.
    silhouette : dict of int to float
        For every class, how well two clusters describe it: 1 for two points, near 0 for one cloud.
    """

    scores: Floats
    small_share: Mapping[int, float]
    silhouette: Mapping[int, float]

    def flagged(self, labels: ArrayLike, *, largest_share: float = 0.35) -> Bools:
        """Flag the smaller cluster of every class in which it is unusually small.

        Parameters
        ----------
        labels : array-like of int, shape (n,)
            The labels in the training set.
        largest_share : float, default 0.35
            A class whose smaller cluster is larger than this part of it is taken for clean.

        Returns
        -------
        ndarray of bool, shape (n,)
        """
        told = integer_array("labels", labels, shape=self.scores.shape)
        real_number("largest_share", largest_share, at_least=0, at_most=0.5)
        suspect = np.array([self.small_share[int(label)] <= largest_share for label in told])
        return suspect & (self.scores > 0)


def activation_clustering(features: ArrayLike, labels: ArrayLike, *, dimensions: int = 10) -> Clusters:
    """Split every class into two clusters of what the network makes of it.

    The features of a class are reduced to their first principal components and split by 2-means. The original
    reduces by independent components and starts 2-means at random; here the split starts on the two sides of
    the first component and uses no randomness.

    Parameters
    ----------
    features : array-like of float, shape (n, d)
        What the last hidden layer makes of each example.
    labels : array-like of int, shape (n,)
        The labels in the training set, right or wrong; every class at least 4 examples.
    dimensions : int, default 10
        How many components are kept.

    Returns
    -------
    Clusters

    Raises
    ------
    TypeError, ValueError
        If shapes do not match or a class is too small.

    References
    ----------
    [Chen2018]

    Examples
    --------
    >>> layer = [[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [0.1, 0.1], [5.0, 5.0]]
    >>> clusters = activation_clustering(layer, [3] * 5)
    >>> (clusters.scores > 0).tolist(), round(clusters.small_share[3], 2)
    ([False, False, False, False, True], 0.2)
    """
    layer, told = _features(features, labels)
    dimensions = integer("dimensions", dimensions, at_least=1)
    scores = np.zeros(told.size)
    small_share, silhouette = {}, {}
    for rows in _classes(told):
        label = int(told[rows[0]])
        if rows.size < 4:
            raise ValueError(f"every class must have at least 4 examples, got {rows.size} of {label}")
        centred = layer[rows] - layer[rows].mean(axis=0)
        left, stretch, _ = np.linalg.svd(centred, full_matrices=False)
        points = (left * stretch)[:, :dimensions]
        second = _two_means(points, points[:, 0] > 0)
        if second.mean() > 0.5:
            second = ~second
        small_share[label] = float(second.mean())
        silhouette[label] = _silhouette(points, second)
        if 0 < second.sum() < second.size:
            centres = [points[side].mean(axis=0) for side in (~second, second)]
            to_large, to_small = (np.linalg.norm(points - centre, axis=1) for centre in centres)
            scores[rows] = (to_large - to_small) / np.linalg.norm(centres[0] - centres[1])
    return Clusters(scores, small_share, silhouette)


# --------------------------------------------------------------------------- provenance


def example_digests(images: ArrayLike, labels: ArrayLike) -> list[str]:
    """Return one SHA-256 per example, over its shape, its pixels and its label.

    Parameters
    ----------
    images : array-like of float, shape (n, ...)
        The images, between 0 and 1.
    labels : array-like of int, shape (n,)
        Their labels.

    Returns
    -------
    list of str
        Hexadecimal digests, in the order of the examples.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> before, after = (example_digests(np.zeros((1, 2, 2)), [label])[0] for label in (4, 9))
    >>> before[:8], after[:8]
    ('2bdd236a', '22201a7b')
    """
    pixels = _images(images)
    told = integer_array("labels", labels, shape=pixels.shape[:1])
    head = f"float64 {pixels.shape[1:]} ".encode()
    little = np.ascontiguousarray(pixels, dtype="<f8")  # the same bytes on every machine
    return [
        hashlib.sha256(head + f"{label} ".encode() + image.tobytes()).hexdigest()
        for image, label in zip(little, told, strict=True)
    ]


@dataclass(frozen=True)
class Manifest:
    """What a training set consists of, and who says so where it came from.

    Parameters
    ----------
    name, source : str
        What the set is called, and where its maker says that it is from: a claim, not a check.
    digests : tuple of str
        One per example, in order, as :func:`example_digests` returns them.
    """

    name: str
    source: str
    digests: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """Return the one spelling of this manifest that is signed."""
        content = {"digests": self.digests, "name": self.name, "source": self.source}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    def changed_rows(self, images: ArrayLike, labels: ArrayLike) -> list[int]:
        """Return the positions at which a set differs from the manifest.

        Parameters
        ----------
        images, labels
            As in :func:`example_digests`.

        Returns
        -------
        list of int
            In increasing order; positions that exist on one side only are among them.
        """
        found = example_digests(images, labels)
        longest = max(len(found), len(self.digests))
        both = [list(side) + [""] * (longest - len(side)) for side in (found, self.digests)]
        return [i for i, (here, there) in enumerate(zip(*both, strict=True)) if here != there]


def sign_manifest(manifest: Manifest, key: Ed25519PrivateKey) -> bytes:
    """Sign a manifest.

    Parameters
    ----------
    manifest : Manifest
        What to sign.
    key : Ed25519PrivateKey
        The maker's key, of the package ``cryptography``.

    Returns
    -------
    bytes
        64 bytes.

    References
    ----------
    [Bernstein2012]

    Examples
    --------
    >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    >>> len(sign_manifest(Manifest("demo", "nowhere", ()), Ed25519PrivateKey.from_private_bytes(bytes(32))))
    64
    """
    return key.sign(manifest.to_bytes())


def signature_is_valid(manifest: Manifest, signature: bytes, key: Ed25519PublicKey) -> bool:
    """Return whether the owner of a key has signed exactly this manifest.

    Parameters
    ----------
    manifest : Manifest
        What was received.
    signature : bytes
        As :func:`sign_manifest` returned it.
    key : Ed25519PublicKey
        The maker's public key, obtained by a way that the attacker does not control.

    Returns
    -------
    bool

    Examples
    --------
    >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    >>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    >>> manifest = Manifest("demo", "nowhere", tuple(example_digests(np.zeros((1, 2, 2)), [0])))
    >>> signature = sign_manifest(manifest, key)
    >>> signature_is_valid(manifest, signature, key.public_key())
    True
    >>> signature_is_valid(Manifest("demo", "elsewhere", manifest.digests), signature, key.public_key())
    False
    """
    from cryptography.exceptions import InvalidSignature  # only provenance needs this package

    try:
        key.verify(signature, manifest.to_bytes())
    except InvalidSignature:
        return False
    return True


# --------------------------------------------------------------------------- helpers


def _images(images: ArrayLike) -> Floats:
    array: NDArray[Any] = np.asarray(images)
    if array.dtype.kind != "f":
        raise TypeError(
            f"images must be floats between 0 and 1, got dtype {array.dtype}: divide by 255 first"
        )
    if array.ndim not in (3, 4):
        raise ValueError(
            f"images must have shape (n, height, width) or (n, channels, height, width), got {array.shape}"
        )
    return real_array("images", array, at_least=0, at_most=1)


def _labels(labels: ArrayLike, n_classes: int, n: int | None = None) -> Ints:
    n_classes = integer("n_classes", n_classes, at_least=2)
    return integer_array("labels", labels, shape=(n,), at_least=0, at_most=n_classes - 1)


def _features(features: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    layer = real_array("features", features, ndim=2)
    return layer, integer_array("labels", labels, shape=(len(layer),))


def _classes(labels: Ints) -> list[Ints]:
    """Return the positions of each class that occurs."""
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _two_means(points: Floats, side: Bools, rounds: int = 100) -> Bools:
    """Move points to the nearer of two centres until none moves."""
    for _ in range(rounds):
        if side.all() or not side.any():
            return side
        distances = [((points - points[part].mean(axis=0)) ** 2).sum(axis=1) for part in (~side, side)]
        moved = distances[1] < distances[0]
        if (moved == side).all():
            return side
        side = moved
    return side


def _silhouette(points: Floats, side: Bools) -> float:
    """Return the mean silhouette of two clusters [Rousseeuw1987]; 0 when there is only one."""
    sizes = np.array([(~side).sum(), side.sum()])
    if sizes.min() == 0:
        return 0.0
    squares = (points**2).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0))
    np.fill_diagonal(distances, 0)
    sums = np.stack([distances[:, ~side].sum(axis=1), distances[:, side].sum(axis=1)])
    own = side.astype(int)
    each = np.arange(side.size)
    within = sums[own, each] / np.maximum(sizes[own] - 1, 1)
    between = sums[1 - own, each] / sizes[1 - own]
    values = np.where(sizes[own] > 1, (between - within) / np.maximum(np.maximum(within, between), 1e-300), 0)
    return float(values.mean())
