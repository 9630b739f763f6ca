"""Fold: what is new in a keyed table's log goes into its state, which has one row for each key.

A read takes the state, and looks through the log only where it is later. The fold covers the log up to a seq and
depends on the state's pin alone: the log only grows, so flushes and compactions go on beside it. The files of a state
don't overlap in keys; those between the first and the last changed key are written anew, and the others stay. Nothing
changes that a reader can see, so it makes no commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from strandline.config import MaintenanceConfig
from strandline.engines.duck import relations, sandbox
from strandline.engines.spark import maintain
from strandline.engines.spark.read import fold_rows, read_view
from strandline.errors import Damaged, Unsupported
from strandline.failpoints import fail
from strandline.ledger.ledger import Connection
from strandline.ledger.publish.publishing import Effects, of_kind
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.heads import MoveTable
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.ids import private_branch
from strandline.model.maintenance import Budget, Maintained
from strandline.model.schema.types import REMOVED, SEQ
from strandline.model.tables import BranchTable, DataFile
from strandline.operations.core.bite_by_bite import BITE_BYTES, Bites, somebody_waits
from strandline.operations.core.branch_moment import BranchMoment
from strandline.operations.core.context import Context
from strandline.operations.core.declared import (
    DRY_RUN,
    MAX_BYTES,
    MAX_TIME,
    WORKERS_BYTES,
    WORKERS_S,
    Declared,
    Docs,
    Due,
)
from strandline.operations.core.steps import Coverage, RunningOperation
from strandline.operations.core.tables import each_table, keyed_names
from strandline.operations.maintain.flush import scope_of
from strandline.operations.maintain.layout import SMALL_SHARE, size_of
from strandline.operations.maintain.stage_tail import added_files, prepare_branch
from strandline.views.view import View, files_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE_BYTES = 32 << 20
"""How large the files of a state become: a fold writes whole files anew."""


@dataclass(frozen=True)
class Folding(Declared):
    """Bring the states of keyed tables up to date with their logs; no row changes.

    A read takes the newest version of each row from the state, and looks through the log only behind it. What is not
    flushed yet is folded by the next run.

    \b
    Example: strand fold person --branch try-out
    """

    dry_run: bool = field(default=False, metadata=DRY_RUN)
    max_bytes: int | None = field(default=None, metadata=MAX_BYTES)
    max_time_s: float | None = field(default=None, metadata=MAX_TIME)

    name: ClassVar[str] = "fold"
    turn: ClassVar[int] = 1
    nothing: ClassVar[str] = "There are no keyed tables."
    docs: ClassVar[Docs] = Docs(
        "nothing: the newest version of each row of a keyed table goes into its state, so that reads need not look for "
        "it in the log",
        "a version: the log stays as it is",
        "so much of a keyed table's log is not in its state: `[maintenance] fold_bytes` (64 MiB), `fold_percent` (10, "
        "of the state)",
    )

    def run(self, ctx: Context, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
        """Fold the logs of these keyed tables, or of all."""
        budget = Budget(self.max_bytes, self.max_time_s)
        names = list(tables) or keyed_names(ctx, branch)
        return each_table(names, lambda name: fold(ctx, name, branch, actor, budget, dry_run=self.dry_run))

    @classmethod
    def count(cls, look: BranchMoment, branch_table: BranchTable) -> dict[str, int]:
        """How much of a keyed table's log is not in its state, and how large that is; nothing for any other table."""
        log = unfolded(look.conn, branch_table) if branch_table.folded is not None else []
        if not log or branch_table.folded is None:
            return {}
        head = branch_table.folded.head
        held = read_files(look.conn, head.branch_id, head.table_id, head.version)
        return {"unfolded_bytes": size_of(log), "state_bytes": size_of(held)}

    @classmethod
    def due(cls, counts: Mapping[str, int], rules: MaintenanceConfig) -> Due | None:
        """When so much is unfolded, beside what the state has."""
        unfolded_bytes, state_bytes = counts.get("unfolded_bytes", 0), counts.get("state_bytes", 0)
        if not unfolded_bytes or unfolded_bytes < max(rules.fold_bytes, state_bytes * rules.fold_percent / 100):
            return None
        why = f"{unfolded_bytes:,} bytes of its log are not in its state, which has {state_bytes:,}"
        return Due(why, unfolded_bytes)

    @classmethod
    def bite(cls) -> Self:
        """So much at most."""
        return cls(max_bytes=WORKERS_BYTES, max_time_s=WORKERS_S)


