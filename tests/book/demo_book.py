"""A book of two small chapters, on which the machinery is tested."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from thousand_fingers.book.freshness import State, inputs_of
from thousand_fingers.book.notebook import normalise, notebook_bytes, parse_notebook
from thousand_fingers.book.project import Chapter, Project, write_atomically

THREAT_MODEL = """\
```{admonition} Threat model
:class: threat-model

- **Attacker knows**: the code
- **May query**: anything
- **Wants**: the secret
- **Budget**: a laptop
- **Measured by**: accuracy
- **Privacy unit**: one row
```"""

CORRECTION = """\
```{admonition} Correction to the source: sign
:class: correction

- **The source says**: minus
- **Why it is a slip**: it is plus
- **Shown here**: above
```"""

EXERCISE = """\
```{{exercise}} A task
:label: ex-demo-{n}

Do it.
```

```{{solution}} ex-demo-{n}
:label: sol-demo-{n}
:class: dropdown

Done.
```"""

LEVELS = """\
`````{{tab-set}}
:sync-group: level

````{{tab-item}} Elementary
:sync: elementary

The mean is {{glue:text}}`{file}::demo.mean:.2f`.
````
````{{tab-item}} Advanced
:sync: advanced

$\\bar x$ is {{glue:text}}`{file}::demo.mean:.2f`, they say {{glue:text}}`every_figure.ipynb::published.demo.mean:.4f`.
````
`````"""

SETUP = "from thousand_fingers.book.record import record\nfrom thousand_fingers.plotting import figure"
RECORD = 'record("demo.mean", 0.123456789, digits=4)\nrecord("demo.people", 412)\nprint("done")'
FIGURE = """\
with figure("fig-demo-{n}", caption="A line rises.", alt="A straight line from zero to one, rising.") as ax:
    ax.plot([0.0, 1.0], [0.0, 1.0])
    ax.set(xlabel="x", ylabel="y")"""

LEDGER = """\
["demo.mean"]
kind = "exact"
value = 0.1235
digits = 4
source = "a textbook, table 1"
title = "Mean of the demonstration"
"""


def markdown(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": "m", "metadata": {}, "source": source}


def code(source: str, *tags: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": "c",
        "metadata": {"tags": list(tags)} if tags else {},
        "source": source,
        "execution_count": None,
        "outputs": [],
    }


def notebook(file: str, *extra_code: str) -> dict[str, Any]:
    """Return a chapter that has everything the lint asks for, not yet executed."""
    number = int(file[:2])
    cells = [
        markdown(f"# Chapter {file[:2]}"),
        markdown("```{admonition} In this chapter\n:class: objectives\n\n- a line\n```"),
        markdown(THREAT_MODEL),
        code('scale = "ci"', "parameters"),
        code(SETUP),
        code(RECORD),
        *(code(source) for source in extra_code),
        markdown(LEVELS.format(file=file)),
        code(FIGURE.format(n=number)),
        markdown(CORRECTION),
        *(markdown(EXERCISE.format(n=10 * number + n)) for n in range(1, 4)),
        markdown("```{admonition} Remember\n:class: remember\n\nLines rise.\n```"),
        markdown("## What this does not say\n\nMuch."),
        markdown("## Sources\n\nNone."),
    ]
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "cells": cells,
    }


def make_project(root: Path, *, library: Path | None = None) -> Project:
    """Write the demonstration book into a folder."""
    project = Project(root)
    project.chapters_dir.mkdir(parents=True)
    project.ledger_dir.mkdir(parents=True)
    toc = "format: jb-book\nroot: chapters/index\nchapters:\n- file: chapters/01_first\n- file: chapters/02_second\n"
    (root / "_toc.yml").write_text(toc, encoding="utf-8")
    (project.chapters_dir / "index.md").write_text("# Demonstration\n\nTwo chapters.\n", encoding="utf-8")
    (root / "requirements.lock").write_text("numpy==2.4.6\n", encoding="utf-8")
    for file in ("01_first.ipynb", "02_second.ipynb"):
        write_notebook(project, file, notebook(file))
        (project.ledger_dir / f"{file[:2]}.toml").write_text(LEDGER, encoding="utf-8")
    if library:
        shutil.copytree(
            library,
            project.source_dir / "thousand_fingers",
            ignore=shutil.ignore_patterns("__pycache__", "assets"),
        )
    return project


def write_notebook(project: Project, file: str, content: dict[str, Any]) -> Chapter:
    path = project.chapters_dir / file
    path.write_text(json.dumps(content), encoding="utf-8")
    return Chapter(path)


def pretend_executed(project: Project, chapter: Chapter, content: dict[str, Any]) -> None:
    """Put an executed notebook where a run would have put it, as its fresh result."""
    state = State(project)
    data = notebook_bytes(normalise(parse_notebook(json.dumps(content))))
    write_atomically(project.executed(chapter, "ci"), data)
    state.remember(chapter, "ci", "", inputs_of(project, chapter, "ci"), data)
