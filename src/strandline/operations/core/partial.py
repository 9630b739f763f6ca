"""Folders that a command fills beside the place they are for.

A backup or a clone that is killed leaves such a folder, and the next one for the same place removes it. Another process
may be filling one at the same moment, so a folder names its owner, from before it holds anything until it has its final
name. One whose owner is certainly dead is removed. Of an owner on another host, or of an earlier boot, nothing can be
known, because a disk for backups may be shared by many hosts; and a folder without one was made a moment ago, or by a
process that died then. These are removed when nothing in them has changed for a day.
"""

from __future__ import annotations

import glob
import shutil
import time
from pathlib import Path

from strandline import private
from strandline.ledger.publish.owner import Owner, certainly_dead
from strandline.model.ids import new_id

OWNER = "owner"
UNTOUCHED_S = 24 * 3600.0


def begin(to: Path, kind: str, owner: Owner) -> Path:
    """Make a folder of this kind for a place, and remove those that dead processes left for it."""
    private.make_folder(to.parent)
    for left in to.parent.glob(f"{glob.escape(f'.{to.name}.{kind}-')}*"):
        if _is_left(left, owner):
            shutil.rmtree(left, ignore_errors=True)
    folder = to.parent / f".{to.name}.{kind}-{new_id()}"
    private.make_folder(folder)
    private.write_text(folder / OWNER, owner.text())
    return folder


def _is_left(folder: Path, ours: Owner) -> bool:
    """Whether no process fills a folder any more."""
    try:
        text = (folder / OWNER).read_text()
    except OSError:
        return _is_untouched(folder)
    if certainly_dead(text, one_host=False):
        return True
    owner = Owner.parse(text)
    if owner is not None and owner.place == ours.place:
        return False
    return _is_untouched(folder)


def _is_untouched(folder: Path) -> bool:
    try:
        changed = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return False  # a process is at work there
    return time.time() - changed > UNTOUCHED_S
