"""Statements by themselves: valid, each with the key that it is about, before any row is looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from strandline.errors import (
    BadRequest,
    InvalidRows,
    Unsupported,
    nearest,
)
from strandline.ledger.changes.mutations import (
    Remember,
)
from strandline.model.history.mutations import Delete, Expectation, HeadIs, Patch, Put, RowIs, Statement, TableIs
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.keys import key_fields, key_hash, shown_key
from strandline.model.schema.schema import Schema
from strandline.model.tables import BranchTable
from strandline.model.values import rows as rules
from strandline.model.values.row_versions import Keys, Row
from strandline.views.versions import given_columns, row_at


@dataclass(frozen=True)
class KeyChange:
    """One valid statement: what becomes of a key. `fields` are a whole row, or those that a patch changes."""

    place: int
    branch_table: BranchTable
    hash: bytes
    key: Row
    fields: Row | None
    kind: str

    @property
    def name(self) -> str:
        """The row, as messages name it."""
        return f"{self.branch_table.table.name} {shown_key([value[0].as_py() for value in self.key.values()])}"

    @property
    def reads(self) -> bool:
        """Whether what happens depends on what is there."""
        return self.kind != "put"


@dataclass
class MutationRequest:
    """A mutation as it was asked for, with its statements validated.

    Of the tables in `whole` no other rows are left. `remember` is what tells it from another one when it is repeated.
    """

    branch: str
    actor: str
    message: str
    kind: str
    changes: list[KeyChange]
    whole: list[BranchTable] = field(default_factory=list)
    remember: Remember | None = None
    tip: str | None = None
    seqs: list[tuple[BranchTable, int]] = field(default_factory=list)
    rows: list[tuple[KeyChange, int | None]] = field(default_factory=list)

    @property
    def last_seqs(self) -> dict[str, int]:
        """What the newest version of each of these tables is expected to be."""
        return {branch_table.table.table_id: seq for branch_table, seq in self.seqs}

    def tables(self, declared: Declarations) -> list[tuple[BranchTable, Keys]]:
        """The tables that it is about, each with the keys whose rows it must see."""
        tables: dict[str, tuple[BranchTable, dict[bytes, Row]]] = {}
        for change in [*self.changes, *(change for change, _ in self.rows)]:
            _, keys = tables.setdefault(change.branch_table.table.table_id, (change.branch_table, {}))
            if change.reads or declared.depends(change.branch_table.table.table_id):
                keys[change.hash] = change.key
        for branch_table in (*self.whole, *(branch_table for branch_table, _ in self.seqs)):
            tables.setdefault(branch_table.table.table_id, (branch_table, {}))
        return list(tables.values())


def prepare(
    statements: Sequence[Statement],
    expect: Expectation | Sequence[Expectation] | None,
    table_of: Callable[[str], BranchTable],
    *,
    branch: str,
    actor: str,
    message: str,
    kind: str = "mutate",
) -> MutationRequest:
    """Validate statements by themselves: tables, keys, columns and values. What is wrong is named by its place."""
    if not statements:
        raise BadRequest("there is nothing to change", hint="Give at least one statement.")
    request = MutationRequest(branch, actor, message, kind, _changes(statements, table_of))
    expected = [expect] if isinstance(expect, HeadIs | TableIs | RowIs) else list(expect or ())
    if len({head.commit for head in expected if isinstance(head, HeadIs)}) > 1:
        raise BadRequest("two different heads are expected", hint="A branch is at one commit.")
    for expectation in expected:
        match expectation:
            case HeadIs(commit=commit):
                request.tip = commit
            case TableIs(table=table, seq=seq):
                branch_table = require_keyed(table_of(table))
                if request.last_seqs.get(branch_table.table.table_id, seq) != seq:
                    raise BadRequest(f"two different seqs are expected of {table!r}", hint="It has one newest version.")
                request.seqs.append((branch_table, seq))
            case RowIs(table=table, key=key, seq=seq):
                request.rows.append((_by_key(0, require_keyed(table_of(table)), key, None, "expect"), seq))
            case _:
                raise BadRequest(f"{expectation!r} is no expectation", hint="Use sl.head, sl.table_head or sl.row.")
    return request


def _changes(statements: Sequence[Statement], table_of: Callable[[str], BranchTable]) -> list[KeyChange]:
    changes: dict[int, KeyChange] = {}
    puts: dict[str, list[tuple[int, Put]]] = {}
    for place, statement in enumerate(statements):
        match statement:
            case Put(table=table):
                puts.setdefault(require_keyed(table_of(table)).table.name, []).append((place, statement))
            case Patch(table=table, key=key, fields=fields):
                changes[place] = _by_key(place, require_keyed(table_of(table)), key, fields, "patch")
            case Delete(table=table, key=key):
                changes[place] = _by_key(place, require_keyed(table_of(table)), key, None, "delete")
            case _:
                raise BadRequest(
                    f"statement {place} is {type(statement).__name__}",
                    hint="Use sl.put, sl.insert, sl.patch, sl.delete.",
                )
    for table, table_puts in puts.items():
        changes.update((change.place, change) for change in _puts(table_of(table), table_puts))
    return [changes[place] for place in sorted(changes)]


def require_keyed(branch_table: BranchTable) -> BranchTable:
    """The same; Unsupported where it is a log table's."""
    if not branch_table.table.key:
        raise Unsupported(
            f"{branch_table.table.name!r} is a log table: its rows don't change",
            hint="`strand append` and `strand load TABLE` add rows to it.",
        )
    return branch_table


