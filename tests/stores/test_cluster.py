"""A Spark cluster: a master and two workers, each a process of its own, with the warehouse in a bucket.

Executors share nothing with the driver but the store. So what they are given has to be there, and one that is killed
takes nothing with it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from strandline import create
from strandline.engines.spark import java
from strandline.lake import Lake
from tests.kit import environment, free_port, kill, make_table, messages, part_ids, python_process, strand, wait_until
from tests.s3 import S3

CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster on the loopback."""

    url: str
    workers: tuple[subprocess.Popen[bytes], ...]

    def environment(self, **more: str) -> dict[str, str]:
        """What a process needs to run its jobs there."""
        return environment(STRAND_SPARK_MASTER=self.url, STRAND_SPARK_CONF=json.dumps(CONF), **more)

    def executors(self) -> list[psutil.Process]:
        """The executors' processes."""
        return [child for worker in self.workers for child in psutil.Process(worker.pid).children()]


def _daemon(name: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    env = {**os.environ, "JAVA_HOME": str(java.find().home), "SPARK_LOCAL_IP": "127.0.0.1",
           "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
           "PYSPARK_PYTHON": sys.executable}  # fmt: skip
    with log.open("wb") as out:
        return subprocess.Popen([*command, *arguments], env=env, stdout=out, stderr=out)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    logs = [folder / f"{name}.log" for name in ("master", "one", "two")]
    started = [_daemon("master.Master", "--host", "127.0.0.1", "--port", str(port),
                       "--webui-port", str(free_port()), log=logs[0])]  # fmt: skip
    try:
        started += [
            _daemon("worker.Worker", "--host", "127.0.0.1", "--webui-port", str(free_port()), "--cores", "1",
                    "--memory", "1g", "--work-dir", str(folder / log.stem), url, log=log)
            for log in logs[1:]
        ]  # fmt: skip
        wait_until(lambda: len(re.findall("Registering worker", logs[0].read_text())) == 2)
        yield Cluster(url, tuple(started[1:]))
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=60)


FLOW = """
import sys
import strandline as sl
from tests.kit import messages

with sl.open(sys.argv[1]) as lake:
    print(lake.flush("messages")[0].rows, flush=True)
    lake.append("messages", messages(200, 300))
    lake.flush("messages")
    if not sys.argv[2:]:
        sys.exit()
    print(lake.load("messages", sys.argv[2:]).rows, flush=True)
    print(sum(done.rows for done in lake.tick()), flush=True)
    print(lake.view().spark("messages").count(), flush=True)
"""


def test_flush_load_and_deliveries_run_on_a_cluster(cluster: Cluster, s3: S3, tmp_path: Path) -> None:
    """The core of the product, with a store between driver and executors."""
    with create.create(tmp_path / "lake", warehouse=s3.uri, store=s3.store) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 200))
        lake.add_sink("blobs", "blob", {"uri": f"s3://{s3.bucket}/blobs", "endpoint": s3.endpoint})
        lake.add_sink("copy", "iceberg", {"catalog": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/c.db",
                                          "warehouse": f"file://{tmp_path}/copy"})  # fmt: skip
    inbox = tmp_path / "more.jsonl"
    inbox.write_text("\n".join(json.dumps(row) for row in messages(300, 400)))
    done = subprocess.run(
        [sys.executable, "-c", FLOW, str(tmp_path / "lake"), str(inbox)],
        env=cluster.environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["200", "100", "800", "400"], done.stderr[-3000:]
    with Lake(tmp_path / "lake", read_only=True) as lake:
        assert part_ids(lake) == [row["part_id"] for row in messages(0, 400)]
    assert any(worker.cpu_times().children_user > 0 or worker.children() for worker in
               (psutil.Process(one.pid) for one in cluster.workers)), "no executor ran"  # fmt: skip


def test_an_executor_that_is_killed_in_a_flush_takes_no_row_with_it(cluster: Cluster, s3: S3, tmp_path: Path) -> None:
    """Its task runs again on another one, and what the first had written is nobody's."""
    with create.create(tmp_path / "lake", warehouse=s3.uri, store=s3.store) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 50))
        env = cluster.environment(STRAND_FAILPOINTS="stage.before_append=sleep(4000)@2")
        flusher = python_process(FLOW, str(lake.root), env=env)
        try:
            wait_until(lambda: len(cluster.executors()) == 2)
            assert flusher.stdout is not None and flusher.stdout.readline().strip() == "50"
            time.sleep(1)
            cluster.executors()[0].kill()
            assert flusher.wait(timeout=240) == 0
        finally:
            kill(flusher)
    with Lake(tmp_path / "lake") as lake:
        assert part_ids(lake) == [row["part_id"] for row in [*messages(0, 50), *messages(200, 300)]]


def test_a_master_that_is_not_there_is_told_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    with create.create(tmp_path / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 5))
        answer = strand(lake, "flush", env=environment(STRAND_SPARK_MASTER="spark://127.0.0.1:9"))
        assert answer.returncode == 5 and "no Spark master answers" in answer.stderr
        assert len(part_ids(lake)) == 5
