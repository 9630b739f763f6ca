"""How far rows may be removed: up to the lowest watermark of the sinks that follow a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from strandline.errors import TableMoved
from strandline.ledger.database import schema as db
from strandline.ledger.sinks.sinks import list_sinks


@dataclass(frozen=True)
class Limit:
    """A sink has delivered a stream up to this seq, and still needs what is behind it."""

    sink: str
    partition: str
    seq: int


def read_limits(conn: Connection, branch_id: str, table_id: str) -> list[Limit]:
    """Every stream of a table with every sink that follows it; those that are furthest behind first."""
    stream, mark = db.stream_heads.c, db.watermarks.c
    streams = list(
        conn.execute(
            select(stream.partition).where(stream.branch_id == branch_id, stream.table_id == table_id)
        ).scalars()
    )
    marks = {
        (row.sink_id, row.partition): row.seq
        for row in conn.execute(
            select(mark.sink_id, mark.partition, mark.seq).where(mark.branch_id == branch_id, mark.table_id == table_id)
        )
    }
    limits = [
        Limit(sink.name, partition, marks.get((sink.sink_id, partition), sink.start_seq))
        for sink in list_sinks(conn)
        if sink.branch_id == branch_id and (sink.tables is None or table_id in sink.tables)
        for partition in streams
    ]
    return sorted(limits, key=lambda limit: (limit.seq, limit.sink, limit.partition))


def lowest(limits: Iterable[Limit]) -> dict[str, Limit]:
    """Of each stream, the sink that holds it back."""
    by_partition: dict[str, Limit] = {}
    for limit in limits:
        if limit.partition not in by_partition or limit.seq < by_partition[limit.partition].seq:
            by_partition[limit.partition] = limit
    return by_partition


def check_limits(conn: Connection, branch_id: str, table_id: str, pruned: Mapping[str, int]) -> None:
    """Conflict when rows that are about to go lie behind a watermark: it was moved back, or a sink was added."""
    for partition, limit in lowest(read_limits(conn, branch_id, table_id)).items():
        if pruned.get(partition, 0) > limit.seq:
            raise TableMoved(
                f"sink {limit.sink!r} has come to seq {limit.seq} of stream {partition} of table {table_id}, and rows "
                f"up to {pruned[partition]} were to be removed",
                hint="Nothing was removed. The sink was moved back or added meanwhile; the next run looks again.",
                expected=pruned[partition],
                actual=limit.seq,
            )
