"""Who may speak SQL, and who may write Iceberg."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from tests.structure.source import Module, calls, package, parse, texts

SQL = re.compile(
    r"\s*(?:SELECT\b.|INSERT\s+INTO\b|UPDATE\s+\S+\s+SET\b|DELETE\s+FROM\b|MERGE\s+INTO\b|PRAGMA\s|ALTER\s+TABLE\b|"
    r"(?:CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?(?:TEMP\s+|TEMPORARY\s+|UNIQUE\s+)?(?:TABLE|VIEW|INDEX|NAMESPACE|SCHEMA)\b|"
    r"WITH\s+\S+\s+AS\s*\(|CALL\s+\S+\.|BEGIN\s+IMMEDIATE)",
    re.IGNORECASE | re.DOTALL,
)
SPEAKS_SQL = ("ledger", "engines", "views", "rules")
"""A kind of rule says beside how it judges rows what it asks of a relation, so rules speak it too."""

WRITERS = ("engines.spark.stage", "engines.spark.iceberg", "engines.spark.maintain", "engines.spark.copy")
"""The lake's own tables are written in the first three; the last writes tables in other catalogs."""
WRITING_CALLS = frozenset(
    {
        "writeTo", "save", "saveAsTable", "insertInto", "overwritePartitions", "manageSnapshots", "createBranch",
        "replaceBranch", "removeBranch", "fastForwardBranch", "registerTable", "dropTable", "createTable",
        "newTransaction", "newAppend", "newFastAppend", "newRewrite", "newOverwrite", "newDelete", "newRowDelta",
        "expireSnapshots", "updateProperties", "updateSchema", "createNamespace",
    }
)  # fmt: skip
WRITING_SQL = re.compile(
    r"\s*(?:INSERT\s+(?:INTO|OVERWRITE)|MERGE\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|ALTER\s+TABLE|CALL\s+\S+\.|"
    r"(?:CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?(?:TABLE|NAMESPACE|SCHEMA))\b",
    re.IGNORECASE,
)


def stray_sql(modules: Iterable[Module]) -> list[str]:
    """SQL outside the rooms that speak it; docstrings are for people."""
    return [
        module.at(node, f"SQL outside {', '.join(SPEAKS_SQL)}: {text.strip()[:60]!r}")
        for module in modules
        if not module.within(*SPEAKS_SQL)
        for text, node in texts(module)
        if SQL.match(text)
    ]


def stray_iceberg_writes(modules: Iterable[Module]) -> list[str]:
    """Calls and statements that change Iceberg outside the files that may."""
    found = []
    for module in modules:
        if module.within(*WRITERS):
            continue
        for name, call in calls(module):
            # A list's append takes something; that of Spark's writer takes nothing.
            if name in WRITING_CALLS or (name == "append" and not call.args and not call.keywords):
                found.append(module.at(call, f"{name}() writes Iceberg outside {' and '.join(WRITERS)}"))
        if module.within("ledger", "engines.duck"):
            continue  # statements of other databases
        found += [
            module.at(node, f"a statement that writes Iceberg outside {' and '.join(WRITERS)}: {text.strip()[:60]!r}")
            for text, node in texts(module)
            if WRITING_SQL.match(text)
        ]
    return found


def test_sql_is_spoken_in_its_rooms() -> None:
    """An operation says what it wants in words; what that is in SQL is the business of the ledger or of an engine."""
    assert stray_sql(package()) == []


def test_iceberg_is_written_in_three_files() -> None:
    """What can change a table is read in one sitting: nothing else moves a ref, adds a row or drops a name."""
    assert stray_iceberg_writes(package()) == []


@pytest.mark.parametrize(
    "line",
    [
        "q = 'SELECT 1'",
        "q = f'select _seq from {t}'",
        "q = f'''\n  INSERT INTO {t} VALUES (1)'''",
        "run('PRAGMA synchronous')",
        "run(f'CREATE TEMP VIEW loaded AS {rows}')",
        "run('with a as (select 1) select * from a')",
    ],
)
def test_stray_sql_is_found(line: str) -> None:
    assert len(stray_sql([parse("strandline.operations.x", line)])) == 1
    assert stray_sql([parse("strandline.ledger.x", line)]) == []


@pytest.mark.parametrize(
    "line",
    ["'''SELECT in a docstring'''", "hint = 'Update strandline, or delete the file.'", "x = 'Create a lake first.'"],
)
def test_prose_is_not_sql(line: str) -> None:
    assert stray_sql([parse("strandline.operations.x", line)]) == []


@pytest.mark.parametrize(
    "line",
    [
        "rows.writeTo(t).append()",
        "rows.write.format('iceberg').save(t)",
        "table.manageSnapshots()",
        "session.sql(f'CREATE TABLE IF NOT EXISTS {t} (a int)')",
        "session.sql(f'CALL {c}.system.expire_snapshots()')",
        "session.sql(f'merge into {t} using s')",
    ],
)
def test_a_stray_write_is_found(line: str) -> None:
    assert stray_iceberg_writes([parse("strandline.engines.spark.read", line)])
    assert stray_iceberg_writes([parse("strandline.engines.spark.stage", line)]) == []


def test_a_lists_append_is_no_write() -> None:
    assert stray_iceberg_writes([parse("strandline.lake", "rows.append(1)\nlake.append(table, rows)")]) == []
