"""Attacks on marked text: each does what it says, and what is left of the mark follows from counting."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch

from thousand_fingers.language_model import Architecture, LanguageModel, generate
from thousand_fingers.watermark import text_attacks as attacks
from thousand_fingers.watermark.text import Mark, detect, green_list, is_green, marking

V = 2_000
MARK = Mark(V, scheme="hash", green_fraction=0.25)


def rng(seed=0):
    return np.random.default_rng(seed)


@functools.cache
def marked_text(length, share_green, seed, mark=MARK):
    """A text whose tokens are green with a given probability, without a model."""
    source, tokens = rng(seed), [seed % V]
    while len(tokens) < length:
        green = green_list(mark, tokens[-1])
        if source.random() < share_green:
            tokens.append(int(source.choice(green)))
        else:
            tokens.append(int(source.choice(np.setdiff1d(np.arange(mark.vocabulary), green))))
    return tuple(tokens)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_an_edit_touches_as_many_places_as_it_says(share):
    before = list(range(100))
    substituted = attacks.edit(before, share, "substitute", rng(), vocabulary=V)
    assert sum(a != b for a, b in zip(before, substituted, strict=True)) == round(100 * share)
    assert all(0 <= token < V for token in substituted)
    deleted = attacks.edit(before, share, "delete", rng(), vocabulary=V)
    assert len(deleted) == 100 - round(100 * share)
    assert deleted == sorted(deleted)
    inserted = attacks.edit(before, share, "insert", rng(), vocabulary=V)
    assert len(inserted) == 100 + round(100 * share)
    left = iter(inserted)
    assert all(token in left for token in before)  # the text is still there, in order


def test_an_edit_leaves_the_text_it_was_given():
    tokens = [1, 2, 3, 4]
    attacks.edit(tokens, 1.0, "substitute", rng(), vocabulary=V)
    assert tokens == [1, 2, 3, 4]
    assert attacks.edit([], 0.5, "substitute", rng(), vocabulary=V) == []


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3])
def test_evidence_decays_with_the_square_of_what_stays(share):
    """A pair survives if both of its tokens do; otherwise it is green by chance."""
    before, after = [], []
    for seed in range(60):
        tokens = marked_text(200, 0.7, seed)
        before.append(detect(tokens, MARK).z)
        after.append(detect(attacks.edit(tokens, share, "substitute", rng(seed), vocabulary=V), MARK).z)
    assert abs(np.mean(after) - np.mean(before) * (1 - share) ** 2) < 0.6


@pytest.mark.parametrize(("share", "pieces"), [(0.0, 1), (0.25, 1), (0.25, 5), (0.5, 3), (1.0, 1), (1.0, 4)])
def test_copy_paste_keeps_the_share_and_the_places(share, pieces):
    mixed = np.array(attacks.copy_paste([1] * 60, [0] * 60, share, pieces, rng()))
    assert mixed.size == 60
    assert mixed.sum() == pieces * round(60 * share / pieces)
    runs = (np.diff(np.concatenate([[0], mixed, [0]])) == 1).sum()
    assert runs <= pieces


@pytest.mark.parametrize(("n", "share", "pieces"), [(10, 1.0, 4), (3, 1.0, 2), (10, 0.5, 4), (11, 0.7, 5)])
def test_what_does_not_divide_evenly_is_still_the_share_that_was_asked_for(n, share, pieces):
    for seed in range(20):
        mixed = np.array(attacks.copy_paste([1] * n, [0] * n, share, pieces, rng(seed)))
        assert mixed.sum() == round(share * n)


def test_each_passage_is_that_of_its_own_place():
    mixed = attacks.copy_paste(list(range(100, 140)), list(range(40)), 0.5, 3, rng(2))
    assert [token % 100 for token in mixed] == list(range(40))


def test_pieces_do_not_overlap():
    for seed in range(50):
        assert sum(attacks.copy_paste([1] * 40, [0] * 40, 0.9, 4, rng(seed))) == 36


def test_evidence_is_diluted_in_proportion():
    z = [
        [
            detect(
                attacks.copy_paste(marked_text(200, 0.7, s), rng(s).integers(0, V, 200), f, 1, rng(s)), MARK
            ).z
            for s in range(40)
        ]
        for f in (1.0, 0.5)
    ]
    assert abs(np.mean(z[1]) - 0.5 * np.mean(z[0])) < 0.7


def test_shared_pairs_are_counted_by_hand():
    assert attacks.shared_pairs([1, 2, 1, 2, 3], [2, 3, 1, 2]) == pytest.approx(2 / 3)
    assert math.isnan(attacks.shared_pairs([1], [1, 2]))


def test_homoglyphs_look_alike_and_are_other_characters():
    text = "the ocean opens a cape"
    all_of_them = attacks.homoglyphs(text, 1.0, rng())
    assert not set(all_of_them) & set("aceopxy")
    assert len(all_of_them) == len(text)
    assert attacks.homoglyphs(text, 0.0, rng()) == text
    doubles = sum(letter in "aceopxy" for letter in text)
    half = attacks.homoglyphs(text, 0.5, rng())
    assert sum(a != b for a, b in zip(text, half, strict=True)) == round(doubles / 2)


def test_unicode_normalisation_does_not_repair_homoglyphs():
    import unicodedata

    assert unicodedata.normalize("NFKC", attacks.homoglyphs("cape", 1.0, rng())) != "cape"


def test_stripping_what_is_invisible_restores_the_text_exactly():
    text = "one two  three\nfour five "
    for share in (0.3, 0.5, 1.0):
        attacked = attacks.zero_width(text, share, rng())
        assert attacked != text
        assert attacks.without_invisible(attacked) == text
    assert attacks.zero_width(text, 1.0, rng()).count("\u200b") == text.count(" ")


def tiny_model(vocabulary=300):
    sizes = Architecture(vocabulary=vocabulary, width=24, layers=1, heads=2, kv_heads=1, hidden=64)
    return LanguageModel(sizes, generator=torch.Generator().manual_seed(0))


def test_an_emoji_after_each_token_takes_the_mark_away_when_it_is_taken_out():
    mark, prompts = Mark(300, logit_bias=6.0), [[5], [6, 7], [8, 9, 10]]
    adjust = attacks.interleaving(299, marking(mark), prompt_lengths=[1, 2, 3])
    written = generate(
        tiny_model(),
        prompts,
        max_new_tokens=160,
        temperature=1.0,
        generator=torch.Generator().manual_seed(0),
        adjust=adjust,
    )
    scores = []
    for row in written:
        assert set(row[1::2]) == {299}
        assert is_green(mark, [299] * 79, row[2::2]).mean() > 0.9  # every list was drawn from the emoji
        scores.append(detect(row[::2], mark).z)
    assert max(scores) < 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"token": -1}, ValueError, "token must be >= 0, got -1"),
        ({"token": 2.0}, TypeError, "token must be an integer"),
        ({"then": None}, TypeError, "then must be an adjustment"),
        ({"prompt_lengths": []}, ValueError, "prompt_lengths must not be empty"),
        ({"prompt_lengths": [1, 0]}, ValueError, "prompt_lengths must be >= 1, got 0"),
        ({"prompt_lengths": [1.5]}, TypeError, "prompt_lengths must hold integers"),
        ({"prompt_lengths": 3}, ValueError, "prompt_lengths must have shape"),
    ],
)
def test_an_interleaving_that_makes_no_sense_is_refused(arguments, error, message):
    options = {"token": 2, "then": lambda tokens, logits: logits, "prompt_lengths": [1, 1]}
    options.update(arguments)
    with pytest.raises(error, match=message):
        attacks.interleaving(options.pop("token"), options.pop("then"), **options)


def test_an_interleaving_refuses_another_number_of_rows_and_another_vocabulary():
    adjust = attacks.interleaving(5, lambda tokens, logits: logits, prompt_lengths=[1, 1])
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    adjust(tokens, torch.zeros(2, 6))
    with pytest.raises(ValueError, match="token must be <= 4, got 5"):
        adjust(tokens, torch.zeros(2, 5))
    with pytest.raises(ValueError, match="prompt_lengths must hold one for each of 3 rows, got 2"):
        adjust(torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 6))


def test_a_forgery_uses_only_pairs_that_were_seen_and_carries_the_mark():
    texts = [marked_text(200, 0.7, seed) for seed in range(8)]
    seen = {pair for t in texts for pair in itertools.pairwise(t)}
    forged = attacks.markov_forgery(texts, 150, rng(), vocabulary=V)
    known = sum(pair in seen for pair in itertools.pairwise(forged))
    assert len(forged) == 150
    assert known >= 140  # dead ends start anew
    assert detect(forged, MARK).is_marked()
    unmarked = [rng(seed).integers(0, V, 200) for seed in range(8)]
    assert not detect(attacks.markov_forgery(unmarked, 150, rng(), vocabulary=V), MARK).is_marked()


def walk(texts=None, **changes):
    options = {"start": 0, "rounds": 4, "tolerance": 0.3, "generator": torch.Generator().manual_seed(1)}
    texts = rng().integers(0, 300, (3, 40)) if texts is None else texts
    return texts, attacks.random_walk(tiny_model(), texts, **{**options, **changes})


def test_a_walk_starts_where_it_is_told_and_keeps_count():
    texts, found = walk()
    np.testing.assert_array_equal(found.tokens[0], texts)
    assert found.tokens.shape == (5, 3, 40)
    assert (found.accepted <= found.proposed).all()
    assert (found.proposed == 5).all()  # forty tokens, every eighth
    for before, after, accepted in zip(found.tokens[:-1], found.tokens[1:], found.accepted, strict=True):
        np.testing.assert_array_equal((before != after).sum(axis=1), accepted)
        places = [set((np.flatnonzero(row) % 8).tolist()) for row in before != after]
        assert len(set().union(*places)) <= 1
    np.testing.assert_allclose(found.changed[-1], (found.tokens[-1] != texts).mean(axis=1))


def test_the_judge_lets_a_change_pass_exactly_if_the_window_does_not_fall_too_far():
    model = tiny_model()
    texts = rng().integers(0, 300, (3, 40))
    found = attacks.random_walk(
        model, texts, start=0, rounds=1, tolerance=1e6, generator=torch.Generator().manual_seed(1)
    )
    proposals, changed = found.tokens[1], found.tokens[0] != found.tokens[1]
    assert (found.accepted == found.proposed).all()
    strict = attacks.random_walk(
        model, texts, start=0, rounds=1, tolerance=0.0, generator=torch.Generator().manual_seed(1)
    )

    def told(tokens):
        with torch.no_grad():
            logits = model(torch.tensor([[0, *tokens[:-1]]]))[0].log_softmax(1)
        return logits[torch.arange(len(tokens)), torch.tensor(tokens)].numpy()

    for row in range(3):
        old, new = told(texts[row].tolist()), told(proposals[row].tolist())
        for place in np.flatnonzero(changed[row]).tolist():
            better = new[place : place + 6].mean() >= old[place : place + 6].mean()
            assert (strict.tokens[1, row, place] == proposals[row, place]) == better
    np.testing.assert_allclose(found.log_likelihood[0], [told(t).mean() for t in texts.tolist()], rtol=1e-9)
    np.testing.assert_allclose(
        found.log_likelihood[1], [told(t).mean() for t in proposals.tolist()], rtol=1e-9
    )


def test_a_walk_is_the_same_for_the_same_generator_and_leaves_the_model_as_it_was():
    model = tiny_model().train()
    texts = rng().integers(0, 300, (2, 20))
    runs = [
        attacks.random_walk(
            model, texts, start=0, rounds=2, tolerance=0.3, generator=torch.Generator().manual_seed(5)
        )
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0].tokens, runs[1].tokens)
    assert model.training


def test_a_walk_erases_a_mark_that_it_knows_nothing_about():
    """With a judge that lets everything pass, every pair is replaced and chance is left."""
    model, mark = tiny_model(), Mark(300, logit_bias=6.0)
    texts = generate(
        model,
        [[5], [6], [7]],
        max_new_tokens=120,
        temperature=1.0,
        generator=torch.Generator().manual_seed(0),
        adjust=marking(mark),
    )
    found = attacks.random_walk(
        model, texts, start=0, rounds=60, tolerance=1e6, generator=torch.Generator().manual_seed(1)
    )
    assert min(detect(row, mark).z for row in found.tokens[0]) > 6
    assert np.mean([detect(row, mark).z for row in found.tokens[-1]]) < 2.5
    assert (found.changed[-1] > 0.95).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_text_of_one_spacing_is_long_enough_wherever_the_walk_begins(seed):
    found = walk([[5, 6, 7, 8, 9, 1, 2, 3]], generator=torch.Generator().manual_seed(seed))[1]
    assert (found.proposed == 1).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attacks.edit([1], 1.5, "delete", rng(), vocabulary=9), "share must be"),
        (lambda: attacks.edit([1], 0.5, "swap", rng(), vocabulary=9), "how must be one of"),
        (lambda: attacks.edit([9], 0.5, "delete", rng(), vocabulary=9), "tokens must be"),
        (lambda: attacks.edit([1], 0.5, "delete", 0, vocabulary=9), "rng must be"),
        (lambda: attacks.copy_paste([1], [1, 2], 0.5, 1, rng()), "must be equally long, got 1 and 2"),
        (
            lambda: attacks.copy_paste([1] * 8, [0] * 8, 0.1, 3, rng()),
            "pieces must be <= 1, the marked tokens",
        ),
        (lambda: attacks.markov_forgery([[1, 2]], 3, rng(), vocabulary=0), "vocabulary must be >= 1"),
        (lambda: attacks.copy_paste([1], [0], 0.5, 0, rng()), "pieces must be >= 1"),
        (lambda: attacks.homoglyphs("a", -0.1, rng()), "share must be"),
        (lambda: attacks.zero_width("a", 2, rng()), "share must be"),
        (lambda: attacks.markov_forgery([], 5, rng(), vocabulary=9), "at least one pair"),
        (lambda: attacks.markov_forgery([[1]], 5, rng(), vocabulary=9), "at least one pair"),
        (lambda: attacks.markov_forgery([[1, 2]], 0, rng(), vocabulary=9), "length must be >= 1"),
        (lambda: walk(rounds=0), "rounds must be >= 1"),
        (lambda: walk(tolerance=-0.1), "tolerance must be >= 0"),
        (lambda: walk(window=9), "window must be"),
        (lambda: walk(top=1), "top must be"),
        (lambda: walk(start=300), "start must be >= 0 and <= 299, got 300"),
        (lambda: walk(start=-1), "start must be >= 0 and <= 299, got -1"),
        (lambda: walk(rounds=2.0), "rounds must be an integer"),
        (lambda: walk(tolerance=math.nan), "tolerance must be finite and >= 0, got nan"),
        (lambda: walk(tolerance=math.inf), "tolerance must be finite and >= 0, got inf"),
        (lambda: walk([[1] * 7]), "texts must hold at least spacing = 8 tokens each, got 7"),
        (lambda: walk([[1] * 9], spacing=10), "texts must hold at least spacing = 10 tokens each, got 9"),
        (lambda: walk([[1] * 9, [1] * 8]), "texts must all be equally long"),
        (lambda: walk([1] * 9), "texts must have shape"),
        (lambda: walk([]), "texts must have shape"),
        (lambda: walk([[0.5] * 9]), "texts must hold integers"),
        (lambda: walk([[300] * 9]), "texts must be >= 0 and <= 299, got 300"),
        (lambda: walk([[-1] * 9]), "texts must be >= 0 and <= 299, got -1"),
        (lambda: walk(top=301), "top must be >= 2 and <= 300, got 301"),
        (lambda: walk(spacing=0), "spacing must be >= 1"),
        (lambda: walk(generator=None), "generator must be"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
