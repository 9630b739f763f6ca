"""A gate before a server: it lets everything through as it is, until an outage is to be had.

Before Postgres it can be led to another server, as a failover leads an address elsewhere. Before S3 it can answer in
the server's place, be silent, or cut. What it lets through it does not look at, so it is in nobody's way.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

CHUNK = 1 << 16
MOST_HEAD = 1 << 16


@dataclass(frozen=True)
class Outage:
    """What a request gets instead of the server's answer; `writes` alone, or all of them.

    Without a status it gets none: the gate is silent, or cuts the connection when `cuts`.
    """

    status: int = 0
    code: str = ""
    writes: bool = False
    cuts: bool = False

    def answer(self, method: str) -> bytes:
        """An S3 server's error; the answer to HEAD has no body."""
        body = f"<?xml version='1.0'?><Error><Code>{self.code}</Code><Message>{self.code}</Message></Error>".encode()
        head = (
            f"HTTP/1.1 {self.status} {self.code}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else body)

    def is_for(self, method: str, target: str) -> bool:
        """Whether it meets a request; a full store still deletes."""
        return not self.writes or method == "PUT" or (method == "POST" and "?delete" not in target)


class Gate:
    """One gate, on the loopback, before one port at a time."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._outage: Outage | None = None
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, port: int) -> None:
        """From now on connections go to another port; those there were are cut."""
        self._upstream = port
        self.cut_all()

    @contextlib.contextmanager
    def failing(self, outage: Outage) -> Iterator[None]:
        """Inside, requests get this; it begins with a cut, and so it ends."""
        self._outage = outage
        self.cut_all()
        try:
            yield
        finally:
            self._outage = None
            self.cut_all()

    def cut_all(self) -> None:
        """Cut every connection there is."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        _close(*sockets)

    def close(self) -> None:
        """Take no more, and cut what there is."""
        _close(self._listener)
        self.cut_all()

    def _accept(self) -> None:
        while self._listener.fileno() != -1:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._keep(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _keep(self, *sockets: socket.socket) -> None:
        for end in sockets:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._sockets.update(sockets)

    def _serve(self, client: socket.socket) -> None:
        outage = self._outage
        with contextlib.suppress(OSError):
            if outage is None:
                self._pass(client, b"")
            elif outage.cuts:
                client.recv(1)
            else:
                self._fail(client, outage)
        self._drop(client)

    def _fail(self, client: socket.socket, outage: Outage) -> None:
        """Answer one request, or none; what the outage is not about is passed on, one request a connection."""
        head, body = _read_head(client)
        method, target, *_ = [*head.split(b" ", 2), b"", b""]
        if not outage.is_for(method.decode(), target.decode()):
            # The header that ends the connection is no part of a request's signature.
            self._pass(client, head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
        elif outage.status:
            _read_rest(client, head, len(body))
            client.sendall(outage.answer(method.decode()))
            client.shutdown(socket.SHUT_WR)
            client.recv(CHUNK)
        else:
            while client.recv(CHUNK):  # silent until the client gives up, or the outage is over
                pass

    def _pass(self, client: socket.socket, first: bytes) -> None:
        server = socket.create_connection(("127.0.0.1", self._upstream))
        self._keep(server)
        server.sendall(first)
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()
        self._drop(server)

    def _drop(self, end: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(end)
        _close(end)


def _pump(source: socket.socket, to: socket.socket) -> None:
    """Everything from one end to the other, and its end too."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            to.sendall(data)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """A request's head, and what has come of its body."""
    received = b""
    while b"\r\n\r\n" not in received and len(received) < MOST_HEAD:
        data = client.recv(CHUNK)
        if not data:
            raise OSError("the client has gone")
        received += data
    head, end, body = received.partition(b"\r\n\r\n")
    return head + end, body


def _read_rest(client: socket.socket, head: bytes, received: int) -> None:
    """Take a body as far as its length is known, so that the client hears the answer and not a reset."""
    lengths = [line.split(b":", 1)[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if b"100-continue" in head.lower():
        return
    left = int(lengths[0]) - received if lengths else 0
    while left > 0 and (data := client.recv(min(CHUNK, left))):
        left -= len(data)


def _close(*sockets: socket.socket) -> None:
    for end in sockets:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
