"""One demonstration under way: its processes, and what is told of them while they work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import strandline as sl
from examples.demo import acks
from examples.demo.destinations import BLOBS, RECEIVER, streams
from examples.demo.messages import TABLE
from examples.demo.narrator import Narrator
from examples.demo.places import Places
from examples.demo.plan import Share
from examples.demo.processes import Processes
from strandline.errors import Internal

WORKER, COUNTER = "worker", "counter"
POLL_S = 0.02
HEAR_S = 0.25
PATIENCE_S = 300.0
# A tail is flushed when its oldest row is this old, or when a sink that follows it is due.
WORKER_ENVIRONMENT = {"STRAND_FLUSH_MAX_AGE": "3s"}
_PLACES = {RECEIVER: "forwarded {:,} rows to the receiver", BLOBS: "wrote {:,} rows to blobs"}


@dataclass(frozen=True)
class Settings:
    """What a person may choose."""

    root: Path
    rows: int
    seed: int


@dataclass
class _Heard:
    """What has been told already."""

    at_s: float = 0.0
    log_rows: int = 0
    dropped: int = 0
    flushes: int = 0
    delivered: dict[str, int] = field(default_factory=dict)


@dataclass
class Run:
    """One demonstration under way."""

    settings: Settings
    places: Places
    shares: dict[str, Share]
    lake: sl.Lake
    receiver: sl.Lake
    processes: Processes
    narrator: Narrator
    killed: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    heard: _Heard = field(default_factory=_Heard)

    def start_writer(self, name: str, **environment: str) -> None:
        """Start a writer, for the first time or again."""
        numbers = str(self.settings.rows), str(self.settings.seed)
        self.processes.start(
            name, "examples.demo.writer", str(self.places.root), name, *numbers, environment=environment
        )

    def start_worker(self, **environment: str) -> None:
        """Start `strand worker`, for the first time or again."""
        command = ("--lake", str(self.places.root), "--json", "worker")
        self.processes.start(WORKER, "strandline", *command, environment={**WORKER_ENVIRONMENT, **environment})

    def start_receiver(self) -> None:
        """Start `strand serve` on the second lake, on a port that is free."""
        command = ("--lake", str(self.places.receiver), "--json", "serve", "--listen", "127.0.0.1:0")
        self.processes.start(RECEIVER, "strandline", *command)

    def start_counter(self) -> None:
        """Let Spark count what is in the catalog."""
        self.processes.start(COUNTER, "examples.demo.counter", str(self.places.root))

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        """Poll until something is so, telling what the worker does meanwhile."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not reached():
            self.processes.all_ended(())
            self.hear()
            if time.monotonic() > deadline_s:
                raise Internal(f"waited {PATIENCE_S:.0f} s in vain: {what}", hint=f"Look into {self.places.folder}.")
            self.narrator.progress(f"{what} · {self.acked():,} of {self.settings.rows:,} rows acked")
            time.sleep(POLL_S)
        self.hear(now=True)

    def hear(self, *, now: bool = False) -> None:
        """Tell what was flushed and delivered since the last time; the ledger knows."""
        heard = self.heard
        if not now and time.monotonic() - heard.at_s < HEAR_S:
            return
        heard.at_s = time.monotonic()
        books = self.lake.view().branch_table(TABLE).head.books
        if (books.log, books.dropped) != (heard.log_rows, heard.dropped):
            more, dropped = books.log - heard.log_rows, books.dropped - heard.dropped
            heard.log_rows, heard.dropped, heard.flushes = books.log, books.dropped, heard.flushes + 1
            self.narrator.say(
                f"flushed {more:,} rows into Iceberg" + (f", {dropped:,} duplicates dropped" if dropped else "")
            )
        for name, state in streams(self.lake).items():
            more = state.tally.rows - heard.delivered.get(name, 0)
            if more:
                heard.delivered[name] = state.tally.rows
                self.narrator.say(_PLACES[name].format(more))

    def acked(self) -> int:
        """How many rows have been acked by now."""
        return sum(
            min(acks.count(self.places.acks(name)) * share.batch_rows, share.rows)
            for name, share in self.shares.items()
        )
