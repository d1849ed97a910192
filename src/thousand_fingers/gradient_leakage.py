"""What one shared gradient gives away: the example itself, and before that its label.

A linear layer with bias returns its input exactly, by a division [Phong2018]. Through other layers the input
is searched for: deep leakage matches the gradient by L-BFGS [Zhu2019], with the label read off first
[Zhao2020]; gradient inversion matches its direction, with a prior on images [Geiping2020]. Chapter 6
explains all of it, and what batch size, local steps, clipping and noise change.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from thousand_fingers.models import OneChannel
from thousand_fingers.validation import choice, integer, real_array, real_number, torch_generator

Floats = NDArray[np.float64]
Gradient = Sequence[Tensor]

# --------------------------------------------------------------------------- what is shared


def shared_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the gradient of the mean cross-entropy of a batch: what FedSGD sends.

    Parameters
    ----------
    model : torch.nn.Module
        Maps images to logits; nothing is left in its ``.grad``.
    images : Tensor of shape (n, ...)
        The batch.
    labels : Tensor of int64, shape (n,)
        Its classes.

    Returns
    -------
    tuple of Tensor
        One for each parameter, in the order of ``model.parameters()``.

    Raises
    ------
    ValueError
        If the batch is empty, the labels do not match, or one is negative.

    Examples
    --------
    >>> [g.shape for g in shared_gradient(nn.Linear(3, 2), torch.ones(4, 3), torch.zeros(4).long())]
    [torch.Size([2, 3]), torch.Size([2])]
    """
    if len(images) == 0 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must have one entry per image, got {tuple(labels.shape)} for {tuple(images.shape)}"
        )
    if bool((labels < 0).any()):  # torch passes over the label -100 in silence
        raise ValueError(f"labels must be >= 0, got {int(labels.min())}")
    loss = functional.cross_entropy(model(images), labels)
    return torch.autograd.grad(loss, list(model.parameters()))


def update_as_gradient(
    before: Sequence[ArrayLike], after: Sequence[ArrayLike], learning_rate: float
) -> tuple[Tensor, ...]:
    """Turn a client's new weights into the gradient that an attacker works with: the change divided by -η.

    After one step of gradient descent it is the gradient. After several it is their sum, taken at weights
    that have moved meanwhile.

    Parameters
    ----------
    before, after : sequence of array-like
        The weights that were handed out and those that came back, layer by layer.
    learning_rate : float
        η, greater than 0.

    Returns
    -------
    tuple of Tensor

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> update_as_gradient([[1.0, 2.0]], [[0.9, 2.2]], 0.1)[0].round(decimals=6).tolist()
    [1.0, -2.0]
    """
    learning_rate = real_number("learning_rate", learning_rate, above=0)
    gradient = []
    for old, new in zip(before, after, strict=True):
        start, end = np.asarray(old, dtype=np.float64), np.asarray(new, dtype=np.float64)
        if start.shape != end.shape:
            raise ValueError(f"after must have shape {start.shape}, got {end.shape}")
        gradient.append(torch.from_numpy((start - end) / learning_rate))
    return tuple(gradient)


def clip_and_noise(
    gradient: Gradient, *, max_grad_norm: float, noise_multiplier: float, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Clip a gradient as a whole to the norm C and add Gaussian noise of standard deviation zC.

    Parameters
    ----------
    gradient : sequence of Tensor
        One for each parameter.
    max_grad_norm : float
        C, greater than 0; infinite for none, and then the noise multiplier must be 0.
    noise_multiplier : float
        z, at least 0.
    generator : torch.Generator
        Source of the noise.

    Returns
    -------
    tuple of Tensor

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> clip_and_noise([torch.tensor([3.0, 4.0])], max_grad_norm=1.0, noise_multiplier=0.0,
    ...                generator=torch.Generator())[0].tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    max_grad_norm = real_number("max_grad_norm", max_grad_norm, above=0, allow_infinite=True)
    noise_multiplier = real_number("noise_multiplier", noise_multiplier, at_least=0)
    torch_generator("generator", generator)
    if math.isinf(max_grad_norm) and noise_multiplier > 0:
        raise ValueError("noise needs a finite max_grad_norm, got inf")
    norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradient])))
    scale = 1.0 if norm <= max_grad_norm else max_grad_norm / norm
    noise_std = noise_multiplier * max_grad_norm if noise_multiplier else 0.0
    return tuple(
        scale * g + noise_std * torch.randn(g.shape, generator=generator, dtype=g.dtype) for g in gradient
    )


