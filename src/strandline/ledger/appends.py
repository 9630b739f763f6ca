"""Appends: rows become durable, in order, in one transaction.

Appends that arrive at the same time in one process share a transaction (group commit): one wait for the disk serves
all of them. A caller that finds nobody at work leads: it commits everything that is queued by then. The others sleep,
and wake with an answer, or as the next leader. A member that can't be stored (its key was used with other rows, its
schema moved) gets its own error and costs the others nothing; if the transaction itself fails, each member is tried
alone.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import bindparam, insert, select, update

from strandline.errors import Conflict, Damaged, StrandError
from strandline.failpoints import fail
from strandline.ledger import schema as db
from strandline.ledger.dialect import Prepared
from strandline.ledger.idempotency import recall, remember
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.query_marks import move_mark
from strandline.model.tables import Ack


@dataclass(frozen=True)
class NewBatch:
    """A batch that has an id and its bytes, and no seqs yet."""

    batch_id: str
    rows: int
    payload: bytes
    checksum: bytes
    partitions: Mapping[str, int]


@dataclass(frozen=True)
class IdempotencyKey:
    """A caller's name for a call, so that a repeat stores nothing. `kept_s` None keeps it for good."""

    scope: str
    key: str
    digest: str
    kept_s: int | None


@dataclass(frozen=True)
class Append:
    """One call to append, validated against `schema_version`."""

    branch_id: str
    table_id: str
    table: str
    schema_version: int
    actor: str
    batches: tuple[NewBatch, ...]
    idempotency: IdempotencyKey | None = None
    query_mark: tuple[str, int] | None = None

    @property
    def rows(self) -> int:
        """Rows in all batches of the call."""
        return sum(batch.rows for batch in self.batches)


class _Member:
    """One caller in the queue. It sleeps on a plain lock, which wakes a thread at a fraction of an Event's cost."""

    def __init__(self, append: Append) -> None:
        self.append = append
        self.answer: Ack | BaseException | None = None
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def sleep(self) -> None:
        """Until somebody wakes it: with an answer, or to lead."""
        self._asleep.acquire()

    def wake(self) -> None:
        """Let it go on."""
        self._asleep.release()


