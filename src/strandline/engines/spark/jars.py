"""The jars that Spark needs beside its own: resolved once, checked, and kept.

Spark can fetch them itself at every start (`spark.jars.packages`), but that costs about six seconds each time, checks
nothing, and looks into `~/.m2` and `~/.ivy2` first, where a half-finished download of another tool fails it for good.
So they are fetched once, with the Ivy that PySpark ships and with a home and cache of Ivy's that no other tool uses,
are compared with `jars.lock`, and only then renamed into our cache folder: a killed set-up leaves no jar rather than a
wrong one, and two at the same time end with the same files.

A jar that was verified has a stamp beside it with its size and time, so that a start does not hash 60 MB again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from strandline.engines.spark import java
from strandline.errors import BadRequest, Damaged, Environment, StrandError

LOCK_FILE = Path(__file__).with_name("jars.lock")
FETCH_TIMEOUT_S = 900
ABANDONED_AFTER_S = 2 * FETCH_TIMEOUT_S

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Jar:
    """One pinned jar."""

    organisation: str
    name: str
    revision: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """Its name in the cache folder."""
        return f"{self.name}-{self.revision}.jar"


def pinned() -> tuple[Jar, ...]:
    """The jars of `jars.lock`."""
    lines = (line.split() for line in LOCK_FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return tuple(_jar(*line) for line in lines if line)


def _jar(sha256: str, size_bytes: str, coordinates: str) -> Jar:
    organisation, name, revision = coordinates.split(":")
    return Jar(organisation, name, revision, sha256, int(size_bytes))


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """Where what can be fetched again is kept: $STRAND_CACHE_DIR, else the platform's cache folder."""
    env = os.environ if env is None else env
    if env.get("STRAND_CACHE_DIR"):
        return Path(env["STRAND_CACHE_DIR"]).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "strandline"
    base = Path(env.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (base if base.is_absolute() else Path.home() / ".cache") / "strandline"


def resolve(progress: Progress | None = None) -> tuple[Path, ...]:
    """The verified jars, in the order of `jars.lock`; what is missing is fetched first."""
    return keep(pinned(), cache_dir() / "jars", progress)


def keep(jars: Sequence[Jar], folder: Path, progress: Progress | None = None) -> tuple[Path, ...]:
    """These jars in a folder, verified; what is missing is fetched first."""
    missing = [jar for jar in jars if not _is_good(folder / jar.file_name, jar)]
    if missing:
        _fetch_all(missing, folder, progress or (lambda _: None))
    return tuple(folder / jar.file_name for jar in jars)


def _is_good(path: Path, jar: Jar) -> bool:
    """Whether the jar is there and verified. One that is there and differs is an error: we never left it like that."""
    try:
        stamp = _stamp_of(path, jar)
    except OSError:  # not there, or not to be seen; then fetching says why
        return False
    if _recorded(path) != stamp:
        _verify(path, jar)
        with suppress(OSError):  # a read-only cache works too, only slower
            _record(path, stamp)
    return True


def _stamp_of(path: Path, jar: Jar) -> dict[str, object]:
    status = path.stat()
    return {"sha256": jar.sha256, "size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _stamp_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.verified")


def _recorded(path: Path) -> object:
    try:
        return json.loads(_stamp_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _record(path: Path, stamp: dict[str, object]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    partial.write_text(json.dumps(stamp), encoding="utf-8")
    partial.replace(_stamp_file(path))


def _verify(path: Path, jar: Jar) -> None:
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != jar.sha256:
        raise Damaged(
            f"{path} is not the {jar.name} {jar.revision} that we know: sha256 is {actual}, expected {jar.sha256}",
            hint=f"Delete {path} and run the same command again. If it happens twice, your network replaces it.",
            expected=jar.sha256,
            actual=actual,
        )


def _fetch_all(jars: list[Jar], folder: Path, progress: Progress) -> None:
    runtime = java.find()
    ivy = _ivy_jar()
    with _workspace(folder) as workspace:
        for number, jar in enumerate(jars, 1):
            progress(f"fetching jar {number} of {len(jars)}: {jar.file_name} ({jar.size_bytes / 1e6:.0f} MB)")
            fetched = _fetch(jar, runtime, ivy, workspace)
            _verify(fetched, jar)
            target = folder / jar.file_name
            if not _is_good(target, jar):  # another process may have been faster
                fetched.chmod(0o644)
                fetched.replace(target)
                _record(target, _stamp_of(target, jar))


@contextmanager
def _workspace(folder: Path) -> Iterator[Path]:
    """A folder of our own on the cache's file system, so that the last step is a rename."""
    try:
        make_cache_folder(folder)
        for left in folder.parent.glob("fetch-*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > ABANDONED_AFTER_S:
                    shutil.rmtree(left)
        workspace = tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent)
    except OSError as error:
        raise Environment(
            f"can't write to the cache folder {folder.parent}: {error.strerror}",
            hint="Set STRAND_CACHE_DIR to a folder that you can write to.",
        ) from error
    with workspace as path:
        yield Path(path)


def make_cache_folder(folder: Path) -> None:
    """A folder of the cache, and the cache: whatever the umask is, no other user can put a class in there."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(0o755, exist_ok=True)


def _ivy_jar() -> Path:
    """PySpark's Ivy; PySpark is not imported for it, because that takes a second."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(place).glob("jars/ivy-*.jar")):
            return path
    raise Environment(
        "PySpark is not installed, or is without its jars", hint="Type: pip install --force-reinstall pyspark"
    )


def _fetch(jar: Jar, runtime: java.Java, ivy: Path, workspace: Path) -> Path:
    command = _ivy_command(jar, runtime, ivy, workspace, os.environ)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _unreachable(jar, f"no answer within {FETCH_TIMEOUT_S} s") from error
    fetched = workspace / "out" / jar.file_name
    if done.returncode != 0 or not fetched.is_file():
        raise _unreachable(jar, _reason(done.stdout + done.stderr))
    return fetched


def _ivy_command(jar: Jar, runtime: java.Java, ivy: Path, workspace: Path, env: Mapping[str, str]) -> list[str]:
    # ivy.home: the built-in settings look into its `local` and `shared` folders before the network.
    command = [str(runtime.home / "bin" / "java"), f"-Divy.home={workspace / 'ivy'}", *_proxy_options(env)]
    command += ["-jar", str(ivy), "-cache", str(workspace / "ivy" / "cache")]
    if env.get("STRAND_IVY_SETTINGS"):
        command += ["-settings", str(_settings_file(env["STRAND_IVY_SETTINGS"]))]
    command += ["-notransitive", "-m2compatible", "-dependency", jar.organisation, jar.name, jar.revision]
    return [*command, "-retrieve", f"{workspace / 'out'}/[artifact]-[revision].[ext]", "-types", "jar", "bundle"]


def _settings_file(name: str) -> Path:
    path = Path(name).expanduser().absolute()
    if not path.is_file():
        raise BadRequest(
            f"$STRAND_IVY_SETTINGS names {path}, which is not a file", hint="Name an ivysettings.xml file."
        )
    return path


def _proxy_options(env: Mapping[str, str]) -> list[str]:
    """The proxy that pip and uv take from the environment, told to Java, which does not look there."""
    options: list[str] = []
    for scheme in ("http", "https"):
        url = env.get(f"{scheme}_proxy") or env.get(f"{scheme.upper()}_PROXY") or ""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    return options


def _reason(output: str) -> str:
    """The line of Ivy's long report that says why."""
    for pattern in (r"Server access error.*", r"unknown host.*", r".*: not found", r".*(?:Exception|[Ee]rror).*"):
        match = re.search(pattern, output)
        if match:
            return match[0].strip(" \t:")
    return (output.strip().splitlines() or ["Ivy said nothing"])[-1]


def _unreachable(jar: Jar, reason: str) -> Environment:
    return Environment(
        f"can't fetch {jar.organisation}:{jar.name}:{jar.revision}: {reason}",
        hint="It needs the network once: check the connection (and HTTPS_PROXY) and run the same command again."
        " Behind a mirror, set STRAND_IVY_SETTINGS to an ivysettings.xml that names it.",
    )


def main() -> int:
    """Resolve the jars and print their paths."""
    try:
        paths = resolve(progress=java.say)
    except StrandError as error:
        return java.report(error)
    print("\n".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
