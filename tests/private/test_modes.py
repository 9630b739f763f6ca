"""What a lake makes on a disk is for its owner alone, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import private
from strandline.backup import backup
from strandline.clone import clone
from strandline.create import create
from strandline.engines.duck import sandbox
from strandline.engines.spark import jars
from strandline.lake import Lake
from strandline.restore import restore
from tests.kit import make_table, messages, strand

UMASKS = pytest.mark.parametrize("umask", [0o022, 0o000], indirect=True, ids=["022", "000"])


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The process's umask, as a shell or a container may have set it."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """What of a folder somebody else than its owner may read or write, with its mode."""
    modes = {}
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            modes[str(path.relative_to(folder))] = oct(mode)
    return modes


@UMASKS
@pytest.mark.usefixtures("umask")
@pytest.mark.sqlite_only
def test_f89_a_lake_its_backups_and_its_copies_are_their_owners_alone(tmp_path: Path) -> None:
    """Ledger with its WAL, config, marker, backup, restored lake, clone and export, all read by a walk."""
    with create(tmp_path / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 5))
        backup(lake, tmp_path / "backup")
        assert {path.name for path in lake.root.iterdir()} >= {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
        assert open_to_others(lake.root) == {}
    restore(tmp_path / "backup", tmp_path / "restored")
    clone(tmp_path / "lake", tmp_path / "clone")
    strand(tmp_path / "lake", "export", "-o", str(tmp_path / "rows.jsonl"))
    made = ("lake", "backup", "restored", "clone", "rows.jsonl")
    assert {name: open_to_others(tmp_path / name) for name in made} == {name: {} for name in made}


@pytest.mark.parametrize("umask", [0o000], indirect=True, ids=["000"])
@pytest.mark.usefixtures("umask")
@pytest.mark.sqlite_only
def test_f89_what_spark_writes_is_its_owners_alone(tmp_path: Path) -> None:
    """A lake in a folder that everybody can read: the warehouse, its files and the catalog are closed all the same."""
    (tmp_path / "lake").mkdir(0o755)
    with create(tmp_path / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 5))
        lake.flush("messages")
        backup(lake, tmp_path / "backup", with_data=True)
        local_dir = lake.spark.conf.get("spark.local.dir")
    assert open_to_others(tmp_path / "lake") == {".": "0o755"}
    assert open_to_others(tmp_path / "backup") == {}
    assert any((tmp_path / "lake" / "warehouse").rglob("*.parquet"))
    assert local_dir == str(private.working_folder())


@pytest.mark.parametrize(("mode", "made"), [(None, 0o600), (0o700, 0o600), (0o750, 0o640), (0o755, 0o644)])
def test_an_archive_has_the_mode_that_a_person_gave_its_folder(tmp_path: Path, mode: int | None, made: int) -> None:
    """A folder that the sink makes is closed; in one that was opened, others can read what is delivered."""
    from strandline.config import Store
    from strandline.engines.objects import ObjectPlace, put_bytes

    archive = tmp_path / "archive"
    if mode is not None:
        archive.mkdir()
        archive.chmod(mode)
    before = os.umask(0o022)
    try:
        put_bytes(ObjectPlace(f"file://{archive}", Store()), "a/b/unit", b"rows")
    finally:
        os.umask(before)
    assert stat.S_IMODE((archive / "a/b/unit").stat().st_mode) == made
    assert stat.S_IMODE(archive.stat().st_mode) == (mode or 0o700)
    assert stat.S_IMODE((archive / "a").stat().st_mode) == (mode or 0o700)


@UMASKS
@pytest.mark.usefixtures("umask")
def test_f89_spills_go_to_a_private_folder_that_nobody_can_foresee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of one process is not that of another, and is closed; a query that does not fit spills into it."""
    monkeypatch.setattr(private, "_folders", {})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    connection = sandbox.connect()
    ((spills,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    connection.execute("SET memory_limit = '100MB'")
    connection.execute("SET threads = 1")
    connection.execute("CREATE TABLE big AS SELECT range AS n, repeat('x', 100) || range AS t FROM range(3000000)")
    assert list(Path(spills).iterdir())
    folder = private.working_folder()
    assert Path(spills).parent == folder and folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    connection.close()
    monkeypatch.setattr(private, "_folders", {})
    assert private.working_folder() != folder


def test_the_working_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    """Its lock is free; the folder of a process that lives stays, and so does what a person made under such a name."""
    code = (
        f"import os, tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from strandline import private\n"
        "print(private.working_folder(), flush=True)\n"
        "input()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    theirs = tmp_path / f"{private.PREFIX}lake"
    theirs.mkdir(0o700)

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with started() as alive, started() as killed:
        assert alive.stdout is not None and killed.stdout is not None
        folders = Path(alive.stdout.readline().strip()), Path(killed.stdout.readline().strip())
        killed.communicate("\n")
        assert folders[1].is_dir()
        with started() as next_process:
            assert next_process.stdout is not None
            next_process.stdout.readline()
            assert [folder.is_dir() for folder in (*folders, theirs)] == [True, False, True]
            next_process.communicate("\n")
        alive.communicate("\n")


@pytest.mark.parametrize("umask", [0o000], indirect=True, ids=["000"])
@pytest.mark.usefixtures("umask")
def test_nobody_else_can_put_a_jar_into_the_cache(tmp_path: Path) -> None:
    """What Spark runs is taken from there, so it is never writable for others; anybody may read it."""
    jars.make_cache_folder(tmp_path / "cache" / "jars")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "cache" / "jars").stat().st_mode) == 0o755


@pytest.mark.sqlite_only
def test_a_lake_opened_before_keeps_the_modes_that_a_person_gave_it(lake: Lake) -> None:
    """A group that shares a lake is not locked out by the next write."""
    path = lake.config.ledger_path
    assert path is not None
    root = lake.root
    make_table(lake)
    lake.close()
    path.chmod(0o660)
    with Lake(root) as opened:
        opened.append("messages", messages(0, 2))
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.with_name("ledger.db-wal").stat().st_mode) == 0o660
