"""The rows that are measured with: 185 bytes of values each, and agent messages where text has to look like text.

Bodies are put together from three pools, so that there are far more different ones than rows: a column with few values
would be stored as a dictionary and cost nothing.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from examples.demo import messages
from strandline.lake import Lake
from strandline.model.schema.schema import parse_mapping
from strandline.model.values.rows import from_dicts
from strandline.model.values.wire import to_json_lines

COLUMNS = {
    "part_id": "string",
    "session_id": "string",
    "day": "string",
    "n": "long",
    "ts": "timestamp",
    "body": "string",
}
DAYS = 10
AT_ONCE = 10_000
ROWS_PER_SESSION = 100

_BEGIN_US = int(dt.datetime(2026, 3, 2, tzinfo=dt.UTC).timestamp() * 1_000_000)
_POOL = 5_000
_CHARS = (40, 40, 47)


def batch(first: int, size: int, *, day: int | None = None) -> pa.Table:
    """Rows `first` to `first + size - 1`: ids in no order, all of one day, or spread over ten."""
    numbers = np.arange(first, first + size, dtype=np.int64)
    random_order = np.random.default_rng(first)
    days = numbers % DAYS if day is None else np.full(size, day)
    pieces = [_pool(at).take(pa.array(random_order.integers(0, _POOL, size))) for at in range(len(_CHARS))]
    return pa.table(
        {
            "part_id": part_ids(numbers),
            "session_id": _texts(numbers // ROWS_PER_SESSION, "session-", 8),
            "day": _texts(days, "2026-03-", 2),
            "n": numbers,
            "ts": pa.array(_BEGIN_US + numbers * 1_000, pa.timestamp("us", "UTC")),
            "body": pc.binary_join_element_wise(*pieces, ""),
        }
    )


def dicts(first: int, size: int) -> list[dict[str, Any]]:
    """The same as a Python program has them, with times as `datetime.now(dt.UTC)` gives them."""
    listed: list[dict[str, Any]] = batch(first, size).to_pylist()
    return [{**row, "ts": row["ts"].replace(tzinfo=dt.UTC)} for row in listed]


def part_ids(numbers: np.ndarray) -> pa.Array:
    """The ids of these rows: 16 characters that jump about, as ids from many writers do."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return pa.array([f"{number:016x}" for number in mixed.tolist()])


def batches(first: int, size: int, *, day: int | None = None) -> Iterator[pa.Table]:
    """The same, a batch at a time."""
    for at in range(first, first + size, AT_ONCE):
        yield batch(at, min(AT_ONCE, first + size - at), day=day)


def append_all(lake: Lake, table: str, parts: Iterable[pa.Table]) -> None:
    """Put batches into a table's tail."""
    for rows in parts:
        lake.append(table, rows, actor="bench")


def write_json_lines(folder: Path, size: int, rows_per_file: int = 1_000_000) -> list[str]:
    """Write rows as files of JSON lines."""
    schema = parse_mapping(COLUMNS)
    paths: list[str] = []
    for first in range(0, size, rows_per_file):
        path = folder / f"rows-{first:09d}.jsonl"
        with path.open("wb") as out:
            for rows in batches(first, min(rows_per_file, size - first)):
                out.writelines(to_json_lines(rows, schema))
        paths.append(str(path))
    return paths


def write_messages(path: Path, size: int) -> None:
    """Write agent messages, 0.2 to 2 KB each, as one file of JSON lines."""
    schema = parse_mapping(messages.COLUMNS)
    left = size
    with path.open("wb") as out:
        for session in count():
            name = f"s{session:06d}"
            rows = list(messages.messages(name, min(left, messages.session_length(name))))
            out.writelines(to_json_lines(from_dicts(rows, schema, extra=False), schema))
            left -= len(rows)
            if left == 0:
                return


@cache
def _pool(at: int) -> pa.Array:
    rng = random.Random(at)
    words = [word for sentence in messages.SENTENCES for word in sentence.split()]
    return pa.array([" ".join(rng.choices(words, k=_CHARS[at]))[: _CHARS[at]] for _ in range(_POOL)])


def _texts(numbers: np.ndarray, prefix: str, digits: int) -> pa.Array:
    return pa.array([f"{prefix}{number:0{digits}d}" for number in numbers.tolist()])
