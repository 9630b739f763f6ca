"""An Arrow stream from somebody who is not trusted.

Arrow can say much with few bytes: buffers compressed inside the stream, dictionaries, runs, views, columns of nulls.
Each of them lets a small body become more than the machine has. What is taken here is what takes its room as it lies:
plain columns, at most as large as the body that carried them.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import ipc

from strandline.errors import BadRequest, TooLarge, Unsupported

_HINT = "Send plain columns: decode dictionaries, runs and views before, and compress with Content-Encoding."


def read_stream(body: bytes) -> pa.Table:
    """The rows of an Arrow IPC stream."""
    try:
        with ipc.open_stream(body) as reader:
            for field in reader.schema:
                _check_type(field.type, field.name, top=True)
        _refuse_compressed(body)
        with ipc.open_stream(body) as reader:
            table = reader.read_all()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise BadRequest(f"the body is not an Arrow stream: {error}", hint="Send Arrow IPC's stream format.") from error
    if table.num_rows > len(body):
        raise TooLarge(f"the Arrow stream claims {table.num_rows} rows in {len(body)} bytes")
    return table


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


def _refuse_compressed(body: bytes) -> None:
    for message in ipc.MessageReader.open_stream(pa.BufferReader(body)):
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise Unsupported("the Arrow stream's buffers are compressed inside", hint=_HINT)


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch names a codec. PyArrow does not tell, so the message's own table is looked into."""
    try:
        message = struct.unpack_from("<I", metadata)[0]
        batch = _field(metadata, message, 2)
        assert batch is not None
        batch += struct.unpack_from("<I", metadata, batch)[0]
        return _field(metadata, batch, 3) is not None
    except (struct.error, AssertionError):
        raise BadRequest("the Arrow stream has a record batch that can't be read") from None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a flatbuffer's table keeps a field; None if it has none."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot + 2 <= size else 0
    return table + offset if offset else None
