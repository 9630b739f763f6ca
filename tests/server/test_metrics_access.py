"""Who may read the metrics, and what a server says on a connection that is over."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from strandline.lake import Lake
from strandline.ledger.tokens import create_token
from strandline.reports.access import is_local
from strandline.worker.metrics import WorkerMetrics, showing
from tests.kit import make_table, messages
from tests.server.conftest import Running

FORWARDED = [{"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}, {"Via": "1.1 p"}, {"X-Real-IP": "::1"}]


@pytest.mark.parametrize("headers", FORWARDED, ids=lambda headers: next(iter(headers)))
def test_metrics_need_a_token_from_elsewhere(server: Running, headers: dict[str, str]) -> None:
    """They name tables. This machine may read them; what a proxy on it forwards is not this machine's."""
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    refused = httpx.get(f"{server.url}/metrics", headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
    assert "messages" not in refused.text
    wrong = {**headers, "Authorization": "Bearer strand_wrong"}
    assert httpx.get(f"{server.url}/metrics", headers=wrong).status_code == 401
    right = {**headers, "Authorization": f"Bearer {server.token}"}
    assert httpx.get(f"{server.url}/metrics", headers=right).status_code == 200


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False),
     ("::ffff:10.0.0.1", False), ("fe80::1%eth0", False), ("localhost.evil", False), (None, False)],
)  # fmt: skip
def test_a_machine_is_known_by_the_address_of_the_connection(host: str | None, local: bool) -> None:
    assert is_local(host, [("Host", "localhost:8400"), ("Accept", "*/*")]) is local


LOOPBACK = ["localhost", "LOCALHOST:8400", "127.0.0.1", "127.8.4.0:8400", "[::1]", "[::1]:8400", "[::ffff:127.0.0.1]"]
ELSEWHERE = ["evil.example", "evil.example:8400", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1:8400",
             "[2001:db8::1]", "localhost:8400@evil.example", "127.1", "", "0.0.0.0"]  # fmt: skip


@pytest.mark.parametrize("named", [*LOOPBACK, *ELSEWHERE])
def test_a_page_whose_name_leads_to_this_machine_reads_no_metrics(server: Running, named: str) -> None:
    """A browser here asks for it, from loopback; the name that it asks for is the page's own."""
    answer = httpx.get(f"{server.url}/metrics", headers={"Host": named})
    assert answer.status_code == (200 if named in LOOPBACK else 401), answer.text
    right = httpx.get(f"{server.url}/metrics", headers={"Host": named, "Authorization": f"Bearer {server.token}"})
    assert right.status_code == 200


def test_a_machine_is_not_named_twice() -> None:
    assert is_local("127.0.0.1", [("host", "localhost")])
    assert not is_local("127.0.0.1", [("Host", "localhost"), ("host", "evil.example")])
    assert not is_local("127.0.0.1", [])


def test_metrics_that_are_open_are_for_everybody(
    lake: Lake, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRAND_SERVER_METRICS", "open")
    with Lake(lake.root) as opened, serve(opened) as running:
        assert httpx.get(f"{running.url}/metrics", headers=FORWARDED[0]).status_code == 200


def test_a_workers_metrics_need_a_token_from_elsewhere(lake: Lake) -> None:
    """Its health does not: a probe has none."""
    make_table(lake)
    lake.append("messages", messages(0, 2))
    _, token = create_token(lake.ledger, "watcher")
    with showing(WorkerMetrics(lake.ledger), "127.0.0.1:0", {"loop": float("inf")}) as address:
        url = f"http://{address}"
        assert httpx.get(f"{url}/metrics").status_code == 200
        assert httpx.get(f"{url}/metrics", headers=FORWARDED[0]).status_code == 401
        assert httpx.get(f"{url}/metrics", headers={"Host": "evil.example"}).status_code == 401
        assert httpx.get(f"{url}/healthz", headers=FORWARDED[0]).status_code == 200
        with_token = {**FORWARDED[0], "Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/metrics", headers=with_token).status_code == 200
    with showing(WorkerMetrics(lake.ledger), "127.0.0.1:0", {"loop": float("inf")}, is_open=True) as address:
        assert httpx.get(f"http://{address}/metrics", headers=FORWARDED[0]).status_code == 200


@pytest.mark.parametrize("path", ["/metrics/", "/healthz/", "/v1/tables/messages/rows/"])
def test_no_path_leads_to_a_host_that_the_client_names(server: Running, path: str) -> None:
    """A path with a slash too many was redirected to whatever the Host header said."""
    answer = httpx.get(f"{server.url}{path}", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert "location" not in answer.headers


BEHIND = {
    "behind an answer": b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nrubbish\r\n\r\n",
    "in a body": b"POST /v1/tables/messages/rows HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nrubbish\r\n",
    "in a body that nobody reads": b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("behind", BEHIND)
def test_rubbish_on_a_connection_is_no_bug(
    server: Running, behind: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It was answered a second time on a connection that was over, which failed and was logged as a bug."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(BEHIND[behind].replace(b"{token}", server.token.encode()))
        answered = b"".join(iter(lambda: line.recv(4096), b""))
    assert len(re.findall(rb"HTTP/1\.1 \d", answered)) == 1
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    logged = capfd.readouterr().err + "".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)
    assert "a bug" not in logged and "LocalProtocolError" not in logged and "Exception" not in logged


def test_rubbish_behind_an_answer_is_not_answered_again(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    """A body that nobody waits for goes on after its answer, and is broken: there is nothing left to say."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(b"POST /v1/tables/messages/rows HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        answered = line.recv(65536)
        assert answered.startswith(b"HTTP/1.1 401")
        line.sendall(b"zz\r\nrubbish\r\n")
        answered += b"".join(iter(lambda: line.recv(65536), b""))
    assert len(re.findall(rb"HTTP/1\.1 \d", answered)) == 1
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
