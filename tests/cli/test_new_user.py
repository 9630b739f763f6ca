"""What a new user reaches for: names instead of ids, queries from files, a way to drop a table, errors that say why."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

import strandline as sl
from strandline.errors import BadRequest, in_our_words
from strandline.lake import Lake
from strandline.ledger.database import dialect
from tests.cli.conftest import Strand, call, command, environment, lines

KEYED = ["table", "create", "person", "--columns", "id:string,age:long?", "--key", "id"]


@pytest.fixture
def people(strand: Strand, tmp_path: Path) -> Strand:
    """A keyed table with a row, and a branch that has changed it."""
    strand(*KEYED)
    file = tmp_path / "people.jsonl"
    file.write_bytes(lines({"id": "a", "age": 1}))
    strand("load", "person", file)
    strand("branch", "create", "try-out")
    file.write_bytes(lines({"id": "a", "age": 2}, {"id": "b", "age": 3}))
    strand("load", "person", file, "--mode", "merge", "--branch", "try-out")
    return strand


def test_show_takes_names_and_shows_the_change(people: Strand) -> None:
    """A branch, a tag, a time or an id: what it changed is shown; of a table it is said what shows that."""
    people("tag", "v1", "try-out")
    by_branch = people("show", "try-out", "--json").json
    assert [(change["kind"], change["key"]) for change in by_branch["changes"]] == [
        ("update", {"id": "a"}),
        ("insert", {"id": "b"}),
    ]
    assert people("show", "v1", "--json").json == by_branch == people("show", by_branch["commit"][:20], "--json").json
    assert "age: 1 → 2" in people("show", "try-out").out
    more = people("show", "try-out", "--limit", "1", "--json").json
    assert (len(more["changes"]), more["more"]) == (1, True)
    refused = people("show", "person")
    assert (refused.code, "`strand table show person`" in refused.err) == (3, True)
    assert people("show", "--json").json["branch"] == "main"


def test_diff_of_one_point_is_against_main(people: Strand) -> None:
    assert people("diff", "try-out").out == people("diff", "main", "try-out").out
    assert "age: 1 → 2" in people("diff", "try-out").out


def test_a_query_comes_from_stdin_or_a_file(strand: Strand, tmp_path: Path) -> None:
    query = "select count(*) from messages"
    (tmp_path / "q.sql").write_text(query)
    answers = [
        strand("sql", query), strand("sql", "-", stdin=query.encode()), strand("sql", "-f", tmp_path / "q.sql"),
        strand("sql", "-f", "-", stdin=query.encode()),
    ]  # fmt: skip
    assert {answer.out for answer in answers} == {"count(*)\n--------\n       3\n"}
    for arguments in ([], [query, "-f", "q.sql"]):
        assert strand("sql", *arguments).code == 2
    assert strand("sql", "-f", tmp_path / "none.sql").code == 3
    assert strand("sql", "-", stdin=b"\xff\xfe").code == 3


def test_a_table_is_dropped(people: Strand) -> None:
    """Of one branch, as a commit; not without a yes, and not where others refer to it."""
    refused = people("table", "drop", "person")
    assert (refused.code, "shown no more: person" in refused.err, "--yes" in refused.err) == (4, True, True)
    done = people("table", "drop", "person", "--yes", "--json").json
    assert (done["dropped"], done["branch"]) == ("person", "main")
    assert [table["table"] for table in people("table", "list", "--json").json] == ["messages"]
    assert people("show", "--json").json["commit"] == done["commit"]
    assert "person" in [table["table"] for table in people("table", "list", "--branch", "try-out", "--json").json]
    assert people("table", "drop", "nobody", "--yes").code == 3


def test_the_name_of_a_dropped_log_table_stays_with_its_past(people: Strand, tmp_path: Path) -> None:
    """It is said why, and what is told of a keyed one works: a document adds it again."""
    people("table", "drop", "messages", "--yes")
    again = people("table", "create", "messages", "--columns", "id:string")
    assert (again.code, "the log table 'messages' was dropped, and its past keeps the name" in again.err) == (4, True)
    assert "schema apply" not in again.err, "that is refused too"
    people("table", "drop", "person", "--yes")
    again = people(*KEYED)
    assert (again.code, "`strand schema apply FILE`" in again.err) == (4, True)
    file = tmp_path / "wanted.json"
    file.write_text('{"tables": {"person": {"key": ["id"], "columns": {"id": "string", "age": "long?"}}}}')
    assert people("schema", "apply", file, "--yes").code == 0
    assert people("sql", "select count(*) as n from person", "--json").json["rows"] == [{"n": 0}]


def test_references_are_listed_by_file_and_line(people: Strand, tmp_path: Path) -> None:
    """JSON lines, with a blank one between, and CSV, whose fields may hold line breaks; --all lists more than 20."""
    edge = "id:string,src:string,note:string?"
    people("table", "create", "knows", "--columns", edge, "--key", "id", "--constraint", "reference(src -> person)")
    file = tmp_path / "knows.jsonl"
    file.write_bytes(
        lines({"id": "e1", "src": "a"}) + b"\n" + lines({"id": "e2", "src": "x"}, {"id": "e3", "src": "y"})
    )
    refused = people("load", "knows", file)
    assert refused.code == 4
    first, second = refused.err.splitlines()[:2]
    assert first == (
        f"error[conflict]: {file}, line 3: knows 'e2', field 'src': 'x' names no row of 'person' (and 1 more)"
    )
    assert second == "  line 4: knows 'e3', field 'src': 'y' names no row of 'person'"
    table = tmp_path / "knows.csv"
    table.write_text('id,src,note\ne1,a,"two\nlines"\n\ne2,x,\n')
    assert f"{table}, line 5: knows 'e2'" in people("load", "knows", table).err
    table.write_text('id,src,note\ne1,a,"two\nlines"\n,x,\n')
    assert f"{table}, line 4, field 'id'" in people("load", "knows", table).err
    file.write_bytes(lines(*({"id": f"e{number}", "src": "x"} for number in range(30))))
    assert "  … and 10 more (--all lists them)" in people("load", "knows", file).err.splitlines()
    assert people("load", "knows", file, "--all").err.count("line ") == 30
    assert len(people("load", "knows", file, "--all", "--json").error["detail"]["violations"]) == 30


def test_an_impossible_place_for_a_lake_needs_a_person(tmp_path: Path) -> None:
    """No folder can be made there, whatever the reason: exit 6, and the place is named."""
    (tmp_path / "file").write_text("")
    for place in ("/proc/nowhere", tmp_path / "file" / "lake", tmp_path / ("x" * 300)):
        refused = call("init", place)
        assert (refused.code, "can't make a lake in" in refused.err) == (6, True), refused


def test_a_read_only_mount_is_named_as_such() -> None:
    """By what the system says of a file, and by what it says of a ledger's file system."""
    error = in_our_words(OSError(errno.EROFS, os.strerror(errno.EROFS), "/mnt/lake/strand.toml"))
    assert (error.exit_code, error.message) == (
        6,
        "/mnt/lake/strand.toml is on a file system that is mounted read-only",
    )
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    read_only = [mount[1] for mount in mounts if "ro" in mount[3].split(",") and os.access(mount[1], os.X_OK)]
    assert not dialect._is_mounted_read_only(Path("/tmp/ledger.db"))
    for folder in [mount for mount in read_only if Path(mount).is_dir()][:1]:
        assert dialect._is_mounted_read_only(Path(folder) / "ledger.db")


