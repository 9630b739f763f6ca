"""Whether Iceberg holds what the ledger says, without a JVM.

The JDBC catalog says which metadata file is current, and that is JSON. So the pins, the ref that outside engines read
and what others did to the table can be compared in milliseconds, also where there is no Java.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from strandline.engines.duck.relations import local_path
from strandline.ledger.catalog import metadata_locations
from strandline.ledger.files import knows_snapshot
from strandline.ledger.intents import read_intents
from strandline.model.ids import private_branch
from strandline.model.tables import DataFile, TableState
from strandline.reports.findings import RESTORE, Finding, Look

CATALOG = "strand"
MAIN_REF = "main"
TOLD_FILES = 5


def data_files(look: Look) -> Iterator[Finding]:
    """Every pinned data file is there and has its size; a deep look asks each for its number of rows too."""
    for name in look.view.tables:
        wrong = [said for file in look.view.files(name) if (said := _wrong(file, deep=look.deep)) is not None]
        if wrong:
            more = f" (and {len(wrong) - TOLD_FILES} more)" if len(wrong) > TOLD_FILES else ""
            yield Finding(
                what=f"table {name}: {len(wrong)} of its data files are damaged: {'; '.join(wrong[:TOLD_FILES])}{more}",
                meaning="Reads of these rows fail with history_gone.",
                fix=f"put the files back from a backup of the warehouse, or {RESTORE}",
            )


def _wrong(file: DataFile, *, deep: bool) -> str | None:
    if "://" in (path := local_path(file.path)):
        return None  # an object store; asking it for every file is not a quick look
    try:
        found = Path(path).stat().st_size
    except OSError as error:
        return f"{path}: {error.strerror}"
    if found != file.size_bytes:
        return f"{path}: {found:,} bytes instead of {file.size_bytes:,}"
    return _wrong_inside(path, file.rows) if deep else None


def _wrong_inside(path: str, rows: int) -> str | None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        found = parquet.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        return f"{path}: {error}"
    return None if found == rows else f"{path}: {found:,} rows instead of {rows:,}"


def catalog(look: Look) -> Iterator[Finding]:
    """The pins are in Iceberg, its ref is at them, and nobody else has been there."""
    locations = metadata_locations(_catalog_url(look), CATALOG)
    with look.lake.ledger.read() as conn:
        branches = {private_branch(intent.op_id) for intent in read_intents(conn)}
    for name in look.view.tables:
        state = look.view.state(name)
        location = locations.get(state.table.iceberg_name)
        if location is None:
            if state.head.log_snapshot is not None:
                yield _gone(state, "it is not in the Iceberg catalog")
            continue
        if "://" in local_path(location):
            continue
        try:
            metadata = _metadata(local_path(location))
        except (OSError, ValueError) as error:
            yield _gone(state, f"its Iceberg metadata can't be read ({error})")
            continue
        yield from _compare(look, state, metadata, branches)


def _catalog_url(look: Look) -> str:
    path = look.lake.config.catalog_path
    return f"sqlite:///{path}" if path is not None else look.lake.config.ledger


def _metadata(path: str) -> Mapping[str, Any]:
    data = Path(path).read_bytes()
    document: dict[str, Any] = orjson.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return document


def _compare(look: Look, state: TableState, metadata: Mapping[str, Any], branches: set[str]) -> Iterator[Finding]:
    name, pin = state.table.name, state.head.log_snapshot
    refs = {ref: int(value["snapshot-id"]) for ref, value in metadata.get("refs", {}).items()}
    if pin is not None and pin not in {int(snapshot["snapshot-id"]) for snapshot in metadata.get("snapshots", [])}:
        yield _gone(state, f"its pinned snapshot {pin} is not in Iceberg any more")
    at = refs.get(MAIN_REF)
    if at is not None and not _is_ours(look, state, at):
        yield Finding(
            what=f"table {name}: its Iceberg table {state.table.iceberg_name} was changed from outside (snapshot {at})",
            meaning="The lake's own rows are complete and its reads are unaffected, but outside engines see the other "
            "commit, and flushes don't move the ref any more.",
            fix=f"keep others from writing {state.table.iceberg_name}; to go back, in Spark: CALL {CATALOG}.system."
            f"set_current_snapshot('{state.table.iceberg_name}', {pin})",
        )
    elif at != pin:
        yield Finding(
            what=f"table {name}: outside engines see snapshot {at or 'none'}, and the lake is at {pin}",
            meaning="An operation was published and not settled. The lake's own reads are unaffected.",
            fix="strand recover   (or the next flush of the table)",
            severity="warning",
        )
    for ref in sorted(refs.keys() - branches):
        if ref.startswith("op_"):
            yield Finding(
                what=f"table {name}: the private branch {ref} belongs to no operation",
                meaning="It is garbage that keeps some files alive; nobody reads it.",
                fix=f"in Spark: ALTER TABLE {CATALOG}.{state.table.iceberg_name} DROP BRANCH {ref}",
                severity="warning",
            )


def _is_ours(look: Look, state: TableState, snapshot_id: int) -> bool:
    with look.lake.ledger.read() as conn:
        return knows_snapshot(conn, state.table.table_id, snapshot_id)


def _gone(state: TableState, reason: str) -> Finding:
    return Finding(
        what=f"table {state.table.name}: {reason}",
        meaning="Flushes and outside engines can't use this table; reads work as long as its data files are there.",
        fix=RESTORE,
    )
