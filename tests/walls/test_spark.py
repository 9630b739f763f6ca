"""Spark SQL sees the lake alone: whatever names a file, a class or a foreign relation, wherever it stands (F85)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.config import QueryConfig
from strandline.create import create
from strandline.errors import BadRequest, StrandError, TooLarge, Unsupported
from strandline.lake import Lake
from strandline.views.spark_sql import _answer, spark_sql
from strandline.views.spark_wall import check_analysed, check_parsed
from strandline.views.view import View
from tests import slices
from tests.cli.conftest import command, environment

SECRET = "the-secret-line"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Two tables with rows in their tails, beside a file that nobody may read; no test changes anything."""
    folder = tmp_path_factory.mktemp("walls")
    (folder / "secret.csv").write_text(f"{SECRET}\n")
    with create(folder / "lake") as made:
        made.create_table("a", {"id": "string", "n": "long?"})
        made.create_table("b", {"id": "string", "m": "long?"})
        made.append("a", [{"id": "1", "n": 10}, {"id": "2", "n": 20}], actor="me")
        made.append("b", [{"id": "1", "m": 100}], actor="me")
        yield made


RELATIONS = [
    "csv.`{file}`", "parquet.`{file}`", "text.`{file}`", "json.`{file}`", "orc.`{file}`", "binaryFile.`{file}`",
    "xml.`{file}`", "avro.`{file}`", "`{file}`", "strand.lake.a", "strand.lake.a.snapshots", "strand.lake.a.files",
    "strand.lake.a.branch_main", "strand.state.a", "lake.a", "spark_catalog.default.a", "default.a", "other.x.y",
    "global_temp.a", "system.session.a", "information_schema.tables", "a.snapshots", "a.history", "a.files", "nothing",
    "identifier('a')", "identifier('csv.`{file}`')", "a version as of 1", "a timestamp as of '2020-01-01'",
    "a for system_time as of '2020-01-01'", "a with (`path` = '{file}')", "stream a", "stream(a)",
    "read_files('{file}')", "python_worker_logs()", "sql_keywords()", "collations()", "nothing_of_a_function(1)",
    "csv('{file}')", "strand.system.files('a')", "f(table(a))",
]  # fmt: skip

EXPRESSIONS = [
    "reflect('java.lang.System', 'getenv', 'HOME')", "java_method('java.lang.System', 'getProperty', 'user.home')",
    "try_reflect('java.nio.file.Files', 'readString', '{file}')", "REFLECT('java.lang.System', 'exit', '0')",
    "`reflect`('java.lang.System', 'getenv', 'HOME')", "system.builtin.reflect('java.lang.System', 'getenv', 'HOME')",
    "builtin.reflect('java.lang.System', 'getenv', 'HOME')", "input_file_name()", "input_file_block_start()",
    "current_user()", "user()", "session_user()", "version()", "current_catalog()", "current_database()",
    "from_protobuf(cast(id as binary), 'X', '{file}')", "from_avro(cast(id as binary), '{{}}')",
    "xpath_string('<a/>', 'a')", "from_xml('<a/>', 'a int')", "schema_of_xml('<a/>')", "identifier('id')",
    "identifier('reflect')('java.lang.System', 'getenv', 'HOME')", "nothing_of_a_function(1)",
    "strand.system.iceberg_version()", "strand.system.bucket(2, id)", ":parameter", "?",
]  # fmt: skip

NAMES = ["current_user", "session.x", "system.session.x"]
"""Such expressions too; Spark forgets them in a window that no column uses, and never resolves them there."""

RELATION_PLACES = {
    "from": "select * from {it}",
    "where": "select * from a where id in (select 1 from {it})",
    "exists": "select * from a where exists (select 1 from {it})",
    "join": "select * from a join {it} on true",
    "cte": "with x as (select * from {it}) select * from x",
    "unused cte": "with x as (select * from {it}) select 1",
    "subquery": "select (select count(*) from {it})",
    "from subquery": "select * from (select * from {it}) s",
    "window": "select sum(n) over w from a window w as (order by (select max(1) from {it}))",
    "unused window": "select n from a window w as (partition by (select max(1) from {it}))",
    "lateral": "select * from a, lateral (select * from {it})",
    "table function": "select * from range((select count(*) from {it}))",
    "union": "select 1 union all select 1 from {it}",
    "pipe": "from a |> join {it} on true",
    "having": "select id from a group by id having count(*) > (select count(*) from {it})",
    "order": "select id from a order by (select count(*) from {it})",
    "pivot": "select * from {it} pivot (count(*) for id in ('1'))",
}

