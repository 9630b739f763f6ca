"""Payloads: read by what holds a reference, released by a publish, set aside when they can't be read.

A released batch stays for a grace period, because a reader may have taken its view just before the release. After that
a sweep deletes it, and a reader that still names it gets `history_gone` instead of missing rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import Connection, bindparam, delete, func, insert, literal, select, update

from strandline.errors import HistoryGone, NotFound, TableMoved
from strandline.failpoints import fail
from strandline.ledger.clock import forgetting_us, grace_end_us
from strandline.ledger.database import schema as db
from strandline.ledger.database.prepared import Bound, Prepared, together
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.publish.publishing import Effect, Intent, Publishing
from strandline.ledger.tables.heads import note_rewrite
from strandline.ledger.tables.holds import forget_lapsed, held_since
from strandline.model.tables import BatchRef, Payload

GRACE_S = 15 * 60
# What is fetched at once: enough to hide the round trip, little enough to stay small in memory.
CHUNK_BYTES = 8 << 20
CHUNK_BATCHES = 500

REF_COLUMNS = (
    db.batches.c.batch_id,
    db.batches.c.first_seq,
    db.batches.c.last_seq,
    db.batches.c.rows,
    db.batches.c.size_bytes,
    db.batches.c.schema_version,
    db.batches.c.actor,
    db.batches.c.at_us,
    db.batches.c.commit_id,
)
"""What a `BatchRef` is made of."""
_WITH_PAYLOAD = Prepared(
    select(*REF_COLUMNS, db.batches.c.payload, db.batches.c.checksum).where(
        db.batches.c.batch_id == bindparam("b_batch")
    )
)


def read_payloads(ledger: Ledger, refs: Sequence[BatchRef]) -> Iterator[Payload]:
    """The payloads of these batches, in their order, a few MiB at a time."""
    for chunk in _chunks(refs):
        with ledger.read() as conn:
            rows = conn.execute(
                select(db.batches.c.batch_id, db.batches.c.payload, db.batches.c.checksum).where(
                    db.batches.c.batch_id.in_([ref.batch_id for ref in chunk])
                )
            )
            payloads = {row.batch_id: (row.payload, row.checksum) for row in rows}
        for ref in chunk:
            if ref.batch_id not in payloads:
                raise HistoryGone(f"batch {ref.batch_id} (seqs {ref.first_seq}..{ref.last_seq}) is no longer kept")
            payload, checksum = payloads[ref.batch_id]
            yield Payload(ref, payload, checksum)


def find_payloads(conn: Connection, batch_ids: Sequence[str]) -> list[Payload]:
    """These batches with their payloads, as far as they are still kept."""
    payloads: list[Payload] = []
    for start in range(0, len(batch_ids), CHUNK_BATCHES):
        chunk = batch_ids[start : start + CHUNK_BATCHES]
        steps = [Bound(_WITH_PAYLOAD, {"b_batch": batch_id}) for batch_id in chunk]
        rows = [row for answer in together(conn, steps) for row in answer]
        payloads += [Payload(BatchRef(*ref), payload, checksum) for *ref, payload, checksum in rows]
    return payloads


def _chunks(refs: Sequence[BatchRef]) -> Iterator[list[BatchRef]]:
    chunk: list[BatchRef] = []
    size = 0
    for ref in refs:
        if chunk and (size + ref.size_bytes > CHUNK_BYTES or len(chunk) >= CHUNK_BATCHES):
            yield chunk
            chunk, size = [], 0
        chunk.append(ref)
        size += ref.size_bytes
    if chunk:
        yield chunk


def in_tail(conn: Connection, branch_id: str, table_id: str, upto: int) -> list[str]:
    """The batches of a tail that begin at a seq or before it."""
    tail = db.tail.c
    query = select(tail.batch_id).where(tail.branch_id == branch_id, tail.table_id == table_id, tail.first_seq <= upto)
    return [str(batch_id) for batch_id in conn.execute(query).scalars()]


_IN_TAIL = Prepared(
    select(func.count())
    .select_from(db.tail)
    .where(
        db.tail.c.branch_id == bindparam("b_branch"),
        db.tail.c.table_id == bindparam("b_table"),
        db.tail.c.first_seq == bindparam("b_seq"),
    )
)


def is_in_tail(conn: Connection, branch_id: str, table_id: str, first_seq: int) -> bool:
    """Whether the batch that begins at a seq is in a tail."""
    (count,) = _IN_TAIL.read_row(conn, {"b_branch": branch_id, "b_table": table_id, "b_seq": first_seq})
    return bool(count)


def count_in_tail(conn: Connection, branch_id: str, table_id: str, batch_ids: Sequence[str]) -> int:
    """How many of these batches the tail still refers to."""
    first_seqs = _first_seqs(conn, branch_id, table_id)
    return sum(batch_id in first_seqs for batch_id in batch_ids)


@dataclass(frozen=True)
class ReleaseBatches(Effect):
    """Batches leave a tail, because their rows are in the log or are duplicates."""

    branch_id: str
    table_id: str
    batches: tuple[str, ...]

    def check(self, conn: Connection, intent: Intent) -> None:
        """All of them are in the tail still: one that was set aside meanwhile must not be in the log too."""
        count = count_in_tail(conn, self.branch_id, self.table_id, self.batches)
        if count != len(self.batches):
            raise TableMoved(
                f"the tail of table {self.table_id} has {count} of the {len(self.batches)} batches that were staged",
                expected=len(self.batches),
                actual=count,
            )

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Take them out."""
        release(txn, self.branch_id, self.table_id, self.batches)


