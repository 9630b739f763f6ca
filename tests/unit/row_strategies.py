"""What the tests of rows share: strategies for schemas and rows that fit them, and how a refusal is caught."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from typing import Any

import pytest
from hypothesis import strategies as st

from strandline.errors import InvalidRows
from strandline.model.schema import types as ty
from strandline.model.schema.schema import Schema, parse_columns

AGES = parse_columns("name:string,age:long?,tags:list<string>?")
MOMENT = dt.datetime(2025, 1, 2, 3, 4, 5, 123456, tzinfo=dt.UTC)


def refused(call: Any, *args: Any, **kwargs: Any) -> InvalidRows:
    with pytest.raises(InvalidRows) as caught:
        call(*args, **kwargs)
    return caught.value


JSON = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner | st.none(), max_size=3) | st.dictionaries(st.text(), inner | st.none(), max_size=3),
    max_leaves=5,
)

_ZONES = st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)).map(
    lambda offset: dt.timezone(dt.timedelta(minutes=offset // dt.timedelta(minutes=1)))
)
_MOMENTS = st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 12, 31), timezones=st.just(dt.UTC) | _ZONES)


@st.composite
def _timestamp_texts(draw: st.DrawFn) -> str:
    """Texts that are timestamps, or nearly: every part is sometimes missing, odd or out of range."""
    year = draw(st.sampled_from(["0000", "0001", "1969", "2024", "9999", "10000"]))
    day = draw(st.sampled_from(["-01-01", "-02-29", "-12-31", "-13-01", "-1-1", ""]))
    between = draw(st.sampled_from(["T", "T", " ", "t", "_"]))
    time = draw(st.sampled_from(["00:00:00", "23:59:59", "03:04", "03", "24:00:00", "12:60:00", "12:00:60", "030405"]))
    fraction = draw(st.sampled_from(["", "", ".5", ".123456", ".1234567", ".123456789123", ".", ",5"]))
    zone = draw(st.sampled_from(["Z", "Z", "z", "", "+01:00", "-0530", "+02", "+23:59", "+24:00", "-00:60", " Z"]))
    return f"{year}{day}{between}{time}{fraction}{zone}"


TIMESTAMP_TEXTS = _timestamp_texts()


def _decimals(type_: ty.Decimal) -> st.SearchStrategy[Any]:
    high = 10**type_.precision - 1
    exact = decimal.Context(prec=80)
    return st.integers(-high, high).map(lambda n: decimal.Decimal(n).scaleb(-type_.scale, context=exact))


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(),
    "long": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53),
    "float": st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(-(2**24), 2**24),
    "boolean": st.booleans(),
    "date": st.dates() | st.dates().map(dt.date.isoformat),
    "timestamp": _MOMENTS | _MOMENTS.map(dt.datetime.isoformat),
    "binary": st.binary(),
    "json": JSON,
}


def values_of(type_: ty.Type) -> st.SearchStrategy[Any]:
    """Values that a type takes."""
    match type_:
        case ty.Primitive(name):
            return _PRIMITIVES[name]
        case ty.Decimal():
            return _decimals(type_)
        case ty.List(element, nullable):
            return st.lists(_maybe(element, nullable), max_size=4)
        case ty.Struct(fields):
            return st.fixed_dictionaries({f.name: _maybe(f.type, f.nullable) for f in fields})
        case ty.Map(key, value, nullable):
            maps = st.dictionaries(_plain_keys(key), _maybe(value, nullable), max_size=3)
            return maps.map(lambda pairs: [list(pair) for pair in pairs.items()])


def _plain_keys(type_: ty.Type) -> st.SearchStrategy[Any]:
    """Keys in one form each, so that two that differ are not the same key said in two ways."""
    if type_ == ty.Primitive("date"):
        return st.dates()
    return _MOMENTS if type_ == ty.Primitive("timestamp") else values_of(type_)


def _maybe(type_: ty.Type, nullable: bool) -> st.SearchStrategy[Any]:
    return st.none() | values_of(type_) if nullable else values_of(type_)


_LEAVES: st.SearchStrategy[ty.Type] = st.sampled_from([ty.Primitive(name) for name in ty.PRIMITIVES]) | st.sampled_from(
    [ty.Decimal(5, 2), ty.Decimal(38, 0), ty.Decimal(38, 38), ty.Decimal(20, 10)]
)
_KEYS: st.SearchStrategy[ty.Type] = st.sampled_from([ty.Primitive(name) for name in sorted(ty.KEY_TYPES)])


def _columns(types: list[tuple[ty.Type, bool]]) -> tuple[ty.Column, ...]:
    names = map("c{}".format, itertools.count())
    return tuple(ty.Column(name, type_, nullable) for name, (type_, nullable) in zip(names, types, strict=False))


def _column_lists(types: st.SearchStrategy[ty.Type]) -> st.SearchStrategy[tuple[ty.Column, ...]]:
    return st.lists(st.tuples(types, st.booleans()), min_size=1, max_size=3).map(_columns)


_TYPES: st.SearchStrategy[ty.Type] = st.recursive(
    _LEAVES,
    lambda inner: (
        st.builds(ty.List, inner, st.booleans())
        | st.builds(ty.Struct, _column_lists(inner))
        | st.builds(ty.Map, _KEYS, inner, st.booleans())
    ),
    max_leaves=4,
)


def _rows_of(schema: Schema) -> st.SearchStrategy[tuple[Schema, list[dict[str, Any]]]]:
    row = st.fixed_dictionaries({c.name: _maybe(c.type, c.nullable) for c in schema.columns})
    return st.tuples(st.just(schema), st.lists(row, max_size=4) | st.lists(row, min_size=1, max_size=2).map(_many))


def _many(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Enough rows for the quick ways, which short columns don't take."""
    return rows * 30


SCHEMAS_AND_ROWS = _column_lists(_TYPES).map(Schema).flatmap(_rows_of)
