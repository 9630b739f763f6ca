"""The command from a cold start: a whole process that answers a query, beside one that only imports DuckDB."""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, in_turns, spread, timed
from bench.spark import spark_ends
from strandline.engines.spark.jars import cache_dir


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Count the rows of a flushed table, and start a Spark for one flush."""
    yield counting(scale, folder)
    yield first_flush(scale, folder)


def first_flush(scale: Scale, folder: Path) -> Line:
    """A whole process from its start to its first flush, with the class-data archive and without."""
    bare = folder / "cache"
    bare.mkdir()
    (bare / "jars").symlink_to(cache_dir() / "jars")
    with strandline.init(folder / "starting") as lake:
        lake.create_table("t", {"a": "string"}, actor="bench")

    def flush(**more: str) -> float:
        with strandline.open(folder / "starting") as lake:
            lake.append("t", [{"a": "x"}], actor="bench")
        command = [sys.executable, "-m", "strandline", "--lake", str(folder / "starting"), "flush"]
        return timed(lambda: subprocess.run(command, check=True, capture_output=True, env={**os.environ, **more}))

    warm, cold = in_turns(scale.rounds(5), lambda _: flush(), lambda _: flush(STRAND_CACHE_DIR=str(bare)), warm_ups=1)
    return Line(
        what="start to the first flush, whole process, with a class-data archive",
        against="the same without",
        ours=statistics.median(warm),
        baseline=statistics.median(cold),
        unit="s",
        reach=Reach(1),
        notes={"warm": spread(warm), "cold": spread(cold)},
    )


def counting(scale: Scale, folder: Path) -> Line:
    """A query from a cold start."""
    size = scale.rows(1_000_000)
    with spark_ends(), strandline.init(folder / "lake") as lake:
        lake.create_table("messages", rows.COLUMNS, actor="bench")
        rows.append_all(lake, "messages", rows.batches(0, size))
        lake.flush("messages", actor="bench")
    # As an installation has it; where PYTHONDONTWRITEBYTECODE is set, an edited file would be compiled at every start.
    compileall.compile_dir(str(Path(strandline.__file__).parent), quiet=1)
    strand = [str(Path(sys.executable).with_name("strand")), "--lake", str(folder / "lake")]
    count = [*strand, "sql", "select count(*) from messages"]
    assert f"{size}" in _run(count).replace(",", ""), "the count is wrong"
    ours, other = in_turns(
        scale.rounds(15),
        lambda _: timed(lambda: _run(count)),
        lambda _: timed(lambda: _run([sys.executable, "-c", "import duckdb"])),
        warm_ups=1,
    )
    return Line(
        what=f'`strand sql "select count(*) …"` on {size:,} rows, whole process',
        against='`python -c "import duckdb"`',
        ours=statistics.median(ours),
        baseline=statistics.median(other),
        unit="s",
        reach=Reach(6),
        notes={"strand": spread(ours), "import": spread(other)},
    )


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
