"""The Java that Spark runs on.

Spark needs a Java that it does not bring along, and says little when it finds a wrong one, so it is looked for before
anything starts. Both ends of the range matter: Spark 4.1 is compiled for 17, and from 24 on Java refuses a call that
its Hadoop still makes ("getSubject is not supported"), which fails in the middle of the first job.

`strand setup --install-java` installs one where it may, and says how otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from strandline.errors import Environment, StrandError

OLDEST = 17
NEWEST = 23

USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
)

APT_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
"""In order of preference: Debian 13 no longer has 17, and older releases have no 21."""


@dataclass(frozen=True)
class Java:
    """A Java installation: `home` is what JAVA_HOME should be, `version` is in full ("17.0.15")."""

    home: Path
    version: str

    @property
    def major(self) -> int:
        """17 for "17.0.15", and 8 for "1.8.0_402"."""
        first, _, rest = self.version.partition(".")
        return int(re.split(r"\D", rest if first == "1" and rest else first)[0])

    @property
    def suits(self) -> bool:
        """Whether Spark runs on it."""
        return OLDEST <= self.major <= NEWEST


def find(env: Mapping[str, str] | None = None, places: Iterable[str] = USUAL_PLACES) -> Java:
    """The first Java that suits: JAVA_HOME, then PATH, then the usual places, the oldest that suits first."""
    others: list[Java] = []
    for java in _candidates(os.environ if env is None else env, places):
        if java.suits:
            return java
        others.append(java)
    needs = f"Spark needs Java {OLDEST} to {NEWEST}"
    hint = f"Type: {how_to_install()}"
    if not others:
        raise Environment(f"{needs}, and there is no Java in JAVA_HOME, on the PATH or in the usual places", hint=hint)
    versions = ", ".join(sorted({f"Java {java.version} in {java.home}" for java in others}))
    raise Environment(f"{needs}, and there is only {versions}", hint=hint, found=[java.version for java in others])


def how_to_install() -> str:
    """What to type on this system to get a Java that suits."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    if sys.platform == "darwin":
        return "brew install openjdk@17"
    if shutil.which("apt-get"):
        return f"{sudo}apt-get update && {sudo}apt-get install -y {_apt_package()}"
    if shutil.which("dnf"):
        return f"{sudo}dnf install -y java-21-openjdk-headless"
    return f"install a Java {OLDEST} or 21 (OpenJDK will do) and set JAVA_HOME to its folder"


def _candidates(env: Mapping[str, str], places: Iterable[str]) -> Iterator[Java]:
    if env.get("JAVA_HOME"):
        yield from _look(Path(env["JAVA_HOME"]).expanduser())
    # An empty path means "the default one" to shutil.which, and no path at all to other programs.
    on_path = shutil.which("java", path=env["PATH"]) if env.get("PATH") else None
    if on_path:
        yield from _look(Path(on_path).resolve().parent.parent)
        yield from _ask(Path(on_path))
    usual = {java for place in places for home in _glob(place) for java in _look(home)}
    yield from sorted(usual, key=lambda java: (java.major, java.version, str(java.home)))


def _glob(pattern: str) -> list[Path]:
    expanded = Path(pattern).expanduser()
    root = Path(expanded.anchor)
    return sorted({path.resolve() for path in root.glob(str(expanded.relative_to(root)))})


def _look(home: Path) -> Iterator[Java]:
    """Read the `release` file, which every Java since 9 has: it is 50 ms cheaper than to start the thing."""
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        yield from _ask(binary)
        return
    match = re.search(r'^JAVA_VERSION="(\d[^"]*)"', release, re.MULTILINE)
    if match is None:
        yield from _ask(binary)
        return
    yield Java(home, match[1])


def _ask(binary: Path) -> Iterator[Java]:
    """Start it and ask: the only way to see through the shims of macOS, jenv or asdf to the real home."""
    command = [str(binary), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (\d\S*)$", answer.stderr, re.MULTILINE)
    if answer.returncode == 0 and home and version:
        yield Java(Path(home[1].strip()), version[1])


def _apt_package() -> str:
    """The first of our packages that this release of the distribution has, as far as apt knows yet."""
    for package in APT_PACKAGES:
        package_answer = subprocess.run(["apt-cache", "show", package], capture_output=True, check=False)
        if package_answer.returncode == 0 and package_answer.stdout:
            return package
    return APT_PACKAGES[0]


def install() -> Java:
    """Install a Java with apt-get, as root or through a sudo that asks nothing; else raise with what to type."""
    prefix = _may_install()
    if prefix is None:
        return find()
    apt_get = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]
    _run([*apt_get, "update"])
    _run([*apt_get, "install", "-y", "--no-install-recommends", _apt_package()])
    return find()


def _may_install() -> list[str] | None:
    """What to put before a command that needs root, or None when we may not, or could not, become it."""
    if not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if not shutil.which("sudo"):
        return None
    sudo_answer = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    return ["sudo", "-n"] if sudo_answer.returncode == 0 else None


def _run(command: list[str]) -> None:
    """Run one installing command in the open; a person should see what is done to their machine."""
    say(f"+ {' '.join(command)}")
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise Environment(
            f"`{' '.join(command)}` failed with exit code {done.returncode}", hint=f"Type: {how_to_install()}"
        )


def say(text: str) -> None:
    """A line for the person who waits; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def report(error: StrandError) -> int:
    """Print an error as the command line does, and return its exit code."""
    say(f"error[{error.code}]: {error.message}")
    if error.hint:
        say(f"hint: {error.hint}")
    return error.exit_code


def find_or_install() -> Java:
    """A Java that suits; where there is none, one is installed if that may be done."""
    try:
        return find()
    except Environment as error:
        say(f"{error.message}; installing one")
        return install()
