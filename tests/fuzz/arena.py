"""Memory whose every byte around a body is known.

A body lies between canaries, and behind those is a page that nobody may read. So a read past the body shows: as canary
in what would be stored, as another answer beside another canary, or as the end of the process.
"""

from __future__ import annotations

import ctypes
import mmap

SLACK_BYTES = 64 << 10
ROOM_BYTES = 256 << 10
CANARIES = (b"canary-of-another-actor ", b"CANARY/OF/ANOTHER/TOKEN!")


class Arena:
    """One body at a time, between the bytes of a canary."""

    def __init__(self, canary: bytes) -> None:
        self._canary = canary
        size = SLACK_BYTES + ROOM_BYTES + SLACK_BYTES
        self._memory = mmap.mmap(-1, size + mmap.PAGESIZE)
        self._filling = (canary * (size // len(canary) + 1))[:size]
        self._view = memoryview(self._memory)
        libc = ctypes.CDLL(None, use_errno=True)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        if libc.mprotect(ctypes.c_void_p(start + size), mmap.PAGESIZE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def placed(self, body: bytes) -> memoryview:
        """The body, with canary on both sides of it."""
        assert len(body) <= ROOM_BYTES
        self._memory[: len(self._filling)] = self._filling
        start = SLACK_BYTES + ROOM_BYTES - len(body)
        start -= start % 8  # as a bytes object's content lies
        self._memory[start : start + len(body)] = body
        return self._view[start : start + len(body)]
