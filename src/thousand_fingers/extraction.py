"""A model behind a counter: what can be stolen through its answers, and an API that counts and says less.

Equation solving for linear models is due to Tramèr and others [Tramer2016], the boundary found from labels
alone to Lowd and Meek [LowdMeek2005]; a network is copied by teaching a student with its answers [Hinton2015],
or, fold by fold, exactly [JagielskiCarlini2020].
Inversion is that of [Fredrikson2015], attribute inference that of [Fredrikson2014] and [Yeom2018], membership
from labels that of [ChoquetteChoo2021]. :class:`ProtectedAPI` gives labels only and keeps a daily quota for
each account. Chapter 12 measures what the measures cost the thief, and what they do not stop.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, optimize, special
from torch import Tensor, nn
from torch.nn import functional

from thousand_fingers.models import Model, evaluation_mode, mlp
from thousand_fingers.training import train
from thousand_fingers.validation import integer, integer_array, numpy_generator, real_array, real_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ask = Callable[[Floats], ArrayLike]
Clock = Callable[[], datetime]

LONGEST_NAME = 200  # characters of an account's name, which the API keeps until the day ends

# --------------------------------------------------------------------------- linear models, solved


@dataclass(frozen=True, eq=False)
class LinearModel:
    r"""A softmax regression: logits :math:`xW + b`.

    Adding the same number to all logits changes no probability, so weights and biases are kept in the one
    form in which they sum to zero over the classes; two models that answer alike are then equal.

    Parameters
    ----------
    weights : array-like of float, shape (d, n_classes)
        Any of the equivalent ones.
    bias : array-like of float, shape (n_classes,)
        Likewise.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, or there are fewer than two classes.

    Examples
    --------
    >>> LinearModel([[0.0, 2.0]], [0.0, 1.0]).weights.tolist()
    [[-1.0, 1.0]]
    """

    weights: Floats
    bias: Floats

    def __post_init__(self) -> None:
        weights = real_array("weights", self.weights, ndim=2)
        bias = real_array("bias", self.bias, shape=(weights.shape[1],))
        if bias.size < 2:
            raise ValueError(f"weights must have a column for each of at least 2 classes, got {bias.size}")
        object.__setattr__(self, "weights", weights - weights.mean(axis=1, keepdims=True))
        object.__setattr__(self, "bias", bias - bias.mean())

    def logits(self, inputs: ArrayLike) -> Floats:
        """Return the logits of inputs of shape (n, d), shape (n, n_classes); they sum to zero in each row."""
        rows = real_array("inputs", inputs, shape=(None, len(self.weights)))
        return rows @ self.weights + self.bias

    def relative_error(self, truth: LinearModel) -> float:
        """Return the Euclidean distance from another model's weights and biases, relative to their length.

        Raises
        ------
        ValueError
            If the models have other shapes, or every weight and bias of the other one is 0.
        """
        mine, theirs = (np.vstack([model.weights, model.bias]) for model in (self, truth))
        if mine.shape != theirs.shape:
            raise ValueError(
                f"truth must have weights of shape {self.weights.shape}, got {truth.weights.shape}"
            )
        length = float(np.linalg.norm(theirs))
        if length == 0:
            raise ValueError(
                "truth must have a weight or a bias that is not 0: no error is relative to nothing"
            )
        return float(np.linalg.norm(mine - theirs)) / length


def solve_linear(inputs: ArrayLike, probabilities: ArrayLike, *, decimals: int | None = None) -> LinearModel:
    r"""Return the softmax regression that gives the answers seen: one linear equation per query and class.

    .. math:: \log p_c(x) - \tfrac1C\sum_{c'}\log p_{c'}(x) = x\,w_c + b_c

    with weights that sum to zero over the classes. In d dimensions d + 1 queries that do not lie in one
    hyperplane determine all of them; with more, least squares averages errors out.

    Parameters
    ----------
    inputs : array-like of float, shape (n, d)
        The queries, at least d + 1 of them and not all in one hyperplane.
    probabilities : array-like of float, shape (n, n_classes)
        The answers, at least two classes; each row sums to 1, to what rounding leaves. Greater than 0 unless
        they were rounded.
    decimals : int, optional
        To how many decimals the answers were rounded, 1 to 15.

    Returns
    -------
    LinearModel

    Raises
    ------
    TypeError, ValueError
        If there are too few queries, they lie in a hyperplane, or a probability is not one.

    References
    ----------
    [Tramer2016], section 4.1.

    Examples
    --------
    >>> p = 1 / (1 + np.exp([-0.5, -2.5]))  # at 0 and at 1, weight 2 and bias 0.5
    >>> stolen = solve_linear([[0.0], [1.0]], np.stack([1 - p, p], axis=1))
    >>> (stolen.weights[0, 1] - stolen.weights[0, 0]).round(12), (stolen.bias[1] - stolen.bias[0]).round(12)
    (np.float64(2.0), np.float64(0.5))
    """
    rows = real_array("inputs", inputs, ndim=2)
    answers = real_array("probabilities", probabilities, shape=(len(rows), None), at_least=0, at_most=1)
    unknowns = rows.shape[1] + 1
    if answers.shape[1] < 2:
        raise ValueError("probabilities must have a column for each of at least 2 classes, got 1")
    if len(rows) < unknowns:
        raise ValueError(f"inputs must hold at least d + 1 = {unknowns} queries, got {len(rows)}")
    half = 0.0
    if decimals is not None:
        half = 0.5 * 10.0 ** -integer("decimals", decimals, at_least=1, at_most=15)
    elif answers.min() == 0:
        raise ValueError("probabilities must be > 0 where they were not rounded, got 0.0")
    sums, slack = answers.sum(axis=1), 0.005 + half * answers.shape[1]
    if np.abs(sums - 1).max() > slack:  # one sigmoid per class, say, whose logarithms obey other equations
        worst = int(np.abs(sums - 1).argmax())
        raise ValueError(f"probabilities must sum to 1 in each row, got {sums[worst]:.6g} in row {worst}")
    logs = np.log(answers.clip(half, 1 - half))
    # An error e of a probability p moves its logarithm by e/p: the equations of a row are worth 1/Σ(1/p).
    worth = np.exp(-special.logsumexp(-logs, axis=1, keepdims=True)) if half else 1.0
    equations = np.hstack([rows, np.ones((len(rows), 1))])
    found, _, rank, _ = np.linalg.lstsq(
        worth * equations, worth * (logs - logs.mean(axis=1, keepdims=True)), rcond=None
    )
    if rank < unknowns:
        raise ValueError(f"inputs must not all lie in one hyperplane, got rank {rank} of {unknowns}")
    if half:
        found = _nearest_probabilities(equations, answers, found)
    return LinearModel(found[:-1], found[-1])


@dataclass(frozen=True, eq=False)
class Boundary:
    """Where a two-class linear model changes its answer, found from labels alone.

    Parameters
    ----------
    weights : ndarray of float64, shape (d,)
        Of length 1, pointing to class 1. The true length cannot be known from labels.
    bias : float
        In the same scale.
    queries : int
        Rows that were asked.
    """

    weights: Floats
    bias: float
    queries: int

    def predict(self, inputs: ArrayLike) -> Ints:
        """Return the labels, 0 or 1, of inputs of shape (n, d)."""
        rows = real_array("inputs", inputs, shape=(None, self.weights.size))
        return (rows @ self.weights + self.bias > 0).astype(np.int64)


def steal_boundary(ask: Ask, candidates: ArrayLike, *, steps: int = 40) -> Boundary:
    """Find the boundary of a two-class linear model by asking for labels only.

    Every candidate is asked once. Then candidates of different class are joined by segments, as a tree joins
    them: one of each class to all of the other. A segment crosses the boundary once, and halving it ``steps``
    times finds where; all segments are halved together, in one batch for each step. From d + 1 candidates come
    d crossings, and those determine the hyperplane: (d + 1) + d·steps queries.

    Parameters
    ----------
    ask : callable
        Takes rows of shape (n, d), returns their labels, 0 or 1.
    candidates : array-like of float, shape (n, d)
        At least d + 1 points that do not lie in one hyperplane and do not all get the same label.
    steps : int, default 40
        Halvings; each gives one more binary digit. At least 1.

    Returns
    -------
    Boundary

    Raises
    ------
    TypeError, ValueError
        If there are too few candidates, they lie in a hyperplane, or all get the same label.

    References
    ----------
    [LowdMeek2005]

    Examples
    --------
    >>> secret = np.array([3.0, 4.0])
    >>> found = steal_boundary(lambda rows: (rows @ secret > 1).astype(int), [[0.0, 0], [1, 0], [0, 1]])
    >>> found.weights.round(9).tolist(), round(found.bias, 9), found.queries
    ([0.6, 0.8], -0.2, 83)
    """
    points = real_array("candidates", candidates, ndim=2)
    steps = integer("steps", steps, at_least=1)
    d = points.shape[1]
    rank = int(np.linalg.matrix_rank(points - points.mean(axis=0)))
    if rank < d:
        raise ValueError(f"candidates must not all lie in one hyperplane, got rank {rank} of {d}")
    labels = _two_labels(ask(points.copy()), len(points))
    ones, zeros = points[labels == 1], points[labels == 0]
    if min(len(ones), len(zeros)) == 0:
        raise ValueError(f"candidates must not all get the same label, got {len(points)} times {labels[0]}")
    high = np.vstack([ones, np.tile(ones[0], (len(zeros) - 1, 1))])
    low = np.vstack([np.tile(zeros[0], (len(ones), 1)), zeros[1:]])
    return _halved(ask, high, low, steps, asked=len(points))


def steal_boundary_between(ask: Ask, first: ArrayLike, second: ArrayLike, *, steps: int = 40) -> Boundary:
    """Find the boundary of a two-class linear model from labels, along segments of the thief's choice.

    An interface may take only some inputs: a form whose boxes are ticked or not, with numbers between. A segment
    along which only the numbers change stays inside it. Both ends of every segment are asked. Of the segments
    whose ends get different labels the d whose middles lie best spread are halved together ``steps`` times:
    2n + d·steps queries for n segments.

    Parameters
    ----------
    ask : callable
        Takes rows of shape (n, d), returns their labels, 0 or 1.
    first, second : array-like of float, shape (n, d)
        The ends of the segments. Those that cross the boundary must do so in points that determine it: at least
        d, not all in one flat of lower dimension than the boundary. Give more than d, and varied ones.
    steps : int, default 40
        As in :func:`steal_boundary`.

    Returns
    -------
    Boundary

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, or the crossings do not determine the boundary.

    References
    ----------
    [LowdMeek2005]

    Examples
    --------
    >>> secret = np.array([3.0, 4.0])  # the second input is a box
    >>> found = steal_boundary_between(lambda rows: (rows @ secret > 5).astype(int),
    ...                                [[0.0, 0], [0, 1], [0, 0]], [[2.0, 0], [2, 1], [1, 0]])
    >>> found.weights.round(9).tolist(), round(found.bias, 9), found.queries
    ([0.6, 0.8], -1.0, 86)
    """
    starts = real_array("first", first, ndim=2)
    ends = real_array("second", second, shape=starts.shape)
    steps = integer("steps", steps, at_least=1)
    here, there = (_two_labels(ask(points.copy()), len(points)) for points in (starts, ends))
    crossed, upper = here != there, (here == 1)[:, None]
    high, low = (np.where(upper, *pair)[crossed] for pair in ((starts, ends), (ends, starts)))
    d = starts.shape[1]
    if len(high) < d:
        raise ValueError(f"at least {d} segments must have ends of different label, got {len(high)}")
    middles = np.hstack([(high + low) / 2, np.ones((len(high), 1))])
    best = linalg.qr(middles.T, mode="r", pivoting=True)[1][:d]
    return _halved(ask, high[best], low[best], steps, asked=2 * len(starts))


def _halved(ask: Ask, high: Floats, low: Floats, steps: int, *, asked: int) -> Boundary:
    """Halve segments from label 0 to label 1, and lay the hyperplane through their crossings."""
    towards = (high - low).mean(axis=0)
    for _ in range(steps):
        middle = (low + high) / 2
        upper = _two_labels(ask(middle.copy()), len(middle))[:, None] == 1
        high, low = np.where(upper, middle, high), np.where(upper, low, middle)
    crossings = (low + high) / 2
    centre = crossings.mean(axis=0)
    d = centre.size
    spread = crossings - centre
    _, sizes, axes = np.linalg.svd(spread, full_matrices=False)
    rank = int((sizes > 1e-9 * np.abs(spread).max()).sum())
    if rank < d - 1:
        raise ValueError(f"the segments cross the boundary in points of rank {rank}, but {d - 1} are needed")
    normal = axes[-1]
    normal *= np.sign(towards @ normal)
    return Boundary(normal, float(-centre @ normal), asked + steps * len(high))


# --------------------------------------------------------------------------- networks, copied


def distil(
    inputs: Tensor,
    answers: ArrayLike,
    *,
    hidden: Sequence[int],
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
) -> nn.Sequential:
    r"""Teach a student of one's own with the probabilities that the victim gave.

    The loss of a query is the cross-entropy :math:`-\sum_c p_c(x)\log q_c(x)` between the victim's answer p
    and the student's q, least when the student answers alike. (Students of labels alone are trained by
    :func:`thousand_fingers.ensembles.train_ensemble`, many at once and in the same way.)

    Parameters
    ----------
    inputs : Tensor of shape (n, ...)
        The queries.
    answers : array-like of float, shape (n, n_classes)
        Probabilities of at least two classes; each row sums to 1, to what rounding leaves.
    hidden : sequence of int
        Units of each hidden layer; none for a softmax regression.
    epochs, batch_size, learning_rate
        As in :func:`thousand_fingers.training.train`.
    generator : torch.Generator
        Source of the initial weights and of the order.

    Returns
    -------
    torch.nn.Sequential
        In evaluation mode.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match or an argument is out of range.

    References
    ----------
    [Hinton2015], [Tramer2016]

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> queries = torch.rand(40, 2, generator=generator, dtype=torch.float64)
    >>> answers = torch.softmax(8 * (queries - 0.5), dim=1)
    >>> student = distil(queries, answers.numpy(), hidden=[8], epochs=60, batch_size=20, learning_rate=0.03,
    ...                  generator=generator)
    >>> bool((student(queries).argmax(1) == answers.argmax(1)).double().mean() > 0.9)
    True
    """
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        raise TypeError("inputs must be a tensor of floating-point numbers")
    if not inputs.isfinite().all():  # a student would become NaN, and answer with the first class
        raise ValueError("inputs must be finite")
    taught = real_array("answers", answers, shape=(len(inputs), None), at_least=0, at_most=1)
    targets = torch.tensor(taught, dtype=inputs.dtype)
    if not np.allclose(taught.sum(axis=1), 1, rtol=0, atol=0.5):
        raise ValueError("answers must be probabilities: rows that sum to about 1")
    if taught.shape[1] < 2:
        raise ValueError("answers must have a column for each of at least 2 classes, got 1")
    student = mlp([inputs[0].numel(), *hidden, taught.shape[1]], generator=generator, dtype=inputs.dtype)

    def imitate(model: nn.Module, batch: Tensor, rows: Tensor) -> Tensor:
        return functional.cross_entropy(model(batch), targets[rows])

    train(
        student,
        inputs,
        torch.arange(len(inputs)),  # the "label" of a query is its place, by which its answer is found
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        generator=generator,
        objective=imitate,
    )
    return student


# --------------------------------------------------------------------------- a network, found exactly


@dataclass(frozen=True, eq=False)
class FoldedCopy:
    r"""A network of one hidden layer of rectified units, found up to what no answer shows.

    :math:`\mathrm{logits}(x)=\max(0, xW+b)\,A + xS + c`. The linear part :math:`S` makes up for units whose
    direction cannot be known: :math:`\max(0,z)=\max(0,-z)+z`.

    Parameters
    ----------
    weights : ndarray of float64, shape (d, n_units)
        The normal of each unit's fold, of length 1.
    bias : ndarray of float64, shape (n_units,)
        Where the folds are.
    outer, linear : ndarray of float64, shapes (n_units, n_classes) and (d, n_classes)
        What each unit, and each input, adds to the logits, which sum to zero over the classes.
    offset : ndarray of float64, shape (n_classes,)
        What is left.
    queries : int
        Rows that were asked.
    residual : float
        Largest difference from the answers on which the outer layer was fitted, in log-probability. Large if a
        fold was missed or the victim is another kind of function.
    """

    weights: Floats
    bias: Floats
    outer: Floats
    linear: Floats
    offset: Floats
    queries: int
    residual: float

    def logits(self, inputs: ArrayLike) -> Floats:
        """Return the logits of inputs of shape (n, d), shape (n, n_classes); they sum to zero in each row."""
        rows = real_array("inputs", inputs, shape=(None, len(self.weights)))
        return np.maximum(rows @ self.weights + self.bias, 0) @ self.outer + rows @ self.linear + self.offset


def steal_folds(
    ask: Ask, starts: ArrayLike, ends: ArrayLike, *, rng: np.random.Generator, cells: int = 1024
) -> FoldedCopy:
    r"""Find a network of one hidden layer of rectified units from its probabilities, exactly.

    Along a segment the centred log-probabilities are linear, but for a fold wherever a unit switches. Each
    segment is cut into ``cells`` pieces; a piece with a fold and with no other near it gives a point of the
    fold, where the lines from both sides meet. The slopes on either side differ by
    :math:`\pm w_j a_j^\top`, a matrix of rank one, whose factors are the unit's weights. When the folds are
    known, the outer layer is a linear least-squares problem. Folds that cross no segment are missed, and so are
    those that never lie apart from others; more segments find more.

    Parameters
    ----------
    ask : callable
        Takes rows of shape (n, d), returns probabilities of shape (n, n_classes) in double precision.
    starts, ends : array-like of float, shape (m, d)
        Ends of the segments. The fit is made, and holds, in the box that they span.
    rng : numpy.random.Generator
        Draws the inputs of the fit.
    cells : int, default 1024
        At least 8. Many more than there are units.

    Returns
    -------
    FoldedCopy

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, or no fold stands apart: the answers were rounded, or the victim has none.

    References
    ----------
    [JagielskiCarlini2020], [Carlini2020]

    Examples
    --------
    >>> w, a = np.array([[1.0, -2.0], [1.5, 1.0]]), np.array([[1.0, -1.0], [2.0, 0.5]])
    >>> def victim(rows):
    ...     return special.softmax(np.maximum(rows @ w - 0.4, 0) @ a, axis=1)
    >>> rng = np.random.default_rng(0)
    >>> copy = steal_folds(victim, rng.normal(size=(4, 2)), rng.normal(size=(4, 2)), rng=rng)
    >>> copy.weights.shape[1], copy.residual < 1e-9
    (2, True)
    """
    first = real_array("starts", starts, ndim=2)
    last = real_array("ends", ends, shape=first.shape)
    cells = integer("cells", cells, at_least=8)
    numpy_generator("rng", rng)
    d = first.shape[1]
    asked = 0

    def answers(rows: Floats) -> Floats:
        nonlocal asked
        asked += len(rows)
        given = real_array("answers of ask", ask(rows.copy()), shape=(len(rows), None), at_least=0, at_most=1)
        if given.min() == 0:
            raise ValueError("answers of ask must be > 0: the theft needs their logarithms to the last digit")
        logs = np.log(given)
        return logs - logs.mean(axis=1, keepdims=True)

    folds: list[tuple[Floats, float]] = []
    for start, end in zip(first, last, strict=True):
        along = end - start
        for at in _lone_folds(answers(start + np.linspace(0, 1, cells + 1)[:, None] * along)):
            point = start + at / cells * along
            if any(abs(normal @ point + bias) < 1e-6 for normal, bias in folds):
                continue  # known already
            slopes = []
            for side in (-0.4, 0.4):  # of a cell: near enough that nothing else folds
                here = start + (at + side) / cells * along
                step = 1e-4 * np.abs(along).max()
                near = answers(np.vstack([here, here + step * np.eye(d)]))
                slopes.append((near[1:] - near[0]) / step)
            left, sizes, _ = np.linalg.svd(slopes[1] - slopes[0], full_matrices=False)
            normal = left[:, 0] * np.sign(left[np.abs(left[:, 0]).argmax(), 0])
            if sizes.size < 2 or sizes[1] < 1e-4 * sizes[0]:  # two folds at once would have rank two
                folds.append((normal, -float(normal @ point)))
    if not folds:
        raise ValueError("no fold stands apart on any segment: rounded answers, or no rectified units")
    weights, bias = np.stack([w for w, _ in folds], axis=1), np.array([b for _, b in folds])
    both = np.vstack([first, last])
    rows = rng.uniform(both.min(axis=0), both.max(axis=0), (2 * (len(folds) + d + 1), d))
    seen = np.hstack([np.maximum(rows @ weights + bias, 0), rows, np.ones((len(rows), 1))])
    given = answers(rows)
    found = np.linalg.lstsq(seen, given, rcond=None)[0]
    residual = float(np.abs(seen @ found - given).max())
    outer, linear, offset = np.split(found, [len(folds), len(folds) + d])
    return FoldedCopy(weights, bias, outer, linear, offset[0], asked, residual)


def _lone_folds(values: Floats) -> Floats:
    """Return where equally spaced values of a piecewise linear curve bend, in cells, if nothing bends near."""
    bends = np.abs(np.diff(values, n=2, axis=0)).max(axis=1)  # of the points 1, 2, …
    bent = bends > 1e-9 * max(np.abs(values).max(), 1)
    # A fold inside cell i bends the points i and i + 1, and no other one.
    start = np.flatnonzero(bent[2:-3] & bent[3:-2] & ~bent[:-5] & ~bent[1:-4] & ~bent[4:-1] & ~bent[5:]) + 3
    before, after = values[start] - values[start - 1], values[start + 2] - values[start + 1]
    # start value + u before = next value - (1 - u) after, in the class that bends most
    gap, turn = values[start + 1] - after - values[start], before - after
    most = np.abs(turn).argmax(axis=1)[:, None]
    inside = (np.take_along_axis(gap, most, axis=1) / np.take_along_axis(turn, most, axis=1))[:, 0]
    return start + inside


# --------------------------------------------------------------------------- what answers say about the data


def invert_classes(
    model: Model,
    labels: ArrayLike,
    *,
    shape: Sequence[int],
    steps: int = 500,
    step_size: float = 0.1,
    penalty: float = 0.0,
    start: float = 0.5,
) -> Tensor:
    r"""Return, for each class asked for, the input of which the model is most sure: model inversion.

    Gradient ascent on :math:`\log p_c(x) - \frac\lambda2\lVert x\rVert^2`, every entry kept in [0, 1]. What
    comes out is what the model takes for typical of the class, not an example that it was trained on.

    Parameters
    ----------
    model : callable
        Maps inputs to logits. It is used in evaluation mode; its parameters get no gradient. A module is given
        numbers of the type of its parameters, any other callable float64.
    labels : array-like of int, shape (n,)
        Classes to invert, from 0 to one less than the model has.
    shape : sequence of int
        Shape of one input.
    steps : int, default 500
        At least 1.
    step_size : float, default 0.1
        Greater than 0.
    penalty : float, default 0.0
        The weight :math:`\lambda` of the regulariser, at least 0: what the class does not need goes dark.
    start : float, default 0.5
        Value of every entry at the beginning, in [0, 1].

    Returns
    -------
    Tensor of shape (n, *shape)
        Of the model's type.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the model does not return a row of logits for each input.

    References
    ----------
    [Fredrikson2015], algorithm 1.

    Examples
    --------
    >>> linear = nn.Linear(2, 2, dtype=torch.float64)
    >>> _ = linear.weight.data.copy_(torch.eye(2)), linear.bias.data.zero_()
    >>> invert_classes(linear, [0, 1], shape=[2])
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    wanted = torch.from_numpy(integer_array("labels", labels, ndim=1, at_least=0))
    if not isinstance(shape, Sequence):
        raise TypeError(f"shape must be a sequence of integers, got {shape!r}")
    sizes = [integer("shape", size, at_least=1) for size in shape]
    steps = integer("steps", steps, at_least=1)
    step_size = real_number("step_size", step_size, above=0)
    penalty = real_number("penalty", penalty, at_least=0)
    start = real_number("start", start, at_least=0, at_most=1)
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    dtype = next((p.dtype for p in parameters if p.is_floating_point()), torch.float64)
    image = torch.full((len(wanted), *sizes), start, dtype=dtype)
    with evaluation_mode(model), torch.enable_grad():
        answer = tuple(model(image).shape)
        if len(answer) != 2 or len(wanted) != answer[0]:
            raise ValueError(f"model must return logits of shape ({len(wanted)}, n_classes), got {answer}")
        if int(wanted.max()) >= answer[1]:
            raise ValueError(
                f"labels must be < {answer[1]}, the classes of the model, got {int(wanted.max())}"
            )
        for _ in range(steps):
            image.requires_grad_()
            loss = functional.cross_entropy(model(image), wanted, reduction="sum")
            (gradient,) = torch.autograd.grad(loss + penalty / 2 * image.square().sum(), image)
            image = (image.detach() - step_size * gradient).clamp(0, 1)
    return image


