"""Changes of several threads that are planned and stored together are still changes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest

import strandline as sl
from strandline.errors import Busy, Conflict, NotFound
from strandline.lake import Lake
from strandline.ledger.database.outcomes import is_unknown
from strandline.ledger.database.prepared import Bound
from strandline.ledger.ledger import Txn
from strandline.model.history.commits import Commit
from strandline.operations.change import mutate
from strandline.operations.change.statements import prepare
from tests.kit import wait_until
from tests.versions.kit import make_people, people

pytestmark = pytest.mark.both_ledgers

Begin: TypeAlias = Callable[..., "Future[Commit]"]


@contextmanager
def one_group(lake: Lake) -> Iterator[Begin]:
    """Changes that are begun inside wait behind one of the row `first`, and are one group when the block ends."""
    groups = lake.memory.mutator._seeing
    begun: list[Future[Commit]] = []

    def begin(*statements: Any, **options: Any) -> Future[Commit]:
        begun.append(pool.submit(lake.mutate, list(statements), **options))
        # The first one leads, and has taken itself out of the queue; each of the others makes it longer by one.
        wait_until(lambda: groups._leader is not None and len(groups._queue) == len(begun) - 1, timeout_s=30)
        return begun[-1]

    with ThreadPoolExecutor(16) as pool:
        with lake.ledger.write():
            begin(sl.insert("person", {"id": "first"}))
            yield begin
        for one in begun:
            one.exception(timeout=60)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tables were looked at, for each look at the ledger by who changes rows."""
    made: list[int] = []
    read = mutate.read_versions

    def counting(*given: Any) -> Any:
        made.append(len(given[2]))
        return read(*given)

    monkeypatch.setattr(mutate, "read_versions", counting)
    return made


@pytest.fixture
def people_lake(lake: Lake) -> Lake:
    """Rows a to d, and a table besides."""
    make_people(lake)
    make_people(lake, "other")
    lake.mutate([sl.put("person", {"id": one, "age": 1}) for one in "abcd"])
    return lake


def test_changes_that_wait_are_looked_up_at_once_and_stored_as_commits_of_their_own(
    people_lake: Lake, looks: list[int]
) -> None:
    """One look for all of them, one commit for each, in the order in which they came."""
    with one_group(people_lake) as begin:
        looks.clear()
        asked = [begin(sl.patch("person", one, {"age": 2}), actor=f"of {one}") for one in "abc"]
        asked.append(begin(sl.put("other", {"id": "x"}), sl.delete("person", "d"), actor="of d"))
    commits = [one.result() for one in asked]
    assert looks == [2], "each looked for itself"
    assert [commit.actor for commit in commits] == ["of a", "of b", "of c", "of d"]
    assert [later.parents for later in commits[1:]] == [(earlier.commit_id,) for earlier in commits[:-1]]
    assert commits[-1].tables == {"other": 1, "person": 1}
    assert people(people_lake, "id, age") == [("a", 2), ("b", 2), ("c", 2), ("first", None)]


def test_one_that_is_refused_costs_the_others_nothing(people_lake: Lake) -> None:
    """Each gets the error that it would have got alone; the others are stored, and nothing of it is."""
    with one_group(people_lake) as begin:
        good = begin(sl.patch("person", "a", {"age": 2}))
        missing = begin(sl.put("person", {"id": "new"}), sl.patch("person", "nobody", {"age": 2}))
        there = begin(sl.insert("person", {"id": "b"}))
        stale = begin(sl.put("person", {"id": "c", "age": 2}), expect=sl.row("person", "c", 1))
        also_good = begin(sl.delete("person", "d"))
    assert isinstance(missing.exception(), NotFound)
    refusals = [one.exception() for one in (there, stale)]
    assert [one.detail["kind"] for one in refusals if isinstance(one, Conflict)] == ["key_exists", "row_moved"]
    assert good.result().tables == also_good.result().tables == {"person": 1}
    assert people(people_lake, "id, age") == [("a", 2), ("b", 1), ("c", 1), ("first", None)]


