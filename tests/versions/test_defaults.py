"""Defaults: whether a row lacks a value is decided by the schema it was written under, on its own branch.

So a merge gives the same rows in every order of changes and schema changes, a given null stays null, and whatever
writes rows again writes the default out.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.errors import MergeConflict
from strandline.lake import Lake
from strandline.ledger.changes.mutations import Brought
from strandline.ledger.history import merges
from strandline.model.schema.reshape import reshaped
from strandline.model.schema.schema import Gone, Schema, from_json
from strandline.model.schema.types import OPEN, Column, Fill, Primitive
from strandline.operations.merge import merge
from strandline.reports.doctor import examine
from tests.kit import in_ledger, strand_json

LONG, STRING = Primitive("long"), Primitive("string")
CITY = {"type": "string?", "default": "Rome"}


def make(lake: Lake, *tables: str) -> None:
    """Three rows on main, and a branch x."""
    for table in tables or ("t",):
        lake.create_table(table, {"id": "string", "n": "long?"}, key=["id"])
        lake.mutate([sl.put(table, {"id": key, "n": 0}) for key in "abc"])
    lake.branch("x")


def apply(lake: Lake, branch: str, columns: dict[str, Any], *without: str, table: str = "t") -> None:
    """Change columns of a table on a branch."""
    now = lake.schema(branch)["tables"][table]["columns"]
    before = {one["rename_from"] for one in columns.values() if isinstance(one, dict) and "rename_from" in one}
    wanted = {name: type_ for name, type_ in now.items() if name not in {*without, *before}} | columns
    lake.schema_apply({"tables": {table: {"columns": wanted}}}, branch=branch)


def rows(lake: Lake, branch: str = "main", at: str | None = None, table: str = "t") -> dict[str, dict[str, Any]]:
    """The rows by key."""
    return {row.pop("id"): row for row in lake.view(branch, at=at).table(table).to_pylist()}


def cities(lake: Lake, branch: str = "main", at: str | None = None) -> dict[str, Any]:
    return {key: row["city"] for key, row in rows(lake, branch, at).items()}


STEPS = ("column", "given", "patched", "made")
EXPECTED = {"a": (1, "Rome"), "b": (0, None), "c": (0, "Rome"), "g": (None, None), "m": (None, "Rome")}


def step(lake: Lake, name: str, table: str = "t") -> None:
    """One of the changes: x knows the column and gives nulls, main does not."""
    match name:
        case "column":
            apply(lake, "x", {"city": CITY}, table=table)
        case "given":
            lake.mutate([sl.patch(table, "b", {"city": None}), sl.put(table, {"id": "g", "city": None})], branch="x")
        case "patched":
            lake.mutate([sl.patch(table, "a", {"n": 1})])
        case "made":
            lake.mutate([sl.put(table, {"id": "m"})])


def test_f78_a_merge_gives_the_same_rows_in_every_order(lake: Lake) -> None:
    """Both ways: rows that main wrote have the default, whenever that was; nulls that x gave are nulls."""
    every = [one for one in itertools.permutations(STEPS) if one.index("column") < one.index("given")]
    orders = {f"t{number}": order for number, order in enumerate(every)}
    make(lake, *orders)
    for table, order in orders.items():
        for name in order:
            step(lake, name, table)
    for source, into in (("x", "main"), ("main", "x")):
        assert lake.merge(source, into).outcome == "merged"
        for table, order in orders.items():
            found = {key: (row["n"], row["city"]) for key, row in rows(lake, into, table=table).items()}
            assert found == EXPECTED, order
    assert list(lake.diff("main", "x")) == []


@pytest.mark.both_ledgers
def test_f78_every_way_of_looking_agrees_after_a_merge(lake: Lake) -> None:
    """The rows, the log, the change feed, a diff and the past: also when both went on, and were merged again."""
    make(lake)
    for name in STEPS:
        step(lake, name)
    before = lake.log(limit=1)[0].commit_id
    merged = lake.merge("x").commit
    lake.mutate([sl.patch("t", "a", {"n": 2}), sl.patch("t", "m", {"city": None})])
    apply(lake, "x", {"town": {"type": "string?", "rename_from": "city"}, "zip": {"type": "long?", "default": 7}})
    lake.mutate([sl.patch("t", "c", {"town": "Ulm"})], branch="x")
    assert lake.merge("x").outcome == "merged", "which rows have a default is no change of a column"
    expected = {"a": (2, "Rome", 7), "b": (0, None, 7), "c": (0, "Ulm", 7), "g": (None, None, 7), "m": (None, None, 7)}
    assert {key: tuple(row.values()) for key, row in rows(lake).items()} == expected
    assert cities(lake, at=merged) == {key: city for key, (_, city) in EXPECTED.items()}
    assert "city" not in rows(lake, at=before)["a"]
    told: dict[str, Any] = {}
    for change in lake.changes("t"):
        assert change.before == told.get(change.key["id"])
        told[change.key["id"]] = change.after
    assert {key: (row["n"], row["town"], row["zip"]) for key, row in told.items()} == expected
    assert {one.key["id"] for one in lake.diff("x", "main")} == {"a", "m"}
    assert lake.merge("main", "x").outcome == "merged"
    assert rows(lake, "x") == rows(lake)
    lake.branch("y", merged)
    assert cities(lake, "y") == cities(lake, at=merged)
    assert lake.merge("main", "y").outcome in ("merged", "fast_forward")
    assert rows(lake, "y") == rows(lake)
    assert examine(lake, deep=True) == []


def test_f78_a_column_that_comes_back_has_values_where_it_had_some(lake: Lake) -> None:
    """Dropped on main, changed on x: of rows that main wrote meanwhile it is the default, of the others what it was."""
    make(lake)
    apply(lake, "main", {"city": CITY})
    lake.mutate([sl.patch("t", "a", {"city": None}), sl.patch("t", "b", {"city": "Ulm"})])
    lake.merge("main", "x")
    apply(lake, "main", {}, "city")
    lake.mutate([sl.put("t", {"id": "m", "n": 1}), sl.patch("t", "c", {"n": 1})])
    apply(lake, "x", {"town": {"type": "string?", "rename_from": "city"}})
    with pytest.raises(MergeConflict) as told:
        lake.merge("x")
    assert [one.kind for one in told.value.conflicts] == ["divergent_schema"]
    commit = lake.merge("x", resolve="theirs").commit
    expected = {"a": None, "b": "Ulm", "c": "Rome", "m": "Rome"}
    lake.mutate([sl.put("t", {"id": "z", "town": None})])
    assert {key: row["town"] for key, row in rows(lake).items()} == {**expected, "z": None}
    assert {key: row["town"] for key, row in rows(lake, at=commit).items()} == expected


def test_f78_the_same_change_on_both_sides_leaves_each_its_own_rows(lake: Lake) -> None:
    """Who looks back at the merge reads the target's rows by the target's schema, though the source's is newer."""
    make(lake)
    apply(lake, "x", {"city": CITY})
    lake.mutate([sl.put("t", {"id": "m"})])
    lake.merge("x")
    for branch in ("main", "x"):
        lake.schema_apply(
            {"tables": {"t": {**lake.schema(branch)["tables"]["t"], "constraints": ["range(n: 0..9)"]}}}, branch=branch
        )
    lake.mutate([sl.put("t", {"id": "g", "city": None})], branch="x")
    commit = lake.merge("x").commit
    expected = {"a": "Rome", "b": "Rome", "c": "Rome", "m": "Rome", "g": None}
    assert cities(lake) == expected
    assert cities(lake, at=commit) == expected
    lake.branch("y", commit)
    assert cities(lake, "y") == expected


