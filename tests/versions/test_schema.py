"""Schema changes: rows that were there are read under the new schema, wherever they are; nothing else changes."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest, Conflict, InvalidRows
from strandline.lake import Lake
from strandline.views.spark_sql import spark_sql
from tests.kit import crash, make_table, messages, reopened, strand, strand_json
from tests.versions.kit import make_people

Document = dict[str, Any]


def edited(lake: Lake, change: Callable[[Document], None], table: str = "person", branch: str = "main") -> Document:
    """A table's schema as it is, changed."""
    doc = {"tables": {table: copy.deepcopy(lake.schema(branch)["tables"][table])}}
    change(doc["tables"][table])
    return doc


def apply(lake: Lake, change: Callable[[Document], None], table: str = "person", branch: str = "main") -> Any:
    """Change a table's schema."""
    return lake.schema_apply(edited(lake, change, table, branch), branch=branch)


def column(name: str, said: Any) -> Callable[[Document], None]:
    """Add a column, or say something else of one."""
    return lambda table: table["columns"].update({name: said})


def renamed(before: str, after: str) -> Callable[[Document], None]:
    """Give a column another name."""

    def change(table: Document) -> None:
        table["columns"][after] = {"type": table["columns"].pop(before), "rename_from": before}

    return change


def without(name: str) -> Callable[[Document], None]:
    """Drop a column."""

    def change(table: Document) -> None:
        del table["columns"][name]

    return change


def rows(lake: Lake, query: str, branch: str = "main") -> list[tuple[Any, ...]]:
    """What DuckDB answers."""
    found: list[tuple[Any, ...]] = lake.view(branch).sql(query).rows()
    return found


def on_both(lake: Lake, query: str, branch: str = "main") -> list[tuple[Any, ...]]:
    """What both engines answer, which is the same."""
    found = rows(lake, query, branch)
    assert spark_sql(lake.view(branch), lake.spark, query)[1] == found
    return found


def told(answer: Any) -> list[tuple[str, str | None, str]]:
    """The steps, with their verdicts."""
    return [(step.what, step.column, step.verdict) for step in answer.steps]


def two_people(lake: Lake) -> None:
    """Ann, who has an age, and Bob, who has none."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "name": "Ann", "age": 30}), sl.put("person", {"id": "b", "name": "Bob"})])


@pytest.mark.both_ledgers
def test_a_column_that_is_added_is_its_default_in_the_rows_that_were_there(lake: Lake) -> None:
    """And what is said of it, null included, in those that come after."""
    two_people(lake)
    done = apply(lake, column("city", {"type": "string?", "default": "Rome"}))
    assert told(done) == [("add column", "city", "safe")]
    lake.mutate([sl.put("person", {"id": "c", "city": None}), sl.patch("person", "a", {"age": 31})])
    assert rows(lake, "select id, city, age from person order by id") == [
        ("a", "Rome", 31),
        ("b", "Rome", None),
        ("c", None, None),
    ]
    assert lake.log()[0].kind == "mutate" and lake.log()[1].commit_id == done.commit.commit_id
    assert (done.commit.kind, dict(done.commit.tables)) == ("schema", {"person": 0})


@pytest.mark.both_ledgers
def test_a_column_that_is_renamed_keeps_its_values(lake: Lake) -> None:
    two_people(lake)
    assert told(apply(lake, renamed("name", "called"))) == [("rename name to", "called", "safe")]
    lake.mutate([sl.patch("person", "a", {"called": "Anna"})])
    assert rows(lake, "select id, called from person order by id") == [("a", "Anna"), ("b", "Bob")]
    with pytest.raises(InvalidRows, match="name"):
        lake.mutate([sl.patch("person", "a", {"name": "x"})])


@pytest.mark.both_ledgers
def test_a_column_that_is_dropped_and_added_again_is_another_one(lake: Lake) -> None:
    """Its old values don't come back, in whatever case its name is."""
    two_people(lake)
    assert told(apply(lake, without("age"))) == [("drop column", "age", "loses data")]
    assert lake.view().table("person").column_names == ["id", "name", "tags", "note"]
    apply(lake, column("Age", "string?"))
    assert rows(lake, 'select id, "Age" from person order by id') == [("a", None), ("b", None)]
    lake.mutate([sl.patch("person", "a", {"Age": "old"})])
    assert rows(lake, 'select id, name, "Age" from person order by id') == [("a", "Ann", "old"), ("b", "Bob", None)]


