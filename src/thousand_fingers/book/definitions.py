"""What a function of the library is made of: every definition that it can reach.

An artefact took minutes or hours to compute. It has to be computed again when the code that made it
changed, and should not be because a neighbour in the same file did. So the code is followed by name, from
definition to definition and from module to module; comments, docstrings and blank lines do not count.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from thousand_fingers.book.freshness import import_base, module_file
from thousand_fingers.book.project import BookError

_PACKAGE = "thousand_fingers"
#: Stands for everything that a module defines.
_ALL = "*"

# (module, name): a definition. (module, None): the module itself, of which a name is still to follow.
_Target = tuple[str, str | None]


def definitions(module: str, name: str, package_dir: Path) -> dict[str, str]:
    """Return every definition that one definition can reach by name.

    The answer is too large rather than too small: a name counts wherever it occurs, annotations
    included, and a module that is used as a whole counts as a whole. What is looked up under a name made
    at run time (``getattr``) is not seen.

    Parameters
    ----------
    module : str
        Dotted name without the package's own, such as ``"smoothing"``.
    name : str
        A function, class or constant of that module.
    package_dir : Path
        The folder ``src/thousand_fingers``.

    Returns
    -------
    dict of str to str
        ``"module:name"`` to its code, without comments and docstrings.

    Raises
    ------
    BookError
        If there is no such definition, or a module is no Python.
    """
    modules: dict[str, _Module] = {}
    found: dict[str, str] = {}
    waiting = [(module, name)]
    while waiting:
        where, what = waiting.pop()
        key = f"{where}:{what}"
        path = module_file(package_dir, where)
        if key in found or path is None:
            continue
        if where not in modules:
            modules[where] = _Module.read(path, where, package_dir)
            waiting.append((where, ""))  # what its import does, whoever imports it
        source = modules[where]
        if what == _ALL:
            waiting += [(where, each) for each in source.statements]
        statements = source.statements.get(what, [])
        found[key] = "\n".join(source.code(statement) for statement in statements)
        for statement in statements:
            waiting += source.reached_from(statement)
        if what in source.imports:
            waiting += source.resolve(source.imports[what], [])
    if not found.get(f"{module}:{name}"):
        raise BookError(f"the library has no definition {module}:{name}")
    return {key: code for key, code in sorted(found.items()) if code}


@dataclass(frozen=True)
class _Module:
    """One file: its top-level statements by the names that they bind, and what it imports."""

    name: str
    package_dir: Path
    lines: list[str]
    statements: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, _Target] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, name: str, package_dir: Path) -> _Module:
        text = path.read_text(encoding="utf-8")
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise BookError(f"{path}: {error}") from None
        module = cls(name, package_dir, _without_remarks(text, tree))
        for statement in tree.body:
            module.imports.update(module.imported(statement))
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                for each in set(_bound(statement)) or {""}:
                    module.statements.setdefault(each, []).append(statement)
        return module

    def imported(self, node: ast.AST) -> dict[str, _Target]:
        """Return what the imports inside a node bind, as far as it comes from the library."""
        found: dict[str, _Target] = {}
        for each in ast.walk(node):
            if isinstance(each, ast.Import):
                for alias in each.names:
                    if alias.name.split(".")[0] == _PACKAGE:
                        whole = alias.name.removeprefix(_PACKAGE).removeprefix(".")
                        found[alias.asname or _PACKAGE] = (whole if alias.asname else "", None)
            elif isinstance(each, ast.ImportFrom):
                base = import_base(each, self.name)
                if base.split(".")[0] == _PACKAGE:
                    inside = base.removeprefix(_PACKAGE).removeprefix(".")
                    found |= {alias.asname or alias.name: (inside, alias.name) for alias in each.names}
        return found

    def reached_from(self, statement: ast.stmt) -> list[tuple[str, str]]:
        """Return the definitions that a statement names."""
        imports = self.imports | self.imported(statement)
        reached: list[tuple[str, str]] = []
        for first, *rest in _chains(statement):
            if first in imports:
                reached += self.resolve(imports[first], rest)
            elif first in self.statements:
                reached.append((self.name, first))
        return reached

    def resolve(self, target: _Target, rest: list[str]) -> list[tuple[str, str]]:
        """Follow attributes behind an imported name down to a definition."""
        module, name = target
        if name is None:
            return self.resolve((module, rest[0]), rest[1:]) if rest else [(module, _ALL)]
        inner = f"{module}.{name}".removeprefix(".")
        if module_file(self.package_dir, inner):
            return self.resolve((inner, None), rest)
        return [(module, name)]

    def code(self, statement: ast.stmt) -> str:
        """Return the text of a statement."""
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(each.lineno for each in decorators)])
        lines = self.lines[first - 1 : statement.end_lineno]
        return "\n".join(line for line in lines if line)


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a top-level statement binds, imports aside."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _chains(node: ast.AST) -> Iterator[list[str]]:
    """Yield every name in a piece of code, with the attributes that follow it."""
    inner, attributes = node, []
    while isinstance(inner, ast.Attribute):
        attributes.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        yield [inner.id, *reversed(attributes)]
        return
    for child in ast.iter_child_nodes(inner):
        yield from _chains(child)


def _without_remarks(text: str, tree: ast.Module) -> list[str]:
    """Return the lines of a file with comments and docstrings blanked.

    By position, because no version of Python writes parsed code back in the same way as the next.
    """
    lines = text.split("\n")  # as the parser counts them: splitlines() also splits at form feeds
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            docstring = body[0]
            if isinstance(docstring.value, ast.Constant) and isinstance(docstring.value.value, str):
                for row in range(docstring.lineno - 1, docstring.end_lineno or docstring.lineno):
                    lines[row] = ""
    return [line.rstrip() for line in lines]
