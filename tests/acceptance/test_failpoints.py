"""The sweep: die at every failpoint, reopen, look; then die again at every step of that recovery.

Each case runs the smallest work that passes its failpoint and is killed there, in this process (`raise`, which no
handler may catch). Afterwards every acked row is there once, nothing is half-visible, and the next write works.
`test_processes.py` does the same to real processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline import failpoints
from strandline.lake import Lake
from tests import slices
from tests.kit import (
    WAYPOINTS,
    assert_recovered,
    audits,
    crash,
    intents_of,
    log_part_ids,
    make_table,
    message,
    messages,
    part_ids,
    recovery_dies,
    reopened,
    swept,
)

FLUSH_POINTS = {
    "begin.before_commit": None,
    "begin.after_commit": "rolled_back",
    "stage.before_table": "rolled_back",
    "stage.before_branch": "rolled_back",
    "stage.after_branch": "rolled_back",
    "stage.before_files": "rolled_back",
    "stage.after_files": "rolled_back",
    "stage.before_append": "rolled_back",
    "stage.after_append": "rolled_back",
    "staged.before_commit": "rolled_back",
    "staged.after_commit": "rolled_forward",
    "publish.before_commit": "rolled_forward",
    "publish.after_commit": "rolled_forward",
    "settle.before_ref": "rolled_forward",
    "settle.after_ref": "rolled_forward",
    "settle.after_folder": "rolled_forward",
    "settle.after_commit": None,
}
LOAD_POINTS = [
    "load.before_convert",
    "load.after_convert",
    "load.after_parts",
    "reserve.before_commit",
    "reserve.after_commit",
    "load.between_bites",
    *FLUSH_POINTS,
]
RECOVERY_POINTS = ["recover.before_commit", "recover.after_commit", "settle.before_ref", "settle.after_ref",
                   "settle.after_folder", "settle.after_commit"]  # fmt: skip
APPEND_POINTS = ["append.before_commit", "append.after_commit"]
OTHER_POINTS = ["table.before_commit", "table.after_commit", "quarantine.before_commit", "quarantine.after_commit"]
MUTATE_POINTS = [
    "mutate.before_store",
    "mutate.before_commit",
    "mutate.after_commit",
    "branch.before_commit",
    "branch.after_commit",
    "merge.before_store",
    "merge.before_commit",
    "merge.after_commit",
    "schema.before_store",
    "schema.before_commit",
    "schema.after_commit",
]  # died at in tests/versions
INBOUND_POINTS = ["inbound.before_commit", "inbound.after_commit"]  # died at in tests/server
DESTINATION_POINTS = ["blob.before_write", "blob.before_rename", "blob.after_write", "blob.before_manifest",
                      "blob.after_manifest", "blob.before_mark", "blob.after_mark", "copy.before_append",
                      "copy.after_append", "copy.before_commit", "copy.after_commit"]  # fmt: skip
"""`tests/sinks` dies at these."""
DELIVERY_POINTS = ["deliver.before_open", "deliver.after_open", "deliver.before_close", "deliver.after_close",
                   "forward.before_send", "forward.after_send", "dead.before_commit", "dead.after_commit"]  # fmt: skip
"""`test_forward` dies at these."""
MAINTENANCE_POINTS = ["expire.before_delete", "expire.after_delete", "expire.after_forget",
                      "sweep.before_delete", "sweep.after_delete", "purge.before_forget",
                      "purge.after_forget"]  # fmt: skip
"""`tests/maintenance` dies at these."""
PLACE_POINTS = [name for name in failpoints.NAMES if name.startswith(("fence.", "claim.", "clone.", "relocate."))]
"""`tests/place` dies at these, which it compares with the list."""
BACKUP_POINTS = [name for name in failpoints.NAMES if name.startswith(("backup.", "restore.", "mark."))]
"""`tests/backup` dies at these, which it compares with the list."""


def test_every_failpoint_is_in_the_sweep() -> None:
    """A failpoint that no test dies at protects nothing."""
    elsewhere = {
        *BACKUP_POINTS,
        *PLACE_POINTS,
        *INBOUND_POINTS,
        *DESTINATION_POINTS,
        *DELIVERY_POINTS,
        *MAINTENANCE_POINTS,
    }
    listed = {*FLUSH_POINTS, *LOAD_POINTS, *RECOVERY_POINTS, *APPEND_POINTS, *MUTATE_POINTS, *OTHER_POINTS, *elsewhere}
    assert listed == set(failpoints.NAMES)


def _with_rows(lake: Lake) -> list[str]:
    """A table with flushed rows, and a tail in which some keys are repeated."""
    make_table(lake)
    lake.append("messages", messages(0, 20))
    lake.flush("messages")
    lake.append("messages", messages(10, 40))
    return [f"p{n}" for n in range(40)]


@pytest.mark.both_ledgers(only=WAYPOINTS)
@pytest.mark.parametrize("name", FLUSH_POINTS)
def test_f02_a_flush_that_dies_anywhere_loses_and_repeats_nothing(lake: Lake, name: str) -> None:
    """Whatever step a flush dies at, each acked row is visible once before, right after, and once the work is
    finished.
    """
    expected = _with_rows(lake)
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.flush("messages")
    with reopened(lake) as again:
        assert part_ids(again) == expected, "right after the crash"
        assert_recovered(again, FLUSH_POINTS[name])
        again.flush("messages")
        assert log_part_ids(again)[:40] == expected, "in Iceberg, in the end"


@pytest.mark.parametrize("name", ["stage.after_append", "staged.after_commit", "publish.after_commit"])
@pytest.mark.parametrize("second", slices.share(RECOVERY_POINTS, 3))
def test_f31_recovery_that_dies_anywhere_ends_in_the_same_state(lake: Lake, name: str, second: str) -> None:
    """Recovery is itself killed at each of its steps, twice over, and the third one still ends right."""
    expected = _with_rows(lake)
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.flush("messages")
    recovery_dies(lake, second, second)
    with reopened(lake) as last:
        assert part_ids(last) == expected
        assert_recovered(last)
        assert {row["outcome"] for row in audits(last)} == {
            "rolled_back" if name == "stage.after_append" else "rolled_forward"
        }
        assert len(audits(last)) == 1, "audited once, however often recovery was interrupted"


@pytest.mark.both_ledgers
@pytest.mark.parametrize("name", APPEND_POINTS)
def test_f01_an_append_that_dies_is_stored_whole_or_not_at_all(lake: Lake, name: str) -> None:
    """Before the commit nothing is there; after it everything is, although the caller was never told."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.append("messages", messages(5, 10), idempotency_key="k1")
    with reopened(lake) as again:
        stored = 5 if name == "append.before_commit" else 10
        assert part_ids(again) == [f"p{n}" for n in range(stored)]
        again.append("messages", messages(5, 10), idempotency_key="k1")
        assert part_ids(again) == [f"p{n}" for n in range(10)], "a retry under the same key fills in what is missing"
        assert_recovered(again)


