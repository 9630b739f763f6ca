"""A publish: all of its checks before any of its writes, and the writes in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from sqlalchemy import select, update
from tests.kit import in_ledger, make_table, message
from tests.versions.kit import make_people

from strandline import put
from strandline.errors import Conflict, Damaged, StrandError
from strandline.lake import Lake
from strandline.ledger.changes.judged import KeepSchemas
from strandline.ledger.changes.purges import StayUnreferred
from strandline.ledger.database import schema as db
from strandline.ledger.history.commits import WriteCommit
from strandline.ledger.history.merges import TakeMerge
from strandline.ledger.ledger import Txn
from strandline.ledger.place.moving import move_paths, named_files
from strandline.ledger.publish import intent_rows, intents
from strandline.ledger.publish.intents import UnreadableIntent
from strandline.ledger.publish.loads import AdvanceLoad
from strandline.ledger.publish.publishing import Effect, Intent
from strandline.ledger.rows import reservations
from strandline.ledger.rows.batches import ReleaseBatches
from strandline.ledger.rows.idempotency import KeepAnswer
from strandline.ledger.rows.query_marks import MoveQueryMark, move_mark
from strandline.ledger.tables.heads import MoveStreams, MoveTable, PassOver, PruneStreams, RefuseStale
from strandline.ledger.tables.holds import CondemnSnapshots
from strandline.ledger.tables.tables import refuse_writes
from strandline.model.ids import new_id
from strandline.model.operations import TableScope
from strandline.model.tables import DataFile, Head
from strandline.operations.core import publish
from strandline.operations.maintain.flush import flush

DATA_FILE = DataFile("file:///old/data/1.parquet", 1, 100, 1, 1, "")


def head_of(lake: Lake, table: str) -> Head:
    """Where a table is on main."""
    return lake.view().branch_table(table).head


def intent_of(head: Head, *effects: Effect, kind: str = "load", op_id: str = "") -> Intent:
    """An operation on a table that is staged."""
    scope = TableScope(head.branch_id, head.table_id, "lake.t", head.version, head.log_snapshot)
    return Intent(op_id or new_id(), kind, "staged", head.branch_id, "ann", "", 0, (scope,), effects)


def written(lake: Lake) -> dict[str, list[Any]]:
    """All that a ledger says, but for how many transactions it has seen."""
    return {
        table.name: sorted(map(str, in_ledger(lake, f"select * from {table.name}")))
        for table in db.metadata.sorted_tables
        if table.name not in ("counter", "outcomes")
    }


def nothing(_lake: Lake, _txn: Txn) -> None:
    """The effect fails by itself."""


def of_person(effect: Callable[[Head], Effect]) -> Callable[[Lake], Effect]:
    """An effect on the keyed table."""
    return lambda lake: effect(head_of(lake, "person"))


FAILING: dict[str, tuple[Callable[[Lake], Effect], Callable[[Lake, Txn], object], str]] = {
    "the table moved": (
        of_person(lambda at: MoveTable(at.branch_id, at.table_id, 7, None)),
        nothing,
        "moved from version 7 to 0",
    ),
    "the snapshot is another": (
        of_person(lambda at: MoveTable(at.branch_id, at.table_id, 0, 5)),
        nothing,
        "moved from version 0 to 0",
    ),
    "the table refuses writes": (
        of_person(MoveTable.of),
        lambda lake, txn: refuse_writes(txn, *_person(lake), "it is hurt"),
        "refuses writes: it is hurt",
    ),
    "a batch is gone": (
        of_person(lambda at: ReleaseBatches(at.branch_id, at.table_id, ("gone",))),
        nothing,
        "has 0 of the 1 batches",
    ),
    "a sink is behind": (
        of_person(lambda at: PruneStreams(at.branch_id, at.table_id, {"": 99}, past_sinks=False)),
        lambda lake, txn: txn.conn.execute(db.stream_heads.insert().values(**_stream(lake))),
        "rows up to 99 were to be removed",
    ),
    "a snapshot is current": (
        of_person(lambda at: CondemnSnapshots(at.table_id, (5,))),
        lambda lake, txn: txn.conn.execute(db.snapshots.insert().values(**_snapshot(lake))),
        "is needed again",
    ),
    "rows were left out for their age": (
        of_person(lambda at: RefuseStale(at.table_id, 3)),
        nothing,
        "3 acked rows",
    ),
    "schemas are others": (
        of_person(lambda at: KeepSchemas((at.table_id,), {at.table_id: -1})),
        nothing,
        "were changed while rows were judged",
    ),
    "tables came that could refer to rows": (
        of_person(lambda at: StayUnreferred(at.branch_id, 0, -1, {}, {})),
        nothing,
        "were made to refer",
    ),
    "the target of a merge changed": (
        of_person(lambda at: TakeMerge(0, -1, at.branch_id, "", (), {}, {})),
        nothing,
        "was changed while it was merged",
    ),
    "the load was moved on": (
        lambda _: AdvanceLoad("of nobody", 0, 1, finished=False, answer={}),
        nothing,
        "was moved on by somebody else",
    ),
    "the key was used": (
        lambda _: KeepAnswer("s", "k", "d", {}),
        lambda _, txn: txn.conn.execute(
            db.idempotency.insert().values(scope="s", key="k", digest="x", answer="{}", at_us=1)
        ),
        "'k' was used by somebody else",
    ),
    "the batch is there": (
        lambda _: MoveQueryMark("q", "t", 3),
        lambda _, txn: move_mark(txn, "q", "t", 3),
        "is in the table already",
    ),
}


def _person(lake: Lake) -> tuple[str, str]:
    head = head_of(lake, "person")
    return head.branch_id, head.table_id


def _snapshot(lake: Lake) -> dict[str, Any]:
    branch_id, table_id = _person(lake)
    return {
        "branch_id": branch_id, "table_id": table_id, "version": 9, "snapshot_id": 5, "op_id": "o", "kind": "flush",
        "rows": 0, "at_us": 1,
    }  # fmt: skip


def _stream(lake: Lake) -> dict[str, Any]:
    branch_id, table_id = _person(lake)
    return {"branch_id": branch_id, "table_id": table_id, "partition": "", "last_seq": 99, "pruned_upto": 0}


@pytest.fixture
def filled(lake: Lake) -> Lake:
    """A log table with a tail, and a keyed table that a sink follows and has not delivered."""
    make_table(lake)
    lake.append("messages", [message(1)])
    make_people(lake)
    lake.mutate([put("person", {"id": "a"})])
    lake.add_sink("nowhere", "blob", {"uri": f"file://{lake.root}/nowhere", "format": "jsonl", "tables": ["person"]})
    return lake


def fine(lake: Lake) -> tuple[Effect, ...]:
    """What a flush of the log table publishes, with a commit."""
    state = lake.view().branch_table("messages")
    move = MoveTable(state.head.branch_id, state.head.table_id, 0, None, 5, (DATA_FILE,), rows_added=1)
    batches = tuple(ref.batch_id for ref in state.tail)
    at = move.branch_id, move.table_id
    return move, MoveStreams(*at, {"": 1}), ReleaseBatches(*at, batches), WriteCommit("load", "m", {"messages": 1})


@pytest.mark.parametrize("why", FAILING)
def test_nothing_is_written_if_any_check_fails(filled: Lake, why: str) -> None:
    """The last one of several, in a transaction that is committed all the same: nothing is left to be undone."""
    effect, meanwhile, words = FAILING[why]
    with filled.ledger.write() as txn:
        meanwhile(filled, txn)
    before = written(filled)
    intent = intent_of(head_of(filled, "messages"), *fine(filled), effect(filled), kind="purge")
    with filled.ledger.write() as txn, pytest.raises((Conflict, Damaged), match=words):
        publish.apply(txn, intent)
    assert written(filled) == before


def test_every_effect_that_depends_on_something_is_among_them() -> None:
    """A class with a check of its own that no test lets fail would be found here."""
    checking = {kind for kind in Effect.__subclasses__() if kind.check is not Effect.check}
    named = {
        MoveTable, ReleaseBatches, PruneStreams, CondemnSnapshots, RefuseStale, KeepSchemas, StayUnreferred, TakeMerge,
        AdvanceLoad, KeepAnswer, MoveQueryMark,
    }  # fmt: skip
    assert checking == named


def test_without_a_failing_check_all_of_it_is_written(filled: Lake) -> None:
    """So what is not written above is not written for the check."""
    intent = intent_of(head_of(filled, "messages"), *fine(filled))
    with filled.ledger.write() as txn:
        publish.apply(txn, intent)
    state = filled.view().branch_table("messages")
    assert (state.head.version, state.head.log_snapshot, state.tail) == (1, 5, ())
    assert in_ledger(filled, "select path from files") == [(DATA_FILE.path,)]
    assert in_ledger(filled, "select message from commits where op_id is not null") == [("m",)]


def load_of(lake: Lake, table: str, *, overtaken: bool) -> tuple[Intent, int]:
    """A load that has reserved three seqs, below a row that came meanwhile or not; and its first seq."""
    head, op_id = head_of(lake, table), new_id()
    with lake.ledger.write() as txn:
        first = reservations.reserve(txn, op_id, head.branch_id, head.table_id, 3)
    if overtaken:
        lake.append(table, [message(2)])
    file = DataFile("file:///p", 3, 100, first, first + 2, "")
    move = MoveTable(head.branch_id, head.table_id, 0, None, 5, (file,), rows_added=3, last_seq=first + 2)
    commit = WriteCommit("load", "m", {table: 3})
    at = head.branch_id, head.table_id
    return intent_of(head, move, MoveStreams(*at, {"": first + 2}), commit, PassOver(*at), op_id=op_id), first


def rewrites(lake: Lake, table: str) -> int:
    """The token of a table."""
    _, table_id = head_of(lake, table).branch_id, head_of(lake, table).table_id
    ((token,),) = in_ledger(lake, "select rewrites from heads where table_id = :t", t=table_id)
    return int(token)


@pytest.mark.parametrize("overtaken", [False, True])
def test_rows_that_come_in_below_others_are_told_before_the_head_moves(filled: Lake, overtaken: bool) -> None:
    """By its own last seq, a load would seem to have been overtaken by itself, and readers would build all anew."""
    intent, _ = load_of(filled, "messages", overtaken=overtaken)
    before = rewrites(filled, "messages")
    with filled.ledger.write() as txn:
        publish.apply(txn, intent)
    assert (rewrites(filled, "messages") > before) == overtaken


@pytest.mark.parametrize("kind", sorted(publish.REWRITING))
def test_a_kind_that_takes_rows_away_says_so(filled: Lake, kind: str) -> None:
    """By the operation's kind: an intent of version 1 says nothing else."""
    before = rewrites(filled, "messages")
    with filled.ledger.write() as txn:
        publish.apply(txn, intent_of(head_of(filled, "messages"), *fine(filled), kind=kind))
    assert rewrites(filled, "messages") > before


