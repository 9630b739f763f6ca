"""Capture: what is acked is there, once, whatever dies, fills up, breaks or happens at the same moment."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import select, update

from strandline.engines import files
from strandline.errors import Conflict, InvalidRows, NoSpace, TooLarge
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.ledger import MAX_SEQ
from strandline.ledger.rows import batches, encode
from strandline.operations.load import load_request
from tests.kit import (
    assert_recovered,
    kill,
    log_part_ids,
    make_table,
    message,
    messages,
    part_ids,
    python_process,
    strand,
    strand_json,
)

APPENDER = """
import sys
import strandline as sl

lake = sl.open(sys.argv[1])
prefix, size, limit = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
for n in range(0, limit, size):
    rows = [{"part_id": f"{prefix}{i}", "source": "claude", "n": i} for i in range(n, n + size)]
    ack = lake.append("messages", rows, actor=prefix)
    print(n, ack.first_seq, ack.last_seq, flush=True)
"""


@pytest.mark.both_ledgers
def test_f01_every_acked_row_survives_kill_9(lake: Lake) -> None:
    """A writer is killed right after an ack, five times over: every row it was acked for is there, once."""
    make_table(lake)
    acked: list[str] = []
    for life in range(5):
        writer = python_process(APPENDER, str(lake.root), f"w{life}-", "3", "100000")
        assert writer.stdout is not None and writer.stdin is not None
        assert writer.stdout.readline() == "ready\n"
        writer.stdin.write("\n")
        writer.stdin.flush()
        for _ in range(10 + life):
            first = int(writer.stdout.readline().split()[0])
            acked += [f"w{life}-{n}" for n in range(first, first + 3)]
        kill(writer)
    stored = part_ids(lake)
    assert len(stored) == len(set(stored))
    assert set(acked) <= set(stored)
    lost_answers = set(stored) - set(acked)
    assert len(lost_answers) <= 5 * 40, "only rows whose answer was on its way may be there without an ack"
    lake.flush("messages")
    assert log_part_ids(lake) == stored


@pytest.mark.both_ledgers
def test_f03_seq_order_is_commit_order_across_processes(lake: Lake) -> None:
    """Four processes append at once while a reader goes on from where it stopped: it misses nothing, sees nothing
    twice.
    """
    make_table(lake)
    writers = [python_process(APPENDER, str(lake.root), f"w{k}-", "2", "60") for k in range(4)]
    for writer in writers:
        assert writer.stdout is not None and writer.stdin is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    seen: list[int] = []
    since = 0
    while any(writer.poll() is None for writer in writers):
        rows = lake.view().read("messages", since=since)
        seen += [seq for batch in rows for seq in batch.column("_seq").to_pylist()]
        since = rows.continuation
    rows = lake.view().read("messages", since=since)
    seen += [seq for batch in rows for seq in batch.column("_seq").to_pylist()]
    acks = []
    for writer in writers:
        out, err = writer.communicate(timeout=30)
        assert writer.returncode == 0, err
        acks += [tuple(map(int, line.split()[1:])) for line in out.splitlines()]
    assert seen == sorted(set(seen)), "in order, none twice"
    assert len(seen) == 4 * 60, "none missed"
    assert sorted(seq for first, last in acks for seq in range(first, last + 1)) == seen
    times = [row[0] for row in lake.view().sql("select _at from messages order by _seq").rows()]
    assert times == sorted(times), "_at never decreases"


@pytest.mark.parametrize("way", ["appended", "bulk"])
def test_f04_adopted_rows_are_stamped_like_any_other(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Every row of an adopted Parquet folder gets a seq of its own, and an incremental reader gets the backlog once."""
    import pyarrow.parquet as pq

    if way == "bulk":
        monkeypatch.setattr(load_request, "SMALL_BYTES", 0)
        monkeypatch.setattr(files, "CHUNK_BYTES", 500)  # so that a bite has several parts
    folder = tmp_path / "old"
    folder.mkdir()
    for k in range(3):
        rows = messages(k * 10, k * 10 + 10)
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{k}.parquet")
    lake.adopt("old", str(folder))
    first = lake.view().read("old")
    got = [seq for batch in first for seq in batch.column("_seq").to_pylist()]
    assert len(set(got)) == 30 and None not in got
    assert [batch.num_rows for batch in lake.view().read("old", since=first.continuation)] == []
    assert lake.adopt("old", str(folder)).already_loaded
    assert len(part_ids(lake, "old")) == 30


