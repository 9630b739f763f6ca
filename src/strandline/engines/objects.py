"""Objects in a place: a local folder or a bucket. Each appears whole under its name, or not at all.

Locally that is a temporary name in the same folder, fsync, rename, and fsync of every folder that changed. In a bucket
it is an upload that the store shows when it is complete. An upload is only begun when its bytes are all there, in a
local file: PyArrow has no way to abort one, and completes it when the stream is closed or collected, so one that fed it
rows as they are read would leave half an object behind when reading fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

from strandline import private
from strandline.config import Store
from strandline.engines import storage
from strandline.engines.storage import bucket_of, bucket_system
from strandline.errors import WAREHOUSE, Busy, Environment, NotFound, StrandError, of_outage
from strandline.model.delivery.object_names import TEMPORARY
from strandline.outages import Outage, OutageKind, judge

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

UPLOAD_BYTES = 8 << 20


@dataclass(frozen=True)
class ObjectPlace:
    """A prefix that objects are written below. It can be pickled: workers open it themselves, with their own
    credentials from the environment.
    """

    uri: str
    store: Store
    is_own: bool = False
    """Whether it is the lake's own: then no destination is to blame for its outages."""

    @property
    def local(self) -> Path | None:
        """The folder, where it is one."""
        return Path(self.uri.removeprefix("file://")) if self.uri.startswith("file://") else None

    def path(self, name: str) -> str:
        """An object's path in the file system of `system`."""
        base = str(self.local) if self.local is not None else self.uri.removeprefix("s3://")
        return f"{base.rstrip('/')}/{name}" if name else base.rstrip("/")

    def shown(self, name: str = "") -> str:
        """An object's address, for people."""
        return f"{self.uri.rstrip('/')}/{name}"

    @property
    def system(self) -> FileSystem:
        """What lists and reads it."""
        from pyarrow.fs import LocalFileSystem

        if self.local is not None:
            return LocalFileSystem()
        return bucket_system(bucket_of(self.uri), self.store)


@dataclass(frozen=True)
class FolderEntry:
    """Something in a folder."""

    name: str
    is_folder: bool


def listing(place: ObjectPlace, folder: str, *, recursive: bool = False) -> list[FolderEntry]:
    """What is in a folder, by name relative to it; nothing when there is no such folder."""
    from pyarrow.fs import FileSelector, FileType

    base = place.path(folder)
    with reaching(place, folder):
        infos = place.system.get_file_info(FileSelector(base, allow_not_found=True, recursive=recursive))
    return sorted(
        (FolderEntry(info.path[len(base) :].strip("/"), info.type == FileType.Directory) for info in infos),
        key=lambda entry: entry.name,
    )


def read_bytes(place: ObjectPlace, name: str) -> bytes | None:
    """A small object's content; None when there is none."""
    from pyarrow.fs import FileType

    with reaching(place, name):
        system, path = place.system, place.path(name)
        if system.get_file_info(path).type == FileType.NotFound:
            return None
        try:
            with system.open_input_stream(path, compression=None) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None


def exists(place: ObjectPlace, name: str) -> bool:
    """Whether there is such an object."""
    from pyarrow.fs import FileType

    with reaching(place, name):
        return bool(place.system.get_file_info(place.path(name)).type == FileType.File)


def put_bytes(place: ObjectPlace, name: str, content: bytes) -> None:
    """Write a small object, in place of the one that may be there."""
    with reaching(place, name):
        if place.local is None:
            _upload_bytes(place, name, content)
            return
        target = place.local / name
        temporary = write_beside(place, target, content)
        commit_file(temporary, target)


def remove(place: ObjectPlace, name: str) -> None:
    """Remove an object; it may be gone already."""
    with reaching(place, name), suppress(FileNotFoundError):
        place.system.delete_file(place.path(name))


def remove_folder(place: ObjectPlace, folder: str) -> None:
    """Remove a folder and all that is in it; it may be gone already."""
    with reaching(place, folder):
        storage.remove_folder(place.system, place.path(folder))


def upload(place: ObjectPlace, name: str, content: IO[bytes]) -> None:
    """Put a local file's content into a bucket: in parts, and visible when the last one has arrived."""
    content.seek(0)
    stream = place.system.open_output_stream(place.path(name), compression=None)  # by its name, it would pack again
    try:
        while chunk := content.read(UPLOAD_BYTES):
            stream.write(chunk)
    except BaseException:
        # A stream that is collected completes its upload with what has arrived. So this one never is, not even when the
        # interpreter ends; the store's own rule for incomplete uploads removes the parts.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
        raise
    stream.close()


