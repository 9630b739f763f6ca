"""Loads of keyed tables: one commit, of one table or of many, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest, Conflict, InvalidRows, NotFound, StrandError, Unsupported
from strandline.lake import Lake
from strandline.ledger.changes import mutations
from strandline.operations.change import planning
from tests.kit import crash, python_process, reopened, strand_json
from tests.versions.kit import make_people, people, versions
from tests.versions.racing import racing


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether all loads are as if they were too large for the ledger alone."""
    if request.param == "large":
        monkeypatch.setattr("strandline.operations.load.load_request.SMALL_BYTES", -1)
    return str(request.param)


def written(folder: Path, rows: Sequence[Any], name: str = "rows.jsonl") -> str:
    """A file of JSON lines; a text is a line as it is."""
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def person(id: str, **fields: Any) -> dict[str, Any]:
    return {"id": id, **fields}


def test_append_inserts_and_lists_what_is_there(lake: Lake, tmp_path: Path, size: str) -> None:
    """New rows are one commit; keys that are there, or twice in the input, are listed and nothing is loaded."""
    make_people(lake)
    done = lake.load("person", [written(tmp_path, [person("a", age=1), "", person("b", tags=["x"], note={"k": 1})])])
    assert people(lake) == [("a", None, 1), ("b", None, None)]
    commit = lake.log(limit=1)[0]
    assert (done.rows, done.commit, commit.kind, commit.tables) == (2, commit.commit_id, "load", {"person": 2})
    assert [seq for (seq,) in versions(lake, "_seq")] == [done.first_seq, done.last_seq]
    more = written(tmp_path, [person("c"), "", person("a"), person("d"), person("b"), person("d")], "more.jsonl")
    with pytest.raises(Conflict) as caught:
        lake.load("person", [more])
    assert (caught.value.detail["kind"], caught.value.detail["count"]) == ("key_exists", 3)
    assert [(one["index"], one["row"]) for one in caught.value.detail["rows"]] == [
        (2, "person 'a'"),
        (4, "person 'b'"),
        (5, "person 'd'"),
    ]
    assert all(one["file"].endswith("more.jsonl") for one in caught.value.detail["rows"])
    assert len(people(lake)) == 2 and lake.log(limit=1)[0] == commit


