"""A sink's predicate sees one row, and decides the same every time."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

from strandline.engines.duck import predicates, sandbox
from strandline.engines.duck.functions import OF_A_ROW
from strandline.engines.duck.predicates import check_predicate, without_matches
from strandline.engines.duck.ranges import Select, SeqRange, read_range
from strandline.errors import BadRequest
from strandline.model.schema.schema import parse_columns
from strandline.model.schema.types import SEQ, Column, Primitive

COLUMNS = parse_columns("source:string,ts:timestamp,n:long?,tags:list<string>").columns


@pytest.mark.parametrize(
    "text",
    [
        "source = 'claude'",
        "n > 3 and length(source) < 10 or n is null",
        "source like 'a%' or regexp_matches(source, 'x+')",
        "ts >= timestamptz '2026-01-01 00:00:00+00'",
        "list_contains(tags, 'a')",
        "source in ('a', 'b')",
        "age(ts, timestamptz '2026-01-01 00:00:00+00') < interval 1 day",
        "len(list_filter(tags, lambda x: x = source)) > 0",
        "source.upper() = 'A' and upper(source) like 'A%' and not n between 1 and 3",
        "case when n is null then false else n % 2 = 0 end and try_cast(source as integer) is null",
        "date_trunc('day', ts) = timestamptz '2026-01-01' and strftime(ts, '%Y') = '2026' and tags[1] = 'x'",
        "source ilike 'a%' or source similar to 'b+' or source ^@ 'c' or coalesce(n, 0) + 1 > 2",
        "json_extract_string(source, '$.a') = 'x' and md5(source) < 'f'",
    ],
)
def test_conditions_pass(text: str) -> None:
    check_predicate(text, COLUMNS, "t")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "source =",
        "sorce = 'x'",
        "source = 'x'; drop table t",
        "true) or (true",
        "true union select 1",
        "true order by 1",
        "true limit 1",
        "n in (select 1)",
        "exists (select 1 from t)",
        "random() < 0.5",
        "ts < now()",
        "ts < current_timestamp",
        "ts < get_current_timestamp()",
        "count(*) > 1",
        "row_number() over () < 3",
        "uuid() is not null",
        "nextval('x') > 1",
        "source",
        "getenv('HOME') = ''",
        "read_text('/etc/passwd') is not null",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        check_predicate(text, COLUMNS, "t")


CHANGING = [
    "age(ts) < interval 1 day", "ts.age() < interval 1 day", "localtime > time '12:00'", "localtimestamp > ts",
    "current_localtimestamp() > ts", "current_localtime() is null", "user = 'x'", "current_user = 'x'",
    "session_user = 'x'", "current_date > ts", "current_time is null", "today() > ts", "transaction_timestamp() > ts",
    "ago(interval 1 day) < ts", "columns(*) is null", "columns('s.*') = 'x'", "* is null", "random() < 0.5",
    "setseed(0.5) is null", "nextval('s') > 1", "currval('s') > 1", "gen_random_uuid() is null", "uuidv7() is null",
    "getvariable('x') = 1", "current_setting('threads') = 1", "current_query() = ''", "version() = 'x'",
    "txid_current() = 1", "pg_sleep(1) is null", "sleep_ms(1) is null", "hash(source) % 2 = 0", "stats(n) = 'x'",
    "error('x') = 'y'", "unnest(tags) = 'x'", "sum(n) > 1", "n > $1", "#1 = 'x'", "rowid = 1", "t.source = 'x'",
    "pg_catalog.pg_get_viewdef(1) = 'x'", "current_schema() = 'main'", "current_database() = 'memory'",
    "list_transform(tags, lambda x: random()) is null", "(lambda x: x)(1) is null", "grouping(n) = 1", "default = 1",
    "sum(n) over () > 1", "n in (select 1)", "exists (from duckdb_settings())", "try(random()) > 0",
    "case when true then now() end > ts", "list_aggregate(tags, 'random') is null and false or random() > 1",
    "memory.main.random() > 1", "n + 1" + " + 1" * 3000 + " > 1", "(" * 50_000 + "true" + ")" * 50_000,
]  # fmt: skip


@pytest.mark.parametrize("text", CHANGING, ids=range(len(CHANGING)))
def test_f88_a_condition_that_changes_by_itself_is_refused(text: str) -> None:
    """Functions are on a list, every name is a column's, and no part sees more than one row."""
    with pytest.raises(BadRequest):
        check_predicate(text, COLUMNS, "t")


def test_f88_every_function_of_a_row_is_consistent() -> None:
    """DuckDB itself says so of all that are its own; the others are macros over such."""
    with sandbox.connect() as connection:
        query = "SELECT lower(function_name) FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
        changing = {name for (name,) in connection.execute(query).fetchall()}
    assert {name for name in OF_A_ROW if name in changing} == set()


def test_f88_a_condition_is_planned_and_judged_where_nothing_else_can_be_reached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the list had a hole, the connection is shut all the same: for the check, for a batch and for files."""
    (tmp_path / "secret.txt").write_text("secret")
    reaching = f"(select count(*) from read_text('{tmp_path / 'secret.txt'}')) > 0"
    monkeypatch.setattr(predicates, "_check_nodes", lambda *_: None)
    with pytest.raises(BadRequest, match=r"(?i)permission"):
        check_predicate(reaching, COLUMNS, "t")
    with pytest.raises(BadRequest, match=r"(?i)permission"):
        without_matches(pa.record_batch({"source": ["x", "y"]}), reaching)
    table = pa.table({"source": ["x"], SEQ: pa.array([1], pa.int64())})
    parquet.write_table(table, tmp_path / "rows.parquet")
    stored = (*parse_columns("source:string").columns, Column(SEQ, Primitive("long"), nullable=False))
    columns = tuple((name, name) for name in table.column_names)
    for where, expected in (("source = 'x'", 1), (reaching, None)):
        rows = SeqRange(((str(tmp_path / "rows.parquet"),),), stored, 0, 9, Select(columns, where), table.schema)
        if expected is None:
            with pytest.raises(duckdb.PermissionException):
                list(read_range(rows))
        else:
            assert sum(piece.rows.num_rows for piece in read_range(rows)) == expected


def test_f88_a_condition_too_large_to_be_planned_is_ended() -> None:
    with pytest.raises(BadRequest):
        check_predicate("len(" + "list_transform(tags, lambda x: " * 40 + "1" + ")" * 40 + ") > 0", COLUMNS, "t")
