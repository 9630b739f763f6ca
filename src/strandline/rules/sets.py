"""Which rows of a view break a rule: all rows are looked at, for a rule that nobody has looked at before.

Sets (what is unique, what refers to what) are DuckDB's work; what a row keeps or breaks by itself is judged as it is in
a mutation. Every row that is found comes with its seq, where it is a row of the table that has the rule. A table that a
rule refers to and that the view lacks comes with the rule: it has no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.duck.sandbox import quote_name
from strandline.model.constraints import Cardinality, Check, Constraint, OneOf, Range, Reference, Unique
from strandline.model.keys import shown_key
from strandline.model.reporting import most_reported
from strandline.model.schema import Schema
from strandline.model.tables import TableState
from strandline.model.types import SEQ
from strandline.model.values import shown
from strandline.model.violations import Violation
from strandline.model.wording import counted
from strandline.rules.row_rules import passing


class Answer(Protocol):
    """The answer to a query, which is fetched once."""

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows as Python values."""

    def reader(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches, as they are computed."""


class Relations(Protocol):
    """Tables of a branch: as they are, or as they will be."""

    @property
    def tables(self) -> list[str]:
        """The names of all of them."""

    def ask(self, query: str) -> Answer:
        """Run a query over them."""

    def state(self, name: str) -> TableState:
        """One of them."""


Found: TypeAlias = tuple[Violation, int | None]


def newly_broken(relations: Relations, state: TableState, before: Schema) -> list[Violation]:
    """The first rows that break what a table declares and did not declare before."""
    required = {column.stored for column in before.columns if not column.nullable}
    found: list[Violation] = []
    for column in state.schema.columns:
        if not column.nullable and column.stored not in required:
            found += lacking(relations, state, column.name)
    for constraint in state.schema.constraints:
        if constraint not in before.constraints:
            found += [one for one, _ in breaking(relations, state, constraint)]
    return found


def lacking(relations: Relations, state: TableState, column: str) -> list[Violation]:
    """Rows without a value in a column. A log table has no key: there a row is named by its seq."""
    query = (
        f"SELECT {_names(_key(state))} FROM {_table(state)} WHERE {quote_name(column)} IS NULL LIMIT {most_reported()}"
    )
    name = state.table.name
    return [
        Violation(name, shown_key(key), column, "required", shown(None), "there is no value")
        for key in relations.ask(query).rows()
    ]


def breaking(relations: Relations, state: TableState, constraint: Constraint) -> list[Found]:
    """The first rows that break a constraint of their table."""
    match constraint:
        case Unique():
            found = _repeated(relations, state, constraint)
        case Reference():
            found = _dangling(relations, state, constraint)
        case Cardinality():
            found = _miscounted(relations, state, constraint)
        case _:
            found = _refused(relations, state, constraint)
    return list(islice(found, most_reported()))


def _repeated(relations: Relations, state: TableState, rule: Unique) -> Iterator[Found]:
    by = _names(rule.columns)
    query = (
        f"SELECT {_names(_key(state))}, {by}, {SEQ} FROM {_table(state)} WHERE {_all_there(rule.columns)} "
        f"QUALIFY count(*) OVER (PARTITION BY {by}) > 1 ORDER BY {by} LIMIT {most_reported()}"
    )
    for *row, seq in relations.ask(query).rows():
        yield _violation(state, rule, row, "is taken by another row too"), seq


def _dangling(relations: Relations, state: TableState, rule: Reference) -> Iterator[Found]:
    names = ", ".join(f"t.{quote_name(name)}" for name in [*_key(state), *rule.columns])
    there = " AND ".join(f"t.{quote_name(name)} IS NOT NULL" for name in rule.columns)
    others = ""
    if _is_there(relations, rule):
        target = relations.state(rule.table)
        others = f"ANTI JOIN {_table(target)} x ON {_joined(rule.columns, target)} "
    query = f"SELECT {names}, t.{SEQ} FROM {_table(state)} t {others}WHERE {there} LIMIT {most_reported()}"
    for *row, seq in relations.ask(query).rows():
        yield _violation(state, rule, row, f"names no row of {rule.table!r}"), seq


def _miscounted(relations: Relations, state: TableState, rule: Cardinality) -> Iterator[Found]:
    reference = next(
        one for one in state.schema.constraints if isinstance(one, Reference) and one.columns == rule.columns
    )
    if not _is_there(relations, reference):
        return
    target = relations.state(reference.table)
    key = ", ".join(f"x.{quote_name(name)}" for name in target.table.key)
    counted = f"count(t.{quote_name(state.table.key[0])})"
    wrong = f"{counted} < {rule.low}" + ("" if rule.high is None else f" OR {counted} > {rule.high}")
    query = (
        f"SELECT {key}, {counted} FROM {_table(target)} x LEFT JOIN {_table(state)} t "
        f"ON {_joined(rule.columns, target)} GROUP BY {key} HAVING {wrong} LIMIT {most_reported()}"
    )
    for *values, number in relations.ask(query).rows():
        yield _counted(target, rule, values, number), None


def unreferred(relations: Relations, name: str, schema: Schema) -> list[Violation]:
    """The first rows that too few refer to if a table comes now, which has no rows yet, and wants some to be there."""
    violations: list[Violation] = []
    for rule, reference in leasts(name, schema):
        if _is_there(relations, reference):
            target = relations.state(reference.table)
            query = f"SELECT {_names(target.table.key)} FROM {_table(target)} LIMIT {most_reported()}"
            violations += [_counted(target, rule, key, 0) for key in relations.ask(query).rows()]
    return violations


def leasts(name: str, schema: Schema) -> list[tuple[Cardinality, Reference]]:
    """What a table wants to be referred to at least so often, in others than itself."""
    references = {one.columns: one for one in schema.constraints if isinstance(one, Reference)}
    rules = [one for one in schema.constraints if isinstance(one, Cardinality) and one.low]
    pairs = [(rule, references[rule.columns]) for rule in rules]
    return [(rule, one) for rule, one in pairs if one.table.lower() != name.lower()]


def _counted(target: TableState, rule: Cardinality, key: Sequence[Any], number: int) -> Violation:
    named = shown_key(key)
    said = f"is referred to by {counted(number, 'row')}"
    return Violation(target.table.name, named, ", ".join(rule.columns), rule.text(), named, said)


def _refused(relations: Relations, state: TableState, rule: OneOf | Range | Check) -> Iterator[Found]:
    query = f"SELECT {_names([*_key(state), *rule.columns])}, {SEQ} AS {SEQ}_ FROM {_table(state)}"
    for batch in relations.ask(query).reader():
        keeps = passing(rule, batch.column(len(_key(state))))
        for row in batch.filter(pc.invert(keeps)).to_pylist():
            *values, seq = row.values()
            yield _violation(state, rule, values, f"is not allowed by {rule.text()}"), seq


def _is_there(relations: Relations, rule: Reference) -> bool:
    return rule.table.lower() in map(str.lower, relations.tables)


def _violation(state: TableState, rule: Constraint, row: Sequence[Any], reason: str) -> Violation:
    key, values = row[: len(_key(state))], row[len(_key(state)) :]
    told = values[0] if len(values) == 1 else tuple(values)
    return Violation(state.table.name, shown_key(key), ", ".join(rule.columns), rule.text(), shown(told), reason)


def _key(state: TableState) -> tuple[str, ...]:
    return state.table.key or (SEQ,)


def _table(state: TableState) -> str:
    return quote_name(state.table.name)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(quote_name, columns))


def _all_there(columns: Sequence[str]) -> str:
    return " AND ".join(f"{quote_name(name)} IS NOT NULL" for name in columns)


def _joined(columns: Sequence[str], target: TableState) -> str:
    pairs = zip(columns, target.table.key, strict=True)
    return " AND ".join(f"t.{quote_name(name)} = x.{quote_name(key)}" for name, key in pairs)
