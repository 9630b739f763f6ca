"""Rows of one schema under another: what a data file has of a table's columns.

A file keeps its columns by names that never change. It has those of every schema that the table had by then, on
whatever branch and dropped ones too: a view of the past has them. What it lacks came later. What has had several
types may be of any of them in a file, because Iceberg's column is as wide as the widest schema needs. Each engine reads
by this, so a change of a schema writes no data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from strandline.model.schema.schema import Schema
from strandline.model.schema.types import ORIGIN, OURS, Column, Decimal, Primitive, Type

_WIDEST = ("long", "double")


@dataclass(frozen=True)
class Shape:
    """Of a file: the stored names of columns that it lacks, and of those that are of another type, with that type."""

    lacks: frozenset[str] = frozenset()
    retyped: frozenset[tuple[str, Type]] = frozenset()

    def of(self, names: Set[str]) -> Shape:
        """As far as it is about these columns."""
        return Shape(self.lacks & names, frozenset(pair for pair in self.retyped if pair[0] in names))


ENTIRE = Shape()
"""A file that has every column as it is now."""


def shape_of(columns: Sequence[Column], versions: Mapping[int, Schema], written: int, *, origin: bool) -> Shape:
    """The shape of a file for a reader of these columns of a table; it was made when `written` was the newest.

    `versions` are all schemas of the table. Without `origin` the file is older than the table's first forwarded row.
    """
    types_by_name = _types(schema for number, schema in versions.items() if number <= written)
    own = [column for column in columns if column.name not in OURS]
    lacks = {column.stored for column in own if column.stored not in types_by_name}
    if not origin:
        lacks.update(column.name for column in columns if column.name in ORIGIN)
    types = {column.stored: _widest(types_by_name.get(column.stored, [column.type])) for column in own}
    return Shape(
        frozenset(lacks),
        frozenset((column.stored, types[column.stored]) for column in own if types[column.stored] != column.type),
    )


def file_columns(versions: Mapping[int, Schema]) -> tuple[Column, ...]:
    """The columns of a table's data files, by their names there: those of all its schemas, as wide as any needs."""
    return tuple(Column(name, _widest(types), True) for name, types in _types(versions.values()).items())


def _types(versions: Iterable[Schema]) -> dict[str, list[Type]]:
    types_by_name: dict[str, list[Type]] = {}
    for schema in versions:
        for column in schema.columns:
            types = types_by_name.setdefault(column.stored, [])
            types += [] if column.type in types else [column.type]
    return types_by_name


def _widest(types: Sequence[Type]) -> Type:
    return max(types, key=_width)


def _width(type_: Type) -> int:
    match type_:
        case Decimal(precision=precision):
            return precision
        case Primitive(name=name):
            return int(name in _WIDEST)
    return 0
