"""Notebooks as data: normal form, source digest, records, boxes.

A notebook in normal form depends on its sources and on what they computed, and
on nothing else: no time stamps, no run ids, no machine. Two executions of the
same cells give the same bytes.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thousand_fingers.book.project import BookError, digest
from thousand_fingers.book.record import MIME_PREFIX

Notebook = dict[str, Any]
Cell = dict[str, Any]

#: Notebook metadata in which a chapter states what it needs.
CHAPTER_KEY = "thousand_fingers"


@dataclass(frozen=True)
class Record:
    """One recorded value of a notebook."""

    name: str
    value: float | int | str
    about: dict[str, Any]
    cell: int

    @property
    def kind(self) -> str:
        """How the value is compared: see ``record.KINDS``."""
        return str(self.about["kind"])


@dataclass(frozen=True)
class Box:
    """An admonition with fixed fields: a threat model or a correction."""

    title: str
    fields: dict[str, str]
    cell: int


def read_notebook(path: Path) -> Notebook:
    """Read a notebook of format 4.5 or later.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict
        The JSON document, every ``source`` and text as one string.

    Raises
    ------
    BookError
        If the file is missing or is not a notebook.
    """
    try:
        return parse_notebook(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BookError(f"{path} does not exist") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BookError(f"{path} is not a notebook: {error}") from None


def parse_notebook(text: str) -> Notebook:
    """Return a notebook from its JSON text, joining lists of lines.

    Parameters
    ----------
    text : str

    Returns
    -------
    dict
    """
    notebook: Notebook = json.loads(text)
    if notebook["nbformat"] != 4:
        raise ValueError(f"nbformat must be 4, got {notebook['nbformat']}")
    for cell in notebook["cells"]:
        cell["source"] = _joined(cell["source"])
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _joined(output["text"])
            for mime, content in output.get("data", {}).items():
                output["data"][mime] = _joined(content)
    return notebook


def notebook_bytes(notebook: Notebook) -> bytes:
    """Return the canonical bytes of a notebook (sorted keys, split lines).

    Parameters
    ----------
    notebook : dict

    Returns
    -------
    bytes
    """
    split = json.loads(json.dumps(notebook))
    for cell in split["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = output["text"].splitlines(keepends=True)
            for mime, content in output.get("data", {}).items():
                if isinstance(content, str):
                    output["data"][mime] = content.splitlines(keepends=True)
    return (json.dumps(split, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8")


def normalise(notebook: Notebook) -> Notebook:
    """Return a notebook in normal form.

    Parameters
    ----------
    notebook : dict
        As executed by papermill, or as saved by JupyterLab.

    Returns
    -------
    dict
        A new document. Caption and alternative text of a figure, which the
        cell's output carries, are copied to where MyST-NB looks for them.
    """
    clean: Notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "cells": [],
    }
    if CHAPTER_KEY in notebook["metadata"]:
        clean["metadata"][CHAPTER_KEY] = notebook["metadata"][CHAPTER_KEY]
    taken: dict[str, int] = {}
    for cell in notebook["cells"]:
        source = cell["source"].rstrip("\n")
        if not source.strip():
            continue
        identity = digest(f"{cell['cell_type']}\n{source}".encode())[:12]
        taken[identity] = taken.get(identity, 0) + 1
        fresh: Cell = {
            "cell_type": cell["cell_type"],
            "id": identity if taken[identity] == 1 else f"{identity}-{taken[identity]}",
            "metadata": {},
            "source": source,
        }
        if tags := sorted(tags_of(cell)):
            fresh["metadata"]["tags"] = tags
        if cell["cell_type"] == "code":
            fresh["execution_count"] = cell.get("execution_count")
            fresh["outputs"] = _clean_outputs(cell.get("outputs", []))
            for about in figures_of(fresh):
                fresh["metadata"]["mystnb"] = {
                    "figure": {"name": about["name"], "caption": about["caption"]},
                    "image": {"alt": about["alt"]},
                }
        clean["cells"].append(fresh)
    return clean


def source_digest(notebook: Notebook) -> str:
    """Return the digest of what an author wrote: cells, tags, needs.

    Parameters
    ----------
    notebook : dict

    Returns
    -------
    str
        Equal for a notebook before and after its execution.
    """
    cells = [
        [cell["cell_type"], cell["source"].rstrip("\n"), sorted(tags_of(cell))]
        for cell in notebook["cells"]
        if cell["source"].strip() and "injected-parameters" not in tags_of(cell)
    ]
    needs = notebook["metadata"].get(CHAPTER_KEY, {})
    return digest(json.dumps([cells, needs], sort_keys=True).encode())


def needs_of(notebook: Notebook) -> dict[str, Any]:
    """Return what a chapter states that it needs (carriers, memory)."""
    return dict(notebook["metadata"].get(CHAPTER_KEY, {}))


def tags_of(cell: Cell) -> set[str]:
    """Return the tags of a cell."""
    return set(cell["metadata"].get("tags", []))


def code_cells(notebook: Notebook) -> Iterator[tuple[int, Cell]]:
    """Yield position and cell of every code cell that has a source."""
    for position, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code" and cell["source"].strip():
            yield position, cell


def figures_of(cell: Cell) -> list[dict[str, str]]:
    """Return name, caption and alternative text of the figures of a cell."""
    return [
        output["metadata"]["figure"]
        for output in cell.get("outputs", [])
        if "figure" in output.get("metadata", {})
    ]


def records_of(notebook: Notebook) -> dict[str, Record]:
    """Return the recorded values of a notebook by name.

    Parameters
    ----------
    notebook : dict

    Returns
    -------
    dict of str to Record

    Raises
    ------
    BookError
        If a name is recorded twice (the prose could not tell which is meant),
        or if a value was edited into something that is none.
    """
    records: dict[str, Record] = {}
    for position, cell in code_cells(notebook):
        for output in cell.get("outputs", []):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            if name is None:
                continue
            if name in records:
                raise BookError(
                    f"the figure {name} is recorded twice, in cells {records[name].cell} and {position}"
                )
            written = output["data"][MIME_PREFIX + "text/plain"]
            try:
                value = ast.literal_eval(written)
            except (ValueError, SyntaxError):
                raise BookError(f"the figure {name} is no number and no text: {written!r}") from None
            records[name] = Record(name, value, output["metadata"].get("record", {"kind": "text"}), position)
    return records


def is_limit(name: str, names: Collection[str]) -> bool:
    """Tell whether a record is an end of another's confidence interval.

    Parameters
    ----------
    name : str
    names : collection of str
        Of all records of the notebook; see ``record.record_rate``.

    Returns
    -------
    bool
    """
    rate, _, end = name.rpartition(".")
    return end in ("low", "high") and all(n in names for n in (rate, f"{rate}.low", f"{rate}.high"))


_BOX = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{admonition\} (?P<title>[^\n]+)\n"
    r":class: (?P<class>[a-z -]+)\n(?P<body>.*?)^(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_FIELD = re.compile(r"^- \*\*(?P<name>[^*\n]+)\*\*: (?P<text>.*?)(?=^- \*\*|\Z)", re.MULTILINE | re.DOTALL)


def boxes_of(notebook: Notebook, css_class: str) -> list[Box]:
    """Return the admonitions of one class with their fields.

    Parameters
    ----------
    notebook : dict
    css_class : str
        ``"threat-model"``, ``"correction"``, ``"remember"`` and so on.

    Returns
    -------
    list of Box
        ``fields`` holds the list items of the form ``- **Name**: text``.
    """
    boxes = []
    for position, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "markdown":
            continue
        for match in _BOX.finditer(cell["source"]):
            if css_class in match["class"].split():
                fields = {
                    field["name"]: " ".join(field["text"].split()) for field in _FIELD.finditer(match["body"])
                }
                boxes.append(Box(match["title"].strip(), fields, position))
    return boxes


def title_of(notebook: Notebook) -> str:
    """Return the first-level heading of a notebook."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for line in cell["source"].splitlines():
                if line.startswith("# "):
                    return line[2:].strip()
    return ""


def _joined(content: Any) -> Any:
    return "".join(content) if isinstance(content, list) else content


def _clean_outputs(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    clean: list[dict[str, Any]] = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            last = clean[-1] if clean else {}
            if last.get("output_type") == "stream" and last["name"] == output["name"]:
                last["text"] += output["text"]
            else:
                clean.append({"output_type": kind, "name": output["name"], "text": output["text"]})
        elif kind == "error":
            clean.append({key: output[key] for key in ("output_type", "ename", "evalue", "traceback")})
        else:
            kept = {key: output[key] for key in ("output_type", "data", "metadata")}
            if kind == "execute_result":
                kept["execution_count"] = output.get("execution_count")
            clean.append(kept)
    # Records and figures interrupt the printed text without being seen: bring the text together.
    return _streams_merged_across_records(clean)


def _streams_merged_across_records(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    for output in outputs:
        if output["output_type"] == "stream":
            for earlier in reversed(merged):
                if earlier["output_type"] == "stream" and earlier["name"] == output["name"]:
                    earlier["text"] += output["text"]
                    break
                if "scrapbook" not in earlier.get("metadata", {}):
                    merged.append(output)
                    break
            else:
                merged.append(output)
        else:
            merged.append(output)
    return merged
