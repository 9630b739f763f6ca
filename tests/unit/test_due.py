"""What is due, and what is not yet."""

from __future__ import annotations

import datetime as dt

from strandline.worker.due import (
    Facts,
    Job,
    Past,
    Rules,
    Schedule,
    TableNeed,
    Tail,
    due,
    judge,
    next_by_cron_us,
    on_branch,
    startable,
    table_and_branch,
)

RULES = Rules(max_bytes=1000, max_age_s=60, maintain_every_s=600)
NOW = 1_800_000_000_000_000


def jobs(tails: list[Tail] | None = None, schedules: list[Schedule] | None = None, **past: Past) -> list[str]:
    known = {key.replace("_", ":", 1): value for key, value in past.items()}
    return [job.key for job in due(Facts(NOW, RULES, tails or [], schedules or [], past=known))]


def ago(seconds: float, **more: float) -> Past:
    return Past(seconds, NOW - int(seconds * 1e6), **more)  # type: ignore[arg-type]


def test_a_tail_is_flushed_for_its_size_or_its_age() -> None:
    assert jobs([Tail("old", 1, 60), Tail("big", 1000, 0), Tail("small", 999, 59)]) == ["flush:big", "flush:old"]


def test_the_tail_of_a_keyed_table_may_wait_longer() -> None:
    assert jobs([Tail("a", 1, 899, keyed=True), Tail("b@x", 1, 900, keyed=True)]) == ["flush:b@x"]
    assert jobs([Tail("a", 1, 60, keyed=True, batches=999), Tail("b", 1, 60, keyed=True, batches=1000)]) == ["flush:b"]
    assert jobs([Tail("b", 1, 59, keyed=True, batches=1000)]) == []
    assert table_and_branch(on_branch("b", "x@y")) == ("b", "x@y")
    assert table_and_branch(on_branch("b", "main")) == ("b", "main")


def test_the_largest_tail_goes_first_and_flushes_before_ticks() -> None:
    assert jobs([Tail("a", 2000, 0), Tail("b", 3000, 0)], [Schedule("s", 60)]) == ["flush:b", "flush:a", "tick:s"]


def test_a_sink_is_ticked_at_once_and_then_every_so_often() -> None:
    schedule = [Schedule("s", 60)]
    assert jobs([], schedule) == ["tick:s"]
    assert jobs([], schedule, tick_s=ago(59)) == []
    assert jobs([], schedule, tick_s=ago(60)) == ["tick:s"]


def test_the_sink_that_waits_longest_is_ticked_first() -> None:
    schedules = [Schedule("a", 60), Schedule("b", 60), Schedule("new", 60)]
    assert jobs([], schedules, tick_a=ago(61), tick_b=ago(99)) == ["tick:new", "tick:b", "tick:a"]


def test_a_sink_that_is_held_is_not_ticked_before_its_time() -> None:
    assert jobs([], [Schedule("s", 60, hold_until_us=NOW + 1)]) == []
    assert jobs([], [Schedule("s", 60, hold_until_us=NOW)]) == ["tick:s"]


def test_cron_names_the_moment() -> None:
    at = int(dt.datetime(2026, 1, 1, 10, 7, tzinfo=dt.UTC).timestamp() * 1e6)
    following = dt.datetime(2026, 1, 1, 10, 15, tzinfo=dt.UTC).timestamp() * 1e6
    assert next_by_cron_us("*/15 * * * *", at) == following
    schedule = [Schedule("s", 60, cron="0 0 * * *")]
    assert jobs([], schedule, tick_s=ago(10)) == []
    assert jobs([], schedule, tick_s=ago(25 * 3600)) == ["tick:s"]


def test_recovery_goes_first_and_is_not_repeated_at_once() -> None:
    facts = Facts(NOW, RULES, [Tail("a", 2000, 0)], left=2)
    assert [job.key for job in due(facts)] == ["recover:lake", "flush:a"]
    assert due(Facts(NOW, RULES, left=2, past={"recover:lake": ago(4)})) == []
    assert due(Facts(NOW, RULES, damaged=1, past={"recover:lake": ago(200)})) == [], "the files may be back, but rarely"
    assert len(due(Facts(NOW, RULES, damaged=1, past={"recover:lake": ago(400)}))) == 1


def test_maintenance_comes_last_the_neediest_first_and_not_too_often() -> None:
    needs = [
        TableNeed("compact", "a", "3 files", 3),
        TableNeed("compact", "b", "9 files", 9),
        TableNeed("retain", "c", "old rows", 1),
    ]
    facts = Facts(NOW, RULES, [Tail("a", 2000, 0)], needs=needs, past={"retain:c": ago(599)})
    assert [job.key for job in due(facts)] == ["flush:a", "compact:b", "compact:a"]
    off = Facts(NOW, Rules(1000, 60), needs=needs)
    assert due(off) == []
    assert "switched off" in judge(off)[0].job.why


def test_what_failed_waits_and_nothing_else_does() -> None:
    tails = [Tail("a", 2000, 0), Tail("b", 2000, 0)]
    assert jobs(tails, flush_a=ago(1, wait_s=2, failures=1)) == ["flush:b"]
    assert jobs(tails, flush_a=ago(2, wait_s=2, failures=1)) == ["flush:a", "flush:b"]


def test_what_is_parked_waits_for_a_person_and_says_so() -> None:
    facts = Facts(NOW, RULES, [Tail("a", 2000, 0)], past={"flush:a": Past(9e9, failures=12, parked="no Java")})
    (verdict,) = judge(facts)
    assert not verdict.due
    assert verdict.job.why == ("parked after 12 failures: no Java; `strand worker retry flush:a` lets it go on")


def test_a_job_says_why_and_why_not() -> None:
    assert due(Facts(NOW, RULES, [Tail("a", 5000, 0)])) == [Job("flush", "a", "its tail has 5,000 bytes")]
    (verdict,) = judge(Facts(NOW, RULES, [Tail("a", 500, 7)]))
    assert not verdict.due
    assert verdict.job.why == "its tail has 500 of 1,000 bytes, and its oldest row waits for 7 of 60 s"


def test_maintenance_is_one_at_a_time_of_whatever_kind() -> None:
    wanted = [Job("retain", "a", ""), Job("compact", "b", ""), Job("flush", "c", "")]
    assert [job.key for job in startable(wanted, [], {"flush": 1})] == ["retain:a", "flush:c"]
    assert [job.key for job in startable(wanted, ["sweep:lake"], {"flush": 1})] == ["flush:c"]


def test_so_many_of_a_kind_run_at_once_and_none_twice() -> None:
    wanted = [Job("flush", name, "") for name in "abc"] + [Job("tick", "s", "")]
    assert [job.key for job in startable(wanted, [], {"flush": 2, "tick": 1})] == ["flush:a", "flush:b", "tick:s"]
    assert [job.key for job in startable(wanted, ["flush:a"], {"flush": 2, "tick": 1})] == ["flush:b", "tick:s"]
    assert startable(wanted, ["flush:x", "flush:y", "tick:s"], {"flush": 2, "tick": 1}) == []
