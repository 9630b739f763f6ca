"""Merges that left branches apart, or let a row break a rule: ways that a review found."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import Conflict, MergeConflict, NotFound
from strandline.lake import Lake
from strandline.model.history.merge import resolution_file
from strandline.operations.core import steps
from strandline.operations.merge import merge
from strandline.reports.doctor import examine
from tests.kit import strand_json
from tests.versions.racing import racing
from tests.versions.test_merge import changed, kinds, on

PET = {"key": ["id"], "columns": {"id": "string", "owner": "string?"}}


def people(lake: Lake, *constraints: str, **ages: int) -> None:
    """A table of people of these ages, and a branch x of main."""
    lake.create_table(
        "person", {"id": "string", "age": "long?", "team": "string?"}, key=["id"], constraints=constraints
    )
    if ages:
        changed(lake, "main", **ages)
    lake.branch("x")


def declare(lake: Lake, table: str, *constraints: str, branch: str = "x", **more: Any) -> None:
    """Let a table be so on a branch, and make it where it is not there."""
    known = lake.schema(branch)["tables"].get(table, more)
    lake.schema_apply({"tables": {table: {**known, "constraints": [*constraints]}}}, branch=branch)


def differing(lake: Lake, before: str, after: str) -> list[str]:
    """The keys of rows that are not the same at two points."""
    return [str(one.key["id"]) for one in lake.diff(before, after)]


@pytest.mark.both_ledgers
def test_a_row_that_somebody_left_as_it_was_stays_so_in_later_merges(lake: Lake) -> None:
    """The source alone had changed it, and a unique value stood against that: the decision is the merge's change."""
    people(lake, "unique(age)", a=1, b=2)
    changed(lake, "x", a=3)
    changed(lake, "main", c=3)
    doc = resolution_file(lake.merge("x", dry_run=True))
    assert [one["kind"] for one in doc["conflicts"]] == ["unique_violation"]
    doc["conflicts"][0]["take"] = "ours"
    merged = lake.merge("x", resolve=doc)
    assert (merged.outcome, on(lake)) == ("merged", [("a", 1), ("b", 2), ("c", 3)])
    assert differing(lake, "x", "main") == ["a", "c"]
    assert lake.merge("main", "x").outcome == "merged"
    assert (on(lake, "x"), differing(lake, "x", "main")) == (on(lake), [])
    lake.mutate([sl.patch("person", "a", {"team": "red"})], branch="x")
    lake.merge("x")
    assert on(lake, columns="id, age, team")[0] == ("a", 1, "red"), "and what is changed later goes on from there"


@pytest.mark.both_ledgers
def test_a_row_that_somebody_did_not_let_in_stays_out(lake: Lake) -> None:
    """The same of one that only the source has."""
    people(lake, "unique(age)", a=1)
    changed(lake, "x", b=3)
    changed(lake, "main", c=3)
    doc = resolution_file(lake.merge("x", dry_run=True))
    doc["conflicts"][0]["take"] = "ours"
    lake.merge("x", resolve=doc)
    assert (on(lake), differing(lake, "x", "main")) == ([("a", 1), ("c", 3)], ["b", "c"])
    lake.merge("main", "x")
    assert on(lake, "x") == on(lake)


@pytest.mark.both_ledgers
def test_a_table_that_comes_by_a_merge_refers_to_what_is_there(lake: Lake) -> None:
    """Not to rows that the target has deleted since; but to those that come with it."""
    people(lake, a=1, b=2)
    declare(lake, "pet", "reference(owner -> person, restrict)", **PET)
    lake.mutate([sl.put("pet", {"id": "p", "owner": "a"})], branch="x")
    changed(lake, "main", a=None)
    with pytest.raises(MergeConflict) as told:
        lake.merge("x")
    assert (kinds(told.value), lake.view().tables) == ([("orphan_edge", "pet", "p")], ["person"])
    lake.mutate([sl.put("person", {"id": "c"}), sl.patch("pet", "p", {"owner": "c"})], branch="x")
    assert lake.merge("x").tables == {"person": 1, "pet": 2}
    assert on(lake, columns="id, owner", table="pet") == [("p", "c")]
    with pytest.raises(Conflict, match="still refers"):
        lake.mutate([sl.delete("person", "c")])


