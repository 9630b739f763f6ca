"""What is due: a pure function of what the ledger shows and of what the time is.

Deciding and doing are apart, so that every decision can be tested without a clock, a Spark or a destination. A verdict
says why, also where nothing is to be done: `strand status --why` prints it.

Ages are seconds that a worker has measured itself, wherever it could: two clocks are never compared for longer than it
takes a worker to look twice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cronsim import CronSim

from strandline.ledger.ledger import MAIN
from strandline.model.wording import counted
from strandline.operations.core.registry import ENTRIES

RECOVER_EVERY_S = 5.0
"""How often what dead processes left is tried again, when it did not fail and is still there."""

MANY_BATCHES = 1000
"""A reader opens every batch of a table's tail: with so many of them a keyed one waits no longer than a log."""


@dataclass(frozen=True)
class Job:
    """Something to do, and why. Jobs of the same key never run at the same time."""

    kind: str
    name: str
    why: str

    @property
    def key(self) -> str:
        """What it must not run beside."""
        return f"{self.kind}:{self.name}"


def on_branch(table: str, branch: str) -> str:
    """What a job about a table of a branch is about: of main, the table's own name."""
    return table if branch == MAIN else f"{table}@{branch}"


def table_and_branch(name: str) -> tuple[str, str]:
    """The inverse: no table has an @ in its name."""
    table, _, branch = name.partition("@")
    return table, branch or MAIN


@dataclass(frozen=True)
class Verdict:
    """What was decided about a job: to do it now, or why not."""

    job: Job
    due: bool


@dataclass(frozen=True)
class Past:
    """What is known of a job: how long ago it was last decided, how long it has to wait since then.

    Whether for ever.
    """

    ago_s: float
    at_us: int = 0
    runs: int = 1
    wait_s: float = 0.0
    failures: int = 0
    parked: str | None = None


@dataclass(frozen=True)
class Tail:
    """The tail of a table: its size, and for how long its oldest batch waits. That of a keyed table may wait longer."""

    table: str
    size_bytes: int
    age_s: float
    keyed: bool = False
    batches: int = 1


@dataclass(frozen=True)
class Schedule:
    """When a sink ticks: every so many seconds, or by a cron line."""

    sink: str
    every_s: float
    cron: str | None = None
    hold_until_us: int | None = None
    paused: str | None = None


@dataclass(frozen=True)
class TableNeed:
    """Maintenance that a table needs, and how badly: the neediest goes first."""

    kind: str
    table: str
    why: str
    urgency: float = 0.0


@dataclass(frozen=True)
class Rules:
    """How large, or how old, a tail may become, and how often maintenance looks."""

    max_bytes: int
    max_age_s: float
    maintain_every_s: float | None = None
    keyed_max_age_s: float = 900.0


@dataclass(frozen=True)
class Facts:
    """Everything that a decision depends on."""

    now_us: int
    rules: Rules
    tails: Sequence[Tail] = ()
    schedules: Sequence[Schedule] = ()
    needs: Sequence[TableNeed] = ()
    left: int = 0
    damaged: int = 0
    past: Mapping[str, Past] = field(default_factory=dict)


def due(facts: Facts) -> list[Job]:
    """The jobs that are due, in the order in which they should be begun."""
    return [verdict.job for verdict in judge(facts) if verdict.due]


def judge(facts: Facts) -> list[Verdict]:
    """What is to be done with every job there could be: recovery first, then flushes, ticks, maintenance."""
    verdicts = [
        *_recovery(facts),
        *(_flush(facts.rules, tail) for tail in _by_size(facts.tails)),
        *(_tick(facts, schedule) for schedule in _by_wait(facts)),
        *(_maintain(facts, need) for need in sorted(facts.needs, key=lambda need: (-need.urgency, need.table))),
    ]
    return [_after_failures(verdict, facts.past.get(verdict.job.key)) for verdict in verdicts]


def startable(jobs: Sequence[Job], running: Collection[str], limits: Mapping[str, int]) -> list[Job]:
    """Those of the jobs that may begin now: none twice, and so many of a kind at once; the rest keeps its turn."""
    taken = set(running)
    chosen: list[Job] = []
    for job in jobs:
        group = _group(job.key)
        busy = sum(_group(key) == group for key in taken)
        if job.key not in taken and busy < limits.get(group, 1):
            taken.add(job.key)
            chosen.append(job)
    return chosen


def _group(key: str) -> str:
    """What shares a limit: all maintenance does, because it must leave room for what a person waits for."""
    kind = key.partition(":")[0]
    return "maintenance" if kind in ENTRIES else kind


