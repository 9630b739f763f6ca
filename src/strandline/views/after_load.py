"""Keyed tables as a large load will leave them: what is there, without what goes, and with what comes.

Nothing of it is held in Python. What is there is a view of the branch; what comes are Parquet files, whose rows have
their seqs already. DuckDB finds which of them count, which rows go, and whether the tables then keep their rules; it is
asked in the same words as when a rule is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from strandline.engines.duck import relations, sandbox
from strandline.engines.duck.sandbox import quote_name
from strandline.model.reporting import Listed, most_reported
from strandline.model.schema.constraints import Constraint, Reference
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.types import SEQ
from strandline.model.schema.violations import Violation
from strandline.model.tables import BranchTable
from strandline.model.values.user_rows import Value
from strandline.rules.references import left_behind
from strandline.rules.sets import breaches
from strandline.views.result import Result
from strandline.views.view import View

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Incoming:
    """What comes to a table: files, each with the seq of its first row, and how many rows they have.

    `whole` says that no other rows are left.
    """

    branch_table: BranchTable
    files: Sequence[tuple[str, int]]
    rows: int
    whole: bool


class TakenKey(NamedTuple):
    """A row that can't be inserted, by its seq: its key, and the seq of the row that is there, if it was before."""

    seq: int
    key: tuple[Value, ...]
    seq_before: int | None


class Broken(NamedTuple):
    """A rule that is broken, whether by a row alone; and of a row that comes, its table and its seq."""

    violation: Violation
    at: tuple[str, int] | None
    only_row: bool


