"""Rows that are past their table's retention: left out and counted before the ack, and never dropped behind it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline import failpoints
from strandline import open as open_lake
from strandline.errors import Conflict
from strandline.lake import Lake
from strandline.ledger.rows.group_commit import FewRows, _append_of, _Joint
from strandline.ledger.rows.groups import Member
from strandline.model.delivery import chunk_rows
from strandline.model.tables import Ack
from tests.acceptance.test_clock import Set, clock
from tests.kit import call, crash, in_ledger, log_part_ids, part_ids, reopened, strand, strand_json
from tests.server.chunks import Sender

__all__ = ["clock"]

NOW = dt.datetime.now(dt.UTC)
HOUR_S = 3600.0
COLUMNS = {"part_id": "string", "ts": "timestamp?"}

Rows = list[dict[str, Any]]


def aged(n: int, hours: float | None) -> dict[str, Any]:
    """A row whose own time lies so many hours back, or that has none."""
    return {"part_id": f"p{n}", "ts": None if hours is None else (NOW - dt.timedelta(hours=hours)).isoformat()}


def make(lake: Lake, retention_s: float | None = 10 * HOUR_S, **options: Any) -> None:
    lake.create_table("messages", COLUMNS, **options)
    lake.set_table("messages", time_column="ts", retention_s=retention_s)


def arrow(rows: Rows) -> pa.Table:
    times = [None if row["ts"] is None else dt.datetime.fromisoformat(row["ts"]) for row in rows]
    return pa.table({"part_id": [row["part_id"] for row in rows], "ts": pa.array(times, pa.timestamp("us", "UTC"))})


def lines(rows: Rows) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


WAYS: dict[str, Callable[[Lake, Rows], Ack]] = {
    "dicts": lambda lake, rows: lake.append("messages", rows),
    "a generator": lambda lake, rows: lake.append("messages", (row for row in rows)),
    "under a key": lambda lake, rows: lake.append("messages", rows, idempotency_key="k"),
    "JSON lines": lambda lake, rows: lake.append_json_lines("messages", lines(rows)),
    "a stream of lines": lambda lake, rows: lake.append_json_lines("messages", iter(lines(rows))),
    "an Arrow table": lambda lake, rows: lake.append("messages", arrow(rows)),
    "an Arrow reader": lambda lake, rows: lake.append("messages", arrow(rows).to_reader(2)),
}


@pytest.mark.both_ledgers(only=["dicts", "under a key"])
@pytest.mark.parametrize("way", WAYS)
def test_f70_what_is_past_the_retention_is_counted_before_the_ack(lake: Lake, way: str) -> None:
    """Old rows are left out and counted, young and timeless ones are stored; a call of nothing else is acked too."""
    make(lake)
    ack = WAYS[way](lake, [aged(0, 1), aged(1, 11), aged(2, None), aged(3, 99), aged(4, 5)])
    assert (ack.rows, ack.too_old) == (3, 2)
    assert part_ids(lake) == ["p0", "p2", "p4"]
    again = WAYS[way](lake, [aged(0, 1), aged(1, 11), aged(2, None), aged(3, 99), aged(4, 5)]) if "key" in way else ack
    assert again.too_old == 2, "a key covers what was left out too"
    books = lake.view().branch_table("messages").head.books
    assert (books.acked, books.dropped) == (3, 0)


def test_f70_a_call_of_old_rows_alone_is_acked_with_no_rows(lake: Lake) -> None:
    """A source that reads old files again and again gets its ack, and its key is remembered."""
    make(lake)
    for key in (None, "k", "k"):
        ack = lake.append("messages", [aged(0, 11), aged(1, 12)], idempotency_key=key)
        assert (ack.rows, ack.first_seq, ack.last_seq, ack.too_old) == (0, None, None, 2)
    with pytest.raises(Conflict):
        lake.append("messages", [aged(2, 11)], idempotency_key="k")


def test_f70_calls_that_share_a_batch_get_a_count_each(lake: Lake) -> None:
    """Three calls in one transaction: each answer has the seqs and the count of its own rows."""
    make(lake)
    state = lake.view().branch_table("messages")
    few = [FewRows(state, "a", rows) for rows in ([aged(0, 1), aged(1, 99)], [aged(2, 99)], [aged(3, 1), aged(4, 1)])]
    append, shares = _append_of(lake.ledger, few)
    members: list[Any] = [Member(one) for one in few]
    _Joint(append, members, shares).answer(lake.memory.appender.append(append))
    first = members[0].answer.first_seq
    assert [member.answer for member in members] == [
        Ack(1, first, first, too_old=1),
        Ack(0, None, None, too_old=1),
        Ack(2, first + 1, first + 2),
    ]


def test_f70_a_small_load_leaves_out_what_is_too_old(lake: Lake, tmp_path: Path) -> None:
    """A load that the ledger takes alone counts like an append, also when it is run again."""
    make(lake)
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(lines([aged(0, 11), aged(1, 1)])))
    loaded = lake.load("messages", [str(source)])
    assert (loaded.rows, loaded.too_old) == (1, 1)
    again = lake.load("messages", [str(source)])
    assert again.already_loaded and again.too_old == 1
    assert part_ids(lake) == ["p1"]


@pytest.mark.both_ledgers
def test_f70_a_receiver_leaves_out_old_rows_and_moves_its_mark(lake: Lake) -> None:
    """Forwarded rows past the retention here are counted in the answer, and never asked for again."""
    make(lake)
    body = b"".join(json.dumps({**aged(n, 11 if n < 3 else 1), "_seq": n}).encode() + b"\n" for n in range(1, 5))
    sender = Sender()
    for stored, too_old in ((2, 2), (0, 0)):
        chunk = sender.chunk(0, 4, body, 4, opens=True)
        received = lake.receive("messages", chunk, chunk_rows.from_lines(body), gateway="edge")
        assert (received.stored, received.too_old, received.mark) == (stored, too_old, 4)
    old = json.dumps({**aged(5, 50), "_seq": 5}).encode() + b"\n"
    received = lake.receive("messages", sender.chunk(4, 5, old, 1), chunk_rows.from_lines(old), gateway="edge")
    assert (received.stored, received.too_old, received.mark) == (0, 1, 5)


def test_f70_commands_say_what_was_left_out(lake: Lake, tmp_path: Path) -> None:
    """`strand append` and `strand load` count in JSON, and tell a person."""
    make(lake)
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(lines([aged(0, 11), aged(1, 1)])))
    assert strand_json(lake, "append", "messages", str(source))["too_old"] == 1
    assert "1 row past the retention left out" in strand(lake, "append", "messages", str(source)).out
    assert strand_json(lake, "load", "messages", str(source))["too_old"] == 1


@pytest.mark.both_ledgers
def test_f70_rows_are_judged_by_the_settings_that_there_are(lake: Lake) -> None:
    """Another process changes the retention: the next call goes by it, in either direction."""
    make(lake, None)
    assert lake.append("messages", [aged(0, 11)]).too_old == 0
    with open_lake(lake.root) as other:
        other.set_table("messages", retention_s=10 * HOUR_S)
        assert lake.append("messages", [aged(1, 11)]).too_old == 1
        other.set_table("messages", retention_s=99 * HOUR_S)
        assert lake.append("messages", [aged(2, 11)]).rows == 1


@pytest.mark.both_ledgers
def test_f70_a_clock_that_can_not_be_trusted_leaves_nothing_out(lake: Lake, clock: Set) -> None:
    """Behind the ledger's time nothing is left out; ahead, a second clock is asked where there is one."""
    make(lake)
    clock(30 * HOUR_S)
    is_sqlite = lake.ledger.database.is_sqlite
    assert lake.append("messages", [aged(0, 1)]).too_old == (1 if is_sqlite else 0), "and if so, the answer says it"
    clock(0)
    assert lake.append("messages", [aged(1, 11)]).rows == 1


