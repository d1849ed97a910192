"""Many small networks at once: the same training for all, one matrix product for all.

A curve over settings and seeds needs dozens of networks of the same shape. Stacked along a first axis,
their weights take part in one batched product per layer, and Adam works entry by entry, so that
each member ends with the weights that :func:`thousand_fingers.training.train` would have given it alone.
Members may see different examples and labels: each has its own rows in one common pool of inputs.
Chapter 9 uses it for its curves over poison share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from thousand_fingers.models import mlp
from thousand_fingers.validation import integer, integer_array, real_number, torch_generator


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Multilayer perceptrons of equal shape, stacked.

    Parameters
    ----------
    weights : tuple of Tensor
        One per layer, shape (members, inputs, outputs).
    biases : tuple of Tensor
        One per layer, shape (members, 1, outputs).
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.weights[0])

    def features(self, inputs: Tensor) -> Tensor:
        """Return what the last hidden layer says, for every member.

        Parameters
        ----------
        inputs : Tensor of shape (n, ...) or (members, n, pixels)
            The same inputs for all members, or one set for each.

        Returns
        -------
        Tensor of shape (members, n, hidden units)
        """
        with torch.no_grad():
            return _hidden(self.weights, self.biases, inputs)

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits of every member, shape (members, n, n_classes); inputs as :meth:`features`."""
        with torch.no_grad():
            hidden = _hidden(self.weights, self.biases, inputs)
            return torch.baddbmm(self.biases[-1], hidden, self.weights[-1])

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the class chosen by every member, shape (members, n); inputs as :meth:`features`."""
        return self.logits(inputs).argmax(dim=2)

    def member(self, index: int) -> nn.Sequential:
        """Return one member as a network of its own.

        Parameters
        ----------
        index : int
            Between 0 and the number of members minus 1.

        Returns
        -------
        torch.nn.Sequential
            Of the form that :func:`thousand_fingers.models.mlp` returns; a copy.
        """
        index = integer("index", index, at_least=0, at_most=len(self) - 1)
        sizes = [self.weights[0].shape[1], *(bias.shape[2] for bias in self.biases)]
        network = mlp(sizes, generator=torch.Generator(), dtype=self.weights[0].dtype)
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer, weight, bias in zip(linear, self.weights, self.biases, strict=True):
                layer.weight.copy_(weight[index].T)
                layer.bias.copy_(bias[index, 0])
        return network.eval()


def train_ensemble(
    pool: Tensor,
    rows: ArrayLike,
    labels: ArrayLike,
    *,
    sizes: Sequence[int],
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generators: Sequence[torch.Generator],
) -> Ensemble:
    """Train one perceptron per generator, all at once.

    Member m is trained on ``pool[rows[m]]`` with ``labels[m]``, starting from ``mlp(sizes,
    generator=generators[m])`` and in batches drawn from the same generator, as
    :func:`thousand_fingers.training.train` would.

    Parameters
    ----------
    pool : Tensor of shape (n_pool, ...)
        Every input that any member sees, once.
    rows : array-like of int, shape (members, n)
        Which inputs each member sees; all see the same number.
    labels : array-like of int, shape (members, n)
        What each member is told about them.
    sizes : sequence of int
        Pixels, hidden units of each layer, classes.
    epochs, batch_size, learning_rate
        As in :func:`thousand_fingers.training.train`.
    generators : sequence of torch.Generator
        One for each member.

    Returns
    -------
    Ensemble

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or shapes do not match.

    Examples
    --------
    >>> pool = torch.rand(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> labels = (pool[:, 0] > 0.5).long()
    >>> ensemble = train_ensemble(pool, [range(20)] * 3, labels.expand(3, 20), sizes=[4, 8, 2], epochs=5,
    ...     batch_size=10, learning_rate=0.1, generators=[torch.Generator().manual_seed(s) for s in range(3)])
    >>> ensemble.logits(pool).shape
    torch.Size([3, 20, 2])
    """
    if not isinstance(pool, Tensor) or not pool.is_floating_point():
        raise TypeError("pool must be a tensor of floating-point numbers")
    if not generators:
        raise ValueError("generators must hold at least one generator")
    for generator in generators:
        torch_generator("generators", generator)
    epochs = integer("epochs", epochs, at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    learning_rate = real_number("learning_rate", learning_rate, above=0)
    flat = pool.reshape(len(pool), -1)
    sizes = [integer("sizes", size, at_least=1) for size in sizes]
    if not sizes or flat.shape[1] != sizes[0]:
        raise ValueError(f"sizes must begin with the {flat.shape[1]} entries of an input, got {sizes}")
    members = len(generators)
    chosen = integer_array("rows", rows, shape=(members, None), at_least=0, at_most=len(pool) - 1)
    told = integer_array("labels", labels, shape=chosen.shape, at_least=0, at_most=sizes[-1] - 1)

    starts = [mlp(sizes, generator=generator, dtype=pool.dtype) for generator in generators]
    linear = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in starts]
    weights = [
        torch.stack([layer.weight.detach().T for layer in layers]).requires_grad_()
        for layers in zip(*linear, strict=True)
    ]
    biases = [
        torch.stack([layer.bias.detach().unsqueeze(0) for layer in layers]).requires_grad_()
        for layers in zip(*linear, strict=True)
    ]
    row_table, label_table = torch.from_numpy(np.array(chosen)), torch.from_numpy(np.array(told))
    every = torch.arange(members)[:, None]
    optimiser = torch.optim.Adam([*weights, *biases], lr=learning_rate)
    for _ in range(epochs):
        order = torch.stack([torch.randperm(chosen.shape[1], generator=g) for g in generators])
        for batch in order.split(batch_size, dim=1):
            hidden = _hidden(weights, biases, flat[row_table[every, batch]])
            logits = torch.baddbmm(biases[-1], hidden, weights[-1])
            # The mean inside a member, the sum over members: nobody's step depends on the others.
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), label_table[every, batch].flatten(), reduction="sum"
            )
            optimiser.zero_grad()
            (loss / batch.shape[1]).backward()
            optimiser.step()
    return Ensemble(tuple(w.detach() for w in weights), tuple(b.detach() for b in biases))


def _hidden(weights: Sequence[Tensor], biases: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """Apply every layer but the last to inputs common to all members or stacked by member."""
    members, entries = weights[0].shape[:2]
    stacked = inputs.dim() == 3 and inputs.shape[::2] == (members, entries)
    hidden = inputs if stacked else inputs.reshape(len(inputs), entries).expand(members, -1, -1)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        hidden = torch.relu(torch.baddbmm(bias, hidden, weight))
    return hidden
