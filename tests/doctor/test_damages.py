"""Planted damage is found, told as what it is, and gone after what the finding says to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.lake import Lake
from tests import files
from tests.delivery import streams
from tests.doctor.damages import DAMAGES, Damage, data_file, fingerprint, metadata_file, scene
from tests.kit import call, in_ledger, make_table, message, messages, part_ids, strand_json


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_doctor_finds_planted_damage_and_nothing_else(damage: Damage, lake: Lake, tmp_path: Path) -> None:
    """Exactly that finding, in a look that changes nothing; the repair that it names makes the lake well again."""
    scene(lake, tmp_path)
    assert strand_json(lake, "doctor", "--deep")["findings"] == [], "the scene is not clean"
    planted = damage.plant(lake)
    before = fingerprint(lake)
    ran = call("--lake", lake.root, "--json", "doctor")
    assert (ran.code, ran.json["ok"]) == (6, False)
    assert [finding["kind"] for finding in ran.json["findings"]] == [damage.kind], ran.json
    assert fingerprint(lake) == before
    (finding,) = ran.json["findings"]
    assert all(finding[key] for key in ("what", "meaning", "fix")), finding
    if damage.name != "a deleted data file" or lake.config.warehouse.startswith("file:"):
        assert finding["since"], "only a bucket does not know when something was taken from it"
    damage.repair(lake, planted)
    assert strand_json(lake, "doctor", "--deep")["findings"] == []
    lake.append("messages", [message(99)])
    lake.flush("messages")
    assert "p99" in part_ids(lake)
    assert strand_json(lake, "doctor")["findings"] == []


def test_a_watermark_that_was_forgotten_delivers_what_the_destination_lacks(lake: Lake, tmp_path: Path) -> None:
    """After --fix the next tick asks the destination: nothing is sent twice, and nothing is left out."""
    scene(lake, tmp_path)
    in_ledger(lake, "UPDATE watermarks SET seq = 1000000")
    strand_json(lake, "doctor", "--fix")
    (ticked,) = lake.tick()
    assert (ticked.since, ticked.rows) == (11, 15)
    (state,) = streams(lake, "archive")
    assert state.mark is not None
    assert state.mark.seq == state.head_seq


def test_a_deep_look_reads_what_a_quick_one_only_counts(lake: Lake, tmp_path: Path) -> None:
    """A byte that flips inside a data file, or a manifest that is cut, keeps sizes or hides behind a whole list."""
    scene(lake, tmp_path)
    path = data_file(lake)
    whole = files.read(path)
    broken = bytearray(whole)
    broken[60] ^= 0xFF
    files.write(path, bytes(broken))
    (finding,) = call("--lake", lake.root, "--json", "doctor", "--deep").json["findings"]
    assert finding["kind"] == "data_file_damaged"
    files.write(path, whole)
    folder = metadata_file(lake).rpartition("/")[0]
    manifest = next(one for one in files.listing(folder) if one.endswith("-m0.avro"))
    content = files.read(manifest)
    files.write(manifest, content[:-20])
    (finding,) = call("--lake", lake.root, "--json", "doctor").json["findings"]
    assert finding["kind"] == "metadata_unreadable"
    files.write(manifest, content)
    in_ledger(lake, "UPDATE files SET last_seq = last_seq - 1 WHERE first_seq = 2")
    (finding,) = call("--lake", lake.root, "--json", "doctor", "--deep").json["findings"]
    assert finding["kind"] == "seqs_wrong"


def test_garbage_that_is_older_than_a_day_is_told(lake: Lake, tmp_path: Path) -> None:
    scene(lake, tmp_path)
    orphan = f"{data_file(lake).rpartition('/')[0]}/orphan.parquet"
    folder = f"{lake.config.warehouse}/_staging/gone"
    lake.context.staging.create("gone")
    for uri in (orphan, f"{folder}/part"):
        files.write(uri, b"x")
    assert strand_json(lake, "doctor")["findings"] == []
    for uri in (orphan, f"{folder}/part", folder):
        files.grow_old(uri, 2 * 24 * 3600)
    found = strand_json(lake, "doctor")
    assert [finding["kind"] for finding in found["findings"]] == ["orphan_files", "orphan_folders"]
    assert found["ok"], "nobody is needed for that"


def test_a_destination_that_is_down_is_a_warning(lake: Lake) -> None:
    make_table(lake)
    settings = {"url": "http://127.0.0.1:9", "timeout": "1s"}
    lake.add_sink("central", "forward", settings, check=False)
    (finding,) = strand_json(lake, "doctor")["findings"]
    assert (finding["kind"], finding["about"], finding["severity"]) == ("destination", "central", "warning")


def test_what_only_happens_between_two_steps_is_not_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others write while doctor looks; a finding that a second look does not find was their work in between."""
    from strandline.reports import doctor, ledger_checks

    make_table(lake)
    lake.append("messages", messages(0, 3))
    calls = []

    def torn(look: object) -> object:
        calls.append(look)
        if len(calls) == 1:
            yield from [ledger_checks._out_of_order("messages", "torn")]

    monkeypatch.setitem(doctor.CHECKS, "order of seqs", torn)  # type: ignore[arg-type]
    assert doctor.examine(lake) == []
    assert len(calls) == 2


def test_taking_back_needs_fix_and_a_table(lake: Lake) -> None:
    make_table(lake)
    assert call("--lake", lake.root, "doctor", "--take-back", "messages").code == 3
    assert call("--lake", lake.root, "doctor", "--fix", "--take-back", "other").code == 3
