"""Our types and schemas in Arrow's words.

Apart from `schema`, because PyArrow takes longer to import than a small query takes to run, and a query of a table
whose rows are all in files needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa
import pyarrow.types as pat

from strandline.errors import BadRequest, Unsupported
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import (
    EXTRA,
    ORIGIN,
    REMOVED,
    Column,
    Decimal,
    List,
    Map,
    Primitive,
    Struct,
    Type,
)
from strandline.model.tables import Table

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


def from_arrow(schema: pa.Schema) -> Schema:
    """A schema that takes every value of an Arrow schema, for adopting data; Unsupported where there is none."""
    return Schema(tuple(column_from_arrow(field) for field in schema))


@lru_cache(maxsize=1024)
def required_arrow(schema: Schema) -> pa.Schema:
    """What a row must look like at the door: what is required is marked so."""
    return pa.schema([arrow_field(column, stored=False) for column in schema.columns])


@lru_cache(maxsize=1024)
def stored_schema(schema: Schema, extra: bool = False) -> pa.Schema:
    """What a batch holds: the user's columns, all nullable, and `_extra` where the table keeps unknown fields."""
    fields = [arrow_field(column, stored=True) for column in schema.columns]
    return pa.schema([*fields, pa.field(EXTRA, pa.string())] if extra else fields)


def origin_fields() -> list[pa.Field]:
    """What a batch of forwarded rows holds besides: where they come from."""
    return [pa.field(name, arrow_type(type_, stored=True)) for name, type_ in ORIGIN.items()]


def batch_arrow(schema: Schema, table: Table) -> pa.Schema:
    """What a batch of a table holds, before the ledger has stamped it and but for where a forwarded row comes from."""
    stored = stored_schema(schema, table.extra)
    return stored.append(pa.field(REMOVED, pa.bool_())) if table.key else stored


def log_arrow(schema: Schema, table: Table) -> pa.Schema:
    """What the log of a table holds: the user's columns, and those that Strandline adds."""
    added = [pa.field(column.name, arrow_type(column.type, stored=True)) for column in table.added_columns]
    return pa.schema([*stored_schema(schema), *added])
