"""The way of a row on the page about the house: each step runs, and the ledger and the warehouse hold what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import strandline as sl
from strandline import create
from strandline.ledger.ledger import Ledger

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEP = re.compile(r"```python\n(.*?)```\n```text\n(.*?)```", re.DOTALL)


def test_every_step_of_a_row_leaves_what_the_page_shows(tmp_path: Path) -> None:
    """The steps are run in their order, in one lake; what stands behind each is compared with the tables and files."""
    folder = tmp_path / "lake"
    names: dict[str, Any] = {"sl": sl, "folder": folder, "lake": create.create(folder)}
    steps = STEP.findall(PAGE)
    assert len(steps) == 6
    for code, shown in steps:
        exec(code, names)
        wrong = [line for line in shown.splitlines() if not _holds(folder, line)]
        assert wrong == [], f"after\n{code}"
    names["lake"].close()


def _holds(folder: Path, line: str) -> bool:
    """Whether a line is so: `table column=value …`, `table (2 rows)`, `table (no row)`, `warehouse glob`."""
    subject, _, rest = line.partition(" ")
    rest = rest.strip()
    if subject == "warehouse":
        return any((folder / "warehouse").glob(rest))
    rows = _rows(folder, subject)
    counted = re.fullmatch(r"\((no|\d+) rows?\)", rest)
    if counted is not None:
        return len(rows) == (0 if counted[1] == "no" else int(counted[1]))
    values = dict(part.split("=", 1) for part in shlex.split(rest))
    assert values, f"{line!r} says nothing"
    return any(all(str(row[name]) == value for name, value in values.items()) for row in rows)


def _rows(folder: Path, table: str) -> list[dict[str, Any]]:
    ledger = Ledger.open(f"sqlite:///{folder}/ledger.db", read_only=True)
    with ledger.read() as conn:
        rows = [dict(row) for row in conn.execute(text(f"SELECT * FROM {table}")).mappings()]
    ledger.close()
    return rows


@pytest.mark.parametrize(
    "line", ["heads version=7", "intents (1 row)", "warehouse nothing/*", "heads last_seq=0 version=1"]
)
def test_a_line_that_is_not_so_is_noticed(tmp_path: Path, line: str) -> None:
    create.create(tmp_path / "lake").close()
    assert not _holds(tmp_path / "lake", line)


def test_every_file_that_the_page_names_is_there() -> None:
    """A path in backticks is one of the package, of the tests or of the docs."""
    package = ROOT / "src" / "strandline"
    paths = set(re.findall(r"`([\w/]+(?:/|\.py))(?:: [\w ,.]+)?`", PAGE))
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not any((base / path).exists() for base in (package, ROOT))] == []
