"""A destination under test, as the package that brings it describes it."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

TABLE = "messages"
COLUMNS = {"id": "string", "n": "long", "body": "string?"}
"""The table that is delivered; `id` tells its rows apart."""


class Subject(ABC):
    """How a destination is set up, what it holds, and how it is put back to what it was.

    What it keeps is below `folder`, which is there and empty when a check begins; one that keeps it elsewhere says how
    that is copied.
    """

    type: str
    """The type of sinks, as `--type` takes it."""
    failpoints: tuple[str, ...] = ()
    """Failpoints that it passes with every unit. One of another package has none: it is killed at its lines."""
    lines: int | None = None
    """At how many lines of its module it is killed; None for all that a unit runs through."""
    refused: Mapping[str, object] | None = None
    """Values of a row that it refuses for good, such as `{"body": None}`; None for one that refuses no row."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for the destination alone."""
        self.folder = folder

    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Those of its sink."""

    @abstractmethod
    def ids(self) -> list[str]:
        """The `id` of every row that it holds; one that is there twice is in the list twice."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let it be there while a check goes on: from before its sink is added until the end."""
        yield

    def copy_to(self, aside: Path) -> None:
        """Copy what it holds, as a snapshot of its disk would."""
        shutil.copytree(self.folder, aside)

    def put_back(self, aside: Path) -> None:
        """Let it hold what it held when it was copied."""
        shutil.rmtree(self.folder)
        shutil.copytree(aside, self.folder)
