"""The processes of a soak: each can be killed, paused and started again, and none is left behind.

A child leads a process group of its own, with its JVM in it. It may be killed alone, when its JVM lives on for a moment
as an orphan and may still be writing, or with its whole group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

GRACE_S = 15.0


class Child:
    """A process by its name. It is started again as it was started first."""

    def __init__(self, name: str, module: str, *arguments: str, env: dict[str, str], log: Path) -> None:
        self.name = name
        self.role = name.rstrip("-0123456789")
        self.failpoint = ""
        self.started_s = 0.0
        self.paused_until_s: float | None = None
        self.is_held = False
        """Whether it is to stay stopped until whoever stopped it is done."""
        self._command = [sys.executable, "-m", module, *arguments]
        self._env, self._log = env, log
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: list[int] = []

    def start(self, failpoint: str = "", clock: Mapping[str, str] | None = None) -> None:
        """Start it, for the first time or again; with a failpoint it will end by itself, `clock` moves its clock."""
        self.started_s = time.monotonic()
        self.failpoint = failpoint
        self.paused_until_s = None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**self._env, **(clock or {}), "STRAND_FAILPOINTS": failpoint},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._groups.append(self._process.pid)

    @property
    def path(self) -> str:
        """Where it finds Python's modules."""
        return self._env.get("PYTHONPATH", "")

    @property
    def pid(self) -> int:
        """Its id, which is also its group's."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended; None while it lives."""
        return None if self._process is None else self._process.poll()

    def kill(self, *, orphan: bool) -> None:
        """kill -9: it alone, or its JVM too; and wait until it is gone."""
        if orphan:
            os.kill(self.pid, signal.SIGKILL)
        else:
            _signal_group(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(timeout=30)
        self.paused_until_s = None

    def pause(self, seconds: float) -> None:
        """SIGSTOP to it and its JVM; `wake` ends it."""
        self.paused_until_s = time.monotonic() + seconds
        _signal_group(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        self.paused_until_s = None
        _signal_group(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Ask it to end, and see to it that nothing of it, in any of its lives, is left."""
        if self._process is not None and self._process.poll() is None:
            self.wake()
            self._process.terminate()
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._kill_all()

    def halt(self) -> None:
        """kill -9 to it and to what is left of its earlier lives; returns when none of them writes any more."""
        if self._process is not None and self._process.poll() is None:
            self.wake()
        self._kill_all()
        if self._process is not None:
            self._process.wait(timeout=30)
        self.paused_until_s = None
        while any(map(_lives, self._groups)):
            time.sleep(0.05)

    def _kill_all(self) -> None:
        for group in self._groups:
            _signal_group(group, signal.SIGKILL)

    def last_words(self) -> str:
        """The end of what it printed."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


def _signal_group(group: int, number: int) -> None:
    """The group is ours: a group's id is not given to another one while a member lives."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _lives(group: int) -> bool:
    """Whether a process of a group does anything yet."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False
