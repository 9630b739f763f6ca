"""The body of a request: read in time, within a limit, and decompressed within the same limit.

Whoever sends is not trusted to be quick, to be honest about sizes, or to have something reasonable inside a small
compressed body. A body that is too large is stopped while it is read or decompressed, never afterwards.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import zstandard
from starlette.requests import ClientDisconnect, Request

from strandline.errors import BadRequest, RequestTimeout, TooLarge, Unsupported

SLOWEST_BYTES_S = 64 << 10
"""Whoever sends faster than this is not timed out, however long the body is."""

MAX_WINDOW = 8 << 20
"""What RFC 9659 lets a sender ask of whoever decodes a body: memory that no length tells of."""

Grow = Callable[[int], None]
"""Told of so many bytes more, before they are kept; it raises to refuse them."""


class _Machine(Protocol):
    """What zlib and zstandard have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _zstd() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()


def _gzip() -> Any:
    return zlib.decompressobj(wbits=31)


# How much is fed at once: both formats can say so much with a byte (32,768 and 1,032), so no more than 2 MiB come out.
_ENCODINGS: dict[str, tuple[Callable[[], _Machine], int]] = {"zstd": (_zstd, 64), "gzip": (_gzip, 2 << 10)}


def encoding_of(request: Request) -> str:
    """How the body is compressed, `identity` if it is not."""
    named = request.headers.get("content-encoding", "identity").strip().lower()
    if named not in (*_ENCODINGS, "identity"):
        raise Unsupported(
            f"the content encoding {named[:80]!r} is not supported", hint=f"Use {', '.join(_ENCODINGS)} or none."
        )
    return named


def content_type(request: Request) -> str:
    """The media type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def declared_bytes(request: Request, limit: int) -> int:
    """How many bytes a body says that it has as it is sent; 0 when it does not say."""
    length = request.headers.get("content-length", "")
    return min(int(length), limit) if length.isascii() and length.isdigit() else 0


async def read_body(request: Request, limit: int, timeout_s: float, grow: Grow) -> bytearray:
    """All bytes of a body, as they were sent; `grow` is told of those that it did not declare, and may refuse them.

    One that is too large is read to its end and thrown away, as long as that takes no longer than is allowed: a client
    that still writes when the connection is closed would not see the answer.
    """
    body = bytearray()
    size, declared = 0, declared_bytes(request, limit)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout(timeout_s) as clock:
            async for piece in request.stream():
                size += len(piece)
                if size <= limit:
                    grow(max(0, size - max(declared, len(body))))
                    body += piece
                    clock.reschedule(begun + timeout_s + size / SLOWEST_BYTES_S)
                else:
                    body.clear()
                    if size > 4 * limit:
                        break
    except TimeoutError:
        if size <= limit:
            raise RequestTimeout(f"the body did not arrive within {timeout_s:g} s") from None
    except ClientDisconnect:
        raise BadRequest("the client went away before its body had arrived") from None
    if size > limit:
        raise _too_large(limit, "")
    return body


async def throw_away(request: Request, limit: int, timeout_s: float) -> None:
    """Read a body that was refused: a client that still writes when the connection is closed sees no answer."""
    size = 0
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                size += len(piece)
                if size > limit:
                    break


def decompressed(body: bytearray, encoding: str, limit: int, grow: Grow) -> bytearray:
    """The body as it was before it was compressed; TooLarge as soon as it would be, or what `grow` says.

    `body` is emptied: neither form of it is needed twice, and both would take room until the request ends.
    """
    if encoding == "identity":
        return body
    make, step = _ENCODINGS[encoding]
    decoded = bytearray()
    at = 0
    machine: _Machine | None = None
    while at < len(body):
        machine = machine or make()
        given = bytes(body[at : at + step])
        try:
            got = machine.decompress(given)
        except (zlib.error, zstandard.ZstdError) as error:
            raise BadRequest(f"the body is not {encoding}: {error}", hint="Does Content-Encoding fit?") from None
        if len(decoded) + len(got) > limit:
            raise _too_large(limit, " when it is decompressed")
        grow(len(got))
        decoded += got
        at += len(given) - len(machine.unused_data)
        if machine.eof:
            machine = None
    if machine is not None:
        raise BadRequest(f"the body ends in the middle of its {encoding} data", hint="Send all of it again.")
    body.clear()
    return decoded


def _too_large(limit: int, when: str) -> TooLarge:
    return TooLarge(
        f"the body is larger than {limit} bytes{when}",
        hint="Send it in smaller pieces, or raise [server] max_body.",
        limit=limit,
    )
