"""Staging and rendering: one tree, clean builds, no page without its warning seen."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import demo_book as demo
import pytest

from thousand_fingers.book.freshness import State
from thousand_fingers.book.ledger import Claim, Verdict
from thousand_fingers.book.notebook import read_notebook, records_of
from thousand_fingers.book.pages import RENDER_SECONDS, ChapterResult, every_figure_page
from thousand_fingers.book.project import BookError, Project, find_project, toc_entries
from thousand_fingers.book.render import render, tree_digest
from thousand_fingers.book.run import run
from thousand_fingers.book.timings import Timings

ROOT = find_project(Path(__file__).parent).root

CONFIG = """\
title: Demonstration
only_build_toc_files: true
execute: {execute_notebooks: "off"}
parse: {myst_enable_extensions: [colon_fence, deflist, dollarmath]}
sphinx:
  extra_extensions: [sphinx_design, sphinx_exercise, sphinx_proof]
  config: {nb_merge_streams: true, html_extra_path: [assets/404.html]}
"""
TOC = """\
format: jb-book
root: chapters/index
chapters:
  - file: chapters/01_first
  - file: chapters/02_second
  - file: chapters/threat_models
  - file: chapters/every_figure
  - file: chapters/corrections
  - file: chapters/status
"""


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Project:
    project = demo.make_project(tmp_path_factory.mktemp("render") / "book")
    (project.root / "_config.yml").write_text(CONFIG, encoding="utf-8")
    (project.root / "_toc.yml").write_text(TOC, encoding="utf-8")
    run(project, State(project), Timings(project), project.chapters())
    return project


def render_again(project: Project):
    return render(project, State(project), Timings(project))


def page(project: Project, name: str) -> str:
    return (project.html_dir / "chapters" / f"{name}.html").read_text(encoding="utf-8")


def test_the_pages_carry_figures_captions_quotations_and_verdicts(book):
    rendering = render_again(book)
    assert rendering.built
    assert {p.stem for p in (book.html_dir / "chapters").glob("*.html")} == {
        entry.removeprefix("chapters/") for entry in toc_entries(book)
    }
    first = page(book, "01_first")
    assert 'alt="A straight line from zero to one, rising."' in first
    assert "A line rises." in first
    assert "The mean is 0.12." in first.replace('<span class="pasted-text">', "").replace("</span>", "")
    assert "papermill.record" not in first
    every = page(book, "every_figure")
    assert "Mean of the demonstration" in every
    assert "holds" in every
    assert "412" in every
    assert "the secret" in page(book, "threat_models")
    assert "it is plus" in page(book, "corrections")
    status = page(book, "status")
    assert RENDER_SECONDS not in status
    assert "all hold" in status


def test_a_source_that_the_bibliography_knows_becomes_a_citation():
    claim = Claim("demo.mean", "published", "Nobody1999, table 2; Somebody2001", "Mean", value=0.5, digits=2)
    result = ChapterResult(
        "01_first.ipynb", demo.notebook("01_first.ipynb"), [Verdict(claim, None, "holds")], {}
    )
    (table, _) = every_figure_page([result], "@book{Nobody1999,\n  title = {Nothing}\n}\n")["cells"]
    assert "{cite:t}`Nobody1999`, table 2; Somebody2001 |" in table["source"]


def test_an_unchanged_book_is_not_built_twice(book):
    render_again(book)
    assert not render_again(book).built


def test_a_damaged_page_set_is_built_again(book):
    render_again(book)
    shutil.rmtree(book.html_dir)
    assert render_again(book).built


def test_a_warning_stops_the_build_and_keeps_the_previous_pages(book):
    render_again(book)
    before = tree_digest(book.html_dir)
    index = book.chapters_dir / "index.md"
    good = index.read_text(encoding="utf-8")
    index.write_text(good + "\n{ref}`nowhere`\n", encoding="utf-8")
    with pytest.raises(BookError, match="do not build without warnings") as caught:
        render_again(book)
    assert "nowhere" in str(caught.value)
    with pytest.raises(BookError, match="do not build without warnings"):
        render_again(book)  # a second, incremental build would have hidden it
    assert tree_digest(book.html_dir) == before
    index.write_text(good, encoding="utf-8")
    render_again(book)


def test_a_quotation_of_a_figure_that_is_gone_stops_the_build(book):
    index = book.chapters_dir / "index.md"
    good = index.read_text(encoding="utf-8")
    index.write_text(good + "\n{glue:text}`01_first.ipynb::demo.gone`\n", encoding="utf-8")
    with pytest.raises(BookError, match="do not build without warnings"):
        render_again(book)
    index.write_text(good, encoding="utf-8")


def test_every_tracked_file_of_this_book_stays_small():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines()]
    assert files
    large = [str(p) for p in files if p.is_file() and p.stat().st_size > 3_000_000]
    assert large == []


def test_the_committed_notebooks_are_in_normal_form():
    from thousand_fingers.book.notebook import normalise, notebook_bytes

    for chapter in Project(ROOT).chapters():
        assert notebook_bytes(normalise(read_notebook(chapter.path))) == chapter.path.read_bytes(), (
            chapter.name
        )
        assert records_of(read_notebook(chapter.path)), f"{chapter.name} records no figure"


def test_the_committed_book_passes_its_own_checks():
    from thousand_fingers.book.checks import check

    project = Project(ROOT)
    reports = check(project, State(project), project.chapters())
    assert {r.name: r.problems for r in reports if r.problems} == {}
