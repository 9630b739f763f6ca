"""The flusher process: flushes for as long as its standard input is open, then once more, and counts with Spark.

The count at the end does not go through Strandline: it is a plain Spark query on the Iceberg table in the catalog, as
any other engine would run it.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

import strandline as sl
from strandline import logs
from strandline.demo.messages import TABLE
from strandline.demo.places import Places
from strandline.model.tables import BatchRef

PAUSE_S = 0.2
# As a worker does it: a tail is flushed when it is large enough, or old enough.
DUE_ROWS = 20_000
DUE_S = 3.0
ACTOR = "demo:flusher"


def flush_until_told(lake: sl.Lake, events: Path) -> None:
    """Flush whenever it is due, until standard input ends; then flush the rest."""
    lake.iceberg()
    emit(events, "ready")
    while not _told_to_stop(PAUSE_S):
        if due(lake.view().state(TABLE).tail, time.time()):
            flush_once(lake, events)
    flush_once(lake, events)


def due(tail: Sequence[BatchRef], now_s: float) -> bool:
    """Whether a tail should be flushed by now."""
    return bool(tail) and (sum(ref.rows for ref in tail) >= DUE_ROWS or now_s - tail[0].at_us / 1e6 >= DUE_S)


def flush_once(lake: sl.Lake, events: Path) -> None:
    """One flush, reported when it moved anything."""
    if not lake.view().state(TABLE).tail:
        return
    began_s = time.monotonic()
    flushed = lake.flush(TABLE, actor=ACTOR)[0]
    emit(
        events,
        "flushed",
        rows=flushed.rows,
        dropped=flushed.duplicates_dropped,
        seconds=time.monotonic() - began_s,
        warnings=list(flushed.warnings),
    )


def count_outside(lake: sl.Lake, events: Path) -> None:
    """Count with Spark through the catalog alone."""
    name = lake.view().state(TABLE).table.iceberg_name
    row = lake.spark.sql(f"SELECT count(*) AS n, count(DISTINCT part_id) AS keys FROM strand.{name}").first()
    assert row is not None, "a count has a row"
    emit(events, "counted", rows=row.n, keys=row.keys)


def emit(events: Path, event: str, **fields: Any) -> None:
    """One line for the process that conducts all of this."""
    with events.open("ab", buffering=0) as out:
        out.write(orjson.dumps({"event": event, **fields}) + b"\n")


def _told_to_stop(timeout_s: float) -> bool:
    """Nothing is ever written to standard input: it can be read when it has ended."""
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


def main(arguments: list[str]) -> None:
    """`python -m strandline.demo.flusher LAKE`."""
    from strandline.engines.spark import session

    root = Path(arguments[0])
    logs.set_format("text")
    with sl.open(root) as lake:
        flush_until_told(lake, Places(root).events)
        count_outside(lake, Places(root).events)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
