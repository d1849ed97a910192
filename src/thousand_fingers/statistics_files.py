"""What any language model said about some texts, and which texts were meant: files for an audit.

Per-token statistics arrive as JSON lines or as a NumPy archive, lists of texts as JSON lines or plain ids.
Nothing is unpickled, no length or number is believed before it is checked, and a refusal names the file, the
line and the field. Chapter 11 says what the statistics are for; :mod:`thousand_fingers.membership_audit` uses
them.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thousand_fingers.error_zone import TokenStatistics
from thousand_fingers.language_model import PADDING
from thousand_fingers.language_model_files import FileRefusedError, parse_json, refuse_pickles, require_file

Floats = NDArray[np.float64]

_FIELDS = ("log_probabilities", "correct", "expected", "deviation", "tokens")
_LINE_LIMIT = 64_000_000  # bytes
_ARCHIVE_LIMIT = 4_000_000_000  # bytes, unpacked
_ROUNDING = 1e-6  # a logarithm that is 0 can come out of a model as much above it
_LARGEST = 1e6  # no logarithm of a probability is further from 0
_HALF = math.log(0.5) + 1e-2  # a token above it is the first choice, whatever single precision makes of it
_ONE_OF_MANY = math.log(1e-8)  # no vocabulary is so large that its first choice can be less probable


@dataclass(frozen=True, eq=False)
class ReadStatistics:
    """What one model said about each text, by the name of the text.

    Parameters
    ----------
    ids : tuple of str
        One name for each text, no two equal.
    statistics : TokenStatistics
        One row for each text.
    has_correct : bool
        Whether the file said which tokens were the model's first choice; otherwise ``correct`` is false
        everywhere and means nothing.
    """

    ids: tuple[str, ...]
    statistics: TokenStatistics
    has_correct: bool


@dataclass(frozen=True)
class ListedTexts:
    """Texts that are said to be members, or not to be.

    Parameters
    ----------
    ids : tuple of str
        One name for each text, no two equal.
    texts : tuple of str or None
        The texts themselves, if the file holds them.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...] | None


def read_statistics(path: Path) -> ReadStatistics:
    """Read per-token statistics of one model.

    Parameters
    ----------
    path : pathlib.Path
        ``.jsonl``: one object for each text, with ``id`` (a string or an integer) and ``log_probabilities`` (a
        list of natural logarithms, one for each scored token), and optionally lists of the same length:
        ``correct`` (whether the token is the model's first choice), ``expected`` and ``deviation`` (moments of
        the logarithm over the vocabulary), ``tokens`` (integers). Other fields are ignored.
        ``.npz``: arrays ``ids`` and ``lengths`` of shape (texts,), and the fields above as arrays of shape
        (texts, longest), of which a row counts as far as its length.

    Returns
    -------
    ReadStatistics

    Raises
    ------
    FileRefusedError
        If the file is missing, empty, of another kind, damaged, or holds what cannot be a log-probability.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "scores.jsonl"
    ...     _ = path.write_text('{"id": "letter 7", "log_probabilities": [-0.5, -2.0]}')
    ...     read = read_statistics(path)
    >>> read.ids, read.statistics.log_probabilities.tolist(), read.has_correct
    (('letter 7',), [[-0.5, -2.0]], False)
    """
    refuse_pickles(path)
    if path.suffix == ".npz":
        return _read_archive(path)
    if path.suffix != ".jsonl":
        raise FileRefusedError(path, "is not of a kind that is read: scores are .jsonl or .npz")
    ids: dict[str, int] = {}
    columns: dict[str, list[NDArray[Any]]] = {}
    given: set[str] = set()
    for where, line in _objects(path):
        name = _name(path, where, line)
        if name in ids:
            raise FileRefusedError(path, f"{where}: the id {name!r} stands there twice")
        if not ids:
            given = set(_FIELDS) & line.keys()
        if (there := set(_FIELDS) & line.keys()) != given:
            odd = sorted(there ^ given)[0]
            raise FileRefusedError(path, f"{where}: {odd} must be in every line or in none")
        if "log_probabilities" not in line:
            fields = ", ".join(repr(field) for field in list(line)[:6])
            raise FileRefusedError(path, f"{where}: lacks log_probabilities; it has {fields}")
        length = None
        for field in _FIELDS:
            if field in given:
                values = _checked(path, where, field, line[field], length)
                length = len(values)
                columns.setdefault(field, []).append(values)
        if "correct" in given:
            _require_possible_choice(path, where, columns["log_probabilities"][-1], columns["correct"][-1])
        ids[name] = len(ids)
    lengths = np.array([len(row) for row in columns["log_probabilities"]])
    tables = {field: _table(field, rows, lengths) for field, rows in columns.items()}
    return _assembled(path, tuple(ids), tables)


