"""Running the application: a socket, uvicorn, and an end that loses nothing.

On SIGTERM or SIGINT it stops accepting, finishes what is in flight, and returns. The socket is bound here and not by
uvicorn, so that a port that is taken is one of our errors, and port 0 can be told.
"""

from __future__ import annotations

import ctypes
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI

from strandline.errors import Environment
from strandline.lake import Lake
from strandline.server.app import create_app
from strandline.server.protocol import MAX_HEADERS, limited_to

GRACE_S = 20

_M_MMAP_THRESHOLD, LARGE_BYTES = -3, 1 << 20


def serve(lake: Lake, listen: str, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal; `on_ready` is told the address once requests are answered."""
    _give_large_memory_back()
    bound = _bind(listen)
    config = configured(create_app(lake), lake.config.server.max_connections)
    with _signals_end_quietly(), bound:
        _Server(config, lambda: on_ready(_address(bound))).run(sockets=[bound])


def configured(app: FastAPI, max_connections: int) -> uvicorn.Config:
    """How uvicorn runs the application."""
    return uvicorn.Config(
        app,
        http=limited_to(max_connections),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADERS,
        log_config=None,
        access_log=False,
        lifespan="on",
        proxy_headers=False,  # a client's address is its connection's, and not what a header says
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


class _Server(uvicorn.Server):
    """Uvicorn's server, telling when it is ready."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it, and then say so."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def _give_large_memory_back() -> None:
    """Let glibc map what is larger than this on its own, and so return it when it is free.

    It raises that limit to 32 MiB by itself, and then the bodies of one flood leave holes that those of the next don't
    fit in: the process grew past its budget by 100 MiB and more (`bench/bodies.py`). Elsewhere there is no such word.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def _bind(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise Environment(
            f"can't listen on {listen}: {error.strerror or error}",
            hint="Is another server running there? `--listen HOST:PORT` names another place.",
        ) from error
    return bound


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """Uvicorn raises the signal that ended it once more when it is done; by then everything is in order."""

    def nothing(_number: int, _frame: Any) -> None:
        pass

    before = {number: signal.signal(number, nothing) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
