"""Retention of a keyed table: versions go that no point of the history which is kept needs.

The window is about the time of commits. Where it begins, or further back where a tag or another branch needs it, lies
the horizon of a branch. Of each row the newest version at the horizon stays, and all that came later; versions that
were replaced by then go. So every point from the horizon on shows what it did. The head says where the horizon is:
whoever looks back behind it is told that history is gone.

A version goes only when the one in its place was delivered by every sink that follows the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.duck import relations, sandbox
from strandline.errors import PreconditionFailed
from strandline.ledger.files import read_files
from strandline.ledger.history import Graph
from strandline.ledger.horizons import Point, count_passed, find_horizon
from strandline.ledger.ledger import Connection
from strandline.ledger.limits import Limit, lowest, read_limits
from strandline.ledger.refs import tip_of
from strandline.ledger.reservations import read_late
from strandline.ledger.tables import read_states
from strandline.model.commits import Commit
from strandline.model.maintenance import Budget, Maintained
from strandline.model.moments import text_of
from strandline.model.operations import Effects, TableEffect
from strandline.model.tables import DataFile, TableState
from strandline.model.types import COMMIT, SEQ
from strandline.model.wording import counted
from strandline.operations.bites import BITE_BYTES, Bite, Bites, somebody_waits
from strandline.operations.context import Context
from strandline.operations.deletion_time import deletion_us
from strandline.operations.layout import size_of
from strandline.operations.removal import Removal, removal_of, stage_removal
from strandline.operations.retain import figures
from strandline.operations.steps import Running
from strandline.operations.sweep import HISTORY_S
from strandline.views.past import Shown
from strandline.views.view import files_sql

DAY_S = 24 * 3600
WORTH_SHARE = 0.25
"""Of the log's versions: when so many have passed the horizon since the last time, the worker looks for old ones."""

Superseded = Sequence[tuple[DataFile, pa.Table]]
"""Versions that others took the place of, by file: their seqs, and those of the others."""


@dataclass(frozen=True)
class Plan:
    """How far back a branch's table is kept, what that point shows, and how many versions have passed it since."""

    state: TableState
    cutoff_us: int
    horizon: Commit | None
    shown: Shown | None
    files: tuple[DataFile, ...]
    limits: tuple[Limit, ...]
    passed: int
    kept_for: Point | None = None
    """The tag or branch for which more is kept than the window says."""
    kept_versions: int = 0
    """How many versions came in between that point and the beginning of the window."""

    @property
    def is_due(self) -> bool:
        """Whether so much has passed the horizon that it is worth a look."""
        return bool(self.files) and 0 < self.passed >= WORTH_SHARE * sum(file.rows for file in self.files)


def plan(conn: Connection, state: TableState, now_us: int) -> Plan | None:
    """How far back a keyed table is kept; None when all versions are kept for good."""
    cutoff_us = state.table.settings.cutoff_us(now_us)
    if cutoff_us is None:
        return None
    head = state.head
    limits = tuple(read_limits(conn, head.branch_id, head.table_id))
    back_to = find_horizon(conn, head.branch_id, cutoff_us)
    if back_to is None:
        return Plan(state, cutoff_us, None, None, (), limits, 0)
    horizon, name = back_to.commit, state.table.name
    later = Graph(conn).only(tip_of(conn, head.branch_id), horizon.commit_id)
    hidden = tuple(one.commit_id for one in later if one.seq < horizon.seq)
    late = read_late(conn, head.table_id, number=horizon.seq, at_us=None)
    shown = Shown(horizon.seq, None, hidden, tuple(late))
    files = read_files(conn, head.branch_id, head.table_id, head.version, until=horizon.seq)
    passed = count_passed(conn, horizon, name, head.kept_from)
    kept = count_passed(conn, back_to.window, name, horizon.seq)
    return Plan(state, cutoff_us, horizon, shown, tuple(files), limits, passed, back_to.point, kept)


