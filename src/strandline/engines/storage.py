"""Files on a local disk or in an object store, behind one kind of address."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def open_uri(uri: str) -> tuple[FileSystem, str]:
    """The file system and path behind a URI or an absolute path."""
    from pyarrow.fs import FileSystem, LocalFileSystem

    if uri.startswith("file:"):
        # Not decoded: Hadoop and Iceberg write such addresses as they are, percent signs included.
        return LocalFileSystem(), uri.removeprefix("file://").removeprefix("file:")
    system, path = FileSystem.from_uri(uri)
    return system, path
