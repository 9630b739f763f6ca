"""The two databases a ledger may live in, and everything about them that differs.

SQLite is the embedded default: WAL, `synchronous=FULL` (an ack means the bytes are on the disk), and `BEGIN IMMEDIATE`
for writes, because a transaction that starts as a reader and then wants to write can fail at its first write. A read
is an explicit `BEGIN`: the driver's default would give every SELECT a database snapshot of its own, and two reads of
one view could then disagree. Postgres says the same with REPEATABLE READ. No other module knows which one it is.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import QueuePool
from sqlalchemy.sql.expression import ClauseElement

from strandline.errors import BadRequest, Busy, Damaged, Environment, NoSpace, NotFound, StrandError

BUSY_TIMEOUT_S = 30.0


class Database:
    """A pool of connections, with one way to read and one way to write."""

    def __init__(self, url: str, *, read_only: bool, create: bool = False) -> None:
        self.url = url
        self.read_only = read_only
        self._pid = os.getpid()
        self.is_sqlite = make_url(url).get_backend_name() == "sqlite"
        self._engine = _sqlite(url, read_only, create) if self.is_sqlite else _postgres(url)
        # SQLite has one writer at a time. Threads of one process queue here, in order, instead of polling the file
        # lock.
        self._one_writer = threading.Lock() if self.is_sqlite else None
        self._idle_writer: Connection | None = None
        self._driver_error: type[Exception] = self._engine.dialect.loaded_dbapi.Error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Every statement inside sees the same database snapshot."""
        self._refuse_fork()
        with self._translated(), self._engine.connect() as conn, conn.begin():
            yield conn

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One write transaction: committed when the block ends, rolled back when it raises."""
        self._refuse_fork()
        if self.read_only:
            raise Environment("this lake was opened read-only", hint="Open it without read_only=True to write.")
        with self._translated(), self._writer() as conn, conn.begin():
            yield conn

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
        self._engine.dispose()

    @contextmanager
    def _writer(self) -> Iterator[Connection]:
        """A connection to write with. SQLite's is kept for the next writer: to get one takes as long as to use it."""
        if self._one_writer is None:
            with self._engine.connect() as conn:
                yield conn.execution_options(strand_write=True)
            return
        if not self._one_writer.acquire(timeout=BUSY_TIMEOUT_S):
            raise Busy("another thread of this process holds the ledger", reason="ledger_behind")
        try:
            idle, self._idle_writer = self._idle_writer, None
            conn = idle or self._engine.connect().execution_options(strand_write=True)
            try:
                yield conn
            except BaseException:
                conn.close()  # whatever is wrong with it, the next writer starts with another
                raise
            self._idle_writer = conn
        finally:
            self._one_writer.release()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise _translate(error, self.url) from error
        except self._driver_error as error:
            raise _translate(_wrapped(error, self._driver_error), self.url) from error


class Prepared:
    """A statement that SQLAlchemy compiles once, and that the driver then runs.

    SQLAlchemy's own way of running a statement takes ten times as long as SQLite needs for a small one, and an append
    waits for six of them. What comes back is the driver's: rows are plain tuples.
    """

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}

    def one(self, conn: Connection, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run it and return its only row."""
        compiled = self._for(conn)
        cursor = conn.connection.cursor()
        cursor.execute(compiled.text, compiled.bound(parameters))
        (row,) = cursor.fetchall()
        return tuple(row)

    def run(self, conn: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it once for each of these sets of parameters."""
        compiled = self._for(conn)
        conn.connection.cursor().executemany(compiled.text, [compiled.bound(row) for row in rows])

    def _for(self, conn: Connection) -> _Compiled:
        found = self._compiled.get(conn.dialect.name)
        if found is None:
            found = self._compiled[conn.dialect.name] = _Compiled(self._statement, conn)
        return found


class _Compiled:
    """A statement's text for one driver, and its parameters as that driver wants them: by name, or by position."""

    def __init__(self, statement: ClauseElement, conn: Connection) -> None:
        compiled: Any = statement.compile(dialect=conn.dialect)
        self.text = str(compiled)
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}
        self._order: Sequence[str] | None = compiled.positiontup

    def bound(self, parameters: Mapping[str, Any]) -> Any:
        values = {**self._constants, **parameters}
        return values if self._order is None else [values[name] for name in self._order]


def _sqlite(url: str, read_only: bool, create: bool) -> Engine:
    path = Path(make_url(url).database or "")
    if not create and not path.exists():
        raise NotFound(f"the ledger {path} does not exist", hint="`strand init DIR` makes a lake.")

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


def _postgres(url: str) -> Engine:
    try:
        engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), pool_size=8, max_overflow=64)
    except ModuleNotFoundError as error:
        raise Environment(
            "a ledger in Postgres needs the package psycopg, which is not installed", hint="pip install psycopg[binary]"
        ) from error

    @event.listens_for(engine, "begin")
    def begin(conn: Connection) -> None:
        if not conn.get_execution_options().get("strand_write", False):
            conn.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    return engine


def _wrapped(error: Exception, driver_error: type[Exception]) -> DBAPIError:
    """A driver's own error as SQLAlchemy would have raised it."""
    wrapped = DBAPIError.instance(None, None, error, driver_error)
    assert isinstance(wrapped, DBAPIError), f"{type(error).__name__} is not an error of the driver"
    return wrapped


def _translate(error: DBAPIError, url: str) -> StrandError:
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
    raise error


def _room_bytes(url: str) -> int:
    folder = Path(make_url(url).database or ".").parent
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize
