"""Long flows over everything versions are made of, checked by value at every look back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.errors import Busy, Conflict, HistoryGone
from strandline.lake import Lake
from strandline.ledger.rows import batches
from strandline.ledger.tables.tables import branch_id
from strandline.model.ids import branch_ref
from strandline.reports.doctor import examine
from tests.kit import audits, intents_of
from tests.versions.kit import make_people

Ages = dict[str, int | None]


def ages(lake: Lake, branch: str = "main", at: str | None = None) -> Ages:
    """Everybody's age."""
    rows = lake.view(branch, at=at).sql("select id, age from person").rows()
    assert len(dict(rows)) == len(rows), "a key is there twice"
    return dict(rows)


def aged(lake: Lake, branch: str = "main", **found: int | None) -> str:
    """Set ages, or delete people; the commit."""
    steps = [
        sl.delete("person", key) if age is None else sl.put("person", {"id": key, "age": age})
        for key, age in found.items()
    ]
    return lake.mutate(steps, branch=branch).commit_id


def tidied(lake: Lake, *branches: str) -> Iterator[str]:
    """All maintenance there is, branch after branch; it stops after every step."""
    for branch in branches:
        for step in (lake.flush, lake.compact, lake.fold, lake.expire, lake.sweep):
            how: dict[str, Any] = {"grace_s": 0} if step in (lake.expire, lake.sweep) else {}
            step(branch=branch, **how)  # type: ignore[operator]
            batches.sweep(lake.ledger, grace_s=0)
            yield f"{step.__name__} {branch}"


def refs_are_pins(lake: Lake) -> None:
    """What outside engines see of every branch that they can see is what the lake is at."""
    with lake.ledger.read() as conn:
        names = {
            one.name: "main" if one.name == "main" else branch_ref(branch_id(conn, one.name)) for one in lake.branches()
        }
    for table, state in (("lake.person", "person"), ("state.person", "person$state")):
        refs = lake.iceberg().refs(table) if lake.iceberg().exists(table) else {}
        for branch, ref in names.items():
            head = lake.view(branch).branch_table(state).head.log_snapshot
            assert refs.get(ref, head) == head, (table, branch)


def test_load_branch_change_merge_look_back_tidy_and_go_on(lake: Lake, tmp_path: Path) -> None:
    """Load, branch, two mutations, mutate main, merge, look back before the merge, compact, fold, expire, mutate again,
    reopen.
    """
    make_people(lake)
    file = tmp_path / "people.jsonl"
    file.write_text("".join(f'{{"id": "p{n}", "age": {n}}}\n' for n in range(50)))
    lake.load("person", [str(file)])
    loaded = lake.log(limit=1)[0].commit_id
    began: Ages = {f"p{n}": n for n in range(50)}
    lake.flush("person")
    lake.branch("x")
    first, second = aged(lake, "x", p1=101, new=1), aged(lake, "x", p2=None, p3=103)
    ours = aged(lake, p4=204, p5=None)
    merged = lake.merge("x").commit
    assert merged is not None
    on_main = {key: age for key, age in {**began, "p4": 204}.items() if key != "p5"}
    both = {key: age for key, age in {**on_main, "p1": 101, "new": 1, "p3": 103}.items() if key != "p2"}
    points = {
        loaded: began,
        first: {**began, "p1": 101, "new": 1},
        second: {key: age for key, age in {**began, "p1": 101, "new": 1, "p3": 103}.items() if key != "p2"},
        ours: on_main,
        merged: both,
    }

    def check(lake: Lake, step: str) -> None:
        assert {point: ages(lake, at=point) for point in points} == points, step
        assert ages(lake) == points[lake.log(limit=1)[0].commit_id], step

    check(lake, "merge")
    for step in tidied(lake, "main", "x"):
        check(lake, step)
    points[aged(lake, p2=302, p4=None)] = {key: age for key, age in {**both, "p2": 302}.items() if key != "p4"}
    check(lake, "mutate again")
    lake.close()
    with Lake(lake.root) as again:
        check(again, "reopen")
        assert ages(again, "x") == points[second]
        assert (intents_of(again), examine(again, deep=True)) == ([], [])


