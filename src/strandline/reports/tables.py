"""What can be said about a table without opening a file of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.ledger.tables.files import list_snapshots
from strandline.model.results import optional
from strandline.model.schema.types import type_text
from strandline.model.tables import TableSettings
from strandline.model.times import text_of

if TYPE_CHECKING:
    from strandline.model.schema.types import Column
    from strandline.model.tables import BranchTable
    from strandline.reports.open_lake import OpenLake
    from strandline.views.view import View

LAST_SNAPSHOTS = 10


@dataclass(frozen=True)
class ColumnReport:
    """What is declared of a column; which rows were there before it is nothing to look at."""

    name: str
    type: str
    nullable: bool
    default: str | None = optional()


@dataclass(frozen=True)
class RowCounts:
    """Where the rows of a table are: acked = log + tail + dropped + pruned + quarantined."""

    acked: int
    log: int
    tail: int
    dropped: int
    pruned: int
    quarantined: int


@dataclass(frozen=True)
class TableSizes:
    """The bytes of a table's files, and of the batches in its tail."""

    log: int
    tail: int


@dataclass(frozen=True)
class FoldReport:
    """How far a keyed table's log is folded into its state, and how large that is."""

    folded_seq: int
    rows: int
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """A table's settings, and where its rows are.

    `dropped`, `began` and `gone` are told where a table or columns of it were dropped: `gone` as the ledger stores it.
    """

    table: str
    branch: str
    columns: tuple[ColumnReport, ...]
    constraints: tuple[str, ...]
    dropped: bool | None = optional()
    began: int | None = optional()
    gone: tuple[Mapping[str, object], ...] | None = optional()
    key: tuple[str, ...]
    row_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    dedupe: str
    unknown_fields: str
    settings: TableSettings
    rows: RowCounts
    size_bytes: TableSizes
    files: int
    state: FoldReport | None
    last_seq: int
    stable_seq: int
    oldest_tail_at: str | None
    iceberg_table: str
    snapshot_id: int | None
    refuses: str | None


@dataclass(frozen=True)
class SnapshotReport:
    """A snapshot of a table's log: the operation that made it, and how many rows it brought."""

    version: int
    snapshot_id: int
    op_id: str
    kind: str
    rows: int
    at: str


@dataclass(frozen=True, kw_only=True)
class TableHistory(TableReport):
    """The same, with when it was made and its last snapshots, the newest first."""

    created_at: str
    snapshots: tuple[SnapshotReport, ...]


def describe(view: View, name: str) -> TableReport:
    """A table's settings, and where its rows are."""
    branch_table = view.branch_table(name)
    table, head, books = branch_table.table, branch_table.head, branch_table.head.books
    files = view.files(name)
    stored = branch_table.schema.to_json()
    return TableReport(
        table=table.name,
        branch=view.branch,
        columns=tuple(_column(column) for column in branch_table.schema.columns),
        constraints=tuple(stored["constraints"]),
        dropped=stored.get("dropped"),
        began=stored.get("began"),
        gone=tuple(stored["gone"]) if "gone" in stored else None,
        key=table.key,
        row_key=table.row_key,
        partition_by=table.partition_by,
        dedupe=table.dedupe,
        unknown_fields="json" if table.extra else "error",
        settings=table.settings,
        rows=RowCounts(
            acked=books.acked,
            log=books.log,
            tail=sum(ref.rows for ref in branch_table.tail),
            dropped=books.dropped,
            pruned=books.pruned,
            quarantined=books.quarantined,
        ),
        size_bytes=TableSizes(
            log=sum(file.size_bytes for file in files), tail=sum(ref.size_bytes for ref in branch_table.tail)
        ),
        files=len(files),
        state=_fold(view, branch_table),
        last_seq=head.last_seq,
        stable_seq=branch_table.stable_seq,
        oldest_tail_at=text_of(branch_table.tail[0].at_us) if branch_table.tail else None,
        iceberg_table=table.iceberg_name,
        snapshot_id=head.log_snapshot,
        refuses=head.refuses,
    )


def _column(column: Column) -> ColumnReport:
    return ColumnReport(column.name, type_text(column.type), column.nullable, column.default)


def _fold(view: View, branch_table: BranchTable) -> FoldReport | None:
    """How far a keyed table's log is folded into its state; None for a log table."""
    if branch_table.folded is None:
        return None
    files = view.files(branch_table.folded.table.name)
    return FoldReport(
        folded_seq=branch_table.folded_seq,
        rows=branch_table.folded.head.books.log,
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
    )


def describe_fully(lake: OpenLake, branch: str, name: str) -> TableHistory:
    """The same, with the table's last snapshots."""
    view = lake.view(branch)
    branch_table = view.branch_table(name)
    with lake.ledger.read() as conn:
        snapshots = list_snapshots(conn, branch_table.head.branch_id, branch_table.table.table_id, limit=LAST_SNAPSHOTS)
    return TableHistory(
        **vars(describe(view, name)),
        created_at=text_of(branch_table.table.created_at_us),
        snapshots=tuple(
            SnapshotReport(
                listed.version, listed.snapshot_id, listed.op_id, listed.kind, listed.rows, text_of(listed.at_us)
            )
            for listed in snapshots
        ),
    )
