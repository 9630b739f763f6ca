"""`-q` leaves out progress and remarks, and never an answer: every command is asked, quietly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from strandline.cli.app import SUBJECTS, app
from tests.cli.conftest import call, lines

WITHOUT = {
    "serve": "it runs until it is stopped; what it says when it listens is its answer, tested with the server",
    "up": "the same, for both",
    "worker": "the same; --once needs Spark",
    "adopt": "it needs Spark; it answers as load does",
    "setup": "it fetches Java and jars",
    "sink rewind": "it needs rows that were delivered, and so Spark; tested with the sinks",
    "relocate": "it refuses a lake that is at home",
    "quarantine save": "there is no damaged batch here; tested in test_commands",
    "quarantine restore": "the same",
    "quarantine discard": "the same",
}
"""Commands that are not asked here, and why."""


def leaves(command: Any, path: str = "") -> Iterator[str]:
    for name, child in getattr(command, "commands", {}).items():
        own = f"{path} {name}".strip()
        if not getattr(child, "commands", None) or child.invoke_without_command:
            yield own
        yield from leaves(child, own)


def story(tmp_path: Path) -> list[tuple[str, list[Any]]]:
    """Every command once, in an order in which each has something to say."""
    people, schema, batch = tmp_path / "p.jsonl", tmp_path / "schema.json", tmp_path / "b.jsonl"
    people.write_bytes(lines({"id": "a", "age": 1}))
    batch.write_bytes(lines({"id": "b", "age": 2}))
    schema.write_text('{"tables": {"person": {"columns": {"id": "string", "age": "long?", "city": "string?"}}}}')
    place = f"uri=file://{tmp_path}/archive"
    return [
        ("version", []),
        ("table create", ["person", "--columns", "id:string,age:long?", "--key", "id"]),
        ("table create", ["nothing_in_it", "--columns", "id:string"]),
        ("table create", ["gone", "--columns", "id:string"]),
        ("table list", []), ("table show", ["person"]), ("table set", ["gone", "retention=90d"]),
        ("table drop", ["gone", "--yes"]),
        ("append", ["messages", tmp_path / "m.jsonl"]), ("load", ["person", people]),
        ("flush", ["nothing_in_it"]),
        ("sql", ["select 1"]), ("tail", ["messages"]), ("export", ["-o", tmp_path / "out.jsonl"]),
        ("branch create", ["x"]), ("load", ["person", batch, "--branch", "x"]), ("branch list", []),
        ("diff", ["x"]), ("show", ["x"]), ("log", []), ("changes", ["person"]), ("merge", ["x"]), ("tag", ["v1"]),
        ("branch rename", ["x", "y"]), ("branch protect", ["y"]), ("branch protect", ["y", "--off"]),
        ("branch delete", ["y"]),
        ("schema show", []), ("schema plan", [schema]), ("schema apply", [schema]),
        ("sink add", ["archive", "--type", "blob", "--set", place]), ("sink list", []), ("sink show", ["archive"]),
        ("sink set", ["archive", "--set", "every=5m"]), ("sink rename", ["archive", "cold"]),
        ("sink pause", ["cold"]), ("sink resume", ["cold"]), ("sink preview", ["cold"]), ("sink dead", ["cold"]),
        ("sink retry", ["cold"]), ("sink continue", ["cold"]), ("sink remove", ["cold"]), ("sink tick", []),
        ("token create", ["bob"]), ("token list", []), ("token revoke", ["ID"]),
        ("status", []), ("doctor", []), ("recover", []), ("audit", []), ("quarantine list", []),
        ("worker retry", ["--all"]),
        ("compact", ["--dry-run"]), ("fold", ["--dry-run"]), ("retain", ["--dry-run"]), ("expire", ["--dry-run"]),
        ("refilter", ["--dry-run"]), ("sweep", ["--dry-run"]),
        ("purge", ["messages", "--where", "id = 'none'", "--dry-run"]),
        ("backup", [tmp_path / "backup", "--with-data"]), ("clone", ["LAKE", tmp_path / "clone"]),
        ("restore", [tmp_path / "backup", tmp_path / "restored"]),
        ("service print", ["--systemd"]), ("init", [tmp_path / "new"]),
    ]  # fmt: skip


def test_every_command_answers_quietly(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says its answer on stdout with -q, and nothing on stderr; above all the token, which is shown once."""
    (tmp_path / "m.jsonl").write_bytes(lines({"id": "new"}))
    monkeypatch.chdir(tmp_path)
    steps = story(tmp_path)
    commands = set(leaves(typer.main.get_command(app)))
    assert {name for name, _ in steps} | set(WITHOUT) == commands
    token = ""
    for name, arguments in steps:
        words = [token if word == "ID" else root if word == "LAKE" else word for word in arguments]
        ran = call(*name.split(), *words, "-q")
        assert (ran.code, ran.err) == (0, ""), (name, ran)
        assert ran.out.strip(), f"{name} -q says nothing"
        if name == "token create":
            assert ran.out.startswith("strand_")
            token = call("token", "list", "--json").json[0]["id"]


def test_remarks_are_left_out_and_stand_beside_the_answer(tmp_path: Path) -> None:
    """What a person might do next is said on stderr, and not with -q."""
    loud, quiet = call("init", tmp_path / "a"), call("init", tmp_path / "b", "-q")
    assert "Next, make a table" in loud.err and quiet.err == ""
    assert quiet.out == loud.out.replace(f"{tmp_path}/a", f"{tmp_path}/b")


def test_help_lists_every_command_under_a_subject(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is forgotten, none stands twice, and no line of an 80-column help is cut."""
    named = [name for names in SUBJECTS.values() for name in names]
    assert sorted(named) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    monkeypatch.setenv("COLUMNS", "80")
    shown = call("--help").out
    for subject in SUBJECTS:
        assert f"\n{subject}:\n" in shown
    assert "Others:" not in shown and "..." not in shown.partition("Begin:")[2]
    assert max(map(len, shown.splitlines())) <= 80
