"""Iceberg's JDBC catalog, as far as it can be looked at without a JVM: where each table's metadata is now.

The catalog is Iceberg's own and is only read here. It may be absent, because the first operation makes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Column, MetaData, Table, Text, inspect, select

from strandline.errors import NotFound
from strandline.ledger.dialect import Database

_tables = Table(
    "iceberg_tables",
    MetaData(),
    Column("catalog_name", Text),
    Column("table_namespace", Text),
    Column("table_name", Text),
    Column("metadata_location", Text),
)


def metadata_locations(url: str, catalog: str) -> Mapping[str, str]:
    """The current metadata file of every table of a catalog, by `namespace.name`."""
    try:
        database = Database(url, read_only=True)
    except NotFound:
        return {}
    try:
        with database.read() as conn:
            if not inspect(conn).has_table(_tables.name):
                return {}
            found = conn.execute(select(_tables).where(_tables.c.catalog_name == catalog))
            return {f"{row.table_namespace}.{row.table_name}": row.metadata_location for row in found}
    finally:
        database.close()
