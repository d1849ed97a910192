"""Chapter 5's long runs: settings compared on validation images, who pays, and a network from pixels.

The arms of :func:`who_pays` tell apart what clipping, noise and too little training do to a class with few
examples, a question of Bagdasaryan, Poursaeed and Shmatikov [Bagdasaryan2019].
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.dpsgd import train_private
from thousand_fingers.mechanisms import analytic_gaussian_std
from thousand_fingers.models import predict_logits
from thousand_fingers.private_digits import WIDE, digit_features, train_classifier
from thousand_fingers.validation import choice, integer, torch_generator


def settings(
    part: int,
    *,
    epsilons: list[float],
    delta: float,
    learning_rates: list[float],
    max_grad_norms: list[float],
    steps: list[int],
    split: int,
) -> dict[str, NDArray[Any]]:
    """Train a linear model at one budget with every clipping norm and learning rate; count on validation images.

    The parts are hand-made features at all budgets, then pixels. Test images are not looked at.

    Parameters
    ----------
    part : int
        Which features and which budget.
    epsilons : list of float
        Budgets; 0 stands for neither noise nor clip, whatever the clipping norm.
    delta : float
        Slack.
    learning_rates, max_grad_norms : list of float
        What is tried.
    steps : list of int
        Steps with hand-made features, and with pixels.
    split : int
        Seed of the split and of the noise; not one on which results are reported. (The test images are the
        same in all.)

    Returns
    -------
    dict of str to ndarray of int64
        ``right`` of shape (clipping norms, learning rates): right answers among the 500 validation images.

    Examples
    --------
    >>> settings(0, epsilons=[8.0], delta=1e-5, learning_rates=[60.0, 240.0], max_grad_norms=[0.3],
    ...          steps=[1, 1], split=5)["right"].shape
    (1, 2)
    """
    kind, budget = (int(i) for i in np.unravel_index(part, (2, len(epsilons))))
    features, labels = digit_features()
    rows = features if kind == 0 else load_mnist5k().images.reshape(len(labels), -1)
    dealt = mnist5k_split(rng=np.random.default_rng(split))
    sigma, clips = 0.0, [WIDE]
    if epsilons[budget] > 0:
        # at q = 1 the run, with its centre, is one Gaussian mechanism, exactly
        sigma = math.sqrt(steps[kind] + 1) * analytic_gaussian_std(epsilons[budget], delta)
        clips = max_grad_norms
    right = np.zeros((len(max_grad_norms), len(learning_rates)), dtype=np.int64)
    for row, clip in enumerate(clips):
        for column, learning_rate in enumerate(learning_rates):
            found = train_classifier(
                rows[dealt.train],
                labels[dealt.train],
                noise_multiplier=sigma,
                steps=steps[kind],
                learning_rate=learning_rate,
                max_grad_norm=clip,
                generator=torch.Generator().manual_seed(split),
            )
            right[row, column] = (found.predict(rows[dealt.validation]) == labels[dealt.validation]).sum()
    if len(clips) == 1:
        right[:] = right[0]
    return {"right": right}


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
    """Train all arms on one split, with or without a class cut down, and count right answers.

    Arms: converged (neither clip nor noise, four times the steps); neither; clip only; neither, at a third of
    the learning rate; clip only, with four times the steps; then for each ε noise only, and both: that is
    DP-SGD. Unless said otherwise the steps and the rate are the same. Only DP-SGD has a noisy centre.

    Parameters
    ----------
    part : int
        Twice the seed of the split and of the noise, plus one if the class is cut.
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
        ``right`` of shape (arms, 2): the number of right answers on test images of the minority class and of
        the others.

    Examples
    --------
    >>> who_pays(0, epsilons=[8.0], delta=1e-5, minority=8, kept=29, steps=1, learning_rate=10.0,
    ...          max_grad_norm=0.3)["right"].shape
    (7, 2)
    """
    seed, cut = divmod(integer("part", part, at_least=0), 2)
    features, labels = digit_features()
    split = mnist5k_split(rng=np.random.default_rng(seed))
    test, truth = features[split.test], labels[split.test]
    is_minority = labels[split.train] == minority
    keep = ~is_minority | (np.cumsum(is_minority) <= (kept if cut else is_minority.sum()))
    train = split.train[keep]
    # (steps, learning rate, noise multiplier, clipping norm)
    arms = [
        (4 * steps, learning_rate, 0.0, WIDE),
        (steps, learning_rate, 0.0, WIDE),
        (steps, learning_rate, 0.0, max_grad_norm),
        (steps, learning_rate / 3, 0.0, WIDE),
        (4 * steps, learning_rate, 0.0, max_grad_norm),
    ]
    for epsilon in epsilons:
        # at q = 1 the run is one Gaussian mechanism, exactly
        sigma = math.sqrt(steps + 1) * analytic_gaussian_std(epsilon, delta)
        # without clipping, noise of the same size: its standard deviation is σC in both arms
        arms.append((steps, learning_rate, sigma * max_grad_norm / WIDE, WIDE))
        arms.append((steps, learning_rate, sigma, max_grad_norm))
    right = []
    for arm, (length, rate, noise_multiplier, clip) in enumerate(arms):
        found = train_classifier(
            features[train],
            labels[train],
            noise_multiplier=noise_multiplier,
            steps=length,
            learning_rate=rate,
            max_grad_norm=clip,
            generator=torch.Generator().manual_seed(100 * seed + arm),
        )
        correct = found.predict(test) == truth
        right.append([correct[truth == minority].sum(), correct[truth != minority].sum()])
    return {"right": np.array(right, dtype=np.int64)}


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
    choice("on", on, ("test", "validation"))
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
