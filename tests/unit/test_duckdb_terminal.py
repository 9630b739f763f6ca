"""DuckDB and the terminal: Ctrl-C is never taken for a damaged file or a wrong query, and no bar is drawn on stdout."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from tests.kit import python_process

from strandline.engines.duck import sandbox


class Interrupted:
    """Rows whose schema is being read when the signal comes."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise KeyboardInterrupt


def interrupted_rows() -> pa.RecordBatchReader:
    """Rows that are being read when the signal comes."""

    def rows() -> Iterator[pa.RecordBatch]:
        raise KeyboardInterrupt
        yield

    return pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), rows())


def read(rows: object) -> None:
    """Let DuckDB read these rows, as the engine does."""
    with sandbox.interruptible(), sandbox.connect() as connection:
        connection.register("incoming", rows)
        connection.execute("SELECT * FROM incoming").fetchall()


@pytest.mark.parametrize("rows", [Interrupted, interrupted_rows])
def test_ctrl_c_while_duckdb_asks_python_for_rows(rows: type) -> None:
    """DuckDB makes an error of its own out of it; what reaches the caller is the interrupt."""
    with pytest.raises(KeyboardInterrupt):
        read(rows())


def test_an_error_that_only_speaks_of_it_stays_an_error() -> None:
    """The word in a query or in data is not a signal."""
    with pytest.raises(duckdb.ConversionException), sandbox.interruptible(), sandbox.connect() as connection:
        connection.execute("SELECT 'KeyboardInterrupt'::INTEGER").fetchall()


def test_only_the_main_thread_is_interrupted() -> None:
    """Python delivers signals to the main thread: in a server's other threads the word can only be data."""
    seen: list[BaseException] = []

    def elsewhere() -> None:
        try:
            read(Interrupted())
        except BaseException as error:
            seen.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [type(error) for error in seen] == [duckdb.InvalidInputException]


def test_a_slow_query_draws_no_bar() -> None:
    """DuckDB draws one on stdout wherever it takes Python for interactive, as in `python -c`."""
    code = "from strandline.engines.duck import sandbox; print(sandbox.connect().execute({!r}).fetchall())"
    out, err = python_process(code.format("select current_setting('enable_progress_bar')")).communicate(timeout=60)
    assert out == "[(False,)]\n", err
