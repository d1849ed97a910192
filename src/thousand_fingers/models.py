"""Small image networks whose every random number comes from a generator that was passed in.

A multilayer perceptron is the work-horse of chapters 7 to 9, a small convolutional network its
slower control. A model is anything that maps a batch of images to logits; what a network needs
done to its input belongs inside it (:class:`Normalised`), so that attacks and certificates speak
of the images themselves.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from thousand_fingers.validation import integer, real_number, torch_generator

Model = Callable[[Tensor], Tensor]

# --------------------------------------------------------------------------- networks


def mlp(
    sizes: Sequence[int], *, generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> nn.Sequential:
    r"""Return a fully connected network with ReLU between its layers.

    Weights and biases are uniform in :math:`\pm 1/\sqrt{\text{inputs of the layer}}`.

    Parameters
    ----------
    sizes : sequence of int
        Number of pixels, hidden units of each layer, number of classes.
    generator : torch.Generator
        Source of the initial weights. They are drawn in float64 and then rounded, so that a float32
        network starts from the same numbers.
    dtype : torch.dtype, default torch.float64
        Type of the weights, and therefore of the images.

    Returns
    -------
    torch.nn.Sequential
        Maps images of shape (n, ...) with ``sizes[0]`` pixels each to logits of shape (n, ``sizes[-1]``).

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer, or there are fewer than two.

    Examples
    --------
    >>> network = mlp([784, 32, 10], generator=torch.Generator().manual_seed(0))
    >>> network(torch.zeros(5, 28, 28, dtype=torch.float64)).shape
    torch.Size([5, 10])
    """
    sizes = [integer("sizes", size, at_least=1) for size in sizes]
    if len(sizes) < 2:
        raise ValueError(f"sizes must name at least the pixels and the classes, got {sizes}")
    torch_generator("generator", generator)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [_initialised(nn.Linear, generator, inputs, outputs, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_cnn(
    *, generator: torch.Generator, n_classes: int = 10, dtype: torch.dtype = torch.float64
) -> nn.Sequential:
    """Return a small convolutional network for 28 × 28 images.

    Two convolutions of stride two (16 and 32 filters of 4 × 4) and two fully connected layers
    (100 hidden units), the architecture on which [Wong2020] trains MNIST. About ten times as
    expensive as the perceptron.

    Parameters
    ----------
    generator : torch.Generator
        Source of the initial weights.
    n_classes : int, default 10
        Number of logits.
    dtype : torch.dtype, default torch.float64
        Type of the weights, and therefore of the images.

    Returns
    -------
    torch.nn.Sequential
        Maps images of shape (n, 28, 28) or (n, 1, 28, 28) to logits.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Wong2020]

    Examples
    --------
    >>> network = small_cnn(generator=torch.Generator().manual_seed(0))
    >>> network(torch.zeros(5, 28, 28, dtype=torch.float64)).shape
    torch.Size([5, 10])
    """
    integer("n_classes", n_classes, at_least=2)
    torch_generator("generator", generator)
    return nn.Sequential(
        OneChannel(),
        _initialised(nn.Conv2d, generator, 1, 16, 4, stride=2, padding=1, dtype=dtype),
        nn.ReLU(),
        _initialised(nn.Conv2d, generator, 16, 32, 4, stride=2, padding=1, dtype=dtype),
        nn.ReLU(),
        nn.Flatten(),
        _initialised(nn.Linear, generator, 32 * 7 * 7, 100, dtype=dtype),
        nn.ReLU(),
        _initialised(nn.Linear, generator, 100, n_classes, dtype=dtype),
    )


class OneChannel(nn.Module):
    """The first layer of :func:`small_cnn`: it gives grey images of shape (n, height, width) a channel axis.

    Examples
    --------
    >>> OneChannel()(torch.zeros(5, 28, 28)).shape
    torch.Size([5, 1, 28, 28])
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return the images as (n, 1, height, width), whether or not they had the axis."""
        return images.reshape(len(images), 1, *images.shape[-2:])


class Normalised(nn.Module):
    """A model that shifts and scales its images itself, so that nobody outside has to.

    Attacks, radii and certificates then refer to pixels between 0 and 1, whatever the network was
    trained on.

    Parameters
    ----------
    model : torch.nn.Module
        Expects ``(images - mean) / std``.
    mean, std : float or sequence of float
        One number, or one per channel of images of shape (n, channels, height, width).

    Examples
    --------
    >>> inner = nn.Flatten()
    >>> Normalised(inner, mean=0.5, std=0.25)(torch.tensor([[0.0, 1.0]]))
    tensor([[-2.,  2.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: float | Sequence[float], std: float | Sequence[float]):
        super().__init__()
        self.model = model
        like = next(itertools.chain(model.parameters(), model.buffers()), torch.empty(()))
        for name, value in (("mean", mean), ("std", std)):
            channels = isinstance(value, Sequence)
            numbers = [
                real_number(name, number, above=0 if name == "std" else None)
                for number in (value if isinstance(value, Sequence) else [value])
            ]
            shape = (-1, 1, 1) if channels else ()
            self.register_buffer(name, like.new_tensor(numbers).reshape(shape))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images with pixels between 0 and 1."""
        return self.model((images - self.mean) / self.std)


class Counted(nn.Module):
    """A model that counts what is asked of it: the book's deterministic unit of cost.

    Parameters
    ----------
    model : callable
        The model to watch.

    Attributes
    ----------
    forward_passes : int
        Images for which logits were computed.
    gradients : int
        Images for which a gradient was computed; each needed one of the forward passes.

    Examples
    --------
    >>> model = Counted(mlp([4, 3], generator=torch.Generator().manual_seed(0)))
    >>> _ = model(torch.ones(5, 4, dtype=torch.float64)).sum().backward()
    >>> model.forward_passes, model.gradients
    (5, 5)
    """

    def __init__(self, model: Model):
        super().__init__()
        self.model = model
        self.forward_passes = 0
        self.gradients = 0

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, and count."""
        logits = self.model(images)
        self.forward_passes += len(images)
        if logits.requires_grad:
            logits.register_hook(self._count_gradients)
        return logits

    def _count_gradients(self, gradient: Tensor) -> None:
        self.gradients += len(gradient)


# --------------------------------------------------------------------------- asking a model


@contextlib.contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """Put a model, if it is a module, into evaluation mode and restore every submodule's own mode.

    A frozen batch norm inside a training model stays frozen afterwards, and the modes come back even
    when the block raises. Batch-norm statistics and dropout play no part inside the block.

    Parameters
    ----------
    model : callable
        Left alone unless it is a ``torch.nn.Module``: a plain function hides its modules.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> with evaluation_mode(network):
    ...     network.training
    False
    >>> network.training
    True
    """
    training = [m for m in model.modules() if m.training] if isinstance(model, nn.Module) else []
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def predict_logits(model: Model, images: Tensor, *, batch_size: int = 1000) -> Tensor:
    """Return the logits of many images, in evaluation mode and without gradients.

    Parameters
    ----------
    model : callable
        Maps images to logits.
    images : Tensor of shape (n, ...)
        The images.
    batch_size : int, default 1000
        How many are computed at once.

    Returns
    -------
    Tensor of shape (n, n_classes)

    Raises
    ------
    ValueError
        If there is no image or ``batch_size`` is not positive.

    Examples
    --------
    >>> network = mlp([4, 3], generator=torch.Generator().manual_seed(0))
    >>> predict_logits(network, torch.ones(5, 4, dtype=torch.float64), batch_size=2).shape
    torch.Size([5, 3])
    """
    batch_size = integer("batch_size", batch_size, at_least=1)
    if len(images) == 0:
        raise ValueError(f"images must not be empty, got shape {tuple(images.shape)}")
    with evaluation_mode(model), torch.no_grad():
        return torch.cat([model(batch) for batch in images.split(batch_size)])


def _initialised(
    kind: type[nn.Linear] | type[nn.Conv2d],
    generator: torch.Generator,
    *arguments: int,
    dtype: torch.dtype,
    **options: int,
) -> nn.Module:
    # skip_init, because torch's own initialisation draws from the global generator
    layer = nn.utils.skip_init(kind, *arguments, dtype=dtype, **options)
    bound = 1 / math.sqrt(layer.weight[0].numel())
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            uniform = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(bound * (2 * uniform - 1))
    return layer
