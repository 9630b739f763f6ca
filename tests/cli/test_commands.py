"""What each command prints, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
import zstandard
from pyarrow import ipc, parquet

from strandline.cli.session import hoist
from strandline.lake import Lake
from tests.cli.conftest import Strand, call, command, environment, lines, process
from tests.kit import in_ledger, read_only_fingerprint


def test_the_first_steps_of_the_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Init, a table, a row, a query: the lake is found upwards from where one stands."""
    monkeypatch.delenv("STRAND_LAKE", raising=False)
    made = call("init", tmp_path / "lake", "--json")
    assert made.json["lake"] == str(tmp_path / "lake")
    assert set(made.json) == {"lake", "ledger", "warehouse"}
    inside = tmp_path / "lake" / "deeper"
    inside.mkdir()
    monkeypatch.chdir(inside)
    created = call("table", "create", "messages", "--columns", "id:string,body:string?", "--row-key", "id", "--json")
    assert (created.json["table"], created.json["row_key"], created.json["partition_by"]) == ("messages", ["id"], [])
    assert created.json["columns"][1] == {"name": "body", "type": "string", "nullable": True}
    stored = call("append", "messages", stdin=lines({"id": "1", "body": "hello"}))
    assert stored.out.startswith("Stored 1 row in messages")
    asked = call("sql", "select * from messages", "--json")
    assert asked.json == {"columns": ["id", "body"], "rows": [{"id": "1", "body": "hello"}]}


@pytest.mark.parametrize("place", range(4))
def test_flags_of_every_command_are_taken_anywhere(root: Path, place: int) -> None:
    line = ["sql", "select 1 as one", "--format", "json"]
    line[place:place] = ["--json", "-q"] if place != 3 else ["--json"]
    if place == 3:
        line = ["sql", "select 1 as one", "--json", "--lake", str(root), "--format", "json"]
    assert call(*line).json["rows"] == [{"one": 1}]


def test_flags_after_two_dashes_are_arguments() -> None:
    session, rest = hoist(["sql", "--json", "--lake=/x", "--", "--debug"])
    assert (session.json, session.lake, session.debug) == (True, "/x", False)
    assert rest == ["sql", "--", "--debug"]


