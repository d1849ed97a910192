"""Attacks against closed forms, brute force and the behaviour of peers' code that must not be repeated."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from thousand_fingers.ensembles import paired_halves
from thousand_fingers.membership import (
    calibrated,
    cross_entropies,
    gaussian_log_ratio,
    instance_weights,
    lira_scores,
    logit_confidence,
    loss_threshold,
    pareto_front,
    rmia_scores,
    shadow_moments,
    t_scores,
    train_attack_classifier,
)
from thousand_fingers.models import predict_logits
from thousand_fingers.roc import chance_interval, roc_curve

MODES = ("online", "offline")
VARIANCES = ("shrunk", "pooled", "per_example")


def gaussian_world(
    models: int = 16, n: int = 40, gap: float = 2.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that are Gaussian, with examples of different difficulty and different spread."""
    rng = np.random.default_rng(seed)
    members = paired_halves(models, n, rng=rng)
    spread = rng.uniform(0.5, 2, n)
    return 5 * rng.normal(size=n) + spread * (rng.normal(size=(models, n)) + gap * members), members


# --------------------------------------------------------------------------- confidence


@pytest.mark.case("MIA-1")
def test_the_confidence_of_a_very_sure_model_is_not_clipped():
    logits = [[1000.0, *[0.0] * 9]]
    assert logit_confidence(logits, [0])[0] == pytest.approx(1000 - np.log(9), abs=1e-12)
    assert logit_confidence(logits, [0])[0] == pytest.approx(997.8027754226638, abs=1e-12)
    assert logit_confidence(logits, [1])[0] == pytest.approx(-1000.0, abs=1e-12)


@pytest.mark.case("MIA-2")
@given(st.lists(st.floats(-20, 20), min_size=2, max_size=6), st.floats(-500, 500), st.data())
def test_the_confidence_is_the_log_odds_of_the_true_label_and_ignores_a_common_shift(logits, shift, data):
    label = data.draw(st.integers(0, len(logits) - 1))
    phi = logit_confidence([logits], [label])[0]
    p = special.softmax(logits)
    assert phi == pytest.approx(np.log(p[label]) - np.log(np.delete(p, label).sum()), abs=1e-6)
    assert logit_confidence([np.add(logits, shift)], [label])[0] == pytest.approx(phi, abs=1e-9)
    if len(logits) == 2:
        assert phi == pytest.approx(logits[label] - logits[1 - label], abs=1e-12)


@pytest.mark.case("MIA-2")
def test_the_confidence_of_three_small_logits():
    assert logit_confidence([[2.0, 1.0, 0.0]], [0])[0] == pytest.approx(0.6867383124817772, abs=1e-14)


@pytest.mark.case("MIA-3")
def test_the_confidence_stays_finite_where_single_precision_odds_are_infinite():
    logits = np.array([[20.0, *[0.0] * 9]], dtype=np.float32)
    p = special.softmax(logits)[0, 0]
    with np.errstate(divide="ignore"):
        assert np.isinf(np.log(p / (1 - p)))
    assert logit_confidence(logits, [0])[0] == pytest.approx(17.80277542266378, abs=1e-12)


@pytest.mark.case("MIP-1")
def test_what_is_said_of_an_example_does_not_depend_on_who_else_is_asked():
    rng = np.random.default_rng(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    ).double()
    x, y = torch.from_numpy(rng.normal(size=(20, 4))), rng.integers(0, 3, 20)
    network.train()  # as the peer left it: statistics of the query batch
    together = logit_confidence(predict_logits(network, x).numpy(), y)
    alone = [
        logit_confidence(predict_logits(network, x[i : i + 1]).numpy(), y[i : i + 1])[0] for i in range(20)
    ]
    np.testing.assert_allclose(together, alone, atol=1e-12)
    assert network.training


@given(st.lists(st.floats(-700, 700), min_size=1, max_size=5))
def test_losses_follow_from_confidences_without_overflow(phi):
    expected = [np.log1p(np.exp(-v)) if v > 0 else np.log1p(np.exp(v)) - v for v in phi]
    np.testing.assert_allclose(cross_entropies(phi), expected, rtol=1e-12)
    np.testing.assert_array_equal(loss_threshold(phi), -cross_entropies(phi))


# --------------------------------------------------------------------------- simple attacks


