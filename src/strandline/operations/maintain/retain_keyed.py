"""Retention of a keyed table: versions go that no point of the history which is kept needs.

The window is about the time of commits. Where it begins, or further back where a tag or another branch needs it, lies
the horizon of a branch. Of each row the newest version at the horizon stays, and all that came later; versions that
were replaced by then go. So every point from the horizon on shows what it did. The head says where the horizon is:
a reader that looks back behind it is told that history is gone.

A version goes only when the one in its place was delivered by every sink that follows the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.duck import relations, sandbox
from strandline.json_types import JsonObject
from strandline.ledger.history.ancestry import Graph
from strandline.ledger.history.horizons import KeptCommit, count_passed, find_horizon
from strandline.ledger.history.refs import tip_of
from strandline.ledger.ledger import Connection
from strandline.ledger.rows.reservations import read_late
from strandline.ledger.sinks.limits import Limit, lowest, read_limits
from strandline.ledger.tables.files import read_files
from strandline.model.history.commits import Commit
from strandline.model.schema.types import COMMIT, SEQ
from strandline.model.tables import BranchTable, DataFile
from strandline.model.times import text_of
from strandline.model.wording import counted
from strandline.operations.maintain.layout import size_of
from strandline.operations.maintain.removal import removal_of
from strandline.operations.maintain.retain_plan import WORTH_SHARE, Behind, RetentionBite, Words
from strandline.operations.maintain.sweep import HISTORY_S
from strandline.views.time_travel import Shown
from strandline.views.view import files_sql

DAY_S = 24 * 3600

Superseded = Sequence[tuple[DataFile, pa.Table]]
"""Versions that others took the place of, by file: their seqs, and those of the others."""


@dataclass(frozen=True)
class OldVersions:
    """How far back a branch's table is kept, what that point shows, and how many versions have passed it since."""

    branch_table: BranchTable
    cutoff_us: int
    horizon: Commit | None
    shown: Shown | None
    files: tuple[DataFile, ...]
    limits: tuple[Limit, ...]
    passed: int
    kept_for: KeptCommit | None = None
    """The tag or branch for which more is kept than the window says."""
    kept_versions: int = 0
    """How many versions came in between that point and the beginning of the window."""

    @property
    def is_due(self) -> bool:
        """Whether so much has passed the horizon that it is worth a look."""
        return bool(self.files) and 0 < self.passed >= WORTH_SHARE * sum(file.rows for file in self.files)


def plan(conn: Connection, branch_table: BranchTable, now_us: int) -> OldVersions | None:
    """How far back a keyed table is kept; None when all versions are kept for good."""
    cutoff_us = branch_table.table.settings.cutoff_us(now_us)
    if cutoff_us is None:
        return None
    head = branch_table.head
    limits = tuple(read_limits(conn, head.branch_id, head.table_id))
    back_to = find_horizon(conn, head.branch_id, cutoff_us)
    if back_to is None:
        return OldVersions(branch_table, cutoff_us, None, None, (), limits, 0)
    horizon, name = back_to.commit, branch_table.table.name
    later = Graph(conn).only(tip_of(conn, head.branch_id), horizon.commit_id)
    hidden = tuple(commit.commit_id for commit in later if commit.seq < horizon.seq)
    late = read_late(conn, head.table_id, number=horizon.seq, at_us=None)
    shown = Shown(horizon.seq, None, hidden, tuple(late))
    files = read_files(conn, head.branch_id, head.table_id, head.version, until=horizon.seq)
    passed = count_passed(conn, horizon, name, head.kept_from)
    kept = count_passed(conn, back_to.window, name, horizon.seq)
    return OldVersions(branch_table, cutoff_us, horizon, shown, tuple(files), limits, passed, back_to.point, kept)


def find_superseded(planned: OldVersions) -> Superseded:
    """The versions at the horizon that another one took the place of by then."""
    branch_table, files = planned.branch_table, planned.files
    if not files or planned.shown is None:
        return []
    columns = [column for column in branch_table.columns if column.name in (*branch_table.table.key, SEQ, COMMIT)]
    seqs = [column for column in branch_table.columns if column.name == SEQ]
    superseded: list[tuple[DataFile, pa.Table]] = []
    with sandbox.scratch() as connection:
        versions = files_sql(branch_table, files, columns)
        relations.note_superseded(connection, versions, branch_table.table.key, planned.shown.condition())
        for file in files:
            rows = relations.superseded_of(connection, files_sql(branch_table, [file], seqs))
            if rows.num_rows:
                superseded.append((file, rows))
    return superseded


