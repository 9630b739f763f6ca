"""Copies in another catalog: each row once, whoever dies, is late, or comes between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline import create, failpoints
from strandline.errors import BadRequest, Busy, Conflict
from strandline.lake import Lake
from strandline.model.delivery.sinks import Mark
from strandline.model.schema.partitions import partition_text
from strandline.sinks import iceberg
from strandline.sinks.destination import Unit
from strandline.sinks.iceberg import IcebergCopy
from tests.kit import make_table, message, messages
from tests.sinks.units import SINK, again, unit_of

TABLE = "copies.messages"
POINTS = ["copy.before_append", "copy.after_append", "copy.before_commit", "copy.after_commit"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """30 rows, seqs 2 to 31, in three flushes."""
    with create.create(tmp_path_factory.mktemp("filled") / "lake") as lake:
        make_table(lake)
        for start in (0, 10, 20):
            lake.append("messages", messages(start, start + 10))
            lake.flush("messages")
        yield lake


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """A catalog of the test's own."""
    return {
        "catalog": "jdbc",
        "uri": f"jdbc:sqlite:{tmp_path / 'target.db'}?journal_mode=WAL",
        "warehouse": f"file://{tmp_path / 'target'}",
        "namespace": "copies",
    }


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "staging"
    left = list((tmp_path / "staging").rglob("*"))
    assert left == [], "a working folder is left"


@pytest.fixture
def open_copy(filled: Lake, settings: dict[str, Any], staging: Path) -> Callable[..., IcebergCopy]:
    """A destination as a process would open it: each has a session and a catalog of its own."""

    def opened(lake: Lake = filled, **more: Any) -> IcebergCopy:
        options = {"lake_id": lake.ledger.lake_id(), "sink_id": SINK, "staging": f"file://{staging}", **more}
        return IcebergCopy(settings, spark=lambda: lake.spark, **options)

    return opened


def java(copy: IcebergCopy, table: str = TABLE) -> Any:
    return copy._target()._iceberg.load(table)


def refs(copy: IcebergCopy) -> set[str]:
    return {str(ref) for ref in java(copy).refs()}


def snapshots(copy: IcebergCopy) -> int:
    return len(list(java(copy).snapshots()))


def read(copy: IcebergCopy, table: str = TABLE) -> Any:
    return copy._target().session.table(f"strand.{table}")


def part_ids(copy: IcebergCopy) -> list[str]:
    """What a reader of the target sees: a row that came twice is here twice."""
    return [row.part_id for row in read(copy).orderBy("_seq", "part_id").collect()]


def expected(stop: int = 30) -> list[str]:
    return [f"p{n}" for n in range(stop)]


