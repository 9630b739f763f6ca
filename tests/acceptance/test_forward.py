"""Every row to a receiver, once: the receiver is a real `strand serve`, and a proxy before it does the damage.

The sender is a real `strand sink tick` wherever it is killed or paused.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from strandline import failpoints
from strandline.lake import Lake
from strandline.ledger.database import schema
from tests import slices
from tests.delivery import (
    GATEWAY,
    LAST,
    Receiver,
    assert_once,
    forward,
    out_of_reach,
    refuse_part,
    start,
    start_tick,
    streams,
    tick_process,
    watermark,
    wipe_marks,
)
from tests.kit import (
    crash,
    make_table,
    message,
    messages,
    python_process,
    reopened,
    strand_json,
    wait_until,
)
from tests.proxy import PASS, Hurt, Proxy, Seen, answer, cut_request, drop_answer


def on_post(number: int, hurt: Hurt) -> Any:
    """A rule that hurts the n-th POST alone."""
    return lambda n, _seen: hurt if n == number else PASS


def test_a_forwarded_row_says_where_it_comes_from(source: Lake, receiver: Receiver) -> None:
    """The receiver stamps its own seq, and keeps the sender's seq, time and actor and the gateway."""
    forward(source, receiver)
    (done,) = source.tick("central")
    assert (done.outcome, done.rows, done.units, done.files_opened) == ("delivered", 10, 1, 1)
    found = receiver.rows("select part_id, _gateway, _origin_seq, _origin_actor from messages order by _seq")
    sent = source.view().sql("select part_id, _seq, _actor from messages order by _seq").rows()
    assert found == [(part, GATEWAY, seq, actor) for part, seq, actor in sent]


def test_f03_processes_append_at_once_while_a_sink_ticks(lake: Lake, receiver: Receiver) -> None:
    """Seqs are given in the order of commits, so a row never appears below a watermark that has passed it.

    In every round all of them append while a tick goes on, and each appends again behind what was delivered.
    """
    make_table(lake)
    forward(lake, receiver, chunk_rows=50)
    code = (
        "import sys, strandline as sl\n"
        "from tests.kit import messages\n"
        "with sl.open(sys.argv[1]) as lake:\n"
        "    for n, _ in enumerate(sys.stdin):\n"
        "        for k in range(n * 50, n * 50 + 50, 5): lake.append('messages', messages(k, k + 5, sys.argv[2]))\n"
        "        print('appended', flush=True)\n"
    )
    writers = [python_process(code, str(lake.root), f"w{n}-") for n in range(3)]
    for _ in range(4):
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        lake.tick("central")
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == "appended\n"
        lake.tick("central")
    for writer in writers:
        _, err = writer.communicate(timeout=30)
        assert writer.returncode == 0, err
    assert_once([f"w{w}-{n}" for w in range(3) for n in range(200)], receiver.rows())


def test_f04_an_adopted_backlog_goes_to_a_sink_once(lake: Lake, receiver: Receiver, tmp_path: Path) -> None:
    """Every row has a seq, also one that came in by the back door; the second tick sends nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "old").mkdir()
    pq.write_table(pa.Table.from_pylist(messages(0, 20)), tmp_path / "old" / "a.parquet")
    lake.adopt("messages", str(tmp_path / "old"))
    forward(lake, receiver)
    (first,) = lake.tick("central")
    assert first.rows == 20
    assert lake.tick("central") == []
    assert_once([f"p{n}" for n in range(20)], receiver.rows())


def test_f12_an_idle_tick_opens_no_file_and_sends_nothing(source: Lake, receiver: Receiver, proxy: Proxy) -> None:
    """Nothing is due: no request, no file, no Spark, and the ledger is not written to."""
    forward(source, receiver, url=proxy.url)
    source.tick("central")
    before = len(proxy.seen)
    with source.ledger.read() as conn:
        stamp = conn.execute(select(schema.counter.c.writes)).scalar_one()
    with out_of_reach(source):
        idle = tick_process(source)
    assert (idle.returncode, json.loads(idle.stdout)) == (0, [])
    assert len(proxy.seen) == before
    with source.ledger.read() as conn:
        assert conn.execute(select(schema.counter.c.writes)).scalar_one() == stamp


def test_an_idle_tick_makes_no_client(source: Lake, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with its certificates costs more than the rest of an idle tick; it is made for the first request."""
    import httpx

    forward(source, receiver)
    source.tick("central")
    made: list[str] = []
    monkeypatch.setattr(httpx, "Client", lambda **_: made.append("client"))
    assert source.tick("central") == []
    assert made == []


