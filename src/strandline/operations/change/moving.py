"""Tables in another place: their metadata and data files, their catalog, and the ledger that names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.engines.metadata import UNREADABLE
from strandline.engines.moving import Move, OldFiles, copy_files, move_table
from strandline.errors import Damaged, NotFound
from strandline.ledger.ledger import Txn
from strandline.ledger.place.iceberg_catalog import metadata_locations
from strandline.ledger.place.moving import move_paths, set_locations
from strandline.operations.core.context import Report

CATALOG = "strand"


@dataclass(frozen=True)
class MovedTables:
    """Tables whose files are in their new place: where the metadata of each is, and which data files they name."""

    move: Move
    locations: Mapping[str, str]
    data: tuple[str, ...]

    def write(self, txn: Txn) -> None:
        """Let a ledger name its files in the new place."""
        move_paths(txn, self.move, self.move.in_document)


def copy_tables(catalog: str, move: Move, source: OldFiles, report: Report) -> MovedTables:
    """Copy all tables of a copied catalog to another warehouse, and let the catalog name them there."""
    moved = move_metadata(catalog, move, source, report)
    try:
        for count in copy_files(list(moved.data), move, source):
            report("copying files", count, len(moved.data))
    except FileNotFoundError as error:
        raise NotFound(
            f"a data file is neither in the backup nor in {move.old}: {error}",
            hint="Use a backup that was made with --with-data.",
        ) from error
    if moved.locations:
        set_locations(catalog, moved.locations)
    return moved


def move_metadata(catalog: str, move: Move, source: OldFiles, report: Report, *, name: str = "") -> MovedTables:
    """Write the metadata of all tables for another warehouse; nothing names it yet."""
    tables = metadata_locations(catalog, CATALOG)
    locations: dict[str, str] = {}
    data: dict[str, None] = {}
    for number, (table, location) in enumerate(tables.items()):
        report(f"writing the metadata of {table}", number, len(tables))
        if not move.covers(location.current):
            continue  # an adoption under way reads it where it is
        try:
            locations[table], files = move_table(location.current, move, source, name=name)
        except FileNotFoundError as error:
            raise NotFound(
                f"metadata of {table} is neither in the backup nor in its place: {error}",
                hint="Use a backup that was made with --with-data.",
            ) from error
        except UNREADABLE as error:
            raise Damaged(f"the metadata of {table} can't be written for another place: {error}") from error
        data |= dict.fromkeys(files)
    return MovedTables(move, locations, tuple(data))
