"""What a caller asks to be changed in keyed tables, and on what condition.

A mutation is a list of statements that apply in their order and see each other; it becomes one commit, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from strandline.errors import BadRequest
from strandline.model.values.user_rows import UserRow, Value


@dataclass(frozen=True)
class Put:
    """The row is as given, whatever was there; `strict` where nothing may be there."""

    table: str
    row: UserRow
    strict: bool = False


@dataclass(frozen=True)
class Patch:
    """The named fields of a row that is there get these values; the others stay."""

    table: str
    key: Value
    fields: UserRow


@dataclass(frozen=True)
class Delete:
    """The row is not there any more; it need not have been."""

    table: str
    key: Value


@dataclass(frozen=True)
class HeadIs:
    """Only if the branch's newest commit is this one."""

    commit: str


@dataclass(frozen=True)
class TableIs:
    """Only if the newest version in a table has this seq."""

    table: str
    seq: int


@dataclass(frozen=True)
class RowIs:
    """Only if the newest version of a row has this seq; None: only if there is no such row."""

    table: str
    key: Value
    seq: int | None


Statement: TypeAlias = Put | Patch | Delete
Expectation: TypeAlias = HeadIs | TableIs | RowIs


def put(table: str, row: UserRow) -> Put:
    """Write a row as given: a new one, or instead of the one that is there."""
    return Put(table, row)


def insert(table: str, row: UserRow) -> Put:
    """Write a new row; a conflict if there is one with its key."""
    return Put(table, row, strict=True)


def patch(table: str, key: Value, fields: UserRow) -> Patch:
    """Change these fields of a row, and leave the others."""
    return Patch(table, key, fields)


def delete(table: str, key: Value) -> Delete:
    """Remove a row."""
    return Delete(table, key)


def head(commit: str) -> HeadIs:
    """Expect the branch to be where this commit left it."""
    return HeadIs(commit)


def table_head(table: str, seq: int) -> TableIs:
    """Expect a table's newest version to have this seq."""
    return TableIs(table, seq)


def row(table: str, key: Value, seq: int | None) -> RowIs:
    """Expect a row's newest version to have this seq, or with None the row not to be there."""
    return RowIs(table, key, seq)


def listed_statements(statements: object) -> list[Statement]:
    """The statements of a mutation; BadRequest where a caller gave one by itself, or something else than a list."""
    if isinstance(statements, Put | Patch | Delete):
        verb = "insert" if isinstance(statements, Put) and statements.strict else type(statements).__name__.lower()
        raise BadRequest(
            f"mutate takes a list of statements, and this is one {verb}", hint=f"Write lake.mutate([sl.{verb}(…)])."
        )
    if not isinstance(statements, Iterable) or isinstance(statements, str | bytes | Mapping):
        raise BadRequest(
            f"mutate takes a list of statements, and this is a {type(statements).__name__}",
            hint="Write lake.mutate([sl.put(…), sl.patch(…), sl.delete(…)]).",
        )
    return list(statements)
