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
from typing import TYPE_CHECKING

from strandline.engines.spark.time_limit import within
from strandline.errors import BadRequest, StrandError, TooLarge, of_outage
from strandline.model.schema.types import OURS
from strandline.model.values.user_rows import Value
from strandline.outages import judge
from strandline.views.spark_wall import check_analysed, check_parsed, first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from strandline.views.view import View

TOO_MUCH = ("maxResultSize", "OutOfMemoryError", "Java heap space")
"""What Spark says of an answer, or a value, that is larger than it may be."""


def spark_sql(view: View, session: SparkSession, query: str) -> tuple[list[str], list[tuple[Value, ...]]]:
    """Run one read-only query on Spark; the column names, and the rows as Python values."""
    answer = within(session, view.limits.time_s, lambda given_up: _answer(view, session, query, given_up))
    if answer.num_rows > view.limits.rows:
        raise TooLarge(
            f"the query was ended: its answer has more than {view.limits.rows:,} rows",
            hint="Ask for less; `rows` in [query] allows more.",
            limit="rows",
        )
    columns = [column.to_pylist() for column in answer.columns]
    rows = list(zip(*columns, strict=True)) if columns else []
    return list(answer.schema.names), rows


def _answer(view: View, session: SparkSession, query: str, given_up: threading.Event) -> pa.Table:
    named = check_parsed(session, query, view.relations)
    hidden = {name for name in OURS if not re.search(rf"\b{name}\b", query, re.IGNORECASE)}
    try:
        for name in named:
            view.spark(name).drop(*hidden).createOrReplaceTempView(f"`{name}`")
        with _in_our_words():
            frame = session.sql(query)
            check_analysed(frame._jdf.queryExecution().analyzed(), named)
            return frame.limit(view.limits.rows + 1).toArrow()
    finally:
        for name in named if not given_up.is_set() else ():  # the next query may use them
            session.catalog.dropTempView(name)


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except StrandError:
        raise
    except Exception as error:
        if any(words in str(error) for words in TOO_MUCH):
            raise TooLarge(f"the query was ended: {first_line(error)}", hint="Ask for less.", limit="memory") from error
        if (outage := judge(error)) is not None:
            raise of_outage(outage) from error
        raise BadRequest(
            f"the query failed: {first_line(error)}", hint="Check the SQL; it is Spark's dialect."
        ) from error
