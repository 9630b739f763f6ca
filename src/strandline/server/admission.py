"""Admission: who may begin, so that nobody takes everything and nothing piles up.

One actor has a bounded number of requests and bytes in flight; all together have a bounded number at work, and nobody
begins while the ledger itself is behind. How long one request takes says nothing about the others: a large body may be
decoded for long beside them. Who is refused is told when to come back, from what waits now and from how fast it went
lately.

What is counted of a body is what it decodes to, as it is decoded: a few kilobytes may be a hundred megabytes. All
requests of a process share one budget of memory, in which a decoded byte weighs as much as its rows take on their way
to the ledger. What fits in no more is refused at once; nothing waits with half of its body in memory.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from strandline.errors import Busy, TooLarge, TooManyRequests

WINDOW_S = 10.0
BEHIND_S = 5.0
"""A write that is not done after this long says that the ledger is behind."""

MIN_WAIT_S, MAX_WAIT_S = 1, 60

WEIGHT = 5
"""Bytes of memory for each decoded byte: the body, its rows as Arrow, as a payload, and as the database takes them."""


def retry_after_s(waiting: int, acks: int, window_s: float) -> int:
    """When to come back: the time that what waits will take at the pace of the last acks."""
    if acks == 0 or window_s <= 0:
        return MAX_WAIT_S if waiting else MIN_WAIT_S
    return max(MIN_WAIT_S, min(MAX_WAIT_S, math.ceil(waiting * window_s / acks)))


@dataclass
class Charge:
    """What one request has taken of its actor's bytes and of the process's memory; given back when it ends."""

    gate: Gate
    actor: str
    size_bytes: int = 0

    def grow(self, size_bytes: int) -> None:
        """Take more: so many bytes were read, or decoded. Any thread may call it."""
        self.gate.charge(self, size_bytes)


class Gate:
    """What is in flight, and what it is allowed to be."""

    def __init__(
        self,
        *,
        max_requests: int,
        max_bytes: int,
        process_bytes: int,
        queue: int,
        behind_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`behind_s` says for how long the ledger's oldest write has not been done."""
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._process_bytes = process_bytes
        self._queue = queue
        self._behind_s = behind_s
        self._clock = clock
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._lock = Lock()
        self._large: Charge | None = None
        self._working = 0
        self._acks: deque[float] = deque()

    @property
    def in_flight(self) -> int:
        """Requests that were admitted and are not answered."""
        return self._requests.total()

    @property
    def bytes_in_flight(self) -> int:
        """The decoded bytes of all requests that were admitted and are not answered."""
        return self._bytes.total()

    @contextmanager
    def admitted(self, actor: str, size_bytes: int) -> Iterator[Charge]:
        """Room for one request of an actor, until the block ends; all gates or none."""
        self._check(actor)
        charge = Charge(self, actor)
        self._requests[actor] += 1
        try:
            self.charge(charge, size_bytes)
            yield charge
        finally:
            with self._lock:
                self._large = None if self._large is charge else self._large
                self._requests[actor] -= 1
                self._bytes[actor] -= charge.size_bytes
                if not self._requests[actor]:
                    del self._requests[actor], self._bytes[actor]

    def charge(self, charge: Charge, size_bytes: int) -> None:
        """Count more bytes of a request, or refuse it; a request that never fits is too large.

        Two thirds of the room are for one request that does not fit beside the others. Without that, large bodies that
        are decoded at the same time would all be refused half-way, again and again.
        """
        with self._lock:
            own, actors, total = charge.size_bytes, self._bytes[charge.actor], self._bytes.total()
            room_bytes = self._process_bytes // WEIGHT
            shared_bytes = room_bytes // 3
            if own + size_bytes > room_bytes - shared_bytes:
                raise TooLarge(
                    f"the body has more than {room_bytes - shared_bytes} bytes when it is decoded, which this server "
                    "has no memory for",
                    hint="Send it in smaller pieces, or raise [admission] process_bytes.",
                    limit=room_bytes - shared_bytes,
                )
            shared = total - (0 if self._large is None else self._large.size_bytes)
            if charge is not self._large and shared + size_bytes > shared_bytes:
                if self._large is not None:
                    raise Busy(
                        f"the requests in flight have {total} bytes when they are decoded",
                        hint="Send the same request again after the time that Retry-After says.",
                        reason="bytes",
                        limit=room_bytes,
                    )
                self._large = charge
            if actors > own and actors + size_bytes > self._max_bytes:
                raise TooManyRequests(
                    f"{charge.actor!r} has {actors} bytes in flight", reason="bytes", limit=self._max_bytes
                )
            self._bytes[charge.actor] += size_bytes
            charge.size_bytes += size_bytes

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

    def _check(self, actor: str) -> None:
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
