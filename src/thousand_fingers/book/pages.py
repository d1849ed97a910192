"""Pages that nobody writes: they are generated from the notebooks and the ledger.

*Every figure in this book*, *Threat models*, *Corrections to the sources* and
*Status*. They are made anew at each build and never tracked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from thousand_fingers.book.ledger import FAILS, QUOTED, Claim, Verdict
from thousand_fingers.book.lint import CORRECTION_FIELDS, CORRECTION_TITLE, THREAT_MODEL_FIELDS
from thousand_fingers.book.notebook import Notebook, Record, boxes_of, is_limit, records_of, title_of
from thousand_fingers.book.record import MIME_PREFIX, shown
from thousand_fingers.book.timings import CHECK_PHASE, DATA_PHASE, RUN_PHASE, Timings

EVERY_FIGURE = "every_figure.ipynb"
#: Stands on the status page until the pages are built and the number is known
#: (markup, because the search index and the copied sources leave that out).
RENDER_SECONDS = '<span class="render-seconds">an unknown number of</span>'
MEASURED = "measured"
_INTERVAL_MEASURED = "inside its interval"


@dataclass(frozen=True)
class ChapterResult:
    """What a generated page needs to know of one chapter."""

    file: str
    notebook: Notebook
    verdicts: list[Verdict]
    timing: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Number and title, as the navigation shows them."""
        return f"{int(self.file[:2])} {title_of(self.notebook)}"


def published_records(claims: Iterable[Claim]) -> dict[str, Record]:
    """Return the ledger's values as records ``published.<name>``.

    Parameters
    ----------
    claims : iterable of Claim

    Returns
    -------
    dict of str to Record
        What the page of every figure makes available to ``{glue:text}``.
    """
    return {
        f"published.{claim.name}": Record(f"published.{claim.name}", claim.value, {"kind": "text"}, 0)
        for claim in claims
        if claim.value is not None
    }


def every_figure_page(results: list[ChapterResult], bibliography: str = "") -> Notebook:
    """Return the page that lists each recorded figure with its verdict.

    Parameters
    ----------
    results : list of ChapterResult
    bibliography : str, default ""
        A BibTeX file; what stands in it becomes a citation where a source names it by its key.

    Returns
    -------
    dict
        A notebook, so that the prose of the other pages can quote from it.
    """
    lines = [
        "(every-figure)=",
        "# Every figure in this book",
        "",
        "Each number that a chapter computes stands here once: the value of the run that these pages show, what the "
        "outside world says of it, where that comes from, and whether the two agree. *Measured* figures have no "
        "outside truth; they are compared with the previous run, digit by digit. Under a rate stands its 95% "
        "confidence interval.",
        "",
    ]
    claims: list[Claim] = []
    keys = frozenset(re.findall(r"^@\w+\{\s*([^\s,]+)\s*,", bibliography, re.MULTILINE))
    for result in results:
        lines += [f"## {result.title}", "", *_figure_table(result, keys), ""]
        claims += [verdict.claim for verdict in result.verdicts]
    outputs = [
        {
            "output_type": "display_data",
            "data": {MIME_PREFIX + "text/plain": repr(record.value)},
            "metadata": {"scrapbook": {"name": name, "mime_prefix": MIME_PREFIX}},
        }
        for name, record in published_records(claims).items()
    ]
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "cells": [
            {"cell_type": "markdown", "id": "table", "metadata": {}, "source": "\n".join(lines)},
            {
                "cell_type": "code",
                "id": "quoted",
                "metadata": {"tags": ["remove-input"]},
                "source": "# the ledger's values, for the other pages to quote",
                "execution_count": 1,
                "outputs": outputs,
            },
        ],
    }


def threat_models_page(results: list[ChapterResult]) -> str:
    """Return the page that puts the chapters' threat models side by side.

    Parameters
    ----------
    results : list of ChapterResult

    Returns
    -------
    str
        MyST Markdown.
    """
    lines = [
        "# Threat models",
        "",
        "A figure about an attack means something only next to what the attacker knows and may do. Each chapter opens "
        "with these six answers; here they are together.",
        "",
    ]
    for result in results:
        for box in boxes_of(result.notebook, "threat-model"):
            lines += [f"## [{result.title}](./{result.file})", ""]
            lines += [
                f"{name}\n: {_quoting(box.fields[name], result.file)}\n" for name in THREAT_MODEL_FIELDS
            ]
    return "\n".join(lines) + "\n"


def corrections_page(results: list[ChapterResult]) -> str:
    """Return the page that collects the chapters' corrections of the sources.

    Parameters
    ----------
    results : list of ChapterResult

    Returns
    -------
    str
        MyST Markdown.
    """
    lines = [
        "# Corrections to the sources",
        "",
        "Where a source that this book follows says something that does not hold, the chapter says so next to the "
        "experiment that shows it. Here are all of those boxes.",
        "",
    ]
    for result in results:
        boxes = boxes_of(result.notebook, "correction")
        if boxes:
            lines += [f"## [{result.title}](./{result.file})", ""]
        for box in boxes:
            lines += [f"### {box.title.removeprefix(CORRECTION_TITLE)}", ""]
            lines += [f"{name}\n: {_quoting(box.fields[name], result.file)}\n" for name in CORRECTION_FIELDS]
    return "\n".join(lines) + "\n"


