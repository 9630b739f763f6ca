"""SQL is read-only and sees the lake alone, whatever the query tries; and `*` is what the user put in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

from strandline.create import create
from strandline.errors import StrandError
from strandline.lake import Lake
from tests import slices
from tests.kit import read_only_fingerprint

secret_frame = pa.table({"secret": ["from Python"]})
"""What a replacement scan would find: DuckDB resolves unknown names to Python variables."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the lake of these tests is, beside files that nobody may read."""
    return tmp_path_factory.mktemp("safety")


@pytest.fixture(scope="module")
def lake(folder: Path) -> Iterator[Lake]:
    """Two tables with rows in their tails; none of these tests changes it."""
    with create(folder / "lake") as made:
        made.create_table("a", {"id": "string", "n": "long?"})
        made.create_table("b", {"id": "string", "m": "long?"})
        made.append("a", [{"id": "1", "n": 10}, {"id": "2", "n": 20}], actor="me")
        made.append("b", [{"id": "1", "m": 100}], actor="me")
        parquet.write_table(secret_frame, folder / "outside.parquet")
        (folder / "secret.csv").write_text("secret\nfrom a file\n")
        yield made


STATEMENTS = [
    "COPY a TO '{dir}/out.csv'",
    "COPY (SELECT * FROM a) TO '{dir}/out.parquet' (FORMAT parquet)",
    "COPY a FROM '{dir}/secret.csv'",
    "EXPORT DATABASE '{dir}/out'",
    "IMPORT DATABASE '{dir}/out'",
    "ATTACH '{dir}/other.db'",
    "ATTACH '{dir}/lake/ledger.db' (TYPE sqlite)",
    "DETACH memory",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL httpfs",
    "UPDATE EXTENSIONS",
    "SET enable_external_access = true",
    "SET memory_limit = '1GB'",
    "RESET memory_limit",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "CREATE TABLE x AS SELECT 1",
    "CREATE OR REPLACE VIEW a AS SELECT 1",
    "CREATE TEMP TABLE x (i int)",
    "CREATE MACRO f(x) AS x + 1",
    "CREATE SECRET s (TYPE s3)",
    "CREATE SCHEMA s",
    "CREATE SEQUENCE s",
    "INSERT INTO a VALUES ('3', 30)",
    "DELETE FROM a",
    "UPDATE a SET n = 0",
    "TRUNCATE a",
    "DROP VIEW a",
    "DROP TABLE IF EXISTS a",
    "ALTER TABLE a ADD COLUMN x int",
    "BEGIN",
    "COMMIT",
    "CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "CALL pragma_version()",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "EXPLAIN ANALYZE SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW a",
    "",
    ";",
    "-- nothing",
]

READERS = [
    "read_csv('{dir}/secret.csv')",
    "read_csv_auto('{dir}/secret.csv')",
    "sniff_csv('{dir}/secret.csv')",
    "read_text('{dir}/secret.csv')",
    "read_blob('{dir}/secret.csv')",
    "read_json('{dir}/secret.csv')",
    "read_json_auto('{dir}/secret.csv')",
    "read_ndjson('{dir}/secret.csv')",
    "glob('{dir}/*')",
    "read_parquet('{dir}/outside.parquet')",
    "parquet_scan('{dir}/outside.parquet')",
    "parquet_metadata('{dir}/outside.parquet')",
    "parquet_schema('{dir}/outside.parquet')",
    "parquet_file_metadata('{dir}/outside.parquet')",
    "parquet_kv_metadata('{dir}/outside.parquet')",
    "parquet_bloom_probe('{dir}/outside.parquet', 'secret', 'x')",
    "sqlite_scan('{dir}/lake/ledger.db', 'batches')",
    "'{dir}/outside.parquet'",
    "'{dir}/secret.csv'",
    '"{dir}/secret.csv"',
    "'https://example.com/x.parquet'",
    "'s3://bucket/x.parquet'",
    "secret_frame",
    "main.secret_frame",
    "query('SELECT * FROM read_csv(''{dir}/secret.csv'')')",
    "query_table('{dir}/secret.csv')",
    "query_table(['a', 'b'])",
    "arrow_scan(1, 2, 3)",
    "pandas_scan(1)",
    "python_map_function()",
    "duckdb_settings()",
    "duckdb_secrets()",
    "duckdb_extensions()",
    "duckdb_tables()",
    "duckdb_views()",
    "duckdb_databases()",
    "duckdb_temporary_files()",
    "duckdb_logs()",
    "pragma_database_list()",
    "which_secret('s3://x', 's3')",
    "information_schema.tables",
    "information_schema.columns",
    "pg_catalog.pg_tables",
    "pg_tables",
    "sqlite_master",
    "memory.main.a",
    "system.main.duckdb_settings",
    "temp.main.a",
    "strand_tail_x",
    "json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "from_substrait('x')",
    "seq_scan('a')",
    "checkpoint()",
    "force_checkpoint()",
    "enable_logging()",
    "dbgen(sf=0.01)",
]

