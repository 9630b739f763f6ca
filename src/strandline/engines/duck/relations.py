"""Tables of the lake as DuckDB relations: pinned Parquet files, plus the tail, minus what dedupe will drop.

What a duplicate is, is said once, here: a read hides by it and a flush drops by it, so a row is never shown before a
flush that is gone after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from strandline.engines.duck.sandbox import INTERNAL, quote_name, quote_text
from strandline.model.schema.shapes import ENTIRE, Shape
from strandline.model.schema.types import REMOVED, SEQ, Column, Decimal, List, Map, Primitive, Struct, Type

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


@dataclass(frozen=True)
class KeyScope:
    """What makes a row a duplicate: an equal `row_key`, within equal values of `within` (the partition, or nothing)."""

    row_key: tuple[str, ...]
    within: tuple[str, ...] = ()


def local_path(location: str) -> str:
    """An Iceberg file location as DuckDB opens it."""
    return location.removeprefix("file://").removeprefix("file:") if location.startswith("file:") else location


def parquet(paths: Sequence[str], columns: Sequence[str]) -> str:
    """A SELECT over Parquet files."""
    return f"SELECT {_names(columns)} FROM {_read(paths)}"


def _read(paths: Sequence[str]) -> str:
    listed = ", ".join(quote_text(path) for path in paths)
    return f"read_parquet([{listed}], hive_partitioning = false)"


def files(
    locations: Sequence[str], columns: Sequence[Column], shapes: Mapping[str, Shape] = MappingProxyType({})
) -> str:
    """The same over data files of a table, whatever schemas they were written under; `shapes` says what they have.

    Not by DuckDB's `union_by_name`, which opens every file to look for its columns.
    """
    stored = {column.stored for column in columns}
    groups: dict[Shape, list[str]] = {}
    for location in locations:
        groups.setdefault(shapes.get(location, ENTIRE).of(stored), []).append(local_path(location))
    return together([_under(paths, columns, shape) for shape, paths in groups.items()])


def _under(paths: Sequence[str], columns: Sequence[Column], shape: Shape) -> str:
    """A SELECT of these columns over files of one shape."""
    shown = [f"{_value(column, shape)} AS {quote_name(column.name)}" for column in columns]
    return f"SELECT {', '.join(shown)} FROM {_read(paths)} f"


def _value(column: Column, shape: Shape) -> str:
    """What a column's value is in a file; a row that is older than it, or than its being required, has its default."""
    type_ = duck_type(column.type)
    value = f"f.{quote_name(column.stored)}"
    if column.stored in shape.lacks:
        value = f"NULL::{type_}"
    elif any(column.stored == name for name, _ in shape.retyped):
        value = f"TRY_CAST({value} AS {type_})"  # what does not fit is of rows that a time-travel read does not see
    if not column.fills:
        return value
    defaults = " ".join(
        f"WHEN {fill.condition(f'f.{SEQ}')} THEN {quote_text(fill.value)}::{type_}" for fill in column.fills
    )
    return f"coalesce({value}, CASE {defaults} END)"


def matching(connection: duckdb.DuckDBPyConnection, rows: str, columns: Sequence[str], condition: str) -> pa.Table:
    """Columns, or expressions, of those rows for which a condition holds; a null is no. `rows` is a SELECT."""
    query = f"SELECT {', '.join(columns)} FROM ({rows}) WHERE coalesce(({condition}), false)"
    return connection.sql(query).to_arrow_table()


def with_keys(connection: duckdb.DuckDBPyConnection, rows: str, columns: Sequence[str], keys: pa.Table) -> pa.Table:
    """Columns of those rows whose key is one of those `asked` for, whose columns are the key's.

    The range of each column is told beside that: a scan of sorted files then skips what lies outside of it.
    """
    import pyarrow.compute as pc

    load_rows(connection, "asked", keys.schema, keys.to_batches())
    ranges: list[str] = []
    ends: list[object] = []
    for name in keys.column_names:
        bounds = pc.min_max(keys.column(name)).as_py()
        ranges.append(f"{quote_name(name)} BETWEEN ? AND ?")
        ends += [bounds["min"], bounds["max"]]
    near = f"SELECT * FROM ({rows}) WHERE {' AND '.join(ranges)}"
    same = f"SEMI JOIN {internal('asked')} USING ({_names(keys.column_names)})"
    return connection.sql(f"SELECT {', '.join(columns)} FROM ({near}) {same}", params=ends).to_arrow_table()


