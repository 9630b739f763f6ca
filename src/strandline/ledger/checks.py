"""Questions that only `strand doctor` asks: whether the ledger agrees with itself."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from strandline.ledger import schema as db


def counter_seq(conn: Connection) -> int:
    """The last seq that was handed out."""
    return int(conn.execute(select(db.counter.c.last_seq)).scalar_one())


def highest_seqs(conn: Connection) -> Mapping[str, int]:
    """The highest seq that each group of tables knows of; none may be above the counter."""
    columns = {
        "batches": db.batches.c.last_seq,
        "heads": db.heads.c.last_seq,
        "files": db.files.c.last_seq,
        "commits": db.commits.c.seq,
        "reservations": db.reservations.c.last_seq,
    }
    return {name: int(conn.execute(select(func.max(column))).scalar() or 0) for name, column in columns.items()}


def lost_batches(conn: Connection) -> list[tuple[str, str]]:
    """Tables and batches that a tail refers to and that are not there."""
    rows = conn.execute(
        select(db.tables.c.name, db.tail.c.batch_id)
        .join_from(db.tail, db.tables, db.tables.c.table_id == db.tail.c.table_id)
        .outerjoin(db.batches, db.batches.c.batch_id == db.tail.c.batch_id)
        .where(db.batches.c.batch_id.is_(None))
    )
    return [(row.name, row.batch_id) for row in rows]
