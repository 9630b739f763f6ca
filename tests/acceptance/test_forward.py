"""Every row to a receiver, once: the receiver is a real `strand serve`, and a proxy before it does the damage.

The sender is a real `strand sink tick` wherever it is killed or paused.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline import create
from strandline.lake import Lake
from tests.delivery import (
    GATEWAY,
    Receiver,
    assert_once,
    forward,
    pause,
    receiving,
    resume,
    start_tick,
    streams,
    tick_process,
    watermark,
    wipe_marks,
)
from tests.kit import environment, make_table, messages, part_ids, python_process, strand, strand_json, wait_until
from tests.proxy import PASS, Hurt, Proxy, Seen, answer, cut_request, drop_answer, proxy_before


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path / "receiver") as made:
        yield made


@pytest.fixture
def proxy(receiver: Receiver) -> Iterator[Proxy]:
    with proxy_before(receiver.url) as made:
        yield made


LAST = 11
"""The seq of the last of the ten messages: making the table took the first seq."""


@pytest.fixture
def source(lake: Lake) -> Lake:
    """A lake with ten messages in its log."""
    make_table(lake)
    lake.append("messages", messages(0, 10))
    lake.flush("messages")
    return lake


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
    """Seqs are given in the order of commits, so a row never appears below a watermark that has passed it."""
    make_table(lake)
    forward(lake, receiver, chunk_rows=50)
    code = (
        "import sys, strandline as sl\n"
        "from tests.kit import messages\n"
        "with sl.open(sys.argv[1]) as lake:\n"
        "    for n in range(40): lake.append('messages', messages(n * 5, n * 5 + 5, prefix=sys.argv[2]))\n"
    )
    writers = [python_process(code, str(lake.root), f"w{n}-") for n in range(3)]
    while any(writer.poll() is None for writer in writers):
        lake.tick("central")
    lake.tick("central")
    for writer in writers:
        assert writer.returncode == 0, writer.communicate()[1]
        writer.communicate()
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
        stamp = conn.exec_driver_sql("PRAGMA data_version").scalar()
    idle = tick_process(source)
    assert (idle.returncode, json.loads(idle.stdout)) == (0, [])
    assert len(proxy.seen) == before
    with source.ledger.read() as conn:
        assert conn.exec_driver_sql("PRAGMA data_version").scalar() == stamp


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
def test_f13_a_tick_killed_anywhere_is_finished_by_the_next(source: Lake, receiver: Receiver, place: str) -> None:
    """Wherever it dies, the next tick leaves each row at the receiver once, and the mark at the end."""
    forward(source, receiver)
    assert tick_process(source, STRAND_FAILPOINTS=f"{place}=exit").returncode == 137
    source.append("messages", messages(10, 15))
    source.flush("messages")
    strand_json(source, "sink", "tick")
    assert_once([f"p{n}" for n in range(15)], receiver.rows())
    assert watermark(source) == source.view().state("messages").head.last_seq
    assert source.tick("central") == []


def test_f14_two_ticks_at_once_send_each_row_once(source: Lake, receiver: Receiver) -> None:
    """The stream's lease is one tick's: the other waits, and finds nothing left to do."""
    forward(source, receiver, chunk_rows=1)
    ticks = [start_tick(source) for _ in range(2)]
    for process in ticks:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
    assert_once([f"p{n}" for n in range(10)], receiver.rows())
    assert watermark(source) == source.view().state("messages").head.last_seq


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
    proxy.rule = _refuse_part("p4")
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
    proxy.rule = _refuse_part("p7", named=False)
    (done,) = source.tick("central")
    assert (done.outcome, done.rows, done.dead_letters) == ("delivered", 9, 1)
    assert_once([f"p{n}" for n in range(10) if n != 7], receiver.rows())


def _refuse_part(part_id: str, *, named: bool = True) -> Any:
    """A rule: 422 for every chunk that holds this row."""
    import pyarrow as pa
    import zstandard

    def rule(_n: int, seen: Seen) -> Hurt:
        raw = zstandard.ZstdDecompressor().decompressobj().decompress(seen.body)
        parts = pa.ipc.open_stream(raw).read_all().column("part_id").to_pylist()
        if part_id not in parts:
            return PASS
        row = {"index": parts.index(part_id), "field": "body", "value": "?", "reason": "I don't like it"}
        said = {"error": {"code": "invalid_rows", "message": "bad rows", "hint": "", "detail": {"rows": [row]}}}
        return answer(422, json.dumps(said).encode() if named else b"no")

    return rule


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
    forward(lake, receiver, url=proxy.url)
    done = {one.table: one for one in lake.tick("central")}
    assert (done["messages"].outcome, done["strange"].outcome) == ("delivered", "parked")
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


def test_f42_two_sinks_of_one_type_have_nothing_in_common(source: Lake, receiver: Receiver, tmp_path: Path) -> None:
    """Two receivers: marks and dead letters are each sink's own, and removing one leaves the other alone."""
    with receiving(tmp_path / "second") as second:
        forward(source, receiver, "one", where="n < 5")
        forward(source, second, "two")
        done = {one.sink: one for one in source.tick()}
        assert (done["one"].rows, done["one"].withheld, done["two"].rows) == (5, 5, 10)
        strand_json(source, "sink", "remove", "one")
        source.append("messages", messages(10, 12))
        (left,) = source.tick()
        assert (left.sink, left.rows) == ("two", 2)
        assert_once([f"p{n}" for n in range(5)], receiver.rows())
        assert_once([f"p{n}" for n in range(12)], second.rows())


