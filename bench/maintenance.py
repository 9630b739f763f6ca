"""Maintenance: compaction beside Iceberg's own, scans before and after it, and writers beside it."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, in_turns, spread, timed
from bench.spark import spark_ends
from strandline.lake import Lake
from strandline.operations.maintain import stage_tail

SMALL_FILES = 1000
EARLY = 10
LATE = 1000
EVERY = 20
"""Flushes between two rounds of maintenance."""


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Compaction against bare Spark, and the scans that it is for."""
    with spark_ends(), strandline.init(folder / "lake") as lake:
        yield from compaction(scale, lake)


def beside_lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Many flushes with maintenance between them, and flushes and ticks while it loops."""
    with spark_ends():
        yield from late(scale, folder / "late")
        for eager in (False, True):
            yield beside(scale, folder / f"eager_{eager}", eager=eager)


def compaction(scale: Scale, lake: Lake) -> Iterator[Line]:
    """The same small files in several tables: one is compacted by us, the next by `rewrite_data_files`."""
    size, count = scale.rows(1_000_000), max(20, SMALL_FILES // scale.divisor)
    rounds = scale.rounds(3) + 1
    for number in range(rounds):
        for who in ("ours", "bare"):
            small_files(lake, f"{who}_{number}", size, count)
    scans: list[tuple[float, float]] = []

    def ours(number: int) -> float:
        before = scanned(lake, f"ours_{number}")
        taken = timed(lambda: lake.compact(f"ours_{number}", actor="bench"))
        assert len(lake.view().files(f"ours_{number}")) == 1, "it was not compacted into one file"
        scans.append((scanned(lake, f"ours_{number}"), before))
        return taken

    def bare(number: int) -> float:
        named = f"table => 'lake.bare_{number}', options => map('rewrite-all', 'true')"
        return timed(lambda: lake.spark.sql(f"CALL strand.system.rewrite_data_files({named})").collect())

    ours_s, bare_s = in_turns(rounds - 1, ours, bare, warm_ups=1)
    yield Line(
        what=f"compaction of {count:,} small files, {size:,} rows",
        against="bare Spark: rewrite_data_files of the same, same session",
        ours=statistics.median(ours_s),
        baseline=statistics.median(bare_s),
        unit="s",
        reach=Reach(1.2),
        notes={"ours": spread(ours_s), "bare": spread(bare_s)},
    )
    after, before = [pair[0] for pair in scans], [pair[1] for pair in scans]
    yield Line(
        what=f"scan of that table ({size:,} rows) after its compaction",
        against="before it",
        ours=statistics.median(after),
        baseline=statistics.median(before),
        unit="s",
        reach=Reach(1),
        notes={"after": spread(after), "before": spread(before)},
    )


def small_files(lake: Lake, table: str, size: int, count: int) -> None:
    """A table with so many rows in so many files, by one flush that writes small ones."""
    lake.create_table(table, rows.COLUMNS, actor="bench")
    rows.append_all(lake, table, (rows.batch(first, size // count) for first in range(0, size, size // count)))
    limits = stage_tail.MIN_FILE_ROWS, stage_tail.MAX_FILE_ROWS
    stage_tail.MIN_FILE_ROWS = stage_tail.MAX_FILE_ROWS = size // count
    try:
        lake.flush(table, actor="bench")
    finally:
        stage_tail.MIN_FILE_ROWS, stage_tail.MAX_FILE_ROWS = limits
    written = len(lake.view().files(table))
    assert written >= count, f"{written} files were written instead of {count}"


def scanned(lake: Lake, table: str) -> float:
    """The seconds of a query that reads every row."""
    return timed(lambda: lake.view().sql(f"select count(*), sum(length(body)), max(_seq) from {table}").rows())


def late(scale: Scale, folder: Path) -> Iterator[Line]:
    """Flushes with maintenance after every few: the last beside the first, and what is left lying about."""
    total = LATE if not scale.quick else 4 * EARLY
    size = 1_000
    taken: list[float] = []
    left: list[int] = []
    with strandline.init(folder) as lake:
        lake.create_table("messages", rows.COLUMNS, actor="bench")
        for number in range(total):
            rows.append_all(lake, "messages", rows.batches(number * size, size))
            taken.append(timed(lambda: lake.flush("messages", actor="bench")))
            if number % EVERY == EVERY - 1:
                lake.compact("messages", actor="bench", eager=False)
                lake.expire("messages", actor="bench", grace_s=0)
                left.append(sum(1 for _ in (folder / "warehouse").rglob("*") if _.is_file()))
    first, last = taken[2 : EARLY + 2], taken[-EARLY:]
    yield Line(
        what=f"the last {EARLY} of {total:,} flushes with maintenance on",
        against=f"the first {EARLY}",
        ours=statistics.median(last),
        baseline=statistics.median(first),
        unit="s",
        reach=Reach(1.3),
        notes={"first": spread(first), "last": spread(last)},
    )
    yield Line(
        what=f"files in the warehouse after {total:,} flushes",
        against=f"after {2 * EVERY}",
        ours=left[-1],
        baseline=left[1],
        unit="files",
        reach=Reach(1.5),
        notes={"all": str(left)},
    )


def beside(scale: Scale, folder: Path, *, eager: bool) -> Line:
    """A flush and a tick, alone and while another thread compacts and expires the same table in a loop.

    As a worker does it, files are merged when there are several of about one size. `eager` merges whatever is below the
    target size every time, so each round rewrites the whole table.
    """
    size = scale.rows(10_000)
    failures = [0]
    with strandline.init(folder / "beside") as lake, strandline.open(lake.root) as keeper:
        lake.create_table("messages", rows.COLUMNS, actor="bench")
        lake.add_sink("archive", "blob", {"uri": f"file://{folder}/archive"})
        done = [0]

        def write(_: int) -> float:
            rows.append_all(lake, "messages", rows.batches(done[0], size))
            done[0] += size
            return timed(lambda: (lake.flush("messages", actor="bench"), lake.tick("archive", actor="bench")))

        def write_beside(number: int) -> float:
            with looping(keeper, failures, eager=eager):
                return write(number)

        beside_s, alone_s = in_turns(scale.rounds(15), write_beside, write, warm_ups=2)
    return Line(
        what=f"flush and tick of {size:,} rows while compaction loops{', rewriting everything' if eager else ''}",
        against="alone",
        ours=statistics.median(beside_s),
        baseline=statistics.median(alone_s),
        unit="s",
        reach=Reach(2.5),
        notes={"beside": spread(beside_s), "alone": spread(alone_s), "failures": failures[0]},
    )


@contextmanager
def looping(lake: Lake, failures: list[int], *, eager: bool) -> Iterator[None]:
    """Compaction and expiry without end, in a thread, with a lake that is open already, as a worker's is."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            try:
                lake.compact("messages", actor="bench", eager=eager)
                lake.expire("messages", actor="bench", grace_s=0)
            except strandline.StrandError:
                failures[0] += 1

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