@dataclass(frozen=True)
class Redaction:
    """A square of an image that has been blacked out, and what it could have been.

    Parameters
    ----------
    row, column : int
        Upper left pixel, at least 0.
    size : int
        Side of the square in pixels, at least 1.

    Raises
    ------
    TypeError, ValueError
        If a number is out of range.
    """

    row: int
    column: int
    size: int

    def __post_init__(self) -> None:
        for name, lowest in (("row", 0), ("column", 0), ("size", 1)):
            object.__setattr__(self, name, integer(name, getattr(self, name), at_least=lowest))

    def completions(
        self,
        images: ArrayLike,
        labels: ArrayLike,
        others: ArrayLike,
        other_labels: ArrayLike,
        *,
        decoys: int,
        rng: np.random.Generator,
    ) -> Floats:
        """Return every image with its true square, and with squares of other images of its class.

        Parameters
        ----------
        images : array-like of float, shape (n, height, width)
            The records.
        labels : array-like of int, shape (n,)
            Their classes.
        others : array-like of float, shape (m, height, width)
            Where the wrong squares come from.
        other_labels : array-like of int, shape (m,)
            Their classes; of each class at least ``decoys``.
        decoys : int
            Wrong squares for each record, at least 1, all of different images.
        rng : numpy.random.Generator
            Draws them.

        Returns
        -------
        ndarray of float64, shape (n, 1 + decoys, height, width)
            The record as it is comes first.

        Raises
        ------
        TypeError, ValueError
            If shapes do not match, the square does not fit, or a class has too few others.

        Examples
        --------
        >>> images = np.arange(12.0).reshape(3, 2, 2)
        >>> Redaction(0, 0, 1).completions(images[:1], [0], images[1:], [0, 0], decoys=2,
        ...                                rng=np.random.default_rng(0))[0, :, 0, 0].tolist()
        [0.0, 4.0, 8.0]
        """
        records = real_array("images", images, ndim=3)
        classes = integer_array("labels", labels, shape=(len(records),))
        pool = real_array("others", others, shape=(None, *records.shape[1:]))
        pool_classes = integer_array("other_labels", other_labels, shape=(len(pool),))
        decoys = integer("decoys", decoys, at_least=1)
        numpy_generator("rng", rng)
        square = self._square(records.shape[1:])
        completed = np.repeat(records[:, None], 1 + decoys, axis=1)
        for label in np.unique(classes):
            same = np.flatnonzero(pool_classes == label)
            if same.size < decoys:
                raise ValueError(
                    f"others must hold at least {decoys} images of class {label}, got {same.size}"
                )
            for record in np.flatnonzero(classes == label):
                chosen = rng.choice(same, decoys, replace=False)
                completed[record, 1:][:, *square] = pool[chosen][:, *square]
        return completed

    def log_prior(self, completions: ArrayLike, others: ArrayLike, *, ridge: float = 1.0) -> Floats:
        r"""Return how well each square fits its surroundings, in the eyes of somebody who never asked the model.

        A ridge regression, learned from other images, predicts the square from the rest of the image. The
        score is the log-density :math:`-\lVert s-\hat s\rVert^2/(2\hat\sigma^2)` of a Gaussian around the
        prediction, with the mean squared error on those images for a variance.

        Parameters
        ----------
        completions : array-like of float, shape (n, values, height, width)
            As :meth:`completions` returns them.
        others : array-like of float, shape (m, height, width)
            The images to learn from.
        ridge : float, default 1.0
            Greater than 0.

        Returns
        -------
        ndarray of float64, shape (n, values)

        Raises
        ------
        TypeError, ValueError
            If shapes do not match, the square does not fit, or it is the whole image.

        Examples
        --------
        >>> others = np.linspace(0, 1, 50)[:, None, None] * np.ones((1, 2))  # both pixels are alike
        >>> Redaction(0, 1, 1).log_prior([[[[0.2, 0.2]], [[0.2, 0.9]]]], others, ridge=0.01).argmax()
        np.int64(0)
        """
        tried = real_array("completions", completions, ndim=4)
        known = real_array("others", others, shape=(None, *tried.shape[2:]))
        ridge = real_number("ridge", ridge, above=0)
        square = self._square(tried.shape[2:])
        around = np.ones(tried.shape[2:], dtype=bool)
        around[square] = False
        if not around.any():
            raise ValueError("size must leave something of the image around the square")
        given, hidden = known[:, around], known[:, *square].reshape(len(known), -1)
        centre, level = given.mean(axis=0), hidden.mean(axis=0)
        centred = given - centre
        weights = np.linalg.solve(
            centred.T @ centred + ridge * np.eye(centred.shape[1]), centred.T @ (hidden - level)
        )
        variance = np.square(hidden - level - centred @ weights).mean()
        predicted = level + (tried[:, 0][:, around] - centre) @ weights
        seen = tried[:, :, *square].reshape(*tried.shape[:2], -1)
        return -np.square(seen - predicted[:, None]).sum(axis=2) / (2 * max(variance, np.finfo(float).tiny))

    def _square(self, shape: tuple[int, ...]) -> tuple[slice, slice]:
        if max(self.row + self.size - shape[0], self.column + self.size - shape[1]) > 0:
            raise ValueError(f"size must fit into images of {shape[0]} by {shape[1]} pixels, got {self}")
        return slice(self.row, self.row + self.size), slice(self.column, self.column + self.size)


