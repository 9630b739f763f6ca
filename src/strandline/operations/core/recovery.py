"""Recovery: finish or undo what a dead process left.

The ledger half needs no JVM: in one transaction it takes the dead operation's leases away, so that an owner that was
only slow is refused from then on, and either publishes what was staged or gives it up, and writes down which. The
Iceberg half (refs, private branches, folders) is left in the intent for a process that has Spark. A live owner's work
is never touched.

| found                              | done               | audited as     |
|------------------------------------|--------------------|----------------|
| staged, nothing depended on moved  | published          | rolled_forward |
| staged, something moved            | abandoned          | rolled_back    |
| staging                            | abandoned          | rolled_back    |
| published, not settled             | settled            | rolled_forward |
| published, its snapshot is missing | writes refused     | damaged        |
| damaged, the snapshot is back      | settled            | rolled_forward |
| not readable                       | left to a person   | (nothing)      |
"""

from __future__ import annotations

import threading
from dataclasses import replace

from strandline import logs
from strandline.errors import Conflict, NotFound, RecoveryRequired, StrandError
from strandline.failpoints import fail
from strandline.ledger import audit
from strandline.ledger.ledger import Txn
from strandline.ledger.publish import intent_rows, intents, leases, loads
from strandline.ledger.publish.publishing import Intent
from strandline.ledger.rows import reservations
from strandline.ledger.tables.heads import snapshots_of
from strandline.ledger.tables.tables import read_head, refuse_writes
from strandline.model.ids import lease_of_operation
from strandline.model.operations import Outcome, Recovered
from strandline.model.wording import counted
from strandline.operations.core import publish
from strandline.operations.core.context import Context

log = logs.Logger("strandline.recovery")

NOBODY = ""


def recover(ctx: Context, *, with_iceberg: bool) -> list[Recovered]:
    """Recover every operation whose owner is dead, oldest first; one that can't be recovered never stops the others."""
    tidy_loads(ctx)
    results: list[Recovered] = []
    for intent in _readable(ctx):
        lease = _operation_lease(ctx, intent.op_id)
        if not _is_dead(ctx, intent, lease):
            continue
        try:
            if intent.phase != "damaged":
                results.extend(_recover_one(ctx, intent, lease, with_iceberg=with_iceberg))
            elif with_iceberg:
                results.extend(_heal(ctx, intent))
        except Exception as error:
            log.warning("not recovered", op=intent.op_id, error=str(error))
    return results


def recover_both_halves(ctx: Context) -> list[Recovered]:
    """Recover in the ledger, and in Iceberg too; Spark is started only if there is something to settle."""
    decided = recover(ctx, with_iceberg=False)
    if pending_settles(ctx) == 0:
        return decided
    settled = {result.op_id: result for result in recover(ctx, with_iceberg=True)}
    return [settled.pop(result.op_id, result) for result in decided] + list(settled.values())


def preview(ctx: Context) -> list[Recovered]:
    """What `recover_after_silence` would do: at once, or when a process has been silent for so much longer."""
    previews = []
    for intent in _readable(ctx):
        lease = _operation_lease(ctx, intent.op_id)
        if _is_dead(ctx, intent, lease):
            previews.append(_preview(intent))
        elif lease is not None and intent.owner != ctx.owner.text():
            previews.append(replace(_preview(intent), wait_s=ctx.watch.silence_left_s(lease)))
    return previews


def recover_after_silence(ctx: Context, stop: threading.Event) -> list[Recovered]:
    """Recover also what only silence tells to be dead: of a process of another host nothing else can be known.

    This process has to hear that silence itself, for the lease's time. It only reads meanwhile, so an interrupt leaves
    nothing behind. An operation whose process beats is alive, and stays that process's own.
    """
    watched = {
        intent.op_id: (intent, lease)
        for intent in _readable(ctx)
        if intent.owner != ctx.owner.text() and (lease := _operation_lease(ctx, intent.op_id)) is not None
    }
    alive: list[Recovered] = []
    while not stop.is_set():
        for op_id, (intent, first) in list(watched.items()):
            lease = _operation_lease(ctx, op_id)
            if lease is None or ctx.watch.is_dead(lease):
                del watched[op_id]
            elif lease != replace(first, waiting=lease.waiting):
                del watched[op_id]
                alive.append(Recovered(op_id, intent.kind, "alive", "its process has shown that it lives", False))
        if not watched:
            break
        left_s = max(ctx.watch.silence_left_s(lease) for _, lease in watched.values())
        about = f"{counted(len(watched), 'operation')}: listening whether its process lives"
        ctx.report(about, int(ctx.ttl_s - left_s), int(ctx.ttl_s))
        stop.wait(ctx.watch.poll_s)
    return [*recover_both_halves(ctx), *alive]


