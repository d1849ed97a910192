"""The runs of chapter 5: the centre is accounted for, the arms are what they say, a part is its seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from thousand_fingers import private_digits
from thousand_fingers.long_runs import dpsgd as long_runs
from thousand_fingers.long_runs.dpsgd import end_to_end, settings, small_tanh_network, who_pays
from thousand_fingers.private_digits import TYPEFACES, train_classifier, typeset_digits


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(n: int = 400, d: int = 20):
    rng = np.random.default_rng(0)
    found = rng.normal(size=(n, d)) + 3
    return found, (found[:, 0] > 3).astype(int)


SETTINGS = {"steps": 5, "learning_rate": 5.0, "max_grad_norm": 0.5, "n_classes": 2}


def test_the_centre_is_a_noisy_mean_and_is_charged_as_one_step():
    found, labels = rows()
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    sigma = 4.0
    options = {**SETTINGS, "steps": 1}
    runs = [
        train_classifier(found, labels, noise_multiplier=sigma, generator=seeded(s), **options)
        for s in range(40)
    ]
    noise = np.array([run.centre for run in runs]) - unit.mean(axis=0)
    std = sigma / 400
    assert noise.std() == pytest.approx(std, rel=5 / math.sqrt(2 * noise.size))
    assert runs[0].training.steps == 2
    assert runs[0].training.sample_rate == 1.0


def test_smaller_batches_have_no_centre_and_no_charge_for_it():
    found, labels = rows()
    run = train_classifier(
        found, labels, noise_multiplier=1.0, generator=seeded(), batch_size=100, **SETTINGS
    )
    assert run.training.steps == 5
    assert run.training.sample_rate == 0.25
    assert not run.centre.any()


def test_without_noise_it_is_gradient_descent_on_the_softmax_loss():
    found, labels = rows()
    options = {**SETTINGS, "max_grad_norm": private_digits.WIDE}
    run = train_classifier(found, labels, noise_multiplier=0.0, generator=seeded(), **options)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    unit = unit - unit.mean(axis=0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    weight = np.zeros((2, 20))
    for _ in range(5):
        p = np.exp(unit @ weight.T)
        p /= p.sum(axis=1, keepdims=True)
        weight -= 5.0 * (p - np.eye(2)[labels]).T @ unit / 400
    assert np.allclose(run.model.weight.numpy(), weight, rtol=0, atol=1e-12)
    assert np.array_equal(run.predict(found), (unit @ weight.T).argmax(axis=1))


def test_a_public_start_gives_its_centre_and_weights_and_is_not_charged():
    found, labels = rows()
    start = train_classifier(found[:100], labels[:100], noise_multiplier=0.0, generator=seeded(), **SETTINGS)
    before = start.model.weight.clone()
    still = {**SETTINGS, "learning_rate": 1e-300}
    run = train_classifier(
        found[100:], labels[100:], noise_multiplier=3.0, generator=seeded(), start=start, **still
    )
    assert torch.equal(run.model.weight, before)
    assert np.array_equal(run.centre, start.centre)
    assert run.training.steps == 5
    assert run.training.n == 300
    train_classifier(found, labels, noise_multiplier=1.0, generator=seeded(), start=start, **SETTINGS)
    assert torch.equal(start.model.weight, before)  # the start itself does not move
    with pytest.raises(ValueError, match=r"start must have weights of shape \(2, 19\), got \(2, 20\)"):
        train_classifier(
            found[:, :19], labels, noise_multiplier=1.0, generator=seeded(), start=start, **SETTINGS
        )


def test_typeset_digits_are_their_generator_fill_the_frame_and_can_be_told_apart():
    one, again, other = (typeset_digits(2, np.random.default_rng(s)) for s in (0, 0, 1))
    assert np.array_equal(one.images, again.images)
    assert not np.array_equal(one.images, other.images)
    assert one.images.min() >= 0
    assert one.images.max() <= 1
    ink = one.images.sum(axis=(1, 2))
    assert ((ink > 20) & (ink < 300)).all()  # a handwritten digit has about a hundred
    row, column = (np.tensordot(one.images, grid, 2) / ink for grid in np.mgrid[:28, :28])
    assert np.abs(np.mean(row) - 13.5) < 1  # in the middle of the frame
    assert np.abs(np.mean(column) - 13.5) < 1
    # the nearest image of another typeface usually shows the same digit
    flat = one.images.reshape(len(TYPEFACES), -1, 784)
    labels = one.labels.reshape(len(TYPEFACES), -1)
    distance = ((flat[0][:, None] - flat[1:].reshape(1, -1, 784)) ** 2).sum(axis=2)
    assert (labels[1:].ravel()[distance.argmin(axis=1)] == labels[0]).mean() > 0.5
    with pytest.raises(ValueError, match="copies must be >= 1"):
        typeset_digits(0, np.random.default_rng(0))


# --------------------------------------------------------------------------- the long runs


@pytest.fixture(scope="module")
def features():
    return private_digits.digit_features()


@pytest.fixture
def features_once(features, monkeypatch):
    """The features of the digits are computed once for all tests of long runs."""
    monkeypatch.setattr(long_runs, "digit_features", lambda: features)


@pytest.mark.usefixtures("features_once")
def test_a_part_of_who_pays_is_its_seed_and_cutting_a_class_costs_it_recall():
    options = {"epsilons": [8.0], "delta": 1e-5, "minority": 8, "kept": 1, "steps": 2}
    options |= {"learning_rate": 50.0, "max_grad_norm": 0.3}
    balanced, cut, again = (who_pays(part, **options)["right"] for part in (2, 3, 3))
    assert np.array_equal(cut, again)
    assert (balanced[:5, 0] > cut[:5, 0]).all()
    assert (np.stack([balanced, cut])[..., 1] > 500).all()


@pytest.mark.usefixtures("features_once")
def test_settings_are_compared_on_the_validation_images_of_the_split(monkeypatch):
    asked = []
    real = private_digits.Classifier.predict
    monkeypatch.setattr(
        private_digits.Classifier, "predict", lambda self, rows: asked.append(len(rows)) or real(self, rows)
    )
    options = {"epsilons": [0.0, 8.0], "delta": 1e-5, "learning_rates": [1e-6, 100.0]}
    options |= {"max_grad_norms": [0.3, 0.1], "steps": [2, 1], "split": 5}
    free, private = (settings(part, **options)["right"] for part in (0, 1))
    assert asked == [500] * 6
    assert np.array_equal(free[0], free[1])  # without a clip its norm does not matter
    assert free[0, 1] > 350  # of 500; the noise of ε = 8 in two steps takes some of it
    assert private[0, 1] > 250
    with pytest.raises(ValueError, match="out of bounds"):
        settings(4, **options)


def test_the_small_network_is_its_generator():
    images = torch.ones(2, 1, 28, 28, dtype=torch.float64)
    logits = [small_tanh_network(seeded(s))(images) for s in (0, 0, 1)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    assert logits[0].shape == (2, 10)


def test_end_to_end_counts_on_the_images_it_was_asked_for():
    options = {"noise_multipliers": [2.0], "splits": 2, "share": 35, "steps": 3}
    options |= {"learning_rates": [0.5, 5.0], "max_grad_norm": 0.1}
    found = [end_to_end(part, **options) for part in (0, 3)]
    assert all(int(f["n"]) == 1000 and 0 < int(f["right"]) < 1000 for f in found)
    with pytest.raises(ValueError, match="on must be one of 'test', 'validation'"):
        end_to_end(0, on="training", **options)
