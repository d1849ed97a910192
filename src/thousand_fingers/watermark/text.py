"""A watermark in text: green lists that a secret key and the previous token decide.

The mark is the one of [Kirchenbauer2023]: while a language model writes, the logits of a share of the
vocabulary, drawn anew after every token, are raised a little; the detector draws the same lists again and
counts, without the model. :class:`Mark` is the one object that both sides share. The scheme ``"lefthash"`` is
the authors' first one, token for token; whether a token is on a list is decided here without building the
list. ``"hash"`` is a scheme of our own that needs neither the list nor torch. Chapter 10 marks the text of a
real model with it, and attacks it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats
from torch import Tensor

from thousand_fingers.language_model import Adjustment, AveragedModel, LanguageModel, generate
from thousand_fingers.validation import boolean_array, choice, integer, integer_array, real_array, real_number

#: The millionth prime, the key that the published code ships with. Everybody knows it: for trials only.
PUBLIC_KEY = 15_485_863
#: What turns a key and a previous token into a list, for each scheme. A list from another source of random
#: numbers (a graphics card has one) is another list.
PSEUDORANDOM_FUNCTIONS: Mapping[str, str] = {
    "lefthash": "MT19937 of the low 32 bits of key * previous, torch.randperm on a CPU",
    "hash": "splitmix64 of key, previous and token",
}
PLACEMENTS = ("before temperature", "after temperature")

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]

# --------------------------------------------------------------------------- what both sides share


@dataclass(frozen=True)
class Mark:
    """Everything that writing and detecting have to agree on.

    Parameters
    ----------
    vocabulary : int
        Number of logits of the model, at least 2. Take it from the logits, not from the tokenizer: the two
        differ in many models, and another size means other lists.
    key : int, default :data:`PUBLIC_KEY`
        The secret, at least 1 and below 2**64. Under ``"lefthash"`` only its low 32 bits count and it has to
        be odd: an even key gives the same list after many different tokens.
    green_fraction : float, default 0.25
        Share γ of the vocabulary that is green, in (0, 1).
    logit_bias : float, default 2
        Δ, added to green logits; ``math.inf`` forbids the red tokens (the *hard* mark); 0 leaves no mark.
    scheme : {"lefthash", "hash"}, default "lefthash"
        How lists are drawn, see :data:`PSEUDORANDOM_FUNCTIONS`.
    placement : {"before temperature", "after temperature"}, default "before temperature"
        Where the bias is added. Before the logits are divided by the temperature τ it acts like ``Δ / τ``.

    References
    ----------
    [Kirchenbauer2023]

    Examples
    --------
    >>> mark = Mark(vocabulary=16)
    >>> mark.green_size, mark.realised_fraction, mark.hard
    (4, 0.25, False)
    """

    vocabulary: int
    key: int = PUBLIC_KEY
    green_fraction: float = 0.25
    logit_bias: float = 2.0
    scheme: str = "lefthash"
    placement: str = "before temperature"

    def __post_init__(self) -> None:
        """Refuse a mark that marks nothing, or not what it seems to; keep Python's own numbers."""
        checked = {
            "vocabulary": integer("vocabulary", self.vocabulary, at_least=2, at_most=2**31),
            "key": integer("key", self.key, at_least=1, at_most=2**64 - 1),
            "green_fraction": real_number("green_fraction", self.green_fraction, above=0, below=1),
            "logit_bias": real_number("logit_bias", self.logit_bias, at_least=0, allow_infinite=True),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # NumPy's numbers overflow, and are no JSON
        choice("scheme", self.scheme, tuple(PSEUDORANDOM_FUNCTIONS))
        choice("placement", self.placement, PLACEMENTS)
        if self.scheme == "lefthash" and self.key % 2 == 0:
            raise ValueError(f"key must be odd under 'lefthash', got {self.key}")
        if not 1 <= self.green_size <= self.vocabulary - 1:
            raise ValueError(
                "green_fraction must leave a green and a red token, "
                f"got {self.green_fraction} of {self.vocabulary} tokens"
            )

    @property
    def green_size(self) -> int:
        """Tokens on a list, rounded down as in the published code; under ``"hash"`` their expected number."""
        return int(self.vocabulary * self.green_fraction)

    @property
    def realised_fraction(self) -> float:
        """Probability that a token is green by chance: what the detector has to reckon with."""
        if self.scheme == "hash":
            return _hash_limit(self.green_fraction) / 2.0**64
        return self.green_size / self.vocabulary

    @property
    def hard(self) -> bool:
        """Whether red tokens are forbidden."""
        return math.isinf(self.logit_bias)

    @property
    def modulus(self) -> float:
        """The modulus m of the spike entropy that belongs to this mark: (1-γ)(α-1) / (1+(α-1)γ), α = e^Δ."""
        gamma = self.realised_fraction
        return (1 - gamma) / (gamma + 1 / _expm1(self.logit_bias)) if self.logit_bias else 0.0

    @property
    def gain(self) -> float:
        """γα / (1+(α-1)γ): the expected share of green tokens per unit of spike entropy, α = e^Δ."""
        gamma = self.realised_fraction
        return gamma / (gamma + (1 - gamma) * math.exp(-self.logit_bias))

    def as_record(self) -> dict[str, Any]:
        """Return all of it, with the source of random numbers, in a form that can be stored as JSON beside a text.

        JSON has no infinite numbers: the bias of a hard mark is the word ``"infinite"``.
        """
        bias = "infinite" if self.hard else self.logit_bias
        return {**asdict(self), "logit_bias": bias, "prf": PSEUDORANDOM_FUNCTIONS[self.scheme]}


def _expm1(bias: float) -> float:
    return math.inf if bias > 700 else math.expm1(bias)


def require_same_mark(written: Mark | Mapping[str, Any], detector: Mark) -> None:
    """Refuse a detector that was set up for another mark than the one a text was written with.

    Parameters
    ----------
    written : Mark or mapping
        The mark of the text, or what :meth:`Mark.as_record` stored about it.
    detector : Mark
        The mark of the detector.

    Returns
    -------
    None

    Raises
    ------
    ValueError
        If they differ in anything, the source of random numbers included. Secret keys are not printed.

    Examples
    --------
    >>> require_same_mark(Mark(50_265), Mark(50_272))
    Traceback (most recent call last):
        ...
    ValueError: the text was written with vocabulary 50265, the detector has 50272
    """
    theirs = written.as_record() if isinstance(written, Mark) else dict(written)
    ours = detector.as_record()
    for name in (*ours, *(theirs.keys() - ours.keys())):
        there, here = (record.get(name, "nothing said") for record in (theirs, ours))
        if there != here:
            if name == "key":
                raise ValueError("the text was written with another key than the detector has")
            raise ValueError(f"the text was written with {name} {there}, the detector has {here}")


# --------------------------------------------------------------------------- lists


def green_list(mark: Mark, previous: int) -> Integers:
    """Return the green tokens after one token.

    Parameters
    ----------
    mark : Mark
        The mark.
    previous : int
        The token before.

    Returns
    -------
    ndarray of int64, shape (n_green,)
        Under ``"lefthash"`` in the order of the permutation, under ``"hash"`` in rising order.

    Examples
    --------
    >>> green_list(Mark(vocabulary=16), 1).tolist()
    [14, 11, 1, 7]
    """
    previous = integer("previous", previous, at_least=0, at_most=mark.vocabulary - 1)
    if mark.scheme == "hash":
        tokens = np.arange(mark.vocabulary)
        return np.flatnonzero(_hash_is_green(mark, np.full_like(tokens, previous), tokens))
    generator = torch.Generator("cpu").manual_seed(_seed(mark, previous))  # whatever the default device is
    permutation = torch.randperm(mark.vocabulary, generator=generator, device="cpu")
    return permutation[: mark.green_size].numpy()


def is_green(mark: Mark, previous: ArrayLike, tokens: ArrayLike) -> Booleans:
    """Tell for many pairs of tokens whether the second is green after the first.

    Under ``"lefthash"`` no permutation is built. The published lists are the first entries of a shuffle that
    exchanges entry i, for i = 0, 1, 2, …, with an entry drawn from those at or after i. To know where one
    token ends it is enough to follow that token through the exchanges; the draws are the 32-bit outputs of the
    Mersenne Twister [Matsumoto1998], which NumPy produces in bulk. The answer is the same bit for bit.

    Parameters
    ----------
    mark : Mark
        The mark.
    previous : array-like of int, shape (n,)
        Tokens before.
    tokens : array-like of int, shape (n,)
        Tokens asked about.

    Returns
    -------
    ndarray of bool, shape (n,)

    Raises
    ------
    TypeError, ValueError
        If the two differ in length or hold no tokens of this vocabulary.

    Examples
    --------
    >>> is_green(Mark(vocabulary=16), [1, 1, 1], [14, 7, 13]).tolist()
    [True, True, False]
    """
    before = _tokens("previous", previous, mark)
    asked = _tokens("tokens", tokens, mark, length=before.size)
    if mark.scheme == "hash":
        return _hash_is_green(mark, before, asked)
    green = np.zeros(asked.size, dtype=np.bool_)
    size = mark.green_size
    bits = np.random.MT19937()
    twister = np.random.RandomState(bits)  # the public way to seed as torch does
    left = np.arange(mark.vocabulary, mark.vocabulary - size, -1, dtype=np.uint32)
    index = np.arange(size, dtype=np.uint32)
    order = np.argsort(before, kind="stable")
    starts = np.flatnonzero(np.diff(before[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if rows.size == 0:
            continue
        twister.seed(_seed(mark, int(before[rows[0]])))
        drawn = bits.random_raw(size).astype(np.uint32)
        np.remainder(drawn, left, out=drawn)
        drawn += index  # entry i is exchanged with entry drawn[i] >= i
        green[rows] = [_is_drawn(drawn, token) for token in asked[rows].tolist()]
    return green


def _is_drawn(drawn: NDArray[np.uint32], token: int) -> bool:
    """Tell whether a token, followed through the exchanges, ends among the first ``len(drawn)`` entries."""
    place, done = token, 0
    while True:
        if (drawn[done : place + 1] == place).any():
            return True  # drawn, and never moved again
        if place >= len(drawn):
            return False
        place, done = int(drawn[place]), place + 1  # it made room for what was drawn at its own place


def _seed(mark: Mark, previous: int) -> int:
    return mark.key * previous & 0xFFFF_FFFF  # all that a Mersenne Twister on a CPU takes of a seed


_GOLDEN = 0x9E37_79B9_7F4A_7C15


def splitmix64(values: ArrayLike) -> NDArray[np.uint64]:
    """Mix 64 bits into 64 other bits, one to one [Steele2014].

    Fast and well mixed, but no cryptographic function: who sees many of its outputs can compute the key. A
    deployed mark would put a keyed hash such as SipHash here.

    Parameters
    ----------
    values : array-like of uint64
        Any values.

    Returns
    -------
    ndarray of uint64
        The first output of the generator SplitMix64 in that state.

    Examples
    --------
    >>> f"{splitmix64(0):x}"
    'e220a8397b1dcdaf'
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        state = np.asarray(values, dtype=np.uint64) + np.uint64(_GOLDEN)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


def _hash_limit(green_fraction: float) -> int:
    return math.floor(math.ldexp(green_fraction, 64))  # exact


def _hash_is_green(mark: Mark, previous: Integers, tokens: Integers) -> Booleans:
    key = splitmix64(mark.key)
    mixed = splitmix64(splitmix64(key ^ previous.astype(np.uint64)) ^ tokens.astype(np.uint64))
    return np.asarray(mixed < np.uint64(_hash_limit(mark.green_fraction)))


def _tokens(name: str, values: ArrayLike, mark: Mark, length: int | None = None) -> Integers:
    return integer_array(
        name, values, shape=(length,), allow_empty=True, at_least=0, at_most=mark.vocabulary - 1
    )


# --------------------------------------------------------------------------- writing


def marking(marks: Mark | Sequence[Mark], *, temperature: float = 1.0) -> Adjustment:
    """Return what raises the green logits, for :func:`thousand_fingers.language_model.generate`.

    Parameters
    ----------
    marks : Mark or sequence of Mark
        One for all rows, or one for each row.
    temperature : float, default 1
        The temperature that ``generate`` is given, at least 0; needed for marks that are placed after it. At
        temperature 0 there is nothing to divide by, and both placements are the same.

    Returns
    -------
    callable
        ``adjust(tokens, logits)`` with tokens of shape (rows, length) and logits of shape (rows, vocabulary).
        It returns new logits; rows without a token to start from are returned as they are.

    Raises
    ------
    ValueError
        When called with logits of another vocabulary, or another number of rows.

    Examples
    --------
    >>> adjust = marking(Mark(vocabulary=16))
    >>> adjust(torch.tensor([[5, 1]]), torch.zeros(1, 16)).nonzero()[:, 1].tolist()
    [1, 7, 11, 14]
    """
    temperature = real_number("temperature", temperature, at_least=0)

    def adjust(tokens: Tensor, logits: Tensor) -> Tensor:
        rows = [marks] * len(logits) if isinstance(marks, Mark) else list(marks)
        if len(rows) != len(logits) or len(tokens) != len(logits):
            raise ValueError(
                f"tokens and logits must have one row for each of {len(rows)} marks, "
                f"got {len(tokens)} and {len(logits)}"
            )
        for mark in rows:
            if mark.vocabulary != logits.shape[1]:
                raise ValueError(
                    f"the mark must be made for the {logits.shape[1]} logits of the model, "
                    f"got a vocabulary of {mark.vocabulary}"
                )
        if tokens.shape[1] == 0:
            return logits
        raised = logits.clone()
        for row, mark, previous in zip(raised, rows, tokens[:, -1].tolist(), strict=True):
            if not mark.logit_bias:
                continue
            green = torch.from_numpy(green_list(mark, previous))
            if mark.hard:
                allowed = row[green]
                row.fill_(-math.inf)
                row[green] = allowed
            elif mark.placement == "after temperature" and temperature > 0:
                row[green] += mark.logit_bias * temperature
            else:
                row[green] += mark.logit_bias
        return raised

    return adjust


@dataclass(frozen=True, eq=False)
class MarkedTexts:
    """Texts that a model wrote under marks, and what it thought while it wrote.

    Parameters
    ----------
    marks : tuple of Mark
        One for each row.
    tokens : ndarray of int64, shape (rows, length)
        What was written, without the prompts.
    entropy : ndarray of float64, shape (rows, length)
        Entropy in nats of each token's distribution at the temperature used, before the mark.
    spike_entropy : ndarray of float64, shape (rows, length)
        :func:`spike_entropy` of the same distribution, at the modulus of the row's mark.
    log_probability : ndarray of float64, shape (rows, length)
        Of each written token, under the model itself: temperature 1, no mark.
    """

    marks: tuple[Mark, ...]
    tokens: Integers
    entropy: NDArray[np.float64]
    spike_entropy: NDArray[np.float64]
    log_probability: NDArray[np.float64]

    @property
    def perplexity(self) -> NDArray[np.float64]:
        """The exponential of the mean of -log probability, one for each row."""
        return np.asarray(np.exp(-self.log_probability.mean(axis=1)))


def write_marked(
    model: LanguageModel | AveragedModel,
    prompts: Sequence[Sequence[int]],
    marks: Sequence[Mark],
    *,
    new_tokens: int,
    temperature: float,
    generator: torch.Generator,
    banned: Sequence[int] = (),
) -> MarkedTexts:
    """Let a model continue prompts under marks, and keep what the theory needs to know.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        The model.
    prompts : sequence of sequence of int
        Tokens, at least one in each prompt.
    marks : sequence of Mark
        One for each prompt; a mark with ``logit_bias=0`` leaves none.
    new_tokens : int
        Length of every continuation.
    temperature : float
        Greater than 0.
    generator : torch.Generator
        Source of the draws.
    banned : sequence of int, optional
        Tokens that are never written, such as the one that ends a text; each once, and not all there are.

    Returns
    -------
    MarkedTexts

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, a mark was made for another vocabulary, or a hard mark meets a list
        whose green tokens are all banned.

    Examples
    --------
    >>> from thousand_fingers.language_model import Architecture
    >>> sizes = Architecture(vocabulary=300, width=24, layers=1, heads=2, kv_heads=1, hidden=64)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> marks = [Mark(300, green_fraction=0.5, logit_bias=bias) for bias in (0.0, math.inf)]
    >>> texts = write_marked(model, [[5], [6]], marks, new_tokens=30, temperature=1.0,
    ...                      generator=torch.Generator().manual_seed(1))
    >>> [detect(row, mark, repeats=True).share for row, mark in zip(texts.tokens, marks)][1]
    1.0
    """
    temperature = real_number("temperature", temperature, above=0)
    new_tokens = integer("new_tokens", new_tokens, at_least=1)
    if len(marks) != len(prompts):
        raise ValueError(f"marks must hold one mark for each of {len(prompts)} prompts, got {len(marks)}")
    never = _banned(banned, model.architecture.vocabulary)
    raise_green = marking(marks, temperature=temperature)
    lengths = np.array([len(prompt) for prompt in prompts])
    moduli = torch.tensor([[mark.modulus] for mark in marks], dtype=torch.float64)
    entropy, spikes, chosen = np.zeros((3, len(prompts), new_tokens))
    last: list[Tensor] = []  # the model's own log probabilities at the step before

    def keep(table: NDArray[np.float64], place: int, values: Tensor) -> None:
        column = place - lengths
        rows = np.flatnonzero((column >= 0) & (column < new_tokens))
        table[rows, column[rows]] = values.numpy()[rows]

    def adjust(tokens: Tensor, logits: Tensor) -> Tensor:
        place = tokens.shape[1]
        if last:
            keep(chosen, place - 1, last.pop().gather(1, tokens[:, -1:]).squeeze(1))
        last.append(logits.log_softmax(dim=1))
        logits = logits.clone()
        logits[:, never] = -math.inf
        odds = (logits / temperature).softmax(dim=1)
        keep(entropy, place, torch.special.entr(odds).sum(dim=1))
        keep(spikes, place, (odds / (1 + moduli * odds)).sum(dim=1))
        raised = raise_green(tokens, logits)
        blocked = raised.amax(dim=1) == -math.inf
        if blocked.any():
            raise ValueError(
                "banned must leave a green token to a hard mark, "
                f"got none on the list after token {int(tokens[blocked][0, -1])}"
            )
        return raised

    written = generate(
        model,
        prompts,
        max_new_tokens=new_tokens,
        temperature=temperature,
        generator=generator,
        adjust=adjust,
    )
    tokens = torch.tensor(written)
    keep(chosen, int(lengths.max()) + new_tokens - 1, last.pop().gather(1, tokens[:, -1:]).squeeze(1))
    return MarkedTexts(tuple(marks), tokens.numpy(), entropy, spikes, chosen)


def _banned(banned: Sequence[int], vocabulary: int) -> list[int]:
    tokens = integer_array(
        "banned", banned, shape=(None,), allow_empty=True, at_least=0, at_most=vocabulary - 1
    )
    different, times = np.unique(tokens, return_counts=True)
    if (times > 1).any():
        raise ValueError(f"banned must hold each token once, got {different[times > 1][0]} more than once")
    if different.size == vocabulary:
        raise ValueError(f"banned must leave a token to write, got all {vocabulary} of the vocabulary")
    return tokens.tolist()


# --------------------------------------------------------------------------- detecting


@dataclass(frozen=True, eq=False)
class Detection:
    """What the detector counted in one text. It never fails for a text that is too short: it says so.

    Parameters
    ----------
    places : ndarray of int64, shape (n_scored,)
        Positions in the text of the tokens that were counted.
    green : ndarray of bool, shape (n_scored,)
        Whether each of them is green.
    fraction : float
        Probability that a token is green by chance.
    """

    places: Integers
    green: Booleans
    fraction: float

    @property
    def scored(self) -> int:
        """T, the number of tokens that were counted."""
        return self.places.size

    @property
    def hits(self) -> int:
        """|s|_G, the number of green ones among them."""
        return int(self.green.sum())

    @property
    def share(self) -> float:
        """Share of green tokens, NaN without any."""
        return self.hits / self.scored if self.scored else math.nan

    @property
    def z(self) -> float:
        """(|s|_G - γT) / sqrt(Tγ(1-γ)), NaN without a token to count."""
        if not self.scored:
            return math.nan
        spread = math.sqrt(self.scored * self.fraction * (1 - self.fraction))
        return (self.hits - self.fraction * self.scored) / spread

    @property
    def p_value(self) -> float:
        """Probability of at least so many green tokens by chance: exact, from the binomial distribution."""
        return float(stats.binom.sf(self.hits - 1, self.scored, self.fraction)) if self.scored else 1.0

    @property
    def p_normal(self) -> float:
        """The same by the normal approximation, as most detectors print it; far too small for short texts."""
        return float(special.ndtr(-self.z)) if self.scored else 1.0

    @property
    def reason(self) -> str:
        """Why there is no verdict; empty if there is one."""
        return "" if self.scored else "too short"

    def is_marked(self, threshold: float = 4.0) -> bool:
        """Tell whether z is above a threshold that was fixed beforehand."""
        return self.z > real_number("threshold", threshold)  # NaN is above nothing

    def upto(self, length: int) -> Detection:
        """Return what would have been counted in the first ``length`` tokens of the text."""
        seen = self.places < integer("length", length, at_least=0)
        return Detection(self.places[seen], self.green[seen], self.fraction)


def detect(
    tokens: ArrayLike,
    mark: Mark,
    *,
    repeats: bool = False,
    written_with: Mark | Mapping[str, Any] | None = None,
) -> Detection:
    """Count the green tokens of a text, without the model.

    The first token is not counted: what came before it is not part of the text. Give the function what was
    *generated*, not the prompt, which carries no mark and dilutes it.

    Parameters
    ----------
    tokens : array-like of int, shape (length,)
        The text, in tokens of the model's own tokenizer; it may be empty.
    mark : Mark
        The mark to look for.
    repeats : bool, default False
        Whether a pair of neighbours that occurs again is counted again. It carries the same answer each time,
        so that with repeats a list of similar items is a loud false alarm or a loud miss.
    written_with : Mark or mapping, optional
        What is known about how the text was written; a detector that differs is refused.

    Returns
    -------
    Detection

    Raises
    ------
    TypeError, ValueError
        If ``tokens`` are not tokens of the mark's vocabulary, or ``written_with`` is another mark.

    Examples
    --------
    >>> mark = Mark(vocabulary=16)
    >>> found = detect([1, 14, 3, 10, 1, 14], mark)
    >>> found.scored, found.hits, round(found.z, 2), round(found.p_value, 3)
    (4, 2, 1.15, 0.262)
    >>> detect([], mark).reason
    'too short'
    """
    if written_with is not None:
        require_same_mark(written_with, mark)
    text = _tokens("tokens", tokens, mark)
    before, after = text[:-1], text[1:]
    places = np.arange(1, text.size)
    if not repeats:
        pairs = before * mark.vocabulary + after
        first = np.sort(np.unique(pairs, return_index=True)[1])
        before, after, places = before[first], after[first], places[first]
    return Detection(places, is_green(mark, before, after), mark.realised_fraction)


# --------------------------------------------------------------------------- what the theory promises


def spike_entropy(probabilities: ArrayLike, modulus: float) -> float:
    """Return the spike entropy of a distribution: the sum of p / (1 + modulus * p).

    1 for a distribution that is spread thinly, ``1 / (1 + modulus)`` for a certainty.

    Parameters
    ----------
    probabilities : array-like of float, shape (n,)
        Non-negative, summing to 1.
    modulus : float
        At least 0.

    Returns
    -------
    float

    References
    ----------
    [Kirchenbauer2023, Definition 4.1]

    Examples
    --------
    >>> spike_entropy([0.5, 0.5], 1.0), spike_entropy([1.0, 0.0], 1.0)
    (0.6666666666666666, 0.5)
    """
    p = real_array("probabilities", probabilities, shape=(None,), at_least=0)
    modulus = real_number("modulus", modulus, at_least=0)
    if not math.isclose(float(p.sum()), 1.0, abs_tol=1e-6):
        raise ValueError(f"probabilities must sum to 1, got {p.sum()}")
    return float((p / (1 + modulus * p)).sum())


def distribution(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Return a checked distribution over tokens.

    Parameters
    ----------
    probabilities : array-like of float, shape (n,)
        Non-negative, summing to 1.

    Returns
    -------
    ndarray of float64, shape (n,)

    Raises
    ------
    TypeError, ValueError
        If it is none.

    Examples
    --------
    >>> distribution([0.5, 0.6])
    Traceback (most recent call last):
        ...
    ValueError: probabilities must sum to 1, got 1.1
    """
    p = real_array("probabilities", probabilities, shape=(None,), at_least=0)
    if not math.isclose(float(p.sum()), 1.0, abs_tol=1e-6):
        raise ValueError(f"probabilities must sum to 1, got {p.sum()}")
    return p


@dataclass(frozen=True)
class GreenBound:
    """What the theorem promises about the number of green tokens.

    Parameters
    ----------
    mean : float
        The expected number is at least this.
    std : float
        The standard deviation is at most this, for lists that are independent of each other.
    """

    mean: float
    std: float


def green_bound(mark: Mark, mean_spike_entropy: float, length: int) -> GreenBound:
    """Return the lower bound on the expected number of green tokens, and the upper bound on its spread.

    Hypotheses: tokens are sampled (not chosen greedily), each list is random and independent of what came
    before, and the mean spike entropy of the distributions along the text is at least the one given. With
    q the bound on the share of green tokens, the variance is at most T q (1 - q) only if q is at least 1/2: the
    share may be larger than q, and up to a half a larger share varies more. Below, the largest x (1 - x) between
    q and the largest possible share, :attr:`Mark.gain`, takes its place.

    Parameters
    ----------
    mark : Mark
        With a bias that acts as it stands: temperature 1, or placed after the temperature.
    mean_spike_entropy : float
        S*, in (0, 1], at the modulus of the mark.
    length : int
        T, counted with repetitions.

    Returns
    -------
    GreenBound

    References
    ----------
    [Kirchenbauer2023, Theorem 4.2]

    Examples
    --------
    >>> bound = green_bound(Mark(50_272, green_fraction=0.5), 0.807, 200)
    >>> round(bound.mean, 1), round(bound.std, 2)
    (142.2, 6.41)
    """
    spike = real_number("mean_spike_entropy", mean_spike_entropy, above=0, at_most=1)
    length = integer("length", length, at_least=0)
    share = mark.gain * spike
    most_varied = min(max(share, 0.5), max(mark.gain, share))
    return GreenBound(length * share, math.sqrt(length * most_varied * (1 - most_varied)))


def green_needed(fraction: float, length: int, threshold: float = 4.0) -> float:
    """Return the number of green tokens at which z reaches a threshold.

    Parameters
    ----------
    fraction : float
        γ, in (0, 1).
    length : int
        T, at least 0.
    threshold : float, default 4
        z.

    Returns
    -------
    float

    Examples
    --------
    >>> round(green_needed(0.5, 200), 2)
    128.28
    """
    fraction = real_number("fraction", fraction, above=0, below=1)
    length = integer("length", length, at_least=0)
    threshold = real_number("threshold", threshold)
    return fraction * length + threshold * math.sqrt(length * fraction * (1 - fraction))


def marked_probabilities(
    probabilities: ArrayLike, green: ArrayLike, logit_bias: float
) -> NDArray[np.float64]:
    """Return a distribution after the logits of the green tokens were raised.

    Parameters
    ----------
    probabilities : array-like of float, shape (n,)
        The model's distribution, summing to 1.
    green : array-like of bool, shape (n,)
        Which tokens are green; not their numbers.
    logit_bias : float
        Δ, at least 0, finite.

    Returns
    -------
    ndarray of float64, shape (n,)

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> marked_probabilities([0.5, 0.5], [True, False], np.log(3)).round(6).tolist()
    [0.75, 0.25]
    """
    p = distribution(probabilities)
    bias = real_number("logit_bias", logit_bias, at_least=0)
    raised = p * np.where(boolean_array("green", green, shape=p.shape), 1.0, math.exp(-bias))
    if not raised.any():  # all of it is red, and the bias beyond what a float can tell from none
        return p
    return np.asarray(raised / raised.sum())
