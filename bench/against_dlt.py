"""The same file into Iceberg by dlt: the whole job, after imports, with a small job before it to warm up.

dlt runs in an environment of its own, and reports its own seconds (`dlt_job.py`). It has two ways in: its own reader of
JSON lines, which infers types as ours validates them, and Arrow tables, which leaves that out. Both are compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, in_turns, spread, tell, timed
from bench.spark import spark_ends
from examples.demo import messages
from strandline.lake import Lake

HERE = Path(__file__).parent
PYTHON = HERE.parent / ".venv-dlt" / "bin" / "python"


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """200,000 agent messages."""
    if not PYTHON.exists():
        tell("  left out: `make bench` sets up dlt's environment")
        return
    size = scale.rows(200_000)
    source, small = folder / "messages.jsonl", folder / "small.jsonl"
    rows.write_messages(source, size)
    rows.write_messages(small, 1_000)
    with spark_ends(), strandline.init(folder / "lake") as lake:
        _ours(lake, "warm", source, size, keyed=False)
        ours, keyed, reader, arrow = in_turns(
            scale.rounds(3),
            lambda number: _ours(lake, f"plain_{number}", source, size, keyed=False),
            lambda number: _ours(lake, f"keyed_{number}", source, size, keyed=True),
            _dlt(source, small, folder, size),
            _dlt(source, small, folder, size, "--arrow"),
        )
    for against, taken in (("dlt, its own JSONL reader", reader), ("dlt, fed with Arrow tables", arrow)):
        yield Line(
            what=f"{size:,} JSONL rows ({source.stat().st_size / 1e6:.0f} MB) into Iceberg, whole job, warm",
            against=against,
            ours=statistics.median(ours),
            baseline=statistics.median(taken),
            unit="s",
            reach=Reach(1),
            notes={"ours": spread(ours), "ours_with_row_key": spread(keyed), "dlt": spread(taken)},
        )


def _ours(lake: Lake, table: str, source: Path, size: int, *, keyed: bool) -> float:
    lake.create_table(table, messages.COLUMNS, row_key=messages.ROW_KEY if keyed else (), actor="bench")

    def job() -> None:
        lake.load(table, [str(source)], actor="bench")
        lake.flush(table, actor="bench")

    taken = timed(job)
    state = lake.view().branch_table(table)
    assert not state.tail, "rows are left in the ledger"
    assert state.head.books.log == size, "another number of rows is in Iceberg"
    return taken


def _dlt(source: Path, small: Path, folder: Path, size: int, *options: str) -> Callable[[int], float]:
    def turn(number: int) -> float:
        out = folder / f"dlt{'-'.join(options)}-{number}"
        out.mkdir()
        job = [str(PYTHON), "-P", str(HERE / "dlt_job.py")]  # -P: `dlt` is not to be looked for in this folder
        command = [*job, str(source), str(out), "--warm-up", str(small), *options]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
        figures = json.loads(done.stdout.splitlines()[-1])
        assert figures["rows"] == size, f"dlt loaded {figures['rows']} rows"
        return float(figures["seconds"])

    return turn
