"""Queries: one read-only SELECT over a pinned view, on DuckDB or on Spark; its columns have names that can be keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.ledger.ledger import MAIN
from strandline.model.values.user_rows import UserRow, Value
from strandline.views.view import View

if TYPE_CHECKING:
    from strandline.lake.door import Lake

_COUNTS = {"count_star()": "count(*)", "count(1)": "count(*)"}
"""What DuckDB and Spark call the column of `count(*)`."""


@dataclass(frozen=True)
class QueryRows:
    """A query's rows by the names of their columns."""

    columns: tuple[str, ...]
    rows: tuple[UserRow, ...]


@dataclass(frozen=True)
class QueryAnswer:
    """A query's columns, no two of one name, and its rows, each with a value for each of them."""

    columns: tuple[str, ...]
    values: Sequence[tuple[Value, ...]]

    def by_name(self) -> QueryRows:
        """The same, as a document."""
        return QueryRows(self.columns, tuple(dict(zip(self.columns, row, strict=True)) for row in self.values))


class Queries:
    """`lake.queries`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def view(self, branch: str = MAIN, at: str | None = None) -> View:
        """Everything as it is now, or as it was at a commit, tag or time; pinned: reads of one view never disagree."""
        lake = self._lake
        return View(lake.ledger, branch, lake.iceberg, at=at, grace_s=lake.context.grace_s, limits=lake.config.query)

    def on_duckdb(self, view: View, query: str) -> QueryAnswer:
        """Run a query without a JVM."""
        result = view.sql(query)
        return QueryAnswer(_distinct(result.columns), result.rows())

    def on_spark(self, view: View, query: str) -> QueryAnswer:
        """Run it on Spark, in Spark's dialect."""
        from strandline.views.spark_sql import spark_sql

        columns, rows = spark_sql(view, self._lake.spark, query)
        return QueryAnswer(_distinct(columns), rows)


def _distinct(columns: Sequence[str]) -> tuple[str, ...]:
    """Names that can be keys of an object: a second `a` is `a_2`. What an engine calls a count is `count(*)` in all."""
    columns = [_COUNTS.get(name, name) for name in columns]
    if len(set(columns)) == len(columns):
        return tuple(columns)
    taken: list[str] = []
    for name in columns:
        number, fresh = 1, name
        while fresh in taken:
            number += 1
            fresh = f"{name}_{number}"
        taken.append(fresh)
    return tuple(taken)
