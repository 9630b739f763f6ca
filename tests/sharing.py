"""How the processes of a run share the files of tests.

A JVM takes memory and a core, so two processes of a run may start Spark. The others take files that need none, or whose
Spark is in processes that they start, while the two take the rest first. A file of the first list below that starts
Spark fails, and one of the second that starts it in the tests' own process.

A file's tests stay together, so the longest come first: a run is over when the last of its processes is.
"""

from __future__ import annotations

from collections.abc import Iterable
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
FILES_WITH_SPARK_OUTSIDE = {
    "demo": "test_demo",
    "docs": "test_backup test_readme",
    "soak": "test_soak",
    "stores": "test_cluster_outages",
    "worker": "test_up",
}
LONGEST = [
    "acceptance/test_operations",
    "maintenance/test_purge_keyed",
    "acceptance/test_forward",
    "stores/test_cluster",
    "versions/test_load_large",
    "sinks/test_kit_ours",
    "stores/test_away",
    "acceptance/test_failpoints",
    "docs/test_readme",
    "acceptance/test_capture",
    "soak/test_soak",
    "versions/test_fold",
    "versions/test_branch_crashes",
    "stores/test_cluster_outages",
    "acceptance/test_postgres",
    "walls/test_spark",
    "acceptance/test_outages",
    "demo/test_demo",
    "maintenance/test_beside",
    "versions/test_interleavings",
    "backup/test_restore",
    "server/test_processes",
    "kept/test_recovery",
    "acceptance/test_model",
    "stores/test_outages",
    "acceptance/test_processes",
    "docs/test_own_sinks",
    "versions/test_flows",
    "kept/test_continuing",
    "versions/test_model_maintained",
    "versions/test_model",
    "backup/test_wrong_backup",
    "worker/test_up",
]
"""These take over 20 seconds, the longest first; the others come as xdist has them, those of many tests first."""


def is_without_spark(path: Path) -> bool:
    """Whether no test of a file needs Spark, also not in a process that it starts; all sweeps may need it."""
    folder = path.parent.name
    return not slices.all_places() and (
        folder in FOLDERS_WITHOUT_SPARK or path.stem in FILES_WITHOUT_SPARK.get(folder, "").split()
    )


def is_with_spark_outside(path: Path) -> bool:
    """Whether the Spark that a file's tests need is in processes that they start."""
    return path.stem in FILES_WITH_SPARK_OUTSIDE.get(path.parent.name, "").split()


def next_file(waiting: Iterable[str], number: int) -> str | None:
    """The file that the process of this number takes next, or None if there is none for it."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    paths = sorted(map(Path, waiting), key=lambda path: ranks.get(f"{path.parent.name}/{path.stem}", len(ranks)))
    others = [path for path in paths if is_without_spark(path) or is_with_spark_outside(path)]
    with_spark = [path for path in paths if path not in others] if number < WITH_SPARK else []
    fitting = with_spark or others
    return str(fitting[0]) if fitting else None


class Sharing(LoadFileScheduling):
    """Hand out files one at a time, to each process those that it may run."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        path = next_file(self.workqueue, int(node.gateway.id.removeprefix("gw")))
        if path is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(path, last=False)
        super()._assign_work_unit(node)


@pytest.fixture(autouse=True)
def _spark_stays_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file of the lists have no Spark; a process that it starts may have one if its file is in the second."""
    if not (is_without_spark(request.path) or is_with_spark_outside(request.path)):
        return

    def refuse(*_: object) -> None:
        raise AssertionError(f"{request.path.name} is in a list of tests/sharing.py, and starts Spark")

    monkeypatch.setattr(session, "start", refuse)
    if is_with_spark_outside(request.path):
        return
    monkeypatch.setenv("STRAND_SPARK_MASTER", "none: tests/sharing.py says that this file needs no Spark")
