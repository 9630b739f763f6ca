"""Health, readiness, metrics and the API's own description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from strandline.lake import Lake
from strandline.model.delivery import inbound
from tests.kit import make_table, message, messages
from tests.server.chunks import Sender, ndjson
from tests.server.conftest import Running


def figures(server: Running) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = httpx.get(f"{server.url}/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_probes_need_no_token(server: Running) -> None:
    assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/readyz").json()["status"] == "ready"
    server.service.ready = False
    answer = httpx.get(f"{server.url}/readyz")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_metrics_count_requests_rows_and_tails(server: Running) -> None:
    server.append(ndjson(messages(0, 3)), Idempotency_Key="k")
    server.append(ndjson(messages(0, 3)), Idempotency_Key="k")
    server.append(b"{oops")
    server.send(Sender(), 0, 4, opens=True)
    server.send(Sender(), 0, 4, opens=True)
    server.client.get("/nowhere/else")
    found = figures(server)
    route = ("route", "/v1/tables/{table}/rows")
    assert found["strand_http_requests_total", (("method", "POST"), route, ("status", "201"))] == 2
    assert found["strand_http_requests_total", (("method", "POST"), route, ("status", "422"))] == 1
    unknown = (("method", "GET"), ("route", "none"), ("status", "404"))
    assert found["strand_http_requests_total", unknown] == 1, "not a label for every path that somebody tries"
    assert found["strand_rows_appended_total", (("table", "messages"),)] == 3, "a repeat appends nothing"
    assert found["strand_inbound_rows_total", (("gateway", "edge"), ("table", "messages"))] == 4
    assert found["strand_tail_rows", (("branch", "main"), ("table", "messages"))] == 7
    assert found["strand_tail_bytes", (("branch", "main"), ("table", "messages"))] > 0
    assert found["strand_tail_age_seconds", (("branch", "main"), ("table", "messages"))] >= 0
    assert found["strand_append_seconds_count", (route,)] == 3
    assert found["strand_http_in_flight", ()] == 0


def test_the_state_of_the_lake_is_read_when_somebody_asks(lake: Lake, serve: Callable[..., Any]) -> None:
    """Lags, jobs, workers and recoveries are those of the ledger, whichever process made them.

    No partition is named.
    """
    make_table(lake, partition_by=["source"])
    lake.append("messages", [message(n, source="a secret") for n in range(5)])
    lake.add_sink("archive", "blob", {"uri": f"file://{lake.root.parent / 'blobs'}"}, check=False)
    with serve(lake) as server:
        sink = (("sink", "archive"), ("table", "messages"))
        found = figures(server)
        assert found["strand_sink_lag_rows", sink] == 5
        (stream,) = [labels for name, labels in found if name == "strand_stream_lag_rows"]
        assert "secret" not in str(stream)
        assert found["strand_table_rows_acked_total", (("branch", "main"), ("table", "messages"))] == 5
        assert found["strand_jobs_parked", ()] == found["strand_workers", ()] == 0
        lake.append("messages", [message(9)])
        assert figures(server)["strand_sink_lag_rows", sink] == 6


def test_the_api_describes_itself(server: Running) -> None:
    """Every route, every header of a chunk, and every refusal with its document."""
    described = httpx.get(f"{server.url}/openapi.json").json()
    paths = described["paths"]
    assert set(paths) == {
        "/v1/tables/{table}/rows",
        "/v1/inbound/{gateway}/{table}",
        "/v1/inbound/{gateway}/{table}/replayed",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    chunk = paths["/v1/inbound/{gateway}/{table}"]["post"]
    named = {one["name"] for one in chunk["parameters"] if one["in"] == "header"}
    more = {"digest": "rows1:a", "generation": "g", "receiver": "r", "hole": 1, "lacking": 1}
    assert named == {*Sender().chunk(0, 1, b"", 1, opens=True, dead=1, key=("id",), **more).headers()}
    assert inbound.BATCH_ID in named
    for status, answer in chunk["responses"].items():
        if status.startswith(("4", "5")):
            assert answer["content"]["application/json"]["schema"]["$ref"].endswith("ErrorDocument"), status
    assert chunk["security"] and "422" in chunk["responses"]
    assert set(chunk["requestBody"]["content"]) == {"application/vnd.apache.arrow.stream", "application/x-ndjson"}
