"""Inbound chunks: the rows of another lake, stored once.

The transaction that stores a chunk's rows also moves its source's mark, so a chunk that is sent again (the answer was
lost, the sender lost its state, two senders think they are the one) finds the mark above it and stores nothing. Rows
are validated and encoded outside the transaction, for the mark as it was read then; inside, the mark is read again,
and if it has moved, all of it is done anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, insert, select, update

from strandline.errors import Busy, StrandError
from strandline.failpoints import fail
from strandline.ledger import schema as db
from strandline.ledger.appends import Append, NewBatch, store
from strandline.ledger.encode import encode_batch
from strandline.ledger.intake import Intake
from strandline.ledger.ledger import Ledger, Txn
from strandline.model.chunk_rows import ChunkRows, validated
from strandline.model.inbound import Chunk, InboundMark, Received, Source, check_keeps_versions, decide
from strandline.model.tables import TableState

ATTEMPTS = 10


def read_mark(conn: Connection, source: Source) -> InboundMark | None:
    """How far a source has come here; None if nothing of it was accepted yet."""
    mark = db.inbound_marks.c
    row = conn.execute(
        select(mark.epoch, mark.seq, mark.gateway, mark.local_table_id).where(*_is(db.inbound_marks, source))
    ).one_or_none()
    return None if row is None else InboundMark(*row)


def receive(ledger: Ledger, state: TableState, chunk: Chunk, rows: ChunkRows, gateway: str) -> Received:
    """Store what a chunk has above its source's mark, and move the mark; what lies below is acked alone."""
    for _ in range(ATTEMPTS):
        with ledger.read() as conn:
            mark, replayed = read_mark(conn, chunk.source), _replayed(conn, chunk)
        verdict = decide(chunk, mark, gateway, state.table.table_id)
        if verdict.above is None or chunk.dead in replayed:
            assert mark is not None, "a chunk is below a mark that does not exist"
            return Received(0, mark.seq, mark.epoch)
        check_keeps_versions(chunk, state.table, state.schema)
        intake = Intake(ledger, state.table)
        batches = _encoded(state, rows, gateway, verdict.above, replayed, intake)
        answer = ledger.run(
            partial(_take, state=state, chunk=chunk, seen=(mark, replayed), batches=batches, gateway=gateway)
        )
        if answer is not None:
            fail("inbound.after_commit")
            return replace(answer, too_old=len(intake.too_old))
    raise Busy("the mark of this stream keeps moving: it has several senders", reason="ledger_behind")


def _take(
    txn: Txn,
    *,
    state: TableState,
    chunk: Chunk,
    seen: tuple[InboundMark | None, frozenset[int]],
    batches: Sequence[NewBatch],
    gateway: str,
) -> Received | None:
    """Store and move; None when the mark is no longer what the batches were made for."""
    if seen != (read_mark(txn.conn, chunk.source), _replayed(txn.conn, chunk)):
        return None
    stored = _store(txn, state, batches, gateway)
    answer = _move(txn, chunk, seen[0], stored, gateway, state.table.table_id)
    fail("inbound.before_commit")
    return answer


def _encoded(
    state: TableState, rows: ChunkRows, gateway: str, above: int, replayed: frozenset[int], intake: Intake
) -> tuple[NewBatch, ...]:
    table = state.table
    batch = validated(
        rows,
        state.schema,
        extra=table.extra,
        gateway=gateway,
        above=above,
        without=replayed,
        partition_by=table.partition_by,
    )
    return tuple(encode_batch(intake.take(batch), table))


def _store(txn: Txn, state: TableState, batches: Sequence[NewBatch], gateway: str) -> int:
    if not batches:
        return 0
    (answer,) = store(txn, [Append.of(state, gateway, batches)])
    if isinstance(answer, StrandError):
        raise answer
    txn.conn.execute(
        update(db.tables)
        .where(db.tables.c.table_id == state.table.table_id, db.tables.c.inbound == 0)
        .values(inbound=1)
    )
    return answer.rows


def _move(txn: Txn, chunk: Chunk, mark: InboundMark | None, stored: int, gateway: str, table_id: str) -> Received:
    """Note a replayed dead letter, or move the mark."""
    marks = db.inbound_marks
    if chunk.dead is not None:
        assert mark is not None, "a dead letter was accepted without a mark"
        txn.conn.execute(
            insert(db.inbound_dead).values(**_key(chunk.source), seq=chunk.dead, epoch=chunk.epoch, at_us=txn.at_us)
        )
        counted = {"rows": marks.c.rows + stored, "at_us": txn.at_us}
        txn.conn.execute(update(marks).where(*_is(marks, chunk.source)).values(**counted))
        return Received(stored, mark.seq, mark.epoch)
    values: dict[str, Any] = {"epoch": chunk.epoch, "seq": chunk.until, "at_us": txn.at_us}
    if mark is None:
        values |= {**_key(chunk.source), "gateway": gateway, "local_table_id": table_id, "rows": stored}
        txn.conn.execute(insert(marks).values(**values))
    else:
        assert (mark.epoch, mark.seq) < (chunk.epoch, chunk.until), "a mark would move back"
        txn.conn.execute(update(marks).where(*_is(marks, chunk.source)).values(**values, rows=marks.c.rows + stored))
    return Received(stored, chunk.until, chunk.epoch)


def _replayed(conn: Connection, chunk: Chunk) -> frozenset[int]:
    """Dead letters in the chunk's range that were stored already.

    A new epoch begins anew, for a chunk: it sends again on purpose. A replay of the same letter never does.
    """
    dead = db.inbound_dead.c
    query = select(dead.seq).where(*_is(db.inbound_dead, chunk.source), dead.seq > chunk.since, dead.seq <= chunk.until)
    if chunk.dead is None:
        query = query.where(dead.epoch == chunk.epoch)
    return frozenset(conn.execute(query).scalars())


def _key(source: Source) -> dict[str, str]:
    stream = source.stream
    return {
        "lake_id": source.lake_id,
        "sink_id": source.sink_id,
        "branch_id": stream.branch_id,
        "table_id": stream.table_id,
        "partition": stream.partition,
    }


def _is(table: FromClause, source: Source) -> list[ColumnElement[bool]]:
    return [table.c[name] == value for name, value in _key(source).items()]
