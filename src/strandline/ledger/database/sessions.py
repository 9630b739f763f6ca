"""Reads and writes on Postgres, over connections that may be cut and a server that may be away.

A connection to Postgres may be cut at any moment. Before a transaction's first statement was answered nothing has
happened, and another connection is taken. After that the transaction is gone, and its error says so (`was_undone`): a
caller that can run it again does. Only when the answer to a COMMIT is lost is its outcome unknown; then the database is
asked, under the lock which that transaction held, so that it can't be still on its way.

A transaction that is sent whole (`write_at_once`) has nothing to ask by before its only answer. Its sender must be able
to find what it stored, and to have a late one refused: an append does both by the ids of its batches.

A server that restarts, recovers, has no connection left or is a standby that was not promoted yet is waited for. The
first time of all a server that can't be reached is not: a person who types a wrong host should not wait to be told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from strandline.errors import Busy, StrandError
from strandline.ledger.database import postgres
from strandline.ledger.database.connections import READS, WRITES, YIELDING_S, Connections, Crowd, NotYet, Pause, Turn
from strandline.ledger.database.outcomes import UNDONE, may_be_there
from strandline.ledger.database.pipeline import Row
from strandline.ledger.database.prepared import Bound, together

PATIENCE_S = 30.0
"""How long an open ledger waits for a database that is away: long enough for a restart, or for a failover."""

T = TypeVar("T")


class Sessions:
    """The connections of one open ledger, with one way to read and one way to write."""

    def __init__(self, url: str, *, read_only: bool) -> None:
        self._url = url
        crowd = Crowd()
        reads, writes = postgres.engine(url, writing=False), postgres.engine(url, writing=True)
        # What a standby shows may be from before the last ack, so only a process that never writes reads there.
        self._reads = Connections(reads, READS, crowd, from_standby=read_only)
        self._writes = Connections(writes, WRITES, crowd, from_standby=False)
        self._crowd = crowd
        self._driver_error: type[Exception] = reads.dialect.loaded_dbapi.Error
        self._has_answered = False

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Every statement inside sees the same database snapshot."""
        with self._translated():
            # A read can't be run again, so it begins by asking whether its connection is still there.
            turn, _ = self._begin(self._reads, postgres.look_alive)
            try:
                yield turn.conn
            finally:
                self._reads.end(turn)

    @contextmanager
    def transaction(
        self, first: Callable[[Connection], T], arrived: Callable[[Connection, T], bool | None]
    ) -> Iterator[tuple[Connection, T, list[Bound]]]:
        """One write transaction: `dialect.py` says what is handed in and out."""
        last: list[Bound] = []
        with self._translated():
            turn, before = self._begin(self._writes, first)
            try:
                with self._undone():
                    yield turn.conn, before, last
                is_asking = self._commit(turn, last)
            finally:
                self._writes.end(turn)
            if is_asking is not None:
                self._ask(is_asking, before, arrived)

    def write_at_once(self, steps: Sequence[Bound]) -> list[list[Row]] | None:
        """A transaction that is sent whole; None when one of the steps required what is not so.

        When the line is cut meanwhile, whether it arrived is unknown, and the error says so.
        """

        def whole(conn: Connection) -> list[list[Row]] | None:
            try:
                return together(conn, steps, commit=True)
            except (DBAPIError, self._driver_error) as error:
                if postgres.is_refused(error):
                    return None
                if postgres.is_lost(error):
                    raise may_be_there("the ledger's database went away", "ledger_behind") from error
                raise

        with self._translated():
            turn, answers = self._begin(self._writes, whole)
            self._writes.end(turn)
            return answers

    def login(self) -> tuple[str, str]:
        """The user and the password by which we got in."""
        with self.read() as conn:
            return postgres.login(conn)

    def close(self) -> None:
        """Give every connection back."""
        self._reads.close()
        self._writes.close()

    # -- connections that may be cut -----------------------------------------------------------------------------------

    def _begin(self, connections: Connections, first: Callable[[Connection], T]) -> tuple[Turn, T]:
        """A connection in a new transaction, whose first statements were answered.

        Other threads of this process that want the same wait behind the one that waits for the server.
        """
        since_s = time.monotonic()
        turn = connections.begin()
        try:
            return turn, self._wait_for(connections, turn, first, since_s)
        except BaseException:
            connections.end(turn)
            raise

    def _wait_for(self, connections: Connections, turn: Turn, first: Callable[[Connection], T], since_s: float) -> T:
        """What `first` says, on a connection that lives; a caller that waited for a lock in vain may wait once more."""
        pause = Pause()
        is_stale, has_ended_one = self._has_answered, False
        while True:
            try:
                conn = connections.take(turn, is_patient=time.monotonic() < since_s + YIELDING_S)
                conn.begin()
                answer = first(conn)
            except (DBAPIError, self._driver_error, NotYet) as error:
                if not has_ended_one and postgres.is_locked_out(error) and postgres.end_silent(turn.conn):
                    has_ended_one = True  # on the same connection, so that the session that was ended comes behind
                    continue
                connections.drop(turn)
                connections.close_idle()  # what was idle as long as this one is as dead
                if postgres.is_full(error):
                    self._crowd.note_full()
                self._refuse_hopeless(error, since_s)
                if not is_stale:
                    pause.wait()
                is_stale = False
            else:
                self._has_answered = True
                return answer

    def _refuse_hopeless(self, error: Exception, since_s: float) -> None:
        """Raise what will not pass by itself, or has lasted too long."""
        translated = error.error if isinstance(error, NotYet) else self._translate(error)
        self._has_answered = self._has_answered or postgres.has_answered(error)
        patience_s = PATIENCE_S if self._has_answered else 0.0
        if not (postgres.is_away(error) and isinstance(translated, Busy)) or time.monotonic() > since_s + patience_s:
            raise translated from error

    def _commit(self, turn: Turn, last: Sequence[Bound]) -> Exception | None:
        """Commit; an error is returned where it is unknown whether that was done."""
        try:
            together(turn.conn, last, commit=True)
        except (DBAPIError, self._driver_error) as error:
            if not postgres.is_lost(error):
                raise self._marked_undone(error) from error
            return error
        return None

    def _ask(self, error: Exception, before: T, arrived: Callable[[Connection, T], bool | None]) -> None:
        """Find out whether a transaction was committed whose answer was lost; raise unless it was."""
        try:
            turn, is_there = self._begin(self._writes, lambda conn: arrived(conn, before))
        except (StrandError, DBAPIError, self._driver_error):
            raise may_be_there("the ledger's database went away", "ledger_behind") from error
        self._writes.end(turn)
        if is_there is None:
            raise may_be_there("the ledger's database went away", "ledger_behind") from error
        if not is_there:
            raise self._marked_undone(error) from error

    # -- errors --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _undone(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, self._driver_error) as error:
            raise self._marked_undone(error) from error

    def _marked_undone(self, error: Exception) -> StrandError:
        translated = self._translate(error)
        if isinstance(translated, Busy):
            translated.detail["outcome"] = UNDONE
        return translated

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, self._driver_error) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> StrandError:
        """What the database said, in the words of our own errors; a mistake of ours is raised as it is."""
        wrapped = error if isinstance(error, DBAPIError) else DBAPIError.instance(None, None, error, self._driver_error)
        assert isinstance(wrapped, DBAPIError), f"{type(error).__name__} is not an error of the driver"
        translated = postgres.translate(wrapped, self._url, is_known=self._has_answered)
        if translated is None:
            raise error
        return translated
