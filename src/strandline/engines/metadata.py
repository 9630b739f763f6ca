"""An Iceberg table's metadata, read without a JVM: what it knows, and which files it leads to.

A metadata file is JSON; it names lists of manifests, these name manifests, and these name data files. Nothing here is
ever written. Doctor compares what it says with the ledger, and a backup copies what it leads to.
"""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import orjson
import pyarrow as pa

from strandline.engines.avro import AvroRecord, read_records
from strandline.engines.storage import open_uri

UNREADABLE = (OSError, ValueError, KeyError, pa.ArrowException)
"""What a file that is gone, cut or changed raises here."""

_DELETED = 2
"""A manifest's word for a file that is not part of the table any more."""


IcebergSnapshot = TypedDict(
    "IcebergSnapshot",
    {"snapshot-id": int, "timestamp-ms": int, "manifest-list": str, "summary": NotRequired[dict[str, str] | None]},
)
"""A snapshot as a metadata file has it."""
IcebergRef = TypedDict("IcebergRef", {"snapshot-id": int})
"""A branch or a tag as a metadata file has it."""
MovedMain = TypedDict("MovedMain", {"timestamp-ms": int})
"""An entry of a metadata file's log: when `main` was moved."""
IcebergMetadata = TypedDict(
    "IcebergMetadata",
    {
        "snapshots": list[IcebergSnapshot],
        "refs": dict[str, IcebergRef],
        "snapshot-log": list[MovedMain] | None,
        "last-updated-ms": int,
    },
    total=False,
)
"""What is read of a table's metadata file; there is more in it."""


@dataclass(frozen=True)
class IcebergManifest:
    """A manifest as a snapshot's list names it."""

    path: str
    size_bytes: int


def read_metadata(location: str) -> IcebergMetadata:
    """A table's metadata file."""
    data = read_file(location)
    document: IcebergMetadata = orjson.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return document


def snapshots(metadata: IcebergMetadata) -> dict[int, IcebergSnapshot]:
    """Every snapshot that a metadata file knows, by its id."""
    return {int(snapshot["snapshot-id"]): snapshot for snapshot in metadata.get("snapshots", [])}


def refs(metadata: IcebergMetadata) -> dict[str, int]:
    """Every ref of a metadata file, and the snapshot it is at."""
    return {str(ref): int(value["snapshot-id"]) for ref, value in metadata.get("refs", {}).items()}


def manifests(snapshot: IcebergSnapshot) -> list[IcebergManifest]:
    """The manifests of a snapshot."""
    listed = read_records(read_file(str(snapshot["manifest-list"])))
    return [IcebergManifest(str(record["manifest_path"]), _length_of(record)) for record in listed]


def _length_of(record: AvroRecord) -> int:
    size_bytes = record["manifest_length"]
    if not isinstance(size_bytes, int):
        raise ValueError(f"a manifest has the length {size_bytes!r}")
    return size_bytes


def data_files(manifest: IcebergManifest) -> list[str]:
    """The files that a manifest names and that are still part of the table."""
    entries = read_records(read_file(manifest.path))
    return [str(file_of(entry)["file_path"]) for entry in entries if entry["status"] != _DELETED]


def file_of(entry: AvroRecord) -> AvroRecord:
    """What an entry of a manifest says of its file."""
    file = entry["data_file"]
    if not isinstance(file, dict):
        raise ValueError(f"a manifest names the file {file!r}")
    return file


def reachable(metadata: IcebergMetadata) -> Iterator[str]:
    """Every file that a metadata file leads to, once: lists, manifests, data files of all its snapshots."""
    seen: set[str] = set()
    for snapshot in snapshots(metadata).values():
        yield str(snapshot["manifest-list"])
        for manifest in manifests(snapshot):
            if manifest.path in seen:
                continue
            seen.add(manifest.path)
            yield manifest.path
            for path in data_files(manifest):
                if path not in seen:
                    seen.add(path)
                    yield path


def read_file(location: str) -> bytes:
    """A small file, wherever it is."""
    system, path = open_uri(location)
    with system.open_input_stream(path) as stream:
        return bytes(stream.read())


def size_of(location: str) -> int:
    """A file's size; FileNotFoundError where there is none."""
    system, path = open_uri(location)
    size = system.get_file_info(path).size
    if size is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return int(size)
