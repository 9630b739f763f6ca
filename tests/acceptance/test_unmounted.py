"""Destinations that are suddenly empty: a disk that is not mounted, another bucket, a catalog that begins anew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector, FileType

from strandline.lake import Lake
from strandline.ledger.workers.jobs import read_jobs
from strandline.operations.core.fence import Fence
from strandline.worker.loop import Worker
from tests.acceptance.places import Blobs, Copies
from tests.delivery import assert_once, streams
from tests.kit import call, log_part_ids, make_table, messages, strand_json
from tests.s3 import S3


@pytest.fixture
def mounted(tmp_path: Path) -> Blobs:
    """A folder on a disk of its own: `tmp_path/disk` is its mount point."""
    return Blobs(tmp_path / "disk" / "archive")


def unmount(tmp_path: Path) -> Path:
    """Take the disk away; the mount point stays, empty."""
    disk = (tmp_path / "disk").rename(tmp_path / "shelf")
    (tmp_path / "disk").mkdir()
    return disk


def remount(tmp_path: Path) -> None:
    """Put the disk back over whatever was written below it."""
    shutil.rmtree(tmp_path / "disk", ignore_errors=True)
    (tmp_path / "shelf").rename(tmp_path / "disk")


@pytest.mark.parametrize("mount_point", [True, False])
def test_f80_a_blob_folder_that_is_not_mounted_parks_its_sink(
    source: Lake, mounted: Blobs, tmp_path: Path, mount_point: bool
) -> None:
    """Nothing is written below the mount point, and no row counts as delivered; `sink retry` goes on after mounting."""
    mounted.add(source)
    source.tick("archive")
    unmount(tmp_path)
    if not mount_point:
        (tmp_path / "disk").rmdir()
    source.append("messages", messages(10, 14))
    for _ in range(2):
        (done,) = source.tick("archive")
        assert (done.outcome, done.rows) == ("parked", 0)
        assert "_strandline.json" in (done.error or "")
    assert list(tmp_path.joinpath("disk").rglob("*")) == [], "something was made below the mount point"
    remount(tmp_path)
    assert strand_json(source, "sink", "retry", "archive")["retried"] == 1
    (done,) = source.tick("archive")
    assert (done.outcome, done.rows) == ("delivered", 4)
    assert_once([f"p{n}" for n in range(14)], mounted.rows())


def test_f80_a_new_stream_of_a_sink_whose_marker_is_gone_writes_nothing(
    source: Lake, mounted: Blobs, tmp_path: Path
) -> None:
    """A table that gets its first rows while the disk is away has no watermark of its own, and waits all the same."""
    mounted.add(source)
    source.tick("archive")
    unmount(tmp_path)
    make_table(source, "later")
    source.append("later", messages(0, 3))
    (done,) = source.tick("archive")
    assert done.outcome in ("failed", "parked") and "_strandline.json" in (done.error or "")
    assert list(tmp_path.joinpath("disk").rglob("*")) == []
    told = call("--lake", source.root, "--json", "doctor").json["findings"]
    (finding,) = [one for one in told if one["kind"] == "destination"]
    assert "_strandline.json" in finding["what"] and "retry archive --take-over" in finding["fix"]
    remount(tmp_path)
    call("--lake", source.root, "sink", "retry", "archive")
    source.tick("archive")
    assert sorted(mounted.rows()) == sorted(f"p{n}" for n in [*range(10), *range(3)])


@pytest.mark.both_ledgers
def test_f80_a_person_may_let_a_sink_begin_anew(source: Lake, mounted: Blobs, tmp_path: Path) -> None:
    """`sink retry --take-over` sends everything to the empty place, in an epoch above the old ones."""
    mounted.add(source)
    source.tick("archive")
    unmount(tmp_path)
    source.append("messages", messages(10, 14))
    source.tick("archive")
    done = strand_json(source, "sink", "retry", "archive", "--take-over")
    assert done["begun_anew"] == 1
    source.tick("archive")
    assert_once([f"p{n}" for n in range(14)], mounted.rows())
    assert {path.parent.name for path in mounted.objects()} == {"e2"}
    (state,) = streams(source, "archive")
    assert (state.mark and state.mark.epoch, state.tally.rows) == (2, 14)


def test_f80_an_emptied_or_wrong_bucket_parks_its_sink(source: Lake, s3: S3) -> None:
    """The same in a store: nothing is written to a bucket without the marker."""
    settings = {"uri": f"s3://{s3.bucket}/archive", "endpoint": s3.endpoint, "max_attempts": 1}
    source.add_sink("archive", "blob", settings)
    source.tick("archive")
    for entry in s3.system.get_file_info(FileSelector(s3.bucket, recursive=True)):
        if entry.type == FileType.File:
            s3.system.delete_file(entry.path)
    source.append("messages", messages(10, 12))
    (done,) = source.tick("archive")
    assert (done.outcome, done.rows) == ("parked", 0)
    assert s3.system.get_file_info(f"{s3.bucket}/archive/_strandline.json").size is None
    strand_json(source, "sink", "retry", "archive", "--take-over")
    (done,) = source.tick("archive")
    assert done.rows == 12


def test_f80_a_catalog_that_is_suddenly_empty_parks_its_sink(source: Lake, copies: Copies, tmp_path: Path) -> None:
    """SQLite makes a catalog anew where its file is gone: the copy must not be taken for one that never began."""
    copies.add(source)
    source.tick("archive")
    folder = copies.file.parent
    shelf = folder.rename(tmp_path / "shelf")
    folder.mkdir()
    source.append("messages", messages(10, 12))
    (done,) = source.tick("archive")
    assert (done.outcome, done.rows) == ("parked", 0)
    shutil.rmtree(folder)
    shelf.rename(folder)
    strand_json(source, "sink", "retry", "archive")
    source.tick("archive")
    assert_once([f"p{n}" for n in range(12)], copies.rows())


def test_f80_a_copy_whose_table_was_dropped_begins_anew_by_a_persons_word(source: Lake, copies: Copies) -> None:
    """Only the dropped table does; a table of the sink that is still there goes on."""
    copies.add(source)
    source.tick("archive")
    drop(copies)
    source.append("messages", messages(10, 12))
    assert source.tick("archive")[0].outcome == "parked"
    assert strand_json(source, "sink", "retry", "archive", "--take-over")["begun_anew"] == 1
    source.tick("archive")
    assert_once([f"p{n}" for n in range(12)], copies.rows())


def drop(copies: Copies) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    SqlCatalog("strand", uri=f"sqlite:///{copies.file}", warehouse=copies.warehouse).drop_table("lake.messages")


def test_f80_taking_over_is_for_places_with_a_marker(source: Lake, receiver: Any) -> None:
    """A forward sink has none: its receiver is known by its lake id."""
    from tests.delivery import forward

    forward(source, receiver)
    done = call("--lake", source.root, "--json", "sink", "retry", "central", "--take-over")
    assert done.code == 3 and "forward" in done.error["message"]


def test_a_delivery_waits_for_a_warehouse_that_is_not_mounted(
    source: Lake, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake's own disk is away: nothing is parked, however often it is tried; a file that is really gone is."""
    monkeypatch.setattr("strandline.sinks.tick.WAREHOUSE_WAIT_S", 0.01)
    blobs.add(source)
    warehouse = source.root / "warehouse"
    warehouse.rename(source.root / "shelf")
    for _ in range(3):
        (done,) = source.tick("archive")
        assert (done.outcome, done.rows) == ("failed", 0), done.error
        assert "warehouse" in (done.error or "")
    (source.root / "shelf").rename(warehouse)
    (done,) = source.tick("archive")
    assert (done.outcome, done.rows) == ("delivered", 10)
    source.append("messages", messages(10, 14))
    source.flush("messages")
    for path in (warehouse / "lake").rglob("*.parquet"):
        path.unlink()
    (done,) = source.tick("archive")
    assert done.outcome == "parked"