def test_f70_repaired_rows_are_stored_however_old_they_are(lake: Lake, tmp_path: Path) -> None:
    """A batch that was set aside was acked: it comes back whole, though retention has passed it meanwhile."""
    make(lake, None)
    lake.append("messages", [aged(0, 11), aged(1, 1)])
    ((batch,),) = in_ledger(lake, "SELECT batch_id FROM batches")
    saved = tmp_path / "batch.arrow"
    in_ledger(lake, "UPDATE batches SET checksum = :wrong", wrong=b"x")
    call("--lake", lake.root, "doctor", "--fix")
    lake.set_table("messages", retention_s=10 * HOUR_S)
    strand(lake, "quarantine", "save", batch, str(saved))
    assert strand_json(lake, "quarantine", "restore", batch, str(saved))["rows"] == 2
    assert part_ids(lake) == ["p0", "p1"]


def test_f70_acked_rows_reach_the_log_however_late_the_flush(lake: Lake, clock: Set, tmp_path: Path) -> None:
    """Spark was down past the retention, or its clock is ahead: every acked row is flushed, delivered, then pruned."""
    make(lake, row_key=["part_id"])
    lake.add_sink("out", "blob", {"uri": f"file://{tmp_path}/out", "format": "jsonl"})
    lake.append("messages", [aged(0, 1), aged(1, 5)])
    clock(20 * HOUR_S)
    (flushed,) = lake.flush("messages")
    assert (flushed.rows, flushed.duplicates_dropped) == (2, 0)
    assert lake.retain("messages", yes=True)[0].detail["pruned"] == 0, "a sink has still to deliver them"
    (ticked,) = lake.tick("out")
    assert ticked.rows == 2
    assert lake.retain("messages", yes=True)[0].detail["pruned"] == 2
    assert part_ids(lake) == []


def as_an_older_one_staged_it(body: str, *, rows_stale: int) -> str:
    """A flush's intent in the first version of bodies, which could say that acked rows are left out."""
    document = json.loads(body)
    effects = {effect.pop("effect"): effect for effect in document["effects"]}
    heads = {"stream_heads": effects.pop("move_streams")["last_seqs"]}
    table = {**effects.pop("move_table"), **effects.pop("release_batches"), **heads, "rows_stale": rows_stale}
    assert effects == {}, "a flush writes something that this does not know"
    others = dict.fromkeys(("commit", "answer", "progress", "stream"))
    return json.dumps({"scopes": document["scopes"], "effects": {"tables": [table], **others}})


def test_f70_what_an_older_strandline_staged_without_old_rows_is_not_published(lake: Lake) -> None:
    """A flush that left acked rows out, and died before its publish, is undone: the next one stores them."""
    make(lake)
    lake.append("messages", [aged(0, 1), aged(1, 2)])
    failpoints.arm("publish.before_commit=raise")
    with crash(lake):
        lake.flush("messages")
    ((body,),) = in_ledger(lake, "SELECT body FROM intents")
    in_ledger(lake, "UPDATE intents SET body = :body, format = 1", body=as_an_older_one_staged_it(body, rows_stale=1))
    with reopened(lake) as again:
        again.recover()
        assert (log_part_ids(again), part_ids(again)) == ([], ["p0", "p1"]), "it is published as it was staged"
        again.flush("messages")
        assert log_part_ids(again) == ["p0", "p1"]
