"""Looking back: the same answer for a commit, a tag or a time, whatever happened since."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest, Conflict, HistoryGone, NotFound
from strandline.lake import Lake
from strandline.ledger.rows import batches
from strandline.model.times import text_of
from strandline.operations.change import branch_at
from strandline.operations.maintain import sweep
from tests.kit import crash, in_ledger, make_table, messages, reopened, strand, strand_json
from tests.versions.kit import make_people


def at(lake: Lake, point: str, columns: str = "id, age", branch: str = "main") -> list[tuple[Any, ...]]:
    """The rows of people as they were, by key."""
    found: list[tuple[Any, ...]] = lake.view(branch, at=point).sql(f"select {columns} from person order by 1").rows()
    return found


def written(lake: Lake) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Some commits, each with the rows that there were after it."""
    make_people(lake)
    done = [
        ([sl.put("person", {"id": "a", "age": 1})], [("a", 1)]),
        ([sl.put("person", {"id": "b", "age": 1}), sl.patch("person", "a", {"age": 2})], [("a", 2), ("b", 1)]),
        ([sl.delete("person", "a")], [("b", 1)]),
        ([sl.insert("person", {"id": "a", "age": 3})], [("a", 3), ("b", 1)]),
    ]
    return [(lake.mutate(statements).commit_id, rows) for statements, rows in done]


def test_every_commit_shows_its_rows_through_flush_compaction_expiry_and_sweep(lake: Lake) -> None:
    commits = written(lake)

    def check() -> None:
        assert [at(lake, commit) for commit, _ in commits] == [rows for _, rows in commits]

    check()
    lake.flush("person")
    check()
    commits.append((lake.mutate([sl.put("person", {"id": "c", "age": 9})]).commit_id, [("a", 3), ("b", 1), ("c", 9)]))
    lake.flush("person")
    lake.compact("person")
    check()
    lake.expire("person")
    batches.sweep(lake.ledger, grace_s=0)
    check()
    with reopened(lake) as again:
        assert at(again, commits[1][0]) == commits[1][1]
        frame = again.view(at=commits[1][0]).spark("person")
        assert sorted((row.id, row.age) for row in frame.collect()) == commits[1][1]


def test_a_branch_shows_its_commits_and_not_those_of_others(lake: Lake) -> None:
    """A commit is found on whatever branch has it; what another branch did earlier by the clock is not there."""
    commits = written(lake)
    lake.branch("x")
    on_x = lake.mutate([sl.put("person", {"id": "x"})], branch="x").commit_id
    on_main = lake.mutate([sl.put("person", {"id": "m"})]).commit_id
    assert at(lake, on_x, "id") == [("a",), ("b",), ("x",)]
    assert at(lake, on_main, "id") == [("a",), ("b",), ("m",)]
    assert at(lake, commits[0][0], branch="x") == commits[0][1]


def test_a_table_is_not_there_before_it_was_made(lake: Lake) -> None:
    commits = written(lake)
    make_people(lake, "pet")
    make_table(lake)
    view = lake.view(at=commits[-1][0])
    assert view.tables == ["person"]
    with pytest.raises(BadRequest, match="pet"):
        view.sql("select * from pet")
    newest = lake.log(limit=1)[0].commit_id
    assert lake.view(at=newest).tables == ["messages", "person", "pet"]


def test_a_log_table_shows_what_had_been_appended_and_loaded_by_then(lake: Lake, tmp_path: Path) -> None:
    """A load's rows came when it was published, though their seqs were taken before."""
    make_table(lake)
    make_people(lake)
    lake.append("messages", messages(0, 3))
    first = lake.mutate([sl.put("person", {"id": "a"})])
    lake.append("messages", messages(3, 5))
    inbox = tmp_path / "more.jsonl"
    inbox.write_text("\n".join(json.dumps(row) for row in messages(5, 9)))
    lake.load("messages", [str(inbox)])
    last = lake.mutate([sl.put("person", {"id": "b"})])

    def count(point: str) -> int:
        return int(lake.view(at=point).sql("select count(*) from messages").rows()[0][0])

    for _ in range(2):
        assert [count(first.commit_id), count(last.commit_id)] == [3, 9]
        assert count(text_of(first.at_us)) == 3
        assert sum(len(batch) for batch in lake.view(at=first.commit_id).rows("messages")) == 3
        assert lake.view(at=first.commit_id).spark("messages").count() == 3
        lake.flush()


