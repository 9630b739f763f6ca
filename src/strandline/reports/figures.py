"""The state of a lake as numbers, for Prometheus: what a server and a worker show alike.

They are read from the ledger when somebody asks, so they are true for every process that writes there. The values of
partitions never become labels: they may be nobody's business who only watches.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from strandline.ledger.audit import count_audit
from strandline.ledger.branches import list_branches
from strandline.ledger.jobs import read_jobs
from strandline.ledger.ledger import MAIN, Connection, Ledger
from strandline.ledger.owner import certainly_dead
from strandline.ledger.requests import open_requests, read_workers
from strandline.ledger.tables import branch_id, read_books, tail_sizes
from strandline.reports.sinks import SinkStatus, sinks

Figure = tuple[str, str, Mapping[str, str], float]
"""A number for whoever watches: its name, its help, its labels, its value. One that only grows ends in `_total`."""

BRANCHES = 50
"""So many branches have figures of their own: main, and those that were made last."""

STREAMS = 50
"""So many streams of a sink have figures of their own: those that are furthest behind."""


class FromLedger(Collector):
    """The figures of a ledger, read whenever Prometheus asks."""

    def __init__(self, ledger: Ledger, read: Callable[[Ledger], Iterable[Figure]] | None = None) -> None:
        self._ledger, self._read = ledger, read or figures

    def describe(self) -> Iterable[Any]:
        """Nothing beforehand: registering must not read the ledger."""
        return []

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """One family for each name, in the order they come."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, text, labels, value in self._read(self._ledger):
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(name.removesuffix("_total"), text, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        yield from families.values()


def figures(ledger: Ledger) -> Iterator[Figure]:
    """Everything, of one database snapshot."""
    with ledger.read() as conn:
        yield from _tables(conn)
        yield from _sinks(conn)
        yield from _work(conn, one_host=ledger.has_one_host)


def _tables(conn: Connection) -> Iterator[Figure]:
    now_us = time.time_ns() // 1000
    others = [branch for branch in list_branches(conn) if branch.name != MAIN]
    some = sorted(others, key=lambda branch: -branch.created_at_us)[: BRANCHES - 1]
    for branch, name in [(branch_id(conn, MAIN), MAIN), *((one.branch_id, one.name) for one in some)]:
        yield from _of_branch(conn, branch, name, now_us)


def _of_branch(conn: Connection, branch: str, name: str, now_us: int) -> Iterator[Figure]:
    """The tables of a branch: on main all of them, on another one those that are branched."""
    books_of = read_books(conn, branch)
    known = {table for table, _ in books_of}
    for table, rows, size_bytes, at_us in tail_sizes(conn, branch):
        if table not in known:
            continue
        label = {"table": table, "branch": name}
        age_s = 0.0 if at_us is None else max(0, now_us - at_us) / 1e6
        yield "strand_tail_rows", "Rows that are not in Iceberg yet.", label, rows
        yield "strand_tail_bytes", "Bytes of rows that are not in Iceberg yet.", label, size_bytes
        yield "strand_tail_age_seconds", "Age of the oldest row that is not in Iceberg yet.", label, age_s
    for table, books in books_of:
        label = {"table": table, "branch": name}
        flushed = books.log + books.dropped + books.pruned
        yield "strand_table_rows_acked_total", "Rows acked, by whichever process.", label, books.acked
        yield "strand_table_rows_flushed_total", "Rows that have left the tail.", label, flushed
        yield "strand_table_rows_dropped_total", "Duplicates dropped.", label, books.dropped
        yield "strand_table_rows_log", "Rows in the Iceberg log.", label, books.log
        yield "strand_table_rows_quarantined", "Rows whose bytes are damaged.", label, books.quarantined


def _sinks(conn: Connection) -> Iterator[Figure]:
    for sink in sinks(conn):
        for table in sorted({stream.table for stream in sink.streams}):
            yield from _of_table(sink, table)
        behind = [stream for stream in sink.streams if stream.lag.rows]
        for stream in sorted(behind, key=lambda stream: -stream.lag.rows)[:STREAMS]:
            label = {"sink": sink.sink, "table": stream.table, "stream": stream.stream_id}
            yield "strand_stream_lag_rows", "Rows that a sink has still to deliver.", label, stream.lag.rows
            yield "strand_stream_lag_seconds", "How long the oldest waits.", label, stream.lag.age_s or 0.0


def _of_table(sink: SinkStatus, table: str) -> Iterator[Figure]:
    """A table's streams together."""
    label = {"sink": sink.sink, "table": table}
    streams = [stream for stream in sink.streams if stream.table == table]
    delivered = [stream.delivered for stream in streams]
    parked = sum(stream.delivery is not None and stream.delivery.parked is not None for stream in streams)
    age_s = max(stream.lag.age_s or 0.0 for stream in streams)
    withheld = sum(rows.withheld for rows in delivered)
    yield "strand_sink_lag_rows", "Rows that a sink has still to deliver.", label, sum(s.lag.rows for s in streams)
    yield "strand_sink_lag_seconds", "How long the oldest of them waits.", label, age_s
    yield "strand_sink_delivered_rows", "Rows delivered.", label, sum(rows.rows for rows in delivered)
    yield "strand_sink_delivered_bytes", "Bytes delivered.", label, sum(rows.bytes for rows in delivered)
    yield "strand_sink_withheld_rows", "Rows that a predicate withheld.", label, withheld
    yield "strand_sink_parked", "Deliveries that wait for a person.", label, parked
    yield "strand_sink_dead_letters", "Rows refused.", label, sum(stream.dead_letters for stream in streams)


def _work(conn: Connection, *, one_host: bool) -> Iterator[Figure]:
    jobs = read_jobs(conn).values()
    workers = [one for one in read_workers(conn) if not certainly_dead(one.owner, one_host=one_host)]
    asked = Counter(one.state for one in open_requests(conn))
    yield "strand_workers", "Workers that have not ended.", {}, len(workers)
    yield "strand_workers_with_spark", "Those of them whose Spark is up.", {}, sum(one.spark for one in workers)
    yield "strand_jobs_failing", "Jobs whose last run failed.", {}, sum(one.failures > 0 for one in jobs)
    yield "strand_jobs_parked", "Jobs that wait for a person.", {}, sum(one.parked_at_us is not None for one in jobs)
    for state in ("waiting", "running"):
        yield "strand_requests", "What commands asked workers for.", {"state": state}, asked[state]
    for outcome, count in count_audit(conn):
        yield "strand_recoveries_total", "What recovery did with operations of the dead.", {"outcome": outcome}, count
