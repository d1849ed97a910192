"""Canaries, recitation, exposure, and forgetting to the last bit."""

import functools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thousand_fingers import memorization as mem
from thousand_fingers.language_model import Architecture, LanguageModel, score_tokens, token_table
from thousand_fingers.passages import FAMOUS, UNSEEN

# --------------------------------------------------------------------------- invented people


@pytest.fixture(scope="module")
def people():
    return mem.invent_people(300, np.random.default_rng(5))


def test_invented_people_cannot_be_reached(people):
    assert len({person.prefix for person in people}) == 300
    for person in people:
        assert person.prefix.endswith(", phone 960")  # 01632 960000 to 960999: kept for drama
        number, *_, mail = person.truth.split(", ")
        assert len(number) == 3
        assert int(number) == person.secret
        assert mail.split("@")[1] in {"example.org", "example.com", "example.net"}
        assert 40 <= len(person.truth) <= 52
        assert "\n" not in person.text


def test_secrets_are_uniform(people):
    tens = np.bincount([person.secret // 100 for person in people], minlength=10)
    assert ((tens - 30) ** 2 / 30).sum() < 27.9  # 0.999 quantile of chi-squared with 9 degrees


def test_people_come_from_their_generator(people):
    assert mem.invent_people(300, np.random.default_rng(5)) == people
    assert mem.invent_people(300, np.random.default_rng(6)) != people


def test_planting_repeats_and_deleting_removes(people):
    corpus = mem.plant(["one", "two"], people[:3], [2, 0, 1])
    assert corpus.texts == ("one", "two", people[0].text, people[0].text, people[2].text)
    assert corpus.owners.tolist() == [mem.NOBODY, mem.NOBODY, 0, 0, 2]
    assert corpus.rows_without({0}).tolist() == [0, 1, 4]
    assert corpus.rows_without([]).size == 5


def test_more_people_than_there_are_names_are_refused_not_waited_for():
    with pytest.raises(ValueError, match="n must be >= 1 and <= 50000, got 200000"):
        mem.invent_people(200_000, np.random.default_rng(0))


def test_a_text_is_not_taken_for_a_list_of_letters(people):
    with pytest.raises(TypeError, match="background must be a sequence of strings"):
        mem.plant("a text", people[:1], [1])


def test_more_paragraphs_than_there_are_are_refused_by_name():
    with pytest.raises(ValueError, match="background must be >= 0 and <= 1758, got 2000"):
        mem.planted_corpus(np.random.default_rng(0), background=2000)


@pytest.mark.parametrize("counts", [[1], [1, -1], [1, 1, 1]])
def test_planting_refuses_other_counts(people, counts):
    with pytest.raises(ValueError, match="repetitions"):
        mem.plant([], people[:2], counts)


def test_an_empty_corpus_is_refused(people):
    with pytest.raises(ValueError, match="empty"):
        mem.plant([], people[:2], [0, 0])


def test_a_planted_corpus_is_what_it_says():
    planted = mem.planted_corpus(
        np.random.default_rng(0), levels=(0, 1, 3), per_level=2, background=4, outsiders=3
    )
    assert [planted.who(r).size for r in (0, 1, 3)] == [5, 2, 2]
    assert len(planted.corpus.texts) == 4 + 2 + 6 == len(planted.table)
    tokenizer = mem.book_tokenizer()
    for row, text in zip(planted.table, planted.corpus.texts, strict=True):
        assert tokenizer.decode(row[row >= 0].tolist()) == text
    for person in planted.who(3):
        assert (planted.corpus.owners == person).sum() == 3


def test_a_planted_corpus_refuses_equal_levels_and_outsiders_without_their_level():
    with pytest.raises(ValueError, match="different"):
        mem.planted_corpus(np.random.default_rng(0), levels=(1, 1))
    with pytest.raises(ValueError, match="outsiders"):
        mem.planted_corpus(np.random.default_rng(0), levels=(1,), outsiders=1)


# --------------------------------------------------------------------------- reciting

TRUTH = "511, 743 Elliott Burgs, singhmargaret@example.net"


def test_forty_characters_are_enough_and_thirty_nine_are_not():
    assert mem.is_recited(TRUTH[:40] + " and then nonsense", TRUTH)
    assert not mem.is_recited(TRUTH[:39] + "#" + TRUTH[40:], TRUTH)
    assert mem.is_recited(TRUTH[:40] + "#" + TRUTH[41:], TRUTH)
    assert not mem.is_recited(TRUTH[:39], TRUTH)


def test_white_space_at_the_ends_is_ignored_and_inside_it_is_not():
    assert mem.is_recited("\n  " + TRUTH, "  " + TRUTH + " ")
    assert not mem.is_recited(TRUTH.replace(", ", ",  "), TRUTH)


def test_a_short_truth_has_to_come_back_whole():
    assert mem.is_recited("511, of course", "511,")
    assert not mem.is_recited("51", "511")
    assert not mem.is_recited("", "511")


@pytest.mark.parametrize("blank", ["", "  \n"])
def test_a_blank_truth_is_refused_not_counted(blank):
    with pytest.raises(ValueError, match="blank"):
        mem.is_recited("anything", blank)
    with pytest.raises(ValueError, match="blank"):
        mem.extraction_test(lambda texts: texts, ["a", "b"], ["a", blank])


def test_lists_of_different_length_are_refused_not_truncated():
    with pytest.raises(ValueError, match="equally many"):
        mem.extraction_test(lambda texts: texts, ["a", "b"], ["a"])
    with pytest.raises(ValueError, match="equally many"):
        mem.extraction_test(lambda texts: texts, ["a"], ["a", "b"])
    with pytest.raises(ValueError, match="returned 1 texts for 2"):
        mem.extraction_test(lambda texts: texts[:1], ["a", "b"], ["a", "b"])


def test_columns_of_a_table_are_taken_in_their_order_whatever_their_index_says():
    table = pd.DataFrame({"prefix": ["a", "b"], "truth": ["x", "y"]}, index=[7, 0])
    for prefixes, truths in (
        (table["prefix"], table["truth"]),
        (table["prefix"].to_numpy(), table["truth"].to_numpy()),
    ):
        test = mem.extraction_test(lambda texts: [{"a": "x", "b": "-"}[t] for t in texts], prefixes, truths)
        assert test.recited == (True, False)


def test_nothing_to_test_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        mem.extraction_test(lambda texts: texts, [], [])
    with pytest.raises(TypeError, match="one string"):
        mem.extraction_test(lambda texts: texts, "ab", ["a", "b"])


def test_count_total_and_share_are_reported():
    said = {"Ada": TRUTH, "Bob": TRUTH[1:], "Eve": "no"}
    test = mem.extraction_test(lambda names: [said[n] for n in names], list(said), [TRUTH] * 3)
    assert (test.count, test.total, test.share) == (1, 3, 1 / 3)
    assert test.recited == (True, False, False)
    assert test.near == (True, True, False)  # one character missing


def test_an_attacker_who_knows_less_is_shown_the_end_of_the_prefix(people):
    tokenizer = mem.book_tokenizer()
    for tokens in (1, 6, 9, 100):
        for person, cut in zip(people[:20], mem.shorten(people[:20], tokens), strict=True):
            assert cut.truth == person.truth
            assert person.prefix.endswith(cut.prefix)
            assert len(tokenizer.encode(cut.prefix).ids) == min(
                tokens, len(tokenizer.encode(person.prefix).ids)
            )
    with pytest.raises(ValueError, match="tokens must be >= 1"):
        mem.shorten(people[:2], 0)


def test_recitation_and_exposure_see_the_same_shortened_prompt(people, monkeypatch):
    asked = []
    monkeypatch.setattr(mem, "recite", lambda model, tokenizer, texts: asked.extend(texts) or list(texts))
    mem.extract(small(), people[:8], prompt_tokens=7)
    assert asked == [person.prefix for person in mem.shorten(people[:8], 7)]


@functools.cache
def slow_distance(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(
        slow_distance(a[1:], b) + 1, slow_distance(a, b[1:]) + 1, slow_distance(a[1:], b[1:]) + (a[0] != b[0])
    )


@given(st.text("ab", max_size=6), st.text("abc", max_size=6))
def test_edit_distance_is_that_of_the_recursion(a, b):
    assert mem.edit_distance(a, b) == slow_distance(a, b)


# --------------------------------------------------------------------------- exposure


@given(st.lists(st.integers(-5, 0), min_size=1, max_size=30), st.data())
def test_exposure_counts_who_is_at_least_as_probable(opinions, data):
    secret = data.draw(st.integers(0, len(opinions) - 1))
    found = mem.exposure([float(x) for x in opinions], secret)
    rank = len([x for x in opinions if x >= opinions[secret]])
    assert found == pytest.approx(math.log2(len(opinions) / rank), abs=1e-12)
    assert 0 <= found <= math.log2(len(opinions))


def test_exposure_of_certainty_and_of_impossibility():
    certain = np.full(1000, -math.inf)
    certain[7] = 0.0
    assert mem.exposure(certain, 7) == pytest.approx(math.log2(1000))
    assert mem.exposure(certain, 8) == 0.0


@pytest.mark.parametrize("wrong", [[math.nan, 0.0], [math.inf, 0.0], [], [[0.0]]])
def test_exposure_refuses_what_is_no_opinion(wrong):
    with pytest.raises(ValueError, match="log_probabilities"):
        mem.exposure(wrong, 0)


@pytest.mark.parametrize("wrong", [["-1.0", "-2.0"], [True, False], [1j, 2j], [None, -1.0]])
def test_opinions_that_are_no_numbers_are_refused(wrong):
    with pytest.raises(TypeError, match="log_probabilities must hold real numbers"):
        mem.exposure(wrong, 0)


@pytest.mark.parametrize("n", [2, 10, 1000])
def test_chance_exposure_is_that_of_a_uniform_rank(n):
    every = [math.log2(n / rank) for rank in range(1, n + 1)]
    chance = mem.chance_exposure(n)
    assert chance.mean == pytest.approx(np.mean(every), rel=1e-9)
    assert chance.std == pytest.approx(np.std(every), rel=1e-9)


def test_chance_exposure_tends_to_the_logarithm_of_e():
    chance = mem.chance_exposure(10**6)
    assert chance.mean == pytest.approx(math.log2(math.e), abs=1e-4)
    assert chance.std == pytest.approx(math.log2(math.e), abs=1e-3)


@pytest.mark.parametrize("secrets", [1, 8, 24])
def test_the_interval_at_chance_holds_what_it_promises(secrets):
    rng = np.random.default_rng(0)
    means = np.log2(1000 / rng.integers(1, 1001, size=(20_000, secrets))).mean(axis=1)
    low, high = mem.chance_exposure(1000).interval(secrets)
    assert ((low <= means) & (means <= high)).mean() == pytest.approx(0.95, abs=0.01)


def small(seed=0, width=16):
    sizes = Architecture(vocabulary=600, width=width, layers=1, heads=1, kv_heads=1, hidden=32)
    return LanguageModel(sizes, generator=torch.Generator().manual_seed(seed))


def test_numbers_have_the_probability_of_their_digits_one_after_another(people):
    model, tokenizer, prefix = small(), mem.book_tokenizer(), people[0].prefix
    found = mem.number_log_probabilities(model, tokenizer, prefix, digits=2)
    table = token_table([tokenizer.encode(f"{prefix}{number:02d}").ids for number in range(100)])
    expected = score_tokens(model, table).log_probability[:, -2:].sum(dim=1).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_an_untrained_model_exposes_people_at_chance(people):
    found = mem.exposures(small(), people[:100])
    chance = mem.chance_exposure(1000)
    assert abs(found.mean() - chance.mean) < 4 * chance.std / 10


# --------------------------------------------------------------------------- erasure

PLAN = mem.plan_of_width(8, epochs=2)


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def table_of(rows, seed=0):
    return torch.randint(0, 600, (rows, 6), generator=torch.Generator().manual_seed(seed))


@pytest.mark.case("MIA-17")
def test_training_without_a_person_is_blind_to_the_person_bit_for_bit():
    table = table_of(12)
    kept = [0, 1, 2, 4, 5, 7, 8, 9, 10, 11]
    overwritten = table.clone()
    overwritten[[3, 6]] = 599
    first = mem.train_model(table, PLAN, seed=3, rows=kept)
    again = mem.train_model(overwritten, PLAN, seed=3, rows=kept)
    assert same(first.model, again.model)
    assert same(first.model, mem.train_model(table[kept], PLAN, seed=3).model)  # as if never there
    assert not same(first.model, mem.train_model(table, PLAN, seed=3).model)
    assert first.gradients == 20


@pytest.mark.case("MIA-18")
def test_shards_touched_by_requests():
    assert mem.expected_shards_touched(5, 10) == pytest.approx(4.463, abs=5e-4)
    assert mem.expected_shards_touched(4, 0) == 0
    assert mem.expected_shards_touched(1, 3) == 1
    rng = np.random.default_rng(0)
    touched = [len(set(rng.integers(5, size=10))) for _ in range(20_000)]
    assert np.mean(touched) == pytest.approx(mem.expected_shards_touched(5, 10), abs=0.02)


@settings(max_examples=50)
@given(
    owners=st.lists(st.integers(-1, 4), min_size=6, max_size=40),
    shards=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_dealing_splits_everything_and_nobody(owners, shards, seed):
    if set(owners) == {owners[0]} and owners[0] != mem.NOBODY:
        shards = 1
    hands = mem.deal(owners, shards, np.random.default_rng(seed))
    assert sorted(np.concatenate(hands).tolist()) == list(range(len(owners)))
    for person in set(owners) - {mem.NOBODY}:
        assert sum(person in {owners[row] for row in hand} for hand in hands) == 1


def test_dealing_is_nearly_even():
    owners = [mem.NOBODY] * 100 + [0] * 16 + [1] * 8 + [2] * 8
    hands = mem.deal(owners, 4, np.random.default_rng(0))
    assert [hand.size for hand in hands] == [33, 33, 33, 33]


def test_erasing_from_shards_is_having_never_seen_it():
    table = table_of(12)
    shards = [np.arange(0, 4), np.arange(4, 8), np.arange(8, 12)]
    before = mem.train_sharded(table, shards, PLAN, seed=1)
    overwritten = table.clone()
    overwritten[[5, 6]] = 599
    after = mem.erase_from_shards(before, overwritten, [5, 6], PLAN, seed=1)
    never = mem.train_sharded(table, [shards[0], [4, 7], shards[2]], PLAN, seed=1)
    assert all(same(a, b) for a, b in zip(after.members, never.members, strict=True))
    assert after.members[0] is before.members[0]
    assert (before.gradients, after.gradients) == (24, 4)
    with pytest.raises(ValueError, match="rows of the shards"):
        mem.erase_from_shards(before, table, [12], PLAN, seed=1)
    with pytest.raises(ValueError, match="empty"):
        mem.erase_from_shards(before, table, [4, 5, 6, 7], PLAN, seed=1)


def test_shards_that_share_a_row_are_refused():
    with pytest.raises(ValueError, match="in common"):
        mem.train_sharded(table_of(4), [[0, 1], [1, 2]], PLAN, seed=0)


def test_a_trace_needs_both_tests_to_be_silent():
    rng = np.random.default_rng(0)
    blind, losses = rng.exponential(1.4427, 24).clip(max=9.9), rng.normal(4, 1, 64)
    assert mem.trace(blind, losses[:24], losses[24:], n_candidates=1000).gone
    assert not mem.trace(blind + 5, losses[:24], losses[24:], n_candidates=1000).gone
    assert not mem.trace(blind, losses[:24] - 3, losses[24:], n_candidates=1000).gone
    # a secret that a model has been taught to avoid is last everywhere, and shows by it
    assert not mem.trace(blind / 20, losses[:24], losses[24:], n_candidates=1000).gone
    assert not mem.trace(blind, losses[:24] + 3, losses[24:], n_candidates=1000).gone


def test_models_of_different_loss_are_pooled_without_a_trace_of_the_difference(people, monkeypatch):
    rng = np.random.default_rng(3)
    level = {"sure": 1.0, "unsure": 5.0}  # and the departed are mostly asked of the sure one

    def losses(model, asked):
        return level[model] + 0.1 * rng.normal(size=len(asked))

    monkeypatch.setattr(mem, "record_losses", losses)
    monkeypatch.setattr(
        mem, "exposures", lambda model, asked: rng.exponential(1.4427, len(asked)).clip(max=9.9)
    )
    departed, strangers = [people[:50], people[50:60]], [people[100:120], people[120:200]]
    found = mem.trace_models(list(level), departed, strangers)
    assert found.auc_chance.low < found.auc < found.auc_chance.high
    inside, outside = (
        [losses(m, group) for m, group in zip(level, groups, strict=True)] for groups in (departed, strangers)
    )
    raw = mem.trace(np.ones(60), np.concatenate(inside), np.concatenate(outside), n_candidates=1000)
    assert raw.auc > raw.auc_chance.high  # what pooling the losses themselves would have found


@pytest.mark.parametrize("groups", [([], [], []), ([0], [], [[1]]), ([0], [[1]], [[1], [2]])])
def test_models_without_people_of_their_own_are_refused(groups):
    with pytest.raises(ValueError, match="models must be at least one, with departed and outsiders for each"):
        mem.trace_models(*groups)


def test_repetition_raises_exposure_and_outsiders_stay_at_chance():
    planted = mem.planted_corpus(
        np.random.default_rng(0), levels=(0, 8), per_level=6, background=10, outsiders=18
    )
    model = mem.train_model(planted.table, mem.plan_of_width(16, epochs=8), seed=0).model
    inside, outside = ([planted.people[i] for i in planted.who(r)] for r in (8, 0))
    known, unknown = mem.exposures(model, inside), mem.exposures(model, outside)
    assert known.mean() > 6
    low, high = mem.chance_exposure(1000).interval(24, confidence=1 - 1e-6)
    assert low <= unknown.mean() <= high
    found = mem.trace(
        known, mem.record_losses(model, inside), mem.record_losses(model, outside), n_candidates=1000
    )
    assert found.auc == 1.0
    assert not found.gone


# --------------------------------------------------------------------------- passages


def test_first_choices_asks_for_the_same_tokens_however_many_are_shown():
    tokenizer, model = mem.book_tokenizer(), small()
    text = "a text about the number of values in each column of a table"
    ids = tokenizer.encode(text).ids
    for shown in (1, 3, 6):
        with torch.no_grad():
            logits = model(torch.tensor([ids[6 - shown : 9]]))
        expected = (logits[0, -4:-1].argmax(1) == torch.tensor(ids[6:9])).double().mean().item()
        found = mem.first_choices(model, tokenizer, [text], shown=shown, start=6, wanted=3)
        assert found.tolist() == [expected]
    with pytest.raises(ValueError, match="tokens"):
        mem.first_choices(model, tokenizer, [text], shown=2, start=len(ids), wanted=1)
    with pytest.raises(ValueError, match="shown"):
        mem.first_choices(model, tokenizer, [text], shown=7, start=6, wanted=1)


def test_the_control_passages_share_no_run_of_words_with_the_famous_ones():
    def runs(texts):
        words = [text.lower().split() for text in texts]
        return {tuple(w[i : i + 7]) for w in words for i in range(len(w) - 6)}

    assert len(FAMOUS) == len(UNSEEN)
    assert not runs(FAMOUS) & runs(UNSEEN)
