"""What commands tell people: numbers with their nouns, what is the matter, and hints that work when followed."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from pathlib import Path

import pytest

from strandline.lake import Lake
from strandline.model.wording import counted, judged
from tests.cli.conftest import Strand, call, lines
from tests.kit import in_ledger

KEYED = ["table", "create", "agent", "--columns", "id:string,budget:long?", "--key", "id"]


@pytest.mark.parametrize(
    ("count", "noun", "plural", "text"),
    [
        (1, "row", "", "1 row"),
        (0, "row", "", "0 rows"),
        (2000, "row", "", "2,000 rows"),
        (2, "batch", "batches", "2 batches"),
    ],
)
def test_a_number_has_the_noun_that_fits(count: int, noun: str, plural: str, text: str) -> None:
    assert counted(count, noun, plural) == text


def test_a_reason_that_is_a_sentence_stands_alone() -> None:
    assert judged("'x'", "is not a long") == "'x' is not a long"
    assert judged("null", "a value is required here") == "a value is required here"


def test_keys_that_are_there_already_are_listed(strand: Strand, tmp_path: Path) -> None:
    """A load of several rows that are there names them all, and the way to replace them."""
    strand(*KEYED)
    file = tmp_path / "agents.jsonl"
    file.write_bytes(lines({"id": "a"}, {"id": "b"}, {"id": "c"}))
    assert strand("load", "agent", file).out == "Loaded 3 rows into agent, seqs 6..8.\n"
    again = strand("load", "agent", file, "--again")
    assert again.code == 4
    assert "agent 'a' can't be inserted: it is there already (and 2 more)" in again.err
    assert again.err.splitlines()[1:] == [
        "  line 2: agent 'b'",
        "  line 3: agent 'c'",
        "hint: Nothing was stored. --mode merge replaces rows that are there.",
    ]
    assert strand("load", "agent", file, "--mode", "merge").code == 0


def test_rules_that_several_rows_break_are_listed(strand: Strand, tmp_path: Path) -> None:
    strand(*KEYED, "--constraint", "range(budget: 0..9)")
    file = tmp_path / "agents.jsonl"
    file.write_bytes(lines({"id": "a", "budget": 10}, {"id": "b", "budget": 11}))
    refused = strand("load", "agent", file)
    assert refused.code == 3
    assert "  line 2: agent 'b', field 'budget': 11 breaks range(budget: 0..9)" in refused.err.splitlines()


def test_a_null_is_called_null(strand: Strand) -> None:
    refused = strand("append", "messages", stdin=lines({"id": "9", "n": "x"}, {"id": None}))
    assert refused.code == 3
    assert "None" not in refused.err


def test_a_load_of_one_row_is_a_commit_of_one_row(strand: Strand, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_bytes(lines({"id": "9"}))
    strand("load", "messages", tmp_path / "one.jsonl")
    assert strand("log", "--limit", "1", "--json").json[0]["message"] == "load 1 row"


def test_a_default_that_does_not_fit_is_no_row(strand: Strand, tmp_path: Path) -> None:
    strand(*KEYED)
    file = tmp_path / "wanted.json"
    file.write_text('{"tables": {"agent": {"columns": {"id": "string", "n": {"type": "long", "default": "x"}}}}}')
    refused = strand("schema", "plan", file)
    assert (refused.code, refused.err.splitlines()[0]) == (
        3,
        "error[bad_request]: the default of 'n', 'x', is no long",
    )


def test_a_merge_lists_its_conflicts_and_what_is_left_undecided(
    strand: Strand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint names both branches, and works as it is written; so does the one of a protected branch."""
    strand(*KEYED)
    file = tmp_path / "agent.jsonl"
    strand("branch", "create", "try-out")
    for branch, budget in (("main", 1), ("try-out", 2)):
        file.write_bytes(lines({"id": "a", "budget": budget}))
        strand("load", "agent", file, "--branch", branch)
    refused = strand("merge", "try-out")
    assert refused.code == 4
    conflict = "agent a: divergent insert in budget (ours 1, theirs 2)"
    assert f"  {conflict}" in refused.err.splitlines()
    monkeypatch.chdir(tmp_path)
    listed = strand(*commands_of(refused.err)[0])
    assert (listed.code, conflict in listed.out, (tmp_path / "conflicts.json").exists()) == (4, True, True)
    undecided = strand("merge", "try-out", "--resolve", "conflicts.json")
    assert undecided.code == 3
    assert "the resolution file leaves 1 conflict undecided: 1 in agent" in undecided.err
    assert f"  {conflict}" in undecided.err.splitlines()
    strand("branch", "protect", "main")
    refused = strand("load", "agent", file, "--mode", "merge")
    assert refused.code == 4
    assert strand(*commands_of(refused.err)[0]).out == "Branch main is not protected any more.\n"


