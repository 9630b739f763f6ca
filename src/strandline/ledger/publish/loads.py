"""Loads on their way: their folder, which parts the input became, and how many of them are published.

A load is written down before anything is put into its folder. A large one is published bite by bite: after a crash the
same command finds its parts here and goes on after the last published one, so no row is loaded twice and no work is
done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from strandline.errors import TableMoved
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Effect, Intent, Publishing
from strandline.model.ids import lease_of_load, new_id
from strandline.model.operations import KeptAnswer

_ONCE = "once:"


@dataclass(frozen=True)
class LoadName:
    """What a load is known by: where its rows go, and the key under which they are loaded there once."""

    branch_id: str
    table_id: str
    key: str

    @property
    def scope(self) -> str:
        """Where the keys of such loads, and what they were answered, are kept."""
        return f"load:{self.branch_id}:{self.table_id}"

    @property
    def lease(self) -> str:
        """The lease that the process which runs the load holds."""
        return lease_of_load(self.scope, self.key)


@dataclass(frozen=True)
class Part:
    """A Parquet file of a load: where it is, how many rows it has, and the schema that they were validated by."""

    path: str
    rows: int
    size_bytes: int
    schema_version: int


@dataclass(frozen=True)
class Load:
    """A load that is not finished; `parts` is None until its input has been converted."""

    load_id: str
    branch_id: str
    table_id: str
    key: str
    digest: str
    actor: str
    parts: tuple[Part, ...] | None
    parts_done: int
    answer: KeptAnswer
    skipped: int

    @property
    def name(self) -> LoadName:
        """What it is known by."""
        return LoadName(self.branch_id, self.table_id, self.key)


def find_load(conn: Connection, name: LoadName) -> Load | None:
    """The unfinished load of this name."""
    row = conn.execute(
        select(db.loads).where(
            db.loads.c.branch_id == name.branch_id,
            db.loads.c.table_id == name.table_id,
            db.loads.c.key == name.key,
            db.loads.c.finished == 0,
        )
    ).one_or_none()
    if row is None:
        return None
    parts = tuple(Part(*part) for part in orjson.loads(row.parts)) if row.parts is not None else None
    return Load(
        load_id=row.load_id,
        branch_id=row.branch_id,
        table_id=row.table_id,
        key=row.key,
        digest=row.digest,
        actor=row.actor,
        parts=parts,
        parts_done=row.parts_done,
        answer=orjson.loads(row.answer),
        skipped=row.skipped,
    )


@dataclass(frozen=True)
class UnfinishedLoad:
    """A load that runs, or was given up in the middle; how many parts it has is None until its input was read."""

    load_id: str
    table: str
    parts: int | None
    parts_done: int
    since_us: int


def list_loads(conn: Connection) -> list[UnfinishedLoad]:
    """Every unfinished load."""
    rows = conn.execute(
        select(db.loads.c.load_id, db.tables.c.name, db.loads.c.parts, db.loads.c.parts_done, db.loads.c.at_us)
        .join(db.tables, db.tables.c.table_id == db.loads.c.table_id)
        .where(db.loads.c.finished == 0)
    )
    return [
        UnfinishedLoad(
            load_id=row.load_id,
            table=row.name,
            parts=len(orjson.loads(row.parts)) if row.parts is not None else None,
            parts_done=row.parts_done,
            since_us=row.at_us,
        )
        for row in rows
    ]


def begin_load(txn: Txn, name: LoadName, digest: str, actor: str) -> Load:
    """The load of this name: one that an earlier run left, or a new one, written down before its folder is made."""
    left = find_load(txn.conn, name)
    if left is not None:
        return left
    txn.conn.execute(
        insert(db.loads).values(
            load_id=f"load-{new_id()}",
            branch_id=name.branch_id,
            table_id=name.table_id,
            key=name.key,
            digest=digest,
            actor=actor,
            at_us=txn.at_us,
            parts=None,
            parts_done=0,
            answer=orjson.dumps({}).decode(),
            skipped=0,
            finished=0,
        )
    )
    begun = find_load(txn.conn, name)
    assert begun is not None, "a load that was just written down is not there"
    return begun


def set_parts(txn: Txn, load_id: str, parts: Sequence[Part], *, skipped: int) -> None:
    """Remember what a load's input became; the first of two that convert it at once decides."""
    txn.conn.execute(
        update(db.loads)
        .where(db.loads.c.load_id == load_id, db.loads.c.parts.is_(None), db.loads.c.finished == 0)
        .values(
            parts=orjson.dumps(
                [[part.path, part.rows, part.size_bytes, part.schema_version] for part in parts]
            ).decode(),
            skipped=skipped,
        )
    )


@dataclass(frozen=True)
class AdvanceLoad(Effect):
    """A load moves on with the rows of one bite, so neither can be there without the other.

    It had `since` parts published, and has `parts_done` by this; `answer` is what it comes to so far.
    """

    load_id: str
    since: int
    parts_done: int
    finished: bool
    answer: Mapping[str, object]

    def check(self, conn: Connection, intent: Intent) -> None:
        """No other process has moved it on, finished it or given it up."""
        if conn.execute(select(db.loads.c.load_id).where(*self._is_there())).first() is None:
            raise TableMoved(
                f"load {self.load_id} was moved on by somebody else",
                hint="Run the same load again: it goes on where the other one stopped.",
                expected=self.since,
                actual=None,
            )

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Move it on; the last bite finishes it."""
        values = {"parts_done": self.parts_done, "answer": orjson.dumps(dict(self.answer)).decode()}
        moved = txn.conn.execute(update(db.loads).where(*self._is_there()).values(**values))
        assert moved.rowcount == 1, f"load {self.load_id} was checked, and is not where it was"
        if self.finished:
            finish_load(txn, self.load_id)

    def _is_there(self) -> tuple[ColumnElement[bool], ...]:
        load = db.loads.c
        return load.load_id == self.load_id, load.parts_done == self.since, load.finished == 0


def finish_load(txn: Txn, load_id: str) -> None:
    """Nothing is left to do but to remove the folder: the load is done, or was given up."""
    txn.conn.execute(update(db.loads).where(db.loads.c.load_id == load_id).values(finished=1))


def give_up_load(txn: Txn, load_id: str) -> None:
    """Give a load up whose input was no good. One that has parts is work in progress, and stays."""
    txn.conn.execute(
        update(db.loads).where(db.loads.c.load_id == load_id, db.loads.c.parts.is_(None)).values(finished=1)
    )


def once(load_id: str) -> str:
    """The key of a load that runs every time, and is never asked for again."""
    return f"{_ONCE}{load_id}"


def unrepeated_loads(conn: Connection) -> dict[str, LoadName]:
    """The unfinished loads with such a key, by their ids."""
    load = db.loads.c
    rows = conn.execute(
        select(load.load_id, load.branch_id, load.table_id, load.key).where(
            load.finished == 0, load.key.startswith(_ONCE)
        )
    )
    return {row.load_id: LoadName(row.branch_id, row.table_id, row.key) for row in rows}


def finished_loads(conn: Connection) -> list[str]:
    """Loads whose folders may go."""
    return list(conn.execute(select(db.loads.c.load_id).where(db.loads.c.finished == 1)).scalars())


def forget_load(txn: Txn, load_id: str) -> None:
    """The folder is gone, and with it the last trace of the load outside its answer."""
    txn.conn.execute(delete(db.loads).where(db.loads.c.load_id == load_id))
