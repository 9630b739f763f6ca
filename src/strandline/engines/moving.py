"""Iceberg tables that get another place: their metadata is written again, because it names files by their full address.

A table's metadata file, its lists of manifests and its manifests are read, every address in them is changed, and they
are written for the new place; data files don't name any other. Nothing that is there is overwritten in a table that is
in use: until the catalog names the new metadata file, all of it is garbage. No JVM is needed.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from strandline import private
from strandline.engines.avro import read_container, write_container
from strandline.engines.disk import sync
from strandline.engines.metadata import file_of
from strandline.engines.storage import S3, open_uri
from strandline.errors import Unsupported
from strandline.json_types import Json

LOCAL = "file://"
COPY_BYTES = 4 << 20
_DELETES = 1
"""A list's word for manifests of delete files, which name data files inside."""


@dataclass(frozen=True)
class Move:
    """From one warehouse to another: what an address in the old one is in the new one."""

    old: str
    new: str

    def __call__(self, address: str) -> str:
        """The new address of a file; one that has it already keeps it. ValueError when it lies outside of both."""
        inside = _inside(address, self.old)
        if inside is None and _inside(address, self.new) is not None:
            return address
        if inside is None and not address.startswith(S3) and self.old.startswith(LOCAL):
            real = Move(LOCAL + os.path.realpath(_path(self.old)), self.new)
            inside = _inside(os.path.realpath(_path(address)), real.old)
        if inside is None or ".." in inside.split("/"):
            raise ValueError(f"{address} is not in the warehouse {self.old}")
        if self.new.startswith(LOCAL) and not address.startswith(S3):
            return f"{_scheme(address)}{_path(self.new)}/{inside}"
        return f"{self.new}/{inside}"

    def covers(self, address: str) -> bool:
        """Whether an address is in the old warehouse, or in the new one."""
        try:
            self(address)
        except ValueError:
            return False
        return True

    def in_text(self, text: str) -> str:
        """A text that may be an address of the old warehouse, else as it is."""
        return self(text) if _inside(text, self.old) is not None else text

    def in_document(self, value: Json) -> Json:
        """A JSON document in which every address of the old warehouse is one of the new."""
        if isinstance(value, str):
            return self.in_text(value)
        if isinstance(value, list):
            return [self.in_document(item) for item in value]
        if isinstance(value, dict):
            return {key: self.in_document(item) for key, item in value.items()}
        return value


def is_inside(address: str, warehouse: str) -> bool:
    """Whether a file is below a warehouse: by its address, and on a disk also by where its folders really are."""
    if ".." in address.split("/") or not Move(warehouse, warehouse).covers(address):
        return False
    if address.startswith(S3):
        return True
    real = os.path.realpath(_path(warehouse))
    return os.path.realpath(_path(address)).startswith(f"{real}/")


def _scheme(address: str) -> str:
    return next((scheme for scheme in (LOCAL, "file:") if address.startswith(scheme)), "")


def _path(address: str) -> str:
    """The path of a local address: Iceberg and Hadoop write it in several ways."""
    return address.removeprefix(_scheme(address))


def _inside(address: str, warehouse: str) -> str | None:
    """What an address is relative to a warehouse; None when it is not in there."""
    if warehouse.startswith(S3) or address.startswith(S3):
        base, whole = f"{warehouse.rstrip('/')}/", address
    else:
        base, whole = f"{_path(warehouse).rstrip('/')}/", _path(address)
    return whole.removeprefix(base) if whole.startswith(base) and whole != base else None


@dataclass(frozen=True)
class OldFiles:
    """Where the bytes of a file of the old warehouse are, by its old address."""

    open: Callable[[str], IO[bytes]]

    def read(self, address: str) -> bytes:
        """All of a file."""
        with self.open(address) as stream:
            return stream.read()


def at(place: Callable[[str], str]) -> OldFiles:
    """Files that are in a warehouse, at an address that is made of the old one."""

    def opened(address: str) -> IO[bytes]:
        system, path = open_uri(place(address))
        stream: IO[bytes] = system.open_input_stream(path)
        return stream

    return OldFiles(opened)