def test_table_create_takes_an_iceberg_schema(strand: Strand, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    fields = [
        {"id": 1, "name": "id", "type": "string", "required": True},
        {"id": 2, "name": "tags", "required": False,
         "type": {"type": "list", "element-id": 3, "element": "string", "element-required": False}},
    ]  # fmt: skip
    file.write_text(json.dumps({"type": "struct", "fields": fields}))
    made = strand("table", "create", "t", "--schema", file, "--json").json
    assert [column["name"] for column in made["columns"]] == ["id", "tags"]
    shown = strand("table", "show", "t", "--json").json
    file.write_text(json.dumps(shown["columns"]))
    assert strand("table", "create", "t2", "--schema", file, "--json").json["columns"] == made["columns"]


def test_table_list_and_show(strand: Strand) -> None:
    (listed,) = strand("table", "list", "--json").json
    assert (listed["table"], listed["rows"]["tail"], listed["rows"]["log"]) == ("messages", 3, 0)
    shown = strand("table", "show", "MESSAGES", "--json").json
    assert (shown["last_seq"], shown["stable_seq"], shown["snapshots"]) == (4, 1, [])
    assert "3 in the tail" in strand("table", "show", "messages").out
    assert "messages" in strand("table", "list").out


ROWS = [{"id": f"new{n}", "n": n, "body": "ümlaut"} for n in range(5)]


def write_rows(folder: Path, kind: str) -> Path:
    """The same five rows in a format."""
    file = folder / f"rows.{kind}"
    data = pa.Table.from_pylist(ROWS)
    match kind:
        case "parquet":
            parquet.write_table(data, file)
        case "arrow":
            with ipc.new_file(file, data.schema) as writer:
                writer.write_table(data)
        case "stream":
            with ipc.new_stream(file, data.schema) as writer:
                writer.write_table(data)
        case "jsonl":
            file.write_bytes(b"\xef\xbb\xbf" + lines(*ROWS[:2]) + b"\n\r\n" + lines(*ROWS[2:]).rstrip())
        case "jsonl.gz":
            file.write_bytes(__import__("gzip").compress(lines(*ROWS)))
        case "jsonl.zst":
            file.write_bytes(zstandard.compress(lines(*ROWS[:2])) + zstandard.compress(lines(*ROWS[2:])))
    return file


@pytest.mark.parametrize("way", ["file", "stdin", "pipe"])
@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow", "stream"])
def test_append_takes_every_format(root: Path, tmp_path: Path, kind: str, way: str) -> None:
    file = write_rows(tmp_path, kind)
    if way == "file":
        ran = call("append", "messages", file, "--json")
    elif way == "stdin":
        ran = call("append", "messages", "-", "--json", stdin=file.read_bytes())
    else:
        done = process("append", "messages", "--json", stdin=file.read_bytes())
        ran = type(call("version"))(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert ran.code == 0, ran
    assert ran.json == {"rows": 5, "first_seq": 5, "last_seq": 9, "repeated": False, "too_old": 0}
    found = call("sql", "select id, n, body from messages where id like 'new%' order by n", "--json").json["rows"]
    assert found == ROWS


def test_append_names_its_actor_and_repeats_nothing(strand: Strand) -> None:
    arguments = ("append", "messages", "--actor", "ann", "--idempotency-key", "k", "--json")
    first = strand(*arguments, stdin=lines({"id": "k1"})).json
    again = strand(*arguments, stdin=lines({"id": "k1"})).json
    assert again == {**first, "repeated": True}
    other = strand(*arguments, stdin=lines({"id": "k2"}))
    assert (other.code, other.error["detail"]["kind"]) == (4, "key_exists")
    assert strand("sql", "select _actor from messages where id = 'k1'", "--json").json["rows"] == [{"_actor": "ann"}]


def test_sql_formats(strand: Strand) -> None:
    query = (
        "select id, n, null as nothing, 1.50::decimal(4,2) as d, timestamptz '2026-01-01 00:00:00+00' as t, "
        "[1, 2] as l from messages order by id limit 2"
    )
    document = strand("sql", query, "--json").json
    assert document["columns"] == ["id", "n", "nothing", "d", "t", "l"]
    first = document["rows"][0]
    assert first == {"id": "0", "n": 0, "nothing": None, "d": 1.5, "t": "2026-01-01T00:00:00.000000Z", "l": [1, 2]}
    by_line = [json.loads(line) for line in strand("sql", query, "--format", "jsonl").out.splitlines()]
    assert by_line == document["rows"]
    read = list(csv.DictReader(io.StringIO(strand("sql", query, "--format", "csv").out)))
    assert read[1] == {
        "id": "1",
        "n": "1",
        "nothing": "",
        "d": "1.50",
        "t": "2026-01-01T00:00:00.000000Z",
        "l": "[1,2]",
    }
    table = strand("sql", query).out.splitlines()
    assert table[0].split() == ["id", "n", "nothing", "d", "t", "l"]
    assert len(table) == 4


def test_sql_says_what_json_can_not(strand: Strand) -> None:
    """Integers beyond 64 bits, NaN, bytes, and two columns of one name."""
    query = "select 170141183460469231731687303715884105727::hugeint as big, 'nan'::double as nan, 'a'::blob as b"
    row = strand("sql", query, "--json").json["rows"][0]
    assert row == {"big": 2**127 - 1, "nan": None, "b": "YQ=="}
    (row,) = strand("sql", "select 1 as x, 2 as x", "--json").json["rows"]
    assert list(row.values()) == [1, 2]


def test_rows_can_not_control_the_terminal(strand: Strand) -> None:
    strand("append", "messages", stdin=lines({"id": "evil", "body": "\x1b[31mred\nnext"}))
    out = strand("sql", "select body from messages where id = 'evil'").out
    assert "\x1b" not in out
    assert "\\x1b[31mred\\nnext" in out


def test_tail_shows_the_last_ten_or_everything_since(strand: Strand) -> None:
    strand("append", "messages", stdin=lines(*({"id": f"t{n}"} for n in range(20))))
    last = [json.loads(line) for line in strand("tail", "messages").out.splitlines()]
    assert [row["id"] for row in last] == [f"t{n}" for n in range(10, 20)]
    assert {"_seq", "_at", "_actor"} <= set(last[0])
    since = [json.loads(line) for line in strand("tail", "messages", "--since", "4", "--json").out.splitlines()]
    assert [row["_seq"] for row in since] == list(range(5, 25))


def test_tail_follow_prints_each_row_once(root: Path) -> None:
    """Rows appended while it runs appear, in order, and SIGINT ends it with 130."""
    child = subprocess.Popen(
        command("tail", "messages", "--since", "0", "--follow"), env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    seen = [json.loads(child.stdout.readline())["id"] for _ in range(3)]
    with Lake(root) as lake:
        for n in range(5):
            lake.append("messages", [{"id": f"live{n}"}, {"id": "0"}])  # the second is a duplicate, and never shown
            time.sleep(0.3)
    seen += [json.loads(child.stdout.readline())["id"] for _ in range(5)]
    child.send_signal(2)
    rest, _ = child.communicate(timeout=30)
    assert (child.returncode, rest) == (130, "")
    assert seen == ["0", "1", "2", *(f"live{n}" for n in range(5))]


def test_export_of_one_table_is_its_rows(strand: Strand, tmp_path: Path) -> None:
    out = strand("export", "--tables", "messages").out
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["id"] for row in rows] == ["0", "1", "2"]
    assert not any(key.startswith("_") for key in rows[0])
    file = tmp_path / "out.jsonl"
    done = strand("export", "-o", file, "--json").json
    assert done == {"file": str(file), "tables": [{"table": "messages", "rows": 3}]}
    assert file.read_text() == out
    strand("table", "create", "copy", "--columns", "id:string,n:long?,small:int?,x:double?,ts:timestamp?,body:string?")
    assert strand("append", "copy", file, "--json").json["rows"] == 3


def test_export_of_several_tables_names_each(strand: Strand) -> None:
    strand("table", "create", "other", "--columns", "a:long", "--unknown-fields", "json")
    strand("append", "other", stdin=lines({"a": 1, "more": {"b": [2]}}))
    out = strand("export").out.splitlines()
    assert out[0].startswith('{"_table":"messages","id":"0"')
    assert json.loads(out[-1]) == {"_table": "other", "a": 1, "more": {"b": [2]}}
    assert json.loads(strand("export", "--tables", "other").out) == {"a": 1, "more": {"b": [2]}}


def test_export_as_arrow(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.arrow"
    assert call("export", "--tables", "messages", "--format", "arrow", "-o", file).code == 0
    assert ipc.open_stream(file.read_bytes()).read_all().column("id").to_pylist() == ["0", "1", "2"]
    done = process("export", "--format", "arrow")
    assert ipc.open_stream(done.stdout).read_all().num_rows == 3
    call("table", "create", "other", "--columns", "a:long")
    assert call("export", "--format", "arrow").code == 3


def test_an_export_that_fails_leaves_no_file(strand: Strand, tmp_path: Path) -> None:
    assert strand("export", "-o", tmp_path / "no" / "such" / "x.jsonl").code == 3
    assert strand("export", "-o", tmp_path).code == 3
    assert not list(tmp_path.glob("**/*.partial"))


def test_commands_that_read_change_no_byte(root: Path, strand: Strand) -> None:
    before = read_only_fingerprint(root)
    for arguments in (
        ["sql", "select * from messages"], ["tail", "messages"], ["table", "list"], ["table", "show", "messages"],
        ["status"],
        ["audit"], ["doctor"], ["doctor", "--deep"], ["export"], ["recover", "--dry-run"], ["quarantine", "list"],
    ):  # fmt: skip
        assert strand(*arguments).code == 0, arguments
    assert read_only_fingerprint(root) == before


def test_every_command_prints_one_json_document(strand: Strand) -> None:
    for arguments in (
        ["status"], ["audit"], ["doctor"], ["version"], ["table", "list"], ["table", "show", "messages"], ["recover"],
        ["quarantine", "list"], ["doctor", "--failpoints"], ["sql", "select 1"], ["append", "messages"],
    ):  # fmt: skip
        ran = strand(*arguments, "--json")
        assert ran.code == 0, ran
        json.loads(ran.out)
        assert ran.out.count("\n") == 1, arguments


def test_quiet_says_nothing_but_the_answer(strand: Strand) -> None:
    ran = strand("append", "messages", "-q", stdin=lines({"id": "quiet"}))
    assert (ran.code, ran.out, ran.err) == (0, "Stored 1 row in messages, seqs 5..5.\n", "")


def test_version_names_what_it_stands_on(strand: Strand) -> None:
    document = strand("version", "--json").json
    assert set(document) == {"strandline", "python", "spark", "iceberg", "duckdb", "formats"}
    assert document["formats"] == {"ledger": 2, "intent": 2}


def test_a_closed_pipe_ends_quietly(root: Path) -> None:
    """As `strand sql … | head` does, when head has had enough."""
    child = subprocess.Popen(
        command("sql", "select range from range(300000)", "--format", "jsonl"),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(timeout=30) == 0


@pytest.mark.parametrize("arguments", [["sql", "select count(*) from messages"], ["append", "messages"]])
def test_append_and_sql_never_import_pyspark(root: Path, arguments: list[str]) -> None:
    code = (
        "import sys; from strandline.cli.main import run; code = run(sys.argv[1:], own_process=True);"
        "slow = ('pyspark', 'py4j', 'pyiceberg', 'structlog', 'rich', 'pandas');"
        "print([name for name in slow if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=lines({"id": "x"}),
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[-1] == "[]"


def test_help_of_every_command_has_an_example(strand: Strand) -> None:
    from strandline.cli.app import app

    names = [[str(command.name)] for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names += [[str(group.name), str(command.name)] for command in group.typer_instance.registered_commands]
    assert len(names) == 69
    for name in names:
        ran = strand(*name, "--help")
        assert ran.code == 0
        assert f"Example: {'echo' if name == ['append'] else 'strand ' + ' '.join(name)}" in ran.out, name


def test_the_shell_completes_commands_and_tables(root: Path) -> None:
    def complete(line: str) -> list[str]:
        words = line.split(" ")
        env = {"_STRAND_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        return process(env=env).stdout.decode().split()

    assert complete("strand st") == ["status"]
    assert complete("strand tail mes") == ["messages"]
    assert complete("strand flush ") == ["messages"]
    assert complete("strand tail nothing") == []
    assert complete(f"strand --lake {root.parent} tail mes") == [], "no lake there, and no complaint"
    shown = process("--show-completion", "bash", env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert b"_STRAND_COMPLETE" in shown.stdout


# -- what is damaged ---------------------------------------------------------------------------------------------------


def damage(root: Path) -> str:
    """Change a byte in the middle of the first batch's payload, behind everybody's back; returns the batch's id."""
    (batch, payload), *_ = in_ledger(root, "SELECT batch_id, payload FROM batches ORDER BY first_seq")
    broken = bytearray(payload)
    broken[len(broken) // 2] ^= 0xFF
    in_ledger(root, "UPDATE batches SET payload = :payload WHERE batch_id = :batch", payload=bytes(broken), batch=batch)
    return str(batch)


def test_a_damaged_batch_is_a_warning_in_every_read(root: Path, strand: Strand) -> None:
    batch = damage(root)
    strand("append", "messages", stdin=lines({"id": "good"}))
    ran = strand("sql", "select id from messages", "--json")
    assert ran.json["rows"] == [{"id": "good"}]
    assert batch in ran.json["warnings"][0]
    plain = strand("sql", "select id from messages")
    assert plain.err.startswith("warning: table 'messages': batch")


def test_doctor_finds_it_sets_it_aside_and_the_rows_come_back(root: Path, strand: Strand, tmp_path: Path) -> None:
    """The whole way: doctor, doctor --fix, quarantine save, repair, restore."""
    batch = damage(root)
    ran = strand("doctor", "--json")
    assert (ran.code, ran.json["ok"]) == (6, False)
    (finding,) = [found for found in ran.json["findings"] if found["severity"] == "error"]
    assert batch in finding["what"]
    assert {"kind", "about", "what", "since", "meaning", "fix", "severity"} == set(finding)
    fixed = strand("doctor", "--fix", "--json")
    assert fixed.code == 6, "rows in quarantine still need a person"
    assert any(batch in text for text in fixed.json["fixed"])
    (entry,) = strand("quarantine", "list", "--json").json
    assert (entry["batch"], entry["table"], entry["rows"]) == (batch, "messages", 3)
    assert strand("status", "--json").json["tables"][0]["rows"]["quarantined"] == 3
    saved = tmp_path / "batch.arrow"
    assert strand("quarantine", "save", batch, saved, "--json").json["size_bytes"] == entry["size_bytes"]
    broken = bytearray(saved.read_bytes())
    broken[len(broken) // 2] ^= 0xFF
    saved.write_bytes(bytes(broken))
    restored = strand("quarantine", "restore", batch, saved, "--json")
    assert restored.code == 0, restored
    assert (restored.json["rows"], restored.json["first_seq"]) == (3, 5)
    assert strand("quarantine", "list", "--json").json == []
    assert strand("doctor").code == 0
    assert strand("sql", "select id from messages order by _seq", "--format", "csv").out == "id\n0\n1\n2\n"


def test_a_batch_can_be_given_up(root: Path, strand: Strand) -> None:
    batch = damage(root)
    strand("doctor", "--fix")
    assert strand("quarantine", "discard", "nothing").code == 3
    assert strand("quarantine", "discard", batch, "--actor", "ann", "--json").json == {"batch": batch, "rows": 3}
    entry, set_aside = strand("audit", "--json").json
    assert set_aside["kind"] == "doctor"
    assert (entry["op"], entry["outcome"], entry["actor"]) == (batch, "discarded", "ann")
    assert strand("doctor").code == 0


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE heads SET rows_acked = rows_acked + 1", "are accounted for"),
        ("UPDATE heads SET rows_log = 5, rows_acked = 8", "its files 0"),
        ("UPDATE counter SET last_seq = 2", "above the counter"),
        ("UPDATE heads SET last_seq = 3", "its tail reaches seq 4"),
        ("UPDATE batches SET last_seq = 9", "has seqs"),
        ("UPDATE heads SET refuses = 'because'", "refuses writes: because"),
        ("UPDATE heads SET log_snapshot = 7", "not in the Iceberg catalog"),
        ("DELETE FROM batches", "which is not there"),
    ],
)
def test_doctor_finds_a_ledger_that_disagrees_with_itself(
    root: Path, strand: Strand, statement: str, said: str
) -> None:
    in_ledger(root, statement)
    ran = strand("doctor", "--json")
    assert ran.code == 6
    assert any(said in finding["what"] for finding in ran.json["findings"]), ran.json["findings"]
    assert said in strand("doctor").out


def test_an_unreadable_record_is_found_and_given_up_by_hand(root: Path, strand: Strand) -> None:
    """Reads and appends go on; doctor says what to type; `recover --discard` does it, and the audit knows."""
    columns = "op_id, kind, format, phase, branch_id, actor, owner, created_at_us, body"
    values = "'op1', 'flush', 99, 'staging', branch_id, 'a', '{}', 1, 'x'"
    in_ledger(root, f"INSERT INTO intents ({columns}) SELECT {values} FROM branches")
    in_ledger(root, "INSERT INTO intent_tables SELECT 'op1', branch_id, table_id FROM heads")
    ran = strand("doctor", "--json")
    assert ran.code == 6
    assert any("strand recover --discard op1" in finding["fix"] for finding in ran.json["findings"])
    assert strand("status", "--json").json["unreadable_intents"][0]["op"] == "op1"
    assert "op1" in strand("status").out
    assert strand("append", "messages", stdin=lines({"id": "on"})).code == 0
    assert strand("recover", "--discard", "op2").code == 3
    (done,) = strand("recover", "--discard", "op1", "--actor", "ann", "--json").json
    assert (done["op"], done["outcome"]) == ("op1", "rolled_back")
    assert strand("audit", "--limit", "1", "--json").json[0]["actor"] == "ann"
    assert strand("doctor").code == 0


def test_log_lines_are_json_on_stderr_when_asked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from strandline import logs

    logs.set_format("json")
    try:
        logs.Logger("strandline.test").info("begun", op="o1")
    finally:
        logs.set_format("text")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["op"], line["level"]) == ("begun", "o1", "info")


def test_json_of_a_command_is_valid_for_strict_readers(strand: Strand) -> None:
    for arguments in (["status"], ["table", "show", "messages"]):
        orjson.loads(strand(*arguments, "--json").out)


def test_the_environment_names_the_actor(root: Path) -> None:
    process("append", "messages", stdin=lines({"id": "env"}), env={"STRAND_ACTOR": "from-env"})
    assert call("tail", "messages", "--since", "4").out.count('"_actor":"from-env"') == 1
    assert os.environ["STRAND_LAKE"] == str(root)
