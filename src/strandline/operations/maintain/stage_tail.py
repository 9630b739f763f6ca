"""Staging a tail: batches out of the ledger, without duplicates, onto a private branch.

The rows pass through Python a batch at a time, into Parquet files in the operation's folder, and Spark appends these.
The duplicates are found beforehand from the key columns alone, by the same words that hide them from readers. Nothing
else is left out: these rows were acked, and how old they are is retention's business, once sinks have them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.engines.duck import relations, sandbox
from strandline.engines.spark import stage
from strandline.engines.storage import open_uri
from strandline.errors import Damaged
from strandline.failpoints import fail
from strandline.ledger.changes.purged_keys import seen_hashes
from strandline.ledger.rows.batches import quarantine
from strandline.ledger.tables.files import has_snapshots, read_files
from strandline.model.ids import private_branch
from strandline.model.schema.engine_types import column_ddl
from strandline.model.schema.types import SEQ
from strandline.model.tables import BatchRef, BranchTable, DataFile
from strandline.model.values.arrow import stored_schema
from strandline.model.values.rows import partitions
from strandline.operations.core.context import Context
from strandline.views.tail import read_batches
from strandline.views.unreadable import refuse_unreadable
from strandline.views.view import key_scope, log_schema, stored_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A file of the folder becomes a task, so there are at least as many as there are cores, and none is large.
MIN_FILE_ROWS = 50_000
MAX_FILE_ROWS = 500_000


@dataclass(frozen=True)
class StagedRows:
    """Rows on a private branch; `snapshot` is None when there was nothing to write.

    Those that were `dropped` were duplicates. Rows of a load that were past the table's retention are `too_old`.
    """

    snapshot: int | None
    files: tuple[DataFile, ...] = ()
    rows: int = 0
    dropped: int = 0
    batches: tuple[str, ...] = ()
    too_old: int = 0

    def stream_heads(self) -> dict[str, int]:
        """The last seq of each partition that got rows."""
        heads: dict[str, int] = {}
        for file in self.files:
            heads[file.partition] = max(file.last_seq, heads.get(file.partition, 0))
        return heads


def prepare_branch(ctx: Context, branch_table: BranchTable, op_id: str) -> None:
    """Make sure of the Iceberg table and of the operation's private branch at the pin."""
    branch_table = branch_table.stored
    iceberg = ctx.iceberg()
    fail("stage.before_table")
    is_state = branch_table.table.kind == "state"
    iceberg.ensure_table(
        branch_table.table.iceberg_name, columns_ddl(branch_table), branch_table.table.partition_by, is_state=is_state
    )
    if branch_table.table.inbound or len(branch_table.schemas) > 1:
        iceberg.ensure_columns(branch_table.table.iceberg_name, branch_table.columns)
    if is_state and branch_table.filtered:
        iceberg.ensure_filters(branch_table.table.iceberg_name, branch_table.filtered)
    fail("stage.before_branch")
    with ctx.ledger.read() as conn:
        shared = has_snapshots(conn, branch_table.table.table_id)
    iceberg.create_branch(
        branch_table.table.iceberg_name, private_branch(op_id), branch_table.head.log_snapshot, shared=shared
    )
    fail("stage.after_branch")


def stage_tail(ctx: Context, branch_table: BranchTable, refs: Sequence[BatchRef], op_id: str) -> StagedRows:
    """Append these batches to the operation's branch, and set aside those that can't be read."""
    branch_table = branch_table.stored
    ctx.staging.create(op_id)
    unreadable = _UnreadableBatches(ctx, branch_table)
    duplicates = _duplicates(ctx, branch_table, refs, unreadable) if branch_table.table.row_key else None
    fail("stage.before_files")
    paths, rows = _write_files(ctx, branch_table, unreadable.without(refs), op_id, duplicates, unreadable)
    fail("stage.after_files")
    kept = unreadable.without(refs)
    batches = tuple(ref.batch_id for ref in kept)
    offered = sum(ref.rows for ref in kept)
    if rows == 0:
        return StagedRows(None, dropped=offered, batches=batches)
    frame = stage.read_stamped(ctx.iceberg().session, columns_ddl(branch_table), paths)
    snapshot, files = append(ctx, branch_table, frame, op_id)
    stored = sum(file.rows for file in files)
    if stored != rows:
        raise Damaged(f"{rows} rows of the tail were staged, and Spark wrote {stored}", operation=op_id)
    return StagedRows(snapshot, files, rows, offered - rows, batches)


class _UnreadableBatches:
    """Batches that could not be read. They are noted while a stream runs, and set aside when it has ended."""

    def __init__(self, ctx: Context, branch_table: BranchTable) -> None:
        self._ctx = ctx
        self._branch_table = branch_table
        self._reasons: dict[str, str] = {}
        self._done: set[str] = set()

    def note(self, ref: BatchRef, reason: str) -> None:
        """A batch can't be read."""
        refuse_unreadable(self._branch_table, ref, reason)
        self._reasons[ref.batch_id] = reason

    def set_aside(self) -> None:
        """Quarantine what was noted since the last time."""
        head = self._branch_table.head
        for batch_id in self._reasons.keys() - self._done:
            quarantine(self._ctx.ledger, head.branch_id, head.table_id, batch_id, self._reasons[batch_id])
            self._done.add(batch_id)

    def without(self, refs: Sequence[BatchRef]) -> list[BatchRef]:
        """The batches that can be read."""
        return [ref for ref in refs if ref.batch_id not in self._reasons]


