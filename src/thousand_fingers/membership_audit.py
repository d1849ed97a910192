"""An audit of a language model for membership: every score of chapter 11, with what it takes to believe it.

Given what a model and a reference say about texts that were in the training set and texts that were not,
:func:`audit` computes each score with its interval, its controls [Das2024] and an exact test, at false-positive
rates that the number of non-members can carry [Carlini2022]. :func:`audit_files` does so for the reader's own
files and models; the command ``fingers audit`` writes what it returns. Chapter 11 explains the scores.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

import thousand_fingers
from thousand_fingers.error_zone import (
    TokenStatistics,
    bag_of_words_scores,
    calibrated_scores,
    ez_scores,
    loss_scores,
    min_k_plus_plus_scores,
    min_k_scores,
    token_statistics,
    zlib_scores,
)
from thousand_fingers.intervals import Interval, clopper_pearson
from thousand_fingers.language_model import token_table
from thousand_fingers.language_model_files import (
    FileRefusedError,
    LoadedModel,
    load_language_model,
    refuse_pickles,
    require_file,
)
from thousand_fingers.roc import (
    OperatingPoint,
    Roc,
    bootstrap_over_examples,
    chance_interval,
    non_members_needed,
    roc_curve,
)
from thousand_fingers.statistics_files import ListedTexts, ReadStatistics, read_statistics, read_texts
from thousand_fingers.validation import boolean_array, integer, numpy_generator, real_number

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Progress = Callable[[str, int, int], None]

#: Fewest texts of each kind: below, not even the area can be told from chance.
FEWEST = 10
#: Probability of calling chance a leak, over all tests of a report together.
LEVEL = 0.01
FORMAT, VERSION = "thousand-fingers/membership-audit", 1

_TITLES = {
    "ez": "EZ (error zone)",
    "loss": "loss",
    "calibrated": "calibrated loss",
    "zlib": "zlib loss",
    "min_k": "Min-K% (20%)",
    "min_k_plus_plus": "Min-K%++ (20%)",
}
_KINDS = (".jsonl", ".npz", ".gguf", ".safetensors")
_ARRAYS = ("log_probabilities", "correct", "expected", "deviation", "tokens")
_MOST_BAGS = 500  # texts of each kind that the bag of words looks at: its table has all their words
_BAG_LENGTH = 10_000  # characters of a text that it looks at
_LONGEST = 1024  # tokens of a text that a model reads unasked: longer ones take gigabytes
_DOES_NOT_SAY = (
    "that a text with a high score was in the training set: how sure that is depends on how rare members are "
    "among the texts asked about",
    "that nothing leaks where nothing was found: stronger attacks exist (shadow models, extraction) and may "
    "find more",
    "anything about texts unlike those tested; the few that a model has learned by heart are the first to leak "
    "and the last to show in an average",
    "that any guarantee holds: only training with differential privacy gives one",
)


@dataclass(frozen=True, eq=False)
class Rate:
    """How many members a score finds at a stated false-positive rate, if that can be said.

    Parameters
    ----------
    fpr : float
        The rate asked for.
    point : OperatingPoint or None
        What was measured, with the realised rate; None if there are too few non-members.
    p_value : float or None
        Probability of finding so many by chance, exact.
    needed : int
        Non-members that it takes to speak of this rate.
    """

    fpr: float
    point: OperatingPoint | None
    p_value: float | None
    needed: int


@dataclass(frozen=True, eq=False)
class Finding:
    """What one score says.

    Parameters
    ----------
    name, title : str
        For programs and for people.
    roc : Roc or None
        None if the score could not be computed.
    missing : str
        What it would have needed.
    auc_interval : Interval or None
        95% interval of the area, by resampling texts; exact where the score separates perfectly.
    p_value : float or None
        Probability of such an area by chance.
    rates : tuple of Rate
        One for each false-positive rate asked for.
    no_false_positives : OperatingPoint or None
        The best that can be done without accusing any of the non-members.
    """

    name: str
    title: str
    roc: Roc | None
    missing: str = ""
    auc_interval: Interval | None = None
    p_value: float | None = None
    rates: tuple[Rate, ...] = ()
    no_false_positives: OperatingPoint | None = None

    @property
    def p_values(self) -> list[float]:
        """All tests of this score."""
        return [p for p in (self.p_value, *(rate.p_value for rate in self.rates)) if p is not None]


@dataclass(frozen=True)
class Control:
    """What an attacker reaches who does not look at the model: nothing, if the texts are comparable.

    Parameters
    ----------
    name, title : str
        For programs and for people.
    auc : float
        Area under the curve of the blind score.
    chance : Interval
        Where 99% of such areas lie if the texts are comparable.
    separates : bool
        Whether the area lies outside (above, for a control that has been fitted).
    """

    name: str
    title: str
    auc: float
    chance: Interval
    separates: bool


@dataclass(frozen=True, eq=False)
class Report:
    """The result of an audit.

    Parameters
    ----------
    members, non_members, tokens : int
        What was tested; tokens as scored, of all texts.
    findings : tuple of Finding
        The scores.
    controls : tuple of Control
        The blind ones.
    warnings : tuple of str
        What weakens the result.
    """

    members: int
    non_members: int
    tokens: int
    findings: tuple[Finding, ...]
    controls: tuple[Control, ...]
    warnings: tuple[str, ...] = ()

    @property
    def tests(self) -> int:
        """Number of tests over all scores; each is held to ``LEVEL / tests``."""
        return sum(len(finding.p_values) for finding in self.findings)

    @property
    def leaking(self) -> list[Finding]:
        """Scores that tell members from non-members better than chance."""
        return [f for f in self.findings if f.p_values and min(f.p_values) * self.tests <= LEVEL]

    @property
    def backwards(self) -> list[Finding]:
        """Scores by which members stand lower than chance would have it: rarely a result, mostly a mistake."""
        low = chance_interval(self.members, self.non_members, 1 - LEVEL).low
        return [f for f in self.findings if f.roc is not None and f.roc.auc < low]

    @property
    def outcome(self) -> str:
        """``"not comparable"``, ``"leak"`` or ``"no evidence"``."""
        if any(control.separates for control in self.controls):
            return "not comparable"
        return "leak" if self.leaking else "no evidence"

    @property
    def detectable_auc(self) -> float:
        """Smallest area that these numbers of texts would have shown to differ from chance."""
        wide = chance_interval(self.members, self.non_members, 1 - 2 * LEVEL / max(self.tests, 1))
        return wide.high

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.outcome == "not comparable":
            odd = max((c for c in self.controls if c.separates), key=lambda c: abs(c.auc - 0.5))
            return (
                "Not comparable: members and non-members differ before the model is asked. "
                f"{odd.title} alone reaches an area of {odd.auc:.3f} (by chance: {odd.chance.low:.3f} to "
                f"{odd.chance.high:.3f}). No score below can be read as membership. Draw both from one pool at "
                "random, or use a reference that has seen neither."
            )
        if self.outcome == "no evidence":
            swapped = (
                " But members score *below* non-members, which chance does not explain: before this is read as "
                "good news, make sure that no two files are swapped."
            )
            return (
                "No evidence of a leak: no score tells members from non-members better than chance. With "
                f"{self.members} members and {self.non_members} non-members, a measured area above "
                f"{self.detectable_auc:.3f} would have shown.{swapped if self.backwards else ''}"
            )
        best = min(self.leaking, key=lambda finding: min(finding.p_values))
        assert best.roc is not None
        assert best.auc_interval is not None
        words = (
            f"Leak: {len(self.leaking)} of {sum(f.roc is not None for f in self.findings)} scores tell members "
            f"from non-members better than chance. The clearest, {best.title}, has an area of "
            f"{best.roc.auc:.3f} ({best.auc_interval.low:.3f} to {best.auc_interval.high:.3f})"
        )
        told = [rate.point for rate in best.rates if rate.point]
        point = told[-1] if told else best.no_false_positives
        assert point is not None
        return (
            f"{words} and finds {point.true_positives} of {point.members} members while accusing "
            f"{point.false_positives} of {point.non_members} non-members."
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything but the inputs and the figure, ready for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "library": thousand_fingers.__version__,
            "confidence": 0.95,
            "texts": {"members": self.members, "non_members": self.non_members, "tokens": self.tokens},
            "scores": [_finding_as_json(finding) for finding in self.findings],
            "controls": [
                {
                    "name": c.name,
                    "title": c.title,
                    "auc": c.auc,
                    "chance_interval": list(c.chance),
                    "separates": c.separates,
                }
                for c in self.controls
            ],
            "warnings": list(self.warnings),
            "verdict": {
                "outcome": self.outcome,
                "words": self.verdict,
                "level": LEVEL,
                "tests": self.tests,
                "detectable_auc": self.detectable_auc,
                "does_not_say": list(_DOES_NOT_SAY),
            },
        }


# --------------------------------------------------------------------------- the audit


def audit(
    target: TokenStatistics,
    reference: TokenStatistics,
    members: ArrayLike,
    *,
    rng: np.random.Generator,
    texts: Sequence[str] | None = None,
    has_correct: bool = True,
    fpr: Sequence[float] = (0.01, 0.001),
) -> Report:
    """Compute every score that the inputs allow, its controls and its tests.

    A test of a score asks how often chance would do as well if members and non-members were one crowd: the
    normal approximation of the rank sum for the area, and for the members found at a rate the exact
    distribution of how many of one crowd stand above the k-th highest of the other.

    Parameters
    ----------
    target, reference : TokenStatistics
        Of the same texts under the model in question and under one that has not seen the members.
    members : array-like of bool, shape (n_texts,)
        Which texts were trained on; at least ten of each kind.
    rng : numpy.random.Generator
        Source of the resamples and of the folds of the bag of words.
    texts : sequence of str, optional
        The texts themselves: zlib needs them, and the bag of words, which otherwise looks at the tokens if
        ``target`` has them.
    has_correct : bool, default True
        Whether ``target.correct`` means anything; without it there is no error zone.
    fpr : sequence of float, default (0.01, 0.001)
        False-positive rates, in (0, 0.5].

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If the statistics are not about the same tokens, or there are too few texts.

    References
    ----------
    [Carlini2022], [Das2024], [MannWhitney1947]

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> members = np.arange(400) < 200
    >>> difficulty = -rng.exponential(size=(400, 30))
    >>> learned = TokenStatistics(np.minimum(difficulty + 0.5 * members[:, None], 0), np.full((400, 30), False))
    >>> report = audit(learned, TokenStatistics(difficulty, learned.correct), members, rng=rng)
    >>> report.outcome, [finding.name for finding in report.findings if finding.roc is None]
    ('leak', ['zlib', 'min_k_plus_plus'])
    """
    truth = boolean_array("members", members, shape=(len(target),))
    numpy_generator("rng", rng)
    rates = tuple(real_number("fpr", rate, above=0, at_most=0.5) for rate in fpr)
    n_members, n_non_members = int(truth.sum()), int((~truth).sum())
    if min(n_members, n_non_members) < FEWEST:
        raise ValueError(
            f"an audit needs at least {FEWEST} members and {FEWEST} non-members, "
            f"got {n_members} and {n_non_members}"
        )
    if texts is not None and len(texts) != len(target):
        raise ValueError(f"texts must be as many as in the statistics, {len(target)}, got {len(texts)}")
    values: dict[str, Floats | str] = {
        "ez": ez_scores(target, reference)
        if has_correct
        else "needs `correct`: which tokens were the target's first choice",
        "loss": loss_scores(target),
        "calibrated": calibrated_scores(target, reference),
        "zlib": "needs the texts" if texts is None else zlib_scores(target, texts),
        "min_k": min_k_scores(target),
        "min_k_plus_plus": _min_k_plus_plus(target),
    }
    findings = tuple(_finding(name, score, truth, rates, rng) for name, score in values.items())
    controls = _controls(target, reference, truth, texts, rng)
    warnings = []
    if not any(control.name.startswith("bag") for control in controls):
        warnings.append(
            "Without texts or tokens it cannot be checked whether members and non-members differ in what they "
            "are about. Give one of them."
        )
    report = Report(n_members, n_non_members, int(target.scored.sum()), findings, controls)
    if report.backwards:
        titles = ", ".join(finding.title for finding in report.backwards)
        warnings.append(f"Members score below non-members ({titles}): are two files swapped, or a sign?")
    if n_members < 100 or n_non_members < 100:
        warnings.append("With fewer than 100 texts of each kind only large effects show.")
    return replace(report, warnings=tuple(warnings))


def chance_of_finding(
    true_positives: int, false_positives_allowed: int, members: int, non_members: int
) -> float:
    """Return how probable it is to find so many members by chance, at so many false positives.

    If members and non-members are one crowd, all orders of their scores are equally likely, and at least
    ``true_positives`` members stand above all but ``false_positives_allowed`` non-members exactly if the first
    ``true_positives + false_positives_allowed`` places hold no more non-members than allowed. The threshold may
    be chosen with the same non-members. Ties make the answer too large, never too small.

    Parameters
    ----------
    true_positives : int
        Members found, from 0 to ``members``.
    false_positives_allowed : int
        From 0 to ``non_members - 1``.
    members, non_members : int
        All of them, at least 1.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> round(chance_of_finding(1, 0, 10, 30), 6)  # the highest of forty is a member
    0.25
    """
    members = integer("members", members, at_least=1)
    non_members = integer("non_members", non_members, at_least=1)
    found = integer("true_positives", true_positives, at_least=0, at_most=members)
    allowed = integer("false_positives_allowed", false_positives_allowed, at_least=0, at_most=non_members - 1)
    return float(stats.hypergeom.cdf(allowed, members + non_members, non_members, found + allowed))


def _min_k_plus_plus(target: TokenStatistics) -> Floats | str:
    if target.expected is None:
        return "needs `expected` and `deviation`"
    with np.errstate(invalid="ignore"):
        scores = min_k_plus_plus_scores(target)
    if np.isnan(scores).any():  # infinitely far above and below the mean in one text
        return "needs a `deviation` above 0 wherever `log_probabilities` differs from `expected`"
    return scores


def _finding(
    name: str, score: Floats | str, truth: Bools, rates: tuple[float, ...], rng: np.random.Generator
) -> Finding:
    if isinstance(score, str):
        return Finding(name, _TITLES[name], None, score)
    roc = roc_curve(score, truth)
    told = []
    for fpr in rates:
        needed = non_members_needed(fpr)
        if roc.non_members < needed:
            told.append(Rate(fpr, None, None, needed))
            continue
        point = roc.at_fpr(fpr)
        allowed = math.floor(Fraction(str(fpr)) * roc.non_members)  # 0.1 of 10 is 1, whatever doubles say
        p_value = chance_of_finding(point.true_positives, allowed, roc.members, roc.non_members)
        told.append(Rate(fpr, point, p_value, needed))
    if roc.auc in (0.0, 1.0):  # resampling would call the area certain; disjoint pairs are independent trials
        pairs = min(roc.members, roc.non_members)
        interval = clopper_pearson(round(roc.auc) * pairs, pairs)
    else:
        interval = bootstrap_over_examples(score, truth, rng=rng, fpr=()).auc
    deviations = (roc.auc - 0.5) / _deviation(roc.members, roc.non_members)
    return Finding(
        name,
        _TITLES[name],
        roc,
        auc_interval=interval,
        p_value=float(special.ndtr(-deviations)),
        rates=tuple(told),
        no_false_positives=roc.at_fpr(0.0),
    )


def _deviation(members: int, non_members: int) -> float:
    """Return the standard deviation of the area under the hypothesis of chance."""
    return math.sqrt((members + non_members + 1) / (12 * members * non_members))


def _controls(
    target: TokenStatistics,
    reference: TokenStatistics,
    truth: Bools,
    texts: Sequence[str] | None,
    rng: np.random.Generator,
) -> tuple[Control, ...]:
    lengths = target.scored.sum(axis=1).astype(np.float64)
    found = [
        _control("length", "The number of tokens", lengths, truth, fitted=False),
        _control("reference", "The reference's own loss", loss_scores(reference), truth, fitted=False),
    ]
    if texts is None and target.tokens is None:
        return tuple(found)
    rows = np.concatenate(
        [
            rng.permutation(np.flatnonzero(truth))[:_MOST_BAGS],
            rng.permutation(np.flatnonzero(~truth))[:_MOST_BAGS],
        ]
    )
    if texts is None:
        assert target.tokens is not None
        spelled = str.maketrans("0123456789-", "abcdefghijk")  # words for a counter of words
        bags = [" ".join(f"t{token}" for token in target.tokens[row]).translate(spelled) for row in rows]
        name, title = "bag_of_tokens", "Counting tokens"
    else:
        bags, name, title = [texts[row][:_BAG_LENGTH] for row in rows], "bag_of_words", "Counting words"
    scores = bag_of_words_scores(bags, truth[rows], rng=rng)
    return (*found, _control(name, title, scores, truth[rows], fitted=True))


def _control(name: str, title: str, scores: Floats, truth: Bools, *, fitted: bool) -> Control:
    roc = roc_curve(scores, truth)
    chance = chance_interval(roc.members, roc.non_members, 0.99)
    separates = roc.auc > chance.high or (not fitted and roc.auc < chance.low)
    return Control(name, title, roc.auc, chance, separates)


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    about: dict[str, Any] = {"name": finding.name, "title": finding.title}
    if finding.roc is None:
        return about | {"computed": False, "why": finding.missing}
    assert finding.auc_interval is not None
    assert finding.no_false_positives is not None
    rates = []
    for rate in finding.rates:
        told: dict[str, Any] = {"fpr": rate.fpr, "reported": rate.point is not None}
        if rate.point is None:
            told["needs_non_members"] = rate.needed
        else:
            told |= _point_as_json(rate.point) | {"p_value": rate.p_value}
        rates.append(told)
    return about | {
        "computed": True,
        "auc": finding.roc.auc,
        "auc_interval": list(finding.auc_interval),
        "p_value": finding.p_value,
        "tpr_at_fpr": rates,
        "no_false_positives": _point_as_json(finding.no_false_positives),
    }


def _point_as_json(point: OperatingPoint) -> dict[str, Any]:
    return {
        "tpr": point.tpr,
        "tpr_interval": list(point.tpr_interval),
        "true_positives": point.true_positives,
        "realised_fpr": point.fpr,
        "realised_fpr_interval": list(point.fpr_interval),
        "false_positives": point.false_positives,
        "threshold": point.threshold if math.isfinite(point.threshold) else None,
    }


# --------------------------------------------------------------------------- the reader's files


def audit_files(
    *,
    target: Path,
    reference: Path,
    members: Path,
    non_members: Path,
    rng: np.random.Generator,
    fpr: Sequence[float] = (0.01, 0.001),
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> tuple[Report, dict[str, Any]]:
    """Audit a model from files: its weights, or what it said.

    Parameters
    ----------
    target, reference : pathlib.Path
        Each a model (:func:`thousand_fingers.language_model_files.load_language_model`) or per-token
        statistics (:func:`thousand_fingers.statistics_files.read_statistics`).
    members, non_members : pathlib.Path
        Which texts are which (:func:`thousand_fingers.statistics_files.read_texts`). A model needs the texts.
    rng : numpy.random.Generator
        As in :func:`audit`.
    fpr : sequence of float, default (0.01, 0.001)
        As in :func:`audit`.
    max_tokens : int, optional
        Longer texts are cut for a model. Without it texts are refused that exceed what the model was made
        for, or 1,024 tokens.
    progress : callable, optional
        Called with what is being done, and how much of how much is.

    Returns
    -------
    report : Report
    inputs : dict
        What was read, with sha256 digests, ready for JSON.

    Raises
    ------
    FileRefusedError
        If a file cannot be used, or the files do not go together.
    TypeError, ValueError
        If another argument is out of range.

    Examples
    --------
    >>> audit_files(target=Path("model.pkl"), reference=Path("base.gguf"), members=Path("members.jsonl"),
    ...             non_members=Path("others.jsonl"), rng=np.random.default_rng(0))
    Traceback (most recent call last):
        ...
    thousand_fingers.language_model_files.FileRefusedError: members.jsonl: there is no such file
    """
    numpy_generator("rng", rng)
    if max_tokens is not None:
        max_tokens = integer("max_tokens", max_tokens, at_least=2)
    lists = read_texts(members), read_texts(non_members)
    _require_disjoint(non_members, *lists)
    for path, listed in zip((members, non_members), lists, strict=True):
        if len(listed.ids) < FEWEST:
            raise FileRefusedError(path, f"an audit needs at least {FEWEST} texts, got {len(listed.ids)}")
    ids = lists[0].ids + lists[1].ids
    texts = None if lists[0].texts is None or lists[1].texts is None else lists[0].texts + lists[1].texts
    truth = np.arange(len(ids)) < len(lists[0].ids)
    said: list[ReadStatistics] = []
    sources: list[dict[str, Any]] = []
    seen, cuts = texts, 0  # the texts as far as the target read them
    for role, path in (("target", target), ("reference", reference)):
        refuse_pickles(path)
        if not path.is_dir():
            require_file(path)
            if path.suffix not in _KINDS:
                raise FileRefusedError(
                    path, f"is not of a kind that is read: {', '.join(_KINDS)}, or a folder with a model"
                )
        if path.suffix in (".jsonl", ".npz"):
            read = read_statistics(path)
            said.append(_chosen(path, read, ids))
            sources.append({"kind": path.suffix[1:], "files": _digests([path])})
        else:
            loaded = load_language_model(path)
            if texts is None:
                raise FileRefusedError(members, f"holds no texts, and {path} is a model, which needs them")
            tell = None if progress is None else partial(progress, role)
            found, as_read, cut = _ask(path, loaded, ids, texts, max_tokens, tell)
            said.append(ReadStatistics(ids, found, has_correct=True))
            sources.append({"kind": loaded.kind, "files": _digests(loaded.files), "texts_cut": cut})
            if role == "target":
                seen, cuts = as_read, cut
            del loaded
    _require_same_tokens(reference, said[0], said[1])
    if texts is None or cuts:
        _require_different_texts(target, said[0].statistics, ids, truth)
    report = audit(
        said[0].statistics,
        said[1].statistics,
        truth,
        rng=rng,
        texts=seen,
        has_correct=said[0].has_correct,
        fpr=fpr,
    )
    repeated = sum(n - 1 for n in Counter(map(_folded, seen or ())).values())
    warnings = list(report.warnings)
    if repeated:
        warnings.append(f"{repeated} texts stand in a list more than once: the intervals are too narrow.")
    if np.array_equal(
        said[0].statistics.log_probabilities, said[1].statistics.log_probabilities, equal_nan=True
    ):
        warnings.append("Target and reference say exactly the same: they are the same model.")
    if max_tokens is not None and not any("texts_cut" in source for source in sources):
        warnings.append("The limit of tokens cut nothing: what a model said is taken as it is in the files.")
    inputs = {
        "target": sources[0],
        "reference": sources[1],
        "members": {"kind": members.suffix[1:], "files": _digests([members])},
        "non_members": {"kind": non_members.suffix[1:], "files": _digests([non_members])},
    }
    return replace(report, warnings=tuple(warnings)), inputs


def _chosen(path: Path, read: ReadStatistics, ids: tuple[str, ...]) -> ReadStatistics:
    """Return the rows of these texts, in their order."""
    rows = {name: i for i, name in enumerate(read.ids)}
    missing = [name for name in ids if name not in rows]
    if missing:
        raise FileRefusedError(
            path,
            f"says nothing about {len(missing)} of {len(ids)} texts, the first being {missing[0]!r}; "
            f"it begins with {read.ids[0]!r}",
        )
    chosen = read.statistics.texts([rows[name] for name in ids])
    width = int(chosen.scored.sum(axis=1).max())  # longer ones may have been among the others
    arrays = {name: getattr(chosen, name) for name in _ARRAYS}
    trimmed = {name: array[:, :width] for name, array in arrays.items() if array is not None}
    return ReadStatistics(ids, TokenStatistics(**trimmed), read.has_correct)


def _ask(
    path: Path,
    loaded: LoadedModel,
    ids: tuple[str, ...],
    texts: tuple[str, ...],
    max_tokens: int | None,
    progress: Callable[[int, int], None] | None,
) -> tuple[TokenStatistics, tuple[str, ...], int]:
    """Return what a model says about texts, the texts as far as it read them, and how many were cut."""
    loaded.tokenizer.no_truncation()
    loaded.tokenizer.no_padding()
    longest = loaded.context if max_tokens is not None else min(loaded.context or _LONGEST, _LONGEST)
    rows, as_read, cut = [], [], 0
    for name, text in zip(ids, texts, strict=True):
        try:
            coded = loaded.tokenizer.encode(text)
        except Exception as error:  # the tokenizers library raises bare Exception
            raise FileRefusedError(
                path, f"has a tokenizer that fails on the text {name!r}: {error}"
            ) from None
        row = coded.ids
        if max_tokens is not None and len(row) > max_tokens:
            row, cut = row[:max_tokens], cut + 1
            text = text[: max(end for _, end in coded.offsets[:max_tokens])]
        as_read.append(text)
        if len(row) < 2:
            raise FileRefusedError(path, f"the text {name!r} has fewer than two tokens: nothing to score")
        if longest is not None and len(row) > longest:
            raise FileRefusedError(
                path,
                f"the text {name!r} has {len(row):,} tokens: cut texts with --max-tokens, to {longest:,} or fewer",
            )
        if max(row) >= loaded.model.architecture.vocabulary:
            raise FileRefusedError(path, "has a tokenizer with more tokens than the model knows")
        rows.append(row)
    table, parts = token_table(rows), []
    for start in range(0, len(table), 8):
        parts.append(token_statistics(loaded.model, table[start : start + 8], moments=True))
        if progress is not None:
            progress(min(start + 8, len(table)), len(table))
    whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    return TokenStatistics(**whole), tuple(as_read), cut


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _require_disjoint(path: Path, members: ListedTexts, others: ListedTexts) -> None:
    both = set(members.ids) & set(others.ids)
    if both:
        raise FileRefusedError(
            path,
            f"{len(both)} ids are among the members too, for example {min(both)!r}: a text is one or the other",
        )
    if members.texts is not None and others.texts is not None:
        known = {_folded(text): name for name, text in zip(members.ids, members.texts, strict=True)}
        for name, text in zip(others.ids, others.texts, strict=True):
            if _folded(text) in known:
                raise FileRefusedError(
                    path,
                    f"the text {name!r} is the member {known[_folded(text)]!r}: a text is one or the other",
                )


def _require_same_tokens(path: Path, target: ReadStatistics, reference: ReadStatistics) -> None:
    ours, theirs = target.statistics, reference.statistics
    counts = ours.scored.sum(axis=1), theirs.scored.sum(axis=1)
    odd = np.flatnonzero(counts[0] != counts[1])
    if odd.size:
        name, i = target.ids[odd[0]], odd[0]
        raise FileRefusedError(
            path,
            f"scores {counts[1][i]} tokens of the text {name!r}, the target {counts[0][i]}: "
            "both must cut texts into the same tokens",
        )
    if ours.tokens is not None and theirs.tokens is not None:
        differ = np.flatnonzero((ours.tokens != theirs.tokens).any(axis=1))
        if differ.size:
            raise FileRefusedError(
                path, f"has other tokens than the target in the text {target.ids[differ[0]]!r}"
            )


def _require_different_texts(path: Path, target: TokenStatistics, ids: tuple[str, ...], truth: Bools) -> None:
    """Refuse a text that is member and non-member: the same tokens, or the same numbers to the last digit.

    So may two texts be that a model has read the same beginning of.
    """
    rows = target.log_probabilities if target.tokens is None else target.tokens
    long = target.scored.sum(axis=1) >= 8  # shorter ones can agree by accident
    known = {rows[i].tobytes(): ids[i] for i in np.flatnonzero(truth & long)}
    for i in np.flatnonzero(~truth & long):
        if rows[i].tobytes() in known:
            raise FileRefusedError(
                path,
                f"says the same of {ids[i]!r} and of the member {known[rows[i].tobytes()]!r}: one text, as far as "
                "it was read",
            )


def _digests(paths: Sequence[Path]) -> list[dict[str, str]]:
    found = []
    for path in paths:
        with path.open("rb") as stream:
            found.append({"name": path.name, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()})
    return found
