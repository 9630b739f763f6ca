"""The worker's loop: a restart goes on with the schedules, and begins none."""

from __future__ import annotations

from pathlib import Path

from tests.kit import make_table

from strandline.lake import Lake
from strandline.worker.loop import Worker


def due_ticks(lake: Lake) -> list[str]:
    """What a worker that starts now would tick."""
    return [job.name for job in Worker(lake)._due() if job.kind == "tick"]


def test_a_restarted_worker_waits_for_the_moment_that_a_schedule_names(lake: Lake, tmp_path: Path) -> None:
    """A tick is written down when it is done, an idle one too; one that was told to stop is due again."""
    make_table(lake)
    for name, when in (("daily", {"cron": "0 0 1 1 *"}), ("often", {"every": "1h"})):
        lake.add_sink(name, "blob", {"uri": f"file://{tmp_path / name}", **when}, check=False)
    assert due_ticks(lake) == ["daily", "often"], "never ticked"
    stopped = Worker(lake)
    stopped.stop.set()
    stopped._tick("daily")
    assert due_ticks(lake) == ["daily", "often"]
    for name in ("daily", "often"):
        Worker(lake)._tick(name)
    assert due_ticks(lake) == []
