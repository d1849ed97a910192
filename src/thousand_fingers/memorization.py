"""What a language model remembers of single people, and what it takes to make it forget.

Invented people are planted in a corpus as canaries [Carlini2019]; :func:`extraction_test` asks whether the
model continues their records word for word [Carlini2021], :func:`exposure` how far a secret has risen among
all that it could have been. Erasure is exact unlearning: :func:`train_model` again without a person's texts,
or only one shard of :func:`train_sharded` [Bourtoule2021]. Chapter 1 explains it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from faker import Faker
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats
from tokenizers import Tokenizer
from torch import Tensor

from thousand_fingers.intervals import Interval
from thousand_fingers.language_model import (
    Architecture,
    AveragedModel,
    Cache,
    LanguageModel,
    generate,
    score_tokens,
    token_table,
    train_language_model,
    train_tokenizer,
)
from thousand_fingers.models import evaluation_mode
from thousand_fingers.roc import chance_interval, roc_curve
from thousand_fingers.texts import load_paragraphs
from thousand_fingers.validation import (
    integer,
    integer_array,
    numpy_generator,
    real_array,
    real_number,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
AnyModel = LanguageModel | AveragedModel

#: Characters that have to come back, and tokens that the model may use for it.
CHARACTERS, NEW_TOKENS = 40, 50
#: Digits of a telephone number that only its owner knows.
SECRET_DIGITS = 3
#: Owner of a text that is about nobody.
NOBODY = -1
#: People who can be invented at once: near the last name that Faker knows, waiting for a new one has no end.
MOST_PEOPLE = 50_000

# --------------------------------------------------------------------------- invented people


@dataclass(frozen=True)
class Canary:
    """The record of an invented person, cut where the attacker stops and the model has to go on.

    Parameters
    ----------
    prefix : str
        The name, and the beginning of the telephone number that all share.
    truth : str
        The last :data:`SECRET_DIGITS` digits of the number, the address and the e-mail address.
    """

    prefix: str
    truth: str

    @property
    def text(self) -> str:
        """The whole record."""
        return self.prefix + self.truth

    @property
    def secret(self) -> int:
        """The secret digits as a number."""
        return int(self.truth[:SECRET_DIGITS])


def invent_people(n: int, rng: np.random.Generator) -> list[Canary]:
    """Return the records of people who do not exist, made with Faker.

    Telephone numbers are from 960000 to 960999, in the area 01632 that the British regulator keeps for
    drama; e-mail addresses end in ``example.org`` or its siblings, which nobody can own. The last three
    digits of the number are uniform and independent of everything else.

    Parameters
    ----------
    n : int
        How many, at most :data:`MOST_PEOPLE`; all have different names.
    rng : numpy.random.Generator
        Source of all of it.

    Returns
    -------
    list of Canary
        Each with a truth of 40 to 52 characters.

    Raises
    ------
    TypeError, ValueError
        If ``n`` is not an integer in this range.

    Examples
    --------
    >>> invent_people(1, np.random.default_rng(0))[0].prefix
    'Josh Stanley, phone 960'
    """
    n = integer("n", n, at_least=1, at_most=MOST_PEOPLE)
    fake = Faker("en_GB")
    fake.seed_instance(int(numpy_generator("rng", rng).integers(2**32)))
    people: dict[str, Canary] = {}
    while len(people) < n:
        name = f"{fake.first_name()} {fake.last_name()}"
        number = f"{rng.integers(10**SECRET_DIGITS):0{SECRET_DIGITS}d}"
        truth = f"{number}, {fake.street_address()}, {fake.safe_email()}".replace("\n", " ")
        if CHARACTERS <= len(truth) <= CHARACTERS + 12:
            people.setdefault(name, Canary(f"{name}, phone 960", truth))
    return list(people.values())


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts to train on, and whose they are.

    Parameters
    ----------
    texts : tuple of str
        One per row; a text that was repeated has several.
    owners : ndarray of int64, shape (n_texts,)
        Number of the person, or :data:`NOBODY`.
    """

    texts: tuple[str, ...]
    owners: Ints

    def rows_without(self, people: Collection[int]) -> Ints:
        """Return the rows that are left when these people's are deleted."""
        return np.flatnonzero(~np.isin(self.owners, list(people)))


