"""Purge: the rows that a condition names go for good, wherever they are.

The tail is flushed first, so that all rows are in the log; there they are found by DuckDB and removed by seq. One
publish removes them, empties dead letters, shortens quarantined batches, lets the hashes of the keys count as seen, and
appends the tombstone to `strand_purges`, which sinks deliver like any other table. Sinks may not have delivered these
rows: they never will, except by deliveries that were open already.

Older snapshots still hold the rows until they expire; with `and_history` that is at once, where no reader needs them.
Of a keyed table rows go by their keys, on all branches: `purge_keyed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from strandline.engines.duck import relations
from strandline.engines.duck.predicates import check_predicate
from strandline.json_types import JsonObject
from strandline.ledger.changes.purged_keys import note_hashes
from strandline.ledger.publish.publishing import Effects
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.heads import MoveTable
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.maintenance import Maintained
from strandline.model.schema.types import SEQ
from strandline.model.tables import BranchTable
from strandline.model.wording import counted
from strandline.operations.core.bite_by_bite import Bite
from strandline.operations.core.context import Context
from strandline.operations.core.declared import DRY_RUN, Declared, Docs, option
from strandline.operations.core.steps import Done, RunningOperation, run
from strandline.operations.maintain.flush import flush
from strandline.operations.maintain.purge_elsewhere import (
    Beside,
    count_rows,
    ensure_tombstones,
    find_beside,
    purge_history,
    read_kept,
    report,
)
from strandline.operations.maintain.purge_keyed import purge_keyed
from strandline.operations.maintain.removal import Removal, find_rows, stage_removal
from strandline.views.view import View, key_scope, stored_columns

HASH = "hash"


@dataclass(frozen=True)
class Purging(Declared):
    """Remove the rows that a condition names, wherever they are, for good.

    That is the log, the tail, dead letters and quarantine. The purge is recorded in the table strand_purges (or
    strand_purges_2, where a table of yours has that name), which sinks deliver too; the row keys count as seen, so
    that a backfill does not bring the rows back.

    Of a keyed table a row goes with all its versions, on every branch and tag, if the condition names any of them. It
    is read by the schema that the table has on --branch.

    \b
    Example: strand purge messages --where "session = 's1'" --and-history --yes
             strand purge person --where "id = 'a'" --dry-run
    """

    where: str = field(metadata=option("--where", "A condition on the table's columns.", metavar="SQL"))
    and_history: bool = field(
        default=False,
        metadata=option("--and-history", "Also out of older snapshots, as far as nobody reads them."),
    )
    dry_run: bool = field(default=False, metadata=DRY_RUN)
    yes: bool = field(default=False, metadata=option("--yes", "Do it without asking.", is_sent=False))

    name: ClassVar[str] = "purge"
    of_one_table: ClassVar[bool] = True
    branch_before: ClassVar[str] = "dry_run"
    docs: ClassVar[Docs] = Docs(
        "rows that a condition names, from log, tail, dead letters and quarantine; of a keyed table with all their "
        "versions, on every branch and tag"
    )

    def run(self, ctx: Context, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
        """Purge one table."""
        (table,) = tables
        return [purge(ctx, table, branch, actor, self.where, and_history=self.and_history, dry_run=self.dry_run)]

    def loss(self, planned: Maintained) -> str:
        """How many rows there are to lose."""
        return f"{counted(planned.figure('rows'), 'row')} of {planned.table} would be removed for good"


@dataclass(frozen=True)
class DoomedRows:
    """Everything that a condition names, at one version of a table."""

    version: int
    removal: Removal
    hashes: Sequence[bytes]
    beside: Beside

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to remove."""
        return not self.removal.rows and self.beside.is_nothing

    def detail(self, rows: int) -> JsonObject:
        """How much goes, of which so many rows."""
        return {"rows": rows, **self.beside.counts, "keys": len(self.hashes)}


