"""The soak, for half a minute; and that its oracle would notice. `make soak MINUTES=10` is the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import strandline as sl
from strandline import create
from strandline.lake import Lake
from tests.soak.brancher import add, judge_lists
from tests.soak.oracle import COLUMNS, Offered, Verdict, judge, read_offered
from tests.soak.scene import KEYED, LISTS, PLAIN, Scene
from tests.soak.soak import Settings, soak
from tests.soak.writer import Call, row_of

SECONDS = 20.0


def left_behind(folder: Path) -> list[str]:
    """Every process that was started for the soak in this folder and still runs."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("STRAND_LAKE", "").startswith(str(folder))
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    return found


def test_a_short_soak_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Processes are killed and paused at random; every destination has every acked row once, and nobody is left."""
    told: list[str] = []
    outcome = soak(Settings(tmp_path, SECONDS, seed=1, writers=2, workers=1, drain_s=240), told.append)

    assert outcome.is_right, (outcome.document(), told)
    assert outcome.chaos.total() > 0
    assert all(verdict.acked > 0 for verdict in outcome.verdicts.values())
    assert outcome.lists.acked > 0
    assert left_behind(tmp_path) == []


def table(*part_ids: str, **changed: Any) -> list[pa.Table]:
    """A destination's rows."""
    return [pa.Table.from_pylist([{**row_of(part_id), **changed} for part_id in part_ids]).select(COLUMNS)]


OFFERED = Offered(
    acked={PLAIN: {"a", "b"}, KEYED: {"c"}}, unanswered={PLAIN: {"d"}, KEYED: set()}, calls=3, lost_calls=1
)


@pytest.mark.parametrize(
    ("plain", "verdict"),
    [
        (table("a", "b"), Verdict(3, 3, 0, 0, 0, 0, 0)),
        (table("a", "b", "d"), Verdict(3, 4, 0, 0, 0, 0, 1)),
        (table("a"), Verdict(3, 2, 1, 0, 0, 0, 0)),
        (table("a", "b", "b"), Verdict(3, 4, 0, 1, 0, 0, 0)),
        (table("a", "b", "d", "d"), Verdict(3, 5, 0, 1, 0, 0, 1)),
        (table("a", "b", body="else"), Verdict(3, 3, 0, 0, 2, 0, 0)),
        (table("a", "b", "z"), Verdict(3, 4, 0, 0, 0, 1, 0)),
    ],
    ids=["right", "answer lost", "lost", "repeated", "answer lost and repeated", "altered", "from nowhere"],
)
def test_the_oracle_notices(plain: list[pa.Table], verdict: Verdict) -> None:
    """Each way of being wrong is counted, and only a row whose answer was lost may be there or not."""
    found = judge(OFFERED, {PLAIN: plain, KEYED: table("c")})
    assert found == verdict
    assert found.is_right == (not (found.lost or found.repeated or found.altered or found.from_nowhere))


def test_what_was_offered_is_read_off_the_writers_records(tmp_path: Path) -> None:
    """A call without its second line is one whose answer was lost; half a line counts for nothing."""
    scene = Scene(tmp_path)
    scene.calls("writer-1").write_bytes(b"offer 0\nacked 0\noffer 1\noffer 2\nacked 2\noffer 2")
    offered = read_offered(scene, 7, ["writer-1"])
    calls = [Call(7, "writer-1", number) for number in range(3)]
    assert (offered.calls, offered.lost_calls) == (3, 1)
    assert set(calls[0].part_ids()) <= offered.acked[calls[0].table]
    assert set(calls[1].part_ids()) - offered.acked[calls[1].table] == offered.unanswered[calls[1].table]


def test_lists_are_judged_by_what_was_acked(tmp_path: Path) -> None:
    """A token that was acked and is lost, one that is there twice, one from nowhere: each is told, merged or not."""
    scene = Scene(tmp_path)
    with create.create(scene.lake) as lake:
        lake.create_table(LISTS, {"id": "string", "tokens": "list<string>", "changes": "long"}, key=["id"])
        add(lake, "main", "a", "t1")
        lake.branch("brancher-1/x")
        add(lake, "brancher-1/x", "a", "t2")
    scene.calls("brancher-1").write_text("offer t1\nacked t1\noffer t2\nacked t2\noffer t3\n")
    assert judge_lists(scene, ["brancher-1"]).wrong == []
    with Lake(scene.lake) as lake:
        lake.mutate([sl.put(LISTS, {"id": "a", "tokens": ["t1", "t1", "z"], "changes": 2})])
    assert judge_lists(scene, ["brancher-1"]).wrong == [
        "1 acked tokens are lost",
        "t1 is there 2 times",
        "z is from nowhere",
        "row a has 3 tokens and 2 changes",
    ]
