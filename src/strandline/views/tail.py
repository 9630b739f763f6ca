"""The tail as Arrow: payloads checked, decoded and stamped with what the ledger knows of them.

A payload holds the rows alone. `_seq`, `_at` and `_actor` belong to the batch, because they are given in the
transaction that makes it durable, after the rows were encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from strandline.errors import StrandError
from strandline.ledger.batches import read_payloads
from strandline.ledger.encode import checksum
from strandline.ledger.ledger import Ledger
from strandline.model.tables import BatchRef, Payload
from strandline.model.types import ACTOR, AT, SEQ
from strandline.model.wire import decode, decode_columns

OnUnreadable = Callable[[BatchRef, str], None]


def read_batches(
    ledger: Ledger,
    refs: Sequence[BatchRef],
    schema: pa.Schema,
    on_unreadable: OnUnreadable,
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """These batches with `_seq`, `_at` and `_actor`, in seq order; one that can't be read is reported and left out.

    With `columns`, only these are decoded, and `_seq` is always there.
    """
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    for payload in read_payloads(ledger, refs):
        try:
            batch = _decode(payload, wanted, columns)
        except Unreadable as error:
            on_unreadable(payload.ref, str(error))
            continue
        yield _stamp(batch, payload.ref, only_seq=columns is not None)


class Unreadable(Exception):
    """A payload that is not what was written."""


def _decode(payload: Payload, wanted: pa.Schema, columns: Sequence[str] | None) -> pa.RecordBatch:
    if checksum(payload.payload) != payload.checksum:
        raise Unreadable("its bytes have changed since they were written (wrong checksum)")
    try:
        batch = decode(payload.payload) if columns is None else decode_columns(payload.payload, columns)
    except (StrandError, pa.ArrowException, ValueError) as error:
        raise Unreadable(f"it is not an Arrow stream ({error})") from error
    if batch.num_rows != payload.ref.rows or not batch.schema.equals(wanted):
        raise Unreadable(
            f"it holds {batch.num_rows} rows of another shape than its table, instead of {payload.ref.rows}"
        )
    return batch


def _stamp(batch: pa.RecordBatch, ref: BatchRef, *, only_seq: bool) -> pa.RecordBatch:
    seqs = pa.array(range(ref.first_seq, ref.last_seq + 1), pa.int64())
    if only_seq:
        return pa.RecordBatch.from_arrays([*batch.columns, seqs], names=[*batch.schema.names, SEQ])
    at = pa.repeat(pa.scalar(ref.at_us, pa.timestamp("us", "UTC")), ref.rows)
    actor = pa.repeat(pa.scalar(ref.actor, pa.string()), ref.rows)
    return pa.RecordBatch.from_arrays([*batch.columns, seqs, at, actor], names=[*batch.schema.names, SEQ, AT, ACTOR])
