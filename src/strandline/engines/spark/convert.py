"""The first pass of a large load: input of any kind becomes Parquet in its table's shape, on all of Spark's workers.

Each worker reads its chunks with the code that every row passes, and writes a Parquet file for each table that has rows
there. Only counts, names and the bad rows come back to the driver, so its memory does not grow with the input. A file
that has the right shape already is checked and used as it is.

Whether a row of a keyed table breaks a rule is known only when all tables are looked at together. It is then told by
its file and line, so these are kept beside such rows: the number of the chunk, and the line there. A file that is used
as it is has neither, and needs none: its rows are its lines.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.config import Store
from strandline.engines.files import FilePart, Placed, RowShape, Skipped, UnknownTable, read_own, read_placed, shape_of
from strandline.engines.storage import S3, bucket_of, know, open_uri, store_of
from strandline.errors import InvalidRows, StrandError
from strandline.json_types import JsonObject
from strandline.model.reporting import MAX_REPORTED
from strandline.model.values.arrow import stored_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AS_IT_IS_BYTES = 8 << 20
"""A Parquet file smaller than this is rewritten together with others, rather than becoming a task of its own."""

CHUNK, LINE = "_chunk", "_line"
_PLACE = [pa.field(CHUNK, pa.int32()), pa.field(LINE, pa.int64())]


@dataclass(frozen=True)
class Conversion:
    """What a load's rows have to look like, by the folded names of the tables that they may be for.

    `only` is the one table of all of them; without it each line names its own. Where `keeps_places` is set, as for
    keyed tables, a row has its chunk and its line beside it.
    """

    tables: Mapping[str, RowShape]
    only: str | None
    keeps_places: bool

    def read(self, chunk: FilePart, skipped: Skipped) -> Iterator[Placed]:
        """A chunk as validated rows, by table."""
        if self.keeps_places or self.only is None:
            return read_placed(chunk, self.tables, self.only, skipped)
        return read_own(chunk, self.tables[self.only], table=self.only, skipped=skipped)

    def file_schema(self, table: str) -> pa.Schema:
        """What a file of a table's rows has."""
        shape = self.tables[table]
        return pa.schema([*stored_schema(shape.schema, shape.extra), *(_PLACE if self.keeps_places else ())])


@dataclass(frozen=True)
class ConvertedPart:
    """A Parquet file with rows of one table. `chunk` is all of it where the file is the input's own."""

    table: str
    path: str
    rows: int
    size_bytes: int
    chunk: int | None


@dataclass(frozen=True)
class RowFault:
    """What is wrong with a row, told by its place in a chunk."""

    chunk: int
    entry: JsonObject


@dataclass(frozen=True)
class Converted:
    """What became of one list of chunks: a file for each table, how many lines each chunk has, what is wrong."""

    parts: tuple[ConvertedPart, ...] = ()
    lines: Mapping[int, int] = field(default_factory=dict)
    skipped: int = 0
    bad: tuple[RowFault, ...] = ()
    bad_count: int = 0
    error: StrandError | None = None
    unknown: str | None = None


@dataclass(frozen=True)
class NumberedChunk:
    """A chunk, and which of all the load's chunks it is."""

    number: int
    chunk: FilePart


def convert(
    session: SparkSession, work: Sequence[Sequence[FilePart]], conversion: Conversion, *, folder: str
) -> list[Converted]:
    """Convert all of it on Spark's workers, in the order of `work`, whose chunks are numbered in theirs."""
    addresses = {folder, *(chunk.input.uri for chunks in work for chunk in chunks)}
    stores = {bucket_of(uri): store_of(uri) for uri in addresses if uri.startswith(S3)}
    task = partial(convert_chunks, conversion=conversion, folder=folder, stores=stores)
    numbers = itertools.count()
    numbered = [[NumberedChunk(next(numbers), chunk) for chunk in chunks] for chunks in work]
    return list(session.sparkContext.parallelize(numbered, max(1, len(numbered))).map(task).collect())


