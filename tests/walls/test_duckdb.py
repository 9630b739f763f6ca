"""A user's SQL on DuckDB: it tells nothing of ours, ends by its limits, and is refused in our words (F87)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.walled import room_bytes
from strandline.config import QueryConfig
from strandline.create import create
from strandline.engines.duck import functions, sandbox
from strandline.errors import BadRequest, StrandError, TooLarge
from strandline.lake import Lake
from strandline.views.view import View
from tests import slices
from tests.cli.conftest import command, environment, process

MEBIBYTE = 1024 * 1024
OURS = ("strand_internal", "tail_", "ledger", "warehouse", "strandline-duckdb", "/tmp", "CREATE VIEW", "scratch_")
"""What only our own names, folders and views have in them."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Two tables with rows in their tails; no test changes them."""
    with create(tmp_path_factory.mktemp("walls") / "lake") as made:
        made.create_table("a", {"id": "string", "n": "long?"})
        made.create_table("b", {"id": "string", "m": "long?"})
        made.append("a", [{"id": "1", "n": 10}, {"id": "2", "n": 20}], actor="me")
        made.append("b", [{"id": "1", "m": 100}], actor="me")
        yield made


def limited(view: View, **limits: Any) -> View:
    """A view with small limits."""
    small = QueryConfig(time_s=1.0, memory_bytes=64 * MEBIBYTE, spill_bytes=16 * MEBIBYTE, rows=100_000)
    view.limits = replace(small, **limits)
    return view


TELLING = [
    "current_setting('temp_directory')", "current_setting('allowed_paths')", "getvariable('x')", "pg_get_viewdef(1)",
    "pg_get_viewdef('a')", "pg_catalog.pg_get_viewdef(1)", "current_schemas(true)", "current_database()",
    "current_schema()", "in_search_path('memory', 'strand_internal')", "pg_size_pretty(1)", "col_description(1, 1)",
    "obj_description(1)", "has_table_privilege('strand_internal.x', 'select')", "pg_typeof2(1)", "current_query()",
    "current_connection_id()", "txid_current()", "stats(n)", "vector_type(n)", "getenv('HOME')", "nextval('s')",
    "currval('s')", "setseed(0.5)", "pg_sleep(1)", "sleep_ms(1000)", "write_log('x')", "version()", "index_key('a')",
    "json_serialize_sql('select 1')", "json_deserialize_sql('{}')", "json_serialize_plan('select * from a')",
    "parse_duckdb_log_message('x', 'y')", "read_text('/etc/passwd')", "hive_partition_component('a')",
    "pg_conf_load_time()", "pg_postmaster_start_time()", "inet_server_addr()", "create_sort_key(n, 'asc')",
]  # fmt: skip

EXPRESSION_PLACES = {
    "select": "SELECT {it} FROM a",
    "where": "SELECT id FROM a WHERE {it} IS NOT NULL",
    "join": "SELECT a.id FROM a JOIN b ON {it} IS NULL",
    "cte": "WITH x AS (SELECT {it} FROM a) SELECT 1",
    "subquery": "SELECT (SELECT max({it}) FROM a)",
    "window": "SELECT sum(n) OVER (PARTITION BY {it}) FROM a",
    "named window": "SELECT sum(n) OVER w FROM a WINDOW w AS (ORDER BY {it})",
    "lateral": "SELECT * FROM a, LATERAL (SELECT {it})",
    "table function": "SELECT * FROM range(length({it}::varchar))",
    "values": "VALUES ({it})",
    "group": "SELECT count(*) FROM a GROUP BY {it}",
    "having": "SELECT id FROM a GROUP BY id HAVING max({it}) IS NULL",
    "qualify": "SELECT id FROM a QUALIFY {it} IS NULL",
    "order": "SELECT id FROM a ORDER BY {it}",
    "filter": "SELECT count(*) FILTER (WHERE {it} IS NULL) FROM a",
    "limit": "SELECT id FROM a LIMIT length({it}::varchar)",
    "lambda": "SELECT list_transform([1], lambda x: {it}) FROM a",
    "replace": "SELECT * REPLACE ({it} AS n) FROM a",
    "method": "SELECT n.{it} FROM a",
    "recursive": "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE {it} IS NULL) SELECT 1",
}

