"""A predicate on rows, such as a sink's `where`: one expression over a table's columns, and nothing else.

It decides which rows are sent, and must decide the same when the unit is read again. So it sees one row alone: no
subquery, no other table, and no function whose answer changes by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import orjson

from strandline.engines.duck import relations, sandbox
from strandline.errors import BadRequest
from strandline.model.types import Column

if TYPE_CHECKING:
    import pyarrow as pa


def check_predicate(text: str, columns: Sequence[Column], table: str, advice: str = "") -> None:
    """BadRequest unless `text` is a predicate on the rows of a table with these columns.

    `advice` is added to the hint: what else whoever wrote it may do.
    """
    with sandbox.connect() as connection:
        tree = _expression(connection, text)
        for node in _nodes(tree):
            _refuse(connection, node, text)
        try:
            connection.execute(f"SELECT coalesce(({text}), false) FROM ({relations.empty(columns)}) WHERE ({text})")
        except duckdb.Error as error:
            names = ", ".join(column.name for column in columns)
            raise BadRequest(
                f"the predicate {text!r} does not fit table {table!r}: {error}",
                hint=f"It is a SQL condition on the columns {names}.{advice}",
            ) from error


def without_matches(batch: pa.RecordBatch, text: str) -> tuple[pa.RecordBatch, int]:
    """A batch without the rows that a predicate names, and how many those were; BadRequest if it does not fit it."""
    import pyarrow as pa

    place = "strand_place"
    numbered = pa.Table.from_batches([batch]).append_column(place, pa.array(range(batch.num_rows), pa.int64()))
    with sandbox.interruptible(), sandbox.connect() as connection:
        relations.load_rows(connection, "batch", numbered.schema, numbered.to_batches())
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
        ((found,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
        tree = orjson.loads(found)
        if tree.get("error") or len(tree["statements"]) != 1:
            raise BadRequest(
                f"can't parse the predicate {text!r}: {tree.get('error_message', 'it is more than one statement')}",
                hint="Write a SQL condition, such as source = 'claude' and length(body) < 1000.",
            )
        trees.append(tree["statements"][0]["node"])
    bare, enclosed = (_without_places(tree) for tree in trees)
    if bare != enclosed:
        raise BadRequest(f"the predicate {text!r} is more than one condition", hint="Write one SQL condition.")
    return trees[0]["where_clause"]


def _without_places(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_places(part) for key, part in node.items() if key != "query_location"}
    if isinstance(node, list):
        return [_without_places(part) for part in node]
    return node


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, list):
        for part in node:
            yield from _nodes(part)
    elif isinstance(node, dict):
        yield node
        for part in node.values():
            yield from _nodes(part)


def _refuse(connection: duckdb.DuckDBPyConnection, node: dict[str, Any], text: str) -> None:
    if node.get("class") in ("SUBQUERY", "WINDOW") or node.get("type") == "SUBQUERY":
        raise BadRequest(f"the predicate {text!r} has a subquery or a window", hint="It sees one row alone.")
    if node.get("class") == "FUNCTION":
        name = str(node["function_name"]).lower()
        found = connection.execute(
            "SELECT DISTINCT stability, function_type FROM duckdb_functions() WHERE function_name = ?", [name]
        ).fetchall()
        if any(stability not in (None, "CONSISTENT") or kind == "aggregate" for stability, kind in found):
            raise BadRequest(
                f"the predicate {text!r} uses {name}(), whose answer changes by itself or takes many rows",
                hint="A unit that is sent again must consist of the same rows.",
            )
    if node.get("class") == "COLUMN_REF" and str(node["column_names"][-1]).lower().startswith("current_"):
        raise BadRequest(
            f"the predicate {text!r} uses {node['column_names'][-1]}, whose answer changes by itself",
            hint="Compare with a fixed time.",
        )
