"""Clones, moved lakes and restores elsewhere: with their rows, branches and history, and without a file in common."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from strandline import create, failpoints
from strandline.backup import backup
from strandline.clone import clone
from strandline.engines.avro import read_container, write_container
from strandline.engines.metadata import read_file, read_metadata, snapshots
from strandline.engines.moving import Move
from strandline.errors import Conflict, Displaced
from strandline.lake import Lake
from strandline.ledger.place.iceberg_catalog import metadata_locations
from strandline.ledger.place.places import read_home
from strandline.model.history.mutations import put
from strandline.operations.maintain.sweep import sweep
from strandline.relocate import relocate
from tests.kit import call, in_ledger, log_part_ids, make_table, messages, part_ids, strand_json

pytestmark = pytest.mark.sqlite_only

ROWS = [f"p{n}" for n in range(12)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with rows in its log and in its tail, a keyed table on two branches, a tag, a sink and a token; closed."""
    root = tmp_path_factory.mktemp("template") / "lake"
    with create.create(root) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 5))
        lake.flush("messages")
        lake.append("messages", messages(5, 10))
        lake.flush("messages")
        lake.append("messages", messages(10, 12))
        lake.create_table("person", {"id": "string", "name": "string?"}, key=["id"])
        lake.mutate([put("person", {"id": "a", "name": "Ann"})], actor="me")
        lake.flush("person")
        lake.tag("v1", "main")
        lake.branch("x")
        lake.mutate([put("person", {"id": "b", "name": "Bob"})], branch="x", actor="me")
        lake.flush("person", branch="x")
        lake.add_sink("archive", "blob", {"uri": f"file://{root.parent}/archive"})
    call("--lake", root, "token", "create", "me")
    return root


@pytest.fixture
def original(template: Path) -> Path:
    """The same lake for every test of this file: none may write to it."""
    return template


def people(lake: Lake, **at: str) -> list[Any]:
    return sorted(row["id"] for row in lake.view(**at).table("person").to_pylist())


def assert_whole(root: Path) -> None:
    """All rows are there, on both branches and at the tag; maintenance and Spark work; doctor finds nothing."""
    with Lake(root) as lake:
        assert part_ids(lake) == ROWS
        assert log_part_ids(lake) == ROWS[:10]
        assert (people(lake), people(lake, branch="x"), people(lake, at="v1")) == (["a"], ["a", "b"], ["a"])
        lake.append("messages", messages(12, 15))
        lake.flush("messages")
        lake.compact("messages")
        lake.expire("messages", grace_s=0)
        for path in (root / "warehouse").rglob("*.*"):
            os.utime(path, (time.time() - 3 * 86_400,) * 2)  # what nobody names is old enough to go
        sweep(lake.context, grace_s=0)
        assert part_ids(lake) == [f"p{n}" for n in range(15)]
        assert people(lake, branch="x") == ["a", "b"]
        assert all(str(root / "warehouse") in file.path for file in lake.view().files("messages"))
        findings = strand_json(root, "doctor", "--deep")["findings"]
        assert [finding["kind"] for finding in findings if finding["kind"] != "sink_paused"] == []


def addresses(root: Path, outside: Path) -> list[Path]:
    """Files of a lake in which the path of another one's files is written."""
    needle = f"{outside}/warehouse".encode()
    return [path for path in root.rglob("*") if path.is_file() and needle in path.read_bytes()]


