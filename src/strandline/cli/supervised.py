"""Being run by another process: telling it when we are ready, and ending when it is gone.

Readiness goes to `$NOTIFY_SOCKET`, as systemd defines it, so the same words serve a unit of `Type=notify` and `strand
up`. A child of `strand up` also holds the other end of a pipe: when that closes, its parent is gone, however it died.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress

SUPERVISED = "STRAND_SUPERVISED"


def tell_ready(status: str) -> None:
    """Say that requests are answered, or work is done, from now on."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(f"READY=1\nSTATUS={status}\nMAINPID={os.getpid()}".encode(), address)


def end_with_parent() -> None:
    """End, as by SIGTERM, when the process that supervises us has gone."""
    if not os.environ.get(SUPERVISED):
        return

    def watch() -> None:
        # Not through `sys.stdin`: a thread that waits in it keeps the interpreter from ending.
        with suppress(OSError):
            while os.read(0, 1024):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
