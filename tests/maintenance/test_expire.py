"""Expiry and holds: what somebody needs stays, what nobody needs goes, and nobody gets a part of what is gone."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from strandline import failpoints
from strandline.errors import Conflict, HistoryGone
from strandline.lake import Lake
from strandline.ledger.publish.publishing import Intent, Publishing
from strandline.ledger.sinks.deliveries import open_delivery
from strandline.ledger.tables import holds
from strandline.ledger.tables.files import list_snapshots
from strandline.ledger.tables.holds import CondemnSnapshots
from strandline.model.delivery.sinks import Mark
from strandline.model.ids import lease_of_stream
from strandline.operations.core.beats import holding
from strandline.operations.maintain import expire as expiring
from strandline.sinks import tick as ticking
from strandline.sinks.marks import draft
from strandline.sinks.reading import UnitPlan
from strandline.views import pins
from tests import files
from tests.acceptance.test_failpoints import FLUSH_POINTS, MAINTENANCE_POINTS
from tests.delivery import streams, wipe_marks
from tests.kit import assert_recovered, crash, make_table, messages, part_ids, reopened, swept
from tests.maintenance.test_compact import small_files

EXPIRE_POINTS = {
    **{name: outcome for name, outcome in FLUSH_POINTS.items() if not name.startswith("stage.")},
    **{name: "rolled_forward" for name in MAINTENANCE_POINTS if name.startswith("expire.")},
}


def known(lake: Lake) -> list[int]:
    """The snapshots that the ledger keeps, newest first."""
    head = lake.view().branch_table("messages").head
    with lake.ledger.read() as conn:
        return [snapshot.snapshot_id for snapshot in list_snapshots(conn, head.branch_id, head.table_id, limit=100)]


def in_iceberg(lake: Lake) -> set[int]:
    """The snapshots that Iceberg keeps."""
    return {int(one.snapshotId()) for one in lake.iceberg().load("lake.messages").snapshots()}


def data_files(lake: Lake) -> set[str]:
    """Every data file in the warehouse."""
    found = files.listing(lake.config.warehouse)
    return {uri.removeprefix("file://") for uri in found if uri.endswith(".parquet")}


def test_superseded_snapshots_go_when_their_grace_is_over(lake: Lake) -> None:
    """Within the grace nothing goes; after it the pin alone is left, in the ledger, in Iceberg and on the disk."""
    make_table(lake)
    expected = small_files(lake, 4)
    lake.compact("messages")
    assert lake.expire("messages")[0].after["snapshots"] == 5, "the grace is 15 minutes"
    assert lake.expire("messages", grace_s=0, dry_run=True)[0].after["snapshots"] == 1
    (done,) = lake.expire("messages", grace_s=0)
    assert (done.before["snapshots"], done.after["snapshots"], done.complete) == (5, 1, True)
    assert done.after["files_known"] == 1, "the ledger does not grow with history"
    assert lake.sweep()[1].before["unpublished_snapshots"] == 1, "the empty one that the first branch began with"
    assert known(lake) == list(in_iceberg(lake)) == [lake.view().branch_table("messages").head.log_snapshot]
    assert data_files(lake) == {file.path.removeprefix("file:") for file in lake.view().files("messages")}
    assert part_ids(lake) == expected
    assert lake.expire("messages", grace_s=0)[0].operations == (), "again, there is nothing to do"
    assert_recovered(lake)


@pytest.mark.parametrize("name", swept(EXPIRE_POINTS))
def test_f36_an_expiry_that_dies_anywhere_is_finished_or_undone(lake: Lake, name: str) -> None:
    """Whatever step it dies at, the table reads the same, and the next expiry leaves the pin alone."""
    make_table(lake)
    expected = small_files(lake, 2)
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.expire("messages", grace_s=0)
    with reopened(lake) as again:
        assert part_ids(again) == expected
        assert_recovered(again, EXPIRE_POINTS[name])
        again.expire("messages", grace_s=0)
        again.sweep("messages")
        assert known(again) == list(in_iceberg(again))
        assert part_ids(again)[: len(expected)] == expected


def test_f36_a_held_view_reads_the_same_before_and_after_all_maintenance(lake: Lake) -> None:
    """What a view names in the log and in the tail stays while it is held, and goes when it is not."""
    make_table(lake)
    small_files(lake, 2)
    lake.append("messages", messages(100, 105))
    view = lake.view()
    before = view.sql("select part_id, _seq from messages order by _seq").rows()
    with view.held():
        lake.flush("messages")
        lake.compact("messages")
        lake.expire("messages", grace_s=0)
        lake.sweep(grace_s=0)
        assert view.sql("select part_id, _seq from messages order by _seq").rows() == before
        assert [row for batch in view.read("messages") for row in batch.column("_seq").to_pylist()] == [
            row[1] for row in before
        ]
    lake.expire("messages", grace_s=0)
    with pytest.raises(HistoryGone):
        view.sql("select part_id, _seq from messages order by _seq").rows()
    with pytest.raises(HistoryGone), view.held():
        pass


def test_a_view_that_grows_old_is_held_by_being_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A young view writes nothing; one that is read when half of its grace is over writes a hold, and renews it."""
    clock = [1000.0]
    monkeypatch.setattr(pins.time, "monotonic", lambda: clock[0])
    make_table(lake)
    expected = small_files(lake, 2)
    view = lake.view()
    count = "select count(*) from messages"
    view.sql(count).rows()
    assert _holds(lake) == 0
    clock[0] += 500
    view.sql(count).rows()
    view.sql(count).rows()
    assert _holds(lake) == 1
    lake.compact("messages")
    lake.expire("messages", grace_s=0)
    assert view.sql(count).rows() == [(len(expected),)]
    with Lake(lake.root, read_only=True) as reader:
        old = reader.view()
        clock[0] += 500
        old.sql(count).rows()
    assert _holds(lake) == 1, "a read-only lake holds nothing"


