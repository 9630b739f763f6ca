"""A commit whose answer was lost: what it stored is not stored a second time, and is acked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.kit import make_table, message, wait_until

from strandline.errors import Busy
from strandline.lake import Lake
from strandline.ledger.database.outcomes import UNKNOWN


def lose_one_answer(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The next commit of the ledger is done, and its answer is not heard; the list says when that was."""
    lost: list[str] = []
    database = lake.ledger.database
    write, at_once = database.transaction, database.write_at_once

    @contextmanager
    def losing(*arguments: Any) -> Iterator[Any]:
        with write(*arguments) as opened:
            yield opened
        if not lost:
            lost.append("commit")
            raise Busy("the ledger does not answer", reason="ledger_behind")

    def losing_at_once(steps: Any) -> Any:
        answers = at_once(steps)
        if not lost:
            lost.append("commit")
            raise Busy("the ledger does not answer", reason="ledger_behind", outcome=UNKNOWN)
        return answers

    monkeypatch.setattr(database, "transaction", losing)
    monkeypatch.setattr(database, "write_at_once", losing_at_once)
    return lost


@pytest.mark.parametrize("key", [None, "k"])
def test_an_append_alone_whose_answer_was_lost_is_stored_once_and_acked(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """The same transaction is run again under the same batch id, finds it, and that is the ack."""
    make_table(lake, row_key=[])
    lost = lose_one_answer(lake, monkeypatch)
    ack = lake.append("messages", [message(0), message(1)], idempotency_key=key)
    assert lost and (ack.rows, ack.first_seq, ack.last_seq) == (2, 2, 3)
    assert lake.view().sql("select n, count(*) from messages group by n order by n").rows() == [(0, 1), (1, 1)]
    assert lake.append("messages", [message(2)]).first_seq == 4


def test_an_append_that_fails_before_its_commit_is_not_tried_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be stored, so nobody waits twice for a ledger that is locked."""
    make_table(lake, row_key=[])
    tried: list[str] = []

    def locked(*_: Any) -> Any:
        tried.append("write")
        raise Busy("another process holds the ledger", reason="ledger_behind")

    monkeypatch.setattr(lake.ledger.database, "transaction", locked)
    monkeypatch.setattr(lake.ledger.database, "write_at_once", locked)
    with pytest.raises(Busy):
        lake.append("messages", [message(0)])
    assert tried == ["write"]


def test_a_group_whose_answer_was_lost_is_stored_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction was committed and the connection cut: the batch ids are there, and that is the ack."""
    make_table(lake, row_key=[])
    groups = lake.memory.appender._groups
    lost = lose_one_answer(lake, monkeypatch)
    acks: list[Any] = []
    gate = threading.Event()
    take = groups._take_queue

    def slowly() -> Any:
        gate.wait(5)
        return take()

    monkeypatch.setattr(groups, "_take_queue", slowly)
    threads = [
        threading.Thread(target=lambda n=n: acks.append(lake.append("messages", [message(n)], actor=f"a{n}")))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(groups._queue) == 4, 30)
    gate.set()
    for thread in threads:
        thread.join()
    assert lost == ["commit"]
    found = lake.view().sql("select n, count(*) from messages group by n order by n").rows()
    assert found == [(n, 1) for n in range(4)]
    assert sorted(ack.first_seq for ack in acks) == [2, 3, 4, 5]