def guess_attribute(
    log_confidence: ArrayLike, rng: np.random.Generator, *, log_prior: ArrayLike | None = None
) -> Ints:
    r"""Return, for each record, the completion that makes the true label most plausible.

    The attacker knows a record but for one attribute, tries every value v, and takes the largest
    :math:`\log P(v) + \log p_y(x_v)`. Equal ones are decided by lot, so that an attack that knows nothing is
    right no more often than chance.

    Parameters
    ----------
    log_confidence : array-like of float, shape (n, values)
        Log-probability of the true label for each completion. Minus infinity where it is impossible; with
        labels only, 0 where the answer is the true label and minus infinity where not.
    rng : numpy.random.Generator
        Decides ties.
    log_prior : array-like of float, shape (values,) or (n, values), optional
        What was known before the model was asked; equal by default.

    Returns
    -------
    ndarray of int64, shape (n,)
        Places of the chosen values.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match or an entry is NaN or plus infinity.

    References
    ----------
    [Fredrikson2014], [Yeom2018]

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> guess_attribute(np.log([[0.2, 0.5], [0.9, 0.8]]), rng).tolist()
    [1, 0]
    >>> guess_attribute(np.log([[0.2, 0.5], [0.9, 0.8]]), rng, log_prior=np.log([0.9, 0.1])).tolist()
    [0, 0]
    """
    scores = _log_probabilities("log_confidence", log_confidence)
    numpy_generator("rng", rng)
    if scores.ndim != 2 or scores.size == 0:
        raise ValueError(f"log_confidence must have shape (n, values), got {scores.shape}")
    if log_prior is not None:
        prior = _log_probabilities("log_prior", log_prior)
        if prior.shape not in (scores.shape, scores.shape[1:]):
            raise ValueError(
                f"log_prior must have shape {scores.shape[1:]} or {scores.shape}, got {prior.shape}"
            )
        scores = scores + prior
    best = scores == scores.max(axis=1, keepdims=True)
    return np.where(best, rng.random(scores.shape), -1.0).argmax(axis=1).astype(np.int64)