def test_a_time_is_the_branch_s_newest_commit_then(lake: Lake) -> None:
    make_people(lake)
    one = lake.mutate([sl.put("person", {"id": "a", "age": 1})])
    two = lake.mutate([sl.put("person", {"id": "a", "age": 2})])
    assert at(lake, text_of(one.at_us)) == [("a", 1 if one.at_us < two.at_us else 2)]
    assert at(lake, text_of(two.at_us)) == [("a", 2)]
    assert at(lake, "2999-01-01") == [("a", 2)]
    with pytest.raises(NotFound, match="had no commit at 1999"):
        lake.view(at="1999-01-01T00:00:00Z")
    with pytest.raises(BadRequest, match="not a time"):
        lake.view(at="2026-13-45")


def test_a_tag_keeps_what_its_commit_needs(lake: Lake) -> None:
    """Also when its branch is deleted, expired and swept, and when the commit was not the newest."""
    written(lake)
    lake.branch("x")
    early = lake.mutate([sl.put("person", {"id": "x", "age": 1})], branch="x").commit_id
    lake.mutate([sl.put("person", {"id": "x", "age": 2})], branch="x")
    lake.tag("early", early)
    lake.tag("late", "x")
    lake.flush("person", branch="x")
    lake.delete_branch("x")  # not refused: a tag has its commits
    lake.mutate([sl.delete("person", "a")])
    lake.flush("person")
    lake.compact("person")
    lake.expire("person")
    lake.sweep()
    batches.sweep(lake.ledger, grace_s=0)
    assert at(lake, "early") == [("a", 3), ("b", 1), ("x", 1)]
    assert at(lake, "late") == [("a", 3), ("b", 1), ("x", 2)]
    assert [(one.name, one.commit == early) for one in lake.tags()] == [("early", True), ("late", False)]
    lake.delete_tag("late")
    lake.delete_tag("early")
    with pytest.raises(HistoryGone, match="on no branch and under no tag"):
        at(lake, early)
    with pytest.raises(NotFound, match="no tag 'late'"):
        lake.delete_tag("late")


def test_a_branch_begins_at_a_past_commit(lake: Lake) -> None:
    """With rows in the ledger, in files, in a state; it takes changes and merges like any other."""
    commits = written(lake)
    make_people(lake, "pet")
    done = {"tail": lambda: None, "flushed": lambda: lake.flush("person"), "folded": lambda: lake.fold("person")}
    for place, (stage, work) in enumerate(done.items()):
        work()
        for number in (1, 3):
            commit, rows = commits[number]
            name = f"{stage}-{number}"
            made = lake.branch(name, commit)
            assert made.tip == commit and lake.log(name, limit=1)[0].commit_id == commit
            view = lake.view(name)
            assert view.tables == ["person"]
            assert view.sql("select id, age from person order by 1").rows() == rows
            lake.mutate([sl.patch("person", rows[0][0], {"age": 70})], branch=name)
            with pytest.raises(NotFound):
                lake.mutate([sl.patch("person", "nobody", {"age": 1})], branch=name)
            assert lake.view(name).sql("select id, age from person order by 1").rows()[0] == (rows[0][0], 70)
        lake.mutate([sl.put("person", {"id": "z", "age": place})])
    lake.flush("person")
    lake.sweep()
    assert at(lake, "main") == [("a", 3), ("b", 1), ("z", 2)]
    assert lake.merge("folded-3", into="main").outcome == "merged"
    assert at(lake, "main") == [("a", 70), ("b", 1), ("z", 2)]


def test_a_branch_begins_at_a_tag(lake: Lake) -> None:
    written(lake)
    lake.tag("v1")
    rows = at(lake, "v1")
    lake.mutate([sl.put("person", {"id": "z"})])
    lake.branch("y", "v1")
    assert lake.view("y").sql("select id, age from person order by 1").rows() == rows
    lake.mutate([sl.delete("person", "a")], branch="y")
    assert lake.view("y").sql("select id, age from person order by 1").rows() == [("b", 1)] and at(lake, "v1") == rows
    with pytest.raises(NotFound, match="no commit, tag or branch 'nope'"):
        lake.branch("n", "nope")
    with pytest.raises(Conflict, match="already"):
        lake.branch("y", "v1")


def test_a_branch_at_a_past_commit_that_dies_on_the_way_is_not_there(lake: Lake) -> None:
    """What is left of it is nobody's, and can be made again."""
    commits = written(lake)
    lake.flush("person")
    failpoints.arm("branch.before_commit=raise")
    with crash(lake):
        lake.branch("y", commits[1][0])
    with reopened(lake) as again:
        assert [one.name for one in again.branches()] == ["main"]
        again.branch("y", commits[1][0])
        assert again.view("y").sql("select id, age from person order by 1").rows() == commits[1][1]


