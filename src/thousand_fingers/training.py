"""Training of small image networks: plain, and against an attacker who moves second.

Adversarial training is the min-max problem of [Madry2018]: the inner maximisation is ``pgd`` from
``attacks.py``, the outer minimisation a step of Adam [Kingma2015] on what it returns. Every random number
comes from one generator, and the cost is counted in gradients: one is a forward and a backward pass for
one image. Chapter 7 explains it; chapters 8 and 9 train with the same loop.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from thousand_fingers.attacks import ZeroGradientWarning, pgd
from thousand_fingers.validation import choice, integer, real_number, torch_generator

Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class History:
    """What a training run did.

    Parameters
    ----------
    losses : tuple of float
        Mean value of the objective in each epoch, over the batches as they were used.
    gradients : int
        Gradients computed for single images, those of the attacker included.
    """

    losses: tuple[float, ...]
    gradients: int


def cross_entropy(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch, the default objective of :func:`train`.

    Parameters
    ----------
    model : torch.nn.Module
        Maps images to logits.
    images : Tensor of shape (n, ...)
        The images.
    labels : Tensor of int64, shape (n,)
        Their classes, counted from 0. torch passes over an image with the label -100 without a word.

    Returns
    -------
    Tensor
        A scalar.

    Examples
    --------
    >>> blind = torch.nn.Linear(2, 4).requires_grad_(False)
    >>> _ = blind.weight.zero_(), blind.bias.zero_()
    >>> round(float(cross_entropy(blind, torch.ones(3, 2), torch.tensor([0, 1, 3]))), 4)  # ln 4
    1.3863
    """
    return functional.cross_entropy(model(images), labels)


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
    objective: Objective = cross_entropy,
) -> History:
    """Train a network in place with Adam, on batches in an order drawn anew in every epoch.

    Parameters
    ----------
    model : torch.nn.Module
        The network; it is left in evaluation mode.
    images : Tensor of shape (n, ...)
        The images, in the dtype of the weights.
    labels : Tensor of int64, shape (n,)
        Their classes, counted from 0; see :func:`cross_entropy` for -100.
    epochs : int
        How often every image is used, at least 1.
    batch_size : int
        Images per step, at least 1; the last batch of an epoch takes what is left.
    learning_rate : float
        Step size of Adam, greater than 0.
    generator : torch.Generator
        Source of the order.
    objective : callable, default cross_entropy
        ``objective(model, images, labels)`` returns the scalar to minimise. To train under noise, give one
        that adds it: ``lambda model, x, y: cross_entropy(model, x + noise_like(x), y)``.

    Returns
    -------
    History

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Kingma2015]

    Examples
    --------
    >>> from thousand_fingers.models import mlp
    >>> generator = torch.Generator().manual_seed(0)
    >>> images = torch.rand(20, 4, generator=generator, dtype=torch.float64)
    >>> labels = (images[:, 0] > 0.5).long()
    >>> history = train(mlp([4, 2], generator=generator), images, labels, epochs=30, batch_size=10,
    ...                 learning_rate=0.1, generator=generator)
    >>> history.losses[-1] < history.losses[0], history.gradients
    (True, 600)
    """
    epochs = integer("epochs", epochs, at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    learning_rate = real_number("learning_rate", learning_rate, above=0)
    torch_generator("generator", generator)
    _check_batch(model, images, labels)
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate)
    losses = []
    for _ in range(epochs):
        model.train()
        total = 0.0
        for batch in torch.randperm(len(images), generator=generator).split(batch_size):
            loss = objective(model, images[batch], labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(batch)
        losses.append(total / len(images))
    model.eval()
    return History(tuple(losses), epochs * len(images))


def adversarial_train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    radius: float,
    step_size: float,
    steps: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
    norm: str = "linf",
    random_start: bool = True,
    warm_up: int = 0,
    clean_share: float = 0.0,
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> History:
    r"""Train a network on the worst images that an attacker finds within a radius.

    .. math:: \min_\theta \; \frac{1}{n}\sum_i \max_{\lVert\boldsymbol\delta\rVert\le\rho}
              \ell(f_\theta(x_i + \boldsymbol\delta), y_i)

    The maximum is approached by ``steps`` steps of :func:`thousand_fingers.attacks.pgd`. With one step as
    long as the radius and no random start this is training on ``fgsm``, which may learn to mask its gradient
    when the radius is large.

    Parameters
    ----------
    model, images, labels, epochs, batch_size, learning_rate, generator
        As in :func:`train`; the generator also draws the attacker's starting points.
    radius, step_size, steps, norm, clip
        The attacker, as in :func:`thousand_fingers.attacks.pgd`.
    random_start : bool, default True
        Whether the attacker starts at a random point of the ball.
    warm_up : int, default 0
        Number of epochs during which radius and step grow in proportion, from almost nothing to their full
        size. A network that meets the full attacker untrained may learn nothing at all.
    clean_share : float, default 0.0
        Weight of the loss on the images as they are, at least 0 and below 1. At 0 it is the min-max problem
        above; at 0.5 clean and attacked images count the same.

    Returns
    -------
    History

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Madry2018], [Goodfellow2014]

    Examples
    --------
    >>> from thousand_fingers.models import mlp
    >>> generator = torch.Generator().manual_seed(0)
    >>> images = torch.rand(20, 4, generator=generator, dtype=torch.float64)
    >>> labels = (images[:, 0] > 0.5).long()
    >>> history = adversarial_train(mlp([4, 2], generator=generator), images, labels, radius=0.1,
    ...                             step_size=0.05, steps=3, epochs=2, batch_size=10, learning_rate=0.1,
    ...                             generator=generator)
    >>> history.gradients  # 20 images, 2 epochs, 3 gradients of the attacker and 1 of the trainer
    160
    """
    radius = real_number("radius", radius, at_least=0)
    step_size = real_number("step_size", step_size, above=0)
    steps = integer("steps", steps, at_least=1)
    choice("norm", norm, ("linf", "l2"))
    warm_up = integer("warm_up", warm_up, at_least=0)
    clean_share = real_number("clean_share", clean_share, at_least=0, below=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    growing = warm_up * math.ceil(len(images) / batch_size)
    batches_seen = itertools.count(1)

    def objective(model: nn.Module, batch: Tensor, batch_labels: Tensor) -> Tensor:
        strength = min(1.0, next(batches_seen) / max(growing, 1))
        attacked = pgd(
            model,
            batch,
            batch_labels,
            radius=strength * radius,
            step_size=strength * step_size,
            steps=steps,
            norm=norm,
            generator=generator if random_start else None,
            clip=clip,
            keep="last",
        )
        loss = cross_entropy(model, attacked, batch_labels)
        if clean_share > 0:
            loss = (1 - clean_share) * loss + clean_share * cross_entropy(model, batch, batch_labels)
        return loss

    with warnings.catch_warnings():
        # an image that the attacker cannot move is trained on as it is; nothing is claimed about it
        warnings.simplefilter("ignore", ZeroGradientWarning)
        history = train(
            model,
            images,
            labels,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            generator=generator,
            objective=objective,
        )
    per_image = steps + 1 + (clean_share > 0)
    return History(history.losses, per_image * history.gradients)


def _check_batch(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    weights = next(model.parameters())
    if images.dtype != weights.dtype:
        raise TypeError(f"images must be {weights.dtype} like the weights, got {images.dtype}")
    if labels.dtype != torch.int64:
        raise TypeError(f"labels must be int64, got {labels.dtype}")
    if len(images) == 0 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must have one entry per image, got {tuple(labels.shape)} for {tuple(images.shape)}"
        )
