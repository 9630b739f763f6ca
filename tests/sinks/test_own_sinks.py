"""A type of sinks that another package brings, from end to end: added, ticked, crashed, parked, retried, shown."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline import failpoints
from strandline.lake import Lake
from tests.delivery import assert_once, wipe_marks
from tests.kit import crash, make_table, message, messages, reopened, strand, strand_json
from tests.packages import install_shelf, look_anew


@pytest.fixture
def shelf(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's package is installed, and a sink of its type follows ten messages."""
    install_shelf(monkeypatch, tmp_path / "site")
    make_table(lake)
    lake.append("messages", messages(0, 10))
    lake.flush("messages")
    path = tmp_path / "shelf.db"
    add = ["sink", "add", "mine", "--type", "shelf", "--set", f"path={path}", "--set", "longest=170"]
    assert strand(lake, *add, "--set", "unit_rows=4", "--set", "pin=hunter-2-and-more").code == 0
    yield path
    look_anew()


def goods(shelf: Path) -> list[str]:
    """What is on the shelf."""
    with closing(sqlite3.connect(shelf)) as opened:
        return [json.loads(text)["part_id"] for (text,) in opened.execute("SELECT goods FROM goods ORDER BY seq")]


TEN = [f"p{n}" for n in range(10)]


def test_a_type_of_a_package_delivers_and_is_shown(lake: Lake, shelf: Path) -> None:
    """Every command that knows our types knows this one."""
    (previewed,) = strand_json(lake, "sink", "preview", "mine")
    assert previewed["rows"] == 4
    (ticked,) = strand_json(lake, "sink", "tick", "mine")
    assert (ticked["rows"], ticked["units"], ticked["outcome"]) == (10, 3, "delivered")
    assert goods(shelf) == TEN
    shown = strand_json(lake, "sink", "show", "mine")
    assert (shown["type"], shown["settings"]["path"], shown["settings"]["longest"]) == ("shelf", str(shelf), 170)
    assert "hunter-2" not in json.dumps(shown)
    assert shown["streams"][0]["delivered"]["rows"] == 10
    assert strand_json(lake, "sink", "set", "mine", "--set", "longest=200")["settings"]["longest"] == 200
    assert strand(lake, "sink", "rewind", "mine", "--stream", "messages", "--to", "5", "--yes").code == 0
    assert strand(lake, "sink", "tick", "mine").code == 0
    assert goods(shelf) == TEN
    refused = strand(lake, "sink", "retry", "mine", "--take-over")
    assert (refused.code, "sink 'mine' is of type shelf" in refused.err) == (3, True)


@pytest.mark.parametrize("point", ["deliver.after_open", "deliver.before_close", "deliver.after_close"])
def test_a_crash_repeats_its_unit_and_nothing_else(lake: Lake, shelf: Path, point: str) -> None:
    failpoints.arm(f"{point}=raise")
    with crash(lake):
        lake.tick("mine")
    with reopened(lake) as again:
        again.tick("mine")
        assert_once(TEN, goods(shelf))


def test_lost_marks_are_asked_of_the_destination(lake: Lake, shelf: Path) -> None:
    lake.tick("mine")
    wipe_marks(lake)
    lake.append("messages", [message(10)])
    lake.tick("mine")
    assert_once([*TEN, "p10"], goods(shelf))


def test_a_row_that_is_refused_becomes_a_dead_letter(lake: Lake, shelf: Path) -> None:
    """The others of its unit arrive; one that takes no letters again says so."""
    lake.append("messages", [{**message(10), "body": "long" * 50}, message(11)])
    assert strand(lake, "sink", "tick", "mine").code == 0
    assert_once([*TEN, "p11"], goods(shelf))
    (letter,) = strand_json(lake, "sink", "dead", "mine")
    assert "too long for this shelf" in json.dumps(letter)
    assert strand(lake, "sink", "dead", "mine", "--replay").code == 3
    assert strand(lake, "sink", "dead", "mine", "--discard", "--yes").code == 0


def test_a_parked_delivery_is_retried(lake: Lake, shelf: Path) -> None:
    """A destination that can't be reached is tried again, parked in the end, and goes on when a person says so."""
    strand(lake, "sink", "set", "mine", "--set", "max_attempts=1")
    lake.tick("mine")
    kept = shelf.read_bytes()
    shelf.unlink()
    shelf.mkdir()
    lake.append("messages", [message(10)])
    assert strand(lake, "sink", "tick", "mine").code == 6
    shelf.rmdir()
    shelf.write_bytes(kept)
    assert strand(lake, "sink", "retry", "mine").code == 0
    assert strand(lake, "sink", "tick", "mine").code == 0
    assert_once([*TEN, "p10"], goods(shelf))
