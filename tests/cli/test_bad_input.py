"""Bad input gets a clear error, the right exit code, and changes nothing."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zstandard

from strandline.cli.inputs import _with_head
from strandline.ledger.database.schema import FORMAT
from tests.cli.conftest import Strand, call, command, content, environment, lines
from tests.kit import in_ledger

pytestmark = pytest.mark.usefixtures("unchanged")


def test_an_unknown_table_suggests_the_nearest(strand: Strand) -> None:
    for arguments in (
        ["append", "mesages"],
        ["sql", "select * from mesages"],
        ["tail", "mesages"],
        ["flush", "mesages"],
    ):
        ran = strand(*arguments, stdin=lines({"id": "a"}))
        assert ran.code == 3, arguments
        assert ran.out == ""
        assert ran.err.splitlines()[0].startswith(("error[not_found]: ", "error[bad_request]: "))
        assert "Did you mean 'messages'?" in ran.err


def test_an_unknown_column_suggests_the_nearest(strand: Strand) -> None:
    ran = strand("append", "messages", "--json", stdin=lines({"id": "a", "boddy": "b"}))
    assert (ran.code, ran.error["code"]) == (3, "invalid_rows")
    assert ran.error["detail"]["rows"][0]["field"] == "boddy"
    assert "Did you mean 'body'?" in ran.error["message"]


def test_a_wrong_type_in_row_17_is_named_with_field_value_and_reason(strand: Strand, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(lines(*({"id": str(n), "n": "many" if n == 17 else n} for n in range(30))))
    ran = strand("append", "messages", file, "--json")
    assert ran.code == 3
    (bad,) = ran.error["detail"]["rows"]
    assert (bad["index"], bad["field"]) == (17, "n")
    assert "many" in bad["value"]
    assert bad["reason"]


def test_all_bad_rows_up_to_20_are_listed(strand: Strand) -> None:
    ran = strand("append", "messages", "--json", stdin=lines(*({"id": str(n), "n": "x"} for n in range(30))))
    assert [row["index"] for row in ran.error["detail"]["rows"]] == list(range(20))
    assert ran.error["detail"]["bad"] == 30
    ran = strand("append", "messages", stdin=lines(*({"id": str(n), "n": "x"} for n in range(30))))
    assert ran.err.count("line ") == 20
    assert "  … and 10 more (--all lists them)" in ran.err
    ran = strand("append", "messages", "--all", stdin=lines(*({"id": str(n), "n": "x"} for n in range(30))))
    assert ran.err.count("line ") == 30 and "more (--all" not in ran.err


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (b'{"id": "a", "x": NaN}', ""),
        (b'{"id": "a", "small": 3000000000}', "small"),
        (b'{"id": "a", "n": 9223372036854775808}', "n"),
        (b'{"id": "a", "body": "\xff\xfe"}', ""),
        (b'{"id": "a", "ts": "2026-01-01T00:00:00"}', "ts"),
        (b'{"id": "a", "bod', ""),
        (b'["id", "a"]', ""),
        (b'{"n": 1}', "id"),
        (b'{"id": "a", "_seq": 7}', "_seq"),
    ],
)
def test_a_bad_value_is_refused(strand: Strand, row: bytes, field: str) -> None:
    """NaN, integers out of range, not UTF-8, a time without zone, cut-off JSON, no object, no key, our own column."""
    ran = strand("append", "messages", "--json", stdin=b'{"id": "good"}\n' + row)
    assert (ran.code, ran.error["code"]) == (3, "invalid_rows"), ran
    (bad,) = ran.error["detail"]["rows"]
    assert (bad["index"], bad["field"]) == (1, field)


@pytest.mark.parametrize("command", ["append", "load"])
def test_a_file_that_is_not_there(strand: Strand, command: str) -> None:
    ran = strand(command, "messages", "/no/such/file.jsonl", "--json")
    assert (ran.code, ran.error["code"]) == (3, "not_found")
    assert "/no/such/file.jsonl" in ran.error["message"]


def test_a_folder_is_no_file(strand: Strand, tmp_path: Path) -> None:
    ran = strand("append", "messages", tmp_path)
    assert (ran.code, ran.err.split(":")[0]) == (3, "error[bad_request]")


def test_an_empty_file_is_fine(strand: Strand, tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.touch()
    for arguments in ([file], ["-"], []):
        ran = strand("append", "messages", *arguments, "--json")
        assert ran.code == 0
        assert ran.json == {"rows": 0, "first_seq": None, "last_seq": None, "repeated": False, "too_old": 0}


def test_a_line_of_65_mib_is_named(strand: Strand, tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_bytes(b'{"id": "1"}\n{"id": "2", "body": "' + b"x" * (65 << 20) + b'"}\n')
    ran = strand("append", "messages", file, "--json")
    assert (ran.code, ran.error["code"]) == (3, "too_large")
    assert "line 2" in ran.error["message"]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.feather"])
def test_a_file_that_is_not_what_its_name_says(strand: Strand, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(lines({"id": "a"}))
    ran = strand("append", "messages", file)
    assert (ran.code, ran.err.split(":")[0]) == (3, "error[bad_request]")


@pytest.mark.parametrize("head", [b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"])
def test_a_truncated_file_of_any_format(strand: Strand, tmp_path: Path, head: bytes) -> None:
    file = tmp_path / "rows"
    file.write_bytes(head + b"\x01\x02\x03")
    ran = strand("append", "messages", file)
    assert (ran.code, ran.err.split(":")[0]) == (3, "error[bad_request]"), ran.err


def test_a_gzip_file_that_was_cut_off(strand: Strand, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(lines(*({"id": f"z{n}"} for n in range(1000))))[:-20])
    ran = strand("append", "messages", file)
    assert (ran.code, ran.err.split(":")[0]) == (3, "error[bad_request]")


def test_a_zstd_file_that_was_cut_off(strand: Strand, tmp_path: Path) -> None:
    """The end of the bytes is not the end of the rows."""
    file = tmp_path / "rows.jsonl.zst"
    whole = zstandard.compress(lines(*({"id": f"z{n}", "body": os.urandom(20).hex()} for n in range(10_000))))
    for cut in (len(whole) - 1, len(whole) - 300, len(whole) // 2, 20):
        file.write_bytes(whole[:cut])
        ran = strand("append", "messages", file)
        assert (ran.code, ran.err.split(":")[0]) == (3, "error[bad_request]"), (cut, ran)


def test_csv_is_for_load(strand: Strand, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id\n1\n")
    ran = strand("append", "messages", file)
    assert (ran.code, ran.err.split(":")[0]) == (3, "error[unsupported]")
    assert "strand load" in ran.err


def test_a_lake_of_a_newer_format_is_refused(root: Path, strand: Strand) -> None:
    """By every command, with exit code 6, before anything is written."""

    def set_format(version: int) -> None:
        in_ledger(root, "UPDATE counter SET format = :version", version=version)

    set_format(99)
    try:
        for arguments in (["append", "messages"], ["sql", "select 1"], ["status"], ["doctor"], ["flush"]):
            ran = strand(*arguments, "--json", stdin=lines({"id": "a"}))
            assert (ran.code, ran.error["code"]) == (6, "newer_format"), arguments
    finally:
        set_format(FORMAT)


def test_a_folder_that_is_no_lake(strand: Strand, tmp_path: Path) -> None:
    ran = strand("--lake", tmp_path, "status")
    assert (ran.code, ran.err.split(":")[0]) == (3, "error[not_found]")
    assert "strand init" in ran.err


def test_no_lake_anywhere_upwards(strand: Strand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRAND_LAKE")
    monkeypatch.chdir(tmp_path)
    ran = strand("status")
    assert (ran.code, ran.err.split(":")[0]) == (3, "error[not_found]")


def test_a_second_init_in_the_same_place(root: Path, strand: Strand) -> None:
    ran = strand("init", root, "--json")
    assert (ran.code, ran.error["code"], ran.error["detail"]["kind"]) == (4, "conflict", "lake_exists")


def test_init_refuses_a_folder_with_something_else_in_it(strand: Strand, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    ran = strand("init", tmp_path / "other", "--json")
    assert (ran.code, ran.error["detail"]["kind"]) == (4, "folder_not_empty")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]


def test_java_that_is_missing(root: Path, tmp_path: Path) -> None:
    """A flush says so with exit code 6; the rows stay where they are, and nothing is left under way."""
    launcher = (
        "import sys; from strandline.engines.spark import java; java.USUAL_PLACES = ();"
        "java.find.__defaults__ = (None, ()); from strandline.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    env = {**environment(), "PATH": "", "JAVA_HOME": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [command()[0], "-c", launcher, "flush", "--json"], env=env, capture_output=True, timeout=60, check=False
    )
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (6, "environment"), done.stderr
    assert "java" in error["message"].lower()
    assert call("status", "--json").json["operations"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.parametrize("is_shared", [False, True])
def test_no_write_permission(strand: Strand, is_shared: bool) -> None:
    """Another user may do nothing with a lake, or read one that its owner shows; the error is about permissions."""
    strand("append", "messages")  # whatever it imports is imported now: the other user may not see our Python
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "lake"
        strand("init", root)
        strand("--lake", root, "table", "create", "t", "--columns", "a:long")
        if is_shared:
            for path in (root, *root.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
        answer = Path(folder) / "answer"
        child = os.fork()
        if child == 0:
            os.dup2(os.open(answer, os.O_CREAT | os.O_WRONLY), 1)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            ran = call("--lake", root, "append", "t", "--json", stdin=lines({"a": 1}))
            os.write(1, ran.out.encode())
            os._exit(ran.code)
        _, status = os.waitpid(child, 0)
        error = json.loads(answer.read_text())["error"]
        assert (os.waitstatus_to_exitcode(status), error["code"]) == (6, "environment"), error
        assert "permission" in error["message"].lower()
        assert strand("--lake", root, "sql", "select count(*) as n from t", "--json").json["rows"] == [{"n": 0}]


def test_a_place_where_nothing_can_be_made(strand: Strand) -> None:
    """The kernel's own file system refuses even root."""
    ran = strand("init", "/sys/strandline", "--json")
    assert (ran.code, ran.error["code"]) == (6, "environment")