def test_the_same_document_again_changes_nothing(lake: Lake) -> None:
    two_people(lake)
    doc = edited(lake, renamed("name", "called"))
    assert lake.schema_apply(doc).commit is not None
    assert lake.schema_apply(doc) == lake.schema_apply(lake.schema())
    assert lake.schema_apply(doc).commit is None and lake.log()[0].kind == "schema"


def test_requirements_come_and_go(lake: Lake) -> None:
    """Without a default every row must have a value; the rows that have none are listed."""
    two_people(lake)
    with pytest.raises(Conflict, match="person 'b', field 'age'") as refused:
        apply(lake, column("age", "long"))
    assert [one["key"] for one in refused.value.detail["violations"]] == ["'b'"]
    done = apply(lake, column("age", {"type": "long", "default": 7}))
    assert told(done) == [("make required", "age", "safe")]
    assert rows(lake, "select id, age from person order by id") == [("a", 30), ("b", 7)]
    with pytest.raises(InvalidRows):
        lake.mutate([sl.put("person", {"id": "c", "age": None})])
    assert told(apply(lake, column("age", "long?"))) == [("make nullable", "age", "safe")]
    lake.mutate([sl.put("person", {"id": "c", "age": None})])
    assert told(apply(lake, column("age", {"type": "long", "default": 9}))) == [("make required", "age", "safe")]
    assert rows(lake, "select id, age from person order by id") == [("a", 30), ("b", 7), ("c", 9)]


def test_a_type_grows_and_nothing_else(lake: Lake) -> None:
    """Old values are read in the wider type, and new ones fill it."""
    lake.create_table("t", {"id": "int", "n": "int?", "x": "float?", "d": "decimal(4,2)?"}, key=["id"])
    lake.mutate([sl.put("t", {"id": 1, "n": 5, "x": 0.5, "d": "12.34"})])

    def wider(table: Document) -> None:
        table["columns"].update(n="long?", x="double?", d="decimal(10,2)?")

    assert [step.verdict for step in apply(lake, wider, "t").steps] == ["safe"] * 3
    lake.mutate([sl.put("t", {"id": 2, "n": 2**40, "x": 0.1, "d": "12345678.90"})])
    found = rows(lake, "select n, x, d::varchar from t order by id")
    assert found == [(5, 0.5, "12.34"), (2**40, 0.1, "12345678.90")]
    for name, type_ in (("n", "int?"), ("x", "string?"), ("id", "long"), ("d", "decimal(12,3)?")):
        with pytest.raises(BadRequest, match="widen"):
            apply(lake, column(name, type_), "t")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without("id"), "key"),
        (renamed("id", "key"), "key"),
        (column("id", "string?"), "never null"),
        (column("age", "string?"), "only int to long"),
        (column("tags", "list<long>?"), "only int to long"),
        (lambda table: table.update(key=["name"]), "for good"),
        (column("raw", {"type": "binary?", "default": "x"}), "can't have a default"),
        (column("more", {"type": "long?", "default": "x"}), "long"),
        (column("other", {"type": "long?", "rename_from": "nothing"}), "not there"),
        (column("other", {"type": "long?", "defualt": 1}), "default"),
    ],
)  # fmt: skip
def test_what_can_t_be_done_is_refused_and_changes_nothing(
    lake: Lake, change: Callable[[Document], None], why: str
) -> None:
    two_people(lake)
    before = lake.schema(), lake.log()
    with pytest.raises((BadRequest, InvalidRows)) as refused:
        apply(lake, change)
    assert why in f"{refused.value} {refused.value.hint}"
    assert (lake.schema(), lake.log()) == before