class Appender:
    """The queue of one process in front of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._queue: list[_Member] = []
        self._leader: _Member | None = None

    def append(self, append: Append) -> Ack:
        """Store it, alone or with others, and return when it is durable."""
        member = _Member(append)
        try:
            if not self._join(member):
                member.sleep()
            if member.answer is None:
                self._commit_group(self._take_queue())
        finally:
            self._leave(member)
        if isinstance(member.answer, Ack):
            fail("append.after_commit")
            return member.answer
        assert member.answer is not None, "a member of a finished group has no answer"
        raise member.answer

    def _join(self, member: _Member) -> bool:
        """Queue up; True when nobody is at work, and the member has to lead."""
        with self._lock:
            self._queue.append(member)
            if self._leader is None:
                self._leader = member
            return self._leader is member

    def _take_queue(self) -> list[_Member]:
        with self._lock:
            group, self._queue = self._queue, []
        return group

    def _leave(self, member: _Member) -> None:
        """A leader that is done names the next one; so does one whose thread was interrupted in its sleep."""
        with self._lock:
            if member.answer is None and member in self._queue:
                self._queue.remove(member)
            if self._leader is member:
                self._leader = self._queue[0] if self._queue else None
                if self._leader is not None:
                    self._leader.wake()

    def _commit_group(self, group: Sequence[_Member]) -> None:
        try:
            self._commit(group)
        except Exception as error:
            if len(group) == 1:
                group[0].answer = error
            else:
                self._commit_each(group)
        except BaseException as error:
            for member in group:
                member.answer = member.answer if isinstance(member.answer, StrandError) else error
        finally:
            for member in group:
                member.wake()

    def _commit_each(self, group: Sequence[_Member]) -> None:
        for member in group:
            try:
                self._commit([member])
            except Exception as error:
                member.answer = error

    def _commit(self, group: Sequence[_Member]) -> None:
        answers: list[Ack | StrandError] = []
        with self._ledger.write() as txn:
            answers = store(txn, [member.append for member in group])
            fail("append.before_commit")
        for member, answer in zip(group, answers, strict=True):
            member.answer = answer


_SELECT_HEAD = Prepared(
    select(db.heads.c.schema_version, db.heads.c.refuses).where(
        db.heads.c.branch_id == bindparam("b_branch"), db.heads.c.table_id == bindparam("b_table")
    )
)
_UPDATE_HEAD = Prepared(
    update(db.heads)
    .where(db.heads.c.branch_id == bindparam("b_branch"), db.heads.c.table_id == bindparam("b_table"))
    .values(last_seq=bindparam("b_seq"), rows_acked=db.heads.c.rows_acked + bindparam("b_rows"))
)
_INSERT_BATCH = Prepared(insert(db.batches))
_INSERT_TAIL = Prepared(insert(db.tail))


def store(txn: Txn, appends: Sequence[Append]) -> list[Ack | StrandError]:
    """Store all of these in one transaction; the answers are in their order."""
    heads = {(append.branch_id, append.table_id) for append in appends}
    found = {key: _SELECT_HEAD.one(txn.conn, {"b_branch": key[0], "b_table": key[1]}) for key in heads}
    answers: list[Ack | StrandError] = []
    accepted: list[tuple[Append, int]] = []
    next_seq = txn.last_seq + 1
    for append in appends:
        earlier = _refusal(append, *found[append.branch_id, append.table_id]) or _earlier(txn, append)
        if earlier is not None:
            answers.append(earlier)
            continue
        ack = _ack(append.rows, next_seq)
        answers.append(ack)
        accepted.append((append, next_seq))
        next_seq += append.rows
        _note(txn, append, ack)
    _write(txn, accepted)
    return answers


def _write(txn: Txn, accepted: Sequence[tuple[Append, int]]) -> None:
    batch_rows: list[dict[str, Any]] = []
    tail_rows: list[dict[str, Any]] = []
    moved: dict[tuple[str, str], tuple[int, int]] = {}
    for append, first_seq in accepted:
        seq = first_seq
        for batch in append.batches:
            batch_rows.append(_batch_row(append, batch, seq, txn.at_us))
            tail_rows.append(
                {
                    "branch_id": append.branch_id,
                    "table_id": append.table_id,
                    "first_seq": seq,
                    "batch_id": batch.batch_id,
                }
            )
            seq += batch.rows
        if append.rows:
            _, rows = moved.get((append.branch_id, append.table_id), (0, 0))
            moved[append.branch_id, append.table_id] = (seq - 1, rows + append.rows)
    if not batch_rows:
        return
    txn.allocate(sum(append.rows for append, _ in accepted))
    _INSERT_BATCH.run(txn.conn, batch_rows)
    _INSERT_TAIL.run(txn.conn, tail_rows)
    _UPDATE_HEAD.run(
        txn.conn,
        [
            {"b_branch": branch, "b_table": table, "b_seq": last_seq, "b_rows": rows}
            for (branch, table), (last_seq, rows) in moved.items()
        ],
    )


def _batch_row(append: Append, batch: NewBatch, first_seq: int, at_us: int) -> dict[str, Any]:
    return {
        "batch_id": batch.batch_id,
        "table_id": append.table_id,
        "first_seq": first_seq,
        "last_seq": first_seq + batch.rows - 1,
        "rows": batch.rows,
        "size_bytes": len(batch.payload),
        "schema_version": append.schema_version,
        "actor": append.actor,
        "at_us": at_us,
        "partitions": orjson.dumps(batch.partitions).decode(),
        "released_at_us": None,
        "checksum": batch.checksum,
        "payload": batch.payload,
    }


def _refusal(append: Append, schema_version: int, refuses: str | None) -> StrandError | None:
    if refuses is not None:
        return Damaged(f"table {append.table!r} refuses writes: {refuses}")
    if schema_version != append.schema_version:
        return Conflict(
            f"the schema of {append.table!r} changed while the rows were validated",
            kind="schema_moved",
            hint="Append again: the rows are then validated against the new schema.",
            expected=append.schema_version,
            actual=schema_version,
        )
    return None


def _earlier(txn: Txn, append: Append) -> Ack | StrandError | None:
    """The answer that an earlier call under the same key got, if there was one."""
    if append.idempotency is None:
        return None
    try:
        answer = recall(txn, append.idempotency.scope, append.idempotency.key, append.idempotency.digest)
    except StrandError as error:
        return error
    return None if answer is None else Ack(answer["rows"], answer["first_seq"], answer["last_seq"], repeated=True)


def _note(txn: Txn, append: Append, ack: Ack) -> None:
    if append.idempotency is not None:
        key = append.idempotency
        answer = {"rows": ack.rows, "first_seq": ack.first_seq, "last_seq": ack.last_seq}
        remember(txn, key.scope, key.key, key.digest, answer, kept_s=key.kept_s)
    if append.query_mark is not None:
        move_mark(txn, append.query_mark[0], append.table_id, append.query_mark[1])


def _ack(rows: int, first_seq: int) -> Ack:
    return Ack(rows, first_seq, first_seq + rows - 1) if rows else Ack(0, None, None)
