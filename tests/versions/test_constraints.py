"""Constraints of keyed tables: what is declared, what a commit may not break, and what it is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest, Conflict, InvalidRows, NotFound
from strandline.lake import Lake
from strandline.ledger.changes import touches
from strandline.ledger.tables import tables
from strandline.model.history.mutations import Statement
from strandline.model.schema.constraints import parse_constraints
from strandline.model.schema.schema import Schema, parse_mapping
from strandline.operations.change.declare import look_before
from tests.kit import in_ledger, python_process, strand_json
from tests.versions.racing import Work, outcome, racing

pytestmark = pytest.mark.both_ledgers

TEAM = {"id": "string", "name": "string?"}
MEMBER = {
    "id": "string",
    "email": "string?",
    "first": "string?",
    "last": "string?",
    "age": "long?",
    "role": "string?",
    "team": "string?",
}
RULES = [
    "unique(email)",
    "unique(first, last)",
    "range(age: 0..150)",
    "one_of(role: lead, member)",
    "check(email: /@/)",
]


def make_teams(lake: Lake, on_delete: str = "restrict", *more: str) -> None:
    """Teams, and members that refer to them."""
    lake.create_table("team", TEAM, key=["id"])
    lake.create_table(
        "member", MEMBER, key=["id"], constraints=[*RULES, f"reference(team -> team, {on_delete})", *more]
    )


def member(id: str, **fields: Any) -> Statement:
    return sl.put("member", {"id": id, **fields})


def team(*ids: str) -> list[Statement]:
    return [sl.put("team", {"id": id}) for id in ids]


def members(lake: Lake, columns: str = "id, team") -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = lake.view().sql(f"select {columns} from member order by id").rows()
    return found


def refused(lake: Lake, *statements: Statement) -> list[tuple[str, str, str, str]]:
    """What a mutation breaks, each with its table, row, field and rule; nothing was changed by it."""
    before = in_ledger(lake, "select count(*) from commits"), in_ledger(lake, "select count(*) from touches")
    with pytest.raises((Conflict, InvalidRows)) as caught:
        lake.mutate(list(statements))
    assert before == (in_ledger(lake, "select count(*) from commits"), in_ledger(lake, "select count(*) from touches"))
    detail = caught.value.detail
    if isinstance(caught.value, Conflict):
        assert detail["kind"] == "constraint" and detail["count"] >= len(detail["violations"])
    told = [(one["table"], one["key"], one["field"], one["rule"].partition("(")[0]) for one in detail["violations"]]
    return sorted(told)


def test_constraints_are_declared_and_shown(lake: Lake) -> None:
    """In Python and on the command line, where `table show` gives them back as they can be declared again."""
    make_teams(lake)
    columns = ["--columns", "id:string,n:long?,boss:string?", "--key", "id"]
    rules = ["--constraint", "range(n: 1..)", "--constraint", "reference(boss -> clerk)"]
    made = strand_json(lake, "table", "create", "clerk", *columns, *rules)
    assert made["constraints"] == ["range(n: 1..)", "reference(boss -> clerk, restrict)"]
    assert strand_json(lake, "table", "show", "clerk")["constraints"] == made["constraints"]
    listed = {one["table"]: one["constraints"] for one in strand_json(lake, "table", "list")}
    assert (listed["team"], len(listed["member"])) == ([], 6)


@pytest.mark.parametrize(
    "rule",
    [
        "unique(nothing)", "unique(tags)", "unique(d)", "one_of(n: a)", "one_of(tags: a)", "range(n: a..)",
        "range(n: 5..4)", "range(s: 1..2)", "check(n: /a/)", "check(s: /(/)", "check(s: /(?=a)/)", "range(at: 2020..)",
        "reference(n -> team)", "reference(s, n -> team)", "reference(s -> events)", "cardinality(s: 0..1)", "uniq(s)",
    ],
)  # fmt: skip
def test_a_constraint_that_makes_no_sense_is_refused(lake: Lake, rule: str) -> None:
    """Its columns are not there or of another type, its values or its pattern don't fit, or its table is no target."""
    lake.create_table("team", TEAM, key=["id"])
    lake.create_table("events", {"id": "string"})
    columns = {"id": "string", "n": "long?", "s": "string?", "d": "double?", "at": "timestamp?", "tags": "list<string>"}
    with pytest.raises(BadRequest) as caught:
        lake.create_table("t", columns, key=["id"], constraints=[rule])
    assert caught.value.hint
    assert lake.view().tables == ["events", "team"]


