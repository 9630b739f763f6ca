"""The ledger: the one place where anything is decided.

A write transaction locks the counter row first and holds it to the commit. So a lower seq is never committed after a
higher one, `_at` never decreases whatever the clock does, and a ledger of a newer format is refused before anything is
written to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, bindparam, case, insert, select, update
from sqlalchemy.exc import DBAPIError

from strandline.errors import Conflict, Damaged, NewerFormat, TooLarge
from strandline.ledger import schema
from strandline.ledger.dialect import Database, Prepared
from strandline.model.ids import new_id

__all__ = ["MAIN", "MAX_SEQ", "Connection", "Ledger", "Txn"]

MAX_SEQ = 2**63 - 1
MAIN = "main"

_LOCK = Prepared(
    update(schema.counter)
    .where(schema.counter.c.id == 1)
    .values(
        last_at_us=case(
            (schema.counter.c.last_at_us > bindparam("now_us"), schema.counter.c.last_at_us), else_=bindparam("now_us")
        ),
    )
    .returning(schema.counter.c.last_seq, schema.counter.c.last_at_us, schema.counter.c.format)
)
_MOVE = Prepared(update(schema.counter).where(schema.counter.c.id == 1).values(last_seq=bindparam("seq")))


@dataclass
class Txn:
    """An open write transaction: its connection, its time, and the seqs it may hand out."""

    conn: Connection
    at_us: int
    last_seq: int

    def allocate(self, count: int) -> int:
        """Take `count` seqs and return the first; they become real when this transaction commits."""
        if self.last_seq > MAX_SEQ - count:
            raise TooLarge(
                f"the lake's sequence is used up: {self.last_seq} of {MAX_SEQ}, and {count} more were asked for",
                hint="Start a new lake and load this one's export into it.",
            )
        first = self.last_seq + 1
        self.last_seq += count
        _MOVE.run(self.conn, [{"seq": self.last_seq}])
        return first

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction that is undone alone when it raises."""
        last_seq = self.last_seq
        try:
            with self.conn.begin_nested():
                yield
        except BaseException:
            self.last_seq = last_seq
            raise


class Ledger:
    """A database with a ledger in it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._writing: dict[object, float] = {}

    @classmethod
    def create(cls, url: str) -> Ledger:
        """Make the tables, the counter and the branch `main` in an empty database.

        What an init that was killed left behind is used as it is. A ledger in use is refused, and never touched.
        """
        ledger = cls(Database(url, read_only=False, create=True))
        now_us = time.time_ns() // 1000
        with ledger.database.write() as conn:
            schema.metadata.create_all(conn)
            if conn.execute(select(schema.counter.c.id)).scalar() is not None:
                _refuse_used(conn)
                return ledger
            conn.execute(
                insert(schema.counter).values(
                    id=1, last_seq=0, last_at_us=now_us, format=schema.FORMAT, lake_id=new_id()
                )
            )
            conn.execute(insert(schema.branches).values(branch_id=new_id(), name=MAIN, created_at_us=now_us))
        return ledger

    @classmethod
    def open(cls, url: str, *, read_only: bool = False) -> Ledger:
        """Open what `create` made; an older format is migrated forward, unless the open is read-only."""
        ledger = cls(Database(url, read_only=read_only))
        try:
            found = ledger.format()
        except DBAPIError as error:
            raise Damaged(f"{Path(url).name} holds no ledger: {error.orig}") from error
        _refuse_newer(found)
        if found < schema.FORMAT and not read_only:
            ledger._migrate()
        return ledger

    def format(self) -> int:
        """The format version that the ledger was written with."""
        with self.read() as conn:
            return int(conn.execute(select(schema.counter.c.format)).scalar_one())

    def lake_id(self) -> str:
        """The lake's own id, made once."""
        with self.read() as conn:
            return str(conn.execute(select(schema.counter.c.lake_id)).scalar_one())

    @staticmethod
    def last_seq(conn: Connection) -> int:
        """The last seq that was given to anything."""
        return int(conn.execute(select(schema.counter.c.last_seq)).scalar_one())

    @staticmethod
    def last_at_us(conn: Connection) -> int:
        """The time of the last write transaction: what this database snapshot shows was current then."""
        return int(conn.execute(select(schema.counter.c.last_at_us)).scalar_one())

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read of one database snapshot."""
        with self.database.read() as conn:
            yield conn

    @contextmanager
    def write(self) -> Iterator[Txn]:
        """A write transaction that holds the counter from its first statement to its commit."""
        ticket = object()
        self._writing[ticket] = time.monotonic()
        try:
            with self.database.write() as conn:
                last_seq, last_at_us, found = _LOCK.one(conn, {"now_us": time.time_ns() // 1000})
                _refuse_newer(found)
                yield Txn(conn, last_at_us, last_seq)
        finally:
            del self._writing[ticket]

    def behind_s(self) -> float:
        """How long the oldest write of this process that is not done yet has waited, or worked."""
        since = list(self._writing.values())
        return time.monotonic() - min(since) if since else 0.0

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def _migrate(self) -> None:
        with self.database.write() as conn:
            found = int(conn.execute(select(schema.counter.c.format)).scalar_one())
            for version in range(found, schema.FORMAT):
                schema.MIGRATIONS[version](conn)
            conn.execute(update(schema.counter).values(format=schema.FORMAT))


def _refuse_used(conn: Connection) -> None:
    used = conn.execute(select(schema.counter.c.last_seq)).scalar_one() > 0
    if used or conn.execute(select(schema.tables.c.table_id).limit(1)).scalar() is not None:
        raise Conflict(
            "this ledger belongs to a lake already",
            kind="lake_exists",
            hint="Name another ledger; nothing was changed.",
            expected=None,
            actual="a ledger with tables",
        )


def _refuse_newer(found: int) -> None:
    if found > schema.FORMAT:
        raise NewerFormat(
            f"this lake has format {found}, and this strandline knows formats up to {schema.FORMAT}",
            found=found,
            known=schema.FORMAT,
        )
