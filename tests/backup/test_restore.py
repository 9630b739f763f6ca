"""F57: a lake that is restored goes on, and so do its sinks, with every new row and no old one twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from strandline import backup as backing_up
from strandline.backup import backup
from strandline.lake import Lake
from strandline.ledger.place.restores import JUMP
from strandline.model.delivery.generations import are_of_one_backup
from tests import files
from tests.backup.conftest import Ledgers
from tests.delivery import assert_once, forward, receiving, streams
from tests.kit import call, make_table, message, messages, part_ids, strand_json
from tests.maintenance.test_expire import data_files


def restored(folder: Path, root: Path, *arguments: str) -> dict[str, object]:
    """`strand restore`, which must end well."""
    done = call("--json", "restore", folder, root, *arguments)
    assert done.code == 0, done.out + done.err
    return dict(done.json)


def blobs(folder: Path) -> list[str]:
    """What a folder of blobs holds."""
    return [part for path in sorted(folder.rglob("*.parquet")) for part in pq.read_table(path)["part_id"].to_pylist()]


def copied(lake: Lake, folder: Path) -> list[str]:
    """What another catalog holds."""
    from strandline.engines.spark.session import lake_session

    properties = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/catalog.db",
        "jdbc.schema-version": "V1",
        "warehouse": f"file://{folder}/warehouse",
    }
    session = lake_session(lake.spark, properties, "strand")
    return [row.part_id for row in session.table("strand.lake.messages").collect()]


def test_f57_a_lake_that_is_restored_twice_delivers_every_new_row_and_no_old_one_twice(
    lake: Lake, ledgers: Ledgers, tmp_path: Path
) -> None:
    """Backup; more is appended and delivered; restore, append, tick; the same backup again, append, tick.

    At the time of the backup some rows are delivered, some are in the log and some in the tail; afterwards the
    destinations get all of them, and rows that the backup has never seen. The ledger is lost each time.
    """
    root, folder = lake.root, tmp_path / "backup"
    copy = tmp_path / "copy"
    copy.mkdir()
    with receiving(tmp_path / "receiver") as receiver:
        make_table(lake)
        forward(lake, receiver)
        lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path}/archive"}, check=False)
        settings = {"uri": f"jdbc:sqlite:{copy}/catalog.db", "warehouse": f"file://{copy}/warehouse"}
        lake.add_sink("copy", "iceberg", settings, check=False)
        lake.append("messages", messages(0, 4))
        lake.tick()
        lake.append("messages", messages(4, 7))
        lake.flush("messages")
        lake.append("messages", messages(7, 10))
        expected = [f"p{n}" for n in range(10)]
        assert strand_json(lake, "backup", str(folder))["seq"] == 11
        lake.append("messages", messages(10, 13, "lost"))
        lake.tick()
        lost = [f"lost{n}" for n in range(10, 13)]
        lake.close()
        for number in (1, 2):
            ledgers.lose(root)
            answer = restored(folder, root, "--replace", *ledgers.named())
            assert number * JUMP < int(answer["raised_to"]) < number * JUMP + 100  # type: ignore[call-overload]
            assert {one["epoch"] for one in answer["asked"]} == {number + 1}  # type: ignore[attr-defined]
            with Lake(root) as again:
                again.append("messages", messages(0, 5, f"new{number}-"))
                # An append of the same key as a lost row: it is new here, and must arrive.
                if number == 2:
                    again.append("messages", [message(10, "lost")])
                assert {ticked.outcome for ticked in again.tick()} == {"delivered"}
                assert strand_json(again, "doctor")["findings"] == []
                expected += [f"new{number}-{n}" for n in range(5)]
                found = {"receiver": receiver.rows(), "blobs": blobs(tmp_path / "archive"), "copy": copied(again, copy)}
        for where, rows in found.items():
            counted = Counter(rows)
            assert counted.pop("lost10") == 2, f"{where}: the row of the lost time, and the one with its key"
            assert_once([*expected, *lost[1:]], list(counted.elements()))
        seqs = receiver.rows("select _origin_seq from messages")
        assert len(set(seqs)) == len(seqs), "a seq of the lost time was given out again"


def test_f57_a_restored_generation_names_its_backup(lake: Lake, ledgers: Ledgers, tmp_path: Path) -> None:
    """Of two restores of one backup a destination's mark says as much as of one: both have all of its rows."""
    root, generations = lake.root, [lake.ledger.generation()]
    for name in ("one", "other"):
        backup(lake, tmp_path / name)
    lake.close()
    for name in ("one", "one", "other"):
        ledgers.lose(root)
        restored(tmp_path / name, root, "--replace", *ledgers.named())
        with Lake(root, read_only=True) as again:
            generations.append(again.ledger.generation())
    first, once, twice, other = generations
    assert len({*generations}) == 4 and are_of_one_backup(once, twice)
    assert not are_of_one_backup(twice, other) and not are_of_one_backup(first, once)


