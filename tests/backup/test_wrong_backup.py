"""Two backups, restored in the wrong order: the older one by mistake, and then the one that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.backup import backup
from strandline.lake import Lake
from tests.backup.conftest import Ledgers
from tests.backup.test_restore import restored
from tests.delivery import assert_once, forward, receiving
from tests.kit import make_table, messages


@pytest.mark.both_ledgers
@pytest.mark.parametrize("got", [0, 3], ids=["none arrived", "some arrived"])
def test_f57_a_newer_backup_restored_after_an_older_one_sends_what_only_it_has(
    lake: Lake, ledgers: Ledgers, tmp_path: Path, got: int
) -> None:
    """Rows between the backups wait for their sink; the older one is restored, appended to and delivered from first.

    The destination's mark is then far above both counters, and says nothing about rows that only the newer one has.
    """
    root, older, newer = lake.root, tmp_path / "older", tmp_path / "newer"
    with receiving(tmp_path / "receiver") as receiver:
        make_table(lake)
        forward(lake, receiver)
        lake.append("messages", messages(0, 4))
        lake.tick()
        backup(lake, older)
        lake.append("messages", messages(4, 4 + got))
        if got:
            lake.tick()
        lake.append("messages", messages(4 + got, 10))
        backup(lake, newer)
        lake.close()
        ledgers.lose(root)
        restored(older, root, "--replace", *ledgers.named())
        with Lake(root) as mistaken:
            mistaken.append("messages", messages(0, 5, "between"))
            mistaken.tick()
        ledgers.lose(root)
        restored(newer, root, "--replace", *ledgers.named())
        with Lake(root) as meant:
            meant.append("messages", messages(10, 12))
            meant.tick()
        expected = [*(f"p{n}" for n in range(12)), *(f"between{n}" for n in range(5))]
        assert_once(expected, receiver.rows())
