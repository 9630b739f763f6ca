"""A schema as it is wanted: the document that `strand schema apply` takes, read into nouns.

    {"tables": {"person": {"key": ["id"],
                           "columns": {"id": "string", "name": "string?",
                                       "age": {"type": "long", "default": 0, "rename_from": "years"}},
                           "constraints": ["range(age: 0..150)"]},
                "gone": {"drop": true}}}

A table that is not named stays as it is; of one that is named, all columns are. What `strand schema show --json` prints
is such a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Required, TypedDict

from strandline.errors import BadRequest, nearest
from strandline.model.schema.constraints import Constraint, parse_constraints
from strandline.model.schema.types import Column, parse_nullable, type_text
from strandline.model.tables import BranchTable
from strandline.model.values.user_rows import Value

_TABLE = ("columns", "key", "row_key", "partition_by", "constraints", "drop")
FIXED: tuple[Literal["key", "row_key", "partition_by"], ...] = ("key", "row_key", "partition_by")
"""What a table is made with and keeps."""

_COLUMN = ("type", "default", "rename_from")
_ABSENT: Any = object()
UNSAID: Value = object()
"""The default of a column of which the document says none: it keeps the one that it has. A null takes that away."""


class ColumnDocument(TypedDict, total=False):
    """A column in a document that is more than a type."""

    type: Required[str]
    default: Value
    rename_from: str


class TableDocument(TypedDict, total=False):
    """A table in a document."""

    columns: dict[str, str | ColumnDocument]
    key: list[str]
    row_key: list[str]
    partition_by: list[str]
    constraints: list[str]
    drop: bool


class SchemaDocument(TypedDict):
    """The schemas of tables, as a document that can be changed and applied."""

    tables: dict[str, TableDocument]


@dataclass(frozen=True)
class WantedColumn:
    """A column as it should be; `default` is what rows get that lack it, `rename_from` what it is called now."""

    column: Column
    default: Value = UNSAID
    rename_from: str | None = None


@dataclass(frozen=True)
class WantedTable:
    """A table as it should be. What is None was not said, and stays as it is."""

    name: str
    columns: tuple[WantedColumn, ...] = ()
    key: tuple[str, ...] | None = None
    row_key: tuple[str, ...] | None = None
    partition_by: tuple[str, ...] | None = None
    constraints: tuple[Constraint, ...] | None = None
    drop: bool = False


def parse_wanted(doc: object) -> tuple[WantedTable, ...]:
    """The tables of a document; BadRequest that says where it is none."""
    if not isinstance(doc, Mapping) or not isinstance(tables := doc.get("tables"), Mapping) or not tables:
        raise BadRequest("the document has no tables", hint='It looks like {"tables": {"person": {"columns": {…}}}}.')
    _refuse_unknown(doc, ("tables",), "the document")
    by_folded_name: dict[str, str] = {}
    for name in tables:
        if by_folded_name.setdefault(str(name).lower(), str(name)) != name:
            raise BadRequest(f"the document has both {by_folded_name[name.lower()]!r} and {name!r}")
    return tuple(_table(str(name), table) for name, table in tables.items())


def to_document(branch_table: BranchTable) -> TableDocument:
    """A table as a document has it."""
    table = branch_table.table
    document: TableDocument = {
        "columns": {column.name: _column_document(column) for column in branch_table.schema.columns}
    }
    if table.key:
        document["key"] = list(table.key)
    if table.row_key:
        document["row_key"] = list(table.row_key)
    if table.partition_by:
        document["partition_by"] = list(table.partition_by)
    if table.key:
        document["constraints"] = [constraint.text() for constraint in branch_table.schema.constraints]
    return document


def _column_document(column: Column) -> str | ColumnDocument:
    text = f"{type_text(column.type)}{'?' * column.nullable}"
    if column.default is None:
        return text
    from strandline.model.schema.defaults import (
        default_json,  # not above: it needs PyArrow, and most schemas have no default
    )

    return {"type": text, "default": default_json(column)}


def _table(name: str, doc: object) -> WantedTable:
    where = f"table {name!r}"
    if not isinstance(doc, Mapping):
        raise BadRequest(f"{where} is {doc!r}", hint='It is an object, such as {"columns": {…}} or {"drop": true}.')
    _refuse_unknown(doc, _TABLE, where)
    if doc.get("drop", False) is True and len(doc) == 1:
        return WantedTable(name, drop=True)
    columns = doc.get("columns")
    if "drop" in doc or not isinstance(columns, Mapping) or not columns:
        raise BadRequest(f"{where} has no columns", hint='Give "columns", or {"drop": true} and nothing else.')
    constraints = doc.get("constraints", _ABSENT)
    if constraints is not _ABSENT and not isinstance(constraints, list):
        raise BadRequest(f"the constraints of {where} are {constraints!r}", hint='A list, as ["unique(email)"].')
    return WantedTable(
        name,
        tuple(_column(column, column_doc, where) for column, column_doc in columns.items()),
        key=_names(doc, "key", where),
        row_key=_names(doc, "row_key", where),
        partition_by=_names(doc, "partition_by", where),
        constraints=None if constraints is _ABSENT else parse_constraints(constraints),
    )


def _column(name: object, doc: object, where: str) -> WantedColumn:
    fields = {"type": doc} if isinstance(doc, str) else doc
    if not isinstance(fields, Mapping) or not isinstance(fields.get("type"), str) or not isinstance(name, str):
        raise BadRequest(f"column {name!r} of {where} is {doc!r}", hint='A type, or {"type": "long", "default": 0}.')
    _refuse_unknown(fields, _COLUMN, f"column {name!r} of {where}")
    type_, nullable = parse_nullable(fields["type"])
    rename = fields.get("rename_from")
    if rename is not None and not isinstance(rename, str):
        raise BadRequest(f"column {name!r} of {where} is renamed from {rename!r}", hint="Give the column's name.")
    return WantedColumn(Column(name, type_, nullable), fields.get("default", UNSAID), rename)


def _names(doc: Mapping[str, object], what: str, where: str) -> tuple[str, ...] | None:
    names = doc.get(what)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequest(f"the {what} of {where} is {names!r}", hint='A list of columns, as ["id"].')
    return tuple(names)


def _refuse_unknown(doc: Mapping[object, object], names: tuple[str, ...], where: str) -> None:
    for name in doc:
        if name not in names:
            raise BadRequest(f"{where} has {name!r}, which means nothing", hint=nearest(str(name), names))
