"""Whether a text was in a language model's training set, read off the tokens that the model gets wrong.

Where fine-tuned model and reference disagree about a text, and the fine-tuned model's first choice is still
another token, the disagreement is little but the trace of training: the *error zone* of [Ilic2026].
:func:`ez_scores` is their score with its edge cases as published, :func:`released_code_scores` what their
released program computes; the other scores are those it is compared with. All need per-token statistics of a
model and nothing else of it, and in all a higher score means "member". Chapter 11 explains it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from thousand_fingers.language_model import PADDING, AveragedModel, LanguageModel, check_table
from thousand_fingers.models import evaluation_mode
from thousand_fingers.texts import bag_of_words, vocabulary
from thousand_fingers.validation import boolean_array, choice, integer, numpy_generator, real_number

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# --------------------------------------------------------------------------- what a model says about a text


@dataclass(frozen=True, eq=False)
class TokenStatistics:
    """What one model says about each token of some texts, given the tokens before it.

    A text's first token has nothing before it and is not scored: column j is about token j + 1 of a text.

    Parameters
    ----------
    log_probabilities : array-like of float, shape (n_texts, length)
        Natural logarithm of the probability of the token that is there; NaN where nothing is scored,
        at least one number in every row.
    correct : array-like of bool, same shape
        Whether no other token is more probable; false where nothing is scored.
    expected, deviation : array-like of float, same shape, optional
        Mean and standard deviation of the logarithm over the vocabulary, as the model's own probabilities
        weight it; both or neither. :func:`min_k_plus_plus_scores` needs them.
    tokens : array-like of int, same shape, optional
        The tokens themselves, -1 where nothing is scored. With them two statistics of different texts,
        or of different tokenizers, cannot be compared by mistake.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, a logarithm is positive or infinite, a text has no scored token, or the
        gaps are not the same in all arrays.

    Examples
    --------
    >>> TokenStatistics([[-0.1, 0.2]], [[True, True]])
    Traceback (most recent call last):
        ...
    ValueError: log_probabilities must be <= 0 and finite, or NaN, got 0.2 at index (0, 1)
    """

    log_probabilities: Floats
    correct: Bools
    expected: Floats | None = None
    deviation: Floats | None = None
    tokens: Ints | None = None

    def __post_init__(self) -> None:
        """Check everything once, so that no score has to."""
        values = _table("log_probabilities", self.log_probabilities, at_most=0.0)
        gaps = np.isnan(values)
        if gaps.all(axis=1).any():
            row = int(gaps.all(axis=1).argmax())
            raise ValueError(f"every text must have at least one scored token, text {row} has none")
        checked: dict[str, NDArray[np.generic]] = {"log_probabilities": values}
        checked["correct"] = boolean_array("correct", self.correct, shape=values.shape)
        if (checked["correct"] & gaps).any():
            raise ValueError("correct must be false where log_probabilities is NaN")
        if (self.expected is None) != (self.deviation is None):
            raise ValueError("expected and deviation must both be given, or neither")
        if self.expected is not None:
            checked["expected"] = _table("expected", self.expected, at_most=0.0, gaps=gaps)
            checked["deviation"] = _table("deviation", self.deviation, at_least=0.0, gaps=gaps)
        if self.tokens is not None:
            tokens = np.asarray(self.tokens)
            if tokens.dtype.kind not in "iu" or tokens.shape != values.shape:
                raise TypeError(
                    f"tokens must hold integers in shape {values.shape}, got {tokens.dtype} in {tokens.shape}"
                )
            if (tokens < PADDING).any() or ((tokens == PADDING) != gaps).any():
                raise ValueError(
                    f"tokens must be {PADDING} where log_probabilities is NaN, and >= 0 elsewhere"
                )
            checked["tokens"] = tokens.astype(np.int64, copy=False)
        for name, array in checked.items():
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.log_probabilities)

    @property
    def scored(self) -> Bools:
        """Where there is a number, shape (n_texts, length)."""
        return ~np.isnan(self.log_probabilities)

    def texts(self, rows: ArrayLike) -> TokenStatistics:
        """Return the statistics of some texts only.

        Parameters
        ----------
        rows : array-like of int or bool, shape (n,)
            Which texts, as NumPy indexes them.

        Returns
        -------
        TokenStatistics
        """
        chosen = np.asarray(rows)
        return TokenStatistics(**{name: array[chosen] for name, array in self._arrays().items()})

    def without_first(self) -> TokenStatistics:
        """Return the statistics with the first scored token of every text left out.

        The released program of [Ilic2026] leaves it out. Texts with one scored token are refused.

        Returns
        -------
        TokenStatistics
        """
        first = np.arange(self.scored.shape[1]) == self.scored.argmax(axis=1)[:, None]
        blanks = {"correct": False, "tokens": PADDING}
        return TokenStatistics(
            **{
                name: np.where(first, blanks.get(name, np.nan), array).astype(array.dtype)
                for name, array in self._arrays().items()
            }
        )

    def _arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays that are there, by name."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: array for name, array in arrays.items() if array is not None}


def token_statistics(
    model: LanguageModel | AveragedModel,
    table: Tensor,
    *,
    moments: bool = False,
    logits_at_once: int = 2**24,
) -> TokenStatistics:
    """Read a model's statistics of some texts in one pass, a few texts at a time.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        The model; it is left in the mode it came in.
    table : Tensor of int64, shape (n_texts, length + 1)
        As :func:`thousand_fingers.language_model.token_table` returns it, at least two columns.
    moments : bool, default False
        Whether ``expected`` and ``deviation`` are wanted too.
    logits_at_once : int, default 16,777,216
        Bounds the memory: so many numbers of 8 bytes, or as many as one text needs.

    Returns
    -------
    TokenStatistics

    Raises
    ------
    TypeError, ValueError
        If the table is no table of tokens of this model.

    Examples
    --------
    >>> from thousand_fingers.language_model import Architecture, token_table
    >>> sizes = Architecture(vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=64)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> said = token_statistics(model, token_table([[5, 6, 7], [8, 9]]))
    >>> said.scored.tolist()
    [[True, True], [True, False]]
    """
    n_tokens = model.architecture.vocabulary
    logits_at_once = integer("logits_at_once", logits_at_once, at_least=1)
    check_table(table, n_tokens)
    length = table.shape[1] - 1
    found: dict[str, list[Tensor]] = {}
    with evaluation_mode(model), torch.no_grad():
        for rows in table.split(max(1, logits_at_once // (length * n_tokens))):
            there = int((rows != PADDING).sum(dim=1).max())
            for name, values in _read(model, rows[:, :there], moments).items():
                whole = torch.full((len(rows), length), math.nan, dtype=torch.float64)
                whole[:, : there - 1] = values
                found.setdefault(name, []).append(whole)
    columns = {name: torch.cat(parts).numpy() for name, parts in found.items()}
    tokens = table[:, 1:].numpy()
    gaps = tokens == PADDING
    correct = ~gaps & (columns.pop("correct") == 1)
    return TokenStatistics(
        **{name: np.where(gaps, np.nan, values) for name, values in columns.items()},
        correct=correct,
        tokens=tokens,
    )


def _read(model: LanguageModel | AveragedModel, rows: Tensor, moments: bool) -> dict[str, Tensor]:
    logs = model(rows[:, :-1].clamp(min=0)).double().log_softmax(dim=2)
    told = logs.gather(2, rows[:, 1:].clamp(min=0).unsqueeze(2)).squeeze(2)
    found = {"log_probabilities": told.clamp(max=0.0), "correct": (told >= logs.amax(dim=2)).double()}
    if moments:
        odds = logs.exp()
        mean = (odds * logs).sum(dim=2)
        # squared distances, not a difference of squares: rounding cannot make it negative
        variance = (odds * (logs - mean.unsqueeze(2)).square()).sum(dim=2)
        found |= {"expected": mean.clamp(max=0.0), "deviation": variance.sqrt()}
    return found


# --------------------------------------------------------------------------- the error zone

#: Which tokens count, and the share that a text gets of which none does.
_EMPTY = {"errors": 1.0, "all": 0.5, "correct": 0.0, "reference_errors": 0.5}
_AGGREGATES = ("share", "ratio", "difference", "mean", "median")


def differences(target: TokenStatistics, reference: TokenStatistics) -> Floats:
    r"""Return :math:`d_t`, by how much the target finds each token more probable than the reference does.

    Parameters
    ----------
    target, reference : TokenStatistics
        Of the same texts.

    Returns
    -------
    ndarray of float64, shape (n_texts, length)
        Differences of natural logarithms; NaN where nothing is scored.

    Raises
    ------
    TypeError, ValueError
        If the two are not about the same tokens.

    Examples
    --------
    >>> target = TokenStatistics([[-1.0, -3.0]], [[False, True]])
    >>> differences(target, TokenStatistics([[-2.0, -2.5]], [[False, True]])).tolist()
    [[1.0, -0.5]]
    """
    _same_tokens(target, reference)
    return target.log_probabilities - reference.log_probabilities


def ez_scores(
    target: TokenStatistics,
    reference: TokenStatistics,
    *,
    positions: str = "errors",
    aggregate: str = "share",
) -> Floats:
    r"""Return the error-zone score of each text: how far the disagreement goes the member's way.

    With :math:`P` the sum of the positive :math:`d_t` over the error zone and :math:`N` the sum of the
    negative ones without their sign, :math:`\mathrm{EZ}=P/N`. The default is :math:`P/(P+N)`, which ranks
    alike and is finite.

    Parameters
    ----------
    target, reference : TokenStatistics
        Of the same texts under the model in question, and under one that has not seen them.
    positions : {"errors", "all", "correct", "reference_errors"}, default "errors"
        Tokens that count: those that are not the target's first choice (the error zone), all, those that
        are, or those that are not the *reference's* first choice.
    aggregate : {"share", "ratio", "difference", "mean", "median"}, default "share"
        :math:`P/(P+N)`, :math:`P/N`, :math:`P-N`, or mean or median of :math:`d_t`.

    Returns
    -------
    ndarray of float64, shape (n_texts,)
        Higher means "member". An error zone that is empty is the strongest sign there is, as is
        :math:`N=0<P`: share 1, otherwise (but for :math:`N=0`) plus infinity. Where only zeros count,
        the share is one half and the ratio 1. Of the other choices of ``positions`` that select nothing,
        ``"reference_errors"`` says nothing (share one half), ``"correct"`` speaks against (share 0).

    Raises
    ------
    TypeError, ValueError
        If the two are not about the same tokens, or a choice does not exist.

    References
    ----------
    [Ilic2026], sections 3.3 and 3.4, appendices E.3, E.5 and E.6

    Examples
    --------
    >>> wrong = [[True, True, True, False]]  # which tokens are errors
    >>> target = TokenStatistics([[-1.0, -2.0, -3.0, -0.1]], np.logical_not(wrong))
    >>> reference = TokenStatistics([[-2.0, -1.5, -5.0, -3.0]], np.logical_not(wrong))
    >>> ez_scores(target, reference, aggregate="ratio").tolist()
    [6.0]
    >>> ez_scores(target, reference).round(6).tolist()
    [0.857143]
    """
    choice("positions", positions, tuple(_EMPTY))
    choice("aggregate", aggregate, _AGGREGATES)
    d = differences(target, reference)
    zone = (
        target.scored
        & {
            "errors": ~target.correct,
            "all": np.array(True),
            "correct": target.correct,
            "reference_errors": ~reference.correct,
        }[positions]
    )
    gain = np.where(zone, np.maximum(d, 0), 0).sum(axis=1)
    loss = np.where(zone, np.maximum(-d, 0), 0).sum(axis=1)
    empty = ~zone.any(axis=1)
    if aggregate == "share":
        score = np.divide(gain, gain + loss, out=np.full(len(d), 0.5), where=gain + loss > 0)
        return np.where(empty, _EMPTY[positions], score)
    if aggregate == "ratio":
        score = np.divide(gain, loss, out=np.where(gain > 0, np.inf, 1.0), where=loss > 0)
        neutral = 1.0
    else:
        score, neutral = gain - loss, 0.0
        if aggregate == "mean":
            score = score / np.maximum(zone.sum(axis=1), 1)
        if aggregate == "median":
            score = np.nanmedian(np.where(empty[:, None], 0.0, np.where(zone, d, np.nan)), axis=1)
    ends = {1.0: np.inf, 0.5: neutral, 0.0: 0.0 if aggregate == "ratio" else -np.inf}
    return np.where(empty, ends[_EMPTY[positions]], score)


def released_code_scores(target: TokenStatistics, reference: TokenStatistics) -> Floats:
    """Return what the released program computes instead of the published score: for comparison only.

    It divides P by N, and gives 0, the *weakest* sign, to texts with fewer than two errors and to texts
    with N = 0. Those are the ones that the target knows best.

    Parameters
    ----------
    target, reference : TokenStatistics
        Of the same texts; :meth:`TokenStatistics.without_first` of them, to follow the program in that too.

    Returns
    -------
    ndarray of float64, shape (n_texts,)

    Raises
    ------
    TypeError, ValueError
        If the two are not about the same tokens.

    References
    ----------
    The program that accompanies [Ilic2026]

    Examples
    --------
    >>> target = TokenStatistics([[-1.0, -1.0]], [[False, False]])
    >>> reference = TokenStatistics([[-2.0, -5.0]], [[False, False]])
    >>> ez_scores(target, reference).tolist(), released_code_scores(target, reference).tolist()
    ([1.0], [0.0])
    """
    ratio = ez_scores(target, reference, aggregate="ratio")
    errors = (target.scored & ~target.correct).sum(axis=1)
    return np.where((errors < 2) | np.isinf(ratio), 0.0, ratio)


# --------------------------------------------------------------------------- what it is compared with


def loss_scores(target: TokenStatistics) -> Floats:
    """Return minus the loss: the mean log-probability of each text's tokens.

    Parameters
    ----------
    target : TokenStatistics
        Of the model in question.

    Returns
    -------
    ndarray of float64, shape (n_texts,)
        Higher means "member".

    References
    ----------
    [Yeom2018]

    Examples
    --------
    >>> loss_scores(TokenStatistics([[-1.0, -3.0], [-1.0, np.nan]], [[True, False], [True, False]])).tolist()
    [-2.0, -1.0]
    """
    means: Floats = np.nanmean(target.log_probabilities, axis=1)
    return means


def calibrated_scores(target: TokenStatistics, reference: TokenStatistics) -> Floats:
    """Return the mean of the differences: the target's loss, corrected by how hard the text is.

    Parameters
    ----------
    target, reference : TokenStatistics
        Of the same texts.

    Returns
    -------
    ndarray of float64, shape (n_texts,)
        Higher means "member".

    Raises
    ------
    TypeError, ValueError
        If the two are not about the same tokens.

    References
    ----------
    [Watson2022]

    Examples
    --------
    >>> target = TokenStatistics([[-1.0, -3.0]], [[False, True]])
    >>> calibrated_scores(target, TokenStatistics([[-2.0, -2.5]], [[False, True]])).tolist()
    [0.25]
    """
    means: Floats = np.nanmean(differences(target, reference), axis=1)
    return means


def zlib_scores(target: TokenStatistics, texts: Sequence[str | bytes]) -> Floats:
    """Return the log-likelihood of each text divided by its compressed length in bytes.

    Parameters
    ----------
    target : TokenStatistics
        Of the model in question.
    texts : sequence of str or bytes
        The same texts, written out.

    Returns
    -------
    ndarray of float64, shape (n_texts,)
        Higher means "member".

    Raises
    ------
    TypeError, ValueError
        If there are not as many texts, or something is no text.

    References
    ----------
    [Carlini2021]

    Examples
    --------
    >>> said = TokenStatistics([[-11.0, -11.0]], [[False, False]])
    >>> zlib_scores(said, ["aaa"]).tolist()  # 11 bytes: three letters do not compress
    [-2.0]
    """
    if isinstance(texts, str | bytes) or not all(isinstance(text, str | bytes) for text in texts):
        raise TypeError("texts must be a sequence of strings or bytes")
    if len(texts) != len(target):
        raise ValueError(f"texts must be as many as in the statistics, {len(target)}, got {len(texts)}")
    coded = (text.encode() if isinstance(text, str) else text for text in texts)
    sizes = np.array([len(zlib.compress(text)) for text in coded])
    likelihoods: Floats = np.nansum(target.log_probabilities, axis=1)
    return likelihoods / sizes


def min_k_scores(target: TokenStatistics, share: float = 0.2) -> Floats:
    """Return Min-K%: the mean log-probability of each text's least probable tokens.

    Parameters
    ----------
    target : TokenStatistics
        Of the model in question.
    share : float, default 0.2
        How many tokens of a text count, in (0, 1]; rounded down, but at least one.

    Returns
    -------
    ndarray of float64, shape (n_texts,)
        Higher means "member".

    Raises
    ------
    TypeError, ValueError
        If ``share`` is out of range.

    References
    ----------
    [Shi2024]

    Examples
    --------
    >>> said = TokenStatistics([[-1.0, -7.0, -5.0, -2.0]], [[True, False, False, True]])
    >>> min_k_scores(said, share=0.5).tolist()
    [-6.0]
    """
    return _mean_of_lowest(target.log_probabilities, share)


def min_k_plus_plus_scores(target: TokenStatistics, share: float = 0.2) -> Floats:
    """Return Min-K%++: as Min-K%, with each log-probability in units of the model's own distribution.

    A token's distance from the mean over the vocabulary is divided by the standard deviation. A token
    that is at the mean counts 0 even where the deviation is 0, as it is for a uniform distribution and
    for one that allows a single token.

    Parameters
    ----------
    target : TokenStatistics
        Of the model in question, with its moments.
    share : float, default 0.2
        As for :func:`min_k_scores`.

    Returns
    -------
    ndarray of float64, shape (n_texts,)
        Higher means "member".

    Raises
    ------
    TypeError, ValueError
        If ``share`` is out of range or the moments are missing.

    References
    ----------
    [Zhang2025]

    Examples
    --------
    >>> said = TokenStatistics([[-1.0, -7.0]], [[True, False]], [[-2.0, -3.0]], [[2.0, 2.0]])
    >>> min_k_plus_plus_scores(said).tolist()
    [-2.0]
    """
    if target.expected is None or target.deviation is None:
        raise ValueError(
            "target must have expected and deviation: read it with token_statistics(moments=True)"
        )
    distance = target.log_probabilities - target.expected
    with np.errstate(divide="ignore", invalid="ignore"):
        standard = distance / target.deviation
    return _mean_of_lowest(np.where(distance == 0, 0.0, standard), share)


def bag_of_words_scores(
    texts: Sequence[str],
    members: ArrayLike,
    *,
    rng: np.random.Generator,
    folds: int = 5,
    penalty: float = 1.0,
) -> Floats:
    """Return the scores of an attacker who has no model at all and looks at the words only.

    A control of the *data*: if such a classifier tells members from non-members, the two differ in what
    they are about or when they were written, and no attack on the model can be judged with them. Ridge
    regression on words that occur or not; each text is scored by a fit to the other folds.

    Parameters
    ----------
    texts : sequence of str
        Members and non-members, written out.
    members : array-like of bool, shape (n_texts,)
        The truth, at least ``folds`` of each kind.
    rng : numpy.random.Generator
        Deals the folds, each with its part of both kinds.
    folds : int, default 5
        At least 2.
    penalty : float, default 1
        Of the regression, greater than 0.

    Returns
    -------
    ndarray of float64, shape (n_texts,)
        Higher means "member".

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Das2024]

    Examples
    --------
    >>> texts = ["a cat sat", "a cat ran", "dogs bark", "dogs run"] * 5
    >>> members = ["cat" in text for text in texts]
    >>> scores = bag_of_words_scores(texts, members, rng=np.random.default_rng(0))
    >>> bool(scores[members].min() > scores[np.logical_not(members)].max())
    True
    """
    truth = boolean_array("members", members, shape=(len(texts),))
    numpy_generator("rng", rng)
    folds = integer("folds", folds, at_least=2)
    penalty = real_number("penalty", penalty, above=0)
    if min(truth.sum(), (~truth).sum()) < folds:
        raise ValueError(f"members must hold at least {folds} of each kind, one for each fold")
    fold = np.empty(len(texts), dtype=np.int64)
    for kind in (truth, ~truth):
        fold[kind] = rng.permutation(np.arange(kind.sum()) % folds)
    scores = np.empty(len(texts))
    for k in range(folds):
        known = fold != k
        words = vocabulary([text for text, used in zip(texts, known, strict=True) if used])
        bags = bag_of_words(texts, words)
        bags -= bags[known].mean(axis=0)
        wanted = truth[known] - truth[known].mean()
        gram = bags[known] @ bags[known].T + penalty * np.eye(known.sum())
        scores[~known] = bags[~known] @ (bags[known].T @ np.linalg.solve(gram, wanted))
    return scores


def _mean_of_lowest(values: Floats, share: float) -> Floats:
    """Return the mean of the lowest numbers of each row, ``share`` of them; NaN is no number."""
    part = Fraction(str(real_number("share", share, above=0, at_most=1)))  # 0.29 of 100 is 29
    counts = (~np.isnan(values)).sum(axis=1)
    taken = np.array([max(1, math.floor(part * int(n))) for n in counts])
    ordered = np.sort(values, axis=1)  # NaN last
    lowest = np.where(np.arange(values.shape[1]) < taken[:, None], ordered, 0.0)
    means: Floats = lowest.sum(axis=1) / taken
    return means


def _same_tokens(target: TokenStatistics, reference: TokenStatistics) -> None:
    for name, value in (("target", target), ("reference", reference)):
        if not isinstance(value, TokenStatistics):
            raise TypeError(f"{name} must be TokenStatistics, got {type(value).__name__}")
    shapes = target.log_probabilities.shape, reference.log_probabilities.shape
    if shapes[0] != shapes[1]:
        raise ValueError(f"target and reference must have one shape, got {shapes[0]} and {shapes[1]}")
    differ = target.scored != reference.scored
    if target.tokens is not None and reference.tokens is not None:
        differ |= target.tokens != reference.tokens
    if differ.any():
        where = tuple(int(i) for i in np.argwhere(differ)[0])
        raise ValueError(f"target and reference must be about the same tokens, they differ at index {where}")


def _table(
    name: str,
    values: ArrayLike | None,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    gaps: Bools | None = None,
) -> Floats:
    """Return a table of numbers in which NaN stands for "not scored"."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    array = array.astype(np.float64, copy=False)
    shape = "two axes and an entry" if gaps is None else f"shape {gaps.shape}"
    if (array.ndim != 2 or not array.size) if gaps is None else array.shape != gaps.shape:
        raise ValueError(f"{name} must have {shape}, got shape {array.shape}")
    bad = np.isinf(array) | (array < at_least) | (array > at_most)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        allowed = "<= 0" if at_most == 0 else ">= 0"
        raise ValueError(f"{name} must be {allowed} and finite, or NaN, got {array[where]} at index {where}")
    if gaps is not None and (np.isnan(array) != gaps).any():
        raise ValueError(f"{name} must be NaN exactly where log_probabilities is NaN")
    return array
