"""What constraints mean for the columns they name: whether they fit a schema, and which values pass.

Only Arrow judges values here, column by column: its regular expressions are RE2's, which take linear time whatever the
pattern, and its comparisons are those of the column's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import BadRequest
from strandline.model.arrow import arrow_type
from strandline.model.constraints import Cardinality, Check, Constraint, OneOf, Range, Reference, Unique
from strandline.model.schema import Schema
from strandline.model.types import KEY_TYPES, Column, Primitive, is_exact, type_text

ROW_RULES = (OneOf, Range, Check)
"""Those that a row keeps or breaks by itself."""

RANGE_TYPES = frozenset({"long", "int", "double", "float", "date", "timestamp", "decimal"})
ONE_OF_TYPES = frozenset({"string", "long", "int", "boolean", "date", "decimal"})


@dataclass(frozen=True)
class Target:
    """A table that may be referred to: its key, and the types of that."""

    table: str
    key: tuple[str, ...]
    schema: Schema


def check_constraints(schema: Schema, key: Sequence[str], target_of: Callable[[str], Target]) -> None:
    """BadRequest unless the schema's constraints make sense in a table with this key.

    `target_of` finds a table that a reference names, or says that there is none.
    """
    if schema.constraints and not key:
        raise BadRequest("a log table has no constraints", hint="Give the table a key.")
    for constraint in schema.constraints:
        columns = [schema.column(name) for name in constraint.columns]
        match constraint:
            case Unique():
                for column in columns:
                    _need(is_exact(column.type), constraint, column, f"one of {', '.join(sorted(KEY_TYPES))}, decimal")
            case Reference():
                _check_reference(constraint, columns, target_of(constraint.table))
            case Cardinality():
                references = [one.columns for one in schema.constraints if isinstance(one, Reference)]
                if constraint.columns not in references:
                    raise BadRequest(
                        f"{constraint.text()} counts references that are not declared",
                        hint=f"Declare reference({', '.join(constraint.columns)} -> TABLE) too.",
                    )
            case _:
                _check_row_rule(constraint, columns[0])


def _check_reference(constraint: Reference, columns: Sequence[Column], target: Target) -> None:
    wanted = [target.schema.column(name).type for name in target.key]
    if not wanted:
        raise BadRequest(f"{constraint.text()} names a log table", hint="Only a keyed table's rows can be referred to.")
    if [column.type for column in columns] != wanted:
        raise BadRequest(
            f"{constraint.text()}: the key of {target.table!r} is "
            f"({', '.join(f'{name}:{type_text(type_)}' for name, type_ in zip(target.key, wanted, strict=True))})",
            hint="Name as many columns, of the same types and in the same order.",
        )


def _check_row_rule(constraint: OneOf | Range | Check, column: Column) -> None:
    name = column.type.name if isinstance(column.type, Primitive) else type(column.type).__name__.lower()
    match constraint:
        case Check():
            _need(name == "string", constraint, column, "a string")
        case Range():
            _need(name in RANGE_TYPES, constraint, column, f"one of {', '.join(sorted(RANGE_TYPES))}")
        case OneOf():
            _need(name in ONE_OF_TYPES, constraint, column, f"one of {', '.join(sorted(ONE_OF_TYPES))}")
    try:
        passing(constraint, pa.nulls(1, arrow_type(column.type, stored=True)))
    except pa.ArrowException as error:
        raise BadRequest(f"{constraint.text()}: {error}", hint=f"Column {column.text()!r} decides what fits.") from None
    if isinstance(constraint, Range) and constraint.low and constraint.high:
        low, high = _values((constraint.low, constraint.high), arrow_type(column.type, stored=True))
        if pc.greater(low, high).as_py():
            raise BadRequest(f"no value is in {constraint.text()}", hint="The first is the least, the second the most.")


def _need(fits: bool, constraint: Constraint, column: Column, wanted: str) -> None:
    if not fits:
        raise BadRequest(f"{constraint.text()} does not fit column {column.text()!r}", hint=f"It has to be {wanted}.")


def passing(constraint: OneOf | Range | Check, values: pa.Array) -> pa.BooleanArray:
    """Which of a column's values keep a rule; a null keeps every rule."""
    match constraint:
        case OneOf(values=allowed):
            kept = pc.is_in(values, value_set=_values(allowed, values.type))
            return pc.or_kleene(kept, pc.is_null(values))
        case Check(pattern=pattern):
            return pc.fill_null(pc.match_substring_regex(values, pattern), True)
        case Range(low=low, high=high):
            kept = pa.repeat(pa.scalar(True), len(values))
            if low:
                kept = pc.and_(kept, pc.fill_null(pc.greater_equal(values, _values([low], values.type)[0]), True))
            if high:
                kept = pc.and_(kept, pc.fill_null(pc.less_equal(values, _values([high], values.type)[0]), True))
            return kept


def _values(texts: Sequence[str], type_: pa.DataType) -> pa.Array:
    return pa.array(texts, pa.string()).cast(type_)
