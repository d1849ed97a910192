"""DP-SGD: clip the gradient of every example, add noise to the sum, divide by the expected batch size (chapter 5).

The step is that of Abadi and others [Abadi2016], after Song, Chaudhuri and Sarwate [Song2013]. It is here
twice. The *textbook* engine writes down one gradient per example. The *book-keeping* engine reads the
norms off what a layer took in and what came back to it, as Goodfellow [Goodfellow2015] and Bu and others
[Bu2023] do, and never holds the gradients of single examples of a linear layer. Neither knows what a step
costs in privacy: that is ``accounting.py``. Torch's generators are not cryptographic: right for a book
that must repeat itself, wrong for a real release.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from thousand_fingers.validation import choice, integer, real_number, torch_generator

Losses = Callable[[Tensor, Tensor], Tensor]
Gradient = dict[str, Tensor]

ENGINES = ("bookkeeping", "textbook")
SAMPLINGS = ("poisson", "shuffle")
NON_FINITE = ("refuse", "zero")
_NO_LABEL = -(2**62)  # a class that nobody has
_PRECISE = (torch.float32, torch.float64)


class NonFiniteGradient(ValueError):  # noqa: N818 - it is the refusal, not a mistake
    """Raised when the gradient of an example is infinite, not a number, or too long for its norm to be computed."""


@dataclass(frozen=True)
class PrivateTraining:
    """What an accountant has to know about a training run, and nothing about its data.

    Parameters
    ----------
    n : int
        Size of the training set; treated as public.
    batch_size : int
        Expected number of examples in a batch.
    steps : int
        Number of noisy gradients that were used, those of empty batches included.
    noise_multiplier : float
        σ: standard deviation of the noise in units of ``max_grad_norm``.
    max_grad_norm : float
        C: no example moves the sum of gradients by more.
    sampling : {"poisson", "shuffle"}
        How the batches were drawn. The privacy of Poisson batches is not that of shuffled ones.
    """

    n: int
    batch_size: int
    steps: int
    noise_multiplier: float
    max_grad_norm: float
    sampling: str

    @property
    def sample_rate(self) -> float:
        """Probability q with which an example enters a Poisson batch, ``batch_size / n``."""
        return self.batch_size / self.n


# --------------------------------------------------------------------------- the step


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of every example: the default loss, which must not be averaged.

    Parameters
    ----------
    logits : Tensor of shape (n, n_classes)
        What the model says.
    labels : Tensor of int64, shape (n,)
        What is true.

    Returns
    -------
    Tensor of shape (n,)

    Examples
    --------
    >>> cross_entropies(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """
    # By default torch gives the label −100 a loss of zero: such an example would be in the count, and learn nothing.
    return functional.cross_entropy(logits, labels, reduction="none", ignore_index=_NO_LABEL)


def poisson_sample(n: int, sample_rate: float, *, generator: torch.Generator) -> Tensor:
    """Draw a Poisson batch: every example enters with the same probability, on its own.

    Parameters
    ----------
    n : int
        Number of examples.
    sample_rate : float in [0, 1]
        Probability q of each.
    generator : torch.Generator
        Source of the coins, one per example.

    Returns
    -------
    Tensor of int64
        Positions in rising order. Their number varies; an empty batch is a batch, and happens with
        probability (1 − q)ⁿ.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Abadi2016]

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> [len(poisson_sample(1000, 0.01, generator=generator)) for _ in range(4)]
    [11, 12, 10, 11]
    """
    n = integer("n", n, at_least=1)
    sample_rate = real_number("sample_rate", sample_rate, at_least=0, at_most=1)
    torch_generator("generator", generator)
    return (torch.rand(n, generator=generator, dtype=torch.float64) < sample_rate).nonzero().squeeze(1)


