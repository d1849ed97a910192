"""Adversarial examples: one gradient step, many steps, transformations, and masks that do not hold.

``fgsm`` is the fast gradient sign method [Goodfellow2014]; ``pgd`` iterates it inside a ball of radius
rho around each image [Madry2018]. Rotations, crops, shadows and stickers leave that ball
[Engstrom2019]. ``diagnose`` looks for the symptoms of gradient masking and ``rebuild_gradient`` and
``average_over_draws`` attack through it [Athalye2018]; ``square_search`` needs no gradient at all
[Andriushchenko2020]. Chapter 7 explains them; chapters 8 and 9 use them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from thousand_fingers.intervals import clopper_pearson
from thousand_fingers.models import Model, evaluation_mode, predict_logits
from thousand_fingers.validation import choice, integer, real_number, torch_generator

Attack = Callable[[Model, Tensor, Tensor], Tensor]
Transform = Callable[..., Tensor]

# Room for the rounding of a normalisation that was undone, and no more.
_RANGE_TOLERANCE = 1e-6


class ZeroGradientWarning(UserWarning):
    """Some images have a gradient of exactly zero: the attack cannot move them, which proves nothing."""


# --------------------------------------------------------------------------- one step, many steps


def fgsm(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    radius: float,
    targeted: bool = False,
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Tensor:
    r"""Move every pixel by the same amount in the direction that hurts most.

    .. math:: x + \rho\,\operatorname{sign}\bigl(\nabla_x\,\ell(f(x), y)\bigr)

    with :math:`\ell` the cross-entropy; a pixel whose gradient is exactly zero stays where it is.

    Parameters
    ----------
    model : callable
        Maps images to logits. A module is attacked in evaluation mode, and left as it was found: modes,
        parameters, their gradients and batch-norm statistics.
    images : Tensor of shape (n, ...), float32 or float64
        The images, in the range of ``clip``.
    labels : Tensor of int, shape (n,)
        The true classes; with ``targeted``, the wanted ones.
    radius : float
        Size of the push, at least 0. At 0 a copy of the images comes back.
    targeted : bool, default False
        Walk towards the labels instead of away from them.
    clip : tuple of float or None, default (0.0, 1.0)
        Range of a valid pixel; ``None`` for data without one.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``.

    Raises
    ------
    TypeError
        If the images are not float32 or float64, or the labels not integers.
    ValueError
        If pixels lie outside ``clip`` (with advice), a label is no class of the model, the logits are
        NaN, or an argument is out of range.
    RuntimeError
        In ``torch.inference_mode``, or if the logits do not depend on the images differentiably.

    Warns
    -----
    ZeroGradientWarning
        If an image's gradient is zero everywhere.

    References
    ----------
    [Goodfellow2014]

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -2.0], [-1.0, 2.0]]))
    >>> fgsm(model, torch.tensor([[0.5, 0.2]]), torch.tensor([0]), radius=0.1)
    tensor([[0.4000, 0.3000]])
    """
    radius = real_number("radius", radius, at_least=0)
    start, bounds = _checked_images(images, clip)
    labels = _checked_labels(labels, images)
    with _attacking(model):
        gradient, _ = _climb(model, start, labels, "cross_entropy", targeted)
    _warn_of_zeros(gradient)
    return torch.add(start, gradient.sign(), alpha=radius).clamp_(*bounds)


def pgd(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    radius: float,
    step_size: float,
    steps: int,
    norm: str = "linf",
    generator: torch.Generator | None = None,
    targeted: bool = False,
    clip: tuple[float, float] | None = (0.0, 1.0),
    restarts: int = 1,
    loss: str = "cross_entropy",
    keep: str = "best",
) -> Tensor:
    r"""Climb the loss step by step without leaving the ball around each image.

    One step moves every image by ``step_size`` along the sign of its gradient (``"linf"``) or along
    the gradient scaled to length one (``"l2"``), then back into the ball of ``radius`` and into the
    range of valid pixels. Every image is on its own: what is returned for it does not depend on the
    others in the batch.

    Parameters
    ----------
    model, images, labels, targeted, clip
        As in :func:`fgsm`.
    radius : float
        How far an image may move, at least 0, in the chosen norm.
    step_size : float
        Length of one step, greater than 0. A common choice is ``2.5 * radius / steps``.
    steps : int
        Number of gradients per image and restart, at least 1.
    norm : {"linf", "l2"}, default "linf"
        Largest change of a pixel, or Euclidean length of the whole change.
    generator : torch.Generator, optional
        With it, every run starts at a random point of the ball; without, at the image.
    restarts : int, default 1
        How many runs; more than one needs a ``generator`` and ``keep="best"``.
    loss : {"cross_entropy", "margin"}, default "cross_entropy"
        What is climbed. The margin, the largest wrong logit minus the right one, does not flatten out
        when the model is very sure.
    keep : {"best", "last"}, default "best"
        ``"best"`` returns the first point at which the image is misclassified (for a targeted attack:
        classified as wanted), or else the point with the highest loss. An image that has fallen is
        left alone, which saves its remaining gradients, and the image itself counts as the first point
        tried. ``"last"`` is the algorithm as published: everyone takes every step, and the last point is
        returned. Adversarial training and comparisons with other libraries use it.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As for :func:`fgsm`.

    Warns
    -----
    ZeroGradientWarning
        If the gradient of an image is zero everywhere at the start of a run.

    Notes
    -----
    After a step in ``"l2"`` the change is shortened to the radius and then clipped to valid pixels.
    Clipping only shortens it further; it is not the projection onto the intersection of the two sets.

    References
    ----------
    [Madry2018]

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -2.0], [-1.0, 2.0]]))
    >>> image, label = torch.tensor([[0.5, 0.2]]), torch.tensor([0])
    >>> pgd(model, image, label, radius=0.3, step_size=0.1, steps=4, norm="l2", keep="last")
    tensor([[0.3658, 0.4683]])
    """
    radius = real_number("radius", radius, at_least=0)
    step_size = real_number("step_size", step_size, above=0)
    steps = integer("steps", steps, at_least=1)
    restarts = integer("restarts", restarts, at_least=1)
    choice("norm", norm, ("linf", "l2"))
    choice("loss", loss, ("cross_entropy", "margin"))
    choice("keep", keep, ("best", "last"))
    if generator is not None:
        torch_generator("generator", generator)
    if restarts > 1 and (generator is None or keep == "last"):
        raise ValueError(f'restarts must be 1 without a generator or with keep="last", got {restarts}')
    ball = _Ball(norm, radius, *_checked_images(images, clip))
    labels = _checked_labels(labels, images)
    with _attacking(model):
        if keep == "last":
            points = ball.start(generator)
            for step in range(steps):
                gradient, _ = _climb(model, points, labels, loss, targeted)
                if step == 0:
                    _warn_of_zeros(gradient)
                points = ball.step(points, gradient, step_size)
            return points
        found = _Found(ball.centres, labels, loss, targeted)
        if generator is not None:  # otherwise the image itself is the first point of the climb
            found.try_out(model, ball.centres)
        for _ in range(restarts):
            points = ball.start(generator)[found.standing]  # drawn for all: nobody's depends on who fell
            around = ball.subset(found.standing)
            for step in range(steps):
                if len(points) == 0:
                    return found.best
                gradient, logits = _climb(model, points, labels[found.standing], loss, targeted)
                if step == 0:
                    _warn_of_zeros(gradient)
                stands = found.record(points, logits)
                if not stands.all():
                    around, points, gradient = around.subset(stands), points[stands], gradient[stands]
                points = around.step(points, gradient, step_size)
            found.try_out(model, points)
        return found.best


def random_sign_noise(
    images: Tensor,
    *,
    radius: float,
    generator: torch.Generator,
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Tensor:
    """Push every pixel by the radius in a random direction: the control of every sign attack.

    Parameters
    ----------
    images, clip
        As in :func:`fgsm`.
    radius : float
        Size of the push, at least 0.
    generator : torch.Generator
        Source of the signs.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> grey = torch.full((1, 2, 2), 0.5)
    >>> (random_sign_noise(grey, radius=0.1, generator=torch.Generator().manual_seed(0)) - 0.5).abs()
    tensor([[[0.1000, 0.1000],
             [0.1000, 0.1000]]])
    """
    radius = real_number("radius", radius, at_least=0)
    torch_generator("generator", generator)
    start, bounds = _checked_images(images, clip)
    return (start + radius * _random_signs(start.shape, generator).to(start)).clamp(*bounds)


# --------------------------------------------------------------------------- how many are left


@dataclass(frozen=True)
class RobustAccuracy:
    """The share of images that are still classified correctly, with its confidence interval.

    Parameters
    ----------
    correct, total : int
        The counts.
    low, high : float
        Exact (Clopper–Pearson) confidence interval of the share.
    """

    correct: int
    total: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share itself."""
        return self.correct / self.total


