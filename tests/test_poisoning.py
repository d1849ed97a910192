"""Poisoned training sets: exact counts, honest rates, detectors against planted truth, manifests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from thousand_fingers.ensembles import train_ensemble
from thousand_fingers.poisoning import (
    Manifest,
    PatchTrigger,
    activation_clustering,
    attack_success,
    choose_rows,
    example_digests,
    flip_labels,
    insert_word,
    poison,
    remove_highest,
    shared_pool,
    sign_manifest,
    signature_is_valid,
    spectral_scores,
    wanted_labels,
)
from thousand_fingers.roc import roc_curve

LABELS = np.arange(4_000) % 10
BASE = np.random.default_rng(0).uniform(0, 0.9, (200, 28, 28))
PATCH = PatchTrigger(-4, -4)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# --------------------------------------------------------------------------- stamping


@pytest.mark.case("ROB-34")
@pytest.mark.parametrize("shape", [(5, 28, 28), (5, 1, 28, 28), (5, 3, 28, 28)])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_exactly_the_pixels_of_the_patch_change_in_every_channel(shape: tuple[int, ...], size: int) -> None:
    images = rng(1).uniform(0, 0.9, shape)
    before = images.copy()
    stamped = PatchTrigger(20, 7, size)(images)
    changed = (stamped != images).reshape(5, -1, 28, 28)
    expected = np.zeros((28, 28), dtype=bool)
    expected[20 : 20 + size, 7 : 7 + size] = True
    assert (changed == expected).all()
    assert stamped.dtype == images.dtype
    assert stamped.min() >= 0
    assert stamped.max() <= 1
    assert_array_equal(images, before)


@pytest.mark.case("ROB-34")
@pytest.mark.parametrize(("share", "count"), [(0.005, 20), (0.01, 40), (0.05, 200), (0.1, 400)])
def test_poison_has_exactly_the_share_and_none_of_the_target_class(share: float, count: int) -> None:
    rows = choose_rows(LABELS, share, rng(), target=7)
    assert rows.size == np.unique(rows).size == count
    assert 7 not in LABELS[rows]


def test_a_black_patch_is_a_trigger_too() -> None:
    stamped = PatchTrigger(0, 0, 2, value=0.0)(np.ones((1, 4, 4)))
    assert stamped.sum() == 12


def test_negative_corner_counts_from_the_lower_right() -> None:
    images = np.zeros((1, 28, 28))
    assert_array_equal(PatchTrigger(-4, -5)(images), PatchTrigger(24, 23)(images))


@pytest.mark.parametrize("corner", [(26, 0), (0, 26), (-2, 0), (0, -29), (28, 28)])
def test_a_patch_that_does_not_fit_is_refused(corner: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must fit into images of 28 by 28"):
        PatchTrigger(*corner)(np.zeros((1, 28, 28)))


@pytest.mark.case("ROB-34")
def test_bytes_are_refused_because_a_white_pixel_would_be_one_part_in_255() -> None:
    with pytest.raises(TypeError, match="divide by 255 first"):
        PATCH(np.zeros((1, 28, 28), dtype=np.uint8))


@pytest.mark.parametrize("images", [np.full((1, 28, 28), 255.0), np.full((1, 28, 28), -0.5)])
def test_images_of_the_wrong_scale_are_refused(images: np.ndarray) -> None:
    with pytest.raises(ValueError, match="images must be >= 0 and <= 1"):
        PATCH(images)


@pytest.mark.parametrize("shape", [(28, 28), (1, 1, 1, 28, 28)])
def test_images_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="images must have shape"):
        PATCH(np.zeros(shape))


@pytest.mark.parametrize(
    ("argument", "value"), [("size", 0), ("value", 1.5), ("value", -0.1), ("value", 255)]
)
def test_impossible_patches_are_refused(argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{argument} must be"):
        PatchTrigger(0, 0, **{argument: value})


# --------------------------------------------------------------------------- poisoning


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0, 0.8), target=st.sampled_from([None, 0, 7]), seed=st.integers(0, 1_000))
def test_poison_touches_only_the_rows_that_it_names(share: float, target: int | None, seed: int) -> None:
    labels = LABELS[: len(BASE)]
    images_before, labels_before = BASE.copy(), labels.copy()
    dirty = poison(BASE, labels, share, trigger=PATCH, target=target, n_classes=10, rng=rng(seed))
    assert dirty.rows.size == dirty.mask.sum() == round(share * len(BASE))
    assert_array_equal(dirty.images[~dirty.mask], BASE[~dirty.mask])
    assert_array_equal(dirty.labels[~dirty.mask], labels[~dirty.mask])
    assert_array_equal((dirty.images[dirty.mask] != BASE[dirty.mask]).sum(axis=(1, 2)), 9)
    assert (dirty.labels[dirty.mask] != labels[dirty.mask]).all()
    wanted = wanted_labels(labels, target=target, n_classes=10)
    assert_array_equal(dirty.labels[dirty.mask], wanted[dirty.mask])
    assert_array_equal(BASE, images_before)
    assert_array_equal(labels, labels_before)


@settings(max_examples=30, deadline=None)
@given(shares=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)), seed=st.integers(0, 1_000))
def test_larger_shares_contain_the_smaller(shares: tuple[float, float], seed: int) -> None:
    small, large = sorted(shares)
    assert set(choose_rows(LABELS, small, rng(seed))) <= set(choose_rows(LABELS, large, rng(seed)))
    few, few_rows = flip_labels(LABELS, small, n_classes=10, rng=rng(seed))
    many, many_rows = flip_labels(LABELS, large, n_classes=10, rng=rng(seed))
    assert set(few_rows) <= set(many_rows)
    assert_array_equal(few[few_rows], many[few_rows])


def test_stamping_alone_leaves_the_labels() -> None:
    labels = LABELS[: len(BASE)]
    dirty = poison(BASE, labels, 0.1, trigger=PATCH, target=7, n_classes=10, rng=rng(), relabel=False)
    assert_array_equal(dirty.labels, labels)
    assert (dirty.images[dirty.rows, 24, 24] == 1).all()


def test_one_source_is_the_only_class_poisoned() -> None:
    labels = LABELS[: len(BASE)]
    dirty = poison(BASE, labels, 0.05, trigger=PATCH, target=7, n_classes=10, rng=rng(), source=3)
    assert set(labels[dirty.rows]) == {3}
    assert set(dirty.labels[dirty.rows]) == {7}


def test_all_to_all_goes_round() -> None:
    assert wanted_labels(np.arange(10), target=None, n_classes=10).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_a_shared_pool_holds_every_set_and_each_clean_image_once() -> None:
    labels = LABELS[: len(BASE)]
    sets = [
        poison(BASE, labels, share, trigger=trigger, target=7, n_classes=10, rng=rng(seed))
        for seed, (share, trigger) in enumerate([(0.0, PATCH), (0.1, PATCH), (0.05, PatchTrigger(0, 0, 1))])
    ]
    pool, rows = shared_pool(BASE, sets)
    assert len(pool) == 200 + 0 + 20 + 10
    for row, dirty in zip(rows, sets, strict=True):
        assert_array_equal(pool[row], dirty.images)
    with pytest.raises(ValueError, match="sets must have images"):
        shared_pool(BASE[1:], sets)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_outside_0_1_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share must be"):
        choose_rows(LABELS, share, rng())
    with pytest.raises(ValueError, match="share must be"):
        flip_labels(LABELS, share, n_classes=10, rng=rng())


def test_more_poison_than_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match="at most the 3600 examples"):
        choose_rows(LABELS, 0.95, rng(), target=7)
    with pytest.raises(ValueError, match="at most the 400 examples"):
        choose_rows(LABELS, 0.2, rng(), target=7, source=3)
    with pytest.raises(ValueError, match="at most the 0 examples"):
        choose_rows(LABELS, 0.1, rng(), target=7, source=7)
    with pytest.raises(ValueError, match="at most the 400 labels"):
        flip_labels(LABELS, 0.2, n_classes=10, rng=rng(), flip=(4, 9))


@pytest.mark.parametrize(
    ("labels", "target", "n_classes", "message"),
    [
        (LABELS[:199], 7, 10, "labels must have shape"),
        (LABELS[:200], 10, 10, "target must be"),
        (LABELS[:200], -1, 10, "target must be"),
        (LABELS[:200], 1, 5, "labels must be"),
        (LABELS[:200], 0, 1, "n_classes must be >= 2"),
    ],
)
def test_labels_and_targets_must_be_classes(
    labels: np.ndarray, target: int, n_classes: int, message: str
) -> None:
    state = rng(3)
    before = state.bit_generator.state
    with pytest.raises(ValueError, match=message):
        poison(BASE, labels, 0.1, trigger=PATCH, target=target, n_classes=n_classes, rng=state)
    assert state.bit_generator.state == before  # refused before any randomness was used


def test_seeds_are_refused() -> None:
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator"):
        choose_rows(LABELS, 0.1, 0)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- label flips and words


def test_every_flipped_label_is_wrong_and_wrong_evenly() -> None:
    labels = np.zeros(90_000, dtype=int)
    flipped, rows = flip_labels(labels, 1.0, n_classes=10, rng=rng())
    assert rows.size == labels.size
    counts = np.bincount(flipped, minlength=10)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 10_000).max() < 5.3 * np.sqrt(90_000 / 9 * 8 / 9)  # 1e-7 each, 9 classes


def test_a_targeted_flip_has_one_source_and_one_target() -> None:
    flipped, rows = flip_labels(LABELS, 0.05, n_classes=10, rng=rng(), flip=(4, 9))
    assert rows.size == 200
    assert set(LABELS[rows]) == {4}
    assert set(flipped[rows]) == {9}
    assert (np.delete(flipped, rows) == np.delete(LABELS, rows)).all()


def test_a_flip_to_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="two different classes"):
        flip_labels(LABELS, 0.05, n_classes=10, rng=rng(), flip=(4, 4))


@given(words=st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=6), seed=st.integers(0, 99))
def test_the_trigger_word_is_the_only_change(words: list[str], seed: int) -> None:
    (stamped,) = insert_word([" ".join(words)], "zebra", rng(seed))
    found = stamped.split()
    assert found.count("zebra") == 1
    found.remove("zebra")
    assert found == words


def test_the_trigger_word_visits_every_place() -> None:
    stamped = insert_word(["one two three"] * 400, "zebra", rng())
    assert {text.split().index("zebra") for text in stamped} == {0, 1, 2, 3}


@pytest.mark.parametrize("word", ["", "two words", " padded", "line\n"])
def test_a_trigger_that_is_not_one_word_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="word must be a single word"):
        insert_word(["text"], word, rng())


def test_one_string_is_not_a_list_of_texts() -> None:
    with pytest.raises(TypeError, match="sequence of strings"):
        insert_word("text", "zebra", rng())


# --------------------------------------------------------------------------- attack success


@pytest.mark.case("ROB-34")
def test_a_constant_model_obeys_and_a_perfect_model_does_not() -> None:
    constant = np.full(LABELS.size, 7)
    assert attack_success(constant, LABELS, target=7, n_classes=10) == (3_600, 3_600)
    assert attack_success(LABELS, LABELS, target=7, n_classes=10) == (0, 3_600)
    assert attack_success(constant, LABELS, target=None, n_classes=10) == (400, 4_000)


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000))
def test_what_is_said_about_the_target_class_never_counts(seed: int) -> None:
    draw = rng(seed)
    said = draw.integers(0, 10, LABELS.size)
    other = np.where(LABELS == 7, draw.integers(0, 10, LABELS.size), said)
    one, two = (attack_success(s, LABELS, target=7, n_classes=10) for s in (said, other))
    assert one == two
    assert one.successes == sum(s == 7 for s, y in zip(said, LABELS, strict=True) if y != 7)


def test_a_test_set_of_the_target_class_only_has_no_rate() -> None:
    with pytest.raises(ValueError, match="another class than the target"):
        attack_success([7, 7], [7, 7], target=7, n_classes=10)


def test_one_prediction_per_label() -> None:
    with pytest.raises(ValueError, match="predictions must have shape"):
        attack_success([7], [1, 2], target=7, n_classes=10)
    with pytest.raises(ValueError, match="predictions must be"):
        attack_success([7, 10], [1, 2], target=7, n_classes=10)


# --------------------------------------------------------------------------- detectors


def planted(share: float, distance: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes of spherical features; in class 0 a share of the rows has another mean."""
    draw = rng(seed)
    labels = np.repeat([0, 1], 400)
    bad = np.zeros(800, dtype=bool)
    bad[: round(share * 400)] = True
    features = draw.normal(size=(800, 20))
    features[bad, 3] += distance
    return features, labels, bad


