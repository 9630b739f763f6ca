"""What the workers last decided about each job, and how it ended.

There is one row for a job, whichever worker ran it: so the list never grows, a job that fails in one worker waits in
all of them, and a job that was just done by one is not done again by the next. A row that still says `running` when its
job begins anew was left by a worker that died in it, which counts as a failure: a job that kills every worker waits
longer each time, and is parked in the end. The first time it is tried again at once, because workers die for other
reasons too.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, or_, select, update

from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.redaction import redacted

RUNNING = "running"
DONE = "done"
FAILED = "failed"
PARKED = "parked"
BUSY = "busy"
ABANDONED = "abandoned"

DIED = "the worker died while it did this"

BACKOFF_S = 1.0
BACKOFF_MAX_S = 300.0


@dataclass(frozen=True)
class JobRecord:
    """A job as the ledger shows it."""

    key: str
    why: str
    worker_id: str
    outcome: str
    runs: int
    decided_at_us: int
    took_us: int
    failures: int
    wait_us: int
    parked_at_us: int | None
    error_code: str | None
    error: str | None


def read_jobs(conn: Connection) -> dict[str, JobRecord]:
    """Every job that was ever decided, by its key."""
    return {row.key: JobRecord(*row) for row in conn.execute(select(db.jobs).order_by(db.jobs.c.key))}


def backoff_s(failures: int) -> float:
    """How long a job waits that has failed so often; not the same for all that failed at the same moment."""
    return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(failures - 1, 20)) * random.uniform(0.8, 1.0)


def begin_job(txn: Txn, key: str, why: str, worker_id: str, *, now_us: int, seen_runs: int, attempts: int) -> bool:
    """Write down that it runs now; False when another worker has run it since we looked, or it waits or is parked."""
    row = txn.conn.execute(select(db.jobs).where(db.jobs.c.key == key)).one_or_none()
    values = {"why": why, "worker_id": worker_id, "outcome": RUNNING, "decided_at_us": now_us, "took_us": 0}
    if row is None:
        txn.conn.execute(insert(db.jobs).values(key=key, **values, runs=1, failures=0, wait_us=0))
        return seen_runs == 0
    record = JobRecord(*row)
    if record.runs != seen_runs or record.parked_at_us is not None:
        return False
    if record.outcome == RUNNING:
        failures = record.failures + 1
        values |= {"failures": failures, "error_code": "internal", "error": DIED}
        if failures > 1 or failures >= attempts:
            parked_at_us = now_us if failures >= attempts else None
            values |= {"outcome": FAILED if parked_at_us is None else PARKED, "parked_at_us": parked_at_us}
            _change(txn, key, **values, wait_us=int(backoff_s(failures - 1) * 1e6))
            return False
    _change(txn, key, **values, runs=record.runs + 1)
    return True


def end_job(txn: Txn, key: str, outcome: str, took_us: int, wait_us: int = 0) -> None:
    """It has ended without a failure: done, or left to another process that is at it."""
    kept = {} if outcome != DONE else {"failures": 0, "parked_at_us": None, "error_code": None, "error": None}
    _change(txn, key, outcome=outcome, took_us=took_us, wait_us=wait_us, **kept)


def fail_job(
    txn: Txn, key: str, took_us: int, *, code: str, error: str, failures: int, wait_us: int, parked_at_us: int | None
) -> None:
    """It has failed; it waits, or is parked until a person lets it go on."""
    _change(
        txn,
        key,
        outcome=FAILED if parked_at_us is None else PARKED,
        took_us=took_us,
        failures=failures,
        wait_us=wait_us,
        parked_at_us=parked_at_us,
        error_code=code,
        error=redacted(error)[:2000],
    )


def retry_jobs(txn: Txn, keys: Collection[str] | None) -> list[str]:
    """Let these jobs, or all that failed, run again at once, with all their attempts; returns which."""
    trouble = or_(db.jobs.c.parked_at_us.is_not(None), db.jobs.c.failures > 0)
    query = select(db.jobs.c.key).where(trouble).order_by(db.jobs.c.key)
    if keys is not None:
        query = query.where(db.jobs.c.key.in_(list(keys)))
    retried = [str(key) for key in txn.conn.execute(query).scalars()]
    for key in retried:
        _change(txn, key, failures=0, wait_us=0, parked_at_us=None, outcome=FAILED)
    return retried


def forget_jobs(txn: Txn, before_us: int) -> None:
    """Forget jobs that no worker ran for long, of tables and sinks that are gone; a parked one is never forgotten."""
    txn.conn.execute(delete(db.jobs).where(db.jobs.c.decided_at_us < before_us, db.jobs.c.parked_at_us.is_(None)))


def _change(txn: Txn, key: str, **values: object) -> None:
    txn.conn.execute(update(db.jobs).where(db.jobs.c.key == key).values(**values))
