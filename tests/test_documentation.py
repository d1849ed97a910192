"""Every public function of the library says what it takes, returns and raises, and shows an example."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import thousand_fingers

PACKAGE = Path(thousand_fingers.__file__).parent
ROOT = PACKAGE.parents[1]
# Drawings and the machinery of the book show nothing that a doctest could print.
MODULES = sorted(
    p for p in PACKAGE.rglob("*.py") if not {"book", "figures"} & set(p.relative_to(PACKAGE).parts)
)
KEYS = set(
    re.findall(
        r"^@\w+\{(\w+),", (ROOT / "chapters" / "references.bib").read_text(encoding="utf-8"), re.MULTILINE
    )
)
SETTINGS = {"use_deterministic_torch"}  # changes global settings: its example would change the other tests


def public_functions(module: Path) -> list[tuple[str, ast.FunctionDef]]:
    found = []
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if "overload" in map(ast.unparse, node.decorator_list):
                continue
            found.append((node.name, node))
    return found


FUNCTIONS = [
    pytest.param(name, node, id=f"{module.stem}.{name}")
    for module in MODULES
    for name, node in public_functions(module)
]


@pytest.mark.parametrize(("name", "node"), FUNCTIONS)
def test_a_public_function_is_documented_with_a_tested_example(name, node):
    text = ast.get_docstring(node) or ""
    arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    if arguments:
        assert "Parameters\n----------" in text
    for argument in arguments:
        assert re.search(
            rf"^(.*, )?\*{{0,2}}{argument}(,.*)? :|^(.*, )?{argument}(, .*)?$", text, re.MULTILINE
        ), argument
    returns = ast.unparse(node.returns) if node.returns else ""
    assert returns, "has no return annotation"
    if returns != "None" and not returns.startswith("Iterator"):
        assert "Returns\n-------" in text
    if name not in SETTINGS:
        assert ">>> " in text


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_module_opens_with_what_it_computes(module):
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    assert len(text.split()) >= 8


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_module_holds_no_control_characters(module):
    assert not re.search(r"[^\n\x20-\U0010ffff]", module.read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_citations_of_a_module_are_in_the_bibliography(module):
    cited = set(re.findall(r"\[([A-Z]\w+\d{4}\w*)(?:[,;][^\]]*)?\]", module.read_text(encoding="utf-8")))
    assert cited - KEYS == set()


def test_every_key_of_the_bibliography_is_there_once() -> None:
    text = (ROOT / "chapters" / "references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE)
    assert sorted(set(keys)) == sorted(keys)
