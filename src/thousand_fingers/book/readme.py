"""The figure in the README: a copy of one that a chapter draws, kept the same.

Hosts show the README without the notebooks' outputs, so the picture is tracked
as a file named after the figure, ``fig-attacker.svg``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from thousand_fingers.book.notebook import read_notebook
from thousand_fingers.book.project import BookError, Project, write_atomically

_IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<path>[^)\s]*/(?P<name>fig-[a-z0-9-]+)\.svg)\)")


@dataclass(frozen=True)
class ReadmeFigure:
    """The README's figure as it is and as the chapters draw it."""

    path: Path
    shown: tuple[str, str]  # picture, alternative text
    drawn: tuple[str, str]

    @property
    def is_current(self) -> bool:
        """Whether picture and text are those of the committed notebook."""
        return self.shown == self.drawn


def readme_figure(project: Project) -> ReadmeFigure:
    """Return the README's figure beside the one in the committed notebooks.

    Parameters
    ----------
    project : Project

    Returns
    -------
    ReadmeFigure

    Raises
    ------
    BookError
        If the README shows no figure, or one that no chapter draws.
    """
    readme = project.root / "README.md"
    found = _IMAGE.search(readme.read_text(encoding="utf-8")) if readme.is_file() else None
    if not found:
        raise BookError("README.md shows no figure of the book, ![…](…/fig-….svg)")
    path = project.root / found["path"]
    picture = path.read_text(encoding="utf-8") if path.is_file() else ""
    for chapter in project.chapters():
        for cell in read_notebook(chapter.path)["cells"]:
            for output in cell.get("outputs", []):
                about = output.get("metadata", {}).get("figure", {})
                svg = output.get("data", {}).get("image/svg+xml")
                if svg and about.get("name") == found["name"]:
                    return ReadmeFigure(path, (picture, found["alt"]), (svg, about["alt"]))
    raise BookError(f"README.md shows {found['name']}, which no chapter draws")


def refresh_readme(project: Project) -> bool:
    """Write the chapters' figure into the README, and say whether it was new.

    Parameters
    ----------
    project : Project

    Returns
    -------
    bool
        True if picture or alternative text changed.
    """
    figure = readme_figure(project)
    if figure.is_current:
        return False
    picture, alt = figure.drawn
    write_atomically(figure.path, picture.encode("utf-8"))
    readme = project.root / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = _IMAGE.sub(lambda m: f"![{alt}]({m['path']})", text, count=1)
    write_atomically(readme, text.encode("utf-8"))
    return True
