"""Randomized smoothing: against printed values, against the paper's pseudo-code, and by coverage."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest, norm
from torch import nn

from thousand_fingers import smoothing
from thousand_fingers.models import Normalised, mlp, small_cnn
from thousand_fingers.smoothing import (
    ABSTAIN,
    Certificate,
    certified_radius,
    certify,
    certify_at,
    is_certified,
    lower_confidence_bound,
    predict,
    required_votes,
    sample_under_noise,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def half_plane(dtype=torch.float64):
    """Two classes, split at 0: every truth in closed form."""
    model = nn.Linear(1, 2, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    return model


def at_distance(*margins, dtype=torch.float64):
    return torch.tensor(margins, dtype=dtype).unsqueeze(1)


def always(label, n_classes=3):
    logits = nn.functional.one_hot(torch.tensor(label), n_classes).double()
    return lambda images: logits.expand(len(images), n_classes)


@pytest.fixture(scope="module")
def network():
    return mlp([784, 32, 10], generator=seeded())


@pytest.fixture(scope="module")
def images():
    return torch.rand(7, 28, 28, generator=seeded(1), dtype=torch.float64)


# --------------------------------------------------------------------------- printed values


@pytest.mark.parametrize(
    ("n", "votes", "failure_probability", "p_lower", "quantile"),
    [
        (100, 100, 0.001, 0.9332543008, 1.500475),
        (1_000, 1_000, 0.001, 0.9931160484, 2.463263),
        (10_000, 10_000, 0.001, 0.9993094630, 3.198578),
        (100_000, 100_000, 0.001, 0.9999309248, 3.811457),
        (100_000, 100_000, 0.01, 0.9999539494, 3.910510),
        (1_000, 999, 0.001, 0.99080450, 2.357651),
        (1_000, 990, 0.001, 0.97603619, 1.978010),
        (1_000, 900, 0.001, 0.86746402, 1.114483),
        (100_000, 99_000, 0.001, 0.98898934, 2.290000),
    ],
)
def test_bound_and_radius_have_the_reference_values(n, votes, failure_probability, p_lower, quantile):
    bound = lower_confidence_bound(votes, n, failure_probability)
    assert bound == pytest.approx(p_lower, abs=1e-6)
    assert certified_radius(bound, 1.0) == pytest.approx(quantile, abs=1e-6)


@pytest.mark.parametrize(
    ("noise_std", "largest"),
    [
        (0.25, [0.375119, 0.615816, 0.799644, 0.952864]),
        (0.5, [0.750238, 1.231631, 1.599289, 1.905728]),
        (1.0, [1.500475, 2.463263, 3.198578, 3.811457]),
    ],
)
def test_largest_radius_of_equal_votes(noise_std, largest):
    bounds = [lower_confidence_bound(n, n, 0.001) for n in (100, 1_000, 10_000, 100_000)]
    assert certified_radius(bounds, noise_std) == pytest.approx(largest, abs=1e-6)


def test_largest_radius_in_the_released_data_is_that_of_another_failure_probability():
    assert certified_radius(lower_confidence_bound(100_000, 100_000, 0.001), 0.12) == pytest.approx(
        0.457375, abs=1e-6
    )
    released = {0.25: "0.978", 0.5: "1.96", 1.0: "3.91"}  # three significant digits, as in the files
    for noise_std, printed in released.items():
        radius = {
            a: float(certified_radius(0.5 ** (math.log2(1 / a) / 1e5), noise_std)) for a in (0.01, 0.001)
        }
        assert f"{radius[0.01]:.3}" == printed
        assert f"{radius[0.001]:.3}" != printed


@pytest.mark.parametrize(("n", "votes"), [(100, 66), (1_000, 550), (10_000, 5_156), (100_000, 50_490)])
def test_smallest_count_that_certifies(n, votes):
    assert required_votes(n, 0.0, 0.001) == votes
    enough, too_few = lower_confidence_bound([votes, votes - 1], n, 0.001)
    assert too_few <= 0.5 < enough


def test_one_vote_below_the_smallest_count_abstains():
    assert lower_confidence_bound(549, 1_000, 0.001) == pytest.approx(0.499673, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "n"), [(0.5, 19), (1, 40), (1.5, 100), (2, 301), (2.5, 1_109), (3, 5_114), (3.5, 29_691)]
)
def test_draws_needed_to_certify_a_radius_with_equal_votes(ratio, n):
    assert required_votes(n, ratio, 0.001) == n
    assert required_votes(n - 1, ratio, 0.001) == n  # more votes than draws: out of reach


@given(
    n=st.integers(1, 3_000),
    ratio=st.floats(0, 3.5),
    failure_probability=st.floats(1e-6, 0.5, exclude_max=True),
)
@settings(max_examples=200, deadline=None)
def test_required_votes_is_the_first_count_whose_bound_suffices(n, ratio, failure_probability):
    needed = required_votes(n, ratio, failure_probability)
    radius = certified_radius(lower_confidence_bound(np.arange(n + 1), n, failure_probability), 1.0)
    assert 1 <= needed <= n + 1
    if needed <= n:
        assert radius[needed] >= ratio - 1e-9
    if ratio > 0:
        assert radius[needed - 1] <= ratio + 1e-9


@given(n=st.integers(1, 5_000), share=st.floats(0, 1), failure_probability=st.floats(1e-9, 0.999))
@settings(max_examples=200, deadline=None)
def test_bound_is_the_quantile_of_the_beta_law(n, share, failure_probability):
    votes = round(share * n)
    expected = beta.ppf(failure_probability, votes, n - votes + 1) if votes else 0.0
    assert lower_confidence_bound(votes, n, failure_probability) == pytest.approx(
        expected, rel=1e-9, abs=1e-300
    )


def test_bound_covers_at_every_true_probability():
    """Exact: the law of the counts is binomial, so the chance of a bound above the truth is a sum."""
    votes = np.arange(1_001)
    bounds = lower_confidence_bound(votes, 1_000, 0.001)
    printed = {0.5: 0.000865, 0.7: 0.000924, 0.9: 0.000860, 0.99: 0.000479, 0.999: 0.0}
    for p, expected in printed.items():
        misses = binom.pmf(votes, 1_000, p)[bounds > p].sum()
        assert misses == pytest.approx(expected, abs=1e-6)
    for p in np.linspace(0.01, 0.9995, 500):
        assert binom.pmf(votes, 1_000, p)[bounds > p].sum() <= 0.001 + 1e-12


# --------------------------------------------------------------------------- the paper's pseudo-code


def transcribed_counts(model, x, n, noise_std, generator, batch_size):
    """SampleUnderNoise of the paper, one input and one noisy copy at a time."""
    counts = np.zeros(10, dtype=int)
    while n > 0:
        size = min(n, batch_size)
        for noise in torch.randn(size, *x.shape, generator=generator, dtype=x.dtype):
            with torch.no_grad():
                counts[int(model((x + noise_std * noise)[None]).argmax())] += 1
        n -= size
    return counts


def transcribed_predict(counts, failure_probability):
    second, first = np.argsort(counts, kind="stable")[-2:]
    p_value = binomtest(int(counts[first]), int(counts[first] + counts[second]), 0.5).pvalue
    return first if p_value <= failure_probability else ABSTAIN


def transcribed_certify(counts0, counts, noise_std, failure_probability):
    selected = int(np.argmax(counts0))
    k, n = int(counts[selected]), int(counts.sum())
    p_lower = beta.ppf(failure_probability, k, n - k + 1) if k else 0.0
    return (selected, noise_std * norm.ppf(p_lower)) if p_lower > 0.5 else (ABSTAIN, 0.0)


def test_counts_equal_a_transcription_of_the_paper_on_the_same_noise(network, images):
    counts = sample_under_noise(network, images, noise_std=0.4, n=60, generator=seeded(2), batch_size=20)
    generator = seeded(2)
    expected = [transcribed_counts(network, x, 60, 0.4, generator, 20) for x in images]
    assert np.array_equal(counts.numpy(), expected)


def test_predict_equals_a_transcription_of_the_paper_on_the_same_noise(network, images):
    options = {"noise_std": 0.8, "n": 60}
    labels = predict(network, images, failure_probability=0.05, generator=seeded(3), batch_size=20, **options)
    generator = seeded(3)
    expected = [
        transcribed_predict(transcribed_counts(network, x, 60, 0.8, generator, 20), 0.05) for x in images
    ]
    assert labels.tolist() == expected
    assert ABSTAIN in expected
    assert set(expected) != {ABSTAIN}


def test_certify_equals_a_transcription_of_the_paper_on_the_same_noise(network, images):
    found = certify(
        network,
        images,
        noise_std=0.4,
        failure_probability=0.05,
        n0=20,
        n=60,
        generator=seeded(4),
        batch_size=20,
    )
    generator = seeded(4)
    selection = [transcribed_counts(network, x, 20, 0.4, generator, 20) for x in images]
    estimation = [transcribed_counts(network, x, 60, 0.4, generator, 20) for x in images]
    expected = [transcribed_certify(a, b, 0.4, 0.05) for a, b in zip(selection, estimation, strict=True)]
    assert found.label.tolist() == [label for label, _ in expected]
    assert found.radius.tolist() == pytest.approx([radius for _, radius in expected], abs=1e-9)
    assert len({label == ABSTAIN for label, _ in expected}) == 2  # both outcomes occur


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1_000])
def test_answers_do_not_depend_on_the_batch_size(network, images, batch_size):
    for shared in (False, True):
        counts = [
            sample_under_noise(
                network,
                images,
                noise_std=0.4,
                n=50,
                generator=seeded(5),
                batch_size=size,
                shared_noise=shared,
            )
            for size in (50, batch_size)
        ]
        assert torch.equal(*counts)


@pytest.mark.parametrize(
    ("first", "second", "p_value"),
    [
        (510, 490, 0.547973),
        (550, 450, 0.00173054),
        (552, 448, 0.00111505),
        (553, 447, 0.000889986),
        (60, 40, 0.0568879),
        (67, 33, 0.00087372),
        (50, 50, 1.0),
    ],
)
@pytest.mark.case("ROB-29")
def test_two_sided_p_value_is_the_exact_binomial_one(first, second, p_value):
    found = float(smoothing._two_sided_p(np.array(first), np.array(first + second)))
    assert found == pytest.approx(p_value, abs=1e-6)
    assert found == pytest.approx(binomtest(first, first + second, 0.5).pvalue, rel=1e-9)


@pytest.mark.parametrize(("first", "commits"), [(550, False), (552, False), (553, True)])
def test_predict_commits_exactly_where_the_test_rejects(first, commits):
    votes = iter(torch.tensor([0] * first + [1] * (1_000 - first)))

    def scripted(noisy):
        return nn.functional.one_hot(torch.stack([next(votes) for _ in noisy]), 2).double()

    label = predict(scripted, at_distance(0.0), noise_std=1.0, n=1_000, generator=seeded())
    assert label.tolist() == [0 if commits else ABSTAIN]


# --------------------------------------------------------------------------- guarantees


@pytest.mark.parametrize(
    ("margin", "noise_std", "n", "votes", "radius"),
    [
        (0.8, 0.5, 100_000, 94_520, 0.789976),
        (0.8, 0.5, 10_000, 9_452, 0.768340),
        (0.8, 0.5, 1_000, 945, 0.699569),
        (1.0, 1.0, 100_000, 84_134, 0.985219),
    ],
)
def test_radius_of_a_linear_model_approaches_its_distance_from_below(margin, noise_std, n, votes, radius):
    assert math.floor(norm.cdf(margin / noise_std) * n) == votes
    found = float(certified_radius(lower_confidence_bound(votes, n, 0.001), noise_std))
    assert found == pytest.approx(radius, abs=1e-6)
    assert found < margin


@pytest.mark.parametrize("noise_std", [0.25, 0.5, 1.0])
def test_certificate_of_a_linear_model_never_exceeds_its_distance(noise_std):
    """False alarm: 200 certificates at failure probability 1e-9 each, 2e-7 in all."""
    margins = torch.linspace(-1.5, 1.5, 200, dtype=torch.float64)
    found = certify(
        half_plane(),
        at_distance(*margins.tolist()),
        noise_std=noise_std,
        failure_probability=1e-9,
        n=2_000,
        generator=seeded(6),
    )
    sure = found.label != ABSTAIN
    assert torch.equal(found.label[sure], (margins < 0).long()[sure])
    assert bool((found.radius <= margins.abs()).all())
    assert bool((found.radius[margins.abs() > 0.5 * noise_std] > 0).all())


@pytest.mark.parametrize("shared_noise", [False, True])
def test_bound_exceeds_the_true_probability_no_more_often_than_promised(shared_noise):
    """The truth is Φ(margin/σ). With shared noise every repetition draws anew; then they are independent.

    At most 200 + 6.5 standard deviations of 4,000 at level 0.05: false alarm below 1e-9. And at least
    100: a bound that never fails would be no bound at this level (exact rate 0.047, false alarm below 1e-9).
    """
    model, generator, misses = half_plane(), seeded(7), 0
    truth = norm.cdf(0.3 / 0.5)
    repeats, size = (40, 100) if not shared_noise else (1_000, 1)
    for _ in range(repeats):
        found = certify(
            model,
            at_distance(*[0.3] * size),
            noise_std=0.5,
            failure_probability=0.05,
            n0=20,
            n=300,
            generator=generator,
            shared_noise=shared_noise,
        )
        misses += int((found.p_lower > truth).sum())
    total = repeats * size
    spread = math.sqrt(total * 0.05 * 0.95)
    assert 0.025 * total < misses < 0.05 * total + 6.5 * spread


def test_coin_flip_is_certified_no_more_often_than_promised():
    """Two equally likely classes: every certificate is false. 3,000 at level 0.05, false alarm below 1e-9."""
    draws = seeded(8)

    def flip(noisy):
        return torch.rand(len(noisy), 2, generator=draws, dtype=torch.float64)

    found = certify(
        flip,
        torch.zeros(3_000, 1, dtype=torch.float64),
        noise_std=1.0,
        failure_probability=0.05,
        n0=10,
        n=200,
        generator=seeded(9),
    )
    certified = int((found.label != ABSTAIN).sum())
    assert certified < 150 + 6.5 * math.sqrt(3_000 * 0.05 * 0.95)
    assert certified > 20  # otherwise this is not a test of the level


def test_ten_equally_likely_classes_always_abstain():
    draws = seeded(10)
    found = certify(
        lambda noisy: torch.rand(len(noisy), 10, generator=draws),
        torch.zeros(50, 1),
        noise_std=1.0,
        n=1_000,
        generator=seeded(11),
    )
    assert set(found.label.tolist()) == {ABSTAIN}
    assert set(found.radius.tolist()) == {0.0}
    assert 0 < float(found.p_lower.max()) < 0.5


def test_selection_and_estimation_use_different_draws():
    """Same draws for both would select the luckier of two equal classes and then believe its luck."""
    draws = []

    def spy(noisy):
        draws.append(noisy.clone())
        return torch.stack([noisy[:, 0], -noisy[:, 0]], dim=1)

    certify(spy, at_distance(0.0), noise_std=1.0, n0=20, n=30, generator=seeded(12), batch_size=50)
    selection, estimation = draws
    assert len(selection) == 20
    assert len(estimation) == 30
    assert not np.intersect1d(selection.numpy().ravel(), estimation.numpy().ravel()).size


@pytest.mark.case("ROB-30")
def test_two_classes_near_one_half_are_not_certified_from_two_separate_intervals():
    """The bound is on one class alone; the runner-up needs no interval of its own.

    With p_A = 0.5 exactly and a runner-up of 0.4, the radius would be wrongly positive if the runner-up's
    count were used as its probability. 500 inputs at level 1e-9: false alarm below 1e-6.
    """
    draws = seeded(13)

    def three_classes(noisy):
        u = torch.rand(len(noisy), generator=draws)
        return nn.functional.one_hot((u > 0.5).long() + (u > 0.9).long(), 3).double()

    found = certify(
        three_classes,
        torch.zeros(500, 1),
        noise_std=1.0,
        failure_probability=1e-9,
        n=500,
        generator=seeded(14),
    )
    assert set(found.label.tolist()) == {ABSTAIN}


@pytest.mark.case("ROB-31")
def test_certificate_holds_against_every_other_class():
    """Around 0 three sectors meet; the radius must respect the nearest of them, whichever it is."""
    angles = torch.tensor([0.0, 2 * math.pi / 3, 4 * math.pi / 3])
    sectors = nn.Linear(2, 3, bias=False, dtype=torch.float64)
    with torch.no_grad():
        sectors.weight.copy_(torch.stack([angles.cos(), angles.sin()], dim=1))
    points = torch.randn(300, 2, generator=seeded(15), dtype=torch.float64)
    found = certify(sectors, points, noise_std=0.3, failure_probability=1e-9, n=2_000, generator=seeded(16))
    certified = found.label != ABSTAIN
    own = sectors.weight[found.label[certified]].unsqueeze(1)
    gaps = ((own - sectors.weight) * points[certified].unsqueeze(1)).sum(2)
    distance = (gaps / (own - sectors.weight).norm(dim=2)).nan_to_num(nan=math.inf).amin(1)
    assert int(certified.sum()) > 200
    assert bool((found.radius[certified] <= distance).all())


@pytest.mark.case("ROB-28")
def test_radius_scales_with_the_units_of_the_input(network, images):
    doubled = Normalised(network, mean=0.0, std=2.0)
    options = {"n": 200, "failure_probability": 0.01}
    small = certify(network, images, noise_std=0.25, generator=seeded(17), **options)
    large = certify(doubled, 2 * images, noise_std=0.5, generator=seeded(17), **options)
    assert torch.equal(small.label, large.label)
    assert torch.equal(2 * small.radius, large.radius)
    assert float(small.radius.max()) > 0


@pytest.mark.case("ROB-28")
@pytest.mark.parametrize(
    ("failure_probability", "enough"), [(0.001, 10), (0.01, 7), (0.05, 5), (2.0**-10, 11)]
)
def test_certify_refuses_a_number_of_draws_that_can_only_abstain(failure_probability, enough):
    options = {"noise_std": 1.0, "failure_probability": failure_probability, "generator": seeded()}
    found = certify(always(1), at_distance(0.0), n=enough, **options)
    assert found.label.tolist() == [1]
    with pytest.raises(ValueError, match=f"n must be at least {enough}"):
        certify(always(1), at_distance(0.0), n=enough - 1, **options)


@pytest.mark.case("ROB-28")
def test_predict_refuses_a_number_of_draws_that_can_only_abstain():
    options = {"noise_std": 1.0, "failure_probability": 0.001, "generator": seeded()}
    assert predict(always(1), at_distance(0.0), n=11, **options).tolist() == [1]
    with pytest.raises(ValueError, match="n must be at least 11"):
        predict(always(1), at_distance(0.0), n=10, **options)


def test_constant_model_gets_the_largest_radius_that_the_draws_can_prove():
    found = certify(always(2), at_distance(0.0, 5.0), noise_std=0.5, n=1_000, generator=seeded())
    assert found.label.tolist() == [2, 2]
    assert found.radius.tolist() == pytest.approx([1.231631] * 2, abs=1e-6)
    assert found.failure_probability == 0.001


# --------------------------------------------------------------------------- a radius given in advance


def test_one_stage_decides_exactly_as_certify_on_the_same_noise(network, images):
    options = {"noise_std": 0.4, "failure_probability": 0.05, "n0": 20}
    full = certify(network, images, n=400, generator=seeded(18), **options)
    decided = certify_at(network, images, radius=0.1, stages=[400], generator=seeded(18), **options)
    expected = torch.where(full.radius >= 0.1, full.label, ABSTAIN)
    assert torch.equal(decided.label, expected)
    assert 0 < int((expected == ABSTAIN).sum()) < len(expected)
    assert decided.queries.tolist() == [420] * len(images)


def test_staged_decision_is_wrong_no_more_often_than_promised():
    """True radius 0.3, asked for 0.301: nearly every certificate would be wrong. 2,000 at level 0.05."""
    decided = certify_at(
        half_plane(),
        at_distance(*[0.3] * 2_000),
        radius=0.301,
        noise_std=0.5,
        failure_probability=0.05,
        stages=(50, 200, 400),
        generator=seeded(19),
    )
    wrong = int((decided.label == 0).sum())
    assert wrong < 100 + 6.5 * math.sqrt(2_000 * 0.05 * 0.95)
    assert wrong > 10


def test_staged_decision_is_cheap_where_it_is_easy():
    decided = certify_at(
        half_plane(), at_distance(3.0, 0.05, 0.35), radius=0.3, noise_std=0.5, generator=seeded(20)
    )
    assert decided.label.tolist()[:2] == [0, ABSTAIN]
    assert decided.queries.tolist() == [200, 1_100, 10_100]
    assert decided.failure_probability == 0.001


def test_certify_at_refuses_a_radius_that_its_last_stage_cannot_prove():
    with pytest.raises(ValueError, match=r"radius must be at most 0\.7262"):
        certify_at(
            half_plane(), at_distance(1.0), radius=0.73, noise_std=0.5, stages=[50, 100], generator=seeded()
        )
    with pytest.raises(ValueError, match="stages must be increasing"):
        certify_at(
            half_plane(), at_distance(1.0), radius=0.1, noise_std=0.5, stages=[100, 100], generator=seeded()
        )


# --------------------------------------------------------------------------- shared noise


def test_shared_noise_is_the_same_for_every_input():
    seen = []

    def spy(noisy):
        seen.append(noisy.clone())
        return noisy.expand(-1, 2)

    sample_under_noise(
        spy, at_distance(0.0, 1.0), noise_std=1.0, n=5, generator=seeded(), batch_size=10, shared_noise=True
    )
    first, second = seen[0].split(5)
    assert torch.allclose(second - first, at_distance(1.0) - at_distance(0.0))
    independent = sample_under_noise(
        half_plane(), at_distance(0.1, 0.1), noise_std=1.0, n=999, generator=seeded()
    )
    assert not torch.equal(independent[0], independent[1])


@pytest.mark.parametrize(
    "model",
    [
        mlp([784, 24, 10], generator=seeded(21)),
        mlp([784, 10], generator=seeded(22)),
        mlp([784, 24, 16, 10], generator=seeded(23)),
        small_cnn(generator=seeded(24)),
    ],
    ids=["mlp", "linear", "deep", "cnn"],
)
def test_fast_path_for_affine_heads_equals_the_plain_path_on_the_same_noise(model, images):
    def opaque(noisy):  # hides the layers, so that every noisy copy passes through all of them
        return model(noisy)

    counts = [
        sample_under_noise(
            m, images, noise_std=0.3, n=64, generator=seeded(25), batch_size=32, shared_noise=True
        )
        for m in (model, opaque)
    ]
    assert torch.equal(*counts)
    assert len(smoothing._split_after_affine(model)[0]) >= 2


def test_fast_path_leaves_subclassed_and_hooked_layers_alone():
    class Doubling(nn.Linear):
        def forward(self, values):
            return 2 * super().forward(values).abs()

    model = nn.Sequential(nn.Flatten(), Doubling(784, 10, dtype=torch.float64))
    assert len(smoothing._split_after_affine(model)[0]) == 1
    hooked = mlp([784, 8, 10], generator=seeded())
    hooked[1].register_forward_hook(lambda module, inputs, output: output.abs())
    assert len(smoothing._split_after_affine(hooked)[0]) == 1
    hooked.register_forward_hook(lambda module, inputs, output: -output)
    assert len(smoothing._split_after_affine(hooked)[0]) == 0


def test_shared_noise_leaves_each_input_with_the_law_it_had():
    """Counts of one input over 3,000 repetitions, mean against Φ(margin/σ): 6 standard errors, 2e-9."""
    generator, model = seeded(26), half_plane()
    counts = [
        int(
            sample_under_noise(
                model, at_distance(0.2, 0.9), noise_std=1.0, n=20, generator=generator, shared_noise=True
            )[1, 0]
        )
        for _ in range(3_000)
    ]
    p = norm.cdf(0.9)
    assert abs(np.mean(counts) - 20 * p) < 6 * math.sqrt(20 * p * (1 - p) / 3_000)
    assert np.var(counts) == pytest.approx(20 * p * (1 - p), rel=0.2)


# --------------------------------------------------------------------------- the model is left as it was


@pytest.mark.case("ROB-5")
@pytest.mark.parametrize("shared_noise", [False, True])
def test_modes_statistics_and_gradients_are_left_as_they_were(images, shared_noise):
    inner = mlp([784, 16, 10], generator=seeded())
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784, dtype=torch.float64), nn.Dropout(0.5), inner)
    model.train()
    model[1].eval()  # a frozen batch norm inside a training model
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    certify(model, images, noise_std=0.5, n=50, generator=seeded(), shared_noise=shared_noise)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad and bool((p.grad == 1).all()) for p in model.parameters())


@pytest.mark.case("ROB-5")
@pytest.mark.parametrize("shared_noise", [False, True])
def test_dropout_and_batch_statistics_play_no_part_in_the_vote(network, images, shared_noise):
    noisy_layers = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(784, dtype=torch.float64))
    model = nn.Sequential(nn.Flatten(), *noisy_layers, network).train()
    options = {"noise_std": 0.4, "n": 50, "shared_noise": shared_noise}
    counts = sample_under_noise(model, images, generator=seeded(), **options)
    expected = sample_under_noise(
        nn.Sequential(nn.Flatten(), *noisy_layers, network).eval(), images, generator=seeded(), **options
    )
    assert torch.equal(counts, expected)
    again = sample_under_noise(model, images, generator=seeded(), **options)
    assert torch.equal(counts, again)


@pytest.mark.case("ROB-6")
def test_modes_are_restored_when_the_model_raises(images):
    class Broken(nn.Module):
        def forward(self, noisy):
            raise RuntimeError("out of order")

    model = nn.Sequential(Broken()).train()
    with pytest.raises(RuntimeError, match="out of order"):
        certify(model, images, noise_std=0.5, generator=seeded())
    assert model.training
    assert model[0].training


@pytest.mark.case("ROB-22")
def test_results_carry_no_graph_and_inputs_are_untouched(network, images):
    before = images.clone()
    tracked = images.clone().requires_grad_()
    found = certify(network, tracked, noise_std=0.5, n=50, generator=seeded())
    assert torch.equal(images, before)
    assert tracked.grad is None
    counts = sample_under_noise(network, tracked, noise_std=0.5, n=50, generator=seeded())
    for tensor in (found.label, found.radius, found.p_lower, counts):
        assert not tensor.requires_grad
        assert not tensor.is_inference()


@pytest.mark.case("ROB-21")
def test_works_inside_no_grad_and_inference_mode(network, images):
    plain = predict(network, images, noise_std=0.1, n=50, generator=seeded())
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(predict(network, images, noise_std=0.1, n=50, generator=seeded()), plain)


@pytest.mark.case("ROB-23")
def test_same_generator_same_answer_and_global_stream_untouched(network, images):
    state = torch.get_rng_state()
    first = sample_under_noise(network, images, noise_std=0.5, n=99, generator=seeded(30))
    again = sample_under_noise(network, images, noise_std=0.5, n=99, generator=seeded(30))
    other = sample_under_noise(network, images, noise_std=0.5, n=99, generator=seeded(31))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.case("ROB-36")
def test_memory_does_not_grow_with_the_number_of_draws():
    """Largest batch the model ever sees; and the memory that Python and NumPy hold."""
    seen = []

    def spy(noisy):
        seen.append(len(noisy))
        return noisy.expand(-1, 2)

    points = at_distance(0.1, 0.2, 0.3)
    for shared in (False, True):
        tracemalloc.start()
        counts = sample_under_noise(
            spy, points, noise_std=1.0, n=100_000, generator=seeded(), batch_size=5_000, shared_noise=shared
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert counts.sum(1).tolist() == [100_000] * 3
        assert peak < 5e6
    assert max(seen) == 5_000


@pytest.mark.case("ROB-18")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_floating_dtype_reaches_the_model_as_it_is(dtype):
    seen = []

    def spy(noisy):
        seen.append(noisy.dtype)
        return torch.stack([noisy[:, 0], -noisy[:, 0]], dim=1)

    found = certify(spy, at_distance(0.9, dtype=dtype), noise_std=0.5, n=500, generator=seeded())
    assert set(seen) == {dtype}
    assert found.radius.dtype == torch.float64
    assert found.label.tolist() == [0]
    assert 0 < float(found.radius[0]) < 0.9


@pytest.mark.case("ROB-19")
def test_integer_images_are_refused(network):
    with pytest.raises(TypeError, match="images must be floating point"):
        certify(network, torch.zeros(2, 28, 28, dtype=torch.uint8), noise_std=0.5, generator=seeded())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no second device on this machine")
def test_noise_from_the_cpu_reaches_a_model_on_another_device():
    model = half_plane().cuda()
    found = certify(model, at_distance(0.8).cuda(), noise_std=0.5, generator=seeded())
    assert found.label.device.type == "cpu"
    assert 0.7 < float(found.radius[0]) < 0.8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_std": 0.0}, r"noise_std must be > 0, got 0\.0"),
        ({"noise_std": float("nan")}, "noise_std must be finite"),
        ({"failure_probability": 0.0}, r"failure_probability must be > 0 and < 1, got 0\.0"),
        ({"failure_probability": 1.0}, r"failure_probability must be > 0 and < 1, got 1\.0"),
        ({"n": 0}, "n must be >= 1, got 0"),
        ({"n0": 0}, "n0 must be >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
    ],
)
def test_arguments_out_of_range_are_refused_before_any_draw(network, images, change, message):
    generator = seeded()
    state = generator.get_state()
    with pytest.raises(ValueError, match=message):
        certify(network, images, **{"noise_std": 0.5, "generator": generator, **change})
    assert torch.equal(generator.get_state(), state)


def test_bad_inputs_and_bad_models_are_refused(network, images):
    options = {"noise_std": 0.5, "generator": seeded()}
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
        certify(network, images, noise_std=0.5, generator=0)
    with pytest.raises(ValueError, match="not be empty"):
        certify(network, images[:0], **options)
    with pytest.raises(ValueError, match="images must be finite"):
        certify(network, images * math.nan, **options)
    with pytest.raises(ValueError, match="at least two logits"):
        certify(lambda noisy: noisy.flatten(1).sum(1), images, **options)
    with pytest.raises(ValueError, match="logits must not be NaN"):
        certify(lambda noisy: noisy.flatten(1) * math.nan, images, **options)


def test_certified_accuracy_counts_right_answers_of_sufficient_radius_only():
    found = Certificate(
        torch.tensor([1, 1, 2, ABSTAIN]), torch.tensor([0.5, 0.2, 9.0, 0.0]), torch.full((4,), 0.9), 0.001
    )
    truth = torch.tensor([1, 1, 1, 1])
    assert is_certified(found, truth, 0.0).tolist() == [True, True, False, False]
    assert is_certified(found, truth, 0.5).tolist() == [True, False, False, False]
    assert is_certified(found, truth, 0.51).tolist() == [False] * 4
    with pytest.raises(ValueError, match="labels must have shape"):
        is_certified(found, truth[:2], 0.0)
