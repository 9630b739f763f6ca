"""How the processes of a run share the files of tests.

A JVM takes memory and a core, so two processes of a run may start Spark. The others take files that need none, while
the two take the rest first. A file of the list below that starts Spark fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from strandline.engines.spark import session
from tests import slices

WITH_SPARK = 2
FOLDERS_WITHOUT_SPARK = ("unit", "structure")
FILES_WITHOUT_SPARK = {
    "acceptance": "test_clock test_group_commit test_idempotency test_memory test_outages test_owners",
    "backup": "test_partial",
    "bench": "test_bench_smoke",
    "cli": "test_adopt test_decisions test_maintenance test_messages test_places test_sql_safety",
    "docs": "test_protocol",
    "fuzz": "test_parquet",
    "kept": "test_migration",
    "place": "test_home test_secrets",
    "server": "test_admission test_bad_requests test_inbound test_lacking test_looking test_poison_rows test_processes "
    "test_receiving test_rows test_schema_moved test_starving",
    "sinks": "test_blob_marks test_blob_s3 test_conditional test_copy_marks test_forward test_marks test_ranges "
    "test_registry test_service",
    "soak": "test_outages",
    "stores": "test_outages",
    "substrate": "test_duckdb test_interrupts test_sqlite",
    "versions": "test_guards test_histories test_interleavings test_judged test_model test_mutate_groups test_schema "
    "test_schema_merge",
    "wheel": "test_wheel",
}


def is_without_spark(path: Path) -> bool:
    """Whether no test of a file needs Spark, also not in a process that it starts; all sweeps may need it."""
    folder = path.parent.name
    return not slices.all_places() and (
        folder in FOLDERS_WITHOUT_SPARK or path.stem in FILES_WITHOUT_SPARK.get(folder, "").split()
    )


class Sharing(LoadFileScheduling):
    """Hand out files one at a time, to each process those that it may run."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        without_spark = [path for path in self.workqueue if is_without_spark(Path(path))]
        with_spark = [path for path in self.workqueue if path not in without_spark]
        may_start_spark = int(node.gateway.id.removeprefix("gw")) < WITH_SPARK
        fitting = (with_spark or without_spark) if may_start_spark else without_spark
        if not fitting:
            node.shutdown()
            return
        self.workqueue.move_to_end(fitting[0], last=False)
        super()._assign_work_unit(node)


@pytest.fixture(autouse=True)
def _spark_stays_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file of the list have no Spark, and no process that it starts either."""
    if not is_without_spark(request.path):
        return

    def refuse(*_: object) -> None:
        raise AssertionError(f"{request.path.name} is in the list of tests/sharing.py, and starts Spark")

    monkeypatch.setattr(session, "start", refuse)
    monkeypatch.setenv("STRAND_SPARK_MASTER", "none: tests/sharing.py says that this file needs no Spark")
