"""What a worker counts, and where Prometheus and a probe can ask for it.

What it tells of the lake is what the server tells (`reports/metrics.py`); it adds what only a worker can know: how long
operations, deliveries and jobs took, and whether its Spark is up. `/healthz` is for the supervisor that restarts a
worker whose loop is stuck; it answers 503 when the loop has not turned for a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from strandline import spans
from strandline.errors import Environment
from strandline.ledger.ledger import Ledger
from strandline.ledger.tokens import is_valid
from strandline.reports.access import is_local
from strandline.reports.metrics import LedgerCollector

DURATIONS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 1800, 3600)
STUCK_S = 60.0


class WorkerMetrics:
    """The counters of one worker."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.registry = registry = CollectorRegistry()
        self.operation_s = _seconds("strand_operation_seconds", "From an intent to its settling.", registry)
        self.delivery_s = _seconds("strand_delivery_seconds", "From a unit's first row to its last.", registry)
        self.job_s = _seconds("strand_job_seconds", "What the worker decided to do, or was asked for.", registry)
        self.failures = Counter("strand_job_failures", "Jobs that failed.", ["kind"], registry=registry)
        self.spark_up = Gauge("strand_spark_up", "Whether this worker's Spark is up.", registry=registry)
        self.running = Gauge("strand_jobs_running", "Jobs that this worker does now.", registry=registry)
        registry.register(LedgerCollector(ledger))

    def ended(self, kind: str, outcome: str, seconds: float) -> None:
        """A job has ended."""
        self.job_s.labels(kind, outcome).observe(seconds)
        if outcome in ("failed", "parked"):
            self.failures.labels(kind).inc()

    def span(self, name: str, about: Mapping[str, spans.Value], seconds: float, failure: BaseException | None) -> None:
        """A span has ended."""
        kept = {"operation": self.operation_s, "delivery": self.delivery_s}.get(name)
        if kept is not None:
            kept.labels(str(about["kind"]), "done" if failure is None else "failed").observe(seconds)


def _seconds(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, text, ["kind", "outcome"], buckets=DURATIONS_S, registry=registry)


@contextmanager
def showing(
    metrics: WorkerMetrics, listen: str, turned_s: Mapping[str, float], *, is_open: bool = False
) -> Iterator[str]:
    """Answer on this address while the block runs; gives the address, whose port may have been picked.

    Unless it `is_open`, the metrics are for this machine, and for clients with a token of the lake.
    `turned_s["loop"]` is when the worker's loop last turned, on the monotonic clock.
    """
    host, _, port = listen.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler(metrics, turned_s, is_open=is_open))
    except OSError as error:
        raise Environment(
            f"can't show metrics on {listen}: {error.strerror or error}",
            hint="Another worker may be there: [worker] metrics, or STRAND_WORKER_METRICS, names another place.",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    forget = spans.listen(metrics.span)
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        forget()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(metrics: WorkerMetrics, turned_s: Mapping[str, float], *, is_open: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # a client that connects and says nothing keeps no thread for ever

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics" and not self._is_allowed():
                self._answer(401, b"the metrics need a token: `strand token create ACTOR` makes one\n", "text/plain")
            elif path == "/metrics":
                self._answer(200, generate_latest(metrics.registry), CONTENT_TYPE_LATEST)
            elif path == "/healthz":
                stuck = time.monotonic() - turned_s["loop"] > STUCK_S
                self._answer(503 if stuck else 200, b"stuck\n" if stuck else b"ok\n", "text/plain")
            else:
                self._answer(404, b"/metrics and /healthz are here\n", "text/plain")

        def _is_allowed(self) -> bool:
            if is_open or is_local(str(self.client_address[0]), self.headers.items()):
                return True
            scheme, _, token = self.headers.get("Authorization", "").partition(" ")
            return scheme.lower() == "bearer" and is_valid(metrics.ledger, token.strip())

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
