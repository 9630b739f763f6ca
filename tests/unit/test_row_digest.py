"""Digests of rows: the same for the same rows, whatever they came as."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model.values import row_digest
from strandline.model.values.row_digest import digest_of, row_digests

MOMENT = dt.datetime(2026, 1, 31, 12, 0, 0, 5, dt.UTC)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=8),
    pa.binary(): st.binary(max_size=8),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.date32(): st.dates(),
    pa.decimal128(20, 4): st.decimals(-(10**12), 10**12, places=4),
    pa.list_(pa.float64()): st.lists(st.none() | st.floats(), max_size=3),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 9), "b": st.none() | st.text(max_size=3)}
    ),
}


def of(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema) if schema else pa.RecordBatch.from_pylist(rows)


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_arrow_and_python_write_a_value_in_the_same_way(kind: pa.DataType) -> None:
    """A flat column that Arrow writes and the same values inside a struct, written by Python, agree."""

    @given(st.lists(st.none() | VALUES[kind], max_size=6))
    def agree(values: list[Any]) -> None:
        column = pa.array(values, kind)
        by_python = [None if value is None else row_digest._text(value) for value in column.to_pylist()]
        assert row_digest._texts(column).to_pylist() == by_python

    agree()


def test_the_same_rows_have_one_digest_whatever_they_came_as() -> None:
    """Column order, cut, width of numbers, units and zones of times, null or absent make no difference."""
    rows = [{"id": 1, "x": 2.0, "at": MOMENT, "gone": None}, {"id": 2, "x": 0.5, "at": None, "gone": None}]
    plain = pa.schema(
        [("id", pa.int64()), ("x", pa.float64()), ("at", pa.timestamp("us", "UTC")), ("gone", pa.string())]
    )
    other = pa.schema([("at", pa.timestamp("ns", "Europe/Berlin")), ("x", pa.float64()), ("id", pa.float64())])
    whole = of(rows, plain)
    assert digest_of([whole]) == digest_of([whole.slice(0, 1), whole.slice(1)])
    assert digest_of([whole]) == digest_of([of([{k: r[k] for k in ("at", "x", "id")} for r in rows], other)])
    assert row_digests(whole) == row_digests(whole.slice(0, 1)) + row_digests(whole.slice(1))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": "1"}, {"a": 1}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": "x"}, {"a": b"x"}),
        ({"a": "x", "b": "y"}, {"a": "y", "b": "x"}),
        ({"a": "x1:b=2:sy"}, {"a": "x", "b": "y"}),
        ({"a": [None]}, {"a": []}),
        ({"a": ["x", "y"]}, {"a": ["xy"]}),
        ({"a": True}, {"a": 1}),
    ],
)
def test_other_rows_have_other_digests(left: dict[str, Any], right: dict[str, Any]) -> None:
    """What is not the same row is not the same digest, for the whole and for the row."""
    assert digest_of([of([left])]) != digest_of([of([right])])
    assert row_digests(of([left])) != row_digests(of([right]))


def test_one_is_one_in_every_numeric_type() -> None:
    """1, 1.0 and the decimal 1.00 are the same value; 2^53 + 1 is no double."""
    kinds = [pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(5, 2)]
    one = decimal.Decimal("1.00")
    digests = {digest_of([of([{"a": one if pa.types.is_decimal(k) else 1}], pa.schema([("a", k)]))]) for k in kinds}
    assert len(digests) == 1
    assert digest_of([of([{"a": 2**53 + 1}])]) != digest_of([of([{"a": float(2**53)}])])


def test_entries_of_a_map_have_no_order() -> None:
    """A map with the same entries is the same value."""
    schema = pa.schema([("a", pa.map_(pa.string(), pa.int64()))])
    there, back = of([{"a": [("x", 1), ("y", None)]}], schema), of([{"a": [("y", None), ("x", 1)]}], schema)
    assert digest_of([there]) == digest_of([back]) != digest_of([of([{"a": [("x", 1)]}], schema)])


def test_columns_that_do_not_count_are_left_out() -> None:
    """A digest without a column is that of rows that lack it; no rows have a digest too."""
    rows = of([{"a": 1, "_seq": 7}])
    assert digest_of([rows], without=("_seq",)) == digest_of([of([{"a": 1}])])
    assert digest_of([]) == digest_of([rows.slice(0, 0)]) != digest_of([rows])
    assert row_digests(rows, without=("a", "_seq")) == row_digests(of([{"b": None}]))


def test_f72_a_number_that_was_kept_in_32_bits_is_the_same_row() -> None:
    """The column was widened since; another number, another time or another seq is another row."""
    kept = pa.scalar(0.1, pa.float32()).as_py()
    there = pa.table({"seq": [1, 1], "at": [MOMENT, MOMENT], "f": [kept, 2.0]})
    rows = [(1, MOMENT, 0.1), (1, MOMENT, 0.2), (2, MOMENT, 0.1), (1, MOMENT + dt.timedelta(1), 0.1)]
    asked = of([{"seq": seq, "at": at, "f": number} for seq, at, number in rows])
    assert row_digest.are_among(asked, there, seq="seq", at="at") == [True, False, False, False]
