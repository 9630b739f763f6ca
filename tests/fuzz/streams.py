"""Well-formed Arrow streams, and what can be wrong with each: the n-th stream is the same in every run of a seed.

First comes one fault at a time, at every place that says where something lies: each buffer's offset and length, each
array's length and count of nulls, each batch's rows, each word of the schema and of the bodies, with values that are
wrong in many ways. The rest are several faults at once, cut, repeated and shuffled messages, at random.
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

WRONG = (0, 1, -1, 2, 7, 8, 63, 64, 1024, 65_536, 2**24, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))
NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Seed:
    """A stream that is right, and which ways in take it."""

    name: str
    body: bytes
    ways: tuple[str, ...]

    @cached_property
    def places(self) -> list[tuple[int, str]]:
        """Where a number can be wrong, each with how it is written."""
        return [place for message in messages(self.body) for place in message.places()]

    def single_faults(self, seed: int) -> Iterator[bytes]:
        """The stream with one number changed: every number, by every wrong value, in an order of its own."""
        faults = [(at, form, value) for at, form in self.places for value in self._wrong(at, form)]
        random.Random(f"{seed}:{self.name}").shuffle(faults)
        yield from cuts(self.body)
        for at, form, value in faults:
            yield changed(self.body, at, form, value)

    def _wrong(self, at: int, form: str) -> set[int]:
        (right,) = struct.unpack_from(form, self.body, at)
        near = {right - 1, right + 1, right // 2, right * 2}
        return ({*near, *WRONG, right - 8, right + 8} if form == "<q" else {*near, 0, -1, 2**31 - 1}) - {right}


def changed(data: bytes, at: int, form: str, value: int) -> bytes:
    """The same bytes with another number at a place, cut to its size."""
    size = struct.calcsize(form)
    return data[:at] + (value & ((1 << 8 * size) - 1)).to_bytes(size, "little") + data[at + size :]


@dataclass(frozen=True)
class Message:
    """Where a message of a stream lies: its metadata, its body."""

    start: int
    metadata: int
    body: int
    end: int

    def places(self) -> Iterator[tuple[int, str]]:
        """The numbers of a message: its size, and whatever words its metadata and its body have."""
        yield self.start + 4, "<i"
        yield from ((at, "<i") for at in range(self.metadata, self.body - 3, 4))
        yield from ((at, "<q") for at in range(self.metadata, self.body - 7, 8))
        yield from ((at, "<i") for at in range(self.body, self.end - 3, 4))


def messages(data: bytes) -> list[Message]:
    """The messages of a stream that is right."""
    listed, at = [], 0
    while at + 8 <= len(data):
        marker, size = struct.unpack_from("<Ii", data, at)
        assert marker == 0xFFFFFFFF
        if size == 0:
            break
        body = at + 8 + size
        end = body + _body_bytes(data[at + 8 : body])
        listed.append(Message(at, at + 8, body, end))
        at = end
    return listed


def _body_bytes(metadata: bytes) -> int:
    at = _field(metadata, _u32(metadata, 0), 3)
    return 0 if at is None else int(struct.unpack_from("<q", metadata, at)[0])


def cuts(data: bytes) -> Iterator[bytes]:
    """The stream with a last batch that ends early, and says so: every buffer is inside, and some are too short."""
    last = messages(data)[-1]
    metadata = data[last.metadata : last.body]
    length_at, header = _field(metadata, _u32(metadata, 0), 3), _field(metadata, _u32(metadata, 0), 2)
    assert length_at is not None and header is not None
    buffers_at = _field(metadata, header + _u32(metadata, header), 2)
    assert buffers_at is not None
    buffers = buffers_at + _u32(metadata, buffers_at)
    for size in range(0, last.end - last.body, 8):
        short = changed(metadata, length_at, "<q", size)
        for place in range(_u32(metadata, buffers)):
            at = buffers + 4 + 16 * place
            offset, length = struct.unpack_from("<qq", metadata, at)
            short = changed(
                changed(short, at, "<q", min(offset, size)), at + 8, "<q", max(0, min(length, size - offset))
            )
        yield data[: last.metadata] + short + data[last.body : last.body + size]


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a flatbuffer's table keeps a field."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size, slot = struct.unpack_from("<H", data, vtable)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot + 2 <= size else 0
    return table + int(offset) if offset else None


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def stream(*batches: pa.RecordBatch, **options: Any) -> bytes:
    """Batches as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


