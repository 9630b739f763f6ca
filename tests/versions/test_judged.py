"""What a change was judged by is compared when it is stored: each thing that may have changed since is noticed.

Changes are judged here and kept, then something happens, then they are stored. So each comparison is met alone; in a
race another one may have noticed it first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.errors import StrandError
from strandline.lake import Lake
from strandline.ledger.changes import mutations
from strandline.ledger.changes.mutations import Mutation
from strandline.ledger.publish import intent_rows
from strandline.ledger.publish.publishing import Intent
from strandline.ledger.rows import reservations
from strandline.model.ids import new_id
from strandline.operations.change import mutate as mutating
from strandline.operations.core.recovery import NOBODY
from strandline.operations.merge import merge as merging
from tests.kit import audits, in_ledger
from tests.versions.test_schema import column, edited


@dataclass
class Kept(BaseException):
    """A change that was judged, and is not stored."""

    mutation: Mutation


@pytest.fixture
def judge(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], Mutation]:
    """Lets a call go on to where its change would be stored, and answers with the change."""

    def keep(*arguments: Any) -> Any:
        raise Kept(arguments[-1])

    def keep_only(mutations: Sequence[Mutation]) -> Any:
        (mutation,) = mutations
        raise Kept(mutation)

    def judged(work: Callable[[], object]) -> Mutation:
        with monkeypatch.context() as patch, pytest.raises(Kept) as kept:
            patch.setattr(lake.memory.appender, "mutate", keep_only)
            patch.setattr(lake.memory.appender, "merge", keep)
            patch.setattr(merging, "fast_forward", keep)
            work()
        return kept.value.mutation

    return judged


Judge = Callable[[Callable[[], object]], Mutation]


def stored(lake: Lake, *changes: Mutation) -> list[str]:
    """What comes of storing them in one transaction: `stored`, or what kind of error."""

    def work(txn: Any) -> list[Any]:
        if changes[0].source is not None and changes[0].tip is not None:
            return [mutations.fast_forward(txn, changes[0])]
        return mutations.store_mutations(txn, changes)

    return [_told(one) for one in lake.ledger.run(work)]


def _told(answer: Any) -> str:
    if isinstance(answer, StrandError):
        return str(answer.detail.get("kind", answer.code))
    return type(answer).__name__ if isinstance(answer, Exception) else "stored"


def put(lake: Lake, key: str, branch: str = "main", table: str = "person", **fields: Any) -> object:
    return lake.mutate([sl.put(table, {"id": key, **fields})], branch=branch)


def prepared(lake: Lake) -> None:
    """People of whom no two have the same number, and their pets; a branch x with a person more, y with a pet more."""
    lake.create_table("person", {"id": "string", "n": "long?"}, key=["id"], constraints=["unique(n)"])
    lake.create_table("pet", {"id": "string", "n": "long?"}, key=["id"])
    for table in ("person", "pet"):
        lake.mutate([sl.put(table, {"id": key}) for key in "ab"])
    lake.branch("x")
    put(lake, "x", "x", n=7)
    lake.branch("y")
    put(lake, "y", "y", "pet")


def head(lake: Lake, table: str = "person", branch: str = "main") -> Any:
    return lake.view(branch).branch_table(table).head


def raise_barrier(lake: Lake, branch: str = "main") -> None:
    """Rows came otherwise than by a change, or went, as by a purge."""
    at = head(lake, branch=branch)
    in_ledger(lake, "update heads set barrier = barrier + 1 where branch_id = :b and table_id = :t",
              b=at.branch_id, t=at.table_id)  # fmt: skip


def begun(lake: Lake, kind: str) -> str:
    """An operation on main has begun, and its process is dead."""
    op_id, at = new_id(), head(lake)
    with lake.ledger.write() as txn:
        intent_rows.write_intent(txn, Intent(op_id, kind, "staging", at.branch_id, "ann", NOBODY, txn.at_us, ()))
    return op_id


def hold(lake: Lake) -> None:
    """A large load has begun to change people."""
    op_id, at = begun(lake, "load"), head(lake)
    with lake.ledger.write() as txn:
        reservations.reserve(txn, op_id, at.branch_id, at.table_id, 0)


def reshape(lake: Lake, table: str = "person", branch: str = "main") -> None:
    lake.schema_apply(edited(lake, column("city", "string?"), table, branch=branch), branch=branch)


def refuse(lake: Lake) -> None:
    in_ledger(lake, "update heads set refuses = 'damaged' where table_id = :t", t=head(lake).table_id)


MEANWHILE: dict[str, tuple[Callable[[Lake], object], str]] = {
    "the row was changed": (lambda lake: put(lake, "a", n=2), "Moved"),
    "its unique value was taken": (lambda lake: put(lake, "c", n=1), "Moved"),
    "another row was changed": (lambda lake: put(lake, "b", n=2), "stored"),
    "another table was changed": (lambda lake: put(lake, "a", table="pet", n=1), "stored"),
    "rows came or went unseen": (raise_barrier, "Moved"),
    "a large load holds the table": (hold, "Held"),
    "the schema was changed": (reshape, "schema_moved"),
    "another table's schema was changed": (lambda lake: reshape(lake, "pet"), "schema_moved"),
    "the table is damaged": (refuse, "damaged"),
    "the branch is protected": (lambda lake: lake.protect_branch("main"), "branch_protected"),
}


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_f66_a_mutation_is_stored_only_if_what_it_was_judged_by_is_so_still(
    lake: Lake, judge: Judge, monkeypatch: pytest.MonkeyPatch, meanwhile: str, many: bool
) -> None:
    """Whether its rows are few and each is asked for, or many."""
    if many:
        monkeypatch.setattr(mutations, "MANY", 0)
    prepared(lake)
    change = judge(lambda: lake.mutate([sl.patch("person", "a", {"n": 1})]))
    work, expected = MEANWHILE[meanwhile]
    work(lake)
    assert stored(lake, change) == [expected]


def test_f66_a_mutation_of_a_branch_that_was_deleted_is_refused(lake: Lake, judge: Judge) -> None:
    prepared(lake)
    change = judge(lambda: put(lake, "a", "x", n=1))
    lake.delete_branch("x", force=True)
    assert stored(lake, change) == ["not_found"]


def test_f66_changes_that_share_a_transaction_see_each_other(lake: Lake, judge: Judge) -> None:
    """Of rows and of unique values; a condition on the branch's tip, or on a table's newest version, counts too."""
    prepared(lake)
    tip, seq = lake.log(limit=1)[0].commit_id, head(lake).last_seq
    row, value, other = (
        sl.patch("person", "a", {"n": 1}),
        sl.put("person", {"id": "c", "n": 1}),
        sl.put("pet", {"id": "c"}),
    )
    first = judge(lambda: lake.mutate([row]))
    later = [
        (judge(lambda: lake.mutate([row])), "Moved"),
        (judge(lambda: lake.mutate([value])), "Moved"),
        (judge(lambda: lake.mutate([other], expect=sl.head(tip))), "head_moved"),
        (judge(lambda: lake.mutate([other], expect=sl.table_head("person", seq))), "table_moved"),
        (judge(lambda: lake.mutate([other])), "stored"),
    ]
    assert stored(lake, first, *(change for change, _ in later)) == ["stored", *(told for _, told in later)]


def test_f66_who_replaces_a_whole_table_sees_each_row_that_came(lake: Lake, judge: Judge, tmp_path: Path) -> None:
    """It does not name the rows that it deletes."""
    prepared(lake)
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"id": "a"}) + "\n")
    change = judge(lambda: lake.load("pet", [str(source)], mode="overwrite"))
    put(lake, "new", table="pet")
    assert stored(lake, change) == ["Moved"]


def test_f61_of_two_loads_under_one_key_one_is_stored(lake: Lake, judge: Judge, tmp_path: Path) -> None:
    """Also where both were judged before: it reads nothing that the other has written."""
    prepared(lake)
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"id": "new"}) + "\n")
    loads = [judge(lambda: lake.load("pet", [str(source)], mode="merge", key="k")) for _ in range(2)]
    first, second = lake.ledger.run(lambda txn: mutations.store_mutations(txn, loads))
    assert first == second and lake.log(limit=1)[0] == first
    assert lake.view().sql("select count(*) from \"pet$log\" where id = 'new'").rows() == [(1,)]


def by_rows(lake: Lake) -> None:
    """Main goes on in both tables: people of x are merged by rows."""
    put(lake, "m", n=3)
    put(lake, "m", table="pet")


def ahead(_: Lake) -> None:
    """Main stays where it was: it can be where x is."""


def new_table(lake: Lake) -> None:
    """Main goes on in people, and x has a new table, which is taken over."""
    put(lake, "m", n=3)
    lake.create_table("toy", {"id": "string"}, key=["id"], branch="x")


def decided(lake: Lake) -> None:
    """Main has the rows of x already: only the commit is merged."""
    put(lake, "x", n=7)


SOURCE_MEANWHILE: dict[str, tuple[Callable[[Lake], object], set[Callable[[Lake], None]]]] = {
    "nothing": (lambda _: None, set()),
    "the source was deleted": (lambda lake: lake.delete_branch("x", force=True), {by_rows, ahead, new_table, decided}),
    "rows of the source were purged": (lambda lake: raise_barrier(lake, "x"), {by_rows, new_table, decided}),
    "the source went on": (lambda lake: put(lake, "z", "x"), {ahead, new_table, decided}),
    "another branch was merged": (lambda lake: lake.merge("y"), {by_rows, ahead, new_table, decided}),
    "the target went on elsewhere": (lambda lake: put(lake, "q", table="pet"), {ahead}),
}


@pytest.mark.parametrize("how", [by_rows, ahead, new_table, decided])
@pytest.mark.parametrize("meanwhile", SOURCE_MEANWHILE)
def test_f66_a_merge_is_stored_only_if_its_source_is_so_still(
    lake: Lake, judge: Judge, meanwhile: str, how: Callable[[Lake], None]
) -> None:
    """Rows that were read may be fewer than there are by now; what is taken over is taken as it was read."""
    prepared(lake)
    how(lake)
    change = judge(lambda: lake.merge("x"))
    work, moves = SOURCE_MEANWHILE[meanwhile]
    work(lake)
    assert stored(lake, change) == ["Moved" if how in moves else "stored"]


@pytest.mark.parametrize("large", [lambda lake: begun(lake, "merge"), hold], ids=["merge", "load"])
@pytest.mark.parametrize("how", [by_rows, ahead])
def test_f66_a_merge_waits_for_large_work_on_its_branch(
    lake: Lake, judge: Judge, how: Callable[[Lake], None], large: Callable[[Lake], object]
) -> None:
    """For another merge also before that one holds a table."""
    prepared(lake)
    how(lake)
    change = judge(lambda: lake.merge("x"))
    large(lake)
    assert stored(lake, change) == ["Held"]


def prune(lake: Lake) -> None:
    """Retention has taken versions out of what x has of pets."""
    at = head(lake, "pet", "x")
    in_ledger(lake, "update heads set kept_from = 1 where branch_id = :b and table_id = :t",
              b=at.branch_id, t=at.table_id)  # fmt: skip


@pytest.mark.parametrize("meanwhile", [lambda lake: put(lake, "m", table="pet"), prune], ids=["changed", "pruned"])
def test_f66_a_table_that_would_lose_something_is_not_taken_over(
    lake: Lake, judge: Judge, meanwhile: Callable[[Lake], object]
) -> None:
    """Rows that the target has got meanwhile, or versions that it still has."""
    prepared(lake)
    put(lake, "m", n=3)
    put(lake, "p", "x", "pet")
    change = judge(lambda: lake.merge("x"))
    assert change.source is not None and [one.table for one in change.source.adopted] == ["pet"]
    meanwhile(lake)
    assert stored(lake, change) == ["Moved"]


def test_f66_nobody_waits_for_what_is_dead(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation gives up the load that holds its table, and a merge the one that was before it; both are audited."""
    prepared(lake)
    for module in (mutating, merging):
        monkeypatch.setattr(module, "PATIENCE_S", 2)
    hold(lake)
    put(lake, "a", n=1)
    begun(lake, "merge")
    assert lake.merge("x").outcome == "merged"
    assert [(one["kind"], one["outcome"], one["original_actor"]) for one in audits(lake)] == [
        ("merge", "rolled_back", "ann"),
        ("load", "rolled_back", "ann"),
    ]
