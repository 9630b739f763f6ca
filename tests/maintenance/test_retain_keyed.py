"""Retention of a keyed table: what no kept point needs goes, and who needs what is gone is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest, HistoryGone, PreconditionFailed
from strandline.lake import Lake
from strandline.reports.doctor import examine
from tests import slices
from tests.acceptance.test_failpoints import FLUSH_POINTS
from tests.kit import crash, in_ledger, intents_of, reopened, strand_json, swept
from tests.versions.kit import make_people, versions
from tests.versions.test_fold import check

DAY_S = 24 * 3600
AGES = "select id, age from person order by id"


def rows(lake: Lake, branch: str = "main", at: str | None = None) -> list[tuple[Any, ...]]:
    """The people of a branch, now or then."""
    found: list[tuple[Any, ...]] = lake.view(branch, at).sql(AGES).rows()
    return found


def put(lake: Lake, branch: str = "main", **ages: int | None) -> str:
    """A commit that makes people so old; or deletes them."""
    changes = [
        sl.delete("person", key) if age is None else sl.put("person", {"id": key, "age": age})
        for key, age in ages.items()
    ]
    return lake.mutate(changes, branch=branch).commit_id


def let_pass(lake: Lake, days: int = 100) -> None:
    """All commits so far were made so many days ago."""
    in_ledger(lake, "update commits set at_us = at_us - :ago", ago=days * DAY_S * 1_000_000)


def with_history(lake: Lake) -> list[str]:
    """Four commits of which three are old, in four files; a pet that nobody prunes."""
    make_people(lake)
    make_people(lake, "pet")
    lake.mutate([sl.put("pet", {"id": "cat"})])
    commits = [put(lake, a=1, b=1, d=1)]
    lake.flush("person")
    commits.append(put(lake, a=2, d=None))
    lake.flush("person")
    commits.append(put(lake, a=3, c=3))
    lake.flush("person")
    let_pass(lake)
    commits.append(put(lake, a=4, b=4))
    lake.flush("person")
    lake.set_table("person", retention_s=30 * DAY_S)
    return commits


def test_versions_that_were_replaced_before_the_window_go(lake: Lake) -> None:
    """What was there when it began stays, with all that came later; who asks for more is told that it is gone."""
    commits = with_history(lake)
    shown = {at: rows(lake, at=at) for at in commits[2:]}
    feed = list(lake.changes("person"))
    (planned,) = lake.retain("person", dry_run=True)
    assert (planned.detail["pruned"], planned.detail["horizon"], planned.complete) == (3, commits[2], False)
    (done,) = lake.retain("person")
    assert (done.before["rows"], done.after["rows"], done.complete) == (9, 6, True)
    assert [row[0] + str(row[2]) for row in versions(lake)] == ["b1", "dNone", "a3", "c3", "a4", "b4"]
    assert {at: rows(lake, at=at) for at in shown} == shown and rows(lake) == [("a", 4), ("b", 4), ("c", 3)]
    assert rows(lake, at="2030-01-01T00:00:00Z") == rows(lake)
    for gone in commits[:2]:
        view = lake.view(at=gone)
        assert view.sql("select id from pet").rows() == [("cat",)], "other tables have their past"
        for ask in (
            lambda view=view: view.table("person"),
            lambda gone=gone: list(lake.diff(gone, "main", table="person")),
            lambda gone=gone: lake.branch("late", gone),
            lambda gone=gone: lake.tag("late", gone),
        ):
            with pytest.raises(HistoryGone, match="past its retention"):
                ask()
    assert [one.name for one in lake.branches()] == ["main"] and lake.tags() == []
    with pytest.raises(HistoryGone, match="up to seq") as gap:
        lake.changes("person")
    first = gap.value.detail["first"]
    assert list(lake.changes("person", first)) == [one for one in feed if one.seq > first], "with the rows before"
    again = lake.retain("person")[0]
    assert again.operations == () and again.complete
    lake.fold("person")
    check(lake, spark=True)
    put(lake, a=5, d=5)
    assert rows(lake) == [("a", 5), ("b", 4), ("c", 3), ("d", 5)]
    assert examine(lake, deep=True) == [] and intents_of(lake) == []


def test_the_newest_version_stays_however_old_it_is(lake: Lake) -> None:
    """The tip is a kept point; rows that were never changed lose nothing, and neither does a row in the tail."""
    make_people(lake)
    put(lake, a=1, b=1)
    lake.flush("person")
    put(lake, a=2)
    let_pass(lake)
    lake.set_table("person", retention_s=DAY_S)
    assert lake.view().sql("select count(*) from person").rows() == [(2,)]
    lake.retain("person")
    assert rows(lake) == [("a", 2), ("b", 1)], "what is not flushed is neither dropped nor counted as newer"
    lake.flush("person")
    lake.retain("person")
    assert [row[0] + str(row[2]) for row in versions(lake)] == ["b1", "a2"]


def test_tags_and_other_branches_are_kept_points(lake: Lake) -> None:
    """As long as they are there; a merge from where they were one goes on, and brings what it would have brought."""
    commits = with_history(lake)
    lake.tag("v1", commits[0])
    lake.branch("x", commits[1])
    put(lake, "x", a=70, x=7)
    done = lake.retain("person")[0]
    assert done.detail["pruned"] == 0, "the tag is at the first commit"
    assert done.detail["kept_for"] == {"kind": "tag", "name": "v1"}
    assert "tag 'v1' is at" in done.warnings[0] and "strand tag delete v1" in done.warnings[0]
    lake.delete_tag("v1")
    done = lake.retain("person")[0]
    assert (done.detail["pruned"], done.detail["horizon"]) == (2, commits[1])
    assert done.detail["kept_for"] == {"kind": "branch", "name": "x"}
    assert f"at commit {commits[1]}" in done.warnings[0]
    assert rows(lake, at=commits[1]) == [("a", 2), ("b", 1)]
    answer = lake.merge("x", dry_run=True)
    assert [(one.kind, one.key["id"], one.base and one.base["age"]) for one in answer.conflicts] == [
        ("divergent_update", "a", 2)
    ]
    lake.merge("x", resolve="theirs")
    assert rows(lake) == [("a", 70), ("b", 4), ("c", 3), ("x", 7)]
    lake.delete_branch("x", force=True)
    check(lake)


def test_a_merged_branch_that_keeps_old_versions_is_named(lake: Lake) -> None:
    """Its points are kept with its name and without one; a retention that therefore prunes nothing says so."""
    make_people(lake)
    start = put(lake, a=1)
    lake.branch("x")
    put(lake, "x", x=1)
    put(lake, a=2)
    lake.merge("x")
    put(lake, a=3)
    lake.flush("person")
    let_pass(lake)
    lake.set_table("person", retention_s=30 * DAY_S)
    for kind, name, word in (("branch", "x", "strand branch delete x"), ("merged", "", "strand sweep")):
        done = lake.retain("person", dry_run=True)[0]
        assert (done.detail["horizon"], done.detail["pruned"]) == (start, 0)
        assert done.detail["kept_for"] == {"kind": kind, "name": name}
        assert start in done.warnings[0] and word in done.warnings[0], done.warnings
        if kind == "branch":
            lake.delete_branch("x")
    in_ledger(lake, "update branches set deleted_at_us = 1 where kind = 'tag'")
    done = lake.retain("person", dry_run=True)[0]
    assert (done.detail["pruned"], done.detail["kept_for"], done.warnings) == (2, None, ())


def test_a_branch_that_still_has_it_answers(lake: Lake) -> None:
    """Each branch is pruned by itself; a pruned table is not taken over whole by one that looks further back."""
    commits = with_history(lake)
    lake.branch("x")
    put(lake, "x", x=1)
    lake.retain("person", branch="x")
    assert {row[0] for row in lake.view("x").sql("select age from \"person$log\" where id = 'a'").rows()} == {3, 4}
    assert rows(lake, at=commits[0]) == rows(lake, "x", at=commits[0]) == [("a", 1), ("b", 1), ("d", 1)]
    assert lake.merge("x").outcome == "merged"
    assert rows(lake) == rows(lake, "x") == [("a", 4), ("b", 4), ("c", 3), ("x", 1)]
    assert rows(lake, at=commits[0]) == [("a", 1), ("b", 1), ("d", 1)]
    lake.retain("person")
    with pytest.raises(HistoryGone):
        rows(lake, at=commits[0])
    assert rows(lake, "x", at=commits[2]) == [("a", 3), ("b", 1), ("c", 3)]
    put(lake, "x", a=9)
    lake.merge("x")
    assert rows(lake) == [("a", 9), ("b", 4), ("c", 3), ("x", 1)]
    assert examine(lake, deep=True) == []


def test_f20_a_retention_of_versions_stops_at_what_a_sink_has_delivered(lake: Lake, tmp_path: Path) -> None:
    """It is named; when it has, they go. Past it goes who says so twice."""
    with_history(lake)
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path / 'blobs'}"})
    done = lake.retain("person")[0]
    assert done.detail["pruned"] == 0
    assert done.detail["held_by"] == [{"sink": "archive", "partition": "all", "seq": 0, "rows": 3}]
    assert "still has to deliver" in done.warnings[0]
    with pytest.raises(PreconditionFailed, match="archive never gets 3 versions"):
        lake.retain("person", force_past_sinks=True)
    assert len(versions(lake)) == 9
    lake.tick("archive")
    assert lake.retain("person")[0].detail["pruned"] == 3


def test_a_worker_prunes_when_enough_has_passed(lake: Lake) -> None:
    """By what the ledger knows; afterwards there is nothing to do, also where no version had to go."""
    with_history(lake)
    assert {one.table: one.old_rows for one in lake.needs()} == {"person": 7}
    lake.retain(eager=False)
    assert len(versions(lake)) == 6 and not any(one.old_rows for one in lake.needs())


def test_the_window_of_a_keyed_table_has_no_time_column(lake: Lake) -> None:
    """It goes by commits; the command sets and shows it."""
    make_people(lake)
    with pytest.raises(BadRequest, match="goes by their commits"):
        lake.set_table("person", time_column="age")
    strand_json(lake, "table", "set", "person", "retention=90d")
    assert lake.view().branch_table("person").table.settings.retention_s == 90 * DAY_S


@pytest.mark.parametrize("branch", slices.turn(["main", "x"], 1))
@pytest.mark.parametrize("name", swept(FLUSH_POINTS))
def test_a_retention_that_dies_anywhere_is_done_or_undone(lake: Lake, name: str, branch: str) -> None:
    """Whatever step it dies at, a branch has the old version or says that it has not; the next run ends it, and the
    other branch, which shares the files, goes on having it.
    """
    make_people(lake)
    first = put(lake, a=1, b=1)
    second = put(lake, a=2)
    lake.flush("person")
    let_pass(lake)
    lake.branch("x")
    put(lake, branch, a=3)
    lake.set_table("person", retention_s=DAY_S)
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.retain("person", branch=branch)
    with reopened(lake) as again:
        for _ in ("what recovery left", "what the next run made of it"):
            kept = len(every(again, branch))
            assert (kept, again.view(branch).branch_table("person").head.kept_from > 0) in ((4, False), (3, True))
            assert rows(again, branch) == [("a", 3), ("b", 1)] and rows(again, at=second) == [("a", 2), ("b", 1)]
            assert rows(again, at=first) == [("a", 1), ("b", 1)], "the other branch has it"
            check(again, branch)
            again.retain("person", branch=branch)
        again.recover()
        assert kept == 3 and intents_of(again) == [] and examine(again) == []
        again.retain("person", branch={"main": "x", "x": "main"}[branch])
        with pytest.raises(HistoryGone):
            rows(again, at=first)


def every(lake: Lake, branch: str) -> list[tuple[Any, ...]]:
    """All versions that a branch has."""
    found: list[tuple[Any, ...]] = lake.view(branch).sql('select id, age from "person$log" order by _seq').rows()
    return found
