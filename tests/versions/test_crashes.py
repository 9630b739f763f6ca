"""What changes a branch and dies on the way is there whole or not at all: on main, on a branch, on a branch's branch.

What is one transaction of the ledger is killed on both sides of it. Real commands are killed too, and then asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.lake import Lake
from strandline.reports.doctor import examine
from tests import slices
from tests.kit import (
    audits,
    crash,
    environment,
    intents_of,
    kill,
    phases,
    real_strand,
    reopened,
    strand,
    strand_json,
    strand_process,
    wait_until,
)
from tests.versions.test_fold import FOLD_POINTS
from tests.versions.test_schema import column, edited

TABLES = ("person", "pet")
BRANCHES = ("main", "x", "x/y")
STORED = ("mutate.after_commit", "merge.after_commit", "schema.after_commit")
Rows = dict[str, list[tuple[Any, ...]]]


def branched(lake: Lake) -> None:
    """Two tables with a row each, a branch x of main and a branch of that, each with a commit of its own."""
    for table in TABLES:
        lake.create_table(table, {"id": "string", "age": "long?"}, key=["id"])
    change(lake, "main", "a", 1)
    for branch, parent in zip(BRANCHES[1:], BRANCHES, strict=False):
        lake.branch(branch, parent)
        change(lake, branch, branch, 1)


def change(lake: Lake, branch: str, key: str, age: int) -> str:
    """One commit over both tables."""
    return lake.mutate([sl.put(table, {"id": key, "age": age}) for table in TABLES], branch=branch).commit_id


def seen(lake: Lake) -> Rows:
    """The rows of all branches; those of both tables are the same."""
    found: Rows = {}
    for branch in BRANCHES:
        rows = lake.view(branch).sql(" union all ".join(f"select '{one}', id, age from {one}" for one in TABLES)).rows()
        one, other = (sorted(row[1:] for row in rows if row[0] == table) for table in TABLES)
        assert one == other, f"{branch} has half a commit"
        found[branch] = one
    return found


def tips(lake: Lake) -> dict[str, str | None]:
    """Where each branch is."""
    return {one.name: one.tip for one in lake.branches()}


@pytest.mark.parametrize("point", ["merge.before_store", "mutate.before_commit", "mutate.after_commit",
                                   "merge.before_commit", "merge.after_commit"])  # fmt: skip
def test_f33_a_merge_into_any_branch_that_dies_keeps_both_parents_or_leaves_nothing(lake: Lake, point: str) -> None:
    """Into a branch and a branch's branch; merging again is up to date, and the next one takes the right base."""
    branched(lake)
    ahead = point == "merge.before_commit"
    for into in BRANCHES[1:]:
        lake.branch("z", into)
        theirs = change(lake, "z", "z", 1)
        ours = tips(lake)[into] if ahead else change(lake, into, "b", 1)
        before = seen(lake)
        failpoints.arm(f"{point}=raise")
        with crash(lake):
            lake.merge("z", into, actor="ann")
        lake = reopened(lake)
        stored = point in STORED
        after = before | ({into: sorted([*before[into], ("z", 1)])} if stored else {})
        assert seen(lake) == after
        tip = lake.log(into, limit=1)[0]
        assert (
            (tip.parents, tip.kind, tip.actor) == ((ours, theirs), "merge", "ann") if stored else tip.commit_id == ours
        )
        assert (lake.merge("z", into).outcome == "up_to_date") == stored
        change(lake, into, "b", 2)
        change(lake, "z", "z", 3)
        assert lake.merge("z", into).outcome == "merged", "both went on, and only one of them has changed each row"
        assert dict(seen(lake)[into]) == {**dict(before[into]), "b": 2, "z": 3}
        assert (intents_of(lake), audits(lake)) == ([], []), "there was nothing to recover"
        lake.delete_branch("z")
    assert examine(lake, deep=True) == []
    lake.close()


