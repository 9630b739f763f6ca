"""What the server counts, for Prometheus.

Counters are moved as requests pass; what is in the ledger is read when Prometheus asks (`reports/metrics.py`).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.ledger.ledger import Ledger
from strandline.reports.metrics import LedgerCollector

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""A method is whatever a client makes up, and every label is kept for good."""

LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The counters of one server."""

    def __init__(self, ledger: Ledger) -> None:
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
        registry.register(LedgerCollector(ledger))

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)


class CountRequests:
    """Counts every answer by its route. Plain ASGI: Starlette's own middleware would copy every body."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on, and look at the status."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def counted(message: Message) -> None:
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