@pytest.mark.both_ledgers
def test_merge_puts_and_the_last_line_of_a_key_wins(lake: Lake, tmp_path: Path, size: str) -> None:
    """Rows that are there are replaced, others are added; without a key it runs again."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "name": "Ann", "age": 1}), sl.put("person", {"id": "b"})])
    file = written(tmp_path, [person("a", age=2), person("c", age=1), person("c", age=2)])
    done = lake.load("person", [file], mode="merge")
    assert (done.rows, done.duplicates_dropped, done.deleted) == (2, 1, 0)
    assert people(lake) == [("a", None, 2), ("b", None, None), ("c", None, 2)]
    lake.mutate([sl.delete("person", "c")])
    assert not lake.load("person", [file], mode="merge").already_loaded
    assert len(people(lake)) == 3


def test_overwrite_leaves_exactly_the_input(lake: Lake, tmp_path: Path, size: str) -> None:
    """Other rows are deleted in the same commit, before and after a flush; an empty file empties the table."""
    make_people(lake)
    make_people(lake, "other")
    lake.mutate([sl.put("person", {"id": one}) for one in "abc"] + [sl.put("other", {"id": "a"})])
    done = lake.load("person", [written(tmp_path, [person("a", age=1), person("z")])], mode="overwrite")
    assert (done.rows, done.deleted) == (2, 2)
    assert people(lake) == [("a", None, 1), ("z", None, None)] and len(people(lake, table="other")) == 1
    lake.flush("person")
    lake.mutate([sl.put("person", {"id": "q"})])
    lake.load("person", [written(tmp_path, [person("a", age=2)])], mode="overwrite")
    assert people(lake) == [("a", None, 2)]
    empty = lake.load("person", [written(tmp_path, [])], mode="overwrite")
    assert (people(lake), empty.rows, empty.deleted) == ([], 0, 1)
    assert lake.load("person", [written(tmp_path, [])], mode="overwrite").commit is None


def test_every_format_is_read(lake: Lake, tmp_path: Path, size: str) -> None:
    """CSV and Parquet beside JSON lines, in one load."""
    make_people(lake)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,name,age\na,Ann,1\nb,,2\n")
    pq.write_table(pa.table({"id": ["c"], "age": [3]}), tmp_path / "in" / "b.parquet")
    written(tmp_path / "in", [person("d", age=4)], "c.jsonl")
    assert lake.load("person", [str(tmp_path / "in")]).rows == 4
    assert people(lake) == [("a", "Ann", 1), ("b", None, 2), ("c", None, 3), ("d", None, 4)]


def test_lines_that_name_their_tables_load_many_at_once(lake: Lake, tmp_path: Path, size: str) -> None:
    """One commit over all of them; what an export writes is read back."""
    make_people(lake)
    make_people(lake, "other")
    named = [
        {"_table": "person", "id": "a"},
        {"id": "b", "_table": "Other", "age": 2**40},
        {"_table": "other", "id": "c"},
    ]
    done = lake.load("-", [written(tmp_path, named)])
    assert (done.rows, done.tables) == (3, {"other": 2, "person": 1})
    assert lake.log(limit=1)[0].tables == {"person": 1, "other": 2}
    assert people(lake, table="other") == [("b", None, 2**40), ("c", None, None)]
    lake.mutate([sl.put("person", {"id": "x"}), sl.delete("other", "b")])
    again = strand_json(lake, "load", "-", written(tmp_path, named), "--mode", "overwrite")
    assert (again["deleted"], again["tables"]) == (1, {"other": 2, "person": 1})
    assert (people(lake, "id"), people(lake, "id", table="other")) == ([("a",)], [("b",), ("c",)])
    alone = lake.load("person", [written(tmp_path, named, "n.jsonl")], mode="merge")
    assert (alone.rows, alone.skipped) == (1, 2)


BAD: list[tuple[list[Any], type[StrandError], str]] = [
    ([{"_table": "person", "id": "a"}, {"id": "b"}], InvalidRows, "line 2, field '_table'"),
    ([{"_table": "persn", "id": "a"}], NotFound, "persn"),
    ([{"_table": "events", "id": "a"}], Unsupported, "log table"),
    ([{"_table": "person", "id": "a"}, "", "{"], InvalidRows, "line 3"),
    (
        ["", {"_table": "person", "id": "a"}, {"_table": "person", "id": "b", "age": "x"}],
        InvalidRows,
        "line 3, field 'age'",
    ),
]


@pytest.mark.parametrize("place", range(len(BAD)))
def test_what_is_wrong_is_told_by_file_and_line(lake: Lake, tmp_path: Path, size: str, place: int) -> None:
    """Lines count from 0 as in other loads, blank ones too; nothing is loaded."""
    make_people(lake)
    lake.create_table("events", {"id": "string"})
    lines, kind, said = BAD[place]
    with pytest.raises(kind, match=said) as caught:
        lake.load("-", [written(tmp_path, lines)])
    if kind is InvalidRows:
        assert caught.value.detail["rows"][0]["file"].endswith("rows.jsonl")
    assert people(lake) == []


def test_a_load_keeps_the_constraints_of_its_tables(lake: Lake, tmp_path: Path, size: str) -> None:
    """Judged as a whole, with every violation by file and line."""
    lake.create_table("team", {"id": "string"}, key=["id"])
    rules = ["reference(team -> team, cascade)", "unique(n)", "range(n: 0..9)"]
    lake.create_table("member", {"id": "string", "team": "string?", "n": "long?"}, key=["id"], constraints=rules)
    rows = [{"_table": "member", "id": "a", "team": "red", "n": 1}, "", {"_table": "team", "id": "red"}]
    lake.load("-", [written(tmp_path, rows)])
    with pytest.raises(InvalidRows) as caught:
        lake.load("member", [written(tmp_path, ["", person("b", n=10), person("c", n=2)])])
    assert [(one["index"], one["field"]) for one in caught.value.detail["rows"]] == [(1, "n")]
    bad = [person("b", team="blue"), person("c", n=1), person("d", n=5), person("e", n=5)]
    with pytest.raises(Conflict) as refused:
        lake.load("member", [written(tmp_path, bad)], mode="merge")
    told = {(one["index"], one["key"], one["rule"].partition("(")[0]) for one in refused.value.detail["violations"]}
    assert told - {(2, "'d'", "unique")} == {(0, "'b'", "reference"), (1, "'c'", "unique"), (3, "'e'", "unique")}
    with pytest.raises(Conflict, match="still refers to a deleted row"):
        lake.load("team", [written(tmp_path, [person("blue")])], mode="overwrite")
    lake.mutate([sl.delete("member", "a")])
    done = lake.load("team", [written(tmp_path, [person("blue")])], mode="overwrite")
    assert (done.rows, done.deleted) == (1, 1), "a row that is overwritten away takes nothing with it"


@pytest.mark.both_ledgers
def test_a_load_is_remembered_by_its_key_or_its_files(lake: Lake, tmp_path: Path, size: str) -> None:
    """An append loads once; merge and overwrite do with a key; `--again` loads anyway; other files are a conflict."""
    make_people(lake)
    file = written(tmp_path, [person("a")])
    first = lake.load("person", [file])
    assert lake.load("person", [file]).already_loaded
    lake.mutate([sl.delete("person", "a")])
    repeated = strand_json(lake, "load", "person", file)
    assert (repeated["already_loaded"], repeated["commit"], repeated["rows"]) == (True, first.commit, 1)
    assert people(lake) == []
    assert not lake.load("person", [file], again=True).already_loaded
    for _ in range(2):
        merged = lake.load("person", [file], mode="merge", key="k")
    assert merged.already_loaded
    with pytest.raises(Conflict, match="other rows"):
        lake.load("person", [written(tmp_path, [person("z")], "z.jsonl")], mode="merge", key="k")
    assert not lake.load("person", [file], mode="merge", key="k", again=True).already_loaded
    lake.branch("b")
    assert lake.load("person", [written(tmp_path, [person("q")], "q.jsonl")], branch="b").rows == 1
    assert (people(lake, "id"), lake.view("b").table("person").num_rows) == ([("a",)], 2)


@pytest.mark.both_ledgers
@pytest.mark.parametrize("name", ["mutate.before_store", "mutate.before_commit", "mutate.after_commit"])
def test_f59_a_keyed_load_that_died_is_run_again(lake: Lake, tmp_path: Path, name: str) -> None:
    """Whichever step it died at: the rows are there once, and the second run says so where the first stored them."""
    make_people(lake)
    file = written(tmp_path, [person("a", age=1), person("b")])
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.load("person", [file])
    with reopened(lake) as again:
        assert again.load("person", [file]).already_loaded == (name == "mutate.after_commit")
        assert len(versions(again)) == 2 and people(again) == [("a", None, 1), ("b", None, None)]


def test_what_is_more_than_the_ledger_takes_is_an_operation(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bytes, by rows, by rows that a file says it has, and by rows that go."""
    make_people(lake)
    rows = [person(str(n)) for n in range(20)]
    file = written(tmp_path, rows)
    pq.write_table(pa.table({"id": [str(n) for n in range(20)]}), tmp_path / "rows.parquet")
    assert lake.load("person", [file], mode="merge").operations == ()
    bytes_, rows_ = "load_request.SMALL_BYTES", "keyed.MOST_ROWS"
    for path, limit, value in ((file, bytes_, 100), (file, rows_, 10), ("rows.parquet", rows_, 10)):
        with monkeypatch.context() as patch:
            patch.setattr("strandline.operations.load." + limit, value)
            done = lake.load("person", [str(tmp_path / path)], mode="merge")
            assert len(done.operations) == 1 and done.rows == 20
    monkeypatch.setattr(planning, "MOST_ROWS", 10)
    done = lake.load("person", [written(tmp_path, [person("0")], "one.jsonl")], mode="overwrite")
    assert (len(done.operations), done.rows, done.deleted) == (1, 1, 19)
    assert people(lake, "id") == [("0",)]


