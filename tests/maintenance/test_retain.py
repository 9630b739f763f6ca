"""Retention: what is old goes, what a sink still needs stays, and nothing comes back."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline import failpoints
from strandline.errors import BadRequest, PreconditionFailed
from strandline.lake import Lake
from strandline.ledger.tables.heads import read_pruned
from strandline.operations.maintain import retain as retaining
from strandline.sinks.repair import rewind
from tests.acceptance.test_failpoints import FLUSH_POINTS
from tests.kit import assert_recovered, audits, crash, log_part_ids, message, part_ids, reopened, swept

NOW = dt.datetime.now(dt.UTC)
DAY_S = 24 * 3600


def timed(n: int, age_days: float | None, source: str = "a") -> dict[str, Any]:
    """A row whose own time lies so many days back, or that has none."""
    ts = None if age_days is None else (NOW - dt.timedelta(days=age_days)).isoformat()
    return {**message(n, source=source), "ts": ts}


def make_timed(lake: Lake, **options: Any) -> None:
    """A table with a time column of its own, which is not what retention goes by yet."""
    columns = {"part_id": "string", "source": "string", "n": "long", "body": "string?", "ts": "timestamp?"}
    lake.create_table("messages", columns, row_key=["part_id"], **options)


def keep_days(lake: Lake, days: float) -> None:
    """Rows older than that, by their own time, are to go."""
    lake.set_table("messages", retention_s=days * DAY_S, time_column="ts")


def flushed(lake: Lake, *rows: dict[str, Any]) -> None:
    """Rows as a file of their own."""
    lake.append("messages", list(rows))
    lake.flush("messages")


def with_old_rows(lake: Lake, **options: Any) -> None:
    """Three files: all old, old and young and timeless, all young."""
    make_timed(lake, **options)
    flushed(lake, timed(0, 100), timed(1, 99))
    flushed(lake, timed(2, 98), timed(3, 1), timed(4, None))
    flushed(lake, timed(5, 1), timed(6, 0))


@pytest.mark.parametrize("known", [True, False], ids=["known", "to be looked into"])
def test_rows_past_the_window_go_and_others_stay_as_they_are(lake: Lake, known: bool) -> None:
    """Whole files go by the ledger's figures, others are written again; the books say what went."""
    if known:
        make_timed(lake)
        lake.set_table("messages", time_column="ts")
        flushed(lake, timed(0, 100), timed(1, 99))
        flushed(lake, timed(2, 98), timed(3, 1), timed(4, None))
        flushed(lake, timed(5, 1), timed(6, 0))
        lake.set_table("messages", retention_s=30 * DAY_S)
    else:
        with_old_rows(lake)
        keep_days(lake, 30)
    seqs = dict(lake.view().sql("select part_id, _seq from messages").rows())
    (planned,) = lake.retain("messages", dry_run=True)
    assert (planned.after["rows"], planned.detail["pruned"]) == (4, 3)
    assert len(part_ids(lake)) == 7, "a dry run changes nothing"
    (done,) = lake.retain("messages")
    assert (done.before["rows"], done.after["rows"], done.complete) == (7, 4, True)
    assert part_ids(lake) == log_part_ids(lake) == ["p3", "p4", "p5", "p6"]
    after = dict(lake.view().sql("select part_id, _seq from messages").rows())
    assert after == {key: seqs[key] for key in after}, "seqs stay"
    head = lake.view().branch_table("messages").head
    assert (head.books.log, head.books.pruned) == (4, 3)
    with lake.ledger.read() as conn:
        assert read_pruned(conn, head.branch_id, head.table_id) == {"all": seqs["p2"]}
    assert lake.retain("messages")[0].operations == (), "again, there is nothing to do"
    assert_recovered(lake)


@pytest.mark.parametrize("name", swept(FLUSH_POINTS))
def test_f20_a_retention_that_dies_anywhere_is_done_or_undone(lake: Lake, name: str) -> None:
    """Whatever step it dies at, the old rows are all there or all gone, and the next run ends it."""
    make_timed(lake)
    flushed(lake, timed(2, 98), timed(3, 1), timed(4, None))
    keep_days(lake, 30)
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.retain("messages")
    with reopened(lake) as again:
        assert part_ids(again) in (["p2", "p3", "p4"], ["p3", "p4"])
        assert_recovered(again, FLUSH_POINTS[name])
        again.retain("messages")
        assert part_ids(again)[:2] == ["p3", "p4"]
        assert again.view().branch_table("messages").head.books.pruned == 1


