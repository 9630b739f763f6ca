"""What each destination holds against what was acked: the figures, and what is wrong with them.

The acks say which batches were taken, the plan says what is in a batch, and every destination is read afresh: the lake
as Arrow in seq order, the receiver by SQL, the blobs as files. All that is compared here is computed from these;
nothing is taken from what a writer or the worker believes it did.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from examples.demo import acks
from examples.demo.messages import COLUMNS
from examples.demo.places import Places
from examples.demo.plan import Share

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class Held:
    """What one destination holds. A row is altered when it, or its seq, is not what it is in the lake."""

    rows: int
    lost: int
    repeated: int
    altered: int
    never_offered: int
    out_of_order: int


@dataclass(frozen=True)
class Figures:
    """The comparison at the end."""

    acked: int
    duplicates_offered: int
    log: Held
    receiver: Held
    blobs: Held
    still_in_the_tail: int
    acked_by_the_ledger: int
    seen_by_sql: int
    seen_by_spark: int
    killed_flushes: int
    recovered_flushes: int
    killed_deliveries: int
    finished_deliveries: int
    dead_letters: int

    @property
    def distinct(self) -> int:
        """How many rows everybody should hold."""
        return self.acked - self.duplicates_offered

    @property
    def destinations(self) -> dict[str, Held]:
        """What each of them holds, by the name that people read."""
        return {"the log": self.log, "the receiver": self.receiver, "the blobs": self.blobs}


def acked_batches(places: Places, shares: Iterable[Share]) -> Iterator[tuple[Share, int]]:
    """Every batch that was acked."""
    for share in shares:
        for line in acks.read(places.acks(share.writer)):
            yield share, line.batch


def acked_keys(places: Places, shares: Iterable[Share]) -> list[str]:
    """The row keys of everything acked by now, with repetitions."""
    return [key for share, batch in acked_batches(places, shares) for key in share.part_ids(batch)]


def expected_rows(places: Places, shares: Iterable[Share]) -> tuple[dict[str, int], int]:
    """Every different row that was acked, by its key, as its fingerprint; and how many were acked in all."""
    expected: dict[str, int] = {}
    acked = 0
    for share, batch in acked_batches(places, shares):
        for row in share.batch(batch):
            expected[row["part_id"]] = fingerprint(row)
            acked += 1
    return expected, acked


def held(batches: Iterable[pa.RecordBatch], expected: Mapping[str, int], seqs: dict[str, int]) -> Held:
    """Read one destination and count what differs. `seqs` is filled by the first one, and the others must agree."""
    stored = altered = out_of_order = last_seq = 0
    keys: set[str] = set()
    for key, seq, row_hash in (row for batch in batches for row in fingerprints(batch)):
        stored += 1
        keys.add(key)
        altered += expected.get(key) not in (None, row_hash) or seqs.setdefault(key, seq) != seq
        out_of_order += seq <= last_seq
        last_seq = seq
    return Held(
        rows=stored,
        lost=len(expected.keys() - keys),
        repeated=stored - len(keys),
        altered=altered,
        never_offered=len(keys - expected.keys()),
        out_of_order=out_of_order,
    )


def fingerprint(row: Mapping[str, Any]) -> int:
    """All that the writer said about a row, as one number; what is json is stored as its text."""
    meta = None if row["meta"] is None else orjson.dumps(row["meta"]).decode()
    values = {**row, "meta": meta, "ts": (row["ts"] - EPOCH) // MICROSECOND}
    return hash(tuple(values[name] for name in COLUMNS))


def fingerprints(batch: pa.RecordBatch) -> Iterator[tuple[str, int, int]]:
    """Key, seq and fingerprint of every row; by columns, which is much faster than by rows."""
    columns = {name: batch.column(name) for name in COLUMNS}
    columns["ts"] = columns["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    keys, seqs = batch.column("part_id").to_pylist(), batch.column("_seq").to_pylist()
    return zip(keys, seqs, map(hash, rows), strict=True)


def wrong(figures: Figures, rows: int) -> list[str]:
    """What is wrong, in words; nothing when all is well."""
    distinct = figures.distinct
    checks = [
        (figures.acked == rows, f"{rows:,} rows were offered, and {figures.acked:,} acked"),
        (figures.duplicates_offered > 0, "no row was offered twice, so nothing was shown about that"),
        (figures.still_in_the_tail == 0, f"{figures.still_in_the_tail:,} rows are still in the tail"),
        (
            figures.acked_by_the_ledger == figures.acked,
            f"the ledger counts {figures.acked_by_the_ledger:,} acked rows, the writers {figures.acked:,}",
        ),
        (figures.seen_by_sql == distinct, f"SQL sees {figures.seen_by_sql:,} rows of {distinct:,}"),
        (figures.seen_by_spark == distinct, f"Spark sees {figures.seen_by_spark:,} rows of {distinct:,}"),
        (
            figures.killed_flushes == figures.recovered_flushes,
            f"{figures.killed_flushes} flushes were killed, and {figures.recovered_flushes} recovered",
        ),
        (
            figures.killed_deliveries == figures.finished_deliveries,
            f"{figures.killed_deliveries} deliveries were killed, and {figures.finished_deliveries} finished",
        ),
        (figures.dead_letters == 0, f"{figures.dead_letters:,} rows were refused"),
    ]
    faults = [text for holds, text in checks if not holds]
    return faults + [text for name, held in figures.destinations.items() for text in _wrong(name, held, distinct)]


def _wrong(name: str, held: Held, distinct: int) -> list[str]:
    """What is wrong with one destination."""
    checks = [
        (held.rows == distinct, f"{distinct:,} different rows were acked, and {held.rows:,} are in {name}"),
        (held.lost == 0, f"{held.lost:,} acked rows are not in {name}"),
        (held.repeated == 0, f"{held.repeated:,} rows are in {name} twice"),
        (held.altered == 0, f"{held.altered:,} rows in {name} are not what was appended"),
        (held.never_offered == 0, f"{held.never_offered:,} rows in {name} were never offered"),
        (held.out_of_order == 0, f"{held.out_of_order:,} rows in {name} are out of seq order"),
    ]
    return [text for holds, text in checks if not holds]
