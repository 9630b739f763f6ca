"""Branches and what is on them: commits, tags, merges, and the rows that differ from one point to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from strandline.actors import checked_actor
from strandline.errors import HistoryGone, NotFound
from strandline.lake.following import refuse_future
from strandline.ledger.ledger import MAIN
from strandline.model.history.changes import RowChange, RowDiff
from strandline.model.times import text_of

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.ledger.history.branches import Branch, Tag
    from strandline.model.history.changes import Changes
    from strandline.model.history.commits import Commit
    from strandline.model.history.merge import Merged, ResolutionFile, Side


@dataclass(frozen=True)
class BranchEntry:
    """A branch as people see it: its newest commit, what it was made from and when."""

    branch: str
    tip: str | None
    from_: str | None
    created_at: str
    protected: bool


@dataclass(frozen=True)
class NewBranch:
    """A branch that was just made, and the point that it begins at."""

    branch: str
    from_: str
    tip: str | None


@dataclass(frozen=True)
class Renamed:
    """The name that a branch has now."""

    branch: str


@dataclass(frozen=True)
class Deleted:
    """The name of a branch or a tag that is gone."""

    deleted: str


@dataclass(frozen=True)
class Protection:
    """Whether a branch changes by merges alone."""

    branch: str
    protected: bool


@dataclass(frozen=True)
class NewTag:
    """A tag that was just made."""

    tag: str
    commit: str


@dataclass(frozen=True)
class TagEntry:
    """A tag as people see it."""

    tag: str
    commit: str
    created_at: str


@dataclass(frozen=True)
class CommitEntry:
    """A commit as people see it: its time as text, and the rows that it wrote by table."""

    branch: str
    kind: str
    actor: str
    message: str
    seq: int
    parents: tuple[str, ...]
    tables: Mapping[str, int]
    commit: str
    at: str


@dataclass(frozen=True)
class ShownCommit(CommitEntry):
    """A commit with the rows of keyed tables that it changed on its first parent; None where these are kept no more."""

    changes: tuple[RowDiff, ...] | None
    more: bool


@dataclass(frozen=True)
class Differences:
    """A page of the rows that differ between two points; `more` says that there is another."""

    rows: tuple[RowDiff, ...]
    more: bool


@dataclass(frozen=True)
class ChangesPage:
    """A page of what commits changed; `continuation` is the seq to go on behind."""

    rows: tuple[RowChange, ...]
    continuation: int
    more: bool


class Branches:
    """`lake.branches`; called, it lists them."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def __call__(self) -> list[Branch]:
        """Every branch, by name."""
        from strandline.ledger.history.branches import list_branches

        with self._lake.ledger.read() as conn:
            return list_branches(conn)

    def entries(self) -> list[BranchEntry]:
        """The same, as people see them."""
        return [
            BranchEntry(branch.name, branch.tip, branch.parent, text_of(branch.created_at_us), branch.protected)
            for branch in self()
        ]

    def create(self, name: str, from_: str = MAIN, *, actor: str = "") -> Branch:
        """Make a branch at a branch's newest commit, a tag or any commit."""
        from strandline.ledger.history.branches import create_branch

        if from_ in [branch.name for branch in self()]:
            return create_branch(self._lake.ledger, name, from_)
        from strandline.operations.change.branch_at import branch_at

        return branch_at(self._lake.context, name, from_, checked_actor(actor, None))

    def new(self, name: str, from_: str = MAIN, *, actor: str = "") -> NewBranch:
        """The same, as people see it."""
        branch = self.create(name, from_, actor=actor)
        return NewBranch(branch.name, from_, branch.tip)

    def delete(self, name: str, *, force: bool = False, actor: str = "") -> Deleted:
        """Remove a branch; with `force` also one whose commits are on no other, which is audited."""
        from strandline.ledger.history.branches import delete_branch

        delete_branch(self._lake.ledger, name, force=force, actor=checked_actor(actor, None))
        return Deleted(name)

    def protect(self, name: str, *, protected: bool = True) -> Protection:
        """Let a branch change by merges alone, and be neither deleted nor renamed; or lift that."""
        from strandline.ledger.history.branches import protect_branch

        protect_branch(self._lake.ledger, name, protected=protected)
        return Protection(name, protected)

    def rename(self, name: str, to: str) -> Renamed:
        """Give a branch another name."""
        from strandline.ledger.history.branches import rename_branch

        rename_branch(self._lake.ledger, name, to)
        return Renamed(to)

    def log(self, branch: str = MAIN, *, limit: int = 50, before: str | None = None) -> list[Commit]:
        """A branch's commits, the newest first; `before` goes on behind the last one of an earlier answer."""
        from strandline.ledger.history.ancestry import history
        from strandline.ledger.tables.tables import branch_id

        with self._lake.ledger.read() as conn:
            return history(conn, branch_id(conn, branch), limit=limit, before=before)

    def commit(self, name: str, *, branch: str = MAIN) -> Commit:
        """One commit: by its id or the beginning of it, by a tag, as a branch's newest one or as that of a time."""
        from strandline.ledger.history.refs import find_commit_at

        with self._lake.ledger.read() as conn:
            return find_commit_at(conn, name, branch)[0]

    def commits(self, branch: str = MAIN, *, limit: int = 50, before: str | None = None) -> list[CommitEntry]:
        """The log as people see it."""
        return [_entry(commit) for commit in self.log(branch, limit=limit, before=before)]

    def show(self, name: str, *, limit: int = 20) -> ShownCommit:
        """A commit, and the first rows that it changed. A table has none, and what shows it is said."""
        try:
            commit = self.commit(name)
        except NotFound as error:
            if name.lower() not in map(str.lower, self._lake.view().tables):
                raise
            hint = f"`strand table show {name}` shows the table, `strand log` the commits."
            raise NotFound(f"{name!r} is a table, and no commit, branch or tag", hint=hint, commit=name) from error
        changes = self._changed_by(commit, limit + 1)
        more = changes is not None and len(changes) > limit
        return ShownCommit(**vars(_entry(commit)), changes=None if changes is None else changes[:limit], more=more)

    def _changed_by(self, commit: Commit, limit: int) -> tuple[RowDiff, ...] | None:
        """The first rows that a commit changed on its first parent; None where these are not kept any more."""
        if not commit.parents:
            return None
        try:
            return tuple(islice(self.diff(commit.parents[0], commit.commit_id, branch=commit.branch), limit))
        except (HistoryGone, NotFound):
            return None

    def tag(self, name: str, at: str = MAIN, *, branch: str = MAIN) -> Tag:
        """Give a commit a name: a branch's newest, or the one that `at` names. What it needs is kept for good."""
        from strandline.ledger.history.branches import create_tag
        from strandline.ledger.history.refs import find_point
        from strandline.views.time_travel import refuse_pruned

        with self._lake.ledger.write() as txn:
            point = find_point(txn.conn, at, branch)
            refuse_pruned(txn.conn, point)
            return create_tag(txn, name, point.commit, point.holder, point.covers)

    def new_tag(self, name: str, at: str = MAIN, *, branch: str = MAIN) -> NewTag:
        """The same, as people see it."""
        tag = self.tag(name, at, branch=branch)
        return NewTag(tag.name, tag.commit)

    def tags(self) -> list[Tag]:
        """Every tag, by name."""
        from strandline.ledger.history.branches import list_tags

        with self._lake.ledger.read() as conn:
            return list_tags(conn)

    def tag_entries(self) -> list[TagEntry]:
        """The same, as people see them."""
        return [TagEntry(tag.name, tag.commit, text_of(tag.created_at_us)) for tag in self.tags()]

    def delete_tag(self, name: str) -> Deleted:
        """Remove a tag."""
        from strandline.ledger.history.branches import delete_tag

        with self._lake.ledger.write() as txn:
            delete_tag(txn, name)
        return Deleted(name)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        actor: str = "",
        message: str = "",
        dry_run: bool = False,
        resolve: Side | ResolutionFile | None = None,
    ) -> Merged:
        """Bring what a branch changed into another one, as one commit; MergeConflict where both changed the same."""
        from strandline.model.history.merge import Resolution, read_resolution
        from strandline.operations.merge.merge import Merger, MergeRequest

        lake = self._lake
        decided = Resolution(side=resolve) if isinstance(resolve, str) else Resolution()
        decided = read_resolution(resolve) if isinstance(resolve, Mapping) else decided
        merger = Merger(lake.ledger, lake.memory.appender, lake.view, lambda: lake.context)
        return merger.merge(MergeRequest(source, into, checked_actor(actor, None), message, decided, dry_run))

    def diff(self, before: str, after: str, *, table: str | None = None, branch: str = MAIN) -> Iterator[RowDiff]:
        """The rows of keyed tables that differ between two points: branches, tags, commits or times of a branch."""
        from strandline.views.diff import diff

        return diff(self._lake.ledger, self._lake.view, before, after, branch=branch, table=table)

    def differences(
        self, before: str, after: str, *, table: str | None = None, branch: str = MAIN, skip: int = 0, limit: int = 100
    ) -> Differences:
        """A page of those rows."""
        page = list(islice(self.diff(before, after, table=table, branch=branch), skip, skip + limit + 1))
        return Differences(tuple(page[:limit]), more=len(page) > limit)

    def changes(self, table: str, since: int = 0, *, branch: str = MAIN, limit: int = 1000) -> Changes:
        """What commits changed in a keyed table behind a seq: each row before and after, in order, page by page."""
        from strandline.views.diff import changes

        return changes(self._lake.ledger, self._lake.view(branch), table, since, limit)

    def changes_page(self, table: str, since: int = 0, *, branch: str = MAIN, limit: int = 100) -> ChangesPage:
        """A page of them, of a seq that this lake has given."""
        refuse_future(self._lake, since)
        page = self.changes(table, since, branch=branch, limit=limit + 1).rows
        rows = page[:limit]
        return ChangesPage(rows, continuation=rows[-1].seq if rows else since, more=len(page) > limit)


def _entry(commit: Commit) -> CommitEntry:
    return CommitEntry(
        branch=commit.branch,
        kind=commit.kind,
        actor=commit.actor,
        message=commit.message,
        seq=commit.seq,
        parents=commit.parents,
        tables=commit.tables,
        commit=commit.commit_id,
        at=text_of(commit.at_us),
    )
