"""Ledgers that get another place, or become another lake's.

A ledger names data files, and what is under way names files too. A clone is a lake of its own: nothing of it belongs to
a process, a caller or a destination of the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import orjson
from sqlalchemy import Connection, bindparam, delete, inspect, select, update

from strandline.json_types import Json
from strandline.ledger.database import schema as db
from strandline.ledger.database.dialect import Database
from strandline.ledger.ledger import Txn
from strandline.ledger.place import iceberg_catalog
from strandline.model.delivery.generations import new_generation
from strandline.model.ids import new_id

ROWS_AT_ONCE = 5000


def move_paths(txn: Txn, path: Callable[[str], str], document: Callable[[Json], Json]) -> None:
    """Change the address of every file that the ledger names, and those in descriptions of what is under way."""
    paths = txn.conn.execute(select(db.files.c.path).distinct()).scalars().all()
    changed = [{"was": old, "now": new} for old in paths if (new := path(old)) != old]
    statement = update(db.files).where(db.files.c.path == bindparam("was")).values(path=bindparam("now"))
    for start in range(0, len(changed), ROWS_AT_ONCE):
        txn.conn.execute(statement, changed[start : start + ROWS_AT_ONCE])
    for table, key, column in (
        (db.intents, db.intents.c.op_id, db.intents.c.body),
        (db.loads, db.loads.c.load_id, db.loads.c.parts),
    ):
        for name, text in txn.conn.execute(select(key, column).where(column.is_not(None))).all():
            moved = orjson.dumps(document(orjson.loads(text))).decode()
            txn.conn.execute(update(table).where(key == name).values({column.name: moved}))


def named_files(conn: Connection) -> Iterator[str]:
    """The address of every data file that a ledger names, and of those that what is under way would let it name."""
    if inspect(conn).has_table(db.files.name):
        yield from conn.execute(select(db.files.c.path).distinct()).scalars()
    if inspect(conn).has_table(db.intents.name):
        for body in conn.execute(select(db.intents.c.body)).scalars():
            yield from _paths(orjson.loads(body) if body else None)


def _paths(value: Json) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _paths(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "path" and isinstance(item, str):
                yield item
            yield from _paths(item)


def be_at_home(txn: Txn, *, place: str, warehouse: str, fence: int, backup_id: str | None) -> None:
    """Let a ledger that was copied be at home in its new place, in a generation of its own.

    One that was restored from a backup says so in its generation, which destinations keep.
    """
    generation = new_generation(backup_id)
    values = {"generation": generation, "place": place, "warehouse": warehouse, "fence": fence, "raising": None}
    txn.conn.execute(update(db.counter).values(**values))


def be_another_lake(txn: Txn, reason: str) -> None:
    """Make a copied ledger that of a lake of its own: with another id, and sinks that a person has to let go on.

    What is under way has no owner, and is decided by recovery. What only the first lake's processes, callers and
    destinations know of goes: leases, tokens, requests, holds, deliveries, marks and dead letters.
    """
    txn.conn.execute(update(db.counter).values(lake_id=new_id()))
    txn.conn.execute(update(db.intents).values(owner=""))
    txn.conn.execute(delete(db.leases).where(db.leases.c.op_id.not_in(select(db.intents.c.op_id))))
    for table in (db.tokens, db.workers, db.requests, db.jobs, db.holds, db.restores):
        txn.conn.execute(delete(table))
    for table in (db.deliveries, db.dead_letters, db.watermarks):
        txn.conn.execute(delete(table))
    txn.conn.execute(update(db.sinks).values(paused=reason, receiver=None, ticked_at_us=None))


def set_locations(url: str, locations: Mapping[str, str]) -> None:
    """Let a catalog name other metadata files of its tables, all at once; by `namespace.name`."""
    tables = iceberg_catalog.TABLES.c
    database = Database(url, read_only=False)
    try:
        with database.write() as conn:
            for name, location in locations.items():
                namespace, _, table = name.rpartition(".")
                conn.execute(
                    update(iceberg_catalog.TABLES)
                    .where(tables.table_namespace == namespace, tables.table_name == table)
                    .values(metadata_location=location, previous_metadata_location=None)
                )
    finally:
        database.close()
