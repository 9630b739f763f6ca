"""Appends to a ledger in Postgres: eight processes against one, on a server that waits for its disk."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.postgres import Server

import strandline
from bench import rows
from bench.appends import TABLE
from bench.measure import Line, Reach, Scale, in_turns

PROCESSES = 8


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Batches of a thousand rows, of a hundred, and single rows."""
    server = Server(fsync=True)
    try:
        server.start()
        for size, batches in ((1_000, 160), (100, 800), (1, 1_600)):
            yield _appends(scale, folder, server, size, max(PROCESSES, batches // scale.divisor))
    finally:
        server.remove()


def _appends(scale: Scale, folder: Path, server: Server, size: int, batches: int) -> Line:
    root = folder / f"lake{size}"
    with strandline.init(root, ledger=server.new_database()) as lake:
        lake.create_table(TABLE, rows.COLUMNS, actor="bench")
    alone = [_writer(root, size, batches, 0)]
    together = [_writer(root, size, batches // PROCESSES, 1 + number) for number in range(PROCESSES)]
    try:
        ours, other = in_turns(scale.rounds(7), lambda _: _run(together), lambda _: _run(alone), warm_ups=1)
    finally:
        for writer in (*alone, *together):
            writer.communicate()
    stored = size * batches
    return Line(
        what=f"append on Postgres, {PROCESSES} processes, batches of {size:,}",
        against="1 process",
        ours=stored / statistics.median(ours),
        baseline=stored / statistics.median(other),
        unit="rows/s",
        reach=Reach(1.5, at_least=True),
        notes={"batches": batches, "rounds": len(ours), "fsync": True},
    )


def _writer(root: Path, size: int, batches: int, number: int) -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-m", "bench.postgres_writer", str(root), str(size), str(batches), str(number)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def _run(writers: list[subprocess.Popen[str]]) -> float:
    """The seconds until all of them have appended their share."""
    began = time.perf_counter()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "done\n"
    return time.perf_counter() - began