@pytest.mark.both_ledgers
def test_two_branches_from_different_points_with_main_moving_before_every_step(lake: Lake) -> None:
    """Two merges; values at both earlier points; reopen; no intent is left."""
    make_people(lake)
    points: dict[str, Ages] = {}
    now: Ages = {}

    def moved(**found: int | None) -> str:
        """Main moves: a person of its own each time, and these."""
        found[f"m{len(points)}"] = len(points)
        now.update(found)
        for key in [key for key, age in now.items() if age is None]:
            del now[key]
        commit = aged(lake, **found)
        points[commit] = dict(now)
        return commit

    moved(a=1, b=1, c=1, d=1)
    lake.branch("early")
    early = dict(now)
    before_late = moved(a=2)
    lake.flush("person")
    lake.branch("late")
    late = dict(now)
    moved()
    points[aged(lake, "early", b=10, e=10)] = early | {"b": 10, "e": 10}
    moved()
    points[aged(lake, "late", c=None, d=20)] = {key: age for key, age in (late | {"d": 20}).items() if key != "c"}
    before_first = moved()
    done = lake.merge("early")
    now.update(b=10, e=10)
    assert done.outcome == "merged" and done.commit is not None and done.tables == {"person": 2}
    points[done.commit] = dict(now)
    before_second = moved(e=11)
    done = lake.merge("late")
    now.update(d=20)
    del now["c"]
    assert done.outcome == "merged" and done.commit is not None and done.tables == {"person": 2}
    points[done.commit] = dict(now)
    moved()
    assert (len(points[before_late]), len(points[before_first]), len(points[before_second])) == (6, 9, 11)
    with Lake(lake.root) as again:
        assert ages(again) == now
        assert {point: ages(again, at=point) for point in points} == points
        again.flush("person")
        again.fold("person")
        assert {point: ages(again, at=point) for point in points} == points
        assert (intents_of(again), examine(again, deep=True)) == ([], [])


def test_f36_branches_tags_and_open_deliveries_read_the_same_through_all_maintenance(
    lake: Lake, tmp_path: Path
) -> None:
    """With merges of every kind before it: a fast-forward, a table that was taken over, rows that were written anew."""
    make_people(lake)
    make_people(lake, "pet")
    aged(lake, a=1, b=1)
    lake.mutate([sl.put("pet", {"id": "rex", "age": 1})])
    lake.flush()
    lake.fold()
    for name in ("ahead", "beside", "child"):
        lake.branch(name)
    tagged = aged(lake, "ahead", a=2)
    aged(lake, "ahead", c=3)
    lake.flush(branch="ahead")
    lake.tag("first", tagged)
    lake.branch("ahead/child", "ahead")
    assert lake.merge("ahead").outcome == "fast_forward"
    lake.mutate([sl.put("pet", {"id": "tom", "age": 2})], branch="beside")
    lake.flush(branch="beside")
    assert lake.merge("beside").outcome == "merged"
    aged(lake, "child", b=7)
    aged(lake, d=4)
    assert lake.merge("child").outcome == "merged"
    lake.tag("last")
    lake.add_sink("out", "blob", {"uri": (tmp_path / "out").as_uri()})
    places = [*((one.name, None) for one in lake.branches()), ("main", "first"), ("main", "last")]

    def seen() -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for branch, at in places:
            view = lake.view(branch, at=at)
            for table in ("person", "pet"):
                found[branch, at, table] = view.sql(f'select id, age, _seq from "{table}" order by 1').rows()
                found[branch, at, table, "log"] = view.sql(f'select id, age, _seq from "{table}$log" order by 3').rows()
        return found

    before = seen()
    assert ages(lake) == {"a": 2, "b": 7, "c": 3, "d": 4} and ages(lake, at="first") == {"a": 2, "b": 1}
    held = lake.view()
    with held.held():
        rows = held.sql("select id, age, _seq from person order by 1").rows()
        for step in tidied(lake, "main"):
            assert seen() == before, step
        assert held.sql("select id, age, _seq from person order by 1").rows() == rows
    refs_are_pins(lake)
    assert sum(done.rows for done in lake.tick("out")) == len(before["main", None, "person", "log"]) + len(
        before["main", None, "pet", "log"]
    )
    for name in ("ahead", "beside", "child"):
        lake.delete_branch(name)
        del places[[branch for branch, _ in places].index(name)]
        for key in [key for key in before if key[0] == name]:
            del before[key]
    for step in tidied(lake, "ahead/child"):
        assert seen() == before, step
    assert examine(lake, deep=True) == []


@pytest.mark.parametrize("make", [lambda lake, n: lake.branch(f"n{n}", "x"), lambda lake, n: lake.tag(f"n{n}", "x")])
def test_f55_branches_and_tags_race_expiry_and_what_was_made_stays_readable(
    lake: Lake, make: Callable[[Lake, int], object]
) -> None:
    """Each is refused with a typed error, or reads its rows for good; the source is deleted under it."""
    make_people(lake)
    aged(lake, a=1)
    for n in range(2):
        lake.branch("x")
        aged(lake, "x", a=n, b=n)
        lake.flush(branch="x")
        aged(lake, "x", c=n)
        lake.flush(branch="x")
        lake.compact(branch="x")
        with Lake(lake.root) as other, ThreadPoolExecutor(2) as pool:
            made = pool.submit(make, other, n)
            gone = pool.submit(_gone, lake)
            gone.result(120)
            with suppress(HistoryGone, Conflict, Busy, sl.NotFound):
                made.result(120)
        for _ in tidied(lake, "main"):
            pass
        names = [one.name for one in (*lake.branches(), *lake.tags()) if one.name.startswith("n")]
        assert {name: ages(lake, at=name) for name in names} == {
            name: {"a": int(name[1:]), "b": int(name[1:]), "c": int(name[1:])} for name in names
        }
    assert examine(lake, deep=True) == []


def _gone(lake: Lake) -> None:
    """The branch is expired, deleted, and what was its own goes."""
    lake.expire(branch="x", grace_s=0)
    lake.delete_branch("x", force=True)
    lake.sweep(grace_s=0)
    lake.expire(grace_s=0)


@pytest.mark.parametrize("folded", [False, True])
def test_doctor_tells_of_refs_that_a_merge_left_until_they_follow(lake: Lake, folded: bool) -> None:
    """Tables that are taken over leave the Iceberg refs behind: it says so, and who has Spark moves them."""
    make_people(lake)
    make_people(lake, "pet")
    aged(lake, a=1)
    lake.mutate([sl.put("pet", {"id": "rex"})])
    lake.flush()
    lake.branch("x")
    aged(lake, "x", b=2)
    lake.flush(branch="x")
    if folded:
        lake.fold(branch="x")
    assert lake.merge("x").outcome == "fast_forward"
    assert {one.kind for one in examine(lake, deep=True)} == {"unsettled"}
    assert [one.kind for one in lake.recover()] == ["merge"]
    refs_are_pins(lake)
    assert (examine(lake, deep=True), intents_of(lake), audits(lake)) == ([], [], [])
    lake.mutate([sl.put("pet", {"id": "tom"})], branch="x")
    aged(lake, c=3)
    lake.flush(branch="x")
    if folded:
        lake.fold(branch="x")
    assert lake.merge("x").outcome == "merged"
    lake.delete_branch("x")
    lake.recover()
    refs_are_pins(lake)
    assert (examine(lake, deep=True), intents_of(lake), audits(lake)) == ([], [], [])
