"""The hash that stands for a key is the same wherever it is computed, and another one for another key."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from strandline.model.schema.keys import key_hash, key_hashes

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["", "a", "ä", '"', "1"]),
    "long": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63)]),
    "int": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31)]),
    "boolean": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(2026, 1, 2)]),
    "timestamp": (pa.timestamp("us", "UTC"), [MOMENT, MOMENT + dt.timedelta(microseconds=1)]),
    "binary": (pa.binary(), [b"", b"a", b"\xff\x00"]),
    "decimal": (pa.decimal128(10, 2), [Decimal("0.00"), Decimal("1.00"), Decimal("-1.10")]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_key_alone_and_among_many_has_the_same_hash(name: str) -> None:
    """In one column, and beside another."""
    type_, values = COLUMNS[name]
    alone = pa.table({"id": pa.array(values, type_)})
    assert key_hashes(alone) == [key_hash([value]) for value in values]
    beside = alone.append_column("n", pa.array(range(len(values)), pa.int64()))
    assert key_hashes(beside) == [key_hash([value, n]) for n, value in enumerate(values)]
    assert len(set(key_hashes(alone))) == len(values)


def test_keys_of_several_chunks_are_in_their_order() -> None:
    """As a table that was put together has them; and none has no hash."""
    rows = pa.concat_tables([pa.table({"id": ["a", "b"]}), pa.table({"id": ["c"]})])
    assert key_hashes(rows) == [key_hash([value]) for value in "abc"]
    assert key_hashes(rows.slice(0, 0)) == []
