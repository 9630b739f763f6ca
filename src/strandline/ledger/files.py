"""Snapshots and their data files: a cache of Iceberg's metadata, so that a read is planned by one query.

A file is recorded with the version that added it and the version that removed it. A publish writes the change alone,
and the files of any version are one range query, however long the history is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, or_, select

from strandline.ledger import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.tables import DataFile


def add_snapshot(
    txn: Txn, branch_id: str, table_id: str, version: int, *, snapshot_id: int, op_id: str, kind: str, rows: int
) -> None:
    """Record that `version` of a (branch, table) is this Iceberg snapshot."""
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
    txn: Txn, branch_id: str, table_id: str, version: int, schema_version: int, files: Sequence[DataFile]
) -> None:
    """Record the files that `version` added."""
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
                "schema_version": schema_version,
            }
            for file in files
        ],
    )


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
    """The files of a version in seq order; those alone that can hold rows of the range or partitions."""
    file = db.files.c
    columns = (file.path, file.rows, file.size_bytes, file.first_seq, file.last_seq, file.partition, file.origin)
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
    return [DataFile(*row[:-1], origin=bool(row.origin)) for row in rows]


def knows_snapshot(conn: Connection, table_id: str, snapshot_id: int) -> bool:
    """Whether we published this snapshot; one that we did not is somebody else's commit."""
    return (
        conn.execute(
            select(db.snapshots.c.version)
            .where(db.snapshots.c.table_id == table_id, db.snapshots.c.snapshot_id == snapshot_id)
            .limit(1)
        ).scalar()
        is not None
    )


def list_snapshots(conn: Connection, branch_id: str, table_id: str, *, limit: int) -> list[dict[str, Any]]:
    """The last snapshots of a (branch, table), newest first."""
    snapshot = db.snapshots.c
    rows = conn.execute(
        select(snapshot.version, snapshot.snapshot_id, snapshot.op_id, snapshot.kind, snapshot.rows, snapshot.at_us)
        .where(snapshot.branch_id == branch_id, snapshot.table_id == table_id)
        .order_by(snapshot.version.desc())
        .limit(limit)
    )
    return [dict(row._mapping) for row in rows]
