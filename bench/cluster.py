"""A flush whose executors are processes of a cluster, beside one in a single process with as many cores.

Each side is a process of its own that keeps its Spark, as a worker does, and flushes the same rows again and again.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import CONF, standalone
from tests.kit import environment

from bench.measure import Line, Reach, Scale, in_turns, spread

JOB = """
import sys, time
import strandline
from bench import rows

size = int(sys.argv[2])
given = list(rows.batches(0, size))
with strandline.init(sys.argv[1]) as lake:
    for line in sys.stdin:
        table = f"t{line.strip()}"
        lake.create_table(table, rows.COLUMNS, actor="bench")
        rows.append_all(lake, table, given)
        begun = time.perf_counter()
        lake.flush(table, actor="bench")
        print(time.perf_counter() - begun, flush=True)
"""


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """The same flush on two standalone workers and on two local cores, in turns."""
    size = scale.rows(1_000_000)
    memory = {"spark.driver.memory": "2g", "spark.executor.memory": "1g"}
    plain = {key: value for key, value in CONF.items() if "JavaOptions" not in key} | memory
    with (
        standalone(folder / "cluster", memory="2g") as cluster,
        _flusher(folder / "local", size, "local[2]", plain) as local,
        _flusher(folder / "distant", size, cluster.url, plain) as distant,
    ):
        ours, other = in_turns(scale.rounds(5), lambda n: _ask(distant, n), lambda n: _ask(local, n), warm_ups=1)
    yield Line(
        what=f"flush of {size:,} rows on 2 standalone workers",
        against="the same on local[2]",
        ours=size / statistics.median(ours),
        baseline=size / statistics.median(other),
        unit="rows/s",
        reach=Reach(0.7, at_least=True),
        notes={"cluster": spread(ours), "local": spread(other)},
    )


@contextmanager
def _flusher(lake: Path, size: int, master: str, conf: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    env = environment(STRAND_SPARK_MASTER=master, STRAND_SPARK_CONF=json.dumps(conf))
    command = [sys.executable, "-c", JOB, str(lake), str(size)]
    with subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def _ask(process: subprocess.Popen[str], number: int) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{number}\n")
    process.stdin.flush()
    return float(process.stdout.readline())
