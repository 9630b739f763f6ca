"""Flushes: beside bare Spark, with a row key beside without, and late ones beside early ones.

All of it happens in one Spark session, and each flush has a table in the same condition as the one it is compared with.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, in_turns, spread, timed
from bench.spark import spark_ends
from strandline.lake import Lake

EARLY, LATE, NEIGHBOURS = 10, 200, 5
REPEATED_SHARE = 100
"""One row in so many is a duplicate, so that dedupe has something to find and nearly everything to write."""


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """A large flush, and one with a row key in both scopes."""
    with spark_ends(), strandline.init(folder / "lake") as lake:
        yield large(scale, lake, folder)
        yield keyed(scale, lake, "table")
        yield keyed(scale, lake, "partition")


def late_lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Whether many flushes make the next one slower."""
    with spark_ends():
        yield late(scale, folder)


def large(scale: Scale, lake: Lake, folder: Path) -> Line:
    """The tail of a new table, against Spark that finds the same rows as Parquet files already."""
    size = scale.rows(1_000_000)
    batches = list(rows.batches(0, size))
    parquet = _parquet_files(folder / "parquet", batches)
    lake.spark.sql("CREATE NAMESPACE IF NOT EXISTS strand.bare")

    def ours(number: int) -> float:
        table = f"large_{number}"
        lake.create_table(table, rows.COLUMNS, actor="bench")
        rows.append_all(lake, table, batches)
        return timed(lambda: lake.flush(table, actor="bench"))

    def bare(number: int) -> float:
        table = f"strand.bare.large_{number}"
        lake.spark.sql(f"CREATE TABLE {table} ({_ddl()}) USING iceberg")
        taken = timed(lambda: lake.spark.read.parquet(parquet).writeTo(table).append())
        assert lake.spark.read.table(table).count() == size, "bare Spark wrote another number of rows"
        return taken

    ours_s, bare_s = in_turns(scale.rounds(5), ours, bare, warm_ups=1)
    return Line(
        what=f"flush of {size:,} rows, no row key",
        against="bare Spark: Parquet files of the same rows, Iceberg append, same session",
        ours=size / statistics.median(ours_s),
        baseline=size / statistics.median(bare_s),
        unit="rows/s",
        reach=Reach(0.5, at_least=True),
        notes={"ours": spread(ours_s), "bare": spread(bare_s)},
    )


def keyed(scale: Scale, lake: Lake, dedupe: Any) -> Line:
    """A flush that has to know every key of the log (or of the day it touches), against one that need not."""
    log, size = scale.rows(1_000_000), scale.rows(100_000)
    by_day = ["day"] if dedupe == "partition" else []
    with_key, without = f"keyed_{dedupe}", f"plain_{dedupe}"
    lake.create_table(with_key, rows.COLUMNS, row_key=["part_id"], dedupe=dedupe, partition_by=by_day, actor="bench")
    lake.create_table(without, rows.COLUMNS, partition_by=by_day, actor="bench")
    batches = list(rows.batches(0, log))
    for table in (with_key, without):
        rows.append_all(lake, table, batches)
        lake.flush(table, actor="bench")

    def turn(table: str) -> Callable[[int], float]:
        def flush_more(number: int) -> float:
            return _flush_more(lake, table, log + number * size, size, number % rows.DAYS if by_day else None)

        return flush_more

    with_key_s, without_s = in_turns(scale.rounds(5), turn(with_key), turn(without), warm_ups=1)
    return Line(
        what=f"flush of {size:,} rows with row key onto {log:,}, dedupe={dedupe}"
        + (", touching a tenth of the log" if by_day else ""),
        against="the same without row key",
        ours=statistics.median(with_key_s),
        baseline=statistics.median(without_s),
        unit="s",
        reach=Reach(2 if by_day else 4),
        notes={"with_key": spread(with_key_s), "without": spread(without_s)},
    )


def _flush_more(lake: Lake, table: str, first: int, size: int, day: int | None) -> float:
    """New rows, and a few that are in the log already."""
    again = max(1, size // REPEATED_SHARE)
    rows.append_all(lake, table, rows.batches(first, size - again, day=day))
    lake.append(table, _rows_of_the_log(first, again, day), actor="bench")
    taken = timed(lambda: lake.flush(table, actor="bench"))
    state = lake.view().branch_table(table)
    assert state.head.books.dropped % again == 0, "dedupe found another number of duplicates"
    assert bool(state.head.books.dropped) == bool(state.table.row_key), "dedupe found none, or some without a key"
    return taken


def _rows_of_the_log(first: int, size: int, day: int | None) -> pa.Table:
    if day is None:
        return rows.batch(first - size, size)
    return rows.batch(0, size * rows.DAYS).take(pa.array(range(day, size * rows.DAYS, rows.DAYS)))


def late(scale: Scale, folder: Path) -> Line:
    """Two lakes: one that was flushed often and one that was not, in turns from there on, so both are equally warm."""
    size = scale.rows(1_000)
    late_at = LATE if not scale.quick else 2 * EARLY
    half = NEIGHBOURS // 2
    with strandline.init(folder / "late") as old, strandline.init(folder / "early") as young:
        for lake in (old, young):
            lake.create_table("messages", rows.COLUMNS, actor="bench")

        def flush(lake: Lake, number: int) -> float:
            rows.append_all(lake, "messages", rows.batches(number * size, size))
            return timed(lambda: lake.flush("messages", actor="bench"))

        on_the_way = [flush(old, number) for number in range(late_at - half - 1)]
        for number in range(EARLY - half - 1):
            flush(young, number)
        late_s, early_s = in_turns(
            NEIGHBOURS,
            lambda number: flush(old, late_at - half - 1 + number),
            lambda number: flush(young, EARLY - half - 1 + number),
        )
    return Line(
        what=f"the {late_at}th flush of {size:,} rows",
        against=f"the {EARLY}th",
        ours=statistics.median(late_s),
        baseline=statistics.median(early_s),
        unit="s",
        reach=Reach(1.5),
        notes={
            "late": spread(late_s),
            "early": spread(early_s),
            "same_lake_early_s": statistics.median(on_the_way[EARLY - half - 1 : EARLY + half]),
        },
    )


def _parquet_files(folder: Path, batches: Sequence[pa.Table]) -> str:
    """The same rows in a file for each core, as plain PyArrow writes them."""
    folder.mkdir()
    each = -(-len(batches) // (os.cpu_count() or 1))
    for at in range(0, len(batches), each):
        pq.write_table(pa.concat_tables(batches[at : at + each]), folder / f"part-{at:05d}.parquet")
    return str(folder)


def _ddl() -> str:
    types = {"long": "bigint"}
    return ", ".join(f"{name} {types.get(kind, kind)}" for name, kind in rows.COLUMNS.items())
