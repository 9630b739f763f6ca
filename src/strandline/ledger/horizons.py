"""How far back a branch has to be kept: the oldest of its points that anybody may still ask for.

These are where the window of a retention begins, and all that is older and still stands for something: tags, where
other branches began, and where these and it last were one, which a merge starts from. All of them are on the branch's
own line of commits, so the oldest one is below the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sqlalchemy import Connection, select

from strandline.ledger import schema as db
from strandline.ledger.history import Graph
from strandline.model.commits import Commit


def find_horizon(conn: Connection, of: str, cutoff_us: int) -> Commit | None:
    """The oldest commit of a branch that is kept; None where the branch is younger than the window."""
    graph = Graph(conn)
    tip = conn.execute(select(db.branches.c.tip).where(db.branches.c.branch_id == of)).scalar_one()
    oldest = next((one for one in _line(graph, tip) if one.at_us <= cutoff_us), None)
    if oldest is None:
        return None
    for point in _points(conn, graph, of, tip):
        if point.seq < oldest.seq and graph.has_on_line(oldest.commit_id, point):
            oldest = point
    return oldest


def count_passed(conn: Connection, horizon: Commit, table: str, since: int) -> int:
    """How many versions of a table came in by commits that lie behind a horizon and not behind an older one."""
    found = 0
    for one in _line(Graph(conn), horizon.commit_id):
        if one.seq <= since:
            break
        found += one.tables.get(table, 0)
    return found


def _line(graph: Graph, tip: str | None) -> Iterator[Commit]:
    """A commit and those before it on its line, newest first."""
    while tip is not None:
        one = graph.commit(tip)
        yield one
        tip = one.parents[0] if one.parents else None


def _points(conn: Connection, graph: Graph, of: str, tip: str) -> Iterator[Commit]:
    """What stands for something: where a branch and each other one or tag last were one, and where those began."""
    branch = db.branches.c
    others = conn.execute(
        select(branch.tip, branch.parent_id, branch.forked_at).where(
            branch.branch_id != of, branch.deleted_at_us.is_(None), branch.tip.is_not(None)
        )
    ).all()
    for row in others:
        yield from graph.bases(tip, row.tip)
        if row.parent_id == of:
            yield from islice((one for one in _line(graph, tip) if one.seq <= row.forked_at), 1)
