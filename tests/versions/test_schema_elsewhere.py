"""Schema changes in the rest of the house: flushed and compacted rows, Spark, the past, branches, sinks, loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline import failpoints
from strandline.backup import backup
from strandline.lake import Lake
from strandline.ledger.rows import batches
from strandline.operations.load import load_request
from strandline.reports.doctor import examine
from tests.backup.test_restore import restored
from tests.kit import crash, make_table, messages, reopened
from tests.versions.test_schema import Document, apply, column, on_both, renamed, rows, two_people, without

MANY = {"id": "string", "name": "string?", "n": "int?", "x": "float?", "d": "decimal(4,2)?", "gone": "long?"}


def put(lake: Lake, key: str, branch: str = "main", **fields: Any) -> None:
    """Write a row."""
    lake.mutate([sl.put("t", {"id": key, **fields})], branch=branch)


def all_changes(table: Document) -> None:
    """One of each kind of step that touches columns."""
    columns = table["columns"]
    columns.update(n="long?", x="double?", d="decimal(10,2)?")
    columns["called"] = {"type": columns.pop("name"), "rename_from": "name"}
    del columns["gone"]
    columns["city"] = {"type": "string", "default": "Rome"}
    columns["born"] = {"type": "date?", "default": "2026-01-31"}
    columns["seen"] = {"type": "timestamp?", "default": "2026-01-31T10:00:00+02:00"}


ALL = "id, called, n, x, cast(d as varchar(20)) d, city, cast(born as varchar(20)) born"
BEFORE = ("a", "Ann", 1, 0.5, "1.50", "Rome", "2026-01-31")
AFTER = ("b", "Bob", 2**40, 0.1, "12345678.90", "Paris", None)
OLD = [("a", "Ann", 1, 0.5, 7)]


def fill(lake: Lake, key: str = "b", branch: str = "main") -> None:
    put(lake, key, branch, called="Bob", n=2**40, x=0.1, d="12345678.90", city="Paris", born=None)


@pytest.mark.parametrize("where", ["tail", "flushed", "compacted", "folded"])
def test_rows_are_the_same_wherever_they_are(lake: Lake, where: str) -> None:
    """On both engines, before and after flush and compaction; and as they were, for who looks back."""
    lake.create_table("t", MANY, key=["id"])
    put(lake, "a", name="Ann", n=1, x=0.5, d="1.50", gone=7)
    before = lake.log()[0].commit_id
    if where != "tail":
        lake.flush("t")
    if where == "folded":
        lake.fold("t")
    apply(lake, all_changes, "t")
    fill(lake)

    def check() -> None:
        assert on_both(lake, f"select {ALL} from t order by id") == [BEFORE, AFTER]
        (moment,) = lake.view().sql("select epoch_us(seen) from t where id = 'a'").rows()
        assert moment == (1769846400_000_000,)
        assert lake.view(at=before).sql("select id, name, n, x, gone from t").rows() == OLD

    check()
    lake.flush("t")
    check()
    if where == "compacted":
        lake.compact("t")
        assert len(lake.view().files("t")) == 1
        check()
    if where == "folded":
        lake.fold("t")
        check()
    batches.sweep(lake.ledger, grace_s=0)
    lake.mutate([sl.patch("t", "a", {"n": 2})])
    assert rows(lake, f"select {ALL} from t where id = 'a'") == [(*BEFORE[:2], 2, *BEFORE[3:])]


def test_branches_share_files_and_not_schemas(lake: Lake) -> None:
    """Each reads the same files under its own schema, and writes what the others don't see."""
    two_people(lake)
    lake.flush("person")
    lake.branch("x")
    apply(lake, column("city", {"type": "string?", "default": "Rome"}), branch="x")
    lake.branch("y", from_="x")
    apply(lake, column("city", {"type": "int?", "default": 1}))
    apply(lake, renamed("name", "called"), branch="y")
    lake.mutate([sl.put("person", {"id": "c", "city": "Paris"})], branch="x")
    lake.mutate([sl.put("person", {"id": "c", "city": 2})])
    lake.mutate([sl.put("person", {"id": "c", "city": "Bonn", "called": "Cy"})], branch="y")
    expected = {
        "main": ("id, name, city", [("a", "Ann", 1), ("b", "Bob", 1), ("c", None, 2)]),
        "x": ("id, name, city", [("a", "Ann", "Rome"), ("b", "Bob", "Rome"), ("c", None, "Paris")]),
        "y": ("id, called, city", [("a", "Ann", "Rome"), ("b", "Bob", "Rome"), ("c", "Cy", "Bonn")]),
    }

    def check() -> None:
        for branch, (columns, found) in expected.items():
            assert on_both(lake, f"select {columns} from person order by id", branch) == found

    check()
    for branch in ("y", "main", "x"):
        lake.flush("person", branch=branch)
        check()
        lake.compact("person", branch=branch)
        check()
    apply(lake, column("city", "long?"))
    lake.mutate([sl.put("person", {"id": "d", "city": 2**40})])
    lake.flush("person")
    expected["main"][1].append(("d", None, 2**40))
    check()


