"""The demonstration: that it shows what it says, that it would notice if it were not so, and that it cleans up."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from examples.demo import kills
from examples.demo.figures import Figures, Held, fingerprint, held, wrong
from examples.demo.messages import BODY_CHARS, COLUMNS, messages
from examples.demo.places import Places, fresh_lake
from examples.demo.plan import BACKFILL, LIVE, WRITERS, plan
from strandline.errors import Busy, Conflict
from strandline.model.schema.schema import parse_mapping
from strandline.model.values.arrow import stored_schema

ROWS = 4_000

ALL = Held(rows=3_600, lost=0, repeated=0, altered=0, never_offered=0, out_of_order=0)
RIGHT = Figures(
    acked=ROWS,
    duplicates_offered=400,
    log=ALL,
    receiver=ALL,
    blobs=ALL,
    still_in_the_tail=0,
    acked_by_the_ledger=ROWS,
    seen_by_sql=3_600,
    seen_by_spark=3_600,
    killed_flushes=1,
    recovered_flushes=1,
    killed_deliveries=1,
    finished_deliveries=1,
    dead_letters=0,
)


def demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The demonstration in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo", str(folder), "--rows", str(ROWS), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def processes_of(folder: Path) -> list[str]:
    """Every process, JVMs included, that was started for this lake."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("STRAND_LAKE") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    return found


def assert_nothing_runs(folder: Path) -> None:
    """A JVM notices the end of its Python by itself, and takes a moment to leave."""
    deadline_s = time.monotonic() + 60
    while left := processes_of(folder):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.2)


def test_the_demonstration_ends_with_nothing_lost_and_nothing_twice(tmp_path: Path) -> None:
    """A writer, a flush and a delivery are killed, and every destination has every row; no process is left behind."""
    folder = tmp_path / "demo-lake"
    out, err = demo(folder, "--json").communicate(timeout=400)
    assert out, err
    document = json.loads(out)

    assert document["ok"] and document["wrong"] == [], (document, err)
    assert document["acked"] == ROWS
    assert document["seen_by_sql"] == document["seen_by_spark"] == 3_600
    assert document["duplicates_offered"] == 400
    assert document["log"] == document["receiver"] == document["blobs"] == asdict(ALL)
    writer, flush, delivery = document["killed"]
    assert writer["process"] == "live-2"
    assert flush["process"] == "worker" and flush["phase"] in ("staging", "staged")
    assert delivery["process"] == "worker" and delivery["since"] < delivery["arrived"] <= delivery["until"]
    (recovery,) = document["recoveries"]
    assert recovery["op_id"] == flush["operation"]
    assert recovery["outcome"] == {"staging": "rolled_back", "staged": "rolled_forward"}[flush["phase"]]
    merging = document["merging"]
    assert merging["outcome"] == "merged" and merging["on_branch"] == merging["merged_rows"] > merging["on_main"] > 0
    assert "killed the worker in the middle of flush" in err
    assert "killed the worker in the middle of delivery" in err
    assert_nothing_runs(folder)


def test_ctrl_c_stops_every_process(tmp_path: Path) -> None:
    """Interrupted in the middle, it ends its children, JVM included, and exits with 130."""
    folder = tmp_path / "demo-lake"
    process = demo(folder)
    assert process.stdout is not None
    for line in process.stdout:
        if "3 live writers" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 130, err
    assert_nothing_runs(folder)


def test_a_flush_that_ended_before_the_kill_is_not_taken_for_a_killed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is held, goes on when the flush that was seen has ended, and is killed inside another."""
    first, second = (SimpleNamespace(op_id=op_id, phase="staging") for op_id in ("first", "second"))
    looks = iter([[first], [], [second], [second]])
    done: list[str] = []
    monkeypatch.setattr(kills, "_flushes_under_way", lambda _lake: next(looks))
    monkeypatch.setattr(kills.time, "sleep", lambda _s: None)
    verbs = {verb: lambda _name, verb=verb: done.append(verb) for verb in ("pause", "go_on", "kill")}
    run: Any = SimpleNamespace(
        lake=None,
        wait=lambda _what, reached: reached() or pytest.fail("no flush was seen"),
        processes=SimpleNamespace(**verbs),
        narrator=SimpleNamespace(say=lambda _line: None),
        killed=[],
    )

    kills.kill_inside_a_flush(run)

    assert done == ["pause", "go_on", "pause", "kill"]
    assert run.killed == [{"process": "worker", "operation": "second", "phase": "staging"}]


def test_a_folder_that_is_not_its_own_is_never_removed(tmp_path: Path) -> None:
    """A lake without the demonstration's marker is refused, whatever is in it."""
    (tmp_path / "strand.toml").write_text("[lake]\n")

    with pytest.raises(Conflict, match="was not made by the demonstration"), fresh_lake(Places(tmp_path)):
        pass

    assert (tmp_path / "strand.toml").read_text() == "[lake]\n"


