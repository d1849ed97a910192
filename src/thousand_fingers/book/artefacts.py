"""Shipped results of long runs, and the proof that they are still ours.

``data/artefacts/recipes.toml`` names, for each artefact, a function of the
library that computes one *part* of it. :func:`regenerate` computes all parts;
the check recomputes a few, chosen by a generator seeded with the artefact's own
digest, so that nobody can choose which. An artefact is stale when a definition
that its function can reach has changed.
"""

from __future__ import annotations

import importlib
import io
import json
import platform
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thousand_fingers.book.definitions import definitions
from thousand_fingers.book.project import BookError, Project, digest, find_project, write_atomically
from thousand_fingers.reproducibility import deterministic_torch

Part = dict[str, NDArray[Any]]
_PACKAGE = "thousand_fingers"
_LIBRARIES = ("numpy", "scipy", "torch")


@dataclass(frozen=True)
class Recipe:
    """How one artefact is made.

    ``function`` is ``"module:name"`` inside the package; it is called as
    ``function(part, **arguments)`` for each part in ``range(parts)`` and
    returns arrays of equal shape, which the artefact stacks along a new first
    axis. A spot check computes a part again, to within ``rtol`` of each value
    plus ``atol``. Where a whole part takes too long, ``probe`` holds arguments
    for a shorter one, whose arrays are the beginning of the long one's along
    every axis: the first tokens of each text, say.
    """

    name: str
    function: str
    arguments: dict[str, Any]
    parts: int
    spot_checks: int
    rtol: float
    atol: float = 0.0
    probe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chapter(self) -> int:
        """Number of the chapter that shows it: the first two digits of its name."""
        return int(self.name[:2])

    def resolve(self) -> Callable[..., Part]:
        """Return the function itself."""
        module, _, name = self.function.partition(":")
        found: Callable[..., Part] = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
        return found


def recipes(project: Project) -> dict[str, Recipe]:
    """Return the recipes of all artefacts by name.

    Parameters
    ----------
    project : Project

    Returns
    -------
    dict of str to Recipe

    Raises
    ------
    BookError
        If a recipe lacks an entry.
    """
    path = project.artefacts_dir / "recipes.toml"
    if not path.is_file():
        return {}
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        return {
            name: Recipe(
                name=name,
                function=entry["function"],
                arguments=dict(entry.get("arguments", {})),
                parts=int(entry["parts"]),
                spot_checks=int(entry["spot_checks"]),
                rtol=float(entry["rtol"]),
                atol=float(entry.get("atol", 0.0)),
                probe=dict(entry.get("probe", {})),
            )
            for name, entry in content.items()
        }
    except KeyError as error:
        raise BookError(f"{path}: a recipe lacks {error}") from None


def regenerate(project: Project, recipe: Recipe, executor: Executor | None = None) -> Path:
    """Compute every part of an artefact and write it.

    Parameters
    ----------
    project : Project
    recipe : Recipe
    executor : Executor, optional
        Computes the parts; the calling process by default.

    Returns
    -------
    Path
        ``data/artefacts/<name>.npz``, with a JSON header.
    """
    mapper = map if executor is None else executor.map
    functions = [recipe.function] * recipe.parts
    arguments = [recipe.arguments] * recipe.parts
    parts = list(mapper(compute_part, functions, arguments, range(recipe.parts)))
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    header = {
        "function": recipe.function,
        "arguments": recipe.arguments,
        "parts": recipe.parts,
        "code": code_digest(project, recipe),
        "dtype": {name: str(array.dtype) for name, array in stacked.items()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
    }
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**stacked, "header": np.array(json.dumps(header, sort_keys=True))}
    np.savez_compressed(buffer, **arrays)
    target = project.artefacts_dir / f"{recipe.name}.npz"
    write_atomically(target, buffer.getvalue())
    return target


def compute_part(function: str, arguments: Mapping[str, Any], part: int) -> Part:
    """Compute one part of an artefact, on whatever machine this is.

    Parameters
    ----------
    function : str
        ``"module:name"`` inside the package.
    arguments : mapping
    part : int

    Returns
    -------
    dict of str to ndarray
    """
    with deterministic_torch():
        return Recipe("", function, {}, 1, 0, 0.0).resolve()(part, **arguments)


def load_artefact(name: str) -> Part:
    """Return the arrays of an artefact, for a chapter to show.

    Parameters
    ----------
    name : str
        Such as ``"04_audit_validity"``.

    Returns
    -------
    dict of str to ndarray
        Read with pickling refused.

    Raises
    ------
    BookError
        If there is no artefact of that name.
    """
    path = find_project().artefacts_dir / f"{name}.npz"
    if not path.is_file():
        raise BookError(f"no artefact {name!r}: make it with `fingers regenerate {name[:2]}`")
    return _read(path)[1]


def artefact_problems(project: Project, recipe: Recipe, code: str) -> list[str]:
    """Check that an artefact is there, is not stale, and can be recomputed.

    Parameters
    ----------
    project : Project
    recipe : Recipe
    code : str
        Digest of the code as it is now, from :func:`code_digest`.

    Returns
    -------
    list of str
        One line for each problem.
    """
    path = project.artefacts_dir / f"{recipe.name}.npz"
    again = f"run `fingers regenerate {recipe.chapter}`"
    if not path.is_file():
        return [f"artefact {recipe.name} is missing: {again}"]
    try:
        header, arrays = _read(path)
    except BookError as error:
        return [f"{error}: {again}"]
    if header.get("code") != code:
        return [f"artefact {recipe.name} is stale, the code that made it changed: {again}"]
    made_by = {"function": recipe.function, "arguments": recipe.arguments, "parts": recipe.parts}
    if any(header.get(key) != value for key, value in made_by.items()):
        return [f"artefact {recipe.name} was made by another recipe: {again}"]
    rng = np.random.default_rng(int(digest(path.read_bytes())[:16], 16))
    problems = []
    for part in rng.choice(recipe.parts, size=min(recipe.spot_checks, recipe.parts), replace=False):
        fresh = compute_part(recipe.function, {**recipe.arguments, **recipe.probe}, int(part))
        for key, array in arrays.items():
            stored = array[part]
            if recipe.probe:
                stored = stored[tuple(map(slice, fresh[key].shape))]
            if fresh[key].shape != stored.shape or not np.allclose(
                fresh[key], stored, rtol=recipe.rtol, atol=recipe.atol, equal_nan=True
            ):
                problems.append(f"artefact {recipe.name}: part {part} of {key} does not come out again")
    return problems


def fingerprint(project: Project, recipe: Recipe, code: str) -> str:
    """Return the digest of an artefact, its code and the locked versions: what a spot check vouches for."""
    lock = project.root / "requirements.lock"
    files = [project.artefacts_dir / f"{recipe.name}.npz", project.artefacts_dir / "recipes.toml", lock]
    contents = [path.read_bytes() if path.is_file() else b"" for path in files]
    return digest("\0".join([*map(digest, contents), code]).encode())


def code_digest(project: Project, recipe: Recipe) -> str:
    """Return the digest of the code that an artefact is made by."""
    module, _, name = recipe.function.partition(":")
    found = definitions(module, name, project.source_dir / _PACKAGE)
    return digest("\0".join(f"{key}\0{code}" for key, code in found.items()).encode())


def _read(path: Path) -> tuple[dict[str, Any], Part]:
    """Return the header and the arrays of an artefact, with pickling refused."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        header: dict[str, Any] = json.loads(str(arrays.pop("header")))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise BookError(f"artefact {path.stem} is damaged ({error})") from None
    return header, arrays
