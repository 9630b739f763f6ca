"""A TCP proxy before Postgres that cuts connections at exact places.

It passes bytes on as they are and looks for texts in what clients send. When it finds what it was told to wait for, it
hurts that one connection, once: it cuts it before the server hears the words, or after the server has answered them, or
lets the words arrive when the client is long gone, or passes on half of them until it is told to go on, as a client
does that is stopped while it sends.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

How = Literal["before", "after", "late", "half"]


@dataclass(frozen=True)
class Place:
    """Where to hurt: at `words`, in a transaction in which `within` was said before."""

    within: bytes
    words: bytes
    how: How


class Wire:
    """The proxy. It runs in the test's own process, on loopback; `server_port` may become another server's."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.hurt = threading.Event()
        self.may_arrive = threading.Event()
        self.refuses = False
        self.accepted = 0
        self._place: Place | None = None
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def hurt_at(self, within: bytes, how: How, words: bytes = b"COMMIT") -> None:
        """Hurt the next connection that says `words` after it has said `within` in the same transaction."""
        self.hurt.clear()
        self.may_arrive.clear()
        self._place = Place(within, words, how)

    def cut_all(self) -> None:
        """Cut every connection there is."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            _close(*pair)

    def close(self) -> None:
        """Take no more, and cut what there is."""
        _close(self._listener)
        self.cut_all()

    def _accept(self) -> None:
        while True:
            client = None
            try:
                client, _ = self._listener.accept()
                self.accepted += 1
                if self.refuses:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                if client is None or self._listener.fileno() == -1:
                    return
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.add((client, server))
            answered = _Answers(client, server)
            threading.Thread(target=answered.run, daemon=True).start()
            threading.Thread(target=self._send, args=(client, server, answered), daemon=True).start()

    def _send(self, client: socket.socket, server: socket.socket, answered: _Answers) -> None:
        """From the client to the server."""
        said = b""
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                said = (b"" if _begins(data) else said) + data
                place = self._place
                if place is not None and place.words in data and place.within in said:
                    self._place = None
                    self._do(place.how, client, server, answered, data)
                    if place.how != "half":
                        return
                    continue
                server.sendall(data)
        _close(client, server)

    def _do(self, how: How, client: socket.socket, server: socket.socket, answered: _Answers, data: bytes) -> None:
        if how == "half":
            server.sendall(data[: len(data) // 2])
            self.hurt.set()
            self.may_arrive.wait(60)
            server.sendall(data[len(data) // 2 :])
            return
        if how == "after":
            answered.swallow = True
            server.sendall(data)
            assert answered.swallowed.wait(60), "the server did not answer"
        elif how == "late":
            _close(client)
            self.hurt.set()
            self.may_arrive.wait(60)
            answered.swallow = True
            server.sendall(data)
            answered.swallowed.wait(60)
        _close(client, server)
        self.hurt.set()


class _Answers:
    """From the server to the client, until the answers are to be kept from it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._client, self._server = client, server
        self.swallow = False
        self.swallowed = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(1 << 20):
                if self.swallow:
                    self.swallowed.set()
                    continue
                self._client.sendall(data)
        if not self.swallow:
            _close(self._client, self._server)
        self.swallowed.set()


def _begins(data: bytes) -> bool:
    return b"BEGIN" in data or b"ROLLBACK" in data


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextlib.contextmanager
def wire_before(port: int) -> Iterator[Wire]:
    """A proxy before the server at this port."""
    wire = Wire(port)
    try:
        yield wire
    finally:
        wire.close()
