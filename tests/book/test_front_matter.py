"""What a visitor reads first agrees with what is there: README, citation, environments, first page."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import thousand_fingers
from thousand_fingers.book.notebook import read_notebook
from thousand_fingers.book.project import BookError, Project
from thousand_fingers.book.readme import readme_figure, refresh_readme

ROOT = Path(__file__).resolve().parents[2]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def notebook_with_figure(name: str, svg: str, alt: str) -> str:
    output = {
        "output_type": "display_data",
        "data": {"image/svg+xml": svg, "text/plain": alt},
        "metadata": {"figure": {"name": name, "caption": "A line.", "alt": alt}},
    }
    cell = {"cell_type": "code", "metadata": {}, "source": "", "execution_count": 1, "outputs": [output]}
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [cell]})


@pytest.fixture
def small_book(tmp_path: Path) -> Project:
    (tmp_path / "chapters").mkdir()
    (tmp_path / "README.md").write_text(
        "# Book\n\n![old words](pictures/fig-line.svg)\n\nEnd.\n", encoding="utf-8"
    )
    (tmp_path / "chapters" / "01_line.ipynb").write_text(
        notebook_with_figure("fig-line", "<svg>new</svg>", "new words"), encoding="utf-8"
    )
    return Project(tmp_path)


def test_the_readme_shows_the_figure_that_the_chapter_draws() -> None:
    assert readme_figure(Project(ROOT)).is_current, "run `make refresh`"


def test_a_stale_readme_figure_is_seen_and_refreshed(small_book: Project) -> None:
    assert not readme_figure(small_book).is_current
    assert refresh_readme(small_book)
    assert readme_figure(small_book).is_current
    assert (small_book.root / "README.md").read_text() == (
        "# Book\n\n![new words](pictures/fig-line.svg)\n\nEnd.\n"
    )
    assert not refresh_readme(small_book)


def test_a_figure_that_no_chapter_draws_is_named(small_book: Project) -> None:
    (small_book.chapters_dir / "01_line.ipynb").write_text(
        notebook_with_figure("fig-other", "<svg/>", "other words"), encoding="utf-8"
    )
    with pytest.raises(BookError, match="shows fig-line, which no chapter draws"):
        readme_figure(small_book)
    (small_book.root / "README.md").write_text("# Book\n", encoding="utf-8")
    with pytest.raises(BookError, match="shows no figure"):
        readme_figure(small_book)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_path_and_command_that_is_named_exists(page: str) -> None:
    text = text_of(page)
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).is_file(), target
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)\b", text)) <= targets
    for folder in re.findall(r"`((?:src|data|tests|chapters)/[a-z_/]*)`", text):
        assert (ROOT / folder).is_dir(), folder


def test_the_citation_names_the_version_of_the_library() -> None:
    assert f"\nversion: {thousand_fingers.__version__}\n" in text_of("CITATION.cff")
    assert f"## {thousand_fingers.__version__}" in text_of("CHANGELOG.md")


def test_the_conda_environment_has_the_locked_torch() -> None:
    locked = dict(line.split("==") for line in text_of("requirements.lock").split() if "==" in line)
    conda = dict(re.findall(r"- ([\w-]+)=([\d.]+)$", text_of("environment.yml"), re.MULTILINE))
    assert conda["pytorch-cpu"] == locked["torch"]
    assert conda["torchvision"] == locked["torchvision"]
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    assert project["requires-python"] == f">={conda['python']}"


def test_the_first_page_lists_the_chapters_of_the_table_of_contents() -> None:
    rows = re.findall(r"^\| (\d+) \| \[.+?\]\((\w+)\) \| .+? \|$", text_of("chapters/index.md"), re.MULTILINE)
    listed = re.findall(r"- file: chapters/((\d\d)_\w+)", text_of("_toc.yml"))
    assert rows == [(str(int(number)), file) for file, number in listed]
    assert [chapter.path.stem for chapter in Project(ROOT).chapters()] == [file for _, file in rows]


def test_the_drawing_on_the_first_page_has_a_thousand_fingers() -> None:
    drawing = text_of("src/thousand_fingers/book/assets/thousand-fingers.svg")
    fingers = [
        d
        for colour in ("#5f8fc9", "#e07b1a")
        for d in re.findall(rf'stroke="{colour}".*? d="([^"]+)"', drawing)
    ]
    assert sum(d.count("M") for d in fingers) == 1000


def test_chapter_notebooks_have_the_tabs_that_the_level_switch_moves() -> None:
    for chapter in Project(ROOT).chapters():
        source = "\n".join(cell["source"] for cell in read_notebook(chapter.path)["cells"])
        assert source.count(":sync: elementary") == source.count(":sync: advanced") > 0
        assert source.count(":sync-group: level") == source.count("{tab-set}")