def test_constraints_need_a_key_and_a_table_that_is_there(lake: Lake) -> None:
    """A log table has none, and a reference to a table that is not there names the nearest."""
    lake.create_table("team", TEAM, key=["id"])
    with pytest.raises(BadRequest, match="log table"):
        lake.create_table("t", {"id": "string"}, constraints=["unique(id)"])
    with pytest.raises(NotFound) as caught:
        lake.create_table("t", {"id": "string"}, key=["id"], constraints=["reference(id -> teem)"])
    assert "'team'" in caught.value.hint


def test_rules_of_a_row_are_listed_with_row_field_and_rule(lake: Lake) -> None:
    """All of them in one go, with the statement's place; nulls pass; a patch is judged by the whole row."""
    make_teams(lake)
    lake.mutate([member("ok", age=150, role="lead", email="a@b"), member("null")])
    bad = [member("a", age=-1), member("b", age=151, role="boss"), member("c", email="none"), member("d", age=0)]
    with pytest.raises(InvalidRows) as caught:
        lake.mutate(bad)
    told = [(one["index"], one["field"], one["value"]) for one in caught.value.detail["rows"]]
    assert sorted(told) == [(0, "age", "-1"), (1, "age", "151"), (1, "role", "'boss'"), (2, "email", "'none'")]
    assert "range(age: 0..150)" in caught.value.message and caught.value.detail["bad"] == 4
    assert refused(lake, sl.patch("member", "ok", {"role": "chief"})) == [("member", "'ok'", "role", "one_of")]
    assert [key for (key, _) in members(lake)] == ["null", "ok"]


def test_many_violations_are_counted_and_the_first_are_listed(lake: Lake) -> None:
    """Twenty of them, however many there are."""
    make_teams(lake)
    with pytest.raises(InvalidRows) as caught:
        lake.mutate([member(str(n), age=-n) for n in range(1, 101)])
    assert (caught.value.detail["bad"], len(caught.value.detail["violations"])) == (100, 20)


def test_a_unique_value_is_taken_once(lake: Lake) -> None:
    """By rows of one commit and by those before; a null is never the same; composite values are the same as a whole."""
    make_teams(lake)
    lake.mutate([member("a", email="a@x", first="A", last="X"), member("n1", first="A"), member("n2", first="A")])
    assert refused(lake, member("b", email="a@x")) == [("member", "'b'", "email", "unique")]
    assert refused(lake, member("b", email="b@x"), member("c", email="b@x")) == [("member", "'c'", "email", "unique")]
    assert refused(lake, member("b", first="A", last="X")) == [("member", "'b'", "first, last", "unique")]
    assert refused(lake, sl.patch("member", "n1", {"last": "X"})) == [("member", "'n1'", "first, last", "unique")]
    lake.mutate([member("b", first="A", last="Y"), sl.patch("member", "a", {"age": 3, "email": "a@x"})])
    lake.mutate([sl.delete("member", "a"), member("c", email="a@x")])
    assert members(lake, "id, email")[1:2] == [("c", "a@x")]


def test_rows_may_swap_a_unique_value(lake: Lake) -> None:
    """A commit is judged by what is there after it."""
    make_teams(lake)
    lake.mutate([member("a", email="1@x"), member("b", email="2@x")])
    lake.mutate([sl.patch("member", "a", {"email": "2@x"}), sl.patch("member", "b", {"email": "1@x"})])
    assert members(lake, "email") == [("2@x",), ("1@x",)]
    assert len(refused(lake, sl.patch("member", "a", {"email": "1@x"}))) == 1


def test_a_reference_names_a_row_that_is_there(lake: Lake) -> None:
    """Before the commit, or with it; a null names none."""
    make_teams(lake)
    lake.mutate([*team("red"), member("a", team="red"), member("b", team="blue"), *team("blue"), member("c")])
    assert refused(lake, member("d", team="green")) == [("member", "'d'", "team", "reference")]
    assert refused(lake, *team("green"), member("d", team="green"), sl.delete("team", "green")) == [
        ("member", "'d'", "team", "reference")
    ]


