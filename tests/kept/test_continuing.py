"""Kept senders, receivers and backups go on: each row arrives once, what waits for a person goes on waiting."""

from __future__ import annotations

import base64
import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import strandline as sl
from strandline.errors import Conflict
from strandline.lake import Lake
from strandline.reports.doctor import examine
from strandline.restore import restore
from tests.delivery import Receiver, assert_once
from tests.kept.conftest import Unpack
from tests.kept.unpacking import Kept, serving_again, shown, unpacked
from tests.kit import in_ledger, message, strand_json

MARKS = (
    "select s.name, w.partition, w.epoch, w.seq, w.rows from watermarks w join sinks s using (sink_id) order by 1, 2"
)
OPEN = "select s.name, d.partition, d.parked from deliveries d join sinks s using (sink_id) order by 1, 2"


@contextmanager
def receiving(kept: Kept) -> Iterator[Receiver]:
    """The kept receiver, served; the kept sender knows its address."""
    receiver = serving_again(kept)
    try:
        strand_json(kept.root, "sink", "set", "central", "--set", f"url={receiver.url}")
        yield receiver
    finally:
        receiver.stop()


def objects(folder: Path) -> dict[str, str]:
    """The objects of the blob sinks, with digests of their bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for top in ("archive", "blobs")
        for path in sorted((folder / top).rglob("*"))
        if path.is_file() and path.suffix in (".parquet", ".zst")
    }


def copied(folder: Path) -> list[str]:
    """What the iceberg sink has put into the other catalog."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("strand", type="sql", uri=f"sqlite:///{folder}/other.db", warehouse=f"file://{folder}/other")
    names = [table for namespace in catalog.list_namespaces() for table in catalog.list_tables(namespace)]
    rows = [row for name in names for row in catalog.load_table(name).scan().to_arrow().to_pylist()]
    return sorted(row["part_id"] for row in rows)


def without_marks(rows: Any) -> Any:
    """Rows as they are, but for the seqs that a receiver gave them."""
    return [{key: value for key, value in row.items() if key != "_seq"} for row in rows]


def test_what_was_being_delivered_arrives_once_and_what_was_parked_stays_so(unpack: Unpack) -> None:
    """Open units first, byte for byte; then what came later; dead letters are replayed; nothing is sent again."""
    with unpack("whole") as kept, receiving(kept) as receiver, Lake(kept.root) as lake:
        lake.recover()
        before, after = kept.noted["before"], kept.noted["after"]
        assert [list(row) for row in in_ledger(lake, MARKS)] == before["streams"]["marks"]
        parked = [entry for entry in before["streams"]["open"] if entry[2]]
        lake.tick()
        assert [list(row) for row in in_ledger(lake, OPEN)] == parked == after["streams"]["open"]
        compared = ["central", '["codex"]']  # the receiver has some of this unit, and no digest: in an epoch of its own
        marks = [[*mark[:2], mark[2] + (mark[:2] == compared), *mark[3:]] for mark in after["streams"]["marks"]]
        assert [list(row) for row in in_ledger(lake, MARKS)] == marks
        stored = objects(kept.folder)
        assert {path: stored[path] for path in before["blobs"]} == before["blobs"], "a unit was written differently"
        assert stored.keys() == after["blobs"].keys()
        assert copied(kept.folder) == sorted(next(iter(after["copied"].values())))
        with Lake(kept.central, read_only=True) as central:
            (received,) = (without_marks(shown(central)["main"][table]) for table in ("messages",))
        assert received == without_marks(after["central"]["main"]["messages"])
        _goes_on(lake, kept, receiver)


def _goes_on(lake: Lake, kept: Kept, receiver: Receiver) -> None:
    assert lake.tick("blobs", "archive", "copy") == []
    (letter,) = strand_json(lake, "sink", "dead", "central")
    assert strand_json(lake, "sink", "dead", "central", "--replay")[0]["outcome"] == "replayed"
    assert strand_json(lake, "sink", "dead", "central") == []
    lake.append("messages", [message(70), message(71)])
    lake.tick()
    sent = [row["part_id"] for row in shown(lake)["main"]["messages"]]
    with Lake(kept.central, read_only=True) as central:
        arrived = [row["part_id"] for row in shown(central)["main"]["messages"]]
    discarded = {"p3"}
    assert_once([*(one for one in sent if one not in discarded), "p7"], arrived)  # p7 arrived before it was purged
    assert copied(kept.folder) == sorted([*sent, "p7"])
    receiver.make_table("notes", {"id": "string", "text": "string?"})
    strand_json(lake, "sink", "retry", "central")
    lake.tick()
    assert sorted(receiver.rows("select id from notes")) == ["loaded", "n1", "n2"]
    assert letter["seq"] > 0