@dataclass(frozen=True)
class FoldPlan:
    """What a fold writes: so many rows, in the place of these files."""

    gone: tuple[DataFile, ...]
    rows: int


@dataclass
class Fold:
    """One bite: the log up to a seq."""

    table: str
    branch: str
    actor: str
    upto: int
    kind: str = "fold"
    waited_for: bool = field(default=False, init=False)

    def cover(self, conn: Connection) -> Coverage | None:
        """The state, unless it has come that far already."""
        branch_table = read_branch_tables(conn, self.branch, [self.table])[0]
        if branch_table.folded is None or branch_table.folded_seq >= self.upto:
            return None
        return Coverage(branch_table.head.branch_id, (scope_of(branch_table.folded),))

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Write the newest versions in the place of the older ones; the log's files stay for as long as that takes."""
        view = View(ctx.ledger, self.branch, ctx.iceberg, grace_s=ctx.grace_s).whole()
        with view.held():
            move = self._stage(ctx, view, running.op_id)
        self.waited_for = somebody_waits(ctx, folded_of(view.branch_table(self.table)))
        return (move,)

    def _stage(self, ctx: Context, view: View, op_id: str) -> MoveTable:
        branch_table = view.branch_table(self.table)
        folded = folded_of(branch_table)
        log = view.files(self.table, since=branch_table.folded_seq, until=self.upto)
        plan = _plan(branch_table, log, view.files(folded.table.name), self.upto)
        snapshot: int | None = None
        added: tuple[DataFile, ...] = ()
        if plan.rows or plan.gone:
            snapshot, added = self._write(ctx, branch_table, plan, size_of(log), op_id)
        return replace(
            MoveTable.of(folded.head),
            snapshot=snapshot,
            files=added,
            rows_added=plan.rows,
            rows_acked=plan.rows,
            last_seq=self.upto,
            removed=tuple(file.path for file in plan.gone),
            rows_removed=sum(file.rows for file in plan.gone),
        )

    def _write(
        self, ctx: Context, branch_table: BranchTable, plan: FoldPlan, log_bytes: int, op_id: str
    ) -> tuple[int, tuple[DataFile, ...]]:
        folded = folded_of(branch_table)
        prepare_branch(ctx, folded, op_id)
        count = -(-(size_of(plan.gone) + log_bytes) // FILE_BYTES)

        def rows(held: DataFrame | None) -> DataFrame:
            name, pin, columns = (
                branch_table.table.iceberg_name,
                branch_table.head.log_snapshot,
                branch_table.stored.columns,
            )
            changed = read_view(ctx.iceberg().session, name, pin, None, columns, branch_table.folded_seq, self.upto)
            return fold_rows(changed, held, columns, branch_table.table.key, key_order(branch_table), max(1, count))

        place = maintain.RewritePlace(folded.table.iceberg_name, folded.head.log_snapshot, private_branch(op_id), op_id)
        fail("stage.before_append")
        snapshot = maintain.replace(ctx.iceberg(), place, plan.gone, rows)
        fail("stage.after_append")
        added = added_files(ctx, folded, snapshot)
        written = sum(file.rows for file in added)
        if written != plan.rows:
            raise Damaged(
                f"{plan.rows} rows should have been folded into the state of {branch_table.table.name!r}, and "
                f"{written} were: nothing was published",
                operation=op_id,
            )
        ctx.iceberg().sync_to_disk(folded.table.iceberg_name, snapshot, added)
        return snapshot, added


def folded_of(branch_table: BranchTable) -> BranchTable:
    """The state of a keyed table; Unsupported where the table has none."""
    if branch_table.folded is None:
        raise Unsupported(
            f"{branch_table.table.name!r} is a log table: it has no state",
            hint="Name keyed tables.",
            table=branch_table.table.name,
        )
    return branch_table.folded


def key_order(branch_table: BranchTable) -> list[str]:
    """The columns that a state is sorted by: its key, with those first that it is partitioned by."""
    table = branch_table.table
    return [*table.partition_by, *(name for name in table.key if name not in table.partition_by)]


def _plan(branch_table: BranchTable, log: Sequence[DataFile], held: Sequence[DataFile], upto: int) -> FoldPlan:
    """Which files of a state the log's rows fall among, and how many rows there will be in their place."""
    if not log:
        return FoldPlan((), 0)
    key, order = branch_table.table.key, key_order(branch_table)
    columns = [column for column in branch_table.columns if column.name in (*key, SEQ, REMOVED)]
    with sandbox.scratch() as connection:
        versions = relations.within(files_sql(branch_table, log, columns), branch_table.folded_seq, upto)
        changed = relations.note_changed(connection, relations.latest(versions, key), order)
        sides = relations.sides(connection, [files_sql(branch_table, [file], columns) for file in held], order)
        gone = chosen(list(zip(held, sides, strict=True)))
        kept = relations.count_unchanged(connection, files_sql(branch_table, gone, columns), key) if gone else 0
    return FoldPlan(tuple(gone), changed + kept)


def chosen(files: Sequence[tuple[DataFile, tuple[int, int]]]) -> list[DataFile]:
    """The files of a state to write anew, given where each lies.

    That is its place in the order of keys, and its side: 0 among the changed keys, -1 before all of them, 1 behind. The
    neighbours of what is changed go with it as long as they are small, or the state would become many small files.
    """
    ordered = sorted(files, key=lambda placed: placed[1][0])
    before = [file for file, (_, side) in ordered if side < 0]
    among = [file for file, (_, side) in ordered if side == 0]
    behind = [file for file, (_, side) in ordered if side > 0]
    return [*_small(before[-1:]), *among, *_small(behind[:1])]


def _small(files: Sequence[DataFile]) -> list[DataFile]:
    return [file for file in files if file.size_bytes < SMALL_SHARE * FILE_BYTES]


def next_bite(log: Sequence[DataFile], stable_seq: int, max_bytes: int) -> int:
    """The seq that one bite goes up to: as many files of the log as it takes, at least one."""
    size_bytes = 0
    taken = 0
    for file in sorted(log, key=lambda file: file.last_seq):
        size_bytes += file.size_bytes
        if taken and size_bytes > max_bytes:
            return min(taken, stable_seq)
        taken = file.last_seq
    return stable_seq


def fold(ctx: Context, table: str, branch: str, actor: str, budget: Budget, *, dry_run: bool = False) -> Maintained:
    """Fold all that is in a table's log now into its state, bite by bite, as far as the budget goes."""
    with ctx.ledger.read() as conn:
        branch_table = read_branch_tables(conn, branch, [table])[0]
    upto = branch_table.stable_seq
    before, log = _look(ctx, table, branch, upto)
    bites = Bites(ctx, budget)
    if dry_run:
        after = {**before, "unfolded_rows": 0, "unfolded_bytes": 0}
        return Maintained(branch_table.table.name, before, after, dry_run=True, complete=not log)
    after = before
    while log and not budget.is_spent:
        operation = Fold(table, branch, actor, next_bite(log, upto, budget.bite(BITE_BYTES)))
        done = bites.take(operation, folded_of(branch_table), 0)
        if done is not None:
            (move,) = of_kind(done.effects, MoveTable)
            ctx.report(f"folding {branch_table.table.name}", move.last_seq, upto)
        left, log = _look(ctx, table, branch, upto)
        budget.spend(after["unfolded_bytes"] - left["unfolded_bytes"])
        after = left
    return Maintained(
        branch_table.table.name,
        before,
        after,
        complete=not log,
        operations=tuple(bites.operations),
        warnings=tuple(bites.warnings),
    )


def unfolded(conn: Connection, branch_table: BranchTable) -> list[DataFile]:
    """The files of a log that have versions which are not in the state yet."""
    head = branch_table.head
    return read_files(conn, head.branch_id, head.table_id, head.version, since=branch_table.folded_seq)


def _look(ctx: Context, table: str, branch: str, upto: int) -> tuple[dict[str, int], list[DataFile]]:
    """A state's figures, and the files of the log that are to be folded into it."""
    with ctx.ledger.read() as conn:
        branch_table = read_branch_tables(conn, branch, [table])[0]
        left = unfolded(conn, branch_table) if branch_table.folded_seq < upto else []
        log = [file for file in left if file.first_seq <= upto]
    figures = {
        "state_rows": folded_of(branch_table).head.books.log,
        "unfolded_rows": sum(file.rows for file in log),
        "unfolded_bytes": size_of(log),
    }
    return figures, log
