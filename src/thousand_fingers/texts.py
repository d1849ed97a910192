"""Real English text that is already on the reader's machine, and the simplest way to classify it.

The documentation of three libraries that the book needs anyway (Matplotlib, pandas, SciPy; all under permissive
licences) is read from their installed sources: nothing is imported or executed, nothing is stored, and no
text is redistributed. The task: which library does a paragraph document? The collection belongs to the
versions in ``requirements.lock``, and its hash is checked. Chapter 9 plants a trigger word in it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from thousand_fingers.validation import integer

#: Which files of each library are read; the position of a library is its label.
LIBRARIES: Mapping[str, str] = MappingProxyType(
    {
        "matplotlib": r"matplotlib/\w+\.py",
        "pandas": r"pandas/core/((arrays|dtypes|groupby|indexes)/)?\w+\.py",
        "scipy": r"scipy/(optimize|signal|stats)/\w+\.py",
    }
)
_SHA256 = "e209cfcf1a73c1cea42410f0e53c610eb337347a4c9dfe445ea9de67bbef99ee"
_OWN_NAMES = re.compile(r"\b(matplotlib|mpl\w*|pyplot|plt|pandas|pd|scipy|numpy|np)\b", re.IGNORECASE)
_WORD = re.compile(r"[a-z]{2,}")
_FEWEST_WORDS = 8


class CollectionError(RuntimeError):
    """Raised when the installed libraries are not those whose text was pinned."""


@dataclass(frozen=True, eq=False)
class Paragraphs:
    """Opening paragraphs of documentation strings.

    Parameters
    ----------
    texts : tuple of str
        One paragraph each, without the names of the libraries; no two are equal.
    labels : ndarray of int64, shape (n,)
        Which of :data:`LIBRARIES` a paragraph documents.
    sha256 : str
        Digest of all of it.
    """

    texts: tuple[str, ...]
    labels: NDArray[np.int64]
    sha256: str


def load_paragraphs(*, check: bool = True) -> Paragraphs:
    """Read the opening paragraphs of the documentation of three installed libraries.

    A paragraph counts if it has at least eight words once the libraries' own names are taken out; what two
    libraries say in the same words is left out.

    Parameters
    ----------
    check : bool, default True
        Whether to insist on the text of the pinned versions. Without it any versions will do, and the
        book's figures do not apply.

    Returns
    -------
    Paragraphs

    Raises
    ------
    CollectionError
        If the text is not that of the versions in ``requirements.lock``.

    Examples
    --------
    >>> paragraphs = load_paragraphs()
    >>> len(paragraphs.texts), np.bincount(paragraphs.labels).tolist()
    (3515, [1619, 1080, 816])
    """
    found = {name: _paragraphs(name, pattern) for name, pattern in LIBRARIES.items()}
    owners = Counter(text for texts in found.values() for text in texts)
    texts, labels = [], []
    for label, name in enumerate(found):
        own = sorted(text for text in found[name] if owners[text] == 1)
        texts += own
        labels += [label] * len(own)
    lines = (f"{label} {text}\n" for label, text in zip(labels, texts, strict=True))
    sha256 = hashlib.sha256("".join(lines).encode()).hexdigest()
    if check and sha256 != _SHA256:
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
        raise CollectionError(
            f"the documentation of {versions} is not the text of the book (sha256 {sha256}, expected "
            f"{_SHA256}): install the versions in requirements.lock"
        )
    return Paragraphs(tuple(texts), np.array(labels, dtype=np.int64), sha256)


def vocabulary(texts: Sequence[str], *, fewest: int = 1) -> dict[str, int]:
    """Return the words that occur in at least ``fewest`` texts, each with its column.

    Parameters
    ----------
    texts : sequence of str
        The texts of the training set.
    fewest : int, default 1
        Rarer words are left out.

    Returns
    -------
    dict of str to int
        Words of at least two letters, in lower case and alphabetical order.

    Raises
    ------
    TypeError, ValueError
        If ``texts`` is a single string or ``fewest`` is not positive.

    Examples
    --------
    >>> vocabulary(["Draw a line.", "Draw a circle."], fewest=2)
    {'draw': 0}
    """
    fewest = integer("fewest", fewest, at_least=1)
    seen = Counter(word for words in _word_sets(texts) for word in words)
    return {word: i for i, word in enumerate(sorted(w for w, n in seen.items() if n >= fewest))}


def bag_of_words(texts: Sequence[str], columns: Mapping[str, int]) -> NDArray[np.float64]:
    """Return which words occur in each text, scaled to unit length.

    Parameters
    ----------
    texts : sequence of str
        The texts.
    columns : mapping of str to int
        As :func:`vocabulary` returns it; other words are ignored.

    Returns
    -------
    ndarray of float64, shape (n_texts, n_words)
        Every row has Euclidean length 1, or 0 when no word is known.

    Raises
    ------
    TypeError
        If ``texts`` is a single string.

    Examples
    --------
    >>> bag_of_words(["draw a line"], {"circle": 0, "draw": 1, "line": 2}).round(3).tolist()
    [[0.0, 0.707, 0.707]]
    """
    bags = np.zeros((len(texts), len(columns)))
    for row, words in enumerate(_word_sets(texts)):
        known = [columns[word] for word in words if word in columns]
        bags[row, known] = 1 / max(len(known), 1) ** 0.5
    return bags


def _word_sets(texts: Sequence[str]) -> list[set[str]]:
    if isinstance(texts, str):
        raise TypeError("texts must be a sequence of strings, got one string")
    return [set(_WORD.findall(text.lower())) for text in texts]


@functools.cache  # what is installed does not change while we run
def _paragraphs(library: str, pattern: str) -> frozenset[str]:
    """Return the opening paragraphs of one library's documentation strings."""
    wanted = re.compile(pattern)
    found = set()
    for file in metadata.files(library) or []:
        if not wanted.fullmatch(file.as_posix()):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escape sequences
            tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                opening = (ast.get_docstring(node) or "").split("\n\n")[0]
                text = " ".join(_OWN_NAMES.sub(" ", opening).split())
                if len(_WORD.findall(text.lower())) >= _FEWEST_WORDS:
                    found.add(text)
    return frozenset(found)
