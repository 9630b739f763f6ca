"""How far every sink is: for `strand status`, `strand sink show` and the metrics alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from strandline.ledger.history.branches import living_branch
from strandline.ledger.ledger import Connection
from strandline.ledger.sinks import dead_letters, deliveries
from strandline.ledger.sinks.lags import Lag, read_lags
from strandline.ledger.sinks.sinks import list_sinks
from strandline.ledger.tables.tables import list_tables
from strandline.model.delivery.sinks import Delivery, FollowedStream, Sink, Stream, Tally
from strandline.model.times import text_of
from strandline.redaction import redacted
from strandline.sinks.settings import shown


@dataclass(frozen=True)
class SinkLag:
    """Rows that a sink, or one of its streams, has still to deliver, and how long the oldest of them waits."""

    rows: int
    age_s: float | None


@dataclass(frozen=True)
class DeliveredRows:
    """What a stream has delivered since its sink was made, and when it did last."""

    rows: int
    withheld: int
    bytes: int
    units: int
    at: str | None


@dataclass(frozen=True)
class OpenDelivery:
    """What a stream is sending now; `parked` is why that waits for a person."""

    delivery: str
    since: int
    until: int
    attempts: int
    opened: str | None
    not_before: str | None
    last_error: str | None
    parked: str | None


@dataclass(frozen=True)
class StreamStatus:
    """How far a sink is in one partition of one table; `epoch` is None until its destination was asked."""

    table: str
    partition: str
    stream: str
    stream_id: str
    epoch: int | None
    watermark: int
    head: int
    lag: SinkLag
    delivered: DeliveredRows
    rows_per_s: float | None
    dead_letters: int
    last_error: str | None
    last_error_at: str | None
    delivery: OpenDelivery | None


@dataclass(frozen=True)
class SinkStatus:
    """A sink with its streams. `branch` is None where that was deleted, `tables` where it follows all of them."""

    sink: str
    sink_id: str
    type: str
    branch: str | None
    tables: tuple[str, ...] | None
    settings: Mapping[str, object]
    start_seq: int
    receiver: str | None
    hold_until: str | None
    from_config: bool | None
    paused: str | None
    last_tick: str | None
    last_delivery: str | None
    lag: SinkLag
    parked: int
    dead_letters: int
    streams: tuple[StreamStatus, ...]


def sinks(conn: Connection) -> list[SinkStatus]:
    """Every sink with its streams, as one database snapshot shows them."""
    letters = dead_letters.count_open(conn)
    return [_sink(conn, sink, letters) for sink in list_sinks(conn)]


def one_sink(conn: Connection, sink: Sink) -> SinkStatus:
    """One sink with its streams."""
    return _sink(conn, sink, dead_letters.count_open(conn))


def _sink(conn: Connection, sink: Sink, letters: Mapping[tuple[str, Stream], int]) -> SinkStatus:
    names = {table.table_id: table.name for table in list_tables(conn)}
    lags = read_lags(conn, sink)
    all_followed = deliveries.read_streams(conn, sink)
    with_head = {followed.stream for followed in all_followed}
    # A stream whose rows are all in the tail has no head yet, and may wait for longest.
    all_followed += [_unflushed(stream, names) for stream in sorted(lags) if stream not in with_head]
    streams = tuple(
        _stream(
            followed, lags.get(followed.stream, Lag(0, None)), letters.get((sink.sink_id, followed.stream), 0), sink
        )
        for followed in all_followed
    )
    delivered = [followed.delivered_at_us for followed in all_followed if followed.delivered_at_us is not None]
    return SinkStatus(
        sink=sink.name,
        sink_id=sink.sink_id,
        type=sink.type,
        branch=living_branch(conn, sink.branch_id),
        tables=None if sink.tables is None else tuple(names.get(table_id, table_id) for table_id in sink.tables),
        settings=shown(sink.type, sink.settings),
        start_seq=sink.start_seq,
        receiver=sink.receiver,
        hold_until=_moment(sink.hold_until_us),
        from_config=sink.from_config,
        paused=sink.paused,
        last_tick=_moment(sink.ticked_at_us),
        last_delivery=_moment(max(delivered, default=None)),
        lag=_together([stream.lag for stream in streams]),
        parked=sum(stream.delivery is not None and stream.delivery.parked is not None for stream in streams),
        dead_letters=sum(stream.dead_letters for stream in streams),
        streams=streams,
    )


def _together(lags: list[SinkLag]) -> SinkLag:
    ages = [lag.age_s for lag in lags if lag.age_s is not None]
    return SinkLag(rows=sum(lag.rows for lag in lags), age_s=max(ages, default=None))


def _unflushed(stream: Stream, names: Mapping[str, str]) -> FollowedStream:
    table = names.get(stream.table_id, stream.table_id)
    return FollowedStream(
        stream,
        table,
        mark=None,
        head_seq=0,
        tally=Tally(),
        last_error=None,
        last_error_at_us=None,
        delivered_at_us=None,
        delivery=None,
    )


def _stream(followed: FollowedStream, lag: Lag, dead: int, sink: Sink) -> StreamStatus:
    mark = followed.mark
    return StreamStatus(
        table=followed.table,
        partition=followed.stream.partition,
        stream=followed.stream.text(),
        stream_id=followed.stream.short_id,
        epoch=mark.epoch if mark else None,
        watermark=mark.seq if mark else sink.start_seq,
        head=followed.head_seq,
        lag=SinkLag(rows=lag.rows, age_s=_age_s(lag.since_us)),
        delivered=_delivered(followed),
        rows_per_s=_rate(followed, sink),
        dead_letters=dead,
        last_error=_redacted(followed.last_error),
        last_error_at=_moment(followed.last_error_at_us),
        delivery=None if followed.delivery is None else _delivery(followed.delivery),
    )


def _delivered(followed: FollowedStream) -> DeliveredRows:
    return DeliveredRows(
        rows=followed.tally.rows,
        withheld=followed.tally.withheld,
        bytes=followed.tally.size_bytes,
        units=followed.tally.units,
        at=_moment(followed.delivered_at_us),
    )


def _delivery(delivery: Delivery) -> OpenDelivery:
    return OpenDelivery(
        delivery=delivery.delivery_id,
        since=delivery.since,
        until=delivery.until,
        attempts=delivery.attempts,
        opened=_moment(delivery.opened_at_us),
        not_before=_moment(delivery.not_before_us or None),
        last_error=_redacted(delivery.last_error),
        parked=_redacted(delivery.parked),
    )


def _rate(followed: FollowedStream, sink: Sink) -> float | None:
    """Rows a second from the sink's beginning to its last delivery."""
    if followed.delivered_at_us is None:
        return None
    return round(followed.tally.rows * 1e6 / max(1, followed.delivered_at_us - sink.created_at_us), 2)


def _redacted(error: str | None) -> str | None:
    """An error as it may be shown: an older version may have stored it as it came."""
    return None if error is None else redacted(error)


def _moment(at_us: int | None) -> str | None:
    return None if at_us is None else text_of(at_us)


def _age_s(since_us: int | None) -> float | None:
    return None if since_us is None else max(0.0, time.time() - since_us / 1e6)