STATEMENTS = [
    "SHOW TABLES FROM strand_internal", "SHOW ALL TABLES", "SHOW DATABASES", "SHOW SCHEMAS", "DESCRIBE", "SHOW a",
    "FROM (SHOW TABLES FROM strand_internal)", "SELECT * FROM (SHOW ALL TABLES)", "DESCRIBE strand_internal.x",
    "SUMMARIZE strand_internal.x", "SELECT * FROM strand_internal.tail_x", "SELECT * FROM memory.strand_internal.x",
    "SELECT * FROM a AT (VERSION => 1)", "SELECT * FROM memory.main.a", "SELECT * FROM sqlite_master",
    "SELECT * FROM information_schema.tables", "SELECT * FROM pg_catalog.pg_class", "SELECT * FROM pg_views",
    "SELECT $1", "SELECT ?", "SELECT \x00", "SELECT '\ud800'", "PRAGMA show_tables", "CALL pragma_version()",
    "SELECT * FROM a; SELECT 1", "(((", "SELECT * FROM a WHERE", "WITH x AS (SELECT 1)",
]  # fmt: skip


def answer_to(lake: Lake, query: str) -> str:
    """All that a query says: its rows, or the message and hint of its error, which must be one of ours."""
    try:
        return str(lake.view().sql(query).rows())
    except StrandError as error:
        assert error.exit_code == 3, query
        return f"{error.message} {error.hint}"


def test_f87_hostile_expressions_tell_nothing_wherever_they_stand(lake: Lake) -> None:
    """Over 300 statements: none escapes, none names anything of ours, and each ends as one of our errors.

    In most runs each stands in every second place.
    """
    count = 0
    for number, thing in enumerate(TELLING):
        for place, query in slices.share(EXPRESSION_PLACES.items(), 2, shift=number):
            text = query.format(it=thing)
            with pytest.raises(StrandError) as refused:
                lake.view().sql(text).rows()
            assert refused.value.exit_code == 3, (place, text)
            words = f"{refused.value.message} {refused.value.hint}".replace(text, "").replace(thing, "")
            assert not [name for name in OURS if name in words], (text, words)
            count += 1
    assert count >= 300


@pytest.mark.parametrize("statement", STATEMENTS)
def test_f87_nothing_of_ours_can_be_named(lake: Lake, statement: str) -> None:
    with pytest.raises(StrandError) as refused:
        lake.view().sql(statement).rows()
    assert refused.value.exit_code == 3


def test_f87_tables_are_shown_and_nothing_else(lake: Lake) -> None:
    assert lake.view().sql("SHOW TABLES").rows() == [("a",), ("b",)]
    for query in ("DESCRIBE a", "SUMMARIZE a", "SELECT user, current_user, current_schema, current_catalog"):
        words = answer_to(lake, query)
        assert not [name for name in OURS if name in words], words


def test_f87_every_function_of_duckdb_is_decided_upon() -> None:
    """What is allowed exists; and a version of DuckDB with more functions refuses them until somebody has looked."""
    with sandbox.connect() as connection:
        existing = {
            name for (name,) in connection.execute("SELECT lower(function_name) FROM duckdb_functions()").fetchall()
        }
    parsed = {
        "->",
        "<>",
        "==",
        "coalesce",
        "grouping",
        "grouping_id",
        "ifnull",
        "try",
        "current_time",
        "current_timestamp",
    }
    assert functions.OF_A_QUERY - existing - parsed == set()
    for name in (
        "pg_sleep",
        "sleep_ms",
        "current_setting",
        "getenv",
        "nextval",
        "duckdb_settings",
        "query",
        "read_csv",
    ):
        assert name not in functions.OF_A_QUERY | functions.OF_TABLES


BOMBS = {
    "SELECT sum(range) FROM range(1000000000000)": "time",
    "WITH RECURSIVE x AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM x) SELECT count(*) FROM x": "time",
    "SELECT count(*) FROM range(1000000) p, range(1000000) q WHERE p.range * q.range = 7": "time",
    "SELECT length(string_agg(repeat('x', 1000000))) FROM range(300)": "memory",
    "SELECT len(list(range)) FROM range(20000000)": "memory",
    "SELECT count(*) FROM (SELECT DISTINCT repeat(range::VARCHAR, 100) FROM range(200000))": "memory",
    "SELECT repeat('x', 1000) || range FROM range(90000)": "memory",
    "SELECT range(range * 1000000) FROM range(10000)": "memory",
    "SELECT range FROM range(200000)": "rows",
}


@pytest.mark.parametrize("query", BOMBS)
def test_f87_queries_without_an_end_are_ended(lake: Lake, query: str) -> None:
    """By time, by memory and disk, or by rows; and the same view answers the next query."""
    view = limited(lake.view(), time_s=1.0 if BOMBS[query] == "time" else 60.0)
    with pytest.raises(TooLarge) as ended:
        view.sql(query).rows()
    assert ended.value.detail["limit"] == BOMBS[query]
    assert "SET " not in ended.value.message
    assert view.sql("SELECT sum(n) FROM a").rows() == [(30,)]


