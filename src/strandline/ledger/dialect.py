"""The two databases a ledger may live in: one way to read and one way to write, whichever it is.

SQLite is the embedded default: WAL, `synchronous=FULL` (an ack means the bytes are on the disk), and `BEGIN IMMEDIATE`
for writes, because a transaction that starts as a reader and then wants to write can fail at its first write. A read
is an explicit `BEGIN`: the driver's default would give every SELECT a database snapshot of its own, and two reads of
one view could then disagree. Postgres says the same with REPEATABLE READ (`postgres.py`). No other module knows which
one it is.

A connection to Postgres may be cut at any moment. Before a transaction's first statement was answered nothing has
happened, and another connection is taken. After that the transaction is gone, and its error says so (`was_undone`): who
knows how to run it again does. Only when the answer to a COMMIT is lost nobody knows; then the database is asked, under
the lock which that transaction held, so that it can't be still on its way.

A transaction that is sent whole (`write_at_once`) has nothing to ask by before its only answer. Whoever sends one must
be able to find what it stored, and to have a late one refused: an append does both by the ids of its batches.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import QueuePool

from strandline import private
from strandline.errors import BadRequest, Busy, Damaged, Environment, NoSpace, NotFound, StrandError, read_only_mount
from strandline.ledger import postgres
from strandline.ledger.pipeline import Row
from strandline.ledger.prepared import Step, together

BUSY_TIMEOUT_S = 30.0
PATIENCE_S = 30.0
"""How long an open ledger waits for a database that does not answer: long enough for a restart, or for a failover."""
PAUSE_S = 0.1

T = TypeVar("T")


class Database:
    """A pool of connections, with one way to read and one way to write."""

    def __init__(self, url: str, *, read_only: bool, create: bool = False) -> None:
        self.url = url
        self.read_only = read_only
        self._pid = os.getpid()
        self.is_sqlite = sqlite_path(url) is not None
        self._reads, self._writes = _engines(url, read_only, create)
        # SQLite has one writer at a time. Threads of one process queue here, in order, instead of polling the file
        # lock.
        self._one_writer = threading.Lock()
        self._idle_writer: Connection | None = None
        self._driver_error: type[Exception] = self._reads.dialect.loaded_dbapi.Error
        self._has_answered = False

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Every statement inside sees the same database snapshot."""
        self._refuse_fork()
        with self._translated():
            conn, _ = self._begin(self._reads, _nothing)
            try:
                yield conn
            finally:
                _give_back(conn)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One write transaction by itself, of which nobody asks later whether it arrived."""
        with self.transaction(_nothing, _unknown) as (conn, _, _):
            yield conn

    @contextmanager
    def transaction(
        self, first: Callable[[Connection], T], arrived: Callable[[Connection, T], bool | None]
    ) -> Iterator[tuple[Connection, T, list[Step] | None]]:
        """One write transaction: committed when the block ends, rolled back when it raises.

        `first` is run at its beginning, perhaps more than once. `arrived` says whether the transaction for which
        `first` gave this answer was committed, or None if that can't be known any more. The list that is handed out is
        for what is to be run last, together with the commit; SQLite has none, because there nothing is gained by it.
        """
        self._refuse_writing()
        with self._translated():
            if self.is_sqlite:
                with self._only_writer() as conn, conn.begin():
                    yield conn, first(conn), None
                return
            last: list[Step] = []
            conn, told = self._begin(self._writes, first)
            try:
                with self._undone():
                    yield conn, told, last
                self._commit(conn, last, told, arrived)
            finally:
                _give_back(conn)

    def write_at_once(self, steps: Sequence[Step]) -> list[list[Row]] | None:
        """A transaction on Postgres that is sent whole; None when one of the steps required what is not so.

        When the line is cut meanwhile, nobody knows whether it arrived, and the error says so.
        """
        self._refuse_writing()

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
            conn, answers = self._begin(self._writes, whole)
            _give_back(conn)
            return answers

    def login(self) -> Mapping[str, str]:
        """The user and password by which we got into Postgres, as an Iceberg catalog wants them; SQLite has none."""
        if self.is_sqlite:
            return {}
        with self._translated():
            user, password = postgres.login(self._reads)
        return {key: value for key, value in (("jdbc.user", user), ("jdbc.password", password)) if value}

    def _refuse_writing(self) -> None:
        self._refuse_fork()
        if self.read_only:
            raise Environment("this lake was opened read-only", hint="Open it without read_only=True to write.")

    def _refuse_fork(self) -> None:
        """SQLite's locks don't survive a fork: a child that used its parent's connections could lose what was acked."""
        if os.getpid() != self._pid:
            raise BadRequest(
                "this lake was opened by the parent of this process",
                hint="Open it anew in the child: strandline.open(...) after the fork.",
            )

    def integrity(self, *, deep: bool) -> list[str]:
        """What SQLite finds wrong with its file, by line; Postgres checks its pages itself, as it reads them."""
        if not self.is_sqlite:
            return []
        with self.read() as conn:
            found = conn.exec_driver_sql("PRAGMA integrity_check" if deep else "PRAGMA quick_check").scalars()
            return [str(line) for line in found if line != "ok"]

    def close(self) -> None:
        """Give every connection back."""
        idle, self._idle_writer = self._idle_writer, None
        if idle is not None:
            idle.close()
        self._reads.dispose()
        self._writes.dispose()

    @contextmanager
    def _only_writer(self) -> Iterator[Connection]:
        """SQLite's connection to write with. It is kept for the next writer: to get one takes as long as to use it."""
        if not self._one_writer.acquire(timeout=BUSY_TIMEOUT_S):
            raise Busy("another thread of this process holds the ledger", reason="ledger_behind")
        try:
            idle, self._idle_writer = self._idle_writer, None
            conn = idle or self._writes.connect().execution_options(strand_write=True)
            try:
                yield conn
            except BaseException:
                conn.close()  # whatever is wrong with it, the next writer starts with another
                raise
            self._idle_writer = conn
        finally:
            self._one_writer.release()

    # -- connections that may be cut -----------------------------------------------------------------------------------

    def _begin(self, engine: Engine, first: Callable[[Connection], T]) -> tuple[Connection, T]:
        """A connection in a new transaction. One that is dead is replaced, and a database that restarts is waited for.

        The first time of all it is not: who types a wrong host should not wait to be told. Who waited for a lock in
        vain waits once more, if that was for one who is silent.
        """
        deadline_s = time.monotonic() + (PATIENCE_S if self._has_answered else 0.0)
        stale = self._has_answered
        has_ended_one = False
        while True:
            conn: Connection | None = None
            try:
                conn = engine.connect()
                conn.begin()
                told = first(conn)
            except BaseException as error:
                if conn is not None:
                    _give_back(conn)
                if self.is_sqlite or not isinstance(error, DBAPIError | self._driver_error):
                    raise
                engine.dispose()  # what has been in the pool as long as this one is as dead
                if not has_ended_one and postgres.is_locked_out(error) and postgres.end_silent(engine):
                    has_ended_one = True
                    continue
                found = self._translate(error)
                if not (postgres.is_lost(error) and postgres.may_pass(found)) or time.monotonic() > deadline_s:
                    raise found from error
                time.sleep(0.0 if stale else PAUSE_S)
                stale = False
            else:
                self._has_answered = True
                return conn, told

    def _commit(
        self, conn: Connection, last: Sequence[Step], told: T, arrived: Callable[[Connection, T], bool | None]
    ) -> None:
        try:
            together(conn, last, commit=True)
        except (DBAPIError, self._driver_error) as error:
            if not postgres.is_lost(error):
                raise self._marked_undone(error) from error
            _give_back(conn)
            found = self._ask(told, arrived)
            if found is None:
                raise may_be_there("the ledger's database went away", "ledger_behind") from error
            if not found:
                raise self._marked_undone(error) from error

    def _ask(self, told: T, arrived: Callable[[Connection, T], bool | None]) -> bool | None:
        """Whether a transaction was committed whose answer was lost; None when nobody can say."""
        try:
            conn, found = self._begin(self._writes, lambda conn: arrived(conn, told))
        except (StrandError, DBAPIError, self._driver_error):
            return None
        _give_back(conn)
        return found

    @contextmanager
    def _undone(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, self._driver_error) as error:
            raise self._marked_undone(error) from error

    def _marked_undone(self, error: Exception) -> StrandError:
        found = self._translate(error)
        if isinstance(found, Busy):
            found.detail["outcome"] = UNDONE
        return found

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, self._driver_error) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> StrandError:
        """What the database said, in the words of our own errors; a mistake of ours is raised as it is."""
        wrapped = error if isinstance(error, DBAPIError) else _wrapped(error, self._driver_error)
        found = _translate(wrapped, self.url) if self.is_sqlite else postgres.translate(wrapped, self.url)
        if found is None:
            raise error
        return found


