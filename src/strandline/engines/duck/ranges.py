"""Reading one range of a log's files in seq order, with what a sink leaves out left out.

The same files and the same range give the same rows in the same order. It is given paths and texts of SQL that were
checked before, and knows no ledger, so it runs in this process and on Spark's workers alike. Files come as runs that
don't overlap in seqs, and are read one after another. A file that is in seq order already, as every file of a log is
when it is written, is streamed: memory does not grow with it. A run of several files is sorted, on the disk where it is
large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.config import Store
from strandline.engines.duck import relations, sandbox
from strandline.engines.storage import know, open_uri
from strandline.errors import WAREHOUSE, Damaged, HistoryGone, of_outage
from strandline.model.schema.shapes import Shape
from strandline.model.schema.types import SEQ, Column

READ_ROWS = 10_000
SORT_MEMORY = "512MB"
_KEPT = "strand_kept"
_ORDER = "strand_order"


@dataclass(frozen=True)
class Select:
    """What is read of each row: a name and a SQL expression for every column, and which rows are kept."""

    columns: tuple[tuple[str, str], ...]
    where: str | None = None


@dataclass(frozen=True)
class SeqRange:
    """Rows of `(since, until]` in these runs of files; `shapes` says what each file has of the columns."""

    runs: tuple[tuple[str, ...], ...]
    stored: tuple[Column, ...]
    since: int
    until: int
    select: Select
    schema: pa.Schema
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    store: Store | None = None
    """Where the files are, if they are in a store: Spark's workers have not opened the lake."""

    @property
    def files(self) -> int:
        """How many files have to be opened."""
        return sum(len(run) for run in self.runs)


@dataclass(frozen=True)
class Piece:
    """Some rows of a range, in order: those that are kept, and how many were withheld among them."""

    rows: pa.RecordBatch
    withheld: int


def read_range(span: SeqRange) -> Iterator[Piece]:
    """The rows of a range in seq order, a few thousand at a time."""
    last = span.since
    if span.store is not None:
        know(span.runs[0][0], span.store)
    for run in span.runs:
        paths = [relations.local_path(path) for path in run]
        with _kept_files(), sandbox.interruptible(), sandbox.connect() as connection:
            streamed = len(paths) == 1 and _in_order(paths[0])
            if streamed:
                connection.execute("SET preserve_insertion_order = true")
            else:
                connection.execute(f"SET memory_limit = '{SORT_MEMORY}'")
            sandbox.shut(connection, paths)
            query = _query(span, relations.files(run, span.stored, span.shapes), ordered=streamed)
            for batch in connection.sql(query).to_arrow_reader(READ_ROWS):
                last = _check_order(batch.column(_ORDER), last)
                yield _piece(batch, span.schema)


def _in_order(path: str) -> bool:
    """Whether a file's rows are in seq order: one column of it, read in pieces."""
    last = -1
    system, place = open_uri(path if "://" in path else f"file://{path}")
    with pq.ParquetFile(place, filesystem=system) as file:
        for batch in file.iter_batches(columns=[SEQ]):
            seqs = batch.column(0)
            if seqs.null_count or (len(seqs) and not _ascends(seqs, last)):
                return False
            last = seqs[-1].as_py() if len(seqs) else last
    return True


def _ascends(seqs: pa.Array, last: int) -> bool:
    rising = pc.all(pc.greater(seqs.slice(1), seqs.slice(0, len(seqs) - 1))).as_py()
    return bool(rising is not False and seqs[0].as_py() > last)


def _check_order(seqs: pa.Array, last: int) -> int:
    """What every reader of a range believes, looked at once more: out of order, a mark would skip rows."""
    if len(seqs) == 0:
        return last
    if not _ascends(seqs, last):
        raise Damaged(f"rows came out of seq order behind {last}, or twice", hint="`strand doctor` checks the log.")
    return int(seqs[-1].as_py())


@contextmanager
def _kept_files() -> Iterator[None]:
    """A file that is gone, or away with its store, is an error with a name, and never missing rows."""
    import duckdb

    try:
        yield
    except (duckdb.Error, OSError) as error:
        if (outage := sandbox.outage(error)) is not None:
            raise of_outage(outage, reason=WAREHOUSE) from error
        if not sandbox.is_missing_file(error):
            raise
        raise HistoryGone(f"a file of this range can't be read any more: {error}") from error


def seq_at(paths: tuple[str, ...], since: int, place: int) -> int | None:
    """The seq of the `place`-th row behind `since`, counted from 1; None when there are fewer."""
    with _kept_files(), sandbox.scratch() as connection:
        source = relations.parquet([relations.local_path(path) for path in paths], [SEQ])
        query = f"SELECT {SEQ} FROM ({source}) WHERE {SEQ} > {since} ORDER BY {SEQ} LIMIT 1 OFFSET {place - 1}"
        rows = connection.execute(query).fetchall()
    return int(rows[0][0]) if rows else None


def _query(span: SeqRange, source: str, *, ordered: bool) -> str:
    columns = ", ".join(f"{text} AS {sandbox.quote_name(name)}" for name, text in span.select.columns)
    kept = f"coalesce(({span.select.where}), false)" if span.select.where else "true"
    return (
        f"SELECT {columns}, {kept} AS {_KEPT}, {SEQ} AS {_ORDER} FROM ({source}) "
        f"WHERE {SEQ} > {span.since} AND {SEQ} <= {span.until}{'' if ordered else f' ORDER BY {_ORDER}'}"
    )


def _piece(batch: pa.RecordBatch, schema: pa.Schema) -> Piece:
    kept = batch.column(_KEPT)
    rows = batch.drop_columns([_KEPT, _ORDER]).cast(schema)
    filtered = rows.filter(kept) if kept.false_count else rows
    return Piece(filtered, batch.num_rows - filtered.num_rows)
