"""The worker: asks what is due, and does it, until it is told to stop.

Every job has a thread of its own, so that a slow destination keeps no other waiting; there are so many of a kind at
once. A lease for each job keeps several workers on one lake apart: the one that is too late says nothing and looks
further. Whatever a job throws is written down, and the job is tried again later; nothing else waits for it. What passes
by itself (a store or a database that is away, a full disk, keys that have run out) is tried for ever; only what needs a
person is parked.

Told to stop, it lets what runs finish for a few seconds; what does not is abandoned, which is safe: the next worker
finds an intent or a delivery, and goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from strandline import logs
from strandline.errors import Busy, Environment, HeldByAnother, LeaseLost, StrandError, in_our_words, may_pass
from strandline.lake import Lake
from strandline.ledger.clock import forgetting_us
from strandline.ledger.workers import jobs, requests
from strandline.ledger.workers.requests import JobUnderWay, WorkRequest
from strandline.model.ids import lease_of_job
from strandline.operations.core import registry
from strandline.operations.core.beats import holding
from strandline.operations.core.recovery import left_behind
from strandline.reports.access import OPEN
from strandline.spans import span
from strandline.worker.due import Facts, Job, TableNeed, due, startable, table_and_branch
from strandline.worker.due_inputs import Sightings, read_facts, read_needs
from strandline.worker.metrics import WorkerMetrics, showing
from strandline.worker.presence import Presence, living
from strandline.worker.spark_work import perform

log = logs.Logger("strandline.worker")

ACTOR = "strandline:worker"
POLL_S = 0.2
NEEDS_S = 15.0
LOOK_S = 0.5
STOP_S = 8.0
BUSY_S = 5.0
PROGRESS_S = 1.0
JOB_KEPT_S = 30 * 24 * 3600

LIMITS = {"recover": 1, "flush": 4, "tick": 16, "request": 8}
"""How many jobs of a kind one worker does at once; of any other kind it is one."""


@dataclass(frozen=True)
class _Running:
    thread: threading.Thread
    why: str
    since_us: int
    request: WorkRequest | None = None


@dataclass
class Worker:
    """One worker on one lake."""

    lake: Lake
    stop: threading.Event = field(default_factory=threading.Event)
    failed: set[str] = field(default_factory=set)
    _running: dict[str, _Running] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sightings: Sightings = field(default_factory=Sightings)

    def __post_init__(self) -> None:
        self._presence = Presence(self.lake)
        self._looked_s = self._needs_s = 0.0
        self._needs: list[TableNeed] | None = None
        self._turned_s = {"loop": time.monotonic()}
        self.metrics = WorkerMetrics(self.lake.ledger)
        self.metrics.spark_up.set_function(lambda: self.lake.spark_is_up)
        self.metrics.running.set_function(lambda: len(self._running))

    def run(self, on_ready: Callable[[], None] = lambda: None) -> bool:
        """Work until told to stop; True when everything that ran could finish."""
        with ExitStack() as shown:
            if self.lake.config.worker.metrics is not None:
                shown.enter_context(
                    showing(
                        self.metrics,
                        self.lake.config.worker.metrics,
                        self._turned_s,
                        is_open=self.lake.config.server.metrics == OPEN,
                    )
                )
            self._guarded("could not tidy up", self._tidy)
            self._guarded("could not say that it is here", self._show)
            on_ready()
            while not self.stop.is_set():
                self._guarded("could not look what is due", self._turn)
                self._turned_s["loop"] = time.monotonic()
                self.stop.wait(POLL_S)
            return self._finish(STOP_S)

    def once(self) -> list[Job]:
        """Recover, do what was asked for, flush every tail, tick every sink that is not paused, maintain what needs it;
        return what was done.
        """
        with self._shown():
            facts = self.facts()
            todo = [Job("recover", "lake", "once")] if facts.left else []
            todo += [Job("flush", tail.table, "once") for tail in facts.tails]
            todo += [Job("tick", schedule.sink, "once") for schedule in facts.schedules if schedule.paused is None]
            todo += [Job(need.kind, need.table, need.why) for need in facts.needs]
            for request in self._requests_to_take():
                self._answer(request)
            return [job for job in todo if not self.stop.is_set() and self._do(job, facts)]

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Be there for as long as the block takes: what it does keeps the loop from saying so."""
        over = threading.Event()

        def show() -> None:
            while not over.is_set():
                self._guarded("could not say that it is here", self._show)
                over.wait(POLL_S)

        thread = threading.Thread(target=show, name="presence", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._guarded("could not say goodbye", self._presence.leave)

    def facts(self) -> Facts:
        """What there is to decide about."""
        now_s = time.monotonic()
        if self._needs is None or now_s - self._needs_s >= NEEDS_S:
            self._needs, self._needs_s = read_needs(self.lake), now_s
        return read_facts(self.lake, self._sightings, self._needs)

    @property
    def worker_id(self) -> str:
        """This worker's id."""
        return self._presence.worker_id

    # -- one turn ------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._show()
        for request in self._requests_to_take():
            self._start(f"request:{request.request_id}", request.kind, partial(self._answer, request), request)
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        living(self.lake)  # dead workers are forgotten, though no caller asks for the living
        facts = self.facts()
        for job in startable(due(facts), self._keys(), LIMITS):
            self._start(job.key, job.why, partial(self._do, job, facts))
        self._looked_s = time.monotonic()

    def _show(self, *, stopping: bool = False) -> None:
        with self._lock:
            running = [JobUnderWay(key, run.why, run.since_us) for key, run in sorted(self._running.items())]
        self._presence.show(running, spark=self.lake.spark_is_up, stopping=stopping)

    def _requests_to_take(self) -> list[WorkRequest]:
        """Requests that this worker can take: those that wait, those of workers that died, and our own that we could
        not answer.
        """
        mine = [key for key in self._keys() if key.startswith("request:")]  # first: one may be answered meanwhile
        with self.lake.ledger.read() as conn:
            candidates = requests.open_requests(conn)
        if not candidates:
            return []
        place = self.lake.context.owner.place
        others = {record.worker_id for record in living(self.lake)} - {self.worker_id}
        fitting = [
            request
            for request in candidates
            if request.place in (None, place)
            and f"request:{request.request_id}" not in mine
            and (request.state == requests.WAITING or request.worker_id not in others)
        ]
        return fitting[: max(0, LIMITS["request"] - len(mine))]

    def _keys(self) -> list[str]:
        with self._lock:
            return list(self._running)

    def _start(self, key: str, why: str, work: Callable[[], object], request: WorkRequest | None = None) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._running.pop(key, None)

        with self._lock:
            if key in self._running or self.stop.is_set():
                return
            thread = threading.Thread(target=run, name=key, daemon=True)
            self._running[key] = _Running(thread, why, time.time_ns() // 1000, request)
            thread.start()

    def _guarded(self, trouble: str, step: Callable[[], object]) -> None:
        """The ledger may be busy for a moment; nothing ends the loop but a stop."""
        try:
            step()
        except Exception as error:
            log.warning(trouble, error=str(error) or type(error).__name__)

    def _tidy(self) -> None:
        living(self.lake)
        with self.lake.ledger.write() as txn:
            now_us = forgetting_us(txn.conn)
            if now_us is not None:
                jobs.forget_jobs(txn, now_us - JOB_KEPT_S * 1_000_000)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def _do(self, job: Job, facts: Facts) -> bool:
        """Do a job, unless another worker is at it or has done it since we looked.

        Whatever it throws is written down.
        """
        began_s = time.monotonic()
        past = facts.past.get(job.key)
        with ExitStack() as held:
            try:
                held.enter_context(holding(self.lake.context, lease_of_job(job.key), wait_s=0))
                if not self._begin(job, past.runs if past else 0):
                    return False
            except Busy:
                return False
            except Exception as error:
                log.warning("not begun", job=job.key, error=str(error) or type(error).__name__)
                return False
            log.info("due", job=job.key, why=job.why)
            try:
                with span("job", kind=job.kind, job=job.key, why=job.why):
                    self._run(job)
            except Exception as error:
                self._guarded("could not write down a failure", partial(self._failed, job, error, past, began_s))
            else:
                self._guarded("could not write down what was done", partial(self._ended, job, began_s))
        return True

    def _begin(self, job: Job, seen_runs: int) -> bool:
        with self.lake.ledger.write() as txn:
            return jobs.begin_job(
                txn,
                job.key,
                job.why,
                self.worker_id,
                now_us=time.time_ns() // 1000,
                seen_runs=seen_runs,
                attempts=self.lake.config.worker.attempts,
            )

    def _run(self, job: Job) -> None:
        match job.kind:
            case "flush":
                table, branch = table_and_branch(job.name)
                self.lake.flush(table, branch=branch, actor=ACTOR)
            case "tick":
                self._tick(job.name)
            case "recover":
                self._recover()
            case _:
                self._maintain(job)

    def _tick(self, name: str) -> None:
        for done in self.lake.tick(name, actor=ACTOR, wait_s=0, patient=False, stop=self.stop):
            if done.units or done.error:
                log.info("ticked", sink=name, table=done.table, rows=done.rows, outcome=done.outcome, error=done.error)
            if not done.table:  # nothing was tried at all: no stream of the sink can say so
                message = done.error or "the sink's destination can't be used"
                raise Busy(message, reason="destination") if done.may_pass else Environment(message)

    def _maintain(self, job: Job) -> None:
        """One kind of maintenance of one table, so much of it; what is left is for the next time."""
        operation = registry.declared(job.kind)
        table, branch = table_and_branch(job.name)
        tables = [] if operation.of_lake else [table]
        for done in self.lake.maintenance.run(operation.bite(), tables, branch, ACTOR):
            about = {name: getattr(done, name) for name in ("table", "before", "after", "complete", "operations")}
            log.info("maintained", kind=job.kind, **about)
            for text in done.warnings:
                log.warning(text, job=job.key)

    def _recover(self) -> None:
        for done in self.lake.recover():
            log.info("recovered", op=done.op_id, kind=done.kind, outcome=done.outcome)
        left = [intent.op_id for intent in left_behind(self.lake.context) if intent.phase != "damaged"]
        if left:
            raise Busy(f"{len(left)} operations could not be recovered: {', '.join(left[:5])}", reason="not_recovered")

    def _ended(self, job: Job, began_s: float, outcome: str | None = None, wait_s: float = 0.0) -> None:
        outcome = outcome or (jobs.ABANDONED if self.stop.is_set() and job.kind == "tick" else jobs.DONE)
        took_s = time.monotonic() - began_s
        with self.lake.ledger.write() as txn:
            jobs.end_job(txn, job.key, outcome, int(took_s * 1e6), int((took_s + wait_s) * 1e6) if wait_s else 0)
        self.metrics.ended(job.kind, outcome, took_s)

    def _failed(self, job: Job, error: Exception, past: Any, began_s: float) -> None:
        if isinstance(error, LeaseLost | HeldByAnother):
            self._ended(job, began_s, jobs.BUSY, BUSY_S)  # another process is at it, and will finish it
            return
        if self.lake.drop_dead_spark():
            log.warning("Spark has died; the next job starts another")
        self.failed.add(job.key)
        failures = (past.failures if past else 0) + 1
        wait_s = jobs.backoff_s(failures)
        strand_error = in_our_words(error)
        parked = failures >= self.lake.config.worker.attempts and not may_pass(strand_error)
        now_us, took_s = time.time_ns() // 1000, time.monotonic() - began_s
        with self.lake.ledger.write() as txn:
            jobs.fail_job(
                txn,
                job.key,
                int(took_s * 1e6),
                code=strand_error.code,
                error=strand_error.message,
                failures=failures,
                wait_us=int((took_s + wait_s) * 1e6),
                parked_at_us=now_us if parked else None,
            )
        self.metrics.ended(job.kind, jobs.PARKED if parked else jobs.FAILED, took_s)
        if parked:
            log.warning("parked", job=job.key, error=strand_error.message, retry=f"strand worker retry {job.key}")
        else:
            log.warning("failed", job=job.key, error=strand_error.message, again_in_s=wait_s)

    # -- what commands ask for -----------------------------------------------------------------------------------------

    def _answer(self, seen: WorkRequest) -> None:
        """Take a request, do it, and answer; a request that was taken away meanwhile gets no answer from here."""
        with self.lake.ledger.write() as txn:
            if not requests.claim_request(txn, seen, self.worker_id):
                return
        fence, began_s = seen.fence + 1, time.monotonic()
        log.info("asked", request=seen.request_id, kind=seen.kind)
        lake = self.lake.reporting(self._progress(seen.request_id, fence))
        try:
            with span("request", kind=seen.kind, request=seen.request_id):
                answer, error = self._perform(lake, seen), None
        except Exception as failure:
            answer, error = None, in_our_words(failure).as_dict()
        outcome = jobs.DONE if error is None else jobs.FAILED
        self.metrics.ended(seen.kind, outcome, time.monotonic() - began_s)
        if self.stop.is_set() and (error is not None or seen.kind == "tick"):
            return  # it was cut short; `_hand_over` lets another worker have it

        def write() -> None:
            with self.lake.ledger.write() as txn:
                if not requests.answer_request(txn, seen.request_id, fence, answer=answer, error=error):
                    log.info("nobody waits for the answer", request=seen.request_id)

        self._guarded("could not answer", write)

    def _perform(self, lake: Lake, request: WorkRequest) -> Any:
        """Do what was asked for; when Spark died in the middle, once more with another one."""
        try:
            return perform(lake, request.kind, request.arguments, self.stop)
        except Exception:
            if not self.lake.drop_dead_spark():
                raise
        log.warning("Spark has died; trying again with another", request=request.request_id)
        return perform(lake, request.kind, request.arguments, self.stop)

    def _progress(self, request_id: str, fence: int) -> Callable[[str, int, int | None], None]:
        told_s = 0.0

        def report(what: str, done: int, total: int | None) -> None:
            nonlocal told_s
            now_s = time.monotonic()
            if now_s - told_s < PROGRESS_S:
                return
            told_s = now_s
            try:
                with self.lake.ledger.write() as txn:
                    requests.note_progress(txn, request_id, fence, what, done, total)
            except StrandError:
                pass  # progress that is not shown does no harm

        return report

    # -- the end -------------------------------------------------------------------------------------------------------

    def _finish(self, wait_s: float) -> bool:
        """Wait for what runs, so long and no longer; True when nothing is left running."""
        deadline = time.monotonic() + wait_s
        self._guarded("could not say that it stops", lambda: self._show(stopping=True))
        with self._lock:
            left = dict(self._running)
        for run in left.values():
            run.thread.join(max(0.0, deadline - time.monotonic()))
        self._guarded("could not say goodbye", lambda: self._hand_over(left))
        return not any(run.thread.is_alive() for run in left.values())

    def _hand_over(self, left: dict[str, _Running]) -> None:
        """What could not finish is for the next worker; no caller asks this one any more."""
        with self.lake.ledger.write() as txn:
            for key, run in left.items():
                if run.request is not None:
                    requests.give_back_request(txn, run.request.request_id, run.request.fence + 1)
                elif run.thread.is_alive():
                    jobs.end_job(txn, key, jobs.ABANDONED, 0)
        self._presence.leave()
