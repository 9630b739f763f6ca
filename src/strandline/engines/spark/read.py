"""Reading a pinned snapshot with Spark, with the tail beside it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from strandline.engines.spark.session import CATALOG
from strandline.model.schema.engine_types import spark_ddl
from strandline.model.schema.types import REMOVED, SEQ, Column

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession


def read_view(
    session: SparkSession,
    name: str,
    snapshot: int | None,
    tail: pa.Table | None,
    columns: Sequence[Column],
    since: int,
    until: int,
) -> DataFrame:
    """The rows of `(since, until]` of a snapshot and of a tail, as one DataFrame.

    The snapshot has the columns of all branches, by their stored names. Those that came to the table after it are null
    in its rows, or have their default. There is a snapshot, a tail, or both.
    """
    from pyspark.sql import functions as sf

    rows = None if tail is None else session.createDataFrame(tail)
    if snapshot is not None:
        # By id: the snapshot's own schema is used then, and no ref is asked.
        log = session.read.option("versionAsOf", str(snapshot)).table(f"{CATALOG}.{name}")
        stored = columns_of(log, columns)
        rows = stored if rows is None else stored.unionByName(rows)
    assert rows is not None, f"{name} is read, and has neither a snapshot nor a tail"
    return rows.where((sf.col(SEQ) > since) & (sf.col(SEQ) <= until))


def columns_of(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Rows as Iceberg has them, with the columns of a table's schema under their own names."""
    names = set(rows.columns)
    if not any(column.fills for column in columns):
        # As text: a column made in Python is ten calls of Java.
        return rows.selectExpr(*[_text(column, names) for column in columns])
    return rows.select(*[_column(column, names) for column in columns])


def _text(column: Column, names: Set[str]) -> str:
    """A column without defaults, as Spark writes it."""
    values = f"`{column.stored}`" if column.stored in names else "NULL"
    return f"TRY_CAST({values} AS {spark_ddl(column.type)}) AS `{column.name}`"


def _column(column: Column, names: Set[str]) -> SparkColumn:
    """A column as the table's schema has it, out of what a snapshot has."""
    from pyspark.sql import functions as sf

    type_ = spark_ddl(column.type)
    values = (sf.col(f"`{column.stored}`") if column.stored in names else sf.lit(None)).try_cast(type_)
    return with_defaults(values, column).alias(column.name)


def with_defaults(values: SparkColumn, column: Column) -> SparkColumn:
    """A column's values, with its defaults where rows have none that have these."""
    from pyspark.sql import functions as sf

    defaults = [sf.when(sf.expr(fill.condition(SEQ)), sf.lit(fill.value)) for fill in column.fills]
    return sf.coalesce(values, *(default.cast(spark_ddl(column.type)) for default in defaults)) if defaults else values


def newest(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Of a keyed table's versions, the newest of each key, but for those that say that the row is gone."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    place = sf.row_number().over(Window.partitionBy(*(f"`{name}`" for name in key)).orderBy(sf.col(SEQ).desc()))
    numbered = rows.withColumn("strand_place", place)
    return numbered.where((sf.col("strand_place") == 1) & ~sf.col(REMOVED)).drop("strand_place")


def current(state: DataFrame, later: DataFrame, key: Sequence[str]) -> DataFrame:
    """The same rows, from a state and the versions that are later than it."""
    touched = later.select(*(f"`{name}`" for name in key)).distinct()
    kept = state.join(touched, on=list(key), how="left_anti")
    return kept.unionByName(newest(later, key)).select(*(f"`{name}`" for name in state.columns))


def fold_rows(
    changed: DataFrame,
    held: DataFrame | None,
    columns: Sequence[Column],
    key: Sequence[str],
    order: Sequence[str],
    parts: int,
) -> DataFrame:
    """The rows of a state, from those that it `held` and the versions that came since, cut and sorted by their keys.

    What it held is as Iceberg has it, and so is what comes out.
    """
    together = changed if held is None else changed.unionByName(columns_of(held, columns))
    ordered = [f"`{name}`" for name in order]
    newest_rows = newest(together, key)
    cut = newest_rows.coalesce(1) if parts == 1 else newest_rows.repartitionByRange(parts, *ordered)
    return cut.sortWithinPartitions(*ordered).selectExpr(
        *[f"`{column.name}` AS `{column.stored}`" for column in columns]
    )
