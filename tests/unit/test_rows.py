"""Rows in, a batch out: what each type takes, what it refuses and how that is said, and that every way in agrees."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.row_strategies import AGES, MOMENT, TIMESTAMP_TEXTS, refused, values_of

from strandline.errors import InvalidRows
from strandline.model.schema import types as ty
from strandline.model.schema.schema import Schema, parse_columns
from strandline.model.schema.types import parse_type
from strandline.model.values import rows as rw
from strandline.model.values import values
from strandline.model.values.arrow import stored_schema
from strandline.model.values.columns import SHORT
from strandline.model.values.sound import sound
from strandline.model.values.values import RefusedValue, rule_for

UTC = dt.UTC
NAN, INF = math.nan, math.inf
D = decimal.Decimal


def one(type_: str, value: Any) -> Any:
    """What a column of this type makes of a value: alone, and among so many that the quick way is taken."""
    schema = parse_columns(f"c:{type_}")
    alone = rw.from_dicts([{"c": value}], schema)
    many = rw.from_dicts([{"c": value}] * SHORT * 2, schema)
    assert many == pa.Table.from_batches([alone] * SHORT * 2).combine_chunks().to_batches()[0]
    return alone.column(0)[0].as_py()


def why(type_: str, value: Any) -> dict[str, Any]:
    """Why a column refuses a value: alone and among many the same."""
    schema = parse_columns(f"c:{type_}")
    alone = refused(rw.from_dicts, [{"c": value}], schema)
    many = refused(rw.from_dicts, [{"c": value}] * SHORT * 2, schema)
    assert (alone.detail["bad"], many.detail["bad"]) == (1, SHORT * 2)
    assert many.detail["rows"][0] == alone.detail["rows"][0]
    found: dict[str, Any] = alone.detail["rows"][0]
    return found


@pytest.mark.parametrize(
    ("type_", "value", "stored"),
    [
        ("string", "", ""), ("string", "héllo 🌊\x00", "héllo 🌊\x00"), ("string?", None, None),
        ("long", 2**63 - 1, 2**63 - 1), ("long", -(2**63), -(2**63)), ("int", 2**31 - 1, 2**31 - 1), ("int", -1, -1),
        ("double", 1, 1.0), ("double", 1.5, 1.5), ("double", 2**53, float(2**53)), ("double", 2**60, float(2**60)),
        ("double", -0.0, 0.0), ("double", 5e-324, 5e-324),
        ("float", 1.5, 1.5), ("float", 2**24, float(2**24)), ("float", 3.4028234e38, 3.4028234663852886e38),
        ("boolean", True, True), ("boolean", False, False),
        ("date", dt.date(1, 1, 1), dt.date(1, 1, 1)), ("date", "9999-12-31", dt.date(9999, 12, 31)),
        ("date", "2024-02-29", dt.date(2024, 2, 29)),
        ("timestamp", "2025-01-02T03:04:05.123456Z", MOMENT), ("timestamp", "2025-01-02 03:04:05.123456Z", MOMENT),
        ("timestamp", "2025-01-02t03:04:05.123456z", MOMENT),
        ("timestamp", "2025-01-02T05:04:05.123456+02:00", MOMENT),
        ("timestamp", "2025-01-01T21:34:05.123456-0530", MOMENT),
        ("timestamp", "2025-01-02T03:04:05.123456999Z", MOMENT), ("timestamp", MOMENT, MOMENT),
        ("timestamp", "2025-01-02T03:04:05.5Z", MOMENT.replace(microsecond=500_000)),
        ("timestamp", MOMENT.astimezone(ZoneInfo("Asia/Kolkata")), MOMENT),
        ("timestamp", MOMENT.astimezone(dt.timezone(dt.timedelta(hours=-9, minutes=-30))), MOMENT),
        ("timestamp", pd.Timestamp("2025-01-02T03:04:05.123456789Z"), MOMENT),
        ("timestamp", "0001-01-01T00:00:00Z", dt.datetime(1, 1, 1, tzinfo=UTC)),
        ("timestamp", "9999-12-31T23:59:59.999999Z", dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("timestamp", "1969-12-31T23:59:59.9999999Z", dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("binary", b"\x00\xff", b"\x00\xff"), ("binary", "AP8=", b"\x00\xff"), ("binary", bytearray(b"x"), b"x"),
        ("binary", "", b""),
        ("decimal(5,2)", D("123.45"), D("123.45")), ("decimal(5,2)", "123.4", D("123.40")),
        ("decimal(5,2)", 999, D("999.00")), ("decimal(5,2)", "1.500", D("1.50")), ("decimal(5,2)", "1e2", D("100.00")),
        ("decimal(5,2)", D("-0"), D("0.00")), ("decimal(38,38)", "0." + "9" * 38, D("0." + "9" * 38)),
        ("decimal(38,0)", 10**38 - 1, D(10**38 - 1)), ("decimal(2,0)", "000012.000", D("12")),
        ("json", {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'), ("json", "x", '"x"'), ("json", 0, "0"),
        ("json", (1, 2), "[1,2]"), ("json?", None, None), ("json", "null", '"null"'),
        ("list<string>", ["a", ""], ["a", ""]), ("list<long?>", (1, None), [1, None]), ("list<long>", [], []),
        ("list<double>", [1, 2.5], [1.0, 2.5]), ("list<list<int>>?", None, None),
        ("struct<a:string,b:long?>", {"a": "x"}, {"a": "x", "b": None}),
        ("struct<t:timestamp,d:decimal(3,1)>", {"t": MOMENT, "d": "1.5"}, {"t": MOMENT, "d": D("1.5")}),
        ("map<string,long>", {"a": 1}, [("a", 1)]), ("map<string,long?>", [["a", None]], [("a", None)]),
        ("map<long,json>", [(1, {"x": 2})], [(1, '{"x":2}')]), ("map<int,string>", {7: "x"}, [(7, "x")]),
        ("map<date,string>", [["2024-01-01", "x"]], [(dt.date(2024, 1, 1), "x")]),
    ],
)  # fmt: skip
def test_a_valid_value_is_stored(type_: str, value: Any, stored: Any) -> None:
    """Each type takes its own values, and texts that say them exactly."""
    assert one(type_, value) == stored


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("string", None, "required"), ("string", 1, "is not a string"), ("string", b"x", "is not a string"),
        ("string", "a\ud800", "lone surrogate"), ("string", True, "is not a string"),
        ("long", "1", "is not a long"), ("long", 1.0, "is not a long"), ("long", True, "is not a long"),
        ("long", 2**63, "out of range"), ("long", -(2**63) - 1, "out of range"), ("long", NAN, "is not a long"),
        ("int", 2**31, "out of range for an int"), ("int", False, "is not an int"), ("long", D(1), "is not a long"),
        ("double", NAN, "not a finite number"), ("double", INF, "not a finite"), ("double", -INF, "not a finite"),
        ("double", "1.0", "is not a double"), ("double", True, "is not a double"),
        ("double", 2**53 + 1, "can't hold exactly"), ("double", 10**400, "out of range for a double"),
        ("float", 1e39, "out of range for a float"), ("float", -1e300, "out of range"), ("float", NAN, "not a finite"),
        ("float", 2**24 + 1, "can't hold exactly"), ("float", "1", "is not a float"), ("float", True, "not a float"),
        ("boolean", 1, "is not a boolean"), ("boolean", "true", "is not a boolean"), ("boolean", None, "required"),
        ("date", "2024-02-30", "is not a date: day"), ("date", "2024-2-3", "YYYY-MM-DD"), ("date", "20240203", "YYYY"),
        ("date", MOMENT, "is a timestamp, not a date"), ("date", 1, "is not a date"), ("date", "0000-01-01", "year"),
        ("date", "2024-01-01T00:00:00Z", "is not a date"), ("date", "2024-01-0１", "is not a date"),
        ("timestamp", "2025-01-02T03:04:05", "timestamp without a zone"),
        ("timestamp", dt.datetime(2025, 1, 2), "timestamp without a zone"),
        ("timestamp", pd.NaT, "timestamp without a zone"),
        ("timestamp", "2025-01-02", "is not a timestamp"), ("timestamp", 1735787045, "is not a timestamp"),
        ("timestamp", dt.date(2025, 1, 2), "is not a timestamp"), ("timestamp", "now", "is not a timestamp"),
        ("timestamp", "2025-13-02T03:04:05Z", "month"), ("timestamp", "2025-01-02T24:00:00Z", "hour"),
        ("timestamp", "2025-01-02T03:04:60Z", "second"), ("timestamp", "2025-01-02T03:04:05+24:00", "not a timestamp"),
        ("timestamp", "2025-01-02T03:04:05.Z", "not a timestamp"), ("timestamp", " 2025-01-02T03:04:05Z", "not a"),
        ("timestamp", "0001-01-01T00:00:00+01:00", "years 1 to 9999"),
        ("timestamp", "9999-12-31T23:59:59-01:00", "years 1 to 9999"),
        ("timestamp", "0000-12-31T23:59:59-12:00", "year"), ("timestamp", "10000-01-01T00:00:00Z", "not a timestamp"),
        ("timestamp", dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))), "years 1 to 9999"),
        ("binary", "AP8", "is not base64"), ("binary", "A P8=", "is not base64"), ("binary", "é", "is not base64"),
        ("binary", 1, "is not binary"), ("binary", [1], "is not binary"),
        ("decimal(5,2)", 1.5, "write a decimal as text"), ("decimal(5,2)", "1.501", "more than 2 digits"),
        ("decimal(5,2)", 1000, "does not fit decimal(5,2)"), ("decimal(5,2)", D("NaN"), "not a finite"),
        ("decimal(5,2)", D("Infinity"), "not a finite"), ("decimal(5,2)", "NaN", "is not a decimal"),
        ("decimal(5,2)", "1e999999999", "does not fit"), ("decimal(5,2)", "1e-999999999", "more than 2 digits"),
        ("decimal(5,2)", "1,5", "is not a decimal"), ("decimal(5,2)", "1_0", "is not a decimal"),
        ("decimal(5,2)", True, "is not a decimal"), ("decimal(5,2)", " 1", "is not a decimal"),
        ("decimal(38,0)", 10**38, "does not fit"), ("decimal(5,5)", 1, "does not fit"),
        ("json", NAN, "not finite"), ("json", {"a": [1, {"b": INF}]}, "not finite"), ("json", None, "required"),
        ("json", {1: 2}, "is not a JSON value"), ("json", b"x", "not a JSON value"), ("json", MOMENT, "not a JSON"),
        ("json", 2**64, "not a JSON value"), ("json", "\ud800", "not a JSON value"), ("json", {1, 2}, "not a JSON"),
        ("json", object(), "not a JSON value"),
        ("list<string>", "abc", "is not a list"), ("list<string>", {"a": 1}, "is not a list"),
        ("struct<a:long>", [1], "is not a struct"), ("map<string,long>", "x", "is not a map"),
        ("map<string,long>", [["a"]], "is not a map"), ("map<string,long>", 3, "is not a map"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_the_reason(type_: str, value: Any, reason: str) -> None:
    """Nothing is guessed, rounded or turned into null; alone and among many the answer is the same."""
    found = why(type_, value)
    assert reason in found["reason"]
    assert (found["index"], found["field"]) == (0, "c")


@pytest.mark.parametrize(
    ("type_", "value", "field", "reason"),
    [
        ("list<long>", [1, 2, "x"], "c[2]", "is not a long"),
        ("list<long>", [1, None], "c[1]", "required"),
        ("list<list<long>>", [[1], [2, 2**63]], "c[1][1]", "out of range"),
        ("struct<a:string,b:long?>", {"a": "x", "b": "y"}, "c.b", "is not a long"),
        ("struct<a:string,b:long?>", {"b": 1}, "c.a", "required"),
        ("struct<abc:string>", {"abc": "x", "abd": 1}, "c.abd", "Did you mean 'abc'?"),
        ("struct<a:struct<b:list<timestamp>>>", {"a": {"b": ["2025-01-01T00:00:00"]}}, "c.a.b[0]", "without a zone"),
        ("map<string,long>", {"a": "x"}, "c['a']", "is not a long"),
        ("map<string,long>", {"a": None}, "c['a']", "required"),
        ("map<string,long>", [[None, 1]], "c[null]", "required"),
        ("map<string,long>", [["a", 1], ["a", 2]], "c['a']", "occurs twice"),
        ("map<date,long>", [["2024-01-01", 1], [dt.date(2024, 1, 1), 2]], "c[datetime.date(2024, 1, 1)]", "twice"),
        ("map<long,long>", {"1": 1}, "c['1']", "is not a long"),
        ("struct<j:json>", {"j": NAN}, "c.j", "not finite"),
        ("list<double>", [1.0, NAN], "c[1]", "finite"),
    ],
)
def test_a_nested_bad_value_is_named_by_its_path(type_: str, value: Any, field: str, reason: str) -> None:
    """`meta.b`, `tags[2]`: the caller need not look for it."""
    found = why(type_, value)
    assert found["field"] == field
    assert reason in found["reason"]


def test_a_batch_has_the_stored_schema_and_missing_nullable_columns_are_null() -> None:
    """What the ledger stores never depends on which keys the rows happened to have."""
    batch = rw.from_dicts([{"name": "a"}, {"tags": ["x"], "name": "b", "age": 3}], AGES)
    assert batch.schema == stored_schema(AGES, False)
    assert batch.to_pylist() == [{"name": "a", "age": None, "tags": None}, {"name": "b", "age": 3, "tags": ["x"]}]


def test_no_rows_make_an_empty_batch() -> None:
    """An empty call is valid, with the right columns."""
    assert rw.from_dicts([], AGES).schema == stored_schema(AGES, False)
    assert rw.from_json_lines([b"\n"], AGES, extra=True).schema == stored_schema(AGES, True)
    assert rw.from_arrow(sound(pa.table({"name": pa.array([], pa.string())})), AGES).num_rows == 0


def test_any_mapping_is_a_row_and_anything_else_is_not() -> None:
    """Rows that are no mappings are bad rows beside the others, not a crash."""
    assert rw.from_dicts([MappingProxyType({"name": "a"})], AGES).num_rows == 1
    bad: Any = [{"name": "a"}, None, ["name"], {"name": 1}, "name"]
    error = refused(rw.from_dicts, bad, AGES, start=100)
    assert [(r["index"], r["field"]) for r in error.detail["rows"]] == [(101, ""), (102, ""), (103, "name"), (104, "")]
    assert error.message == "row 101: null is not an object with a field per column (and 3 more)"


def test_the_message_names_the_first_bad_row() -> None:
    """Row, field, value and reason, ready to read; the index counts from `start`."""
    rows: list[dict[str, Any]] = [{"name": "a"}] * 17 + [{"name": "a", "age": "x"}]
    assert refused(rw.from_dicts, rows, AGES).message == "row 17, field 'age': 'x' is not a long"
    error = refused(rw.from_dicts, rows, AGES, start=1000)
    assert error.detail == {
        "rows": [{"index": 1017, "field": "age", "value": "'x'", "reason": "is not a long"}], "bad": 1,
    }  # fmt: skip
    assert error.hint


def test_all_bad_rows_are_counted_and_the_first_twenty_are_listed_in_order() -> None:
    """Thirty bad rows with two bad fields each: sixty findings, told row by row and not column by column."""
    error = refused(rw.from_dicts, [{"name": 1, "age": "x"}] * 30, AGES)
    assert error.detail["bad"] == 60
    assert [(r["index"], r["field"]) for r in error.detail["rows"]] == [
        (i, field) for i in range(10) for field in ("name", "age")
    ]
    assert error.message.endswith("(and 59 more)")
    orjson.dumps(error.as_dict())


def test_a_long_value_is_cut_to_80_characters() -> None:
    """An error about a megabyte is not a megabyte."""
    found = why("long", "x" * 1_000_000)
    assert len(found["value"]) == 80
    assert found["value"].endswith("…")


def test_a_missing_required_column_is_an_error_in_each_row() -> None:
    """Missing and null are the same, and both are refused."""
    error = refused(rw.from_dicts, [{"age": 1}, {"name": "a"}, {"name": None}], AGES)
    assert [(r["index"], r["field"]) for r in error.detail["rows"]] == [(0, "name"), (2, "name")]
    assert "missing or null" in error.message


def test_an_unknown_field_is_an_error_that_suggests_the_nearest_name() -> None:
    """A typing error must not lose a column quietly, even when the value is null."""
    error = refused(rw.from_dicts, [{"name": "a", "agee": 1}, {"name": "a", "agee": None}], AGES)
    assert error.message == "row 0, field 'agee': no such column. Did you mean 'age'? (and 1 more)"
    odd: Any = [{"name": "a", 7: 1}]
    assert "a field's name is text" in refused(rw.from_dicts, odd, AGES, extra=True).message


def test_with_extra_unknown_fields_are_kept_as_json() -> None:
    """One text per content: sorted by name, compact, without nulls; null where a row has none."""
    rows: list[dict[str, Any]] = [
        {"name": "a", "z": [1, None], "b": {"é": 1.5}},
        {"b": {"é": 1.5}, "z": [1, None], "name": "a"},
        {"name": "c"},
        {"name": "d", "z": None},
    ]
    text = '{"b":{"é":1.5},"z":[1,null]}'
    for batch in (
        rw.from_dicts(rows, AGES, extra=True),
        rw.from_json_lines(map(orjson.dumps, rows), AGES, extra=True),
        rw.from_arrow(sound(pa.Table.from_pylist(rows)), AGES, extra=True),
    ):
        assert batch.schema == stored_schema(AGES, True)
        assert batch.column("_extra").to_pylist() == [text, text, None, None]
    error = refused(rw.from_dicts, [{"name": "a", "z": {"q": NAN}}], AGES, extra=True)
    assert error.detail["rows"][0]["field"] == "z"
    assert "not finite" in error.message


@pytest.mark.parametrize("name", ["_seq", "_at", "_actor", "_extra"])
@pytest.mark.parametrize("extra", [False, True])
def test_the_columns_that_strandline_stamps_can_not_be_sent(name: str, extra: bool) -> None:
    """An actor is resolved by the server and never taken from a row, not even into `_extra`."""
    row = {"name": "a", name: "x"}
    for error in (
        refused(rw.from_dicts, [row], AGES, extra=extra),
        refused(rw.from_json_lines, [orjson.dumps(row)], AGES, extra=extra),
        refused(rw.from_arrow, sound(pa.Table.from_pylist([row])), AGES, extra=extra),
    ):
        assert error.detail["rows"][0]["field"] == name
        assert "reserved name" in error.message


def test_bad_lines_are_reported_with_the_reason_and_blank_lines_are_counted() -> None:
    """The index is the line's, so that index + 1 is what an editor shows; good lines are checked all the same."""
    lines = [
        b'{"name":"a"}\n', b"\n", b'{"name":"b"', b"  ", b'{"name":"\xff"}', b'{"name":"a","age":NaN}', b"[1]",
        b"null", b"7", b'{"name":"a","age":"x"}', b'{"name":"a"} {"name":"b"}', b'{"name":"\\ud800"}',
        b"\xef\xbb\xbf{}", b'{"name":"a","age":1e400}',
    ]  # fmt: skip
    error = refused(rw.from_json_lines, lines, AGES, start=10)
    found = {r["index"]: r for r in error.detail["rows"]}
    assert sorted(found) == [12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]
    assert "unexpected end" in found[12]["reason"]
    assert "UTF-8" in found[14]["reason"]
    assert all(found[i]["reason"].startswith("not JSON") for i in (12, 14, 15, 20, 21, 22, 23))
    assert all("is not an object" in found[i]["reason"] for i in (16, 17, 18))
    assert (found[19]["field"], found[12]["field"]) == ("age", "")
    good = rw.from_json_lines([b'{"name":"a"}\n', b"", b" \r\n", b'{"name":"b"}'], AGES)
    assert good.column("name").to_pylist() == ["a", "b"]


