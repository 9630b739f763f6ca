"""The fence: of two copies of one lake that share a warehouse, one writes on and the other is refused."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from strandline import create, failpoints
from strandline.engines.warehouse import ObjectPlace, read_marker, swap_marker
from strandline.errors import Conflict, Displaced
from strandline.lake import Lake
from strandline.ledger.place.places import read_home
from strandline.ledger.publish import loads
from strandline.model.ids import new_id
from strandline.operations.core import fence, recovery
from strandline.operations.maintain.flush import Flush
from tests.kit import call, crash, in_ledger, make_table, message, messages, part_ids, phases, reopened
from tests.s3 import S3

POINTS = ["fence.before_marker", "fence.after_marker", "fence.before_commit", "fence.after_commit"]
CLAIM_POINTS = ["claim.before_marker", "claim.after_marker"]


def warehouse(lake: Lake) -> ObjectPlace:
    return ObjectPlace(lake.config.warehouse, lake.config.store)


def fences(lake: Lake) -> tuple[int, int]:
    """The number of the ledger, and that of the marker."""
    marker = read_marker(warehouse(lake))
    with lake.ledger.read() as conn:
        return read_home(conn).fence, 0 if marker is None else marker.fence


def another_copy_wrote(lake: Lake) -> None:
    """The marker as a copy of this lake leaves it that has deleted something."""

    def raised(marker: Any) -> Any:
        return type(marker)(marker.lake, marker.generation, marker.fence + 1, "another")

    swap_marker(warehouse(lake), raised)


def files(lake: Lake) -> set[str]:
    root = Path(lake.config.warehouse.removeprefix("file://"))
    return {str(path) for path in root.rglob("*") if path.is_file()}


def test_every_point_of_the_fence_is_here() -> None:
    assert {*POINTS, *CLAIM_POINTS} == {name for name in failpoints.NAMES if name.startswith(("fence.", "claim."))}


@pytest.mark.both_ledgers
@pytest.mark.parametrize("point", POINTS)
def test_f69_a_raise_that_dies_anywhere_is_the_lake_s_own(lake: Lake, point: str) -> None:
    """Between the marker and the ledger the lake still knows itself; the next raise ends what was begun."""
    before, _ = fences(lake)
    failpoints.arm(f"{point}=raise")
    with crash(lake):
        lake.context.fence.raise_()
    with reopened(lake) as again:
        again.context.fence.compare()
        again.context.fence.raise_()
        assert fences(again)[0] == fences(again)[1] > before


@pytest.mark.both_ledgers
def test_f69_processes_of_one_lake_raise_at_once_and_never_refuse_each_other(lake: Lake) -> None:
    """Four threads with ledgers of their own, raising and comparing: no refusal, and one number in the end."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with Lake(lake.root) as own:
                for _ in range(5):
                    own.context.fence.raise_()
                    own.context.fence.compare()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    ledger, marker = fences(lake)
    assert ledger == marker >= 6


