"""A DuckDB that can read the files it was given and nothing else.

Two walls, because one might have a hole. The statement is parsed by DuckDB itself: it must be a single query, its
tables must be tables of the lake, and its table functions must be on a short list of harmless ones. Then the
connection is shut: no file outside the pinned ones, no extension, no setting, no Python variable.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import orjson

from strandline import private
from strandline.engines.storage import any_store
from strandline.errors import BadRequest, Unsupported, nearest

TABLE_FUNCTIONS = frozenset(
    {
        "generate_series",
        "range",
        "unnest",
        "json_each",
        "json_tree",
        "repeat",
        "repeat_row",
        "summary",
        "duckdb_functions",
        "duckdb_keywords",
        "duckdb_types",
        "pragma_version",
    }
)


_INTERRUPTED = re.compile(r"(?m)(^|: )KeyboardInterrupt:? ?$")

INTERNAL = "strand_internal"
"""Where our own tables are: no query can name it, and SHOW TABLES does not show it."""


def connect() -> duckdb.DuckDBPyConnection:
    """A fresh in-memory database with settings of its own, which can be shut."""
    connection = duckdb.connect()
    _set_up(connection)
    _begin(connection)
    return connection


def _set_up(database: duckdb.DuckDBPyConnection) -> None:
    """Let it read what we have files in. Spills go to a folder of this process alone, never into the lake."""
    if any_store():
        from strandline.engines.duck.buckets import Buckets

        database.register_filesystem(Buckets())
    database.execute("SET temp_directory = ?", [str(private.working_folder() / "duckdb")])
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    database.execute("SET preserve_insertion_order = false")
    # A join with so few keys tells them to who reads the files, which then skips most values of the other columns.
    database.execute("SET GLOBAL dynamic_or_filter_threshold = 200")
    # It turns "the newest version of each key" into an aggregate that packs the columns, and -0.0 comes out as 0.0.
    database.execute("SET GLOBAL disabled_optimizers = 'top_n_window_elimination'")


def _begin(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET enable_progress_bar = false")  # it goes to stdout, where only answers belong
    connection.execute(f"CREATE SCHEMA {INTERNAL}")


RENEWED_AFTER = 200
"""So many questions: a DuckDB becomes slower with every database that was attached to it once."""


class _Shared:
    """The process's DuckDB. A new one has to learn thousands of functions, which takes longer than a small question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: int | None = None
        self._left = 0
        self._knows_buckets = False
        self._database: duckdb.DuckDBPyConnection

    @contextmanager
    def scratch(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """An empty database in memory, which nobody else sees; it is gone behind the block."""
        database, name = self._next()
        connection = database.cursor()
        try:
            connection.execute(f"ATTACH ':memory:' AS {name}")
            connection.execute(f"USE {name}")
            _begin(connection)
            yield connection
        finally:  # without the lock: a question that was abandoned ends wherever Python tidies up
            connection.close()
            with database.cursor() as last:
                last.execute(f"DETACH DATABASE IF EXISTS {name}")

    def _next(self) -> tuple[duckdb.DuckDBPyConnection, str]:
        """Where the next question goes. One before it that is open keeps the DuckDB that it has."""
        with self._lock:
            if self._left == 0 or self._process != os.getpid() or self._knows_buckets != any_store():
                self._database = duckdb.connect()
                _set_up(self._database)
                self._database.execute("SET enable_external_file_cache = false")  # nothing is kept of a question
                self._left, self._process, self._knows_buckets = RENEWED_AFTER, os.getpid(), any_store()
            self._left -= 1
            return self._database, f"scratch_{self._left}"


scratch = _Shared().scratch
"""A database for a question of our own: `with scratch() as connection`."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C during a query is KeyboardInterrupt here too.

    DuckDB takes the signal and raises a plain RuntimeError; or Python takes it while DuckDB asks it for rows or bytes,
    and then only the text of DuckDB's error says so. Python delivers signals to its main thread alone: anywhere else
    those words are somebody's data.
    """
    try:
        yield
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise
    except duckdb.Error as error:
        if threading.current_thread() is threading.main_thread() and _INTERRUPTED.search(str(error)):
            raise KeyboardInterrupt from None
        raise


def is_missing_file(error: Exception) -> bool:
    """Whether a file could not be read; of one in a store, DuckDB tells what Python said about it."""
    return isinstance(error, duckdb.IOException | FileNotFoundError) or "FileNotFoundError" in str(error)


def shut(connection: duckdb.DuckDBPyConnection, paths: Iterable[str]) -> None:
    """From here on the connection sees these files alone, and can't be told otherwise."""
    listed = ", ".join(quote_text(path) for path in paths)
    connection.execute(f"SET allowed_paths = [{listed}]")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def quote_text(text: str) -> str:
    """A text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """A name as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Statement:
    """A query that passed the first wall: its text, and the tables of the lake it reads."""

    text: str
    tables: frozenset[str]


def parse(connection: duckdb.DuckDBPyConnection, query: str, known: Iterable[str], hidden: Iterable[str]) -> Statement:
    """Let one read-only query through, with `*` standing for the user's columns alone.

    `known` are the tables of the lake; `hidden` the columns that `*` leaves out and that can still be named. The
    connection only parses here; making another one for that costs as much as a small query.
    """
    tree = _tree(connection, query)
    walk = _Walk({name.lower(): name for name in known}, tuple(hidden))
    walk.node(tree["statements"][0]["node"], frozenset())
    text = _text(connection, tree) if walk.rewritten else query
    return Statement(text, frozenset(walk.tables))


def _tree(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise BadRequest(f"can't parse the query: {error}", hint="Check the SQL; it is DuckDB's dialect.") from error
    kinds = [_kind(statement) for statement in statements]
    if kinds != ["SELECT"]:
        found = ", ".join(kinds) or "nothing"
        raise Unsupported(f"only a single query can be run here, and this is {found}", hint="Write one SELECT.")
    ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    tree = orjson.loads(text)
    if tree.get("error"):
        raise Unsupported(f"this statement can't be run here: {tree.get('error_message')}", hint="Write one SELECT.")
    return tree


def _kind(statement: duckdb.Statement) -> str:
    try:
        return str(statement.type.name)
    except ValueError:  # a kind that DuckDB's parser has and its Python package does not know
        return "something else"


def _text(connection: duckdb.DuckDBPyConnection, tree: Any) -> str:
    ((text,),) = connection.execute("SELECT json_deserialize_sql(?::JSON)", [orjson.dumps(tree).decode()]).fetchall()
    return str(text)


class _Walk:
    """One pass over DuckDB's parse tree: refuse what is not allowed, collect the tables, rewrite the stars.

    A star that stands for a table of the lake leaves the hidden columns out. One that stands for a subquery or a common
    table expression does not: whatever was named inside is there.
    """

    def __init__(self, known: dict[str, str], hidden: tuple[str, ...]) -> None:
        self.known = known
        self.hidden = hidden
        self.tables: set[str] = set()
        self.rewritten = False

    def node(self, node: Any, scope: frozenset[str]) -> None:
        """Walk any part of the tree; `scope` are the common table expressions visible there."""
        if isinstance(node, list):
            for part in node:
                self.node(part, scope)
            return
        if not isinstance(node, dict):
            return
        scope = self._common_tables(node, scope)
        kind = node.get("type")
        if kind == "BASE_TABLE":
            self._table(node, scope)
        elif kind == "TABLE_FUNCTION":
            self._function(node)
        elif kind == "SELECT_NODE":
            self._stars(node, scope)
        elif kind == "JOIN" and node["ref_type"] == "NATURAL":
            raise Unsupported("NATURAL JOIN would join on _seq and _at too", hint="Write JOIN … USING (columns).")
        elif kind == "SHOW_REF" and node.get("query") is None:
            self.tables.update(self.known.values())
        for key, part in node.items():
            if key != "cte_map":
                self.node(part, scope)

    def _common_tables(self, node: dict[str, Any], scope: frozenset[str]) -> frozenset[str]:
        """Walk a WITH clause and return the scope behind it; each of its tables sees those before it."""
        if not isinstance(node.get("cte_map"), dict):
            return scope
        for entry in node["cte_map"].get("map", []):
            itself = frozenset({str(entry["key"]).lower()})
            recursive = entry["value"]["query_node"]["type"] == "RECURSIVE_CTE_NODE"
            self.node(entry["value"], scope | itself if recursive else scope)
            scope |= itself
        return scope

    def _table(self, node: dict[str, Any], scope: frozenset[str]) -> None:
        name = str(node["table_name"])
        if name.lower() in scope and not node["schema_name"]:
            return
        if node["catalog_name"] or node["schema_name"] not in ("", "main") or name.lower() not in self.known:
            full = ".".join(filter(None, (node["catalog_name"], node["schema_name"], name)))
            raise BadRequest(f"there is no table {full!r} in this lake", hint=nearest(name, self.known.values()))
        self.tables.add(self.known[name.lower()])

    def _function(self, node: dict[str, Any]) -> None:
        name = str(node["function"].get("function_name", "")).lower()
        if name not in TABLE_FUNCTIONS:
            raise Unsupported(f"the table function {name!r} can't be used here", hint="A query sees the lake alone.")

    def _stars(self, node: dict[str, Any], scope: frozenset[str]) -> None:
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


def _lake_tables(ref: Any, scope: frozenset[str]) -> list[str]:
    """The names under which a FROM clause offers tables of the lake to its stars."""
    if not isinstance(ref, dict):
        return []
    if ref.get("type") == "JOIN" and ref["join_type"] in ("SEMI", "ANTI"):
        return _lake_tables(ref["left"], scope)
    if ref.get("type") == "JOIN":
        return _lake_tables(ref["left"], scope) + _lake_tables(ref["right"], scope)
    if ref.get("type") == "BASE_TABLE" and not (ref["table_name"].lower() in scope and not ref["schema_name"]):
        return [str(ref["alias"] or ref["table_name"])]
    return []


def _own_stars(node: Any) -> list[dict[str, Any]]:
    """The stars of a select list, not those of the subqueries inside it."""
    if isinstance(node, list):
        return [star for part in node for star in _own_stars(part)]
    if not isinstance(node, dict) or node.get("class") == "SUBQUERY":
        return []
    found = [node] if node.get("class") == "STAR" else []
    return found + [star for part in node.values() for star in _own_stars(part)]
