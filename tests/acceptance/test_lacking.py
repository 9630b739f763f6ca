"""Rows that lack a value get their column's default, whenever and however they come; a null that is given stays one.

A producer that knows nothing of a new column goes on as before: at the moment of `schema apply` nothing breaks.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.errors import BadRequest, Conflict, InvalidRows, MergeConflict
from strandline.lake import Lake
from strandline.ledger.changes.purges import find_tombstones
from strandline.ledger.tables.tables import create_table
from strandline.model.schema.defaults import default_value
from strandline.model.schema.migration import PURGE_COLUMNS, PURGE_KEY, PURGES
from strandline.model.schema.schema import from_json, parse_mapping
from strandline.model.values.rows import from_dicts
from strandline.operations.load import load_request
from tests.kit import strand

LANG = {"type": "string", "default": "en"}
RATE = {"type": "long?", "default": 7}


def apply(lake: Lake, columns: dict[str, Any], branch: str = "main", table: str = "t", **more: Any) -> list[str]:
    """Add or change columns, and return the steps that were made."""
    columns_before = lake.schema(branch)["tables"][table]["columns"]
    document = {"tables": {table: {"columns": {**columns_before, **columns}, **more}}}
    done = lake.schema_apply(document, branch=branch)
    assert not lake.schema_plan(document, branch=branch).steps, "the same file applied again does nothing"
    assert not lake.schema_plan(lake.schema(branch), branch=branch).steps, "what is shown says what there is"
    return [f"{step.what} {step.column}" for step in done.steps]


def values(lake: Lake, *columns: str, branch: str = "main", table: str = "t") -> dict[str, tuple[Any, ...]]:
    """The columns' values by id."""
    return {row["id"]: tuple(row[name] for name in columns) for row in lake.view(branch).table(table).to_pylist()}


@pytest.fixture
def log(lake: Lake) -> Lake:
    """A lake with a log table t, of one old row, whose columns `lang` and `rate` came since with defaults."""
    lake.create_table("t", {"id": "string"})
    lake.append("t", [{"id": "old"}])
    apply(lake, {"lang": LANG, "rate": RATE})
    return lake


@pytest.fixture
def keyed(lake: Lake) -> Lake:
    """The same with a keyed table."""
    lake.create_table("t", {"id": "string"}, key=["id"])
    lake.mutate([sl.put("t", {"id": "old"})])
    apply(lake, {"lang": LANG, "rate": RATE})
    return lake


def stored(folder: Path, name: str, content: str | pa.Table) -> str:
    path = folder / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        pq.write_table(content, path)
    return str(path)


