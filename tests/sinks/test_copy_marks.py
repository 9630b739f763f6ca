"""Marks of copies in another catalog: what a unit may be appended behind, and which of its rows.

The catalog is in memory, and units are written in this process: no Spark is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.config import Store
from strandline.engines.objects import ObjectPlace
from strandline.engines.spark.copy import PropertyChange, StagedSnapshot
from strandline.errors import Conflict
from strandline.model.delivery.sinks import Mark
from strandline.sinks import iceberg
from strandline.sinks.destination import Resume, Unit
from strandline.sinks.iceberg import IcebergCopy
from tests.sinks.test_blob_marks import STREAM, Archive, Here


@dataclass
class Catalog:
    """A catalog with one table, as a destination sees it; None is no table."""

    table: dict[str, str] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    staged: list[dict[str, Any]] = field(default_factory=list)

    def properties(self, _table: str) -> dict[str, str] | None:
        return None if self.table is None else dict(self.table)

    def create(self, _table: str, _schema: pa.Schema, _by: Sequence[str], owner: dict[str, str]) -> None:
        self.table = dict(owner)

    def set_properties(self, _table: str, properties: dict[str, str]) -> None:
        self.table = {**(self.table or {}), **properties}

    def is_empty(self, _table: str) -> bool:
        return not self.rows

    def evolve(self, _table: str, _schema: pa.Schema) -> None: ...

    def drop_branches(self, _table: str, _prefix: str) -> None: ...

    def branch(self, _table: str, _branch: str) -> int | None:
        return None

    def rows_between(self, _table: str, since: int, until: int) -> pa.Table:
        there = [row for row in self.rows if since < row["_seq"] <= until]
        return pa.Table.from_pylist(there, schema=pa.table(self.rows_as_columns()).schema)

    def rows_as_columns(self) -> dict[str, pa.Array]:
        """With the types that the log has."""
        at = pa.array([row["at"] for row in self.rows], pa.timestamp("us", "UTC"))
        seqs = pa.array([row["_seq"] for row in self.rows], pa.int64())
        return {"body": pa.array([row["body"] for row in self.rows], pa.string()), "at": at, "_seq": seqs}

    def append(
        self, _table: str, path: str, _schema: pa.Schema, branch: str, base: int | None, _id: str, without: list[int]
    ) -> StagedSnapshot:
        read = pq.read_table(path.removeprefix("file://")).to_pylist()
        self.staged = [row for row in read if row["_seq"] not in without]
        return StagedSnapshot(branch, base, 1, len(self.staged), 1)

    def commit(self, _table: str, staged: StagedSnapshot | None, change: PropertyChange) -> bool:
        assert self.table is not None
        change.guard(self.table)
        kept = {key: text for key, text in self.table.items() if key not in change.remove}
        self.table = {**kept, **change.set}
        self.rows += self.staged if staged is not None else []
        return True


@dataclass
class Copied:
    """A copy, and the log that its units are read from."""

    log: Archive
    copy: IcebergCopy
    catalog: Catalog

    def ship(self, since: int, until: int, **more: Any) -> Any:
        return self.copy.ship(self.unit(since, until, **more))

    def unit(self, since: int, until: int, **more: Any) -> Unit:
        return self.log.unit(since, until, **more)

    def seqs(self) -> list[int]:
        return [row["_seq"] for row in self.catalog.rows]

    def standing(self) -> Any:
        return self.copy.standing(STREAM, "messages", ())


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copied:
    """A copy without anything in it, and a log of 30 rows."""
    return open_copy(tmp_path, monkeypatch)


def open_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Copied:
    log = Archive(ObjectPlace(f"file://{tmp_path}/unused", Store()), tmp_path / "log.parquet")
    log.write_log({seq: f"row {seq}" for seq in range(1, 31)})
    catalog = Catalog()
    monkeypatch.setattr(IcebergCopy, "_target", lambda self: catalog)
    settings = {"catalog": "jdbc", "uri": "jdbc:sqlite:/nowhere", "namespace": "copies"}
    given: dict[str, Any] = {"lake_id": "lake1", "sink_id": "sink1", "staging": f"file://{tmp_path}/staging"}
    return Copied(log, IcebergCopy(settings, spark=Here, **given, **more), catalog)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", [1, 2])
def test_f68_a_unit_above_the_mark_is_a_gap_in_every_epoch(copied: Copied, epoch: int) -> None:
    """A mark means that every row up to it is here: the sender is sent back there, and nothing is appended."""
    with pytest.raises(Resume) as empty:
        copied.ship(10, 20, epoch=epoch)
    assert empty.value.mark is None
    copied.ship(0, 10)
    with pytest.raises(Resume) as behind:
        copied.ship(20, 30, epoch=epoch)
    assert behind.value.mark == Mark(1, 10) and copied.seqs() == list(range(1, 11))


def test_f68_a_copy_that_goes_back_while_a_unit_is_staged_gets_no_mark_above_the_gap(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit compares the mark that there is by then."""
    copied.ship(0, 10)
    older = dict(copied.catalog.table or {})
    copied.ship(10, 20)

    def goes_back(point: str) -> None:
        if point == "copy.before_commit":
            copied.catalog.table = older

    monkeypatch.setattr(iceberg, "fail", goes_back)
    with pytest.raises(Resume) as behind:
        copied.ship(20, 30)
    assert behind.value.mark == copied.standing().mark == Mark(1, 10)


def test_f72_only_rows_that_the_copy_lacks_are_appended(copied: Copied) -> None:
    """By seq and content: a ledger that was put back by hand has given old seqs to new rows."""
    copied.ship(0, 20)
    copied.log.write_log({seq: f"row {seq}" if seq <= 15 else f"new row {seq}" for seq in range(1, 25)})
    shipped = copied.ship(10, 24, epoch=2, lacking_upto=20)
    assert shipped.rows == 9
    assert copied.seqs() == [*range(1, 21), *range(16, 25)]
    standing = copied.standing()
    assert (standing.mark, standing.chunk) == (Mark(2, 24), shipped.chunk)
    assert shipped.chunk.digest == copied.unit(10, 24).digest_in(10, 24), "what is there already counts too"


def test_f72_a_unit_without_rows_leaves_what_the_copy_says_of_its_last_rows(copied: Copied) -> None:
    chunk = copied.ship(0, 10).chunk
    copied.ship(10, 20, where="false")
    assert (copied.standing().mark, copied.standing().chunk) == (Mark(1, 20), chunk)


@pytest.mark.parametrize("properties", [None, {"owner": "somebody"}])
def test_f80_a_copy_that_lost_its_marker_is_not_written_unless_a_person_takes_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str] | None
) -> None:
    """A catalog that was made anew has no table, or one of somebody else: a sink that has delivered there stops."""
    copied = open_copy(tmp_path, monkeypatch, name="cold", delivered=lambda table: table == "messages")
    copied.catalog.table = properties
    for act in (copied.standing, lambda: copied.ship(10, 20)):
        with pytest.raises(Conflict) as gone:
            act()
        assert gone.value.detail["kind"] == "marker_gone" and "retry cold --take-over" in gone.value.hint
    assert (copied.catalog.table, copied.seqs()) == (properties, [])
    taken = open_copy(tmp_path, monkeypatch, take_over=True, delivered=lambda table: True)
    taken.catalog.table = properties
    taken.ship(0, 20, epoch=2)
    assert taken.standing().mark == Mark(2, 20)
