"""A small Sphinx extension that numbers chapters by their file names.

A chapter's number is the number in its file name, ``chapters/04_topic`` being
chapter 4 even while chapters 1 to 3 are not written. Figures, definitions and
exercises then keep their numbers when other chapters arrive.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector

_CHAPTER = re.compile(r"chapters/(\d\d)_")


def chapter_number(page: str) -> int | None:
    """Return the chapter number in a page's name, or None for other pages.

    Parameters
    ----------
    page : str
        Path of the page in the book, without extension.

    Returns
    -------
    int or None

    Examples
    --------
    >>> chapter_number("chapters/04_differential_privacy")
    4
    >>> chapter_number("chapters/notation") is None
    True
    """
    found = _CHAPTER.match(page)
    return int(found[1]) if found else None


def _number_chapters(app: Sphinx, env: BuildEnvironment) -> list[str]:
    for page, numbers in env.toc_secnumbers.items():
        chapter = chapter_number(page)
        if chapter is None:
            continue
        for anchor, number in numbers.items():
            numbers[anchor] = (chapter, *number[1:]) if number else number
        for node in (env.titles[page], *env.tocs[page].findall(nodes.reference)):
            if node.get("secnumber"):
                node["secnumber"] = [chapter, *node["secnumber"][1:]]
    return TocTreeCollector().assign_figure_numbers(env)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx.

    Parameters
    ----------
    app : Sphinx
        The application that builds the book.

    Returns
    -------
    dict
        What Sphinx wants to know about an extension.
    """
    app.connect("env-get-updated", _number_chapters, priority=600)  # after Sphinx's own numbering
    return {"parallel_read_safe": True, "parallel_write_safe": True}
