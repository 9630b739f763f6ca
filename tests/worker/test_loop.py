"""The worker's loop: schedules, failures, sharing, stopping."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline import create, failpoints
from strandline.errors import Environment, NoSpace
from strandline.lake import Lake
from strandline.ledger.workers.jobs import JobRecord, begin_job, read_jobs, retry_jobs
from strandline.reports.doctor import examine
from strandline.worker import loop
from strandline.worker.due import due
from strandline.worker.due_inputs import Sightings, decisions, read_facts
from strandline.worker.loop import Worker
from strandline.worker.presence import living
from tests.kit import crash, intents_of, log_part_ids, make_table, messages, strand_json, wait_until


def due_keys(lake: Lake) -> list[str]:
    """What a worker that starts now would do."""
    return [job.key for job in due(read_facts(lake, Sightings(), []))]


def job(lake: Lake, key: str) -> JobRecord:
    with lake.ledger.read() as conn:
        return read_jobs(conn)[key]


@contextmanager
def working(root: Path) -> Iterator[Worker]:
    """A worker in a thread of this process, with a lake of its own."""
    with Lake(root) as lake:
        worker = Worker(lake)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            yield worker
        finally:
            worker.stop.set()
            thread.join(timeout=30)
            assert not thread.is_alive()


def test_a_restarted_worker_waits_for_the_moment_that_a_schedule_names(lake: Lake, tmp_path: Path) -> None:
    """A tick is written down when it is done, an idle one too; one that was told to stop is due again."""
    make_table(lake)
    for name, when in (("daily", {"cron": "0 0 1 1 *"}), ("often", {"every": "1h"})):
        lake.add_sink(name, "blob", {"uri": f"file://{tmp_path / name}", **when}, check=False)
    assert due_keys(lake) == ["tick:daily", "tick:often"], "never ticked"
    stopped = Worker(lake)
    facts = stopped.facts()
    stopped.stop.set()
    stopped._do(due(facts)[0], facts)
    assert due_keys(lake) == ["tick:daily", "tick:often"]
    Worker(lake).once()
    assert due_keys(lake) == []


def test_a_paused_sink_is_no_job_of_a_worker_that_looks_once(lake: Lake, tmp_path: Path) -> None:
    """It would fail each time and be parked in the end, and the sink would stand still after it was resumed."""
    make_table(lake)
    lake.add_sink("blobs", "blob", {"uri": f"file://{tmp_path / 'blobs'}"}, check=False)
    assert strand_json(lake.root, "sink", "pause", "blobs")["paused"]
    assert Worker(lake).once() == [] and "tick:blobs" not in due_keys(lake)
    strand_json(lake.root, "sink", "resume", "blobs")
    assert [job.key for job in Worker(lake).once()] == ["tick:blobs"]


def test_a_clock_that_was_set_back_stops_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen once is aged by the looker's own clock, and what was written by a clock ahead is due at once."""
    seen = Sightings()
    assert seen.age_s("a", 1, since_us=90_000_000, now_us=100_000_000) == pytest.approx(10, abs=1)
    real = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: real + 50)
    assert seen.age_s("a", 1, since_us=90_000_000, now_us=0) == pytest.approx(60, abs=1), "the time of day was set back"
    assert seen.age_s("a", 2, since_us=90_000_000, now_us=0) == pytest.approx(0, abs=1), "it has changed under our eyes"
    assert seen.age_s("b", 1, since_us=90_000_000, now_us=0) == float("inf"), "better now than in an hour"


