"""Appends: rows become durable, in order, in one transaction.

Several appends may share it (`group_commit` says which). One that can't be stored (its key was used with other rows,
its schema moved) gets its own error and costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import bindparam, insert, select, update

from strandline.errors import Conflict, Damaged, StrandError
from strandline.ledger import schema as db
from strandline.ledger.idempotency import recall, remember
from strandline.ledger.ledger import Txn
from strandline.ledger.prepared import Prepared, Step
from strandline.ledger.query_marks import move_mark
from strandline.model.tables import Ack, TableState


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
    """Rows to append, validated against `schema_version`: a call's, or those of several calls by one actor."""

    branch_id: str
    table_id: str
    table: str
    schema_version: int
    actor: str
    batches: tuple[NewBatch, ...]
    idempotency: IdempotencyKey | None = None
    query_mark: tuple[str, int] | None = None

    @classmethod
    def of(
        cls,
        state: TableState,
        actor: str,
        batches: Sequence[NewBatch],
        *,
        idempotency: IdempotencyKey | None = None,
        query_mark: tuple[str, int] | None = None,
    ) -> Append:
        """Batches that were validated for a table as `state` shows it."""
        return cls(
            branch_id=state.head.branch_id,
            table_id=state.table.table_id,
            table=state.table.name,
            schema_version=state.head.schema_version,
            actor=actor,
            batches=tuple(batches),
            idempotency=idempotency,
            query_mark=query_mark,
        )

    @property
    def rows(self) -> int:
        """Rows in all batches."""
        return sum(batch.rows for batch in self.batches)


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


def heads_of(appends: Sequence[Append]) -> list[Step]:
    """What `store` will ask of the ledger: the head of each table that gets rows."""
    heads = dict.fromkeys((append.branch_id, append.table_id) for append in appends)
    return [Step(_SELECT_HEAD, {"b_branch": branch, "b_table": table}) for branch, table in heads]


def store(txn: Txn, appends: Sequence[Append]) -> list[Ack | StrandError]:
    """Store all of these in one transaction; the answers are in their order."""
    asked = heads_of(appends)
    found = {
        (step.parameters["b_branch"], step.parameters["b_table"]): head
        for step, (head,) in zip(asked, txn.ask(asked), strict=True)
    }
    answers: list[Ack | StrandError] = []
    accepted: list[tuple[Append, int]] = []
    next_seq = txn.last_seq + 1
    for append in appends:
        earlier = _refusal(append, *found[append.branch_id, append.table_id]) or _earlier(txn, append)
        if earlier is not None:
            answers.append(earlier)
            continue
        ack = ack_of(append.rows, next_seq)
        answers.append(ack)
        accepted.append((append, next_seq))
        next_seq += append.rows
        _note(txn, append, ack)
    _write(txn, accepted)
    return answers


def find_stored(txn: Txn, append: Append) -> Ack | None:
    """The ack of an append whose batches are here already; None when they are not."""
    ids = [batch.batch_id for batch in append.batches]
    if not ids:
        return None
    batch = db.batches.c
    found = txn.conn.execute(select(batch.first_seq, batch.last_seq).where(batch.batch_id.in_(ids))).all()
    if not found:
        return None
    assert len(found) == len(ids), "an append was stored in part"
    return Ack(append.rows, min(row.first_seq for row in found), max(row.last_seq for row in found))


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
    txn.write_last([Step(_INSERT_BATCH, row) for row in batch_rows])
    txn.write_last([Step(_INSERT_TAIL, row) for row in tail_rows])
    txn.write_last(
        [
            Step(_UPDATE_HEAD, {"b_branch": branch, "b_table": table, "b_seq": last_seq, "b_rows": rows})
            for (branch, table), (last_seq, rows) in moved.items()
        ]
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


def ack_of(rows: int, first_seq: int) -> Ack:
    """The answer for so many rows from this seq on."""
    return Ack(rows, first_seq, first_seq + rows - 1) if rows else Ack(0, None, None)
