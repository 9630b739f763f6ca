"""What time it is, for whatever deletes or forgets by time.

Every stamp in the ledger is the ledger's own time, which never goes back: one write under a clock that was ahead moves
it for good. So the ledger's time may say that a grace is over that has hardly begun. What deletes or forgets asks here
instead, and gets the time of day: this machine's, or the database's and the store's where those are earlier. A time of
day that lies more than an hour before the ledger's is one of two wrong ones, and nothing can tell which. Then deletions
wait, until it has caught up or a person has said that it is right. A stamp from the future only keeps things longer.

A clock that is ahead can't be told from a lake that was idle, but for a second clock that disagrees.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import Connection, select, text, update

from strandline.errors import ClockBehind
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.times import span_of, text_of

BEHIND_S = 3600
"""A clock so far behind the ledger's time decides no deletion: daylight saving and drift are less."""

HINT = (
    "Compare this machine's clock with a time server (`timedatectl`, `chronyc tracking`). If it is right, a writer's "
    "was ahead: `strand doctor --fix` lets deletions go by this clock from then on. Nothing else waits."
)


@dataclass(frozen=True)
class Clock:
    """The earliest of the clocks that were asked, and the latest time that the ledger knows of.

    `reached_us` is the ledger's time; after a person's word, the latest time of day that a writer has had since then.
    """

    now_us: int
    reached_us: int

    @property
    def behind_s(self) -> float:
        """How far the time of day lies before the ledger's."""
        return max(0, self.reached_us - self.now_us) / 1e6

    @property
    def is_behind(self) -> bool:
        """Whether it is too far behind to delete anything by it."""
        return self.behind_s > BEHIND_S

    def deletion_us(self, what: str) -> int:
        """The time that deletions go by; ClockBehind, which names `what` waits, when there is none."""
        if self.is_behind:
            raise ClockBehind(
                f"{what} waits: it is {text_of(self.now_us)} by the clock, and {text_of(self.reached_us)} by the "
                f"ledger, {span_of(self.behind_s)} later",
                hint=HINT,
                behind_s=round(self.behind_s, 1),
            )
        return self.now_us


def read_clock(conn: Connection, *elsewhere_us: int) -> Clock:
    """Look at the clocks: this machine's, the database's if it has one, and what others said just now."""
    counter = db.counter.c
    last_at_us, wall_from_us = conn.execute(select(counter.last_at_us, counter.wall_from_us)).one()
    server_us = server_at_us(conn)
    clocks = [time.time_ns() // 1000, *elsewhere_us, *([] if server_us is None else [server_us])]
    return Clock(min(clocks), last_at_us if wall_from_us is None else wall_from_us)


def forgetting_us(conn: Connection, *elsewhere_us: int) -> int | None:
    """The time to forget by; None while nothing may be forgotten, for what can as well be forgotten later."""
    clock = read_clock(conn, *elsewhere_us)
    return None if clock.is_behind else clock.now_us


def grace_end_us(conn: Connection, now_us: int | None, grace_s: float) -> int | None:
    """What was let go before this has had its grace; None while no grace can end, because the clock can't be trusted.

    Without a grace time decides nothing: everything was let go before the ledger's time, whatever the clock says.
    """
    if grace_s <= 0:
        return int(conn.execute(select(db.counter.c.last_at_us)).scalar_one()) + 1
    return None if now_us is None else now_us - int(grace_s * 1_000_000)


def server_at_us(conn: Connection) -> int | None:
    """The clock of the database's host; None where the database is a file."""
    if conn.dialect.name == "sqlite":
        return None
    return int(conn.execute(text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")).scalar_one())


def trust_clock(txn: Txn) -> Clock | None:
    """Let deletions go by the clock although it is behind, because a person says it is right; None where it is not.

    The ledger's own time stays where it is. A writer whose clock passes it takes the word back (`ledger.py`): from then
    on the two agree, or another clock is ahead.
    """
    clock = read_clock(txn.conn)
    if not clock.is_behind:
        return None
    txn.conn.execute(update(db.counter).values(wall_from_us=clock.now_us))
    return clock
