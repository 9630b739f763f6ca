"""A commit whose answer was lost: the group is not stored a second time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.kit import make_table, message

from strandline.errors import Busy
from strandline.lake import Lake
from strandline.ledger import group_commit


def test_a_group_whose_answer_was_lost_is_stored_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction was committed and the connection cut: the batch ids are there, and that is the ack."""
    make_table(lake, row_key=[])
    appender = lake._appender
    real = group_commit.Appender._store
    lost: list[int] = []

    def losing(self: Any, appends: Any) -> Any:
        answers = real(self, appends)
        if len(appends) > 1 and not lost:
            lost.append(len(appends))
            raise Busy("the ledger does not answer", reason="ledger_behind")
        return answers

    monkeypatch.setattr(group_commit.Appender, "_store", losing)
    acks: list[Any] = []
    gate = threading.Event()
    take = appender._take_queue

    def slowly() -> Any:
        gate.wait(5)
        return take()

    monkeypatch.setattr(appender, "_take_queue", slowly)
    threads = [
        threading.Thread(target=lambda n=n: acks.append(lake.append("messages", [message(n)], actor=f"a{n}")))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    while len(appender._queue) < 4:
        pass
    gate.set()
    for thread in threads:
        thread.join()
    assert lost == [4], "the calls did not meet in one group"
    found = lake.view().sql("select n, count(*) from messages group by n order by n").rows()
    assert found == [(n, 1) for n in range(4)]
    assert sorted(ack.first_seq for ack in acks) == [2, 3, 4, 5]
