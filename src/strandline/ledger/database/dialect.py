"""The two databases a ledger may live in: one way to read and one way to write, whichever it is.

SQLite is the embedded default: WAL, `synchronous=FULL` (an ack means the bytes are on the disk), and `BEGIN IMMEDIATE`
for writes, because a transaction that starts as a reader and then wants to write can fail at its first write. A read
is an explicit `BEGIN`: the driver's default would give every SELECT a database snapshot of its own, and two reads of
one view could then disagree. Postgres says the same with REPEATABLE READ (`postgres.py`). No other module knows which
one it is.

A connection to Postgres may be cut at any moment, and the server may be away: `sessions.py` sees to that.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import QueuePool

from strandline import private
from strandline.errors import BadRequest, Busy, Damaged, Environment, NoSpace, NotFound, StrandError, read_only_mount
from strandline.ledger.database.pipeline import Row
from strandline.ledger.database.prepared import Bound
from strandline.ledger.database.sessions import Sessions

BUSY_TIMEOUT_S = 30.0

T = TypeVar("T")


class Database:
    """One way to read and one way to write, in a file or on a server."""

    def __init__(self, url: str, *, read_only: bool, create: bool = False) -> None:
        self.url = url
        self.read_only = read_only
        self._pid = os.getpid()
        path = sqlite_path(url)
        self._file = None if path is None else _SqliteFile(path, read_only, create)
        self._server = Sessions(url, read_only=read_only) if path is None else None

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file."""
        return self._file is not None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Every statement inside sees the same database snapshot."""
        self._refuse_fork()
        with (self._file or self._sessions).read() as conn:
            yield conn

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One write transaction by itself, of which no caller asks later whether it arrived."""
        with self.transaction(_nothing, _unknown) as (conn, _, _):
            yield conn

    @contextmanager
    def transaction(
        self, first: Callable[[Connection], T], arrived: Callable[[Connection, T], bool | None]
    ) -> Iterator[tuple[Connection, T, list[Bound] | None]]:
        """One write transaction: committed when the block ends, rolled back when it raises.

        `first` is run at its beginning, perhaps more than once. `arrived` says whether the transaction for which
        `first` gave this answer was committed, or None if that can't be known any more. The list that is handed out is
        for what is to be run last, together with the commit; SQLite has none, because there nothing is gained by it.
        """
        self._refuse_writing()
        if self._file is not None:
            with self._file.write() as conn:
                yield conn, first(conn), None
            return
        with self._sessions.transaction(first, arrived) as (conn, answer, last):
            yield conn, answer, last

    def write_at_once(self, steps: Sequence[Bound]) -> list[list[Row]] | None:
        """A transaction on Postgres that is sent whole; None when one of the steps required what is not so.

        When the line is cut meanwhile, whether it arrived is unknown, and the error says so.
        """
        self._refuse_writing()
        return self._sessions.write_at_once(steps)

    def login(self) -> Mapping[str, str]:
        """The user and password by which we got into Postgres, as an Iceberg catalog wants them; SQLite has none."""
        if self._server is None:
            return {}
        user, password = self._server.login()
        return {key: value for key, value in (("jdbc.user", user), ("jdbc.password", password)) if value}

    @property
    def _sessions(self) -> Sessions:
        assert self._server is not None, "it is a file"
        return self._server

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
            lines = conn.exec_driver_sql("PRAGMA integrity_check" if deep else "PRAGMA quick_check").scalars()
            return [str(line) for line in lines if line != "ok"]

    def close(self) -> None:
        """Give every connection back."""
        (self._file or self._sessions).close()


