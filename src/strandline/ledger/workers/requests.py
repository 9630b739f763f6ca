"""Workers that can be asked, and what they are asked for.

A command that needs Spark writes a request when a worker lives, and waits for its answer. The request's fence says
whose it is: it moves when a worker takes the request, and the command that takes it back deletes the row at the fence
it saw. So a process that was away meanwhile (a worker that was paused, say) finds another fence or nothing, and answers
no command. That the work itself is done once is up to the leases of its operations, as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, or_, select, update
from sqlalchemy.engine import Row

from strandline.json_types import Json, JsonObject
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.ids import new_id
from strandline.model.operations import Arguments

WAITING = "waiting"
RUNNING = "running"
DONE = "done"
FAILED = "failed"

WORKING = "working"
STOPPING = "stopping"

KEPT = 50
"""So many answers that were not fetched are kept, for `strand status`."""


@dataclass(frozen=True)
class JobUnderWay:
    """A job that a worker is at, and why it is done."""

    job: str
    why: str
    since_us: int


@dataclass(frozen=True)
class WorkerRecord:
    """A worker as it last said of itself."""

    worker_id: str
    owner: str
    place: str
    state: str
    spark: bool
    running: tuple[JobUnderWay, ...]
    since_us: int
    changed_at_us: int


@dataclass(frozen=True)
class WorkRequest:
    """Something that a worker was asked for."""

    request_id: str
    kind: str
    arguments: Arguments
    place: str | None
    state: str
    fence: int
    worker_id: str | None
    asked_at_us: int
    ended_at_us: int | None
    progress: tuple[str, int, int | None] | None
    answer: Json
    error: JsonObject | None


# -- workers -----------------------------------------------------------------------------------------------------------


def write_worker(
    txn: Txn, worker_id: str, *, owner: str, place: str, state: str, spark: bool, running: Sequence[JobUnderWay]
) -> None:
    """What a worker says of itself now."""
    values = {"state": state, "spark": int(spark), "running": _json(list(running)), "changed_at_us": txn.at_us}
    moved = txn.conn.execute(update(db.workers).where(db.workers.c.worker_id == worker_id).values(**values))
    if moved.rowcount == 0:
        txn.conn.execute(
            insert(db.workers).values(worker_id=worker_id, owner=owner, place=place, since_us=txn.at_us, **values)
        )


def forget_worker(txn: Txn, worker_id: str) -> None:
    """A worker has ended, well or badly."""
    txn.conn.execute(delete(db.workers).where(db.workers.c.worker_id == worker_id))


def read_workers(conn: Connection) -> list[WorkerRecord]:
    """Every worker that has not said that it ended; its lease tells whether it lives."""
    rows = conn.execute(select(db.workers).order_by(db.workers.c.worker_id))
    return [_worker(row) for row in rows]


def _worker(row: Row[Any]) -> WorkerRecord:
    return WorkerRecord(
        worker_id=row.worker_id,
        owner=row.owner,
        place=row.place,
        state=row.state,
        spark=bool(row.spark),
        running=tuple(JobUnderWay(job["job"], job["why"], job["since_us"]) for job in orjson.loads(row.running)),
        since_us=row.since_us,
        changed_at_us=row.changed_at_us,
    )


# -- requests ----------------------------------------------------------------------------------------------------------


def write_request(txn: Txn, kind: str, arguments: Arguments, place: str | None) -> str:
    """Ask for something; returns the request's id."""
    request_id = new_id()
    txn.conn.execute(
        insert(db.requests).values(
            request_id=request_id,
            kind=kind,
            arguments=_json(dict(arguments)),
            place=place,
            state=WAITING,
            fence=0,
            asked_at_us=txn.at_us,
        )
    )
    return request_id


def find_request(conn: Connection, request_id: str) -> WorkRequest | None:
    """One request."""
    row = conn.execute(select(db.requests).where(db.requests.c.request_id == request_id)).one_or_none()
    return None if row is None else _request(row)


def open_requests(conn: Connection) -> list[WorkRequest]:
    """What was asked for and has no answer yet, oldest first."""
    state = db.requests.c.state
    rows = conn.execute(
        select(db.requests).where(or_(state == WAITING, state == RUNNING)).order_by(db.requests.c.request_id)
    )
    return [_request(row) for row in rows]


def list_requests(conn: Connection) -> list[WorkRequest]:
    """Everything that was asked for, oldest first, with the answers that were not fetched."""
    return [_request(row) for row in conn.execute(select(db.requests).order_by(db.requests.c.request_id))]


def claim_request(txn: Txn, seen: WorkRequest, worker_id: str) -> bool:
    """Take a request, as it was seen; False when another process was faster."""
    taken = {"state": RUNNING, "worker_id": worker_id, "fence": seen.fence + 1}
    return _move(txn, seen.request_id, seen.fence, taken)


def give_back_request(txn: Txn, request_id: str, fence: int) -> bool:
    """Let another worker have it, unless it was answered."""
    moved = txn.conn.execute(
        update(db.requests)
        .where(db.requests.c.request_id == request_id, db.requests.c.fence == fence, db.requests.c.state == RUNNING)
        .values(state=WAITING, worker_id=None, fence=fence + 1, progress=None)
    )
    return moved.rowcount == 1


def note_progress(txn: Txn, request_id: str, fence: int, what: str, done: int, total: int | None) -> bool:
    """How far it is; False when it was taken away."""
    return _move(txn, request_id, fence, {"progress": _json([what, done, total])})


def answer_request(
    txn: Txn, request_id: str, fence: int, *, answer: object = None, error: Mapping[str, object] | None = None
) -> bool:
    """The answer, or the error; False when it was taken away, and no command waits for it from here."""
    ended = {"state": DONE, "answer": _json(answer)} if error is None else {"state": FAILED, "error": _json(error)}
    answered = _move(txn, request_id, fence, {**ended, "ended_at_us": txn.at_us})
    left = select(db.requests.c.request_id).where(db.requests.c.ended_at_us.is_not(None))
    kept = left.order_by(db.requests.c.request_id.desc()).limit(KEPT)
    txn.conn.execute(
        delete(db.requests).where(
            db.requests.c.ended_at_us.is_not(None), db.requests.c.request_id.not_in(kept.scalar_subquery())
        )
    )
    return answered


def take_request_back(txn: Txn, request_id: str, fence: int) -> bool:
    """Delete it, as it was seen: cancelled, answered and read, or to be done by the command that asked."""
    gone = txn.conn.execute(
        delete(db.requests).where(db.requests.c.request_id == request_id, db.requests.c.fence == fence)
    )
    return gone.rowcount == 1


def _move(txn: Txn, request_id: str, fence: int, values: Mapping[str, object]) -> bool:
    request = db.requests.c
    seen = (request.request_id == request_id, request.fence == fence, request.state.in_((WAITING, RUNNING)))
    return txn.conn.execute(update(db.requests).where(*seen).values(**values)).rowcount == 1


def _request(row: Row[Any]) -> WorkRequest:
    progress = None if row.progress is None else orjson.loads(row.progress)
    return WorkRequest(
        request_id=row.request_id,
        kind=row.kind,
        arguments=orjson.loads(row.arguments),
        place=row.place,
        state=row.state,
        fence=row.fence,
        worker_id=row.worker_id,
        asked_at_us=row.asked_at_us,
        ended_at_us=row.ended_at_us,
        progress=None if progress is None else (progress[0], progress[1], progress[2]),
        answer=None if row.answer is None else orjson.loads(row.answer),
        error=None if row.error is None else orjson.loads(row.error),
    )


def _json(value: object) -> str:
    return orjson.dumps(value, default=str).decode()
