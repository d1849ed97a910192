"""Render the book: stage one tree, build it from clean, publish it as a whole.

Jupyter Book sees only ``_build/site``: configuration, pages, notebooks (the
regenerated ones where they are fresh, else the committed ones), generated pages
and assets. A build with a warning is no build, and the previous good pages stay
until a new set is complete.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from thousand_fingers.book.freshness import State
from thousand_fingers.book.ledger import judge, read_ledger
from thousand_fingers.book.notebook import notebook_bytes, read_notebook, records_of
from thousand_fingers.book.pages import (
    EVERY_FIGURE,
    RENDER_SECONDS,
    ChapterResult,
    corrections_page,
    every_figure_page,
    status_page,
    threat_models_page,
)
from thousand_fingers.book.project import BookError, Project, digest, toc_entries, write_atomically
from thousand_fingers.book.timings import RENDER_PHASE, Timings

#: Pages that Sphinx adds to those of the table of contents.
EXTRA_PAGES = {"404.html", "genindex.html", "index.html", "search.html"}
_SHOWN_PACKAGES = ("numpy", "scipy", "pandas", "torch", "matplotlib", "opacus", "papermill", "jupyter-book")


@dataclass(frozen=True)
class Rendering:
    """Where the pages are, and whether they had to be built."""

    index: Path
    pages: int
    built: bool


def chapter_results(
    project: Project, state: State, timings: Timings, scale: str = "ci"
) -> list[ChapterResult]:
    """Return each chapter as it will be shown: regenerated if fresh, else committed.

    Parameters
    ----------
    project : Project
    state : State
    timings : Timings
    scale : str, default "ci"

    Returns
    -------
    list of ChapterResult
    """
    results = []
    for chapter in project.chapters():
        fresh = not state.why_stale(chapter, scale)
        notebook = read_notebook(project.executed(chapter, scale) if fresh else chapter.path)
        claims = read_ledger(project, chapter.name[:2]).claims
        results.append(
            ChapterResult(
                file=chapter.path.name,
                notebook=notebook,
                verdicts=judge(claims, records_of(notebook)),
                timing=timings.get(chapter.key(scale)) if fresh else {},
            )
        )
    return results


def render(project: Project, state: State, timings: Timings) -> Rendering:
    """Build the pages unless the last build was made from the same tree.

    Parameters
    ----------
    project : Project
    state : State
    timings : Timings

    Returns
    -------
    Rendering

    Raises
    ------
    BookError
        If the build warns, or a page of the table of contents is missing.
        The previous pages are left as they were.
    """
    site = project.build_dir / "site"
    stage(project, state, timings, site)
    extension = digest(Path(__file__).with_name("sphinx_extension.py").read_bytes())
    tree = tree_digest(site) + locked_versions(project) + extension
    index = project.html_dir / "index.html"
    if state.value("rendered") == digest(tree.encode()) and index.is_file():
        return Rendering(index, _count_pages(project.html_dir), built=False)
    started = time.perf_counter()
    _build(project, site)
    html = site / "_build" / "html"
    _check_pages(project, html)
    timings.keep(RENDER_PHASE, time.perf_counter() - started)
    _fill_in_rendering_time(html, timings)
    retired = project.build_dir / "html.previous"
    shutil.rmtree(retired, ignore_errors=True)
    if project.html_dir.exists():
        project.html_dir.rename(retired)
    html.rename(project.html_dir)
    shutil.rmtree(retired, ignore_errors=True)
    state.keep("rendered", digest(tree.encode()))
    return Rendering(index, _count_pages(project.html_dir), built=True)


def stage(project: Project, state: State, timings: Timings, site: Path) -> None:
    """Write the tree that Jupyter Book reads.

    Parameters
    ----------
    project : Project
    state : State
    timings : Timings
    site : Path
        Replaced as a whole.
    """
    from thousand_fingers.datasets import mathjax_files

    results = chapter_results(project, state, timings)
    shutil.rmtree(site, ignore_errors=True)
    chapters = site / "chapters"
    shutil.copytree(
        project.chapters_dir, chapters, ignore=shutil.ignore_patterns("*.ipynb", ".ipynb_checkpoints", ".*")
    )
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(project.root / name, site / name)
    no_page = shutil.ignore_patterns("socket_guard", "__pycache__")
    shutil.copytree(Path(__file__).parent / "assets", site / "assets", ignore=no_page)
    mathjax_files(site / "assets" / "mathjax")
    for result in results:
        (chapters / result.file).write_bytes(notebook_bytes(result.notebook))
    generated = {
        "threat_models.md": threat_models_page(results),
        "corrections.md": corrections_page(results),
        "status.md": status_page(results, timings, versions()),
    }
    for name, text in generated.items():
        (chapters / name).write_text(text, encoding="utf-8")
    bibliography = chapters / "references.bib"
    known = bibliography.read_text(encoding="utf-8") if bibliography.is_file() else ""
    (chapters / EVERY_FIGURE).write_bytes(notebook_bytes(every_figure_page(results, known)))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that figures depend on."""
    found = {"Python": ".".join(map(str, sys.version_info[:3]))}
    for name in _SHOWN_PACKAGES:
        found[name] = importlib.metadata.version(name)
    return found


def tree_digest(folder: Path) -> str:
    """Return the digest of all files below a folder, names included."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    parts = [f"{p.relative_to(folder).as_posix()}\0{digest(p.read_bytes())}\n" for p in files]
    return digest("".join(parts).encode())


def locked_versions(project: Project) -> str:
    """Return the text of the lock file, which decides what renders the pages."""
    lock = project.root / "requirements.lock"
    return lock.read_text(encoding="utf-8") if lock.is_file() else ""


def _build(project: Project, site: Path) -> None:
    log = project.build_dir / "render.log"
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [str(jupyter_book), "build", str(site), "--all", "-W", "-n", "--keep-going"]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "TZ": "UTC", "SOURCE_DATE_EPOCH": "315532800"}
    finished = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    output = re.sub(r"\x1b\[[0-9;]*m", "", finished.stdout + finished.stderr)  # a log has no colours
    write_atomically(log, output.encode("utf-8"))
    warnings = [line for line in output.splitlines() if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)]
    if finished.returncode or warnings:
        first = warnings[:12] or output.splitlines()[-12:]
        shown = "\n".join(line.replace(str(site) + "/", "") for line in first)
        raise BookError(f"the pages do not build without warnings (whole log: {log}):\n{shown}")


def _check_pages(project: Project, html: Path) -> None:
    wanted = {f"{entry}.html" for entry in toc_entries(project)}
    found = {p.relative_to(html).as_posix() for p in html.rglob("*.html") if "_static" not in p.parts}
    if missing := (wanted | EXTRA_PAGES) - found:
        raise BookError(f"the build made no page for {', '.join(sorted(missing))}")
    if surplus := found - wanted - EXTRA_PAGES:
        raise BookError(f"the build made pages that are not in _toc.yml: {', '.join(sorted(surplus))}")


def _fill_in_rendering_time(html: Path, timings: Timings) -> None:
    # The one number on the pages that is known only when they are there.
    page = html / "chapters" / "status.html"
    text = page.read_text(encoding="utf-8").replace(RENDER_SECONDS, f"{timings.seconds(RENDER_PHASE):.0f}")
    page.write_text(text, encoding="utf-8")


def _count_pages(html: Path) -> int:
    return sum("_static" not in p.parts for p in html.rglob("*.html"))
