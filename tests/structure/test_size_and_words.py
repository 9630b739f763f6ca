"""Files and functions that can be read in one go, and that say why they are there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.structure.source import Module, everything, parse

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def too_long(modules: Iterable[Module]) -> list[str]:
    """Files and functions that don't fit."""
    found = []
    for module in modules:
        lines = module.text.count("\n")
        if lines > MAX_FILE_LINES:
            found.append(module.at(1, f"{lines} lines, and {MAX_FILE_LINES} is the limit"))
        for node in ast.walk(module.tree):
            if isinstance(node, Function):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(module.at(node, f"{node.name} has {lines} lines, limit {MAX_FUNCTION_LINES}"))
    return found


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Functions, classes and methods that others may use."""
    for node in body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if isinstance(node, Function) and _is_overload(node):
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public(node.body, f"{prefix}{node.name}.")


def _is_overload(node: Function) -> bool:
    return any(ast.unparse(decorator).endswith(("overload", ".setter")) for decorator in node.decorator_list)


def undocumented(modules: Iterable[Module]) -> list[str]:
    """Modules without a docstring, and outside the tests public things without one."""
    found = []
    for module in modules:
        if not module.text.strip():
            continue  # an empty __init__
        if ast.get_docstring(module.tree) is None:
            found.append(module.at(1, "the module says nothing about itself"))
        if module.path.startswith("tests/"):
            continue
        found += [
            module.at(node, f"{name} is public and says nothing about itself")
            for name, node in public(module.tree.body)
            if ast.get_docstring(node) is None
        ]
    return found


def test_nothing_is_too_long() -> None:
    """A file is read in one sitting and a function on one screen, or they are not read."""
    assert too_long(everything()) == []


def test_everything_says_why_it_is_there() -> None:
    assert undocumented(everything()) == []


def test_what_is_too_long_is_found() -> None:
    body = "    x = 1\n" * 60
    assert len(too_long([parse("strandline.x", f"def f():\n{body}")])) == 1
    assert too_long([parse("strandline.x", f"def f():\n{body[:-10]}")]) == []
    assert len(too_long([parse("strandline.x", "x = 1\n" * 601)])) == 1


def test_what_says_nothing_is_found() -> None:
    planted = "def f(): ...\n\nclass C:\n    def m(self): ...\n    def _p(self): ...\n\ndef _private(): ..."
    assert len(undocumented([parse("strandline.x", planted)])) == 4
    assert len(undocumented([parse("tests.x", planted)])) == 1
