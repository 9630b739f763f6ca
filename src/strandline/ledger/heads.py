"""Moving heads: only a publish does it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, case, insert, select, update

from strandline.ledger import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.operations import TableEffect


def move(txn: Txn, effect: TableEffect, version: int) -> None:
    """Set a head's pins and books to what an operation staged."""
    head = db.heads.c
    values = {
        "version": version,
        "rows_log": head.rows_log + effect.rows_added,
        "rows_acked": head.rows_acked + effect.rows_acked,
        "rows_dropped": head.rows_dropped + effect.rows_dropped,
        "last_seq": case((head.last_seq > effect.last_seq, head.last_seq), else_=effect.last_seq),
    }
    if effect.snapshot is not None:
        values["log_snapshot"] = effect.snapshot
    txn.conn.execute(
        update(db.heads).where(head.branch_id == effect.branch_id, head.table_id == effect.table_id).values(**values)
    )


def move_streams(txn: Txn, effect: TableEffect) -> None:
    """Raise the heads of the streams that got rows."""
    stream = db.stream_heads.c
    for partition, last_seq in effect.stream_heads.items():
        where = (
            stream.branch_id == effect.branch_id,
            stream.table_id == effect.table_id,
            stream.partition == partition,
        )
        moved = txn.conn.execute(update(db.stream_heads).where(*where).values(last_seq=last_seq))
        if moved.rowcount == 0:
            txn.conn.execute(
                insert(db.stream_heads).values(
                    branch_id=effect.branch_id, table_id=effect.table_id, partition=partition, last_seq=last_seq
                )
            )


def read_streams(conn: Connection, branch_id: str, table_id: str) -> Mapping[str, int]:
    """The last seq of each stream of a (branch, table)."""
    rows = conn.execute(
        select(db.stream_heads.c.partition, db.stream_heads.c.last_seq).where(
            db.stream_heads.c.branch_id == branch_id, db.stream_heads.c.table_id == table_id
        )
    )
    return {row.partition: row.last_seq for row in rows}
