"""Validated rows as batches, ready to be stored."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from strandline.ledger.appends import NewBatch
from strandline.model.ids import new_id
from strandline.model.partitions import partitions
from strandline.model.tables import Table
from strandline.model.wire import encode

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 64 << 20


def checksum(payload: bytes) -> bytes:
    """What is stored beside a payload, to notice when it changes."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def encode_batch(batch: pa.RecordBatch, table: Table) -> list[NewBatch]:
    """One batch, or several where one payload would be too large for a ledger row; none when there are no rows."""
    if batch.num_rows == 0:
        return []
    if batch.nbytes > BATCH_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        return encode_batch(batch.slice(0, half), table) + encode_batch(batch.slice(half), table)
    payload = encode(batch)
    return [NewBatch(new_id(), batch.num_rows, payload, checksum(payload), partitions(batch, table.partition_by))]
