"""Branches: made without copying, apart from each other, and gone without a trace in the others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest, Conflict, HistoryGone, NotFound
from strandline.lake import Lake
from strandline.ledger.history import branches
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Intent
from strandline.ledger.rows import batches
from strandline.operations.core import publish
from tests.kit import crash, in_ledger, make_table, message, reopened, strand, strand_json
from tests.versions.kit import make_people


def on(lake: Lake, branch: str, columns: str = "id, age", table: str = "person") -> list[tuple[Any, ...]]:
    """The current rows of a branch, by key."""
    found: list[tuple[Any, ...]] = lake.view(branch).sql(f"select {columns} from {table} order by 1").rows()
    return found


def forked(lake: Lake) -> None:
    """Two rows on main, one of them flushed; then a branch, and a change on each side."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 1})])
    lake.flush("person")
    lake.mutate([sl.put("person", {"id": "b", "age": 1})])
    lake.branch("x")
    lake.mutate([sl.patch("person", "a", {"age": 2}), sl.put("person", {"id": "main"})])
    lake.mutate([sl.patch("person", "b", {"age": 3}), sl.delete("person", "a")], branch="x")


def test_each_side_sees_its_own_changes_alone(lake: Lake) -> None:
    """Before and after flushes, compactions, expiries and sweeps of either; a branch of a branch too."""
    forked(lake)
    lake.branch("x/y", "x")
    lake.mutate([sl.insert("person", {"id": "a", "age": 9}), sl.patch("person", "b", {"age": 4})], branch="x/y")
    expected = {
        "main": [("a", 2), ("b", 1), ("main", None)],
        "x": [("b", 3)],
        "x/y": [("a", 9), ("b", 4)],
    }

    def check() -> None:
        assert {name: on(lake, name) for name in expected} == expected

    check()
    for branch in ("x", "main", "x/y"):
        lake.flush("person", branch=branch)
        check()
        batches.sweep(lake.ledger, grace_s=0)
        check()
        lake.compact("person", branch=branch)
        lake.expire("person", branch=branch, grace_s=0)
        lake.sweep("person", branch=branch, grace_s=0)
        check()
    lake.mutate([sl.patch("person", "b", {"age": 5})], branch="x/y")
    expected["x/y"] = [("a", 9), ("b", 5)]
    check()


