"""What is done to marked texts: edits, disguises, forgeries, and the walk that erases any mark.

Attacks on tokens take and return lists of tokens, attacks on characters take and return strings. The random
walk follows [Zhang2024]; the two forgeries use nothing but marked texts that anybody can collect. None of them
knows the key. Chapter 10 measures what each leaves of the mark of :mod:`thousand_fingers.watermark.text`.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from thousand_fingers.language_model import Adjustment, AveragedModel, LanguageModel
from thousand_fingers.models import evaluation_mode
from thousand_fingers.validation import (
    choice,
    integer,
    integer_array,
    numpy_generator,
    real_number,
    torch_generator,
)

EDITS = ("substitute", "delete", "insert")
#: Cyrillic letters that look like Latin ones.
HOMOGLYPHS = str.maketrans("aceopxyACEHKMOPTX", "асеорхуАСЕНКМОРТХ")
#: Characters that take no place on the page.
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"

# --------------------------------------------------------------------------- edits


def edit(
    tokens: Sequence[int], share: float, how: str, rng: np.random.Generator, *, vocabulary: int
) -> list[int]:
    """Edit a text at random places.

    Parameters
    ----------
    tokens : sequence of int
        The text.
    share : float
        Edits, as a share of its length, in [0, 1].
    how : {"substitute", "delete", "insert"}
        What happens at each place; new tokens are uniform, and a substitute differs from what it replaces.
    rng : numpy.random.Generator
        Source of places and tokens.
    vocabulary : int
        Number of tokens there are, at least 2.

    Returns
    -------
    list of int

    Examples
    --------
    >>> edit([1, 2, 3, 4], 0.5, "delete", np.random.default_rng(0), vocabulary=9)
    [1, 2]
    """
    vocabulary = integer("vocabulary", vocabulary, at_least=2)
    share = real_number("share", share, at_least=0, at_most=1)
    numpy_generator("rng", rng)
    text = integer_array(
        "tokens", tokens, shape=(None,), allow_empty=True, at_least=0, at_most=vocabulary - 1
    )
    count = round(share * text.size)
    if choice("how", how, EDITS) == "insert":
        places = rng.integers(0, text.size + 1, count)
        return list(np.insert(text, places, rng.integers(0, vocabulary, count)).tolist())
    places = rng.choice(text.size, count, replace=False) if count else np.zeros(0, dtype=np.int64)
    if how == "delete":
        return list(np.delete(text, places).tolist())
    text = text.copy()
    text[places] = (text[places] + rng.integers(1, vocabulary, count)) % vocabulary
    return list(text.tolist())


def copy_paste(
    marked: Sequence[int], unmarked: Sequence[int], share: float, pieces: int, rng: np.random.Generator
) -> list[int]:
    """Hide passages of a marked text in an unmarked one of the same length.

    Parameters
    ----------
    marked, unmarked : sequence of int
        Two texts of equal length.
    share : float
        How much of the result is marked, in [0, 1], to the nearest token.
    pieces : int
        Number of passages, at least 1, of lengths that differ by one token at most; each stays at its place in
        the text. Two may touch.
    rng : numpy.random.Generator
        Source of the places.

    Returns
    -------
    list of int

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or there are more passages than marked tokens.

    Examples
    --------
    >>> copy_paste([1] * 8, [0] * 8, 0.5, 1, np.random.default_rng(0))
    [0, 0, 0, 0, 1, 1, 1, 1]
    """
    share = real_number("share", share, at_least=0, at_most=1)
    pieces = integer("pieces", pieces, at_least=1)
    numpy_generator("rng", rng)
    if len(marked) != len(unmarked):
        raise ValueError(f"marked and unmarked must be equally long, got {len(marked)} and {len(unmarked)}")
    kept = round(share * len(marked))
    if 0 < kept < pieces:
        raise ValueError(f"pieces must be <= {kept}, the marked tokens of the result, got {pieces}")
    before = np.sort(rng.integers(0, len(marked) - kept + 1, pieces))
    ends = kept * np.arange(1, pieces + 1) // pieces  # of the passages, put one after another
    result = list(unmarked)
    for gap, first, end in zip(before.tolist(), [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        result[gap + first : gap + end] = marked[gap + first : gap + end]
    return result


def shared_pairs(text: Sequence[int], other: Sequence[int]) -> float:
    """Return the share of the different neighbouring pairs of a text that occur in another one too.

    Parameters
    ----------
    text, other : sequence of int
        Two texts.

    Returns
    -------
    float
        In [0, 1]; NaN if the text has no pair.

    Examples
    --------
    >>> shared_pairs([1, 2, 3], [9, 1, 2])
    0.5
    """
    pairs, others = (set(itertools.pairwise(t)) for t in (text, other))
    return len(pairs & others) / len(pairs) if pairs else math.nan


# --------------------------------------------------------------------------- disguises


def homoglyphs(text: str, share: float, rng: np.random.Generator) -> str:
    """Replace Latin letters by Cyrillic ones that look the same.

    Parameters
    ----------
    text : str
        The text.
    share : float
        Of the letters that have a double, in [0, 1].
    rng : numpy.random.Generator
        Source of the choice.

    Returns
    -------
    str

    Examples
    --------
    >>> homoglyphs("a cat", 1.0, np.random.default_rng(0)) == "\u0430 \u0441\u0430t"
    True
    """
    return _at_some("HOMOGLYPHS", text, share, rng)


def zero_width(text: str, share: float, rng: np.random.Generator) -> str:
    """Put a space of no width after some of the spaces.

    Parameters
    ----------
    text : str
        The text.
    share : float
        Of the spaces, in [0, 1].
    rng : numpy.random.Generator
        Source of the choice.

    Returns
    -------
    str

    Examples
    --------
    >>> len(zero_width("two words", 1.0, np.random.default_rng(0)))
    10
    """
    return _at_some("zero width", text, share, rng)


def without_invisible(text: str) -> str:
    """Take out the characters that take no place on the page: the remedy for :func:`zero_width`.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    str

    Examples
    --------
    >>> without_invisible("two \u200bwords")
    'two words'
    """
    return text.translate(dict.fromkeys(map(ord, INVISIBLE)))


def _at_some(what: str, text: str, share: float, rng: np.random.Generator) -> str:
    share = real_number("share", share, at_least=0, at_most=1)
    numpy_generator("rng", rng)
    disguise = dict.fromkeys([ord(" ")], " \u200b") if what == "zero width" else HOMOGLYPHS
    places = [i for i, letter in enumerate(text) if ord(letter) in disguise]
    chosen = set(rng.permutation(places)[: round(share * len(places))].tolist())
    return "".join(letter.translate(disguise) if i in chosen else letter for i, letter in enumerate(text))


def interleaving(token: int, then: Adjustment, *, prompt_lengths: Sequence[int]) -> Adjustment:
    """Return what makes a model write a given token after each of its own, as a prompt would ask it to.

    This is the emoji attack of [Kirchenbauer2023]: the model is asked to put an emoji after every word, and
    the emojis are taken out afterwards. Every list was drawn from an emoji, and the detector draws others.

    Parameters
    ----------
    token : int
        The emoji, a token of the model's vocabulary.
    then : callable
        What happens to the model's own tokens, such as :func:`thousand_fingers.watermark.text.marking`.
    prompt_lengths : sequence of int
        Tokens in the prompt of each row, at least 1.

    Returns
    -------
    callable
        An adjustment for :func:`thousand_fingers.language_model.generate`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; when called, if there are not as many rows as prompts, or no such token.

    Examples
    --------
    >>> adjust = interleaving(2, lambda tokens, logits: logits, prompt_lengths=[1])
    >>> adjust(torch.tensor([[0, 1]]), torch.zeros(1, 3)).tolist()
    [[-inf, -inf, 0.0]]
    """
    token = integer("token", token, at_least=0)
    if not callable(then):
        raise TypeError(f"then must be an adjustment such as marking(mark), got {then!r}")
    checked = integer_array("prompt_lengths", prompt_lengths, shape=(None,), at_least=1)
    lengths = torch.from_numpy(checked.copy())

    def adjust(tokens: Tensor, logits: Tensor) -> Tensor:
        if len(tokens) != len(lengths):
            raise ValueError(
                f"prompt_lengths must hold one for each of {len(tokens)} rows, got {len(lengths)}"
            )
        integer("token", token, at_most=logits.shape[1] - 1)
        written = tokens.shape[1] - lengths
        adjusted = then(tokens, logits).clone()
        forced = torch.full_like(adjusted, -math.inf)
        forced[:, token] = 0.0
        turn = (written > 0) & (written % 2 == 1)
        return torch.where(turn.unsqueeze(1), forced, adjusted)

    return adjust


# --------------------------------------------------------------------------- forgeries


def markov_forgery(
    texts: Sequence[Sequence[int]], length: int, rng: np.random.Generator, *, vocabulary: int
) -> list[int]:
    """Write a text out of the neighbouring pairs of texts that carry a mark, without its key.

    Each next token is one that was seen after the last one, drawn in proportion to how often; pairs that were
    used are not used again while there are others. Green pairs are more frequent in marked texts, so the
    forgery is green too. It makes no sense; [Jovanovic2024] show how to forge fluent text.

    Parameters
    ----------
    texts : sequence of sequence of int
        Marked texts, at least one pair of tokens in all.
    length : int
        Tokens to write.
    rng : numpy.random.Generator
        Source of the draws.
    vocabulary : int
        Number of tokens there are, at least 1.

    Returns
    -------
    list of int

    Examples
    --------
    >>> markov_forgery([[1, 2, 3, 1]], 5, np.random.default_rng(0), vocabulary=4)
    [3, 1, 2, 3, 1]
    """
    length = integer("length", length, at_least=1)
    vocabulary = integer("vocabulary", vocabulary, at_least=1)
    numpy_generator("rng", rng)
    seen: dict[int, list[int]] = defaultdict(list)
    for text in texts:
        row = integer_array(
            "texts", text, shape=(None,), allow_empty=True, at_least=0, at_most=vocabulary - 1
        )
        for before, after in itertools.pairwise(row.tolist()):
            seen[before].append(after)
    if not seen:
        raise ValueError("texts must hold at least one pair of tokens")
    starts = sorted(seen)
    written = [starts[rng.integers(len(starts))]]
    used: set[tuple[int, int]] = set()
    while len(written) < length:
        last = written[-1]
        after = [token for token in seen.get(last, ()) if (last, token) not in used] or seen.get(last, starts)
        written.append(after[rng.integers(len(after))])
        used.add((last, written[-1]))
    return written


# --------------------------------------------------------------------------- the walk


@dataclass(frozen=True, eq=False)
class Walk:
    """A random walk through texts of about the same quality.

    Parameters
    ----------
    tokens : ndarray of int64, shape (rounds + 1, rows, length)
        The texts before the first round and after each.
    log_likelihood : ndarray of float64, shape (rounds + 1, rows)
        Mean log probability of a token under the attacker's model: the attacker's own view of the quality.
    proposed, accepted : ndarray of int64, shape (rounds, rows)
        Changes tried and made in each round.
    """

    tokens: NDArray[np.int64]
    log_likelihood: NDArray[np.float64]
    proposed: NDArray[np.int64]
    accepted: NDArray[np.int64]

    @property
    def changed(self) -> NDArray[np.float64]:
        """Share of tokens that differ from the text before the first round, shape (rounds + 1, rows)."""
        return np.asarray((self.tokens != self.tokens[0]).mean(axis=2))


def random_walk(
    model: LanguageModel | AveragedModel,
    texts: ArrayLike,
    *,
    start: int,
    rounds: int,
    tolerance: float,
    generator: torch.Generator,
    spacing: int = 8,
    window: int = 6,
    top: int = 20,
) -> Walk:
    """Change texts bit by bit, each time only if a judge finds them about as good as before.

    The attack of [Zhang2024], small: the *perturbation oracle* proposes, at every eighth place, another one
    of the 20 tokens that its model holds most probable there; the *quality oracle* lets a change pass if the
    mean log probability of the changed token and the five after it falls by no more than ``tolerance``. Each
    text costs two forward passes per round. The attacker knows neither key nor prompt nor scheme.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        The attacker's model.
    texts : array-like of int, shape (rows, length)
        The texts, all equally long, of at least ``spacing`` tokens.
    start : int
        Token that stands before each text, so that the first one has something before it.
    rounds : int
        Number of rounds, at least 1.
    tolerance : float
        Largest fall, in nats per token, at least 0.
    generator : torch.Generator
        Source of places and proposals.
    spacing : int, default 8
        Distance of the places of one round.
    window : int, default 6
        Tokens that the judge looks at, at most ``spacing``.
    top : int, default 20
        Tokens that are proposed, at least 2.

    Returns
    -------
    Walk

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> from thousand_fingers.language_model import Architecture
    >>> sizes = Architecture(vocabulary=30, width=8, layers=1, heads=2, kv_heads=1, hidden=16)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> walk = random_walk(model, [[5, 6, 7, 8, 9, 1, 2, 3, 4, 5]], start=0, rounds=3, tolerance=0.5,
    ...                    generator=torch.Generator().manual_seed(1))
    >>> walk.tokens.shape, walk.accepted.shape
    ((4, 1, 10), (3, 1))
    """
    rounds = integer("rounds", rounds, at_least=1)
    tolerance = real_number("tolerance", tolerance, at_least=0)
    torch_generator("generator", generator)
    spacing = integer("spacing", spacing, at_least=1)
    window = integer("window", window, at_least=1, at_most=spacing)
    top = integer("top", top, at_least=2, at_most=model.architecture.vocabulary)
    last = model.architecture.vocabulary - 1
    start = integer("start", start, at_least=0, at_most=last)
    text = torch.from_numpy(_equally_long(texts, last).copy())
    if text.shape[1] < spacing:
        raise ValueError(f"texts must hold at least spacing = {spacing} tokens each, got {text.shape[1]}")
    states, quality, counts = [text], [], []
    with evaluation_mode(model), torch.no_grad():
        for _ in range(rounds):
            places = torch.arange(
                int(torch.randint(spacing, (1,), generator=generator)), text.shape[1], spacing
            )
            logits, told = _told(model, text, start)
            quality.append(told.mean(dim=1))
            proposals = _other_choice(logits[:, places].double(), text[:, places], top, generator)
            changed = text.clone()
            changed[:, places] = proposals
            difference = _told(model, changed, start)[1] - told
            # the mean over the window that begins at each place, shorter at the end of the text
            reach = torch.arange(window)
            inside = places[:, None] + reach < text.shape[1]
            steps = difference[:, (places[:, None] + reach).clamp(max=text.shape[1] - 1)]
            fall = -(steps * inside).sum(dim=2) / inside.sum(dim=1)
            accept = fall <= tolerance
            text = text.clone()
            text[:, places] = torch.where(accept, proposals, text[:, places])
            states.append(text)
            counts.append((torch.full((len(text),), len(places)), accept.sum(dim=1)))
        quality.append(_told(model, text, start)[1].mean(dim=1))
    proposed, accepted = (torch.stack(list(column)).numpy() for column in zip(*counts, strict=True))
    return Walk(torch.stack(states).numpy(), torch.stack(quality).numpy(), proposed, accepted)


def _equally_long(texts: ArrayLike, last: int) -> NDArray[np.int64]:
    try:
        table = np.asarray(texts)
    except ValueError:
        raise ValueError("texts must all be equally long") from None
    return integer_array("texts", table, shape=(None, None), at_least=0, at_most=last)


def _told(model: LanguageModel | AveragedModel, text: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Return the logits of each token of the texts, and the log probability of the one that stands there."""
    before = torch.cat([torch.full((len(text), 1), start), text[:, :-1]], dim=1)
    logits = model(before)
    total = torch.stack([row.double().logsumexp(dim=1) for row in logits])
    return logits, logits.gather(2, text.unsqueeze(2)).squeeze(2).double() - total


def _other_choice(logits: Tensor, current: Tensor, top: int, generator: torch.Generator) -> Tensor:
    """Draw one of the ``top`` most probable tokens, but not the one that stands there."""
    best = logits.topk(top, dim=2)
    odds = best.values.softmax(dim=2) * (best.indices != current.unsqueeze(2))
    drawn = torch.multinomial(odds.flatten(0, 1), 1, generator=generator).view(*current.shape, 1)
    return best.indices.gather(2, drawn).squeeze(2)
