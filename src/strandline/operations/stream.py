"""Structured Streaming: micro-batches into a table, each once.

Spark runs a micro-batch again after a crash, with the same id. What remembers it is a mark in the ledger per (query, table), moved by the
transaction that stores the rows; neither expiry nor compaction can lose it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from strandline.engines.spark import source
from strandline.errors import BadRequest
from strandline.ledger.query_marks import last_batch
from strandline.ledger.tables import find_table
from strandline.operations.context import Context
from strandline.operations.load import LoadRequest, load, new_load_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def foreach_batch(ctx: Context, table: str, branch: str, actor: str) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch` that stores each micro-batch in the table."""

    def store(rows: DataFrame, batch: int) -> None:
        query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query_id is None:
            raise BadRequest("this function is for writeStream.foreachBatch", hint="Use lake.append or lake.load here.")
        if _is_stored(ctx, table, query_id, batch):
            return
        load_id = new_load_id()
        folder = ctx.staging.uri(load_id, "source")
        source.write_parquet(rows, folder)
        name = f"stream:{query_id}:{batch}"
        load(
            ctx,
            LoadRequest(
                table=table,
                branch=branch,
                inputs=tuple(source.exported(folder)),
                actor=actor,
                key=name,
                digest=name,
                load_id=load_id,
                kind="stream",
                query_mark=(query_id, batch),
            ),
        )

    return store


def _is_stored(ctx: Context, table: str, query_id: str, batch: int) -> bool:
    with ctx.ledger.read() as conn:
        mark = last_batch(conn, query_id, find_table(conn, table).table_id)
    return mark is not None and mark >= batch
