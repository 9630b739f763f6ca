"""The connections of one process to Postgres: few, opened on demand, and given back.

Postgres has a fixed number of connections for all. A process that kept what it once opened would shut others out for
good. So a process has one connection to write, because writers queue for the counter anyway, and a few to read; those
that are idle for some seconds are closed. Threads queue for them in the order in which they came.

Now and then a connection counts how many the server has left. When there are hardly any, the server is crowded, and no
process keeps a connection: it is opened for one transaction and closed behind it, so that all processes have their
turns. A connection that finds itself among the last ones closes at once: those are left for a person. If others than us
hold the server that full for long, one of the last is taken all the same.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from traceback import clear_frames
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from strandline.errors import Busy

READS, WRITES = 4, 1
"""How many connections a process has of each kind, at most."""
IDLE_S = 5.0
"""How long an unused connection stays open."""
LOOK_S = 1.0
"""How often a process looks how crowded the server is, while it uses its connections."""
CROWDED_S = 3.0
"""How long a server counts as crowded after it was seen so."""
YIELDING_S = 10.0
"""How long the last connections are left to others."""
TURN_WAIT_S = 30.0
"""How long a thread waits for the other threads of its process."""
PAUSE_S, LONG_PAUSE_S = 0.05, 1.0


class NotYet(Exception):
    """Postgres answered, and has nothing for us at present; `error` is for a caller that can't wait longer."""

    def __init__(self, error: Busy) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True)
class Room:
    """What a server says of itself to one connection, counting that one."""

    spare: int
    """How many more may be opened; below zero, this one is among the last that are left for a person."""
    is_standby: bool


class Crowd:
    """How crowded the server is, as far as this process knows."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self._seen_s = 0.0
        self.members: list[Connections] = []

    @property
    def is_crowded(self) -> bool:
        """Whether connections should be used for one transaction each."""
        return time.monotonic() < self._until_s

    @property
    def is_old(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() > self._seen_s + LOOK_S

    def note(self, room: Room) -> None:
        """Remember what a connection saw. Where no more may be opened, others may be waiting for ours."""
        self._seen_s = time.monotonic()
        if room.spare <= 0:
            self.note_full()

    def note_full(self) -> None:
        """Remember that the server had none, and give back what is not in use."""
        self._seen_s = time.monotonic()
        self._until_s = self._seen_s + CROWDED_S * random.uniform(0.5, 1.5)
        for member in self.members:
            member.close_idle()


@dataclass
class Pause:
    """Longer each time, and not the same for all threads that were refused at the same moment."""

    tries: int = 0

    def wait(self) -> None:
        """Sleep."""
        time.sleep(min(LONG_PAUSE_S, PAUSE_S * 2**self.tries) * random.uniform(0.5, 1.5))
        self.tries += 1


@dataclass(eq=False)
class Turn:
    """A thread's right to a connection, and the connection while it has one."""

    thread: int = field(default_factory=threading.get_ident)
    counts: bool = True
    """Whether another thread has to wait until it is over."""
    has_come: threading.Event = field(default_factory=threading.Event)
    lent: Connection | None = None

    @property
    def conn(self) -> Connection:
        """The connection, of a turn in which one was taken."""
        assert self.lent is not None, "no connection was taken"
        return self.lent