def test_sigint_in_the_middle_of_an_append(root: Path) -> None:
    """Exit code 130, and nothing of the unfinished call is stored."""
    child = subprocess.Popen(
        command("append", "messages"),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    child.stdin.write(lines(*({"id": f"late{n}"} for n in range(20_000))))
    child.stdin.flush()  # more than a pipe holds: it is being read
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    assert out == b""
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["append"],
        ["append", "messages", "--nope"],
        ["sql", "select 1", "--format", "xml"],
        ["--log-format", "xml", "status"],
        ["tail", "messages", "--since", "x"],
        ["table", "create", "t"],
        ["table", "create", "t", "--columns", "a:long", "--schema", "f.json"],
        ["status", "--lake"],
    ],
)
def test_a_wrong_command_line_is_exit_2(strand: Strand, arguments: list[str]) -> None:
    ran = strand(*arguments)
    assert ran.code == 2, ran
    assert ran.err.startswith("error[usage]: ")
    assert "--help" in ran.err
    assert strand("--json", *arguments).error["code"] == "usage"


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ("a:strng", []),
        ("a", []),
        ("", []),
        ("a:long,a:long", []),
        ("_seq:long", []),
        ("a:long", ["--row-key", "b"]),
        ("a:long", ["--partition-by", "b"]),
        ("a:long", ["--dedupe", "partition"]),
    ],
)
def test_a_table_that_can_not_be(strand: Strand, columns: str, options: list[str]) -> None:
    ran = strand("table", "create", "t", "--columns", columns, *options, "--json")
    assert (ran.code, ran.error["code"]) == (3, "bad_request")
    assert strand("table", "list", "--json").json[0]["table"] == "messages"


