"""Arrow that somebody else made: checked whole before anything touches it."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.fuzz.streams import cuts, few, forwarded, stream

from strandline.errors import BadRequest, Damaged, InvalidRows, StrandError, TooLarge, Unsupported
from strandline.lake import Lake
from strandline.model.delivery import chunk_rows
from strandline.model.schema.schema import parse_columns
from strandline.model.values import arrow_stream, wire
from strandline.model.values import rows as rw
from strandline.model.values.arrow_stream import read_stream
from strandline.model.values.sound import sound

WILD_TEXT = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\xff\xff\xff\x7f\1\0\0\0"), pa.py_buffer(b"a"))


def short(batches: tuple[pa.RecordBatch, ...]) -> bytes:
    """A stream whose last batch claims more than it has: the first buffers are whole, the last one is cut."""
    return list(cuts(stream(*batches)))[-1]


@pytest.mark.parametrize("make", [lambda: short((few(0, 8), few(8, 136))), lambda: short((few(0, 136),))])
def test_f84_a_batch_with_a_short_bitmap_is_refused_before_it_is_joined(make: Callable[[], bytes]) -> None:
    """What lies behind the body in memory would become values of rows, and be read back."""
    with pytest.raises(BadRequest, match="not valid Arrow data"):
        read_stream(make())


SHORT = short((few(0, 8), few(8, 136)))


@pytest.mark.parametrize(
    "rows",
    [
        lambda: pa.ipc.open_stream(SHORT).read_all(),
        lambda: pa.ipc.open_stream(SHORT),
        lambda: list(pa.ipc.open_stream(SHORT))[1],
    ],
    ids=["table", "reader", "batch"],
)
def test_f84_arrow_from_python_is_checked_before_it_is_joined(lake: Lake, rows: Callable[[], Any]) -> None:
    lake.create_table("flags", {"id": "string", "flag": "boolean?"})
    with pytest.raises(BadRequest, match="not valid Arrow data"):
        lake.append("flags", rows())
    assert lake.view().sql("select count(*) from flags").rows() == [(0,)]


def test_f84_unknown_fields_of_a_chunk_are_checked_before_they_are_read() -> None:
    """Offsets that point past the text ended the server."""
    batch = forwarded(0, 2)
    wild = batch.set_column(batch.schema.get_field_index("_extra"), "_extra", WILD_TEXT)
    with pytest.raises(BadRequest, match="'_extra' is not valid Arrow data"):
        chunk_rows.from_arrow(stream(wild))


def test_f84_text_of_a_chunk_that_is_not_utf8_is_told_by_its_row() -> None:
    """Also beside unknown fields, where rows are made objects first; and in the unknown fields themselves."""
    schema = parse_columns("id:string")
    not_text = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    for name in ("id", "_extra"):
        batch = forwarded(0, 3)
        body = stream(batch.set_column(batch.schema.get_field_index(name), name, not_text))
        with pytest.raises(InvalidRows) as caught:
            chunk_rows.validated(chunk_rows.from_arrow(body), schema, extra=True, gateway="edge", above=0)
        assert [(row["index"], row["field"]) for row in caught.value.detail["rows"]] == [(1, name)]


def test_f84_a_time_that_no_calendar_has_is_told_by_its_row() -> None:
    batch = forwarded(0, 3).append_column("when", pa.array([0, 2**62, 0], pa.timestamp("us")))
    with pytest.raises(InvalidRows) as caught:
        rows = chunk_rows.from_arrow(stream(batch))
        chunk_rows.validated(rows, parse_columns("id:string"), extra=True, gateway="edge", above=0)
    assert [(row["index"], row["field"]) for row in caught.value.detail["rows"]] == [(1, "when")]


def renamed(body: bytes, name: bytes, other: bytes) -> bytes:
    """A stream whose schema has another name in it, of the same length."""
    assert len(name) == len(other) and body.count(name) == 1
    return body.replace(name, other)


@pytest.mark.parametrize("type_", [pa.int64(), pa.list_(pa.struct([("namename", pa.int64())]))])
def test_f84_a_name_that_is_not_utf8_is_a_bad_request(type_: pa.DataType) -> None:
    name = "namename" if pa.types.is_integer(type_) else "x"
    body = renamed(stream(pa.record_batch({name: pa.array([None], type_)})), b"namename", b"name\xff\xffme")
    with pytest.raises(BadRequest, match="name in its schema is not UTF-8"):
        read_stream(body)


def test_f84_a_decimal_with_an_absurd_scale_is_refused() -> None:
    """PyArrow looks up a power of ten by it, which ended the process though every buffer was valid."""
    absurd = pa.Array.from_buffers(pa.decimal128(2, 2**28), 1, [None, pa.py_buffer(bytes(16))])
    with pytest.raises(BadRequest, match="digits"):
        sound(pa.record_batch({"price": absurd}))
    negative = pa.array([decimal.Decimal(1000)], pa.decimal128(5, -3))
    batch = rw.from_arrow(sound(pa.record_batch({"price": negative})), parse_columns("price:decimal(10,2)"))
    assert batch.column(0).to_pylist() == [decimal.Decimal("1000.00")]


@pytest.mark.parametrize("zone", ["No/Where", "../../etc/passwd", "+99:99", "\0"])
def test_f84_a_time_zone_that_there_is_not_is_refused(zone: str) -> None:
    """It was looked up when a value was shown or taken as text, and failed there as a bug."""
    times = pa.array([0], pa.timestamp("us", zone))
    for column in (times, pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), times)):
        with pytest.raises(BadRequest, match="there is no time zone"):
            sound(pa.record_batch({"body": column}))
    for zone_there_is in ("UTC", "+02:00", "Asia/Tokyo", "Etc/UTC"):
        sound(pa.record_batch({"at": pa.array([0], pa.timestamp("us", zone_there_is))}))


EMPTY = pa.array([{}] * 100, pa.struct([]))


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([pa.record_batch({"x": pa.ListArray.from_arrays(pa.array([0, 100], pa.int32()), EMPTY)})], TooLarge),
        ([pa.record_batch({"x": pa.nulls(60)})] * 2, TooLarge),
        ([pa.record_batch({"x": [1]})] * 12, TooLarge),
        ([pa.record_batch({"x": pa.array(["a"]).dictionary_encode()})], Unsupported),
    ],
    ids=["many values in few bytes", "many rows in no bytes", "many batches", "dictionary"],
)
def test_f84_a_stream_that_says_much_in_few_bytes_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, batches: list[pa.RecordBatch], error: type[StrandError]
) -> None:
    monkeypatch.setattr(arrow_stream, "MAX_CELLS", 99)
    monkeypatch.setattr(arrow_stream, "MAX_ROWS", 90)
    monkeypatch.setattr(arrow_stream, "MAX_BATCHES", 10)
    monkeypatch.setattr(pa.ipc, "open_stream", lambda *_args: pytest.fail("it was read"))
    with pytest.raises(error):
        read_stream(stream(*batches))


def test_f84_a_batch_of_the_ledger_is_checked_too() -> None:
    """A checksum says that bytes are what was written, and nothing about a backup that somebody else wrote."""
    with pytest.raises(Damaged):
        wire.decode(short((few(0, 136),)))
