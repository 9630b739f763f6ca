"""A DuckDB that can read the files it was given and nothing else.

Two walls, because one might have a hole. `wall` lets a single harmless query through; and here the connection is shut:
no file outside the pinned ones, no extension, no setting, no Python variable. Limits of memory and disk belong to a
database, so one for a user's query is made with them; a limit of time is a watch that interrupts the connection.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import duckdb

from strandline import private
from strandline.config import QueryConfig
from strandline.config_keys import process_memory_bytes
from strandline.engines.storage import any_store
from strandline.errors import TooLarge
from strandline.outages import Outage, OutageKind, judge

_INTERRUPTED = re.compile(r"(?m)(^|: )KeyboardInterrupt:? ?$")

INTERNAL = "strand_internal"

NO_BUCKET = "NO_SUCH_BUCKET"
"""What PyArrow says of a bucket that is gone."""
"""Where our own tables are: no query can name it, and SHOW TABLES does not show it."""


def connect(limits: QueryConfig | None = None) -> duckdb.DuckDBPyConnection:
    """A fresh in-memory database with settings and limits of its own, which can be shut."""
    with interruptible():
        connection = duckdb.connect()
        _set_up(connection)
        if limits is not None:
            connection.execute(f"SET memory_limit = '{memory_bytes(limits)}B'")
            connection.execute(f"SET max_temp_directory_size = '{limits.spill_bytes}B'")
        _begin(connection)
        return connection


def _set_up(database: duckdb.DuckDBPyConnection) -> None:
    """Let it read what we have files in. Spills go to a folder of this process alone, never into the lake."""
    if any_store():
        from strandline.engines.duck.buckets import Buckets

        database.register_filesystem(Buckets())
    database.execute("SET temp_directory = ?", [str(private.working_folder() / "duckdb")])
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    database.execute("SET preserve_insertion_order = false")
    # A join with so few keys tells them to the scan of the files, which then skips most values of the other columns.
    database.execute("SET GLOBAL dynamic_or_filter_threshold = 200")
    # It turns "the newest version of each key" into an aggregate that packs the columns, and -0.0 comes out as 0.0.
    database.execute("SET GLOBAL disabled_optimizers = 'top_n_window_elimination'")


def _begin(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET enable_progress_bar = false")  # it goes to stdout, where only answers belong
    connection.execute(f"CREATE SCHEMA {INTERNAL}")


RENEWED_AFTER = 200
"""So many questions: a DuckDB becomes slower with every database that was attached to it once."""


class _Shared:
    """The process's DuckDB. A new one has to learn thousands of functions, which takes longer than a small question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: int | None = None
        self._left = 0
        self._knows_buckets = False
        self._database: duckdb.DuckDBPyConnection

    @contextmanager
    def scratch(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """An empty database in memory, which no other caller sees; it is gone behind the block.

        Ctrl-C in the block, or while it is made or removed, is KeyboardInterrupt.
        """
        with interruptible():
            database, name = self._next()
            connection = database.cursor()
            try:
                connection.execute(f"ATTACH ':memory:' AS {name}")
                connection.execute(f"USE {name}")
                _begin(connection)
                yield connection
            finally:  # without the lock: a question that was abandoned ends wherever Python tidies up
                connection.close()
                with database.cursor() as last:
                    last.execute(f"DETACH DATABASE IF EXISTS {name}")

    def _next(self) -> tuple[duckdb.DuckDBPyConnection, str]:
        """Where the next question goes. One before it that is open keeps the DuckDB that it has."""
        with self._lock:
            if self._left == 0 or self._process != os.getpid() or self._knows_buckets != any_store():
                self._database = duckdb.connect()
                _set_up(self._database)
                self._database.execute("SET enable_external_file_cache = false")  # nothing is kept of a question
                self._left, self._process, self._knows_buckets = RENEWED_AFTER, os.getpid(), any_store()
            self._left -= 1
            return self._database, f"scratch_{self._left}"


scratch = _Shared().scratch
"""A database for a question of our own: `with scratch() as connection`."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C during a query is KeyboardInterrupt here too.

    DuckDB takes the signal and raises a plain RuntimeError; or Python takes it while DuckDB asks it for rows or bytes,
    and then only the text of DuckDB's error says so. Python delivers signals to its main thread alone: anywhere else
    those words are a user's data. And an error whose text is no text is an error all the same.
    """
    try:
        yield
    except UnicodeDecodeError as error:  # DuckDB's message, cut in the middle of a letter
        raise duckdb.InvalidInputException(error.object.decode(errors="replace")) from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise
    except duckdb.Error as error:
        if threading.current_thread() is threading.main_thread() and _INTERRUPTED.search(str(error)):
            raise KeyboardInterrupt from None
        raise


def memory_bytes(limits: QueryConfig) -> int:
    """What a query may take: as it was set, and never more than a quarter of what the process may have."""
    return min(limits.memory_bytes, process_memory_bytes() // 4)


PULSE_S = 0.05


class QueryClock:
    """The time that one query may compute. What its reader does between two batches is not counted."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, limits: QueryConfig) -> None:
        self._connection = connection
        self._time_s = limits.time_s
        self._used_s = 0.0
        self._is_over = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Interrupt what runs inside once the time is over: in any thread, and as often as it takes.

        DuckDB forgets an interrupt that comes between two of its steps.
        """
        begun_s, ended = time.monotonic(), threading.Event()
        watch = threading.Thread(target=self._watch, args=(ended,), name="query-limit", daemon=True)
        watch.start()
        try:
            yield
        except duckdb.InterruptException as error:
            if self._is_over:
                raise self.too_long() from error
            raise
        finally:
            ended.set()
            watch.join()
            self._used_s += time.monotonic() - begun_s

    def _watch(self, ended: threading.Event) -> None:
        if ended.wait(max(0.0, self._time_s - self._used_s)):
            return
        self._is_over = True
        while not ended.wait(PULSE_S):
            self._connection.interrupt()

    def too_long(self) -> TooLarge:
        """What a query gets that computes for too long."""
        return TooLarge(
            f"the query was ended: it took longer than {self._time_s:g} s",
            hint="Ask for less; `time` in [query], or $STRAND_QUERY_TIME, allows more.",
            limit="time",
        )


def out_of_memory(limits: QueryConfig) -> TooLarge:
    """What a query gets that needs more memory and disk than it may have."""
    return TooLarge(
        f"the query was ended: it needs more than {memory_bytes(limits):,} bytes of memory"
        f" and {limits.spill_bytes:,} of disk",
        hint="Ask for less; `memory` and `spill` in [query] allow more.",
        limit="memory",
    )


def outage(error: Exception) -> Outage | None:
    """Whether files could not be read, or spilled to, for a reason that passes.

    The files are the lake's own: their bucket was there, so it will be there again. DuckDB has no class of its own for
    what Python said about a file in a store. Its other errors repeat words of a query or of rows, which tell nothing.
    """
    is_about_files = type(error) is duckdb.Error or isinstance(
        error, duckdb.IOException | duckdb.OutOfMemoryException | OSError
    )
    if not is_about_files:
        return None
    return judge(error) or (Outage(OutageKind.AWAY, "", "there is no such bucket") if NO_BUCKET in str(error) else None)


def is_missing_file(error: Exception) -> bool:
    """Whether a file could not be read; of one in a store, DuckDB tells what Python said about it."""
    if isinstance(error, duckdb.PermissionException):  # shut, DuckDB takes a path that is not there for a folder's
        return "/**/*.parquet" in str(error)
    return isinstance(error, duckdb.IOException | FileNotFoundError) or "FileNotFoundError" in str(error)


def shut(connection: duckdb.DuckDBPyConnection, paths: Iterable[str]) -> None:
    """From here on the connection sees these files alone, and can't be told otherwise."""
    listed = ", ".join(quote_text(path) for path in paths)
    connection.execute(f"SET allowed_paths = [{listed}]")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def quote_text(text: str) -> str:
    """A text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """A name as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