def test_a_branch_has_its_own_schema(lake: Lake) -> None:
    """What one adds, drops and renames, the others don't see; and two may add the same name."""
    two_people(lake)
    lake.branch("x")
    apply(lake, column("city", {"type": "string?", "default": "Rome"}), branch="x")
    apply(lake, column("city", {"type": "long?", "default": 1}))
    lake.branch("y", from_="x")
    apply(lake, without("name"), branch="y")
    lake.mutate([sl.put("person", {"id": "c", "city": "Paris"})], branch="y")
    assert rows(lake, "select id, city from person order by id") == [("a", 1), ("b", 1)]
    assert rows(lake, "select id, name, city from person order by id", "x") == [
        ("a", "Ann", "Rome"),
        ("b", "Bob", "Rome"),
    ]
    assert rows(lake, "select id, city from person order by id", "y") == [("a", "Rome"), ("b", "Rome"), ("c", "Paris")]
    assert lake.view("y").table("person").column_names == ["id", "age", "tags", "note", "city"]


def test_a_log_table_changes_on_main_alone(lake: Lake) -> None:
    """And every branch shows it so."""
    make_table(lake)
    lake.append("messages", messages(1, 3))
    lake.branch("x")
    change = column("size", {"type": "long", "default": 4})
    with pytest.raises(BadRequest, match="on main"):
        apply(lake, change, "messages", "x")
    apply(lake, change, "messages")
    for branch in ("main", "x"):
        assert rows(lake, "select size from messages", branch) == [(4,), (4,)]
    with pytest.raises(InvalidRows):
        lake.append("messages", [row | {"size": None} for row in messages(3, 4)])
    lake.append("messages", [row | {"size": 9} for row in messages(3, 4)])
    lake.append("messages", messages(4, 5))
    assert rows(lake, "select size from messages order by _seq") == [(4,), (4,), (9,), (4,)]


@pytest.mark.both_ledgers
@pytest.mark.parametrize("name", ["schema.before_store", "schema.before_commit", "schema.after_commit"])
def test_a_change_that_dies_is_there_whole_or_not_at_all(lake: Lake, name: str) -> None:
    """Over several tables; and applied again it is what it should be, once."""
    two_people(lake)
    make_people(lake, "other")
    doc = {
        "tables": {**edited(lake, without("age"))["tables"], **edited(lake, column("x", "long?"), "other")["tables"]}
    }
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.schema_apply(doc)
    with reopened(lake) as again:
        kinds = [commit.kind for commit in again.log()]
        done = name == "schema.after_commit"
        assert kinds.count("schema") == done
        assert ("x" in again.schema()["tables"]["other"]["columns"]) == done
        assert ("age" in again.schema()["tables"]["person"]["columns"]) != done
        assert (again.schema_apply(doc).commit is None) == done
        assert [commit.kind for commit in again.log()].count("schema") == 1


@pytest.mark.both_ledgers
def test_f66_a_mutation_that_was_judged_by_an_older_schema_starts_over(lake: Lake) -> None:
    """Whether its row may be stored is decided by the new one."""
    two_people(lake)
    failpoints.arm("mutate.before_store=sleep(4000)@1")
    with Lake(lake.root) as other, ThreadPoolExecutor(1) as pool:
        late = pool.submit(other.mutate, [sl.put("person", {"id": "c"})])
        while failpoints.passages("mutate.before_store") == 0:
            assert not late.done(), late.result()
            time.sleep(0.01)
        apply(lake, column("name", "string"))
        with pytest.raises(InvalidRows):
            late.result(60)
        other.mutate([sl.put("person", {"id": "c", "name": "Cy"})])
    assert rows(lake, "select id, name from person order by id") == [("a", "Ann"), ("b", "Bob"), ("c", "Cy")]


def test_another_process_that_knows_the_older_schema_takes_rows_of_the_newer(lake: Lake) -> None:
    """What it remembers is looked at again before it refuses a row."""
    two_people(lake)
    make_table(lake)
    with reopened(lake) as other:
        other.append("messages", messages(1, 2))
        other.mutate([sl.patch("person", "a", {"age": 1})])
        apply(lake, column("city", "string?"))
        apply(lake, column("size", "long?"), "messages")
        other.mutate([sl.patch("person", "a", {"city": "Rome"})])
        other.append("messages", [row | {"size": 3} for row in messages(2, 3)])
    assert rows(lake, "select city from person where id = 'a'") == [("Rome",)]
    assert rows(lake, "select size from messages order by _seq") == [(None,), (3,)]


