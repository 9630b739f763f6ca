"""Dropped tables: gone from one branch from a commit on, and there for everybody else as before."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline import failpoints
from strandline.backup import backup
from strandline.errors import BadRequest, Busy, Conflict, MergeConflict, NotFound
from strandline.lake import Lake
from strandline.ledger.tables.schema_changes import SchemaChange, change_schemas
from strandline.ledger.tables.tables import read_branch_tables
from strandline.operations.change.schema_apply import make_plan
from strandline.operations.maintain.purge_elsewhere import ensure_tombstones
from strandline.reports.doctor import examine
from tests import slices
from tests.backup.test_restore import restored
from tests.kit import crash, make_table, messages, real_strand, reopened, strand, strand_json
from tests.versions.kit import make_people
from tests.versions.test_schema import apply, column, constrained, on_both, rows, teams, two_people

ALL = "select id, age from person order by id"
BOTH = [("a", 30), ("b", None)]


def drop(lake: Lake, *tables: str, branch: str = "main") -> str:
    """Drop tables of a branch; the answer is the commit."""
    done = lake.schema_apply({"tables": {name: {"drop": True} for name in tables or ("person",)}}, branch=branch)
    assert done.commit is not None
    return done.commit.commit_id


def is_gone(lake: Lake, branch: str = "main") -> bool:
    """Whether a branch does not show the table of people."""
    return "person" not in lake.view(branch).tables


def branch_tables(lake: Lake, branch: str) -> list[str]:
    """The tables that a branch has, dropped ones too."""
    with lake.ledger.read() as conn:
        return [one.table.name for one in read_branch_tables(conn, branch)]


@pytest.mark.both_ledgers
def test_a_dropped_table_is_not_there_for_who_reads_and_writes_its_branch(lake: Lake, tmp_path: Path) -> None:
    """It is as if it had never been, but that the error names the commit; the branch's other tables go on."""
    two_people(lake)
    make_people(lake, "other")
    planned = lake.schema_plan({"tables": {"person": {"drop": True}}})
    assert [(step.what, step.verdict) for step in planned.steps] == [("remove table", "loses data")]
    commit = drop(lake)
    assert lake.log()[0].kind == "schema" and dict(lake.log()[0].tables) == {"person": 0}
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "z"}\n')
    refused: list[Callable[[], Any]] = [
        lambda: lake.view().branch_table("person"),
        lambda: lake.view().table("PERSON"),
        lambda: lake.view().sql("select * from person"),
        lambda: lake.view().sql('select * from "person$log"'),
        lambda: lake.mutate([sl.put("person", {"id": "c"})]),
        lambda: lake.load("person", [str(file)]),
        lambda: lake.changes("person"),
        lambda: lake.add_sink("s", "blob", {"uri": f"file://{tmp_path}/s", "tables": ["person"]}, check=False),
    ]
    for call in refused:
        with pytest.raises(NotFound) as error:
            call()
        assert commit in error.value.hint
    assert rows(lake, "with person as (select 1) select * from person") == [(1,)]
    assert lake.view().tables == ["other"] == list(lake.schema()["tables"])
    lake.mutate([sl.put("other", {"id": "c"})])
    assert rows(lake, "select id from other") == [("c",)]


@pytest.mark.both_ledgers
def test_other_branches_tags_and_the_past_have_it_as_before(lake: Lake) -> None:
    """And branches that are made of the branch without it don't have it, unless they are made of an earlier commit."""
    two_people(lake)
    lake.branch("x")
    lake.tag("v1", "main")
    before = lake.log()[0].commit_id
    gone = drop(lake)
    lake.branch("after")
    lake.branch("early", from_=before)
    lake.mutate([sl.put("person", {"id": "c", "age": 1})], branch="x")
    make_people(lake, "other")
    for branch in ("main", "after"):
        assert is_gone(lake, branch)
    for at in (before, "v1"):
        assert lake.view(at=at).sql(ALL).rows() == BOTH
    assert "person" not in lake.view(at=gone).tables and "person" not in lake.view(at="main").tables
    assert rows(lake, ALL, "early") == BOTH
    assert rows(lake, ALL, "x") == [*BOTH, ("c", 1)]
    assert [(one.kind, one.key["id"]) for one in lake.diff(before, gone)] == [("delete", "a"), ("delete", "b")]


