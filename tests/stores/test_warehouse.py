"""A lake whose warehouse is in a bucket: the same lake, and nothing of it on the local disk but the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector

from strandline import create, failpoints
from strandline.config import Store
from strandline.engines import storage
from strandline.errors import BadRequest, Busy, Environment, HistoryGone, NotFound
from strandline.lake import Lake
from tests.acceptance.conftest import bulky
from tests.kit import (
    assert_recovered,
    crash,
    log_part_ids,
    make_table,
    message,
    messages,
    part_ids,
    reopened,
    strand,
    strand_json,
)
from tests.s3 import S3

__all__ = ["bulky"]


@pytest.fixture
def distant(s3: S3, tmp_path: Path) -> Iterator[Lake]:
    """A lake in a bucket, with a table."""
    with create.create(tmp_path / "lake", warehouse=s3.uri, store=s3.store) as lake:
        make_table(lake)
        yield lake


def objects(s3: S3) -> list[str]:
    """Every object of the bucket."""
    found = s3.system.get_file_info(FileSelector(s3.bucket, recursive=True))
    return [info.path for info in found if info.is_file]


def test_rows_are_flushed_read_and_deduplicated_in_a_bucket(distant: Lake, s3: S3) -> None:
    """Flush, dedupe against the log, SQL on both engines, and a range: all of it from objects."""
    distant.append("messages", messages(0, 10))
    distant.flush("messages")
    distant.append("messages", [message(3), *messages(10, 15)])
    assert part_ids(distant) == [row["part_id"] for row in messages(0, 15)]
    (flushed,) = distant.flush("messages")
    assert (flushed.rows, flushed.duplicates_dropped) == (5, 1)
    assert log_part_ids(distant) == part_ids(distant)
    view = distant.view()
    assert view.spark("messages").count() == 15
    first = next(iter(view.read("messages", until=5)))
    assert first.column("part_id").to_pylist()[0] == "p0"
    assert all(file.path.startswith(f"{s3.uri}/") for file in view.files("messages"))
    assert any(name.endswith(".parquet") for name in objects(s3))
    assert not (distant.root / "warehouse").exists()
    assert not [name for name in objects(s3) if "/_staging/" in name], "an operation left its folder"


@pytest.mark.parametrize(
    ("at", "outcome"),
    [
        ("stage.after_files", "rolled_back"),
        ("stage.after_append", "rolled_back"),
        ("publish.before_commit", "rolled_forward"),
        ("publish.after_commit", None),
    ],
)
def test_f02_a_flush_into_a_bucket_that_dies_leaves_the_old_state_or_the_new_one(
    distant: Lake, at: str, outcome: str | None
) -> None:
    """The ledger decides, so a store changes nothing about it."""
    distant.append("messages", messages(0, 10))
    failpoints.arm(f"{at}=raise")
    with crash(distant):
        distant.flush("messages")
    failpoints.arm(None)
    again = reopened(distant)
    assert_recovered(again, outcome)
    again.flush("messages")
    expected = sorted(row["part_id"] for row in messages(0, 10))
    assert sorted(name for name in log_part_ids(again) if not name.startswith("probe")) == expected
    again.close()


def test_files_of_a_bucket_are_loaded_and_adopted(distant: Lake, s3: S3, bulky: None) -> None:
    """What lies in the store already comes in as files do from a disk, and once."""
    rows = pa.Table.from_pylist(messages(0, 40))
    pq.write_table(rows, f"{s3.bucket}/inbox/a.parquet", filesystem=s3.system)
    with s3.system.open_output_stream(f"{s3.bucket}/inbox/b.jsonl") as stream:
        stream.write(b"\n".join(b'{"part_id":"j%d","source":"x","n":1,"body":"y"}' % n for n in range(5)))
    address = f"s3://{s3.bucket}/inbox"
    assert distant.load("messages", [f"{address}/*.parquet", f"{address}/b.jsonl"]).rows == 45
    distant.load("messages", [f"{address}/*.parquet", f"{address}/b.jsonl"])
    assert len(part_ids(distant)) == 45
    distant.adopt("taken", f"{address}/a.parquet")
    assert distant.view().sql("SELECT count(*) FROM taken").rows() == [(40,)]


def test_every_kind_of_sink_delivers_from_a_bucket(distant: Lake, s3: S3, tmp_path: Path) -> None:
    """Spark's workers read the unit for a blob; the copy is staged beside the warehouse; a restart repeats nothing."""
    distant.append("messages", messages(0, 20))
    distant.add_sink("blobs", "blob", {"uri": f"s3://{s3.bucket}/blobs", "endpoint": s3.endpoint})
    distant.add_sink("disk", "blob", {"uri": f"file://{tmp_path}/blobs", "format": "jsonl"})
    target = {"uri": f"jdbc:sqlite:{tmp_path}/other.db", "warehouse": f"file://{tmp_path}/other"}
    distant.add_sink("copy", "iceberg", {**target, "catalog": "jdbc"})
    done = distant.tick()
    assert {(one.sink, one.rows) for one in done} == {("blobs", 20), ("disk", 20), ("copy", 20)}
    assert all(one.rows == 0 for one in distant.tick())
    (blob,) = [name for name in objects(s3) if name.startswith(f"{s3.bucket}/blobs/") and name.endswith(".parquet")]
    assert pq.read_table(blob, filesystem=s3.system).num_rows == 20


