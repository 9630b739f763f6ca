"""The wheel: what is in it, and that it works where nothing of this folder is.

The environment that it is installed into shares the libraries of the one that runs the tests, without their Strandline,
so that nothing is fetched. `make wheel` runs these tests on what it has built (`STRAND_TEST_WHEEL`).
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest

from tests.docs.test_readme import README, section, steps_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "strandline"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one that was built, else one that is built here."""
    built = os.environ.get("STRAND_TEST_WHEEL")
    if built:
        return ROOT / built
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    shared = folder / "shared"
    shared.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "strandline" not in entry.name and entry.suffix != ".pth" and entry.name not in ("pip", "setuptools"):
            (shared / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "shared.pth").write_text(f"{shared}\n")
    return python.parent


def run(command: list[str | Path], folder: Path, stdin: str = "") -> str:
    """What a command prints, run elsewhere and without anything of ours in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("STRAND_", "PYTHON"))}
    done = subprocess.run(
        command, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command} printed\n{done.stdout}{done.stderr}"
    return done.stdout


def test_everything_that_the_package_needs_is_in_it(wheel: Path) -> None:
    """Every file below `src/strandline`: the list of jars, Spark's log settings and `py.typed` too; and no test."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    needed = {
        f"strandline/{path.relative_to(SOURCE)}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == needed
    assert {"strandline/engines/spark/jars.lock", "strandline/py.typed"} < names


def test_both_names_of_the_command_are_in_it(wheel: Path) -> None:
    """`strand`, and `strandline` where another program has that name."""
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        text = archive.read(file).decode()
    assert re.findall(r"^(\w+) = (\S+)$", text, re.MULTILINE) == [
        ("strand", "strandline.cli.main:main"),
        ("strandline", "strandline.cli.main:main"),
    ]


def test_every_library_that_is_imported_comes_with_it(wheel: Path) -> None:
    """By itself, or by one that comes with it: what only a developer has is not there for a user."""
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        declared = message_from_bytes(archive.read(file)).get_all("Requires-Dist") or []
    pending, come = [_plain(requirement) for requirement in declared if "extra ==" not in requirement], set()
    while pending:
        name = pending.pop()
        if name not in come:
            come.add(name)
            pending += [_plain(requirement) for requirement in _requirements(name) if "extra ==" not in requirement]
    optional = {_plain(requirement) for requirement in declared if "extra ==" in requirement}
    packages = metadata.packages_distributions()
    for library in sorted(_imported() - set(sys.stdlib_module_names) - {"strandline"}):
        names_of_library = {_plain(name) for name in packages.get(library, [library])}
        assert names_of_library & (come | optional), f"{library} does not come with it"


def _requirements(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # of another platform
        return []


def _plain(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;(]", requirement, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


def _imported() -> set[str]:
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(str(node.module).partition(".")[0])
    return names


def test_it_works_where_nothing_of_this_folder_is(installed: Path, tmp_path: Path) -> None:
    """Both names, and the module; a lake is made, a row appended and asked for."""
    for command in ([installed / "strand"], [installed / "strandline"], [installed / "python", "-m", "strandline"]):
        assert run([*command, "--version"], tmp_path).startswith("strandline 0."), command
    strand = installed / "strand"
    run([strand, "init", "lake"], tmp_path)
    lake = tmp_path / "lake"
    run([strand, "table", "create", "messages", "--columns", "id:string,body:string?", "--row-key", "id"], lake)
    run([strand, "append", "messages"], lake, '{"id": "1", "body": "hello"}\n')
    assert run([strand, "sql", "select * from messages", "--format", "csv"], lake).splitlines() == [
        "id,body",
        "1,hello",
    ]
    where = run([installed / "python", "-c", "import strandline; print(strandline.__file__)"], lake)
    assert str(installed.parent) in where


def test_the_readmes_program_runs_in_ones_own_project(installed: Path, tmp_path: Path) -> None:
    """What README.md shows to those who import it."""
    (step,) = (
        step_of_section
        for step_of_section in steps_of(*section("In your own project"))
        if step_of_section.language == "python"
    )
    program = tmp_path / "program.py"
    program.write_text(step.code)
    assert run([installed / "python", program], tmp_path).splitlines() == list(step.shown)
    assert f"strandline-{metadata.version('strandline')}-py3-none-any.whl" in README
