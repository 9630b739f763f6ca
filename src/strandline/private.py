"""What we make on a disk is for its owner alone, whatever the umask says.

A ledger, a catalog, a config, a backup and a spilled query hold a lake's rows or lead to its secrets. A file gets 0600
and a folder 0700 when it is made, and not by a chmod afterwards: in between it could be opened. What is there already
keeps its mode, so that a group can share a lake by the modes that a person gave it; `strand doctor` says what other
users can read.

Working files go into a folder of the process's own, with a name that can't be foreseen. It holds a lock for as long as
the process lives: what a killed process left is found by its free lock, in whichever container that process was.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from strandline.errors import in_our_words

FOLDER = 0o700
FILE = 0o600
OTHERS = 0o007
PREFIX = "strandline-working-"
LOCK = ".strandline-working.lock"
"""Without this file in it a folder is not removed, whatever its name is: a person may have made it."""


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing."""
    try:
        folder.mkdir(FOLDER, exist_ok=True)
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(FOLDER, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """For `open(…, opener=…)`: a file that is made by it."""
    return os.open(path, flags, FILE)


def create_file(path: Path) -> None:
    """Make an empty file unless there is one: a database that another program fills keeps its mode."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, FILE))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file."""
    with open(path, "wb", opener=opener) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a file of text."""
    write_bytes(path, text.encode())


def others_may(path: Path) -> str:
    """What users that are neither the owner nor in the group may do with a file or a folder; "" for nothing."""
    mode = path.stat().st_mode & OTHERS
    return " and ".join(word for bit, word in ((4, "read"), (2, "write")) if mode & bit)


def others_may_enter(folder: Path) -> bool:
    """Whether such users can reach what is in a folder."""
    return bool(folder.stat().st_mode & 0o001)


# -- working files -----------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_folders: dict[int, Path] = {}
"""By process: a child that was forked has a folder of its own."""


def working_folder() -> Path:
    """This process's folder for spills and other working files; it goes when the process ends."""
    with _lock:
        folder = _folders.get(os.getpid())
        if folder is None or not folder.is_dir():
            folder = _folders[os.getpid()] = _new_folder()
        return folder


def _new_folder() -> Path:
    place = Path(tempfile.gettempdir())
    for left in place.glob(f"{PREFIX}*"):
        _remove_if_left(left)
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE)  # open until the process ends
    except OSError as error:
        raise in_our_words(error) from error
    fcntl.flock(handle, fcntl.LOCK_EX)
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def remove_working_folder() -> None:
    """Remove it now, for a process that ends without its last words."""
    folder = _folders.get(os.getpid())
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    """Remove the working folder of a process that is gone. Any user may put names into the system's folder."""
    with suppress(OSError):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(handle)
