"""Maintenance by the worker: what needs it gets it, bounded, one at a time, and a tidy lake is left alone."""

from __future__ import annotations

import pytest

import strandline as sl
from strandline.lake import Lake
from strandline.ledger.workers.jobs import read_jobs
from strandline.worker.due import due
from strandline.worker.due_inputs import Sightings, read_facts, read_needs
from strandline.worker.loop import Worker
from tests.kit import log_part_ids, make_table, message, messages, part_ids, wait_until
from tests.versions.kit import make_people
from tests.worker.test_loop import working


def kinds(lake: Lake) -> list[str]:
    return [job.key for job in due(read_facts(lake, Sightings(), read_needs(lake)))]


@pytest.fixture
def scattered(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A table of many small files, with snapshots and batches that are past their grace."""
    monkeypatch.setenv("STRAND_MAINTENANCE_GRACE", "0s")
    make_table(lake)
    for n in range(6):
        lake.append("messages", [message(n)])
        lake.flush("messages")
    return lake


def test_a_table_that_needs_it_is_maintained_and_then_left_alone(scattered: Lake) -> None:
    """Small files are merged, old snapshots and batches go, no row changes; the next look finds nothing to do."""
    with Lake(scattered.root) as lake:
        assert kinds(lake) == ["compact:messages", "expire:messages", "sweep:lake"]
        before = len(lake.view().files("messages"))
        worker = Worker(lake)
        worker.once()
        assert worker.failed == set()
        assert len(lake.view().files("messages")) < before
        with lake.ledger.read() as conn:
            done = {key: job.outcome for key, job in read_jobs(conn).items()}
        assert {"compact:messages", "expire:messages", "sweep:lake"} <= set(done)
        assert set(done.values()) == {"done"}
        assert not [key for key in kinds(lake) if key.startswith("compact")]
        assert log_part_ids(lake) == [f"p{n}" for n in range(6)]


def test_maintenance_that_is_switched_off_is_off(scattered: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRAND_MAINTENANCE_EVERY", "off")
    with Lake(scattered.root) as lake:
        assert kinds(lake) == []


def test_a_tidy_lake_starts_no_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker on an idle lake decides nothing, and so needs nothing."""
    make_table(lake)
    monkeypatch.setattr(Lake, "iceberg", lambda _: pytest.fail("Spark was started"))
    with Lake(lake.root) as idle:
        assert kinds(idle) == []
        assert Worker(idle).once() == []


def test_rows_go_on_while_the_worker_maintains(scattered: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends and flushes beside a worker that maintains all the time: each row once, in its order."""
    monkeypatch.setenv("STRAND_MAINTENANCE_EVERY", "100ms")
    monkeypatch.setattr("strandline.worker.loop.NEEDS_S", 0.1)
    with working(scattered.root):
        for n in range(6, 18):
            scattered.append("messages", [message(n)])
            scattered.flush("messages")
        wait_until(lambda: len(scattered.view().files("messages")) < 8)
    assert part_ids(scattered) == [f"p{n}" for n in range(18)]
    assert log_part_ids(scattered) == [row["part_id"] for row in messages(0, 18)]


def test_keyed_tables_of_every_branch_are_flushed_and_folded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on its branch, when enough of its log is not in its state; log tables are flushed once."""
    make_table(lake)
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key}) for key in "abc"])
    lake.branch("x")
    lake.mutate([sl.delete("person", "a")], branch="x")
    lake.append("messages", [message(1)])
    monkeypatch.setenv("STRAND_FLUSH_MAX_AGE", "0s")
    with Lake(lake.root) as patient:
        assert kinds(patient) == ["flush:messages"], "nobody waits for a keyed table's"
    monkeypatch.setenv("STRAND_FLUSH_KEYED_MAX_AGE", "0s")
    monkeypatch.setenv("STRAND_MAINTENANCE_FOLD_BYTES", "1")
    with Lake(lake.root) as again:
        assert sorted(kinds(again)) == ["flush:messages", "flush:person", "flush:person@x"]
        Worker(again).once()
        assert sorted(kinds(again)) == ["fold:person", "fold:person@x"]
        Worker(again).once()
        assert kinds(again) == []
        for branch, rows in (("main", "abc"), ("x", "bc")):
            state = again.view(branch).branch_table("person")
            assert (state.tail, state.folded_seq) == ((), state.stable_seq)
            found = again.view(branch).sql("select id from person order by id").rows()
            assert "".join(key for (key,) in found) == rows
    with Lake(lake.root) as last:
        last.mutate([sl.put("person", {"id": "d"})])
        last.flush("person")
        monkeypatch.setenv("STRAND_MAINTENANCE_FOLD_PERCENT", "1000")
    with Lake(lake.root) as lazy:
        assert kinds(lazy) == [], "it is little beside what the state has"