def test_branches_tags_states_and_schemas_are_read_and_written_as_before(unpack: Unpack) -> None:
    """Without Spark: rows, versions, the past, mutations, a merge, a repaired batch, on both ledgers."""
    with unpack("whole") as kept, Lake(kept.root) as lake:
        assert shown(lake) == kept.noted["before"]["rows"]
        people = "select id, name, age, old from person order by id"
        assert lake.view(at="v1").sql(people).rows() == [("a", "A", 0, "x"), ("b", "B", 1, "x"), ("c", "C", 2, "x")]
        lake.mutate([sl.patch("person", "d", {"city": "Basel"}), sl.put("person", {"id": "g", "age": 1})])
        lake.mutate([sl.patch("person", "f", {"age": 8})], branch="x")
        assert lake.merge("x").outcome == "merged"
        found = {row[0]: row[1:] for row in lake.view().sql("select id, called, age, city from person").rows()}
        assert found == {
            "a": ("A", 77, "Bern"),
            "c": ("C", 5, "Bern"),  # x wrote it, and knew nothing of the city
            "d": ("D", 3, "Basel"),
            "e": ("E", 7, "Bern"),
            "f": ("F", 8, "Bern"),
            "g": (None, 1, "Bern"),  # a default is for new rows too
        }
        expected = {
            "quarantined",
            "parked",
            "dead_letters",
            "destination",
            "lease_left",
        }  # nobody receives, and it died
        expected |= {"readable_by_all", "secret_in_clear"}  # as the old code made its files
        assert {one.kind for one in examine(lake)} <= expected


def test_keys_that_the_old_code_stored_are_still_known(unpack: Unpack) -> None:
    """The same rows under one get the first answer, other rows a conflict; so does the key of a load."""
    with unpack("whole") as kept, Lake(kept.root) as lake:
        week_us = 7 * 24 * 3600 * 1_000_000
        until_us = time.time_ns() // 1000 + week_us  # they were kept a week, and the lake has lain here for longer
        in_ledger(lake, "update idempotency set kept_until_us = :u where kept_until_us is not null", u=until_us)
        before = shown(lake)
        rows = [message(n) for n in range(40, 44)]
        again = lake.append("messages", rows, idempotency_key="forty", actor="ann")
        assert again.last_seq - again.first_seq == 3
        with pytest.raises(Conflict):
            lake.append("messages", rows[:3], idempotency_key="forty", actor="ann")
        loaded = lake.load("notes", [str(kept.folder / "notes.jsonl")], key="notes of a file")
        assert loaded.already_loaded
        assert shown(lake) == before


@pytest.mark.parametrize("backup", ["backup-data", "backup-bare"])
def test_a_kept_backup_is_restored(backup: str) -> None:
    """In the place of the lake that it was made of, which is lost: with its warehouse where it has the data itself."""
    with unpacked("whole") as kept, receiving(kept) as receiver:
        (kept.root / "ledger.db").write_bytes(b"lost")
        if backup == "backup-data":
            shutil.rmtree(kept.root / "warehouse" / "lake")
        done = restore(kept.folder / backup, kept.root, replace=True)
        assert done.restored is not None
        with Lake(kept.root) as lake:
            assert shown(lake) == kept.noted["before"]["rows"]
            ack = lake.append("messages", [message(80)])
            assert ack.first_seq > 2**41, "the lake was restored once before, and jumps once more"
            strand_json(lake, "sink", "set", "central", "--set", f"url={receiver.url}")
            lake.tick()
            with Lake(kept.central, read_only=True) as central:
                arrived = [row["part_id"] for row in shown(central)["main"]["messages"]]
            assert len(arrived) == len(set(arrived)) and {"p40", "p43", "p60", "p80"} <= set(arrived)


def test_what_an_older_sender_sends_is_stored_once() -> None:
    """Its requests, as they were seen on the wire, get the answers that the older receiver gave; again, nothing new."""
    with unpacked("whole") as kept:
        receiver = serving_again(kept)
        try:
            sent = kept.noted["after"]["sent"]
            assert {one["method"] for one in sent} == {"GET", "POST"}
            with httpx.Client(base_url=receiver.url) as client:
                for _ in range(2):
                    answers = [
                        client.request(
                            one["method"], one["path"], headers=one["headers"], content=base64.b64decode(one["body"])
                        )
                        for one in sent
                    ]
                    assert [answer.status_code for answer in answers] == [one["status"] for one in sent]
            with Lake(kept.central, read_only=True) as central:
                found = without_marks(shown(central)["main"]["messages"])
            assert found == without_marks(kept.noted["after"]["central_later"]["main"]["messages"])
        finally:
            receiver.stop()