def test_a_sink_delivers_rows_as_their_schema_has_them(lake: Lake, tmp_path: Path) -> None:
    """Units that are opened after a change have its columns, with the defaults of rows that lack them."""
    two_people(lake)
    lake.flush("person")
    apply(lake, column("city", {"type": "string?", "default": "Rome"}))
    apply(lake, renamed("name", "called"))
    lake.mutate([sl.put("person", {"id": "c", "called": "Cy"}), sl.put("person", {"id": "d", "city": None})])
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path / 'blobs'}"})
    lake.tick("archive")
    found = [row for path in sorted((tmp_path / "blobs").rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert [(row["id"], row["called"], row["city"]) for row in found] == [
        ("a", "Ann", "Rome"), ("b", "Bob", "Rome"), ("c", "Cy", "Rome"), ("d", None, None),
    ]  # fmt: skip


def test_a_log_table_takes_loads_and_loses_rows_under_a_changed_schema(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bulk loads, dedupe, retention by a condition and purge all find the columns where they are."""
    make_table(lake)
    lake.append("messages", messages(1, 3))
    lake.flush("messages")
    apply(lake, renamed("body", "content"), "messages")
    apply(lake, column("size", {"type": "long", "default": 4}), "messages")
    path = tmp_path / "more.jsonl"
    path.write_text(
        "".join(f'{{"part_id": "p{n}", "source": "x", "n": 1, "content": "b{n}", "size": {n}}}\n' for n in (2, 8, 9))
    )
    monkeypatch.setattr(load_request, "SMALL_BYTES", 0)
    loaded = lake.load("messages", [str(path)])
    assert (loaded.rows, loaded.duplicates_dropped) == (2, 1)
    query = "select part_id, content, size from messages order by _seq"
    expected = on_both(lake, query)
    assert [(row[0], row[2]) for row in expected] == [("p1", 4), ("p2", 4), ("p8", 8), ("p9", 9)]
    lake.purge("messages", "size = 4 and part_id = 'p1' or content = 'b8'")
    assert on_both(lake, query) == [row for row in expected if row[0] in ("p2", "p9")]
    apply(lake, without("content"), "messages")
    lake.compact("messages")
    assert on_both(lake, "select part_id, size from messages order by _seq") == [("p2", 4), ("p9", 9)]


def test_a_load_that_a_change_overtakes_ends_as_if_it_had_come_first(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were validated by the older schema: they have the defaults of rows that were there before."""
    make_table(lake)
    lake.append("messages", messages(1, 2))
    monkeypatch.setattr(load_request, "SMALL_BYTES", 0)
    path = tmp_path / "more.jsonl"
    path.write_text('{"part_id": "p8", "source": "x", "n": 8, "body": "eight"}\n')
    failpoints.arm("load.after_parts=raise")
    with crash(lake):
        lake.load("messages", [str(path)])
    lake = reopened(lake)

    def change(table: Document) -> None:
        renamed("body", "content")(table)
        table["columns"]["size"] = {"type": "long", "default": 4}

    apply(lake, change, "messages")
    lake.append("messages", [{"part_id": "p9", "source": "x", "n": 9, "content": "nine", "size": 9}])
    assert lake.load("messages", [str(path)]).rows == 1
    found = on_both(lake, "select part_id, content, size from messages order by part_id")
    assert found[1:] == [("p8", "eight", 4), ("p9", "nine", 9)] and found[0][2] == 4


def test_the_doctor_and_a_backup_know_changed_schemas(lake: Lake, tmp_path: Path) -> None:
    """After every kind of step, flush, fold and compaction, on two branches, nothing looks odd; and all comes back."""
    lake.create_table("t", MANY, key=["id"])
    put(lake, "a", name="Ann", n=1, x=0.5, d="1.50", gone=7)
    lake.flush("t")
    lake.branch("x")
    apply(lake, all_changes, "t")
    apply(lake, without("gone"), "t", "x")
    fill(lake)
    lake.flush("t")
    lake.compact("t")
    lake.fold("t")
    assert examine(lake, deep=True) == []
    backup(lake, tmp_path / "backup", with_data=True)
    there = lake.schema("x")
    lake.close()
    shutil.rmtree(lake.root)
    restored(tmp_path / "backup", lake.root)
    with Lake(lake.root) as again:
        assert rows(again, f"select {ALL} from t order by id") == [BEFORE, AFTER]
        assert again.schema("x") == there
        assert examine(again, deep=True) == []
