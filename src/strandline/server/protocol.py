"""What uvicorn does before there is a request: how long it waits for one, and what it says to what is none.

Uvicorn waits for the headers of a request for as long as the client likes, and a body's time only begins when they are
there. A client that opens connections and says nothing, or a letter a minute, or never reads an answer, would hold them
for ever. And one that opens more of them than a process may have would keep all others out: past a limit, the
connection that has waited longest for a request is closed; a client that means to ask something asks sooner.

What can't be read as HTTP never comes to the application, so it is refused here, in the shape of every other refusal.
"""

from __future__ import annotations

import asyncio
import math

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

from strandline.errors import BadRequest

HEADERS_S = 30.0
MAX_HEADERS = 256 << 10
"""A stream's name holds the values of its partition, which may be long."""


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with a time limit on every request's headers, and a limit of connections."""

    max_connections = 512
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """The clock starts with the connection."""
        super().connection_made(transport)
        self._wait()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read its answers: so much of them is held here, and for so long."""
        super().pause_writing()
        self._unread = self.loop.call_later(HEADERS_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads them again."""
        self._is_read()
        super().resume_writing()

    def handle_events(self) -> None:
        """It stops with the first request."""
        super().handle_events()
        if self._is_answering():
            self._stop()

    def on_response_complete(self) -> None:
        """And starts again for the next one."""
        super().on_response_complete()
        if not self._is_answering():
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP request; `msg` is uvicorn's, and always the same.

        They may come behind a request that is being answered, or has been: then there is nothing left to say on this
        connection, and what the application still says goes nowhere.
        """
        if self._is_answering():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        error = BadRequest("this is not an HTTP/1.1 request", hint="GET /openapi.json describes every request.")
        body = orjson.dumps({"error": error.as_dict()})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        answer = h11.Response(status_code=error.http_status, headers=headers, reason=b"Bad Request")
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has waited longest for a request, if there are too many."""
        if len(self.connections) <= self.max_connections:
            return
        open_lines = [line for line in self.connections if not line.transport.is_closing()]
        waiting = [line for line in open_lines if isinstance(line, ImpatientProtocol) and line._waiting is not None]
        if len(open_lines) > self.max_connections and waiting:
            min(waiting, key=ImpatientProtocol._waits_until).transport.close()

    def _waits_until(self) -> float:
        return math.inf if self._waiting is None else self._waiting.when()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._stop()
        self._waiting = self.loop.call_later(HEADERS_S, self.transport.close)

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def limited_to(connections: int) -> type[ImpatientProtocol]:
    """The protocol of a server that has no more than so many connections."""
    return type("LimitedProtocol", (ImpatientProtocol,), {"max_connections": connections})
