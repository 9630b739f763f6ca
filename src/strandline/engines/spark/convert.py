"""The first pass of a bulk load: input of any kind becomes Parquet in the table's shape, on all of Spark's workers.

Each worker reads its chunks with the code that every row passes, and writes one Parquet file. Only counts, names and
the bad rows come back to the driver, so its memory does not grow with the input. A file that has the right shape
already is checked and used as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.config import Store
from strandline.engines.files import Asked, Chunk, Skipped, read_chunk, shape_of
from strandline.engines.storage import S3, bucket_of, know, open_uri, store_of
from strandline.errors import InvalidRows, StrandError
from strandline.model.arrow import stored_schema
from strandline.model.reporting import MAX_REPORTED
from strandline.model.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AS_IT_IS_BYTES = 8 << 20
"""A Parquet file smaller than this is rewritten together with others, rather than becoming a task of its own."""


@dataclass(frozen=True)
class Converted:
    """What became of one list of chunks: a Parquet file, or the rows that are wrong."""

    path: str
    rows: int
    size_bytes: int
    skipped: int
    lines: tuple[tuple[str, int], ...]
    bad: tuple[tuple[str, int, dict[str, Any]], ...]
    bad_count: int
    error: StrandError | None = None


def convert(
    session: SparkSession, work: Sequence[Sequence[Chunk]], asked: Asked, *, table: str, folder: str
) -> list[Converted]:
    """Convert all of it on Spark's workers, in the order of `work`."""
    addresses = {folder, *(chunk.input.uri for chunks in work for chunk in chunks)}
    stores = {bucket_of(uri): store_of(uri) for uri in addresses if uri.startswith(S3)}
    task = partial(convert_one, asked=asked, table=table, folder=folder, stores=stores)
    return list(session.sparkContext.parallelize(list(work), len(work)).map(task).collect())


def convert_one(
    chunks: Sequence[Chunk], *, asked: Asked, table: str, folder: str, stores: Mapping[str, Store]
) -> Converted:
    """One task: read, judge and write these chunks."""
    for bucket, store in stores.items():
        know(f"{S3}{bucket}", store)
    keep = is_as_it_is(chunks, asked.schema, asked.extra)
    path = chunks[0].input.uri if keep else f"{folder}/part-{uuid.uuid4().hex}.parquet"
    output = Output(None if keep else path, stored_schema(asked.schema, asked.extra))
    skipped = Skipped()
    lines: list[tuple[str, int]] = []
    bad: list[tuple[str, int, dict[str, Any]]] = []
    bad_count = 0
    try:
        for chunk in chunks:
            read = 0
            for size, batch in read_chunk(chunk, asked, table=table, skipped=skipped):
                read += size
                if isinstance(batch, InvalidRows):
                    bad_count += batch.detail["bad"]
                    bad.extend((chunk.input.uri, chunk.start, row) for row in batch.detail["rows"])
                elif not bad:
                    output.write(batch)
            lines.append((chunk.input.uri, read))
    except StrandError as error:
        return Converted(path, 0, 0, 0, (), (), 0, error)
    finally:
        output.close()
    size_bytes = chunks[0].input.size_bytes if keep else output.size_bytes()
    return Converted(path, output.rows, size_bytes, skipped.rows, tuple(lines), tuple(bad[:MAX_REPORTED]), bad_count)


def is_as_it_is(chunks: Sequence[Chunk], schema: Schema, extra: bool) -> bool:
    """Whether these chunks are one large Parquet file that has the right shape already."""
    one = chunks[0].input
    if len(chunks) > 1 or one.format != "parquet" or one.size_bytes < AS_IT_IS_BYTES:
        return False
    return bool(shape_of(one).remove_metadata().equals(stored_schema(schema, extra)))


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
