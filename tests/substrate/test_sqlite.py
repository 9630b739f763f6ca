"""SQLite, as far as the ledger rests on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from strandline.lake import Lake
from strandline.ledger.database import schema


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    """Two connections to one file with a number in it."""
    path = tmp_path / "trial.db"
    reader, writer = (sqlite3.connect(path, isolation_level=None, timeout=0) for _ in range(2))
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE t AS SELECT 1 AS n")
    yield reader, writer
    reader.close()
    writer.close()


def number(connection: sqlite3.Connection) -> int:
    ((found,),) = connection.execute("SELECT n FROM t").fetchall()
    return int(found)


def test_an_explicit_begin_gives_every_read_the_same_snapshot(
    two: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    """Without it each SELECT has a snapshot of its own: a row moves between two reads of one view, or is in both."""
    reader, writer = two
    before = number(reader)
    writer.execute("UPDATE t SET n = 2")
    assert (before, number(reader)) == (1, 2)
    reader.execute("BEGIN")
    before = number(reader)
    writer.execute("UPDATE t SET n = 3")
    assert (before, number(reader)) == (2, 2)
    reader.execute("COMMIT")
    assert number(reader) == 3


def test_the_drivers_own_transactions_do_not_cover_reads(tmp_path: Path) -> None:
    """Why we say BEGIN ourselves: by default the driver begins at the first write, and reads before it are loose."""
    with sqlite3.connect(tmp_path / "trial.db") as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS n")
        connection.commit()
        number(connection)
        assert not connection.in_transaction


def test_a_reader_that_turns_writer_can_fail_at_its_first_write(
    two: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    """Why writes begin with BEGIN IMMEDIATE: no timeout helps a transaction whose snapshot is already stale."""
    late, quick = two
    late.execute("BEGIN")
    number(late)
    quick.execute("UPDATE t SET n = 2")
    with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
        late.execute("UPDATE t SET n = 3")
    assert caught.value.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"


def test_a_ledger_read_is_one_snapshot_through_sqlalchemy_too(lake: Lake) -> None:
    """The same through the whole stack: a new SQLAlchemy may begin transactions in its own way."""
    last = select(schema.counter.c.last_seq)
    with lake.ledger.read() as reader:
        before = reader.execute(last).scalar_one()
        with lake.ledger.write() as txn:
            txn.conn.execute(update(schema.counter).values(last_seq=before + 7))
        assert reader.execute(last).scalar_one() == before
    with lake.ledger.read() as reader:
        assert reader.execute(last).scalar_one() == before + 7


@pytest.mark.sqlite_only
def test_a_ledger_connection_writes_through_to_the_disk(lake: Lake) -> None:
    """An ack means that the bytes are on the disk: WAL with synchronous=FULL (2); NORMAL (1) loses the last ones."""
    with lake.ledger.write() as txn:
        found = [txn.conn.execute(text(f"PRAGMA {name}")).scalar_one() for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 2]


def test_sqlite_has_what_our_statements_use() -> None:
    """UPDATE … RETURNING came with 3.35; an older library fails at the first append."""
    assert sqlite3.sqlite_version_info >= (3, 35)
