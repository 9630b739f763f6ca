"""That a worker is there, for commands that may ask it and for other workers.

A worker holds a lease of its own and beats it from its loop, so one whose loop is stuck looks as dead as it is. What it
says of itself (what it runs, whether Spark is up) is a row beside the lease. One that was paused for longer than its
lease finds it gone, and takes a new one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline import logs
from strandline.lake import Lake
from strandline.ledger.ledger import Connection
from strandline.ledger.publish import leases
from strandline.ledger.workers import requests
from strandline.ledger.workers.requests import STOPPING, WORKING, JobUnderWay, WorkerRecord
from strandline.model.ids import lease_of_worker, new_id

log = logs.Logger("strandline.worker")


@dataclass
class Presence:
    """One worker's own lease and row."""

    lake: Lake
    worker_id: str = field(default_factory=new_id)
    _fences: dict[str, int] = field(default_factory=dict)
    _beat_s: float = 0.0
    _shown: tuple[str, bool, Sequence[JobUnderWay]] | None = None

    def show(self, running: Sequence[JobUnderWay], *, spark: bool, stopping: bool = False) -> None:
        """Beat when it is time to, and say what has changed."""
        state = STOPPING if stopping else WORKING
        ctx = self.lake.context
        if time.monotonic() - self._beat_s >= ctx.ttl_s / 4:
            if not self._fences or not leases.beat(ctx.ledger, self.worker_id, self._fences):
                self._take()
            self._beat_s = time.monotonic()
        news = (state, spark, running)
        if news == self._shown:
            return
        with ctx.ledger.write() as txn:
            owner = ctx.owner
            requests.write_worker(
                txn,
                self.worker_id,
                owner=owner.text(),
                place=owner.place,
                state=state,
                spark=spark,
                running=running,
            )
        self._shown = news

    def _take(self) -> None:
        name = lease_of_worker(self.worker_id)
        with self.lake.ledger.write() as txn:
            self._fences = leases.take(txn, [name], self.lake.context.owner.text(), self.worker_id)
        self._shown = None  # the process that took the lease away has removed the row too

    def leave(self) -> None:
        """No caller is to ask this worker any more."""
        with self.lake.ledger.write() as txn:
            leases.release_named(txn, lease_of_worker(self.worker_id), self.worker_id)
            requests.forget_worker(txn, self.worker_id)


def living(lake: Lake) -> list[WorkerRecord]:
    """The workers that live, as far as we have seen by now; of one that is dead, nothing is left afterwards."""
    with lake.ledger.read() as conn:
        workers = [(record, _lease(conn, record)) for record in requests.read_workers(conn)]
    alive: list[WorkerRecord] = []
    for record, lease in workers:
        if lease is not None and not lake.context.watch.is_dead(lease):
            alive.append(record)
        elif not lake.read_only:
            _bury(lake, record, lease)
    return alive


def _lease(conn: Connection, record: WorkerRecord) -> leases.Lease | None:
    return leases.find(conn, lease_of_worker(record.worker_id))


def _bury(lake: Lake, record: WorkerRecord, lease: leases.Lease | None) -> None:
    with lake.ledger.write() as txn:
        if lease is not None:
            leases.free(txn, lease)
        if _lease(txn.conn, record) is None:
            requests.forget_worker(txn, record.worker_id)