def label_robustness(
    ask: Ask,
    inputs: ArrayLike,
    labels: ArrayLike,
    *,
    noise_std: float,
    copies: int,
    rng: np.random.Generator,
) -> Floats:
    """Return how stubbornly a model gives the true label: a membership score from labels alone.

    An example on which the answer is wrong scores 0, any other the share of its noisy copies that still
    get the true label. Examples that were learned by heart lie farther from the boundary.

    Parameters
    ----------
    ask : callable
        Takes rows of shape (n, d), returns their labels.
    inputs : array-like of float, shape (n, d)
        The candidates, entries in [0, 1].
    labels : array-like of int, shape (n,)
        Their true classes.
    noise_std : float
        Standard deviation of the Gaussian noise, greater than 0; noisy entries are clipped to [0, 1].
    copies : int
        Noisy copies of each candidate, at least 1: n·(1 + copies) queries in all.
    rng : numpy.random.Generator
        Source of the noise.

    Returns
    -------
    ndarray of float64, shape (n,)
        Higher means "member".

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or shapes do not match.

    References
    ----------
    [ChoquetteChoo2021], section 4.

    Examples
    --------
    >>> def ask(rows):
    ...     return (rows[:, 0] > 0.5).astype(int)
    >>> label_robustness(ask, [[0.9], [0.51], [0.4]], [1, 1, 1], noise_std=0.1, copies=200,
    ...                  rng=np.random.default_rng(0)).round(1)
    array([1. , 0.5, 0. ])
    """
    rows = real_array("inputs", inputs, ndim=2, at_least=0, at_most=1)
    truth = integer_array("labels", labels, shape=(len(rows),))
    noise_std = real_number("noise_std", noise_std, above=0)
    copies = integer("copies", copies, at_least=1)
    numpy_generator("rng", rng)

    def right(batch: Floats) -> NDArray[np.bool_]:
        return integer_array("answers of ask", ask(batch), shape=truth.shape) == truth

    known = right(rows.copy())
    stable = np.zeros(len(rows))
    for _ in range(copies):
        stable += right((rows + noise_std * rng.standard_normal(rows.shape)).clip(0, 1))
    return known * stable / copies


