"""A copy in another catalog, or the ledger that fills it, put back from an older copy: nothing is lost or repeated."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest
from sqlalchemy import update

from strandline.lake import Lake
from strandline.ledger.database import schema as db
from tests.acceptance.places import Copies
from tests.delivery import LAST, assert_once, streams
from tests.kit import call, messages, strand_json


def parts(*ranges: tuple[int, int]) -> list[str]:
    return [f"p{n}" for first, last in ranges for n in range(first, last)]


def copy_of(folder: Path) -> Path:
    """What a backup of a folder has."""
    return Path(shutil.copytree(folder, folder.with_name("kept")))


def put_back(folder: Path, kept: Path) -> None:
    """The folder as it was then."""
    shutil.rmtree(folder)
    kept.rename(folder)


def mark_of(copies: Copies) -> tuple[int, int, dict[str, object]]:
    """Epoch, seq and what else the copy's only mark says."""
    ((key, text),) = [item for item in copies.table().properties.items() if item[0].startswith("strandline.mark.")]
    epoch, seq = key.split(".")[-2:]
    return int(epoch), int(seq), orjson.loads(text)


def test_f68_a_copy_restored_to_before_a_rewind_gets_everything_behind_its_mark(source: Lake, copies: Copies) -> None:
    """It knows nothing of the second epoch: the third begins at its mark, and what went to the second comes again."""
    copies.add(source)
    source.tick("archive")
    kept = copy_of(copies.file.parent)
    strand_json(source, "sink", "rewind", "archive", "--stream", "messages", "--to", str(LAST - 1), "--yes")
    source.append("messages", messages(10, 12))
    source.tick("archive")
    assert mark_of(copies)[:2] == (2, LAST + 2)
    put_back(copies.file.parent, kept)
    source.append("messages", messages(12, 14))
    (done,) = source.tick("archive")
    assert done.outcome == "delivered" and "rewind" in (done.note or "")
    assert_once(parts((0, 14)), copies.rows())
    assert mark_of(copies)[:2] == (3, LAST + 4), "an old number was used again"


def test_f68_a_copy_goes_on_without_removed_rows_by_a_persons_word(source: Lake, copies: Copies) -> None:
    """It parks, says how to go on, and the copy keeps up to where rows may be missing."""
    copies.add(source)
    source.tick("archive")
    kept = copy_of(copies.file.parent)
    source.append("messages", messages(10, 12))
    source.tick("archive")
    with source.ledger.write() as txn:
        txn.conn.execute(update(db.stream_heads).values(pruned_upto=LAST + 1))
    put_back(copies.file.parent, kept)
    source.append("messages", messages(12, 13))
    (done,) = source.tick("archive")
    assert (done.outcome, done.rows) == ("parked", 0) and "--past-hole" in (done.error or "")
    refused = call("--lake", source.root, "--json", "sink", "continue", "archive")
    assert refused.code == 4 and refused.error["detail"]["kind"] == "hole"
    strand_json(source, "sink", "continue", "archive", "--past-hole")
    source.tick("archive")
    assert_once(parts((0, 13)), copies.rows())  # the rows were only said to be removed: what is left is sent
    assert mark_of(copies)[2]["hole_upto"] == LAST + 1


@pytest.mark.sqlite_only
def test_f72_a_lake_put_back_by_hand_sends_only_what_the_copy_lacks(source: Lake, copies: Copies) -> None:
    """Both are at the same seq, with other rows: the stream parks; by a person's word the lacking rows come, once."""
    copies.add(source)
    source.tick("archive")
    source.append("messages", messages(10, 12))  # a lag at the moment of the copy
    root = source.root
    source.close()
    kept = copy_of(root)
    with Lake(root) as going_on:
        going_on.append("messages", messages(20, 22))
        going_on.tick("archive")
    put_back(root, kept)
    with Lake(root) as again:
        again.append("messages", messages(30, 32))  # under the seqs of the lost ones
        again.flush("messages")
        (done,) = again.tick("archive")
        assert done.outcome == "parked" and "sink continue" in (done.error or "")
        assert_once(parts((0, 12), (20, 22)), copies.rows())
        (continued,) = strand_json(again, "sink", "continue", "archive")
        assert (continued["compared"], continued["rows"]) == (True, 4)
        again.tick("archive")
        again.append("messages", messages(32, 33))
        again.tick("archive")
        (state,) = streams(again, "archive")
    assert_once(parts((0, 12), (20, 22), (30, 33)), copies.rows())
    assert state.mark is not None and state.mark.epoch == 2