def test_a_change_can_expect_a_commit_and_a_protected_branch_takes_none(lake: Lake) -> None:
    two_people(lake)
    doc = edited(lake, column("city", "string?"))
    with pytest.raises(Conflict, match="is at commit"):
        lake.schema_apply(doc, expect=sl.head("nothing"))
    lake.protect_branch("main")
    with pytest.raises(Conflict, match="protected"):
        lake.schema_apply(doc)
    lake.protect_branch("main", protected=False)
    assert lake.schema_apply(doc, expect=sl.head(lake.log()[0].commit_id), message="why").commit.message == "why"


def constrained(*texts: str) -> Callable[[Document], None]:
    """Declare these, and nothing else."""
    return lambda table: table.update(constraints=list(texts))


def teams(lake: Lake) -> None:
    """Ann and Bob are red, Cy names a team that is not there; two have the same age."""
    lake.create_table("team", {"id": "string"}, key=["id"])
    lake.create_table("member", {"id": "string", "team": "string?", "age": "long?", "state": "string?"}, key=["id"])
    lake.mutate([sl.put("team", {"id": "red"}), sl.put("team", {"id": "blue"})])
    rows = [("a", "red", 30, "new"), ("b", "red", 30, "old"), ("c", "gone", None, None)]
    names = ("id", "team", "age", "state")
    lake.mutate([sl.put("member", dict(zip(names, row, strict=True))) for row in rows])


@pytest.mark.parametrize(
    ("constraint", "broken"),
    [
        ("unique(age)", ["'a'", "'b'"]),
        ("one_of(state: new)", ["'b'"]),
        ("range(age: 31..)", ["'a'", "'b'"]),
        ("check(state: /^n/)", ["'b'"]),
        ("reference(team -> team, restrict)", ["'c'"]),
    ],
)
def test_a_constraint_that_rows_break_is_refused_with_these_rows(
    lake: Lake, constraint: str, broken: list[str]
) -> None:
    """And comes when they don't any more."""
    teams(lake)
    before = lake.schema(), lake.log()
    with pytest.raises(Conflict) as refused:
        apply(lake, constrained(constraint), "member")
    assert sorted(one["key"] for one in refused.value.detail["violations"]) == broken
    assert (lake.schema(), lake.log()) == before
    lake.mutate([sl.delete("member", key.strip("'")) for key in broken])
    (step,) = apply(lake, constrained(constraint), "member").steps
    assert (step.what, step.verdict) == (f"add {constraint}", "needs validation")
    assert lake.schema()["tables"]["member"]["constraints"] == [constraint]
    assert told(apply(lake, constrained(), "member")) == [(f"drop {constraint}", None, "safe")]


