"""Diff and the change feed: what differs, and what happened, with the rows before and after."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from strandline.errors import BadRequest, Conflict, NotFound, Unsupported
from strandline.lake import Lake
from strandline.ledger.rows import batches
from strandline.model.history.changes import RowDiff
from strandline.views.diff import changes
from tests.kit import make_table, strand, strand_json
from tests.versions.kit import make_people


def told(rows: Any) -> list[tuple[Any, ...]]:
    """Differences or changes in short: table, kind, key, age before and after."""
    return [
        (one.table, one.kind, one.key["id"], *(image and image["age"] for image in (one.before, one.after)))
        for one in rows
    ]


def two_lines(lake: Lake) -> None:
    """Two tables; main and x changed some of their rows since they were one."""
    make_people(lake)
    make_people(lake, "pet")
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "abcd"])
    lake.branch("x")
    lake.mutate([sl.patch("person", "a", {"age": 2}), sl.put("pet", {"id": "tom"})])
    lake.mutate([sl.delete("person", "b"), sl.patch("person", "c", {"age": 5, "name": "C"})], branch="x")
    lake.mutate([sl.put("person", {"id": "e", "age": 9}), sl.patch("person", "d", {"age": 7})], branch="x")
    lake.mutate([sl.patch("person", "d", {"age": 1})], branch="x")  # nothing, in the end


EXPECTED = [
    ("person", "update", "a", 2, 1),
    ("person", "delete", "b", 1, None),
    ("person", "update", "c", 1, 5),
    ("person", "insert", "e", None, 9),
    ("pet", "delete", "tom", None, None),
]


def test_two_branches_differ_in_what_either_changed(lake: Lake) -> None:
    """The same before and after flush, fold and sweep; and the other way round."""
    two_lines(lake)
    turned = {"insert": "delete", "delete": "insert", "update": "update"}
    for _ in range(2):
        assert told(lake.diff("main", "x")) == EXPECTED
        assert told(lake.diff("x", "main")) == [
            (table, turned[kind], key, now, then) for table, kind, key, then, now in EXPECTED
        ]
        for branch in ("main", "x"):
            lake.flush("person", branch=branch)
            lake.fold("person", branch=branch)
        batches.sweep(lake.ledger, grace_s=0)
    (one,) = (one for one in lake.diff("main", "x", table="person") if one.key == {"id": "c"})
    assert isinstance(one, RowDiff) and one.fields == ("name", "age")
    assert list(lake.diff("main", "main")) == []


def test_a_branch_differs_from_its_own_past_by_its_commits(lake: Lake) -> None:
    two_lines(lake)
    lake.tag("then", "x")
    commit = lake.mutate([sl.put("person", {"id": "z", "age": 1})], branch="x").commit_id
    assert told(lake.diff("then", commit)) == [("person", "insert", "z", None, 1)]
    lake.merge("x")
    assert told(lake.diff("x", "main")) == [("person", "update", "a", 1, 2), ("pet", "insert", "tom", None, None)]


def test_what_a_merge_did_not_have_to_write_differs_too(lake: Lake) -> None:
    """z deletes a row that x never had, and x merges z: nothing is written there, and x still lacks the row."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 1})])
    lake.branch("x")
    lake.mutate([sl.put("person", {"id": "late", "age": 1})])
    lake.branch("z")
    lake.mutate([sl.delete("person", "late")], branch="z")
    lake.mutate([sl.patch("person", "a", {"age": 2})], branch="x")
    lake.merge("z", into="x")
    assert told(lake.diff("main", "x")) == [("person", "update", "a", 1, 2), ("person", "delete", "late", 1, None)]
    lake.merge("x")
    assert told(lake.diff("main", "x")) == []


def test_every_change_comes_once_in_order_with_the_rows_around_it(lake: Lake) -> None:
    """Page by page, through flush, fold and compaction; a branch has the changes it began with and its own."""
    make_people(lake)
    first = lake.mutate([sl.put("person", {"id": "a", "age": 1}), sl.put("person", {"id": "b", "age": 1})], actor="me")
    lake.mutate([sl.patch("person", "a", {"age": 2})])
    lake.flush("person")
    lake.mutate([sl.delete("person", "a")])
    lake.mutate([sl.insert("person", {"id": "a", "age": 3})])
    expected = [
        ("person", "insert", "a", None, 1),
        ("person", "insert", "b", None, 1),
        ("person", "update", "a", 1, 2),
        ("person", "delete", "a", 2, None),
        ("person", "insert", "a", None, 3),
    ]

    def everything(limit: int) -> list[tuple[Any, ...]]:
        found, since = [], 0
        while rows := (page := lake.changes("person", since, limit=limit)).rows:
            found += told(rows)
            since = page.continuation
        assert page.continuation == since
        return found

    assert everything(1000) == everything(2) == everything(1) == expected
    lake.flush("person")
    lake.fold("person")
    lake.compact("person")
    assert everything(2) == expected
    one = lake.changes("person").rows[0]
    assert (one.commit, one.actor) == (first.commit_id, "me") and one.at.endswith("Z")
    lake.branch("x")
    lake.mutate([sl.patch("person", "b", {"age": 4})], branch="x")
    assert told(lake.changes("person", branch="x")) == [*expected, ("person", "update", "b", 1, 4)]
    assert everything(1000) == expected