def test_its_own_earlier_lake_is_replaced_unless_it_is_still_at_work(tmp_path: Path) -> None:
    """The second one in a folder starts at once; a second one beside a running one does not."""
    places = Places(tmp_path / "lake")
    with fresh_lake(places) as replaced:
        assert not replaced
        with pytest.raises(Busy), fresh_lake(places):
            pass
    with fresh_lake(places) as replaced:
        assert replaced


def test_a_plan_offers_exactly_the_rows_asked_for_and_a_tenth_of_them_twice() -> None:
    """The live captures share no row; the backfill repeats some of theirs, and offers others that only it has."""
    shares = plan(ROWS, seed=7)
    keys = {name: [key for n in range(share.batches) for key in share.part_ids(n)] for name, share in shares.items()}
    live = [key for name in LIVE for key in keys[name]]

    assert sum(len(keys[name]) for name in WRITERS) == ROWS
    assert len(set(live)) == len(live)
    assert len(set(keys[BACKFILL])) == len(keys[BACKFILL])
    assert len(set(live) & set(keys[BACKFILL])) == ROWS // 10


def test_a_batch_is_the_same_whenever_it_is_asked_for() -> None:
    """A writer that is started again offers what it offered before, and a repeated message says the same."""
    first, again = plan(ROWS, seed=7), plan(ROWS, seed=7)

    assert first["live-1"].batch(3) == again["live-1"].batch(3)
    assert [row["part_id"] for row in first[BACKFILL].batch(2)] == first[BACKFILL].part_ids(2)
    rows = [row for share in first.values() for n in range(share.batches) for row in share.batch(n)]
    by_key = {row["part_id"]: row for row in rows}
    assert all(by_key[row["part_id"]] == row for row in rows)


def test_messages_look_like_messages() -> None:
    """Roles take turns, a tool's result follows its call, time goes on, and bodies have the size that was promised."""
    rows = list(messages("ses_1", 300))

    assert all(BODY_CHARS[0] <= len(row["body"]) <= BODY_CHARS[1] for row in rows)
    assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(rows))
    for call, result in itertools.pairwise(rows):
        assert (call["kind"] == "tool_call") == (result["kind"] == "tool_result" and result["tool"] == call["tool"])


@pytest.mark.parametrize(
    "change",
    [
        {"acked": ROWS - 1},
        {"duplicates_offered": 0},
        {"still_in_the_tail": 1},
        {"acked_by_the_ledger": ROWS + 1},
        {"seen_by_sql": 3_601},
        {"seen_by_spark": 3_599},
        {"recovered_flushes": 0},
        {"finished_deliveries": 0},
        {"dead_letters": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_figure_that_is_wrong_is_noticed(change: dict[str, int]) -> None:
    """One figure off is enough to fail."""
    assert wrong(RIGHT, ROWS) == []
    assert wrong(replace(RIGHT, **change), ROWS) != []


@pytest.mark.parametrize("destination", ["log", "receiver", "blobs"])
@pytest.mark.parametrize(
    "change",
    [{"rows": 3_599}, {"lost": 1}, {"repeated": 1}, {"altered": 1}, {"never_offered": 1}, {"out_of_order": 1}],
    ids=lambda change: next(iter(change)),
)
def test_every_destination_that_is_wrong_is_noticed(destination: str, change: dict[str, int]) -> None:
    """The same for each place that rows go to."""
    assert wrong(replace(RIGHT, **{destination: replace(ALL, **change)}), ROWS) != []


def test_a_destination_is_compared_row_by_row() -> None:
    """One row missing, one twice, one changed, one with another seq, one that nobody offered: each is counted."""
    rows = list(messages("ses_1", 6))
    expected = {row["part_id"]: fingerprint(row) for row in rows[:5]}
    types = stored_schema(parse_mapping(COLUMNS))
    told = [{**row, "meta": row["meta"] and json.dumps(row["meta"], separators=(",", ":"))} for row in rows]

    def batch(*found: tuple[int, dict[str, object]]) -> pa.RecordBatch:
        made = pa.RecordBatch.from_pylist([{**told[n], **change} for n, change in found], schema=types)
        return made.append_column("_seq", pa.array([change.get("seq", n + 1) for n, change in found], pa.int64()))

    assert held([batch(*((n, {}) for n in range(5)))], expected, {}) == Held(5, 0, 0, 0, 0, 0)
    seqs = {row["part_id"]: n + 1 for n, row in enumerate(rows)}
    found = batch((0, {}), (1, {"body": "else"}), (1, {}), (2, {"seq": 9}), (5, {}))
    assert held([found], expected, seqs) == Held(rows=5, lost=2, repeated=1, altered=2, never_offered=1, out_of_order=2)
