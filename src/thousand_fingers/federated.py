"""Federated averaging: the model travels to the data, and what comes back is averaged.

FedAvg and its special case FedSGD are by McMahan et al. [McMahan2017]; so is the split of digits into shards
of two classes. Averaging weighs each client by its number of examples *among the clients that answered*.
Privacy for whole clients follows [McMahan2018]: capped weights, clipped updates, a fixed denominator, noise;
the clipping norm that follows the clients is by Andrew et al. [Andrew2021]. Chapter 6 explains all of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from thousand_fingers.training import cross_entropy
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
Evaluation = Callable[[nn.Module], float]

_CACHE_BYTES = 8_000_000
_LARGEST_EXPONENT = 700.0

# --------------------------------------------------------------------------- who holds which examples


def iid_partition(n: int, n_clients: int, rng: np.random.Generator) -> tuple[Ints, ...]:
    """Deal examples to clients as one deals cards: at random, as evenly as the numbers allow.

    Parameters
    ----------
    n : int
        Number of examples.
    n_clients : int
        Number of clients, at most ``n``.
    rng : numpy.random.Generator
        Source of the order.

    Returns
    -------
    tuple of ndarray of int64
        For each client the positions of its examples; disjoint, and together all of them.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [McMahan2017]

    Examples
    --------
    >>> [len(rows) for rows in iid_partition(10, 4, np.random.default_rng(0))]
    [3, 3, 2, 2]
    """
    n = integer("n", n, at_least=1)
    n_clients = integer("n_clients", n_clients, at_least=1, at_most=n)
    numpy_generator("rng", rng)
    return tuple(np.array_split(rng.permutation(n), n_clients))


def shard_partition(
    labels: ArrayLike, n_clients: int, rng: np.random.Generator, *, shards_per_client: int = 2
) -> tuple[Ints, ...]:
    """Sort the examples by class, cut them into equal shards, and give each client a few shards.

    If the size of a shard divides the size of every class, nobody gets more than ``shards_per_client``
    classes; otherwise a shard may straddle two. Somebody may get fewer: two shards of one class.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        The class of every example.
    n_clients : int
        Number of clients; ``n_clients * shards_per_client`` is at most n.
    rng : numpy.random.Generator
        Source of the order within a class, and of who gets which shard.
    shards_per_client : int, default 2
        How many shards each gets.

    Returns
    -------
    tuple of ndarray of int64
        As in :func:`iid_partition`. Shards differ by one example where n is not divisible.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [McMahan2017]

    Examples
    --------
    >>> labels = np.repeat([0, 1, 2, 3], 5)
    >>> clients = shard_partition(labels, 2, np.random.default_rng(0))
    >>> [sorted(set(labels[rows].tolist())) for rows in clients]
    [[2, 3], [0, 1]]
    """
    true = integer_array("labels", labels, ndim=1, at_least=0)
    n_clients = integer("n_clients", n_clients, at_least=1)
    shards_per_client = integer("shards_per_client", shards_per_client, at_least=1)
    count = n_clients * shards_per_client
    if count > true.size:
        raise ValueError(f"{count} shards need as many examples, got {true.size}")
    numpy_generator("rng", rng)
    mixed = rng.permutation(true.size)
    shards = np.array_split(mixed[np.argsort(true[mixed], kind="stable")], count)
    dealt = rng.permutation(count).reshape(n_clients, shards_per_client)
    return tuple(np.concatenate([shards[shard] for shard in row]) for row in dealt)


def dirichlet_partition(
    labels: ArrayLike,
    n_clients: int,
    concentration: float,
    rng: np.random.Generator,
    *,
    min_size: int = 1,
    attempts: int = 100,
) -> tuple[Ints, ...]:
    """Share out every class in proportions drawn from a Dirichlet distribution.

    Every example goes to exactly one client. A draw that leaves somebody with fewer than ``min_size``
    examples is thrown away and repeated, never repaired by handing out an example twice.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        The class of every example.
    n_clients : int
        Number of clients.
    concentration : float
        Greater than 0. Large: everybody gets the mixture of the whole; small: hardly anybody gets more than
        one class.
    rng : numpy.random.Generator
        Source of proportions and order.
    min_size : int, default 1
        Fewest examples of a client.
    attempts : int, default 100
        Draws before giving up.

    Returns
    -------
    tuple of ndarray of int64
        As in :func:`iid_partition`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or no draw gave everybody enough.

    References
    ----------
    [Hsu2019]

    Examples
    --------
    >>> clients = dirichlet_partition([0, 1] * 50, 3, 0.5, np.random.default_rng(0))
    >>> sorted(np.concatenate(clients).tolist()) == list(range(100))
    True
    """
    true = integer_array("labels", labels, ndim=1, at_least=0)
    n_clients = integer("n_clients", n_clients, at_least=1)
    concentration = real_number("concentration", concentration, above=0)
    min_size = integer("min_size", min_size, at_least=0)
    attempts = integer("attempts", attempts, at_least=1)
    numpy_generator("rng", rng)
    if n_clients * min_size > true.size:
        raise ValueError(f"{n_clients} clients of at least {min_size} need more than {true.size} examples")
    for _ in range(attempts):
        parts: list[list[Ints]] = [[] for _ in range(n_clients)]
        for label in np.unique(true):
            rows = rng.permutation(np.flatnonzero(true == label))
            shares = rng.dirichlet(np.full(n_clients, concentration))
            if not np.isfinite(shares).all():  # all gamma variates underflowed: one client takes the class
                shares = np.eye(n_clients)[rng.integers(n_clients)]
            cuts = np.rint(np.cumsum(shares)[:-1] * rows.size).astype(np.int64)
            for part, piece in zip(parts, np.split(rows, np.minimum(cuts, rows.size)), strict=True):
                part.append(piece)
        clients = tuple(rng.permutation(np.concatenate(part)) for part in parts)
        if min(rows.size for rows in clients) >= min_size:
            return clients
    raise ValueError(
        f"no draw in {attempts} gave each of {n_clients} clients at least {min_size} examples; raise the "
        f"concentration of {concentration} or lower min_size"
    )


# --------------------------------------------------------------------------- who takes part


def clients_per_round(n_clients: int, share: float) -> int:
    """Return how many clients a share is: rounded to the nearest number, and at least one.

    Cutting off instead, as ``int(100 * 0.29)`` does, gives 28.

    Parameters
    ----------
    n_clients : int
        Number of clients.
    share : float
        Between 0 and 1; 0 means a single client, as in [McMahan2017].

    Returns
    -------
    int

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> clients_per_round(100, 0.29), clients_per_round(100, 0.0)
    (29, 1)
    """
    n_clients = integer("n_clients", n_clients, at_least=1)
    share = real_number("share", share, at_least=0, at_most=1)
    return max(1, round(n_clients * share))


def sample_clients(n_clients: int, count: int, rng: np.random.Generator) -> Ints:
    """Draw the clients of a round, without repetition.

    Parameters
    ----------
    n_clients : int
        Number of clients; they are called 0, 1, 2, …
    count : int
        How many take part.
    rng : numpy.random.Generator
        Source of the choice, and nothing else decides it.

    Returns
    -------
    ndarray of int64
        In increasing order.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> sample_clients(100, 3, np.random.default_rng(0)).tolist()
    [51, 63, 83]
    """
    n_clients = integer("n_clients", n_clients, at_least=1)
    count = integer("count", count, at_least=1, at_most=n_clients)
    numpy_generator("rng", rng)
    return np.sort(rng.choice(n_clients, size=count, replace=False))


# --------------------------------------------------------------------------- the average


@dataclass(frozen=True, eq=False)
class Update:
    """What one client sends at the end of a round.

    Parameters
    ----------
    client : int
        Who.
    round_number : int
        The round in which the model was handed out.
    n_k : int
        How many examples the client trained on.
    arrays : tuple of ndarray
        Its new weights, layer by layer.
    """

    client: int
    round_number: int
    n_k: int
    arrays: tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class Rejection:
    """A client whose update was left out, and why."""

    client: int
    reason: str


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The average of a round.

    Parameters
    ----------
    arrays : tuple of ndarray
        The new global weights, in the types of the old ones.
    n_examples : int
        Examples behind the average: the n of the formula.
    clients : tuple of int
        Whose updates went in, in increasing order.
    rejected : tuple of Rejection
        Whose did not.
    """

    arrays: tuple[NDArray[Any], ...]
    n_examples: int
    clients: tuple[int, ...]
    rejected: tuple[Rejection, ...]