def test_a_merge_s_rows_are_changes_of_the_target(lake: Lake) -> None:
    """Whoever has read up to the last row of a table gets them, also those that a merge takes over by pointer."""
    two_lines(lake)
    since = lake.changes("person").continuation
    lake.merge("x")
    assert told(lake.changes("person", since)) == [row for row in EXPECTED if row[2] in "bce"]
    lake.branch("y")
    lake.mutate([sl.put("pet", {"id": "rex", "age": 1})], branch="y")
    since = lake.changes("pet").continuation
    lake.mutate([sl.put("person", {"id": "late"})])
    lake.merge("y")
    assert told(lake.changes("pet", since)) == [("pet", "insert", "rex", None, 1)]


def test_a_feed_of_a_branch_that_was_deleted_meanwhile_is_refused(lake: Lake) -> None:
    """Nobody knows any more how far retention had come there: what is missing would look as if it had never been."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 1})])
    lake.branch("x")
    view = lake.view("x")
    assert [one.seq for one in changes(lake.ledger, view, "person", 0, 10)] == [2]
    lake.delete_branch("x")
    with pytest.raises(Conflict, match="deleted"):
        changes(lake.ledger, view, "person", 0, 10)


def test_bad_requests(lake: Lake) -> None:
    two_lines(lake)
    make_table(lake)
    with pytest.raises(NotFound, match="there is no commit, tag or branch 'nope'"):
        list(lake.diff("main", "nope"))
    with pytest.raises(NotFound, match="no table"):
        list(lake.diff("main", "x", table="nope"))
    with pytest.raises(Unsupported, match="log table"):
        lake.changes("messages")
    for since, limit in ((-1, 10), (0, 0)):
        with pytest.raises(BadRequest, match="changes behind"):
            lake.changes("person", since, limit=limit)


def test_the_command_shows_differences_in_pages(lake: Lake) -> None:
    two_lines(lake)
    answer = strand_json(lake, "diff", "main", "x", "--limit", "2")
    assert answer["more"] is True and [row["key"]["id"] for row in answer["rows"]] == ["a", "b"]
    rest = strand_json(lake, "diff", "main", "x", "--skip", "2")
    assert rest["more"] is False and [row["key"]["id"] for row in rest["rows"]] == ["c", "e", "tom"]
    told = strand(lake, "diff", "main", "x", "--table", "person").out
    assert 'name: null → "C", age: 1 → 5' in told
    assert strand(lake, "diff", "x", "x").out == "There is no difference.\n"


def test_the_command_shows_changes_and_where_to_go_on(lake: Lake) -> None:
    """A page at a time, as documents or for people; of a branch, and of another commit than the newest."""
    two_lines(lake)
    first = strand_json(lake, "changes", "person", "--branch", "x", "--limit", "4")
    assert first["more"] is True and [row["kind"] for row in first["rows"]] == ["insert"] * 4
    rest = strand_json(lake, "changes", "person", "--branch", "x", "--since", str(first["continuation"]))
    assert [(row["kind"], row["key"]["id"]) for row in rest["rows"]] == [
        ("delete", "b"),
        ("update", "c"),
        ("insert", "e"),
        ("update", "d"),
        ("update", "d"),
    ]
    assert rest["more"] is False and rest["continuation"] == rest["rows"][-1]["seq"]
    one = rest["rows"][1]
    assert (one["before"]["age"], one["after"]["age"], one["actor"]) == (1, 5, "tester")
    assert one["commit"] in [commit.commit_id for commit in lake.log("x")]
    told = strand(lake, "changes", "person", "--branch", "x", "--limit", "6").out
    assert 'name: null → "C", age: 1 → 5' in told and f"More: --since {one['seq']}" in told
    done = strand(lake, "changes", "person", "--branch", "x", "--since", str(rest["continuation"])).out
    assert done == f"Nothing has changed since seq {rest['continuation']}.\n"
    future = strand(lake, "changes", "person", "--since", "1000000")
    assert future.code == 3 and "this lake has no seq 1000000 yet" in future.err
