"""Chapter 2's set-up: real digits whose membership is inferred, and shadow models that saw half of them.

One audit set, one policy of training, shadow models in complementary halves. The inputs are made without
looking at the audited images, so that members and others differ in nothing but having been trained on. The
sweeps over defences start from here (:mod:`thousand_fingers.long_runs.membership`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thousand_fingers import datasets
from thousand_fingers.ensembles import Ensemble, rows_of, train_ensemble
from thousand_fingers.membership import logit_confidence
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
        Size of the audit set; the population has as many, and the rest, at least 50, goes to the components.

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
    digits, split = datasets.load_mnist(scale)
    n_audit = integer("n_audit", n_audit, at_least=2, at_most=(split.train.size - COMPONENTS) // 2)
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

    Raises
    ------
    TypeError, ValueError
        If the table is none of memberships, or has more columns than there are audit examples.

    Examples
    --------
    >>> from thousand_fingers.ensembles import paired_halves
    >>> setup = audit_setup()
    >>> halves = paired_halves(2, 100, rng=np.random.default_rng(0))
    >>> len(shadow_models(setup, halves, first_seed=0, epochs=1))
    2
    """
    rows = rows_of(halves)
    if halves.shape[1] > setup.audit.size:
        raise ValueError(
            f"halves must have at most one column for each of {setup.audit.size} audit examples, "
            f"got {halves.shape[1]}"
        )
    audit = setup.audit[: halves.shape[1]]
    return train_ensemble(
        setup.inputs[audit],
        rows,
        setup.labels[audit][rows],
        sizes=[setup.inputs.shape[1], *hidden, 10],
        generators=[torch.Generator().manual_seed(first_seed + i) for i in range(len(halves))],
        **{**POLICY, **changes},
    )
