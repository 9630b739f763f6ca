"""How far each streaming query has come in each table, so that a replayed micro-batch publishes nothing."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from strandline.errors import KeyExists
from strandline.ledger import schema as db
from strandline.ledger.ledger import Txn


def last_batch(conn: Connection, query_id: str, table_id: str) -> int | None:
    """The last micro-batch of this query that the table has."""
    return conn.execute(
        select(db.query_marks.c.last_batch).where(
            db.query_marks.c.query_id == query_id, db.query_marks.c.table_id == table_id
        )
    ).scalar()


def move_mark(txn: Txn, query_id: str, table_id: str, batch: int) -> None:
    """Move the mark up; a mark that is there already means that the same batch was published by somebody else."""
    found = last_batch(txn.conn, query_id, table_id)
    if found is None:
        txn.conn.execute(insert(db.query_marks).values(query_id=query_id, table_id=table_id, last_batch=batch))
        return
    if found >= batch:
        raise KeyExists(
            f"batch {batch} of the streaming query {query_id} is in the table already",
            expected=batch,
            actual=found,
        )
    txn.conn.execute(
        update(db.query_marks)
        .where(db.query_marks.c.query_id == query_id, db.query_marks.c.table_id == table_id)
        .values(last_batch=batch)
    )