@dataclass(eq=False)
class Connections:
    """The connections of one kind: those that read, or those that write."""

    engine: Engine
    most: int
    crowd: Crowd
    from_standby: bool
    """Whether a server that is a copy of another will do."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: deque[Turn] = field(default_factory=deque)
    _turns: list[Turn] = field(default_factory=list)
    _idle: list[tuple[float, Connection]] = field(default_factory=list)
    _reaper: threading.Thread | None = None
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self.crowd.members.append(self)

    # -- turns of threads ----------------------------------------------------------------------------------------------

    def begin(self) -> Turn:
        """Wait until this thread may have a connection. One that has one already would wait for itself."""
        mine = Turn()
        with self._lock:
            mine.counts = all(turn.thread != mine.thread for turn in self._turns)
            if not mine.counts or (not self._waiting and self._taken() < self.most):
                self._turns.append(mine)
                return mine
            self._waiting.append(mine)
        if not mine.has_come.wait(TURN_WAIT_S):
            with self._lock:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                    raise _all_in_use(self.most)
        return mine

    def end(self, turn: Turn) -> None:
        """Keep the connection for the next one, or close it, and let the thread come that has waited longest."""
        self._give_back(turn)
        with self._lock:
            self._turns.remove(turn)
            if self._waiting and self._taken() < self.most:
                longest = self._waiting.popleft()
                self._turns.append(longest)
                longest.has_come.set()

    def _taken(self) -> int:
        return sum(turn.counts for turn in self._turns)

    # -- connections, of a thread whose turn it is ---------------------------------------------------------------------

    def take(self, turn: Turn, *, is_patient: bool) -> Connection:
        """The connection that the turn has, one that is idle, or a new one.

        A caller that is not patient any more takes one of the last too.
        """
        with self._lock:
            if turn.lent is None and self._idle:
                turn.lent = self._idle.pop()[1]
        if turn.lent is None:
            turn.lent = self._open(is_patient)
        return turn.lent

    def drop(self, turn: Turn) -> None:
        """Close the connection in the middle of a turn."""
        if turn.lent is not None:
            _close(turn.lent)
            turn.lent = None

    def _open(self, is_patient: bool) -> Connection:
        if self.crowd.is_crowded:
            time.sleep(random.uniform(0, 2 * PAUSE_S))  # a process that has had a turn lets the others have theirs
        try:
            conn = self.engine.connect()
        except DBAPIError as error:
            _let_go(error)
            raise
        try:
            room = room_of(conn)
            self.crowd.note(room)
            if room.is_standby and not self.from_standby:
                raise NotYet(standby())
            if room.spare < 0 and is_patient:
                raise NotYet(too_many("the last ones are left for a person"))
        except BaseException:
            _close(conn)
            raise
        return conn

    def _give_back(self, turn: Turn) -> None:
        conn, turn.lent = turn.lent, None
        if conn is None:
            return
        if self._is_worth_keeping(conn):
            with self._lock:
                if not self._is_closed:
                    self._idle.append((time.monotonic(), conn))
                    self._watch()
                    return
        _close(conn)

    def _is_worth_keeping(self, conn: Connection) -> bool:
        """End what is open, and say whether the connection is alive, and the server has enough of them."""
        with suppress(Exception):
            if conn.in_transaction():
                conn.rollback()
            if conn.closed or conn.invalidated:
                return False
            driver: Any = conn.connection.driver_connection
            if driver.closed:
                return False
            if self.crowd.is_old:
                self.crowd.note(_look(driver))
            return not self.crowd.is_crowded
        return False

    # -- idle connections ----------------------------------------------------------------------------------------------

    def close_idle(self) -> None:
        """Close the unused ones: they are as dead as one that was just found dead, or others need them."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, conn in idle:
            _close(conn)

    def close(self) -> None:
        """Close all of them; those in use when they are given back."""
        self._is_closed = True
        self.close_idle()

    def _watch(self) -> None:
        """See to it that what is idle is closed; there is no thread while nothing is idle."""
        if self._reaper is None:
            self._reaper = threading.Thread(target=self._reap, name="strand-idle", daemon=True)
            self._reaper.start()

    def _reap(self) -> None:
        while True:
            with self._lock:
                if not self._idle:
                    self._reaper = None
                    return
                due_s = self._idle[0][0] + IDLE_S - time.monotonic()
                conn = self._idle.pop(0)[1] if due_s <= 0 else None
            if conn is None:
                time.sleep(due_s)
            else:
                _close(conn)


# -- what a server says of itself --------------------------------------------------------------------------------------

# Of a server's connections a twentieth, up to five, is left. A limit of a role or of a database leaves none: a person
# has another role.
LOOK = """
SELECT pg_is_in_recovery(), least(
    m.most - m.reserved - least(5, greatest(1, m.most / 20)) - count(*),
    CASE WHEN r.rolconnlimit >= 0 THEN r.rolconnlimit - count(*) FILTER (WHERE a.usesysid = r.oid) END,
    CASE WHEN d.datconnlimit >= 0 THEN d.datconnlimit - count(*) FILTER (WHERE a.datid = d.oid) END)
FROM (SELECT current_setting('max_connections')::int AS most,
             current_setting('superuser_reserved_connections')::int
             + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved) m,
     pg_roles r, pg_database d, pg_stat_activity a
WHERE a.datid IS NOT NULL AND r.rolname = session_user AND d.datname = current_database()
GROUP BY m.most, m.reserved, r.oid, r.rolconnlimit, d.oid, d.datconnlimit
"""


def read_room(row: tuple[bool, int]) -> Room:
    """The answer to LOOK."""
    is_standby, spare = row
    return Room(int(spare), bool(is_standby))


def room_of(conn: Connection) -> Room:
    """What was seen when the connection was opened."""
    room = conn.info["strand_room"]
    assert isinstance(room, Room)
    return room


def _look(driver: Any) -> Room:
    driver.autocommit = True
    try:
        return read_room(driver.execute(LOOK).fetchone())
    finally:
        driver.autocommit = False


def _let_go(error: DBAPIError) -> None:
    """Close what a failed attempt has opened.

    The driver leaves the socket of one that took too long to the collector of garbage. The server may have taken it
    meanwhile, and a process that is idle collects nothing.
    """
    for failed in (error, error.orig):
        if failed is not None:
            clear_frames(failed.__traceback__)


def _close(conn: Connection) -> None:
    with suppress(Exception):
        if conn.in_transaction():
            conn.rollback()
    with suppress(Exception):
        conn.close()


def too_many(what: str) -> Busy:
    """The error of a caller that got no connection."""
    return Busy(
        f"the ledger's database has no connection left for this process: {what}",
        hint="Raise max_connections, or run fewer processes; `select * from pg_stat_activity` shows who has them.",
        reason="ledger_behind",
    )


def standby() -> Busy:
    """The error of a writer on a server that takes no writes."""
    return Busy(
        "the ledger's database takes no writes: it is a standby, and none was made the primary yet",
        hint="A failover passes. If this is none: promote it, or name the primary, or all hosts, in the ledger's URL.",
        reason="ledger_behind",
    )


def _all_in_use(most: int) -> Busy:
    return Busy(
        f"other threads of this process have had its {'connection' if most == 1 else f'{most} connections'} of this "
        f"kind to the ledger's database for {TURN_WAIT_S:.0f} s",
        reason="ledger_behind",
    )
