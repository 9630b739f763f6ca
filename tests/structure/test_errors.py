"""One code, one HTTP status and one exit code for every error; and a tree that is drawn as it is."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from strandline import errors
from strandline.errors import CallerError, PersonError, StrandError, TransientError
from strandline.outages import Outage, OutageKind
from tests.structure.source import Module, package, parse

CODES: dict[str, tuple[int, int]] = {
    "bad_request": (400, 3),
    "unauthorized": (401, 6),
    "forbidden": (403, 6),
    "not_found": (404, 3),
    "conflict": (409, 4),
    "precondition_failed": (412, 4),
    "history_gone": (410, 3),
    "too_large": (413, 3),
    "unsupported": (415, 3),
    "invalid_rows": (422, 3),
    "too_many_requests": (429, 5),
    "busy": (503, 5),
    "recovery_required": (503, 6),
    "damaged": (500, 6),
    "internal": (500, 70),
    # Not in the first list of the interfaces, and added since.
    "environment": (503, 6),
    "newer_format": (505, 6),
    "no_space": (507, 5),
    "lease_lost": (503, 5),
    "request_timeout": (408, 5),
    "displaced": (503, 6),
    "clock_behind": (503, 5),
}
"""What scripts depend on: code, HTTP status, exit code. Add freely; change one only with a reason in the changelog."""

KINDS: tuple[type[StrandError], ...] = (CallerError, TransientError, PersonError)


def below(root: type[StrandError]) -> Iterator[type[StrandError]]:
    for child in root.__subclasses__():
        yield child
        yield from below(child)


def raised() -> list[type[StrandError]]:
    """The classes with a code: all but the root, the three kinds, and special cases, which have their parent's."""
    return [one for one in below(StrandError) if one.__bases__[0] in KINDS]


def special() -> list[type[StrandError]]:
    """The classes without a code: what code decides by, and programs by their marks in `detail`."""
    return [case for case in below(StrandError) if case not in KINDS and case not in raised()]


def drawn(text: str) -> list[tuple[str, str, str | None]]:
    """The tree of a docstring as (class, parent, code), in its order."""
    found: list[tuple[str, str, str | None]] = []
    parents: dict[int, str] = {}
    for line in text.splitlines():
        match = re.match(r"    ([ │├└─]*)([A-Z]\w+)(?: +(.*))?$", line)
        if match is None:
            continue
        depth, name, rest = len(match[1]) // 4, match[2], match[3] or ""
        parents[depth] = name
        code = re.match(r"([a-z_]+)(?:  |$)", rest)
        found.append((name, parents.get(depth - 1, ""), code[1] if code and depth == 2 else None))
    return found


def wrong_codes(classes: Iterable[type[Any]]) -> list[str]:
    """Errors whose code, status or exit code is not their own, not in the list, or shared."""
    found = []
    seen: dict[str, str] = {}
    for one in classes:
        has = one.http_status, one.exit_code
        if not {"code", "http_status", "exit_code"} <= vars(one).keys():
            found.append(f"{one.__name__} inherits its code, status or exit code")
        if CODES.get(one.code) != has:
            found.append(f"{one.__name__}: {one.code} {has}, and the list says {CODES.get(one.code)}")
        if seen.setdefault(one.code, one.__name__) != one.__name__:
            found.append(f"{one.__name__} and {seen[one.code]} share the code {one.code}")
    return found


def strays(modules: Iterable[Module]) -> list[str]:
    """Errors of the tree that are defined outside `errors.py`."""
    names = [StrandError.__name__, *(one.__name__ for one in below(StrandError))]
    pattern = re.compile(rf"^[ \t]*class \w+\((?:.*\b)?(?:{'|'.join(names)})\b", re.MULTILINE)
    return [
        module.at(module.text[: match.start()].count("\n") + 1, "an error outside errors.py")
        for module in modules
        if module.name != "strandline.errors"
        for match in pattern.finditer(module.text)
    ]


def test_every_error_has_one_code_one_status_and_one_exit_code() -> None:
    """A script that looks at one of the three must not be told something else by another."""
    assert wrong_codes(raised()) == []


def test_every_code_of_the_list_has_its_error() -> None:
    """A code that nobody raises is a promise to scripts that is not kept."""
    assert CODES.keys() == {one.code for one in raised()}


def test_every_error_is_of_one_of_the_three_kinds() -> None:
    """The caller can fix it, it will pass, or a person must look: a caller decides by this alone."""
    for one in raised():
        assert sum(issubclass(one, kind) for kind in KINDS) == 1, one
        assert one.__doc__, one


def test_the_tree_is_drawn_as_it_is() -> None:
    """Whoever opens `errors.py` reads the drawing, and believes it."""
    coded = raised()
    real = {(one.__name__, one.__bases__[0].__name__, one.code if one in coded else None) for one in below(StrandError)}
    assert errors.__doc__ is not None
    tree = drawn(errors.__doc__)
    assert tree[0] == ("StrandError", "", None)
    assert len(tree) == len(set(tree))
    assert set(tree[1:]) == real


def test_all_errors_are_in_one_file() -> None:
    assert strays(package()) == []