@pytest.mark.parametrize("first", ["x", "main"])
def test_f78_a_column_that_came_to_be_required_has_its_default_on_both_sides(lake: Lake, first: str) -> None:
    """Nulls that either side gave before are its default; who looks back before that finds the null."""
    make(lake)
    changes = {
        "x": lambda: apply(lake, "x", {"n": {"type": "long", "default": 5}}),
        "main": lambda: lake.mutate([sl.patch("t", "a", {"n": None})]),
    }
    for branch in (first, *(one for one in changes if one != first)):
        changes[branch]()
    past = lake.log(limit=1)[0].commit_id
    lake.mutate([sl.put("t", {"id": "m"})])
    commit = lake.merge("x").commit
    for at in (None, commit):
        assert {key: row["n"] for key, row in rows(lake, at=at).items()} == {"a": 5, "b": 0, "c": 0, "m": 5}
    assert rows(lake, at=past)["a"] == {"n": None}


def test_f78_a_large_merge_and_what_rewrites_rows_write_the_default_out(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merge, flush, fold, compaction and purge: no file lacks it then, nulls that were given stay, and Spark agrees."""
    make(lake)
    lake.mutate([sl.put("t", {"id": "z", "n": 9})])
    lake.flush("t")
    for name in STEPS:
        step(lake, name)
    lake.flush("t")
    monkeypatch.setattr(merge, "MOST_ROWS", 0)
    lake.merge("x")
    expected = {key: city for key, (_, city) in EXPECTED.items()}
    assert cities(lake) == {**expected, "z": "Rome"}
    lake.fold("t")
    assert written_cities(lake, "t$state") == {*expected.items(), ("z", "Rome")}
    lake.mutate([sl.put("t", {"id": "last", "city": None})])
    lake.purge("t", "id = 'z'")
    lake.flush("t")
    lake.compact("t")
    lake.fold("t")
    assert written_cities(lake, "t", "t$state") == {*expected.items(), ("b", "Rome"), ("last", None)}
    assert cities(lake) == {**expected, "last": None}
    shown = {row["id"]: row["city"] for row in lake.view().spark("t").collect()}
    assert shown == cities(lake)
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path / 'blobs'}"})
    lake.tick("archive")
    sent = [row for path in sorted((tmp_path / "blobs").rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    log = lake.view().sql('select id, city from "t$log" order by _seq').rows()
    assert [(row["id"], row["city"]) for row in sent if "city" in row] == log
    assert examine(lake, deep=True) == []


def written(lake: Lake, *names: str) -> list[dict[str, Any]]:
    """The rows in the data files of main's logs and states, as they were written."""
    files = [file for name in names for file in lake.view().files(name)]
    return [row for file in files for row in pq.read_table(file.path.removeprefix("file://")).to_pylist()]


def written_cities(lake: Lake, *names: str) -> set[tuple[str, str | None]]:
    return {(row["id"], row.get("city")) for row in written(lake, *names)}


def test_f78_what_retention_purge_and_erasure_write_again_has_its_default(lake: Lake) -> None:
    """Each takes something out of a file whose rows are older than a column: what stays has the column's default."""
    now = dt.datetime.now(dt.UTC)
    lake.create_table("events", {"id": "string", "ts": "timestamp", "note": "string?"})
    ages = {"old": 100, "gone": 1, "kept": 1}
    lake.append("events", [{"id": key, "ts": now - dt.timedelta(days=age), "note": key} for key, age in ages.items()])
    lake.flush("events")
    apply(lake, "main", {"city": CITY}, table="events")
    lake.append("events", [{"id": "given", "ts": now, "city": None}])
    lake.flush("events")
    lake.set_table("events", time_column="ts", retention_s=30 * 24 * 3600)
    assert lake.retain("events")[0].detail["pruned"] == 1
    assert written_cities(lake, "events") == {("gone", "Rome"), ("kept", "Rome"), ("given", None)}
    apply(lake, "main", {"zip": {"type": "long?", "default": 7}}, table="events")
    lake.purge("events", "id = 'gone'")
    assert {row["id"]: row.get("zip") for row in written(lake, "events")} == {"kept": 7, "given": None}
    apply(lake, "main", {"code": {"type": "string?", "default": "c"}}, table="events")
    without = {"tables": {"events": lake.schema()["tables"]["events"]}}
    del without["tables"]["events"]["columns"]["note"]
    lake.schema_apply(without, hard=True)
    (kept,) = (row for row in written(lake, "events") if row["id"] == "kept")
    assert [kept[name] for name in ("note", "city", "zip", "code")] == [None, "Rome", 7, "c"]
    shown = {key: (row["city"], row["zip"], row["code"]) for key, row in rows(lake, table="events").items()}
    assert shown == {"kept": ("Rome", 7, "c"), "given": (None, 7, "c")}


# -- without a lake ----------------------------------------------------------------------------------------------------


def test_f78_a_schema_of_format_1_reads_as_it_did() -> None:
    """Its defaults are for rows below a seq; what is new is left out where there is nothing to say."""
    doc = {
        "columns": [
            {"name": "id", "type": "string", "nullable": False},
            {"name": "n", "type": "long", "nullable": True, "fills": [{"below": 5, "value": "7"}]},
        ],
        "constraints": [],
    }
    schema = from_json(doc)
    assert schema.to_json() == doc
    assert schema.column("n").fills == (Fill(5, "7"),)
    written = Schema((Column("id", STRING),))
    batch = pa.record_batch({"id": ["a", "b"]})
    assert reshaped(batch, written, schema.columns, pa.array([4, 5])).column("n").to_pylist() == [7, None]
    told = schema.along(written).numbered(9)
    assert told.column("n").fills == (Fill(9, "7"),), "for the rows of a branch that knew nothing of it"


def test_f78_a_schema_keeps_gaps_and_what_is_gone() -> None:
    """As the ledger stores it, and as rows are read by it."""
    own = Schema((Column("id", STRING), Column("n", LONG, True, "n", (Fill(5, "7", adds=True),))))
    dropped = Schema(own.columns[:1]).along(own).numbered(20)
    assert dropped.gone == (Gone(own.columns[1], 20),)
    back = own.along(dropped).numbered(30)
    assert back.column("n").fills == (Fill(5, "7", ((20, 30),), adds=True),) and back.gone == ()
    for schema in (own, dropped, back):
        assert from_json(schema.to_json()) == schema
    assert back.says_the_same(own) and back != own
    batch = pa.record_batch({"id": ["a"] * 6})
    seqs = pa.array([4, 5, 19, 20, 29, 30])
    shown = reshaped(batch, dropped, back.columns, seqs).column("n").to_pylist()
    assert shown == [7, None, None, 7, 7, None]


def test_f78_a_large_merge_that_format_1_staged_is_published_as_it_would_have_been(lake: Lake) -> None:
    """Its intent does not say where its rows begin: a required column's default is for all rows below the merge."""
    make(lake)
    columns = (Column("id", STRING), Column("n", LONG, False, "n", (Fill(3, "7"),)))
    doc = merges._carried(Brought("t", Schema(columns), 3), 50)
    assert (doc.version, doc.schema.column("n").fills) == (None, (Fill(50, "7"),))
    nullable = Schema((columns[0], Column("n", LONG, True, "n", (Fill(3, "7"),))))
    assert merges._carried(Brought("t", nullable, 3), 50) == Brought("t", nullable, 3)


def test_f78_a_ledger_of_format_1_goes_on(lake: Lake) -> None:
    """A column whose default was declared before: its rows have it, and those that a merge meets too."""
    make(lake)
    apply(lake, "x", {"city": CITY})
    for version, definition in in_ledger(lake, "select version, definition from schemas"):
        older = re.sub(r',\s*"adds":\s*true', "", definition)
        in_ledger(lake, "update schemas set definition = :older where version = :version", older=older, version=version)
    assert not in_ledger(lake, "select * from schemas where definition like '%adds%'")
    step(lake, "given")
    step(lake, "patched")
    assert lake.merge("x").outcome == "merged"
    assert cities(lake) == {"a": "Rome", "b": None, "c": "Rome", "g": None}
    assert strand_json(lake, "schema", "show", "t")
    assert OPEN not in {fill.below for one in lake.view().branch_table("t").schema.columns for fill in one.fills}
