"""An Arrow stream from a client that is not trusted.

Arrow can say much with few bytes: buffers compressed inside the stream, dictionaries, runs, views, columns of nulls,
lists of empty structs. Each of them lets a small body become more than the machine has. What is taken here is what
takes its room as it lies: plain columns, with no more values than one request may have.

The stream's messages are walked before PyArrow makes arrays of them, and what they announce is counted. Then the arrays
are checked whole (`sound`), before anything else is done with them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import ipc

from strandline.errors import BadRequest, TooLarge, Unsupported
from strandline.model.limits import MAX_CELLS, MAX_ROWS, too_many
from strandline.model.values.sound import SoundRows, check_schema, readable, sound

_HINT = "Send plain columns: decode dictionaries, runs and views before, and compress with Content-Encoding."
_STREAM_HINT = "Send Arrow IPC's stream format."

MAX_BATCHES = 10_000
MAX_METADATA_BYTES = 4 << 20
"""Of the schema, or of what one batch says of its buffers. PyArrow makes a hundred times as much of it."""

Body: TypeAlias = bytes | bytearray | memoryview


def read_stream(body: Body) -> SoundRows:
    """The rows of an Arrow IPC stream, checked."""
    with readable("the body, as an Arrow stream,", _STREAM_HINT):
        try:
            _check_messages(body)
            with ipc.open_stream(body) as reader:
                check_schema(reader.schema)
                for field in reader.schema:
                    _check_type(field.type, field.name, top=True)
                table = reader.read_all()
        except OSError as error:
            raise BadRequest(f"the body is not an Arrow stream: {error}", hint=_STREAM_HINT) from error
    return sound(table)


def _check_type(type_: pa.DataType, name: str, *, top: bool) -> None:
    if pat.is_null(type_) and top:
        return
    if isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
    nested = pat.is_list(type_) or pat.is_large_list(type_) or pat.is_struct(type_) or pat.is_map(type_)
    if nested:
        for place in range(type_.num_fields):
            _check_type(type_.field(place).type, name, top=False)
        return
    views = pat.is_string_view(type_) or pat.is_binary_view(type_)
    if views or pat.is_nested(type_) or pat.is_dictionary(type_) or pat.is_null(type_) or _is_run_end(type_):
        raise Unsupported(f"column {name!r}: Arrow type {type_} is not taken over HTTP", hint=_HINT)


def _is_run_end(type_: pa.DataType) -> bool:
    return bool(pat.is_run_end_encoded(type_))


def _check_messages(body: Body) -> None:
    """A schema, then batches that are neither compressed nor say that they have more than a request may."""
    rows = cells = batches = 0
    for number, message in enumerate(ipc.MessageReader.open_stream(pa.BufferReader(body))):
        if message.metadata.size > MAX_METADATA_BYTES:
            raise TooLarge(f"the Arrow stream has a message with {message.metadata.size} bytes of metadata")
        if message.type not in ("schema", "record batch") or (message.type == "schema") != (number == 0):
            raise Unsupported(f"the Arrow stream has a {message.type} where a batch is expected", hint=_HINT)
        if number == 0:
            continue
        batch = _announced(message.metadata.to_pybytes())
        batches, rows, cells = batches + 1, rows + batch.rows, cells + batch.cells
        if batch.is_compressed:
            raise Unsupported("the Arrow stream's buffers are compressed inside", hint=_HINT)
        if batches > MAX_BATCHES:
            raise too_many("the request", "batches", MAX_BATCHES)
        if rows > MAX_ROWS:
            raise too_many("the request", "rows", MAX_ROWS)
        if cells > MAX_CELLS:
            raise too_many("the request", "values", MAX_CELLS)


@dataclass(frozen=True)
class _Batch:
    """What a record batch says of itself: its rows, the values of all its arrays, and whether it is compressed."""

    rows: int
    cells: int
    is_compressed: bool


def _announced(metadata: bytes) -> _Batch:
    """PyArrow tells none of it, so the message's own table is looked into."""
    try:
        header = _field(metadata, _u32(metadata, 0), 2)
        if header is None:
            raise _unreadable()
        batch = header + _u32(metadata, header)
        rows_at, nodes_at = _field(metadata, batch, 0), _field(metadata, batch, 1)
        rows = 0 if rows_at is None else _i64(metadata, rows_at)
        lengths: list[int] = []
        if nodes_at is not None:
            nodes = nodes_at + _u32(metadata, nodes_at)
            lengths = [_i64(metadata, nodes + 4 + 16 * place) for place in range(_u32(metadata, nodes))]
    except struct.error:
        raise _unreadable() from None
    if rows < 0 or any(length < 0 for length in lengths):
        raise _unreadable()
    return _Batch(rows, sum(lengths), _field(metadata, batch, 3) is not None)


def _unreadable() -> BadRequest:
    return BadRequest("the Arrow stream has a record batch that can't be read")


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a flatbuffer's table keeps a field; None if it has none."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    slot = 4 + 2 * number
    offset = _u16(data, vtable + slot) if slot + 2 <= _u16(data, vtable) else 0
    return table + offset if offset else None


def _u16(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<H", data, at)[0])


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _i64(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<q", data, at)[0])
