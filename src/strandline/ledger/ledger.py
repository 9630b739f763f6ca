"""The ledger: the one place where anything is decided.

A write transaction locks the counter row first and holds it to the commit. So a lower seq is never committed after a
higher one, `_at` of a later transaction is later whatever the clock does, and a ledger of a newer format is refused
before anything is written to it. That row also counts the transactions: each notes its number and its id, so that one
whose COMMIT was sent and not answered can be looked up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from sqlalchemy import (
    BindParameter,
    Connection,
    bindparam,
    case,
    delete,
    func,
    insert,
    inspect,
    literal,
    null,
    select,
    update,
)

from strandline.errors import Conflict, Damaged, NewerFormat, NotFound, RecoveryRequired, StrandError, TooLarge
from strandline.ledger.database import schema
from strandline.ledger.database.connections import Pause
from strandline.ledger.database.dialect import Database
from strandline.ledger.database.migrations import MIGRATIONS
from strandline.ledger.database.outcomes import is_unknown, was_undone
from strandline.ledger.database.pipeline import Row
from strandline.ledger.database.postgres import keep_as_it_is
from strandline.ledger.database.prepared import Bound, Prepared, together
from strandline.ledger.database.sessions import PATIENCE_S
from strandline.model.ids import new_id

__all__ = ["MAIN", "MAX_SEQ", "Connection", "Ledger", "Txn"]

T = TypeVar("T")

MAX_SEQ = 2**63 - 1
MAIN = "main"

OUTCOMES_KEPT = 100_000
"""How many transactions back a lost answer can be looked up."""

_now_us: BindParameter[int] = bindparam("now_us")
_counter = schema.counter.c
# No two transactions have one time, also while the ledger's is ahead of the clock: what came first can always be told.
# A clock that passes the ledger's time takes back a person's word that the ledger's is wrong; until then the latest
# time of day is kept beside it.
_locking = (
    update(schema.counter)
    .where(_counter.id == 1)
    .values(
        last_at_us=case((_counter.last_at_us >= _now_us, _counter.last_at_us + 1), else_=_now_us),
        wall_from_us=case(
            (_counter.last_at_us < _now_us, null()),
            (_counter.wall_from_us < _now_us, _now_us),
            else_=_counter.wall_from_us,
        ),
        writes=_counter.writes + 1,
    )
    .returning(_counter.last_seq, _counter.last_at_us, _counter.writes, _counter.format)
)
_locked = _locking.cte("locked")
_LOCK = Prepared(_locking)
# The same in one statement with its note, because every writer waits for this one's way to the server and back.
_LOCK_AND_NOTE = Prepared(
    select(_locked).add_cte(
        insert(schema.outcomes)
        .from_select(["number", "txn_id"], select(_locked.c.writes, bindparam("txn_id")))
        .cte("noted")
    )
)
_MOVE = Prepared(update(schema.counter).where(schema.counter.c.id == 1).values(last_seq=bindparam("seq")))
# An error where this strandline may not write, or not so many rows; then nothing behind it is run.
_REQUIRE_ROOM = Prepared(
    select(literal(1) / func.count())
    .select_from(schema.counter)
    .where(schema.counter.c.format == schema.FORMAT, schema.counter.c.last_seq <= MAX_SEQ - bindparam("count"))
)
_ADVANCE = Prepared(
    update(schema.counter).where(schema.counter.c.id == 1).values(last_seq=schema.counter.c.last_seq + bindparam("by"))
)


class Locked(NamedTuple):
    """What the counter said when it was locked."""

    last_seq: int
    last_at_us: int
    number: int
    format: int


@dataclass
class Txn:
    """An open write transaction: its connection, its time, and the seqs it may hand out."""

    _conn: Connection
    at_us: int
    last_seq: int
    _last: list[Bound] | None = None
    _answered: tuple[Sequence[Bound], list[list[Row]]] = ((), [])

    @property
    def conn(self) -> Connection:
        """The connection, on which everything was written that this transaction has written by now."""
        if self._last:
            together(self._conn, self._last)
            self._last.clear()
        return self._conn

    def write_last(self, steps: Sequence[Bound]) -> None:
        """Have these run with the commit at the latest, and before this transaction reads."""
        if self._last is None:
            together(self._conn, steps)
        else:
            self._last.extend(steps)

    def ask(self, steps: Sequence[Bound]) -> list[list[Row]]:
        """The rows of these; without a way to the server where they were asked for with the lock."""
        earlier, rows = self._answered
        return rows if earlier == steps else together(self.conn, steps)

    def allocate(self, count: int) -> int:
        """Take `count` seqs and return the first; they become real when this transaction commits."""
        if self.last_seq > MAX_SEQ - count:
            raise TooLarge(
                f"the lake's sequence is used up: {self.last_seq} of {MAX_SEQ}, and {count} more were asked for",
                hint="Start a new lake and load this one's export into it.",
            )
        first = self.last_seq + 1
        if count == 0:
            return first
        self.last_seq += count
        self.write_last([Bound(_MOVE, {"seq": self.last_seq})])
        return first

    def raise_to(self, seq: int) -> None:
        """Let the next seq be above this one; what lies between is a gap."""
        if seq > MAX_SEQ:
            raise TooLarge(f"the lake's sequence is used up: {seq} of {MAX_SEQ}", hint="Start a new lake.")
        if seq > self.last_seq:
            self.last_seq = seq
            self.write_last([Bound(_MOVE, {"seq": seq})])

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction that is undone alone when it raises."""
        last_seq = self.last_seq
        try:
            with self.conn.begin_nested():
                yield
                _ = self.conn  # what is still to be written belongs inside
        except BaseException:
            self.last_seq = last_seq
            if self._last is not None:
                self._last.clear()
            raise


