"""Names: tables that are ours, and folders that may be called whatever a file system takes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline import config, create
from strandline.backup import backup
from strandline.errors import BadRequest
from strandline.lake import Lake
from strandline.ledger.changes import purges
from strandline.ledger.tables import tables
from strandline.model.schema.schema import parse_mapping
from strandline.operations.maintain.purge_elsewhere import ensure_tombstones
from tests.kit import call, log_part_ids, make_table, messages, part_ids


def make_own(lake: Lake, name: str, **columns: str) -> None:
    """A table that a user made when such names were free."""
    tables.create_table(lake.ledger, name, parse_mapping(columns), branch="main", actor="tester")


@pytest.mark.parametrize("name", ["strand_purges", "strand_mine", "STRAND_Mine"])
def test_f83_names_that_begin_with_strand_are_ours(lake: Lake, tmp_path: Path, name: str) -> None:
    """No way to make a table takes one: neither Python, a command, an adoption nor a schema document."""
    with pytest.raises(BadRequest, match="Strandline's own"):
        lake.create_table(name, {"id": "string"})
    with pytest.raises(BadRequest, match="Strandline's own"):
        lake.create_table(name, {"id": "string"}, key=["id"])
    with pytest.raises(BadRequest, match="Strandline's own"):
        lake.schema_apply({"tables": {name: {"columns": {"id": "string"}, "key": ["id"]}}})
    made = call("--lake", lake.root, "--json", "table", "create", name, "--columns", "id:string")
    assert (made.code, made.error["code"]) == (3, "bad_request")
    folder = tmp_path / "parts"
    folder.mkdir()
    pq.write_table(pa.table({"id": ["a"]}), folder / "part.parquet")
    with pytest.raises(BadRequest, match="Strandline's own"):
        lake.adopt(name, str(folder))
    assert lake.view().tables == []


@pytest.mark.both_ledgers
def test_f83_a_table_of_a_user_that_has_such_a_name_keeps_working(lake: Lake) -> None:
    """It takes rows and changes of its schema, can be dropped, and the table of purges gets another name."""
    make_own(lake, "strand_purges", id="string")
    make_own(lake, "strand_purges_2", id="string")
    ensure_tombstones(lake.context, "tester")
    ensure_tombstones(lake.context, "tester")
    assert lake.view().tables == ["strand_purges", "strand_purges_2", "strand_purges_3"]
    with lake.ledger.read() as conn:
        found = purges.find_tombstones(conn)
    assert found is not None and found.table.name == "strand_purges_3"
    lake.append("strand_purges", [{"id": "a"}])
    doc = lake.schema()
    doc["tables"]["strand_purges"]["columns"]["more"] = "string?"
    lake.schema_apply(doc)
    lake.append("strand_purges", [{"id": "b", "more": "c"}])
    lake.schema_apply({"tables": {"strand_purges": {"drop": True}}})
    with pytest.raises(BadRequest, match="purged"):
        lake.schema_apply({"tables": {"strand_purges_3": {"drop": True}}})
    ensure_tombstones(lake.context, "tester")
    assert lake.view().tables == ["strand_purges_2", "strand_purges_3"]


def test_f83_more_columns_in_the_table_of_purges_make_no_second_one(lake: Lake) -> None:
    """Somebody gave it a column that may be null: purges are recorded there all the same."""
    ensure_tombstones(lake.context, "tester")
    doc = lake.schema()
    doc["tables"]["strand_purges"]["columns"]["ticket"] = "string?"
    lake.schema_apply(doc)
    ensure_tombstones(lake.context, "tester")
    assert lake.view().tables == ["strand_purges"]


ODD = ["50%", "a%20b", "%2e%2e", "h#sh", "q?x", "a&b=c;d", "ü ñ☃", "it's", 'say "hi"', "[x]{y}*", "a+b", "back\\slash"]


def test_f83_a_lake_can_be_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """Each has a ledger of its own, also beside one whose name is what the other's would be decoded."""
    for name in ["a b", *ODD]:
        with create.create(tmp_path / name / "lake") as lake:
            make_table(lake)
            lake.append("messages", messages(0, 1, prefix=f"{name}-"))
            assert (
                lake.config.ledger_path == (tmp_path / name / "lake" / "ledger.db")
                and lake.config.ledger_path.is_file()
            )
    for name in ["a b", *ODD]:
        with sl.open(tmp_path / name / "lake", read_only=True) as lake:
            assert part_ids(lake) == [f"{name}-0"]
            assert config.load(lake.root).catalog_uri.count("?") == 1


def test_f83_a_lake_in_a_folder_of_any_name_is_flushed_delivered_and_backed_up(tmp_path: Path) -> None:
    """Spark, Iceberg, its catalog, DuckDB, blobs, backup and restore all take the name as it is."""
    from strandline.restore import restore

    base = tmp_path / "50%20 #&? 'ü\""
    (tmp_path / "50  #&? 'ü\"").mkdir()  # what a decoder would make of it
    with create.create(base / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 3))
        lake.flush()
        lake.append("messages", messages(3, 4))
        assert log_part_ids(lake) == ["p0", "p1", "p2"] and part_ids(lake) == ["p0", "p1", "p2", "p3"]
        lake.add_sink("archive", "blob", {"uri": f"file://{base}/blobs"})
        assert [done.rows for done in lake.tick("archive")] == [4]
        lake.compact("messages")
        backup(lake, base / "backup")
    restore(base / "backup", base / "lake", replace=True)
    with Lake(base / "lake") as lake:
        assert part_ids(lake) == ["p0", "p1", "p2", "p3"]
        lake.append("messages", messages(4, 5))
        lake.flush()
        assert log_part_ids(lake) == [f"p{n}" for n in range(5)]
    delivered = [pq.ParquetFile(file).read() for file in base.glob("blobs/**/*.parquet")]
    assert sorted(row for table in delivered for row in table["part_id"].to_pylist()) == ["p0", "p1", "p2", "p3"]
    assert list((tmp_path / "50  #&? 'ü\"").iterdir()) == []
