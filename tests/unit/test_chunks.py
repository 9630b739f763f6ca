"""Chunks tile their unit, whatever is left out of it and however its rows were read."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from strandline.engines.duck.ranges import Piece
from strandline.sinks.chunks import Considered, UnitRows, cut

SCHEMA = pa.schema([("_seq", pa.int64()), ("body", pa.string())])


def batch(seqs: list[int], width: int = 3) -> pa.RecordBatch:
    return pa.record_batch({"_seq": seqs, "body": ["x" * width] * len(seqs)}, schema=SCHEMA)


def chunks(
    pieces: list[list[int]], *, until: int, rows: int = 4, size_bytes: int = 1 << 20, dead: frozenset[int] = frozenset()
) -> list[UnitRows]:
    read = [Piece(batch(seqs), 0) for seqs in pieces]
    return list(
        cut(
            read,
            schema=SCHEMA,
            since=0,
            until=until,
            rows=rows,
            size_bytes=size_bytes,
            dead=dead,
            considered=Considered(),
        )
    )


@given(
    seqs=st.lists(st.integers(1, 500), unique=True, max_size=60).map(sorted),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    dead=st.sets(st.integers(1, 500), max_size=20),
    rows=st.integers(1, 12),
    size_bytes=st.integers(1, 400),
)
def test_chunks_tile_the_unit_and_hold_every_living_row_once(
    seqs: list[int], cuts: list[int], dead: set[int], rows: int, size_bytes: int
) -> None:
    """No gap, no overlap, the right end; and where the cuts are does not depend on how the rows were read."""
    places = sorted({min(place, len(seqs)) for place in cuts})
    pieces = [seqs[a:b] for a, b in zip([0, *places], [*places, len(seqs)], strict=True)]
    found = chunks(pieces, until=600, rows=rows, size_bytes=size_bytes, dead=frozenset(dead))
    assert [chunk.since for chunk in found] == [0, *(chunk.until for chunk in found[:-1])]
    assert found[-1].until == 600
    assert [seq for chunk in found for seq in chunk.seqs()] == [seq for seq in seqs if seq not in dead]
    assert all(chunk.since < seq <= chunk.until for chunk in found for seq in chunk.seqs())
    assert all(chunk.rows.num_rows <= rows for chunk in found)
    assert found == chunks([seqs], until=600, rows=rows, size_bytes=size_bytes, dead=frozenset(dead))


def test_a_unit_without_rows_is_one_empty_chunk() -> None:
    (only,) = chunks([], until=9)
    assert (only.since, only.until, only.rows.num_rows) == (0, 9, 0)


def test_halves_share_the_range() -> None:
    first, second = UnitRows(0, 9, batch([2, 4, 6])).halves()
    assert (first.since, first.until, first.seqs()) == (0, 2, [2])
    assert (second.since, second.until, second.seqs()) == (2, 9, [4, 6])


def test_without_keeps_the_range() -> None:
    left = UnitRows(0, 9, batch([2, 4, 6])).without([1])
    assert (left.since, left.until, left.seqs()) == (0, 9, [2, 6])