def _puts(branch_table: BranchTable, puts: Sequence[tuple[int, Put]]) -> Iterator[KeyChange]:
    """All rows of one table at once: validation costs little per row, and much per call."""
    table = branch_table.table
    places, raw_rows = [place for place, _ in puts], [put.row for _, put in puts]
    rows = _valid(places, raw_rows, branch_table.schema, extra=table.extra, partition_by=table.partition_by)
    return changes_of(branch_table, rows, [(place, put.strict) for place, put in puts])


def changes_of(
    branch_table: BranchTable, rows: pa.RecordBatch, puts: Sequence[tuple[int, bool]]
) -> Iterator[KeyChange]:
    """Valid rows as what is to be put: each with its place, and whether nothing may be there."""
    columns = given_columns(branch_table)
    keys = zip(*(rows.column(name).to_pylist() for name in branch_table.table.key), strict=True)
    for at, ((place, strict), key) in enumerate(zip(puts, keys, strict=True)):
        fields = row_at(rows, at, columns)
        named = {name: fields[name] for name in branch_table.table.key}
        yield KeyChange(place, branch_table, key_hash(key), named, fields, "insert" if strict else "put")


def _by_key(place: int, branch_table: BranchTable, key: Any, fields: Mapping[str, Any] | None, kind: str) -> KeyChange:
    """A statement about the row that a key names."""
    table = branch_table.table
    named = Schema(tuple(branch_table.schema.column(name) for name in table.key))
    values = row_at(_valid([place], [key_fields(table.key, key, table.name)], named), 0, table.key)
    patch: Row | None = None
    if fields is not None:
        for name in fields:
            if name in table.key:
                raise BadRequest(
                    f"statement {place} would change {name!r}, which is part of the key of {table.name!r}",
                    hint="Delete the row, and put another one.",
                )
            if name not in branch_table.schema.names:
                reason = f"no such column. {nearest(str(name), branch_table.schema.names)}"
                raise rules.refused_row(place, str(name), fields[name], reason)
        schema = Schema(tuple(branch_table.schema.column(name) for name in fields)) if fields else None
        patched = _valid([place], [fields], schema) if schema is not None else None
        patch = row_at(patched, 0, list(fields)) if patched is not None else {}
    return KeyChange(
        place, branch_table, key_hash([value[0].as_py() for value in values.values()]), values, patch, kind
    )


def _valid(
    places: Sequence[int],
    rows: Sequence[Mapping[str, Any]],
    schema: Schema,
    *,
    extra: bool = False,
    partition_by: Sequence[str] = (),
) -> pa.RecordBatch:
    """The rows as a batch; what is wrong with one is told by its statement's place."""
    try:
        return rules.from_dicts(rows, schema, extra=extra, partition_by=partition_by)
    except InvalidRows as error:
        raise rules.renumbered(error, places) from None
