"""The worker: asks what is due, and does it, until it is told to stop.

Every job has a thread of its own, so that a slow destination keeps nobody else waiting; two jobs of the same key never
run at once here, and leases keep those of other workers apart. Whatever a job throws is written down and tried again
later. Told to stop, it lets what runs finish for a few seconds; what does not is abandoned, which is safe: the next
worker finds an intent or a delivery, and goes on from there.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from strandline import logs
from strandline.lake import Lake
from strandline.ledger.ledger import MAIN
from strandline.ledger.sinks import find_sink, note_tick
from strandline.ledger.tables import branch_id, tail_sizes
from strandline.model.sinks import Sink
from strandline.sinks.settings import resolved
from strandline.worker.due import Job, Rules, Schedule, Tail, due

log = logs.Logger("strandline.worker")

ACTOR = "strandline:worker"
POLL_S = 0.5
STOP_S = 8.0
BACKOFF_S = 1.0
BACKOFF_MAX_S = 300.0


@dataclass
class _Trouble:
    failures: int = 0
    not_before_us: int = 0


@dataclass
class Worker:
    """One worker on one lake."""

    lake: Lake
    stop: threading.Event = field(default_factory=threading.Event)
    _running: dict[str, threading.Thread] = field(default_factory=dict)
    _ticked_us: dict[str, int] = field(default_factory=dict)
    _trouble: dict[str, _Trouble] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> bool:
        """Work until told to stop; True when everything that ran could finish."""
        self._recover()
        while not self.stop.is_set():
            try:
                for job in self._due():
                    self._start(job)
            except Exception as error:  # the ledger may be busy for a moment; nothing ends the loop but a stop
                log.warning("could not look what is due", error=str(error))
            self.stop.wait(POLL_S)
        return self._finish(STOP_S)

    def once(self) -> list[Job]:
        """Flush every tail and tick every sink, then return what was done."""
        self._recover()
        tails, schedules = self._facts()
        jobs = [Job("flush", tail.table, "once") for tail in tails]
        jobs += [Job("tick", schedule.sink, "once") for schedule in schedules]
        for job in jobs:
            self._do(job)
        return jobs

    @property
    def failed(self) -> list[str]:
        """The jobs whose last run failed."""
        return sorted(key for key, trouble in self._trouble.items() if trouble.failures)

    def _recover(self) -> None:
        try:
            for done in self.lake.recover():
                log.info("recovered", op=done.op_id, kind=done.kind, outcome=done.outcome)
        except Exception as error:
            log.warning("recovery failed", error=str(error))

    def _facts(self) -> tuple[list[Tail], list[Schedule]]:
        following = self.lake.sinks()
        for sink in following:
            if sink.ticked_at_us is not None:  # a worker that starts goes on with the schedule; it begins none
                self._ticked_us.setdefault(sink.name, sink.ticked_at_us)
        with self.lake.ledger.read() as conn:
            sizes = tail_sizes(conn, branch_id(conn, MAIN))
        tails = [Tail(name, size_bytes, since_us) for name, _, size_bytes, since_us in sizes if since_us is not None]
        return tails, [_schedule(sink) for sink in following]

    def _due(self) -> list[Job]:
        tails, schedules = self._facts()
        flush = self.lake.config.flush
        waiting = {key: trouble.not_before_us for key, trouble in self._trouble.items()}
        rules = Rules(flush.max_bytes, flush.max_age_s)
        return due(time.time_ns() // 1000, rules, tails, schedules, self._ticked_us, waiting)

    def _start(self, job: Job) -> None:
        with self._lock:
            if job.key in self._running or self.stop.is_set():
                return
            thread = threading.Thread(target=self._in_thread, args=(job,), name=job.key, daemon=True)
            self._running[job.key] = thread
        log.info("due", job=job.key, why=job.why)
        thread.start()

    def _in_thread(self, job: Job) -> None:
        try:
            self._do(job)
        finally:
            with self._lock:
                self._running.pop(job.key, None)

    def _do(self, job: Job) -> None:
        try:
            if job.kind == "flush":
                self.lake.flush(job.name, actor=ACTOR)
            else:
                self._tick(job.name)
        except Exception as error:
            self._failed(job, error)
        else:
            self._trouble.pop(job.key, None)

    def _tick(self, name: str) -> None:
        self._ticked_us[name] = time.time_ns() // 1000
        ticked = self.lake.tick(name, actor=ACTOR, wait_s=0, patient=False, stop=self.stop)
        if not ticked and not self.stop.is_set():  # an idle tick writes nothing down, but a schedule needs it
            with self.lake.ledger.write() as txn:
                note_tick(txn, find_sink(txn.conn, name).sink_id)
        for done in ticked:
            if done.units or done.error:
                log.info("ticked", sink=name, table=done.table, rows=done.rows, outcome=done.outcome, error=done.error)

    def _failed(self, job: Job, error: Exception) -> None:
        trouble = self._trouble.setdefault(job.key, _Trouble())
        trouble.failures += 1
        wait_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (trouble.failures - 1))
        trouble.not_before_us = time.time_ns() // 1000 + int(wait_s * 1e6)
        log.warning("failed", job=job.key, error=str(error) or type(error).__name__, again_in_s=wait_s)

    def _finish(self, wait_s: float) -> bool:
        """Wait for what runs, so long and no longer; True when nothing is left running."""
        deadline = time.monotonic() + wait_s
        with self._lock:
            left = list(self._running.values())
        for thread in left:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in left)


def _schedule(sink: Sink) -> Schedule:
    settings = resolved(sink.type, sink.settings)
    return Schedule(sink.name, settings["every"], settings["cron"], sink.hold_until_us)