PLACES = {
    "from": "SELECT * FROM {it}",
    "cte": "WITH x AS (SELECT * FROM {it}) SELECT * FROM x",
    "unused cte": "WITH x AS (SELECT * FROM {it}) SELECT 1",
    "recursive cte": "WITH RECURSIVE x AS (SELECT 1 AS i UNION ALL SELECT 2 FROM {it}) SELECT * FROM x",
    "scalar subquery": "SELECT (SELECT count(*) FROM {it})",
    "exists": "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM {it})",
    "union": "SELECT id FROM a UNION ALL SELECT 'x' FROM {it}",
    "join": "SELECT * FROM a, {it}",
    "lateral": "SELECT * FROM a, LATERAL (SELECT * FROM {it})",
    "order by": "SELECT * FROM a ORDER BY (SELECT count(*) FROM {it})",
    "having": "SELECT id FROM a GROUP BY id HAVING count(*) > (SELECT count(*) FROM {it})",
    "limit": "SELECT * FROM a LIMIT (SELECT count(*) FROM {it})",
    "pivot": "SELECT * FROM (PIVOT (SELECT 1 AS k FROM {it}) ON k USING count(*))",
    "from first": "FROM {it}",
    "table": "SELECT * FROM (FROM {it} SELECT *)",
}


def refused(lake: Lake, query: str) -> StrandError:
    """The error a query gets; none is a failure of the test."""
    try:
        found = lake.view().sql(query).rows()
    except StrandError as error:
        return error
    raise AssertionError(f"{query} was let through: {found[:3]}")


@pytest.mark.parametrize("statement", STATEMENTS)
def test_only_a_single_query_is_run(lake: Lake, folder: Path, statement: str) -> None:
    before = read_only_fingerprint(folder)
    error = refused(lake, statement.format(dir=folder))
    assert error.exit_code == 3
    assert error.message
    assert error.hint
    assert read_only_fingerprint(folder) == before


@pytest.mark.parametrize("reader", READERS)
def test_a_query_sees_the_lake_alone_wherever_it_looks_from(lake: Lake, folder: Path, reader: str) -> None:
    """Files, URLs, Python variables, other catalogs and DuckDB's own state, in every place a relation can stand.

    In most runs each of them in every fourth place, so that each place is met by many of them.
    """
    for place, query in slices.share(PLACES.items(), 4, shift=READERS.index(reader)):
        error = refused(lake, query.format(it=reader.format(dir=folder)))
        assert error.exit_code == 3, place
        assert "from a file" not in error.message
        assert "from Python" not in error.message


def test_the_lakes_own_files_are_read_through_tables_alone(lake: Lake, folder: Path) -> None:
    """Not even a data file that the query's table consists of may be named."""
    for path in (lake.root / "ledger.db", lake.root / "strand.toml"):
        refused(lake, f"SELECT * FROM a, read_text('{path}')")
        refused(lake, f"SELECT * FROM a, '{path}'")


