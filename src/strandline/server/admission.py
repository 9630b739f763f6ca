"""Admission: who may begin, so that nobody takes everything and nothing piles up.

One actor has a bounded number of requests and bytes in flight; all together have a bounded number at work, and nobody
begins while the ledger itself is behind. How long one request takes says nothing about the others: a large body may be
decoded for long beside them. Who is refused is told when to come back, from what waits now and from how fast it went
lately. It is all counted on the event loop, so there is nothing to lock.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strandline.errors import Busy, TooManyRequests

WINDOW_S = 10.0
BEHIND_S = 5.0
"""A write that is not done after this long says that the ledger is behind."""

MIN_WAIT_S, MAX_WAIT_S = 1, 60


def retry_after_s(waiting: int, acks: int, window_s: float) -> int:
    """When to come back: the time that what waits will take at the pace of the last acks."""
    if acks == 0 or window_s <= 0:
        return MAX_WAIT_S if waiting else MIN_WAIT_S
    return max(MIN_WAIT_S, min(MAX_WAIT_S, math.ceil(waiting * window_s / acks)))


class Gate:
    """What is in flight, and what it is allowed to be."""

    def __init__(
        self,
        *,
        max_requests: int,
        max_bytes: int,
        queue: int,
        behind_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`behind_s` says for how long the ledger's oldest write has not been done."""
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._queue = queue
        self._behind_s = behind_s
        self._clock = clock
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._working = 0
        self._acks: deque[float] = deque()

    @property
    def in_flight(self) -> int:
        """Requests that were admitted and are not answered."""
        return self._requests.total()

    @contextmanager
    def admitted(self, actor: str, size_bytes: int) -> Iterator[None]:
        """Room for one request of an actor, until the block ends; both gates or neither."""
        self._check(actor, size_bytes)
        self._requests[actor] += 1
        self._bytes[actor] += size_bytes
        try:
            yield
        finally:
            self._requests[actor] -= 1
            self._bytes[actor] -= size_bytes
            if not self._requests[actor]:
                del self._requests[actor], self._bytes[actor]

    @contextmanager
    def working(self) -> Iterator[None]:
        """One request that is decoded and stored, or waits for it; its end counts as an ack when it was one."""
        self._working += 1
        try:
            yield
            self._acks.append(self._clock())
        finally:
            self._working -= 1

    def retry_after_s(self) -> int:
        """When somebody who is refused now should come back."""
        now = self._clock()
        while self._acks and self._acks[0] < now - WINDOW_S:
            self._acks.popleft()
        window_s = min(WINDOW_S, max(0.1, now - self._acks[0])) if self._acks else WINDOW_S
        return retry_after_s(self._working, len(self._acks), window_s)

    def _check(self, actor: str, size_bytes: int) -> None:
        if self._working >= self._queue or self._behind_s() > BEHIND_S:
            raise Busy(
                f"{self._working} requests wait for the ledger",
                hint="Send the same request again after the time that Retry-After says.",
                reason="ledger_behind",
            )
        if self._requests[actor] >= self._max_requests:
            raise TooManyRequests(
                f"{actor!r} has {self._requests[actor]} requests in flight",
                reason="in_flight",
                limit=self._max_requests,
            )
        if self._requests[actor] and self._bytes[actor] + size_bytes > self._max_bytes:
            raise TooManyRequests(
                f"{actor!r} has {self._bytes[actor]} bytes in flight", reason="bytes", limit=self._max_bytes
            )
