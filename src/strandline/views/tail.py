"""The tail as Arrow: payloads checked, decoded and stamped with what the ledger knows of them.

A payload holds the rows alone. `_seq`, `_at` and `_actor` belong to the batch, because they are given in the
transaction that makes it durable, after the rows were encoded. Where a forwarded row comes from belongs to the row, so
it is in the payload, and null for the other rows of such a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from strandline.errors import SchemaMoved, StrandError
from strandline.ledger.ledger import Ledger
from strandline.ledger.rows.batches import read_payloads
from strandline.ledger.rows.encode import checksum
from strandline.model.schema.reshape import name_in, reshaped
from strandline.model.schema.types import ACTOR, AT, COMMIT, SEQ
from strandline.model.tables import BatchRef, BranchTable, Payload
from strandline.model.values.arrow import batch_arrow, origin_fields, stored_schema
from strandline.model.values.wire import decode, decode_columns

OnUnreadable = Callable[[BatchRef, str], None]

RUN_BYTES = 1 << 20
"""How much of small batches is handed on as one."""

T = TypeVar("T")


def read_batches(
    ledger: Ledger,
    branch_table: BranchTable,
    refs: Sequence[BatchRef],
    on_unreadable: OnUnreadable,
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """These batches as the table's log holds them, in seq order; one that can't be read is reported and left out.

    With `columns`, only these of the user's are decoded, and `_seq` is always there. No row is left out for its age:
    it was acked, and only retention takes it away again, behind every sink.
    """
    decoded = _readable(ledger, branch_table, refs, on_unreadable, columns)
    for run in in_runs(decoded, lambda pair: pair[1], lambda pair: pair[0].size_bytes):
        run_refs, batch = [ref for ref, _ in run], joined([rows for _, rows in run])
        yield _stamp(batch, run_refs, branch_table) if columns is None else batch.append_column(SEQ, _seqs(run_refs))


def _readable(
    ledger: Ledger,
    branch_table: BranchTable,
    refs: Sequence[BatchRef],
    on_unreadable: OnUnreadable,
    columns: Sequence[str] | None,
) -> Iterator[tuple[BatchRef, pa.RecordBatch]]:
    for payload in read_payloads(ledger, refs):
        try:
            yield payload.ref, decode_payload(payload, branch_table, columns)
        except Unreadable as error:
            on_unreadable(payload.ref, str(error))


def in_runs(
    batches: Iterable[T], rows_of: Callable[[T], pa.RecordBatch], size_of: Callable[[T], int]
) -> Iterator[list[T]]:
    """Small neighbours of one shape together: whatever is done with a batch costs as much as hundreds of rows."""
    run: list[T] = []
    size = 0
    for batch in batches:
        if run and (size + size_of(batch) > RUN_BYTES or not rows_of(batch).schema.equals(rows_of(run[0]).schema)):
            yield run
            run, size = [], 0
        run.append(batch)
        size += size_of(batch)
    if run:
        yield run


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of all their rows."""
    return pa.concat_batches(batches) if len(batches) > 1 else batches[0]


def stamped(payload: Payload, branch_table: BranchTable) -> pa.RecordBatch:
    """The rows of a payload as the table's log holds them; Unreadable when it is not what was written."""
    return _stamp(decode_payload(payload, branch_table), [payload.ref], branch_table)


class Unreadable(Exception):
    """A payload that is not what was written."""


def decode_payload(payload: Payload, branch_table: BranchTable, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The rows of a payload, or these columns of them, as the table's schema has them now.

    Unreadable when it is not what was written.
    """
    written = branch_table.schemas.get(payload.ref.schema_version)
    if written is None:
        raise SchemaMoved(f"table {branch_table.table.name!r} has rows of a schema that is not known here")
    if columns is None:
        rows = _decode(payload, batch_arrow(written, branch_table.table))
    else:
        names = [
            name
            for name in (name_in(written, branch_table.schema.column(column)) for column in columns)
            if name is not None
        ]
        shape = stored_schema(written)
        rows = _decode(payload, pa.schema([shape.field(name) for name in names]), names)
    if written == branch_table.schema:
        return rows
    shown = branch_table.schema.columns if columns is None else [branch_table.schema.column(name) for name in columns]
    return reshaped(rows, written, shown, _seqs([payload.ref]))


def _decode(payload: Payload, shape: pa.Schema, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    if checksum(payload.payload) != payload.checksum:
        raise Unreadable("its bytes have changed since they were written (wrong checksum)")
    try:
        batch = decode(payload.payload) if columns is None else decode_columns(payload.payload, columns)
    except (StrandError, pa.ArrowException, ValueError) as error:
        raise Unreadable(f"it is not an Arrow stream ({error})") from error
    fits = batch.schema.equals(shape) or batch.schema.equals(pa.schema([*shape, *origin_fields()]))
    if batch.num_rows != payload.ref.rows or not fits:
        raise Unreadable(
            f"it holds {batch.num_rows} rows of another shape than its table, instead of {payload.ref.rows}"
        )
    return batch


def _stamp(batch: pa.RecordBatch, refs: Sequence[BatchRef], branch_table: BranchTable) -> pa.RecordBatch:
    """Put what the ledger knows between the user's columns and those of a forwarded row."""
    own = len(batch_arrow(branch_table.schema, branch_table.table))
    each = pa.array([place for place, ref in enumerate(refs) for _ in range(ref.rows)], pa.int32())
    at = pa.array([ref.at_us for ref in refs], pa.timestamp("us", "UTC")).take(each)
    actor = pa.array([ref.actor for ref in refs], pa.string()).take(each)
    columns, names = [*batch.columns[:own], _seqs(refs), at, actor], [*batch.schema.names[:own], SEQ, AT, ACTOR]
    if branch_table.table.key:
        columns.append(pa.array([ref.commit_id for ref in refs], pa.string()).take(each))
        names.append(COMMIT)
    if branch_table.table.inbound:
        fields = origin_fields()
        columns += batch.columns[own:] or [pa.nulls(batch.num_rows, field.type) for field in fields]
        names += [field.name for field in fields]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _seqs(refs: Sequence[BatchRef]) -> pa.Array:
    return pa.array([seq for ref in refs for seq in range(ref.first_seq, ref.last_seq + 1)], pa.int64())
