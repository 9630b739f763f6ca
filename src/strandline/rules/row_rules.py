"""What a row keeps or breaks by itself: one_of, range, check.

Only Arrow judges values here, column by column, for both evaluators: its regular expressions are RE2's, which take
linear time whatever the pattern, and its comparisons are those of the column's type. A rule of this kind is an entry of
`ROW_RULES`: the types that it fits, and which values keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import BadRequest
from strandline.model.schema.constraints import Check, Constraint, OneOf, Range
from strandline.model.schema.types import SEQ, Primitive
from strandline.model.tables import BranchTable
from strandline.model.values.arrow import arrow_type, batch_arrow
from strandline.rules.changes import JudgedRow, column_of, key_values
from strandline.rules.kind import Breach, Declaration, Judging, Relations, RuleKind, breach, key_of, names, need, table

RowRule: TypeAlias = OneOf | Range | Check


@dataclass(frozen=True)
class Judge:
    """The types whose columns a rule fits, and which values of such a column keep it; it need not think of nulls."""

    types: Sequence[str]
    keeps: Callable[[RowRule, pa.Array], pa.BooleanArray]


def _is_one_of(rule: RowRule, values: pa.Array) -> pa.BooleanArray:
    return pc.is_in(values, value_set=_values(cast("OneOf", rule).values, values.type))


def _is_matched(rule: RowRule, values: pa.Array) -> pa.BooleanArray:
    return pc.match_substring_regex(values, cast("Check", rule).pattern)


def _is_in_range(rule: RowRule, values: pa.Array) -> pa.BooleanArray:
    low, high = cast("Range", rule).low, cast("Range", rule).high
    kept = pa.repeat(pa.scalar(True), len(values))
    if low:
        kept = pc.and_kleene(kept, pc.greater_equal(values, _values([low], values.type)[0]))
    if high:
        kept = pc.and_kleene(kept, pc.less_equal(values, _values([high], values.type)[0]))
    return kept


def _values(texts: Sequence[str], type_: pa.DataType) -> pa.Array:
    return pa.array(texts, pa.string()).cast(type_)


ROW_RULES: Mapping[type[Constraint], Judge] = {
    OneOf: Judge(("boolean", "date", "decimal", "int", "long", "string"), _is_one_of),
    Range: Judge(("date", "decimal", "double", "float", "int", "long", "timestamp"), _is_in_range),
    Check: Judge(("string",), _is_matched),
}


def passing(rule: RowRule, values: pa.Array) -> pa.BooleanArray:
    """Which of a column's values keep a rule; a null keeps every rule."""
    return pc.or_kleene(ROW_RULES[type(rule)].keeps(rule, values), pc.is_null(values))


def _fit(rule: RowRule, declaration: Declaration) -> None:
    (column,) = declaration.columns(rule)
    name = column.type.name if isinstance(column.type, Primitive) else type(column.type).__name__.lower()
    types = ROW_RULES[type(rule)].types
    need(name in types, rule, column, "a string" if types == ("string",) else f"one of {', '.join(types)}")
    try:
        passing(rule, pa.nulls(1, arrow_type(column.type, stored=True)))
    except pa.ArrowException as error:
        raise BadRequest(f"{rule.text()}: {error}", hint=f"Column {column.text()!r} decides what fits.") from None
    if isinstance(rule, Range) and rule.low and rule.high:
        low, high = _values((rule.low, rule.high), arrow_type(column.type, stored=True))
        if pc.greater(low, high).as_py():
            raise BadRequest(f"no value is in {rule.text()}", hint="The first is the least, the second the most.")


def _judge_rows(judging: Judging, branch_table: BranchTable, rule: RowRule, rows: Sequence[JudgedRow]) -> None:
    written = [change for change in rows if change.after is not None]
    if not written:
        return
    field = batch_arrow(branch_table.schema, branch_table.table).field(rule.columns[0])
    values = column_of([change.after for change in written], field)
    for change, is_kept, value in zip(written, passing(rule, values).to_pylist(), values, strict=True):
        if not is_kept:
            reason = f"breaks {rule.text()}"
            judging.tell(branch_table, key_values(change.key), rule, (value.as_py(),), reason, change.place)


def _search(relations: Relations, branch_table: BranchTable, rule: RowRule) -> Iterator[Breach]:
    keys = len(key_of(branch_table))
    query = f"SELECT {names([*key_of(branch_table), *rule.columns])}, {SEQ} AS {SEQ}_ FROM {table(branch_table)}"
    for batch in relations.ask(query).reader():
        broken = batch.filter(pc.invert(passing(rule, batch.column(keys))))
        for *key, value, seq in zip(*(column.to_pylist() for column in broken.columns), strict=True):
            yield breach(branch_table, tuple(key), rule, (value,), f"is not allowed by {rule.text()}", seq=seq)


KIND = RuleKind(fit=_fit, search=_search, judge_rows=_judge_rows)
