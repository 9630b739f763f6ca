"""A standalone Spark cluster on the loopback: a master and two workers of one core each, as processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from strandline.engines.spark import java
from tests.kit import free_port, wait_until

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


@dataclass
class Cluster:
    """A standalone cluster on the loopback; its parts can be killed, and others started in their place."""

    port: int
    folder: Path
    memory: str
    master: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]
    started: int = 0

    @property
    def url(self) -> str:
        """Where its master is, whether it lives or not."""
        return f"spark://127.0.0.1:{self.port}"

    def executors(self) -> list[psutil.Process]:
        """The executors' processes."""
        return [child for worker in self.workers for child in psutil.Process(worker.pid).children()]

    def add_worker(self) -> None:
        """Another worker, which the master knows when this returns."""
        self.started += 1
        log, before = self.folder / f"worker-{self.started}.log", self.registered()
        self.workers.append(
            _daemon("worker.Worker", "--host", "127.0.0.1", "--webui-port", str(free_port()), "--cores", "1",
                    "--memory", self.memory, "--work-dir", str(self.folder / log.stem), self.url, log=log)
        )  # fmt: skip
        wait_until(lambda: self.registered() > before)

    def registered(self) -> int:
        """How often a worker has come to the master of the moment."""
        return len(re.findall("Registering worker", (self.folder / "master.log").read_text()))

    def kill_worker(self) -> None:
        """kill -9 to a worker that has an executor, and to its executors, as when a machine goes."""
        worker = next(worker for worker in self.workers if psutil.Process(worker.pid).children())
        for process in [psutil.Process(worker.pid), *psutil.Process(worker.pid).children()]:
            process.kill()
        worker.wait(timeout=60)
        self.workers.remove(worker)

    def kill_master(self) -> None:
        """kill -9; workers and executors live on."""
        self.master.kill()
        self.master.wait(timeout=60)

    def start_master(self) -> None:
        """A master at the same address, which remembers nothing; returns when the workers have found it."""
        self.master = _master(self.folder, self.port)
        wait_until(lambda: self.registered() >= len(self.workers))


def _daemon(name: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    env = {**os.environ, "JAVA_HOME": str(java.find().home), "SPARK_LOCAL_IP": "127.0.0.1",
           "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
           "PYSPARK_PYTHON": sys.executable}  # fmt: skip
    with log.open("wb") as out:
        return subprocess.Popen([*command, *arguments], env=env, stdout=out, stderr=out)


def _master(folder: Path, port: int) -> subprocess.Popen[bytes]:
    return _daemon("master.Master", "--host", "127.0.0.1", "--port", str(port),
                   "--webui-port", str(free_port()), log=folder / "master.log")  # fmt: skip


@contextmanager
def standalone(folder: Path, memory: str = "1g") -> Iterator[Cluster]:
    """A cluster that is there inside; its logs and work go into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    cluster = Cluster(port, folder, memory, _master(folder, port), [])
    try:
        wait_until(lambda: "I have been elected leader" in (folder / "master.log").read_text())
        for _ in range(2):
            cluster.add_worker()
        yield cluster
    finally:
        for process in (*cluster.workers, cluster.master):
            process.terminate()
            process.wait(timeout=60)
