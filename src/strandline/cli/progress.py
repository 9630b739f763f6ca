"""A bar on stderr while something long is going on, and only where a person can see it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress:
    """Shows what operations report. It appears with the first report and is gone with the end of the command."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._what = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, what: str, done: int, total: int | None) -> None:
        """What is being done, how much of it is done, and out of how much if that is known."""
        if not self._shown:
            return
        bar = self._bar = self._bar or _start()
        if what != self._what:
            if self._task is not None:
                bar.remove_task(self._task)
            self._task = bar.add_task(what, total=total)
            self._what = what
        assert self._task is not None
        bar.update(self._task, completed=done, total=total)


def _start() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    bar.start()
    return bar
