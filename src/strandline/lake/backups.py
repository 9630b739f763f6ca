"""Backups of a lake that is open. To restore one, or to clone a lake, no lake is open: see `strandline.copies`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.model.backups import BackupContents, contents_of

if TYPE_CHECKING:
    from strandline.lake.door import Lake

KEEP_S = 30 * 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class _Folder:
    backup: str


@dataclass(frozen=True, kw_only=True)
class BackupReport(BackupContents, _Folder):
    """Where a backup is, and what is in it. The fields of the last base come first."""


class Backups:
    """`lake.backups`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def make(
        self, to: str | Path, *, with_data: bool = False, link: bool = False, keep_s: float = KEEP_S
    ) -> BackupReport:
        """Back the lake up into a new folder, while everything runs.

        `with_data` copies the data files too, and `link` makes hard links of them where the disk is the same; without
        them the lake keeps the files that the backup names for `keep_s`.
        """
        from strandline.backup import backup

        folder = Path(to)
        manifest = backup(self._lake, folder, with_data=with_data, link=link, keep_s=keep_s)
        return BackupReport(backup=str(folder.expanduser().resolve()), **vars(contents_of(manifest)))