def test_f42_two_sinks_with_different_predicates_share_a_receiver(source: Lake, receiver: Receiver) -> None:
    """The same rows' halves by two sinks: the receiver keeps a mark for each."""
    forward(source, receiver, "low", where="n < 5")
    forward(source, receiver, "high", where="n >= 5")
    assert {one.rows for one in source.tick()} == {5}
    assert_once([f"p{n}" for n in range(10)], receiver.rows())
    assert [state.mark.seq for name in ("low", "high") for state in streams(source, name) if state.mark] == [LAST, LAST]


def test_f52_changed_settings_apply_from_the_next_unit_on(source: Lake, receiver: Receiver, proxy: Proxy) -> None:
    """Killed with a delivery open; predicate, format and chunk size are changed: the same unit first."""
    forward(source, receiver, url=proxy.url, where="n <> 3")
    assert tick_process(source, STRAND_FAILPOINTS="deliver.after_open=exit").returncode == 137
    changes = ["where=n > 100", "format=ndjson", "chunk_rows=100", "redact=body:hash"]
    strand_json(source, "sink", "set", "central", *[part for one in changes for part in ("--set", one)])
    source.append("messages", [*messages(10, 12), *messages(200, 202)])
    source.flush("messages")
    done = strand_json(source, "sink", "tick")
    assert sum(one["rows"] for one in done) == 9 + 2
    arrow = [post for post in proxy.posts if "arrow" in post.headers["Content-Type"]]
    assert [int(post.headers["Strand-Rows"]) for post in arrow] == [3, 3, 3], "the open unit was cut anew"
    found = dict(receiver.rows("select part_id, body from messages"))
    assert sorted(found) == sorted([*(f"p{n}" for n in range(10) if n != 3), "p200", "p201"])
    assert found["p1"] == "body of p1" and found["p200"] != "body of p200" and len(found["p200"]) == 64


PARTITIONS = [None, "", "..", "/", "a=b", "ü☃", "x" * 300, "Case", "case", "null", "all", "a/b", "%2F", " ", "a:b"]


def test_f58_every_partition_value_is_one_stream(lake: Lake, receiver: Receiver) -> None:
    """Null, empty, dots, slashes, case, length: each value has one mark, and its rows arrive once."""
    columns = {"part_id": "string", "source": "string?"}
    with Lake(receiver.root) as there:
        there.create_table("parts", columns)
    lake.create_table("parts", columns, partition_by=["source"])
    for n in range(2):
        lake.append("parts", [{"part_id": f"{n}-{i}", "source": value} for i, value in enumerate(PARTITIONS)])
        lake.flush("parts")
        if n == 0:
            forward(lake, receiver)
        done = lake.tick("central")
        assert [one.rows for one in done] == [1] * len(PARTITIONS)
    assert len(streams(lake)) == len(PARTITIONS)
    assert_once(
        [f"{n}-{i}" for n in range(2) for i in range(len(PARTITIONS))], receiver.rows("select part_id from parts")
    )


