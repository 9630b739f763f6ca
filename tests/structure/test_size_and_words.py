"""Files and functions that can be read in one go, that say why they are there, and names that say what things are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.structure.source import Module, everything, package, parse

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

EMPTY_WORDS = frozenset({"one", "found", "some", "told", "said", "asked", "wanted", "known", "here", "there", "given"})
"""They say that there is something, or where it came from; not what it is."""

MUST_STAY = {
    "src/strandline/copies.py": {"RestoreReport.asked": "a key of what `strand restore --json` prints"},
}
"""Names that can't be others, by file, each with its reason."""

MAY_BE_TWICE = {
    "Mark": "how far a stream has come: of others' destinations, and of what a receiver's OpenAPI document says"
}
"""Classes of one name, each with its reason."""

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


def bound(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every name that is bound, with the classes and functions around it: `Class.method.name`."""
    for child in ast.iter_child_nodes(node):
        for name in _names(child):
            yield inside + name, child
        yield from bound(child, f"{inside}{child.name}." if isinstance(child, Function | ast.ClassDef) else inside)


def _names(node: ast.AST) -> list[str]:
    """What a node binds itself. Attributes, and what is only handed on by keyword, are bound elsewhere."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=str(name)):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.MatchMapping(rest=str(name)):
            return [name]
    return []


def empty_names(modules: Iterable[Module]) -> list[str]:
    """Names that say nothing, but for those that must stay."""
    return [
        module.at(node, f"{path} is named by an empty word: say what it is")
        for module in modules
        for path, node in bound(module.tree)
        if path.rpartition(".")[2].strip("_").lower() in EMPTY_WORDS and path not in MUST_STAY.get(module.path, ())
    ]


def classes_of_one_name(modules: Iterable[Module]) -> list[str]:
    """Classes that are called as another is. A name that is part of what a program reads may be there twice."""
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module.at(node, node.name))
    return [" and ".join(at) for name, at in places.items() if len(at) > 1 and name not in MAY_BE_TWICE]


def test_nothing_is_too_long() -> None:
    """A file is read in one sitting and a function on one screen, or they are not read."""
    assert too_long(everything()) == []


def test_everything_says_why_it_is_there() -> None:
    assert undocumented(everything()) == []


def test_names_say_what_things_are() -> None:
    """A reader who meets `found` or `one` must look for what was found, or one of which."""
    assert empty_names(package()) == []


def test_a_class_has_a_name_of_its_own() -> None:
    """A reader who meets `Plan` need not look at the imports to know which."""
    assert classes_of_one_name(package()) == []
    planted = [parse(f"strandline.{module}", "class Plan: ...") for module in ("x", "y")]
    assert len(classes_of_one_name(planted)) == 1 and classes_of_one_name(planted[:1]) == []


def test_what_must_stay_is_there() -> None:
    """An exception goes with its name."""
    paths = {module.path: {path for path, _ in bound(module.tree)} for module in package()}
    assert [
        (file, path) for file, names in MUST_STAY.items() for path in names if path not in paths.get(file, ())
    ] == []


def test_what_is_too_long_is_found() -> None:
    body = "    x = 1\n" * 60
    assert len(too_long([parse("strandline.x", f"def f():\n{body}")])) == 1
    assert too_long([parse("strandline.x", f"def f():\n{body[:-10]}")]) == []
    assert len(too_long([parse("strandline.x", "x = 1\n" * 601)])) == 1


def test_what_says_nothing_is_found() -> None:
    planted = "def f(): ...\n\nclass C:\n    def m(self): ...\n    def _p(self): ...\n\ndef _private(): ..."
    assert len(undocumented([parse("strandline.x", planted)])) == 4
    assert len(undocumented([parse("tests.x", planted)])) == 1


@pytest.mark.parametrize(
    "line",
    [
        "found = 1",
        "found: int",
        "_found_ = 1",
        "FOUND = 1",
        "found += 1",
        "first, (*found, last) = pair",
        "f(found := 1)",
        "for found in pair: ...",
        "async def f():\n    async for found in pair: ...",
        "pairs = [(left, right) for left, found in pair]",
        "pairs = {left: 1 for left in pair for found in left}",
        "with f() as found: ...",
        "with f() as (left, found): ...",
        "try: ...\nexcept OSError as found: ...",
        "import json as found",
        "def f(found): ...",
        "def f(found, /): ...",
        "def f(*, found=1): ...",
        "def f(*found): ...",
        "def f(**found): ...",
        "work = lambda found: 1",
        "def found(): ...",
        "async def _found(): ...",
        "class Found: ...",
        "class C:\n    found: int = 0",
        "match pair:\n    case [left, found]: ...",
        "match pair:\n    case [left, *found]: ...",
        "match pair:\n    case {'left': left, **found}: ...",
        "match pair:\n    case int() as found: ...",
    ],
)
def test_an_empty_word_is_found(line: str) -> None:
    """However it is bound, and once."""
    assert len(empty_names([parse("strandline.x", line)])) == 1


@pytest.mark.parametrize(
    "line",
    [
        "rows_found = not_asked = someone = 1",
        "print(found)",
        "f(found=1)",
        "row.found = 1",
        "row['found'] = 1",
        "del found",
        "import found.one",
        "match pair:\n    case Row(found=column): ...",
        "'found = 1'  # found = 1",
    ],
)
def test_what_is_bound_elsewhere_is_no_empty_word(line: str) -> None:
    """Uses, keywords and attributes follow the name that they are uses of."""
    assert empty_names([parse("strandline.x", line)]) == []


@pytest.mark.parametrize("word", sorted(EMPTY_WORDS))
def test_every_empty_word_is_found(word: str) -> None:
    assert empty_names([parse("strandline.x", f"{word} = 1")])


def test_only_one_class_may_keep_a_name_that_must_stay() -> None:
    """The same word elsewhere in the file is no exception."""
    (file, names), *_ = MUST_STAY.items()
    (path, _), *_ = names.items()
    holder, name = path.split(".")
    planted = f"class {holder}:\n    {name}: int\n\nclass Other:\n    {name}: int\n"
    complaints = empty_names([parse("strandline.x", planted, file)])
    assert complaints == [f"{file}:5: Other.{name} is named by an empty word: say what it is"]
