"""Folds: the state and what is later are the same rows as the newest versions of the log, at every moment."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.backup import backup
from strandline.errors import BadRequest, Conflict, HistoryGone, NotFound, Unsupported
from strandline.lake import Lake
from strandline.ledger.changes import touches
from strandline.ledger.rows import batches
from strandline.model.history.mutations import Statement
from strandline.operations.maintain import fold as folding
from strandline.reports.doctor import examine
from strandline.views.spark_sql import spark_sql
from tests.acceptance.test_failpoints import FLUSH_POINTS, RECOVERY_POINTS
from tests.backup.test_restore import restored
from tests.kit import (
    audits,
    crash,
    in_ledger,
    intents_of,
    make_table,
    messages,
    recovery_dies,
    reopened,
    strand,
    strand_json,
    swept,
)
from tests.versions.kit import make_people, people

COLUMNS = "id, name, age, tags, note, _seq, _at, _actor, _commit"
FOLD_POINTS = {name: outcome for name, outcome in FLUSH_POINTS.items() if not name.endswith("_files")}


def check(lake: Lake, branch: str = "main", *, spark: bool = False) -> list[tuple[Any, ...]]:
    """The current rows of a branch, which are the newest versions of its log, and the same on Spark."""
    view = lake.view(branch)
    rows: list[tuple[Any, ...]] = view.sql(f"select {COLUMNS} from person order by id").rows()
    newest = view.sql(
        f'select {COLUMNS} from "person$log" v where not _removed and _seq = '
        '(select max(_seq) from "person$log" w where w.id = v.id) order by id'
    )
    assert rows == newest.rows()
    if spark:
        query = "select id, name, age, _seq, _commit from person order by id"
        assert spark_sql(view, lake.spark, query)[1] == view.sql(query).rows()
    return rows


def some_changes(chance: random.Random, count: int) -> list[Statement]:
    """Puts and deletes of some of sixty people: inserts, updates, re-inserts, and deletes of nobody."""
    found: list[Statement] = []
    for key in chance.sample(range(60), count):
        row: dict[str, Any] = {"id": f"p{key:02d}", "age": chance.randrange(100), "tags": ["x"] * chance.randrange(3)}
        found.append(sl.delete("person", row["id"]) if chance.random() < 0.3 else sl.put("person", row))
    return found


def folded(lake: Lake) -> None:
    """Three people in the state; of them one is changed and one is gone since, and there is a new one."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "abc"])
    lake.flush("person")
    lake.fold("person")
    lake.mutate([sl.patch("person", "a", {"age": 2}), sl.delete("person", "b"), sl.insert("person", {"id": "d"})])


AFTER = [("a", None, 2), ("c", None, 1), ("d", None, None)]


def test_a_state_and_what_is_later_are_the_newest_versions(lake: Lake) -> None:
    """Random histories, at every moment between flushes, folds, compactions and expiries, on three branches."""
    make_people(lake)
    chance = random.Random(7)
    lake.mutate(some_changes(chance, 40))
    lake.flush("person")
    lake.fold("person")
    lake.mutate(some_changes(chance, 10))
    lake.branch("x")
    lake.mutate(some_changes(chance, 10), branch="x")
    lake.flush("person", branch="x")
    lake.branch("x/y", "x")
    before = {name: check(lake, name) for name in ("main", "x", "x/y")}
    for branch in ("x/y", "main", "x"):
        for step in (lake.flush, lake.fold, lake.compact, lake.expire, lake.sweep):
            how = {"grace_s": 0} if step in (lake.expire, lake.sweep) else {}
            step("person", branch=branch, **how)  # type: ignore[operator]
            batches.sweep(lake.ledger, grace_s=0)
            assert {name: check(lake, name) for name in before} == before, step
        lake.mutate(some_changes(chance, 10), branch=branch)
        lake.flush("person", branch=branch)
        lake.mutate(some_changes(chance, 3), branch=branch)
        before[branch] = check(lake, branch, spark=True)
    lake.fold("person", branch="x")
    assert {name: check(lake, name, spark=True) for name in before} == before
    assert examine(lake, deep=True) == []


def test_a_folded_part_of_the_log_is_not_opened(lake: Lake) -> None:
    """The current rows are there without its files; the versions are not."""
    folded(lake)
    old = lake.view().files("person")
    lake.flush("person")
    for file in old:
        Path(file.path.removeprefix("file:")).unlink()
    assert people(lake) == AFTER
    with pytest.raises(HistoryGone):
        lake.view().sql('select count(*) from "person$log" where age > 0').rows()


