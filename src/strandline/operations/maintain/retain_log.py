"""Retention of a log table: rows go that are older than its window.

How old a row is, its time column says. The files' figures in the ledger say which files are past the window as a whole,
and these go without being opened. What is left at the edge of the window is written again without its old rows: at once
when a person asks, and by the worker when it is a good part of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar

from strandline.engines.duck import relations, sandbox
from strandline.errors import PreconditionFailed
from strandline.json_types import JsonObject
from strandline.ledger.ledger import Connection
from strandline.ledger.sinks.limits import Limit, lowest, read_limits
from strandline.ledger.tables.files import read_files, set_times
from strandline.ledger.tables.table_settings import UNKNOWN_US
from strandline.model.schema.types import SEQ
from strandline.model.tables import BranchTable, DataFile
from strandline.model.times import text_of
from strandline.model.wording import counted
from strandline.operations.core.context import Context
from strandline.operations.maintain.layout import size_of
from strandline.operations.maintain.removal import Removal, find_rows
from strandline.operations.maintain.retain_plan import WORTH_SHARE, Behind, RetentionBite, Words
from strandline.views.view import files_sql

BITE_FILES = 1000


@dataclass(frozen=True)
class OldRows:
    """What of a table is past its window: what may go now, and what sinks still hold."""

    branch_table: BranchTable
    now_us: int
    cutoff_us: int
    whole: tuple[DataFile, ...]
    edge: tuple[DataFile, ...]
    held: tuple[DataFile, ...]
    limits: Mapping[str, Limit]
    all_limits: tuple[Limit, ...]

    def limit(self, partition: str) -> int | None:
        """Up to which seq rows of a stream may go; None is without a limit."""
        limit = self.limits.get(partition)
        return None if limit is None else limit.seq


def plan(conn: Connection, branch_table: BranchTable, now_us: int, *, past_sinks: bool = False) -> OldRows | None:
    """What is past a table's window, by what the ledger knows of its files; None when rows are kept for good."""
    cutoff_us = branch_table.table.settings.cutoff_us(now_us)
    if cutoff_us is None:
        return None
    head = branch_table.head
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
    return OldRows(branch_table, now_us, cutoff_us, tuple(whole), tuple(edge), tuple(held), held_at, tuple(limits))


def estimate(planned: OldRows) -> int:
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


