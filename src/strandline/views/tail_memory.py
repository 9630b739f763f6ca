"""Tails that this process has read. A batch never changes, so the next read decodes only those that came since.

A caller that changes rows one by one and reads them in between would else decode the same batches again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from weakref import WeakKeyDictionary

import pyarrow as pa

from strandline.ledger.ledger import Ledger
from strandline.ledger.rows.batches import is_in_tail
from strandline.model.schema.schema import Schema
from strandline.model.tables import BatchRef, BranchTable, Table
from strandline.views.tail import OnUnreadable, in_runs, joined, read_batches

TAIL_BYTES = 8 << 20
"""A tail that is larger is read as it is needed, and not remembered."""
MOST_BYTES = 64 << 20
"""How much is remembered of a lake's tails."""


@dataclass(frozen=True)
class _Read:
    """What was read of a tail: the batches, by their ids, and their rows as the table's schema has them."""

    table: Table
    schema: Schema
    ids: list[str]
    rows: list[pa.RecordBatch]

    def begins(self, branch_table: BranchTable) -> bool:
        """Whether a tail begins with it."""
        same = self.table == branch_table.table and self.schema == branch_table.schema
        return same and self.ids == [ref.batch_id for ref in branch_table.tail[: len(self.ids)]]

    @property
    def size_bytes(self) -> int:
        return sum(rows.nbytes for rows in self.rows)


_Tails = OrderedDict[tuple[str, str], _Read]
_recent: WeakKeyDictionary[Ledger, _Tails] = WeakKeyDictionary()
_lock = Lock()


def read_tail_rows(ledger: Ledger, branch_table: BranchTable, on_unreadable: OnUnreadable) -> Iterator[pa.RecordBatch]:
    """The rows of a tail as the table's log would hold them, in seq order: all of them, however old they are."""
    if sum(ref.size_bytes for ref in branch_table.tail) > TAIL_BYTES:
        return read_batches(ledger, branch_table, branch_table.tail, on_unreadable)
    place = branch_table.head.branch_id, branch_table.table.table_id
    with _lock:
        remembered = _recent.setdefault(ledger, OrderedDict()).get(place)
    if remembered is None or not remembered.begins(branch_table) or not _is_there(ledger, branch_table):
        remembered = _Read(branch_table.table, branch_table.schema, [], [])
    left_out = False

    def leave_out(ref: BatchRef, reason: str) -> None:
        nonlocal left_out
        on_unreadable(ref, reason)
        left_out = True

    later = read_batches(ledger, branch_table, branch_table.tail[len(remembered.ids) :], leave_out)
    runs = in_runs(chain(remembered.rows, later), lambda batch: batch, lambda batch: batch.nbytes)
    rows = [joined(run) for run in runs]
    if not left_out:
        ids = [*remembered.ids, *(ref.batch_id for ref in branch_table.tail[len(remembered.ids) :])]
        _remember(ledger, place, _Read(branch_table.table, branch_table.schema, ids, rows))
    return iter(rows)


def _is_there(ledger: Ledger, branch_table: BranchTable) -> bool:
    """Whether nothing of a tail has left it: what takes rows away for good flushes it first, from its beginning."""
    with ledger.read() as conn:
        return is_in_tail(
            conn, branch_table.head.branch_id, branch_table.table.table_id, branch_table.tail[0].first_seq
        )


def _remember(ledger: Ledger, place: tuple[str, str], read: _Read) -> None:
    with _lock:
        tails = _recent.setdefault(ledger, OrderedDict())
        tails.pop(place, None)
        tails[place] = read
        while sum(tail.size_bytes for tail in tails.values()) > MOST_BYTES:
            tails.popitem(last=False)
