"""The steps of every operation, written once: begin, stage, publish, settle.

    begin    leases and intent, in one transaction
    stage    Spark writes where no reader looks; then the intent says all that the publish will write
    publish  one ledger transaction: the only moment at which anything becomes visible
    settle   the Iceberg refs that outside engines read follow the pins; private branches and folders go

A crash between any two of these leaves either the old state or the new one, and an intent that says which.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Protocol

from strandline import logs
from strandline.errors import Busy, Damaged, HeldByAnother, LeaseLost, RecoveryRequired, StrandError
from strandline.failpoints import fail
from strandline.ledger.ledger import Connection, Txn
from strandline.ledger.publish import intent_rows, intents, leases
from strandline.ledger.publish.publishing import Effects, Intent
from strandline.ledger.tables.tables import read_head
from strandline.model.ids import lease_of_operation, lease_of_table, new_id
from strandline.model.operations import TableScope
from strandline.operations.core import publish, recovery
from strandline.operations.core.beats import beating
from strandline.operations.core.context import Context
from strandline.operations.core.failures import typed
from strandline.operations.core.settle import settle
from strandline.spans import span

log = logs.Logger("strandline.operations")


@dataclass(frozen=True)
class Coverage:
    """What an operation works on."""

    branch_id: str
    scopes: tuple[TableScope, ...]


@dataclass(frozen=True)
class RunningOperation:
    """An operation that has begun: its intent, and the fences it must still hold when it publishes."""

    intent: Intent
    fences: dict[str, int]

    @property
    def op_id(self) -> str:
        """The operation's id."""
        return self.intent.op_id


@dataclass(frozen=True)
class Done:
    """An operation that was published; `warnings` say what is left to settle."""

    op_id: str
    effects: Effects
    warnings: tuple[str, ...]


