"""Moving heads: only a publish does it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, case, insert, select, update

from strandline.ledger import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.ids import table_of
from strandline.model.operations import TableEffect


def move(txn: Txn, effect: TableEffect, version: int) -> None:
    """Set a head's pins and books to what an operation staged."""
    head = db.heads.c
    values = {
        "version": version,
        "rows_log": head.rows_log + effect.rows_added - effect.rows_removed,
        "rows_pruned": head.rows_pruned + effect.rows_removed,
        "barrier": head.barrier + int(effect.barrier),
        "rows_acked": head.rows_acked + effect.rows_acked,
        "rows_dropped": head.rows_dropped + effect.rows_dropped,
        "last_seq": case((head.last_seq > effect.last_seq, head.last_seq), else_=effect.last_seq),
        "kept_from": case((head.kept_from > effect.kept_from, head.kept_from), else_=effect.kept_from),
    }
    if effect.snapshot is not None:
        values["log_snapshot"] = effect.snapshot
    txn.conn.execute(
        update(db.heads).where(head.branch_id == effect.branch_id, head.table_id == effect.table_id).values(**values)
    )


def note_rewrite(txn: Txn, branch_id: str, table_id: str) -> None:
    """Visible rows of a table have changed otherwise than by later versions: none are to be added to what was read.

    The token is the number of this write transaction, and not a count: two branches that were changed differently must
    never come to the same one, because a branch may take over another one's head. A state has none of its own; it
    shows rows of its table.
    """
    head = db.heads.c
    number = txn.conn.execute(select(db.counter.c.writes)).scalar_one()
    where = head.branch_id == branch_id, head.table_id == table_of(table_id)
    txn.conn.execute(update(db.heads).where(*where).values(rewrites=number))


def pass_over(txn: Txn, branch_id: str, table_id: str, seq: int) -> None:
    """An operation has put rows into a keyed table, and this is the seq of its commit.

    It is the table's last seq too: branches that were made after the rows had their seqs, and before the commit, don't
    have them. And up to it hashes are lacking.
    """
    head = db.heads.c
    txn.conn.execute(
        update(db.heads)
        .where(head.branch_id == branch_id, head.table_id == table_id)
        .values(last_seq=seq, swept_seq=seq)
    )


def move_streams(txn: Txn, effect: TableEffect) -> None:
    """Raise the heads of the streams that got rows, and say how far retention has come in those that lost some."""
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
                    branch_id=effect.branch_id,
                    table_id=effect.table_id,
                    partition=partition,
                    last_seq=last_seq,
                    pruned_upto=0,
                )
            )
    for partition, seq in effect.pruned.items():
        txn.conn.execute(
            update(db.stream_heads)
            .where(
                stream.branch_id == effect.branch_id,
                stream.table_id == effect.table_id,
                stream.partition == partition,
                stream.pruned_upto < seq,
            )
            .values(pruned_upto=seq)
        )


def read_pruned(conn: Connection, branch_id: str, table_id: str) -> Mapping[str, int]:
    """Of each stream that retention has taken rows of, the highest seq that it took.

    Who has to read a stream again from a seq below it does not get all that was there.
    """
    stream = db.stream_heads.c
    rows = conn.execute(
        select(stream.partition, stream.pruned_upto).where(
            stream.branch_id == branch_id, stream.table_id == table_id, stream.pruned_upto > 0
        )
    )
    return {row.partition: row.pruned_upto for row in rows}


def read_streams(conn: Connection, branch_id: str, table_id: str) -> Mapping[str, int]:
    """The last seq of each stream of a (branch, table)."""
    rows = conn.execute(
        select(db.stream_heads.c.partition, db.stream_heads.c.last_seq).where(
            db.stream_heads.c.branch_id == branch_id, db.stream_heads.c.table_id == table_id
        )
    )
    return {row.partition: row.last_seq for row in rows}
