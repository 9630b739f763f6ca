"""Schema changes: planned on a view, looked at with the data, made by one transaction if nothing has moved since.

There is nothing to stage. Rows and files stay as they are, and are read under the new schema from the commit on; what
Iceberg lacks is added by the next operation that writes the table. So a change costs the same whatever a table holds,
except for a look at the rows that could forbid it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strandline.errors import BadRequest, SchemaMoved, TableMoved
from strandline.failpoints import fail
from strandline.ledger.ledger import MAIN, MAX_SEQ, Ledger
from strandline.ledger.tables.schema_changes import SchemaChange, change_schemas
from strandline.model.reporting import Listed
from strandline.model.schema.document import SchemaDocument, parse_wanted, to_document
from strandline.model.schema.migration import Applied, MigrationPlan, TablePlan, numbered, plan, refers
from strandline.model.schema.violations import Violation
from strandline.model.tables import BranchTable
from strandline.operations.change.declare import check_new, refuse_broken
from strandline.operations.core.context import Context
from strandline.operations.maintain.erase import erase, with_erasing
from strandline.rules.cardinality import leasts
from strandline.rules.kind import Target
from strandline.rules.kinds import check_constraints
from strandline.rules.sets import breaking, lacking, too_few
from strandline.views.view import View

ATTEMPTS = 10


@dataclass(frozen=True)
class SchemaRequest:
    """A change as it was asked for; `tip` is the commit that the branch is expected at."""

    doc: object
    actor: str
    message: str = ""
    tip: str | None = None


def make_plan(view: View, doc: object, *, hard: Ledger | None = None) -> MigrationPlan:
    """The steps from a branch's schemas to those of a document.

    With a ledger to ask which other branches have its tables, no value may be left of columns that are shown no more.
    """
    every = view.whole()
    branch_tables = {name.lower(): every.branch_table(name) for name in every.tables}
    declared = parse_wanted(doc)
    planned = plan(view.branch, branch_tables, declared, on_main=view.branch == MAIN)
    for table in planned.tables:
        _check(view, planned, table)
    if hard is None:
        return planned
    named = [branch_tables[table.name.lower()] for table in declared if table.name.lower() in branch_tables]
    return with_erasing(hard, planned, named)


def describe(view: View, tables: Iterable[str]) -> SchemaDocument:
    """The schemas of these tables of a branch, as a document that can be changed and applied."""
    return {"tables": {name: to_document(view.branch_table(name)) for name in tables}}


def apply_change(ctx: Context, take_view: Callable[[], View], request: SchemaRequest, *, hard: bool) -> Applied:
    """Make a branch's schemas what a document says; `hard` leaves no values of columns that are shown no more."""
    return apply_hard(ctx, take_view, request) if hard else apply(ctx.ledger, take_view, request)


def apply_hard(ctx: Context, take_view: Callable[[], View], request: SchemaRequest) -> Applied:
    """The same as `apply`, and no values are left of columns that are shown no more. Run again it does what is left."""
    view = take_view()
    planned = make_plan(view, request.doc, hard=ctx.ledger)
    refuse(planned)
    names = list(dict.fromkeys(step.table for step in planned.loses))
    if names:
        ctx.iceberg()  # where there is no Java, say so before anything is begun
    gone = {table.name: table.gone for table in planned.tables}
    done = apply(ctx.ledger, take_view, request)
    warnings = [text for name in names for text in erase(ctx, name, view.branch, request.actor, gone.get(name, ()))]
    return Applied(planned.steps, done.commit, tuple(warnings))


def apply(ledger: Ledger, take_view: Callable[[], View], request: SchemaRequest) -> Applied:
    """Make a branch's schemas what a document says, as one commit; an error says what stands against it."""
    for attempts_left in reversed(range(ATTEMPTS)):
        view = take_view()
        planned = make_plan(view, request.doc)
        refuse(planned)
        if not planned.tables:
            return Applied((), None)
        seen = look_at(view, planned)
        message, shape = request.message or _message(planned), view.base.shape
        change = SchemaChange(planned, request.actor, message, shape, seen, request.tip)
        fail("schema.before_store")
        try:
            return Applied(planned.steps, change_schemas(ledger, change))
        except (SchemaMoved, TableMoved):
            if attempts_left == 0:
                raise
    raise AssertionError("unreachable")


def refuse(planned: MigrationPlan) -> None:
    """BadRequest that lists the steps which can't be done."""
    if not planned.refused:
        return
    first, *others = planned.refused
    more = f" (and {len(others)} more)" if others else ""
    raise BadRequest(
        f"{' '.join(filter(None, (first.table + ':', first.what, first.column)))}: {first.why}{more}",
        hint="Nothing was changed. `strand schema plan` shows all steps.",
        steps=[vars(step) for step in planned.refused],
    )


def look_at(view: View, planned: MigrationPlan) -> list[BranchTable]:
    """Look for rows that forbid a plan, a conflict if there are any; returns the tables that were looked at."""
    after = preview(view, planned)
    violations: Listed[Violation] = Listed()
    seen: set[str] = set()
    for table in planned.tables:
        if table.branch_table is None or table.branch_table.is_dropped:
            violations.add(too_few(after, table.name, table.schema))
            seen |= {reference.table.lower() for _, reference in leasts(table.name, table.schema)}
            continue
        if not table.is_validated:
            continue
        branch_table = after.branch_table(table.name)
        seen |= {table.name.lower(), *refers(branch_table.schema)}
        for column in table.required:
            violations.add(lacking(after, branch_table, column))
        for constraint in table.constraints:
            violations.add(breaking(after, branch_table, constraint))
    refuse_broken(violations)
    return [view.branch_table(name) for name in view.tables if name.lower() in seen]


def preview(view: View, planned: MigrationPlan) -> View:
    """The branch as it would be after a plan: its rows, under the schemas that are wanted."""
    schemas = {
        table.branch_table.table.table_id: numbered(table.schema, MAX_SEQ)
        for table in planned.tables
        if table.branch_table is not None
    }
    return view.under(schemas)


def _check(view: View, planned: MigrationPlan, table: TablePlan) -> None:
    """BadRequest where a table can't be so, by what it and others will be."""
    new = {other.name.lower(): other for other in planned.tables}
    schema, declared = table.schema, table.target
    if schema.dropped:
        return

    def target(name: str) -> Target:
        other = new.get(name.lower())
        if other is None:
            branch_table = view.branch_table(name)
            return Target(branch_table.table.name, branch_table.table.key, branch_table.schema)
        key = other.branch_table.table.key if other.branch_table is not None else other.target.key or ()
        return Target(other.name, key, other.schema)

    if table.branch_table is not None:
        check_constraints(schema, table.branch_table.table.key, target)
        return
    check_new(
        table.name,
        schema,
        key=declared.key or (),
        row_key=declared.row_key or (),
        partition_by=declared.partition_by or (),
        target_of=target,
    )


def _message(planned: MigrationPlan) -> str:
    return "; ".join(" ".join(filter(None, (f"{step.table}:", step.what, step.column))) for step in planned.steps)
