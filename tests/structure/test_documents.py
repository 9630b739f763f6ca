"""Every command's document has a class, and docs/documents.json says what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator
from typer.main import get_command

from strandline.cli.answers import ANSWERS, MAINTENANCE, described
from strandline.cli.app import app
from strandline.lake import operations
from strandline.lake.document_schema import Definitions
from strandline.lake.documents import document
from strandline.model.results import optional
from tests import documents

WITHOUT_DOCUMENT = {"tail"}


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command of the tree, by its words; a group that does something itself is one too."""
    if words and (not hasattr(group, "commands") or group.invoke_without_command):
        yield " ".join(words)
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*words, name))


def test_every_command_says_what_it_answers() -> None:
    """A document that has no class is a promise that nothing holds."""
    of_maintenance = set(operations.listed())
    assert set(commands(get_command(app))) == (ANSWERS.keys() - {MAINTENANCE}) | of_maintenance | WITHOUT_DOCUMENT
    assert ANSWERS.keys().isdisjoint(WITHOUT_DOCUMENT | of_maintenance)


def test_the_page_is_a_schema() -> None:
    page = described()
    for command, schema in page["commands"].items():
        Draft202012Validator.check_schema({**schema, "$defs": page["$defs"]})
        assert schema, f"{command} may answer anything"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"rows": 1, "first_seq": 1, "last_seq": 1, "repeated": False, "too_old": 0, "warnings": ["slow"]}, ""),
        ({"rows": "1", "first_seq": 1, "last_seq": 1, "repeated": False, "too_old": 0}, "is not of type 'integer'"),
        ({"rows": 1, "first_seq": 1, "last_seq": 1, "repeated": False}, "'too_old' is a required property"),
        ({"rows": 1, "first_seq": 1, "last_seq": 1, "repeated": False, "too_old": 0, "more": 1}, "'more' was unex"),
    ],
)
def test_a_document_that_is_not_as_the_page_says_is_seen(answer: Mapping[str, Any], words: str) -> None:
    found = documents.faults(("--json", "append", "messages"), answer)
    assert [words in fault for fault in found] == [True] * bool(words)


def test_errors_have_one_document_for_all_commands() -> None:
    line = ("append", "messages", "--json")
    error = {"code": "not_found", "message": "there is no table", "hint": None, "detail": {}}
    assert documents.faults(line, {"error": error}) == []
    assert documents.faults(line, {"error": {"code": "not_found"}}) != []


def test_a_line_s_command_is_its_words_without_options() -> None:
    assert documents.command_of(("--lake", "x", "table", "list", "--json")) == "table list"
    assert documents.command_of(("worker", "--once")) == "worker"
    assert documents.command_of(("worker", "retry", "--all")) == "worker retry"


@dataclass(frozen=True)
class Part:
    """A part of an answer."""

    kind: Literal["a", "b"]
    part: Part | None


@dataclass(frozen=True)
class Whole:
    """An answer with everything that may be in one."""

    from_: str | None
    parts: tuple[Part, ...]
    span: tuple[int, float]
    by_name: Mapping[str, Part]
    row: Mapping[str, Any]
    note: str | None = optional()


def test_what_a_document_is_made_into_fits_the_schema_of_its_class() -> None:
    definitions = Definitions()
    schema = {**definitions.answer(Whole), "$defs": definitions.schemas}
    validator = Draft202012Validator(schema)
    part = Part("a", Part("b", None))
    full = document(Whole("x", (part,), (1, 0.5), {"p": part}, {"any": ["thing"]}, "look"))
    assert list(validator.iter_errors(full)) == []
    assert list(validator.iter_errors(document(Whole(None, (), (1, 0.5), {}, {})))) == []
    for broken in (
        {**full, "note": None},
        {**full, "from": 1},
        {**full, "span": [1]},
        {**full, "parts": [{"kind": "c", "part": None}]},
        {**full, "parts": [{"kind": "a"}]},
        {**full, "by_name": {"p": {"kind": "a", "part": None, "more": 1}}},
    ):
        assert list(validator.iter_errors(broken)), broken


def test_two_results_of_one_name_and_types_that_say_nothing_are_refused() -> None:
    first = Definitions()
    first.schema_of(Part)
    with pytest.raises(TypeError, match="two classes"):
        first.schema_of(dataclass(type("Part", (), {})))
    with pytest.raises(TypeError, match="can't hold"):
        first.schema_of(dict)
