"""Sweeping: what crashes, lost leases and discarded operations left behind, and what is past its grace.

Nothing here has an owner: batches that no tail names and no reader can still need, old idempotency keys and claims,
folders and private branches of operations that have no intent any more, snapshots that were staged and never
published, files that no snapshot names. What exists is always listed first and the ledger read after it: an intent is
written before the first of its effects and deleted after the last, so what has no intent then belongs to no process
that lives.

Files alone have no such record. They must be a day old by the store's own clock, and older than every operation that
is under way on their table. While the clock can't be trusted, what goes by its age stays.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from strandline import logs
from strandline.config import MaintenanceConfig
from strandline.engines.spark import maintain
from strandline.engines.storage import open_uri
from strandline.errors import NoSpace
from strandline.failpoints import fail
from strandline.ledger.changes import touches
from strandline.ledger.history import past_branches
from strandline.ledger.history.branches import deleted_branches, kept_branches, remove
from strandline.ledger.ledger import Connection
from strandline.ledger.publish.intents import read_intents
from strandline.ledger.publish.loads import list_loads
from strandline.ledger.rows import batches
from strandline.ledger.tables.files import knows_snapshot
from strandline.ledger.tables.tables import list_tables
from strandline.model.ids import branch_ref, private_branch
from strandline.model.maintenance import Maintained, together
from strandline.model.tables import STATE, Table
from strandline.model.wording import counted
from strandline.operations.core.branch_moment import BranchMoment
from strandline.operations.core.context import Context
from strandline.operations.core.declared import DRY_RUN, Declared, Docs, Due, option
from strandline.operations.core.deletion_time import CLOCK, ask_store, clock_of, deletion_us, store_us
from strandline.operations.core.recovery import tidy_loads
from strandline.operations.core.tables import table_names

log = logs.Logger("strandline.sweep")

ORPHAN_AGE_S = 24 * 3600
HISTORY_S = 7 * 24 * 3600
"""For so long the commits of a branch that was merged and deleted can be looked at."""

CLOCKS_APART_S = 3600
ADOPTING = "strand_adopt"
LAKE = "(lake)"
"""Stands for the table in what was done to no single one."""

_OWNED_FOLDER = re.compile(r"(?:load-)?[0-9a-f]{24}")
_PRIVATE_BRANCH = re.compile(r"op_([0-9a-f]{24})")


@dataclass(frozen=True)
class Sweep(Declared):
    """Remove what crashes left: private branches, folders, files that no snapshot names.

    Also flushed batches whose grace is over and old idempotency keys. Nothing of a process that lives is touched, and
    no file that is younger than a day.

    \b
    Example: strand sweep --dry-run
    """

    dry_run: bool = field(default=False, metadata=DRY_RUN)
    grace_s: float | None = field(default=None, metadata=option(is_sent=False))

    name: ClassVar[str] = "sweep"
    of_lake: ClassVar[bool] = True
    has_actor: ClassVar[bool] = False
    docs: ClassVar[Docs] = Docs(
        "flushed batches after their grace, hashes of versions that are in a state wherever they are seen, old "
        "idempotency keys and claims, private branches and folders of dead operations, files that no snapshot names "
        "and that are a day old by the store's own clock",
        "anything of a process that lives",
        "batches that are in Iceberg are past their grace: `[maintenance] grace`",
    )

    def run(self, ctx: Context, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
        """Sweep these tables, or all of them and the lake."""
        names = table_names(ctx, tables, branch) if tables else ()
        deletion_us(ctx, "the sweep")
        grace_s = ctx.grace_s if self.grace_s is None else self.grace_s
        return sweep(ctx, names, grace_s=grace_s, dry_run=self.dry_run)

    @classmethod
    def count_lake(cls, look: BranchMoment) -> dict[str, int]:
        """The batches that no reader needs any more."""
        return {"released_batches": batches.count_released(look.conn, grace_s=look.grace_s)}

    @classmethod
    def due(cls, counts: Mapping[str, int], rules: MaintenanceConfig) -> Due | None:
        """When there are any."""
        released = counts.get("released_batches", 0)
        why = f"in Iceberg and past their grace: {counted(released, 'batch', 'batches')}"
        return Due(why) if released else None


def sweep(
    ctx: Context,
    names: Sequence[str] = (),
    *,
    grace_s: float,
    orphan_age_s: float = ORPHAN_AGE_S,
    dry_run: bool = False,
) -> list[Maintained]:
    """Remove what has no owner: of these tables and their states, or of all and of the lake itself."""
    ctx.fence.compare()  # before it looks: a copy that wrote here may have removed what this ledger names
    with ctx.ledger.read() as conn:
        tables = [table for table in list_tables(conn) if not names or _plain(table) in _folded(names)]
    clock = clock_of(ctx)
    now_s = None if clock.is_behind else clock.now_us / 1e6
    done = [] if names else [_sweep_lake(ctx, grace_s, now_s, dry_run=dry_run)]
    older_than_s = None if now_s is None else _store_s(ctx, now_s) - orphan_age_s
    swept: dict[str, list[Maintained]] = {}
    for place, table in enumerate(tables):
        ctx.report(f"sweeping {table.name}", place, len(tables))
        if ctx.iceberg().exists(table.iceberg_name):
            part = _sweep_table(ctx, table, older_than_s, dry_run=dry_run)
            swept.setdefault(table.name.removesuffix(STATE), []).append(part)
    return [*done, *(together(name, parts) for name, parts in swept.items())]


def _store_s(ctx: Context, now_s: float) -> float:
    """What time it is where the files are, and no later than here. A store without room for a file can't be asked.

    Then this machine's clock is taken, for one that may be ahead by as much as clocks are apart.
    """
    try:
        return min(ask_store(ctx.staging), now_s)
    except NoSpace:
        return now_s - CLOCKS_APART_S


def _plain(table: Table) -> str:
    """The name of the table that a user has made, of which this is the log or the state."""
    return table.name.removesuffix(STATE).lower()


def _folded(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}


@dataclass
class _Leftovers:
    """Things to remove, and how."""

    what: str
    names: Sequence[str]
    remove: Callable[[str], None]


def _sweep_lake(ctx: Context, grace_s: float, now_s: float | None, *, dry_run: bool) -> Maintained:
    waiting = _released(ctx, grace_s)
    with ctx.ledger.read() as conn:
        branches = _old_branches(conn, now_s)
    leftovers = [
        _Leftovers("folders", _dead_folders(ctx, now_s), ctx.staging.remove),
        _Leftovers("adopt_entries", _dead_adoptions(ctx, now_s), lambda name: ctx.iceberg().unregister(name)),
        _Leftovers("branches", branches, lambda branch: _let_go(ctx, branch, now_s)),
    ]
    before = {
        "batches": waiting,
        **_hashes(ctx, grace_s),
        **{leftover.what: len(leftover.names) for leftover in leftovers},
    }
    if dry_run:
        return Maintained(LAKE, before, dict.fromkeys(before, 0), dry_run=True, complete=not any(before.values()))
    tidy_loads(ctx)
    while batches.sweep(ctx.ledger, grace_s=grace_s, elsewhere_us=store_us(ctx.staging)) > 0:
        pass
    while touches.sweep_claims(ctx.ledger, grace_s=grace_s) > 0:
        pass
    while touches.sweep_touches(ctx.ledger, grace_s=grace_s) > 0:
        pass
    left, warnings = _remove(ctx, leftovers)
    after = {"batches": _released(ctx, grace_s), **_hashes(ctx, grace_s), **left}
    return Maintained(LAKE, before, after, complete=not any(after.values()), warnings=tuple(warnings))


def _old_branches(conn: Connection, now_s: float | None) -> list[str]:
    """Merged and deleted branches whose history is over, and branches that were begun and never got their names."""
    if now_s is None:
        return []
    now_us = int(now_s * 1e6)
    half_made = past_branches.abandoned(conn, now_us - ORPHAN_AGE_S * 1_000_000)
    return [*half_made, *kept_branches(conn, now_us - HISTORY_S * 1_000_000)]


def _let_go(ctx: Context, branch: str, now_s: float | None) -> None:
    with ctx.ledger.write() as txn:
        if branch in _old_branches(txn.conn, now_s):  # it may have got its name meanwhile
            remove(txn, branch)


def _released(ctx: Context, grace_s: float) -> int:
    with ctx.ledger.read() as conn:
        return batches.count_released(conn, grace_s=grace_s)


def _hashes(ctx: Context, grace_s: float) -> dict[str, int]:
    with ctx.ledger.read() as conn:
        return {
            "claims": touches.count_claims(conn, grace_s=grace_s),
            "touches": touches.count_touches(conn, grace_s=grace_s),
        }


def _dead_folders(ctx: Context, now_s: float | None) -> list[str]:
    """Working folders of operations and loads that are not written down any more."""
    folders = ctx.staging.listing()
    with ctx.ledger.read() as conn:
        owners = {intent.op_id for intent in read_intents(conn)} | {load.load_id for load in list_loads(conn)}
    dead = [name for name in folders if _OWNED_FOLDER.fullmatch(name) and name not in owners]
    return dead + [name for name in folders if name.startswith(CLOCK) and _is_day_old(name, now_s)]


def _dead_adoptions(ctx: Context, now_s: float | None) -> list[str]:
    """Passing names under which killed adoptions have registered what they read: their names say how old they are."""
    names = ctx.iceberg().tables_if_any(ADOPTING)
    return [name for name in names if _is_day_old(name, now_s)]


def _made_ms(name: str) -> float:
    """When a passing name was made: it ends in an id, and an id begins with its time."""
    made = re.search(r"([0-9a-f]{12})[0-9a-f]{12}$", name)
    return int(made[1], 16) if made else float("inf")


def _is_day_old(name: str, now_s: float | None) -> bool:
    return now_s is not None and _made_ms(name) < (now_s - ORPHAN_AGE_S) * 1000


def _sweep_table(ctx: Context, table: Table, older_than_s: float | None, *, dry_run: bool) -> Maintained:
    iceberg = ctx.iceberg()
    name = table.iceberg_name
    branches = _dead_branches(ctx, name)
    leftovers = [
        _Leftovers("private_branches", branches, lambda branch: maintain.drop_branch(iceberg, name, branch)),
        _Leftovers(
            "unpublished_snapshots",
            _unpublished(ctx, table),
            lambda snapshot: _forget_unpublished(ctx, table, int(snapshot)),
        ),
        _Leftovers("orphan_files", _orphans(ctx, table, older_than_s), _delete_file),
    ]
    before = {leftover.what: len(leftover.names) for leftover in leftovers}
    if dry_run:
        detail = {leftover.what: list(leftover.names) for leftover in leftovers if leftover.names}
        after = dict.fromkeys(before, 0)
        return Maintained(table.name, before, after, dry_run=True, complete=not any(before.values()), detail=detail)
    left, warnings = _remove(ctx, leftovers)
    return Maintained(table.name, before, left, complete=not any(left.values()), warnings=tuple(warnings))


def _remove(ctx: Context, leftovers: Sequence[_Leftovers]) -> tuple[dict[str, int], list[str]]:
    """Remove all of it; what can't be removed now is counted, and left to the next sweep."""
    if any(leftover.names for leftover in leftovers):
        ctx.fence.raise_()
    left: dict[str, int] = {}
    warnings: list[str] = []
    for leftover in leftovers:
        failed = 0
        for name in leftover.names:
            fail("sweep.before_delete")
            try:
                leftover.remove(name)
            except Exception as error:
                failed += 1
                log.warning("left for later", what=leftover.what, name=name, error=str(error))
                warnings.append(f"{leftover.what}: {name} could not be removed: {str(error).splitlines()[0]}")
            fail("sweep.after_delete")
        left[leftover.what] = failed
    return left, warnings


