"""What the ledger says of a lake as metrics, for Prometheus: what a server and a worker show alike.

They are read from the ledger when Prometheus asks, so they are true for every process that writes there. The values of
partitions never become labels: they may be secret to a person who only watches.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from strandline.ledger.audit import count_audit
from strandline.ledger.history.branches import list_branches
from strandline.ledger.ledger import MAIN, Connection, Ledger
from strandline.ledger.publish.owner import certainly_dead
from strandline.ledger.tables.tables import branch_id, read_books, tail_sizes
from strandline.ledger.workers.jobs import read_jobs
from strandline.ledger.workers.requests import open_requests, read_workers
from strandline.reports.sinks import SinkStatus, sinks

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily

BRANCHES = 50
"""So many branches have metrics of their own: main, and those that were made last."""

STREAMS = 50
"""So many streams of a sink have metrics of their own: those that are furthest behind."""


@dataclass(frozen=True)
class Metric:
    """One number; the name of one that only grows ends in `_total`."""

    name: str
    help: str
    labels: Mapping[str, str]
    value: float


class LedgerCollector(Collector):
    """The metrics of a ledger, read whenever Prometheus asks."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def describe(self) -> Iterable[Family]:
        """Nothing beforehand: registering must not read the ledger."""
        return []

    def collect(self) -> Iterator[Family]:
        """One family for each name, in the order they come."""
        families: dict[str, Family] = {}
        for metric in ledger_metrics(self._ledger):
            if metric.name not in families:
                kind = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
                families[metric.name] = kind(
                    metric.name.removesuffix("_total"), metric.help, labels=list(metric.labels)
                )
            families[metric.name].add_metric(list(metric.labels.values()), metric.value)
        yield from families.values()


def ledger_metrics(ledger: Ledger) -> Iterator[Metric]:
    """Everything, of one database snapshot."""
    with ledger.read() as conn:
        yield from _tables(conn)
        yield from _sinks(conn)
        yield from _work(conn, one_host=ledger.has_one_host)


def _tables(conn: Connection) -> Iterator[Metric]:
    now_us = time.time_ns() // 1000
    others = [branch for branch in list_branches(conn) if branch.name != MAIN]
    newest = sorted(others, key=lambda branch: -branch.created_at_us)[: BRANCHES - 1]
    yield from _of_branch(conn, branch_id(conn, MAIN), MAIN, now_us)
    for branch in newest:
        yield from _of_branch(conn, branch.branch_id, branch.name, now_us)


def _of_branch(conn: Connection, branch: str, name: str, now_us: int) -> Iterator[Metric]:
    """The tables of a branch: on main all of them, on another one those that are branched."""
    books_of = read_books(conn, branch)
    tables = {table for table, _ in books_of}
    for table, rows, size_bytes, at_us in tail_sizes(conn, branch):
        if table not in tables:
            continue
        label = {"table": table, "branch": name}
        age_s = 0.0 if at_us is None else max(0, now_us - at_us) / 1e6
        yield Metric("strand_tail_rows", "Rows that are not in Iceberg yet.", label, rows)
        yield Metric("strand_tail_bytes", "Bytes of rows that are not in Iceberg yet.", label, size_bytes)
        yield Metric("strand_tail_age_seconds", "Age of the oldest row that is not in Iceberg yet.", label, age_s)
    for table, books in books_of:
        label = {"table": table, "branch": name}
        flushed = books.log + books.dropped + books.pruned
        yield Metric("strand_table_rows_acked_total", "Rows acked, by whichever process.", label, books.acked)
        yield Metric("strand_table_rows_flushed_total", "Rows that have left the tail.", label, flushed)
        yield Metric("strand_table_rows_dropped_total", "Duplicates dropped.", label, books.dropped)
        yield Metric("strand_table_rows_log", "Rows in the Iceberg log.", label, books.log)
        yield Metric("strand_table_rows_quarantined", "Rows whose bytes are damaged.", label, books.quarantined)


def _sinks(conn: Connection) -> Iterator[Metric]:
    for sink in sinks(conn):
        for table in sorted({stream.table for stream in sink.streams}):
            yield from _of_table(sink, table)
        behind = [stream for stream in sink.streams if stream.lag.rows]
        for stream in sorted(behind, key=lambda stream: -stream.lag.rows)[:STREAMS]:
            label = {"sink": sink.sink, "table": stream.table, "stream": stream.stream_id}
            yield Metric("strand_stream_lag_rows", "Rows that a sink has still to deliver.", label, stream.lag.rows)
            yield Metric("strand_stream_lag_seconds", "How long the oldest waits.", label, stream.lag.age_s or 0.0)


def _of_table(sink: SinkStatus, table: str) -> Iterator[Metric]:
    """A table's streams together."""
    label = {"sink": sink.sink, "table": table}
    streams = [stream for stream in sink.streams if stream.table == table]
    delivered = [stream.delivered for stream in streams]
    parked = sum(stream.delivery is not None and stream.delivery.parked is not None for stream in streams)
    age_s = max(stream.lag.age_s or 0.0 for stream in streams)
    withheld = sum(rows.withheld for rows in delivered)
    yield Metric(
        "strand_sink_lag_rows", "Rows that a sink has still to deliver.", label, sum(s.lag.rows for s in streams)
    )
    yield Metric("strand_sink_lag_seconds", "How long the oldest of them waits.", label, age_s)
    yield Metric("strand_sink_delivered_rows", "Rows delivered.", label, sum(rows.rows for rows in delivered))
    yield Metric("strand_sink_delivered_bytes", "Bytes delivered.", label, sum(rows.bytes for rows in delivered))
    yield Metric("strand_sink_withheld_rows", "Rows that a predicate withheld.", label, withheld)
    yield Metric("strand_sink_parked", "Deliveries that wait for a person.", label, parked)
    yield Metric("strand_sink_dead_letters", "Rows refused.", label, sum(stream.dead_letters for stream in streams))


def _work(conn: Connection, *, one_host: bool) -> Iterator[Metric]:
    jobs = read_jobs(conn).values()
    workers = [worker for worker in read_workers(conn) if not certainly_dead(worker.owner, one_host=one_host)]
    requests = Counter(request.state for request in open_requests(conn))
    parked = sum(job.parked_at_us is not None for job in jobs)
    yield Metric("strand_workers", "Workers that have not ended.", {}, len(workers))
    with_spark = sum(worker.spark for worker in workers)
    yield Metric("strand_workers_with_spark", "Those of them whose Spark is up.", {}, with_spark)
    yield Metric("strand_jobs_failing", "Jobs whose last run failed.", {}, sum(job.failures > 0 for job in jobs))
    yield Metric("strand_jobs_parked", "Jobs that wait for a person.", {}, parked)
    for state in ("waiting", "running"):
        yield Metric("strand_requests", "What commands asked workers for.", {"state": state}, requests[state])
    for outcome, count in count_audit(conn):
        yield Metric(
            "strand_recoveries_total", "What recovery did with operations of the dead.", {"outcome": outcome}, count
        )
