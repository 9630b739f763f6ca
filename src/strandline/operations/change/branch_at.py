"""A branch at a past commit: what its holder has now, without the rows that came later.

Where these are still in the ledger it is a matter of references. In files, whole ones are left out and the others
written again without them, as an operation of each table; then its state is folded anew. Until all of that is done the
branch has no name, so no reader sees a part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.failpoints import fail
from strandline.ledger.history import past_branches
from strandline.ledger.history.branches import Branch, create_branch_of
from strandline.ledger.history.refs import find_point
from strandline.ledger.ledger import MAIN
from strandline.ledger.publish.publishing import Effects
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.tables import branch_name, read_branch_tables
from strandline.model.maintenance import Budget
from strandline.operations.core.bite_by_bite import Bite
from strandline.operations.core.context import Context
from strandline.operations.core.steps import RunningOperation, run
from strandline.operations.maintain.fold import fold
from strandline.operations.maintain.removal import Removal, find_rows, stage_removal
from strandline.views.time_travel import Shown, read_past, refuse_pruned


@dataclass
class Trim(Bite):
    """Rows go from a table of a branch that is being made; a purge may come to it too."""

    removal: Removal
    kind: str = "branch"

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Write the log without the rows."""
        return (replace(stage_removal(ctx, self.branch_table, self.removal, running.op_id), barrier=True),)


def branch_at(ctx: Context, name: str, at: str, actor: str) -> Branch:
    """Make a branch at whatever a text names: a branch, a tag, a commit or a time of main."""
    with ctx.ledger.read() as conn:
        point = find_point(conn, at, MAIN)
        refuse_pruned(conn, point)
    if point.covers == point.commit.commit_id:
        return create_branch_of(ctx.ledger, name, point.holder, point.commit.commit_id)
    with ctx.ledger.write() as txn:  # found anew: what its holder has taken over since would not be hidden
        point = find_point(txn.conn, at, MAIN)
        refuse_pruned(txn.conn, point)
        past = [
            (branch_table, shown)
            for branch_table, shown in read_past(txn.conn, point)
            if branch_table.table.key and not branch_table.is_dropped
        ]
        schemas = {branch_table.table.table_id: branch_table.head.schema_version for branch_table, _ in past}
        made = past_branches.begin(txn, name, point, schemas, {commit.commit_id for commit in point.hidden})
        building = branch_name(txn.conn, made)
    try:
        for branch_table, shown in past:
            _cut(ctx, building, branch_table.table.name, shown, actor)
        fail("branch.before_commit")
        with ctx.ledger.write() as txn:
            past_branches.finish(txn, made, name)
            at_us = txn.at_us
    except Exception:
        with ctx.ledger.write() as txn:
            past_branches.give_up(txn, made)
        raise
    fail("branch.after_commit")
    return Branch(made, name, point.commit.commit_id, None, at_us)


def _cut(ctx: Context, branch: str, table: str, shown: Shown, actor: str) -> None:
    while True:
        with ctx.ledger.read() as conn:
            branch_table = read_branch_tables(conn, branch, [table])[0]
            files = read_files(
                conn, branch_table.head.branch_id, branch_table.table.table_id, branch_table.head.version
            )
        removal, _ = find_rows(branch_table, files, f"NOT ({shown.condition()})")
        if not removal.rows or run(ctx, Trim(table, branch, actor, branch_table.head.version, removal)) is not None:
            break
    if files and branch_table.folded_seq == 0:
        fold(ctx, table, branch, actor, Budget())
