"""A backup: what its manifest says. A folder without one is no backup, so the manifest is written last.

A backup may come from another hand, so nothing that it names is believed: a file of it is named by its path inside the
backup's folder, without a way up and without repetitions, and belongs below the warehouse that the manifest names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strandline.errors import Damaged, NewerFormat
from strandline.model.times import text_of

FORMAT = 1
MANIFEST = "backup.json"
LEDGER = "ledger.db"
CATALOG = "catalog.db"
CONFIG = "strand.toml"
FILES = "files"
RESTORES = "restores.jsonl"
"""Beside the manifest: a line for every restore, so that the next one jumps above all of them."""


def is_plain(name: str) -> bool:
    """Whether a name is a path inside a folder: relative, without a way up, and written in the one way there is."""
    return bool(name) and not set(name) & {"\\", "\0"} and all(part not in ("", ".", "..") for part in name.split("/"))


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

    def document(self) -> dict[str, object]:
        """As it is stored."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def parse(cls, document: Mapping[str, object], where: str) -> Manifest:
        """The inverse of `document`."""
        try:
            values: dict[str, Any] = dict(document)
            stored = int(values.pop("format"))
            if stored > FORMAT:
                raise NewerFormat(
                    f"{where} has format {stored}, and this strandline knows {FORMAT}", found=stored, known=FORMAT
                )
            files = tuple(StoredFile(**file) for file in values.pop("files"))
            manifest = cls(**{**values, "files": files, "left_out": tuple(values["left_out"])})
            manifest.check()
            return manifest
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Damaged(f"the manifest {where} can't be read: {error}", hint="Use another backup.") from error

    def check(self) -> None:
        """ValueError for a file that is named twice, outside of the backup, or outside of its warehouse."""
        names, locations = set[str](), set[str]()
        for file in self.files:
            if not isinstance(file.size_bytes, int) or not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
                raise ValueError(f"{file.name!r} has no size, or no SHA-256")
            if not is_plain(file.name) or file.name in names:
                raise ValueError(f"{file.name!r} is no name of a file in the backup, or is there twice")
            names.add(file.name)
            if (file.location is None) != (file.name in (LEDGER, CATALOG, CONFIG)):
                raise ValueError(f"{file.name!r} has a place that is not its own")
            if file.location is not None:
                if not file.name.startswith(f"{FILES}/"):
                    raise ValueError(f"{file.name!r} is not in {FILES}/")
                if file.location in locations or ".." in file.location.split("/") or "\0" in file.location:
                    raise ValueError(f"{file.location!r} has a way up, or is there twice")
                locations.add(file.location)
        if LEDGER not in names or CONFIG not in names:
            raise ValueError(f"it names no {LEDGER}, or no {CONFIG}")

    @property
    def has_catalog(self) -> bool:
        """Whether there were Iceberg tables."""
        return any(file.name == CATALOG for file in self.files)

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class BackupContents:
    """What is in a backup, for people: `files` counts them, and `until` is when the lake may remove what it lacks."""

    backup_id: str
    lake_id: str
    at: str
    seq: int
    files: int
    size_bytes: int
    with_data: bool
    until: str | None
    warehouse: str
    left_out: tuple[str, ...]


def contents_of(manifest: Manifest) -> BackupContents:
    """What a manifest says."""
    return BackupContents(
        backup_id=manifest.backup_id,
        lake_id=manifest.lake_id,
        at=text_of(manifest.at_us),
        seq=manifest.seq,
        files=len(manifest.files),
        size_bytes=manifest.size_bytes,
        with_data=manifest.with_data,
        until=None if manifest.held_until_us is None else text_of(manifest.held_until_us),
        warehouse=manifest.warehouse,
        left_out=manifest.left_out,
    )
