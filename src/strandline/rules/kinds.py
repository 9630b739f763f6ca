"""All kinds of rules, and what is asked of any of them without knowing which it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from strandline.errors import BadRequest
from strandline.model.schema.constraints import Cardinality, Constraint, Reference, Unique
from strandline.model.schema.schema import Schema
from strandline.rules import cardinality, references, row_rules, unique
from strandline.rules.kind import Declaration, RuleKind, Target

_BY_RULE: Mapping[type[Constraint], RuleKind[Any]] = {
    **dict.fromkeys(row_rules.ROW_RULES, row_rules.KIND),
    Unique: unique.KIND,
    Reference: references.KIND,
    Cardinality: cardinality.KIND,
}
"""In the order in which a table's rules are judged, and told."""

KINDS: tuple[RuleKind[Constraint], ...] = tuple(dict.fromkeys(_BY_RULE.values()))
_PLACES = {rule: KINDS.index(kind) for rule, kind in _BY_RULE.items()}
_CONFLICTS = {rule.rule: kind.conflict for rule, kind in _BY_RULE.items()}


def kind_of(rule: Constraint) -> RuleKind[Constraint]:
    """The kind of a rule."""
    return cast("RuleKind[Constraint]", _BY_RULE[type(rule)])


def in_order(rules: Iterable[Constraint]) -> list[Constraint]:
    """Rules by their kinds; those of one kind as they were declared."""
    return sorted(rules, key=lambda rule: _PLACES[type(rule)])


def check_constraints(schema: Schema, key: Sequence[str], target_of: Callable[[str], Target]) -> None:
    """BadRequest unless the schema's constraints make sense in a table with this key.

    `target_of` finds a table that a reference names, or says that there is none.
    """
    if schema.constraints and not key:
        raise BadRequest("a log table has no constraints", hint="Give the table a key.")
    declaration = Declaration(schema, target_of)
    for rule in schema.constraints:
        declaration.columns(rule)
        kind_of(rule).fit(rule, declaration)


def conflict_kind(rule: str) -> str:
    """What a merge calls rows that break a rule, by the rule's text. A column's requirement is no rule, and has one."""
    return _CONFLICTS.get(rule.partition("(")[0], "value_violation")