def test_f63_a_dead_letter_that_is_replayed_twice_is_stored_once(
    source: Lake, receiver: Receiver, proxy: Proxy
) -> None:
    """It lies below the mark, and is stored all the same; the answer is lost, it is replayed again: once."""
    forward(source, receiver, url=proxy.url)
    proxy.rule = _refuse_part("p4")
    source.tick("central")
    proxy.rule = lambda _n, _seen: drop_answer()
    refused = strand(source, "--json", "sink", "dead", "central", "--replay")
    assert refused.returncode == 6
    assert receiver.rows().count("p4") == 1
    proxy.rule = lambda _n, _seen: PASS
    strand_json(source, "sink", "dead", "central", "--replay")
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


def test_f64_a_sink_that_is_made_again_is_another_one(source: Lake, receiver: Receiver) -> None:
    """Removed and added again under the same name: another id, so it delivers everything anew, from its start."""
    forward(source, receiver)
    source.tick("central")
    strand_json(source, "sink", "remove", "central")
    forward(source, receiver, start="now")
    source.append("messages", messages(10, 13))
    (done,) = source.tick("central")
    assert done.rows == 3
    assert_once([f"p{n}" for n in range(13)], receiver.rows())


def test_f64_a_receiver_that_was_wiped_gets_everything_again(source: Lake, receiver: Receiver, tmp_path: Path) -> None:
    """It has no mark any more: the sender is told, and begins at its start."""
    forward(source, receiver)
    source.tick("central")
    receiver.stop()
    (tmp_path / "receiver").rename(tmp_path / "gone")
    fresh = Receiver(tmp_path / "receiver")
    fresh.make_table()
    fresh.port = receiver.port
    fresh.start()
    try:
        strand_json(source, "sink", "set", "central", "--set", f"token={fresh.token}")
        source.append("messages", messages(10, 12))
        source.tick("central")
        assert_once([f"p{n}" for n in range(12)], fresh.rows())
    finally:
        fresh.stop()


