"""Which tables an operation is asked for, and the same work for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.errors import Busy, KeysExpired, Unreachable
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.maintenance import Maintained
from strandline.operations.core.context import Context


def table_names(ctx: Context, tables: Sequence[str], branch: str) -> list[str]:
    """These tables, or all of a branch."""
    with ctx.ledger.read() as conn:
        return [branch_table.table.name for branch_table in read_branch_tables(conn, branch, list(tables) or None)]


def keyed_names(ctx: Context, branch: str) -> list[str]:
    """The keyed tables of a branch."""
    with ctx.ledger.read() as conn:
        return [branch_table.table.name for branch_table in read_branch_tables(conn, branch) if branch_table.table.key]


def each_table(names: Sequence[str], work: Callable[[str], Maintained]) -> list[Maintained]:
    """The same for several tables; one that another operation holds keeps no other waiting."""
    done: list[Maintained] = []
    for name in names:
        try:
            done.append(work(name))
        except Busy as error:
            if len(names) == 1 or isinstance(error, Unreachable | KeysExpired):
                raise
            done.append(Maintained(name, {}, {}, complete=False, warnings=(str(error),)))
    return done