# --------------------------------------------------------------------------- the protected API


class RefusedError(Exception):
    """The API does not answer; nothing was charged and the model was not asked.

    Attributes
    ----------
    reason : {"invalid", "quota", "clock"}
        For programs; the message is for people.
    """

    reason = "refused"


class InvalidQueryError(RefusedError):
    """The query is not one that the API takes: another type or shape, or a number outside the bounds."""

    reason = "invalid"


class QuotaExceededError(RefusedError):
    """The account has fewer queries left today than the batch has rows.

    Attributes
    ----------
    asked, left : int
        Rows of the batch, and queries that the account has left today.
    resets_at : datetime.datetime
        When the next UTC day begins.
    """

    reason = "quota"

    def __init__(self, asked: int, left: int, resets_at: datetime):
        super().__init__(
            f"{asked} rows asked, {left} left today; the quota is renewed at {resets_at.isoformat()}"
        )
        self.asked = asked
        self.left = left
        self.resets_at = resets_at

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.asked, self.left, self.resets_at)  # so that it crosses process boundaries


class ClockWentBackError(RefusedError):
    """The clock names an earlier day than before: answering would give a spent quota a second time."""

    reason = "clock"


class ModelFailureError(RuntimeError):
    """The model behind the API failed on a query that was accepted and charged. It says no more than that."""


