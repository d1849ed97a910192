"""The three checks together, over committed or regenerated notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from thousand_fingers.book import lint
from thousand_fingers.book.artefacts import Recipe, artefact_problems, code_digest, fingerprint, recipes
from thousand_fingers.book.drift import ONE_MACHINE, drift, without_cells
from thousand_fingers.book.freshness import State
from thousand_fingers.book.ledger import DIFFERS, HOLDS, QUOTED, Ledger, judge, ledger_problems, read_ledger
from thousand_fingers.book.notebook import Notebook, normalise, notebook_bytes, read_notebook, records_of
from thousand_fingers.book.pages import EVERY_FIGURE, published_records
from thousand_fingers.book.project import Chapter, Project, toc_entries


@dataclass(frozen=True)
class Report:
    """What the checks found on one page or chapter."""

    name: str
    problems: list[str]
    figures: int = 0
    holding: int = 0
    quoted: int = 0
    drift_checked: bool = False


def check(
    project: Project,
    state: State,
    chapters: Sequence[Chapter],
    *,
    scale: str = "ci",
    variant: str = "",
    artefacts: bool = True,
    jobs: int = 1,
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
        Whether to recompute parts of the chapters' artefacts; what came out
        well is remembered until the artefact, its code or the lock changes.
    jobs : int, default 1
        Local processes that recompute them.

    Returns
    -------
    list of Report
        One per chapter, and one for the pages.
    """
    if variant:
        return [_second_machine(project, chapter, scale, variant) for chapter in chapters]
    everything = project.chapters()
    committed = {chapter.path.name: normalise(read_notebook(chapter.path)) for chapter in everything}
    regenerated = {
        chapter.path.name: read_notebook(project.executed(chapter, scale))
        for chapter in everything
        if not state.why_stale(chapter, scale)
    }
    ledgers = {chapter.name: read_ledger(project, chapter.name[:2]) for chapter in everything}
    records = lint.all_records({**committed, **regenerated} if scale == "ci" else committed)
    records[EVERY_FIGURE] = published_records(
        claim for ledger in ledgers.values() for claim in ledger.claims.values()
    )
    numbers = {chapter.number for chapter in chapters}
    made = [r for r in recipes(project).values() if r.chapter in numbers] if artefacts else []
    spot_checks = _spot_checks(project, state, made, jobs)
    reports = []
    listed = {Path(entry).name for entry in toc_entries(project)}
    for chapter in chapters:
        file = chapter.path.name
        report = _chapter(
            chapter, committed[file], regenerated.get(file), ledgers[chapter.name], records, scale
        )
        if chapter.name not in listed:
            report.problems.append(f"is not in _toc.yml: add `- file: chapters/{chapter.name}`")
        for recipe in made:
            if recipe.chapter == chapter.number:
                report.problems.extend(spot_checks.get(recipe.name, []))
        reports.append(report)
    pages = sorted(project.chapters_dir.glob("*.md"))
    allowances = read_ledger(project, "pages").allowances
    reports.append(Report("pages", lint.lint_pages(pages, allowances, records)))
    return reports


def _chapter(
    chapter: Chapter,
    committed: Notebook,
    regenerated: Notebook | None,
    ledger: Ledger,
    records: dict[str, dict[str, lint.Record]],
    scale: str,
) -> Report:
    problems = lint.lint_chapter(committed, chapter.path.name, ledger.allowances, records)
    executed = lint.NEVER_EXECUTED not in problems
    if executed and notebook_bytes(committed) != chapter.path.read_bytes():
        problems.append("was edited or saved by another program: `make refresh` brings it into normal form")
    compared = regenerated is not None and executed and scale == "ci"
    if regenerated is not None:
        problems += [f"regenerated: {what}" for what in lint.lint_outputs(regenerated)]
        if compared:
            problems += drift(committed, regenerated)
    shown = regenerated if regenerated is not None else committed
    verdicts = judge(ledger.claims, records_of(shown)) if scale == "ci" and (executed or regenerated) else []
    problems += ledger_problems(verdicts)
    return Report(
        chapter.name,
        problems,
        figures=sum(record.kind != "plot" for record in records_of(shown).values()),
        holding=sum(verdict.verdict == HOLDS for verdict in verdicts),
        quoted=sum(verdict.verdict in (QUOTED, DIFFERS) for verdict in verdicts),
        drift_checked=compared,
    )


def _spot_checks(project: Project, state: State, made: Sequence[Recipe], jobs: int) -> dict[str, list[str]]:
    """Return the problems of the artefacts that nothing vouches for yet; remember those without."""
    codes = {recipe.name: code_digest(project, recipe) for recipe in made}
    found = {recipe.name: fingerprint(project, recipe, codes[recipe.name]) for recipe in made}
    open_ones = [r for r in made if state.value(f"artefact/{r.name}") != found[r.name]]
    if not open_ones:
        return {}
    with ProcessPoolExecutor(min(jobs, len(open_ones))) as pool:
        answers = pool.map(partial(artefact_problems, project), open_ones, [codes[r.name] for r in open_ones])
        problems = {recipe.name: answer for recipe, answer in zip(open_ones, answers, strict=True)}
    for name, answer in problems.items():
        if not answer:
            state.keep(f"artefact/{name}", found[name])
    return problems


def _second_machine(project: Project, chapter: Chapter, scale: str, variant: str) -> Report:
    committed = without_cells(normalise(read_notebook(chapter.path)), ONE_MACHINE)
    regenerated = read_notebook(project.executed(chapter, scale, variant))
    problems = drift(committed, regenerated)
    return Report(chapter.name, problems, figures=len(records_of(regenerated)), drift_checked=True)
