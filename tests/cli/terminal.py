"""A real terminal of a given width for commands that run in this process."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(columns: int, action: Callable[[], object], *, typed: str = "") -> str:
    """What an action writes to stdout and stderr where these, and stdin, are a terminal of so many columns."""
    keyboard, screen = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    pieces: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(keyboard, 65536)
            except OSError:  # the last writer has closed it
                return
            if not data:
                return
            pieces.append(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    kept = sys.stdin, sys.stdout, sys.stderr
    writing, reading = os.fdopen(screen, "w", encoding="utf-8"), os.fdopen(os.dup(screen), encoding="utf-8")
    os.write(keyboard, typed.encode())
    sys.stdin, sys.stdout, sys.stderr = reading, writing, writing
    try:
        action()
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept
        writing.close()
        reading.close()
        reader.join(timeout=10)
        os.close(keyboard)
    return b"".join(pieces).decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    """The same without colours."""
    return ESCAPES.sub("", text)
