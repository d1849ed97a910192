"""Which code an artefact is made of: everything that its function can reach, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from thousand_fingers.book.definitions import definitions
from thousand_fingers.book.project import BookError

LONG = '''"""A module."""
from thousand_fingers import shared
from thousand_fingers.deep import inner as other
from thousand_fingers.shared import helper as h, Table

LIMIT = 3


def run(part: int) -> Table:
    """Docstring."""
    def step(x):
        from thousand_fingers.late import late
        return late(x)
    return h(part, LIMIT) + other.nested(step)


def neighbour():
    return shared.unused()


def whole():
    return [shared]


@h
def decorated():
    pass
'''
SHARED = '''
import os

os.register = 1


def helper(x, y):
    return base(x) + y  # a comment


def base(x): return x


def unused(): return 0


class Table:
    """What comes out."""

    rows: int = 0

    def size(self): return width()


def width(): return 1
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    files = {
        "__init__.py": "",
        "long.py": LONG,
        "shared.py": SHARED,
        "late.py": "def late(x): return x\n",
        "deep/__init__.py": "",
        "deep/inner.py": "from . import deeper\n\ndef nested(x): return deeper.bottom(x)\n",
        "deep/deeper.py": "def bottom(x): return x\n\ndef other(): pass\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def change(package: Path, name: str, old: str, new: str) -> None:
    path = package / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_it_follows_names_across_modules_and_leaves_neighbours_out(package):
    assert set(definitions("long", "run", package)) == {
        "deep.deeper:bottom",
        "deep.inner:nested",
        "late:late",
        "long:LIMIT",
        "long:run",
        "shared:",
        "shared:Table",
        "shared:base",
        "shared:helper",
        "shared:width",
    }


def test_a_module_used_as_a_whole_counts_as_a_whole(package):
    assert "shared:unused" in definitions("long", "whole", package)


def test_decorators_belong_to_what_they_decorate(package):
    found = definitions("long", "decorated", package)
    assert "shared:base" in found
    assert found["long:decorated"].startswith("@h")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("long.py", '"""Docstring."""', '"""Another one,\n\n    longer."""'),
        ("shared.py", "# a comment", "# another"),
        ("shared.py", '"""What comes out."""', '"""Changed."""'),
        ("shared.py", "def unused(): return 0", "def unused(): return 1"),
        ("deep/deeper.py", "def other(): pass", "def other(): return 5"),
        ("shared.py", "import os\n", "import os\nimport sys\n"),
    ],
)
def test_what_does_not_count(package, name, old, new):
    before = definitions("long", "run", package)
    change(package, name, old, new)
    assert definitions("long", "run", package) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("long.py", "LIMIT = 3", "LIMIT = 4"),
        ("long.py", "h(part, LIMIT)", "h(part + 1, LIMIT)"),
        ("shared.py", "def base(x): return x", "def base(x): return -x"),
        ("shared.py", "def width(): return 1", "def width(): return 2"),
        ("shared.py", "rows: int = 0", "rows: int = 1"),
        ("shared.py", "os.register = 1", "os.register = 2"),
        ("late.py", "return x", "return 2 * x"),
        ("deep/deeper.py", "def bottom(x): return x", "def bottom(x): return 0"),
    ],
)
def test_what_counts(package, name, old, new):
    before = definitions("long", "run", package)
    change(package, name, old, new)
    assert definitions("long", "run", package) != before


def test_a_hash_sign_inside_a_string_is_code(package):
    change(package, "late.py", "return x", "return '# not a comment'")
    before = definitions("late", "late", package)
    change(package, "late.py", "# not a comment", "# nor this")
    assert definitions("late", "late", package) != before


def test_lines_are_counted_as_the_parser_counts_them(package):
    before = definitions("late", "late", package)
    change(package, "late.py", "def late", '"""A form\x0cfeed."""\n\n\ndef late')
    assert definitions("late", "late", package) == before


def test_an_unknown_definition_is_named(package):
    with pytest.raises(BookError, match="no definition long:fly"):
        definitions("long", "fly", package)


def test_broken_code_is_named(package):
    (package / "late.py").write_text("def (")
    with pytest.raises(BookError, match=r"late\.py"):
        definitions("long", "run", package)
