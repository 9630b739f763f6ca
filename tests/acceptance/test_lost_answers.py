"""The line to Postgres is cut: in the middle of a transaction, before its COMMIT arrives, after, and while it is away.

Whatever is lost on the way, each transaction takes effect once and its caller is told the truth.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import create
from strandline.errors import Busy
from strandline.lake import Lake
from strandline.ledger.database import postgres as postgres_ledger
from strandline.ledger.database import sessions
from tests import slices
from tests.delivery import Receiver, assert_once, forward, watermark
from tests.kit import assert_recovered, audits, log_part_ids, make_table, message, messages, part_ids
from tests.postgres import Server
from tests.wire import How, Wire, wire_before

HOWS: tuple[How, ...] = ("before", "after", "late")


@pytest.fixture
def wire(postgres: Server) -> Iterator[Wire]:
    with wire_before(postgres.port) as made:
        yield made


@pytest.fixture
def distant(postgres: Server, wire: Wire, tmp_path: Path) -> Iterator[Lake]:
    """A lake whose ledger and catalog are behind the wire."""
    database = postgres.new_database().rpartition("/")[2]
    with create.create(tmp_path / "lake", ledger=postgres.url(database, port=wire.port)) as made:
        make_table(made)
        yield made


def let_arrive(wire: Wire) -> threading.Thread:
    """Deliver a COMMIT whose sender is gone, a while after it has begun to ask what became of it."""

    def later() -> None:
        wire.hurt.wait(60)
        time.sleep(0.3)
        wire.may_arrive.set()

    thread = threading.Thread(target=later)
    thread.start()
    return thread


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("rows", [1, 100])
def test_f39_an_append_whose_answer_is_lost_is_stored_once_and_acked(
    distant: Lake, wire: Wire, how: How, rows: int
) -> None:
    """The caller gets its ack, with the seqs that its rows really have, and nothing is there twice."""
    wire.hurt_at(b"INSERT INTO batches", how)
    late = let_arrive(wire)
    ack = distant.append("messages", messages(0, rows))
    late.join()
    assert wire.hurt.is_set(), "nothing was cut"
    found = distant.view().sql("select _seq, part_id from messages order by _seq").rows()
    assert [row[1] for row in found] == [f"p{n}" for n in range(rows)]
    assert (ack.first_seq, ack.last_seq) == (found[0][0], found[-1][0])


def test_f39_an_append_cut_in_its_middle_is_run_again(distant: Lake, wire: Wire) -> None:
    """What was sent of it is undone by the server; the same rows are stored once."""
    wire.hurt_at(b"INSERT INTO batches", "before", words=b"INSERT INTO tail")
    distant.append("messages", messages(0, 3))
    assert wire.hurt.is_set()
    assert part_ids(distant) == ["p0", "p1", "p2"]


def test_f39_a_group_whose_answer_is_lost_is_stored_once(distant: Lake, wire: Wire) -> None:
    """Members that share a transaction share its fate, and each is told its own seqs."""
    wire.hurt_at(b"INSERT INTO batches", "after")
    acks: dict[int, int] = {}

    def append(n: int) -> None:
        acks[n] = distant.append("messages", [message(n)], actor=f"a{n % 3}").first_seq or 0

    threads = [threading.Thread(target=append, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wire.hurt.is_set()
    found = {row[0]: row[1] for row in distant.view().sql("select n, _seq from messages").rows()}
    assert found == acks


@pytest.mark.parametrize("rows", [1, 20_000])
def test_a_writer_that_is_stopped_while_it_sends_keeps_nobody_waiting(
    distant: Lake, wire: Wire, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has half of a statement, and no limit for the rest: whoever waits in vain ends that session.

    When the writer goes on, it runs its transaction again: its rows are stored once, behind the others'.
    """
    monkeypatch.setattr(postgres_ledger, "IDLE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(postgres_ledger, "LOCK_TIMEOUT_S", 2.0)
    acks: list[int] = []
    with Lake(distant.root) as sleeper, Lake(distant.root) as other:
        wire.hurt_at(b"INSERT INTO batches", "half", words=b"INSERT INTO batches")
        thread = threading.Thread(target=lambda: acks.append(sleeper.append("messages", messages(0, rows, "s")).rows))
        thread.start()
        assert wire.hurt.wait(60), "nobody was stopped"
        other.append("messages", [message(1)])
        wire.may_arrive.set()
        thread.join()
    assert acks == [rows]
    assert part_ids(distant) == ["p1", *(f"s{n}" for n in range(rows))]


TRANSACTIONS = {
    "begin": b"INSERT INTO intents",
    "staged": b"staged",
    "publish": b"published",
    "forget": b"DELETE FROM intents",
}


@pytest.mark.parametrize("how", slices.turn(HOWS, 1))
@pytest.mark.parametrize("name", TRANSACTIONS)
def test_f39_an_operation_whose_answer_is_lost_is_neither_undone_nor_repeated(
    distant: Lake, wire: Wire, name: str, how: How
) -> None:
    """The flush goes on as if nothing had happened: published once, nothing deleted, nothing for recovery to do."""
    distant.append("messages", messages(0, 10))
    wire.hurt_at(TRANSACTIONS[name], how)
    late = let_arrive(wire)
    (flushed,) = distant.flush("messages")
    late.join()
    assert wire.hurt.is_set(), "nothing was cut"
    assert (flushed.rows, log_part_ids(distant)) == (10, [f"p{n}" for n in range(10)])
    assert audits(distant) == [], "somebody had to recover it"
    assert_recovered(distant)


def test_f39_a_publish_cut_in_its_middle_is_run_again(distant: Lake, wire: Wire) -> None:
    """Half of the statements were answered: none of them holds, and all are run again under the same id."""
    distant.append("messages", messages(0, 10))
    wire.hurt_at(b"INSERT INTO snapshots", "before", words=b"UPDATE heads")
    (flushed,) = distant.flush("messages")
    assert wire.hurt.is_set() and flushed.rows == 10
    assert audits(distant) == []
    assert_recovered(distant)


@pytest.mark.parametrize("how", ["before", "after"])
def test_f39_iceberg_s_own_lost_answers_cost_no_row(distant: Lake, wire: Wire, how: How) -> None:
    """The catalog's answer to the staging commit is lost. A private branch is at stake, and the log is whole."""
    distant.append("messages", messages(0, 5))
    distant.flush("messages")
    distant.append("messages", messages(5, 10))
    wire.hurt_at(b"", how, words=b"UPDATE iceberg_tables")
    try:
        distant.flush("messages")
    except Exception as error:
        print(f"the flush was given up: {error}")
    assert wire.hurt.is_set(), "nothing was cut"
    distant.flush("messages")
    assert_once([f"p{n}" for n in range(10)], log_part_ids(distant))
    assert part_ids(distant) == [f"p{n}" for n in range(10)]
    assert_recovered(distant)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("words", [b"INSERT INTO deliveries", b"DELETE FROM deliveries"], ids=["open", "close"])
def test_f39_a_delivery_whose_answer_is_lost_is_sent_once(
    distant: Lake, wire: Wire, receiver: Receiver, words: bytes, how: How
) -> None:
    """A cut line while a delivery is opened or closed: the receiver has every row once, and the mark is at its end."""
    forward(distant, receiver)
    ack = distant.append("messages", messages(0, 10))
    distant.flush("messages")
    wire.hurt_at(words, how)
    late = let_arrive(wire)
    ticked = distant.tick("central")
    late.join()
    assert wire.hurt.is_set(), "nothing was cut"
    assert [(one.rows, one.outcome) for one in ticked] == [(10, "delivered")]
    assert watermark(distant) == ack.last_seq
    assert_once([f"p{n}" for n in range(10)], receiver.rows())
    assert distant.tick("central") == []


def test_f39_a_commit_that_nobody_can_ask_about_is_not_called_a_failure(
    distant: Lake, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is gone for good: the caller learns that it may be stored, and a second call under its key tells."""
    monkeypatch.setattr(sessions, "PATIENCE_S", 0.5)
    wire.hurt_at(b"INSERT INTO batches", "after")
    wire.refuses = True
    with pytest.raises(Busy, match="may be there or not") as caught:
        distant.append("messages", messages(0, 3), idempotency_key="k")
    assert caught.value.hint
    wire.refuses = False
    ack = distant.append("messages", messages(0, 3), idempotency_key="k")
    assert ack.rows == 3 and part_ids(distant) == ["p0", "p1", "p2"]
