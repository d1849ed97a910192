"""The console command ``fingers``.

Exit status: 0 all is well · 1 a chapter or an artefact could not be regenerated
· 2 the command was not understood · 3 a check failed · 4 a data carrier, or a
file given to ``audit``, is missing, damaged or refused · 130 interrupted.
"""

from __future__ import annotations

import fcntl
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import thousand_fingers
from thousand_fingers.book.audit import audit
from thousand_fingers.book.execute import Failure
from thousand_fingers.book.freshness import State
from thousand_fingers.book.notebook import needs_of, normalise, notebook_bytes, read_notebook, records_of
from thousand_fingers.book.project import (
    BookError,
    Chapter,
    Project,
    UsageError,
    find_project,
    write_atomically,
)
from thousand_fingers.book.readme import refresh_readme
from thousand_fingers.book.record import shown
from thousand_fingers.book.run import VARIANTS, Listener, Outcome, cluster, run
from thousand_fingers.book.timings import CHECK_PHASE, DATA_PHASE, RUN_PHASE, Timings

FAILED, USAGE, CHECK_FAILED, DATA_FAILED, INTERRUPTED = 1, 2, 3, 4, 130
SHOWN_PROBLEMS = 60

app = typer.Typer(
    help="Regenerate, check and render the book A Thousand Fingers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    help="The data carriers: pinned wheels that the book reads its data from.", no_args_is_help=True
)
app.add_typer(data_app, name="data")
app.command()(audit)

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class Scale(StrEnum):
    """How much of a published set-up a run rebuilds."""

    ci = "ci"
    paper = "paper"


Chapters = Annotated[list[str] | None, typer.Argument(help="Numbers or names of chapters; all by default.")]
Jobs = Annotated[int, typer.Option(min=1, help="Local worker processes.")]
Cluster = Annotated[
    str,
    typer.Option(
        "--executor", metavar="ADDRESS", help="A Dask scheduler instead: tls://…, or tcp:// on loopback."
    ),
]


@app.command("run")
def run_command(
    chapters: Chapters = None,
    scale: Annotated[
        Scale, typer.Option(help="ci: what the pages show; paper: the published set-up.")
    ] = Scale.ci,
    jobs: Jobs = 2,
    fresh: Annotated[bool, typer.Option("--fresh", help="Execute even what is fresh.")] = False,
    executor: Cluster = "",
    vector_width: Annotated[
        str, typer.Option(help="'baseline' pretends to be a machine without wide vector instructions.")
    ] = "",
    online: Annotated[
        bool, typer.Option("--online", help="Allow the network (scale paper downloads data).")
    ] = False,
) -> None:
    """Execute the chapters that are not fresh, with papermill."""
    if vector_width and vector_width not in VARIANTS:
        raise UsageError(f"--vector-width must be one of {', '.join(VARIANTS)}, got {vector_width!r}")
    with _project() as (project, state, timings):
        chosen = project.chapters(chapters or ())
        _fetch_for(chosen, timings)
        started = time.perf_counter()
        place = cluster(executor) if executor else nullcontext(None)
        with place as pool, _Progress() as listener:
            outcomes = run(
                project,
                state,
                timings,
                chosen,
                scale=scale.value,
                variant=vector_width,
                fresh=fresh,
                offline=not online,
                jobs=jobs,
                executor=pool,
                listener=listener,
            )
        seconds = time.perf_counter() - started
        failed = [o for o in outcomes if o.failure]
        for outcome in failed:
            assert outcome.failure is not None
            _print_failure(outcome.chapter, outcome.failure)
        executed = [o for o in outcomes if o.state == "executed"]
        out.print(
            f"{len(executed)} executed, {len(outcomes) - len(executed) - len(failed)} fresh, "
            f"{len(failed)} failed in {seconds:.0f} s"
        )
        whole_book = not chapters and not vector_width and scale is Scale.ci
        if whole_book and executed and len(executed) == len(outcomes):
            timings.forget(CHECK_PHASE)  # the checks that follow belong to this run
            timings.keep(RUN_PHASE, seconds, workers=jobs, isolation=executed[0].isolation)
    if failed:
        raise typer.Exit(FAILED)


