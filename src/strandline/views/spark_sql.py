"""The same read-only SQL on Spark, over the same view.

The wall is Spark's own parser: every node of the parsed plan must be on a short list of those that only compute, so a
statement that writes, sets or runs anything is refused before Spark looks at it, wherever it hides. Relations must be
tables of the lake (or names that the query itself gave), which keeps out files and other catalogs; functions that reach
into the JVM are refused by name.

`*` has no way to leave a column out and name it beside, so a hidden column is part of a table only when the query's
text names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from strandline.errors import BadRequest, Unsupported, nearest
from strandline.model.types import OURS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.views.view import View

COMPUTING = frozenset(
    {
        "Aggregate", "CTERelationDef", "CTERelationRef", "Deduplicate", "Distinct", "Except", "Expand", "Filter",
        "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin", "LocalLimit", "LocalRelation", "Offset",
        "OneRowRelation", "Pivot", "Project", "RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Union",
        "UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedRelation",
        "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases",
        "UnresolvedTableValuedFunction", "UnresolvedWith", "Unpivot", "Window", "With",
        "WithWindowDefinition",
    }
)  # fmt: skip
TABLE_FUNCTIONS = frozenset({"range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "stack"})
REFUSED_FUNCTIONS = frozenset({"reflect", "java_method", "try_reflect"})


def spark_sql(view: View, session: SparkSession, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one read-only query on Spark; the column names, and the rows as Python values."""
    wanted = _checked(session, query, view.relations)
    hidden = {name for name in OURS if not re.search(rf"\b{name}\b", query, re.IGNORECASE)}
    for name in wanted:
        frame = view.spark(name)
        frame.drop(*hidden).createOrReplaceTempView(f"`{name}`")
    try:
        answer = session.sql(query).toArrow()
    except Exception as error:
        raise BadRequest(
            f"the query failed: {_first_line(error)}", hint="Check the SQL; it is Spark's dialect."
        ) from error
    columns = [column.to_pylist() for column in answer.columns]
    rows = list(zip(*columns, strict=True)) if columns else []
    return list(answer.schema.names), rows


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _checked(session: Any, query: str, known: Iterable[str]) -> set[str]:
    """The tables of the lake that a query reads; an error when it does anything else than read them."""
    try:
        plan = session._jsparkSession.sessionState().sqlParser().parsePlan(query)
    except Exception as error:
        raise BadRequest(f"can't parse the query: {_first_line(error)}", hint="It is Spark's dialect.") from error
    names = {name.lower(): name for name in known}
    found: set[str] = set()
    own: set[str] = set()
    nodes = list(_nodes(plan))
    for node in nodes:
        if node.getClass().getSimpleName() == "UnresolvedWith":
            own |= {alias.alias().lower() for alias in _listed(node.innerChildren())}
    for node in nodes:
        _check_node(node, names, own, found)
    return found


def _check_node(node: Any, names: dict[str, str], own: set[str], found: set[str]) -> None:
    kind = node.getClass().getSimpleName()
    if kind not in COMPUTING:
        raise Unsupported(f"only a single query can be run here, and this has {kind}", hint="Write one SELECT.")
    if kind == "UnresolvedRelation":
        parts = _listed(node.multipartIdentifier())
        if len(parts) != 1 or parts[0].lower() not in names.keys() | own:
            raise BadRequest(
                f"there is no table {'.'.join(parts)!r} in this lake", hint=nearest(parts[-1], names.values())
            )
        if parts[0].lower() in names:
            found.add(names[parts[0].lower()])
    if kind == "UnresolvedTableValuedFunction":
        name = _listed(node.name())[-1].lower()
        if name not in TABLE_FUNCTIONS:
            raise Unsupported(f"the table function {name!r} can't be used here", hint="A query sees the lake alone.")
    for expression in _listed(node.expressions()):
        _check_expression(expression)


def _check_expression(expression: Any) -> None:
    if expression.getClass().getSimpleName() == "UnresolvedFunction":
        name = _listed(expression.nameParts())[-1].lower()
        if name in REFUSED_FUNCTIONS:
            raise Unsupported(f"the function {name!r} can't be used here", hint="A query sees the lake alone.")
    if expression.getClass().getSimpleName() == "ExpressionWithUnresolvedIdentifier":
        raise Unsupported("IDENTIFIER(…) can't be used here", hint="Write the name itself.")
    for child in _listed(expression.children()):
        _check_expression(child)


def _nodes(plan: Any) -> Iterator[Any]:
    """Every node of a plan: children, common table expressions, and the plans inside expressions."""
    yield plan
    below = [*_listed(plan.children()), *_listed(plan.subqueries())]
    if plan.getClass().getSimpleName() == "UnresolvedWith":
        below += _listed(plan.innerChildren())
    for child in below:
        yield from _nodes(child)


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(place) for place in range(sequence.size())]
