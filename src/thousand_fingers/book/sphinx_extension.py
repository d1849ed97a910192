"""What the rendered pages need beyond Jupyter Book: chapter numbers and a 404 page.

A chapter's number is the number in its file name, ``chapters/04_topic`` being
chapter 4 even while chapters 1 to 3 are not written. Figures, definitions and
exercises then keep their numbers when other chapters arrive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector

_CHAPTER = re.compile(r"chapters/(\d\d)_")
_MISSING = "404"
_MISSING_BODY = """<h1>Page not found</h1>
<p>There is no page at this address. The <a href="search.html">search page</a> finds
any word of the book, and the <a href="chapters/index.html">first page</a> lists its chapters.</p>
"""
# A server answers with 404.html at whatever address was asked for, where its
# relative links need a base: the folder above chapters/, or else the folder
# asked for. Opened as a file the page is at its own address and needs none.
_BASE_SCRIPT = """<script>
  if (!location.pathname.endsWith("/404.html")) {
    const base = document.createElement("base");
    base.href = location.pathname.replace(/(chapters\\/.*|[^/]*)$/, "");
    document.head.prepend(base);
  }
</script>"""


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


def _missing_page(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    if app.builder.name == "html":
        yield _MISSING, {"title": "Page not found", "body": _MISSING_BODY}, "page.html"


def _base_of_missing_page(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if page == _MISSING:
        context["metatags"] = _BASE_SCRIPT + context.get("metatags", "")


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
    app.connect("html-collect-pages", _missing_page)
    app.connect("html-page-context", _base_of_missing_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
