"""The private training runs of chapter 5: a linear model on hand-made features, with or without a public start.

The centre of the features is released first, with the noise of one step, so that a run of T steps is
accounted as T + 1. Subtracting a centre is what Tramèr and Boneh [TramerBoneh2021] do to their features.
A model that was trained on public data may be the start; its centre is then public too, and costs nothing.
Public are digits that nobody wrote: set from the typefaces that matplotlib carries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.ft2font import FT2Font
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage
from torch import nn

from thousand_fingers.datasets import Digits, load_mnist5k
from thousand_fingers.dpsgd import PrivateTraining, train_private
from thousand_fingers.features import oriented_gradients, unit_rows
from thousand_fingers.models import predict_logits
from thousand_fingers.validation import (
    integer,
    integer_array,
    numpy_generator,
    real_array,
    real_number,
    torch_generator,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A clipping norm that no gradient here reaches: training without clipping.
WIDE = 1e9


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear model on rows of length one, seen from a released centre.

    Parameters
    ----------
    centre : ndarray of shape (d,)
        What is subtracted from a row before it is brought to length one again.
    model : torch.nn.Linear
        Its logits have no offset.
    training : PrivateTraining
        For the accountant: the release of the centre counts as one of the steps.
    """

    centre: Floats
    model: nn.Linear
    training: PrivateTraining

    def logits(self, rows: ArrayLike) -> Floats:
        """Return the logits of rows of shape (n, d), as an array of shape (n, n_classes)."""
        seen = torch.from_numpy(unit_rows(unit_rows(rows) - self.centre))
        return predict_logits(self.model, seen, batch_size=len(seen)).numpy()

    def predict(self, rows: ArrayLike) -> Ints:
        """Return the most likely class of each row."""
        return self.logits(rows).argmax(axis=1)