def loading(lake: Lake, branch: str, folder: Path) -> None:
    """One commit over both tables, from a file."""
    source = folder / "rows.jsonl"
    if not source.exists():
        source.write_text("".join(json.dumps({"_table": table, "id": "l", "age": 7}) + "\n" for table in TABLES))
    lake.load("-", [str(source)], branch=branch)


def adding(lake: Lake, branch: str, _: Path) -> None:
    """One commit over both schemas."""
    docs = [edited(lake, column("city", "string?"), table, branch=branch)["tables"] for table in TABLES]
    lake.schema_apply({"tables": docs[0] | docs[1]}, branch=branch)


@pytest.mark.parametrize(
    ("work", "points"),
    [
        (loading, ["mutate.before_store", "mutate.before_commit", "mutate.after_commit"]),
        (adding, ["schema.before_store", "schema.before_commit", "schema.after_commit"]),
    ],
)
def test_f27_a_load_or_a_schema_change_on_any_branch_that_dies_is_in_all_tables_or_in_none(
    lake: Lake, tmp_path: Path, work: Callable[[Lake, str, Path], None], points: list[str]
) -> None:
    """And on no other branch; done again, it is there once."""
    branched(lake)
    for branch in BRANCHES:
        for point in points:
            before, was = seen(lake), tips(lake)
            failpoints.arm(f"{point}=raise")
            with crash(lake):
                work(lake, branch, tmp_path)
            lake = reopened(lake)
            now = tips(lake)
            assert {one for one in now if now[one] != was[one]} == ({branch} if point in STORED else set())
            columns = [lake.schema(branch)["tables"][table]["columns"].keys() for table in TABLES]
            assert columns[0] == columns[1]
            loaded = sorted([*before[branch], ("l", 7)]) if work is loading and point in STORED else before[branch]
            assert seen(lake) == before | {branch: loaded}
        work(lake, branch, tmp_path)
        assert tips(lake) == now, "it was there already"
    assert (intents_of(lake), audits(lake), examine(lake, deep=True)) == ([], [], [])
    lake.close()


MERGES = ["merge.before_store", "mutate.before_commit", "mutate.after_commit", "merge.after_commit"]
SCHEMAS = ["schema.before_store", "schema.before_commit", "schema.after_commit"]
FORWARDS = ["merge.before_store", "merge.before_commit", "merge.after_commit"]


def killed(lake: Lake, point: str, *command: str) -> None:
    """A real command that ends at a failpoint as by kill -9."""
    done = real_strand(lake, *command, STRAND_FAILPOINTS=f"{point}=exit")
    assert done.returncode == 137, done.stdout + done.stderr


def story(lake: Lake, branch: str) -> tuple[list[str], list[str]]:
    """What `log` and `audit` say, once `doctor` finds nothing: the branch's commits, and what recovery did."""
    assert strand_json(lake, "doctor")["ok"]
    commits = [str(one["commit"]) for one in strand_json(lake, "log", "--branch", branch)]
    assert commits == [one.commit_id for one in lake.log(branch)]
    audit = [f"{one['kind']} {one['outcome']}" for one in strand_json(lake, "audit")]
    assert audit == [f"{one['kind']} {one['outcome']}" for one in audits(lake)]
    return commits, audit


@pytest.mark.parametrize(
    ("point", "ahead"),
    [
        *((one, False) for one in slices.turn(MERGES, 2)),
        *((one, True) for one in slices.turn(FORWARDS, 1)),
    ],
)
def test_a_merge_that_is_killed_leaves_a_true_story(lake: Lake, point: str, ahead: bool) -> None:
    """The log has what it brought or has not, there is nothing to recover, and the doctor finds nothing."""
    branched(lake)
    lake.branch("z", "x")
    theirs = change(lake, "z", "z", 1)
    ours = tips(lake)["x"] if ahead else change(lake, "x", "b", 1)
    before = seen(lake)
    killed(lake, point, "merge", "z", "--into", "x")
    commits, audit = story(lake, "x")
    stored = point in STORED
    assert (commits[0] == ours, theirs in commits, audit) == (not stored, stored, [])
    assert dict(seen(lake)["x"]) == {**dict(before["x"]), **({"z": 1} if stored else {})}
    again = strand_json(lake, "merge", "z", "--into", "x")["outcome"]
    assert again == ("up_to_date" if stored else "fast_forward" if ahead else "merged")


