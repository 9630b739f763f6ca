"""A connection whose headers don't arrive is given up.

Uvicorn waits for the headers of a request for as long as the client likes, and a body's time only begins when they are
there. Whoever opens connections and says nothing, or a letter a minute, would hold them for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 30.0
MAX_HEADERS = 256 << 10
"""A stream's name holds the values of its partition, which may be long."""


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with a time limit on every request's headers."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """The clock starts with the connection."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop()
        super().connection_lost(exc)

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

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._stop()
        self._waiting = self.loop.call_later(HEADERS_S, self.transport.close)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