@pytest.mark.both_ledgers
def test_a_branch_costs_a_few_rows_of_the_ledger(lake: Lake) -> None:
    """No payload and no file is written, however many versions there are."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": f"p{n}"}) for n in range(100)])
    lake.flush("person")
    lake.mutate([sl.put("person", {"id": "tail"})])
    names = ("batches", "touches", "commits", "tail", "files", "heads")
    before = {name: in_ledger(lake, f"select count(*) from {name}")[0][0] for name in names}
    lake.branch("x")
    after = {name: in_ledger(lake, f"select count(*) from {name}")[0][0] for name in names}
    assert {name: after[name] - before[name] for name in names} == {
        "batches": 0, "touches": 0, "commits": 0, "tail": 1, "files": 1, "heads": 2,
    }  # fmt: skip
    assert len(on(lake, "x")) == 101


@pytest.mark.both_ledgers
def test_commits_go_to_their_branch(lake: Lake) -> None:
    """Each has the tip of its branch as its parent, and an expectation is about that branch."""
    forked(lake)
    main, side = lake.log(), lake.log("x")
    assert main[0].parents == side[0].parents == (main[1].commit_id,)
    assert [commit.commit_id for commit in main[1:]] == [commit.commit_id for commit in side[1:]]
    with pytest.raises(Conflict) as moved:
        lake.mutate([sl.put("person", {"id": "z"})], branch="x", expect=sl.head(main[0].commit_id))
    assert moved.value.detail["actual"] == side[0].commit_id
    lake.mutate([sl.put("person", {"id": "z"})], branch="x", expect=sl.head(side[0].commit_id))


def test_log_tables_are_the_same_on_every_branch(lake: Lake) -> None:
    """Rows that are appended after a branch was made are on it too."""
    make_table(lake)
    make_people(lake)
    lake.branch("x")
    lake.append("messages", [message(1)])
    assert on(lake, "x", "part_id", "messages") == [("p1",)]
    lake.flush(branch="x")
    assert on(lake, "x", "part_id", "messages") == [("p1",)] == on(lake, "main", "part_id", "messages")
    make_people(lake, "later")
    assert "later" not in lake.view("x").tables
    with pytest.raises(NotFound, match="has no table"):
        lake.mutate([sl.put("later", {"id": "a"})], branch="x")


@pytest.mark.both_ledgers
def test_a_branch_with_commits_of_its_own_is_not_deleted_by_mistake(lake: Lake) -> None:
    """One without is; with force, the other too. The name is free then, and the new one begins where it was made."""
    forked(lake)
    lake.branch("same")
    lake.delete_branch("same")
    with pytest.raises(Conflict) as refused:
        lake.delete_branch("x")
    assert refused.value.detail["kind"] == "branch_unmerged"
    old = lake.view("x")
    lake.branch("child", "x")
    lake.delete_branch("x", force=True)
    assert [branch.name for branch in lake.branches()] == ["child", "main"]
    assert on(lake, "child") == [("b", 3)], "what comes from it stays"
    with pytest.raises(NotFound, match="x"):
        lake.view("x")
    assert old.sql("select id from person").rows() == [("b",)], "a view goes on"
    lake.branch("x")
    assert on(lake, "x") == on(lake, "main")
    lake.mutate([sl.patch("person", "b", {"age": 7})], branch="x")
    assert (on(lake, "x")[1], on(lake, "main")[1], on(lake, "child")) == (("b", 7), ("b", 1), [("b", 3)])
    lake.mutate([sl.patch("person", "b", {"age": 8})], branch="child")
    lake.flush(branch="child")
    lake.expire(grace_s=0)
    lake.sweep(grace_s=0)
    assert (on(lake, "x")[1], on(lake, "main")[1], on(lake, "child")) == (("b", 7), ("b", 1), [("b", 8)])


@pytest.mark.parametrize(
    "name", ["", "a b", "a..b", "-x", "/x", "x/", "x//y", ".x", "a/.b", "x.lock", "x~1", "a:b", "@", "x."]
)
def test_names_are_as_git_takes_them(lake: Lake, name: str) -> None:
    """What git would refuse is refused, and nothing is made."""
    with pytest.raises(BadRequest):
        lake.branch(name)
    assert [branch.name for branch in lake.branches()] == ["main"]


def test_bad_requests_change_nothing(lake: Lake) -> None:
    """A branch that is there, one that is not, main itself."""
    lake.branch("x")
    for refused, kind in (
        (lambda: lake.branch("x"), Conflict),
        (lambda: lake.branch("y", "nowhere"), NotFound),
        (lambda: lake.delete_branch("main"), BadRequest),
        (lambda: lake.rename_branch("main", "trunk"), BadRequest),
        (lambda: lake.rename_branch("x", "main"), Conflict),
        (lambda: lake.delete_branch("nowhere"), NotFound),
    ):
        with pytest.raises(kind):
            refused()
    assert [branch.name for branch in lake.branches()] == ["main", "x"]


def test_f35_a_view_of_a_branch_that_is_deleted_and_made_anew_answers_as_before(lake: Lake) -> None:
    """Or says that what it names is gone; never with rows of the other branch of that name."""
    forked(lake)
    lake.flush("person", branch="x")
    lake.mutate([sl.put("person", {"id": "tail"})], branch="x")
    old = lake.view("x")
    before = old.sql("select id, age from person order by id").rows()
    assert before == [("b", 3), ("tail", None)]
    lake.delete_branch("x", force=True)
    assert old.sql("select id, age from person order by id").rows() == before
    lake.branch("x")
    lake.mutate([sl.put("person", {"id": "other"})], branch="x")
    lake.flush("person", branch="x")
    assert old.sql("select id, age from person order by id").rows() == before
    assert [row.as_py() for row in pa.Table.from_batches(old.read("person")).column("id")][-1] == "tail"
    lake.sweep(grace_s=0)
    lake.expire("person", grace_s=0)
    batches.sweep(lake.ledger, grace_s=0)
    with pytest.raises(HistoryGone):
        old.sql("select id, age from person order by id").rows()
    assert on(lake, "x", "id") == [("a",), ("b",), ("main",), ("other",)]


def test_a_branch_from_before_the_first_flush_has_its_own_rows(lake: Lake) -> None:
    """Main's log began after it: the branch's begins empty, and not with what main has."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 1})])
    lake.branch("x")
    lake.mutate([sl.put("person", {"id": "main"})])
    lake.flush("person")
    lake.mutate([sl.patch("person", "a", {"age": 2})], branch="x")
    for _ in range(2):
        lake.flush("person", branch="x")
        assert (on(lake, "x"), on(lake, "main", "id")) == ([("a", 2)], [("a",), ("main",)])
        rows = lake.view("x").spark("person$log").select("id", "age").collect()
        assert sorted(tuple(row) for row in rows) == [("a", 1), ("a", 2)]
        lake.compact("person", branch="x")
        lake.expire("person", branch="x", grace_s=0)
        lake.sweep("person", branch="x", grace_s=0)
    assert [file.rows for file in lake.view("x").files("person")] == [2]