def _recovery(facts: Facts) -> list[Verdict]:
    if not facts.left and not facts.damaged:
        return []
    reasons = [f"left by dead processes: {counted(facts.left, 'operation')}"] if facts.left else []
    reasons += [f"waiting for files that are missing: {counted(facts.damaged, 'operation')}"] if facts.damaged else []
    job = Job("recover", "lake", "; ".join(reasons))
    past = facts.past.get(job.key)
    # What is damaged is looked at again from time to time: the files may be back.
    pause_s = RECOVER_EVERY_S if facts.left else 60 * RECOVER_EVERY_S
    return [Verdict(job, past is None or past.ago_s >= pause_s)]


def _by_size(tails: Sequence[Tail]) -> list[Tail]:
    return sorted(tails, key=lambda tail: (-tail.size_bytes, tail.table))


def _flush(rules: Rules, tail: Tail) -> Verdict:
    if tail.size_bytes >= rules.max_bytes:
        return Verdict(Job("flush", tail.table, f"its tail has {tail.size_bytes:,} bytes"), due=True)
    patient = tail.keyed and tail.batches < MANY_BATCHES
    max_age_s = rules.keyed_max_age_s if patient else rules.max_age_s
    if tail.age_s >= max_age_s:
        return Verdict(Job("flush", tail.table, f"its oldest row waits for {tail.age_s:.0f} s"), due=True)
    why = (
        f"its tail has {tail.size_bytes:,} of {rules.max_bytes:,} bytes, "
        f"and its oldest row waits for {tail.age_s:.0f} of {max_age_s:.0f} s"
    )
    return Verdict(Job("flush", tail.table, why), due=False)


def _by_wait(facts: Facts) -> list[Schedule]:
    """The sink that was not ticked for longest goes first."""

    def waits_s(schedule: Schedule) -> float:
        past = facts.past.get(f"tick:{schedule.sink}")
        return float("inf") if past is None else past.ago_s

    return sorted(facts.schedules, key=lambda schedule: (-waits_s(schedule), schedule.sink))


def _tick(facts: Facts, schedule: Schedule) -> Verdict:
    past = facts.past.get(f"tick:{schedule.sink}")

    def verdict(why: str, *, due: bool) -> Verdict:
        return Verdict(Job("tick", schedule.sink, why), due)

    if schedule.paused is not None:
        return verdict(f"it is paused: {schedule.paused}", due=False)
    if schedule.hold_until_us is not None and facts.now_us < schedule.hold_until_us:
        return verdict("it is held until a moment that has not come", due=False)
    if past is None:
        return verdict("it has not been ticked yet", due=True)
    if schedule.cron is not None:
        # A clock that was set back must not keep a sink waiting for what used to be the future.
        if next_by_cron_us(schedule.cron, min(past.at_us, facts.now_us)) <= facts.now_us:
            return verdict("its cron line says so", due=True)
        return verdict(f"its cron line {schedule.cron!r} names a later moment", due=False)
    if past.ago_s >= schedule.every_s:
        return verdict(f"every {schedule.every_s:g} s", due=True)
    return verdict(f"ticked {past.ago_s:.0f} s ago, and it is every {schedule.every_s:g} s", due=False)


def _maintain(facts: Facts, need: TableNeed) -> Verdict:
    job = Job(need.kind, need.table, need.why)
    every_s, past = facts.rules.maintain_every_s, facts.past.get(job.key)
    if every_s is None:
        return Verdict(Job(need.kind, need.table, f"{need.why}; maintenance is switched off"), due=False)
    if past is not None and past.ago_s < every_s:
        why = f"{need.why}; done {past.ago_s:.0f} s ago, and it is every {every_s:g} s"
        return Verdict(Job(need.kind, need.table, why), due=False)
    return Verdict(job, due=True)


def _after_failures(verdict: Verdict, past: Past | None) -> Verdict:
    """What failed waits, and longer each time; what is parked waits for a person."""
    job = verdict.job
    if past is None:
        return verdict
    if past.parked is not None:
        why = f"parked after {past.failures} failures: {past.parked}; `strand worker retry {job.key}` lets it go on"
        return Verdict(Job(job.kind, job.name, why), due=False)
    if past.ago_s < past.wait_s:
        why = f"{job.why}; it is tried again in {past.wait_s - past.ago_s:.0f} s"
        return Verdict(Job(job.kind, job.name, why), due=False)
    return verdict


def next_by_cron_us(line: str, after_us: int) -> int:
    """The first moment behind `after_us` that a cron line names, in UTC."""
    after = dt.datetime.fromtimestamp(after_us / 1e6, dt.UTC)
    return int(next(CronSim(line, after)).timestamp() * 1e6)
