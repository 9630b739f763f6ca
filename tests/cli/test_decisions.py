"""What a person decides and what can't be taken back: it is asked about on a terminal, and the audit has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.cli.main import run
from strandline.views.view import View
from tests.cli.conftest import Strand, lines
from tests.cli.terminal import on_terminal, plain
from tests.cli.test_commands import damage
from tests.delivery import refused_rows
from tests.kit import in_ledger


@pytest.fixture(autouse=True)
def own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal says how wide it is."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def answered(arguments: list[str], typed: str) -> tuple[int, str]:
    """The exit code and the screen of a command whose question a person answers."""
    codes: list[int] = []
    shown = plain(on_terminal(80, lambda: codes.append(run(arguments)), typed=typed))
    return codes[0], shown


def audited(strand: Strand) -> list[tuple[str, str, str]]:
    """Kind, outcome and reason of every line of the audit, newest first."""
    return [(entry["kind"], entry["outcome"], entry["reason"]) for entry in strand("audit", "--json").json]


def test_discarded_dead_letters_are_audited(strand: Strand, root: Path) -> None:
    """One line for what was given up, with who gave it up; whichever were meant."""
    refused_rows(root, 2, 3)
    letter, _ = strand("sink", "dead", "central", "--json").json
    seq = letter["seq"]
    assert strand("sink", "dead", "central", letter["id"], "--discard", "--actor", "ann").code == 0
    entry = strand("audit", "--json").json[0]
    assert (entry["kind"], entry["outcome"], entry["actor"]) == ("sink", "discarded", "ann")
    assert entry["reason"] == f"sink central: 1 dead letter given up by hand: seqs {seq}"
    assert [table["table"] for table in entry["tables"]] == ["messages"]
    assert "ann" in strand("audit").out and "unchanged" not in strand("audit").out
    assert strand("status", "--json").json["last_recoveries"] == [], "a decision is no recovery"


def test_giving_up_dead_letters_asks_on_a_terminal(strand: Strand, root: Path) -> None:
    refused_rows(root, 2, 3)
    code, shown = answered(["sink", "dead", "central", "--discard"], "n\n")
    assert (code, "2 dead letters of central would be given up" in shown) == (4, True)
    assert len(strand("sink", "dead", "central", "--json").json) == 2
    assert answered(["sink", "dead", "central", "--discard", "--yes"], "n\n")[0] == 0
    assert strand("sink", "dead", "central", "--discard").out == "There are no dead letters.\n"


def test_a_rewind_a_removal_and_an_accepted_receiver_are_audited(strand: Strand, root: Path) -> None:
    refused_rows(root, 2)
    assert strand("sink", "rewind", "central", "--stream", "messages", "--to", "1", "--yes").code == 0
    assert strand("sink", "retry", "central", "--accept-receiver").code == 0
    assert strand("sink", "remove", "central").code == 0
    assert audited(strand) == [
        ("sink", "removed", "sink central: forgotten with its marks and 0 dead letters"),
        (
            "sink",
            "receiver_accepted",
            "sink central: the lake that answers next is its receiver, in place of none",
        ),
        ("sink", "rewound", "sink central: (1, 4] of messages/all is sent again, as epoch 2"),
    ]


def test_taking_a_place_over_is_audited(strand: Strand, tmp_path: Path) -> None:
    """By retry, and by the command that adds the sink."""
    place = ["--type", "blob", "--set", f"uri=file://{tmp_path}/archive"]
    strand("sink", "add", "archive", *place)
    assert strand("sink", "retry", "archive", "--take-over").code == 0
    assert strand("sink", "add", "second", *place, "--take-over").code == 0
    assert [(kind, outcome) for kind, outcome, _ in audited(strand)] == [("sink", "taken_over")] * 2


def test_quarantine_asks_and_is_audited(strand: Strand, root: Path, tmp_path: Path) -> None:
    """What doctor sets aside, what is restored, and what is given up."""
    batch = damage(root)
    assert f"batch {batch} of messages (3 rows) is damaged" in strand("status").out, "as doctor says"
    assert strand("doctor", "--fix", "--actor", "ann").code == 6
    assert [(kind, outcome) for kind, outcome, _ in audited(strand)] == [("doctor", "fixed")]
    code, shown = answered(["quarantine", "discard", batch], "n\n")
    assert (code, "3 rows of messages would be given up for good" in shown) == (4, True)
    (tmp_path / "rows.jsonl").write_bytes(lines({"id": "0"}, {"id": "1"}))
    assert strand("quarantine", "restore", batch, tmp_path / "rows.jsonl").code == 0
    assert audited(strand)[0][:2] == ("quarantine", "restored")
    assert strand("quarantine", "discard", batch).code == 3


def test_quarantine_is_given_up_without_a_terminal_as_ever(strand: Strand, root: Path) -> None:
    batch = damage(root)
    strand("doctor", "--fix")
    assert strand("quarantine", "discard", batch).out == f"Gave up 3 rows of batch {batch}.\n"
    assert audited(strand)[0][:2] == ("quarantine", "discarded")


def test_a_branch_with_commits_of_its_own_is_asked_about_and_audited(strand: Strand, tmp_path: Path) -> None:
    """One that others have all of is deleted as ever; without --force the conflict says what to do."""
    strand("table", "create", "person", "--columns", "id:string", "--key", "id")
    for name in ("merged", "try-out"):
        strand("branch", "create", name)
    (tmp_path / "p.jsonl").write_bytes(lines({"id": "a"}))
    strand("load", "person", tmp_path / "p.jsonl", "--branch", "try-out")
    assert answered(["branch", "delete", "merged"], "")[0] == 0
    assert audited(strand) == []
    assert strand("branch", "delete", "try-out").code == 4
    code, shown = answered(["branch", "delete", "try-out", "--force"], "n\n")
    assert (code, "with the commits that only it has" in shown) == (4, True)
    assert strand("branch", "delete", "try-out", "--force", "--actor", "ann").code == 0
    ((kind, outcome, reason),) = audited(strand)
    assert (kind, outcome, "branch try-out deleted" in reason) == ("branch", "discarded", True)


def test_a_window_that_removes_rows_is_asked_about(strand: Strand, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log table any row, of a keyed one any version; --yes answers; without a terminal it is set, unless all go.

    Rows of a log are in files, which Spark writes; how many are old is counted by a view, and given here.
    """
    strand("table", "create", "person", "--columns", "id:string", "--key", "id")
    in_ledger(root, "UPDATE heads SET rows_log = 10")
    for table, text in (("messages", "4 of 10 rows of messages would go"), ("person", "4 versions of rows of person")):
        window = ["table", "set", table, "retention=90d"]
        monkeypatch.setattr(View, "count_older", lambda *_: 0)
        assert answered(window, "")[0] == 0, "nothing is as old as that"
        monkeypatch.setattr(View, "count_older", lambda *_: 4)
        code, shown = answered(window, "n\n")
        assert (code, text in shown) == (4, True), shown
        assert answered([*window, "--yes"], "n\n")[0] == 0
        assert strand(*window).code == 0
    monkeypatch.setattr(View, "count_older", lambda *_: 10)
    refused = strand("table", "set", "messages", "retention=1d")
    assert (refused.code, "the whole log of messages (10 rows)" in refused.err) == (4, True)


def test_the_question_fits_the_terminal_and_the_end_of_input_is_a_no(strand: Strand, tmp_path: Path) -> None:
    long = "a" * 60
    strand("sink", "add", long, "--type", "blob", "--set", f"uri=file://{tmp_path}/archive")
    code, shown = answered(["sink", "remove", long], "n\n")
    assert code == 4
    question = shown.partition("[y/N]:")[0].splitlines()
    assert len(question) > 1 and all(len(line) <= 80 for line in question), shown
    code, shown = answered(["sink", "remove", long], "\x04")
    assert (code, "error[" in shown, "internal" in shown) == (4, True, False), shown
