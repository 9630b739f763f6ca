"""Purge of a keyed table: a row goes with all its versions, on every branch and tag, and merges don't bring it back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest, Conflict, NotFound
from strandline.lake import Lake
from strandline.ledger.changes import touches
from strandline.ledger.database import schema
from strandline.operations.change import branch_at
from strandline.operations.change import mutate as mutating
from strandline.operations.core import steps
from strandline.operations.merge import merge as merging
from strandline.reports.doctor import examine
from tests import files, slices
from tests.acceptance.test_failpoints import FLUSH_POINTS
from tests.delivery import forward, receiving
from tests.kit import crash, in_ledger, intents_of, reopened, strand_json, swept
from tests.maintenance.test_expire import data_files
from tests.maintenance.test_purge import tombstones
from tests.versions.kit import PEOPLE, make_people
from tests.versions.test_fold import check
from tests.versions.test_schema import apply, column

AT = "select id, age from person order by id"


def rows(lake: Lake, branch: str = "main", at: str | None = None) -> list[tuple[Any, ...]]:
    """The people of a branch, now or then."""
    found: list[tuple[Any, ...]] = lake.view(branch, at).sql(AT).rows()
    return found


def keys_in_log(lake: Lake, branch: str = "main") -> set[str]:
    """The keys of all versions that a branch has."""
    return {row[0] for row in lake.view(branch).sql('select id from "person$log"').rows()}


def grown(lake: Lake) -> dict[str, str]:
    """Versions of `a` everywhere: in a log, a state, tails, on a branch of a branch, under a tag, on a merged branch.

    Only on x was `a` ever 99 years old.
    """
    make_people(lake)
    first = lake.mutate([sl.put("person", {"id": key, "name": f"the name of {key}", "age": 1}) for key in "abc"])
    lake.flush("person")
    lake.fold("person")
    lake.mutate([sl.patch("person", "a", {"age": 2})])
    lake.flush("person")
    lake.tag("v1")
    lake.branch("old")
    lake.mutate([sl.patch("person", "a", {"age": 3}), sl.put("person", {"id": "o", "age": 1})], branch="old")
    lake.mutate([sl.patch("person", "b", {"age": 5})])
    merged = lake.merge("old")
    lake.delete_branch("old")
    lake.branch("x")
    lake.mutate([sl.patch("person", "a", {"age": 99}), sl.put("person", {"id": "x", "age": 1})], branch="x")
    lake.flush("person", branch="x")
    lake.branch("x/y", "x")
    lake.mutate([sl.patch("person", "a", {"age": 4})], branch="x/y")
    lake.mutate([sl.put("person", {"id": "m", "age": 1})])
    assert merged.commit is not None
    return {"first": first.commit_id, "merge": merged.commit}


def assert_gone(lake: Lake, commits: dict[str, str]) -> None:
    """Nobody finds `a` any more, by whatever way; and everything else is as it was."""
    assert rows(lake) == [("b", 5), ("c", 1), ("m", 1), ("o", 1)]
    assert rows(lake, "x") == [("b", 5), ("c", 1), ("o", 1), ("x", 1)]
    assert rows(lake, "x/y") == rows(lake, "x")
    assert rows(lake, at="v1") == rows(lake, at=commits["first"]) == [("b", 1), ("c", 1)]
    assert rows(lake, at=commits["merge"]) == [("b", 5), ("c", 1), ("o", 1)]
    for branch in ("main", "x", "x/y"):
        assert "a" not in keys_in_log(lake, branch)
        check(lake, branch)
        assert "a" not in {row[0] for row in lake.view(branch).sql("select id from person").rows()}


def test_a_row_goes_with_all_its_versions_wherever_one_is_named(lake: Lake) -> None:
    """The condition is true of one version on one branch; the books, the record and the rest of the house agree."""
    commits = grown(lake)
    planned = lake.purge("person", "age = 99", dry_run=True)
    assert (planned.detail["keys"], planned.detail["rows"], planned.complete) == (1, 6, False)
    assert planned.detail["branches"] == ["main", "x", "x/y"]
    assert rows(lake, "x")[0] == ("a", 99), "a dry run changes nothing"
    done = lake.purge("person", "age = 99", actor="the law")
    assert (done.before["rows"], done.after["rows"]) == (planned.before["rows"], planned.after["rows"])
    assert_gone(lake, commits)
    assert tombstones(lake) == [("person", "age = 99", 6, "the law")]
    again = lake.purge("person", "id = 'a'")
    assert again.operations == () and len(tombstones(lake)) == 1, "again, there is nothing to do"
    assert in_ledger(lake, "select count(*) from purged_keys") == [(0,)]
    assert examine(lake, deep=True) == [] and intents_of(lake) == []
    for branch in ("main", "x"):
        with pytest.raises(NotFound, match="not there"):
            lake.mutate([sl.patch("person", "a", {"age": 1})], branch=branch)
        lake.mutate([sl.delete("person", "c"), sl.patch("person", "b", {"age": 7})], branch=branch)
        lake.flush("person", branch=branch)
        lake.fold("person", branch=branch)
        check(lake, branch, spark=True)
    lake.mutate([sl.insert("person", {"id": "a", "age": 70})])
    assert rows(lake)[0] == ("a", 70), "who writes the key again writes another row"


def test_merges_diffs_and_feeds_go_on_without_the_row(lake: Lake) -> None:
    """A merge after a purge neither brings the row back nor stumbles; by rows, and by taking tables over."""
    grown(lake)
    lake.purge("person", "id = 'a'")
    told = {one.key["id"] for one in lake.diff("main", "x")} | {one.key["id"] for one in lake.diff("v1", "x/y")}
    assert told == {"b", "m", "x", "o"}
    assert {change.key["id"] for change in lake.changes("person")} == {"b", "c", "m", "o"}
    assert lake.merge("x/y").outcome == "merged"
    assert [key for key, _ in rows(lake)] == ["b", "c", "m", "o", "x"]
    lake.branch("z")
    lake.mutate([sl.put("person", {"id": "z"})], branch="z")
    lake.purge("person", "id = 'b'")
    assert lake.merge("z").outcome == "fast_forward"
    assert [key for key, _ in rows(lake)] == [key for key, _ in check_keys(lake, "z")] == ["c", "m", "o", "x", "z"]
    lake.mutate([sl.patch("person", "c", {"age": 8})])
    lake.flush("person")
    lake.fold("person")
    assert [key for key, _ in check_keys(lake, "main")] == ["c", "m", "o", "x", "z"]
    assert examine(lake, deep=True) == []


def check_keys(lake: Lake, branch: str) -> list[tuple[Any, ...]]:
    """The rows of a branch, which its log says too."""
    check(lake, branch)
    return rows(lake, branch)


def test_out_of_history_too_nothing_of_the_row_is_left(lake: Lake) -> None:
    """No file on the disk and no batch in the ledger has it, once nobody reads the past any more."""
    commits = grown(lake)
    with lake.view("x").held():
        done = lake.purge("person", "id = 'a'", and_history=True)
        assert "stay" in done.warnings[0], "a held view still reads it"
    assert lake.purge("person", "id = 'a'", and_history=True).warnings == ()
    for path in data_files(lake):
        table = files.rows(path)
        if "id" in table.column_names:
            assert "a" not in table.column("id").to_pylist()
    with lake.ledger.read() as conn:
        payloads = conn.execute(select(schema.batches.c.payload)).scalars().all()
    assert not any(b"the name of a" in bytes(payload) for payload in payloads)
    assert_gone(lake, commits)


def test_a_view_that_was_taken_before_reads_on_and_a_delivery_sends_what_it_pinned(lake: Lake, tmp_path: Path) -> None:
    """Until the grace is over; what a sink has not begun to send it never gets."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "ab"])
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path / 'blobs'}"})
    failpoints.arm("deliver.after_open=raise")
    with crash(lake):
        lake.tick("archive")
    with reopened(lake) as again:
        again.mutate([sl.patch("person", "a", {"age": 2}), sl.patch("person", "b", {"age": 2})])
        view = again.view()
        again.purge("person", "id = 'a'")
        assert view.sql(AT).rows() == [("a", 2), ("b", 2)]
        again.tick("archive")
        again.tick("archive")
        objects = sorted((tmp_path / "blobs" / "person").rglob("*.parquet"))
        sent = [row for path in objects for row in files.rows(str(path)).to_pylist()]
        assert [(row["id"], row["age"]) for row in sent] == [("a", 1), ("b", 1), ("b", 2)]