class RoundSkipped(ValueError):  # noqa: N818 - what happened, not a mistake of the caller
    """Too few usable updates came back: keep the old model.

    Attributes
    ----------
    rejected : tuple of Rejection
        What was wrong with those that came.
    """

    def __init__(self, message: str, rejected: tuple[Rejection, ...]):
        super().__init__(message)
        self.rejected = rejected


def aggregate(
    current: Sequence[NDArray[Any]],
    updates: Iterable[Update],
    *,
    round_number: int,
    min_clients: int = 1,
    strict: bool = False,
) -> Aggregate:
    r"""Average the weights of the clients that answered, each weighted by its number of examples.

    .. math:: \theta_{t+1} = \sum_{k \in S_t} \frac{n_k}{n}\,\theta^k_{t+1},
              \qquad n = \sum_{k \in S_t} n_k

    The sums run over the same set :math:`S_t`. Updates that cannot be used are left out before anything is
    multiplied, and named with the reason: another round, no examples, another shape, a number that is not
    finite, two different answers of one client. (The same answer twice counts once.)

    The sum is carried in float64 in the order of the clients' numbers, so that the order of arrival does
    not change a bit; as a running mean, so that clients who agree are returned exactly.

    Parameters
    ----------
    current : sequence of ndarray
        The global weights, which give shapes and types; never modified, and never part of the average.
    updates : iterable of Update
        What came back, in any order.
    round_number : int
        The round that is being closed.
    min_clients : int, default 1
        Fewest clients for which the model moves.
    strict : bool, default False
        Whether to raise if any update cannot be used, instead of leaving it out.

    Returns
    -------
    Aggregate

    Raises
    ------
    TypeError
        If ``current`` holds whole numbers: a counter has no average.
    RoundSkipped
        If fewer than ``min_clients`` updates can be used. It is a ``ValueError``.
    ValueError
        If ``strict`` and an update cannot be used, or the average is no finite number of the old type.

    References
    ----------
    [McMahan2017]

    Examples
    --------
    >>> model = (np.array([0.0, 0.0]),)
    >>> came = [Update(0, 1, 1, (np.array([1.0, 2.0]),)), Update(1, 1, 3, (np.array([5.0, 6.0]),)),
    ...         Update(2, 1, 9, (np.array([np.nan, 0.0]),))]
    >>> average = aggregate(model, came, round_number=1)
    >>> average.arrays[0].tolist(), average.n_examples, average.rejected[0].reason
    ([4.0, 5.0], 4, 'weights are not finite')
    """
    for array in current:
        if not np.issubdtype(np.asarray(array).dtype, np.floating):
            raise TypeError(f"weights must be floating-point numbers, got {np.asarray(array).dtype}")
    round_number = integer("round_number", round_number, at_least=0)
    min_clients = integer("min_clients", min_clients, at_least=1)
    sent: dict[int, list[Update]] = {}
    for update in updates:
        sent.setdefault(update.client, []).append(update)
    accepted: dict[int, Update] = {}
    rejected: list[Rejection] = []
    for client in sorted(sent):
        reasons = [_why_unusable(update, current, round_number) for update in sent[client]]
        usable = [update for update, reason in zip(sent[client], reasons, strict=True) if reason is None]
        if not all(_same(usable[0], other) for other in usable[1:]):
            reasons.append("sent two different updates")
        elif usable:
            accepted[client] = usable[0]
        rejected += [Rejection(client, reason) for reason in sorted(filter(None, set(reasons)))]
    causes = "".join(f"; client {rejection.client}: {rejection.reason}" for rejection in rejected)
    if strict and rejected:
        raise ValueError(f"updates that cannot be used{causes}")
    if len(accepted) < min_clients:
        raise RoundSkipped(
            f"round {round_number} has updates of {len(accepted)} clients with examples, fewer than "
            f"{min_clients}{causes}",
            tuple(rejected),
        )
    means = [np.zeros(np.shape(array)) for array in current]
    seen = 0
    for update in accepted.values():
        n_k = int(update.n_k)  # a sum of NumPy's integers could overflow
        seen += n_k
        for mean, array in zip(means, update.arrays, strict=True):
            mean += (np.asarray(array, dtype=np.float64) - mean) * (n_k / seen)
    if not all(np.isfinite(mean).all() for mean in means):
        raise ValueError("the average is not finite: the weights of two clients are too far apart")
    with np.errstate(over="ignore"):  # said below
        arrays = tuple(
            mean.astype(np.asarray(array).dtype) for mean, array in zip(means, current, strict=True)
        )
    if not all(np.isfinite(array).all() for array in arrays):
        types = sorted({str(array.dtype) for array in arrays})
        raise ValueError(f"the average is too large for the type of the weights, {', '.join(types)}")
    return Aggregate(
        arrays,
        seen,
        tuple(accepted),
        tuple(rejected),
    )


