"""Questions that only `strand doctor` asks: whether the ledger agrees with itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, or_, select, text

from strandline.ledger.database import schema as db
from strandline.ledger.publish.leases import Lease
from strandline.ledger.sinks.deliveries import UNKNOWN
from strandline.model.delivery.sinks import Stream


def counter_seq(conn: Connection) -> int:
    """The last seq that was handed out."""
    return int(conn.execute(select(db.counter.c.last_seq)).scalar_one())


def counter_at_us(conn: Connection) -> int:
    """The ledger's own time: that of its last write, and never earlier than any before it."""
    return int(conn.execute(select(db.counter.c.last_at_us)).scalar_one())


def highest_seqs(conn: Connection) -> Mapping[str, int]:
    """The highest seq that each group of tables knows of; none may be above the counter."""
    columns = {
        "batches": db.batches.c.last_seq,
        "heads": db.heads.c.last_seq,
        "files": db.files.c.last_seq,
        "commits": db.commits.c.seq,
        "reservations": db.reservations.c.last_seq,
        "stream heads": db.stream_heads.c.last_seq,
    }
    return {name: int(conn.execute(select(func.max(column))).scalar() or 0) for name, column in columns.items()}


def lost_batches(conn: Connection) -> list[tuple[str, str]]:
    """Tables and batches that a tail refers to and that are not there."""
    rows = conn.execute(
        select(db.tables.c.name, db.tail.c.batch_id)
        .join_from(db.tail, db.tables, db.tables.c.table_id == db.tail.c.table_id)
        .outerjoin(db.batches, db.batches.c.batch_id == db.tail.c.batch_id)
        .where(db.batches.c.batch_id.is_(None))
    )
    return [(row.name, row.batch_id) for row in rows]


def broken_references(conn: Connection) -> list[str]:
    """Rows that refer to others that are not there, by table; Postgres refuses to have any."""
    if conn.dialect.name != "sqlite":
        return []
    violations = conn.execute(text("PRAGMA foreign_key_check")).all()
    counted: dict[tuple[str, str], int] = {}
    for table, _rowid, parent, _key in violations:
        counted[table, parent] = counted.get((table, parent), 0) + 1
    return [f"{count} rows of {table} without their {parent}" for (table, parent), count in sorted(counted.items())]


def unresolved_heads(conn: Connection) -> list[tuple[str, str]]:
    """Tables whose head names a snapshot or a schema that the ledger does not know, and which.

    Not those of deleted branches: what these had is forgotten.
    """
    head, snapshot, schema = db.heads.c, db.snapshots.c, db.schemas.c
    rows = conn.execute(
        select(
            db.tables.c.name, head.version, head.log_snapshot, snapshot.snapshot_id, head.schema_version, schema.version
        )
        .join_from(db.heads, db.tables, db.tables.c.table_id == head.table_id)
        .join(db.branches, and_(db.branches.c.branch_id == head.branch_id, db.branches.c.deleted_at_us.is_(None)))
        .outerjoin(
            db.snapshots,
            and_(
                snapshot.branch_id == head.branch_id,
                snapshot.table_id == head.table_id,
                snapshot.version == head.version,
            ),
        )
        .outerjoin(
            db.schemas,
            and_(schema.table_id == head.table_id, schema.version == head.schema_version),
        )
        .where(
            or_(
                and_(schema.version.is_(None), db.tables.c.kind != "state"),
                and_(head.log_snapshot.is_not(None), snapshot.snapshot_id.is_distinct_from(head.log_snapshot)),
            )
        )
    )
    return [
        (name, f"version {version} is snapshot {snapshot_id}, and its head says {pin}" if pin != snapshot_id else
         f"its schema {schema_version} is not there")
        for name, version, pin, snapshot_id, schema_version, _ in rows
    ]  # fmt: skip


@dataclass(frozen=True)
class MarkAhead:
    """A watermark that is above the last row of its stream."""

    sink_id: str
    sink: str
    stream: Stream
    table: str
    seq: int
    head_seq: int
    delivered_at_us: int | None


def marks_ahead(conn: Connection) -> list[MarkAhead]:
    """Watermarks past their stream's head, on branches that are there.

    Up to the seq that a backup ended at, a restore may have put them there: the destination was further than the
    backup's log, and the rows are in its tail.
    """
    restored = select(func.coalesce(func.max(db.restores.c.backup_seq), 0)).scalar_subquery()
    mark, head = db.watermarks.c, db.stream_heads.c
    rows = conn.execute(
        select(db.watermarks, head.last_seq, db.sinks.c.name.label("sink"), db.tables.c.name.label("table"))
        .join_from(db.watermarks, db.sinks, db.sinks.c.sink_id == mark.sink_id)
        .join(db.tables, db.tables.c.table_id == mark.table_id)
        .outerjoin(
            db.stream_heads,
            and_(head.branch_id == mark.branch_id, head.table_id == mark.table_id, head.partition == mark.partition),
        )
        .join(db.branches, and_(db.branches.c.branch_id == mark.branch_id, db.branches.c.kind == "branch"))
        .where(mark.epoch > UNKNOWN, mark.seq > func.coalesce(head.last_seq, 0), mark.seq > restored)
        .where(db.branches.c.deleted_at_us.is_(None))
        .order_by(db.sinks.c.name, db.tables.c.name, mark.partition)
    )
    return [
        MarkAhead(
            row.sink_id,
            row.sink,
            Stream(row.branch_id, row.table_id, row.partition),
            row.table,
            row.seq,
            row.last_seq or 0,
            row.delivered_at_us,
        )
        for row in rows
    ]


def held_leases(conn: Connection) -> list[Lease]:
    """Every lease that is held for work that is no operation; those of operations go with their intents."""
    rows = conn.execute(
        select(db.leases)
        .outerjoin(db.intents, db.intents.c.op_id == db.leases.c.op_id)
        .where(db.leases.c.owner.is_not(None), db.intents.c.op_id.is_(None))
        .order_by(db.leases.c.name)
    )
    return [Lease(*row) for row in rows]


def pinned_snapshots(conn: Connection, table_id: str) -> dict[int, str]:
    """Every snapshot of a table that has a reader, and its reader."""
    delivery, head = db.deliveries.c, db.heads.c
    sent = conn.execute(
        select(delivery.snapshot_id, db.sinks.c.name)
        .join(db.sinks, db.sinks.c.sink_id == delivery.sink_id)
        .where(delivery.table_id == table_id)
    )
    readers = {int(snapshot): f"the open delivery of sink {name}" for snapshot, name in sent}
    pins = conn.execute(
        select(head.log_snapshot)
        .join(db.branches, and_(db.branches.c.branch_id == head.branch_id, db.branches.c.deleted_at_us.is_(None)))
        .where(head.table_id == table_id, head.log_snapshot.is_not(None))
    ).scalars()
    return {**readers, **{int(pin): "the table's head" for pin in pins}}


def known_paths(conn: Connection, table_id: str) -> set[str]:
    """Every data file of a table that the ledger knows, of any version."""
    return set(conn.execute(select(db.files.c.path).where(db.files.c.table_id == table_id)).scalars())
