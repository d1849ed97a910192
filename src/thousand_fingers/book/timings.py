"""Seconds, kept apart from everything that is checked: ``_build/timings.json``."""

from __future__ import annotations

import json
from typing import Any

from thousand_fingers.book.project import Project, write_atomically

#: The phases of ``make book``.
DATA_PHASE, RUN_PHASE, CHECK_PHASE, RENDER_PHASE = "data", "run", "check", "render"


class Timings:
    """How long each chapter and each phase took, the last time it ran."""

    def __init__(self, project: Project) -> None:
        self._path = project.build_dir / "timings.json"
        try:
            entries = json.loads(self._path.read_text(encoding="utf-8"))
            self._entries: dict[str, dict[str, Any]] = {name: dict(about) for name, about in entries.items()}
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            self._entries = {}

    def keep(self, name: str, seconds: float, **about: Any) -> None:
        """Remember how long something took, with what else is worth saying."""
        self._entries[name] = {"seconds": round(seconds, 1), **about}
        text = json.dumps(self._entries, indent=1, sort_keys=True)
        write_atomically(self._path, text.encode("utf-8"))

    def forget(self, name: str) -> None:
        """Drop what is known under a name; the next ``keep`` writes the file."""
        self._entries.pop(name, None)

    def get(self, name: str) -> dict[str, Any]:
        """Return what is known under a name, or an empty dictionary."""
        return dict(self._entries.get(name, {}))

    def seconds(self, name: str) -> float:
        """Return the seconds kept under a name, or 0."""
        return float(self.get(name).get("seconds", 0.0))