def test_the_same_document_again_changes_nothing_and_an_unknown_table_is_an_error(lake: Lake) -> None:
    two_people(lake)
    drop(lake)
    assert lake.schema_apply({"tables": {"person": {"drop": True}}}).commit is None
    with pytest.raises(NotFound, match="no table 'persn' to drop"):
        lake.schema_plan({"tables": {"persn": {"drop": True}}})


def test_what_others_refer_to_is_not_dropped_without_them(lake: Lake) -> None:
    """They are named; with them, or with the reference, it goes."""
    teams(lake)
    lake.mutate([sl.delete("member", "c")])
    apply(lake, constrained("reference(team -> team, restrict)"), "member")
    for branch in ("x", "y"):
        lake.branch(branch)
    with pytest.raises(BadRequest, match="member refers to it"):
        drop(lake, "team")
    drop(lake, "team", "member", branch="x")
    assert lake.view("x").tables == []
    doc = {"tables": {"team": {"drop": True}, "member": {**lake.schema("y")["tables"]["member"], "constraints": []}}}
    lake.schema_apply(doc, branch="y")
    lake.mutate([sl.put("member", {"id": "z", "team": "nowhere"})], branch="y")
    assert lake.view("y").tables == ["member"] and lake.view().tables == ["member", "team"]
    with pytest.raises(NotFound):
        lake.create_table("fan", {"id": "string", "team": "string"}, key=["id"], branch="y",
                          constraints=["reference(team -> team, restrict)"])  # fmt: skip


def test_rows_of_a_dropped_table_hold_nothing_back(lake: Lake) -> None:
    """What it declared went with it: a row that only its rows refer to is deleted."""
    teams(lake)
    lake.mutate([sl.delete("member", "c")])
    apply(lake, constrained("reference(team -> team, restrict)"), "member")
    with pytest.raises(Conflict):
        lake.mutate([sl.delete("team", "red")])
    drop(lake, "member")
    lake.mutate([sl.delete("team", "red")])
    assert rows(lake, "select id from team") == [("blue",)]


def test_a_table_that_another_process_dropped_is_not_referred_to(lake: Lake) -> None:
    """What a process remembers of it does not count: the transaction looks again."""
    teams(lake)
    with Lake(lake.root) as other:
        other.mutate([sl.put("team", {"id": "green"})])
        drop(lake, "team")
        with pytest.raises(NotFound):
            other.create_table("fan", {"id": "string", "team": "string"}, key=["id"],
                               constraints=["reference(team -> team, restrict)"])  # fmt: skip
        with pytest.raises(NotFound):
            other.mutate([sl.put("team", {"id": "gray"})])


def test_a_drop_that_was_planned_before_another_table_referred_to_it_is_planned_again(lake: Lake) -> None:
    """The transaction sees that tables of the branch have changed since; the new plan says who refers to it."""
    teams(lake)
    lake.mutate([sl.delete("member", "c")])
    view = lake.view()
    planned = make_plan(view, {"tables": {"team": {"drop": True}}})
    apply(lake, constrained("reference(team -> team, restrict)"), "member")
    with pytest.raises(Conflict) as moved:
        change_schemas(lake.ledger, SchemaChange(planned, "me", "", view.base.shape))
    assert moved.value.detail["kind"] == "schema_moved" and "team" in lake.view().tables
    with pytest.raises(BadRequest, match="member refers to it"):
        drop(lake, "team")


