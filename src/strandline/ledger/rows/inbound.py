"""Inbound chunks: the rows of another lake, stored once.

The transaction that stores a chunk's rows also moves its source's mark, so a chunk that is sent again (the answer was
lost, the sender lost its ledger, two senders think they are the one) finds the mark above it and stores nothing. Rows
are validated and encoded outside the transaction, for the mark as it was read then; inside, the mark is read again,
and if it has moved, all of it is done anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Connection, FromClause, and_, delete, false, insert, or_, select, update

from strandline.errors import Busy, StrandError
from strandline.failpoints import fail
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.rows.appends import Append, NewBatch, store
from strandline.ledger.rows.encode import encode_batch
from strandline.ledger.rows.intake import Intake
from strandline.model.delivery.chunk_rows import ChunkRows, Validated, validated
from strandline.model.delivery.inbound import (
    Chunk,
    InboundMark,
    Received,
    Source,
    another_row,
    check_keeps_versions,
    check_receiver,
    decide,
)
from strandline.model.delivery.sinks import SentChunk
from strandline.model.schema.types import EXTRA, ORIGIN_AT, ORIGIN_SEQ
from strandline.model.tables import BranchTable
from strandline.model.values.row_digest import are_among

ATTEMPTS = 10

Held = Callable[[int, int], pa.Table]
"""The rows of a gateway that its table has in a range of the sender's seqs, with where they come from."""


@dataclass(frozen=True)
class Letter:
    """A dead letter that was replayed and stored here: in which epoch, and the digest that its sender gave it."""

    epoch: int
    digest: str | None


Letters = Mapping[int, Letter]
"""Replayed dead letters by their seq."""


def read_mark(conn: Connection, source: Source) -> InboundMark | None:
    """How far a source has come here; None if nothing of it was accepted yet."""
    row = conn.execute(select(db.inbound_marks).where(*_is(db.inbound_marks, source))).one_or_none()
    if row is None:
        return None
    chunk = SentChunk(row.chunk_since, row.chunk_until, row.chunk_digest) if row.chunk_digest is not None else None
    return InboundMark(row.epoch, row.seq, row.gateway, row.local_table_id, chunk, row.generation)


def replayed_letters(conn: Connection, source: Source, *, after: int = 0, limit: int | None = None) -> list[int]:
    """The dead letters of a source that were replayed and stored here, by seq."""
    dead = db.inbound_dead.c
    query = select(dead.seq).where(*_is(db.inbound_dead, source), dead.seq > after).order_by(dead.seq).limit(limit)
    return [int(seq) for seq in conn.execute(query).scalars()]


def receive(
    ledger: Ledger, branch_table: BranchTable, chunk: Chunk, rows: ChunkRows, gateway: str, held: Held
) -> Received:
    """Store what a chunk has above its source's mark, and move the mark; what lies below is acked alone."""
    check_receiver(chunk, ledger.lake_id())
    for _ in range(ATTEMPTS):
        with ledger.read() as conn:
            mark = read_mark(conn, chunk.source)
            replayed = _replayed(conn, chunk, mark)
        verdict = decide(chunk, mark, gateway, branch_table.table.table_id)
        if verdict.above is None or _is_repeated(chunk, replayed):
            assert mark is not None, "a chunk is below a mark that does not exist"
            return Received(0, mark.seq, mark.epoch, chunk=mark.chunk)
        check_keeps_versions(chunk, branch_table.table, branch_table.schema)
        _check_same(chunk, mark, rows, held)
        intake = Intake(ledger, branch_table.table)
        batch = _lacking(_validated(branch_table, rows, gateway, verdict.above), chunk, replayed, held)
        batches = tuple(encode_batch(intake.take(batch), branch_table.table))
        answer = ledger.run(
            partial(
                _take, branch_table=branch_table, chunk=chunk, seen=(mark, replayed), batches=batches, gateway=gateway
            )
        )
        if answer is not None:
            fail("inbound.after_commit")
            return replace(answer, too_old=len(intake.too_old))
    raise Busy("the mark of this stream keeps moving: it has several senders", reason="ledger_behind")


