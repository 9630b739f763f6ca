"""Sweep: what is nobody's goes, and what somebody lives for stays."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import update

from strandline import failpoints
from strandline.engines.spark import maintain
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.publish.intent_rows import delete_intent
from strandline.ledger.publish.leases import release_operation
from strandline.model.ids import new_id, private_branch
from strandline.operations.maintain import stage_tail as staging
from tests import files
from tests.kit import assert_recovered, crash, intents_of, log_part_ids, make_table, messages, part_ids, reopened
from tests.maintenance.test_compact import small_files
from tests.maintenance.test_expire import in_iceberg, known

DAYS_AGO_S = 2 * 24 * 3600


def an_orphan(lake: Lake, age_s: float, name: str) -> str:
    """A file in the table's folder that no snapshot names."""
    uri = f"{lake.config.warehouse}/lake/messages/data/{name}"
    files.write(uri, b"nobody's")
    files.grow_old(uri, age_s)
    return uri


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
        assert (files.exists(old), files.exists(young)) == (False, True)
        assert private_branch(op_id) not in last.iceberg().refs("lake.messages")
        assert in_iceberg(last) == set(known(last))
        assert last.context.staging.listing() == []
        assert part_ids(last) == expected
        assert_recovered(last)


def test_what_a_live_operation_works_on_stays(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep in the middle of a flush, when it has written all and published nothing: branch, folder, snapshot and
    files stay, however long the flush takes.
    """
    make_table(lake)
    small_files(lake, 1)
    old = an_orphan(lake, DAYS_AGO_S, "old.parquet")
    lake.append("messages", messages(100, 103))
    real, swept = staging.added_files, []

    def sweep_then(*arguments: Any) -> Any:
        if not swept:
            with Lake(lake.root) as other:
                (intent,) = intents_of(other)
                assert other.context.staging.listing() == [intent.op_id]
                assert private_branch(intent.op_id) in other.iceberg().refs("lake.messages")
                for began_s, left in ((time.time() - 2 * DAYS_AGO_S, True), (time.time(), False)):
                    with other.ledger.write() as txn:
                        txn.conn.execute(update(schema.intents).values(created_at_us=int(began_s * 1e6)))
                    swept.extend(dict(one.before) for one in other.sweep(grace_s=0))
                    assert files.exists(old) == left, "a file is an operation's only if it is younger"
        return real(*arguments)

    monkeypatch.setattr(staging, "added_files", sweep_then)
    with Lake(lake.root) as writer:
        writer.flush("messages")
    assert [one["folders"] for one in swept[::2]] == [0, 0]
    assert [one["private_branches"] for one in swept[1::2]] == [0, 0]
    assert [one["orphan_files"] for one in swept[1::2]] == [0, 1]
    assert swept[3]["unpublished_snapshots"] == 0, "what is staged is not published yet"
    assert len(part_ids(lake)) == len(log_part_ids(lake)) == 8
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


def test_a_sweep_looks_again_when_an_expiry_takes_a_file_away_under_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the listing reads is gone for a moment: it is made anew, and nothing fails."""
    make_table(lake)
    small_files(lake, 2)
    old = an_orphan(lake, DAYS_AGO_S, "old.parquet")
    manifests = lake.iceberg().load("lake.messages").currentSnapshot().manifestListLocation()
    kept, listed, looks = files.read(manifests), maintain._listed, [0]

    def look(*given: Any) -> list[str]:
        looks[0] += 1
        if looks[0] == 3:
            files.write(manifests, kept)
        return listed(*given)

    monkeypatch.setattr(maintain, "_listed", look)
    files.remove(manifests)
    done = {one.table: one for one in lake.sweep()}
    assert (looks[0], done["messages"].before["orphan_files"]) == (3, 1)
    assert not files.exists(old)
