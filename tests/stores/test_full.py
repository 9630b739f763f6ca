"""Real disks that are full: the warehouse, the ledger's, and the one for working files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline import create
from strandline.config import Store
from strandline.errors import NoSpace
from strandline.lake import Lake
from tests.acceptance.conftest import bulky
from tests.kit import in_ledger, log_part_ids, make_table, messages, part_ids, strand

__all__ = ["bulky"]

PAGE = 4096
DAY_S = 24 * 3600


@contextmanager
def disk(place: Path, size: str) -> Iterator[Path]:
    """A disk of its own, of this size."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disks here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all the room that a disk has left, to the last page; the file that takes it."""
    filler = place / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, PAGE, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[Lake, Path]]:
    """A lake whose warehouse is on a small disk, with ten rows in its log."""
    with disk(tmp_path / "disk", "16m") as place:
        uri = f"file://{place}/warehouse"
        with create.create(tmp_path / "lake", warehouse=uri, store=Store()) as lake:
            make_table(lake)
            lake.append("messages", messages(0, 10))
            lake.flush("messages")
            yield lake, place


def test_f107_a_full_warehouse_is_no_space_everywhere_and_a_sweep_makes_room(
    small: tuple[Lake, Path], tmp_path: Path, bulky: None
) -> None:
    """Flush, load and purge say so, and lose nothing; a sweep needs no room; then everything goes on."""
    lake, place = small
    orphan = place / "warehouse" / "lake" / "messages" / "data" / "orphan.parquet"
    orphan.write_bytes(bytes(2 << 20))
    os.utime(orphan, (orphan.stat().st_mtime - 3 * DAY_S,) * 2)
    filler = fill(place)
    lake.append("messages", messages(10, 15))
    large = tmp_path / "large.jsonl"
    large.write_text("".join(f'{{"part_id":"f{n}","source":"x","n":1,"body":"y"}}\n' for n in range(40)))
    for call in (
        lambda: lake.flush("messages"),
        lambda: lake.purge("messages", "n = 3", actor="tester"),
        lambda: lake.load("messages", [str(large)]),
    ):
        with pytest.raises(NoSpace) as full:
            call()
        assert str(place) in full.value.message
    assert strand(lake.root, "flush", "messages", "--here").code == 5
    assert part_ids(lake) == [f"p{n}" for n in range(15)]
    swept = {done.table: done for done in lake.sweep()}
    assert swept["messages"].before["orphan_files"] >= 1
    assert not orphan.exists(), "the sweep made no room"
    assert filler.exists()
    lake.flush("messages")
    assert sorted(log_part_ids(lake)) == sorted(f"p{n}" for n in range(15))
    filler.unlink()
    lake.load("messages", [str(large)])
    lake.sweep()
    assert len(part_ids(lake)) == 55


@pytest.mark.sqlite_only
def test_f107_a_full_disk_of_the_ledger_refuses_appends_whole(tmp_path: Path) -> None:
    """Nothing half-done: what was acked is there, what was refused is not, and it goes on with room, in one process."""
    with disk(tmp_path / "disk", "8m") as place, create.create(place / "lake") as lake:
        make_table(lake, row_key=[])
        lake.append("messages", messages(0, 10))
        filler = fill(place)
        stored = 10
        with pytest.raises(NoSpace) as full:
            for n in range(10, 5000, 10):
                lake.append("messages", messages(n, n + 10))
                stored = n + 10
        assert "room" in full.value.hint
        assert part_ids(lake) == [f"p{n}" for n in range(stored)]
        filler.unlink()
        lake.append("messages", messages(stored, stored + 10))
        assert part_ids(lake) == [f"p{n}" for n in range(stored + 10)]
        assert in_ledger(lake, "PRAGMA integrity_check")[0][0] == "ok"


SPILLS = """
import sys
from pathlib import Path
from strandline.errors import NoSpace
from strandline.lake import Lake
from tests.stores.test_full import fill
with Lake(Path(sys.argv[1])) as lake:
    big = "SELECT i, random() AS r, repeat('x', 50) || i AS t FROM range(3000000) t(i) ORDER BY r OFFSET 2999990"
    lake.view().sql("SELECT 1").rows()  # who finds a full folder when it begins takes another
    for full in (True, False):
        filler = fill(Path(sys.argv[2])) if full else None
        try:
            assert len(lake.view().sql(big).rows()) == 10
            print("answered")
        except NoSpace as error:
            assert sys.argv[2] in error.message, error.message
            print("no_space")
        if filler is not None:
            filler.unlink()
"""


def test_f107_a_full_disk_of_working_files_is_named_and_passes(tmp_path: Path) -> None:
    """A query that spills is no_space and not a wrong query; with room, the same process answers it."""
    with create.create(tmp_path / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 60))
    with disk(tmp_path / "disk", "512m") as place:
        limits = {"STRAND_QUERY_MEMORY": "100MB", "STRAND_QUERY_SPILL": "10GB", "TMPDIR": str(place)}
        ran = subprocess.run(
            [sys.executable, "-c", SPILLS, str(tmp_path / "lake"), str(place)],
            env={**os.environ, **limits}, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert ran.stdout.split() == ["no_space", "answered"], ran.stdout + ran.stderr