def _take(
    txn: Txn,
    *,
    branch_table: BranchTable,
    chunk: Chunk,
    seen: tuple[InboundMark | None, Letters],
    batches: Sequence[NewBatch],
    gateway: str,
) -> Received | None:
    """Store and move; None when the mark is no longer what the batches were made for."""
    mark = read_mark(txn.conn, chunk.source)
    if seen != (mark, _replayed(txn.conn, chunk, mark)):
        return None
    stored = _store(txn, branch_table, batches, gateway)
    answer = _move(txn, chunk, seen[0], stored, gateway, branch_table.table.table_id)
    fail("inbound.before_commit")
    return answer


def _is_repeated(chunk: Chunk, replayed: Letters) -> bool:
    """Whether a replay was stored before: the same seq alone may be another row of a ledger that was put back."""
    letter = replayed.get(chunk.dead) if chunk.dead is not None else None
    if letter is None:
        return False
    if chunk.digest is None or letter.digest is None:  # of a sender of an older version: nothing is known of its row
        return chunk.epoch == letter.epoch
    return chunk.digest == letter.digest


def _check_same(chunk: Chunk, mark: InboundMark | None, rows: ChunkRows, held: Held) -> None:
    """Conflict when a chunk that reaches over the mark has another row below it than is here under that seq.

    A sender that tells digests has compared before it sends. One of an older version may have had its ledger put back
    by hand: its new rows have old seqs, and those up to the mark would be left out in silence. The time of the append
    tells rows apart, whatever was done to their columns since.
    """
    if mark is None or chunk.dead is not None or chunk.digest is not None:
        return
    if chunk.epoch != mark.epoch or chunk.since >= mark.seq:
        return
    times_by_seq: dict[int, set[Any]] = {}
    shown = held(chunk.since, mark.seq)
    for seq, at in zip(shown.column(ORIGIN_SEQ).to_pylist(), shown.column(ORIGIN_AT).to_pylist(), strict=True):
        times_by_seq.setdefault(seq, set()).add(at)
    for seq, at in zip(rows.stamps.column("seq").to_pylist(), rows.stamps.column("at").to_pylist(), strict=True):
        if at is not None and seq in times_by_seq and not times_by_seq[seq] & {at, None}:
            raise another_row(seq, mark)


def _validated(branch_table: BranchTable, rows: ChunkRows, gateway: str, above: int) -> Validated:
    table = branch_table.table
    return validated(
        rows, branch_table.schema, extra=table.extra, gateway=gateway, above=above, partition_by=table.partition_by
    )


def _lacking(rows: Validated, chunk: Chunk, replayed: Letters, read_stored: Held) -> pa.RecordBatch:
    """The rows that are not here, by what they hold and where they come from, in this table's own types.

    Compared are those that a chunk may repeat: a replay, because both sides may have been restored and one of them
    still counts the row as refused; rows with the seq of one that was replayed before its range came; and a range that
    its sender says to compare. What was unknown when a row came, and is a column now, is in another place: that makes
    no other row. Nor does a default of this table, which may be another one than when the row came: compared is what
    the sender has given.
    """
    batch = rows.stored
    upto = chunk.until if chunk.dead is not None else chunk.lacking or 0
    seqs = batch.column(ORIGIN_SEQ)
    compared = pc.less_equal(seqs, upto)
    if replayed:
        compared = pc.or_(compared, pc.is_in(seqs, value_set=pa.array(list(replayed), pa.int64())))
    sent = rows.sent.filter(compared)
    if not sent.num_rows:
        return batch
    bounds = pc.min_max(sent.column(ORIGIN_SEQ)).as_py()
    already = read_stored(bounds["min"] - 1, bounds["max"])
    shown = already.select([name for name in batch.schema.names if name in already.schema.names])
    stored = shown.cast(_like(batch.schema, shown.schema))
    # As stored too: a row without a time is told by its digest alone, which is that of the row with the defaults.
    forms = (sent, batch.filter(compared))
    matches = [are_among(form, stored, seq=ORIGIN_SEQ, at=ORIGIN_AT, without=(EXTRA,)) for form in forms]
    among = map(any, zip(*matches, strict=True))
    return batch.filter(pa.array([not (is_asked and next(among)) for is_asked in compared.to_pylist()], pa.bool_()))


def _like(schema: pa.Schema, shown: pa.Schema) -> pa.Schema:
    return pa.schema([schema.field(name).with_nullable(True) for name in shown.names])