@pytest.mark.parametrize("flushed_between", [True, False])
@pytest.mark.parametrize("dedupe", ["table", "partition"])
def test_f07_a_key_captured_live_and_backfilled_is_one_row_the_first(
    lake: Lake, flushed_between: bool, dedupe: str
) -> None:
    """Before a flush or after it, in one batch or in two: one row per key, the one with the lowest seq."""
    make_table(lake, dedupe=dedupe, partition_by=["source"])
    lake.append("messages", [message(1) | {"body": "live"}, message(2), message(2) | {"body": "same batch"}])
    if flushed_between:
        lake.flush("messages")
    lake.append("messages", [message(1) | {"body": "backfill"}, message(3)])
    seen = "select part_id, body from messages order by _seq"
    expected = [("p1", "live"), ("p2", "body of p2"), ("p3", "body of p3")]
    assert lake.view().sql(seen).rows() == expected, "a duplicate is not shown before the flush that drops it"
    (flushed,) = lake.flush("messages")
    assert flushed.duplicates_dropped == (1 if flushed_between else 2)
    assert lake.view().sql(seen).rows() == expected
    assert log_part_ids(lake) == ["p1", "p2", "p3"]


def test_f07_a_row_never_matches_itself_and_null_keys_never_match(lake: Lake) -> None:
    """Flushing the same tail again drops nothing, and rows without a key are all kept."""
    lake.create_table("messages", {"part_id": "string?", "source": "string", "n": "long"}, row_key=["part_id"])
    lake.append("messages", [{"source": "a", "n": n} for n in range(3)] + [{"part_id": "x", "source": "a", "n": 9}])
    assert lake.flush("messages")[0].rows == 4
    lake.append("messages", [{"source": "a", "n": n} for n in range(3)])
    (flushed,) = lake.flush("messages")
    assert (flushed.rows, flushed.duplicates_dropped) == (3, 0)


def test_f07_with_partition_scope_the_same_key_in_two_partitions_is_two_rows(lake: Lake) -> None:
    """The key is (partition, row key): null and empty partitions are partitions too."""
    lake.create_table(
        "messages",
        {"part_id": "string", "source": "string?", "n": "long"},
        row_key=["part_id"],
        partition_by=["source"],
        dedupe="partition",
    )
    sources = ["a", "b", None, "", "a/b", ".."]
    rows = [{"part_id": "x", "source": source, "n": 1} for source in sources]
    lake.append("messages", rows)
    lake.flush("messages")
    lake.append("messages", rows)
    assert len(part_ids(lake)) == len(sources)
    (flushed,) = lake.flush("messages")
    assert (flushed.rows, flushed.duplicates_dropped) == (0, len(sources))
    found = lake.view().sql("select source from messages order by _seq").rows()
    assert [row[0] for row in found] == sources


def damage_batch(lake: Lake, position: int, table: str = "messages") -> str:
    """Change one byte of a value in the payload of one batch of a tail: it stays a readable Arrow stream."""
    ref = lake.view().branch_table(table).tail[position]
    with lake.ledger.write() as txn:
        where = schema.batches.c.batch_id == ref.batch_id
        payload = bytearray(txn.conn.execute(select(schema.batches.c.payload).where(where)).scalar_one())
        payload[payload.index(b"body of") + 3] ^= 0x20
        txn.conn.execute(update(schema.batches).where(where).values(payload=bytes(payload)))
    return ref.batch_id


def test_f09_a_corrupt_batch_is_set_aside_and_everything_else_flows(lake: Lake) -> None:
    """The lake opens, reads leave it out and say so, a flush quarantines it with its bytes, doctor reports it."""
    make_table(lake)
    for n in range(5):
        lake.append("messages", [message(n)])
    bad = damage_batch(lake, position=2)
    with Lake(lake.root) as again:
        with pytest.warns(UserWarning, match=bad):
            assert part_ids(again) == ["p0", "p1", "p3", "p4"]
        (flushed,) = again.flush("messages")
        assert flushed.rows == 4
        with again.ledger.read() as conn:
            (entry,) = batches.list_quarantined(conn)
            assert batches.quarantined_payload(conn, bad)
        assert (entry.batch_id, entry.rows, entry.table) == (bad, 1, "messages")
        again.append("messages", [message(9)])
        assert part_ids(again) == ["p0", "p1", "p3", "p4", "p9"]
        assert_recovered(again)
    found = strand(lake, "--json", "doctor").json
    assert any(bad in json.dumps(finding) for finding in found["findings"])


