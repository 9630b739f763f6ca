"""Rows as the body of a request: Arrow or NDJSON, compressed or not."""

from __future__ import annotations

import gzip

import pyarrow as pa
import zstandard

from strandline.errors import Internal
from strandline.model.schema.schema import Schema
from strandline.model.values.wire import to_json_lines

CONTENT_TYPES = {"arrow": "application/vnd.apache.arrow.stream", "ndjson": "application/x-ndjson"}
ZSTD_LEVEL = 1
GZIP_LEVEL = 3


def uncompressed(rows: pa.RecordBatch, format_: str, schema: Schema | None) -> bytes:
    """The canonical bytes of a chunk: what its batch id is made of, however they are compressed.

    JSON lines need the schema, to say json as it is and not as text.
    """
    if format_ == "ndjson":
        return b"".join(to_json_lines(rows, schema))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(out.getvalue())


def compress(data: bytes, how: str) -> bytes:
    """The same bytes, smaller."""
    match how:
        case "zstd":
            return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
        case "gzip":
            return gzip.compress(data, GZIP_LEVEL, mtime=0)
        case "none":
            return data
    raise Internal(f"no compression {how!r}")
