"""Flush: a table's tail moves from the ledger into its Iceberg log.

It covers the batches up to a seq and depends on the log's pin, not on `last_seq`: rows that are appended meanwhile
wait for the next one. One operation takes a bounded bite, so that no other waits long for the table; a long tail is
several bites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strandline import logs
from strandline.errors import StrandError
from strandline.ledger.ledger import Connection
from strandline.ledger.publish.publishing import Effects, of_kind
from strandline.ledger.rows.batches import ReleaseBatches, sweep
from strandline.ledger.tables.heads import MoveStreams, MoveTable
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.operations import Flushed, TableScope
from strandline.model.tables import BatchRef, BranchTable
from strandline.operations.core.context import Context
from strandline.operations.core.deletion_time import store_us
from strandline.operations.core.failures import outages_typed
from strandline.operations.core.steps import Coverage, RunningOperation, run
from strandline.operations.maintain.stage_tail import StagedRows, prepare_branch, stage_tail

log = logs.Logger("strandline.flush")

BITE_ROWS = 1_000_000
BITE_BYTES = 256 << 20
SWEEP_BATCHES = 1000


@dataclass
class Flush:
    """One bite of a tail."""

    table: str
    branch: str
    upto: int
    actor: str
    kind: str = "flush"

    def cover(self, conn: Connection) -> Coverage | None:
        """The table, when its tail has batches up to the seq."""
        self.branch_table = read_branch_tables(conn, self.branch, [self.table])[0]
        self.refs = bite(self.branch_table, self.upto)
        return Coverage(self.branch_table.head.branch_id, (scope_of(self.branch_table),)) if self.refs else None

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Append the bite to a private branch."""
        prepare_branch(ctx, self.branch_table, running.op_id)
        staged = stage_tail(ctx, self.branch_table, self.refs, running.op_id)
        return flush_effects(self.branch_table, staged)


def bite(branch_table: BranchTable, upto: int) -> list[BatchRef]:
    """The first batches of a tail, up to a seq, as many as one operation takes; at least one if there is one."""
    taken: list[BatchRef] = []
    rows = size_bytes = 0
    for ref in branch_table.tail:
        rows += ref.rows
        size_bytes += ref.size_bytes
        if ref.first_seq > upto or (taken and (rows > BITE_ROWS or size_bytes > BITE_BYTES)):
            break
        taken.append(ref)
    return taken


def scope_of(branch_table: BranchTable) -> TableScope:
    """The table and the pins that an operation on it depends on."""
    head = branch_table.head
    return TableScope(head.branch_id, head.table_id, branch_table.table.iceberg_name, head.version, head.log_snapshot)


def flush_effects(branch_table: BranchTable, staged: StagedRows) -> Effects:
    """What publishing staged tail rows does to the table."""
    move = replace(
        MoveTable.of(branch_table.head),
        snapshot=staged.snapshot,
        files=staged.files,
        rows_added=staged.rows,
        rows_dropped=staged.dropped,
    )
    return table_effects(move, staged.stream_heads(), staged.batches)


def table_effects(move: MoveTable, last_seqs: Mapping[str, int], batches: Sequence[str]) -> Effects:
    """A table moves, with the streams that get rows and the batches that leave its tail, if any."""
    at = move.branch_id, move.table_id
    streams = (MoveStreams(*at, last_seqs),) if last_seqs else ()
    return move, *streams, *((ReleaseBatches(*at, tuple(batches)),) if batches else ())


def _sweep_released(ctx: Context) -> None:
    """Remove batches past their grace. The flush is done, whatever becomes of this: the next one tries again."""
    try:
        elsewhere_us = store_us(ctx.staging)
    except StrandError as error:
        log.warning("batches left for later", error=str(error))
        return
    while sweep(ctx.ledger, grace_s=ctx.grace_s, limit=SWEEP_BATCHES, elsewhere_us=elsewhere_us) == SWEEP_BATCHES:
        pass


@outages_typed
def flush(ctx: Context, table: str, branch: str, actor: str) -> Flushed:
    """Flush everything that is in a table's tail now, bite by bite."""
    with ctx.ledger.read() as conn:
        branch_table = read_branch_tables(conn, branch, [table])[0]
    upto = branch_table.head.last_seq
    rows = dropped = 0
    operation: str | None = None
    warnings: list[str] = []
    while (done := run(ctx, Flush(table, branch, upto, actor))) is not None:
        (move,) = of_kind(done.effects, MoveTable)
        rows += move.rows_added
        dropped += move.rows_dropped
        operation = done.op_id
        warnings.extend(done.warnings)
        ctx.report(f"flushed {branch_table.table.name}", rows + dropped, None)
    _sweep_released(ctx)
    with ctx.ledger.read() as conn:
        after = read_branch_tables(conn, branch, [table])[0]
    return Flushed(
        table=branch_table.table.name,
        branch=branch,
        rows=rows,
        duplicates_dropped=dropped,
        flushed_seq=after.stable_seq,
        snapshot_id=after.head.log_snapshot,
        operation=operation,
        warnings=tuple(warnings),
    )
