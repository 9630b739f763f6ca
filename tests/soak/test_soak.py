"""The soak, for 20 seconds; and that its oracle would notice. `make soak MINUTES=10` is the real one."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import strandline as sl
from strandline import create
from strandline.lake import Lake
from tests.kit import environment
from tests.soak.brancher import add, judge_lists
from tests.soak.clocks import find_library, moved
from tests.soak.losses import Contents, Losses, read_contents
from tests.soak.oracle import COLUMNS, LOG, Offered, Place, Verdict, judge, judge_feed, read_offered
from tests.soak.person import Parked
from tests.soak.scene import KEYED, LISTS, PLAIN, TABLES, TIMED, Places, Scene, make
from tests.soak.sections import text_of
from tests.soak.soak import Settings, soak
from tests.soak.troubles import deck
from tests.soak.writer import Call, next_calls, row_of

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
    short = frozenset({"clock", "config"})  # the others stop everybody, for longer than this lasts
    settings = Settings(tmp_path, SECONDS, seed=1, writers=2, workers=1, drain_s=240, troubles=short)
    outcome = soak(settings, told.append)

    assert outcome.is_right, (outcome.document(), told)
    assert outcome.chaos.total() > 0
    assert all(verdict.acked > 0 for verdict in outcome.verdicts.values())
    assert outcome.lists.acked > 0
    assert left_behind(tmp_path) == []


def table(*part_ids: str, **changed: Any) -> list[pa.Table]:
    """A destination's rows."""
    rows = [{**row_of(part_id), **changed} for part_id in part_ids]
    return [pa.Table.from_pylist(rows).select(COLUMNS)] if rows else []


