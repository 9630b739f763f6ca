"""The part of the front door that is about keyed tables: mutations, commits and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from strandline.actors import checked_actor
from strandline.errors import BadRequest, Conflict, InvalidRows, StrandError
from strandline.ledger.ledger import MAIN, Ledger
from strandline.ledger.rereading import Kept
from strandline.ledger.tables import branch_id, has_schema, read_shown

if TYPE_CHECKING:
    from strandline.ledger.branches import Branch, Tag
    from strandline.ledger.group_commit import Appender
    from strandline.model.changes import Changes, RowDiff
    from strandline.model.commits import Commit
    from strandline.model.merge import Merged, Side
    from strandline.model.mutations import Expectation, Statement
    from strandline.model.tables import Head, TableState
    from strandline.operations.context import Context
    from strandline.operations.mutate import Mutator
    from strandline.views.view import View

SCHEMA_RETRIES = 5

T = TypeVar("T")
StateOf: TypeAlias = "Callable[[str], TableState]"


class Versioned:
    """What a lake does with keyed tables."""

    ledger: Ledger
    _appender: Appender
    _states: dict[tuple[str, str], TableState]

    @property
    def context(self) -> Context:
        """What operations need."""
        raise AssertionError("a lake has a context")

    def view(self, branch: str = MAIN, at: str | None = None) -> View:
        """All tables of a branch."""
        raise AssertionError("a lake has views")

    def _state(self, table: str, branch: str) -> TableState:
        """A table's schema, remembered: the append's transaction checks that it is still the same."""
        key = (branch, table.lower())
        known = self._states.get(key)
        if known is None:  # one look: another thread may forget it in between
            with self.ledger.read() as conn:
                known = self._states[key] = read_shown(conn, branch, [table])[0]
        return known

    def _forgets(self, error: StrandError, judged_by: Iterable[Head], branch: str) -> bool:
        """Whether an error may be due to schemas that we remember and that have moved; then they are forgotten.

        Rows that don't fit the schema that we know may fit the one that there is by now. The heads that the rows were
        judged by are compared too: another thread may have forgotten them, and looked again, since then.
        """
        kind = error.detail["kind"] if isinstance(error, Conflict) else None
        moved = kind == "schema_moved"
        if kind in (None, "versions"):
            remembered = [state.head for (on, _), state in list(self._states.items()) if on == branch]
            with self.ledger.read() as conn:
                moved = not all(has_schema(conn, head) for head in [*judged_by, *remembered])
        if moved:
            self._states.clear()
            self._mutator.forget()
        return moved

    def mutate(
        self,
        statements: Sequence[Statement],
        *,
        branch: str = MAIN,
        actor: str = "",
        message: str = "",
        expect: Expectation | Sequence[Expectation] | None = None,
    ) -> Commit:
        """Change rows of keyed tables: all statements, in their order, as one commit; or none of them."""
        from strandline.model.mutations import listed_statements
        from strandline.operations.mutate import prepare

        actor = checked_actor(actor, None)
        statements = listed_statements(statements)

        def work(state_of: StateOf) -> Commit:
            request = prepare(
                statements,
                expect,
                state_of,
                branch=branch,
                actor=actor,
                message=message,
            )
            return self._mutator.mutate(request)

        return self._retried(work, branch)

    def _retried(self, work: Callable[[StateOf], T], branch: str, rows: object = ()) -> T:
        """Do it, and again with what the tables are then if they have changed meanwhile.

        `rows` that can be read once are read by a schema that was looked up for them, and again as far as they are
        kept: what nobody could read again must not be refused for a schema that was remembered.
        """
        kept = rows if isinstance(rows, Kept) else None
        for _ in range(SCHEMA_RETRIES):
            heads: list[Head] = []

            def state_of(table: str, heads: list[Head] = heads) -> TableState:
                state = self._state(table, branch) if kept is None else self._current_state(table, branch)
                heads.append(state.head)
                return state

            try:
                return work(state_of)
            except (Conflict, InvalidRows, BadRequest) as error:
                if not self._forgets(error, heads, branch):
                    raise
                if kept is not None and not kept.is_whole:
                    raise Conflict(
                        "the schema changed while the rows were read, and they are too many to be kept",
                        kind="schema_moved",
                        hint="Nothing was stored. Do it again: the rows are then read by the new schema.",
                    ) from error
        raise Conflict("the schemas keep changing", kind="schema_moved")

    def _current_state(self, table: str, branch: str) -> TableState:
        """The same as `_state`, after one look whether it is still so."""
        state = self._state(table, branch)
        with self.ledger.read() as conn:
            current = has_schema(conn, state.head)
        if not current:
            self._states.clear()
            self._mutator.forget()
            state = self._state(table, branch)
        return state

    @cached_property
    def _mutator(self) -> Mutator:
        from strandline.operations.mutate import Mutator

        return Mutator(self.ledger, self._appender, lambda: self.context)

    def log(self, branch: str = MAIN, *, limit: int = 50, before: str | None = None) -> list[Commit]:
        """A branch's commits, the newest first; `before` goes on behind the last one of an earlier answer."""
        from strandline.ledger.history import history

        with self.ledger.read() as conn:
            return history(conn, branch_id(conn, branch), limit=limit, before=before)

    def commit(self, name: str, *, branch: str = MAIN) -> Commit:
        """One commit: by its id or the beginning of it, by a tag, as a branch's newest one or as that of a time."""
        from strandline.ledger.refs import find_commit_at

        with self.ledger.read() as conn:
            return find_commit_at(conn, name, branch)[0]

    def branch(self, name: str, from_: str = MAIN, *, actor: str = "") -> Branch:
        """Make a branch at a branch's newest commit, a tag or any commit.

        From a newest commit or a tag of one it costs a few rows of the ledger, whatever the lake's size. From an older
        one, files that have later rows too are written again without them, by Spark.
        """
        from strandline.ledger.branches import create_branch, list_branches

        with self.ledger.read() as conn:
            known = [one.name for one in list_branches(conn)]
        if from_ in known:
            return create_branch(self.ledger, name, from_)
        from strandline.operations.branch_at import branch_at

        return branch_at(self.context, name, from_, checked_actor(actor, None))

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
        """Bring what a branch changed into another one, as one commit; MergeConflict where both changed the same.

        `resolve` decides those: a side ("ours" is the target's), or the document of a resolution file. A dry run only
        tells what would come of it.
        """
        from strandline.model.merge import Resolution, read_resolution
        from strandline.operations.merge import Merger, Request

        decided = Resolution(side=resolve) if isinstance(resolve, str) else Resolution()
        decided = read_resolution(resolve) if isinstance(resolve, Mapping) else decided
        merger = Merger(self.ledger, self._appender, self.view, lambda: self.context)
        return merger.merge(Request(source, into, checked_actor(actor, None), message, decided, dry_run))

    def diff(self, before: str, after: str, *, table: str | None = None, branch: str = MAIN) -> Iterator[RowDiff]:
        """The rows of keyed tables that differ between two points: branches, tags, commits or times of a branch."""
        from strandline.views.diff import diff

        return diff(self.ledger, self.view, before, after, branch=branch, table=table)

    def changes(self, table: str, since: int = 0, *, branch: str = MAIN, limit: int = 1000) -> Changes:
        """What commits changed in a keyed table behind a seq: each row before and after, in order, page by page."""
        from strandline.views.diff import changes

        return changes(self.ledger, self.view(branch), table, since, limit)

    def branches(self) -> list[Branch]:
        """Every branch, by name."""
        from strandline.ledger.branches import list_branches

        with self.ledger.read() as conn:
            return list_branches(conn)

    def delete_branch(self, name: str, *, force: bool = False, actor: str = "") -> None:
        """Remove a branch; with `force` also one whose commits are on no other, which is audited."""
        from strandline.ledger.branches import delete_branch

        delete_branch(self.ledger, name, force=force, actor=checked_actor(actor, None))

    def protect_branch(self, name: str, *, protected: bool = True) -> None:
        """Let a branch change by merges alone, and be neither deleted nor renamed; or lift that."""
        from strandline.ledger.branches import protect_branch

        protect_branch(self.ledger, name, protected=protected)

    def tag(self, name: str, at: str = MAIN, *, branch: str = MAIN) -> Tag:
        """Give a commit a name: a branch's newest, or the one that `at` names. What it needs is kept for good."""
        from strandline.ledger.branches import create_tag
        from strandline.ledger.refs import find_point
        from strandline.views.past import refuse_pruned

        with self.ledger.write() as txn:
            point = find_point(txn.conn, at, branch)
            refuse_pruned(txn.conn, point)
            return create_tag(txn, name, point.commit, point.holder, point.covers)

    def tags(self) -> list[Tag]:
        """Every tag, by name."""
        from strandline.ledger.branches import list_tags

        with self.ledger.read() as conn:
            return list_tags(conn)

    def delete_tag(self, name: str) -> None:
        """Remove a tag."""
        from strandline.ledger.branches import delete_tag

        with self.ledger.write() as txn:
            delete_tag(txn, name)

    def rename_branch(self, name: str, to: str) -> None:
        """Give a branch another name."""
        from strandline.ledger.branches import rename_branch

        rename_branch(self.ledger, name, to)