def test_more_than_twenty_bad_lines_are_all_counted() -> None:
    """The list is cut at twenty, the count is not."""
    error = refused(rw.from_json_lines, [b"{"] * 25, AGES)
    assert (len(error.detail["rows"]), error.detail["bad"]) == (20, 25)


def test_integers_beyond_64_bits_in_json_are_exact_or_refused() -> None:
    """The fast parser would make floats of them, and a double or json column would then take them rounded."""
    schema = parse_columns("d:double?,j:json?,n:long?,p:decimal(38,0)?")
    big = 2**64 + 1
    for name, reason in (("d", "can't hold exactly"), ("j", "not a JSON value"), ("n", "out of range for a long")):
        error = refused(rw.from_json_lines, [json.dumps({name: big}).encode()], schema)
        assert reason in error.message
        assert str(big) in error.message
    batch = rw.from_json_lines([json.dumps({"p": big, "d": 2**70, "j": "1" * 40}).encode()], schema)
    assert batch.to_pylist() == [{"d": float(2**70), "j": f'"{"1" * 40}"', "n": None, "p": D(big)}]
    assert "not JSON" in refused(rw.from_json_lines, [b'{"n":' + b"1" * 5000 + b"}"], schema).message


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_arbitrary_bytes_are_rows_or_a_typed_error(lines: list[bytes]) -> None:
    """No input makes the validator fail in any other way."""
    try:
        rw.from_json_lines(lines, AGES, extra=True)
    except InvalidRows as error:
        assert error.detail["rows"]


