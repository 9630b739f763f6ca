"""What is due: a pure function of what the ledger shows and of what the time is.

Deciding and doing are apart, so that every decision can be tested without a clock, a Spark or a destination.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cronsim import CronSim


@dataclass(frozen=True)
class Tail:
    """The tail of a table: its size, and since when its oldest batch waits."""

    table: str
    size_bytes: int
    since_us: int


@dataclass(frozen=True)
class Schedule:
    """When a sink ticks: every so many seconds, or by a cron line."""

    sink: str
    every_s: float
    cron: str | None = None
    hold_until_us: int | None = None


@dataclass(frozen=True)
class Job:
    """Something to do now, and why. Jobs of the same key never run at the same time."""

    kind: str
    name: str
    why: str

    @property
    def key(self) -> str:
        """What it must not run beside."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class Rules:
    """How large, or how old, a tail may become."""

    max_bytes: int
    max_age_s: float


def due(
    now_us: int,
    rules: Rules,
    tails: Sequence[Tail],
    schedules: Sequence[Schedule],
    ticked_us: Mapping[str, int],
    not_before_us: Mapping[str, int],
) -> list[Job]:
    """The jobs that are due, flushes first, the largest tail before the others.

    `ticked_us` is when each sink was last ticked, `not_before_us` what must wait because it failed, by the job's key.
    """
    flushes = [Job("flush", tail.table, why) for tail in _by_size(tails) if (why := _why_flush(now_us, rules, tail))]
    ticks = [
        Job("tick", schedule.sink, why)
        for schedule in schedules
        if (why := _why_tick(now_us, schedule, ticked_us.get(schedule.sink)))
    ]
    return [job for job in [*flushes, *ticks] if not_before_us.get(job.key, 0) <= now_us]


def _by_size(tails: Sequence[Tail]) -> list[Tail]:
    return sorted(tails, key=lambda tail: (-tail.size_bytes, tail.table))


def _why_flush(now_us: int, rules: Rules, tail: Tail) -> str | None:
    if tail.size_bytes >= rules.max_bytes:
        return f"its tail has {tail.size_bytes} bytes"
    age_s = (now_us - tail.since_us) / 1e6
    if age_s >= rules.max_age_s:
        return f"its oldest row waits for {age_s:.0f} s"
    return None


def _why_tick(now_us: int, schedule: Schedule, ticked_us: int | None) -> str | None:
    if schedule.hold_until_us is not None and now_us < schedule.hold_until_us:
        return None
    if ticked_us is None:
        return "it has not been ticked yet"
    if schedule.cron is not None:
        return "its cron line says so" if next_by_cron_us(schedule.cron, ticked_us) <= now_us else None
    # A clock that was set back must not keep a sink waiting for what used to be the future.
    if now_us < ticked_us or now_us - ticked_us >= schedule.every_s * 1e6:
        return f"every {schedule.every_s:g} s"
    return None


def next_by_cron_us(line: str, after_us: int) -> int:
    """The first moment behind `after_us` that a cron line names, in UTC."""
    after = dt.datetime.fromtimestamp(after_us / 1e6, dt.UTC)
    return int(next(CronSim(line, after)).timestamp() * 1e6)
