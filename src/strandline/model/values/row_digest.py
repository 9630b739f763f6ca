"""Digests of rows, the same whatever the rows came as.

Two sides that hold the same rows must agree although one has them as Arrow and the other as JSON lines, in other
chunks, with the columns in another order, or with an integer where the other has a double. So a row is written in one
canonical way first: its fields that are not null, sorted by name, each with its length, and each value in one form (1
is 1.0, times are microseconds in UTC, bytes are bytes). A null and a field that is not there are the same.

Flat columns are written by Arrow, a column at a time; nested values and decimals by Python.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from strandline.model.values.user_rows import UserRow, Value

__all__ = ["NO_ROWS", "RowsDigest", "are_among", "digest_of", "is_versioned", "row_digests"]

VERSION = "rows1:"
"""What a digest begins with: one that was made in another way is never equal, and can be told apart."""
ROW_DIGEST_BYTES = 16
NO_ROWS = VERSION + hashlib.sha256().hexdigest()
"""The digest of no rows at all."""
_ROWS_AT_ONCE = 50_000
_EXACT = float(2**53)
"""Below it every whole number has a double of its own."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TEXT = pa.large_binary()


def digest_of(batches: Iterable[pa.RecordBatch], *, without: Collection[str] = (), fields_of: str = "") -> str:
    """The digest of these rows in this order, however they are cut; columns `without` don't count.

    The column `fields_of`, if there is one, is JSON text, whose fields count as fields of the row.
    """
    digest = RowsDigest(without, fields_of)
    for batch in batches:
        digest.add(batch)
    return digest.text()


class RowsDigest:
    """The same for rows that are on their way elsewhere, a batch at a time."""

    def __init__(self, without: Collection[str] = (), fields_of: str = "") -> None:
        self._without = without
        self._fields_of = fields_of
        self._hash = hashlib.sha256()

    def add(self, batch: pa.RecordBatch) -> None:
        """The rows that come next."""
        without, fields_of = self._without, self._fields_of
        for at in range(0, batch.num_rows, _ROWS_AT_ONCE):
            rows = batch.slice(at, _ROWS_AT_ONCE)
            if fields_of in rows.schema.names and rows.column(fields_of).null_count < rows.num_rows:
                for row in rows.to_pylist():
                    self._hash.update(_text(_with_fields(row, without, fields_of)))
            else:
                self._hash.update(_content(_canonical(rows, {*without, fields_of})))

    def text(self) -> str:
        """The digest of all of them."""
        return VERSION + self._hash.hexdigest()


def is_versioned(digest: str) -> bool:
    """Whether a digest says how it was made; those of the first format don't."""
    return ":" in digest


def _with_fields(row: UserRow, without: Collection[str], fields_of: str) -> dict[str, Value]:
    fields = {} if row[fields_of] is None else json.loads(row[fields_of])
    return {**fields, **{name: value for name, value in row.items() if name not in {*without, fields_of}}}


def row_digests(batch: pa.RecordBatch, *, without: Collection[str] = ()) -> list[bytes]:
    """A digest for each row; columns `without` don't count."""
    digests: list[bytes] = []
    for at in range(0, batch.num_rows, _ROWS_AT_ONCE):
        rows = _canonical(batch.slice(at, _ROWS_AT_ONCE), without)
        digests.extend(hashlib.blake2b(row, digest_size=ROW_DIGEST_BYTES).digest() for row in rows.to_pylist())
    return digests


def are_among(
    rows: pa.RecordBatch, others: pa.Table, *, seq: str, at: str, without: Collection[str] = ()
) -> list[bool]:
    """For each row whether it is among others: by its digest, or as an older or newer schema shows it.

    A column that came since with a default, was dropped or renamed makes another digest, and the same row. So one with
    the same seq and the same time is the same row too, unless a field says otherwise that both of them have. Columns
    `without` say nothing.
    """
    others = others.filter(pc.is_in(others.column(seq), value_set=rows.column(seq)))
    digests = {digest for batch in others.to_batches() for digest in row_digests(batch)}
    among = [digest in digests for digest in row_digests(rows)]
    unlike = [place for place, is_there in enumerate(among) if not is_there]
    if not unlike or at not in rows.schema.names or at not in others.schema.names:
        return among
    unmatched = rows.take(pa.array(unlike, pa.int64())).to_pylist()
    by_seq: dict[int, list[dict[str, Value]]] = {}
    for other in others.to_pylist():
        by_seq.setdefault(other[seq], []).append(other)
    for place, row in zip(unlike, unmatched, strict=True):
        among[place] = any(_is_same(row, other, at, without) for other in by_seq.get(row[seq], ()))
    return among


def _is_same(row: UserRow, other: UserRow, at: str, without: Collection[str]) -> bool:
    if row[at] is None or other[at] is None:
        return False
    both = (name for name in row if name not in without and row[name] is not None and other.get(name) is not None)
    return all(_text(row[name]) == _text(other[name]) or _is_cut(row[name], other[name]) for name in both)