@pytest.mark.both_ledgers
def test_a_fold_makes_no_commit_and_a_second_one_does_nothing(lake: Lake) -> None:
    """What is not flushed is not folded; a range of rows can still be asked for."""
    folded(lake)
    commits = len(lake.log())
    assert lake.fold("person")[0].operations == ()
    lake.flush("person")
    done = lake.fold("person")[0]
    assert (done.before["unfolded_rows"], done.after["unfolded_rows"], done.after["state_rows"]) == (3, 0, 3)
    assert (people(lake), len(lake.log()), done.complete) == (AFTER, commits, True)
    view = lake.view()
    seqs = view.sql("select _seq from person order by _seq").rows()
    for since in (0, *(seq for (seq,) in seqs)):
        assert sorted(row["_seq"] for row in view.spark("person", since).collect()) == [
            seq for (seq,) in seqs if seq > since
        ]
    until = view.branch_table("person").folded_seq - 3
    assert sorted(row["id"] for row in view.spark("person", until=until).collect()) == ["a", "b", "c"]


def test_rows_that_all_go_leave_an_empty_state(lake: Lake) -> None:
    """Also those that came and went between two folds; and the state fills again."""
    folded(lake)
    lake.mutate([sl.delete("person", key) for key in "acd"])
    lake.flush("person")
    lake.fold("person")
    assert (check(lake, spark=True), lake.view().files("person$state")) == ([], [])
    lake.mutate([sl.put("person", {"id": "e"})])
    lake.mutate([sl.delete("person", "e")])
    lake.flush("person")
    assert lake.fold("person")[0].complete
    lake.mutate([sl.insert("person", {"id": "b"})])
    lake.flush("person")
    lake.fold("person")
    assert [row[0] for row in check(lake, spark=True)] == ["b"]


@pytest.mark.both_ledgers
def test_changes_meet_folded_rows(lake: Lake) -> None:
    """Rows that are there, that were deleted, and that never were; with conditions, on a branch too."""
    folded(lake)
    lake.flush("person")
    lake.fold("person")
    lake.branch("x")
    seqs = dict(lake.view().sql("select id, _seq from person").rows())
    for branch in ("x", "main"):
        with pytest.raises(Conflict, match="there already"):
            lake.mutate([sl.insert("person", {"id": "c"})], branch=branch)
        for gone in ("b", "nobody"):
            with pytest.raises(NotFound, match="not there"):
                lake.mutate([sl.patch("person", gone, {"age": 9})], branch=branch)
        lake.mutate([sl.delete("person", "b")], branch=branch)
        with pytest.raises(Conflict) as moved:
            lake.mutate([sl.put("person", {"id": "a"})], branch=branch, expect=sl.row("person", "c", 1))
        assert moved.value.detail["actual"] == seqs["c"]
        lake.mutate(
            [sl.patch("person", "a", {"name": branch}), sl.insert("person", {"id": "b", "age": 7})],
            branch=branch,
            expect=[sl.row("person", "c", seqs["c"]), sl.row("person", "b", None), sl.row("person", "e", None)],
        )
        lake.flush("person", branch=branch)
        lake.fold("person", branch=branch)
        lake.mutate([sl.patch("person", "a", {"age": 5}), sl.delete("person", "d")], branch=branch)
        rows = [row[:3] for row in check(lake, branch)]
        assert rows == [("a", branch, 5), ("b", None, 7), ("c", None, 1)]


@pytest.mark.both_ledgers
def test_hashes_of_what_is_folded_are_forgotten(lake: Lake) -> None:
    """As soon as everybody who sees it has it in a state; changes find their rows all the same."""

    def known(branch: str) -> int:
        of = lake.view(branch).branch_table("person").head.branch_id
        found = in_ledger(lake, "select count(*) from touches where branch_id = :of", of=of)
        return int(found[0][0])

    folded(lake)
    lake.branch("x")
    lake.mutate([sl.put("person", {"id": "x"})], branch="x")
    before = {branch: check(lake, branch) for branch in ("main", "x")}
    lake.flush("person")
    lake.fold("person")
    assert touches.sweep_touches(lake.ledger, grace_s=3600) == 0
    assert (touches.sweep_touches(lake.ledger, grace_s=0), known("main"), known("x")) == (3, 3, 1), "x sees the others"
    lake.mutate([sl.patch("person", "a", {"name": "x"}), sl.delete("person", "c")], branch="x")
    lake.flush("person", branch="x")
    lake.fold("person", branch="x")
    barrier = in_ledger(lake, "select sum(barrier) from heads")[0][0]
    assert (touches.sweep_touches(lake.ledger, grace_s=0), known("main"), known("x")) == (6, 0, 0)
    assert in_ledger(lake, "select sum(barrier) from heads")[0][0] == barrier + 2
    assert touches.sweep_touches(lake.ledger, grace_s=0) == 0
    assert check(lake) == before["main"]
    for branch, there, gone in (("main", "c", "b"), ("x", "x", "c")):
        with pytest.raises(Conflict, match="there already"):
            lake.mutate([sl.insert("person", {"id": there})], branch=branch)
        lake.mutate([sl.insert("person", {"id": gone, "age": 3}), sl.patch("person", "a", {"age": 8})], branch=branch)
        assert [row[0] for row in check(lake, branch)] == sorted({"a", "b", "c", "d"} if branch == "main" else "acdx")
    head = lake.view().branch_table("person").head
    in_ledger(lake, "update heads set last_seq = 0, version = 0, log_snapshot = null where table_id = :state",
              state=f"{head.table_id}-state")  # fmt: skip
    with pytest.raises(Conflict, match="there already"):
        lake.mutate([sl.insert("person", {"id": "c"})])
    lake.mutate([sl.delete("person", "d"), sl.patch("person", "c", {"age": 9})])
    assert [row[0] for row in check(lake)] == ["a", "b", "c"], "without its state, rows are found in the log"


