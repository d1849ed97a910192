"""Write ``requirements.lock``: the versions a reproducible run installs.

``python -m thousand_fingers.book.lock`` prints bare ``name==version`` lines for
everything that the project and its extras reach from here: no addresses, no
local labels, and none of the CUDA helpers that a Linux build of torch brings
along, so that the same file constrains a CPU build, conda, and other systems.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = "thousand-fingers"
EXTRAS = ("book", "test")
_CUDA = re.compile(r"(nvidia|cuda|triton)(-.*)?")


def locked_lines() -> list[str]:
    """Return one line for each distribution that the project depends on.

    Returns
    -------
    list of str
        Sorted ``name==version`` lines.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        If the environment lacks one of them.
    """
    reached: dict[str, str] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(PROJECT, frozenset(EXTRAS))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        distribution = importlib.metadata.distribution(name)
        if name != PROJECT:
            reached[name] = Version(distribution.version).public
        for text in distribution.requires or []:
            requirement = Requirement(text)
            dependency = canonicalize_name(requirement.name)
            if not _CUDA.fullmatch(dependency) and _applies(requirement, extras):
                waiting.append((dependency, frozenset(requirement.extras)))
    return [f"{name}=={version}" for name, version in sorted(reached.items())]


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


if __name__ == "__main__":
    sys.stdout.write("\n".join(locked_lines()) + "\n")
