"""Refilter: files of a state that are older than a rule are written again, with filters for it; no row changes.

Rows are looked for by the values that are unique or refer to others, and the files of a state have Bloom filters of
these columns. A rule that is declared later finds files without: every change that it judges reads them whole, until a
fold happens to write them. The ledger knows under which schema each file was written, so what lacks a filter is known
without a look into it. A file that is written again belongs to the newest schema, and is not chosen twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from strandline.config import MaintenanceConfig
from strandline.engines.spark.maintain import GROUPS_AT_ONCE
from strandline.ledger.ledger import MAIN, Connection
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.tables import branch_id, read_branch_tables
from strandline.model.maintenance import Budget, Maintained
from strandline.model.tables import BranchTable, DataFile
from strandline.operations.core.bite_by_bite import BITE_BYTES, Bites
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
from strandline.operations.core.tables import each_table, keyed_names
from strandline.operations.maintain.compact import Compact
from strandline.operations.maintain.fold import folded_of
from strandline.operations.maintain.layout import size_of, take_bite


@dataclass(frozen=True)
class Refiltering(Declared):
    """Let lookups by value skip files that are older than a rule; no row changes.

    Of a keyed table that got a `unique` or a `reference` later, every change reads the older files of its state whole.
    They are written again with a filter for the rule, which tells which values they don't have.

    \b
    Example: strand refilter person --dry-run
    """

    dry_run: bool = field(default=False, metadata=DRY_RUN)
    max_bytes: int | None = field(default=None, metadata=MAX_BYTES)
    max_time_s: float | None = field(default=None, metadata=MAX_TIME)

    name: ClassVar[str] = "refilter"
    turn: ClassVar[int] = 4
    nothing: ClassVar[str] = "There are no keyed tables."
    docs: ClassVar[Docs] = Docs(
        "nothing: files of a keyed table's state that are older than a `unique` or a `reference` are written again "
        "with a filter for it, so that a change need not read them",
        "a row, or a file that has its filters",
        "files of a state lack a filter; on main alone, because other branches share its files",
    )

    def run(self, ctx: Context, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
        """Give the states of these keyed tables, or of all, the filters that they lack."""
        budget = Budget(self.max_bytes, self.max_time_s)
        names = list(tables) or keyed_names(ctx, branch)
        return each_table(names, lambda name: refilter(ctx, name, branch, actor, budget, dry_run=self.dry_run))

    @classmethod
    def count(cls, look: BranchMoment, branch_table: BranchTable) -> dict[str, int]:
        """The files of a state that lack a filter."""
        if branch_table.folded is None or look.branch_id != branch_id(look.conn, MAIN):
            return {}
        return {"unfiltered_files": len(unfiltered(look.conn, branch_table.folded))}

    @classmethod
    def due(cls, counts: Mapping[str, int], rules: MaintenanceConfig) -> Due | None:
        """When there are any."""
        files = counts.get("unfiltered_files", 0)
        return Due(f"{files:,} files of its state have no filter for a later rule", files) if files else None

    @classmethod
    def bite(cls) -> Self:
        """So much at most."""
        return cls(max_bytes=WORKERS_BYTES, max_time_s=WORKERS_S)


def unfiltered(conn: Connection, folded: BranchTable) -> list[DataFile]:
    """The files of a state that were written before the last of the rules whose values rows are looked for by."""
    since = _last_rule(folded)
    if not since:
        return []
    head = folded.head
    files = read_files(conn, head.branch_id, head.table_id, head.version)
    return [file for file in files if file.schema_version < since]


def _last_rule(folded: BranchTable) -> int:
    """The first version of the schema under which files are written with all filters there are."""
    first: dict[str, int] = {}
    for version in sorted(folded.schemas):
        for column in replace(folded, schemas={version: folded.schemas[version]}).filtered:
            first.setdefault(column, version)
    return max(first.values(), default=0)


def refilter(ctx: Context, table: str, branch: str, actor: str, budget: Budget, *, dry_run: bool = False) -> Maintained:
    """Write the files again that lack a filter, bite by bite, as far as the budget goes."""
    folded, files = _look(ctx, table, branch)
    before = _figures(files)
    bites = Bites(ctx, budget)
    while files and not dry_run and not budget.is_spent:
        groups = take_bite([(file,) for file in files], budget.bite(BITE_BYTES), GROUPS_AT_ONCE)
        operation = Compact(folded.table.name, branch, actor, folded.head.version, groups, kind=Refiltering.name)
        if bites.take(operation, folded, sum(map(size_of, groups))) is not None:
            ctx.report(f"refiltering {table}", len(groups), len(files))
        folded, files = _look(ctx, table, branch)
    return Maintained(
        table=table,
        before=before,
        after=_figures([] if dry_run else files),
        dry_run=dry_run,
        complete=not files,
        operations=tuple(bites.operations),
        warnings=tuple(bites.warnings),
    )


def _look(ctx: Context, table: str, branch: str) -> tuple[BranchTable, list[DataFile]]:
    """The state of a keyed table now, and its files that lack a filter."""
    with ctx.ledger.read() as conn:
        folded = folded_of(read_branch_tables(conn, branch, [table])[0])
        return folded, unfiltered(conn, folded)


def _figures(files: Sequence[DataFile]) -> dict[str, int]:
    return {"unfiltered_files": len(files), "unfiltered_bytes": size_of(files)}
