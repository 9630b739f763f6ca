"""Branches that begin at a commit of the past: made under no name, cut back to that commit, and then given theirs.

One whose process died on the way has no name either: no reader finds it, and a sweep removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, case, delete, select, update

from strandline.ledger.database import schema as db
from strandline.ledger.history.branches import fork, refuse_deleted, refuse_existing, remove
from strandline.ledger.history.refs import Point
from strandline.ledger.ledger import Txn
from strandline.ledger.rows import batches
from strandline.model.history.names import check_ref_name
from strandline.model.ids import new_id, state_id

MAKING = "making"


def begin(txn: Txn, name: str, point: Point, schemas: Mapping[str, int], hidden: Collection[str]) -> str:
    """Copy what the point's holder has, and let go at once of all that needs no other files than the ledger.

    `schemas` are the tables that there were, each with the version of its schema; rows of `hidden` commits go.
    """
    check_ref_name(name)
    refuse_existing(txn.conn, name)
    made = fork(txn, point.holder, f"~{MAKING}:{new_id()}", point.commit.commit_id, kind=MAKING)
    # It comes from nowhere: hashes tell when the holder came to have a version, which may be later than the commit that
    # wrote it, as after a fast-forward. Rows of before are looked for by their keys, until they are folded.
    branch = db.branches.c
    txn.conn.execute(update(db.branches).where(branch.branch_id == made).values(parent_id=None, forked_at=0))
    for table_id in txn.conn.execute(select(db.heads.c.table_id).where(db.heads.c.branch_id == made)).scalars().all():
        if table_id in schemas:
            _cut_back(txn, made, table_id, point.commit.seq, schemas[table_id], hidden)
        elif table_id not in {state_id(log_id) for log_id in schemas}:
            _forget(txn, made, table_id)
            txn.conn.execute(delete(db.heads).where(db.heads.c.branch_id == made, db.heads.c.table_id == table_id))
        elif hidden or _last_seq(txn.conn, made, table_id) >= point.commit.seq:
            _forget(txn, made, table_id)
            _empty(txn, made, table_id)
    return made


def _last_seq(conn: Connection, branch_id: str, table_id: str) -> int:
    head = db.heads.c
    query = select(head.last_seq).where(head.branch_id == branch_id, head.table_id == table_id)
    return int(conn.execute(query).scalar_one())


def _cut_back(txn: Txn, made: str, table_id: str, seq: int, schema: int, hidden: Collection[str]) -> None:
    held = txn.conn.execute(
        select(db.tail.c.batch_id, db.tail.c.first_seq, db.batches.c.commit_id)
        .join_from(db.tail, db.batches, db.tail.c.batch_id == db.batches.c.batch_id)
        .where(db.tail.c.branch_id == made, db.tail.c.table_id == table_id)
    )
    later = [row.batch_id for row in held if row.first_seq >= seq or row.commit_id in hidden]
    batches.release(txn, made, table_id, later)
    head, stream = db.heads.c, db.stream_heads.c
    txn.conn.execute(
        update(db.heads)
        .where(head.branch_id == made, head.table_id == table_id)
        .values(
            last_seq=case((head.last_seq >= seq, seq - 1), else_=head.last_seq),
            swept_seq=seq - 1,
            schema_version=schema,
        )
    )
    txn.conn.execute(
        update(db.stream_heads)
        .where(stream.branch_id == made, stream.table_id == table_id, stream.last_seq >= seq)
        .values(last_seq=seq - 1)
    )


def _forget(txn: Txn, made: str, table_id: str) -> None:
    """Let go of a table that was not there yet, or of a state that knows what came later."""
    held = select(db.tail.c.batch_id).where(db.tail.c.branch_id == made, db.tail.c.table_id == table_id)
    batches.release(txn, made, table_id, txn.conn.execute(held).scalars().all())
    for table in (db.files, db.snapshots, db.stream_heads):
        txn.conn.execute(delete(table).where(table.c.branch_id == made, table.c.table_id == table_id))


def _empty(txn: Txn, made: str, table_id: str) -> None:
    """A state that nothing was folded into."""
    head = db.heads.c
    nothing = {column.name: 0 for column in db.heads.columns if column.name.startswith("rows_")}
    txn.conn.execute(
        update(db.heads)
        .where(head.branch_id == made, head.table_id == table_id)
        .values(version=0, log_snapshot=None, last_seq=0, **nothing)
    )


def finish(txn: Txn, made: str, name: str) -> None:
    """Give it its name: from here on it is there; a conflict when it took so long that a sweep has removed it."""
    refuse_deleted(txn.conn, made)
    refuse_existing(txn.conn, name)
    txn.conn.execute(update(db.branches).where(db.branches.c.branch_id == made).values(name=name, kind="branch"))


def give_up(txn: Txn, made: str) -> None:
    """Remove one that could not be made."""
    remove(txn, made)


def abandoned(conn: Connection, before_us: int) -> list[str]:
    """Those that were begun before a time and have no name yet."""
    branch = db.branches.c
    query = select(branch.branch_id).where(
        branch.kind == MAKING, branch.deleted_at_us.is_(None), branch.created_at_us < before_us
    )
    return [str(branch_id) for branch_id in conn.execute(query).scalars()]