@pytest.mark.parametrize("place", ["blobs", "copies"])
def test_f103_a_delivery_waits_for_a_warehouse_that_a_new_process_does_not_find(
    source: Lake, place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark is not started there, which is the fence's word and not a missing file's: it passes all the same."""
    monkeypatch.setattr("strandline.sinks.tick.WAREHOUSE_WAIT_S", 0.01)
    destination = request.getfixturevalue(place)
    destination.add(source)
    source.tick("archive")
    source.append("messages", messages(10, 14))
    source.flush("messages")
    warehouse, shelf = source.root / "warehouse", source.root / "shelf"
    warehouse.rename(shelf)
    with Lake(source.root) as lake:
        for _ in range(3):
            (done,) = lake.tick("archive")
            assert (done.outcome, done.rows) == ("failed", 0), done.error
            assert "warehouse" in (done.error or "")
        assert not warehouse.exists(), "something was made where the warehouse was not"
        shelf.rename(warehouse)
        (done,) = lake.tick("archive")
        assert (done.outcome, done.rows) == ("delivered", 4), done.error
    assert_once([f"p{n}" for n in range(14)], destination.rows())


@pytest.mark.parametrize("place", ["blobs", "copies"])
def test_f103_a_warehouse_that_comes_back_while_it_is_asked_for_parks_nothing(
    source: Lake, place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files were gone when they were read, and the warehouse is there when the reason is looked for."""
    destination = request.getfixturevalue(place)
    destination.add(source)
    source.tick("archive")
    source.append("messages", messages(10, 14))
    source.flush("messages")
    warehouse, shelf = source.root / "warehouse", source.root / "shelf"
    warehouse.rename(shelf)
    look = Fence.why_not_there

    def remount_and_look(fence: Fence) -> object:
        if shelf.exists():
            shelf.rename(warehouse)
        return look(fence)

    monkeypatch.setattr(Fence, "why_not_there", remount_and_look)
    (done,) = source.tick("archive")
    assert (done.outcome, done.rows) == ("delivered", 4), done.error
    assert_once([f"p{n}" for n in range(14)], destination.rows())


def test_f103_a_worker_waits_for_a_warehouse_that_is_not_mounted(source: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a flush or maintenance is tried, nothing is parked; when the disk is back, it goes on."""
    monkeypatch.setattr("strandline.ledger.workers.jobs.BACKOFF_S", 0.0)
    monkeypatch.setenv("STRAND_WORKER_ATTEMPTS", "2")
    source.append("messages", messages(10, 14))
    warehouse, shelf = source.root / "warehouse", source.root / "shelf"
    warehouse.rename(shelf)
    with Lake(source.root) as lake:
        worker = Worker(lake)
        for failures in (1, 2, 3):
            worker.once()
            with lake.ledger.read() as conn:
                record = read_jobs(conn)["flush:messages"]
            assert (record.outcome, record.failures) == ("failed", failures), record.error
        assert not warehouse.exists(), "something was made where the warehouse was not"
        shelf.rename(warehouse)
        worker.once()
        with lake.ledger.read() as conn:
            record = read_jobs(conn)["flush:messages"]
        assert (record.outcome, record.failures) == ("done", 0), record.error
        assert sorted(log_part_ids(lake)) == sorted(f"p{n}" for n in range(14))
