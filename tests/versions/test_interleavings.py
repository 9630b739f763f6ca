"""F66: whatever was judged before something else was stored starts over, so that the constraints hold in the end.

Each of mutate, load, merge and schema apply meets each other one, in both orders. What each does breaks a rule together
with what the other does, and keeps it alone. What mutations and loads do to each other is in
`test_constraints.py` and `test_load.py`. (A purge takes rows of log tables, which have no rules.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.lake import Lake
from tests.versions.racing import Work, racing

PLACES = {
    "mutate": "mutate.before_store",
    "load": "mutate.before_store",
    "merge": "merge.before_store",
    "schema": "schema.before_store",
}
PAIRS = [("mutate", "merge"), ("merge", "mutate"), ("load", "merge"), ("merge", "load"), ("merge", "merge")]
RULES = ["reference(team -> team, restrict)", "unique(n)"]
ORPHANS = "select id from member anti join team on member.team = team.id where team is not null"
REPEATED = "select n from member where n is not null group by n having count(*) > 1"


def prepared(lake: Lake, *rules: str) -> None:
    """Teams and members; on branches, changes that a merge will bring."""
    lake.create_table("team", {"id": "string"}, key=["id"])
    lake.create_table("member", {"id": "string", "team": "string?", "n": "long?"}, key=["id"], constraints=rules)
    lake.mutate([sl.put("team", {"id": "red"}), sl.put("member", {"id": "old", "n": 100})])
    for number in range(2):
        lake.branch(f"add{number}")
        lake.mutate([adding(f"b{number}")], branch=f"add{number}")
    lake.branch("remove")
    lake.mutate([sl.delete("team", "red")], branch="remove")
    lake.branch("rules")
    lake.schema_apply(declared(lake), branch="rules")
    lake.mutate([sl.put("team", {"id": "blue"}), sl.put("member", {"id": "newer", "n": 200})])


def adding(key: str) -> Any:
    """A member of the red team with the number 1."""
    return sl.put("member", {"id": key, "team": "red", "n": 1})


def declared(lake: Lake, branch: str = "main") -> dict[str, Any]:
    """The members with all rules."""
    known = lake.schema(branch)["tables"]["member"]
    return {"tables": {"member": {**known, "constraints": [*RULES, "range(n: 5..)"]}}}


def load(rows: list[dict[str, Any]], folder: Path, mode: str) -> Work:
    """A load of these rows."""
    source = folder / f"{rows[0]['id'] if rows else 'none'}.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = "member" if rows else "team"
    return lambda lake: lake.load(table, [str(source)], mode=mode)


def add(how: str, number: int, folder: Path) -> Work:
    """A member comes."""
    key = f"{how[0]}{number}"
    works: dict[str, Work] = {
        "mutate": lambda lake: lake.mutate([adding(key)]),
        "load": load([{"id": key, "team": "red", "n": 1}], folder, "append"),
        "merge": lambda lake: lake.merge(f"add{number}"),
    }
    return works[how]


def remove(how: str, folder: Path) -> Work:
    """The red team goes."""
    works: dict[str, Work] = {
        "mutate": lambda lake: lake.mutate([sl.delete("team", "red")]),
        "load": load([], folder, "overwrite"),
        "merge": lambda lake: lake.merge("remove"),
    }
    return works[how]


def restrain(how: str) -> Work:
    """Numbers from 5 on are allowed, and no others."""
    works: dict[str, Work] = {
        "schema": lambda lake: lake.schema_apply(declared(lake)),
        "merge": lambda lake: lake.merge("rules"),
    }
    return works[how]


def check(lake: Lake) -> None:
    """No row breaks what is declared now."""
    view = lake.view()
    assert view.sql(REPEATED).rows() == []
    assert view.sql(ORPHANS).rows() == []
    if any("range" in one for one in lake.schema()["tables"]["member"].get("constraints", [])):
        assert view.sql("select id from member where n < 5").rows() == []


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_f66_a_unique_value_is_taken_once(lake: Lake, tmp_path: Path, first: str, second: str) -> None:
    """Two that take the same value: one has it, the other is told who has."""
    prepared(lake, *RULES)
    ends = racing(lake, add(first, 0, tmp_path), add(second, 1, tmp_path), PLACES[first])
    check(lake)
    assert ends.count("stored") == 1, ends
    assert lake.view().sql("select count(*) from member").rows() == [(3,)]


@pytest.mark.parametrize("adds_first", [True, False])
@pytest.mark.parametrize(("adds", "removes"), PAIRS)
def test_f66_a_row_that_is_referred_to_is_there(
    lake: Lake, tmp_path: Path, adds: str, removes: str, adds_first: bool
) -> None:
    """One refers to a row that the other deletes: the row stays, or nobody refers to it."""
    prepared(lake, *RULES)
    works = [(add(adds, 0, tmp_path), PLACES[adds]), (remove(removes, tmp_path), PLACES[removes])]
    (first, place), (second, _) = works if adds_first else works[::-1]
    ends = racing(lake, first, second, place)
    check(lake)
    assert ends.count("stored") == 1, ends


@pytest.mark.parametrize("adds_first", [True, False])
@pytest.mark.parametrize(
    ("adds", "restrains"), [("mutate", "schema"), ("load", "schema"), ("merge", "schema"), ("mutate", "merge")]
)
def test_f66_a_rule_holds_of_what_came_while_it_was_made(
    lake: Lake, tmp_path: Path, adds: str, restrains: str, adds_first: bool
) -> None:
    """A rule comes by a change of the schema or a merge, while rows come that it forbids: one of the two does not."""
    prepared(lake)
    works = [(add(adds, 0, tmp_path), PLACES[adds]), (restrain(restrains), PLACES[restrains])]
    (first, place), (second, _) = works if adds_first else works[::-1]
    ends = racing(lake, first, second, place)
    check(lake)
    assert ends.count("stored") == 1, ends


WRITES: dict[str, Any] = {
    "mutate": lambda lake, folder: lake.mutate(WRITTEN),
    "load": lambda lake, folder: load([{"id": "old", "n": 7}, {"id": "m"}], folder, "merge")(lake),
    "merge": lambda lake, folder: lake.merge("written"),
}
WRITTEN = [sl.patch("member", "old", {"n": 7}), sl.put("member", {"id": "m"})]


@pytest.mark.parametrize("writes_first", [True, False])
@pytest.mark.parametrize("how", WRITES)
def test_f78_a_row_has_the_default_whether_it_was_stored_before_the_column_or_behind(
    lake: Lake, tmp_path: Path, how: str, writes_first: bool
) -> None:
    """A merge brings a column with a default while rows are written that lack it: all of them have the default."""
    lake.create_table("member", {"id": "string", "n": "long?"}, key=["id"])
    lake.mutate([sl.put("member", {"id": key, "n": 0}) for key in ("old", "given", "left")])
    for branch in ("x", "written"):
        lake.branch(branch)
    lake.mutate(WRITTEN, branch="written")
    known = lake.schema("x")["tables"]["member"]
    city = {"type": "string?", "default": "Rome"}
    lake.schema_apply({"tables": {"member": {**known, "columns": {**known["columns"], "city": city}}}}, branch="x")
    lake.mutate([sl.patch("member", "given", {"city": None})], branch="x")
    lake.mutate([sl.put("member", {"id": "newer"})])  # so that neither branch is taken over whole
    write: Work = lambda lake: WRITES[how](lake, tmp_path)  # noqa: E731
    bring: Work = lambda lake: lake.merge("x")  # noqa: E731
    works = [(write, PLACES[how]), (bring, PLACES["merge"])]
    (first, place), (second, _) = works if writes_first else works[::-1]
    assert racing(lake, first, second, place) == ["stored", "stored"]
    cities = {row[0]: row[1:] for row in lake.view().sql("select id, n, city from member").rows()}
    # Which came first the race decides, and it makes no difference: a row that lacks the value has the default.
    assert cities == {
        "old": (7, "Rome"),
        "given": (0, None),
        "left": (0, "Rome"),
        "newer": (None, "Rome"),
        "m": (None, "Rome"),
    }
    lake.merge("main", "x")
    ours, theirs = (lake.view(branch).table("member").sort_by("id").to_pylist() for branch in ("main", "x"))
    assert ours == theirs
