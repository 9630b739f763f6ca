"""The floors of the house: each room calls only rooms below it, and every library has its room."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.structure.source import PACKAGE, Module, imports, package, parse

FLOORS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("server",),
    ("worker",),
    ("testing",),
    ("",),  # the package itself: what a Python user imports
    ("copies",),
    ("clone",),
    ("create", "restore", "relocate"),
    ("lake",),
    ("backup",),
    ("trust", "clean_config"),
    ("reports",),
    ("sources", "graph"),
    ("sinks",),
    ("operations",),
    ("views",),
    ("rules",),
    ("engines",),
    ("ledger",),
    ("model",),
    (
        "actors",
        "config",
        "config_keys",
        "config_text",
        "errors",
        "failpoints",
        "json_types",
        "logs",
        "outages",
        "private",
        "redaction",
        "settings_text",
        "spans",
    ),
)
"""From the top. A room imports itself and what is on a lower floor; the leaves may import each other."""

FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
LEAVES = FLOORS[-1]
NEVER = {"engines": {"ledger"}}
"""Below, and still not to be known: an engine is given snapshots and files, and never asks who decided them."""

ONLY_IN = {
    "sqlalchemy": ("ledger",),
    "sqlite3": ("ledger",),
    "psycopg": ("ledger",),
    "pyspark": ("engines.spark",),
    "py4j": ("engines.spark",),
    "duckdb": ("engines.duck", "views"),
    "pyiceberg": (),
    "httpx": ("sinks",),
    "cronsim": ("sinks", "worker"),
    "typer": ("cli",),
    "rich": ("cli",),
    "fastapi": ("server",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "pydantic": ("server",),
    "prometheus_client": ("server", "worker", "reports.metrics"),
    "opentelemetry": ("spans",),
}
"""Where a library is used. Names that only a type checker reads don't count."""

IO = {
    "aiohttp", "boto3", "duckdb", "fcntl", "glob", "http", "httpx", "io", "os", "pathlib", "psycopg", "py4j",
    "pyiceberg", "pyspark", "requests", "shutil", "socket", "sqlalchemy", "sqlite3", "subprocess", "tempfile", "urllib",
}  # fmt: skip
ARROW_IO = ("pyarrow.csv", "pyarrow.dataset", "pyarrow.fs", "pyarrow.json", "pyarrow.orc", "pyarrow.parquet")


def resolved(target: str, known: set[str]) -> str | None:
    """The module of ours that an import names, or None when it is a library's."""
    while target not in known and "." in target:
        target = target.rpartition(".")[0]
    return target if target in known else None


def out_of_order(modules: Iterable[Module], known: set[str]) -> list[str]:
    """Imports that go up, or sideways."""
    found = []
    for module in modules:
        if module.room not in FLOOR:
            found.append(module.at(1, f"the room {module.room!r} has no floor; give it one in FLOORS"))
            continue
        for one in imports(module):
            target = resolved(one.target, known)
            if target is None:
                if one.library == PACKAGE or one.target == "?":
                    found.append(module.at(one.line, f"can't tell what {one.target!r} is"))
                continue
            room = parse(target, "").room
            sideways = FLOOR[room] == FLOOR[module.room] and room not in LEAVES
            if room != module.room and (FLOOR[room] < FLOOR[module.room] or sideways):
                found.append(module.at(one.line, f"{module.room or PACKAGE} imports {target}, which is not below it"))
            elif room in NEVER.get(module.room, ()):
                found.append(module.at(one.line, f"{module.room} must not know {target}"))
    return found


def misplaced_libraries(modules: Iterable[Module]) -> list[str]:
    """Libraries outside the room that they belong to."""
    return [
        module.at(one.line, f"{one.library} belongs into {' and '.join(ONLY_IN[one.library]) or 'no room'}")
        for module in modules
        for one in imports(module)
        if one.library in ONLY_IN and not one.typing and not module.within(*ONLY_IN[one.library])
    ]


def foreign_to_the_ledger(modules: Iterable[Module]) -> list[str]:
    """Spark, Iceberg or DuckDB in the ledger, also if only for a type checker."""
    return [
        module.at(one.line, f"the ledger must not know {one.target}")
        for module in modules
        for one in imports(module)
        if module.within("ledger") and one.library in {"pyspark", "py4j", "duckdb", "pyiceberg"}
    ]


def effects_in_the_model(modules: Iterable[Module]) -> list[str]:
    """Libraries in `model/` that reach out of the process."""
    return [
        module.at(one.line, f"the model does no I/O, and {one.target} does")
        for module in modules
        for one in imports(module)
        if module.within("model")
        and not one.target.startswith("urllib.parse")  # text to text
        and (one.library in IO or one.target.startswith(ARROW_IO))
    ] + [
        module.at(1, "the model opens files")
        for module in modules
        if module.within("model") and any(name in module.text for name in (" open(", "memory_map(", "OSFile("))
    ]


RULES_KNOW = ("model", "rules", "errors", "engines.duck.sandbox")
"""What rules are about, and how a name is quoted in the SQL that they ask of relations."""


