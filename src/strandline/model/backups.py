"""A backup: what its manifest says. A folder without one is no backup, so the manifest is written last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strandline.errors import Damaged, NewerFormat

FORMAT = 1
MANIFEST = "backup.json"
LEDGER = "ledger.db"
CATALOG = "catalog.db"
CONFIG = "strand.toml"
FILES = "files"
RESTORES = "restores.jsonl"
"""Beside the manifest: a line for every restore, so that the next one jumps above all of them."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a backup; `location` is where it belongs in the warehouse, if it does."""

    name: str
    size_bytes: int
    sha256: str
    location: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What is in a backup. `seq` is the ledger's counter, `left_out` what must be given again after a restore."""

    backup_id: str
    lake_id: str
    at_us: int
    seq: int
    root: str
    warehouse: str
    with_data: bool
    held_until_us: int | None
    left_out: tuple[str, ...]
    files: tuple[StoredFile, ...]

    def document(self) -> dict[str, Any]:
        """As it is stored."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def parse(cls, document: Mapping[str, Any], where: str) -> Manifest:
        """The inverse of `document`."""
        try:
            found = int(document["format"])
            if found > FORMAT:
                raise NewerFormat(
                    f"{where} has format {found}, and this strandline knows {FORMAT}", found=found, known=FORMAT
                )
            values = {key: value for key, value in document.items() if key != "format"}
            files = tuple(StoredFile(**file) for file in values.pop("files"))
            return cls(**{**values, "files": files, "left_out": tuple(values["left_out"])})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Damaged(f"the manifest {where} can't be read: {error}", hint="Use another backup.") from error

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return sum(file.size_bytes for file in self.files)
