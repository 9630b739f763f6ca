"""Commands that need Spark, and doctor on a lake that has an Iceberg table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from strandline.cli.main import run
from strandline.lake import Lake
from tests import files
from tests.cli.conftest import Strand, command, environment, lines, process
from tests.kit import in_ledger


def test_flush_reports_what_it_moved(root: Path, strand: Strand) -> None:
    strand("append", "messages", stdin=lines({"id": "0"}, {"id": "new"}))
    (flushed,) = strand("flush", "messages", "--json").json
    fields = {
        "table", "branch", "rows", "duplicates_dropped", "flushed_seq", "snapshot_id", "operation",
        "warnings",
    }  # fmt: skip
    assert set(flushed) == fields
    assert (flushed["rows"], flushed["duplicates_dropped"], flushed["flushed_seq"]) == (4, 1, 6)
    assert strand("flush").out == "messages: nothing to flush.\n"
    assert strand("doctor", "--deep").out.endswith("all is well.\n")
    shown = strand("table", "show", "messages", "--json").json
    assert (shown["rows"]["log"], shown["rows"]["tail"], len(shown["snapshots"])) == (4, 0, 1)


def test_a_query_of_a_flushed_table_needs_no_arrow(root: Path, strand: Strand) -> None:
    """The whole process of a small query is quick because it imports little."""
    strand("flush")
    code = (
        "import sys; from strandline.cli.main import run; run(sys.argv[1:], own_process=True);"
        "print([name for name in ('pyarrow', 'numpy', 'pyspark', 'structlog', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "sql", "select count(*) from messages"],
        env=environment(),
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().splitlines()[-1] == "[]"


def test_the_same_query_on_both_engines(strand: Strand) -> None:
    """Half of the rows in Iceberg, half in the tail."""
    strand("flush")
    strand("append", "messages", stdin=lines({"id": "late", "n": 7, "ts": "2026-01-01T00:00:00Z"}))
    for query in (
        "select * from messages order by id",
        "select count(*) as n, max(_seq) as last from messages",
        "with m as (select id from messages where n > 0) select count(*) as c from m",
        "select id, (select count(*) from messages) as c from messages where exists (select 1) order by id",
    ):
        duck = strand("sql", query, "--json", "--engine", "duckdb").json
        assert strand("sql", query, "--json", "--engine", "spark").json == duck, query


@pytest.mark.parametrize(
    "query",
    [
        "insert into messages values ('x', 1, 1, 1.0, null, null)",
        "create table x as select 1",
        "drop view messages",
        "set spark.sql.ansi.enabled = false",
        "show tables",
        "cache table messages",
        "explain select 1",
        "select 1; select 2",
        "select * from parquet.`/etc`",
        "select * from text.`/etc/passwd`",
        "select * from strand.lake.messages",
        "select * from messages where id in (select value from text.`/etc/passwd`)",
        "with p as (select * from text.`/etc/passwd`) select * from p",
        "select * from messages, lateral (select * from text.`/etc/passwd`)",
        "select transform(id) using 'cat' from messages",
        "select reflect('java.lang.System', 'getenv', 'HOME')",
        "select max(java_method('java.lang.System', 'getenv', 'HOME')) from messages",
        "select * from identifier('messages')",
        "execute immediate 'select 1'",
        "begin select 1; end",
        "select * from mesages",
        "selec 1",
        "",
    ],
)
def test_spark_sql_reads_the_lake_alone_too(strand: Strand, query: str) -> None:
    ran = strand("sql", query, "--engine", "spark", "--json")
    assert (ran.code, ran.error["code"] in ("bad_request", "unsupported")) == (3, True), ran


def test_load_reads_an_export_back_and_only_once(strand: Strand, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    strand("export", "--tables", "messages", "-o", file)
    strand("table", "create", "copy", "--columns", "id:string,n:long?,small:int?,x:double?,ts:timestamp?,body:string?")
    loaded = strand("load", "copy", file, "--json")
    assert loaded.code == 0, loaded
    assert {"rows", "first_seq", "last_seq", "commit", "warnings"} <= set(loaded.json)
    assert (loaded.json["rows"], loaded.json["already_loaded"]) == (3, False)
    assert strand("load", "copy", file, "--json").json["already_loaded"]
    assert strand("export", "--tables", "copy").out == file.read_text()


def test_doctor_finds_a_data_file_that_is_gone_or_cut(root: Path, strand: Strand) -> None:
    strand("flush")
    with Lake(root, read_only=True) as lake:
        path = lake.view().files("messages")[0].path
    whole = files.read(path)
    files.write(path, whole[:-1])
    ran = strand("doctor", "--json")
    assert ran.code == 6
    assert f"{len(whole) - 1:,} bytes instead of {len(whole):,}" in ran.json["findings"][0]["what"]
    files.remove(path)
    assert "No such file" in strand("doctor").out
    assert strand("sql", "select * from messages", "--json").error["code"] == "history_gone"


def test_doctor_finds_somebody_elses_commit(root: Path, strand: Strand) -> None:
    strand("flush")
    with Lake(root) as lake:
        lake.spark.sql("DELETE FROM strand.lake.messages WHERE id = '1'")
    ran = strand("doctor", "--json")
    assert ran.code == 6
    assert "was changed from outside" in ran.json["findings"][0]["what"]
    assert strand("sql", "select count(*) as n from messages", "--json").json["rows"] == [{"n": 3}]


def test_doctor_finds_a_pin_that_iceberg_does_not_have(root: Path, strand: Strand) -> None:
    strand("flush")
    in_ledger(root, "UPDATE heads SET log_snapshot = 17")
    findings = strand("doctor", "--json").json["findings"]
    assert any("its pinned snapshot 17 is not in Iceberg" in finding["what"] for finding in findings)


def test_what_a_dead_flush_left_is_shown_and_recovered(
    root: Path, strand: Strand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status and doctor say that it is there, a dry run what would be done, recover does it, and the audit knows."""
    done = process("flush", env={"STRAND_FAILPOINTS": "publish.after_commit=exit"})
    assert done.returncode == 137
    (operation,) = strand("status", "--json").json["operations"]
    assert (operation["phase"], operation["process"], operation["tables"]) == ("published", "gone", ["messages"])
    ran = strand("doctor", "--json")
    assert (ran.code, ran.json["ok"]) == (0, True), "nothing is lost, and nobody is needed"
    assert any(finding["fix"].startswith("`strand recover`") for finding in ran.json["findings"])
    (would,) = strand("recover", "--dry-run", "--json").json
    assert (would["op"], would["outcome"], would["settled"]) == (operation["op"], "rolled_forward", False)
    (recovered,) = strand("recover", "--json").json
    assert (recovered["op"], recovered["settled"]) == (operation["op"], True)
    (entry,) = strand("audit", "--json").json
    assert (entry["op"], entry["outcome"], entry["tables"][0]["table"]) == (
        operation["op"],
        "rolled_forward",
        "messages",
    )
    assert strand("recover").out == "Nothing to recover.\n"
    assert "rolled forward" in strand("audit").out
    assert strand("doctor").out.endswith("all is well.\n")
    assert json.loads(json.dumps(entry)) == entry
    assert run(["version", "-q"]) == 0


@pytest.mark.parametrize("after_s", [0.0, 1.5, 4.5])
def test_sigint_in_the_middle_of_a_flush(root: Path, strand: Strand, after_s: float) -> None:
    """Exit code 130 wherever it is met, no JVM is left behind, and the next flush finishes the work."""
    child = subprocess.Popen(command("flush"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not psutil.Process(child.pid).children():  # from here on it starts its JVM, however busy the machine is
        assert child.poll() is None, child.communicate()
        time.sleep(0.05)
    time.sleep(after_s)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)  # returns when nobody holds the pipes any more, the JVM included
    assert child.returncode in (130, 0), err
    assert b"Traceback" not in err
    assert strand("flush", "--json").code == 0
    assert strand("sql", "select id from messages order by _seq", "--format", "csv").out == "id\n0\n1\n2\n"
    assert strand("doctor").code == 0
