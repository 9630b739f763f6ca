"""How far every sink is: for `strand status`, `strand sink show` and the metrics alike."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from strandline.ledger import dead_letters, deliveries
from strandline.ledger.lags import Lag, read_lags
from strandline.ledger.ledger import Connection, Ledger
from strandline.ledger.sinks import list_sinks
from strandline.ledger.tables import branch_name, list_tables
from strandline.model.moments import text_of
from strandline.model.sinks import Delivery, Sink, StreamState


def sinks(conn: Connection) -> list[dict[str, Any]]:
    """Every sink with its streams, as one database snapshot shows them."""
    letters = dead_letters.count_open(conn)
    return [_sink(conn, sink, letters) for sink in list_sinks(conn)]


def one_sink(conn: Connection, sink: Sink) -> dict[str, Any]:
    """One sink with its streams."""
    return _sink(conn, sink, dead_letters.count_open(conn))


def _sink(conn: Connection, sink: Sink, letters: dict[Any, int]) -> dict[str, Any]:
    names = {table.table_id: table.name for table in list_tables(conn)}
    lags = read_lags(conn, sink)
    streams = [
        _stream(state, lags.get(state.stream, Lag(0, None)), letters.get((sink.sink_id, state.stream), 0), sink)
        for state in deliveries.read_streams(conn, sink)
    ]
    ages = [stream["lag"]["age_s"] for stream in streams if stream["lag"]["age_s"] is not None]
    return {
        "sink": sink.name,
        "sink_id": sink.sink_id,
        "type": sink.type,
        "branch": branch_name(conn, sink.branch_id),
        "tables": None if sink.tables is None else [names.get(table_id, table_id) for table_id in sink.tables],
        "settings": dict(sink.settings),
        "start_seq": sink.start_seq,
        "hold_until": _moment(sink.hold_until_us),
        "last_tick": _moment(sink.ticked_at_us),
        "lag": {"rows": sum(stream["lag"]["rows"] for stream in streams), "age_s": max(ages, default=None)},
        "parked": sum(
            stream["delivery"] is not None and stream["delivery"]["parked"] is not None for stream in streams
        ),
        "dead_letters": sum(stream["dead_letters"] for stream in streams),
        "streams": streams,
    }


def _stream(state: StreamState, lag: Lag, dead: int, sink: Sink) -> dict[str, Any]:
    mark = state.mark
    return {
        "table": state.table,
        "partition": state.stream.partition,
        "stream": state.stream.text(),
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
        "last_error": state.last_error,
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
        "last_error": delivery.last_error,
        "parked": delivery.parked,
    }


def _rate(state: StreamState, sink: Sink) -> float | None:
    """Rows a second from the sink's beginning to its last delivery."""
    if state.delivered_at_us is None:
        return None
    return round(state.tally.rows * 1e6 / max(1, state.delivered_at_us - sink.created_at_us), 2)


def _moment(at_us: int | None) -> str | None:
    return None if at_us is None else text_of(at_us)


def _age_s(since_us: int | None) -> float | None:
    return None if since_us is None else max(0.0, time.time() - since_us / 1e6)


Figure = tuple[str, str, dict[str, str], float]
"""A number for whoever watches: its name, its help, its labels, its value."""


def figures(ledger: Ledger) -> Iterator[Figure]:
    """The same as numbers, for the metrics of a server or a worker."""
    with ledger.read() as conn:
        following = sinks(conn)
    for sink in following:
        for table in sorted({stream["table"] for stream in sink["streams"]}):
            yield from _of_table(sink, table)


def _of_table(sink: dict[str, Any], table: str) -> Iterator[Figure]:
    """A table's streams together: the values of partitions may be nobody's business who only watches."""
    label = {"sink": sink["sink"], "table": table}
    streams = [stream for stream in sink["streams"] if stream["table"] == table]
    done = [stream["delivered"] for stream in streams]
    parked = sum((stream["delivery"] or {"parked": None})["parked"] is not None for stream in streams)
    age_s = max(stream["lag"]["age_s"] or 0.0 for stream in streams)
    yield "strand_sink_lag_rows", "Rows that a sink has still to deliver.", label, _sum(streams, "lag", "rows")
    yield "strand_sink_lag_seconds", "How long the oldest of them waits.", label, age_s
    yield "strand_sink_delivered_rows", "Rows delivered.", label, sum(one["rows"] for one in done)
    yield "strand_sink_delivered_bytes", "Bytes delivered.", label, sum(one["bytes"] for one in done)
    yield "strand_sink_withheld_rows", "Rows that a predicate withheld.", label, sum(one["withheld"] for one in done)
    yield "strand_sink_parked", "Deliveries that wait for a person.", label, parked
    yield "strand_sink_dead_letters", "Rows refused.", label, sum(stream["dead_letters"] for stream in streams)


def _sum(streams: list[dict[str, Any]], group: str, name: str) -> float:
    return float(sum(stream[group][name] for stream in streams))