def older_than(column: str, cutoff_us: int) -> str:
    """The condition for rows whose time (a timestamp or a date) lies before a moment; without a time, none does."""
    return f"epoch_us({quote_name(column)}::TIMESTAMPTZ) < {cutoff_us}"


def split_older(
    connection: duckdb.DuckDBPyConnection, rows: str, column: str | None, cutoff_us: int, *, fresh: str, older: str
) -> pa.Table:
    """Name the rows of one of our own relations that are not past a moment, and return the seqs of the others.

    Without a time column none is.
    """
    condition = "false" if column is None else f"coalesce({older_than(column, cutoff_us)}, false)"
    connection.execute(f"CREATE TABLE {internal(older)} AS SELECT {SEQ} FROM {internal(rows)} WHERE {condition}")
    define(connection, fresh, f"SELECT * FROM {internal(rows)} WHERE NOT {condition}")
    return read_seqs(connection, older)


def range_us(connection: duckdb.DuckDBPyConnection, rows: str, column: str) -> tuple[int | None, int | None]:
    """The oldest and the newest time of the rows that a SELECT gives; without the newest where rows lack one."""
    moment = f"epoch_us({quote_name(column)}::TIMESTAMPTZ)"
    query = f"SELECT min({moment}), max({moment}), count(*) > count({moment}) FROM ({rows})"
    ((oldest, newest, lacking),) = connection.execute(query).fetchall()
    return oldest, None if lacking else newest


def latest(rows: str, key: Sequence[str]) -> str:
    """Of a keyed table's versions, the newest of each key, whether or not it says that the row is gone."""
    place = f"row_number() OVER (PARTITION BY {_names(key)} ORDER BY {SEQ} DESC)"
    return f"SELECT * FROM ({rows}) QUALIFY {place} = 1"


def newest(rows: str, key: Sequence[str]) -> str:
    """The rows of a keyed table, from all of its versions."""
    return f"SELECT * FROM ({latest(rows, key)}) WHERE NOT {REMOVED}"


def current(state: str, later: str, key: Sequence[str], columns: Sequence[str]) -> str:
    """The same rows, from a state and the versions that are later than it: both have these columns."""
    touched = f"SELECT {_names(key)} FROM ({later})"
    kept = f"SELECT {_names(columns)} FROM ({state}) ANTI JOIN ({touched}) USING ({_names(key)})"
    return f"{kept} UNION ALL SELECT {_names(columns)} FROM ({newest(later, key)})"


NEXT = "next"


def note_superseded(connection: duckdb.DuckDBPyConnection, rows: str, key: Sequence[str], condition: str) -> None:
    """Remember, as `superseded`, which of the versions that a condition names have a newer one among them.

    Each with the seq of that: the `NEXT`.
    """
    named = f"SELECT {_names([*key, SEQ])} FROM ({rows}) WHERE {condition}"
    later = f"lead({SEQ}) OVER (PARTITION BY {_names(key)} ORDER BY {SEQ})"
    query = f"SELECT {SEQ}, {later} AS {NEXT} FROM ({named}) QUALIFY {NEXT} IS NOT NULL"
    connection.execute(f"CREATE TABLE {internal('superseded')} AS {query}")


def superseded_of(connection: duckdb.DuckDBPyConnection, rows: str) -> pa.Table:
    """Those of these rows, a SELECT of seqs, that are `superseded`: each with its next."""
    query = f"SELECT {SEQ}, s.{NEXT} FROM ({rows}) JOIN {internal('superseded')} s USING ({SEQ})"
    return connection.sql(query).to_arrow_table()


def note_changed(connection: duckdb.DuckDBPyConnection, versions: str, order: Sequence[str]) -> int:
    """Remember the keys that a fold changes, as `changed`; returns how many of these rows are there afterwards."""
    named = f"SELECT {_names(order)}, {REMOVED} FROM ({versions})"
    connection.execute(f"CREATE TABLE {internal('changed')} AS {named}")
    ((count,),) = connection.execute(f"SELECT count(*) FILTER (NOT {REMOVED}) FROM {internal('changed')}").fetchall()
    return int(count)


