"""Maintenance of several tables: what is due, in which order, within one budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from strandline.errors import Busy, KeysExpired, Unreachable
from strandline.ledger.clock import forgetting_us
from strandline.ledger.holds import count_expirable
from strandline.ledger.ledger import MAIN, Connection
from strandline.ledger.tables import branch_id, read_states
from strandline.model.ids import state_id
from strandline.model.maintenance import (
    Bounds,
    Budget,
    Compacting,
    Expiring,
    Maintained,
    Need,
    Retaining,
    Sweeping,
    together,
)
from strandline.model.tables import STATE, TableState
from strandline.operations import compact as compacting
from strandline.operations import expire as expiring
from strandline.operations import fold as folding
from strandline.operations import retain as retaining
from strandline.operations import sweep as sweeping
from strandline.operations.context import Context
from strandline.operations.deletion_time import deletion_us
from strandline.operations.failures import outages_typed
from strandline.operations.retain_keyed import plan as plan_keyed
from strandline.operations.retain_keyed import retain_keyed

Work = Callable[[str], Maintained]


@outages_typed
def compact(
    ctx: Context, tables: Sequence[str], branch: str, actor: str, **how: Unpack[Compacting]
) -> list[Maintained]:
    """Compact these tables, or all, the neediest first."""
    budget = Budget(how.get("max_bytes"), how.get("max_time_s"))
    eager, dry_run = how.get("eager", True), how.get("dry_run", False)
    names = compacting.neediest(ctx, _names(ctx, tables, branch), branch, eager=eager)
    return _each(names, lambda name: compacting.compact(ctx, name, branch, actor, budget, eager=eager, dry_run=dry_run))


@outages_typed
def fold(ctx: Context, tables: Sequence[str], branch: str, actor: str, **how: Unpack[Bounds]) -> list[Maintained]:
    """Fold the logs of these keyed tables, or of all, into their states."""
    budget = Budget(how.get("max_bytes"), how.get("max_time_s"))
    dry_run = how.get("dry_run", False)
    names = list(tables) or _keyed(ctx, branch)
    return _each(names, lambda name: folding.fold(ctx, name, branch, actor, budget, dry_run=dry_run))


@outages_typed
def retain(ctx: Context, tables: Sequence[str], branch: str, actor: str, **how: Unpack[Retaining]) -> list[Maintained]:
    """Prune these tables, or all."""
    budget = Budget(how.get("max_bytes"), how.get("max_time_s"))

    keyed = set(_keyed(ctx, branch))

    def one(name: str) -> Maintained:
        work = retain_keyed if name in keyed else retaining.retain
        return work(
            ctx,
            name,
            branch,
            actor,
            budget,
            eager=how.get("eager", True),
            past_sinks=how.get("force_past_sinks", False),
            yes=how.get("yes", False),
            dry_run=how.get("dry_run", False),
        )

    return _each(_names(ctx, tables, branch), one)


@outages_typed
def expire(ctx: Context, tables: Sequence[str], branch: str, actor: str, **how: Unpack[Expiring]) -> list[Maintained]:
    """Expire snapshots of these tables, or of all; those of a keyed table's state too."""
    budget = Budget(max_time_s=how.get("max_time_s"))
    grace_s, dry_run = _grace(ctx, how.get("grace_s")), how.get("dry_run", False)
    keyed = set(_keyed(ctx, branch))

    def one(name: str) -> Maintained:
        parts = [name, f"{name}{STATE}"] if name in keyed else [name]
        done = [expiring.expire(ctx, part, branch, actor, budget, grace_s=grace_s, dry_run=dry_run) for part in parts]
        return together(name, done)

    return _each(_names(ctx, tables, branch), one)


@outages_typed
def sweep(ctx: Context, tables: Sequence[str], branch: str, **how: Unpack[Sweeping]) -> list[Maintained]:
    """Sweep these tables, or all of them and the lake."""
    names = _names(ctx, tables, branch) if tables else ()
    deletion_us(ctx, "the sweep")
    return sweeping.sweep(ctx, names, grace_s=_grace(ctx, how.get("grace_s")), dry_run=how.get("dry_run", False))


def needs(ctx: Context, branch: str) -> list[Need]:
    """What each table needs, the neediest first; those that need nothing are left out. No file is opened.

    Log tables are main's: another branch needs nothing for them.
    """
    found: list[Need] = []
    with ctx.ledger.read() as conn:
        now_us = forgetting_us(conn)
        expirable = count_expirable(conn, branch_id(conn, branch), now_us=now_us, grace_s=ctx.grace_s)
        for state in read_states(conn, branch):
            if branch != MAIN and not state.table.key:
                continue
            groups = compacting.plan(conn, state, eager=False)
            need = Need(
                state.table.name,
                small_files=sum(len(group) for group in groups),
                small_bytes=sum(file.size_bytes for group in groups for file in group),
                old_rows=_old_rows(conn, state, now_us),
                snapshots=expirable.get(state.table.table_id, 0) + expirable.get(state_id(state.table.table_id), 0),
                **folding.sizes(conn, state),
            )
            if need != Need(state.table.name):
                found.append(need)
    return sorted(found, key=lambda need: (-need.small_files, -need.old_rows, -need.snapshots, need.table))


def _old_rows(conn: Connection, state: TableState, now_us: int | None) -> int:
    """About how many rows retention would remove, or of a keyed table would look at; no file is opened."""
    if now_us is None:
        return 0
    if state.table.key:
        versions = plan_keyed(conn, state, now_us)
        return versions.passed if versions is not None and versions.is_due else 0
    old = retaining.plan(conn, state, now_us)
    return 0 if old is None else retaining.estimate(old)


def _names(ctx: Context, tables: Sequence[str], branch: str) -> list[str]:
    with ctx.ledger.read() as conn:
        return [state.table.name for state in read_states(conn, branch, list(tables) or None)]


def _keyed(ctx: Context, branch: str) -> list[str]:
    with ctx.ledger.read() as conn:
        return [state.table.name for state in read_states(conn, branch) if state.table.key]


def _grace(ctx: Context, grace_s: float | None) -> float:
    return ctx.grace_s if grace_s is None else grace_s


def _each(names: Sequence[str], work: Work) -> list[Maintained]:
    """The same for several tables; one that somebody else is busy with keeps no other waiting."""
    done: list[Maintained] = []
    for name in names:
        try:
            done.append(work(name))
        except Busy as error:
            if len(names) == 1 or isinstance(error, Unreachable | KeysExpired):
                raise
            done.append(Maintained(name, {}, {}, complete=False, warnings=(str(error),)))
    return done
