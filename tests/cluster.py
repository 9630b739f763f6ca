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


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster on the loopback."""

    url: str
    workers: tuple[subprocess.Popen[bytes], ...]

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


@contextmanager
def standalone(folder: Path, memory: str = "1g") -> Iterator[Cluster]:
    """A cluster that is there inside; its logs and work go into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    logs = [folder / f"{name}.log" for name in ("master", "one", "two")]
    started = [_daemon("master.Master", "--host", "127.0.0.1", "--port", str(port),
                       "--webui-port", str(free_port()), log=logs[0])]  # fmt: skip
    try:
        started += [
            _daemon("worker.Worker", "--host", "127.0.0.1", "--webui-port", str(free_port()), "--cores", "1",
                    "--memory", memory, "--work-dir", str(folder / log.stem), url, log=log)
            for log in logs[1:]
        ]  # fmt: skip
        wait_until(lambda: len(re.findall("Registering worker", logs[0].read_text())) == 2)
        yield Cluster(url, tuple(started[1:]))
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=60)
