"""Where jars come from: what Spark's own resolver falls for, and ours does not."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from strandline.engines.spark import jars, java
from strandline.lake import Lake

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>org.trial</groupId><artifactId>trial</artifactId><version>1.0</version></project>"""
SETTINGS = """<ivysettings><settings defaultResolver="only"/><resolvers>
<ibiblio name="only" m2compatible="true" root="{root}"/></resolvers></ivysettings>"""


def publish(repository: Path, *, jar: bool = True) -> Path:
    """Put `org.trial:trial:1.0` into a Maven repository, with its jar or without."""
    folder = repository / "org" / "trial" / "trial" / "1.0"
    folder.mkdir(parents=True)
    (folder / "trial-1.0.pom").write_text(POM)
    if jar:
        with zipfile.ZipFile(folder / "trial-1.0.jar", "w") as file:
            file.writestr("hello.txt", "hello")
    return repository


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder in which another tool has left a POM without its jar."""
    publish(tmp_path / "home" / ".m2" / "repository", jar=False)
    return tmp_path / "home"


@contextmanager
def user_home(jvm: Any, home: Path) -> Iterator[None]:
    system = jvm.java.lang.System
    before = system.setProperty("user.home", str(home))
    try:
        yield
    finally:
        system.setProperty("user.home", before)


def test_a_pom_without_its_jar_in_the_home_folder_fails_sparks_own_resolver(
    lake: Lake, home: Path, tmp_path: Path
) -> None:
    """The reason for `jars.py`. If Spark gets over it, `spark.jars.packages` is an option again."""
    repository = publish(tmp_path / "repository")
    jvm: Any = lake.spark._jvm
    maven = jvm.org.apache.spark.util.MavenUtils
    console = jvm.java.io.PrintStream(jvm.java.io.ByteArrayOutputStream())
    with user_home(jvm, home):
        settings = maven.buildIvySettings(
            jvm.scala.Option.apply(repository.as_uri()), jvm.scala.Option.apply(str(tmp_path / "ivy")), True, console
        )
        nothing = jvm.PythonUtils.toSeq([])
        with pytest.raises(Py4JJavaError, match="download failed"):
            maven.resolveMavenCoordinates(
                "org.trial:trial:1.0", settings, jvm.scala.Option.apply(None), False, nothing, False, console
            )


def test_our_own_home_and_cache_of_ivy_get_over_it(home: Path, tmp_path: Path) -> None:
    """If Ivy looked into the user's home all the same, `make setup` would fail for good on such a machine."""
    repository = publish(tmp_path / "repository")
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(root=repository.as_uri()))
    jar = jars.Jar("org.trial", "trial", "1.0", "", 0)
    command = jars._ivy_command(
        jar, java.find(), jars._ivy_jar(), tmp_path / "work", {"STRAND_IVY_SETTINGS": str(settings)}
    )
    command.insert(1, f"-Duser.home={home}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert zipfile.is_zipfile(tmp_path / "work" / "out" / jar.file_name)
    assert sorted(path.name for path in home.iterdir()) == [".m2"], "Ivy wrote into the user's home"