def per_example_gradients(
    model: nn.Module, images: Tensor, labels: Tensor, *, loss: Losses = cross_entropies
) -> Gradient:
    """Return the gradient of every example's own loss.

    Parameters
    ----------
    model : torch.nn.Module
        Maps images to logits, each on its own; see :func:`refuse_unsafe`.
    images : Tensor of shape (n, ...)
        The images, in the dtype of the weights.
    labels : Tensor of shape (n, ...)
        What the loss compares the logits with.
    loss : callable, default cross_entropies
        ``loss(logits, labels)`` returns one number per example.

    Returns
    -------
    dict of str to Tensor of shape (n, ...)
        One entry per trainable parameter, in the model's order. A parameter that the loss does not
        depend on has zeros, one that two layers share a single entry.

    Raises
    ------
    TypeError, ValueError
        If model or batch cannot be used.

    Examples
    --------
    >>> model = nn.Linear(3, 2)
    >>> gradients = per_example_gradients(model, torch.ones(5, 3), torch.zeros(5, dtype=torch.int64))
    >>> {name: tuple(gradient.shape) for name, gradient in gradients.items()}
    {'weight': (5, 2, 3), 'bias': (5, 2)}
    """
    _check_model_and_batch(model, images, labels, loss)
    trainable = {name: parameter.detach() for name, parameter in _trainable(model).items()}
    if len(images) == 0:
        return {name: parameter.new_zeros(0, *parameter.shape) for name, parameter in trainable.items()}

    slots = _slots(model)

    def loss_of_one(parameters: Gradient, image: Tensor, label: Tensor) -> Tensor:
        filled = {slot: parameters[name] for slot, name in slots.items()}
        logits = functional_call(model, filled, (image.unsqueeze(0),), tie_weights=False)
        return _checked_losses(loss(logits, label.unsqueeze(0)), 1).squeeze(0)

    gradient_of_each = vmap(grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    return {name: g.detach() for name, g in gradient_of_each(trainable, images, labels).items()}


def clipped_sum(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    max_grad_norm: float,
    engine: str = "bookkeeping",
    loss: Losses = cross_entropies,
    non_finite: str = "refuse",
    chunk_size: int = 1024,
) -> Gradient:
    r"""Return the sum of all per-example gradients, each shortened to at most C.

    .. math:: \sum_i \bar g_i, \qquad \bar g_i = g_i \,/\, \max\bigl(1, \lVert g_i\rVert_2 / C\bigr)

    The norm is that of the whole gradient, over all parameters. One example more or less moves the sum by at
    most C in Euclidean norm: this is its sensitivity when neighbouring sets differ by an added or a
    removed example. (An example *replaced* by another moves it by at most 2C.) So it is up to rounding, which is
    small in float64 and float32; in half precision rounding alone can move the sum by more than C.

    Parameters
    ----------
    model, images, labels, loss
        As in :func:`per_example_gradients`. There may be no image at all: the sum is then zero.
    max_grad_norm : float
        C, greater than 0 and finite.
    engine : {"bookkeeping", "textbook"}, default "bookkeeping"
        The first is fast and knows linear and two-dimensional convolutional layers, each used once; the
        second knows every layer that ``torch.func`` does. The first believes its notes of what enters and
        leaves a layer: nothing else may read the layer's weights (``forward`` itself, a penalty in the loss,
        ``weight_norm``), no hook may change what it returns, and examples stand along the first axis.
    non_finite : {"refuse", "zero"}, default "refuse"
        What to do with an example whose gradient has no finite norm: raise, or let it count as zero. Raising
        tells whoever sees it that such an example was there. Where that matters, choose ``"zero"``.
    chunk_size : int, default 1024
        How many examples are held in memory at once. The result does not depend on it but for rounding.

    Returns
    -------
    dict of str to Tensor
        One entry per trainable parameter, in the model's order and in the parameter's shape.

    Raises
    ------
    NonFiniteGradient
        If asked to refuse, and an example has no finite norm.
    TypeError, ValueError
        If model, batch or an argument cannot be used.

    References
    ----------
    [Abadi2016], [Goodfellow2015], [Bu2023]

    Examples
    --------
    >>> model = nn.Linear(3, 2, dtype=torch.float64)
    >>> images, labels = torch.ones(5, 3, dtype=torch.float64), torch.zeros(5, dtype=torch.int64)
    >>> summed = clipped_sum(model, images, labels, max_grad_norm=0.1)
    >>> round(float(sum((g**2).sum() for g in summed.values()) ** 0.5), 4)  # five equal gradients
    0.5
    """
    max_grad_norm = real_number("max_grad_norm", max_grad_norm, above=0)
    choice("engine", engine, ENGINES)
    choice("non_finite", non_finite, NON_FINITE)
    chunk_size = integer("chunk_size", chunk_size, at_least=1)
    _check_model_and_batch(model, images, labels, loss)
    if engine == "bookkeeping":
        _refuse_unknown_layers(model)
    sum_of_chunk = _bookkeeping_sum if engine == "bookkeeping" else _textbook_sum
    total: Gradient = {}
    for chunk, chunk_labels in zip(images.split(chunk_size), labels.split(chunk_size), strict=True):
        if len(chunk) == 0:
            break
        part = sum_of_chunk(model, chunk, chunk_labels, max_grad_norm, loss, non_finite)
        total = {name: total[name] + part[name] for name in part} if total else part
    return total or {name: torch.zeros_like(p, requires_grad=False) for name, p in _trainable(model).items()}


def private_gradient(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    expected_batch_size: float,
    generator: torch.Generator,
    engine: str = "bookkeeping",
    loss: Losses = cross_entropies,
    non_finite: str = "refuse",
    chunk_size: int = 1024,
) -> Gradient:
    r"""Return the noisy gradient of DP-SGD.

    .. math:: \tilde g = \Bigl(\sum_i \bar g_i + \mathcal N(0, \sigma^2 C^2 I)\Bigr) / B

    Parameters
    ----------
    model, images, labels, max_grad_norm, engine, loss, non_finite, chunk_size
        As in :func:`clipped_sum`.
    noise_multiplier : float
        σ, at least 0; without noise there is no privacy.
    expected_batch_size : float
        B, greater than 0: what a batch holds on average, qn. Dividing by what *this* batch holds would
        publish it, and would change every other example's share when one comes or goes.
    generator : torch.Generator
        Source of the noise: one float64 number per trainable weight, in the model's order, then rounded.

    Returns
    -------
    dict of str to Tensor
        As :func:`clipped_sum`.

    Raises
    ------
    NonFiniteGradient, TypeError, ValueError
        As :func:`clipped_sum`.

    References
    ----------
    [Abadi2016]

    Examples
    --------
    >>> model = nn.Linear(3, 2, dtype=torch.float64)
    >>> nobody = torch.ones(0, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    >>> noise = private_gradient(model, *nobody, noise_multiplier=1.0, max_grad_norm=0.1,
    ...                          expected_batch_size=8, generator=torch.Generator().manual_seed(0))
    >>> bool((noise["weight"] != 0).all())  # an empty batch is noise, not nothing
    True
    """
    noise_multiplier = real_number("noise_multiplier", noise_multiplier, at_least=0)
    expected_batch_size = real_number("expected_batch_size", expected_batch_size, above=0)
    torch_generator("generator", generator)
    summed = clipped_sum(
        model,
        images,
        labels,
        max_grad_norm=max_grad_norm,
        engine=engine,
        loss=loss,
        non_finite=non_finite,
        chunk_size=chunk_size,
    )
    noisy = {}
    for name, total in summed.items():
        if noise_multiplier > 0:
            noise = torch.randn(total.shape, generator=generator, dtype=torch.float64)
            total = total + (noise_multiplier * max_grad_norm * noise).to(total.dtype)
        noisy[name] = total / expected_batch_size
    return noisy


def train_private(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    batch_size: int,
    steps: int,
    noise_multiplier: float,
    max_grad_norm: float,
    learning_rate: float,
    generator: torch.Generator,
    sampling: str = "poisson",
    engine: str = "bookkeeping",
    loss: Losses = cross_entropies,
    non_finite: str = "refuse",
    chunk_size: int = 1024,
) -> PrivateTraining:
    r"""Train a model in place by DP-SGD: :math:`\theta \leftarrow \theta - \eta \tilde g`, step after step.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it keeps the mode it is in, and no gradient stays on its parameters.
    images, labels, max_grad_norm, engine, loss, non_finite, chunk_size
        As in :func:`clipped_sum`.
    batch_size : int
        Expected size of a batch, 1 to n. With n, every step sees everybody.
    steps : int
        Number of steps T, at least 1.
    noise_multiplier : float
        σ, at least 0.
    learning_rate : float
        η, greater than 0.
    generator : torch.Generator
        Source of batches and noise.
    sampling : {"poisson", "shuffle"}, default "poisson"
        ``"shuffle"`` deals the examples out in batches of ``batch_size``, in a new order whenever all have
        been used, and is there to be compared: what it costs in privacy is not what Poisson batches cost.

    Returns
    -------
    PrivateTraining
        What the accountant has to know.

    Raises
    ------
    NonFiniteGradient, TypeError, ValueError
        As :func:`clipped_sum`.

    References
    ----------
    [Abadi2016]

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> images = torch.rand(200, 4, generator=generator, dtype=torch.float64)
    >>> labels = (images[:, 0] > 0.5).long()
    >>> model = nn.Linear(4, 2, dtype=torch.float64)
    >>> run = train_private(model, images, labels, batch_size=50, steps=40, noise_multiplier=2.0,
    ...                     max_grad_norm=0.5, learning_rate=4.0, generator=generator)
    >>> run.sample_rate, run.steps, bool((model(images).argmax(1) == labels).double().mean() > 0.8)
    (0.25, 40, True)
    """
    _check_model_and_batch(model, images, labels, loss)
    n = integer("the number of images", len(images), at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1, at_most=n)
    steps = integer("steps", steps, at_least=1)
    learning_rate = real_number("learning_rate", learning_rate, above=0)
    noise_multiplier = real_number("noise_multiplier", noise_multiplier, at_least=0)
    max_grad_norm = real_number("max_grad_norm", max_grad_norm, above=0)
    choice("sampling", sampling, SAMPLINGS)
    torch_generator("generator", generator)
    parameters = _trainable(model)
    batches = _batches(n, batch_size, sampling, generator)
    for step in range(1, steps + 1):
        batch = next(batches)
        gradient = private_gradient(
            model,
            images[batch],
            labels[batch],
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=batch_size,
            generator=generator,
            engine=engine,
            loss=loss,
            non_finite=non_finite,
            chunk_size=chunk_size,
        )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.sub_(gradient[name], alpha=learning_rate)
        if not all(parameter.isfinite().all() for parameter in parameters.values()):
            raise ValueError(
                f"the weights are not finite after step {step}: lower learning_rate, {learning_rate}, or the noise, "
                f"{noise_multiplier} times {max_grad_norm}"
            )
    return PrivateTraining(n, batch_size, steps, noise_multiplier, max_grad_norm, sampling)


def refuse_unsafe(model: nn.Module) -> None:
    """Raise if a layer lets examples of a batch see each other, or keeps statistics of them without noise.

    Parameters
    ----------
    model : torch.nn.Module
        The model to look at. Only its modules can be inspected: what its ``forward`` computes across the
        batch by other means stays the author's responsibility.

    Raises
    ------
    ValueError
        If there is a batch norm, frozen or not, or an instance norm with running statistics.

    Examples
    --------
    >>> refuse_unsafe(nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8)))
    >>> refuse_unsafe(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)))
    Traceback (most recent call last):
        ...
    ValueError: layer '1' is a BatchNorm2d: one example changes what it does to the others, so that clipping ...
    """
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"layer {name!r} is a {kind}: one example changes what it does to the others, so that clipping "
                "bounds nobody's influence, and its running statistics are released without noise, frozen "
                "weights or not; use GroupNorm"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise ValueError(
                f"layer {name!r} is a {kind} with running statistics, which are released without noise; set "
                "track_running_stats=False or use GroupNorm"
            )


# --------------------------------------------------------------------------- the textbook engine


def _textbook_sum(
    model: nn.Module, images: Tensor, labels: Tensor, max_grad_norm: float, loss: Losses, non_finite: str
) -> Gradient:
    """Write down every example's gradient, clip it, add them up."""
    gradients = per_example_gradients(model, images, labels, loss=loss)
    squares = torch.stack([(g.flatten(1) ** 2).sum(1) for g in gradients.values()]).sum(0)
    factors, dropped = _clip_factors(squares.sqrt(), max_grad_norm, non_finite)
    return {name: torch.einsum("n,n...->...", factors, _without(g, dropped)) for name, g in gradients.items()}


# --------------------------------------------------------------------------- the book-keeping engine


class _Call(NamedTuple):
    """One use of a layer: what came in, the version of that tensor, and the node of what went out."""

    name: str
    layer: Any  # nn.Linear or nn.Conv2d
    entered: Tensor
    version: int
    left: GradientEdge


def _bookkeeping_sum(
    model: nn.Module, images: Tensor, labels: Tensor, max_grad_norm: float, loss: Losses, non_finite: str
) -> Gradient:
    """One backward pass to the outputs of the layers; norms and sums follow from inputs and what came back."""
    calls: list[_Call] = []
    with torch.enable_grad(), _recording(model, calls):
        losses = _checked_losses(loss(model(images), labels), len(images))
    _refuse_other_uses(model, losses, calls)
    _refuse_another_first_axis(model, images, calls)
    summed = {name: torch.zeros_like(p, requires_grad=False) for name, p in _trainable(model).items()}
    returned: tuple[Tensor | None, ...] = (None,) * len(calls)
    if losses.requires_grad:
        edges = [call.left for call in calls]
        returned = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
    books = []
    squares = images.new_zeros(len(images))
    for call, back in zip(calls, returned, strict=True):
        if back is None:  # the loss does not depend on this layer
            continue
        if call.entered._version != call.version:
            raise ValueError(
                f"the input of layer {call.name!r} is changed in place later on; use engine='textbook'"
            )
        if len(call.entered) != len(images) or len(back) != len(images):
            raise ValueError(f"layer {call.name!r} does not see one row per example; use engine='textbook'")
        book = _Book(call.layer, call.entered, back)
        squares = squares + book.squared_norms()
        books.append((call.name, book))
    factors, dropped = _clip_factors(squares.sqrt(), max_grad_norm, non_finite)
    for prefix, book in books:
        for name, total in book.weighted_sum(factors, dropped).items():
            summed[f"{prefix}.{name}" if prefix else name] = total
    return summed


class _Book:
    """The gradients of one layer for all examples, held as inputs a and returned gradients g.

    The gradient of example i is Σ_t g_it a_itᵀ for the weight and Σ_t g_it for the bias, where t runs over
    positions: one for a plain linear layer, the places of the filter for a convolution.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, entered: Tensor, back: Tensor) -> None:
        self.layer = layer
        n = len(entered)
        self.weight_wanted = layer.weight.requires_grad
        self.bias_wanted = layer.bias is not None and layer.bias.requires_grad
        if isinstance(layer, nn.Conv2d):
            groups = layer.groups
            self.inputs = _patches(layer, entered).reshape(n, groups, -1, back[0, 0].numel())
            self.returned = back.reshape(n, groups, -1, back[0, 0].numel())
        else:  # (n, one group, features, positions)
            self.inputs = entered.reshape(n, 1, -1, entered.shape[-1]).transpose(2, 3)
            self.returned = back.reshape(n, 1, -1, back.shape[-1]).transpose(2, 3)
        self.single = self.inputs.shape[-1] == 1 and self.inputs.shape[1] == 1
        self.weights: Tensor | None = None

    def squared_norms(self) -> Tensor:
        squares = self.returned.new_zeros(len(self.returned))
        if self.single:
            of_returned = (self.returned**2).flatten(1).sum(1)
            of_inputs = (self.inputs**2).flatten(1).sum(1)
            if self.weight_wanted:
                squares = squares + of_returned * of_inputs
            if self.bias_wanted:
                squares = squares + of_returned
            return squares
        if self.weight_wanted:
            self.weights = self.returned @ self.inputs.transpose(2, 3)
            squares = squares + (self.weights**2).flatten(1).sum(1)
        if self.bias_wanted:
            squares = squares + (self.returned.sum(3) ** 2).flatten(1).sum(1)
        return squares

    def weighted_sum(self, factors: Tensor, dropped: Tensor | None) -> Gradient:
        sums = {}
        if self.bias_wanted:
            of_bias = _without(self.returned.sum(3).flatten(1), dropped)
            sums["bias"] = factors @ of_bias
        if self.weight_wanted:
            if self.weights is None:
                returned = _without(self.returned.flatten(1), dropped)
                inputs = _without(self.inputs.flatten(1), dropped)
                total = (returned * factors[:, None]).T @ inputs
            else:
                total = factors @ _without(self.weights.flatten(1), dropped)
            sums["weight"] = total.reshape(self.layer.weight.shape)
        return sums


@contextlib.contextmanager
def _recording(model: nn.Module, calls: list[_Call]) -> Iterator[None]:
    """Note what every layer with trainable weights takes in and where its output hangs in the graph."""

    def note(name: str) -> Callable[[nn.Module, Any, dict[str, Any], Tensor], None]:
        def hook(layer: nn.Module, arguments: Any, named: dict[str, Any], output: Tensor) -> None:
            if not output.requires_grad:  # under no_grad: the loss does not depend on this layer
                return
            entered = (arguments[0] if arguments else named["input"]).detach()
            calls.append(_Call(name, layer, entered, entered._version, get_gradient_edge(output)))

        return hook

    # First of all hooks: another one may change the output, and the books are about the layer's own.
    handles = [
        layer.register_forward_hook(note(name), with_kwargs=True, prepend=True)
        for name, layer in model.named_modules()
        if any(p.requires_grad for p in layer.parameters(recurse=False))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    names = [call.name for call in calls]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"layer {twice!r} is used more than once; use engine='textbook'")


def _patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Return what each filter position sees, shape (n, channels × filter, positions)."""
    return functional.unfold(
        images,
        layer.kernel_size,
        dilation=layer.dilation,
        padding=layer.padding,  # type: ignore[arg-type]  # no string: checked before
        stride=layer.stride,
    )


def _refuse_unknown_layers(model: nn.Module) -> None:
    """Raise if a layer with trainable weights is not one that the book-keeping engine knows."""
    seen: dict[int, str] = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        known = type(layer) is nn.Linear or (
            type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        )
        # Other parameters of its own, such as those of torch.nn.utils.weight_norm, make the weight anew each time.
        if not known or not {n for n, _ in layer.named_parameters(recurse=False)} <= {"weight", "bias"}:
            raise ValueError(
                f"the book-keeping engine knows nn.Linear and nn.Conv2d with zero padding in numbers, not layer "
                f"{name!r} ({type(layer).__name__}); use engine='textbook'"
            )
        for parameter in own:
            if id(parameter) in seen:
                raise ValueError(
                    f"layers {seen[id(parameter)]!r} and {name!r} share weights; use engine='textbook'"
                )
            seen[id(parameter)] = name


def _refuse_other_uses(model: nn.Module, losses: Tensor, calls: list[_Call]) -> None:
    """Raise if the loss depends on a weight otherwise than by the recorded uses of its layer.

    A weight that ``forward`` or the loss reads by itself leaves no note in the books: its gradient would be too
    small, and in silence. Every use is an edge of the graph to the node that stands for the weight.
    """
    edges: dict[int, int] = {}
    seen: set[Any] = set()
    waiting: list[Any] = [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        for following, _ in () if node is None else node.next_functions:
            if hasattr(following, "variable"):
                edges[id(following.variable)] = edges.get(id(following.variable), 0) + 1
            elif following not in seen:
                seen.add(following)
                waiting.append(following)
    noted = {id(parameter) for call in calls for parameter in call.layer.parameters(recurse=False)}
    for name, parameter in _trainable(model).items():
        if edges.get(id(parameter), 0) > (id(parameter) in noted):
            raise ValueError(f"{name!r} is used outside its layer; use engine='textbook'")


def _refuse_another_first_axis(model: nn.Module, images: Tensor, calls: list[_Call]) -> None:
    """Raise if a linear layer's first axis is not that of the examples, though it happens to be as long.

    With positions first, the books would take them for examples. One example alone tells the two apart.
    """
    if len(images) == 1 or not any(
        call.entered.dim() > 2 and type(call.layer) is nn.Linear for call in calls
    ):
        return
    alone: list[_Call] = []
    with torch.enable_grad(), _recording(model, alone):
        model(images[:1])
    for call in alone:
        if len(call.entered) != 1:
            raise ValueError(f"layer {call.name!r} does not see one row per example; use engine='textbook'")


# --------------------------------------------------------------------------- helpers


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _slots(model: nn.Module) -> dict[str, str]:
    """Return every place in which a trainable parameter sits, once, with the name of the parameter.

    (Left to itself, ``functional_call`` forgets to put the weights of a layer back that has two names.)
    """
    names = {id(parameter): name for name, parameter in _trainable(model).items()}
    return {
        f"{prefix}.{own}" if prefix else own: names[id(parameter)]
        for prefix, module in model.named_modules()
        for own, parameter in module.named_parameters(recurse=False)
        if id(parameter) in names
    }


def _clip_factors(norms: Tensor, max_grad_norm: float, non_finite: str) -> tuple[Tensor, Tensor | None]:
    """Return 1 / max(1, ‖g‖/C) for every example, and which examples are left out, if any."""
    bad = ~norms.isfinite()
    if not bad.any():
        return (max_grad_norm / norms).clamp(max=1.0), None
    if non_finite == "refuse":
        raise NonFiniteGradient(
            f"the gradients of {int(bad.sum())} of {len(norms)} examples have no finite norm; whoever sees this "
            "refusal learns that: choose non_finite='zero' where it must not be seen"
        )
    return (max_grad_norm / norms).clamp(max=1.0).masked_fill(bad, 0.0), bad


def _without(rows: Tensor, dropped: Tensor | None) -> Tensor:
    """Return the rows with those of dropped examples set to zero (zero times infinity is not zero)."""
    if dropped is None:
        return rows
    return rows.masked_fill(dropped.reshape(-1, *[1] * (rows.dim() - 1)), 0.0)


def _checked_losses(losses: Tensor, n: int) -> Tensor:
    if losses.shape != (n,):
        raise ValueError(
            f"loss must return one number per example, shape ({n},), got {tuple(losses.shape)}: an average mixes "
            "the examples before they can be clipped"
        )
    return losses


def _check_model_and_batch(model: nn.Module, images: Tensor, labels: Tensor, loss: Losses) -> None:
    refuse_unsafe(model)
    parameters = _trainable(model)
    if not parameters:
        raise ValueError("model must have a parameter that requires a gradient")
    dtypes = {parameter.dtype for parameter in parameters.values()}
    dtype = next(iter(dtypes))
    if len(dtypes) > 1 or dtype not in _PRECISE:
        raise TypeError(
            "trainable weights must be all torch.float32 or all torch.float64, got "
            f"{', '.join(sorted(map(str, dtypes)))}: with fewer digits, rounding alone can move the sum by more than C"
        )
    for name, tensor in (("images", images), ("labels", labels)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if images.dtype != dtype:
        raise TypeError(f"images must be {dtype} like the weights, got {images.dtype}")
    if labels.shape[:1] != images.shape[:1]:
        raise ValueError(
            f"labels must have one entry per image, got {tuple(labels.shape)} for {tuple(images.shape)}"
        )
    if loss is cross_entropies and bool((labels < 0).any()):
        raise ValueError(f"labels must be >= 0, got {int(labels.min())}")


def _batches(n: int, batch_size: int, sampling: str, generator: torch.Generator) -> Iterator[Tensor | slice]:
    while True:
        if batch_size == n:
            yield slice(None)  # everybody, and no copy of the data
        elif sampling == "poisson":
            yield poisson_sample(n, batch_size / n, generator=generator)
        else:
            yield from torch.randperm(n, generator=generator).split(batch_size)