def test_f20_retention_stops_at_the_lowest_watermark_and_says_whose(lake: Lake, tmp_path: Path) -> None:
    """Of each stream, rows that one sink has not delivered stay; the sink is named; when it has, they go."""
    with_old_rows(lake, partition_by=["source"])
    lake.add_sink("fast", "blob", {"uri": f"file://{tmp_path}/fast"})
    lake.add_sink("slow", "blob", {"uri": f"file://{tmp_path}/slow"})
    lake.tick("fast")
    flushed(lake, timed(7, 50, source="b"))
    keep_days(lake, 30)
    (done,) = lake.retain("messages")
    assert done.detail["pruned"] == 0 and len(part_ids(lake)) == 8
    assert done.detail["held_by"] == [
        {"sink": "fast", "partition": '["b"]', "seq": 0, "rows": 1},
        {"sink": "slow", "partition": '["a"]', "seq": 0, "rows": 3},
    ]
    assert "sink 'slow' has come to seq 0 there" in done.warnings[1]
    lake.tick("slow")
    (done,) = lake.retain("messages")
    assert part_ids(lake) == ["p3", "p4", "p5", "p6", "p7"]
    assert [one["sink"] for one in done.detail["held_by"]] == ["fast"], "of the other stream"
    lake.tick("fast")
    lake.retain("messages")
    assert part_ids(lake) == ["p3", "p4", "p5", "p6"]
    assert [one.rows for one in lake.tick("fast", "slow")] == []
    lake.set_table("messages", retention_s=None)
    flushed(lake, timed(8, 50))
    assert sorted((one.sink, one.rows) for one in lake.tick() if one.rows) == [("fast", 1), ("slow", 1)]
    flushed(lake, timed(9, 50))
    lake.compact("messages")
    keep_days(lake, 30)
    lake.retain("messages")
    assert part_ids(lake) == ["p3", "p4", "p5", "p6", "p9"], "of one file, what was delivered goes and the rest stays"


