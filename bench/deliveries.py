"""Ticks: what they cost when there is nothing to do, and when there is a little.

A tick should cost what is new, and not what is there. So two lakes, one with a hundred times the rows of the other, are
ticked in turns. That no file is opened which holds nothing new is not asked of the tick: those files are out of its
reach meanwhile. And how many requests there were, the receiver says.
"""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from sqlalchemy import event
from sqlalchemy.pool import Pool

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, in_turns, spread, tell, timed
from bench.receiver import Receiver, receiving
from bench.spark import spark_ends
from strandline.engines.duck.relations import local_path
from strandline.lake import Lake
from strandline.sinks.tick import Ticked

FEW, MANY, NEW = 10_000, 1_000_000, 1_000
FEW_STREAMS, MANY_STREAMS = 10, 1_000
PARTITIONS_AT_ONCE = 100
"""In one flush: with 1,000 of them the JVM, with a heap of 2 GiB, ended."""
SINKS = ("forward", "blob")
TABLE = "messages"


@dataclass(frozen=True)
class Place:
    """A lake whose rows were all delivered, and the receiver of its forward sink."""

    lake: Lake
    size: int
    receiver: Receiver

    def tick(self, sink: str) -> list[Ticked]:
        """One tick."""
        done = self.lake.tick(sink, actor="bench")
        assert all(ticked.outcome == "delivered" for ticked in done), done
        return done

    def files(self) -> list[Path]:
        """The log's data files that can be opened."""
        return sorted(Path(local_path(self.lake.config.warehouse)).rglob("*.parquet"))

    @contextmanager
    def out_of_reach(self) -> Iterator[None]:
        """Whoever opens a file of the log that is there now finds none."""
        hidden = [(path, path.with_suffix(".away")) for path in self.files()]
        assert hidden, "the log has no files"
        for path, away in hidden:
            path.rename(away)
        try:
            yield
        finally:
            for path, away in hidden:
                away.rename(path)


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Idle ticks and small ones, of both sinks, and streams that have nothing to say."""
    sizes = {"few": scale.rows(FEW), "many": scale.rows(MANY)}
    with spark_ends():
        with (
            receiving(folder / "receiver", [*sizes]) as receiver,
            strandline.init(folder / "few") as few_lake,
            strandline.init(folder / "many") as many_lake,
        ):
            few, many = (
                _delivered(Place(lake, sizes[table], receiver), table, folder)
                for lake, table in ((few_lake, "few"), (many_lake, "many"))
            )
            for sink in SINKS:
                yield idle(scale, few, many, sink)
            for sink in SINKS:
                yield small(scale, few, many, sink)
        yield streams(scale, folder)


def _delivered(place: Place, table: str, folder: Path) -> Place:
    """A log that both sinks have sent to the end."""
    tell(f"  delivering {place.size:,} rows")
    lake = place.lake
    lake.create_table(table, rows.COLUMNS, actor="bench")
    rows.append_all(lake, table, rows.batches(0, place.size))
    lake.flush(table, actor="bench")
    lake.add_sink("forward", "forward", place.receiver.settings())
    lake.add_sink("blob", "blob", {"uri": (folder / f"blobs-{table}").as_uri()})
    for sink in SINKS:
        assert sum(done.rows for done in place.tick(sink)) == place.size, "another number of rows was delivered"
    return place


def idle(scale: Scale, few: Place, many: Place, sink: str) -> Line:
    """Nothing is new; the log's files are out of reach all the while."""

    def turn(place: Place, _number: int) -> float:
        return timed(lambda: _assert_idle(place, sink))

    with few.out_of_reach(), many.out_of_reach():
        before = many.receiver.requests()
        many_s, few_s = in_turns(scale.rounds(101), partial(turn, many), partial(turn, few), warm_ups=2)
        assert many.receiver.requests() == before, "an idle tick asked the receiver"
    return Line(
        what=f"idle tick of a {sink} sink at {many.size:,} rows",
        against=f"at {few.size:,} rows",
        ours=statistics.median(many_s) * 1000,
        baseline=statistics.median(few_s) * 1000,
        unit="ms",
        reach=Reach(1.2),
        notes={"many": spread(many_s), "few": spread(few_s), "files_opened": 0, "requests": 0},
    )


def _assert_idle(place: Place, sink: str) -> None:
    assert place.tick(sink) == [], "an idle tick did something"