def test_a_range_is_published_below_the_seq_of_its_commit(filled: Lake) -> None:
    """At that commit its rows are there: whoever looks back to it gets them, and to the seq before it does not."""
    intent, first = load_of(filled, "messages", overtaken=False)
    with filled.ledger.write() as txn:
        publish.apply(txn, intent)
        last_seq = txn.last_seq
    ((number,),) = in_ledger(filled, "select seq from commits where op_id = :op", op=intent.op_id)
    assert in_ledger(filled, "select first_seq, last_seq, number from late_ranges") == [(first, first + 2, number - 1)]
    assert number == last_seq and head_of(filled, "messages").last_seq == number
    assert in_ledger(filled, "select count(*) from reservations") == [(0,)]


def test_an_effect_that_needs_the_commit_is_nothing_without_one(filled: Lake) -> None:
    head = head_of(filled, "person")
    with pytest.raises(AssertionError, match="needs a commit"), filled.ledger.write() as txn:
        publish.apply(txn, intent_of(head, PassOver(head.branch_id, head.table_id)))


# -- in the ledger -----------------------------------------------------------------------------------------------------


def staged(lake: Lake) -> Intent:
    """An operation that is staged, as the ledger has it."""
    head = head_of(lake, "messages")
    begun = Intent(new_id(), "flush", "staging", head.branch_id, "ann", "", 0, intent_of(head).scopes)
    with lake.ledger.write() as txn:
        intent_rows.write_intent(txn, begun)
        return intents.set_staged(txn, begun, fine(lake))


