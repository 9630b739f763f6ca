"""What may be asked of a DuckDB that users write SQL for.

A statement is parsed by DuckDB itself. It must be a single query, its tables must be tables of the lake, and every
function in it must be on a list. The tree is walked with a stack, since its depth is the user's choice; what is nested
so deeply that DuckDB itself would not survive it is refused before it is parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import duckdb
import orjson

from strandline.engines.duck.functions import OF_A_QUERY, OF_TABLES, names_in
from strandline.errors import BadRequest, TooLarge, Unsupported, nearest

TEXT_BYTES = 1024 * 1024
"""The longest statement. DuckDB's parser needs about a thousand times of that."""
NESTED = 250
"""The deepest brackets: DuckDB's parser calls itself for each, and crashes at some ten thousand."""
NESTED_LAMBDAS = 4
"""DuckDB binds the body of a lambda several times for each one around it."""
STAR_DOUBLINGS = 64
"""How many stars one statement may have: each one in a subquery of another can double the columns."""
COUNTED = names_in("array_resize bar bitstring generate_series list_resize lpad range repeat rpad to_base")
"""Functions that make as much of a value as a number says."""
MOST_COUNTED = 100_000_000
"""What such numbers may say, multiplied where the calls are nested: DuckDB computes constants as it plans, and then it
neither counts memory nor can be interrupted."""
DEEP = "Write it with fewer nested parts, or as a list: x IN (…), list_sum([…])."
ALONE = "A query sees the lake alone."
Node: TypeAlias = dict[str, Any]
"""A node of DuckDB's parse tree, as JSON: every class of node has its own keys, and every version of DuckDB its own."""
SHOWN = {'"tables"', "tables"}


@dataclass(frozen=True)
class Statement:
    """A query that passed the wall: its text, and the tables of the lake it reads."""

    text: str
    tables: frozenset[str]


def parse(connection: duckdb.DuckDBPyConnection, query: str, tables: Iterable[str], hidden: Iterable[str]) -> Statement:
    """Let one read-only query through, with `*` standing for the user's columns alone.

    `tables` are the lake's own; `hidden` are the columns that `*` leaves out and that can still be named. The
    connection only parses here; making another one for that costs as much as a small query.
    """
    tree = _tree(connection, query)
    walk = _DuckWalk({name.lower(): name for name in tables}, tuple(hidden))
    walk.whole(tree["statements"][0]["node"])
    text = _text(connection, tree) if walk.rewritten else query
    return Statement(text, frozenset(walk.tables))


def serialized(connection: duckdb.DuckDBPyConnection, statement: str) -> Node:
    """DuckDB's tree of a statement; an `error` in it says why there is none."""
    check_extent(statement)
    try:
        ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()
        tree: Node = orjson.loads(text)
        return tree
    except orjson.JSONDecodeError as error:
        raise BadRequest("it is nested too deeply", hint=DEEP) from error
    except duckdb.Error as error:
        raise BadRequest(f"can't parse it: {error}", hint="Check the SQL; it is DuckDB's dialect.") from error


def check_extent(statement: str) -> None:
    """Refuse what DuckDB's parser itself would not survive."""
    text = statement.encode("utf-8", "surrogatepass")
    if len(text) > TEXT_BYTES:
        raise TooLarge(
            f"the SQL has {len(text):,} bytes, and at most {TEXT_BYTES:,} are taken",
            hint="Put long lists of values into a table and join it.",
        )
    if "\x00" in statement or any("\ud800" <= letter <= "\udfff" for letter in statement):
        raise BadRequest("the SQL has characters that no text can have", hint="Check how it was made.")
    depth = 0
    for place, _ in duckdb.tokenize(statement):
        bracket = text[place : place + 1]
        if bracket in (b"(", b"[", b"{"):
            depth += 1
        elif bracket in (b")", b"]", b"}"):
            depth -= 1
        if depth > NESTED:
            raise BadRequest(f"the SQL has brackets in {NESTED} others", hint=DEEP)


def nodes(tree: object) -> Iterator[Node]:
    """Every object of a tree, with a stack: how deep it is was decided by a stranger."""
    left: list[object] = [tree]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)


def function_name(node: Node) -> str:
    """The name of the function that a node calls."""
    return str(node.get("function_name", "")).lower()


