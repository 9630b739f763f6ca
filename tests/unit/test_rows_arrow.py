"""Batches from Arrow, as bytes, as JSON lines and by partition: what goes in one way comes out the same."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.unit.row_strategies import AGES, MOMENT, SCHEMAS_AND_ROWS, refused

from strandline.errors import BadRequest, Damaged, NotFound
from strandline.model.schema.schema import Schema, parse_columns
from strandline.model.values import rows as rw
from strandline.model.values.arrow import stored_schema
from strandline.model.values.sound import sound

UTC = dt.UTC
NAN, INF = math.nan, math.inf
D = decimal.Decimal


ARROW_TAKEN = [
    ("long", pa.array([1, None], pa.int8()), [1, None]),
    ("long", pa.array([2**32 - 1], pa.uint32()), [2**32 - 1]),
    ("long", pa.array([1], pa.uint64()), [1]),
    ("int", pa.array([7], pa.int64()), [7]),
    ("double", pa.array([1.5], pa.float32()), [1.5]),
    ("double", pa.array([3], pa.int64()), [3.0]),
    ("double", pa.array([1.5], pa.float16()), [1.5]),
    ("float", pa.array([1.5], pa.float64()), [1.5]),
    ("string", pa.array(["a", None], pa.large_string()), ["a", None]),
    ("string", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    ("string", pa.array(["a"], pa.string_view()), ["a"]),
    ("string", pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), ["a", "a", "b"]),
    ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
    ("binary", pa.array([b"ab"], pa.large_binary()), [b"ab"]),
    ("binary", pa.array(["AP8="]), [b"\x00\xff"]),
    ("timestamp", pa.array([1], pa.timestamp("s", "UTC")), [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]),
    ("timestamp", pa.array([1], pa.timestamp("ms", "Asia/Tokyo")), [dt.datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)]),
    ("timestamp", pa.array([1999, -1], pa.timestamp("ns", "+02:00")),
     [dt.datetime(1970, 1, 1, 0, 0, 0, 1, UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)]),
    ("timestamp", pa.array(["2025-01-02T03:04:05.123456Z"]), [MOMENT]),
    ("date", pa.array([dt.date(2024, 1, 1)], pa.date64()), [dt.date(2024, 1, 1)]),
    ("date", pa.array(["2024-01-01"]), [dt.date(2024, 1, 1)]),
    ("decimal(10,4)", pa.array([D("1.5")], pa.decimal128(5, 2)), [D("1.5000")]),
    ("decimal(10,4)", pa.array([D("1.5")], pa.decimal256(50, 10)), [D("1.5000")]),
    ("decimal(10,4)", pa.array([3], pa.int64()), [D("3.0000")]),
    ("boolean", pa.array([None, True]), [None, True]),
    ("json", pa.array(['{"a": 1}', "null", None]), ['{"a": 1}', None, None]),
    ("long", pa.nulls(2), [None, None]),
    ("list<long?>", pa.array([[1, None], None, []], pa.list_(pa.int32())), [[1, None], None, []]),
    ("list<double>", pa.array([[1, 2], None], pa.list_(pa.float32(), 2)), [[1.0, 2.0], None]),
    ("list<string>", pa.array([["x"], ["a", "b"]], pa.large_list(pa.large_string())).slice(1), [["a", "b"]]),
    ("struct<a:long,b:string?>", pa.array([{"b": "x", "a": 1}]), [{"a": 1, "b": "x"}]),
    ("struct<a:long,b:string?>", pa.array([{"a": 1}, None]), [{"a": 1, "b": None}, None]),
    ("struct<j:json>", pa.array([{"j": "[1]"}]), [{"j": "[1]"}]),
    ("map<string,long>", pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())), [[("a", 1)], None]),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "array", "stored"), ARROW_TAKEN)
def test_arrow_is_cast_where_nothing_is_lost(type_: str, array: pa.Array, stored: list[Any]) -> None:
    """Widening, other encodings and units; as a batch, as chunks of a table and as a slice."""
    schema = parse_columns(f"c:{type_}?")
    batch = rw.from_arrow(sound(pa.record_batch([array], names=["c"])), schema)
    assert batch.schema == stored_schema(schema, False)
    assert batch.column(0).to_pylist() == stored
    batch.validate(full=True)
    table = pa.table({"c": pa.chunked_array([array, array])})
    assert rw.from_arrow(sound(table), schema).column(0).to_pylist() == stored * 2
    assert rw.from_arrow(sound(table.slice(len(array))), schema).column(0).to_pylist() == stored


NOT_UTF8 = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xff\xfe"))


@pytest.mark.parametrize(
    ("type_", "array", "field", "reason"),
    [
        ("long", pa.array([1.0]), "c", "is not a long"),
        ("long", pa.array([2**63], pa.uint64()), "c", "out of range"),
        ("int", pa.array([2**31]), "c", "out of range"),
        ("long", pa.array(["1"]), "c", "is not a long"),
        ("string", pa.array([1]), "c", "is not a string"),
        ("string", pa.array([b"x"]), "c", "is not a string"),
        ("string", NOT_UTF8, "c", "is not a string"),
        ("timestamp", pa.array([1], pa.timestamp("us")), "c", "timestamp without a zone"),
        ("timestamp", pa.array([1], pa.timestamp("ns")), "c", "timestamp without a zone"),
        ("timestamp", pa.array([2**62], pa.timestamp("us", "UTC")), "c", "is not a timestamp"),
        ("timestamp", pa.array([2**62], pa.timestamp("s", "UTC")), "c", "is not a timestamp"),
        ("timestamp", pa.array([1]), "c", "is not a timestamp"),
        ("date", pa.array([2**30], pa.int32()).view(pa.date32()), "c", "is not a date"),
        ("date", pa.array([1], pa.timestamp("us", "UTC")), "c", "is a timestamp, not a date"),
        ("double", pa.array([NAN]), "c", "finite"),
        ("double", pa.array([INF], pa.float32()), "c", "finite"),
        ("double", pa.array([2**53 + 1]), "c", "can't hold exactly"),
        ("float", pa.array([1e300]), "c", "out of range"),
        ("boolean", pa.array([1]), "c", "is not a boolean"),
        ("decimal(4,2)", pa.array([D("1.234")], pa.decimal128(4, 3)), "c", "more than 2 digits"),
        ("decimal(4,2)", pa.array([D("123")], pa.decimal128(3, 0)), "c", "does not fit"),
        ("decimal(4,2)", pa.array([1.5]), "c", "write a decimal as text"),
        ("json", pa.array(["{"]), "c", "is not JSON text"),
        ("json", pa.array([1]), "c", "is not JSON text"),
        ("json", pa.array(["null"]), "c", "required"),
        ("json", pa.array(["NaN"]), "c", "is not JSON text"),
        ("long", pa.nulls(1), "c", "required"),
        ("list<long>", pa.array([[1, None]]), "c[1]", "required"),
        ("list<double>", pa.array([[1.0, NAN]]), "c[1]", "finite"),
        ("struct<a:long>", pa.array([{"a": 1, "b": 2}]), "c.b", "no such field"),
        ("struct<a:long>", pa.array([{"a": None}], pa.struct([("a", pa.int64())])), "c.a", "required"),
        ("map<string,long>", pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())), "c['a']", "twice"),
        ("string", pa.array([1], pa.duration("s")), "c", "is not a string"),
    ],
)
def test_arrow_that_would_change_is_refused_as_dicts_are(type_: str, array: pa.Array, field: str, reason: str) -> None:
    """Index, field and reason are the same as for Python values."""
    error = refused(rw.from_arrow, sound(pa.record_batch([array], names=["c"])), parse_columns(f"c:{type_}"), start=5)
    found = error.detail["rows"][0]
    assert (found["index"], found["field"]) == (5 + (array is NOT_UTF8), field)
    assert reason in found["reason"]


def test_arrow_columns_may_be_missing_or_unknown_as_fields_may() -> None:
    """A missing nullable column is null; a missing required one and an unknown one are errors in each row."""
    assert rw.from_arrow(sound(pa.table({"name": ["a"]})), AGES).to_pylist() == [
        {"name": "a", "age": None, "tags": None}
    ]
    error = refused(rw.from_arrow, sound(pa.table({"age": [1, 2], "nam": ["a", "b"]})), AGES)
    assert [(r["index"], r["field"]) for r in error.detail["rows"]] == [
        (0, "name"), (0, "nam"), (1, "name"), (1, "nam"),
    ]  # fmt: skip
    assert "Did you mean 'name'?" in error.detail["rows"][1]["reason"]


def test_arrow_that_is_not_sound_is_a_bad_request() -> None:
    """Offsets out of bounds would be read as somebody else's memory; two columns of one name have no meaning."""
    wild = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\xff\xff\0\0\1\0\0\0"), pa.py_buffer(b"a"))
    with pytest.raises(BadRequest, match="not valid Arrow data"):
        rw.from_arrow(sound(pa.record_batch([wild], names=["name"])), AGES)
    for extra in (False, True):
        with pytest.raises(BadRequest, match="not valid Arrow data"):
            rw.from_arrow(
                sound(pa.record_batch([pa.array(["a", "b"]), wild], names=["name", "other"])), AGES, extra=extra
            )
    with pytest.raises(BadRequest, match="not valid Arrow data"):
        rw.from_arrow(sound(pa.table({"name": NOT_UTF8.dictionary_encode()})), AGES)
    with pytest.raises(BadRequest, match="more than one column"):
        rw.from_arrow(sound(pa.record_batch([pa.array(["a"])] * 2, names=["name", "name"])), AGES)