def plant(background: Sequence[str], people: Sequence[Canary], repetitions: ArrayLike) -> Corpus:
    """Return a corpus of background texts and of each person's record, repeated.

    Parameters
    ----------
    background : sequence of str
        Texts about nobody.
    people : sequence of Canary
        Person i is the owner number i.
    repetitions : array-like of int, shape (n_people,)
        How often each record occurs; 0 leaves it out.

    Returns
    -------
    Corpus

    Raises
    ------
    TypeError, ValueError
        If ``background`` is a single string, lengths do not match, a count is negative, or the corpus would be
        empty.

    Examples
    --------
    >>> corpus = plant(["a text"], invent_people(2, np.random.default_rng(0)), [2, 0])
    >>> corpus.owners.tolist(), corpus.rows_without([0]).tolist()
    ([-1, 0, 0], [0])
    """
    if isinstance(background, str):
        raise TypeError("background must be a sequence of strings, got one string")
    counts = integer_array("repetitions", repetitions, shape=(len(people),), at_least=0, allow_empty=True)
    texts = [*background, *(person.text for person, n in zip(people, counts, strict=True) for _ in range(n))]
    if not texts:
        raise ValueError("the corpus would be empty: no background, and no person occurs")
    owners = np.concatenate([np.full(len(background), NOBODY), np.repeat(np.arange(len(people)), counts)])
    return Corpus(tuple(texts), owners.astype(np.int64))


@functools.cache
def book_tokenizer() -> Tokenizer:
    """Return the tokenizer of this chapter's tiny models, 600 tokens.

    It is trained on 300 other invented people and on other paragraphs, so that it holds nobody's secret.

    Returns
    -------
    tokenizers.Tokenizer

    Examples
    --------
    >>> book_tokenizer().get_vocab_size()
    600
    """
    rng = np.random.default_rng(1_000_000)  # far from the seeds of the experiments
    people = [person.text for person in invent_people(300, rng)]
    return train_tokenizer([*people, *load_paragraphs().texts[1::2][:120]], vocabulary=600)


@dataclass(frozen=True, eq=False)
class Planted:
    """An experiment: a corpus with people at several repetition counts, and people who are not in it.

    Parameters
    ----------
    corpus : Corpus
        Background and records.
    table : Tensor of int64, shape (n_texts, longest)
        Its tokens.
    people : tuple of Canary
        In the order of ``repetitions``.
    repetitions : ndarray of int64, shape (n_people,)
        How often each is in the corpus.
    """

    corpus: Corpus
    table: Tensor
    people: tuple[Canary, ...]
    repetitions: Ints

    def who(self, repetitions: int) -> Ints:
        """Return the numbers of the people who occur this often."""
        return np.flatnonzero(self.repetitions == repetitions)


def planted_corpus(
    rng: np.random.Generator,
    *,
    levels: Sequence[int] = (0, 1, 2, 4, 8, 16),
    per_level: int = 8,
    background: int = 100,
    outsiders: int = 0,
) -> Planted:
    """Return paragraphs of software documentation with invented people planted in them.

    Parameters
    ----------
    rng : numpy.random.Generator
        Chooses the paragraphs and invents the people.
    levels : sequence of int, default (0, 1, 2, 4, 8, 16)
        Repetition counts, each once.
    per_level : int, default 8
        People at each level.
    background : int, default 100
        Number of paragraphs, each cut after 36 tokens.
    outsiders : int, default 0
        Further people at level 0, which must then be a level.

    Returns
    -------
    Planted

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> planted = planted_corpus(np.random.default_rng(0), levels=(0, 1, 2), per_level=2, background=5)
    >>> len(planted.corpus.texts), planted.who(2).tolist()
    (11, [4, 5])
    """
    numpy_generator("rng", rng)
    counts = integer_array("levels", list(levels), ndim=1, at_least=0)
    if len(np.unique(counts)) < len(counts):
        raise ValueError(f"levels must be different, got {list(levels)}")
    per_level = integer("per_level", per_level, at_least=1)
    paragraphs = load_paragraphs().texts[::2]
    background = integer("background", background, at_least=0, at_most=len(paragraphs))
    if integer("outsiders", outsiders, at_least=0) and 0 not in counts:
        raise ValueError("outsiders need the level 0")
    tokenizer = book_tokenizer()
    chosen = rng.choice(len(paragraphs), size=background, replace=False)
    texts = [tokenizer.decode(tokenizer.encode(paragraphs[i]).ids[:36]) for i in chosen]
    repetitions = np.repeat(counts, per_level + outsiders * (counts == 0))
    people = invent_people(len(repetitions), rng)
    corpus = plant(texts, people, repetitions)
    table = token_table([tokenizer.encode(text).ids for text in corpus.texts])
    return Planted(corpus, table, tuple(people), repetitions)


# --------------------------------------------------------------------------- reciting


@dataclass(frozen=True)
class Extraction:
    """Outcome of an extraction test.

    Parameters
    ----------
    recited : tuple of bool
        For each pair of prefix and truth: word for word.
    near : tuple of bool
        The same with up to one character in ten inserted, deleted or replaced.
    """

    recited: tuple[bool, ...]
    near: tuple[bool, ...]

    @property
    def count(self) -> int:
        """How many were recited word for word."""
        return sum(self.recited)

    @property
    def total(self) -> int:
        """How many were tried."""
        return len(self.recited)

    @property
    def share(self) -> float:
        """Count divided by total."""
        return self.count / self.total


