"""What a user meets first: the package's exports, and commands that start without Spark."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.create import create
from strandline.lake import operations
from tests.kit import environment

RUN = """
import sys
from pathlib import Path
from strandline.cli.main import run
try:
    code = run(sys.argv[2:], own_process=True)
finally:
    Path(sys.argv[1]).write_text(" ".join(name for name in ("pyspark", "py4j") if name in sys.modules))
sys.exit(code)
"""

HELPS = """
import os, sys
import typer
from strandline.cli.app import app
from strandline.cli.session import hoist

strand = typer.main.get_command(app)

def commands(command, words):
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, [*words, name])

def help_of(words):
    strand(args=[*words, "--help"], prog_name="strand", standalone_mode=False, obj=hoist([])[0])
    sys.stdout.flush()

answers = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
help_of(["append"])  # what all of them need is imported once
for words in commands(strand, []):
    child = os.fork()  # each in a process of its own: none has the imports of another
    if child:
        assert os.waitpid(child, 0)[1] == 0, words
        continue
    help_of(words)
    loaded = [name for name in sys.argv[1:] if name in sys.modules]
    os.write(answers, " ".join([*words, ":", *loaded, os.linesep]).encode())
    os._exit(0)
"""


@pytest.fixture
def strand(tmp_path: Path) -> Any:
    """Run a command in a process of its own: its exit code, its output, and the heavy libraries that it imported."""

    def run(*arguments: str, stdin: str = "", code: str = RUN) -> tuple[int, str, str]:
        loaded = tmp_path / "loaded"
        done = subprocess.run(
            [sys.executable, "-c", code, str(loaded), *arguments],
            input=stdin,
            env=environment(STRAND_LAKE=str(tmp_path / "lake")),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr, loaded.read_text()

    return run


def test_help_append_and_sql_start_without_spark(strand: Any, tmp_path: Path) -> None:
    """Capture and queries work where there is no Java, and a command does not wait for what it does not use."""
    with create(tmp_path / "lake") as lake:
        lake.create_table("messages", {"id": "string"})
    code, said, loaded = strand("--help")
    assert (code, loaded) == (0, "") and "append" in said
    code, said, loaded = strand("append", "messages", stdin='{"id": "1"}\n')
    assert (code, loaded) == (0, ""), said
    code, said, loaded = strand("sql", "select id from messages", "--json")
    assert (code, loaded) == (0, ""), said
    assert '"1"' in said


def test_a_lake_is_opened_without_arrow(tmp_path: Path) -> None:
    """A short query is over before PyArrow would be imported: classes of results bring nothing heavy along."""
    create(tmp_path / "lake").close()
    code = (
        "import sys, strandline; strandline.open(sys.argv[1], read_only=True).view();"
        "print([name for name in ('pyarrow', 'numpy', 'pyspark', 'fastapi') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "lake")], env=environment(), capture_output=True, check=True
    )
    assert done.stdout.decode() == "[]\n"


def test_an_import_of_spark_is_found(strand: Any) -> None:
    _, _, loaded = strand("--help", code=RUN.replace("import sys", "import pyspark, sys", 1))
    assert loaded == "pyspark py4j"


def imports_of_helps(*libraries: str) -> dict[str, set[str]]:
    """Every command, with those of these libraries that its help imports."""
    done = subprocess.run(
        [sys.executable, "-c", HELPS, *libraries], env=environment(), capture_output=True, text=True, check=True
    )
    pairs = [line.split(":") for line in done.stdout.splitlines()]
    return {words.strip(): set(loaded.split()) for words, loaded in pairs}


def test_the_help_of_a_command_waits_for_no_library() -> None:
    """Only what an operation declares is read together with what it works with, and that is never Spark."""
    imports = imports_of_helps(
        "pyspark", "py4j", "pandas", "fastapi", "pyiceberg", "duckdb", "sqlalchemy", "pyarrow", "numpy"
    )
    assert {"", "compact", "fold", "table create", "sink add"} <= imports.keys()
    for name in operations.listed():
        imports[name] -= {"duckdb", "sqlalchemy", "pyarrow", "numpy"}
    assert {words: loaded for words, loaded in imports.items() if loaded} == {}


def signatures(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """An exported function, or an exported class's public methods and how it is made."""
    if not inspect.isclass(value):
        yield name, value
        return
    for member, found in vars(value).items():
        if member == "__init__" or not member.startswith("_"):
            function = found.fget if isinstance(found, property) else inspect.unwrap(getattr(found, "__func__", found))
            if inspect.isfunction(function):
                yield f"{name}.{member}", function


def untyped(exports: dict[str, Any]) -> list[str]:
    """Parameters and returns without a type, and things without a docstring."""
    found = []
    for export, value in exports.items():
        if not inspect.getdoc(value) or value.__doc__ is None:
            found.append(f"{export} has no docstring")
        for name, function in signatures(export, value):
            signature = inspect.signature(function)
            parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
            found += [f"{name}({one.name}) has no type" for one in parameters if one.annotation is one.empty]
            if signature.return_annotation is signature.empty:
                found.append(f"{name} returns something without a type")
            if function.__doc__ is None and not name.endswith("__init__"):
                found.append(f"{name} has no docstring")
    return found


def test_what_the_package_exports_is_typed_and_documented() -> None:
    """The public API is what `__all__` names, and nothing else is promised."""
    assert list(strandline.__all__) == sorted(strandline.__all__)
    assert untyped({name: getattr(strandline, name) for name in strandline.__all__}) == []


def test_type_checkers_are_told_that_the_package_has_types() -> None:
    """Without the marker a user's mypy takes every annotation here for Any."""
    assert resources.files("strandline").joinpath("py.typed").is_file()


def test_an_export_without_types_is_found() -> None:
    class Odd:
        def method(self, value):  # type: ignore[no-untyped-def]
            return value

    assert len(untyped({"Odd": Odd})) == 4