def train_classifier(
    rows: ArrayLike,
    labels: ArrayLike,
    *,
    noise_multiplier: float,
    steps: int,
    learning_rate: float,
    max_grad_norm: float,
    generator: torch.Generator,
    batch_size: int | None = None,
    n_classes: int = 10,
    start: Classifier | None = None,
) -> Classifier:
    r"""Train a linear classifier by DP-SGD on rows that are scaled to length one and centred privately.

    The centre is the sum of the rows plus Gaussian noise of standard deviation σ, divided by n: a row of
    length one changes the sum by at most 1, so it is a Gaussian mechanism with the σ of a step that sees
    everybody.

    Parameters
    ----------
    rows : array-like of shape (n, d)
        Features; each is brought to length one first.
    labels : array-like of int, shape (n,)
        Classes.
    noise_multiplier, steps, learning_rate, max_grad_norm, generator
        As in :func:`thousand_fingers.dpsgd.train_private`.
    batch_size : int, optional
        Expected size of a Poisson batch; everybody by default. With less than everybody there is no
        centre, since its cost would not be that of a step.
    n_classes : int, default 10
        Number of classes.
    start : Classifier, optional
        A model from *public* data: training begins at its weights and sees the rows from its centre, so that
        no centre is released here and none is charged.

    Returns
    -------
    Classifier

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [TramerBoneh2021]

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> rows = torch.rand(300, 4, generator=generator, dtype=torch.float64).numpy()
    >>> labels = (rows[:, 0] > rows[:, 1]).astype(int)
    >>> found = train_classifier(rows, labels, noise_multiplier=5.0, steps=30, learning_rate=10.0,
    ...                          max_grad_norm=0.5, generator=generator, n_classes=2)
    >>> found.training.steps, bool((found.predict(rows) == labels).mean() > 0.9)
    (31, True)
    """
    n_classes = integer("n_classes", n_classes, at_least=2)
    unit = unit_rows(real_array("rows", rows, ndim=2))
    told = integer_array("labels", labels, shape=(len(unit),), at_least=0, at_most=n_classes - 1)
    noise_multiplier = real_number("noise_multiplier", noise_multiplier, at_least=0)
    torch_generator("generator", generator)
    n, d = unit.shape
    everybody = batch_size is None or batch_size == n
    releases_centre = everybody and start is None
    centre = np.zeros(d)
    if releases_centre:
        noise = torch.randn(d, generator=generator, dtype=torch.float64).numpy()
        centre = (unit.sum(axis=0) + noise_multiplier * noise) / n
    model = nn.utils.skip_init(nn.Linear, d, n_classes, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    if start is not None:
        if start.model.weight.shape != model.weight.shape:
            raise ValueError(
                f"start must have weights of shape {(n_classes, d)}, got {tuple(start.model.weight.shape)}"
            )
        centre = start.centre
        with torch.no_grad():
            model.weight.copy_(start.model.weight)
    run = train_private(
        model,
        torch.from_numpy(unit_rows(unit - centre)),
        torch.from_numpy(np.array(told)),
        batch_size=n if batch_size is None else batch_size,
        steps=steps,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        learning_rate=learning_rate,
        generator=generator,
    )
    charged = PrivateTraining(
        n, run.batch_size, steps + releases_centre, noise_multiplier, max_grad_norm, "poisson"
    )
    return Classifier(centre, model.requires_grad_(False), charged)


def digit_features() -> tuple[Floats, Ints]:
    """Return the oriented gradients of the 5,000 bundled digits, scaled to length one, and the labels.

    Returns
    -------
    features : ndarray of float64, shape (5000, 392)
    labels : ndarray of int64, shape (5000,)

    Examples
    --------
    >>> features, labels = digit_features()
    >>> features.shape
    (5000, 392)
    """
    digits = load_mnist5k()
    return unit_rows(oriented_gradients(digits.images)), digits.labels


TYPEFACES = (
    "DejaVuSans",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralItalic",
    "cmr10",
    "cmss10",
    "cmtt10",
    "cmmi10",
)


def typeset_digits(copies: int, rng: np.random.Generator) -> Digits:
    """Return digits that nobody wrote: twelve typefaces, each digit turned, slanted, stretched and blurred.

    The typefaces come with matplotlib. No person's data are in these images, so what is learned from them
    costs no privacy at all.

    Parameters
    ----------
    copies : int
        Images of each digit in each typeface.
    rng : numpy.random.Generator
        Source of the distortions.

    Returns
    -------
    Digits
        120 × ``copies`` images of 28 × 28 grey levels in [0, 1], white on black; labels 0 to 9.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> digits = typeset_digits(2, np.random.default_rng(0))
    >>> digits.images.shape, np.bincount(digits.labels).tolist()
    ((240, 28, 28), [24, 24, 24, 24, 24, 24, 24, 24, 24, 24])
    """
    copies = integer("copies", copies, at_least=1)
    numpy_generator("rng", rng)
    images, labels = [], []
    for typeface in TYPEFACES:
        for digit in range(10):
            glyph = _glyph(typeface, digit)
            images += [_distorted(glyph, rng) for _ in range(copies)]
            labels += [digit] * copies
    return Digits(np.array(images), np.array(labels, dtype=np.int64))


def _glyph(typeface: str, digit: int) -> Floats:
    """Return one digit of a typeface, cut to its ink; about forty pixels high."""
    font = FT2Font(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{typeface}.ttf"))
    font.set_size(48, 72)
    font.set_text(str(digit))
    font.draw_glyphs_to_bitmap()
    ink = np.asarray(font.get_image(), dtype=np.float64) / 255
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _distorted(glyph: Floats, rng: np.random.Generator) -> Floats:
    """Turn, slant, stretch and blur a glyph, and put it into the middle of a handwritten digit's frame."""
    turn, slant = rng.normal(0.0, 0.15), rng.normal(0.15, 0.25)
    tall = 20 / len(glyph) * rng.uniform(0.9, 1.05)
    wide = tall * rng.uniform(0.7, 1.5)
    turned = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    back = np.linalg.inv(turned @ np.array([[1.0, 0.0], [-slant, 1.0]]) @ np.diag([tall, wide]))
    offset = (np.array(glyph.shape) - 1) / 2 - back @ np.full(2, 13.5)
    soft = ndimage.gaussian_filter(glyph, rng.uniform(0.5, 1.2) / tall)
    return np.clip(ndimage.affine_transform(soft, back, offset, (28, 28), order=1), 0.0, 1.0)
