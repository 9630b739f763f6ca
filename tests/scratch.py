"""Where the tests' lakes lie: in memory, where Linux has a folder for that.

A ledger waits for the disk at every commit, which is half the time of a test that appends a few rows. A killed process
loses nothing that it has written to memory, so crashes are the same there; only a power cut would not be, and no test
cuts the power. `--basetemp` chooses another folder.

A run's folder names its process. It goes with the run, unless a test failed: then the next run removes it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest

MEMORY = Path("/dev/shm")
PREFIX = "strandline-tests-"
ROOM_BYTES = 6 << 30


def use_memory(config: pytest.Config) -> None:
    """Let the run keep its folders in memory, unless the caller has named one or there is too little room."""
    if hasattr(config, "workerinput") or config.option.basetemp is not None or not os.access(MEMORY, os.W_OK):
        return
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(PREFIX))):
            shutil.rmtree(folder, ignore_errors=True)
    if shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
        config.option.basetemp = str(MEMORY / f"{PREFIX}{os.getpid()}")


def leave_memory(session: pytest.Session) -> None:
    """Remove this run's folder, unless something in it is worth a look."""
    if session.testsfailed == 0 and not hasattr(session.config, "workerinput"):
        shutil.rmtree(MEMORY / f"{PREFIX}{os.getpid()}", ignore_errors=True)
