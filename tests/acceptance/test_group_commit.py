"""Group commit: calls that are stored together are still calls of their own."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pyarrow as pa
import pytest
from sqlalchemy import update

from strandline.errors import Damaged, InvalidRows
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.rows.appends import Append, heads_of, store
from strandline.ledger.rows.encode import encode_rows
from strandline.ledger.rows.group_commit import FEW_ROWS, _Joint
from strandline.ledger.rows.groups import Member
from strandline.ledger.rows.intake import Intake
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.tables import Ack
from tests.kit import make_table, message, messages, part_ids, wait_until

pytestmark = pytest.mark.both_ledgers

Outcome = Ack | BaseException


class Group:
    """Calls that wait behind a leader, which waits for `txn`: they are one group when it ends."""

    def __init__(self, lake: Lake, txn: Txn) -> None:
        self.lake = lake
        self.txn = txn
        self.outcomes: list[Outcome | None] = []
        self._threads: list[threading.Thread] = []

    def append(self, rows: Any, *, name: str | None = None, **options: Any) -> None:
        """Start an append in a thread of this name, and return when it is in its place."""
        at, groups = len(self.outcomes), self.lake.memory.appender._groups
        self.outcomes.append(None)

        def run() -> None:
            try:
                self.outcomes[at] = self.lake.append("messages", rows, **options)
            except BaseException as error:
                self.outcomes[at] = error

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()
        # The first one leads, and has taken itself out of the queue; each of the others makes it longer by one.
        wait_until(lambda: groups._leader is not None and len(groups._queue) == at, timeout_s=30)

    def join(self) -> None:
        """Wait for all of them."""
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive()


@contextmanager
def one_group(lake: Lake) -> Iterator[Group]:
    """Appends that are started inside are committed together, behind one of `p0` alone, when the block ends."""
    with lake.ledger.write() as txn:
        group = Group(lake, txn)
        group.append([message(0)], actor="first")
        yield group
    group.join()


def stored(lake: Lake) -> list[tuple[Any, ...]]:
    """Seq, id and actor of every row but the first, in order."""
    found: list[tuple[Any, ...]] = lake.view().sql("select _seq, part_id, _actor from messages order by _seq").rows()
    return found[1:]


def test_calls_of_a_group_share_a_batch_and_have_their_own_seqs(lake: Lake) -> None:
    """Each ack names the seqs of its own rows, in the call's order, whatever else is in the batch."""
    make_table(lake, row_key=[])
    calls = [messages(10, 13), [], messages(20, 21), messages(30, 35)]
    with one_group(lake) as group:
        for rows in calls:
            group.append(rows, actor="a")
    assert [batch.rows for batch in lake.view().branch_table("messages").tail] == [1, 9]
    found = {seq: (part_id, actor) for seq, part_id, actor in stored(lake)}
    seen: list[int] = []
    for rows, ack in zip(calls, group.outcomes[1:], strict=True):
        assert isinstance(ack, Ack) and ack.rows == len(rows)
        seqs = range(ack.first_seq, ack.last_seq + 1) if ack.first_seq is not None and ack.last_seq is not None else ()
        assert [found[seq] for seq in seqs] == [(row["part_id"], "a") for row in rows]
        seen += seqs
    assert sorted(seen) == sorted(found), "every seq belongs to one call"


def test_actors_keys_and_kinds_of_a_group_are_kept_apart(lake: Lake) -> None:
    """Every row has the actor of its call; Arrow, keys and large calls are stored in the same transaction."""
    make_table(lake, row_key=[])
    large = messages(1000, 1001 + FEW_ROWS)
    with one_group(lake) as group:
        group.append([message(1)], actor="a")
        group.append([message(2)], actor="b")
        group.append([message(3)], actor="a")
        group.append([message(4)], actor="a", idempotency_key="k")
        group.append(pa.Table.from_pylist([message(5)]), actor="c")
        group.append(large, actor="a")
    assert all(isinstance(ack, Ack) for ack in group.outcomes)
    by_id = {part_id: actor for _, part_id, actor in stored(lake)}
    assert {f"p{n}": by_id[f"p{n}"] for n in range(1, 6)} == {"p1": "a", "p2": "b", "p3": "a", "p4": "a", "p5": "c"}
    assert len(by_id) == 5 + len(large)
    assert lake.append("messages", [message(4)], actor="a", idempotency_key="k").repeated