def test_a_snapshot_that_two_branches_had_is_kept_for_the_grace_of_both(lake: Lake) -> None:
    """Main left it long ago, the branch just now: a view of the branch reads on, held or not, and expiry ends."""
    forked(lake)
    lake.flush("person")
    time.sleep(1.1)
    lake.mutate([sl.put("person", {"id": "later"})])
    view = lake.view("x")
    with view.held():
        lake.delete_branch("x", force=True)
        lake.expire("person", grace_s=0)
        assert len(view.files("person")) == 1
    lake.expire("person", grace_s=1.0)
    assert view.sql("select id from person").rows() == [("b",)]
    time.sleep(1.1)
    lake.sweep("person", grace_s=0)
    lake.expire("person", grace_s=1.0)
    with pytest.raises(HistoryGone):
        view.sql("select id from person").rows()
    others = "select branch_id from branches where name <> 'main'"
    assert in_ledger(lake, f"select count(*) from files where branch_id in ({others})") == [(0,)]


def test_a_cached_table_is_looked_up_again_when_its_branch_was_made_anew(lake: Lake) -> None:
    """Also where the new one lacks the table, and where the statements can be read only once."""
    lake.branch("before")
    make_people(lake)
    lake.branch("x")
    lake.mutate([sl.put("person", {"id": "a"})], branch="x")
    lake.delete_branch("x", force=True)
    lake.branch("x")
    lake.mutate((sl.put("person", {"id": name}) for name in "bc"), branch="x")  # type: ignore[arg-type]
    assert on(lake, "x", "id") == [("b",), ("c",)]
    lake.delete_branch("x", force=True)
    lake.branch("x", "before")
    with pytest.raises(NotFound, match="has no table"):
        lake.mutate([sl.put("person", {"id": "a"})], branch="x")
    assert lake.compact(branch="x") == [] == lake.expire(branch="x")


def test_what_a_deleted_branch_had_goes_and_the_others_keep_theirs(lake: Lake) -> None:
    """Its refs, its snapshots, and the files that nobody else reads."""
    forked(lake)
    lake.flush("person", branch="x")
    lake.flush("person")
    (ref,) = [one for one in lake.iceberg().refs("lake.person") if one.startswith("b_")]
    files = {file.path for file in lake.view("x").files("person")} - {file.path for file in lake.view().files("person")}
    assert ref and files
    lake.delete_branch("x", force=True)
    lake.sweep("person", grace_s=0)
    lake.expire("person", grace_s=0)
    assert list(lake.iceberg().refs("lake.person")) == ["main"]
    assert {path for path in files if Path(path.removeprefix("file:")).exists()} == set()
    assert on(lake, "main") == [("a", 2), ("b", 1), ("main", None)]
    lake.branch("y")
    assert on(lake, "y") == on(lake, "main")


def test_a_flush_of_a_branch_that_was_deleted_meanwhile_publishes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds its branch gone when it is about to publish: the rows of the others are as they were."""
    forked(lake)
    original = publish.apply

    def deleted_first(txn: Txn, intent: Intent) -> None:
        if intent.kind == "flush":
            branches._delete(txn, "x", force=True, actor="ann")
        original(txn, intent)

    monkeypatch.setattr(publish, "apply", deleted_first)
    with pytest.raises(Conflict, match="deleted"):
        lake.flush("person", branch="x")
    monkeypatch.undo()
    lake.delete_branch("x", force=True)
    lake.branch("x")
    assert on(lake, "x") == on(lake, "main") == [("a", 2), ("b", 1), ("main", None)]


@pytest.mark.parametrize("name", ["branch.before_commit", "branch.after_commit"])
def test_a_branch_is_made_and_deleted_whole_or_not_at_all(lake: Lake, name: str) -> None:
    """A crash leaves a branch that works, or none."""
    forked(lake)
    done = name == "branch.after_commit"
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.branch("y", "x")
    with reopened(lake) as again:
        assert ("y" in [branch.name for branch in again.branches()]) == done
        if not done:
            again.branch("y", "x")
        assert on(again, "y") == [("b", 3)]
        failpoints.arm(f"{name}=raise")
        with crash(again):
            again.delete_branch("y")
    with reopened(lake) as last:
        assert ("y" in [branch.name for branch in last.branches()]) != done
        assert (on(last, "x"), on(last, "main")[0]) == ([("b", 3)], ("a", 2))


def test_the_command_line_makes_and_shows_branches(lake: Lake) -> None:
    """Create, list, rename, delete; SQL and the log of a branch; exit codes."""
    forked(lake)
    assert strand_json(lake, "branch", "create", "y", "--from", "x")["from"] == "x"
    assert [one["branch"] for one in strand_json(lake, "branch", "list")] == ["main", "x", "y"]
    assert strand_json(lake, "sql", "select id, age from person", "--branch", "y")["rows"] == [{"id": "b", "age": 3}]
    assert strand_json(lake, "log", "--branch", "y")[0]["branch"] == "x"
    strand_json(lake, "branch", "rename", "y", "z")
    strand_json(lake, "branch", "delete", "z")
    assert strand(lake, "branch", "delete", "x").code == 4
    assert strand(lake, "branch", "create", "a b").code == 3
    assert strand(lake, "sql", "select 1 from person", "--branch", "zz").code == 3
