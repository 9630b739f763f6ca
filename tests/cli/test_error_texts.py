"""How errors look to people: every class, with every detail that is given to one, and with details nobody foresaw."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline
from strandline import errors
from strandline.cli.main import error_lines
from strandline.errors import StrandError
from strandline.model.reporting import MAX_REPORTED, NO_LIMIT, entry_text, listed_lines, reporting

SOURCES = Path(strandline.__file__).parent
BAD_ROW = {"index": 1, "field": "age", "value": "'x'", "reason": "is not a long"}
TAKEN = {"index": 1, "row": "person 'a'"}
BROKEN = {
    "table": "knows", "key": "'e'", "field": "src", "rule": "reference(src -> person)", "value": "'q'",
    "reason": "names no row of 'person'", "index": None,
}  # fmt: skip
STEP = {"what": "drop column", "table": "person", "column": "age", "verdict": "refused", "why": "it is part of the key"}
DISPUTED = {
    "kind": "divergent_update", "table": "person", "key": {"id": "a"}, "fields": ["age"], "ours": {"age": 1},
    "theirs": None,
}  # fmt: skip
IN_FILE = {"file": "file:///in/people.jsonl", "line": 2}
TEXTS = [
    (BAD_ROW, "row 1, field 'age': 'x' is not a long"),
    ({**BAD_ROW, **IN_FILE}, "/in/people.jsonl, line 2, field 'age': 'x' is not a long"),
    ({**BAD_ROW, "file": "s3://b/people.parquet"}, "s3://b/people.parquet, row 2, field 'age': 'x' is not a long"),
    ({**BAD_ROW, "field": ""}, "row 1: 'x' is not a long"),
    (TAKEN, "person 'a'"),
    ({**TAKEN, **IN_FILE}, "/in/people.jsonl, line 2: person 'a'"),
    (BROKEN, "knows 'e', field 'src': 'q' names no row of 'person'"),
    ({**BROKEN, **IN_FILE}, "/in/people.jsonl, line 2: knows 'e', field 'src': 'q' names no row of 'person'"),
    ({**BROKEN, "branch": "x"}, "on branch 'x': knows 'e', field 'src': 'q' names no row of 'person'"),
    (STEP, "person drop column age: it is part of the key"),
    (DISPUTED, "person a: divergent update in age (ours 1, theirs none)"),
    ("a word", "a word"),
    ({"what": {"nobody": ["foresaw"]}}, '{"what":{"nobody":["foresaw"]}}'),
]
ODD: list[Any] = [
    None,
    0,
    -1,
    True,
    1.5,
    "text",
    b"bytes",
    [],
    [None],
    [[1]],
    {},
    {"rows": 1},
    {1: 2},
    object(),
    1 << 80,
]


@pytest.mark.parametrize(("entry", "text"), TEXTS)
def test_an_entry_has_a_text(entry: Any, text: str) -> None:
    assert entry_text(entry) == text


def classes(kind: type[StrandError] = StrandError) -> Iterator[type[StrandError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from classes(child)


def details() -> set[str]:
    """The name of every detail that the source gives to an error, wherever it makes one."""
    errors = {kind.__name__ for kind in classes()}
    names: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in errors:
                names |= {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    return names - {"hint", "message", "conflicts"}


def test_every_error_has_a_text_whatever_its_detail() -> None:
    """Each class with each detail that is given anywhere, of each shape that is known, and of odd ones."""
    names = details()
    assert {"rows", "violations", "steps", "undecided", "actual", "count", "bad", "kind"} <= names
    shapes = [*ODD, *([entry, entry] for entry, _ in TEXTS), [ODD]]
    for kind in classes():
        for name in names:
            for shape in shapes:
                detail = {**({"kind": "merge_conflicts"} if issubclass(kind, errors.Conflict) else {}), name: shape}
                lines = error_lines(kind("what happened", hint="what to do", **detail).as_dict())
                assert lines[0].startswith(f"error[{kind.code}]: ")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(["rows", "violations", "steps", "conflicts", "undecided", "actual", "bad", "count", "kind"])
fields = st.sampled_from(
    [
        "index",
        "line",
        "file",
        "field",
        "value",
        "reason",
        "table",
        "key",
        "row",
        "fields",
        "kind",
        "ours",
        "why",
        "branch",
    ]
)
entries = st.dictionaries(fields, json_values)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(names, json_values | st.lists(entries | json_values, max_size=4)))
def test_no_detail_crashes_the_printer(detail: dict[str, Any]) -> None:
    """What another version or another process put there has a text too, each entry on a line of its own list."""
    assert all(isinstance(line, str) for line in listed_lines(detail))


def test_the_first_twenty_are_listed_and_all_of_them_when_asked() -> None:
    rows = [{**BAD_ROW, **IN_FILE, "line": number} for number in range(1, 31)]
    shown = listed_lines({"rows": rows, "bad": 40})
    assert (len(shown), shown[0], shown[-1]) == (
        MAX_REPORTED,
        "line 2, field 'age': 'x' is not a long",
        "… and 20 more (--all lists them)",
    )
    with reporting(NO_LIMIT):
        assert len(listed_lines({"rows": rows, "bad": 30})) == 29
    others = [{**rows[0], "file": "file:///in/others.jsonl"}, *rows[:2]]
    assert listed_lines({"rows": others})[0].startswith("/in/people.jsonl, line 1")
