"""How far every sink is: for `strand status`, `strand sink show` and the metrics alike."""

from __future__ import annotations

import time
from typing import Any

from strandline.ledger import dead_letters, deliveries
from strandline.ledger.branches import living_branch
from strandline.ledger.lags import Lag, read_lags
from strandline.ledger.ledger import Connection
from strandline.ledger.sinks import list_sinks
from strandline.ledger.tables import list_tables
from strandline.model.moments import text_of
from strandline.model.sinks import Delivery, Sink, Stream, StreamState, Tally
from strandline.redaction import redacted
from strandline.sinks.settings import shown


def sinks(conn: Connection) -> list[dict[str, Any]]:
    """Every sink with its streams, as one database snapshot shows them; `branch` is None where that was deleted."""
    letters = dead_letters.count_open(conn)
    return [_sink(conn, sink, letters) for sink in list_sinks(conn)]


def one_sink(conn: Connection, sink: Sink) -> dict[str, Any]:
    """One sink with its streams."""
    return _sink(conn, sink, dead_letters.count_open(conn))


def _sink(conn: Connection, sink: Sink, letters: dict[Any, int]) -> dict[str, Any]:
    names = {table.table_id: table.name for table in list_tables(conn)}
    lags = read_lags(conn, sink)
    states = deliveries.read_streams(conn, sink)
    known = {state.stream for state in states}
    # A stream whose rows are all in the tail has no head yet, and may wait for longest.
    states += [_unflushed(stream, names) for stream in sorted(lags) if stream not in known]
    streams = [
        _stream(state, lags.get(state.stream, Lag(0, None)), letters.get((sink.sink_id, state.stream), 0), sink)
        for state in states
    ]
    delivered = [state.delivered_at_us for state in states if state.delivered_at_us is not None]
    ages = [stream["lag"]["age_s"] for stream in streams if stream["lag"]["age_s"] is not None]
    return {
        "sink": sink.name,
        "sink_id": sink.sink_id,
        "type": sink.type,
        "branch": living_branch(conn, sink.branch_id),
        "tables": None if sink.tables is None else [names.get(table_id, table_id) for table_id in sink.tables],
        "settings": shown(sink.settings),
        "start_seq": sink.start_seq,
        "receiver": sink.receiver,
        "hold_until": _moment(sink.hold_until_us),
        "from_config": sink.from_config,
        "paused": sink.paused,
        "last_tick": _moment(sink.ticked_at_us),
        "last_delivery": _moment(max(delivered, default=None)),
        "lag": {"rows": sum(stream["lag"]["rows"] for stream in streams), "age_s": max(ages, default=None)},
        "parked": sum(
            stream["delivery"] is not None and stream["delivery"]["parked"] is not None for stream in streams
        ),
        "dead_letters": sum(stream["dead_letters"] for stream in streams),
        "streams": streams,
    }


def _unflushed(stream: Stream, names: dict[str, str]) -> StreamState:
    table = names.get(stream.table_id, stream.table_id)
    return StreamState(
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


def _stream(state: StreamState, lag: Lag, dead: int, sink: Sink) -> dict[str, Any]:
    mark = state.mark
    return {
        "table": state.table,
        "partition": state.stream.partition,
        "stream": state.stream.text(),
        "stream_id": state.stream.short_id,
        "epoch": mark.epoch if mark else None,
        "watermark": mark.seq if mark else sink.start_seq,
        "head": state.head_seq,
        "lag": {"rows": lag.rows, "age_s": _age_s(lag.since_us)},
        "delivered": {
            "rows": state.tally.rows,
            "withheld": state.tally.withheld,
            "bytes": state.tally.size_bytes,
            "units": state.tally.units,
            "at": _moment(state.delivered_at_us),
        },
        "rows_per_s": _rate(state, sink),
        "dead_letters": dead,
        "last_error": _redacted(state.last_error),
        "last_error_at": _moment(state.last_error_at_us),
        "delivery": None if state.delivery is None else _delivery(state.delivery),
    }


def _delivery(delivery: Delivery) -> dict[str, Any]:
    return {
        "delivery": delivery.delivery_id,
        "since": delivery.since,
        "until": delivery.until,
        "attempts": delivery.attempts,
        "opened": _moment(delivery.opened_at_us),
        "not_before": _moment(delivery.not_before_us or None),
        "last_error": _redacted(delivery.last_error),
        "parked": _redacted(delivery.parked),
    }


def _rate(state: StreamState, sink: Sink) -> float | None:
    """Rows a second from the sink's beginning to its last delivery."""
    if state.delivered_at_us is None:
        return None
    return round(state.tally.rows * 1e6 / max(1, state.delivered_at_us - sink.created_at_us), 2)


def _redacted(error: str | None) -> str | None:
    """An error as it may be shown: an older version may have stored it as it came."""
    return None if error is None else redacted(error)


def _moment(at_us: int | None) -> str | None:
    return None if at_us is None else text_of(at_us)


def _age_s(since_us: int | None) -> float | None:
    return None if since_us is None else max(0.0, time.time() - since_us / 1e6)