def _dead_branches(ctx: Context, name: str) -> list[str]:
    """Private branches whose operation is not written down any more, and the refs of branches that were deleted."""
    refs = ctx.iceberg().refs(name)
    with ctx.ledger.read() as conn:
        live = {private_branch(intent.op_id) for intent in read_intents(conn)}
        deleted = {branch_ref(branch_id) for branch_id in deleted_branches(conn)}
    return [ref for ref in refs if ref in deleted or (_PRIVATE_BRANCH.fullmatch(ref) and ref not in live)]


def _unpublished(ctx: Context, table: Table) -> list[str]:
    """Snapshots that an operation of ours staged, that were never published, and whose operation is over."""
    staged = maintain.staged_snapshots(ctx.iceberg(), table.iceberg_name)
    with ctx.ledger.read() as conn:
        live = {intent.op_id for intent in read_intents(conn)}
        return [
            str(snapshot)
            for snapshot, op_id in staged.items()
            if op_id not in live and not knows_snapshot(conn, table.table_id, snapshot)
        ]


def _forget_unpublished(ctx: Context, table: Table, snapshot: int) -> None:
    maintain.expire(ctx.iceberg(), table.iceberg_name, [snapshot])


def _orphans(ctx: Context, table: Table, older_than_s: float | None) -> list[str]:
    """Files in the table's folders that no snapshot names, older than that and than any operation under way.

    An operation began at the ledger's time or, where that was ahead of the clock, when its id was made.
    """
    if older_than_s is None:
        return []
    with ctx.ledger.read() as conn:
        intents = read_intents(conn)
        begun = [min(intent.created_at_us / 1e6, _made_ms(intent.op_id) / 1e3) for intent in intents]
    oldest_s = min([older_than_s, *(moment_s - CLOCKS_APART_S for moment_s in begun)])
    return maintain.orphans(ctx.iceberg(), table.iceberg_name, dt.datetime.fromtimestamp(oldest_s, dt.UTC))


def _delete_file(location: str) -> None:
    system, path = open_uri(location)
    try:
        system.delete_file(path)
    except FileNotFoundError:
        return