def test_all_rows_that_forbid_a_change_are_counted_and_the_first_are_listed(lake: Lake) -> None:
    """Of every rule that comes with it, and also where the rows are another table's; a new table is no exception."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": f"p{n:02}", "age": n}) for n in range(50)])

    def refused(change: Callable[[], Any]) -> tuple[int, int]:
        with pytest.raises(Conflict) as caught:
            change()
        assert caught.value.message.endswith(f"(and {caught.value.detail['count'] - 1} more)")
        return caught.value.detail["count"], len(caught.value.detail["violations"])

    assert refused(lambda: apply(lake, constrained("range(age: 50..)"))) == (50, 20)
    assert refused(lambda: apply(lake, constrained("range(age: 45..)", "check(id: /^q/)"))) == (95, 20)
    assert refused(lambda: apply(lake, column("name", "string"))) == (50, 20)
    columns = {"id": "string", "owner": "string"}
    rules = ["reference(owner -> person)", "cardinality(owner: 1..)"]
    pets = {"columns": columns, "key": ["id"], "constraints": rules}
    assert refused(lambda: lake.schema_apply({"tables": {"pet": pets}})) == (50, 20)
    assert refused(lambda: lake.create_table("pet", columns, key=["id"], constraints=rules)) == (50, 20)


def test_how_many_may_refer_is_looked_at_from_both_ends(lake: Lake) -> None:
    """A row with too many, and one with too few: both are named, in the table that they are in."""
    teams(lake)
    lake.mutate([sl.delete("member", "c")])
    reference = "reference(team -> team, restrict)"
    with pytest.raises(Conflict) as refused:
        apply(lake, constrained(reference, "cardinality(team: 1..1)"), "member")
    found = {(one["table"], one["key"]) for one in refused.value.detail["violations"]}
    assert found == {("team", "'red'"), ("team", "'blue'")}
    apply(lake, constrained(reference, "cardinality(team: 0..2)"), "member")
    with pytest.raises(Conflict):
        lake.mutate([sl.put("member", {"id": "d", "team": "red"})])


def test_values_of_a_list_come_and_go(lake: Lake) -> None:
    """More is safe; fewer is looked at; and the default of older rows has to be one of them."""
    teams(lake)
    apply(lake, constrained("one_of(state: new, old)"), "member")
    done = apply(lake, constrained("one_of(state: new, old, odd)"), "member")
    assert told(done) == [("extend to one_of(state: new, old, odd)", "state", "safe")]
    with pytest.raises(Conflict, match="old"):
        apply(lake, constrained("one_of(state: new)"), "member")
    done = apply(lake, constrained("one_of(state: new, old)"), "member")
    assert told(done) == [("narrow to one_of(state: new, old)", "state", "needs validation")]
    with pytest.raises(Conflict, match="none"):
        apply(lake, column("state", {"type": "string", "default": "none"}), "member")
    apply(lake, column("state", {"type": "string", "default": "new"}), "member")
    assert rows(lake, "select state from member order by id") == [("new",), ("old",), ("new",)]


def test_a_rename_takes_its_constraints_along(lake: Lake) -> None:
    """And a column that a constraint is about is not dropped without it."""
    teams(lake)
    apply(lake, constrained("range(age: 0..50)"), "member")

    def change(table: Document) -> None:
        renamed("age", "years")(table)
        del table["constraints"]

    apply(lake, change, "member")
    assert lake.schema()["tables"]["member"]["constraints"] == ["range(years: 0..50)"]
    with pytest.raises(BadRequest, match="no column any more"):
        apply(lake, without("years"), "member")


def test_tables_come_with_what_refers_to_them(lake: Lake) -> None:
    """Several in one commit; on a branch keyed ones, which the others don't see."""
    teams(lake)
    doc: Document = {
        "tables": {
            "city": {"columns": {"id": "string"}, "key": ["id"]},
            "street": {"columns": {"id": "string", "city": "string"}, "key": ["id"],
                       "constraints": ["reference(city -> city, cascade)"]},
        }
    }  # fmt: skip
    lake.branch("x")
    done = lake.schema_apply(doc, branch="x")
    assert [(step.table, step.what, step.verdict) for step in done.steps] == [
        ("city", "add table", "safe"), ("street", "add table", "safe"),
    ]  # fmt: skip
    lake.mutate([sl.put("city", {"id": "Rome"}), sl.put("street", {"id": "s", "city": "Rome"})], branch="x")
    with pytest.raises(Conflict):
        lake.mutate([sl.put("street", {"id": "t", "city": "Bonn"})], branch="x")
    assert "city" not in lake.schema()["tables"] and "city" in lake.schema("x")["tables"]
    with pytest.raises(BadRequest, match="on main"):
        lake.schema_apply({"tables": {"log": {"columns": {"id": "string"}}}}, branch="x")


def test_a_rule_comes_with_the_table_that_it_refers_to(lake: Lake) -> None:
    """The new table has no rows, so none of the others may name one; a null does not."""
    two_people(lake)
    doc = lake.schema()
    doc["tables"]["person"]["constraints"] = ["reference(name -> team, restrict)"]
    doc["tables"]["team"] = {"key": ["id"], "columns": {"id": "string"}}
    with pytest.raises(Conflict, match="names no row of 'team'"):
        lake.schema_apply(doc)
    lake.mutate([sl.patch("person", key, {"name": None}) for key in "ab"])
    lake.schema_apply(doc)
    with pytest.raises(Conflict):
        lake.mutate([sl.patch("person", "a", {"name": "red"})])


