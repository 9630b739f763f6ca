"""Admission: which requests may begin, so that no actor takes everything and nothing piles up.

One actor has a bounded number of requests and bytes in flight; all together have a bounded number at work, and none
begins while the ledger itself is behind. How long one request takes says nothing about the others: a large body may be
decoded for long beside them. A refused client is told when to come back, from what waits now and from how fast it went
lately.

What is counted of a body is what has arrived of it, and then what it decodes to, as it is decoded: a few kilobytes may
be a hundred megabytes, and a length that is only declared takes no room from others. All requests of a process share
one budget of memory, in which a decoded byte weighs as much as its rows take on their way to the ledger. What fits in
no more is refused at once; nothing waits with half of its body in memory.

A third of the budget is shared: there an actor holds no more than it leaves free, whatever it opens. One actor alone
gets half of it, two a third each, and the next one always finds some room. The rest is for one request that does
not fit there. Without that, large bodies that arrive at the same time would all be refused half-way, again and again.
An actor that held this place while others wanted it lets them go first, and gives it up when its body is still on its
way a few times as long after that as a sender may be silent.
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


@dataclass(eq=False)
class Charge:
    """What one request has taken of its actor's bytes and of the process's memory; given back when it ends."""

    gate: Gate
    actor: str
    size_bytes: int = 0

    def arrived(self, size_bytes: int) -> None:
        """Take room for so many bytes that have arrived."""
        self.gate.charge(self, size_bytes, arriving=True)

    def decoded(self, size_bytes: int) -> None:
        """Take room for so many bytes that were decoded. Any thread may call it."""
        self.gate.charge(self, size_bytes, arriving=False)


class LargePlace:
    """The place for one request that does not fit in the shared part of the budget, and whose turn it is."""

    def __init__(self, patience_s: float, clock: Callable[[], float]) -> None:
        """`patience_s` is for how long a body may still arrive there while another actor wants the place."""
        self.holder: Charge | None = None
        self._patience_s = patience_s
        self._clock = clock
        self._wanted_since: float | None = None
        self._others_first: tuple[str, float] | None = None
        """The actor that had the place while others wanted it, and until when they go first."""

    @property
    def size_bytes(self) -> int:
        """What its holder has."""
        return 0 if self.holder is None else self.holder.size_bytes

    def size_bytes_of(self, actor: str) -> int:
        """What its holder has, if that is this actor's request."""
        return self.size_bytes if self.holder is not None and self.holder.actor == actor else 0

    def take(self, charge: Charge) -> bool:
        """Whether this request has the place now."""
        if self.holder is not None:
            if self.holder.actor != charge.actor and self._wanted_since is None:
                self._wanted_since = self._clock()
            return False
        if self._others_first is not None:
            actor, until_s = self._others_first
            if actor == charge.actor and self._clock() < until_s:
                return False
        self.holder, self._others_first = charge, None
        return True

    def is_due(self) -> bool:
        """Whether its holder has had the place for long enough after another actor wanted it."""
        return self._wanted_since is not None and self._clock() - self._wanted_since > self._patience_s

    def leave(self, charge: Charge) -> None:
        """Free the place if this request has it; those refused meanwhile were told to come back by then."""
        if self.holder is charge:
            is_wanted = self._wanted_since is not None
            self._others_first = (charge.actor, self._clock() + MAX_WAIT_S) if is_wanted else None
            self.holder = self._wanted_since = None


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
        patience_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`behind_s` says for how long the ledger's oldest write has not been done."""
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._room_bytes = process_bytes // WEIGHT
        self._shared_bytes = self._room_bytes // 3
        self._queue = queue
        self._behind_s = behind_s
        self._clock = clock
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._lock = Lock()
        self._large = LargePlace(patience_s, clock)
        self._working = 0
        self._acks: deque[float] = deque()

    @property
    def in_flight(self) -> int:
        """Requests that were admitted and are not answered."""
        return self._requests.total()

    @property
    def bytes_in_flight(self) -> int:
        """The bytes of all requests that were admitted and are not answered, as far as they are here."""
        return self._bytes.total()

    @contextmanager
    def admitted(self, actor: str, declared_bytes: int = 0) -> Iterator[Charge]:
        """A place for one request of an actor, until the block ends. What it declares is not counted, only judged."""
        self._check(actor)
        self._check_size(declared_bytes)
        charge = Charge(self, actor)
        self._requests[actor] += 1
        try:
            yield charge
        finally:
            with self._lock:
                self._large.leave(charge)
                self._requests[actor] -= 1
                self._bytes[actor] -= charge.size_bytes
                if not self._requests[actor]:
                    del self._requests[actor], self._bytes[actor]

    def charge(self, charge: Charge, size_bytes: int, *, arriving: bool) -> None:
        """Count more bytes of a request, or refuse it; a request that never fits is too large."""
        with self._lock:
            self._check_size(charge.size_bytes + size_bytes)
            if charge is self._large.holder:
                if arriving and self._large.is_due():
                    raise self._no_room()
            elif not self._fits_beside_others(charge, size_bytes) and not self._large.take(charge):
                raise self._no_room()
            of_actor = self._bytes[charge.actor]
            if of_actor > charge.size_bytes and of_actor + size_bytes > self._max_bytes:
                raise TooManyRequests(
                    f"{charge.actor!r} has {of_actor} bytes in flight", reason="bytes", limit=self._max_bytes
                )
            self._bytes[charge.actor] += size_bytes
            charge.size_bytes += size_bytes

    def _fits_beside_others(self, charge: Charge, size_bytes: int) -> bool:
        """Whether its actor then holds no more of the shared part than it leaves free."""
        of_actor = self._bytes[charge.actor] - self._large.size_bytes_of(charge.actor)
        shared = self._bytes.total() - self._large.size_bytes
        return of_actor + size_bytes <= self._shared_bytes - (shared + size_bytes)

    def _check_size(self, size_bytes: int) -> None:
        most_bytes = self._room_bytes - self._shared_bytes
        if size_bytes > most_bytes:
            raise TooLarge(
                f"the body has more than {most_bytes} bytes when it is decoded, which this server has no memory for",
                hint="Send it in smaller pieces, or raise [admission] process_bytes.",
                limit=most_bytes,
            )

    def _no_room(self) -> Busy:
        return Busy(
            f"the requests in flight have {self._bytes.total()} bytes when they are decoded",
            hint="Send the same request again after the time that Retry-After says.",
            reason="bytes",
            limit=self._room_bytes,
        )

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
        """When a client that is refused now should come back."""
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
