"""Maintenance bite by bite: each is an operation of its own, so a process that waits gets the table between two.

What a bite does was chosen at a version of the table, and is done if it is still that.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from strandline.errors import TableMoved
from strandline.ledger.ledger import Connection
from strandline.ledger.publish import leases
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.ids import lease_of_table
from strandline.model.maintenance import Budget
from strandline.model.tables import BranchTable
from strandline.operations.core.context import Context
from strandline.operations.core.steps import Coverage, Done, Operation, run
from strandline.operations.maintain.flush import scope_of

BITE_BYTES = 256 << 20
YIELD_S = 5.0


@dataclass
class Bite:
    """Something to do to a table at this version of it."""

    table: str
    branch: str
    actor: str
    version: int
    branch_table: BranchTable = field(init=False)
    waited_for: bool = field(default=False, init=False)

    def cover(self, conn: Connection) -> Coverage | None:
        """The table, unless it has moved since this was chosen."""
        self.branch_table = read_branch_tables(conn, self.branch, [self.table])[0]
        if self.branch_table.head.version != self.version:
            return None
        return Coverage(self.branch_table.head.branch_id, (scope_of(self.branch_table),))


class Waitable(Operation, Protocol):
    """An operation that looks, before it lets go of its table, whether another process waits for it."""

    waited_for: bool


@dataclass
class Bites:
    """Those of one run: how much it may do, and what it has done."""

    ctx: Context
    budget: Budget
    operations: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take(self, operation: Waitable, branch_table: BranchTable, size_bytes: int) -> Done | None:
        """One more; None where the table, or a sink, has moved since it was chosen: look again then."""
        done = run_unmoved(self.ctx, operation)
        if done is not None:
            self.budget.spend(size_bytes)
            self.operations.append(done.op_id)
            self.warnings.extend(done.warnings)
        if operation.waited_for:
            _step_aside(self.ctx, branch_table)
        return done


def run_unmoved(ctx: Context, operation: Operation) -> Done | None:
    """Run an operation; None where what it was chosen for has moved, by its beginning or by its publish."""
    try:
        return run(ctx, operation)
    except TableMoved:
        return None


def somebody_waits(ctx: Context, branch_table: BranchTable) -> bool:
    """Whether another process waits for the table that we hold."""
    with ctx.ledger.read() as conn:
        lease = leases.find(conn, lease_of_table(branch_table.head.branch_id, branch_table.table.table_id))
    return lease is not None and lease.waiting > 0


def _step_aside(ctx: Context, branch_table: BranchTable) -> None:
    """Let a process that waits for the table have it: come back when it was taken, or was not wanted after all."""
    name = lease_of_table(branch_table.head.branch_id, branch_table.table.table_id)
    deadline_s = time.monotonic() + YIELD_S
    while time.monotonic() < deadline_s:
        with ctx.ledger.read() as conn:
            lease = leases.find(conn, name)
        if lease is not None and lease.owner is not None:
            return
        time.sleep(ctx.watch.pause_s(1))