def test_the_command_line_shows_plans_and_applies(lake: Lake, tmp_path: Path) -> None:
    """What it shows can be changed and applied; a loss has to be confirmed; a step that is refused is exit 3."""
    two_people(lake)
    doc = strand_json(lake, "schema", "show", "PERSON")
    assert doc == lake.schema()
    file = tmp_path / "wanted.json"
    del doc["tables"]["person"]["columns"]["age"]
    file.write_text(json.dumps(doc))
    planned = strand_json(lake, "schema", "plan", str(file))
    assert [step["verdict"] for step in planned["steps"]] == ["loses data"]
    refused = strand(lake, "schema", "apply", str(file))
    assert refused.code == 4 and "--yes" in refused.err
    done = strand_json(lake, "schema", "apply", str(file), "--yes", "-m", "no ages")
    assert strand_json(lake, "show", done["commit"])["message"] == "no ages"
    assert strand(lake, "schema", "plan", str(file)).out.strip() == "There is nothing to do."
    toml = tmp_path / "wanted.toml"
    toml.write_text('[tables.person]\ncolumns = {id = "long"}\n')
    assert strand(lake, "schema", "apply", str(toml), "--yes").code == 3
    assert "age" not in strand(lake, "schema", "show").out


def test_a_merge_brings_a_required_column_with_its_default(lake: Lake) -> None:
    """Rows that came to the target since have it too."""
    two_people(lake)
    lake.branch("x")
    apply(lake, column("city", {"type": "string", "default": "Rome"}), branch="x")
    lake.mutate([sl.patch("person", "a", {"city": "Paris"})], branch="x")
    lake.mutate([sl.put("person", {"id": "c", "name": "Cy"})])
    lake.merge("x")
    assert rows(lake, "select id, city from person order by id") == [("a", "Paris"), ("b", "Rome"), ("c", "Rome")]
    lake.mutate([sl.patch("person", "c", {"age": 1})])
    assert rows(lake, "select city from person where city is null") == []


@pytest.mark.parametrize("mended", [False, True])
def test_a_merge_of_what_rows_of_the_target_break_is_a_conflict(lake: Lake, mended: bool) -> None:
    """Unless the merge writes these rows too."""
    two_people(lake)
    lake.branch("x")
    lake.mutate([sl.patch("person", "b", {"age": 2})], branch="x")
    apply(lake, column("age", "long"), branch="x")
    lake.mutate([sl.put("person", {"id": "c", "age": 3 if mended else None})])
    if mended:
        assert lake.merge("x").outcome == "merged"
        assert rows(lake, "select id, age from person order by id") == [("a", 30), ("b", 2), ("c", 3)]
        return
    with pytest.raises(Conflict) as refused:
        lake.merge("x")
    (one,) = lake.merge("x", dry_run=True).conflicts
    assert (one.kind, one.table, one.fields, one.ours) == ("value_violation", "person", ("age",), {"rows": ["'c'"]})
    assert refused.value.detail["kind"] == "merge_conflicts"


def test_a_process_meets_rows_of_a_schema_that_came_and_went_elsewhere(lake: Lake) -> None:
    """They come by a merge, while the schema here has never changed: what it remembers is read again."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "name": "Ann"})])
    with Lake(lake.root) as other:
        other.mutate([sl.patch("person", "a", {"age": 1})])
        lake.branch("x")
        apply(lake, column("city", "string?"), branch="x")
        lake.mutate([sl.patch("person", "a", {"city": "Rome", "age": 2})], branch="x")
        apply(lake, without("city"), branch="x")
        lake.merge("x")
        other.mutate([sl.patch("person", "a", {"name": "Anna"})])
    assert rows(lake, "select id, name, age from person") == [("a", "Anna", 2)]
    assert "city" not in lake.schema()["tables"]["person"]["columns"]


def test_a_default_says_nothing_of_a_row_s_age(lake: Lake) -> None:
    """Such a column can't be what retention goes by, and what it goes by stays."""
    make_table(lake)
    apply(lake, column("sent", {"type": "timestamp?", "default": "2026-01-01T00:00:00Z"}), "messages")
    with pytest.raises(BadRequest, match="default"):
        lake.set_table("messages", time_column="sent")
    apply(lake, column("made", "timestamp?"), "messages")
    lake.set_table("messages", time_column="made")
    for change in (without("made"), renamed("made", "at")):
        with pytest.raises(BadRequest, match="how old"):
            apply(lake, change, "messages")