def test_a_bad_member_gets_its_own_error_and_the_others_are_stored(lake: Lake) -> None:
    """The error counts rows from the start of the member's own call, and names nobody else's."""
    make_table(lake, row_key=[])
    with one_group(lake) as group:
        group.append(messages(10, 13))
        group.append([message(20), message(21) | {"n": "not a number"}])
        group.append([message(30) | {"colour": "red"}, message(31)])
        group.append(messages(40, 42))
    _, good, wrong_value, wrong_field, also_good = group.outcomes
    assert isinstance(good, Ack) and isinstance(also_good, Ack)
    assert isinstance(wrong_value, InvalidRows) and isinstance(wrong_field, InvalidRows)
    assert [(row["index"], row["field"]) for row in wrong_value.detail["rows"]] == [(1, "n")]
    assert [(row["index"], row["field"]) for row in wrong_field.detail["rows"]] == [(0, "colour")]
    assert [part_id for _, part_id, _ in stored(lake)] == ["p10", "p11", "p12", "p40", "p41"]


def test_a_group_whose_members_are_all_bad_stores_nothing(lake: Lake) -> None:
    """Everybody gets an error, and no seq is used up."""
    make_table(lake, row_key=[])
    with one_group(lake) as group:
        for n in range(3):
            group.append([message(n) | {"n": None}])
    first, *errors = group.outcomes
    assert isinstance(first, Ack) and [type(error) for error in errors] == [InvalidRows] * 3
    ack = lake.append("messages", [message(9)])
    assert first.last_seq is not None and ack.first_seq == first.last_seq + 1


def test_a_transaction_that_fails_is_tried_for_each_member_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails once for the group costs nobody the rows: each is stored, once."""
    make_table(lake, row_key=[])
    hits: list[str] = []

    def fail_second(name: str) -> None:
        hits.append(name)
        if hits.count("append.before_commit") == 2 and name == "append.before_commit":
            raise OSError("once")

    monkeypatch.setattr("strandline.ledger.rows.group_commit.fail", fail_second)
    with one_group(lake) as group:
        for n in range(1, 5):
            group.append([message(n)])
    assert all(isinstance(ack, Ack) for ack in group.outcomes)
    assert sorted(part_ids(lake)) == [f"p{n}" for n in range(5)]


def test_every_member_of_a_refused_group_raises_an_error_of_its_own(lake: Lake) -> None:
    """A table that refuses writes tells each caller; they don't share one exception object."""
    make_table(lake, row_key=[])
    with one_group(lake) as group:
        group.txn.conn.execute(update(schema.heads).values(refuses="it is being looked at"))
        for n in range(1, 4):
            group.append([message(n)])
    errors = [error for error in group.outcomes if isinstance(error, Damaged)]
    assert len({id(error) for error in errors}) == 4
    assert {(error.message, error.hint) for error in errors} == {(errors[0].message, errors[0].hint)}
    assert "being looked at" in errors[0].message


def test_a_schema_that_moves_under_a_group_is_noticed_by_each_member(lake: Lake) -> None:
    """All members are validated again; those that don't fit the new schema are refused, the others stored."""
    make_table(lake, row_key=[])
    state = lake.view().branch_table("messages")
    columns = [*state.schema.to_json()["columns"], {"name": "added", "type": "long", "nullable": True}]
    columns = [column | {"nullable": False} if column["name"] == "body" else column for column in columns]
    definition = json.dumps({"columns": columns})
    with one_group(lake) as group:
        head = {"branch_id": state.head.branch_id, "table_id": state.table.table_id}
        group.txn.conn.execute(schema.schemas.insert().values(**head, version=2, definition=definition))
        group.txn.conn.execute(update(schema.heads).values(schema_version=2))
        group.append([message(1)])
        group.append([message(2) | {"body": None}])
    first, fits, lacks = group.outcomes
    assert isinstance(first, Ack) and isinstance(fits, Ack) and isinstance(lacks, InvalidRows)
    assert sorted(part_ids(lake)) == ["p0", "p1"]
    assert lake.append("messages", [message(4) | {"added": 1}]).rows == 1