def test_units_are_appended_and_the_mark_moves_with_them(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    copy = open_copy()
    copy.probe()
    first = unit_of(filled, settings, until=11)
    stream = first.delivery.stream
    assert copy.standing(stream, "messages", ()).mark is None
    shipped = copy.ship(first)
    assert (shipped.rows, shipped.withheld, shipped.files_opened, shipped.key) == (10, 0, 1, TABLE)
    assert shipped.size_bytes > 0
    assert copy.standing(stream, "messages", ()).mark == Mark(1, 11)
    copy.ship(unit_of(filled, settings, since=11, until=31))
    assert open_copy().standing(stream, "messages", ()).mark == Mark(1, 31)
    assert part_ids(copy) == expected()
    assert read(copy).columns == ["part_id", "source", "n", "body", "_seq", "_at", "_actor"]
    assert refs(copy) == {"main"}
    marks = [key for key in dict(java(copy).properties()) if key.startswith("strandline.mark.")]
    assert len(marks) == 1, "older marks are left"


def test_a_unit_that_is_there_is_not_appended_again(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    """Three more shipments: no new snapshot, and the same counts."""
    copy, unit = open_copy(), unit_of(filled, settings, until=31)
    first = copy.ship(unit)
    before = snapshots(copy)
    metadata = str(java(copy).operations().current().metadataFileLocation())
    for _ in range(3):
        told = open_copy().ship(again(unit, delivery_id="another"))
        assert (told.rows, told.size_bytes) == (first.rows, first.size_bytes)
    assert snapshots(copy) == before
    assert str(java(copy).operations().current().metadataFileLocation()) == metadata, "something was committed"
    assert part_ids(copy) == expected()


def test_an_empty_unit_moves_the_mark_alone(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    copy = open_copy()
    copy.ship(unit_of(filled, settings, until=11))
    before = snapshots(copy)
    none = unit_of(filled, settings, since=11, until=21, where="false")
    shipped = copy.ship(none)
    assert (shipped.rows, shipped.withheld, shipped.key) == (0, 10, None)
    assert copy.standing(none.delivery.stream, "messages", ()).mark == Mark(1, 21)
    assert snapshots(copy) == before and refs(copy) == {"main"}
    assert copy.ship(none).withheld == 10


def test_a_first_unit_without_rows_makes_the_table_and_its_mark(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    copy = open_copy()
    copy.ship(unit_of(filled, settings, until=11, where="false"))
    copy.ship(unit_of(filled, settings, since=11, until=31))
    assert part_ids(copy) == expected()[10:]


def test_a_late_writer_of_an_empty_unit_does_not_move_the_mark_back(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Properties have no compare-and-set: the late one is set beside the higher one, and the higher one counts."""
    late, other = open_copy(), open_copy()
    late.ship(unit_of(filled, settings, until=11))
    none = unit_of(filled, settings, since=11, until=21, where="false")
    monkeypatch.setattr(
        late, "_check_owner", _once(lambda: other.ship(unit_of(filled, settings, since=11, until=31)), after=1)
    )
    late.ship(none)
    assert other.standing(none.delivery.stream, "messages", ()).mark == Mark(1, 31)
    assert part_ids(other) == expected()


def _once(act: Callable[[], Any], after: int = 0) -> Callable[..., None]:
    """Something that happens in the middle of a call, one time, after so many passages."""
    passages = []

    def passed(*_: object) -> None:
        passages.append(1)
        if len(passages) == after + 1:
            act()

    return passed


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("first_unit", [True, False])
def test_a_crash_anywhere_repeats_no_row_and_loses_none(
    filled: Lake,
    settings: dict[str, Any],
    open_copy: Callable[..., IcebergCopy],
    point: str,
    first_unit: bool,
) -> None:
    copy = open_copy()
    since = 0 if first_unit else 11
    if not first_unit:
        copy.ship(unit_of(filled, settings, until=11))
    unit = unit_of(filled, settings, since=since, until=31)
    failpoints.arm(f"{point}=raise")
    with pytest.raises(failpoints.FailpointReached):
        copy.ship(unit)
    failpoints.arm(None)
    visible = expected() if point == "copy.after_commit" else expected(0 if first_unit else 10)
    assert part_ids(copy) == visible, "half a unit is visible"
    told = open_copy().ship(unit)
    assert told.rows == (30 if first_unit else 20)
    assert part_ids(copy) == expected()
    assert refs(copy) == {"main"}, "a private branch is left"


@pytest.mark.parametrize("point", POINTS[:3])
def test_two_processes_that_ship_one_unit_at_once_append_it_once(
    filled: Lake,
    settings: dict[str, Any],
    open_copy: Callable[..., IcebergCopy],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    point: str,
) -> None:
    """One is paused at each of its steps, the other does all of it and the next unit too; then the first wakes up.

    They have working folders of their own, so the late one still has its rows and could append them.
    """
    late, other = open_copy(), open_copy(staging=f"file://{tmp_path / 'other'}")
    late.ship(unit_of(filled, settings, until=11))
    unit = unit_of(filled, settings, since=11, until=21)

    def overtake() -> None:
        monkeypatch.undo()
        other.ship(unit)
        other.ship(unit_of(filled, settings, since=21, until=31))

    monkeypatch.setattr(iceberg, "fail", lambda name: overtake() if name == point else None)
    late.ship(unit)
    assert part_ids(late) == expected()
    assert late.standing(unit.delivery.stream, "messages", ()).mark == Mark(1, 31)
    other.ship(unit)
    assert part_ids(other) == expected()


def test_a_commit_refused_because_main_moved_starts_over(
    filled: Lake,
    settings: dict[str, Any],
    open_copy: Callable[..., IcebergCopy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody else writes to the target between staging and commit: both stay, and nothing comes twice."""
    copy = open_copy()
    copy.ship(unit_of(filled, settings, until=11))
    unit = unit_of(filled, settings, since=11, until=31)

    def between() -> None:
        monkeypatch.undo()
        one = (
            read(copy).where("n = 0").selectExpr("'theirs' AS part_id", "source", "n", "body", "_seq", "_at", "_actor")
        )
        one.writeTo(f"strand.{TABLE}").append()

    monkeypatch.setattr(iceberg, "fail", lambda name: between() if name == "copy.before_commit" else None)
    assert copy.ship(unit).rows == 20
    assert sorted(part_ids(copy)) == sorted([*expected(), "theirs"])
    assert refs(copy) == {"main"}


def test_a_unit_that_overlaps_the_mark_appends_what_is_above_it(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    copy = open_copy()
    copy.ship(unit_of(filled, settings, until=15))
    assert copy.ship(unit_of(filled, settings, since=11, until=31)).rows == 16
    assert part_ids(copy) == expected()


def test_a_new_epoch_appends_again_and_an_old_one_is_refused(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    """A rewind sends rows again on purpose; a process that still ships from before it is told so."""
    copy, old = open_copy(), unit_of(filled, settings, until=31)
    copy.ship(old)
    copy.ship(unit_of(filled, settings, since=21, until=31, epoch=2))
    assert sorted(part_ids(copy)) == sorted([*expected(), *expected()[20:]])
    with pytest.raises(Conflict) as refused:
        copy.ship(old)
    assert refused.value.detail["kind"] == "epoch"
    assert copy.standing(old.delivery.stream, "messages", ()).mark == Mark(2, 31)


def test_the_target_is_evolved_with_the_source(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    """New columns are added, narrow ones widened, and columns that a unit lacks are null."""
    copy = open_copy()
    copy.ship(unit_of(filled, settings, until=11, without=["body", "_actor"]))
    assert read(copy).columns == ["part_id", "source", "n", "_seq", "_at"]
    wider = unit_of(filled, settings, since=11, until=21)
    fields = [*wider.rows.schema, pa.field("tags", pa.list_(pa.struct([("k", pa.int32())])))]
    columns = (*wider.rows.select.columns, ("tags", "[{'k': 7}]"))
    rows = replace(wider.rows, schema=pa.schema(fields), select=replace(wider.rows.select, columns=columns))
    copy.ship(replace(wider, rows=rows))
    copy.ship(unit_of(filled, settings, since=21, until=31, without=["body"]))
    assert part_ids(copy) == expected()
    found = {row.part_id: (row.body, row.tags) for row in read(copy).collect()}
    assert (found["p0"], found["p29"]) == ((None, None), (None, None))
    assert found["p10"][0] == "body of p10" and found["p10"][1][0].k == 7
    before = str(java(copy).operations().current().metadataFileLocation())
    copy._target().evolve(TABLE, rows.schema)
    assert str(java(copy).operations().current().metadataFileLocation()) == before, "nothing to do, and a commit"


def test_a_column_that_cannot_be_widened_is_refused_and_nothing_is_appended(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    copy = open_copy()
    copy.ship(unit_of(filled, settings, until=11))
    unit = unit_of(filled, settings, since=11, until=31)
    fields = [pa.field("n", pa.string()) if field.name == "n" else field for field in unit.rows.schema]
    with pytest.raises(BadRequest):
        copy.ship(replace(unit, rows=replace(unit.rows, schema=pa.schema(fields))))
    assert part_ids(copy) == expected(10)


def test_a_table_belongs_to_one_sink(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    """Another is refused; one of the same lake that takes over goes on where the first ended."""
    unit = unit_of(filled, settings, until=11)
    old = open_copy()
    old.ship(unit)
    for other in (open_copy(sink_id="other"), open_copy(lake_id="other")):
        with pytest.raises(Conflict) as refused:
            other.ship(unit)
        assert refused.value.detail["kind"] == "owner" and "--take-over" in refused.value.hint
        with pytest.raises(Conflict):
            other.standing(unit.delivery.stream, "messages", ())
    open_copy(sink_id="new", take_over=True).probe()
    new = open_copy(sink_id="new")
    assert new.standing(unit.delivery.stream, "messages", ()).mark == Mark(1, 11)
    new.ship(unit_of(filled, settings, since=11, until=31))
    with pytest.raises(Conflict):
        old.ship(unit)
    assert part_ids(new) == expected()


def test_a_table_with_rows_of_somebody_else_is_refused(
    filled: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    copy = open_copy()
    copy.probe()
    copy._target().session.sql(f"CREATE TABLE strand.{TABLE} USING iceberg AS SELECT 'x' AS part_id")
    with pytest.raises(Conflict):
        copy.ship(unit_of(filled, settings, until=31))
    open_copy(take_over=True).ship(unit_of(filled, settings, until=31))
    assert sorted(part_ids(copy)) == sorted(["x", *expected()])


def test_streams_of_one_table_keep_marks_of_their_own(
    lake: Lake, settings: dict[str, Any], open_copy: Callable[..., IcebergCopy]
) -> None:
    """Also for values that differ in case alone, are null, or are longer than a folder's name."""
    make_table(lake, partition_by=["source"])
    values = ["A", "a", "é/..=", "", "x" * 150]
    lake.append("messages", [message(n, source=value) for n, value in enumerate(values)])
    lake.flush("messages")
    copy = open_copy(lake)
    units: list[Unit] = [unit_of(lake, settings, partition=partition_text([value])) for value in values]
    for unit in units:
        copy.ship(unit)
    assert part_ids(copy) == expected(len(values))
    for unit in units:
        assert copy.standing(unit.delivery.stream, "messages", ("source",)).mark == Mark(1, unit.delivery.until)
        copy.ship(unit)
    assert part_ids(copy) == expected(len(values))
    assert [field.name() for field in java(copy).spec().fields()] == ["source"]


def test_what_is_wrong_with_a_catalog_is_said(
    filled: Lake, settings: dict[str, Any], staging: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"lake_id": "l", "sink_id": SINK, "staging": f"file://{staging}"}
    for wrong in (
        {"uri": f"jdbc:sqlite:{tmp_path}/no/such/folder/x.db"},
        {"uri": "jdbc:postgresql://127.0.0.1:9/none"},
        {"catalog": "rest", "uri": "http://127.0.0.1:9"},
    ):
        with pytest.raises(Busy) as refused:
            IcebergCopy({**settings, **wrong}, spark=lambda: filled.spark, **options).probe()
        assert refused.value.hint
    for wrong in ({"catalog": "hive"}, {"uri": "sqlite:///x.db"}):
        with pytest.raises(BadRequest):
            IcebergCopy({**settings, **wrong}, spark=lambda: filled.spark, **options)
