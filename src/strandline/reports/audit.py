"""The audit as people read it: what recovery did, and what people decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.ledger.audit import RECOVERIES, AuditRow, read_audit
from strandline.ledger.history.branches import list_branches
from strandline.ledger.ledger import Connection
from strandline.ledger.tables.tables import list_tables
from strandline.model.times import text_of

if TYPE_CHECKING:
    from strandline.reports.open_lake import OpenLake


@dataclass(frozen=True)
class TableInAudit:
    """A table that an entry is about; recovery moved it from one snapshot to another, or left it where it was."""

    table: str
    from_: int | None
    to: int | None


@dataclass(frozen=True)
class AuditEntry:
    """What became of an operation, sink, branch, table or batch, and by whose word."""

    at: str
    op: str
    kind: str
    outcome: str
    actor: str
    original_actor: str
    tables: tuple[TableInAudit, ...]
    reason: str

    @property
    def is_recovery(self) -> bool:
        """Whether recovery did it by itself: what a person decides of a table moves no snapshot."""
        return self.outcome in RECOVERIES


def audit(lake: OpenLake, limit: int | None = None) -> list[AuditEntry]:
    """What recovery did and what people decided, newest first."""
    with lake.ledger.read() as conn:
        names = names_by_id(conn)
        return [audit_entry(row, names) for row in read_audit(conn, limit=limit)]


def names_by_id(conn: Connection) -> dict[str, str]:
    """What ids of tables and branches stand for, also of tables that are not on main."""
    tables = {table.table_id: table.name for table in list_tables(conn)}
    return tables | {branch.branch_id: branch.name for branch in list_branches(conn)}


def audit_entry(row: AuditRow, names: Mapping[str, str]) -> AuditEntry:
    """An audit row with the names of what it is about."""
    return AuditEntry(
        at=text_of(row.at_us),
        op=row.op_id,
        kind=row.kind,
        outcome=row.outcome,
        actor=row.actor,
        original_actor=row.original_actor,
        tables=tuple(
            TableInAudit(names.get(table.table_id, table.table_id), table.from_snapshot, table.to_snapshot)
            for table in row.tables
        ),
        reason=row.reason,
    )
