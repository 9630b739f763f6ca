"""The command from a cold start: a whole process that answers a query, beside one that only imports DuckDB."""

from __future__ import annotations

import compileall
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, in_turns, spread, timed
from bench.spark import spark_ends


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Count the rows of a flushed table."""
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
    yield Line(
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