def test_a_table_that_exists(strand: Strand) -> None:
    ran = strand("table", "create", "MESSAGES", "--columns", "a:long", "--json")
    assert (ran.code, ran.error["detail"]["kind"]) == (4, "table_exists")


def test_an_unknown_branch(strand: Strand) -> None:
    for arguments in (["sql", "select 1"], ["tail", "messages"], ["export"], ["append", "messages"], ["flush"]):
        ran = strand(*arguments, "--branch", "mian", "--json")
        assert (ran.code, ran.error["code"]) == (3, "not_found"), arguments
        assert "'main'" in ran.error["hint"]


def test_an_unexpected_error_is_a_bug_and_says_so(strand: Strand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 70, one line, and a traceback only for those who ask."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("two plus two")

    monkeypatch.setattr("strandline.reports.status.status", broken)
    ran = strand("status")
    assert (ran.code, ran.err.splitlines()[0]) == (70, "error[internal]: RuntimeError: two plus two")
    assert "Traceback" not in ran.err
    assert "Traceback" in strand("status", "--debug").err


def test_nothing_changed_is_what_these_tests_check(root: Path, strand: Strand) -> None:
    """The check itself sees a row that was added and taken away again by nobody."""
    assert content(root)[-1] == (4,)


@pytest.mark.parametrize("typed", [b"", b"{}", b'{"part_id": "a"}\n' * 3])
def test_one_ctrl_d_ends_what_is_typed(typed: bytes) -> None:
    """A terminal says that it is over once, and would wait for the next one to be typed."""

    class Terminal(io.RawIOBase):
        pieces: ClassVar[list[bytes]] = [typed, b""] if typed else [b""]

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            piece = self.pieces.pop(0)
            buffer[: len(piece)] = piece
            return len(piece)

    _, stream = _with_head(io.BufferedReader(Terminal()))
    assert b"".join(iter(stream.readline, b"")) == typed


@pytest.mark.parametrize(
    "address", ["s3://key:hush-hush@bucket/x.parquet", "https://user:hush-hush@127.0.0.1:9/x.parquet"]
)
def test_f90_an_address_of_files_has_no_password_in_it(strand: Strand, address: str) -> None:
    """It would be in the error of the store, in logs, and in what is remembered of the load."""
    for verb in ("load", "adopt"):
        ran = strand(verb, "messages", address)
        assert ran.code in (2, 3), ran.err
        assert "hush-hush" not in ran.out + ran.err


def test_files_are_read_from_places_that_there_are(strand: Strand) -> None:
    """A scheme that nothing reads is the caller's mistake, and no bug."""
    ran = strand("load", "messages", "https://127.0.0.1:9/x.parquet")
    assert ran.code == 3 and "no files are read from https://" in ran.err
