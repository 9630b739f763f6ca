"""Batches whose bytes were damaged: they were set aside, until their rows are repaired or given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.actors import default_actor
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.ledger.rows.encode import Rows
    from strandline.model.tables import Ack
    from strandline.reports.quarantine import QuarantineEntry


@dataclass(frozen=True)
class Repaired:
    """The rows of a damaged batch that were appended again, and the seqs that they have now."""

    batch: str
    table: str
    rows: int
    first_seq: int | None
    last_seq: int | None


@dataclass(frozen=True)
class GivenUp:
    """A damaged batch that was given up for good, and how many rows were in it."""

    batch: str
    rows: int


class Quarantine:
    """`lake.quarantine`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def list(self) -> list[QuarantineEntry]:
        """Every batch that was set aside, in the order in which they were appended."""
        from strandline.ledger.rows.batches import list_quarantined
        from strandline.reports.quarantine import quarantine_entry

        with self._lake.ledger.read() as conn:
            return [quarantine_entry(batch) for batch in list_quarantined(conn)]

    def show(self, batch_id: str) -> QuarantineEntry:
        """One of them."""
        from strandline.ledger.rows.batches import quarantined_batch
        from strandline.reports.quarantine import quarantine_entry

        with self._lake.ledger.read() as conn:
            return quarantine_entry(quarantined_batch(conn, batch_id))

    def payload(self, batch_id: str) -> bytes:
        """The bytes of a batch as they are. Those of a whole one are an Arrow IPC stream."""
        from strandline.ledger.rows.batches import quarantined_payload

        with self._lake.ledger.read() as conn:
            return quarantined_payload(conn, batch_id)

    def repair(self, batch_id: str, rows: Rows, *, actor: str = "") -> Repaired:
        """Append repaired rows with new seqs, and forget the damaged batch."""
        return self._repair(
            batch_id,
            actor,
            lambda table, key: self._lake.append(table, rows, actor=actor, idempotency_key=key, keep_old=True),
        )

    def repair_json_lines(self, batch_id: str, lines: Iterable[bytes], *, actor: str = "") -> Repaired:
        """The same for lines of one JSON object each."""
        return self._repair(
            batch_id,
            actor,
            lambda table, key: self._lake.append_json_lines(
                table, lines, actor=actor, idempotency_key=key, keep_old=True
            ),
        )

    def _repair(self, batch_id: str, actor: str, append: Callable[[str, str], Ack]) -> Repaired:
        """Append under a key of the batch's own: if this dies between the two steps, another try stores nothing twice.

        The rows were acked when they were first appended, so none is left out for its age.
        """
        from strandline.ledger.audit import audit_decision
        from strandline.ledger.rows.batches import discard_quarantined, quarantined_batch

        with self._lake.ledger.read() as conn:
            batch = quarantined_batch(conn, batch_id)
        ack = append(batch.table, f"quarantine:{batch_id}")
        with self._lake.ledger.write() as txn:
            discard_quarantined(txn, batch_id)
            audit_decision(
                txn,
                about=batch_id,
                kind="quarantine",
                outcome="restored",
                reason=f"{ack.rows:,} of {counted(batch.rows, 'row')} appended again, as seqs "
                f"{ack.first_seq}..{ack.last_seq}",
                actor=actor or default_actor(),
                table_ids=[batch.table_id],
            )
        return Repaired(batch_id, batch.table, ack.rows, ack.first_seq, ack.last_seq)

    def discard(self, batch_id: str, *, actor: str = "") -> GivenUp:
        """Give a batch up for good: its rows count as pruned, and its bytes are deleted."""
        from strandline.ledger.audit import AuditedTable, write_audit
        from strandline.ledger.rows.batches import discard_quarantined, quarantined_batch

        with self._lake.ledger.write() as txn:
            batch = quarantined_batch(txn.conn, batch_id)
            rows = discard_quarantined(txn, batch_id)
            write_audit(
                txn,
                op_id=batch_id,
                kind="quarantine",
                outcome="discarded",
                original_actor=batch.actor,
                tables=[AuditedTable(batch.table_id)],
                reason=f"{counted(rows, 'row')} given up by hand: {batch.reason}",
                actor=actor or default_actor(),
            )
        return GivenUp(batch_id, rows)
