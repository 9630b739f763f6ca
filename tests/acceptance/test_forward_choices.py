"""Which rows go where, under which settings and in whose name: each sink and each lake has marks of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from strandline import create
from strandline.lake import Lake
from tests.delivery import (
    GATEWAY,
    LAST,
    Receiver,
    assert_once,
    forward,
    pause,
    receiving,
    refuse_part,
    resume,
    start_tick,
    streams,
    tick_process,
    watermark,
    wiped,
)
from tests.kit import environment, in_ledger, make_table, message, messages, part_ids, strand, strand_json, wait_until
from tests.proxy import PASS, Proxy, drop_answer


def test_f42_two_sinks_of_one_type_have_nothing_in_common(
    source: Lake, receiver: Receiver, proxy: Proxy, tmp_path: Path
) -> None:
    """Two receivers: marks, epochs and dead letters are each sink's own, and removing one leaves the other alone."""
    with receiving(tmp_path / "second") as second:
        forward(source, receiver, "one", url=proxy.url, where="n < 5")
        proxy.rule = refuse_part("p4")
        assert [(done.sink, done.rows, done.withheld) for done in source.tick("one")] == [("one", 4, 5)]
        forward(source, second, "two")
        assert [(done.sink, done.rows) for done in source.tick()] == [("two", 10)]
        assert [len(strand_json(source, "sink", "dead", name)) for name in ("one", "two")] == [1, 0]
        strand_json(source, "sink", "rewind", "two", "--stream", "messages", "--to", str(LAST), "--yes")
        assert [state.mark.epoch for name in ("one", "two") for state in streams(source, name) if state.mark] == [1, 2]
        assert len(strand_json(source, "sink", "dead", "one")) == 1
        strand_json(source, "sink", "remove", "one", "--force")
        source.append("messages", messages(10, 12))
        assert [(left.sink, left.rows) for left in source.tick()] == [("two", 2)]
        assert_once([f"p{n}" for n in range(4)], receiver.rows())
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
    proxy.rule = refuse_part("p4")
    source.tick("central")
    proxy.rule = lambda _n, _seen: drop_answer()
    refused = strand(source, "--json", "sink", "dead", "central", "--replay")
    assert refused.code == 6
    assert receiver.rows().count("p4") == 1
    proxy.rule = lambda _n, _seen: PASS
    strand_json(source, "sink", "dead", "central", "--replay")
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


def test_f64_a_sink_that_is_made_again_is_another_one(source: Lake, receiver: Receiver) -> None:
    """Removed and added again under the same name, for other rows: the mark of the one before it is not its own."""
    forward(source, receiver, where="n >= 5")
    source.tick("central")
    strand_json(source, "sink", "remove", "central")
    forward(source, receiver, where="n < 5")
    (done,) = source.tick("central")
    assert (done.rows, done.withheld) == (5, 5)
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


def test_f64_a_receiver_that_was_wiped_gets_everything_again(source: Lake, receiver: Receiver, tmp_path: Path) -> None:
    """It is another lake now: the stream parks, and on a person's word begins at its start."""
    forward(source, receiver)
    source.tick("central")
    with wiped(receiver) as fresh:
        strand_json(source, "sink", "set", "central", "--set", f"token={fresh.token}")
        source.append("messages", messages(10, 12))
        (done,) = source.tick("central")
        assert (done.outcome, fresh.rows()) == ("parked", [])
        strand_json(source, "sink", "retry", "central", "--accept-receiver")
        source.tick("central")
        assert_once([f"p{n}" for n in range(12)], fresh.rows())


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
    forward(source, receiver, chunk_rows=100)
    sleeper = start_tick(source, STRAND_FAILPOINTS="forward.after_send=sleep(4000)")
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
    assert [one["outcome"] for one in json.loads(out)] == ["lost"], "it was stopped by something else than its lease"
    assert watermark(source) == LAST + 5
    source.tick("central")
    assert_once([f"p{n}" for n in range(15)], receiver.rows())


def test_a_rewind_sends_again_in_a_new_epoch(source: Lake, receiver: Receiver) -> None:
    """It is a person's word: the rows are sent again, and the receiver takes them again."""
    forward(source, receiver)
    source.tick("central")
    refused = strand(source, "--json", "sink", "rewind", "central", "--stream", "messages", "--to", "8")
    assert refused.code == 3 and "(8, 11]" in refused.out
    done = strand_json(source, "sink", "rewind", "central", "--stream", "messages", "--to", "8", "--yes")
    assert (done["was"], done["to"], done["epoch"]) == (LAST, 8, 2)
    (ticked,) = source.tick("central")
    assert ticked.rows == 3
    assert sorted(receiver.rows()) == sorted([f"p{n}" for n in range(10)] + ["p7", "p8", "p9"])
    for bad in ("-1", "99"):
        wrong = strand(source, "--json", "sink", "rewind", "central", "--stream", "messages", "--to", bad, "--yes")
        assert wrong.code == 3


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


@pytest.mark.sqlite_only
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


def test_f81_a_row_that_the_receiver_can_not_place_becomes_a_dead_letter(lake: Lake, receiver: Receiver) -> None:
    """Its value is too long for a partition there: that row alone stays behind, and the stream goes on."""
    with Lake(receiver.root) as there:
        make_table(there, "parts", partition_by=["body"])
    make_table(lake, "parts")
    lake.append("parts", [*messages(0, 2), {**message(2), "body": "x" * 2001}, *messages(3, 5)])
    forward(lake, receiver)
    (done,) = lake.tick("central")
    assert (done.outcome, done.rows, done.dead_letters) == ("delivered", 4, 1)
    (letter,) = strand_json(lake, "sink", "dead", "central")
    assert "p2" in letter["row"] and letter["answer"]["field"] == "body"
    assert_once(["p0", "p1", "p3", "p4"], receiver.rows("select part_id from parts"))


def test_f88_a_sink_whose_condition_is_no_longer_taken_sends_nothing_until_it_is_changed(
    source: Lake, receiver: Receiver
) -> None:
    """A condition that an older version took stops the stream with a clear word; then each row arrives once."""
    forward(source, receiver, "late", where="n < 5")
    assert [done.rows for done in source.tick()] == [5]
    source.append("messages", messages(10, 12))
    ((settings,),) = in_ledger(source, "SELECT settings FROM sinks")
    changing = json.dumps({**json.loads(settings), "where": "n < 5 or age(_at) < interval 1 day"})
    in_ledger(source, "UPDATE sinks SET settings = :settings", settings=changing)
    for _ in range(2):
        (stopped,) = source.tick()
        assert (stopped.rows, stopped.outcome) == (0, "failed")
        assert "age()" in (stopped.error or "")
    allowing = json.dumps({**json.loads(settings), "where": "n < 5 or n >= 10"})
    in_ledger(source, "UPDATE sinks SET settings = :settings", settings=allowing)
    assert [done.rows for done in source.tick()] == [2]
    assert_once([f"p{n}" for n in (*range(5), 10, 11)], receiver.rows())