def robust_accuracy(
    model: Model, images: Tensor, labels: Tensor, attack: Attack | None = None, *, confidence: float = 0.95
) -> RobustAccuracy:
    """Count the images that a model still classifies correctly after an attack.

    Parameters
    ----------
    model, images, labels
        As in :func:`fgsm`.
    attack : callable, optional
        Called as ``attack(model, images, labels)``, returns the changed images;
        ``functools.partial(pgd, radius=0.1, step_size=0.01, steps=40)`` is one. Without it the accuracy
        on the images as they are.
    confidence : float, default 0.95
        Of the interval.

    Returns
    -------
    RobustAccuracy

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [ClopperPearson1934]

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -2.0], [-1.0, 2.0]]))
    >>> images, labels = torch.tensor([[0.5, 0.2], [0.9, 0.1]]), torch.tensor([0, 0])
    >>> robust_accuracy(model, images, labels).value
    1.0
    >>> robust_accuracy(model, images, labels, partial(fgsm, radius=0.1)).value
    0.5
    """
    images, _ = _checked_images(images, None)
    labels = _checked_labels(labels, images)
    if attack is not None:
        images = attack(model, images, labels)
    logits = predict_logits(model, images)
    _check_logits(logits, labels)
    correct = int((logits.argmax(1) == labels).sum())
    interval = clopper_pearson(correct, len(labels), confidence)
    return RobustAccuracy(correct, len(labels), interval.low, interval.high)


