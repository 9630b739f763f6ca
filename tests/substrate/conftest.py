"""Iceberg tables to try things on: made as operations make them, in a lake of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from strandline.engines.spark.iceberg import Iceberg
from strandline.engines.spark.stage import append_to_branch
from strandline.lake import Lake
from strandline.model.schema.types import Column, Primitive

NAME = "trial.t"
FULL_NAME = f"strand.{NAME}"
COLUMNS = "id string, _seq bigint"


@dataclass(frozen=True)
class Trial:
    """One Iceberg table, and the few things that a test does with it."""

    lake: Lake
    iceberg: Iceberg

    @property
    def spark(self) -> Any:
        """The lake's Spark session."""
        return self.lake.spark

    @property
    def jvm(self) -> Any:
        """The JVM that Spark runs in."""
        return self.spark._jvm

    @property
    def java(self) -> Any:
        """The Java table, with its newest metadata."""
        return self.iceberg.load(NAME)

    @property
    def refs(self) -> dict[str, int]:
        """Every ref and its snapshot."""
        return self.iceberg.refs(NAME)

    @property
    def snapshots(self) -> set[int]:
        """Every snapshot that the table's metadata knows."""
        return {int(snapshot.snapshotId()) for snapshot in self.java.snapshots()}

    def rows(self, first_seq: int, count: int = 3) -> Any:
        """A DataFrame of `count` rows in one partition."""
        return self.spark.range(first_seq, first_seq + count, 1, 1).selectExpr("concat('r', id) AS id", "id AS _seq")

    def append(self, branch: str, first_seq: int = 1, count: int = 3) -> int:
        """Append to an existing branch, as operations do; the new snapshot."""
        columns = [Column("id", Primitive("string")), Column("_seq", Primitive("long"))]
        append_to_branch(self.rows(first_seq, count), NAME, branch, f"op-{branch}", columns)
        snapshot = self.iceberg.branch_snapshot(NAME, branch)
        assert snapshot is not None
        return snapshot

    def grow_main(self, first_seq: int = 1, count: int = 3) -> int:
        """Stage on a branch and settle it to main, as operations do; the new snapshot."""
        branch = f"grow_{first_seq}"
        self.iceberg.create_branch(NAME, branch, self.refs.get("main"))
        snapshot = self.append(branch, first_seq, count)
        self.iceberg.settle(NAME, "main", branch, lambda: snapshot, lambda _: True)
        return snapshot

    def seqs(self, version: int | str) -> list[int]:
        """The seqs that a snapshot, or a branch, holds."""
        rows = self.spark.read.option("versionAsOf", str(version)).table(FULL_NAME)
        return sorted(row._seq for row in rows.select("_seq").collect())

    def set_property(self, key: str, value: str) -> None:
        """Set a table property."""
        self.java.updateProperties().set(key, value).commit()


@pytest.fixture
def trial(lake: Lake) -> Trial:
    """A table without any snapshot, with the properties that all our tables have."""
    lake.iceberg().ensure_table(NAME, COLUMNS, [])
    return Trial(lake, lake.iceberg())


@contextmanager
def refused(exception: str, saying: str = "") -> Iterator[None]:
    """The block fails with this Java exception, whose message holds `saying`."""
    with pytest.raises((Py4JJavaError, CapturedException)) as caught:
        yield
    error: Any = caught.value
    if isinstance(error, Py4JJavaError):
        java = error.java_exception
        found, message = java.getClass().getSimpleName(), java.getMessage()
    else:  # PySpark translates a few of Java's own
        found, message = type(error).__name__, str(error)
    assert found == exception, str(error)
    assert saying in message, message
