"""Whether what a commit changes keeps the rules of all tables: row by row, for mutations, loads and merges.

It is given the changed rows of all tables, as they were and as they will be, and a way to look others up. A commit is
judged as a whole, by what is there after it: two rows may swap a unique value. Nothing is added to it here: what a
mutation's deletes take with them is among its changes already (`cascades`), and merges and loads take nothing with
them. The cost follows the change: a row that does not change what a rule is about is not looked at for that rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from strandline.errors import Conflict, InvalidRows
from strandline.model.reporting import and_more, most_reported
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.violations import Violation
from strandline.rules.changes import Changes, Claims, JudgedRow, LookUp
from strandline.rules.kind import Judging
from strandline.rules.kinds import KINDS, in_order, kind_of


def judge(declared: Declarations, changes: Changes, look: LookUp, claims: Claims | None = None) -> Claims:
    """Judge a commit as a whole: what it depends on, or an error that lists what it breaks.

    `claims` has what it depends on already.
    """
    judging = examine(declared, changes, look, claims)
    if judging.breaches:
        violations = [breach.violation for breach in judging.breaches]
        raise refusal(violations, len(violations), only_rows=judging.only_rows)
    return judging.claims


def examine(declared: Declarations, changes: Changes, look: LookUp, claims: Claims | None = None) -> Judging:
    """The same, with all that is broken listed."""
    judging = Judging(declared, changes, look, claims)
    by_table: dict[str, list[JudgedRow]] = {}
    for change in changes.values():
        by_table.setdefault(change.branch_table.table.table_id, []).append(change)
    for table_id, rows in by_table.items():
        branch_table = declared.branch_tables[table_id]
        for rule in in_order(branch_table.schema.constraints):
            judge_rows = kind_of(rule).judge_rows
            if judge_rows is not None:
                judge_rows(judging, branch_table, rule, rows)
    for kind in KINDS:
        if kind.judge_commit is not None:
            kind.judge_commit(judging)
    return judging


def refusal(violations: Sequence[Violation], count: int, *, only_rows: bool) -> InvalidRows | Conflict:
    """The error that lists the first of so many breaches; `only_rows` where every row is wrong by itself."""
    first = violations[0]
    more = and_more(count)
    hint = "Nothing was changed."
    first_violations = violations[: most_reported()]
    listed = [asdict(violation) for violation in first_violations]
    if only_rows:
        bad = [
            {"index": row.index, "field": row.field, "value": row.value, "reason": row.reason}
            for row in first_violations
        ]
        return InvalidRows(first.text() + more, hint=hint, rows=bad, bad=count, violations=listed)
    return Conflict(
        first.text() + more,
        kind="constraint",
        hint=hint,
        expected=first.rule,
        actual=first.value,
        violations=listed,
        count=count,
    )
