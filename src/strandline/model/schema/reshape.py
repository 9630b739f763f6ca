"""Arrow rows that were written under an older schema, as a newer one shows them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from strandline.model.schema.schema import Schema
from strandline.model.schema.types import Column, Fill
from strandline.model.values.arrow import arrow_field


def name_in(written: Schema, column: Column) -> str | None:
    """What a column was called under an older schema; None where it was not there."""
    older = written.stored.get(column.stored)
    return None if older is None else older.name


def reshaped(rows: pa.RecordBatch, written: Schema, columns: Sequence[Column], seqs: pa.Array) -> pa.RecordBatch:
    """These columns of rows that were written under an older schema; what is no column of the user's stays behind them.

    One that came later is null, or its default; one that was renamed is found, one that was widened is cast.
    """
    fields = [arrow_field(column, stored=True) for column in columns]
    arrays = [_column(rows, written, column, field, seqs) for column, field in zip(columns, fields, strict=True)]
    kept = [name for name in rows.schema.names if name not in written.names]
    shape = pa.schema([*fields, *(rows.schema.field(name) for name in kept)])
    return pa.RecordBatch.from_arrays([*arrays, *(rows.column(name) for name in kept)], schema=shape)


def _column(rows: pa.RecordBatch, written: Schema, column: Column, field: pa.Field, seqs: pa.Array) -> pa.Array:
    name = name_in(written, column)
    values = pa.nulls(rows.num_rows, field.type) if name is None else _cast(rows.column(name), field.type)
    for fill in column.fills:
        lacks = pc.and_(pc.is_null(values), _within(fill, seqs))
        values = pc.if_else(lacks, pa.scalar(fill.value).cast(field.type), values)
    return values


def _within(fill: Fill, seqs: pa.Array) -> pa.Array:
    """Which rows have a default where they have no value."""
    covered = pc.less(seqs, fill.below)
    for first, end in fill.gaps:
        covered = pc.or_(covered, pc.and_(pc.greater_equal(seqs, first), pc.less(seqs, end)))
    return covered


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values in another type; null where one does not fit, which is in rows that no reader of the past sees."""
    try:
        return values.cast(type_)
    except pa.ArrowInvalid:
        return pa.concat_arrays([_cast_one(values.slice(place, 1), type_) for place in range(len(values))])


def _cast_one(value: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return value.cast(type_)
    except pa.ArrowInvalid:
        return pa.nulls(1, type_)
