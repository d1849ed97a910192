"""Many small networks at once: the same training for all, one matrix product for all.

A curve over settings and seeds needs dozens of networks of the same shape, an audit of memberships scores
of them. Stacked along a first axis, their weights take part in one batched product per layer, and the
optimiser works entry by entry, so that each member ends with the weights that it would have got alone.
Members may see different examples and labels: each has its own rows in one common pool of inputs.
Examples may count less than others, gradients may be clipped one by one and noise added, and chunks of
members may be trained by other processes or machines. Chapter 2 trains its shadow models with it,
chapter 9 its curves over poison share.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from thousand_fingers.models import mlp
from thousand_fingers.validation import (
    boolean_array,
    choice,
    integer,
    integer_array,
    numpy_generator,
    real_array,
    real_number,
    torch_generator,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


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

    def digest(self) -> str:
        """Return the SHA-256 of all weights and biases: equal digests, equal ensembles, bit for bit."""
        content = hashlib.sha256()
        for tensor in itertools.chain(self.weights, self.biases):
            content.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            content.update(np.ascontiguousarray(tensor.numpy()).tobytes())
        return content.hexdigest()


def paired_halves(members: int, n: int, *, rng: np.random.Generator) -> Bools:
    """Return which examples each member is trained on: half of them, every example by half of the members.

    Members come in pairs; the second of a pair gets exactly what the first left over. So both margins are
    exact: each member has n/2 examples, and each example is in members/2 training sets.

    Parameters
    ----------
    members : int
        Number of members, even, at least 2.
    n : int
        Number of examples, even, at least 2.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    ndarray of bool, shape (members, n)

    Raises
    ------
    TypeError, ValueError
        If a number is odd or out of range.

    Examples
    --------
    >>> halves = paired_halves(6, 10, rng=np.random.default_rng(0))
    >>> halves.sum(axis=0).tolist(), halves.sum(axis=1).tolist()
    ([3, 3, 3, 3, 3, 3, 3, 3, 3, 3], [5, 5, 5, 5, 5, 5])
    """
    members, n = integer("members", members, at_least=2), integer("n", n, at_least=2)
    numpy_generator("rng", rng)
    for name, number in (("members", members), ("n", n)):
        if number % 2:
            raise ValueError(f"{name} must be even, so that halves are halves, got {number}")
    halves = np.zeros((members, n), dtype=bool)
    for first in range(0, members, 2):
        halves[first, rng.permutation(n)[: n // 2]] = True
    halves[1::2] = ~halves[::2]
    return halves


def rows_of(membership: ArrayLike) -> Ints:
    """Return a table of memberships as the rows that :func:`train_ensemble` takes.

    Parameters
    ----------
    membership : array-like of bool, shape (members, n)
        Which examples each member is trained on; the same number for all.

    Returns
    -------
    ndarray of int64, shape (members, examples per member)

    Raises
    ------
    TypeError, ValueError
        If the members would see different numbers of examples, or none.

    Examples
    --------
    >>> rows_of([[True, False, True], [False, True, True]]).tolist()
    [[0, 2], [1, 2]]
    """
    table = boolean_array("membership", membership, shape=(None, None))
    sizes = set(table.sum(axis=1).tolist())
    if len(sizes) > 1 or sizes == {0}:
        raise ValueError(
            f"membership must give every member the same number of examples, got {sorted(sizes)}"
        )
    return np.nonzero(table)[1].reshape(len(table), -1)


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
    optimiser: str = "adam",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    weights: ArrayLike | None = None,
    noise_std: ArrayLike | None = None,
    max_grad_norm: float | None = None,
    chunk: int = 64,
    executor: Executor | None = None,
) -> Ensemble:
    r"""Train one perceptron per generator, all at once.

    Member m is trained on ``pool[rows[m]]`` with ``labels[m]``, starting from ``mlp(sizes,
    generator=generators[m])`` and in batches drawn from the same generator, as
    :func:`thousand_fingers.training.train` would. The optimiser sees, for a batch :math:`\mathcal B`,

    .. math:: \frac1{|\mathcal B|}\sum_{j\in\mathcal B}\bigl(\mathrm{clip}_C(w_j\,g_j)+u_j\bigr),
              \qquad u_j\sim\mathcal N(0,\sigma_j^2 I),

    where :math:`g_j` is the gradient of example j's loss. With everything left out this is the mean
    gradient. Independent Gaussians in a sum are one Gaussian of the summed variance, and that one is drawn.

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
        One for each member, no object twice; each is left as the training leaves it, wherever that happened.
    optimiser : {"adam", "sgd"}, default "adam"
        Adam, or gradient descent with momentum.
    momentum : float, default 0
        Of ``"sgd"``, in [0, 1).
    weight_decay : float, default 0
        Added to the gradient times the weights, at least 0.
    weights : array-like of float, shape (n_pool,), optional
        How much each input of the pool counts, at least 0; 1 by default.
    noise_std : float or array-like of float, shape (n_pool,), optional
        Standard deviation :math:`\sigma_j` of the noise added to the gradient *of each example*, at least 0;
        the mean over a batch of equals then has noise of :math:`\sigma/\sqrt{|\mathcal B|}`.
    max_grad_norm : float, optional
        Clipping norm C of each example's gradient, over all layers together, greater than 0.
    chunk : int, default 64
        How many members are trained together, at least 1.
    executor : concurrent.futures.Executor, optional
        Trains the chunks, each in one task on one thread: a process pool, or a Dask client's
        ``get_executor()``. The calling process by default, with the same result bit for bit.

    Returns
    -------
    Ensemble

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or shapes do not match.

    References
    ----------
    [Abadi2016] for clipping and noise, [Kingma2015] for Adam.

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
    if len({id(generator) for generator in generators}) < len(generators):
        raise ValueError(
            "generators must be different objects, got one of them twice: its members would be twins"
        )
    flat = pool.reshape(len(pool), -1)
    sizes = [integer("sizes", size, at_least=1) for size in sizes]
    if not sizes or flat.shape[1] != sizes[0]:
        raise ValueError(f"sizes must begin with the {flat.shape[1]} entries of an input, got {sizes}")
    members = len(generators)
    chosen = integer_array("rows", rows, shape=(members, None), at_least=0, at_most=len(pool) - 1)
    told = integer_array("labels", labels, shape=chosen.shape, at_least=0, at_most=sizes[-1] - 1)
    policy = _Policy(
        sizes=tuple(sizes),
        epochs=integer("epochs", epochs, at_least=1),
        batch_size=integer("batch_size", batch_size, at_least=1),
        learning_rate=real_number("learning_rate", learning_rate, above=0),
        optimiser=choice("optimiser", optimiser, ("adam", "sgd")),
        momentum=real_number("momentum", momentum, at_least=0, below=1),
        weight_decay=real_number("weight_decay", weight_decay, at_least=0),
        weights=None if weights is None else _per_input("weights", weights, len(pool)),
        noise_std=None if noise_std is None else _per_input("noise_std", noise_std, len(pool)),
        max_grad_norm=(
            None if max_grad_norm is None else real_number("max_grad_norm", max_grad_norm, above=0)
        ),
    )
    if momentum and optimiser == "adam":
        raise ValueError(f"momentum must be 0 with adam, which has its own, got {momentum}")
    chunk = integer("chunk", chunk, at_least=1)

    parts = [slice(first, first + chunk) for first in range(0, members, chunk)]
    inputs = flat.detach().numpy()
    states = [generator.get_state().numpy() for generator in generators]
    mapper = map if executor is None else executor.map
    results = list(
        mapper(
            _train_chunk,
            [inputs] * len(parts),
            [chosen[part] for part in parts],
            [told[part] for part in parts],
            [states[part] for part in parts],
            [policy] * len(parts),
        )
    )
    for generator, state in zip(generators, itertools.chain(*(r.states for r in results)), strict=True):
        generator.set_state(torch.from_numpy(state))

    def stacked(of: list[list[Any]]) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(np.concatenate(layer)) for layer in zip(*of, strict=True))

    return Ensemble(stacked([r.weights for r in results]), stacked([r.biases for r in results]))