@pytest.mark.case("MIA-14")
@given(st.integers(1, 40), st.integers(1, 40), st.randoms(use_true_random=False))
def test_who_calls_right_answers_members_gains_exactly_the_gap(n_in, n_out, random):
    right = np.array([random.random() < 0.8 for _ in range(n_in + n_out)])
    members = np.arange(n_in + n_out) < n_in
    gap = right[members].mean() - right[~members].mean()
    roc = roc_curve(right.astype(float), members)
    assert roc.advantage == pytest.approx(max(gap, 0.0), abs=1e-12)
    assert 0.5 + roc.advantage / 2 == pytest.approx(0.5 + max(gap, 0.0) / 2)


def test_calibration_is_a_difference_of_losses_and_forgives_easy_examples():
    target, reference = np.array([4.0, 1.0]), np.array([[4.0, -3.0], [4.0, -2.0]])
    losses = np.log1p(np.exp(-target)), np.log1p(np.exp(-reference)).mean(axis=0)
    np.testing.assert_allclose(calibrated(target, reference), losses[1] - losses[0])
    assert loss_threshold(target)[0] > loss_threshold(target)[1]
    assert calibrated(target, reference)[0] < calibrated(target, reference)[1]
    np.testing.assert_allclose(calibrated(target, reference[0]), calibrated(target, reference[:1]))


def test_a_learned_attack_separates_what_can_be_separated_and_nothing_else():
    rng = np.random.default_rng(3)
    labels = np.arange(60) % 3
    members = paired_halves(8, 60, rng=rng)
    noise = rng.normal(size=(8, 60, 3))
    sure = noise + 4 * members[..., None] * np.eye(3)[labels]
    for logits, low, high in ((sure, 0.9, 1.0), (noise, 0.4, 0.6)):
        attack = train_attack_classifier(
            logits[:6], labels, members[:6], generator=torch.Generator().manual_seed(0)
        )
        auc = roc_curve(attack.scores(logits[6:], labels), members[6:]).auc
        assert low <= auc <= high
        single = attack.scores(logits[6], labels)
        np.testing.assert_allclose(single, attack.scores(logits[6:], labels)[0])


# --------------------------------------------------------------------------- moments


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_the_moments_are_those_of_each_example_alone(leave_one_out):
    phi, members = gaussian_world(10, 8)
    phi += 1e6  # sums of squares around zero would lose nine digits here
    moments = shadow_moments(phi, members, leave_one_out=leave_one_out)
    for i in range(10 if leave_one_out else 1):
        others = np.arange(10) != i if leave_one_out else np.full(10, True)
        for j in range(8):
            for chosen, mean, variance, count in (
                (members[:, j], moments.mean_in, moments.var_in, moments.n_in),
                (~members[:, j], moments.mean_out, moments.var_out, moments.n_out),
            ):
                values = phi[others & chosen, j]
                where = (i, j) if leave_one_out else j
                assert mean[where] == pytest.approx(values.mean(), rel=1e-12)
                assert variance[where] == pytest.approx(values.var(ddof=1), rel=1e-6)
                assert count[where] == values.size


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("outlier", [1e3, 1e8, -1e12])
def test_one_model_far_from_all_others_does_not_blur_the_spread_of_the_others(leave_one_out, outlier):
    phi, members = gaussian_world(12, 6)
    phi[4, 2] += outlier  # sums of squares over all models, less its own, would keep nothing of the rest
    moments = shadow_moments(phi, members, leave_one_out=leave_one_out)
    own, side = members[4, 2], ("in" if members[4, 2] else "out")
    values = phi[(members[:, 2] == own) & (np.arange(12) != 4), 2]
    mean, variance = getattr(moments, f"mean_{side}"), getattr(moments, f"var_{side}")
    if leave_one_out:
        assert mean[4, 2] == pytest.approx(values.mean(), rel=1e-12)
        assert variance[4, 2] == pytest.approx(values.var(ddof=1), rel=1e-12)
    else:
        values = np.append(values, phi[4, 2])
        assert variance[2] == pytest.approx(values.var(ddof=1), rel=1e-9)


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_no_spread_is_no_spread_to_the_last_bit(leave_one_out):
    phi, members = gaussian_world(14, 200)
    phi = np.where(members, 5 * np.random.default_rng(1).normal(size=200), phi)  # one value each, once seen
    moments = shadow_moments(phi, members, leave_one_out=leave_one_out)
    assert (moments.var_in == 0).all()  # where rounding is left, it decides the ranking alone
    for j in range(0, 200, 20):
        with pytest.raises(ValueError, match="example 0 do not vary"):
            lira_scores(phi[:, [j]], members[:, [j]], variance="per_example")


