"""Reading a pinned snapshot with Spark, with the tail beside it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from strandline.engines.spark.session import CATALOG
from strandline.model.foreign import spark_ddl
from strandline.model.types import REMOVED, SEQ, Column

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession


def read_view(
    session: SparkSession,
    name: str,
    snapshot: int | None,
    tail: pa.Table,
    columns: Sequence[Column],
    since: int,
    until: int,
) -> DataFrame:
    """The rows of `(since, until]` of a snapshot and of a tail, as one DataFrame.

    The snapshot has the columns of all branches, by their stored names. Those that came to the table after it are null
    in its rows, or have their default.
    """
    from pyspark.sql import functions as sf

    rows = session.createDataFrame(tail)
    if snapshot is not None:
        # By id: the snapshot's own schema is used then, and no ref is asked.
        log = session.read.option("versionAsOf", str(snapshot)).table(f"{CATALOG}.{name}")
        known = set(log.columns)
        rows = log.select(*[_column(one, known) for one in columns]).unionByName(rows)
    return rows.where((sf.col(SEQ) > since) & (sf.col(SEQ) <= until))


def _column(column: Column, known: Set[str]) -> SparkColumn:
    """A column as the table's schema has it, out of what a snapshot has."""
    from pyspark.sql import functions as sf

    type_ = spark_ddl(column.type)
    values = (sf.col(f"`{column.stored}`") if column.stored in known else sf.lit(None)).cast(type_)
    if column.fills:
        first, *others = column.fills
        default = sf.when(sf.col(SEQ) < first.below, sf.lit(first.value))
        for fill in others:
            default = default.when(sf.col(SEQ) < fill.below, sf.lit(fill.value))
        values = sf.coalesce(values, default.cast(type_))
    return values.alias(column.name)


def newest(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Of a keyed table's versions, the newest of each key, but for those that say that the row is gone."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    place = sf.row_number().over(Window.partitionBy(*(f"`{name}`" for name in key)).orderBy(sf.col(SEQ).desc()))
    numbered = rows.withColumn("strand_place", place)
    return numbered.where((sf.col("strand_place") == 1) & ~sf.col(REMOVED)).drop("strand_place")