def commands_of(text: str) -> list[list[str]]:
    """The commands that a message names, between backticks."""
    return [shlex.split(part)[1:] for part in text.split("`") if part.startswith("strand ")]


def test_a_clone_says_what_it_is_made_of(root: Path, strand: Strand, tmp_path: Path) -> None:
    strand("sink", "add", "archive", "--type", "blob", "--set", f"uri=file://{tmp_path}/archive")
    made = call("clone", root, tmp_path / "copy")
    assert (made.code, made.out.splitlines()[0]) == (0, f"Cloned to {tmp_path}/copy: 1 table, 3 rows.")
    assert made.out.splitlines()[1].startswith("  sink archive is paused")
    resumed = call(*shlex.split(made.out.splitlines()[1].partition(": `strand ")[2].rstrip("`")))
    assert resumed.code == 0, resumed.err
    again = call("clone", root, tmp_path / "copy")
    assert (again.code, "--replace" in again.err) == (4, False)
    nothing = call("clone", tmp_path / "nowhere", tmp_path / "other")
    assert (nothing.code, "neither a lake nor a backup" in nothing.err) == (3, True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_status_says_that_deletions_wait_for_the_clock(root: Path, strand: Strand) -> None:
    ahead_us = time.time_ns() // 1000 + (5 * 3600 - 60) * 1_000_000
    in_ledger(root, f"UPDATE counter SET last_at_us = {ahead_us}")
    assert "CLOCK: 4 h behind the ledger's time" in strand("status").out
    assert strand("status", "--json").json["clock_behind_s"] > 3600


@pytest.mark.sqlite_only
def test_status_says_that_a_warehouse_is_not_there(root: Path, strand: Strand, tmp_path: Path) -> None:
    with Lake(root) as lake:
        assert lake.config.warehouse.startswith("file:"), "a bucket is not asked"
        shutil.move(lake.config.warehouse.removeprefix("file://"), tmp_path / "away")
    assert "NOT THERE: the warehouse" in strand("status").out


def test_a_table_tells_its_retention(strand: Strand) -> None:
    assert "retention    none: rows stay" in strand("table", "show", "messages").out
    strand("table", "set", "messages", "retention=90d", "time_column=ts")
    assert "retention    90d, by ts" in strand("table", "show", "messages").out
    refused = strand("table", "set", "messages", "retention")
    assert (refused.code, refused.err) == (
        3,
        "error[bad_request]: 'retention' has no value\nhint: Write retention=VALUE.\n",
    )


def test_what_is_not_there_yet_is_said(strand: Strand) -> None:
    assert strand("tag").out == "There are no tags yet. `strand tag NAME` makes one.\n"
    assert strand("sink", "tick").out == "There are no sinks yet. `strand sink add` makes one.\n"
    assert strand("fold").out == "There are no keyed tables.\n"
    assert strand("tag", "--delete").code == 2


def test_strand_alone_is_its_help_and_no_error(strand: Strand) -> None:
    for arguments in ([], ["sink"]):
        alone = strand(*arguments)
        assert (alone.code, alone.out.startswith("Usage: strand"), alone.err) == (0, True, "")
    assert strand("--version").out.startswith("strandline ")


def test_an_init_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    refused = call("init", tmp_path / "new", "--ledger", "mysql://x/y")
    assert (refused.code, list(tmp_path.iterdir())) == (3, [])


def test_the_next_command_of_an_init_can_be_pasted(tmp_path: Path) -> None:
    """Whatever the folder is called."""
    folder = tmp_path / "a b'c"
    made = call("init", folder)
    pasted = made.err.partition("make a table:\n")[2].replace("\\\n", " ")
    assert call(*shlex.split(pasted)[1:]).out == "Made table messages with 2 columns.\n"


def test_help_fits_80_columns(strand: Strand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in (["load"], ["table", "create"], ["table", "set"], ["sink", "add"], ["backup"], ["doctor"]):
        shown = strand(*arguments, "--help").out
        assert [line for line in shown.splitlines() if len(line) > 80] == []
        assert "below" not in shown.replace("below DIR", "")
    for group in ([], ["sink"], ["table"], ["branch"], ["schema"], ["quarantine"], ["token"], ["worker"], ["service"]):
        listed = strand(*group, "--help").out.partition("Commands:")[2]
        assert [line for line in listed.splitlines() if line.endswith("...")] == [], "a command's text is cut off"


def test_a_preview_with_conflicts_exits_as_the_merge_would(strand: Strand, tmp_path: Path) -> None:
    """4, with its one document; and a file that a person has begun to decide in is not written over."""
    strand(*KEYED)
    strand("branch", "create", "try-out")
    for branch, budget in (("main", 1), ("try-out", 2)):
        (tmp_path / "agent.jsonl").write_bytes(lines({"id": "a", "budget": budget}))
        strand("load", "agent", tmp_path / "agent.jsonl", "--branch", branch)
    file = tmp_path / "conflicts.json"
    preview = ["merge", "try-out", "--dry-run", "--write", file]
    done = strand(*preview, "--json")
    assert (done.code, done.json["outcome"]) == (4, "conflicts")
    assert strand(*preview).code == 4, "nothing is decided in it yet"
    file.write_text(file.read_text().replace('"take": null', '"take": "ours"'))
    refused = strand(*preview)
    assert (refused.code, "has 1 decision in it already" in refused.err, '"take": "ours"' in file.read_text()) == (
        4, True, True,
    )  # fmt: skip
    assert strand(*preview, "--yes").code == 4
    assert '"take": "ours"' not in file.read_text()
    (tmp_path / "notes.txt").write_text("mine")
    assert "no file of conflicts" in strand("merge", "try-out", "--dry-run", "--write", tmp_path / "notes.txt").err
    assert strand("merge", "try-out", "--dry-run", "--ours").code == 0


def test_a_plan_with_a_refused_step_exits_with_3(strand: Strand, tmp_path: Path) -> None:
    """Its document is on stdout as ever: a script sees both."""
    strand(*KEYED)
    file = tmp_path / "wanted.json"
    for type_, code in (("string", 3), ("long", 0)):
        columns = {"id": "string", "budget": f"{type_}?"}
        file.write_text(json.dumps({"tables": {"agent": {"key": ["id"], "columns": columns}}}))
        done = strand("schema", "plan", file, "--json")
        assert (done.code, any(step["verdict"] == "refused" for step in done.json["steps"])) == (code, code == 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"id": "1"}\n{"id": bad}\n', "line 2: not JSON: unexpected character, expected a JSON value at column 8"),
        (b'{"id": "1"}\n{"id": "2"\n', "line 2: not JSON: unexpected end of data at its end"),
        (b'[{"id": "1"},\n{"id": "2"}]\n', "line 1: not JSON lines, which have one object on each line: an array"),
        (b'{\n"id": "1"}\n', "line 1: not JSON lines, which have one object on each line: an array or an object"),
    ],
)
def test_a_line_that_is_no_json_is_named_by_one_number(strand: Strand, text: bytes, reason: str) -> None:
    """The file's line, and a column in it; the parser's own count of lines would contradict it."""
    refused = strand("append", "messages", stdin=text)
    assert refused.code == 3
    first = refused.err.splitlines()[0]
    assert reason in first and first.count("line ") == 1 + first.count("each line "), first