# --------------------------------------------------------------------------- division


def invert_linear(
    weight_gradient: Tensor, bias_gradient: Tensor | None, *, method: str = "least squares"
) -> Tensor:
    r"""Return the input of a linear layer from the gradients of its weights and of its bias.

    For one example :math:`\partial\ell/\partial W = g\,x^\top` and :math:`\partial\ell/\partial b = g`, so
    every row of the first is x times the same entry of the second.

    Parameters
    ----------
    weight_gradient : Tensor of shape (outputs, inputs)
        Of one example. For a batch the result is a weighted sum of the examples.
    bias_gradient : Tensor of shape (outputs,)
        None, for a layer without bias, is refused.
    method : {"least squares", "largest"}
        ``"least squares"`` solves all rows together, which is best under noise; ``"largest"`` divides the one
        row whose bias gradient is largest.

    Returns
    -------
    Tensor of shape (inputs,)

    Raises
    ------
    ValueError
        If there is no bias, the shapes do not match, or no unit was active, so that all gradients are zero.

    References
    ----------
    [Phong2018], [Geiping2020, Proposition 3.1]

    Examples
    --------
    >>> g, x = torch.tensor([0.0, -2.0, 1.0]), torch.tensor([0.25, 0.5])
    >>> invert_linear(torch.outer(g, x), g).tolist()
    [0.25, 0.5]
    """
    choice("method", method, ("least squares", "largest"))
    weights, biases = _layer_gradients(weight_gradient, bias_gradient)
    row = int(biases.abs().argmax())
    if float(biases[row]) == 0:
        raise ValueError("no unit of the layer was active: all gradients of its bias are zero")
    if method == "largest":
        return weights[row] / biases[row]
    # Squares of tiny numbers would underflow; a power of two taken out of both changes no other bit.
    power = -torch.frexp(biases[row]).exponent
    weights, biases = torch.ldexp(weights, power), torch.ldexp(biases, power)
    return biases @ weights / torch.dot(biases, biases)


def unit_candidates(weight_gradient: Tensor, bias_gradient: Tensor | None) -> Tensor:
    """Divide every row by its bias gradient: one candidate for each unit that was active.

    A unit that a single example of a batch activated returns that example exactly; the others return
    mixtures.

    Parameters
    ----------
    weight_gradient : Tensor of shape (outputs, inputs)
        Of a batch.
    bias_gradient : Tensor of shape (outputs,)
        As in :func:`invert_linear`.

    Returns
    -------
    Tensor of shape (active units, inputs)

    Raises
    ------
    ValueError
        As for :func:`invert_linear`.

    References
    ----------
    [Phong2018]; that wide layers isolate examples is used by [Fowl2022].

    Examples
    --------
    >>> unit_candidates(torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 3.0]]), torch.tensor([2.0, 0.0, 3.0]))
    tensor([[0.5000, 1.0000],
            [1.0000, 1.0000]])
    """
    weights, biases = _layer_gradients(weight_gradient, bias_gradient)
    active = biases != 0
    if not bool(active.any()):
        raise ValueError("no unit of the layer was active: all gradients of its bias are zero")
    return weights[active] / biases[active, None]


def recovered(candidates: Tensor, images: Tensor, *, max_error: float = 1e-3) -> NDArray[np.bool_]:
    """Say of each image whether some candidate equals it, pixel by pixel.

    Parameters
    ----------
    candidates : Tensor of shape (m, pixels)
        As :func:`unit_candidates` returns them.
    images : Tensor of shape (n, ...)
        The originals.
    max_error : float, default 1e-3
        Largest difference of a pixel, on the scale of the images.

    Returns
    -------
    ndarray of bool, shape (n,)

    Raises
    ------
    ValueError
        If the numbers of pixels differ.

    Examples
    --------
    >>> recovered(torch.tensor([[0.0, 1.0], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [1.0, 1.0]])).tolist()
    [True, False]
    """
    max_error = real_number("max_error", max_error, above=0)
    originals = images.flatten(1)
    if candidates.dim() != 2 or candidates.shape[1] != originals.shape[1]:
        raise ValueError(f"candidates must have {originals.shape[1]} pixels, got {tuple(candidates.shape)}")
    nearest = [
        float((candidates - image).abs().amax(1).nan_to_num(nan=math.inf).amin())
        if len(candidates)
        else math.inf
        for image in originals
    ]
    return np.array(nearest) < max_error


