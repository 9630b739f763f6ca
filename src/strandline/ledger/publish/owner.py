"""The process that holds a lease, and whether it is certainly dead.

A process is known by its host's boot, its process namespace, its id and its start time: an id alone comes back after a
reboot, in another container, or when the kernel reuses it. One process may open a lake several times (in tests, or one
after another), so each open has an id of its own, and closing it is what dying is to a process. Of a process on another
host nothing can be known from here: only its beat tells.

Names of hosts prove nothing (two virtual machines called `localhost` are two hosts), machine ids neither: they are
cloned with templates, and empty in containers. An id of a boot is random. So a process of another boot may be one of
another host, and is certainly dead only where there is one host: a ledger in SQLite belongs to one.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from strandline.model.ids import new_id


@dataclass(frozen=True)
class Owner:
    """One open lake in one process."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    instance: str

    @property
    def place(self) -> str:
        """Whose files and processes it sees: its host, as long as that is up, and the namespace in it."""
        return f"{self.host}:{self.boot}:{self.namespace}"

    def text(self) -> str:
        """The form that is stored in the ledger."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Read the stored form; None when it is of a kind this version does not know."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


UNKNOWN = "unknown"
"""The boot of a host that does not tell."""

_live: set[str] = set()
_lock = threading.Lock()


def register() -> Owner:
    """The owner for a lake that is being opened."""
    owner = Owner(os.uname().nodename, _boot(), _namespace(), os.getpid(), _started(os.getpid()) or "", new_id())
    with _lock:
        _live.add(owner.instance)
    return owner


def unregister(owner: Owner) -> None:
    """The lake was closed: whatever it still holds has no holder."""
    with _lock:
        _live.discard(owner.instance)


def certainly_dead(text: str, *, one_host: bool) -> bool:
    """True only when the owner can't be running any more; doubt is False.

    `one_host` says that processes of one host alone write where the owner was found. Then another boot of a host of its
    name is an earlier one.
    """
    owner = Owner.parse(text)
    if owner is None or UNKNOWN in (owner.boot, _boot()):
        return False
    if owner.boot != _boot():
        return one_host and owner.host == os.uname().nodename
    if owner.namespace != _namespace():
        return False
    if owner.pid == os.getpid() and owner.started == _started(os.getpid()):
        return owner.instance not in _live
    started = _started(owner.pid)
    return started is None or started not in (owner.started, "hidden")


@lru_cache(maxsize=1)
def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    if path.exists():
        return path.read_text().strip()
    return _run("sysctl", "-n", "kern.bootsessionuuid") or UNKNOWN


@lru_cache(maxsize=1)
def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When a process started, in a form that does not move with the clock; None when there is no such process."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            return "hidden" if _exists(pid) else None
        return None if fields[0] == "Z" else fields[19]
    return _run("ps", "-o", "lstart=", "-p", str(pid)) or None


def _exists(pid: int) -> bool:
    """Whether there is such a process, also where others' processes can't be looked at."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
