"""Reading a pinned snapshot with Spark, with the tail beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.engines.spark.session import CATALOG
from strandline.model.foreign import spark_ddl
from strandline.model.types import REMOVED, SEQ, Column

if TYPE_CHECKING:
    import pyarrow as pa
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

    Columns that came to the table after the snapshot are null in its rows.
    """
    from pyspark.sql import functions as sf

    rows = session.createDataFrame(tail)
    if snapshot is not None:
        # By id: the snapshot's own schema is used then, and no ref is asked.
        log = session.read.option("versionAsOf", str(snapshot)).table(f"{CATALOG}.{name}")
        known = set(log.columns)
        taken = [
            sf.col(one.name) if one.name in known else sf.lit(None).cast(spark_ddl(one.type)).alias(one.name)
            for one in columns
        ]
        rows = log.select(*taken).unionByName(rows)
    return rows.where((sf.col(SEQ) > since) & (sf.col(SEQ) <= until))


def newest(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Of a keyed table's versions, the newest of each key, but for those that say that the row is gone."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    place = sf.row_number().over(Window.partitionBy(*(f"`{name}`" for name in key)).orderBy(sf.col(SEQ).desc()))
    numbered = rows.withColumn("strand_place", place)
    return numbered.where((sf.col("strand_place") == 1) & ~sf.col(REMOVED)).drop("strand_place")