COLUMNS = {
    "id": "string", "flag": "boolean?", "n": "long?", "x": "double?", "ts": "timestamp?", "day": "date?",
    "tags": "list<string?>?", "pair": "struct<a: int?, b: string?>?", "counts": "map<string, long>?",
    "price": "decimal(10,2)?", "raw": "binary?", "doc": "json?",
}  # fmt: skip


def plain(start: int, stop: int) -> pa.RecordBatch:
    """Rows in plain columns of every type that a table has."""
    numbers = list(range(start, stop))
    return pa.record_batch({
        "id": pa.array([f"row {n}" for n in numbers]),
        "flag": pa.array([n % 3 == 0 for n in numbers]),
        "n": pa.array([None if n % 5 == 0 else n for n in numbers], pa.int64()),
        "x": pa.array([n / 4 for n in numbers]),
        "ts": pa.array([NOW] * len(numbers), pa.timestamp("us", "UTC")),
        "day": pa.array([NOW.date()] * len(numbers)),
        "tags": pa.array([["a", None, f"t{n}"][: n % 4] for n in numbers], pa.list_(pa.string())),
        "pair": pa.array([{"a": n, "b": f"b{n}"} for n in numbers], pa.struct([("a", pa.int32()), ("b", pa.string())])),
        "counts": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
        "price": pa.array([decimal.Decimal(n).scaleb(-2) for n in numbers], pa.decimal128(10, 2)),
        "raw": pa.array([b"\xff" * (n % 3) for n in numbers]),
        "doc": pa.array(['{"k": 1}'] * len(numbers)),
    })  # fmt: skip


def few(start: int, stop: int) -> pa.RecordBatch:
    """Rows of few columns, so that a short run changes each of their numbers."""
    numbers = range(start, stop)
    return pa.record_batch({"id": [f"row {n}" for n in numbers], "flag": [n % 3 == 0 for n in numbers]})


def forwarded(start: int, stop: int) -> pa.RecordBatch:
    """Rows as another lake sends them."""
    numbers = list(range(start, stop))
    return pa.record_batch({
        "_seq": pa.array([n + 1 for n in numbers], pa.int64()),
        "_at": pa.array([NOW] * len(numbers), pa.timestamp("us", "UTC")),
        "_actor": pa.array(["ann"] * len(numbers)),
        "id": pa.array([f"row {n}" for n in numbers]),
        "_extra": pa.array(['{"odd": [1, 2]}' if n % 2 else None for n in numbers]),
    })  # fmt: skip


def odd(start: int, stop: int) -> pa.RecordBatch:
    """Columns that a table does not have, or has as another type."""
    numbers = list(range(start, stop))
    return pa.record_batch({
        "id": pa.array([f"row {n}" for n in numbers], pa.large_string()),
        "n": pa.array(numbers, pa.uint8()),
        "ts": pa.array([NOW] * len(numbers), pa.timestamp("ns", "Europe/Berlin")),
        "flag": pa.nulls(len(numbers)),
        "tags": pa.array([[str(n)] for n in numbers], pa.large_list(pa.large_string())),
        "half": pa.array([1.5] * len(numbers), pa.float16()),
        "clock": pa.array(numbers, pa.time32("s")),
        "span": pa.array(numbers, pa.duration("ms")),
        "wide": pa.array([b"12345678"] * len(numbers), pa.binary(8)),
        "deep": pa.array([[{"k": [n]}] for n in numbers], pa.list_(pa.struct([("k", pa.list_(pa.int16()))]))),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[1]"] * len(numbers))),
    })  # fmt: skip


