"""`strand status`: one page about a lake, whole, and its verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strandline.errors import StrandError
from strandline.ledger.audit import RECOVERIES, read_audit
from strandline.ledger.clock import read_clock
from strandline.ledger.history.branches import Branch, list_branches, list_tags
from strandline.ledger.ledger import MAIN
from strandline.ledger.publish.intents import UnreadableIntent, read_intents
from strandline.ledger.publish.loads import UnfinishedLoad, list_loads
from strandline.ledger.publish.publishing import Intent
from strandline.ledger.rows.batches import list_quarantined
from strandline.ledger.tables.tables import Refusing, WaitingTail, refusing, waiting_tails
from strandline.ledger.workers.jobs import read_jobs
from strandline.ledger.workers.requests import list_requests, read_workers
from strandline.model.results import optional
from strandline.model.times import age_s, text_of
from strandline.redaction import shown_address
from strandline.reports.audit import AuditEntry, audit_entry, names_by_id
from strandline.reports.ledger_checks import damaged, is_dead
from strandline.reports.quarantine import QuarantineEntry, quarantine_entry
from strandline.reports.sinks import SinkStatus, sinks
from strandline.reports.tables import TableReport, describe
from strandline.reports.verdict import LakeVerdict, judge
from strandline.reports.work import (
    Decision,
    JobReport,
    RequestReport,
    WorkerReport,
    job_report,
    request_report,
    worker_report,
)

if TYPE_CHECKING:
    from strandline.reports.open_lake import OpenLake
    from strandline.views.view import View

LAST_RECOVERIES = 5


@dataclass(frozen=True, kw_only=True)
class TableStatus(TableReport):
    """A table, and how long its oldest row has waited for Iceberg."""

    oldest_tail_age_s: float | None


@dataclass(frozen=True)
class BranchTail:
    """How much of a branch's rows is not in Iceberg yet, and of which tables."""

    rows: int
    size_bytes: int
    oldest_age_s: float | None
    tables: tuple[str, ...]


@dataclass(frozen=True)
class BranchStatus:
    """A branch, its tail, and why tables of it refuse writes."""

    branch: str
    tip: str | None
    from_: str | None
    protected: bool
    tail: BranchTail
    refuses: Mapping[str, str]


@dataclass(frozen=True)
class TagStatus:
    """A tag, and the commit that it names."""

    tag: str
    commit: str


@dataclass(frozen=True)
class OperationStatus:
    """An operation that is under way, or that a dead process left."""

    op: str
    kind: str
    phase: str
    branch: str
    tables: tuple[str, ...]
    actor: str
    since: str
    age_s: float
    process: str


@dataclass(frozen=True)
class UnreadableOperation:
    """An operation whose record can't be read."""

    op: str
    kind: str
    tables: tuple[str, ...]
    since: str
    reason: str


@dataclass(frozen=True)
class LoadStatus:
    """A load that has not ended."""

    load: str
    table: str
    parts: int | None
    parts_done: int
    since: str
    age_s: float


@dataclass(frozen=True)
class DamagedBatch:
    """A batch of a tail whose bytes have changed."""

    batch: str
    table: str
    rows: int
    first_seq: int
    last_seq: int


@dataclass(frozen=True, kw_only=True)
class Status:
    """The page. Its verdict is read off the rest of it, so the two always agree."""

    verdict: LakeVerdict = field(init=False)
    lake: str
    lake_id: str
    ledger: str
    warehouse: str
    displaced: str | None
    not_there: str | None
    clock_behind_s: float | None
    format: int
    tables: tuple[TableStatus, ...]
    branches: tuple[BranchStatus, ...]
    tags: tuple[TagStatus, ...]
    sinks: tuple[SinkStatus, ...]
    operations: tuple[OperationStatus, ...]
    unreadable_intents: tuple[UnreadableOperation, ...]
    loads: tuple[LoadStatus, ...]
    damaged: tuple[DamagedBatch, ...]
    quarantined: tuple[QuarantineEntry, ...]
    workers: tuple[WorkerReport, ...]
    requests: tuple[RequestReport, ...]
    failing_jobs: tuple[JobReport, ...]
    last_recoveries: tuple[AuditEntry, ...]
    decisions: tuple[Decision, ...] | None = optional()

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", judge(self))


