"""Keyed tables: what a mutation does, all of it or nothing, and what others see of it."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest, Conflict, Damaged, InvalidRows, NotFound, Unsupported
from strandline.lake import Lake
from strandline.ledger.rows import batches
from tests.kit import crash, in_ledger, python_process, reopened, strand_json
from tests.versions.kit import make_people, people, versions

pytestmark = pytest.mark.both_ledgers


def counted(lake: Lake) -> tuple[int, int, int]:
    """How much the ledger holds of versions and commits."""
    counts = [in_ledger(lake, f"select count(*) from {name}")[0][0] for name in ("batches", "touches", "commits")]
    return counts[0], counts[1], counts[2]


def test_put_patch_and_delete_are_one_commit(lake: Lake) -> None:
    """A put replaces the row, a patch changes the named fields, a delete leaves a tombstone; one commit has all."""
    make_people(lake)
    first = lake.mutate(
        [
            sl.put("person", {"id": "a", "name": "Ann", "tags": ["x"], "note": {"k": [1]}}),
            sl.put("person", {"id": "b"}),
        ],
        actor="me",
        message="begin",
    )
    second = lake.mutate(
        [sl.patch("person", "a", {"age": 30}), sl.delete("person", "b"), sl.put("person", {"id": "c", "name": "Cid"})]
    )
    assert people(lake) == [("a", "Ann", 30), ("c", "Cid", None)]
    assert people(lake, "tags, note")[0] == (["x"], '{"k":[1]}')
    assert versions(lake) == [
        ("a", "Ann", None, False),
        ("b", None, None, False),
        ("a", "Ann", 30, False),
        ("b", None, None, True),
        ("c", "Cid", None, False),
    ]
    assert (first.actor, first.message, first.tables, first.kind) == ("me", "begin", {"person": 2}, "mutate")
    assert second.parents == (first.commit_id,) and second.tables == {"person": 3}
    assert versions(lake, "_commit")[2:] == [(second.commit_id,)] * 3
    assert [commit.commit_id for commit in lake.log(limit=2)] == [second.commit_id, first.commit_id]


def test_statements_apply_in_order_and_see_each_other(lake: Lake) -> None:
    """A patch after a put of the same key, delete then put, put then delete, two patches of one field: one version."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "old", "name": "Old", "age": 1})])
    before = len(versions(lake))
    lake.mutate(
        [
            sl.put("person", {"id": "a", "name": "Ann"}),
            sl.patch("person", "a", {"age": 1}),
            sl.patch("person", "a", {"age": 2}),
            sl.delete("person", "old"),
            sl.put("person", {"id": "old", "name": "New"}),
            sl.put("person", {"id": "gone"}),
            sl.delete("person", "gone"),
            sl.insert("person", {"id": "b"}),
        ]
    )
    assert people(lake) == [("a", "Ann", 2), ("b", None, None), ("old", "New", None)]
    assert len(versions(lake)) == before + 3, "a version for each key, and none for what came and went"


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: sl.patch("person", "nobody", {"age": 1}), NotFound, "nobody"),
    (lambda: sl.insert("person", {"id": "a"}), Conflict, "there already"),
    (lambda: sl.put("person", {"name": "no key"}), InvalidRows, "row 1, field 'id'"),
    (lambda: sl.put("person", {"id": "x", "age": "old"}), InvalidRows, "row 1, field 'age'"),
    (lambda: sl.put("person", {"id": "x", "nmae": "?"}), InvalidRows, "nmae"),
    (lambda: sl.patch("person", "a", {"agee": 1}), InvalidRows, "agee"),
    (lambda: sl.patch("person", "a", {"age": "x"}), InvalidRows, "row 1, field 'age'"),
    (lambda: sl.patch("person", "a", {"id": "b"}), BadRequest, "part of the key"),
    (lambda: sl.delete("person", {"name": "a"}), BadRequest, "not a key"),
    (lambda: sl.delete("person", ["a", "b"]), BadRequest, "not a key"),
    (lambda: sl.put("persn", {"id": "x"}), NotFound, "persn"),
    (lambda: sl.put("events", {"id": "x"}), Unsupported, "log table"),
    (lambda: "put", BadRequest, "statement 1"),
]