def test_dead_letters_of_all_versions_are_emptied(lake: Lake, tmp_path: Path) -> None:
    """Also of one that the condition does not name; the letters of other rows stay."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "age": 2**40}) for key in "ab"])
    lake.mutate([sl.patch("person", "a", {"age": 1})])
    with receiving(tmp_path / "receiver", "messages") as receiver:
        receiver.make_table("person", {**PEOPLE, "age": "int?"})
        forward(lake, receiver)
        assert sum(one.dead_letters for one in lake.tick("central")) == 2
    assert lake.purge("person", "age = 1").detail["dead_letters"] == 1
    assert in_ledger(lake, "select state, length(payload) > 0 from dead_letters order by seq") == [
        ("discarded", 0),
        ("open", 1),
    ]


@pytest.mark.both_ledgers
def test_f66_a_change_that_was_judged_before_a_purge_starts_over(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch of a row that is purged meanwhile finds nothing to patch, and brings none of it back."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "ab"])
    _first(monkeypatch, mutating, lambda: lake.purge("person", "id = 'a'"))
    with pytest.raises(NotFound, match="not there"):
        lake.mutate([sl.patch("person", "a", {"name": "late"})])
    assert rows(lake) == [("b", 1)]


def test_f66_a_merge_that_was_planned_before_a_purge_is_planned_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target has moved on, so that rows are merged; the row was purged from both when the merge is stored."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "ab"])
    lake.branch("x")
    lake.mutate([sl.put("person", {"id": "n", "age": 1}), sl.put("person", {"id": "x", "age": 1})], branch="x")
    lake.mutate([sl.put("person", {"id": "m", "age": 1})])
    _first(monkeypatch, merging, lambda: lake.purge("person", "id = 'n'"))
    assert lake.merge("x").outcome == "merged"
    assert rows(lake) == [("a", 1), ("b", 1), ("m", 1), ("x", 1)]


def _first(monkeypatch: pytest.MonkeyPatch, module: Any, work: Callable[[], object]) -> None:
    """Let something happen when a change is judged and not stored yet."""
    original = module.fail

    def fail(name: str) -> None:
        if name.endswith(".before_store"):
            monkeypatch.setattr(module, "fail", original)
            work()

    monkeypatch.setattr(module, "fail", fail)


def test_a_row_that_others_refer_to_stays_and_they_are_listed(lake: Lake) -> None:
    """On whichever branch they are; rows that go with it don't count."""
    lake.create_table("team", {"id": "string", "parent": "string?"}, key=["id"],
                      constraints=["reference(parent -> team, restrict)"])  # fmt: skip
    lake.create_table("member", {"id": "string", "team": "string?"}, key=["id"],
                      constraints=["reference(team -> team, cascade)"])  # fmt: skip
    lake.mutate([sl.put("team", {"id": "t"}), sl.put("team", {"id": "u", "parent": "t"})])
    lake.branch("x")
    lake.mutate([sl.put("member", {"id": "m", "team": "t"}), sl.put("member", {"id": "n", "team": "u"})], branch="x")
    for dry_run in (True, False):
        with pytest.raises(Conflict, match="on branch 'x': member 'm'") as refused:
            lake.purge("team", "id in ('t', 'u')", dry_run=dry_run)
        detail = refused.value.detail
        assert (detail["kind"], detail["count"]) == ("constraint", 2)
        assert [(one["branch"], one["table"], one["key"]) for one in detail["violations"]] == [
            ("x", "member", "'m'"),
            ("x", "member", "'n'"),
        ]
    assert lake.view().sql("select id from team order by 1").rows() == [("t",), ("u",)]
    with pytest.raises(Conflict, match="on branch 'main': team 'u'"):
        lake.purge("team", "id = 't'")
    lake.mutate([sl.delete("member", "m"), sl.patch("member", "n", {"team": None})], branch="x")
    lake.purge("team", "true")
    assert lake.view().table("team").num_rows == lake.view("x").table("team").num_rows == 0


