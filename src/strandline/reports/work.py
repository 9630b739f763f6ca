"""The workers of a lake, what they were asked for, and the jobs that they decide about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.ledger.publish.owner import Owner, certainly_dead
from strandline.ledger.workers.jobs import JobRecord
from strandline.ledger.workers.requests import WorkerRecord, WorkRequest
from strandline.model.times import age_s, text_of


@dataclass(frozen=True)
class JobReport:
    """What was last decided about a job, and how its last run went."""

    job: str
    why: str
    at: str
    worker: str
    outcome: str
    took_s: float
    runs: int
    failures: int
    parked: bool
    error: str | None


@dataclass(frozen=True)
class Decision:
    """What a worker would decide about a job now, and why; `last` is what was decided before."""

    job: str
    due: bool
    why: str
    last: JobReport | None


@dataclass(frozen=True)
class RunningJob:
    """A job that a worker is at."""

    job: str
    why: str
    since_us: int
    since: str


@dataclass(frozen=True)
class WorkerReport:
    """A worker as it last said of itself; `gone` when its process is certainly dead."""

    worker: str
    host: str | None
    pid: int | None
    state: str
    spark: bool
    running: tuple[RunningJob, ...]
    since: str


@dataclass(frozen=True)
class ProgressReport:
    """How far the work on a request is: `total` is None where it is not known."""

    what: str
    done: int
    total: int | None


@dataclass(frozen=True)
class RequestReport:
    """What a worker was asked for; its arguments and its error are as they were sent."""

    request: str
    kind: str
    arguments: Mapping[str, object]
    state: str
    worker: str | None
    age_s: float
    progress: ProgressReport | None
    error: Mapping[str, object] | None


def job_report(job: JobRecord) -> JobReport:
    """A job's record, its times as text."""
    return JobReport(
        job=job.key,
        why=job.why,
        at=text_of(job.decided_at_us),
        worker=job.worker_id,
        outcome=job.outcome,
        took_s=job.took_us / 1e6,
        runs=job.runs,
        failures=job.failures,
        parked=job.parked_at_us is not None,
        error=job.error,
    )


def worker_report(worker: WorkerRecord, *, one_host: bool) -> WorkerReport:
    """A worker's record, and whether it lives."""
    owner = Owner.parse(worker.owner)
    is_gone = certainly_dead(worker.owner, one_host=one_host)
    return WorkerReport(
        worker=worker.worker_id,
        host=owner.host if owner else None,
        pid=owner.pid if owner else None,
        state="gone" if is_gone else worker.state,
        spark=worker.spark and not is_gone,
        running=tuple(RunningJob(job.job, job.why, job.since_us, text_of(job.since_us)) for job in worker.running),
        since=text_of(worker.since_us),
    )


def request_report(request: WorkRequest, now_us: int) -> RequestReport:
    """A request, and how far the work on it is."""
    return RequestReport(
        request=request.request_id,
        kind=request.kind,
        arguments=request.arguments,
        state=request.state,
        worker=request.worker_id,
        age_s=age_s(request.asked_at_us, now_us),
        progress=None if request.progress is None else ProgressReport(*request.progress),
        error=request.error,
    )