def test_the_order_of_the_models_and_of_memory_does_not_matter():
    phi, members = gaussian_world(12, 10)
    strangers, _ = gaussian_world(12, 8, gap=0.0, seed=4)
    turn = np.random.default_rng(0).permutation(12)
    for attack in (lira_scores, lambda p, m: lira_scores(p, m, mode="offline"), t_scores):
        straight = attack(phi, members)
        turned = attack(np.asfortranarray(phi[turn]), members[turn])
        np.testing.assert_allclose(turned, straight[turn] if straight.ndim == 2 else straight, rtol=1e-9)
        single = attack(phi.astype(np.float32), members)
        np.testing.assert_allclose(single, straight, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(
        rmia_scores(phi[turn], members[turn], strangers[turn]), rmia_scores(phi, members, strangers)[turn]
    )


@pytest.mark.parametrize("attack", ["lira", "rmia"])
def test_offline_needs_no_model_that_saw_the_candidates(attack):
    phi, _ = gaussian_world(6, 10, gap=0.0)
    targets, nobody = phi[:2] + 1.0, np.zeros((6, 10), dtype=bool)
    strangers, _ = gaussian_world(6, 6, gap=0.0, seed=1)

    def scores(mode, members):
        if attack == "lira":
            return lira_scores(phi, members, target=targets, mode=mode)
        options = {"target": targets, "target_population": strangers[:2]}
        return rmia_scores(phi, members, strangers, mode=mode, **options)

    assert np.isfinite(scores("offline", nobody)).all()
    with pytest.raises(ValueError, match="at least 3 models that saw it, got 0 for example 0"):
        scores("online", nobody)
    everybody = ~nobody
    everybody[:2, :4] = False
    with pytest.raises(ValueError, match="at least 3 models that did not see it, got 0 for example 4"):
        scores("offline", everybody)


@pytest.mark.case("MIP-11")
@pytest.mark.parametrize(("models", "leave_one_out", "enough"), [(4, 0, 0), (6, 0, 1), (6, 1, 0), (8, 1, 1)])
def test_too_few_models_on_either_side_are_refused(models, leave_one_out, enough):
    phi, members = gaussian_world(models, 6)  # balanced: half of the models are on each side
    if enough:
        assert shadow_moments(phi, members, leave_one_out=bool(leave_one_out)).n_in.min() == 3
    else:
        for use in (shadow_moments, *([lira_scores] if leave_one_out else [t_scores])):
            with pytest.raises(ValueError, match="train more models"):
                use(phi, members, **({"leave_one_out": bool(leave_one_out)} if use is shadow_moments else {}))


def test_one_example_with_too_few_models_is_enough_to_refuse():
    phi, members = gaussian_world(12, 6)
    members[:, 3] = np.arange(12) < 2
    with pytest.raises(ValueError, match=r"at least 3 models .* got 2"):
        shadow_moments(phi, members)


# --------------------------------------------------------------------------- LiRA


@pytest.mark.case("MIA-4")
def test_the_likelihood_ratio_of_two_unit_gaussians_is_linear():
    np.testing.assert_allclose(gaussian_log_ratio([0, 1, 2], 2, 1, 0, 1), [-2, 0, 2])


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0.1, 9), st.floats(-5, 5), st.floats(0.1, 9))
def test_the_likelihood_ratio_is_that_of_the_densities(x, m_in, v_in, m_out, v_out):
    expected = stats.norm.logpdf(x, m_in, v_in**0.5) - stats.norm.logpdf(x, m_out, v_out**0.5)
    assert gaussian_log_ratio(x, m_in, v_in, m_out, v_out) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variance", VARIANCES)