def _nothing(_lake_id: str | None) -> None:
    return None


def _no_other_clock() -> tuple[int, ...]:
    return ()


class Ledger:
    """A database with a ledger in it. `elsewhere_us` asks the clocks that its lake has besides, outside of it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.elsewhere_us: Callable[[], tuple[int, ...]] = _no_other_clock
        self._writing: dict[object, float] = {}

    @classmethod
    def create(cls, url: str, warehouse: str = "", check: Callable[[str | None], None] = _nothing) -> Ledger:
        """Make the tables, the counter and the branch `main` in an empty database, for the lake of this warehouse.

        What an init that was killed left behind is used as it is. A ledger in use is refused, and never touched.
        `check` gets the id of the lake whose ledger is there already, or None, and may refuse it too.
        """
        ledger = cls(Database(url, read_only=False, create=True))
        try:
            with ledger.database.write() as conn:
                _lock_database(conn)
                _make(conn, warehouse, check)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def open(cls, url: str, *, read_only: bool = False, older: bool = False) -> Ledger:
        """Open what `create` made; an older format is migrated forward.

        A read-only open changes nothing, so it refuses an older format; unless `older`, of a caller that reads only
        what every format has.
        """
        ledger = cls(Database(url, read_only=read_only))
        try:
            version = ledger.format()
            _refuse_newer(version)
            if version < schema.FORMAT and not read_only:
                ledger._migrate()
            elif version < schema.FORMAT and not older:
                raise _not_migrated(version)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def format(self) -> int:
        """The format version that the ledger was written with."""
        with self.read() as conn:
            if not self.database.is_sqlite and not inspect(conn).has_table(schema.counter.name):
                raise NotFound("the database holds no ledger", hint="`strand init DIR --ledger URL` makes one in it.")
            version = conn.execute(select(schema.counter.c.format)).scalar()
        if version is None:
            raise Damaged("the ledger has lost its counter", hint="Restore the lake from a backup.")
        return int(version)

    @property
    def has_one_host(self) -> bool:
        """Whether processes of one host alone can have this ledger open: those that share a file's memory."""
        return self.database.is_sqlite

    def lake_id(self) -> str:
        """The lake's own id, made once."""
        with self.read() as conn:
            return str(conn.execute(select(schema.counter.c.lake_id)).scalar_one())

    def generation(self) -> str | None:
        """Which life of the lake this ledger is: made at init, restore and clone."""
        with self.read() as conn:
            generation: str | None = conn.execute(select(schema.counter.c.generation)).scalar_one()
        return generation

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
    def write(self, ask: Sequence[Bound] = ()) -> Iterator[Txn]:
        """A write transaction that holds the counter from its first statement to its commit.

        What it will `ask` is asked together with the lock.
        """
        txn_id = new_id()

        def lock(conn: Connection) -> tuple[Locked, list[list[Row]]]:
            statement = _LOCK if self.database.is_sqlite else _LOCK_AND_NOTE
            locking = Bound(statement, {"now_us": time.time_ns() // 1000, "txn_id": txn_id})
            (row,), *rows = together(conn, [locking, *ask])
            return Locked(*row), rows

        def arrived(conn: Connection, answer: tuple[Locked, object]) -> bool | None:
            mine, _ = answer
            # Under the lock that it held: it was committed by now, or never will be.
            writes = conn.execute(select(schema.counter.c.writes).with_for_update()).scalar_one()
            noted = schema.outcomes.c
            is_noted = conn.execute(select(noted.txn_id).where(noted.number == mine.number)).scalar() == txn_id
            return is_noted if writes - mine.number < OUTCOMES_KEPT else None

        with self._at_work(), self.database.transaction(lock, arrived) as (conn, (locked, rows), last):
            _refuse_newer(locked.format)
            if not self.database.is_sqlite and locked.number % 1000 == 0:
                _forget_outcomes(conn, locked.number)
            yield Txn(conn, locked.last_at_us, locked.last_seq, last, (ask, rows))

    def write_at_once(self, steps: Sequence[Bound], count: int) -> int | None:
        """A whole write transaction in one way there and back, which takes `count` seqs; returns the last one before.

        On Postgres alone. None when one of the steps required something that is not so: then nothing was written. When
        the answer is lost, whether it arrived is unknown, and the error says so.
        """
        locking = Bound(_LOCK_AND_NOTE, {"now_us": time.time_ns() // 1000, "txn_id": new_id()})
        room = Bound(_REQUIRE_ROOM, {"count": count})
        with self._at_work():
            answers = self.database.write_at_once([locking, room, *steps, Bound(_ADVANCE, {"by": count})])
        if answers is None:
            return None
        locked = Locked(*answers[0][0])
        if locked.number % 1000 == 0:
            with self.write() as txn:
                _forget_outcomes(txn.conn, locked.number)
        return locked.last_seq

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """For `behind_s`: a write has begun and not ended."""
        ticket = object()
        self._writing[ticket] = time.monotonic()
        try:
            yield
        finally:
            del self._writing[ticket]

    def run(self, work: Callable[[Txn], T], ask: Sequence[Bound] = ()) -> T:
        """`work` as a write transaction, again when the database undid it: a line was cut, a server restarted.

        It must have no effect but the transaction's.
        """
        deadline_s, pause = time.monotonic() + PATIENCE_S, Pause()
        while True:
            try:
                with self.write(ask) as txn:
                    return work(txn)
            except StrandError as error:
                if not was_undone(error) or time.monotonic() > deadline_s:
                    raise
                pause.wait()

    def behind_s(self) -> float:
        """How long the oldest write of this process that is not done yet has waited, or worked."""
        since = list(self._writing.values())
        return time.monotonic() - min(since) if since else 0.0

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def _migrate(self) -> None:
        """Bring an older format forward, again when the database undid it.

        On Postgres a reader that holds one table and waits for another may stand in its way (a deadlock, of which
        Postgres ends one side); and an answer may be lost. The next try begins with the format that is there then.
        """
        deadline_s, pause = time.monotonic() + PATIENCE_S, Pause()
        while True:
            try:
                self._try_to_migrate()
            except StrandError as error:
                if not (was_undone(error) or is_unknown(error)) or time.monotonic() > deadline_s:
                    raise
                pause.wait()
            else:
                return

    def _try_to_migrate(self) -> None:
        with self.database.write() as conn:
            _lock_database(conn)
            stored_format = int(conn.execute(select(schema.counter.c.format)).scalar_one())
            for version in range(stored_format, schema.FORMAT):
                MIGRATIONS[version](conn)
            conn.execute(update(schema.counter).values(format=schema.FORMAT))


def _forget_outcomes(conn: Connection, number: int) -> None:
    conn.execute(delete(schema.outcomes).where(schema.outcomes.c.number < number - 2 * OUTCOMES_KEPT))


_CREATING = 0x57A4D11E


def _lock_database(conn: Connection) -> None:
    """Only one process makes or changes the tables of a database at a time; SQLite sees to that itself."""
    if conn.dialect.name == "postgresql":
        conn.execute(select(func.pg_advisory_xact_lock(_CREATING)))


def _make(conn: Connection, warehouse: str, check: Callable[[str | None], None]) -> None:
    existing = set(inspect(conn).get_table_names()) & schema.metadata.tables.keys()
    if existing and schema.counter.name not in existing:
        raise Conflict(
            f"the database holds tables of something else, such as {min(existing)!r}",
            kind="lake_exists",
            hint="Name an empty database; nothing was changed.",
            expected=None,
            actual=sorted(existing),
        )
    schema.metadata.create_all(conn, checkfirst=bool(existing))
    if conn.dialect.name == "postgresql":
        keep_as_it_is(conn, schema.batches.c.payload)
    lake = conn.execute(select(schema.counter.c.lake_id, schema.counter.c.warehouse)).one_or_none()
    if lake is not None:
        _refuse_used(conn, same_lake=lake.warehouse == warehouse)
    check(None if lake is None else lake.lake_id)
    if lake is not None:
        return
    now_us = time.time_ns() // 1000
    counter = {"id": 1, "last_seq": 0, "last_at_us": now_us, "writes": 0, "format": schema.FORMAT}
    ids = {"lake_id": new_id(), "generation": new_id()}
    conn.execute(insert(schema.counter).values(**counter, **ids, warehouse=warehouse))
    conn.execute(
        insert(schema.branches).values(
            branch_id=new_id(), name=MAIN, kind="branch", protected=0, forked_at=0, created_at_us=now_us
        )
    )


def _refuse_used(conn: Connection, *, same_lake: bool) -> None:
    _refuse_newer(int(conn.execute(select(schema.counter.c.format)).scalar_one()))
    used = conn.execute(select(schema.counter.c.last_seq)).scalar_one() > 0
    if used or not same_lake or conn.execute(select(schema.tables.c.table_id).limit(1)).scalar() is not None:
        raise Conflict(
            "this ledger belongs to a lake already",
            kind="lake_exists",
            hint="Name another ledger (a lake needs a database of its own); nothing was changed.",
            expected=None,
            actual="the ledger of another lake",
        )


def _not_migrated(version: int) -> RecoveryRequired:
    return RecoveryRequired(
        f"this lake has format {version}, and is read in format {schema.FORMAT}",
        hint="Open it once where it can be written, for instance with `strand recover`: that brings it up to date.",
    )


def _refuse_newer(version: int) -> None:
    if version == schema.RETIRED:
        raise RecoveryRequired(
            "this ledger is closed for good: a restore has put another in its place",
            hint="Open the lake again. Nothing was written.",
        )
    if version > schema.FORMAT:
        raise NewerFormat(
            f"this lake has format {version}, and this strandline knows formats up to {schema.FORMAT}",
            found=version,
            known=schema.FORMAT,
        )
