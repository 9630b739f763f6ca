"""The audit: what recovery did and what people decided, written in the transaction that did it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import orjson
from sqlalchemy import Connection, func, insert, select

from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Intent

RECOVERY_ACTOR = "strandline:recovery"
DOCTOR = "doctor"
"""The kind of what `strand doctor --fix` mends."""
RECOVERIES = ("rolled_forward", "rolled_back", "damaged")
"""What recovery does by itself; every other outcome is a person's decision."""


StoredAuditedTable = TypedDict(
    "StoredAuditedTable",
    {
        "table_id": str,
        "table": NotRequired[str | None],
        "from": NotRequired[int | None],
        "to": NotRequired[int | None],
    },
)
"""An `AuditedTable` as the ledger stores it."""


@dataclass(frozen=True)
class AuditedTable:
    """A table that an audit row is about; of one that recovery settled, its name in Iceberg and its snapshots too."""

    table_id: str
    iceberg_name: str | None = None
    from_snapshot: int | None = None
    to_snapshot: int | None = None

    def stored(self) -> StoredAuditedTable:
        """As the ledger stores it; `parse` is the inverse."""
        if self.iceberg_name is None:
            return {"table_id": self.table_id}
        return {
            "table_id": self.table_id,
            "table": self.iceberg_name,
            "from": self.from_snapshot,
            "to": self.to_snapshot,
        }

    @classmethod
    def parse(cls, stored: StoredAuditedTable) -> AuditedTable:
        """One of a row's tables."""
        return cls(stored["table_id"], stored.get("table"), stored.get("from"), stored.get("to"))


def write_audit(
    txn: Txn,
    *,
    op_id: str,
    kind: str,
    outcome: str,
    original_actor: str,
    tables: Sequence[AuditedTable],
    reason: str,
    actor: str = RECOVERY_ACTOR,
) -> None:
    """Write one audit row."""
    txn.conn.execute(
        insert(db.audit).values(
            at_us=txn.at_us,
            op_id=op_id,
            kind=kind,
            outcome=outcome,
            actor=actor,
            original_actor=original_actor,
            tables=orjson.dumps([table.stored() for table in tables]).decode(),
            reason=reason,
        )
    )


def audit_decision(
    txn: Txn, *, about: str, kind: str, outcome: str, reason: str, actor: str, table_ids: Iterable[str] = ()
) -> None:
    """Write down what a person decided: `about` is the id of the sink, branch or batch that it was decided of."""
    write_audit(
        txn,
        op_id=about,
        kind=kind,
        outcome=outcome,
        original_actor=actor,
        tables=[AuditedTable(table_id) for table_id in table_ids],
        reason=reason[:2000],
        actor=actor,
    )


def audit_intent(
    txn: Txn, intent: Intent, outcome: str, reason: str, *, moved: Mapping[str, int], actor: str = RECOVERY_ACTOR
) -> None:
    """Write down what became of an operation, and the snapshots that its tables have `moved` to by it."""
    write_audit(
        txn,
        op_id=intent.op_id,
        kind=intent.kind,
        outcome=outcome,
        original_actor=intent.actor,
        tables=_settled_tables(intent, moved=moved),
        reason=reason[:2000],
        actor=actor,
    )


def _settled_tables(intent: Intent, *, moved: Mapping[str, int]) -> list[AuditedTable]:
    """Per table, the snapshot it came from and the one it is at now: the same one when nothing moved."""
    return [
        AuditedTable(
            scope.table_id, scope.iceberg_name, scope.log_snapshot, moved.get(scope.table_id) or scope.log_snapshot
        )
        for scope in intent.scopes
    ]


@dataclass(frozen=True)
class AuditRow:
    """What recovery did with an operation, or what a person decided of a sink, branch, table or batch."""

    at_us: int
    op_id: str
    kind: str
    outcome: str
    actor: str
    original_actor: str
    tables: tuple[AuditedTable, ...]
    reason: str


def read_audit(conn: Connection, *, limit: int | None = None, outcomes: Sequence[str] | None = None) -> list[AuditRow]:
    """Audit rows, newest first; of these outcomes alone, where some are named."""
    query = select(db.audit).order_by(db.audit.c.audit_id.desc())
    if outcomes is not None:
        query = query.where(db.audit.c.outcome.in_(outcomes))
    rows = conn.execute(query.limit(limit) if limit is not None else query)
    return [
        AuditRow(
            at_us=row.at_us,
            op_id=row.op_id,
            kind=row.kind,
            outcome=row.outcome,
            actor=row.actor,
            original_actor=row.original_actor,
            tables=tuple(map(AuditedTable.parse, orjson.loads(row.tables))),
            reason=row.reason,
        )
        for row in rows
    ]


def count_audit(conn: Connection) -> list[tuple[str, int]]:
    """How often recovery came to each outcome."""
    outcome = db.audit.c.outcome
    rows = conn.execute(
        select(outcome, func.count()).where(outcome.in_(RECOVERIES)).group_by(outcome).order_by(outcome)
    )
    return [(str(name), int(count)) for name, count in rows]


def has_audit(conn: Connection, op_id: str) -> bool:
    """Whether an operation was audited already."""
    return conn.execute(select(db.audit.c.audit_id).where(db.audit.c.op_id == op_id).limit(1)).scalar() is not None
