"""The class-data archive: it must fit exactly, and whatever is wrong with it may cost time alone."""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path

import psutil
import pytest
from tests.kit import wait_until

from strandline.engines.spark import archive, java, training


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, a Java home that nobody runs, and one jar."""
    monkeypatch.setenv("STRAND_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "release").write_text("17")
    found = java.Java(tmp_path, "17.0.15")
    monkeypatch.setattr(java, "find", lambda: found)
    path = tmp_path / "spark.jar"
    path.write_text("one")
    monkeypatch.setattr(archive, "_spark_jars", lambda: [path])
    monkeypatch.setattr(archive.jars, "resolve", lambda: ())
    return path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The options of every JVM that was asked to record; each leaves an archive, as a real one would."""
    seen: list[tuple[str, ...]] = []

    def run(_folder: Path, options: tuple[str, ...]) -> None:
        seen.append(options)
        Path(options[-1].partition("=")[2]).write_text("classes")

    monkeypatch.setattr(training, "run", run)
    return seen


def test_it_is_made_once_and_found_by_everybody_with_the_same_jars(jar: Path, runs: list[tuple[str, ...]]) -> None:
    assert archive.find() is None
    made = archive.make()
    assert made is not None and archive.find() == made == archive.make()
    assert len(runs) == 1


def test_another_jar_another_java_or_another_time_of_a_jar_is_another_archive(
    jar: Path, runs: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM ignores an archive that does not fit, and says nothing: the name must tell."""
    first = archive.make()
    jar.write_text("two, and longer")
    assert archive.find() is None
    second = archive.make()
    assert second is not None and second != first
    monkeypatch.setattr(java, "find", lambda: java.Java(jar.parent, "17.0.16"))
    assert archive.find() is None


def test_an_archive_whose_jars_are_gone_is_removed_when_another_is_made(
    jar: Path, runs: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every environment has one of 200 MB; those of environments that are gone must go with them."""
    first = archive.make()
    other = tmp_path / "other.jar"
    other.write_text("other")
    monkeypatch.setattr(archive, "_spark_jars", lambda: [other])
    second = archive.make()
    assert first is not None and first.exists(), "its jar is still there, so somebody may use it"
    jar.unlink()
    other.write_text("changed")
    third = archive.make()
    assert third is not None
    assert sorted((third.parent).glob("*.jsa")) == [third]
    assert json.loads(third.with_suffix(".json").read_text())["java"][1] == "17.0.15"
    assert second is not None and not second.exists()


def test_who_finds_another_one_making_it_goes_on_without(jar: Path, runs: list[tuple[str, ...]]) -> None:
    made = archive.make()
    assert made is not None
    made.unlink()
    with (made.parent / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert archive.make() is None
    assert archive.make() == made


def test_a_jvm_that_leaves_nothing_and_a_cache_that_cannot_be_written_are_no_errors(
    jar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(training, "run", lambda _folder, _options: None)
    assert archive.make() is None and archive.find() is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STRAND_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert archive.make() is None


def test_a_jvm_is_told_to_keep_its_opinion_of_an_archive_off_stdout(jar: Path, runs: list[tuple[str, ...]]) -> None:
    """`--json` promises one document on stdout, and a JVM writes its warnings there."""
    made = archive.make()
    assert archive.options(None) == archive.QUIET
    assert archive.options(made) == (*archive.QUIET, f"-XX:SharedArchiveFile={made}")
    assert runs[0][: len(archive.QUIET)] == archive.QUIET


def test_a_worker_that_finds_none_lets_another_process_make_it_and_takes_that_along_when_it_ends(
    jar: Path, runs: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho $$ $@ > {tmp_path}/started\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with archive.made_meanwhile():
        wait_until(lambda: (tmp_path / "started").exists() and (tmp_path / "started").read_text().endswith("\n"))
        pid, *arguments = (tmp_path / "started").read_text().split()
        assert arguments == ["-m", "strandline.engines.spark.archive"] and psutil.pid_exists(int(pid))
    assert not psutil.pid_exists(int(pid))
    (tmp_path / "started").unlink()
    archive.make()
    with archive.made_meanwhile():
        assert not (tmp_path / "started").exists()