def foreign_to_the_rules(modules: Iterable[Module]) -> list[str]:
    """Modules of ours that rules must not know: what they judge is handed to them."""
    return [
        module.at(line.line, f"rules are handed what they judge, and must not know {line.target}")
        for module in modules
        if module.within("rules")
        for line in imports(module)
        if line.library == PACKAGE and not line.target.startswith(tuple(f"{PACKAGE}.{room}" for room in RULES_KNOW))
    ]


def past_the_services(modules: Iterable[Module]) -> set[str]:
    """Commands that import the ledger or operations, or open a lake's ledger themselves."""
    return {
        module.name.rpartition(".")[2]
        for module in modules
        if module.within("cli")
        and (
            any(line.target.startswith((f"{PACKAGE}.ledger", f"{PACKAGE}.operations")) for line in imports(module))
            or "lake.ledger" in module.text
        )
    }


KNOWN = {module.name for module in package()}


def test_each_room_imports_only_rooms_below_it() -> None:
    """Imports in functions and for type checkers count: what is named there is known there."""
    assert out_of_order(package(), KNOWN) == []


def test_each_library_is_used_in_its_room() -> None:
    """SQL stays in the ledger and Spark in its engine, so that either can be understood, and changed, alone."""
    assert misplaced_libraries(package()) == []


def test_the_ledger_knows_no_engine() -> None:
    """It decides, and must be able to on a machine without Java."""
    assert foreign_to_the_ledger(package()) == []


def test_the_model_does_no_io() -> None:
    """Its functions are tested, and trusted, without a disk or a clock that somebody has to set up."""
    assert effects_in_the_model(package()) == []


def test_rules_know_no_lake() -> None:
    """They judge rows and relations that are handed in, so that others than today's can be."""
    assert foreign_to_the_rules(package()) == []


@pytest.mark.parametrize(
    "line", ["from strandline.ledger.ledger import MAIN", "from strandline.engines.duck import ranges"]
)
def test_rules_that_know_a_lake_are_noticed(line: str) -> None:
    assert len(foreign_to_the_rules([parse("strandline.rules.x", line)])) == 1


def test_a_command_asks_a_service() -> None:
    """A command parses, asks and prints, so that a route or a page need not write its use case again."""
    assert past_the_services(package()) == set()


@pytest.mark.parametrize(
    "line",
    [
        "from strandline.ledger.workers.jobs import x",
        "import strandline.operations.maintain.flush",
        "lake.ledger.read()",
    ],
)
def test_a_command_that_reaches_past_the_services_is_noticed(line: str) -> None:
    assert past_the_services([parse("strandline.cli.x", line)]) == {"x"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("strandline.model.x", "from strandline.ledger import tables"),
        ("strandline.ledger.x", "from strandline import lake"),
        ("strandline.ledger.x", "def f():\n    from strandline.engines import files"),
        ("strandline.views.x", "if TYPE_CHECKING:\n    from strandline.operations.maintain.flush import flush"),
        ("strandline.engines.x", "from strandline.ledger.ledger import MAIN"),
        ("strandline.engines.x", "import strandline.ledger.ledger"),
        ("strandline.operations.x", "import strandline as sl"),
        ("strandline.lake", "from strandline.cli.main import run"),
        ("strandline.errors", "from strandline.model.ids import new_id"),
        ("strandline.ledger.x", "from ..views import view"),
        ("strandline.ledger.x", "import importlib\nimportlib.import_module('strandline.lake')"),
        ("strandline.ledger.x", "import importlib\nimportlib.import_module(name)"),
        ("strandline.attic.x", "import os"),
    ],
)
def test_an_import_that_goes_up_is_found(name: str, line: str) -> None:
    assert len(out_of_order([parse(name, line)], KNOWN)) == 1


def test_an_import_that_goes_down_is_not() -> None:
    fine = "import os\nfrom strandline import config\nfrom strandline.model.ids import new_id\nfrom . import tables"
    assert out_of_order([parse("strandline.ledger.x", fine)], KNOWN) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("strandline.views.x", "from sqlalchemy import select"),
        ("strandline.operations.x", "def f():\n    from pyspark.sql import functions"),
        ("strandline.engines.duck.x", "import py4j.protocol"),
        ("strandline.lake", "import duckdb"),
        ("strandline.engines.spark.x", "import pyiceberg"),
    ],
)
def test_a_misplaced_library_is_found(name: str, line: str) -> None:
    assert len(misplaced_libraries([parse(name, line)])) == 1


def test_a_library_for_type_checkers_alone_is_not_misplaced() -> None:
    line = "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame"
    assert misplaced_libraries([parse("strandline.lake", line)]) == []
    assert len(foreign_to_the_ledger([parse("strandline.ledger.x", line)])) == 1


@pytest.mark.parametrize(
    "line", ["import pathlib", "from pyarrow import fs", "import pyarrow.parquet as pq", "with open(p) as f: pass"]
)
def test_io_in_the_model_is_found(line: str) -> None:
    assert len(effects_in_the_model([parse("strandline.model.x", line)])) == 1
