"""Sweep: what is nobody's goes, and what somebody lives for stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from strandline import failpoints
from strandline.lake import Lake
from strandline.ledger.intents import delete_intent
from strandline.ledger.leases import release_operation
from strandline.model.ids import new_id, private_branch
from tests.kit import assert_recovered, crash, intents_of, make_table, messages, part_ids, reopened
from tests.maintenance.test_compact import small_files
from tests.maintenance.test_expire import in_iceberg, known

DAYS_AGO_S = 2 * 24 * 3600


def an_orphan(lake: Lake, age_s: float, name: str) -> Path:
    """A file in the table's folder that no snapshot names."""
    path = Path(lake.config.warehouse.removeprefix("file://")) / "lake/messages/data" / name
    path.write_bytes(b"nobody's")
    os.utime(path, (time.time() - age_s, time.time() - age_s))
    return path


def forgotten_operation(lake: Lake) -> str:
    """An operation that staged a snapshot, died, and whose intent a person has discarded."""
    lake.append("messages", messages(100, 103))
    failpoints.arm("staged.after_commit=raise")
    with crash(lake):
        lake.flush("messages")
    with reopened(lake, recovering=False) as again:
        (intent,) = intents_of(again)
        with again.ledger.write() as txn:
            delete_intent(txn, intent.op_id)
            release_operation(txn, intent.op_id)
    return str(intent.op_id)


@pytest.mark.parametrize("name", [None, "sweep.before_delete", "sweep.after_delete"])
def test_what_dead_operations_left_goes(lake: Lake, name: str | None) -> None:
    """Private branch, folder, unpublished snapshot, old files: all gone, also if a sweep dies on the way."""
    make_table(lake)
    expected = [*small_files(lake, 2), "p100", "p101", "p102"]
    op_id = forgotten_operation(lake)
    with reopened(lake) as again:
        old, young = an_orphan(again, DAYS_AGO_S, "old.parquet"), an_orphan(again, 3600, "young.parquet")
        iceberg = again.iceberg()
        assert private_branch(op_id) in iceberg.refs("lake.messages")
        assert again.context.staging.listing() == [op_id]
        planned = {one.table: one.before for one in again.sweep(dry_run=True)}
        assert planned["(lake)"]["folders"] == 1
        assert (planned["messages"]["private_branches"], planned["messages"]["orphan_files"]) == (1, 1)
        if name is not None:
            failpoints.arm(f"{name}=raise")
            with crash(again):
                again.sweep()
    with reopened(lake) as last:
        last.sweep()
        last.sweep()
        assert (old.exists(), young.exists()) == (False, True)
        assert private_branch(op_id) not in last.iceberg().refs("lake.messages")
        assert in_iceberg(last) == set(known(last))
        assert last.context.staging.listing() == []
        assert part_ids(last) == expected
        assert_recovered(last)


def test_what_a_live_operation_works_on_stays(lake: Lake) -> None:
    """In the middle of a flush of this process a sweep finds a branch, a folder and a snapshot, and touches none."""
    make_table(lake)
    small_files(lake, 1)
    lake.append("messages", messages(100, 103))
    swept: list[dict[str, int]] = []

    def report(what: str, _done: int, _total: int | None) -> None:
        if what.startswith("reading the tail") and not swept:
            with Lake(lake.root) as other:
                old = an_orphan(other, DAYS_AGO_S, "old.parquet")
                swept.extend(dict(one.before) for one in other.sweep())
                assert not old.exists(), "a file that is older than the operation is not its own"

    with Lake(lake.root, report=report) as writer:
        writer.flush("messages")
    assert swept[0]["folders"] == 0 and swept[1]["private_branches"] == 0
    assert len(part_ids(lake)) == 8
    assert_recovered(lake)


def test_passing_names_of_killed_adoptions_go(lake: Lake) -> None:
    """A catalog entry that an adoption left a day ago goes; the table that it names, and a new entry, stay."""
    make_table(lake)
    small_files(lake, 1)
    iceberg = lake.iceberg()
    file = str(iceberg.load("lake.messages").operations().current().metadataFileLocation())
    iceberg.ensure_namespace("strand_adopt")
    old = f"strand_adopt.t_{int((time.time() - DAYS_AGO_S) * 1000):012x}{'a' * 12}"
    young = f"strand_adopt.t_{new_id()}"
    for entry in (old, young):
        iceberg.register(entry, file)
    lake.sweep()
    assert iceberg.tables("strand_adopt") == [young]
    assert len(part_ids(lake)) == 5