UNDONE, UNKNOWN = "undone", "unknown"


def may_be_there(happened: str, reason: str) -> Busy:
    """The error of who can't be told whether a transaction was committed."""
    return Busy(
        f"{happened} in the middle of a commit: what was written may be there or not",
        hint="Look, or run the same command again: under an idempotency key it stores nothing twice.",
        reason=reason,
        outcome=UNKNOWN,
    )


def was_undone(error: BaseException) -> bool:
    """Whether a transaction failed for no fault of its own and left nothing behind, so that it may be run again."""
    return isinstance(error, Busy) and error.detail.get("outcome") == UNDONE


def is_unknown(error: BaseException) -> bool:
    """Whether nobody could say if a transaction was committed."""
    return isinstance(error, Busy) and error.detail.get("outcome") == UNKNOWN


def _nothing(_conn: Connection) -> None:
    return None


def _unknown(_conn: Connection, _told: None) -> bool | None:
    return None


def _give_back(conn: Connection) -> None:
    """End what is open, and let the next one have the connection; a dead one is thrown away."""
    with suppress(Exception):
        if conn.in_transaction():
            conn.rollback()
    with suppress(Exception):
        driver: Any = None if conn.closed else conn.connection.driver_connection
        if getattr(driver, "closed", False):
            conn.invalidate()
    with suppress(Exception):
        conn.close()