def planted(name: str, *bases: type[Any], **attributes: Any) -> type[Any]:
    """A class that looks like an error and is not in the tree, where it would stay."""
    return type(name, bases or (Exception,), attributes)


def test_wrong_errors_are_found() -> None:
    busy = planted("Busy", code="busy", http_status=503, exit_code=5)
    assert wrong_codes([busy]) == []
    assert len(wrong_codes([planted("Odd", code="odd", http_status=418, exit_code=3)])) == 1
    assert len(wrong_codes([planted("OtherExit", code="busy", http_status=503, exit_code=6)])) == 1
    assert len(wrong_codes([planted("Inherits", busy)])) == 1
    assert len(wrong_codes([busy, planted("Twin", code="busy", http_status=503, exit_code=5)])) == 1


def test_an_error_elsewhere_is_found() -> None:
    lines = "from strandline import errors\n\nclass Odd(errors.BadRequest):\n    pass\n\nclass Fine(Exception): ..."
    assert strays([parse("strandline.lake", lines)]) == ["strandline/lake.py:3: an error outside errors.py"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    │   ├── Busy  busy  a lock is held", ("Busy", "", "busy")),
        ("    ├── CallerError            the caller can fix it", ("CallerError", "", None)),
    ],
)
def test_the_drawing_is_read(line: str, expected: tuple[str, str, str | None]) -> None:
    assert drawn(line) == [expected]


def example(kind: type[StrandError]) -> StrandError:
    detail = {"kind": "somebody"} if kind is errors.Conflict else {}
    return kind("a message", hint="a hint", more=1, **detail)


def test_every_error_can_be_copied_and_pickled() -> None:
    """Each thread of a group raises a copy of its own, and a worker of Spark sends its error back."""
    for kind in [*raised(), *special()]:
        error = example(kind)
        for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert type(again) is kind and again.args == error.args
            assert again.as_dict() == error.as_dict()


def test_an_error_comes_back_from_its_document_as_the_class_that_it_was() -> None:
    """Code that asks a worker decides by the class, as it would if it did the work itself."""
    for kind in [*raised(), *special()]:
        error = example(kind)
        again = errors.from_dict(error.as_dict())
        assert type(again) is kind and again.as_dict() == error.as_dict()


def test_special_cases_are_told_apart_by_their_marks_alone() -> None:
    """A script sees code, status, exit code and `detail`, and no class: these are what they were without it."""
    marks = [(case.code, tuple(case.marks.items())) for case in special()]
    assert all(text for _, text in marks) and len(set(marks)) == len(marks)
    for case in special():
        parent = case.__bases__[0]
        assert parent in raised() and not {"code", "http_status", "exit_code", "hint"} & vars(case).keys(), case
        assert list(example(case).detail.items()) == [*case.marks.items(), ("more", 1)], "programs read the mark first"
        assert case.__doc__, case


def unspecial(modules: Iterable[Module]) -> list[str]:
    """Errors that are raised as less than they are, or conflicts that don't say in what."""
    cases = {(case.__bases__[0].__name__, *mark): case.__name__ for case in special() for mark in case.marks.items()}
    complaints: list[str] = []
    for module in modules:
        for node in ast.walk(ast.parse(module.text)):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = {key.arg: getattr(key.value, "value", None) for key in node.keywords}
            if name == "Conflict" and not {"kind", None} & given.keys():
                complaints.append(module.at(node.lineno, "a Conflict without a kind"))
            for (parent, key, value), case in cases.items():
                if name == parent and given.get(key) == value:
                    complaints.append(module.at(node.lineno, f"{parent}({key}={value!r}) is a {case}"))
    return complaints


def test_a_special_case_is_raised_as_its_class() -> None:
    """`except SchemaMoved` would let a Conflict of that kind pass, and what is to be done again would fail."""
    assert unspecial(package()) == []
    lines = 'raise Conflict("a")\nraise Conflict("b", kind="schema_moved")\nraise Busy("c", reason="lease_held")\n'
    assert unspecial([parse("strandline.lake", lines + 'raise Conflict("d", kind="constraint")')]) == [
        "strandline/lake.py:1: a Conflict without a kind",
        "strandline/lake.py:2: Conflict(kind='schema_moved') is a SchemaMoved",
        "strandline/lake.py:3: Busy(reason='lease_held') is a HeldByAnother",
    ]


@pytest.mark.parametrize("kind", [OutageKind.EXPIRED, OutageKind.AWAY, OutageKind.CATALOG])
def test_an_outage_that_the_lake_s_own_files_are_blamed_for_is_no_more_than_busy(kind: OutageKind) -> None:
    """Its reason is another one then, and a tick waits for it: it is not taken for a store that is away."""
    outage = Outage(kind, "s3://bucket", "no answer")
    blamed = errors.of_outage(outage, reason=errors.WAREHOUSE)
    assert type(blamed) is errors.Busy and blamed.detail == {"reason": errors.WAREHOUSE}
    assert type(errors.of_outage(outage)) is (errors.KeysExpired if kind is OutageKind.EXPIRED else errors.Unreachable)
