"""Writing rows to a private branch: the only place where Spark puts rows into Iceberg.

The input is always Parquet files in seq order, each an unbroken range of seqs. Every file becomes a task, so the data
files of a log never overlap in seqs, within a partition if there are any, and nothing is shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from strandline.engines.spark.session import CATALOG
from strandline.model.schema.engine_types import spark_ddl
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import ACTOR, AT, COMMIT, REMOVED, SEQ, Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession


@dataclass(frozen=True)
class NumberedFile:
    """A Parquet file whose rows get the seqs from `first_seq` on, in the order they have in the file."""

    path: str
    first_seq: int


def read_stamped(session: SparkSession, ddl: str, paths: Sequence[str]) -> DataFrame:
    """Rows that carry their `_seq`, `_at` and `_actor` already."""
    return _files(session, ddl).parquet(*paths)


def read_numbered(
    session: SparkSession, ddl: str, files: Sequence[NumberedFile], *, at_us: int, actor: str, without: str | None
) -> DataFrame:
    """Rows of a load, numbered by their place in their file; those whose seq is in the file `without` are left out."""
    from pyspark.sql import functions as sf

    def numbered(file: NumberedFile) -> DataFrame:
        rows = _files(session, ddl).parquet(file.path)
        seq = sf.lit(file.first_seq) + sf.col("_metadata.row_index")
        return rows.select("*", seq.cast("bigint").alias(SEQ))

    rows = reduce(lambda left, right: left.unionByName(right), (numbered(file) for file in files))
    if without is not None:
        rows = rows.join(
            sf.broadcast(session.read.option("__globPaths__", "false").parquet(without)), on=SEQ, how="left_anti"
        )
    return rows.withColumns({AT: sf.timestamp_micros(sf.lit(at_us)), ACTOR: sf.lit(actor)})


def read_removed(session: SparkSession, ddl: str, paths: Sequence[str], *, at_us: int, actor: str) -> DataFrame:
    """Keys of rows that go, which carry their `_seq` already."""
    from pyspark.sql import functions as sf

    rows = _files(session, ddl).parquet(*paths)
    return rows.withColumns({AT: sf.timestamp_micros(sf.lit(at_us)), ACTOR: sf.lit(actor)})


def as_versions(rows: DataFrame, commit_id: str, *, removed: bool) -> DataFrame:
    """Rows as versions of a keyed table, all of one commit."""
    from pyspark.sql import functions as sf

    return rows.withColumns({COMMIT: sf.lit(commit_id), REMOVED: sf.lit(removed)})


def stored_frame(rows: DataFrame, written: Schema, schema: Schema, version: int) -> DataFrame:
    """Rows that were validated by one schema, under their columns' names in data files.

    Where the table's schema has moved on since that `version`, they get the defaults of rows that were there before:
    their seqs are above it, so no read would give them these.
    """
    from pyspark.sql import functions as sf

    names = {column.name: column.stored for column in written.columns}
    rows = rows.select(*[sf.col(f"`{name}`").alias(names.get(name, name)) for name in rows.columns])
    present = set(rows.columns)
    for column in schema.columns:
        default = next((fill.value for fill in column.fills if fill.below > version), None)
        if default is not None:
            type_ = spark_ddl(column.type)
            values = sf.col(f"`{column.stored}`") if column.stored in present else sf.lit(None).cast(type_)
            rows = rows.withColumn(column.stored, sf.coalesce(values, sf.lit(default).cast(type_)))
    return rows


def _files(session: SparkSession, ddl: str) -> DataFrameReader:
    """Files by their names as they are: a bracket or a star in a name is no pattern."""
    return session.read.schema(ddl).option("__globPaths__", "false")


def append_to_branch(
    rows: DataFrame, name: str, branch: str, op_id: str, columns: Sequence[Column], partition_by: Sequence[str] = ()
) -> None:
    """Append to a private branch. The op id goes into the snapshot's summary, for a look at it from outside.

    Columns that the rows lack are null: they came to the table later, or say from where rows were forwarded. Rows of a
    partitioned table are sorted within their task, which spills to disk: a task then has one file open at a time. With
    one open for every partition it met, a thousand partitions are more than a heap of 2 GiB holds.
    """
    from pyspark.sql import functions as sf

    names = set(rows.columns)
    chosen = rows.select(
        *[
            f"`{column.name}`" if column.name in names else sf.lit(None).cast(spark_ddl(column.type)).alias(column.name)
            for column in columns
        ]
    )
    if partition_by:
        chosen = chosen.sortWithinPartitions(*[f"`{name}`" for name in (*partition_by, SEQ)])
    (
        chosen.writeTo(f"{CATALOG}.{name}.branch_{branch}")
        .option("snapshot-property.strand-op", op_id)
        .option("use-table-distribution-and-ordering", "false")
        .option("fanout-enabled", "false")
        .append()
    )
