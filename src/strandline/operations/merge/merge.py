"""Merge: what one branch changed since it and another were one comes to the other, as one commit with two parents.

A side's changes are the rows of its commits since the best common ancestor. Of each row that the source changed, the
target's is looked up; where the target changed it too, so is the one that both began with. A table that the target has
not changed is taken over whole where the source has all of its rows: then nothing is read. The cost follows the change.

It is planned on a view of each branch and stored like a mutation: if what it met was changed meanwhile, it is planned
again. One that writes very many rows is an operation (`MergeTables`). Nothing is written while there is a conflict.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import BadRequest, Busy, Conflict, MergeConflict, SchemaMoved, TableMoved
from strandline.failpoints import fail
from strandline.ledger.changes.mutations import MergeSource, Moved, Mutation, TableChange, TableRead, fast_forward
from strandline.ledger.history.ancestry import Graph
from strandline.ledger.history.refs import find_homes
from strandline.ledger.history.starting_points import HeadNow
from strandline.ledger.ledger import Ledger
from strandline.ledger.rows.appends import Append
from strandline.ledger.rows.encode import encode_batch
from strandline.ledger.rows.group_commit import Appender
from strandline.ledger.tables.adoption import Adoption, can_adopt
from strandline.model.history.commits import MERGE, Commit
from strandline.model.history.merge import Merged, Resolution, RowConflict, conflict_entry, key_text, tables_of
from strandline.model.ids import new_id
from strandline.model.reporting import most_reported
from strandline.model.schema.constraints import Cardinality
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.keys import key_hashes, shown_key
from strandline.model.schema.migration import refers
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import REMOVED
from strandline.model.schema.violations import Violation
from strandline.model.tables import BranchTable
from strandline.model.wording import counted
from strandline.operations.change.mutate import give_way
from strandline.operations.change.planning import table_change
from strandline.operations.merge.judging import MergePlan, examined
from strandline.operations.merge.rows import Sides, TableMerge
from strandline.operations.merge.schemas import SchemaHistory, merged_schemas
from strandline.rules.changes import Claims, JudgedRow
from strandline.rules.kinds import conflict_kind
from strandline.rules.sets import breaking, newly_broken
from strandline.views.branch_rows import Looking
from strandline.views.diff import Written, plain_rows
from strandline.views.versions import NewestVersions
from strandline.views.view import View

if TYPE_CHECKING:
    from strandline.operations.core.context import Context

PATIENCE_S = 60.0
ADOPTING = 3
"""So often it is tried to take tables over; a source that is never still is merged by its rows."""
MOST_ROWS = 100_000
"""So many rows are one transaction of the ledger; more are an operation."""
FEW_KEYS = 1000
"""So many keys are compared one by one with what was committed meanwhile; of more, the whole table is."""


@dataclass(frozen=True)
class MergeRequest:
    """A merge as it was asked for."""

    source: str
    into: str
    actor: str
    message: str
    resolution: Resolution = field(default_factory=Resolution)
    dry_run: bool = False


class Merger:
    """Merges branches of one lake; `context` is asked for by a large merge alone."""

    def __init__(
        self,
        ledger: Ledger,
        appender: Appender,
        view: Callable[[str, str | None], View],
        context: Callable[[], Context],
    ) -> None:
        self._ledger = ledger
        self._context = context
        self._appender = appender
        self._view = view

    def merge(self, request: MergeRequest) -> Merged:
        """Merge, or in a dry run say what would come of it; MergeConflict where the sides disagree."""
        if request.source == request.into:
            raise BadRequest(f"{request.into!r} can't be merged into itself", hint="Name another branch.")
        deadline_s = time.monotonic() + PATIENCE_S
        for attempt in itertools.count():
            try:
                return self._merge(request, adopting=attempt < ADOPTING)
            except (Moved, SchemaMoved) as moved:
                if time.monotonic() > deadline_s and attempt > ADOPTING:
                    raise Busy(
                        f"{moved} keeps being changed while the merge is planned", reason="branch_moves"
                    ) from moved
                give_way(moved, self._context, most_s=0.02)
        raise AssertionError("unreachable")

    def _merge(self, request: MergeRequest, *, adopting: bool) -> Merged:
        source, target = self._view(request.source, None), self._view(request.into, None)
        plan = self._plan(request, source, target, adopting=adopting)
        if plan is None:
            return self._report(request, source, target, "up_to_date", target.base.tip)
        mutation = self._judged(request, plan)  # first: rules that merged rows break are conflicts too
        if plan.conflicts:
            merged = self._report(request, source, target, "conflicts", None, plan, mutation)
            if request.dry_run:
                return merged
            raise _refusal(request, plan)
        ahead = plan.is_ahead and not plan.tables
        if request.dry_run:
            return self._report(request, source, target, "fast_forward" if ahead else "merged", None, plan, mutation)
        fail("merge.before_store")
        if mutation.rows > MOST_ROWS:
            return self._merge_large(request, mutation, adopting=adopting)
        commit = self._fast_forward(mutation) if ahead else self._appender.merge(mutation).commit_id
        fail("merge.after_commit")
        return self._report(request, source, target, "fast_forward" if ahead else "merged", commit, plan, mutation)

    def _merge_large(self, request: MergeRequest, first: Mutation, *, adopting: bool) -> Merged:
        """The same as an operation, which plans it again when nothing that it depends on can change any more."""
        from strandline.operations.core.steps import run
        from strandline.operations.merge.large import MergeTables, Planned

        plans: list[tuple[View, View, MergePlan, Mutation]] = []

        def plan_again() -> Planned | None:
            source, target = self._view(request.source, None), self._view(request.into, None)
            plan = self._plan(request, source, target, adopting=adopting)
            if plan is None:
                return None
            mutation = self._judged(request, plan)
            if plan.conflicts:
                raise _refusal(request, plan)
            plans.append((source, target, plan, mutation))
            branch_tables = {
                **plan.declared.branch_tables,
                **{table.branch_table.table.table_id: table.branch_table for table in plan.tables},
            }
            return Planned(mutation, branch_tables)

        try:
            done = run(self._context(), MergeTables(request.into, request.actor, first, plan_again))
        except TableMoved as error:
            raise Moved(request.into) from error
        assert done is not None, "a merge has something to do"
        fail("merge.after_commit")
        source, target, plan, mutation = plans[-1]
        return self._report(request, source, target, "merged", mutation.commit_id, plan, mutation)

    def _fast_forward(self, mutation: Mutation) -> str:
        def work(txn: Any) -> Exception | None:
            error = fast_forward(txn, mutation)
            fail("merge.before_commit")
            return error

        error = self._ledger.run(work)
        if error is not None:
            raise error
        assert mutation.source is not None
        return mutation.source.tip

    def _report(
        self,
        request: MergeRequest,
        source: View,
        target: View,
        outcome: Any,
        commit: str | None,
        plan: MergePlan | None = None,
        mutation: Mutation | None = None,
    ) -> Merged:
        tables = {change.append.table: change.append.rows for change in mutation.changes} if mutation else {}
        tables |= {adoption.table: adoption.rows for adoption in plan.adopted} if plan else {}
        return Merged(
            outcome=outcome,
            source=request.source,
            into=request.into,
            source_commit=source.base.tip,
            target_commit=target.base.tip,
            commit=commit,
            tables={name: rows for name, rows in tables.items() if rows},
            conflicts=tuple(plan.conflicts) if plan else (),
            rows_read=sum(table.looked_at for table in plan.tables) if plan else 0,
        )

    def _plan(self, request: MergeRequest, source: View, target: View, *, adopting: bool) -> MergePlan | None:
        """What the merge comes to; None where the source has nothing new."""
        theirs, ours = source.base.tip, target.base.tip
        if theirs is None:
            return None
        with self._ledger.read() as conn:
            graph = Graph(conn)
            if ours is not None and graph.reaches(ours, graph.commit(theirs)):
                return None
            _refuse_stale(request.resolution, theirs, ours)
            bases = graph.bases(theirs, ours) if ours is not None else []
            # Branches that merged each other may have several: `Sides` looks whether these agree on a row.
            base = bases[0].commit_id if bases else None
            made, kept = graph.only(theirs, base), graph.only(ours, base)
            plan = _started(source, target, theirs, is_ahead=_is_ahead(graph, theirs, ours, base))
            source, target = source.whole(), target.whole()
            names = _keyed(source, made)
            line = SchemaHistory(graph, ours, bases, kept)
            plan.schemas = merged_schemas(line, source, target, names, request.resolution)
            homes = find_homes(conn, graph, theirs, made), find_homes(conn, graph, ours or theirs, kept)
            adopted = {name: self._adoption(conn, plan, source, target, name, made, kept) for name in names}
        plan.adopted = [adoption for adoption in adopted.values() if adoption is not None]
        # A branch that is moved to the source's commit must have all that this commit has: so all tables, or rows.
        if (plan.is_ahead and len(plan.adopted) < len(names)) or not adopting:
            plan.is_ahead = False
            plan.adopted = [adoption for adoption in plan.adopted if adoption.last_seq is None]
        # Of a table that a side has dropped a merge takes no more than the schema; a fast-forward takes it as it is.
        if not plan.is_ahead:
            plan.adopted = [adoption for adoption in plan.adopted if adoption.table not in plan.schemas.settled]
        plan.schemas.take_over(source, [adoption.table for adoption in plan.adopted if adoption.last_seq is not None])
        plan.conflicts += plan.schemas.conflicts
        left = (
            {adoption.table for adoption in plan.adopted}
            | {conflict.table for conflict in plan.conflicts}
            | plan.schemas.settled
        )
        schemas = plan.schemas.merged
        # Both are read under the merged schemas: else a column that one side has added would differ in every row.
        before, source, target = target, source.under(schemas), target.under(schemas)
        plan.coming = [] if plan.is_ahead else _coming(plan, source)
        past = [self._view(request.into, commit.commit_id).under(schemas) for commit in bases]
        written = self._written(source, homes[0], schemas), self._written(target, homes[1], schemas)
        for name in names:
            if name not in left:
                read = source.branch_table(name).head
                plan.barriers[read.table_id] = read.barrier
                sides = Sides(source, target, past, name, *written)
                plan.tables.append(sides.merge(request.resolution))
        plan.conflicts += [conflict for table in plan.tables for conflict in (*table.conflicts, *_lacking(table))]
        plan.conflicts += _broken(plan, before, target.beside([branch_table for branch_table, _ in plan.coming]))
        return plan

    def _written(
        self, view: View, homes: Sequence[tuple[str, Sequence[Commit]]] | None, schemas: Mapping[str, Schema]
    ) -> Written:
        """The commits of a side with the views that have their rows: its own, and those of what it has merged."""
        if homes is None:
            return None
        (_, own), *others = homes or [("", [])]
        return [
            (view, own),
            *((self._view(view.branch, tip).whole().under(schemas), commits) for tip, commits in others),
        ]

    def _adoption(
        self,
        conn: Any,
        plan: MergePlan,
        source: View,
        target: View,
        name: str,
        made: Sequence[Commit],
        kept: Sequence[Commit],
    ) -> Adoption | None:
        """A table that can be taken over whole, if it can."""
        branch_table = source.branch_table(name)
        table_id = branch_table.table.table_id
        rows = sum(commit.tables.get(name, 0) for commit in made)
        if name not in target.tables:
            return Adoption(table_id, name, rows, None)
        ours = target.branch_table(name)
        # Rows of a linked table are judged one by one: what they refer to may have gone from the target.
        if any(name in commit.tables for commit in kept) or (_is_linked(plan, source, name) and not plan.is_ahead):
            return None
        last_seq = ours.head.last_seq
        is_adoptable = can_adopt(conn, source.base.branch_id, target.base.branch_id, table_id, last_seq)
        return Adoption(table_id, name, rows, last_seq) if is_adoptable else None

    def _judged(self, request: MergeRequest, plan: MergePlan) -> Mutation:
        """The commit that the merge is, if all that it changes keeps the constraints; else these are conflicts."""
        commit_id = new_id()
        coming = {branch_table.table.table_id for branch_table, _ in plan.coming}
        look = Looking(self._ledger, request.into, NewestVersions(plan.base), coming)
        claims, changes = examined(plan, look, request.resolution)
        _refuse_unknown(request.resolution, plan)
        kept = [table for table in plan.tables if table.written.num_rows]
        if changes is None:
            written = [_batch_change(table, request.actor, commit_id) for table in kept]
        else:
            by_table: dict[str, list[JudgedRow]] = {}
            for change in changes.values():
                # Rows of a table that comes whole are judged with the others, and written by its adoption.
                if change.branch_table.table.table_id not in coming:
                    by_table.setdefault(change.branch_table.table.table_id, []).append(change)
            written = [
                table_change(rows, request.actor, commit_id, list(claims.writes.get(table_id, ())))
                for table_id, rows in by_table.items()
            ]
        return Mutation(
            commit_id=commit_id,
            branch=request.into,
            branch_id=plan.base.branch_id,
            base=plan.base.number,
            kind=MERGE,
            actor=request.actor,
            message=request.message or f"merge {request.source} into {request.into}",
            changes=tuple(written),
            reads=tuple(_reads(plan, look, claims)),
            shape=plan.base.shape,
            tip=plan.base.tip if plan.is_ahead else None,
            source=MergeSource(
                plan.source_id, plan.source_tip, tuple(plan.adopted), plan.schemas.brought, plan.barriers
            ),
        )


def _refusal(request: MergeRequest, plan: MergePlan) -> MergeConflict | BadRequest:
    """The error that lists what the sides disagree on, or what a resolution file leaves undecided of it."""
    left = request.resolution.undecided
    undecided = [conflict for conflict in plan.conflicts if (conflict.table, key_text(conflict.key)) in left]
    if undecided:
        return BadRequest(
            f"the resolution file leaves {counted(len(undecided), 'conflict')} undecided: {tables_of(undecided)}",
            hint="Write `ours`, `theirs` or a row to the `take` of each, or of its table. Nothing was merged.",
            undecided=[conflict_entry(conflict) for conflict in undecided[: most_reported()]],
            count=len(undecided),
        )
    listed = [conflict_entry(conflict) for conflict in plan.conflicts[: most_reported()]]
    return MergeConflict(
        f"{request.source!r} and {request.into!r} disagree: {tables_of(plan.conflicts)}",
        hint=f"`strand merge {request.source} --into {request.into} --dry-run --write conflicts.json` writes them to a "
        "file; decide in it, and use --resolve conflicts.json. --ours or --theirs decides all of them.",
        conflicts=plan.conflicts,
        expected=None,
        actual=listed,
        count=len(plan.conflicts),
    )


def _is_ahead(graph: Graph, theirs: str, ours: str | None, base: str | None) -> bool:
    """Whether the source's line goes on from the target's commit: then the target can be where the source is.

    Not where the source has merged that commit: its rows are in the target's log under another name than in the
    source's, and a reader of older commits of the source's line would miss them.
    """
    return base == ours and (ours is None or graph.has_on_line(theirs, graph.commit(ours)))


def _is_linked(plan: MergePlan, source: View, name: str) -> bool:
    """Whether a table refers to others or is referred to, as either side declares it."""
    theirs = Declarations.of(source.base.branch_id, source.base.shape, map(source.branch_table, source.tables))
    table_id = source.branch_table(name).table.table_id
    return any(declared.links_from(table_id) or declared.links_to(table_id) for declared in (plan.declared, theirs))


def _coming(plan: MergePlan, source: View) -> list[tuple[BranchTable, pa.Table]]:
    """The new tables that are judged with what is there: all their rows are new to the target."""
    names = [
        adoption.table
        for adoption in plan.adopted
        if adoption.last_seq is None and _is_linked(plan, source, adoption.table)
    ]
    branch_tables = [source.branch_table(name) for name in names]
    return [
        (
            branch_table,
            source.pick(branch_table.table.name, source.having(branch_table.table.name, branch_table.table.key, None)),
        )
        for branch_table in branch_tables
    ]


def _refuse_stale(resolution: Resolution, theirs: str, ours: str | None) -> None:
    if resolution.commits is not None and resolution.commits != (theirs, str(ours)):
        raise Conflict(
            "the resolution file was made for other commits: the branches have moved since",
            kind="head_moved",
            hint="Write it anew with --dry-run --write FILE, and decide again.",
            expected=list(resolution.commits),
            actual=[theirs, ours],
        )


def _refuse_unknown(resolution: Resolution, plan: MergePlan) -> None:
    """BadRequest where a file decides on what is no conflict."""
    conflicts = {(merge.branch_table.table.name, key) for merge in plan.tables for key in merge.decided()}
    conflicts |= {(name, key_text({})) for name in plan.schemas.disputed} | plan.given_up
    conflicts |= {(conflict.table, key_text(conflict.key)) for conflict in plan.conflicts}
    for table, key in resolution.rows:
        if (table, key) not in conflicts:
            raise BadRequest(
                f"the resolution file decides on {table} {key}, which is not in conflict",
                hint="Write it anew with --dry-run --write FILE.",
            )
    names = {merge.branch_table.table.name for merge in plan.tables} | plan.schemas.disputed
    for table in resolution.tables:
        if table not in names:
            raise BadRequest(f"the resolution file decides on table {table!r}, which is not in conflict")


def _started(source: View, target: View, tip: str, *, is_ahead: bool) -> MergePlan:
    every = target.whole()
    heads = {every.branch_table(name).table.table_id: HeadNow.of(every.branch_table(name)) for name in every.tables}
    base = replace(target.base, heads=heads)
    declared = Declarations.of(base.branch_id, base.shape, [target.branch_table(name) for name in target.tables])
    return MergePlan(base, source.base.branch_id, tip, declared, is_ahead)


def _keyed(source: View, made: Sequence[Commit]) -> list[str]:
    """The keyed tables that some commits changed, in the order of their names."""
    named = {name for commit in made for name in commit.tables}
    return [name for name in source.tables if name in named and source.branch_table(name).table.key]


def _lacking(table: TableMerge) -> Iterator[RowConflict]:
    """Rows that would be written without a value that the table has come to require: the source did not know."""
    gone = table.written[REMOVED]
    for column in table.branch_table.schema.columns:
        if not column.nullable:
            lacks = pc.and_(pc.is_null(table.written[column.name]), pc.invert(gone))
            for key in plain_rows(
                table.written.filter(lacks).select(list(table.branch_table.table.key)), table.branch_table
            ):
                yield RowConflict(
                    "value_violation", table.branch_table.table.name, key, (column.name,), None, None, None
                )


def _broken(plan: MergePlan, before: View, after: View) -> Iterator[RowConflict]:
    """What the source has come to declare, and rows of the target break that the merge does not write.

    It is a conflict about the schema, so it has no key; the rows are among ours, and the rule is theirs.
    """
    broken: dict[tuple[str, str, str], list[str]] = {}
    for violation in [*_newly_broken(plan, before, after), *_too_few(plan, after)]:
        broken.setdefault((violation.table, violation.rule, violation.field), []).append(violation.key)
    for (name, rule, fields), rows in broken.items():
        yield RowConflict(
            conflict_kind(rule), name, {}, tuple(fields.split(", ")), None, {"rows": rows}, {"rule": rule}
        )


def _newly_broken(plan: MergePlan, before: View, after: View) -> Iterator[Violation]:
    """Rows that break what a schema says that the merge brings."""
    coming = {branch_table.table.name for branch_table, _ in plan.coming}
    for table in plan.tables:
        branch_table = after.branch_table(table.branch_table.table.name)
        if branch_table.table.table_id in plan.schemas.brought:
            _note_seen(plan, after, branch_table)
            skipped = {(branch_table.table.name, key) for key in _shown_keys(table.written, branch_table)}

            def counts(violation: Violation, skipped: set[tuple[str, str]] = skipped) -> bool:
                return violation.table not in coming and (violation.table, violation.key) not in skipped

            yield from newly_broken(after, branch_table, before.branch_table(branch_table.table.name).schema, counts)


def _too_few(plan: MergePlan, after: View) -> Iterator[Violation]:
    """Rows of the target that a new table refers to less often than it must; those that the merge makes are judged."""
    gone = {
        (table.branch_table.table.name, key)
        for table in plan.tables
        for key in _shown_keys(table.written.filter(table.written[REMOVED]), table.branch_table)
    }
    for branch_table, _ in plan.coming:
        for rule in branch_table.schema.constraints:
            if isinstance(rule, Cardinality) and rule.low:
                _note_seen(plan, after, branch_table)
                left = breaking(after, branch_table, rule, lambda row: (row.table, row.key) not in gone)
                yield from itertools.islice(left, most_reported())


def _note_seen(plan: MergePlan, after: View, branch_table: BranchTable) -> None:
    """All rows of a table and of those it refers to are looked at: if one changes meanwhile, the merge begins again."""
    seen = [branch_table, *map(after.branch_table, refers(branch_table.schema))]
    plan.seen |= {seen_table.table.table_id for seen_table in seen} & plan.base.heads.keys()


def _shown_keys(rows: pa.Table, branch_table: BranchTable) -> set[str]:
    keys = [rows.column(name).to_pylist() for name in branch_table.table.key]
    return {shown_key(key) for key in zip(*keys, strict=True)}


def _batch_change(table: TableMerge, actor: str, commit_id: str) -> TableChange:
    """The merged rows of a table as batches, without a look at each."""
    key = list(table.branch_table.table.key)
    gone = table.written[REMOVED]
    # A removed row leaves its key alone: values that were deleted are not written again.
    arrays = [
        column if name in (*key, REMOVED) else pc.if_else(gone, pa.scalar(None, column.type), column)
        for name, column in zip(table.written.schema.names, table.written.columns, strict=True)
    ]
    rows = pa.Table.from_arrays(arrays, schema=table.written.schema).combine_chunks()
    batches = [encoded for batch in rows.to_batches() for encoded in encode_batch(batch, table.branch_table.table)]
    return TableChange(Append.of(table.branch_table, actor, batches, commit_id=commit_id), key_hashes(rows.select(key)))


def _reads(plan: MergePlan, look: Looking, relied: Claims) -> Iterator[TableRead]:
    """What the merge depends on: the rows it met, and of tables that it takes over that nothing was written."""
    for adoption in plan.adopted:
        if adoption.last_seq is not None:
            yield TableRead(
                adoption.table, adoption.table_id, plan.base.heads[adoption.table_id].barrier, whole=adoption.last_seq
            )
    keys: dict[str, dict[bytes, None]] = {key: dict(hashes) for key, hashes in look.asked.items()}
    for table in plan.tables:
        keys.setdefault(table.branch_table.table.table_id, {}).update(dict.fromkeys(table.hashes))
    names = {table_id: branch_table.table.name for table_id, branch_table in plan.declared.branch_tables.items()}
    names |= {table.branch_table.table.table_id: table.branch_table.table.name for table in plan.tables}
    for table_id in {**keys, **relied.reads, **dict.fromkeys(plan.seen)}:
        head = plan.base.heads.get(table_id)
        if head is None:
            continue  # it comes with the merge
        name = names.get(table_id, table_id)
        hashes, claims = list(keys.get(table_id, {})), list(relied.reads.get(table_id, {}))
        if len(hashes) > FEW_KEYS or table_id in plan.seen:
            yield TableRead(name, table_id, head.barrier, (), claims, whole=head.last_seq)
        else:
            yield TableRead(name, table_id, head.barrier, hashes, claims)