def agrees_with_the_rule(type_: ty.Type, nullable: bool, values: list[Any]) -> None:
    """The quick way takes what the rule takes, and gives the same; what one refuses, the other does too."""
    schema = Schema((ty.Column("c", type_, nullable),))
    rule = rule_for(type_, nullable)
    taken, bad = [], []
    for i, value in enumerate(values):
        try:
            taken.append(rule(value))
        except RefusedValue:
            bad.append(i)
    try:
        batch = rw.from_dicts([{"c": value} for value in values], schema)
    except InvalidRows as error:
        assert [r["index"] for r in error.detail["rows"]] == bad[:20]
        assert error.detail["bad"] == len(bad)
    else:
        assert not bad
        assert batch.column(0) == pa.array(taken, stored_schema(schema, False).field("c").type)


SCALARS = [ty.Primitive(name) for name in ty.PRIMITIVES] + [ty.Decimal(5, 2), ty.Decimal(38, 0), ty.Decimal(38, 38)]
ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**64), 2**64) | st.floats() | st.text() | st.dates()
    | st.datetimes() | st.datetimes(timezones=st.just(UTC)) | st.decimals() | st.binary() | TIMESTAMP_TEXTS
    | st.characters(categories=["Cs"]) | st.lists(st.integers(), max_size=2)
)  # fmt: skip