def small(scale: Scale, few: Place, many: Place, sink: str) -> Line:
    """A few rows are new, and were flushed; only the files that they are in can be opened."""
    new = scale.rows(NEW)
    flushes: list[float] = []
    opened: list[int] = []

    def turn(place: Place, number: int) -> float:
        (table,) = place.lake.view().tables
        with place.out_of_reach():
            rows.append_all(place.lake, table, rows.batches(place.size + number * new, new))
            flushes.append(timed(lambda: place.lake.flush(table, actor="bench")))
            done: list[Ticked] = []
            taken = timed(lambda: done.extend(place.tick(sink)))
            assert [ticked.rows for ticked in done] == [new], f"{done} instead of {new} rows"
            assert done[0].files_opened <= len(place.files()), "a file was opened that holds nothing new"
            opened.append(done[0].files_opened)
        place.tick(SINKS[1 - SINKS.index(sink)])  # so that its own turns have as many new rows
        return taken

    many_s, few_s = in_turns(scale.rounds(9), partial(turn, many), partial(turn, few), warm_ups=1)
    return Line(
        what=f"tick of {new:,} new rows of a {sink} sink at {many.size:,} rows",
        against=f"at {few.size:,} rows",
        ours=statistics.median(many_s),
        baseline=statistics.median(few_s),
        unit="s",
        reach=Reach(1.5),
        notes={
            "many": spread(many_s),
            "few": spread(few_s),
            "flush_before": spread(flushes),
            "files_opened": max(opened),
        },
    )


# -- streams -----------------------------------------------------------------------------------------------------------


def streams(scale: Scale, folder: Path) -> Line:
    """An idle tick asks the ledger as often for many streams as for few."""
    counts = (FEW_STREAMS, scale.rows(MANY_STREAMS))
    statements: dict[int, set[int]] = {count: set() for count in counts}
    with (
        receiving(folder / "streams-receiver", [TABLE]) as receiver,
        strandline.init(folder / "streams-few") as few_lake,
        strandline.init(folder / "streams-many") as many_lake,
    ):
        places = {
            count: Place(lake, count, receiver) for count, lake in zip(counts, (few_lake, many_lake), strict=True)
        }
        first = {count: _delivered_streams(place, count) for count, place in places.items()}

        def turn(count: int, _number: int) -> float:
            with _statements() as seen:
                taken = timed(lambda: _assert_idle(places[count], "forward"))
            statements[count].add(len(seen))
            return taken

        few, many = in_turns(scale.rounds(31), *(partial(turn, count) for count in counts), warm_ups=2)
    per_tick = [sorted(statements[count]) for count in counts]
    assert per_tick[0] == per_tick[1], (
        f"{per_tick[0]} statements for {counts[0]} streams, {per_tick[1]} for {counts[1]}"
    )
    return Line(
        what=f"ledger statements in an idle tick with {counts[1]:,} streams",
        against=f"with {counts[0]}",
        ours=max(per_tick[1]),
        baseline=max(per_tick[0]),
        unit="statements",
        reach=Reach(1),
        notes={"many": spread(many), "few": spread(few), "first_tick_s": {str(key): first[key] for key in first}},
    )


def _delivered_streams(place: Place, count: int) -> float:
    """One row in each partition of a table, delivered; the seconds of that tick."""
    tell(f"  delivering {count:,} streams")
    lake = place.lake
    lake.create_table(TABLE, rows.COLUMNS, partition_by=["session_id"], actor="bench")
    for first in range(0, count, PARTITIONS_AT_ONCE):
        numbers = range(first, min(first + PARTITIONS_AT_ONCE, count))
        batch = rows.batch(first, len(numbers))
        names = pa.array([f"session-{number:08d}" for number in numbers])
        lake.append(TABLE, batch.set_column(batch.schema.names.index("session_id"), "session_id", names), actor="bench")
        lake.flush(TABLE, actor="bench")
    lake.add_sink("forward", "forward", place.receiver.settings())
    done: list[Ticked] = []
    taken = timed(lambda: done.extend(place.tick("forward")))
    assert len(done) == sum(ticked.rows for ticked in done) == count, "another number of streams was delivered"
    return round(taken, 2)


@contextmanager
def _statements() -> Iterator[Sequence[str]]:
    """Every SQL statement that SQLite is given inside, by whatever way."""
    seen: list[str] = []
    traced: list[sqlite3.Connection] = []

    def begin(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_trace_callback(seen.append)
        traced.append(connection)

    event.listen(Pool, "checkout", begin)
    try:
        yield seen
    finally:
        event.remove(Pool, "checkout", begin)
        for connection in traced:
            connection.set_trace_callback(None)