def move_table(location: str, move: Move, source: OldFiles, *, name: str = "") -> tuple[str, list[str]]:
    """Write a table's metadata for its new place: where it is, and the old addresses of the data files that it names.

    With a `name` the new files have it in theirs, so that none takes the place of another.
    """
    raw = source.read(location)
    packed = raw.startswith(b"\x1f\x8b")
    document = orjson.loads(gzip.decompress(raw) if packed else raw)
    manifests: dict[str, tuple[str, int]] = {}
    data: dict[str, None] = {}
    for snapshot in document.get("snapshots", []):
        snapshot["manifest-list"] = _move_list(snapshot["manifest-list"], move, source, name, manifests, data)
    for key in ("metadata-log", "statistics", "partition-statistics"):
        if key in document:
            document[key] = []  # Iceberg would remove the old place's metadata files, by and by
    changed = orjson.dumps(move.in_document(document))
    target = _named(move(location), name)
    write(target, gzip.compress(changed) if packed else changed)
    return target, list(data)


def _move_list(
    location: str, move: Move, source: OldFiles, name: str, manifests: dict[str, tuple[str, int]], data: dict[str, None]
) -> str:
    header, records = read_container(source.read(location))
    changed = []
    for record in records:
        if record.get("content") == _DELETES:
            raise Unsupported(
                f"{location} has delete files, and these name data files inside",
                hint="Compact the table first: its rows are then in data files alone.",
            )
        path = str(record["manifest_path"])
        if path not in manifests:
            manifests[path] = _move_manifest(path, move, source, name, data)
        moved, size_bytes = manifests[path]
        changed.append({**record, "manifest_path": moved, "manifest_length": size_bytes})
    target = _named(move(location), name)
    write(target, write_container(header, changed))
    return target


def _move_manifest(location: str, move: Move, source: OldFiles, name: str, data: dict[str, None]) -> tuple[str, int]:
    header, records = read_container(source.read(location))
    changed = []
    for record in records:
        file = file_of(record)
        path = str(file["file_path"])
        if record["status"] != _GONE:
            data[path] = None
        changed.append({**record, "data_file": {**file, "file_path": move(path)}})
    target, content = _named(move(location), name), write_container(header, changed)
    write(target, content)
    return target, len(content)


_GONE = 2
"""A manifest's word for a file that is not part of the table any more."""


def _named(address: str, name: str) -> str:
    """A file's address with a name in it. What stands before the first dash of a metadata file counts its versions."""
    if not name:
        return address
    folder, _, file = address.rpartition("/")
    version = re.match(r"(\d+)-.*(\.metadata\.json(?:\.gz)?|\.gz\.metadata\.json)$", file)
    if version is not None:
        return f"{folder}/{version[1]}-{name}{version[2]}"
    stem, _, ending = file.rpartition(".")
    return f"{folder}/{stem}-{name}.{ending}"


def copy_files(addresses: list[str], move: Move, source: OldFiles) -> Iterator[int]:
    """Copy data files to their new place, and say after each how many there are by now; one that is there is kept."""
    for number, address in enumerate(addresses):
        with source.open(address) as content:
            write_from(move(address), content)
        yield number + 1


def write_from(address: str, content: IO[bytes]) -> None:
    """Write a file out of another, whole or not at all."""
    _write(address, lambda target: shutil.copyfileobj(content, target, COPY_BYTES))


def write(address: str, content: bytes) -> None:
    """Write a file, whole or not at all."""
    _write(address, lambda target: target.write(content))


def _write(address: str, fill: Callable[[Any], object]) -> None:
    """A bucket shows an object when all of it is there; a folder needs another name until then."""
    system, path = open_uri(address)
    if address.startswith(S3):
        with system.open_output_stream(path) as target:
            fill(target)
        return
    final = Path(path)
    private.make_folder(final.parent)
    temporary = final.with_name(f".{final.name}.moving")
    with open(temporary, "wb", opener=private.opener) as target:
        fill(target)
    sync(temporary)
    temporary.replace(final)
    sync(final.parent)
