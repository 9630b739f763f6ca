"""Statements that SQLAlchemy compiles once, and that the driver then runs.

SQLAlchemy's own way of running a statement takes ten times as long as SQLite needs for a small one, and an append waits
for six of them. What comes back is the driver's: rows are plain tuples.

On Postgres statements that don't wait for each other's answers go there together: all writers wait for the one that
holds the counter, and most of that would be the way to the server and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.sql.expression import ClauseElement

from strandline.ledger.database import pipeline
from strandline.ledger.database.pipeline import Row


class Prepared:
    """A statement, compiled once for each of the two databases."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}

    def read_row(self, conn: Connection, parameters: Mapping[str, object]) -> Row:
        """Run it and return its only row."""
        ((row,),) = together(conn, [Bound(self, parameters)])
        return row

    def compiled(self, conn: Connection) -> _Compiled:
        """Its text for the database of this connection."""
        compiled = self._compiled.get(conn.dialect.name)
        if compiled is None:
            compiled = self._compiled[conn.dialect.name] = _Compiled(self._statement, conn)
        return compiled


class Bound(NamedTuple):
    """A statement with its parameters."""

    statement: Prepared
    parameters: Mapping[str, object]


def together(conn: Connection, steps: Sequence[Bound], *, commit: bool = False) -> list[list[Row]]:
    """Run these in their order, and return the rows of each; on Postgres in one way there and back.

    None is run after one that failed. `commit` ends the transaction behind them.
    """
    if conn.dialect.name == "postgresql":
        answers = pipeline.run(conn.connection, [_bound(conn, step) for step in steps], commit=commit)
    else:
        answers = _one_by_one(conn, steps)
    if commit:
        conn.commit()
    return answers


def _one_by_one(conn: Connection, steps: Sequence[Bound]) -> list[list[Row]]:
    cursor = conn.connection.cursor()
    answers: list[list[Row]] = []
    for statement, group in groupby(steps, key=attrgetter("statement")):
        compiled = statement.compiled(conn)
        values = [compiled.values(step.parameters) for step in group]
        if len(values) > 1 and compiled.is_silent:
            cursor.executemany(compiled.text, values)
            answers += [[]] * len(values)
        else:
            answers += [cursor.execute(compiled.text, bound).fetchall() for bound in values]
    return answers


def _bound(conn: Connection, step: Bound) -> tuple[str, Sequence[object]]:
    compiled = step.statement.compiled(conn)
    return compiled.text, compiled.values(step.parameters)


class _Compiled:
    """A statement's text for one driver, its parameters in their order, and whether it only writes."""

    def __init__(self, statement: ClauseElement, conn: Connection) -> None:
        dialect = pipeline.numbered() if conn.dialect.name == "postgresql" else conn.dialect
        compiled: Any = statement.compile(dialect=dialect)
        self.text = str(compiled)
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}
        order: Sequence[str] = compiled.positiontup
        self._pick = itemgetter(*order) if len(order) > 1 else lambda values: tuple(values[name] for name in order)
        self.is_silent = bool(compiled.isinsert or compiled.isdelete) and not compiled.effective_returning

    def values(self, parameters: Mapping[str, object]) -> Sequence[object]:
        picked: Sequence[object] = self._pick({**self._constants, **parameters} if self._constants else parameters)
        return picked
