"""Where a change starts from: a branch and its heads, as one database snapshot shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from strandline.ledger.database import schema as db
from strandline.ledger.database.prepared import Bound, Prepared, together
from strandline.ledger.history.branches import lineage
from strandline.ledger.tables.tables import branch_id
from strandline.model.ids import state_id
from strandline.model.tables import BranchTable


@dataclass(frozen=True)
class HeadNow:
    """What a change of a table depends on besides its rows; and its state, with how far the log is folded into it.

    Up to `swept_seq` versions may be known by no hash any more.
    """

    version: int
    barrier: int
    last_seq: int
    schema_version: int
    state_version: int
    folded_seq: int
    swept_seq: int = 0

    @classmethod
    def of(cls, branch_table: BranchTable) -> HeadNow:
        """The same of a table that a view has."""
        head, folded = branch_table.head, branch_table.folded
        version = folded.head.version if folded is not None else 0
        return cls(head.version, head.barrier, head.last_seq, head.schema_version, version, branch_table.folded_seq)


@dataclass(frozen=True)
class Base:
    """A branch at one moment: its newest commit, the last seq that was given to anything, and heads by table id.

    `shape` is that of its tables. `lineage` are the branch and those it comes from, nearest first, each with the last
    number that counts of it.
    """

    branch_id: str
    tip: str | None
    number: int
    shape: int
    heads: Mapping[str, HeadNow]
    lineage: Sequence[tuple[str, int]] = ()


_last_seq = select(db.counter.c.last_seq).where(db.counter.c.id == 1).scalar_subquery()
_SELECT_BRANCH = Prepared(
    select(db.branches.c.tip, _last_seq, db.branches.c.shape).where(db.branches.c.branch_id == bindparam("b_branch"))
)
_head, _state = db.heads.alias("head"), db.heads.alias("state")
_SELECT_HEAD = Prepared(
    select(
        _head.c.version,
        _head.c.barrier,
        _head.c.last_seq,
        _head.c.schema_version,
        _state.c.version.label("state_version"),
        _state.c.last_seq.label("folded_seq"),
        _head.c.swept_seq,
    )
    .join_from(_head, _state, _state.c.branch_id == _head.c.branch_id)
    .where(
        _head.c.branch_id == bindparam("b_branch"),
        _head.c.table_id == bindparam("b_table"),
        _state.c.table_id == bindparam("b_state"),
    )
)


def read_base(conn: Connection, branch: str, table_ids: Sequence[str]) -> Base:
    """Where a change of these tables of a branch starts from; a table that the branch does not have is left out."""
    on_branch = branch_id(conn, branch)
    places = [{"b_branch": on_branch, "b_table": table_id, "b_state": state_id(table_id)} for table_id in table_ids]
    steps = [Bound(_SELECT_BRANCH, {"b_branch": on_branch}), *(Bound(_SELECT_HEAD, place) for place in places)]
    ((tip, number, shape),), *rows = together(conn, steps)
    heads = {table_id: HeadNow(*head[0]) for table_id, head in zip(table_ids, rows, strict=True) if head}
    from_here = [(ancestor, number if upto is None else upto) for ancestor, upto in lineage(conn, on_branch)]
    return Base(on_branch, tip, number, shape, heads, from_here)
