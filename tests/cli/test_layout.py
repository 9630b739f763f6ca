"""Tables and messages on real terminals of 80 and 120 columns: no word, id or address is broken."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.cli import layout, output
from strandline.cli.main import run
from strandline.cli.status import print_status
from strandline.reports.quarantine import QuarantineEntry
from strandline.reports.sinks import SinkLag, SinkStatus
from strandline.reports.status import (
    BranchStatus,
    BranchTail,
    DamagedBatch,
    OperationStatus,
    Status,
    UnreadableOperation,
)
from strandline.reports.work import JobReport
from tests.cli.conftest import Strand, call, lines
from tests.cli.terminal import on_terminal, plain

CLI = Path(output.__file__).parent
WIDE = [
    "messages_from_the_customer_support_agents",
    "01a1edee49927e85c2b182ba",
    "2026-11-18 04:54:36Z",
    "s3://strandline-archive-eu-central-1/gateways/edge-7/messages",
    "1,234,567",
    "旅行代理店のメッセージ",
    "the destination answered 503 and asked us to wait",
    "Åsa Öberg",
    72,
    "",
]
"""What the cells of real lakes hold, and a little more."""


@pytest.fixture(autouse=True)
def own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal says how wide it is."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def headings() -> Iterator[tuple[str, list[str]]]:
    """The heads of every table that a command prints, from the source: where it is, and its columns."""
    for path in sorted(CLI.glob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("output.table", "_section"):
                continue
            heads = node.args[1 if ast.unparse(node.func) == "_section" else 0]
            names = _literal(heads, tree, constants)
            if names:
                yield f"{path.name}:{node.lineno}", names


def _literal(heads: ast.expr, tree: ast.Module, constants: dict[str, ast.expr]) -> list[str] | None:
    if isinstance(heads, ast.Attribute) and ast.unparse(heads) == "sinks.LIST_HEADS":
        from strandline.cli.sinks import LIST_HEADS

        return LIST_HEADS
    if isinstance(heads, ast.Name):
        local = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == heads.id for target in node.targets)
        ]
        heads = constants.get(heads.id) or (local[0] if local else heads)
    if not isinstance(heads, ast.List):
        return None
    return [str(head.value) if isinstance(head, ast.Constant) else "settled in Iceberg" for head in heads.elts]


TABLES = list(headings())


def test_the_tables_of_the_commands_are_found() -> None:
    """Were they written another way, the tests below would look at nothing."""
    assert len(TABLES) >= 25, TABLES
    assert {"status.py", "sinks.py", "versions.py", "tables.py", "schemas.py"} <= {
        where.partition(":")[0] for where, _ in TABLES
    }


def words_of(text: str) -> set[str]:
    return {word for word in text.split() if set(word) - set("─-—")}


def without_heads(text: str) -> str:
    """A text without the heads of its tables: records leave out columns that are empty."""
    kept = text.splitlines()
    return "\n".join(line for line, after in zip(kept, [*kept[1:], ""], strict=True) if not after.startswith("---"))


def broken_words(piped: str, shown: str) -> set[str]:
    """Words of the plain text that are not whole on the terminal; a record has a colon behind a field's name."""
    there = {word.rstrip(":") for word in words_of(shown)} | words_of(shown)
    return {word for word in words_of(piped) if word not in there and word.rstrip(":") not in there}


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(("where", "heads"), TABLES, ids=[where for where, _ in TABLES])
def test_no_table_breaks_a_word(where: str, heads: list[str], columns: int) -> None:
    """Whatever its cells hold, each word of them stands on one line, and only a longer word makes a line too long."""
    rows = [[WIDE[(start + place) % len(WIDE)] for place in range(len(heads))] for start in range(len(WIDE))]
    for cells in (rows, rows[3:4], [["x"] * len(heads)]):
        shown = plain(on_terminal(columns, lambda cells=cells: output.table(heads, cells, title="A title")))
        expected = " ".join(str(cell) for row in cells for cell in row)
        assert broken_words(expected, shown) == set(), shown
        for line in shown.splitlines():
            assert layout.text_width(line) <= columns or len(line.split()) <= 2, line


def test_a_narrow_table_stays_a_table_and_a_wide_one_becomes_records() -> None:
    """What fits is aligned; what does not is listed by the names of its columns, without empty ones."""
    fits = plain(on_terminal(80, lambda: output.table(["sink", "lag"], [["central", 3]])))
    assert fits.splitlines()[0].split() == ["sink", "lag"]
    wide = [["a" * 50, "b" * 40, "", 7]]
    records = plain(on_terminal(80, lambda: output.table(["name", "id", "gone", "rows"], wide)))
    assert records.splitlines() == [f"name: {'a' * 50}", f"  id: {'b' * 40}   rows: 7"]