@pytest.mark.both_ledgers
def test_f13_after_a_crash_the_same_unit_is_sent_first(source: Lake, receiver: Receiver, proxy: Proxy) -> None:
    """Killed after a chunk whose answer never came; more rows arrive: the same bytes again first, then the rest."""
    forward(source, receiver, url=proxy.url)
    proxy.rule = on_post(2, cut_request())
    assert tick_process(source).returncode == 6
    before = proxy.posts[1]
    source.append("messages", messages(10, 25))
    source.flush("messages")
    proxy.seen.clear()
    strand_json(source, "sink", "retry", "central")
    strand_json(source, "sink", "tick")
    after = proxy.posts
    assert (after[0].body, after[0].headers["Strand-Batch-Id"]) == (before.body, before.headers["Strand-Batch-Id"])
    ranges = [(int(post.headers["Strand-Since"]), int(post.headers["Strand-Until"])) for post in after]
    assert ranges[:3] == [(4, 7), (7, 10), (10, 11)], "rows that arrived later changed the unit"
    assert_once([f"p{n}" for n in range(25)], receiver.rows())


PLACES = [
    "deliver.before_open",
    "deliver.after_open",
    "forward.before_send",
    "forward.after_send",
    "deliver.before_close",
    "deliver.after_close",
]


@pytest.mark.parametrize("place", PLACES)
def test_f13_a_tick_that_dies_anywhere_is_finished_by_the_next(source: Lake, receiver: Receiver, place: str) -> None:
    """Wherever it dies, the next tick leaves each row at the receiver once, and the mark at the end."""
    forward(source, receiver)
    failpoints.arm(f"{place}=raise")
    with crash(source):
        source.tick("central")
    with reopened(source) as again:
        assert_finished(again, receiver)


@pytest.mark.parametrize("place", slices.turn(PLACES, 1))
def test_f13_a_tick_killed_anywhere_is_finished_by_the_next(source: Lake, receiver: Receiver, place: str) -> None:
    """The same of a real command."""
    forward(source, receiver)
    assert tick_process(source, STRAND_FAILPOINTS=f"{place}=exit").returncode == 137
    assert_finished(source, receiver)


def assert_finished(source: Lake, receiver: Receiver) -> None:
    """The next tick sends what is left of a delivery that died, and what has come since."""
    source.append("messages", messages(10, 15))
    source.flush("messages")
    source.tick("central")
    assert_once([f"p{n}" for n in range(15)], receiver.rows())
    assert watermark(source) == source.view().branch_table("messages").head.last_seq
    assert source.tick("central") == []


def test_f14_two_ticks_at_once_send_each_row_once(source: Lake, receiver: Receiver) -> None:
    """The stream's lease is one tick's: the other waits, and finds nothing left to do."""
    forward(source, receiver, chunk_rows=1)
    ticks = [start_tick(source) for _ in range(2)]
    for process in ticks:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
    assert_once([f"p{n}" for n in range(10)], receiver.rows())
    assert watermark(source) == source.view().branch_table("messages").head.last_seq