def _upload_bytes(place: ObjectPlace, name: str, content: bytes) -> None:
    with place.system.open_output_stream(place.path(name), compression=None) as stream:
        stream.write(content)


@contextmanager
def without_new_folders(place: ObjectPlace) -> Iterator[None]:
    """Remove the folders of a local place that a block has made, if the block fails."""
    missing = (
        [] if place.local is None else [folder for folder in (place.local, *place.local.parents) if not folder.exists()]
    )
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise


def make_folder(place: ObjectPlace, folder: Path) -> None:
    """Make a folder and those above it, so that they are there after a power cut too.

    The place's own folder is for its owner alone. What is made inside a place has the permissions of the folder that it
    is made in, less what the umask takes: an archive that others may read is one whose folder a person has opened.
    """
    assert place.local is not None
    missing = []
    at = folder
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    for each in reversed(missing):
        with suppress(FileExistsError):
            is_inside = place.local in each.parents
            try:
                each.mkdir(each.parent.stat().st_mode & 0o777 if is_inside else private.FOLDER)
            except FileNotFoundError as error:
                # The folder above is there: this file system, such as /proc, has no place for another one.
                if each.parent.is_dir():
                    raise PermissionError(errno.EPERM, "no folder can be made there", str(each)) from error
                raise
        sync_folder(each.parent)


def open_inside(path: Path, flags: int) -> int:
    """Open a file in a folder of a place; one that is made has the folder's permissions, less the umask."""
    return os.open(path, flags, path.parent.stat().st_mode & 0o666)


def commit_file(temporary: Path, target: Path) -> None:
    """Give a finished and synced file its name."""
    temporary.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Force a folder's names onto the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_beside(place: ObjectPlace, target: Path, content: bytes) -> Path:
    """A finished and synced file in the target's folder, under a temporary name."""
    make_folder(place, target.parent)
    temporary = target.parent / f"{TEMPORARY}{uuid4().hex}"
    with open(temporary, "xb", opener=lambda _, flags: open_inside(temporary, flags)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return temporary


@contextmanager
def reaching(place: ObjectPlace, name: str = "") -> Iterator[None]:
    """What a disk or a store says, in our words."""
    try:
        yield
    except OSError as error:
        raise store_error(error, place, name) from error


_NO_BUCKET = ("NO_SUCH_BUCKET", "NoSuchBucket", "bucket does not exist", "Bucket '", "HTTP response code: 404")
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def store_error(error: Exception, place: ObjectPlace, name: str) -> StrandError:
    """One failure of a disk or a store as the error that says what to do."""
    # The name of a temporary object says nothing to people.
    where, reason = place.shown("" if name.startswith(TEMPORARY) else name), re.sub(r"\s+", " ", str(error))[:400]
    outage = judge(error)
    blame = {"reason": WAREHOUSE} if place.is_own else {}
    if outage is not None and outage.kind is OutageKind.FULL and place.local is None and isinstance(error, OSError):
        is_local = error.errno is not None  # a store has no such numbers: what is full is where uploads wait
        return of_outage(outage, f"the working folder {tempfile.gettempdir()}" if is_local else where, **blame)
    if outage is not None:
        return of_outage(outage, where, **blame)
    if place.local is not None:
        return _disk_error(error, where, reason, blame)
    if any(word in reason for word in _NO_BUCKET):
        if place.is_own:
            hint = "It is the lake's own warehouse; delivery goes on when that is there again."
            return Busy(f"{where}: there is no such bucket: {reason}", hint=hint, **blame)
        return NotFound(f"{where}: there is no such bucket: {reason}", hint="Create it, or correct the address.")
    return of_outage(Outage(OutageKind.AWAY, where, reason), **blame)


def _disk_error(error: Exception, where: str, reason: str, blame: Mapping[str, str]) -> StrandError:
    if isinstance(error, OSError) and error.filename is not None:
        reason = f"{error.strerror}: {error.filename}"
    if isinstance(error, OSError) and error.errno in _REFUSED:
        hint = "Check that it is a folder we may write to."
        return Environment(f"{where}: can't be written: {reason}", hint=hint, **blame)
    hint = "Check the disk; the same unit is tried again."
    return Busy(f"{where}: the disk failed: {reason}", hint=hint, **{"reason": "disk", **blame})
