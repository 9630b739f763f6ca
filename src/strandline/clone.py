"""A clone: a lake of its own, made of another lake or of a backup.

It has an id and files of its own, so whatever is done to it never reaches the first lake, and a destination takes it
for another sender. A lake is copied while everything runs, as a backup with its data, beside the clone's folder; hard
links keep that cheap where the disk is the same. A clone that was killed is no lake, and is simply run again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from strandline.backup import backup
from strandline.config import FILE_NAME, refuse_secret_places
from strandline.errors import NotFound
from strandline.failpoints import fail
from strandline.lake import Lake
from strandline.model.backups import MANIFEST, Manifest
from strandline.operations.core.context import Report, silent
from strandline.operations.core.partial import begin
from strandline.restore import make_clone


@dataclass(frozen=True)
class Cloned:
    """What a clone is made of: the copy that it was made from, and how many rows each table of its main branch has."""

    manifest: Manifest
    rows: dict[str, int]
    sinks: tuple[str, ...] = ()
    """Those that came along, all of them paused."""


def clone(
    source: Path, to: Path, *, ledger: str | None = None, warehouse: str | None = None, report: Report = silent
) -> Cloned:
    """Make a lake in a new folder out of a lake or a backup; without other words its ledger and files are in there."""
    refuse_secret_places(ledger, warehouse)
    source, to = source.expanduser().resolve(), to.expanduser().resolve()
    if (source / MANIFEST).exists():
        manifest = make_clone(source, to, ledger=ledger, warehouse=warehouse, report=report)
    elif not (source / FILE_NAME).exists():
        raise NotFound(
            f"{source} is neither a lake nor a backup: it has no {FILE_NAME} and no {MANIFEST}",
            hint="Name a lake's folder, or one that `strand backup` made.",
        )
    else:
        with Lake(source, report=report) as lake:
            working = begin(to, "cloning", lake.context.owner)
            try:
                backup(lake, working / "copy", with_data=True, link=True)
                fail("clone.after_backup")
                manifest = make_clone(working / "copy", to, ledger=ledger, warehouse=warehouse, report=report)
            except Exception:
                shutil.rmtree(working, ignore_errors=True)
                raise
            shutil.rmtree(working)
    with Lake(to, report=report) as made:
        view = made.view()
        rows = {name: view.count(name, "true") for name in view.tables}
        return Cloned(manifest, rows, tuple(sorted(sink.name for sink in made.sinks())))