@pytest.mark.parametrize("place", range(len(BAD)))
def test_f51_a_statement_that_fails_leaves_nothing_behind(lake: Lake, place: int) -> None:
    """Whichever statement it is: nothing changed, and the next mutation works."""
    make_people(lake)
    lake.create_table("events", {"id": "string"})
    lake.mutate([sl.put("person", {"id": "a", "name": "Ann"})])
    before = counted(lake)
    make, kind, said = BAD[place]
    good = [sl.put("person", {"id": f"g{n}"}) for n in range(2)]
    with pytest.raises(kind, match=said):
        lake.mutate([good[0], make(), good[1]])
    assert counted(lake) == before
    assert people(lake) == [("a", "Ann", None)]
    lake.mutate(good)
    assert len(people(lake)) == 3


@pytest.mark.parametrize("name", ["mutate.before_store", "mutate.before_commit", "mutate.after_commit"])
def test_a_mutation_that_dies_is_there_whole_or_not_at_all(lake: Lake, name: str) -> None:
    """Before its commit nothing is there; after it all tables have it, although the caller was never told."""
    make_people(lake)
    make_people(lake, "other")
    first = lake.mutate([sl.put("person", {"id": "a", "age": 1}), sl.put("other", {"id": "a", "age": 1})])
    change = [sl.patch("person", "a", {"age": 2}), sl.delete("other", "a"), sl.put("other", {"id": "b"})]
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.mutate(change)
    with reopened(lake) as again:
        there = name == "mutate.after_commit"
        assert people(again) == [("a", None, 2 if there else 1)]
        assert people(again, "id", table="other") == [("b" if there else "a",)]
        assert (again.log(limit=1)[0].parents == (first.commit_id,)) == there
        again.mutate(change)
        assert (people(again), people(again, "id", table="other")) == ([("a", None, 2)], [("b",)])


def test_a_version_that_cant_be_read_is_never_left_out(lake: Lake) -> None:
    """Without it an older version would look like the row: reads, changes and flushes of that table say so instead."""
    make_people(lake)
    make_people(lake, "other")
    lake.mutate([sl.put("person", {"id": "a", "age": 1}), sl.put("other", {"id": "a"})])
    lake.mutate([sl.patch("person", "a", {"age": 2})])
    in_ledger(
        lake, "update batches set checksum = :torn where first_seq = (select max(first_seq) from batches)", torn=b"x"
    )
    for refused in (
        lambda: people(lake),
        lambda: lake.mutate([sl.patch("person", "a", {"age": 3})]),
        lambda: lake.flush("person"),
    ):
        with pytest.raises(Damaged, match="person"):
            refused()
    assert people(lake, "id", table="other") == [("a",)]
    lake.mutate([sl.patch("other", "a", {"age": 3})])


def test_several_tables_are_one_commit_or_none(lake: Lake) -> None:
    """What fails in one table changes none of them."""
    make_people(lake)
    make_people(lake, "other", partition_by=["id"])
    commit = lake.mutate([sl.put("person", {"id": "a"}), sl.put("other", {"id": "a"}), sl.put("other", {"id": "b"})])
    assert commit.tables == {"person": 1, "other": 2}
    with pytest.raises(NotFound):
        lake.mutate([sl.delete("person", "a"), sl.delete("other", "a"), sl.patch("other", "z", {"age": 1})])
    assert (len(people(lake)), len(people(lake, table="other"))) == (1, 2)


def test_a_mutation_that_changes_nothing_makes_no_commit(lake: Lake) -> None:
    """To delete what is not there is done already."""
    make_people(lake)
    commit = lake.mutate([sl.put("person", {"id": "a"})])
    assert lake.mutate([sl.delete("person", "zz")]) == commit
    assert len(lake.log()) == 2 and len(versions(lake)) == 1


def test_expectations_hold_or_change_nothing(lake: Lake) -> None:
    """On the branch's head, a table's, a row's seq, or that there is no such row; the answer says what is there."""
    make_people(lake)
    first = lake.mutate([sl.put("person", {"id": "a"})])
    ((seq,),) = people(lake, "_seq")
    good = [
        sl.head(first.commit_id),
        sl.table_head("person", seq),
        sl.row("person", "a", seq),
        sl.row("person", "b", None),
    ]
    second = lake.mutate([sl.patch("person", "a", {"age": 1})], expect=good)
    ((now,),) = people(lake, "_seq")
    for expect, kind, actual in (
        (sl.head(first.commit_id), "head_moved", second.commit_id),
        (sl.table_head("person", seq), "table_moved", now),
        (sl.row("person", "a", seq), "row_moved", now),
        (sl.row("person", "a", None), "row_moved", now),
        (sl.row("person", "b", 7), "row_moved", None),
    ):
        for statement in (sl.put("person", {"id": "z"}), sl.delete("person", "nobody")):
            with pytest.raises(Conflict) as refused:
                lake.mutate([statement], expect=expect)
            assert (refused.value.detail["kind"], refused.value.detail["actual"]) == (kind, actual)
    assert people(lake) == [("a", None, 1)]


