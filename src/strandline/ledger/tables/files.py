"""Snapshots and their data files: a cache of Iceberg's metadata, so that a read is planned by one query.

A file is recorded with the version that added it and the version that removed it. A publish writes the change alone,
and the files of any version are one range query, however long the history is. When a version is expired, the files that
no other version has leave the cache with it; so a reader that asks for the files of a version is told when it is gone,
and never gets a part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from sqlalchemy import Connection, func, insert, or_, select, update

from strandline.errors import HistoryGone
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.tables import DataFile

CHUNK = 500
_FILE_COLUMNS = [field.name for field in fields(DataFile)]


def add_snapshot(
    txn: Txn, branch_id: str, table_id: str, version: int, *, snapshot_id: int, op_id: str, kind: str, rows: int
) -> None:
    """Record that `version` of a (branch, table) is this Iceberg snapshot; the one before it begins its grace."""
    snapshot = db.snapshots.c
    txn.conn.execute(
        update(db.snapshots)
        .where(snapshot.branch_id == branch_id, snapshot.table_id == table_id, snapshot.superseded_at_us.is_(None))
        .values(superseded_at_us=txn.at_us)
    )
    txn.conn.execute(
        insert(db.snapshots).values(
            branch_id=branch_id,
            table_id=table_id,
            version=version,
            snapshot_id=snapshot_id,
            op_id=op_id,
            kind=kind,
            rows=rows,
            at_us=txn.at_us,
        )
    )


def add_files(
    txn: Txn,
    branch_id: str,
    table_id: str,
    version: int,
    files: Sequence[DataFile],
    replaced: Sequence[Replaced] = (),
) -> None:
    """Record the files that `version` added; their rows are as old as those of the files that they replace."""
    if not files:
        return
    txn.conn.execute(
        insert(db.files),
        [
            {
                "branch_id": branch_id,
                "table_id": table_id,
                "path": file.path,
                "added_version": version,
                "removed_version": None,
                "rows": file.rows,
                "size_bytes": file.size_bytes,
                "first_seq": file.first_seq,
                "last_seq": file.last_seq,
                "partition": file.partition,
                "origin": int(file.origin),
                "schema_version": file.schema_version,
                "at_us": min((old.at_us for old in replaced if old.overlaps(file)), default=txn.at_us),
                "oldest_us": file.oldest_us,
                "newest_us": file.newest_us,
            }
            for file in files
        ],
    )


@dataclass(frozen=True)
class Replaced:
    """A file that a publish removes: where its rows were, and since when."""

    partition: str
    first_seq: int
    last_seq: int
    at_us: int

    def overlaps(self, file: DataFile) -> bool:
        """Whether rows of it may be in this file."""
        within = self.first_seq <= file.last_seq and file.first_seq <= self.last_seq
        return within and self.partition == file.partition


def remove_files(txn: Txn, branch_id: str, table_id: str, version: int, paths: Sequence[str]) -> list[Replaced]:
    """Record that `version` lacks these files, all of which the version before it has."""
    file = db.files.c
    removed: list[Replaced] = []
    for start in range(0, len(paths), CHUNK):
        chunk = list(paths[start : start + CHUNK])
        where = (file.branch_id == branch_id, file.table_id == table_id, file.path.in_(chunk))
        rows = txn.conn.execute(
            select(file.partition, file.first_seq, file.last_seq, file.at_us).where(
                *where, file.removed_version.is_(None)
            )
        )
        removed.extend(Replaced(*row) for row in rows)
        txn.conn.execute(update(db.files).where(*where).values(removed_version=version))
    assert len(removed) == len(paths), (
        f"{len(paths)} files are removed from {table_id}, and it has {len(removed)} of them"
    )
    return removed


def read_files(
    conn: Connection,
    branch_id: str,
    table_id: str,
    version: int,
    *,
    since: int | None = None,
    until: int | None = None,
    partitions: Sequence[str] | None = None,
) -> list[DataFile]:
    """The files of a version in seq order; those alone that can hold rows of the range or partitions.

    HistoryGone when the version was expired: some of its files may be gone, and those that are not are not all.
    """
    if version and not _has_version(conn, branch_id, table_id, version):
        raise HistoryGone(f"version {version} of table {table_id} has expired", table=table_id, version=version)
    file = db.files.c
    columns = [file[name] for name in _FILE_COLUMNS]
    query = select(*columns).where(
        file.branch_id == branch_id,
        file.table_id == table_id,
        file.added_version <= version,
        or_(file.removed_version.is_(None), file.removed_version > version),
    )
    if since is not None:
        query = query.where(file.last_seq > since)
    if until is not None:
        query = query.where(file.first_seq <= until)
    if partitions is not None:
        query = query.where(file.partition.in_(list(partitions)))
    rows = conn.execute(query.order_by(file.first_seq, file.path))
    return [DataFile(**{**row._mapping, "origin": bool(row.origin)}) for row in rows]


def set_times(txn: Txn, branch_id: str, table_id: str, path: str, oldest_us: int | None, newest_us: int | None) -> None:
    """Write down what was found in a file that was not looked into before."""
    file = db.files.c
    txn.conn.execute(
        update(db.files)
        .where(file.branch_id == branch_id, file.table_id == table_id, file.path == path)
        .values(oldest_us=oldest_us, newest_us=newest_us)
    )


def _has_version(conn: Connection, branch_id: str, table_id: str, version: int) -> bool:
    snapshot = db.snapshots.c
    return (
        conn.execute(
            select(snapshot.version).where(
                snapshot.branch_id == branch_id, snapshot.table_id == table_id, snapshot.version == version
            )
        ).scalar()
        is not None
    )


def has_snapshots(conn: Connection, table_id: str) -> bool:
    """Whether anything was published of this table, on whatever branch."""
    query = select(db.snapshots.c.version).where(db.snapshots.c.table_id == table_id).limit(1)
    return conn.execute(query).scalar() is not None


def knows_snapshot(conn: Connection, table_id: str, snapshot_id: int) -> bool:
    """Whether we published this snapshot; one that we did not is another program's commit."""
    return (
        conn.execute(
            select(db.snapshots.c.version)
            .where(db.snapshots.c.table_id == table_id, db.snapshots.c.snapshot_id == snapshot_id)
            .limit(1)
        ).scalar()
        is not None
    )


def count_snapshots(conn: Connection, branch_id: str, table_id: str) -> tuple[int, int]:
    """How many snapshots of a (branch, table) are kept, and how many files the cache knows of them."""
    snapshot, file = db.snapshots.c, db.files.c
    kept = select(func.count()).where(snapshot.branch_id == branch_id, snapshot.table_id == table_id)
    cached = select(func.count()).where(file.branch_id == branch_id, file.table_id == table_id)
    return int(conn.execute(kept).scalar_one()), int(conn.execute(cached).scalar_one())


@dataclass(frozen=True)
class ListedSnapshot:
    """A snapshot of a table, as the ledger wrote it down."""

    version: int
    snapshot_id: int
    op_id: str
    kind: str
    rows: int
    at_us: int


def list_snapshots(conn: Connection, branch_id: str, table_id: str, *, limit: int) -> list[ListedSnapshot]:
    """The last snapshots of a (branch, table), newest first."""
    snapshot = db.snapshots.c
    rows = conn.execute(
        select(snapshot.version, snapshot.snapshot_id, snapshot.op_id, snapshot.kind, snapshot.rows, snapshot.at_us)
        .where(snapshot.branch_id == branch_id, snapshot.table_id == table_id)
        .order_by(snapshot.version.desc())
        .limit(limit)
    )
    return [ListedSnapshot(*row) for row in rows]
