"""A folder of blobs, or the ledger that fills it, put back from an older copy: nothing is lost, nothing comes twice."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import update

from strandline.lake import Lake
from strandline.ledger.database import schema as db
from tests.acceptance.places import Blobs
from tests.delivery import LAST, assert_once, streams
from tests.kit import call, messages, strand_json


def copy_of(blobs: Blobs) -> Path:
    """A copy of the folder, as a backup of it would be."""
    return Path(shutil.copytree(blobs.folder, blobs.folder.with_name("copy")))


def put_back(blobs: Blobs, copy: Path) -> None:
    shutil.rmtree(blobs.folder)
    copy.rename(blobs.folder)


def assert_apart(blobs: Blobs) -> None:
    """Within an epoch no two objects cover the same seq."""
    covered = Counter((path.parent, seq) for path in blobs.objects() for seq in seqs_of(path))
    assert [place for place, times in covered.items() if times > 1] == []


def seqs_of(path: Path) -> range:
    since, until = map(int, path.stem.split("-"))
    return range(since + 1, until + 1)


def test_f68_a_folder_restored_from_an_older_copy_gets_what_it_lost(source: Lake, blobs: Blobs) -> None:
    """The rows behind its mark come again, in an epoch that was never used, and the new ones with them."""
    blobs.add(source)
    source.tick("archive")
    copy = copy_of(blobs)
    source.append("messages", messages(10, 14))
    source.tick("archive")
    put_back(blobs, copy)
    source.append("messages", messages(14, 16))
    source.tick("archive")
    assert_once([f"p{n}" for n in range(16)], blobs.rows())
    assert {path.parent.name for path in blobs.objects()} == {"all", "e2"}
    assert_apart(blobs)
    source.append("messages", messages(16, 18))
    source.tick("archive")
    assert_once([f"p{n}" for n in range(18)], blobs.rows())


def test_f68_a_folder_restored_to_before_a_rewind_loses_nothing(source: Lake, blobs: Blobs) -> None:
    """It knows nothing of the second epoch: the third begins at its mark, so `e2` is never written with other rows."""
    blobs.add(source)
    source.tick("archive")
    copy = copy_of(blobs)
    strand_json(source, "sink", "rewind", "archive", "--stream", "messages", "--to", "0", "--yes")
    source.append("messages", messages(10, 12))
    source.tick("archive")
    put_back(blobs, copy)
    source.append("messages", messages(12, 14))
    source.tick("archive")
    assert_once([f"p{n}" for n in range(14)], blobs.rows())
    assert {path.parent.name for path in blobs.objects()} == {"all", "e3"}
    assert_apart(blobs)


def test_f68_a_copy_from_before_the_streams_first_unit_gets_everything(source: Lake, blobs: Blobs) -> None:
    """Only the marker is there, and nothing of the stream."""
    blobs.add(source)
    source.tick("archive")
    shutil.rmtree(blobs.folder / "messages")
    source.append("messages", messages(10, 12))
    source.tick("archive")
    assert_once([f"p{n}" for n in range(12)], blobs.rows())


def test_f68_units_without_rows_are_no_loss(source: Lake, blobs: Blobs) -> None:
    """The mark moves with them, though they leave no object: a quiet stream stays in its epoch."""
    blobs.add(source, where="n < 10")
    source.tick("archive")
    for first in (20, 30):
        source.append("messages", messages(first, first + 3))
        source.tick("archive")
    (state,) = streams(source, "archive")
    assert state.mark is not None and state.mark.epoch == 1 and state.tally.withheld == 6
    assert blobs.ranges() == [(0, LAST)]


def test_f68_a_prefix_of_an_older_version_goes_on_and_gets_its_marks(source: Lake, blobs: Blobs) -> None:
    """Names alone prove no loss: its last units may have had no rows."""
    blobs.add(source, where="n < 10")
    source.tick("archive")
    source.append("messages", messages(20, 23))
    source.tick("archive")
    with source.ledger.write() as txn:
        nothing = {"acked_epoch": None, "chunk_since": None, "chunk_until": None, "chunk_digest": None}
        txn.conn.execute(update(db.watermarks).values(**nothing))
    (mark,) = blobs.folder.rglob("_mark.json")
    mark.unlink()
    source.append("messages", [{**row, "n": 1} for row in messages(30, 32)])
    source.tick("archive")
    assert blobs.ranges() == [(0, LAST), (LAST + 3, LAST + 5)]
    assert_once([*(f"p{n}" for n in range(10)), "p30", "p31"], blobs.rows())
    assert mark.exists()


def test_f68_a_folder_that_a_reader_empties_parks_its_stream_once(source: Lake, blobs: Blobs) -> None:
    """The mark is there and no object: a person says whether they were lost, or are taken away on purpose."""
    blobs.add(source)
    source.tick("archive")
    for path in blobs.objects():
        path.unlink()
    source.append("messages", messages(10, 12))
    (done,) = source.tick("archive")
    assert done.outcome in ("parked", "failed") and "every other object" in (done.error or "")
    strand_json(source, "sink", "set", "archive", "--set", "taken_away=true")
    strand_json(source, "sink", "retry", "archive")
    source.tick("archive")
    assert blobs.rows() == ["p10", "p11"]
    for path in blobs.objects():
        path.unlink()
    strand_json(source, "sink", "set", "archive", "--set", "taken_away=")
    assert strand_json(source, "sink", "retry", "archive", "--take-over")["begun_anew"] == 1
    source.tick("archive")
    assert_once([f"p{n}" for n in range(12)], blobs.rows())


def test_f80_an_old_disk_that_comes_back_gets_what_went_to_the_new_one(source: Lake, blobs: Blobs) -> None:
    """Both carry the sink's marker; the one that is mounted says how far it is."""
    blobs.add(source)
    source.tick("archive")
    shelf = blobs.folder.rename(blobs.folder.with_name("shelf"))
    source.append("messages", messages(10, 12))
    source.tick("archive")
    strand_json(source, "sink", "retry", "archive", "--take-over")
    source.tick("archive")
    shutil.rmtree(blobs.folder)
    shelf.rename(blobs.folder)
    source.append("messages", messages(12, 14))
    source.tick("archive")
    assert_once([f"p{n}" for n in range(14)], blobs.rows())
    assert {path.parent.name for path in blobs.objects()} == {"all", "e3"}