def test_files_that_no_change_falls_among_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold writes a part of the state anew, in bites; its files never overlap in keys."""
    make_people(lake)
    monkeypatch.setattr(folding, "FILE_BYTES", 1500)
    monkeypatch.setattr(folding, "BITE_BYTES", 1)
    for part in range(4):
        rows = [{"id": f"p{part}{n:03d}", "name": random.Random(n).randbytes(40).hex()} for n in range(200)]
        lake.mutate([sl.put("person", row) for row in rows])
        lake.flush("person")
    done = lake.fold("person")[0]
    assert (len(done.operations), done.complete) == (4, True)
    before = {file.path for file in lake.view().files("person$state")}
    assert len(before) > 8
    lake.mutate([sl.patch("person", "p1001", {"age": 5}), sl.delete("person", "p1003")])
    lake.flush("person")
    lake.fold("person")
    after = lake.view().files("person$state")
    assert len(before & {file.path for file in after}) > len(before) / 2
    assert len(check(lake)) == 799 == sum(file.rows for file in after)
    ranges = []
    for file in after:
        keys = [row["id"] for row in lake.spark.read.parquet(file.path).select("id").collect()]
        assert keys == sorted(keys)
        ranges.append((keys[0], keys[-1]))
    ranges.sort()
    assert all(left[1] < right[0] for left, right in itertools.pairwise(ranges))


def test_keys_of_every_type_in_a_partitioned_table(lake: Lake) -> None:
    """Several columns of all types that a key can have, of which the last ones are the partition."""
    lake.create_table(
        "t",
        {
            "n": "long",
            "m": "int",
            "b": "boolean",
            "d": "date",
            "at": "timestamp",
            "raw": "binary",
            "price": "decimal(9,2)",
            "who": "string",
            "v": "long?",
        },
        key=["n", "m", "b", "d", "at", "raw", "price", "who"],
        partition_by=["who", "d"],
    )
    moment = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    rows = [
        {"n": -n, "m": n, "b": n % 2 == 0, "d": dt.date(2026, 1, 1 + n % 2), "at": moment + dt.timedelta(n),
         "raw": bytes([n, 255 - n]), "price": Decimal(n) / 4, "who": ["é", "a/b", ""][n % 3], "v": 0}
        for n in range(12)
    ]  # fmt: skip
    lake.mutate([sl.put("t", row) for row in rows])
    lake.flush("t")
    lake.fold("t")
    key = [name for name in rows[0] if name != "v"]
    for n in (0, 5, 11):
        lake.mutate([sl.patch("t", {name: rows[n][name] for name in key}, {"v": n})])
        lake.flush("t")
        expected = lake.view().table("t").sort_by("m")
        lake.fold("t")
        assert lake.view().table("t").sort_by("m") == expected
        assert sorted(row["v"] for row in lake.view().spark("t").collect()) == sorted(expected["v"].to_pylist())
    assert [file.partition for file in lake.view().files("t$state")].count('["a/b","2026-01-02"]') >= 1


@pytest.mark.parametrize("name", swept(FOLD_POINTS))
def test_f44_a_fold_of_a_branch_that_dies_anywhere_is_done_or_undone(lake: Lake, name: str) -> None:
    """Of a branch of a branch: whatever step it dies at, rows are the same, the audit says what was done, and the next
    fold works.
    """
    folded(lake)
    lake.branch("x")
    lake.mutate([sl.delete("person", "c")], branch="x")
    lake.branch("x/y", "x")
    lake.flush("person", branch="x/y")
    before = {branch: check(lake, branch) for branch in ("main", "x", "x/y")}
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.fold("person", branch="x/y")
    with reopened(lake) as again:
        assert {branch: check(again, branch) for branch in before} == before, "right after the crash"
        again.recover()
        assert intents_of(again) == []
        assert [row["outcome"] for row in audits(again)] == ([FOLD_POINTS[name]] if FOLD_POINTS[name] else [])
        refs = again.iceberg().refs("state.person")
        pins = {again.view(branch).branch_table("person$state").head.log_snapshot for branch in before}
        assert set(refs.values()) <= pins and not [ref for ref in refs if ref.startswith("op_")]
        again.fold("person", branch="x/y")
        assert again.view("x/y").sql("select count(*) from person").rows() == [(2,)]
        assert again.view("x/y").branch_table("person").folded_seq == again.view("x/y").stable_seq("person")
        assert {branch: check(again, branch, spark=branch == "x/y") for branch in before} == before
        assert examine(again, deep=True) == []


@pytest.mark.parametrize("name", ["stage.after_append", "staged.after_commit"])
@pytest.mark.parametrize("second", swept(RECOVERY_POINTS))
def test_f31_recovery_of_a_fold_that_dies_anywhere_ends_in_the_same_state(lake: Lake, name: str, second: str) -> None:
    """Recovery is killed at each of its steps, twice over, and the third one still ends right."""
    folded(lake)
    lake.flush("person")
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.fold("person")
    recovery_dies(lake, second, second)
    with reopened(lake) as last:
        last.recover()
        outcome = "rolled_back" if name == "stage.after_append" else "rolled_forward"
        assert [row["outcome"] for row in audits(last)] == [outcome]
        head = last.view().branch_table("person$state").head
        assert last.iceberg().refs("state.person") == {"main": head.log_snapshot}
        assert (people(last), intents_of(last)) == (AFTER, [])


def test_a_state_is_nobodys_table(lake: Lake, tmp_path: Path) -> None:
    """No list, query, sink or status names it; what is done to its table is done to it."""
    folded(lake)
    lake.flush("person")
    lake.fold("person")
    assert (lake.view().tables, lake.view().relations) == (["person"], ["person", "person$log"])
    with pytest.raises(BadRequest, match="no table"):
        lake.view().sql('select * from "person$state"')
    assert strand(lake, "sql", 'select * from "person$state"').code == 3
    shown = strand_json(lake, "table", "list"), strand_json(lake, "status"), strand_json(lake, "worker", "--once")
    assert "$state" not in str(shown)
    lake.add_sink("archive", "blob", {"uri": f"file://{tmp_path / 'blobs'}"})
    assert [done.rows for done in lake.tick("archive")] == [6]
    assert lake.tick("archive") == []
    assert [done.table for done in lake.expire(grace_s=0)] == ["person"]
    assert {done.table for done in lake.sweep(grace_s=0)} == {"(lake)", "person"}
    assert len(lake.iceberg().load("state.person").history()) >= 1
    assert people(lake) == AFTER


def test_the_command_line_folds(lake: Lake) -> None:
    """All keyed tables, or those named; a preview changes nothing; a log table is refused."""
    folded(lake)
    make_table(lake)
    lake.append("messages", messages(0, 3))
    lake.flush()
    (preview,) = strand_json(lake, "fold", "--dry-run")
    assert (preview["table"], preview["dry_run"], preview["after"]["unfolded_rows"]) == ("person", True, 0)
    assert lake.view().branch_table("person").folded_seq < lake.view().stable_seq("person")
    (done,) = strand_json(lake, "fold", "person")
    assert (done["after"]["state_rows"], done["complete"], len(done["operations"])) == (3, True, 1)
    assert strand_json(lake, "table", "show", "person")["state"]["rows"] == 3
    assert strand(lake, "fold", "messages").code == 3
    with pytest.raises(Unsupported, match="log table"):
        lake.fold("messages")


@pytest.mark.sqlite_only
def test_states_are_backed_up_and_restored(lake: Lake, tmp_path: Path) -> None:
    """With their branches; the restored lake reads, changes and folds."""
    folded(lake)
    lake.branch("x")
    lake.mutate([sl.delete("person", "c")], branch="x")
    lake.flush("person", branch="x")
    lake.fold("person", branch="x")
    expected = {name: check(lake, name) for name in ("main", "x")}
    backup(lake, tmp_path / "backup", with_data=True)
    lake.close()
    shutil.rmtree(lake.root)
    restored(tmp_path / "backup", lake.root)
    with Lake(lake.root) as again:
        assert {name: check(again, name) for name in expected} == expected
        again.mutate([sl.patch("person", "a", {"age": 3})], branch="x")
        again.flush("person", branch="x")
        again.fold("person", branch="x")
        assert [row[2] for row in check(again, "x", spark=True)] == [3, None]
        assert examine(again, deep=True) == []
