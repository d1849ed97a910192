r"""Deterministic certificates: interval bound propagation, and the exact radius of a linear model.

A whole region of inputs is pushed through the network, layer by layer, and what comes out contains every
answer the network can give there [Gowal2018]. The last layer is merged with the comparison of classes.
``interval_loss`` trains a network so that its bounds are tight; ``linear_radius`` is the Lipschitz bound of
a linear model, which is exact. Chapter 8 sets both beside the randomized certificate of ``smoothing.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn import functional

from thousand_fingers.models import Normalised, OneChannel
from thousand_fingers.training import Objective, cross_entropy
from thousand_fingers.validation import choice, integer, real_number

NORMS = ("linf", "l2")

_MONOTONE = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus)
_RESHAPES = (nn.Identity, nn.Flatten, nn.Unflatten, OneChannel)
_RANGE_TOLERANCE = 1e-6


# --------------------------------------------------------------------------- certificates


def margin_bounds(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    radius: float,
    norm: str = "linf",
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Tensor:
    r"""Bound from above how far any other logit can rise over the true one.

    Every perturbation of the given size is covered, not only those an attack has found. The last layer is
    bounded together with the difference of logits: with W its rows and :math:`[c-r, c+r]` what enters it,

    .. math:: z_j - z_y \le (W_j - W_y)\,c + (b_j - b_y) + |W_j - W_y|\,r,

    which is never worse than the difference of two separate bounds, and usually much better.

    Parameters
    ----------
    model : torch.nn.Module
        Linear layers, convolutions, monotone activations and reshapes, in an ``nn.Sequential``; inside
        :class:`~thousand_fingers.models.Normalised` or not. The last layer must be linear.
    images : Tensor of shape (n, ...)
        Inside ``clip``.
    labels : Tensor of int64, shape (n,)
        The true classes.
    radius : float
        Size of the perturbation, at least 0.
    norm : {"linf", "l2"}, default "linf"
        Every pixel by at most ``radius``, or a Euclidean length of at most ``radius``. For ``"l2"`` the first
        layer is bounded exactly (by Cauchy and Schwarz), the later ones by intervals.
    clip : tuple of float or None, default (0.0, 1.0)
        For ``"linf"``, only perturbed images inside this range count. Not used for ``"l2"``.

    Returns
    -------
    Tensor of shape (n, n_classes)
        Upper bounds on :math:`z_j - z_y`; the column of the true class is 0. Differentiable.

    Raises
    ------
    TypeError
        If a layer is of a kind that is not known, or the last one is not linear.
    ValueError
        If an argument is out of range.

    Notes
    -----
    The arithmetic rounds to nearest. A verifier that must withstand an attack on the last digits would
    round every bound outwards.

    References
    ----------
    [Gowal2018]

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False))
    >>> _ = model[0].weight.data.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    >>> image, label = torch.tensor([[0.5, 0.25]]), torch.tensor([0])
    >>> margin_bounds(model, image, label, radius=0.0625).detach()
    tensor([[ 0.0000, -0.2500]])
    """
    *body, last = _layers(model)
    if not isinstance(last, nn.Linear):
        raise TypeError(f"model must end with a linear layer, got {type(last).__name__}")
    _check_labels(labels, images, last.out_features)
    region = _region(images, radius, norm, clip)
    for layer in body:
        region = region.through(layer)
    margins = images.new_empty(len(images), last.out_features)
    for label in labels.unique():
        rows = labels == label
        weight = last.weight - last.weight[label]
        bias = None if last.bias is None else last.bias - last.bias[label]
        ahead = region.of(rows).affine(functional.linear, weight, bias).box()
        margins[rows] = ahead.centre + ahead.spread
    return margins


def verified(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    radius: float,
    norm: str = "linf",
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Tensor:
    """Tell for which images no perturbation of the given size can make any other class win.

    Parameters
    ----------
    model, images, labels, radius, norm, clip
        As in :func:`margin_bounds`.

    Returns
    -------
    Tensor of bool, shape (n,)
        False means "not proved": an attack may exist, or the bound may be loose.

    Raises
    ------
    TypeError, ValueError
        As for :func:`margin_bounds`.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False))
    >>> _ = model[0].weight.data.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    >>> images, labels = torch.tensor([[0.5, 0.25], [0.5, 0.25]]), torch.tensor([0, 0])
    >>> verified(model, images, labels, radius=0.1), verified(model, images, labels, radius=0.2)
    (tensor([True, True]), tensor([False, False]))
    """
    with torch.no_grad():
        margins = margin_bounds(model, images, labels, radius=radius, norm=norm, clip=clip)
        others = margins.scatter(1, labels.unsqueeze(1), -torch.inf)
        return others.amax(1) < 0


def interval_bounds(
    model: nn.Module,
    images: Tensor,
    *,
    radius: float,
    norm: str = "linf",
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> tuple[Tensor, Tensor]:
    """Bound every output of a network, each on its own.

    Parameters
    ----------
    model, images, radius, norm, clip
        As in :func:`margin_bounds`; the last layer may be of any known kind.

    Returns
    -------
    lower, upper : Tensor of shape (n, n_outputs)
        To compare classes, use :func:`margin_bounds`: subtracting these two is looser.

    Raises
    ------
    TypeError, ValueError
        As for :func:`margin_bounds`.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU())
    >>> _ = model[0].weight.data.copy_(torch.tensor([[1.0, -1.0]]))
    >>> lower, upper = interval_bounds(model, torch.tensor([[0.5, 0.25]]), radius=0.25)
    >>> lower.item(), upper.item()
    (0.0, 0.75)
    """
    region = _region(images, radius, norm, clip)
    for layer in _layers(model):
        region = region.through(layer)
    box = region.box()
    return box.centre - box.spread, box.centre + box.spread


def linear_radius(model: nn.Module, images: Tensor, labels: Tensor, *, norm: str = "l2") -> Tensor:
    r"""Return the exact distance of each image to the nearest wrong answer of a linear model.

    A linear margin :math:`z_y - z_j` changes by at most :math:`\|w_y - w_j\|_*` times the size of the
    perturbation: its Lipschitz constant, in the dual norm (the Euclidean norm for ``"l2"``, the sum of
    absolute values for ``"linf"``). The bound is attained, so the radius is

    .. math:: \min_{j\ne y} \frac{z_y - z_j}{\|w_y - w_j\|_*}.

    Parameters
    ----------
    model : torch.nn.Module
        One linear layer, with nothing but reshapes before it.
    images : Tensor of shape (n, ...)
        The images.
    labels : Tensor of int64, shape (n,)
        The true classes.
    norm : {"l2", "linf"}, default "l2"
        In which the perturbation is measured.

    Returns
    -------
    Tensor of shape (n,)
        Negative for an image that is misclassified.

    Raises
    ------
    TypeError
        If the model is not linear.
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False))
    >>> _ = model[0].weight.data.copy_(torch.tensor([[3.0, 4.0], [-3.0, -4.0]]))
    >>> image, label = torch.tensor([[1.0, 0.5]]), torch.tensor([0])
    >>> linear_radius(model, image, label).item(), round(linear_radius(model, image, label, norm="linf").item(), 4)
    (1.0, 0.7143)
    """
    choice("norm", norm, NORMS)
    *body, last = _layers(model)
    if not isinstance(last, nn.Linear) or not all(isinstance(layer, _RESHAPES) for layer in body):
        raise TypeError(f"model must be one linear layer, got {model}")
    _check_labels(labels, images, last.out_features)
    with torch.no_grad():
        logits = model(images)
        margins = logits.gather(1, labels.unsqueeze(1)) - logits
        slopes = last.weight[labels].unsqueeze(1) - last.weight
        constants = torch.linalg.vector_norm(slopes, ord=2 if norm == "l2" else 1, dim=2)
        # a class with the same weights is never reached, or never left
        flat = torch.where(margins == 0, 0.0, margins.sign() * torch.inf)
        radii = torch.where(
            constants > 0, margins / constants.clamp(min=torch.finfo(constants.dtype).tiny), flat
        )
        return radii.scatter(1, labels.unsqueeze(1), torch.inf).amin(1)


# --------------------------------------------------------------------------- training


def interval_loss(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    radius: float,
    clean_share: float = 0.5,
    norm: str = "linf",
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Tensor:
    r"""Return the loss of one training step towards tight bounds.

    .. math:: \kappa\,\ell(z, y) + (1-\kappa)\,\ell(\hat z, y)

    with :math:`\ell` the cross-entropy, z the logits of the clean images and :math:`\hat z` the worst case
    that :func:`margin_bounds` cannot exclude. Costs about two forward passes, and their gradients.

    Parameters
    ----------
    model, images, labels, radius, norm, clip
        As in :func:`margin_bounds`.
    clean_share : float, default 0.5
        Weight κ of the clean images, in [0, 1].

    Returns
    -------
    Tensor
        A scalar to minimise.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Gowal2018]

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> image, label = torch.tensor([[0.5, 0.25]]), torch.tensor([0])
    >>> clean = interval_loss(model, image, label, radius=0.0)
    >>> bool(interval_loss(model, image, label, radius=0.1) > clean)
    True
    """
    clean_share = real_number("clean_share", clean_share, at_least=0, at_most=1)
    margins = margin_bounds(model, images, labels, radius=radius, norm=norm, clip=clip)
    worst = functional.cross_entropy(margins, labels)
    return clean_share * cross_entropy(model, images, labels) + (1 - clean_share) * worst


def ramped_interval_loss(
    radius: float,
    *,
    warm_up: int,
    ramp: int,
    clean_share: float = 0.5,
    norm: str = "linf",
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Objective:
    """Return an objective for :func:`~thousand_fingers.training.train` whose demands grow slowly.

    The first ``warm_up`` calls see clean images only. Over the next ``ramp`` calls the radius grows
    from 0 to ``radius`` and the weight of the clean images falls from 1 to ``clean_share``, both linearly.
    Without this the early bounds are so loose that the network learns to answer always the same.

    Parameters
    ----------
    radius : float
        Final size of the perturbation, at least 0.
    warm_up, ramp : int
        Numbers of calls, that is of batches; at least 0 and 1.
    clean_share : float, default 0.5
        Final weight of the clean images, in [0, 1].
    norm, clip
        As in :func:`margin_bounds`.

    Returns
    -------
    callable
        Counts its calls: use a new one for each training run.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Gowal2018]

    Examples
    --------
    >>> objective = ramped_interval_loss(0.1, warm_up=1, ramp=2)
    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> image, label = torch.full((1, 2), 0.5), torch.tensor([0])
    >>> losses = [objective(model, image, label).item() for _ in range(4)]
    >>> losses[0] == losses[1] < losses[2] < losses[3]
    True
    """
    radius = real_number("radius", radius, at_least=0)
    warm_up = integer("warm_up", warm_up, at_least=0)
    ramp = integer("ramp", ramp, at_least=1)
    clean_share = real_number("clean_share", clean_share, at_least=0, at_most=1)
    choice("norm", norm, NORMS)
    calls = count()

    def objective(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        progress = min(max((next(calls) - warm_up) / ramp, 0.0), 1.0)
        return interval_loss(
            model,
            images,
            labels,
            radius=progress * radius,
            clean_share=1 - progress * (1 - clean_share),
            norm=norm,
            clip=clip,
        )

    return objective


# --------------------------------------------------------------------------- regions

_Affine = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class _Region:
    """A set of points around a centre.

    Without a ``length``: the box of all points whose i-th coordinate is within ``spread[i]`` of the centre.
    With one: the ellipsoid ``centre + length * spread * u`` over all u of Euclidean norm at most 1.
    """

    centre: Tensor
    spread: Tensor
    length: float | None = None

    def through(self, layer: nn.Module) -> _Region:
        """Return a region that contains the image of this one."""
        if isinstance(layer, nn.Linear):
            return self.affine(functional.linear, layer.weight, layer.bias)
        if isinstance(layer, nn.Conv2d):
            return self.affine(layer._conv_forward, layer.weight, layer.bias)
        if isinstance(layer, Normalised):
            centre, spread = (self.centre - layer.mean) / layer.std, self.spread / layer.std
            return _Region(centre, spread, self.length)
        if isinstance(layer, _RESHAPES):
            return _Region(layer(self.centre), layer(self.spread), self.length)
        box = self.box()
        return _box_between(layer(box.centre - box.spread), layer(box.centre + box.spread))

    def of(self, rows: Tensor) -> _Region:
        """Return the regions of some of the images."""
        return _Region(self.centre[rows], self.spread[rows], self.length)

    def affine(self, apply: _Affine, weight: Tensor, bias: Tensor | None) -> _Region:
        """Return the tightest box around an affine image: each coordinate's range is exact."""
        centre = apply(self.centre, weight, bias)
        if self.length is None:
            return _Region(centre, apply(self.spread, weight.abs(), None))
        return _Region(centre, self.length * apply(self.spread**2, weight**2, None).sqrt())

    def box(self) -> _Region:
        return self if self.length is None else _Region(self.centre, self.length * self.spread)


