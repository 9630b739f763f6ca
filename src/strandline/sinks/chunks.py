"""A unit cut into chunks that tile it.

A chunk's `(since, until]` says what was considered, not what it contains: rows that are withheld or dead leave no gap,
and the last chunk carries the unit's end even when it has no rows. Where the cuts are follows from the rows alone, not
from how they happened to be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.duck.ranges import Piece
from strandline.model.schema.types import SEQ


@dataclass(frozen=True)
class UnitRows:
    """Rows of `(since, until]`, those that are left of it."""

    since: int
    until: int
    rows: pa.RecordBatch

    def seqs(self) -> list[int]:
        """The seqs of its rows."""
        return [int(seq) for seq in self.rows.column(SEQ).to_pylist()]

    def halves(self) -> tuple[UnitRows, UnitRows]:
        """The same range in two, each with half of the rows."""
        middle = self.rows.num_rows // 2
        first = self.rows.slice(0, middle)
        border = int(first.column(SEQ)[-1].as_py())
        return UnitRows(self.since, border, first), UnitRows(border, self.until, self.rows.slice(middle))

    def without(self, places: Sequence[int]) -> UnitRows:
        """The same range without these rows, by their places in the chunk."""
        kept = [place for place in range(self.rows.num_rows) if place not in set(places)]
        return replace(self, rows=self.rows.take(pa.array(kept, pa.int64())))


class Considered:
    """How many rows a unit had, counted while it is cut."""

    def __init__(self) -> None:
        self.kept = 0
        self.withheld = 0


def cut(
    pieces: Iterable[Piece],
    *,
    schema: pa.Schema,
    since: int,
    until: int,
    rows: int,
    size_bytes: int,
    dead: frozenset[int],
    considered: Considered,
) -> Iterator[UnitRows]:
    """Chunks of up to `rows` rows and about `size_bytes`, in order. There is always a last one; it ends at `until`."""
    held: UnitRows | None = None
    for batch in _rechunked(_alive(pieces, dead, considered), rows):
        for part in _fitting(batch, size_bytes):
            if held is not None:
                yield held
            held = UnitRows(since, int(part.column(SEQ)[-1].as_py()), part)
            since = held.until
    if held is None:
        yield UnitRows(since, until, pa.RecordBatch.from_pylist([], schema))
    else:
        yield replace(held, until=until)


def _alive(pieces: Iterable[Piece], dead: frozenset[int], considered: Considered) -> Iterator[pa.RecordBatch]:
    graves = pa.array(sorted(dead), pa.int64())
    for piece in pieces:
        batch = piece.rows
        if dead:
            batch = batch.filter(pc.invert(pc.is_in(batch.column(SEQ), value_set=graves)))
        considered.kept += batch.num_rows
        considered.withheld += piece.withheld
        yield batch


def _rechunked(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly so many, but for the last."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while count + rest.num_rows >= rows:
            missing = rows - count
            yield _copied([*waiting, rest.slice(0, missing)])
            rest, waiting, count = rest.slice(missing), [], 0
        if rest.num_rows:
            waiting.append(rest)
            count += rest.num_rows
    if waiting:
        yield _copied(waiting)


def _copied(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Copied together, so that the bytes of a chunk don't depend on what its rows were cut from."""
    return pa.concat_batches(batches)


def _fitting(batch: pa.RecordBatch, size_bytes: int) -> Iterator[pa.RecordBatch]:
    if batch.num_rows > 1 and batch.nbytes > size_bytes:
        middle = batch.num_rows // 2
        yield from _fitting(batch.slice(0, middle), size_bytes)
        yield from _fitting(batch.slice(middle), size_bytes)
    else:
        yield batch
