"""What maintenance was asked to do, what it did, and what is due."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict


@dataclass(frozen=True)
class Maintained:
    """What one kind of maintenance did to one table; in a dry run, what it would do.

    `before` and `after` are figures of the same names: files, bytes, rows, snapshots. `complete` is False when the run
    ended with something left to do, and `warnings` say what a person should know.
    """

    table: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    dry_run: bool = False
    complete: bool = True
    operations: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    detail: Mapping[str, object] = field(default_factory=dict)

    def figure(self, name: str) -> int:
        """A number in the detail."""
        number = self.detail[name]
        if not isinstance(number, int):
            raise TypeError(f"the {name} of what was done to {self.table} is {number!r}, which is no number")
        return number


def together(table: str, parts: Sequence[Maintained]) -> Maintained:
    """What was done to a table and to what is kept beside it, as one: figures are added up."""
    return Maintained(
        table,
        _sum([part.before for part in parts]),
        _sum([part.after for part in parts]),
        dry_run=any(part.dry_run for part in parts),
        complete=all(part.complete for part in parts),
        operations=tuple(operation for part in parts for operation in part.operations),
        warnings=tuple(warning for part in parts for warning in part.warnings),
        detail={key: value for part in parts for key, value in part.detail.items()},
    )


def _sum(figures: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for counts in figures for name in counts)
    return {name: sum(counts.get(name, 0) for counts in figures) for name in names}


@dataclass(frozen=True)
class Need:
    """What maintenance of one table is due, counted from the ledger alone.

    `small_files` of `small_bytes` could be merged now; `old_rows` are past the table's retention, by what is known of
    its files; `snapshots` could be expired. Of a keyed table, `unfolded_bytes` of the log are not in its state, which
    has `state_bytes`, and `unfiltered_files` of it lack a filter for a later rule.
    """

    table: str
    small_files: int = 0
    small_bytes: int = 0
    old_rows: int = 0
    snapshots: int = 0
    unfolded_bytes: int = 0
    state_bytes: int = 0
    unfiltered_files: int = 0


class SettingChanges(TypedDict, total=False):
    """Settings of a table to change; `retention_s` None keeps rows for good."""

    retention_s: float | None
    time_column: str
    target_file_bytes: int


class Bounds(TypedDict, total=False):
    """How much one run may do, and whether it only says what it would do."""

    max_bytes: int | None
    max_time_s: float | None
    dry_run: bool


class Compacting(Bounds, total=False):
    """How to compact. Not `eager`, only what is worth it is merged: a row is then not rewritten for a few new ones."""

    eager: bool


class Retaining(Bounds, total=False):
    """How to prune.

    `yes` removes rows also when none is left. `force_past_sinks` removes those that sinks have not delivered, and needs
    `yes`. Not `eager`, files at the edge of the window wait until a good part of them is old.
    """

    eager: bool
    yes: bool
    force_past_sinks: bool


class Expiring(Bounds, total=False):
    """How to expire; `grace_s` instead of the lake's own grace."""

    grace_s: float | None


class Sweeping(TypedDict, total=False):
    """How to sweep; `grace_s` instead of the lake's own grace."""

    grace_s: float | None
    dry_run: bool


class Budget:
    """How much one run may do: bytes of input and seconds; None is without a limit. What has begun is finished."""

    def __init__(self, max_bytes: int | None = None, max_time_s: float | None = None) -> None:
        self._bytes_left = max_bytes
        self._end_s = None if max_time_s is None else time.monotonic() + max_time_s

    def spend(self, size_bytes: int) -> None:
        """So much input was rewritten."""
        if self._bytes_left is not None:
            self._bytes_left -= size_bytes

    @property
    def is_spent(self) -> bool:
        """Whether nothing more may be begun."""
        out_of_bytes = self._bytes_left is not None and self._bytes_left <= 0
        return out_of_bytes or (self._end_s is not None and time.monotonic() >= self._end_s)

    def bite(self, size_bytes: int) -> int:
        """The largest input that the next operation may take, `size_bytes` at most."""
        return size_bytes if self._bytes_left is None else max(1, min(size_bytes, self._bytes_left))