def test_f69_what_is_done_in_a_copy_never_reaches_the_original(original: Path, tmp_path: Path) -> None:
    """`cp -a`, then flush, compact, expire and sweep in the copy: each is refused, and no row is lost."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(original), str(copy)], check=True)
    for command in ("flush", "compact", "expire", "sweep"):
        answer = call("--lake", copy, "--json", command)
        assert (answer.code, answer.error["code"]) == (6, "displaced"), command
        assert str(original) in answer.error["message"]
    answer = call("--lake", copy, "--json", "relocate")
    assert (answer.code, answer.error["detail"]["kind"]) == (4, "original_there")
    with Lake(original, read_only=True) as lake:
        assert part_ids(lake) == ROWS


def test_f69_a_clone_is_a_lake_of_its_own(original: Path, tmp_path: Path) -> None:
    """Rows, branches, tags and history come along; the id, tokens and marks don't; no file is shared, sinks wait."""
    answer = call("--json", "clone", original, tmp_path / "clone")
    assert answer.code == 0, answer.out + answer.err
    assert answer.json["tables"] == ["messages", "person"] and answer.json["rows"] == 13
    with Lake(tmp_path / "clone") as lake, Lake(original, read_only=True) as first:
        assert lake.ledger.lake_id() != first.ledger.lake_id()
        with lake.ledger.read() as one, first.ledger.read() as other:
            assert read_home(one).generation != read_home(other).generation
        assert [ticked.outcome for ticked in lake.tick()] == ["paused"]
    for table in ("tokens", "deliveries", "watermarks", "workers"):
        assert in_ledger(tmp_path / "clone", f"SELECT * FROM {table}") == []
    inodes = {path.stat().st_ino for path in original.rglob("*")}
    assert not inodes & {path.stat().st_ino for path in (tmp_path / "clone").rglob("*")}
    assert addresses(tmp_path / "clone", original) == []
    assert_whole(tmp_path / "clone")
    with Lake(original, read_only=True) as lake:
        assert part_ids(lake) == ROWS


def test_f69_a_moved_lake_is_at_home_again_by_relocate(original: Path, tmp_path: Path) -> None:
    """`mv` of a lake: refused, relocated, and everything goes on, with the same id; a second time changes nothing."""
    clone(original, tmp_path / "lake")
    (tmp_path / "lake").rename(tmp_path / "moved")
    with pytest.raises(Displaced):
        Lake(tmp_path / "moved")
    read = call("--lake", tmp_path / "moved", "--json", "sql", "SELECT * FROM messages")
    assert (read.code, read.error["code"]) == (6, "displaced"), "its files are gone where the ledger names them"
    found = call("--lake", tmp_path / "moved", "--json", "doctor").json["findings"]
    assert [finding["kind"] for finding in found] == ["displaced", "sink_paused"], "not that files are damaged"
    answer = call("--lake", tmp_path / "moved", "--json", "relocate")
    assert answer.code == 0, answer.out + answer.err
    assert answer.json == {"lake": str(tmp_path / "moved"), "tables": ["messages", "person"], "sinks": ["archive"]}
    assert relocate(tmp_path / "moved") == []
    assert_whole(tmp_path / "moved")
    assert addresses(tmp_path / "moved" / "warehouse", tmp_path / "lake") == [], "a sweep leaves old metadata"


def test_f69_a_backup_is_restored_in_another_place(original: Path, tmp_path: Path) -> None:
    """With its data, and the first place gone."""
    clone(original, tmp_path / "lake")
    with Lake(tmp_path / "lake") as lake:
        backup(lake, tmp_path / "backup", with_data=True)
    shutil.rmtree(tmp_path / "lake")
    answer = call("--json", "restore", tmp_path / "backup", tmp_path / "elsewhere")
    assert answer.code == 0, answer.out + answer.err
    assert (answer.json["tables"], answer.json["sinks"]) == (["messages", "person"], ["archive"])
    assert_whole(tmp_path / "elsewhere")


# -- killed on the way -------------------------------------------------------------------------------------------------

CLONE_POINTS = ["clone.after_backup", "clone.after_files", "restore.before_marker", "restore.after_marker",
                "restore.after_databases", "clone.after_config"]  # fmt: skip
RELOCATE_POINTS = ["relocate.after_metadata", "relocate.after_catalog", "relocate.before_commit",
                   "relocate.after_commit"]  # fmt: skip


