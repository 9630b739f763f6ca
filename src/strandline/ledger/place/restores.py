"""Restores: a ledger that comes from a backup goes on without taking an old number twice.

After the backup, the lost ledger went on: it gave out seqs, and its sinks delivered. None of that is in the backup. So
the counter jumps far above all of it, and every watermark is turned round: its destination must be asked first, because
it may have rows that the backup's watermark does not know of. No process keeps its lease or operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from strandline.ledger.database import schema as db
from strandline.ledger.ledger import MAIN, Ledger, Txn
from strandline.ledger.sinks.deliveries import UNKNOWN
from strandline.model.ids import new_id

JUMP = 2**40
"""More rows than any lake appends between a backup and its restore, and small against 2^63."""


@dataclass(frozen=True)
class Restored:
    """A restore that this ledger has been through."""

    restore_id: str
    backup_id: str
    at_us: int
    backup_seq: int
    seq: int


def rebase(txn: Txn, backup_id: str, above: int) -> Restored:
    """Make a ledger that was copied from a backup one that can go on; `above` is the highest seq known elsewhere."""
    restored = Restored(new_id(), backup_id, txn.at_us, txn.last_seq, max(txn.last_seq, above) + JUMP)
    txn.raise_to(restored.seq)
    under_way = select(db.intents.c.op_id)
    txn.conn.execute(update(db.intents).values(owner=""))  # no owner: recovery decides about them at the next open
    txn.conn.execute(delete(db.leases).where(db.leases.c.op_id.not_in(under_way)))
    txn.conn.execute(delete(db.deliveries))
    mark = db.watermarks
    txn.conn.execute(update(mark).where(mark.c.epoch > UNKNOWN).values(epoch=-mark.c.epoch, last_error=NOT_ASKED))
    txn.conn.execute(insert(db.restores).values(**restored.__dict__))
    return restored


NOT_ASKED = "restored from a backup: its destination has not been asked yet where it is"


def last_restore(conn: Connection) -> Restored | None:
    """The last restore; None for a ledger that never was restored."""
    row = conn.execute(select(db.restores).order_by(db.restores.c.seq.desc()).limit(1)).one_or_none()
    return None if row is None else Restored(**row._mapping)


def not_asked(conn: Connection) -> list[tuple[str, str, str]]:
    """Streams whose destination has yet to be asked: sink, table, partition. Of a deleted branch none is."""
    mark, branch = db.watermarks.c, db.branches.c
    rows = conn.execute(
        select(db.sinks.c.name, db.tables.c.name, mark.partition)
        .join_from(db.watermarks, db.sinks, db.sinks.c.sink_id == mark.sink_id)
        .join(db.tables, db.tables.c.table_id == mark.table_id)
        .join(db.branches, branch.branch_id == mark.branch_id)
        .where(mark.epoch < UNKNOWN, branch.deleted_at_us.is_(None), branch.kind == "branch")
        .order_by(db.sinks.c.name, db.tables.c.name, mark.partition)
    )
    return [(row[0], row[1], row[2]) for row in rows]


def pins(conn: Connection) -> Mapping[str, int | None]:
    """The log snapshot that main has of every table, by its name in Iceberg."""
    rows = conn.execute(
        select(db.tables.c.iceberg_name, db.heads.c.log_snapshot)
        .join(db.heads, db.heads.c.table_id == db.tables.c.table_id)
        .join(db.branches, db.branches.c.branch_id == db.heads.c.branch_id)
        .where(db.branches.c.name == MAIN)
    )
    return {row.iceberg_name: row.log_snapshot for row in rows}


def pinned(conn: Connection) -> set[str]:
    """The names in Iceberg of the tables of which some branch has a snapshot."""
    rows = conn.execute(
        select(db.tables.c.iceberg_name)
        .join(db.heads, db.heads.c.table_id == db.tables.c.table_id)
        .where(db.heads.c.log_snapshot.is_not(None))
    )
    return set(rows.scalars())


def retire(ledger: Ledger) -> int:
    """Close a ledger for good: every process that still has it open is refused at its next write; its last seq."""
    with ledger.write() as txn:
        txn.conn.execute(update(db.counter).values(format=db.RETIRED))
        return txn.last_seq