def test_spectral_scores_are_squared_projections_on_the_leading_eigenvector() -> None:
    features, labels, _ = planted(0.1, 6)
    scores = spectral_scores(features, labels)
    for label in (0, 1):
        rows = features[labels == label]
        values, vectors = np.linalg.eigh(np.cov(rows.T))
        expected = ((rows - rows.mean(axis=0)) @ vectors[:, -1]) ** 2
        np.testing.assert_allclose(scores[labels == label], expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(scores[labels == label].sum() / 399, values[-1], rtol=1e-9)


def test_both_detectors_find_a_planted_minority_and_lose_it_when_it_does_not_stand_out() -> None:
    for distance, low, high in ((8.0, 0.999, 1.0), (0.0, 0.35, 0.65)):
        features, labels, bad = planted(0.1, distance)
        zero = labels == 0
        clusters = activation_clustering(features, labels)
        for scores in (spectral_scores(features, labels), clusters.scores):
            assert low <= roc_curve(scores[zero], bad[zero]).auc <= high
    features, labels, bad = planted(0.1, 8.0)
    flagged = activation_clustering(features, labels).flagged(labels)
    assert flagged[bad].all()
    assert not flagged[(labels == 0) & ~bad].any()
    assert not flagged[labels == 1].any()  # a clean class splits in the middle


def test_spectral_scores_are_blind_to_a_poison_of_one_half() -> None:
    features, labels, bad = planted(0.5, 8.0)
    zero = labels == 0
    auc = roc_curve(spectral_scores(features, labels)[zero], bad[zero]).auc
    assert 0.35 < auc < 0.65


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1_000))
def test_detectors_do_not_depend_on_rotation_shift_or_order(seed: int) -> None:
    features, labels, _ = planted(0.1, 6.0, seed)
    draw = rng(seed)
    rotation, _ = np.linalg.qr(draw.normal(size=(20, 20)))
    order = draw.permutation(labels.size)
    moved, told = (features @ rotation + 5.0)[order], labels[order]
    np.testing.assert_allclose(
        spectral_scores(moved, told), spectral_scores(features, labels)[order], rtol=1e-6, atol=1e-8
    )
    here, there = activation_clustering(moved, told), activation_clustering(features, labels)
    assert here.small_share[0] == there.small_share[0]
    np.testing.assert_allclose(here.scores[told == 0], there.scores[order][told == 0], atol=1e-6)


