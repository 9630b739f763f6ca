"""What can be said about a table without opening a file of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from strandline.ledger.files import list_snapshots
from strandline.model.moments import text_of
from strandline.model.types import type_text

if TYPE_CHECKING:
    from strandline.model.tables import TableState
    from strandline.model.types import Column
    from strandline.reports.open_lake import OpenLake
    from strandline.views.view import View

LAST_SNAPSHOTS = 10


def describe(view: View, name: str) -> dict[str, Any]:
    """A table's settings, and where its rows are."""
    state = view.state(name)
    table, head, books = state.table, state.head, state.head.books
    files = view.files(name)
    return {
        "table": table.name,
        "branch": view.branch,
        **state.schema.to_json(),
        "columns": [_column(column) for column in state.schema.columns],
        "key": list(table.key),
        "row_key": list(table.row_key),
        "partition_by": list(table.partition_by),
        "dedupe": table.dedupe,
        "unknown_fields": "json" if table.extra else "error",
        "settings": asdict(table.settings),
        "rows": {
            "acked": books.acked,
            "log": books.log,
            "tail": sum(ref.rows for ref in state.tail),
            "dropped": books.dropped,
            "pruned": books.pruned,
            "quarantined": books.quarantined,
        },
        "size_bytes": {
            "log": sum(file.size_bytes for file in files),
            "tail": sum(ref.size_bytes for ref in state.tail),
        },
        "files": len(files),
        "state": _state(view, state),
        "last_seq": head.last_seq,
        "stable_seq": state.stable_seq,
        "oldest_tail_at": text_of(state.tail[0].at_us) if state.tail else None,
        "iceberg_table": table.iceberg_name,
        "snapshot_id": head.log_snapshot,
        "refuses": head.refuses,
    }


def _column(column: Column) -> dict[str, Any]:
    """What is declared of a column; which rows were there before it is nothing to look at."""
    return {
        "name": column.name,
        "type": type_text(column.type),
        "nullable": column.nullable,
        **({} if column.default is None else {"default": column.default}),
    }


def _state(view: View, state: TableState) -> dict[str, Any] | None:
    """How far a keyed table's log is folded into its state; None for a log table."""
    if state.folded is None:
        return None
    files = view.files(state.folded.table.name)
    return {
        "folded_seq": state.folded_seq,
        "rows": state.folded.head.books.log,
        "files": len(files),
        "size_bytes": sum(file.size_bytes for file in files),
    }


def describe_fully(lake: OpenLake, branch: str, name: str) -> dict[str, Any]:
    """The same, with the table's last snapshots."""
    view = lake.view(branch)
    state = view.state(name)
    with lake.ledger.read() as conn:
        snapshots = list_snapshots(conn, state.head.branch_id, state.table.table_id, limit=LAST_SNAPSHOTS)
    shown = [{**{k: v for k, v in row.items() if k != "at_us"}, "at": text_of(row["at_us"])} for row in snapshots]
    return {**describe(view, name), "created_at": text_of(state.table.created_at_us), "snapshots": shown}
