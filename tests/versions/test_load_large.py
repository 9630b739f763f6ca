"""Loads of keyed tables that are more than the ledger takes at once: an operation, and still one commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import Busy, Conflict, InvalidRows, StrandError
from strandline.lake import Lake
from strandline.model.reporting import reporting
from strandline.operations.change import mutate
from strandline.reports.doctor import examine
from strandline.views.spark_sql import spark_sql
from tests import slices
from tests.kit import crash, in_ledger, intents_of, reopened, swept, wait_until
from tests.versions.kit import make_people, people, versions


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load is as if it were too large for the ledger alone."""
    monkeypatch.setattr("strandline.operations.load.load_request.SMALL_BYTES", -1)


def written(folder: Path, rows: Sequence[Any], name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def make_teams(lake: Lake, on_delete: str = "restrict") -> None:
    rules = [f"reference(team -> team, {on_delete})", "unique(n)", "range(n: 0..99)"]
    lake.create_table("team", {"id": "string"}, key=["id"])
    lake.create_table("member", {"id": "string", "team": "string?", "n": "long?"}, key=["id"], constraints=rules)
    lake.mutate([sl.put("team", {"id": one}) for one in ("red", "blue")])


def ids(lake: Lake, table: str, branch: str = "main", at: str | None = None) -> list[str]:
    return sorted(lake.view(branch, at=at).table(table)["id"].to_pylist())


@contextmanager
def loading(lake: Lake, where: str, *args: Any, **options: Any) -> Iterator[Future[Any]]:
    """A load in another open lake that stays for a while at a failpoint; the block begins when it is there."""
    with Lake(lake.root) as other, ThreadPoolExecutor(1) as pool:
        failpoints.arm(f"{where}=sleep(4000)@1")
        done = pool.submit(other.load, *args, **options)
        wait_until(lambda: failpoints.passages(where) > 0 or done.done())
        assert not done.done(), done.result()
        yield done
        done.exception(120)
        failpoints.arm(None)


# -- what there is afterwards ------------------------------------------------------------------------------------------


def test_loaded_rows_are_read_changed_branched_and_merged_like_others(lake: Lake, tmp_path: Path) -> None:
    """Whether a row was in the state, in the log or in the tail before, the loaded one is what everybody meets."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": one, "age": 1}) for one in "abcdef"])
    lake.flush("person")
    lake.fold("person")
    lake.mutate([sl.patch("person", "b", {"age": 2}), sl.patch("person", "c", {"age": 2})])
    lake.flush("person")
    before = lake.mutate([sl.patch("person", "c", {"age": 3}), sl.patch("person", "d", {"age": 3})])
    lake.branch("side")
    rows = [{"id": one, "name": "new", "age": 9} for one in "abcdxy"]
    done = lake.load("person", [written(tmp_path, rows)], mode="merge")
    commit = lake.log(limit=1)[0]
    assert (commit.commit_id, commit.kind, commit.tables) == (done.commit, "load", {"person": 6})
    assert {seq for seq, by in versions(lake, "_seq, _commit") if by == done.commit} == set(
        range(done.first_seq or 0, (done.last_seq or 0) + 1)
    )
    expected = (
        [(one, "new", 9) for one in "abcd"] + [(one, None, 1) for one in "ef"] + [(one, "new", 9) for one in "xy"]
    )
    assert people(lake) == expected

    with pytest.raises(Conflict, match="there already"):
        lake.mutate([sl.insert("person", {"id": "x"})])
    for one in "acd":
        lake.mutate([sl.patch("person", one, {"age": 10})], expect=sl.row("person", one, _seq_of(lake, one)))
    lake.mutate([sl.delete("person", "y"), sl.put("person", {"id": "b", "age": 11})])
    expected = [
        ("a", "new", 10), ("b", None, 11), ("c", "new", 10), ("d", "new", 10), ("e", None, 1), ("f", None, 1),
        ("x", "new", 9),
    ]  # fmt: skip
    assert people(lake) == expected
    assert spark_sql(lake.view(), lake.spark, "select id, name, age from person order by id")[1] == expected

    past = lake.view(at=before.commit_id).sql("select id, age from person order by id").rows()
    assert past == [("a", 1), ("b", 2), ("c", 3), ("d", 3), ("e", 1), ("f", 1)]
    assert len(ids(lake, "person", at=done.commit)) == 8
    differing = {one.key["id"]: one.kind for one in lake.diff(before.commit_id, done.commit or "", table="person")}
    assert differing == {**dict.fromkeys("abcd", "update"), "x": "insert", "y": "insert"}

    _branched_and_tended(lake, before.commit_id, past, expected)


def _branched_and_tended(lake: Lake, before: str, past: list[Any], expected: list[Any]) -> None:
    """Branches from before and after the load come together again, and maintenance changes nothing."""
    lake.mutate([sl.patch("person", "e", {"age": 5})], branch="side")
    assert lake.merge("side").outcome == "merged"
    expected[4] = ("e", None, 5)
    lake.branch("late")
    lake.mutate([sl.patch("person", "x", {"age": 0})], branch="late")
    assert lake.merge("late").outcome == "fast_forward"
    expected[6] = ("x", "new", 0)
    lake.branch("old", before)
    lake.mutate([sl.patch("person", "c", {"age": 4})], branch="old")
    assert lake.view("old").sql("select age from person where id = 'c'").rows() == [(4,)]
    for step in (
        lambda: None,
        lambda: lake.flush("person"),
        lambda: lake.compact("person"),
        lambda: lake.fold("person"),
    ):
        step()
        assert people(lake) == expected
        assert lake.view(at=before).sql("select id, age from person order by id").rows() == past
    lake.mutate([sl.patch("person", "a", {"age": 12})])
    assert people(lake)[0] == ("a", "new", 12)
    assert examine(lake, deep=True) == []


def _seq_of(lake: Lake, id: str) -> int:
    ((seq,),) = lake.view().sql(f"select _seq from person where id = '{id}'").rows()
    return int(seq)


def test_sinks_deliver_every_version_of_a_load_once(lake: Lake, tmp_path: Path) -> None:
    """Rows and deletions, in the order of their seqs, however often it is ticked."""
    make_people(lake)
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path / 'blobs'}"})
    lake.mutate([sl.put("person", {"id": one}) for one in "abc"])
    lake.tick("archive")
    lake.mutate([sl.put("person", {"id": "d"})])
    file = written(tmp_path, [{"id": "a", "age": 1}, {"id": "z"}])
    with loading(lake, "reserve.after_commit", "person", [file], mode="overwrite"):
        assert lake.view().stable_seq("person") < lake.view().branch_table("person").reserved_from  # type: ignore[operator]
    lake.tick("archive")
    lake.mutate([sl.put("person", {"id": "e"})])
    lake.tick("archive")
    assert lake.tick("archive") == []
    rows = [row for path in sorted((tmp_path / "blobs").rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    told = [(row["id"], row["_removed"], row["_commit"], row["_seq"]) for row in rows]
    assert told == versions(lake, "id, _removed, _commit, _seq")
    assert [one[:2] for one in told[4:]] == [
        ("a", False),
        ("z", False),
        ("b", True),
        ("c", True),
        ("d", True),
        ("e", False),
    ]


def test_a_load_came_when_it_was_published_and_not_with_its_seqs(lake: Lake, tmp_path: Path) -> None:
    """What was committed, tagged and branched while it was under way has nothing of it; a merge brings it."""
    make_people(lake)
    make_people(lake, "other")
    lake.mutate([sl.put("person", {"id": one, "age": 1}) for one in "ab"])
    file = written(tmp_path, [{"id": one, "age": 2} for one in "bc"])
    with loading(lake, "reserve.after_commit", "person", [file], mode="merge") as done:
        between = lake.mutate([sl.put("other", {"id": "o"})])
        lake.branch("side")
        lake.tag("then", "main")
    loaded = done.result()
    assert between.seq > loaded.last_seq, "the story is not the one that is told"
    for at in (between.commit_id, "then"):
        assert ids(lake, "person", at=at) == ["a", "b"]
        assert spark_sql(lake.view(at=at), lake.spark, "select id, age from person order by id")[1] == [
            ("a", 1),
            ("b", 1),
        ]
    assert ids(lake, "person", "side") == ["a", "b"]
    assert ids(lake, "person", at=loaded.commit) == ["a", "b", "c"]
    changed = {one.key["id"] for one in lake.diff(between.commit_id, "main", table="person")}
    assert changed == {"b", "c"}
    lake.mutate([sl.patch("person", "a", {"age": 3})], branch="side")
    lake.branch("copy", "side")
    assert lake.merge("side").outcome == "merged"
    assert people(lake) == [("a", None, 3), ("b", None, 2), ("c", None, 2)], "what main loaded was lost"
    lake.merge("main", into="copy")
    assert lake.view("copy").sql("select id, age from person order by id").rows() == [("a", 3), ("b", 2), ("c", 2)]
    lake.fold("person")
    lake.branch("again", between.commit_id)
    assert ids(lake, "person", "again") == ["a", "b"]


def test_pieces_whose_rows_all_come_again_bring_nothing(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each key the last line counts, in whatever piece of which file it is."""
    make_people(lake)
    monkeypatch.setattr("strandline.engines.files.CHUNK_BYTES", 10)
    monkeypatch.setattr("strandline.operations.load.keyed_large.PARTS_AT_ONCE", 1)
    files = [
        written(tmp_path, [{"id": one, "age": age} for one in keys], f"{age}.jsonl")
        for age, keys in enumerate(("ab", "bc", "ac", "cd"))
    ]
    done = lake.load("person", files, mode="merge")
    assert (done.rows, done.duplicates_dropped) == (4, 4)
    assert people(lake) == [("a", None, 2), ("b", None, 1), ("c", None, 3), ("d", None, 3)]
    assert len(versions(lake)) == 4


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_lines_are_told_whatever_piece_of_a_file_they_are_in(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file is read in pieces by several workers; blank lines and those of other tables count."""
    make_teams(lake)
    monkeypatch.setattr("strandline.engines.files.CHUNK_BYTES", 400)
    rows: list[Any] = [{"id": f"m{n}", "n": n % 100} for n in range(40)]
    rows[3:3] = ["", {"_table": "team", "id": "x"}, ""]
    rows[30] = {"id": "q", "n": 100}
    rows[35] = {"id": "r", "team": "green"}
    rows[36] = {"id": "s", "n": 0}
    file = written(tmp_path, rows)
    with pytest.raises(Conflict) as caught:
        lake.load("member", [file], mode="merge")
    told = {(one["index"], one["rule"].partition("(")[0]) for one in caught.value.detail["violations"] if "file" in one}
    assert told == {(0, "unique"), (30, "range"), (35, "reference"), (36, "unique")}
    with pytest.raises(InvalidRows) as wrong:
        lake.load("member", [written(tmp_path, [*rows, {"id": "t", "n": "many"}], "more.jsonl")], mode="merge")
    assert [(one["index"], one["field"]) for one in wrong.value.detail["rows"]] == [(len(rows), "n")]
    assert ids(lake, "member") == [] and intents_of(lake) == []
    assert lake.context.staging.listing() == []


@pytest.mark.parametrize(
    ("breaking", "error", "figure", "count"),
    [
        (lambda n: {"n": 100 + n}, InvalidRows, "bad", 50),
        (lambda _: {"n": 1}, Conflict, "count", 50),
        (lambda _: {"team": "green"}, Conflict, "count", 50),
        (lambda n: {"n": -n % 2 - 2, "team": "green"}, Conflict, "count", 150),
    ],
    ids=["a row alone", "rows together", "rows of other tables", "three rules"],
)
def test_all_breaches_are_counted_and_the_first_are_listed(
    lake: Lake, tmp_path: Path, breaking: Any, error: type[StrandError], figure: str, count: int
) -> None:
    """Twenty at first, however many there are, and whatever rules they break; all of them where that is wanted."""
    make_teams(lake)
    file = written(tmp_path, [{"id": f"m{n:02}", **breaking(n)} for n in range(50)])
    with pytest.raises(error) as caught:
        lake.load("member", [file], mode="merge")
    assert (caught.value.detail[figure], len(caught.value.detail["violations"])) == (count, 20)
    assert f"(and {count - 1} more)" in caught.value.message
    with reporting(1000), pytest.raises(error) as caught:
        lake.load("member", [file], mode="merge")
    assert (caught.value.detail[figure], len(caught.value.detail["violations"])) == (count, count)


def test_a_parquet_file_of_the_right_shape_is_used_as_it_is(lake: Lake, tmp_path: Path) -> None:
    """Its rows are told by their number; those that are there are listed, and all are counted."""
    lake.create_table("blobs", {"id": "string", "body": "string?"}, key=["id"])
    count = 150_000
    body = [f"{n * 2654435761 % 2**64:016x}" * 6 for n in range(count)]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [f"r{n:07d}" for n in range(count)], "body": body}), path, compression="none")
    lake.load("blobs", [str(path)])
    files = [file.path for file in lake.view().files("blobs")]
    assert lake.view().count("blobs", "true") == count and str(path) not in files
    lake.mutate([sl.delete("blobs", f"r{n:07d}") for n in range(100, count, 1000)])
    with pytest.raises(Conflict) as caught:
        lake.load("blobs", [str(path)], again=True)
    gone = len(range(100, count, 1000))
    assert (caught.value.detail["kind"], caught.value.detail["count"]) == ("key_exists", count - gone)
    assert [one["index"] for one in caught.value.detail["rows"]] == list(range(20))


def test_a_protected_branch_takes_no_load(lake: Lake, tmp_path: Path) -> None:
    """It changes by merges alone, also when it was protected while a load was under way."""
    make_people(lake)
    file = written(tmp_path, [{"id": "a"}])
    with loading(lake, "reserve.after_commit", "person", [file]) as done:
        lake.protect_branch("main")
    assert isinstance(done.exception(), Conflict) and ids(lake, "person") == []
    with pytest.raises(Conflict, match="protected"):
        lake.load("person", [file])
    assert intents_of(lake) == [] and in_ledger(lake, "select * from reservations") == []


# -- beside others -----------------------------------------------------------------------------------------------------


def test_f66_mutations_wait_for_a_load_of_their_tables_and_those_joined_to_them(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tables go on; who waits too long is told that it is busy; who waits is judged by what was loaded."""
    make_teams(lake)
    make_people(lake)
    file = written(tmp_path, [{"id": "a", "team": "red", "n": 1}])
    with loading(lake, "reserve.after_commit", "member", [file]) as done:
        lake.mutate([sl.put("person", {"id": "p"})])
        with monkeypatch.context() as patch:
            patch.setattr(mutate, "PATIENCE_S", 0.3)
            for statement in (sl.put("member", {"id": "b"}), sl.put("team", {"id": "green"})):
                with pytest.raises(Busy) as busy:
                    lake.mutate([statement])
                assert busy.value.detail["reason"] == "load_held"
        assert not done.done()
        with pytest.raises(Conflict) as caught:
            lake.mutate([sl.delete("team", "red")])
        assert caught.value.detail["kind"] == "constraint"
        assert ids(lake, "member") == ["a"], "it was judged before the load was published"
    lake.mutate([sl.put("member", {"id": "b", "n": 2}), sl.delete("team", "blue")])
    assert (ids(lake, "member"), ids(lake, "team")) == (["a", "b"], ["red"])


def test_f66_mutations_don_t_wait_for_a_load_that_is_dead(lake: Lake, tmp_path: Path) -> None:
    """Who meets the range of a load whose process died recovers it, also in a lake that has been open all the time."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 1})])
    other = Lake(lake.root)
    failpoints.arm("reserve.after_commit=raise")
    with crash(other):
        other.load("person", [written(tmp_path, [{"id": "b"}])])
    lake.mutate([sl.patch("person", "a", {"age": 2})])
    assert people(lake) == [("a", None, 2)]
    assert [entry.outcome for entry in lake.reports.audit(1)] == ["rolled_back"]


@pytest.mark.parametrize("on_delete", ["restrict", "cascade"])
def test_f66_a_change_that_was_judged_before_a_load_starts_over(lake: Lake, tmp_path: Path, on_delete: str) -> None:
    """The mutation referred to a row that a load then overwrote away, while it was judged and not stored."""
    make_teams(lake, on_delete)
    lake.mutate([sl.put("member", {"id": "m", "team": "blue"})])
    file = written(tmp_path, [{"id": "blue"}], "teams.jsonl")
    with Lake(lake.root) as other, ThreadPoolExecutor(1) as pool:
        failpoints.arm("mutate.before_store=sleep(6000)@1")
        late = pool.submit(other.mutate, [sl.put("member", {"id": "n", "team": "red"})])
        wait_until(lambda: failpoints.passages("mutate.before_store") > 0)
        assert lake.load("team", [file], mode="overwrite").deleted == 1
        error = late.exception(60)
    assert isinstance(error, Conflict) and error.detail["kind"] == "constraint"
    assert (ids(lake, "member"), ids(lake, "team")) == (["m"], ["blue"])


def test_f66_loads_of_tables_that_refer_to_each_other_come_one_after_another(lake: Lake, tmp_path: Path) -> None:
    """Members of a team, and the teams without it: whichever comes second is refused."""
    make_teams(lake)
    members = written(tmp_path, [{"id": "a", "team": "red"}], "members.jsonl")
    teams = written(tmp_path, [{"id": "blue"}], "teams.jsonl")
    with loading(lake, "reserve.after_commit", "member", [members]) as done:
        with pytest.raises(Conflict) as caught:
            lake.load("team", [teams], mode="overwrite")
        assert "still refers to a deleted row" in caught.value.message
    assert done.result().rows == 1
    assert (ids(lake, "member"), ids(lake, "team")) == (["a"], ["blue", "red"])


def test_f66_a_schema_that_changes_under_a_load_lets_it_start_over(lake: Lake, tmp_path: Path) -> None:
    """Its rows are then judged by what the table declares by now."""
    make_teams(lake)
    doc = {"tables": {"member": {"columns": {"id": "string", "team": "string?", "n": "long?", "m": "long?"}}}}
    file = written(tmp_path, [{"id": "a", "n": 1}])
    with loading(lake, "reserve.after_commit", "member", [file]) as done:
        lake.schema_apply(doc)
    assert done.result().rows == 1 and ids(lake, "member") == ["a"]
    narrower = {
        "tables": {"member": {"columns": doc["tables"]["member"]["columns"], "constraints": ["range(n: 5..9)"]}}
    }
    lake.mutate([sl.delete("member", "a")])
    with loading(lake, "reserve.after_commit", "member", [written(tmp_path, [{"id": "b", "n": 2}], "b.jsonl")]) as late:
        lake.schema_apply(narrower)
    assert isinstance(late.exception(), InvalidRows)
    assert ids(lake, "member") == [] and intents_of(lake) == []


# -- what a crash leaves -----------------------------------------------------------------------------------------------

STORED = {
    "load.before_convert": False, "load.after_convert": False,
    "begin.before_commit": False, "begin.after_commit": False,
    "reserve.before_commit": False, "reserve.after_commit": False,
    "stage.before_table": False, "stage.before_branch": False, "stage.after_branch": False,
    "stage.before_files": False, "stage.after_files": False,
    "stage.before_append": False, "stage.after_append": False,
    "staged.before_commit": False, "staged.after_commit": True,
    "publish.before_commit": True, "publish.after_commit": True,
    "settle.before_ref": True, "settle.after_ref": True, "settle.after_folder": True, "settle.after_commit": True,
}  # fmt: skip
"""Every step of such a load, and whether recovery makes its commit."""


def _named(lake: Lake, tmp_path: Path) -> str:
    make_teams(lake, "cascade")
    lake.mutate([sl.put("member", {"id": "old", "team": "red"}), sl.put("team", {"id": "gone"})])
    rows = [
        {"_table": "team", "id": "red"},
        {"_table": "team", "id": "new"},
        {"_table": "member", "id": "a", "team": "new"},
    ]
    return written(tmp_path, rows)


@pytest.mark.parametrize("branch", slices.turn(["main", "side"], 1))
@pytest.mark.parametrize("name", swept(STORED))
def test_f27_a_large_load_that_dies_anywhere_is_in_all_of_its_tables_or_in_none(
    lake: Lake, tmp_path: Path, name: str, branch: str
) -> None:
    """On main and on a branch (F44); run again it is there once (F59), and nothing that it held is held any more."""
    file = _named(lake, tmp_path)
    if branch != "main":
        lake.branch(branch)
    before, tip = (["blue", "gone", "red"], ["old"]), lake.log(branch, limit=1)[0].commit_id
    after = ["new", "red"], ["a"]
    failpoints.arm(f"{name}=raise" + ("@2" if name.startswith("stage.") and name.endswith("append") else ""))
    with crash(lake):
        lake.load("-", [file], mode="overwrite", branch=branch, key="k")
    with reopened(lake) as again:
        shown = ids(again, "team", branch), ids(again, "member", branch)
        assert shown == (after if STORED[name] else before)
        assert (again.log(branch, limit=1)[0].commit_id == tip) == (not STORED[name])
        again.mutate([sl.put("member", {"id": "free"})], branch=branch)
        again.mutate([sl.delete("member", "free")], branch=branch)
        done = again.load("-", [file], mode="overwrite", branch=branch, key="k")
        assert done.already_loaded == STORED[name]
        assert (ids(again, "team", branch), ids(again, "member", branch)) == after
        if branch != "main":
            assert (ids(again, "team"), ids(again, "member")) == before
        loads = [one for one in again.log(branch) if one.kind == "load"]
        assert [one.tables for one in loads] == [{"team": 4, "member": 2}]
        again.recover()
        assert intents_of(again) == [] and again.context.staging.listing() == []
        assert in_ledger(again, "select * from reservations") == []
        assert in_ledger(again, "select * from loads") == []
        assert examine(again) == []


def test_a_load_that_runs_every_time_and_died_leaves_no_folder(lake: Lake, tmp_path: Path) -> None:
    """Nobody will run it again under its key; whoever opens the lake tidies up."""
    make_people(lake)
    failpoints.arm("load.after_convert=raise")
    with crash(lake):
        lake.load("person", [written(tmp_path, [{"id": "a"}])], mode="merge")
    with reopened(lake) as again:
        assert again.context.staging.listing() == [] and in_ledger(again, "select * from loads") == []
        again.load("person", [written(tmp_path, [{"id": "a"}])], mode="merge")
        assert ids(again, "person") == ["a"]
