"""A JVM's walk through what jobs do, so that the classes they need are known when it ends.

It touches what a flush and a read touch, on a table of a few rows in a folder that is thrown
away. What it leaves out is only slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.config import Store
from strandline.engines.spark import session
from strandline.engines.spark.iceberg import Iceberg
from strandline.engines.spark.stage import append_to_branch
from strandline.model.schema.schema import parse_mapping
from strandline.model.schema.types import OURS, SEQ, Column

NAME = "training.rows"
BRANCH = "op_training"
TIMES = 3


def run(folder: Path, options: Sequence[str]) -> None:
    """Start a JVM with these options, work, and wait until it has ended; what it has to write is written then."""
    root = session.start("local[2]", {"spark.driver.extraJavaOptions": session.java_options(options)})
    catalog = session.catalog_properties(f"jdbc:sqlite:{folder}/catalog.db", f"file://{folder}/warehouse", {}, Store())
    own = session.lake_session(root, catalog)
    try:
        _work(Iceberg(own, catalog), folder)
    finally:
        session.stop(and_wait=True)


def _work(iceberg: Iceberg, folder: Path) -> None:
    iceberg.ensure_table(NAME, "`id` STRING, `part` STRING, `ts` TIMESTAMP, `_seq` BIGINT", ["part"])
    file = _rows(folder)
    for _ in range(TIMES):
        _append(iceberg, file)
    question = "SELECT part, count(*), max(ts) FROM {}.{} WHERE _seq > 10 GROUP BY part ORDER BY part"
    iceberg.session.sql(question.format(session.CATALOG, NAME)).collect()


def _rows(folder: Path) -> Path:
    file, count = folder / "rows.parquet", range(1000)
    columns = {"id": [str(i) for i in count], "part": [str(i % 2) for i in count], SEQ: list(count)}
    pq.write_table(pa.table({**columns, "ts": pa.array(count, pa.timestamp("us", "UTC"))}), file)
    return file


def _append(iceberg: Iceberg, file: Path) -> None:
    columns = [*parse_mapping({"id": "string", "part": "string", "ts": "timestamp"}).columns, Column(SEQ, OURS[SEQ])]
    iceberg.create_branch(NAME, BRANCH, iceberg.refs(NAME).get("main"))
    append_to_branch(iceberg.session.read.parquet(str(file)), NAME, BRANCH, "training", columns, ["part"])
    snapshot = iceberg.branch_snapshot(NAME, BRANCH)
    assert snapshot is not None, "the training wrote rows and found no snapshot"
    iceberg.added_files(NAME, snapshot, "ts")
    iceberg.settle(NAME, "main", BRANCH, lambda: snapshot, lambda _: True)
