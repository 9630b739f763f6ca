"""How far each streaming query has come in each table, so that a replayed micro-batch publishes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from strandline.errors import KeyExists
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Effect, Intent, Publishing


def last_batch(conn: Connection, query_id: str, table_id: str) -> int | None:
    """The last micro-batch of this query that the table has."""
    return conn.execute(
        select(db.query_marks.c.last_batch).where(
            db.query_marks.c.query_id == query_id, db.query_marks.c.table_id == table_id
        )
    ).scalar()


def move_mark(txn: Txn, query_id: str, table_id: str, batch: int) -> None:
    """Move the mark up; Conflict where it is there already."""
    if refuse_repeated(txn.conn, query_id, table_id, batch) is None:
        txn.conn.execute(insert(db.query_marks).values(query_id=query_id, table_id=table_id, last_batch=batch))
        return
    txn.conn.execute(
        update(db.query_marks)
        .where(db.query_marks.c.query_id == query_id, db.query_marks.c.table_id == table_id)
        .values(last_batch=batch)
    )


def refuse_repeated(conn: Connection, query_id: str, table_id: str, batch: int) -> int | None:
    """The last batch that the table has; Conflict where that is this one already: another process published it."""
    last = last_batch(conn, query_id, table_id)
    if last is not None and last >= batch:
        raise KeyExists(
            f"batch {batch} of the streaming query {query_id} is in the table already",
            expected=batch,
            actual=last,
        )
    return last


@dataclass(frozen=True)
class MoveQueryMark(Effect):
    """A table has a micro-batch of a streaming query, from the transaction on that stores its rows."""

    query_id: str
    table_id: str
    batch: int

    def check(self, conn: Connection, intent: Intent) -> None:
        """The table does not have the batch yet."""
        refuse_repeated(conn, self.query_id, self.table_id, self.batch)

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Move the mark up."""
        move_mark(txn, self.query_id, self.table_id, self.batch)