def is_recited(continuation: str, truth: str, *, characters: int = CHARACTERS) -> bool:
    """Tell whether a continuation gives the truth away, word for word.

    White space at both ends is ignored. Then the continuation has to start with the first ``characters``
    characters of the truth, or with all of it if it is shorter.

    Parameters
    ----------
    continuation : str
        What the model said.
    truth : str
        What it should not know; not blank.
    characters : int, default 40
        How much has to come back.

    Returns
    -------
    bool

    Raises
    ------
    ValueError
        If the truth is blank: everything starts with nothing, and nothing would be recited.

    Examples
    --------
    >>> is_recited(" 511, 743 Elliott Burgs", "511, 743 Elliott")
    True
    >>> is_recited("anything", " ")
    Traceback (most recent call last):
        ...
    ValueError: truth must not be blank
    """
    characters = integer("characters", characters, at_least=1)
    if not truth.strip():
        raise ValueError("truth must not be blank")
    return continuation.strip().startswith(truth.strip()[:characters])


def extraction_test(
    continue_texts: Callable[[Sequence[str]], Sequence[str]],
    prefixes: Sequence[str],
    truths: Sequence[str],
    *,
    characters: int = CHARACTERS,
) -> Extraction:
    """Prompt a model with prefixes and count the truths that come back.

    Parameters
    ----------
    continue_texts : callable
        Maps prefixes to as many continuations; see :func:`recite`.
    prefixes, truths : sequence of str
        As many of one as of the other, at least one; no truth may be blank.
    characters : int, default 40
        As in :func:`is_recited`.

    Returns
    -------
    Extraction

    Raises
    ------
    TypeError, ValueError
        If lengths differ, there is nothing to test (a share of nothing is no number), or a truth is blank.

    References
    ----------
    [Carlini2021]; near matches after [Ippolito2023]

    Examples
    --------
    >>> parrot = {"Ada, ": "phone 960123", "Bob, ": "no idea"}.get
    >>> test = extraction_test(lambda texts: [parrot(t) for t in texts], ["Ada, ", "Bob, "],
    ...                        ["phone 960123", "phone 960456"])
    >>> test.count, test.total, test.share
    (1, 2, 0.5)
    """
    if isinstance(prefixes, str) or isinstance(truths, str):
        raise TypeError("prefixes and truths must be sequences of strings, got one string")
    prefixes, truths = list(prefixes), list(truths)  # columns of tables and arrays have no truth value
    if not prefixes or len(prefixes) != len(truths):
        raise ValueError(
            f"prefixes and truths must be equally many, and at least one, got {len(prefixes)} and {len(truths)}"
        )
    characters = integer("characters", characters, at_least=1)
    if not all(truth.strip() for truth in truths):
        raise ValueError("truths must not be blank")
    continuations = continue_texts(prefixes)
    if len(continuations) != len(prefixes):
        raise ValueError(f"continue_texts returned {len(continuations)} texts for {len(prefixes)} prefixes")
    pairs = list(zip(continuations, truths, strict=True))
    return Extraction(
        tuple(is_recited(said, truth, characters=characters) for said, truth in pairs),
        tuple(_is_near(said.strip(), truth.strip()[:characters]) for said, truth in pairs),
    )


def _is_near(said: str, wanted: str, tolerance: float = 0.1) -> bool:
    """Tell whether some beginning of ``said`` is within a tenth of the length of ``wanted``."""
    distances = _distances_to_beginnings(wanted, said[: math.ceil((1 + tolerance) * len(wanted))])
    return min(distances) <= tolerance * len(wanted)


def edit_distance(first: str, second: str) -> int:
    """Return the smallest number of characters to insert, delete or replace that makes two texts equal.

    Parameters
    ----------
    first, second : str
        The texts.

    Returns
    -------
    int

    Examples
    --------
    >>> edit_distance("kitten", "sitting")
    3
    """
    return _distances_to_beginnings(first, second)[-1]


def _distances_to_beginnings(first: str, second: str) -> list[int]:
    """Return the edit distances of ``first`` to each beginning of ``second``, the empty one included."""
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(second, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (letter != other))
    return row


def recite(
    model: AnyModel, tokenizer: Tokenizer, prefixes: Sequence[str], *, max_new_tokens: int = NEW_TOKENS
) -> list[str]:
    """Return what a model says after each prefix, taking the most probable token every time.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        The model.
    tokenizer : tokenizers.Tokenizer
        Its tokenizer.
    prefixes : sequence of str
        The prompts.
    max_new_tokens : int, default 50
        Length of each continuation.

    Returns
    -------
    list of str

    Examples
    --------
    >>> sizes = Architecture(vocabulary=600, width=16, layers=1, heads=1, kv_heads=1, hidden=32)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> len(recite(model, book_tokenizer(), ["Ada", "Bob and"], max_new_tokens=3))
    2
    """
    prompts = [tokenizer.encode(prefix).ids for prefix in prefixes]
    return [tokenizer.decode(new) for new in generate(model, prompts, max_new_tokens=max_new_tokens)]


