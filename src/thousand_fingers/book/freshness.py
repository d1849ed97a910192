"""What a chapter's figures depend on, as digests: the answer to "must it run?".

A regenerated notebook is fresh as long as its cells, the modules of the library
that it can reach by import, the data carriers, its artefacts, the locked
versions and the scale are those it was made from. Time stamps play no part.
"""

from __future__ import annotations

import ast
import contextlib
import json
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from thousand_fingers.book.notebook import Notebook, code_cells, read_notebook, source_digest
from thousand_fingers.book.project import BookError, Chapter, Project, digest, write_atomically

_PACKAGE = "thousand_fingers"
#: Modules of the machinery that shape every executed notebook.
_MACHINERY = ("book.execute", "book.notebook", "book.worker", "book.record")


def imported_modules(source: str, package_dir: Path, module: str = "") -> set[str]:
    """Return the modules of the library that a piece of Python imports.

    Parameters
    ----------
    source : str
        Python code; IPython magics and shell lines are left out.
    package_dir : Path
        The folder ``src/thousand_fingers``.
    module : str, default ""
        Dotted name of the module that the source belongs to, for relative
        imports; empty for a notebook.

    Returns
    -------
    set of str
        Dotted names without the package's own, such as ``"book.record"``.
    """
    plain = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!")))
    found: set[str] = set()
    for node in ast.walk(ast.parse(plain)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = import_base(node, module)
            found.add(base)
            found |= {f"{base}.{alias.name}" for alias in node.names}
    inside = {name.removeprefix(_PACKAGE + ".") for name in found if name.startswith(_PACKAGE + ".")}
    return {name for name in inside if module_file(package_dir, name)}


def import_base(node: ast.ImportFrom, module: str) -> str:
    """Return the full dotted name that an import takes names from.

    Parameters
    ----------
    node : ast.ImportFrom
    module : str
        Dotted name of the module that it stands in, as for :func:`imported_modules`.

    Returns
    -------
    str
    """
    if not node.level:
        return node.module or ""
    parents = [_PACKAGE, *module.split(".")][: -node.level]
    return ".".join([*parents, *filter(None, [node.module])])


def closure(modules: Iterable[str], package_dir: Path) -> dict[str, Path]:
    """Return everything of the library that can be reached from some modules.

    Parameters
    ----------
    modules : iterable of str
        Dotted names without the package's own.
    package_dir : Path
        The folder ``src/thousand_fingers``.

    Returns
    -------
    dict of str to Path
        Each reachable module with its file, the packages' ``__init__`` too.

    Raises
    ------
    BookError
        If a module is no Python.
    """
    reached: dict[str, Path] = {}
    waiting = ["", *modules]
    while waiting:
        name = waiting.pop()
        path = module_file(package_dir, name)
        if name in reached or path is None:
            continue
        reached[name] = path
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        try:
            waiting += imported_modules(path.read_text(encoding="utf-8"), package_dir, name)
        except SyntaxError as error:
            raise BookError(f"{path}: {error}") from None
    return reached


def inputs_of(project: Project, chapter: Chapter, scale: str, variant: str = "") -> dict[str, str]:
    """Return the digest of everything that a chapter's figures depend on.

    Parameters
    ----------
    project : Project
    chapter : Chapter
    scale : str
    variant : str, default ""
        Vector width of the run.

    Returns
    -------
    dict of str to str
        Name of the input to its digest. Two equal dictionaries mean that the
        chapter need not run again.
    """
    notebook = read_notebook(chapter.path)
    inputs = {
        "cells": source_digest(notebook),
        "scale": scale,
        "vector width": variant or "native",
        "python": ".".join(map(str, sys.version_info[:2])),
    }
    package_dir = project.source_dir / _PACKAGE
    for name, path in closure({*modules_of(notebook, package_dir), *_MACHINERY}, package_dir).items():
        inputs[f"module {name or '__init__'}"] = digest(path.read_bytes())
    others = [
        project.root / "requirements.lock",
        project.root / "data" / "carriers.toml",
        *sorted(project.artefacts_dir.glob(f"{chapter.name[:2]}_*")),
    ]
    for path in others:
        if path.is_file():
            inputs[path.relative_to(project.root).as_posix()] = digest(path.read_bytes())
    return inputs


def modules_of(notebook: Notebook, package_dir: Path) -> set[str]:
    """Return the modules of the library that a notebook imports itself."""
    found: set[str] = set()
    for _, cell in code_cells(notebook):
        with contextlib.suppress(SyntaxError):  # the execution will name the cell
            found |= imported_modules(cell["source"], package_dir)
    return found


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the names of the inputs that changed, came or went."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def module_file(package_dir: Path, name: str) -> Path | None:
    """Return the file of a module of the library, or ``None`` if it has no such module.

    Parameters
    ----------
    package_dir : Path
        The folder ``src/thousand_fingers``.
    name : str
        Dotted name without the package's own; empty for the package itself.

    Returns
    -------
    Path or None
    """
    base = package_dir.joinpath(*filter(None, name.split(".")))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file() and path != package_dir.with_suffix(".py"):
            return path
    return None


@lru_cache(maxsize=1)
def library_digest() -> str:
    """Return the digest of the whole installed library."""
    package_dir = Path(__file__).resolve().parents[1]
    files = sorted(package_dir.rglob("*.py"))
    return digest(
        b"".join(f"{f.relative_to(package_dir).as_posix()}\0".encode() + f.read_bytes() for f in files)
    )


class State:
    """The memory of ``_build/state.json``: inputs and output of each run."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._path = project.build_dir / "state.json"
        try:
            entries = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            entries = {}
        self._entries: dict[str, Any] = entries if isinstance(entries, dict) else {}

    def why_stale(self, chapter: Chapter, scale: str, variant: str = "") -> list[str]:
        """Return why a chapter must run; an empty list means it is fresh.

        The regenerated notebook itself counts as an input: if it is missing
        or was changed by hand, the chapter runs again.
        """
        entry = self._entries.get(chapter.key(scale, variant))
        output = self._project.executed(chapter, scale, variant)
        if not (isinstance(entry, dict) and {"inputs", "output"} <= entry.keys()):
            return ["never executed here"]
        if not output.is_file():
            return ["its output is missing"]
        if digest(output.read_bytes()) != entry["output"]:
            return ["its output was changed or damaged"]
        return differences(entry["inputs"], inputs_of(self._project, chapter, scale, variant))

    def remember(
        self, chapter: Chapter, scale: str, variant: str, inputs: dict[str, str], output: bytes
    ) -> None:
        """Keep what a run was made from, and what it made."""
        self._entries[chapter.key(scale, variant)] = {"inputs": inputs, "output": digest(output)}
        self._save()

    def value(self, name: str) -> Any:
        """Return a value kept under a name of its own, or ``None``."""
        return self._entries.get(name)

    def keep(self, name: str, value: Any) -> None:
        """Keep a value under a name of its own."""
        self._entries[name] = value
        self._save()

    def _save(self) -> None:
        text = json.dumps(self._entries, indent=1, sort_keys=True)
        write_atomically(self._path, text.encode("utf-8"))