def test_arrow_extras_are_said_as_exports_say_them() -> None:
    """Times, decimals and bytes of unknown columns are text; text that is not UTF-8 is a bad value."""
    table = pa.table({
        "name": ["a"], "t": pa.array([0], pa.timestamp("us", "UTC")), "d": [D("1.50")], "b": [b"\xff"],
        "s": [{"day": dt.date(2024, 1, 1)}], "l": pa.array(["x"]).dictionary_encode(),
    })  # fmt: skip
    text = rw.from_arrow(sound(table), AGES, extra=True).column("_extra")[0].as_py()
    assert orjson.loads(text) == {
        "t": "1970-01-01T00:00:00.000000Z", "d": "1.50", "b": "/w==", "s": {"day": "2024-01-01"}, "l": "x",
    }  # fmt: skip
    broken = pa.record_batch([pa.array(["a", "b"]), NOT_UTF8], names=["name", "other"])
    error = refused(rw.from_arrow, sound(broken), AGES, extra=True)
    assert [(r["index"], r["field"]) for r in error.detail["rows"]] == [(1, "other")]
    far = pa.table({"name": ["a", "b"], "day": pa.array([0, 2**30], pa.int32()).view(pa.date32())})
    error = refused(rw.from_arrow, sound(far), AGES, extra=True)
    assert [(r["index"], r["field"]) for r in error.detail["rows"]] == [(1, "day")]


