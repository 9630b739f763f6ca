"""A Spark cluster: a master and two workers, each a process of its own, with the warehouse in a bucket.

Executors share nothing with the driver but the store. So what they are given has to be there, and one that is killed
takes nothing with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from strandline import create
from strandline.lake import Lake
from tests.cluster import CONF, Cluster, standalone
from tests.kit import environment, kill, make_table, messages, part_ids, python_process, real_strand, wait_until
from tests.s3 import S3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all of these tests."""
    with standalone(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def on(cluster: Cluster, **more: str) -> dict[str, str]:
    """What a process needs to run its jobs there."""
    return environment(STRAND_SPARK_MASTER=cluster.url, STRAND_SPARK_CONF=json.dumps(CONF), **more)


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
        env=on(cluster), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["200", "100", "800", "400"], done.stderr[-3000:]
    with Lake(tmp_path / "lake", read_only=True) as lake:
        assert part_ids(lake) == [row["part_id"] for row in messages(0, 400)]
    assert any(worker.cpu_times().children_user > 0 or worker.children() for worker in
               (psutil.Process(one.pid) for one in cluster.workers)), "no executor ran"  # fmt: skip


def own_executors(cluster: Cluster, application: subprocess.Popen[str]) -> list[psutil.Process]:
    """The executors that were started after a process, so for it."""
    since = psutil.Process(application.pid).create_time()
    return [one for one in cluster.executors() if one.create_time() >= since]


def test_an_executor_that_is_killed_in_a_flush_takes_no_row_with_it(cluster: Cluster, s3: S3, tmp_path: Path) -> None:
    """Its task runs again on another one, and what the first had written is nobody's."""
    with create.create(tmp_path / "lake", warehouse=s3.uri, store=s3.store) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 50))
        env = on(cluster, STRAND_FAILPOINTS="stage.before_append=sleep(4000)@2")
        flusher = python_process(FLOW, str(lake.root), env=env)
        try:
            # Those of an earlier application may still be ending, and the second one may come late.
            wait_until(lambda: flusher.poll() is not None or bool(own_executors(cluster, flusher)), timeout_s=240)
            assert flusher.stdout is not None and flusher.stderr is not None
            assert flusher.stdout.readline().strip() == "50", flusher.stderr.read()[-3000:]
            time.sleep(1)
            own_executors(cluster, flusher)[0].kill()
            assert flusher.wait(timeout=240) == 0
        finally:
            kill(flusher)
    with Lake(tmp_path / "lake") as lake:
        assert part_ids(lake) == [row["part_id"] for row in [*messages(0, 50), *messages(200, 300)]]


def test_a_master_that_is_not_there_is_told_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    with create.create(tmp_path / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 5))
        answer = real_strand(lake, "flush", STRAND_SPARK_MASTER="spark://127.0.0.1:9")
        assert answer.returncode == 5 and "no Spark master answers" in answer.stderr
        assert len(part_ids(lake)) == 5
