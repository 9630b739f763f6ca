"""A table's schema: its columns, in order, and the constraints that its rows keep.

What a row must look like is decided by the columns here and checked by `rows`, at the door. Behind it nothing is
required any more: stored files have only nullable fields, because a requirement can change on one branch and files are
shared by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NotRequired, TypedDict

from strandline.errors import BadRequest, nearest
from strandline.model.schema.constraints import Constraint, parse_constraints
from strandline.model.schema.engine_types import column_from_iceberg
from strandline.model.schema.types import (
    OPEN,
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
class Gone:
    """A column that a branch has dropped, as it was, and the seq from which on its rows have no values of it."""

    column: Column
    since: int


class StoredSchema(TypedDict):
    """A schema as the ledger stores it. What is as in any new table is left out."""

    columns: list[dict[str, object]]
    constraints: list[str]
    dropped: NotRequired[bool]
    began: NotRequired[int]
    gone: NotRequired[list[dict[str, object]]]


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order, and what is declared of their values.

    One that is `dropped` has the columns that the files have, and no reader is shown them. Of a table that was added
    again after that, rows up to the seq `began` are of the one before, and not shown. `gone` are the columns that the
    branch has dropped: a merge may bring one back.
    """

    columns: tuple[Column, ...]
    constraints: tuple[Constraint, ...] = ()
    dropped: bool = False
    began: int = 0
    gone: tuple[Gone, ...] = ()

    def __post_init__(self) -> None:
        check_names(self.names, "a table")

    def __hash__(self) -> int:
        """Kept after the first time: plans are looked up by schema for every append."""
        return self._hash

    def __reduce__(self) -> tuple[type[Schema], tuple[Any, ...]]:
        """Pickled without what is cached: another process hashes strings differently."""
        return Schema, (self.columns, self.constraints, self.dropped, self.began, self.gone)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of this name, or BadRequest with the nearest one."""
        column = self._by_name.get(name)
        if column is None:
            raise BadRequest(f"no column {name!r}", hint=nearest(name, self.names))
        return column

    def text(self) -> str:
        """The columns as `parse_columns` reads them."""
        return ",".join(column.text() for column in self.columns)

    def to_json(self) -> StoredSchema:
        """As the ledger stores it; `from_json` is the inverse."""
        doc: StoredSchema = {
            "columns": [_column_json(column) for column in self.columns],
            "constraints": [constraint.text() for constraint in self.constraints],
        }
        if self.dropped:
            doc["dropped"] = True
        if self.began:
            doc["began"] = self.began
        if self.gone:
            doc["gone"] = [{**_column_json(former.column), "since": former.since} for former in self.gone]
        return doc

    def fresh(self) -> Schema:
        """The same for a new table: what older rows and files have to do with a column is left out."""
        columns = tuple(
            Column(column.name, column.type, column.nullable, default=column.default) for column in self.columns
        )
        return Schema(columns, self.constraints)

    def along(self, own: Schema) -> Schema:
        """This schema for the rows of a branch that has had its `own` until now, which may know nothing of it.

        Which rows have a column's default is the branch's own affair: where it has had the column, they are those that
        it knows of; where it has not, all of its rows are, up to a seq that is not known yet.
        """
        columns = tuple(replace(column, fills=_fills_along(column, own)) for column in self.columns)
        kept = {column.stored for column in columns}
        dropped = [Gone(column, OPEN) for column in own.columns if column.stored not in kept]
        gone = [former for former in (*own.gone, *dropped) if former.column.stored not in kept]
        return replace(self, columns=columns, gone=tuple(gone))

    def numbered(self, number: int) -> Schema:
        """The same, once it is known that rows below this seq were written before it."""
        columns = tuple(
            replace(column, fills=tuple(fill.numbered(number) for fill in column.fills)) for column in self.columns
        )
        gone = tuple(replace(former, since=number) if former.since == OPEN else former for former in self.gone)
        return replace(self, columns=columns, gone=gone)

    def says_the_same(self, other: Schema) -> bool:
        """Whether a person would call them the same: which rows have which default is left out."""
        left, right = (
            replace(schema, columns=tuple(c.declared for c in schema.columns), gone=()) for schema in (self, other)
        )
        return left == right

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


def from_json(doc: object) -> Schema:
    """A schema from what `to_json` gave."""
    stored: Any = doc  # anything else is an error below
    try:
        columns = tuple(map(_column_from_json, stored["columns"]))
        constraints = parse_constraints(stored.get("constraints", ()))
        gone = tuple(Gone(_column_from_json(column_doc), column_doc["since"]) for column_doc in stored.get("gone", ()))
        return Schema(columns, constraints, stored.get("dropped", False), stored.get("began", 0), gone)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(
            f"not a stored schema: {type(error).__name__} {error}",
            hint='An object with "columns" (each with name, type, nullable), and maybe "constraints".',
        ) from None


def _fills_along(column: Column, own: Schema) -> tuple[Fill, ...]:
    """The defaults of a column for the rows of a branch, which has it, has dropped it, or has never had it."""
    gone = next((former for former in own.gone if former.column.stored == column.stored), None)
    before = own.stored.get(column.stored) or (gone.column if gone is not None else None)
    if before is None:
        return tuple(replace(fill, below=OPEN, gaps=()) for fill in column.fills[:1])
    shared = 0
    for mine, theirs in zip(before.fills, column.fills, strict=False):
        if mine.value != theirs.value:
            break
        shared += 1
    fills = [*before.fills[:shared], *(Fill(OPEN, fill.value) for fill in column.fills[shared:])]
    if column.stored not in own.stored and gone is not None and fills:
        fills[0] = replace(fills[0], gaps=(*fills[0].gaps, (gone.since, OPEN)))
    return tuple(fills)


def _column_json(column: Column) -> dict[str, Any]:
    """What is as in any new table is left out."""
    doc: dict[str, Any] = {"name": column.name, "type": type_text(column.type), "nullable": column.nullable}
    if column.stored != column.name:
        doc["stored"] = column.stored
    if column.fills:
        doc["fills"] = [_fill_json(fill) for fill in column.fills]
    if column.default != _default_of_old_rows(column.fills):
        doc["default"] = column.default
    return doc


def _default_of_old_rows(fills: tuple[Fill, ...]) -> str | None:
    """What a column's default is unless its stored form says another: that of the rows which were there before."""
    return fills[-1].value if fills else None