def test_expectations_that_contradict_each_other_are_refused(lake: Lake) -> None:
    """Neither may be forgotten for the other; and without a statement there is nothing to do."""
    make_people(lake)
    commit = lake.mutate([sl.put("person", {"id": "a"})])
    for expect in ([sl.head("x"), sl.head(commit.commit_id)], [sl.table_head("person", 1), sl.table_head("person", 2)]):
        with pytest.raises(BadRequest, match="two different"):
            lake.mutate([sl.put("person", {"id": "b"})], expect=expect)
    with pytest.raises(BadRequest, match="nothing"):
        lake.mutate([])
    assert len(people(lake)) == 1


def test_of_two_with_the_same_expectation_one_wins(lake: Lake) -> None:
    """Both saw the same row; the second of them is told what is there now."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 0})])
    ((seq,),) = people(lake, "_seq")
    together = threading.Barrier(4)

    def change(n: int) -> object:
        together.wait(30)
        try:
            return lake.mutate([sl.patch("person", "a", {"age": n})], expect=sl.row("person", "a", seq)).commit_id
        except Conflict as error:
            return error.detail["kind"]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(change, range(1, 5)))
    assert sorted(map(str, answers))[-3:] == ["row_moved"] * 3
    assert len(versions(lake)) == 2


INCREMENTS = """
import sys
import strandline as sl

with sl.open(sys.argv[1]) as lake:
    for n in range(int(sys.argv[3])):
        while True:
            ((age, seq),) = lake.view().sql("select age, _seq from person where id = 'a'").rows()
            try:
                lake.mutate([sl.patch("person", "a", {"age": age + 1}), sl.put("person", {"id": f"{sys.argv[2]}-{n}"})],
                            expect=sl.row("person", "a", seq))
                break
            except sl.Conflict:
                continue
    print("done", flush=True)
"""


def test_no_update_is_lost_between_processes(lake: Lake) -> None:
    """Processes that count up one row, each on what it has seen: every step is there, and nothing of a refused one."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 0})])
    steps, processes = 8, 3
    running = [python_process(INCREMENTS, str(lake.root), str(n), str(steps)) for n in range(processes)]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert out.strip() == "done", err
    assert people(lake, "age")[-1] == (steps * processes,)
    assert len(people(lake)) == 1 + steps * processes
    ages = [age for (_, age) in versions(lake, "id, age") if age is not None]
    assert ages == list(range(steps * processes + 1)), "in the order of their seqs"


