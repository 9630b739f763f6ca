"""Reserved ranges of seqs: a load takes its range before its rows are in the log, and readers stay behind it."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from strandline.ledger import schema as db
from strandline.ledger.ledger import Txn


def reserve(txn: Txn, op_id: str, branch_id: str, table_id: str, rows: int) -> int:
    """Take a range of seqs for an operation and return its first."""
    first = txn.allocate(rows)
    txn.conn.execute(
        insert(db.reservations).values(
            op_id=op_id, branch_id=branch_id, table_id=table_id, first_seq=first, last_seq=first + rows - 1
        )
    )
    return first


def note_published(txn: Txn, op_id: str) -> None:
    """The operation's rows are in the log from now on: who looks at an earlier moment must not see them."""
    reserved = db.reservations.c
    rows = txn.conn.execute(
        select(reserved.table_id, reserved.first_seq, reserved.last_seq).where(reserved.op_id == op_id)
    )
    for row in rows.all():
        txn.conn.execute(insert(db.late_ranges).values(**row._mapping, number=txn.last_seq, at_us=txn.at_us))


def read_late(conn: Connection, table_id: str, *, number: int, at_us: int | None) -> list[tuple[int, int]]:
    """The ranges of a table that were published after a moment: after a seq was given, or after a time."""
    late = db.late_ranges.c
    after = late.number >= number if at_us is None else late.at_us > at_us
    rows = conn.execute(select(late.first_seq, late.last_seq).where(late.table_id == table_id, after))
    return [(row.first_seq, row.last_seq) for row in rows]


def release(txn: Txn, op_id: str) -> None:
    """The range is published, or it has become a gap."""
    txn.conn.execute(delete(db.reservations).where(db.reservations.c.op_id == op_id))
