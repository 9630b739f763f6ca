"""The commands of maintenance: what they say, what they refuse, and that a dry run needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline import create
from tests.kit import call, make_table, messages, part_ids


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A lake with one table and four rows in its tail."""
    with create.create(tmp_path / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 4))
    return tmp_path / "lake"


def test_settings_of_a_table_are_set_and_shown(root: Path) -> None:
    """Sizes and durations are written as everywhere; `none` keeps rows for good."""
    done = call("--lake", str(root), "--json", "table", "set", "messages", "retention=90d", "target_file_size=64MiB")
    assert done.json == {
        "table": "messages",
        "retention_s": 90 * 24 * 3600,
        "time_column": "_at",
        "target_file_bytes": 64 << 20,
    }
    call("--lake", str(root), "table", "set", "messages", "retention=none")
    shown = call("--lake", str(root), "--json", "table", "show", "messages").json
    assert shown["settings"]["retention_s"] is None
    assert shown["settings"]["target_file_bytes"] == 64 << 20


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["table", "set", "messages", "retension=90d"], 3),
        (["table", "set", "messages", "retention=90"], 3),
        (["table", "set", "messages", "retention=0s"], 3),
        (["table", "set", "messages", "time_column=body"], 3),
        (["table", "set", "nothing", "retention=1d"], 3),
        (["compact", "nothing"], 3),
        (["compact", "--max-bytes", "much"], 3),
        (["retain", "--max-time", "long"], 3),
        (["purge", "messages", "--where", "nobody = 1"], 3),
        (["purge", "messages", "--where", "n in (select 1)"], 3),
        (["purge", "messages", "--where", "n = 1"], 4),
        (["purge", "messages"], 2),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(root: Path, arguments: list[str], code: int) -> None:
    """A clear error, its exit code, and the same rows; a purge that nobody has confirmed is refused too."""
    from strandline.lake import Lake

    done = call("--lake", str(root), *arguments)
    assert done.code == code, done.out + done.err
    with Lake(root, read_only=True) as lake:
        assert part_ids(lake) == ["p0", "p1", "p2", "p3"]
        assert lake.view().tables == ["messages"]


@pytest.mark.parametrize("command", [["compact"], ["retain"], ["expire"]])
def test_a_dry_run_says_what_would_be_done(root: Path, command: list[str]) -> None:
    """One entry for each table, with figures before and after."""
    (one,) = call("--lake", str(root), "--json", *command, "--dry-run").json
    assert (one["table"], one["dry_run"], one["before"]) == ("messages", True, one["after"])


def test_a_purge_is_previewed_with_the_tail(root: Path) -> None:
    """What a purge would remove is counted without Spark."""
    (one,) = call("--lake", str(root), "--json", "purge", "messages", "--where", "n < 3", "--dry-run").json
    assert (one["before"]["rows"], one["after"]["rows"], one["detail"]["rows"]) == (4, 1, 3)
