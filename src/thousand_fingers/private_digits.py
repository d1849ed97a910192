"""The private training runs of chapter 5: a linear model on hand-made features, and a small network from pixels.

The centre of the features is released first, with the noise of one step, so that a run of T steps is
accounted as T + 1. Subtracting a centre is what Tramèr and Boneh [TramerBoneh2021] do to their features.
Four arms tell apart what clipping and what noise do to a class with few examples, a question of
Bagdasaryan, Poursaeed and Shmatikov [Bagdasaryan2019].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.dpsgd import PrivateTraining, train_private
from thousand_fingers.features import oriented_gradients, unit_rows
from thousand_fingers.mechanisms import analytic_gaussian_std
from thousand_fingers.models import predict_logits
from thousand_fingers.validation import integer, integer_array, real_array, real_number, torch_generator

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A clipping norm that no gradient here reaches: training without clipping.
WIDE = 1e9


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear model on rows of length one, seen from a released centre.

    Parameters
    ----------
    centre : ndarray of shape (d,)
        What is subtracted from a row before it is brought to length one again.
    model : torch.nn.Linear
        Its logits have no offset.
    training : PrivateTraining
        For the accountant: the release of the centre counts as one of the steps.
    """

    centre: Floats
    model: nn.Linear
    training: PrivateTraining

    def logits(self, rows: ArrayLike) -> Floats:
        """Return the logits of rows of shape (n, d), as an array of shape (n, n_classes)."""
        seen = torch.from_numpy(unit_rows(unit_rows(rows) - self.centre))
        return predict_logits(self.model, seen, batch_size=len(seen)).numpy()

    def predict(self, rows: ArrayLike) -> Ints:
        """Return the most likely class of each row."""
        return self.logits(rows).argmax(axis=1)


def train_classifier(
    rows: ArrayLike,
    labels: ArrayLike,
    *,
    noise_multiplier: float,
    steps: int,
    learning_rate: float,
    max_grad_norm: float,
    generator: torch.Generator,
    batch_size: int | None = None,
    n_classes: int = 10,
) -> Classifier:
    r"""Train a linear classifier by DP-SGD on rows that are scaled to length one and centred privately.

    The centre is the sum of the rows plus Gaussian noise of standard deviation σ, divided by n: a row of
    length one changes the sum by at most 1, so it is a Gaussian mechanism with the σ of a step that sees
    everybody.

    Parameters
    ----------
    rows : array-like of shape (n, d)
        Features; each is brought to length one first.
    labels : array-like of int, shape (n,)
        Classes.
    noise_multiplier, steps, learning_rate, max_grad_norm, generator
        As in :func:`thousand_fingers.dpsgd.train_private`.
    batch_size : int, optional
        Expected size of a Poisson batch; everybody by default. With less than everybody there is no
        centre, since its cost would not be that of a step.
    n_classes : int, default 10
        Number of classes.

    Returns
    -------
    Classifier

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [TramerBoneh2021]

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> rows = torch.rand(300, 4, generator=generator, dtype=torch.float64).numpy()
    >>> labels = (rows[:, 0] > rows[:, 1]).astype(int)
    >>> found = train_classifier(rows, labels, noise_multiplier=5.0, steps=30, learning_rate=10.0,
    ...                          max_grad_norm=0.5, generator=generator, n_classes=2)
    >>> found.training.steps, bool((found.predict(rows) == labels).mean() > 0.9)
    (31, True)
    """
    n_classes = integer("n_classes", n_classes, at_least=2)
    unit = unit_rows(real_array("rows", rows, ndim=2))
    told = integer_array("labels", labels, shape=(len(unit),), at_least=0, at_most=n_classes - 1)
    noise_multiplier = real_number("noise_multiplier", noise_multiplier, at_least=0)
    torch_generator("generator", generator)
    n, d = unit.shape
    everybody = batch_size is None or batch_size == n
    centre = np.zeros(d)
    if everybody:
        noise = torch.randn(d, generator=generator, dtype=torch.float64).numpy()
        centre = (unit.sum(axis=0) + noise_multiplier * noise) / n
    model = nn.utils.skip_init(nn.Linear, d, n_classes, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    run = train_private(
        model,
        torch.from_numpy(unit_rows(unit - centre)),
        torch.from_numpy(np.array(told)),
        batch_size=n if batch_size is None else batch_size,
        steps=steps,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        learning_rate=learning_rate,
        generator=generator,
    )
    charged = PrivateTraining(
        n, run.batch_size, steps + everybody, noise_multiplier, max_grad_norm, "poisson"
    )
    return Classifier(centre, model.requires_grad_(False), charged)


def digit_features() -> tuple[Floats, Ints]:
    """Return the oriented gradients of the 5,000 bundled digits, scaled to length one, and the labels.

    Returns
    -------
    features : ndarray of float64, shape (5000, 392)
    labels : ndarray of int64, shape (5000,)

    Examples
    --------
    >>> features, labels = digit_features()
    >>> features.shape
    (5000, 392)
    """
    digits = load_mnist5k()
    return unit_rows(oriented_gradients(digits.images)), digits.labels


# --------------------------------------------------------------------------- the long runs


def who_pays(
    part: int,
    *,
    epsilons: list[float],
    delta: float,
    minority: int,
    kept: int,
    steps: int,
    learning_rate: float,
    max_grad_norm: float,
) -> dict[str, NDArray[Any]]:
    """Train the four arms on one split, with and without a class cut down, and count right answers.

    Arms: converged (neither clip nor noise, four times the steps); neither, clip only; then for each ε
    noise only, and both: that is DP-SGD. All but the first take the same number of steps at the same rate.
    Only DP-SGD has a noisy centre.

    Parameters
    ----------
    part : int
        Seed of the split and of the noise.
    epsilons : list of float
        Budgets; the noise for them is that of ``steps + 1`` steps that see everybody.
    delta : float
        Slack.
    minority : int
        The class that is cut.
    kept : int
        How many of its training examples are kept.
    steps, learning_rate, max_grad_norm
        As in :func:`train_classifier`.

    Returns
    -------
    dict of str to ndarray of int64
        ``right`` of shape (2, arms, 2): balanced or cut, the arms, and the number of right answers on test
        images of the minority class and of the others.

    Examples
    --------
    >>> who_pays(0, epsilons=[8.0], delta=1e-5, minority=8, kept=29, steps=1, learning_rate=10.0,
    ...          max_grad_norm=0.3)["right"].shape
    (2, 5, 2)
    """
    features, labels = digit_features()
    split = mnist5k_split(rng=np.random.default_rng(part))
    test, truth = features[split.test], labels[split.test]
    is_minority = labels[split.train] == minority
    arms = [(4 * steps, 0.0, WIDE), (steps, 0.0, WIDE), (steps, 0.0, max_grad_norm)]
    right = []
    for cut in (False, True):
        keep = ~is_minority | (np.cumsum(is_minority) <= (kept if cut else is_minority.sum()))
        train = split.train[keep]
        # at q = 1 the run is one Gaussian mechanism, exactly
        wanted = [math.sqrt(steps + 1) * analytic_gaussian_std(e, delta) for e in epsilons]
        noisy = [
            arm
            for sigma in wanted
            # without clipping, noise of the same size: its standard deviation is σC in both arms
            for arm in ((steps, sigma * max_grad_norm / WIDE, WIDE), (steps, sigma, max_grad_norm))
        ]
        for arm, (length, noise_multiplier, clip) in enumerate(arms + noisy):
            found = train_classifier(
                features[train],
                labels[train],
                noise_multiplier=noise_multiplier,
                steps=length,
                learning_rate=learning_rate,
                max_grad_norm=clip,
                generator=torch.Generator().manual_seed(100 * part + arm),
            )
            correct = found.predict(test) == truth
            right += [correct[truth == minority].sum(), correct[truth != minority].sum()]
    return {"right": np.array(right, dtype=np.int64).reshape(2, -1, 2)}


def small_tanh_network(generator: torch.Generator) -> nn.Sequential:
    """Return the network that is trained from pixels: one convolution, tanh, one linear layer.

    Parameters
    ----------
    generator : torch.Generator
        Source of the initial weights, uniform in ±1/√inputs.

    Returns
    -------
    torch.nn.Sequential
        Maps images of shape (n, 1, 28, 28) to logits.

    Examples
    --------
    >>> network = small_tanh_network(torch.Generator().manual_seed(0))
    >>> sum(p.numel() for p in network.parameters())
    8890
    """
    torch_generator("generator", generator)
    convolution = nn.utils.skip_init(nn.Conv2d, 1, 16, 8, stride=4, padding=2, dtype=torch.float64)
    linear = nn.utils.skip_init(nn.Linear, 16 * 7 * 7, 10, dtype=torch.float64)
    with torch.no_grad():
        for layer in (convolution, linear):
            bound = 1 / math.sqrt(next(layer.parameters())[0].numel())
            for parameter in layer.parameters():
                uniform = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(bound * (2 * uniform - 1))
    return nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), linear)


