"""Our types in other systems' words: Arrow, Iceberg's JSON, Spark SQL.

Types come in from data that somebody else wrote. A type is taken only when every one of its values fits ours, so that
what was validated once can't fail later in Spark; a type that does not fit is refused with what to use instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from strandline.errors import BadRequest, Unsupported, nearest
from strandline.model.types import MAX_DEPTH, Column, Decimal, List, Map, Primitive, Struct, Type, type_text

TIMESTAMP = pa.timestamp("us", "UTC")

_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "binary": pa.binary(),
    "json": pa.string(),
}

_SPARK = {"long": "bigint", "json": "string"}

_ICEBERG = ("boolean", "int", "long", "float", "double", "date", "timestamptz", "string", "binary")
_ICEBERG_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*\)")
_ICEBERG_HINTS = {
    "timestamp": "A timestamp here has no zone; use timestamptz, which is stored in UTC.",
    "timestamp_ns": "Use timestamptz: microseconds, with a zone.",
    "timestamptz_ns": "Use timestamptz: microseconds, with a zone.",
    "uuid": "Use string.",
    "time": "Use string.",
    "variant": "Use string, and the type json in Strandline's own syntax.",
}


def arrow_type(type_: Type, *, stored: bool) -> pa.DataType:
    """The Arrow type. As stored, everything inside is nullable too: requirements live in the ledger, not in files."""
    match type_:
        case Primitive(name):
            return _ARROW[name]
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case List(element, nullable):
            return pa.list_(pa.field("item", arrow_type(element, stored=stored), stored or nullable))
        case Struct(fields):
            return pa.struct([arrow_field(field, stored=stored) for field in fields])
        case Map(key, value, nullable):
            item = pa.field("value", arrow_type(value, stored=stored), stored or nullable)
            return pa.map_(arrow_type(key, stored=stored), item)


def arrow_field(column: Column, *, stored: bool) -> pa.Field:
    """The Arrow field of a column; nullable always when stored."""
    return pa.field(column.name, arrow_type(column.type, stored=stored), stored or column.nullable)


def column_from_arrow(field: pa.Field) -> Column:
    """A column that takes every value of an Arrow field, or Unsupported."""
    return Column(field.name, type_from_arrow(field.type, field.name), field.nullable)


def type_from_arrow(type_: pa.DataType, path: str) -> Type:
    """The type that takes every value of an Arrow type; `path` names the column in errors."""
    name = _primitive_from_arrow(type_, path)
    if name:
        return Primitive(name)
    if pat.is_dictionary(type_) or pat.is_run_end_encoded(type_):
        return type_from_arrow(type_.value_type, path)
    if pat.is_decimal(type_):
        return _decimal_from_arrow(type_, path)
    if pat.is_map(type_):
        value = type_from_arrow(type_.item_type, f"{path}[]")
        return Map(type_from_arrow(type_.key_type, f"{path}[]"), value, type_.item_field.nullable)
    if is_list(type_):
        return List(type_from_arrow(type_.value_type, f"{path}[]"), type_.value_field.nullable)
    if pat.is_struct(type_):
        return Struct(tuple(column_from_arrow(type_.field(i)) for i in range(type_.num_fields)))
    raise Unsupported(f"column {path!r}: Arrow type {type_} is not supported", hint="Cast it before, or leave it out.")


def is_list(type_: pa.DataType) -> bool:
    """Any of Arrow's lists."""
    return bool(
        pat.is_list(type_)
        or pat.is_large_list(type_)
        or pat.is_fixed_size_list(type_)
        or pat.is_list_view(type_)
        or pat.is_large_list_view(type_)
    )