def sides(connection: duckdb.DuckDBPyConnection, files: Sequence[str], order: Sequence[str]) -> list[tuple[int, int]]:
    """Of each file of a state its place in the order of keys, and whether it lies before, among or behind `changed`.

    Each is a SELECT.
    """
    if not files:
        return []
    key = f"row({_names(order)})"
    ranges = [f"SELECT {n} AS n, min({key}) AS lo, max({key}) AS hi FROM ({rows})" for n, rows in enumerate(files)]
    places = connection.execute(
        f"SELECT row_number() OVER (ORDER BY f.lo), CASE WHEN f.hi < c.lo THEN -1 WHEN f.lo > c.hi THEN 1 ELSE 0 END "
        f"FROM ({together(ranges)}) f, (SELECT min({key}) AS lo, max({key}) AS hi FROM {internal('changed')}) c "
        "ORDER BY f.n"
    ).fetchall()
    return [(int(place), int(side)) for place, side in places]


def count_unchanged(connection: duckdb.DuckDBPyConnection, rows: str, key: Sequence[str]) -> int:
    """How many rows of a state, a SELECT, have keys that are not `changed`."""
    same = f"({rows}) ANTI JOIN {internal('changed')} USING ({_names(key)})"
    ((count,),) = connection.execute(f"SELECT count(*) FROM {same}").fetchall()
    return int(count)


def within(rows: str, since: int, until: int | None = None) -> str:
    """Those of these rows whose seqs are in `(since, until]`."""
    end = "" if until is None else f" AND {SEQ} <= {until}"
    return f"SELECT * FROM ({rows}) WHERE {SEQ} > {since}{end}"


def matched(rows: str, other: str, columns: Sequence[str]) -> str:
    """Those rows whose columns are equal to those of a row of another relation."""
    return f"SELECT * FROM ({rows}) SEMI JOIN {other} USING ({_names(columns)})"


def everything(name: str) -> str:
    """A SELECT of all of one of our own tables."""
    return f"SELECT * FROM {internal(name)}"


def internal(name: str) -> str:
    """One of our own tables or views."""
    return f"{INTERNAL}.{quote_name(name)}"


def define(connection: duckdb.DuckDBPyConnection, name: str, query: str) -> None:
    """Give a query a name of our own."""
    connection.execute(f"CREATE VIEW {internal(name)} AS {query}")


def keep(connection: duckdb.DuckDBPyConnection, name: str, query: str) -> None:
    """The same, with what the query finds now."""
    connection.execute(f"CREATE TABLE {internal(name)} AS {query}")


def keep_keys(connection: duckdb.DuckDBPyConnection, name: str, queries: Sequence[str], key: Sequence[str]) -> int:
    """The same of the keys that queries find, each once; returns how many."""
    keys = together([f"SELECT {_names(key)} FROM ({query})" for query in queries])
    connection.execute(f"CREATE TABLE {internal(name)} AS SELECT DISTINCT * FROM ({keys})")
    ((count,),) = connection.execute(f"SELECT count(*) FROM {internal(name)}").fetchall()
    return int(count)


def read_seqs(connection: duckdb.DuckDBPyConnection, name: str) -> pa.Table:
    """The seqs that one of our own tables holds."""
    return connection.sql(f"SELECT {SEQ} FROM {internal(name)}").to_arrow_table()


def numbered(path: str, columns: Sequence[str], first_seq: int) -> str:
    """A SELECT over one Parquet file whose rows get the seqs from `first_seq` on, in the file's order."""
    return (
        f"SELECT {_names(columns)}, {first_seq} + file_row_number AS {SEQ} "
        f"FROM read_parquet({quote_text(path)}, file_row_number = true, hive_partitioning = false)"
    )


def together(queries: Sequence[str]) -> str:
    """The rows of several queries of one shape."""
    return " UNION ALL ".join(queries)


def empty(columns: Sequence[Column]) -> str:
    """A SELECT without rows, of the right types."""
    typed = (f"NULL::{duck_type(column.type)} AS {quote_name(column.name)}" for column in columns)
    return f"SELECT {', '.join(typed)} WHERE false"


def load_rows(
    connection: duckdb.DuckDBPyConnection, name: str, schema: pa.Schema, rows: Iterable[pa.RecordBatch]
) -> None:
    """Read rows into a table of the connection, batch by batch: it may be scanned often, and spills when it is large.

    What goes wrong in `rows` comes out as it is; DuckDB would wrap it in an error of its own.
    """
    import duckdb
    import pyarrow as pa

    failure: list[BaseException] = []

    def guarded() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows
        except BaseException as error:
            failure.append(error)
            raise

    connection.register("incoming", pa.RecordBatchReader.from_batches(schema, guarded()))
    try:
        connection.execute(f"CREATE TABLE {internal(name)} AS SELECT * FROM incoming")
    except duckdb.Error:
        if failure:
            raise failure[0] from None
        raise
    connection.unregister("incoming")


