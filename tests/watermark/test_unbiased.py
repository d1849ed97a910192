"""Two marks without bias: exact on average over keys, silent where a context comes again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thousand_fingers.watermark import unbiased

P = np.array([0.5, 0.3, 0.15, 0.05])


@pytest.mark.case("MRK-18")
def test_contexts_that_come_again_are_those_of_transformers():
    fresh = unbiased.fresh_contexts([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6, 7], 4)
    assert fresh.tolist() == [True, True, True, True, True, False, False, True]


@pytest.mark.case("MRK-18")
def test_a_loop_is_counted_once_by_both_detectors():
    once = [1, 2, 3, 4, 5, 6]
    race = [unbiased.detect_race(once * n, 7, 20) for n in (2, 10)]
    assert race[0] == race[1]
    bits = [unbiased.tournament_score(once * n, [3, 5, 7]) for n in (2, 10)]
    assert bits[0] == bits[1]


@pytest.mark.case("MRK-18")
def test_a_writer_that_skips_known_contexts_does_not_run_in_a_circle():
    """With the secret draw at every place, the first context that comes again closes a loop for good."""
    key, width = 11, 1
    distribution = np.full(6, 1 / 6)

    def write(skip):
        source, tokens, seen = np.random.default_rng(0), [0], set()
        for _ in range(200):
            context = tuple(tokens[-width:])
            secret = unbiased.race_uniforms(key, context, 6)
            free = source.random(6)
            tokens.append(unbiased.race_winner(distribution, free if skip and context in seen else secret))
            seen.add(context)
        return tokens

    assert len(set(zip(write(False)[20:-1], write(False)[21:], strict=True))) <= 6  # one successor each
    assert len(set(zip(write(True)[20:-1], write(True)[21:], strict=True))) > 25  # of 36


def test_the_race_takes_each_token_as_often_as_the_model_would():
    wins = np.bincount(
        [unbiased.race_winner(P, unbiased.race_uniforms(key, [3, 4], 4)) for key in range(20_000)],
        minlength=4,
    )
    spread = np.sqrt(20_000 * P * (1 - P))
    assert (np.abs(wins - 20_000 * P) < 5 * spread).all()


def test_the_score_of_the_race_without_a_mark_is_a_gamma_variable():
    rng = np.random.default_rng(0)
    found = [unbiased.detect_race(rng.integers(0, 50, 44), key, 50) for key in range(400)]
    scores = np.array([f.score for f in found])
    assert {f.scored for f in found} == {40}
    assert abs(scores.mean() - 40) < 5 * math.sqrt(40 / 400)
    assert scores.var() == pytest.approx(40, rel=0.4)
    assert 0.4 < np.mean([f.p_value for f in found]) < 0.6


def test_the_race_is_found_again_and_by_its_own_key_only():
    rng, tokens = np.random.default_rng(0), [1, 2, 3, 4]
    for _ in range(60):
        p = rng.dirichlet(np.ones(50))
        tokens.append(unbiased.race_winner(p, unbiased.race_uniforms(9, tokens[-4:], 50)))
    assert unbiased.detect_race(tokens, 9, 50).p_value < 1e-8
    assert unbiased.detect_race(tokens, 8, 50).p_value > 1e-4


def test_the_hash_is_that_of_the_published_code():
    assert int(unbiased.accumulate_hash(1, [1, 2, 3])) == -5_733_243_364_983_220_134
    state = 1
    for value in (5, 2**40, 7):  # arithmetic modulo 2**64, with Python's integers
        state = ((state + value) * 6_364_136_223_846_793_005 + 1) % 2**64
    signed = state - 2**64 if state >= 2**63 else state
    assert int(unbiased.accumulate_hash(1, [5, 2**40, 7])) == signed


def test_one_match_is_settled_by_the_bit_or_by_a_coin():
    """Two draws, the one with the larger bit wins, ties by a fair coin: enumerated."""
    bits = np.array([1, 0, 1, 0])
    won = np.zeros(4)
    for i in range(4):
        for j in range(4):
            chance = P[i] * P[j]
            if bits[i] == bits[j]:
                won[i] += chance / 2
                won[j] += chance / 2
            else:
                won[i if bits[i] else j] += chance
    np.testing.assert_allclose(unbiased.tournament(P, [bits]), won, rtol=1e-12)


def test_the_tournament_changes_no_probability_on_average():
    rng = np.random.default_rng(0)
    found = np.mean([unbiased.tournament(P, rng.integers(0, 2, (30, 4))) for _ in range(4_000)], axis=0)
    np.testing.assert_allclose(found, P, atol=5 * 0.5 / math.sqrt(4_000))


@pytest.mark.parametrize("vocabulary", [2, 5, 40])
def test_the_expected_bit_of_one_layer_is_the_published_formula(vocabulary):
    """1/2 + (1 - 1/V) / 4 for a uniform model, two draws in a match."""
    p, rng = np.full(vocabulary, 1 / vocabulary), np.random.default_rng(0)
    found = []
    for _ in range(4_000):
        bits = rng.integers(0, 2, vocabulary)
        found.append((unbiased.tournament(p, [bits]) * bits).sum())
    assert np.mean(found) == pytest.approx(0.5 + 0.25 * (1 - 1 / vocabulary), abs=0.02)


@pytest.mark.case("MRK-17")
def test_marked_and_unmarked_texts_differ_and_only_one_scores_above_a_half():
    rng, keys = np.random.default_rng(0), list(range(100, 130))
    marked, unmarked = [1, 2, 3, 4], [1, 2, 3, 4]
    for _ in range(80):
        p = rng.dirichlet(np.ones(60))
        bits = unbiased.tournament_bits(keys, marked[-4:], np.arange(60))
        marked.append(int(rng.choice(60, p=unbiased.tournament(p, bits))))
        unmarked.append(int(rng.choice(60, p=p)))
    assert marked != unmarked
    mean, n = unbiased.tournament_score(unmarked, keys)
    assert abs(mean - 0.5) < 3 / (2 * math.sqrt(n))
    mean, n = unbiased.tournament_score(marked, keys)
    assert mean - 0.5 > 6 / (2 * math.sqrt(n))
    mean, n = unbiased.tournament_score(marked, [key + 1_000 for key in keys])
    assert abs(mean - 0.5) < 4 / (2 * math.sqrt(n))


@pytest.mark.case("MRK-17")
def test_tokens_of_another_tokenizer_are_refused():
    with pytest.raises(ValueError, match="tokens must be >= 0 and <= 19"):
        unbiased.detect_race([1, 25], 3, 20)


def test_bits_are_fair_and_differ_between_layers():
    bits = unbiased.tournament_bits(list(range(30)), [1, 2, 3, 4], np.arange(2_000))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / math.sqrt(bits.size)
    agree = (bits[:-1] == bits[1:]).mean(axis=1)
    assert (np.abs(agree - 0.5) < 5 * 0.5 / math.sqrt(2_000)).all()


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3, 4]])
def test_a_short_text_gets_an_answer(tokens):
    assert unbiased.detect_race(tokens, 3, 20).p_value == 1.0
    mean, n = unbiased.tournament_score(tokens, [3])
    assert math.isnan(mean)
    assert n == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: unbiased.fresh_contexts([1], 0), "width must be >= 1"),
        (lambda: unbiased.race_uniforms(-1, [1], 5), "key must be >= 0"),
        (lambda: unbiased.race_uniforms(1, [-1], 5), "context must be >= 0"),
        (lambda: unbiased.race_uniforms(1, [2**64], 5), "context must be"),
        (lambda: unbiased.race_winner([0.0, 0.0], [0.5, 0.5]), "probabilities must sum to 1"),
        (lambda: unbiased.detect_race([1, 2], -1, 9), "key must be >= 0"),
        (lambda: unbiased.detect_race([], 1, 0), "vocabulary must be >= 1"),
        (lambda: unbiased.tournament([3.0, 1.0], [[1, 0]]), "probabilities must sum to 1"),
        (lambda: unbiased.tournament_bits([], [1], [1]), "keys must hold at least one"),
        (lambda: unbiased.tournament_bits([2**64], [1], [1]), "keys must be"),
        (lambda: unbiased.tournament_score([1], [-3]), "keys must be >= 0"),
        (lambda: unbiased.accumulate_hash(1, [2**64]), "values must be"),
        (lambda: unbiased.race_winner([0.5, 0.5], [0.5]), "uniforms must have shape"),
        (lambda: unbiased.race_winner([0.5, 0.5], [0.0, 0.5]), "uniforms must be > 0"),
        (lambda: unbiased.tournament([0.5, 0.5], [[1, 2]]), "bits must be"),
        (lambda: unbiased.tournament([0.5, 0.5], [[1]]), "bits must have shape"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: unbiased.detect_race([1, 2], 1, 2.5),
        lambda: unbiased.accumulate_hash(1.7, [1]),
        lambda: unbiased.accumulate_hash(1, [1.7]),
        lambda: unbiased.race_uniforms(1.0, [1], 5),
    ],
)
def test_numbers_that_are_not_whole_are_refused(call):
    with pytest.raises(TypeError, match=r"must (be an integer|hold integers)"):
        call()
