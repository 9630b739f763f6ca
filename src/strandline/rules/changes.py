"""What a commit changes, what it may look up, and what it has relied on: the material of judging row by row.

What was found by value is protected like keys are. A claim is the hash of a unique value, or of a reference with the
key it names; a commit that takes or gives up such a value writes its claim, and a commit that relied on what others
did not do has read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import pyarrow as pa

from strandline.model.schema.keys import claim_hash
from strandline.model.tables import BranchTable
from strandline.model.values.arrow import batch_arrow
from strandline.model.values.row_versions import Keys, Row, ValueHolder, Version
from strandline.model.values.user_rows import Value

Values: TypeAlias = tuple[Value, ...]


class LookUp(Protocol):
    """How rows that a commit does not change are found."""

    def ask(self, branch_table: BranchTable, keys: Keys) -> None:
        """Look these keys up."""

    def get(self, table_id: str, key: bytes) -> Version | None:
        """What was found under one."""

    def having(
        self, branch_table: BranchTable, columns: Sequence[str], values: Sequence[Values] | None
    ) -> list[ValueHolder]:
        """The current rows with one of these values in these columns."""


@dataclass
class JudgedRow:
    """A row before and after a commit; None where it is not there. `place` is the statement's, -1 where it has none."""

    branch_table: BranchTable
    hash: bytes
    key: Row
    before: Row | None
    after: Row | None
    place: int = -1

    @property
    def at(self) -> tuple[str, bytes]:
        """Table and key."""
        return self.branch_table.table.table_id, self.hash

    @property
    def is_deleted(self) -> bool:
        """Whether the row was there and is not any more."""
        return self.before is not None and self.after is None


Changes: TypeAlias = dict[tuple[str, bytes], JudgedRow]


@dataclass
class Claims:
    """The claims that a commit depends on, and those that it writes: by the table that has the rule."""

    reads: dict[str, dict[bytes, None]] = field(default_factory=dict)
    writes: dict[str, dict[bytes, None]] = field(default_factory=dict)

    def read(self, branch_table: BranchTable, rule: str, columns: Sequence[str], values: Iterable[Values]) -> None:
        """Note that these values were looked for."""
        noted = self.reads.setdefault(branch_table.table.table_id, {})
        noted.update((claim_hash(rule, columns, value), None) for value in values)

    def write(self, branch_table: BranchTable, rule: str, columns: Sequence[str], values: Iterable[Values]) -> None:
        """Note that these values are taken, or given up."""
        noted = self.writes.setdefault(branch_table.table.table_id, {})
        noted.update((claim_hash(rule, columns, value), None) for value in values)


def key_values(key: Row) -> Values:
    """A key's values, in the order of its columns."""
    return tuple(value[0].as_py() for value in key.values())


def key_row(values: Values, branch_table: BranchTable) -> Row:
    """A key of a table from its values."""
    shape = batch_arrow(branch_table.schema, branch_table.table)
    names = branch_table.table.key
    return {name: pa.array([value], shape.field(name).type) for name, value in zip(names, values, strict=True)}


def values_of(rows: Sequence[Row | None], branch_table: BranchTable, columns: Sequence[str]) -> list[Values | None]:
    """What rows have in some columns; None where there is no row, or a null in one of them."""
    shape = batch_arrow(branch_table.schema, branch_table.table)
    lists = [column_of(rows, shape.field(name)).to_pylist() for name in columns]
    return [None if None in value else value for value in zip(*lists, strict=True)]


def column_of(rows: Sequence[Row | None], column: pa.Field) -> pa.Array:
    """A column of rows; null where there is no row, or where it lacks the column."""
    absent = pa.nulls(1, column.type)
    values = [absent if row is None else row.get(column.name, absent) for row in rows]
    return pa.concat_arrays(values or [absent.slice(1)])