def is_text(type_: pa.DataType) -> bool:
    """Any of Arrow's strings."""
    return bool(pat.is_string(type_) or pat.is_large_string(type_) or pat.is_string_view(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Any of Arrow's binaries."""
    return bool(
        pat.is_binary(type_)
        or pat.is_large_binary(type_)
        or pat.is_binary_view(type_)
        or pat.is_fixed_size_binary(type_)
    )


_HOLDS: dict[str, Callable[[pa.DataType], bool]] = {
    "json": lambda type_: isinstance(type_, pa.JsonType),
    "string": is_text,
    "binary": is_bytes,
    "double": pat.is_float64,
    "float": pat.is_floating,
    "boolean": pat.is_boolean,
    "date": pat.is_date,
}
"""The first that holds is the type."""


def _primitive_from_arrow(type_: pa.DataType, path: str) -> str | None:
    if pat.is_integer(type_):
        return _integer_from_arrow(type_, path)
    if pat.is_timestamp(type_):
        return _timestamp_from_arrow(type_, path)
    return next((name for name, holds in _HOLDS.items() if holds(type_)), None)


def _integer_from_arrow(type_: pa.DataType, path: str) -> str:
    if pat.is_uint64(type_):
        raise Unsupported(
            f"column {path!r}: uint64 does not fit into a long",
            hint="Cast it before, to int64, decimal(20,0) or string.",
        )
    return "long" if pat.is_int64(type_) or pat.is_uint32(type_) else "int"


def _timestamp_from_arrow(type_: pa.DataType, path: str) -> str:
    if type_.tz is None:
        raise Unsupported(
            f"column {path!r}: {type_} has no zone",
            hint="Strandline does not guess zones. Cast it before, for example to timestamp('us', 'UTC').",
        )
    return "timestamp"


def _decimal_from_arrow(type_: pa.DataType, path: str) -> Decimal:
    try:
        return Decimal(type_.precision, type_.scale)
    except BadRequest as error:
        raise Unsupported(f"column {path!r}: {type_} is not supported", hint=error.hint) from None


def column_from_iceberg(doc: Any, path: str = "", depth: int = 0) -> Column:
    """A column from a field of an Iceberg schema's JSON."""
    name = doc.get("name") if isinstance(doc, dict) else None
    if not isinstance(name, str) or "type" not in doc:
        raise BadRequest(f"not a field of an Iceberg schema: {str(doc)[:80]}", hint='A field has "name" and "type".')
    type_ = type_from_iceberg(doc["type"], f"{path}{name}", depth)
    return Column(name, type_, not _required(doc, "required"))


def type_from_iceberg(doc: Any, path: str, depth: int = 0) -> Type:
    """A type from an Iceberg schema's JSON: a name, or an object of type list, map or struct."""
    if depth > MAX_DEPTH:
        raise BadRequest("the schema is nested too deeply", hint=f"At most {MAX_DEPTH} levels.")
    if isinstance(doc, str):
        return _iceberg_primitive(doc, path)
    match doc:
        case {"type": "list", "element": element}:
            nullable = not _required(doc, "element-required")
            return List(type_from_iceberg(element, f"{path}[]", depth + 1), nullable)
        case {"type": "map", "key": key, "value": value}:
            key_type = type_from_iceberg(key, f"{path}[]", depth + 1)
            nullable = not _required(doc, "value-required")
            return Map(key_type, type_from_iceberg(value, f"{path}[]", depth + 1), nullable)
        case {"type": "struct", "fields": [*fields]}:
            return Struct(tuple(column_from_iceberg(field, f"{path}.", depth + 1) for field in fields))
    raise BadRequest(f"field {path!r}: {str(doc)[:80]} is not an Iceberg type", hint=nearest(str(doc), _ICEBERG))


def _required(doc: dict[str, Any], key: str) -> bool:
    required = doc.get(key, False)
    if not isinstance(required, bool):
        raise BadRequest(f"{key!r} is {required!r} in an Iceberg schema", hint="It is true or false.")
    return required


def _iceberg_primitive(text: str, path: str) -> Type:
    if text == "timestamptz":
        return Primitive("timestamp")
    if text in _ICEBERG:
        return Primitive(text)
    decimal = _ICEBERG_DECIMAL.fullmatch(text)
    if decimal:
        return Decimal(int(decimal[1]), int(decimal[2]))
    hint = "Use binary." if text.startswith("fixed[") else _ICEBERG_HINTS.get(text) or nearest(text, _ICEBERG)
    raise BadRequest(f"field {path!r}: the Iceberg type {text!r} is not supported", hint=hint)


def spark_ddl(type_: Type) -> str:
    """The type as Spark SQL writes it in CREATE TABLE."""
    match type_:
        case Primitive(name):
            return _SPARK.get(name, name)
        case Decimal():
            return type_text(type_)
        case List(element, _):
            return f"array<{spark_ddl(element)}>"
        case Struct(fields):
            return f"struct<{','.join(f'{quoted(field.name)}:{spark_ddl(field.type)}' for field in fields)}>"
        case Map(key, value, _):
            return f"map<{spark_ddl(key)},{spark_ddl(value)}>"


def column_ddl(column: Column) -> str:
    """A column in CREATE TABLE. Without NOT NULL: in Iceberg all columns are optional."""
    return f"{quoted(column.name)} {spark_ddl(column.type)}"


def quoted(name: str) -> str:
    """A name in Spark SQL's backticks."""
    return "`" + name.replace("`", "``") + "`"
