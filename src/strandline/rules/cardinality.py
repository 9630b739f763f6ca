"""cardinality: how many rows may refer to one row of the referenced table.

The rule is declared where the references are, and a least number is broken by a row of the other table, which may have
come without any. So it is judged when all changes are there. Too many are told of the row that came last; in a relation
none came last, and there the row that they refer to is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.errors import BadRequest
from strandline.model.schema.constraints import Cardinality, Reference
from strandline.model.schema.declarations import Link
from strandline.model.schema.keys import shown_key
from strandline.model.schema.schema import Schema
from strandline.model.schema.violations import Violation
from strandline.model.tables import BranchTable
from strandline.model.wording import counted
from strandline.rules.changes import JudgedRow, Values, key_values, values_of
from strandline.rules.kind import (
    Breach,
    Declaration,
    Judging,
    Relations,
    RuleKind,
    is_there,
    joined,
    names,
    rows_of,
    table,
)
from strandline.rules.references import targets_present


def _fit(rule: Cardinality, declaration: Declaration) -> None:
    if not _references(declaration.schema, rule):
        raise BadRequest(
            f"{rule.text()} counts references that are not declared",
            hint=f"Declare reference({', '.join(rule.columns)} -> TABLE) too.",
        )


def _judge_counts(judging: Judging) -> None:
    """As many rows refer to one as may, wherever that number changes."""
    for table_id in {table_id: None for table_id, _ in judging.changes}:
        for link in judging.declared.links_from(table_id):
            if link.counts:
                _count(judging, link)
        for link in judging.declared.links_to(table_id):
            if any(rule.low for rule in link.counts) and not judging.changed(link.source):
                _count(judging, link)


def _count(judging: Judging, link: Link) -> None:
    columns, rows = link.reference.columns, judging.changed(link.source)
    after = values_of([change.after for change in rows], link.source, columns)
    before = values_of([change.before for change in rows], link.source, columns)
    touched: dict[Values, JudgedRow | None] = {}
    for change, had, has in zip(rows, before, after, strict=True):
        if has != had:
            touched.update({had: None} if had is not None and had not in touched else {})
            touched.update({has: change} if has is not None else {})
    for change in judging.changed(link.target):
        if change.before is None and change.after is not None and any(rule.low for rule in link.counts):
            touched.setdefault(key_values(change.key), None)
    if not touched:
        return
    judging.claims.read(link.source, "reference", columns, touched)
    numbers = dict.fromkeys(touched, 0)
    for holder in judging.look.having(link.source, columns, list(touched)):
        numbers[holder.value] += (link.source.table.table_id, holder.hash) not in judging.changes
    for has in after:
        if has in numbers:
            numbers[has] += 1
    for rule in link.counts:
        for value, number in numbers.items():
            _judge_number(judging, link, rule, value, number, touched[value])


def _judge_number(
    judging: Judging, link: Link, rule: Cardinality, value: Values, number: int, by: JudgedRow | None
) -> None:
    is_high = rule.high is not None and number > rule.high
    # What is not there has no number. Looked up last: a commit that keeps its rules need not depend on such a row.
    if not (is_high or number < rule.low) or not targets_present(judging, link.target, [value]):
        return
    reason = f"{_referred(number)}, and {rule.text()}"
    if not is_high:
        judging.tell(link.target, value, rule, value, reason)
    elif by is not None:
        judging.tell(link.source, key_values(by.key), rule, value, reason, by.place)


def _search(relations: Relations, branch_table: BranchTable, rule: Cardinality) -> Iterator[Breach]:
    for name in {reference.table.lower(): None for reference in _references(branch_table.schema, rule)}:
        if is_there(relations, name):
            yield from _search_in(relations, branch_table, rule, relations.branch_table(name))


def _references(schema: Schema, rule: Cardinality) -> list[Reference]:
    """The references that a rule counts: the same columns may refer to several tables, each with its own rows."""
    return [other for other in schema.constraints if isinstance(other, Reference) and other.columns == rule.columns]


def _search_in(
    relations: Relations, branch_table: BranchTable, rule: Cardinality, target: BranchTable
) -> Iterator[Breach]:
    key, number = names(target.table.key, "x."), f"count({names(branch_table.table.key[:1], 't.')})"
    wrong = f"{number} < {rule.low}" + ("" if rule.high is None else f" OR {number} > {rule.high}")
    query = (
        f"SELECT {key}, {number} FROM {table(target)} x LEFT JOIN {table(branch_table)} t "
        f"ON {joined(rule.columns, target)} GROUP BY {key} HAVING {wrong}"
    )
    for *values, rows in rows_of(relations, query):
        yield _miscounted(target, rule, tuple(values), rows)


def unreferred(relations: Relations, name: str, schema: Schema) -> Iterator[Breach]:
    """The rows that too few refer to if a table comes now, which has no rows yet, and wants some to be there."""
    for rule, reference in leasts(name, schema):
        if is_there(relations, reference.table):
            target = relations.branch_table(reference.table)
            for key in rows_of(relations, f"SELECT {names(target.table.key)} FROM {table(target)}"):
                yield _miscounted(target, rule, key, 0)


def leasts(name: str, schema: Schema) -> list[tuple[Cardinality, Reference]]:
    """What a table wants to be referred to at least so often, in others than itself."""
    return [
        (rule, reference)
        for rule in schema.constraints
        if isinstance(rule, Cardinality) and rule.low
        for reference in _references(schema, rule)
        if reference.table.lower() != name.lower()
    ]


def _miscounted(target: BranchTable, rule: Cardinality, key: Values, number: int) -> Breach:
    text, fields = shown_key(key), ", ".join(rule.columns)
    violation = Violation(target.table.name, text, fields, rule.text(), text, _referred(number))
    return Breach(violation, rule, target, key, key)


def _referred(number: int) -> str:
    return f"is referred to by {counted(number, 'row')}"


KIND = RuleKind(fit=_fit, search=_search, judge_commit=_judge_counts, conflict="cardinality_violation")
