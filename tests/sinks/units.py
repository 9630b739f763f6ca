"""Units made by hand: what a tick would read off the ledger, for tests of destinations alone."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from strandline.engines.duck.ranges import Select, SeqRange, read_range
from strandline.engines.duck.sandbox import quote_name
from strandline.lake import Lake
from strandline.model.delivery.sinks import Delivery, Stream
from strandline.model.ids import new_id
from strandline.model.tables import disjoint_runs
from strandline.sinks.destination import Unit
from strandline.views.view import log_schema

SINK = "sink1"


def unit_of(
    lake: Lake,
    settings: dict[str, Any],
    *,
    table: str = "messages",
    partition: str = "all",
    since: int = 0,
    until: int | None = None,
    epoch: int = 1,
    where: str | None = None,
    without: Iterable[str] = (),
    delivery_id: str | None = None,
) -> Unit:
    """The rows of a flushed table's partition, as the tick would describe them."""
    view = lake.view()
    state = view.branch_table(table)
    files = [file for file in view.files(table, since, until) if file.partition == partition]
    end = until if until is not None else max([file.last_seq for file in files], default=since + 1)
    stored = log_schema(state)
    schema = pa.schema([field for field in stored if field.name not in set(without)])
    rows = SeqRange(
        runs=tuple(tuple(file.path for file in run) for run in disjoint_runs(files)),
        stored=tuple(state.columns),
        shapes=state.shapes(files),
        since=since,
        until=end,
        select=Select(tuple((name, quote_name(name)) for name in schema.names), where),
        schema=schema,
    )
    delivery = Delivery(
        delivery_id=delivery_id or new_id(),
        sink_id=SINK,
        stream=Stream(state.head.branch_id, state.table.table_id, partition),
        table=table,
        epoch=epoch,
        since=since,
        until=end,
        version=state.head.version,
        snapshot=state.head.log_snapshot or 0,
        schema_version=state.head.schema_version,
        settings=settings,
        opened_at_us=time.time_ns() // 1000,
        attempts=0,
        not_before_us=0,
        last_error=None,
        parked=None,
    )
    return Unit(delivery, rows, state.schema, state.table.partition_by)


def again(unit: Unit, **changes: Any) -> Unit:
    """The same unit with another delivery."""
    return replace(unit, delivery=replace(unit.delivery, **changes))


def rows_of(unit: Unit) -> list[dict[str, Any]]:
    """What the unit should deliver."""
    return [row for piece in read_range(unit.rows) for row in piece.rows.to_pylist()]