def _why_unusable(update: Update, current: Sequence[NDArray[Any]], round_number: int) -> str | None:
    if update.round_number != round_number:
        return f"update belongs to round {update.round_number}, not {round_number}"
    if isinstance(update.n_k, bool) or not isinstance(update.n_k, int | np.integer):
        return f"number of examples must be an integer, got {update.n_k!r}"
    if update.n_k < 0:
        return f"number of examples must be >= 0, got {update.n_k}"
    if update.n_k == 0:
        return "no examples"
    shapes = [np.shape(array) for array in update.arrays]
    wanted = [np.shape(array) for array in current]
    if shapes != wanted:
        return f"shapes {shapes} are not {wanted}"
    if not all(np.issubdtype(np.asarray(array).dtype, np.floating) for array in update.arrays):
        return "weights are not floating-point numbers"
    if not all(np.isfinite(array).all() for array in update.arrays):
        return "weights are not finite"
    return None


def _same(one: Update, other: Update) -> bool:
    return one.n_k == other.n_k and all(map(np.array_equal, one.arrays, other.arrays))


# --------------------------------------------------------------------------- training at the clients


def client_update(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch_size: int | None,
    learning_rate: float,
    generator: torch.Generator,
) -> int:
    """Train one client's copy of the model in place, by plain gradient descent: the loop of the paper.

    No momentum, no weight decay, no clipping, and nothing remembered from an earlier round.

    Parameters
    ----------
    model : torch.nn.Module
        A copy of the global model; left in the mode in which it came.
    images : Tensor of shape (n_k, ...)
        The client's examples.
    labels : Tensor of int64, shape (n_k,)
        Their classes.
    epochs : int
        How often every example is used (E).
    batch_size : int or None
        Examples per step (B); None for all of them.
    learning_rate : float
        The step η.
    generator : torch.Generator
        Source of the order, which is drawn anew in every epoch.

    Returns
    -------
    int
        Number of steps: E times n_k/B, rounded up.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [McMahan2017, Algorithm 1]

    Examples
    --------
    >>> from thousand_fingers.models import mlp
    >>> generator = torch.Generator().manual_seed(0)
    >>> images, labels = torch.ones(7, 4, dtype=torch.float64), torch.zeros(7, dtype=torch.int64)
    >>> client_update(mlp([4, 2], generator=generator), images, labels, epochs=2, batch_size=3,
    ...               learning_rate=0.1, generator=generator)
    6
    """
    epochs, size, learning_rate = _local_settings(epochs, batch_size, learning_rate)
    torch_generator("generator", generator)
    if len(images) == 0 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must have one entry per image, got {tuple(labels.shape)} for {tuple(images.shape)}"
        )
    if bool((labels < 0).any()):  # torch passes over the label -100 in silence
        raise ValueError(f"labels must be >= 0, got {int(labels.min())}")
    parameters = [p for p in model.parameters() if p.requires_grad]
    steps = 0
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        for _ in range(epochs):
            for batch in torch.randperm(len(images), generator=generator).split(size or len(images)):
                gradient = torch.autograd.grad(cross_entropy(model, images[batch], labels[batch]), parameters)
                with torch.no_grad():
                    for parameter, slope in zip(parameters, gradient, strict=True):
                        parameter.sub_(slope, alpha=learning_rate)
                steps += 1
    finally:
        for module, mode in modes:
            module.training = mode
    return steps


