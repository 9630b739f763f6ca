"""Branches and what is on them: commits, tags, merges, and the rows that differ from one point to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from strandline.actors import checked_actor
from strandline.ledger.ledger import MAIN

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.ledger.branches import Branch, Tag
    from strandline.model.changes import Changes, RowDiff
    from strandline.model.commits import Commit
    from strandline.model.merge import Merged, Side


class Branches:
    """`lake.branches`; called, it lists them."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def __call__(self) -> list[Branch]:
        """Every branch, by name."""
        from strandline.ledger.branches import list_branches

        with self._lake.ledger.read() as conn:
            return list_branches(conn)

    def create(self, name: str, from_: str = MAIN, *, actor: str = "") -> Branch:
        """Make a branch at a branch's newest commit, a tag or any commit."""
        from strandline.ledger.branches import create_branch

        if from_ in [branch.name for branch in self()]:
            return create_branch(self._lake.ledger, name, from_)
        from strandline.operations.branch_at import branch_at

        return branch_at(self._lake.context, name, from_, checked_actor(actor, None))

    def delete(self, name: str, *, force: bool = False, actor: str = "") -> None:
        """Remove a branch; with `force` also one whose commits are on no other, which is audited."""
        from strandline.ledger.branches import delete_branch

        delete_branch(self._lake.ledger, name, force=force, actor=checked_actor(actor, None))

    def protect(self, name: str, *, protected: bool = True) -> None:
        """Let a branch change by merges alone, and be neither deleted nor renamed; or lift that."""
        from strandline.ledger.branches import protect_branch

        protect_branch(self._lake.ledger, name, protected=protected)

    def rename(self, name: str, to: str) -> None:
        """Give a branch another name."""
        from strandline.ledger.branches import rename_branch

        rename_branch(self._lake.ledger, name, to)

    def log(self, branch: str = MAIN, *, limit: int = 50, before: str | None = None) -> list[Commit]:
        """A branch's commits, the newest first; `before` goes on behind the last one of an earlier answer."""
        from strandline.ledger.history import history
        from strandline.ledger.tables import branch_id

        with self._lake.ledger.read() as conn:
            return history(conn, branch_id(conn, branch), limit=limit, before=before)

    def commit(self, name: str, *, branch: str = MAIN) -> Commit:
        """One commit: by its id or the beginning of it, by a tag, as a branch's newest one or as that of a time."""
        from strandline.ledger.refs import find_commit_at

        with self._lake.ledger.read() as conn:
            return find_commit_at(conn, name, branch)[0]

    def tag(self, name: str, at: str = MAIN, *, branch: str = MAIN) -> Tag:
        """Give a commit a name: a branch's newest, or the one that `at` names. What it needs is kept for good."""
        from strandline.ledger.branches import create_tag
        from strandline.ledger.refs import find_point
        from strandline.views.past import refuse_pruned

        with self._lake.ledger.write() as txn:
            point = find_point(txn.conn, at, branch)
            refuse_pruned(txn.conn, point)
            return create_tag(txn, name, point.commit, point.holder, point.covers)

    def tags(self) -> list[Tag]:
        """Every tag, by name."""
        from strandline.ledger.branches import list_tags

        with self._lake.ledger.read() as conn:
            return list_tags(conn)

    def delete_tag(self, name: str) -> None:
        """Remove a tag."""
        from strandline.ledger.branches import delete_tag

        with self._lake.ledger.write() as txn:
            delete_tag(txn, name)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        actor: str = "",
        message: str = "",
        dry_run: bool = False,
        resolve: Side | Mapping[str, Any] | None = None,
    ) -> Merged:
        """Bring what a branch changed into another one, as one commit; MergeConflict where both changed the same."""
        from strandline.model.merge import Resolution, read_resolution
        from strandline.operations.merge import Merger, Request

        lake = self._lake
        decided = Resolution(side=resolve) if isinstance(resolve, str) else Resolution()
        decided = read_resolution(resolve) if isinstance(resolve, Mapping) else decided
        merger = Merger(lake.ledger, lake.memory.appender, lake.view, lambda: lake.context)
        return merger.merge(Request(source, into, checked_actor(actor, None), message, decided, dry_run))

    def diff(self, before: str, after: str, *, table: str | None = None, branch: str = MAIN) -> Iterator[RowDiff]:
        """The rows of keyed tables that differ between two points: branches, tags, commits or times of a branch."""
        from strandline.views.diff import diff

        return diff(self._lake.ledger, self._lake.view, before, after, branch=branch, table=table)

    def changes(self, table: str, since: int = 0, *, branch: str = MAIN, limit: int = 1000) -> Changes:
        """What commits changed in a keyed table behind a seq: each row before and after, in order, page by page."""
        from strandline.views.diff import changes

        return changes(self._lake.ledger, self._lake.view(branch), table, since, limit)
