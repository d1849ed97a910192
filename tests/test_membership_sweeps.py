"""The set-up of chapter 2: nothing that is attacked made the inputs, and configurations mean what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from thousand_fingers.ensembles import paired_halves, train_ensemble
from thousand_fingers.membership_sweeps import (
    FIGURES,
    POLICY,
    _changes,
    aimed_noise,
    audit_setup,
    shadow_models,
    sweep_part,
)


def test_no_image_has_two_roles():
    setup = audit_setup()
    roles = [setup.audit, setup.population, setup.others, setup.validation, setup.test]
    together = np.concatenate(roles)
    assert np.unique(together).size == together.size == 5000
    for rows in roles[:2]:
        counts = np.bincount(setup.labels[rows], minlength=10)
        assert counts.max() - counts.min() <= 2


def test_the_components_are_fitted_on_images_that_nobody_attacks():
    setup = audit_setup()
    others = setup.inputs[setup.others]
    torch.testing.assert_close(others.mean(0), torch.zeros(50, dtype=torch.float64), atol=1e-9, rtol=0)
    covariance = torch.cov(others.T)
    off = covariance - torch.diag(covariance.diag())
    assert off.abs().max() < 1e-9 * covariance.diag().max()
    audited = torch.cov(setup.inputs[setup.audit].T)
    assert (audited - torch.diag(audited.diag())).abs().max() > 1e-3 * audited.diag().max()


def test_shadow_models_are_trained_by_the_policy_on_their_halves():
    setup = audit_setup()
    halves = paired_halves(4, 60, rng=np.random.default_rng(0))
    found = shadow_models(setup, halves, first_seed=7, epochs=2)
    rows = np.array([np.flatnonzero(member) for member in halves])
    expected = train_ensemble(
        setup.inputs[setup.audit[:60]],
        rows,
        setup.labels[setup.audit[:60]][rows],
        sizes=[50, 128, 10],
        epochs=2,
        batch_size=50,
        learning_rate=0.1,
        optimiser="sgd",
        momentum=0.9,
        generators=[torch.Generator().manual_seed(7 + m) for m in range(4)],
    )
    assert found.digest() == expected.digest()
    right = setup.right(found, setup.validation)
    assert ((setup.confidence(found, setup.validation) > 0) <= right).all()  # surer than all others together


def test_aimed_noise_is_redistributed_uniform_noise():
    weights = np.array([1.0, 0.9, 0.5, 0.01])
    noise = aimed_noise(weights, 0.3)
    assert (noise**2).mean() == pytest.approx(0.09)
    assert noise[0] == 0
    assert (np.diff(noise) > 0).all()


def test_noise_is_given_on_the_mean_gradient_and_passed_on_per_example():
    batch = POLICY["batch_size"]
    per_example = _changes({"noise": 0.01})["noise_std"]
    assert math.sqrt(batch * per_example**2) / batch == pytest.approx(0.01)
    changes = _changes({"max_grad_norm": 2.0, "noise_multiplier": 0.5})
    assert math.sqrt(batch) * changes["noise_std"] == pytest.approx(2.0 * 0.5)  # on the sum, as DP-SGD counts
    assert set(changes) == {"max_grad_norm", "noise_std"}


def test_a_part_of_a_sweep_is_its_configuration():
    small = {"n": 40, "epochs": 2, "hidden": [4]}
    parts = [sweep_part(k, configurations=[small, small | {"epochs": 1}]) for k in (0, 1, 0)]
    assert parts[0]["figures"].shape == (len(FIGURES),)
    np.testing.assert_array_equal(parts[0]["figures"], parts[2]["figures"])
    assert (parts[0]["figures"] != parts[1]["figures"]).any()
    assert np.isnan(parts[0]["t"][40:]).all()
    assert np.isfinite(parts[0]["t"][:40]).all()
