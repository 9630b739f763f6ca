"""Watching a worker: its metrics over HTTP, and traces at a receiver of OTLP."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from strandline import logs, spans
from strandline.errors import Environment
from strandline.lake import Lake
from strandline.ledger.audit import write_audit
from strandline.server.metrics import Metrics
from strandline.worker.loop import Worker
from strandline.worker.metrics import STUCK_S, WorkerMetrics, showing
from tests.kit import free_port, make_table, messages, wait_until
from tests.worker.test_loop import working


def figures(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = httpx.get(f"{url}/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_worker_shows_what_it_did(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations of jobs and operations, whether Spark is up, and the state of the lake."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("STRAND_WORKER_METRICS", url.removeprefix("http://"))
    monkeypatch.setenv("STRAND_FLUSH_MAX_AGE", "0s")
    with working(lake.root):
        wait_until(lambda: not lake.view().branch_table("messages").tail)
        flushed = ("strand_job_seconds_count", (("kind", "flush"), ("outcome", "done")))
        wait_until(lambda: figures(url).get(flushed) == 1)
        found = figures(url)
        assert found["strand_operation_seconds_count", (("kind", "flush"), ("outcome", "done"))] == 1
        assert found["strand_spark_up", ()] == 1
        assert found["strand_workers", ()] == found["strand_workers_with_spark", ()] == 1
        assert found["strand_table_rows_flushed_total", (("branch", "main"), ("table", "messages"))] == 5
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert httpx.get(f"{url}/nothing").status_code == 404


def test_a_loop_that_is_stuck_is_not_healthy(lake: Lake) -> None:
    turned = {"loop": -STUCK_S - 1}
    with showing(WorkerMetrics(lake.ledger), "127.0.0.1:0", turned) as address:
        assert httpx.get(f"http://{address}/healthz").status_code == 503
        again = showing(WorkerMetrics(lake.ledger), address, turned)
        with pytest.raises(Environment, match="can't show metrics"), again:
            pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Span]]:
    """A receiver of OTLP over HTTP, and the spans that it got."""
    got: list[Span] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = ExportTraceServiceRequest()
            sent.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
            got.extend(span for one in sent.resource_spans for scope in one.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield got
    spans._tracer = spans._provider = None
    server.shutdown()
    server.server_close()


def test_operations_and_deliveries_are_traced_where_an_endpoint_is_set(lake: Lake, collector: list[Span]) -> None:
    """Job over operation over its steps; a delivery under its tick; with the ids that the ledger and the logs know."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    lake.add_sink("archive", "blob", {"uri": f"file://{lake.root.parent / 'blobs'}"}, check=False)
    with spans.traces("strandline"):
        Worker(lake).once()
    by_name = {span.name: span for span in collector}
    assert {"job flush", "operation flush", "stage", "publish", "settle", "job tick", "delivery blob"} <= set(by_name)
    operation = by_name["operation flush"]
    assert operation.parent_span_id == by_name["job flush"].span_id
    assert by_name["publish"].parent_span_id == operation.span_id
    assert by_name["delivery blob"].trace_id == by_name["job tick"].trace_id
    about = {one.key: one.value.string_value for one in operation.attributes}
    op_id = lake.view().branch_table("messages").head.version and _op_of(lake)
    assert about["strand.op"] == op_id


def test_log_lines_carry_the_ids_of_what_they_are_about(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever finds an id in the ledger, a trace or a message finds its lines."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    lake.add_sink("archive", "blob", {"uri": f"file://{lake.root.parent / 'blobs'}"}, check=False)
    logs.set_format("json")
    try:
        Worker(lake).once()
    finally:
        logs.set_format("text")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    by_event = {line["event"]: line for line in lines}
    assert by_event["published"]["op"] == by_event["begun"]["op"] == _op_of(lake)
    assert by_event["delivered"]["delivery"] and by_event["delivered"]["sink"] == "archive"
    assert {line["job"] for line in lines if line["event"] == "due"} == {"flush:messages", "tick:archive"}


def _op_of(lake: Lake) -> str:
    """The operation that made the newest snapshot, as its summary says."""
    state = lake.view().branch_table("messages")
    rows = lake.spark.sql(f"select summary from strand.{state.table.iceberg_name}.snapshots").collect()
    return str(rows[-1].summary["strand-op"])


def test_nobody_pays_for_spans_that_nobody_listens_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint nothing of OpenTelemetry is even imported."""
    monkeypatch.setattr(spans, "_start", lambda _service: pytest.fail("it was started"))
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with spans.traces("strandline"), spans.span("operation", kind="flush"):
        assert spans._tracer is None


def test_every_metric_that_the_board_shows_is_exported(lake: Lake) -> None:
    """A panel that names something else stays empty, and nobody notices in the night."""
    make_table(lake)
    lake.append("messages", messages(0, 1))
    lake.add_sink("archive", "blob", {"uri": f"file://{lake.root.parent / 'blobs'}"}, check=False)
    with lake.ledger.write() as txn:
        write_audit(txn, op_id="x", kind="flush", outcome="rolled_back", original_actor="", tables=[], reason="")
    exported: set[str] = set()
    for registry in (WorkerMetrics(lake.ledger).registry, Metrics(lake.ledger)._registry):
        for family in registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(family.type, [""])
            exported |= {family.name + suffix for suffix in suffixes}
    board = json.loads((Path(__file__).parents[2] / "ops" / "grafana" / "strandline.json").read_text())
    shown = {
        name
        for panel in board["panels"]
        for target in panel.get("targets", [])
        for name in re.findall(r"strand_\w+", target["expr"])
    }
    assert shown - exported == set()
    assert exported - shown - UNSHOWN == set(), "worth a panel, or a place in this list"


UNSHOWN = {
    "strand_append_seconds_count", "strand_append_seconds_sum", "strand_delivery_seconds_count",
    "strand_delivery_seconds_sum", "strand_job_seconds_count", "strand_job_seconds_sum", "strand_operation_seconds_sum",
    "strand_sink_delivered_bytes", "strand_sink_withheld_rows", "strand_table_rows_log", "strand_workers_with_spark",
}  # fmt: skip
