"""Where the demonstration keeps its own files, and whether a folder is its own to remove."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import strandline as sl
from examples.demo.messages import COLUMNS, ROW_KEY, TABLE
from strandline.errors import Busy, Conflict

NOTE = "This folder was made by the demonstration of Strandline. The next one in the same place removes it.\n"


@dataclass(frozen=True)
class Places:
    """The files beside the lake's own, in a folder `demo` inside it."""

    root: Path

    @property
    def folder(self) -> Path:
        """The folder of all the others."""
        return self.root / "demo"

    @property
    def marker(self) -> Path:
        """The file that says: this lake is a demonstration."""
        return self.folder / "MADE-BY-THE-DEMO"

    @property
    def counted(self) -> Path:
        """What Spark counted at the end."""
        return self.folder / "counted.json"

    @property
    def receiver(self) -> Path:
        """The second lake, that the first one forwards to."""
        return self.root / "central"

    @property
    def blobs(self) -> Path:
        """The folder of Parquet files."""
        return self.root / "blobs"

    def acks(self, writer: str) -> Path:
        """What a writer was told."""
        return self.folder / f"{writer}.acks.jsonl"

    def log(self, process: str) -> Path:
        """What a process printed."""
        return self.folder / f"{process}.log"


@contextmanager
def fresh_lake(places: Places) -> Iterator[bool]:
    """Make the demonstration's two lakes, in place of an earlier one; yields whether there was one.

    The marker is locked while the demonstration runs, so a second one in the same folder is refused.
    """
    removed = _remove_earlier(places)
    with sl.init(places.root) as lake:
        places.folder.mkdir()
        places.marker.write_text(NOTE)
        lake.create_table(TABLE, COLUMNS, row_key=ROW_KEY, actor="demo")
    # Without a row key: a row that arrived twice would be there twice, and be noticed.
    with sl.init(places.receiver) as receiver:
        receiver.create_table(TABLE, COLUMNS, actor="demo")
    with places.marker.open() as marker:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield removed


def _remove_earlier(places: Places) -> bool:
    root = places.root
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return False
    if root.is_symlink() or not places.marker.is_file():
        raise Conflict(
            f"{root} is there already, and was not made by the demonstration",
            kind="folder_not_empty",
            hint="Name another folder: python -m examples.demo DIR",
            actual=str(root),
        )
    with places.marker.open() as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Busy(
                f"another demonstration is running in {root}", hint="Wait for it, or name another folder."
            ) from error
        shutil.rmtree(root)
    return True
