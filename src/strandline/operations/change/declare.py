"""Whether a table can be made as it is described: the same rules for one by itself and for those of a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from strandline.errors import BadRequest, Conflict
from strandline.ledger.tables.tables import check_name
from strandline.model.reporting import Listed, and_more, most_reported
from strandline.model.schema.keys import check_key
from strandline.model.schema.migration import RESERVED
from strandline.model.schema.partitions import check_partition_columns
from strandline.model.schema.schema import Schema
from strandline.model.schema.violations import Violation
from strandline.model.tables import BranchTable
from strandline.rules.cardinality import leasts
from strandline.rules.kind import Target
from strandline.rules.kinds import check_constraints
from strandline.rules.sets import too_few
from strandline.views.view import View


def check_new(
    name: str,
    schema: Schema,
    *,
    key: Sequence[str] = (),
    row_key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    dedupe: str = "table",
    target_of: Callable[[str], Target],
) -> None:
    """BadRequest unless there can be such a table; `target_of` finds what its references name."""
    check_name(name)
    if name.lower().startswith(RESERVED):
        raise BadRequest(
            f"{name!r} can't be a table's name: those that begin with {RESERVED!r} are Strandline's own",
            hint="Pick another name. A table that has such a name already goes on as it is.",
        )
    for column in row_key:
        schema.column(column)
    check_partition_columns(schema, partition_by)
    if key:
        check_key(schema, key, partition_by)
        if row_key:
            raise BadRequest("a table has a key or a row key, not both", hint="A keyed table has no duplicates.")
    if dedupe not in ("table", "partition"):
        raise BadRequest(f"dedupe is {dedupe!r}", hint="It is 'table' or 'partition'.")
    if dedupe == "partition" and not partition_by:
        raise BadRequest("dedupe='partition' needs partition_by", hint="Name the partition columns, or use 'table'.")

    def target(table: str) -> Target:
        return Target(name, tuple(key), schema) if table.lower() == name.lower() else target_of(table)

    check_constraints(schema, key, target)


def look_before(take_view: Callable[[], View], name: str, schema: Schema) -> list[BranchTable]:
    """Look for rows that forbid a new table, a conflict if there are any; returns the tables that were looked at."""
    references = leasts(name, schema)
    if not references:
        return []
    view = take_view()
    violations: Listed[Violation] = Listed()
    violations.add(too_few(view, name, schema))
    refuse_broken(violations)
    return [view.branch_table(reference.table) for _, reference in references]


def refuse_broken(violations: Listed[Violation]) -> None:
    """Conflict that lists the rows which break what is to be declared."""
    if not violations.count:
        return
    first = violations.first[0]
    raise Conflict(
        first.text() + and_more(violations.count),
        kind="constraint",
        hint="Nothing was changed. Change these rows first, or give a default.",
        expected=first.rule,
        actual=first.value,
        violations=[asdict(violation) for violation in violations.first[: most_reported()]],
        count=violations.count,
    )
