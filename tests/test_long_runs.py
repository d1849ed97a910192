"""The long runs of chapters 1 to 3: a part is what its arguments say, and configurations mean what they say."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from thousand_fingers import linkage, memorization
from thousand_fingers.audited_digits import HIDDEN, POLICY, audit_setup
from thousand_fingers.dpsgd import train_private
from thousand_fingers.ensembles import paired_halves
from thousand_fingers.intervals import mean_interval
from thousand_fingers.long_runs import linkage as linkage_run
from thousand_fingers.long_runs import memorization as memorization_run
from thousand_fingers.long_runs.linkage import full_size
from thousand_fingers.long_runs.membership import (
    CURVE,
    FIGURES,
    _accuracy,
    _changes,
    _stacked,
    aimed_noise,
    private_models,
    private_steps,
    sweep,
)
from thousand_fingers.long_runs.memorization import model_size
from thousand_fingers.models import mlp


def test_one_part_of_the_model_sizes_has_its_shape_and_no_part_beyond_the_last_exists(monkeypatch):
    plan = partial(memorization.plan_of_width, epochs=1)
    monkeypatch.setattr(memorization_run, "plan_of_width", plan)
    part = model_size(1, widths=[8], seeds=2)
    assert part["exposure"].shape == part["recited"].shape == (6, 8)
    assert part["parameters"] == memorization.plan_of_width(8).architecture.parameters
    with pytest.raises(ValueError, match="part must be"):
        model_size(2, widths=[8], seeds=2)


def test_shipped_rates_come_from_one_table_under_every_condition(monkeypatch):
    synthetic = linkage.netflix_like(np.random.default_rng(0), share=0.02)
    monkeypatch.setattr(linkage_run, "netflix_like", lambda rng: synthetic)
    part = full_size(3, targets=30)
    targets, first, right, wrong = part["counts"].T
    assert part["counts"].shape == (len(linkage.KNOWLEDGE), 4)
    assert part["ratings"].tolist() == [synthetic.n_ratings]
    assert (targets == 30).all()
    assert (right <= first).all()
    assert first[-1] >= 28
    assert wrong.sum() < 0.3 * targets.sum()


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


def test_a_part_of_a_sweep_is_its_configuration():
    small = {"n": 40, "epochs": 2, "hidden": [4]}
    parts = [sweep(k, configurations=[small, small | {"epochs": 1}]) for k in (0, 1, 0)]
    assert parts[0]["figures"].shape == (len(FIGURES),)
    np.testing.assert_array_equal(parts[0]["figures"], parts[2]["figures"])
    assert (parts[0]["figures"] != parts[1]["figures"]).any()
    assert parts[0]["curve"].shape == (len(CURVE),)
    assert (np.diff(parts[0]["curve"]) >= 0).all()
    assert parts[0]["curve"][-1] == 1
    at = CURVE.index(0.01)
    assert parts[0]["curve"][at] == parts[0]["figures"][FIGURES.index("tpr_1")]
    limits = np.quantile(parts[0]["resamples"], [0.025, 0.975], axis=0)
    np.testing.assert_allclose(limits, [parts[0]["low"][3:], parts[0]["high"][3:]])
    assert np.isnan(parts[0]["t"][40:]).all()
    assert np.isfinite(parts[0]["t"][:40]).all()
    for side, other in (("low", "figures"), ("figures", "high")):
        assert (parts[0][side] <= parts[0][other] + 1e-12).all()
    with pytest.raises(ValueError, match="part must be"):
        sweep(2, configurations=[small, small])


def test_an_accuracy_has_the_interval_of_its_images():
    rng = np.random.default_rng(0)
    right, counted = rng.random((6, 50)) < 0.8, rng.random((6, 50)) < 0.7
    counted[0] = True
    shares = [right[counted[:, i], i].mean() for i in range(50)]
    value, interval = _accuracy(right, counted)
    assert value == pytest.approx(np.mean(shares))
    assert interval == pytest.approx(mean_interval(shares))
    assert _accuracy(right)[0] == pytest.approx(right.mean())


def test_private_models_are_those_of_the_private_step_on_their_halves():
    setup, halves = audit_setup(), paired_halves(2, 100, rng=np.random.default_rng(0))
    options = {"noise_multiplier": 0.8, "max_grad_norm": 0.5, "learning_rate": 0.3}
    found = private_models(setup, halves, first_seed=5, epochs=2, **options)
    generator = torch.Generator().manual_seed(6)
    network = mlp([50, *HIDDEN, 10], generator=generator)
    rows = setup.audit[:100][halves[1]]
    run = train_private(
        network,
        setup.inputs[rows],
        torch.from_numpy(setup.labels[rows]),
        batch_size=POLICY["batch_size"],
        steps=2,
        generator=generator,
        **options,
    )
    assert run.sampling == "poisson"
    assert private_steps(50, 2) == run.steps
    for mine, other in zip(found.member(1).parameters(), network.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_stacked_networks_say_what_each_says_alone():
    networks = [mlp([4, 5, 3], generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    inputs = torch.rand(6, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    said = _stacked(networks).logits(inputs)
    for network, logits in zip(networks, said, strict=True):
        assert isinstance(network, nn.Sequential)
        torch.testing.assert_close(network(inputs).detach(), logits)
