"""What happens to valid rows on their way in, before they are acked.

Rows that are past a table's retention already are left out, and counted in the answer: a backfill, or a source that
reads old files again and again, would else deliver to every sink what retention has removed. It is decided here, before
the ack, because after it only duplicates go.

How old a row is says the table's time column, never `_at`. The clock is the one that deletions go by; while that can't
be trusted nothing is left out, and retention finds the rows later. A clock that is ahead leaves out too much, and the
answer says how much.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import StrandError
from strandline.ledger.clock import forgetting_us
from strandline.ledger.ledger import Ledger
from strandline.model.schema.types import AT
from strandline.model.tables import Table


class Intake:
    """The rows of one call, batch by batch; `too_old` are the positions of those that are left out.

    Rows that were acked before (a batch that was set aside, and repaired) are taken however old they are: `keep_old`.
    `given` gets all rows as they came, without defaults, for the digest of a call that has a key.
    """

    def __init__(self, ledger: Ledger, table: Table, *, keyed: bool = False, keep_old: bool = False) -> None:
        self._ledger = ledger
        self._settings = settings = table.settings
        ages = not table.key and settings.retention_s is not None and settings.time_column != AT
        self._judges = ages and not keep_old
        self.given: list[pa.RecordBatch] | None = [] if keyed else None
        self._cutoff_us: int | None = None
        self._asked = False
        self._seen = 0
        self.too_old: list[int] = []

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that are stored."""
        start = self._seen
        self._seen += batch.num_rows
        if not self._judges:
            return batch
        times_us = times_of(batch.column(self._settings.time_column))
        cutoff_us = self._settings.cutoff_us(time.time_ns() // 1000)
        if not _any_older(times_us, cutoff_us):
            return batch
        # Some look too old by this machine's clock alone: the ledger is asked, once for a call.
        cutoff_us = self.cutoff_us()
        if not _any_older(times_us, cutoff_us):
            return batch
        older = pc.fill_null(pc.less(times_us, cutoff_us), False)
        self.too_old += [start + position for position in pc.indices_nonzero(older).to_pylist()]
        return batch.filter(pc.invert(older))

    def shares(self, counts: Sequence[int]) -> list[tuple[int, int]]:
        """Of calls of so many rows each, one behind the other: how many are stored of each, and how many too old."""
        ends = list(accumulate(counts))
        too_old = [0] * len(counts)
        for position in self.too_old:
            too_old[bisect_right(ends, position)] += 1
        return [(count - old, old) for count, old in zip(counts, too_old, strict=True)]

    def cutoff_us(self) -> int | None:
        """Rows whose time lies before this are left out; None where none are."""
        if self._judges and not self._asked:
            now_us = self._now_us()
            self._cutoff_us = None if now_us is None else self._settings.cutoff_us(now_us)
            self._asked = True
        return self._cutoff_us

    def _now_us(self) -> int | None:
        """The time to judge by; None where no clock can be trusted, or the store that has one does not answer."""
        try:
            elsewhere_us = self._ledger.elsewhere_us()
        except (OSError, StrandError):
            return None
        with self._ledger.read() as conn:
            return forgetting_us(conn, *elsewhere_us)


def times_of(column: pa.Array) -> pa.Array:
    """Times, or days, in microseconds since 1970."""
    return column.cast(pa.timestamp("us")).cast(pa.int64())


def _any_older(times_us: pa.Array, cutoff_us: int | None) -> bool:
    oldest_us = pc.min(times_us).as_py()
    return cutoff_us is not None and oldest_us is not None and oldest_us < cutoff_us
