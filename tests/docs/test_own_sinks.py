"""The page about sinks of one's own: its package is installed, and its test is run, as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.sinks import api
from strandline.testing import checks
from tests import slices
from tests.packages import PAGE, blocks, install_shelf, look_anew

NAMES: dict[str, Any] = {}
exec(blocks("python")[1], NAMES)
SUBJECT = NAMES["OnAShelf"]
SUBJECT.lines = None if slices.all_places() else 15


@pytest.fixture(autouse=True)
def _shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_shelf(monkeypatch, tmp_path / "site")
    yield
    look_anew()


@pytest.mark.parametrize("check", checks(SUBJECT))
def test_the_page_s_test_passes(check: Any, tmp_path: Path) -> None:
    (folder := tmp_path / "trial").mkdir()
    NAMES["test_a_shelf_holds_what_a_destination_has_to"](check, folder)


def test_the_page_lists_every_check() -> None:
    """In the order in which they run."""
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE) == [
        check.__name__ for check in checks(SUBJECT)
    ]


def test_every_name_that_a_package_may_import_is_there() -> None:
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
    assert list(api.__all__) == sorted(api.__all__)