def _is_cut(value: Value, stored: Value) -> bool:
    """Whether a number is what a column of 32 bits, which was widened since, had kept of this one."""
    if not isinstance(value, float) or not isinstance(stored, float):
        return False
    return bool(pa.array([value]).cast(pa.float32(), safe=False)[0].as_py() == stored)


def _canonical(batch: pa.RecordBatch, without: Collection[str]) -> pa.LargeBinaryArray:
    """A text for each row. Every part says its length, so no two rows have the same one by chance."""
    parts: list[Value] = [pa.scalar(b"{", _TEXT)]
    for name in sorted(set(batch.schema.names) - set(without)):
        values = _texts(batch.column(name))
        field = _joined([pa.scalar(_sized(name.encode()) + b"=", _TEXT), _lengths(values), values])
        parts.append(pc.fill_null(field, pa.scalar(b"", _TEXT)))
    if len(parts) == 1:
        return pa.array([b"{}"] * batch.num_rows, _TEXT)
    return _joined([*parts, pa.scalar(b"}", _TEXT)])


def _content(texts: pa.LargeBinaryArray) -> memoryview:
    """All texts behind each other, without a copy."""
    _, offsets, data = texts.buffers()
    ends = memoryview(offsets).cast("q")
    return memoryview(data)[ends[texts.offset] : ends[texts.offset + len(texts)]] if data else memoryview(b"")


def _joined(parts: Sequence[Value]) -> pa.LargeBinaryArray:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _TEXT))


def _lengths(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return _joined([pc.binary_length(values).cast(pa.large_string()).cast(_TEXT), pa.scalar(b":", _TEXT)])


def _texts(values: pa.Array) -> pa.LargeBinaryArray:
    """Each value in its one form, with a letter for its kind before it; null where there is none."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return _tagged(b"t", values.cast(pa.int8()))
    if pa.types.is_integer(kind):
        return _tagged(b"n", values)
    if pa.types.is_floating(kind):
        return _floats(values.cast(pa.float64()))
    if pa.types.is_timestamp(kind):
        return _tagged(b"T", values.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()))
    if pa.types.is_date(kind):
        return _tagged(b"D", values.cast(pa.date32()).cast(pa.int32()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _joined([pa.scalar(b"s", _TEXT), values.cast(pa.large_string()).cast(_TEXT)])
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _joined([pa.scalar(b"b", _TEXT), values.cast(_TEXT)])
    return pa.array([None if value is None else _text(value) for value in values.to_pylist()], _TEXT)


def _tagged(tag: bytes, numbers: pa.Array) -> pa.LargeBinaryArray:
    return _joined([pa.scalar(tag, _TEXT), numbers.cast(pa.large_string()).cast(_TEXT)])


def _floats(values: pa.DoubleArray) -> pa.LargeBinaryArray:
    """Whole numbers as integers are written; -0.0 is no whole number here, because it is not the same bits as 0."""
    negative_zero = pc.and_(pc.equal(values, 0.0), pc.less(pc.divide(1.0, values), 0.0))
    whole = pc.and_not(
        pc.and_(pc.less(pc.abs(values), _EXACT), pc.equal(values, pc.floor(values))),
        negative_zero,
    )
    integers = pc.if_else(whole, values, None).cast(pa.int64())
    if integers.null_count == values.null_count:
        return _tagged(b"n", integers)
    others = [
        None if value is None or is_whole else _text(value)
        for value, is_whole in zip(values.to_pylist(), whole.to_pylist(), strict=True)
    ]
    return pc.coalesce(_tagged(b"n", integers), pa.array(others, _TEXT))


def _sized(text: bytes) -> bytes:
    return b"%d:%s" % (len(text), text)


def _text(value: Value) -> bytes:
    """The same for one Python value, which is not null."""
    match value:
        case bool():
            return b"t%d" % value
        case int():
            return b"n%d" % value
        case float():
            exact = abs(value) < _EXACT and value.is_integer() and not (value == 0 and str(value)[0] == "-")
            return b"n%d" % int(value) if exact else b"n" + repr(value).encode()
        case decimal.Decimal():
            exact = value.is_finite() and value == value.to_integral_value()
            return b"n%d" % int(value) if exact else b"n" + str(value.normalize()).encode()
        case str():
            return b"s" + value.encode()
        case bytes():
            return b"b" + value
        case dt.datetime():
            moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
            return b"T%d" % ((moment - _EPOCH) // dt.timedelta(microseconds=1))
        case dt.date():
            return b"D%d" % (value - _EPOCH.date()).days
        case Mapping():
            fields = sorted((str(key), inner) for key, inner in value.items() if inner is not None)
            return b"{%s}" % b"".join(_sized(key.encode()) + b"=" + _sized(_text(inner)) for key, inner in fields)
        case [tuple(), *_]:  # a map, as Arrow shows it: its entries have no order
            entries = sorted(((_text(key), inner) for key, inner in value), key=lambda entry: entry[0])
            return b"(%s)" % b"".join(
                _sized(key) + (b"z" if inner is None else _sized(_text(inner))) for key, inner in entries
            )
        case list() | tuple():
            return b"[%s]" % b"".join(b"z" if inner is None else _sized(_text(inner)) for inner in value)
    raise TypeError(f"{type(value).__name__} is no value of a row")