@app.command()
def regenerate(
    chapter: Annotated[str, typer.Argument(help="Number or name of a chapter.")],
    jobs: Jobs = 2,
    executor: Cluster = "",
) -> None:
    """Compute the artefacts of a chapter anew, at full scale."""
    from concurrent.futures import ProcessPoolExecutor

    from thousand_fingers.book import artefacts

    with _project() as (project, _, timings):
        chosen = project.chapters([chapter])
        _fetch_for(chosen, timings)
        recipes = [r for r in artefacts.recipes(project).values() if r.chapter == chosen[0].number]
        if not recipes:
            out.print(
                f"chapter {chosen[0].number} has no artefacts: everything it shows is computed by `fingers run`"
            )
        with cluster(executor) if executor else ProcessPoolExecutor(jobs) as pool:
            for recipe in recipes:
                out.print(f"{recipe.name}: computing {recipe.parts} parts …")
                started = time.perf_counter()
                path = artefacts.regenerate(project, recipe, pool)
                seconds = time.perf_counter() - started
                timings.keep(f"artefact/{recipe.name}", seconds)
                out.print(f"{recipe.name}: {path.stat().st_size:,} bytes in {seconds:.0f} s")


@app.command()
def check(
    chapters: Chapters = None,
    scale: Annotated[Scale, typer.Option(help="Which regenerated notebooks to look at.")] = Scale.ci,
    vector_width: Annotated[
        str, typer.Option(help="Compare the run that pretended to be another machine.")
    ] = "",
    require_fresh: Annotated[
        bool, typer.Option("--require-fresh", help="Fail unless every chapter was regenerated and compared.")
    ] = False,
    jobs: Jobs = 2,
) -> None:
    """Compare what was regenerated with what is committed and with the ledger."""
    from thousand_fingers.book.checks import check as run_checks

    with _project() as (project, state, timings):
        started = time.perf_counter()
        chosen = project.chapters(chapters or ())
        if vector_width and (stale := [c for c in chosen if state.why_stale(c, scale.value, vector_width)]):
            raise BookError(f"{stale[0].name} was not executed at vector width {vector_width}: run it first")
        reports = run_checks(project, state, chosen, scale=scale.value, variant=vector_width, jobs=jobs)
        of_this_run = not (chapters or vector_width or timings.get(CHECK_PHASE)) and scale is Scale.ci
        if of_this_run:
            timings.keep(CHECK_PHASE, time.perf_counter() - started)
    problems = 0
    for report in reports:
        found = list(report.problems)
        if require_fresh and report.name != "pages" and not report.drift_checked:
            found.append("was not regenerated: run `fingers run`")
        problems += len(found)
        if report.name == "pages":
            summary = "prose and quotations"
        else:
            compared = (
                "compared with the regenerated run"
                if report.drift_checked
                else "as committed, not regenerated"
            )
            claims = f"{report.holding} claims hold" + (
                f", {report.quoted} are quoted" if report.quoted else ""
            )
            summary = f"{report.figures} figures, {claims}, {compared}"
        mark = "[red]✗[/]" if found else "[green]✓[/]"
        out.print(f"{mark} {report.name}: {summary}", soft_wrap=True)
        for line in found[:SHOWN_PROBLEMS]:
            out.print(f"    {escape(line)}", soft_wrap=True)
        if len(found) > SHOWN_PROBLEMS:
            out.print(f"    … and {len(found) - SHOWN_PROBLEMS} more")
    if problems:
        out.print(f"[red]{problems} problems[/]")
        raise typer.Exit(CHECK_FAILED)
    out.print("all checks hold")