def read_texts(path: Path) -> ListedTexts:
    r"""Read which texts are meant.

    Parameters
    ----------
    path : pathlib.Path
        ``.jsonl``: one object for each text, with ``text``, ``id`` or both; without an ``id`` a text is called
        by its file and line. ``.txt``: one id on each line, no texts.

    Returns
    -------
    ListedTexts

    Raises
    ------
    FileRefusedError
        If the file is missing, empty, of another kind, not UTF-8, or names a text twice.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "members.txt"
    ...     _ = path.write_text("letter 7\nletter 9\n")
    ...     read_texts(path)
    ListedTexts(ids=('letter 7', 'letter 9'), texts=None)
    """
    refuse_pickles(path)
    ids: dict[str, str | None] = {}
    if path.suffix == ".txt":
        for where, text in _lines(path):
            if text in ids:
                raise FileRefusedError(path, f"{where}: the id {text!r} stands there twice")
            ids[text] = None
        return ListedTexts(tuple(ids), None)
    if path.suffix != ".jsonl":
        raise FileRefusedError(
            path, "is not of a kind that is read: texts are .jsonl, a list of ids may be .txt"
        )
    for where, line in _objects(path):
        content = line.get("text")
        if content is None and "id" not in line:
            raise FileRefusedError(path, f"{where}: has neither text nor id")
        if content is not None and not (isinstance(content, str) and content.strip()):
            raise FileRefusedError(path, f"{where}: text must be a string with something in it")
        if content is not None and not _encodes(content):
            raise FileRefusedError(path, f"{where}: text holds half a character (a lone surrogate)")
        name = _name(path, where, line) if "id" in line else f"{path}, {where}"
        if name in ids:
            raise FileRefusedError(path, f"{where}: the id {name!r} stands there twice")
        ids[name] = content
    texts = tuple(text for text in ids.values() if text is not None)
    if 0 < len(texts) < len(ids):
        raise FileRefusedError(path, "text must be in every line or in none")
    return ListedTexts(tuple(ids), texts or None)