def check_lambdas(tree: object) -> None:
    """Refuse lambdas in lambdas in lambdas: to bind them takes DuckDB longer with each, and can't be interrupted."""
    left: list[tuple[object, int]] = [(tree, 0)]
    while left:
        part, depth = left.pop()
        if isinstance(part, dict):
            depth += part.get("class") == "LAMBDA"
            if depth > NESTED_LAMBDAS:
                raise BadRequest(f"there is a lambda in {NESTED_LAMBDAS} others", hint=DEEP)
            left.extend((value, depth) for value in part.values())
        elif isinstance(part, list):
            left.extend((value, depth) for value in part)


def check_counts(tree: object) -> None:
    """Refuse texts and lists of more than so many parts, as far as the numbers are written down."""
    left: list[tuple[object, int]] = [(tree, 1)]
    while left:
        part, times = left.pop()
        if isinstance(part, dict):
            if part.get("type") == "TABLE_FUNCTION":  # its rows come one after another
                part = {key: value for key, value in part["function"].items() if key != "function_name"}
            if function_name(part) in COUNTED:
                times *= max([1, *map(_number, part.get("arguments", []))])
            if times > MOST_COUNTED:
                raise TooLarge(
                    f"the query makes {times:,} of a value, and at most {MOST_COUNTED:,} are taken",
                    hint="Ask for less; FROM range(…) makes rows.",
                    limit="memory",
                )
            left.extend((value, times) for value in part.values())
        elif isinstance(part, list):
            left.extend((value, times) for value in part)