def test_threads_that_change_disjoint_rows_never_conflict(lake: Lake) -> None:
    """And those that change one row take turns: every one of their changes is there."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "shared", "age": 0, "tags": []})])

    def work(n: int) -> None:
        for k in range(10):
            lake.mutate([sl.put("person", {"id": f"{n}-{k}"}), sl.patch("person", "shared", {"name": f"{n}-{k}"})])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(people(lake)) == 61
    assert len({name for _, name in versions(lake, "id, name") if name}) == 60
    parents = [commit.parents for commit in lake.log(limit=100)]
    assert len({parent for (parent,) in parents[:-1]}) == len(parents) - 1, "one line of commits"


def test_every_type_of_column_survives_a_patch(lake: Lake) -> None:
    """What a patch does not name stays exactly as it was, whatever its type."""
    moment = dt.datetime(2024, 2, 29, 12, 30, 1, 5, dt.UTC)
    row = {
        "k1": 7, "k2": "ä/..", "k3": dt.date(2020, 1, 1), "k4": moment, "k5": b"\x00\xff", "k6": Decimal("1.50"),
        "k7": True,
        "d": 0.1, "f": 1.5, "dec": Decimal("12.345"), "li": [1, None], "st": {"a": 1, "b": None}, "ma": {"x": 1},
        "js": {"deep": [1, "2"]}, "by": b"\x01", "n": 1,
    }  # fmt: skip
    types = {
        "k1": "long", "k2": "string", "k3": "date", "k4": "timestamp", "k5": "binary", "k6": "decimal(4,2)",
        "k7": "boolean",
        "d": "double", "f": "float", "dec": "decimal(20,3)", "li": "list<int?>", "st": "struct<a:long,b:string?>",
        "ma": "map<string,long>", "js": "json?", "by": "binary?", "n": "int",
    }  # fmt: skip
    key = [name for name in types if name.startswith("k")]
    lake.create_table("wide", types, key=key)
    lake.mutate([sl.put("wide", row)])
    before = lake.view().sql("select * exclude (n) from wide").rows()
    given = {name: row[name] for name in key}
    lake.mutate([sl.patch("wide", given, {"n": 2})])
    lake.mutate([sl.patch("wide", [row[name] for name in key], {"n": 3})])
    assert lake.view().sql("select * exclude (n) from wide").rows() == before
    assert lake.view().sql("select n from wide").rows() == [(3,)]
    lake.mutate([sl.delete("wide", tuple(given.values()))])
    assert lake.view().table("wide").num_rows == 0


def test_reads_are_the_same_before_and_after_a_flush_and_its_sweep(lake: Lake) -> None:
    """Also those by key: a batch that was flushed and swept is found in the log."""
    make_people(lake, partition_by=["id"])
    lake.mutate([sl.put("person", {"id": "a", "name": "Ann", "note": {"x": 1}}), sl.put("person", {"id": "b"})])
    lake.mutate([sl.delete("person", "b"), sl.put("person", {"id": "c", "age": 3})])
    before = people(lake), versions(lake, "id, name, age, _removed, _seq, _commit, _actor")
    lake.flush("person")
    assert (people(lake), versions(lake, "id, name, age, _removed, _seq, _commit, _actor")) == before
    assert batches.sweep(lake.ledger, grace_s=0) == 2
    assert (people(lake), versions(lake, "id, name, age, _removed, _seq, _commit, _actor")) == before
    lake.mutate([sl.patch("person", "a", {"age": 1}), sl.insert("person", {"id": "b", "age": 2})])
    assert people(lake) == [("a", "Ann", 1), ("b", None, 2), ("c", None, 3)]
    assert people(lake, "note")[0] == ('{"x":1}',)
    lake.flush("person")
    lake.compact("person")
    assert people(lake) == [("a", "Ann", 1), ("b", None, 2), ("c", None, 3)]


def test_what_is_for_log_tables_alone_is_refused(lake: Lake) -> None:
    """Rows come into a keyed table by mutations, and only there."""
    make_people(lake)
    with pytest.raises(Unsupported, match="keyed"):
        lake.append("person", [{"id": "a"}])
    for wrong in ({"key": ["id"], "row_key": ["id"]}, {"key": ["age"]}, {"key": ["id", "id"]}, {"key": ["tags"]}):
        with pytest.raises(BadRequest):
            lake.create_table("t", {"id": "string", "age": "long?", "tags": "list<string>"}, **wrong)
    with pytest.raises(BadRequest, match="partition"):
        lake.create_table("t", {"id": "string", "kind": "string"}, key=["id"], partition_by=["kind"])


def test_the_command_line_makes_keyed_tables_and_tells_of_commits(lake: Lake) -> None:
    """`table create --key`, `log` in pages, `show` by the beginning of an id."""
    made = strand_json(lake, "table", "create", "person", "--columns", "id:string,age:long?", "--key", "id")
    assert made["key"] == ["id"]
    commits = [lake.mutate([sl.put("person", {"id": str(n)})], message=f"m{n}") for n in range(3)]
    page = strand_json(lake, "log", "--limit", "2")
    assert [one["message"] for one in page] == ["m2", "m1"]
    rest = strand_json(lake, "log", "--before", page[-1]["commit"])
    assert [one["message"] for one in rest] == ["m0", "create table person"]
    shown = strand_json(lake, "show", commits[1].commit_id[:18])
    assert (shown["commit"], shown["parents"], shown["tables"]) == (
        commits[1].commit_id,
        [commits[0].commit_id],
        {"person": 1},
    )
    assert strand_json(lake, "sql", "select id from person order by 1")["rows"] == [{"id": str(n)} for n in range(3)]
    assert strand_json(lake, "sql", 'select count(*) as n from "person$log"')["rows"] == [{"n": 3}]