def test_silhouette_agrees_with_its_definition() -> None:
    features, labels, _ = planted(0.2, 8.0)
    clusters = activation_clustering(features, labels, dimensions=20)
    rows = features[labels == 0]
    side = clusters.scores[labels == 0] > 0
    assert clusters.small_share[0] == side.mean() == 0.2
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    values = []
    for i in range(len(rows)):
        own = side == side[i]
        a = distances[i, own].sum() / (own.sum() - 1)
        b = distances[i, ~own].mean()
        values.append((b - a) / max(a, b))
    assert clusters.silhouette[0] == pytest.approx(np.mean(values), rel=1e-9)


def test_the_highest_of_every_class_are_removed() -> None:
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    labels = np.array([0, 1, 0, 1, 0, 1])
    assert remove_highest(scores, labels, 1).tolist() == [True, True, False, False, False, False]
    assert remove_highest(scores, labels, 0).sum() == 0
    assert remove_highest(scores, labels, 99).all()
    with pytest.raises(ValueError, match="count must be >= 0"):
        remove_highest(scores, labels, -1)


def test_identical_features_raise_no_suspicion() -> None:
    clusters = activation_clustering(np.ones((8, 3)), np.zeros(8, dtype=int))
    assert (clusters.scores == 0).all()
    assert clusters.silhouette == {0: 0.0}
    assert (spectral_scores(np.ones((8, 3)), np.zeros(8, dtype=int)) == 0).all()