COUNTING = [
    "SELECT length(repeat('a', 2000000000))", "SELECT length(repeat(repeat(repeat('a', 9000), 9000), 9000))",
    "SELECT len(list_sort(range(300000000)))", "SELECT * FROM a WHERE rpad('a', 2000000000, 'b') = id",
    "SELECT len(generate_series(1, 900000000)) FROM a", "SELECT list_resize([1], 900000000) IS NULL",
    "WITH x AS (SELECT lpad('a', 900000000, 'b') AS y) SELECT 1 FROM x", "SELECT length('a'.repeat(2000000000))",
    "SELECT * FROM range(length(repeat('a', 2000000000)))", "SELECT len(range(0, 900000000000, 9))",
]  # fmt: skip


@pytest.mark.parametrize("query", COUNTING)
def test_f87_constants_of_any_size_are_refused_before_they_are_computed(lake: Lake, query: str) -> None:
    """In a process of Python's nothing else ends them: DuckDB computes them while it plans."""
    with pytest.raises(TooLarge) as refused:
        lake.view().sql(query)
    assert refused.value.detail["limit"] == "memory"


def test_f87_rows_without_end_are_no_constant(lake: Lake) -> None:
    assert lake.view().sql("SELECT range FROM range(900000000000) LIMIT 1").rows() == [(0,)]
    assert lake.view().sql("SELECT len(range(1000)), length(repeat('ab', 1000))").rows() == [(1000, 2000)]


def test_f87_an_error_that_is_cut_in_a_letter_is_a_bad_request(lake: Lake) -> None:
    """DuckDB shows the first bytes of a value, and Python can't read half a letter: 3.11.2 loses the words."""
    with pytest.raises(BadRequest, match=r"JSON|InvalidInput"):
        lake.view().sql("SELECT json_extract(repeat('ɐ', 300), '$.a')").rows()


def test_f87_answers_are_bounded_as_arrow_too_and_streams_are_not(lake: Lake) -> None:
    view = limited(lake.view(), rows=5_000)
    with pytest.raises(TooLarge, match="5,000 rows"):
        view.sql("SELECT range FROM range(20000)").arrow()
    with pytest.raises(TooLarge, match="memory"):
        limited(lake.view()).sql("SELECT repeat('x', 1000) || range AS x FROM range(90000)").arrow()
    assert sum(batch.num_rows for batch in view.sql("SELECT range FROM range(20000)").reader()) == 20_000
    assert view.sql("SELECT range AS n FROM range(3)").arrow().to_pydict() == {"n": [0, 1, 2]}


def test_f87_our_own_reads_have_no_limits(lake: Lake) -> None:
    """A table, an export and a count take what they need, whatever a query may."""
    view = limited(lake.view(), rows=1, time_s=0.000_001)
    assert view.table("a").num_rows == 2
    assert view.count("a", "n > 0") == 2


def test_f87_time_ends_a_query_in_any_thread(lake: Lake) -> None:
    """A server's thread gets no signals: the watch interrupts the connection itself."""
    seen: list[BaseException] = []

    def elsewhere() -> None:
        try:
            limited(lake.view(), time_s=0.3).sql("SELECT sum(range) FROM range(1000000000000)").rows()
        except BaseException as error:
            seen.append(error)

    threads = [threading.Thread(target=elsewhere) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in seen] == [TooLarge] * 3


def test_f87_ctrl_c_is_still_an_interrupt(lake: Lake) -> None:
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        limited(lake.view(), time_s=60).sql("SELECT sum(sqrt(range)) FROM range(100000000)").rows()
    timer.join()


DEEP = {
    "terms": ("SELECT n" + " + 1" * 200 + " FROM a WHERE id = '1'", [(210,)]),
    "terms beside a star": ("SELECT *, n" + " + 1" * 200 + " AS k FROM a WHERE id = '1'", [("1", 10, 210)]),
    "conditions": ("SELECT id FROM a WHERE " + " OR ".join(f"n = {n}" for n in range(2000)), [("1",), ("2",)]),
    "brackets": ("SELECT " + "(" * 200 + "1" + ")" * 200, [(1,)]),
    "joins": ("SELECT count(*) FROM b" + "".join(f" JOIN b b{n} USING (id)" for n in range(100)), [(1,)]),
}


@pytest.mark.parametrize("query", DEEP)
def test_f87_long_expressions_are_walked(lake: Lake, query: str) -> None:
    text, rows = DEEP[query]
    assert sorted(lake.view().sql(text).rows()) == rows