def test_f20_a_sink_that_was_moved_back_is_seen_by_the_publish(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows were chosen, and then a sink is added, or moved back: the publish refuses them, and they are chosen anew."""
    with_old_rows(lake)
    keep_days(lake, 30)
    meanwhile: list[Callable[[], object]] = []
    staged = retaining.somebody_waits

    def come_between(*arguments: Any) -> bool:
        if meanwhile:
            meanwhile.pop()()
        return staged(*arguments)

    def nothing_goes() -> None:
        (done,) = lake.retain("messages")
        assert meanwhile == [], "nobody came between"
        assert [(one["sink"], one["rows"]) for one in done.detail["held_by"]] == [("late", 3)]
        assert (done.detail["pruned"], len(part_ids(lake))) == (0, 7)
        assert audits(lake)[0]["outcome"] == "rolled_back"

    monkeypatch.setattr(retaining, "somebody_waits", come_between)
    meanwhile.append(lambda: lake.add_sink("late", "blob", {"uri": f"file://{tmp_path}/late"}))
    nothing_goes()
    lake.tick("late")
    (sink,) = lake.sinks()
    meanwhile.append(lambda: rewind(lake.context, sink, "messages", 0))
    nothing_goes()
    lake.tick("late")
    assert lake.retain("messages")[0].detail["pruned"] == 3


def test_past_sinks_needs_a_yes_and_lists_what_is_never_delivered(lake: Lake, tmp_path: Path) -> None:
    """Without it nothing goes; with it the sink gets what is left, and goes on."""
    with_old_rows(lake)
    lake.add_sink("slow", "blob", {"uri": f"file://{tmp_path}/slow"})
    keep_days(lake, 30)
    with pytest.raises(PreconditionFailed, match="slow never gets 3 rows") as refused:
        lake.retain("messages", force_past_sinks=True)
    assert refused.value.detail["lost"] == [{"sink": "slow", "partition": "all", "seq": 0, "rows": 3}]
    lake.retain("messages", force_past_sinks=True, yes=True)
    assert part_ids(lake) == ["p3", "p4", "p5", "p6"]
    assert sum(one.rows for one in lake.tick("slow")) == 4


def test_a_retention_that_would_remove_everything_asks(lake: Lake) -> None:
    """It is refused until somebody says yes; then the table is empty, and works."""
    make_timed(lake)
    flushed(lake, timed(0, 100), timed(1, 99))
    keep_days(lake, 30)
    with pytest.raises(PreconditionFailed, match="the whole log of"):
        lake.retain("messages")
    lake.retain("messages", yes=True)
    assert part_ids(lake) == [] and lake.view().files("messages") == []
    flushed(lake, timed(2, 0))
    assert part_ids(lake) == ["p2"]
    assert_recovered(lake)


@pytest.mark.usefixtures("bulky")
@pytest.mark.parametrize("way", ["append", "load"])
def test_f70_a_backfill_does_not_bring_back_what_retention_removed(lake: Lake, tmp_path: Path, way: str) -> None:
    """Rows past the window are left out before the ack, and counted; a key in them is not seen."""
    make_timed(lake)
    keep_days(lake, 30)
    rows = [timed(0, 100), timed(0, 1), timed(1, 99), timed(2, 1), timed(2, 0)]
    if way == "append":
        assert (ack := lake.append("messages", rows)).rows == 3 and ack.too_old == 2
        assert part_ids(lake) == ["p0", "p2"], "a reader sees what the flush will keep"
        (done,) = lake.flush("messages")
        assert (done.rows, done.duplicates_dropped) == (2, 1)
    else:
        source = tmp_path / "in.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        loaded = lake.load("messages", [str(source)])
        assert (loaded.rows, loaded.duplicates_dropped, loaded.too_old) == (2, 1, 2)
        again = lake.load("messages", [str(source)])
        assert again.already_loaded and again.too_old == 2
    assert part_ids(lake) == log_part_ids(lake) == ["p0", "p2"]
    assert_recovered(lake)
    assert_disjoint_times(lake)


def assert_disjoint_times(lake: Lake) -> None:
    """The figures of the files' times are of the table's own time column."""
    files = lake.view().files("messages")
    assert all(file.oldest_us is None or file.oldest_us > 0 for file in files)


def test_by_default_a_row_is_as_old_as_its_append(lake: Lake) -> None:
    """Without a time column of its own, a table goes by `_at`."""
    make_timed(lake)
    flushed(lake, timed(0, 100))
    lake.set_table("messages", retention_s=3600)
    assert lake.retain("messages")[0].detail["pruned"] == 0
    flushed(lake, timed(1, 100))
    lake.set_table("messages", retention_s=1e-6)
    lake.retain("messages", yes=True)
    assert part_ids(lake) == []


def test_settings_that_make_no_sense_are_refused(lake: Lake) -> None:
    """A column that is not there or no time, a window of nothing: nothing is changed."""
    make_timed(lake)
    for changes in ({"time_column": "tss"}, {"time_column": "n"}, {"retention_s": 0.0}, {"target_file_bytes": 0}):
        with pytest.raises(BadRequest):
            lake.set_table("messages", **changes)  # type: ignore[typeddict-item]
    assert lake.view().branch_table("messages").table.settings.retention_s is None


def test_the_worker_leaves_a_file_with_few_old_rows_for_later(lake: Lake) -> None:
    """Not eager, a file is written again when a quarter of it is old; needs are counted from the ledger alone."""
    make_timed(lake)
    lake.set_table("messages", time_column="ts")
    flushed(lake, timed(0, 31), *(timed(n, 1) for n in range(1, 9)))
    lake.set_table("messages", retention_s=30 * DAY_S)
    assert lake.retain("messages", eager=False)[0].detail["pruned"] == 0
    assert [need.old_rows for need in lake.needs()] in ([], [0])
    assert lake.retain("messages")[0].detail["pruned"] == 1
    assert_disjoint_times(lake)