def test_an_object_that_is_gone_is_a_typed_error(distant: Lake, s3: S3) -> None:
    """Never missing rows."""
    distant.append("messages", messages(0, 5))
    distant.flush("messages")
    (file,) = distant.view().files("messages")
    s3.system.delete_file(file.path.removeprefix("s3://"))
    with pytest.raises(HistoryGone):
        distant.view().sql("SELECT * FROM messages").rows()
    with pytest.raises(HistoryGone):
        list(distant.view().read("messages"))


def test_the_command_line_makes_and_reads_a_lake_in_a_bucket(s3: S3, tmp_path: Path) -> None:
    """What `init` was told is in the config, so that nobody has to say it again."""
    folder = tmp_path / "lake"
    made = strand_json(tmp_path, "init", str(folder), "--warehouse", s3.uri, "--endpoint", s3.endpoint)
    assert made["warehouse"] == s3.uri
    assert f'endpoint = "{s3.endpoint}"' in (folder / "strand.toml").read_text()
    strand_json(folder, "table", "create", "t", "--columns", "a:string")
    (folder / "rows.jsonl").write_text('{"a":"x"}\n')
    strand_json(folder, "append", "t", str(folder / "rows.jsonl"))
    assert strand_json(folder, "sql", "SELECT a FROM t")["rows"] == [{"a": "x"}]


def test_a_bucket_that_is_not_there_wrong_credentials_and_nobody_at_home_are_told_at_once(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is left behind."""
    with pytest.raises(NotFound, match="no bucket"):
        create.create(tmp_path / "a", warehouse="s3://nobody-has-this/x", store=s3.store)
    with pytest.raises(Busy):
        create.create(tmp_path / "b", warehouse="s3://bucket/x", store=Store("http://127.0.0.1:9"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Environment, match="does not let us in"):
        create.create(tmp_path / "c", warehouse=s3.uri, store=s3.store)
    assert not any((tmp_path / name).exists() for name in "abc")


def test_one_bucket_is_in_one_place_for_a_process(distant: Lake, s3: S3) -> None:
    """An address says the bucket alone: at two endpoints it would be read from the wrong one."""
    with pytest.raises(BadRequest, match="can't be at"):
        storage.know(f"s3://{s3.bucket}/other", Store("http://127.0.0.1:9"))


def test_a_wrong_address_of_a_lake_in_a_bucket_is_refused(s3: S3, tmp_path: Path) -> None:
    answer = strand(tmp_path, "init", str(tmp_path / "x"), "--warehouse", "s3://")
    assert answer.code == 3 and "s3://bucket/prefix" in answer.err
