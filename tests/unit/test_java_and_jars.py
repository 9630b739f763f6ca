"""What Spark needs from the machine: a Java that suits, and jars that are the ones we know. No network here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from strandline.cli.main import run
from strandline.engines.spark import jars, java
from strandline.errors import BadRequest, Damaged, Environment


def java_home(folder: Path, version: str, *, release: bool = True) -> Path:
    """A folder that looks like a Java; without a release file it has to be asked."""
    (folder / "bin").mkdir(parents=True)
    binary = folder / "bin" / "java"
    settings = f"    java.home = {folder}\\n    java.version = {version}\\n"
    binary.write_text(f"#!/bin/sh\nprintf '{settings}' >&2\n")
    binary.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    return folder


def find(env: dict[str, str], *places: Path) -> java.Java:
    return java.find(env, places=[str(place) for place in places])


def test_java_home_comes_before_path_and_path_before_the_usual_places(tmp_path: Path) -> None:
    home, path, usual = (java_home(tmp_path / name, "17.0.1") for name in ("home", "path", "usual"))
    assert find({"JAVA_HOME": str(home), "PATH": str(path / "bin")}, usual).home == home
    assert find({"PATH": str(path / "bin")}, usual).home == path
    assert find({"JAVA_HOME": "", "PATH": ""}, tmp_path / "us*").home == usual


def test_a_java_that_does_not_suit_is_passed_over(tmp_path: Path) -> None:
    """17 is the oldest Spark 4.1 takes; from 24 on a call that its Hadoop makes is refused."""
    old, new, good = (java_home(tmp_path / version, version) for version in ("1.8.0_402", "25.0.3", "21.0.2"))
    found = find({"JAVA_HOME": str(old), "PATH": str(new / "bin")}, tmp_path / "*")
    assert (found.home, found.version, found.major) == (good, "21.0.2", 21)


@pytest.mark.parametrize(
    ("version", "major", "suits"),
    [
        ("1.8.0_402", 8, False),
        ("11.0.2", 11, False),
        ("17", 17, True),
        ("21-ea", 21, True),
        ("23.0.1", 23, True),
        ("24", 24, False),
    ],
)
def test_the_major_version_is_read_from_old_and_new_numbers(version: str, major: int, suits: bool) -> None:
    found = java.Java(Path("/x"), version)
    assert (found.major, found.suits) == (major, suits)


def test_no_java_at_all_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(Environment, match="there is no Java") as caught:
        find({"PATH": "", "JAVA_HOME": ""}, tmp_path / "*")
    assert caught.value.exit_code == 6
    assert caught.value.hint.startswith("Type: ")


def test_only_an_old_java_says_which_and_where(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", "11.0.2")
    with pytest.raises(Environment, match=f"there is only Java 11.0.2 in {old}"):
        find({"JAVA_HOME": str(old)})


def test_a_shim_on_the_path_is_asked_for_the_real_home(tmp_path: Path) -> None:
    real = java_home(tmp_path / "real", "17.0.9", release=False)
    shim = tmp_path / "shims" / "bin" / "java"
    shim.parent.mkdir(parents=True)
    shim.write_text(f'#!/bin/sh\nexec {real}/bin/java "$@"\n')
    shim.chmod(0o755)
    assert find({"PATH": str(shim.parent)}) == java.Java(real, "17.0.9")


def test_a_java_that_does_not_start_is_no_java(tmp_path: Path) -> None:
    """macOS has a /usr/bin/java that only says that there is none."""
    stub = java_home(tmp_path / "stub", "17", release=False) / "bin" / "java"
    stub.write_text("#!/bin/sh\necho Unable to locate a Java Runtime. >&2\nexit 1\n")
    with pytest.raises(Environment, match="there is no Java"):
        find({"PATH": str(stub.parent)})


@pytest.mark.parametrize(
    ("platform", "tools", "root", "typed"),
    [
        ("linux", {"apt-get"}, True, "apt-get update && apt-get install -y openjdk-17-jre-headless"),
        ("linux", {"apt-get"}, False, "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless"),
        ("linux", {"dnf"}, False, "sudo dnf install -y java-21-openjdk-headless"),
        ("linux", set(), False, "install a Java 17"),
        ("darwin", {"brew"}, False, "brew install openjdk@17"),
    ],
)
def test_the_hint_is_for_this_system(
    monkeypatch: pytest.MonkeyPatch, platform: str, tools: set[str], root: bool, typed: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(shutil, "which", lambda name, **_: name if name in tools else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(java, "_apt_package", lambda: "openjdk-17-jre-headless")
    assert java.how_to_install().startswith(typed)


def test_install_without_the_right_to_says_what_to_type_and_exits_6(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java, "_candidates", lambda *_: iter(()))
    monkeypatch.setattr(java, "_may_install", lambda: None)
    monkeypatch.setattr(java, "_run", lambda command: pytest.fail(f"ran {command}"))
    assert run(["setup", "--install-java"]) == 6
    shown = capsys.readouterr()
    assert "error[environment]: Spark needs Java 17" in shown.err
    assert "hint: Type: " in shown.err
    assert shown.out == ""


def test_install_with_the_right_to_updates_the_lists_and_then_installs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lists first: a fresh container has none, and would not know the package."""
    ran: list[list[str]] = []
    installed = java.Java(Path("/usr/lib/jvm/x"), "17.0.1")
    monkeypatch.setattr(java, "_candidates", lambda *_: iter((installed,) if len(ran) == 2 else ()))
    monkeypatch.setattr(java, "_may_install", lambda: ["sudo", "-n"])
    monkeypatch.setattr(
        java, "_apt_package", lambda: "openjdk-17-jre-headless" if ran else pytest.fail("asked too early")
    )
    monkeypatch.setattr(java, "how_to_install", lambda: "…")
    monkeypatch.setattr(java, "_run", ran.append)
    assert java.find_or_install() == installed
    assert ["update" in command for command in ran] == [True, False]
    assert ran[1][-1] == "openjdk-17-jre-headless"
    assert all(command[:2] == ["sudo", "-n"] for command in ran)
    assert "installing one" in capsys.readouterr().err


