"""Operations that were declared, asked for: done once, and looked at to see which of them are due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from strandline.config import MaintenanceConfig
from strandline.ledger.ledger import MAIN
from strandline.ledger.tables.tables import branch_id, read_branch_tables
from strandline.model.maintenance import Maintained, Need
from strandline.operations.core.branch_moment import BranchMoment
from strandline.operations.core.context import Context
from strandline.operations.core.declared import Declared, Due
from strandline.operations.core.failures import outages_typed
from strandline.operations.core.registry import all_declared


@dataclass(frozen=True)
class DueJob:
    """An operation that a worker should do now, to one table or to the lake."""

    operation: type[Declared]
    table: str
    due: Due


@outages_typed
def run_declared(ctx: Context, operation: Declared, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
    """Do an operation that a person, a command or a worker asks for."""
    return operation.run(ctx, tables, branch, actor)


def count(ctx: Context, branch: str) -> dict[str, dict[str, int]]:
    """What each table of a branch needs, the neediest first; those that need nothing are left out. No file is opened.

    Log tables are main's: another branch needs nothing for them.
    """
    counted: dict[str, dict[str, int]] = {}
    with ctx.ledger.read() as conn:
        look = BranchMoment(conn, branch_id(conn, branch), ctx.grace_s)
        for branch_table in read_branch_tables(conn, branch):
            if branch != MAIN and not branch_table.table.key:
                continue
            counts = {
                name: n for operation in all_declared() for name, n in operation.count(look, branch_table).items() if n
            }
            if counts:
                counted[branch_table.table.name] = counts
    return dict(sorted(counted.items(), key=_neediest))


def _neediest(table: tuple[str, dict[str, int]]) -> tuple[int, int, int, str]:
    name, counts = table
    return (-counts.get("small_files", 0), -counts.get("old_rows", 0), -counts.get("snapshots", 0), name)


def needs(ctx: Context, branch: str) -> list[Need]:
    """The same as a user reads it."""
    names = {field.name for field in fields(Need)}
    return [
        Need(table, **{name: n for name, n in counts.items() if name in names})
        for table, counts in count(ctx, branch).items()
    ]


def due_on_branch(ctx: Context, branch: str, rules: MaintenanceConfig) -> Iterator[DueJob]:
    """What a worker should do to the tables of a branch."""
    operations = sorted(all_declared(), key=lambda operation: operation.turn)
    for table, counts in count(ctx, branch).items():
        for operation in operations:
            if not operation.of_lake and (due := operation.due(counts, rules)) is not None:
                yield DueJob(operation, table, due)


def due_on_lake(ctx: Context, rules: MaintenanceConfig) -> Iterator[DueJob]:
    """What a worker should do to the lake as a whole."""
    with ctx.ledger.read() as conn:
        look = BranchMoment(conn, branch_id(conn, MAIN), ctx.grace_s)
        for operation in all_declared():
            if operation.of_lake and (due := operation.due(operation.count_lake(look), rules)) is not None:
                yield DueJob(operation, "", due)