EXPRESSION_PLACES = {
    "select": "select {it} from a",
    "where": "select id from a where {it} is not null",
    "join": "select a.id from a join b on {it} is null",
    "cte": "with x as (select {it} as v from a) select 1",
    "subquery": "select (select max({it}) from a)",
    "window": "select sum(n) over w from a window w as (partition by {it})",
    "unused window": "select id from a window w as (order by {it})",
    "window frame": "select sum(n) over (partition by id order by {it}) from a",
    "lateral": "select * from a, lateral (select {it} as v)",
    "lateral view": "select * from a lateral view explode(array({it})) e as v",
    "table function": "select * from explode(array({it}))",
    "values": "select * from values ({it}) as v(x)",
    "group": "select count(*) from a group by {it}",
    "grouping set": "select count(*) from a group by grouping sets (({it}), ())",
    "having": "select id from a group by id having max({it}) is null",
    "order": "select id from a order by {it}",
    "filter": "select count(*) filter (where {it} is null) from a",
    "case": "select case when true then {it} end from a",
    "lambda": "select transform(array(1), x -> {it}) from a",
    "limit": "select id from a limit length({it})",
    "pipe": "from a |> where {it} is null",
    "pivot": "select * from a pivot (max({it}) for id in ('1'))",
    "unpivot": "select * from (select {it} as v, id from a) unpivot (x for k in (v))",
    "hint": "select /*+ repartition(1) */ {it} from a",
    "distribute": "select id from a distribute by {it}",
}

STATEMENTS = [
    "insert into a values ('x', 1)", "create table x as select 1", "create temporary view v as select 1", "drop view a",
    "create function f as 'java.lang.String'", "create temporary function f() returns int return 1",
    "set spark.sql.ansi.enabled = false", "set x", "reset", "declare variable x int", "set variable x = 1",
    "show tables",
    "show functions", "describe a", "describe function reflect", "cache table a", "uncache table a", "refresh table a",
    "refresh '{file}'", "explain select 1", "select 1; select 2", "begin select 1; end", "execute immediate 'select 1'",
    "call strand.system.expire_snapshots('a')", "add jar '{file}'", "add file '{file}'", "list jars",
    "load data inpath '{file}' into table a", "analyze table a compute statistics", "msck repair table a",
    "insert overwrite directory '{file}' using csv select 1", "insert overwrite local directory '{file}' select 1",
    "select transform(id) using 'cat' from a", "from a select transform(id) using 'sh -c id' as (x)",
    "from a insert into b select id, n", "merge into a using b on a.id = b.id when matched then delete",
    "delete from a", "update a set n = 1", "truncate table a", "alter table a add column x int", "use strand.lake",
    "create table t using csv options (path '{file}')", "with x as (select 1) insert into a select * from x",
    "select * from a watermark id delay of interval 1 minute", "selec 1", "",
]  # fmt: skip

ALLOWED = [
    "select id, n + 1 as k, -n, upper(id), cast(n as string), n::int, id like '1%', n between 1 and 2 from a",
    "select n in (1, 2), n not in (3) from a",
    "select case when n > 10 then 'a' else 'b' end, case n when 1 then 2 end, n is null, not true, id || 'x' from a",
    "select count(*), count(distinct n), count(*) filter (where n > 10), sum(n) from a",
    "select date '2020-01-01' + interval 1 day, extract(year from current_date), trim(both ' ' from id) from a",
    "select transform(array(1, 2), x -> x + 1), aggregate(array(1, 2), 0, (x, y) -> x + y), map('a', 1)['a']",
    "select sum(n) over w, max(n) over (partition by id order by n rows between 1 preceding and current row) from a "
    "window w as (partition by id order by n)",
    "with x as (select 1 as k), y(j) as (select 2) select * from x cross join y",
    "with recursive r as (select 1 as i union all select i + 1 from r where i < 5) select * from r",
    "select * from a left join b using (id) order by n desc nulls last limit 3 offset 0",
    "select * from a, lateral (select n + 1 as k)",
    "select * from a lateral view explode(array(1, 2)) e as c",
    "select * from range(3)", "select * from explode(array(1, 2))",
    "select * from (select id, n from a) pivot (sum(n) for id in ('1' as x, '2' as y))",
    "select * from (select 1 as p, 2 as q) unpivot (v for k in (p, q))",
    "values (1, 'a'), (2, 'b')", "select * from values (1), (2) as v(x)", "table a", "from a select id",
    "from a |> where n > 1 |> aggregate count(*) as c group by id |> order by c",
    "select /*+ broadcast(b) */ a.id from a join b on a.id = b.id",
    "select id from a union select id from b except select '9' intersect select '1'",
    "select id, count(*) from a group by all having count(*) > 0 order by all",
    "select id, n from a group by grouping sets ((id), (n), ())", "select id, n, count(*) from a group by cube(id, n)",
    "select id, count(*) from a group by rollup(id)", "select * except (n) from a",
    "select id from a where n > (select min(n) from a) and exists (select 1 from b) and id in (select id from a)",
    "select * from a tablesample (100 percent)", "select _seq, _actor from a",
    "select id from a distribute by id sort by n",
    "select from_json('{{\"x\": 1}}', 'x int').x, to_json(struct(1 as k)), from_csv('1', 'x int').x",
    "select schema_of_json('1')",
    "select listagg(id, ',') within group (order by id), percentile_cont(0.5) within group (order by n) from a",
    "select try_cast(id as int), current_timestamp() is not null, rand() < 2, id rlike '1' from a",
    "select id ilike any ('1', '2') from a",
    "select distinct first_value(n) ignore nulls over (partition by id) from a",
    "select (id, n).id, array(1, 2)[0] from a",
]  # fmt: skip