@app.command()
def refresh(
    chapters: Chapters = None,
    jobs: Jobs = 2,
) -> None:
    """Execute what is not fresh and write it over the committed notebooks."""
    run_command(chapters, Scale.ci, jobs, False, "", "", False)
    with _project() as (project, _, _):
        for chapter in project.chapters(chapters or ()):
            _refresh(project, chapter)
        try:
            refresh_readme(project)
        except BookError as error:
            out.print(f"the README's figure was left alone: {escape(str(error))}", soft_wrap=True)


@app.command()
def render() -> None:
    """Build the pages, without executing anything."""
    from thousand_fingers.book import render as renderer

    with _project() as (project, state, timings), out.status("rendering"):
        rendering = renderer.render(project, state, timings)
    word = "rendered" if rendering.built else "nothing changed since the last rendering:"
    out.print(f"{word} {rendering.pages} pages; open {rendering.index}", soft_wrap=True)


@app.command("list")
def list_command() -> None:
    """List the chapters: fresh or stale and why, cells, seconds."""
    with _project() as (project, state, timings):
        table = Table("chapter", "state", "cells", "seconds", box=None)
        for chapter in project.chapters():
            why = state.why_stale(chapter, "ci")
            known = timings.get(chapter.key("ci"))
            shown_why = (
                "fresh" if not why else "stale: " + ", ".join(why[:3]) + (" …" if len(why) > 3 else "")
            )
            table.add_row(
                chapter.name, escape(shown_why), str(known.get("cells", "–")), str(known.get("seconds", "–"))
            )
        out.print(table)


@data_app.command("fetch")
def data_fetch(
    names: Annotated[
        list[str] | None, typer.Argument(help="Carriers; those of all chapters by default.")
    ] = None,
) -> None:
    """Fetch data carriers into data/cache, by hash."""
    with _project() as (project, _, timings):
        if names:
            _fetch(names)
        else:
            _fetch_for(project.chapters(), timings)
    out.print("every carrier asked for is in data/cache")


@data_app.command("list")
def data_list() -> None:
    """List the carriers, their licences and what is read from them."""
    from thousand_fingers.datasets import list_carriers

    table = Table("carrier", "version", "members", "licence", box=None)
    for carrier in list_carriers():
        table.add_row(carrier.name, carrier.version, str(len(carrier.members)), escape(carrier.licence))
    out.print(table)


@data_app.command("verify")
def data_verify() -> None:
    """Check every carrier in the cache against its hash."""
    from thousand_fingers.datasets import verify_carriers

    statuses = verify_carriers()
    for status in statuses:
        mark = {"verified": "[green]✓[/]", "missing": "–", "damaged": "[red]✗[/]"}[status.state]
        out.print(f"{mark} {status.name} {status.version}: {escape(status.detail)}", soft_wrap=True)
    if any(status.state == "damaged" for status in statuses):
        raise typer.Exit(DATA_FAILED)


