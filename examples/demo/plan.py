"""Who offers which messages: three live captures, and a backfill that offers some of the same ones again.

Every process computes the same plan from the same two numbers, so nothing but these has to be handed around, and a
writer that was killed finds its place again by counting its acked batches.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice

from examples.demo.messages import Row, messages, part_id, session_length

LIVE = ("live-1", "live-2", "live-3")
BACKFILL = "backfill"
WRITERS = (*LIVE, BACKFILL)

LEAST_ROWS = 1_000
# Of all rows a tenth is offered twice: by a live capture, and by the backfill.
REPEATED_SHARE = 10


@dataclass(frozen=True)
class Session:
    """A session, and how many of its messages are offered."""

    session_id: str
    messages: int


@dataclass(frozen=True)
class Share:
    """What one writer offers: sessions one after another, cut into batches."""

    writer: str
    sessions: tuple[Session, ...]
    batch_rows: int

    @property
    def rows(self) -> int:
        """How many rows there are in all."""
        return sum(session.messages for session in self.sessions)

    @property
    def batches(self) -> int:
        """How many batches these are."""
        return -(-self.rows // self.batch_rows)

    def part_ids(self, number: int) -> list[str]:
        """The row keys of a batch; cheaper than its rows."""
        return [
            part_id(session.session_id, n) for session, first, stop in self._pieces(number) for n in range(first, stop)
        ]

    def batch(self, number: int) -> list[Row]:
        """The rows of a batch, the same ones whenever it is asked for."""
        return [
            row
            for session, first, stop in self._pieces(number)
            for row in islice(messages(session.session_id, stop), first, None)
        ]

    def _pieces(self, number: int) -> Iterator[tuple[Session, int, int]]:
        """The sessions that a batch touches, each with the range of messages."""
        ends = list(accumulate(session.messages for session in self.sessions))
        start, end = number * self.batch_rows, min((number + 1) * self.batch_rows, self.rows)
        at = bisect_right(ends, start)
        while start < end:
            session, base = self.sessions[at], ends[at] - self.sessions[at].messages
            stop = min(end, ends[at])
            yield session, start - base, stop - base
            start, at = stop, at + 1


def plan(rows: int, seed: int) -> dict[str, Share]:
    """Everybody's share of `rows` rows."""
    assert rows >= LEAST_ROWS, f"a plan has at least {LEAST_ROWS} rows"
    batch_rows = max(20, min(400, rows // 100))
    repeated = rows // REPEATED_SHARE
    quarter = rows // len(WRITERS)
    live = {writer: _sessions(writer, seed, quarter) for writer in LIVE}
    own = _sessions(BACKFILL, seed, rows - quarter * len(LIVE) - repeated)
    again = _cut(_shuffled([session for of in live.values() for session in of], seed), repeated)
    shares = {**live, BACKFILL: _shuffled([*own, *again], seed)}
    return {writer: Share(writer, tuple(sessions), batch_rows) for writer, sessions in shares.items()}


def _sessions(writer: str, seed: int, rows: int) -> list[Session]:
    """New sessions with this many messages in all."""
    return _cut((_session(f"{seed}/{writer}/{n}") for n in range(rows)), rows)


def _session(name: str) -> Session:
    session_id = "ses_" + hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
    return Session(session_id, session_length(session_id))


def _cut(sessions: Iterator[Session] | list[Session], rows: int) -> list[Session]:
    """The first sessions, as many as have this many messages; the last one may be cut short."""
    taken: list[Session] = []
    for session in sessions:
        if rows <= 0:
            break
        taken.append(Session(session.session_id, min(session.messages, rows)))
        rows -= session.messages
    return taken


def _shuffled(sessions: list[Session], seed: int) -> list[Session]:
    return random.Random(f"order {seed}").sample(sessions, len(sessions))
