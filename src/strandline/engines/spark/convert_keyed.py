"""The first pass of a large load of keyed tables: rows by table, and each knows its place in the input.

It is what `convert` does for a log table. Whether a row breaks a rule is known only when all tables are looked at
together; it is then told by its file and line, so these are kept beside the rows: the number of the chunk, and the line
there. A Parquet file that is used as it is has neither, and needs none: its rows are its lines.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.config import Store
from strandline.engines.files import Asked, Chunk, Skipped, read_placed
from strandline.engines.spark.convert import Output, is_as_it_is
from strandline.engines.storage import S3, bucket_of, know, store_of
from strandline.errors import InvalidRows, StrandError
from strandline.model.arrow import stored_schema
from strandline.model.reporting import MAX_REPORTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK, LINE = "_chunk", "_line"
_PLACE = [pa.field(CHUNK, pa.int32()), pa.field(LINE, pa.int64())]


@dataclass(frozen=True)
class KeyedPart:
    """A Parquet file with rows of one table. `chunk` is all of it where the file is the input's own."""

    table: str
    path: str
    rows: int
    chunk: int | None


@dataclass(frozen=True)
class ConvertedKeyed:
    """What became of one list of chunks: a file for each table, how many lines each chunk has, what is wrong."""

    parts: tuple[KeyedPart, ...] = ()
    lines: tuple[tuple[int, int], ...] = ()
    skipped: int = 0
    bad: tuple[tuple[int, dict[str, Any]], ...] = ()
    bad_count: int = 0
    error: StrandError | None = None
    unknown: str | None = None


Numbered = tuple[int, Chunk]


def convert_keyed(
    session: SparkSession,
    work: Sequence[Sequence[Numbered]],
    tables: Mapping[str, Asked],
    *,
    table: str | None,
    folder: str,
) -> list[ConvertedKeyed]:
    """Convert all of it on Spark's workers, in the order of `work`."""
    addresses = {folder, *(chunk.input.uri for chunks in work for _, chunk in chunks)}
    stores = {bucket_of(uri): store_of(uri) for uri in addresses if uri.startswith(S3)}
    task = partial(convert_one, tables=dict(tables), table=table, folder=folder, stores=stores)
    return list(session.sparkContext.parallelize(list(work), max(1, len(work))).map(task).collect())


def convert_one(
    chunks: Sequence[Numbered],
    *,
    tables: Mapping[str, Asked],
    table: str | None,
    folder: str,
    stores: Mapping[str, Store],
) -> ConvertedKeyed:
    """One task: read, judge and write these chunks."""
    for bucket, store in stores.items():
        know(f"{S3}{bucket}", store)
    writer = _Writer(chunks, tables, table, folder)
    try:
        for number, chunk in chunks:
            writer.take(number, chunk)
    except StrandError as error:
        return ConvertedKeyed(error=error)
    except KeyError as error:
        return ConvertedKeyed(unknown=str(error.args[0]))
    finally:
        writer.close()
    return ConvertedKeyed(
        parts=tuple(writer.parts()),
        lines=tuple(writer.lines),
        skipped=writer.skipped.rows,
        bad=tuple(writer.bad[:MAX_REPORTED]),
        bad_count=writer.bad_count,
    )


class _Writer:
    """The files that one list of chunks becomes, one for each table that has rows there."""

    def __init__(self, chunks: Sequence[Numbered], tables: Mapping[str, Asked], table: str | None, folder: str) -> None:
        self._tables = tables
        self._table = table
        self._folder = folder
        self._kept = self._as_it_is([chunk for _, chunk in chunks])
        self._first = chunks[0] if chunks else None
        self._outputs: dict[str, tuple[str, Output]] = {}
        self.skipped = Skipped()
        self.lines: list[tuple[int, int]] = []
        self.bad: list[tuple[int, dict[str, Any]]] = []
        self.bad_count = 0

    def _as_it_is(self, chunks: Sequence[Chunk]) -> bool:
        if self._table is None or not chunks:
            return False
        asked = self._tables[self._table]
        return is_as_it_is(chunks, asked.schema, asked.extra)

    def take(self, number: int, chunk: Chunk) -> None:
        """Read a chunk, and write its rows unless some are wrong."""
        before = self.skipped.lines
        for name, places, batch in read_placed(chunk, self._tables, self._table, self.skipped):
            if isinstance(batch, InvalidRows):
                self.bad_count += batch.detail["bad"]
                self.bad.extend((number, row) for row in batch.detail["rows"])
            elif not self.bad and batch.num_rows:
                self._output(name).write(batch if self._kept else _with_places(batch, number, places))
        self.lines.append((number, self.skipped.lines - before))

    def _output(self, name: str) -> Output:
        if name not in self._outputs:
            asked = self._tables[name]
            shape = stored_schema(asked.schema, asked.extra)
            path = f"{self._folder}/part-{uuid.uuid4().hex}.parquet"
            if self._kept and self._first is not None:
                path = self._first[1].input.uri
            output = Output(None if self._kept else path, pa.schema([*shape, *_PLACE]))
            self._outputs[name] = path, output
        return self._outputs[name][1]

    def parts(self) -> list[KeyedPart]:
        """What was written."""
        chunk = self._first[0] if self._kept and self._first is not None else None
        return [KeyedPart(name, path, output.rows, chunk) for name, (path, output) in self._outputs.items()]

    def close(self) -> None:
        """Finish the files."""
        for _, output in self._outputs.values():
            output.close()


def _with_places(batch: pa.RecordBatch, number: int, places: Sequence[int]) -> pa.RecordBatch:
    arrays = [pa.array([number] * batch.num_rows, pa.int32()), pa.array(places, pa.int64())]
    return pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=pa.schema([*batch.schema, *_PLACE]))