def convert_chunks(
    chunks: Sequence[NumberedChunk], *, conversion: Conversion, folder: str, stores: Mapping[str, Store]
) -> Converted:
    """One task: read, judge and write these chunks."""
    for bucket, store in stores.items():
        know(f"{S3}{bucket}", store)
    writer = _Writer(chunks, conversion, folder)
    try:
        for numbered in chunks:
            writer.take(numbered.number, numbered.chunk)
    except StrandError as error:
        return Converted(error=error)
    except UnknownTable as error:
        return Converted(unknown=str(error.args[0]))
    finally:
        writer.close()
    return Converted(
        parts=tuple(writer.parts()),
        lines=writer.lines,
        skipped=writer.skipped.rows,
        bad=tuple(writer.bad[:MAX_REPORTED]),
        bad_count=writer.bad_count,
    )


class _Writer:
    """The files that one list of chunks becomes, one for each table that has rows there."""

    def __init__(self, chunks: Sequence[NumberedChunk], conversion: Conversion, folder: str) -> None:
        self._conversion = conversion
        self._folder = folder
        self._kept = chunks[0] if _is_as_it_is(chunks, conversion) else None
        self._outputs: dict[str, tuple[str, Output]] = {}
        self.skipped = Skipped()
        self.lines: dict[int, int] = {}
        self.bad: list[RowFault] = []
        self.bad_count = 0

    def take(self, number: int, chunk: FilePart) -> None:
        """Read a chunk, and write its rows unless some are wrong."""
        before = self.skipped.lines
        for placed in self._conversion.read(chunk, self.skipped):
            if isinstance(placed.rows, InvalidRows):
                self.bad_count += placed.rows.detail["bad"]
                self.bad.extend(RowFault(number, entry) for entry in placed.rows.detail["rows"])
            elif not self.bad and placed.rows.num_rows:
                self._output(placed.table).write(self._written(placed.rows, number, placed.lines))
        self.lines[number] = self.skipped.lines - before

    def _written(self, rows: pa.RecordBatch, number: int, lines: Sequence[int]) -> pa.RecordBatch:
        if self._kept is not None or not self._conversion.keeps_places:
            return rows
        arrays = [pa.array([number] * rows.num_rows, pa.int32()), pa.array(lines, pa.int64())]
        return pa.RecordBatch.from_arrays([*rows.columns, *arrays], schema=pa.schema([*rows.schema, *_PLACE]))

    def _output(self, table: str) -> Output:
        if table not in self._outputs:
            path = f"{self._folder}/part-{uuid.uuid4().hex}.parquet"
            if self._kept is not None:
                path = self._kept.chunk.input.uri
            output = Output(path if self._kept is None else None, self._conversion.file_schema(table))
            self._outputs[table] = path, output
        return self._outputs[table][1]

    def parts(self) -> Iterator[ConvertedPart]:
        """What was written."""
        for table, (path, output) in self._outputs.items():
            if self._kept is None:
                yield ConvertedPart(table, path, output.rows, output.size_bytes(), None)
            else:
                yield ConvertedPart(table, path, output.rows, self._kept.chunk.input.size_bytes, self._kept.number)

    def close(self) -> None:
        """Finish the files."""
        for _, output in self._outputs.values():
            output.close()


def _is_as_it_is(chunks: Sequence[NumberedChunk], conversion: Conversion) -> bool:
    """Whether these chunks are one large Parquet file that has the right shape already."""
    if conversion.only is None or len(chunks) != 1:
        return False
    source = chunks[0].chunk.input
    if source.format != "parquet" or source.size_bytes < AS_IT_IS_BYTES:
        return False
    shape = conversion.tables[conversion.only]
    return bool(shape_of(source).remove_metadata().equals(stored_schema(shape.schema, shape.extra)))


class Output:
    """A Parquet file that exists only if something is written to it; without a path, rows are only counted."""

    def __init__(self, uri: str | None, schema: pa.Schema) -> None:
        self._uri = uri
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self.rows += batch.num_rows
        if self._uri is None or batch.num_rows == 0:
            return
        if self._writer is None:
            system, path = open_uri(self._uri)
            self._writer = pq.ParquetWriter(
                path, self._schema, filesystem=system, compression="snappy", use_dictionary=False
            )
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()

    def size_bytes(self) -> int:
        """How large the file has become."""
        if self._uri is None or self._writer is None:
            return 0
        system, path = open_uri(self._uri)
        return int(system.get_file_info(path).size)
