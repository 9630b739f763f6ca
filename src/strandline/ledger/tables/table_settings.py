"""The settings of a table that may change: how long its rows are kept, by which column, and how large its files are."""

from __future__ import annotations

from dataclasses import asdict, replace

import orjson
from sqlalchemy import update

from strandline.errors import BadRequest, nearest
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import MAIN, Ledger, Txn
from strandline.ledger.tables.tables import branch_id, find_table, read_head, read_schema
from strandline.model.maintenance import SettingChanges
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import AT, Primitive
from strandline.model.tables import Table

UNKNOWN_US = -(1 << 62)
"""The oldest time of a file that was not looked into: it may be any."""


def change_settings(ledger: Ledger, name: str, changes: SettingChanges) -> Table:
    """Change some settings of a table, or BadRequest and none of them."""
    with ledger.write() as txn:
        table = find_table(txn.conn, name)
        on_branch = branch_id(txn.conn, MAIN)
        head = read_head(txn.conn, on_branch, table.table_id)
        settings = replace(table.settings, **changes)
        if table.key and settings.time_column != AT:
            raise BadRequest(
                f"{table.name!r} is a keyed table: how long its versions are kept goes by their commits",
                hint="Set its retention alone.",
            )
        _check_time(table, read_schema(txn.conn, table.table_id, head.schema_version), settings.time_column)
        if settings.retention_s is not None and settings.retention_s <= 0:
            raise BadRequest("a retention of nothing would remove every row", hint="Write 90d, or none to keep all.")
        if settings.target_file_bytes < 1:
            raise BadRequest("files can't be merged to a size of nothing", hint="Write 128MiB.")
        txn.conn.execute(
            update(db.tables)
            .where(db.tables.c.table_id == table.table_id)
            .values(settings=orjson.dumps(asdict(settings)).decode())
        )
        if settings.time_column != table.settings.time_column:
            _forget_times(txn, table.table_id)
    return replace(table, settings=settings)


def _check_time(table: Table, schema: Schema, column: str) -> None:
    """A column of times: ours, or one of the user's."""
    if column == AT:
        return
    types = {declared.name: declared.type for declared in schema.columns}
    if column not in types:
        raise BadRequest(f"table {table.name!r} has no column {column!r}", hint=nearest(column, [*types, AT]))
    if types[column] not in (Primitive("timestamp"), Primitive("date")):
        raise BadRequest(
            f"column {column!r} of table {table.name!r} is no time", hint="Name a timestamp or a date, or _at."
        )
    if schema.column(column).fills or schema.column(column).default is not None:
        raise BadRequest(
            f"rows of table {table.name!r} have a default in {column!r}, which says nothing of their age",
            hint="Name another column, or _at.",
        )


def _forget_times(txn: Txn, table_id: str) -> None:
    """What is known of the files' times was of another column."""
    txn.conn.execute(
        update(db.files).where(db.files.c.table_id == table_id).values(oldest_us=UNKNOWN_US, newest_us=None)
    )
