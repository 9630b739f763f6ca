"""DuckDB, as far as reads and their two walls rest on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.engines.duck import relations, sandbox


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A Parquet file that a view may read, and one that it may not."""
    for name in ("allowed", "other"):
        pq.write_table(pa.table({"id": ["a", "b"], "_seq": [1, 2]}), tmp_path / f"{name}.parquet")
    return str(tmp_path / "allowed.parquet"), str(tmp_path / "other.parquet")


def test_a_shut_connection_reads_the_allowed_paths_and_nothing_else(files: tuple[str, str]) -> None:
    """The second wall: with a hole in it a query could read any file that the server can."""
    allowed, other = files
    with sandbox.connect() as connection:
        sandbox.shut(connection, [allowed])
        assert connection.sql(relations.parquet([allowed], ["id"])).fetchall() == [("a",), ("b",)]
        for query in (relations.parquet([other], ["id"]), f"SELECT * FROM '{other}'", f"COPY (SELECT 1) TO '{other}'"):
            with pytest.raises(duckdb.PermissionException):
                connection.execute(query)
        for setting in (f"SET allowed_paths = ['{other}']", "SET enable_external_access = true"):
            with pytest.raises(duckdb.Error):
                connection.execute(setting)


def test_paths_must_be_allowed_before_access_is_shut(files: tuple[str, str]) -> None:
    """`shut` sets them in this order because the other one is refused."""
    with sandbox.connect() as connection:
        connection.execute("SET enable_external_access = false")
        with pytest.raises(duckdb.InvalidInputException, match="allowed_paths"):
            connection.execute(f"SET allowed_paths = ['{files[0]}']")


def test_a_query_does_not_see_python_variables_once_replacements_are_off() -> None:
    """DuckDB looks names up in the caller's variables by default: a query could read what the process holds."""
    secret = pa.table({"token": ["t"]})
    with sandbox.connect() as connection:
        assert connection.sql("SELECT * FROM secret").fetchall() == [("t",)]
        sandbox.shut(connection, [])
        with pytest.raises(duckdb.CatalogException):
            connection.sql("SELECT * FROM secret")
    assert secret.num_rows == 1


def test_a_parsed_query_survives_the_way_to_json_and_back() -> None:
    """A rewritten star is put back together by DuckDB; a construct lost on the way would change the answer."""
    query = (
        "WITH c AS (SELECT id, count(*) FILTER (id > 1) AS n FROM t GROUP BY ALL HAVING n > 0) "
        "SELECT c.*, row_number() OVER (PARTITION BY id ORDER BY n DESC NULLS LAST) AS place FROM c "
        "LEFT JOIN (VALUES (1, 'x')) v(id, word) USING (id) WHERE id IN (SELECT max(id) FROM t) "
        "QUALIFY place = 1 ORDER BY ALL LIMIT 5"
    )
    with sandbox.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT unnest([1, 2, 2, 3]) AS id")
        ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
        ((back,),) = connection.execute("SELECT json_deserialize_sql(?::JSON)", [text]).fetchall()
        assert orjson.loads(text)["error"] is False
        assert connection.sql(back).fetchall() == connection.sql(query).fetchall() == [(3, 1, 1)]


def test_a_star_can_leave_out_columns_of_one_table_by_a_qualified_name() -> None:
    """This is how `*` hides `_seq` of a table and keeps a subquery's; without it `select *` would show our columns."""
    with sandbox.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS _seq")
        joined = connection.sql("SELECT * EXCLUDE (t._seq) FROM t JOIN (SELECT 1 AS id, 3 AS _seq) u USING (id)")
        assert (joined.columns, joined.fetchall()) == (["id", "_seq"], [(1, 3)])
        ((text,),) = connection.execute("SELECT json_serialize_sql('SELECT * FROM t')").fetchall()
        (star,) = orjson.loads(text)["statements"][0]["node"]["select_list"]
        assert (star["class"], star["exclude_list"], star["qualified_exclude_list"]) == ("STAR", [], [])


