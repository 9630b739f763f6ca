"""Operations on a branch's branch that die, and whose recovery dies: flush, compact, expire, a branch in the past.

Each dies at its failpoints, one after the other, on one lake; the recovery of each is killed at its own, too,
before one is let through. What any branch shows, its commits and the doctor's findings are asked after each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.lake import Lake
from strandline.reports.doctor import examine
from tests.acceptance.test_failpoints import FLUSH_POINTS, RECOVERY_POINTS
from tests.kit import audits, crash, in_ledger, intents_of, recovery_dies, reopened, swept
from tests.maintenance.test_compact import REWRITE_POINTS
from tests.maintenance.test_expire import EXPIRE_POINTS
from tests.versions.kit import make_people

BRANCHES = ("main", "x", "x/y")
DEEPEST = BRANCHES[-1]


def nested(lake: Lake) -> None:
    """A branch x of main and a branch of that, each with files, a state and a tail; what they share is shared."""
    make_people(lake)
    for branch, parent in zip(BRANCHES, (None, *BRANCHES), strict=False):
        if parent is not None:
            lake.branch(branch, parent)
        lake.mutate([sl.put("person", {"id": key, "name": branch}) for key in ("a", branch)], branch=branch)
        lake.flush("person", branch=branch)
        lake.fold("person", branch=branch)
        lake.mutate([sl.patch("person", "a", {"age": 1})], branch=branch)


def seen(lake: Lake) -> dict[str, tuple[Any, ...]]:
    """What every branch shows, with all versions, and its commits."""
    found: dict[str, tuple[Any, ...]] = {}
    for branch in (one.name for one in lake.branches()):
        view = lake.view(branch)
        rows = view.sql("select id, name, age, _seq, _commit from person order by id").rows()
        versions = view.sql('select id, age, _removed, _seq from "person$log" order by _seq').rows()
        found[branch] = rows, versions, lake.log(branch)
    return found


def clean(lake: Lake, *, deep: bool = False) -> None:
    """Nothing is under way or left over; outside engines find each branch at its pin, and the doctor finds nothing."""
    assert intents_of(lake) == [] and lake.context.staging.listing() == []
    assert in_ledger(lake, "select * from leases where op_id is not null") == []
    for table in ("person", "person$state"):
        states = [lake.view(one.name).branch_table(table) for one in lake.branches()]
        refs = lake.iceberg().refs(states[0].table.iceberg_name)
        assert set(refs.values()) <= {state.head.log_snapshot for state in states}, refs
        assert not [ref for ref in refs if ref.startswith("op_")]
    assert examine(lake, deep=deep) == []


def told(lake: Lake, since: int) -> list[tuple[str, str]]:
    """What recovery wrote down after so many entries, and whose work it was; what it undid has not moved."""
    found = audits(lake)[: len(audits(lake)) - since]
    for one in found:
        assert (one["actor"], one["original_actor"]) == ("strandline:recovery", "ann")
        unmoved = [table["to_snapshot"] == table["from_snapshot"] for table in one["tables"]]
        assert one["outcome"] != "rolled_back" or all(unmoved)
    return [(one["kind"], one["outcome"]) for one in found]


def flushing(lake: Lake) -> bool:
    return lake.flush("person", branch=DEEPEST, actor="ann")[0].operation is not None


def compacting(lake: Lake) -> bool:
    return lake.compact("person", branch=DEEPEST, actor="ann")[0].operations != ()


def expiring(lake: Lake) -> bool:
    return lake.expire("person", branch=DEEPEST, actor="ann", grace_s=0)[0].operations != ()


@pytest.mark.parametrize(
    ("work", "kind", "points"),
    [
        (flushing, "flush", FLUSH_POINTS),
        (compacting, "compact", REWRITE_POINTS),
        (expiring, "expire", EXPIRE_POINTS),
    ],
)
def test_f44_what_dies_on_a_branch_s_branch_is_done_or_undone_there(
    lake: Lake, work: Callable[[Lake], bool], kind: str, points: dict[str, str | None]
) -> None:
    """Rows, versions and commits of all branches stay; the audit says what happened, once; done again, it is done."""
    nested(lake)
    work(lake)
    for age, name in enumerate(swept(points)):
        lake.mutate([sl.patch("person", DEEPEST, {"age": age})], branch=DEEPEST)
        if work is not flushing:
            lake.flush("person", branch=DEEPEST)
        before, entries = seen(lake), len(audits(lake))
        failpoints.arm(f"{name}=raise")
        with crash(lake):
            work(lake)
        recovery_dies(lake, *swept(RECOVERY_POINTS))
        lake = reopened(lake)
        assert seen(lake) == before, name
        lake.recover()
        outcome = points[name]
        assert told(lake, entries) == ([(kind, outcome)] if outcome else []), name
        clean(lake)
        undone = outcome == "rolled_back" or name == "begin.before_commit"
        assert work(lake) == undone, "what was rolled back is done again, and nothing else"
    lake.sweep(grace_s=0)
    assert (work(lake), seen(lake)) == (False, before)
    clean(lake, deep=True)
    lake.close()


PAST_POINTS = [
    *((name, 1, outcome) for name, outcome in FLUSH_POINTS.items()),
    ("stage.after_append", 2, "rolled_back"),
    ("branch.before_commit", 1, None),
    ("branch.after_commit", 1, None),
]
"""The rows of later are taken out by one operation; then the state is folded by another, which `test_fold` kills."""


def test_f44_a_branch_at_a_past_commit_of_a_branch_s_branch_that_dies_is_not_there_or_whole(lake: Lake) -> None:
    """Nobody sees a part of it; what is left of it goes, and at last it is made."""
    nested(lake)
    point = lake.mutate([sl.put("person", {"id": "p", "age": 1})], branch=DEEPEST).commit_id
    lake.mutate([sl.put("person", {"id": key, "age": 2}) for key in "ap"], branch=DEEPEST)
    lake.flush("person", branch=DEEPEST)
    lake.fold("person", branch=DEEPEST)
    before = seen(lake)
    names = {*swept(name for name, _, _ in PAST_POINTS), "branch.after_commit"}  # which makes the branch at last
    for name, nth, outcome in PAST_POINTS:
        if name not in names:
            continue
        entries = len(audits(lake))
        failpoints.arm(f"{name}=raise@{nth}")
        with crash(lake):
            lake.branch("past", point, actor="ann")
        recovery_dies(lake, *swept(RECOVERY_POINTS))
        lake = reopened(lake)
        found = seen(lake)
        assert {branch: found[branch] for branch in before} == before, (name, nth)
        assert (found.keys() - before.keys() == {"past"}) == (name == "branch.after_commit")
        lake.recover()
        assert told(lake, entries) == ([(("branch", "fold")[nth - 1], outcome)] if outcome else []), (name, nth)
        assert intents_of(lake) == [] and examine(lake) == []
    in_ledger(lake, "update branches set created_at_us = 0 where kind = 'making'")
    lake.sweep(grace_s=0)
    assert in_ledger(lake, "select * from branches where kind = 'making' and deleted_at_us is null") == []
    rows = "select id, name, age, _seq, _commit from person order by id"
    assert found["past"][0] == lake.view(at=point).sql(rows).rows() != before[DEEPEST][0]
    assert found["past"][2] == [one for one in before[DEEPEST][2] if one.seq <= lake.commit(point).seq]
    lake.mutate([sl.patch("person", "p", {"age": 3})], branch="past")
    assert seen(lake)[DEEPEST] == before[DEEPEST]
    clean(lake, deep=True)
    lake.close()