@pytest.mark.both_ledgers
def test_a_log_table_is_dropped_on_main_for_all_branches(lake: Lake) -> None:
    """It has one history; the past has it."""
    make_table(lake)
    lake.append("messages", messages(1, 4))
    lake.branch("x")
    before = lake.log()[0].commit_id
    lake.create_table("other", {"id": "string"})
    kept = lake.log()[0].commit_id
    with pytest.raises(BadRequest, match="on main"):
        drop(lake, "messages", branch="x")
    with Lake(lake.root) as knowing:
        knowing.append("messages", messages(4, 5))
        drop(lake, "messages")
        with pytest.raises(NotFound):
            knowing.append("messages", messages(5, 6))
    for branch in ("main", "x"):
        assert "messages" not in lake.view(branch).tables
    assert lake.view(at=kept).sql("select count(*) from messages").rows() == [(3,)]
    assert lake.view(at=before).sql("select count(*) from messages").rows() == [(0,)]


def test_the_table_of_purges_is_not_dropped(lake: Lake) -> None:
    """Sinks are told there what was purged."""
    ensure_tombstones(lake.context, "tester")
    with pytest.raises(BadRequest, match="purged"):
        drop(lake, "strand_purges")


@pytest.mark.both_ledgers
def test_f66_a_row_that_was_judged_before_its_table_was_dropped_does_not_come_in(lake: Lake) -> None:
    """Nor does one of another table that is judged anew."""
    two_people(lake)
    before = lake.log()[0].commit_id
    failpoints.arm("mutate.before_store=sleep(4000)@1")
    with Lake(lake.root) as other, ThreadPoolExecutor(1) as pool:
        late = pool.submit(other.mutate, [sl.put("person", {"id": "c"})])
        while failpoints.passages("mutate.before_store") == 0:
            assert not late.done(), late.result()
            time.sleep(0.01)
        drop(lake)
        with pytest.raises(NotFound):
            late.result(60)
    assert [one.kind for one in lake.log()][:2] == ["schema", "mutate"]
    assert lake.view(at=before).sql(ALL).rows() == BOTH


def test_a_table_is_not_dropped_while_rows_are_loaded_into_it(lake: Lake) -> None:
    """Its rows would come in afterwards."""
    make_table(lake)
    head = lake.view().branch_table("messages").head
    from strandline.ledger.rows import reservations

    with lake.ledger.write() as txn:
        reservations.reserve(txn, "load", head.branch_id, head.table_id, 5)
    with pytest.raises(Busy, match="loaded"):
        drop(lake, "messages")
    with lake.ledger.write() as txn:
        reservations.release(txn, "load")
    drop(lake, "messages")


@pytest.mark.both_ledgers
@pytest.mark.parametrize("name", ["schema.before_commit", "schema.after_commit"])
def test_a_drop_that_dies_is_done_or_not_at_all(lake: Lake, name: str) -> None:
    two_people(lake)
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        drop(lake)
    with reopened(lake) as again:
        assert is_gone(again) == (name == "schema.after_commit")
        again.schema_apply({"tables": {"person": {"drop": True}}})
        assert is_gone(again) and [one.kind for one in again.log()].count("schema") == 1


@pytest.mark.parametrize("name", slices.turn(["schema.before_commit", "schema.after_commit"], 1))
def test_a_command_that_is_killed_while_it_drops_leaves_a_true_story(lake: Lake, tmp_path: Path, name: str) -> None:
    """From the outside; it has to be confirmed, and run again it does what is left."""
    two_people(lake)
    file = tmp_path / "wanted.json"
    file.write_text(json.dumps({"tables": {"person": {"drop": True}}}))
    refused = strand(lake, "schema", "apply", str(file))
    assert refused.code == 4 and "--yes" in refused.err
    killed = {"STRAND_FAILPOINTS": f"{name}=exit"}
    assert real_strand(lake, "schema", "apply", str(file), "--yes", **killed).returncode == 137
    made = name == "schema.after_commit"
    assert [one["kind"] for one in strand_json(lake, "log")].count("schema") == made
    assert (strand_json(lake, "schema", "apply", str(file), "--yes")["commit"] is None) == made
    assert strand(lake, "sql", "select * from person").code == 3
    assert strand_json(lake, "recover") == [] and strand_json(lake, "doctor")["ok"]