@dataclass
class RowPlanner:
    """What may go of a log table."""

    ctx: Context
    planned: OldRows
    is_eager: bool
    words: ClassVar[Words] = Words("row", "stream ", "them")

    def refuse_everything(self) -> None:
        """Refuse to leave no row: a window that no row lies in is a mistake more often than not."""
        planned = self.planned
        total = planned.branch_table.head.books.log
        going = sum(file.rows for file in planned.whole)
        if total and going + sum(file.rows for file in planned.edge) >= total:
            going = self.rows()
        if total and going == total:
            raise PreconditionFailed(
                f"the whole log of {planned.branch_table.table.name!r} ({counted(total, 'row')}) is older than its "
                "retention",
                hint="`--yes` removes them all; `strand table set NAME retention=…` changes the window.",
                count=total,
            )

    def next_change(self, bite_bytes: int) -> RetentionBite | None:
        """Whole files first, and then of those at the edge of the window their old rows."""
        removal = self._bite(bite_bytes)
        return RetentionBite(removal, removal.streams, barrier=True) if removal.rows else None

    def _bite(self, bite_bytes: int) -> Removal:
        whole = self.planned.whole[:BITE_FILES]
        if whole:
            return Removal(whole=whole)
        taken: list[DataFile] = []
        removal = Removal()
        for file in self.planned.edge:
            if taken and (size_of(taken) + file.size_bytes > bite_bytes or len(taken) >= BITE_FILES):
                break
            old = _old_rows(self.ctx, self.planned, file)
            if old.rows == 0 or (not self.is_eager and old.rows < WORTH_SHARE * file.rows):
                continue
            taken.append(file)
            removal = removal.plus(old)
        return removal

    @cached_property
    def _edge(self) -> list[Removal]:
        """The old rows of every file at the edge of the window."""
        return [_old_rows(self.ctx, self.planned, file) for file in self.planned.edge]

    def rows(self) -> int:
        """Those of whole files, and those at the edge."""
        return sum(file.rows for file in self.planned.whole) + sum(removal.rows for removal in self._edge)

    def after(self, before: Mapping[str, int]) -> dict[str, int]:
        """Without the files that go whole; those that are written again are not known yet."""
        gone = [*self.planned.whole, *(file for removal in self._edge for file in removal.whole)]
        return {
            "rows": before["rows"] - self.rows(),
            "files": before["files"] - len(gone),
            "size_bytes": before["size_bytes"] - size_of(gone),
        }

    def is_complete(self, *, is_spent: bool) -> bool:
        """Also when what is left at the edge is not worth it."""
        return not is_spent or not (self.planned.whole or self.planned.edge)

    def held(self) -> Sequence[Behind]:
        """The old rows that lie behind a watermark."""
        return self._behind(self.planned.limits.values(), (*self.planned.held, *self.planned.edge))

    def lost(self) -> Sequence[Behind]:
        """The old rows behind any watermark."""
        return self._behind(self.planned.all_limits, (*self.planned.whole, *self.planned.edge))

    def _behind(self, limits: Iterable[Limit], files: Sequence[DataFile]) -> list[Behind]:
        behind = [Behind(limit.sink, limit.partition, limit.seq, self._count_old(files, limit)) for limit in limits]
        return [waiting for waiting in behind if waiting.rows]

    def _count_old(self, files: Sequence[DataFile], limit: Limit) -> int:
        return sum(
            _count_old(self.planned, file, limit.seq)
            for file in files
            if file.partition == limit.partition and file.last_seq > limit.seq
        )

    def notes(self) -> Sequence[str]:
        """Nothing more."""
        return ()

    def detail(self) -> JsonObject:
        """Where the window begins."""
        return {"cutoff": text_of(self.planned.cutoff_us)}

    def preview(self) -> JsonObject:
        """What sinks would never get, where nothing holds rows back."""
        lost = self.lost() if not self.planned.limits else ()
        return {"never_delivered": [asdict(behind) for behind in lost]}


def _old_rows(ctx: Context, planned: OldRows, file: DataFile) -> Removal:
    branch_table = planned.branch_table
    column = branch_table.table.settings.time_column
    if file.oldest_us == UNKNOWN_US:
        _look_into(ctx, branch_table, file, column)
    condition = relations.older_than(column, planned.cutoff_us)
    limit = planned.limit(file.partition)
    if limit is not None:
        condition = f"{condition} AND {SEQ} <= {limit}"
    return find_rows(branch_table, [file], condition)[0]


def _look_into(ctx: Context, branch_table: BranchTable, file: DataFile, column: str) -> None:
    """Write down the range of a file's times, which is not known since the table has another time column."""
    with sandbox.scratch() as connection:
        rows = files_sql(
            branch_table, [file], [time_column for time_column in branch_table.columns if time_column.name == column]
        )
        oldest_us, newest_us = relations.range_us(connection, rows, column)
    with ctx.ledger.write() as txn:
        set_times(txn, branch_table.head.branch_id, branch_table.table.table_id, file.path, oldest_us, newest_us)


def _count_old(planned: OldRows, file: DataFile, behind: int) -> int:
    if file.newest_us is not None and file.newest_us < planned.cutoff_us and file.first_seq > behind:
        return file.rows
    settings = planned.branch_table.table.settings
    condition = f"{relations.older_than(settings.time_column, planned.cutoff_us)} AND {SEQ} > {behind}"
    return find_rows(planned.branch_table, [file], condition)[0].rows