def test_a_row_that_is_referred_to_can_not_be_deleted(lake: Lake) -> None:
    """Restrict: unless what refers to it goes, or looks elsewhere, in the same commit."""
    make_teams(lake)
    lake.mutate([*team("red", "blue"), member("a", team="red"), member("b", team="red")])
    assert refused(lake, sl.delete("team", "red")) == [("member", f"'{id}'", "team", "reference") for id in "ab"]
    assert refused(lake, sl.delete("team", "red"), sl.delete("member", "a")) == [("member", "'b'", "team", "reference")]
    lake.mutate([sl.delete("team", "red"), sl.delete("member", "a"), sl.patch("member", "b", {"team": "blue"})])
    assert members(lake) == [("b", "blue")]


def test_deletes_cascade_and_go_on_from_there(lake: Lake) -> None:
    """What refers to a deleted row goes with it, and what refers to that, in the same commit; others stay."""
    make_teams(lake, "cascade")
    lake.create_table(
        "badge", {"id": "string", "of": "string"}, key=["id"], constraints=["reference(of -> member, cascade)"]
    )
    badges = [sl.put("badge", {"id": str(n), "of": of}) for n, of in enumerate("aab")]
    lake.mutate([*team("red", "blue"), member("a", team="red"), member("b", team="blue"), *badges])
    commit = lake.mutate([sl.delete("team", "red")])
    assert commit.tables == {"team": 1, "member": 1, "badge": 2}
    assert members(lake) == [("b", "blue")]
    assert lake.view().sql("select id from badge").rows() == [("2",)]


