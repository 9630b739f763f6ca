"""One actor opens what it likes, and declares, sends and holds what it likes: others are served all the same."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest

from strandline.errors import Busy
from strandline.lake import Lake
from strandline.ledger.tokens import create_token
from strandline.server import bodies, protocol
from strandline.server.admission import MAX_WAIT_S, WEIGHT, Gate
from tests.kit import make_table, messages, part_ids, wait_until
from tests.server.chunks import ndjson
from tests.server.conftest import NDJSON, Running, error
from tests.server.test_admission import Clock, charged, half_sent

ROOM = 300_000


@pytest.fixture
def little(lake: Lake, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Any]) -> Iterator[Running]:
    """A server with room for 300,000 decoded bytes, a third of it shared, and for a few connections."""
    make_table(lake, row_key=[])
    admission = replace(lake.config.admission, process_bytes=ROOM * WEIGHT)
    settings = replace(lake.config.server, max_connections=40)
    monkeypatch.setattr(lake, "config", replace(lake.config, admission=admission, server=settings))
    with serve(lake) as running:
        yield running


def lines_of(size_bytes: int) -> bytes:
    """A row, in a body of so many bytes."""
    row = ndjson(messages(0, 1))
    return row + b" " * (size_bytes - len(row))


def connected(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def declaring(server: Running, length: int, more: str = "") -> bytes:
    return (
        f"POST /v1/tables/messages/rows HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n"
        f"Content-Type: {NDJSON}\r\n{more}Content-Length: {length}\r\n\r\n{{"
    ).encode()


def append_as(server: Running, token: str, body: bytes) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": NDJSON}
    return httpx.post(f"{server.url}/v1/tables/messages/rows", content=body, headers=headers, timeout=30)


def test_f86_bodies_that_are_only_declared_take_no_room(lake: Lake, little: Running) -> None:
    """14 connections that declare all there is, and send a byte each: they hold 14 bytes."""
    _, other = create_token(lake.ledger, "other")
    gate = little.service.gate
    with ExitStack() as lines:
        for number in range(14):
            line = lines.enter_context(connected(little))
            line.sendall(declaring(little, 150_000 if number % 2 else 20_000))
        wait_until(lambda: gate.bytes_in_flight == 14, 30)
        assert append_as(little, other, lines_of(150_000)).status_code == 201
        assert little.append(lines_of(150_000)).status_code == 201, "nor from its own requests"
    assert part_ids(lake) == ["p0", "p0"]


def test_f86_an_actor_holds_no_more_of_the_shared_room_than_it_leaves_free(lake: Lake, little: Running) -> None:
    """What has arrived of one actor's bodies, on many connections, is half of it; the next one finds room."""
    _, other = create_token(lake.ledger, "other")
    with ExitStack() as lines:
        lines.enter_context(half_sent(little, 120_000))  # the place for a large one
        for _ in range(5):
            lines.enter_context(half_sent(little, 10_000))
        answer = little.append(lines_of(10_000))
        assert (answer.status_code, error(answer)["detail"]["reason"]) == (503, "bytes")
        assert append_as(little, other, lines_of(20_000)).status_code == 201
    assert part_ids(lake) == ["p0"]


def budget(clock: Clock) -> Gate:
    """Room for 100 shared bytes and 200 of a large request."""
    return Gate(
        max_requests=99,
        max_bytes=1 << 40,
        process_bytes=300 * WEIGHT,
        queue=99,
        behind_s=lambda: 0.0,
        patience_s=30.0,
        clock=clock,
    )


def test_f86_however_many_actors_hold_room_the_next_one_finds_some() -> None:
    gate = budget(Clock())
    with ExitStack() as requests:
        requests.enter_context(charged(gate, "large", 200))
        for held in (50, 25, 12, 6, 3, 2, 1):
            actor = f"actor{held}"
            requests.enter_context(charged(gate, actor, held))
            with pytest.raises(Busy), charged(gate, actor, 1):
                pass
        assert gate.bytes_in_flight == 299


