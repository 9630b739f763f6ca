"""Structured Streaming: micro-batches into a table, each once.

Spark runs a micro-batch again after a crash, with the same id. What remembers it is a mark in the ledger per (query,
table), moved by the transaction that stores the rows; neither expiry nor compaction can lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from strandline import logs
from strandline.engines.files import Input
from strandline.engines.spark import source
from strandline.errors import BadRequest
from strandline.operations.core.context import Context
from strandline.operations.load.load import load
from strandline.operations.load.load_request import LoadRequest

log = logs.Logger("strandline.stream")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def foreach_batch(ctx: Context, table: str, branch: str, actor: str) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch` that stores each micro-batch in the table."""

    def store(rows: DataFrame, batch: int) -> None:
        query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query_id is None:
            raise BadRequest("this function is for writeStream.foreachBatch", hint="Use lake.append or lake.load here.")

        def inputs(folder: str) -> Sequence[Input]:
            source.write_parquet(rows, folder)
            return source.exported(folder)

        name = f"stream:{query_id}:{batch}"
        done = load(
            ctx,
            LoadRequest(
                table=table,
                branch=branch,
                actor=actor,
                key=name,
                digest=name,
                write_inputs=inputs,
                kind="stream",
                query_mark=(query_id, batch),
            ),
        )
        if done.too_old:
            log.warning(
                "rows past the retention left out", table=table, query=query_id, batch=batch, too_old=done.too_old
            )

    return store