# --------------------------------------------------------------------------- outside the ball


def rotate(images: Tensor, *, degrees: float) -> Tensor:
    """Turn images counter-clockwise about their centre, with bilinear interpolation and black corners.

    Parameters
    ----------
    images : Tensor of shape (n, height, width) or (n, channels, height, width)
        The images; any transformation of this section takes both.
    degrees : float
        The angle.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> rotate(torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]), degrees=90).abs().round()
    tensor([[[1., 0.],
             [0., 0.]]])
    """
    angle = math.radians(real_number("degrees", degrees))
    planes = _planes(images)
    height, width = planes.shape[-2:]
    # affine_grid asks where each pixel comes from, in coordinates that run from -1 to 1 on both axes
    turn = planes.new_tensor(
        [
            [math.cos(angle), -math.sin(angle) * height / width, 0],
            [math.sin(angle) * width / height, math.cos(angle), 0],
        ]
    )
    grid = functional.affine_grid(turn.expand(len(planes), 2, 3), list(planes.shape), align_corners=False)
    return functional.grid_sample(planes, grid, align_corners=False).reshape(images.shape)


def shift(images: Tensor, *, down: int = 0, right: int = 0) -> Tensor:
    """Move images by whole pixels; what enters is black, what leaves is lost.

    Parameters
    ----------
    images : Tensor
        As in :func:`rotate`.
    down, right : int, default 0
        Number of pixels; negative numbers move up and left.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> shift(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), right=1)
    tensor([[[0., 1.],
             [0., 3.]]])
    """
    down, right = integer("down", down), integer("right", right)
    height, width = _planes(images).shape[-2:]
    down, right = max(-height, min(down, height)), max(-width, min(right, width))
    return functional.pad(images, (right, -right, down, -down))  # a negative padding cuts


def crop(images: Tensor, *, top: int, left: int, size: int) -> Tensor:
    """Cut a square window out of the images and enlarge it to the full size.

    Parameters
    ----------
    images : Tensor
        As in :func:`rotate`.
    top, left : int
        Corner of the window, at least 0.
    size : int
        Its side, at least 1; it must lie inside the image.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> crop(torch.eye(4)[None], top=0, left=1, size=2)[0]
    tensor([[0.0000, 0.0000, 0.0000, 0.0000],
            [0.2500, 0.1875, 0.0625, 0.0000],
            [0.7500, 0.5625, 0.1875, 0.0000],
            [1.0000, 0.7500, 0.2500, 0.0000]])
    """
    planes = _planes(images)
    rows, columns = _window(planes, top, left, size)
    enlarged = functional.interpolate(planes[..., rows, columns], size=planes.shape[-2:], mode="bilinear")
    return enlarged.reshape(images.shape)


def shadow(images: Tensor, *, degrees: float, offset: float = 0.0, brightness: float = 0.43) -> Tensor:
    """Darken the half of the images that lies beyond a straight line.

    Parameters
    ----------
    images : Tensor
        As in :func:`rotate`.
    degrees : float
        Direction into the shadow from the centre: 0 is right, 90 is up.
    offset : float, default 0.0
        Distance from the centre to the edge of the shadow, in pixels along that direction.
    brightness : float, default 0.43
        What is left of a pixel's value in the shadow, from 0 to 1. The default is the value that
        [Zhong2022] measured on road signs.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Zhong2022]

    Examples
    --------
    >>> shadow(torch.ones(1, 2, 2), degrees=0)
    tensor([[[1.0000, 0.4300],
             [1.0000, 0.4300]]])
    """
    angle = math.radians(real_number("degrees", degrees))
    offset = real_number("offset", offset)
    brightness = real_number("brightness", brightness, at_least=0, at_most=1)
    height, width = _planes(images).shape[-2:]
    across = torch.arange(width, dtype=images.dtype, device=images.device) - (width - 1) / 2
    upwards = (height - 1) / 2 - torch.arange(height, dtype=images.dtype, device=images.device)
    depth = math.cos(angle) * across + math.sin(angle) * upwards[:, None]
    return torch.where(depth > offset, brightness * images, images)