@settings(max_examples=400)
@given(st.data())
def test_the_quick_way_and_the_rule_agree_on_every_value(data: st.DataObject) -> None:
    """One definition of validity, at any length: the quick way is a shortcut and never an opinion."""
    type_ = data.draw(st.sampled_from(SCALARS))
    usual = values_of(type_)
    values = data.draw(st.lists(usual, max_size=4))
    odd = data.draw(st.lists(ANYTHING, max_size=2))
    agrees_with_the_rule(type_, data.draw(st.booleans()), (values + odd) * data.draw(st.sampled_from([1, SHORT])))


@settings(max_examples=300)
@given(st.lists(TIMESTAMP_TEXTS, min_size=1, max_size=3))
def test_timestamp_texts_mean_the_same_alone_and_among_many(texts: list[str]) -> None:
    """Arrow's parser and ours must never differ by an hour, or a microsecond."""
    for text in texts:
        agrees_with_the_rule(ty.Primitive("timestamp"), False, [text] * SHORT)
    agrees_with_the_rule(ty.Primitive("timestamp"), False, texts * SHORT)


@pytest.mark.parametrize("value", [D("1E+5"), D("1E+30"), D("-0"), D("0E+50"), D("0E-50"), D("1.00000"), D("9E-38")])
@pytest.mark.parametrize("type_", ["decimal(38,0)", "decimal(38,38)", "decimal(10,2)"])
def test_decimals_in_every_notation_mean_the_same_to_arrow_and_the_rule(type_: str, value: D) -> None:
    """Exponents are where two implementations differ."""
    agrees_with_the_rule(parse_type(type_), True, [value])


@pytest.mark.parametrize("depth", range(900, 1024, 12))
def test_a_value_that_is_nested_deeper_than_python_prints_is_refused_as_any_other(depth: int) -> None:
    """A parser reads a thousand levels; the error about such a value was a bug."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    assert len(values.shown(value)) <= 80
