"""Batches whose bytes were damaged, and that were set aside."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.ledger.rows.batches import QuarantinedBatch
from strandline.model.times import text_of


@dataclass(frozen=True)
class QuarantineEntry:
    """A batch that was set aside: the rows that were acked in it, whose they are, and why it can't be read."""

    batch: str
    table: str
    rows: int
    first_seq: int
    last_seq: int
    size_bytes: int
    actor: str
    appended_at: str
    at: str
    reason: str


def quarantine_entry(batch: QuarantinedBatch) -> QuarantineEntry:
    """The ledger's record of a batch, its times as text."""
    return QuarantineEntry(
        batch=batch.batch_id,
        table=batch.table,
        rows=batch.rows,
        first_seq=batch.first_seq,
        last_seq=batch.last_seq,
        size_bytes=batch.size_bytes,
        actor=batch.actor,
        appended_at=text_of(batch.appended_at_us),
        at=text_of(batch.at_us),
        reason=batch.reason,
    )
