"""Copies of whole databases, taken while others write.

A SQLite file is copied by SQLite itself, page by page, as of one moment. Any other database is read through our own
tables in one snapshot, and written into a SQLite file with the same tables; the other way round, a backup is put into
an empty database. So a backup is the same file whatever it was taken from, and needs no tool of the database's.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection
from pathlib import Path

import orjson
from sqlalchemy import Connection, MetaData, func, insert, inspect, select, text

from strandline import private
from strandline.errors import Conflict, Damaged
from strandline.ledger.database import schema
from strandline.ledger.database.dialect import Database
from strandline.ledger.database.postgres import keep_as_it_is
from strandline.ledger.place import iceberg_catalog
from strandline.model.delivery.sinks import SinkSettings

ROWS_AT_ONCE = 200


def copy_ledger(database: Database, to: Path) -> None:
    """Copy a ledger into a new SQLite file."""
    _copy(database, schema.metadata, to)


def clean_copy(path: Path, in_clear: Callable[[str, SinkSettings], Collection[str]]) -> None:
    """Take settings out of a ledger's copy that `in_clear` names, by a sink's type and its settings.

    An older version stored secrets of sinks there.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        has_changed = False
        for table, key, join in (
            ("sinks", "sink_id", ""),
            ("deliveries", "delivery_id", " LEFT JOIN sinks USING (sink_id)"),
        ):
            query = f"SELECT {key}, {table}.settings, sinks.type FROM {table}{join}"
            for row_id, stored, type_ in connection.execute(query).fetchall():
                settings = orjson.loads(stored)
                names = in_clear(type_ or "", settings)
                if names:
                    kept = orjson.dumps({name: value for name, value in settings.items() if name not in names}).decode()
                    connection.execute(f"UPDATE {table} SET settings = ? WHERE {key} = ?", (kept, row_id))
                    has_changed = True
        if has_changed:
            connection.execute("VACUUM")  # what was overwritten is in unused pages
    finally:
        connection.close()


def copy_catalog(url: str, to: Path) -> bool:
    """Copy an Iceberg catalog into a new SQLite file; False when there is none yet."""
    path = _file_of(url)
    if path is not None and not path.exists():
        return False
    database = Database(url, read_only=True)
    try:
        with database.read() as conn:
            if not inspect(conn).has_table(iceberg_catalog.TABLES.name):
                return False
        _copy(database, iceberg_catalog.METADATA, to)
        return True
    finally:
        database.close()


def put(path: Path, metadata: MetaData, url: str) -> None:
    """Put a copy into an empty database."""
    source, target = Database(f"sqlite:///{path}", read_only=True), Database(url, read_only=False, create=True)
    try:
        with source.read() as old, target.write() as new:
            _refuse_used(new, metadata)
            metadata.create_all(new)
            if not target.is_sqlite and schema.batches.name in metadata.tables:
                keep_as_it_is(new, schema.batches.c.payload)
            _copy_rows(old, new, metadata)
    finally:
        source.close()
        target.close()


def put_ledger(path: Path, url: str) -> None:
    """Put a ledger's copy into an empty database."""
    put(path, schema.metadata, url)


def put_catalog(path: Path, url: str) -> None:
    """Put a catalog's copy into an empty database."""
    put(path, iceberg_catalog.METADATA, url)


def _copy(database: Database, metadata: MetaData, to: Path) -> None:
    if database.is_sqlite:
        _copy_file(database, to)
        return
    target = Database(f"sqlite:///{to}", read_only=False, create=True)
    try:
        with database.read() as old, target.write() as new:
            metadata.create_all(new)
            _copy_rows(old, new, metadata)
    finally:
        target.close()
    _one_file(to)


def _copy_file(database: Database, to: Path) -> None:
    """SQLite's own copy: one moment of the source, and its writers go on."""
    with database.read() as conn:
        source = conn.connection.dbapi_connection
        assert isinstance(source, sqlite3.Connection)
        private.create_file(to)
        new = sqlite3.connect(to)
        try:
            source.backup(new)
        finally:
            new.close()
    _one_file(to)


def _one_file(path: Path) -> None:
    """Without a WAL beside it, on the disk, and whole."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=DELETE")
        (verdict,) = connection.execute("PRAGMA quick_check").fetchone()
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    finally:
        connection.close()
    if verdict != "ok":
        raise Damaged(
            f"the copy of the database is damaged: {verdict}", hint="So may the original be: `strand doctor`."
        )
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _copy_rows(old: Connection, new: Connection, metadata: MetaData) -> None:
    for table in metadata.sorted_tables:
        rows = old.execution_options(yield_per=ROWS_AT_ONCE).execute(select(table))
        for chunk in rows.mappings().partitions(ROWS_AT_ONCE):
            new.execute(insert(table), [dict(row) for row in chunk])
    if new.dialect.name == "postgresql" and "audit" in metadata.tables:
        last = new.execute(select(func.max(schema.audit.c.audit_id))).scalar()
        if last is not None:
            new.execute(text("SELECT setval(pg_get_serial_sequence('audit', 'audit_id'), :last)"), {"last": last})


def refuse_used(url: str) -> None:
    """Conflict when a database that should be empty has a ledger or a catalog in it."""
    database = Database(url, read_only=True)
    try:
        with database.read() as conn:
            for metadata in (schema.metadata, iceberg_catalog.METADATA):
                _refuse_used(conn, metadata)
    finally:
        database.close()


def _refuse_used(conn: Connection, metadata: MetaData) -> None:
    used = [name for name in metadata.tables if inspect(conn).has_table(name)]
    if used:
        raise Conflict(
            f"the database already has the tables {', '.join(used[:3])}",
            kind="lake_exists",
            hint="Name an empty database; nothing was changed.",
            expected=None,
            actual=used[0],
        )


def _file_of(url: str) -> Path | None:
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
