"""Every row to a folder of blobs and to a copy in another Iceberg catalog, once, whatever crashes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.errors import Conflict
from strandline.lake import Lake
from strandline.ledger.publish import leases
from strandline.model.ids import lease_of_stream
from strandline.sinks import blob, iceberg
from strandline.sinks.reading import read_unit
from tests.acceptance.places import Blobs, Copies
from tests.delivery import LAST, assert_once, streams, tick_process, watermark, wipe_marks
from tests.kit import environment, kill, make_table, messages, strand_json, wait_until


@pytest.mark.parametrize("place", ["deliver.after_open", "blob.after_write", "deliver.before_close"])
def test_f13_blobs_never_overlap_after_a_crash(source: Lake, blobs: Blobs, place: str) -> None:
    """Killed on the way; more rows arrive: the same object again, with the same bytes, then another behind it."""
    from strandline import failpoints
    from tests.kit import crash, reopened

    blobs.add(source)
    failpoints.arm(f"{place}=raise")
    with crash(source):
        source.tick("archive")
    before = {path: path.read_bytes() for path in blobs.objects()}
    with reopened(source) as again:
        again.append("messages", messages(10, 16))
        again.tick("archive")
        assert blobs.ranges() == [(0, 11), (11, 17)]
        assert all(path.read_bytes() == content for path, content in before.items())
        assert_once([f"p{n}" for n in range(16)], blobs.rows())
        assert again.tick("archive") == []


@pytest.mark.parametrize("kind", ["blobs", "copies"])
def test_f16_a_sink_without_its_marks_finds_what_it_already_wrote(
    source: Lake, kind: str, request: pytest.FixtureRequest
) -> None:
    """The watermark is gone: the destination is asked, and delivery goes on behind what is there."""
    place: Blobs | Copies = request.getfixturevalue(kind)
    place.add(source)
    source.tick("archive")
    wipe_marks(source)
    source.append("messages", messages(10, 14))
    (done,) = source.tick("archive")
    assert done.rows == 4
    assert_once([f"p{n}" for n in range(14)], place.rows())


def test_f21_a_killed_tick_leaves_no_half_blob_under_its_final_name(lake: Lake, blobs: Blobs) -> None:
    """kill -9 while the object is being written: nothing is visible, and the next tick writes it whole."""
    make_table(lake)
    lake.append("messages", messages(0, 2000))
    lake.flush("messages")
    blobs.add(lake)
    process = subprocess.Popen(
        [sys.executable, "-m", "strandline", "--lake", str(lake.root), "sink", "tick"],
        env=environment(STRAND_FAILPOINTS="blob.before_rename=hang"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stream = blobs.folder / "messages"
    wait_until(lambda: any(path.is_file() for path in stream.rglob(".tmp-*")))
    assert blobs.objects() == []
    kill(process)
    assert blobs.objects() == []
    lake.tick("archive")
    assert_once([f"p{n}" for n in range(2000)], blobs.rows())
    count = 2000
    while any(path.is_file() for path in stream.rglob(".tmp-*")):
        # A worker of the dead Spark may have written to its end meanwhile; the next unit of the stream sweeps it away.
        assert count < 2005, "a temporary file is left"
        lake.append("messages", messages(count, count + 1))
        lake.tick("archive")
        count += 1
    assert_once([f"p{n}" for n in range(count)], blobs.rows())


def test_f24_idle_ticks_make_no_snapshot_and_a_crash_after_the_commit_appends_once(
    source: Lake, copies: Copies
) -> None:
    """Three idle ticks change nothing; a tick that dies behind its commit has delivered, and is not repeated."""
    from strandline import failpoints
    from tests.kit import crash, reopened

    copies.add(source)
    source.tick("archive")
    before = len(copies.table().history())
    for _ in range(3):
        assert source.tick("archive") == []
    assert len(copies.table().history()) == before
    source.append("messages", messages(10, 13))
    failpoints.arm("copy.after_commit=raise")
    with crash(source):
        source.tick("archive")
    with reopened(source) as again:
        again.tick("archive")
        assert_once([f"p{n}" for n in range(13)], copies.rows())
        assert len(copies.table().history()) == before + 1
        assert again.tick("archive") == []


@pytest.mark.parametrize("place", ["copy.before_append", "copy.after_append", "copy.before_commit"])
def test_f24_a_copy_that_dies_on_the_way_is_finished_by_the_next_tick(source: Lake, copies: Copies, place: str) -> None:
    """Staged rows that were not committed are nobody's, and the unit arrives once."""
    from strandline import failpoints
    from tests.kit import crash, reopened

    copies.add(source)
    failpoints.arm(f"{place}=raise")
    with crash(source):
        source.tick("archive")
    with reopened(source) as again:
        again.append("messages", messages(10, 13))
        again.tick("archive")
        assert_once([f"p{n}" for n in range(13)], copies.rows())
        assert set(copies.table().metadata.refs) == {"main"}, "a private branch is left"


