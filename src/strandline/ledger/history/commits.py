"""Commits: what changed logically, by which actor. Flush and other physical work make none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, Row, bindparam, insert, select, update

from strandline.errors import BadRequest, NotFound
from strandline.ledger.database import schema as db
from strandline.ledger.database.prepared import Bound, Prepared
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Effect, Publishing
from strandline.model.history.commits import Commit
from strandline.model.ids import new_id

_INSERT = Prepared(insert(db.commits).values({column: bindparam(f"b_{column.name}") for column in db.commits.columns}))
_MOVE_TIP = Prepared(
    update(db.branches).where(db.branches.c.branch_id == bindparam("b_branch_id")).values(tip=bindparam("b_commit_id"))
)


def writing(commit: Commit, branch_id: str, op_id: str | None = None) -> list[Bound]:
    """What writes a commit, and makes it the newest of its branch."""
    row = {
        "b_commit_id": commit.commit_id,
        "b_branch_id": branch_id,
        "b_kind": commit.kind,
        "b_actor": commit.actor,
        "b_message": commit.message,
        "b_seq": commit.seq,
        "b_at_us": commit.at_us,
        "b_parents": orjson.dumps(commit.parents).decode(),
        "b_tables": orjson.dumps(dict(commit.tables)).decode(),
        "b_op_id": op_id,
    }
    return [Bound(_INSERT, row), Bound(_MOVE_TIP, row)]


def write_commit(
    txn: Txn,
    branch: str,
    *,
    kind: str,
    actor: str,
    message: str,
    tables: Mapping[str, int],
    op_id: str | None = None,
    commit_id: str | None = None,
    merged: str | None = None,
) -> Commit:
    """Write a commit onto a branch's tip, with a seq of its own; `merged` is the tip of what a merge brings."""
    at = txn.conn.execute(select(db.branches).where(db.branches.c.name == branch)).one()
    commit = Commit(
        commit_id=commit_id or new_id(),
        branch=branch,
        kind=kind,
        actor=actor,
        message=message,
        seq=txn.allocate(1),
        at_us=txn.at_us,
        parents=tuple(parent for parent in (at.tip, merged) if parent),
        tables=tables,
    )
    txn.write_last(writing(commit, at.branch_id, op_id))
    return commit


@dataclass(frozen=True)
class WriteCommit(Effect):
    """The commit of an operation, on its branch; with an id where rows carry it already.

    `merged` is the tip of what a merge brings. It takes a seq, so what it stands before and behind is not free: rows
    that the operation has reserved seqs for are noted as published before it, and later effects are known by its seq.
    """

    kind: str
    message: str
    tables: Mapping[str, int]
    commit_id: str | None = None
    merged: str | None = None

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Write it, and let the effects behind it know it."""
        intent = publishing.intent
        names = select(db.branches.c.name).where(db.branches.c.branch_id == intent.branch_id)
        publishing.commit = write_commit(
            txn,
            txn.conn.execute(names).scalar_one(),
            kind=self.kind,
            actor=intent.actor,
            message=self.message,
            tables=self.tables,
            op_id=intent.op_id,
            commit_id=self.commit_id,
            merged=self.merged,
        )


def write_move(txn: Txn, branch_id: str, number: int, was: str | None) -> None:
    """Note where a branch was before it is moved to a commit that another one made."""
    txn.conn.execute(insert(db.moves).values(branch_id=branch_id, number=number, at_us=txn.at_us, was=was))


def tip_before_moves(conn: Connection, branch_id: str, at_us: int) -> str | None:
    """The newest commit of a branch's line of a time: as it is, or as the first move after that time left it."""
    move = db.moves.c
    first = select(move.was).where(move.branch_id == branch_id, move.at_us > at_us).order_by(move.number).limit(1)
    row = conn.execute(first).one_or_none()
    if row is not None:
        return None if row.was is None else str(row.was)
    tip: str | None = conn.execute(select(db.branches.c.tip).where(db.branches.c.branch_id == branch_id)).scalar_one()
    return tip


def commit_of_operation(conn: Connection, op_id: str) -> str | None:
    """The commit that an operation made, if it made one."""
    return conn.execute(select(db.commits.c.commit_id).where(db.commits.c.op_id == op_id)).scalar()


def find_commit(conn: Connection, commit_id: str) -> Commit | None:
    """A commit by its id."""
    row = conn.execute(
        select(db.commits, db.branches.c.name)
        .outerjoin(db.branches, db.branches.c.branch_id == db.commits.c.branch_id)
        .where(db.commits.c.commit_id == commit_id)
    ).one_or_none()
    return None if row is None else commit_of(row)


def get_commit(conn: Connection, text: str) -> Commit:
    """The commit whose id begins so; NotFound when there is none, BadRequest when there are several."""
    if text and text.isalnum():
        ids = conn.execute(
            select(db.commits.c.commit_id).where(db.commits.c.commit_id.startswith(text)).order_by(db.commits.c.seq)
        ).scalars()
        commit_ids = list(ids.fetchmany(2))
        if len(commit_ids) > 1:
            raise BadRequest(f"more than one commit begins with {text!r}", hint="Give more of its id.")
        for commit_id in commit_ids:
            commit = find_commit(conn, commit_id)
            assert commit is not None
            return commit
    raise NotFound(f"there is no commit {text!r}", hint="`strand log` lists the commits.", commit=text)


def commit_of(row: Row[tuple[object, ...]]) -> Commit:
    """A commit from a row of its table with its branch's name."""
    return Commit(
        commit_id=row.commit_id,
        branch=row.name or "",
        kind=row.kind,
        actor=row.actor,
        message=row.message,
        seq=row.seq,
        at_us=row.at_us,
        parents=tuple(orjson.loads(row.parents)),
        tables=orjson.loads(row.tables),
    )
