"""The child processes: started, killed and stopped by their ids, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from examples.demo.places import Places
from strandline.errors import Internal

GRACE_S = 5.0
_FOLDER = Path(__file__).parents[2]


class Processes:
    """The children by name. Leaving the block ends those that still run."""

    def __init__(self, places: Places, more_environment: dict[str, str]) -> None:
        self._places = places
        # A child finds the demonstration's modules wherever it is started.
        python_path = os.pathsep.join(filter(None, (str(_FOLDER), os.environ.get("PYTHONPATH"))))
        self._environment = {
            **os.environ,
            **more_environment,
            "STRAND_LAKE": str(places.root),
            "PYTHONPATH": python_path,
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._running.values():
            child.terminate()
        for child in self._running.values():
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a Python module in a process of its own; what it prints goes to its log."""
        with self._places.log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env={**self._environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C on the terminal reaches this process alone, and it stops the others in order.
                start_new_session=True,
            )

    def pause(self, name: str) -> None:
        """Hold a process where it is."""
        self._running[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """Let a paused process go on."""
        self._running[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """kill -9, and wait until it is gone."""
        child = self._running.pop(name)
        child.kill()
        child.wait()

    def ask_to_end(self, name: str) -> None:
        """SIGTERM: it may finish what it is doing."""
        self._running[name].terminate()

    def all_ended(self, names: tuple[str, ...]) -> bool:
        """Whether these have come to their end; one that failed is an error, whichever was asked for."""
        for name, child in list(self._running.items()):
            code = child.poll()
            if code is not None:
                del self._running[name]
                if code != 0:
                    raise Internal(f"process {name} ended with {code}", hint=self._last_words(name))
        return not any(name in self._running for name in names)

    def _last_words(self, name: str) -> str:
        log = self._places.log(name)
        return f"The end of {log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:])