# -- merges ----------------------------------------------------------------------------------------------------------


@pytest.mark.both_ledgers
@pytest.mark.parametrize("ahead", [True, False])
def test_a_merge_drops_what_the_source_dropped(lake: Lake, ahead: bool) -> None:
    """Where the target has left it alone; with a commit of its own there, or without. Merging again is up to date."""
    two_people(lake)
    make_people(lake, "other")
    lake.branch("x")
    before = lake.log()[0].commit_id
    lake.mutate([sl.put("person", {"id": "c", "age": 3})], branch="x")
    late = lake.log("x")[0].commit_id
    drop(lake, branch="x")
    if not ahead:
        lake.mutate([sl.put("other", {"id": "o"})])
    preview = lake.merge("x", dry_run=True)
    done = lake.merge("x")
    assert done.outcome == preview.outcome == ("fast_forward" if ahead else "merged")
    assert is_gone(lake) and is_gone(lake, "x")
    lake.mutate([sl.put("other", {"id": "p"})])
    assert lake.merge("x").outcome == "up_to_date"
    assert lake.view(at=before).sql(ALL).rows() == BOTH
    assert lake.view(at=late).sql(ALL).rows() == [*BOTH, ("c", 3)]
    for at in (done.commit, lake.log()[0].commit_id):
        assert "person" not in lake.view(at=at).tables
    assert examine(lake) == []


def test_a_table_that_the_source_made_and_dropped_does_not_come(lake: Lake) -> None:
    """The target never had it: nothing of it is there afterwards, and its name is free."""
    make_people(lake, "other")
    lake.branch("x")
    make_people(lake, branch="x")
    lake.mutate([sl.put("person", {"id": "a", "age": 30}), sl.put("other", {"id": "o"})], branch="x")
    drop(lake, branch="x")
    lake.mutate([sl.put("other", {"id": "p"})])
    assert dict(lake.merge("x").tables) == {"other": 1}
    assert is_gone(lake) and rows(lake, "select id from other order by id") == [("o",), ("p",)]
    assert branch_tables(lake, "main") == ["other"]


def test_a_branch_at_a_past_commit_leaves_dropped_tables_alone(lake: Lake) -> None:
    """It gets the tables that there were then, and reads and writes nothing for others."""
    two_people(lake)
    make_people(lake, "other")
    gone = drop(lake)
    lake.mutate([sl.put("other", {"id": "o"})])
    lake.branch("early", from_=gone)
    assert branch_tables(lake, "early") == ["other"]


@pytest.mark.parametrize("dropper", ["source", "target"])
@pytest.mark.parametrize("change", ["rows", "schema"])
@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_a_table_that_one_dropped_and_the_other_changed_is_a_conflict(
    lake: Lake, dropper: str, change: str, side: str
) -> None:
    """Which one side decides: then it is gone, or there with the other's changes; and the past agrees."""
    two_people(lake)
    lake.branch("x")
    drops, changes = ("x", "main") if dropper == "source" else ("main", "x")
    drop(lake, branch=drops)
    if change == "rows":
        lake.mutate([sl.patch("person", "b", {"age": 5})], branch=changes)
    else:
        apply(lake, column("city", {"type": "string", "default": "Rome"}), branch=changes)
    with pytest.raises(MergeConflict):
        lake.merge("x")
    (one,) = lake.merge("x", dry_run=True).conflicts
    assert (one.kind, one.table, dict(one.key)) == ("divergent_schema", "person", {})
    assert (one.theirs is None, one.ours is None) == (dropper == "source", dropper == "target")
    assert lake.merge("x", resolve=side).outcome == "merged"
    kept = (side == "ours") == (dropper == "source")
    point = lake.log()[0].commit_id
    make_people(lake, "later")
    for view in (lake.view(), lake.view(at=point)):
        assert ("person" in view.tables) == kept
        if kept and change == "rows":
            assert view.sql(ALL).rows() == [("a", 30), ("b", 5)]
        elif kept:
            assert view.sql("select city from person").rows() == [("Rome",), ("Rome",)]
    assert lake.merge("x").outcome == "up_to_date"
    if kept:
        lake.mutate([sl.put("person", {"id": "d", **({"city": "Bonn"} if change == "schema" else {})})])
        assert ("d", None) in rows(lake, ALL)
    assert lake.merge("main", into="x").outcome == "merged"
    assert is_gone(lake, "x") != kept


