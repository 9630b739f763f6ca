"""The course of the demonstration: who is started, killed and started again, and when.

1. The flusher starts Spark, then three live writers start, so that there are flushes while they write.
2. A live writer is killed half-way, when a batch is stored and it has not been told; it is started again.
3. When the first flush is published the backfill starts: a part of what it offers is in the log by now.
4. The flusher is killed inside a flush: the ledger shows one under way. SQL answers meanwhile. It is started again.
5. Everybody finishes; after one last flush the lake is compared with the acks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

import strandline as sl
from strandline.demo import acks
from strandline.demo.figures import Figures, acked_keys, compare, wrong
from strandline.demo.messages import TABLE
from strandline.demo.narrator import Narrator
from strandline.demo.places import Places, fresh_lake
from strandline.demo.plan import BACKFILL, LIVE, WRITERS, Share, plan
from strandline.demo.processes import Processes
from strandline.errors import Internal
from strandline.ledger.audit import read_audit
from strandline.ledger.intents import read_intents
from strandline.model.operations import Intent

FLUSHER = "flusher"
VICTIM = LIVE[1]
POLL_S = 0.02
# A batch is generated and committed in far less.
INTO_THE_APPEND_S = 0.5
# A flush has been under way for this long when it is killed: Spark is at work then.
INTO_THE_FLUSH_S = 0.25
PATIENCE_S = 300.0
# For a JVM that lives for half a minute the quick compiler and the simple collector are the better ones.
SPARK_CONF = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(frozen=True)
class Settings:
    """What a person may choose."""

    root: Path
    rows: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """How it ended."""

    figures: Figures
    wrong: list[str]
    seconds: float
    recoveries: list[dict[str, Any]]
    killed: list[dict[str, Any]]

    @property
    def rows_per_second(self) -> float:
        """Acked rows by the time that passed until the last of them was in Iceberg."""
        return self.figures.acked / self.seconds


@dataclass
class Run:
    """One demonstration under way."""

    settings: Settings
    places: Places
    shares: dict[str, Share]
    lake: sl.Lake
    processes: Processes
    narrator: Narrator
    killed: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def start_writer(self, name: str, **environment: str) -> None:
        """Start a writer, for the first time or again."""
        numbers = str(self.settings.rows), str(self.settings.seed)
        self.processes.start(name, "strandline.demo.writer", name, *numbers, environment=environment)

    def start_flusher(self) -> None:
        """Start the flusher, for the first time or again."""
        self.processes.start(FLUSHER, "strandline.demo.flusher")

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        """Poll until something is so, telling what the flusher does meanwhile."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not reached():
            self.processes.all_ended(())
            self.hear()
            self.narrator.progress(f"{what} · {self.acked():,} of {self.settings.rows:,} rows acked")
            if time.monotonic() > deadline_s:
                raise Internal(f"waited {PATIENCE_S:.0f} s in vain: {what}", hint=f"Look into {self.places.folder}.")
            time.sleep(POLL_S)
        self.hear()

    def hear(self) -> None:
        """Tell what the flusher has done since the last time."""
        file = self.places.events
        lines = file.read_bytes().splitlines() if file.exists() else []
        for line in lines[len(self.events) :]:
            event = orjson.loads(line)
            self.events.append(event)
            if event["event"] == "flushed":
                dropped = f", {event['dropped']:,} duplicates dropped" if event["dropped"] else ""
                self.narrator.say(f"flushed: {event['rows']:,} rows into Iceberg in {event['seconds']:.1f} s{dropped}")
            elif event["event"] == "ready":
                self.narrator.say("Spark is up")

    def acked(self) -> int:
        """How many rows have been acked by now."""
        return sum(
            min(acks.count(self.places.acks(name)) * share.batch_rows, share.rows)
            for name, share in self.shares.items()
        )

    def flushes(self) -> int:
        """How many flushes have been published by now."""
        return sum(event["event"] == "flushed" for event in self.events)


def conduct(settings: Settings, narrator: Narrator) -> Outcome:
    """Run the whole demonstration in a new lake."""
    places = Places(settings.root)
    shares = plan(settings.rows, settings.seed)
    with fresh_lake(places) as replaced:
        narrator.say(f"made a lake in {settings.root}" + (", in place of the last demonstration's" if replaced else ""))
        with sl.open(settings.root, read_only=True) as lake, Processes(places, spark_environment()) as processes:
            run = Run(settings, places, shares, lake, processes, narrator)
            seconds = _course(run)
        return _outcome(run, seconds)


def spark_environment() -> dict[str, str]:
    """Settings for Spark that suit a short life; what the user has set himself wins."""
    given = json.loads(os.environ.get("STRAND_SPARK_CONF") or "{}")
    return {"STRAND_SPARK_CONF": json.dumps({**SPARK_CONF, **given})}