def _layer_gradients(weight_gradient: Tensor, bias_gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    if bias_gradient is None:
        raise ValueError("the layer has no bias: its weight gradient gives the input only up to a factor")
    if weight_gradient.dim() != 2 or bias_gradient.shape != weight_gradient.shape[:1]:
        raise ValueError(
            f"gradients must have shapes (outputs, inputs) and (outputs,), got {tuple(weight_gradient.shape)} "
            f"and {tuple(bias_gradient.shape)}"
        )
    if not (bool(weight_gradient.isfinite().all()) and bool(bias_gradient.isfinite().all())):
        raise ValueError("gradients must be finite")
    return weight_gradient.detach(), bias_gradient.detach()


# --------------------------------------------------------------------------- labels


def label_from_gradient(last_bias_gradient: Tensor) -> int:
    """Return the class of a single example: the only negative entry of the last bias gradient.

    With cross-entropy that gradient is softmax minus one-hot: negative at the true class, positive elsewhere.

    Parameters
    ----------
    last_bias_gradient : Tensor of shape (n_classes,)
        Of one example.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If not exactly one entry is negative: it is no gradient of a single example (or noise was added).

    References
    ----------
    [Zhao2020]

    Examples
    --------
    >>> label_from_gradient(torch.tensor([0.2, -0.7, 0.5]))
    1
    """
    if not bool(last_bias_gradient.isfinite().all()):
        raise ValueError("last_bias_gradient must be finite")
    negative = torch.nonzero(last_bias_gradient < 0).flatten().tolist()
    if len(negative) != 1:
        raise ValueError(f"exactly one entry must be negative for a single example, got {len(negative)}")
    return int(negative[0])


def label_counts(
    last_bias_gradient: Tensor, batch_size: int, mean_probabilities: ArrayLike
) -> NDArray[np.int64]:
    r"""Estimate how many examples of each class a batch holds.

    The last bias gradient of a mean loss is :math:`\bar p - c/B`, with the mean softmax and the counts c; so
    :math:`c = B(\bar p - g)`. What the attacker does not know is :math:`\bar p`; for a model that has not
    learned yet, it is nearly what the model says about any image.

    Parameters
    ----------
    last_bias_gradient : Tensor of shape (n_classes,)
        Of a batch, any size.
    batch_size : int
        B, at least 1.
    mean_probabilities : array-like of float, shape (n_classes,)
        The attacker's estimate of the mean softmax.

    Returns
    -------
    ndarray of int64, shape (n_classes,)
        Not negative, with sum B: rounded by largest remainders.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the estimate leaves no class at all.

    Examples
    --------
    >>> label_counts(torch.tensor([0.5 - 2 / 3, 0.5 - 1 / 3]), 3, [0.5, 0.5]).tolist()
    [2, 1]
    """
    batch_size = integer("batch_size", batch_size, at_least=1)
    gradient = real_array("last_bias_gradient", last_bias_gradient.detach().double().numpy(), ndim=1)
    probabilities = real_array(
        "mean_probabilities", mean_probabilities, shape=gradient.shape, at_least=0, at_most=1
    )
    estimate = np.maximum(batch_size * (probabilities - gradient), 0.0)
    if not estimate.any():
        raise ValueError("last_bias_gradient must be below mean_probabilities at some class, got none")
    estimate *= batch_size / estimate.sum()
    counts = np.floor(estimate).astype(np.int64)
    rest = np.argsort(counts - estimate, kind="stable")[: batch_size - counts.sum()]
    counts[rest] += 1
    return counts


# --------------------------------------------------------------------------- search


def dlg_network(
    *, generator: torch.Generator, side: int = 28, n_classes: int = 10, init_bound: float = 0.5
) -> nn.Sequential:
    """Return the small sigmoid network on which deep leakage was published.

    Three convolutions of 5 by 5 with 12 filters (strides 2, 2, 1) and one linear layer. Sigmoids, because
    the attack differentiates twice. The *large* initial weights are part of the attack's success.

    Parameters
    ----------
    generator : torch.Generator
        Source of the weights.
    side : int, default 28
        Height and width of the images.
    n_classes : int, default 10
        Number of logits.
    init_bound : float, default 0.5
        All weights and biases are uniform between minus and plus this.

    Returns
    -------
    torch.nn.Sequential
        In float64; maps images of shape (n, side, side) or (n, 1, side, side) to logits.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Zhu2019]

    Examples
    --------
    >>> dlg_network(generator=torch.Generator().manual_seed(0))(torch.zeros(2, 28, 28).double()).shape
    torch.Size([2, 10])
    """
    side = integer("side", side, at_least=1)
    n_classes = integer("n_classes", n_classes, at_least=2)
    init_bound = real_number("init_bound", init_bound, above=0)
    torch_generator("generator", generator)
    quarter = math.ceil(math.ceil(side / 2) / 2)
    double = {"dtype": torch.float64}
    network = nn.Sequential(
        OneChannel(),
        nn.utils.skip_init(nn.Conv2d, 1, 12, 5, padding=2, stride=2, **double),
        nn.Sigmoid(),
        nn.utils.skip_init(nn.Conv2d, 12, 12, 5, padding=2, stride=2, **double),
        nn.Sigmoid(),
        nn.utils.skip_init(nn.Conv2d, 12, 12, 5, padding=2, stride=1, **double),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.utils.skip_init(nn.Linear, 12 * quarter**2, n_classes, **double),
    )
    with torch.no_grad():
        for parameter in network.parameters():
            uniform = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(init_bound * (2 * uniform - 1))
    return network


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What a search found.

    Parameters
    ----------
    images : Tensor
        The best guess.
    labels : Tensor of float64, shape (n, n_classes)
        Probabilities of the classes; one-hot where the labels were known.
    loss : float
        The matching loss of that guess: what the attacker sees of their own success.
    gradients : int
        Gradients of the matching loss that were computed, for one image each.
    """

    images: Tensor
    labels: Tensor
    loss: float
    gradients: int


def deep_leakage(
    model: nn.Module,
    gradient: Gradient,
    *,
    shape: Sequence[int],
    n_classes: int,
    generator: torch.Generator,
    labels: Tensor | None = None,
    restarts: int = 1,
    steps: int = 15,
    good_enough: float = 1e-9,
) -> Reconstruction:
    r"""Search for images (and labels) whose gradient equals the shared one, by L-BFGS.

    .. math:: \min_{x, y} \sum_l \lVert \nabla_{\theta_l}\ell(f_\theta(x), y) - g_l \rVert^2

    The best point of all starts and steps is kept: L-BFGS may run away after it was close. A start that
    breaks down is given up, and the next one begins.

    Parameters
    ----------
    model : torch.nn.Module
        The network at the weights at which the gradient was taken; twice differentiable activations.
    gradient : sequence of Tensor
        What was shared, in the order of ``model.parameters()``.
    shape : sequence of int
        Shape of the batch of images, such as (1, 28, 28).
    n_classes : int
        Number of classes.
    generator : torch.Generator
        Source of the starting points.
    labels : Tensor of int64, shape (n,), optional
        Known labels, as by :func:`label_from_gradient`; otherwise searched for too.
    restarts : int, default 1
        How many starts at most.
    steps : int, default 15
        Outer steps of L-BFGS for each start; each has up to 20 inner ones.
    good_enough : float, default 1e-9
        Matching loss, relative to the squared length of the gradient, at which no further start is tried.

    Returns
    -------
    Reconstruction
        Its ``loss`` is relative to the squared length of the gradient.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the gradient is zero.

    References
    ----------
    [Zhu2019], [Zhao2020]

    Examples
    --------
    >>> model = dlg_network(generator=torch.Generator().manual_seed(0), side=8)
    >>> image = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    >>> shared = shared_gradient(model, image, torch.tensor([3]))
    >>> found = deep_leakage(model, shared, shape=(1, 8, 8), n_classes=10, labels=torch.tensor([3]),
    ...                      generator=torch.Generator().manual_seed(2), restarts=3)
    >>> bool((found.images - image).abs().max() < 0.1)
    True
    """
    n_classes = integer("n_classes", n_classes, at_least=2)
    restarts = integer("restarts", restarts, at_least=1)
    steps = integer("steps", steps, at_least=1)
    good_enough = real_number("good_enough", good_enough, at_least=0)
    torch_generator("generator", generator)
    known = None if labels is None else functional.one_hot(_labels(labels, shape, n_classes), n_classes)
    parameters, target = _match_parts(model, gradient)
    if not any(bool(g.any()) for g in target):
        raise ValueError("gradient must not be zero: every image that teaches nothing has it")
    computed = 0
    best = Reconstruction(torch.zeros(*shape), torch.zeros(shape[0], n_classes), math.inf, 0)
    for _ in range(restarts):
        found = _descend_once(
            model, parameters, target, known, shape, n_classes, generator, steps, good_enough
        )
        computed += found.gradients
        best = min(best, found, key=lambda reconstruction: reconstruction.loss)
        if best.loss < good_enough:
            break
    return dataclasses.replace(best, gradients=computed)


def _descend_once(
    model: nn.Module,
    parameters: list[nn.Parameter],
    target: list[Tensor],
    known: Tensor | None,
    shape: Sequence[int],
    n_classes: int,
    generator: torch.Generator,
    steps: int,
    good_enough: float,
) -> Reconstruction:
    """Run L-BFGS from one random start and return the best point that it visited."""
    energy = sum(float(g.square().sum()) for g in target)
    images = torch.randn(*shape, generator=generator, dtype=target[0].dtype).requires_grad_()
    guess = torch.randn(shape[0], n_classes, generator=generator, dtype=target[0].dtype).requires_grad_()
    free = [images, guess] if known is None else [images]
    optimiser = torch.optim.LBFGS(free, lr=1.0)
    best, computed = (images.detach(), guess.detach(), math.inf), 0

    def closure() -> Tensor:
        nonlocal best, computed
        computed += len(images)
        classes = torch.softmax(guess, dim=1) if known is None else known.to(images.dtype)
        loss = functional.cross_entropy(model(images), classes)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        differences = [(g - wanted).square().sum() for g, wanted in zip(gradient, target, strict=True)]
        matching = torch.stack(differences).sum() / energy
        if float(matching.detach()) < best[2]:
            best = images.detach().clone(), classes.detach().clone(), float(matching.detach())
        for variable, slope in zip(free, torch.autograd.grad(energy * matching, free), strict=True):
            variable.grad = slope
        return energy * matching.detach()

    for _ in range(steps):
        if not math.isfinite(float(optimiser.step(closure))) or best[2] < good_enough:
            break
    return Reconstruction(*best, computed)


def cosine_matching(
    model: nn.Module,
    gradient: Gradient,
    *,
    shape: Sequence[int],
    labels: Tensor,
    generator: torch.Generator,
    steps: int = 600,
    learning_rate: float = 0.1,
    tv_weight: float = 1e-2,
    restarts: int = 1,
) -> Reconstruction:
    r"""Search for images whose gradient points in the direction of the shared one.

    .. math:: \min_{x\in[0,1]^d} \; 1 - \frac{\langle\nabla_\theta\ell(f_\theta(x), y),\, g\rangle}
              {\lVert\nabla_\theta\ell(f_\theta(x), y)\rVert\,\lVert g\rVert} + \lambda\,\mathrm{TV}(x)

    by Adam on the *sign* of the slope, whose step falls to a tenth at three, five and seven eighths of the
    way. The direction is all that clipping leaves, so clipping changes nothing. TV is the mean absolute
    difference of neighbouring pixels.

    Parameters
    ----------
    model, gradient, shape, generator
        As in :func:`deep_leakage`; ReLU is allowed.
    labels : Tensor of int64, shape (n,)
        The labels, known or read off the gradient.
    steps : int, default 600
        Steps of Adam; the publication takes 4,800 and more.
    learning_rate : float, default 0.1
        First step.
    tv_weight : float, default 1e-2
        λ.
    restarts : int, default 1
        Starts; the one with the smallest loss is kept.

    Returns
    -------
    Reconstruction

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Geiping2020]

    Examples
    --------
    >>> from thousand_fingers.models import mlp
    >>> model = mlp([64, 32, 10], generator=torch.Generator().manual_seed(0))
    >>> image = torch.full((1, 8, 8), 0.25, dtype=torch.float64)
    >>> image[:, 2:6, 2:6] = 0.75
    >>> shared = shared_gradient(model, image, torch.tensor([3]))
    >>> found = cosine_matching(model, shared, shape=(1, 8, 8), labels=torch.tensor([3]), steps=200,
    ...                         generator=torch.Generator().manual_seed(1))
    >>> bool(psnr(found.images, image) > 20)
    True
    """
    steps = integer("steps", steps, at_least=1)
    restarts = integer("restarts", restarts, at_least=1)
    learning_rate = real_number("learning_rate", learning_rate, above=0)
    tv_weight = real_number("tv_weight", tv_weight, at_least=0)
    torch_generator("generator", generator)
    parameters, target = _match_parts(model, gradient)
    truth = _labels(labels, shape, None)
    length = torch.stack([g.square().sum() for g in target]).sum().sqrt()
    if float(length) == 0:
        raise ValueError("gradient must not be zero: it has no direction")
    best = Reconstruction(torch.zeros(*shape), torch.zeros(0), math.inf, 0)
    for _ in range(restarts):
        images = torch.randn(*shape, generator=generator, dtype=target[0].dtype).requires_grad_()
        optimiser = torch.optim.Adam([images], lr=learning_rate)
        milestones = [steps * eighths // 8 for eighths in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones)
        for _ in range(steps):
            found = torch.autograd.grad(
                functional.cross_entropy(model(images), truth), parameters, create_graph=True
            )
            product = torch.stack([(f * g).sum() for f, g in zip(found, target, strict=True)]).sum()
            norm = torch.stack([f.square().sum() for f in found]).sum().sqrt()
            loss = 1 - product / (norm * length) + tv_weight * _total_variation(images)
            (slope,) = torch.autograd.grad(loss, images)
            if float(loss.detach()) < best.loss:
                best = Reconstruction(images.detach().clone(), torch.zeros(0), float(loss.detach()), 0)
            images.grad = slope.sign()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                images.clamp_(0, 1)
    n_classes = len(target[-1])
    return Reconstruction(
        best.images.clamp(0, 1),
        functional.one_hot(truth, n_classes).to(best.images.dtype),
        best.loss,
        restarts * steps * shape[0],
    )


def _total_variation(images: Tensor) -> Tensor:
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def _match_parts(model: nn.Module, gradient: Gradient) -> tuple[list[nn.Parameter], list[Tensor]]:
    parameters = list(model.parameters())
    shapes = [tuple(p.shape) for p in parameters]
    if [tuple(g.shape) for g in gradient] != shapes:
        raise ValueError(f"gradient must have the shapes of the parameters, {shapes}")
    if not all(bool(torch.isfinite(g).all()) for g in gradient):
        raise ValueError("gradient must be finite")
    return parameters, [g.detach() for g in gradient]


def _labels(labels: Tensor, shape: Sequence[int], n_classes: int | None) -> Tensor:
    if labels.dtype != torch.int64 or labels.shape != (shape[0],):
        raise ValueError(f"labels must be {shape[0]} whole numbers, got {labels.dtype} {tuple(labels.shape)}")
    if bool((labels < 0).any()) or (n_classes is not None and bool((labels >= n_classes).any())):
        allowed = ">= 0" if n_classes is None else f"between 0 and {n_classes - 1}"
        raise ValueError(f"labels must be {allowed}, got {labels.tolist()}")
    return labels


# --------------------------------------------------------------------------- how good a picture is

PSNR_CAP = 150.0


def psnr(images: Tensor, originals: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each image, in decibels: -10 log10 of the mean squared error.

    Parameters
    ----------
    images, originals : Tensor of shape (n, ...)
        Pixels between 0 and 1, in the same order; see :func:`match_images`.

    Returns
    -------
    Tensor of shape (n,)
        At most 150, which stands for "equal to rounding".

    Raises
    ------
    TypeError, ValueError
        If the shapes differ, or the pixels are whole numbers (0 to 255, say).

    Examples
    --------
    >>> psnr(torch.tensor([[0.5, 0.6], [0.0, 1.0]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])).round().tolist()
    [23.0, 150.0]
    """
    if images.shape != originals.shape:
        raise ValueError(f"images must have shape {tuple(originals.shape)}, got {tuple(images.shape)}")
    for name, pixels in (("images", images), ("originals", originals)):
        if not pixels.is_floating_point():
            raise TypeError(f"{name} must hold floating-point pixels between 0 and 1, got {pixels.dtype}")
    error = (images - originals).double().square().flatten(1).mean(1)
    return -10 * torch.log10(error.clamp(min=10 ** (-PSNR_CAP / 10)))


def match_images(images: Tensor, originals: Tensor) -> Tensor:
    """Return the reconstructions in the order of the originals, so that the total squared error is smallest.

    A gradient is a sum over the batch and knows no order.

    Parameters
    ----------
    images, originals : Tensor of shape (n, ...)
        Equally many.

    Returns
    -------
    Tensor of shape (n, ...)

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> match_images(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.1], [0.8]])).tolist()
    [[0.0], [1.0]]
    """
    if images.shape != originals.shape:
        raise ValueError(f"images must have shape {tuple(originals.shape)}, got {tuple(images.shape)}")
    cost = torch.cdist(originals.flatten(1), images.flatten(1)).square()
    _, order = linear_sum_assignment(cost.numpy())
    return images[torch.from_numpy(order)]