@dataclass
class RetainVersions(Bite):
    """Versions go from the log, and the horizon moves."""

    horizon: Commit
    removal: Removal
    pruned: Mapping[str, int]
    past_sinks: bool
    kind: str = "retain"

    def stage(self, ctx: Context, running: Running) -> Effects:
        """Write the log without the versions; where there is none, only the horizon moves."""
        head = self.state.head
        effect = TableEffect(head.branch_id, head.table_id, head.version, head.log_snapshot, None)
        if self.removal.rows:
            effect = stage_removal(ctx, self.state, self.removal, running.op_id)
        self.waited_for = somebody_waits(ctx, self.state)
        effect = replace(effect, kept_from=self.horizon.seq, pruned=self.pruned, past_sinks=self.past_sinks)
        return Effects(tables=(effect,))


def find_superseded(planned: Plan) -> Superseded:
    """The versions at the horizon that another one took the place of by then."""
    state, files = planned.state, planned.files
    if not files or planned.shown is None:
        return []
    wanted = [one for one in state.columns if one.name in (*state.table.key, SEQ, COMMIT)]
    seqs = [one for one in state.columns if one.name == SEQ]
    found: list[tuple[DataFile, pa.Table]] = []
    with sandbox.interruptible(), sandbox.scratch() as connection:
        versions = files_sql(state, files, wanted)
        relations.note_superseded(connection, versions, state.table.key, planned.shown.condition())
        for file in files:
            rows = relations.superseded_of(connection, files_sql(state, [file], seqs))
            if rows.num_rows:
                found.append((file, rows))
    return found


def within(found: Superseded, limits: Mapping[str, Limit]) -> Superseded:
    """Those of which sinks have delivered what took their place."""
    allowed: list[tuple[DataFile, pa.Table]] = []
    for file, rows in found:
        limit = limits.get(file.partition)
        kept = rows if limit is None else rows.filter(pc.less_equal(rows[relations.NEXT], limit.seq))
        if kept.num_rows:
            allowed.append((file, kept))
    return allowed


def take_bite(found: Superseded, bite_bytes: int) -> Superseded:
    """The first files, as many as one operation takes; at least one if there is one."""
    taken: list[tuple[DataFile, pa.Table]] = []
    for file, rows in found:
        if taken and size_of([one for one, _ in taken]) + file.size_bytes > bite_bytes:
            break
        taken.append((file, rows))
    return taken


def pruned_upto(found: Superseded) -> dict[str, int]:
    """Of each stream that loses versions, the highest seq of one that took a place."""
    highest: dict[str, int] = {}
    for file, rows in found:
        last = int(pc.max(rows[relations.NEXT]).as_py())
        highest[file.partition] = max(highest.get(file.partition, 0), last)
    return highest


@dataclass(frozen=True)
class Choice:
    """What may go now of what a plan finds, and what sinks hold back; `moves` where at least the horizon does."""

    planned: Plan
    looked: Superseded
    free: Superseded
    held: list[dict[str, Any]]
    moves: bool

    @property
    def rows(self) -> int:
        """How many versions may go."""
        return sum(rows.num_rows for _, rows in self.free)


def choose(planned: Plan, *, eager: bool, past_sinks: bool) -> Choice:
    """Look for versions that may go: at once when a person asks, and else when it is worth it."""
    worth = eager or planned.is_due
    limits = {} if past_sinks else lowest(planned.limits)
    looked = find_superseded(planned) if worth else []
    held = _behind(looked, list(limits.values()))
    ahead = planned.horizon is not None and planned.horizon.seq > planned.state.head.kept_from
    return Choice(planned, looked, within(looked, limits), held, worth and ahead and planned.passed > 0 and not held)