def test_modes_that_there_are_not_are_refused(lake: Lake, tmp_path: Path) -> None:
    """A log table only grows, and a keyed one knows three ways."""
    make_people(lake)
    lake.create_table("events", {"id": "string"})
    file = written(tmp_path, [person("a")])
    with pytest.raises(BadRequest, match="log table"):
        lake.load("events", [file], mode="merge")
    wrong: Any = "replace"
    with pytest.raises(BadRequest, match="replace"):
        lake.load("person", [file], mode=wrong)


# -- beside others -----------------------------------------------------------------------------------------------------


def _load(rows: Sequence[Any], mode: Any, folder: Path) -> Callable[[Lake], object]:
    file = written(folder, rows, f"{mode}-{len(rows)}.jsonl")
    return lambda lake: lake.load("-", [file], mode=mode)


def _mutate(*statements: Any) -> Callable[[Lake], object]:
    return lambda lake: lake.mutate(list(statements))


@pytest.mark.both_ledgers(only=["append"])
@pytest.mark.parametrize("load_first", [True, False])
@pytest.mark.parametrize("mode", ["append", "merge", "overwrite"])
def test_f66_constraints_hold_between_a_mutation_and_a_load(
    lake: Lake, tmp_path: Path, mode: str, load_first: bool
) -> None:
    """Whichever was judged before the other was stored: it starts over, and fails if it no longer fits."""
    lake.create_table("team", {"id": "string"}, key=["id"])
    rules = ["reference(team -> team)", "unique(n)"]
    lake.create_table("member", {"id": "string", "team": "string?", "n": "long?"}, key=["id"], constraints=rules)
    lake.mutate([sl.put("team", {"id": "red"}), sl.put("team", {"id": "blue"})])
    rows: list[dict[str, Any]] = [{"_table": "member", "id": "a", "team": "red", "n": 1}]
    for other in (_mutate(sl.delete("team", "red")), _mutate(sl.put("member", {"id": "b", "n": 1}))):
        rows.append({"_table": "member", "id": f"c{len(rows)}"})
        loading = _load(rows, mode, tmp_path)
        ends = racing(lake, loading, other) if load_first else racing(lake, other, loading)
        assert "stored" in ends and {*ends} <= {"stored", "constraint"}
        view = lake.view()
        orphans = "select 1 from member anti join team on member.team = team.id where team is not null"
        assert view.sql(orphans).rows() == []
        assert view.sql("select n from member where n is not null group by 1 having count(*) > 1").rows() == []
        gone = [sl.delete("member", one) for one in ("a", "b", "c1", "c2")]
        lake.mutate([*gone, sl.put("team", {"id": "red"})])


