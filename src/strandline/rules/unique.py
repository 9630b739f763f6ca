"""unique: no two rows of a table agree in some columns, unless one of them has a null there.

Of the rows that share a value, judging row by row tells all but the first, each with the name of another: the first
alone would be right. A relation has no first, so there all of them are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strandline.model.schema.constraints import Unique
from strandline.model.schema.keys import shown_key
from strandline.model.schema.types import KEY_TYPES, SEQ, is_exact
from strandline.model.tables import BranchTable
from strandline.rules.changes import JudgedRow, Values, key_values, values_of
from strandline.rules.kind import (
    Breach,
    Declaration,
    Judging,
    Relations,
    RuleKind,
    all_there,
    key_of,
    names,
    need,
    own_rows,
)
from strandline.rules.kind import table as named


def _fit(rule: Unique, declaration: Declaration) -> None:
    for column in declaration.columns(rule):
        need(is_exact(column.type), rule, column, f"one of {', '.join(sorted(KEY_TYPES))}, decimal")


def _judge_rows(judging: Judging, branch_table: BranchTable, rule: Unique, rows: Sequence[JudgedRow]) -> None:
    """No value is taken twice: among the changed rows, and by others."""
    after = values_of([change.after for change in rows], branch_table, rule.columns)
    before = values_of([change.before for change in rows], branch_table, rule.columns)
    holders: dict[Values, list[JudgedRow]] = {}
    taken: dict[Values, JudgedRow] = {}
    for change, had, has in zip(rows, before, after, strict=True):
        if has is not None:
            holders.setdefault(has, []).append(change)
            if has != had:
                taken.setdefault(has, change)  # the first: of those that share a value the others are told anyway
    for value, (first, *others) in holders.items():
        reason = f"is taken by {shown_key(key_values(first.key))} too"
        for change in others:
            judging.tell(branch_table, key_values(change.key), rule, value, reason, change.place)
    if not taken:
        return
    judging.claims.read(branch_table, "unique", rule.columns, taken)
    judging.claims.write(branch_table, "unique", rule.columns, taken)
    for holder in judging.look.having(branch_table, rule.columns, list(taken)):
        if (branch_table.table.table_id, holder.hash) not in judging.changes:
            change = taken[holder.value]
            reason = f"is taken by {shown_key(key_values(holder.key))}"
            judging.tell(branch_table, key_values(change.key), rule, holder.value, reason, change.place)


def _search(relations: Relations, branch_table: BranchTable, rule: Unique) -> Iterator[Breach]:
    by = names(rule.columns)
    query = (
        f"SELECT {names(key_of(branch_table))}, {by}, {SEQ} FROM {named(branch_table)} WHERE {all_there(rule.columns)} "
        f"QUALIFY count(*) OVER (PARTITION BY {by}) > 1 ORDER BY {by}"
    )
    return own_rows(relations, branch_table, rule, query, "is taken by another row too")


KIND = RuleKind(fit=_fit, search=_search, judge_rows=_judge_rows, conflict="unique_violation")