def retain_keyed(
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
    """Remove the versions that no kept point needs, bite by bite, as far as the budget goes."""
    now_us = deletion_us(ctx, f"the retention of {table!r}")
    before, rows = figures(ctx, table, branch), 0
    bites = Bites(ctx, budget)
    while True:
        with ctx.ledger.read() as conn:
            state = read_states(conn, branch, [table])[0]
            planned = plan(conn, state, now_us)
        if planned is None:
            return Maintained(state.table.name, before, before, dry_run=dry_run, detail={"retention": None})
        choice = choose(planned, eager=eager or rows > 0, past_sinks=past_sinks)
        if past_sinks and not (rows or dry_run or yes):
            _refuse_past_sinks(_behind(choice.looked, planned.limits))
        if dry_run or budget.is_spent or not (choice.free or choice.moves):
            break
        operation = _bite(choice, branch, actor, budget.bite(BITE_BYTES), past_sinks=past_sinks)
        removal = operation.removal
        if bites.take(operation, state, size_of([*removal.whole, *removal.partly])) is not None:
            rows += removal.rows
            ctx.report(f"pruning {state.table.name}", rows, None)
    after = {**before, "rows": before["rows"] - choice.rows} if dry_run else figures(ctx, table, branch)
    return Maintained(
        table=state.table.name,
        before=before,
        after=after,
        dry_run=dry_run,
        complete=choice.rows == 0,
        operations=tuple(bites.operations),
        warnings=(*bites.warnings, *(_told(one) for one in choice.held), *_kept_for(planned)),
        detail={**_detail(planned), "pruned": choice.rows if dry_run else rows, "held_by": choice.held},
    )


def _bite(choice: Choice, branch: str, actor: str, bite_bytes: int, *, past_sinks: bool) -> RetainVersions:
    state, horizon = choice.planned.state, choice.planned.horizon
    assert horizon is not None, "versions were found without a horizon"
    some = take_bite(choice.free, bite_bytes)
    return RetainVersions(
        state.table.name,
        branch,
        actor,
        state.head.version,
        horizon,
        removal_of(some),
        pruned_upto(some),
        past_sinks,
    )


def _detail(planned: Plan) -> dict[str, Any]:
    horizon, point = planned.horizon, planned.kept_for
    return {
        "cutoff": text_of(planned.cutoff_us),
        "horizon": horizon.commit_id if horizon is not None else None,
        "kept_for": {"kind": point.kind, "name": point.name} if point is not None and planned.kept_versions else None,
    }


def _kept_for(planned: Plan) -> Iterator[str]:
    """Say which tag or branch keeps what is older than the window, where there is something."""
    point = planned.kept_for
    if point is None or not planned.kept_versions:
        return
    at = f"commit {point.commit.commit_id} of {text_of(point.commit.at_us)}"
    match point.kind:
        case "tag":
            why, then = f"tag {point.name!r} is at {at}", f"`strand tag delete {point.name}`"
        case "branch":
            why = f"branch {point.name!r} began, or was one with this one for the last time, at {at}"
            then = f"`strand branch delete {point.name}`"
        case "merged":
            why = f"a branch that was merged and deleted began, or was merged, at {at}"
            then = f"the next `strand sweep` that is {HISTORY_S // DAY_S} days later than its deletion"
    versions = counted(planned.kept_versions, "version")
    yield f"up to {versions} older than the retention stay: {why}, which is kept. They go after {then}"


def _behind(found: Superseded, limits: Sequence[Limit]) -> list[dict[str, Any]]:
    """How many of these versions each sink has still to deliver, or the ones in their place."""
    told: list[dict[str, Any]] = []
    for limit in limits:
        some = [rows for file, rows in found if file.partition == limit.partition]
        rows = sum(pc.sum(pc.greater(one[relations.NEXT], limit.seq)).as_py() or 0 for one in some)
        if rows:
            told.append({"sink": limit.sink, "partition": limit.partition, "seq": limit.seq, "rows": rows})
    return told


def _refuse_past_sinks(lost: Sequence[Mapping[str, Any]]) -> None:
    if lost:
        told = "; ".join(
            f"{one['sink']} never gets {counted(one['rows'], 'version')} of {one['partition']}" for one in lost
        )
        raise PreconditionFailed(
            f"versions would go that sinks have not delivered: {told}",
            hint="`--yes` removes them all the same.",
            lost=list(lost),
        )


def _told(held: Mapping[str, Any]) -> str:
    return (
        f"{held['rows']:,} old versions of stream {held['partition']} stay: sink {held['sink']!r} has come to seq "
        f"{held['seq']} there, and still has to deliver them or what took their place"
    )