def test_f57_a_destination_that_is_down_gets_nothing_until_it_was_asked(
    lake: Lake, ledgers: Ledgers, tmp_path: Path
) -> None:
    """The restore says so, doctor too; when it is up again the next tick asks it and goes on without a repeat."""
    root, folder = lake.root, tmp_path / "backup"
    with receiving(tmp_path / "receiver") as receiver:
        make_table(lake)
        forward(lake, receiver)
        lake.append("messages", messages(0, 4))
        lake.tick()
        backup(lake, folder)
        lake.append("messages", messages(4, 8, "lost"))
        lake.tick()
        lake.close()
        receiver.kill()
        ledgers.lose(root)
        answer = restored(folder, root, "--replace", *ledgers.named())
        (asked,) = answer["asked"]  # type: ignore[misc]
        assert (asked["watermark"], asked["error"] is None) == (None, False)
        assert {finding["kind"] for finding in answer["findings"]} == {"not_asked", "destination"}  # type: ignore[attr-defined]
        with Lake(root) as again:
            again.append("messages", messages(0, 3, "new"))
            assert [ticked.outcome for ticked in again.tick()] == ["failed"]
            receiver.start()
            assert [ticked.outcome for ticked in again.tick()] == ["delivered"]
            (state,) = streams(again)
            assert state.mark is not None
            assert state.mark.epoch == 2
            assert strand_json(again, "doctor")["findings"] == []
        wanted = [*(f"p{n}" for n in range(4)), *(f"lost{n}" for n in range(4, 8)), *(f"new{n}" for n in range(3))]
        assert_once(wanted, receiver.rows())
        seqs = receiver.rows("select _origin_seq from messages")
        assert len(set(seqs)) == len(seqs), "a seq of the lost time was given out again"


def test_a_receivers_mark_inside_a_restored_senders_unit_hides_no_row(
    lake: Lake, ledgers: Ledgers, tmp_path: Path
) -> None:
    """A copy of the backup knows nothing of the first restore's jump, so both give out the same seqs; the epoch tells
    them apart.
    """
    import shutil

    root, folder = lake.root, tmp_path / "backup"
    with receiving(tmp_path / "receiver") as receiver:
        make_table(lake)
        forward(lake, receiver)
        lake.append("messages", messages(0, 4))
        lake.tick()
        backup(lake, folder)
        shutil.copytree(folder, tmp_path / "other")
        lake.close()
        restored(folder, root, "--replace", *ledgers.named())
        with Lake(root) as first:
            first.append("messages", messages(0, 6, "a"))
            first.tick()
        ledgers.lose(root)
        receiver.kill()
        restored(tmp_path / "other", root, "--replace", *ledgers.named())
        with Lake(root) as second:
            (ack,) = [second.append("messages", messages(0, 9, "b"))]
            assert ack.first_seq == 5 + JUMP + 1, "the seqs of the first restore again"
            receiver.start()
            second.tick()
        prefixes = {"p": 4, "a": 6, "b": 9}
        assert_once([f"{prefix}{n}" for prefix, count in prefixes.items() for n in range(count)], receiver.rows())


def test_rows_of_the_tail_and_operations_under_way_come_back(lake: Lake, ledgers: Ledgers, tmp_path: Path) -> None:
    """A backup in the middle of a flush: recovery decides about it after the restore, and no row is there twice."""
    from strandline import failpoints
    from tests.kit import crash, reopened

    make_table(lake)
    lake.append("messages", messages(0, 5))
    failpoints.arm("staged.after_commit=raise")
    with crash(lake):
        lake.flush("messages")
    with reopened(lake, recovering=False) as half:
        backup(half, tmp_path / "backup")
    with Lake(lake.root) as on:
        on.append("messages", messages(5, 9, "lost"))
        on.flush("messages")
    answer = restored(tmp_path / "backup", lake.root, "--replace", *ledgers.named())
    assert answer["ok"], answer
    with Lake(lake.root) as again:
        assert part_ids(again) == [f"p{n}" for n in range(5)]
        again.append("messages", [message(9)])
        again.flush("messages")
        assert strand_json(again, "doctor", "--deep")["findings"] == []


