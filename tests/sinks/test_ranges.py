"""Reading a range: in seq order whatever the files look like, in bounded memory, and never silently short."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.engines.duck import ranges
from strandline.engines.duck.ranges import Select, SeqRange, read_range
from strandline.errors import Damaged, HistoryGone
from strandline.model.schema.types import Column, Primitive

SCHEMA = pa.schema([("n", pa.int64())])
COLUMNS = tuple(Column(name, Primitive("long"), True) for name in ("n", "_seq"))


def file_of(folder: Path, name: str, seqs: list[int]) -> str:
    pq.write_table(pa.table({"n": [seq * 10 for seq in seqs], "_seq": seqs}), folder / name, row_group_size=1000)
    return f"file:{folder / name}"


def range_of(*runs: tuple[str, ...], since: int = 0, until: int = 10**9, where: str | None = None) -> SeqRange:
    return SeqRange(runs, COLUMNS, since, until, Select((("n", "n"),), where), SCHEMA)


def numbers(wanted: SeqRange) -> list[int]:
    return [n // 10 for piece in read_range(wanted) for n in piece.rows.column("n").to_pylist()]


def test_files_in_order_are_streamed_in_order(tmp_path: Path) -> None:
    """Also over many row groups, which DuckDB reads with several threads."""
    one = file_of(tmp_path, "a", list(range(1, 50_001)))
    two = file_of(tmp_path, "b", list(range(60_001, 90_001)))
    assert numbers(range_of((one,), (two,))) == [*range(1, 50_001), *range(60_001, 90_001)]
    assert numbers(range_of((one,), (two,), since=49_999, until=60_002)) == [50_000, 60_001, 60_002]


def test_files_that_are_not_in_order_are_sorted(tmp_path: Path) -> None:
    """A compaction of another kind, or several files that overlap: the reader does not depend on how they lie."""
    backwards = file_of(tmp_path, "a", list(range(5000, 0, -1)))
    assert numbers(range_of((backwards,))) == list(range(1, 5001))
    odd, even = file_of(tmp_path, "b", list(range(1, 5000, 2))), file_of(tmp_path, "c", list(range(2, 5001, 2)))
    assert numbers(range_of((odd, even))) == list(range(1, 5001))


def test_withheld_rows_are_counted_where_they_were(tmp_path: Path) -> None:
    one = file_of(tmp_path, "a", list(range(1, 20_001)))
    pieces = list(read_range(range_of((one,), where="n % 20 = 0")))
    assert sum(piece.rows.num_rows for piece in pieces) == sum(piece.withheld for piece in pieces) == 10_000


def test_a_row_that_comes_twice_is_an_error(tmp_path: Path) -> None:
    """Two runs that overlap, against what the reader was promised: a mark would skip or repeat rows."""
    one, two = file_of(tmp_path, "a", [1, 2, 3]), file_of(tmp_path, "b", [3, 4])
    with pytest.raises(Damaged):
        numbers(range_of((one,), (two,)))


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    one = file_of(tmp_path, "a", [1])
    for run in ((f"file:{tmp_path / 'gone'}",), (one, f"file:{tmp_path / 'gone'}")):
        with pytest.raises(HistoryGone):
            numbers(range_of(run))


def test_order_is_found_out_over_row_groups(tmp_path: Path) -> None:
    assert ranges._in_order(file_of(tmp_path, "a", list(range(1, 5000))).removeprefix("file:"))
    assert not ranges._in_order(file_of(tmp_path, "b", [*range(1000, 2000), *range(1, 1000)]).removeprefix("file:"))
    assert not ranges._in_order(file_of(tmp_path, "c", [1, 1]).removeprefix("file:"))
    assert ranges._in_order(file_of(tmp_path, "d", []).removeprefix("file:"))