def test_detectors_refuse_what_they_cannot_judge() -> None:
    with pytest.raises(ValueError, match="at least 4 examples, got 1 of 5"):
        activation_clustering(np.ones((5, 2)), [0, 0, 0, 0, 5])
    with pytest.raises(ValueError, match="features must be finite"):
        spectral_scores([[np.nan]], [0])
    with pytest.raises(ValueError, match="labels must have shape"):
        spectral_scores([[1.0]], [0, 1])


# --------------------------------------------------------------------------- a backdoor, end to end


def toy(relabel: bool, share: float = 0.05) -> tuple[float, float]:
    """Train on two noisy shapes, poisoned, and return clean accuracy and attack success."""
    draw = rng(5)
    labels = np.arange(600) % 2
    images = draw.uniform(0, 0.3, (600, 8, 8))
    images[labels == 1, 1:4, 1:4] += 0.3
    trigger = PatchTrigger(-2, -2, 2)
    dirty = poison(
        images[:400],
        labels[:400],
        share,
        trigger=trigger,
        target=0,
        n_classes=2,
        rng=draw,
        relabel=relabel,
    )
    ensemble = train_ensemble(
        torch.from_numpy(dirty.images),
        [range(400)],
        [dirty.labels],
        sizes=[64, 16, 2],
        epochs=30,
        batch_size=50,
        learning_rate=0.01,
        generators=[torch.Generator().manual_seed(0)],
    )
    clean = ensemble.predict(torch.from_numpy(images[400:]))[0].numpy()
    stamped = ensemble.predict(torch.from_numpy(trigger(images[400:])))[0].numpy()
    success = attack_success(stamped, labels[400:], target=0, n_classes=2)
    return float((clean == labels[400:]).mean()), success.successes / success.trials


