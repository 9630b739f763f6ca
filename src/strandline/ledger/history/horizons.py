"""How far back a branch has to be kept: the oldest of its points that a reader may still ask for.

These are where the window of a retention begins, and all that is older and still stands for something: tags, where
other branches began, and where these and it last were one, which a merge starts from. All of them are on the branch's
own line of commits, so the oldest one is below the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from sqlalchemy import Connection, select

from strandline.ledger.database import schema as db
from strandline.ledger.history.ancestry import Graph
from strandline.ledger.history.branches import KEPT, TAG
from strandline.model.history.commits import Commit


@dataclass(frozen=True)
class KeptCommit:
    """A commit that is kept for a tag, another branch, or one that was merged and deleted and has no name any more."""

    commit: Commit
    kind: Literal["tag", "branch", "merged"]
    name: str


@dataclass(frozen=True)
class Horizon:
    """How far back a branch is kept: where the window begins, or an older point."""

    window: Commit
    point: KeptCommit | None

    @property
    def commit(self) -> Commit:
        """The oldest commit that is kept."""
        return self.window if self.point is None else self.point.commit


def find_horizon(conn: Connection, of: str, cutoff_us: int) -> Horizon | None:
    """How far back a branch is kept; None where the branch is younger than the window."""
    graph = Graph(conn)
    tip = conn.execute(select(db.branches.c.tip).where(db.branches.c.branch_id == of)).scalar_one()
    window = next((commit for commit in _line(graph, tip) if commit.at_us <= cutoff_us), None)
    if window is None:
        return None
    horizon = Horizon(window, None)
    for point in _points(conn, graph, of, tip):
        oldest = horizon.commit
        if point.commit.seq < oldest.seq and graph.has_on_line(oldest.commit_id, point.commit):
            horizon = Horizon(window, point)
    return horizon


def count_passed(conn: Connection, horizon: Commit, table: str, since: int) -> int:
    """How many versions of a table came in by commits that lie behind a horizon and not behind an older one."""
    count = 0
    for commit in _line(Graph(conn), horizon.commit_id):
        if commit.seq <= since:
            break
        count += commit.tables.get(table, 0)
    return count


def _line(graph: Graph, tip: str | None) -> Iterator[Commit]:
    """A commit and those before it on its line, newest first."""
    while tip is not None:
        commit = graph.commit(tip)
        yield commit
        tip = commit.parents[0] if commit.parents else None


def _points(conn: Connection, graph: Graph, of: str, tip: str) -> Iterator[KeptCommit]:
    """What stands for something: where a branch and each other one or tag last were one, and where those began."""
    branch = db.branches.c
    others = conn.execute(
        select(branch.name, branch.kind, branch.tip, branch.parent_id, branch.forked_at)
        .where(branch.branch_id != of, branch.deleted_at_us.is_(None), branch.tip.is_not(None))
        .order_by(branch.name)
    ).all()
    for row in others:
        began = (commit for commit in _line(graph, tip) if commit.seq <= row.forked_at)
        for commit in (*graph.bases(tip, row.tip), *islice(began, 1 if row.parent_id == of else 0)):
            yield _point(commit, row.kind, row.name)


def _point(commit: Commit, kind: str, name: str) -> KeptCommit:
    if kind != "tag":
        return KeptCommit(commit, "branch", name)
    tag = name.removeprefix(TAG)
    return KeptCommit(commit, "merged", "") if tag.startswith(KEPT) else KeptCommit(commit, "tag", tag)
