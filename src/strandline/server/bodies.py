"""The body of a request: read in time, within a limit, and decompressed within the same limit.

A sender is not trusted to be quick, to be honest about sizes, or to have something reasonable inside a small compressed
body. A body that is too large is stopped while it is read or decompressed, never afterwards.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import zstandard
from starlette.requests import ClientDisconnect, Request

from strandline.errors import BadRequest, RequestTimeout, TooLarge, Unsupported

SLOWEST_BYTES_S = 64 << 10
"""A sender that is faster than this is not timed out, however long the body is."""

MAX_WINDOW = 8 << 20
"""What RFC 9659 lets a sender ask of a receiver that decodes its body: memory that no length tells of."""

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
    """How many bytes a body says that it has as it is sent; 0 when it does not say, TooLarge when it is too many."""
    length = request.headers.get("content-length", "")
    size = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
    if size > limit:
        raise _too_large(limit, "")
    return size


class Arriving:
    """A body on its way: its pieces, as long as they come in time.

    A sender may be silent for `timeout_s`, and no longer, however much it sent before; on the average it has to send at
    `SLOWEST_BYTES_S`. What a silent sender has sent takes room from others.
    """

    def __init__(self, request: Request, timeout_s: float) -> None:
        self._pieces = request.stream()
        self._timeout_s = self._left_s = timeout_s

    async def piece(self) -> bytes | None:
        """The next one, None at the end. RequestTimeout if it takes too long, BadRequest if the client is gone."""
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        try:
            async with asyncio.timeout(self._left_s):
                piece = await anext(self._pieces, None)
        except TimeoutError:
            raise RequestTimeout(
                f"the body did not arrive in time: nothing for {self._timeout_s:g} s, or less than "
                f"{SLOWEST_BYTES_S >> 10} KiB a second"
            ) from None
        except ClientDisconnect:
            raise BadRequest("the client went away before its body had arrived") from None
        if piece is not None:
            earned_s = len(piece) / SLOWEST_BYTES_S
            self._left_s = min(self._timeout_s, self._left_s - (clock() - begun_s) + earned_s)
        return piece


async def read_body(arriving: Arriving, limit: int, grow: Grow) -> bytearray:
    """All bytes of a body, as they were sent; `grow` is told of each piece as it arrives, and may refuse it."""
    body = bytearray()
    while (piece := await arriving.piece()) is not None:
        if len(body) + len(piece) > limit:
            raise _too_large(limit, "")
        grow(len(piece))
        body += piece
    return body


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
        piece = bytes(body[at : at + step])
        try:
            got = machine.decompress(piece)
        except (zlib.error, zstandard.ZstdError) as error:
            raise BadRequest(f"the body is not {encoding}: {error}", hint="Does Content-Encoding fit?") from None
        if len(decoded) + len(got) > limit:
            raise _too_large(limit, " when it is decompressed")
        grow(len(got))
        decoded += got
        at += len(piece) - len(machine.unused_data)
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
