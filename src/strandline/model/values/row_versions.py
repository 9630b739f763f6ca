"""Rows of keyed tables as a look-up hands them over, to whatever judges a change by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from strandline.model.values.user_rows import Value

Row: TypeAlias = Mapping[str, pa.Array]
"""A row's values by column, each an Arrow array of one: what Arrow holds is not always what Python can have."""

Keys: TypeAlias = Mapping[bytes, Row]
"""Keys of a table by their hashes."""


@dataclass(frozen=True)
class Version:
    """A version of a row, by its seq; `row` is None where it says that the row was deleted."""

    seq: int
    row: Row | None


class ValueHolder(NamedTuple):
    """A current row that has a value: the value, and its key."""

    value: tuple[Value, ...]
    hash: bytes
    key: Row
