"""A column of Python values as an Arrow array, quickly.

An append is on its caller's critical path, so the usual column (all of one type, nothing wrong with it) must not cost a
Python call per value. Each type has a quick way that looks at the set of the values' types and lets Arrow convert all
of them at once. It gives None as soon as it is not certain that the rule of `values` would say the same for every
value; then the rule decides, value by value, and names what is wrong.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from itertools import accumulate, chain
from types import NoneType

import pyarrow as pa
import pyarrow.compute as pc

from strandline.model.schema.types import Decimal, List, Primitive, Type
from strandline.model.values.arrow import TIMESTAMP, arrow_type
from strandline.model.values.user_rows import Value
from strandline.model.values.values import MAX_US, MIN_US

Quick = Callable[[list[Value]], pa.Array | None]

SHORT = 24
"""Below this many values a rule per value costs less than calling Arrow's kernels."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY_US = 86_400_000_000
_SAFE_US = (MIN_US + _DAY_US, MAX_US - _DAY_US)
"""Zones at the ends of time are left to the rule."""

_PYTHON: dict[str, frozenset[type]] = {
    "string": frozenset({str}),
    "long": frozenset({int}),
    "int": frozenset({int}),
    "boolean": frozenset({bool}),
    "binary": frozenset({bytes}),
}
_NOT_TAKEN = (pa.ArrowException, OverflowError, ValueError, TypeError)


def quick_for(type_: Type, nullable: bool) -> Quick:
    """The quick way of a type; `never` where there is none."""
    none = frozenset({NoneType}) if nullable else frozenset()
    arrow = arrow_type(type_, stored=True)
    match type_:
        case Primitive(name):
            return _quick_primitive(name, none, arrow)
        case Decimal():
            return _exactly(none | {decimal.Decimal}, arrow)
        case List(element, element_nullable):
            return _lists(none, quick_for(element, element_nullable), arrow)
    return never


def _quick_primitive(name: str, none: frozenset[type], arrow: pa.DataType) -> Quick:
    match name:
        case "timestamp":
            return _timestamps(none)
        case "double" | "float":
            return _floats(none, arrow)
        case "date":
            return _dates(none)
    return _exactly(_PYTHON[name] | none, arrow) if name in _PYTHON else never


def never(values: list[Value]) -> pa.Array | None:
    """Leave it to the rule."""
    return None


def _exactly(types: frozenset[type], arrow: pa.DataType) -> Quick:
    """For types where Arrow refuses all that the rule refuses, once the Python types are known."""

    def quick(values: list[Value]) -> pa.Array | None:
        if not types.issuperset(map(type, values)):
            return None
        try:
            return pa.array(values, arrow)
        except _NOT_TAKEN:
            return None

    return quick


def _floats(none: frozenset[type], arrow: pa.DataType) -> Quick:
    convert = _exactly(none | {int, float}, arrow)

    def quick(values: list[Value]) -> pa.Array | None:
        array = convert(values) if len(values) >= SHORT else None
        return array if array is not None and finite(array) else None

    return quick


def _dates(none: frozenset[type]) -> Quick:
    of_dates = _exactly(none | {dt.date}, pa.date32())
    of_texts = _exactly(none | {str}, pa.string())

    def quick(values: list[Value]) -> pa.Array | None:
        array = of_dates(values)
        if array is None and len(values) >= SHORT:
            texts = of_texts(values)
            array = None if texts is None else cast(texts, pa.date32())
            array = array if array is not None and dates_in_range(array) else None
        return array

    return quick


def _timestamps(none: frozenset[type]) -> Quick:
    of_texts = _exactly(none | {str}, pa.string())
    datetimes = none | {dt.datetime}

    def quick(values: list[Value]) -> pa.Array | None:
        if len(values) < SHORT:
            return None
        texts = of_texts(values)
        array = _parsed(texts) if texts is not None else None
        if texts is None and datetimes.issuperset(map(type, values)):
            array = _since_epoch(values)
        return array if array is not None and timestamps_in_range(array) else None

    return quick


def _since_epoch(moments: list[Value]) -> pa.Array | None:
    """Arrow asks each datetime for its zone, and takes one without for UTC. Python's difference is quicker, and is an
    error where there is no zone.
    """
    try:
        since = [None if moment is None else moment - _EPOCH for moment in moments]
        return pa.array(since, pa.duration("us")).view(pa.int64()).view(TIMESTAMP)
    except _NOT_TAKEN:
        return None


def _parsed(texts: pa.Array) -> pa.Array | None:
    array = cast(texts, TIMESTAMP)
    if array is None:
        array = cast(pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1"), TIMESTAMP)
    return array


def _lists(none: frozenset[type], elements: Quick, arrow: pa.DataType) -> Quick:
    types = none | {list}

    def quick(values: list[Value]) -> pa.Array | None:
        if not types.issuperset(map(type, values)):
            return None
        flat = elements(list(chain.from_iterable(filter(None, values))))
        return None if flat is None else list_array(flat, [len(v or ()) for v in values], values, arrow)

    return quick


def list_array(flat: pa.Array, lengths: list[int], values: list[Value], arrow: pa.DataType) -> pa.Array:
    """Lists of these lengths over flat values, null where `values` is None."""
    offsets = pa.array(accumulate(lengths, initial=0), pa.int32())
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(offsets, flat, type=arrow, mask=mask)


def cast(array: pa.Array, arrow: pa.DataType) -> pa.Array | None:
    """Arrow's safe cast, or None where a value would change."""
    try:
        return array.cast(arrow)
    except _NOT_TAKEN:
        return None


def finite(array: pa.Array) -> bool:
    """No NaN, no infinity."""
    return pc.all(pc.is_finite(array)).as_py() is not False


def timestamps_in_range(array: pa.Array) -> bool:
    """All well inside the years 1 to 9999."""
    return _between(array.view(pa.int64()), *_SAFE_US)


def dates_in_range(array: pa.Array) -> bool:
    """All in the years 1 to 9999."""
    return _between(array.view(pa.int32()), MIN_US // _DAY_US, MAX_US // _DAY_US)


def _between(array: pa.Array, low: int, high: int) -> bool:
    ends = pc.min_max(array).as_py()
    return ends["min"] is None or bool(low <= ends["min"] and ends["max"] <= high)
