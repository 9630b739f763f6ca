"""Iceberg's JDBC catalog, as far as it can be looked at without a JVM: where each table's metadata is now.

The catalog is Iceberg's own and is only read here, but for one repair: when the current metadata file can't be read,
the one before it can take its place. It may be absent, because the first operation makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Column, MetaData, Table, Text, inspect, select, update

from strandline.errors import NotFound
from strandline.ledger.dialect import Database

_tables = Table(
    "iceberg_tables",
    MetaData(),
    Column("catalog_name", Text),
    Column("table_namespace", Text),
    Column("table_name", Text),
    Column("metadata_location", Text),
    Column("previous_metadata_location", Text),
)


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
            if not inspect(conn).has_table(_tables.name):
                return {}
            found = conn.execute(select(_tables).where(_tables.c.catalog_name == catalog))
            return {
                f"{row.table_namespace}.{row.table_name}": Location(
                    row.metadata_location, row.previous_metadata_location
                )
                for row in found
            }
    finally:
        database.close()


def step_back(url: str, catalog: str, table: str, location: Location) -> bool:
    """Make the metadata before the last commit the current one again, unless somebody has committed meanwhile."""
    namespace, _, name = table.rpartition(".")
    database = Database(url, read_only=False)
    try:
        with database.write() as conn:
            moved = conn.execute(
                update(_tables)
                .where(
                    _tables.c.catalog_name == catalog,
                    _tables.c.table_namespace == namespace,
                    _tables.c.table_name == name,
                    _tables.c.metadata_location == location.current,
                )
                .values(metadata_location=location.previous, previous_metadata_location=None)
            )
            return moved.rowcount == 1
    finally:
        database.close()
