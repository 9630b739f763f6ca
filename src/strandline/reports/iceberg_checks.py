"""Whether Iceberg holds what the ledger says, without a JVM.

The JDBC catalog says which metadata file is current, and that is JSON; what it leads to are Avro files. So the pins,
the ref that outside engines read and what others did to the table can be compared in milliseconds, also where there is
no Java. A quick look follows every pin down to its manifests; a deep one reads these too, and compares the data files
that Iceberg names with those that the ledger does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strandline.engines.metadata import (
    UNREADABLE,
    IcebergMetadata,
    IcebergSnapshot,
    data_files,
    manifests,
    read_metadata,
    refs,
    size_of,
    snapshots,
)
from strandline.engines.storage import open_uri
from strandline.ledger.checks import pinned_snapshots
from strandline.ledger.place.iceberg_catalog import Location, metadata_locations
from strandline.ledger.publish.intents import read_intents
from strandline.ledger.publish.publishing import Intent
from strandline.ledger.tables.files import knows_snapshot
from strandline.model.ids import private_branch
from strandline.model.tables import BranchTable
from strandline.model.times import text_of
from strandline.model.wording import counted
from strandline.reports.findings import RESTORE, Examination, Finding

CATALOG = "strand"
MAIN_REF = "main"


@dataclass(frozen=True)
class UnderWay:
    """What operations are doing to the catalog now: their private branches, and the tables they have yet to settle."""

    branches: frozenset[str]
    unsettled: frozenset[str]

    @classmethod
    def of(cls, look: Examination) -> UnderWay:
        """As the ledger has it."""
        with look.lake.ledger.read() as conn:
            intents = read_intents(conn)
        readable = [intent for intent in intents if isinstance(intent, Intent)]
        return cls(
            frozenset(private_branch(intent.op_id) for intent in intents),
            frozenset(scope.table_id for intent in readable for scope in intent.scopes),
        )


def catalog(look: Examination) -> Iterator[Finding]:
    """The pins are in Iceberg, its ref is at them, and no other writer has been there."""
    locations = metadata_locations(look.lake.config.catalog_database, CATALOG)
    under_way = UnderWay.of(look)
    for branch_table in look.branch_tables():
        location = locations.get(branch_table.table.iceberg_name)
        if location is None:
            if branch_table.head.log_snapshot is not None:
                yield _gone(branch_table, "table_gone", "it is not in the Iceberg catalog")
            continue
        try:
            metadata = read_metadata(location.current)
        except UNREADABLE as error:
            yield _unreadable(look, branch_table, location, error)
            continue
        yield from _pins(look, branch_table, metadata)
        yield from _refs(look, branch_table, metadata, under_way)
    yield from _strangers(look, locations)


def changed_at(location: str) -> str | None:
    """When a file was written last, by its store; None when it is not there."""
    system, path = open_uri(location)
    try:
        info = system.get_file_info(path)
    except UNREADABLE:
        return None
    return None if info.mtime_ns is None else text_of(info.mtime_ns // 1000)


def serves(metadata: IcebergMetadata, pins: Mapping[int, str]) -> bool:
    """Whether a metadata file knows all of these snapshots."""
    return pins.keys() <= snapshots(metadata).keys()


# -- pins --------------------------------------------------------------------------------------------------------------


def _pins(look: Examination, branch_table: BranchTable, metadata: IcebergMetadata) -> Iterator[Finding]:
    """Every snapshot that a reader may be at is there, down to its manifests."""
    with look.lake.ledger.read() as conn:
        pins = pinned_snapshots(conn, branch_table.table.table_id)
    snapshot_by_id = snapshots(metadata)
    for pin, reader in pins.items():
        if pin not in snapshot_by_id:
            what = "its pinned snapshot" if pin == branch_table.head.log_snapshot else f"the snapshot of {reader},"
            yield _gone(branch_table, "pin_gone", f"{what} {pin} is not in Iceberg any more")
            continue
        try:
            files = _manifested(snapshot_by_id[pin], deep=look.deep)
        except UNREADABLE as error:
            yield Finding(
                kind="metadata_unreadable",
                about=branch_table.table.name,
                what=f"table {branch_table.table.name}: the metadata of snapshot {pin} ({reader}) can't be read: "
                f"{error}",
                meaning="Flushes and outside engines can't use this table; reads work as long as its data files are "
                "there.",
                fix=f"put the file back from a backup of the warehouse, or {RESTORE}",
            )
            continue
        if files is not None and pin == branch_table.head.log_snapshot:
            yield from _other_files(look, branch_table, files)


def _manifested(snapshot: IcebergSnapshot, *, deep: bool) -> set[str] | None:
    """Follow a snapshot to its manifests; in a deep look, also to the data files that they name."""
    files: set[str] = set()
    for manifest in manifests(snapshot):
        if (size := size_of(manifest.path)) != manifest.size_bytes:
            raise ValueError(f"{manifest.path} has {size:,} bytes instead of {manifest.size_bytes:,}")
        if deep:
            files.update(data_files(manifest))
    return files if deep else None


def _other_files(look: Examination, branch_table: BranchTable, iceberg: set[str]) -> Iterator[Finding]:
    ledger = {file.path for file in look.view.files(branch_table.table.name)}
    if ledger != iceberg:
        yield Finding(
            kind="files_differ",
            about=branch_table.table.name,
            what=f"table {branch_table.table.name}: of the data files of snapshot {branch_table.head.log_snapshot}, "
            f"{len(ledger - iceberg)} are known to the ledger alone and {len(iceberg - ledger)} to Iceberg alone",
            meaning="Reads of the lake and of outside engines don't give the same rows.",
            fix=RESTORE,
        )


def _unreadable(look: Examination, branch_table: BranchTable, location: Location, error: Exception) -> Finding:
    """The current metadata file is damaged. The one before it may do: the last commit of an operation moves a ref."""
    if can_step_back(look, branch_table, location):
        fix = "`strand doctor --fix`   (goes back to the metadata before it, which has every snapshot that is read)"
    else:
        fix = f"put {location.current} back from a backup of the warehouse, or {RESTORE}"
    return Finding(
        kind="metadata_unreadable",
        about=branch_table.table.name,
        what=f"table {branch_table.table.name}: its Iceberg metadata {location.current} can't be read: {error}",
        meaning="Flushes and outside engines can't use this table; reads work as long as its data files are there.",
        fix=fix,
        since=changed_at(location.current),
    )


def can_step_back(look: Examination, branch_table: BranchTable, location: Location) -> bool:
    """Whether the metadata before the last commit has every snapshot that is read, and no operation writes now."""
    if location.previous is None or branch_table.table.table_id in UnderWay.of(look).unsettled:
        return False
    try:
        before = read_metadata(location.previous)
    except UNREADABLE:
        return False
    with look.lake.ledger.read() as conn:
        return serves(before, pinned_snapshots(conn, branch_table.table.table_id))


# -- refs --------------------------------------------------------------------------------------------------------------


def _refs(
    look: Examination, branch_table: BranchTable, metadata: IcebergMetadata, under_way: UnderWay
) -> Iterator[Finding]:
    name, pin = branch_table.table.name, branch_table.head.log_snapshot
    ref_ids = refs(metadata)
    at = ref_ids.get(MAIN_REF)
    if at is not None and not _is_ours(look, branch_table, at):
        yield _unknown_commit(branch_table, metadata, at)
    elif at != pin and branch_table.table.table_id in under_way.unsettled:
        yield Finding(
            kind="unsettled",
            about=name,
            what=f"table {name}: outside engines see snapshot {at or 'none'}, and the lake is at {pin}",
            meaning="An operation or a merge was published and not settled. The lake's own reads are unaffected.",
            fix="`strand recover`   (or the next flush of the table)",
            severity="warning",
        )
    elif at != pin:
        yield Finding(
            kind="ref_moved",
            about=name,
            what=f"table {name}: somebody moved its Iceberg ref {MAIN_REF} to snapshot {at or 'none'}; the lake is at "
            f"{pin}",
            meaning="Outside engines see other rows than the lake. Its own reads are unaffected.",
            fix="`strand doctor --fix`   (moves it to the lake's snapshot; so does the next flush of the table)",
            since=_moved_at(metadata),
        )
    orphans = orphan_branches(ref_ids, under_way)
    if orphans and at == pin:  # otherwise the finding above has the same cause, and the same cure
        yield Finding(
            kind="orphan_branch",
            about=name,
            what=f"table {name}: {len(orphans)} private branches belong to no operation: {', '.join(orphans)}",
            meaning="They are garbage that keeps some files alive; nobody reads them.",
            fix="`strand doctor --fix`   (drops them)",
            severity="warning",
        )


def orphan_branches(ref_ids: Mapping[str, int], under_way: UnderWay) -> Sequence[str]:
    """Private branches of operations that are not under way."""
    return sorted(ref for ref in ref_ids.keys() - under_way.branches if ref.startswith("op_"))


def _unknown_commit(branch_table: BranchTable, metadata: IcebergMetadata, at: int) -> Finding:
    """A commit that the ledger does not know: from outside, or by its summary an operation of a ledger that is gone."""
    name, iceberg_name = branch_table.table.name, branch_table.table.iceberg_name
    since = _committed_at(metadata, at)
    take_back = f"`strand doctor --fix --take-back {name}`"
    snapshot = snapshots(metadata).get(at)
    op_id = None if snapshot is None else (snapshot.get("summary") or {}).get("strand-op")
    if op_id is not None:
        return Finding(
            kind="lost_commit",
            about=name,
            what=f"table {name}: its Iceberg table {iceberg_name} is at snapshot {at} of this lake's "
            f"operation {op_id}, which the ledger does not know",
            meaning="The ledger is older than its warehouse: it was put back from a copy, or another copy of this lake "
            "wrote here. Outside engines see rows that the lake does not, and flushes don't move the ref any more.",
            fix=f"bring the newer ledger back if there is one; if not: {take_back}   (main goes back to the lake's "
            "rows; the commit is kept as a tag, with its rows)",
            since=since,
        )
    return Finding(
        kind="foreign_commit",
        about=name,
        what=f"table {name}: its Iceberg table {iceberg_name} was changed from outside (snapshot {at})",
        meaning="The lake's own rows are complete and its reads are unaffected, but outside engines see the other "
        "commit, and flushes don't move the ref any more.",
        fix=f"keep others from writing {iceberg_name}, then: {take_back}   (main goes back to the lake's "
        "rows; the other commit is kept as a tag)",
        since=since,
    )


def _is_ours(look: Examination, branch_table: BranchTable, snapshot_id: int) -> bool:
    with look.lake.ledger.read() as conn:
        return knows_snapshot(conn, branch_table.table.table_id, snapshot_id)


def _committed_at(metadata: IcebergMetadata, snapshot_id: int) -> str | None:
    snapshot = snapshots(metadata).get(snapshot_id)
    return None if snapshot is None else text_of(int(snapshot["timestamp-ms"]) * 1000)


def _moved_at(metadata: IcebergMetadata) -> str | None:
    """When `main` was moved last."""
    log = metadata.get("snapshot-log") or []
    moved_ms = log[-1]["timestamp-ms"] if log else metadata.get("last-updated-ms")
    return None if moved_ms is None else text_of(int(moved_ms) * 1000)


# -- the catalog -------------------------------------------------------------------------------------------------------


def _strangers(look: Examination, locations: Mapping[str, Location]) -> Iterator[Finding]:
    own = {branch_table.table.iceberg_name for branch_table in look.branch_tables()}
    namespaces = {name.rpartition(".")[0] for name in own}
    strangers = sorted(name for name in locations if name.rpartition(".")[0] in namespaces and name not in own)
    if strangers:
        yield Finding(
            kind="unknown_table",
            about=strangers[0],
            what=f"the Iceberg catalog has {counted(len(strangers), 'table')} that the ledger does not know: "
            f"{', '.join(strangers[:5])}",
            meaning="Somebody made them there, or this ledger is older than its catalog. The lake does not read them.",
            fix="take one in with `strand adopt NAME SOURCE`, or leave it",
            severity="warning",
        )


def _gone(branch_table: BranchTable, kind: str, reason: str) -> Finding:
    return Finding(
        kind=kind,
        about=branch_table.table.name,
        what=f"table {branch_table.table.name}: {reason}",
        meaning="Flushes and outside engines can't use this table; reads work as long as its data files are there.",
        fix=RESTORE,
    )