@dataclass
class Purge(Bite):
    """What was found goes."""

    where: str
    doomed: DoomedRows
    kind: str = "purge"

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Write the log without the rows, and the hashes of their keys."""
        branch_table, doomed = self.branch_table, self.doomed
        note_hashes(ctx.ledger, branch_table.table.table_id, running.op_id, doomed.hashes)
        move = MoveTable.of(branch_table.head)
        if doomed.removal.rows:
            move = stage_removal(ctx, branch_table, doomed.removal, running.op_id)
        record = doomed.beside.record(
            branch_table, self.actor, self.where, doomed.removal.rows, branch_table.head.last_seq
        )
        return replace(move, barrier=True), record


def purge(
    ctx: Context, table: str, branch: str, actor: str, where: str, *, and_history: bool = False, dry_run: bool = False
) -> Maintained:
    """Remove every row that a condition names; run again after a crash, it does what is left."""
    with ctx.ledger.read() as conn:
        branch_table = read_branch_tables(conn, branch, [table])[0]
    check_predicate(where, stored_columns(branch_table), branch_table.table.name)
    if branch_table.table.key:
        return purge_keyed(ctx, branch_table, branch, actor, where, and_history=and_history, dry_run=dry_run)
    if dry_run:
        return _preview(ctx, branch_table, branch, where)
    flush(ctx, table, branch, actor)
    before = _rows(ctx, table, branch)
    done, doomed = _run(ctx, table, branch, actor, where)
    warnings = list(done.warnings) if done is not None else []
    if and_history:
        warnings += purge_history(ctx, branch_table.table, [branch], actor)
    return report(
        branch_table.table,
        (before, _rows(ctx, table, branch)),
        doomed.beside,
        {**doomed.detail(doomed.removal.rows), "and_history": and_history},
        operations=[done.op_id] if done is not None else [],
        warnings=warnings,
    )


def _run(ctx: Context, table: str, branch: str, actor: str, where: str) -> tuple[Done | None, DoomedRows]:
    while True:
        with ctx.ledger.read() as conn:
            branch_table = read_branch_tables(conn, branch, [table])[0]
        doomed = find(ctx, branch_table, where)
        if doomed.is_nothing:
            return None, doomed
        ensure_tombstones(ctx, actor)
        done = run(ctx, Purge(table, branch, actor, doomed.version, where, doomed))
        if done is not None:
            return done, doomed


def find(ctx: Context, branch_table: BranchTable, where: str) -> DoomedRows:
    """What a condition names in the log, among the dead letters and in quarantine."""
    head = branch_table.head
    with ctx.ledger.read() as conn:
        files = read_files(conn, head.branch_id, head.table_id, head.version)
        kept = read_kept(conn, head.table_id)
    scope = key_scope(branch_table)
    hashed = [f"{relations.key_hash(scope)} AS {HASH}"] if scope.row_key else []
    removal, rows = find_rows(branch_table, files, where, hashed)
    hashes = (
        sorted({bytes(digest) for digest in rows.column(HASH).to_pylist() if digest})
        if hashed and rows.num_rows
        else []
    )
    gone = set(rows.column(SEQ).to_pylist()) if rows.num_rows else set()
    return DoomedRows(head.version, removal, hashes, find_beside(kept, gone, where))


def _preview(ctx: Context, branch_table: BranchTable, branch: str, where: str) -> Maintained:
    doomed = find(ctx, branch_table, where)
    tail = 0
    if branch_table.tail:
        tail = View(ctx.ledger, branch, ctx.iceberg).whole().count(branch_table.table.name, where) - doomed.removal.rows
    before, rows = count_rows(branch_table), doomed.removal.rows + tail
    planned = report(branch_table.table, (before, before - rows), doomed.beside, doomed.detail(rows))
    return replace(planned, dry_run=True, complete=doomed.is_nothing and not tail)


def _rows(ctx: Context, table: str, branch: str) -> int:
    with ctx.ledger.read() as conn:
        return read_branch_tables(conn, branch, [table])[0].head.books.log
