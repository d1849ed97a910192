"""Where things are: the folders of a checkout and its chapters."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CHAPTER_FILE = re.compile(r"(\d\d)_[a-z0-9_]+\.ipynb")


class BookError(Exception):
    """A problem that the user can act on; the message is all they need."""


class UsageError(BookError):
    """A command that cannot be understood: an unknown chapter, width or address."""


@dataclass(frozen=True)
class Chapter:
    """One notebook of the book: ``chapters/NN_topic.ipynb``."""

    path: Path

    @property
    def number(self) -> int:
        """Number of the chapter, the two digits of its file name."""
        return int(self.path.name[:2])

    @property
    def name(self) -> str:
        """File name without extension, such as ``04_differential_privacy``."""
        return self.path.stem

    def key(self, scale: str, variant: str = "") -> str:
        """Return the name under which a run of the chapter is remembered."""
        return "/".join(filter(None, [self.name, scale, variant]))


@dataclass(frozen=True)
class Project:
    """The folders of one checkout of the book."""

    root: Path

    @property
    def chapters_dir(self) -> Path:
        """Notebooks and pages, as committed."""
        return self.root / "chapters"

    @property
    def ledger_dir(self) -> Path:
        """Claims with an outside truth."""
        return self.root / "data" / "ledger"

    @property
    def artefacts_dir(self) -> Path:
        """Shipped results of long runs."""
        return self.root / "data" / "artefacts"

    @property
    def source_dir(self) -> Path:
        """The folder that holds the package ``thousand_fingers``."""
        return self.root / "src"

    @property
    def build_dir(self) -> Path:
        """Everything regenerated; never tracked."""
        return self.root / "_build"

    @property
    def html_dir(self) -> Path:
        """The last good rendering."""
        return self.build_dir / "html"

    def executed(self, chapter: Chapter, scale: str, variant: str = "") -> Path:
        """Return where the regenerated notebook of a chapter lies.

        Parameters
        ----------
        chapter : Chapter
        scale : str
            ``"ci"`` or ``"paper"``.
        variant : str, default ""
            Name of another vector width, or empty for this machine's own.

        Returns
        -------
        Path
        """
        folder = scale if not variant else f"{scale}-{variant}"
        return self.build_dir / "executed" / folder / chapter.path.name

    def chapters(self, selection: Sequence[str] = ()) -> list[Chapter]:
        """Return the chapters, or those selected by number or name.

        Parameters
        ----------
        selection : sequence of str
            ``"4"``, ``"04"``, ``"04_differential_privacy"`` or a path to the
            notebook; empty for all.

        Returns
        -------
        list of Chapter
            In the order of the book.

        Raises
        ------
        BookError
            If a notebook is not named like a chapter; a :class:`UsageError`
            if a selected chapter does not exist.
        """
        paths = sorted(self.chapters_dir.glob("*.ipynb"))
        for path in paths:
            if not _CHAPTER_FILE.fullmatch(path.name):
                raise BookError(f"{path.name} is no name of a chapter: call it NN_topic.ipynb, lower case")
        every = [Chapter(path) for path in paths]
        if not selection:
            return every
        chosen = []
        for wanted in selection:
            name = Path(wanted).name.removesuffix(".ipynb")
            found = [c for c in every if name == c.name or (name.isdecimal() and int(name) == c.number)]
            if not found:
                known = ", ".join(f"{c.number} ({c.name})" for c in every) or "none"
                raise UsageError(f"no chapter {wanted!r}; the chapters are: {known}")
            chosen += found
        return [c for c in every if c in chosen]


def find_project(start: Path | None = None) -> Project:
    """Return the checkout around a folder, or the one the package lies in.

    Parameters
    ----------
    start : Path, optional
        Where to look first; the current folder by default.

    Returns
    -------
    Project

    Raises
    ------
    BookError
        If neither place belongs to a checkout.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, *Path(__file__).resolve().parents):
        if (folder / "_toc.yml").is_file() and (folder / "chapters").is_dir():
            return Project(folder)
    raise BookError(f"no checkout of the book around {here}: run this inside the folder that holds _toc.yml")


def toc_entries(project: Project) -> list[str]:
    """Return the pages of ``_toc.yml``, such as ``"chapters/index"``."""
    text = (project.root / "_toc.yml").read_text(encoding="utf-8")
    return re.findall(r"^\s*(?:root|-\s*file|file):\s*(\S+)", text, re.MULTILINE)


def digest(data: bytes) -> str:
    """Return the sha256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old content or the new, never half.

    Parameters
    ----------
    path : Path
        Target; its folder is created.
    data : bytes
        The whole content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
