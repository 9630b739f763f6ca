"""A table's schema: its columns, and the Arrow schemas that follow from them.

What a row must look like is decided by the columns here and checked by `rows`, at the door. Behind it nothing is
required any more: stored files have only nullable fields, because a requirement can change on one branch and files are
shared by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from strandline.errors import BadRequest, nearest
from strandline.model.foreign import (
    TIMESTAMP,
    arrow_field,
    arrow_type,
    column_ddl,
    column_from_arrow,
    column_from_iceberg,
    spark_ddl,
)
from strandline.model.types import (
    ACTOR,
    AT,
    EXTRA,
    OURS,
    PRIMITIVES,
    SEQ,
    Column,
    Decimal,
    List,
    Map,
    Primitive,
    Struct,
    Type,
    check_names,
    parse_column_list,
    parse_nullable,
    parse_type,
    type_text,
)

__all__ = [
    "ACTOR", "AT", "EXTRA", "PRIMITIVES", "SEQ", "SYSTEM_COLUMNS",
    "Column", "Decimal", "List", "Map", "Primitive", "Schema", "Struct", "Type",
    "arrow_type", "column_ddl", "from_arrow", "from_iceberg_json", "from_json", "log_arrow",
    "parse_columns", "parse_mapping", "parse_nullable", "parse_type", "spark_ddl", "stored_schema", "type_text",
]  # fmt: skip

SYSTEM_COLUMNS = frozenset(OURS)


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        check_names(self.names, "a table")

    def __hash__(self) -> int:
        """Kept after the first time: plans are looked up by schema for every append."""
        return self._hash

    def __reduce__(self) -> tuple[type[Schema], tuple[tuple[Column, ...]]]:
        """Pickled without what is cached: another process hashes strings differently."""
        return Schema, (self.columns,)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of this name, or BadRequest with the nearest one."""
        found = self._by_name.get(name)
        if found is None:
            raise BadRequest(f"no column {name!r}", hint=nearest(name, self.names))
        return found

    def arrow(self) -> pa.Schema:
        """As Arrow, with what is required marked so; made once."""
        return self._arrow

    def text(self) -> str:
        """As `parse_columns` reads it."""
        return ",".join(column.text() for column in self.columns)

    def to_json(self) -> list[dict[str, Any]]:
        """As the ledger stores it; `from_json` is the inverse."""
        return [{"name": c.name, "type": type_text(c.type), "nullable": c.nullable} for c in self.columns]

    @cached_property
    def _hash(self) -> int:
        return hash(self.columns)

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def _arrow(self) -> pa.Schema:
        return pa.schema([arrow_field(column, stored=False) for column in self.columns])


def parse_columns(text: str) -> Schema:
    """A schema from `id:string,body:string?,tags:list<string>`."""
    return Schema(parse_column_list(text))


def parse_mapping(types: Mapping[str, str]) -> Schema:
    """A schema from `{"id": "string", "body": "string?"}`."""
    return Schema(tuple(_parse_column(name, text) for name, text in types.items()))


def from_json(doc: Any) -> Schema:
    """A schema from what `to_json` gave."""
    try:
        return Schema(tuple(Column(c["name"], parse_type(c["type"]), c["nullable"]) for c in doc))
    except (KeyError, TypeError) as error:
        raise BadRequest(
            f"not a stored schema: {type(error).__name__} {error}", hint="A list of objects: name, type, nullable."
        ) from None


def from_iceberg_json(doc: Any) -> Schema:
    """A schema from Iceberg's JSON (`{"type": "struct", "fields": [...]}`)."""
    match doc:
        case {"type": "struct", "fields": [*fields]}:
            return Schema(tuple(column_from_iceberg(field) for field in fields))
    raise BadRequest("not an Iceberg schema", hint='It looks like {"type": "struct", "fields": [...]}.')


def from_arrow(schema: pa.Schema) -> Schema:
    """A schema that takes every value of an Arrow schema, for adopting data; Unsupported where there is none."""
    return Schema(tuple(column_from_arrow(field) for field in schema))


@lru_cache(maxsize=1024)
def stored_schema(schema: Schema, extra: bool = False) -> pa.Schema:
    """What a batch holds: the user's columns, all nullable, and `_extra` where the table keeps unknown fields."""
    fields = [arrow_field(column, stored=True) for column in schema.columns]
    return pa.schema([*fields, pa.field(EXTRA, pa.string())] if extra else fields)


@lru_cache(maxsize=1024)
def log_arrow(schema: Schema, extra: bool = False) -> pa.Schema:
    """What the log holds: a batch's columns, and those that the ledger stamps."""
    stamped = [pa.field(SEQ, pa.int64()), pa.field(AT, TIMESTAMP), pa.field(ACTOR, pa.string())]
    return pa.schema([*stored_schema(schema, extra), *stamped])


def _parse_column(name: str, text: str) -> Column:
    if not isinstance(name, str) or not isinstance(text, str):
        raise BadRequest(f"column {name!r} is {text!r}", hint='Both are text, as in {"id": "string"}.')
    type_, nullable = parse_nullable(text)
    return Column(name, type_, nullable)
