"""Buckets for DuckDB, read through PyArrow: its own S3 is an extension that it would have to download.

It is asked for files by their full names, and never for patterns: a name that looks like one is still a name.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

from strandline.engines.storage import S3, open_uri

if TYPE_CHECKING:
    import pyarrow as pa


class ObjectInfo(TypedDict):
    """What fsspec says of a file."""

    name: str
    size: int
    type: str
    mtime: datetime


class Buckets(AbstractFileSystem):  # type: ignore[misc]
    """Files at `s3://`, as much of them as DuckDB asks for to read Parquet."""

    protocol = "s3"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix(S3)

    def open(self, path: str, mode: str = "rb", **_: object) -> pa.NativeFile:
        """A file to read, at any place of it."""
        system, name = self._at(path)
        return system.open_input_file(name)

    def info(self, path: str, **_: object) -> ObjectInfo:
        """What is known of a file without opening it."""
        system, name = self._at(path)
        file = system.get_file_info(name)
        if not file.is_file:
            raise FileNotFoundError(path)
        return {"name": path, "size": file.size, "type": "file", "mtime": file.mtime}

    def exists(self, path: str, **_: object) -> bool:
        """Whether there is such a file."""
        system, name = self._at(path)
        return bool(system.get_file_info(name).is_file)

    def modified(self, path: str) -> datetime:
        """When a file was written."""
        return self.info(path)["mtime"]

    def glob(self, path: str, **_: object) -> list[str]:
        """The file of that name."""
        return [path]

    def _at(self, path: str) -> tuple[Any, str]:
        return open_uri(f"{S3}{self._strip_protocol(path)}")