def test_leaving_one_out_at_once_is_leaving_out_one_after_another(mode, variance):
    phi, members = gaussian_world(10, 8)
    together = lira_scores(phi, members, mode=mode, variance=variance)
    for i in range(10):
        others = np.arange(10) != i
        alone = lira_scores(phi[others], members[others], target=phi[i], mode=mode, variance=variance)
        np.testing.assert_allclose(together[i], alone, rtol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_the_score_of_a_model_does_not_depend_on_its_own_membership_table(mode):
    phi, members = gaussian_world(10, 8)
    before = lira_scores(phi, members, mode=mode)[0]
    other_phi, other_members = phi.copy(), members.copy()
    other_members[0] = ~members[0]
    # Flipping what model 0 was trained on changes counts of nobody else's row-0 statistics.
    np.testing.assert_allclose(lira_scores(other_phi, other_members, mode=mode)[0], before)


@pytest.mark.case("MIA-7")
@pytest.mark.parametrize("models", [16, 32, 64])
def test_pure_noise_gives_half_and_forgetting_to_leave_out_is_noticed(models):
    rng = np.random.default_rng(models)
    members = paired_halves(models, 4000, rng=rng)
    phi = rng.normal(size=(models, 4000))
    for variance in ("shrunk", "per_example"):
        auc = roc_curve(lira_scores(phi, members, variance=variance), members).auc
        assert auc == pytest.approx(0.5, abs=0.02 if models == 16 else 0.01)
        cheated = roc_curve(lira_scores(phi, members, target=phi, variance=variance), members)
        assert cheated.auc > 0.56
        assert cheated.at_fpr(0.001).tpr > 0.002


@pytest.mark.case("MIP-2")
def test_the_pooled_variance_is_within_examples_and_separate_for_both_sides():
    rng = np.random.default_rng(0)
    members = paired_halves(400, 30, rng=rng)
    difficulty = 50 * rng.normal(size=30)  # would swamp a variance pooled over raw confidences
    phi = difficulty + np.where(members, 3.0, 1.0) * rng.normal(size=(400, 30))
    target = difficulty + 2.0
    scores = lira_scores(phi, members, target=target, variance="pooled")
    moments = shadow_moments(phi, members)
    v_in, v_out = moments.var_in.mean(), moments.var_out.mean()
    assert v_in == pytest.approx(9, rel=0.1)
    assert v_out == pytest.approx(1, rel=0.1)
    expected = gaussian_log_ratio(target, moments.mean_in, v_in, moments.mean_out, v_out)
    np.testing.assert_allclose(scores, expected)


def test_with_one_variance_for_both_sides_the_ranking_would_not_depend_on_it():
    phi, members = gaussian_world(20, 50)
    moments = shadow_moments(phi, members)
    scores = [gaussian_log_ratio(phi[0], moments.mean_in, v, moments.mean_out, v) for v in (0.09, 9.0)]
    assert stats.spearmanr(*scores).statistic == pytest.approx(1)


@pytest.mark.case("MIP-3")
def test_offline_is_one_sided_and_never_saturates():
    rng = np.random.default_rng(0)
    members = paired_halves(40, 4, rng=rng)
    phi = rng.normal(size=(40, 4))
    targets = np.outer(np.arange(-5, 200, 0.5), np.ones(4))
    scores = lira_scores(phi, members, target=targets, mode="offline", variance="per_example")
    assert (np.diff(scores, axis=0) > 0).all()  # more confident is always more suspicious, far beyond 8 sigma
    moments = shadow_moments(phi, members)
    z = (targets[:30] - moments.mean_out) / np.sqrt(moments.var_out)
    np.testing.assert_allclose(scores[:30], -stats.norm.logsf(z))


@pytest.mark.case("MIP-15")
def test_a_point_without_spread_is_refused_or_shrunk_and_never_decides_alone():
    phi, members = gaussian_world(12, 20)
    phi[:, 5] = np.where(members[:, 5], 1.0, 0.5)
    with pytest.raises(ValueError, match="example 5 do not vary"):
        lira_scores(phi, members, variance="per_example")
    scores = lira_scores(phi, members)
    assert np.abs(scores[:, 5]).max() < np.abs(scores).max()
    phi[:] = members
    with pytest.raises(ValueError, match="do not vary"):
        lira_scores(phi, members)
    with pytest.raises(ValueError, match="do not vary"):
        t_scores(phi, members)


def test_shrinking_moves_a_variance_towards_the_median_by_eight_models():
    phi, members = gaussian_world(12, 6)
    moments = shadow_moments(phi, members)
    shrunk = [(5 * v + 8 * np.median(v)) / 13 for v in (moments.var_in, moments.var_out)]
    expected = gaussian_log_ratio(phi[0], moments.mean_in, shrunk[0], moments.mean_out, shrunk[1])
    np.testing.assert_allclose(lira_scores(phi, members, target=phi[0]), expected)


@pytest.mark.case("MIP-10")
@pytest.mark.parametrize("attack", ["online", "offline", "rmia"])
def test_an_attack_on_models_that_learned_nothing_of_their_members_is_blind(attack):
    phi, members = gaussian_world(32, 2000, gap=0.0)
    if attack == "rmia":
        strangers, _ = gaussian_world(32, 500, gap=0.0, seed=1)
        scores = rmia_scores(phi, members, strangers)
    else:
        scores = lira_scores(phi, members, mode=attack)
    low, high = chance_interval(16_000, 16_000, 1 - 1e-6)
    assert low < roc_curve(scores[:16], members[:16]).auc < high


def test_more_separation_is_more_leak():
    areas = [
        roc_curve(lira_scores(*world), world[1]).auc for world in (gaussian_world(gap=g) for g in (0, 1, 3))
    ]
    assert areas == sorted(areas)
    assert areas[2] > 0.9


# --------------------------------------------------------------------------- RMIA


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_rmia_counts_the_strangers_it_beats(mode, leave_one_out):
    phi, members = gaussian_world(8, 6)
    strangers, _ = gaussian_world(8, 12, gap=0.0, seed=2)
    options = {} if leave_one_out else {"target": phi[:3], "target_population": strangers[:3]}
    scores = rmia_scores(phi, members, strangers, mode=mode, offline_a=0.4, **options)
    p, q = special.expit(phi), special.expit(strangers)
    for i in range(8 if leave_one_out else 3):
        use = np.arange(8) != i if leave_one_out else np.full(8, True)
        for j in range(6):
            p_in, p_out = p[use & members[:, j], j].mean(), p[use & ~members[:, j], j].mean()
            wins = 0
            for z in range(12):
                p_z = q[use, z].mean()
                if mode == "online":
                    ratio, other = p[i, j] / ((p_in + p_out) / 2), q[i, z] / p_z
                else:
                    ratio, other = (a / ((1.4 * b + 0.6) / 2) for a, b in ((p[i, j], p_out), (q[i, z], p_z)))
                wins += ratio > other
            assert scores[i, j] == pytest.approx(wins / 12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_rmia_ranks_probabilities_that_no_double_can_hold(mode, leave_one_out):
    rng = np.random.default_rng(0)
    members = paired_halves(8, 6, rng=rng)
    powers, others = (rng.integers(-1400, -1100, (8, n)) for n in (6, 40))
    phi, strangers = powers * math.log(2), others * math.log(2)
    options = {} if leave_one_out else {"target": phi[:3], "target_population": strangers[:3]}
    with np.errstate(all="raise", under="ignore"):
        scores = rmia_scores(phi, members, strangers, mode=mode, offline_a=1.0, **options)
    p, q = ([[Fraction(2) ** int(k) for k in row] for row in table] for table in (powers, others))
    for i in range(8 if leave_one_out else 3):
        use = [m for m in range(8) if m != i or not leave_one_out]
        means = [sum(q[m][z] for m in use) / len(use) for z in range(40)]
        for j in range(6):
            world = {side: [p[m][j] for m in use if members[m, j] == side] for side in (True, False)}
            m_in, m_out = (sum(world[side]) / len(world[side]) for side in (True, False))
            ratio = p[i][j] / ((m_in + m_out) / 2 if mode == "online" else m_out)
            assert scores[i, j] == pytest.approx(sum(ratio > q[i][z] / means[z] for z in range(40)) / 40)


def test_rmia_wants_both_targets_or_none():
    phi, members = gaussian_world(8, 6)
    strangers = np.zeros((8, 4))
    with pytest.raises(ValueError, match="given together"):
        rmia_scores(phi, members, strangers, target=phi[0])
    with pytest.raises(ValueError, match="as many rows as target"):
        rmia_scores(phi, members, strangers, target=phi[:2], target_population=strangers[:3])


# --------------------------------------------------------------------------- vulnerability


def test_t_does_not_grow_with_the_number_of_models():
    few, many = (t_scores(*gaussian_world(models, 200)).mean() for models in (64, 1024))
    assert few == pytest.approx(2 / np.sqrt(2), rel=0.05)
    assert many == pytest.approx(few, rel=0.05)


def test_t_says_how_often_a_model_with_the_example_is_the_more_confident_one():
    phi, members = gaussian_world(400, 4, gap=1.5)
    for j, t in enumerate(t_scores(phi, members)):
        inside, outside = phi[members[:, j], j], phi[~members[:, j], j]
        assert (inside[:, None] > outside).mean() == pytest.approx(stats.norm.cdf(t), abs=0.04)


@given(st.floats(0, 4), st.floats(0, 4))
@settings(max_examples=30)
def test_weights_fall_from_the_threshold_on_and_never_reach_zero(slope, offset):
    t = np.linspace(-3, 10, 200)
    w = instance_weights(t, slope=slope, offset=offset)
    assert (np.diff(w) <= 0).all()
    assert ((w > 0) & (w <= 1)).all()
    assert (w[slope * t <= offset] == 1).all()


def test_weights_of_the_published_setting():
    expected = [1, 1, 0.36788, 0.13534, 0.018316, 3.3546e-4]
    np.testing.assert_allclose(instance_weights([0, 1, 1.5, 2, 3, 5]), expected, rtol=1e-4)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_the_front_is_what_nothing_beats(points):
    accuracy, leak = np.array(points, dtype=float).T
    front = pareto_front(accuracy, leak)
    assert (np.diff(accuracy[front]) > 0).all()
    assert (np.diff(leak[front]) > 0).all()
    for i, (a, b) in enumerate(points):
        beaten = any(x >= a and y <= b and (x, y) != (a, b) for x, y in points)
        assert beaten != any((accuracy[j], leak[j]) == (a, b) for j in front)
        assert i not in front or not beaten


# --------------------------------------------------------------------------- refusals

PHI, MEMBERS = gaussian_world(8, 6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: logit_confidence([[1.0]], [0]), ValueError, "two classes or more"),
        (lambda: logit_confidence([[1.0, 2.0]], [2]), ValueError, "labels must be"),
        (lambda: logit_confidence([[1.0, np.nan]], [0]), ValueError, "logits must be finite"),
        (lambda: logit_confidence([[1.0, 2.0]], [0, 1]), ValueError, "labels must have shape"),
        (lambda: lira_scores(PHI, MEMBERS.astype(int)), TypeError, "members must hold booleans"),
        (lambda: lira_scores(PHI, MEMBERS[:, :-1]), ValueError, "members must have shape"),
        (lambda: lira_scores(PHI, MEMBERS, mode="both"), ValueError, "mode must be one of"),
        (lambda: lira_scores(PHI, MEMBERS, variance="global"), ValueError, "variance must be one of"),
        (lambda: lira_scores(PHI, MEMBERS, target=PHI[:, :3]), ValueError, "one confidence for each of 6"),
        (lambda: calibrated(PHI[0], PHI[:, :3]), ValueError, "reference must have shape"),
        (lambda: pareto_front([0.9, 0.8], [0.1]), ValueError, "leak must have shape"),
        (lambda: pareto_front([0.9], [np.nan]), ValueError, "leak must be finite"),
        (lambda: gaussian_log_ratio([0.0], 0.0, 0.0, 0.0, 1.0), ValueError, "must be > 0"),
        (lambda: gaussian_log_ratio(["0"], 0.0, 1.0, 0.0, 1.0), TypeError, "x must hold real numbers"),
        (lambda: instance_weights([1.0], slope=-1.0), ValueError, "slope must be >= 0"),
        (
            lambda: train_attack_classifier(
                np.zeros((2, 4, 2)), [0, 0, 1, 1], np.eye(2, 4) > 2, generator=torch.Generator()
            ),
            ValueError,
            "both kinds in every class",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("n_classes", [2, 4])
def test_an_attack_classifier_refuses_other_classes_than_it_was_trained_for(n_classes):
    rng = np.random.default_rng(0)
    labels, members = np.arange(60) % 3, rng.random((4, 60)) < 0.5
    attack = train_attack_classifier(
        rng.normal(size=(4, 60, 3)), labels, members, generator=torch.Generator().manual_seed(0), epochs=1
    )
    with pytest.raises(ValueError, match="3 classes"):
        attack.scores(rng.normal(size=(5, n_classes)), [n_classes - 1] * 5)