@dataclass(frozen=True)
class AuditCounts:
    """What an API has done so far.

    Parameters
    ----------
    answered : int
        Rows that got an answer.
    batches : int
        Batches that got one.
    failures : int
        Batches that were charged and on which the model failed.
    refused : mapping of str to int
        Batches that were refused, by reason.
    accounts_today : int
        Accounts that were charged on the latest day on which the clock was read.
    """

    answered: int
    batches: int
    failures: int
    refused: Mapping[str, int]
    accounts_today: int


class ProtectedAPI:
    """A classifier that answers with labels only, and to each account only so often a day.

    *What it says*: the most probable class, or with ``top_k`` > 1 the ``top_k`` most probable classes as a
    set, written in ascending order of their numbers, so that the order tells nothing. No probability ever
    leaves. *What it charges*: every row is one query of the account's quota of that UTC day. A batch is
    charged as a whole, before the model sees it, or refused as a whole; a refusal charges nothing. An invalid
    query is refused without a charge, because nothing is learned about the model from it. A model that fails
    has been asked: that is charged. *The day* is the one that the clock names; a step back to an earlier day
    is refused until the clock has caught up.

    Calls from several threads are safe if the model may be called from several threads. The counters live in
    this object: several processes would each grant a full quota, and need a common store. An account is
    whatever name the login in front of the API vouches for; nothing here stops one person from having two.
    And in the same Python process nothing is hidden: the model is safe only behind a process boundary.

    Parameters
    ----------
    model : callable
        Takes a float64 array of shape (n, n_inputs), returns finite scores of shape (n, n_classes), logits or
        probabilities.
    n_inputs : int
        Entries of one input, at least 1.
    daily_quota : int
        Queries of each account and UTC day, at least 1.
    top_k : int, default 1
        How many classes an answer names, fewer than there are.
    bounds : tuple of float, optional
        Lowest and highest value that an entry of an input may have.
    clock : callable, optional
        Returns the present time with a time zone; the system's clock by default.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> clock = ManualClock(datetime(2026, 1, 31, 23, 0, tzinfo=UTC))
    >>> api = ProtectedAPI(lambda rows: np.hstack([rows, 1 - rows]), n_inputs=1, daily_quota=3, clock=clock)
    >>> api.query("ada", [[0.9], [0.2]])
    array([0, 1])
    >>> api.query("ada", [[0.9], [0.2]])
    Traceback (most recent call last):
        ...
    thousand_fingers.extraction.QuotaExceededError: 2 rows asked, 1 left today; the quota is renewed at \
2026-02-01T00:00:00+00:00
    >>> clock.advance(hours=1)
    >>> api.left("ada")
    3
    """

    def __init__(
        self,
        model: Callable[[Floats], ArrayLike],
        *,
        n_inputs: int,
        daily_quota: int,
        top_k: int = 1,
        bounds: tuple[float, float] | None = None,
        clock: Clock | None = None,
    ):
        if not callable(model):
            raise TypeError(f"model must be callable, got {model!r}")
        if clock is not None and not callable(clock):
            raise TypeError(f"clock must be callable, got {clock!r}")
        self._model = model
        self._n_inputs = integer("n_inputs", n_inputs, at_least=1)
        self._daily_quota = integer("daily_quota", daily_quota, at_least=1)
        self._top_k = integer("top_k", top_k, at_least=1)
        self._low = self._high = None
        if bounds is not None:
            try:
                low, high = bounds
            except (TypeError, ValueError):
                raise TypeError(f"bounds must be a pair of numbers, got {bounds!r}") from None
            self._low = real_number("bounds[0]", low)
            self._high = real_number("bounds[1]", high, above=self._low)
        self._clock = clock if clock is not None else _system_clock
        self._lock = threading.Lock()
        self._day = date.min
        self._used: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._answered = self._batches = self._failures = 0

    @property
    def daily_quota(self) -> int:
        """Queries of each account and UTC day."""
        return self._daily_quota

    def query(self, account: str, rows: ArrayLike) -> Ints:
        """Return the labels of a batch, or refuse it.

        Parameters
        ----------
        account : str
            Who asks; 1 to 200 characters.
        rows : array-like of float, shape (n, n_inputs)
            The inputs, finite and within the bounds. They are copied before they are looked at, so that what
            was checked is what the model gets.

        Returns
        -------
        ndarray of int64, shape (n,), or (n, top_k) with ``top_k`` > 1
            In the second case ascending in each row.

        Raises
        ------
        InvalidQueryError, QuotaExceededError, ClockWentBackError
            All of them :class:`RefusedError`: nothing was charged.
        ModelFailureError
            If the model raised or did not return scores; the batch stays charged.
        """
        try:
            name = _account_name(account)
            batch = self._checked_rows(rows)
            self._charge(name, len(batch))
        except RefusedError as refusal:
            with self._lock:
                self._refused[refusal.reason] += 1
            raise
        try:
            labels = self._labels(self._model(batch), len(batch))
        except Exception:
            with self._lock:
                self._failures += 1
            raise ModelFailureError("the model failed on this batch, which stays charged") from None
        with self._lock:
            self._answered += len(batch)
            self._batches += 1
        return labels

    def left(self, account: str) -> int:
        """Return how many queries an account has left today.

        Parameters
        ----------
        account : str
            Who asks; 1 to 200 characters.

        Returns
        -------
        int

        Raises
        ------
        InvalidQueryError, ClockWentBackError
            If the name is not one, or the clock names an earlier day than before.
        """
        name = _account_name(account)
        with self._lock:
            self._enter_day()
            return self._daily_quota - self._used[name]

    def audit(self) -> AuditCounts:
        """Return what was answered and refused so far, counted at one moment."""
        with self._lock:
            return AuditCounts(
                self._answered,
                self._batches,
                self._failures,
                MappingProxyType(dict(self._refused)),
                len(self._used),
            )

    def _checked_rows(self, rows: ArrayLike) -> Floats:
        try:
            copied = np.array(rows)
        except Exception as error:  # the caller's own object may raise anything while it is copied
            raise InvalidQueryError(f"rows cannot be read as an array: {error}") from None
        if isinstance(rows, np.ma.MaskedArray) and np.ma.is_masked(rows):
            raise InvalidQueryError("rows must have no masked entry")  # the copy holds what the mask hides
        try:
            return real_array(
                "rows", copied, shape=(None, self._n_inputs), at_least=self._low, at_most=self._high
            )
        except (TypeError, ValueError) as error:
            raise InvalidQueryError(str(error)) from None

    def _charge(self, account: str, n: int) -> None:
        """Charge n queries or refuse. The clock is read under the lock, so that days arrive in order."""
        with self._lock:
            today = self._enter_day()
            left = self._daily_quota - self._used[account]
            if n > left:
                tomorrow = datetime.combine(today + timedelta(days=1), time.min, tzinfo=UTC)
                raise QuotaExceededError(n, left, tomorrow)
            self._used[account] += n

    def _enter_day(self) -> date:
        """Return the clock's UTC day; on a new one forget what was used. The lock is held."""
        now = self._clock()
        if not isinstance(now, datetime) or now.utcoffset() is None:
            raise TypeError(f"clock must return a datetime with a time zone, got {now!r}")
        today = now.astimezone(UTC).date()
        if today < self._day:
            raise ClockWentBackError(f"the clock says {today}, but {self._day} has begun already")
        if today > self._day:
            self._day = today
            self._used.clear()
        return today

    def _labels(self, scores: ArrayLike, n: int) -> Ints:
        table = real_array("scores", scores, shape=(n, None))
        if table.shape[1] <= self._top_k:
            raise ValueError(f"top_k must be less than the {table.shape[1]} classes, got {self._top_k}")
        if self._top_k == 1:
            return table.argmax(axis=1).astype(np.int64)
        ranked = np.argsort(-table, axis=1, kind="stable")[:, : self._top_k]
        return np.sort(ranked, axis=1).astype(np.int64)


