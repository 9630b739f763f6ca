"""Folders that are being filled: those of dead processes go, and what a live one fills is left alone."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.backup import backup
from strandline.lake import Lake
from strandline.ledger.publish.owner import Owner, register, unregister
from strandline.operations.core import partial
from strandline.restore import verify
from tests.kit import make_table, messages

DAYS_AGO = time.time() - 3 * 24 * 3600


@pytest.fixture
def ours() -> Owner:
    return register()


def _fill(folder: Path, owner: Owner | None) -> Path:
    folder.mkdir(parents=True)
    (folder / "ledger.db").write_bytes(b"half of it")
    if owner is not None:
        (folder / partial.OWNER).write_text(owner.text())
    return folder


def _age(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (DAYS_AGO, DAYS_AGO))


def test_what_a_live_process_fills_is_left_alone(tmp_path: Path, ours: Owner) -> None:
    """However long it has been at it, and whatever other processes begin meanwhile."""
    first = partial.begin(tmp_path / "monday", "partial", ours)
    _age(first)
    other = register()
    second = partial.begin(tmp_path / "monday", "partial", other)
    assert first.is_dir()
    assert second.is_dir()


def test_what_a_dead_process_left_goes(tmp_path: Path, ours: Owner) -> None:
    dead = register()
    unregister(dead)
    process = subprocess.Popen(["true"])
    process.wait()
    killed = replace(ours, pid=process.pid, started="1")
    left = [_fill(tmp_path / f".monday.partial-{n}", owner) for n, owner in enumerate((dead, killed))]
    partial.begin(tmp_path / "monday", "partial", ours)
    assert not any(folder.exists() for folder in left)


def test_a_folder_that_was_made_a_moment_ago_has_no_owner_yet(tmp_path: Path, ours: Owner) -> None:
    folder = _fill(tmp_path / ".monday.partial-1", None)
    partial.begin(tmp_path / "monday", "partial", ours)
    assert folder.is_dir()
    _age(folder)
    partial.begin(tmp_path / "monday", "partial", ours)
    assert not folder.exists()


@pytest.mark.parametrize("what", [{"boot": "another"}, {"namespace": "another"}])
def test_of_another_host_nothing_is_known(tmp_path: Path, ours: Owner, what: dict[str, str]) -> None:
    """A disk for backups may be shared: another boot, also of a host of the same name, may be alive."""
    folder = _fill(tmp_path / ".monday.partial-1", replace(ours, **what))
    partial.begin(tmp_path / "monday", "partial", ours)
    assert folder.is_dir()
    _age(folder)
    partial.begin(tmp_path / "monday", "partial", ours)
    assert not folder.exists()


def test_a_name_with_signs_of_a_glob_is_a_name(tmp_path: Path, ours: Owner) -> None:
    dead = register()
    unregister(dead)
    left = _fill(tmp_path / ".mon[d]ay*.partial-1", dead)
    beside = _fill(tmp_path / ".monday and more.partial-1", dead)
    partial.begin(tmp_path / "mon[d]ay*", "partial", ours)
    assert not left.exists()
    assert beside.is_dir()


def test_a_backup_belongs_to_somebody_until_it_has_its_name(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment before the rename another backup to the same place begins, and takes nothing away."""
    make_table(lake)
    lake.append("messages", messages(0, 3))
    to = tmp_path / "backups" / "monday"
    others: list[Path] = []

    def begin_another(point: str) -> None:
        if point == "backup.before_rename":
            others.append(partial.begin(to, "partial", register()))

    monkeypatch.setattr("strandline.backup.fail", begin_another)
    manifest = backup(lake, to)
    verify(to, manifest)
    assert len(others) == 1
    assert sorted(path.name for path in to.iterdir() if path.name == partial.OWNER) == []
