"""Clocks that are ahead, or behind: nothing acked is hidden or dropped by them, and nothing is deleted too early.

A test moves the clock of its process alone: Postgres and the disk keep theirs.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import create
from strandline.errors import ClockBehind, HistoryGone
from strandline.lake import Lake
from strandline.ledger.clock import BEHIND_S, forgetting_us, read_clock, trust_clock
from strandline.ledger.rows import batches
from strandline.ledger.tables import holds
from strandline.ledger.workers import jobs
from strandline.operations.core.deletion_time import store_us
from strandline.reports import machine_checks, repairs
from strandline.reports.findings import Examination
from strandline.worker.due_inputs import read_needs
from tests.kit import in_ledger, make_table, message, messages, part_ids
from tests.s3 import S3

HOUR_S = 3600
DAY_S = 24 * HOUR_S

Set = Callable[[float], None]

pytestmark = pytest.mark.both_ledgers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set the process's clock so many seconds off from where it is."""
    real = time.time_ns

    def set_off(seconds: float) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: real() + int(seconds * 1e9))

    return set_off


def written_ahead(lake: Lake, clock: Set, seconds: float = 30 * DAY_S) -> None:
    """One write under a clock that is ahead, which is then set right."""
    clock(seconds)
    lake.append("messages", [message(0)])
    clock(0)


def behind(lake: Lake) -> bool:
    with lake.ledger.read() as conn:
        return read_clock(conn).is_behind


def test_f79_a_clock_that_was_ahead_hides_no_row(lake: Lake, clock: Set) -> None:
    """Rows that were acked are read, whatever the ledger's time says of the retention of their table."""
    make_table(lake)
    lake.set_table("messages", retention_s=float(DAY_S))
    lake.append("messages", messages(1, 4))
    written_ahead(lake, clock)
    assert part_ids(lake) == ["p1", "p2", "p3", "p0"]


def test_f79_what_deletes_by_time_waits_while_the_clock_is_behind(lake: Lake, clock: Set) -> None:
    """Retention, expiry and sweep are refused, and say by how much; a worker finds nothing to do, and parks nothing."""
    make_table(lake)
    lake.set_table("messages", retention_s=60.0)
    written_ahead(lake, clock)
    for delete in (lake.retain, lake.expire, lake.sweep):
        with pytest.raises(ClockBehind, match=r"30\.0 days later") as refused:
            delete()
        assert refused.value.code == "clock_behind" and "doctor --fix" in refused.value.hint
    assert read_needs(lake) == []
    assert lake.append("messages", [message(5)]).rows == 1, "nothing else waits"


def test_f79_an_hour_of_difference_is_no_reason_to_wait(lake: Lake, clock: Set) -> None:
    """Drift and daylight saving stop nothing: up to an hour behind, deletions go by the clock."""
    make_table(lake)
    written_ahead(lake, clock, BEHIND_S - 60)
    assert not behind(lake) and lake.expire() is not None
    clock(-120)
    assert behind(lake)