class _SqliteFile:
    """The connections to a file: as many as are wanted to read, and one to write."""

    def __init__(self, path: Path, read_only: bool, create: bool) -> None:
        self._path = path
        self._engine = _engine(path, read_only, create)
        # SQLite has one writer at a time. Threads of one process queue here, in order, instead of polling the file
        # lock.
        self._one_writer = threading.Lock()
        self._idle_writer: Connection | None = None
        self._driver_error: type[Exception] = self._engine.dialect.loaded_dbapi.Error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._translated(), self._engine.connect() as conn:
            conn.begin()
            yield conn

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection in a transaction. It is kept for the next writer: to get one takes as long as to use it."""
        with self._translated():
            if not self._one_writer.acquire(timeout=BUSY_TIMEOUT_S):
                raise Busy("another thread of this process holds the ledger", reason="ledger_behind")
            try:
                idle, self._idle_writer = self._idle_writer, None
                conn = idle or self._engine.connect().execution_options(strand_write=True)
                try:
                    with conn.begin():
                        yield conn
                except BaseException:
                    conn.close()  # whatever is wrong with it, the next writer starts with another
                    raise
                self._idle_writer = conn
            finally:
                self._one_writer.release()

    def close(self) -> None:
        idle, self._idle_writer = self._idle_writer, None
        if idle is not None:
            idle.close()
        self._engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, self._driver_error) as error:
            wrapped = error if isinstance(error, DBAPIError) else _wrapped(error, self._driver_error)
            translated = _translate(wrapped, self._path)
            if translated is None:
                raise
            raise translated from error


def _nothing(_conn: Connection) -> None:
    return None


def _unknown(_conn: Connection, _answer: None) -> bool | None:
    return None


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite address, or None where it is none.

    What follows the slashes is the path as it is. SQLAlchemy would decode it: a lake in the folder `a%20b` would open
    the ledger of another one in `a b`.
    """
    scheme, separator, path = url.partition(":///")
    return Path(path) if separator and scheme.partition("+")[0] == "sqlite" else None


def _engine(path: Path, read_only: bool, create: bool) -> Engine:
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
        # A read-only mount without a WAL file: no process can write there, so the file may be read as it lies.
        connection = _open_file(path, "ro&immutable=1")
    return connection


def _wrapped(error: Exception, driver_error: type[Exception]) -> DBAPIError:
    """A driver's own error as SQLAlchemy would have raised it."""
    wrapped = DBAPIError.instance(None, None, error, driver_error)
    assert isinstance(wrapped, DBAPIError), f"{type(error).__name__} is not an error of the driver"
    return wrapped


def _translate(error: DBAPIError, path: Path) -> StrandError | None:
    """What the database said, in the words of our own errors."""
    message = str(error.orig)
    if "locked" in message or "busy" in message:
        return Busy(
            f"the ledger was locked by another process for {BUSY_TIMEOUT_S:.0f} s",
            hint="A process may be stopped in the middle of a write. Try again, or find and end it.",
            reason="ledger_behind",
        )
    if "full" in message or (isinstance(error.orig, OSError) and error.orig.errno == errno.ENOSPC):
        return NoSpace(f"no room on the ledger's disk: {message}")
    if "disk I/O error" in message and _room_bytes(path) < 1 << 20:
        return NoSpace(f"no room on the ledger's disk: {message}")
    if ("readonly" in message or "read-only" in message or "unable to open" in message) and _is_mounted_read_only(path):
        return read_only_mount(str(path))
    if "readonly" in message or "read-only" in message:
        return Environment(
            f"no permission to write the ledger: {message}", hint="Check the owner and mode of the lake's folder."
        )
    if "unable to open" in message:
        return Environment(
            f"can't open the ledger: {message}",
            hint="Can the folder be read? Who may not write there needs a running writer, or a read-only mount.",
        )
    if "no such table" in message or "no such column" in message:
        return Damaged(f"the ledger has another shape than this strandline's: {message}", hint="Is it a lake's ledger?")
    if "malformed" in message or "not a database" in message or "disk I/O error" in message:
        return Damaged(f"the ledger can't be read: {message}", hint="Restore the lake from a backup.")
    if isinstance(error, OperationalError | InterfaceError):
        return Busy(f"the ledger does not answer: {message}", reason="ledger_behind")
    return None


def _is_mounted_read_only(path: Path) -> bool:
    """Whether the file system of a SQLite ledger takes no writes from any process."""
    with suppress(OSError):
        return bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)
    return False


def _room_bytes(path: Path) -> int:
    try:
        stat = os.statvfs(path.parent)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize
