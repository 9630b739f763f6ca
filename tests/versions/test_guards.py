"""What guards operations on keyed tables, each met alone and without Spark: what was chosen or planned has moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.errors import Conflict, LeaseLost
from strandline.lake import Lake
from strandline.ledger.changes.mutations import Held
from strandline.ledger.changes.purges import StayUnreferred
from strandline.ledger.history.horizons import find_horizon
from strandline.ledger.history.merges import TakeMerge
from strandline.ledger.publish.publishing import Intent
from strandline.model.tables import DataFile
from strandline.operations.change.branch_at import Trim
from strandline.operations.core import steps
from strandline.operations.maintain.compact import Compact
from strandline.operations.maintain.erase import holds
from strandline.operations.maintain.referring import find_referring
from strandline.operations.maintain.removal import Removal
from strandline.operations.maintain.retain import Retain
from strandline.operations.maintain.retain_plan import RetentionBite
from strandline.operations.merge import merge as merging
from strandline.operations.merge.large import MergeTables
from tests.kit import in_ledger
from tests.versions.kit import make_people
from tests.versions.test_judged import Judge, begun, by_rows, judge, prepared, put, raise_barrier, reshape

__all__ = ["judge"]


@pytest.mark.parametrize(
    "operation",
    [
        Compact("person", "main", "ann", 0, []),
        Trim("person", "main", "ann", 0, Removal()),
        Retain("person", "main", "ann", 0, RetentionBite(Removal(), {}, kept_from=1), past_sinks=False),
    ],
    ids=lambda one: one.kind,
)
def test_what_was_chosen_at_another_version_of_a_table_is_not_done(lake: Lake, operation: Any) -> None:
    """Files that were to be replaced may be gone, or have become others; whoever chose them looks again."""
    make_people(lake)
    with lake.ledger.read() as conn:
        assert operation.cover(conn) is not None
    in_ledger(lake, "update heads set version = 1")
    with lake.ledger.read() as conn:
        assert operation.cover(conn) is None


def asking(branch_id: str) -> Intent:
    """An operation on a branch that is about to be published."""
    return Intent("op", "test", "staged", branch_id, "ann", "", 0, ())


def teams(lake: Lake) -> StayUnreferred:
    """A team without members, and what a purge of it relies on."""
    lake.create_table("team", {"id": "string"}, key=["id"])
    rule = "reference(team -> team, restrict)"
    lake.create_table("person", {"id": "string", "team": "string?"}, key=["id"], constraints=[rule])
    put(lake, "t", table="team")
    put(lake, "u", table="team")
    table_id = lake.view().branch_table("team").table.table_id
    found = find_referring(lake.context, "main", table_id, pa.table({"id": ["t"]}))
    assert list(found.violations) == []
    assert found.relied is not None
    return found.relied


REFERRED: dict[str, tuple[Callable[[Lake], object], bool]] = {
    "a row refers to it": (lambda lake: put(lake, "m", team="t"), True),
    "a row refers to another": (lambda lake: put(lake, "m", team="u"), False),
    "rows came unseen": (raise_barrier, True),
    "a table came that may refer to it": (lambda lake: make_people(lake, "pet"), True),
    "rows came elsewhere": (lambda lake: put(lake, "w", table="team"), False),
}


@pytest.mark.parametrize("meanwhile", REFERRED)
def test_a_purge_is_published_only_if_nobody_can_refer_to_what_goes(lake: Lake, meanwhile: str) -> None:
    purge = teams(lake)
    work, refused = REFERRED[meanwhile]
    work(lake)
    with lake.ledger.read() as conn:
        if refused:
            with pytest.raises(Conflict, match="refer to some that are being purged"):
                purge.check(conn, asking(purge.branch_id))
        else:
            purge.check(conn, asking(purge.branch_id))


MERGED: dict[str, tuple[Callable[[Lake], object], bool]] = {
    "nothing": (lambda _: None, False),
    "the source went on": (lambda lake: put(lake, "z", "x"), False),
    "the source was deleted": (lambda lake: lake.delete_branch("x", force=True), True),
    "rows of the source were purged": (lambda lake: raise_barrier(lake, "x"), True),
    "another branch was merged": (lambda lake: lake.merge("y"), True),
    "a table of the target was changed": (lambda lake: reshape(lake, "pet"), True),
}


@pytest.mark.parametrize("meanwhile", MERGED)
def test_a_large_merge_is_published_only_if_its_branches_are_so_still(lake: Lake, judge: Judge, meanwhile: str) -> None:
    """Whoever publishes it, and whatever it holds."""
    prepared(lake)
    by_rows(lake)
    planned = judge(lambda: lake.merge("x"))
    work, refused = MERGED[meanwhile]
    work(lake)
    with lake.ledger.read() as conn:
        if refused:
            with pytest.raises(Conflict, match="changed while it was merged"):
                TakeMerge.of(planned, 1).check(conn, asking(planned.branch_id))
        else:
            TakeMerge.of(planned, 1).check(conn, asking(planned.branch_id))


def test_large_merges_into_a_branch_come_one_after_another(lake: Lake, judge: Judge) -> None:
    """Also where they have no table in common."""
    prepared(lake)
    by_rows(lake)
    planned = judge(lambda: lake.merge("x"))
    operation = MergeTables("main", "ann", planned, lambda: None)
    with lake.ledger.read() as conn:
        covered = operation.cover(conn)
        assert [one.iceberg_name for one in covered.scopes] == ["lake.person"]
    begun(lake, "merge")
    with lake.ledger.read() as conn, pytest.raises(Held):
        operation.cover(conn)


def test_a_large_merge_that_lost_its_leases_holds_no_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who took them has given it up; what it would hold from now on nobody would let go of."""
    prepared(lake)
    by_rows(lake)
    monkeypatch.setattr(merging, "MOST_ROWS", 0)

    def lose(name: str) -> None:
        if name == "begin.after_commit":
            in_ledger(lake, "update leases set fence = fence + 1")

    monkeypatch.setattr(steps, "fail", lose)
    with pytest.raises(LeaseLost):
        lake.merge("x")
    assert in_ledger(lake, "select * from reservations") == []


