"""Files of a lake's warehouse, reached behind its back wherever it is: on a disk, or in the tests' S3 server."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType

from strandline.engines.storage import S3, open_uri, store_of
from strandline.lake import Lake
from tests import s3


def read(uri: str) -> bytes:
    """The content of a file."""
    system, path = open_uri(uri)
    with system.open_input_stream(path) as stream:
        content: bytes = stream.read()
    return content


def rows(uri: str) -> pa.Table:
    """The rows of a Parquet file."""
    return pq.read_table(pa.BufferReader(read(uri)))


def write(uri: str, content: bytes) -> None:
    """Put a file there, or another in its place."""
    system, path = open_uri(uri)
    with system.open_output_stream(path) as stream:
        stream.write(content)


def remove(uri: str) -> None:
    """Take a file away."""
    system, path = open_uri(uri)
    system.delete_file(path)


def exists(uri: str) -> bool:
    """Whether there is such a file."""
    system, path = open_uri(uri)
    return bool(system.get_file_info(path).type == FileType.File)


def listing(uri: str) -> dict[str, tuple[int, int]]:
    """Every file under an address, with its size and time."""
    system, path = open_uri(uri)
    found = system.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    scheme = S3 if uri.startswith(S3) else "file://"
    return {f"{scheme}{one.path}": (one.size, one.mtime_ns) for one in found if one.type == FileType.File}


def remove_all(lake: Lake) -> None:
    """Lose the whole warehouse."""
    for uri in listing(lake.config.warehouse):
        remove(uri)


def on_disk(uri: str) -> Path:
    """Where a file or a folder is on this machine: the tests' S3 server keeps a bucket in a folder."""
    if not uri.startswith(S3):
        return Path(uri.removeprefix("file://").removeprefix("file:"))
    endpoint = store_of(uri).endpoint
    assert endpoint is not None
    return s3.FOLDERS[endpoint] / uri.removeprefix(S3)


def grow_old(uri: str, age_s: float) -> None:
    """Let the store believe that it was written so long ago."""
    moment_s = time.time() - age_s
    os.utime(on_disk(uri), (moment_s, moment_s))