def encoded(start: int, stop: int) -> pa.RecordBatch:
    """What only Python and files bring: dictionaries, runs, views, unions, lists of one size."""
    numbers = list(range(start, stop))
    count = len(numbers)
    views = pa.array([f"a text that is longer than twelve bytes {n}" for n in numbers], pa.string_view())
    union = pa.UnionArray.from_sparse(
        pa.array([n % 2 for n in numbers], pa.int8()), [pa.array(numbers), pa.array([str(n) for n in numbers])]
    )
    dense = pa.UnionArray.from_dense(
        pa.array([0] * count, pa.int8()), pa.array(range(count), pa.int32()), [pa.array(numbers), pa.array(["x"])]
    )
    return pa.record_batch({
        "id": pa.array([f"row {n % 3}" for n in numbers]).dictionary_encode(),
        "flag": pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), pa.array([True])),
        "text": views,
        "bytes": views.cast(pa.binary_view()),
        "tags": pa.array([["a", "b"]] * count, pa.list_(pa.string(), 2)),
        "listed": pa.array([["a", "b"]] * count, pa.list_view(pa.string())),
        "union": union,
        "dense": dense,
        "coded": pa.array([["a", "b"]] * count, pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    })  # fmt: skip


@lru_cache(maxsize=1)
def seeds() -> tuple[Seed, ...]:
    """The streams that faults are put into."""
    outside = ("append", "table", "batches", "file")
    return (
        Seed("few", stream(few(0, 8), few(8, 136)), ("append",)),
        Seed("forwarded", stream(forwarded(0, 5), forwarded(5, 9)), ("receive",)),
        Seed("plain", stream(plain(0, 7), plain(7, 16)), outside),
        Seed("odd", stream(odd(0, 6), odd(6, 9)), outside),
        Seed("encoded", stream(encoded(0, 6), encoded(6, 9)), outside),
        Seed("lz4", stream(plain(0, 64), compression="lz4"), outside),
        Seed("zstd", stream(plain(0, 64), compression="zstd"), outside),
    )


def mutants(seed: int, start: int, stop: int) -> Iterator[tuple[int, Seed, str, bytes]]:
    """The streams `start` to `stop - 1`, each with its number, what it was made of and its way in."""
    faults = [seed.single_faults(seed) for seed in seeds()]
    for number in range(stop):
        turn, base = number // len(faults), seeds()[number % len(faults)]
        way = base.ways[turn % len(base.ways)]
        single = next(faults[number % len(faults)], None)
        if number >= start:
            body = single if single is not None else _several(base, random.Random(f"{seed}:{number}"))
            yield number, base, way, body


def _several(base: Seed, chance: random.Random) -> bytes:
    data = bytearray(base.body)
    for _ in range(chance.choice((1, 2, 2, 3, 5))):
        _one_fault(base, data, chance)
    return bytes(data)


def _one_fault(base: Seed, data: bytearray, chance: random.Random) -> None:
    kind = chance.random()
    if kind < 0.5:
        at, form = chance.choice(base.places)
        if at + struct.calcsize(form) <= len(data):
            wrong = chance.choice((chance.choice(WRONG), chance.randrange(-300, 300), chance.getrandbits(64)))
            data[:] = changed(bytes(data), at, form, wrong)
    elif kind < 0.8:
        for _ in range(chance.choice((1, 1, 2, 8))):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.getrandbits(8)))
    elif kind < 0.9:
        listed = [bytes(base.body[message.start : message.end]) for message in messages(base.body)]
        chosen = [chance.choice(listed) for _ in range(chance.randrange(1, 5))]
        data[:] = b"".join([*listed[: chance.randrange(1, len(listed) + 1)], *chosen])
    else:
        del data[chance.randrange(len(data)) + 1 :]