@pytest.mark.both_ledgers
@pytest.mark.parametrize("name", ["table.before_commit", "table.after_commit"])
def test_a_table_exists_whole_or_not_at_all(lake: Lake, name: str) -> None:
    """A crash while a table is made leaves a table that works, or none."""
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        make_table(lake)
    with reopened(lake) as again:
        if name == "table.before_commit":
            assert again.view().tables == []
            make_table(again)
        again.append("messages", messages(0, 3))
        assert part_ids(again) == ["p0", "p1", "p2"]


@pytest.mark.parametrize("name", ["quarantine.before_commit", "quarantine.after_commit"])
def test_f09_setting_a_batch_aside_survives_a_crash(lake: Lake, name: str) -> None:
    """A flush that dies while it sets an unreadable batch aside leaves it to the next one, and counts it once."""
    from tests.acceptance.test_capture import damage_batch

    make_table(lake)
    for n in range(3):
        lake.append("messages", [message(n)])
    damage_batch(lake, position=1)
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.flush("messages")
    with reopened(lake) as again:
        again.flush("messages")
        assert part_ids(again) == ["p0", "p2"]
        assert again.view().branch_table("messages").head.books.quarantined == 1
        assert_recovered(again)


@pytest.mark.parametrize("name", swept(LOAD_POINTS))
@pytest.mark.usefixtures("bulky")
def test_f59_a_load_that_died_anywhere_is_run_again_and_loads_nothing_twice(
    lake: Lake, tmp_path: Path, name: str
) -> None:
    """The same load is run until it says it is done; every row of the file is there once, in the file's order."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in messages(3, 60)))
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.load("messages", [str(source)])
    with reopened(lake) as again:
        seen = part_ids(again)
        assert len(seen) == len(set(seen)) and seen[:5] == [f"p{n}" for n in range(5)]
        loaded = again.load("messages", [str(source)])
        assert (loaded.rows, loaded.duplicates_dropped) == (55, 2)
        assert part_ids(again) == [f"p{n}" for n in range(60)]
        assert again.load("messages", [str(source)]).already_loaded
        assert_recovered(again)
        assert part_ids(again)[:60] == [f"p{n}" for n in range(60)]


@pytest.mark.both_ledgers
def test_f31_an_operation_that_keeps_dying_never_doubles_a_row(lake: Lake) -> None:
    """Twelve flushes die at twelve places, with appends between them; the thirteenth puts everything right."""
    make_table(lake)
    total = 0
    work: Callable[[Lake], object] = lambda one: one.flush("messages")  # noqa: E731
    current = lake
    for name in list(FLUSH_POINTS)[1:13]:
        current.append("messages", messages(total, total + 5))
        total += 5
        failpoints.arm(f"{name}=raise")
        with crash(current):
            work(current)
        current = reopened(current)
        assert part_ids(current) == [f"p{n}" for n in range(total)]
    current.flush("messages")
    assert log_part_ids(current) == [f"p{n}" for n in range(total)]
    assert_recovered(current)
    assert intents_of(current) == []
    current.close()
