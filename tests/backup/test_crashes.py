"""Backups and restores that die anywhere: either there is a backup or there is none, and a restore is run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline import failpoints
from strandline.backup import backup
from strandline.lake import Lake
from strandline.ledger.place.restores import JUMP
from strandline.ledger.publish import owner
from strandline.restore import restore, verify
from tests import slices
from tests.backup.conftest import Ledgers
from tests.backup.test_restore import blobs
from tests.delivery import assert_once
from tests.kit import crash, make_table, messages, part_ids, reopened, strand_json

BACKUP_POINTS = ["backup.after_hold", "backup.before_ledger", "backup.after_ledger", "backup.after_catalog",
                 "backup.before_manifest", "backup.before_rename", "backup.after_rename"]  # fmt: skip
RESTORE_POINTS = ["restore.before_record", "restore.after_record", "restore.after_raise", "restore.after_files",
                  "restore.after_retire", "restore.after_aside", "restore.before_marker", "restore.after_marker",
                  "restore.after_databases", "restore.after_config", "mark.before_commit",
                  "mark.after_commit"]  # fmt: skip


def test_every_point_of_a_backup_or_a_restore_is_here() -> None:
    prefixes = ("backup.", "restore.", "mark.")
    assert {*BACKUP_POINTS, *RESTORE_POINTS} == {name for name in failpoints.NAMES if name.startswith(prefixes)}


@pytest.mark.parametrize("name", BACKUP_POINTS)
def test_a_killed_backup_is_no_backup_and_the_next_one_tidies_up(lake: Lake, tmp_path: Path, name: str) -> None:
    make_table(lake)
    lake.append("messages", messages(0, 3))
    to = tmp_path / "backups" / "monday"
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        backup(lake, to)
    assert to.exists() == (name == "backup.after_rename")
    with reopened(lake) as again:
        wanted = to if not to.exists() else to.with_name("tuesday")
        manifest = backup(again, wanted)
    verify(wanted, manifest)
    assert [path.name for path in to.parent.iterdir() if path.name.startswith(".monday")] == []


@pytest.mark.parametrize("name", slices.share(RESTORE_POINTS, 3))
def test_a_killed_restore_is_run_again(lake: Lake, ledgers: Ledgers, tmp_path: Path, name: str) -> None:
    """Wherever it dies, there is the old lake, or none, or the new one; and the same command ends well.

    In Postgres with another database, if the first one was filled.
    """
    make_table(lake)
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path}/archive"})
    lake.append("messages", messages(0, 3))
    lake.tick()
    lake.append("messages", messages(3, 5))
    backup(lake, tmp_path / "backup")
    lake.append("messages", messages(5, 8, "lost"))
    lake.tick()
    lake.close()
    failpoints.arm(f"{name}=raise")
    known = set(owner._live)
    with pytest.raises(failpoints.FailpointReached):
        restore(tmp_path / "backup", lake.root, replace=True, ledger=ledgers.next())
    failpoints.arm(None)
    owner._live.intersection_update(known)  # the process is dead, and with it what it had open
    done = restore(tmp_path / "backup", lake.root, replace=True, ledger=ledgers.next())
    assert done.restored.seq > JUMP
    with Lake(lake.root) as again:
        assert part_ids(again) == [f"p{n}" for n in range(5)]
        assert int(again.append("messages", messages(0, 2, "new")).first_seq or 0) > done.restored.seq
        assert [ticked.outcome for ticked in again.tick()] == ["delivered"]
        assert strand_json(again, "doctor", "--deep")["findings"] == []
    assert not (lake.root / ".restoring").exists()
    rows = [*(f"p{n}" for n in range(5)), *(f"lost{n}" for n in range(5, 8)), "new0", "new1"]
    assert_once(rows, blobs(tmp_path / "archive"))