def test_a_reference_that_is_made_meanwhile_is_seen_by_the_publish(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the publish a row comes to refer to one that goes: nothing goes, and it is listed."""
    lake.create_table("team", {"id": "string"}, key=["id"])
    lake.create_table("member", {"id": "string", "team": "string?"}, key=["id"],
                      constraints=["reference(team -> team, restrict)"])  # fmt: skip
    lake.mutate([sl.put("team", {"id": "t"}), sl.put("team", {"id": "u"})])
    made: list[str] = []

    def refer_first(name: str) -> None:
        if name == "staged.after_commit" and any(one.kind == "purge" for one in intents_of(lake)) and not made:
            made.append(lake.mutate([sl.put("member", {"id": "m", "team": "t"})]).commit_id)

    monkeypatch.setattr(steps, "fail", refer_first)
    with pytest.raises(Conflict, match="member 'm'"):
        lake.purge("team", "id = 't'")
    assert made and lake.view().sql("select id from team order by 1").rows() == [("t",), ("u",)]
    assert tombstones(lake) == [] and in_ledger(lake, "select count(*) from purged_keys") == [(0,)]


def test_a_condition_is_read_by_the_schema_of_a_branch(lake: Lake) -> None:
    """Also where that is another one than the rows of other branches were written under."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "ab"])
    lake.branch("x")
    apply(lake, column("mail", {"type": "string?"}), branch="x")
    lake.mutate([sl.patch("person", "a", {"mail": "a@b"})], branch="x")
    with pytest.raises(BadRequest, match="mail"):
        lake.purge("person", "mail = 'a@b'")
    assert lake.purge("person", "mail = 'a@b'", branch="x").detail["keys"] == 1
    assert rows(lake) == rows(lake, "x") == [("b", 1)]


POINTS = [(name, nth) for name in swept(FLUSH_POINTS) for nth in ((1, 2) if slices.all_places() else (2,))]
"""Each in the operation on main, and in that on a branch."""


@pytest.mark.parametrize(("name", "nth"), [*POINTS, ("purge.before_forget", 1), ("purge.after_forget", 1)])
def test_a_purge_that_dies_anywhere_is_ended_by_the_next(lake: Lake, name: str, nth: int) -> None:
    """On main or on a branch: each branch has all of the row or nothing, and whoever purges again ends it, recorded
    once.
    """
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "ab"])
    lake.flush("person")
    lake.fold("person")
    lake.branch("x")
    for_each_table = name.startswith("stage.") or name == "settle.before_ref"
    failpoints.arm(f"{name}=raise@{nth * 2 if for_each_table else nth}")
    with crash(lake):
        lake.purge("person", "id = 'a'")
    with reopened(lake) as again:
        for branch in ("main", "x"):
            assert rows(again, branch) in ([("a", 1), ("b", 1)], [("b", 1)])
            check(again, branch)
        again.purge("person", "id = 'a'")
        assert rows(again) == rows(again, "x") == [("b", 1)]
        assert [row[2] for row in tombstones(again)] == [1]
        assert in_ledger(again, "select count(*) from purged_keys") == [(0,)]
        again.recover()
        assert intents_of(again) == [] and examine(again) == []
        again.mutate([sl.patch("person", "b", {"age": 3})], branch="x")
        again.merge("x")
        assert rows(again) == [("b", 3)]


