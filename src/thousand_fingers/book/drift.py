"""First check: a regenerated notebook says what the committed one says."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from thousand_fingers.book.notebook import (
    Cell,
    Notebook,
    Record,
    code_cells,
    figures_of,
    records_of,
    source_digest,
    tags_of,
)
from thousand_fingers.book.record import shown

#: Cells whose text may differ between machines; their records are compared all the same.
APPROXIMATE = "approximate"
#: Cells that the second-vector-width pass leaves out.
ONE_MACHINE = "one-machine"
#: Means of plotted data that cancel are compared on the scale of rounding errors.
_ROUNDING = 1e-12


def drift(committed: Notebook, regenerated: Notebook) -> list[str]:
    """Compare a regenerated notebook with the committed one.

    Parameters
    ----------
    committed, regenerated : dict
        Notebooks in normal form.

    Returns
    -------
    list of str
        One line for each difference that matters: another source, a text
        that changed, a record that changed beyond its tolerance, came or
        went, a figure whose data, caption or alternative text changed.
        Empty if there is none. Pictures are not compared as bytes.
    """
    if source_digest(committed) != source_digest(regenerated):
        return ["the committed cells are not those that were executed; run it again"]
    before, after = records_of(committed), records_of(regenerated)
    problems = [f"record {name} is no longer made" for name in sorted(before.keys() - after.keys())]
    problems += [f"record {name} is new" for name in sorted(after.keys() - before.keys())]
    for name in sorted(before.keys() & after.keys()):
        approximate = APPROXIMATE in tags_of(committed["cells"][before[name].cell])
        problems += _record_drift(before[name], after[name], approximate)
    pairs = zip(code_cells(committed), code_cells(regenerated), strict=True)
    for count, ((_, old), (_, new)) in enumerate(pairs, start=1):
        if APPROXIMATE in tags_of(old):
            continue
        if visible_text(old) != visible_text(new):
            problems.append(
                f"the text printed by cell [{count}] changed: {_first_difference(visible_text(old), visible_text(new))}"
            )
        if _parts_of_pictures(old) != _parts_of_pictures(new):
            problems.append(f"the picture of cell [{count}] lost or gained parts")
        if figures_of(old) != figures_of(new):
            problems.append(f"name, caption or alternative text of the figure of cell [{count}] changed")
    return problems


def without_cells(notebook: Notebook, tag: str) -> Notebook:
    """Return a notebook without the code cells that carry a tag."""
    kept = [c for c in notebook["cells"] if c["cell_type"] != "code" or tag not in tags_of(c)]
    return {**notebook, "cells": kept}


def visible_text(cell: Cell) -> str:
    """Return the text that a cell shows, without its records' lines.

    Parameters
    ----------
    cell : dict
        A code cell in normal form.

    Returns
    -------
    str
        Streams, plain text and HTML, in order.
    """
    names = {
        output["metadata"]["scrapbook"]["name"]
        for output in cell.get("outputs", [])
        if "scrapbook" in output.get("metadata", {})
    }
    parts = []
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            lines = output["text"].splitlines()
            parts += [line for line in lines if line.partition(" = ")[0] not in names]
        elif "scrapbook" in output.get("metadata", {}) or "figure" in output.get("metadata", {}):
            continue
        else:
            data = output.get("data", {})
            parts += [
                str(data[mime]) for mime in ("text/plain", "text/html", "text/markdown") if mime in data
            ]
    return "\n".join(parts)


def _record_drift(old: Record, new: Record, approximate: bool) -> list[str]:
    if old.kind != new.kind:
        return [f"record {old.name} changed its kind: {old.kind} -> {new.kind}"]
    if old.kind == "plot":
        return [] if approximate else _plot_drift(old, new)
    if old.kind == "statistical":
        low, high = old.about["interval"]
        if not all(map(_close, old.about["interval"], new.about["interval"])):
            return [
                f"record {old.name} changed its interval: {old.about['interval']} -> {new.about['interval']}"
            ]
        if not low <= float(new.value) <= high:
            return [f"record {old.name} left its interval [{low}, {high}]: {new.value}"]
        return []
    if old.kind == "float64":
        same = _close(float(old.value), float(new.value), old.about["rtol"])
        if same and shown(old.value, old.about) == shown(new.value, new.about):
            return []
    elif old.value == new.value:
        return []
    return [f"record {old.name} changed: {old.value!r} -> {new.value!r}"]


def _plot_drift(old: Record, new: Record) -> list[str]:
    before: dict[str, dict[str, float]] = json.loads(str(old.value))
    after: dict[str, dict[str, float]] = json.loads(str(new.value))
    if before.keys() != after.keys():
        return [f"{old.name}: lines or panels came or went"]
    changed = [
        series
        for series in before
        if before[series].keys() != after[series].keys()
        or not all(
            _close(before[series][k], after[series][k], old.about["rtol"], _ROUNDING) for k in before[series]
        )
    ]
    return [f"{old.name}: the data of {', '.join(changed)} changed"] if changed else []


def _close(a: float, b: float, rtol: float = 1e-9, floor: float = 0.0) -> bool:
    return math.isclose(a, b, rel_tol=rtol, abs_tol=floor)


def _parts_of_pictures(cell: Cell) -> list[list[str]]:
    """Return the names of the groups in each SVG: what is drawn, wherever it stands exactly."""
    pictures = [
        output["data"].get("image/svg+xml", "") for output in cell.get("outputs", []) if "data" in output
    ]
    return [re.findall(r'<g id="([^"]+)"', picture) for picture in pictures if picture]


def _first_difference(old: str, new: str) -> str:
    olds: list[Any] = old.splitlines()
    news: list[Any] = new.splitlines()
    for left, right in zip(olds, news, strict=False):
        if left != right:
            return f"{left!r} -> {right!r}"
    return f"{len(olds)} lines -> {len(news)} lines"
