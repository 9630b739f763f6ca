"""A server in a thread of the test, with real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn

from strandline.lake import Lake
from strandline.ledger.tokens import create_token
from strandline.model.delivery.inbound import Chunk
from strandline.server.app import create_app
from strandline.server.run import configured
from strandline.server.service import Service
from tests.kit import make_table, wait_until
from tests.server.chunks import Sender, ndjson, rows

NDJSON = "application/x-ndjson"


@dataclass
class Running:
    """A server, and a client with the token of the gateway `edge`."""

    url: str
    client: httpx.Client
    service: Service
    token: str

    def append(self, body: bytes, media: str = NDJSON, table: str = "messages", **headers: str) -> httpx.Response:
        return self.client.post(
            f"/v1/tables/{table}/rows", content=body, headers={"Content-Type": media, **_named(headers)}
        )

    def send(
        self, sender: Sender, since: int, until: int, seqs: list[int] | None = None, **more: Any
    ) -> httpx.Response:
        """A chunk as a sender makes it."""
        listed = list(range(since + 1, until + 1)) if seqs is None else seqs
        body = ndjson(rows(listed))
        return self.post(sender.chunk(since, until, body, len(listed), **more), body)

    def post(
        self, chunk: Chunk, body: bytes, *, table: str = "messages", gateway: str = "edge", **headers: str
    ) -> httpx.Response:
        told = {**chunk.headers(), "Content-Type": NDJSON, **_named(headers)}
        return self.client.post(f"/v1/inbound/{gateway}/{table}", content=body, headers=told)

    def mark(self, sender: Sender, table: str = "messages") -> httpx.Response:
        told = sender.source
        asked = {"lake": told.lake_id, "sink": told.sink_id, "stream": told.stream.text()}
        return self.client.get(f"/v1/inbound/{sender.gateway}/{table}", params=asked)


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@contextmanager
def running(lake: Lake, **options: Any) -> Iterator[Running]:
    """Serve a lake until the block ends."""
    app = create_app(lake, **options)
    config = configured(app, lake.config.server.max_connections)
    config.port = 0
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), 30)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        _, token = create_token(lake.ledger, "edge")
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
            yield Running(url, client, app.state.service, token)
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive(), "the server did not stop"


@pytest.fixture
def serve() -> Callable[..., Any]:
    """For tests that set something up before they serve."""
    return running


@pytest.fixture
def server(lake: Lake) -> Iterator[Running]:
    """A lake with a table `messages`, served."""
    make_table(lake, row_key=[])
    with running(lake) as one:
        yield one


def counts(answer: httpx.Response) -> dict[str, Any]:
    """What an answer says of rows and marks, without who says it."""
    return {name: value for name, value in answer.json().items() if name in ("stored", "mark", "epoch")}


def error(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which has the shape of all errors."""
    document = answer.json()
    assert document.keys() == {"error"}, document
    found: dict[str, Any] = document["error"]
    assert found.keys() == {"code", "message", "hint", "detail"}
    assert found["message"]
    return found
