"""Real commands, really killed: the sweep over a `strand flush` and a `strand load` in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.lake import Lake
from tests import slices
from tests.acceptance.test_failpoints import FLUSH_POINTS, LOAD_POINTS
from tests.kit import (
    assert_recovered,
    environment,
    log_part_ids,
    make_table,
    messages,
    part_ids,
    real_strand,
    strand_json,
)


@pytest.mark.parametrize("name", slices.turn(FLUSH_POINTS, 1))
def test_f02_a_killed_strand_flush_loses_nothing_and_the_audit_says_what_was_done(lake: Lake, name: str) -> None:
    """The command dies at the failpoint like by kill -9; the next commands work, and `strand audit` tells the story."""
    make_table(lake)
    lake.append("messages", messages(0, 12))
    killed = real_strand(lake, "flush", STRAND_FAILPOINTS=f"{name}=exit")
    assert killed.returncode == 137, killed.stdout + killed.stderr
    answer = strand_json(lake, "sql", "select count(*) as n, count(distinct part_id) as d from messages")
    assert answer["rows"] == [{"n": 12, "d": 12}]
    rows = "".join(json.dumps(row) + "\n" for row in messages(12, 15))
    source = lake.root.parent / "more.jsonl"
    source.write_text(rows)
    assert strand_json(lake, "append", "messages", str(source))["rows"] == 3
    outcome = FLUSH_POINTS[name]
    # What only waits for Spark (a published operation that is not settled) is audited when that is done.
    if outcome is not None and not name.startswith(("publish.after", "settle.")):
        (entry,) = strand_json(lake, "audit")
        assert (entry["outcome"], entry["kind"], entry["actor"]) == (outcome, "flush", "strandline:recovery")
    assert_recovered(lake, outcome)
    assert log_part_ids(lake)[:15] == [f"p{n}" for n in range(15)]


@pytest.mark.parametrize("name", slices.turn([name for name in LOAD_POINTS if name != "load.between_bites"], 1))
def test_f59_a_killed_strand_load_is_run_again(lake: Lake, tmp_path: Path, name: str) -> None:
    """`strand load` of a bulk file dies; the same command again finishes it; a third time it is loaded already.

    The file is one bite, and one takes a gigabyte: between two a load dies in the tests' own process alone.
    """
    make_table(lake)
    lake.append("messages", messages(0, 3))
    source = tmp_path / "bulk.jsonl"
    padding = "x" * 3000
    with source.open("w") as file:
        for row in messages(0, 23_000):
            file.write(json.dumps(row | {"body": padding}) + "\n")
    killed = real_strand(lake, "load", "messages", str(source), STRAND_FAILPOINTS=f"{name}=exit")
    assert killed.returncode == 137, killed.stdout + killed.stderr
    assert part_ids(lake)[:3] == ["p0", "p1", "p2"]
    loaded = lake.load("messages", [str(source)])
    assert loaded.rows + loaded.duplicates_dropped == 23_000
    assert part_ids(lake) == [f"p{n}" for n in range(23_000)]
    assert lake.load("messages", [str(source)]).already_loaded
    assert_recovered(lake)


def test_sigint_in_the_middle_of_a_flush_exits_130_and_loses_nothing(lake: Lake) -> None:
    """Ctrl-C while rows are being staged: exit 130, every row still there, and the next flush works."""
    import signal

    from tests.kit import phases, strand_process, wait_until

    make_table(lake)
    lake.append("messages", messages(0, 8))
    env = environment(STRAND_FAILPOINTS="stage.before_files=sleep(20000)")
    process = strand_process(lake, "flush", env=env)
    wait_until(lambda: phases(lake) == ["staging"] and (lake.root / "warehouse" / "_staging").exists())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert part_ids(lake) == [f"p{n}" for n in range(8)]
    lake.flush("messages")
    assert log_part_ids(lake) == [f"p{n}" for n in range(8)]
    assert_recovered(lake, "rolled_back")