def find_duplicates(
    connection: duckdb.DuckDBPyConnection,
    rows: str,
    log: str | None,
    scope: KeyScope,
    into: str,
    seen: Sequence[bytes] = (),
) -> int:
    """Write the seqs of the duplicates in `rows` into the table `into`, and return how many there are.

    A row is a duplicate when its key is in `log`, or in `rows` with a lower seq, or when its hash is among the `seen`:
    those of purged rows. A key with a null in it never is.
    `rows` and `log` are relations with the key's columns, and `rows` with `_seq`.
    """
    keyed = " AND ".join(f"r.{quote_name(column)} IS NOT NULL" for column in scope.row_key)
    by = _names([*scope.within, *scope.row_key])
    earlier = (
        f"SELECT {SEQ} FROM (SELECT {SEQ}, row_number() OVER (PARTITION BY {by} ORDER BY {SEQ}) AS place "
        f"FROM {rows} r WHERE {keyed}) WHERE place > 1"
    )
    query = earlier
    if log is not None:
        same = " AND ".join(
            [f"r.{quote_name(column)} = l.{quote_name(column)}" for column in scope.row_key]
            + [f"r.{quote_name(column)} IS NOT DISTINCT FROM l.{quote_name(column)}" for column in scope.within]
        )
        query = f"{earlier} UNION SELECT {SEQ} FROM {rows} r SEMI JOIN ({log}) l ON {same}"
    if seen:
        _load_hashes(connection, f"seen_{into}", seen)
        purged = f"SELECT hash FROM {internal(f'seen_{into}')}"
        query = f"{query} UNION SELECT {SEQ} FROM {rows} r WHERE {keyed} AND {key_hash(scope)} IN ({purged})"
    connection.execute(f"CREATE TABLE {internal(into)} AS {query}")
    ((count,),) = connection.execute(f"SELECT count(*) FROM {internal(into)}").fetchall()
    return int(count)


def key_hash(scope: KeyScope) -> str:
    """128 bits that stand for a row's key, the same wherever and whenever they are computed; null where a part is."""
    whole = [f"{quote_name(column)}::VARCHAR" for column in scope.row_key]
    within = [f"{quote_name(column)}::VARCHAR" for column in scope.within]
    parts = [f"length({text}) || ':' || {text}" for text in whole]
    parts += [f"coalesce(length({text}) || ':' || {text}, 'null')" for text in within]
    return f"unhex(md5({' || '.join(parts)}))"


HASHES = "hashes"


def load_hashes(connection: duckdb.DuckDBPyConnection, hashes: Sequence[bytes]) -> None:
    """Give a connection hashes of keys to compare with."""
    _load_hashes(connection, HASHES, hashes)


def has_hash(scope: KeyScope) -> str:
    """The condition for rows whose keys have one of these hashes."""
    return f"{key_hash(scope)} IN (SELECT hash FROM {internal(HASHES)})"


def _load_hashes(connection: duckdb.DuckDBPyConnection, name: str, hashes: Sequence[bytes]) -> None:
    import pyarrow as pa

    schema = pa.schema([("hash", pa.binary())])
    load_rows(connection, name, schema, [pa.record_batch([pa.array(hashes, pa.binary())], schema=schema)])


def _names(columns: Sequence[str]) -> str:
    return ", ".join(quote_name(column) for column in columns)


_DUCK_TYPES = {
    "string": "VARCHAR",
    "json": "VARCHAR",
    "long": "BIGINT",
    "int": "INTEGER",
    "double": "DOUBLE",
    "float": "FLOAT",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "binary": "BLOB",
}


def duck_type(kind: Type) -> str:
    """One of our types in DuckDB's words."""
    match kind:
        case Primitive(name=name):
            return _DUCK_TYPES[name]
        case Decimal(precision=precision, scale=scale):
            return f"DECIMAL({precision},{scale})"
        case List(element=element):
            return f"{duck_type(element)}[]"
        case Map(key=key, value=value):
            return f"MAP({duck_type(key)}, {duck_type(value)})"
        case Struct(fields=fields):
            return "STRUCT(" + ", ".join(f"{quote_name(field.name)} {duck_type(field.type)}" for field in fields) + ")"
