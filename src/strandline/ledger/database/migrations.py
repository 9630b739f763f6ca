"""The way from one format of the ledger to the next.

Each step runs inside the transaction that also raises the format, on SQLite and on Postgres: a process that dies in it
leaves the older format. A step only adds: a column that older rows lack is null, or has its default. What an older
ledger can't know is told from what it says by the first process that looks (`counter.place`, `sinks.from_config`).
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Column, Connection, update
from sqlalchemy.schema import CreateColumn

from strandline.ledger.database import schema as db
from strandline.model.ids import new_id

COLUMNS_OF_2: tuple[Column[object], ...] = (
    db.counter.c.generation,
    db.counter.c.place,
    db.counter.c.fence,
    db.counter.c.raising,
    db.counter.c.wall_from_us,
    db.heads.c.rewrites,
    db.sinks.c.from_config,
    db.sinks.c.paused,
    db.sinks.c.receiver,
    db.watermarks.c.acked_epoch,
    db.watermarks.c.chunk_since,
    db.watermarks.c.chunk_until,
    db.watermarks.c.chunk_digest,
    db.watermarks.c.lacking_upto,
    db.watermarks.c.rewound_epoch,
    db.watermarks.c.hole_upto,
    db.watermarks.c.replayed,
    db.inbound_marks.c.generation,
    db.inbound_marks.c.chunk_since,
    db.inbound_marks.c.chunk_until,
    db.inbound_marks.c.chunk_digest,
    db.inbound_dead.c.digest,
)


def _to_2(conn: Connection) -> None:
    for column in COLUMNS_OF_2:
        _add(conn, column)
    db.inbound_holes.create(conn)
    conn.execute(update(db.counter).values(generation=new_id()))


def _add(conn: Connection, column: Column[object]) -> None:
    text = CreateColumn(column).compile(dialect=conn.dialect)
    conn.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {text}")


MIGRATIONS: dict[int, Callable[[Connection], None]] = {1: _to_2}
"""By the format that a step begins at."""
