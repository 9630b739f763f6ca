"""Asking a worker, from a command that would else have to start a Spark of its own.

The command writes a request, shows the progress that the worker writes down, and waits. When no worker that could do it
lives (any more), the command takes the request back and does the work itself: the request's fence decides which of the
two it is, and the leases of the work see to it that a worker which was only away does nothing twice. An error of the
work comes back as it was raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from strandline.errors import Internal, from_dict
from strandline.lake import Lake
from strandline.ledger.workers import requests
from strandline.ledger.workers.requests import DONE, FAILED, WAITING, WORKING, WorkRequest
from strandline.model.operations import Arguments
from strandline.worker.presence import living
from strandline.worker.spark_work import perform

POLL_S = 0.1


class Left(KeyboardInterrupt):
    """Interrupted while a worker was at it: `cancelled` when it had not begun, else it goes on."""

    def __init__(self, request_id: str, *, cancelled: bool) -> None:
        super().__init__()
        self.request_id = request_id
        self.cancelled = cancelled


def carry_out(
    lake: Lake,
    kind: str,
    arguments: Arguments,
    *,
    in_this_process: bool = False,
    local_files: bool = False,
    report: Callable[[str, int, int | None], None],
) -> Any:
    """Have it done by a worker that lives, else do it here.

    `local_files` are seen by a worker of this machine alone.
    """
    place = lake.context.owner.place if local_files else None
    if in_this_process or not _could(lake, place):
        return perform(lake, kind, arguments)
    with lake.ledger.write() as txn:
        request_id = requests.write_request(txn, kind, arguments, place)
    report("asked the worker", 0, None)
    try:
        done, answer = _wait(lake, request_id, place, report)
    except KeyboardInterrupt:
        raise Left(request_id, cancelled=_cancel(lake, request_id)) from None
    return answer if done else perform(lake, kind, arguments)


def _could(lake: Lake, place: str | None) -> bool:
    """Whether a worker lives that would take it."""
    return any(worker.state == WORKING and place in (None, worker.place) for worker in living(lake))


def _wait(
    lake: Lake, request_id: str, place: str | None, report: Callable[[str, int, int | None], None]
) -> tuple[bool, Any]:
    """The worker's answer; (False, None) when the request was taken back, and is ours to do."""
    while True:
        with lake.ledger.read() as conn:
            seen = requests.find_request(conn, request_id)
        if seen is None:
            raise Internal(f"request {request_id} is gone, and nobody answered it")
        if seen.state in (DONE, FAILED):
            _forget(lake, seen)
            if seen.error is not None:
                raise from_dict(seen.error)
            return True, seen.answer
        if seen.progress is not None:
            report(*seen.progress)
        if not _in_hand(lake, seen, place) and _forget(lake, seen):
            report("the worker is gone; doing it here", 0, None)
            return False, None
        time.sleep(POLL_S)


def _in_hand(lake: Lake, seen: WorkRequest, place: str | None) -> bool:
    """Whether a worker that lives does it, or will."""
    if seen.state == WAITING:
        return _could(lake, place)
    return any(worker.worker_id == seen.worker_id for worker in living(lake)) or _could(lake, place)


def _forget(lake: Lake, seen: WorkRequest) -> bool:
    with lake.ledger.write() as txn:
        return requests.take_request_back(txn, seen.request_id, seen.fence)


def _cancel(lake: Lake, request_id: str) -> bool:
    """Take a request back that no worker has begun."""
    with lake.ledger.write() as txn:
        seen = requests.find_request(txn.conn, request_id)
        return seen is not None and seen.state == WAITING and requests.take_request_back(txn, request_id, seen.fence)
