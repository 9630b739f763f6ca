"""Two schemas that came from one: what both sides' changes come to together, where they are about different columns.

A column is the same one on both sides by its name in data files, whatever it is called. A side's changes are about the
columns that it added, dropped or said something else of, and about those of constraints that it added or dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strandline.model.schema.constraints import Constraint
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import Column


def merge_schemas(base: Schema, ours: Schema, theirs: Schema) -> Schema | None:
    """A schema with the changes of both; None where they are about the same columns, or give two the same name."""
    if _touched(base, ours) & _touched(base, theirs):
        return None
    columns = _columns(base, ours, theirs)
    names = [column.name.lower() for column in columns.values()]
    if len(set(names)) < len(names):
        return None
    base_rules, our_rules, their_rules = (_by_stored(schema) for schema in (base, ours, theirs))
    kept = [rule for rule in base_rules if rule in our_rules and rule in their_rules]
    added = [rule for rule in (*our_rules, *their_rules) if rule not in base_rules]
    constraints = tuple(_named(rule, columns) for rule in dict.fromkeys([*kept, *added]))
    return replace(ours, columns=tuple(columns.values()), constraints=constraints)


def _touched(base: Schema, side: Schema) -> set[str]:
    """The columns that a side's changes are about, by their names in data files."""
    before, after = base.stored, side.stored
    touched = {name for name in {**before, **after} if _declared(before.get(name)) != _declared(after.get(name))}
    declared = set(_by_stored(base)) ^ set(_by_stored(side))
    return touched | {name for constraint in declared for name in constraint.columns}


def _columns(base: Schema, ours: Schema, theirs: Schema) -> dict[str, Column]:
    """The columns of both, by their names in data files: those of the base in their order, then ours, then theirs."""
    columns: dict[str, Column] = {}
    for name in {**base.stored, **ours.stored, **theirs.stored}:
        before, our_column, their_column = (schema.stored.get(name) for schema in (base, ours, theirs))
        column = our_column if _declared(their_column) == _declared(before) else their_column
        if column is not None:
            columns[name] = column
    return columns


def _declared(column: Column | None) -> Column | None:
    """A column as it was declared: which rows have its default differs from branch to branch, and is no change."""
    return None if column is None else column.declared


def _by_stored(schema: Schema) -> list[Constraint]:
    """A schema's constraints, with columns by their names in data files: a rename is no other constraint."""
    names = {column.name: column.stored for column in schema.columns}
    return [_with(rule, tuple(names[name] for name in rule.columns)) for rule in schema.constraints]


def _named(constraint: Constraint, columns: dict[str, Column]) -> Constraint:
    return _with(constraint, tuple(columns[name].name for name in constraint.columns))


def _with(constraint: Constraint, columns: Any) -> Constraint:
    return replace(constraint, columns=columns)