def test_f43_keys_of_a_quarantined_batch_dont_count_as_seen(lake: Lake) -> None:
    """The good row that comes again after its first batch was damaged is not taken for a duplicate."""
    make_table(lake)
    lake.append("messages", [message(1)])
    damage_batch(lake, position=0)
    lake.append("messages", [message(1)])
    (flushed,) = lake.flush("messages")
    assert (flushed.rows, flushed.duplicates_dropped) == (1, 0)
    assert log_part_ids(lake) == ["p1"]


def test_f43_a_key_scan_that_fails_fails_the_flush_and_drops_nothing(lake: Lake) -> None:
    """When a file of the log can't be read, nothing is known to be a duplicate: the flush fails, the rows stay in the
    tail.
    """
    make_table(lake)
    lake.append("messages", messages(0, 3))
    lake.flush("messages")
    (file,) = lake.view().files("messages")
    path = Path(file.path.removeprefix("file:").replace("//", "/"))
    hidden = path.rename(path.with_suffix(".hidden"))
    lake.append("messages", messages(2, 6))
    with pytest.raises(Exception, match=r"parquet|file|gone"):
        lake.flush("messages")
    assert sum(ref.rows for ref in lake.view().branch_table("messages").tail) == 4
    hidden.rename(path)
    (flushed,) = lake.flush("messages")
    assert (flushed.rows, flushed.duplicates_dropped) == (3, 1)
    assert_recovered(lake)


@pytest.mark.both_ledgers
def test_f45_a_schema_that_moves_under_an_append_is_noticed(lake: Lake) -> None:
    """Rows validated against an older schema are validated again, and refused if they don't fit the new one."""
    make_table(lake)
    lake.append("messages", [message(1)])
    state = lake.view().branch_table("messages")
    definition = state.schema.to_json()
    definition["columns"].append({"name": "added", "type": "long", "nullable": False})
    with lake.ledger.write() as txn:
        txn.conn.execute(
            schema.schemas.insert().values(
                branch_id=state.head.branch_id,
                table_id=state.table.table_id,
                version=2,
                definition=json.dumps(definition),
            )
        )
        txn.conn.execute(update(schema.heads).values(schema_version=2))
    with pytest.raises(InvalidRows, match="added"):
        lake.append("messages", [message(2)])
    assert lake.append("messages", [message(3) | {"added": 1}]).rows == 1