def test_a_branch_that_was_swept_while_it_was_made_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process slept for two days. The name is free for the next one; a branch that has its name is not swept."""
    commits = written(lake)

    def sleep_long(*_args: Any) -> None:
        in_ledger(lake, "update branches set created_at_us = created_at_us - 172800000000 where kind = 'making'")
        with lake.ledger.read() as conn:
            old = sweep._old_branches(conn, time.time())
        sweep._let_go(lake.context, old[0], time.time())

    with monkeypatch.context() as patch, pytest.raises(Conflict, match="deleted meanwhile"):
        patch.setattr(branch_at, "_cut", sleep_long)
        lake.branch("y", commits[1][0])
    assert [one.name for one in lake.branches()] == ["main"]
    made = lake.branch("y", commits[1][0])
    sweep._let_go(lake.context, made.branch_id, time.time())
    assert at(lake, "y", branch="y") == commits[1][1]


@pytest.mark.both_ledgers
def test_a_branch_at_a_past_commit_lacks_what_its_holder_takes_over_meanwhile(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge takes a table over whose rows are older than the commit, after that was found and before it is copied."""
    make_people(lake)
    make_people(lake, "pet")
    lake.mutate([sl.put("pet", {"id": "cat"})])
    lake.branch("x")
    lake.mutate([sl.put("pet", {"id": "dog"})], branch="x")
    point = lake.mutate([sl.put("person", {"id": "a", "age": 1})]).commit_id
    lake.mutate([sl.put("person", {"id": "a", "age": 2})])
    found, merged = branch_at.refuse_pruned, []

    def then_merge(*args: Any) -> None:
        found(*args)
        if not merged:
            merged.append(lake.merge("x"))

    monkeypatch.setattr(branch_at, "refuse_pruned", then_merge)
    lake.branch("old", point)
    assert [one.tables for one in merged] == [{"pet": 1}]
    assert at(lake, "old", branch="old") == at(lake, point) == [("a", 1)]
    assert lake.view("old").sql("select id from pet").rows() == [("cat",)]


def test_a_name_is_given_once_and_by_git_s_rules(lake: Lake) -> None:
    written(lake)
    lake.tag("v1")
    with pytest.raises(Conflict, match="already") as conflict:
        lake.tag("v1")
    assert conflict.value.detail["kind"] == "tag_exists"
    with pytest.raises(BadRequest, match="name of a tag"):
        lake.tag("v 1")
    with pytest.raises(NotFound, match="there is no commit, tag or branch 'v2'") as missing:
        lake.view(at="v2")
    assert missing.value.hint == "Known: main, v1."
    with pytest.raises(NotFound, match="no branch"):
        lake.mutate([sl.put("person", {"id": "a"})], branch="tag:v1")


def test_a_protected_branch_changes_by_merges_alone(lake: Lake) -> None:
    written(lake)
    lake.branch("x")
    lake.protect_branch("x")
    rows = at(lake, "x")
    for change in (
        lambda: lake.mutate([sl.put("person", {"id": "z"})], branch="x"),
        lambda: lake.delete_branch("x", force=True),
        lambda: lake.rename_branch("x", "y"),
        lambda: make_people(lake, "pet", branch="x"),
    ):
        with pytest.raises(Conflict, match="protected") as refused:
            change()
        assert refused.value.detail["kind"] == "branch_protected"
    assert at(lake, "x") == rows and [one.protected for one in lake.branches()] == [False, True]
    lake.protect_branch("x", protected=False)
    lake.mutate([sl.put("person", {"id": "z"})], branch="x")


def test_the_commands_look_back(lake: Lake) -> None:
    commits = written(lake)
    assert strand_json(lake, "tag", "v1", commits[1][0]) == {"tag": "v1", "commit": commits[1][0]}
    assert strand_json(lake, "sql", "select id, age from person order by 1", "--at", "v1")["rows"] == [
        {"id": "a", "age": 2},
        {"id": "b", "age": 1},
    ]
    exported = strand(lake, "export", "--tables", "person", "--at", commits[0][0][:12])
    assert [json.loads(line)["age"] for line in exported.out.splitlines()] == [1]
    assert [one["tag"] for one in strand_json(lake, "tag")] == ["v1"]
    assert strand_json(lake, "branch", "protect", "main") == {"branch": "main", "protected": True}
    assert strand_json(lake, "branch", "list")[0]["protected"] is True
    assert strand(lake, "tag", "v1", "--delete").out == "Deleted tag v1.\n"
    missing = strand(lake, "sql", "select 1", "--at", "nonsense")
    assert missing.code == 3 and "there is no commit, tag or branch 'nonsense'" in missing.err
