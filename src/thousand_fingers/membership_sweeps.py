"""Chapter 2's set-up, and the sweeps over defences and trainings that are too long for its page.

One audit set of real digits, one policy of training, shadow models in complementary halves. A
configuration changes something (weights, noise, clipping, epochs, size), fresh shadow models are trained
with it, and each of them is attacked by all others with LiRA [Carlini2022] and RMIA [Zarifzadeh2024]: an
attacker who knows the defence. The weights come from vulnerabilities measured on other shadow models, as in
[Brannvall2025].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thousand_fingers import datasets
from thousand_fingers.ensembles import Ensemble, paired_halves, rows_of, train_ensemble
from thousand_fingers.membership import instance_weights, lira_scores, logit_confidence, rmia_scores, t_scores
from thousand_fingers.roc import roc_curve
from thousand_fingers.validation import integer

#: How every network of the chapter is trained, unless a configuration says otherwise.
POLICY: Mapping[str, Any] = {
    "epochs": 30,
    "batch_size": 50,
    "learning_rate": 0.1,
    "optimiser": "sgd",
    "momentum": 0.9,
}
HIDDEN = (128,)
COMPONENTS = 50
#: Shadow models of each configuration: 16,000 pairs with a non-member.
MEMBERS = 32
#: What a sweep measures of each configuration, in the order of its array ``figures``.
FIGURES = ("train", "validation", "test", "auc", "tpr_1", "tpr_01", "rmia_auc", "rmia_tpr_01")


@dataclass(frozen=True, eq=False)
class Setup:
    """Images as the networks see them, and which of them serve for what.

    Parameters
    ----------
    inputs : Tensor of shape (n, 50)
        Principal components, fitted on ``others`` only.
    labels : ndarray of int64, shape (n,)
        The digits.
    audit : ndarray of int64
        Whose membership is inferred: every network is trained on half of them.
    population : ndarray of int64
        Strangers for RMIA: no network is trained on them.
    others, validation, test : ndarray of int64
        For the components; for choosing settings; for the end.
    """

    inputs: Tensor
    labels: NDArray[np.int64]
    audit: NDArray[np.int64]
    population: NDArray[np.int64]
    others: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]

    def confidence(self, networks: Ensemble, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the confidence of every network in the true labels of some images, shape (members, rows)."""
        return logit_confidence(networks.logits(self.inputs[rows]).numpy(), self.labels[rows])

    def right(self, networks: Ensemble, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which images every network classifies rightly, shape (members, rows)."""
        return networks.predict(self.inputs[rows]).numpy() == self.labels[rows]


@functools.cache
def audit_setup(scale: str = "ci", n_audit: int = 1000) -> Setup:
    """Return the digits of a scale, split for an audit and reduced to 50 numbers each.

    Parameters
    ----------
    scale : {"ci", "paper"}
        As for :func:`thousand_fingers.datasets.load_mnist`.
    n_audit : int, default 1000
        Size of the audit set; the population has as many, and the rest goes to the components.

    Returns
    -------
    Setup

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> setup = audit_setup()
    >>> setup.inputs.shape, setup.audit.size, setup.population.size, setup.others.size
    (torch.Size([5000, 50]), 1000, 1000, 1500)
    """
    n_audit = integer("n_audit", n_audit, at_least=2)
    digits, split = datasets.load_mnist(scale)
    images = digits.images.reshape(len(digits.images), -1)
    rest = split.train.size - 2 * n_audit
    parts = datasets.stratified_split(
        digits.labels[split.train], [n_audit, n_audit, rest], np.random.default_rng(0)
    )
    audit, population, others = (split.train[part] for part in parts)
    centre = images[others].mean(axis=0)
    covariance = np.cov(images[others], rowvar=False)
    directions = np.linalg.eigh(covariance).eigenvectors[:, : -COMPONENTS - 1 : -1]
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, np.arange(COMPONENTS)])  # a sign is no choice
    inputs = torch.from_numpy((images - centre) @ directions)
    return Setup(inputs, digits.labels, audit, population, others, split.validation, split.test)


def shadow_models(
    setup: Setup,
    halves: NDArray[np.bool_],
    *,
    first_seed: int,
    hidden: Sequence[int] = HIDDEN,
    **changes: Any,
) -> Ensemble:
    """Train one network for each row of a table of memberships, by the chapter's policy.

    Parameters
    ----------
    setup : Setup
        The data.
    halves : ndarray of bool, shape (members, n)
        Which of the first n audit examples each is trained on.
    first_seed : int
        Seed of the first network; the others follow.
    hidden : sequence of int, default (128,)
        Hidden units of each layer.
    **changes
        What departs from the policy, as arguments of
        :func:`thousand_fingers.ensembles.train_ensemble`; weights and noise are one per audit example.

    Returns
    -------
    Ensemble

    Examples
    --------
    >>> setup = audit_setup()
    >>> halves = paired_halves(2, 100, rng=np.random.default_rng(0))
    >>> len(shadow_models(setup, halves, first_seed=0, epochs=1))
    2
    """
    audit = setup.audit[: halves.shape[1]]
    rows = rows_of(halves)
    return train_ensemble(
        setup.inputs[audit],
        rows,
        setup.labels[audit][rows],
        sizes=[setup.inputs.shape[1], *hidden, 10],
        generators=[torch.Generator().manual_seed(first_seed + i) for i in range(len(halves))],
        **{**POLICY, **changes},
    )


def sweep_part(part: int, *, configurations: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Train fresh shadow models by one configuration and attack them.

    Parameters
    ----------
    part : int
        Which configuration.
    configurations : sequence of mapping
        Each may hold ``slope`` and ``offset`` of the weights; ``noise``, the standard deviation of the noise
        on the *mean* gradient of a batch, and ``aimed``, whether it is shared out by vulnerability;
        ``max_grad_norm`` and ``noise_multiplier``; ``n`` audit examples; ``hidden``; ``donor``, the hidden
        units of the networks on which vulnerability is measured; ``epochs`` and ``weight_decay``.

    Returns
    -------
    dict of str to ndarray
        ``figures`` in the order of :data:`FIGURES`, and the vulnerability ``t`` of each audit example under
        this configuration (NaN beyond the first ``n``).

    Examples
    --------
    >>> found = sweep_part(0, configurations=[{"n": 40, "epochs": 1, "hidden": [4]}])
    >>> found["figures"].shape, found["t"].shape
    ((8,), (1000,))
    """
    setup, chosen = audit_setup(), dict(configurations[part])
    n = chosen.pop("n", setup.audit.size)
    changes = _changes(chosen)
    halves = paired_halves(MEMBERS, n, rng=np.random.default_rng(1))
    networks = shadow_models(setup, halves, first_seed=1000, **changes)
    phi = setup.confidence(networks, setup.audit[:n])
    online = roc_curve(lira_scores(phi, halves), halves)
    strangers = setup.confidence(networks, setup.population)
    relative = roc_curve(rmia_scores(phi, halves, strangers), halves)
    right = [setup.right(networks, rows) for rows in (setup.audit[:n], setup.validation, setup.test)]
    t = np.full(setup.audit.size, np.nan)
    t[:n] = t_scores(phi, halves)
    figures = [
        right[0][halves].mean(),
        right[1].mean(),
        right[2].mean(),
        online.auc,
        online.at_fpr(0.01).tpr,
        online.at_fpr(0.001).tpr,
        relative.auc,
        relative.at_fpr(0.001).tpr,
    ]
    return {"figures": np.array(figures), "t": t}


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
    if "noise_multiplier" in chosen:  # noise on the sum of a batch, shared out over its examples
        on_the_sum = chosen.pop("noise_multiplier") * chosen["max_grad_norm"]
        chosen["noise_std"] = on_the_sum / math.sqrt(POLICY["batch_size"])
    return chosen


@functools.cache
def _vulnerability(hidden: tuple[int, ...]) -> NDArray[np.float64]:
    """Measure t on shadow models of their own: other halves, other seeds."""
    setup = audit_setup()
    halves = paired_halves(MEMBERS, setup.audit.size, rng=np.random.default_rng(0))
    networks = shadow_models(setup, halves, first_seed=0, hidden=hidden)
    return t_scores(setup.confidence(networks, setup.audit), halves)
