"""A Spark cluster that loses a worker or its master in the middle of an operation.

One driver does all of them, as a `strand worker` does; each operation waits for a moment after its intent is durable,
and in that moment the part is killed.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

from strandline import create
from strandline.lake import Lake
from tests import slices
from tests.cluster import CONF, Cluster, standalone
from tests.kit import (
    environment,
    intents_of,
    kill,
    make_table,
    part_ids,
    python_process,
    wait_until,
)
from tests.s3 import S3
from tests.versions.kit import make_people

OPERATIONS = ("flush", "load", "fold", "compact", "expire", "merge")
FEW = 2
"""How many of them lose each part in a run."""

DRIVER = """
import json
import sys
import strandline as sl
from strandline import failpoints
from strandline.operations import merge
from tests.kit import messages

merge.MOST_ROWS = 0  # every merge is an operation


def put(branch="main"):
    lake.mutate([sl.put("person", {"id": f"{branch}-{n}", "age": number}) for n in range(20)], branch=branch)


def fill(start):
    for first in range(start, start + 40, 20):
        lake.append("messages", messages(first, first + 20))
        lake.flush("messages")


with sl.open(sys.argv[1]) as lake:
    for number, line in enumerate(sys.stdin):
        name, start = line.split()[0], 1000 * number
        if name == "flush":
            lake.append("messages", messages(start, start + 20))
            work = lambda: lake.flush("messages")[0].rows
        elif name == "load":
            rows = sys.argv[1] + f"-{number}.jsonl"
            with open(rows, "w") as file:
                file.writelines(json.dumps(row) + "\\n" for row in messages(start, start + 20))
            work = lambda: lake.load("messages", [rows]).rows
        elif name == "fold":
            put()
            lake.flush("person")
            work = lambda: len(lake.fold("person")[0].operations)
        elif name == "compact":
            fill(start)
            work = lambda: lake.compact("messages")[0].after["files"]
        elif name == "expire":
            fill(start)
            work = lambda: lake.expire("messages", grace_s=0)[0].after["snapshots"]
        elif name == "merge":
            branch = f"b{number}"
            put()
            lake.branch(branch)
            put(branch)
            put()
            work = lambda: lake.merge(branch).outcome
        else:
            work = lambda: lake.view().spark("messages").count()
        if line.endswith("wait\\n"):
            failpoints.arm("begin.after_commit=sleep(3000)")
        print("begins", flush=True)
        try:
            print("done", work(), flush=True)
        except Exception as error:
            print("failed", type(error).__name__, str(error)[:300].replace(chr(10), " "), flush=True)
        failpoints.arm(None)
"""


class Driver:
    """The process that does what it is told, on a cluster."""

    def __init__(self, process: subprocess.Popen[str], lake: Lake) -> None:
        self._process, self._lake = process, lake
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def begin(self, operation: str) -> None:
        """Let it begin; returns when its operation is under way, and waits for a moment."""
        self._say(f"{operation} wait")
        wait_until(lambda: not self._lines.empty() or bool(intents_of(self._lake)), timeout_s=240)

    def end(self) -> str:
        """What came of it."""
        return self._hear()

    def do(self, operation: str) -> str:
        """Do it without a pause."""
        self._say(operation)
        return self._hear()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._hear() == "begins"

    def _hear(self) -> str:
        line = self._lines.get(timeout=300)
        assert line and self._process.stderr is not None, self._process.stderr and self._process.stderr.read()[-3000:]
        return line

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")


@contextmanager
def driving(cluster: Cluster, lake: Lake) -> Iterator[Driver]:
    """A driver, with its Spark started."""
    env = environment(STRAND_SPARK_MASTER=cluster.url, STRAND_SPARK_CONF=json.dumps(CONF))
    process = python_process(DRIVER, str(lake.root), env=env)
    try:
        yield Driver(process, lake)
    finally:
        kill(process)


@pytest.fixture
def lake(s3: S3, tmp_path: Path) -> Iterator[Lake]:
    """A log table and a keyed one, with their files in a store."""
    with create.create(tmp_path / "lake", warehouse=s3.uri, store=s3.store) as made:
        make_table(made)
        make_people(made)
        yield made


def assert_whole(lake: Lake) -> None:
    """Every row once, and nothing under way."""
    rows = part_ids(lake)
    assert len(rows) == len(set(rows))
    assert intents_of(lake) == []


def test_operations_go_on_when_a_worker_or_the_master_is_lost(lake: Lake, tmp_path: Path) -> None:
    """A worker's tasks run on another one; without a master the application goes on with the executors that it has."""
    operations = slices.turn(OPERATIONS, FEW)
    with standalone(tmp_path / "cluster") as cluster, driving(cluster, lake) as driver:
        assert driver.do("flush") == "done 20"
        answers: list[tuple[str, str]] = []
        for operation in operations:
            driver.begin(operation)
            cluster.kill_worker()
            answers.append((operation, driver.end()))
            cluster.add_worker()
        for operation in operations:
            driver.begin(operation)
            if cluster.master.poll() is None:
                cluster.kill_master()
            answers.append((operation, driver.end()))
    assert [answer for answer in answers if not answer[1].startswith("done")] == [], answers
    assert_whole(lake)
