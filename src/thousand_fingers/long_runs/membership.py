"""Chapter 2's long run: a sweep over defences and ways of training, each attacked anew.

A configuration changes something (weights, noise, clipping, epochs, size), fresh shadow models are trained
with it, and each of them is attacked by all others with LiRA [Carlini2022] and RMIA [Zarifzadeh2024]: an
attacker who knows the defence. The weights come from vulnerabilities measured on other shadow models, as in
[Brannvall2025]; the private arm is DP-SGD with Poisson batches [Abadi2016].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from thousand_fingers.audited_digits import HIDDEN, POLICY, Setup, audit_setup, shadow_models
from thousand_fingers.dpsgd import train_private
from thousand_fingers.ensembles import Ensemble, paired_halves
from thousand_fingers.intervals import Interval, mean_interval
from thousand_fingers.membership import instance_weights, lira_scores, rmia_scores, t_scores
from thousand_fingers.models import mlp
from thousand_fingers.roc import bootstrap_over_examples, roc_curve
from thousand_fingers.validation import integer

#: Shadow models of each configuration: 16,000 pairs with a non-member.
MEMBERS = 32
#: False-positive rates at which a sweep stores the curve of LiRA.
CURVE = tuple(float(rate) for rate in np.logspace(-4, 0, 41))
#: What a sweep measures of each configuration, in the order of its arrays ``figures``, ``low`` and ``high``.
FIGURES = ("train", "validation", "test", "auc", "tpr_1", "tpr_01", "rmia_auc", "rmia_tpr_1", "rmia_tpr_01")


def sweep(part: int, *, configurations: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Train fresh shadow models by one configuration and attack them.

    Parameters
    ----------
    part : int
        Which configuration.
    configurations : sequence of mapping
        Each may hold ``slope`` and ``offset`` of the weights; ``noise``, the standard deviation of the noise
        on the *mean* gradient of a batch, and ``aimed``, whether it is shared out by vulnerability; ``n``
        audit examples; ``hidden``; ``donor``, the hidden units of the networks on which vulnerability is
        measured; ``epochs`` and ``weight_decay``; or ``noise_multiplier``, ``max_grad_norm``,
        ``learning_rate`` and ``epochs`` of :func:`private_models`.

    Returns
    -------
    dict of str to ndarray
        ``figures`` in the order of :data:`FIGURES`; ``low`` and ``high``, the ends of their 95% intervals
        (of an accuracy over images, of an attack over audit examples, with all their networks);
        ``resamples``, shape (300, 6), the six figures of the attacks in each resample, the same examples for
        every configuration of the same ``n``; ``curve``, the true-positive rates of LiRA at :data:`CURVE`; and
        the vulnerability ``t`` of each audit example under this configuration (NaN beyond the first ``n``).

    Raises
    ------
    TypeError, ValueError
        If there is no such part, or a configuration is not understood.

    Examples
    --------
    >>> found = sweep(0, configurations=[{"n": 40, "epochs": 1, "hidden": [4]}])
    >>> found["figures"].shape, found["t"].shape
    ((9,), (1000,))
    """
    part = integer("part", part, at_least=0, at_most=len(configurations) - 1)
    setup, chosen = audit_setup(), dict(configurations[part])
    n = chosen.pop("n", setup.audit.size)
    halves = paired_halves(MEMBERS, n, rng=np.random.default_rng(1))
    train = private_models if "noise_multiplier" in chosen else shadow_models
    networks = train(setup, halves, first_seed=1000, **_changes(chosen))
    audit = setup.audit[:n]
    phi = setup.confidence(networks, audit)
    strangers = setup.confidence(networks, setup.population)
    likelihood, relative = lira_scores(phi, halves), rmia_scores(phi, halves, strangers)
    attacks = [_attack(scores, halves) for scores in (likelihood, relative)]
    found = [
        _accuracy(setup.right(networks, audit), halves),
        _accuracy(setup.right(networks, setup.validation)),
        _accuracy(setup.right(networks, setup.test)),
        *(figure for figures, _ in attacks for figure in figures),
    ]
    curve = roc_curve(likelihood, halves)
    t = np.full(setup.audit.size, np.nan)
    t[:n] = t_scores(phi, halves)
    return {
        "figures": np.array([value for value, _ in found]),
        "low": np.array([interval.low for _, interval in found]),
        "high": np.array([interval.high for _, interval in found]),
        "resamples": np.hstack([resamples for _, resamples in attacks]),
        "curve": np.array([curve.at_fpr(fpr).tpr for fpr in CURVE]),
        "t": t,
    }