def test_f25_an_open_delivery_reads_what_it_pinned(source: Lake, blobs: Blobs) -> None:
    """Between the crash and the retry its files are merged with others, and history expires: it reads the old ones."""
    from strandline import failpoints
    from tests.kit import crash, reopened

    source.append("messages", messages(10, 12))
    source.flush("messages")
    pinned = {file.path for file in source.view().files("messages")}
    blobs.add(source)
    failpoints.arm("deliver.after_open=raise")
    with crash(source):
        source.tick("archive")
    with reopened(source) as again:
        (state,) = streams(again, "archive")
        assert state.delivery is not None
        again.append("messages", messages(12, 14))
        again.flush("messages")
        again.compact("messages")
        again.expire("messages", grace_s=0)
        again.sweep(grace_s=0)
        assert pinned.isdisjoint(file.path for file in again.view().files("messages"))
        with again.ledger.read() as conn:
            unit, _ = read_unit(conn, state.delivery)
        assert {path for run in unit.runs for path in run} == pinned, "the unit is read from what came later"
        again.tick("archive")
        assert blobs.ranges() == [(0, LAST + 2), (LAST + 2, LAST + 4)]
        assert_once([f"p{n}" for n in range(14)], blobs.rows())
        again.expire("messages", grace_s=0)
        again.sweep(grace_s=0)
        assert len(again.view().files("messages")) == 1 and not any(on_disk(path) for path in pinned)


def on_disk(path: str) -> bool:
    """Whether a file of the log is still there."""
    return Path(path.removeprefix("file:")).exists()


@pytest.mark.parametrize("kind", [Blobs, Copies])
def test_f42_two_sinks_that_write_elsewhere_have_nothing_in_common(
    source: Lake, tmp_path: Path, kind: type[Blobs | Copies]
) -> None:
    """Marks and epochs are each sink's own: one is rewound, one is removed, and the other never notices."""
    one, two = kind(tmp_path / "one"), kind(tmp_path / "two")
    one.add(source, "one", where="n < 5")
    two.add(source, "two")
    done = {each.sink: each for each in source.tick()}
    assert (done["one"].rows, done["one"].withheld, done["two"].rows) == (5, 5, 10)
    strand_json(source, "sink", "rewind", "one", "--stream", "messages", "--to", "4", "--yes")
    assert [(each.sink, each.rows) for each in source.tick()] == [("one", 2)]
    assert [state.mark.epoch for name in ("one", "two") for state in streams(source, name) if state.mark] == [2, 1]
    strand_json(source, "sink", "remove", "one")
    source.append("messages", messages(10, 12))
    assert [(each.sink, each.rows) for each in source.tick()] == [("two", 2)]
    assert sorted(one.rows()) == sorted([f"p{n}" for n in (0, 1, 2, 3, 4, 3, 4)]), (
        "sent again, because it was asked for"
    )
    assert_once([f"p{n}" for n in range(12)], two.rows())