def _first_seqs(conn: Connection, branch_id: str, table_id: str) -> dict[str, int]:
    """The batches of a tail with their first seqs, which are the tail's key."""
    rows = conn.execute(
        select(db.tail.c.batch_id, db.tail.c.first_seq).where(
            db.tail.c.branch_id == branch_id, db.tail.c.table_id == table_id
        )
    )
    return {row.batch_id: row.first_seq for row in rows}


def release(txn: Txn, branch_id: str, table_id: str, batch_ids: Sequence[str]) -> None:
    """Take batches out of a tail; one that no tail refers to any more begins its grace period."""
    first_seqs = _first_seqs(txn.conn, branch_id, table_id)
    seqs = [first_seqs[batch_id] for batch_id in batch_ids if batch_id in first_seqs]
    # By way of the branches, because a tail is found by its key alone.
    referred = (
        select(db.tail.c.batch_id)
        .join_from(db.branches, db.tail, db.tail.c.branch_id == db.branches.c.branch_id)
        .where(db.tail.c.table_id == db.batches.c.table_id, db.tail.c.first_seq == db.batches.c.first_seq)
        .exists()
    )
    for start in range(0, len(seqs), CHUNK_BATCHES):
        chunk = seqs[start : start + CHUNK_BATCHES]
        txn.conn.execute(
            delete(db.tail).where(
                db.tail.c.branch_id == branch_id, db.tail.c.table_id == table_id, db.tail.c.first_seq.in_(chunk)
            )
        )
    for start in range(0, len(batch_ids), CHUNK_BATCHES):
        ids = list(batch_ids[start : start + CHUNK_BATCHES])
        txn.conn.execute(
            update(db.batches).where(db.batches.c.batch_id.in_(ids), ~referred).values(released_at_us=txn.at_us)
        )


def count_released(conn: Connection, *, grace_s: float) -> int:
    """How many batches a sweep would delete now."""
    until_us = _swept_until(conn, forgetting_us(conn), grace_s)
    if until_us is None:
        return 0
    released = db.batches.c.released_at_us
    over = released.is_not(None) & (released < until_us)
    return int(conn.execute(select(func.count()).select_from(db.batches).where(over)).scalar_one())


def _swept_until(conn: Connection, now_us: int | None, grace_s: float) -> int | None:
    """What was released before this is not needed: its grace is over, and no reader holds an older moment."""
    end_us, held_us = grace_end_us(conn, now_us, grace_s), held_since(conn, now_us)
    return end_us if end_us is None or held_us is None else min(end_us, held_us)


def sweep(
    ledger: Ledger,
    *,
    grace_s: float = GRACE_S,
    limit: int = 1000,
    table_id: str | None = None,
    elsewhere_us: Sequence[int] = (),
) -> int:
    """Delete batches whose grace is over, keys that are too old, and holds that have lapsed.

    It is bounded, so that no append waits long for it.

    While the clock can't be trusted no grace is over, and no key is too old.
    """
    with ledger.write() as txn:
        now_us = forgetting_us(txn.conn, *elsewhere_us)
        until_us = _swept_until(txn.conn, now_us, grace_s)
        if until_us is None:
            return 0
        over = select(db.batches.c.batch_id).where(
            db.batches.c.released_at_us.is_not(None), db.batches.c.released_at_us < until_us
        )
        if table_id is not None:
            over = over.where(db.batches.c.table_id == table_id)
        batch_ids = list(txn.conn.execute(over.limit(limit)).scalars())
        if batch_ids:
            txn.conn.execute(delete(db.batches).where(db.batches.c.batch_id.in_(batch_ids)))
        if now_us is not None:
            txn.conn.execute(delete(db.idempotency).where(db.idempotency.c.kept_until_us < now_us))
            forget_lapsed(txn, now_us)
        return len(batch_ids)