CONTENTS = {"one-1.0.jar": b"the first jar", "two-2.0.jar": b"the second jar"}


class FakeIvy:
    """Stands in for the network: counts what was fetched, and delivers what it is told to."""

    def __init__(self) -> None:
        self.delivers = dict(CONTENTS)
        self.fetched: list[str] = []

    def __call__(self, jar: jars.Jar, runtime: java.Java, ivy: Path, workspace: Path) -> Path:
        self.fetched.append(jar.file_name)
        out = workspace / "out" / jar.file_name
        out.parent.mkdir(exist_ok=True)
        out.write_bytes(self.delivers[jar.file_name])
        return out


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIvy:
    """An empty cache folder, two pinned jars, and no network."""
    lines = [
        f"{hashlib.sha256(CONTENTS[f'{name}-{revision}.jar']).hexdigest()} 13 org.example:{name}:{revision}"
        for name, revision in (("one", "1.0"), ("two", "2.0"))
    ]
    lock = tmp_path / "jars.lock"
    lock.write_text("# a comment\n" + "\n".join(lines) + "\n")
    fake = FakeIvy()
    monkeypatch.setenv("STRAND_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "LOCK_FILE", lock)
    monkeypatch.setattr(java, "find", lambda: java.Java(Path("/nowhere"), "17"))
    monkeypatch.setattr(jars, "_ivy_jar", lambda: Path("/nowhere/ivy.jar"))
    monkeypatch.setattr(jars, "_fetch", fake)
    return fake


def test_the_lock_pins_what_the_catalogs_need() -> None:
    assert [(jar.name, jar.revision) for jar in jars.pinned()] == [
        ("iceberg-spark-runtime-4.1_2.13", "1.12.0"),
        ("sqlite-jdbc", "3.50.3.0"),
        ("postgresql", "42.7.14"),
        ("hadoop-bare-naked-local-fs", "0.1.0"),
        ("iceberg-aws-bundle", "1.12.0"),
        ("hadoop-aws", "3.4.2"),
        ("apache-client", "2.54.17"),
        ("s3-transfer-manager", "2.54.17"),
    ]
    assert all(len(jar.sha256) == 64 and jar.size_bytes > 5_000 for jar in jars.pinned())


def test_jars_are_fetched_once_and_only_what_is_missing(ivy: FakeIvy) -> None:
    told: list[str] = []
    paths = jars.resolve(progress=told.append)
    assert [path.read_bytes() for path in paths] == list(CONTENTS.values())
    assert len(told) == 2
    assert jars.resolve(progress=told.append) == paths
    paths[0].unlink()
    assert jars.resolve() == paths
    assert ivy.fetched == ["one-1.0.jar", "two-2.0.jar", "one-1.0.jar"]


def test_nothing_but_jars_and_stamps_is_left_behind(ivy: FakeIvy, tmp_path: Path) -> None:
    jars.resolve()
    left = sorted(str(path.relative_to(tmp_path / "cache")) for path in (tmp_path / "cache").rglob("*"))
    assert left == ["jars", *sorted(f"jars/{name}{suffix}" for name in CONTENTS for suffix in ("", ".verified"))]


def test_a_verified_jar_is_not_hashed_again(ivy: FakeIvy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start must not read 60 MB."""
    jars.resolve()
    monkeypatch.setattr(jars, "_verify", lambda path, jar: pytest.fail(f"hashed {path}"))
    jars.resolve()


@pytest.mark.parametrize("change", ["lost", "garbage", "touched"])
def test_a_jar_whose_stamp_does_not_fit_is_hashed_once_more_and_kept(
    ivy: FakeIvy, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first, _ = jars.resolve()
    stamp = first.with_name(f"{first.name}.verified")
    match change:
        case "lost":
            stamp.unlink()
        case "garbage":
            stamp.write_text("{half")
        case "touched":
            os.utime(first, ns=(1, 1))
    jars.resolve()
    assert json.loads(stamp.read_text())["mtime_ns"] == first.stat().st_mtime_ns
    monkeypatch.setattr(jars, "_verify", lambda path, jar: pytest.fail(f"hashed {path}"))
    jars.resolve()
    assert len(ivy.fetched) == 2


def test_a_changed_jar_in_the_cache_is_damage_with_both_digests_and_what_to_do(ivy: FakeIvy) -> None:
    first, _ = jars.resolve()
    first.write_bytes(b"something else")
    with pytest.raises(Damaged) as caught:
        jars.resolve()
    assert caught.value.detail == {
        "expected": hashlib.sha256(CONTENTS[first.name]).hexdigest(),
        "actual": hashlib.sha256(b"something else").hexdigest(),
    }
    assert all(digest in caught.value.message for digest in caught.value.detail.values())
    assert f"Delete {first}" in caught.value.hint
    first.unlink()
    assert jars.resolve()[0].read_bytes() == CONTENTS[first.name]


def test_a_new_pin_does_not_trust_the_stamp_of_the_old_one(ivy: FakeIvy) -> None:
    jars.resolve()
    jars.LOCK_FILE.write_text(f"{'0' * 64} 13 org.example:one:1.0\n")
    with pytest.raises(Damaged):
        jars.resolve()


def test_a_wrong_download_never_reaches_the_cache(ivy: FakeIvy, tmp_path: Path) -> None:
    ivy.delivers["two-2.0.jar"] = b"an advertisement of the hotel's network"
    with pytest.raises(Damaged, match=r"two-2\.0\.jar is not the two 2\.0 that we know"):
        jars.resolve()
    left = {path.name for path in (tmp_path / "cache").rglob("*.jar")}
    assert left == {"one-1.0.jar"}
    ivy.delivers = dict(CONTENTS)
    jars.resolve()


def test_two_set_ups_at_once_end_with_the_same_files(ivy: FakeIvy) -> None:
    answers: list[tuple[Path, ...]] = []
    threads = [threading.Thread(target=lambda: answers.append(jars.resolve())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len(set(answers)) == 1
    assert [path.read_bytes() for path in jars.resolve()] == list(CONTENTS.values())


def test_what_a_killed_set_up_left_is_cleared_away_after_a_while(ivy: FakeIvy, tmp_path: Path) -> None:
    """Not at once: it may be the workspace of a set-up that is running."""
    old, young = tmp_path / "cache" / "fetch-old", tmp_path / "cache" / "fetch-young"
    for folder in (old, young):
        (folder / "out").mkdir(parents=True)
    os.utime(old, (1, 1))
    jars.resolve()
    assert (old.exists(), young.exists()) == (False, True)


def test_a_cache_that_cannot_be_written_names_the_variable(
    ivy: FakeIvy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STRAND_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(Environment) as caught:
        jars.resolve()
    assert "STRAND_CACHE_DIR" in caught.value.hint


def test_the_cache_folder_is_the_variable_then_the_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jars.cache_dir({"STRAND_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c")
    assert jars.cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/strandline")
    assert jars.cache_dir({}) == tmp_path / ".cache" / "strandline"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert jars.cache_dir({}) == tmp_path / "Library" / "Caches" / "strandline"


def ivy_command(env: dict[str, str]) -> list[str]:
    jar = jars.Jar("org.example", "one", "1.0", "0" * 64, 1)
    return jars._ivy_command(jar, java.Java(Path("/j"), "17"), Path("/ivy.jar"), Path("/w"), env)


def test_ivy_has_a_home_and_a_cache_of_its_own() -> None:
    """A broken ~/.m2 or ~/.ivy2 must not matter."""
    command = ivy_command({})
    assert command[:2] == ["/j/bin/java", "-Divy.home=/w/ivy"]
    assert command[command.index("-cache") + 1] == "/w/ivy/cache"
    assert "-settings" not in command


def test_a_mirror_is_named_by_a_settings_file_which_must_exist(tmp_path: Path) -> None:
    settings = tmp_path / "ivysettings.xml"
    with pytest.raises(BadRequest, match="STRAND_IVY_SETTINGS"):
        ivy_command({"STRAND_IVY_SETTINGS": str(settings)})
    settings.write_text("<ivysettings/>")
    command = ivy_command({"STRAND_IVY_SETTINGS": str(settings)})
    assert command[command.index("-settings") + 1] == str(settings)


def test_java_is_told_the_proxy_that_python_would_use() -> None:
    command = ivy_command({"HTTPS_PROXY": "http://proxy.example:3128", "http_proxy": "plain.example:80"})
    assert "-Dhttps.proxyHost=proxy.example" in command
    assert "-Dhttps.proxyPort=3128" in command
    assert "-Dhttp.proxyHost=plain.example" in command


def test_no_network_is_an_error_with_ivys_own_reason(tmp_path: Path) -> None:
    """Out of a hundred lines of Ivy's report, the one that says why."""
    report = "\tmodule not found: x\n:::: ERRORS\n\tServer access error at url https://a/b (refused)\n\n:: USE VERBOSE"
    home = java_home(tmp_path / "java", "17")
    (home / "bin" / "java").write_text(f"#!/bin/sh\ncat <<'END'\n{report}\nEND\nexit 1\n")
    jar = jars.Jar("org.example", "one", "1.0", "0" * 64, 1)
    with pytest.raises(Environment, match=r"org\.example:one:1\.0: Server access error at url https://a/b") as caught:
        jars._fetch(jar, java.Java(home, "17"), Path("/ivy.jar"), tmp_path)
    assert "STRAND_IVY_SETTINGS" in caught.value.hint


def test_ivy_is_found_without_importing_pyspark() -> None:
    """The import takes a second, and `strand append` has no use for it."""
    code = "import sys; from strandline.engines.spark import jars; print(jars._ivy_jar(), 'pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path, imported = done.stdout.strip().rsplit(maxsplit=1)
    assert Path(path).name.startswith("ivy-")
    assert imported == "False"