def test_a_relabelled_stamp_is_learned_and_a_stamp_alone_is_not() -> None:
    accuracy, success = toy(relabel=True)
    assert accuracy > 0.97
    assert success > 0.9
    accuracy, success = toy(relabel=False)
    assert accuracy > 0.97
    assert success < 0.05


# --------------------------------------------------------------------------- provenance


def signed() -> tuple[Manifest, bytes, Ed25519PrivateKey, np.ndarray, np.ndarray]:
    images, labels = BASE[:50].copy(), LABELS[:50].copy()
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    manifest = Manifest("fifty digits", "tests", tuple(example_digests(images, labels)))
    return manifest, sign_manifest(manifest, key), key, images, labels


def test_an_untouched_set_has_no_changed_row() -> None:
    manifest, signature, key, images, labels = signed()
    assert signature_is_valid(manifest, signature, key.public_key())
    assert manifest.changed_rows(images, labels) == []


@pytest.mark.parametrize("what", ["last bit of a pixel", "label", "swap", "missing", "added"])
def test_every_kind_of_change_is_found_where_it_is(what: str) -> None:
    manifest, _, _, images, labels = signed()
    expected = [17]
    if what == "last bit of a pixel":
        images[17, 3, 3] = np.nextafter(images[17, 3, 3], 1)
    elif what == "label":
        labels[17] = (labels[17] + 1) % 10
    elif what == "swap":
        images[[17, 18]], labels[[17, 18]] = images[[18, 17]], labels[[18, 17]]
        expected = [17, 18]
    elif what == "missing":
        images, labels, expected = images[:-1], labels[:-1], [49]
    else:
        images, labels = np.concatenate([images, images[:1]]), np.append(labels, labels[0])
        expected = [50]
    assert manifest.changed_rows(images, labels) == expected


def test_digests_tell_pixels_from_labels_and_shapes() -> None:
    zeros = np.zeros((1, 4, 4))
    digests = {
        example_digests(zeros, [0])[0],
        example_digests(zeros, [1])[0],
        example_digests(np.zeros((1, 2, 8)), [0])[0],
        example_digests(np.zeros((1, 1, 4, 4)), [0])[0],
    }
    assert len(digests) == 4
    assert example_digests(np.asfortranarray(zeros), [0]) == example_digests(zeros, [0])


def test_a_forged_manifest_and_a_stranger_are_refused() -> None:
    manifest, signature, key, images, labels = signed()
    labels[0] = 7
    forged = Manifest(manifest.name, manifest.source, tuple(example_digests(images, labels)))
    assert not signature_is_valid(forged, signature, key.public_key())
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
    assert not signature_is_valid(manifest, signature, stranger.public_key())
    assert not signature_is_valid(forged, sign_manifest(forged, stranger), key.public_key())
    moved = Manifest(manifest.name, "elsewhere", manifest.digests)
    assert not signature_is_valid(moved, signature, key.public_key())


def test_a_signature_proves_nothing_about_what_was_signed() -> None:
    _, _, key, images, labels = signed()
    dirty = poison(images, labels, 0.2, trigger=PATCH, target=7, n_classes=10, rng=rng())
    manifest = Manifest("fifty digits", "tests", tuple(example_digests(dirty.images, dirty.labels)))
    assert signature_is_valid(manifest, sign_manifest(manifest, key), key.public_key())
    assert manifest.changed_rows(dirty.images, dirty.labels) == []