def train_clients(
    model: nn.Sequential,
    images: Tensor,
    labels: Tensor,
    clients: Sequence[ArrayLike],
    *,
    epochs: int,
    batch_size: int | None,
    learning_rate: float,
    generators: Sequence[torch.Generator],
    chunk_size: int | None = None,
    executor: Executor | None = None,
) -> list[tuple[NDArray[Any], ...]]:
    """Train copies of a perceptron at many clients at once.

    Client k ends where :func:`client_update` would have taken it with the same generator, however many
    examples it holds and whoever trains beside it. Every weight is trained, also one whose ``requires_grad``
    is off. The weights of all clients are stacked along a first
    axis; a step of all is one batched product per layer and direction.

    Parameters
    ----------
    model : torch.nn.Sequential
        The global model, of the form that :func:`thousand_fingers.models.mlp` returns; not modified.
    images : Tensor of shape (n, ...)
        The examples of all clients.
    labels : Tensor of int64, shape (n,)
        Their classes.
    clients : sequence of array-like of int
        For each client the positions of its examples, at least one.
    epochs, batch_size, learning_rate
        As in :func:`client_update`.
    generators : sequence of torch.Generator
        One for each client.
    chunk_size : int, optional
        How many clients are stacked at once; by default as many as have weights of eight megabytes together,
        about what a processor's cache holds. It changes the time, not the result.
    executor : concurrent.futures.Executor, optional
        Computes the chunks; the calling process by default.

    Returns
    -------
    list of tuple of ndarray
        For each client its weights, in the order of ``model.parameters()``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the model is not a perceptron with ReLU.

    Examples
    --------
    >>> from thousand_fingers.models import mlp
    >>> images = torch.rand(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> labels = (images[:, 0] > 0.5).long()
    >>> model = mlp([4, 3, 2], generator=torch.Generator().manual_seed(1))
    >>> trained = train_clients(model, images, labels, [range(2), range(2, 12)], epochs=1, batch_size=4,
    ...     learning_rate=0.1, generators=[torch.Generator().manual_seed(k) for k in range(2)])
    >>> len(trained), [array.shape for array in trained[1]]
    (2, [(3, 4), (3,), (2, 3), (2,)])
    """
    epochs, size, learning_rate = _local_settings(epochs, batch_size, learning_rate)
    layers = _perceptron_layers(model)
    if chunk_size is None:
        chunk_size = max(1, _CACHE_BYTES // sum(p.numel() * p.element_size() for p in model.parameters()))
    chunk_size = integer("chunk_size", chunk_size, at_least=1)
    n_classes = layers[-1].out_features
    integer_array("labels", labels.numpy(), shape=(len(images),), at_least=0, at_most=n_classes - 1)
    rows = [
        integer_array("clients", client, ndim=1, at_least=0, at_most=len(images) - 1) for client in clients
    ]
    if len(generators) != len(rows):
        raise ValueError(f"generators must be one for each of the {len(rows)} clients, got {len(generators)}")
    for generator in generators:
        torch_generator("generators", generator)
    if images.dtype != layers[0].weight.dtype:
        raise TypeError(f"images must be {layers[0].weight.dtype} like the weights, got {images.dtype}")
    # Clients with many steps first: those who have finished are then always the last of their chunk.
    plans = [
        _plan(len(row), epochs, size, generator) for row, generator in zip(rows, generators, strict=True)
    ]
    order = sorted(range(len(plans)), key=lambda k: -len(plans[k]))
    chunks = [order[i : i + chunk_size] for i in range(0, len(order), chunk_size)]
    weights = [layer.weight.detach().T.contiguous() for layer in layers]
    biases = [layer.bias.detach() for layer in layers]
    tasks = []
    for chunk in chunks:
        inputs, truth = _own_examples(images, labels, [rows[k] for k in chunk])
        batches, shares, active = _side_by_side([plans[k] for k in chunk], images.dtype)
        tasks.append(_Task(weights, biases, learning_rate, inputs, truth, batches, shares, active))
    trained = map(_train_chunk, tasks) if executor is None else executor.map(_train_chunk, tasks)
    found: dict[int, tuple[NDArray[Any], ...]] = {}
    for chunk, results in zip(chunks, trained, strict=True):
        found.update(zip(chunk, results, strict=True))
    return [found[k] for k in range(len(rows))]


@dataclass(frozen=True, eq=False)
class _Task:
    """What a chunk of clients needs: sent to another process as it is."""

    weights: list[Tensor]
    biases: list[Tensor]
    learning_rate: float
    inputs: Tensor  # (clients, most examples, pixels), padded with zeros
    labels: Tensor  # (clients, most examples)
    batches: Tensor  # (steps, clients, batch): positions among the client's own examples
    shares: Tensor  # (steps, clients, batch): 1 / size of the batch, or 0 for padding
    active: list[int]  # how many clients still train in each step


def _plan(n_k: int, epochs: int, size: int | None, generator: torch.Generator) -> list[Tensor]:
    """Return the batches of one client, drawn as :func:`client_update` draws them."""
    return [
        batch for _ in range(epochs) for batch in torch.randperm(n_k, generator=generator).split(size or n_k)
    ]


def _own_examples(images: Tensor, labels: Tensor, rows: Sequence[Ints]) -> tuple[Tensor, Tensor]:
    most = max(row.size for row in rows)
    inputs = images.new_zeros(len(rows), most, images[0].numel())
    truth = labels.new_zeros(len(rows), most)
    for k, row in enumerate(rows):
        own = torch.from_numpy(np.array(row))
        inputs[k, : row.size] = images[own].flatten(1)
        truth[k, : row.size] = labels[own]
    return inputs, truth


def _side_by_side(plans: Sequence[list[Tensor]], dtype: torch.dtype) -> tuple[Tensor, Tensor, list[int]]:
    """Lay the batches of a chunk side by side, padded with examples that count nothing."""
    steps, width = len(plans[0]), max(len(batch) for plan in plans for batch in plan)
    chosen = torch.zeros(steps, len(plans), width, dtype=torch.int64)
    shares = torch.zeros(steps, len(plans), width, dtype=dtype)
    for k, plan in enumerate(plans):
        for step, batch in enumerate(plan):
            chosen[step, k, : len(batch)] = batch
            shares[step, k, : len(batch)] = 1 / len(batch)
    return chosen, shares, [sum(len(plan) > step for plan in plans) for step in range(steps)]


def _train_chunk(task: _Task) -> list[tuple[NDArray[Any], ...]]:
    """Take every client of a chunk through its steps of gradient descent."""
    clients, most, pixels = task.inputs.shape
    layers: list[_DenseLayer] = [
        _DenseLayer(weight, bias, clients, task.learning_rate)
        for weight, bias in zip(task.weights[1:], task.biases[1:], strict=True)
    ]
    first_layer = _SpannedFirstLayer if most < pixels else _DenseFirstLayer
    first = first_layer(task.weights[0], task.biases[0], task.inputs, task.learning_rate)
    for batch, share, active in zip(task.batches, task.shares, task.active, strict=True):
        rows = batch[:active]
        outputs = [first.forward(rows)]
        for layer in layers:
            outputs.append(layer.forward(outputs[-1].relu_()))
        # The gradient of the mean cross-entropy at the logits: (softmax - one-hot) / batch size.
        slope = torch.softmax(outputs.pop(), dim=2)
        truth = task.labels[:active].gather(1, rows).unsqueeze(2)
        slope.scatter_add_(2, truth, slope.new_full(truth.shape, -1))
        slope *= share[:active].unsqueeze(2)
        for layer, hidden in zip(reversed(layers), reversed(outputs), strict=True):
            below = layer.backward(slope, active) * (hidden > 0)
            layer.descend(hidden, slope)
            slope = below
        first.descend(rows, slope)
    flat = [first.weights().mT, first.biases[:, 0]]
    for layer in layers:
        flat += [layer.weights.mT, layer.biases[:, 0]]
    return [tuple(array[k].numpy() for array in flat) for k in range(clients)]


class _DenseLayer:
    """One layer of many clients: stacked weights, one batched product for all."""

    def __init__(self, weight: Tensor, bias: Tensor, clients: int, learning_rate: float):
        self.weights = weight.expand(clients, -1, -1).clone()
        self.biases = bias.expand(clients, 1, -1).clone()
        self.learning_rate = learning_rate

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.baddbmm(self.biases[: len(inputs)], inputs, self.weights[: len(inputs)])

    def backward(self, slope: Tensor, active: int) -> Tensor:
        return torch.bmm(slope, self.weights[:active].mT)

    def descend(self, inputs: Tensor, slope: Tensor) -> None:
        active = len(slope)
        self.weights[:active].baddbmm_(inputs.mT, slope, alpha=-self.learning_rate)
        self.biases[:active].sub_(slope.sum(dim=1, keepdim=True), alpha=self.learning_rate)


class _DenseFirstLayer:
    """The first layer, whose inputs are the clients' examples."""

    def __init__(self, weight: Tensor, bias: Tensor, inputs: Tensor, learning_rate: float):
        self.layer = _DenseLayer(weight, bias, len(inputs), learning_rate)
        self.inputs = inputs

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer.forward(_pick(self.inputs, rows))

    def descend(self, rows: Tensor, slope: Tensor) -> None:
        self.layer.descend(_pick(self.inputs, rows), slope)

    def weights(self) -> Tensor:
        return self.layer.weights

    @property
    def biases(self) -> Tensor:
        return self.layer.biases


class _SpannedFirstLayer:
    r"""The same layer for clients with fewer examples than pixels.

    Gradient descent moves the first weights only along the client's own examples: :math:`W = W_0 + X^\top A`
    with one row of A per example. So :math:`XW = XW_0 + (XX^\top)A`, and a step touches a few rows of A
    instead of a whole matrix of weights.
    """

    def __init__(self, weight: Tensor, bias: Tensor, inputs: Tensor, learning_rate: float):
        self.start, self.inputs, self.learning_rate = weight, inputs, learning_rate
        self.biases = bias.expand(len(inputs), 1, -1).clone()
        self.unmoved = inputs @ weight
        self.gram = inputs @ inputs.mT
        self.coefficients = torch.zeros_like(self.unmoved)

    def forward(self, rows: Tensor) -> Tensor:
        active = len(rows)
        outputs = _pick(self.unmoved, rows) + self.biases[:active]
        return outputs.baddbmm_(_pick(self.gram, rows), self.coefficients[:active])

    def descend(self, rows: Tensor, slope: Tensor) -> None:
        step = -self.learning_rate * slope
        self.coefficients[: len(rows)].scatter_add_(1, rows.unsqueeze(2).expand_as(step), step)
        self.biases[: len(rows)].add_(step.sum(dim=1, keepdim=True))

    def weights(self) -> Tensor:
        return torch.baddbmm(self.start.expand(len(self.inputs), -1, -1), self.inputs.mT, self.coefficients)


def _pick(values: Tensor, rows: Tensor) -> Tensor:
    """Return for each client the rows asked for."""
    return values[: len(rows)].gather(1, rows.unsqueeze(2).expand(-1, -1, values.shape[2]))


def model_arrays(model: nn.Module) -> tuple[NDArray[Any], ...]:
    """Return copies of a model's weights, in the order of ``model.parameters()``.

    Parameters
    ----------
    model : torch.nn.Module
        The model.

    Returns
    -------
    tuple of ndarray

    Raises
    ------
    TypeError
        If the model has buffers, such as the running means of batch norm: they are not weights, and averaging
        them is another question.

    Examples
    --------
    >>> [array.shape for array in model_arrays(nn.Linear(3, 2))]
    [(2, 3), (2,)]
    """
    if names := [name for name, _ in model.named_buffers()]:
        raise TypeError(f"model must have weights only, got the buffers {', '.join(names)}")
    return tuple(parameter.detach().numpy().copy() for parameter in model.parameters())


def with_arrays(model: nn.Module, arrays: Sequence[NDArray[Any]]) -> nn.Module:
    """Return a copy of a model with other weights.

    Parameters
    ----------
    model : torch.nn.Module
        Gives the form; not modified.
    arrays : sequence of ndarray
        As :func:`model_arrays` returns them.

    Returns
    -------
    torch.nn.Module

    Raises
    ------
    ValueError
        If number or shapes do not match: nothing is broadcast.

    Examples
    --------
    >>> model = with_arrays(nn.Linear(1, 1), (np.array([[2.0]]), np.array([3.0])))
    >>> model(torch.ones(1)).tolist()
    [5.0]
    """
    shapes = [tuple(p.shape) for p in model.parameters()]
    if [np.shape(array) for array in arrays] != shapes:
        raise ValueError(f"arrays must have shapes {shapes}, got {[np.shape(array) for array in arrays]}")
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, array in zip(other.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(np.array(array)))
    return other


def _perceptron_layers(model: nn.Module) -> list[nn.Linear]:
    layers = list(model.children()) if isinstance(model, nn.Sequential) else []
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    kinds = [type(layer) for layer in layers]
    expected = [nn.Flatten, *([nn.Linear, nn.ReLU] * len(linear))[:-1]]
    if not linear or kinds != expected or any(layer.bias is None for layer in linear):
        raise TypeError(
            "model must be a perceptron as models.mlp returns it: Flatten, then Linear layers with ReLU between"
        )
    return linear


def _local_settings(
    epochs: int, batch_size: int | None, learning_rate: float
) -> tuple[int, int | None, float]:
    return (
        integer("epochs", epochs, at_least=1),
        None if batch_size is None else integer("batch_size", batch_size, at_least=1),
        real_number("learning_rate", learning_rate, above=0),
    )


# --------------------------------------------------------------------------- round after round


@dataclass(frozen=True)
class Round:
    """What happened in one round.

    Parameters
    ----------
    clients : tuple of int
        Who was asked.
    n_examples : int
        Examples behind the average; 0 if the round was skipped.
    rejected : tuple of Rejection
        Whose update was left out, and why.
    skipped : bool
        Whether the model stayed as it was.
    score : float
        What ``evaluate`` said about the model after the round; NaN without it.
    """

    clients: tuple[int, ...]
    n_examples: int
    rejected: tuple[Rejection, ...]
    skipped: bool
    score: float


@dataclass(frozen=True, eq=False)
class Federation:
    """The end of a federated training.

    Parameters
    ----------
    model : torch.nn.Module
        The global model, in evaluation mode.
    rounds : tuple of Round
        The report, round by round.
    """

    model: nn.Module
    rounds: tuple[Round, ...]

    @property
    def scores(self) -> Floats:
        """The scores of all rounds, shape (rounds,)."""
        return np.array([each.score for each in self.rounds])


def federated_averaging(
    model: nn.Sequential,
    images: Tensor,
    labels: Tensor,
    clients: Sequence[ArrayLike],
    *,
    rounds: int,
    share: float,
    epochs: int,
    batch_size: int | None,
    learning_rate: float,
    rng: np.random.Generator,
    evaluate: Evaluation | None = None,
    min_clients: int = 1,
    executor: Executor | None = None,
) -> Federation:
    """Train by FedAvg; with one epoch of one batch it is FedSGD.

    A client whose training diverges is left out of the average and named in the report. If too few are left,
    the round is skipped and the model stays as it is.

    Parameters
    ----------
    model : torch.nn.Sequential
        The start, a perceptron as :func:`thousand_fingers.models.mlp` returns it; not modified.
    images, labels, clients
        As in :func:`train_clients`.
    rounds : int
        How often the model is handed out.
    share : float
        Part of the clients that takes part in a round, see :func:`clients_per_round`.
    epochs, batch_size, learning_rate
        What a client does, see :func:`client_update`.
    rng : numpy.random.Generator
        Source of the choice of clients and of the order of their examples.
    evaluate : callable, optional
        ``evaluate(model)`` returns a score of the *global* model; called after every round.
    min_clients : int, default 1
        As in :func:`aggregate`.
    executor : concurrent.futures.Executor, optional
        As in :func:`train_clients`.

    Returns
    -------
    Federation

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [McMahan2017]

    Examples
    --------
    >>> from thousand_fingers.models import mlp
    >>> images = torch.rand(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> labels = (images[:, 0] > 0.5).long()
    >>> clients = iid_partition(40, 8, np.random.default_rng(0))
    >>> run = federated_averaging(mlp([4, 2], generator=torch.Generator().manual_seed(1)), images, labels,
    ...     clients, rounds=20, share=0.5, epochs=2, batch_size=5, learning_rate=1.0,
    ...     rng=np.random.default_rng(2), evaluate=lambda m: float((m(images).argmax(1) == labels).sum()))
    >>> bool(run.scores[0] < run.scores[-1]), run.rounds[0].n_examples
    (True, 20)
    """
    rounds = integer("rounds", rounds, at_least=1)
    count = clients_per_round(len(clients), share)
    numpy_generator("rng", rng)
    arrays = model_arrays(model)
    reports = []
    for number in range(1, rounds + 1):
        chosen = sample_clients(len(clients), count, rng)
        updates = _local_updates(
            model, images, labels, clients, chosen, number, epochs, batch_size, learning_rate, rng, executor
        )
        try:
            average = aggregate(arrays, updates, round_number=number, min_clients=min_clients)
        except RoundSkipped as skipped:
            n_examples, rejected = 0, skipped.rejected
        else:
            arrays, n_examples, rejected = average.arrays, average.n_examples, average.rejected
            model = _perceptron(with_arrays(model, arrays))
        score = math.nan if evaluate is None else float(evaluate(model))
        reports.append(Round(tuple(chosen.tolist()), n_examples, rejected, n_examples == 0, score))
    return Federation(copy.deepcopy(model).eval(), tuple(reports))


def rounds_to(scores: ArrayLike, target: float) -> int | None:
    """Return the first round whose score reaches a target.

    Parameters
    ----------
    scores : array-like of float, shape (rounds,)
        One score per round; the first is round 1.
    target : float
        The score wanted.

    Returns
    -------
    int or None
        None if no round reaches it.

    Raises
    ------
    TypeError, ValueError
        If the scores are not finite numbers.

    Examples
    --------
    >>> rounds_to([0.5, 0.8, 0.7], 0.7), rounds_to([0.5, 0.8, 0.7], 0.9)
    (2, None)
    """
    reached = np.flatnonzero(real_array("scores", scores, ndim=1) >= real_number("target", target))
    return int(reached[0]) + 1 if reached.size else None


def communication_bytes(
    n_parameters: int, n_clients: int, *, rounds: int = 1, bytes_per_number: int = 4
) -> int:
    """Return how many bytes travel: in each round every client fetches one model and sends one back.

    Parameters
    ----------
    n_parameters : int
        Numbers in the model.
    n_clients : int
        Clients that take part in a round.
    rounds : int, default 1
        Number of rounds.
    bytes_per_number : int, default 4
        Four for float32, the usual choice on the wire.

    Returns
    -------
    int

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> communication_bytes(199_210, 10)
    15936800
    """
    n_parameters = integer("n_parameters", n_parameters, at_least=1)
    n_clients = integer("n_clients", n_clients, at_least=1)
    rounds = integer("rounds", rounds, at_least=0)
    bytes_per_number = integer("bytes_per_number", bytes_per_number, at_least=1)
    return 2 * n_parameters * n_clients * rounds * bytes_per_number


def _local_updates(
    model: nn.Sequential,
    images: Tensor,
    labels: Tensor,
    clients: Sequence[ArrayLike],
    chosen: Ints,
    number: int,
    epochs: int,
    batch_size: int | None,
    learning_rate: float,
    rng: np.random.Generator,
    executor: Executor | None,
) -> list[Update]:
    """Let the chosen clients train, each with an order of its own; those without examples answer so."""
    seeds = rng.integers(2**63, size=len(chosen)).tolist()
    holders = [(k, s) for k, s in zip(chosen.tolist(), seeds, strict=True) if np.size(clients[k])]
    trained = train_clients(
        model,
        images,
        labels,
        [clients[k] for k, _ in holders],
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        generators=[torch.Generator().manual_seed(s) for _, s in holders],
        executor=executor,
    )
    answers = dict(zip((k for k, _ in holders), trained, strict=True))
    unchanged = model_arrays(model)
    return [Update(k, number, np.size(clients[k]), answers.get(k, unchanged)) for k in chosen.tolist()]


def _perceptron(model: nn.Module) -> nn.Sequential:
    assert isinstance(model, nn.Sequential)
    return model


# --------------------------------------------------------------------------- privacy for whole clients


@dataclass(frozen=True, eq=False)
class PrivateAverage:
    """A noisy average of clipped updates.

    Parameters
    ----------
    update : ndarray of float64, shape (d,)
        What to add to the global weights.
    noise_std : float
        Standard deviation of the noise in each of its entries.
    unusable : tuple of int
        Rows with a number that is not finite: they counted as zero.
    """

    update: Floats
    noise_std: float
    unusable: tuple[int, ...]


def clip_updates(updates: ArrayLike, max_grad_norm: float) -> Floats:
    """Scale down the updates whose Euclidean norm exceeds a limit; a row that is not finite becomes zero.

    Parameters
    ----------
    updates : array-like of float, shape (m, d)
        One row per client, all layers in one vector.
    max_grad_norm : float
        The limit C, greater than 0.

    Returns
    -------
    ndarray of float64, shape (m, d)
        No row is longer than C. A row of zeros stays one.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [McMahan2018]

    Examples
    --------
    >>> clip_updates([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], 1.0).round(3).tolist()
    [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]
    """
    rows = _update_rows(updates)
    max_grad_norm = real_number("max_grad_norm", max_grad_norm, above=0)
    rows[~np.isfinite(rows).all(axis=1)] = 0.0
    # The largest entry is taken out first: squares of huge numbers would overflow.
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    shape = rows / np.where(largest > 0, largest, 1.0)
    length = np.linalg.norm(shape, axis=1, keepdims=True)
    short = largest * length <= max_grad_norm
    # One part in 10^15 below C, so that rounding cannot lift a row above it.
    return np.where(short, rows, shape * ((1 - 1e-15) * max_grad_norm / np.where(short, 1.0, length)))


def _update_rows(updates: ArrayLike) -> Floats:
    """Return a copy of the updates as an array of two axes; entries need not be finite."""
    rows = np.asarray(updates)
    if rows.dtype.kind not in "fiu":
        raise TypeError(f"updates must hold real numbers, got dtype {rows.dtype}")
    if rows.ndim != 2:
        raise ValueError(f"updates must have 2 axes, got shape {rows.shape}")
    return np.array(rows, dtype=np.float64)


def private_average(
    updates: ArrayLike,
    n_k: ArrayLike,
    *,
    sample_rate: float,
    example_cap: float,
    total_weight: float,
    max_grad_norm: float,
    noise_multiplier: float,
    rng: np.random.Generator,
) -> PrivateAverage:
    r"""Average clipped updates with capped weights, over a fixed denominator, with noise.

    .. math:: \frac{1}{qW}\Bigl(\sum_{k} w_k\,\mathrm{clip}_C(\Delta_k) + \mathcal N(0, z^2C^2 I)\Bigr),
              \qquad w_k = \min\Bigl(\frac{n_k}{\hat n}, 1\Bigr)

    No client weighs more than one, whatever it says it holds, so the sum moves by at most C when a client
    comes or goes. The denominator is the *expected* weight qW. It does not depend on who came, nor on how
    many answered.

    Parameters
    ----------
    updates : array-like of float, shape (m, d)
        Changes of the weights, one row for each client that answered; m may be 0.
    n_k : array-like of int, shape (m,)
        Their numbers of examples.
    sample_rate : float
        Probability q with which each client took part, independently; in (0, 1].
    example_cap : float
        The number of examples from which a client has full weight, fixed beforehand.
    total_weight : float
        W, the sum of w_k over *all* clients of the federation (or a public estimate).
    max_grad_norm : float
        The clipping norm C.
    noise_multiplier : float
        z: the noise of the sum has standard deviation zC.
    rng : numpy.random.Generator
        Source of the noise.

    Returns
    -------
    PrivateAverage

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [McMahan2018]

    Examples
    --------
    >>> average = private_average([[3.0, 4.0], [0.0, 0.5]], [100, 5], sample_rate=0.5, example_cap=10,
    ...     total_weight=4, max_grad_norm=1.0, noise_multiplier=0.0, rng=np.random.default_rng(0))
    >>> average.update.round(3).tolist()  # (1 · [0.6, 0.8] + 0.5 · [0, 0.5]) / (0.5 · 4)
    [0.3, 0.525]
    """
    rows = _update_rows(updates)
    sizes = integer_array("n_k", n_k, shape=rows.shape[:1], at_least=0, allow_empty=True)
    sample_rate = real_number("sample_rate", sample_rate, above=0, at_most=1)
    example_cap = real_number("example_cap", example_cap, above=0)
    total_weight = real_number("total_weight", total_weight, above=0)
    noise_multiplier = real_number("noise_multiplier", noise_multiplier, at_least=0)
    numpy_generator("rng", rng)
    clipped = clip_updates(rows, max_grad_norm)
    weights = np.minimum(sizes / example_cap, 1.0)
    noise = rng.normal(scale=noise_multiplier * max_grad_norm, size=rows.shape[1])
    unusable = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    expected = sample_rate * total_weight
    return PrivateAverage(
        (weights @ clipped + noise) / expected,
        noise_multiplier * max_grad_norm / expected,
        tuple(unusable.tolist()),
    )


@dataclass(frozen=True)
class AdaptiveClipping:
    """A clipping norm that follows a quantile of the clients' updates.

    Parameters
    ----------
    count_noise_std : float
        σ_b: noise of the count of updates that are not longer than the norm, see :func:`private_share_below`.
    target_quantile : float, default 0.5
        γ of :func:`adapt_clipping`.
    step : float, default 0.2
        s of :func:`adapt_clipping`.

    References
    ----------
    [Andrew2021]
    """

    count_noise_std: float
    target_quantile: float = 0.5
    step: float = 0.2

    def __post_init__(self) -> None:
        real_number("count_noise_std", self.count_noise_std, at_least=0)
        real_number("target_quantile", self.target_quantile, at_least=0, at_most=1)
        real_number("step", self.step, above=0)


@dataclass(frozen=True, eq=False)
class PrivateFederation(Federation):
    """The end of a federated training with privacy for clients, and what an accountant needs to know of it.

    Parameters
    ----------
    n : int
        Number of clients, the privacy units.
    batch_size : int
        Expected number of clients in a round.
    steps : int
        Number of rounds.
    noise_multiplier, max_grad_norm : float
        The noise z and the clipping norm C.
    sampling : str
        ``"poisson"``: every client decides for itself.
    clipping_norms : tuple of float
        The clipping norm of every round.
    adapted : bool
        Whether it followed the clients; ``max_grad_norm`` is then that of the first round.
    """

    n: int
    batch_size: int
    steps: int
    noise_multiplier: float
    max_grad_norm: float
    sampling: str = "poisson"
    clipping_norms: tuple[float, ...] = ()
    adapted: bool = False

    @property
    def sample_rate(self) -> float:
        """The probability q with which a client takes part in a round."""
        return self.batch_size / self.n


def private_federated_averaging(
    model: nn.Sequential,
    images: Tensor,
    labels: Tensor,
    clients: Sequence[ArrayLike],
    *,
    rounds: int,
    expected_clients: int,
    epochs: int,
    batch_size: int | None,
    learning_rate: float,
    max_grad_norm: float,
    noise_multiplier: float,
    example_cap: float,
    rng: np.random.Generator,
    adaptive: AdaptiveClipping | None = None,
    evaluate: Evaluation | None = None,
    executor: Executor | None = None,
) -> PrivateFederation:
    """Train by FedAvg with differential privacy for whole clients.

    Every client takes part with probability q = ``expected_clients`` / number of clients, independently of
    the others and of earlier rounds: that is what the accountant of the subsampled Gaussian assumes. A round
    without clients adds its noise all the same. One run costs ``rounds`` releases with that sampling rate and
    noise multiplier; the neighbouring relation is one client with all its examples, more or less. The server
    is trusted: it sees the updates, and it adds the noise.

    Parameters
    ----------
    model, images, labels, clients, rounds, epochs, batch_size, learning_rate, evaluate, executor
        As in :func:`federated_averaging`.
    expected_clients : int
        How many take part in a round on average; at most as many as there are.
    max_grad_norm, noise_multiplier, example_cap
        As in :func:`private_average`.
    rng : numpy.random.Generator
        Source of participation, of the order of examples, and of the noise.
    adaptive : AdaptiveClipping, optional
        Lets the clipping norm follow the clients; it starts at ``max_grad_norm``. The norm of a round is
        fixed before its updates are seen. The count that moves it is a second release of the round, and
        both together cost what ``noise_multiplier`` says: the updates get the larger multiplier of
        :func:`update_noise_multiplier`.

    Returns
    -------
    PrivateFederation
        A round is never skipped; ``rejected`` names updates that counted as zero.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [McMahan2018]

    Examples
    --------
    >>> from thousand_fingers.models import mlp
    >>> images = torch.rand(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> labels = (images[:, 0] > 0.5).long()
    >>> run = private_federated_averaging(mlp([4, 2], generator=torch.Generator().manual_seed(1)), images,
    ...     labels, iid_partition(40, 20, np.random.default_rng(0)), rounds=3, expected_clients=10, epochs=1,
    ...     batch_size=None, learning_rate=1.0, max_grad_norm=1.0, noise_multiplier=1.0, example_cap=2,
    ...     rng=np.random.default_rng(2))
    >>> len(run.rounds), len(run.rounds[0].clients)
    (3, 11)
    """
    rounds = integer("rounds", rounds, at_least=1)
    expected_clients = integer("expected_clients", expected_clients, at_least=1, at_most=len(clients))
    sample_rate = expected_clients / len(clients)
    max_grad_norm = real_number("max_grad_norm", max_grad_norm, above=0)
    noise_multiplier = real_number("noise_multiplier", noise_multiplier, at_least=0)
    example_cap = real_number("example_cap", example_cap, above=0)
    numpy_generator("rng", rng)
    if adaptive is not None and not isinstance(adaptive, AdaptiveClipping):
        raise TypeError(f"adaptive must be an AdaptiveClipping or None, got {adaptive!r}")
    of_updates = noise_multiplier
    if adaptive is not None and noise_multiplier > 0:
        of_updates = update_noise_multiplier(noise_multiplier, adaptive.count_noise_std)
    n_k = np.array([np.size(client) for client in clients])
    total_weight = float(np.minimum(n_k / example_cap, 1.0).sum())
    arrays = model_arrays(model)
    reports, norms, norm = [], [], max_grad_norm
    for number in range(1, rounds + 1):
        norms.append(norm)
        chosen = np.flatnonzero(rng.random(len(clients)) < sample_rate)
        updates = _local_updates(
            model, images, labels, clients, chosen, number, epochs, batch_size, learning_rate, rng, executor
        )
        before = _flat(arrays)
        changes = np.array([_flat(update.arrays) - before for update in updates]).reshape(-1, before.size)
        average = private_average(
            changes,
            n_k[chosen],
            sample_rate=sample_rate,
            example_cap=example_cap,
            total_weight=total_weight,
            max_grad_norm=norm,
            noise_multiplier=of_updates,
            rng=rng,
        )
        if adaptive is not None:
            norm = _next_norm(changes, norm, adaptive, expected_clients, rng)
        with np.errstate(over="ignore"):  # said below
            arrays = _unflat(before + average.update, arrays)
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError(
                f"the weights are not finite after round {number}: lower the noise, {of_updates:g} times {norm:g}"
            )
        model = _perceptron(with_arrays(model, arrays))
        score = math.nan if evaluate is None else float(evaluate(model))
        rejected = tuple(Rejection(int(chosen[i]), "weights are not finite") for i in average.unusable)
        reports.append(Round(tuple(chosen.tolist()), int(n_k[chosen].sum()), rejected, False, score))
    return PrivateFederation(
        copy.deepcopy(model).eval(),
        tuple(reports),
        n=len(clients),
        batch_size=expected_clients,
        steps=rounds,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        clipping_norms=tuple(norms),
        adapted=adaptive is not None,
    )


def _next_norm(
    changes: Floats, norm: float, adaptive: AdaptiveClipping, expected_clients: int, rng: np.random.Generator
) -> float:
    """Count, with noise, how many updates are no longer than the norm, and move it."""
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(changes, axis=1)
    share = private_share_below(
        np.where(np.isfinite(lengths), lengths, np.finfo(np.float64).max),
        norm,
        expected_clients=expected_clients,
        count_noise_std=adaptive.count_noise_std,
        rng=rng,
    )
    return adapt_clipping(norm, share, target_quantile=adaptive.target_quantile, step=adaptive.step)


def adapt_clipping(
    max_grad_norm: float, share_below: float, *, target_quantile: float = 0.5, step: float = 0.2
) -> float:
    r"""Move the clipping norm towards a quantile of the clients' norms.

    .. math:: C \leftarrow C\,e^{-s(b-\gamma)}

    where b is the (noisy) share of updates that are *not* longer than C. If fewer than the wanted share fit
    below C, it grows. Multiplied with the share that was clipped instead, it runs away.

    Parameters
    ----------
    max_grad_norm : float
        The C of this round.
    share_below : float
        b, from :func:`private_share_below`; noise may push it outside [0, 1].
    target_quantile : float, default 0.5
        γ, in [0, 1].
    step : float, default 0.2
        s, greater than 0.

    Returns
    -------
    float
        The C of the *next* round.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Andrew2021]

    Examples
    --------
    >>> round(adapt_clipping(0.1, share_below=0.0), 4), round(adapt_clipping(0.1, share_below=1.0), 4)
    (0.1105, 0.0905)
    """
    max_grad_norm = real_number("max_grad_norm", max_grad_norm, above=0)
    share_below = real_number("share_below", share_below)
    target_quantile = real_number("target_quantile", target_quantile, at_least=0, at_most=1)
    step = real_number("step", step, above=0)
    exponent = -step * (share_below - target_quantile)
    moved = max_grad_norm * math.exp(exponent) if exponent < _LARGEST_EXPONENT else math.inf
    if not 0 < moved < math.inf:
        raise ValueError(
            f"step {step} moves the clipping norm {max_grad_norm} out of all bounds at a share of {share_below}"
        )
    return moved


def private_share_below(
    norms: ArrayLike,
    max_grad_norm: float,
    *,
    expected_clients: float,
    count_noise_std: float,
    rng: np.random.Generator,
) -> float:
    """Return a noisy share of updates whose norm is at most the clipping norm.

    Each client contributes plus or minus one half, which halves the sensitivity of a count; the sum is
    divided by the *expected* number of clients.

    Parameters
    ----------
    norms : array-like of float, shape (m,)
        Lengths of the updates before clipping.
    max_grad_norm : float
        The C of this round, fixed before anybody looked at the norms.
    expected_clients : float
        Greater than 0: q times the number of all clients.
    count_noise_std : float
        Standard deviation of the noise of the sum.
    rng : numpy.random.Generator
        Source of the noise.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Andrew2021]

    Examples
    --------
    >>> private_share_below([1.0, 2.0, 3.0, 4.0], 1.5, expected_clients=4, count_noise_std=0.0,
    ...                     rng=np.random.default_rng(0))
    0.25
    """
    lengths = real_array("norms", norms, ndim=1, at_least=0, allow_empty=True)
    max_grad_norm = real_number("max_grad_norm", max_grad_norm, above=0)
    expected_clients = real_number("expected_clients", expected_clients, above=0)
    count_noise_std = real_number("count_noise_std", count_noise_std, at_least=0)
    numpy_generator("rng", rng)
    votes = np.where(lengths <= max_grad_norm, 0.5, -0.5).sum()
    return float((votes + rng.normal(scale=count_noise_std)) / expected_clients + 0.5)


def update_noise_multiplier(noise_multiplier: float, count_noise_std: float) -> float:
    r"""Return the noise multiplier of the updates when the count of :func:`private_share_below` shares its budget.

    .. math:: z_\Delta = \bigl(z^{-2} - (2\sigma_b)^{-2}\bigr)^{-1/2}

    Both releases together then cost what one release with multiplier z does.

    Parameters
    ----------
    noise_multiplier : float
        z, what the accountant is told.
    count_noise_std : float
        σ_b; the count needs :math:`z < 2\sigma_b`.

    Returns
    -------
    float
        A little larger than z.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the count alone would spend more than the whole.

    References
    ----------
    [Andrew2021]

    Examples
    --------
    >>> round(update_noise_multiplier(1.0, 1.0), 4), round(update_noise_multiplier(1.0, 5.0), 5)
    (1.1547, 1.00504)
    """
    noise_multiplier = real_number("noise_multiplier", noise_multiplier, above=0)
    count_noise_std = real_number("count_noise_std", count_noise_std, above=0)
    if noise_multiplier >= 2 * count_noise_std:
        raise ValueError(
            f"noise_multiplier must be < 2 * count_noise_std, got {noise_multiplier} and {count_noise_std}"
        )
    return (noise_multiplier**-2 - (2 * count_noise_std) ** -2) ** -0.5


def _flat(arrays: Sequence[NDArray[Any]]) -> Floats:
    return np.concatenate([np.ravel(array) for array in arrays]).astype(np.float64, copy=False)


def _unflat(vector: Floats, like: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    pieces = np.split(vector, np.cumsum([array.size for array in like])[:-1])
    return tuple(p.reshape(a.shape).astype(a.dtype) for p, a in zip(pieces, like, strict=True))