def _box_between(lower: Tensor, upper: Tensor) -> _Region:
    return _Region((upper + lower) / 2, (upper - lower) / 2)


def _region(images: Tensor, radius: float, norm: str, clip: tuple[float, float] | None) -> _Region:
    radius = real_number("radius", radius, at_least=0)
    choice("norm", norm, NORMS)
    if not images.is_floating_point():
        raise TypeError(f"images must be floating point, for pixels in [0, 1], got {images.dtype}")
    if norm == "l2":
        return _Region(images, torch.ones_like(images), radius)
    if clip is None:
        return _Region(images, torch.full_like(images, radius))
    low, high = clip
    smallest, largest = float(images.min()), float(images.max())
    if smallest < low - _RANGE_TOLERANCE or largest > high + _RANGE_TOLERANCE:
        raise ValueError(
            f"images must lie in [{low:g}, {high:g}], got values from {smallest:.4g} to {largest:.4g}: "
            "put the normalisation inside the model (Normalised), or give another clip"
        )
    return _box_between((images - radius).clamp(min=low), (images + radius).clamp(max=high))


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a network in order, and refuse those whose range is not known."""
    layers = list(_unpacked(model))
    known = (nn.Linear, nn.Conv2d, Normalised, *_MONOTONE, *_RESHAPES)
    for layer in layers:
        if not isinstance(layer, known):
            names = ", ".join(kind.__name__ for kind in known)
            raise TypeError(f"model must consist of {names}, got {type(layer).__name__}")
    return layers


def _unpacked(model: nn.Module) -> Iterator[nn.Module]:
    if isinstance(model, nn.Sequential):
        for layer in model:
            yield from _unpacked(layer)
    else:
        yield model
        if isinstance(model, Normalised):
            yield from _unpacked(model.model)


def _check_labels(labels: Tensor, images: Tensor, n_classes: int) -> None:
    if labels.dtype != torch.int64:
        raise TypeError(f"labels must be int64, got {labels.dtype}")
    if len(images) == 0 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must have one entry per image, got {tuple(labels.shape)} for {tuple(images.shape)}"
        )
    if int(labels.min()) < 0 or int(labels.max()) >= n_classes:
        raise ValueError(f"labels must be >= 0 and <= {n_classes - 1}, got {labels.unique().tolist()}")