def sticker(images: Tensor, *, top: int, left: int, size: int, value: float = 1.0) -> Tensor:
    """Cover a square of the images with one grey value.

    Parameters
    ----------
    images : Tensor
        As in :func:`rotate`.
    top, left, size : int
        The square, as in :func:`crop`.
    value : float, default 1.0
        Its grey value.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``, which are left as they were.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> sticker(torch.zeros(1, 2, 3), top=0, left=1, size=1)
    tensor([[[0., 1., 0.],
             [0., 0., 0.]]])
    """
    value = real_number("value", value)
    rows, columns = _window(_planes(images), top, left, size)
    covered = images.clone()
    covered[..., rows, columns] = value
    return covered


def family(transform: Transform, **values: Iterable[float]) -> list[Transform]:
    """Return one transformation for every combination of the values given.

    Parameters
    ----------
    transform : callable
        Such as :func:`rotate`.
    **values : iterable
        For each keyword of ``transform``, the values to try.

    Returns
    -------
    list of callable
        Each maps images to images.

    Examples
    --------
    >>> len(family(sticker, size=[5], top=range(0, 24, 4), left=range(0, 24, 4)))
    36
    """
    return [
        partial(transform, **dict(zip(values, combination, strict=True)))
        for combination in itertools.product(*values.values())
    ]


def worst_of(model: Model, images: Tensor, labels: Tensor, *, transforms: Sequence[Transform]) -> Tensor:
    """Try every transformation on every image and return, for each image, the one that hurts most.

    As in :func:`pgd`, an image that has fallen is left alone, and the image itself counts as tried.

    Parameters
    ----------
    model, images, labels
        As in :func:`fgsm`, without a range of valid pixels.
    transforms : sequence of callable
        A stated family, such as :func:`family` returns. The result is the worst case over this family
        and says nothing about transformations outside it.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``: the first transformed image that is misclassified, or else the one
        with the highest cross-entropy.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Engstrom2019]

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2, bias=False))
    >>> _ = model[1].weight.data.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]))
    >>> image, label = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]), torch.tensor([0])
    >>> worst_of(model, image, label, transforms=family(shift, right=[0, 1], down=[0, 1]))
    tensor([[[0., 1.],
             [0., 0.]]])
    """
    originals, _ = _checked_images(images, None)
    labels = _checked_labels(labels, images)
    found = _Found(originals, labels, "cross_entropy", targeted=False)
    with evaluation_mode(model):
        found.try_out(model, originals)
        for transform in transforms:
            if len(found.standing) == 0:
                break
            found.try_out(model, transform(originals[found.standing]))
    return found.best


# --------------------------------------------------------------------------- behind the mask


def round_pixels(images: Tensor, *, levels: int) -> Tensor:
    """Round pixels between 0 and 1 to a few grey levels: a defence whose gradient is zero everywhere.

    Parameters
    ----------
    images : Tensor
        Pixels between 0 and 1.
    levels : int
        How many grey values are left, at least 2.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``.

    Raises
    ------
    TypeError, ValueError
        If ``levels`` is not an integer of at least 2.

    References
    ----------
    [Guo2018], one of the defences that [Athalye2018] broke.

    Examples
    --------
    >>> round_pixels(torch.tensor([0.1, 0.3, 0.9]), levels=3)
    tensor([0.0000, 0.5000, 1.0000])
    """
    levels = integer("levels", levels, at_least=2)
    return (images * (levels - 1)).round() / (levels - 1)


def rebuild_gradient(defence: Transform, stand_in: Transform | None = None) -> Transform:
    """Return a function that computes like the defence and differentiates like a stand-in (BPDA).

    Backward pass differentiable approximation: a defence that returns nearly what it received has nearly
    the derivative of the identity, whatever automatic differentiation says about it.

    Parameters
    ----------
    defence : callable
        Maps images to images, differentiably or not.
    stand_in : callable, optional
        A differentiable function close to it; without it, the identity.

    Returns
    -------
    callable

    References
    ----------
    [Athalye2018]

    Examples
    --------
    >>> image = torch.tensor([0.3], requires_grad=True)
    >>> rounded = rebuild_gradient(torch.round)(image)
    >>> rounded.backward()
    >>> rounded.item(), image.grad.item()
    (0.0, 1.0)
    """

    def rebuilt(images: Tensor) -> Tensor:
        with torch.no_grad():
            value = defence(images)
        slope = images if stand_in is None else stand_in(images)
        return value + (slope - slope.detach())  # exactly the value, with the slope's derivative

    return rebuilt