def test_a_lost_disk_is_restored_with_its_data(lake: Lake, ledgers: Ledgers, tmp_path: Path) -> None:
    """With --with-data everything is in the backup: the whole folder is gone, and comes back to the same place."""
    import shutil

    make_table(lake)
    lake.append("messages", messages(0, 5))
    lake.flush("messages")
    lake.append("messages", messages(5, 8))
    document = strand_json(lake, "backup", str(tmp_path / "backup"), "--with-data", "--link")
    assert document["with_data"]
    lake.close()
    files.remove_all(lake)
    shutil.rmtree(lake.root)
    restored(tmp_path / "backup", lake.root, *ledgers.named())
    with Lake(lake.root) as again:
        assert part_ids(again) == [f"p{n}" for n in range(8)]
        again.flush("messages")
        assert strand_json(again, "doctor", "--deep")["findings"] == []


def test_a_backup_beside_a_writer_is_one_moment(lake: Lake, ledgers: Ledgers, tmp_path: Path) -> None:
    """Appends and flushes go on meanwhile, and what is restored is what doctor calls well."""
    from threading import Event, Thread

    make_table(lake)
    stop, acked = Event(), []

    def write() -> None:
        while not stop.is_set():
            n = len(acked)
            lake.append("messages", [message(n)])
            acked.append(n)
            if n % 20 == 19:
                lake.flush("messages")

    writer = Thread(target=write)
    writer.start()
    try:
        while len(acked) < 60:
            stop.wait(0.01)
        before = len(acked)
        backup(lake, tmp_path / "backup")
        after = len(acked)
    finally:
        stop.set()
        writer.join()
    lake.close()
    answer = restored(tmp_path / "backup", lake.root, "--replace", *ledgers.named())
    assert answer["ok"], answer
    with Lake(lake.root) as again:
        found = part_ids(again)
        assert before <= len(found) <= after + 1
        assert found == [f"p{n}" for n in range(len(found))]
        again.flush("messages")
        assert strand_json(again, "doctor", "--deep")["findings"] == []


def test_what_a_backup_names_is_held_against_expiry(lake: Lake, ledgers: Ledgers, tmp_path: Path) -> None:
    """Maintenance goes on between the backup and the restore, and leaves what the backup needs."""
    make_table(lake)
    for n in range(3):
        lake.append("messages", messages(n * 5, n * 5 + 5))
        lake.flush("messages")
    strand_json(lake, "backup", str(tmp_path / "backup"), "--keep", "1h")
    lake.compact("messages")
    lake.append("messages", messages(15, 20, "lost"))
    lake.flush("messages")
    lake.expire("messages", grace_s=0)
    lake.sweep("messages", grace_s=0)
    lake.close()
    answer = restored(tmp_path / "backup", lake.root, "--replace", *ledgers.named())
    assert answer["ok"], answer
    with Lake(lake.root) as again:
        assert part_ids(again) == [f"p{n}" for n in range(15)]
        assert strand_json(again, "doctor", "--deep")["findings"] == []
        (done,) = again.expire("messages", grace_s=0)
        assert (done.after["snapshots"], done.complete) == (1, True), "what the backup did not hold is gone already"
        assert part_ids(again) == [f"p{n}" for n in range(15)]


@pytest.mark.sqlite_only
def test_what_a_backup_copies_is_held_while_it_copies(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance that comes in the middle takes away no file that is yet to be copied; afterwards it does."""
    import shutil

    make_table(lake)
    for n in range(2):
        lake.append("messages", messages(n * 5, n * 5 + 5))
        lake.flush("messages")
    keep, files = backing_up._keep, data_files(lake)

    def maintain() -> None:
        lake.compact("messages")
        lake.expire("messages", grace_s=0)
        lake.sweep(grace_s=0)

    def come_between(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(backing_up, "_keep", keep)
        maintain()
        return keep(*arguments, **options)

    monkeypatch.setattr(backing_up, "_keep", come_between)
    backup(lake, tmp_path / "backup", with_data=True)
    assert files < data_files(lake), "nothing was compacted"
    maintain()
    assert not files & data_files(lake), "the backup holds them for longer than it needs"
    lake.close()
    shutil.rmtree(lake.root)
    restored(tmp_path / "backup", lake.root)
    with Lake(lake.root) as again:
        again.expire("messages", grace_s=0)
        assert part_ids(again) == [f"p{n}" for n in range(10)]