def test_f64_a_lake_made_anew_under_the_same_token_is_another_lake(
    source: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    """Its seqs begin at 1 again, and its rows are not taken for old ones."""
    forward(source, receiver)
    source.tick("central")
    with create.create(tmp_path / "anew") as anew:
        make_table(anew)
        anew.append("messages", messages(100, 105))
        forward(anew, receiver)
        anew.tick("central")
    assert_once([f"p{n}" for n in [*range(10), *range(100, 105)]], receiver.rows())


def test_f65_a_ticker_that_wakes_up_late_moves_no_mark(source: Lake, receiver: Receiver) -> None:
    """Paused after sending, past its lease; another goes on; awake again it changes nothing, and says so."""
    forward(source, receiver)
    sleeper = start_tick(source, STRAND_FAILPOINTS="deliver.before_close=sleep(3000)")
    try:
        wait_until(lambda: len(receiver.rows()) == 10)
        time.sleep(0.5)
        pause(sleeper)
        source.append("messages", messages(10, 15))
        source.flush("messages")
        wait_until(lambda: bool(source.tick("central", wait_s=0)) and watermark(source) == LAST + 5)
    finally:
        resume(sleeper)
    out, err = sleeper.communicate(timeout=60)
    assert sleeper.returncode == 5, out + err
    assert watermark(source) == LAST + 5
    source.tick("central")
    assert_once([f"p{n}" for n in range(15)], receiver.rows())


def test_a_rewind_sends_again_in_a_new_epoch(source: Lake, receiver: Receiver) -> None:
    """It is a person's word: the rows are sent again, and the receiver takes them again."""
    forward(source, receiver)
    source.tick("central")
    refused = strand(source, "--json", "sink", "rewind", "central", "--stream", "messages", "--to", "8")
    assert refused.returncode == 3 and "(8, 11]" in refused.stdout
    done = strand_json(source, "sink", "rewind", "central", "--stream", "messages", "--to", "8", "--yes")
    assert (done["was"], done["to"], done["epoch"]) == (LAST, 8, 2)
    (ticked,) = source.tick("central")
    assert ticked.rows == 3
    assert sorted(receiver.rows()) == sorted([f"p{n}" for n in range(10)] + ["p7", "p8", "p9"])
    for bad in ("-1", "99"):
        wrong = strand(source, "--json", "sink", "rewind", "central", "--stream", "messages", "--to", bad, "--yes")
        assert wrong.returncode == 3


def test_a_token_is_read_again_when_it_is_not_accepted(source: Lake, receiver: Receiver, tmp_path: Path) -> None:
    """Rotated while the sink runs: the file is read once more; a wrong one parks the stream."""
    file = tmp_path / "token"
    file.write_text("strand_wrong")
    source.add_sink(
        "central",
        "forward",
        {"url": receiver.url, "gateway": GATEWAY, "token_file": str(file), "max_attempts": 1},
        check=False,
    )
    (done,) = source.tick("central")
    assert done.outcome in ("parked", "failed") and "401" in (done.error or "")
    file.write_text(receiver.token)
    strand_json(source, "sink", "retry", "central")
    source.tick("central")
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


def test_no_token_is_ever_written_to_the_ledger(source: Lake, receiver: Receiver) -> None:
    """It goes into a file that only its owner can read."""
    forward(source, receiver)
    path = source.config.ledger_path
    assert path is not None
    for file in path.parent.glob("ledger.db*"):
        assert receiver.token.encode() not in file.read_bytes()
    (secret,) = (source.root / "secrets").iterdir()
    assert secret.stat().st_mode & 0o077 == 0


def test_units_are_bounded_and_worked_off_in_order(source: Lake, receiver: Receiver, proxy: Proxy) -> None:
    """A backlog goes unit by unit, oldest first, each closed before the next."""
    forward(source, receiver, url=proxy.url, unit_rows=4)
    (done,) = source.tick("central")
    assert (done.units, done.rows, done.since, done.until) == (3, 10, 0, LAST)
    ranges = [(int(post.headers["Strand-Since"]), int(post.headers["Strand-Until"])) for post in proxy.posts]
    assert ranges == [(0, 4), (4, 5), (5, 8), (8, 9), (9, LAST)]


@pytest.mark.parametrize("format_", ["arrow", "ndjson"])
@pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
def test_every_format_and_compression_arrives_the_same(
    lake: Lake, receiver: Receiver, format_: str, compression: str
) -> None:
    """Types survive the way: decimals, times, lists, maps, binary, json, nulls."""
    import datetime as dt
    import decimal

    columns = {
        "id": "string",
        "d": "decimal(10,2)?",
        "t": "timestamp?",
        "l": "list<long>?",
        "m": "map<string,long>?",
        "b": "binary?",
        "j": "json?",
        "s": "struct<a:long,b:string?>?",
    }
    row = {
        "id": "1",
        "d": decimal.Decimal("1.50"),
        "t": dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC),
        "l": [1, 2],
        "m": {"k": 1},
        "b": b"\x00\xff",
        "j": {"x": [1, None]},
        "s": {"a": 1, "b": None},
    }
    lake.create_table("kinds", columns)
    receiver.make_table("kinds", columns)
    lake.append("kinds", [row, {"id": "2"}])
    forward(lake, receiver, format=format_, compression=compression)
    lake.tick("central")
    query = "select * from kinds order by id"
    assert receiver.rows(query) == lake.view().sql(query).rows()


def test_a_worker_flushes_and_ticks_and_ends_when_it_is_told_to(source: Lake, receiver: Receiver) -> None:
    """A worker flushes and ticks by itself, and ends cleanly when it is told to."""
    import signal
    import subprocess
    import sys

    forward(source, receiver, every="1s")
    source.append("messages", messages(10, 30))
    worker = subprocess.Popen(
        [sys.executable, "-m", "strandline", "--lake", str(source.root), "--json", "worker"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(receiver.rows()) == 30)
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=60)
    assert worker.returncode == 0, out + err
    assert json.loads(out)["stopped"]
    assert time.monotonic() - began < 30
    assert_once(part_ids(source), receiver.rows())
