"""Admission: bounded, fair, and honest about when to come back."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from strandline.errors import Busy, TooManyRequests
from strandline.lake import Lake
from strandline.ledger.ledger import Ledger
from strandline.ledger.tokens import create_token
from strandline.server import admission, service
from strandline.server.admission import Charge, Gate, retry_after_s
from strandline.server.bodies import Grow, decompressed
from tests.kit import make_table, messages, part_ids, wait_until
from tests.server.chunks import ndjson
from tests.server.conftest import NDJSON, Running, error


@pytest.mark.parametrize(
    ("waiting", "acks", "window_s", "expected"),
    [
        (0, 0, 10, 1),
        (5, 0, 10, 60),
        (10, 100, 10, 1),
        (100, 100, 10, 10),
        (101, 100, 10, 11),
        (10_000, 1, 10, 60),
        (3, 100, 10, 1),
        (3, 1, 0, 60),
    ],
)
def test_when_to_come_back_follows_from_what_waits_and_how_fast_it_goes(
    waiting: int, acks: int, window_s: float, expected: int
) -> None:
    assert retry_after_s(waiting, acks, window_s) == expected


class Clock:
    """Time that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def gate(clock: Clock, behind_s: Callable[[], float] = lambda: 0.0) -> Gate:
    return Gate(max_requests=2, max_bytes=100, process_bytes=10_000, queue=3, behind_s=behind_s, clock=clock)


@contextmanager
def charged(gate: Gate, actor: str, size_bytes: int) -> Iterator[Charge]:
    """A request of which so much has arrived."""
    with gate.admitted(actor) as charge:
        charge.arrived(size_bytes)
        yield charge


def test_an_actor_has_so_many_requests_and_bytes_and_others_are_not_affected() -> None:
    """Both gates or neither; whatever ends, in whatever way, gives its place back."""
    small = gate(Clock())
    with charged(small, "a", 60):
        with pytest.raises(TooManyRequests) as caught, charged(small, "a", 60):
            pass
        assert caught.value.detail["reason"] == "bytes"
        with charged(small, "a", 40):
            with pytest.raises(TooManyRequests) as caught, small.admitted("a"):
                pass
            assert caught.value.detail["reason"] == "in_flight"
            with charged(small, "b", 100):
                assert small.in_flight == 3
        with pytest.raises(RuntimeError), charged(small, "a", 1):
            raise RuntimeError
        with charged(small, "a", 40):
            pass
    assert (small.in_flight, small.bytes_in_flight) == (0, 0)
    with charged(small, "a", 1000):
        assert small.in_flight == 1, "one alone is always let in; a body has a limit of its own"


def test_who_comes_when_the_queue_is_full_or_the_ledger_stuck_is_sent_away() -> None:
    clock, behind = Clock(), [0.0]
    one = gate(clock, lambda: behind[0])
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(one.working())
        with pytest.raises(Busy) as caught, one.admitted("a"):
            pass
        assert caught.value.detail["reason"] == "ledger_behind"
    with one.admitted("a"):
        pass
    with one.working():
        clock.now += admission.BEHIND_S + 1
        with one.admitted("a"):
            pass
        behind[0] = admission.BEHIND_S + 1
        with pytest.raises(Busy), one.admitted("a"):
            pass
        assert one.retry_after_s() == 2, "three acks in six seconds, and one that waits"
        clock.now += admission.WINDOW_S
        assert one.retry_after_s() == 60, "no ack for a while"


@contextmanager
def half_sent(server: Running, length: int = 1000, token: str | None = None) -> Iterator[socket.socket]:
    """A request whose body never ends: so much of it has arrived."""
    host, port = server.url.removeprefix("http://").split(":")
    gate = server.service.gate
    requests, size_bytes = gate.in_flight, gate.bytes_in_flight
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(
            f"POST /v1/tables/messages/rows HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token or server.token}\r\n"
            f"Content-Type: {NDJSON}\r\nContent-Length: {length + 1000}\r\n\r\n{' ' * length}".encode()
        )
        wait_until(lambda: gate.in_flight > requests and gate.bytes_in_flight == size_bytes + length, 30)
        yield line