def _engines(url: str, read_only: bool, create: bool) -> tuple[Engine, Engine]:
    path = sqlite_path(url)
    if path is not None:
        engine = _sqlite(path, read_only, create)
        return engine, engine
    return postgres.engine(url, writing=False), postgres.engine(url, writing=True)


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite address, or None where it is none.

    What follows the slashes is the path as it is. SQLAlchemy would decode it: a lake in the folder `a%20b` would open
    the ledger of another one in `a b`.
    """
    scheme, found, path = url.partition(":///")
    return Path(path) if found and scheme.partition("+")[0] == "sqlite" else None


def _sqlite(path: Path, read_only: bool, create: bool) -> Engine:
    if not create and not path.exists():
        raise NotFound(f"the ledger {path} does not exist", hint="`strand init DIR` makes a lake.")
    if create:
        private.create_file(path)  # SQLite gives the files beside it the same mode

    def connect() -> sqlite3.Connection:
        return _open_read_only(path) if read_only else _open_file(path, "rwc" if create else "rw")

    # A pool of files costs nothing to keep, and a connection that waits for its turn would look like a hang.
    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=8, max_overflow=64)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        if not read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begin(conn: Connection) -> None:
        writing = conn.get_execution_options().get("strand_write", False)
        conn.connection.cursor().execute("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _open_file(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False
    )


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Open without writing a byte, also where the folder can't be written to."""
    connection = _open_file(path, "ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        wal = path.with_name(path.name + "-wal")
        read_only_mount = os.statvfs(path).f_flag & os.ST_RDONLY
        if not read_only_mount or (wal.exists() and wal.stat().st_size > 0):
            raise
        # A read-only mount without a WAL file: nobody can write there, so the file may be read as it lies.
        connection = _open_file(path, "ro&immutable=1")
    return connection


def _wrapped(error: Exception, driver_error: type[Exception]) -> DBAPIError:
    """A driver's own error as SQLAlchemy would have raised it."""
    wrapped = DBAPIError.instance(None, None, error, driver_error)
    assert isinstance(wrapped, DBAPIError), f"{type(error).__name__} is not an error of the driver"
    return wrapped


def _translate(error: DBAPIError, url: str) -> StrandError | None:
    """What the database said, in the words of our own errors."""
    said = str(error.orig)
    if "locked" in said or "busy" in said:
        return Busy(
            f"the ledger was locked by another process for {BUSY_TIMEOUT_S:.0f} s",
            hint="A process may be stopped in the middle of a write. Try again, or find and end it.",
            reason="ledger_behind",
        )
    if "full" in said or (isinstance(error.orig, OSError) and error.orig.errno == errno.ENOSPC):
        return NoSpace(f"no room on the ledger's disk: {said}")
    if "disk I/O error" in said and _room_bytes(url) < 1 << 20:
        return NoSpace(f"no room on the ledger's disk: {said}")
    if ("readonly" in said or "read-only" in said or "unable to open" in said) and _is_mounted_read_only(url):
        return read_only_mount(str(sqlite_path(url)))
    if "readonly" in said or "read-only" in said:
        return Environment(
            f"no permission to write the ledger: {said}", hint="Check the owner and mode of the lake's folder."
        )
    if "unable to open" in said:
        return Environment(
            f"can't open the ledger: {said}",
            hint="Can the folder be read? Who may not write there needs a running writer, or a read-only mount.",
        )
    if "no such table" in said or "no such column" in said:
        return Damaged(f"the ledger has another shape than this strandline's: {said}", hint="Is it a lake's ledger?")
    if "malformed" in said or "not a database" in said or "disk I/O error" in said:
        return Damaged(f"the ledger can't be read: {said}", hint="Restore the lake from a backup.")
    if isinstance(error, OperationalError | InterfaceError):
        return Busy(f"the ledger does not answer: {said}", reason="ledger_behind")
    return None


def _is_mounted_read_only(url: str) -> bool:
    """Whether the file system of a SQLite ledger takes no writes from anybody."""
    path = sqlite_path(url)
    with suppress(OSError):
        return path is not None and bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)
    return False


def _room_bytes(url: str) -> int:
    folder = (sqlite_path(url) or Path()).parent
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize
