"""Compaction: small neighbouring files of a log become large ones, and no row changes.

Every flush leaves a small file for each partition it touches. Merging them keeps reads and plans short. Rows keep
their `_seq` and their order, so marks, deliveries and views read straight through it: those that pin an older version
go on reading the files that it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from strandline.config import MaintenanceConfig
from strandline.engines.spark import maintain
from strandline.errors import Damaged
from strandline.failpoints import fail
from strandline.ledger.ledger import Connection
from strandline.ledger.publish.publishing import Effects
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.heads import MoveTable
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.ids import private_branch
from strandline.model.maintenance import Budget, Maintained
from strandline.model.tables import BranchTable, DataFile
from strandline.operations.core.bite_by_bite import BITE_BYTES, Bite, Bites, somebody_waits
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
    option,
)
from strandline.operations.core.steps import RunningOperation
from strandline.operations.core.tables import each_table, table_names
from strandline.operations.maintain.layout import Group, mergeable, size_of, take_bite
from strandline.operations.maintain.stage_tail import added_files, prepare_branch


@dataclass(frozen=True)
class Compaction(Declared):
    """Merge small files into large ones; no row changes.

    The table with the most small files comes first. A run that was stopped, or that came to a limit, is gone on with by
    the next one.

    \b
    Example: strand compact messages --max-bytes 10GiB
    """

    dry_run: bool = field(default=False, metadata=DRY_RUN)
    max_bytes: int | None = field(default=None, metadata=MAX_BYTES)
    max_time_s: float | None = field(default=None, metadata=MAX_TIME)
    eager: bool = field(default=True, metadata=option(is_sent=False))
    """Not eager, only what is worth it is merged: a row is then not rewritten for a few new ones."""

    name: ClassVar[str] = "compact"
    turn: ClassVar[int] = 2
    docs: ClassVar[Docs] = Docs(
        "small files: neighbours of a partition are merged up to the table's `target_file_size` (128 MiB)",
        "a row, or its `_seq`",
        "small files are worth merging",
    )

    def run(self, ctx: Context, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
        """Compact these tables, or all, the neediest first."""
        budget = Budget(self.max_bytes, self.max_time_s)
        names = neediest(ctx, table_names(ctx, tables, branch), branch, eager=self.eager)
        how = {"eager": self.eager, "dry_run": self.dry_run}
        return each_table(names, lambda name: compact(ctx, name, branch, actor, budget, **how))

    @classmethod
    def count(cls, look: BranchMoment, branch_table: BranchTable) -> dict[str, int]:
        """The files that could be merged now."""
        files = [file for group in plan(look.conn, branch_table, eager=False) for file in group]
        return {"small_files": len(files), "small_bytes": size_of(files)}

    @classmethod
    def due(cls, counts: Mapping[str, int], rules: MaintenanceConfig) -> Due | None:
        """When there are any."""
        files = counts.get("small_files", 0)
        return Due(f"{files:,} small files can be merged", files) if files else None

    @classmethod
    def bite(cls) -> Self:
        """What is worth it, and so much at most."""
        return cls(eager=False, max_bytes=WORKERS_BYTES, max_time_s=WORKERS_S)


@dataclass
class Compact(Bite):
    """Groups of files are merged. The columns in `blank` are left without values."""

    groups: Sequence[Group]
    kind: str = "compact"
    blank: tuple[str, ...] = ()

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Write each group as one file, and see that nothing but the files has changed."""
        branch_table = self.branch_table
        prepare_branch(ctx, branch_table, running.op_id)
        fail("stage.before_append")
        snapshot = maintain.merge(
            ctx.iceberg(), place_of(branch_table, running.op_id), self.groups, branch_table.stored.columns, self.blank
        )
        fail("stage.after_append")
        added = added_files(ctx, branch_table, snapshot)
        _check(running.op_id, self.groups, added)
        ctx.iceberg().sync_to_disk(branch_table.table.iceberg_name, snapshot, added)
        self.waited_for = somebody_waits(ctx, branch_table)
        removed = tuple(file.path for group in self.groups for file in group)
        return (replace(MoveTable.of(branch_table.head), snapshot=snapshot, files=added, removed=removed),)