def test_a_resolution_file_decides_on_a_dropped_table(lake: Lake) -> None:
    """By its row in the file, or by the table."""
    two_people(lake)
    lake.branch("x")
    drop(lake)
    lake.mutate([sl.patch("person", "b", {"age": 5})], branch="x")
    from strandline.model.history.merge import resolution_file

    for where in ("take", "conflicts"):
        document = resolution_file(lake.merge("x", dry_run=True))
        if where == "take":
            document["take"]["person"] = "theirs"
        else:
            document["conflicts"][0]["take"] = "theirs"
        assert lake.merge("x", resolve=document, dry_run=True).outcome == "merged"
    document["take"]["other"] = "ours"
    with pytest.raises(BadRequest, match="not in conflict"):
        lake.merge("x", resolve=document)


def test_what_both_dropped_or_only_the_target_is_nothing_to_merge(lake: Lake) -> None:
    two_people(lake)
    make_people(lake, "other")
    lake.branch("x")
    lake.branch("y")
    drop(lake)
    drop(lake, branch="x")
    lake.mutate([sl.put("other", {"id": "o"})], branch="y")
    assert lake.merge("x").outcome == lake.merge("y").outcome == "merged"
    assert is_gone(lake) and rows(lake, "select id from other") == [("o",)]
    make_people(lake, "short", branch="x")
    drop(lake, "short", branch="x")
    assert lake.merge("x").outcome == "merged"
    assert "short" not in lake.view().tables


def test_what_one_dropped_and_the_other_came_to_refer_to_is_a_conflict(lake: Lake) -> None:
    """Whichever side dropped it, nothing may refer to what is not there; the target's tables can be kept."""
    teams(lake)
    lake.mutate([sl.delete("member", "c")])
    lake.branch("x")
    drop(lake, "team", branch="x")
    apply(lake, constrained("reference(team -> team, restrict)"), "member")
    for source, into in (("x", "main"), ("main", "x")):
        (one,) = lake.merge(source, into, dry_run=True).conflicts
        assert (one.kind, one.table, one.fields) == ("divergent_schema", "member", ("team",))
        assert lake.merge(source, into, dry_run=True, resolve="theirs").outcome == "conflicts"
    lake.branch("y", from_="x")
    lake.merge("main", into="y", resolve="ours")
    assert lake.view("y").tables == ["member"] and lake.schema("y")["tables"]["member"]["constraints"] == []
    lake.merge("x", resolve="ours")
    assert lake.view().tables == ["member", "team"]
    with pytest.raises(Conflict):
        lake.mutate([sl.put("member", {"id": "z", "team": "nowhere"})])


# -- the same name again ---------------------------------------------------------------------------------------------

NEW = {"key": ["id"], "columns": {"id": "string", "age": "string?", "city": "string"}}
EVERY = "select id, age, city from person order by id"


def add_again(lake: Lake, branch: str = "main") -> str:
    """A table of people that was dropped, with other columns."""
    done = lake.schema_apply({"tables": {"person": NEW}}, branch=branch)
    assert done.commit is not None
    return done.commit.commit_id


