"""Differences between two points of the history, and changes one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from strandline.model.values.user_rows import UserRow

Kind = Literal["insert", "update", "delete"]


@dataclass(frozen=True)
class RowDiff:
    """A row that is not the same at two points; None where it is not there."""

    table: str
    kind: Kind
    key: UserRow
    fields: tuple[str, ...]
    before: UserRow | None
    after: UserRow | None


@dataclass(frozen=True)
class RowChange:
    """What a commit made of a row; None where it was or is not there."""

    table: str
    kind: Kind
    key: UserRow
    before: UserRow | None
    after: UserRow | None
    seq: int
    commit: str
    actor: str
    at: str


@dataclass(frozen=True)
class Changes:
    """Changes in the order in which they were made; `continuation` is what to pass as `since` to go on."""

    rows: tuple[RowChange, ...]
    continuation: int

    def __iter__(self) -> Iterator[RowChange]:
        return iter(self.rows)


def kind_of(before: object, after: object) -> Kind:
    """What happened to a row, by whether it was there and is there."""
    if before is None:
        return "insert"
    return "delete" if after is None else "update"
