"""Retention: rows that are older than a table's window go, and never one that a sink still has to deliver.

How old a row is, its time column says. A stream is pruned up to the lowest watermark of the sinks that follow it; the
publish looks at the watermarks again. The files' figures in the ledger say which files are past the window as a whole,
and these go without being opened. What is left at the edge of the window is written again without its old rows: at
once when a person asks, and by the worker when it is a good part of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from strandline.config import MaintenanceConfig
from strandline.engines.duck import relations, sandbox
from strandline.errors import PreconditionFailed
from strandline.ledger.files import read_files, set_times
from strandline.ledger.ledger import Connection
from strandline.ledger.limits import Limit, lowest, read_limits
from strandline.ledger.table_settings import UNKNOWN_US
from strandline.ledger.tables import read_states
from strandline.model.maintenance import Budget, Maintained
from strandline.model.moments import text_of
from strandline.model.operations import Effects
from strandline.model.tables import DataFile, TableState
from strandline.model.types import SEQ
from strandline.model.wording import counted
from strandline.operations.bites import BITE_BYTES, Bite, Bites, somebody_waits
from strandline.operations.context import Context
from strandline.operations.core.declared import (
    DRY_RUN,
    MAX_BYTES,
    MAX_TIME,
    WORKERS_BYTES,
    WORKERS_S,
    YES,
    Declared,
    Docs,
    Due,
    option,
)
from strandline.operations.core.looking import Look
from strandline.operations.core.tables import each_table, keyed_names, table_names
from strandline.operations.deletion_time import deletion_us
from strandline.operations.layout import size_of
from strandline.operations.removal import Removal, find_rows, stage_removal
from strandline.operations.steps import Running
from strandline.views.view import files_sql

WORTH_SHARE = 0.25
"""Of a file's rows: when so many are old, the worker writes it again without them."""
BITE_FILES = 1000


