"""A whole table, exported and forwarded, beside the barest thing that moves the same rows.

Spark alone reads the same snapshot and writes Parquet of the same compression. And a loop posts the very bytes that the
forward sink posted to a server that only decodes them and puts them into SQLite (`bare_server.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pyarrow.parquet as pq

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, in_turns, spread, tell, timed
from bench.receiver import Receiver, receiving, server
from bench.spark import spark_ends
from strandline.lake import Lake

TABLE = "messages"
ROUNDS = 3


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """The first delivery of a table to a new sink."""
    size = scale.rows(1_000_000)
    with spark_ends(), strandline.init(folder / "lake") as lake:
        tell(f"  filling a log with {size:,} rows")
        lake.create_table(TABLE, rows.COLUMNS, actor="bench")
        rows.append_all(lake, TABLE, rows.batches(0, size))
        lake.flush(TABLE, actor="bench")
        yield export(scale, lake, size, folder)
        yield from forward(scale, lake, size, folder)


def export(scale: Scale, lake: Lake, size: int, folder: Path) -> Line:
    """A blob sink into a folder, against Spark's own writer."""
    state = lake.view().branch_table(TABLE)
    snapshot, name = str(state.head.log_snapshot), f"strand.{state.table.iceberg_name}"

    def ours(number: int) -> float:
        out = folder / f"blobs-{number}"
        lake.add_sink(f"blob-{number}", "blob", {"uri": out.as_uri()})
        taken = timed(lambda: lake.tick(f"blob-{number}", actor="bench"))
        assert _rows_in(out) == size, "another number of rows was exported"
        return taken

    def bare(number: int) -> float:
        out = folder / f"bare-{number}"
        read = lake.spark.read.option("versionAsOf", snapshot).table(name)
        taken = timed(lambda: read.write.option("compression", "zstd").parquet(str(out)))
        assert _rows_in(out) == size, "bare Spark wrote another number of rows"
        return taken

    ours_s, bare_s = in_turns(scale.rounds(ROUNDS), ours, bare, warm_ups=1)
    return Line(
        what=f"first export of {size:,} rows to Parquet",
        against="bare Spark: the same snapshot, written as Parquet, same session",
        ours=size / statistics.median(ours_s),
        baseline=size / statistics.median(bare_s),
        unit="rows/s",
        reach=Reach(0.6, at_least=True),
        notes={"ours": spread(ours_s), "bare": spread(bare_s)},
    )


def _rows_in(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


def forward(scale: Scale, lake: Lake, size: int, folder: Path) -> Iterator[Line]:
    """A forward sink to a real receiver, against a loop that posts the same chunks to a bare server."""
    rounds, ways = scale.rounds(ROUNDS), ("rows", "bytes")
    chunks: list[bytes] = []
    with (
        receiving(folder / "receiver", [TABLE]) as receiver,
        server(["-m", "bench.bare_server", str(folder / "rows.db"), "rows"]) as rows_url,
        server(["-m", "bench.bare_server", str(folder / "bytes.db"), "bytes"]) as bytes_url,
    ):

        def ours(number: int) -> float:
            with _recorded(chunks, first=number == 0):
                return _forward(lake, receiver, size, number)

        def bare(url: str) -> float:
            return _post_all(url, chunks, size)

        ours_s, *others = in_turns(rounds, ours, lambda _: bare(rows_url), lambda _: bare(bytes_url), warm_ups=1)
    for way, other in zip(ways, others, strict=True):
        yield Line(
            what=f"forward of {size:,} rows, stored by the receiver",
            against=f"a bare loop posting the same chunks to a server that decodes them and inserts {way} into SQLite",
            ours=size / statistics.median(ours_s),
            baseline=size / statistics.median(other),
            unit="rows/s",
            reach=Reach(0.5, at_least=True),
            notes={
                "ours": spread(ours_s),
                "bare": spread(other),
                "chunks": len(chunks),
                "bytes": sum(map(len, chunks)),
            },
        )


def _forward(lake: Lake, receiver: Receiver, size: int, number: int) -> float:
    """A new sink from the beginning: the receiver takes each sink's rows for themselves."""
    name = f"forward-{number}"
    lake.add_sink(name, "forward", receiver.settings())
    before = receiver.stored(TABLE)
    taken = timed(lambda: lake.tick(name, actor="bench"))
    assert receiver.stored(TABLE) - before == size, "another number of rows was stored"
    return taken


@contextmanager
def _recorded(chunks: list[bytes], *, first: bool) -> Iterator[None]:
    """Keep what is posted inside, in the first round."""
    post = httpx.Client.post

    def keep(client: httpx.Client, url: str, *, content: bytes, **more: Any) -> httpx.Response:
        chunks.append(content)
        return post(client, url, content=content, **more)

    if not first:
        yield
        return
    with mock.patch.object(httpx.Client, "post", keep):
        yield


def _post_all(url: str, chunks: list[bytes], size: int) -> float:
    with httpx.Client(base_url=url, timeout=60) as client:
        stored = 0

        def loop() -> None:
            nonlocal stored
            for chunk in chunks:
                stored += client.post("/chunks", content=chunk).raise_for_status().json()["stored"]

        taken = timed(loop)
    assert stored == size, "the bare server stored another number of rows"
    return taken