@pytest.mark.both_ledgers
def test_f53_a_reader_sees_every_acked_row_once_at_every_moment_of_a_flush(lake: Lake) -> None:
    """Reading in a loop while rows are appended and flushed: never a row missing, never a row twice."""
    make_table(lake)
    acked: list[int] = []
    stop = threading.Event()
    wrong: list[str] = []

    def write() -> None:
        n = 0
        while not stop.is_set():
            lake.append("messages", messages(n, n + 5))
            n += 5
            acked.append(n)

    def read() -> None:
        while not stop.is_set():
            before = acked[-1] if acked else 0
            ids = part_ids(lake)
            if len(ids) != len(set(ids)):
                wrong.append("a row was there twice")
            missing = {f"p{n}" for n in range(before)} - set(ids)
            if missing:
                wrong.append(f"{len(missing)} acked rows were missing")

    threads = [threading.Thread(target=write), *(threading.Thread(target=read) for _ in range(2))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            lake.flush("messages")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    lake.flush("messages")
    assert log_part_ids(lake) == [f"p{n}" for n in range(acked[-1])]


@pytest.mark.both_ledgers
def test_f61_one_idempotency_key_at_the_same_moment_stores_once(lake: Lake) -> None:
    """Eight threads send the same rows under one key at once: one is stored, all get the same answer."""
    make_table(lake, row_key=[])
    with ThreadPoolExecutor(8) as pool:
        acks = list(pool.map(lambda _: lake.append("messages", messages(0, 3), idempotency_key="k"), range(8)))
    assert {(ack.rows, ack.first_seq, ack.last_seq) for ack in acks} == {(3, acks[0].first_seq, acks[0].last_seq)}
    assert sum(not ack.repeated for ack in acks) == 1
    assert part_ids(lake) == ["p0", "p1", "p2"]


@pytest.mark.both_ledgers
def test_f61_the_same_key_with_other_rows_is_a_conflict(lake: Lake) -> None:
    """A key is for sending the same rows again; other rows under it change nothing."""
    make_table(lake)
    lake.append("messages", messages(0, 3), idempotency_key="k")
    with pytest.raises(Conflict) as caught:
        lake.append("messages", messages(0, 4), idempotency_key="k")
    assert caught.value.detail["kind"] == "key_exists"
    assert part_ids(lake) == ["p0", "p1", "p2"]
    assert lake.append("messages", messages(5, 6), idempotency_key="k", actor="another").rows == 1, "scope: the actor"


def test_f10_the_sequence_at_its_real_limit(lake: Lake) -> None:
    """The last seqs of all work and read back; one more is refused clearly, and never wraps."""
    make_table(lake, row_key=[])
    with lake.ledger.write() as txn:
        txn.conn.execute(update(schema.counter).values(last_seq=MAX_SEQ - 5))
    ack = lake.append("messages", messages(0, 4))
    assert (ack.first_seq, ack.last_seq) == (MAX_SEQ - 4, MAX_SEQ - 1)
    lake.flush("messages")
    assert lake.append("messages", messages(4, 5)).last_seq == MAX_SEQ
    with pytest.raises(TooLarge, match="used up"):
        lake.append("messages", messages(5, 6))
    rows = lake.view().sql("select part_id, _seq from messages order by _seq").rows()
    assert rows == [(f"p{n}", MAX_SEQ - 4 + n) for n in range(5)]
    assert [batch.num_rows for batch in lake.view().read("messages", since=MAX_SEQ - 2)] == [1, 1]


def test_f10_large_cells_large_batches_and_many_batches(lake: Lake) -> None:
    """A 1 MiB cell, one append of more than 64 MiB, and a tail of 10,000 batches: all are there after a flush."""
    make_table(lake, row_key=[])
    lake.append("messages", [message(0) | {"body": "é" * (1 << 19)}])
    large = [message(n) | {"body": f"{n:06d}" + "x" * 65_530} for n in range(1, 1101)]
    ack = lake.append("messages", large)
    assert ack.rows == 1100
    rows = [message(n) for n in range(1101, 11_101)]
    with ThreadPoolExecutor(8) as pool:
        # Tuples, because calls with a short list of dicts would share batches.
        list(pool.map(lambda row: lake.append("messages", (row,)), rows))
    assert len(lake.view().branch_table("messages").tail) >= 10_000
    count = "select count(*), count(distinct n), max(length(body)), sum(length(body)) from messages"
    before = lake.view().sql(count).rows()
    assert before[0][:3] == (11_101, 11_101, 1 << 19)
    lake.flush("messages")
    assert lake.view().branch_table("messages").tail == ()
    assert lake.view().sql(count).rows() == before


def test_f10_an_append_beyond_the_limit_is_refused_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much for one call says what to use instead, and stores nothing."""
    monkeypatch.setattr(encode, "APPEND_BYTES", 10_000)
    make_table(lake, row_key=[])
    with pytest.raises(TooLarge, match="one append takes"):
        lake.append("messages", messages(0, 5000))
    assert part_ids(lake) == []


@pytest.mark.sqlite_only
def test_f11_a_full_disk_fails_appends_clearly_and_loses_nothing(lake: Lake) -> None:
    """Appends fail while the ledger can't grow, keep what was acked, and go on without a restart when there is room."""
    make_table(lake, row_key=[])
    lake.append("messages", messages(0, 10))
    _limit_ledger_pages(lake, extra=20)
    stored = 10
    with pytest.raises(NoSpace) as caught:
        for n in range(10, 5000, 10):
            lake.append("messages", messages(n, n + 10))
            stored = n + 10
    assert "room" in caught.value.hint
    assert part_ids(lake) == [f"p{n}" for n in range(stored)]
    _limit_ledger_pages(lake, extra=1_000_000)
    lake.append("messages", messages(stored, stored + 10))
    assert part_ids(lake) == [f"p{n}" for n in range(stored + 10)]


def _limit_ledger_pages(lake: Lake, extra: int) -> None:
    """SQLite's own stand-in for a disk that is full: the file may not grow past so many pages."""
    with lake.ledger.database.write() as conn:
        pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
        conn.exec_driver_sql(f"PRAGMA max_page_count = {pages + extra}")


def test_a_row_is_visible_as_soon_as_it_was_acked(lake: Lake) -> None:
    """`strand sql` sees rows of the tail, in another process, before any flush."""
    make_table(lake)
    lake.append("messages", messages(0, 7))
    answer = strand_json(lake, "sql", "select count(*) as n from messages")
    assert answer["rows"] == [{"n": 7}]