def place_of(branch_table: BranchTable, op_id: str) -> maintain.RewritePlace:
    """Where an operation on a table's log stages what it rewrites."""
    assert branch_table.head.log_snapshot is not None, f"{branch_table.table.name} has files and no snapshot"
    return maintain.RewritePlace(
        branch_table.table.iceberg_name, branch_table.head.log_snapshot, private_branch(op_id), op_id
    )


def _check(op_id: str, groups: Sequence[Group], added: Sequence[DataFile]) -> None:
    """Damaged unless each group became one file with as many rows and the same range of seqs."""
    expected = sorted(
        (group[0].partition, group[0].first_seq, group[-1].last_seq, sum(file.rows for file in group))
        for group in groups
    )
    written = sorted((file.partition, file.first_seq, file.last_seq, file.rows) for file in added)
    if expected != written:
        odd = next(iter(set(expected) ^ set(written)))
        raise Damaged(
            f"compaction wrote other rows than it read, such as those of partition {odd[0]}, seqs {odd[1]}..{odd[2]}: "
            "nothing was published",
            operation=op_id,
        )


def plan(conn: Connection, branch_table: BranchTable, *, eager: bool) -> list[Group]:
    """What of a table is to be merged, oldest first."""
    head = branch_table.head
    files = read_files(conn, head.branch_id, head.table_id, head.version)
    return mergeable(files, branch_table.table.settings.target_file_bytes, eager=eager)


def neediest(ctx: Context, tables: Sequence[str], branch: str, *, eager: bool) -> list[str]:
    """These tables, those first that have the most files to merge."""
    with ctx.ledger.read() as conn:
        branch_tables = read_branch_tables(conn, branch, list(tables))
        needs = [
            (-sum(len(group) for group in plan(conn, branch_table, eager=eager)), branch_table.table.name)
            for branch_table in branch_tables
        ]
    return [name for _, name in sorted(needs)]


def compact(
    ctx: Context, table: str, branch: str, actor: str, budget: Budget, *, eager: bool = True, dry_run: bool = False
) -> Maintained:
    """Merge a table's small files bite by bite, as far as the budget goes."""
    before = _figures(ctx, table, branch)
    bites = Bites(ctx, budget)
    merged = rows = 0
    while True:
        with ctx.ledger.read() as conn:
            branch_table = read_branch_tables(conn, branch, [table])[0]
            groups = plan(conn, branch_table, eager=eager)
        if dry_run:
            return _preview(branch_table, before, groups)
        if not groups or budget.is_spent:
            break
        bite = take_bite(groups, budget.bite(BITE_BYTES), maintain.GROUPS_AT_ONCE)
        operation = Compact(table, branch, actor, branch_table.head.version, bite)
        if bites.take(operation, branch_table, sum(size_of(group) for group in bite)) is not None:
            merged += sum(len(group) for group in bite)
            rows += sum(file.rows for group in bite for file in group)
            ctx.report(f"compacting {branch_table.table.name}", merged, None)
    return Maintained(
        table=branch_table.table.name,
        before=before,
        after=_figures(ctx, table, branch),
        complete=not groups,
        operations=tuple(bites.operations),
        warnings=tuple(bites.warnings),
        detail={"files_merged": merged, "rows_rewritten": rows},
    )


def _figures(ctx: Context, table: str, branch: str) -> dict[str, int]:
    with ctx.ledger.read() as conn:
        head = read_branch_tables(conn, branch, [table])[0].head
        files = read_files(conn, head.branch_id, head.table_id, head.version)
    return {"files": len(files), "size_bytes": size_of(files)}


def _preview(branch_table: BranchTable, before: dict[str, int], groups: Sequence[Group]) -> Maintained:
    inputs = sum(len(group) for group in groups)
    return Maintained(
        table=branch_table.table.name,
        before=before,
        after={**before, "files": before["files"] - inputs + len(groups)},
        dry_run=True,
        complete=not groups,
        detail={"files_merged": inputs, "rows_rewritten": sum(file.rows for group in groups for file in group)},
    )
