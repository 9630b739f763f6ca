"""What the demonstration says while it runs: one line per step, with the seconds since its start."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status


class Narrator:
    """Lines on a console; on a terminal there is a spinner below them that says what is being waited for."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._status: Status | None = console.status("") if console.is_terminal else None

    def __enter__(self) -> Narrator:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """One step."""
        self._console.print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", markup=False, soft_wrap=True)

    def progress(self, text: str) -> None:
        """What is being waited for; shown on a terminal only."""
        if self._status is not None:
            self._status.update(text)