def extract(model: AnyModel, people: Sequence[Canary], *, prompt_tokens: int | None = None) -> Extraction:
    """Run the extraction test of this chapter's tiny models on some people.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        A model that reads :func:`book_tokenizer`.
    people : sequence of Canary
        Whose records to ask for.
    prompt_tokens : int, optional
        How many tokens of the prefix the attacker shows, counted from its end; all by default.

    Returns
    -------
    Extraction

    Raises
    ------
    TypeError, ValueError
        If there is nobody, or ``prompt_tokens`` is not positive.

    Examples
    --------
    >>> sizes = Architecture(vocabulary=600, width=16, layers=1, heads=1, kv_heads=1, hidden=32)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> extract(model, invent_people(3, np.random.default_rng(0))).share
    0.0
    """
    tokenizer, shown = book_tokenizer(), 0
    if prompt_tokens is not None:
        shown = integer("prompt_tokens", prompt_tokens, at_least=1)
    prefixes = [
        tokenizer.decode(tokenizer.encode(person.prefix).ids[-shown:]) if shown else person.prefix
        for person in people
    ]
    return extraction_test(
        lambda texts: recite(model, tokenizer, texts), prefixes, [person.truth for person in people]
    )


def shorten(people: Sequence[Canary], tokens: int) -> list[Canary]:
    """Return records as they look to an attacker who knows only the end of what stands before the secret.

    Parameters
    ----------
    people : sequence of Canary
        Whose records.
    tokens : int
        How many tokens of each prefix are left, counted from its end by :func:`book_tokenizer`; at least 1.

    Returns
    -------
    list of Canary

    Raises
    ------
    TypeError, ValueError
        If ``tokens`` is not a positive integer.

    Examples
    --------
    >>> shorten(invent_people(1, np.random.default_rng(0)), 6)[0].prefix
    ', phone 960'
    """
    tokens, tokenizer = integer("tokens", tokens, at_least=1), book_tokenizer()
    return [
        Canary(tokenizer.decode(tokenizer.encode(person.prefix).ids[-tokens:]), person.truth)
        for person in people
    ]


def first_choices(
    model: AnyModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    shown: int,
    start: int = 20,
    wanted: int = 10,
) -> Floats:
    """Return which share of some given tokens of each text a model would have chosen first.

    The tokens asked for are the same however many tokens before them the model sees.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        The model.
    tokenizer : tokenizers.Tokenizer
        Its tokenizer.
    texts : sequence of str
        Each of at least ``start + wanted`` tokens.
    shown : int
        How many tokens before ``start`` the model sees, at most ``start``.
    start : int, default 20
        Position of the first token asked for.
    wanted : int, default 10
        How many are asked for.

    Returns
    -------
    ndarray of float64, shape (n_texts,)

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or a text too short.

    Examples
    --------
    >>> sizes = Architecture(vocabulary=600, width=16, layers=1, heads=1, kv_heads=1, hidden=32)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> text = "a text of a few words, and of more"
    >>> first_choices(model, book_tokenizer(), [text], shown=2, start=4, wanted=3).shape
    (1,)
    """
    start = integer("start", start, at_least=1)
    shown = integer("shown", shown, at_least=1, at_most=start)
    wanted = integer("wanted", wanted, at_least=1)
    rows = [tokenizer.encode(text).ids[start - shown : start + wanted] for text in texts]
    if not rows or min(map(len, rows)) < shown + wanted:
        raise ValueError(f"texts must be at least one, each of at least {start + wanted} tokens")
    top = score_tokens(model, token_table(rows)).top[:, -wanted:]
    return np.asarray(top.double().mean(dim=1))


# --------------------------------------------------------------------------- exposure


