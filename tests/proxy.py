"""A proxy that hurts: it stands before a receiver and, by rule, drops answers, cuts requests, delays, or lies.

It passes on everything else as it is, and keeps what it saw. It runs in the test's own process, on loopback.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Seen:
    """A request that came by, and the status it got; None when it got no answer."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int | None


@dataclass(frozen=True)
class Hurt:
    """What happens to a request instead of passing."""

    kind: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0


PASS = Hurt("pass")


def drop_answer() -> Hurt:
    """The receiver gets it and answers; the sender never hears of it."""
    return Hurt("drop")


def cut_request() -> Hurt:
    """Half of the body reaches the receiver, then both connections are cut."""
    return Hurt("cut")


def answer(status: int, body: bytes = b"", **headers: str) -> Hurt:
    """The receiver never hears of it; the sender gets this."""
    return Hurt("answer", status, {key.replace("_", "-"): value for key, value in headers.items()}, body)


def delay(seconds: float) -> Hurt:
    """It passes, later."""
    return Hurt("delay", seconds=seconds)


Rule = Callable[[int, Seen], Hurt]
"""What happens to the n-th POST (counted from 1)."""


class Proxy:
    """One proxy before one receiver."""

    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)
        self.rule: Rule = lambda _n, _seen: PASS
        self.seen: list[Seen] = []
        self.keeps = True
        """Whether it remembers what it saw; for hours of it there is no room."""
        self.older = False
        """Whether the receiver seems to be of format 1: what that took and told passes, and nothing else."""
        self._posts = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where senders reach it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def posts(self) -> list[Seen]:
        """The POSTs that came by."""
        return [one for one in self.seen if one.method == "POST"]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def judge(self, seen: Seen) -> Hurt:
        """What the rule says about a request; questions pass."""
        if seen.method != "POST":
            return PASS
        with self._lock:
            self._posts += 1
            return self.rule(self._posts, seen)

    def note(self, seen: Seen) -> None:
        """Keep what came by."""
        if self.keeps:
            with self._lock:
                self.seen.append(seen)


@contextmanager
def proxy_before(url: str) -> Iterator[Proxy]:
    """A proxy before the receiver at this address."""
    host, _, port = url.removeprefix("http://").partition(":")
    proxy = Proxy(host, int(port))
    try:
        yield proxy
    finally:
        proxy.close()


_HEADERS_OF_1 = ("lake", "sink", "stream", "epoch", "since", "until", "rows", "batch-id", "open", "dead", "key")
_FIELDS_OF_1 = ("stored", "mark", "epoch", "error")


def _as_taken_by_an_older_one(headers: Mapping[str, str]) -> Mapping[str, str]:
    known = {f"strand-{name}" for name in _HEADERS_OF_1}
    return {
        name: value
        for name, value in headers.items()
        if not name.lower().startswith("strand-") or name.lower() in known
    }


def _as_told_by_an_older_one(answered: bytes) -> bytes:
    told = {name: value for name, value in json.loads(answered).items() if name in _FIELDS_OF_1}
    if isinstance(told.get("error"), dict):
        told["error"]["detail"] = {name: value for name, value in told["error"]["detail"].items() if name != "lake"}
    return json.dumps(told).encode()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A sender that was killed in the middle is no news here."""


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """A question."""
        self._handle("GET")

    def do_POST(self) -> None:
        """A chunk, or rows."""
        self._handle("POST")

    def _handle(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = Seen(method, self.path, dict(self.headers.items()), body, None)
        hurt = self.proxy.judge(asked)
        if hurt.kind == "answer":
            self._note(asked, hurt.status)
            self._answer(hurt.status, hurt.headers, hurt.body)
            return
        if hurt.kind == "delay":
            time.sleep(hurt.seconds)
        if hurt.kind == "cut":
            self._note(asked, None)
            self._upstream(asked, half=True)
            self.close_connection = True
            self.connection.close()
            return
        if self.proxy.older:
            asked = replace(asked, headers=_as_taken_by_an_older_one(asked.headers))
        status, headers, answered = self._upstream(asked)
        if self.proxy.older:
            answered = _as_told_by_an_older_one(answered)
        if hurt.kind == "drop":
            self._note(asked, None)
            self.close_connection = True
            self.connection.close()
            return
        self._note(asked, status)
        self._answer(status, headers, answered)

    def _note(self, asked: Seen, status: int | None) -> None:
        self.proxy.note(Seen(asked.method, asked.path, asked.headers, asked.body, status))

    def _upstream(self, asked: Seen, *, half: bool = False) -> tuple[int, Mapping[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.proxy.upstream, timeout=60)
        headers = {key: value for key, value in asked.headers.items() if key.lower() not in ("host", "connection")}
        try:
            if half:
                connection.putrequest(asked.method, asked.path)
                for key, value in headers.items():
                    connection.putheader(key, value)
                connection.endheaders(asked.body[: len(asked.body) // 2])
                return 0, {}, b""
            connection.request(asked.method, asked.path, asked.body or None, headers)
            answered = connection.getresponse()
            return answered.status, dict(answered.getheaders()), answered.read()
        except (OSError, http.client.HTTPException) as error:
            return 502, {}, str(error).encode()
        finally:
            connection.close()

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in headers.items():
            if key.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
