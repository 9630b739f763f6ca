"""Reserved ranges of seqs: a load takes its range before its rows are in the log, and readers stay behind it.

A range of a keyed table says besides that nothing else may be written there: its rows are judged by what the table was
when it was reserved. So tables that a load is judged by and does not write get a range too, without seqs.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn

CHUNK = 500


def reserve(txn: Txn, op_id: str, branch_id: str, table_id: str, rows: int) -> int:
    """Take a range of seqs for an operation and return its first."""
    first = txn.allocate(rows)
    txn.conn.execute(
        insert(db.reservations).values(
            op_id=op_id, branch_id=branch_id, table_id=table_id, first_seq=first, last_seq=first + rows - 1
        )
    )
    return first


def number(txn: Txn, op_id: str, table_id: str, rows: int) -> int:
    """Give a range without seqs as many as it is known by now to need; returns the first."""
    first, reserved = txn.allocate(rows), db.reservations.c
    txn.conn.execute(
        update(db.reservations)
        .where(reserved.op_id == op_id, reserved.table_id == table_id)
        .values(first_seq=first, last_seq=first + rows - 1)
    )
    return first


def read_overtaken(conn: Connection, op_id: str) -> list[tuple[str, str]]:
    """The (branch, table)s of an operation that have later rows already than those it has reserved seqs for.

    Its rows appear below these, and may take the place of some of them: a load's row wins over one with the same key
    that was appended meanwhile.
    """
    reserved, head = db.reservations.c, db.heads.c
    later = and_(head.branch_id == reserved.branch_id, head.table_id == reserved.table_id)
    rows = conn.execute(
        select(reserved.branch_id, reserved.table_id)
        .join(db.heads, later)
        .where(reserved.op_id == op_id, reserved.last_seq >= reserved.first_seq, head.last_seq > reserved.first_seq)
    )
    return [(row.branch_id, row.table_id) for row in rows]


def note_published(txn: Txn, op_id: str) -> None:
    """The operation's rows are in the log from now on: a read of an earlier moment must not see them.

    Before its commit takes a seq: at that commit they are there.
    """
    reserved = db.reservations.c
    rows = txn.conn.execute(
        select(reserved.table_id, reserved.first_seq, reserved.last_seq).where(
            reserved.op_id == op_id, reserved.last_seq >= reserved.first_seq
        )
    )
    for row in rows.all():
        txn.conn.execute(insert(db.late_ranges).values(**row._mapping, number=txn.last_seq, at_us=txn.at_us))


def read_late(conn: Connection, table_id: str, *, number: int, at_us: int | None) -> list[tuple[int, int]]:
    """The ranges of a table that were published after a moment: after a seq was given, or after a time."""
    late = db.late_ranges.c
    after = late.number >= number if at_us is None else late.at_us > at_us
    rows = conn.execute(select(late.first_seq, late.last_seq).where(late.table_id == table_id, after))
    return [(row.first_seq, row.last_seq) for row in rows]


def first_late(conn: Connection, table_id: str, commits: Sequence[int]) -> int | None:
    """The first seq of what operations wrote to a table whose commits have these seqs; None where there is nothing.

    The rows of any other commit have the seqs right below its own.
    """
    late = db.late_ranges.c
    before = [seq - 1 for seq in commits]
    chunks = [before[start : start + CHUNK] for start in range(0, len(before), CHUNK)]
    queries = [
        select(func.min(late.first_seq)).where(late.table_id == table_id, late.number.in_(chunk)) for chunk in chunks
    ]
    seqs = [conn.execute(query).scalar() for query in queries]
    return min((seq for seq in seqs if seq is not None), default=None)


def release(txn: Txn, op_id: str) -> None:
    """The range is published, or it has become a gap."""
    txn.conn.execute(delete(db.reservations).where(db.reservations.c.op_id == op_id))