@dataclass(frozen=True, eq=False)
class _Policy:
    """How every member is trained: what travels to a worker beside the data."""

    sizes: tuple[int, ...]
    epochs: int
    batch_size: int
    learning_rate: float
    optimiser: str
    momentum: float
    weight_decay: float
    weights: Floats | None
    noise_std: Floats | None
    max_grad_norm: float | None


@dataclass(frozen=True, eq=False)
class _Trained:
    """What comes back: weights and biases by layer, and the states of the generators."""

    weights: list[NDArray[Any]]
    biases: list[NDArray[Any]]
    states: list[NDArray[np.uint8]]


def _train_chunk(
    inputs: NDArray[Any], rows: Ints, labels: Ints, states: list[NDArray[np.uint8]], policy: _Policy
) -> _Trained:
    """Train some members, here or on another machine: NumPy arrays in, NumPy arrays out."""
    generators = [torch.Generator().set_state(torch.from_numpy(state)) for state in states]
    flat = torch.from_numpy(inputs)
    starts = [mlp(policy.sizes, generator=generator, dtype=flat.dtype) for generator in generators]
    linear = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in starts]
    weights = [torch.stack([one.weight.detach().T for one in layer]) for layer in zip(*linear, strict=True)]
    biases = [torch.stack([one.bias.detach()[None] for one in layer]) for layer in zip(*linear, strict=True)]
    parameters = [*weights, *biases]
    optimiser: torch.optim.Optimizer
    if policy.optimiser == "adam":
        optimiser = torch.optim.Adam(parameters, lr=policy.learning_rate, weight_decay=policy.weight_decay)
    else:
        optimiser = torch.optim.SGD(
            parameters,
            lr=policy.learning_rate,
            momentum=policy.momentum,
            weight_decay=policy.weight_decay,
        )
    row_table, label_table = torch.tensor(rows), torch.tensor(labels)
    every = torch.arange(len(generators))[:, None]
    counts = None if policy.weights is None else torch.from_numpy(policy.weights).to(flat.dtype)
    variances = None if policy.noise_std is None else torch.from_numpy(policy.noise_std**2)
    with _one_thread(), torch.no_grad():
        for _ in range(policy.epochs):
            order = torch.stack([torch.randperm(rows.shape[1], generator=g) for g in generators])
            for batch in order.split(policy.batch_size, dim=1):
                seen = row_table[every, batch]
                scale = None if counts is None else counts[seen][..., None]
                gradients = _mean_gradients(
                    weights, biases, flat[seen], label_table[every, batch], scale, policy.max_grad_norm
                )
                if variances is not None:
                    noise_std = variances[seen].sum(dim=1).sqrt() / batch.shape[1]
                    _add_noise(gradients, noise_std, generators)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                optimiser.step()
    return _Trained(
        [w.numpy() for w in weights], [b.numpy() for b in biases], [g.get_state().numpy() for g in generators]
    )


