"""What is due, and what is not yet."""

from __future__ import annotations

import datetime as dt

from strandline.worker.due import Job, Rules, Schedule, Tail, due, next_by_cron_us

RULES = Rules(max_bytes=1000, max_age_s=60)
NOW = 1_800_000_000_000_000


def jobs(
    tails: list[Tail], schedules: list[Schedule], ticked: dict[str, int] | None = None, **not_before: int
) -> list[str]:
    waits = {key.replace("_", ":", 1): value for key, value in not_before.items()}
    return [job.key for job in due(NOW, RULES, tails, schedules, ticked or {}, waits)]


def ago(seconds: float) -> int:
    return NOW - int(seconds * 1e6)


def test_a_tail_is_flushed_for_its_size_or_its_age() -> None:
    tails = [Tail("old", 1, ago(60)), Tail("big", 1000, ago(0)), Tail("small", 999, ago(59))]
    assert jobs(tails, []) == ["flush:big", "flush:old"]


def test_the_largest_tail_goes_first_and_flushes_before_ticks() -> None:
    tails = [Tail("a", 2000, ago(0)), Tail("b", 3000, ago(0))]
    assert jobs(tails, [Schedule("s", 60)]) == ["flush:b", "flush:a", "tick:s"]


def test_a_sink_is_ticked_at_once_and_then_every_so_often() -> None:
    schedule = [Schedule("s", 60)]
    assert jobs([], schedule) == ["tick:s"]
    assert jobs([], schedule, {"s": ago(59)}) == []
    assert jobs([], schedule, {"s": ago(60)}) == ["tick:s"]


def test_a_clock_that_was_set_back_does_not_stop_a_sink() -> None:
    assert jobs([], [Schedule("s", 60)], {"s": NOW + 3_600_000_000}) == ["tick:s"]


def test_a_sink_that_is_held_is_not_ticked_before_its_time() -> None:
    assert jobs([], [Schedule("s", 60, hold_until_us=NOW + 1)]) == []
    assert jobs([], [Schedule("s", 60, hold_until_us=NOW)]) == ["tick:s"]


def test_cron_names_the_moment() -> None:
    at = int(dt.datetime(2026, 1, 1, 10, 7, tzinfo=dt.UTC).timestamp() * 1e6)
    following = dt.datetime(2026, 1, 1, 10, 15, tzinfo=dt.UTC).timestamp() * 1e6
    assert next_by_cron_us("*/15 * * * *", at) == following
    schedule = [Schedule("s", 60, cron="0 0 * * *")]
    assert jobs([], schedule, {"s": ago(10)}) == []
    assert jobs([], schedule, {"s": ago(25 * 3600)}) == ["tick:s"]


def test_what_failed_waits_and_nothing_else_does() -> None:
    tails = [Tail("a", 2000, ago(0)), Tail("b", 2000, ago(0))]
    assert jobs(tails, [], None, flush_a=NOW + 1) == ["flush:b"]
    assert jobs(tails, [], None, flush_a=NOW) == ["flush:a", "flush:b"]


def test_a_job_says_why() -> None:
    (job,) = due(NOW, RULES, [Tail("a", 5000, ago(0))], [], {}, {})
    assert job == Job("flush", "a", "its tail has 5000 bytes")