def test_a_time_is_never_broken() -> None:
    """Not where there is room for an amount alone, and not in a line of text; a table without room becomes records."""
    moment = "2026-11-18 04:54:36Z"
    assert layout.column_widths([["at", "x"], [moment, "y"]], 23) == [20, 1]
    assert layout.column_widths([["at", "x"], [moment, "y"]], 22) is None
    assert moment in layout.wrapped(f"since {moment}, by ann", 24)


def test_an_amount_keeps_its_unit_where_there_is_room() -> None:
    assert layout.column_widths([["age", "x"], ["72 min", "y"]], 80) == [6, 1]
    assert layout.column_widths([["age", "x"], ["72 min", "y"]], 6) == [3, 1]
    assert layout.column_widths([["age", "x"], ["72 min", "y"]], 5) is None


def test_long_lines_break_between_words_and_never_inside_a_command() -> None:
    text = "hint: run `strand merge try-out --into main` and then decide about all of it with --ours or --theirs"
    shown = layout.wrapped(text, 40, indent="  ")
    assert "`strand merge try-out --into main`" in shown
    assert all(len(line) <= 40 for line in shown.splitlines())
    assert " ".join(shown.split()) == text
    assert layout.wrapped("x" * 90, 40) == "x" * 90


READING: list[list[str]] = [
    ["status"], ["status", "--why"], ["doctor"], ["audit"], ["log"], ["show"], ["show", "try-out"], ["diff", "try-out"],
    ["changes", "person"], ["branch", "list"], ["tag"], ["table", "list"], ["table", "show", "messages"],
    ["table", "show", "person"], ["schema", "show"], ["sink", "list"], ["sink", "show", "archive"], ["token", "list"],
    ["sink", "preview", "archive"], ["sink", "dead", "archive"], ["quarantine", "list"], ["recover", "--dry-run"],
    ["sql", "select * from person"], ["version"], ["doctor", "--failpoints"], ["merge", "try-out", "--dry-run"],
]  # fmt: skip


@pytest.fixture
def busy_lake(strand: Strand, tmp_path: Path) -> Strand:
    """A lake with something in most of its lists, under long names."""
    person = ["id:string", "name:string?", "age:long?"]
    strand("table", "create", "person", "--columns", ",".join(person), "--key", "id")
    long = "messages_from_the_customer_support_agents"
    strand("table", "create", long, "--columns", "id:string,body:string?", "--row-key", "id")
    strand("append", long, stdin=lines({"id": "1", "body": "ideographs: 旅行代理店"}))
    file = tmp_path / "person.jsonl"
    file.write_bytes(lines({"id": "a", "name": "Åsa", "age": 1}, {"id": "b-with-a-long-key-of-its-own", "age": 2}))
    strand("load", "person", file)
    strand("branch", "create", "try-out")
    strand("tag", "a-tag-with-a-long-name")
    for branch, age in (("main", 5), ("try-out", 6)):
        file.write_bytes(lines({"id": "a", "age": age}))
        strand("load", "person", file, "--mode", "merge", "--branch", branch)
    strand("sink", "add", "archive", "--type", "blob", "--set", f"uri=file://{tmp_path}/archive")
    strand("sink", "pause", "archive", "--reason", "the disk is being replaced")
    strand("token", "create", "gateway-of-the-customer-support-agents")
    return strand


@pytest.mark.parametrize("columns", [80, 120])
def test_every_command_that_reads_fits_the_terminal(busy_lake: Strand, columns: int) -> None:
    """Each word of what is said into a pipe is whole on the terminal, and no line is too long that could be broken."""
    for arguments in READING:
        piped = busy_lake(*arguments)
        assert piped.code == (4 if arguments[0] == "merge" else 0), (arguments, piped.err)
        shown = plain(on_terminal(columns, lambda arguments=arguments: run(arguments)))
        changing = {word for word in words_of(piped.out) if word[0].isdigit()}  # ages grow between the two
        assert broken_words(without_heads(piped.out), shown) - changing == set(), (arguments, shown)
        for line in shown.splitlines():
            assert layout.text_width(line) <= columns or len(line.split()) <= 3, (arguments, line)


WELL = Status(
    lake="/lake",
    lake_id="l1",
    ledger="sqlite:////lake/ledger.db",
    warehouse="file:///lake/w",
    displaced=None,
    not_there=None,
    clock_behind_s=None,
    format=2,
    tables=(),
    branches=(),
    tags=(),
    sinks=(),
    operations=(),
    unreadable_intents=(),
    loads=(),
    damaged=(),
    quarantined=(),
    workers=(),
    requests=(),
    failing_jobs=(),
    last_recoveries=(),
)
"""A page of status on which all is well."""