def test_what_is_left_of_a_purge_goes_though_its_condition_names_nothing_any_more(lake: Lake) -> None:
    """The one branch that had the named version was done when it died; the other still has the row."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "ab"])
    lake.branch("x")
    lake.mutate([sl.patch("person", "a", {"age": 2})])
    lake.flush("person")
    lake.fold("person")
    failpoints.arm("publish.after_commit=raise")
    with crash(lake):
        lake.purge("person", "age = 2")
    with reopened(lake) as again:
        assert (rows(again), rows(again, "x")) == ([("b", 1)], [("a", 1), ("b", 1)])
        again.purge("person", "age = 2")
        assert rows(again) == rows(again, "x") == [("b", 1)]
        assert [row[2] for row in tombstones(again)] == [2], "recorded by the one that died, for both"


def test_a_branch_that_is_being_made_loses_the_row_and_what_it_was_to_lose(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has rows that are older than its commit and came later, by a merge that took the table over."""
    make_people(lake)
    make_people(lake, "pet")
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "ab"])
    lake.branch("x")
    lake.mutate([sl.put("person", {"id": "b", "age": 2}), sl.put("person", {"id": "c", "age": 2})], branch="x")
    point = lake.mutate([sl.put("pet", {"id": "cat"})]).commit_id
    assert lake.merge("x").outcome == "merged"
    lake.mutate([sl.patch("person", "a", {"age": 3})])
    lake.flush("person")
    purged: list[Any] = []

    def purge_first(*args: Any) -> None:
        if not purged:
            purged.append(lake.purge("person", "id = 'a'"))
        cut(*args)

    cut = branch_at._cut
    monkeypatch.setattr(branch_at, "_cut", purge_first)
    lake.branch("old", point)
    assert purged and rows(lake, "old") == rows(lake, at=point) == [("b", 1)]
    assert rows(lake) == [("b", 2), ("c", 2)]
    check(lake, "old")
    lake.mutate([sl.insert("person", {"id": "a", "age": 8})], branch="old")
    assert rows(lake, "old") == [("a", 8), ("b", 1)] and examine(lake, deep=True) == []


