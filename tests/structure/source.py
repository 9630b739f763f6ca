"""The project's own source as a test sees it: parsed, with every import and where it stands.

The rules of the house are functions from modules to complaints. So each of them is tried twice: on the project, where
it must find nothing, and on a few planted lines, where it must find something.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "strandline"


@dataclass(frozen=True)
class Module:
    """A source file: its dotted name (of the package, or of the path for all else), its path and its text."""

    name: str
    path: str
    text: str
    tree: ast.Module

    def at(self, node: ast.AST | int, what: str) -> str:
        """A complaint, with the place that an editor can open."""
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return f"{self.path}:{line}: {what}"

    @property
    def room(self) -> str:
        """`ledger` for `strandline.ledger.clock`, `lake` for `strandline.lake`, and nothing for the package itself."""
        return f"{self.name}.".split(".")[1]

    def within(self, *places: str) -> bool:
        """Whether it is one of these modules, or in one of these packages (`engines.spark`)."""
        inside = self.name.removeprefix(f"{PACKAGE}.")
        return any(inside == place or inside.startswith(f"{place}.") for place in places)


@dataclass(frozen=True)
class Import:
    """One imported name, absolute; `typing` when only a type checker runs the line."""

    target: str
    line: int
    typing: bool

    @property
    def library(self) -> str:
        """The top of it."""
        return self.target.partition(".")[0]


def parse(name: str, text: str, path: str | None = None) -> Module:
    """A module out of its text: the way in for planted lines."""
    return Module(name, path or f"{name.replace('.', '/')}.py", text, ast.parse(text))


def _read(path: Path, base: Path) -> Module:
    parts = list(path.relative_to(base).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    text = path.read_text(encoding="utf-8")
    return parse(".".join(parts), text, str(path.relative_to(ROOT)))


@cache
def package() -> tuple[Module, ...]:
    """Every module of `src/strandline`."""
    return tuple(_read(path, ROOT / "src") for path in sorted((ROOT / "src" / PACKAGE).rglob("*.py")))


@cache
def everything() -> tuple[Module, ...]:
    """The package, its tests, its bench and its examples."""
    others = (path for folder in ("tests", "bench", "examples") for path in sorted((ROOT / folder).rglob("*.py")))
    return (*package(), *(_read(path, ROOT) for path in others))


def imports(module: Module) -> Iterator[Import]:
    """Every import, at the top, in functions and under TYPE_CHECKING."""
    guarded = {id(inner) for node in ast.walk(module.tree) if _is_typing(node) for inner in _inside(node)}
    for node in ast.walk(module.tree):
        for target in _targets(module, node):
            yield Import(target, node.lineno, id(node) in guarded)  # type: ignore[attr-defined]


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    assert isinstance(node, ast.If)
    for statement in node.body:
        yield from ast.walk(statement)


def _targets(module: Module, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        source = node.module or ""
        if node.level:
            is_package = module.path.endswith("__init__.py")
            parts = module.name.split(".")
            base = parts[: len(parts) - node.level + (1 if is_package else 0)]
            source = ".".join([*base, *filter(None, [node.module])])
        return [f"{source}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        argument = node.args[0] if node.args else None
        return [argument.value] if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ["?"]
    return []


def calls(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the last name of what is called: `append` for `rows.writeTo(t).append()`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr, node
            elif isinstance(node.func, ast.Name):
                yield node.func.id, node


def texts(module: Module) -> Iterator[tuple[str, ast.expr]]:
    """Every string that is not a docstring; what an f-string fills in is `{}`."""
    skipped: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in ast.walk(node) if part is not node and isinstance(part, ast.Constant))
    for node in ast.walk(module.tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield "".join(map(str, parts)), node
