"""The same read-only SQL on Spark, over the same view.

`*` has no way to leave a column out and name it beside, so a hidden column is part of a table only when the query's
text names it. A query has the time and the longest answer that [query] allows; what it takes of memory is Spark's own
to bound.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strandline.config import QueryConfig
from strandline.errors import BadRequest, StrandError, TooLarge
from strandline.model.ids import new_id
from strandline.model.types import OURS
from strandline.views.spark_wall import check_analysed, check_parsed, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.views.view import View

TOO_MUCH = ("maxResultSize", "OutOfMemoryError", "Java heap space")
"""What Spark says of an answer, or a value, that is larger than it may be."""


def spark_sql(view: View, session: SparkSession, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one read-only query on Spark; the column names, and the rows as Python values."""
    named = check_parsed(session, query, view.relations)
    hidden = {name for name in OURS if not re.search(rf"\b{name}\b", query, re.IGNORECASE)}
    try:
        for name in named:
            view.spark(name).drop(*hidden).createOrReplaceTempView(f"`{name}`")
        with _in_our_words(), _timed(session, view.limits):
            frame = session.sql(query)
            check_analysed(frame._jdf.queryExecution().analyzed(), named)
            answer = frame.limit(view.limits.rows + 1).toArrow()
    finally:
        for name in named:
            session.catalog.dropTempView(name)
    if answer.num_rows > view.limits.rows:
        raise TooLarge(
            f"the query was ended: its answer has more than {view.limits.rows:,} rows",
            hint="Ask for less; `rows` in [query] allows more.",
            limit="rows",
        )
    columns = [column.to_pylist() for column in answer.columns]
    rows = list(zip(*columns, strict=True)) if columns else []
    return list(answer.schema.names), rows


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except StrandError:
        raise
    except Exception as error:
        if any(words in str(error) for words in TOO_MUCH):
            raise TooLarge(f"the query was ended: {first_line(error)}", hint="Ask for less.", limit="memory") from error
        raise BadRequest(
            f"the query failed: {first_line(error)}", hint="Check the SQL; it is Spark's dialect."
        ) from error


@contextmanager
def _timed(session: SparkSession, limits: QueryConfig) -> Iterator[None]:
    """Cancel the jobs of this thread once the time is over, as often as it takes: a query may have several."""
    context, group, ended, is_over = session.sparkContext, f"query-{new_id()}", threading.Event(), threading.Event()

    def watch() -> None:
        if ended.wait(limits.time_s):
            return
        is_over.set()
        while not ended.wait(0.2):
            context._jsc.sc().cancelJobGroup(group)

    context.setJobGroup(group, "a query", interruptOnCancel=True)
    threading.Thread(target=watch, name="query-limit", daemon=True).start()
    try:
        yield
    except Exception as error:
        if is_over.is_set():
            raise TooLarge(
                f"the query was ended: it took longer than {limits.time_s:g} s",
                hint="Ask for less; `time` in [query], or $STRAND_QUERY_TIME, allows more.",
                limit="time",
            ) from error
        raise
    finally:
        ended.set()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
