"""The receiver without HTTP: each row once, whatever is sent again."""

from __future__ import annotations

import threading

import pytest

from strandline import failpoints
from strandline.errors import Conflict, Forbidden, InvalidRows, NotFound
from strandline.lake import Lake
from strandline.ledger.rows.inbound import read_mark
from strandline.model.delivery.inbound import Received, Source
from strandline.model.delivery.sinks import Stream
from tests.kit import crash, make_table, messages, part_ids, reopened
from tests.server.chunks import AT, STREAM, Sender, origin, send


@pytest.fixture
def sender(lake: Lake) -> Sender:
    make_table(lake, row_key=[])
    return Sender()


def edge(*seqs: int) -> list[tuple[str, int]]:
    return [("edge", seq) for seq in seqs]


def test_rows_are_stored_once_and_the_mark_moves(lake: Lake, sender: Sender) -> None:
    """A resend is acked and stores nothing; an overlap stores what is new; a gap tells the mark."""
    assert send(lake, sender, 0, 5, opens=True) == Received(5, 5, 1)
    assert send(lake, sender, 0, 5, opens=True) == Received(0, 5, 1)
    assert send(lake, sender, 3, 8) == Received(3, 8, 1)
    with pytest.raises(Conflict) as caught:
        send(lake, sender, 9, 12)
    assert (caught.value.detail["kind"], caught.value.detail["mark"]) == ("gap", 8)
    assert origin(lake) == edge(*range(1, 9))


def test_a_range_without_rows_moves_the_mark(lake: Lake, sender: Sender) -> None:
    """What was withheld or is dead leaves no gap: the range says what was considered."""
    assert send(lake, sender, 0, 9, [], opens=True) == Received(0, 9, 1)
    assert not lake.view().branch_table("messages").table.inbound
    assert send(lake, sender, 9, 30, [12, 20]) == Received(2, 30, 1)
    assert lake.view().branch_table("messages").table.inbound
    assert origin(lake) == edge(12, 20)


def test_a_wiped_receiver_asks_for_the_start(lake: Lake, sender: Sender) -> None:
    """Without a mark nothing but the start is taken: the rows before would be missing, and nobody would know."""
    with pytest.raises(Conflict) as caught:
        send(lake, sender, 5, 8)
    assert caught.value.detail == {"kind": "gap", "expected": None, "actual": 5, "mark": None, "epoch": None}
    assert origin(lake) == []


def test_a_higher_epoch_sends_again_and_a_lower_one_is_over(lake: Lake, sender: Sender) -> None:
    """A rewind stores what it sends a second time, on purpose; who still sends in the old epoch is refused."""
    send(lake, sender, 0, 5, opens=True)
    assert send(lake, sender.at(epoch=2), 2, 4) == Received(2, 4, 2)
    with pytest.raises(Conflict) as caught:
        send(lake, sender, 5, 8)
    assert caught.value.detail["kind"] == "epoch_old"
    assert origin(lake) == edge(1, 2, 3, 4, 5, 3, 4)


def test_a_replayed_dead_letter_is_stored_once(lake: Lake, sender: Sender) -> None:
    """It lies below the mark and is stored all the same; a second replay is acked and stores nothing."""
    send(lake, sender, 0, 5, [1, 2, 4, 5], opens=True)
    assert send(lake, sender, 2, 3, dead=3) == Received(1, 5, 1)
    assert send(lake, sender, 2, 3, dead=3) == Received(0, 5, 1)
    assert send(lake, sender.at(epoch=2), 2, 3, dead=3) == Received(0, 5, 1)
    assert origin(lake) == edge(1, 2, 4, 5, 3)


def test_a_dead_letter_replayed_ahead_of_its_range_is_not_stored_with_it(lake: Lake, sender: Sender) -> None:
    """The order of a replay and of the range it belongs to does not matter."""
    send(lake, sender, 0, 2, opens=True)
    assert send(lake, sender, 3, 4, dead=4) == Received(1, 2, 1)
    assert send(lake, sender, 2, 6) == Received(3, 6, 1)
    assert origin(lake) == edge(1, 2, 4, 3, 5, 6)


def test_marks_belong_to_ids(lake: Lake, sender: Sender) -> None:
    """A lake made anew, a sink added again, another partition: each begins at its own start."""
    send(lake, sender, 0, 3, opens=True)
    others = [
        Source("lake2", "sink1", STREAM),
        Source("lake1", "sink2", STREAM),
        Source("lake1", "sink1", Stream("branch1", "table2", "all")),
        Source("lake1", "sink1", Stream("branch1", "table1", "[null]")),
        Source("lake1", "sink1", Stream("branch1", "table1", '["NULL"]')),
        Source("lake1", "sink1", Stream("branch1", "table1", '["null"]')),
        Source("lake1", "sink1", Stream("branch1", "table1", '[""]')),
    ]
    for source in others:
        with pytest.raises(Conflict):
            send(lake, sender.at(source=source), 3, 4)
        assert send(lake, sender.at(source=source), 0, 1, opens=True) == Received(1, 1, 1)
    assert len(origin(lake)) == 3 + len(others)