@pytest.fixture
def narrow(lake: Lake, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Any]) -> Iterator[Running]:
    """A server that takes three requests, or 2500 bytes, of an actor."""
    make_table(lake, row_key=[])
    settings = replace(lake.config.server, max_requests=3, max_bytes=2500)
    monkeypatch.setattr(lake, "config", replace(lake.config, server=settings))
    with serve(lake) as one:
        yield one


def test_too_much_of_one_actor_is_429_with_a_time_to_wait(lake: Lake, narrow: Running) -> None:
    _, secret = create_token(lake.ledger, "patient")
    with half_sent(narrow), half_sent(narrow):
        answer = narrow.append(b" " * 600)
        assert (answer.status_code, error(answer)["detail"]["reason"]) == (429, "bytes")
        assert int(answer.headers["retry-after"]) >= 1
        assert narrow.append(ndjson(messages(0, 1))).status_code == 201
        with half_sent(narrow, 9):
            answer = narrow.append(b"")
            assert (answer.status_code, error(answer)["code"]) == (429, "too_many_requests")
            assert error(answer)["detail"]["reason"] == "in_flight"
            assert int(answer.headers["retry-after"]) >= 1
            other = httpx.post(
                f"{narrow.url}/v1/tables/messages/rows",
                content=ndjson(messages(1, 2)),
                headers={"Authorization": f"Bearer {secret}", "Content-Type": NDJSON},
            )
            assert other.status_code == 201, "another actor is not affected"
    wait_until(lambda: narrow.service.gate.in_flight == 0, 30)
    assert narrow.append(b"").status_code == 201


def test_a_ledger_that_is_behind_is_503_with_a_time_to_wait(
    lake: Lake, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locked ledger: what came first waits and is stored; who comes later is sent away at once, and told when."""
    monkeypatch.setattr(admission, "BEHIND_S", 0.3)
    assert server.append(b"").status_code == 201
    answers: list[int] = []

    def first() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            headers = {"Authorization": f"Bearer {server.token}", "Content-Type": NDJSON}
            body = ndjson(messages(0, 1))
            answers.append(client.post("/v1/tables/messages/rows", content=body, headers=headers).status_code)

    other = Ledger.open(lake.config.ledger)
    thread = threading.Thread(target=first)
    try:
        with other.write():
            thread.start()
            wait_until(lambda: lake.ledger.behind_s() > 0.3, 20)
            answer = server.append(b"")
            assert (answer.status_code, error(answer)["code"]) == (503, "busy"), answer.text
            assert error(answer)["detail"]["reason"] == "ledger_behind"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert httpx.get(f"{server.url}/healthz").status_code == 200
            assert httpx.get(f"{server.url}/metrics").status_code == 200, "who looks is not kept waiting"
    finally:
        other.close()
        thread.join(60)
    assert answers == [201]
    assert part_ids(lake) == ["p0"]


def test_a_request_that_takes_long_to_decode_keeps_nobody_else_out(
    lake: Lake, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large body may be decoded for longer than a ledger may be behind; the ledger is idle meanwhile."""
    monkeypatch.setattr(admission, "BEHIND_S", 0.05)
    decoding, go_on = threading.Event(), threading.Event()
    answers: list[int] = []

    def slow(body: bytearray, encoding: str, limit: int, grow: Grow) -> bytearray:
        if body.startswith(b" "):
            decoding.set()
            assert go_on.wait(60)
        return decompressed(body, encoding, limit, grow)

    monkeypatch.setattr(service, "decompressed", slow)

    def large() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            headers = {"Authorization": f"Bearer {server.token}", "Content-Type": NDJSON}
            body = b" " + ndjson(messages(0, 1))
            answers.append(client.post("/v1/tables/messages/rows", content=body, headers=headers).status_code)

    thread = threading.Thread(target=large)
    thread.start()
    try:
        assert decoding.wait(30)
        began_s = time.monotonic()
        wait_until(lambda: time.monotonic() - began_s > 0.2, 10)
        assert server.append(ndjson(messages(1, 2))).status_code == 201
    finally:
        go_on.set()
        thread.join(60)
    assert answers == [201]
    assert sorted(part_ids(lake)) == ["p0", "p1"]