@settings(max_examples=200)
@given(SCHEMAS_AND_ROWS)
def test_json_lines_give_back_the_same_batch(case: tuple[Schema, list[dict[str, Any]]]) -> None:
    """Exports can be loaded again: no type loses anything on its way through JSON."""
    schema, rows = case
    batch = rw.from_dicts(rows, schema)
    lines = list(rw.to_json_lines(batch, schema))
    assert len(lines) == batch.num_rows
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert rw.from_json_lines(lines, schema) == batch


@settings(max_examples=200)
@given(SCHEMAS_AND_ROWS)
def test_arrow_and_the_wire_give_back_the_same_batch(case: tuple[Schema, list[dict[str, Any]]]) -> None:
    """A valid batch stays valid: through Arrow, through bytes, and column by column."""
    schema, rows = case
    batch = rw.from_dicts(rows, schema)
    assert rw.from_arrow(sound(batch), schema) == batch
    payload = rw.encode(batch)
    assert rw.decode(payload) == batch
    names = list(reversed(schema.names))[:2]
    assert rw.decode_columns(payload, names) == batch.select(names)


def test_small_batches_are_plain_and_large_ones_compressed() -> None:
    """A row of a hundred bytes must not pay for a compressor; a megabyte of text must."""
    schema = parse_columns("s:string")
    small = rw.from_dicts([{"s": "x"}], schema)
    large = rw.from_dicts([{"s": "x" * 1000}] * 1000, schema)
    assert rw.decode(rw.encode(small)) == small
    assert rw.decode(rw.encode(large)) == large
    assert len(rw.encode(large)) < 100_000
    assert len(rw.encode(large.slice(0, 30))) > 30_000
    empty = rw.from_dicts([], schema)
    assert rw.decode(rw.encode(empty)) == empty