@pytest.mark.parametrize(
    "expression",
    [
        "getenv('HOME')",
        "current_setting('temp_directory')",
        "current_database()",
        "version()",
    ],
)
def test_scalar_functions_give_nothing_away(lake: Lake, expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, or harmless."""
    monkeypatch.setenv("HOME", "/nowhere/the-secret-name")
    try:
        rows = lake.view().sql(f"SELECT {expression}").rows()
    except StrandError as error:
        assert error.exit_code == 3
    else:
        assert "the-secret-name" not in str(rows)


def test_the_second_wall_holds_alone(lake: Lake, folder: Path) -> None:
    """Even a query that had passed the first can't open a file, load an extension or unlock the connection."""
    from strandline.engines.duck import sandbox

    connection = sandbox.connect()
    sandbox.shut(connection, [])
    for query in (
        f"SELECT * FROM read_csv('{folder}/secret.csv')",
        f"SELECT * FROM '{folder}/outside.parquet'",
        f"COPY (SELECT 1) TO '{folder}/out.csv'",
        f"ATTACH '{folder}/other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET allowed_directories = ['/']",
        "SELECT * FROM secret_frame",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(query).fetchall()
    assert not (folder / "out.csv").exists()


# -- what a star is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT * FROM a", ["id", "n"]),
        ("FROM a", ["id", "n"]),
        ("SELECT a.* FROM a", ["id", "n"]),
        ("SELECT x.* FROM a AS x", ["id", "n"]),
        ('SELECT "A".* FROM A', ["id", "n"]),
        ("SELECT * FROM main.a", ["id", "n"]),
        ("SELECT *, _seq FROM a", ["id", "n", "_seq"]),
        ("SELECT _seq, _at, _actor FROM a", ["_seq", "_at", "_actor"]),
        ("SELECT * EXCLUDE (n) FROM a", ["id"]),
        ("SELECT * EXCLUDE (_seq) FROM a", ["id", "n"]),
        ("SELECT * REPLACE (n + 1 AS n) FROM a", ["id", "n"]),
        ("SELECT * RENAME (n AS nn) FROM a", ["id", "nn"]),
        ("SELECT a.*, b.m FROM a, b", ["id", "n", "m"]),
        ("SELECT a.n, b.* FROM a JOIN b ON a.id = b.id", ["n", "id", "m"]),
        ("SELECT * FROM a JOIN b USING (id)", ["id", "n", "m"]),
        ("SELECT * FROM a LEFT JOIN b USING (id)", ["id", "n", "m"]),
        ("SELECT * FROM a SEMI JOIN b USING (id)", ["id", "n"]),
        ("SELECT * FROM a ANTI JOIN b USING (id)", ["id", "n"]),
        ("SELECT COLUMNS(*) FROM a", ["id", "n"]),
        ("SELECT min(COLUMNS(*)) FROM a", ["id", "n"]),
        ("SELECT * FROM a POSITIONAL JOIN b", ["id", "n", "id", "m"]),
        ("SELECT * FROM (SELECT * FROM a)", ["id", "n"]),
        ("SELECT * FROM (SELECT *, _seq FROM a)", ["id", "n", "_seq"]),
        ("SELECT * FROM (SELECT _seq AS s, * FROM a) x", ["s", "id", "n"]),
        ("WITH x AS (SELECT * FROM a) SELECT * FROM x", ["id", "n"]),
        ("WITH x AS (SELECT id, _seq FROM a) SELECT * FROM x", ["id", "_seq"]),
        ("WITH a AS (SELECT 1 AS one) SELECT * FROM a", ["one"]),
        ("WITH a AS (SELECT id AS k, _seq FROM main.a) SELECT * FROM a", ["k", "_seq"]),
        ("SELECT * FROM a UNION ALL SELECT * FROM b", ["id", "n"]),
        ("SELECT * FROM a WHERE n > (SELECT min(n) FROM (SELECT * FROM a))", ["id", "n"]),
        ("SELECT * FROM a, LATERAL (SELECT a.n + 1 AS k)", ["id", "n", "k"]),
        ("SELECT * FROM a ORDER BY _seq DESC LIMIT 1", ["id", "n"]),
        ("SELECT DISTINCT * FROM a", ["id", "n"]),
        ("TABLE a", ["id", "n"]),
        ("VALUES (1, 2)", ["col0", "col1"]),
    ],
)
def test_a_star_is_the_users_columns(lake: Lake, query: str, columns: list[str]) -> None:
    result = lake.view().sql(query)
    assert result.columns == columns
    assert result.rows() or "WHERE n >" in query


def test_a_natural_join_is_refused(lake: Lake) -> None:
    """It pairs all common columns, ours too, and these differ in every row: it would find nothing, and not say why."""
    assert "USING" in refused(lake, "SELECT id FROM a NATURAL JOIN b").hint


def test_count_star_and_struct_star_are_not_stars(lake: Lake) -> None:
    assert lake.view().sql("SELECT count(*), max(_seq) > 0 FROM a").rows() == [(2, True)]
    assert lake.view().sql("SELECT count(*) FILTER (WHERE n > 10) FROM a").rows() == [(1,)]


def test_an_extra_column_is_hidden_too(lake: Lake) -> None:
    lake.create_table("c", {"id": "string"}, unknown_fields="json")
    lake.append("c", [{"id": "1", "more": 5}])
    assert lake.view().sql("SELECT * FROM c").columns == ["id"]
    assert lake.view().sql("SELECT * FROM a JOIN c USING (id)").columns == ["id", "n"]
    assert lake.view().sql("SELECT _extra FROM c").rows() == [('{"more":5}',)]


def test_no_variable_of_the_environment_is_in_an_error(lake: Lake) -> None:
    assert os.environ.get("HOME", "?") not in refused(lake, "SELECT * FROM nothing").message
