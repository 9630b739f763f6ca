"""Memory does not grow with what is delivered."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.model.schema.types import SEQ
from tests.kit import environment

ROWS = 40_000
TIMES = 5
BOUND = 1.3
"""Between the two peaks. Whatever held the whole unit came to 1.6 and more when it was tried."""

GROUP_ROWS = 2_000
"""Small groups, here as in what is written, so that a few of them fit into the smaller log too."""

ROOT = Path(__file__).parents[2]

SMALL = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-m', *sys.argv[1:]]).returncode)"
"""A program without anything in its memory that a child could inherit."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file of a log with rows of 1 KB that don't compress, and one with five times as many."""
    folder = tmp_path_factory.mktemp("logs")
    return write_log(folder / "one.parquet", ROWS), write_log(folder / "five.parquet", ROWS * TIMES)


def write_log(path: Path, rows: int) -> Path:
    """Rows in seq order, as a flush writes them."""
    noise = random.Random(7)
    schema = pa.schema([("part_id", pa.string()), ("body", pa.string()), pa.field(SEQ, pa.int64(), nullable=False)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        bodies = pa.array([base64.b64encode(noise.randbytes(750)).decode() for _ in range(GROUP_ROWS)])
        for first in range(1, rows + 1, GROUP_ROWS):
            seqs = range(first, first + GROUP_ROWS)
            writer.write_table(pa.table([[f"p{seq}" for seq in seqs], bodies, seqs], schema=schema))
    return path


def peak_mib(how: str, log: Path, folder: Path) -> float:
    """What a fresh process needs to move all of a log."""
    rows = pq.read_metadata(log).num_rows
    done = subprocess.run(
        [sys.executable, "-c", SMALL, "tests.acceptance.exporting", how, str(log), str(folder)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rows"] == rows
    return float(told["peak_mib"])


@pytest.mark.parametrize("how", ["parquet", "jsonl", "forward"])
def test_f22_an_export_of_five_times_the_rows_needs_no_more_memory(
    how: str, logs: tuple[Path, Path], tmp_path: Path
) -> None:
    """A unit is read, encoded and written in pieces: its size shows in the object and not in the worker's memory."""
    one, five = (peak_mib(how, log, tmp_path) for log in logs)
    assert five < BOUND * one, f"{one:.0f} MiB for {ROWS:,} rows, {five:.0f} MiB for {ROWS * TIMES:,}"