def _mean_gradients(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    inputs: Tensor,
    labels: Tensor,
    scale: Tensor | None,
    max_grad_norm: float | None,
) -> list[Tensor]:
    """Return the mean gradient of every member: of all weights, then of all biases.

    Backpropagation by hand, because it passes the gradient of every example at every layer, from which
    the norm of an example's whole gradient follows without forming it: for a linear layer the squared norm
    is that of its input (and 1 for the bias) times that of its output's gradient.
    """
    hidden = [inputs]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        hidden.append(torch.relu(torch.baddbmm(bias, hidden[-1], weight)))
    logits = torch.baddbmm(biases[-1], hidden[-1], weights[-1])
    with torch.enable_grad():
        logits.requires_grad_()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        # The mean inside a member, the sum over members: nobody's step depends on the others.
        (outward,) = torch.autograd.grad(loss / labels.shape[1], logits)
    if scale is not None:
        outward = outward * scale
    backward = [outward]
    for weight, active in zip(reversed(weights[1:]), reversed(hidden[1:]), strict=True):
        backward.insert(0, torch.bmm(backward[0], weight.transpose(1, 2)) * (active > 0))
    if max_grad_norm is not None:
        squared = sum(
            (1 + active.square().sum(dim=2)) * back.square().sum(dim=2)
            for active, back in zip(hidden, backward, strict=True)
        )
        norms = labels.shape[1] * torch.as_tensor(squared).sqrt()
        shrink = (max_grad_norm / norms.clamp(min=max_grad_norm))[..., None]
        backward = [back * shrink for back in backward]
    of_weights = [
        torch.bmm(active.transpose(1, 2), back) for active, back in zip(hidden, backward, strict=True)
    ]
    return of_weights + [back.sum(dim=1, keepdim=True) for back in backward]


def _add_noise(gradients: list[Tensor], noise_std: Tensor, generators: Sequence[torch.Generator]) -> None:
    """Add Gaussian noise in place, of one standard deviation for each member and from its own generator."""
    sizes = [gradient[0].numel() for gradient in gradients]
    noise = torch.stack([torch.randn(sum(sizes), generator=g, dtype=torch.float64) for g in generators])
    noise *= noise_std[:, None]
    for gradient, part in zip(gradients, noise.split(sizes, dim=1), strict=True):
        gradient += part.view_as(gradient)


def _per_input(name: str, values: ArrayLike, n: int) -> Floats:
    """Return one number of at least 0 for each of n inputs, from as many or from one."""
    array = np.broadcast_to(values, (n,)) if np.ndim(values) == 0 else values
    return real_array(name, array, shape=(n,), at_least=0)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute on one thread, as every member would alone, and restore what was set."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _hidden(weights: Sequence[Tensor], biases: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """Apply every layer but the last to inputs common to all members or stacked by member."""
    members, entries = weights[0].shape[:2]
    stacked = inputs.dim() == 3 and inputs.shape[::2] == (members, entries)
    hidden = inputs if stacked else inputs.reshape(len(inputs), entries).expand(members, -1, -1)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        hidden = torch.relu(torch.baddbmm(bias, hidden, weight))
    return hidden