def tried(lake: Lake, query: str) -> Any:
    """What a query gets: what Spark's analysis leaves of it, or the error. No job is run."""
    view, session = lake.view(), lake.spark
    try:
        named = check_parsed(session, query, view.relations)
        for name in named:
            view.spark(name).createOrReplaceTempView(f"`{name}`")
        frame = session.sql(query)
        check_analysed(frame._jdf.queryExecution().analyzed(), named)
    except StrandError as error:
        return error
    except Exception as error:  # Spark's own refusal, which `spark_sql` puts into our words
        return BadRequest(str(error).splitlines()[0])
    return frame


def escapes(lake: Lake, things: list[str], places: dict[str, str]) -> tuple[int, list[str]]:
    """How many queries were tried, and those that were let through.

    In most runs each thing stands in every third place, so that each place is met by many of them.
    """
    file = lake.root.parent / "secret.csv"
    through, count = [], 0
    for number, thing in enumerate(things):
        for query in slices.share(places.values(), 3, shift=number):
            text = query.format(it=thing.format(file=file))
            count += 1
            if not isinstance(tried(lake, text), StrandError):
                through.append(text)
    return count, through


def test_f85_no_relation_but_the_lakes_is_read_wherever_it_stands(lake: Lake) -> None:
    """Files by path, catalogs, metadata tables, time travel, options, table functions; in every clause."""
    count, through = escapes(lake, RELATIONS, RELATION_PLACES)
    assert through == []
    assert count >= 200


def test_f85_no_expression_reaches_out_of_the_lake_wherever_it_stands(lake: Lake) -> None:
    """Reflection, the process and its user, names by expressions, files as arguments; in every clause."""
    count, through = escapes(lake, EXPRESSIONS, EXPRESSION_PLACES)
    used = {place: query for place, query in EXPRESSION_PLACES.items() if place != "unused window"}
    more, names_through = escapes(lake, NAMES, used)
    assert through + names_through == []
    assert count + more >= 200


def test_f85_only_a_single_query_is_run(lake: Lake) -> None:
    _, through = escapes(lake, STATEMENTS, {"alone": "{it}"})
    assert through == []


def test_f85_each_wall_holds_alone(lake: Lake) -> None:
    """The analysed plan is refused where the first wall had a hole, and the parsed one before Spark resolves a name."""
    session, file = lake.spark, lake.root.parent / "secret.csv"
    for query in (
        f"select * from text.`{file}`",
        f"select 1 from range(1) window w as (order by (select max(value) from text.`{file}`))",
        "select reflect('java.lang.System', 'getenv', 'HOME')",
        "select sum(id) over w from range(2) window w as (order by reflect('java.lang.System', 'getenv', 'HOME'))",
        "select version(), current_user(), input_file_name()",
    ):
        with pytest.raises(Unsupported):
            check_parsed(session, query.replace(f"text.`{file}`", "no_such_function(1)"), [])
        if "window w" not in query or "over w" in query:  # a window that no column uses is dropped when it is analysed
            with pytest.raises(Unsupported):
                check_analysed(session.sql(query)._jdf.queryExecution().analyzed(), [])


def test_f85_queries_of_the_lake_pass_both_walls(lake: Lake) -> None:
    """The wall is not simply shut."""
    refused = {query: str(error) for query in ALLOWED if isinstance(error := tried(lake, query.format()), StrandError)}
    assert refused == {}


def limited(view: View, **limits: Any) -> View:
    """A view with other limits."""
    view.limits = replace(QueryConfig(), **limits)
    return view