class Coming:
    """The tables of a branch as they will be; `incoming` are those that a load names, by id."""

    def __init__(self, view: View, declared: Declarations, incoming: Mapping[str, Incoming]) -> None:
        self._view = view
        self._declared = declared
        self._incoming = incoming
        self._closing = ExitStack()
        self._connection = self._closing.enter_context(sandbox.scratch())
        self._defined: set[str] = set()
        self._losing: set[str] = set()
        self._puts: dict[str, int] = {}

    def __enter__(self) -> Coming:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)

    # -- what comes and what goes --------------------------------------------------------------------------------------

    def find(self) -> None:
        """Find the rows that count of those that come, the last of each key; and those that go.

        These go as if nothing cascaded: what refers to one of them breaks its rule, and its delete was not asked for.
        """
        for table_id, incoming in self._incoming.items():
            key = _names(incoming.branch_table.table.key)
            relations.define(self._connection, _in("loaded", table_id), self._loaded(incoming))
            last = f"SELECT {key}, max({SEQ}) AS {SEQ} FROM {_of('loaded', table_id)} GROUP BY {key}"
            self._keep("last", table_id, last)
            self._puts[table_id] = self._count(_of("last", table_id))
            if incoming.whole:
                self._losing.add(table_id)
                others = f"{self._now(table_id)} ANTI JOIN {_of('last', table_id)} USING ({key})"
                self._keep("gone", table_id, f"SELECT {key} FROM {others}")

    def taken(self, table_id: str) -> tuple[list[TakenKey], int]:
        """The first rows that come and whose keys are there, before them or by them; and how many there are."""
        incoming, now = self._incoming[table_id], self._now(table_id)
        key = _names(incoming.branch_table.table.key)
        meeting = self._count(f"{_of('last', table_id)} SEMI JOIN {now} USING ({key})")
        if not meeting and self._puts[table_id] == incoming.rows:
            return [], 0
        place = f"row_number() OVER (PARTITION BY {key} ORDER BY {SEQ})"
        rows = (
            f"SELECT l.{SEQ} AS came, {key}, n.{SEQ} AS known FROM "
            f"(SELECT {key}, {SEQ}, {place} AS place FROM {_of('loaded', table_id)}) l "
            f"LEFT JOIN {now} n USING ({key}) WHERE l.place > 1 OR n.{SEQ} IS NOT NULL"
        )
        rows_found = self._rows(f"SELECT * FROM ({rows}) ORDER BY came LIMIT {most_reported()}")
        return [TakenKey(at, tuple(values), seq) for at, *values, seq in rows_found], self._count(f"({rows})")

    def puts(self, table_id: str) -> int:
        """How many rows a table gets."""
        return self._puts[table_id]

    def goes(self, table_id: str) -> int:
        """How many rows a table loses."""
        return self._count(_of("gone", table_id)) if table_id in self._losing else 0

    def left_out(self, table_id: str, first_seq: int, last_seq: int) -> Iterator[pa.RecordBatch]:
        """The seqs in a range of rows that come and don't count: a later one has their key."""
        if self._puts[table_id] == self._incoming[table_id].rows:
            return iter(())
        earlier = f"{_of('loaded', table_id)} ANTI JOIN {_of('last', table_id)} USING ({SEQ})"
        return self._batches(
            f"SELECT {SEQ} FROM {earlier} WHERE {SEQ} BETWEEN {first_seq} AND {last_seq} ORDER BY {SEQ}"
        )

    def removed(self, table_id: str, first_seq: int) -> Iterator[pa.RecordBatch]:
        """The keys of the rows that go, by their names in data files, with seqs from this one on."""
        branch_table = self._branch_table(table_id)
        key = ", ".join(
            f"{quote_name(name)} AS {quote_name(branch_table.schema.column(name).stored)}"
            for name in branch_table.table.key
        )
        order = f"row_number() OVER (ORDER BY {_names(branch_table.table.key)})"
        rows = f"SELECT {key}, {first_seq - 1} + {order} AS {SEQ} FROM {_of('gone', table_id)}"
        return self._batches(f"{rows} ORDER BY {SEQ}")

    def place(self, table_id: str, seq: int, columns: Sequence[str]) -> tuple[Value, ...]:
        """What a row that comes has in other columns of its file: the caller that named them knows what they mean."""
        path, first = max((part for part in self._incoming[table_id].files if part[1] <= seq), key=lambda part: part[1])
        numbered = relations.numbered(relations.local_path(path), columns, first)
        return self._rows(f"SELECT {_names(columns)} FROM ({numbered}) WHERE {SEQ} = {seq}")[0]

    # -- whether that is allowed ---------------------------------------------------------------------------------------

    def broken(self) -> Listed[Broken]:
        """What the tables will not keep of what they declare, as far as it can be due to what comes and goes."""
        getting = [table_id for table_id in self._incoming if self._puts[table_id]]
        losing = [table_id for table_id in sorted(self._losing) if self.goes(table_id)]
        broken: Listed[Broken] = Listed()
        for table_id in getting:
            for rule in self._branch_table(table_id).schema.constraints:
                if rule.scope != "tables":
                    broken.add(self._breaking(table_id, rule))
        made = [link for table_id in {*getting, *losing} for link in self._declared.links_from(table_id)]
        met = [link for table_id in {*getting, *losing} for link in self._declared.links_to(table_id)]
        for link in {(link.source.table.table_id, link.reference): link for link in (*made, *met)}.values():
            rules: tuple[Constraint, ...] = (link.reference, *link.counts)
            for rule in rules:
                broken.add(self._breaking(link.source.table.table_id, rule))
        broken.first.sort(key=lambda breach: (breach.at is None, breach.at))
        return broken

    def _breaking(self, table_id: str, rule: Constraint) -> Iterator[Broken]:
        branch_table = self._branch_table(table_id)
        for joined in (branch_table, *(link.target for link in self._declared.links_from(table_id))):
            self._then(joined.table.table_id)
        for breach in breaches(self, branch_table, rule):
            seq, violation = breach.seq, breach.violation
            at = (table_id, seq) if seq is not None and self._comes(table_id, seq) else None
            if at is None and rule.scope == "table":
                continue  # it was there before: those that come with its value are told
            if at is None and isinstance(rule, Reference):
                violation = left_behind(violation, rule)
            yield Broken(violation, at, rule.scope == "row")

    def _comes(self, table_id: str, seq: int) -> bool:
        incoming = self._incoming.get(table_id)
        return incoming is not None and bool(incoming.files) and seq >= min(first for _, first in incoming.files)

    def ask(self, query: str) -> Result:
        """Run a query of our own over the tables as they will be."""
        return Result(self._connection, query, None)

    @property
    def tables(self) -> list[str]:
        """The names of all tables."""
        return self._view.tables

    def branch_table(self, name: str) -> BranchTable:
        """A table."""
        return self._view.branch_table(name)

    # -- how it is said ------------------------------------------------------------------------------------------------

    def _branch_table(self, table_id: str) -> BranchTable:
        return self._declared.branch_tables[table_id]

    def _loaded(self, incoming: Incoming) -> str:
        names = list(incoming.branch_table.schema.names)
        if incoming.files:
            return relations.together(
                [relations.numbered(relations.local_path(path), names, first) for path, first in incoming.files]
            )
        columns = [column for column in incoming.branch_table.columns if column.name in (*names, SEQ)]
        return relations.empty(columns)

    def _now(self, table_id: str) -> str:
        """A table as it is."""
        if _in("now", table_id) not in self._defined:
            self._defined.add(_in("now", table_id))
            rows = self._view.current(self._connection, self._branch_table(table_id).table.name)
            relations.define(self._connection, _in("now", table_id), rows)
        return _of("now", table_id)

    def _then(self, table_id: str) -> str:
        """A table as it will be, under its own name."""
        branch_table = self._branch_table(table_id)
        if _in("then", table_id) not in self._defined:
            self._defined.add(_in("then", table_id))
            self._connection.execute(
                f"CREATE VIEW {quote_name(branch_table.table.name)} AS {self._future(branch_table)}"
            )
        return quote_name(branch_table.table.name)

    def _future(self, branch_table: BranchTable) -> str:
        table_id, key = branch_table.table.table_id, _names(branch_table.table.key)
        columns = _names([*branch_table.schema.names, SEQ])
        incoming = self._incoming.get(table_id)
        if incoming is None:
            rows = f"SELECT {columns} FROM {self._now(table_id)}"
        else:
            rows = f"SELECT {columns} FROM {_of('loaded', table_id)}"
            if self._puts[table_id] < incoming.rows:
                rows += f" SEMI JOIN {_of('last', table_id)} USING ({SEQ})"
            if not incoming.whole:
                others = f"{self._now(table_id)} ANTI JOIN {_of('last', table_id)} USING ({key})"
                rows = f"SELECT {columns} FROM {others} UNION ALL {rows}"
        return rows

    def _keep(self, what: str, table_id: str, query: str) -> None:
        with sandbox.interruptible():
            relations.keep(self._connection, _in(what, table_id), query)

    def _rows(self, query: str) -> list[tuple[Value, ...]]:
        with sandbox.interruptible():
            rows: list[tuple[Value, ...]] = self._connection.execute(query).fetchall()
        return rows

    def _count(self, rows: str) -> int:
        return int(self._rows(f"SELECT count(*) FROM {rows}")[0][0])

    def _batches(self, query: str) -> Iterator[pa.RecordBatch]:
        with sandbox.interruptible():
            yield from self._connection.sql(query).to_arrow_reader(100_000)


def _in(what: str, table_id: str) -> str:
    return f"{what}_{table_id}"


def _of(what: str, table_id: str) -> str:
    return relations.internal(_in(what, table_id))


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(quote_name, columns))