def _fill_json(fill: Fill) -> dict[str, Any]:
    doc: dict[str, Any] = {"below": fill.below, "value": fill.value}
    doc.update({"gaps": [list(gap) for gap in fill.gaps]} if fill.gaps else {})
    doc.update({"adds": True} if fill.adds else {})
    return doc


def _fill_from_json(doc: Any) -> Fill:
    gaps = tuple((first, end) for first, end in doc.get("gaps", ()))
    return Fill(doc["below"], doc["value"], gaps, doc.get("adds", False))


def _column_from_json(doc: Any) -> Column:
    fills = tuple(map(_fill_from_json, doc.get("fills", ())))
    default = doc.get("default", _default_of_old_rows(fills))
    return Column(doc["name"], parse_type(doc["type"]), doc["nullable"], doc.get("stored", ""), fills, default)


def from_iceberg_json(doc: object) -> Schema:
    """A schema from Iceberg's JSON (`{"type": "struct", "fields": [...]}`)."""
    match doc:
        case {"type": "struct", "fields": [*fields]}:
            return Schema(tuple(column_from_iceberg(field) for field in fields))
    raise BadRequest("not an Iceberg schema", hint='It looks like {"type": "struct", "fields": [...]}.')


def read_schema(doc: object) -> Schema:
    """A schema from Iceberg's JSON, from what `table show --json` prints, or from the columns of that alone."""
    if isinstance(doc, list):
        return from_json({"columns": doc})
    return from_json(doc) if isinstance(doc, dict) and "columns" in doc else from_iceberg_json(doc)


def _parse_column(name: str, text: str) -> Column:
    if not isinstance(name, str) or not isinstance(text, str):
        raise BadRequest(f"column {name!r} is {text!r}", hint='Both are text, as in {"id": "string"}.')
    type_, nullable = parse_nullable(text)
    return Column(name, type_, nullable)
