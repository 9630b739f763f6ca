"""Maintenance beside everything else: deliveries, marks, streams and flushes read straight through it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from strandline import failpoints
from strandline.errors import StrandError
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.tables import holds
from tests import files
from tests.acceptance import test_forward
from tests.acceptance.test_copies import Blobs, Copies
from tests.delivery import Receiver, assert_once, forward, out_of_reach, start_tick, streams, watermark
from tests.kit import (
    crash,
    environment,
    kill,
    log_part_ids,
    make_table,
    message,
    messages,
    part_ids,
    python_process,
    reopened,
    wait_until,
)
from tests.maintenance.test_expire import data_files
from tests.proxy import PASS, Proxy


@contextmanager
def looping(lake: Lake) -> Iterator[list[str]]:
    """Compaction, expiry without any grace and retention, again and again, in a thread with a lake of its own.

    What was done is in the list that it gives; what met somebody else there is tried again.
    """
    stop = threading.Event()
    done: list[str] = []

    def loop() -> None:
        with Lake(lake.root) as mine:
            while not stop.is_set():
                for one in (mine.compact, lambda: mine.expire(grace_s=0), mine.retain):
                    try:
                        done.extend(op for each in one() for op in each.operations)
                    except StrandError as error:
                        print(f"maintenance was refused: {error}")

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


def test_f08_a_micro_batch_is_published_once_after_compaction_and_expiry(lake: Lake) -> None:
    """The mark of a query does not live in a snapshot: batches that are replayed when theirs are gone store nothing."""
    make_table(lake, row_key=[])
    store = lake.foreach_batch("messages")
    context = lake.spark.sparkContext
    context.setLocalProperty("sql.streaming.queryId", "a-query")
    try:
        given = [lake.spark.createDataFrame(messages(5 * n, 5 * n + 5)) for n in range(3)]
        for number, rows in enumerate(given):
            store(rows, number)
            lake.flush("messages")
        before = data_files(lake)
        lake.compact("messages")
        lake.expire("messages", grace_s=0)
        assert not before & data_files(lake), "no file of the batches is left"
        for number, rows in enumerate(given):
            store(rows, number)
    finally:
        context.setLocalProperty("sql.streaming.queryId", None)
    assert_once([f"p{n}" for n in range(15)], part_ids(lake))


def test_f12_an_idle_tick_opens_no_file_and_sends_nothing_while_maintenance_loops(
    source: Lake, receiver: Receiver, proxy: Proxy
) -> None:
    """What was delivered is merged and expired meanwhile: that is nothing new, before, in the middle and after."""
    more_files(source)
    forward(source, receiver, url=proxy.url)
    source.tick("central")
    sent, files = len(proxy.seen), data_files(source)
    with looping(source):
        while files & data_files(source):
            assert source.tick("central") == []
    with out_of_reach(source):
        assert source.tick("central") == []
    assert len(proxy.seen) == sent


def test_f14_two_ticks_at_once_send_each_row_once_while_maintenance_loops(
    source: Lake, receiver: Receiver, proxy: Proxy
) -> None:
    """Both are there while the files that they are to read are merged; when they are done, the files go."""
    more_files(source)
    files = data_files(source)
    forward(source, receiver, url=proxy.url, chunk_rows=1, timeout="60s")
    with looping(source) as done:
        proxy.rule = lambda _n, _seen: wait_until(lambda: bool(done)) or PASS
        ticks = [start_tick(source, "--here") for _ in range(2)]
        for process in ticks:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, out + err
        wait_until(lambda: not files & data_files(source))
    sent = [post.headers["Strand-Until"] for post in proxy.posts]
    assert len(sent) == len(set(sent)) == 16, "a chunk was sent twice"
    assert_once([f"p{n}" for n in range(16)], receiver.rows())
    assert watermark(source) == source.view().branch_table("messages").head.last_seq


def more_files(lake: Lake) -> None:
    """Six more messages, in three more files: something to compact."""
    for n in range(10, 16, 2):
        lake.append("messages", messages(n, n + 2))
        lake.flush("messages")


def test_f13_the_same_unit_is_sent_first_while_maintenance_loops(
    source: Lake, receiver: Receiver, proxy: Proxy
) -> None:
    """The crash, the rows that arrive, and the retry, with files and snapshots going away all the time."""
    with looping(source) as done:
        test_forward.test_f13_after_a_crash_the_same_unit_is_sent_first(source, receiver, proxy)
    assert done, "nothing was maintained"


@pytest.mark.parametrize("number", [1, 3])
def test_f15_whichever_chunk_fails_nothing_is_skipped_while_maintenance_loops(
    source: Lake, receiver: Receiver, proxy: Proxy, number: int
) -> None:
    """A unit that is tried again is read from the version it pinned."""
    with looping(source):
        test_forward.test_f15_whichever_chunk_fails_nothing_is_skipped(source, receiver, proxy, number)


def test_f16_lost_marks_are_found_while_maintenance_loops(source: Lake, receiver: Receiver, proxy: Proxy) -> None:
    """The destination's mark is of seqs, which no rewrite changes."""
    with looping(source):
        test_forward.test_f16_a_sender_that_lost_its_marks_resumes_from_the_receivers(source, receiver, proxy)


