r"""Randomized smoothing: a classifier that votes under Gaussian noise, and a radius that is proved.

The smoothed classifier :math:`g(x)` is the class that a base classifier returns most often around
:math:`x`. ``predict`` and ``certify`` are the two algorithms of [Cohen2019], for many inputs at once;
``certify_at`` answers the narrower question of one given radius with fewer samples. The lower bound is
that of [ClopperPearson1934]. Chapter 8 explains them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats
from torch import Tensor, nn

from thousand_fingers.models import Model, OneChannel, evaluation_mode
from thousand_fingers.validation import integer, integer_array, real_array, real_number, torch_generator

#: The label of an input on which the smoothed classifier does not commit itself.
ABSTAIN = -1


@dataclass(frozen=True)
class Certificate:
    """What :func:`certify` proves about each input; tensors of shape (n_inputs,) on the CPU.

    Attributes
    ----------
    label : Tensor of int64
        The class of the smoothed classifier, or ``ABSTAIN``.
    radius : Tensor of float64
        No perturbation shorter than this (Euclidean length, in the units of the input) changes that
        class; 0 for an abstention.
    p_lower : Tensor of float64
        Lower confidence bound on the probability of the class selected with the first ``n0`` draws, also
        where it was too low to certify.
    failure_probability : float
        For each input, the probability with which the label or the radius may be wrong. A radius without
        it means nothing.
    """

    label: Tensor
    radius: Tensor
    p_lower: Tensor
    failure_probability: float


@dataclass(frozen=True)
class Decision:
    """What :func:`certify_at` decides about each input; tensors of shape (n_inputs,) on the CPU.

    Attributes
    ----------
    label : Tensor of int64
        The class that is certified at the radius asked for, or ``ABSTAIN``.
    queries : Tensor of int64
        Forward passes that the decision took.
    failure_probability : float
        For each input, the probability with which a certified label may be wrong.
    """

    label: Tensor
    queries: Tensor
    failure_probability: float


# --------------------------------------------------------------------------- the two algorithms


def predict(
    model: Model,
    images: Tensor,
    *,
    noise_std: float,
    failure_probability: float = 0.001,
    n: int = 1_000,
    generator: torch.Generator,
    batch_size: int = 1_000,
    shared_noise: bool = False,
) -> Tensor:
    """Return the class of the smoothed classifier, or abstain.

    The two most frequent classes of ``n`` noisy copies are compared by a two-sided binomial test. For
    each input: with probability at least ``1 - failure_probability`` the answer is an abstention or the
    class that the smoothed classifier really has.

    Parameters
    ----------
    model, images, noise_std, generator, batch_size, shared_noise
        As in :func:`sample_under_noise`.
    failure_probability : float, default 0.001
        In (0, 1), for each input.
    n : int, default 1,000
        Noisy copies of each input.

    Returns
    -------
    Tensor of int64, shape (n_inputs,)
        Classes, ``ABSTAIN`` where the votes do not settle the matter; on the CPU.

    Raises
    ------
    TypeError
        If the images are not floating point, or an argument has the wrong type.
    ValueError
        If an argument is out of range; if even ``n`` equal votes would not settle the matter; if the
        logits are NaN.

    References
    ----------
    [Cohen2019]

    Examples
    --------
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> images = torch.tensor([[0.5, 0.0], [0.0, 0.0], [-0.5, 0.0]])
    >>> predict(model, images, noise_std=0.5, generator=torch.Generator().manual_seed(0))
    tensor([ 0, -1,  1])
    """
    failure_probability = real_number("failure_probability", failure_probability, above=0, below=1)
    n = integer("n", n, at_least=1)
    if 2.0 * 0.5**n > failure_probability:
        enough = int(np.ceil(1 - np.log2(failure_probability)))
        raise ValueError(
            f"n must be at least {enough} for failure_probability {failure_probability:g}, got {n}: "
            "even equal votes would end in an abstention"
        )
    counts = sample_under_noise(
        model,
        images,
        noise_std=noise_std,
        n=n,
        generator=generator,
        batch_size=batch_size,
        shared_noise=shared_noise,
    )
    votes, labels = counts.topk(2, dim=1)
    first, second = votes.numpy().T
    settled = torch.from_numpy(_two_sided_p(first, first + second) <= failure_probability)
    return torch.where(settled, labels[:, 0], ABSTAIN)


def certify(
    model: Model,
    images: Tensor,
    *,
    noise_std: float,
    failure_probability: float = 0.001,
    n0: int = 100,
    n: int = 10_000,
    generator: torch.Generator,
    batch_size: int = 1_000,
    shared_noise: bool = False,
) -> Certificate:
    r"""Return the class of the smoothed classifier with a radius inside which it cannot change.

    ``n0`` draws select a class, ``n`` fresh ones bound its probability from below by
    :math:`\underline{p_A}`; the radius is :math:`\sigma\,\Phi^{-1}(\underline{p_A})`, and the answer an
    abstention if :math:`\underline{p_A}\le\tfrac12`. For each input: with probability at least
    ``1 - failure_probability``, over the draws, the answer is an abstention or the smoothed classifier
    returns ``label`` everywhere within ``radius``.

    Parameters
    ----------
    model, images, noise_std, generator, batch_size, shared_noise
        As in :func:`sample_under_noise`.
    failure_probability : float, default 0.001
        In (0, 1), for each input.
    n0 : int, default 100
        Draws that select the class.
    n : int, default 10,000
        Draws that bound its probability. The largest radius that they can prove is
        ``noise_std * Phi^-1(failure_probability ** (1 / n))``.

    Returns
    -------
    Certificate

    Raises
    ------
    TypeError, ValueError
        As for :func:`predict`.

    Notes
    -----
    The bound is one-sided and for one class; no bound on the runner-up is needed, because all other
    classes together have at most the probability that is left over.

    References
    ----------
    [Cohen2019], [ClopperPearson1934]

    Examples
    --------
    A linear classifier of two classes: the true radius is the distance to the line, 0.8.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> certificate = certify(model, torch.tensor([[0.8, 0.0], [0.0, 3.0]]), noise_std=0.5,
    ...                       generator=torch.Generator().manual_seed(0))
    >>> certificate.label, bool(0.7 < certificate.radius[0] < 0.8), float(certificate.radius[1])
    (tensor([ 0, -1]), True, 0.0)
    """
    failure_probability = real_number("failure_probability", failure_probability, above=0, below=1)
    n0 = integer("n0", n0, at_least=1)
    n = integer("n", n, at_least=1)
    if failure_probability ** (1 / n) <= 0.5:
        enough = int(np.floor(-np.log2(failure_probability))) + 1
        raise ValueError(
            f"n must be at least {enough} for failure_probability {failure_probability:g}, got {n}: "
            "even equal votes would end in an abstention"
        )

    def sample(size: int) -> Tensor:
        return sample_under_noise(
            model,
            images,
            noise_std=noise_std,
            n=size,
            generator=generator,
            batch_size=batch_size,
            shared_noise=shared_noise,
        )

    selected = sample(n0).argmax(1, keepdim=True)
    votes = sample(n).gather(1, selected).squeeze(1)
    p_lower = lower_confidence_bound(votes.numpy(), n, failure_probability)
    radius = certified_radius(p_lower, noise_std)
    label = torch.where(torch.from_numpy(p_lower > 0.5), selected.squeeze(1), ABSTAIN)
    return Certificate(label, torch.from_numpy(radius), torch.from_numpy(p_lower), failure_probability)


def certify_at(
    model: Model,
    images: Tensor,
    *,
    radius: float,
    noise_std: float,
    failure_probability: float = 0.001,
    n0: int = 100,
    stages: Sequence[int] = (100, 1_000, 10_000),
    generator: torch.Generator,
    batch_size: int = 1_000,
    shared_noise: bool = False,
) -> Decision:
    r"""Decide whether the smoothed classifier keeps its class within one given radius, and stop early.

    A class is selected as in :func:`certify`. Then its votes are looked at after each of the ``stages``.
    Every look may certify, at level ``failure_probability / len(stages)``; since these add up to
    ``failure_probability``, the decision has the guarantee of :func:`certify`. An input is given up as soon
    as its votes are so few that the required probability is refuted at the same level. Giving up spends
    nothing: it can only turn a certificate into an abstention.

    Parameters
    ----------
    model, images, noise_std, generator, batch_size, shared_noise
        As in :func:`sample_under_noise`.
    radius : float
        The radius asked for, greater than 0.
    failure_probability : float, default 0.001
        In (0, 1), for each input, all looks together.
    n0 : int, default 100
        Draws that select the class.
    stages : sequence of int, default (100, 1,000, 10,000)
        Draws, in all, after which the votes are looked at; increasing. One stage is plain
        :func:`certify`, cut short by nothing.

    Returns
    -------
    Decision

    Raises
    ------
    TypeError, ValueError
        As for :func:`predict`; also if the last stage could not prove the radius with equal votes.

    References
    ----------
    [Cohen2019]; the union bound

    Examples
    --------
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> decision = certify_at(model, torch.tensor([[0.8, 0.0], [0.1, 0.0]]), radius=0.3, noise_std=0.5,
    ...                       generator=torch.Generator().manual_seed(0))
    >>> decision.label, decision.queries
    (tensor([ 0, -1]), tensor([ 200, 1100]))
    """
    radius = real_number("radius", radius, above=0)
    failure_probability = real_number("failure_probability", failure_probability, above=0, below=1)
    noise_std = real_number("noise_std", noise_std, above=0)
    n0 = integer("n0", n0, at_least=1)
    stages = [integer("stages", stage, at_least=1) for stage in stages]
    if not stages or any(later <= earlier for earlier, later in pairwise(stages)):
        raise ValueError(f"stages must be increasing and not empty, got {stages}")
    level = failure_probability / len(stages)
    needed = [required_votes(stage, radius / noise_std, level) for stage in stages]
    if needed[-1] > stages[-1]:
        largest = noise_std * special.ndtri(level ** (1 / stages[-1]))
        raise ValueError(
            f"radius must be at most {largest:.4g}, which {stages[-1]} equal votes can prove, got {radius}"
        )

    def sample(rows: Tensor, size: int) -> Tensor:
        return sample_under_noise(
            model,
            images[rows.to(images.device)],
            noise_std=noise_std,
            n=size,
            generator=generator,
            batch_size=batch_size,
            shared_noise=shared_noise,
        )

    _check_images(images)
    open_ = torch.arange(len(images))
    selected = sample(open_, n0).argmax(1)
    label = torch.full_like(selected, ABSTAIN)
    votes, queries = torch.zeros_like(selected), torch.full_like(selected, n0)
    drawn = 0
    for stage, enough in zip(stages, needed, strict=True):
        fresh = stage - drawn
        votes[open_] += sample(open_, fresh).gather(1, selected[open_, None]).squeeze(1)
        queries[open_] += fresh
        drawn = stage
        certified = votes[open_] >= enough
        label[open_[certified]] = selected[open_[certified]]
        hopeless = votes[open_] < stats.binom.ppf(level, stage, special.ndtr(radius / noise_std))
        open_ = open_[~certified & ~hopeless]
        if len(open_) == 0:
            break
    return Decision(label, queries, failure_probability)


# --------------------------------------------------------------------------- their parts


def sample_under_noise(
    model: Model,
    images: Tensor,
    *,
    noise_std: float,
    n: int,
    generator: torch.Generator,
    batch_size: int = 1_000,
    shared_noise: bool = False,
) -> Tensor:
    r"""Count the classes that a model returns for noisy copies of each input.

    Parameters
    ----------
    model : callable
        Maps inputs to logits; the class is the largest one. A module is asked in evaluation mode and
        left as it was found.
    images : Tensor of floating point, shape (n_inputs, ...)
        The inputs, on any device.
    noise_std : float
        Standard deviation of the Gaussian noise, greater than 0, in the units of the inputs: 0.5 means
        half the range for pixels in [0, 1]. It is added to what the caller passes in, before anything
        that the model does itself (:class:`~thousand_fingers.models.Normalised`).
    n : int
        Noisy copies of each input.
    generator : torch.Generator
        Source of the noise, on its own device.
    batch_size : int, default 1,000
        Largest number of noisy copies that exist at a time; memory does not grow with ``n``.
    shared_noise : bool, default False
        Use the same ``n`` draws for every input. The law of each input's counts is unchanged, and so is
        every guarantee about one input; but the counts of different inputs are no longer independent,
        and a bad draw can spoil several at once. If the model is an ``nn.Sequential`` that begins with
        linear layers or convolutions, their part of the work is done once for all inputs.

    Returns
    -------
    Tensor of int64, shape (n_inputs, n_classes)
        Each row sums to ``n``; on the CPU.

    Raises
    ------
    TypeError
        If the images are not floating point, or an argument has the wrong type.
    ValueError
        If there is no image, a pixel is not finite, an argument is out of range, the model does not
        return two or more logits per input, or a logit is NaN.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> coin = lambda images: torch.cat([images, -images], dim=1)
    >>> counts = sample_under_noise(coin, torch.zeros(3, 1), noise_std=1.0, n=500, generator=generator)
    >>> counts.sum(1)
    tensor([500, 500, 500])
    """
    noise_std = real_number("noise_std", noise_std, above=0)
    n = integer("n", n, at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    torch_generator("generator", generator)
    _check_images(images)
    with evaluation_mode(model), torch.inference_mode():
        batches = _shared_batches if shared_noise else _independent_batches
        counts = torch.zeros(0)
        for rows, logits in batches(model, images, noise_std, n, generator, batch_size):
            _check_logits(logits, rows)
            if counts.numel() == 0:
                counts = torch.zeros(len(images), logits.shape[1], dtype=torch.int64, device=logits.device)
            first, last = int(rows[0]), int(rows[-1]) + 1
            window = counts[first:last]
            cells = (rows.to(logits.device) - first) * logits.shape[1] + logits.argmax(1)
            window += torch.bincount(cells, minlength=window.numel()).reshape(window.shape)
    return counts.cpu().clone()


def lower_confidence_bound(votes: ArrayLike, n: int, failure_probability: float) -> NDArray[np.float64]:
    r"""Return the one-sided Clopper–Pearson bound: exact, for any number of votes.

    The smallest :math:`p` under which ``votes`` or more of ``n`` would not be surprising at level
    ``failure_probability``: 0 for no vote, ``failure_probability ** (1 / n)`` for all of them. Whatever the
    true probability, it lies below the bound with at most that probability.

    Parameters
    ----------
    votes : array-like of int
        Votes for the class, between 0 and ``n``.
    n : int
        Independent draws, at least 1.
    failure_probability : float
        In (0, 1).

    Returns
    -------
    ndarray of float64, shape of ``votes``

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [ClopperPearson1934]

    Examples
    --------
    >>> lower_confidence_bound([0, 990, 1000], 1000, 0.001).round(6)
    array([0.      , 0.976036, 0.993116])
    """
    n = integer("n", n, at_least=1)
    failure_probability = real_number("failure_probability", failure_probability, above=0, below=1)
    k = integer_array("votes", votes, at_least=0, at_most=n)
    bound = special.betaincinv(np.maximum(k, 1), n - k + 1, failure_probability)
    return np.where(k == 0, 0.0, bound)


def certified_radius(p_lower: ArrayLike, noise_std: float) -> NDArray[np.float64]:
    r"""Return :math:`\sigma\,\Phi^{-1}(\underline{p_A})`, and 0 where the bound is at most one half.

    Parameters
    ----------
    p_lower : array-like of float
        Lower bounds on the probability of the class, in [0, 1].
    noise_std : float
        Standard deviation of the noise, greater than 0.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Cohen2019]

    Examples
    --------
    >>> certified_radius([0.3, 0.5, 0.9, 0.99], 0.5).round(4)
    array([0.    , 0.    , 0.6408, 1.1632])
    """
    noise_std = real_number("noise_std", noise_std, above=0)
    p = real_array("p_lower", p_lower, at_least=0, at_most=1)
    return noise_std * special.ndtri(np.maximum(p, 0.5))


def required_votes(n: int, quantile: float, failure_probability: float) -> int:
    r"""Return the smallest number of votes of ``n`` that proves a radius of ``quantile`` times the noise.

    Parameters
    ----------
    n : int
        Independent draws, at least 1.
    quantile : float
        Radius divided by the standard deviation of the noise, at least 0.
    failure_probability : float
        In (0, 1).

    Returns
    -------
    int
        ``n + 1`` if even equal votes would not.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> required_votes(1000, 0.0, 0.001), required_votes(10_000, 2.0, 0.001)
    (550, 9818)
    """
    n = integer("n", n, at_least=1)
    quantile = real_number("quantile", quantile, at_least=0)
    failure_probability = real_number("failure_probability", failure_probability, above=0, below=1)
    # The bound at k votes is at least p exactly when P(Bin(n, p) >= k) <= failure_probability.
    return int(stats.binom.isf(failure_probability, n, special.ndtr(quantile))) + 1


def is_certified(certificate: Certificate, labels: Tensor, radius: float) -> Tensor:
    """Tell for which inputs the right class is certified, with at least the given radius.

    Parameters
    ----------
    certificate : Certificate
        Of n inputs.
    labels : Tensor of int64, shape (n,)
        The true classes.
    radius : float
        At least 0. At 0 every right answer counts and an abstention is none.

    Returns
    -------
    Tensor of bool, shape (n,)
        Its mean is the certified accuracy at ``radius``.

    Raises
    ------
    ValueError
        If the shapes differ or the radius is negative.

    Examples
    --------
    >>> certificate = Certificate(torch.tensor([3, 4, ABSTAIN]), torch.tensor([0.5, 0.1, 0.0]),
    ...                           torch.tensor([0.84, 0.6, 0.4]), 0.001)
    >>> is_certified(certificate, torch.tensor([3, 4, 5]), 0.25)
    tensor([ True, False, False])
    """
    radius = real_number("radius", radius, at_least=0)
    if labels.shape != certificate.label.shape:
        raise ValueError(
            f"labels must have shape {tuple(certificate.label.shape)}, got {tuple(labels.shape)}"
        )
    return (certificate.label == labels.cpu()) & (certificate.radius >= radius)


# --------------------------------------------------------------------------- noise, in batches

_Batches = Iterator[tuple[Tensor, Tensor]]


def _independent_batches(
    model: Model, images: Tensor, noise_std: float, n: int, generator: torch.Generator, batch_size: int
) -> _Batches:
    """Yield (index of the input, logits) with fresh noise for every input, one input after another."""
    for start in range(0, len(images) * n, batch_size):
        rows = torch.arange(start, min(start + batch_size, len(images) * n)) // n
        noise = _noise((len(rows), *images.shape[1:]), images, generator)
        yield rows, model(noise.mul_(noise_std).add_(images[rows.to(images.device)]))


def _shared_batches(
    model: Model, images: Tensor, noise_std: float, n: int, generator: torch.Generator, batch_size: int
) -> _Batches:
    """Yield (index of the input, logits) with the same noise for every input.

    An affine head h gives h(x + e) = h(x) + (h(e) - h(0)): the bracket is computed once per draw, h(x)
    once per input, and only the rest of the network sees every pair.
    """
    head, rest = _split_after_affine(model)
    centres = torch.cat([head(part) for part in images.split(batch_size)])
    for start in range(0, n, batch_size):
        size = min(batch_size, n - start)
        noise = _noise((size, *images.shape[1:]), images, generator).mul_(noise_std)
        moves = head(noise) - head(torch.zeros_like(images[:1])) if len(head) else noise
        at_once = batch_size // size
        for rows in torch.arange(len(images)).split(at_once):
            pairs = centres[rows.to(centres.device), None] + moves
            yield rows.repeat_interleave(size), rest(pairs.flatten(0, 1))


def _split_after_affine(model: Model) -> tuple[nn.Sequential, Model]:
    """Split a plain sequence of layers behind its leading affine ones, of which there may be none."""
    if type(model) is not nn.Sequential or _hooked(model):
        return nn.Sequential(), model
    affine = (nn.Identity, nn.Flatten, nn.Linear, nn.Conv2d, OneChannel)
    # by exact type: a subclass, or a parametrised layer, may do anything
    depth = next(
        (i for i, layer in enumerate(model) if type(layer) not in affine or _hooked(layer)), len(model)
    )
    return model[:depth], model[depth:]


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _noise(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw standard Gaussian noise where the generator lives; half precision is rounded from float32."""
    dtype = like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device).to(like)


def _check_images(images: Tensor) -> None:
    if not images.is_floating_point():
        raise TypeError(f"images must be floating point, for pixels in [0, 1], got {images.dtype}")
    if images.ndim < 2 or prod(images.shape) == 0:
        raise ValueError(
            f"images must have shape (n_inputs, ...) and not be empty, got {tuple(images.shape)}"
        )
    if not bool(torch.isfinite(images).all()):
        raise ValueError("images must be finite, got NaN or an infinity")


def _check_logits(logits: Tensor, rows: Tensor) -> None:
    if logits.ndim != 2 or len(logits) != len(rows) or logits.shape[1] < 2:
        raise ValueError(
            f"model must return at least two logits for each of {len(rows)} inputs, "
            f"got shape {tuple(logits.shape)}"
        )
    if bool(logits.isnan().any()):
        raise ValueError(f"logits must not be NaN, got NaN near input {int(rows[0])}")


def _two_sided_p(larger: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the p-value of ``larger`` of ``n`` votes if both classes were equally likely.

    The law is symmetric, so both tails are the same; for a tie the two overlap, hence the minimum.
    """
    return np.minimum(1.0, 2 * stats.binom.sf(larger - 1, n, 0.5))