def tidy_loads(ctx: Context) -> None:
    """Remove the folders of loads that are finished; one that can't be removed now is removed later."""
    _finish_unrepeated(ctx)
    with ctx.ledger.read() as conn:
        finished = loads.finished_loads(conn)
    if finished and not _may_delete(ctx):
        return
    for load_id in finished:
        try:
            ctx.staging.remove(load_id)
            with ctx.ledger.write() as txn:
                loads.forget_load(txn, load_id)
        except (StrandError, OSError) as error:
            log.warning("folder left for later", load=load_id, error=str(error))


def _may_delete(ctx: Context) -> bool:
    """Raise the fence; where that is refused, folders stay, and the lake opens all the same."""
    try:
        ctx.fence.raise_()
    except StrandError as error:
        log.warning("folders left for later", error=str(error))
        return False
    return True


def _finish_unrepeated(ctx: Context) -> None:
    """Let go of loads that were to run once, and whose process is dead: no caller will run them again."""
    with ctx.ledger.read() as conn:
        unrepeated = loads.unrepeated_loads(conn)
        leases_by_load = {load_id: leases.find(conn, name.lease) for load_id, name in unrepeated.items()}
    for load_id, lease in leases_by_load.items():
        if lease is None or ctx.watch.is_dead(lease):
            with ctx.ledger.write() as txn:
                loads.finish_load(txn, load_id)


def left_behind(ctx: Context) -> list[Intent]:
    """The operations whose process is dead, as far as we have seen by now, oldest first."""
    return [intent for intent in _readable(ctx) if _is_dead(ctx, intent, _operation_lease(ctx, intent.op_id))]


def _readable(ctx: Context) -> list[Intent]:
    """The operations under way whose records this version understands, oldest first."""
    with ctx.ledger.read() as conn:
        return [intent for intent in intents.read_intents(conn) if isinstance(intent, Intent)]


def pending_settles(ctx: Context) -> int:
    """How many dead operations wait for a process with Spark."""
    return sum(intent.phase in ("published", "abandoned", "damaged") for intent in left_behind(ctx))


def recover_holder(ctx: Context, lease: leases.Lease) -> bool:
    """Recover the operation that holds a lease we want, if it is dead; True when the lease may be free now."""
    if lease.op_id is None:
        return True
    with ctx.ledger.read() as conn:
        intent = intents.read_intent(conn, lease.op_id)
    if isinstance(intent, intents.UnreadableIntent):
        raise RecoveryRequired(
            f"the table is held by operation {intent.op_id}, and {intent.reason}",
            hint=f"Upgrade strandline, or give that operation up with `strand recover --discard {intent.op_id}`.",
            operation=intent.op_id,
        )
    if intent is None:
        return True
    own = _operation_lease(ctx, intent.op_id)
    return _is_dead(ctx, intent, own) and bool(_recover_one(ctx, intent, own, with_iceberg=False))


def discard(ctx: Context, op_id: str, actor: str) -> Recovered:
    """Give up an intent that can't be read, because a person said so. What it staged stays as garbage for a sweep."""
    with ctx.ledger.write() as txn:
        intent = intents.read_intent(txn.conn, op_id)
        if not isinstance(intent, intents.UnreadableIntent):
            raise NotFound(
                f"there is no unreadable operation {op_id}",
                hint="`strand doctor` lists those there are; readable ones are recovered by `strand recover`.",
            )
        intent_rows.delete_intent(txn, op_id)
        leases.release_operation(txn, op_id)
        reservations.release(txn, op_id)
        audit.write_audit(
            txn,
            op_id=op_id,
            kind=intent.kind,
            outcome="rolled_back",
            original_actor="unknown",
            tables=[audit.AuditedTable(table_id) for table_id in intent.table_ids],
            reason=f"given up by hand: {intent.reason}",
            actor=actor,
        )
    return Recovered(op_id, intent.kind, "rolled_back", intent.reason, settled=False)


def _is_dead(ctx: Context, intent: Intent, lease: leases.Lease | None) -> bool:
    if intent.owner == NOBODY:
        return True
    if intent.owner == ctx.owner.text():
        return intent.op_id not in ctx.live
    return lease is None or ctx.watch.is_dead(lease)


