"""Idempotency keys: the same rows are the same rows, whatever they come as and whatever columns there are by now."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from strandline.errors import BadRequest, Conflict
from strandline.lake import Lake
from strandline.model.tables import Ack
from strandline.model.values.row_digest import is_versioned
from strandline.model.values.wire import to_json_lines
from tests.kit import in_ledger, make_table, message, messages, part_ids

Rows = list[dict[str, Any]]

COLUMNS = {"id": "string", "n": "long?", "x": "double?", "at": "timestamp?", "raw": "binary?", "tags": "list<string>?"}
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678000, dt.UTC)
GIVEN: Rows = [
    {"id": "a", "n": 1, "x": 2.0, "at": AT, "raw": b"\x00\xff", "tags": ["u", "v"]},
    {"id": "b", "x": 0.5},
    {"id": "c", "n": None, "tags": []},
]


def said(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A row as JSON says it."""
    plain = {name: value for name, value in row.items() if value is not None}
    if "at" in plain:
        plain |= {"at": "2026-01-02T04:04:05.678+01:00", "raw": base64.b64encode(row["raw"]).decode(), "x": 2}
    return {**dict(reversed(plain.items())), **changes}


def lines(rows: Rows) -> list[bytes]:
    return [json.dumps(said(row)).encode() for row in rows]


def arrow(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows])


WAYS: dict[str, Callable[[Lake], Ack]] = {
    "dicts": lambda lake: lake.append("t", GIVEN, idempotency_key="k"),
    "a generator": lambda lake: lake.append("t", iter(GIVEN), idempotency_key="k"),
    "lines": lambda lake: lake.append_json_lines("t", lines(GIVEN), idempotency_key="k"),
    "Arrow": lambda lake: lake.append("t", arrow(GIVEN), idempotency_key="k"),
    "a reader": lambda lake: lake.append("t", arrow(GIVEN).to_reader(1), idempotency_key="k"),
    "another order": lambda lake: lake.append("t", arrow(GIVEN).select([*COLUMNS][::-1]), idempotency_key="k"),
    "narrow": lambda lake: lake.append("t", arrow(GIVEN).set_column(1, "n", pa.array([1, None, None], pa.int8())),
                                       idempotency_key="k"),
}  # fmt: skip


def add_column(lake: Lake, table: str, name: str, type_: str, **more: Any) -> None:
    doc = lake.schema()
    doc["tables"][table]["columns"][name] = {"type": type_, **more} if more else type_
    lake.schema_apply(doc)


@pytest.mark.both_ledgers
def test_f76_the_same_rows_have_one_answer_whatever_they_come_as(lake: Lake) -> None:
    """Dicts, lines and Arrow, cut and ordered in any way, with 2 for 2.0 and a time in another zone: stored once."""
    lake.create_table("t", COLUMNS)
    first = WAYS["dicts"](lake)
    for name, append in WAYS.items():
        again = append(lake)
        assert again.repeated and again.first_seq == first.first_seq, name
    ((digest,),) = in_ledger(lake, "SELECT digest FROM idempotency")
    assert is_versioned(digest)


@pytest.mark.parametrize("change", [{"n": 2}, {"x": 0.25}, {"tags": ["u"]}, {"id": "z"}, {"at": None}], ids=str)
def test_f76_other_rows_under_a_key_are_refused(lake: Lake, change: dict[str, Any]) -> None:
    """One value that differs is another call."""
    lake.create_table("t", COLUMNS)
    WAYS["dicts"](lake)
    with pytest.raises(Conflict) as refused:
        lake.append("t", [{**GIVEN[0], **change}, *GIVEN[1:]], idempotency_key="k")
    assert refused.value.detail["kind"] == "key_exists"


@pytest.mark.both_ledgers
def test_f76_a_key_holds_when_columns_come(lake: Lake) -> None:
    """Nullable columns, with a default or without, change nothing about what was given."""
    lake.create_table("t", COLUMNS)
    first = WAYS["dicts"](lake)
    add_column(lake, "t", "more", "string?")
    add_column(lake, "t", "kind", "string?", default="plain")
    assert all(append(lake).first_seq == first.first_seq for append in WAYS.values())
    with pytest.raises(Conflict):
        lake.append("t", [{**GIVEN[0], "more": "given"}, *GIVEN[1:]], idempotency_key="k")
    given_null = lake.append("t", [{**row, "more": None} for row in GIVEN], idempotency_key="k")
    assert given_null.repeated, "a null that is given and a field that is missing are the same"


def test_f76_a_key_holds_when_a_column_is_widened(lake: Lake) -> None:
    """A number was cut to 32 bits when the rows were first given, and is not any more."""
    lake.create_table("t", {"id": "string", "x": "float?", "n": "int?"})
    rows = [{"id": "a", "x": 0.1, "n": 1}, {"id": "b"}]
    first = lake.append("t", rows, idempotency_key="k")
    document = lake.schema()
    document["tables"]["t"]["columns"] |= {"x": "double?", "n": "long?"}
    lake.schema_apply(document)
    again = lake.append("t", rows, idempotency_key="k")
    assert again.repeated and again.first_seq == first.first_seq
    with pytest.raises(Conflict):
        lake.append("t", [{"id": "a", "x": 0.2, "n": 1}, {"id": "b"}], idempotency_key="k")


def test_f76_a_key_holds_when_an_unknown_field_becomes_a_column(lake: Lake) -> None:
    """What was kept as an unknown field is the same value in a column of its own."""
    lake.create_table("t", {"id": "string"}, unknown_fields="json")
    rows = [{"id": "a", "size": 3, "name": "x"}, {"id": "b"}]
    first = lake.append("t", rows, idempotency_key="k")
    add_column(lake, "t", "size", "double?")
    again = lake.append("t", rows, idempotency_key="k")
    assert again.repeated and again.first_seq == first.first_seq
    with pytest.raises(Conflict):
        lake.append("t", [{"id": "a", "size": 4, "name": "x"}, {"id": "b"}], idempotency_key="k")


@pytest.mark.both_ledgers
@pytest.mark.parametrize("later", [False, True], ids=["as it was", "with a later column"])
def test_f76_a_key_of_the_first_format_still_has_its_answer(lake: Lake, later: bool) -> None:
    """A digest without a version is compared with what format 1 made of these rows, also after a column came."""
    make_table(lake)
    first = lake.append("messages", messages(0, 3), idempotency_key="k")
    rows = lake.view().sql("SELECT * EXCLUDE (_seq, _at, _actor) FROM messages ORDER BY _seq").arrow()
    old = hashlib.blake2b(digest_size=16)
    for line in to_json_lines(rows):
        old.update(line)
    in_ledger(lake, "UPDATE idempotency SET digest = :digest", digest=old.hexdigest())
    if later:
        add_column(lake, "messages", "more", "string?")
    again = lake.append("messages", messages(0, 3), idempotency_key="k")
    assert again.repeated and again.first_seq == first.first_seq
    with pytest.raises(Conflict):
        lake.append("messages", [message(8)], idempotency_key="k")
    assert part_ids(lake) == ["p0", "p1", "p2"]


def test_an_empty_key_is_refused(lake: Lake) -> None:
    """It is that of a variable which is not set, and every call would have the same."""
    make_table(lake)
    with pytest.raises(BadRequest, match="empty"):
        lake.append("messages", messages(0, 1), idempotency_key="")
    assert part_ids(lake) == []