def test_a_group_whose_answers_can_t_be_told_is_not_stored_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong after the commit is an error for somebody, and never the same rows twice."""
    make_table(lake, row_key=[])

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with one_group(lake) as group:
        group.append([message(1)], actor="a")
        group.append([message(2)], actor="a")
        monkeypatch.setattr(_Joint, "answer", broken)
    assert all(isinstance(outcome, BaseException) for outcome in group.outcomes)
    assert sorted(part_ids(lake)) == ["p0", "p1", "p2"]


def test_a_follower_interrupted_in_its_sleep_leaves_the_queue(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a caller that waits for its turn takes its rows along, and holds nobody up."""
    make_table(lake, row_key=[])
    interrupt = threading.Event()
    sleep = Member.sleep

    def sleep_or_raise(member: Member[Any, Any]) -> None:
        if threading.current_thread().name == "interrupted":
            assert interrupt.wait(timeout=30)
            raise KeyboardInterrupt
        sleep(member)

    monkeypatch.setattr(Member, "sleep", sleep_or_raise)
    with one_group(lake) as group:
        group.append([message(1)])
        group.append([message(2)], name="interrupted")
        group.append([message(3)])
        interrupt.set()
        wait_until(lambda: group.outcomes[2] is not None, timeout_s=30)
    assert [type(outcome) for outcome in group.outcomes] == [Ack, Ack, KeyboardInterrupt, Ack]
    assert part_ids(lake) == ["p0", "p1", "p3"]
    assert lake.append("messages", [message(4)]).rows == 1, "the queue goes on"


def test_ctrl_c_ends_the_sleep_of_a_follower_in_the_main_thread(lake: Lake) -> None:
    """A real signal: the caller gets its KeyboardInterrupt while the leader still waits for the ledger."""
    make_table(lake, row_key=[])
    with one_group(lake) as group:
        groups = lake.memory.appender._groups

        def press() -> None:
            wait_until(lambda: len(groups._queue) == 1, timeout_s=30)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        presser = threading.Thread(target=press)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            lake.append("messages", [message(1)])
        presser.join()
        assert group.outcomes == [None], "the leader is still at work"
    assert part_ids(lake) == ["p0"]


def test_a_few_lines_are_judged_by_the_leader_and_a_bad_one_is_named_by_its_line(lake: Lake) -> None:
    """A few JSON lines are validated by the leader like dicts; blank lines shift nothing that an error says."""
    make_table(lake)
    ack = lake.append_json_lines("messages", [*_lines(0, 2), b""])
    assert ack.rows == 2
    bad: dict[tuple[bytes, ...], set[int]] = {
        (b"", *_lines(2, 3), b'{"part_id": 3}'): {2},
        (*_lines(2, 4), b"no"): {2},
        (*_lines(2, 4), b'{"n": "x"}', b"no"): {2, 3},
    }
    for lines, places in bad.items():
        with pytest.raises(InvalidRows) as refused:
            lake.append_json_lines("messages", list(lines))
        assert {row["index"] for row in refused.value.detail["rows"]} == places
    assert lake.append_json_lines("messages", [b"", b""]).rows == 0
    assert part_ids(lake) == ["p0", "p1"]


def _lines(start: int, stop: int) -> list[bytes]:
    return [orjson.dumps(row) for row in messages(start, stop)]


def test_what_goes_out_with_the_commit_is_seen_before_it_and_undone_with_its_part(lake: Lake) -> None:
    """Writes wait for the commit; a look at the ledger brings them forward, and a savepoint takes its own back."""
    with lake.ledger.write() as txn:
        first = txn.allocate(5)
        assert Ledger.last_seq(txn.conn) == txn.last_seq == first + 4
        with pytest.raises(OSError, match="half"), txn.savepoint():
            txn.allocate(7)
            raise OSError("half way")
        assert Ledger.last_seq(txn.conn) == txn.last_seq == first + 4
        with txn.savepoint():
            txn.allocate(2)
        txn.allocate(3)
    with lake.ledger.read() as conn:
        assert Ledger.last_seq(conn) == first + 9


def test_an_error_among_what_goes_out_with_the_commit_stores_nothing(lake: Lake) -> None:
    """A batch id that is there already, between statements that could be run: none of them takes effect."""
    make_table(lake, row_key=[])
    ack = lake.append("messages", messages(0, 2))
    with lake.ledger.read() as conn:
        state = read_branch_tables(conn, "main", ["messages"])[0]
    intake = Intake(lake.ledger, state.table)
    batches = [one for at in (2, 4) for one in encode_rows(messages(at, at + 2), state, intake).batches]
    twice = Append.of(state, "a", [batches[0], batches[0], batches[1]])
    with pytest.raises(Exception, match=r"(?i)unique"):
        lake.ledger.run(lambda txn: store(txn, [twice]), heads_of([twice]))
    assert part_ids(lake) == ["p0", "p1"]
    assert lake.append("messages", [message(9)]).first_seq == (ack.last_seq or 0) + 1