@dataclass(frozen=True)
class Retention(Declared):
    """Remove rows that are older than their table's retention.

    A row that a sink still has to deliver stays, and the sink is named. `strand table set NAME retention=90d` sets the
    window, and `time_column=…` what it is measured by.

    \b
    Example: strand retain --dry-run
    """

    dry_run: bool = field(default=False, metadata=DRY_RUN)
    max_bytes: int | None = field(default=None, metadata=MAX_BYTES)
    max_time_s: float | None = field(default=None, metadata=MAX_TIME)
    force_past_sinks: bool = field(
        default=False,
        metadata=option("--force-past-sinks", "Also rows that sinks have not delivered; lists them."),
    )
    """Needs `yes`."""
    yes: bool = field(default=False, metadata=YES)
    """Rows go also when none is left."""
    eager: bool = field(default=True, metadata=option(is_sent=False))
    """Not eager, files at the edge of the window wait until a good part of them is old."""

    name: ClassVar[str] = "retain"
    docs: ClassVar[Docs] = Docs(
        "rows that are older than the table's window; of a keyed table versions that were replaced before it",
        "a row that a sink has still to deliver, or the newest version of one",
        "rows are past the table's retention",
    )

    def run(self, ctx: Context, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
        """Prune these tables, or all."""
        from strandline.operations.retain_keyed import retain_keyed

        budget = Budget(self.max_bytes, self.max_time_s)
        keyed = set(keyed_names(ctx, branch))
        how = {"eager": self.eager, "past_sinks": self.force_past_sinks, "yes": self.yes, "dry_run": self.dry_run}

        def work(name: str) -> Maintained:
            prune = retain_keyed if name in keyed else retain
            return prune(ctx, name, branch, actor, budget, **how)

        return each_table(table_names(ctx, tables, branch), work)

    @classmethod
    def count(cls, look: Look, state: TableState) -> dict[str, int]:
        """About how many rows would go, or of a keyed table would be looked at."""
        from strandline.operations.retain_keyed import plan as plan_keyed

        if look.now_us is None:
            return {}
        if state.table.key:
            versions = plan_keyed(look.conn, state, look.now_us)
            return {"old_rows": versions.passed} if versions is not None and versions.is_due else {}
        old = plan(look.conn, state, look.now_us)
        return {} if old is None else {"old_rows": estimate(old)}

    @classmethod
    def due(cls, counts: Mapping[str, int], rules: MaintenanceConfig) -> Due | None:
        """When there are any."""
        rows = counts.get("old_rows", 0)
        return Due(f"past its retention: {counted(rows, 'row')}", rows) if rows else None

    @classmethod
    def bite(cls) -> Self:
        """What is worth it, and so much at most."""
        return cls(eager=False, max_bytes=WORKERS_BYTES, max_time_s=WORKERS_S)


@dataclass
class Retain(Bite):
    """Rows go from the log."""

    removal: Removal
    past_sinks: bool
    kind: str = "retain"

    def stage(self, ctx: Context, running: Running) -> Effects:
        """Write the log without the rows."""
        effect = stage_removal(ctx, self.state, self.removal, running.op_id)
        self.waited_for = somebody_waits(ctx, self.state)
        pruned = self.removal.streams
        return Effects(tables=(replace(effect, pruned=pruned, past_sinks=self.past_sinks, barrier=True),))


@dataclass(frozen=True)
class Plan:
    """What of a table is past its window: what may go now, and what sinks still hold."""

    state: TableState
    now_us: int
    cutoff_us: int
    whole: tuple[DataFile, ...]
    edge: tuple[DataFile, ...]
    held: tuple[DataFile, ...]
    limits: Mapping[str, Limit]
    all_limits: tuple[Limit, ...]

    def limit(self, partition: str) -> int | None:
        """Up to which seq rows of a stream may go; None is without a limit."""
        found = self.limits.get(partition)
        return None if found is None else found.seq


def plan(conn: Connection, state: TableState, now_us: int, *, past_sinks: bool = False) -> Plan | None:
    """What is past a table's window, by what the ledger knows of its files; None when rows are kept for good."""
    cutoff_us = state.table.settings.cutoff_us(now_us)
    if cutoff_us is None:
        return None
    head = state.head
    limits = read_limits(conn, head.branch_id, head.table_id)
    held_at = {} if past_sinks else lowest(limits)
    whole, edge, held = [], [], []
    for file in read_files(conn, head.branch_id, head.table_id, head.version):
        if file.oldest_us is None or file.oldest_us >= cutoff_us:
            continue
        reach = held_at[file.partition].seq if file.partition in held_at else file.last_seq
        if reach < file.first_seq:
            held.append(file)
        elif reach >= file.last_seq and file.newest_us is not None and file.newest_us < cutoff_us:
            whole.append(file)
        else:
            edge.append(file)
    return Plan(state, now_us, cutoff_us, tuple(whole), tuple(edge), tuple(held), held_at, tuple(limits))


def estimate(planned: Plan) -> int:
    """About how many rows the worker would remove: of whole files, and of those that seem to be old in good part."""
    rows = sum(file.rows for file in planned.whole)
    for file in planned.edge:
        if file.oldest_us is None or file.oldest_us == UNKNOWN_US:
            rows += 1  # it has to be looked into
            continue
        newest_us = max(file.oldest_us + 1, planned.now_us if file.newest_us is None else file.newest_us)
        share = (planned.cutoff_us - file.oldest_us) / (newest_us - file.oldest_us)
        rows += int(file.rows * min(1.0, share)) if share >= WORTH_SHARE else 0
    return rows


def choose(ctx: Context, planned: Plan, *, eager: bool, bite_bytes: int) -> Removal:
    """One bite of what may go: whole files, and of those at the edge of the window their old rows."""
    whole = planned.whole[:BITE_FILES]
    if whole:
        return Removal(whole=whole)
    taken: list[DataFile] = []
    found = Removal()
    for file in planned.edge:
        if taken and (size_of(taken) + file.size_bytes > bite_bytes or len(taken) >= BITE_FILES):
            break
        one = _old_rows(ctx, planned, file)
        if one.rows == 0 or (not eager and one.rows < WORTH_SHARE * file.rows):
            continue
        taken.append(file)
        found = found.plus(one)
    return found


def _old_rows(ctx: Context, planned: Plan, file: DataFile) -> Removal:
    state = planned.state
    column = state.table.settings.time_column
    if file.oldest_us == UNKNOWN_US:
        _look_into(ctx, state, file, column)
    condition = relations.older_than(column, planned.cutoff_us)
    limit = planned.limit(file.partition)
    if limit is not None:
        condition = f"{condition} AND {SEQ} <= {limit}"
    return find_rows(state, [file], condition)[0]


def _look_into(ctx: Context, state: TableState, file: DataFile, column: str) -> None:
    """Write down the range of a file's times, which is not known since the table has another time column."""
    with sandbox.interruptible(), sandbox.scratch() as connection:
        rows = files_sql(state, [file], [one for one in state.columns if one.name == column])
        oldest_us, newest_us = relations.range_us(connection, rows, column)
    with ctx.ledger.write() as txn:
        set_times(txn, state.head.branch_id, state.table.table_id, file.path, oldest_us, newest_us)


def retain(
    ctx: Context,
    table: str,
    branch: str,
    actor: str,
    budget: Budget,
    *,
    eager: bool = True,
    past_sinks: bool = False,
    yes: bool = False,
    dry_run: bool = False,
) -> Maintained:
    """Remove what is past a table's window, bite by bite, as far as the budget goes."""
    now_us = deletion_us(ctx, f"the retention of {table!r}")
    before, rows = figures(ctx, table, branch), 0
    bites = Bites(ctx, budget)
    while True:
        with ctx.ledger.read() as conn:
            state = read_states(conn, branch, [table])[0]
            planned = plan(conn, state, now_us, past_sinks=past_sinks)
        if planned is None:
            return Maintained(state.table.name, before, before, dry_run=dry_run, detail={"retention": None})
        if rows == 0 and not dry_run and not yes:
            _refuse_everything(ctx, planned)
            _refuse_past_sinks(planned, past_sinks=past_sinks)
        if dry_run:
            return _preview(ctx, planned, before)
        if budget.is_spent:
            break
        removal = choose(ctx, planned, eager=eager, bite_bytes=budget.bite(BITE_BYTES))
        if removal.rows == 0:
            break
        operation = Retain(table, branch, actor, state.head.version, removal, past_sinks)
        if bites.take(operation, state, size_of([*removal.whole, *removal.partly])) is not None:
            rows += removal.rows
            ctx.report(f"pruning {state.table.name}", rows, None)
    held = _held(planned)
    return Maintained(
        table=state.table.name,
        before=before,
        after=figures(ctx, table, branch),
        complete=not budget.is_spent or not (planned.whole or planned.edge),
        operations=tuple(bites.operations),
        warnings=(*bites.warnings, *(_told(one) for one in held)),
        detail={"cutoff": text_of(planned.cutoff_us), "pruned": rows, "held_by": held},
    )


def figures(ctx: Context, table: str, branch: str) -> dict[str, int]:
    """What a table's log holds."""
    with ctx.ledger.read() as conn:
        head = read_states(conn, branch, [table])[0].head
        files = read_files(conn, head.branch_id, head.table_id, head.version)
    return {"rows": sum(file.rows for file in files), "files": len(files), "size_bytes": size_of(files)}


def _preview(ctx: Context, planned: Plan, before: Mapping[str, int]) -> Maintained:
    edge = [_old_rows(ctx, planned, file) for file in planned.edge]
    rows = sum(file.rows for file in planned.whole) + sum(one.rows for one in edge)
    gone = [*planned.whole, *(file for one in edge for file in one.whole)]
    held = _held(planned)
    return Maintained(
        table=planned.state.table.name,
        before=before,
        after={
            "rows": before["rows"] - rows,
            "files": before["files"] - len(gone),
            "size_bytes": before["size_bytes"] - size_of(gone),
        },
        dry_run=True,
        complete=rows == 0,
        warnings=tuple(_told(one) for one in held),
        detail={
            "cutoff": text_of(planned.cutoff_us),
            "pruned": rows,
            "held_by": held,
            "never_delivered": _never_delivered(planned) if not planned.limits else [],
        },
    )


def _refuse_everything(ctx: Context, planned: Plan) -> None:
    total = planned.state.head.books.log
    going = sum(file.rows for file in planned.whole)
    if total and going + sum(file.rows for file in planned.edge) >= total:
        going += sum(_old_rows(ctx, planned, file).rows for file in planned.edge)
    if total and going == total:
        raise PreconditionFailed(
            f"the whole log of {planned.state.table.name!r} ({counted(total, 'row')}) is older than its retention",
            hint="`--yes` removes them all; `strand table set NAME retention=…` changes the window.",
            count=total,
        )


def _refuse_past_sinks(planned: Plan, *, past_sinks: bool) -> None:
    lost = _never_delivered(planned) if past_sinks else []
    if lost:
        told = "; ".join(
            f"{one['sink']} never gets {counted(one['rows'], 'row')} of stream {one['partition']}" for one in lost
        )
        raise PreconditionFailed(
            f"rows would go that sinks have not delivered: {told}", hint="`--yes` removes them all the same.", lost=lost
        )


def _never_delivered(planned: Plan) -> list[dict[str, Any]]:
    """What each sink would never get, since its watermark is no limit."""
    files = (*planned.whole, *planned.edge)
    return _behind(planned, planned.all_limits, files)


def _held(planned: Plan) -> list[dict[str, Any]]:
    """Per stream that is held back: by which sink, where it is, and how many old rows wait for it."""
    return _behind(planned, planned.limits.values(), (*planned.held, *planned.edge))


def _behind(planned: Plan, limits: Iterable[Limit], files: Sequence[DataFile]) -> list[dict[str, Any]]:
    """How many old rows of these files lie behind each of the limits."""
    found = []
    for limit in limits:
        rows = sum(
            _count_old(planned, file, limit.seq)
            for file in files
            if file.partition == limit.partition and file.last_seq > limit.seq
        )
        if rows:
            found.append({"sink": limit.sink, "partition": limit.partition, "seq": limit.seq, "rows": rows})
    return found


def _count_old(planned: Plan, file: DataFile, behind: int) -> int:
    if file.newest_us is not None and file.newest_us < planned.cutoff_us and file.first_seq > behind:
        return file.rows
    settings = planned.state.table.settings
    condition = f"{relations.older_than(settings.time_column, planned.cutoff_us)} AND {SEQ} > {behind}"
    return find_rows(planned.state, [file], condition)[0].rows


def _told(held: Mapping[str, Any]) -> str:
    return (
        f"{held['rows']:,} old rows of stream {held['partition']} stay: sink {held['sink']!r} has come to seq "
        f"{held['seq']} there, and still has to deliver them"
    )