@pytest.mark.both_ledgers
def test_a_table_that_comes_by_a_merge_refers_often_enough(lake: Lake) -> None:
    """Every row of the target has as many as the new table asks for; one that came to the target since has none."""
    people(lake)
    declare(lake, "pet", "reference(owner -> person, cascade)", "cardinality(owner: 1..1)", **PET)
    lake.mutate([sl.put("person", {"id": "a"}), sl.put("pet", {"id": "p", "owner": "a"})], branch="x")
    lake.merge("x", dry_run=True)
    changed(lake, "main", b=2)
    with pytest.raises(MergeConflict) as told:
        lake.merge("x")
    assert [(one.kind, one.ours) for one in told.value.conflicts] == [("cardinality_violation", {"rows": ["'b'"]})]
    changed(lake, "main", b=None)
    lake.merge("x")
    lake.mutate([sl.delete("person", "a")])
    assert on(lake, columns="id, owner", table="pet") == []


@pytest.mark.both_ledgers
def test_a_reference_that_comes_by_a_merge_holds_of_the_target_s_rows(lake: Lake) -> None:
    """Also where the target has not changed the rows that refer, but deleted what they refer to."""
    people(lake)
    lake.create_table("team", {"id": "string"}, key=["id"])
    lake.mutate([sl.put("team", {"id": "red"}), sl.put("person", {"id": "a", "team": "red"})])
    lake.delete_branch("x")
    lake.branch("x")
    declare(lake, "person", "reference(team -> team, restrict)")
    lake.mutate([sl.delete("team", "red")])
    with pytest.raises(MergeConflict) as told:
        lake.merge("x")
    assert [one.kind for one in told.value.conflicts] == ["orphan_edge"]
    lake.mutate([sl.put("team", {"id": "red"})])
    assert lake.merge("x").outcome == "merged"


@pytest.mark.both_ledgers
def test_a_table_comes_with_a_reference_to_it(lake: Lake) -> None:
    """In one document, and by one merge: of rows that are there already none names what the new table has not."""
    people(lake, a=1)
    known = lake.schema("x")["tables"]["person"]
    rules = ["reference(team -> team, restrict)"]
    team = {"key": ["id"], "columns": {"id": "string"}}
    doc = {"tables": {"team": team, "person": {**known, "constraints": rules}}}
    lake.mutate([sl.patch("person", "a", {"team": "red"})], branch="x")
    with pytest.raises(Conflict, match="names no row"):
        lake.schema_apply(doc, branch="x")
    lake.mutate([sl.patch("person", "a", {"team": None})], branch="x")
    lake.schema_apply(doc, branch="x")
    lake.mutate([sl.put("team", {"id": "red"}), sl.patch("person", "a", {"team": "red"})], branch="x")
    lake.mutate([sl.put("person", {"id": "b", "team": "blue"})])
    with pytest.raises(MergeConflict) as told:
        lake.merge("x")
    assert [(one.kind, one.ours) for one in told.value.conflicts] == [("orphan_edge", {"rows": ["'b'"]})]
    lake.mutate([sl.patch("person", "b", {"team": None})])
    assert lake.merge("x").tables == {"person": 1, "team": 1}
    assert on(lake, columns="id, team") == [("a", "red"), ("b", None)]


def test_branches_that_never_were_one_can_be_compared_and_merged(lake: Lake) -> None:
    """One was made before the first commit: what differs is all that either has."""
    lake.branch("apart")
    people(lake, a=1)
    with pytest.raises(NotFound, match="no commit yet"):
        list(lake.diff("apart", "main"))
    declare(lake, "pet", branch="apart", **PET)
    lake.mutate([sl.put("pet", {"id": "p"})], branch="apart")
    assert differing(lake, "apart", "main") == ["a", "p"]
    for source, into in (("apart", "main"), ("main", "apart")):
        assert lake.merge(source, into).outcome == "merged"
    assert differing(lake, "apart", "main") == []
    assert strand_json(lake, "diff", "apart", "main")["rows"] == []