def status(lake: OpenLake) -> Status:
    """Everything that is worth knowing at a glance."""
    view = lake.view(MAIN)
    one_host = lake.ledger.has_one_host
    with lake.ledger.read() as conn:
        names = names_by_id(conn)
        branches, tags = list_branches(conn), list_tags(conn)
        tails, refused = waiting_tails(conn), refusing(conn)
        intents, loads = read_intents(conn), list_loads(conn)
        quarantined = list_quarantined(conn)
        recoveries = read_audit(conn, limit=LAST_RECOVERIES, outcomes=RECOVERIES)
        following = sinks(conn)
        workers, requests, jobs = read_workers(conn), list_requests(conn), read_jobs(conn)
        clock = read_clock(conn)
    not_there = _not_there(lake)
    now_us = time.time_ns() // 1000
    return Status(
        lake=str(lake.root),
        lake_id=lake.ledger.lake_id(),
        ledger=lake.config.ledger_shown,
        warehouse=shown_address(lake.config.warehouse),
        displaced=None if lake.displaced is None else str(lake.displaced),
        not_there=None if not_there is None else not_there.message,
        clock_behind_s=round(clock.behind_s, 1) if clock.is_behind else None,
        format=lake.ledger.format(),
        tables=tuple(_table(view, name, now_us) for name in view.tables),
        branches=tuple(_branch(branch, tails, refused, now_us) for branch in branches),
        tags=tuple(TagStatus(tag.name, tag.commit) for tag in tags),
        sinks=tuple(following),
        operations=_operations(intents, names, now_us, one_host=one_host),
        unreadable_intents=_unreadable(intents, names),
        loads=tuple(_load(load, now_us) for load in loads),
        damaged=_damaged(lake, view),
        quarantined=tuple(quarantine_entry(batch) for batch in quarantined),
        workers=tuple(worker_report(worker, one_host=one_host) for worker in workers),
        requests=tuple(request_report(request, now_us) for request in requests),
        failing_jobs=tuple(job_report(job) for job in jobs.values() if job.failures),
        last_recoveries=tuple(audit_entry(row, names) for row in recoveries),
    )


def _not_there(lake: OpenLake) -> StrandError | None:
    """What is wrong with a warehouse on a disk, such as one that is not mounted. A bucket may take long to answer."""
    local = lake.displaced is None and lake.config.warehouse.startswith("file:")
    return lake.context.fence.why_not_there() if local else None


def _table(view: View, name: str, now_us: int) -> TableStatus:
    tail = view.branch_table(name).tail
    return TableStatus(**vars(describe(view, name)), oldest_tail_age_s=age_s(tail[0].at_us, now_us) if tail else None)


def _damaged(lake: OpenLake, view: View) -> tuple[DamagedBatch, ...]:
    return tuple(
        DamagedBatch(ref.batch_id, view.branch_table(name).table.name, ref.rows, ref.first_seq, ref.last_seq)
        for name in view.tables
        for ref in damaged(lake, view.branch_table(name))
    )


def _branch(branch: Branch, tails: Sequence[WaitingTail], refused: Sequence[Refusing], now_us: int) -> BranchStatus:
    """A branch, and how much of its rows is not in Iceberg yet."""
    own = [tail for tail in tails if tail.branch == branch.name]
    return BranchStatus(
        branch=branch.name,
        tip=branch.tip,
        from_=branch.parent,
        protected=branch.protected,
        tail=BranchTail(
            rows=sum(int(tail.rows) for tail in own),
            size_bytes=sum(int(tail.size_bytes) for tail in own),
            oldest_age_s=age_s(min(tail.since_us for tail in own), now_us) if own else None,
            tables=tuple(tail.table for tail in own),
        ),
        refuses={table.table: table.reason for table in refused if table.branch == branch.name},
    )


def _operations(
    intents: Sequence[Intent | UnreadableIntent], names: Mapping[str, str], now_us: int, *, one_host: bool
) -> tuple[OperationStatus, ...]:
    return tuple(
        OperationStatus(
            op=intent.op_id,
            kind=intent.kind,
            phase=intent.phase,
            branch=names.get(intent.branch_id, intent.branch_id),
            tables=tuple(names.get(scope.table_id, scope.table_id) for scope in intent.scopes),
            actor=intent.actor,
            since=text_of(intent.created_at_us),
            age_s=age_s(intent.created_at_us, now_us),
            process="gone" if is_dead(intent, one_host=one_host) else "alive or unknown",
        )
        for intent in intents
        if isinstance(intent, Intent)
    )


def _unreadable(
    intents: Sequence[Intent | UnreadableIntent], names: Mapping[str, str]
) -> tuple[UnreadableOperation, ...]:
    return tuple(
        UnreadableOperation(
            op=intent.op_id,
            kind=intent.kind,
            tables=tuple(names.get(table_id, table_id) for table_id in intent.table_ids),
            since=text_of(intent.created_at_us),
            reason=intent.reason,
        )
        for intent in intents
        if isinstance(intent, UnreadableIntent)
    )


def _load(load: UnfinishedLoad, now_us: int) -> LoadStatus:
    return LoadStatus(
        load=load.load_id,
        table=load.table,
        parts=load.parts,
        parts_done=load.parts_done,
        since=text_of(load.since_us),
        age_s=age_s(load.since_us, now_us),
    )
