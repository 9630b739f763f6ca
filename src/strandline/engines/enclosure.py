"""What a table's metadata names outside of its warehouse.

Iceberg believes its metadata: it reads the files that are named there, and an expiry deletes them. Metadata that was
written in its warehouse names files of it. Metadata that comes with a backup may have any author, so all that it leads
to is looked at before any of it is used: also entries of files that are not part of the table any more, because those
are what an expiry deletes.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from strandline.engines.avro import read_records
from strandline.engines.metadata import file_of
from strandline.engines.moving import is_inside

Reader = Callable[[str], bytes | None]
"""A file's bytes as a backup has them; None for a file that the backup does not bring."""

_ADDRESSES = frozenset({"location", "metadata-file", "manifest-list", "statistics-path"})


def strays(metadata_file: str, warehouse: str, read: Reader) -> Iterator[str]:
    """Every address outside of the warehouse that a table's metadata leads to."""
    if not is_inside(metadata_file, warehouse):
        yield metadata_file
        return
    content = read(metadata_file)
    if content is None:
        return
    document = orjson.loads(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content)
    outside = [address for address in _addresses(document) if not is_inside(f"{address}/x", warehouse)]
    yield from outside
    seen = set[str]()
    for snapshot in document.get("snapshots", []) if not outside else []:
        yield from _strays_of_list(str(snapshot["manifest-list"]), warehouse, read, seen)


def _addresses(value: Any, key: str = "") -> Iterator[str]:
    """What a metadata file names, by Iceberg's keys for it, and whatever looks like an address in its properties."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _addresses(item, "properties" if key == "properties" else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _addresses(item, key)
    elif isinstance(value, str) and (key in _ADDRESSES or (key == "properties" and _looks_like_one(value))):
        yield value


def _looks_like_one(text: str) -> bool:
    return text.startswith(("/", "file:")) or "://" in text


def _strays_of_list(address: str, warehouse: str, read: Reader, seen: set[str]) -> Iterator[str]:
    content = read(address)
    for record in read_records(content) if content is not None else []:
        path = str(record["manifest_path"])
        if path in seen:
            continue
        seen.add(path)
        if not is_inside(path, warehouse):
            yield path
            continue
        manifest = read(path)
        for entry in read_records(manifest) if manifest is not None else []:
            file = str(file_of(entry)["file_path"])
            if not is_inside(file, warehouse):
                yield file