SINK = SinkStatus(
    sink="archive",
    sink_id="s1",
    type="blob",
    branch="main",
    tables=None,
    settings={},
    start_seq=0,
    receiver=None,
    hold_until=None,
    from_config=False,
    paused=None,
    last_tick=None,
    last_delivery=None,
    lag=SinkLag(rows=0, age_s=None),
    parked=0,
    dead_letters=0,
    streams=(),
)
AT = "2026-11-18T09:00:00Z"
JOB = JobReport(
    job="flush:messages",
    why="its tail is old",
    at=AT,
    worker="w1",
    outcome="parked",
    took_s=0.1,
    runs=8,
    failures=8,
    parked=True,
    error="no Java",
)
BRANCH = BranchStatus("x", None, "main", False, BranchTail(0, 0, None, ()), {"t": "a batch is damaged"})
OPERATION = OperationStatus("o", "flush", "staged", "main", ("t",), "ann", AT, 1.0, "gone")
QUARANTINED = QuarantineEntry("b", "t", 3, 1, 3, 100, "ann", AT, AT, "a checksum")
TROUBLES: list[tuple[dict[str, Any], str, str]] = [
    ({"displaced": "it was copied"}, "person", "strand doctor"),
    ({"not_there": "the warehouse is gone"}, "person", "strand doctor"),
    ({"clock_behind_s": 7200.0}, "look", "strand doctor"),
    ({"sinks": (replace(SINK, parked=1),)}, "person", "strand sink show archive"),
    ({"sinks": (replace(SINK, branch=None),)}, "person", "strand sink show archive"),
    ({"sinks": (replace(SINK, dead_letters=2),)}, "person", "strand sink dead archive"),
    ({"sinks": (replace(SINK, paused="by hand"),)}, "look", "strand sink resume archive"),
    ({"failing_jobs": (JOB,)}, "person", "strand worker retry flush:messages"),
    ({"failing_jobs": (replace(JOB, parked=False),)}, "look", "strand status --why"),
    ({"branches": (BRANCH,)}, "person", "strand doctor"),
    ({"unreadable_intents": (UnreadableOperation("o", "flush", (), AT, "newer"),)}, "person", "strand doctor"),
    ({"damaged": (DamagedBatch("b", "t", 3, 1, 3),)}, "person", "strand doctor"),
    ({"quarantined": (QUARANTINED,)}, "person", "strand quarantine list"),
    ({"operations": (OPERATION,)}, "look", "strand recover"),
]


@pytest.mark.parametrize(("trouble", "level", "command"), TROUBLES)
def test_status_says_what_needs_a_person(trouble: dict[str, Any], level: str, command: str) -> None:
    """Each trouble of the page is named in the verdict, with a command that there is."""
    judged = replace(WELL, **trouble).verdict
    assert judged.level == level
    assert [concern.command for concern in judged.needs] == [command]
    words = [word for word in command.split()[1:] if word.islower() and ":" not in word and word != "archive"]
    assert call(*words, "--help").code == 0


def test_status_begins_with_its_verdict_in_colour(strand: Strand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line says whether all is well; green on a terminal, plain in a pipe and where NO_COLOR says so."""
    text = "All is well: 1 table, 0 sinks, no worker runs."
    assert strand("status").out.splitlines()[0] == text
    assert strand("status", "--json").json["verdict"] == {"level": "well", "text": text, "needs": []}
    assert on_terminal(80, lambda: run(["status"])).startswith(f"\x1b[32m{text}\x1b[0m\n")
    bad = on_terminal(80, lambda: print_status(replace(WELL, displaced="it was copied")))
    assert bad.startswith("\x1b[1;31m1 thing needs a person.\x1b[0m\n")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in on_terminal(80, lambda: run(["status"]))


def answered(arguments: list[str], typed: str) -> tuple[int, str]:
    """The exit code and the screen of a command whose question a person answers."""
    codes: list[int] = []
    action: Callable[[], object] = lambda: codes.append(run(arguments))  # noqa: E731
    shown = on_terminal(80, action, typed=typed)
    return codes[0], plain(shown)


def test_removing_a_sink_asks_on_a_terminal(strand: Strand, tmp_path: Path) -> None:
    """A no leaves it; --yes asks nobody; without a terminal it is removed as ever."""
    add = ("sink", "add", "archive", "--type", "blob", "--set", f"uri=file://{tmp_path}/archive")
    strand(*add)
    code, shown = answered(["sink", "remove", "archive"], "n\n")
    assert (code, "its marks would be forgotten" in shown) == (4, True)
    assert answered(["sink", "remove", "archive"], "y\n")[0] == 0
    strand(*add)
    code, shown = answered(["sink", "remove", "archive", "--yes"], "")
    assert (code, "forgotten" in shown) == (0, False)
    strand(*add)
    assert strand("sink", "remove", "archive").code == 0
    assert strand("sink", "list").out.startswith("There are no sinks yet")