def test_f87_spark_queries_have_an_end(lake: Lake) -> None:
    """A limit of time cancels the job, and a limit of rows the answer; the session goes on."""
    with pytest.raises(TooLarge, match="longer than 2 s"):
        view = limited(lake.view(), time_s=2.0)
        spark_sql(view, lake.spark, "select sum(l.id * r.id) from range(4000000000) l, range(4000000000) r")
    view = limited(lake.view(), rows=5)
    with pytest.raises(TooLarge, match="more than 5 rows"):
        spark_sql(view, lake.spark, "select * from range(6)")
    assert spark_sql(view, lake.spark, "select sum(n) as s from a") == (["s"], [(30,)])


STUCK = "select repeat('a', 2000000000)"
"""It is computed while it is planned, and runs out of memory in a thread whose answer is then waited for in vain."""


def test_f87_a_query_that_spark_never_answers_is_given_up_and_the_session_goes_on(lake: Lake) -> None:
    """There is no job to cancel; whoever asked is told all the same."""
    with pytest.raises(TooLarge) as ended:
        spark_sql(limited(lake.view(), time_s=2.0), lake.spark, STUCK)
    assert ended.value.detail["limit"] == "time"
    assert spark_sql(limited(lake.view()), lake.spark, "select sum(n) as s from a") == (["s"], [(30,)])


def test_f87_a_spark_that_does_not_listen_holds_nobody_up(lake: Lake) -> None:
    """Whoever asks says no word to the JVM, which may collect garbage for minutes. Here it is stopped for a while."""
    jvm = lake.spark.sparkContext._gateway.proc.pid
    view, session = limited(lake.view(), time_s=0.5), lake.spark
    awake = threading.Timer(20.0, os.kill, (jvm, signal.SIGCONT))
    awake.start()
    os.kill(jvm, signal.SIGSTOP)
    try:
        with pytest.raises(TooLarge, match="longer than"):
            spark_sql(view, session, "select 1")
        assert awake.is_alive()  # it was told while the JVM is still stopped
    finally:
        awake.cancel()
        os.kill(jvm, signal.SIGCONT)
    assert spark_sql(limited(lake.view()), session, "select sum(n) as s from a") == (["s"], [(30,)])


SHUFFLING = "select count(*) from (select id, count(*) from range(0, 100000000000, 1, 100000) group by id)"
"""It never ends, and its first tasks write files."""


@pytest.mark.parametrize(
    ("what", "time_s", "limit"),
    [(signal.SIGSTOP, 10, "time"), (signal.SIGKILL, 300, "memory")],
    ids=["stopped", "dead"],
)
def test_f87_the_command_ends_a_query_whatever_spark_does_and_leaves_no_jvm(
    lake: Lake, tmp_path: Path, what: signal.Signals, time_s: int, limit: str
) -> None:
    """A JVM that is stopped in the middle of a query hears nothing: neither a cancelled job, nor that we are gone.

    One that has no memory left may end itself.
    """
    limits = {"STRAND_QUERY_TIME": f"{time_s}s", "STRAND_LAKE": str(lake.root), "TMPDIR": str(tmp_path)}
    line = command("sql", "--engine", "spark", SHUFFLING, "--json")
    with subprocess.Popen(line, env=environment(**limits), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        while running.poll() is None and not list(tmp_path.glob("*/blockmgr-*/*/shuffle_*")):
            time.sleep(0.1)
        for jvm in processes_in(tmp_path):
            os.kill(jvm, what)
        try:
            out, err = running.communicate(timeout=120)
        finally:
            running.kill()
            left = processes_in(tmp_path)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
    error = json.loads(out)["error"]
    assert (running.returncode, error["code"], error["detail"].get("limit")) == (3, "too_large", limit), (out, err)
    assert b"Traceback" not in err
    assert (left, list(tmp_path.iterdir())) == (set(), [])


def processes_in(folder: Path) -> set[int]:
    """Those that have a folder in their command line: a JVM has its folder for working files there."""
    return {int(file.parent.name) for file in Path("/proc").glob("[0-9]*/cmdline") if str(folder) in _content(file)}


def _content(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""


def test_f87_a_query_that_was_given_up_takes_no_table_from_the_next(lake: Lake) -> None:
    """Both have a view of the same name in the session; the one that nobody waits for leaves it alone."""
    session, view = lake.spark, lake.view()
    view.spark("a").createOrReplaceTempView("a")
    given_up = threading.Event()
    given_up.set()
    assert _answer(view, session, "select id from a", given_up).num_rows == 2
    assert session.catalog.tableExists("a")
    assert spark_sql(view, session, "select count(*) as c from a") == (["c"], [(2,)])


def test_f85_a_query_leaves_no_view_behind(lake: Lake) -> None:
    """Another lake's query in the same session does not see its tables."""
    spark_sql(lake.view(), lake.spark, "select id from a")
    assert not lake.spark.catalog.tableExists("a")