def test_a_place_that_is_no_lake_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = tmp_path / "nowhere"
    assert f"{nowhere} is not a lake: there is no such folder" in call("--lake", nowhere, "status").err
    monkeypatch.setenv("STRAND_LAKE", str(nowhere))
    assert f"$STRAND_LAKE names {nowhere}, which is not a lake" in call("status").err


def test_a_bare_statement_is_refused_clearly(root: Path) -> None:
    """A mutation is a list; what was given instead is named, and how to write it."""
    with Lake(root) as lake:
        for statement, text in (
            (sl.delete("person", "a"), "this is one delete"),
            (sl.insert("person", {"id": "a"}), "this is one insert"),
            ({"id": "a"}, "this is a dict"),
            (None, "this is a NoneType"),
        ):
            with pytest.raises(BadRequest, match=text) as refused:
                lake.mutate(statement)  # type: ignore[arg-type]
            assert "lake.mutate([sl." in refused.value.hint


def test_settings_of_a_sink_are_shown_as_they_are_given(strand: Strand, tmp_path: Path) -> None:
    place = f"uri=file://{tmp_path}/archive"
    strand("sink", "add", "a", "--type", "blob", "--set", place, "--set", "every=5s", "--unit-bytes", "64MiB")
    shown = strand("sink", "show", "a").out
    assert "  every = 5s\n" in shown and "  unit_bytes = 64MiB\n" in shown


def test_a_sink_that_can_not_be_added_leaves_no_folder(strand: Strand, tmp_path: Path) -> None:
    """The folders on the way to a place that can't be written are removed again."""
    (tmp_path / "archive").mkdir()
    place = tmp_path / "archive" / "new" / "deep" / ("x" * 300)
    refused = strand("sink", "add", "a", "--type", "blob", "--set", f"uri=file://{place}")
    assert refused.code != 0
    assert list((tmp_path / "archive").iterdir()) == []


def test_sizes_are_named_once() -> None:
    from strandline.cli.maintenance import _named

    assert [_named("size_bytes"), _named("tail_rows")] == ["size", "tail rows"]


def test_status_is_shown_again_and_again(root: Path) -> None:
    """--watch prints the page every two seconds until it is interrupted."""
    watching = subprocess.Popen(
        command("--lake", root, "status", "--watch"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert watching.stdout is not None
    pages = 0
    for line in watching.stdout:
        pages += line.startswith(b"All is well")
        if pages == 2:
            break
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=60)
    assert (watching.returncode, pages, b"Traceback" in err) == (130, 2, False)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["table", "create", "t", "--columns", "名前:string"],
            "'名前' can't be a column's name",
            "a letter from a to z",
        ),
        (["table", "create", "t", "--columns", "📦:long"], "expected a column's name but found '📦'", "For example"),
        (["table", "create", "naïve", "--columns", "a:long"], "'naïve' can't be a table's name", "from a to z"),
        (["table", "create", "t", "--columns", "a:long,a:int"], "a table has 'a' twice", "Names are unique"),
        (["sink", "add", "s", "--type", "blob", "--set", "uri=/tmp/x"], "uri is '/tmp/x'", "Write file:///tmp/x"),
    ],
)
def test_a_name_or_address_that_can_not_be_says_what_can(
    strand: Strand, arguments: list[str], message: str, hint: str
) -> None:
    refused = strand(*arguments)
    assert (refused.code, message in refused.err, hint in refused.err) == (3, True, True), refused.err


def test_no_command_is_one_short_document(strand: Strand) -> None:
    for arguments in (["--json"], ["sink", "--json"]):
        refused = strand(*arguments)
        assert (refused.code, len(refused.error["message"]) < 60) == (2, True), refused.error
