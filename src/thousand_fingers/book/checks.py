"""The three checks together, over committed or regenerated notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thousand_fingers.book import lint
from thousand_fingers.book.artefacts import artefact_problems, recipes
from thousand_fingers.book.drift import ONE_MACHINE, drift, without_cells
from thousand_fingers.book.freshness import State
from thousand_fingers.book.ledger import HOLDS, Ledger, judge, ledger_problems, read_ledger
from thousand_fingers.book.notebook import Notebook, normalise, read_notebook, records_of
from thousand_fingers.book.pages import EVERY_FIGURE, published_records
from thousand_fingers.book.project import Chapter, Project


@dataclass(frozen=True)
class Report:
    """What the checks found on one page or chapter."""

    name: str
    problems: list[str]
    figures: int = 0
    claims: int = 0
    holding: int = 0
    drift_checked: bool = False


def check(
    project: Project,
    state: State,
    chapters: Sequence[Chapter],
    *,
    scale: str = "ci",
    variant: str = "",
    artefacts: bool = True,
) -> list[Report]:
    """Run drift, ledger and lint on chapters, and the lint on the plain pages.

    Parameters
    ----------
    project : Project
    state : State
        Tells which regenerated notebooks are fresh; only those can drift.
    chapters : sequence of Chapter
    scale : str, default "ci"
        At another scale the committed notebooks are no yardstick: drift and
        ledger are left out.
    variant : str, default ""
        Another vector width: drift alone is checked, without the cells
        tagged ``one-machine``.
    artefacts : bool, default True
        Whether to recompute parts of the chapters' artefacts.

    Returns
    -------
    list of Report
        One per chapter, and one for the pages.
    """
    if variant:
        return [_second_machine(project, chapter, scale, variant) for chapter in chapters]
    everything = project.chapters()
    committed = {chapter.path.name: normalise(read_notebook(chapter.path)) for chapter in everything}
    ledgers = {chapter.name: read_ledger(project, chapter.name[:2]) for chapter in everything}
    records = lint.all_records(committed)
    records[EVERY_FIGURE] = published_records(
        claim for ledger in ledgers.values() for claim in ledger.claims.values()
    )
    made = recipes(project) if artefacts else {}
    reports = []
    for chapter in chapters:
        report = _chapter(
            project, state, chapter, committed[chapter.path.name], ledgers[chapter.name], records, scale
        )
        for recipe in made.values():
            if recipe.chapter == chapter.number:
                report.problems.extend(artefact_problems(project, recipe))
        reports.append(report)
    pages = sorted(project.chapters_dir.glob("*.md"))
    allowances = read_ledger(project, "pages").allowances
    reports.append(Report("pages", lint.lint_pages(pages, allowances, records)))
    return reports


def _chapter(
    project: Project,
    state: State,
    chapter: Chapter,
    committed: Notebook,
    ledger: Ledger,
    records: dict[str, dict[str, lint.Record]],
    scale: str,
) -> Report:
    problems = lint.lint_chapter(committed, chapter.path.name, ledger.allowances, records)
    fresh = not state.why_stale(chapter, scale)
    shown = committed
    if fresh:
        shown = read_notebook(project.executed(chapter, scale))
        problems += [f"regenerated: {what}" for what in lint.lint_outputs(shown)]
        if scale == "ci":
            problems += drift(committed, shown)
    verdicts = judge(ledger.claims, records_of(shown)) if scale == "ci" else []
    problems += ledger_problems(verdicts)
    return Report(
        chapter.name,
        problems,
        figures=sum(record.kind != "plot" for record in records_of(shown).values()),
        claims=len(verdicts),
        holding=sum(verdict.verdict == HOLDS for verdict in verdicts),
        drift_checked=fresh and scale == "ci",
    )


def _second_machine(project: Project, chapter: Chapter, scale: str, variant: str) -> Report:
    committed = without_cells(normalise(read_notebook(chapter.path)), ONE_MACHINE)
    regenerated = read_notebook(project.executed(chapter, scale, variant))
    problems = drift(committed, regenerated)
    return Report(chapter.name, problems, figures=len(records_of(regenerated)), drift_checked=True)
