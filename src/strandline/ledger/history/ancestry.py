"""How commits follow each other: what reaches what, and where two lines of them last were one.

A commit's seq is above those of its parents. So a walk that always takes the newest commit it has not seen has seen all
that came after one when it comes to it, and stops early: its cost follows what it is asked about, not the history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from sqlalchemy import Connection, select

from strandline.ledger.database import schema as db
from strandline.ledger.history.commits import commit_of, get_commit
from strandline.model.history.commits import Commit

PAGE = 200
_LEFT, _RIGHT, _BELOW = 1, 2, 4


class Graph:
    """The commits of a lake, read as a walk comes to them, in pages: neighbours were made about the same time."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._known: dict[str, Commit] = {}

    def commit(self, commit_id: str) -> Commit:
        """A commit that is known to be there."""
        if commit_id not in self._known:
            seq = self._conn.execute(select(db.commits.c.seq).where(db.commits.c.commit_id == commit_id)).scalar_one()
            rows = self._conn.execute(
                select(db.commits, db.branches.c.name)
                .outerjoin(db.branches, db.branches.c.branch_id == db.commits.c.branch_id)
                .where(db.commits.c.seq <= seq)
                .order_by(db.commits.c.seq.desc())
                .limit(PAGE)
            )
            self._known.update((row.commit_id, commit_of(row)) for row in rows)
        return self._known[commit_id]

    def at(self, seq: int) -> Commit:
        """The commit whose own seq this is."""
        commit_id = self._conn.execute(select(db.commits.c.commit_id).where(db.commits.c.seq == seq)).scalar_one()
        return self.commit(commit_id)

    def walk(self, starts: Mapping[str, int], done: Callable[[Iterable[int]], bool]) -> Iterator[tuple[Commit, int]]:
        """Commits from these down, newest first, each with the marks of all starts that reach it.

        It ends where `done` says so of the marks of those that wait.
        """
        marks = dict(starts)
        waiting = [(-self.commit(start).seq, start) for start in starts]
        heapq.heapify(waiting)
        while waiting and not done(marks[commit_id] for _, commit_id in waiting):
            commit = self.commit(heapq.heappop(waiting)[1])
            mark = marks[commit.commit_id]
            both = mark & _LEFT and mark & _RIGHT
            yield commit, mark
            for parent in commit.parents:
                if parent not in marks:
                    marks[parent] = 0
                    heapq.heappush(waiting, (-self.commit(parent).seq, parent))
                marks[parent] |= mark | (_BELOW if both else 0)

    def down(self, tip: str | None) -> Iterator[Commit]:
        """A commit and all its ancestors, newest first."""
        if tip is not None:
            yield from (commit for commit, _ in self.walk({tip: _LEFT}, _never))

    def only(self, tip: str | None, other: str | None) -> list[Commit]:
        """What one commit reaches, itself included, and another does not; newest first."""
        if tip is None or tip == other:
            return []
        starts = {tip: _LEFT} | ({other: _RIGHT} if other is not None else {})
        walk = self.walk(starts, lambda waiting: all(mark & _RIGHT for mark in waiting))
        return [commit for commit, mark in walk if mark == _LEFT]

    def reaches(self, tip: str | None, commit: Commit) -> bool:
        """Whether a commit is this one or an ancestor of it."""
        for ancestor in self.down(tip):
            if ancestor.seq <= commit.seq:
                return ancestor.commit_id == commit.commit_id
        return False

    def has_on_line(self, tip: str | None, commit: Commit) -> bool:
        """Whether a commit is this one or was made before it on the same line: by first parents alone.

        These are the commits whose rows are in a branch's logs under their own names; a merge writes others' anew.
        """
        while tip is not None:
            ancestor = self.commit(tip)
            if ancestor.seq <= commit.seq:
                return ancestor.commit_id == commit.commit_id
            tip = ancestor.parents[0] if ancestor.parents else None
        return False

    def line(self, tip: str, down_to: int) -> set[str]:
        """The commits of a line, by first parents, whose seqs are not below one."""
        commit_ids: set[str] = set()
        at: str | None = tip
        while at is not None and (commit := self.commit(at)).seq >= down_to:
            commit_ids.add(at)
            at = commit.parents[0] if commit.parents else None
        return commit_ids

    def bases(self, left: str, right: str) -> list[Commit]:
        """The best common ancestors of two commits: those that are not above another one. The newest first."""
        if left == right:
            return [self.commit(left)]
        walk = self.walk({left: _LEFT, right: _RIGHT}, lambda waiting: all(mark & _BELOW for mark in waiting))
        return [commit for commit, mark in walk if mark == _LEFT | _RIGHT]


def _never(_waiting: Iterable[int]) -> bool:
    return False


def history(conn: Connection, branch_id: str, *, limit: int, before: str | None = None) -> list[Commit]:
    """A branch's commits from its tip down, by their seqs; `before` leaves out that one and all that are newer."""
    tip = conn.execute(select(db.branches.c.tip).where(db.branches.c.branch_id == branch_id)).scalar_one()
    below = get_commit(conn, before).seq if before is not None else None
    commits = (commit for commit in Graph(conn).down(tip) if below is None or commit.seq < below)
    return list(islice(commits, limit))