class Operation(Protocol):
    """What differs from one operation to the next."""

    @property
    def kind(self) -> str:
        """The operation's name in intents, logs and the audit."""

    @property
    def actor(self) -> str:
        """The actor that asked for it."""

    def cover(self, conn: Connection) -> Coverage | None:
        """What it works on, read inside the transaction that begins it; None when there is nothing to do."""

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Write what no reader can see, and say what the publish will write."""


def run(ctx: Context, operation: Operation) -> Done | None:
    """Run an operation from begin to settle; None when there was nothing to do."""
    ctx.fence.compare()  # also before anything is staged: Iceberg's own commits remove metadata files
    recovery.recover(ctx, with_iceberg=True)
    running = _begin(ctx, operation)
    if running is None:
        return None
    try:
        with span("operation", kind=operation.kind, op=running.op_id, actor=operation.actor):
            return _work_off(ctx, operation, running)
    finally:
        ctx.live.discard(running.op_id)


def _work_off(ctx: Context, operation: Operation, running: RunningOperation) -> Done:
    with beating(ctx, running.op_id, running.fences):
        effects = _stage_and_publish(ctx, operation, running)
    own = lease_of_operation(running.op_id)
    with beating(ctx, running.op_id, {own: running.fences[own]}), span("settle", op=running.op_id):
        return Done(running.op_id, effects, _settle_quietly(ctx, running))


def _begin(ctx: Context, operation: Operation) -> RunningOperation | None:
    """Take the leases, waiting for live holders and recovering dead ones, and write the intent."""
    op_id = new_id()
    deadline_s = time.monotonic() + ctx.wait_s
    noted: set[str] = set()
    for looks in itertools.count():
        try:
            return _try_begin(ctx, operation, op_id)
        except leases.LeaseHeld as held:
            if recovery.recover_holder(ctx, held.lease):
                continue
            if time.monotonic() > deadline_s:
                raise _busy(held.lease) from held
            if held.lease.name not in noted:
                noted.add(held.lease.name)
                leases.note_waiting(ctx.ledger, held.lease.name)
            ctx.report("waiting for another operation", 0, None)
            time.sleep(ctx.watch.pause_s(looks))
    raise AssertionError("unreachable")


def _try_begin(ctx: Context, operation: Operation, op_id: str) -> RunningOperation | None:
    owner = ctx.owner.text()

    def begin(txn: Txn) -> RunningOperation | None:
        coverage = operation.cover(txn.conn)
        if coverage is None:
            return None
        for scope in coverage.scopes:
            _refuse_blocked(txn.conn, scope)
        names = [lease_of_table(scope.branch_id, scope.table_id) for scope in coverage.scopes]
        fences = leases.take(txn, [*names, lease_of_operation(op_id)], owner, op_id)
        intent = Intent(
            op_id, operation.kind, "staging", coverage.branch_id, operation.actor, owner, txn.at_us, coverage.scopes
        )
        intent_rows.write_intent(txn, intent)
        fail("begin.before_commit")
        ctx.live.add(op_id)
        return RunningOperation(intent, fences)

    running = ctx.ledger.run(begin)
    if running is not None:
        fail("begin.after_commit")
        tables = [scope.iceberg_name for scope in running.intent.scopes]
        log.info("begun", op=op_id, kind=operation.kind, tables=tables)
    return running


def _refuse_blocked(conn: Connection, scope: TableScope) -> None:
    head = read_head(conn, scope.branch_id, scope.table_id)
    if head.refuses is not None:
        raise Damaged(f"table {scope.iceberg_name} refuses writes: {head.refuses}")
    for intent in intents.read_intents(conn):
        if isinstance(intent, intents.UnreadableIntent) and scope.table_id in intent.table_ids:
            raise RecoveryRequired(
                f"operation {intent.op_id} on {scope.iceberg_name} was left by another process, and {intent.reason}",
                hint=f"Upgrade strandline, or give that operation up with `strand recover --discard {intent.op_id}`.",
                operation=intent.op_id,
            )


def _busy(lease: leases.Lease) -> Busy:
    return HeldByAnother(
        f"another operation ({lease.op_id}) holds the table, and its process is alive",
        operation=lease.op_id,
        holder=lease.owner,
    )


def _stage_and_publish(ctx: Context, operation: Operation, running: RunningOperation) -> Effects:
    def set_staged(txn: Txn) -> Intent:
        leases.check(txn.conn, running.op_id, running.fences)
        staged = intents.set_staged(txn, running.intent, effects)
        fail("staged.before_commit")
        return staged

    def set_published(txn: Txn) -> None:
        leases.check(txn.conn, running.op_id, running.fences)
        publish.apply(txn, staged)
        fail("publish.before_commit")

    try:
        with span("stage", op=running.op_id):
            effects = operation.stage(ctx, running)
        staged = ctx.ledger.run(set_staged)
        fail("staged.after_commit")
        with span("publish", op=running.op_id):
            ctx.fence.compare()
            ctx.ledger.run(set_published)
        fail("publish.after_commit")
    except LeaseLost:
        raise
    except Exception as error:
        _abandon(ctx, running, error)
        raise typed(ctx, error, running.op_id) from error
    log.info("published", op=running.op_id, kind=operation.kind)
    return effects


def _abandon(ctx: Context, running: RunningOperation, error: Exception) -> None:
    """Undo an operation that failed; what can't be undone now is left to recovery."""

    def abandon(txn: Txn) -> None:
        leases.check(txn.conn, running.op_id, running.fences)
        publish.abandon(txn, running.intent, actor=running.intent.actor, reason=f"{type(error).__name__}: {error}")

    try:
        ctx.ledger.run(abandon)
    except StrandError as second:
        log.warning("left to recovery", op=running.op_id, error=str(second))
        return
    _settle_quietly(ctx, running)


def _settle_quietly(ctx: Context, running: RunningOperation) -> tuple[str, ...]:
    """Settle; a failure is a warning, because what was published stays published and recovery settles it later."""
    try:
        return tuple(settle(ctx, running.op_id, recovering=False))
    except Exception as error:
        log.warning("not settled yet", op=running.op_id, error=str(error))
        return (f"operation {running.op_id} is published but not settled yet: {_first_line(error)}",)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