def status_page(results: list[ChapterResult], timings: Timings, versions: Mapping[str, str]) -> str:
    """Return the page that says what was executed, how long it took, and how it went.

    Parameters
    ----------
    results : list of ChapterResult
    timings : Timings
        Of the phases of the last run of the whole book from nothing.
    versions : mapping of str to str
        Of the packages that the figures depend on.

    Returns
    -------
    str
        MyST Markdown.
    """
    lines = [
        "# Status",
        "",
        "Times are those of the machine that made these pages. They say what to expect, and are no figure of the book.",
        "",
        "| Chapter | Code cells | Seconds | Figures | With an outside truth | Verdict |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for result in results:
        timing = result.timing
        figures = [r for r in records_of(result.notebook).values() if r.kind != "plot"]
        failing = sum(v.verdict == FAILS for v in result.verdicts)
        seconds = f"{timing['seconds']:.0f}" if "seconds" in timing else "not run here"
        cells = sum(cell["cell_type"] == "code" for cell in result.notebook["cells"])
        verdict = f"{failing} fail" if failing else "all hold"
        lines.append(
            f"| [{result.title}](./{result.file}) | {cells} | {seconds} | {len(figures)} | "
            f"{len(result.verdicts)} | {verdict} |"
        )
    lines.append("")
    run = timings.get(RUN_PHASE)
    if run:
        lines += [
            f"The last run of the whole book from nothing executed it in {run['seconds']:.0f} seconds with "
            f"{run['workers']} worker processes (isolation from the network: {run['isolation']}). Before it, the data "
            f"carriers took {timings.seconds(DATA_PHASE):.0f} seconds; after it, the checks took "
            f"{timings.seconds(CHECK_PHASE):.0f} and rendering these pages {RENDER_SECONDS} seconds. "
            "Installation is not counted.",
            "",
        ]
    else:
        lines += [
            "These pages were rendered from the notebooks as they are committed; the book was not executed as a "
            f"whole on this machine, `make book` does that. Rendering took {RENDER_SECONDS} seconds.",
            "",
        ]
    lines += ["## Versions", "", "| Package | Version |", "|---|---|"]
    lines += [f"| {name} | {version} |" for name, version in versions.items()]
    return "\n".join(lines) + "\n"


def _figure_table(result: ChapterResult, keys: frozenset[str]) -> list[str]:
    by_name = {verdict.claim.name: verdict for verdict in result.verdicts}
    records = records_of(result.notebook)
    rows = []
    for name, record in records.items():
        if record.kind == "plot" or is_limit(name, records):
            continue
        value = _cell(shown(record.value, record.about))
        if is_limit(f"{name}.low", records):
            low, high = (
                shown(records[name + end].value, records[name + end].about) for end in (".low", ".high")
            )
            value += f"<br>{low} to {high}"
        verdict = by_name.pop(name, None)
        if verdict is None:
            outside, source = "—", "—"
            word = MEASURED
            if record.kind == "statistical":
                low, high = (shown(float(end), record.about) for end in record.about["interval"])
                outside, word = f"in [{low}, {high}]", _INTERVAL_MEASURED
            rows.append(f"| `{name}` | {value} | {outside} | {source} | {word} |")
        else:
            rows.append(f"| {_what(verdict)} | {value} | {_outside(verdict, keys)} |")
    rows += [f"| {_what(verdict)} | — | {_outside(verdict, keys)} |" for verdict in by_name.values()]
    head = ["| Figure | Ours | Outside truth | Source | Verdict |", "|---|--:|--:|---|---|"]
    return head + rows


def _what(verdict: Verdict) -> str:
    return f"{_cell(verdict.claim.title)}<br>`{verdict.claim.name}`"


def _outside(verdict: Verdict, keys: frozenset[str]) -> str:
    claim = verdict.claim
    word = verdict.verdict if verdict.verdict != QUOTED else "quoted, not rebuilt here"
    if claim.why_different:
        word += f": {claim.why_different}"
    outside = f"{_cell(claim.shown())} | {claim.kind}: {_cell(claim.source)} | {_cell(word)}"
    return re.sub(
        r"\b[A-Za-z]+\d{4}[a-z]?\b", lambda m: f"{{cite:t}}`{m[0]}`" if m[0] in keys else m[0], outside
    )


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _quoting(text: str, file: str) -> str:
    # A quotation without a file name would look for its figure on the generated page.
    return re.sub(r"\{glue:text\}`(?!\S+?::)", "{glue:text}`" + file + "::", text)