def test_a_merge_tells_of_rows_that_its_source_deleted_with_others(lake: Lake) -> None:
    """Rows that went by a cascade there are among those that it counts, in its answer and in its commit."""
    lake.create_table("team", {"id": "string"}, key=["id"])
    people(lake, "reference(team -> team, cascade)")
    lake.mutate([sl.put("team", {"id": "red"}), sl.put("person", {"id": "a", "team": "red"})])
    lake.merge("main", "x")
    lake.mutate([sl.put("person", {"id": "b"})])
    lake.mutate([sl.delete("team", "red")], branch="x")
    merged = lake.merge("x")
    assert merged.commit is not None
    assert dict(merged.tables) == dict(lake.commit(merged.commit).tables) == {"person": 1, "team": 1}


@pytest.mark.both_ledgers
def test_f67_a_time_shows_what_the_branch_had_then_also_after_a_fast_forward(lake: Lake) -> None:
    """The commits that it brought are older than the time, and were another branch's then."""
    people(lake, a=1)
    changed(lake, "x", b=2)
    times = [then(lake)]
    changed(lake, "x", c=3)
    lake.branch("y", "x")
    assert lake.merge("x").outcome == "fast_forward"
    times.append(then(lake))
    changed(lake, "y", d=4)
    assert lake.merge("y").outcome == "fast_forward"
    changed(lake, "main", e=5)
    times.append(then(lake))
    shown = [[row[0] for row in lake.view(at=time).sql("select id from person order by 1").rows()] for time in times]
    assert shown == [["a"], ["a", "b", "c"], ["a", "b", "c", "d", "e"]]
    with pytest.raises(NotFound, match="no commit at"):
        lake.view(at="2020-01-01")


def then(lake: Lake) -> str:
    """The time of the ledger's last change."""
    with lake.ledger.read() as conn:
        moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=lake.ledger.last_at_us(conn))
    return moment.isoformat()


@pytest.mark.both_ledgers
def test_a_merge_does_not_begin_again_for_what_its_source_does_meanwhile(lake: Lake) -> None:
    """It brings what it has read; what came to the source since is for the next one."""
    people(lake, a=1, b=1)
    theirs = changed(lake, "x", a=2)
    changed(lake, "main", b=2)
    ends = racing(lake, lambda one: one.merge("x"), lambda one: changed(one, "x", a=3, c=3), "merge.before_store")
    assert (ends, failpoints.passages("merge.before_store")) == (["stored", "stored"], 1)
    assert (on(lake), lake.log(limit=1)[0].parents[1]) == ([("a", 2), ("b", 2)], theirs)
    assert lake.merge("x").outcome == "merged"
    assert on(lake) == [("a", 3), ("b", 2), ("c", 3)]


