"""How much of each stream a sink has still to deliver, counted from what the ledger knows of files and tails."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, and_, func, select
from sqlalchemy.sql.expression import case

from strandline.ledger.database import schema as db
from strandline.model.delivery.sinks import Sink, Stream


@dataclass(frozen=True)
class Lag:
    """Rows to deliver, and since when the oldest of them waits; a half delivered file is counted by its seqs."""

    rows: int
    since_us: int | None


def read_lags(conn: Connection, sink: Sink) -> dict[Stream, Lag]:
    """The lag of every stream that has one; two queries, however many streams there are."""
    lags = _in_the_log(conn, sink)
    for stream, lag in _in_the_tail(conn, sink).items():
        logged = lags.get(stream, Lag(0, None))
        since = min(at_us for at_us in (logged.since_us, lag.since_us) if at_us is not None)
        lags[stream] = Lag(logged.rows + lag.rows, since)
    return lags


def _in_the_log(conn: Connection, sink: Sink) -> dict[Stream, Lag]:
    file, mark = db.files.c, db.watermarks.c
    reached = func.coalesce(mark.seq, sink.start_seq)
    left = case((file.first_seq > reached, file.rows), else_=_least(file.rows, file.last_seq - reached))
    query = (
        select(file.branch_id, file.table_id, file.partition, func.sum(left), func.min(file.at_us))
        .join_from(
            db.files,
            db.watermarks,
            and_(
                mark.sink_id == sink.sink_id,
                mark.branch_id == file.branch_id,
                mark.table_id == file.table_id,
                mark.partition == file.partition,
            ),
            isouter=True,
        )
        .where(file.branch_id == sink.branch_id, file.removed_version.is_(None), file.last_seq > reached)
        .group_by(file.branch_id, file.table_id, file.partition)
    )
    if sink.tables is not None:
        query = query.where(file.table_id.in_(list(sink.tables)))
    return {Stream(row[0], row[1], row[2]): Lag(int(row[3]), row[4]) for row in conn.execute(query)}


def _least(left: object, right: object) -> object:
    return case((left < right, left), else_=right)  # type: ignore[operator]


def _in_the_tail(conn: Connection, sink: Sink) -> dict[Stream, Lag]:
    batch = db.batches.c
    query = (
        select(batch.table_id, batch.partitions, batch.at_us)
        .join_from(db.tail, db.batches, db.tail.c.batch_id == batch.batch_id)
        .where(db.tail.c.branch_id == sink.branch_id)
    )
    if sink.tables is not None:
        query = query.where(db.tail.c.table_id.in_(list(sink.tables)))
    lags: dict[Stream, Lag] = {}
    for row in conn.execute(query):
        for partition, rows in orjson.loads(row.partitions).items():
            stream = Stream(sink.branch_id, row.table_id, partition)
            earlier = lags.get(stream, Lag(0, row.at_us))
            lags[stream] = Lag(earlier.rows + rows, min(earlier.since_us or row.at_us, row.at_us))
    return lags
