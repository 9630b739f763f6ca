"""Rows of any accepted kind as validated batches, ready to be stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from strandline.errors import BadRequest, InvalidRows, TooLarge
from strandline.ledger.appends import NewBatch
from strandline.model import rows as rules
from strandline.model.ids import new_id
from strandline.model.partitions import partitions
from strandline.model.tables import Table, TableState
from strandline.model.wire import decode, encode, to_json_lines

Rows: TypeAlias = Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch | pa.RecordBatchReader

BATCH_ROWS = 100_000
BATCH_BYTES = 64 << 20
APPEND_BYTES = 256 << 20
CHECKSUM_BYTES = 16


def checksum(payload: bytes) -> bytes:
    """What is stored beside a payload, to notice when it changes."""
    return hashlib.sha256(payload).digest()[:CHECKSUM_BYTES]


def digest_rows(batches: Sequence[NewBatch]) -> str:
    """A digest of the rows themselves, whatever they came as and however they are cut and encoded."""
    told = hashlib.blake2b(digest_size=16)
    for batch in batches:
        for line in to_json_lines(decode(batch.payload)):
            told.update(line)
    return told.hexdigest()


def encode_rows(rows: Rows, state: TableState) -> list[NewBatch]:
    """Rows of any accepted kind as validated, encoded batches; InvalidRows when one of them does not fit."""

    def validated() -> Iterator[pa.RecordBatch]:
        start = 0
        for piece in _pieces(rows):
            yield (batch := _validated(piece, state, start))
            start += batch.num_rows

    return _encode_all(validated(), state.table)


def encode_lines(lines: Iterable[bytes], state: TableState) -> list[NewBatch]:
    """The same for JSON lines, a bounded number of them at a time."""
    validated = (
        rules.from_json_lines(chunk, state.schema, extra=state.table.extra, start=start)
        for start, chunk in _line_chunks(lines)
    )
    return _encode_all(validated, state.table)


def few_objects(lines: list[bytes], most: int) -> list[dict[str, Any]] | None:
    """What up to so many lines hold, for a leader to validate with others' rows; None where it has to be done alone.

    That is where there are more, and where an error in one could not be told by its line: the objects' places are the
    lines' only without bad lines, and without blank ones before the end.
    """
    if len(lines) > most + 1:
        return None
    try:
        objects = rules.read_objects(lines)
    except InvalidRows:
        return None
    return None if len(objects) > most or any(line.strip() for line in lines[len(objects) :]) else objects


def _line_chunks(lines: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Lines in chunks, each with the index of its first line."""
    start, size_bytes = 0, 0
    chunk: list[bytes] = []
    for line in lines:
        if len(chunk) >= BATCH_ROWS or (chunk and size_bytes + len(line) > BATCH_BYTES):
            yield start, chunk
            start, size_bytes, chunk = start + len(chunk), 0, []
        chunk.append(line)
        size_bytes += len(line)
    if chunk:
        yield start, chunk


def _encode_all(validated: Iterable[pa.RecordBatch], table: Table) -> list[NewBatch]:
    batches: list[NewBatch] = []
    size_bytes = 0
    for batch in validated:
        encoded = encode_batch(batch, table)
        size_bytes += sum(len(part.payload) for part in encoded)
        if size_bytes > APPEND_BYTES:
            raise TooLarge(
                f"one append takes {APPEND_BYTES >> 20} MiB at the most",
                hint="Append in smaller calls, or use `strand load`, which takes files of any size.",
            )
        batches.extend(encoded)
    return batches


def _pieces(rows: Rows) -> Iterable[Any]:
    if isinstance(rows, pa.RecordBatchReader):
        yield from rows
    elif isinstance(rows, pa.Table):
        yield from rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
    elif isinstance(rows, pa.RecordBatch):
        yield rows
    elif isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise BadRequest(
            f"rows are {type(rows).__name__}, not rows", hint="Pass a list of dicts, an Arrow table or a reader."
        )
    else:
        listed = rows if isinstance(rows, Sequence) else list(rows)
        for at in range(0, len(listed), BATCH_ROWS):
            yield listed[at : at + BATCH_ROWS] if len(listed) > BATCH_ROWS else listed


def _validated(piece: Any, state: TableState, start: int) -> pa.RecordBatch:
    take: Callable[..., pa.RecordBatch] = (
        rules.from_arrow if isinstance(piece, pa.RecordBatch | pa.Table) else rules.from_dicts
    )
    return take(piece, state.schema, extra=state.table.extra, start=start)


def encode_batch(batch: pa.RecordBatch, table: Table) -> list[NewBatch]:
    """One batch, or several where one payload would be too large for a ledger row; none when there are no rows."""
    if batch.num_rows == 0:
        return []
    if batch.num_rows > 1 and batch.nbytes > BATCH_BYTES:
        half = batch.num_rows // 2
        return encode_batch(batch.slice(0, half), table) + encode_batch(batch.slice(half), table)
    payload = encode(batch)
    return [NewBatch(new_id(), batch.num_rows, payload, checksum(payload), partitions(batch, table.partition_by))]