@pytest.mark.both_ledgers
def test_f69_a_raise_by_another_process_between_two_looks_is_no_refusal(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the ledger and the marker of a comparison, and between the note and the marker of a raise."""
    looked, swapped = read_marker, swap_marker
    with Lake(lake.root) as other:

        def meanwhile(times: int) -> None:
            monkeypatch.setattr(fence, "read_marker", looked)
            monkeypatch.setattr(fence, "swap_marker", swapped)
            for _ in range(times):
                other.context.fence.raise_()

        def look(place: ObjectPlace) -> Any:
            meanwhile(1)
            return looked(place)

        def swap(*arguments: Any) -> None:
            meanwhile(2)
            swapped(*arguments)

        monkeypatch.setattr(fence, "read_marker", look)
        lake.context.fence.compare()
        monkeypatch.setattr(fence, "swap_marker", swap)
        lake.context.fence.raise_()
    assert fences(lake) == (4, 4)


@pytest.mark.sqlite_only
def test_f69_an_older_ledger_in_the_same_place_is_refused_and_taken_by_a_person_s_word(s3: S3, tmp_path: Path) -> None:
    """As an rsync to the same path of another host, with a warehouse in a bucket: the one that is behind stops."""
    root = tmp_path / "lake"
    with create.create(root, warehouse=s3.uri, store=s3.store) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 3))
    shutil.copy(root / "ledger.db", tmp_path / "other-host.db")
    with Lake(root) as lake:
        lake.context.fence.raise_()
    shutil.copy(tmp_path / "other-host.db", root / "ledger.db")
    with Lake(root) as behind:
        behind.append("messages", [message(3)])
        for write in (lambda: behind.flush("messages"), behind.sweep):
            with pytest.raises(Displaced, match="another copy of this lake, or a newer ledger, wrote") as refused:
                write()
            assert refused.value.detail["kind"] == "fenced"
    answer = call("--lake", root, "--json", "doctor")
    assert "fenced" in {finding["kind"] for finding in answer.json["findings"]}
    answer = call("--lake", root, "--json", "doctor", "--fix", "--claim-warehouse")
    assert "fenced" not in {finding["kind"] for finding in answer.json["findings"]}
    with Lake(root) as lake:
        lake.context.fence.raise_()
        assert len(part_ids(lake)) == 4


@pytest.mark.both_ledgers
@pytest.mark.parametrize("point", CLAIM_POINTS)
def test_f100_a_claim_that_dies_is_made_again(lake: Lake, point: str) -> None:
    another_copy_wrote(lake)
    failpoints.arm(f"{point}=raise")
    with crash(lake):
        lake.context.fence.claim()
    with reopened(lake) as again:
        again.context.fence.claim()
        again.context.fence.raise_()
        assert len(set(fences(again))) == 1


def test_f69_a_claim_never_takes_another_lake_s_warehouse(lake: Lake) -> None:
    swap_marker(warehouse(lake), lambda marker: type(marker)("another", "g", 3))  # type: ignore[misc]
    with pytest.raises(Conflict, match="belongs to another lake"):
        lake.context.fence.claim()


def test_f69_a_lake_whose_copy_wrote_meanwhile_publishes_and_deletes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between staging and publishing, and before each deletion: refused, and every file and every row is there."""
    make_table(lake)
    for n in range(3):
        lake.append("messages", messages(n * 5, n * 5 + 5))
        lake.flush("messages")
    lake.compact("messages")
    lake.append("messages", messages(15, 20))
    stage = Flush.stage

    def at_all(self: Flush, *_: Any) -> Any:
        raise AssertionError("Iceberg's own commits remove metadata files: nothing is to be staged")

    monkeypatch.setattr(Flush, "stage", at_all)
    another_copy_wrote(lake)
    with pytest.raises(Displaced):
        lake.flush("messages")
    lake.context.fence.claim()

    def meanwhile(self: Flush, *arguments: Any) -> Any:
        effects = stage(self, *arguments)
        another_copy_wrote(lake)
        return effects

    monkeypatch.setattr(Flush, "stage", meanwhile)
    with pytest.raises(Displaced):
        lake.flush("messages")
    assert sum(ref.rows for ref in lake.view().branch_table("messages").tail) == 5, "what was staged is published"
    monkeypatch.setattr(Flush, "stage", stage)
    there = files(lake) if lake.config.warehouse.startswith("file:") else set()
    for delete in (
        lambda: lake.expire("messages", grace_s=0),
        lambda: lake.sweep(grace_s=0),
        lambda: lake.purge("messages", "n = 1", and_history=True),
    ):
        with pytest.raises(Displaced):
            delete()
    if lake.config.warehouse.startswith("file:"):
        assert there <= files(lake)
    assert part_ids(lake) == [f"p{n}" for n in range(20)]
    lake.context.fence.claim()
    lake.recover()
    lake.flush("messages")
    before = fences(lake)[0]
    lake.expire("messages", grace_s=0)
    between = fences(lake)[0]
    lake.context.staging.create(new_id())  # of no operation
    lake.sweep(grace_s=0)
    assert before < between < fences(lake)[0] == fences(lake)[1], "something was deleted under the old number"
    assert part_ids(lake) == [f"p{n}" for n in range(20)]


def test_f69_what_was_staged_is_not_published_by_recovery_while_another_copy_writes(lake: Lake) -> None:
    """The lake opens and takes appends; its flush waits until a person has decided."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    failpoints.arm("staged.after_commit=raise")
    with crash(lake):
        lake.flush("messages")
    another_copy_wrote(lake)
    with reopened(lake) as again:
        assert phases(again) == ["staged"]
        again.append("messages", [message(5)])
        again.context.fence.claim()
    with reopened(lake) as again:
        again.recover()
        assert phases(again) == []
        assert part_ids(again) == [f"p{n}" for n in range(6)]


@pytest.mark.both_ledgers
def test_f69_an_older_lake_s_marker_is_brought_up_to_date_and_a_second_copy_of_it_is_refused(lake: Lake) -> None:
    """Format 1 left the lake's id alone; each copy of its ledger gets a generation when it is migrated, one wins."""
    lake_id = lake.ledger.lake_id()
    in_ledger(lake, "UPDATE counter SET fence = 0, raising = NULL")
    swap_marker(warehouse(lake), lambda _: json_marker(lake_id))
    lake.context.fence.raise_()
    assert fences(lake) == (1, 1)
    in_ledger(lake, "UPDATE counter SET fence = 0, raising = NULL, generation = 'another'")
    with reopened(lake) as second, pytest.raises(Displaced):
        second.context.fence.raise_()


def test_f69_the_fence_is_raised_before_spark_starts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg's commits remove old metadata files on their own: a copy that is behind does not come to them."""
    from strandline.engines.spark import session

    def start(*_: Any) -> Any:
        raise RuntimeError("Spark starts")

    monkeypatch.setattr(session, "start", start)
    before = fences(lake)[0]
    with pytest.raises(RuntimeError, match="Spark starts"):
        lake.iceberg()
    assert fences(lake) == (before + 1, before + 1)
    another_copy_wrote(lake)
    with pytest.raises(Displaced):
        lake.iceberg()


def test_f69_a_sweep_does_not_even_look_while_another_copy_writes(lake: Lake) -> None:
    """Nothing is there to delete, and it would say that all is well; the copy may have removed what is named here."""
    make_table(lake)
    (swept,) = lake.sweep(grace_s=0)
    assert not any(swept.before.values())
    another_copy_wrote(lake)
    with pytest.raises(Displaced):
        lake.sweep(grace_s=0)


def test_f69_folders_of_finished_loads_stay_while_another_copy_writes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be those of loads that the other copy has not finished; the lake opens all the same."""
    monkeypatch.setattr(loads, "finished_loads", lambda _: ["finished"])
    lake.context.staging.create("finished")
    another_copy_wrote(lake)
    recovery.tidy_loads(lake.context)
    assert lake.context.staging.listing() == ["finished"]
    lake.context.fence.claim()
    before = fences(lake)[0]
    recovery.tidy_loads(lake.context)
    assert lake.context.staging.listing() == [] and fences(lake) == (before + 1, before + 1)


def json_marker(lake_id: str) -> Any:
    from strandline.engines.warehouse import Marker

    marker = Marker.parse(json.dumps({"lake": lake_id}).encode())
    assert (marker.generation, marker.fence) == ("", 0)
    return marker