def test_an_intent_is_read_as_it_was_staged(filled: Lake) -> None:
    intent = staged(filled)
    with filled.ledger.read() as conn:
        assert intents.read_intent(conn, intent.op_id) == intent


def test_only_what_says_effects_is_of_the_version_that_older_processes_refuse(filled: Lake) -> None:
    """They undo what has only begun as they always did; of what is staged they keep their hands off."""
    head = head_of(filled, "messages")
    begun = Intent(new_id(), "flush", "staging", head.branch_id, "ann", "", 0, intent_of(head).scopes)
    with filled.ledger.write() as txn:
        intent_rows.write_intent(txn, begun)
    assert in_ledger(filled, "select format from intents") == [(1,)]
    ((text,),) = in_ledger(filled, "select body from intents")
    assert orjson.loads(text)["effects"] is None
    with filled.ledger.write() as txn:
        intents.set_staged(txn, begun, fine(filled))
    assert in_ledger(filled, "select format from intents") == [(2,)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": 3}, "its format is 3, and this strandline knows formats up to 2"),
        ({"format": 1}, r"its body can't be read \(NotStored: effects is not an object\)"),
        ({"body": "[]"}, r"its body can't be read \(NotStored: body is not an object\)"),
        ({"body": '{"scopes": [], "effects": null}'}, "it is staged and does not say what to publish"),
        ({"body": '{"scopes": [], "effects": [{"effect": "melt"}]}'}, r"effects\[0\] is of an unknown kind: 'melt'"),
        ({"body": "{"}, r"its body can't be read \(JSONDecodeError"),
    ],
)
def test_what_cannot_be_understood_blocks_its_tables_alone(filled: Lake, values: dict[str, Any], words: str) -> None:
    intent = staged(filled)
    with filled.ledger.write() as txn:
        txn.conn.execute(update(db.intents).values(**values))
    with filled.ledger.read() as conn:
        unreadable = intents.read_intent(conn, intent.op_id)
    assert isinstance(unreadable, UnreadableIntent) and unreadable.table_ids == (intent.scopes[0].table_id,)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(unreadable.reason)
    with pytest.raises(StrandError, match="was left by another process"):
        flush(filled.context, "messages", "main", "ann")
    filled.append("messages", [message(3)])


def test_files_of_what_is_staged_are_found_and_moved(filled: Lake) -> None:
    """A clone that gets another place, and one that is not trusted, look for them."""
    staged(filled)
    with filled.ledger.read() as conn:
        assert list(named_files(conn)) == [DATA_FILE.path]

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [moved(item) for item in value]
        return value.replace("/old/", "/new/") if isinstance(value, str) else value

    with filled.ledger.write() as txn:
        move_paths(txn, lambda path: path, moved)
    with filled.ledger.read() as conn:
        assert list(named_files(conn)) == ["file:///new/data/1.parquet"]
        (op_id,) = conn.execute(select(db.intents.c.op_id)).scalars()
        intent = intents.read_intent(conn, op_id)
    assert isinstance(intent, Intent) and intent.effects is not None
    assert isinstance(intent.effects[0], MoveTable) and intent.effects[0].files[0].path == "file:///new/data/1.parquet"