@pytest.mark.parametrize(("kind", "point"), [("blobs", "blob.after_write"), ("copies", "copy.after_commit")])
def test_f65_a_tick_that_is_late_with_its_unit_moves_no_mark(
    source: Lake, kind: str, point: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unit is written, then it is held up past its lease; another ships that and the next; it changes nothing."""
    place: Blobs | Copies = request.getfixturevalue(kind)
    place.add(source)
    room = blob if kind == "blobs" else iceberg

    def overtake(name: str) -> None:
        if name != point:
            return
        monkeypatch.undo()
        (state,) = streams(source, "archive")
        with source.ledger.write() as txn:
            # What another process does that has seen no beat for too long.
            seen = leases.find(txn.conn, lease_of_stream(sink_id(source), state.stream.text()))
            assert seen is not None
            leases.free(txn, seen)
        with Lake(source.root) as other:
            other.append("messages", messages(10, 15))
            assert [(done.outcome, done.rows) for done in other.tick("archive", wait_s=0)] == [("delivered", 15)]

    monkeypatch.setattr(room, "fail", overtake)
    (late,) = source.tick("archive")
    assert (late.outcome, late.units) == ("lost", 0)
    assert watermark(source, "archive") == LAST + 5
    assert source.tick("archive") == []
    assert_once([f"p{n}" for n in range(15)], place.rows())


def sink_id(lake: Lake) -> str:
    """The id of the only sink."""
    (sink,) = lake.sinks()
    return sink.sink_id


def test_f58_every_partition_value_is_a_folder_of_its_own_inside_the_prefix(lake: Lake, blobs: Blobs) -> None:
    """Null, empty, dots, slashes, case, length: reversible names, one mark each, nothing outside the prefix."""
    values = [None, "", "..", "/", "a=b", "ü☃", "x" * 300, "Case", "case", "null", "a/b", "%2F"]
    lake.create_table("parts", {"part_id": "string", "source": "string?"}, partition_by=["source"])
    lake.append("parts", [{"part_id": str(n), "source": value} for n, value in enumerate(values)])
    blobs.add(lake)
    assert [one.rows for one in lake.tick("archive")] == [1] * len(values)
    assert lake.tick("archive") == []
    assert_once([str(n) for n in range(len(values))], blobs.rows())
    folders = {str(path.parent.relative_to(blobs.folder)).lower() for path in blobs.objects()}
    assert len(folders) == len(values), "two values share a folder where names differ only in case"
    wipe_marks(lake)
    assert lake.tick("archive") == [], "a value's folder was not found again"


def test_f64_a_prefix_that_belongs_to_another_sink_is_refused(source: Lake, blobs: Blobs) -> None:
    """A shared prefix would mix two sinks' ranges: it is refused, unless somebody says that it is taken over."""
    blobs.add(source)
    source.tick("archive")
    with pytest.raises(Conflict, match="belongs"):
        blobs.add(source, "second")
    assert strand_json(source, "sink", "list")[0]["sink"] == "archive"


def test_a_sink_of_strand_toml_works_like_any_other(source: Lake, tmp_path: Path) -> None:
    """Written into the file, it is made by the next tick; changed there, it is changed."""
    file = source.root / "strand.toml"
    section = f'\n[sinks.files]\ntype = "blob"\nuri = "file://{tmp_path}/files"\nformat = "jsonl"\n'
    file.write_text(file.read_text() + section)
    with Lake(source.root) as again:
        (done,) = again.tick()
        assert (done.sink, done.rows) == ("files", 10)
    file.write_text(file.read_text().replace('"jsonl"', '"parquet"'))
    with Lake(source.root) as again:
        again.append("messages", messages(10, 12))
        (done,) = again.tick()
        assert done.rows == 2
    suffixes = sorted("".join(path.suffixes) for path in (tmp_path / "files" / "messages").rglob("*-*"))
    assert suffixes == [".jsonl.zst", ".parquet"]
    refused = subprocess.run(
        [sys.executable, "-m", "strandline", "--lake", str(source.root), "--json", "sink", "remove", "files"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 3 and "strand.toml" in json.loads(refused.stdout)["error"]["message"]


def test_a_sink_that_is_held_sends_nothing_and_preview_shows_what_it_would(source: Lake, blobs: Blobs) -> None:
    """Look first: what would be sent, with what is withheld and redacted, before anything leaves the house."""
    blobs.add(source, hold_until="2999-01-01T00:00:00Z", where="n < 4", redact="body:blank", drop_columns="_actor")
    done = tick_process(source)
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert blobs.objects() == []
    (seen,) = strand_json(source, "sink", "preview", "archive")
    assert (seen["rows"], seen["withheld"]) == (4, 6)
    assert seen["samples"][0]["body"] is None and "_actor" not in seen["samples"][0]
    strand_json(source, "sink", "set", "archive", "--set", "hold_until=")
    (ticked,) = source.tick("archive")
    assert (ticked.rows, ticked.withheld) == (4, 6)
    assert watermark(source, "archive") == 11, "the watermark did not pass what was withheld"
