"""A predicate on rows, such as a sink's `where`: one expression over a table's columns, and nothing else.

It decides which rows are sent, and must decide the same when the unit is read again. So it sees one row alone: no
subquery, no other table, no name but a column's, and no function but those that are known to depend on their arguments
alone. It is planned on a connection that is shut. DuckDB alone evaluates it, wherever rows are read: Spark's workers
run DuckDB too, and a purge hands Spark the seqs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import duckdb

from strandline.config import QueryConfig
from strandline.engines.duck import growth, relations, sandbox, wall
from strandline.engines.duck.functions import LEAST_ARGUMENTS, OF_A_ROW
from strandline.errors import BadRequest
from strandline.model.schema.types import Column

if TYPE_CHECKING:
    import pyarrow as pa


def check_predicate(text: str, columns: Sequence[Column], table: str, advice: str = "") -> None:
    """BadRequest unless `text` is a predicate on the rows of a table with these columns.

    `advice` is added to the hint: what else the predicate's author may do.
    """
    limits = QueryConfig()
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > growth.TEXT_BYTES:
        raise BadRequest(
            f"the predicate has {size_bytes:,} bytes, and at most {growth.TEXT_BYTES:,} are taken",
            hint="Split it: a purge can be run several times.",
        )
    with sandbox.interruptible(), sandbox.connect(limits) as connection:
        sandbox.shut(connection, [])
        tree = _expression(connection, text)
        wall.check_lambdas(tree)
        hint = f"It is a SQL condition on the columns {', '.join(column.name for column in columns)}.{advice}"
        _check_nodes(tree, text, {column.name.lower() for column in columns}, hint)
        growth.check_growth(tree, text, columns)
        query = f"SELECT coalesce(({text}), false) FROM ({relations.empty(columns)}) WHERE ({text})"
        try:
            with sandbox.QueryClock(connection, limits).running():
                connection.execute(query)
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            raise sandbox.out_of_memory(limits) from error
        except duckdb.Error as error:
            raise BadRequest(f"the predicate {text!r} does not fit table {table!r}: {error}", hint=hint) from error


def without_matches(batch: pa.RecordBatch, text: str) -> tuple[pa.RecordBatch, int]:
    """A batch without the rows that a predicate names, and how many those were; BadRequest if it does not fit it."""
    import pyarrow as pa

    place = "strand_place"
    numbered = pa.Table.from_batches([batch]).append_column(place, pa.array(range(batch.num_rows), pa.int64()))
    with sandbox.interruptible(), sandbox.connect() as connection:
        relations.load_rows(connection, "batch", numbered.schema, numbered.to_batches())
        sandbox.shut(connection, [])
        try:
            rows = relations.matching(connection, relations.everything("batch"), [place], text)
        except duckdb.Error as error:
            raise BadRequest(f"the predicate {text!r} does not fit these rows: {error}") from error
    matched = set(rows.column(0).to_pylist())
    return batch.filter(pa.array([n not in matched for n in range(batch.num_rows)])), len(matched)


def _expression(connection: duckdb.DuckDBPyConnection, text: str) -> Any:
    """The parsed predicate. It must be the same alone and in parentheses, or it would reach out of them."""
    trees = []
    for query in (f"SELECT 1 WHERE {text}", f"SELECT 1 WHERE ({text})"):
        tree = wall.serialized(connection, query)
        if tree.get("error") or len(tree["statements"]) != 1:
            raise BadRequest(
                f"can't parse the predicate {text!r}: {tree.get('error_message', 'it is more than one statement')}",
                hint="Write a SQL condition, such as source = 'claude' and length(body) < 1000.",
            )
        trees.append(tree["statements"][0]["node"])
    for tree in trees:
        for node in wall.nodes(tree):
            node.pop("query_location", None)
            node.pop("query_location_length", None)
    bare, enclosed = (_flat(tree) for tree in trees)
    if bare != enclosed:
        raise BadRequest(f"the predicate {text!r} is more than one condition", hint="Write one SQL condition.")
    return trees[0]["where_clause"]


def _flat(tree: Any) -> list[tuple[object, ...]]:
    """A tree as a list of its parts in one order, so that two are compared without recursion."""
    parts: list[tuple[object, ...]] = []
    left = [tree]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            parts.append(("object", *part))
            left.extend(part.values())
        elif isinstance(part, list):
            parts.append(("list", len(part)))
            left.extend(part)
        else:
            parts.append(("value", type(part), part))
    return parts


CLASSES = frozenset(
    {
        "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION",
        "LAMBDA", "LAMBDA_REF", "OPERATOR", "TYPE",
    }
)  # fmt: skip
"""Expressions that see one row and nothing else."""


def _check_nodes(tree: Any, text: str, columns: set[str], hint: str) -> None:
    """BadRequest unless all that a condition names is a column of the table, or a function of a row."""
    named = columns | _lambda_names(tree)
    for node in wall.nodes(tree):
        kind = node.get("class")
        if kind is not None and kind not in CLASSES:
            raise BadRequest(f"the predicate {text!r} has a {_shown(kind)}", hint="It sees one row alone.")
        if kind == "FUNCTION":
            _check_function(node, text, named)
        if kind == "COLUMN_REF" and str(node["column_names"][0]).lower() not in named:
            raise BadRequest(
                f"the predicate {text!r} names {'.'.join(map(str, node['column_names']))}, which is no column",
                hint=hint,
            )


def _check_function(node: dict[str, Any], text: str, named: set[str]) -> None:
    name = wall.function_name(node)
    path = [str(part).lower() for part in node.get("qualified_name", {}).get("path", [name])]
    arguments = len(node.get("arguments", [])) + len(path) - 1  # x.f(y) is f(x, y)
    is_of_a_row = name in OF_A_ROW and arguments >= LEAST_ARGUMENTS.get(name, 0)
    if not is_of_a_row or not set(path[:-1]) <= named or node.get("distinct") or node.get("filter"):
        raise BadRequest(
            f"the predicate {text!r} calls {name}(), which is not known to answer the same of the same row every time",
            hint="A unit that is sent again must consist of the same rows; compare columns with fixed values.",
        )


def _lambda_names(tree: Any) -> set[str]:
    """The names that lambdas give to the values they are called with."""
    names: set[str] = set()
    for node in wall.nodes(tree):
        if node.get("class") == "LAMBDA":
            names |= {str(ref["column_names"][0]).lower() for ref in wall.nodes(node["lhs"]) if "column_names" in ref}
    return names


def _shown(kind: str) -> str:
    return kind.lower().replace("_", " ")
