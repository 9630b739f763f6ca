"""Which rows of a relation break a rule: set by set, for rules that rows have not been judged by before.

Sets (what is unique, what refers to what) are DuckDB's work; what a row keeps or breaks by itself is judged as it is in
a mutation. A table that a rule refers to and that the relations lack comes with the rule: it has no rows. What is
found comes one by one, so a caller that lists the first and counts the others holds no more than it lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeAlias

from strandline.engines.duck.sandbox import quote_name
from strandline.model.reporting import most_reported
from strandline.model.schema.constraints import Constraint
from strandline.model.schema.keys import shown_key
from strandline.model.schema.schema import Schema
from strandline.model.schema.violations import Violation
from strandline.model.tables import BranchTable
from strandline.model.values.values import shown
from strandline.rules.cardinality import unreferred
from strandline.rules.kind import Breach, Relations, key_of, names, rows_of, table
from strandline.rules.kinds import kind_of

Counts: TypeAlias = Callable[[Violation], bool]
"""Whether a row that breaks something counts: a merge leaves out those that it writes."""


def _all(_: Violation) -> bool:
    return True


def breaches(relations: Relations, branch_table: BranchTable, rule: Constraint) -> Iterator[Breach]:
    """The rows that break a rule of their table, or a rule about their table, as they are found."""
    return kind_of(rule).search(relations, branch_table, rule)


def breaking(
    relations: Relations, branch_table: BranchTable, rule: Constraint, counts: Counts = _all
) -> Iterator[Violation]:
    """Those of them that count, as an error lists them."""
    return filter(counts, (breach.violation for breach in breaches(relations, branch_table, rule)))


def lacking(relations: Relations, branch_table: BranchTable, column: str, counts: Counts = _all) -> Iterator[Violation]:
    """The rows without a value in a column. A log table has no key: there a row is named by its seq."""
    query = f"SELECT {names(key_of(branch_table))} FROM {table(branch_table)} WHERE {quote_name(column)} IS NULL"
    keys = rows_of(relations, query)
    name = branch_table.table.name
    rows = (Violation(name, shown_key(key), column, "required", shown(None), "there is no value") for key in keys)
    return filter(counts, rows)


def newly_broken(
    relations: Relations, branch_table: BranchTable, before: Schema, counts: Counts
) -> Iterator[Violation]:
    """The first rows that count and break what a table declares and did not declare before."""
    required = {column.stored for column in before.columns if not column.nullable}
    for column in branch_table.schema.columns:
        if not column.nullable and column.stored not in required:
            yield from islice(lacking(relations, branch_table, column.name, counts), most_reported())
    for rule in branch_table.schema.constraints:
        if rule not in before.constraints:
            yield from islice(breaking(relations, branch_table, rule, counts), most_reported())


def too_few(relations: Relations, name: str, schema: Schema) -> Iterator[Violation]:
    """The rows that too few refer to if a table comes now, without rows."""
    return (breach.violation for breach in unreferred(relations, name, schema))