WAYS: dict[str, Callable[[Lake, Path], Any]] = {
    "dicts": lambda lake, _: lake.append("t", [{"id": "new"}]),
    "a generator": lambda lake, _: lake.append("t", iter([{"id": "new"}])),
    "dicts of two shapes": lambda lake, _: lake.append(
        "t", [{"id": "new"}, {"id": "whole", "lang": "de", "rate": None}]
    ),
    "lines": lambda lake, _: lake.append_json_lines("t", [b'{"id": "new"}']),
    "Arrow": lambda lake, _: lake.append("t", pa.table({"id": ["new"]})),
    "a reader": lambda lake, _: lake.append("t", pa.table({"id": ["new"]}).to_reader()),
    "JSON lines": lambda lake, folder: lake.load("t", [stored(folder, "rows.jsonl", '{"id": "new"}\n')]),
    "CSV": lambda lake, folder: lake.load("t", [stored(folder, "rows.csv", "id\nnew\n")]),
    "Parquet": lambda lake, folder: lake.load("t", [stored(folder, "rows.parquet", pa.table({"id": ["new"]}))]),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_log_table_that_lack_a_column_get_its_default(log: Lake, tmp_path: Path, way: str) -> None:
    """Those that were there, and those that come, in whatever form; also where the column is required."""
    WAYS[way](log, tmp_path)
    stored = values(log, "lang", "rate")
    assert (stored["old"], stored["new"]) == (("en", 7), ("en", 7))
    assert stored.get("whole", ("de", None)) == ("de", None)


NULLS: dict[str, Callable[[Lake, Path, str], Any]] = {
    "dicts": lambda lake, _, name: lake.append("t", [{"id": "new", name: None}]),
    "lines": lambda lake, _, name: lake.append_json_lines("t", [json.dumps({"id": "new", name: None}).encode()]),
    "Arrow": lambda lake, _, name: lake.append("t", pa.table({"id": ["new"], name: pa.nulls(1, pa.string())})),
    "CSV": lambda lake, folder, name: lake.load("t", [stored(folder, f"{name}.csv", f"id,{name}\nnew,\n")]),
}


@pytest.mark.parametrize("way", NULLS)
def test_a_null_that_is_given_stays_null_and_is_refused_where_one_is_required(
    log: Lake, tmp_path: Path, way: str
) -> None:
    """Null is a value that a row gives. An empty field of CSV is one too: it has no other way to say null."""
    NULLS[way](log, tmp_path, "rate")
    assert values(log, "lang", "rate")["new"] == ("en", None)
    with pytest.raises(InvalidRows, match="'lang'"):
        NULLS[way](log, tmp_path, "lang")


def test_a_put_gets_defaults_and_a_patch_leaves_what_is_there(keyed: Lake, tmp_path: Path) -> None:
    """A put says what the row is: what it leaves out is lacking. A patch says what changes, and nothing else."""
    keyed.mutate([sl.put("t", {"id": "a", "rate": None}), sl.insert("t", {"id": "b", "lang": "de"})])
    keyed.mutate([sl.patch("t", "a", {"lang": "fr"}), sl.patch("t", "old", {"rate": None}), sl.put("t", {"id": "b"})])
    expected = {"old": ("en", None), "a": ("fr", None), "b": ("en", 7)}
    assert values(keyed, "lang", "rate") == expected
    keyed.load("t", [stored(tmp_path, "rows.jsonl", '{"id": "a"}\n{"id": "c", "rate": 1}\n')], mode="merge")
    assert values(keyed, "lang", "rate") == {**expected, "a": ("en", 7), "c": ("en", 1)}
    with pytest.raises(InvalidRows, match="'lang'"):
        keyed.mutate([sl.patch("t", "a", {"lang": None})])


def test_a_default_is_stored_once_and_a_later_one_does_not_change_it(keyed: Lake) -> None:
    """Set, changed and taken away: each is for the rows from then on, and the plan says so."""
    assert apply(keyed, {"rate": {"type": "long?", "default": 8}}) == ["set default rate"]
    keyed.mutate([sl.put("t", {"id": "eight"})])
    assert apply(keyed, {"rate": {"type": "long?", "default": None}}) == ["drop default rate"]
    keyed.mutate([sl.put("t", {"id": "none"})])
    assert values(keyed, "rate") == {"old": (7,), "eight": (8,), "none": (None,)}
    assert apply(keyed, {"lang": {"type": "string", "default": None}}) == ["drop default lang"]
    with pytest.raises(InvalidRows, match="'lang'"):
        keyed.mutate([sl.put("t", {"id": "more"})])
    assert apply(keyed, {"rate": "long?"}) == [], "a column of which the file says no default keeps the one it has"


def test_the_plan_says_whom_a_default_is_for(keyed: Lake, lake: Lake, tmp_path: Path) -> None:
    """Old rows and new ones; and `schema show` tells it, also to people."""
    target = {**keyed.schema()["tables"]["t"]["columns"], "city": {"type": "string", "default": "Rome"}}
    (step,) = keyed.schema_plan({"tables": {"t": {"columns": target}}}).steps
    assert (step.verdict, step.why) == (
        "safe",
        "rows without it get Rome: those that are there, and those that come and lack it",
    )
    target = {**keyed.schema()["tables"]["t"]["columns"], "rate": {"type": "long", "default": 0}}
    (step,) = keyed.schema_plan({"tables": {"t": {"columns": target}}}).steps
    assert step.why == "rows without one get 0: those that are there, and those that come and lack it"
    shown = strand(keyed.root, "schema", "show").out
    assert "default" in shown and "en" in shown


def test_a_table_that_a_document_makes_has_its_defaults(lake: Lake) -> None:
    """Also one that is added again; the values are stored where partitions, keys and rules look for them."""
    columns = {"id": "string", "region": {"type": "string", "default": "eu"}, "n": {"type": "long", "default": 1}}
    document = {"tables": {"t": {"columns": columns, "partition_by": ["region"]}}}
    lake.schema_apply(document)
    lake.append("t", [{"id": "a"}, {"id": "b", "region": "us"}])
    assert values(lake, "region", "n") == {"a": ("eu", 1), "b": ("us", 1)}
    (ref,) = lake.view().branch_table("t").tail
    with lake.ledger.read() as conn:
        (text,) = conn.exec_driver_sql(f"select partitions from batches where batch_id = '{ref.batch_id}'").one()
    assert set(json.loads(text)) == {'["eu"]', '["us"]'}
    keyed = {"columns": columns, "key": ["id"]}
    lake.schema_apply({"tables": {"k": keyed}})
    lake.mutate([sl.put("k", {"id": "a"})])
    lake.schema_apply({"tables": {"k": {"drop": True}}})
    lake.schema_apply({"tables": {"k": keyed}})
    lake.mutate([sl.put("k", {"id": "b"})])
    assert values(lake, "region", table="k") == {"b": ("eu",)}


def test_constraints_judge_a_default_like_any_value(keyed: Lake) -> None:
    """Unique: the second row that lacks it is refused. A reference: what it names must be there."""
    keyed.schema_apply({"tables": {"team": {"columns": {"id": "string"}, "key": ["id"]}}})
    columns = {"id": "string", "code": {"type": "string?", "default": "x"}, "team": {"type": "string?", "default": "a"}}
    rules = ["unique(code)", "reference(team -> team)"]
    keyed.schema_apply({"tables": {"u": {"columns": columns, "key": ["id"], "constraints": rules}}})
    with pytest.raises((Conflict, InvalidRows), match="team"):
        keyed.mutate([sl.put("u", {"id": "1"})])
    keyed.mutate([sl.put("team", {"id": "a"}), sl.put("u", {"id": "1"})])
    with pytest.raises((Conflict, InvalidRows), match="code"):
        keyed.mutate([sl.put("u", {"id": "2"})])
    keyed.mutate([sl.put("u", {"id": "2", "code": None})])
    assert values(keyed, "code", "team", table="u") == {"1": ("x", "a"), "2": (None, "a")}


def test_what_tells_rows_apart_or_their_age_has_no_default(lake: Lake) -> None:
    """Rows that lack a key would all be the same row, and a default says nothing of how old a row is."""
    for which in ({"key": ["id"]}, {"row_key": ["id"]}):
        with pytest.raises(BadRequest, match="part of the key"):
            lake.schema_plan({"tables": {"n": {"columns": {"id": {"type": "string", "default": "a"}}, **which}}})
    lake.create_table("t", {"id": "string", "ts": "timestamp?", "day": "date?"}, row_key=["id"])
    with pytest.raises(BadRequest, match="part of the key"):
        apply(lake, {"id": {"type": "string", "default": "a"}})
    apply(lake, {"day": {"type": "date?", "default": "2026-01-01"}})
    with pytest.raises(BadRequest, match="have a default in 'day'"):
        lake.set_table("t", time_column="day")
    lake.set_table("t", time_column="ts")
    with pytest.raises(BadRequest, match="how old rows are"):
        apply(lake, {"ts": {"type": "timestamp?", "default": "2026-01-01T00:00:00Z"}})


OF_EVERY_TYPE: dict[str, tuple[str, Any, Any]] = {
    "string": ("string", "", ""),
    "long": ("long", -(2**63), -(2**63)),
    "int": ("int", 5, 5),
    "double": ("double", 0.1, 0.1),
    "float": ("float", 0.5, 0.5),
    "boolean": ("boolean", False, False),
    "date": ("date", "2026-01-31", dt.date(2026, 1, 31)),
    "timestamp": ("timestamp", "2026-01-31T01:02:03.000004+01:00", dt.datetime(2026, 1, 31, 0, 2, 3, 4, dt.UTC)),
    "decimal": ("decimal(10,2)", "12.50", Decimal("12.50")),
    "json": ("json", {"b": [1, None], "a": "ü"}, '{"b":[1,null],"a":"ü"}'),
}


def test_every_type_that_can_have_a_default(log: Lake) -> None:
    """Dicts and Arrow get the same value as the rows that were there, and a document that is shown means the same."""
    apply(
        log, {f"c_{name}": {"type": type_, "default": default} for name, (type_, default, _) in OF_EVERY_TYPE.items()}
    )
    log.append("t", [{"id": "dict"}])
    log.append("t", pa.table({"id": ["arrow"]}))
    stored = values(log, *(f"c_{name}" for name in OF_EVERY_TYPE))
    assert stored["dict"] == stored["arrow"] == stored["old"]
    expected = tuple(value for _, _, value in OF_EVERY_TYPE.values())
    assert stored["old"][:-1] == expected[:-1]
    assert json.loads(stored["old"][-1]) == json.loads(expected[-1])


def test_f76_a_default_that_came_or_changed_since_makes_no_other_call(lake: Lake) -> None:
    """The same rows under the same key are those that were given, whatever the table has put into them."""
    lake.create_table("t", {"id": "string"})
    rows = [{"id": "a"}, {"id": "b"}]
    ways: dict[str, Callable[[], Any]] = {
        "dicts": lambda: lake.append("t", rows, actor="me", idempotency_key="dicts"),
        "lines": lambda: lake.append_json_lines(
            "t", [json.dumps(row).encode() for row in rows], actor="me", idempotency_key="lines"
        ),
        "Arrow": lambda: lake.append("t", pa.Table.from_pylist(rows), actor="me", idempotency_key="Arrow"),
    }
    first = {name: way() for name, way in ways.items()}
    for default in (1, 2, None):
        apply(lake, {"n": {"type": "long?", "default": default}})
        for name, way in ways.items():
            again = way()
            assert (again.repeated, again.first_seq) == (True, first[name].first_seq), (name, default)
    apply(lake, {"n": {"type": "long?", "default": 3}})
    lake.append("t", rows, actor="me", idempotency_key="under a default")
    apply(lake, {"n": {"type": "long?", "default": 4}})
    assert lake.append("t", rows, actor="me", idempotency_key="under a default").repeated
    with pytest.raises(Conflict):
        lake.append("t", [{"id": "a", "n": 3}, {"id": "b", "n": 3}], actor="me", idempotency_key="under a default")


def test_a_default_goes_with_its_branch(keyed: Lake) -> None:
    """It is a branch's own until it is merged; two that differ are a conflict, and who looks back finds the older."""
    keyed.branch("x")
    apply(keyed, {"rate": {"type": "long?", "default": 8}}, branch="x")
    keyed.mutate([sl.put("t", {"id": "x"})], branch="x")
    keyed.mutate([sl.put("t", {"id": "main"})])
    assert (values(keyed, "rate", branch="x")["x"], values(keyed, "rate")["main"]) == ((8,), (7,))
    keyed.merge("x")
    keyed.mutate([sl.put("t", {"id": "after"})])
    assert values(keyed, "rate") == {"old": (7,), "x": (8,), "main": (7,), "after": (8,)}
    keyed.merge("main", "x")
    apply(keyed, {"rate": {"type": "long?", "default": 1}}, branch="x")
    apply(keyed, {"rate": {"type": "long?", "default": 2}})
    with pytest.raises(MergeConflict) as raised:
        keyed.merge("x")
    assert [conflict.kind for conflict in raised.value.conflicts] == ["divergent_schema"]
    keyed.merge("x", resolve="theirs")
    keyed.mutate([sl.put("t", {"id": "theirs"})])
    assert values(keyed, "rate")["theirs"] == (1,)


def test_a_stored_schema_of_before_has_the_default_of_its_old_rows() -> None:
    """A lake whose defaults were for old rows alone: the same value is for the new ones. One taken away stays away."""
    fills = [{"below": 5, "value": "1", "adds": True}, {"below": 9, "value": "2"}]
    column = {"name": "n", "type": "long", "nullable": False, "fills": fills}
    before = from_json({"columns": [column]})
    assert default_value(before.column("n")) == 2
    without = from_json({"columns": [{**column, "default": None}]})
    assert default_value(without.column("n")) is None
    assert default_value(before.fresh().column("n")) == 2, "a new table of that shape has it too"
    for schema in (before, without):
        assert from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_the_table_of_purges_may_have_columns_with_a_default(lake: Lake) -> None:
    """Its rows are ours and lack them; before, a required column made it another table, and the next purge a second."""
    create_table(
        lake.ledger, PURGES, parse_mapping(PURGE_COLUMNS), branch="main", actor="tester", row_key=list(PURGE_KEY)
    )
    apply(lake, {"why": {"type": "string", "default": "unknown"}}, table=PURGES)
    with lake.ledger.read() as conn:
        state = find_tombstones(conn)
    assert state is not None and state.table.name == PURGES
    tombstone = {"purge_id": "1", "table_name": "t", "table_id": "1", "predicate": "n = 1", "rows": 1, "upto_seq": 9}
    assert from_dicts([tombstone], state.schema).to_pylist() == [{**tombstone, "why": "unknown"}]


def test_large_loads_and_micro_batches_get_defaults_from_spark(
    log: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are validated by Spark's workers, by the same code; log tables and keyed ones."""
    monkeypatch.setattr(load_request, "SMALL_BYTES", -1)
    lines = '{"id": "large"}\n{"id": "null", "rate": null}\n'
    log.load("t", [stored(tmp_path, "rows.jsonl", lines)])
    context = log.spark.sparkContext
    context.setLocalProperty("sql.streaming.queryId", "a-query")
    try:
        log.foreach_batch("t")(log.spark.createDataFrame([("batch",)], "id string"), 0)
    finally:
        context.setLocalProperty("sql.streaming.queryId", None)
    assert values(log, "lang", "rate") == {
        "old": ("en", 7), "large": ("en", 7), "null": ("en", None), "batch": ("en", 7)
    }  # fmt: skip
    log.schema_apply({"tables": {"k": {"columns": {"id": "string", "rate": RATE}, "key": ["id"]}}})
    log.load("k", [stored(tmp_path, "keyed.jsonl", lines)])
    log.flush("k")
    assert values(log, "rate", table="k") == {"large": (7,), "null": (None,)}