def test_a_tree_of_rows_is_deleted_from_its_root(lake: Lake) -> None:
    """A table may refer to itself, also in a circle."""
    rule = ["reference(parent -> node, cascade)"]
    lake.create_table("node", {"id": "long", "parent": "long?"}, key=["id"], constraints=rule)
    lake.mutate([sl.put("node", {"id": n, "parent": n // 2 if n > 1 else None}) for n in range(1, 16)])
    lake.mutate([sl.delete("node", 3)])
    assert lake.view().sql("select list(id order by id) from node").rows() == [([1, 2, 4, 5, 8, 9, 10, 11],)]
    lake.mutate([sl.patch("node", 1, {"parent": 11})])
    lake.mutate([sl.delete("node", 1)])
    assert lake.view().table("node").num_rows == 0


def test_as_many_rows_refer_to_one_as_may(lake: Lake) -> None:
    """At most, and at least: also for a new row of the referenced table, and when one goes or looks elsewhere."""
    make_teams(lake, "restrict", "cardinality(team: 1..2)")
    assert refused(lake, *team("red")) == [("team", "'red'", "team", "cardinality")]
    lake.mutate([*team("red", "blue"), member("a", team="red"), member("b", team="red"), member("c", team="blue")])
    assert refused(lake, member("d", team="red")) == [("member", "'d'", "team", "cardinality")]
    assert refused(lake, sl.delete("member", "c")) == [("team", "'blue'", "team", "cardinality")]
    assert refused(lake, sl.patch("member", "c", {"team": "red"})) == [
        ("member", "'c'", "team", "cardinality"),
        ("team", "'blue'", "team", "cardinality"),
    ]
    lake.mutate([sl.patch("member", "a", {"team": "blue"}), sl.patch("member", "c", {"team": "red"})])
    lake.mutate([sl.delete("team", "blue"), sl.delete("member", "a")])
    assert members(lake) == [("b", "red"), ("c", "red")]


def test_rows_that_are_not_there_are_not_referred_to_too_rarely(lake: Lake) -> None:
    """A reference that leads nowhere breaks one rule: what it names has no number of rows that refer to it."""
    make_teams(lake, "restrict", "cardinality(team: 2..2)")
    assert refused(lake, member("a", team="red")) == [("member", "'a'", "team", "reference")]
    several = [member(id, team="red") for id in "abc"]
    assert refused(lake, *several) == [("member", f"'{id}'", "team", "reference") for id in "abc"]


def test_columns_that_refer_to_two_tables_are_counted_for_each(lake: Lake) -> None:
    """By a mutation, by a schema change and for a table that comes to others."""
    rules = ["reference(team -> team)", "reference(team -> club)", "cardinality(team: 1..1)"]
    for table in ("team", "club"):
        lake.create_table(table, TEAM, key=["id"])
        lake.mutate([sl.put(table, {"id": "red"})])
    with pytest.raises(Conflict) as caught:
        lake.create_table("member", MEMBER, key=["id"], constraints=rules)
    assert {one["table"] for one in caught.value.detail["violations"]} == {"team", "club"}
    lake.create_table("member", MEMBER, key=["id"], constraints=rules[:2])
    lake.mutate([member("a", team="red"), member("b", team="red")])
    document = {"tables": {"member": {"columns": MEMBER, "constraints": rules}}}
    with pytest.raises(Conflict) as caught:
        lake.schema_apply(document)
    assert {one["table"] for one in caught.value.detail["violations"]} == {"team", "club"}
    lake.mutate([sl.delete("member", "b")])
    lake.schema_apply(document)
    assert refused(lake, member("b", team="red")) == [("member", "'b'", "team", "cardinality")] * 2


def test_each_row_that_takes_a_value_is_told_once(lake: Lake) -> None:
    """Two rows that take the value of a third are both wrong."""
    make_teams(lake)
    lake.mutate([member("a", email="@1")])
    more = member("b", email="@1"), member("c", email="@1")
    assert refused(lake, *more) == [("member", "'b'", "email", "unique"), ("member", "'c'", "email", "unique")]


@pytest.mark.parametrize("how", ["create", "apply"])
def test_a_table_that_rows_must_be_referred_to_from_comes_before_them(lake: Lake, how: str) -> None:
    """Rows that are there already would fall short of it: they are listed, and the table is not made."""
    rules = ["reference(team -> team)", "cardinality(team: 1..)"]

    def make() -> None:
        if how == "create":
            lake.create_table("member", MEMBER, key=["id"], constraints=rules)
        else:
            lake.schema_apply({"tables": {"member": {"columns": MEMBER, "key": ["id"], "constraints": rules}}})

    lake.create_table("team", TEAM, key=["id"])
    lake.mutate(team("red", "blue"))
    with pytest.raises(Conflict) as caught:
        make()
    told = [(one["table"], one["key"], one["rule"]) for one in caught.value.detail["violations"]]
    assert sorted(told) == [("team", f"'{id}'", "cardinality(team: 1..)") for id in ("blue", "red")]
    assert caught.value.detail["kind"] == "constraint" and lake.view().tables == ["team"]
    lake.mutate([sl.delete("team", "red"), sl.delete("team", "blue")])
    make()
    lake.mutate([*team("red"), member("a", team="red")])


def test_such_a_table_is_not_made_by_rows_that_were_looked_at_before(lake: Lake) -> None:
    """A row that came between the look and the transaction would fall short of it too."""
    rules = ["reference(team -> team)", "cardinality(team: 1..)"]
    schema = Schema(parse_mapping(MEMBER).columns, parse_constraints(rules))
    lake.create_table("team", TEAM, key=["id"])
    seen = look_before(lake.view, "member", schema)
    lake.mutate(team("red"))
    with pytest.raises(Conflict) as caught:
        tables.create_table(lake.ledger, "member", schema, branch="main", actor="x", key=["id"], seen=seen)
    assert caught.value.detail["kind"] == "table_moved" and lake.view().tables == ["team"]


def test_composite_keys_of_every_type_are_referred_to(lake: Lake) -> None:
    """By columns of the same types, in the key's order."""
    key = {"a": "long", "b": "timestamp", "c": "decimal(6,2)", "d": "binary", "e": "date", "f": "boolean"}
    row = {"a": 1, "b": "2026-01-01T00:00:00+01:00", "c": "1.5", "d": "AQI=", "e": "2026-01-01", "f": True}
    lake.create_table("one", key, key=list(key))
    refers = {f"r{name}": f"{kind}?" for name, kind in key.items()}
    rules = [f"reference({', '.join(refers)} -> one, cascade)", f"unique({', '.join(refers)})"]
    lake.create_table("many", {"id": "long", **refers}, key=["id"], constraints=rules)
    lake.mutate([sl.put("one", row), sl.put("many", {"id": 1, **{f"r{name}": value for name, value in row.items()}})])
    wrong = {f"r{name}": value for name, value in row.items()} | {"rc": "1.51"}
    assert [one[3] for one in refused(lake, sl.put("many", {"id": 2, **wrong}))] == ["reference"]
    same = {f"r{name}": value for name, value in row.items()}
    assert [one[3] for one in refused(lake, sl.put("many", {"id": 2, **same}))] == ["unique"]
    lake.mutate([sl.delete("one", row)])
    assert lake.view().table("many").num_rows == 0


def test_branches_keep_their_constraints_apart(lake: Lake) -> None:
    """A value that is taken on one branch is free on another, and each judges by its own rows."""
    make_teams(lake)
    lake.mutate([*team("red"), member("a", email="a@x")])
    lake.branch("b")
    lake.mutate([sl.patch("member", "a", {"email": "b@x"})], branch="b")
    lake.mutate([member("c", email="a@x", team="red")], branch="b")
    lake.mutate([member("c", email="b@x")])
    assert len(refused(lake, member("d", email="a@x"))) == 1
    lake.mutate([sl.delete("team", "red")])
    with pytest.raises(Conflict, match="still refers"):
        lake.mutate([sl.delete("team", "red")], branch="b")


def test_constraints_hold_after_a_flush_and_a_fold(lake: Lake) -> None:
    """Rows are found by value wherever they are."""
    make_teams(lake)
    named = {"first": "A", "last": "X"}
    lake.mutate([*team("red", "blue"), member("a", email="a@x", team="red", **named), member("b", email="b@x")])
    lake.flush()
    lake.mutate([sl.patch("member", "b", {"email": "c@x"})])
    assert refused(lake, member("c", email="a@x")) == [("member", "'c'", "email", "unique")]
    assert refused(lake, sl.delete("team", "red")) == [("member", "'a'", "team", "reference")]
    lake.mutate([member("c", email="b@x"), sl.delete("team", "blue")])
    assert members(lake, "id, email") == [("a", "a@x"), ("b", "c@x"), ("c", "b@x")]
    lake.flush()
    lake.fold("member")
    lake.mutate([member("d", first="A", last="Y"), sl.patch("member", "c", {"email": "d@x"})])
    assert refused(lake, member("e", **named, email="c@x")) == [
        ("member", "'e'", "email", "unique"),
        ("member", "'e'", "first, last", "unique"),
    ]
    assert refused(lake, sl.delete("team", "red")) == [("member", "'a'", "team", "reference")]
    lake.mutate([sl.put("member", {"id": "a"}), sl.delete("team", "red"), member("e", **named, email="b@x")])


# -- several at once ---------------------------------------------------------------------------------------------------


def mutating(statements: Sequence[Statement]) -> Work:
    """A mutation, to be raced."""
    return lambda lake: lake.mutate(list(statements))


TAKE = [member("a", email="same@x")], [member("b", email="same@x")]
EDGE = [member("a", team="red")], [sl.delete("team", "red")]
LAST = [sl.delete("member", "m1")], [sl.patch("member", "m2", {"team": None})]
FULL = [member("a", team="blue")], [member("b", team="blue")]
RACES = {"unique": TAKE, "edge": EDGE, "edge, the other way round": EDGE[::-1], "at least": LAST, "at most": FULL}


@pytest.mark.parametrize("race", RACES)
def test_f34_what_one_judged_by_another_has_changed(lake: Lake, race: str) -> None:
    """An edge to a row that is deleted, a value taken twice, the last two leaving: one wins, the other conflicts."""
    make_teams(lake, "restrict", "cardinality(team: 1..2)" if "at" in race else "cardinality(team: 0..2)")
    seats = ["m1", "m2"] if race == "at least" else ["m1"]
    lake.mutate([*team("blue"), *(member(one, team="blue") for one in seats)])
    if "edge" in race:
        lake.mutate(team("red"))
    assert sorted(racing(lake, *map(mutating, RACES[race]))) == ["constraint", "stored"]
    assert_constraints(lake)


def test_f34_a_cascade_takes_what_came_meanwhile(lake: Lake) -> None:
    """A row that refers to one that is being deleted, stored in between, goes with it: nothing refers to nothing."""
    make_teams(lake, "cascade")
    lake.mutate([*team("red"), member("m1", team="red")])
    assert racing(lake, mutating([sl.delete("team", "red")]), mutating([member("a", team="red")]))[0] == "stored"
    assert members(lake) == []


def test_f34_a_table_that_refers_to_another_from_now_on(lake: Lake) -> None:
    """Who deletes a row and does not know yet that a table refers to it learns that in time."""
    lake.create_table("team", TEAM, key=["id"])
    lake.create_table("warm", {"id": "string"}, key=["id"])
    lake.mutate(team("red"))
    with Lake(lake.root) as other:
        other.mutate([sl.put("warm", {"id": "x"})])
        lake.create_table("member", MEMBER, key=["id"], constraints=["reference(team -> team)"])
        lake.mutate([member("a", team="red")])
        assert outcome(other, mutating([sl.delete("team", "red")])) == "constraint"


def test_f34_a_claim_that_was_swept_is_not_missed(lake: Lake) -> None:
    """Old claims go. Who was judged before one of them starts over, though it can't be seen any more."""
    make_teams(lake)

    def take_and_sweep(other: Lake) -> None:
        other.mutate([member("b", email="same@x")])
        assert touches.sweep_claims(other.ledger, grace_s=0) == 1

    assert sorted(racing(lake, mutating([member("a", email="same@x")]), take_and_sweep)) == ["constraint", "stored"]
    assert in_ledger(lake, "select count(*) from claims")[0][0] == 0
    assert_constraints(lake)
    lake.mutate([*team("red"), member("c", email="c@x", team="red")])
    assert touches.sweep_claims(lake.ledger, grace_s=3600) == 0
    assert touches.sweep_claims(lake.ledger, grace_s=0, limit=1) == 1
    assert touches.sweep_claims(lake.ledger, grace_s=0) == 1


def assert_constraints(lake: Lake) -> None:
    """What must hold in every state: nothing refers to nothing, and nothing is taken twice."""
    view = lake.view()
    assert view.sql("select * from member anti join team on member.team = team.id where team is not null").rows() == []
    assert view.sql("select email from member where email is not null group by 1 having count(*) > 1").rows() == []


SCRAMBLE = """
import random, sys
import strandline as sl

chosen = random.Random(int(sys.argv[2]))
with sl.open(sys.argv[1]) as lake:
    for n in range(25):
        one, group = f"m{chosen.randrange(6)}", f"t{chosen.randrange(3)}"
        try:
            lake.mutate(chosen.choice([
                [sl.put("member", {"id": one, "email": f"{chosen.randrange(4)}@x", "team": group})],
                [sl.put("team", {"id": group})],
                [sl.delete("team", group)],
                [sl.delete("member", one)],
            ]))
        except sl.Conflict as error:
            assert error.detail["kind"] == "constraint", error
    print("done", flush=True)
"""


@pytest.mark.parametrize("on_delete", ["restrict", "cascade"])
def test_f34_constraints_hold_between_processes(lake: Lake, on_delete: str) -> None:
    """Processes that put, delete and move rows at random never leave a reference to nothing or a value twice."""
    make_teams(lake, on_delete)
    running = [python_process(SCRAMBLE, str(lake.root), str(seed)) for seed in range(3)]
    for process in running:
        out, err = process.communicate(timeout=240)
        assert out.strip() == "done", err
    assert_constraints(lake)


def test_f34_constraints_hold_between_threads(lake: Lake) -> None:
    """Threads share transactions; each of them sees what those before it in the same one took."""
    make_teams(lake)
    failpoints.arm("mutate.before_commit=sleep(20)")
    together = threading.Barrier(4)

    def take(n: int) -> str:
        together.wait(30)
        return outcome(lake, mutating([member(f"m{n}", email="same@x")]))

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(take, range(4))) == ["constraint"] * 3 + ["stored"]
    assert len(members(lake)) == 1
