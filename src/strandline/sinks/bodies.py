"""Rows as the body of a request: Arrow or NDJSON, compressed or not."""

from __future__ import annotations

import gzip

import pyarrow as pa
import zstandard

from strandline.errors import Internal
from strandline.model.wire import to_json_lines

CONTENT_TYPES = {"arrow": "application/vnd.apache.arrow.stream", "ndjson": "application/x-ndjson"}
ZSTD_LEVEL = 1
GZIP_LEVEL = 3


def uncompressed(rows: pa.RecordBatch, format_: str) -> bytes:
    """The canonical bytes of a chunk: what its batch id is made of, however they are compressed."""
    if format_ == "ndjson":
        return b"".join(line if line.endswith(b"\n") else line + b"\n" for line in to_json_lines(rows))
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
