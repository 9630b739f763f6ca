"""What is in the lake against what was acked: the figures, and what is wrong with them.

The acks say which batches were taken, the plan says what is in a batch, and the lake is read afresh: once as Arrow in
seq order, once by SQL. All that is compared here is computed from these; nothing is taken from what a writer or the
flusher believes it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from strandline.demo import acks
from strandline.demo.messages import COLUMNS, TABLE
from strandline.demo.places import Places
from strandline.demo.plan import Share
from strandline.views.view import View


@dataclass(frozen=True)
class Figures:
    """The comparison at the end."""

    acked: int
    in_the_log: int
    duplicates_offered: int
    duplicates_in_the_log: int
    lost: int
    altered: int
    never_offered: int
    out_of_order: int
    still_in_the_tail: int
    acked_by_the_ledger: int
    seen_by_sql: int
    seen_by_spark: int
    killed_flushes: int
    recovered_flushes: int


def acked_batches(places: Places, shares: Iterable[Share]) -> Iterator[tuple[Share, int]]:
    """Every batch that was acked."""
    for share in shares:
        for line in acks.read(places.acks(share.writer)):
            yield share, line.batch


def acked_keys(places: Places, shares: Iterable[Share]) -> list[str]:
    """The row keys of everything acked by now, with repetitions."""
    return [key for share, batch in acked_batches(places, shares) for key in share.part_ids(batch)]


def compare(
    view: View,
    places: Places,
    shares: Iterable[Share],
    *,
    seen_by_spark: int,
    killed_flushes: int,
    recovered_flushes: int,
) -> Figures:
    """Read the lake and count what differs."""
    expected: dict[str, int] = {}
    acked = 0
    for share, batch in acked_batches(places, shares):
        for row in share.batch(batch):
            expected[row["part_id"]] = fingerprint(row)
            acked += 1
    state = view.state(TABLE)
    stored = altered = out_of_order = 0
    last_seq = 0
    keys: set[str] = set()
    for found in stored_rows(view):
        stored += 1
        keys.add(found["part_id"])
        altered += expected.get(found["part_id"]) not in (None, fingerprint(found))
        out_of_order += found["_seq"] <= last_seq
        last_seq = found["_seq"]
    return Figures(
        acked=acked,
        in_the_log=stored,
        duplicates_offered=acked - len(expected),
        duplicates_in_the_log=stored - len(keys),
        lost=len(expected.keys() - keys),
        altered=altered,
        never_offered=len(keys - expected.keys()),
        out_of_order=out_of_order,
        still_in_the_tail=sum(ref.rows for ref in state.tail),
        acked_by_the_ledger=state.head.books.acked,
        seen_by_sql=view.sql(f"SELECT count(*) FROM {TABLE}").rows()[0][0],
        seen_by_spark=seen_by_spark,
        killed_flushes=killed_flushes,
        recovered_flushes=recovered_flushes,
    )


def stored_rows(view: View) -> Iterator[Mapping[str, Any]]:
    """Every row of the lake in seq order."""
    for batch in view.read(TABLE):
        yield from batch.to_pylist()


def fingerprint(row: Mapping[str, Any]) -> int:
    """All that the writer said about a row, as one number; a value of type json comes back as its text."""
    meta = row["meta"]
    text = meta if meta is None or isinstance(meta, str) else orjson.dumps(meta).decode()
    return hash((text, *(row[column] for column in COLUMNS if column != "meta")))


def wrong(figures: Figures, rows: int) -> list[str]:
    """What is wrong, in words; nothing when all is well."""
    distinct = figures.acked - figures.duplicates_offered
    checks = [
        (figures.acked == rows, f"{rows:,} rows were offered, and {figures.acked:,} acked"),
        (figures.lost == 0, f"{figures.lost:,} acked rows are lost"),
        (figures.duplicates_in_the_log == 0, f"{figures.duplicates_in_the_log:,} rows are in the log twice"),
        (figures.duplicates_offered > 0, "no row was offered twice, so nothing was shown about that"),
        (figures.altered == 0, f"{figures.altered:,} rows are not what was appended"),
        (figures.never_offered == 0, f"{figures.never_offered:,} rows were never offered"),
        (figures.out_of_order == 0, f"{figures.out_of_order:,} rows are out of seq order"),
        (figures.still_in_the_tail == 0, f"{figures.still_in_the_tail:,} rows are still in the tail"),
        (
            figures.in_the_log == distinct,
            f"{distinct:,} different rows were acked, and {figures.in_the_log:,} are there",
        ),
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
    ]
    return [text for holds, text in checks if not holds]
