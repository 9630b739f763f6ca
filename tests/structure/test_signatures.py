"""Public signatures say what they take and give: `Any` stands in none.

What is dynamic has a name that says so and why (`JavaObject`, `SinkSettings`, a user's `Value`), so that a reader of a
signature knows what comes, and a search for the name finds all of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.structure.source import Module, package, parse

ROOMS = ("engines", "ledger", "operations", "sinks", "testing", "views")
"""The rooms of which this is held."""


def vague(module: Module) -> Iterator[str]:
    """Complaints about functions, methods and fields without a leading underscore that say `Any`."""
    for name, node, annotation in _signatures(module.tree.body, ""):
        if any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(annotation)):
            yield module.at(node, f"{name} says Any in its signature")


def _signatures(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.stmt, ast.expr]]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_public(node.name):
                of = node.args
                arguments = [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]
                annotations = [argument.annotation for argument in arguments if argument is not None]
                yield from (
                    (prefix + node.name, node, annotation)
                    for annotation in (*annotations, node.returns)
                    if annotation is not None
                )
            case ast.ClassDef() if _is_public(node.name):
                fields = (field for field in node.body if isinstance(field, ast.AnnAssign))
                yield from ((f"{prefix}{node.name}.{ast.unparse(f.target)}", f, f.annotation) for f in fields)
                yield from _signatures(node.body, f"{prefix}{node.name}.")


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__init__", "__call__")


def test_no_public_signature_says_any() -> None:
    """What it stands for has a name, in every module of the rooms."""
    assert [complaint for module in package() if module.within(*ROOMS) for complaint in vague(module)] == []


@pytest.mark.parametrize(
    "line",
    [
        "def read(row: dict[str, Any]) -> int: ...",
        "async def read() -> list[Any]: ...",
        "def read(*rows: Any) -> None: ...",
        "class Kept:\n    answer: Mapping[str, Any]",
        "class Kept:\n    def __init__(self, *, answer: Any = None) -> None: ...",
    ],
)
def test_any_is_found_wherever_a_signature_has_it(line: str) -> None:
    """In what is taken, in what is given and in fields."""
    assert len(list(vague(parse("strandline.ledger.x", line)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "def _read(row: Any) -> Any: ...",
        "class _Kept:\n    answer: Any",
        "Value: TypeAlias = Any",
        "def read(row: Anything) -> object:\n    value: Any = row",
    ],
)
def test_what_is_private_or_has_a_name_may_be_any(line: str) -> None:
    """A name with a reason is no complaint, nor is what no other module calls."""
    assert list(vague(parse("strandline.ledger.x", line))) == []
