"""A batch as bytes: Arrow IPC for the ledger, JSON lines for people and exports.

JSON has no binary, no decimals and no times, so these become text that `rows.from_json_lines` reads back to the same
batch. Values of type json are embedded as they are, not quoted.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Iterator, Sequence

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import ipc

from strandline.errors import Damaged, NotFound, nearest
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import EXTRA, List, Map, Primitive, Struct, Type
from strandline.model.values.arrow import TIMESTAMP, is_bytes, is_list
from strandline.model.values.user_rows import Value

COMPRESS_BYTES = 256 * 1024
"""Below this, compressing costs more than the bytes are worth: they leave the ledger again with the next flush."""

ROWS_AT_ONCE = 4096

_PLAIN = ipc.IpcWriteOptions()
_LZ4 = ipc.IpcWriteOptions(compression="lz4")
_JSON = Primitive("json")

Say = Callable[[Value], Value]


def encode(batch: pa.RecordBatch) -> bytes:
    """The batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    # Its buffers are counted at once, but may be shared with other batches; `nbytes`, its own part of them, takes twice
    # as long as to encode one row.
    large = batch.get_total_buffer_size() >= COMPRESS_BYTES and batch.nbytes >= COMPRESS_BYTES
    options = _LZ4 if large else _PLAIN
    with ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def decode(payload: bytes) -> pa.RecordBatch:
    """The batch that `encode` was given; Damaged if the bytes are not one."""
    return _read(payload, None)


def decode_columns(payload: bytes, names: Sequence[str]) -> pa.RecordBatch:
    """Only these columns, in this order; the others are not decompressed."""
    return _read(payload, names)


def _read(payload: bytes, names: Sequence[str] | None) -> pa.RecordBatch:
    try:
        with ipc.open_stream(payload) as reader:
            if names is None:
                return _checked(reader.read_next_batch())
            positions = _positions(reader.schema, names)
        with ipc.open_stream(payload, options=ipc.IpcReadOptions(included_fields=positions)) as reader:
            return _checked(reader.read_next_batch()).select(list(names))
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise Damaged(f"a batch of {len(payload)} bytes can't be read: {error}") from error


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A checksum tells that bytes are as they were written, and not that they were written by us."""
    batch.validate(full=True)
    return batch


def _positions(schema: pa.Schema, names: Sequence[str]) -> list[int]:
    for name in names:
        if name not in schema.names:
            raise NotFound(f"the batch has no column {name!r}", hint=nearest(name, schema.names))
    return sorted({schema.names.index(name) for name in names})


def to_json_lines(data: pa.RecordBatch | pa.Table, schema: Schema | None = None) -> Iterator[bytes]:
    """A line per row, newline included. `schema` says which columns are json; `_extra` always is."""
    types = {column.name: column.type for column in schema.columns} if schema else {}
    types[EXTRA] = _JSON
    names = data.schema.names
    batches = data.to_batches(max_chunksize=ROWS_AT_ONCE) if isinstance(data, pa.Table) else _slices(data)
    for batch in batches:
        columns = [jsonable(batch.column(i), types.get(name)) for i, name in enumerate(names)]
        for row in zip(*columns, strict=True):
            yield orjson.dumps(dict(zip(names, row, strict=True)), option=orjson.OPT_APPEND_NEWLINE)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for offset in range(0, batch.num_rows, ROWS_AT_ONCE):
        yield batch.slice(offset, ROWS_AT_ONCE)


def jsonable(array: pa.Array, type_: Type | None = None) -> list[Value]:
    """The array's values as JSON can say them; `type_` is needed only to know what is json."""
    if array.type == TIMESTAMP:
        return list(pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1).to_pylist())
    say = _sayer(array.type, type_)
    values = list(array.to_pylist())
    return values if say is None else [None if value is None else say(value) for value in values]


def _sayer(arrow: pa.DataType, type_: Type | None) -> Say | None:
    """How a value is said, or None for those that JSON has itself."""
    if type_ == _JSON:
        return _fragment
    if pat.is_dictionary(arrow):
        return _sayer(arrow.value_type, type_)
    if pat.is_nested(arrow):
        return _nested_sayer(arrow, type_)
    return next((say for holds, say in _SAYERS if holds(arrow)), None)


def _nested_sayer(arrow: pa.DataType, type_: Type | None) -> Say | None:
    if pat.is_map(arrow):
        return _map_sayer(arrow, type_)
    if pat.is_struct(arrow):
        return _struct_sayer(arrow, type_)
    element = _sayer(arrow.value_type, type_.element if isinstance(type_, List) else None) if is_list(arrow) else None
    return None if element is None else lambda value: [_say(element, item) for item in value]


def _struct_sayer(arrow: pa.DataType, type_: Type | None) -> Say:
    types = {field.name: field.type for field in type_.fields} if isinstance(type_, Struct) else {}
    says = {field.name: _sayer(field.type, types.get(field.name)) for field in arrow}
    return lambda value: {name: _say(say, value[name]) for name, say in says.items()}


def _map_sayer(arrow: pa.DataType, type_: Type | None) -> Say:
    """An object where the keys are text, else a list of pairs."""
    key = _sayer(arrow.key_type, None)
    item = _sayer(arrow.item_type, type_.value if isinstance(type_, Map) else None)
    if pat.is_string(arrow.key_type):
        return lambda value: {name: _say(item, inside) for name, inside in value}
    return lambda value: [[_say(key, name), _say(item, inside)] for name, inside in value]


def _say(say: Say | None, value: Value) -> Value:
    return value if value is None or say is None else say(value)


def _fragment(text: str) -> orjson.Fragment:
    """JSON text as it is, but on one line: a line break can only stand between its tokens."""
    return orjson.Fragment(text.replace("\n", " ").replace("\r", " "))


def _moment(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(dt.UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


_SAYERS: tuple[tuple[Callable[[pa.DataType], bool], Say], ...] = (
    (pat.is_timestamp, _moment),
    (pat.is_date, dt.date.isoformat),
    (pat.is_temporal, str),
    (pat.is_decimal, lambda value: format(value, "f")),
    (is_bytes, lambda value: base64.b64encode(value).decode()),
)
