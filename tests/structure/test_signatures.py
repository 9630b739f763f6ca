"""Public signatures say what they take and give: `Any` stands in none.

What is dynamic has a name that says so and why (`JavaObject`, `SinkSettings`, a user's `Value`), so that a reader of a
signature knows what comes, and a search for the name finds all of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.structure.source import Module, package, parse

MAY_BE_ANY = {
    "src/strandline/cli/maintenance.py": {"command_of": "Typer's class of commands is private"},
    "src/strandline/engines/duck/wall.py": {"Node": "DuckDB's parse tree has other keys in every class and version"},
    "src/strandline/engines/spark/classes.py": {"JavaObject": "py4j looks names up in Java as they are used"},
    "src/strandline/errors.py": {"Detail": "each kind of error has keys of its own"},
    "src/strandline/ledger/database/pipeline.py": {"Row": "a statement says what the columns of its answer are"},
    "src/strandline/model/delivery/sinks.py": {"Setting": "a sink's type says what its settings are"},
    "src/strandline/model/operations.py": {"Arguments": "each kind of work reads its own keys"},
    "src/strandline/model/results.py": {"optional": "stands at fields of every type, as `dataclasses.field` does"},
    "src/strandline/model/values/user_rows.py": {"Value": "a table's schema says what its values are"},
    "src/strandline/worker/delegation.py": {"carry_out": "each kind of work has an answer of its own"},
}
"""Public signatures, fields and aliases that say `Any`, by file, each with its reason: the list only gets shorter."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
CALLED = ("__init__", "__call__")


def says_any(annotation: ast.expr | None) -> bool:
    """Whether a type has `Any` in it, also as a text."""
    if annotation is None:
        return False
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return says_any(ast.parse(annotation.value, mode="eval").body)
    return any(
        (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
        or (node is not annotation and isinstance(node, ast.Constant) and node.value == "Any")
        for node in ast.walk(annotation)
    )


def annotations_of(function: Function) -> Iterator[ast.expr | None]:
    """The types of a function's parameters, and of its answer."""
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None:
            yield argument.annotation
    yield function.returns


def signatures(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Iterable[ast.expr | None]]]:
    """Every public function, method, field and alias, and the types that it names."""
    for node in body:
        if isinstance(node, Function) and (not node.name.startswith("_") or node.name in CALLED):
            yield prefix + node.name, annotations_of(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from signatures(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_alias = ast.unparse(node.annotation).endswith("TypeAlias")
            if prefix or (is_alias and not node.target.id.startswith("_")):
                yield prefix + node.target.id, [node.value if is_alias else node.annotation]


def without_a_type(modules: Iterable[Module]) -> list[str]:
    """Public signatures that say `Any`, and have no reason to."""
    return [
        module.at(1, f"{name} says Any: name what it is, or say in MAY_BE_ANY why it can be anything")
        for module in modules
        for name, types in signatures(module.tree.body)
        if any(map(says_any, types)) and name not in MAY_BE_ANY.get(module.path, ())
    ]


def test_signatures_say_what_goes_in_and_out() -> None:
    """What users' rows hold is a `Value`, a document is `Json`, what is handed on without a look is an `object`."""
    assert without_a_type(package()) == []


def test_what_may_be_anything_still_is() -> None:
    """A signature that has got a type leaves the list."""
    names = {
        (module.path, name)
        for module in package()
        for name, types in signatures(module.tree.body)
        if any(map(says_any, types))
    }
    assert {(file, name) for file, listed in MAY_BE_ANY.items() for name in listed} <= names


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: Any): ...",
        "def f(*x: Any): ...",
        "def f(**x: typing.Any): ...",
        "async def f(*, x: dict[str, Any]): ...",
        "def f(x: 'list[Any]'): ...",
        "def f() -> Any: ...",
        "async def read() -> list[Any]: ...",
        "class Kept:\n    _answer: Any",
        "class Kept:\n    def __init__(self, *, answer: Any = None) -> None: ...",
        "class C:\n    x: Mapping[str, Any]",
        "class C:\n    def __init__(self, x: Any): ...",
        "class C:\n    class D:\n        def m(self) -> 'Any': ...",
        "Alias: TypeAlias = dict[str, Any]",
    ],
)
def test_a_signature_without_a_type_is_found(text: str) -> None:
    assert len(without_a_type([parse("strandline.x", text)])) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: object) -> Value: ...",
        "def _f(x: Any): ...",
        "class _C:\n    x: Any",
        "class C:\n    def _m(self, x: Any): ...",
        "def read(row: Anything) -> object:\n    value: Any = row",
        "def f():\n    x: Any = 1",
        "_Alias: TypeAlias = Any",
        "table: Any = None",
    ],
)
def test_a_signature_with_one_and_what_is_private_are_not(text: str) -> None:
    assert without_a_type([parse("strandline.x", text)]) == []
