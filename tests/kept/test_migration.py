"""A ledger of format 1 becomes one of format 2: whole or not at all, and like a new one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, inspect

from strandline import config
from strandline.errors import NewerFormat, RecoveryRequired
from strandline.lake import Lake
from strandline.ledger import ledger as ledgers
from strandline.ledger.database import migrations, schema
from strandline.ledger.ledger import Ledger
from tests.kept.unpacking import Kept, copy_rows, unpacked
from tests.kit import in_ledger, python_process, read_only_fingerprint, strand, wait_until
from tests.postgres import Server


def formats(root: Path) -> int:
    """The format that a ledger says it has, read past everything that migrates it."""
    return int(in_ledger(root, "select format from counter")[0][0])


def shape(url: str) -> dict[str, Any]:
    """All that a database says of its tables: columns with types, nullability and defaults, keys and indexes."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    found: dict[str, Any] = {}
    with engine.connect() as conn:
        look = inspect(conn)
        for table in sorted(set(look.get_table_names()) & schema.metadata.tables.keys()):
            found[table] = {
                "columns": {
                    column["name"]: (str(column["type"]), column["nullable"], column["default"])
                    for column in look.get_columns(table)
                },
                "key": look.get_pk_constraint(table)["constrained_columns"],
                "references": sorted(
                    (one["constrained_columns"], one["referred_table"], one["referred_columns"])
                    for one in look.get_foreign_keys(table)
                ),
                "unique": sorted(one["column_names"] for one in look.get_unique_constraints(table)),
                "indexes": sorted(
                    (one["name"], one["column_names"], bool(one["unique"])) for one in look.get_indexes(table)
                ),
            }
    return found


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The address of a new ledger, beside one that has this address."""

    def make(beside: str) -> str:
        if beside.startswith("sqlite"):
            return f"sqlite:///{tmp_path}/new.db"
        server: Server = request.getfixturevalue("postgres")
        return server.new_database()

    return make


def test_a_migrated_ledger_is_like_a_new_one(kept: Kept, new_url: Callable[[str], str]) -> None:
    """The same tables, with the same columns, types, nullability, defaults, keys and indexes."""
    for root in kept.lakes:
        url = config.load(root).ledger
        assert formats(root) == 1
        Ledger.open(url).close()
        assert formats(root) == schema.FORMAT
        fresh = new_url(url)
        Ledger.create(fresh).close()
        assert shape(url) == shape(fresh)


def test_a_migrated_lake_gets_a_generation_once(kept: Kept) -> None:
    """Whoever opens the lake again finds the same."""
    url = config.load(kept.root).ledger
    Ledger.open(url).close()
    ((first,),) = in_ledger(kept.root, "select generation from counter")
    Ledger.open(url).close()
    assert in_ledger(kept.root, "select generation from counter") == [(first,)] and first


def test_a_read_only_open_says_that_a_lake_must_be_migrated_and_changes_nothing(kept: Kept) -> None:
    """It names the command that does; then it opens."""
    before = read_only_fingerprint(kept.folder)
    rows = [in_ledger(root, "select * from counter") for root in kept.lakes]
    for root in kept.lakes:
        with pytest.raises(RecoveryRequired, match="format 1") as refused:
            Lake(root, read_only=True)
        assert "strand recover" in (refused.value.hint or "")
        assert strand(root, "--json", "status").error["code"] == "recovery_required"
    assert [in_ledger(root, "select * from counter") for root in kept.lakes] == rows
    assert read_only_fingerprint(kept.folder) == before
    Ledger.open(config.load(kept.root).ledger).close()
    Lake(kept.root, read_only=True).close()


def test_a_migration_that_dies_leaves_the_older_format(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its last statement, and between two of them; the next open migrates."""
    url = config.load(kept.root).ledger
    before, rows = shape(url), in_ledger(kept.root, "select * from counter")
    step, added = migrations.MIGRATIONS[1], migrations._add

    def all_but_the_commit(conn: Any) -> None:
        step(conn)
        raise KeyboardInterrupt

    def half(conn: Any, column: Any) -> None:
        added(conn, column)
        if column is migrations.COLUMNS_OF_2[len(migrations.COLUMNS_OF_2) // 2]:
            raise KeyboardInterrupt

    for target, name, dies in ((migrations.MIGRATIONS, 1, all_but_the_commit), (migrations, "_add", half)):
        with monkeypatch.context() as patch:
            patch.setitem(target, name, dies) if isinstance(target, dict) else patch.setattr(target, name, dies)
            with pytest.raises(KeyboardInterrupt):
                Ledger.open(url)
        assert (shape(url), in_ledger(kept.root, "select * from counter")) == (before, rows)
    Ledger.open(url).close()
    assert formats(kept.root) == schema.FORMAT


OPEN = """
import sys
from strandline.ledger.ledger import Ledger
print("ready", flush=True)
sys.stdin.readline()
ledger = Ledger.open(sys.argv[1])
print(ledger.format(), flush=True)
ledger.close()
"""


def test_processes_that_migrate_at_once_do_it_once(kept: Kept) -> None:
    """The others wait for the first, and find the new format."""
    url = config.load(kept.root).ledger
    openers = [python_process(OPEN, url) for _ in range(3)]
    for opener in openers:
        assert opener.stdout is not None and opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("\n")
        opener.stdin.flush()
    done = [opener.communicate(timeout=60) for opener in openers]
    assert [out.split() for out, _ in done] == [[str(schema.FORMAT)]] * 3, done
    assert formats(kept.root) == schema.FORMAT


def test_a_code_that_knows_only_the_older_format_refuses_a_migrated_lake(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which format it found and which it knows; so does a process that had the lake open all the time."""
    url = config.load(kept.root).ledger
    Ledger.open(url).close()
    monkeypatch.setattr(schema, "FORMAT", 1)
    with pytest.raises(NewerFormat, match="format 2"):
        Ledger.open(url)
    monkeypatch.undo()
    already_open = Ledger.open(url)
    monkeypatch.setattr(ledgers.schema, "FORMAT", 1)
    with pytest.raises(NewerFormat, match="format 2"), already_open.write():
        pass
    already_open.close()


def test_a_reader_in_the_way_of_a_migration_keeps_it_from_nothing(postgres: Server) -> None:
    """It has read one table and wants another that is being changed: Postgres ends one of them, and it is migrated."""
    with unpacked("whole", ledgers_alone=True) as kept, ThreadPoolExecutor(1) as pool:
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'heads'::regclass"
        for victim in ("migration", "reader"):
            url = postgres.new_database()
            copy_rows(kept.root, url)
            with psycopg.connect(url, autocommit=True) as reader:
                # Whoever waits longer than its deadlock_timeout is the one that is ended.
                reader.execute(f"SET deadlock_timeout = '{'60s' if victim == 'migration' else '10ms'}'")
                reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                reader.execute("SELECT count(*) FROM heads")
                migrating = pool.submit(lambda url=url: Ledger.open(url).close())
                name = url.rpartition("/")[2]
                wait_until(lambda name=name: postgres.execute(waiting, database=name)[0][0] > 0)
                try:
                    reader.execute("SELECT last_seq FROM counter")
                    ended = "migration"
                except psycopg.errors.DeadlockDetected:
                    ended = "reader"
                reader.execute("ROLLBACK")
                migrating.result(60)
            assert (ended, postgres.execute("SELECT format FROM counter", database=name)) == (
                victim,
                [(schema.FORMAT,)],
            )
