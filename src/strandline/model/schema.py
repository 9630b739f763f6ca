"""A table's schema: its columns, in order, and the constraints that its rows keep.

What a row must look like is decided by the columns here and checked by `rows`, at the door. Behind it nothing is
required any more: stored files have only nullable fields, because a requirement can change on one branch and files are
shared by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from strandline.errors import BadRequest, nearest
from strandline.model.constraints import Constraint, parse_constraints
from strandline.model.foreign import column_from_iceberg
from strandline.model.types import (
    OURS,
    Column,
    Fill,
    check_names,
    parse_column_list,
    parse_nullable,
    parse_type,
    type_text,
)

SYSTEM_COLUMNS = frozenset(OURS)


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order, and what is declared of their values.

    One that is `dropped` has the columns that the files have, and nobody is shown them. Of a table that was added again
    after that, rows up to the seq `began` are of the one before, and not shown.
    """

    columns: tuple[Column, ...]
    constraints: tuple[Constraint, ...] = ()
    dropped: bool = False
    began: int = 0

    def __post_init__(self) -> None:
        check_names(self.names, "a table")

    def __hash__(self) -> int:
        """Kept after the first time: plans are looked up by schema for every append."""
        return self._hash

    def __reduce__(self) -> tuple[type[Schema], tuple[Any, ...]]:
        """Pickled without what is cached: another process hashes strings differently."""
        return Schema, (self.columns, self.constraints, self.dropped, self.began)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of this name, or BadRequest with the nearest one."""
        found = self._by_name.get(name)
        if found is None:
            raise BadRequest(f"no column {name!r}", hint=nearest(name, self.names))
        return found

    def text(self) -> str:
        """The columns as `parse_columns` reads them."""
        return ",".join(column.text() for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        """As the ledger stores it; `from_json` is the inverse."""
        said: dict[str, Any] = {
            "columns": [_column_json(column) for column in self.columns],
            "constraints": [constraint.text() for constraint in self.constraints],
        }
        said.update({"dropped": True} if self.dropped else {})
        said.update({"began": self.began} if self.began else {})
        return said

    def fresh(self) -> Schema:
        """The same for a new table: what older rows and files have to do with a column is left out."""
        return Schema(tuple(Column(one.name, one.type, one.nullable) for one in self.columns), self.constraints)

    def carried(self, number: int) -> Schema:
        """The same on a branch that a merge of this number brings it to.

        Rows of that branch have not seen it, also those above the seq of its change: where a column is required and has
        a default, they have that.
        """
        return replace(self, columns=tuple(_carried(column, number) for column in self.columns))

    @cached_property
    def stored(self) -> dict[str, Column]:
        """The columns by their names in data files."""
        return {column.stored: column for column in self.columns}

    @cached_property
    def _hash(self) -> int:
        return hash((self.columns, self.constraints))

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}


def parse_columns(text: str) -> Schema:
    """A schema from `id:string,body:string?,tags:list<string>`."""
    return Schema(parse_column_list(text))


def parse_mapping(types: Mapping[str, str]) -> Schema:
    """A schema from `{"id": "string", "body": "string?"}`."""
    return Schema(tuple(_parse_column(name, text) for name, text in types.items()))


def from_json(doc: Any) -> Schema:
    """A schema from what `to_json` gave."""
    try:
        columns = tuple(map(_column_from_json, doc["columns"]))
        constraints = parse_constraints(doc.get("constraints", ()))
        return Schema(columns, constraints, doc.get("dropped", False), doc.get("began", 0))
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(
            f"not a stored schema: {type(error).__name__} {error}",
            hint='An object with "columns" (each with name, type, nullable), and maybe "constraints".',
        ) from None


def _carried(column: Column, number: int) -> Column:
    if column.nullable or not column.fills:
        return column
    *older, newest = column.fills
    return replace(column, fills=(*older, replace(newest, below=number)))


def _column_json(column: Column) -> dict[str, Any]:
    """What is as in any new table is left out."""
    said: dict[str, Any] = {"name": column.name, "type": type_text(column.type), "nullable": column.nullable}
    if column.stored != column.name:
        said["stored"] = column.stored
    if column.fills:
        said["fills"] = [{"below": fill.below, "value": fill.value} for fill in column.fills]
    return said


def _column_from_json(doc: Any) -> Column:
    fills = tuple(Fill(fill["below"], fill["value"]) for fill in doc.get("fills", ()))
    return Column(doc["name"], parse_type(doc["type"]), doc["nullable"], doc.get("stored", ""), fills)


def from_iceberg_json(doc: Any) -> Schema:
    """A schema from Iceberg's JSON (`{"type": "struct", "fields": [...]}`)."""
    match doc:
        case {"type": "struct", "fields": [*fields]}:
            return Schema(tuple(column_from_iceberg(field) for field in fields))
    raise BadRequest("not an Iceberg schema", hint='It looks like {"type": "struct", "fields": [...]}.')


def _parse_column(name: str, text: str) -> Column:
    if not isinstance(name, str) or not isinstance(text, str):
        raise BadRequest(f"column {name!r} is {text!r}", hint='Both are text, as in {"id": "string"}.')
    type_, nullable = parse_nullable(text)
    return Column(name, type_, nullable)
