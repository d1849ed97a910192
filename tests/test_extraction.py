"""Model extraction: closed forms for what is solved, planted truth for what is guessed, and a hostile client."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, log_softmax, softmax
from torch import nn

from thousand_fingers import extraction
from thousand_fingers.ensembles import train_ensemble
from thousand_fingers.extraction import (
    ClockWentBackError,
    InvalidQueryError,
    LinearModel,
    ManualClock,
    ModelFailureError,
    PatientThief,
    ProtectedAPI,
    QuotaExceededError,
    Redaction,
    RefusedError,
    distil,
    guess_attribute,
    invert_classes,
    label_robustness,
    solve_linear,
    steal_boundary,
    steal_boundary_between,
    steal_folds,
)
from thousand_fingers.models import mlp
from thousand_fingers.roc import roc_curve

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def victim(d: int, n_classes: int = 2, seed: int = 0) -> LinearModel:
    draws = rng(seed)
    return LinearModel(draws.normal(size=(d, n_classes)), draws.normal(size=n_classes))


def answers(model: LinearModel, rows: np.ndarray) -> np.ndarray:
    return softmax(model.logits(rows), axis=1)


# --------------------------------------------------------------------------- equation solving


@pytest.mark.parametrize(("d", "n_classes"), [(1, 2), (30, 2), (64, 10), (5, 3)])
def test_d_plus_one_probability_queries_give_every_weight(d: int, n_classes: int) -> None:
    secret = victim(d, n_classes)
    rows = rng(1).random((d + 1, d))
    stolen = solve_linear(rows, answers(secret, rows))
    assert stolen.relative_error(secret) < 1e-8
    elsewhere = 10 * rng(2).normal(size=(100, d))
    assert_allclose(answers(stolen, elsewhere), answers(secret, elsewhere), atol=1e-6)


def test_the_origin_and_the_unit_vectors_are_enough() -> None:
    secret = victim(30)
    rows = np.vstack([np.zeros(30), np.eye(30)])
    stolen = solve_linear(rows, answers(secret, rows))
    differences = np.diff(secret.logits(rows))[:, 0]  # the closed form: bias first, then one weight each
    assert_allclose(np.diff(stolen.bias)[0], differences[0], atol=1e-12)
    assert_allclose(np.diff(stolen.weights)[:, 0], differences[1:] - differences[0], atol=1e-12)


def test_weights_are_known_only_up_to_a_common_shift() -> None:
    weights, shift = rng().normal(size=(4, 3)), rng(1).normal(size=(4, 1))
    one, other = LinearModel(weights, np.arange(3.0)), LinearModel(weights + shift, np.arange(3.0) + 7)
    assert_allclose(one.weights, other.weights, atol=1e-15)
    assert_allclose(one.bias, other.bias, atol=1e-15)
    assert_allclose(one.weights[:, 1] - one.weights[:, 0], weights[:, 1] - weights[:, 0])
    assert one.relative_error(other) < 1e-15


def test_rounding_raises_the_price_and_is_no_defence() -> None:
    errors = {}
    for decimals, n in itertools.product((1, 2, 3, 5), (22, 220, 2_200)):
        found = []
        for seed in range(5):
            secret = victim(10, seed=seed)
            rows = rng(n + seed).normal(size=(n, 10))
            rounded = answers(secret, rows).round(decimals)
            found.append(solve_linear(rows, rounded, decimals=decimals).relative_error(secret))
        errors[decimals, n] = np.mean(found)
    for decimals in (1, 2, 3, 5):
        assert errors[decimals, 22] > errors[decimals, 220] > errors[decimals, 2_200]
    for n in (22, 220, 2_200):
        assert errors[1, n] > errors[2, n] > errors[3, n] > errors[5, n]
    assert errors[1, 2_200] < 0.02


def test_nearest_probabilities_beat_the_equations_where_answers_saturate() -> None:
    secret = LinearModel(8 * victim(10).weights, -8 * victim(10).weights.mean(axis=0))
    for seed in range(3):
        rows = rng(seed).normal(size=(300, 10))
        rounded = answers(secret, rows).round(2)
        assert ((rounded == 0) | (rounded == 1)).mean() > 0.5
        columns, clipped = np.hstack([rows, np.ones((300, 1))]), rounded.clip(0.005, 0.995)
        plain = np.linalg.lstsq(columns, np.log(clipped), rcond=None)[0]
        by_equations = LinearModel(plain[:-1], plain[-1]).relative_error(secret)
        assert solve_linear(rows, rounded, decimals=2).relative_error(secret) < 0.1 * by_equations


def test_the_model_found_explains_every_rounded_answer_of_many_classes() -> None:
    secret = victim(4, 5)
    rows = rng(1).normal(size=(400, 4))
    stolen = solve_linear(rows, answers(secret, rows).round(2), decimals=2)
    assert np.abs(answers(stolen, rows) - answers(secret, rows)).max() < 0.005
    assert stolen.relative_error(secret) < 0.02


@pytest.mark.parametrize(
    ("rows", "probabilities", "message"),
    [
        (np.eye(3), np.full((3, 2), 0.5), r"at least d \+ 1 = 4 queries, got 3"),
        (np.ones((9, 2)), np.full((9, 2), 0.5), "one hyperplane"),
        (np.eye(2), np.full((3, 2), 0.5), "shape"),
        (rng().random((4, 2)), np.full((4, 1), 1.0), "at least 2 classes"),
        (rng().random((4, 2)), np.tile([0.0, 1.0], (4, 1)), "> 0 where they were not rounded"),
        (rng().random((4, 2)), np.tile([-0.1, 1.1], (4, 1)), ">= 0"),
        (rng().random((4, 2)), np.full((4, 2), np.nan), "finite"),
        (rng().random(4), np.full((4, 2), 0.5), "2 axes"),
        (rng().random((4, 2)), expit(rng().normal(size=(4, 3))), "sum to 1 in each row, got"),
    ],
)
def test_equations_without_a_solution_are_refused(
    rows: np.ndarray, probabilities: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        solve_linear(rows, probabilities)


def test_saturated_answers_can_be_used_only_when_they_are_known_to_be_rounded() -> None:
    rows, saturated = rng().random((5, 2)), np.tile([0.0, 1.0], (5, 1))
    assert np.isfinite(solve_linear(rows, saturated, decimals=2).weights).all()
    for wrong in (0, 16, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="decimals"):
            solve_linear(rows, saturated, decimals=wrong)  # type: ignore[arg-type]


def test_answers_in_single_precision_and_rounded_ones_sum_to_one_well_enough() -> None:
    secret, rows = victim(3, 10), rng().random((60, 3))
    single = answers(secret, rows).astype(np.float32)
    assert solve_linear(rows, single).relative_error(secret) < 1e-5
    solve_linear(rows, single.round(1), decimals=1)
    with pytest.raises(ValueError, match="sum to 1"):
        solve_linear(rows, 0.8 * single, decimals=2)


def test_an_error_is_relative_to_a_model_of_the_same_shape_that_is_not_zero() -> None:
    secret = victim(3, 2)
    with pytest.raises(ValueError, match=r"truth must have weights of shape \(3, 2\), got \(4, 2\)"):
        secret.relative_error(victim(4, 2))
    with pytest.raises(ValueError, match="truth must have a weight"):
        secret.relative_error(LinearModel(np.zeros((3, 2)), [1.0, 1.0]))


@pytest.mark.parametrize(
    ("weights", "bias"), [(np.ones((3, 1)), [1.0]), (np.ones((3, 2)), [1.0]), (np.ones(3), [1.0])]
)
def test_a_linear_model_needs_two_classes_and_a_bias_for_each(weights: Any, bias: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        LinearModel(weights, bias)


# --------------------------------------------------------------------------- labels only


@settings(max_examples=30)
@given(d=st.integers(1, 30), seed=st.integers(0, 10_000))
def test_labels_alone_give_the_direction_and_the_count_is_the_stated_one(d: int, seed: int) -> None:
    draws = rng(seed)
    weights = draws.normal(size=d)
    bias = -float(weights @ np.full(d, 0.5))  # the boundary passes through the middle of the box
    asked = 0

    def ask(rows: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += len(rows)
        return (rows @ weights + bias > 0).astype(int)

    candidates = draws.random((d + 1, d))
    labels = (candidates @ weights + bias > 0).astype(int)
    if len(set(labels)) == 1:
        candidates[0] = 1 - candidates[1]  # mirrored at the middle: the other side
    found = steal_boundary(ask, candidates)
    assert found.queries == asked == (d + 1) + 40 * d
    assert_allclose(np.linalg.norm(found.weights), 1)
    length = np.linalg.norm(weights)
    assert_allclose(found.weights, weights / length, atol=1e-5)
    assert_allclose(found.bias, bias / length, atol=1e-5)


def test_more_halvings_give_more_digits_and_a_direction_is_all_that_labels_give() -> None:
    weights = rng(3).normal(size=20)
    candidates = rng(4).normal(size=(21, 20))
    errors = []
    for steps in (5, 10, 20, 40):
        found = steal_boundary(lambda rows: (rows @ weights > 0).astype(int), candidates, steps=steps)
        errors.append(np.linalg.norm(found.weights - weights / np.linalg.norm(weights)))
        louder = steal_boundary(lambda rows: (rows @ (7 * weights) > 0).astype(int), candidates, steps=steps)
        assert_array_equal(found.weights, louder.weights)
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-9
    rows = rng(5).normal(size=(2_000, 20))
    assert_array_equal(found.predict(rows), rows @ weights > 0)


@pytest.mark.parametrize(
    ("candidates", "ask", "message"),
    [
        (np.eye(3), lambda rows: np.arange(len(rows)) % 2, "one hyperplane"),
        (np.vstack([np.zeros(3), np.eye(3)]), lambda rows: np.ones(len(rows), int), "4 times 1"),
        (np.vstack([np.zeros(3), np.eye(3)]), lambda rows: 2 * np.ones(len(rows), int), "<= 1"),
        (np.vstack([np.zeros(3), np.eye(3)]), lambda rows: [0, 1], "shape"),
        (np.zeros(3), lambda rows: [0, 1], "2 axes"),
    ],
)
def test_a_boundary_that_cannot_be_found_is_refused(
    candidates: np.ndarray, ask: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        steal_boundary(ask, candidates)


# --------------------------------------------------------------------------- distillation


def forms(n: int, seed: int) -> np.ndarray:
    """Two numbers between 0 and 1, and three boxes."""
    draws = rng(seed)
    return np.hstack([draws.random((n, 2)), draws.integers(0, 2, (n, 3))])


def test_segments_that_stay_inside_a_form_are_enough_where_the_others_are_refused() -> None:
    weights, bias, asked = np.array([2.0, 1.5, 0.4, -0.6, 0.9]), -1.6, []

    def ask(rows: np.ndarray) -> np.ndarray:
        if not np.isin(rows[:, 2:], (0, 1)).all():
            raise InvalidQueryError("half a tick")
        asked.append(len(rows))
        return (rows @ weights + bias > 0).astype(np.int64)

    first, second = forms(60, 1), forms(60, 2)
    with pytest.raises(InvalidQueryError):
        steal_boundary(ask, first)
    asked.clear()
    second[:, 2:] = first[:, 2:]
    found = steal_boundary_between(ask, first, second)
    assert found.queries == sum(asked)
    length = np.linalg.norm(weights)
    assert_allclose(found.weights, weights / length, atol=1e-9)
    assert_allclose(found.bias, bias / length, atol=1e-9)


@pytest.mark.parametrize("d", [1, 2, 6])
def test_segments_of_the_thiefs_choice_find_what_the_star_finds(d: int) -> None:
    secret = np.r_[1.0, rng(d).normal(size=d - 1)]

    def ask(rows: np.ndarray) -> np.ndarray:
        return (rows @ secret > 0.1).astype(np.int64)

    one = steal_boundary(ask, rng(3).normal(size=(4 * d + 4, d)))
    two = steal_boundary_between(ask, rng(4).normal(size=(9 * d, d)), rng(5).normal(size=(9 * d, d)))
    assert_allclose(one.weights, two.weights, atol=1e-8)
    assert_allclose(one.bias, two.bias, atol=1e-8)


def test_segments_that_do_not_determine_the_boundary_are_refused() -> None:
    def ask(rows: np.ndarray) -> np.ndarray:
        return (rows.sum(axis=1) > 1).astype(np.int64)

    ends = np.zeros((4, 2)), np.ones((4, 2))
    with pytest.raises(ValueError, match="points of rank 0, but 1 are needed"):
        steal_boundary_between(ask, *ends)
    with pytest.raises(ValueError, match="at least 2 segments must have ends of different label, got 0"):
        steal_boundary_between(ask, ends[0], ends[0])
    with pytest.raises(ValueError, match="second must have shape"):
        steal_boundary_between(ask, ends[0], ends[1][:3])


def test_a_student_without_hidden_layer_learns_the_probabilities_of_its_teacher() -> None:
    secret = victim(3, 4)
    rows = rng().random((120, 3))
    student = distil(
        torch.from_numpy(rows),
        answers(secret, rows),
        hidden=[],
        epochs=120,
        batch_size=40,
        learning_rate=0.05,
        generator=torch.Generator().manual_seed(0),
    )
    assert not student.training
    with torch.no_grad():
        learned = torch.softmax(student(torch.from_numpy(rows)), dim=1).numpy()
    assert np.abs(learned - answers(secret, rows)).max() < 0.01


def test_certain_answers_teach_exactly_what_labels_teach_an_ensemble() -> None:
    rows = torch.from_numpy(rng().random((60, 5)))
    labels = rng(1).integers(0, 3, 60)
    policy: dict[str, Any] = {"epochs": 4, "batch_size": 16, "learning_rate": 0.01}
    student = distil(
        rows, np.eye(3)[labels], hidden=[7], generator=torch.Generator().manual_seed(5), **policy
    )
    stack = train_ensemble(
        rows, [range(60)], [labels], sizes=[5, 7, 3], generators=[torch.Generator().manual_seed(5)], **policy
    )
    with torch.no_grad():
        assert_allclose(student(rows).numpy(), stack.logits(rows)[0].numpy(), atol=1e-9)


@pytest.mark.parametrize(
    "answers",
    [
        np.full((4, 2), 0.1),
        np.full((3, 2), 0.5),
        np.full(4, 0.5),
        np.full((4, 2), np.nan),
        np.full((4, 2), 2.0),
        np.ones((4, 1)),
    ],
)
def test_students_refuse_answers_that_are_no_probabilities(answers: np.ndarray) -> None:
    with pytest.raises(ValueError, match="answers"):
        distil(
            torch.rand(4, 2, dtype=torch.float64),
            answers,
            hidden=[],
            epochs=1,
            batch_size=2,
            learning_rate=0.1,
            generator=torch.Generator(),
        )
    with pytest.raises(TypeError, match="inputs"):
        distil(
            torch.ones(4, 2, dtype=torch.int64),
            np.full((4, 2), 0.5),
            hidden=[],
            epochs=1,
            batch_size=2,
            learning_rate=0.1,
            generator=torch.Generator(),
        )


def test_students_refuse_a_query_that_is_not_a_number() -> None:
    inputs = torch.rand(4, 2, dtype=torch.float64)
    inputs[1, 0] = torch.nan
    with pytest.raises(ValueError, match="inputs must be finite"):
        distil(
            inputs,
            np.full((4, 2), 0.5),
            hidden=[],
            epochs=1,
            batch_size=2,
            learning_rate=0.1,
            generator=torch.Generator(),
        )


# --------------------------------------------------------------------------- folds


def folded(d: int, units: int, n_classes: int, seed: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    """A network of one hidden layer with folds near the origin."""
    draws = rng(seed)
    inner, outer = draws.normal(size=(d, units)), draws.normal(size=(units, n_classes))
    bias = draws.normal(size=units)
    return lambda rows: np.maximum(rows @ inner + bias, 0) @ outer


def centred(logits: np.ndarray) -> np.ndarray:
    return logits - logits.mean(axis=1, keepdims=True)


@pytest.mark.parametrize(("d", "units", "n_classes"), [(1, 3, 2), (5, 8, 2), (12, 10, 4)])
def test_a_network_of_folds_is_found_exactly_everywhere(d: int, units: int, n_classes: int) -> None:
    network, asked = folded(d, units, n_classes), []

    def ask(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return softmax(network(rows), axis=1)

    copied = steal_folds(ask, 3 * rng(1).normal(size=(12, d)), 3 * rng(2).normal(size=(12, d)), rng=rng(3))
    assert copied.queries == sum(asked)
    assert copied.residual < 1e-7
    rows = 2 * rng(4).normal(size=(500, d))  # other inputs than those of the fit
    assert_allclose(copied.logits(rows), centred(network(rows)), atol=1e-6)


def test_a_missed_fold_shows_in_the_residual() -> None:
    network = folded(6, 12, 3)
    ends = rng(1).normal(size=(2, 6)), rng(2).normal(size=(2, 6))
    copied = steal_folds(lambda rows: softmax(network(rows), axis=1), *ends, rng=rng(3))
    assert copied.weights.shape[1] < 12
    assert copied.residual > 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.round(6), "no fold stands apart|must be > 0"),
        (lambda p: np.full_like(p, 0.5), "no fold stands apart"),
        (lambda p: np.where(p > 0.5, 1.0, 0.0), "answers of ask must be > 0"),
        (lambda p: p[1:], "answers of ask must have shape"),
    ],
    ids=["rounded", "constant", "labels", "too few"],
)
def test_folds_cannot_be_found_in_answers_that_do_not_show_them(change: Any, message: str) -> None:
    network = folded(4, 6, 2)
    ends = rng(1).normal(size=(4, 4)), rng(2).normal(size=(4, 4))
    with pytest.raises(ValueError, match=message):
        steal_folds(lambda rows: change(softmax(network(rows), axis=1)), *ends, rng=rng(3))


def test_the_search_for_folds_checks_its_arguments() -> None:
    ends, network = (np.zeros((2, 3)), np.ones((2, 3))), folded(3, 2, 2)
    with pytest.raises(ValueError, match="ends must have shape"):
        steal_folds(network, ends[0], ends[1][:1], rng=rng())
    with pytest.raises(ValueError, match="cells must be >= 8"):
        steal_folds(network, *ends, rng=rng(), cells=7)
    with pytest.raises(TypeError, match="rng"):
        steal_folds(network, *ends, rng=0)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- inversion


def test_inversion_of_a_softmax_regression_finds_the_regularised_optimum() -> None:
    secret = victim(6, 3)
    linear = nn.Linear(6, 3, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(secret.weights.T))
        linear.bias.copy_(torch.from_numpy(secret.bias))
    found = invert_classes(linear, [0, 1, 2], shape=[6], penalty=0.3, steps=1_500).numpy()
    probability = answers(secret, found)
    # Karush-Kuhn-Tucker: the gradient vanishes inside the box and points outwards on its faces.
    gradient = secret.weights.T - probability @ secret.weights.T - 0.3 * found
    inside = (found > 0) & (found < 1)
    assert inside.any()
    assert np.abs(gradient[inside]).max() < 1e-8
    assert (gradient[found == 0] <= 1e-8).all()
    assert (gradient[found == 1] >= -1e-8).all()


def test_inversion_leaves_the_model_as_it_was_and_uses_it_in_evaluation_mode() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Dropout(0.9), nn.Linear(8, 2)).double()
    network.train()
    before = [parameter.clone() for parameter in network.parameters()]
    one = invert_classes(network, [0, 1], shape=[2, 2], steps=20)
    with torch.no_grad():
        two = invert_classes(network, [0, 1], shape=[2, 2], steps=20)
    assert torch.equal(one, two)
    assert one.shape == (2, 2, 2)
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_each_class_is_inverted_as_if_it_were_alone() -> None:
    network = mlp([5, 8, 3], generator=torch.Generator().manual_seed(1))
    together = invert_classes(network, [2, 0], shape=[5], steps=50)
    assert_allclose(together[0], invert_classes(network, [2], shape=[5], steps=50)[0], atol=1e-12)


def test_inversion_takes_a_network_of_single_precision_as_torch_makes_them() -> None:
    network = mlp([5, 8, 3], generator=torch.Generator().manual_seed(1))
    single = copy.deepcopy(network).float()
    found = invert_classes(single, [0, 1, 2], shape=[5], steps=30, penalty=0.1)
    assert found.dtype == torch.float32
    exact = invert_classes(network, [0, 1, 2], shape=[5], steps=30, penalty=0.1)
    assert_allclose(found.numpy(), exact.numpy(), atol=1e-3)


def test_inversion_says_which_classes_there_are() -> None:
    network = mlp([2, 3], generator=torch.Generator())
    with pytest.raises(ValueError, match="labels must be < 3, the classes of the model, got 3"):
        invert_classes(network, [0, 3], shape=[2])
    with pytest.raises(ValueError, match=r"model must return logits of shape \(1, n_classes\), got \(1,\)"):
        invert_classes(lambda rows: rows.sum(dim=1), [0], shape=[2])
    with pytest.raises(TypeError, match="shape must be a sequence of integers, got 2"):
        invert_classes(network, [0], shape=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"steps": 0}, {"step_size": 0.0}, {"penalty": -1.0}, {"start": 1.1}, {"shape": [0]}, {"labels": [-1]}],
)
def test_inversion_refuses_impossible_settings(options: dict[str, Any]) -> None:
    network = mlp([2, 2], generator=torch.Generator())
    arguments = {"labels": [0], "shape": [2]} | options
    with pytest.raises(ValueError, match=next(iter(options))):
        invert_classes(network, arguments.pop("labels"), **arguments)


# --------------------------------------------------------------------------- attribute inference


def test_the_guess_is_the_most_probable_value_a_posteriori() -> None:
    prior = np.log(rng().dirichlet(np.ones(4), 50))
    likelihood = np.log(rng(1).uniform(0, 1, (50, 4)))
    joint = np.exp(prior) * np.exp(likelihood)
    assert_array_equal(guess_attribute(likelihood, rng(), log_prior=prior), joint.argmax(axis=1))
    common = np.log([0.1, 0.2, 0.3, 0.4])
    expected = (np.exp(common) * np.exp(likelihood)).argmax(axis=1)
    assert_array_equal(guess_attribute(likelihood, rng(), log_prior=common), expected)


def test_an_attack_that_knows_nothing_is_right_as_often_as_chance() -> None:
    blind = guess_attribute(np.zeros((20_000, 5)), rng())
    counts = np.bincount(blind, minlength=5)
    assert (np.abs(counts - 4_000) < 5 * np.sqrt(20_000 * 0.2 * 0.8)).all()
    impossible = guess_attribute(np.full((2_000, 2), -np.inf), rng())
    assert 850 < impossible.sum() < 1_150
    labels_only = np.where([[True, False, True]], 0.0, -np.inf)
    assert set(guess_attribute(np.tile(labels_only, (100, 1)), rng()).tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("scores", "prior"),
    [
        (np.array([[0.0, np.nan]]), None),
        (np.array([[0.0, np.inf]]), None),
        (np.zeros(3), None),
        (np.zeros((0, 3)), None),
        (np.zeros((2, 3)), np.zeros(2)),
        (np.zeros((2, 3)), np.full(3, np.nan)),
        (np.array([["a", "b"]]), None),
    ],
)
def test_impossible_log_probabilities_are_refused(scores: np.ndarray, prior: np.ndarray | None) -> None:
    with pytest.raises((TypeError, ValueError), match="log_"):
        guess_attribute(scores, rng(), log_prior=prior)


@pytest.mark.parametrize("seed", range(3))
def test_completions_differ_only_inside_the_square_and_the_first_is_the_record(seed: int) -> None:
    images, others = rng(seed).random((20, 6, 7)), rng(seed + 10).random((40, 6, 7))
    labels, other_labels = np.arange(20) % 4, np.arange(40) % 4
    tried = Redaction(1, 3, 2).completions(images, labels, others, other_labels, decoys=5, rng=rng(seed))
    assert tried.shape == (20, 6, 6, 7)
    assert_array_equal(tried[:, 0], images)
    outside = np.ones((6, 7), dtype=bool)
    outside[1:3, 3:5] = False
    assert_array_equal(tried[:, :, outside], np.repeat(images[:, None], 6, axis=1)[:, :, outside])
    squares = others[:, 1:3, 3:5].reshape(40, -1)
    for record, label in enumerate(labels):
        sources = [
            int(np.flatnonzero((squares == s.ravel()).all(axis=1))[0]) for s in tried[record, 1:, 1:3, 3:5]
        ]
        assert len(set(sources)) == 5
        assert (other_labels[sources] == label).all()


def test_the_imputer_is_ridge_regression_and_blind_to_which_completion_is_true() -> None:
    others = rng().random((200, 3, 3))
    others[:, 2, 2] = 0.3 * others[:, 0, 0] + 0.5 * others[:, 1, 1] + 0.1
    redaction = Redaction(2, 2, 1)
    records = rng(1).random((30, 3, 3))
    records[:, 2, 2] = 0.3 * records[:, 0, 0] + 0.5 * records[:, 1, 1] + 0.1
    tried = redaction.completions(
        records, np.zeros(30, int), others, np.zeros(200, int), decoys=9, rng=rng(2)
    )
    prior = redaction.log_prior(tried, others, ridge=1e-6)
    assert (guess_attribute(np.zeros((30, 10)), rng(), log_prior=prior) == 0).mean() > 0.9
    order = rng(3).permutation(10)
    assert_allclose(redaction.log_prior(tried[:, order], others, ridge=1e-6), prior[:, order])


@pytest.mark.parametrize(
    ("square", "decoys", "message"),
    [
        ((2, 2, 2), 1, "size must fit"),
        ((0, 0, 1), 3, "at least 3 images of class 1"),
        ((0, 0, 1), 0, "decoys"),
    ],
)
def test_a_redaction_that_cannot_be_filled_is_refused(
    square: tuple[int, int, int], decoys: int, message: str
) -> None:
    images = rng().random((4, 3, 3))
    with pytest.raises(ValueError, match=message):
        Redaction(*square).completions(images, [1] * 4, images[:2], [1, 1], decoys=decoys, rng=rng())


def test_a_redaction_has_a_place_and_leaves_something_to_see() -> None:
    for wrong in ((-1, 0, 1), (0, -1, 1), (0, 0, 0)):
        with pytest.raises(ValueError, match="must be"):
            Redaction(*wrong)
    with pytest.raises(ValueError, match="around the square"):
        Redaction(0, 0, 2).log_prior(np.ones((1, 2, 2, 2)), np.ones((3, 2, 2)))


# --------------------------------------------------------------------------- membership from labels


@pytest.mark.case("MIA-14")
def test_the_label_only_gap_attack_has_exactly_the_gap_as_its_advantage() -> None:
    members = np.arange(400) < 150
    right = np.where(members, rng().random(400) < 0.99, rng(1).random(400) < 0.8)
    gap = right[members].mean() - right[~members].mean()
    assert roc_curve(right.astype(float), members).advantage == pytest.approx(gap, abs=1e-15)


def test_robustness_of_a_linear_model_is_the_normal_distribution_of_the_margin() -> None:
    def ask(rows: np.ndarray) -> np.ndarray:
        return (rows.sum(axis=1) > 1.0).astype(int)

    rows = np.array([[0.6, 0.6], [0.5, 0.52], [0.4, 0.4], [0.45, 0.54]])
    scores = label_robustness(ask, rows, [1, 1, 0, 1], noise_std=0.05, copies=4_000, rng=rng())
    # P[N(0, 2·0.05²) > 1 − sum]: margins 0.2, 0.02, 0.2 on the other side; the last is wrong already.
    assert_allclose(scores, [0.99766, 0.61135, 0.99766, 0.0], atol=0.03)
    assert scores[3] == 0


def test_robustness_asks_as_often_as_it_says_and_stays_in_the_box() -> None:
    seen: list[np.ndarray] = []

    def ask(rows: np.ndarray) -> np.ndarray:
        seen.append(rows)
        return np.zeros(len(rows), dtype=int)

    rows = rng().random((7, 3))
    assert_array_equal(label_robustness(ask, rows, np.zeros(7, int), noise_std=2.0, copies=9, rng=rng()), 1.0)
    everything = np.vstack(seen)
    assert len(everything) == 7 * 10
    assert everything.min() == 0
    assert everything.max() == 1


@pytest.mark.parametrize(
    "options",
    [
        {"noise_std": 0.0},
        {"copies": 0},
        {"inputs": [[1.5]]},
        {"labels": [0, 1]},
        {"rng": 0},
        {"ask": lambda rows: [0, 1, 2]},
    ],
)
def test_robustness_refuses_impossible_settings(options: dict[str, Any]) -> None:
    arguments = {"ask": lambda rows: [0], "inputs": [[0.5]], "labels": [0]} | options
    rest = {"noise_std": 0.1, "copies": 2, "rng": rng()} | {
        key: value for key, value in arguments.items() if key in ("noise_std", "copies", "rng")
    }
    with pytest.raises((TypeError, ValueError)):
        label_robustness(arguments["ask"], arguments["inputs"], arguments["labels"], **rest)


# --------------------------------------------------------------------------- the protected API: what it says


def scores_of(rows: np.ndarray) -> np.ndarray:
    """Five classes whose scores are the five entries of an input."""
    return rows


def open_api(**options: Any) -> tuple[ProtectedAPI, ManualClock]:
    clock = ManualClock(options.pop("now", NOON))
    arguments = {"n_inputs": 5, "daily_quota": 100, "clock": clock} | options
    return ProtectedAPI(arguments.pop("model", scores_of), **arguments), clock


def test_only_the_label_leaves() -> None:
    api, _ = open_api()
    rows = rng().random((20, 5))
    said = api.query("ada", rows)
    assert said.dtype == np.int64
    assert said.shape == (20,)
    assert_array_equal(said, rows.argmax(axis=1))
    assert_array_equal(api.query("ada", log_softmax(100 * rows, axis=1)), said)  # the same whatever the scale


@pytest.mark.parametrize("top_k", [2, 3, 4])
def test_several_labels_come_as_a_set_and_never_in_the_order_of_their_scores(top_k: int) -> None:
    api, _ = open_api(top_k=top_k)
    rows = rng().random((20, 5))
    said = api.query("ada", rows)
    assert said.shape == (20, top_k)
    for answer, row in zip(said, rows, strict=True):
        assert answer.tolist() == sorted(np.argsort(row)[-top_k:].tolist())
    # Every order of the same winners gets the same answer: the source's version tells them apart.
    winners = np.array(list(itertools.permutations(np.linspace(0.5, 0.9, top_k))))
    permuted = np.hstack([winners, np.zeros((len(winners), 5 - top_k))])
    assert len(np.unique(api.query("bob", permuted), axis=0)) == 1


def test_equal_scores_give_the_same_set_every_time() -> None:
    api, _ = open_api(top_k=2)
    assert api.query("ada", np.zeros((3, 5))).tolist() == [[0, 1]] * 3


# --------------------------------------------------------------------------- what it charges


def test_every_row_is_charged_and_a_batch_is_refused_whole() -> None:
    api, _ = open_api(daily_quota=10)
    api.query("ada", np.zeros((7, 5)))
    assert api.left("ada") == 3
    with pytest.raises(QuotaExceededError) as refusal:
        api.query("ada", np.zeros((4, 5)))
    assert (refusal.value.asked, refusal.value.left, refusal.value.reason) == (4, 3, "quota")
    assert refusal.value.resets_at == datetime(2026, 5, 5, tzinfo=UTC)
    assert api.left("ada") == 3
    api.query("ada", np.zeros((3, 5)))
    assert api.left("ada") == 0
    assert api.left("bob") == 10


def test_a_refusal_is_an_exception_and_cannot_be_taken_for_an_answer() -> None:
    api, _ = open_api(daily_quota=1)
    for bad in ([[np.nan] * 5], np.zeros((2, 5)), "text"):
        with pytest.raises(RefusedError):
            api.query("ada", bad)  # type: ignore[arg-type]
    assert api.audit().answered == 0


def test_the_quota_is_renewed_with_the_utc_day_and_not_before() -> None:
    api, clock = open_api(daily_quota=2, now=datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC))
    api.query("ada", np.zeros((2, 5)))
    with pytest.raises(QuotaExceededError):
        api.query("ada", np.zeros((1, 5)))
    clock.advance(microseconds=999_999)
    assert api.left("ada") == 0
    clock.advance(microseconds=1)
    assert api.left("ada") == 2
    api.query("ada", np.zeros((2, 5)))  # twice the quota within a second: the window is fixed, and says so
    assert api.audit().answered == 4


def test_the_day_is_that_of_utc_whatever_the_time_zone_of_the_clock() -> None:
    east = timezone(timedelta(hours=14))
    api, clock = open_api(daily_quota=1, now=datetime(2026, 5, 5, 13, 0, tzinfo=east))  # 4 May, 23:00 UTC
    api.query("ada", np.zeros((1, 5)))
    clock.advance(hours=-12)  # midnight passes backwards in the east; in UTC it is 4 May still
    assert api.left("ada") == 0
    clock.advance(hours=13)
    assert api.left("ada") == 1


def test_a_clock_that_goes_back_a_day_gets_nobody_a_second_quota() -> None:
    api, clock = open_api(daily_quota=5)
    api.query("ada", np.zeros((5, 5)))
    clock.advance(days=-1)
    for account in ("ada", "bob"):
        with pytest.raises(ClockWentBackError, match="2026-05-04 has begun"):
            api.query(account, np.zeros((1, 5)))
    with pytest.raises(ClockWentBackError):
        api.left("ada")
    clock.advance(days=1)
    assert api.left("ada") == 0
    clock.advance(hours=-11)  # a step back inside the day changes nothing
    assert api.left("ada") == 0
    clock.advance(days=1)
    assert api.left("ada") == 5
    assert api.audit().refused == {"clock": 2}


@pytest.mark.parametrize("reading", [datetime(2026, 5, 4), date(2026, 5, 4), 1.0, None])
def test_a_clock_without_a_time_zone_is_an_error_of_the_operator(reading: Any) -> None:
    api = ProtectedAPI(scores_of, n_inputs=5, daily_quota=1, clock=lambda: reading)
    with pytest.raises(TypeError, match="time zone"):
        api.query("ada", np.zeros((1, 5)))
    with pytest.raises(TypeError, match="time zone"):
        ManualClock(reading)


def test_a_clock_that_fails_locks_nobody_out() -> None:
    readings = iter([NOON, None, NOON])

    def clock() -> datetime:
        reading = next(readings)
        if reading is None:
            raise OSError("no time today")
        return reading

    api = ProtectedAPI(scores_of, n_inputs=5, daily_quota=2, clock=clock)
    api.query("ada", np.zeros((1, 5)))
    with pytest.raises(OSError, match="no time"):
        api.query("ada", np.zeros((1, 5)))
    api.query("ada", np.zeros((1, 5)))  # the failed reading charged nothing and left no lock behind
    assert api.audit().answered == 2


def test_refusals_cross_process_boundaries_whole() -> None:
    for error in (
        QuotaExceededError(4, 3, NOON),
        InvalidQueryError("rows must be finite"),
        ClockWentBackError("earlier"),
        ModelFailureError("failed"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)


class Unreadable:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "rows",
    [
        (row for row in [[0.0] * 5]),
        {0: [0.0] * 5},
        np.ma.masked_array(np.full((1, 5), np.nan), mask=True),
        np.full((1, 5), b"1"),
        np.array([[(0.0,) * 5]], dtype=[(name, float) for name in "abcde"]),
        np.full((1, 5), np.iinfo(np.uint64).max, dtype=np.uint64),
        [[True] * 5, "ab"],
        np.ma.masked_array(np.full((1, 5), 0.5), mask=[[True, False, False, False, False]]),
        Unreadable(),
    ],
    ids=[
        "generator",
        "dictionary",
        "masked",
        "bytes",
        "structured",
        "largest integer",
        "mixed",
        "a mask over numbers",
        "an object that raises",
    ],
)
def test_strange_containers_are_refused_and_cost_nothing(rows: Any) -> None:
    api, _ = open_api(bounds=(0.0, 1.0))
    with pytest.raises(InvalidQueryError):
        api.query("ada", rows)
    assert api.left("ada") == 100


def test_the_system_clock_is_the_default_and_names_todays_utc_day() -> None:
    api = ProtectedAPI(scores_of, n_inputs=5, daily_quota=1)
    before = datetime.now(UTC)
    api.query("ada", np.zeros((1, 5)))
    with pytest.raises(QuotaExceededError) as refusal:
        api.query("ada", np.zeros((1, 5)))
    assert timedelta(0) <= refusal.value.resets_at - before <= timedelta(days=1)


BAD_ROWS = {
    "nan": [[np.nan, 0, 0, 0, 0]],
    "infinity": [[np.inf, 0, 0, 0, 0]],
    "one row without its axis": [0.0] * 5,
    "another width": np.zeros((1, 4)),
    "three axes": np.zeros((1, 1, 5)),
    "no row": np.zeros((0, 5)),
    "text": [["a"] * 5],
    "a number": 3.0,
    "nothing": None,
    "ragged": [[0.0] * 5, [0.0]],
    "complex": np.zeros((1, 5), dtype=complex),
    "objects": np.full((1, 5), None),
    "huge integers": [[10**400, 0, 0, 0, 0]],
    "dates": np.zeros((1, 5), dtype="datetime64[s]"),
    "out of bounds": [[1.1, 0, 0, 0, 0]],
    "just out of bounds": [[np.nextafter(0, -1), 0, 0, 0, 0]],
}


@pytest.mark.parametrize("rows", BAD_ROWS.values(), ids=BAD_ROWS)
def test_an_invalid_query_is_refused_before_the_model_is_asked_and_costs_nothing(rows: Any) -> None:
    asked = []
    api, _ = open_api(model=lambda batch: asked.append(batch) or batch, bounds=(0.0, 1.0))
    with pytest.raises(InvalidQueryError) as refusal:
        api.query("ada", rows)
    assert refusal.value.reason == "invalid"
    assert not asked
    assert api.left("ada") == 100
    assert api.audit().refused == {"invalid": 1}
    assert api.audit().accounts_today == 0


@pytest.mark.parametrize("account", ["", None, 7, b"ada", ["ada"], "a" * 201])
def test_an_account_is_a_name(account: Any) -> None:
    api, _ = open_api()
    with pytest.raises(InvalidQueryError, match="account"):
        api.query(account, np.zeros((1, 5)))
    with pytest.raises(InvalidQueryError, match="account"):
        api.left(account)


def test_a_name_that_changes_its_hash_is_one_account_nevertheless() -> None:
    class Shifty(str):
        __slots__ = ()
        turn = itertools.count()

        def __hash__(self) -> int:
            return next(self.turn)

        def __eq__(self, other: object) -> bool:
            return False

        def __str__(self) -> str:
            return f"nobody {next(self.turn)}"

    api, _ = open_api(daily_quota=2)
    api.query(Shifty("ada"), np.zeros((2, 5)))
    with pytest.raises(QuotaExceededError):
        api.query(Shifty("ada"), np.zeros((1, 5)))
    assert api.left("ada") == 0


def test_rows_are_copied_before_they_are_checked() -> None:
    rows = np.zeros((1, 5))
    got = []

    def model(batch: np.ndarray) -> np.ndarray:
        rows[:] = 9.0  # what another thread could do after the check
        got.append(batch.copy())
        batch[:] = -1.0  # and what a model might do to its input
        return np.eye(5)[:1]

    api, _ = open_api(model=model, bounds=(0.0, 1.0))
    api.query("ada", rows)
    assert_array_equal(got[0], np.zeros((1, 5)))
    assert_array_equal(rows, np.full((1, 5), 9.0))


@pytest.mark.parametrize(
    "model",
    [
        lambda rows: 1 / 0,
        lambda rows: np.full((len(rows), 5), np.nan),
        lambda rows: rows[:-1],
        lambda rows: rows[:, :1],
        lambda rows: "secret weights",
        lambda rows: None,
    ],
)
def test_a_model_that_fails_has_been_asked_and_tells_nothing(model: Callable[[Any], Any]) -> None:
    api, _ = open_api(model=model)
    with pytest.raises(ModelFailureError) as failure:
        api.query("ada", np.zeros((3, 5)))
    assert failure.value.__cause__ is None
    assert failure.value.__suppress_context__
    assert str(failure.value) == "the model failed on this batch, which stays charged"
    assert api.left("ada") == 97
    counts = api.audit()
    assert (counts.answered, counts.batches, counts.failures, counts.accounts_today) == (0, 0, 1, 1)


def test_the_books_balance_and_cannot_be_written() -> None:
    api, clock = open_api(daily_quota=10)
    api.query("ada", np.zeros((4, 5)))
    api.query("bob", np.zeros((6, 5)))
    for _ in range(3):
        with pytest.raises(QuotaExceededError):
            api.query("bob", np.zeros((5, 5)))
    counts = api.audit()
    assert (counts.answered, counts.batches, counts.failures, counts.accounts_today) == (10, 2, 0, 2)
    assert counts.refused == {"quota": 3}
    with pytest.raises(TypeError):
        counts.refused["quota"] = 0  # type: ignore[index]
    clock.advance(days=1)
    api.query("ada", np.zeros((1, 5)))
    assert api.audit().accounts_today == 1
    assert api.audit().answered == 11
    assert counts.answered == 10
    with pytest.raises(AttributeError):
        api.daily_quota = 10**9  # type: ignore[misc]


@pytest.mark.parametrize(
    "options",
    [
        {"daily_quota": 0},
        {"daily_quota": 1.5},
        {"daily_quota": True},
        {"n_inputs": 0},
        {"top_k": 0},
        {"bounds": (1.0, 0.0)},
        {"bounds": (np.nan, 1.0)},
        {"bounds": (0.0,)},
        {"bounds": (0.0, 0.5, 1.0)},
        {"bounds": 1.0},
        {"model": None},
        {"clock": NOON},
    ],
)
def test_an_api_is_not_built_from_impossible_settings(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        open_api(**options)


def test_a_set_of_all_classes_would_say_nothing_and_is_a_failure() -> None:
    api, _ = open_api(top_k=5)
    with pytest.raises(ModelFailureError):
        api.query("ada", np.zeros((1, 5)))


# --------------------------------------------------------------------------- threads


def race(work: Callable[[int], Any], threads: int) -> list[Any]:
    """Run ``work`` in real threads that start together and are switched as often as Python can."""
    barrier = threading.Barrier(threads)

    def start(i: int) -> Any:
        barrier.wait()
        return work(i)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(start, range(threads)))
    finally:
        sys.setswitchinterval(before)


def test_threads_of_one_account_never_get_more_than_the_quota() -> None:
    answered = itertools.count()
    api, _ = open_api(daily_quota=500, model=lambda rows: (next(answered), rows)[1])

    def greedy(i: int) -> int:
        got = 0
        for size in itertools.islice(itertools.cycle((1, 3, 2)), 60):
            with contextlib.suppress(QuotaExceededError):
                got += len(api.query("ada", np.full((size, 5), float(i))))
        return got

    taken = race(greedy, 12)
    counts = api.audit()
    assert sum(taken) == counts.answered == 500
    assert api.left("ada") == 0
    assert next(answered) == counts.batches
    assert counts.batches + counts.refused["quota"] == 12 * 60


def test_answers_go_to_whom_they_belong() -> None:
    api, _ = open_api(daily_quota=1_000)

    def ask(i: int) -> bool:
        rows = np.zeros((4, 5))
        rows[:, i % 5] = 1.0
        return all((api.query(f"user {i}", rows) == i % 5).all() for _ in range(50))

    assert all(race(ask, 10))
    assert api.audit().accounts_today == 10


def test_days_that_pass_between_threads_never_look_like_a_clock_that_went_back() -> None:
    ticks = itertools.count()  # every reading is a day later than the one before
    api = ProtectedAPI(scores_of, n_inputs=5, daily_quota=1, clock=lambda: NOON + timedelta(days=next(ticks)))
    race(lambda i: [api.query("ada", np.zeros((1, 5))) for _ in range(40)], 8)
    assert api.audit().answered == 320
    assert api.audit().refused == {}


# --------------------------------------------------------------------------- what the quota costs


@settings(max_examples=40)
@given(quota=st.integers(1, 30), accounts=st.integers(1, 5), n=st.integers(1, 200))
def test_a_patient_thief_needs_as_many_days_as_the_division_says(quota: int, accounts: int, n: int) -> None:
    api, clock = open_api(daily_quota=quota)
    thief = PatientThief(api, [f"account {i}" for i in range(accounts)], clock)
    rows = rng(n).random((n, 5))
    assert_array_equal(thief(rows), rows.argmax(axis=1))
    assert thief.queries == n == api.audit().answered
    assert thief.days == -(-n // (quota * accounts))
    assert not api.audit().refused  # it never needs to be refused


def test_a_thief_with_a_clock_of_its_own_does_not_wait_for_ever() -> None:
    api, _ = open_api(daily_quota=3)
    thief = PatientThief(api, ["ada"], ManualClock(NOON))
    with pytest.raises(ValueError, match="clock must be the one that the API reads"):
        thief(np.zeros((5, 5)))
    assert thief.queries == 3


def test_a_thief_needs_accounts() -> None:
    api, clock = open_api()
    for wrong in ([], "ada"):
        with pytest.raises(ValueError, match="accounts"):
            PatientThief(api, wrong, clock)


def test_through_the_api_the_label_only_theft_costs_queries_and_days_and_succeeds() -> None:
    weights = rng(8).normal(size=(12, 2))
    clock = ManualClock(NOON)
    api = ProtectedAPI(lambda rows: rows @ weights, n_inputs=12, daily_quota=50, clock=clock)
    thief = PatientThief(api, ["ada"], clock)
    found = steal_boundary(thief, rng(9).normal(size=(13, 12)))
    truth = weights[:, 1] - weights[:, 0]
    assert_allclose(found.weights, truth / np.linalg.norm(truth), atol=1e-8)
    assert thief.queries == found.queries == 13 + 40 * 12
    assert thief.days == -(-found.queries // 50)


def test_the_module_names_its_refusals() -> None:
    reasons = {error.reason for error in (InvalidQueryError, QuotaExceededError, ClockWentBackError)}
    assert reasons == {"invalid", "quota", "clock"}
    assert not issubclass(extraction.ModelFailureError, RefusedError)
