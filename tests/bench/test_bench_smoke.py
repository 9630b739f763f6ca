"""The benchmarks run and say what they should; how fast anything was is not a test's business."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bench import appends, memory, receiver, report, rows
from bench.__main__ import GROUPS
from bench.measure import Line, Reach, Scale, in_turns

TINY = Scale(1000, quick=True)


def test_the_appends_are_measured_against_bare_sqlite(tmp_path: Path) -> None:
    """Every line names both sides, has positive numbers, and a verdict that follows from its ratio."""
    found = list(appends.lines(TINY, tmp_path))
    assert [line.unit for line in found] == ["ms", "rows/s", "rows/s", "acks/s"]
    for line in found:
        assert line.what and line.against
        assert line.ours > 0 and line.baseline > 0
        assert line.reached == line.reach.holds(line.ours / line.baseline)


def test_the_receiver_is_measured_by_real_clients(tmp_path: Path) -> None:
    """Eight clients and one post to a real server, and every ack is a row there."""
    (line,) = receiver.lines(TINY, tmp_path)
    assert line.ours > 0 and line.baseline > 0
    assert set(line.notes) == {"clients_1", "clients_8"}
    assert all(told["p50_ms"] <= told["p99_ms"] for told in line.notes.values())


def test_a_run_is_written_as_json(tmp_path: Path) -> None:
    """The document has a line for each line of the table."""
    line = Line("a", "b", ours=1.0, baseline=2.0, unit="s", reach=Reach(0.4, at_least=True))
    report.write(tmp_path / "new" / "out.json", [line], quick=True)
    document = json.loads((tmp_path / "new" / "out.json").read_text())
    assert document["quick"] is True
    (written,) = document["lines"]
    assert (written["ratio"], written["reach"], written["reached"]) == (0.5, "≥ 0.4", True)


def test_two_works_take_turns() -> None:
    """The other one is measured right after ours, in every round; warm-ups don't count."""
    order: list[str] = []

    def work(name: str, number: int) -> float:
        order.append(f"{name}{number}")
        return float(number)

    one, other = in_turns(2, lambda n: work("a", n), lambda n: work("b", n), warm_ups=1)
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert one == other == [1.0, 2.0]


def test_a_row_has_185_bytes_and_a_key_of_its_own() -> None:
    """What is measured is what the table says."""
    table = pa.concat_tables(rows.batches(0, 20_000))
    assert table.num_rows == pc.count_distinct(table["part_id"]).as_py() == 20_000
    row = rows.dicts(0, 1)[0]
    assert sum(len(value) if isinstance(value, str) else 8 for value in row.values()) == 185


def test_messages_are_written_as_many_as_were_asked_for(tmp_path: Path) -> None:
    """A file of agent messages for the comparison with dlt."""
    rows.write_messages(tmp_path / "messages.jsonl", 123)
    lines = (tmp_path / "messages.jsonl").read_bytes().splitlines()
    assert len({json.loads(line)["part_id"] for line in lines}) == len(lines) == 123


def test_peak_memory_keeps_the_highest_look() -> None:
    """Python and the JVM are told apart, and a peak never goes down."""
    peaks = memory.Peaks(driver=1e9)
    peaks.look(memory.psutil.Process())
    assert peaks.driver == 1e9
    assert peaks.python >= peaks.driver


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_can_be_asked_for(name: str) -> None:
    """`--only` takes these names; the docs list them."""
    assert f"`{name}`" in (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