@pytest.mark.both_ledgers
def test_f66_a_row_that_came_while_a_table_was_overwritten_does_not_stay(lake: Lake, tmp_path: Path) -> None:
    """A table that is overwritten has exactly the input at that moment; what was judged before starts over."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "old"})])
    loading = _load([{"_table": "person", "id": "a"}], "overwrite", tmp_path)
    assert racing(lake, loading, _mutate(sl.put("person", {"id": "late"}))) == ["stored", "stored"]
    assert people(lake, "id") in ([("a",)], [("a",), ("late",)])
    assert ("old",) not in people(lake, "id")


@pytest.mark.both_ledgers
def test_f66_a_large_load_meets_those_alone_that_wrote_what_it_read(lake: Lake, tmp_path: Path) -> None:
    """Of many rows it is asked what others wrote since, and not for each: one of them is seen, others don't matter."""
    rules = ["unique(n)"]
    lake.create_table("member", {"id": "string", "n": "long?"}, key=["id"], constraints=rules)
    lake.mutate([sl.put("member", {"id": "x", "n": -1})])
    rows = [{"_table": "member", "id": f"m{n}", "n": n} for n in range(mutations.MANY + 1)]
    taken = _mutate(sl.put("member", {"id": "y", "n": 7}))
    assert sorted(racing(lake, _load(rows, "append", tmp_path), taken)) == ["constraint", "stored"]
    lake.mutate([sl.delete("member", "y")])
    free = _mutate(sl.put("member", {"id": "y", "n": -7}))
    assert racing(lake, _load(rows, "merge", tmp_path), free) == ["stored", "stored"]
    assert lake.view().table("member").num_rows == len(rows) + 2


LOADS = """
import sys
import strandline as sl

with sl.open(sys.argv[1]) as lake:
    print(lake.load("person", [sys.argv[2]]).already_loaded, flush=True)
"""


@pytest.mark.both_ledgers
def test_f61_the_same_load_at_the_same_moment_loads_once(lake: Lake, tmp_path: Path) -> None:
    """One of the processes loads, the others are told so."""
    make_people(lake)
    file = written(tmp_path, [person(str(n)) for n in range(200)])
    running = [python_process(LOADS, str(lake.root), file) for _ in range(3)]
    said = [process.communicate(timeout=120) for process in running]
    assert sorted(out.strip() for out, _ in said) == ["False", "True", "True"], said
    assert len(versions(lake)) == 200
