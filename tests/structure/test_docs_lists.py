"""Documents that list what there is: a list that is not complete is worse than none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strandline.cli.pages import PAGES
from strandline.ledger.database import schema

ROOT = Path(__file__).parents[2]
STAGE = [*range(1, 47), *range(51, 91), *range(98, 109)]
WRITTEN = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BASES = (ROOT / "src" / "strandline", ROOT / "src", ROOT, ROOT / "tests")
MODULE_NAMES = {path.name for folder in ("src", "tests", "examples", "bench") for path in (ROOT / folder).rglob("*.py")}


def _tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"def (test_f\d+_\w+)", path.read_text()))
    return found


def test_every_guarantee_names_its_tests_and_every_such_test_is_named() -> None:
    """docs/guarantees.md and the tests agree, in both directions, and no number of this stage is missing."""
    text = (ROOT / "docs" / "guarantees.md").read_text()
    rows = re.findall(r"^\| (F\d+) \|.*$", text, re.MULTILINE)
    assert rows == [f"F{n:02d}" for n in STAGE]
    named = set(re.findall(r"`(test_f\d+_\w+)`", text))
    assert named == _tests()
    for line in text.splitlines():
        match = re.match(r"\| (F\d+) \|", line)
        if match:
            assert re.findall(r"`test_(f\d+)_", line), line
            assert {number.upper() for number in re.findall(r"`test_(f\d+)_", line)} == {match[1]}


def test_formats_lists_every_table_and_column_of_the_ledger() -> None:
    """docs/formats.md describes the ledger as it is."""
    text = (ROOT / "docs" / "formats.md").read_text()
    section = text.split("## The ledger's tables")[1]
    listed = {
        match[1]: re.findall(r"`(\w+)`", match[2])
        for match in re.finditer(r"^\| `(\w+)` \|.*\| (.*) \|$", section, re.M)
    }
    actual = {table.name: [column.name for column in table.columns] for table in schema.metadata.sorted_tables}
    assert listed == actual


def lost(text: str) -> list[str]:
    """The modules that a text names in backticks and that are nowhere: by their path, or by their name alone."""
    modules = set(re.findall(r"(?<!`)`([\w/]+\.py)(?:: [\w ,.]+)?`", text))
    return sorted(
        module
        for module in modules
        if module not in MODULE_NAMES and not any((base / module).is_file() for base in BASES)
    )


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    """A path starts in the package, the repository or the tests; a name alone is one of a module somewhere in them."""
    assert lost(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", ["ledger/heads.py", "bites.py", "ledger/heads.py: MoveTable", "tests/cli/heads.py"])
def test_a_module_that_is_not_there_is_found(name: str) -> None:
    assert len(lost(f"It is moved (`{name}`).")) == 1
    assert lost("As in `ledger/tables/heads.py: MoveTable`, `heads.py`, `acceptance/test_model.py`, `a.python`.") == []


@pytest.mark.parametrize("name", PAGES)
def test_pages_that_are_made_say_what_the_program_says_of_itself(name: str) -> None:
    """docs/settings.md, errors.md, maintenance.md and documents.json are made by `make pages`, and never by hand."""
    stored = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert stored == PAGES[name](), "type: make pages"