@pytest.mark.sqlite_only
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_f72_a_lake_put_back_by_hand_sends_only_what_the_folder_lacks(source: Lake, blobs: Blobs, form: str) -> None:
    """New rows have old seqs: the stream parks; by a person's word the rows come that are not there, each once."""
    blobs.add(source, format=form)
    source.tick("archive")
    source.append("messages", messages(10, 14))  # a lag at the moment of the copy
    root = source.root
    source.close()
    shelf = Path(shutil.copytree(root, root.with_name("shelf")))
    with Lake(root) as going_on:
        going_on.append("messages", messages(14, 18))
        going_on.tick("archive")
    shutil.rmtree(root)
    shelf.rename(root)
    with Lake(root) as again:
        again.append("messages", messages(100, 103))
        (done,) = again.tick("archive")
        assert done.outcome == "parked" and "sink continue" in (done.error or "")
        before = rows_of(blobs)
        assert call("--lake", root, "--json", "sink", "continue", "archive").code == 0
        again.tick("archive")
        again.append("messages", messages(103, 105))
        again.tick("archive")
    assert_once([*before, *(f"p{n}" for n in range(100, 105))], rows_of(blobs))


def rows_of(blobs: Blobs) -> list[str]:
    """Every row of every object, of either format."""
    import json

    import zstandard

    lines = [
        line
        for path in sorted(blobs.folder.rglob("*.jsonl.zst"))
        for line in zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().splitlines()
    ]
    return [*blobs.rows(), *(json.loads(line)["part_id"] for line in lines)]
