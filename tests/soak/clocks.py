"""Moved clocks: a process whose clock is hours or a day ahead or behind, by Debian's libfaketime.

Only the clock that says what time it is moves; the monotonic one does not, and neither do the times of files, which are
the store's. A JVM keeps its own time: under the library it is six times slower, and what is decided by time is decided
in Python.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

HOUR_S = 3600
OFFSETS_S = (2 * HOUR_S, -2 * HOUR_S, 24 * HOUR_S, -24 * HOUR_S)
MOVED_SHARE = 0.35
PLACES = ("/usr/lib/*-linux-gnu*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")
LIBRARY = "libfaketimeMT.so.1"
SITE = Path(__file__).parent / "moved"
"""What a process with a moved clock reads at its start."""


def find_library(places: Iterable[str] = PLACES) -> Path | None:
    """The library, where packages put it; None if it is not installed."""
    for place in places:
        root = Path(place)
        pattern = str(root.relative_to(root.anchor) / LIBRARY)
        for path in sorted(Path(root.anchor).glob(pattern)):
            return path
    return None


def moved(library: Path, offset_s: int, path: str = "") -> dict[str, str]:
    """The environment of a process whose clock is so many seconds off; `path` is where it finds Python's modules."""
    return {
        "PYTHONPATH": os.pathsep.join([str(SITE), path]),
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{offset_s:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_SKIP_CMDS": "java",
        "NO_FAKE_STAT": "1",
    }


def pick(chance: random.Random, library: Path | None) -> tuple[str, int]:
    """A clock for a process that is about to start: mostly the right one. Returns how it is off, in words."""
    if library is None or chance.random() >= MOVED_SHARE:
        return "", 0
    offset_s = chance.choice(OFFSETS_S)
    return f"{offset_s // HOUR_S:+d} h", offset_s