@pytest.mark.both_ledgers
def test_a_table_that_is_added_again_begins_without_rows(lake: Lake) -> None:
    """Old rows and values don't come back, by whatever look; who looks back at the one before finds that."""
    two_people(lake)
    lake.branch("x")
    before = lake.log()[0].commit_id
    gone = drop(lake)
    made = add_again(lake)
    assert rows(lake, EVERY) == rows(lake, 'select id from "person$log"') == []
    with pytest.raises(NotFound):
        lake.mutate([sl.patch("person", "b", {"city": "Bonn"})])
    lake.mutate([sl.insert("person", {"id": "a", "age": "old", "city": "Rome"})])
    first = lake.log()[0].commit_id
    lake.mutate([sl.delete("person", "a"), sl.put("person", {"id": "c", "city": "Kiel"})])
    assert rows(lake, EVERY) == [("c", None, "Kiel")]
    assert lake.view(at=first).sql(EVERY).rows() == [("a", "old", "Rome")]
    assert lake.view(at=made).sql(EVERY).rows() == [] and lake.view(at=gone).tables == []
    assert lake.view(at=before).sql(ALL).rows() == rows(lake, ALL, "x") == BOTH
    assert [(one.kind, one.key["id"]) for one in lake.diff(before, "main")] == [
        ("delete", "a"), ("delete", "b"), ("insert", "c"),
    ]  # fmt: skip
    assert next((one.kind, one.before) for one in lake.changes("person").rows) == ("insert", None)


def test_a_table_that_is_added_again_is_the_same_to_both_engines_and_after_folds(lake: Lake) -> None:
    """Also where rows of the one before are in its state."""
    two_people(lake)
    before = lake.log()[0].commit_id
    lake.flush("person")
    lake.fold("person")
    drop(lake)
    add_again(lake)
    assert on_both(lake, EVERY) == []
    lake.mutate([sl.put("person", {"id": "b", "city": "Bonn"}), sl.put("person", {"id": "c", "city": "Kiel"})])
    after = [("b", None, "Bonn"), ("c", None, "Kiel")]
    for step in (lake.flush, lake.fold, lake.compact):
        assert on_both(lake, EVERY) == after
        step("person")
    lake.mutate([sl.delete("person", "b")])
    assert on_both(lake, EVERY) == after[1:]
    with pytest.raises(NotFound):
        lake.mutate([sl.patch("person", "a", {"city": "Rome"})])
    assert lake.view(at=before).sql(ALL).rows() == BOTH and examine(lake) == []


@pytest.mark.parametrize(
    "wanted",
    [
        {"key": ["id"], "columns": {"id": "long"}},
        {"key": ["name"], "columns": {"name": "string"}},
        {"columns": {"id": "string"}},
    ],
)
def test_a_name_stays_with_its_key(lake: Lake, wanted: Any) -> None:
    """One of another key, or none, gets another name; so does a log table, whose keys count as seen."""
    two_people(lake)
    drop(lake)
    (step,) = lake.schema_plan({"tables": {"person": wanted}}).steps
    assert (step.what, step.verdict) == ("add table", "refused") and "same key (id:string)" in step.why
    with pytest.raises(Conflict, match="already"):
        make_people(lake)
    make_table(lake)
    doc = {"tables": {"messages": lake.schema()["tables"]["messages"]}}
    drop(lake, "messages")
    (step,) = lake.schema_plan(doc).steps
    assert step.verdict == "refused" and "log table" in step.why