def test_an_answer_that_is_not_read_to_its_end_blocks_its_connection() -> None:
    """Hence `fetchall`, and a connection for every answer: after a `fetchone`, even of the only row, reads fail."""
    with duckdb.connect() as connection:
        assert connection.execute("SELECT 42").fetchone() == (42,)
        with pytest.raises(duckdb.Error, match="Resource In Use"):
            connection.sql("SELECT 1").fetchall()
        assert connection.fetchone() is None  # only now it is at its end
        assert connection.sql("SELECT 1").fetchall() == [(1,)]


def test_an_open_arrow_reader_blocks_its_connection() -> None:
    """A streamed answer owns its connection: a second query of a view on the same one would fail."""
    with duckdb.connect() as connection:
        reader = connection.sql("SELECT * FROM range(100_000)").to_arrow_reader(1000)
        first = next(iter(reader))
        with pytest.raises(duckdb.Error, match="Resource In Use"):
            connection.execute("SELECT 1")
        assert first.num_rows + sum(batch.num_rows for batch in reader) == 100_000
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_no_extension_is_installed_on_the_way() -> None:
    """A query must never make the process fetch code from the network."""
    with sandbox.connect() as connection:
        sandbox.shut(connection, [])
        for query in ("INSTALL httpfs", "LOAD httpfs", "SELECT * FROM read_parquet('https://localhost/x.parquet')"):
            with pytest.raises(duckdb.Error):
                connection.execute(query)


def test_a_join_with_few_values_leaves_groups_of_rows_out_by_their_filters(tmp_path: Path) -> None:
    """Rows are looked for by value in the files of a state so: without it each look would read the whole column."""
    with sandbox.connect() as connection:
        relations.keep(connection, "asked", "SELECT * FROM (VALUES ('5'), ('7')) t(value)")
        path = str(tmp_path / "t.parquet")
        values = "SELECT i AS id, md5(i::VARCHAR) AS value FROM range(20_480) t(i)"
        how = "ROW_GROUP_SIZE 10240, DICTIONARY_SIZE_LIMIT 20000, STRING_DICTIONARY_PAGE_SIZE_LIMIT 10000000"
        connection.execute(f"COPY ({values}) TO '{path}' (FORMAT parquet, {how})")
        some = relations.matched(relations.parquet([path], ["id", "value"]), relations.internal("asked"), ["value"])
        ((_, plan),) = connection.execute(f"EXPLAIN ANALYZE {relations.together([some, some])}").fetchall()
    assert str(plan).count("Row Groups Scanned: 0 / 2") == 2


def test_questions_see_nothing_of_each_other_and_their_duckdb_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes slower with every one; who asks meanwhile goes on, and who gave up leaves nothing behind."""
    monkeypatch.setattr(sandbox, "RENEWED_AFTER", 3)
    shared = sandbox._Shared()
    make = f"CREATE TABLE {sandbox.INTERNAL}.rows AS SELECT"

    def abandoned() -> Iterator[object]:
        with shared.scratch() as connection:
            yield from connection.sql("SELECT * FROM range(100000)").to_arrow_reader(10)

    with shared.scratch() as early:
        early.execute(f"{make} 0 AS n")
        first, given_up = shared._database, abandoned()
        next(given_up)
        given_up.close()
        for n in range(1, 6):
            with shared.scratch() as connection:
                connection.execute(f"{make} {n} AS n")
                assert connection.sql(f"FROM {sandbox.INTERNAL}.rows").fetchall() == [(n,)]
        assert shared._database is not first
        assert early.sql(f"FROM {sandbox.INTERNAL}.rows").fetchall() == [(0,)]
    for database in (first, shared._database):
        named = "SELECT count(*) FROM duckdb_databases() WHERE database_name LIKE 'scratch%'"
        assert database.sql(named).fetchall() == [(0,)]