def test_every_point_of_a_clone_or_a_relocation_is_here() -> None:
    listed = {name for name in failpoints.NAMES if name.startswith(("clone.", "relocate."))}
    assert listed <= {*CLONE_POINTS, *RELOCATE_POINTS}


@pytest.mark.parametrize("point", CLONE_POINTS)
def test_f69_a_killed_clone_is_no_lake_and_is_run_again(original: Path, tmp_path: Path, point: str) -> None:
    to = tmp_path / "clone"
    failpoints.arm(f"{point}=raise")
    with pytest.raises(failpoints.FailpointReached):
        clone(original, to)
    failpoints.arm(None)
    if point == "clone.after_config":
        with pytest.raises(Conflict, match="there is a lake"):
            clone(original, to)
    else:
        assert not (to / "strand.toml").exists()
        clone(original, to)
        assert [path.name for path in tmp_path.iterdir()] == ["clone"]
    with Lake(to) as lake:
        assert part_ids(lake) == ROWS and people(lake, branch="x") == ["a", "b"]
        lake.context.fence.raise_()
    assert not (to / ".restoring").exists()


@pytest.mark.parametrize("point", RELOCATE_POINTS)
def test_f69_a_killed_relocation_is_run_again(original: Path, tmp_path: Path, point: str) -> None:
    clone(original, tmp_path / "lake")
    (tmp_path / "lake").rename(tmp_path / "moved")
    failpoints.arm(f"{point}=raise")
    with pytest.raises(failpoints.FailpointReached):
        relocate(tmp_path / "moved")
    failpoints.arm(None)
    if point != "relocate.after_commit":
        with pytest.raises(Displaced):
            Lake(tmp_path / "moved")
    relocate(tmp_path / "moved")
    named = metadata_locations(f"sqlite:///{tmp_path}/moved/catalog.db", "strand").values()
    assert named and all(f"{tmp_path}/moved/warehouse" in location.current for location in named)
    with Lake(tmp_path / "moved") as lake:
        assert part_ids(lake) == ROWS and people(lake, branch="x") == ["a", "b"]
        lake.context.fence.raise_()


# -- the pieces --------------------------------------------------------------------------------------------------------


def test_an_avro_file_is_written_as_it_was_read(original: Path) -> None:
    """Every manifest and every list of a lake, through both ways."""
    for location in metadata_locations(f"sqlite:///{original}/catalog.db", "strand").values():
        for snapshot in snapshots(read_metadata(location.current)).values():
            header, records = read_container(read_file(str(snapshot["manifest-list"])))
            assert read_container(write_container(header, records))[1] == records
            for record in records:
                header, entries = read_container(read_file(str(record["manifest_path"])))
                again, others = read_container(write_container(header, entries))
                assert (others, again["schema"]) == (entries, header["schema"])


@pytest.mark.parametrize(
    ("old", "new", "address", "moved"),
    [
        ("file:///a/w", "file:///b/w", "file:/a/w/t/f", "file:/b/w/t/f"),
        ("file:///a/w", "file:///b/w", "file:///a/w/t/f", "file:///b/w/t/f"),
        ("file:///a/w", "file:///b/w", "/a/w/t/f", "/b/w/t/f"),
        ("file:///a/w", "file:///b/w", "/b/w/t/f", "/b/w/t/f"),
        ("file:///a/w", "s3://bucket/w", "file:/a/w/t/f", "s3://bucket/w/t/f"),
        ("s3://bucket/w", "file:///b", "s3://bucket/w/t/f", "file:///b/t/f"),
    ],
)
def test_an_address_keeps_its_kind_in_another_place(old: str, new: str, address: str, moved: str) -> None:
    assert Move(old, new)(address) == moved


def test_an_address_outside_of_both_places_is_refused() -> None:
    assert not Move("file:///a/w", "file:///b/w").covers("s3://bucket/f")
    with pytest.raises(ValueError, match="not in the warehouse"):
        Move("file:///a/w", "file:///b/w")("file:///a/w2/f")