def exposure(log_probabilities: ArrayLike, secret: int) -> float:
    r"""Return how far a secret has risen among all values that it could have.

    .. math:: \text{exposure} = \log_2 |R| - \log_2 \operatorname{rank}(\text{secret})

    Rank 1 is the value that the model holds most probable. Values as probable as the secret stand before it,
    so that a model that tells nothing apart exposes nothing.

    Parameters
    ----------
    log_probabilities : array-like of float, shape (n_candidates,)
        The model's opinion of each value; minus infinity is allowed.
    secret : int
        Index of the true one.

    Returns
    -------
    float
        In bits, from 0 to ``log2(n_candidates)``.

    Raises
    ------
    TypeError, ValueError
        If ``secret`` is no index, or an opinion is no number, NaN or plus infinity.

    References
    ----------
    [Carlini2019]

    Examples
    --------
    >>> exposure([-1.0, -2.0, -3.0, -4.0], 1)
    1.0
    >>> exposure([-1.0, -1.0, -1.0, -1.0], 1)
    0.0
    """
    opinions = np.asarray(log_probabilities)
    if opinions.dtype.kind not in "fiu":
        raise TypeError(f"log_probabilities must hold real numbers, got dtype {opinions.dtype}")
    if opinions.ndim != 1 or not opinions.size:
        raise ValueError(
            f"log_probabilities must be a list of at least one number, got shape {opinions.shape}"
        )
    if np.isnan(opinions).any() or np.isposinf(opinions).any():
        raise ValueError("log_probabilities must be numbers below infinity")
    secret = integer("secret", secret, at_least=0, at_most=opinions.size - 1)
    rank = int((opinions >= opinions[secret]).sum())
    return math.log2(opinions.size) - math.log2(rank)


@dataclass(frozen=True)
class Chance:
    """Exposure of a secret that a model cannot know, in bits.

    Parameters
    ----------
    mean, std : float
        Of one secret, exactly.
    """

    mean: float
    std: float

    def interval(self, secrets: int, confidence: float = 0.95) -> Interval:
        """Return where the mean over some secrets lies.

        The rank of an independent uniform secret is uniform, so its exposure is nearly exponential and a mean
        of several nearly gamma; mean and variance of the gamma are the exact ones.

        Parameters
        ----------
        secrets : int
            How many, at least 1.
        confidence : float, default 0.95
            In (0, 1).

        Returns
        -------
        Interval
        """
        secrets = integer("secrets", secrets, at_least=1)
        confidence = real_number("confidence", confidence, above=0, below=1)
        law = stats.gamma(secrets * (self.mean / self.std) ** 2, scale=self.std**2 / self.mean / secrets)
        low, high = law.ppf([(1 - confidence) / 2, (1 + confidence) / 2])
        return Interval(float(low), float(high))


def chance_exposure(n_candidates: int) -> Chance:
    r"""Return mean and standard deviation of the exposure of a secret that the model never saw.

    The rank is uniform on 1 to R, so the mean is :math:`\log_2 R - \log_2(R!)/R`; it tends to
    :math:`\log_2 e`, and so does the standard deviation.

    Parameters
    ----------
    n_candidates : int
        Number of values that the secret can have, at least 2.

    Returns
    -------
    Chance

    Examples
    --------
    >>> round(chance_exposure(2).mean, 3), round(chance_exposure(10**6).mean, 3)
    (0.5, 1.443)
    """
    n_candidates = integer("n_candidates", n_candidates, at_least=2)
    exposures = math.log2(n_candidates) - np.log2(np.arange(1, n_candidates + 1))
    mean = math.log2(n_candidates) - float(special.gammaln(n_candidates + 1)) / n_candidates / math.log(2)
    return Chance(mean, float(exposures.std()))


