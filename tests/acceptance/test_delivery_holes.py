"""Ways to lose, repeat or leak a row in delivery that a review found, each closed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from strandline.errors import BadRequest
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.publish.leases import Lease
from strandline.operations.core.watch import Watch
from strandline.sinks.tick import Ticker
from tests.delivery import GATEWAY, LAST, Receiver, assert_once, forward, refuse_part, streams, watermark, wiped
from tests.kit import make_table, message, messages, strand_json
from tests.proxy import PASS, Proxy, answer


def test_a_replayed_letter_is_sent_again_to_a_receiver_that_was_wiped(
    source: Lake, receiver: Receiver, proxy: Proxy, tmp_path: Path
) -> None:
    """It was stored by its replay, and is gone with the rest: sent again with the rest, it must not be left out."""
    forward(source, receiver, url=proxy.url)
    proxy.rule = refuse_part("p4")
    source.tick("central")
    proxy.rule = lambda _n, _seen: PASS
    strand_json(source, "sink", "dead", "central", "--replay")
    with wiped(receiver) as fresh:
        strand_json(source, "sink", "set", "central", "--set", f"token={fresh.token}")
        source.append("messages", messages(10, 12))
        strand_json(source, "sink", "retry", "central", "--accept-receiver")
        source.tick("central")
        assert_once([f"p{n}" for n in range(12)], fresh.rows())


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"stored": 3, "mark": 2, "epoch": 1}', b'{"mark": "x"}'])
def test_an_answer_that_is_no_acknowledgement_is_none(
    source: Lake, receiver: Receiver, proxy: Proxy, body: bytes
) -> None:
    """A portal's page with status 200 says nothing about the rows."""
    forward(source, receiver, url=proxy.url, max_attempts=2)
    proxy.rule = lambda n, _seen: answer(200, body) if n == 1 else PASS
    (done,) = source.tick("central")
    assert (done.outcome, done.rows) == ("delivered", 10)
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


@pytest.mark.parametrize("status", [400, 404, 302, 502])
def test_a_page_of_somebody_in_between_makes_no_dead_letters(
    source: Lake, receiver: Receiver, proxy: Proxy, status: int
) -> None:
    """Only a receiver that names rows, or a 422, is about rows; the rest is parked or tried again."""
    forward(source, receiver, url=proxy.url)
    proxy.rule = lambda _n, _seen: answer(status, b'{"error": "Bad Gateway"}')
    (done,) = source.tick("central")
    assert (done.outcome, done.dead_letters) == ("parked", 0)
    proxy.rule = lambda _n, _seen: PASS
    strand_json(source, "sink", "retry", "central")
    source.tick("central")
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


def test_a_receiver_that_is_ahead_of_its_sender_is_no_acknowledgement(source: Lake, receiver: Receiver) -> None:
    """The sender's ledger went back in time: units that the receiver seems to have are parked, and not counted."""
    import sqlite3

    forward(source, receiver)
    source.tick("central")
    with sqlite3.connect(receiver.root / "ledger.db", timeout=30) as connection:
        connection.execute("UPDATE inbound_marks SET seq = 5000")
    connection.close()
    source.append("messages", messages(10, 12))
    (done,) = source.tick("central")
    assert done.outcome == "parked" and "older copy" in (done.error or "")
    assert watermark(source) == LAST


