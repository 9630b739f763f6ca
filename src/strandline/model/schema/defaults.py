"""A column's default: the value of rows that lack the column, as the schema's document and its own rows say it.

Rows that were there before the column, or before it was required, get a default when they are read (`Fill`). Rows that
come later get the column's default at the door, where they are validated, and it is stored in them like any value. A
null that a row gives is a value too: it stays, or is refused where the column is required.
"""

from __future__ import annotations

import json

import pyarrow as pa

from strandline.model.schema.types import Column, Primitive
from strandline.model.values.arrow import arrow_type
from strandline.model.values.user_rows import Value
from strandline.model.values.wire import jsonable

_JSON = Primitive("json")


def default_scalar(column: Column) -> pa.Scalar | None:
    """The default as it is stored; None where the column has none."""
    if column.default is None:
        return None
    return pa.scalar(column.default).cast(arrow_type(column.type, stored=True))


def default_value(column: Column) -> Value:
    """The default as a Python row would give it; None where the column has none."""
    scalar = default_scalar(column)
    if scalar is None:
        return None
    return json.loads(scalar.as_py()) if column.type == _JSON else scalar.as_py()


def default_json(column: Column) -> Value:
    """The default as JSON has it, which is read back to the same one."""
    scalar = default_scalar(column)
    if scalar is None or column.type == _JSON:
        return default_value(column)
    return jsonable(pa.array([scalar.as_py()], scalar.type))[0]
