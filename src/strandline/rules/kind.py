"""What a kind of rule says of itself, and what it is handed to judge by.

A kind is a module beside this one. There stand together: which columns it fits, how it judges the rows that a commit
changes, how it finds all rows of a relation that break it, and what each of these says. Both judges must come to the
same; `tests/unit/test_rules_agree.py` writes down what that means and holds them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from strandline.engines.duck.sandbox import quote_name
from strandline.errors import BadRequest
from strandline.model.schema.constraints import Constraint
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.keys import shown_key
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import SEQ, Column
from strandline.model.schema.violations import Violation
from strandline.model.tables import BranchTable
from strandline.model.values.row_versions import ValueHolder
from strandline.model.values.user_rows import Value
from strandline.model.values.values import shown
from strandline.rules.changes import Changes, Claims, JudgedRow, LookUp, Values

RuleT = TypeVar("RuleT", bound=Constraint)


@dataclass(frozen=True)
class Breach:
    """A rule that a row breaks: the row by its table and key, and the value that the rule is about.

    `seq` is that of the row, where it was found in a relation and the rule is its own table's.
    """

    violation: Violation
    rule: Constraint
    branch_table: BranchTable
    key: Values
    value: Values
    seq: int | None = None


@dataclass(frozen=True)
class Target:
    """A table that may be referred to: its key, and the types of that."""

    table: str
    key: tuple[str, ...]
    schema: Schema


@dataclass(frozen=True)
class Declaration:
    """Where a rule is declared: a schema, and how the tables that it names are found."""

    schema: Schema
    target_of: Callable[[str], Target]

    def columns(self, rule: Constraint) -> list[Column]:
        """The columns that a rule is about."""
        return [self.schema.column(name) for name in rule.columns]


class Answer(Protocol):
    """The answer to a query, which is fetched once."""

    def reader(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches, as they are computed."""


class Relations(Protocol):
    """Tables of a branch, under their names: as they are, or as they will be."""

    @property
    def tables(self) -> list[str]:
        """The names of all of them."""

    def ask(self, query: str) -> Answer:
        """Run a query over them."""

    def branch_table(self, name: str) -> BranchTable:
        """One of them."""


class Judging:
    """One commit while it is judged row by row: what it changes, what it relies on, and what it would break."""

    def __init__(self, declared: Declarations, changes: Changes, look: LookUp, claims: Claims | None = None) -> None:
        self.declared = declared
        self.changes = changes
        self.look = look
        self.claims = claims or Claims()
        self.breaches: list[Breach] = []
        self.orphaned: list[tuple[BranchTable, ValueHolder]] = []

    @property
    def only_rows(self) -> bool:
        """Whether every row that breaks something is wrong by itself."""
        return all(breach.rule.scope == "row" for breach in self.breaches)

    def changed(self, branch_table: BranchTable) -> list[JudgedRow]:
        """What the commit changes of a table."""
        return [
            change
            for change in self.changes.values()
            if change.branch_table.table.table_id == branch_table.table.table_id
        ]

    def tell(
        self, branch_table: BranchTable, key: Values, rule: Constraint, value: Values, reason: str, place: int = -1
    ) -> None:
        """Note that a row breaks a rule."""
        self.breaches.append(breach(branch_table, key, rule, value, reason, place=place))


@dataclass(frozen=True)
class RuleKind(Generic[RuleT]):
    """A kind of rule, by what it does.

    `fit` refuses a rule that makes no sense where it is declared. `search` finds the rows of a relation that break it.
    `judge_rows` judges the changed rows of the table that declares it; `judge_commit` judges what only all changes
    together tell. `conflict` is what a merge calls rows that break it.
    """

    fit: Callable[[RuleT, Declaration], None]
    search: Callable[[Relations, BranchTable, RuleT], Iterator[Breach]]
    judge_rows: Callable[[Judging, BranchTable, RuleT, Sequence[JudgedRow]], None] | None = None
    judge_commit: Callable[[Judging], None] | None = None
    conflict: str = "value_violation"


def breach(
    branch_table: BranchTable,
    key: Values,
    rule: Constraint,
    value: Values,
    reason: str,
    *,
    seq: int | None = None,
    place: int = -1,
) -> Breach:
    """A rule that a row breaks, with its words."""
    text = shown(value[0] if len(value) == 1 else value)
    index = None if place < 0 else place
    fields = ", ".join(rule.columns)
    violation = Violation(branch_table.table.name, shown_key(key), fields, rule.text(), text, reason, index)
    return Breach(violation, rule, branch_table, key, value, seq)


def need(fits: bool, rule: Constraint, column: Column, types: str) -> None:
    """BadRequest where a rule does not fit a column's type."""
    if not fits:
        raise BadRequest(f"{rule.text()} does not fit column {column.text()!r}", hint=f"It has to be {types}.")


# -- questions ---------------------------------------------------------------------------------------------------------


def rows_of(relations: Relations, query: str) -> Iterator[tuple[Value, ...]]:
    """The rows of an answer, as Python values."""
    for batch in relations.ask(query).reader():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def own_rows(
    relations: Relations, branch_table: BranchTable, rule: Constraint, query: str, reason: str
) -> Iterator[Breach]:
    """The breaches of a query whose rows are a key, the rule's columns and a seq."""
    keys = len(key_of(branch_table))
    for *values, seq in rows_of(relations, query):
        yield breach(branch_table, tuple(values[:keys]), rule, tuple(values[keys:]), reason, seq=seq)


def key_of(branch_table: BranchTable) -> tuple[str, ...]:
    """What names a row: its key, and in a log table its seq."""
    return branch_table.table.key or (SEQ,)


def table(branch_table: BranchTable) -> str:
    """A table, as a query names it."""
    return quote_name(branch_table.table.name)


def names(columns: Sequence[str], alias: str = "") -> str:
    """Columns, as a query names them."""
    return ", ".join(f"{alias}{quote_name(name)}" for name in columns)


def all_there(columns: Sequence[str], alias: str = "") -> str:
    """The condition that none of these columns is null."""
    return " AND ".join(f"{alias}{quote_name(name)} IS NOT NULL" for name in columns)


def joined(columns: Sequence[str], target: BranchTable) -> str:
    """The condition that columns of `t` name the key of `x`."""
    pairs = zip(columns, target.table.key, strict=True)
    return " AND ".join(f"t.{quote_name(name)} = x.{quote_name(key)}" for name, key in pairs)


def is_there(relations: Relations, name: str) -> bool:
    """Whether there is such a table: one that is yet to come has no rows."""
    return name.lower() in map(str.lower, relations.tables)