def _operation_lease(ctx: Context, op_id: str) -> leases.Lease | None:
    with ctx.ledger.read() as conn:
        return leases.find(conn, lease_of_operation(op_id))


def _preview(intent: Intent) -> Recovered:
    forward = intent.phase in ("staged", "published")
    outcome: Outcome = "rolled_forward" if forward else "rolled_back"
    return Recovered(intent.op_id, intent.kind, outcome, f"found {intent.phase}", settled=False)


def _recover_one(ctx: Context, intent: Intent, lease: leases.Lease | None, *, with_iceberg: bool) -> list[Recovered]:
    decided = _decide(ctx, intent, lease) if intent.phase in ("staging", "staged") else None
    if decided is None and intent.phase in ("staging", "staged"):
        return []  # its owner turned out to be alive, or another process was faster
    forward = intent.phase == "published" or (decided is not None and decided[0] == "rolled_forward")
    outcome: Outcome = "rolled_forward" if forward else "rolled_back"
    reason = decided[1] if decided is not None else f"it was {intent.phase}, and its Iceberg half was left"
    if not with_iceberg:
        return [Recovered(intent.op_id, intent.kind, outcome, reason, settled=False)] if decided is not None else []
    return [Recovered(intent.op_id, intent.kind, outcome, reason, settled=_settle(ctx, intent.op_id))]


def _decide(ctx: Context, seen: Intent, judged: leases.Lease | None) -> tuple[Outcome, str] | None:
    """The ledger half, in one transaction; None when the owner has shown since it was judged that it lives."""
    if seen.phase == "staged":
        ctx.fence.compare()

    def decide(txn: Txn) -> tuple[Outcome, str] | None:
        intent = intents.read_intent(txn.conn, seen.op_id)
        now = leases.find(txn.conn, lease_of_operation(seen.op_id))
        if not isinstance(intent, Intent) or intent.phase != seen.phase or now != judged:
            return None
        leases.take_over(txn, intent.op_id, ctx.owner.text())
        outcome, reason = _publish_or_abandon(txn, intent)
        intent_rows.set_owner(txn, intent.op_id, NOBODY)
        leases.release_operation(txn, intent.op_id)
        fail("recover.before_commit")
        return outcome, reason

    decided = ctx.ledger.run(decide)
    if decided is not None:
        fail("recover.after_commit")
        log.info("recovered", op=seen.op_id, kind=seen.kind, outcome=decided[0], reason=decided[1])
    return decided


def _publish_or_abandon(txn: Txn, intent: Intent) -> tuple[Outcome, str]:
    reason = "its process ended before everything was staged"
    if intent.phase == "staged":
        try:
            with txn.savepoint():
                publish.apply(txn, intent)
        except (Conflict, StrandError) as error:
            reason = f"what it depended on has moved: {error}"
        else:
            reason = "its process ended after everything was staged"
            audit.audit_intent(txn, intent, "rolled_forward", reason, moved=snapshots_of(intent.effects))
            return "rolled_forward", reason
    publish.abandon(txn, intent, actor=audit.RECOVERY_ACTOR, reason=reason)
    return "rolled_back", reason


def _heal(ctx: Context, intent: Intent) -> list[Recovered]:
    """A table whose pinned snapshot was missing takes writes again when the snapshot is back where it belongs."""
    iceberg = ctx.iceberg()
    for scope in intent.scopes:
        with ctx.ledger.read() as conn:
            pin = read_head(conn, scope.branch_id, scope.table_id).log_snapshot
        if pin is not None and not iceberg.has_snapshot(scope.iceberg_name, pin):
            return []
    reason = "its pinned snapshot is there again"
    with ctx.ledger.write() as txn:
        for scope in intent.scopes:
            refuse_writes(txn, scope.branch_id, scope.table_id, None)
        intent_rows.set_phase(txn, intent.op_id, "published")
        intent_rows.set_owner(txn, intent.op_id, NOBODY)
        audit.audit_intent(txn, intent, "rolled_forward", reason, moved=snapshots_of(intent.effects))
    return [Recovered(intent.op_id, intent.kind, "rolled_forward", reason, settled=_settle(ctx, intent.op_id))]


def _settle(ctx: Context, op_id: str) -> bool:
    from strandline.operations.core.settle import settle  # brings Spark with it, and recovery at open must not

    try:
        settle(ctx, op_id, recovering=True)
    except Exception as error:
        log.warning("not settled yet", op=op_id, error=str(error))
        return False
    return True
