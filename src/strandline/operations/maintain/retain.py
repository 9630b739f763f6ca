"""Retention: rows that are older than a table's window go, and never one that a sink still has to deliver.

What is old, a planner says: of a log table by its time column (`retain_log`), of a keyed table by its commits
(`retain_keyed`). A stream is pruned up to the lowest watermark of the sinks that follow it; the publish looks at the
watermarks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, Self

from strandline.config import MaintenanceConfig
from strandline.ledger.publish.publishing import Effects
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.heads import MoveTable, PruneStreams
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.maintenance import Budget, Maintained
from strandline.model.tables import BranchTable
from strandline.model.wording import counted
from strandline.operations.core.bite_by_bite import BITE_BYTES, Bite, Bites, somebody_waits
from strandline.operations.core.branch_moment import BranchMoment
from strandline.operations.core.context import Context
from strandline.operations.core.declared import (
    DRY_RUN,
    MAX_BYTES,
    MAX_TIME,
    WORKERS_BYTES,
    WORKERS_S,
    YES,
    Declared,
    Docs,
    Due,
    option,
)
from strandline.operations.core.deletion_time import deletion_us
from strandline.operations.core.steps import RunningOperation
from strandline.operations.core.tables import each_table, table_names
from strandline.operations.maintain import retain_keyed, retain_log
from strandline.operations.maintain.layout import size_of
from strandline.operations.maintain.removal import stage_removal
from strandline.operations.maintain.retain_plan import Planner, RetentionBite, refuse_past_sinks, why_held


@dataclass(frozen=True)
class Retention(Declared):
    """Remove rows that are older than their table's retention.

    A row that a sink still has to deliver stays, and the sink is named. `strand table set NAME retention=90d` sets the
    window, and `time_column=…` what it is measured by.

    \b
    Example: strand retain --dry-run
    """

    dry_run: bool = field(default=False, metadata=DRY_RUN)
    max_bytes: int | None = field(default=None, metadata=MAX_BYTES)
    max_time_s: float | None = field(default=None, metadata=MAX_TIME)
    force_past_sinks: bool = field(
        default=False,
        metadata=option("--force-past-sinks", "Also rows that sinks have not delivered; lists them."),
    )
    """Needs `yes`."""
    yes: bool = field(default=False, metadata=YES)
    """Rows go also when none is left."""
    eager: bool = field(default=True, metadata=option(is_sent=False))
    """Not eager, files at the edge of the window wait until a good part of them is old."""

    name: ClassVar[str] = "retain"
    docs: ClassVar[Docs] = Docs(
        "rows that are older than the table's window; of a keyed table versions that were replaced before it",
        "a row that a sink has still to deliver, or the newest version of one",
        "rows are past the table's retention",
    )

    def run(self, ctx: Context, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
        """Prune these tables, or all."""
        budget = Budget(self.max_bytes, self.max_time_s)
        names = table_names(ctx, tables, branch)
        return each_table(names, lambda name: retain(ctx, name, branch, actor, budget, self))

    @classmethod
    def count(cls, look: BranchMoment, branch_table: BranchTable) -> dict[str, int]:
        """About how many rows would go, or of a keyed table would be looked at."""
        if look.now_us is None:
            return {}
        if branch_table.table.key:
            versions = retain_keyed.plan(look.conn, branch_table, look.now_us)
            return {"old_rows": versions.passed} if versions is not None and versions.is_due else {}
        old = retain_log.plan(look.conn, branch_table, look.now_us)
        return {} if old is None else {"old_rows": retain_log.estimate(old)}

    @classmethod
    def due(cls, counts: Mapping[str, int], rules: MaintenanceConfig) -> Due | None:
        """When there are any."""
        rows = counts.get("old_rows", 0)
        return Due(f"past its retention: {counted(rows, 'row')}", rows) if rows else None

    @classmethod
    def bite(cls) -> Self:
        """What is worth it, and so much at most."""
        return cls(eager=False, max_bytes=WORKERS_BYTES, max_time_s=WORKERS_S)


@dataclass
class Retain(Bite):
    """Rows go from the log; of a keyed table the horizon moves, also where no version goes."""

    change: RetentionBite
    past_sinks: bool
    kind: str = "retain"

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Write the log without the rows."""
        change = self.change
        move = MoveTable.of(self.branch_table.head)
        if change.removal.rows:
            move = stage_removal(ctx, self.branch_table, change.removal, running.op_id)
        self.waited_for = somebody_waits(ctx, self.branch_table)
        prune = PruneStreams(move.branch_id, move.table_id, change.pruned, self.past_sinks)
        return replace(move, barrier=change.barrier, kept_from=change.kept_from), prune


