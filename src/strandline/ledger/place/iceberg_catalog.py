"""Iceberg's JDBC catalog, as far as it can be looked at without a JVM: where each table's metadata is now.

The catalog is Iceberg's own and is only read here, but for two repairs: when the current metadata file can't be read,
the one before it can take its place; and a restored catalog forgets tables that its ledger has no rows in. It may be
absent, because the first operation makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Column, MetaData, String, Table, delete, inspect, select, update

from strandline.errors import NotFound
from strandline.ledger.database.dialect import Database

METADATA = MetaData()

TABLES = Table(
    "iceberg_tables",
    METADATA,
    Column("catalog_name", String(255), primary_key=True),
    Column("table_namespace", String(255), primary_key=True),
    Column("table_name", String(255), primary_key=True),
    Column("metadata_location", String(1000)),
    Column("previous_metadata_location", String(1000)),
    Column("iceberg_type", String(5)),
)
NAMESPACES = Table(
    "iceberg_namespace_properties",
    METADATA,
    Column("catalog_name", String(255), primary_key=True),
    Column("namespace", String(255), primary_key=True),
    Column("property_key", String(255), primary_key=True),
    Column("property_value", String(1000)),
)
"""Both as Iceberg makes them."""


@dataclass(frozen=True)
class Location:
    """Where a table's metadata is, and where it was before the last commit."""

    current: str
    previous: str | None


def metadata_locations(url: str, catalog: str) -> Mapping[str, Location]:
    """The metadata file of every table of a catalog, by `namespace.name`."""
    try:
        database = Database(url, read_only=True)
    except NotFound:
        return {}
    try:
        with database.read() as conn:
            if not inspect(conn).has_table(TABLES.name):
                return {}
            rows = conn.execute(select(TABLES).where(TABLES.c.catalog_name == catalog))
            return {
                f"{row.table_namespace}.{row.table_name}": Location(
                    row.metadata_location, row.previous_metadata_location
                )
                for row in rows
            }
    finally:
        database.close()


def step_back(url: str, catalog: str, table: str, location: Location) -> bool:
    """Make the metadata before the last commit the current one again, unless another commit has come meanwhile."""
    namespace, _, name = table.rpartition(".")
    database = Database(url, read_only=False)
    try:
        with database.write() as conn:
            moved = conn.execute(
                update(TABLES)
                .where(
                    TABLES.c.catalog_name == catalog,
                    TABLES.c.table_namespace == namespace,
                    TABLES.c.table_name == name,
                    TABLES.c.metadata_location == location.current,
                )
                .values(metadata_location=location.previous, previous_metadata_location=None)
            )
            return moved.rowcount == 1
    finally:
        database.close()


def forget(url: str, catalog: str, table: str) -> None:
    """Take a table out of a catalog that is not in use yet; its files stay."""
    namespace, _, name = table.rpartition(".")
    database = Database(url, read_only=False)
    try:
        with database.write() as conn:
            conn.execute(
                delete(TABLES).where(
                    TABLES.c.catalog_name == catalog,
                    TABLES.c.table_namespace == namespace,
                    TABLES.c.table_name == name,
                )
            )
    finally:
        database.close()