def append(ctx: Context, branch_table: BranchTable, frame: DataFrame, op_id: str) -> tuple[int, tuple[DataFile, ...]]:
    """Let Spark append a DataFrame to the operation's branch; returns the snapshot and the files it added.

    Its columns have their names in data files; those that it lacks are null.
    """
    branch_table = branch_table.stored
    iceberg = ctx.iceberg()
    name = branch_table.table.iceberg_name
    fail("stage.before_append")
    stage.append_to_branch(
        frame, name, private_branch(op_id), op_id, stored_columns(branch_table), branch_table.table.partition_by
    )
    fail("stage.after_append")
    snapshot = iceberg.branch_snapshot(name, private_branch(op_id))
    assert snapshot is not None, f"Spark appended rows of operation {op_id} and its branch has no snapshot"
    files = added_files(ctx, branch_table, snapshot)
    iceberg.sync_to_disk(name, snapshot, files)
    return snapshot, files


def added_files(ctx: Context, branch_table: BranchTable, snapshot: int) -> tuple[DataFile, ...]:
    """The files that a staged snapshot added, as the ledger will record them."""
    table = branch_table.stored.table
    files = ctx.iceberg().added_files(table.iceberg_name, snapshot, table.settings.time_column)
    return tuple(replace(file, origin=table.inbound, schema_version=max(branch_table.schemas)) for file in files)


def columns_ddl(branch_table: BranchTable) -> str:
    """The columns of a table's log, as Spark writes them."""
    return ", ".join(column_ddl(column) for column in stored_columns(branch_table))


def _duplicates(
    ctx: Context, branch_table: BranchTable, refs: Sequence[BatchRef], unreadable: _UnreadableBatches
) -> pa.Array:
    """The seqs of rows whose key is in the log, or earlier among these rows."""
    scope = key_scope(branch_table)
    names = list(dict.fromkeys([*scope.within, *scope.row_key]))
    stored = stored_schema(branch_table.schema, branch_table.table.extra)
    touched: set[str] = set()

    def keys() -> Iterator[pa.RecordBatch]:
        for batch in read_batches(ctx.ledger, branch_table, refs, unreadable.note, columns=names):
            if scope.within:
                touched.update(partitions(batch, scope.within))
            yield batch

    schema = pa.schema([*(stored.field(name) for name in names), pa.field(SEQ, pa.int64())])
    with sandbox.scratch() as connection:
        relations.load_rows(connection, "keys", schema, keys())
        with ctx.ledger.read() as conn:
            log_files = read_files(
                conn,
                branch_table.head.branch_id,
                branch_table.table.table_id,
                branch_table.head.version,
                partitions=sorted(touched) if scope.within else None,
            )
            seen = seen_hashes(conn, branch_table.table.table_id)
        log = relations.parquet([relations.local_path(file.path) for file in log_files], names) if log_files else None
        relations.find_duplicates(connection, relations.internal("keys"), log, scope, into="duplicates", seen=seen)
        unreadable.set_aside()
        duplicates: pa.Array = relations.read_seqs(connection, "duplicates").column(0).combine_chunks()
    return duplicates


def _write_files(
    ctx: Context,
    branch_table: BranchTable,
    refs: Sequence[BatchRef],
    op_id: str,
    duplicates: pa.Array | None,
    unreadable: _UnreadableBatches,
) -> tuple[list[str], int]:
    """Write the rows that stay into Parquet files of the operation's folder, in seq order.

    Returns the files, and how many rows they have.
    """
    total = sum(ref.rows for ref in refs)
    per_file = min(MAX_FILE_ROWS, max(MIN_FILE_ROWS, -(-total // (os.cpu_count() or 1))))
    writer = SeqFiles(ctx, op_id, log_schema(branch_table), per_file, "tail")
    done = 0
    with writer:
        for batch in read_batches(ctx.ledger, branch_table, refs, unreadable.note):
            done += batch.num_rows
            writer.write(_kept(batch, duplicates))
            ctx.report(f"reading the tail of {branch_table.table.name}", done, total)
    unreadable.set_aside()
    return writer.paths, writer.rows


def _kept(batch: pa.RecordBatch, duplicates: pa.Array | None) -> pa.RecordBatch:
    if duplicates is None or len(duplicates) == 0:
        return batch
    return batch.filter(pc.invert(pc.is_in(batch.column(SEQ), value_set=duplicates)))


class SeqFiles:
    """Parquet files of about the same number of rows, one after another."""

    def __init__(self, ctx: Context, op_id: str, schema: pa.Schema, rows_per_file: int, name: str) -> None:
        self._ctx = ctx
        self._op_id = op_id
        self._name = name
        self._schema = schema
        self._limit = rows_per_file
        self._writer: pq.ParquetWriter | None = None
        self._in_file = 0
        self.paths: list[str] = []
        self.rows = 0

    def __enter__(self) -> SeqFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; a batch is never cut, so a file holds one unbroken range of seqs."""
        if batch.num_rows == 0:
            return
        if self._in_file >= self._limit:
            self._close()
        if self._writer is None:
            self._open()
        assert self._writer is not None
        self._writer.write_batch(batch)
        self._in_file += batch.num_rows
        self.rows += batch.num_rows

    def _open(self) -> None:
        uri = self._ctx.staging.uri(self._op_id, f"{self._name}-{len(self.paths):05d}.parquet")
        system, path = open_uri(uri)
        self._writer = pq.ParquetWriter(
            path, self._schema, filesystem=system, compression="snappy", use_dictionary=False, write_statistics=False
        )
        self._in_file = 0
        self.paths.append(uri)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