# --------------------------------------------------------------------------- JSON lines


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield ``"line 7"`` and the line, without blank ones."""
    require_file(path)
    found = False
    with path.open("rb") as stream:
        number = 0
        while raw := stream.readline(_LINE_LIMIT + 1):
            number += 1
            if number == 1 and raw[:2] in (b"PK", b"\x1f\x8b"):
                raise FileRefusedError(path, "is packed: unpack it first")
            if len(raw) > _LINE_LIMIT:
                raise FileRefusedError(path, f"line {number}: is longer than {_LINE_LIMIT:,} bytes")
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError:
                raise FileRefusedError(path, f"line {number}: is not UTF-8") from None
            if text:
                found = True
                yield f"line {number}", text
    if not found:
        raise FileRefusedError(path, "holds nothing but blank lines")


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, text in _lines(path):
        try:
            value = parse_json(text)
        except ValueError as error:
            raise FileRefusedError(path, f"{where}: {error}") from None
        if not isinstance(value, dict):
            raise FileRefusedError(path, f"{where}: must be one JSON object for each text")
        yield where, value


def _name(path: Path, where: str, line: dict[str, Any]) -> str:
    name = line.get("id")
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str) or not name.strip() or not _encodes(name):
        raise FileRefusedError(path, f"{where}: id must be a string or an integer")
    return name.strip()


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _checked(path: Path, where: str, field: str, values: Any, length: int | None) -> NDArray[Any]:
    kinds: tuple[type, ...] = {"correct": (bool,), "tokens": (int,)}.get(field, (int, float))
    if not isinstance(values, list) or not all(type(value) in kinds for value in values):
        wanted = {"correct": "true and false", "tokens": "integers"}.get(field, "numbers")
        raise FileRefusedError(path, f"{where}: {field} must be a list of {wanted}")
    if not values:
        raise FileRefusedError(path, f"{where}: {field} is empty")
    if length is not None and len(values) != length:
        raise FileRefusedError(
            path, f"{where}: {field} has {len(values)} entries, log_probabilities has {length}"
        )
    if field == "correct":
        return np.array(values, dtype=np.bool_)
    array = np.array(values, dtype=np.float64)
    return _possible(path, where, field, array)


def _possible(path: Path, where: str, field: str, values: NDArray[Any]) -> NDArray[Any]:
    """Refuse numbers that cannot be what the field says."""
    if field != "tokens":  # half precision cannot hold the limits
        values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise FileRefusedError(path, f"{where}: {field} holds {values[~np.isfinite(values)][0]}")
    if field == "tokens":
        if values.min() < 0 or values.max() >= 2**31:
            raise FileRefusedError(path, f"{where}: tokens must be from 0 to 2147483647")
        return values.astype(np.int64)
    if np.abs(values).max() > _LARGEST:
        raise FileRefusedError(path, f"{where}: {field} holds a number beyond {_LARGEST:,.0f}")
    if field == "deviation":
        if values.min() < 0:
            raise FileRefusedError(path, f"{where}: deviation must be >= 0, got {values.min()}")
        return values
    if values.max() > _ROUNDING:
        guess = ""
        if values.min() >= 0:  # losses may all be below 1 too, and a probability must not become its negative
            guess = (
                " (these look like losses: change their sign)"
                if values.max() > 1
                else " (these look like probabilities: take their natural logarithm; losses: change their sign)"
            )
        raise FileRefusedError(path, f"{where}: {field} must be <= 0, got {values.max()}{guess}")
    return np.minimum(values, 0.0)


def _require_possible_choice(path: Path, where: str, logs: NDArray[Any], correct: NDArray[Any]) -> None:
    """Refuse first choices that the probabilities contradict: most often they are off by one position."""
    missed, claimed = ~correct & (logs > _HALF), correct & (logs < _ONE_OF_MANY)
    if (missed | claimed).any():
        place = int((missed | claimed).argmax())
        raise FileRefusedError(
            path,
            f"{where}: correct[{place}] is {str(bool(correct[place])).lower()}, but the token's probability is "
            f"{math.exp(logs[place]):.3g}: are the two lists about the same positions?",
        )


# --------------------------------------------------------------------------- NumPy archives


def _read_archive(path: Path) -> ReadStatistics:
    require_file(path)
    try:
        arrays = _arrays(path)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, FileRefusedError):
            raise
        raise FileRefusedError(path, f"is no NumPy archive, or is damaged: {error}") from None
    for name in ("ids", "lengths", "log_probabilities"):
        if name not in arrays:
            raise FileRefusedError(
                path, f"lacks the array {name}; it has {', '.join(sorted(arrays)) or 'none'}"
            )
    names, lengths, values = arrays["ids"], arrays["lengths"], arrays["log_probabilities"]
    if values.ndim != 2 or not values.size:
        raise FileRefusedError(path, f"log_probabilities must have two axes, got shape {values.shape}")
    for name in ("ids", "lengths"):
        if arrays[name].shape != values.shape[:1]:
            raise FileRefusedError(
                path, f"{name} must have shape {values.shape[:1]}, got {arrays[name].shape}"
            )
    if names.dtype.kind not in "Uiu":
        raise FileRefusedError(path, f"ids must hold strings or integers, got dtype {names.dtype}")
    if lengths.dtype.kind not in "iu" or lengths.min() < 1 or lengths.max() > values.shape[1]:
        raise FileRefusedError(path, f"lengths must be integers from 1 to {values.shape[1]}")
    ids = tuple(str(name).strip() for name in names)
    for name in set(ids):
        if not name or not _encodes(name):
            raise FileRefusedError(path, "ids must not hold an empty or broken name")
    name, times = Counter(ids).most_common(1)[0]
    if times > 1:
        raise FileRefusedError(path, f"the id {name!r} stands there twice")
    tables: dict[str, NDArray[Any]] = {}
    for field in _FIELDS:
        if field not in arrays:
            continue
        array, kinds = arrays[field], {"correct": "b", "tokens": "iu"}.get(field, "f")
        if array.dtype.kind not in kinds or array.shape != values.shape:
            raise FileRefusedError(
                path, f"{field} must have shape {values.shape}, got {array.shape} of dtype {array.dtype}"
            )
        rows = [row[:n] for row, n in zip(array, lengths, strict=True)]
        if field != "correct":
            rows = [_possible(path, f"text {i}", field, row) for i, row in enumerate(rows)]
        tables[field] = _table(field, rows, lengths)
    if "correct" in tables:
        for i, n in enumerate(lengths):
            given = tables["log_probabilities"][i, :n], tables["correct"][i, :n]
            _require_possible_choice(path, f"text {i}", *given)
    return _assembled(path, ids, tables)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays we know, after comparing what each header says with the bytes that are there."""
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if any(name.endswith((".pkl", "/data.pkl")) for name in members):
            raise FileRefusedError(path, "holds a pickle: reading it would run whatever it holds")
        if sum(info.file_size for info in members.values()) > _ARCHIVE_LIMIT:
            raise FileRefusedError(path, f"unpacks to more than {_ARCHIVE_LIMIT:,} bytes")
        for field in ("ids", "lengths", *_FIELDS):
            info = members.get(f"{field}.npy")
            if info is None:
                continue
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FileRefusedError(path, f"the array {field} is packed in an unusual way")
            with archive.open(info) as stream:
                try:
                    version = np.lib.format.read_magic(stream)
                    reader = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape, _, dtype = reader(stream)
                except (ValueError, SyntaxError) as error:
                    raise FileRefusedError(path, f"the array {field} is damaged: {error}") from None
                if dtype.hasobject:
                    raise FileRefusedError(path, f"the array {field} holds objects, which are pickles")
                if math.prod(shape) * dtype.itemsize != info.file_size - stream.tell():
                    raise FileRefusedError(path, f"the array {field} is cut off or damaged")
            with archive.open(info) as stream:
                arrays[field] = np.lib.format.read_array(stream, allow_pickle=False)
    return arrays


# --------------------------------------------------------------------------- both


def _table(field: str, rows: list[NDArray[Any]], lengths: NDArray[Any]) -> NDArray[Any]:
    empty = {"correct": False, "tokens": PADDING}.get(field, math.nan)
    table = np.full((len(rows), int(lengths.max())), empty)
    for place, row in zip(table, rows, strict=True):
        place[: len(row)] = row
    return table


def _assembled(path: Path, ids: tuple[str, ...], tables: dict[str, NDArray[Any]]) -> ReadStatistics:
    has_correct = "correct" in tables
    if not has_correct:
        tables["correct"] = np.zeros(tables["log_probabilities"].shape, dtype=np.bool_)
    try:
        return ReadStatistics(ids, TokenStatistics(**tables), has_correct)
    except (TypeError, ValueError) as error:
        raise FileRefusedError(path, str(error)) from None