def test_a_payload_that_can_not_be_read_is_damaged() -> None:
    """The ledger quarantines it by this error; a column that is not there is the caller's."""
    payload = rw.encode(rw.from_dicts([{"name": "a"}], AGES))
    for bad in (b"", b"x", payload[:50], payload[: len(payload) // 2], b"\0" * 100):
        with pytest.raises(Damaged):
            rw.decode(bad)
    with pytest.raises(NotFound) as caught:
        rw.decode_columns(payload, ["nme"])
    assert caught.value.hint == "Did you mean 'name'?"
    assert rw.decode_columns(payload, []).num_rows == 1


def test_json_lines_say_every_type_in_its_text() -> None:
    """Binary is base64, decimals are text, times are RFC 3339 with microseconds and Z, json is embedded."""
    schema = parse_columns(
        "b:binary,d:decimal(10,2),t:timestamp,day:date,j:json,m:map<string,timestamp>,n:map<long,date>,s:struct<j:json>?"
    )
    row = {
        "b": b"\xff", "d": "1.5", "t": "2025-01-02T03:04:05+01:00", "day": "0001-02-03", "j": {"a": [1]},
        "m": {"x": MOMENT}, "n": [[1, "2024-01-01"]], "s": {"j": "text"},
    }  # fmt: skip
    batch = rw.from_dicts([row], schema)
    (line,) = rw.to_json_lines(pa.Table.from_batches([batch]), schema)
    assert line == (
        b'{"b":"/w==","d":"1.50","t":"2025-01-02T02:04:05.000000Z","day":"0001-02-03","j":{"a":[1]},'
        b'"m":{"x":"2025-01-02T03:04:05.123456Z"},"n":[[1,"2024-01-01"]],"s":{"j":"text"}}\n'
    )
    (line,) = rw.to_json_lines(batch)
    assert orjson.loads(line)["j"] == '{"a":[1]}'


def test_json_text_with_line_breaks_is_still_one_line() -> None:
    """Arrow may bring pretty-printed JSON; an export line must stay a line."""
    schema = parse_columns("j:json")
    batch = rw.from_arrow(sound(pa.table({"j": ['{\r\n "a": "x\\ny"\n}']})), schema)
    (line,) = rw.to_json_lines(batch, schema)
    assert line.count(b"\n") == 1
    assert orjson.loads(line) == {"j": {"a": "x\ny"}}


def test_partitions_count_rows_by_canonical_text() -> None:
    """Streams are named by this text: one value, one text; UTF-8 is not escaped, null is not the text 'null'."""
    schema = parse_columns("s:string?,n:long?,b:boolean?,d:date?,i:int?")
    batch = rw.from_dicts(
        [{"s": "claude"}, {"s": None, "n": 1}, {"s": "claude", "b": True}, {"s": 'é"\n'}, {"s": "null", "i": 2},
         {"s": "claude", "d": "2024-01-01"}],
        schema,
    )  # fmt: skip
    assert rw.partitions(batch, []) == {"all": 6}
    assert rw.partitions(batch, ["s"]) == {'["claude"]': 3, "[null]": 1, '["é\\"\\n"]': 1, '["null"]': 1}
    assert rw.partitions(batch, ["d"]) == {"[null]": 5, '["2024-01-01"]': 1}
    assert rw.partitions(batch, ["b", "n"]) == {"[null,null]": 4, "[null,1]": 1, "[true,null]": 1}
    assert rw.partitions(batch.slice(0, 0), ["s"]) == {}
    assert rw.partition_text(["a", None, 1, True, dt.date(2024, 1, 1)]) == '["a",null,1,true,"2024-01-01"]'
    for bad in (1.5, MOMENT, b"x"):
        with pytest.raises(BadRequest):
            rw.partition_text([bad])


def test_only_types_with_one_text_may_partition_a_table() -> None:
    """A stream per double or per microsecond is never what somebody wants."""
    schema = parse_columns("s:string,n:long,i:int,b:boolean,d:date,t:timestamp,x:double,j:json,l:list<string>")
    rw.check_partition_columns(schema, ["s", "n", "i", "b", "d"])
    rw.check_partition_columns(schema, [])
    for bad in (["t"], ["x"], ["j"], ["l"], ["nope"], ["s", "s"]):
        with pytest.raises(BadRequest):
            rw.check_partition_columns(schema, bad)