def test_a_source_that_is_never_still_is_merged_by_its_rows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could be taken over whole is written then; later merges take it over again."""
    people(lake, a=1)
    declare(lake, "pet", "reference(owner -> person, restrict)", **PET)
    theirs = lake.mutate(
        [sl.put("person", {"id": "b", "age": 2}), sl.put("pet", {"id": "p", "owner": "b"})], branch="x"
    )
    with monkeypatch.context() as patch:
        patch.setattr(merge, "ADOPTING", 0)
        done = lake.merge("x")
    assert (done.outcome, lake.log(limit=1)[0].parents[1]) == ("merged", theirs.commit_id)
    assert (on(lake), on(lake, columns="id, owner", table="pet")) == ([("a", 1), ("b", 2)], [("p", "b")])
    assert lake.merge("main", "x").outcome == "merged"
    changed(lake, "x", c=3)
    assert lake.merge("x").outcome == "merged"
    assert (on(lake), differing(lake, "x", "main")) == ([("a", 1), ("b", 2), ("c", 3)], [])


@pytest.mark.both_ledgers
@pytest.mark.parametrize("kept", [True, False])
def test_a_branch_at_a_commit_that_came_by_a_fast_forward_finds_its_rows(lake: Lake, kept: bool) -> None:
    """Main came to have them later than they were written: a change meets them all the same, each as it was then."""
    people(lake, a=1)
    then = changed(lake, "x", a=2, b=2)
    changed(lake, "x", b=3, c=3)
    assert lake.merge("x").outcome == "fast_forward"
    if not kept:
        lake.delete_branch("x")
    lake.branch("y", then)
    lake.branch("y/z", "y")
    for branch in ("y", "y/z"):
        for key in "ab":
            with pytest.raises(Conflict, match="there already"):
                lake.mutate([sl.insert("person", {"id": key})], branch=branch)
            lake.mutate([sl.patch("person", key, {"team": branch})], branch=branch)
        lake.mutate([sl.insert("person", {"id": "c"})], branch=branch)
        assert on(lake, branch, "id, age, team") == [("a", 2, branch), ("b", 2, branch), ("c", None, None)]
    changed(lake, "y", c=None)
    assert lake.merge("y").tables == {"person": 2}
    assert on(lake, columns="id, age, team") == [("a", 2, "y"), ("b", 3, "y"), ("c", 3, None)]


@pytest.mark.both_ledgers
def test_a_merge_brings_the_rows_of_a_table_that_its_source_took_over_as_it_has_them_now(lake: Lake) -> None:
    """The source wrote a row, and then took the table over from a branch that wrote it again: that version comes."""
    people(lake, b=1)
    lake.create_table("pet", {"id": "string", "age": "long?"}, key=["id"])
    lake.branch("far")
    lake.mutate([sl.put("pet", {"id": "cat", "age": 1}), sl.put("pet", {"id": "dog", "age": 1})])
    lake.branch("near")
    lake.mutate([sl.put("pet", {"id": "cat", "age": 2}), sl.delete("pet", "dog")], branch="near")
    changed(lake, "main", b=2)
    assert (lake.merge("near").outcome, lake.log(limit=1)[0].tables) == ("merged", {"pet": 2})
    lake.mutate([sl.put("pet", {"id": "fox", "age": 3})], branch="far")
    assert lake.merge("main", "far").outcome == "merged"
    pets = "select id, age from pet order by id"
    assert lake.view("far").sql(pets).rows() == [("cat", 2), ("fox", 3)]
    assert differing(lake, "main", "far") == ["fox"]


def test_a_table_that_its_source_has_not_flushed_is_merged_by_rows(lake: Lake) -> None:
    """The target has flushed what both began with: taken over, its versions would be in its log and in its tail."""
    people(lake, a=1)
    lake.flush("person")
    changed(lake, "x", b=2)
    assert lake.merge("x").outcome == "merged"
    assert on(lake) == [("a", 1), ("b", 2)]
    assert lake.view().sql('select id from "person$log" order by _seq').rows() == [("a",), ("b",)]
    lake.flush("person")
    assert [(one.kind, one.key["id"]) for one in lake.changes("person")] == [("insert", "a"), ("insert", "b")]
    assert examine(lake, deep=True) == []


def test_a_row_that_its_source_has_folded_away_does_not_come_back(lake: Lake) -> None:
    """The source's state has no row and so no snapshot; the target's, which it replaces, has one."""
    people(lake, a=1)
    lake.flush("person")
    lake.fold("person")
    changed(lake, "x", a=None)
    lake.flush("person", branch="x")
    lake.fold("person", branch="x")
    lake.merge("x")
    assert on(lake) == on(lake, "x") == []
    assert examine(lake, deep=True) == []


def test_a_fold_that_is_under_way_does_not_bring_back_what_a_merge_brought_away(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is staged when the branch comes to have a log and a state that go further, and neither of them has a row."""
    people(lake, a=1)
    lake.flush("person")
    changed(lake, "x", a=None)
    lake.flush("person", branch="x")
    merged: list[str] = []

    def merge_first(name: str) -> None:
        if name == "staged.after_commit" and not merged:
            merged.append("begun")
            lake.fold("person", branch="x")
            merged.append(lake.merge("x").outcome)

    monkeypatch.setattr(steps, "fail", merge_first)
    lake.fold("person")
    assert len(merged) == 2 and on(lake) == on(lake, "x") == []
    lake.flush("person")
    lake.fold("person")
    assert on(lake) == [] and examine(lake, deep=True) == []
