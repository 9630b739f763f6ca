"""The course of the demonstration: who is started, killed and started again, and when.

1. A receiver, a worker and three live writers start. The lake forwards to the receiver, and writes blobs.
2. A live writer is killed half-way, when a batch is stored and it has not been told; it is started again.
3. When the first flush is published the backfill starts: a part of what it offers is in the log by now.
4. The worker is killed inside a flush: the ledger shows one under way. SQL answers meanwhile. It is started again.
5. The worker is killed inside a delivery: the ledger shows it open, and the receiver has a part. It is started again.
6. Everybody finishes; when all is delivered, every destination is compared with the acks.
7. A table of sessions is changed on a branch and on main, and the branch is merged.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any

import orjson

import strandline as sl
from examples.demo import acks
from examples.demo.branches import BRANCH, Merging, merge_a_branch
from examples.demo.destinations import (
    RECEIVER,
    add_sinks,
    arrived,
    dead_letters,
    finished,
    listening,
    received,
    stored,
    written,
)
from examples.demo.figures import Figures, expected_rows, held, wrong
from examples.demo.kills import (
    VICTIM,
    hanging_delivery,
    hanging_flush,
    hanging_writer,
    kill_inside_a_delivery,
    kill_inside_a_flush,
    kill_writer,
    look_meanwhile,
)
from examples.demo.messages import TABLE
from examples.demo.narrator import Narrator
from examples.demo.places import Places, fresh_lake
from examples.demo.plan import BACKFILL, LIVE, WRITERS, plan
from examples.demo.processes import Processes
from examples.demo.run import COUNTER, WORKER, Run, Settings
from strandline.reports.audit import AuditEntry

# For a JVM that lives for half a minute the quick compiler and the simple collector are the better ones.
SPARK_CONF = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(frozen=True)
class Outcome:
    """How it ended."""

    figures: Figures
    wrong: list[str]
    seconds: float
    recoveries: list[AuditEntry]
    killed: list[dict[str, Any]]
    merging: Merging

    @property
    def rows_per_second(self) -> float:
        """Acked rows by the time that passed until the last of them was in Iceberg and at both destinations."""
        return self.figures.acked / self.seconds


def conduct(settings: Settings, narrator: Narrator) -> Outcome:
    """Run the whole demonstration in two new lakes."""
    places = Places(settings.root)
    shares = plan(settings.rows, settings.seed)
    with fresh_lake(places) as replaced:
        narrator.say(f"made a lake in {settings.root}" + (", in place of the last demonstration's" if replaced else ""))
        with (
            sl.open(places.root, read_only=True) as lake,
            sl.open(places.receiver, read_only=True) as receiver,
            Processes(places, spark_environment()) as processes,
        ):
            run = Run(settings, places, shares, lake, receiver, processes, narrator)
            seconds = _course(run)
            return _outcome(run, seconds)


def spark_environment() -> dict[str, str]:
    """Settings for Spark that suit a short life; what the user has set himself wins."""
    set_by_user = json.loads(os.environ.get("STRAND_SPARK_CONF") or "{}")
    return {"STRAND_SPARK_CONF": json.dumps({**SPARK_CONF, **set_by_user})}


def _course(run: Run) -> float:
    """All steps up to the last delivery; returns the seconds since the writers began."""
    _connect(run)
    began_s = time.monotonic()
    run.start_worker(**hanging_flush())
    for name in LIVE:
        run.start_writer(name, **(hanging_writer(run.shares[name].batches // 2) if name == VICTIM else {}))
    run.narrator.say("started a worker and 3 live writers")
    kill_writer(run)
    run.wait("waiting for the first flush", lambda: run.heard.flushes > 0)
    run.start_writer(BACKFILL)
    run.narrator.say("started the backfill: some of its messages were captured live too")
    kill_inside_a_flush(run)
    run.start_worker(**hanging_delivery())
    look_meanwhile(run)
    kill_inside_a_delivery(run)
    run.start_worker()
    run.wait("waiting for the writers", lambda: run.processes.all_ended(WRITERS))
    run.narrator.say(f"all writers are done: {run.acked():,} rows acked")
    run.wait("waiting for the last delivery", lambda: arrived(run.lake))
    seconds = time.monotonic() - began_s
    run.processes.ask_to_end(WORKER)
    run.wait("waiting for the worker to stop", lambda: run.processes.all_ended((WORKER,)))
    run.narrator.say("everything is delivered, and the worker has stopped")
    return seconds


def _connect(run: Run) -> None:
    """Start the receiver, and let the lake send to it and write blobs."""
    run.start_receiver()
    run.wait("waiting for the receiver", lambda: listening(run.places) is not None)
    url = listening(run.places)
    assert url is not None, "the receiver has just said where it listens"
    add_sinks(run.places, url, run.settings.rows)
    run.narrator.say(f"started a receiver at {url} on the lake {run.places.receiver}; blobs go to {run.places.blobs}")


def _outcome(run: Run, seconds: float) -> Outcome:
    run.narrator.say("comparing every destination with what was acked")
    run.start_counter()
    repeated = sum(line.repeated for name in WRITERS for line in acks.read(run.places.acks(name)))
    for victim in run.killed:
        if victim["process"] == VICTIM:
            victim["stored_but_not_answered"] = repeated
    flushes = {victim["operation"] for victim in run.killed if "operation" in victim}
    recoveries = [entry for entry in run.lake.reports.audit() if entry.op in flushes]
    figures = _figures(run, recoveries, flushes)
    run.processes.ask_to_end(RECEIVER)
    run.wait("waiting for the receiver to stop", lambda: run.processes.all_ended((RECEIVER,)))
    merging = merge_a_branch(run.places.root)
    run.narrator.say(
        f"{merging.sessions} sessions: {merging.on_branch} changed on the branch {BRANCH}, {merging.on_main} on main, "
        f"{merging.different} differed; merged, and looked back"
    )
    faults = [*run.wrong, *wrong(figures, run.settings.rows), *merging.wrong]
    return Outcome(figures, faults, seconds, recoveries, run.killed, merging)


def _figures(run: Run, recoveries: list[AuditEntry], flushes: set[str]) -> Figures:
    """Read everything back, while Spark counts in a process of its own."""
    expected, acked = expected_rows(run.places, run.shares.values())
    view, seqs = run.lake.view(), dict[str, int]()
    state = view.branch_table(TABLE)
    log = held(stored(view), expected, seqs)
    receiver = held(received(run.receiver.view()), expected, seqs)
    blobs = held(written(run.places), expected, seqs)
    deliveries = [victim for victim in run.killed if "delivery" in victim]
    run.wait("waiting for Spark to count", lambda: run.processes.all_ended((COUNTER,)))
    return Figures(
        acked=acked,
        duplicates_offered=acked - len(expected),
        log=log,
        receiver=receiver,
        blobs=blobs,
        still_in_the_tail=sum(ref.rows for ref in state.tail),
        acked_by_the_ledger=state.head.books.acked,
        seen_by_sql=view.sql(f"SELECT count(*) FROM {TABLE}").rows()[0][0],
        seen_by_spark=orjson.loads(run.places.counted.read_bytes())["rows"],
        killed_flushes=len(flushes),
        recovered_flushes=len({entry.op for entry in recoveries}),
        killed_deliveries=len(deliveries),
        finished_deliveries=sum(finished(run.lake, delivery) for delivery in deliveries),
        dead_letters=dead_letters(run.lake),
    )
