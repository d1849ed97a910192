"""A chapter runs again when, and only when, something it depends on changed."""

from __future__ import annotations

import json
from pathlib import Path

import demo_book as demo
import pytest

import thousand_fingers
from thousand_fingers.book.freshness import State, closure, imported_modules, inputs_of
from thousand_fingers.book.project import Project, write_atomically
from thousand_fingers.book.timings import Timings

LIBRARY = Path(thousand_fingers.__file__).parent


@pytest.fixture
def project(tmp_path) -> Project:
    project = demo.make_project(tmp_path / "book", library=LIBRARY)
    for file, module in (("01_first.ipynb", "mechanisms"), ("02_second.ipynb", "accounting")):
        content = demo.notebook(file, f"import thousand_fingers.{module}")
        chapter = demo.write_notebook(project, file, content)
        demo.pretend_executed(project, chapter, content)
    return project


def stale(project: Project) -> dict[str, list[str]]:
    state = State(project)
    return {c.name: why for c in project.chapters() if (why := state.why_stale(c, "ci"))}


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_nothing_changed_means_nothing_to_do(project):
    assert stale(project) == {}


def test_editing_a_module_makes_exactly_the_chapters_that_reach_it_stale(project):
    append(project.source_dir / "thousand_fingers" / "accounting.py", "\n# changed\n")
    changed = stale(project)
    assert changed["02_second"] == ["module accounting"]
    reaches = "accounting" in closure(["mechanisms"], project.source_dir / "thousand_fingers")
    assert ("01_first" in changed) == reaches


def test_editing_a_shared_module_reaches_every_chapter(project):
    append(project.source_dir / "thousand_fingers" / "validation.py", "\n# changed\n")
    assert set(stale(project)) == {"01_first", "02_second"}


def test_editing_an_unrelated_module_reaches_none(project):
    append(project.source_dir / "thousand_fingers" / "datasets.py", "\n# changed\n")
    assert stale(project) == {}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("requirements.lock", "requirements.lock"),
        ("data/carriers.toml", "data/carriers.toml"),
        ("data/artefacts/01_long.npz", "data/artefacts/01_long.npz"),
    ],
)
def test_lock_carriers_and_artefacts_count(project, path, reason):
    write_atomically(project.root / path, b"changed")
    assert stale(project)["01_first"] == [reason]


def test_an_artefact_of_another_chapter_does_not_count(project):
    write_atomically(project.root / "data/artefacts/02_long.npz", b"new")
    assert set(stale(project)) == {"02_second"}


def test_editing_a_cell_counts_and_executing_does_not(project):
    chapter = project.chapters(["1"])[0]
    content = demo.notebook("01_first.ipynb", "import thousand_fingers.mechanisms", "x = 2")
    demo.write_notebook(project, "01_first.ipynb", content)
    assert stale(project) == {"01_first": ["cells"]}
    content = demo.notebook("01_first.ipynb", "import thousand_fingers.mechanisms")
    content["cells"][4]["execution_count"] = 7
    demo.write_notebook(project, chapter.path.name, content)
    assert stale(project) == {}


def test_time_stamps_do_not_count(project):
    for path in project.root.rglob("*.py"):
        path.touch()
    assert stale(project) == {}


def test_another_scale_was_never_executed(project):
    assert State(project).why_stale(project.chapters()[0], "paper") == ["never executed here"]


def test_a_damaged_or_missing_output_is_named(project):
    first, second = project.chapters()
    append(project.executed(first, "ci"), " ")
    project.executed(second, "ci").unlink()
    assert stale(project) == {
        "01_first": ["its output was changed or damaged"],
        "02_second": ["its output is missing"],
    }


def test_a_truncated_memory_is_no_memory(project):
    path = project.build_dir / "state.json"
    path.write_text(path.read_text(encoding="utf-8")[:40], encoding="utf-8")
    assert set(stale(project)) == {"01_first", "02_second"}
    State(project).keep("x", 1)
    json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ["[]", "null", '{"01_first/ci": 5}', '{"01_first/ci": {}}'])
def test_a_memory_of_another_shape_is_no_memory(project, text):
    for name in ("state.json", "timings.json"):
        (project.build_dir / name).write_text(text, encoding="utf-8")
    assert stale(project)["01_first"] == ["never executed here"]
    assert Timings(project).seconds("01_first/ci") == 0
    State(project).keep("x", 1)
    Timings(project).keep("x", 1.0)
    assert (State(project).value("x"), Timings(project).seconds("x")) == (1, 1.0)


def test_imports_are_found_in_every_form():
    source = """
%matplotlib inline
!ls
import thousand_fingers.mechanisms as m
from thousand_fingers import accounting
from thousand_fingers.book.record import record
from thousand_fingers.book import ledger
import numpy
"""
    found = imported_modules(source, LIBRARY)
    assert {"mechanisms", "accounting", "book.record", "book.ledger"} <= found
    assert "numpy" not in found
    relative = imported_modules(
        "from . import record\nfrom ..validation import integer", LIBRARY, "book.ledger"
    )
    assert relative == {"book", "book.record", "validation"}


def test_the_closure_follows_imports_inside_functions(tmp_path):
    package = tmp_path / "thousand_fingers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def f():\n    from thousand_fingers.b import g\n")
    (package / "b.py").write_text("import thousand_fingers.a\n")
    assert set(closure(["a"], package)) == {"", "a", "b"}


def test_every_input_is_named(project):
    inputs = inputs_of(project, project.chapters()[0], "ci")
    assert {
        "cells",
        "scale",
        "python",
        "vector width",
        "module mechanisms",
        "requirements.lock",
    } <= inputs.keys()
    assert "module book.record" in inputs