def private_models(
    setup: Setup,
    halves: NDArray[np.bool_],
    *,
    first_seed: int,
    noise_multiplier: float,
    max_grad_norm: float,
    learning_rate: float,
    epochs: int,
) -> Ensemble:
    """Train one network for each row of a table of memberships by DP-SGD.

    Batches are drawn by lot, of the policy's size on average.

    Parameters
    ----------
    setup : Setup
        The data.
    halves : ndarray of bool, shape (members, n)
        Which of the first n audit examples each is trained on.
    first_seed : int
        Seed of the first network; the others follow.
    noise_multiplier, max_grad_norm, learning_rate : float
        As in :func:`thousand_fingers.dpsgd.train_private`.
    epochs : int
        How often an example is drawn on average.

    Returns
    -------
    Ensemble

    References
    ----------
    [Abadi2016]

    Examples
    --------
    >>> halves = paired_halves(2, 100, rng=np.random.default_rng(0))
    >>> private = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 0.5, "epochs": 1}
    >>> len(private_models(audit_setup(), halves, first_seed=0, **private))
    2
    """
    sizes = [setup.inputs.shape[1], *HIDDEN, 10]
    networks = []
    for i, half in enumerate(halves):
        rows = setup.audit[: halves.shape[1]][half]
        generator = torch.Generator().manual_seed(first_seed + i)
        network = mlp(sizes, generator=generator)
        train_private(
            network,
            setup.inputs[rows],
            torch.from_numpy(setup.labels[rows]),
            batch_size=POLICY["batch_size"],
            steps=private_steps(len(rows), epochs),
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            learning_rate=learning_rate,
            generator=generator,
        )
        networks.append(network)
    return _stacked(networks)


def private_steps(n: int, epochs: int) -> int:
    """Return how many noisy gradients :func:`private_models` uses on n examples.

    Parameters
    ----------
    n : int
        Examples that a network is trained on.
    epochs : int
        How often an example is drawn on average.

    Returns
    -------
    int

    Examples
    --------
    >>> private_steps(500, 15)
    150
    """
    return epochs * math.ceil(n / int(POLICY["batch_size"]))


def aimed_noise(weights: NDArray[np.float64], noise_std: float) -> NDArray[np.float64]:
    r"""Return a noise for each example that grows with its vulnerability, of a given total.

    :math:`\sigma_j^2 \propto 1-w_j`, scaled so that the mean of the variances is ``noise_std`` squared: the
    noise in a batch is on average what uniform noise of ``noise_std`` per example would be.

    Parameters
    ----------
    weights : ndarray of float, shape (n,)
        As :func:`thousand_fingers.membership.instance_weights` returns them.
    noise_std : float
        Standard deviation per example of the uniform noise to match.

    Returns
    -------
    ndarray of float64, shape (n,)

    Examples
    --------
    >>> aimed_noise(np.array([1.0, 1.0, 0.5, 0.5]), 0.1).round(4)
    array([0.    , 0.    , 0.1414, 0.1414])
    """
    exposed = 1 - weights
    return noise_std * np.sqrt(exposed / exposed.mean())


def _changes(chosen: dict[str, Any]) -> dict[str, Any]:
    """Translate a configuration into arguments of :func:`shadow_models`."""
    donor = tuple(chosen.pop("donor", HIDDEN))
    per_example = chosen.pop("noise", 0.0) * math.sqrt(POLICY["batch_size"])
    aimed = chosen.pop("aimed", False)
    if "slope" in chosen:
        weights = instance_weights(
            _vulnerability(donor), slope=chosen.pop("slope"), offset=chosen.pop("offset")
        )
        if aimed:
            chosen["noise_std"] = aimed_noise(weights, per_example)
        else:
            chosen["weights"] = weights
    if per_example and not aimed:
        chosen["noise_std"] = per_example
    return chosen


@functools.cache
def _vulnerability(hidden: tuple[int, ...]) -> NDArray[np.float64]:
    """Measure t on shadow models of their own: other halves, other seeds."""
    setup = audit_setup()
    halves = paired_halves(MEMBERS, setup.audit.size, rng=np.random.default_rng(0))
    networks = shadow_models(setup, halves, first_seed=0, hidden=hidden)
    return t_scores(setup.confidence(networks, setup.audit), halves)


def _accuracy(right: NDArray[np.bool_], counted: NDArray[np.bool_] | None = None) -> tuple[float, Interval]:
    """Return the mean share of right answers and its interval over images, of shape (members, images)."""
    weights = np.ones_like(right) if counted is None else counted
    shares = (right & weights).sum(axis=0) / weights.sum(axis=0)
    return float(shares.mean()), mean_interval(shares)


def _attack(
    scores: NDArray[np.float64], halves: NDArray[np.bool_]
) -> tuple[list[tuple[float, Interval]], NDArray[np.float64]]:
    """Return area and true-positive rates at 1% and 0.1%, each with its interval over examples, and resamples."""
    curve = roc_curve(scores, halves)
    spread = bootstrap_over_examples(scores, halves, rng=np.random.default_rng(2), n_resamples=300)
    rates = [curve.at_fpr(fpr).tpr for fpr in (0.01, 0.001)]
    figures = list(zip([curve.auc, *rates], [spread.auc, *spread.tpr], strict=True))
    return figures, spread.resamples


def _stacked(networks: Sequence[nn.Sequential]) -> Ensemble:
    """Return networks of equal shape as one ensemble."""
    layers = [[one for one in network if isinstance(one, nn.Linear)] for network in networks]
    stacks = list(zip(*layers, strict=True))
    return Ensemble(
        tuple(torch.stack([one.weight.detach().T for one in layer]) for layer in stacks),
        tuple(torch.stack([one.bias.detach()[None] for one in layer]) for layer in stacks),
    )
