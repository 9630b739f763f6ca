"""`--hard`: of a column that nobody is shown any more no value is left, in no file of any branch and in no history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest, Busy
from strandline.lake import Lake
from strandline.operations.load import load_request
from strandline.reports.doctor import examine
from tests.kit import crash, make_table, messages, real_strand, reopened, strand, strand_json, swept
from tests.versions.test_schema import apply, column, edited, rows, told, two_people, without

SECRET = 987654321
DIES = ["schema.after_commit", "begin.after_commit", "stage.after_append", "staged.after_commit",
        "publish.before_commit", "publish.after_commit"]  # fmt: skip


def hard(lake: Lake, table: str = "person", name: str = "age", branch: str = "main") -> Any:
    """Drop a column, and its values with it."""
    doc = {"tables": {table: lake.schema(branch)["tables"][table]}}
    doc["tables"][table]["columns"].pop(name, None)
    return lake.schema_apply(doc, branch=branch, hard=True)


def values(lake: Lake, name: str = "age") -> list[Any]:
    """What all data files below the warehouse have of a column."""
    return list(_values(lake.root / "warehouse", name))


def _values(folder: Path, name: str) -> Iterator[Any]:
    for path in folder.rglob("*.parquet"):
        with pq.ParquetFile(path) as file:
            if name in file.schema_arrow.names and "removed" not in path.name:
                yield from (one for one in file.read([name]).column(0).to_pylist() if one is not None)


def secrets(lake: Lake) -> None:
    """Ann's age is in the state, Bob's in the log, Cy's in the tail; a branch has all of them."""
    two_people(lake)
    lake.mutate([sl.patch("person", "a", {"age": SECRET})])
    lake.flush("person")
    lake.fold("person")
    lake.mutate([sl.patch("person", "b", {"age": SECRET + 1})])
    lake.flush("person")
    lake.mutate([sl.put("person", {"id": "c", "name": "Cy", "age": SECRET + 2})])


def people(lake: Lake, branch: str = "main") -> list[tuple[Any, ...]]:
    return rows(lake, "select id, name from person order by id", branch)


PEOPLE = [("a", "Ann"), ("b", "Bob"), ("c", "Cy")]


def test_no_file_has_a_value_of_what_was_dropped_hard(lake: Lake) -> None:
    """Log, state and tail, on every branch; who looks back finds null, and everything else is as it was."""
    secrets(lake)
    before = lake.log()[0].commit_id
    lake.branch("x")
    apply(lake, without("age"), branch="x")
    lake.mutate([sl.put("person", {"id": "x"})], branch="x")
    planned = lake.schema_plan(edited(lake, without("age")), hard=True)
    assert told(planned) == [("drop column", "age", "loses data")]
    done = hard(lake)
    assert done.commit is not None and done.warnings == ()
    assert values(lake) == [] and set(values(lake, "name")) == {"Ann", "Bob", "Cy"}
    assert people(lake) == PEOPLE and people(lake, "x") == [*PEOPLE, ("x", None)]
    assert lake.view(at=before).sql("select id, name, age from person order by id").rows() == [
        (key, name, None) for key, name in PEOPLE
    ]
    assert examine(lake, deep=True) == []
    assert hard(lake).steps == () and hard(lake).commit is None
    lake.mutate([sl.patch("person", "b", {"name": "Ben"})])
    assert people(lake)[1] == ("b", "Ben")


def test_hard_is_refused_while_another_branch_or_a_tag_has_the_column(lake: Lake) -> None:
    """They are named, and nothing is changed; a tag also where it only keeps the files. A table is not erased."""
    secrets(lake)
    lake.branch("x")
    lake.tag("v1", "main")
    before = lake.schema(), lake.log()
    (step,) = lake.schema_plan(edited(lake, without("age")), hard=True).steps
    assert step.verdict == "refused" and "x, tag v1 still has it" in step.why
    with pytest.raises(BadRequest, match="still has it"):
        hard(lake)
    assert (lake.schema(), lake.log()) == before
    lake.delete_branch("x", force=True)
    lake.delete_tag("v1")
    apply(lake, without("age"))
    lake.tag("v2", "main")
    (step,) = lake.schema_plan(lake.schema(), hard=True).steps
    assert (step.what, step.column, step.verdict) == ("erase column", "age", "refused") and "tag v2" in step.why
    (step,) = lake.schema_plan({"tables": {"person": {"drop": True}}}, hard=True).steps
    assert step.verdict == "refused" and "purge" in step.why


def test_hard_waits_for_a_load_that_is_not_finished(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has read already may have values of the column, and comes in later."""
    monkeypatch.setattr(load_request, "SMALL_BYTES", 0)
    make_table(lake)
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in messages(0, 3)))
    failpoints.arm("load.before_convert=raise")
    with crash(lake):
        lake.load("messages", [str(source)])
    with reopened(lake) as again, pytest.raises(Busy, match="not finished"):
        again.schema_plan(edited(again, without("body"), "messages"), hard=True)


def test_what_was_dropped_before_is_erased_and_a_log_table_too(lake: Lake) -> None:
    """By the same document again, with --hard."""
    make_table(lake)
    apply(lake, column("size", "long?"), "messages")
    lake.append("messages", [row | {"size": SECRET} for row in messages(1, 4)])
    lake.flush("messages")
    lake.append("messages", [row | {"size": SECRET} for row in messages(4, 6)])
    apply(lake, without("size"), "messages")
    lake.branch("x")
    done = lake.schema_apply(lake.schema(), hard=True)
    assert (told(done), done.commit) == ([("erase column", "size", "loses data")], None)
    assert values(lake, "size") == []
    assert rows(lake, "select count(*) from messages") == [(5,)] and examine(lake, deep=True) == []


@pytest.mark.parametrize("name", swept(DIES))
def test_an_erasure_that_dies_is_finished_by_the_next(lake: Lake, name: str) -> None:
    """The column is dropped or is not; run again, no value is left, and no row is missing."""
    secrets(lake)
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        hard(lake)
    with reopened(lake) as again:
        again.recover()
        hard(again)
        assert values(again) == [] and people(again) == PEOPLE
        assert "age" not in again.schema()["tables"]["person"]["columns"]
        assert examine(again) == []


def test_the_command_line_asks_before_it_erases(lake: Lake, tmp_path: Path) -> None:
    """Killed in the middle and run again it does what is left, and says so."""
    secrets(lake)
    file = tmp_path / "wanted.json"
    file.write_text(json.dumps(edited(lake, without("age"))))
    refused = strand(lake, "schema", "apply", str(file), "--hard")
    assert refused.code == 4 and "removed for good" in refused.err
    killed = {"STRAND_FAILPOINTS": "publish.after_commit=exit"}
    assert real_strand(lake, "schema", "apply", str(file), "--hard", "--yes", **killed).returncode == 137
    done = strand_json(lake, "schema", "apply", str(file), "--hard", "--yes")
    assert done["commit"] is None and [step["what"] for step in done["steps"]] == ["erase column"]
    assert values(lake) == [] and strand_json(lake, "doctor")["ok"]