@pytest.mark.parametrize("statistics", [True, False])
def test_a_file_is_asked_itself_whether_it_holds_values(tmp_path: Path, statistics: bool) -> None:
    """By its footer, or by its rows where that does not say; a column of nulls holds none."""
    path = tmp_path / "file.parquet"
    rows = pa.table({"a": pa.array([None, 1]), "b": pa.array([None, None], pa.int64()), "c": [[1], None]})
    pq.write_table(rows, path, write_statistics=statistics)
    file = DataFile(str(path), "all", 1, 2, 2, 0, 0, 0)
    assert [name for name in ("a", "b", "c", "d") if holds(file, {name})] == ["a", "c"]


def test_the_horizon_is_the_oldest_point_that_anybody_may_ask_for(lake: Lake) -> None:
    """Where the window begins, and all that is older and stands for something, for as long as it does."""
    make_people(lake)

    def change(key: str, branch: str = "main") -> str:
        return lake.mutate([sl.put("person", {"id": key})], branch=branch).commit_id

    def horizon(cutoff_us: int = 1) -> str | None:
        with lake.ledger.read() as conn:
            found = find_horizon(conn, lake.view().branch_table("person").head.branch_id, cutoff_us)
        return None if found is None else found.commit.commit_id

    commits = [change(key) for key in "abcdef"]
    in_ledger(lake, "update commits set at_us = 0 where seq <= :seq", seq=lake.commit(commits[4]).seq)
    assert (horizon(), horizon(-1)) == (commits[4], None)
    lake.tag("v", commits[3])
    assert horizon() == commits[3]
    lake.branch("x", commits[2])
    assert horizon() == commits[2]
    change("x", "x")
    lake.tag("old", commits[1])
    assert horizon() == commits[1]
    lake.delete_tag("old")
    assert horizon() == commits[2], "where a branch and this one last were one"
    lake.delete_branch("x", force=True)
    lake.delete_tag("v")
    assert horizon() == commits[4]
    lake.branch("z", commits[1])
    change("z", "z")
    kept = change("g")
    lake.merge("z")
    in_ledger(lake, "update commits set at_us = 0 where seq <= :seq", seq=lake.commit(kept).seq)
    assert horizon() == kept, "what came by a merge is not on the branch's own line"
    lake.branch("y")
    begun_at = lake.log(limit=1)[0].commit_id
    change("h")
    change("y", "y")
    lake.merge("y")
    assert horizon(2**62) == begun_at, "where a branch began, also when it has been merged since"