def test_f14_a_worker_and_a_command_that_tick_one_sink_send_each_row_once(
    lake: Lake, receiver: Receiver, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two real processes are at one sink at the same moment: nothing is sent twice, and no mark moves back.

    Workers share jobs, so two of them would not meet there; a command that does it in its own process does.
    """
    make_table(lake, partition_by=["source"])
    lake.append("messages", [message(n, source=f"s{n % 3}") for n in range(30)])
    lake.flush("messages")
    both, one_is_there, met = threading.Barrier(2), threading.Event(), threading.Event()

    def hold_the_first(seen: Seen) -> Hurt:
        """A ticker sends one chunk at a time, so the second chunk that comes is the other's."""
        if seen.method == "POST" and not met.is_set():
            one_is_there.set()
            both.wait(60)
            met.set()
        return PASS

    monkeypatch.setattr(proxy, "judge", hold_the_first)
    forward(lake, receiver, url=proxy.url, every="100ms", unit_rows=2, chunk_rows=1, timeout="60s")
    marks: dict[str, int] = {}

    def all_delivered() -> bool:
        now = {state.stream.partition: state.mark.seq for state in streams(lake) if state.mark}
        assert all(seq >= marks.get(partition, 0) for partition, seq in now.items()), "a mark moved back"
        marks.update(now)
        return sum(now.values()) == 31 + 30 + 29

    command = start_tick(lake, "--here")
    assert one_is_there.wait(60), "the command sent nothing"
    worker = start(lake, "worker")  # which goes on to another stream, where the command would wait for the first
    try:
        wait_until(all_delivered)
    finally:
        worker.send_signal(signal.SIGTERM)
        said = [one.communicate(timeout=60) for one in (worker, command)]
    assert [one.returncode for one in (worker, command)] == [0, 0], said
    sent = [post.headers["Strand-Until"] for post in proxy.posts]
    assert len(sent) == len(set(sent)), "a chunk was sent twice"
    assert_once([f"p{n}" for n in range(30)], receiver.rows())


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_f15_whichever_chunk_fails_nothing_is_skipped(
    source: Lake, receiver: Receiver, proxy: Proxy, number: int
) -> None:
    """Ten rows in four chunks: the n-th is refused for now, and the next tick goes on behind the last that arrived."""
    forward(source, receiver, url=proxy.url, max_attempts=2)
    proxy.rule = on_post(number, answer(500))
    source.tick("central")
    assert_once([f"p{n}" for n in range(10)], receiver.rows())
    assert watermark(source) == LAST


@pytest.mark.both_ledgers
def test_f16_a_sender_that_lost_its_marks_resumes_from_the_receivers(
    source: Lake, receiver: Receiver, proxy: Proxy
) -> None:
    """Its watermark is gone: it asks, and goes on where the receiver is; nothing is stored twice."""
    forward(source, receiver, url=proxy.url)
    source.tick("central")
    wipe_marks(source)
    proxy.seen.clear()
    source.append("messages", messages(10, 14))
    source.tick("central")
    assert sum(int(post.headers["Strand-Rows"]) for post in proxy.posts) == 4
    assert_once([f"p{n}" for n in range(14)], receiver.rows())


def test_f17_a_row_that_is_refused_becomes_a_dead_letter_and_the_others_arrive(
    source: Lake, receiver: Receiver, proxy: Proxy
) -> None:
    """The receiver names a row: it is kept with the answer, its neighbours arrive, and it can be replayed later."""
    forward(source, receiver, url=proxy.url)
    proxy.rule = refuse_part("p4")
    (done,) = source.tick("central")
    assert (done.outcome, done.rows, done.dead_letters) == ("delivered", 9, 1)
    assert_once([f"p{n}" for n in range(10) if n != 4], receiver.rows())
    (letter,) = strand_json(source, "sink", "dead", "central")
    assert json.loads(letter["row"])["part_id"] == "p4"
    assert letter["answer"]["reason"] == "I don't like it"
    proxy.rule = lambda _n, _seen: PASS
    (replayed,) = strand_json(source, "sink", "dead", "central", "--replay")
    assert replayed["outcome"] == "replayed"
    assert_once([f"p{n}" for n in range(10)], receiver.rows())
    assert strand_json(source, "sink", "dead", "central") == []


def test_f17_an_answer_that_names_no_row_is_found_by_halving(source: Lake, receiver: Receiver, proxy: Proxy) -> None:
    """A bare 422 says only that something is wrong; the row is found, and the rest arrives."""
    forward(source, receiver, url=proxy.url, chunk_rows=100)
    proxy.rule = refuse_part("p7", named=False)
    (done,) = source.tick("central")
    assert (done.outcome, done.rows, done.dead_letters) == ("delivered", 9, 1)
    assert_once([f"p{n}" for n in range(10) if n != 7], receiver.rows())


def test_f17_too_many_bad_rows_park_the_stream(source: Lake, receiver: Receiver, proxy: Proxy) -> None:
    """All of a chunk of ten rows refused says more about the receiver than about the rows."""
    forward(source, receiver, url=proxy.url, chunk_rows=100)
    rows = [{"index": n, "field": "body", "value": "?", "reason": "no"} for n in range(10)]
    said = {"error": {"code": "invalid_rows", "message": "bad", "hint": "", "detail": {"rows": rows, "bad": 10}}}
    proxy.rule = lambda _n, _seen: answer(422, json.dumps(said).encode())
    (done,) = source.tick("central")
    assert done.outcome == "parked"
    assert strand_json(source, "sink", "dead", "central") == []
    proxy.rule = lambda _n, _seen: PASS
    strand_json(source, "sink", "retry", "central")
    source.tick("central")
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


def test_f18_a_receiver_that_is_down_for_long_parks_the_delivery_and_loses_nothing(
    source: Lake, receiver: Receiver
) -> None:
    """After its attempts it waits for a person, in plain sight; then everything arrives."""
    forward(source, receiver, max_attempts=2)
    source.tick("central")
    receiver.kill()
    source.append("messages", messages(10, 20))
    (done,) = source.tick("central")
    assert done.outcome == "parked" and done.error is not None
    failed = tick_process(source)
    assert failed.returncode == 6
    page = strand_json(source, "status")
    (sink,) = page["sinks"]
    assert sink["parked"] == 1 and sink["lag"]["rows"] == 10
    receiver.start()
    assert strand_json(source, "sink", "retry", "central")["retried"] == 1
    source.tick("central")
    assert_once([f"p{n}" for n in range(20)], receiver.rows())


@pytest.mark.parametrize("status", [429, 503])
def test_f19_a_receiver_that_asks_for_patience_gets_it_and_others_go_on(
    lake: Lake, receiver: Receiver, proxy: Proxy, status: int
) -> None:
    """One stream is told to wait: it does, as told, and the other is not kept waiting."""
    receiver.make_table("other")
    make_table(lake)
    make_table(lake, "other")
    lake.append("messages", messages(0, 3))
    lake.append("other", messages(0, 3, "o"))
    lake.flush()
    forward(lake, receiver, url=proxy.url, max_attempts=3)
    told: list[float] = []

    def rule(_n: int, seen: Seen) -> Hurt:
        if "/messages" in seen.path and not told:
            told.append(time.monotonic())
            return answer(status, Retry_After="2")
        return PASS

    proxy.rule = rule
    began = time.monotonic()
    done = {one.table: one for one in lake.tick("central")}
    assert {one.outcome for one in done.values()} == {"delivered"}
    posts = [post.path.rpartition("/")[2] for post in proxy.posts]
    assert posts == ["messages", "other", "messages"], "the other stream waited too"
    assert time.monotonic() - began >= 2, "it did not wait as it was told"
    assert_once([f"p{n}" for n in range(3)], receiver.rows())


def test_f19_a_stop_interrupts_the_wait(source: Lake, receiver: Receiver, proxy: Proxy) -> None:
    """A shutdown does not sit out what a receiver asked for; the delivery stays open for the next tick."""
    forward(source, receiver, url=proxy.url, max_attempts=5)
    proxy.rule = lambda _n, _seen: answer(503, Retry_After="600")
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    (done,) = source.tick("central", stop=stop)
    assert done.outcome == "waiting"
    proxy.rule = lambda _n, _seen: PASS
    strand_json(source, "sink", "retry", "central")
    source.tick("central")
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


def test_f23_a_table_that_the_receiver_does_not_know_is_parked_and_others_flow(
    lake: Lake, receiver: Receiver, proxy: Proxy
) -> None:
    """Refused once, with the reason; no request is wasted on it at the next tick."""
    make_table(lake)
    make_table(lake, "strange")
    lake.append("messages", messages(0, 3))
    lake.append("strange", messages(0, 3))
    lake.flush()
    forward(lake, receiver, url=proxy.url, max_attempts=3)
    done = {one.table: one for one in lake.tick("central")}
    assert (done["messages"].outcome, done["strange"].outcome) == ("delivered", "parked")
    assert ["/strange" in post.path for post in proxy.posts].count(True) == 1, "a refusal was taken for a failure"
    assert "strange" in (done["strange"].error or "")
    proxy.seen.clear()
    lake.append("messages", messages(3, 6))
    lake.tick("central")
    assert all("/messages" in one.path for one in proxy.seen)
    assert_once([f"p{n}" for n in range(6)], receiver.rows())
    receiver.make_table("strange")
    strand_json(lake, "sink", "retry", "central")
    lake.tick("central")
    assert_once([f"p{n}" for n in range(3)], receiver.rows("select part_id from strange"))


@pytest.mark.parametrize("hurt", [drop_answer(), cut_request()], ids=["answer lost", "request cut"])
def test_f26_an_answer_that_is_lost_makes_no_second_row(
    source: Lake, receiver: Receiver, proxy: Proxy, hurt: Hurt
) -> None:
    """Stored, and the answer lost, or cut in the middle: sent again, acked, and stored once."""
    forward(source, receiver, url=proxy.url, max_attempts=3)
    proxy.rule = on_post(2, hurt)
    (done,) = source.tick("central")
    assert (done.outcome, done.rows) == ("delivered", 10)
    batch_ids = [post.headers["Strand-Batch-Id"] for post in proxy.posts]
    assert batch_ids[1] == batch_ids[2], "another chunk was sent than the one whose answer was lost"
    assert_once([f"p{n}" for n in range(10)], receiver.rows())
