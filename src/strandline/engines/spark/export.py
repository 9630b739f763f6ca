"""Writing one range of a log as one object, on one of Spark's workers.

The worker reads the range in seq order, encodes it as it comes, and sends back counts alone: the driver's memory does
not grow with the unit, and the worker's by no more than a row group. What is written depends on the rows and on nothing
else: not on how the reader happened to cut them into batches, not on the time. So a unit that is written again after a
crash has the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat
import zstandard

from strandline.engines import objects
from strandline.engines.duck.ranges import SeqRange, read_range
from strandline.engines.duck.sandbox import quote_name
from strandline.engines.objects import ObjectPlace
from strandline.engines.read_back import read_present
from strandline.errors import Busy, StrandError, of_outage
from strandline.model.schema.schema import Schema
from strandline.model.values.arrow import is_bytes, is_list
from strandline.model.values.row_digest import RowsDigest
from strandline.model.values.wire import to_json_lines
from strandline.outages import judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK_ROWS = 2048
GROUP_ROWS = 60 * BLOCK_ROWS
GROUP_BYTES = 64 << 20
ZSTD_LEVEL = 3
DIGESTS_AHEAD = 8
"""How many batches of rows may wait for their digest."""

EXTENSIONS = {
    ("parquet", "zstd"): "parquet",
    ("parquet", "gzip"): "parquet",
    ("jsonl", "zstd"): "jsonl.zst",
    ("jsonl", "gzip"): "jsonl.gz",
}
"""The formats, and how their objects' names end."""


@dataclass(frozen=True)
class ObjectToWrite:
    """One object to write. On a disk it is left under `temporary`, for the driver to rename; in a bucket it is put
    under its name. Of the rows up to `lacking_upto` those are left out that the objects named in `present` hold.
    """

    rows: SeqRange
    schema: Schema
    format: str
    compression: str
    place: ObjectPlace
    name: str
    temporary: str
    digest: bool = False
    present: tuple[str, ...] = ()
    lacking_upto: int = 0


@dataclass(frozen=True)
class WrittenObject:
    """What was written: nothing at all when no row was kept.

    `sha256` is of the object's bytes; `rows_digest` of the rows that were kept, also of those that are there already,
    and None when there were none.
    """

    rows: int = 0
    withheld: int = 0
    size_bytes: int = 0
    sha256: str | None = None
    rows_digest: str | None = None
    error: StrandError | None = None