def _number(argument: Node) -> int:
    """The number that an argument is; 1 for anything else."""
    text = str((argument.get("expression", {}).get("literal") or {}).get("text", ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 40 else 1


def _tree(connection: duckdb.DuckDBPyConnection, query: str) -> Node:
    check_extent(query)
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise BadRequest(f"can't parse the query: {error}", hint="Check the SQL; it is DuckDB's dialect.") from error
    kinds = [_kind(statement) for statement in statements]
    if kinds != ["SELECT"]:
        listing = ", ".join(kinds[:5]) or "nothing"
        raise Unsupported(f"only a single query can be run here, and this is {listing}", hint="Write one SELECT.")
    tree = serialized(connection, query)
    if tree.get("error"):
        raise Unsupported(f"this statement can't be run here: {tree.get('error_message')}", hint="Write one SELECT.")
    check_lambdas(tree)
    check_counts(tree)
    return tree


def _kind(statement: duckdb.Statement) -> str:
    try:
        return str(statement.type.name)
    except ValueError:  # a kind that DuckDB's parser has and its Python package does not know
        return "something else"


def _text(connection: duckdb.DuckDBPyConnection, tree: Node) -> str:
    try:
        document = json.dumps(tree)
        ((text,),) = connection.execute("SELECT json_deserialize_sql(?::JSON)", [document]).fetchall()
    except (RecursionError, duckdb.Error) as error:
        raise BadRequest("the query is nested too deeply", hint=DEEP) from error
    return str(text)


class _DuckWalk:
    """One pass over DuckDB's parse tree: refuse what is not allowed, collect the tables, rewrite the stars.

    A star that stands for a table of the lake leaves the hidden columns out. One that stands for a subquery or a common
    table expression does not: whatever was named inside is there.
    """

    def __init__(self, tables_by_name: dict[str, str], hidden: tuple[str, ...]) -> None:
        self.tables_by_name = tables_by_name
        self.hidden = hidden
        self.tables: set[str] = set()
        self.rewritten = False
        self._stars_seen = 0
        self._of_tables: set[int] = set()

    def whole(self, tree: Node) -> None:
        """Walk a tree; with each part goes the set of common table expressions that are visible there."""
        left: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
        while left:
            part, scope = left.pop()
            if isinstance(part, list):
                left.extend((value, scope) for value in part)
            elif isinstance(part, dict):
                scope, inside = _common_tables(part, scope)
                left.extend(inside)
                self._node(part, scope)
                left.extend((value, scope) for key, value in part.items() if key != "cte_map")

    def _node(self, node: Node, scope: frozenset[str]) -> None:
        kind = node.get("type")
        if kind == "BASE_TABLE":
            self._table(node, scope)
        elif kind == "TABLE_FUNCTION":
            self._table_function(node["function"])
        elif kind == "SELECT_NODE":
            self._stars(node, scope)
        elif kind == "JOIN" and node["ref_type"] == "NATURAL":
            raise Unsupported("NATURAL JOIN would join on _seq and _at too", hint="Write JOIN … USING (columns).")
        elif kind == "SHOW_REF" and node.get("query") is None:
            self._show(node)
        elif node.get("class") in ("FUNCTION", "WINDOW") and id(node) not in self._of_tables:
            _check_function(node)
        elif node.get("class") == "STAR":
            self._count_star()

    def _count_star(self) -> None:
        self._stars_seen += 1
        if self._stars_seen > STAR_DOUBLINGS:
            raise BadRequest(f"the query has more than {STAR_DOUBLINGS} stars", hint="Name the columns.")

    def _table(self, node: Node, scope: frozenset[str]) -> None:
        name = str(node["table_name"])
        path = [str(part) for part in node.get("qualified_name", {}).get("path", [name])]
        if name.lower() in scope and not node["schema_name"] and len(path) == 1:
            return
        is_of_lake = path in ([name], ["main", name]) and node["schema_name"] in ("", "main")
        if node["catalog_name"] or not is_of_lake or name.lower() not in self.tables_by_name:
            raise BadRequest(
                f"there is no table {'.'.join(path)!r} in this lake", hint=nearest(name, self.tables_by_name.values())
            )
        if node.get("at_clause"):
            raise Unsupported(f"table {name!r} can't be asked for AT a time", hint="Take a view of that time: --at.")
        self.tables.add(self.tables_by_name[name.lower()])

    def _table_function(self, function: Node) -> None:
        name = function_name(function)
        if name not in OF_TABLES:
            raise Unsupported(f"the table function {name!r} can't be used here", hint=ALONE)
        self._of_tables.add(id(function))

    def _show(self, node: Node) -> None:
        if node.get("show_type") != "SHOW_SPECIAL" or str(node.get("table_name", "")).lower() not in SHOWN:
            raise Unsupported("only SHOW TABLES can be asked here", hint="DESCRIBE and SUMMARIZE take a table.")
        self.tables.update(self.tables_by_name.values())

    def _stars(self, node: Node, scope: frozenset[str]) -> None:
        aliases = [alias for alias in _lake_tables(node.get("from_table"), scope) if alias]
        for star in _own_stars(node.get("select_list", [])):
            relation = str(star["relation_name"])
            for alias in aliases:
                if relation and relation.lower() != alias.lower():
                    continue
                named = {str(name).lower() for name in star["exclude_list"]}
                star["qualified_exclude_list"].extend(
                    {"catalog": "", "schema": "", "table": alias, "column": column}
                    for column in self.hidden
                    if column not in named
                )
                self.rewritten = True


def _check_function(node: Node) -> None:
    name = function_name(node)
    if name and name not in OF_A_QUERY:
        raise Unsupported(f"the function {name!r} can't be used here", hint=ALONE)


def _common_tables(node: Node, scope: frozenset[str]) -> tuple[frozenset[str], list[tuple[Any, Any]]]:
    """The scope behind a WITH clause, and its tables with the scope of each: it sees those before it."""
    inside: list[tuple[Any, Any]] = []
    if isinstance(node.get("cte_map"), dict):
        for entry in node["cte_map"].get("map", []):
            itself = frozenset({str(entry["key"]).lower()})
            recursive = entry["value"]["query_node"]["type"] == "RECURSIVE_CTE_NODE"
            inside.append((entry["value"], scope | itself if recursive else scope))
            scope |= itself
    return scope, inside


def _lake_tables(ref: Any, scope: frozenset[str]) -> list[str]:
    """The names under which a FROM clause offers tables of the lake to its stars."""
    names: list[str] = []
    left = [ref]
    while left:
        part = left.pop()
        if not isinstance(part, dict):
            continue
        if part.get("type") == "JOIN":
            left += [part["left"]] if part["join_type"] in ("SEMI", "ANTI") else [part["right"], part["left"]]
        elif part.get("type") == "BASE_TABLE" and not (part["table_name"].lower() in scope and not part["schema_name"]):
            names.append(str(part["alias"] or part["table_name"]))
    return names


def _own_stars(select_list: object) -> list[Node]:
    """The stars of a select list, not those of the subqueries inside it."""
    stars: list[Node] = []
    left: list[object] = [select_list]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left.extend(part)
        elif isinstance(part, dict) and part.get("class") != "SUBQUERY":
            stars += [part] if part.get("class") == "STAR" else []
            left.extend(part.values())
    return stars