def test_a_branch_whose_making_died_does_not_keep_a_purge_from_its_end(lake: Lake) -> None:
    """Nobody takes the later rows out of it any more, and some of them are in one file with the others."""
    make_people(lake)
    first = lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "ab"]).commit_id
    lake.mutate([sl.patch("person", "a", {"age": 2})])
    lake.flush("person")
    failpoints.arm("begin.after_commit=raise")
    with crash(lake):
        lake.branch("old", first)
    with reopened(lake) as again:
        assert in_ledger(again, "select count(*) from branches where kind = 'making'") == [(1,)]
        again.purge("person", "id = 'a'")
        assert rows(again) == [("b", 1)] and again.purge("person", "id = 'a'").operations == ()


def test_hashes_of_versions_that_are_gone_are_not_asked(lake: Lake) -> None:
    """Neither before nor after the sweep of what is folded, on a branch that knows them from another one."""
    grown(lake)
    lake.purge("person", "id = 'a'")
    touches.sweep_touches(lake.ledger, grace_s=0)
    for branch in ("main", "x", "x/y"):
        lake.mutate([sl.insert("person", {"id": "a", "age": 8})], branch=branch)
        assert rows(lake, branch)[0] == ("a", 8)


def test_the_command_purges_a_keyed_table(lake: Lake) -> None:
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "ab"])
    told = strand_json(lake, "purge", "person", "--where", "id = 'a'", "--yes", "--here")
    assert (told[0] if isinstance(told, list) else told)["detail"]["rows"] == 1
    assert rows(lake) == [("b", 1)]
