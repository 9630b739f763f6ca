"""The class-data archive: the classes of a Spark start, as a JVM wants them in memory.

Most of the ten seconds until a first row go into reading some fifteen thousand classes out of three hundred jars. A
JVM can write down what it has read when it ends, and the next one maps that file. It silently ignores a file that was
made by another Java, or from other jars, or from the same ones in another place, so an archive's name is a digest of
all these, and one that fits nothing any more is removed when a new one is made.

Making it costs a JVM of its own and half a minute. `strand setup` does it, and a worker that finds none does it beside
its work; all other processes use what is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from strandline.engines.spark import jars, java
from strandline.errors import StrandError

# A JVM says on stdout what it thinks of an archive, and stdout is the user's.
QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
SUFFIX = ".jsa"
# Writing an archive recurses through the classes more deeply than a thread's usual stack allows.
_STACK = "-Xss4m"


def find() -> Path | None:
    """The archive that fits this Java and these jars, if it was made."""
    path = _folder() / f"{_digest(_made_from())}{SUFFIX}"
    return path if path.exists() else None


def options(using: Path | None) -> tuple[str, ...]:
    """What a JVM is told, to use an archive and to keep quiet about it."""
    return (*QUIET, f"-XX:SharedArchiveFile={using}") if using is not None else QUIET


def recording(into: Path) -> tuple[str, ...]:
    """What a JVM is told that shall write an archive when it ends."""
    return (*QUIET, _STACK, f"-XX:ArchiveClassesAtExit={into}")


def make() -> Path | None:
    """Make the archive unless it is there; None when another process is at it, or there is nowhere to put it."""
    with suppress(OSError), _alone() as alone:
        if not alone:
            return None
        if (archive := find()) is not None:
            return archive
        return _make()
    return None


@contextmanager
def made_meanwhile() -> Iterator[None]:
    """Let a process of its own make the archive, unless it is there, behind all other work and while the block runs."""
    if find() is not None:
        yield
        return
    command = ["nice", "-n", "19", sys.executable, "-m", __name__]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            yield
        finally:
            process.terminate()


def _make() -> Path | None:
    from strandline.engines.spark import training

    made_from = _made_from()
    final = _folder() / f"{_digest(made_from)}{SUFFIX}"
    with tempfile.TemporaryDirectory(prefix="making-", dir=_folder()) as workspace:
        partial = Path(workspace) / final.name
        training.run(Path(workspace), recording(partial))
        if not partial.exists():
            return None
        _about(final).write_text(json.dumps(made_from), encoding="utf-8")
        partial.chmod(0o644)
        partial.replace(final)
    _remove_outdated(keep=final)
    return final


def _remove_outdated(keep: Path) -> None:
    """Remove the archives of environments that are not there any more, or not as they were."""
    for path in _folder().glob(f"*{SUFFIX}"):
        if path != keep and not _still_fits(path):
            path.unlink(missing_ok=True)
            _about(path).unlink(missing_ok=True)


def _still_fits(path: Path) -> bool:
    try:
        made_from = json.loads(_about(path).read_text(encoding="utf-8"))
        return all(_stamp(Path(name)) == stamp for name, stamp in made_from["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _made_from() -> dict[str, object]:
    """Everything a JVM compares before it trusts an archive."""
    runtime = java.find()
    files = [runtime.home / "release", *_spark_jars(), *jars.resolve()]
    return {"java": [str(runtime.home), runtime.version], "files": [[str(path), _stamp(path)] for path in files]}


def _spark_jars() -> Sequence[Path]:
    spec = importlib.util.find_spec("pyspark")
    places = (spec.submodule_search_locations or []) if spec else []
    return [path for place in places for path in sorted(Path(place, "jars").glob("*.jar"))]


def _stamp(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _digest(made_from: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:32]


def _about(path: Path) -> Path:
    return path.with_suffix(".json")


def _folder() -> Path:
    return jars.cache_dir() / "archives"


@contextmanager
def _alone() -> Iterator[bool]:
    """Whether no other process makes an archive now. The lock goes with the process that holds it."""
    jars.make_cache_folder(_folder())
    with (_folder() / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def main() -> int:
    """Make the archive, and say where it is."""
    if find() is None:
        java.say("preparing Spark's start (half a minute, once)")
    try:
        made = make()
    except StrandError as error:
        return java.report(error)
    print(made or f"no archive was made in {_folder()}; Spark starts without, only slower")
    return 0


if __name__ == "__main__":
    sys.exit(main())
