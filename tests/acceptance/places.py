"""Places that copies of rows go to: a folder of blobs, and a table in another Iceberg catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from strandline.lake import Lake


class Blobs:
    """A folder that a sink writes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, lake: Lake, name: str = "archive", **settings: Any) -> None:
        """Let a lake write here."""
        start = settings.pop("start", 0)
        given = {"uri": f"file://{self.folder}", "max_attempts": 1, **settings}
        lake.add_sink(name, "blob", given, start=start)

    def objects(self) -> list[Path]:
        """What is visible under a final name."""
        return sorted(path for path in self.folder.rglob("*.parquet") if not path.name.startswith("."))

    def rows(self) -> list[str]:
        """Every row of every object."""
        return self.column("part_id")

    def column(self, name: str) -> list[str]:
        """A column of every object."""
        return [row for path in self.objects() for row in pq.read_table(path).column(name).to_pylist()]

    def ranges(self) -> list[tuple[int, int]]:
        """What the names say."""
        return [(int(path.stem.split("-")[0]), int(path.stem.split("-")[1])) for path in self.objects()]


class Copies:
    """Another Iceberg catalog that a sink appends to."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.uri = f"jdbc:sqlite:{folder}/catalog.db"
        self.warehouse = f"file://{folder}/warehouse"
        self.file = folder / "catalog.db"

    def add(self, lake: Lake, name: str = "archive", **settings: Any) -> None:
        """Let a lake append here."""
        given = {"catalog": "jdbc", "uri": self.uri, "warehouse": self.warehouse, "max_attempts": 1, **settings}
        lake.add_sink(name, "iceberg", given)

    def table(self) -> Any:
        """The copy, as anybody sees it."""
        from pyiceberg.catalog.sql import SqlCatalog

        properties = {"uri": f"sqlite:///{self.file}", "warehouse": self.warehouse}
        for name in ("strand", "copy", "iceberg"):
            catalog = SqlCatalog(name, **properties)
            if catalog.list_namespaces():
                return catalog.load_table("lake.messages")
        raise AssertionError("there is no catalog")

    def rows(self) -> list[str]:
        """Every row of it."""
        return list(self.table().scan().to_arrow().column("part_id").to_pylist())
