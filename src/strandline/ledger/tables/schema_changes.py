"""Changes of schemas: one transaction and one commit over several tables, if all is as it was planned on.

No row is written. A new version of a table's schema is a row, and the head names it. A writer that validated rows by
the older one is told by the head's version (`schema_moved`) and by its barrier, and validates again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from strandline.errors import Busy, Conflict, SchemaMoved
from strandline.failpoints import fail
from strandline.ledger.changes.mutations import other_tip
from strandline.ledger.database import schema as db
from strandline.ledger.history.commits import write_commit
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.tables.tables import (
    branch_id,
    insert_schema,
    insert_table,
    is_protected,
    new_table,
    raise_shape,
    read_head,
    read_schemas,
    refuse_changed,
    refuse_protected,
    set_schema,
)
from strandline.model.history.commits import Commit
from strandline.model.schema.migration import MigrationPlan, TablePlan, numbered
from strandline.model.tables import BranchTable


@dataclass(frozen=True)
class SchemaChange:
    """A plan that is ready, and what it depends on: `shape` is that of the branch's tables.

    `seen` are the tables whose rows it was judged by.
    """

    plan: MigrationPlan
    actor: str
    message: str
    shape: int
    seen: Sequence[BranchTable] = ()
    tip: str | None = None


def change_schemas(ledger: Ledger, change: SchemaChange) -> Commit:
    """Make it one commit; Conflict when something is not as it was planned on, and nothing was changed."""

    def work(txn: Txn) -> Commit:
        on_branch = branch_id(txn.conn, change.plan.branch)
        branch = db.branches.c
        tip, shape = txn.conn.execute(select(branch.tip, branch.shape).where(branch.branch_id == on_branch)).one()
        if any(table.branch_table is None or table.branch_table.table.key for table in change.plan.tables):
            refuse_protected(change.plan.branch, protected=is_protected(txn.conn, on_branch))
        moved = other_tip(change.plan.branch, change.tip, tip)
        if moved is not None:
            raise moved
        if shape != change.shape:
            raise _moved(f"tables of branch {change.plan.branch!r} were changed meanwhile", change.shape, shape)
        _refuse_moved(txn, change)
        commit = write_commit(
            txn,
            change.plan.branch,
            kind="schema",
            actor=change.actor,
            message=change.message,
            tables={table.name: 0 for table in change.plan.tables},
        )
        for table in change.plan.tables:
            _change(txn, on_branch, table, commit.seq)
        raise_shape(txn, on_branch)
        fail("schema.before_commit")
        return commit

    commit = ledger.run(work)
    fail("schema.after_commit")
    return commit


def _change(txn: Txn, on_branch: str, planned: TablePlan, number: int) -> None:
    schema, design = numbered(planned.schema, number), planned.target
    if planned.branch_table is None:
        table = new_table(
            txn,
            planned.name,
            key=design.key or (),
            row_key=design.row_key or (),
            partition_by=design.partition_by or (),
        )
        insert_table(txn, table, schema, on_branch, number)
        return
    head = planned.branch_table.head
    insert_schema(txn, head.branch_id, head.table_id, number, schema)
    set_schema(txn, head.branch_id, head.table_id, number)


def _refuse_moved(txn: Txn, change: SchemaChange) -> None:
    for planned in change.plan.tables:
        if planned.branch_table is not None:
            _refuse_other_schema(txn, planned.branch_table)
            _refuse_loading(txn, planned)
    refuse_changed(txn.conn, change.seen)


def _refuse_other_schema(txn: Txn, branch_table: BranchTable) -> None:
    """Neither may the table's schema have moved here, nor any branch have given a name to a column of it since."""
    now = read_head(txn.conn, branch_table.head.branch_id, branch_table.head.table_id)
    if (
        now.schema_version != branch_table.head.schema_version
        or read_schemas(txn.conn, now.table_id) != branch_table.schemas
    ):
        message = f"the schema of {branch_table.table.name!r} was changed meanwhile"
        raise _moved(message, branch_table.head.schema_version, now.schema_version)


def _moved(message: str, expected: int, actual: int) -> Conflict:
    hint = "Nothing was changed. Plan it again."
    return SchemaMoved(message, hint=hint, expected=expected, actual=actual)


def _refuse_loading(txn: Txn, planned: TablePlan) -> None:
    """Rows of a load that is under way would come in after the table is gone."""
    if not planned.schema.dropped or planned.branch_table is None:
        return
    reserved = db.reservations.c
    same_table = (
        reserved.branch_id == planned.branch_table.head.branch_id,
        reserved.table_id == planned.branch_table.head.table_id,
    )
    if txn.conn.execute(select(reserved.first_seq).where(*same_table).limit(1)).scalar() is not None:
        raise Busy(
            f"rows are being loaded into {planned.name!r}",
            hint="Nothing was changed. Drop it when the load is done; `strand status` shows it.",
            reason="loading",
        )
