"""Forward sinks on keyed tables: every version at the receiver, once, with the commit that wrote it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest
from strandline.lake import Lake
from tests.delivery import GATEWAY, Receiver, forward, receiving, streams, wipe_marks
from tests.kit import crash, make_table, messages, reopened, strand_json
from tests.versions.kit import PEOPLE, make_people, people, versions
from tests.versions.test_elsewhere import changed
from tests.versions.test_merge import changed as ages
from tests.versions.test_merge import forked

FEED = "select id, age, _origin_removed, _origin_commit, _origin_seq from person order by _origin_seq"
SENT = "id, age, _removed, _commit, _seq"


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A lake that takes the versions of people in a log table."""
    with receiving(tmp_path / "receiver", "messages") as started:
        started.make_table("person", PEOPLE)
        yield started


def outcomes(lake: Lake, sink: str = "central") -> dict[str, tuple[str, str | None]]:
    """Tick, and say by table what came of it."""
    return {one.table: (one.outcome, one.error) for one in lake.tick(sink)}


@pytest.mark.both_ledgers
@pytest.mark.parametrize("format_", ["arrow", "ndjson"])
def test_a_forward_sink_delivers_every_version_once(lake: Lake, receiver: Receiver, format_: str) -> None:
    """With its commit, its actor, and whether it says that the row is gone; a row of a log table has neither."""
    changed(lake)
    make_table(lake)
    lake.append("messages", messages(1, 2))
    forward(lake, receiver, format=format_)
    assert outcomes(lake) == {"messages": ("delivered", None), "person": ("delivered", None)}
    assert receiver.rows(FEED) == versions(lake, SENT)
    lake.mutate([sl.put("person", {"id": "c"})], actor="somebody")
    wipe_marks(lake)
    assert [one.rows for one in lake.tick("central")] == [1]
    assert lake.tick("central") == []
    assert receiver.rows(FEED) == versions(lake, SENT)
    assert receiver.rows("select _gateway, _origin_actor from person order by _seq")[-1] == (GATEWAY, "somebody")
    newest = "row_number() over (partition by id order by _origin_seq desc) = 1"
    current = f"select * from person where true qualify {newest} and not _origin_removed"
    assert sorted(receiver.rows(f"select id, name, age from ({current})")) == people(lake)
    query = "select _origin_seq is null, _origin_commit, _origin_removed from messages"
    assert receiver.rows(query) == [(False, None, None)]


def test_the_feed_is_a_plain_table_in_iceberg_too(lake: Lake, receiver: Receiver) -> None:
    """After a flush at the receiver all engines read the same; rows from before the first version have nulls."""
    changed(lake)
    with Lake(receiver.root) as central:
        central.append("person", [{"id": "local"}])
        central.flush("person")
        forward(lake, receiver, tables=["person"])
        lake.tick("central")
        central.flush("person")
        view = central.view()
        rows = view.sql("select id, age, _origin_removed, _origin_commit, _origin_seq from person order by _seq").rows()
        assert rows == [("local", None, None, None, None), *versions(lake, SENT)]
        frame = view.spark("person").orderBy("_seq").collect()
        names = ("id", "age", "_origin_removed", "_origin_commit", "_origin_seq")
        assert [tuple(row[name] for name in names) for row in frame] == rows


@pytest.mark.parametrize("point", ["deliver.after_open", "forward.before_send", "forward.after_send"])
def test_a_tick_that_dies_sends_each_version_once(lake: Lake, receiver: Receiver, point: str) -> None:
    """The same unit is sent again, also when the receiver has it already."""
    changed(lake)
    forward(lake, receiver, tables=["person"], chunk_rows=2)
    failpoints.arm(f"{point}=raise")
    with crash(lake):
        lake.tick("central")
    again = reopened(lake)
    again.mutate([sl.put("person", {"id": "late"})])
    again.tick("central")
    assert receiver.rows(FEED) == versions(again, SENT)


