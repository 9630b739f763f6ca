"""Settling: Iceberg follows the ledger.

Readers of the lake never look at Iceberg's refs, so settling late, twice or by another process changes nothing for
them. It is for outside engines, and for tidiness: the ref moves to the pin, the private branch and the folder go, the
intent is deleted.
"""

from __future__ import annotations

from strandline.engines.spark.iceberg import MAIN_REF, Iceberg, MissingTable, RefReport
from strandline.engines.spark.maintain import expire
from strandline.failpoints import fail
from strandline.ledger import audit
from strandline.ledger.ledger import MAIN, Txn
from strandline.ledger.publish import intent_rows, intents, leases
from strandline.ledger.publish.publishing import Intent, of_kind
from strandline.ledger.tables.files import knows_snapshot
from strandline.ledger.tables.heads import snapshots_of
from strandline.ledger.tables.holds import CondemnSnapshots, forget_snapshots
from strandline.ledger.tables.tables import branch_name, read_head, refuse_writes
from strandline.model.ids import branch_ref, private_branch
from strandline.model.operations import TableScope
from strandline.operations.core.context import Context


def settle(ctx: Context, op_id: str, *, recovering: bool) -> list[str]:
    """Settle a published or abandoned operation; returns what a person should know about it."""
    with ctx.ledger.read() as conn:
        intent = intents.read_intent(conn, op_id)
    if not isinstance(intent, Intent) or intent.phase not in ("published", "abandoned"):
        return []
    ctx.fence.compare()
    warnings: list[str] = []
    for scope in intent.scopes:
        report = _settle_table(ctx, ctx.iceberg(), scope, op_id)
        if report is not None and report.missing_pin is not None:
            return [_refuse_damaged(ctx, intent, scope, report.missing_pin)]
        if report is not None and report.foreign is not None:
            warnings.append(_foreign(scope, report.foreign))
    if intent.phase == "published":
        warnings.extend(_remove_condemned(ctx, intent))
    fail("settle.after_ref")
    ctx.staging.remove(intent.op_id)
    fail("settle.after_folder")
    _forget(ctx, intent, recovering=recovering)
    fail("settle.after_commit")
    return warnings


def _settle_table(ctx: Context, iceberg: Iceberg, scope: TableScope, op_id: str) -> RefReport | None:
    def pin() -> int | None:
        with ctx.ledger.read() as conn:
            return read_head(conn, scope.branch_id, scope.table_id).log_snapshot

    def ours(snapshot_id: int) -> bool:
        with ctx.ledger.read() as conn:
            return knows_snapshot(conn, scope.table_id, snapshot_id)

    fail("settle.before_ref")
    with ctx.ledger.read() as conn:
        ref = outside_ref(branch_name(conn, scope.branch_id), scope.branch_id)
    try:
        return iceberg.settle(scope.iceberg_name, ref, private_branch(op_id), pin, ours)
    except MissingTable:
        pinned = pin()
        return None if pinned is None else RefReport(None, None, missing_pin=pinned)


def _remove_condemned(ctx: Context, intent: Intent) -> list[str]:
    """Let Iceberg forget what the publish condemned. One that a ref still names stays condemned, for a later expiry."""
    warnings: list[str] = []
    names = {scope.table_id: scope.iceberg_name for scope in intent.scopes}
    for effect in of_kind(intent.effects or (), CondemnSnapshots):
        ctx.fence.raise_()
        fail("expire.before_delete")
        gone = expire(ctx.iceberg(), names[effect.table_id], effect.snapshots)
        fail("expire.after_delete")
        with ctx.ledger.write() as txn:
            forget_snapshots(txn, effect.table_id, gone)
        fail("expire.after_forget")
        if len(gone) < len(effect.snapshots):
            left = len(effect.snapshots) - len(gone)
            warnings.append(f"{left} snapshots of {names[effect.table_id]} are still named by a ref, and stay")
    return warnings


def outside_ref(branch: str, branch_id: str) -> str:
    """The Iceberg ref under which outside engines find a branch of the lake."""
    return MAIN_REF if branch == MAIN else branch_ref(branch_id)


def _forget(ctx: Context, intent: Intent, *, recovering: bool) -> None:
    def forget(txn: Txn) -> None:
        if intents.read_intent(txn.conn, intent.op_id) is None:
            return
        # A merge that took tables over has no effects to audit: its refs were left to us, and no process died.
        if recovering and intent.effects is not None and not audit.has_audit(txn.conn, intent.op_id):
            audit.audit_intent(
                txn,
                intent,
                "rolled_forward",
                "it was published, and its process ended before the Iceberg refs followed",
                moved=snapshots_of(intent.effects),
            )
        intent_rows.delete_intent(txn, intent.op_id)
        leases.release_operation(txn, intent.op_id)

    ctx.ledger.run(forget)


def _refuse_damaged(ctx: Context, intent: Intent, scope: TableScope, missing: int) -> str:
    """A pin without its snapshot: touch nothing, refuse writes there, and say so."""
    reason = f"its pinned snapshot {missing} is not in the Iceberg table {scope.iceberg_name}"
    with ctx.ledger.write() as txn:
        refuse_writes(txn, scope.branch_id, scope.table_id, reason)
        intent_rows.set_phase(txn, intent.op_id, "damaged")
        leases.release_operation(txn, intent.op_id)
        audit.audit_intent(txn, intent, "damaged", reason, moved=snapshots_of(intent.effects))
    return f"table {scope.iceberg_name} is damaged and refuses writes: {reason}"


def _foreign(scope: TableScope, snapshot_id: int) -> str:
    return (
        f"the Iceberg table {scope.iceberg_name} was changed from outside: its ref is at snapshot {snapshot_id}, "
        "which is not one of this lake's. It was left there; the lake's own rows are complete."
    )