def test_f86_the_place_for_a_large_body_goes_from_actor_to_actor() -> None:
    """Who had it while another wanted it comes second; who is still sending there by then gives it up."""
    clock = Clock()
    gate = budget(clock)
    with charged(gate, "hog", 60) as hog:
        hog.arrived(60)
        clock.now += 1000
        hog.arrived(10)  # nobody else wants it
        for actor in ("hog", "other"):
            with pytest.raises(Busy), charged(gate, actor, 60):
                pass
        clock.now += 29
        hog.arrived(1)
        clock.now += 2
        hog.decoded(1)  # what is decoded was sent in time
        with pytest.raises(Busy):
            hog.arrived(1)
    with pytest.raises(Busy), charged(gate, "hog", 60):
        pass
    with charged(gate, "hog", 10), charged(gate, "other", 60):
        pass
    with charged(gate, "hog", 60), pytest.raises(Busy), charged(gate, "other", 60):
        pass
    clock.now += MAX_WAIT_S
    with charged(gate, "hog", 60):
        pass


def test_f86_a_body_that_stops_arriving_gives_back_what_it_holds(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Any]
) -> None:
    """However much came before, and however quickly: silence has one limit."""
    make_table(lake, row_key=[])
    monkeypatch.setattr(bodies, "SLOWEST_BYTES_S", 100)  # so that what came is worth many minutes
    settings = replace(lake.config.server, read_timeout_s=0.5)
    monkeypatch.setattr(lake, "config", replace(lake.config, server=settings))
    with serve(lake) as server, half_sent(server, 90_000) as line:
        answered = b"".join(iter(lambda: line.recv(65536), b""))
        assert answered.startswith(b"HTTP/1.1 408") and b'"request_timeout"' in answered
        wait_until(lambda: server.service.gate.in_flight == 0, 30)
        assert server.service.gate.bytes_in_flight == 0


def test_f86_a_refused_body_is_answered_at_once_and_holds_nothing(lake: Lake, little: Running) -> None:
    """Whatever is still sent of it is passed over behind the answer, which a client sees that only then reads."""
    gate = little.service.gate
    _, other = create_token(lake.ledger, "other")
    with connected(little) as line, connected(little) as another:
        line.sendall(declaring(little, ROOM))
        another.sendall(declaring(little, 1 << 40))
        assert another.recv(65536).startswith(b"HTTP/1.1 413")
        wait_until(lambda: gate.in_flight == 0, 30)
        assert gate.bytes_in_flight == 0
        assert append_as(little, other, lines_of(150_000)).status_code == 201
        line.sendall(b" " * (ROOM - 1) + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answered = b"".join(iter(lambda: line.recv(65536), b""))
        assert re.findall(rb"HTTP/1\.1 (\d+)", answered) == [b"413", b"200"]


def test_f86_a_refused_body_is_not_read_for_ever(little: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADERS_S", 0.5)
    with connected(little) as line:
        line.sendall(declaring(little, 1 << 40))
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                line.sendall(b" " * 1000)
                time.sleep(0.02)


def test_f86_connections_that_ask_nothing_keep_nobody_out(lake: Lake, little: Running) -> None:
    """Past the limit the one that has waited longest goes; one whose request is on its way stays."""
    with ExitStack() as lines, half_sent(little) as asking:
        silent = [lines.enter_context(connected(little)) for _ in range(60)]
        for line in silent[:15]:
            assert line.recv(1) == b"", "closed"
        assert httpx.get(f"{little.url}/healthz").status_code == 200
        silent[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert silent[-1].recv(65536).startswith(b"HTTP/1.1 200")
        asking.sendall(b" " * 1000)
        assert asking.recv(65536).startswith(b"HTTP/1.1 201")


def test_f86_a_client_that_reads_no_answers_is_hung_up_on(little: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADERS_S", 1.0)
    with connected(little) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        requests = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100
        line.settimeout(60)
        with pytest.raises(ConnectionError):
            while True:
                line.sendall(requests)