def average_over_draws(model: Model, draws: int) -> Model:
    r"""Return a model whose probabilities are the mean over several calls of a random one (EOT).

    Expectation over transformation: a defence that draws at random hides the gradient of its mean behind
    that of one draw. The logits returned are :math:`\log\frac1m\sum_j\operatorname{softmax}(f_j(x))`.

    Parameters
    ----------
    model : callable
        Random: it draws anew at every call.
    draws : int
        How many calls, at least 1.

    Returns
    -------
    callable

    Raises
    ------
    TypeError, ValueError
        If ``draws`` is not a positive integer.

    References
    ----------
    [Athalye2018]

    Examples
    --------
    >>> answers = iter([[0.0, 9.0], [9.0, 0.0]])
    >>> average_over_draws(lambda images: torch.tensor([next(answers)]), draws=2)(torch.zeros(1, 1)).exp()
    tensor([[0.5000, 0.5000]])
    """
    draws = integer("draws", draws, at_least=1)

    def averaged(images: Tensor) -> Tensor:
        logs = torch.stack([functional.log_softmax(model(images), dim=1) for _ in range(draws)])
        return logs.logsumexp(0) - math.log(draws)

    return averaged


def square_search(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    radius: float,
    queries: int,
    generator: torch.Generator,
    clip: tuple[float, float] = (0.0, 1.0),
    first_share: float = 0.8,
) -> Tensor:
    r"""Search the :math:`\ell_\infty` ball with squares of colour, by the model's answers alone.

    Every query pushes one square of the image, at a random place and in a random direction, as far as the
    radius allows, and keeps the change if the margin shrinks. The squares get smaller as the search goes
    on. It never looks at a gradient, so no gradient can mislead it.

    Parameters
    ----------
    model, images, labels, radius
        As in :func:`fgsm`; images of shape (n, height, width) or (n, channels, height, width).
    queries : int
        Answers that may be asked for each image, at least 1. An image that has fallen asks no more.
    generator : torch.Generator
        Source of places and directions.
    clip : tuple of float, default (0.0, 1.0)
        Range of a valid pixel.
    first_share : float, default 0.8
        Share of the image that the first squares cover, greater than 0 and at most 1.

    Returns
    -------
    Tensor
        Shape and dtype of ``images``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Andriushchenko2020]

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2, bias=False))
    >>> _ = model[1].weight.data.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]))
    >>> image, label = torch.tensor([[[0.6, 0.5], [0.5, 0.5]]]), torch.tensor([0])
    >>> found = square_search(model, image, label, radius=0.1, queries=50,
    ...                       generator=torch.Generator().manual_seed(0))
    >>> model(found).argmax(1)
    tensor([1])
    """
    radius = real_number("radius", radius, at_least=0)
    queries = integer("queries", queries, at_least=1)
    first_share = real_number("first_share", first_share, above=0, at_most=1)
    torch_generator("generator", generator)
    originals, bounds = _checked_images(images, clip)
    labels = _checked_labels(labels, images)
    n, channels, height, width = _planes(originals).shape
    found = _Found(originals, labels, "margin", targeted=False)
    with evaluation_mode(model):
        found.try_out(model, originals)
        for query in range(queries):
            # drawn for all images, so that nobody's squares depend on who has fallen
            if query == 0:  # stripes: a strong start whatever the image
                signs = _random_signs((n, channels, 1, width), generator)
                square = torch.ones(n, 1, height, width, dtype=torch.bool)
            else:
                share = first_share / 2 ** _halvings(query, queries)
                side = min(max(round(math.sqrt(share * height * width)), 1), height, width)
                signs = _random_signs((n, channels, 1, 1), generator)
                square = _random_squares(n, side, height, width, generator)
            signs, square = signs.to(originals), square.to(originals.device)
            still = found.standing
            pushed = (_planes(originals[still]) + radius * signs[still]).clamp(*bounds)
            candidates = torch.where(square[still], pushed, _planes(found.best[still]))
            found.try_out(model, candidates.reshape(-1, *originals.shape[1:]))
    return found.best


def _halvings(query: int, queries: int) -> int:
    """Return how often the area of the squares has been halved, by the published schedule."""
    return sum(query * 10_000 > queries * k for k in (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000))


@dataclass(frozen=True)
class Symptom:
    """One sign by which a masked gradient gives itself away.

    Parameters
    ----------
    name : str
        What was looked for.
    share : float
        Share of the images that show it.
    present : bool
        Whether the share is above the tolerance.
    """

    name: str
    share: float
    present: bool


