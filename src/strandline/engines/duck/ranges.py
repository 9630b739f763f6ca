"""Reading one range of a log's files in seq order, with what a sink leaves out left out.

The same files and the same range give the same rows in the same order. It is given paths and texts of SQL that were
checked before, and knows no ledger, so it runs in this process and on Spark's workers alike. Files come as runs that
don't overlap in seqs: one run after another is sorted and read, so memory follows the largest run and not the range.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from strandline.engines.duck import relations, sandbox
from strandline.errors import HistoryGone
from strandline.model.types import SEQ

READ_ROWS = 10_000
_KEPT = "strand_kept"


@dataclass(frozen=True)
class Select:
    """What is read of each row: a name and a SQL expression for every column, and which rows are kept."""

    columns: tuple[tuple[str, str], ...]
    where: str | None = None


@dataclass(frozen=True)
class Range:
    """Rows of `(since, until]` in these runs of files, of which the `older` ones lack the columns of forwarded rows."""

    runs: tuple[tuple[str, ...], ...]
    stored: tuple[str, ...]
    since: int
    until: int
    select: Select
    schema: pa.Schema
    older: frozenset[str] = frozenset()

    @property
    def files(self) -> int:
        """How many files have to be opened."""
        return sum(len(run) for run in self.runs)


@dataclass(frozen=True)
class Piece:
    """Some rows of a range, in order: those that are kept, and how many were withheld among them."""

    rows: pa.RecordBatch
    withheld: int


def read_range(wanted: Range) -> Iterator[Piece]:
    """The rows of a range in seq order, a few thousand at a time."""
    for run in wanted.runs:
        with _kept_files(), sandbox.interruptible(), sandbox.connect() as connection:
            paths = [relations.local_path(path) for path in run]
            older = {relations.local_path(path) for path in wanted.older}
            source = relations.files(paths, list(wanted.stored), older)
            for batch in connection.sql(_query(wanted, source)).to_arrow_reader(READ_ROWS):
                yield _piece(batch, wanted.schema)


@contextmanager
def _kept_files() -> Iterator[None]:
    """A file that is gone is an error with a name, and never missing rows."""
    import duckdb

    try:
        yield
    except duckdb.IOException as error:
        raise HistoryGone(f"a file of this range can't be read any more: {error}") from error


def seq_at(paths: tuple[str, ...], since: int, place: int) -> int | None:
    """The seq of the `place`-th row behind `since`, counted from 1; None when there are fewer."""
    with _kept_files(), sandbox.interruptible(), sandbox.connect() as connection:
        source = relations.parquet([relations.local_path(path) for path in paths], [SEQ])
        query = f"SELECT {SEQ} FROM ({source}) WHERE {SEQ} > {since} ORDER BY {SEQ} LIMIT 1 OFFSET {place - 1}"
        found = connection.execute(query).fetchall()
    return int(found[0][0]) if found else None


def _query(wanted: Range, source: str) -> str:
    columns = ", ".join(f"{text} AS {sandbox.quote_name(name)}" for name, text in wanted.select.columns)
    kept = f"coalesce(({wanted.select.where}), false)" if wanted.select.where else "true"
    return (
        f"SELECT {columns}, {kept} AS {_KEPT} FROM ({source}) "
        f"WHERE {SEQ} > {wanted.since} AND {SEQ} <= {wanted.until} ORDER BY {SEQ}"
    )


def _piece(batch: pa.RecordBatch, schema: pa.Schema) -> Piece:
    kept = batch.column(_KEPT)
    rows = batch.drop_columns([_KEPT]).cast(schema)
    filtered = rows.filter(kept) if kept.false_count else rows
    return Piece(filtered, batch.num_rows - filtered.num_rows)
