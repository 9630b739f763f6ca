"""`strand audit`: what recovery did, and what people decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.session import session_of

if TYPE_CHECKING:
    from strandline.reports.audit import AuditEntry, TableInAudit

AUDIT_HEADS = ["time", "about", "kind", "outcome", "by", "tables", "reason"]


def register(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command("audit", short_help="What recovery did, and what people decided.")(audit)


def audit(
    context: typer.Context,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest.")] = None,
) -> None:
    """What recovery did, and what people decided: what was given up, sent again, taken over or mended. Newest first.

    \b
    Example: strand audit --limit 5
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        entries = lake.reports.audit(limit)

    def human() -> None:
        if entries:
            output.table(AUDIT_HEADS, [audit_cells(entry) for entry in entries])
        else:
            output.say("Nothing was ever recovered, and nothing decided by hand.")

    session.emit(entries, human)


def audit_cells(entry: AuditEntry) -> list[object]:
    """An entry as a row of a table for people."""
    tables = [_moved(table) if entry.is_recovery else table.table for table in entry.tables]
    return [
        output.when(entry.at),
        entry.op,
        entry.kind,
        entry.outcome.replace("_", " "),
        entry.actor,
        ", ".join(tables),
        entry.reason,
    ]


def _moved(table: TableInAudit) -> str:
    if table.from_ == table.to:
        return f"{table.table} unchanged"
    return f"{table.table} {table.from_ or 'empty'} → {table.to or 'empty'}"
