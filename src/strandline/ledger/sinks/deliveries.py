"""Watermarks and deliveries: how far a sink has come, and what it is sending now.

A delivery is written before anything is sent and closed in the transaction that moves the watermark. Every write here
compares the lease of the stream and the id of the delivery, so that a ticker which was paused, and wakes up when
another has gone on, changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import Connection, and_, case, delete, insert, or_, select, update

from strandline.errors import LeaseLost
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.leases import Hold
from strandline.ledger.tables.holds import pin
from strandline.model.delivery.sinks import (
    Delivery,
    FollowedStream,
    Mark,
    Noted,
    SentChunk,
    Shipped,
    Sink,
    SinkSettings,
    Stream,
    Tally,
)
from strandline.model.ids import new_id

UNKNOWN = 0
"""The epoch of a stream whose destination could not be asked yet; real ones begin at 1.

One below it is an epoch that a restore has turned round: the mark is the backup's, and its destination must be asked
before anything is sent.
"""


def read_streams(
    conn: Connection, sink: Sink, *, due: bool = False, only: Stream | None = None
) -> list[FollowedStream]:
    """The streams that a sink follows, those furthest behind first; with `due`, those alone with something to do.

    One query, however many streams there are.
    """
    head, mark, open_ = db.stream_heads.c, db.watermarks.c, db.deliveries.c
    query = (
        select(db.stream_heads, db.tables.c.name.label("table"), *_labelled(db.watermarks), *_labelled(db.deliveries))
        .join(db.tables, db.tables.c.table_id == head.table_id)
        .outerjoin(db.watermarks, _of_stream(mark, sink.sink_id))
        .outerjoin(db.deliveries, _of_stream(open_, sink.sink_id))
        .where(head.branch_id == sink.branch_id)
        .order_by(mark.seq, db.tables.c.name, head.partition)
    )
    if sink.tables is not None:
        query = query.where(head.table_id.in_(list(sink.tables)))
    if only is not None:
        query = query.where(head.table_id == only.table_id, head.partition == only.partition)
    if due:
        query = query.where(
            or_(
                open_.delivery_id.is_not(None),
                head.last_seq > mark.seq,
                and_(mark.seq.is_(None), head.last_seq > sink.start_seq),
            )
        )
    return [_followed(dict(row._mapping)) for row in conn.execute(query)]


def read_stream(conn: Connection, sink: Sink, stream: Stream) -> FollowedStream | None:
    """One stream of a sink; None when it has no rows in the log."""
    return next(iter(read_streams(conn, sink, only=stream)), None)


def tables_with_tails(conn: Connection, sink: Sink) -> list[str]:
    """The tables that a sink follows and that have rows which are not in the log yet, by name."""
    query = (
        select(db.tables.c.name)
        .join(db.tail, db.tail.c.table_id == db.tables.c.table_id)
        .where(db.tail.c.branch_id == sink.branch_id)
        .distinct()
        .order_by(db.tables.c.name)
    )
    if sink.tables is not None:
        query = query.where(db.tables.c.table_id.in_(list(sink.tables)))
    return [str(name) for name in conn.execute(query).scalars()]


def read_noted(conn: Connection, sink_id: str, stream: Stream) -> Noted | None:
    """A watermark as it is written down, also one that does not count yet; None where there is none."""
    mark = db.watermarks.c
    row = conn.execute(select(db.watermarks).where(*_where(mark, sink_id, stream))).one_or_none()
    if row is None:
        return None
    chunk = SentChunk(row.chunk_since, row.chunk_until, row.chunk_digest) if row.chunk_digest is not None else None
    return Noted(
        mark=Mark(row.epoch, row.seq),
        acked_epoch=row.acked_epoch or 0,
        rewound_epoch=row.rewound_epoch or 0,
        chunk=chunk,
        lacking_upto=row.lacking_upto or 0,
        hole_upto=row.hole_upto or 0,
        replayed=row.replayed,
    )


def begin_at(
    txn: Txn, hold: Hold, sink_id: str, stream: Stream, mark: Mark, *, chunk: SentChunk | None, acked_epoch: int,
    lacking_upto: int = 0,
) -> None:  # fmt: skip
    """A stream goes on behind a mark that follows from its destination's; what was open there is cancelled.

    Of the rows up to `lacking_upto` only those are sent that the destination lacks.
    """
    kept = {"acked_epoch": acked_epoch or None, "lacking_upto": lacking_upto or None, **_chunk_values(chunk)}
    _set_mark(txn, hold, sink_id, stream, mark, kept)


def open_epoch(
    txn: Txn, hold: Hold, sink_id: str, stream: Stream, mark: Mark, *, lacking_upto: int = 0, hole_upto: int = 0
) -> None:
    """A person lets a stream go on behind a mark, in an epoch of its own; what was open there is cancelled."""
    rewind: dict[str, Any] = {"rewound_epoch": mark.epoch, "lacking_upto": lacking_upto or None}
    _set_mark(txn, hold, sink_id, stream, mark, rewind | ({"hole_upto": hole_upto} if hole_upto else {}))


def has_delivered(conn: Connection, sink: Sink, table: str | None = None) -> bool:
    """Whether a sink has come further than its start in any stream, or in any of a table: its place was in use."""
    mark = db.watermarks.c
    query = select(mark.sink_id).where(
        mark.sink_id == sink.sink_id,
        or_(mark.units > 0, and_(mark.epoch != UNKNOWN, mark.seq > sink.start_seq)),
    )
    if table is not None:
        query = query.join(db.tables, db.tables.c.table_id == mark.table_id).where(db.tables.c.name == table)
    return conn.execute(query.limit(1)).scalar() is not None


def begin_anew(txn: Txn, hold: Hold, sink: Sink, stream: Stream, *, above: int) -> Mark:
    """Send everything of a stream again, to a place that has nothing of it, in an epoch above all that were used.

    What was delivered to the place that is gone counts no more.
    """
    noted = read_noted(txn.conn, sink.sink_id, stream)
    used = max(abs(noted.mark.epoch), noted.acked_epoch) if noted is not None else 0
    mark = Mark(max(used, above) + 1, sink.start_seq)
    nothing = {"rows": 0, "withheld": 0, "size_bytes": 0, "units": 0, "delivered_at_us": None, "acked_epoch": None}
    rewind = {"rewound_epoch": mark.epoch, "lacking_upto": None, "hole_upto": None, **_chunk_values(None)}
    _set_mark(txn, hold, sink.sink_id, stream, mark, {**nothing, **rewind})
    return mark


def forget_mark(txn: Txn, hold: Hold, sink: Sink, stream: Stream) -> None:
    """Let the next tick ask the destination where it is; what was open in the stream is cancelled.

    The highest epoch that was used stays known: it is not used again.
    """
    noted = read_noted(txn.conn, sink.sink_id, stream)
    used = max(noted.acked_epoch, noted.mark.epoch) if noted is not None else 0
    kept = {"acked_epoch": used or None, "lacking_upto": None, "replayed": None, **_chunk_values(None)}
    _set_mark(txn, hold, sink.sink_id, stream, Mark(UNKNOWN, sink.start_seq), kept)


def note_replayed(txn: Txn, hold: Hold, sink_id: str, stream: Stream, replayed: str) -> None:
    """The two sides agree on the replayed letters: those that the destination counts so."""
    hold.check(txn)
    where = _where(db.watermarks.c, sink_id, stream)
    txn.conn.execute(update(db.watermarks).where(*where).values(replayed=replayed))


def forget_replayed(txn: Txn, sink_id: str, stream: Stream) -> None:
    """A letter was replayed: what the two sides last agreed on no longer holds."""
    txn.conn.execute(update(db.watermarks).where(*_where(db.watermarks.c, sink_id, stream)).values(replayed=None))


def _set_mark(txn: Txn, hold: Hold, sink_id: str, stream: Stream, mark: Mark, kept: Mapping[str, Any]) -> None:
    hold.check(txn)
    txn.conn.execute(delete(db.deliveries).where(*_where(db.deliveries.c, sink_id, stream)))
    where = _where(db.watermarks.c, sink_id, stream)
    values = {"epoch": mark.epoch, "seq": mark.seq, "last_error": None, **kept}
    if txn.conn.execute(update(db.watermarks).where(*where).values(**values)).rowcount == 0:
        _insert_mark(txn, sink_id, stream, mark)
        txn.conn.execute(update(db.watermarks).where(*where).values(**values))


def _chunk_values(chunk: SentChunk | None) -> dict[str, Any]:
    if chunk is None:
        return {"chunk_since": None, "chunk_until": None, "chunk_digest": None}
    return {"chunk_since": chunk.since, "chunk_until": chunk.until, "chunk_digest": chunk.digest}


def _insert_mark(txn: Txn, sink_id: str, stream: Stream, mark: Mark) -> None:
    nothing = {"rows": 0, "withheld": 0, "dead": 0, "size_bytes": 0, "units": 0}
    txn.conn.execute(
        insert(db.watermarks).values(sink_id=sink_id, **_key(stream), epoch=mark.epoch, seq=mark.seq, **nothing)
    )


def open_delivery(txn: Txn, hold: Hold, draft: Delivery) -> Delivery:
    """Write down what will be sent. Its snapshot is pinned from here on; HistoryGone when it expired meanwhile."""
    hold.check(txn)
    pin(txn, draft.stream.table_id, draft.snapshot)
    delivery = replace(draft, delivery_id=new_id(), opened_at_us=txn.at_us)
    txn.conn.execute(
        insert(db.deliveries).values(
            delivery_id=delivery.delivery_id,
            sink_id=delivery.sink_id,
            **_key(delivery.stream),
            epoch=delivery.epoch,
            since=delivery.since,
            until=delivery.until,
            version=delivery.version,
            snapshot_id=delivery.snapshot,
            schema_version=delivery.schema_version,
            settings=orjson.dumps(dict(delivery.settings)).decode(),
            opened_at_us=delivery.opened_at_us,
            attempts=0,
            not_before_us=0,
        )
    )
    return delivery


def removed_upto(conn: Connection, stream: Stream) -> int:
    """The highest seq of a stream that retention has removed from its log, 0 if it has removed none."""
    head = db.stream_heads.c
    upto = conn.execute(
        select(head.pruned_upto).where(*(getattr(head, name) == value for name, value in _key(stream).items()))
    ).scalar()
    return int(upto or 0)


def close_delivery(txn: Txn, hold: Hold, delivery: Delivery, shipped: Shipped) -> None:
    """The unit has arrived: the watermark moves to its end, and the delivery is gone."""
    hold.check(txn)
    gone = txn.conn.execute(delete(db.deliveries).where(db.deliveries.c.delivery_id == delivery.delivery_id))
    if gone.rowcount != 1:
        raise _cancelled(delivery)
    mark = db.watermarks.c
    moved = txn.conn.execute(
        update(db.watermarks)
        .where(
            *_where(mark, delivery.sink_id, delivery.stream), mark.epoch == delivery.epoch, mark.seq == delivery.since
        )
        .values(
            seq=delivery.until,
            rows=mark.rows + shipped.rows,
            withheld=mark.withheld + shipped.withheld,
            size_bytes=mark.size_bytes + shipped.size_bytes,
            units=mark.units + 1,
            delivered_at_us=txn.at_us,
            last_error=None,
            acked_epoch=delivery.epoch,
            # A person's word was about this hole: the next one is asked about anew.
            hole_upto=case((mark.hole_upto <= delivery.until, None), else_=mark.hole_upto),
            **(_chunk_values(shipped.chunk) if shipped.chunk is not None else {}),
        )
    )
    assert moved.rowcount == 1, f"delivery {delivery.delivery_id} does not begin where its watermark is"


def set_settings(txn: Txn, hold: Hold, delivery: Delivery, settings: SinkSettings) -> None:
    """Change what a delivery was opened under, as far as it says nothing about its rows."""
    hold.check(txn)
    text = orjson.dumps(dict(settings)).decode()
    where = db.deliveries.c.delivery_id == delivery.delivery_id
    if txn.conn.execute(update(db.deliveries).where(where).values(settings=text)).rowcount != 1:
        raise _cancelled(delivery)


def note_failure(
    txn: Txn, hold: Hold, delivery: Delivery, *, error: str, attempts: int, wait_s: float, parked: bool
) -> Delivery:
    """A shipment did not work: remember why, how often, and when to try again; parked, it waits for a person."""
    hold.check(txn)
    not_before_us = time.time_ns() // 1000 + int(wait_s * 1_000_000)  # the ledger's own time may be ahead of the clock
    reason = error if parked else None
    changed = txn.conn.execute(
        update(db.deliveries)
        .where(db.deliveries.c.delivery_id == delivery.delivery_id)
        .values(attempts=attempts, not_before_us=not_before_us, last_error=error, parked=reason)
    )
    if changed.rowcount != 1:
        raise _cancelled(delivery)
    txn.conn.execute(
        update(db.watermarks)
        .where(*_where(db.watermarks.c, delivery.sink_id, delivery.stream))
        .values(last_error=error, last_error_at_us=txn.at_us)
    )
    return replace(delivery, attempts=attempts, not_before_us=not_before_us, last_error=error, parked=reason)


def note_error(txn: Txn, sink: Sink, stream: Stream, error: str) -> None:
    """The last thing that went wrong in a stream; also in one whose mark is not known yet."""
    values = {"last_error": error, "last_error_at_us": txn.at_us}
    where = _where(db.watermarks.c, sink.sink_id, stream)
    if txn.conn.execute(update(db.watermarks).where(*where).values(**values)).rowcount == 0:
        _insert_mark(txn, sink.sink_id, stream, Mark(UNKNOWN, sink.start_seq))
        txn.conn.execute(update(db.watermarks).where(*where).values(**values))


def unpark(txn: Txn, sink_id: str, stream: Stream | None = None) -> int:
    """Let parked deliveries of a sink, or of one stream, be tried again, with all their attempts; how many."""
    open_ = db.deliveries.c
    where = [open_.sink_id == sink_id] if stream is None else _where(open_, sink_id, stream)
    parked = update(db.deliveries).where(*where, open_.parked.is_not(None))
    freed = txn.conn.execute(parked.values(parked=None, attempts=0, not_before_us=0))
    txn.conn.execute(update(db.deliveries).where(*where).values(attempts=0, not_before_us=0))
    return int(freed.rowcount)


def _cancelled(delivery: Delivery) -> LeaseLost:
    return LeaseLost(
        f"delivery {delivery.delivery_id} was finished or cancelled by another process", delivery=delivery.delivery_id
    )


def _key(stream: Stream) -> dict[str, str]:
    return {"branch_id": stream.branch_id, "table_id": stream.table_id, "partition": stream.partition}


def _where(column: Any, sink_id: str, stream: Stream) -> list[Any]:
    return [column.sink_id == sink_id, *(getattr(column, name) == value for name, value in _key(stream).items())]


def _of_stream(column: Any, sink_id: str) -> Any:
    head = db.stream_heads.c
    return and_(
        column.sink_id == sink_id,
        column.branch_id == head.branch_id,
        column.table_id == head.table_id,
        column.partition == head.partition,
    )


def _labelled(table: Any) -> list[Any]:
    return [column.label(f"{table.name}_{column.name}") for column in table.columns]


def _followed(row: dict[str, Any]) -> FollowedStream:
    def of(table: str) -> dict[str, Any]:
        prefix = f"{table}_"
        return {key.removeprefix(prefix): value for key, value in row.items() if key.startswith(prefix)}

    stream = Stream(row["branch_id"], row["table_id"], row["partition"])
    mark, open_ = of("watermarks"), of("deliveries")
    has_mark = mark["seq"] is not None
    return FollowedStream(
        stream=stream,
        table=row["table"],
        mark=Mark(mark["epoch"], mark["seq"]) if has_mark and mark["epoch"] > UNKNOWN else None,
        head_seq=row["last_seq"],
        tally=Tally(mark["rows"], mark["withheld"], mark["dead"], mark["size_bytes"], mark["units"])
        if has_mark
        else Tally(),
        last_error=mark["last_error"],
        last_error_at_us=mark["last_error_at_us"],
        delivered_at_us=mark["delivered_at_us"],
        delivery=_delivery(stream, row["table"], open_) if open_["delivery_id"] is not None else None,
    )


def _delivery(stream: Stream, table: str, row: dict[str, Any]) -> Delivery:
    return Delivery(
        delivery_id=row["delivery_id"],
        sink_id=row["sink_id"],
        stream=stream,
        table=table,
        epoch=row["epoch"],
        since=row["since"],
        until=row["until"],
        version=row["version"],
        snapshot=row["snapshot_id"],
        schema_version=row["schema_version"],
        settings=orjson.loads(row["settings"]),
        opened_at_us=row["opened_at_us"],
        attempts=row["attempts"],
        not_before_us=row["not_before_us"],
        last_error=row["last_error"],
        parked=row["parked"],
    )