def test_a_transaction_that_fails_is_tried_for_each_alone(people_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails once for the group costs nobody a change: each is stored, once."""
    passed: list[str] = []

    def fail_second(name: str) -> None:
        passed.append(name)
        if name == "mutate.before_commit" and passed.count(name) == 2:
            raise OSError("once")

    monkeypatch.setattr("strandline.ledger.rows.group_commit.fail", fail_second)
    with one_group(people_lake) as begin:
        asked = [begin(sl.patch("person", one, {"age": 2})) for one in "abc"]
    assert [one.result().tables for one in asked] == [{"person": 1}] * 3
    assert passed.count("mutate.before_commit") == 5, "the first, the group, and each of it alone"
    assert people(people_lake, "id, age")[:4] == [("a", 2), ("b", 2), ("c", 2), ("d", 1)]
    assert len(people_lake.view().sql('select _seq from "person$log"').rows()) == 4 + 1 + 3


def test_a_ledger_that_can_t_be_read_is_waited_for_once(people_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told so, and by an error of its own; nobody waits for what the others have waited for."""
    looked: list[int] = []

    def away(*_: object) -> None:
        looked.append(1)
        raise Busy("the ledger does not answer", reason="ledger_behind")

    with one_group(people_lake) as begin:
        asked = [begin(sl.patch("person", one, {"age": 2})) for one in "abc"]
        monkeypatch.setattr(mutate, "read_versions", away)
    errors = [one.exception() for one in asked]
    assert [type(error) for error in errors] == [Busy] * 3 and len({id(error) for error in errors}) == 3
    assert len(looked) == 1


def test_an_interrupt_is_for_the_thread_that_gets_it(people_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a thread that plans for others too: these are told that nobody knows, and nothing is half done."""
    plan = mutate.plan
    interrupted: list[int] = []

    def plan_once(*given: Any) -> Any:
        if interrupted:
            return plan(*given)
        interrupted.append(1)
        raise KeyboardInterrupt

    with one_group(people_lake) as begin:
        asked = [begin(sl.patch("person", one, {"age": 2})) for one in "abc"]
        monkeypatch.setattr(mutate, "plan", plan_once)
    errors = [one.exception() for one in asked]
    assert sorted(type(error).__name__ for error in errors) == ["Busy", "Busy", "KeyboardInterrupt"]
    assert {is_unknown(error) for error in errors if isinstance(error, Busy)} == {True}
    assert people(people_lake, "id, age")[:4] == [(one, 1) for one in "abcd"]
    assert people_lake.mutate([sl.patch("person", "a", {"age": 3})]).tables == {"person": 1}, "the queue goes on"


def test_one_that_changes_nothing_makes_no_commit(people_lake: Lake) -> None:
    """Its answer is the branch's newest; the others are stored."""
    with one_group(people_lake) as begin:
        nothing = begin(sl.delete("person", "nobody"))
        something = begin(sl.delete("person", "a"))
    assert something.result().tables == {"person": 1}
    assert nothing.result().commit_id in {commit.commit_id for commit in people_lake.log()}
    assert len(people_lake.log()) == 5, "two tables, four rows, the first, and one of the two"


def test_branches_of_a_group_are_looked_at_one_by_one(people_lake: Lake, looks: list[int]) -> None:
    """The same row on two branches: each change sees its own."""
    people_lake.branch("side")
    people_lake.mutate([sl.patch("person", "a", {"name": "side"})], branch="side")
    with one_group(people_lake) as begin:
        looks.clear()
        begin(sl.patch("person", "b", {"age": 2}))
        begin(sl.patch("person", "a", {"age": 3}), branch="side")
        begin(sl.patch("person", "c", {"age": 2}))
    assert looks == [1, 1]
    assert people(people_lake) == [
        ("a", None, 1),
        ("b", None, 2),
        ("c", None, 2),
        ("d", None, 1),
        ("first", None, None),
    ]
    on_side = people_lake.view("side").sql("select name, age from person where id = 'a'").rows()
    assert on_side == [("side", 3)]


def test_a_schema_that_moves_under_a_group_is_noticed_by_those_whose_it_is(people_lake: Lake) -> None:
    """Those that were validated by the old one are validated again; the others need not know."""
    with Lake(people_lake.root) as elsewhere:
        old = people_lake.memory.mutator._declared["main"]
        wanted = elsewhere.schema()
        wanted["tables"]["other"]["columns"]["more"] = "long?"
        elsewhere.schema_apply(wanted)
        with one_group(people_lake) as begin:
            first = begin(sl.patch("person", "a", {"age": 2}))
            second = begin(sl.insert("other", {"id": "x", "age": 2}))
    assert first.result().tables == {"person": 1} and second.result().tables == {"other": 1}
    assert people_lake.memory.mutator._declared["main"].shape > old.shape
    assert people_lake.view().sql("select id, age, more from other").rows() == [("x", 2, None)]


def test_who_needs_more_than_its_own_rows_makes_nobody_wait(people_lake: Lake) -> None:
    """Rows that are judged by other rows, many rows and whole tables are planned by their own threads.

    And who puts a row without a look at what is there does not wait for those that may have to read files.
    """
    people_lake.create_table("named", {"id": "string", "name": "string"}, key=["id"], constraints=["unique(name)"])
    people_lake.mutate([sl.put("person", {"id": "a", "age": 3})])
    mutator = people_lake.memory.mutator

    def company(*statements: Any, expect: Any = None) -> Any:
        table_of = people_lake.view().branch_table
        request = prepare(statements, expect, table_of, branch="main", actor="a", message="")
        return mutator._company(request)

    put = sl.put("person", {"id": "a"})
    assert company(put) is mutator._blind
    assert company(put, sl.delete("person", "b")) is mutator._seeing
    assert company(put, expect=sl.row("person", "a", 1)) is mutator._seeing
    assert company(put, sl.put("named", {"id": "a", "name": "x"})) is None
    assert company(*(sl.put("person", {"id": str(n)}) for n in range(mutate.FEW_ROWS + 1))) is None
    assert company(put, expect=[sl.row("person", str(n), 1) for n in range(mutate.FEW_ROWS)]) is None
    whole = prepare([put], None, people_lake.view().branch_table, branch="main", actor="a", message="")
    whole.whole = [people_lake.view().branch_table("person")]
    assert mutator._company(whole) is None


def test_under_the_counter_a_commit_of_many_rows_runs_as_many_statements_as_one_of_few(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody waits for the counter: hashes of keys and of unique values go there packed, and are found again."""
    columns = {"id": "string", "mail": "string?"}
    lake.create_table("member", columns, key=["id"], constraints=["unique(mail)"])
    statements: list[int] = []
    write_last = Txn.write_last

    def counting(txn: Txn, steps: Sequence[Bound]) -> None:
        statements.append(len(steps))
        write_last(txn, steps)

    monkeypatch.setattr(Txn, "write_last", counting)
    totals = []
    for rows in (2, 3000):
        statements.clear()
        lake.mutate([sl.put("member", {"id": f"{rows}-{n}", "mail": f"{rows}-{n}@x"}) for n in range(rows)])
        totals.append(sum(statements))
    assert totals[0] == totals[1]
    with pytest.raises(Conflict) as caught:
        lake.mutate([sl.insert("member", {"id": "3000-1777", "mail": "other@x"})])
    assert caught.value.detail["kind"] == "key_exists"
    lake.mutate([sl.patch("member", "3000-1777", {"mail": "new@x"})])
    assert lake.view().sql("select mail from member where id in ('3000-1777', '3000-2999') order by id").rows() == [
        ("new@x",),
        ("3000-2999@x",),
    ]
