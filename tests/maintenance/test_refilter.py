"""Filters for files that are older than a rule: they are written again, and no row changes."""

from __future__ import annotations

import pytest
from pyarrow import parquet

import strandline as sl
from strandline import failpoints
from strandline.engines.duck.relations import local_path
from strandline.errors import Unsupported
from strandline.lake import Lake
from strandline.operations.maintain import refilter as refiltering
from strandline.reports.doctor import examine
from strandline.worker.due_inputs import read_needs
from strandline.worker.loop import Worker
from tests.kit import audits, call, crash, intents_of, make_table, reopened, swept
from tests.maintenance.test_compact import REWRITE_POINTS
from tests.versions.test_constraints import refused

COLUMNS = {"id": "long", "n": "int?", "m": "int?"}
TWO_RULES = {"tables": {"t": {"columns": COLUMNS, "key": ["id"], "constraints": ["unique(m)", "unique(n)"]}}}


def with_old_files(lake: Lake, files: int = 2) -> None:
    """A keyed table whose state has files that are older than its second rule."""
    lake.create_table("t", COLUMNS, key=["id"], constraints=["unique(m)"])
    for first in range(0, files * 100, 100):
        lake.mutate([sl.put("t", {"id": first + n, "n": first + n, "m": -first - n}) for n in (1, 2)])
        lake.flush("t")
        lake.fold("t")
    lake.schema_apply(TWO_RULES)


def filters(lake: Lake, branch: str = "main") -> list[set[str]]:
    """The columns that each file of the state has a filter of."""
    listed = []
    for file in lake.view(branch).files("t$state"):
        groups = parquet.read_metadata(local_path(file.path))
        columns = [groups.row_group(0).column(n) for n in range(groups.num_columns)]
        listed.append({column.path_in_schema for column in columns if column.bloom_filter_offset is not None})
    return listed


def rows(lake: Lake) -> list[tuple[object, ...]]:
    """All rows, with where they come from."""
    return [tuple(row) for row in lake.view().sql("select id, n, m, _seq from t order by id").rows()]


def jobs(lake: Lake) -> list[str]:
    """What a worker would do about filters."""
    return [f"{need.kind}:{need.table}" for need in read_needs(lake) if need.kind == "refilter"]


def assert_settled(lake: Lake, outcome: str | None = None) -> None:
    """Nothing is under way, the state's refs are its pin, all is well, and the audit says what recovery did."""
    lake.recover()
    assert intents_of(lake) == [] and lake.context.staging.listing() == []
    folded = lake.view().branch_table("t").folded
    assert folded is not None
    assert lake.iceberg().refs(folded.table.iceberg_name) == {"main": folded.head.log_snapshot}
    assert [row["outcome"] for row in audits(lake)] == ([outcome] if outcome else [])
    assert examine(lake, deep=True) == []


def test_files_that_are_older_than_a_rule_get_its_filter(lake: Lake) -> None:
    """A dry run and the worker's look tell them by the ledger alone; rows stay, and what is unique stays so."""
    with_old_files(lake)
    before = rows(lake)
    lacking = len(filters(lake))
    assert filters(lake) == [{"m"}] * lacking and lacking > 0
    assert jobs(lake) == ["refilter:t"] and [need.unfiltered_files for need in lake.needs()] == [lacking]
    (planned,) = lake.refilter("t", dry_run=True)
    assert (planned.before["unfiltered_files"], planned.after["unfiltered_files"]) == (lacking, 0)
    assert (planned.dry_run, planned.complete, filters(lake)) == (True, False, [{"m"}] * lacking)
    (done,) = lake.maintenance.refilter("t", actor="ann")
    assert (done.before, done.after["unfiltered_files"], done.complete) == (planned.before, 0, True)
    assert filters(lake) == [{"m", "n"}] * lacking
    assert rows(lake) == before
    assert (jobs(lake), lake.maintenance.refilter("t")[0].operations) == ([], ()), "again, there is nothing to do"
    assert refused(lake, sl.put("t", {"id": 3, "n": 1, "m": 5})) == [("t", "'3'", "n", "unique")]
    lake.mutate([sl.put("t", {"id": 3, "n": 5, "m": 5})])
    assert_settled(lake)


def test_a_run_takes_bites_and_the_next_one_goes_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget ends it with something left, and each bite is an operation."""
    monkeypatch.setattr("strandline.operations.maintain.fold.FILE_BYTES", 500)
    with_old_files(lake, files=3)
    lacking = len(filters(lake))
    assert lacking > 1
    (first,) = lake.maintenance.refilter("t", max_bytes=1)
    assert (first.after["unfiltered_files"], first.complete, len(first.operations)) == (lacking - 1, False, 1)
    monkeypatch.setattr(refiltering, "BITE_BYTES", 1)
    (rest,) = lake.maintenance.refilter("t")
    assert (rest.complete, len(rest.operations)) == (True, lacking - 1)
    assert filters(lake) == [{"m", "n"}] * lacking


@pytest.mark.parametrize("name", swept(REWRITE_POINTS))
def test_one_that_dies_anywhere_is_finished_or_undone(lake: Lake, name: str) -> None:
    """Recovery says which; the rows are the same, and the next run leaves no file without its filter."""
    with_old_files(lake)
    before = rows(lake)
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.maintenance.refilter("t", actor="ann")
    with reopened(lake) as again:
        assert rows(again) == before
        assert_settled(again, REWRITE_POINTS[name])
        again.maintenance.refilter("t")
        assert all(columns == {"m", "n"} for columns in filters(again))
        assert rows(again) == before


def test_a_worker_does_it_for_main_and_a_person_for_any_branch(lake: Lake) -> None:
    """Branches share files: a worker does not write them again for each; a command asks, and prints what was done."""
    with_old_files(lake)
    lake.branch("x")
    Worker(lake).once()
    assert jobs(lake) == [] and all(columns == {"m", "n"} for columns in filters(lake))
    assert filters(lake, "x") == [{"m"}] * len(filters(lake, "x"))
    done = call("--lake", str(lake.root), "--json", "refilter", "t", "--branch", "x")
    assert (done.code, done.json[0]["after"]["unfiltered_files"]) == (0, 0), done.err
    assert all(columns == {"m", "n"} for columns in filters(lake, "x"))


def test_a_table_without_later_rules_needs_nothing(lake: Lake) -> None:
    """Nor does one without any, or one that has no state."""
    lake.create_table("t", COLUMNS, key=["id"], constraints=["unique(m)"])
    lake.mutate([sl.put("t", {"id": 1, "n": 1, "m": 1})])
    lake.flush("t")
    lake.fold("t")
    assert jobs(lake) == [] and lake.maintenance.refilter()[0].before["unfiltered_files"] == 0
    make_table(lake)
    with pytest.raises(Unsupported):
        lake.maintenance.refilter("messages")