@pytest.mark.parametrize("point", slices.turn(SCHEMAS, 1))
def test_a_schema_change_that_is_killed_leaves_a_true_story(lake: Lake, tmp_path: Path, point: str) -> None:
    """On a branch's branch: it is in the log and in all tables, or nowhere, and nothing is to be recovered."""
    branched(lake)
    before, was = seen(lake), tips(lake)
    docs = [edited(lake, column("city", "string?"), table, branch="x/y")["tables"] for table in TABLES]
    wanted = tmp_path / "wanted.json"
    wanted.write_text(json.dumps({"tables": docs[0] | docs[1]}))
    command = ("schema", "apply", str(wanted), "--branch", "x/y")
    killed(lake, point, *command)
    commits, audit = story(lake, "x/y")
    stored = point in STORED
    assert (commits[0] == was["x/y"], audit, seen(lake)) == (not stored, [], before)
    for branch in BRANCHES:
        shown = lake.schema(branch)["tables"]
        assert {"city" in shown[table]["columns"] for table in TABLES} == {stored and branch == "x/y"}
    strand_json(lake, *command)
    assert tips(lake) == {**was, "x/y": lake.log("x/y", limit=1)[0].commit_id} != was
    assert lake.log("x/y", limit=2)[1].commit_id == was["x/y"], "one commit, whoever made it"


@pytest.mark.parametrize("name", slices.turn(FOLD_POINTS, 1))
def test_a_fold_that_dies_anywhere_leaves_a_true_story(lake: Lake, name: str) -> None:
    """Of a branch's branch, as a command: its rows and commits stay, and the next commands say what became of it."""
    branched(lake)
    lake.flush("person", branch="x/y")
    before, was = seen(lake), tips(lake)
    killed(lake, name, "fold", "person", "--branch", "x/y")
    assert (seen(lake), tips(lake)) == (before, was)
    strand_json(lake, "recover")
    outcome = FOLD_POINTS[name]
    assert story(lake, "x/y")[1] == ([f"fold {outcome}"] if outcome else [])
    done = strand_json(lake, "fold", "person", "--branch", "x/y")[0]["operations"]
    assert (len(done) == 1) == (outcome == "rolled_back" or name == "begin.before_commit")
    assert (seen(lake), tips(lake)) == (before, was)


def test_a_fold_that_is_killed_while_it_stands_still_is_finished(lake: Lake) -> None:
    """By kill -9, when all is staged: rows and commits stay, the doctor names it, and recovery ends it."""
    branched(lake)
    lake.flush("person", branch="x/y")
    before, was = seen(lake), tips(lake)
    still = environment(STRAND_FAILPOINTS="staged.after_commit=hang")
    child = strand_process(lake, "fold", "person", "--branch", "x/y", env=still)
    wait_until(lambda: phases(lake) == ["staged"] or child.poll() is not None)
    assert child.poll() is None, "it was to stand still there"
    kill(child)
    doctor = strand(lake, "--json", "doctor").json
    assert [(one["kind"], "staged" in one["what"]) for one in doctor["findings"]] == [("operation_left", True)]
    assert (seen(lake), tips(lake)) == (before, was)
    lake.recover()
    assert story(lake, "x/y")[1] == ["fold rolled_forward"]
    assert lake.view("x/y").branch_table("person").folded_seq == lake.view("x/y").stable_seq("person")
    assert (lake.fold("person", branch="x/y")[0].operations, seen(lake)) == ((), before)