def diagnose(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    radius: float,
    generator: torch.Generator,
    steps: int = 40,
    draws: int = 100,
    queries: int = 300,
    clip: tuple[float, float] = (0.0, 1.0),
    surrogate: Model | None = None,
    tolerance: float = 0.01,
) -> list[Symptom]:
    """Look for the symptoms of gradient masking: cases in which a weaker attack does more.

    A gradient attack that is blindfolded loses to attacks that have no right to win: a single step, blind
    noise, a search without gradients, examples made for another model. And with the whole range of pixels
    at its disposal it must win everywhere. No symptom does not prove robustness; one symptom proves that
    the gradient attack's figure is not to be believed.

    Parameters
    ----------
    model, images, labels, radius, clip
        As in :func:`fgsm`; two hundred images are usually enough.
    generator : torch.Generator
        Source of noise and squares. The gradient attack starts at the image: luck must not help it.
    steps : int, default 40
        Steps of the gradient attack that is under suspicion.
    draws : int, default 100
        Random corners of the ball tried on each image.
    queries : int, default 300
        Queries of :func:`square_search` on each image.
    surrogate : callable, optional
        Another model, such as the same network without its defence: examples made for it are tried too.
    tolerance : float, default 0.01
        Share of images up to which a symptom counts as absent: no attack of finitely many steps is perfect.

    Returns
    -------
    list of Symptom

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As for :func:`pgd`.

    References
    ----------
    [Athalye2018], [Carlini2019b]

    Examples
    --------
    >>> inner = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2, bias=False))
    >>> _ = inner[1].weight.data.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]))
    >>> image, label = torch.tensor([[[0.6, 0.5], [0.5, 0.5]]]), torch.tensor([0])
    >>> masked = lambda x: inner(round_pixels(x, levels=9))
    >>> for model in (inner, masked):
    ...     found = diagnose(model, image, label, radius=0.2, generator=torch.Generator().manual_seed(0))
    ...     print([symptom.name for symptom in found if symptom.present])
    []
    ['zero gradient', 'noise does more', 'search without gradients does more', 'even a boundless attack fails']
    """
    torch_generator("generator", generator)
    tolerance = real_number("tolerance", tolerance, at_least=0, below=1)
    climb = partial(pgd, steps=steps, clip=clip)
    climb_here = partial(climb, radius=radius, step_size=2.5 * radius / steps)
    breadth = clip[1] - clip[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroGradientWarning)
        correct = _standing(model, images, labels)
        stands = _standing(model, climb_here(model, images, labels), labels)
        attempts = {
            "one step does more": fgsm(model, images, labels, radius=radius, clip=clip),
            "noise does more": worst_of(
                model,
                images,
                labels,
                transforms=[partial(random_sign_noise, radius=radius, generator=generator, clip=clip)]
                * draws,
            ),
            "search without gradients does more": square_search(
                model, images, labels, radius=radius, queries=queries, generator=generator, clip=clip
            ),
            "another loss does more": climb_here(model, images, labels, loss="margin"),
            "twice the steps do more": climb_here(model, images, labels, steps=2 * steps),
        }
        if surrogate is not None:
            attempts["another model's examples do more"] = climb_here(surrogate, images, labels, keep="last")
        boundless = climb(model, images, labels, radius=breadth, step_size=2.5 * breadth / steps)
    shares = {
        "zero gradient": _zero_gradients(model, images, labels) & correct,
        **{name: stands & ~_standing(model, tried, labels) for name, tried in attempts.items()},
        "even a boundless attack fails": _standing(model, boundless, labels),
        "answers change": (predict_logits(model, images) != predict_logits(model, images)).any(1),
    }
    return [
        Symptom(name, share, share > tolerance)
        for name, share in ((name, float(shown.double().mean())) for name, shown in shares.items())
    ]