def end_to_end(
    part: int,
    *,
    noise_multipliers: list[float],
    splits: int,
    share: int,
    steps: int,
    learning_rates: list[float],
    max_grad_norm: float,
    on: str = "test",
) -> dict[str, NDArray[Any]]:
    """Train the small network from pixels with one noise and on one split, and count right answers.

    Parameters
    ----------
    part : int
        Which of ``(len(noise_multipliers) + 1) × splits`` runs; the first ``splits`` have neither noise nor
        clip.
    noise_multipliers : list of float
        One for each budget; what they cost, ``accounting`` says.
    splits : int
        Number of splits, with seeds 0, 1, 2, …
    share : int
        A Poisson batch holds one in ``share`` training images on average.
    steps : int
        Number of steps.
    learning_rates : list of float
        One without noise, then one for each noise multiplier.
    max_grad_norm : float
        C.
    on : {"test", "validation"}, default "test"
        Where to count.

    Returns
    -------
    dict of str to ndarray
        ``right`` and ``n``, both counts.

    Examples
    --------
    >>> found = end_to_end(0, noise_multipliers=[2.0], splits=1, share=35, steps=2, on="validation",
    ...                    learning_rates=[0.5, 1.0], max_grad_norm=0.1)
    >>> int(found["n"])
    500
    """
    budget, seed = divmod(integer("part", part, at_least=0), integer("splits", splits, at_least=1))
    digits = load_mnist5k()
    split = mnist5k_split(rng=np.random.default_rng(seed))
    images, labels = torch.from_numpy(digits.images)[:, None], torch.from_numpy(digits.labels)
    sigma, clip = 0.0, WIDE
    if budget > 0:
        sigma, clip = noise_multipliers[budget - 1], max_grad_norm
    generator = torch.Generator().manual_seed(part)
    network = small_tanh_network(generator)
    train_private(
        network,
        images[split.train],
        labels[split.train],
        batch_size=split.train.size // share,
        steps=steps,
        noise_multiplier=sigma,
        max_grad_norm=clip,
        learning_rate=learning_rates[budget],
        generator=generator,
    )
    asked = split.test if on == "test" else split.validation
    said = predict_logits(network, images[asked]).argmax(1)
    return {"right": (said == labels[asked]).sum().numpy(), "n": np.array(asked.size)}
