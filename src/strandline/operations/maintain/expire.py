"""Expiry: snapshots that no reader needs any more are named, condemned, and then removed.

What goes is condemned by the publish, in the ledger. From then on no process can pin it, and only then does settling
let Iceberg forget it and delete the files that no other snapshot has. A process that dies in between leaves the rest to
recovery. What a head, an open delivery or a hold needs is never named, nor what was superseded within the grace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from strandline.config import MaintenanceConfig
from strandline.errors import TableMoved
from strandline.ledger.ledger import Connection
from strandline.ledger.publish.intents import read_intents
from strandline.ledger.publish.publishing import Effects, Intent
from strandline.ledger.tables.files import count_snapshots
from strandline.ledger.tables.heads import MoveTable
from strandline.ledger.tables.holds import CondemnSnapshots, find_expirable
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.ids import state_id
from strandline.model.maintenance import Budget, Maintained, together
from strandline.model.tables import STATE, BranchTable
from strandline.operations.core.branch_moment import BranchMoment
from strandline.operations.core.context import Context
from strandline.operations.core.declared import DRY_RUN, GRACE, MAX_TIME, WORKERS_S, Declared, Docs, Due, option
from strandline.operations.core.deletion_time import clock_of
from strandline.operations.core.steps import Coverage, RunningOperation, run
from strandline.operations.core.tables import each_table, keyed_names, table_names
from strandline.operations.maintain.flush import scope_of

BITE_SNAPSHOTS = 500


@dataclass(frozen=True)
class Expiry(Declared):
    """Remove snapshots that nobody needs any more, and the files that only they have.

    What a table is now stays, and whatever an open delivery or a held view reads.

    \b
    Example: strand expire --dry-run
    """

    dry_run: bool = field(default=False, metadata=DRY_RUN)
    grace_s: float | None = field(default=None, metadata=GRACE)
    max_time_s: float | None = field(default=None, metadata=MAX_TIME)
    max_bytes: int | None = field(default=None, metadata=option())
    """Nothing is rewritten, so it bounds nothing; requests have it."""

    name: ClassVar[str] = "expire"
    turn: ClassVar[int] = 3
    docs: ClassVar[Docs] = Docs(
        "snapshots that were superseded longer ago than the grace, and files that only they have",
        "what a table is now, and what an open delivery or a held view reads",
        "snapshots are needed by nobody",
    )

    def run(self, ctx: Context, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
        """Expire snapshots of these tables, or of all; those of a keyed table's state too."""
        budget = Budget(max_time_s=self.max_time_s)
        grace_s = ctx.grace_s if self.grace_s is None else self.grace_s
        keyed = set(keyed_names(ctx, branch))

        def work(name: str) -> Maintained:
            parts = [name, f"{name}{STATE}"] if name in keyed else [name]
            done = [expire(ctx, part, branch, actor, budget, grace_s=grace_s, dry_run=self.dry_run) for part in parts]
            return together(name, done)

        return each_table(table_names(ctx, tables, branch), work)

    @classmethod
    def count(cls, look: BranchMoment, branch_table: BranchTable) -> dict[str, int]:
        """The snapshots that could go, those of a keyed table's state too."""
        table_id = branch_table.table.table_id
        return {"snapshots": look.expirable.get(table_id, 0) + look.expirable.get(state_id(table_id), 0)}

    @classmethod
    def due(cls, counts: Mapping[str, int], rules: MaintenanceConfig) -> Due | None:
        """When there are any."""
        snapshots = counts.get("snapshots", 0)
        return Due(f"{snapshots:,} snapshots are needed by nobody", snapshots) if snapshots else None

    @classmethod
    def bite(cls) -> Self:
        """For so long at most."""
        return cls(max_time_s=WORKERS_S)


@dataclass
class Expire:
    """The oldest of a table's snapshots that can go, so many at most."""

    table: str
    branch: str
    actor: str
    grace_s: float
    now_us: int | None
    kind: str = "expire"

    def cover(self, conn: Connection) -> Coverage | None:
        """The table, when it has snapshots that can go."""
        self.branch_table = read_branch_tables(conn, self.branch, [self.table])[0]
        head = self.branch_table.head
        self.found = find_expirable(
            conn, head.branch_id, head.table_id, now_us=self.now_us, grace_s=self.grace_s, limit=BITE_SNAPSHOTS
        )
        if _is_at_work(conn, head.table_id):
            self.found = [snapshot for snapshot in self.found if not snapshot.condemned]
        return Coverage(head.branch_id, (scope_of(self.branch_table),)) if self.found else None

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Nothing is written: what goes is removed when it is settled."""
        head = self.branch_table.head
        snapshots = tuple(expirable.snapshot_id for expirable in self.found)
        return MoveTable.of(head), CondemnSnapshots(head.table_id, snapshots)


def _is_at_work(conn: Connection, table_id: str) -> bool:
    """Whether another expiry of the table is under way, and removes what it condemned."""
    return any(
        isinstance(intent, Intent)
        and intent.kind == Expire.kind
        and any(scope.table_id == table_id for scope in intent.scopes)
        for intent in read_intents(conn)
    )


def expire(
    ctx: Context, table: str, branch: str, actor: str, budget: Budget, *, grace_s: float, dry_run: bool = False
) -> Maintained:
    """Remove every snapshot of a table that can go. Without a grace none goes by time, so no clock is in the way."""
    name, before = _figures(ctx, table, branch)
    clock = clock_of(ctx)
    now_us = None if clock.is_behind and grace_s <= 0 else clock.deletion_us(f"the expiry of {name}'s snapshots")
    if dry_run:
        gone = _count(ctx, table, branch, grace_s, now_us)
        after = {**before, "snapshots": before["snapshots"] - gone}
        return Maintained(name, before, after, dry_run=True, complete=gone == 0)
    operations: list[str] = []
    warnings: list[str] = []
    removed = 0
    while not budget.is_spent:
        try:
            done = run(ctx, Expire(table, branch, actor, grace_s, now_us))
        except TableMoved:
            continue  # a reader has pinned one of them meanwhile: name them anew
        if done is None:
            break
        operations.append(done.op_id)
        warnings.extend(done.warnings)
        _, now = _figures(ctx, table, branch)
        if before["snapshots"] - now["snapshots"] == removed:
            break  # a ref still points at what is left; it goes when the ref has moved
        removed = before["snapshots"] - now["snapshots"]
        ctx.report(f"expiring snapshots of {name}", removed, None)
    _, after = _figures(ctx, table, branch)
    return Maintained(
        name,
        before,
        after,
        complete=_count(ctx, table, branch, grace_s, now_us) == 0,
        operations=tuple(operations),
        warnings=tuple(warnings),
    )


def _count(ctx: Context, table: str, branch: str, grace_s: float, now_us: int | None) -> int:
    with ctx.ledger.read() as conn:
        head = read_branch_tables(conn, branch, [table])[0].head
        return len(find_expirable(conn, head.branch_id, head.table_id, now_us=now_us, grace_s=grace_s, limit=1_000_000))


def _figures(ctx: Context, table: str, branch: str) -> tuple[str, dict[str, int]]:
    with ctx.ledger.read() as conn:
        branch_table = read_branch_tables(conn, branch, [table])[0]
        snapshots, files = count_snapshots(conn, branch_table.head.branch_id, branch_table.head.table_id)
    return branch_table.table.name, {"snapshots": snapshots, "files_known": files}