def retain(ctx: Context, table: str, branch: str, actor: str, budget: Budget, asked_for: Retention) -> Maintained:
    """Remove what is past a table's window, bite by bite, as far as the budget goes."""
    now_us = deletion_us(ctx, f"the retention of {table!r}")
    before, rows = _figures(ctx, table, branch), 0
    bites = Bites(ctx, budget)
    while True:
        branch_table, planner = _plan(ctx, table, branch, now_us, asked_for, has_begun=rows > 0)
        if planner is None:
            detail = {"retention": None}
            return Maintained(branch_table.table.name, before, before, dry_run=asked_for.dry_run, detail=detail)
        if not (rows or asked_for.dry_run or asked_for.yes):
            planner.refuse_everything()
            if asked_for.force_past_sinks:
                refuse_past_sinks(planner)
        if asked_for.dry_run:
            return _preview(branch_table, planner, before)
        change = None if budget.is_spent else planner.next_change(budget.bite(BITE_BYTES))
        if change is None:
            break
        operation = Retain(table, branch, actor, branch_table.head.version, change, asked_for.force_past_sinks)
        if bites.take(operation, branch_table, size_of([*change.removal.whole, *change.removal.partly])) is not None:
            rows += change.removal.rows
            ctx.report(f"pruning {branch_table.table.name}", rows, None)
    held = planner.held()
    return Maintained(
        table=branch_table.table.name,
        before=before,
        after=_figures(ctx, table, branch),
        complete=planner.is_complete(is_spent=budget.is_spent),
        operations=tuple(bites.operations),
        warnings=(*bites.warnings, *(why_held(planner, behind) for behind in held), *planner.notes()),
        detail={**planner.detail(), "pruned": rows, "held_by": [asdict(behind) for behind in held]},
    )


def _plan(
    ctx: Context, table: str, branch: str, now_us: int, asked_for: Retention, *, has_begun: bool
) -> tuple[BranchTable, Planner | None]:
    """The table now, and what may go of it; no planner where rows are kept for good."""
    eager, past_sinks = asked_for.eager, asked_for.force_past_sinks
    with ctx.ledger.read() as conn:
        branch_table = read_branch_tables(conn, branch, [table])[0]
        if branch_table.table.key:
            old = retain_keyed.plan(conn, branch_table, now_us)
            return branch_table, None if old is None else retain_keyed.VersionPlanner(
                old, eager or has_begun, past_sinks
            )
        rows = retain_log.plan(conn, branch_table, now_us, past_sinks=past_sinks)
    return branch_table, None if rows is None else retain_log.RowPlanner(ctx, rows, eager)


def _preview(branch_table: BranchTable, planner: Planner, before: Mapping[str, int]) -> Maintained:
    rows, held = planner.rows(), planner.held()
    detail = {**planner.detail(), "pruned": rows, "held_by": [asdict(behind) for behind in held]}
    return Maintained(
        table=branch_table.table.name,
        before=before,
        after=planner.after(before),
        dry_run=True,
        complete=rows == 0,
        warnings=(*(why_held(planner, behind) for behind in held), *planner.notes()),
        detail={**detail, **planner.preview()},
    )


def _figures(ctx: Context, table: str, branch: str) -> dict[str, int]:
    """What a table's log holds."""
    with ctx.ledger.read() as conn:
        head = read_branch_tables(conn, branch, [table])[0].head
        files = read_files(conn, head.branch_id, head.table_id, head.version)
    return {"rows": sum(file.rows for file in files), "files": len(files), "size_bytes": size_of(files)}
