"""Avro files, read and written whole: Iceberg keeps its lists of manifests and its manifests in them.

`strand doctor` reads them, to compare what Iceberg says with what the ledger says where there may be no JVM; a lake
that gets another place has them written again. So this is the smallest codec that can: the schema in the file's header
says what follows, and rows are dictionaries. A file that is cut or changed is a ValueError that says where.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

AvroValue: TypeAlias = "bool | int | float | str | bytes | list[AvroValue] | dict[str, AvroValue] | None"
AvroRecord: TypeAlias = "Mapping[str, AvroValue]"
"""A record as its file's own schema says it is: which fields there are is known to the reader alone."""

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16


def read_records(data: bytes) -> list[AvroRecord]:
    """Every record of an Avro file."""
    return read_container(data)[1]


def read_container(data: bytes) -> tuple[Mapping[str, bytes], list[AvroRecord]]:
    """The header of an Avro file, and every record of it."""
    if not data.startswith(_MAGIC):
        raise ValueError("it is not an Avro file")
    source = _Source(data, len(_MAGIC))
    header = _read_map({"values": "bytes"}, source, {})
    schema = orjson.loads(header["avro.schema"])
    codec = header.get("avro.codec", b"null").decode()
    sync = source.take(_SYNC_BYTES)
    records: list[AvroRecord] = []
    while not source.at_end:
        count, size = source.long(), source.long()
        block = _Source(_decompressed(source.take(size), codec), 0)
        named: dict[str, Any] = {}
        records.extend(_read(schema, block, named) for _ in range(count))
        if source.take(_SYNC_BYTES) != sync:
            raise ValueError(f"a block does not end where it should, at byte {source.place:,}")
    return header, records


def write_container(header: Mapping[str, bytes], records: Sequence[AvroRecord]) -> bytes:
    """An Avro file with this header and these records, in one block that is not compressed.

    `write_container(*read_container(data))` says the same as `data`. A union is one of null and another type, as
    Iceberg has them.
    """
    out = bytearray(_MAGIC)
    _write_map({"values": "bytes"}, {**header, "avro.codec": b"null"}, out, {})
    sync = hashlib.md5(bytes(out), usedforsecurity=False).digest()
    out += sync
    if records:
        schema, named, block = orjson.loads(header["avro.schema"]), dict[str, Any](), bytearray()
        for record in records:
            _write(schema, record, block, named)
        out += _zigzag(len(records)) + _zigzag(len(block)) + block + sync
    return bytes(out)


class _Source:
    """Bytes and a place in them."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self.place = place

    @property
    def at_end(self) -> bool:
        return self.place >= len(self._data)

    def take(self, count: int) -> bytes:
        if count < 0 or self.place + count > len(self._data):
            raise ValueError(f"it ends in the middle, after {len(self._data):,} bytes")
        self.place += count
        return self._data[self.place - count : self.place]

    def long(self) -> int:
        """A number in zigzag, seven bits a byte."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise ValueError(f"a number has too many digits, at byte {self.place:,}")


def _decompressed(block: bytes, codec: str) -> bytes:
    try:
        if codec == "deflate":
            return zlib.decompress(block, -zlib.MAX_WBITS)
        if codec == "zstandard":
            import zstandard

            return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(block))
    except Exception as error:  # each library has its own
        raise ValueError(f"a block can't be decompressed: {error}") from error
    if codec == "null":
        return block
    raise ValueError(f"its codec is {codec}")


def _read(schema: Any, source: _Source, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        place = source.long()
        if not 0 <= place < len(schema):
            raise ValueError(f"a union has no member {place}, at byte {source.place:,}")
        return _read(schema[place], source, named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _read(kind, source, named)
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = schema
    if kind in _SIMPLE:
        return _SIMPLE[kind](source)
    if kind in _NESTED:
        return _NESTED[kind](schema, source, named)
    if kind in named:
        return _read(named[kind], source, named)
    raise ValueError(f"a type {kind!r} is not known")


def _read_record(schema: Any, source: _Source, named: dict[str, Any]) -> dict[str, Any]:
    return {field["name"]: _read(field["type"], source, named) for field in schema["fields"]}


def _read_array(schema: Any, source: _Source, named: dict[str, Any]) -> list[Any]:
    return [_read(schema["items"], source, named) for _ in _items(source)]


def _read_map(schema: Any, source: _Source, named: dict[str, Any]) -> dict[str, Any]:
    return {_text(source): _read(schema["values"], source, named) for _ in _items(source)}


def _items(source: _Source) -> Any:
    """Once for every item of an array or a map: they come in runs, the last of which is empty."""
    while (count := source.long()) != 0:
        if count < 0:
            source.long()  # the run's size in bytes, for readers that skip it
        for _ in range(abs(count)):
            yield None


def _read_fixed(schema: Any, source: _Source, _named: dict[str, Any]) -> bytes:
    return source.take(int(schema["size"]))


def _bytes(source: _Source) -> bytes:
    return source.take(source.long())


def _text(source: _Source) -> str:
    return _bytes(source).decode()


_SIMPLE: dict[str, Callable[[_Source], Any]] = {
    "null": lambda _: None,
    "boolean": lambda source: source.take(1) != b"\0",
    "int": _Source.long,
    "long": _Source.long,
    "float": lambda source: struct.unpack("<f", source.take(4))[0],
    "double": lambda source: struct.unpack("<d", source.take(8))[0],
    "bytes": _bytes,
    "string": _text,
}
_NESTED: dict[str, Callable[[Any, _Source, dict[str, Any]], Any]] = {
    "record": _read_record,
    "array": _read_array,
    "map": _read_map,
    "fixed": _read_fixed,
}


# -- writing -----------------------------------------------------------------------------------------------------------


def _zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _write(schema: Any, value: Any, out: bytearray, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        is_null = value is None
        place = next(number for number, member in enumerate(schema) if (member == "null") == is_null)
        out += _zigzag(place)
        _write(schema[place], value, out, named)
        return
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        _write(kind, value, out, named)
        return
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = schema
    if kind in _WRITES:
        out += _WRITES[kind](value)
    elif kind == "record":
        for field in schema["fields"]:
            _write(field["type"], value[field["name"]], out, named)
    elif kind == "array":
        _write_run(value, out, lambda item: _write(schema["items"], item, out, named))
    elif kind == "map":
        _write_map(schema, value, out, named)
    elif kind == "fixed":
        out += value
    elif kind in named:
        _write(named[kind], value, out, named)
    else:
        raise ValueError(f"a type {kind!r} is not known")


def _write_run(items: Sequence[Any], out: bytearray, write: Callable[[Any], None]) -> None:
    if items:
        out += _zigzag(len(items))
        for item in items:
            write(item)
    out += _zigzag(0)


def _write_map(schema: Any, value: Mapping[str, Any], out: bytearray, named: dict[str, Any]) -> None:
    def write(entry: tuple[str, Any]) -> None:
        out.extend(_sized(entry[0].encode()))
        _write(schema["values"], entry[1], out, named)

    _write_run(list(value.items()), out, write)


def _sized(value: bytes) -> bytes:
    return _zigzag(len(value)) + value


_WRITES: dict[str, Callable[[Any], bytes]] = {
    "null": lambda _: b"",
    "boolean": lambda value: b"\1" if value else b"\0",
    "int": _zigzag,
    "long": _zigzag,
    "float": lambda value: struct.pack("<f", value),
    "double": lambda value: struct.pack("<d", value),
    "bytes": _sized,
    "string": lambda value: _sized(value.encode()),
}
