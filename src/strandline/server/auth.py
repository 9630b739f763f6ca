"""The actor behind a bearer token.

The actor comes from the token and from nowhere else. Tokens are looked up in memory, and the ledger is looked at again
every second, and at once when a token is not known: one that was just made works, and one that was revoked stops
working, without a restart.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from strandline.errors import Unauthorized
from strandline.ledger.ledger import Ledger
from strandline.ledger.tokens import list_tokens, token_hash

FRESH_S = 1.0

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]


class ValidTokens:
    """The valid tokens of a lake."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._actors: list[tuple[str, str]] = []
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def actor(self, secret: str, in_thread: InThread[list[tuple[str, str]]]) -> str:
        """The actor of a token; Unauthorized if it is not one, or not any more."""
        asked_at = time.monotonic()
        if asked_at - self._read_at > FRESH_S:
            await self._reload(asked_at, in_thread)
        actor = self._find(secret)
        if actor is None and self._read_at < asked_at:
            await self._reload(asked_at, in_thread)
            actor = self._find(secret)
        if actor is None:
            raise Unauthorized("the token is not valid")
        return actor

    async def _reload(self, asked_at: float, in_thread: InThread[list[tuple[str, str]]]) -> None:
        """Look at the ledger, unless another request did since this one came: wrong tokens share one look."""
        async with self._lock:
            if self._read_at < asked_at:
                begun = time.monotonic()
                self._actors = await in_thread(self._read)
                self._read_at = begun

    def _read(self) -> list[tuple[str, str]]:
        with self._ledger.read() as conn:
            return [(token.hash, token.actor) for token in list_tokens(conn) if token.revoked_at_us is None]

    def _find(self, secret: str) -> str | None:
        """Every token is compared, each in constant time: how long it takes tells nothing about what is close."""
        secret_hash = token_hash(secret)
        owner: str | None = None
        for stored_hash, actor in self._actors:
            if hmac.compare_digest(stored_hash, secret_hash):
                owner = actor
        return owner


def bearer(header: str | None) -> str:
    """The token in an Authorization header."""
    scheme, _, secret = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthorized("the request has no bearer token")
    return secret.strip()
