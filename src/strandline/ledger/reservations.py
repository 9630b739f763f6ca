"""Reserved ranges of seqs: a load takes its range before its rows are in the log, and readers stay behind it."""

from __future__ import annotations

from sqlalchemy import delete, insert

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


def release(txn: Txn, op_id: str) -> None:
    """The range is published, or it has become a gap."""
    txn.conn.execute(delete(db.reservations).where(db.reservations.c.op_id == op_id))
