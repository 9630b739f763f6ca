"""A TCP proxy before an S3 server that has outages.

While the store is well, bytes pass as they are, so signatures hold. While it is ill, every connection that there was is
cut, and every request on a new one gets what the illness says: an error of S3, silence, a cut, or nobody who listens.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Illness:
    """What a store does instead of what it is asked for."""

    name: str
    status: int = 0
    code: str = ""


INTERNAL_ERROR = Illness("500", 500, "InternalError")
UNAVAILABLE = Illness("503", 503, "ServiceUnavailable")
SLOW_DOWN = Illness("slow_down", 503, "SlowDown")
EXPIRED = Illness("expired", 403, "ExpiredToken")
DENIED = Illness("denied", 403, "AccessDenied")
UNKNOWN_KEY = Illness("unknown_key", 403, "InvalidAccessKeyId")
HANGS = Illness("hangs")
CUTS = Illness("cuts")
AWAY = Illness("away")
NO_BUCKET = Illness("no_bucket", 404, "NoSuchBucket")
"""Not one of EVERY: a destination without its bucket needs a person; the lake's own warehouse is not mounted."""
EVERY = (INTERNAL_ERROR, UNAVAILABLE, SLOW_DOWN, EXPIRED, DENIED, UNKNOWN_KEY, HANGS, CUTS, AWAY)


class StoreProxy:
    """The proxy. It runs in the test's own process, on loopback."""

    def __init__(self, endpoint: str) -> None:
        self._server_port = int(endpoint.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests = 0
        """How many requests met an illness."""
        self._illness: Illness | None = None
        self._falls_ill: tuple[re.Pattern[bytes], Illness] | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listen()

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self.port}"

    def fall_ill(self, illness: Illness) -> None:
        """From here on nothing passes."""
        self._illness = illness
        if illness == AWAY:
            _close(self._listener)
        self._cut_all()

    def fall_ill_at(self, request: bytes, illness: Illness) -> None:
        """Pass on until a request line is like that; from it on nothing passes."""
        self._falls_ill = (re.compile(request), illness)

    def recover(self) -> None:
        """From here on everything passes again."""
        self._falls_ill = None
        was, self._illness = self._illness, None
        if was == AWAY:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._listen()
        self._cut_all()

    def close(self) -> None:
        """Take no more, and cut what there is."""
        _close(self._listener)
        self._cut_all()

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _cut_all(self) -> None:
        with self._lock:
            left, self._open = self._open, set()
        for connection in left:
            _close(connection)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        illness = self._illness
        with contextlib.suppress(OSError):
            if illness is not None:
                self._suffer(client, illness)
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            with self._lock:
                self._open.add(server)
            threading.Thread(target=self._pass_answers, args=(server, client), daemon=True).start()
            while data := client.recv(1 << 16):
                if self._falls_ill is not None and self._falls_ill[0].search(data):
                    self.fall_ill(self._falls_ill[1])
                    self.requests += 1
                server.sendall(data)
            _close(server)
        _close(client)

    def _pass_answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        _close(server, client)

    def _suffer(self, client: socket.socket, illness: Illness) -> None:
        """Read one request; answer as the illness does, and end the connection."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = client.recv(1 << 16)
            if not data:
                _close(client)
                return
            head += data
        self.requests += 1
        if illness == HANGS:
            while client.recv(1 << 16):  # until the client has enough of it, or the store is well
                pass
        elif illness == CUTS:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            return
        else:
            self._refuse(client, illness, head)
        _close(client)

    def _refuse(self, client: socket.socket, illness: Illness, head: bytes) -> None:
        head, _, body = head.partition(b"\r\n\r\n")
        if b"100-continue" not in head.lower():
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            left = int(length[1]) - len(body) if length else 0
            while left > 0 and (data := client.recv(1 << 16)):
                left -= len(data)
        content = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{illness.code}</Code>'
            f"<Message>the store says {illness.code}</Message><RequestId>1</RequestId></Error>"
        ).encode()
        shown = b"" if head.startswith(b"HEAD ") else content
        client.sendall(
            f"HTTP/1.1 {illness.status} {illness.code}\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
            + shown
        )


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextlib.contextmanager
def store_before(endpoint: str) -> Iterator[StoreProxy]:
    """A proxy before the S3 server at this address."""
    proxy = StoreProxy(endpoint)
    try:
        yield proxy
    finally:
        proxy.close()