@pytest.mark.parametrize("place", ["deliver.after_open", "deliver.before_close"])
def test_f25_maintenance_between_retries_does_not_change_a_unit(source: Lake, tmp_path: Path, place: str) -> None:
    """A delivery is open when its rows are compacted, purged and expired: it sends what it pinned, and then they go."""
    blobs = Blobs(tmp_path / "archive")
    blobs.add(source, tables=["messages"])
    failpoints.arm(f"{place}=raise")
    with crash(source):
        source.tick("archive")
    with reopened(source) as again:
        (state,) = streams(again, "archive")
        assert state.delivery is not None
        again.append("messages", messages(10, 12))
        again.flush("messages")
        again.compact("messages")
        kept = again.purge("messages", "n < 5", and_history=True)
        assert any("open delivery" in text for text in kept.warnings)
        again.sweep(grace_s=0)
        again.tick("archive")
        assert blobs.ranges() == [(state.delivery.since, state.delivery.until), (state.delivery.until, 13)]
        assert_once([f"p{n}" for n in range(12)], blobs.rows())
        assert again.purge("messages", "n < 5", and_history=True).warnings == (), "nobody reads them any more"


@pytest.mark.parametrize("kind", ["forward", "blob", "iceberg"])
def test_f41_marks_survive_every_rewrite_of_the_table(lake: Lake, tmp_path: Path, kind: str, request: Any) -> None:
    """Before, between and after three ticks the table is compacted, pruned, purged and expired: idle ticks send
    nothing, and new rows are all that is sent.
    """
    make_table(lake)
    place: Any
    if kind == "forward":
        place = request.getfixturevalue("receiver")
        forward(lake, place, "archive", tables=["messages"])
    else:
        place = Blobs(tmp_path / "there") if kind == "blob" else Copies(tmp_path / "there")
        place.add(lake, tables=["messages"])
    expected: list[str] = []

    def arrive(count: int) -> None:
        rows = [message(len(expected) + n) for n in range(count)]
        lake.append("messages", rows)
        lake.flush("messages")
        expected.extend(row["part_id"] for row in rows)

    def maintain() -> None:
        files = data_files(lake)
        lake.compact("messages")
        lake.expire("messages", grace_s=0)
        assert not files <= data_files(lake), "no file was removed"

    def deliver(count: int) -> None:
        assert sum(one.rows for one in lake.tick("archive")) == count
        assert lake.tick("archive") == [], "an idle tick has nothing to say"
        assert_once(expected, place.rows())

    arrive(4)
    arrive(4)
    maintain()
    deliver(8)
    arrive(3)
    lake.purge("messages", "n < 2", and_history=True)
    assert part_ids(lake) == expected[2:]
    deliver(3)
    arrive(2)
    maintain()
    lake.set_table("messages", retention_s=1e-6)
    with lake.ledger.read() as conn:
        assert holds.held_since(conn, 1 << 62) is None
    lake.retain("messages", yes=True)
    assert part_ids(lake) == expected[11:], "what the sink has not got stays"
    lake.set_table("messages", retention_s=None)
    deliver(2)
    arrive(3)
    maintain()
    assert len(lake.view().files("messages")) == 1, "the mark is in the middle of a file"
    deliver(3)
    maintain_after = lake.compact("messages")[0]
    assert maintain_after.after["files"] == 1
    lake.expire("messages", grace_s=0)
    assert lake.tick("archive") == []
    assert_once(expected, place.rows())


def test_f38_metadata_and_ledger_stay_flat_over_many_flushes(lake: Lake) -> None:
    """After 20 flushes with maintenance there are as many files, manifests, snapshots and ledger rows as after 10."""
    make_table(lake)
    counted = []
    for n in range(20):
        lake.append("messages", messages(3 * n, 3 * n + 3))
        lake.flush("messages")
        if n % 5 == 4:
            lake.compact("messages", eager=False)
            lake.expire("messages", grace_s=0)
            lake.sweep(grace_s=0)
            counted.append(_figures(lake))
    assert log_part_ids(lake) == [f"p{n}" for n in range(60)]
    first, second, *_, last = counted
    for name, count in last.items():
        assert count <= max(first[name], second[name]) + 2, (name, counted)


def _figures(lake: Lake) -> dict[str, int]:
    table = lake.iceberg().load("lake.messages")
    there = files.listing(str(table.operations().current().metadataFileLocation()).rpartition("/")[0])
    with lake.ledger.read() as conn:
        tables = [one for one in schema.metadata.sorted_tables if one is not schema.outcomes]  # kept by their number
        rows = {one.name: conn.execute(select(func.count()).select_from(one)).scalar_one() for one in tables}
    return {
        "metadata files": sum(uri.endswith(".metadata.json") for uri in there),
        "manifests": sum(uri.endswith(".avro") for uri in there),
        "data files": len(data_files(lake)),
        **rows,
    }


COMPACTOR = """
import sys
import strandline as sl

with sl.open(sys.argv[1]) as lake:
    while True:
        done = [*lake.compact("messages"), *lake.expire("messages", grace_s=0)]
        print(sum(len(one.operations) for one in done), flush=True)
"""


def test_f05_our_compaction_in_another_process_beside_flushes_loses_nothing(lake: Lake) -> None:
    """Another process compacts and expires in a loop while rows are appended and flushed here; then it is killed."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    lake.flush("messages")
    env = environment(STRAND_FAILPOINTS="stage.after_append=sleep(500)")  # so that flushes come in the middle
    compactor = python_process(COMPACTOR, str(lake.root), env=env)
    assert compactor.stdout is not None
    try:
        assert compactor.stdout.readline()
        for n in range(5, 45, 5):
            lake.append("messages", messages(n, n + 5))
            lake.flush("messages")
            assert part_ids(lake) == [f"p{k}" for k in range(n + 5)]
        wait_until(lambda: compactor.poll() is not None or len(lake.view().files("messages")) == 1)
        assert compactor.poll() is None, "the compactor has died: a flush took its table away"
    finally:
        kill(compactor)
    lake.recover()
    assert log_part_ids(lake) == [f"p{n}" for n in range(45)]
    lake.compact("messages")
    assert log_part_ids(lake) == [f"p{n}" for n in range(45)]
