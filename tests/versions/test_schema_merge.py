"""Schemas in merges: one side's changes come along, and both sides' where they are about different columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import strandline as sl
from strandline.errors import MergeConflict
from strandline.lake import Lake
from strandline.model.reporting import MAX_REPORTED
from tests.versions.test_schema import Document, apply, column, constrained, renamed, rows, two_people, without

Change = Callable[[Document], None]


def both(lake: Lake, ours: Change, theirs: Change) -> None:
    """Two sides that change the schema of people, and a row each."""
    two_people(lake)
    lake.branch("x")
    apply(lake, ours)
    apply(lake, theirs, branch="x")
    lake.mutate([sl.patch("person", "a", {"tags": ["main"]})])
    lake.mutate([sl.put("person", {"id": "c"})], branch="x")


@pytest.mark.both_ledgers
@pytest.mark.parametrize(
    ("ours", "theirs", "columns", "constraints"),
    [
        (column("city", "string?"), column("zip", "long?"), "id name age tags note city zip", []),
        (renamed("name", "called"), column("zip", "long?"), "id called age tags note zip", []),
        (column("zip", "long?"), renamed("name", "called"), "id called age tags note zip", []),
        (without("note"), renamed("name", "called"), "id called age tags", []),
        (renamed("name", "called"), constrained("range(age: 0..90)"), "id called age tags note", ["range(age: 0..90)"]),
        (constrained("check(name: /n|o/)"), constrained("range(age: 0..90)"), "id name age tags note",
         ["check(name: /n|o/)", "range(age: 0..90)"]),
        (column("city", {"type": "string", "default": "Rome"}), without("note"), "id name age tags city", []),
    ],
)  # fmt: skip
def test_changes_of_different_columns_come_together(
    lake: Lake, ours: Change, theirs: Change, columns: str, constraints: list[str]
) -> None:
    """In a version of the merge's own, under which the rows of both are read, now and by who looks back."""
    both(lake, ours, theirs)
    assert lake.merge("x").outcome == "merged"
    merged = lake.log()[0].commit_id
    found = lake.schema()["tables"]["person"]
    assert (list(found["columns"]), found["constraints"]) == (columns.split(), constraints)
    for view in (lake.view(), lake.view(at=merged)):
        assert view.sql("select id, age, tags from person order by id").rows() == [
            ("a", 30, ["main"]), ("b", None, None), ("c", None, None),
        ]  # fmt: skip
        assert view.table("person").column_names == columns.split()
        if "city" in found["columns"] and found["columns"]["city"] == "string":
            assert view.sql("select distinct city from person").rows() == [("Rome",)]
    assert lake.merge("x").outcome == "up_to_date"
    lake.merge("main", into="x")
    assert lake.schema("x") == lake.schema()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (column("city", "string?"), column("City", "long?")),
        (renamed("name", "called"), renamed("name", "title")),
        (without("note"), renamed("note", "said")),
        (constrained("range(age: 0..90)"), renamed("age", "years")),
        (constrained("range(age: 0..90)"), constrained("range(age: 0..80)")),
    ],
)
@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_changes_of_the_same_column_are_a_conflict_that_a_side_decides(
    lake: Lake, ours: Change, theirs: Change, side: str
) -> None:
    """Then its schema is the table's, and the rows of both are there under it."""
    both(lake, ours, theirs)
    with pytest.raises(MergeConflict):
        lake.merge("x")
    (one,) = lake.merge("x", dry_run=True).conflicts
    assert (one.kind, one.table) == ("divergent_schema", "person")
    wanted = lake.schema("main" if side == "ours" else "x")
    assert lake.merge("x", resolve=side).outcome == "merged"  # type: ignore[arg-type]
    merged = lake.log()[0].commit_id
    lake.mutate([sl.patch("person", "b", {"tags": ["b"]})])
    assert lake.schema() == wanted == lake.schema(at=merged)
    assert rows(lake, "select id, tags from person order by id") == [("a", ["main"]), ("b", ["b"]), ("c", None)]


def test_a_fast_forward_brings_a_default_and_the_past_can_be_looked_at(lake: Lake) -> None:
    """Also after commits that came later: the schema is the source's, by its commit."""
    two_people(lake)
    lake.branch("x")
    apply(lake, column("city", {"type": "string", "default": "Rome"}), branch="x")
    lake.mutate([sl.put("person", {"id": "c", "city": "Bonn"})], branch="x")
    assert lake.merge("x").outcome == "fast_forward"
    lake.mutate([sl.put("person", {"id": "d", "city": "Kiel"})])
    found = lake.view(at=lake.log()[0].commit_id).sql("select id, city from person order by id").rows()
    assert found == [("a", "Rome"), ("b", "Rome"), ("c", "Bonn"), ("d", "Kiel")]


def test_a_row_that_breaks_what_a_merge_brings_is_found_behind_many_that_it_mends(lake: Lake) -> None:
    """The rows that the merge writes are judged as it writes them, however many they are; then come the others."""
    two_people(lake)
    many = [f"m{number}" for number in range(MAX_REPORTED + 5)]
    lake.mutate([sl.put("person", {"id": id, "age": 95}) for id in many])
    lake.branch("x")
    lake.mutate([sl.patch("person", id, {"age": 5}) for id in many], branch="x")
    apply(lake, constrained("range(age: 0..90)"), branch="x")
    lake.mutate([sl.patch("person", "a", {"age": 99})])
    lake.mutate([sl.patch("person", id, {"name": id}) for id in many])
    lake.mutate([sl.patch("person", "b", {"age": 99})])
    (conflict,) = lake.merge("x", dry_run=True).conflicts
    assert (conflict.kind, conflict.fields) == ("value_violation", ("age",))
    assert conflict.ours is not None and sorted(conflict.ours["rows"]) == ["'a'", "'b'"]


@pytest.mark.parametrize("said", ["long", {"type": "long", "default": 9}])
def test_rows_of_the_source_meet_what_the_target_has_come_to_require(lake: Lake, said: Any) -> None:
    """They get its default; without one they are a conflict, which names them."""
    two_people(lake)
    lake.branch("x")
    lake.mutate([sl.patch("person", "b", {"age": 1})])
    apply(lake, column("age", said))
    lake.mutate([sl.put("person", {"id": "c"})], branch="x")
    if said == "long":
        (one,) = lake.merge("x", dry_run=True).conflicts
        assert (one.kind, dict(one.key), one.fields) == ("value_violation", {"id": "c"}, ("age",))
        return
    lake.merge("x")
    assert rows(lake, "select id, age from person order by id") == [("a", 30), ("b", 1), ("c", 9)]
