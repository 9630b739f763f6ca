"""A row's partition as text, the same text everywhere.

Streams, watermarks and object keys are named by it, so a value has exactly one text: compact JSON of the partition
columns' values, in the table's order. Only types whose values have one canonical form may be partition columns: a
double or a timestamp would make a stream of its own for nearly every row.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import orjson

from strandline.errors import BadRequest
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import Primitive, type_text

if TYPE_CHECKING:
    import pyarrow as pa

ALL = "all"
"""The partition of a table that has no partition columns."""

MAX_BYTES = 2000
"""Marks are found by this text, and an index of Postgres takes no more than some 2,700 bytes."""

_TYPES = ("string", "long", "int", "boolean", "date")


def check_partition_columns(schema: Schema, names: Sequence[str]) -> None:
    """BadRequest unless all of these are columns whose values have one text."""
    if len(set(names)) < len(names):
        raise BadRequest(f"a partition column is named twice: {', '.join(names)}")
    for name in names:
        type_ = schema.column(name).type
        if not (isinstance(type_, Primitive) and type_.name in _TYPES):
            raise BadRequest(
                f"{name!r} is {type_text(type_)}, which can't be a partition column",
                hint=f"Partition columns are {', '.join(_TYPES)}.",
            )


def partition_text(values: Sequence[object]) -> str:
    """The partition with these values, such as `["claude"]`."""
    for value in values:
        if not isinstance(value, (str, int, dt.date, type(None))) or isinstance(value, dt.datetime):
            raise BadRequest(f"{value!r} can't be a partition's value", hint=f"Use one of {', '.join(_TYPES)}.")
    return orjson.dumps(list(values)).decode()


def partitions(batch: pa.RecordBatch, columns: Sequence[str]) -> dict[str, int]:
    """How many rows each partition has, in the order of their first rows."""
    if not columns:
        return {ALL: batch.num_rows}
    if len(columns) == 1:
        counts = batch.column(columns[0]).value_counts()
        return {
            _bounded(partition_text([value])): count
            for value, count in zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True)
        }
    rows = Counter(zip(*(batch.column(name).to_pylist() for name in columns), strict=True))
    return {_bounded(partition_text(values)): count for values, count in rows.items()}


def too_long(columns: Sequence[pa.Array]) -> Iterator[tuple[int, object, int]]:
    """Rows of partition columns whose partition has too long a text: their place, their value, the text's bytes."""
    if sum(map(_most_bytes, columns)) <= MAX_BYTES:
        return
    for place, values in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
        size = len(partition_text(values).encode())
        if size > MAX_BYTES:
            yield place, values[0] if len(values) == 1 else values, size


def _most_bytes(column: pa.Array) -> int:
    """What a value of this column adds to a partition's text at the most; a character may be written as `\\u0000`."""
    import pyarrow as pa  # not above: most commands name partitions and hold no rows
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type):
        return 32
    return 8 + 6 * (pc.max(pc.binary_length(column)).as_py() or 0)


def _bounded(text: str) -> str:
    """What validation lets through: rows are refused by their index, where that is known."""
    assert len(text.encode()) <= MAX_BYTES, "a row whose partition's text is too long was not refused"
    return text