def test_a_stream_belongs_to_the_gateway_that_began_it(lake: Lake, sender: Sender) -> None:
    send(lake, sender, 0, 3, opens=True)
    with pytest.raises(Forbidden):
        send(lake, sender.at(gateway="other"), 3, 5)
    assert origin(lake) == edge(1, 2, 3)


def test_a_stream_stays_with_its_table(lake: Lake, sender: Sender) -> None:
    """A stream that went to one table is not continued in another: the rows before would not be there."""
    from tests.server import chunks

    send(lake, sender, 0, 3, opens=True)
    make_table(lake, "others", row_key=[])
    body = chunks.ndjson(chunks.rows([4]))
    taken = chunks.chunk_rows.from_lines(body)
    with pytest.raises(Conflict) as caught:
        lake.receive("others", sender.chunk(3, 4, body, 1), taken, gateway="edge")
    assert caught.value.detail["kind"] == "table_moved"


def test_a_bad_row_stores_nothing_and_an_unknown_table_is_named(lake: Lake, sender: Sender) -> None:
    from tests.server import chunks

    rows = chunks.rows([1, 2, 3])
    rows[1]["n"] = "many"
    body = chunks.ndjson(rows)
    taken = chunks.chunk_rows.from_lines(body)
    with pytest.raises(InvalidRows) as caught:
        lake.receive("messages", sender.chunk(0, 3, body, 3, opens=True), taken, gateway="edge")
    assert [(row["index"], row["field"]) for row in caught.value.detail["rows"]] == [(1, "n")]
    with pytest.raises(NotFound):
        lake.receive("nowhere", sender.chunk(0, 3, body, 3, opens=True), taken, gateway="edge")
    assert origin(lake) == []


@pytest.mark.parametrize("name", ["inbound.before_commit", "inbound.after_commit"])
@pytest.mark.parametrize("dead", [False, True])
def test_a_receiver_that_dies_stores_a_chunk_whole_or_not_at_all(
    lake: Lake, sender: Sender, name: str, dead: bool
) -> None:
    """Whichever it was, the sender does not know; it sends the same again, and every row is there once."""
    send(lake, sender, 0, 5, [1, 2, 4, 5], opens=True)
    since, until, more = (2, 3, {"dead": 3}) if dead else (5, 9, {})
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        send(lake, sender, since, until, **more)
    with reopened(lake) as again:
        new = until - since
        expected = 4 if name == "inbound.before_commit" else 4 + new
        assert len(origin(again)) == expected
        assert send(again, sender, since, until, **more).stored == 4 + new - expected
        assert len(origin(again)) == len(set(origin(again))) == 4 + new


def test_many_senders_of_one_stream_store_each_row_once(lake: Lake, sender: Sender) -> None:
    """Several processes that all think they are the one: chunks that overlap at the same moment."""
    send(lake, sender, 0, 1, opens=True)
    failures: list[BaseException] = []

    def work(step: int) -> None:
        try:
            for since in range(1, 61, step):
                try:
                    send(lake, sender, since, since + step)
                except Conflict as error:
                    assert error.detail["kind"] == "gap"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(step,)) for step in (1, 2, 3, 4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with lake.ledger.read() as conn:
        found = read_mark(conn, sender.source)
    assert found is not None
    assert origin(lake) == edge(*range(1, found.seq + 1))


def test_origin_columns_are_hidden_and_can_be_named(lake: Lake, sender: Sender) -> None:
    """They are there only from the first forwarded row on, null for rows that were appended here, and for tables
    that never received any.
    """
    lake.append("messages", messages(100, 102))
    make_table(lake, "plain")
    lake.append("plain", messages(0, 1))
    send(lake, sender, 0, 1, opens=True)
    lake.append("messages", messages(102, 103))
    view = lake.view()
    assert view.table("messages").column_names == ["part_id", "source", "n", "body"]
    assert view.sql("select * from messages").columns == ["part_id", "source", "n", "body"]
    found = view.sql(
        "select part_id, _actor, _gateway, _origin_seq, _origin_at, _origin_actor from messages order by _seq"
    )
    assert found.rows() == [
        ("p100", "tester", None, None, None, None),
        ("p101", "tester", None, None, None, None),
        ("p1", "edge", "edge", 1, AT, "actor1"),
        ("p102", "tester", None, None, None, None),
    ]
    assert view.sql("select part_id, _gateway from plain").rows() == [("p0", None)]
    joined = view.sql("select * from messages join plain using (part_id)").columns
    assert not [name for name in joined if name.startswith("_")]
    assert part_ids(lake) == ["p100", "p101", "p1", "p102"]
    batches = list(view.read("messages"))
    assert sum(batch.num_rows for batch in batches) == 4 and "_origin_seq" in batches[0].schema.names
