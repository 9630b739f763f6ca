"""Memory: what five times the rows need of it, in a flush, a load, an export and a forward.

The rows are put in place by this process. Another one, which does nothing else, moves them, while this one looks at it
and its children: the driver's Python, Spark's Python workers, and the JVM, whose heap is fixed. Each is told apart.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, tell
from bench.receiver import receiving
from bench.spark import spark_ends

HEAP = "2g"
EVERY_S = 0.05
PATIENCE_S = 1800.0
TABLE = "messages"


@dataclass
class Peaks:
    """The most that was resident at any look, in MiB."""

    driver: float = 0
    workers: float = 0
    jvm: float = 0

    def look(self, process: psutil.Process) -> None:
        """Take the process and its children in.

        A JVM that starts a command is two processes of the same size for a moment; the largest one counts.
        """
        python = process.exe()
        children = [(_program(child), _resident(child)) for child in process.children(recursive=True)]
        workers = sum(size for program, size in children if program == python)
        jvm = max((size for program, size in children if program.endswith("/java")), default=0.0)
        self.driver = max(self.driver, _resident(process))
        self.workers = max(self.workers, workers)
        self.jvm = max(self.jvm, jvm)

    @property
    def python(self) -> float:
        """The driver and the workers."""
        return self.driver + self.workers


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """A flush and a load, each of 1 M and of 5 M rows."""
    small, large = _sizes(scale)
    for job, prepare in (("flush", _fill_tail), ("load", _write_files)):
        few, many = (_measured(job, prepare, size, folder / f"{job}-{size}") for size in (small, large))
        yield _line(f"a {job}", few, many, (small, large), Reach(1.3))


def delivery_lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """An export and a forward, the same; both deliver the same log."""
    small, large = _sizes(scale)
    few, many = (_measured_deliveries(size, folder / str(size)) for size in (small, large))
    for job, name in (("export", "an export"), ("forward", "a forward")):
        yield _line(name, few[job], many[job], (small, large), Reach(1.2))


def _sizes(scale: Scale) -> tuple[int, int]:
    return scale.rows(1_000_000), scale.rows(5_000_000)


def _line(name: str, few: Peaks, many: Peaks, sizes: tuple[int, int], reach: Reach) -> Line:
    return Line(
        what=f"Python's peak memory in {name} of {sizes[1]:,} rows",
        against=f"of {sizes[0]:,} rows",
        ours=many.python,
        baseline=few.python,
        unit="MiB",
        reach=reach,
        notes={
            "driver_mib": [round(few.driver), round(many.driver)],
            "python_workers_mib": [round(few.workers), round(many.workers)],
            "jvm_mib": [round(few.jvm), round(many.jvm)],
            "jvm_heap": HEAP,
        },
    )


def _measured(job: str, prepare: Callable[[Path, int], list[str]], size: int, folder: Path) -> Peaks:
    folder.mkdir()
    peaks = _run(job, folder, prepare(folder, size), size)
    shutil.rmtree(folder)
    return peaks


def _measured_deliveries(size: int, folder: Path) -> dict[str, Peaks]:
    folder.mkdir()
    _fill_tail(folder, size)
    with spark_ends(), strandline.open(folder / "lake") as lake:
        lake.flush(TABLE, actor="bench")
    peaks = {"export": _run("export", folder, [json.dumps({"uri": (folder / "blobs").as_uri()})], size)}
    with receiving(folder / "receiver", [TABLE]) as receiver:
        peaks["forward"] = _run("forward", folder, [json.dumps(receiver.settings())], size)
    shutil.rmtree(folder)
    return peaks


def _run(job: str, folder: Path, arguments: list[str], size: int) -> Peaks:
    tell(f"  {job} of {size:,} rows")
    settings = {
        "spark.driver.memory": HEAP,
        "spark.driver.defaultJavaOptions": f"-Xms{HEAP}",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.memory_job", job, str(folder / "lake"), TABLE, *arguments],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "STRAND_SPARK_CONF": json.dumps(settings)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        peaks = _watch(child)
        printed = child.communicate(timeout=60)[0]
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0 and int(printed) == size, f"the {job} moved {printed.strip()} of {size} rows"
    return peaks


def _watch(child: subprocess.Popen[str]) -> Peaks:
    peaks = Peaks()
    process = psutil.Process(child.pid)
    deadline_s = time.monotonic() + PATIENCE_S
    while child.poll() is None:
        assert time.monotonic() < deadline_s, "it takes too long"
        try:
            peaks.look(process)
        except psutil.NoSuchProcess:
            break
        time.sleep(EVERY_S)
    return peaks


def _fill_tail(folder: Path, size: int) -> list[str]:
    with strandline.init(folder / "lake") as lake:
        lake.create_table(TABLE, rows.COLUMNS, actor="bench")
        rows.append_all(lake, TABLE, rows.batches(0, size))
    return []


def _write_files(folder: Path, size: int) -> list[str]:
    with strandline.init(folder / "lake") as lake:
        lake.create_table(TABLE, rows.COLUMNS, actor="bench")
    return rows.write_json_lines(folder, size)


def _resident(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / (1 << 20)
    except psutil.NoSuchProcess:
        return 0.0


def _program(process: psutil.Process) -> str:
    try:
        return str(process.exe())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