def _course(run: Run) -> float:
    """All steps up to the last flush; returns the seconds since the writers began."""
    run.narrator.say("starting Spark in the flusher's process")
    run.start_flusher()
    run.wait("waiting for Spark", lambda: any(event["event"] == "ready" for event in run.events))
    began_s = time.monotonic()
    for name in LIVE:
        run.start_writer(name, **(_hanging_after(run.shares[name].batches // 2) if name == VICTIM else {}))
    run.narrator.say("started 3 live writers")
    _kill_writer(run)
    run.wait("waiting for the first flush", lambda: run.flushes() > 0)
    run.start_writer(BACKFILL)
    run.narrator.say("started the backfill: some of its messages were captured live too")
    _kill_flusher(run)
    run.wait("waiting for the writers", lambda: run.processes.all_ended(WRITERS))
    run.narrator.say(f"all writers are done: {run.acked():,} rows acked")
    run.processes.end_input(FLUSHER)
    run.wait("waiting for the last flush", lambda: any(event["event"] == "counted" for event in run.events))
    seconds = time.monotonic() - began_s
    run.wait("waiting for Spark to stop", lambda: run.processes.all_ended((FLUSHER,)))
    return seconds


def _kill_writer(run: Run) -> None:
    share, file = run.shares[VICTIM], run.places.acks(VICTIM)
    half = share.batches // 2
    run.wait(f"waiting for {VICTIM} to be half-way", lambda: acks.count(file) >= half)
    time.sleep(INTO_THE_APPEND_S)
    run.processes.kill(VICTIM)
    run.start_writer(VICTIM)
    run.narrator.say(f"killed writer {VICTIM} while it waited for the answer to batch {half + 1}; started it again")
    run.killed.append({"process": VICTIM, "acked_batches": half})


def _hanging_after(batches: int) -> dict[str, str]:
    """A writer that hangs at the worst moment: the next batch is committed, and nobody has told it so."""
    return {"STRAND_FAILPOINTS": f"append.after_commit=hang@{batches + 1}"}


def _kill_flusher(run: Run) -> None:
    found: list[Intent] = []

    def inside_a_flush() -> bool:
        found[:] = _flushes_under_way(run.lake)
        return bool(found)

    while True:
        run.wait("waiting for the next flush", inside_a_flush)
        time.sleep(INTO_THE_FLUSH_S)
        run.processes.pause(FLUSHER)
        still = [intent for intent in _flushes_under_way(run.lake) if intent.op_id == found[0].op_id]
        if still:
            break
        run.processes.go_on(FLUSHER)
    run.processes.kill(FLUSHER)
    run.narrator.say(f"killed the flusher in the middle of flush {still[0].op_id} (phase {still[0].phase})")
    run.killed.append({"process": FLUSHER, "operation": still[0].op_id, "phase": still[0].phase})
    run.start_flusher()
    _look_meanwhile(run)


def _flushes_under_way(lake: sl.Lake) -> list[Intent]:
    with lake.ledger.read() as conn:
        intents = read_intents(conn)
    return [
        one for one in intents if isinstance(one, Intent) and one.kind == "flush" and one.phase in ("staging", "staged")
    ]


def _look_meanwhile(run: Run) -> None:
    """With the flush dead and Spark down, every acked row is there for SQL, once."""
    acked = set(acked_keys(run.places, run.shares.values()))
    seen = [key for (key,) in run.lake.view().sql(f"SELECT part_id FROM {TABLE}").rows()]
    missing, twice = len(acked.difference(seen)), len(seen) - len(set(seen))
    run.narrator.say(
        f"SQL meanwhile, without Spark: {len(seen):,} rows, {missing} acked ones missing, {twice} shown twice"
    )
    if missing or twice:
        run.wrong.append(f"while the flusher was down SQL missed {missing} rows and showed {twice} twice")


def _outcome(run: Run, seconds: float) -> Outcome:
    run.narrator.say("comparing the lake with what was acked")
    repeated = sum(line.repeated for name in WRITERS for line in acks.read(run.places.acks(name)))
    for victim in run.killed:
        if victim["process"] == VICTIM:
            victim["stored_but_not_answered"] = repeated
    flushes = {one["operation"] for one in run.killed if "operation" in one}
    counted = run.events[-1]
    with sl.open(run.settings.root, read_only=True) as lake:
        with lake.ledger.read() as conn:
            recoveries = [row for row in read_audit(conn) if row["op_id"] in flushes]
        figures = compare(
            lake.view(),
            run.places,
            run.shares.values(),
            seen_by_spark=counted["rows"],
            killed_flushes=len(flushes),
            recovered_flushes=len({row["op_id"] for row in recoveries}),
        )
    return Outcome(figures, [*run.wrong, *wrong(figures, run.settings.rows)], seconds, recoveries, run.killed)
