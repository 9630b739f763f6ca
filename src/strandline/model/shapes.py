"""Rows of an older schema under a newer one: what a data file has of a table's columns.

A file keeps the columns of the schema it was written under, by names that never change. What it lacks came to the table
later; what has had several types may be of any of them in a file, because Iceberg's column is as wide as the widest
schema of any branch needs. Each engine reads by this, so that a change of a schema writes no data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strandline.model.schema import Schema
from strandline.model.types import ORIGIN, OURS, Column, Type


@dataclass(frozen=True)
class Shape:
    """Of a file: the stored names of columns that it lacks, and of those that may have another type there."""

    lacks: frozenset[str] = frozenset()
    retyped: frozenset[str] = frozenset()


ENTIRE = Shape()
"""A file that has every column as it is now."""


def shape_of(columns: Sequence[Column], written: Schema, versions: Iterable[Schema], *, origin: bool) -> Shape:
    """The shape of a file that was `written` under a schema, for who reads these columns of the table.

    `versions` are all schemas that the table has had, on all branches. Without `origin` it was written before the
    table's first forwarded row.
    """
    own = [column for column in columns if column.name not in OURS]
    lacks = {column.stored for column in own if column.stored not in written.stored}
    if not origin:
        lacks.update(column.name for column in columns if column.name in ORIGIN)
    types: dict[str, set[Type]] = {}
    for one in versions:
        for column in one.columns:
            types.setdefault(column.stored, set()).add(column.type)
    return Shape(frozenset(lacks), frozenset(one.stored for one in own if len(types.get(one.stored, ())) > 1))