@pytest.mark.parametrize(
    ("why", "columns", "options"),
    [
        ("is a keyed table, and takes no forwarded rows", PEOPLE, {"key": ["id"]}),
        (
            "requires name, and a version that says that a row was deleted has id alone",
            {**PEOPLE, "name": "string"},
            {},
        ),
        ("keeps one row for each id, and would drop later versions", PEOPLE, {"row_key": ["id"]}),
    ],
    ids=["keyed", "required", "row key"],
)
def test_f23_a_table_that_cant_hold_versions_is_parked_and_others_flow(
    lake: Lake, tmp_path: Path, why: str, columns: dict[str, str], options: dict[str, Any]
) -> None:
    """Refused at the first version, not at the first delete, with what to do; nothing is sent or buried."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "name": "Ann"})])
    make_table(lake)
    lake.append("messages", messages(1, 2))
    with receiving(tmp_path / "receiver", "messages") as receiver:
        receiver.make_table("person", columns, **options)
        forward(lake, receiver, max_attempts=3)
        done = outcomes(lake)
        assert receiver.rows() == ["p1"] and receiver.rows("select id from person") == []
    outcome, error = done["person"]
    assert done["messages"] == ("delivered", None) and outcome == "parked"
    assert why in str(error)
    marks = {state.table: state.mark.seq for state in streams(lake) if state.mark is not None}
    assert marks["person"] == 0 < marks["messages"]


def test_a_table_that_is_made_to_fit_gets_all_of_it(lake: Lake, tmp_path: Path) -> None:
    """The column that stood in the way is made nullable, and the sink retried."""
    changed(lake)
    with receiving(tmp_path / "receiver", "messages") as receiver:
        receiver.make_table("person", {**PEOPLE, "name": "string"})
        forward(lake, receiver, tables=["person"])
        assert outcomes(lake)["person"][0] == "parked"
        with Lake(receiver.root) as central:
            central.schema_apply({"tables": {"person": {"columns": PEOPLE}}})
        strand_json(lake, "sink", "retry", "central")
        assert outcomes(lake)["person"] == ("delivered", None)
        assert receiver.rows(FEED) == versions(lake, SENT)


def test_a_condition_lets_deletes_pass_and_columns_are_left_out_of_every_version(
    lake: Lake, receiver: Receiver
) -> None:
    """A version that says that a row is gone has no values to judge. The preview shows what will be sent."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": key, "name": key * 2, "age": age}) for key, age in (("a", 1), ("b", 9))])
    lake.mutate([sl.delete("person", "a"), sl.patch("person", "b", {"age": 8})])
    lake.flush("person")
    forward(lake, receiver, where="age > 5", redact="name:hash", drop_columns="note")
    (plan,) = strand_json(lake, "sink", "preview", "central")
    assert (plan["rows"], plan["withheld"]) == (3, 1)
    assert [(row["id"], row["age"], row["_removed"]) for row in plan["samples"]] == [
        ("b", 9, False),
        ("a", None, True),
        ("b", 8, False),
    ]
    (done,) = lake.tick("central")
    assert (done.rows, done.withheld) == (3, 1)
    found = receiver.rows("select id, age, _origin_removed, length(name) from person order by _seq")
    assert found == [("b", 9, False, 64), ("a", None, True, None), ("b", 8, False, 64)]


def test_that_a_row_is_gone_can_neither_be_dropped_nor_redacted(lake: Lake, tmp_path: Path) -> None:
    """Without it, a deleted row would look like one without values; `_commit` may be left out."""
    changed(lake)
    for given in ({"drop_columns": "_removed"}, {"redact": "_removed:blank"}):
        with pytest.raises(BadRequest, match="_removed of table 'person'"):
            lake.add_sink("out", "blob", {"uri": f"file://{tmp_path / 'out'}", **given})
    lake.add_sink("out", "blob", {"uri": f"file://{tmp_path / 'out'}", "drop_columns": "_commit"})


