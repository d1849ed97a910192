"""Green lists: the published scheme token for token, an exact detector, and what the theory promises."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from thousand_fingers.intervals import clopper_pearson
from thousand_fingers.language_model import Architecture, LanguageModel, generate
from thousand_fingers.watermark import text
from thousand_fingers.watermark.text import Mark, detect, green_list, is_green

V = 49_152


# ----------------------------------------------------------------------- lists

#: Whole permutations of 16 tokens after previous token 0, 1, 2, 3, 4, from the published code.
PERMUTATIONS = (
    [12, 10, 9, 6, 11, 8, 13, 5, 2, 14, 15, 0, 4, 3, 7, 1],
    [14, 11, 1, 7, 13, 5, 4, 9, 15, 6, 12, 0, 2, 3, 8, 10],
    [4, 8, 2, 3, 5, 13, 12, 15, 9, 7, 1, 11, 14, 0, 10, 6],
    [10, 3, 1, 14, 8, 5, 13, 11, 0, 12, 15, 6, 4, 7, 9, 2],
    [8, 4, 9, 12, 6, 2, 3, 0, 1, 14, 10, 7, 11, 5, 15, 13],
)


@pytest.mark.parametrize("previous", range(5))
@pytest.mark.parametrize("size", [1, 4, 8, 15])
def test_lists_of_sixteen_tokens_are_those_of_the_published_code(previous, size):
    mark = Mark(16, green_fraction=size / 16)
    expected = PERMUTATIONS[previous][:size]
    assert green_list(mark, previous).tolist() == expected
    assert np.flatnonzero(is_green(mark, [previous] * 16, range(16))).tolist() == sorted(expected)


@pytest.mark.parametrize(
    ("previous", "first", "digest"),
    [
        (0, [2732, 29836, 36535, 27990, 27215, 2912, 21205, 26130], "add41694a51c49c3"),
        (1, [1726, 21449, 34601, 19398, 43529, 11284, 13015, 20412], "f016baa5b5a1629f"),
        (2, None, "2f962a50bd001d75"),
        (100, None, "d60ce01e782a86e5"),
    ],
)
def test_lists_of_the_real_vocabulary_are_those_of_the_published_code(previous, first, digest):
    green = green_list(Mark(V), previous)
    assert green.size == 12_288
    assert first is None or green[:8].tolist() == first
    assert hashlib.sha256(green.astype(np.int64).tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_following_a_token_finds_what_the_permutation_holds_on_ten_thousand_pairs(fraction):
    rng = np.random.default_rng(0)
    previous = rng.choice(rng.integers(0, V, 250), 10_000)
    mark = Mark(V, green_fraction=fraction)
    tokens = rng.integers(0, V, 10_000)
    lists = {}
    for token in np.unique(previous).tolist():
        seed = (mark.key * token) % 2**64
        permutation = torch.randperm(V, generator=torch.Generator().manual_seed(seed)).numpy()
        lists[token] = set(permutation[: int(V * fraction)].tolist())
    expected = [
        token in lists[before] for before, token in zip(previous.tolist(), tokens.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(is_green(mark, previous, tokens), expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 300), st.floats(0.01, 0.99), st.integers(0, 2**63 - 1), st.data())
def test_following_a_token_finds_what_the_permutation_holds_for_every_size(vocabulary, fraction, half, data):
    size = int(vocabulary * fraction)
    if not 1 <= size < vocabulary:
        return
    mark = Mark(vocabulary, key=2 * half + 1, green_fraction=fraction)
    previous = data.draw(st.integers(0, vocabulary - 1))
    answers = is_green(mark, [previous] * vocabulary, range(vocabulary))
    assert np.flatnonzero(answers).tolist() == sorted(green_list(mark, previous).tolist())


def test_pairs_may_come_in_any_order():
    rng, mark = np.random.default_rng(1), Mark(500)
    previous, tokens = rng.integers(0, 500, (2, 300))
    singly = [is_green(mark, [a], [b])[0] for a, b in zip(previous, tokens, strict=True)]
    assert is_green(mark, previous, tokens).tolist() == singly


def test_lists_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    processor = transformers.WatermarkLogitsProcessor(
        V, "cpu", greenlist_ratio=0.25, bias=2.0, hashing_key=text.PUBLIC_KEY, seeding_scheme="lefthash"
    )
    for previous in (0, 1, 77, 40_000):
        theirs = processor._get_greenlist_ids(torch.tensor([previous]))
        assert theirs.tolist() == green_list(Mark(V), previous).tolist()


def test_only_the_low_half_of_the_key_counts_for_the_published_scheme_and_all_of_it_for_the_hash():
    for scheme, same in (("lefthash", True), ("hash", False)):
        one, other = (Mark(V, key=key, scheme=scheme) for key in (12_345, 12_345 + 2**32))
        assert np.array_equal(green_list(one, 7), green_list(other, 7)) == same


def test_after_token_zero_the_published_list_is_no_secret_and_that_of_the_hash_is():
    for scheme, same in (("lefthash", True), ("hash", False)):
        one, other = (Mark(V, key=key, scheme=scheme) for key in (12_345, 999))
        assert np.array_equal(green_list(one, 0), green_list(other, 0)) == same


def test_a_smaller_share_of_the_same_key_is_the_beginning_of_the_larger_one():
    small, large = (green_list(Mark(V, green_fraction=f), 9) for f in (0.25, 0.5))
    np.testing.assert_array_equal(small, large[: small.size])


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_a_hashed_list_has_the_size_that_chance_gives_it(fraction):
    sizes = [green_list(Mark(V, scheme="hash", green_fraction=fraction), t).size for t in range(20)]
    spread = math.sqrt(V * fraction * (1 - fraction))
    assert np.abs(np.array(sizes) - V * fraction).max() < 5 * spread
    assert np.std(sizes) == pytest.approx(spread, rel=0.8)  # binomial, not fixed


def test_splitmix_is_the_published_generator():
    # outputs of SplitMix64 seeded with 1234567; each state is the last one plus the golden ratio
    states = [(1_234_567 + i * 0x9E3779B97F4A7C15) % 2**64 for i in range(5)]
    expected = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
        4_593_380_528_125_082_431,
        16_408_922_859_458_223_821,
    ]
    assert text.splitmix64(np.array(states, dtype=np.uint64)).tolist() == expected


def test_a_list_of_a_vocabulary_one_larger_is_another_list():
    one, other = (set(green_list(Mark(size), 5).tolist()) for size in (V, V + 1))
    assert len(one & other) / len(one) == pytest.approx(0.25, abs=0.02)


# ----------------------------------------------------------------------- the shared object


@pytest.mark.case("MRK-1")
@pytest.mark.case("MRK-2")
@pytest.mark.parametrize(("declared", "actual"), [(50_265, 50_272), (32_000, 32_001), (50_272, 50_265)])
def test_a_vocabulary_that_is_not_that_of_the_logits_is_refused(declared, actual):
    adjust = text.marking(Mark(declared))
    with pytest.raises(ValueError, match=f"{actual} logits of the model, got a vocabulary of {declared}"):
        adjust(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, actual))


@pytest.mark.case("MRK-2")
def test_a_token_outside_the_vocabulary_is_refused_by_the_detector():
    with pytest.raises(ValueError, match="tokens must be >= 0 and <= 31999, got 32000"):
        detect([5, 32_000], Mark(32_000))


@pytest.mark.parametrize(
    "change",
    [
        {"vocabulary": 400},
        {"key": 3},
        {"green_fraction": 0.5},
        {"logit_bias": 1.0},
        {"logit_bias": math.inf},
        {"scheme": "hash"},
        {"placement": "after temperature"},
    ],
)
def test_a_detector_for_another_mark_is_refused_whatever_differs(change):
    written = Mark(300)
    reader = dataclasses.replace(written, **change)
    for known in (written, written.as_record()):
        with pytest.raises(ValueError, match="the text was written with") as error:
            detect([1, 2, 3], reader, written_with=known)
        assert "key" not in change or "15485863" not in str(error.value)
        detect([1, 2, 3], written, written_with=known)


@pytest.mark.case("MRK-7")
def test_lists_from_another_source_of_random_numbers_are_refused_by_name():
    stored = {**Mark(300).as_record(), "prf": "Philox on a graphics card"}
    with pytest.raises(ValueError, match="written with prf Philox"):
        detect([1, 2, 3], Mark(300), written_with=stored)


@pytest.mark.case("MRK-7")
def test_lists_do_not_depend_on_where_the_logits_live_or_on_the_default_device():
    mark = Mark(300)
    expected = green_list(mark, 9).tolist()
    with torch.device("meta"):
        assert green_list(mark, 9).tolist() == expected
    before = torch.get_rng_state()
    green_list(mark, 9)
    assert torch.equal(before, torch.get_rng_state())


def test_a_mark_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Mark(300).key = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary": 1}, "vocabulary must be >= 2"),
        ({"key": 0}, "key must be >= 1"),
        ({"key": 2**64}, "key must be"),
        ({"key": 2**31}, "key must be odd under 'lefthash'"),
        ({"green_fraction": 0.0}, "green_fraction must be"),
        ({"green_fraction": 1.0}, "green_fraction must be"),
        ({"green_fraction": 1e-4}, "must leave a green and a red token"),
        ({"green_fraction": math.nan}, "green_fraction must be"),
        ({"logit_bias": -1.0}, "logit_bias must be >= 0"),
        ({"scheme": "selfhash"}, "scheme must be one of"),
        ({"placement": "somewhere"}, "placement must be one of"),
    ],
)
def test_a_mark_that_marks_nothing_or_not_what_it_seems_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Mark(**{"vocabulary": 1000, **arguments})


@pytest.mark.parametrize("scheme", ["lefthash", "hash"])
@pytest.mark.parametrize("whole", [np.int64, np.uint64, np.int32])
def test_a_mark_made_of_numpy_numbers_is_the_mark_made_of_pythons(scheme, whole):
    ours = Mark(300, key=2**31 - 1, green_fraction=0.375, logit_bias=1.5, scheme=scheme)
    theirs = Mark(
        whole(300),
        key=whole(2**31 - 1),
        green_fraction=np.float64(0.375),
        logit_bias=np.float32(1.5),
        scheme=scheme,
    )
    assert theirs == ours
    assert hash(theirs) == hash(ours)
    kinds = {name: type(value) for name, value in dataclasses.asdict(theirs).items()}
    assert kinds == {name: type(value) for name, value in dataclasses.asdict(ours).items()}
    assert green_list(theirs, whole(299)).tolist() == green_list(ours, 299).tolist()
    tokens = np.arange(300)
    np.testing.assert_array_equal(
        is_green(theirs, np.full(300, 7), tokens), is_green(ours, np.full(300, 7), tokens)
    )


@pytest.mark.parametrize("previous", [np.int64(299), np.uint32(299)])
def test_the_largest_key_meets_a_numpy_token_without_overflow(previous):
    mark = Mark(300, key=np.uint64(2**64 - 1))
    assert green_list(mark, previous).tolist() == green_list(Mark(300, key=2**32 - 1), 299).tolist()


@pytest.mark.parametrize("bias", [np.float64(2.0), 2, np.float32(0.0), math.inf])
@pytest.mark.parametrize("key", [np.int64(5), 2**64 - 1])
def test_what_is_stored_beside_a_text_comes_back_from_json(bias, key):
    mark = Mark(np.int64(300), key=key, green_fraction=np.float64(0.25), logit_bias=bias)
    stored = json.loads(json.dumps(mark.as_record(), allow_nan=False))
    assert stored == mark.as_record()
    detect([1, 2, 3], mark, written_with=stored)
    with pytest.raises(ValueError, match="written with logit_bias"):
        detect([1, 2, 3], dataclasses.replace(mark, logit_bias=7.0), written_with=stored)


@pytest.mark.parametrize("key", [np.float64(5.0), 5.0, True, "5"])
def test_a_key_that_is_no_integer_is_refused(key):
    with pytest.raises(TypeError, match="key must be an integer"):
        Mark(300, key=key)


def test_an_even_key_would_give_the_same_list_after_many_tokens():
    seeds = {2**31 * token & 0xFFFF_FFFF for token in range(V)}
    assert len(seeds) == 2
    assert len({text.PUBLIC_KEY * token & 0xFFFF_FFFF for token in range(V)}) == V


@pytest.mark.parametrize(
    ("vocabulary", "fraction", "size"), [(100, 0.29, 28), (100, 0.57, 56), (50_257, 0.25, 12_564)]
)
def test_the_detector_reckons_with_the_share_that_is_really_green(vocabulary, fraction, size):
    mark = Mark(vocabulary, green_fraction=fraction)
    assert mark.green_size == size
    assert mark.realised_fraction == size / vocabulary
    assert detect([1, 2], mark).fraction == size / vocabulary


# ----------------------------------------------------------------------- writing


def tiny_model(vocabulary=300, seed=0):
    sizes = Architecture(vocabulary=vocabulary, width=24, layers=1, heads=2, kv_heads=1, hidden=64)
    return LanguageModel(sizes, generator=torch.Generator().manual_seed(seed))


@pytest.mark.case("MRK-4")
@pytest.mark.parametrize("scheme", ["lefthash", "hash"])
def test_rows_without_a_token_to_start_from_are_left_as_they_are(scheme):
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    empty = torch.zeros(2, 0, dtype=torch.int64)
    assert torch.equal(text.marking(Mark(50, scheme=scheme))(empty, logits), logits)


@pytest.mark.case("MRK-4")
def test_the_first_token_of_a_text_is_not_counted_whatever_the_prompt_was():
    mark = Mark(300)
    found = detect([5, 6, 7], mark)
    assert found.places.tolist() == [1, 2]
    assert found.green.tolist() == is_green(mark, [5, 6], [6, 7]).tolist()


def test_marking_raises_exactly_the_green_logits_and_leaves_what_it_was_given():
    tokens = torch.tensor([[3, 7], [9, 11]])
    logits = torch.randn(2, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept, mark = logits.clone(), Mark(100, logit_bias=1.5)
    raised = text.marking(mark)(tokens, logits) - logits
    assert torch.equal(logits, kept)
    for row, previous in zip(raised, (7, 11), strict=True):
        expected = torch.zeros(100, dtype=torch.float64)
        expected[green_list(mark, previous)] = 1.5
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-12)


def test_the_hard_mark_writes_green_tokens_only():
    mark = Mark(300, logit_bias=math.inf)
    new = generate(tiny_model(), [[5], [6]], max_new_tokens=60, adjust=text.marking(mark))
    for row in new:
        assert detect(row, mark, repeats=True).share == 1.0


@pytest.mark.case("MRK-9")
@pytest.mark.parametrize(
    ("placement", "temperature", "acts_like"),
    [
        ("before temperature", 1.0, 2.0),
        ("after temperature", 1.0, 2.0),
        ("before temperature", 0.5, 4.0),
        ("after temperature", 0.5, 2.0),
    ],
)
def test_a_bias_before_the_temperature_is_divided_by_it(placement, temperature, acts_like):
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    adjust = text.marking(Mark(100, placement=placement), temperature=temperature)
    difference = (adjust(torch.tensor([[7]]), logits) - logits) / temperature
    assert {round(d, 9) for d in difference[0].tolist()} == {0.0, acts_like}


@pytest.mark.case("MRK-11")
def test_writing_returns_the_new_tokens_and_a_prompt_dilutes_the_evidence():
    model, prompt = tiny_model(), [11, 250, 3, 77, 120, 9, 14, 200, 31, 8] * 3
    marks = [Mark(300, logit_bias=5.0)] * 6
    prompts = [prompt[i:] for i in range(6)]  # of different lengths
    written = text.write_marked(
        model, prompts, marks, new_tokens=80, temperature=1.0, generator=torch.Generator().manual_seed(0)
    )
    assert written.tokens.shape == (6, 80)
    alone = [detect(row, marks[0]).z for row in written.tokens]
    both = [detect([*p, *row.tolist()], marks[0]).z for p, row in zip(prompts, written.tokens, strict=True)]
    assert np.mean(both) < np.mean(alone)
    assert min(alone) > 4


def test_what_is_kept_beside_a_text_is_what_the_model_thought():
    model, prompts = tiny_model(), [[5, 6, 7, 8], [9, 10]]
    marks = [Mark(300, logit_bias=3.0), Mark(300, green_fraction=0.5, logit_bias=1.0)]
    written = text.write_marked(
        model,
        prompts,
        marks,
        new_tokens=12,
        temperature=0.8,
        generator=torch.Generator().manual_seed(0),
        banned=[0, 1],
    )
    assert not np.isin(written.tokens, [0, 1]).any()
    for prompt, mark, row, entropy, spike, told in zip(
        prompts,
        marks,
        written.tokens.tolist(),
        written.entropy,
        written.spike_entropy,
        written.log_probability,
        strict=True,
    ):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + row]))[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(1)[torch.arange(12), row].numpy()
        np.testing.assert_allclose(told, expected, rtol=1e-9)
        logits[:, [0, 1]] = -math.inf
        odds = (logits / 0.8).softmax(1).numpy()
        np.testing.assert_allclose(entropy, stats.entropy(odds, axis=1), rtol=1e-9)
        np.testing.assert_allclose(spike, [text.spike_entropy(p, mark.modulus) for p in odds], rtol=1e-9)
    np.testing.assert_allclose(written.perplexity, np.exp(-written.log_probability.mean(1)))


def test_writing_refuses_marks_that_do_not_match_the_prompts():
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match="one mark for each of 2 prompts, got 1"):
        text.write_marked(
            tiny_model(), [[1], [2]], [Mark(300)], new_tokens=2, temperature=1.0, generator=generator
        )
    with pytest.raises(ValueError, match="one row for each of 1 marks, got 2 and 2"):
        text.marking([Mark(300)])(torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 300))
    with pytest.raises(ValueError, match="temperature must be > 0"):
        text.write_marked(
            tiny_model(), [[1]], [Mark(300)], new_tokens=2, temperature=0.0, generator=generator
        )


def write(banned, logit_bias=2.0):
    return text.write_marked(
        tiny_model(),
        [[5], [6]],
        [Mark(300, logit_bias=logit_bias)] * 2,
        new_tokens=6,
        temperature=1.0,
        generator=torch.Generator().manual_seed(0),
        banned=banned,
    )


@pytest.mark.parametrize("banned", [[], (), np.array([], dtype=np.int64), [299], np.arange(299), range(299)])
def test_what_is_banned_is_never_written(banned):
    assert not np.isin(write(banned).tokens, np.asarray(banned)).any()


@pytest.mark.parametrize(
    ("banned", "error", "message"),
    [
        ([300], ValueError, "banned must be >= 0 and <= 299, got 300"),
        ([-1], ValueError, "banned must be >= 0 and <= 299, got -1"),
        ([4, 7, 4], ValueError, "banned must hold each token once, got 4 more than once"),
        (range(300), ValueError, "banned must leave a token to write, got all 300"),
        ([1.0], TypeError, "banned must hold integers"),
        ([True], TypeError, "banned must hold integers"),
        ("eos", TypeError, "banned must hold integers"),
        (7, ValueError, "banned must have shape"),
        ([[1, 2]], ValueError, "banned must have shape"),
    ],
)
def test_tokens_that_cannot_be_banned_are_refused(banned, error, message):
    with pytest.raises(error, match=message):
        write(banned)


def test_a_hard_mark_with_all_its_green_tokens_banned_is_refused():
    with pytest.raises(
        ValueError, match="leave a green token to a hard mark, got none on the list after token 5"
    ):
        write(green_list(Mark(300), 5), logit_bias=math.inf)
    write(green_list(Mark(300), 5))  # a soft one writes what is left


# ----------------------------------------------------------------------- detecting


@pytest.mark.case("MRK-14")
@pytest.mark.case("MRK-15")
@pytest.mark.parametrize("scheme", ["lefthash", "hash"])
@pytest.mark.parametrize("tokens", [[], [5], np.array([], dtype=np.int64), np.array([5])])
def test_a_text_that_is_too_short_gets_an_answer_and_no_verdict(scheme, tokens):
    found = detect(tokens, Mark(300, scheme=scheme))
    assert (found.scored, found.hits, found.p_value, found.p_normal) == (0, 0, 1.0, 1.0)
    assert math.isnan(found.z)
    assert math.isnan(found.share)
    assert found.reason == "too short"
    assert not found.is_marked()
    assert not found.is_marked(-100.0)


@pytest.mark.case("MRK-15")
@pytest.mark.parametrize("length", [2, 3, 10, 100])
def test_a_score_is_always_a_number(length):
    found = detect(np.random.default_rng(0).integers(0, 300, length), Mark(300))
    assert all(isinstance(v, float) and math.isfinite(v) for v in (found.z, found.p_value, found.share))
    assert found.reason == ""


@pytest.mark.parametrize("tokens", ["abc", [0.5, 1.0], [[1, 2]], [-1, 2], [1, 300], None])
def test_what_is_no_text_is_refused(tokens):
    with pytest.raises((TypeError, ValueError), match="tokens must"):
        detect(tokens, Mark(300))


def counted(scored, hits, fraction):
    return text.Detection(np.arange(1, scored + 1), np.arange(scored) < hits, fraction)


@pytest.mark.parametrize(
    ("scored", "hits", "fraction", "z", "normal", "exact"),
    [
        (6, 6, 0.25, 4.242641, 1.1045e-05, 2.4414e-04),
        (25, 18, 0.25, 5.427093, 2.8640e-08, 1.0608e-06),
        (50, 28, 0.25, None, 2.0714e-07, 2.9168e-06),
        (200, 75, 0.25, 4.082483, 2.2279e-05, 6.1527e-05),
        (200, 129, 0.5, 4.101219, 2.0549e-05, 2.4865e-05),
        (16, 16, 0.5, 4.0, 3.1671e-05, 1.5259e-05),
        (199, 41, 0.25, -1.4324546408726015, None, None),
        (50, 15, 0.25, 0.816497, None, None),
        (149, 44, 0.25, 1.277056, None, None),
    ],
)
def test_scores_and_probabilities_of_known_counts(scored, hits, fraction, z, normal, exact):
    found = counted(scored, hits, fraction)
    assert z is None or found.z == pytest.approx(z, rel=1e-6)
    assert normal is None or found.p_normal == pytest.approx(normal, rel=1e-4)
    assert exact is None or found.p_value == pytest.approx(exact, rel=1e-4)


def test_a_score_at_the_threshold_is_not_above_it():
    assert counted(16, 16, 0.5).z == 4.0
    assert not counted(16, 16, 0.5).is_marked(4.0)
    assert counted(16, 16, 0.5).is_marked(3.999)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.fractions("1/10", "9/10"))
def test_the_exact_probability_is_the_sum_of_the_binomial(scored, hits, fraction):
    hits = min(hits, scored)
    tail = sum(
        math.comb(scored, k) * fraction**k * (1 - fraction) ** (scored - k) for k in range(hits, scored + 1)
    )
    assert counted(scored, hits, float(fraction)).p_value == pytest.approx(float(tail), rel=1e-9)


def test_a_pair_that_occurs_again_is_counted_once():
    mark, tokens = Mark(300), [1, 2, 3, 1, 2, 3, 1, 2]
    once, again = detect(tokens, mark), detect(tokens, mark, repeats=True)
    assert once.places.tolist() == [1, 2, 3]
    assert again.scored == 7
    assert again.hits == is_green(mark, tokens[:-1], tokens[1:]).sum()


def test_the_beginning_of_a_text_is_what_upto_counts():
    mark, tokens = Mark(300), np.random.default_rng(0).integers(0, 12, 80)
    whole = detect(tokens, mark)
    for length in (0, 1, 2, 30, 80):
        part = detect(tokens[:length], mark)
        assert (whole.upto(length).scored, whole.upto(length).hits) == (part.scored, part.hits)


@pytest.mark.case("MRK-6")
def test_a_list_of_like_items_is_a_false_alarm_with_repeats_and_none_without():
    # the "- item: value" list of the case: five different pairs, two hundred times
    tokens = [5, 6, 7, 8, 9] * 40
    alarms = {True: 0, False: 0}
    for key in range(1, 1001, 2):
        for repeats in alarms:
            alarms[repeats] += detect(tokens, Mark(300, key=key, scheme="hash"), repeats=repeats).is_marked()
    assert clopper_pearson(alarms[True], 500).low > 0.25  # 0.38 of the keys in the case
    assert alarms[False] == 0


@pytest.mark.case("MRK-6")
@pytest.mark.parametrize("scheme", ["lefthash", "hash"])
def test_without_repeats_unmarked_text_scores_like_chance(scheme):
    rng = np.random.default_rng(0)
    tokens, keys = rng.integers(0, 300, 200), 2 * rng.integers(0, 2**31, 1_000) + 1
    z = np.array([detect(tokens, Mark(300, key=int(key), scheme=scheme)).z for key in keys])
    assert abs(z.mean()) < 5 / math.sqrt(1_000)
    assert z.std() == pytest.approx(1.0, abs=0.12)
    assert (z > 4).sum() <= 1
    p = np.array([detect(tokens, Mark(300, key=int(key), scheme=scheme)).p_value for key in keys[:300]])
    assert (p < 0.01).mean() < 0.04  # exact: at most 0.01 on average


@pytest.mark.case("MRK-12")
def test_a_rate_at_a_threshold_fixed_beforehand_comes_with_its_interval():
    mark, model = Mark(300, logit_bias=4.0), tiny_model()
    marks, prompts = [mark] * 20, [[5 + i] for i in range(20)]
    written = text.write_marked(
        model, prompts, marks, new_tokens=60, temperature=1.0, generator=torch.Generator().manual_seed(0)
    )
    found = sum(detect(row, mark).is_marked(4.0) for row in written.tokens)
    low, high = clopper_pearson(found, 20)
    assert low < found / 20 <= high
    assert high == 1.0 or found < 20  # twenty of twenty is not "100%"
    assert low < 0.9


@pytest.mark.case("MRK-13")
def test_texts_are_compared_at_equal_length():
    mark, rng = Mark(300), np.random.default_rng(0)
    long, short = rng.integers(0, 300, 200), rng.integers(0, 300, 90)
    assert detect(long, mark).upto(90).scored <= 89
    assert detect(short, mark).upto(90).scored <= 89


@pytest.mark.case("MRK-20")
def test_detecting_needs_no_model_and_the_spike_entropy_does():
    import inspect

    assert "model" not in inspect.signature(detect).parameters
    assert "model" in inspect.signature(text.write_marked).parameters
    assert "before the mark" in (text.MarkedTexts.__doc__ or "")


@pytest.mark.parametrize("scheme", ["lefthash", "hash"])
def test_another_key_sees_nothing(scheme):
    mark = Mark(300, key=12_345, logit_bias=5.0, scheme=scheme)
    written = text.write_marked(
        tiny_model(),
        [[5 + i] for i in range(4)],
        [mark] * 4,
        new_tokens=120,
        temperature=1.0,
        generator=torch.Generator().manual_seed(0),
    )
    other = dataclasses.replace(mark, key=54_321)
    assert min(detect(row, mark).z for row in written.tokens) > 5
    assert max(abs(detect(row, other).z) for row in written.tokens) < 4.5


@pytest.mark.case("MRK-5")
@pytest.mark.parametrize(("scheme", "allowed"), [("lefthash", 0.15), ("hash", 0.02)])
def test_a_thousand_tokens_are_detected_in_a_fraction_of_a_second(scheme, allowed):
    rng, mark = np.random.default_rng(0), Mark(V, scheme=scheme)
    tokens = rng.choice(rng.integers(0, V, 400), 1_000)
    detect(tokens, mark)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        detect(tokens, mark)
        seconds.append(time.process_time() - start)
    assert min(seconds) < allowed


# ----------------------------------------------------------------------- theory


@pytest.mark.parametrize(
    ("fraction", "bias", "modulus", "gain", "certain", "even"),
    [
        (0.25, 1.0, 0.901468, 0.475367, 0.525910, 0.689306),
        (0.25, 2.0, 1.844938, 0.711235, 0.351501, 0.520164),
        (0.25, 4.0, 2.791660, 0.947915, 0.263737, 0.417392),
        (0.5, 1.0, 0.462117, 0.731059, 0.683940, 0.812309),
        (0.5, 2.0, 0.761594, 0.880797, 0.567668, 0.724219),
        (0.5, 4.0, 0.964028, 0.982014, 0.509158, 0.674758),
    ],
)
def test_constants_of_the_spike_entropy(fraction, bias, modulus, gain, certain, even):
    mark = Mark(V, green_fraction=fraction, logit_bias=bias)
    assert mark.modulus == pytest.approx(modulus, abs=1e-6)
    assert mark.gain == pytest.approx(gain, abs=1e-6)
    assert text.spike_entropy([1.0, 0.0], mark.modulus) == pytest.approx(certain, abs=1e-6)
    assert text.spike_entropy([0.5, 0.5], mark.modulus) == pytest.approx(even, abs=1e-6)
    assert mark.gain * text.spike_entropy([1.0], mark.modulus) == pytest.approx(fraction)  # no choice: chance


@pytest.mark.parametrize("bias", [0.0, 1e-9, 800.0, math.inf])
def test_the_constants_stand_at_the_ends(bias):
    mark = Mark(V, logit_bias=bias)
    assert mark.modulus == pytest.approx({0.0: 0.0, 1e-9: 0.75e-9}.get(bias, 3.0))
    assert mark.gain == pytest.approx({0.0: 0.25, 1e-9: 0.25}.get(bias, 1.0))
    assert mark.hard == math.isinf(bias)


def test_the_example_of_the_paper():
    bound = text.green_bound(Mark(50_272, green_fraction=0.5), 0.807, 200)
    assert round(bound.mean, 1) == 142.2
    assert round(bound.std, 2) == 6.41
    assert round(text.green_needed(0.5, 200, 4.0), 2) == 128.28


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=4, max_size=7), st.sampled_from([0.5, 1.0, 2.0, 4.0]))
def test_the_bound_holds_for_one_token_over_all_lists(weights, bias):
    """Lemma behind the theorem, by enumeration: E[P(green)] >= gain * spike entropy."""
    p = np.array(weights) / sum(weights)
    size = p.size // 2
    mark = Mark(p.size, green_fraction=(size + 0.01) / p.size, logit_bias=bias)
    lists = list(itertools.combinations(range(p.size), size))
    green = [np.isin(np.arange(p.size), chosen) for chosen in lists]
    share = np.mean([text.marked_probabilities(p, g, bias)[g].sum() for g in green])
    assert share >= mark.gain * text.spike_entropy(p, mark.modulus) - 1e-12


def green_share_of_a_coin(bias):
    """Share of green tokens if two tokens of eight are equally probable and two are green, over all lists."""
    p = np.array([0.5, 0.5, 0, 0, 0, 0, 0, 0])
    green = [np.isin(np.arange(8), chosen) for chosen in itertools.combinations(range(8), 2)]
    return np.mean([text.marked_probabilities(p, g, bias)[g].sum() for g in green])


def test_the_variance_may_be_larger_than_that_of_the_bound_on_the_share():
    """T q (1 - q) is no bound for q below a half: the true share is nearer to a half and varies more."""
    mark = Mark(8, logit_bias=2.0)
    share, bound = (
        green_share_of_a_coin(2.0),
        text.green_bound(mark, text.spike_entropy([0.5] * 2, mark.modulus), 1),
    )
    assert bound.mean < share < 0.5
    assert bound.mean * (1 - bound.mean) < share * (1 - share) <= bound.std**2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.001, 1.0), min_size=4, max_size=7),
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0]),
    st.sampled_from([0.25, 0.5, 0.75]),
)
def test_the_spread_of_one_token_is_at_most_what_is_promised(weights, bias, fraction):
    p = np.array(weights) ** 3
    p /= p.sum()
    size = max(1, int(p.size * fraction))
    mark = Mark(p.size, green_fraction=(size + 0.01) / p.size, logit_bias=bias)
    green = [np.isin(np.arange(p.size), chosen) for chosen in itertools.combinations(range(p.size), size)]
    share = np.mean([text.marked_probabilities(p, g, bias)[g].sum() for g in green])
    bound = text.green_bound(mark, min(text.spike_entropy(p, mark.modulus), 1.0), 1)
    assert share <= mark.gain + 1e-12
    assert share * (1 - share) <= bound.std**2 + 1e-12


@pytest.mark.parametrize("bias", [0.5, 2.0, 4.0])
def test_where_a_coin_decides_half_is_the_best_share(bias):
    """The chapter says so too: counted over all lists of k of 40 tokens, two of which are equally probable."""
    n, k = 40, np.arange(1, 40)
    one = text.marked_probabilities([0.5, 0.5], [True, False], bias)[0]
    share = 2 * k * (n - k) / (n * (n - 1)) * one + k * (k - 1) / (n * (n - 1))
    z = (share - k / n) / np.sqrt(k / n * (1 - k / n))
    assert k[z.argmax()] == n // 2


@pytest.mark.parametrize("bias", [0.5, 1.0, 2.0, 4.0])
def test_where_all_is_spread_thinly_one_over_one_plus_alpha_is_the_best_share(bias):
    """The chapter says so: at spike entropy 1 z is highest there, and how high it is."""
    shares = np.linspace(0.001, 0.999, 999)
    bounds = [text.green_bound(Mark(1_000, green_fraction=g, logit_bias=bias), 1.0, 100).mean for g in shares]
    z = (np.array(bounds) - 100 * shares) / np.sqrt(100 * shares * (1 - shares))
    assert shares[z.argmax()] == pytest.approx(1 / (1 + math.exp(bias)), abs=0.002)
    assert z.max() == pytest.approx(10 * math.sinh(bias / 2), rel=1e-4)


def test_a_very_strong_push_takes_everything_that_is_green():
    for bias in (100.0, 800.0):
        marked = text.marked_probabilities([0.7, 0.2, 0.1], [False, True, True], bias)
        np.testing.assert_allclose(marked, [0, 2 / 3, 1 / 3], atol=1e-40)
        np.testing.assert_allclose(text.marked_probabilities([0.7, 0.3], [False, False], bias), [0.7, 0.3])


def test_a_green_list_tilts_the_distribution_even_on_average():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    lists = [np.isin(np.arange(4), chosen) for chosen in itertools.combinations(range(4), 2)]
    mean = np.mean([text.marked_probabilities(p, green, 2.0) for green in lists], axis=0)
    np.testing.assert_allclose(mean, [0.440506, 0.312690, 0.181972, 0.064832], atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: text.spike_entropy([0.5, 0.6], 1.0), "probabilities must sum to 1"),
        (lambda: text.spike_entropy([1.5, -0.5], 1.0), "probabilities must be >= 0"),
        (lambda: text.spike_entropy([1.0], -1.0), "modulus must be >= 0"),
        (lambda: text.green_bound(Mark(300), 0.0, 10), "mean_spike_entropy must be"),
        (lambda: text.green_bound(Mark(300), 1.1, 10), "mean_spike_entropy must be"),
        (lambda: text.green_bound(Mark(300), 0.5, -1), "length must be >= 0"),
        (lambda: text.green_needed(1.0, 10), "fraction must be"),
        (lambda: text.marked_probabilities([1.0], [True], math.inf), "logit_bias must be"),
        (lambda: text.marked_probabilities([0.5, 0.6], [True, False], 1.0), "probabilities must sum to 1"),
        (lambda: text.marked_probabilities([0.0, 0.0], [True, False], 1.0), "probabilities must sum to 1"),
        (lambda: text.marked_probabilities([0.5, 0.5], [True], 1.0), "green must have shape"),
        (lambda: green_list(Mark(300), 300), "previous must be"),
        (lambda: is_green(Mark(300), [1, 2], [1]), "tokens must have shape"),
        (lambda: text.marking(Mark(300), temperature=-1.0), "temperature must be >= 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_numbers_of_green_tokens_are_not_taken_for_a_mask():
    with pytest.raises(TypeError, match="green must hold booleans"):
        text.marked_probabilities([0.25] * 4, [0, 1, 2, 3], 1.0)