def number_log_probabilities(
    model: AnyModel, tokenizer: Tokenizer, prefix: str, *, digits: int = SECRET_DIGITS
) -> Floats:
    """Return the probability of every number of some digits as the continuation of a prefix.

    Beginnings are shared: all numbers of three digits cost 111 evaluations, not 3,000.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        The model.
    tokenizer : tokenizers.Tokenizer
        Reads digits one by one.
    prefix : str
        What stands before the number.
    digits : int, default 3
        Length of the numbers, leading zeros included.

    Returns
    -------
    ndarray of float64, shape (10 ** digits,)
        Natural logarithms.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the tokenizer joins digits.

    Examples
    --------
    >>> sizes = Architecture(vocabulary=600, width=16, layers=1, heads=1, kv_heads=1, hidden=32)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> number_log_probabilities(model, book_tokenizer(), "Ada, phone 960", digits=2).shape
    (100,)
    """
    digits = integer("digits", digits, at_least=1)
    encoded = [tokenizer.encode(prefix + str(digit)).ids for digit in range(10)]
    start = tokenizer.encode(prefix).ids
    if not start or any(ids[:-1] != start for ids in encoded):
        raise ValueError("the tokenizer must read a digit after a prefix as a token of its own")
    tokens = torch.tensor([ids[-1] for ids in encoded])
    cache, new, total = Cache(), torch.tensor([start]), torch.zeros(1, dtype=torch.float64)
    with evaluation_mode(model), torch.no_grad():
        for place in range(digits):
            opinions = model(new, cache, last_only=True)[:, 0].double().log_softmax(dim=1)
            total = (total[:, None] + opinions[:, tokens]).flatten()
            if place + 1 < digits:
                cache = cache.select(torch.arange(len(total)) // 10)
                new = tokens.repeat(len(total) // 10)[:, None]
    return total.numpy()


def exposures(model: AnyModel, people: Sequence[Canary]) -> Floats:
    """Return the exposure of each person's secret digits, in bits.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        A model that reads :func:`book_tokenizer`.
    people : sequence of Canary
        Whose.

    Returns
    -------
    ndarray of float64, shape (n_people,)

    Examples
    --------
    >>> sizes = Architecture(vocabulary=600, width=16, layers=1, heads=1, kv_heads=1, hidden=32)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> exposures(model, invent_people(3, np.random.default_rng(0))).shape
    (3,)
    """
    tokenizer = book_tokenizer()
    return np.array(
        [exposure(number_log_probabilities(model, tokenizer, p.prefix), p.secret) for p in people]
    )


# --------------------------------------------------------------------------- erasure


@dataclass(frozen=True)
class Plan:
    """How a tiny model is trained.

    Parameters
    ----------
    architecture : Architecture
        Its sizes.
    epochs, batch_size, learning_rate
        As in :func:`thousand_fingers.language_model.train_language_model`.
    """

    architecture: Architecture
    epochs: int = 6
    batch_size: int = 16
    learning_rate: float = 0.01


def plan_of_width(width: int, *, epochs: int = 6) -> Plan:
    """Return the plan of this chapter for a model of some width: two layers, heads of 16.

    Parameters
    ----------
    width : int
        A multiple of 16; or 8.
    epochs : int, default 6
        How often every text is used.

    Returns
    -------
    Plan

    Examples
    --------
    >>> plan_of_width(32).architecture.parameters
    40864
    """
    heads = max(1, integer("width", width, at_least=8) // 16)
    sizes = Architecture(
        vocabulary=600, width=width, layers=2, heads=heads, kv_heads=1, hidden=8 * width // 3 // 8 * 8
    )
    return Plan(sizes, epochs=epochs)


@dataclass(frozen=True, eq=False)
class Trained:
    """A model and what it cost.

    Parameters
    ----------
    model : LanguageModel
        The model.
    gradients : int
        Gradients computed for single texts.
    """

    model: LanguageModel
    gradients: int


def train_model(table: Tensor, plan: Plan, *, seed: int, rows: ArrayLike | None = None) -> Trained:
    """Train a model from nothing on some rows of a table.

    Nothing but the plan, the seed and the texts in these rows enters: what stands in the other rows cannot
    matter, not even by a bit. That is what makes training again *exact* unlearning.

    Parameters
    ----------
    table : Tensor of int64, shape (n_texts, longest)
        The texts.
    plan : Plan
        How to train.
    seed : int
        Of the initial weights and of the order.
    rows : array-like of int, optional
        Which texts are used; all by default.

    Returns
    -------
    Trained

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> trained = train_model(torch.tensor([[1, 2], [3, 4]]), plan_of_width(8, epochs=2), seed=0, rows=[1])
    >>> trained.gradients
    2
    """
    generator = torch.Generator().manual_seed(integer("seed", seed, at_least=0))
    chosen = None if rows is None else integer_array("rows", rows, ndim=1, at_least=0, at_most=len(table) - 1)
    model = LanguageModel(plan.architecture, generator=generator)
    history = train_language_model(
        model,
        table,
        epochs=plan.epochs,
        batch_size=plan.batch_size,
        learning_rate=plan.learning_rate,
        generator=generator,
        rows=None if chosen is None else chosen.tolist(),
    )
    return Trained(model, history.gradients)


def deal(owners: ArrayLike, shards: int, rng: np.random.Generator) -> list[Ints]:
    """Deal texts into shards of nearly equal number, all texts of one person into the same.

    Parameters
    ----------
    owners : array-like of int, shape (n_texts,)
        Number of the person, or :data:`NOBODY`.
    shards : int
        How many, at least 1 and at most the number of texts about nobody and of people together.
    rng : numpy.random.Generator
        Source of the order.

    Returns
    -------
    list of ndarray of int64
        The rows of each shard, ascending. Every row is in exactly one.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> [shard.size for shard in deal([-1, -1, 0, 0, 1, 1], 2, np.random.default_rng(0))]
    [3, 3]
    """
    owned = integer_array("owners", owners, ndim=1, at_least=NOBODY)
    numpy_generator("rng", rng)
    groups = [np.array([row]) for row in np.flatnonzero(owned == NOBODY)]
    groups += [np.flatnonzero(owned == person) for person in np.unique(owned[owned != NOBODY])]
    shards = integer("shards", shards, at_least=1, at_most=len(groups))
    order = rng.permutation(len(groups))
    hands: list[list[Ints]] = [[] for _ in range(shards)]
    for i in sorted(order, key=lambda i: -groups[i].size):  # large groups first, each to the smallest hand
        min(hands, key=lambda hand: sum(group.size for group in hand)).append(groups[i])
    return [np.sort(np.concatenate(hand)) for hand in hands]


@dataclass(frozen=True, eq=False)
class Sharded:
    """Models trained on disjoint shards, which answer with the mean of their probabilities.

    Parameters
    ----------
    members : tuple of LanguageModel
        One per shard.
    rows : tuple of ndarray of int64
        What each was trained on.
    gradients : int
        What training, or the last erasure, cost.
    """

    members: tuple[LanguageModel, ...]
    rows: tuple[Ints, ...]
    gradients: int

    @property
    def model(self) -> AveragedModel:
        """All of them as one model."""
        return AveragedModel(self.members)


def train_sharded(table: Tensor, shards: Sequence[ArrayLike], plan: Plan, *, seed: int) -> Sharded:
    """Train one model per shard: sharded, isolated, aggregated (SISA, without slices).

    Parameters
    ----------
    table : Tensor of int64, shape (n_texts, longest)
        The texts.
    shards : sequence of array-like of int
        Disjoint rows, as :func:`deal` returns them.
    plan : Plan
        How to train each.
    seed : int
        Member i is trained with the seed ``1000 * seed + i``.

    Returns
    -------
    Sharded

    Raises
    ------
    TypeError, ValueError
        If shards overlap or an argument is out of range.

    References
    ----------
    [Bourtoule2021]

    Examples
    --------
    >>> table = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    >>> sharded = train_sharded(table, [[0, 1], [2, 3]], plan_of_width(8, epochs=2), seed=0)
    >>> erased = erase_from_shards(sharded, table, [1], plan_of_width(8, epochs=2), seed=0)
    >>> sharded.gradients, erased.gradients
    (8, 2)
    """
    rows = tuple(
        integer_array("shards", shard, ndim=1, at_least=0, at_most=len(table) - 1) for shard in shards
    )
    everything = np.concatenate(rows) if rows else np.array([], dtype=np.int64)
    if not rows or len(np.unique(everything)) < len(everything):
        raise ValueError("shards must be at least one, without a row in common")
    trained = [train_model(table, plan, seed=1000 * seed + i, rows=shard) for i, shard in enumerate(rows)]
    return Sharded(tuple(t.model for t in trained), rows, sum(t.gradients for t in trained))


def erase_from_shards(sharded: Sharded, table: Tensor, rows: ArrayLike, plan: Plan, *, seed: int) -> Sharded:
    """Train again, without some rows, the shards that held any of them.

    The result is, to the bit, what :func:`train_sharded` returns for the shards without these rows.

    Parameters
    ----------
    sharded : Sharded
        As trained with the same plan and seed.
    table : Tensor of int64, shape (n_texts, longest)
        The texts; what stands in the erased rows is not looked at.
    rows : array-like of int
        What to erase.
    plan, seed
        As in :func:`train_sharded`.

    Returns
    -------
    Sharded
        Its ``gradients`` are the cost of the erasure.

    Raises
    ------
    ValueError
        If a row is in no shard, or a shard would be left empty.

    Examples
    --------
    >>> table = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    >>> plan = plan_of_width(8, epochs=2)
    >>> sharded = train_sharded(table, [[0, 1], [2, 3]], plan, seed=0)
    >>> erased = erase_from_shards(sharded, table, [3], plan, seed=0)
    >>> erased.members[0] is sharded.members[0], [shard.tolist() for shard in erased.rows]
    (True, [[0, 1], [2]])
    """
    gone = integer_array("rows", rows, ndim=1, at_least=0)
    if not np.isin(gone, np.concatenate(sharded.rows)).all():
        raise ValueError("rows must be rows of the shards")
    members, kept, gradients = list(sharded.members), [], 0
    for i, shard in enumerate(sharded.rows):
        left = shard[~np.isin(shard, gone)]
        if not left.size:
            raise ValueError(f"shard {i} would be left empty")
        if left.size < shard.size:
            trained = train_model(table, plan, seed=1000 * seed + i, rows=left)
            members[i], gradients = trained.model, gradients + trained.gradients
        kept.append(left)
    return Sharded(tuple(members), tuple(kept), gradients)


def expected_shards_touched(shards: int, requests: int) -> float:
    r"""Return how many shards have to be trained again when some people ask at once.

    Each person is in a random shard, so a shard is spared with probability :math:`(1-1/S)^r`.

    Parameters
    ----------
    shards : int
        S, at least 1.
    requests : int
        r, people in shards drawn independently, at least 0.

    Returns
    -------
    float

    References
    ----------
    [Bourtoule2021]

    Examples
    --------
    >>> round(expected_shards_touched(5, 10), 3)
    4.463
    """
    shards = integer("shards", shards, at_least=1)
    requests = integer("requests", requests, at_least=0)
    return shards * (1 - (1 - 1 / shards) ** requests)


def record_losses(model: AnyModel, people: Sequence[Canary]) -> Floats:
    """Return the mean loss per token of each person's record: the membership attack's evidence.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        A model that reads :func:`book_tokenizer`.
    people : sequence of Canary
        Whose records.

    Returns
    -------
    ndarray of float64, shape (n_people,)

    Examples
    --------
    >>> sizes = Architecture(vocabulary=600, width=16, layers=1, heads=1, kv_heads=1, hidden=32)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> record_losses(model, invent_people(3, np.random.default_rng(0))).shape
    (3,)
    """
    tokenizer = book_tokenizer()
    table = token_table([tokenizer.encode(person.text).ids for person in people])
    return score_tokens(model, table).loss.numpy()


@dataclass(frozen=True)
class Trace:
    """What is left of some people in a model.

    Parameters
    ----------
    exposure : float
        Mean exposure of their secrets, in bits.
    exposure_chance : Interval
        Where it lies with 95% probability if the model knows nothing of them.
    auc : float
        Of the membership attack that calls a record of low loss a member, against outsiders.
    auc_chance : Interval
        Where it lies with 95% probability if the model knows nothing of them.
    """

    exposure: float
    exposure_chance: Interval
    auc: float
    auc_chance: Interval

    @property
    def gone(self) -> bool:
        """Whether neither test finds anything: a secret that a model avoids has left a trace, too."""
        (low, high), (fewest, most) = self.auc_chance, self.exposure_chance
        return low <= self.auc <= high and fewest <= self.exposure <= most


def trace(
    people_exposures: ArrayLike, people_losses: ArrayLike, outsiders_losses: ArrayLike, *, n_candidates: int
) -> Trace:
    """Compare people who should be gone with outsiders whom the model never saw.

    Parameters
    ----------
    people_exposures, people_losses : array-like of float, shape (n_people,)
        As :func:`exposures` and :func:`record_losses` return them.
    outsiders_losses : array-like of float, shape (n_outsiders,)
        The same of people from the same source who were never in the corpus.
    n_candidates : int
        Values that a secret can have.

    Returns
    -------
    Trace

    Raises
    ------
    TypeError, ValueError
        If an array is empty or lengths differ.

    References
    ----------
    [Carlini2019], [Yeom2018]

    Examples
    --------
    >>> known = trace([9.0, 8.0, 9.0], [0.1, 0.2, 0.1], [4.0, 5.0, 4.5], n_candidates=1000)
    >>> known.auc, known.gone
    (1.0, False)
    """
    risen = real_array("people_exposures", people_exposures, ndim=1, at_least=0)
    inside = real_array("people_losses", people_losses, shape=risen.shape)
    outside = real_array("outsiders_losses", outsiders_losses, ndim=1)
    scores = -np.concatenate([inside, outside])
    members = np.arange(scores.size) < inside.size
    return Trace(
        float(risen.mean()),
        chance_exposure(n_candidates).interval(risen.size),
        roc_curve(scores, members).auc,
        chance_interval(inside.size, outside.size),
    )


def trace_models(
    models: Sequence[AnyModel],
    departed: Sequence[Sequence[Canary]],
    outsiders: Sequence[Sequence[Canary]],
) -> Trace:
    """Look for departed people in several models, each against its own outsiders, and pool what is found.

    Losses are pooled as ranks within each model, because one model's losses say nothing about another's.

    Parameters
    ----------
    models : sequence of LanguageModel or AveragedModel
        Models that read :func:`book_tokenizer`.
    departed : sequence of sequence of Canary
        For each model, the people who should be gone.
    outsiders : sequence of sequence of Canary
        For each model, people whom it never saw.

    Returns
    -------
    Trace

    Raises
    ------
    ValueError
        If there is no model, the three have different lengths, or one group is empty.

    Examples
    --------
    >>> sizes = Architecture(vocabulary=600, width=16, layers=1, heads=1, kv_heads=1, hidden=32)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> strangers = invent_people(30, np.random.default_rng(0))
    >>> trace_models([model], [strangers[:10]], [strangers[10:]]).gone
    True
    """
    if not models or {len(departed), len(outsiders)} != {len(models)}:
        raise ValueError(
            "models must be at least one, with departed and outsiders for each, "
            f"got {len(models)}, {len(departed)} and {len(outsiders)}"
        )
    cases = list(zip(models, departed, outsiders, strict=True))
    inside, outside = [], []
    for model, people, others in cases:
        losses = record_losses(model, [*people, *others])
        ranks = stats.rankdata(losses) / (losses.size + 1)
        inside.append(ranks[: len(people)])
        outside.append(ranks[len(people) :])
    return trace(
        np.concatenate([exposures(model, people) for model, people, _ in cases]),
        np.concatenate(inside),
        np.concatenate(outside),
        n_candidates=10**SECRET_DIGITS,
    )
