"""What a person decides about a sink: audited in the transaction that does it."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.actors import checked_actor
from strandline.ledger.audit import audit_decision
from strandline.ledger.ledger import Txn
from strandline.model.delivery.sinks import Sink


def decided(txn: Txn, sink: Sink, outcome: str, reason: str, actor: str, table_ids: Iterable[str] = ()) -> None:
    """Write down what was decided of a sink, and its actor; `""` is the user of this process."""
    audit_decision(
        txn,
        about=sink.sink_id,
        kind="sink",
        outcome=outcome,
        reason=f"sink {sink.name}: {reason}",
        actor=checked_actor(actor, None),
        table_ids=table_ids,
    )
