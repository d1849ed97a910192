"""Two marks that change no token's probability, averaged over keys: exponential race and tournament.

The exponential race is due to [Aaronson2022], the tournament to [Dathathri2024] (SynthID-Text). A list of
green tokens tilts the distribution of a token; these two only decide, with a secret function of the last few
tokens, *which* of the equally likely draws is taken. That holds for one context; a context that comes again
would get the same draw again, so writer and detector both skip it: :func:`fresh_contexts`. Chapter 10 places
them beside the green list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from thousand_fingers.validation import integer, integer_array, real_array
from thousand_fingers.watermark.text import distribution, splitmix64

_LARGEST = 2**64 - 1
_MULTIPLIER, _INCREMENT = 6_364_136_223_846_793_005, 1  # of Knuth's MMIX generator


def fresh_contexts(tokens: ArrayLike, width: int) -> NDArray[np.bool_]:
    """Tell for each token that has a full context whether the context is new.

    Parameters
    ----------
    tokens : array-like of int, shape (length,)
        A text.
    width : int
        Tokens of a context, at least 1.

    Returns
    -------
    ndarray of bool, shape (max(length - width, 0),)
        Entry t is about token ``t + width`` and the ``width`` tokens before it.

    Examples
    --------
    >>> fresh_contexts([7, 8, 7, 8, 7], 2).tolist()
    [True, True, False]
    """
    width = integer("width", width, at_least=1)
    text = integer_array("tokens", tokens, shape=(None,), allow_empty=True, at_least=0).tolist()
    seen: set[tuple[int, ...]] = set()
    fresh = []
    for t in range(width, len(text)):
        context = tuple(text[t - width : t])
        fresh.append(context not in seen)
        seen.add(context)
    return np.array(fresh, dtype=np.bool_)


# --------------------------------------------------------------------------- the exponential race


def race_uniforms(key: int, context: Sequence[int], vocabulary: int) -> NDArray[np.float64]:
    """Return the secret number of each token after a context.

    Parameters
    ----------
    key : int
        The secret, from 0 to 2**64 - 1.
    context : sequence of int
        The last few tokens.
    vocabulary : int
        Number of tokens there are.

    Returns
    -------
    ndarray of float64, shape (vocabulary,)
        In (0, 1).

    Examples
    --------
    >>> race_uniforms(3, [5, 6], 4).round(3).tolist() == race_uniforms(3, [6, 5], 4).round(3).tolist()
    False
    """
    state = splitmix64(integer("key", key, at_least=0, at_most=_LARGEST))
    for token in context:
        state = splitmix64(state ^ np.uint64(integer("context", token, at_least=0, at_most=_LARGEST)))
    mixed = splitmix64(state ^ np.arange(integer("vocabulary", vocabulary, at_least=1), dtype=np.uint64))
    return np.asarray(((mixed >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53)


def race_winner(probabilities: ArrayLike, uniforms: ArrayLike) -> int:
    """Return the token with the largest log(u) / p: it is token i with probability p_i.

    Parameters
    ----------
    probabilities : array-like of float, shape (vocabulary,)
        The model's distribution, summing to 1.
    uniforms : array-like of float, shape (vocabulary,)
        In (0, 1), from :func:`race_uniforms`, or drawn freely where the context is not fresh.

    Returns
    -------
    int

    Examples
    --------
    >>> race_winner([0.5, 0.5, 0.0], [0.2, 0.9, 0.99])
    1
    """
    p = distribution(probabilities)
    u = real_array("uniforms", uniforms, shape=(p.size,), at_least=0, at_most=1)
    if not ((u > 0) & (u < 1)).all():
        raise ValueError("uniforms must be > 0 and < 1, got an end of the interval")
    possible = np.flatnonzero(p)
    return int(possible[np.argmax(np.log(u[possible]) / p[possible])])


@dataclass(frozen=True)
class RaceDetection:
    """Score of a text under the exponential race.

    Parameters
    ----------
    score : float
        Sum of -log(1 - u) over the tokens counted; Gamma(scored, 1) without a mark.
    scored : int
        Tokens with a fresh context.
    """

    score: float
    scored: int

    @property
    def p_value(self) -> float:
        """Probability of so large a score by chance; 1 without a token to count."""
        return float(special.gammaincc(self.scored, self.score)) if self.scored else 1.0


def detect_race(tokens: ArrayLike, key: int, vocabulary: int, *, width: int = 4) -> RaceDetection:
    """Score a text under the exponential race, contexts that come again left out.

    Parameters
    ----------
    tokens : array-like of int, shape (length,)
        The text.
    key : int
        The secret.
    vocabulary : int
        Number of tokens there are.
    width : int, default 4
        Tokens of a context.

    Returns
    -------
    RaceDetection

    Examples
    --------
    >>> detect_race([1, 2, 3], key=3, vocabulary=9).p_value
    1.0
    """
    key = integer("key", key, at_least=0, at_most=_LARGEST)
    vocabulary = integer("vocabulary", vocabulary, at_least=1)
    text = integer_array(
        "tokens", tokens, shape=(None,), allow_empty=True, at_least=0, at_most=vocabulary - 1
    )
    places = width + np.flatnonzero(fresh_contexts(text, width))
    won = [race_uniforms(key, text[t - width : t].tolist(), vocabulary)[text[t]] for t in places.tolist()]
    return RaceDetection(float(np.abs(np.log1p(-np.array(won)).sum())), len(won))


# --------------------------------------------------------------------------- the tournament


def accumulate_hash(state: ArrayLike, values: Sequence[int]) -> NDArray[np.int64]:
    """Add values to a hash, one after another, as SynthID-Text does.

    Parameters
    ----------
    state : array-like of int64
        Where to begin, one hash for each entry.
    values : sequence of int
        What to add, the same for all entries, each from 0 to 2**64 - 1.

    Returns
    -------
    ndarray of int64
        ``(state + value) * 6364136223846793005 + 1`` modulo 2**64 for each value in turn.

    Examples
    --------
    >>> int(accumulate_hash(1, [1, 2, 3]))
    -5733243364983220134
    """
    added = [integer("values", value, at_least=0, at_most=_LARGEST) for value in values]
    with np.errstate(over="ignore"):
        hashed = integer_array("state", state).astype(np.uint64)
        for value in added:
            hashed = (hashed + np.uint64(value)) * np.uint64(_MULTIPLIER) + np.uint64(_INCREMENT)
    return hashed.astype(np.int64)


def tournament_bits(keys: Sequence[int], context: Sequence[int], tokens: ArrayLike) -> NDArray[np.int64]:
    """Return the secret bits of tokens after a context, one for each layer of the tournament.

    Parameters
    ----------
    keys : sequence of int
        One secret for each layer, at least one, each from 0 to 2**64 - 1.
    context : sequence of int
        The last few tokens.
    tokens : array-like of int, shape (n,)
        The tokens asked about.

    Returns
    -------
    ndarray of int64, shape (n_layers, n)
        0 or 1. The hash is that of the published code; which of its bits is taken is our choice, so that the
        mark is not the published one.

    Examples
    --------
    >>> tournament_bits([3, 5], [1, 2, 3, 4], [0, 1, 2]).shape
    (2, 3)
    """
    asked = integer_array("tokens", tokens, shape=(None,), allow_empty=True, at_least=0)
    secrets = _layers(keys)
    before = int(accumulate_hash(1, [integer("context", token, at_least=0) for token in context]))
    with np.errstate(over="ignore"):
        candidate = accumulate_hash(np.int64(before) + asked, [0])
    layers = [accumulate_hash(candidate, [key]) for key in secrets]
    return np.stack([splitmix64(layer.astype(np.uint64)) >> np.uint64(63) for layer in layers]).astype(
        np.int64
    )


def _layers(keys: Sequence[int]) -> list[int]:
    secrets = [integer("keys", key, at_least=0, at_most=_LARGEST) for key in keys]
    if not secrets:
        raise ValueError("keys must hold at least one secret, got none")
    return secrets


def tournament(probabilities: ArrayLike, bits: ArrayLike) -> NDArray[np.float64]:
    """Return the distribution of the winner of a tournament, two draws in each match.

    Parameters
    ----------
    probabilities : array-like of float, shape (n,)
        The model's distribution, summing to 1.
    bits : array-like of int, shape (n_layers, n)
        Who beats whom in each layer; ties are settled by a fair coin.

    Returns
    -------
    ndarray of float64, shape (n,)
        p becomes ``p * (1 + g - sum(g * p))``, once for each layer.

    Examples
    --------
    >>> tournament([0.5, 0.5], [[1, 0]]).tolist()
    [0.75, 0.25]
    """
    p = distribution(probabilities)
    for layer in integer_array("bits", bits, shape=(None, p.size), at_least=0, at_most=1):
        p = p * (1 + layer - (layer * p).sum())
    return p


def tournament_score(tokens: ArrayLike, keys: Sequence[int], *, width: int = 4) -> tuple[float, int]:
    """Return the mean of the secret bits of a text, and how many there were.

    Parameters
    ----------
    tokens : array-like of int, shape (length,)
        The text.
    keys : sequence of int
        One secret for each layer.
    width : int, default 4
        Tokens of a context.

    Returns
    -------
    mean : float
        1/2 without a mark, NaN without a fresh context.
    n : int
        Number of bits.

    Examples
    --------
    >>> tournament_score([1, 2, 3], [3, 5])
    (nan, 0)
    """
    secrets = _layers(keys)
    text = integer_array("tokens", tokens, shape=(None,), allow_empty=True, at_least=0)
    places = (width + np.flatnonzero(fresh_contexts(text, width))).tolist()
    bits = [tournament_bits(secrets, text[t - width : t].tolist(), text[t : t + 1]) for t in places]
    return (float(np.mean(bits)), np.size(bits)) if bits else (float("nan"), 0)