def _store(txn: Txn, branch_table: BranchTable, batches: Sequence[NewBatch], gateway: str) -> int:
    if not batches:
        return 0
    (answer,) = store(txn, [Append.of(branch_table, gateway, batches)])
    if isinstance(answer, StrandError):
        raise answer
    txn.conn.execute(
        update(db.tables)
        .where(db.tables.c.table_id == branch_table.table.table_id, db.tables.c.inbound == 0)
        .values(inbound=1)
    )
    return answer.rows


def _move(txn: Txn, chunk: Chunk, mark: InboundMark | None, stored: int, gateway: str, table_id: str) -> Received:
    """Note a replayed dead letter, or move the mark."""
    marks = db.inbound_marks
    if chunk.dead is not None:
        assert mark is not None, "a dead letter was accepted without a mark"
        dead = db.inbound_dead
        txn.conn.execute(delete(dead).where(*_is(dead, chunk.source), dead.c.seq == chunk.dead))
        letter = {"seq": chunk.dead, "epoch": chunk.epoch, "digest": chunk.digest, "at_us": txn.at_us}
        txn.conn.execute(insert(dead).values(**_key(chunk.source), **letter))
        counted = {"rows": marks.c.rows + stored, "at_us": txn.at_us}
        txn.conn.execute(update(marks).where(*_is(marks, chunk.source)).values(**counted))
        return Received(stored, mark.seq, mark.epoch, chunk=mark.chunk)
    sent = None if mark is None else mark.chunk
    if chunk.rows:  # a sender of an older version says no digest: then nothing is known of the last rows
        sent = None if chunk.digest is None else SentChunk(chunk.since, chunk.until, chunk.digest)
    values: dict[str, Any] = {
        "epoch": chunk.epoch,
        "seq": chunk.until,
        "at_us": txn.at_us,
        "generation": chunk.generation,
        "chunk_since": None if sent is None else sent.since,
        "chunk_until": None if sent is None else sent.until,
        "chunk_digest": None if sent is None else sent.digest,
    }
    if mark is not None and chunk.epoch > mark.epoch:
        _note_epoch(txn, chunk, mark)
    if mark is None:
        values |= {**_key(chunk.source), "gateway": gateway, "local_table_id": table_id, "rows": stored}
        txn.conn.execute(insert(marks).values(**values))
    else:
        assert (mark.epoch, mark.seq) < (chunk.epoch, chunk.until), "a mark would move back"
        txn.conn.execute(update(marks).where(*_is(marks, chunk.source)).values(**values, rows=marks.c.rows + stored))
    return Received(stored, chunk.until, chunk.epoch, chunk=sent)


def _note_epoch(txn: Txn, chunk: Chunk, mark: InboundMark) -> None:
    """A new epoch begins: note the hole that it leaves, and take letters along that were replayed above the mark.

    These were stored before their range was; its rows come in the new epoch now, and would be stored again.
    """
    dead, key = db.inbound_dead.c, _key(chunk.source)
    ahead = dead.epoch == mark.epoch, dead.seq > mark.seq
    txn.conn.execute(
        update(db.inbound_dead).where(*_is(db.inbound_dead, chunk.source), *ahead).values(epoch=chunk.epoch)
    )
    begins = min(mark.seq, chunk.since)
    if chunk.hole is not None and chunk.hole > begins:
        values = {"epoch": chunk.epoch, "since": begins, "until": chunk.hole, "at_us": txn.at_us}
        txn.conn.execute(insert(db.inbound_holes).values(**key, **values))


def _replayed(conn: Connection, chunk: Chunk, mark: InboundMark | None) -> Letters:
    """Dead letters in the chunk's range that were stored already.

    A new epoch begins anew, for a chunk: it sends again on purpose what the mark has passed. A replay never does.
    """
    dead = db.inbound_dead.c
    query = select(dead.seq, dead.epoch, dead.digest).where(
        *_is(db.inbound_dead, chunk.source), dead.seq > chunk.since, dead.seq <= chunk.until
    )
    if chunk.dead is None:
        ahead = false() if mark is None else and_(dead.epoch == mark.epoch, dead.seq > mark.seq)
        query = query.where(or_(dead.epoch == chunk.epoch, ahead))
    return {row.seq: Letter(row.epoch, row.digest) for row in conn.execute(query)}


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