def within(superseded: Superseded, limits: Mapping[str, Limit]) -> Superseded:
    """Those of which sinks have delivered what took their place."""
    allowed: list[tuple[DataFile, pa.Table]] = []
    for file, rows in superseded:
        limit = limits.get(file.partition)
        kept = rows if limit is None else rows.filter(pc.less_equal(rows[relations.NEXT], limit.seq))
        if kept.num_rows:
            allowed.append((file, kept))
    return allowed


def take_bite(superseded: Superseded, bite_bytes: int) -> Superseded:
    """The first files, as many as one operation takes; at least one if there is one."""
    taken: list[tuple[DataFile, pa.Table]] = []
    for file, rows in superseded:
        if taken and size_of([earlier for earlier, _ in taken]) + file.size_bytes > bite_bytes:
            break
        taken.append((file, rows))
    return taken


def pruned_upto(superseded: Superseded) -> dict[str, int]:
    """Of each stream that loses versions, the highest seq of one that took a place."""
    highest: dict[str, int] = {}
    for file, rows in superseded:
        last = int(pc.max(rows[relations.NEXT]).as_py())
        highest[file.partition] = max(highest.get(file.partition, 0), last)
    return highest


@dataclass
class VersionPlanner:
    """What may go of a keyed table: versions, and where there are none at least the horizon moves."""

    planned: OldVersions
    is_eager: bool
    past_sinks: bool
    words: ClassVar[Words] = Words("version", "", "them or what took their place")

    @cached_property
    def _limits(self) -> Mapping[str, Limit]:
        return {} if self.past_sinks else lowest(self.planned.limits)

    @cached_property
    def _is_worth_it(self) -> bool:
        return self.is_eager or self.planned.is_due

    @cached_property
    def _superseded(self) -> Superseded:
        return find_superseded(self.planned) if self._is_worth_it else []

    @cached_property
    def _free(self) -> Superseded:
        return within(self._superseded, self._limits)

    def refuse_everything(self) -> None:
        """The newest version of each row stays in any case."""

    def next_change(self, bite_bytes: int) -> RetentionBite | None:
        """The first files; after the last of them the horizon alone."""
        horizon = self.planned.horizon
        if horizon is None or not (self._free or self._moves(horizon)):
            return None
        bite = take_bite(self._free, bite_bytes)
        return RetentionBite(removal_of(bite), pruned_upto(bite), kept_from=horizon.seq)

    def _moves(self, horizon: Commit) -> bool:
        """Whether the horizon may go further, though no version goes."""
        is_ahead = horizon.seq > self.planned.branch_table.head.kept_from
        return self._is_worth_it and is_ahead and self.planned.passed > 0 and not self.held()

    def rows(self) -> int:
        """How many versions may go."""
        return sum(rows.num_rows for _, rows in self._free)

    def after(self, before: Mapping[str, int]) -> dict[str, int]:
        """With fewer versions; in which files is not known yet."""
        return {**before, "rows": before["rows"] - self.rows()}

    def is_complete(self, *, is_spent: bool) -> bool:
        """Whether no version may go."""
        return self.rows() == 0

    def held(self) -> Sequence[Behind]:
        """The versions of which, or of what took their place, a sink has not delivered all."""
        return _behind(self._superseded, list(self._limits.values()))

    def lost(self) -> Sequence[Behind]:
        """Those behind any watermark."""
        return _behind(self._superseded, self.planned.limits)

    def notes(self) -> Sequence[str]:
        """Which tag or branch keeps what is older than the window."""
        return tuple(_kept_for(self.planned))

    def detail(self) -> JsonObject:
        """Where the window begins, and where the horizon lies."""
        planned = self.planned
        horizon, point = planned.horizon, planned.kept_for
        return {
            "cutoff": text_of(planned.cutoff_us),
            "horizon": horizon.commit_id if horizon is not None else None,
            "kept_for": {"kind": point.kind, "name": point.name}
            if point is not None and planned.kept_versions
            else None,
        }

    def preview(self) -> JsonObject:
        """Nothing more."""
        return {}


def _kept_for(planned: OldVersions) -> Iterator[str]:
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


def _behind(superseded: Superseded, limits: Sequence[Limit]) -> list[Behind]:
    """How many of these versions each sink has still to deliver, or the ones in their place."""
    behind: list[Behind] = []
    for limit in limits:
        of_stream = [versions for file, versions in superseded if file.partition == limit.partition]
        later = [pc.sum(pc.greater(versions[relations.NEXT], limit.seq)).as_py() or 0 for versions in of_stream]
        if sum(later):
            behind.append(Behind(limit.sink, limit.partition, limit.seq, sum(later)))
    return behind