def _standing(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    return predict_logits(model, images).argmax(1) == labels


def _zero_gradients(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    with _attacking(model):
        gradient, _ = _climb(model, images, labels, "cross_entropy", targeted=False)
    return _zero_everywhere(gradient)


# --------------------------------------------------------------------------- internal


class _Ball:
    """The points that an attack may visit around each image."""

    def __init__(self, norm: str, radius: float, centres: Tensor, bounds: tuple[float, float]):
        self.norm, self.radius, self.centres, self.bounds = norm, radius, centres, bounds
        if norm == "linf":  # a box, cut to the range of valid pixels once and for all
            self.low = (centres - radius).clamp_(min=bounds[0])
            self.high = (centres + radius).clamp_(max=bounds[1])

    def subset(self, images: Tensor) -> _Ball:
        return _Ball(self.norm, self.radius, self.centres[images], self.bounds)

    def start(self, generator: torch.Generator | None) -> Tensor:
        """Draw one point per image, uniformly in the ball, then make it a valid image."""
        if generator is None:
            return self.centres
        shape, device = self.centres.shape, generator.device
        # float64 draws are the same on every machine, and for every dtype of the images
        if self.norm == "linf":
            offsets = 2 * torch.rand(shape, generator=generator, dtype=torch.float64, device=device) - 1
        else:
            normal = torch.randn(shape, generator=generator, dtype=torch.float64, device=device).flatten(1)
            uniform = torch.rand(len(normal), 1, generator=generator, dtype=torch.float64, device=device)
            lengths = uniform ** (1 / normal.shape[1])
            offsets = (lengths * normal / normal.norm(dim=1, keepdim=True)).reshape(shape)
        return self._project(self.centres + self.radius * offsets.to(self.centres))

    def step(self, points: Tensor, gradient: Tensor, step_size: float) -> Tensor:
        """Move the points uphill by one step and bring them back into the ball; uses the gradient up."""
        direction = gradient.sign_() if self.norm == "linf" else _scale_to_unit_length(gradient)
        return self._project(torch.add(points, direction, alpha=step_size))

    def _project(self, points: Tensor) -> Tensor:
        """Bring points back into the ball, then into the range of valid pixels, in place."""
        if self.norm == "linf":
            return points.clamp_(self.low, self.high)
        change = points.sub_(self.centres)
        lengths = torch.linalg.vector_norm(change.flatten(1), dim=1)
        shrink = torch.where(lengths > self.radius, self.radius / lengths, 1.0)
        return change.mul_(_per_image(shrink, change)).add_(self.centres).clamp_(*self.bounds)


class _Found:
    """For each image the most harmful one found so far, and which images are still standing."""

    def __init__(self, images: Tensor, labels: Tensor, loss: str, targeted: bool):
        self.labels, self.loss, self.targeted = labels, loss, targeted
        self.best = images.clone()
        self.losses = images.new_full((len(images),), -math.inf)
        self.standing = torch.arange(len(images), device=images.device)

    def try_out(self, model: Model, points: Tensor) -> None:
        """Ask the model about one point for each standing image."""
        if len(points):
            with torch.no_grad():
                self.record(points, model(points))

    def record(self, points: Tensor, logits: Tensor) -> Tensor:
        """Keep the points that do more harm than before; return which of the images still stand."""
        labels = self.labels[self.standing]
        losses = _losses(logits.detach(), labels, self.loss, self.targeted)
        fooled = (logits.argmax(1) == labels) == self.targeted
        better = fooled | (losses > self.losses[self.standing])
        self.best[self.standing[better]] = points[better]
        self.losses[self.standing[better]] = losses[better]
        self.standing = self.standing[~fooled]
        return ~fooled


@contextlib.contextmanager
def _attacking(model: Model) -> Iterator[None]:
    if torch.is_inference_mode_enabled():
        raise RuntimeError("an attack needs gradients: call it outside torch.inference_mode")
    with evaluation_mode(model), torch.enable_grad():
        yield


def _climb(model: Model, points: Tensor, labels: Tensor, loss: str, targeted: bool) -> tuple[Tensor, Tensor]:
    """Return the gradient of each image's loss, and the logits at which it was taken."""
    moving = points.detach().requires_grad_()
    logits = model(moving)
    losses = _losses(logits, labels, loss, targeted)
    if not losses.requires_grad:
        raise RuntimeError(
            "the logits do not depend on the images through differentiable operations: "
            "attack with rebuild_gradient, or without gradients (square_search)"
        )
    # Of the sum, so that no image's gradient depends on the size of the batch; for the images alone, so
    # that parameters keep their .grad and the cost of theirs is saved.
    (gradient,) = torch.autograd.grad(losses.sum(), moving, allow_unused=True)
    if gradient is None:
        gradient = torch.zeros_like(points)
    if torch.isnan(gradient.sum()):  # cheap, and decisive only in the good case
        bad = torch.isnan(gradient).flatten(1).any(1)
        if bad.any():
            raise ValueError(f"the gradient is NaN for {int(bad.sum())} of {len(bad)} images")
    return gradient, logits.detach()


def _losses(logits: Tensor, labels: Tensor, loss: str, targeted: bool) -> Tensor:
    """Return what each image's attacker wants to see grow."""
    _check_logits(logits, labels)
    if loss == "cross_entropy":
        losses = functional.cross_entropy(logits, labels, reduction="none")
    else:
        right = logits.gather(1, labels[:, None]).squeeze(1)
        losses = logits.scatter(1, labels[:, None], -math.inf).amax(1) - right
    return -losses if targeted else losses


def _check_logits(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 2 or len(logits) != len(labels) or logits.shape[1] < 2:
        raise ValueError(
            f"the model must return logits of shape ({len(labels)}, n_classes), got {tuple(logits.shape)}"
        )
    if len(labels) and int(labels.max()) >= logits.shape[1]:
        raise ValueError(f"labels must be >= 0 and <= {logits.shape[1] - 1}, got {int(labels.max())}")
    if torch.isnan(logits).any():
        bad = torch.isnan(logits).any(1)
        raise ValueError(f"the model's logits are NaN for {int(bad.sum())} of {len(bad)} images")


def _warn_of_zeros(gradient: Tensor) -> None:
    zeros = int(_zero_everywhere(gradient).sum())
    if zeros:
        warnings.warn(
            f"{zeros} of {len(gradient)} images have zero gradient: the attack cannot move them, "
            "and their robustness is not measured",
            ZeroGradientWarning,
            stacklevel=3,
        )


def _scale_to_unit_length(gradient: Tensor) -> Tensor:
    """Scale each image's gradient to length one, in place; a zero gradient stays zero.

    There is no guard added to the norm, and so no gradient too small to point somewhere.
    """
    lengths = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    if not ((lengths > 1e-12) & (lengths < 1e12)).all():  # squares may have vanished, or overflowed
        largest = gradient.abs().flatten(1).amax(1)
        gradient.div_(_per_image(torch.where(largest > 0, largest, 1.0), gradient))
        lengths = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    return gradient.div_(_per_image(torch.where(lengths > 0, lengths, 1.0), gradient))


def _zero_everywhere(gradient: Tensor) -> Tensor:
    zero = torch.linalg.vector_norm(gradient.flatten(1), dim=1) == 0
    # cheap, but the squares of tiny numbers vanish: if in doubt, look at the numbers themselves
    return (gradient == 0).flatten(1).all(1) if zero.any() else zero


def _checked_images(images: Tensor, clip: tuple[float, float] | None) -> tuple[Tensor, tuple[float, float]]:
    """Return a copy of the images, free of any graph, and the range of their pixels."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch.Tensor, got {type(images).__name__}")
    if images.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"images must be float32 or float64, got {images.dtype}: "
            "convert bytes with images.to(torch.float64) / 255"
        )
    if images.ndim < 2 or images.numel() == 0:
        raise ValueError(f"images must have shape (n, ...) with n >= 1, got {tuple(images.shape)}")
    least, most = (float(extreme) for extreme in images.detach().aminmax())  # NaN if there is one
    if not (math.isfinite(least) and math.isfinite(most)):
        raise ValueError("images must be finite, got NaN or infinite pixels")
    if clip is None:
        return images.detach().clone(), (-math.inf, math.inf)
    low, high = real_number("clip[0]", clip[0]), real_number("clip[1]", clip[1])
    if not low < high:
        raise ValueError(f"clip must be (low, high) with low < high, got {clip}")
    if least < low - _RANGE_TOLERANCE or most > high + _RANGE_TOLERANCE:
        if least >= 0 and most > 2 * high:
            advice = "divide bytes by 255"
        else:
            advice = (
                "put the normalisation into the model (thousand_fingers.models.Normalised) and attack "
                "pixels, or name the range of your data in clip"
            )
        raise ValueError(
            f"images must lie in clip = [{low:g}, {high:g}], got values from {least:.4g} to {most:.4g}: {advice}"
        )
    return images.detach().clamp(low, high), (low, high)


def _checked_labels(labels: Tensor, images: Tensor) -> Tensor:
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be a tensor of integers, got {kind}")
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must have one entry per image: shape ({len(images)},), got {tuple(labels.shape)}"
        )
    if int(labels.min()) < 0:
        raise ValueError(f"labels must be >= 0, got {int(labels.min())}")
    return labels.to(images.device, torch.int64)


def _random_signs(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return 2 * torch.randint(0, 2, tuple(shape), generator=generator, device=generator.device) - 1


def _random_squares(n: int, side: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Return n masks of shape (1, height, width), each true in one square at a random place."""
    corner = partial(torch.randint, size=(n, 1, 1, 1), generator=generator, device=generator.device)
    top, left = corner(high=height - side + 1), corner(high=width - side + 1)
    rows = torch.arange(height, device=generator.device)[:, None]
    columns = torch.arange(width, device=generator.device)
    return (rows >= top) & (rows < top + side) & (columns >= left) & (columns < left + side)


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (images.ndim - 1))


def _planes(images: Tensor) -> Tensor:
    """Return images as (n, channels, height, width)."""
    if images.ndim not in (3, 4):
        raise ValueError(
            f"images must have shape (n, height, width) or (n, channels, height, width), got {tuple(images.shape)}"
        )
    return images if images.ndim == 4 else images[:, None]


def _window(planes: Tensor, top: int, left: int, size: int) -> tuple[slice, slice]:
    height, width = planes.shape[-2:]
    size = integer("size", size, at_least=1, at_most=min(height, width))
    top = integer("top", top, at_least=0, at_most=height - size)
    left = integer("left", left, at_least=0, at_most=width - size)
    return slice(top, top + size), slice(left, left + size)
