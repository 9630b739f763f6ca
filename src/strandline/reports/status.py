"""`strand status`: one page about a lake, whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from strandline.errors import StrandError
from strandline.ledger.audit import RECOVERIES, read_audit
from strandline.ledger.batches import list_quarantined
from strandline.ledger.branches import Branch, list_branches, list_tags
from strandline.ledger.clock import read_clock
from strandline.ledger.intents import UnreadableIntent, read_intents
from strandline.ledger.jobs import JobRecord, read_jobs
from strandline.ledger.ledger import MAIN, Connection
from strandline.ledger.loads import list_loads
from strandline.ledger.owner import Owner, certainly_dead
from strandline.ledger.requests import Request, WorkerRecord, list_requests, read_workers
from strandline.ledger.tables import Refusing, WaitingTail, list_tables, refusing, waiting_tails
from strandline.model.moments import text_of
from strandline.model.operations import Intent
from strandline.model.tables import BatchRef, TableState
from strandline.redaction import shown_address
from strandline.reports.ledger_checks import damaged, is_dead
from strandline.reports.sinks import sinks
from strandline.reports.tables import describe
from strandline.reports.verdict import verdict

if TYPE_CHECKING:
    from strandline.reports.open_lake import OpenLake

LAST_RECOVERIES = 5


def status(lake: OpenLake) -> dict[str, Any]:
    """Everything that is worth knowing at a glance."""
    view = lake.view(MAIN)
    with lake.ledger.read() as conn:
        names = _names(conn)
        branches, tags = list_branches(conn), list_tags(conn)
        tails, refuse = waiting_tails(conn), refusing(conn)
        intents = read_intents(conn)
        loads = list_loads(conn)
        quarantined = list_quarantined(conn)
        recoveries = read_audit(conn, limit=LAST_RECOVERIES, outcomes=RECOVERIES)
        following = sinks(conn)
        workers, asked, jobs = read_workers(conn), list_requests(conn), read_jobs(conn)
        clock = read_clock(conn)
    not_there = _not_there(lake)
    now_us = time.time_ns() // 1000
    one_host = lake.ledger.has_one_host
    page = {
        "lake": str(lake.root),
        "lake_id": lake.ledger.lake_id(),
        "ledger": lake.config.ledger_shown,
        "warehouse": shown_address(lake.config.warehouse),
        "displaced": None if lake.displaced is None else str(lake.displaced),
        "not_there": None if not_there is None else not_there.message,
        "clock_behind_s": round(clock.behind_s, 1) if clock.is_behind else None,
        "format": lake.ledger.format(),
        "tables": [_table(describe(view, name), view.state(name).tail, now_us) for name in view.tables],
        "branches": [_branch(one, tails, refuse, now_us) for one in branches],
        "tags": [{"tag": tag.name, "commit": tag.commit} for tag in tags],
        "sinks": following,
        "operations": [_operation(one, names, now_us, one_host=one_host) for one in intents if isinstance(one, Intent)],
        "unreadable_intents": [_unreadable(one, names) for one in intents if isinstance(one, UnreadableIntent)],
        "loads": [_load(load, now_us) for load in loads],
        "damaged": [_damaged(view.state(name), ref) for name in view.tables for ref in damaged(lake, view.state(name))],
        "quarantined": [quarantined_entry(batch) for batch in quarantined],
        "workers": [_worker(worker, one_host=one_host) for worker in workers],
        "requests": [_request(request, now_us) for request in asked],
        "failing_jobs": [job_entry(job) for job in jobs.values() if job.failures],
        "last_recoveries": [audit_entry(row, names) for row in recoveries],
    }
    return {"verdict": verdict(page), **page}


def _not_there(lake: OpenLake) -> StrandError | None:
    """What is wrong with a warehouse on a disk, such as one that is not mounted. A bucket may take long to answer."""
    local = lake.displaced is None and lake.config.warehouse.startswith("file:")
    return lake.context.fence.why_not_there() if local else None


def _damaged(state: TableState, ref: BatchRef) -> dict[str, Any]:
    seqs = {"first_seq": ref.first_seq, "last_seq": ref.last_seq}
    return {"batch": ref.batch_id, "table": state.table.name, "rows": ref.rows, **seqs}


def _names(conn: Connection) -> dict[str, str]:
    """What ids of tables and branches stand for, also of tables that are not on main."""
    tables = {table.table_id: table.name for table in list_tables(conn)}
    return tables | {branch.branch_id: branch.name for branch in list_branches(conn)}


def _branch(branch: Branch, tails: Sequence[WaitingTail], refuse: Sequence[Refusing], now_us: int) -> dict[str, Any]:
    """A branch, and how much of its rows is not in Iceberg yet."""
    own = [tail for tail in tails if tail.branch == branch.name]
    return {
        "branch": branch.name,
        "tip": branch.tip,
        "from": branch.parent,
        "protected": branch.protected,
        "tail": {
            "rows": sum(int(tail.rows) for tail in own),
            "size_bytes": sum(int(tail.size_bytes) for tail in own),
            "oldest_age_s": _age_s(min(tail.since_us for tail in own), now_us) if own else None,
            "tables": [tail.table for tail in own],
        },
        "refuses": {one.table: one.reason for one in refuse if one.branch == branch.name},
    }


def job_entry(job: JobRecord) -> dict[str, Any]:
    """What was last decided about a job, as JSON shows it."""
    return {
        "job": job.key,
        "why": job.why,
        "at": text_of(job.decided_at_us),
        "worker": job.worker_id,
        "outcome": job.outcome,
        "took_s": job.took_us / 1e6,
        "runs": job.runs,
        "failures": job.failures,
        "parked": job.parked_at_us is not None,
        "error": job.error,
    }


def _worker(worker: WorkerRecord, *, one_host: bool) -> dict[str, Any]:
    owner = Owner.parse(worker.owner)
    gone = certainly_dead(worker.owner, one_host=one_host)
    return {
        "worker": worker.worker_id,
        "host": owner.host if owner else None,
        "pid": owner.pid if owner else None,
        "state": "gone" if gone else worker.state,
        "spark": worker.spark and not gone,
        "running": [{**one, "since": text_of(one.pop("since_us"))} for one in map(dict, worker.running)],
        "since": text_of(worker.since_us),
    }


def _request(request: Request, now_us: int) -> dict[str, Any]:
    progress = request.progress
    return {
        "request": request.request_id,
        "kind": request.kind,
        "arguments": request.arguments,
        "state": request.state,
        "worker": request.worker_id,
        "age_s": _age_s(request.asked_at_us, now_us),
        "progress": None if progress is None else dict(zip(("what", "done", "total"), progress, strict=True)),
        "error": request.error,
    }


def audit(lake: OpenLake, limit: int | None) -> list[dict[str, Any]]:
    """What recovery did and what people decided, newest first."""
    with lake.ledger.read() as conn:
        names = _names(conn)
        return [audit_entry(row, names) for row in read_audit(conn, limit=limit)]


def audit_entry(row: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """An audit row as JSON shows it."""
    tables = [
        {"table": names.get(entry["table_id"], entry["table_id"]), "from": entry.get("from"), "to": entry.get("to")}
        for entry in row["tables"]
    ]
    return {
        "at": text_of(row["at_us"]),
        "op": row["op_id"],
        "kind": row["kind"],
        "outcome": row["outcome"],
        "actor": row["actor"],
        "original_actor": row["original_actor"],
        "tables": tables,
        "reason": row["reason"],
    }


def quarantined_entry(batch: dict[str, Any]) -> dict[str, Any]:
    """A quarantined batch as JSON shows it."""
    return {
        "batch": batch["batch_id"],
        "table": batch["table"],
        "rows": batch["rows"],
        "first_seq": batch["first_seq"],
        "last_seq": batch["last_seq"],
        "size_bytes": batch["size_bytes"],
        "actor": batch["actor"],
        "appended_at": text_of(batch["appended_at_us"]),
        "at": text_of(batch["at_us"]),
        "reason": batch["reason"],
    }


def _table(described: dict[str, Any], tail: Any, now_us: int) -> dict[str, Any]:
    return {**described, "oldest_tail_age_s": _age_s(tail[0].at_us, now_us) if tail else None}


def _operation(intent: Intent, names: dict[str, str], now_us: int, *, one_host: bool) -> dict[str, Any]:
    return {
        "op": intent.op_id,
        "kind": intent.kind,
        "phase": intent.phase,
        "branch": names.get(intent.branch_id, intent.branch_id),
        "tables": [names.get(scope.table_id, scope.table_id) for scope in intent.scopes],
        "actor": intent.actor,
        "since": text_of(intent.created_at_us),
        "age_s": _age_s(intent.created_at_us, now_us),
        "process": "gone" if is_dead(intent, one_host=one_host) else "alive or unknown",
    }


def _unreadable(intent: UnreadableIntent, names: dict[str, str]) -> dict[str, Any]:
    return {
        "op": intent.op_id,
        "kind": intent.kind,
        "tables": [names.get(table_id, table_id) for table_id in intent.table_ids],
        "since": text_of(intent.created_at_us),
        "reason": intent.reason,
    }


def _load(load: dict[str, Any], now_us: int) -> dict[str, Any]:
    kept = {key: value for key, value in load.items() if key != "since_us"}
    return {**kept, "since": text_of(load["since_us"]), "age_s": _age_s(load["since_us"], now_us)}


def _age_s(at_us: int, now_us: int) -> float:
    return round(max(0, now_us - at_us) / 1_000_000, 1)
