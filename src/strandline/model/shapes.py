"""Rows of one schema under another: what a data file has of a table's columns.

A file keeps its columns by names that never change. It has those of every schema that the table had by then, on
whatever branch and dropped ones too: who looks back still finds them. What it lacks came later. What has had several
types may be of any of them in a file, because Iceberg's column is as wide as the widest schema needs. Each engine reads
by this, so a change of a schema writes no data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from strandline.model.schema import Schema
from strandline.model.types import ORIGIN, OURS, Column, Decimal, Primitive, Type

_WIDEST = ("long", "double")


@dataclass(frozen=True)
class Shape:
    """Of a file: the stored names of columns that it lacks, and of those that are of another type, with that type."""

    lacks: frozenset[str] = frozenset()
    retyped: frozenset[tuple[str, Type]] = frozenset()

    def of(self, names: Set[str]) -> Shape:
        """As far as it is about these columns."""
        return Shape(self.lacks & names, frozenset(one for one in self.retyped if one[0] in names))


ENTIRE = Shape()
"""A file that has every column as it is now."""


def shape_of(columns: Sequence[Column], versions: Mapping[int, Schema], written: int, *, origin: bool) -> Shape:
    """The shape of a file for who reads these columns of a table; it was written when `written` was the newest version.

    `versions` are all schemas of the table. Without `origin` the file is older than the table's first forwarded row.
    """
    there = _types(schema for number, schema in versions.items() if number <= written)
    own = [column for column in columns if column.name not in OURS]
    lacks = {column.stored for column in own if column.stored not in there}
    if not origin:
        lacks.update(column.name for column in columns if column.name in ORIGIN)
    types = {column.stored: _widest(there.get(column.stored, [column.type])) for column in own}
    return Shape(
        frozenset(lacks), frozenset((one.stored, types[one.stored]) for one in own if types[one.stored] != one.type)
    )


def file_columns(versions: Mapping[int, Schema]) -> tuple[Column, ...]:
    """The columns of a table's data files, by their names there: those of all its schemas, as wide as any needs."""
    return tuple(Column(name, _widest(types), True) for name, types in _types(versions.values()).items())


def _types(versions: Iterable[Schema]) -> dict[str, list[Type]]:
    found: dict[str, list[Type]] = {}
    for schema in versions:
        for column in schema.columns:
            types = found.setdefault(column.stored, [])
            types += [] if column.type in types else [column.type]
    return found


def _widest(types: Sequence[Type]) -> Type:
    return max(types, key=_width)


def _width(type_: Type) -> int:
    match type_:
        case Decimal(precision=precision):
            return precision
        case Primitive(name=name):
            return int(name in _WIDEST)
    return 0
