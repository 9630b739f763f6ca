"""Merges that are more than the ledger takes at once: an operation, and still one commit with two parents."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import MergeConflict
from strandline.lake import Lake
from strandline.operations.merge import merge
from strandline.reports.doctor import examine
from tests.kit import audits, crash, in_ledger, intents_of, recovery_dies, reopened, swept, wait_until
from tests.versions import truth
from tests.versions.kit import versions
from tests.versions.test_merge import SHAPE, changed, forked, kinds, on
from tests.versions.test_schema import column, edited


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every merge that writes a row is as if it were too large for the ledger alone."""
    monkeypatch.setattr(merge, "MOST_ROWS", 0)


def clean(lake: Lake) -> None:
    """Nothing is under way, held or left over."""
    assert intents_of(lake) == [] and lake.context.staging.listing() == []
    assert in_ledger(lake, "select * from reservations") == []
    assert examine(lake) == []


def test_a_large_merge_comes_to_what_a_small_one_does(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth table by both ways: rows, parents, what differs, what was there before, and what comes next."""
    lake.create_table(truth.TABLE, SHAPE, key=["id"])
    lake.mutate([sl.put(truth.TABLE, {"id": case.key, **case.base}) for case in truth.cases() if case.base])
    lake.branch("theirs")
    for side, branch in (("ours", "main"), ("theirs", "theirs")):
        done = [truth.statements(case, side) for case in truth.cases()]
        for place in range(max(map(len, done))):
            lake.mutate([steps[place] for steps in done if len(steps) > place], branch=branch)
    lake.branch("other")
    before = on(lake, columns="id, name, age, city")
    ours, theirs = (lake.log(one, limit=1)[0].commit_id for one in ("main", "theirs"))
    with pytest.raises(MergeConflict) as caught:
        lake.merge("theirs")
    clean(lake)
    told = lake.merge("theirs", resolve="ours", actor="ann")
    with monkeypatch.context() as patch:
        patch.setattr(merge, "MOST_ROWS", 1000)
        with pytest.raises(MergeConflict) as other:
            lake.merge("theirs", into="other")
        small = lake.merge("theirs", into="other", resolve="ours")
    assert kinds(caught.value) == kinds(other.value)
    assert (told.outcome, told.tables, told.rows_read) == (small.outcome, small.tables, small.rows_read)
    tip, theirs_tip = lake.log(limit=1)[0], lake.log("other", limit=1)[0]
    assert (tip.commit_id, tip.parents, tip.actor) == (told.commit, (ours, theirs), "ann")
    assert (tip.kind, tip.tables, tip.message) == ("merge", theirs_tip.tables, "merge theirs into main")
    rows = on(lake, columns="id, name, age, city")
    assert rows == on(lake, "other", columns="id, name, age, city") and rows != before
    assert {row[0]: row[1:] for row in rows}.keys() >= {one.key for one in truth.cases() if truth.verdict(one)[1]}
    for at, expected in ((ours, before), (tip.commit_id, rows)):
        found = lake.view(at=at).sql(f"select id, name, age, city from {truth.TABLE} order by 1").rows()
        assert found == expected
    differ = [[(one.kind, one.key) for one in lake.diff(ours, to)] for to in (tip.commit_id, theirs_tip.commit_id)]
    assert differ[0] == differ[1] != []
    assert lake.merge("theirs").outcome == "up_to_date"
    for step in (lake.flush, lake.compact, lake.fold):
        step(truth.TABLE)
        assert on(lake, columns="id, name, age, city") == rows
    clean(lake)


def test_f60_the_merge_after_a_large_one_takes_the_right_base(lake: Lake) -> None:
    """Deletes come too; what both changed since is a conflict; mutations meet the merged rows."""
    forked(lake, a=1, b=1, c=1)
    changed(lake, "main", a=2)
    changed(lake, "x", b=5, c=None, d=1)
    assert lake.merge("x").outcome == "merged"
    assert on(lake) == [("a", 2), ("b", 5), ("d", 1)]
    lake.mutate([sl.patch("person", "d", {"age": 2}), sl.insert("person", {"id": "c", "age": 9})])
    changed(lake, "x", b=6, d=3)
    with pytest.raises(MergeConflict) as caught:
        lake.merge("x")
    assert kinds(caught.value) == [("divergent_update", "person", "d")]
    assert lake.merge("x", resolve="theirs").outcome == "merged"
    assert on(lake) == [("a", 2), ("b", 6), ("c", 9), ("d", 3)]
    assert lake.merge("main", into="x").outcome in ("merged", "fast_forward")
    assert on(lake, "x") == on(lake)
    clean(lake)


def test_tables_and_schemas_come_with_a_large_merge(lake: Lake) -> None:
    """A table that is taken by pointer, a new one, and a column of the source's; all of it is one commit."""
    forked(lake)
    lake.create_table("pet", {"id": "string"}, key=["id"])
    lake.mutate([sl.put("pet", {"id": "p"})])
    lake.branch("y")
    changed(lake, "main", a=2)
    lake.schema_apply(edited(lake, column("city", "string?"), "person", branch="y"), branch="y")
    lake.create_table("toy", {"id": "string"}, key=["id"], branch="y")
    lake.mutate([sl.put("person", {"id": "b", "age": 5, "city": "ulm"}), sl.put("pet", {"id": "q"})], branch="y")
    lake.mutate([sl.put("toy", {"id": "t"})], branch="y")
    lake.merge("y")
    assert on(lake, columns="id, age, city") == [("a", 2, None), ("b", 5, "ulm")]
    assert on(lake, columns="id", table="pet") == [("p",), ("q",)]
    assert on(lake, columns="id", table="toy") == [("t",)]
    assert lake.merge("y").outcome == "up_to_date"
    lake.recover()
    clean(lake)


def teams(lake: Lake) -> None:
    """Members of teams on main, and a branch x."""
    rules = ["reference(team -> team, cascade)", "unique(n)"]
    lake.create_table("team", {"id": "string"}, key=["id"])
    lake.create_table("member", {"id": "string", "team": "string?", "n": "long?"}, key=["id"], constraints=rules)
    lake.mutate([sl.put("team", {"id": one}) for one in ("red", "blue")])
    lake.mutate([sl.put("member", {"id": "m", "team": "red", "n": 1})])
    lake.branch("x")


def test_constraints_hold_after_a_large_merge(lake: Lake) -> None:
    """What would break one is a conflict, and nothing is written; rows that refer to deleted ones go with them."""
    teams(lake)
    lake.mutate([sl.put("member", {"id": "a", "team": "blue", "n": 2})])
    lake.mutate([sl.put("member", {"id": "b", "n": 2}), sl.put("team", {"id": "green"})], branch="x")
    tip = lake.log(limit=1)[0].commit_id
    with pytest.raises(MergeConflict) as caught:
        lake.merge("x")
    assert {one.kind for one in caught.value.conflicts} == {"unique_violation"}
    assert lake.log(limit=1)[0].commit_id == tip
    clean(lake)
    lake.mutate([sl.put("member", {"id": "b", "n": 3}), sl.delete("team", "red")], branch="x")
    assert lake.merge("x").outcome == "merged"
    assert on(lake, columns="id, n", table="member") == [("a", 2), ("b", 3)]
    assert on(lake, columns="id", table="team") == [("blue",), ("green",)]
    clean(lake)


def test_f40_sinks_get_each_row_of_a_large_merge_once(lake: Lake, tmp_path: Path) -> None:
    """In the order of their seqs, however often it is ticked."""
    forked(lake, a=1, b=1, c=1)
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path / 'blobs'}"})
    lake.tick("archive")
    changed(lake, "main", a=2)
    changed(lake, "x", b=5, c=None)
    lake.merge("x")
    lake.tick("archive")
    changed(lake, "main", z=1)
    lake.tick("archive")
    assert lake.tick("archive") == []
    rows = [row for path in sorted((tmp_path / "blobs").rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    told = [(row["id"], row["age"], row["_removed"], row["_seq"]) for row in rows]
    assert told == versions(lake, "id, age, _removed, _seq")
    assert [one[:3] for one in told[-3:]] == [("b", 5, False), ("c", None, True), ("z", 1, False)]


def test_f66_mutations_and_merges_wait_for_a_large_merge_and_come_after_it(lake: Lake) -> None:
    """Other tables go on; who waits is judged by what was merged."""
    forked(lake)
    lake.create_table("pet", {"id": "string"}, key=["id"])
    lake.branch("y")
    changed(lake, "main", a=2)
    changed(lake, "x", b=5)
    lake.mutate([sl.put("pet", {"id": "y"})], branch="y")
    with Lake(lake.root) as other, Lake(lake.root) as third, ThreadPoolExecutor(2) as pool:
        failpoints.arm("reserve.after_commit=sleep(3000)@1")
        done = pool.submit(other.merge, "x")
        wait_until(lambda: failpoints.passages("reserve.after_commit") > 0 or done.done())
        second = pool.submit(third.merge, "y")
        lake.mutate([sl.put("pet", {"id": "p"})])
        assert not done.done()
        late = lake.mutate([sl.patch("person", "b", {"name": "late"})])
        assert done.result(60).outcome == "merged" and second.result(60).outcome == "merged"
        failpoints.arm(None)
    assert on(lake, columns="id, name, age") == [("a", None, 2), ("b", "late", 5)]
    assert on(lake, columns="id", table="pet") == [("p",), ("y",)]
    seqs = {one.commit_id: one.seq for one in lake.log()}
    assert seqs[late.commit_id] > seqs[done.result().commit or ""]
    clean(lake)


# -- what a crash leaves -----------------------------------------------------------------------------------------------

STORED = {
    "merge.before_store": False,
    "begin.before_commit": False, "begin.after_commit": False,
    "reserve.before_commit": False, "reserve.after_commit": False,
    "reserve.before_commit@2": False, "reserve.after_commit@2": False,
    "stage.before_table": False, "stage.before_branch": False, "stage.after_branch": False,
    "stage.before_files": False, "stage.after_files": False,
    "stage.before_append": False, "stage.after_append@2": False,
    "staged.before_commit": False, "staged.after_commit": True,
    "publish.before_commit": True, "publish.after_commit": True,
    "settle.before_ref": True, "settle.after_ref": True, "settle.after_folder": True, "settle.after_commit": True,
    "merge.after_commit": True,
}  # fmt: skip
"""Every step of such a merge, and whether recovery makes its commit."""


def died(lake: Lake, name: str, into: str = "main") -> tuple[str, str]:
    """A merge over two tables that dies there; the parents that it has if it has come."""
    teams(lake)
    if into != "main":
        lake.branch(into)
    ours = lake.mutate([sl.put("team", {"id": "ours"})], branch=into).commit_id
    steps = [sl.put("team", {"id": "new"}), sl.put("member", {"id": "a", "team": "new"}), sl.delete("team", "red")]
    theirs = lake.mutate(steps, branch="x").commit_id
    point, _, nth = name.partition("@")
    failpoints.arm(f"{point}=raise" + (f"@{nth}" if nth else ""))
    with crash(lake):
        lake.merge("x", into, actor="ann")
    return ours, theirs


def shown(lake: Lake, branch: str) -> tuple[list[Any], list[Any]]:
    return on(lake, branch, "id", "team"), on(lake, branch, "id", "member")


AFTER = [("blue",), ("new",), ("ours",)], [("a",)]


def there(lake: Lake, into: str, parents: tuple[str, str], *, stored: bool) -> None:
    """All of it or nothing; merging again is up to date, and the next merge takes the right base."""
    tip = lake.log(into, limit=1)[0]
    if stored:
        assert (tip.parents, tip.kind, tip.actor, shown(lake, into)) == (parents, "merge", "ann", AFTER)
    else:
        assert tip.commit_id == parents[0] and ("new",) not in shown(lake, into)[0]
    lake.mutate([sl.put("member", {"id": "free"})], branch=into)
    lake.mutate([sl.delete("member", "free")], branch=into)
    assert lake.merge("x", into).outcome == ("up_to_date" if stored else "merged")
    assert shown(lake, into) == AFTER
    assert [one.tables for one in lake.log(into) if one.kind == "merge"] == [{"team": 2, "member": 2}]
    lake.recover()
    clean(lake)


@pytest.mark.parametrize("name", swept(STORED))
def test_f33_a_large_merge_that_dies_anywhere_is_there_with_both_parents_or_not_at_all(lake: Lake, name: str) -> None:
    """On main; what it held is not held any more."""
    parents = died(lake, name)
    with reopened(lake) as again:
        there(again, "main", parents, stored=STORED[name])


@pytest.mark.parametrize("name", ["stage.after_append@2", "staged.after_commit", "publish.after_commit"])
def test_f44_a_large_merge_into_a_branch_that_dies_is_done_or_undone_there(lake: Lake, name: str) -> None:
    """And main is as it was."""
    parents = died(lake, name, "side")
    before = shown(lake := reopened(lake), "main")
    with lake as again:
        there(again, "side", parents, stored=STORED[name])
        assert shown(again, "main") == before


@pytest.mark.parametrize("name", ["reserve.after_commit@2", "staged.after_commit"])
@pytest.mark.parametrize("second", ["recover.before_commit", "settle.before_ref"])
def test_f31_recovery_of_a_large_merge_that_dies_ends_in_the_same_state(lake: Lake, name: str, second: str) -> None:
    """It is audited once."""
    parents = died(lake, name)
    recovery_dies(lake, second, second)
    with reopened(lake) as again:
        there(again, "main", parents, stored=STORED[name])
        outcome = "rolled_forward" if STORED[name] else "rolled_back"
        assert [(one["kind"], one["outcome"], one["original_actor"]) for one in audits(again)] == [
            ("merge", outcome, "ann")
        ]
