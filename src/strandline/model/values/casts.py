"""An Arrow array as a column's type, without a change to any value.

Data that comes as Arrow or Parquet is cast as a whole where that is certain to lose nothing: integers and decimals
widen, encodings of text become plain text, times in other units become microseconds. Everything else gives None and is
judged as Python values by the rules of `values`, so that a value is valid or not whatever it came in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from strandline.model.schema.types import Column, Decimal, List, Map, Primitive, Struct, Type
from strandline.model.values.arrow import TIMESTAMP, arrow_type, is_bytes, is_list, is_text
from strandline.model.values.columns import cast, dates_in_range, finite, list_array, timestamps_in_range

_WIDENS: dict[str, Callable[[pa.DataType], bool]] = {
    "string": is_text,
    "long": pat.is_integer,
    "int": pat.is_integer,
    "boolean": pat.is_boolean,
    "binary": is_bytes,
}
"""Which Arrow types Arrow's own safe cast is right for: it checks ranges."""


def lossless(array: pa.Array, type_: Type, nullable: bool) -> pa.Array | None:
    """The array as this type, or None where only a look at each value can tell."""
    array = plain(array)
    if array.null_count and not nullable:
        return None
    return pa.nulls(len(array), arrow_type(type_, stored=True)) if pat.is_null(array.type) else _typed(array, type_)


def _typed(array: pa.Array, type_: Type) -> pa.Array | None:
    match type_:
        case Primitive(name):
            return _primitives(array, name, arrow_type(type_, stored=True))
        case Decimal():
            # PyArrow casts a negative scale by powers of ten that it does not have.
            is_castable = pat.is_decimal(array.type) and array.type.scale >= 0
            return cast(array, arrow_type(type_, stored=True)) if is_castable else None
        case List():
            return _lists(array, type_)
        case Struct(fields):
            return _structs(array, fields, arrow_type(type_, stored=True))
        case Map():
            return None


def plain(array: pa.Array) -> pa.Array:
    """Without extension types and encodings around the values."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pat.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return array


def _primitives(array: pa.Array, name: str, arrow: pa.DataType) -> pa.Array | None:
    if name in _WIDENS:
        return cast(array, arrow) if _WIDENS[name](array.type) else None
    match name:
        case "timestamp":
            return _timestamps(array)
        case "date":
            return _dates(array)
        case "double" | "float":
            return _floats(array, arrow)
    return None


def _floats(array: pa.Array, arrow: pa.DataType) -> pa.Array | None:
    if not (pat.is_floating(array.type) or pat.is_integer(array.type)):
        return None
    numbers = cast(array, arrow)
    return numbers if numbers is not None and finite(numbers) else None


def _dates(array: pa.Array) -> pa.Array | None:
    days = cast(array, pa.date32()) if pat.is_date(array.type) else None
    return days if days is not None and dates_in_range(days) else None


def _timestamps(array: pa.Array) -> pa.Array | None:
    if not pat.is_timestamp(array.type) or array.type.tz is None:
        return None
    if array.type.unit == "ns":
        # Without its zone, so that no zone database is asked; down also before 1970, as cutting off digits does.
        array = pc.floor_temporal(array.view(pa.int64()).view(pa.timestamp("ns")), unit="microsecond")
        array = array.cast(pa.timestamp("us"))
    moments = cast(array, TIMESTAMP)
    return moments if moments is not None and timestamps_in_range(moments) else None


def _lists(array: pa.Array, type_: List) -> pa.Array | None:
    if not is_list(array.type):
        return None
    flat = lossless(array.flatten(), type_.element, type_.nullable)
    if flat is None:
        return None
    lengths: list[Any] = pc.list_value_length(array).to_pylist()
    return list_array(flat, [length or 0 for length in lengths], lengths, arrow_type(type_, stored=True))


def _structs(array: pa.Array, fields: tuple[Column, ...], arrow: pa.DataType) -> pa.Array | None:
    """Only without null structs: a required field of a struct that is null is null too, and may be."""
    if not pat.is_struct(array.type) or array.null_count:
        return None
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    if sorted(names) != sorted(field.name for field in fields):
        return None
    inside = dict(zip(names, array.flatten(), strict=True))
    children = [lossless(inside[field.name], field.type, field.nullable) for field in fields]
    if any(child is None for child in children):
        return None
    return pa.StructArray.from_arrays(children, fields=list(arrow))
