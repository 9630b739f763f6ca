"""What the server counts, for Prometheus.

Counters are moved as requests pass. What is in the ledger (tails, and whatever other rooms report) is read when
somebody asks, so that it is true for every process that writes there, and not only for this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from strandline.ledger.ledger import MAIN, Ledger
from strandline.ledger.tables import branch_id, tail_sizes

Figure = tuple[str, str, Mapping[str, str], float]
"""A number that another room reports: its name, its help, its labels, its value."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""A method is whatever a client makes up, and every label is kept for good."""

LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The counters of one server."""

    def __init__(self, ledger: Ledger, more: Callable[[], Iterable[Figure]] | None) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "strand_http_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self.appended = Counter("strand_rows_appended", "Rows appended over HTTP.", ["table"], registry=registry)
        self.inbound = Counter("strand_inbound_rows", "Forwarded rows stored.", ["gateway", "table"], registry=registry)
        self.append_s = Histogram(
            "strand_append_seconds",
            "From the whole body to the durable row.",
            ["route"],
            buckets=LATENCIES_S,
            registry=registry,
        )
        self.in_flight = Gauge("strand_http_in_flight", "Requests admitted and not answered.", registry=registry)
        registry.register(_Read(lambda: _tails(ledger)))
        if more is not None:
            registry.register(_Read(more))

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)


class _Read(Collector):
    """Numbers that are read when somebody asks."""

    def __init__(self, read: Callable[[], Iterable[Figure]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Any]:
        """Nothing beforehand: registering must not read the ledger."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family for each name, in the order they come."""
        families: dict[str, GaugeMetricFamily] = {}
        for name, text, labels, value in self._read():
            if name not in families:
                families[name] = GaugeMetricFamily(name, text, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        yield from families.values()


def _tails(ledger: Ledger) -> Iterator[Figure]:
    with ledger.read() as conn:
        sizes = tail_sizes(conn, branch_id(conn, MAIN))
    now_us = time.time_ns() // 1000
    for table, rows, size_bytes, at_us in sizes:
        label = {"table": table}
        age_s = 0.0 if at_us is None else max(0, now_us - at_us) / 1e6
        yield "strand_tail_rows", "Rows that are not in Iceberg yet.", label, rows
        yield "strand_tail_bytes", "Bytes of rows that are not in Iceberg yet.", label, size_bytes
        yield "strand_tail_age_seconds", "Age of the oldest row that is not in Iceberg yet.", label, age_s


class CountRequests:
    """Counts every answer by its route. Plain ASGI: Starlette's own middleware would copy every body."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass everything on, and look at the status."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def counted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.requests.labels(method, route, str(status)).inc()
