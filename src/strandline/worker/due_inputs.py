"""What a decision depends on, read from the ledger.

Other workers' clocks may be an hour off, and ours may jump. So what was seen once is aged by our own monotonic clock
from then on; only at the first sight, when there is nothing else, is a time of the ledger compared with the time of
day.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.lake import Lake
from strandline.ledger.tables.tables import waiting_tails
from strandline.ledger.workers.jobs import ABANDONED, JobRecord, read_jobs
from strandline.model.delivery.sinks import Sink
from strandline.operations.core.recovery import left_behind
from strandline.operations.core.running import due_on_branch, due_on_lake
from strandline.reports.work import Decision, job_report
from strandline.sinks.settings import resolved
from strandline.worker.due import Facts, Past, Rules, Schedule, TableNeed, Tail, judge, on_branch

NEVER_S = float("inf")


@dataclass
class Sightings:
    """How old things are, by the clock of a process that looks at them again and again."""

    _seen: dict[str, tuple[Hashable, float, float]] = field(default_factory=dict)

    def age_s(self, name: str, what: Hashable, since_us: int, now_us: int) -> float:
        """How long `what` has been so; it began at `since_us` by the clock of some process."""
        now_s = time.monotonic()
        sighting = self._seen.get(name)
        if sighting is None or sighting[0] != what:
            # A moment that has not come yet was written by a clock that is ahead, or before ours was set back. Of what
            # we have seen change ourselves we know better than any clock.
            age_s = (now_us - since_us) / 1e6 if since_us <= now_us else (NEVER_S if sighting is None else 0.0)
            sighting = self._seen[name] = (what, now_s, age_s)
        return sighting[2] + (now_s - sighting[1])


def read_needs(lake: Lake) -> list[TableNeed]:
    """What maintenance there is to do; it looks at every table's list of files, so not at every turn."""
    if lake.config.maintenance.every_s is None:
        return []
    rules = lake.config.maintenance
    on_tables = [
        (job, on_branch(job.table, branch.name))
        for branch in lake.branches()
        for job in due_on_branch(lake.context, branch.name, rules)
    ]
    on_lake = [(job, "lake") for job in due_on_lake(lake.context, rules)]
    return [TableNeed(job.operation.name, name, job.due.why, job.due.urgency) for job, name in [*on_tables, *on_lake]]


def read_facts(lake: Lake, sightings: Sightings, needs: Sequence[TableNeed]) -> Facts:
    """Everything there is to decide about, now."""
    following = lake.sinks()
    now_us = time.time_ns() // 1000
    with lake.ledger.read() as conn:
        waiting = [(on_branch(tail.table, tail.branch), tail) for tail in waiting_tails(conn)]
        records = read_jobs(conn)
    flush = lake.config.flush
    left = left_behind(lake.context)
    damaged = sum(intent.phase == "damaged" for intent in left)
    return Facts(
        now_us=now_us,
        rules=Rules(flush.max_bytes, flush.max_age_s, lake.config.maintenance.every_s, flush.keyed_max_age_s),
        tails=[
            Tail(
                name,
                int(tail.size_bytes),
                sightings.age_s(f"tail:{name}", tail.since_us, tail.since_us, now_us),
                tail.kind == "keyed",
                tail.batches,
            )
            for name, tail in waiting
        ],
        schedules=[_schedule(sink) for sink in following],
        needs=needs,
        left=len(left) - damaged,
        damaged=damaged,
        past=_past(records, following, sightings, now_us),
    )


def decisions(lake: Lake) -> list[Decision]:
    """What a worker would decide now about every job, and what was decided last."""
    with lake.ledger.read() as conn:
        last = {key: job_report(record) for key, record in read_jobs(conn).items()}
    verdicts = judge(read_facts(lake, Sightings(), read_needs(lake)))
    decided = [Decision(to_do.job.key, to_do.due, to_do.job.why, last.get(to_do.job.key)) for to_do in verdicts]
    keys = {decision.job for decision in decided}
    return decided + [Decision(key, False, "there is nothing to do", last[key]) for key in last if key not in keys]


def _schedule(sink: Sink) -> Schedule:
    settings = resolved(sink.type, sink.settings)
    return Schedule(sink.name, settings["every"], settings["cron"], sink.hold_until_us, sink.paused)


def _past(
    records: Mapping[str, JobRecord], following: list[Sink], sightings: Sightings, now_us: int
) -> dict[str, Past]:
    past = {key: _of_record(record, sightings, now_us) for key, record in records.items()}
    for sink in following:
        at_us = sink.ticked_at_us
        if at_us is None:
            continue
        # `strand sink tick` counts too; and a worker that starts goes on with the schedule, it begins none.
        key = f"tick:{sink.name}"
        ago_s = sightings.age_s(f"ticked:{sink.name}", at_us, at_us, now_us)
        recorded = past.get(key)
        if recorded is None:
            past[key] = Past(ago_s, at_us, runs=0)
        elif ago_s < recorded.ago_s:
            past[key] = Past(ago_s, at_us, recorded.runs, recorded.wait_s, recorded.failures, recorded.parked)
    return past


def _of_record(record: JobRecord, sightings: Sightings, now_us: int) -> Past:
    what = (record.runs, record.outcome, record.wait_us)
    ago_s = sightings.age_s(f"job:{record.key}", what, record.decided_at_us, now_us)
    at_us = record.decided_at_us
    if record.outcome == ABANDONED:  # told to stop in the middle: what it left is due again
        ago_s, at_us = NEVER_S, 0
    parked = None if record.parked_at_us is None else record.error or "it was parked"
    return Past(ago_s, at_us, record.runs, record.wait_us / 1e6, record.failures, parked)
