"""Chapter 10's long runs: texts that SmolLM2-135M wrote under a mark, and what was done to them with a model.

The texts are token ids. The model is float32, so that another processor chooses another token about once in a
hundred thousand; the spot check writes the beginning of each text again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from thousand_fingers.book.artefacts import load_artefact
from thousand_fingers.language_model import Adjustment, LanguageModel, generate, load_smollm2
from thousand_fingers.validation import integer
from thousand_fingers.watermark.text import Mark, marking, write_marked
from thousand_fingers.watermark.text_attacks import interleaving, random_walk

#: Number of logits of the model.
VOCABULARY = 49_152
#: The key of this book's marks. A real one would be secret, and not a number that stands in a book.
KEY = 1_000_000_007
#: Tokens that end or begin something; never written.
SPECIAL = (0, 1, 2)

#: What the emoji attack asks for; an asterisk, because it is one token.
EMOJI = " *"

#: How the texts begin. Stories leave the model free, lists leave it next to no choice. The quotations are from
#: works that are in the public domain.
PROMPTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "stories": (
            "The lighthouse keeper opened the letter and",
            "It was already dark when the last train",
            "My grandmother never spoke about the winter",
            "Nobody in the village had expected the circus",
            "On the third day of the voyage the captain",
            "The museum closed at six, but the clock",
            "When the river froze, the children of the town",
            "She had been a piano tuner for thirty years and",
        ),
        "code": (
            'def read_table(path):\n    """Read a table of numbers from a text file."""\n',
            "import random\n\n\ndef shuffle(cards):\n",
            "for i in range(10):\n    print(i)\n\nfor j in range(20):\n",
            "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
            "def is_prime(n):\n    if n < 2:\n        return False\n",
            "#include <stdio.h>\n\nint main(void)\n{\n",
            "function add(a, b) {\n  return a + b;\n}\n\nfunction subtract(a, b) {\n",
            "SELECT name, price\nFROM products\nWHERE price > 10\n",
        ),
        "quotations": (
            "We hold these truths to be self-evident, that all men are created equal, that they are endowed",
            "Our Father, who art in heaven, hallowed be thy name; thy kingdom come; thy will be done; on",
            "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer the",
            "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived",
            "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of",
            "In the beginning God created the heaven and the earth. And the earth was without form, and void; and",
            "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be",
            "We the People of the United States, in Order to form a more perfect Union, establish Justice, insure",
        ),
        "lists": (
            "1, 2, 3, 4, 5, 6, 7, 8, 9, 10,",
            "A, B, C, D, E, F, G, H, I, J,",
            "January, February, March, April, May, June, July, August, September,",
            "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. Monday,",
            "One, two, three, four, five, six, seven, eight, nine, ten,",
            "2, 4, 6, 8, 10, 12, 14, 16, 18, 20,",
            "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune. Mercury,",
            "North, east, south, west, north, east, south, west,",
        ),
    }
)
#: Marks of the stories: share of green tokens and bias; the first leaves none.
STRENGTHS = ((0.25, 0.0), (0.25, 1.0), (0.25, 2.0), (0.25, 4.0), (0.5, 2.0), (0.5, 4.0))
#: Further shares of green tokens, at a bias of 2; with those above they span the range of [Kirchenbauer2023].
FURTHER_SHARES = (0.1, 0.75, 0.9)
#: Parts of ``10_marked_texts``: stories at temperature 1, and all kinds of text at 0.7.
STORY_PARTS, KIND_PARTS = (0, 1, 6), (2, 3, 4, 5)


@functools.cache  # 538 MB that take seconds to unpack; a process makes several parts
def _real_model() -> tuple[LanguageModel, Tokenizer]:
    return load_smollm2()


def book_mark(green_fraction: float = 0.25, logit_bias: float = 2.0) -> Mark:
    """Return a mark of this chapter's texts.

    Parameters
    ----------
    green_fraction : float, default 0.25
        γ.
    logit_bias : float, default 2
        Δ, placed after the temperature.

    Returns
    -------
    Mark

    Examples
    --------
    >>> book_mark().realised_fraction
    0.25
    """
    return Mark(
        VOCABULARY,
        key=KEY,
        green_fraction=green_fraction,
        logit_bias=logit_bias,
        placement="after temperature",
    )


def rows_of(part: int) -> list[tuple[str, str, Mark]]:
    """Return kind, beginning and mark of each row of one part of ``10_marked_texts``.

    Parameters
    ----------
    part : int
        0 and 1, at temperature 1: four stories each under all of :data:`STRENGTHS`. 2 to 5, at temperature 0.7:
        two texts of each kind, stories included, under no mark, Δ = 2 and Δ = 4. 6, at temperature 1: the eight
        stories under Δ = 2 and each of :data:`FURTHER_SHARES`.

    Returns
    -------
    list of (str, str, Mark)

    Examples
    --------
    >>> {len(rows_of(part)) for part in range(7)}
    {24}
    """
    part = integer("part", part, at_least=0, at_most=6)
    strengths: Sequence[tuple[float, float]] = STRENGTHS
    if part == 6:
        chosen = [("stories", text) for text in PROMPTS["stories"]]
        strengths = [(share, 2.0) for share in FURTHER_SHARES]
    elif part < 2:
        chosen = [("stories", text) for text in PROMPTS["stories"][4 * part : 4 * part + 4]]
    else:
        first = 2 * (part - 2)
        chosen = [(kind, text) for kind, texts in PROMPTS.items() for text in texts[first : first + 2]]
        strengths = (STRENGTHS[0], STRENGTHS[2], STRENGTHS[3])
    return [(kind, text, book_mark(*strength)) for kind, text in chosen for strength in strengths]


def temperature_of(part: int) -> float:
    """Return the temperature of one part of ``10_marked_texts``.

    Parameters
    ----------
    part : int
        As in :func:`rows_of`.

    Returns
    -------
    float

    Examples
    --------
    >>> [temperature_of(part) for part in range(7)]
    [1.0, 1.0, 0.7, 0.7, 0.7, 0.7, 1.0]
    """
    return 1.0 if integer("part", part, at_least=0, at_most=6) in STORY_PARTS else 0.7


def marked_texts(part: int, *, new_tokens: int) -> dict[str, NDArray[Any]]:
    """Let the model write the texts of one part.

    Parameters
    ----------
    part : int
        As in :func:`rows_of`; also the seed of the draws.
    new_tokens : int
        Length of each text.

    Returns
    -------
    dict
        ``tokens``: int32, shape (24, new_tokens); ``entropy``, ``spike_entropy``, ``log_probability``:
        float32, of that shape, as in :class:`thousand_fingers.watermark.text.MarkedTexts`.

    Examples
    --------
    >>> marked_texts(0, new_tokens=16)["tokens"].shape  # doctest: +SKIP
    (24, 16)
    """
    rows = rows_of(part)
    model, tokenizer = _real_model()
    written = write_marked(
        model,
        [tokenizer.encode(text).ids for _, text, _ in rows],
        [mark for _, _, mark in rows],
        new_tokens=new_tokens,
        temperature=temperature_of(part),
        generator=torch.Generator().manual_seed(part),
        banned=SPECIAL,
    )
    return {
        "tokens": written.tokens.astype(np.int32),
        "entropy": written.entropy.astype(np.float32),
        "spike_entropy": written.spike_entropy.astype(np.float32),
        "log_probability": written.log_probability.astype(np.float32),
    }


def emoji_texts(part: int, *, new_tokens: int) -> dict[str, NDArray[Any]]:
    """Let the model write marked stories with an asterisk after each token, as if it had been asked to.

    Parameters
    ----------
    part : int
        0; also the seed of the draws.
    new_tokens : int
        Length of each text with the asterisks.

    Returns
    -------
    dict
        ``tokens``: int32, shape (8, new_tokens).

    Examples
    --------
    >>> emoji_texts(0, new_tokens=16)["tokens"].shape  # doctest: +SKIP
    (8, 16)
    """
    integer("part", part, at_least=0, at_most=0)
    model, tokenizer = _real_model()
    prompts = [tokenizer.encode(text).ids for text in PROMPTS["stories"]]
    (asterisk,) = tokenizer.encode(EMOJI).ids
    mark = marking(book_mark(), temperature=1.0)
    adjust = interleaving(asterisk, _without_special(mark), prompt_lengths=list(map(len, prompts)))
    written = generate(
        model,
        prompts,
        max_new_tokens=new_tokens,
        temperature=1.0,
        generator=torch.Generator().manual_seed(part),
        adjust=adjust,
    )
    return {"tokens": np.array(written, dtype=np.int32)}


def _without_special(then: Adjustment) -> Adjustment:
    def adjust(tokens: Tensor, logits: Tensor) -> Tensor:
        adjusted = then(tokens, logits).clone()
        adjusted[:, list(SPECIAL)] = -math.inf
        return adjusted

    return adjust


def marked_stories(length: int) -> NDArray[np.int64]:
    """Return the beginnings of the eight stories of ``10_marked_texts`` with γ = 0.25 and Δ = 2.

    Parameters
    ----------
    length : int
        Tokens of each.

    Returns
    -------
    ndarray of int64, shape (8, length)

    Examples
    --------
    >>> marked_stories(100).shape  # doctest: +SKIP
    (8, 100)
    """
    tokens = load_artefact("10_marked_texts")["tokens"]
    length = integer("length", length, at_least=1, at_most=tokens.shape[2])
    wanted = [[row for row, (*_, mark) in enumerate(rows_of(p)) if mark == book_mark()] for p in range(2)]
    return np.concatenate([tokens[part, rows, :length] for part, rows in enumerate(wanted)]).astype(np.int64)


def paraphrases(part: int, *, length: int, new_tokens: int) -> dict[str, NDArray[Any]]:
    """Ask the same model, without a mark, to rewrite the marked stories.

    Parameters
    ----------
    part : int
        0 draws at temperature 0.7, 1 takes the most probable token each time.
    length : int
        Tokens of each story that are shown.
    new_tokens : int
        Tokens of each answer; an answer that ends earlier is filled up with the token that ended it.

    Returns
    -------
    dict
        ``tokens``: int32, shape (8, new_tokens).

    Examples
    --------
    >>> paraphrases(0, length=100, new_tokens=12)["tokens"].shape  # doctest: +SKIP
    (8, 12)
    """
    part = integer("part", part, at_least=0, at_most=1)
    stories = marked_stories(length)
    model, tokenizer = _real_model()
    asked = tokenizer.encode(
        "<|im_start|>user\nRewrite the following text in your own words. Keep its meaning.\n\n"
    ).ids
    then = tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n").ids
    written = generate(
        model,
        [[*asked, *story, *then] for story in stories.tolist()],
        max_new_tokens=new_tokens,
        temperature=(0.7, 0.0)[part],
        generator=torch.Generator().manual_seed(part),
    )
    tokens = np.array(written, dtype=np.int32)
    ended = np.cumsum(np.isin(tokens, SPECIAL), axis=1) > 0
    return {"tokens": np.where(ended, SPECIAL[-1], tokens).astype(np.int32)}


def walks(
    part: int, *, tolerances: Sequence[float], length: int, texts: int, rounds: int
) -> dict[str, NDArray[Any]]:
    """Walk away from some of the marked stories, with the same model as proposer and as judge.

    Parameters
    ----------
    part : int
        Which of the tolerances; also the seed of the draws.
    tolerances : sequence of float
        As in :func:`thousand_fingers.watermark.text_attacks.random_walk`.
    length : int
        Tokens of each story.
    texts : int
        Number of stories, every second one of the eight.
    rounds : int
        Number of rounds.

    Returns
    -------
    dict
        ``tokens``: int32, shape (rounds + 1, texts, length); ``log_likelihood``: float32, shape (rounds + 1,
        texts); ``accepted`` and ``proposed``: int32, shape (rounds, texts).

    Examples
    --------
    >>> walks(0, tolerances=[0.4], length=100, texts=4, rounds=1)["tokens"].shape  # doctest: +SKIP
    (2, 4, 100)
    """
    tolerance = tolerances[integer("part", part, at_least=0, at_most=len(tolerances) - 1)]
    stories = marked_stories(length)[:: 8 // integer("texts", texts, at_least=1, at_most=8)][:texts]
    model, _ = _real_model()
    walk = random_walk(
        model,
        stories,
        start=SPECIAL[0],
        rounds=rounds,
        tolerance=tolerance,
        generator=torch.Generator().manual_seed(part),
    )
    return {
        "tokens": walk.tokens.astype(np.int32),
        "log_likelihood": walk.log_likelihood.astype(np.float32),
        "accepted": walk.accepted.astype(np.int32),
        "proposed": walk.proposed.astype(np.int32),
    }
