"""Rows that Spark can read, as Parquet files that a load can take: other Iceberg tables, and DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.engines.files import Input, find_inputs
from strandline.engines.spark.iceberg import Iceberg, MissingTable
from strandline.engines.spark.session import CATALOG
from strandline.errors import BadRequest, NotFound, of_outage
from strandline.model.ids import new_id
from strandline.outages import judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class IcebergSource:
    """An Iceberg table outside the lake's own tables, pinned at a snapshot."""

    name: str
    metadata_file: str | None
    snapshot_id: int | None
    schema: pa.Schema

    @property
    def identity(self) -> str:
        """What tells this table at this snapshot from any other."""
        return f"iceberg:{self.name}:{self.snapshot_id}"


def find(iceberg: Iceberg, name: str) -> IcebergSource | None:
    """An Iceberg table by its metadata file, or by `namespace.table` in the lake's catalog; None when there is none."""
    if name.endswith(".metadata.json"):
        return _by_metadata(iceberg, name)
    if name.count(".") < 1:
        return None
    try:
        table = iceberg.load(name)
    except MissingTable:
        return None
    current = table.currentSnapshot()
    snapshot_id = None if current is None else int(current.snapshotId())
    frame = iceberg.session.read.table(f"{CATALOG}.{name}")
    return IcebergSource(name, None, snapshot_id, _arrow_schema(frame))


def _by_metadata(iceberg: Iceberg, path: str) -> IcebergSource:
    from py4j.protocol import Py4JJavaError

    try:
        with _registered(iceberg, path) as name:
            current = iceberg.load(name).currentSnapshot()
            frame = iceberg.session.read.table(f"{CATALOG}.{name}")
            snapshot_id = None if current is None else int(current.snapshotId())
            return IcebergSource(path, path, snapshot_id, _arrow_schema(frame))
    except Py4JJavaError as error:
        if (outage := judge(error)) is not None:
            raise of_outage(outage) from error
        raise BadRequest(f"can't read the Iceberg table at {path}: {error.java_exception.getMessage()}") from error


def export(iceberg: Iceberg, source: IcebergSource, folder: str) -> None:
    """Write the pinned snapshot's rows as Parquet files."""
    if source.metadata_file is None:
        _write_snapshot(iceberg.session, source.name, source.snapshot_id, folder)
        return
    with _registered(iceberg, source.metadata_file) as name:
        _write_snapshot(iceberg.session, name, source.snapshot_id, folder)


def _write_snapshot(session: SparkSession, name: str, snapshot_id: int | None, folder: str) -> None:
    reader = session.read if snapshot_id is None else session.read.option("versionAsOf", str(snapshot_id))
    write_parquet(reader.table(f"{CATALOG}.{name}"), folder)


@contextmanager
def _registered(iceberg: Iceberg, metadata_file: str) -> Iterator[str]:
    """Make a table known to the catalog under a passing name; only the catalog's entry goes afterwards."""
    name = f"strand_adopt.t_{new_id()}"  # it says when it was made, for a person who finds it left behind
    iceberg.ensure_namespace("strand_adopt")
    iceberg.register(name, metadata_file)
    try:
        yield name
    finally:
        iceberg.unregister(name)


def write_parquet(rows: DataFrame, folder: str) -> None:
    """Write a DataFrame as Parquet whose timestamps say that they are UTC; Spark's default would not."""
    conf = rows.sparkSession.conf
    setting = "spark.sql.parquet.outputTimestampType"
    before = conf.get(setting)
    conf.set(setting, "TIMESTAMP_MICROS")
    try:
        rows.write.mode("overwrite").parquet(folder)
    finally:
        if before is not None:
            conf.set(setting, before)


def exported(folder: str) -> list[Input]:
    """The Parquet files of a folder that `write_parquet` wrote; none when there were no rows."""
    try:
        return find_inputs([folder])
    except NotFound:
        return []


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema)
