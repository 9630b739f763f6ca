"""Commits: what changed logically, by whom. Flush and other physical work make none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, insert, select, update

from strandline.ledger import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.ids import new_id


def write_commit(
    txn: Txn, branch: str, *, kind: str, actor: str, message: str, tables: Mapping[str, int], op_id: str | None = None
) -> str:
    """Write a commit onto a branch's tip, with a seq of its own, and return its id."""
    tip = txn.conn.execute(select(db.branches).where(db.branches.c.name == branch)).one()
    commit_id = new_id()
    txn.conn.execute(
        insert(db.commits).values(
            commit_id=commit_id,
            branch_id=tip.branch_id,
            kind=kind,
            actor=actor,
            message=message,
            seq=txn.allocate(1),
            at_us=txn.at_us,
            parents=orjson.dumps([tip.tip] if tip.tip else []).decode(),
            tables=orjson.dumps(dict(tables)).decode(),
            op_id=op_id,
        )
    )
    txn.conn.execute(update(db.branches).where(db.branches.c.branch_id == tip.branch_id).values(tip=commit_id))
    return commit_id


def commit_of_operation(conn: Connection, op_id: str) -> str | None:
    """The commit that an operation made, if it made one."""
    return conn.execute(select(db.commits.c.commit_id).where(db.commits.c.op_id == op_id)).scalar()


def list_commits(conn: Connection) -> list[dict[str, Any]]:
    """Every commit, oldest first."""
    return [dict(row._mapping) for row in conn.execute(select(db.commits).order_by(db.commits.c.seq))]
