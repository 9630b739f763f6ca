"""The answer to a query, and DuckDB's errors in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from strandline.config import QueryConfig
from strandline.engines.duck import sandbox
from strandline.errors import BadRequest, HistoryGone, TooLarge, of_outage
from strandline.model.values.user_rows import Value

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

FETCHED_ROWS = 1_000
"""So many rows are taken at a time, and counted."""
ROW_BYTES = 64
"""What a row and each of its values take at least, in Python."""


class Result:
    """The answer to a query. It is computed as it is fetched, and fetched once.

    With limits, what computes it is timed, and what is collected of it is counted.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, text: str, limits: QueryConfig | None) -> None:
        self._connection = connection
        self._text = text
        self._limits = limits
        self._clock = None if limits is None else sandbox.QueryClock(connection, limits)
        with self._computing():
            self._relation = connection.sql(text)
        self.columns: list[str] = list(self._relation.columns)

    def rows(self) -> list[tuple[Value, ...]]:
        """All rows as Python values."""
        rows: list[tuple[Value, ...]] = []
        if self._limits is None:
            with self._computing():
                rows = self._relation.fetchall()
            return rows
        size_bytes = 0
        with self._computing():
            self._connection.execute(self._text)
        while True:
            with self._computing():
                fetched = self._connection.fetchmany(FETCHED_ROWS)
            if not fetched:
                return rows
            rows += fetched
            size_bytes += sum(map(_size_bytes, fetched))
            self._check(len(rows), size_bytes)

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        import pyarrow as pa

        if self._limits is None:
            with self._computing():
                return self._relation.to_arrow_table()
        with self._computing():
            reader = self._relation.to_arrow_reader(FETCHED_ROWS)
        batches: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for batch in self._batches(reader):
            batches.append(batch)
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
            self._check(rows, size_bytes)
        return pa.Table.from_batches(batches, schema=reader.schema)

    def reader(self, rows: int = 10_000) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches, as they are computed: memory does not grow with the answer."""
        with self._computing():
            reader = self._relation.to_arrow_reader(rows)
        yield from self._batches(reader)

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        while True:
            with self._computing():
                batch = next(reader, None)
            if batch is None:
                return
            yield batch

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with typed(self._limits), nullcontext() if self._clock is None else self._clock.running():
            yield

    def _check(self, rows: int, size_bytes: int) -> None:
        assert self._limits is not None
        if rows > self._limits.rows:
            raise TooLarge(
                f"the query was ended: its answer has more than {self._limits.rows:,} rows",
                hint="Ask for less, or read it as a stream; `rows` in [query] allows more.",
                limit="rows",
            )
        if size_bytes > sandbox.memory_bytes(self._limits):
            raise sandbox.out_of_memory(self._limits)


def _size_bytes(row: tuple[Value, ...]) -> int:
    """About what a row takes in Python."""
    size, left = ROW_BYTES, list(row)
    while left:
        value = left.pop()
        size += ROW_BYTES
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, list | tuple):
            left.extend(value)
        elif isinstance(value, dict):
            left.extend(value.keys())
            left.extend(value.values())
    return size


@contextmanager
def typed(limits: QueryConfig | None = None) -> Iterator[None]:
    """DuckDB's errors in our words: a file that is gone or away, a limit that was passed, or a query that is wrong."""
    import duckdb

    try:
        with sandbox.interruptible():
            yield
    except duckdb.PermissionException as error:
        raise BadRequest("a query sees the lake alone", hint="Name tables of the lake only.") from error
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        if (outage := sandbox.outage(error)) is not None:
            raise of_outage(outage) from error
        raise sandbox.out_of_memory(limits or QueryConfig()) from error
    except (duckdb.Error, OSError) as error:
        if (outage := sandbox.outage(error)) is not None:
            raise of_outage(outage) from error
        if sandbox.is_missing_file(error):
            raise HistoryGone(f"a file of this view can't be read any more: {error}") from error
        words = str(error) or type(error).__name__  # some Pythons lose words that end in half a letter
        raise BadRequest(f"the query failed: {words}", hint="Check the SQL; it is DuckDB's dialect.") from error