def _holds(lake: Lake) -> int:
    from sqlalchemy import func, select

    from strandline.ledger.database import schema

    with lake.ledger.read() as conn:
        return int(conn.execute(select(func.count()).select_from(schema.holds)).scalar_one())


def test_f55_a_pin_and_an_expiry_never_miss_each_other(lake: Lake, tmp_path: Path) -> None:
    """Whoever comes first wins: what a head, a hold or a delivery needs stays, and what was condemned is refused."""
    make_table(lake)
    small_files(lake, 2)
    view = lake.view()
    lake.append("messages", messages(100, 101))
    lake.flush("messages")
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path}/archive"})
    table_id = view.branch_table("messages").table.table_id
    current, old, older = known(lake)

    def condemn(snapshot: int) -> None:
        effect, head = CondemnSnapshots(table_id, (snapshot,)), view.branch_table("messages").head
        with lake.ledger.write() as txn:
            intent = Intent("op", "expire", "staged", head.branch_id, "ann", "", txn.at_us, ())
            effect.check(txn.conn, intent)
            effect.apply(txn, Publishing(intent))

    def deliver(snapshot: int) -> None:
        (sink,), (state,) = lake.sinks(), streams(lake, "archive")
        plan = UnitPlan(until=1, version=1, snapshot=snapshot, schema_version=1)
        name = lease_of_stream(sink.sink_id, state.stream.text())
        with holding(lake.context, name) as hold, lake.ledger.write() as txn:
            open_delivery(txn, hold, draft(sink, state.stream, "messages", Mark(1, 0), plan, {}))

    condemn(older)
    for refused in (older, 12345):
        with pytest.raises(HistoryGone):
            deliver(refused)
    with pytest.raises(HistoryGone), lake.ledger.write() as txn:
        holds.hold(txn, "late", since_us=0, keep_s=60, purpose="test")
    with pytest.raises(Conflict):
        condemn(current)
    with view.held(), pytest.raises(Conflict):
        condemn(old)
    deliver(old)
    with pytest.raises(Conflict):
        condemn(old)
    wipe_marks(lake)
    condemn(old)


def test_f55_who_comes_while_an_expiry_is_under_way_finds_all_or_is_told(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view is held when its snapshots are already chosen to go: they stay. A delivery is opened when what it was
    planned on has just gone: it is planned anew.
    """
    make_table(lake)
    expected = small_files(lake, 2)
    view = lake.view()
    lake.compact("messages")
    stage, plan_unit = expiring.Expire.stage, ticking.plan_unit
    chosen: list[int] = []
    with ExitStack() as stack:

        def hold_first(self: expiring.Expire, *arguments: Any) -> Any:
            if not chosen:
                chosen.append(len(self.found))
                stack.enter_context(view.held())
            return stage(self, *arguments)

        monkeypatch.setattr(expiring.Expire, "stage", hold_first)
        lake.expire("messages", grace_s=0)
        assert chosen == [2], "nothing was about to go"
        assert [row[0] for row in view.sql("select part_id from messages order by _seq").rows()] == expected
    planned: list[int] = []

    def expire_then(*arguments: Any) -> Any:
        plan = plan_unit(*arguments)
        if plan is not None:
            planned.append(plan.snapshot)
        if len(planned) == 1:
            lake.append("messages", messages(100, 101))
            lake.flush("messages")
            lake.compact("messages")
            lake.expire("messages", grace_s=0)
        return plan

    monkeypatch.setattr(ticking, "plan_unit", expire_then)
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path}/archive"})
    assert [(one.outcome, one.rows) for one in lake.tick("archive")] == [("delivered", len(expected) + 1)]
    assert len(set(planned)) == 2 and planned[0] not in known(lake), "what was planned on is still there"


def test_f55_pins_race_expiry_and_every_one_is_refused_or_stays(lake: Lake) -> None:
    """Views are taken and held in threads while snapshots are made and expired: a held one reads the same after it."""
    make_table(lake)
    small_files(lake, 1)
    stop = threading.Event()
    failures: list[BaseException] = []
    rounds, held = [0], [0]

    def reader() -> None:
        with Lake(lake.root) as mine:
            while not stop.is_set():
                view = mine.view()
                with ExitStack() as stack:
                    try:
                        stack.enter_context(view.held())
                    except HistoryGone:
                        continue  # refused
                    try:
                        rows = view.sql("select count(*), max(_seq) from messages").rows()
                        begun = rounds[0]
                        while rounds[0] == begun and not stop.is_set():
                            time.sleep(0.02)
                        assert view.sql("select count(*), max(_seq) from messages").rows() == rows
                    except BaseException as error:
                        failures.append(error)
                        return
                    held[0] += 1

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(4):
        lake.append("messages", messages(1000 + 5 * n, 1005 + 5 * n))
        lake.flush("messages")
        lake.compact("messages")
        lake.expire("messages", grace_s=0)
        rounds[0] += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == [] and held[0] > 0