def test_a_version_that_is_refused_is_a_dead_letter_and_can_be_replayed(lake: Lake, tmp_path: Path) -> None:
    """It keeps its commit, and that its row is gone."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 2**40}), sl.put("person", {"id": "b", "age": 1})])
    lake.mutate([sl.delete("person", "b")])
    with receiving(tmp_path / "receiver", "messages") as receiver:
        receiver.make_table("person", {**PEOPLE, "age": "int?"})
        forward(lake, receiver)
        (done,) = lake.tick("central")
        assert (done.outcome, done.rows, done.dead_letters) == ("delivered", 2, 1)
        with Lake(receiver.root) as central:
            central.schema_apply({"tables": {"person": {"columns": PEOPLE}}})
        assert [one["outcome"] for one in strand_json(lake, "sink", "dead", "central", "--replay")] == ["replayed"]
        assert receiver.rows(FEED) == versions(lake, SENT)


def test_versions_stay_versions_through_a_lake_in_between(lake: Lake, receiver: Receiver, tmp_path: Path) -> None:
    """The one at the end knows the commit of the lake where they were made, and which rows are gone there."""
    changed(lake)
    forward(lake, receiver, tables=["person"])
    lake.tick("central")
    with receiving(tmp_path / "last", "messages") as last, Lake(receiver.root) as central:
        last.make_table("person", PEOPLE)
        forward(central, last, "on", tables=["person"])
        central.tick("on")
        query = "select id, age, _origin_removed, _origin_commit from person order by _seq"
        assert last.rows(query) == versions(lake, "id, age, _removed, _commit")


def test_f40_a_receiver_gets_each_merged_row_once(lake: Lake, receiver: Receiver) -> None:
    """By merges, fast-forwards and tables that are taken over by pointer; one that follows a branch, its own rows."""
    forked(lake)
    forward(lake, receiver, tables=["person"])
    forward(lake, receiver, "of_x", tables=["person"], branch="x")
    began: list[tuple[str, int | None]] = [("a", 1), ("b", 1)]
    expected = {"central": list(began), "of_x": list(began)}
    query = "select id, age, _origin_seq, _origin_commit from person order by _seq"

    def check(main: list[tuple[str, int | None]], x: list[tuple[str, int | None]]) -> None:
        """Tick both, twice: what is at the receiver is what was expected, and these of each."""
        for _ in range(2):
            lake.tick("central")
            lake.tick("of_x")
        expected["central"] += main
        expected["of_x"] += x
        found = receiver.rows(query)
        assert Counter(row[:2] for row in found) == Counter([*expected["central"], *expected["of_x"]])
        for branch in ("main", "x"):
            there = lake.view(branch).sql('select id, age, _seq, _commit from "person$log"').rows()
            assert set(there) <= set(found), "a version is not there as it was written"

    check([], [])
    ages(lake, "x", a=2)
    assert lake.merge("x").outcome == "fast_forward"
    check([("a", 2)], [("a", 2)])
    ages(lake, "x", a=3)
    ages(lake, "main", b=3)
    check([("b", 3)], [("a", 3)])
    assert lake.merge("x").outcome == "merged"
    check([("a", 3)], [])
    lake.merge("main", into="x")
    ages(lake, "x", b=None, d=4)
    lake.flush("person", branch="x")
    lake.merge("x")
    check([("b", None), ("d", 4)], [("b", 3), ("b", None), ("d", 4)])


def test_f56_a_receiver_gets_all_of_a_branch_that_is_made_again(lake: Lake, receiver: Receiver) -> None:
    """Its stream is another one there too: nothing of it is taken for what the old branch had sent."""
    forked(lake)
    forward(lake, receiver, "old", tables=["person"], branch="x")
    ages(lake, "x", c=3)
    assert outcomes(lake, "old") == {"person": ("delivered", None)}
    assert sorted(receiver.rows("select id from person")) == ["a", "b", "c"]
    lake.delete_branch("x", force=True)
    lake.branch("x")
    ages(lake, "x", n=5)
    assert "was deleted" in str(outcomes(lake, "old")[""][1])
    forward(lake, receiver, "new", tables=["person"], branch="x")
    assert outcomes(lake, "new") == {"person": ("delivered", None)}
    assert sorted(receiver.rows("select id from person")) == ["a", "a", "b", "b", "c", "n"]