def test_settings_that_change_during_a_tick_hold_from_its_next_unit_on(
    source: Lake, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redaction that is set while a backlog goes out does not wait for the end of the backlog."""
    forward(source, receiver, unit_rows=4)
    real = Ticker._deliver
    changed: list[bool] = []

    def changing(self: Any, *arguments: Any) -> bool:
        went_on = real(self, *arguments)
        if not changed:
            changed.append(True)
            strand_json(source, "sink", "set", "central", "--set", "redact=body:hash")
        return went_on

    monkeypatch.setattr(Ticker, "_deliver", changing)
    source.tick("central")
    found = dict(receiver.rows("select part_id, body from messages"))
    assert found["p0"] == "body of p0"
    assert all(len(found[f"p{n}"]) == 64 for n in range(4, 10)), "rows went out as they were"


def test_a_partition_column_is_neither_dropped_nor_redacted(lake: Lake, tmp_path: Path) -> None:
    """Its value names the stream, in paths and headers, and would leave all the same."""
    make_table(lake, partition_by=["source"])
    for setting in ("redact", "drop_columns"):
        with pytest.raises(BadRequest, match="partitioned"):
            lake.add_sink("x", "blob", {"uri": f"file://{tmp_path}/out", setting: "source"})


@pytest.mark.sqlite_only
def test_secrets_of_a_catalog_are_put_away_and_addresses_hold_none(lake: Lake) -> None:
    """They are in no byte of the ledger, and no report shows them."""
    make_table(lake)
    given = {"uri": "jdbc:postgresql://db/x", "warehouse": "file:///w", "catalog.jdbc.password": "hush-hush"}
    lake.add_sink("copy", "iceberg", given, check=False)
    path = lake.config.ledger_path
    assert path is not None
    assert all(b"hush-hush" not in file.read_bytes() for file in path.parent.glob("ledger.db*"))
    assert "hush-hush" not in json.dumps(strand_json(lake, "sink", "show", "copy"))
    with pytest.raises(BadRequest, match="password"):
        lake.add_sink("x", "forward", {"url": "https://me:pw@host"}, check=False)
    with pytest.raises(BadRequest, match="password"):
        lake.add_sink("x", "iceberg", {"uri": "jdbc:postgresql://db/x?password=p", "warehouse": "s3://w"}, check=False)


def test_a_token_belongs_to_its_sink_and_not_to_its_name(lake: Lake, receiver: Receiver) -> None:
    """Renamed, and another made under the old name: each keeps its own."""
    make_table(lake)
    forward(lake, receiver, "a", token="one")
    strand_json(lake, "sink", "rename", "a", "b")
    forward(lake, receiver, "a", token="two")
    from strandline.sinks.instances import with_secrets

    found = {sink.name: with_secrets(lake.root, sink)["token"] for sink in lake.sinks()}
    assert found == {"a": "two", "b": "one"}
    strand_json(lake, "sink", "remove", "a")
    assert len(list((lake.root / "secrets").glob("*.json"))) == 1


def test_a_wrong_section_of_strand_toml_stops_no_other_sink(source: Lake, receiver: Receiver) -> None:
    """It is reported; the worker and the other sinks go on. A token that is changed there is taken."""
    file = source.root / "strand.toml"
    before = file.read_text()
    good = f'[sinks.good]\ntype = "forward"\nurl = "{receiver.url}"\ngateway = "{GATEWAY}"\ntoken = "TOKEN"\n'
    bad = '[sinks.bad]\ntype = "blob"\nuri = "file:///x"\ntables = ["later"]\n'
    file.write_text(f"{before}\n{bad}\n{good}max_attempts = 1\n")
    with Lake(source.root) as again:
        (done,) = again.tick()
        assert done.sink == "good" and done.error is not None
    file.write_text(file.read_text().replace("TOKEN", receiver.token))
    with Lake(source.root) as again:
        again.sinks()
        strand_json(again, "sink", "retry", "good")
        again.tick()
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


def test_a_clock_that_was_ahead_once_keeps_no_delivery_waiting(source: Lake, receiver: Receiver, proxy: Proxy) -> None:
    """The ledger's time never goes back, and may be far ahead of the clock: waits are counted on the clock."""
    forward(source, receiver, url=proxy.url, max_attempts=3)
    with source.ledger.write() as txn:
        txn.conn.execute(update(schema.counter).values(last_at_us=schema.counter.c.last_at_us + 7_200_000_000))
    proxy.rule = lambda n, _seen: answer(503, Retry_After="1") if n == 1 else PASS
    began = time.monotonic()
    (done,) = source.tick("central")
    assert done.outcome == "delivered" and time.monotonic() - began < 60
    assert_once([f"p{n}" for n in range(10)], receiver.rows())


def test_leases_of_one_name_held_one_after_another_are_not_one_silent_holder() -> None:
    """A stream's lease comes back with the same fence and beat; only its holder tells them apart."""
    watch = Watch(ttl_s=0.01)
    holder = '{"host": "elsewhere", "boot": "b", "namespace": "n", "pid": 1, "started": "s", "instance": "i"}'
    for n in range(5):
        assert not watch.is_dead(Lease("stream:x", 1, holder, f"holder-{n}", 0, 0))
        time.sleep(0.01)


def test_a_rewind_reads_the_mark_under_the_lease(source: Lake, receiver: Receiver) -> None:
    """Nothing was delivered yet: there is nothing to send again, and no epoch to begin."""
    from tests.kit import call

    forward(source, receiver)
    back = ["sink", "rewind", "central", "--stream", "messages", "--yes", "--to"]
    early = call("--lake", source.root, "--json", *back, "0")
    assert early.code == 3 and "delivered" in early.error["message"]
    source.tick("central")
    for to, epoch in (("5", 2), ("4", 3)):
        done = strand_json(source, *back, to)
        assert done["epoch"] == epoch
    (state,) = streams(source)
    assert state.mark is not None and (state.mark.epoch, state.mark.seq) == (3, 4)


def test_a_missing_token_file_stops_no_other_sink(source: Lake, receiver: Receiver) -> None:
    """It is reported as that sink's failure."""
    source.add_sink("a", "forward", {"url": receiver.url, "token_file": "/nowhere"}, check=False)
    forward(source, receiver, "b")
    done = {one.sink: one for one in source.tick()}
    assert (done["a"].outcome, done["b"].outcome) == ("failed", "delivered")
    source.append("messages", [message(10)])
    assert {one.sink: one.outcome for one in source.tick()} == {"a": "failed", "b": "delivered"}
