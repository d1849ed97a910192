"""The set-up of chapter 2: nothing that is attacked made the inputs, and a control sees it if something did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from thousand_fingers import datasets
from thousand_fingers.audited_digits import audit_setup, shadow_models
from thousand_fingers.ensembles import paired_halves, train_ensemble
from thousand_fingers.roc import chance_interval, roc_curve


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


def test_more_audit_examples_than_there_are_images_are_refused_by_name():
    for n_audit in (1, 1726, 5000):
        with pytest.raises(ValueError, match="n_audit must be >= 2 and <= 1725"):
            audit_setup("ci", n_audit)
    with pytest.raises(
        ValueError, match="halves must have at most one column for each of 1000 audit examples"
    ):
        shadow_models(audit_setup(), paired_halves(2, 1002, rng=np.random.default_rng(0)), first_seed=0)
    with pytest.raises(TypeError, match="membership must hold booleans"):
        shadow_models(audit_setup(), np.ones((2, 10)), first_seed=0)


@pytest.mark.case("MIP-7")
def test_what_stands_in_the_audited_images_does_not_change_how_anything_is_prepared(monkeypatch):
    whole = audit_setup()
    digits, split = datasets.load_mnist("ci")
    images = digits.images.copy()
    images[whole.audit] = np.random.default_rng(0).random(images[whole.audit].shape)
    monkeypatch.setattr(datasets, "load_mnist", lambda _: (replace(digits, images=images), split))
    other = audit_setup.__wrapped__()
    rest = np.setdiff1d(np.arange(len(images)), whole.audit)
    assert torch.equal(other.inputs[rest], whole.inputs[rest])
    assert not torch.equal(other.inputs[whole.audit], whole.inputs[whole.audit])


@pytest.mark.case("MIP-7")
@pytest.mark.parametrize("fault", [0.0, 0.2])
def test_members_who_were_prepared_otherwise_are_seen_without_any_model(fault):
    setup = audit_setup()
    members = paired_halves(2, 1000, rng=np.random.default_rng(0))[0]
    images = setup.inputs[setup.audit].numpy() + fault * members[:, None]
    learn, check = np.arange(0, 1000, 2), np.arange(1, 1000, 2)
    features = np.column_stack([images, np.ones(1000)])
    guess, *_ = np.linalg.lstsq(features[learn], members[learn] - 0.5)
    area = roc_curve(features[check] @ guess, members[check]).auc
    low, high = chance_interval(int(members[check].sum()), int((~members[check]).sum()), 1 - 1e-6)
    assert (low < area < high) == (fault == 0)