def test_a_failing_job_waits_longer_each_time_and_is_parked_with_its_reason(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else waits for it; `retry` lets it run again; what passes by itself is never parked."""
    make_table(lake)
    make_table(lake, "other")
    for name in ("messages", "other"):
        lake.append(name, messages(0, 3))
    monkeypatch.setenv("STRAND_WORKER_ATTEMPTS", "3")
    monkeypatch.setenv("STRAND_FLUSH_MAX_AGE", "0s")
    with Lake(lake.root) as again:
        flush, error = Lake.flush, [Environment("no Java here")]

        def broken(self: Lake, table: str | None = None, **options: str) -> list[object]:
            if table == "messages":
                raise error[0]
            return []

        monkeypatch.setattr(Lake, "flush", broken)
        worker = Worker(again)
        waits = []
        for _ in range(3):
            worker.once()
            waits.append(job(lake, "flush:messages").wait_us)
        assert waits == sorted(waits) and waits[0] < waits[1]
        assert job(lake, "flush:other").outcome == "done"
        parked = job(lake, "flush:messages")
        assert (parked.outcome, parked.failures, parked.error) == ("parked", 3, "no Java here")
        (decision,) = [decision for decision in decisions(again) if decision.job == "flush:messages"]
        assert not decision.due and "strand worker retry flush:messages" in decision.why
        (finding,) = [one for one in examine(again) if one.kind == "job_parked"]
        assert (finding.about, finding.severity) == ("flush:messages", "error")
        runs = parked.runs
        worker.once()
        assert job(lake, "flush:messages").runs == runs, "a parked job is left alone"
        error[0] = NoSpace("no room")
        with again.ledger.write() as txn:
            assert retry_jobs(txn, ["flush:messages", "flush:other"]) == ["flush:messages"]
        for _ in range(4):
            worker.once()
        full = job(lake, "flush:messages")
        assert (full.outcome, full.failures) == ("failed", 4)
        monkeypatch.setattr(Lake, "flush", flush)
    with Lake(lake.root) as repaired:
        Worker(repaired).once()
    done = job(lake, "flush:messages")
    assert (done.outcome, done.failures, done.error) == ("done", 0, None)


def test_a_job_whose_workers_die_is_tried_at_once_then_later_and_later_and_then_parked(lake: Lake) -> None:
    """The first death may be anybody's fault. A job in which worker after worker dies leaves the others some time."""

    def begins(attempts: int = 4) -> bool:
        with lake.ledger.read() as conn:
            known = read_jobs(conn).get("flush:messages")
        runs = 0 if known is None else known.runs
        with lake.ledger.write() as txn:
            return begin_job(txn, "flush:messages", "", "w", now_us=0, seen_runs=runs, attempts=attempts)

    assert [begins(), begins()] == [True, True]
    found = []
    while not found or found[-1][0] != "parked":
        assert not begins()
        died = job(lake, "flush:messages")
        found.append((died.outcome, died.failures, died.wait_us / 1e6))
        if died.outcome != "parked":
            assert begins(), "its wait is over"
    assert [(outcome, failures) for outcome, failures, _ in found] == [("failed", 2), ("failed", 3), ("parked", 4)]
    for (_, _, wait_s), most_s in zip(found, (1.0, 2.0, 4.0), strict=True):
        assert 0.8 * most_s <= wait_s <= most_s, "not the same for all that failed at the same moment"
    assert not begins(attempts=100)


def test_a_job_that_kills_its_worker_counts_as_failed(lake: Lake) -> None:
    """A row that still says `running` when the job begins anew was left by a worker that died in it."""
    make_table(lake)
    lake.append("messages", messages(0, 3))
    failpoints.arm("begin.after_commit=raise")
    with crash(lake):
        Worker(lake).once()
    with Lake(lake.root) as again:
        died = job(again, "flush:messages")
        assert (died.outcome, died.failures) == ("running", 0)
        with again.ledger.write() as txn:
            assert not begin_job(txn, died.key, "", "w", now_us=0, seen_runs=died.runs, attempts=1)
        assert job(again, "flush:messages").outcome == "parked"
        with again.ledger.write() as txn:
            retry_jobs(txn, None)
        Worker(again).once()
        done = job(again, "flush:messages")
        assert (done.outcome, done.failures) == ("done", 0)
        assert log_part_ids(again) == ["p0", "p1", "p2"]


def test_two_workers_share_the_jobs_and_neither_complains(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each row is flushed once, a sink is ticked once in its time, and no worker finds the other's lease an error."""
    monkeypatch.setenv("STRAND_FLUSH_MAX_AGE", "0s")
    make_table(lake)
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path / 'blobs'}", "every": "1h"}, check=False)
    with working(lake.root), working(lake.root):
        for start in range(0, 50, 10):
            lake.append("messages", messages(start, start + 10))
            wait_until(lambda: not lake.view().branch_table("messages").tail)
        wait_until(lambda: len(lake_workers(lake)) == 2)
    assert log_part_ids(lake) == [f"p{n}" for n in range(50)]
    assert job(lake, "tick:archive").runs == 1
    assert lake_workers(lake) == [], "a worker that ends leaves nothing behind"
    assert capfd.readouterr().err == ""


@pytest.mark.sqlite_only
def test_many_begin_on_a_new_lake_at_the_same_moment(lake: Lake, tmp_path: Path) -> None:
    """Whoever is first makes the catalog's tables; the others find them, and none of them fails."""
    lake.iceberg()  # so that Spark is up, and they really meet
    for n in range(5):
        create.create(tmp_path / str(n)).close()
        lakes = [Lake(tmp_path / str(n)) for _ in range(6)]
        together = threading.Barrier(len(lakes))

        def begin(one: Lake, together: threading.Barrier = together) -> list[str]:
            together.wait(30)
            return one.iceberg().tables_if_any("lake")

        with ThreadPoolExecutor(len(lakes)) as pool:
            assert list(pool.map(begin, lakes)) == [[]] * len(lakes)
        for one in lakes:
            one.close()


def test_two_workers_never_run_one_job(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is at it the other leaves it alone; and what was done since the other looked is not done again."""
    make_table(lake)
    lake.append("messages", messages(0, 3))
    begun, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    def slow(self: Lake, table: str | None = None, **_: object) -> list[object]:
        ran.append(str(table))
        begun.set()
        assert go_on.wait(30)
        return []

    monkeypatch.setattr(Lake, "flush", slow)
    monkeypatch.setenv("STRAND_FLUSH_MAX_AGE", "0s")
    with Lake(lake.root) as one, Lake(lake.root) as two:
        first, second = Worker(one), Worker(two)
        looked = second.facts()
        (flush,) = [job for job in due(looked) if job.key == "flush:messages"]
        thread = threading.Thread(target=first.once)
        thread.start()
        assert begun.wait(30)
        assert [job.key for job in second.once()] == [], "the first one is at it"
        go_on.set()
        thread.join()
        assert not second._do(flush, looked), "it was done since"
    done = job(lake, "flush:messages")
    assert (ran, done.runs, done.failures, done.outcome) == (["messages"], 1, 0, "done")


def lake_workers(lake: Lake) -> list[str]:
    return [one.worker_id for one in living(lake)]


def test_recovery_runs_in_the_loop(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process leaves that dies while a worker lives is finished by that worker."""
    make_table(lake)
    lake.append("messages", messages(0, 3))
    with working(lake.root), Lake(lake.root) as victim:
        failpoints.arm("staged.after_commit=raise")
        with crash(victim):
            victim.flush("messages")
        wait_until(lambda: intents_of(lake) == [])
        wait_until(lambda: job(lake, "recover:lake").outcome == "done")
    assert log_part_ids(lake) == ["p0", "p1", "p2"]


def test_told_to_stop_it_abandons_what_does_not_end(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs for longer than the worker may wait is abandoned, and due again at once."""
    make_table(lake)
    lake.append("messages", messages(0, 3))
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        begun.set()
        go_on.wait(30)
        return []

    monkeypatch.setattr(Lake, "flush", slow)
    monkeypatch.setattr(loop, "STOP_S", 0.2)
    monkeypatch.setenv("STRAND_FLUSH_MAX_AGE", "0s")
    with Lake(lake.root) as other:
        worker = Worker(other)
        outcome: list[bool] = []
        thread = threading.Thread(target=lambda: outcome.append(worker.run()), daemon=True)
        thread.start()
        assert begun.wait(30)
        worker.stop.set()
        thread.join(30)
        assert outcome == [False]
        assert job(lake, "flush:messages").outcome == "abandoned"
        go_on.set()