@pytest.mark.parametrize("case", ["source", "source, target dropped", "target, source dropped"])
def test_a_merge_carries_a_table_that_was_added_again(lake: Lake, case: str) -> None:
    """Where the other side has left the older one alone, or dropped it too."""
    two_people(lake)
    make_people(lake, "other")
    lake.branch("x")
    adds, drops = ("main", "x") if case.startswith("target") else ("x", "main")
    drop(lake, branch=adds)
    add_again(lake, adds)
    lake.mutate([sl.put("person", {"id": "n", "city": "Nice"})], branch=adds)
    if "dropped" in case:
        drop(lake, branch=drops)
    lake.mutate([sl.put("other", {"id": "o"})])
    assert lake.merge("x").outcome == "merged"
    point = lake.log()[0].commit_id
    lake.mutate([sl.put("other", {"id": "p"})])
    assert rows(lake, EVERY) == lake.view(at=point).sql(EVERY).rows() == [("n", None, "Nice")]
    assert lake.merge("x").outcome == "up_to_date"


@pytest.mark.parametrize("adds", ["main", "x"])
def test_rows_of_two_tables_of_one_name_never_mix(lake: Lake, adds: str) -> None:
    """One side added it again, the other changed rows of the one before: the target's stays, or nothing is merged."""
    two_people(lake)
    lake.branch("x")
    drop(lake, branch=adds)
    add_again(lake, adds)
    lake.mutate([sl.put("person", {"id": "n", "city": "Nice"})], branch=adds)
    lake.mutate([sl.put("person", {"id": "m", "age": 1})], branch="x" if adds == "main" else "main")
    for side in (None, "theirs"):
        found = lake.merge("x", dry_run=True, resolve=side)  # type: ignore[arg-type]
        assert [one.kind for one in found.conflicts] == ["divergent_schema"]
    lake.merge("x", resolve="ours")
    assert rows(lake, "select id from person order by id") == ([("n",)] if adds == "main" else [("a",), ("b",), ("m",)])


# -- everything else -------------------------------------------------------------------------------------------------


def test_maintenance_and_backups_go_on_with_what_was_dropped(lake: Lake, tmp_path: Path) -> None:
    """Flush, fold, compaction, expiry and sweep, here and elsewhere: branches, tags and the past read the same."""
    two_people(lake)
    make_table(lake)
    lake.append("messages", messages(1, 4))
    lake.flush("person")
    lake.fold("person")
    lake.mutate([sl.patch("person", "b", {"age": 2})])
    lake.branch("x")
    lake.tag("v1", "main")
    before = lake.log()[0].commit_id
    drop(lake, "person", "messages")
    after = [("a", 30), ("b", 2)]

    def check(some: Lake) -> None:
        assert some.view().tables == []
        assert rows(some, ALL, "x") == after
        for at in (before, "v1"):
            assert some.view(at=at).sql(ALL).rows() == after
        assert examine(some) == []

    check(lake)
    for branch in ("main", "x"):
        lake.flush(branch=branch)
        check(lake)
        lake.fold("person", branch=branch)
        lake.compact(branch=branch)
        lake.expire(branch=branch, grace_s=0)
        lake.sweep(branch=branch, grace_s=0)
        check(lake)
    lake.branch("early", from_=before)
    assert rows(lake, ALL, "early") == after
    backup(lake, tmp_path / "backup", with_data=True)
    lake.close()
    shutil.rmtree(lake.root)
    restored(tmp_path / "backup", lake.root)
    with Lake(lake.root) as again:
        check(again)
        again.mutate([sl.put("person", {"id": "c"})], branch="x")
        assert rows(again, ALL, "x") == [*after, ("c", None)]


def test_a_sink_still_gets_the_rows_that_were_there_before_the_drop(lake: Lake, tmp_path: Path) -> None:
    """They were acked: those that are not delivered yet are, once; then there is nothing more."""
    two_people(lake)
    lake.add_sink("s", "blob", {"uri": f"file://{tmp_path}/s", "tables": ["person"]}, check=False)
    drop(lake)
    lake.tick("s")
    assert lake.tick("s") == []
    files = sorted((tmp_path / "s").rglob("*.parquet"))
    found = [row["id"] for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(found) == ["a", "b"]