def test_f79_a_clock_ahead_forgets_neither_batches_nor_holds_nor_jobs(lake: Lake, clock: Set) -> None:
    """One write under a clock ahead: what has a grace, or is held, is there by the right clock, and goes in time."""
    make_table(lake)
    lake.append("messages", messages(1, 3))
    in_ledger(lake, "UPDATE batches SET released_at_us = :at_us", at_us=time.time_ns() // 1000)
    with lake.ledger.write() as txn:
        holds.hold(txn, "reader", since_us=txn.at_us, keep_s=600, purpose="view")
        jobs.begin_job(txn, "flush:a", "", "w", now_us=txn.at_us, seen_runs=0, attempts=3)
    written_ahead(lake, clock)
    assert batches.sweep(lake.ledger) == 0
    with lake.ledger.write() as txn:
        holds.hold(txn, "another", since_us=txn.at_us, keep_s=600, purpose="view")
    assert held(lake) == ["another", "reader"]
    with lake.ledger.write() as txn:
        trust_clock(txn)
    assert batches.sweep(lake.ledger) == 0, "by the right clock its grace has only begun"
    clock(HOUR_S)
    with lake.ledger.write() as txn:
        holds.release(txn, "another")
    if lake.ledger.database.is_sqlite:  # Postgres' own clock has not moved
        assert batches.sweep(lake.ledger) == 1
        with lake.ledger.write() as txn:
            holds.hold(txn, "third", since_us=txn.at_us, keep_s=600, purpose="view")
        assert held(lake) == ["third"]


def held(lake: Lake) -> list[str]:
    return sorted(row[0] for row in in_ledger(lake, "SELECT hold_id FROM holds"))


def test_f79_a_condemned_snapshot_is_judged_by_the_holds_that_live_by_the_clock(lake: Lake, clock: Set) -> None:
    """A hold that the ledger's time would call lapsed still keeps what it holds."""
    make_table(lake)
    with lake.ledger.write() as txn:
        holds.hold(txn, "reader", since_us=1, keep_s=600, purpose="view")
    written_ahead(lake, clock)
    with lake.ledger.read() as conn:
        assert holds.held_since(conn, forgetting_us(conn)) == 1
    with lake.ledger.write() as txn:
        trust_clock(txn)
        assert holds.held_since(txn.conn, forgetting_us(txn.conn)) == 1


def test_f79_doctor_says_by_how_much_and_a_person_decides(lake: Lake, clock: Set) -> None:
    """`doctor` tells what waits; `--fix` lets deletions go by the clock, and `_at` goes on from where it was."""
    make_table(lake)
    written_ahead(lake, clock)
    (found,) = machine_checks.clock(Examination.at(lake, deep=False))
    assert found.severity == "error" and "30.0 days" in found.what and "doctor --fix" in found.fix
    (said,) = repairs._clock(Examination.at(lake, deep=False), "ann")
    assert "30.0 days" in said and list(repairs._clock(Examination.at(lake, deep=False), "ann")) == []
    assert not behind(lake) and lake.expire() is not None
    (left,) = machine_checks.clock(Examination.at(lake, deep=False))
    assert left.severity == "warning", "that _at runs ahead is still told"
    lake.append("messages", messages(1, 5))
    times = [row[0] for row in lake.view().sql("SELECT _at FROM messages ORDER BY _seq").rows()]
    assert times == sorted(times) and times[0].timestamp() > time.time() + 29 * DAY_S


def test_f79_a_word_ends_when_a_clock_passes_the_ledgers_time(lake: Lake, clock: Set) -> None:
    """After a word: a clock that goes back again stops deletions, and so does another write that is ahead."""
    make_table(lake)
    written_ahead(lake, clock)
    with lake.ledger.write() as txn:
        assert trust_clock(txn) is not None
    clock(-2 * HOUR_S)
    assert behind(lake), "behind the latest time of day since the word"
    clock(5 * DAY_S)
    lake.append("messages", [message(1)])
    clock(0)
    assert behind(lake), "a writer was ahead again, though not of the ledger's time"
    with lake.ledger.write() as txn:
        assert trust_clock(txn) is not None
    assert not behind(lake)
    written_ahead(lake, clock, 60 * DAY_S)
    assert behind(lake)
    assert in_ledger(lake, "SELECT wall_from_us FROM counter") == [(None,)]
    clock(61 * DAY_S)
    lake.append("messages", [message(2)])
    with lake.ledger.read() as conn:
        assert read_clock(conn).reached_us == lake.ledger.last_at_us(conn), "it has caught up: all is as ever"


def test_f79_postgres_is_asked_before_anything_is_deleted(lake: Lake, clock: Set) -> None:
    """A host whose clock is ahead forgets nothing early where the database has a clock of its own."""
    make_table(lake)
    lake.append("messages", [message(1)], idempotency_key="k")
    lake.append("messages", messages(2, 4))
    in_ledger(lake, "UPDATE batches SET released_at_us = :at_us", at_us=time.time_ns() // 1000)
    clock(30 * DAY_S)
    swept = batches.sweep(lake.ledger)
    repeated = lake.append("messages", [message(1)], idempotency_key="k").repeated
    if lake.ledger.database.is_sqlite:  # nothing else knows the time there: it may as well be a month later
        assert (swept, repeated) == (2, False)
    else:
        assert (swept, repeated) == (0, True)


def test_f79_no_two_transactions_have_one_time(lake: Lake, clock: Set) -> None:
    """While the ledger's time is ahead of the clock it still goes on, so what came first can be told."""
    make_table(lake)
    written_ahead(lake, clock)
    for n in range(1, 4):
        lake.append("messages", [message(n)])
    times = [row[0] for row in lake.view().sql("SELECT _at FROM messages ORDER BY _seq").rows()]
    assert times == sorted(set(times))


def test_f79_a_hold_can_be_taken_behind_an_expiry_in_a_ledger_that_is_ahead(lake: Lake, clock: Set) -> None:
    """A view that is newer than what has expired is held, and one that is older is told what is gone."""
    make_table(lake)
    written_ahead(lake, clock)
    with lake.ledger.read() as conn:
        before_us = lake.ledger.last_at_us(conn)
    in_ledger(lake, "UPDATE tables SET expired_upto_us = :at_us", at_us=before_us)
    lake.append("messages", [message(7)])
    with lake.view().held(), pytest.raises(HistoryGone), lake.ledger.write() as txn:
        holds.hold(txn, "older", since_us=before_us, keep_s=60, purpose="view")


def test_f79_without_a_grace_time_decides_nothing(lake: Lake, clock: Set) -> None:
    """What a person wants gone at once goes, whatever the clocks say: a purge's batches are not left behind."""
    make_table(lake)
    written_ahead(lake, clock)
    lake.append("messages", messages(1, 3))
    with lake.ledger.write() as txn:
        in_tail = batches.in_tail(txn.conn, *place(lake), upto=2**40)
        batches.release(txn, *place(lake), in_tail)
    assert batches.sweep(lake.ledger) == 0
    assert batches.sweep(lake.ledger, grace_s=0) == len(in_tail) == 2


def place(lake: Lake) -> tuple[str, str]:
    head = lake.view().branch_table("messages").head
    return head.branch_id, head.table_id


def answers(lake: Lake, key: str, *rows: dict[str, Any]) -> Any:
    return lake.append("messages", list(rows), idempotency_key=key)


def test_f76_a_key_outlives_a_write_with_a_clock_ahead(lake: Lake, clock: Set) -> None:
    """A key is kept for 7 days by the clock that deletions go by, swept or asked for; and forgotten behind them."""
    make_table(lake)
    first = answers(lake, "k", message(1))
    clock(30 * DAY_S)
    if lake.ledger.database.is_sqlite:
        lake.append("messages", [message(2)])
    clock(0)
    batches.sweep(lake.ledger)
    assert answers(lake, "k", message(1)).first_seq == first.first_seq
    with lake.ledger.write() as txn:
        trust_clock(txn)
    batches.sweep(lake.ledger)
    assert answers(lake, "k", message(1)).repeated
    in_ledger(lake, "UPDATE idempotency SET kept_until_us = :at_us", at_us=time.time_ns() // 1000 - 1)
    assert not answers(lake, "k", message(9)).repeated


@pytest.mark.sqlite_only
def test_f79_the_store_is_asked_where_the_ledger_is_a_file(s3: S3, tmp_path: Path, clock: Set) -> None:
    """A host whose clock is a month ahead, with its files in a bucket: nothing is left out, forgotten or deleted."""
    with create.create(tmp_path / "lake", warehouse=s3.uri, store=s3.store) as lake:
        lake.create_table("messages", {"part_id": "string", "ts": "timestamp"})
        lake.set_table("messages", time_column="ts", retention_s=DAY_S)
        with lake.ledger.write() as txn:
            holds.hold(txn, "reader", since_us=txn.at_us, keep_s=600, purpose="view")
        rows = [{"part_id": "p1", "ts": dt.datetime.now(dt.UTC)}]
        clock(30 * DAY_S)
        ack = lake.append("messages", rows)
        assert (ack.rows, ack.too_old) == (1, 0)
        in_ledger(lake, "UPDATE batches SET released_at_us = :at_us", at_us=int(time.time() * 1e6))
        for delete in (lake.retain, lake.expire, lake.sweep):
            with pytest.raises(ClockBehind, match=r"30\.0 days later"):
                delete()
        assert batches.sweep(lake.ledger, elsewhere_us=store_us(lake.context.staging)) == 0
        with lake.ledger.write() as txn:
            holds.hold(txn, "another", since_us=txn.at_us, keep_s=600, purpose="view")
        assert held(lake) == ["another", "reader"]
        assert lake.context.staging.listing() == [], "what was written to ask is still there"


def test_f79_a_store_that_does_not_answer_leaves_no_row_out(lake: Lake) -> None:
    """The row is stored, however old it looks: retention finds it when the time is known."""
    lake.create_table("messages", {"part_id": "string", "ts": "timestamp"})
    lake.set_table("messages", time_column="ts", retention_s=DAY_S)

    def silent() -> tuple[int, ...]:
        raise OSError("no route to the store")

    old = dt.datetime.now(dt.UTC) - dt.timedelta(days=30)
    assert lake.append("messages", [{"part_id": "p1", "ts": old}]).too_old == 1
    lake.ledger.elsewhere_us = silent
    ack = lake.append("messages", [{"part_id": "p2", "ts": old}])
    assert (ack.rows, ack.too_old) == (1, 0)


def test_now_is_the_newest_whatever_a_writers_clock_said(lake: Lake, clock: Set) -> None:
    """One host's clock was ahead. A reader whose clock is right asks for now, and gets what there is.

    Of a time since then nobody can tell, and the reader says so; of one from before it shows what there was.
    """
    make_table(lake)
    lake.create_table("person", {"id": "string", "age": "long"}, key=["id"])
    lake.mutate([sl.put("person", {"id": "a", "age": 1})])
    lake.append("messages", [message(1)])
    before = dt.datetime.now(dt.UTC).isoformat()
    lake.mutate([sl.put("person", {"id": "a", "age": 2})])
    clock(600)
    lake.mutate([sl.put("person", {"id": "a", "age": 3})])
    lake.append("messages", [message(2)])
    clock(0)

    def ages(at: str) -> list[Any]:
        view = lake.view(at=at)
        return [view.sql("select age from person").rows(), view.sql("select count(*) as n from messages").rows()]

    newest = [[(3,)], [(2,)]]
    assert ages("now") == newest
    assert ages((dt.datetime.now(dt.UTC) + dt.timedelta(seconds=60)).isoformat()) == newest
    assert ages(before) == [[(1,)], [(1,)]]
    with pytest.raises(ClockBehind, match="a writer's clock was") as refused:
        ages(dt.datetime.now(dt.UTC).isoformat())
    assert refused.value.detail["behind_s"] > 500 and "--at now" in refused.value.hint
    clock(1200)
    if lake.ledger.has_one_host:  # Postgres has a clock of its own
        assert ages((dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1200)).isoformat()) == newest