def main() -> None:
    """Run the command line and turn problems into one line and an exit status."""
    for end in (signal.SIGTERM, signal.SIGHUP):  # or the workers would live on
        if signal.getsignal(end) is signal.SIG_DFL:
            signal.signal(end, signal.default_int_handler)
    try:
        app()
    except BookError as error:
        err.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(USAGE if isinstance(error, UsageError) else FAILED)
    except Exception as error:
        from thousand_fingers.datasets import CarrierError

        if not isinstance(error, CarrierError):
            raise
        err.print(f"[red]data:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(DATA_FAILED)


@contextmanager
def _project() -> Iterator[tuple[Project, State, Timings]]:
    """Find the checkout and hold its lock, so that two commands never mix their results."""
    project = find_project()
    library = Path(thousand_fingers.__file__).parent
    if not library.is_relative_to(project.root):
        err.print(f"note: the chapters of {project.root} run with the library of {library}", soft_wrap=True)
    try:
        project.build_dir.mkdir(exist_ok=True)
        lock = (project.build_dir / ".lock").open("w")
    except OSError as error:
        raise BookError(f"cannot write to {project.build_dir}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            err.print("waiting for another `fingers` command in this checkout …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield project, State(project), Timings(project)
        except KeyboardInterrupt:
            err.print("interrupted; nothing was left half-written")
            raise typer.Exit(INTERRUPTED) from None


def _fetch_for(chapters: list[Chapter], timings: Timings) -> None:
    wanted = {"sphinx-mathjax-offline"} | {
        name for chapter in chapters for name in needs_of(read_notebook(chapter.path)).get("carriers", [])
    }
    started = time.perf_counter()
    if _fetch(sorted(wanted)):
        timings.keep(DATA_PHASE, time.perf_counter() - started)


def _fetch(names: list[str]) -> bool:
    from thousand_fingers.datasets import fetch_carrier, list_carriers, verify_carriers

    known = [carrier.name for carrier in list_carriers()]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no carrier {unknown[0]!r}; the carriers are: {', '.join(known)}")
    missing = [status.name for status in verify_carriers(names) if status.state != "verified"]
    for name in missing:
        out.print(f"fetching the data carrier {name} …")
        fetch_carrier(name)
    return bool(missing)


def _refresh(project: Project, chapter: Chapter) -> None:
    old = normalise(read_notebook(chapter.path))
    new = read_notebook(project.executed(chapter, "ci"))
    before, after = records_of(old), records_of(new)
    changes = 0
    for name in sorted(before.keys() | after.keys()):
        left = shown(before[name].value, before[name].about) if name in before else "—"
        right = shown(after[name].value, after[name].about) if name in after else "—"
        unchanged = name in before and name in after and before[name].value == after[name].value
        if unchanged or "plot" in {r.kind for r in (before.get(name), after.get(name)) if r}:
            continue
        changes += 1
        out.print(f"  {name}: {escape(left)} → {escape(right)}", soft_wrap=True)
    write_atomically(chapter.path, notebook_bytes(new))
    out.print(f"{chapter.name}: written, {changes} recorded figures changed")


def _print_failure(chapter: Chapter, failure: Failure) -> None:
    where = f"cell [{failure.cell}] failed" if failure.cell else "not executed"
    err.print(f"[red]✗ {chapter.name}: {where}[/]")
    err.print(f"    {escape(failure.what)}", soft_wrap=True)
    for line in failure.source.splitlines()[:6]:
        err.print(f"      {escape(line)}", soft_wrap=True)
    if not failure.source:
        for line in failure.traceback.splitlines()[-6:]:
            err.print(f"      {escape(line)}", soft_wrap=True)


class _Progress(Listener):
    """One line per chapter: a live bar on a terminal, plain lines in a log."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} cells"),
            TimeElapsedColumn(),
            console=out,
            disable=not out.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def started(self, chapter: Chapter, why: list[str]) -> None:
        reason = ", ".join(why[:3]) + (" …" if len(why) > 3 else "")
        self._bars.console.print(f"… {chapter.name}: executing ({escape(reason)})", soft_wrap=True)
        self._tasks[chapter.name] = self._bars.add_task(chapter.name, total=1)

    def progress(self, chapter: Chapter, done: int, of: int) -> None:
        self._bars.update(self._tasks[chapter.name], completed=done, total=of)

    def finished(self, outcome: Outcome) -> None:
        name = outcome.chapter.name
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
        if outcome.state == "fresh":
            self._bars.console.print(f"[green]✓[/] {name}: fresh")
        elif outcome.state == "executed":
            self._bars.console.print(
                f"[green]✓[/] {name}: {outcome.cells} cells in {outcome.seconds:.0f} s "
                f"(isolation: {outcome.isolation})",
                soft_wrap=True,
            )


if __name__ == "__main__":
    main()
