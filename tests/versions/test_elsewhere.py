"""Keyed tables in the rest of the house: sinks, exports, Spark, maintenance, backups."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.backup import backup
from strandline.lake import Lake
from strandline.reports.doctor import examine
from strandline.views.spark_sql import spark_sql
from tests.backup.test_restore import restored
from tests.kit import strand
from tests.versions.kit import make_people, people, versions
from tests.versions.test_branches import forked, on


def changed(lake: Lake) -> None:
    """Two people, of whom one was changed and one is gone; the last change is not flushed."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "name": "Ann"}), sl.put("person", {"id": "b"})])
    lake.flush("person")
    lake.mutate([sl.patch("person", "a", {"age": 1}), sl.delete("person", "b")])


def test_a_blob_sink_delivers_every_version_once(lake: Lake, tmp_path: Path) -> None:
    """With the commit that wrote it, and whether it says that the row is gone."""
    changed(lake)
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path / 'blobs'}"})
    lake.tick("archive")
    lake.mutate([sl.put("person", {"id": "c"})])
    lake.tick("archive")
    assert lake.tick("archive") == []
    objects = sorted((tmp_path / "blobs").rglob("*.parquet"))
    rows = [row for path in objects for row in pq.read_table(path).to_pylist()]
    told = [(row["id"], row["_removed"], row["_commit"], row["_seq"]) for row in rows]
    assert told == versions(lake, "id, _removed, _commit, _seq")


def test_both_engines_and_an_export_show_the_current_rows(lake: Lake) -> None:
    """Spark has the same rows as DuckDB, under both names; an export has the current ones."""
    changed(lake)
    view = lake.view()
    for query in (
        "select id, name, age from person order by id",
        "select p.id, count(*) from person p join `person$log` v on p.id = v.id group by 1 order by 1",
    ):
        _, rows = spark_sql(view, lake.spark, query)
        assert rows == view.sql(query.replace("`", '"')).rows()
    exported = strand(lake, "export", "--tables", "person").out.splitlines()
    assert [orjson.loads(line) for line in exported] == [
        {"id": "a", "name": "Ann", "age": 1, "tags": None, "note": None}
    ]


def test_maintenance_backup_and_doctor_know_keyed_tables(lake: Lake, tmp_path: Path) -> None:
    """Compaction, expiry and sweep leave every version; a backup and the doctor find nothing odd."""
    changed(lake)
    lake.flush("person")
    before = people(lake), versions(lake, "id, name, age, _seq, _commit, _removed")
    lake.compact("person")
    lake.expire("person", grace_s=0)
    lake.sweep(grace_s=0)
    assert len(lake.view().files("person")) == 1
    assert (people(lake), versions(lake, "id, name, age, _seq, _commit, _removed")) == before
    backup(lake, tmp_path / "backup")
    assert examine(lake, deep=True) == []
    lake.mutate([sl.patch("person", "a", {"age": 2}), sl.insert("person", {"id": "b"})])
    assert people(lake) == [("a", "Ann", 2), ("b", None, None)]


@pytest.mark.sqlite_only
def test_branches_are_backed_up_restored_and_examined(lake: Lake, tmp_path: Path) -> None:
    """Each with its own rows, the unflushed ones too; one that was deleted leaves nothing odd."""
    forked(lake)
    lake.flush("person", branch="x")
    lake.branch("gone")
    lake.mutate([sl.put("person", {"id": "q"})], branch="gone")
    lake.flush("person", branch="gone")
    lake.delete_branch("gone", force=True)
    lake.mutate([sl.put("person", {"id": "q"})], branch="x")
    assert examine(lake, deep=True) == []
    expected = {name: on(lake, name) for name in ("main", "x")}
    backup(lake, tmp_path / "backup", with_data=True)
    lake.close()
    shutil.rmtree(lake.root)
    restored(tmp_path / "backup", lake.root)
    with Lake(lake.root) as again:
        assert {branch.name: on(again, branch.name) for branch in again.branches()} == expected
        again.mutate([sl.insert("person", {"id": "new"})], branch="x")
        again.flush("person", branch="x")
        assert on(again, "x", "id") == [*((key,) for key, _ in expected["x"][:1]), ("new",), ("q",)]
        assert examine(again, deep=True) == []