OFFERED = Offered(
    acked={PLAIN: {"a", "b"}, KEYED: {"c"}, TIMED: set()},
    unanswered={PLAIN: {"d"}, KEYED: set()},
    calls=3,
    lost_calls=1,
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


def contents(**rows: list[str]) -> Contents:
    """What a lake holds."""
    return Contents({name: Counter(rows.get(name, [])) for name in TABLES})


def gone_back(before: list[str], after: list[str], losses: Losses | None = None) -> Losses:
    """A ledger that held some events and holds others now."""
    losses = losses or Losses()
    losses.went_back(contents(**{PLAIN: before}), contents(**{PLAIN: after}))
    return losses


@pytest.mark.parametrize(
    ("log", "there", "wrong"),
    [
        (["a"], ["a"], {}),
        (["a"], ["a", "b"], {"gone": 1}),
        (["a"], ["a", "b", "b"], {"gone": 1, "repeated": 1}),
        (["a"], [], {"lost": 1}),
        (["a"], ["b"], {"gone": 1, "lost": 1}),
        (["a"], ["a", "a"], {"repeated": 1}),
        (["a", "d"], ["a"], {"lost": 1}),
        (["a"], ["a", "d"], {"answer_lost": 1, "from_nowhere": 1}),
    ],
    ids=[
        "right",
        "got before",
        "got before, twice",
        "lost",
        "lost another",
        "repeated",
        "lost of the log",
        "never in it",
    ],
)
def test_the_oracle_compares_with_a_log_that_went_back(log: list[str], there: list[str], wrong: dict[str, int]) -> None:
    """Row b went with the ledger: a destination may have it once; what the log has it must have, once."""
    offered = Offered({PLAIN: {"a", "b"}}, {PLAIN: {"d"}}, calls=3, lost_calls=1)
    found = judge(offered, {PLAIN: table(*there)}, Place("blobs", {PLAIN: set(log)}), gone_back(["a", "b"], ["a"]))
    counted = {name: n for name, n in found.document().items() if n and name not in ("acked", "stored")}
    assert {"answer_lost": len({"d"} & set(there)), **counted} == {"answer_lost": 0, **wrong}


def test_the_log_is_held_to_what_no_ledger_took_with_it() -> None:
    """Of two acked rows one went with the ledger: the other must be there; and both when a later backup had both."""
    offered = Offered({PLAIN: {"a", "b"}}, {}, calls=2, lost_calls=0)
    losses = gone_back(["a", "b"], ["a"])
    assert judge(offered, {PLAIN: table("a")}, LOG, losses).is_right
    assert judge(offered, {PLAIN: table("b")}, LOG, losses).lost == 1
    again = gone_back(["a"], ["a", "b"], losses)
    assert judge(offered, {PLAIN: table("a")}, LOG, again).lost == 1
    assert judge(offered, {PLAIN: table("a", "b")}, Place("copy", {PLAIN: {"a", "b"}}), again).is_right


def test_a_row_past_its_retention_was_delivered_before_it_went() -> None:
    """The log need not have it any more; a destination must, unless it was put back when nobody had the row."""
    offered = Offered({TIMED: {"old", "young"}}, {}, calls=1, lost_calls=0, too_old={TIMED: {"ancient"}})
    log = {TIMED: {"young"}}
    assert judge(offered, {TIMED: table("young")}).retained == 1
    losses = Losses()
    assert judge(offered, {TIMED: table("old", "young")}, Place("receiver", log), losses).is_right
    assert judge(offered, {TIMED: table("young")}, Place("receiver", log), losses).lost == 1
    assert judge(offered, {TIMED: table("old", "young", "ancient")}, Place("receiver", log), losses).from_nowhere == 1
    losses.put_back("receiver", {TIMED: {"old", "young"}})
    assert judge(offered, {TIMED: table("young")}, Place("receiver", log), losses).is_right
    assert judge(offered, {TIMED: table("old")}, Place("receiver", log), losses).lost == 1
    assert judge(offered, {TIMED: table("young")}, Place("blobs", log), losses).lost == 1


def test_versions_are_judged_by_the_log_and_by_what_went_with_a_ledger() -> None:
    """Each version of the log is there once; one that went with a ledger may be there, once; none is from nowhere."""
    first, second, gone = (("a", 1, False, "c1", 1), ("a", 2, False, "c2", 2), ("a", 2, False, "c9", 2))
    losses = Losses(ever_versions={gone})
    assert judge_feed("copy", [first, second], [first, second, gone], losses) == []
    assert [text.split()[-1] for text in judge_feed("copy", [first, second], [first], losses)] == ["missing"]
    assert [text.split()[-1] for text in judge_feed("copy", [first], [first, gone, gone], losses)] == ["twice"]
    assert [text.split()[-1] for text in judge_feed("copy", [first], [first, second], losses)] == ["nowhere"]


def test_what_was_offered_is_read_off_the_writers_records(tmp_path: Path) -> None:
    """A call without its second line is one whose answer was lost; half a line counts for nothing."""
    scene = Scene(tmp_path)
    scene.calls("writer-1").write_bytes(b"offer 0 0 5\nacked 0 0\noffer 1 0 5\noffer 2 0 5\nacked 2 0\noffer 2")
    offered = read_offered(scene, 7, ["writer-1"])
    calls = [Call(7, "writer-1", number, 0, 5) for number in range(3)]
    assert (offered.calls, offered.lost_calls) == (3, 1)
    assert set(calls[0].part_ids()) <= offered.acked[calls[0].table]
    assert set(calls[1].part_ids()) - offered.acked[calls[1].table] == offered.unanswered[calls[1].table]


def test_rows_that_an_answer_left_out_are_known_by_their_ids(tmp_path: Path) -> None:
    """The answer has a number alone: the ancient rows of a call, or all of them when the writer's clock was ahead."""
    numbers = (number for number in itertools.count() if Call(7, "writer-1", number).ancient_ids)
    first, second, third = (Call(7, "writer-1", next(numbers)) for _ in range(3))
    answers = {first: len(first.ancient_ids), second: len(second.part_ids()), third: len(third.part_ids()) + 1}
    lines = [f"offer {call.number} 0 0\nacked {call.number} {too_old}\n" for call, too_old in answers.items()]
    scene = Scene(tmp_path)
    scene.calls("writer-1").write_text("".join(lines))
    offered = read_offered(scene, 7, ["writer-1"])
    assert offered.acked[TIMED] == set(first.young_ids)
    assert offered.too_old[TIMED] == {*first.ancient_ids, *second.part_ids()}
    assert offered.unanswered[TIMED] == set(third.part_ids()), "a number that fits nothing says nothing"


def test_a_writer_asks_again_in_the_same_era_alone(tmp_path: Path) -> None:
    """A ledger that went back has forgotten the idempotency key: the same rows would be others there."""
    number = next(number for number in itertools.count() if Call(7, "writer-1", number).asked_again)
    file = Scene(tmp_path).calls("writer-1")
    file.write_text(f"offer {number} 0 5\n")
    assert next(next_calls(7, "writer-1", file, 0)) == Call(7, "writer-1", number, 0, 5)
    assert next(next_calls(7, "writer-1", file, 1)).number == number + 1


def test_what_a_lake_holds_is_read_with_its_tails_and_branches(tmp_path: Path) -> None:
    """Rows that are not flushed yet, versions on main, and tokens of branches that nobody has merged."""
    scene = Scene(tmp_path)
    make(scene, Places())
    with Lake(scene.lake) as lake:
        lake.append(PLAIN, [row_of("a"), row_of("a"), row_of("b")])
        add(lake, "main", "x", "t1")
        lake.branch("brancher-1/x")
        add(lake, "brancher-1/x", "x", "t2")
    found = read_contents(scene.lake)
    assert found.rows[PLAIN] == {"a": 2, "b": 1}
    assert found.tokens == {"t1", "t2"}
    assert [version[:3] for version in found.versions] == [("x", 1, False)]


def test_the_person_continues_what_parked_because_a_ledger_was_put_back() -> None:
    """A reason that names `strand sink continue` is followed; every other one is tried again."""
    assert Parked("central", PLAIN, "rows differ. Run `strand sink continue central`.").wants_to_continue
    assert not Parked("central", PLAIN, "401 unauthorized").wants_to_continue
    assert Parked("central", TIMED, "rows are gone. `strand sink continue central --past-hole`").is_hole


def test_troubles_that_need_a_backup_come_after_one() -> None:
    """What is put back was kept before, in every order of the rest; and each trouble is drawn."""

    def back_up() -> None: ...
    def restore() -> None: ...
    def rename() -> None: ...

    for seed in range(20):
        drawn = deck(random.Random(seed), [back_up], [restore, rename])
        assert drawn[0] is back_up
        assert sorted(card.__name__ for card in drawn[1:]) == ["rename", "restore"]


def test_sections_are_written_as_toml() -> None:
    """What the file says of a sink is what the sink was given."""
    given = {"archive": {"type": "blob", "uri": "file:///a b/ü", "unit_rows": 3_000, "tables": ["x", "y"]}}
    assert tomllib.loads(text_of(given)) == {"sinks": given}


def test_a_moved_clock_says_another_time_and_waits_as_long_as_ever(tmp_path: Path) -> None:
    """A process a day ahead: its time is tomorrow's, its monotonic clock and the times of files are not."""
    library = find_library()
    if library is None:
        pytest.skip("libfaketime is not installed")
    file = tmp_path / "file"
    file.touch()
    code = "import os, sys, time; time.sleep(0.01); print(time.time(), time.monotonic(), os.stat(sys.argv[1]).st_mtime)"
    env = environment(**moved(library, 24 * 3600))
    said = subprocess.run([sys.executable, "-c", code, file], env=env, capture_output=True, text=True, check=True)
    wall_s, monotonic_s, file_s = map(float, said.stdout.split())
    assert wall_s - time.time() == pytest.approx(24 * 3600, abs=600)
    assert monotonic_s == pytest.approx(time.monotonic(), abs=600)
    assert file_s == file.stat().st_mtime


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
    scene.calls("brancher-1").write_text("offer t1\nacked t1\noffer t2\nacked t2\noffer t3\nacked t3\n")
    assert judge_lists(scene, ["brancher-1"]).wrong == ["1 acked tokens are lost"]
    assert judge_lists(scene, ["brancher-1"], gone=["t3"]).wrong == []
    with Lake(scene.lake) as lake:
        lake.mutate([sl.put(LISTS, {"id": "a", "tokens": ["t1", "t1", "z"], "changes": 2})])
    assert judge_lists(scene, ["brancher-1"]).wrong == [
        "2 acked tokens are lost",
        "t1 is there 2 times",
        "z is from nowhere",
        "row a has 3 tokens and 2 changes",
    ]