class ManualClock:
    """A clock that somebody turns by hand, for experiments and tests.

    Parameters
    ----------
    now : datetime.datetime
        The first reading, with a time zone.

    Examples
    --------
    >>> clock = ManualClock(datetime(2026, 1, 31, tzinfo=UTC))
    >>> clock.advance(days=1, hours=2)
    >>> clock()
    datetime.datetime(2026, 2, 1, 2, 0, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, now: datetime):
        if not isinstance(now, datetime) or now.utcoffset() is None:
            raise TypeError(f"now must be a datetime with a time zone, got {now!r}")
        self._now = now

    def __call__(self) -> datetime:
        """Return the present reading."""
        return self._now

    def advance(self, **step: float) -> None:
        """Turn the clock by a :class:`datetime.timedelta` of these arguments, backwards if it is negative."""
        self._now += timedelta(**step)


class PatientThief:
    """A client that takes what the quota gives, and waits for the next day when it is spent.

    It can be used wherever a function that answers rows is expected. With several accounts it uses them one
    after another before it waits: that is all it takes to multiply a quota.

    Parameters
    ----------
    api : ProtectedAPI
        The victim.
    accounts : sequence of str
        At least one.
    clock : ManualClock
        The clock of the API; it is turned to the next day instead of waiting.

    Attributes
    ----------
    queries : int
        Rows asked so far.
    days : int
        Days on which something was asked.

    Examples
    --------
    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> api = ProtectedAPI(lambda rows: np.hstack([rows, 1 - rows]), n_inputs=1, daily_quota=4, clock=clock)
    >>> thief = PatientThief(api, ["ada"], clock)
    >>> thief(np.linspace(0, 1, 10)[:, None]).tolist(), thief.queries, thief.days
    ([1, 1, 1, 1, 1, 0, 0, 0, 0, 0], 10, 3)
    """

    def __init__(self, api: ProtectedAPI, accounts: Sequence[str], clock: ManualClock):
        if isinstance(accounts, str) or len(accounts) == 0:
            raise ValueError(f"accounts must be a list of at least one name, got {accounts!r}")
        self._api = api
        self._accounts = list(dict.fromkeys(accounts))
        self._clock = clock
        self._last_day: date | None = None
        self.queries = 0
        self.days = 0

    def __call__(self, rows: ArrayLike) -> Ints:
        """Return the answers to all rows, however many days it takes.

        Raises
        ------
        ValueError
            If a new day brings no new quota: the clock is not that of the API.
        """
        batch = real_array("rows", rows, ndim=2)
        answers: list[Ints] = []
        done = 0
        nights = 0  # since something was answered
        while done < len(batch):
            if nights > 1:
                raise ValueError(
                    "clock must be the one that the API reads: it was turned, and no quota came back"
                )
            for account in self._accounts:
                take = min(self._api.left(account), len(batch) - done)
                if take > 0:
                    answers.append(self._api.query(account, batch[done : done + take]))
                    done += take
                    nights = 0
                    self._count(take)
            if done < len(batch):
                self._clock.advance(days=1)
                nights += 1
        return np.concatenate(answers)

    def _count(self, rows: int) -> None:
        today = self._clock().astimezone(UTC).date()
        self.days += today != self._last_day
        self._last_day = today
        self.queries += rows


def _nearest_probabilities(equations: Floats, answers: Floats, start: Floats) -> Floats:
    """Return the coefficients whose softmax is nearest to the answers, from a start near the solution."""
    n_classes = answers.shape[1]
    free = start[:, :-1] - start[:, -1:]  # the last class stays at 0

    def probabilities(coefficients: Floats) -> Floats:
        logits = equations @ coefficients.reshape(free.shape)
        return special.softmax(np.hstack([logits, np.zeros((len(logits), 1))]), axis=1)

    def errors(coefficients: Floats) -> Floats:
        return (probabilities(coefficients) - answers).ravel()

    def slopes(coefficients: Floats) -> Floats:
        p = probabilities(coefficients)
        by_logit = p[:, :, None] * (np.eye(n_classes) - p[:, None, :])[:, :, :-1]
        return np.einsum("nck,nj->ncjk", by_logit, equations).reshape(answers.size, free.size)

    best = optimize.least_squares(errors, free.ravel(), jac=slopes, method="lm", xtol=1e-12, max_nfev=200)
    return np.hstack([best.x.reshape(free.shape), np.zeros((len(free), 1))])


def _two_labels(answers: ArrayLike, n: int) -> Ints:
    return integer_array("answers of ask", answers, shape=(n,), at_least=0, at_most=1)


def _log_probabilities(name: str, values: ArrayLike) -> Floats:
    """Return finite numbers or minus infinity."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    array = array.astype(np.float64, copy=False)
    if np.isnan(array).any() or np.isposinf(array).any():
        raise ValueError(f"{name} must be finite or minus infinity, got NaN or plus infinity")
    return array


def _account_name(account: Any) -> str:
    if not isinstance(account, str) or not 0 < len(account) <= LONGEST_NAME:
        raise InvalidQueryError(f"account must be a name of 1 to {LONGEST_NAME} characters")
    return str.__str__(account)  # a plain string: a subclass could change its hash and be new every time


def _system_clock() -> datetime:
    return datetime.now(UTC)