def quarantine(
    ledger: Ledger,
    branch_id: str,
    table_id: str,
    batch_id: str,
    reason: str,
    noting: Callable[[Txn], object] = lambda txn: None,
) -> bool:
    """Set a log table's unreadable batch aside with its bytes; False when another process already did.

    `noting` writes down, in the same transaction, that a person asked for it.
    """
    with ledger.write() as txn:
        referred = txn.conn.execute(
            select(db.tail.c.first_seq).where(db.tail.c.branch_id == branch_id, db.tail.c.batch_id == batch_id)
        ).scalar()
        if referred is None:
            return False
        batch = db.batches.c
        txn.conn.execute(
            insert(db.quarantine).from_select(
                [column.name for column in db.quarantine.columns],
                select(
                    batch.batch_id,
                    literal(branch_id),
                    batch.table_id,
                    batch.first_seq,
                    batch.last_seq,
                    batch.rows,
                    batch.schema_version,
                    batch.actor,
                    batch.at_us,
                    literal(txn.at_us),
                    literal(reason),
                    batch.checksum,
                    batch.payload,
                ).where(batch.batch_id == batch_id),
            )
        )
        rows = txn.conn.execute(select(batch.rows).where(batch.batch_id == batch_id)).scalar_one()
        release(txn, branch_id, table_id, [batch_id])
        txn.conn.execute(
            update(db.heads)
            .where(db.heads.c.branch_id == branch_id, db.heads.c.table_id == table_id)
            .values(rows_quarantined=db.heads.c.rows_quarantined + rows)
        )
        note_rewrite(txn, branch_id, table_id)
        noting(txn)
        fail("quarantine.before_commit")
    fail("quarantine.after_commit")
    return True


@dataclass(frozen=True)
class QuarantinedBatch:
    """A batch that was set aside, without its bytes."""

    batch_id: str
    table_id: str
    table: str
    first_seq: int
    last_seq: int
    rows: int
    size_bytes: int
    actor: str
    appended_at_us: int
    at_us: int
    reason: str


def list_quarantined(conn: Connection) -> list[QuarantinedBatch]:
    """Every batch that was set aside, in the order in which they were appended."""
    batch, names = db.quarantine.c, [field.name for field in fields(QuarantinedBatch)]
    columns = {**batch, "table": db.tables.c.name, "size_bytes": func.length(batch.payload)}
    rows = conn.execute(
        select(*(columns[name] for name in names))
        .join_from(db.quarantine, db.tables, db.tables.c.table_id == batch.table_id)
        .order_by(batch.first_seq)
    )
    return [QuarantinedBatch(*row) for row in rows]


def quarantined_batch(conn: Connection, batch_id: str) -> QuarantinedBatch:
    """One batch that was set aside, without its bytes."""
    batch = next((batch for batch in list_quarantined(conn) if batch.batch_id == batch_id), None)
    if batch is None:
        raise _no_such(batch_id)
    return batch


def _no_such(batch_id: str) -> NotFound:
    hint = "`strand quarantine list` shows those there are."
    return NotFound(f"there is no quarantined batch {batch_id}", hint=hint)


def quarantined_payload(conn: Connection, batch_id: str) -> bytes:
    """The bytes of a batch that was set aside."""
    payload = conn.execute(select(db.quarantine.c.payload).where(db.quarantine.c.batch_id == batch_id)).scalar()
    if payload is None:
        raise _no_such(batch_id)
    return bytes(payload)


def discard_quarantined(txn: Txn, batch_id: str) -> int:
    """Give a quarantined batch up for good: its rows are counted as pruned. Returns how many there were."""
    row = txn.conn.execute(select(db.quarantine).where(db.quarantine.c.batch_id == batch_id)).one_or_none()
    if row is None:
        raise _no_such(batch_id)
    txn.conn.execute(delete(db.quarantine).where(db.quarantine.c.batch_id == batch_id))
    txn.conn.execute(
        update(db.heads)
        .where(db.heads.c.branch_id == row.branch_id, db.heads.c.table_id == row.table_id)
        .values(
            rows_quarantined=db.heads.c.rows_quarantined - row.rows,
            rows_pruned=db.heads.c.rows_pruned + row.rows,
        )
    )
    note_rewrite(txn, row.branch_id, row.table_id)
    return int(row.rows)
