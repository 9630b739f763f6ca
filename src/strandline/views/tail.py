"""The tail as Arrow: payloads checked, decoded and stamped with what the ledger knows of them.

A payload holds the rows alone. `_seq`, `_at` and `_actor` belong to the batch, because they are given in the
transaction that makes it durable, after the rows were encoded. Where a forwarded row comes from belongs to the row, so
it is in the payload, and null for the other rows of such a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Conflict, StrandError
from strandline.ledger.batches import read_payloads
from strandline.ledger.encode import checksum
from strandline.ledger.ledger import Ledger
from strandline.model.arrow import batch_arrow, origin_fields, stored_schema
from strandline.model.reshape import name_in, reshaped
from strandline.model.tables import BatchRef, Payload, Table, TableState
from strandline.model.types import ACTOR, AT, COMMIT, SEQ
from strandline.model.wire import decode, decode_columns

OnUnreadable = Callable[[BatchRef, str], None]


def read_batches(
    ledger: Ledger,
    state: TableState,
    refs: Sequence[BatchRef],
    on_unreadable: OnUnreadable,
    *,
    columns: Sequence[str] | None = None,
    cutoff_us: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """These batches as the table's log holds them, in seq order; one that can't be read is reported and left out.

    With `columns`, only these of the user's are decoded, and `_seq` is always there. Rows whose time lies before
    `cutoff_us` are left out: retention would remove them as soon as they were in the log.
    """
    own = len(batch_arrow(state.schema, state.table))
    time_column = state.table.settings.time_column
    decoded = columns
    if columns is not None and cutoff_us is not None and time_column != AT:
        decoded = list(dict.fromkeys([*columns, time_column]))
    for payload in read_payloads(ledger, refs):
        try:
            batch = decode_payload(payload, state, decoded)
        except Unreadable as error:
            on_unreadable(payload.ref, str(error))
            continue
        if columns is None:
            rows = _stamp(batch, payload.ref, own, state.table)
        else:
            rows = batch.append_column(SEQ, _seqs(payload.ref))
        if cutoff_us is not None:
            rows = _fresh(rows, payload.ref, time_column, cutoff_us)
        yield rows if columns is None else rows.select([*columns, SEQ])


def stamped(payload: Payload, state: TableState) -> pa.RecordBatch:
    """The rows of a payload as the table's log holds them; Unreadable when it is not what was written."""
    own = len(batch_arrow(state.schema, state.table))
    return _stamp(decode_payload(payload, state), payload.ref, own, state.table)


def _fresh(rows: pa.RecordBatch, ref: BatchRef, time_column: str, cutoff_us: int) -> pa.RecordBatch:
    """The rows whose time is not before the cutoff, and those without one."""
    if time_column == AT:
        return rows if ref.at_us >= cutoff_us else rows.slice(0, 0)
    older = pc.less(rows.column(time_column).cast(pa.timestamp("us")).cast(pa.int64()), cutoff_us)
    return rows.filter(pc.invert(pc.fill_null(older, False)))


class Unreadable(Exception):
    """A payload that is not what was written."""


def decode_payload(payload: Payload, state: TableState, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The rows of a payload, or these columns of them, as the table's schema has them now.

    Unreadable when it is not what was written.
    """
    written = state.schemas.get(payload.ref.schema_version)
    if written is None:
        raise Conflict(f"table {state.table.name!r} has rows of a schema that is not known here", kind="schema_moved")
    if columns is None:
        rows = _decode(payload, batch_arrow(written, state.table))
    else:
        names = [name for name in (name_in(written, state.schema.column(one)) for one in columns) if name is not None]
        shape = stored_schema(written)
        rows = _decode(payload, pa.schema([shape.field(name) for name in names]), names)
    if written == state.schema:
        return rows
    shown = state.schema.columns if columns is None else [state.schema.column(name) for name in columns]
    return reshaped(rows, written, shown, _seqs(payload.ref))


def _decode(payload: Payload, wanted: pa.Schema, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    if checksum(payload.payload) != payload.checksum:
        raise Unreadable("its bytes have changed since they were written (wrong checksum)")
    try:
        batch = decode(payload.payload) if columns is None else decode_columns(payload.payload, columns)
    except (StrandError, pa.ArrowException, ValueError) as error:
        raise Unreadable(f"it is not an Arrow stream ({error})") from error
    fits = batch.schema.equals(wanted) or batch.schema.equals(pa.schema([*wanted, *origin_fields()]))
    if batch.num_rows != payload.ref.rows or not fits:
        raise Unreadable(
            f"it holds {batch.num_rows} rows of another shape than its table, instead of {payload.ref.rows}"
        )
    return batch


def _stamp(batch: pa.RecordBatch, ref: BatchRef, stored: int, table: Table) -> pa.RecordBatch:
    """Put what the ledger knows between the user's columns and those of a forwarded row."""
    at = pa.repeat(pa.scalar(ref.at_us, pa.timestamp("us", "UTC")), ref.rows)
    actor = pa.repeat(pa.scalar(ref.actor, pa.string()), ref.rows)
    columns, names = [*batch.columns[:stored], _seqs(ref), at, actor], [*batch.schema.names[:stored], SEQ, AT, ACTOR]
    if table.key:
        columns.append(pa.repeat(pa.scalar(ref.commit_id, pa.string()), ref.rows))
        names.append(COMMIT)
    if table.inbound:
        fields = origin_fields()
        columns += batch.columns[stored:] or [pa.nulls(ref.rows, field.type) for field in fields]
        names += [field.name for field in fields]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _seqs(ref: BatchRef) -> pa.Array:
    return pa.array(range(ref.first_seq, ref.last_seq + 1), pa.int64())