TOO_DEEP = {
    "terms": "SELECT n" + " + 1" * 5000 + " FROM a",
    "terms beside a star": "SELECT *, n" + " + 1" * 900 + " FROM a",
    "brackets": "SELECT " + "(" * 100_000 + "1" + ")" * 100_000,
    "subqueries": "SELECT * FROM " + "(SELECT * FROM " * 60_000 + "a" + ")" * 60_000,
    "common tables": "WITH x AS (" * 30_000 + "SELECT 1" + ") SELECT * FROM x" * 30_000,
    "lists": "SELECT " + "[" * 100_000 + "]" * 100_000,
    "lambdas": "SELECT " + "list_transform([1], lambda x: " * 50 + "1" + ")" * 50,
    "columns": "SELECT * FROM " + "(SELECT *, * FROM " * 40 + "a" + ")" * 40,
    "joins": "SELECT count(*) FROM a" + "".join(f", a a{n}" for n in range(2000)),
    "not": "SELECT " + "NOT " * 5000 + "true",
}


@pytest.mark.parametrize("query", TOO_DEEP)
def test_f87_too_great_a_depth_is_a_bad_request(lake: Lake, query: str) -> None:
    """Some of these kill the process, or hold it for ever, if DuckDB gets to see them."""
    with pytest.raises((BadRequest, TooLarge)):
        lake.view().sql(TOO_DEEP[query]).rows()


def test_f87_too_long_a_text_is_too_large(lake: Lake) -> None:
    with pytest.raises(TooLarge, match="bytes"):
        lake.view().sql(f"SELECT '{'x' * MEBIBYTE}'")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT length(list_reduce(['a' FOR i IN range(45)], lambda p, q: p || p))",
        "SELECT 1 AS x0," + ",".join(f"x{n - 1} + x{n - 1} AS x{n}" for n in range(1, 40)),
    ],
)
def test_f87_the_command_ends_what_duckdb_neither_counts_nor_interrupts(lake: Lake, query: str, tmp_path: Path) -> None:
    """A value that grows in one call, and a plan that grows without end: exit 3, no traceback, and no file is left."""
    limits = {"STRAND_QUERY_TIME": "1s", "STRAND_QUERY_MEMORY": "64MiB", "STRAND_LAKE": str(lake.root)}
    done = process("sql", query, "--json", env={**limits, "TMPDIR": str(tmp_path)})
    assert (done.returncode, b'"too_large"' in done.stdout) == (3, True), done
    assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_f87_a_value_that_grows_in_one_call_takes_no_more_than_the_command_may_have(lake: Lake) -> None:
    """DuckDB does not count it. The operating system says no at what [query] allows, and what any query needs."""
    quiet = peak_bytes(lake, "SELECT 1", 0)
    peak = peak_bytes(lake, "SELECT length(list_reduce(['a' FOR i IN range(31)], lambda p, q: p || p))", 3)
    assert peak < quiet + 2 * 64 * MEBIBYTE + room_bytes()


WANTING = {
    "a value": "bytearray(1 << 30)",
    "threads": "[threading.Thread(target=threading.Event().wait, daemon=True).start() for _ in range(500)]",
}


@pytest.mark.parametrize("taking", WANTING.values(), ids=WANTING)
def test_f87_whatever_wants_memory_beyond_the_limit_is_told_the_same(taking: str) -> None:
    """Of a value Python says MemoryError, and of a thread something else."""
    script = f"""
import threading
from strandline.cli.walled import walled
from strandline.config import QueryConfig
from strandline.errors import TooLarge
try:
    with walled(QueryConfig(memory_bytes=1 << 20), lambda error: 70):
        {taking}
except TooLarge as error:
    print(error.detail["limit"], flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"memory\n"), done


MEASURING = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Started by a small process: one begins with the peak of the process that started it."""


def peak_bytes(lake: Lake, query: str, exit_code: int) -> int:
    """The memory that `strand sql` had at most, as the system counts it."""
    limits = {"STRAND_QUERY_MEMORY": "64MiB", "STRAND_LAKE": str(lake.root)}
    line = [sys.executable, "-c", MEASURING, *command("sql", query)]
    done = subprocess.run(line, env=environment(**limits), capture_output=True, check=True)
    code, peak_kib = map(int, done.stdout.split())
    assert code == exit_code
    return peak_kib * 1024


def test_f87_limits_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRAND_QUERY_ROWS", "3")
    with create(tmp_path / "lake") as lake, pytest.raises(TooLarge, match="more than 3 rows"):
        lake.view().sql("SELECT * FROM range(4)").rows()