def export(session: SparkSession, order: ObjectToWrite) -> WrittenObject:
    """Let one of Spark's workers write the object."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        (done,) = session.sparkContext.parallelize([order], 1).map(write_object).collect()
    except (Py4JJavaError, PySparkException) as error:
        if (outage := judge(error)) is not None:
            raise of_outage(outage) from error
        raise Busy(
            f"Spark could not write {order.place.shown(order.name)}: {str(error)[:400]}",
            hint="A worker may have died; the same unit is tried again.",
            reason="spark",
        ) from error
    assert isinstance(done, WrittenObject)
    if done.error is not None:
        raise done.error
    return done


def write_object(order: ObjectToWrite) -> WrittenObject:
    """One task: read, encode, and put in place."""
    local = order.place.local
    try:
        return _into_bucket(order) if local is None else _onto_disk(order, local / order.temporary)
    except OSError as error:
        return WrittenObject(error=objects.store_error(error, order.place, order.name))
    except StrandError as error:
        return WrittenObject(error=error)


def _into_bucket(order: ObjectToWrite) -> WrittenObject:
    with tempfile.TemporaryFile() as spool:
        done = _encode(order, lambda: spool)
        if done.rows == 0:
            return done
        objects.upload(order.place, order.name, spool)
        return replace(done, size_bytes=spool.tell(), sha256=_sha256(spool) if order.digest else None)


def _onto_disk(order: ObjectToWrite, temporary: Path) -> WrittenObject:
    opened: list[IO[bytes]] = []

    def create() -> IO[bytes]:
        objects.make_folder(order.place, temporary.parent)
        opened.append(os.fdopen(objects.open_inside(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL), "r+b"))
        return opened[0]

    try:
        done = _encode(order, create)
        if done.rows == 0:
            return done
        (file,) = opened
        file.flush()
        os.fsync(file.fileno())
        return replace(done, size_bytes=file.tell(), sha256=_sha256(file) if order.digest else None)
    finally:
        for file in opened:
            file.close()


def _sha256(file: IO[bytes]) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


# -- encoding ----------------------------------------------------------------------------------------------------------


def _encode(order: ObjectToWrite, create: Callable[[], IO[bytes]]) -> WrittenObject:
    """Write the kept rows into the file that `create` makes when there is a first one; what was counted of them."""
    rows = withheld = considered = 0
    columns = order.rows.schema.names
    present = read_present(order.place, order.present, order.rows.since, order.lacking_upto, columns)

    def kept(digest: RowsDigest, digesting: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
        nonlocal rows, withheld, considered
        pending: deque[Future[None]] = deque()
        for piece in read_range(order.rows):
            batch = piece.rows
            considered += batch.num_rows
            withheld += piece.withheld
            # Beside the encoding: Arrow and the hash let other threads work.
            pending.append(digesting.submit(digest.add, batch))
            if len(pending) > DIGESTS_AHEAD:
                pending.popleft().result()
            if order.present:
                batch = batch.filter(present.lacks(batch, json_schema(order)))
            rows += batch.num_rows
            yield batch
        for future in pending:
            future.result()

    digest = RowsDigest()
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as digesting:
        blocks = even_blocks(kept(digest, digesting))
        first = next(blocks, None)
        if first is not None:
            write = _write_parquet if order.format == "parquet" else _write_json_lines
            write(order, chain([first], blocks), create())
    return WrittenObject(rows, withheld, rows_digest=digest.text() if considered else None)


def _write_parquet(order: ObjectToWrite, blocks: Iterator[pa.Table], file: IO[bytes]) -> None:
    level = ZSTD_LEVEL if order.compression == "zstd" else None
    with pq.ParquetWriter(
        file, order.rows.schema, compression=order.compression, compression_level=level, store_schema=True
    ) as writer:
        for group in row_groups(blocks):
            writer.write_table(group, row_group_size=group.num_rows)


def _write_json_lines(order: ObjectToWrite, blocks: Iterator[pa.Table], file: IO[bytes]) -> None:
    schema = json_schema(order)
    with _compressor(order.compression, file) as writer:
        for block in blocks:
            writer.write(b"".join(to_json_lines(block, schema)))


def _compressor(compression: str, file: IO[bytes]) -> AbstractContextManager[Any]:
    if compression == "gzip":
        return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0)
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(file, closefd=False)


def json_schema(order: ObjectToWrite) -> Schema | None:
    """The columns whose text is JSON and goes into a line as it is; one that is redacted is text like any other."""
    as_they_are = {name for name, text in order.rows.select.columns if text in (name, quote_name(name))}
    columns = tuple(column for column in order.schema.columns if column.name in as_they_are)
    return Schema(columns) if columns else None


def even_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in blocks of one size, wherever the reader cut them."""
    held: pa.Table | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        table = pa.Table.from_batches([batch])
        held = table if held is None else pa.concat_tables([held, table])
        while held.num_rows >= BLOCK_ROWS:
            yield held.slice(0, BLOCK_ROWS)
            held = held.slice(BLOCK_ROWS)
    if held is not None and held.num_rows:
        yield held


def row_groups(blocks: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Blocks together, up to so many rows or bytes: memory follows this, and so do readers of the object."""
    held: list[pa.Table] = []
    rows = size_bytes = 0
    for block in blocks:
        held.append(block)
        rows += block.num_rows
        size_bytes += sum(_weight(column) for column in block.columns)
        if rows >= GROUP_ROWS or size_bytes >= GROUP_BYTES:
            yield _joined(held)
            held, rows, size_bytes = [], 0, 0
    if held:
        yield _joined(held)


def _joined(blocks: list[pa.Table]) -> pa.Table:
    """As one chunk a column: Parquet's pages would follow the chunks."""
    return pa.concat_tables(blocks).combine_chunks()


def _weight(column: pa.ChunkedArray) -> int:
    """About how many bytes the values take. Not `nbytes`: that depends on how they happen to lie in memory."""
    type_ = column.type
    if pat.is_string(type_) or is_bytes(type_):
        return int(pc.sum(pc.binary_length(column)).as_py() or 0)
    if is_list(type_):
        return sum(_weight(pa.chunked_array([chunk.flatten()])) for chunk in column.chunks)
    if pat.is_map(type_):
        inner = [part for chunk in column.chunks for part in (chunk.keys, chunk.items)]
        return sum(_weight(pa.chunked_array([part])) for part in inner)
    if pat.is_struct(type_):
        return sum(_weight(part) for part in column.flatten())
    return 8 * len(column)
