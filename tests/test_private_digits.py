"""The runs of chapter 5: the centre is accounted for, the arms are what they say, a part is its seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from thousand_fingers import private_digits
from thousand_fingers.private_digits import end_to_end, small_tanh_network, train_classifier, who_pays


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
    runs = [
        train_classifier(found, labels, noise_multiplier=sigma, generator=seeded(s), **SETTINGS)
        for s in range(40)
    ]
    noise = np.array([run.centre for run in runs]) - unit.mean(axis=0)
    std = sigma / 400
    assert noise.std() == pytest.approx(std, rel=5 / math.sqrt(2 * noise.size))
    assert runs[0].training.steps == 6
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


def test_a_part_of_who_pays_is_its_seed_and_cutting_a_class_costs_it_recall():
    options = {"epsilons": [8.0], "delta": 1e-5, "minority": 8, "kept": 1, "steps": 3}
    options |= {"learning_rate": 50.0, "max_grad_norm": 0.3}
    first, again = (who_pays(1, **options)["right"] for _ in range(2))
    assert np.array_equal(first, again)
    assert (first[0, :3, 0] > first[1, :3, 0]).all()
    assert (first[..., 1] > 500).all()


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
